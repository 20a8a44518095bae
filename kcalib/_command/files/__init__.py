"""Predictions and labels or targets from .npz, .npy, .csv and .parquet files.

A file is a set of named arrays or columns (`source`), which the module of its format gives. Among them `_input.columns`
finds the predictions and the labels, `_input.parameters` predicted distributions, and `predictions` reads just those.
Values are checked later, by `kcalib._input` and `kcalib.distributions`. Nothing is ever unpickled.
"""

from kcalib._command.files.predictions import FileForecasts, FilePredictions, read_predictions
from kcalib._input.columns import FileError

__all__ = ["FileError", "FileForecasts", "FilePredictions", "read_predictions"]
