"""Where kinds of data differ for the command: options that not every kind has, and what is drawn."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from kcalib._command.files import FileError
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib.estimators.binning import N_BINS
from kcalib.estimators.forecast_quantities import LEVELS
from kcalib.estimators.quantile_calibration import QuantileCalibration, curve_of
from kcalib.estimators.reliability import ReliabilityDiagram, diagram_of
from kcalib.lenses import Canonical, TopLabel
from kcalib.report import figures
from kcalib.streaming import CalibrationState, ForecastState


@dataclass(frozen=True)
class Picture:
    """What is drawn of a model, and how."""

    diagram: ReliabilityDiagram | QuantileCalibration
    style: figures.Style


@singledispatch
def check_options(data: Data, arguments: argparse.Namespace) -> None:
    """That no option is given that such data do not have; class probabilities have all."""


@check_options.register
def _(data: Forecasts, arguments: argparse.Namespace) -> None:
    check_dimensions(data.n_dims, arguments)
    check_for_forecasts(arguments)


def check_dimensions(n_dims: int, arguments: argparse.Namespace) -> None:
    """That there are pictures of predictions of so many entries, where one is asked for."""
    if n_dims > 1 and getattr(arguments, "plot", None) is not None:
        raise FileError(
            f"holds predictions of vectors of {n_dims} entries, and --plot draws those of numbers; leave it out, "
            "or write a file for each entry"
        )


def check_for_forecasts(arguments: argparse.Namespace) -> None:
    """That no option of class probabilities is given."""
    given = {
        "--lens": arguments.lens not in (None, Canonical()),
        "--bins": arguments.n_bins is not None,
        "--bandwidth": getattr(arguments, "bandwidth", None) is not None,
    }
    for option, is_given in given.items():
        if is_given:
            raise FileError(f"holds {Forecasts.noun}, but {option} is for class probabilities; leave it out")


@singledispatch
def picture_of(data: Data, n_bins: int | None, seed: int) -> Picture:
    """What is drawn of checked data."""
    raise NotImplementedError


@picture_of.register
def _(data: Classification, n_bins: int | None, seed: int) -> Picture:
    diagram = diagram_of(TopLabel().induced(data), n_bins=N_BINS if n_bins is None else n_bins)
    return Picture(diagram, figures.RELIABILITY)


@picture_of.register
def _(data: Forecasts, n_bins: int | None, seed: int) -> Picture:
    curve = curve_of(data, levels=np.asarray(LEVELS), confidence_level=0.95, simultaneous=False, seed=seed)
    return Picture(curve, figures.QUANTILES)


@singledispatch
def noun_of(state: object) -> str:
    """What a state is of."""
    raise NotImplementedError


@noun_of.register
def _(state: CalibrationState) -> str:
    return Classification.noun


@noun_of.register
def _(state: ForecastState) -> str:
    return Forecasts.noun


@singledispatch
def picture_of_state(state: object) -> Picture:
    """What is drawn of a state."""
    raise NotImplementedError


@picture_of_state.register
def _(state: CalibrationState) -> Picture:
    return Picture(state.reliability(), figures.RELIABILITY)


@picture_of_state.register
def _(state: ForecastState) -> Picture:
    return Picture(state.quantile_calibration(), figures.QUANTILES)
