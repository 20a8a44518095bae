"""States that add up: what is known of predictions that come in batches, from many processes, or from large files.

    CalibrationState   of class probabilities: update, merge, results               state.py
    source             samples in files, arrays and batches, read in pieces               sources/

A state holds sums, not samples. `state` is what users see; it holds `Contents` (`_contents`): rows that were seen and
rows of open blocks (`_rows`), scores and cells (`_tally`), sums of features block by block (`_sums`), and a sample of
rows (`_sample`). What comes out is `Totals`.
"""

from kcalib._input.source import Source
from kcalib.streaming.sources import source
from kcalib.streaming.state import CalibrationState

__all__ = ["CalibrationState", "Source", "source"]
