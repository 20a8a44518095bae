"""States that add up: what is known of predictions that come in batches, from many processes, or from large files.

    CalibrationState   of class probabilities: update, merge, results               state.py
    ForecastState      of targets with predicted distributions                            forecasts.py
    ComparisonState    several models on the same rows                                    comparison.py
    GroupedState       one for each group of samples, and for all of them                groups.py
    PredictionSample   a bandwidth from predictions that come so                predictions.py
    load               a state of whatever kind from a file                              opening.py
    source             samples in files, arrays and batches, read in pieces               sources/
    run                a source into a state, with checkpoints and signals                running.py

A state holds sums, not samples. `state` is what users see; it holds ``Contents`` (`_contents`): rows that were seen and
rows of open blocks (`_rows`), scores and cells (`_tally`), sums of features block by block (`_sums`), and a sample of
rows (`_sample`). What comes out is ``Totals``. `_results` makes of these what `kcalib.evaluate` and its kind return: of
features `_kernel_results`, of bins `_binned_results`. `_state` has what both kinds of states share; of predicted
distributions there are modules of their own for options, contents, sums, scores and results, with `_forecast` before
their names, and `_families` says which distributions. `_saved` and `_file` have files, `_descriptions` options in them.
"""

from kcalib._input.source import Source
from kcalib.streaming._binned_results import Score, Scores
from kcalib.streaming.comparison import ComparisonState
from kcalib.streaming.forecasts import ForecastState
from kcalib.streaming.groups import GroupedState
from kcalib.streaming.opening import load
from kcalib.streaming.predictions import PredictionSample
from kcalib.streaming.running import RunStopped, run
from kcalib.streaming.sources import source
from kcalib.streaming.state import CalibrationState

__all__ = [
    "CalibrationState",
    "ComparisonState",
    "ForecastState",
    "GroupedState",
    "PredictionSample",
    "RunStopped",
    "Score",
    "Scores",
    "Source",
    "load",
    "run",
    "source",
]
