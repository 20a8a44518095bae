"""Forecasts in tables of forecast hubs and forecasting libraries, and in labelled arrays."""

from kcalib.streaming.forecast_tables.reading import read_forecasts
from kcalib.streaming.forecast_tables.results import ModelForecasts

__all__ = ["ModelForecasts", "read_forecasts"]
