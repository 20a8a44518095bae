"""Forecasts in the tables of hubs and of forecasting libraries, and in labelled arrays.

reading    `read_forecasts`, which recognises what it is given
table      columns of files and frames, whose values can be compared whatever wrote them
hub        long tables: a row for each quantile, sample or category
wide       frames with a column for each quantile
labelled   arrays of xarray
results    what was read of one model, and the rows that were not used
"""

from kcalib.streaming.forecast_tables.reading import read_forecasts
from kcalib.streaming.forecast_tables.results import ModelForecasts

__all__ = ["ModelForecasts", "read_forecasts"]
