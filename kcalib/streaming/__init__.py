"""States: mergeable sums of samples that come in batches, from many processes or large files.

A state holds an ``Accumulator`` (`_accumulator`) with sums instead of samples; `_state` is the base class. `_row_sums`
computes the sums, `_classes` and `_forecasts` compute from them the results that `kcalib.evaluate` returns. `_files`
saves and loads states.
"""

from kcalib._input.source import Source
from kcalib.streaming._classes.binned_results import Score, Scores
from kcalib.streaming.comparison import ComparisonState
from kcalib.streaming.forecast_tables import ModelForecasts, read_forecasts
from kcalib.streaming.forecasts import ForecastState
from kcalib.streaming.groups import GroupedState
from kcalib.streaming.language_models.reading import read_answers
from kcalib.streaming.loading import load
from kcalib.streaming.predictions import PredictionSample
from kcalib.streaming.running import RunStopped, run
from kcalib.streaming.sources import source
from kcalib.streaming.state import CalibrationState

__all__ = [
    "CalibrationState",
    "ComparisonState",
    "ForecastState",
    "GroupedState",
    "ModelForecasts",
    "PredictionSample",
    "RunStopped",
    "Score",
    "Scores",
    "Source",
    "load",
    "read_answers",
    "read_forecasts",
    "run",
    "source",
]
