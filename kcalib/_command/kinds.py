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
from kcalib.estimators.reliability import ClassDiagram, ReliabilityDiagram, diagram_of, worst_classes_of
from kcalib.lenses import Canonical, TopLabel
from kcalib.report import figures
from kcalib.report.diagrams import require_matplotlib
from kcalib.streaming import CalibrationState, ForecastState

LOGIT = "logit"
# Samples of a choice of recalibrators: fewer of many classes, so that there are not more probabilities.
MOST_CHOSEN, LEAST_CHOSEN, MOST_PROBABILITIES = 10_000, 1000, 500_000


@dataclass(frozen=True)
class Picture:
    """What is drawn of a model, and how."""

    diagram: ReliabilityDiagram | QuantileCalibration
    style: figures.Style
    classes: tuple[ClassDiagram, ...] = ()  # the worst ones


@singledispatch
def check_options(data: Data, arguments: argparse.Namespace) -> None:
    """That no option is given that such data do not have; class probabilities have all."""


@check_options.register
def _(data: Forecasts, arguments: argparse.Namespace) -> None:
    check_dimensions(data.n_dims, arguments)
    check_for_forecasts(arguments)


def check_dimensions(n_dims: int, arguments: argparse.Namespace) -> None:
    """That there are pictures of predictions of so many entries, where one is asked for."""
    if n_dims == 1:
        return
    vectors = f"holds predictions of vectors of {n_dims} entries, "
    if arguments.command == "report":
        raise FileError(
            f"{vectors}and a report draws those of numbers; write a file for each entry, or take `kcalib evaluate`"
        )
    if getattr(arguments, "plot", None) is not None:
        raise FileError(f"{vectors}and --plot draws those of numbers; leave it out, or write a file for each entry")


def check_for_forecasts(arguments: argparse.Namespace) -> None:
    """That no option of class probabilities is given."""
    given = {
        "--lens": arguments.lens not in (None, Canonical()),
        "--bins": arguments.n_bins is not None,
        "--bandwidth": getattr(arguments, "bandwidth", None) is not None,
        "--axes": getattr(arguments, "axes", None) is not None,
        "--plot-classes": bool(getattr(arguments, "plot_classes", 0)),
    }
    for option, is_given in given.items():
        if is_given:
            raise FileError(f"holds {Forecasts.noun}, but {option} is for class probabilities; leave it out")


def check_plotting(arguments: argparse.Namespace) -> None:
    """Usage errors of options of pictures where none is asked for; a missing library shows before the work."""
    if arguments.plot is not None:
        require_matplotlib()
        return
    for option, value in {"--axes": "axes", "--theme": "theme", "--plot-classes": "plot_classes"}.items():
        if getattr(arguments, value, None):
            arguments.usage_error(f"{option} is for --plot OUT, which is not given; leave it out")


@singledispatch
def picture_of(data: Data, arguments: argparse.Namespace) -> Picture:
    """What is drawn of checked data."""
    raise NotImplementedError


@picture_of.register
def _(data: Classification, arguments: argparse.Namespace) -> Picture:
    n_bins = N_BINS if arguments.n_bins is None else arguments.n_bins
    binning = "equal_mass" if arguments.axes == LOGIT else "uniform"
    diagram = diagram_of(TopLabel().induced(data), n_bins=n_bins, binning=binning)
    classes = worst_classes_of(data, arguments.plot_classes, n_bins, binning) if arguments.plot_classes else ()
    return Picture(diagram, _style(arguments), tuple(classes))


@picture_of.register
def _(data: Forecasts, arguments: argparse.Namespace) -> Picture:
    curve = curve_of(data, levels=np.asarray(LEVELS), confidence_level=0.95, simultaneous=False, seed=arguments.seed)
    return Picture(curve, figures.QUANTILES)


def _style(arguments: argparse.Namespace) -> figures.Style:
    return figures.RELIABILITY_ON_LOGITS if arguments.axes == LOGIT else figures.RELIABILITY


@singledispatch
def proper_score(data: Data) -> str:
    """The metric that models are also compared by in a report."""
    raise NotImplementedError


@proper_score.register
def _(data: Classification) -> str:
    return "brier_score"


@proper_score.register
def _(data: Forecasts) -> str:
    return "crps"


@singledispatch
def most_chosen(data: Data) -> int:
    """Samples that a recalibrator is chosen by in a report, so that it takes a minute at most."""
    return MOST_CHOSEN


@most_chosen.register
def _(data: Classification) -> int:
    return min(MOST_CHOSEN, max(LEAST_CHOSEN, MOST_PROBABILITIES // data.m))


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
def picture_of_state(state: object, arguments: argparse.Namespace) -> Picture:
    """What is drawn of a state."""
    raise NotImplementedError


@picture_of_state.register
def _(state: CalibrationState, arguments: argparse.Namespace) -> Picture:
    return Picture(state.reliability(), _style(arguments))


@picture_of_state.register
def _(state: ForecastState, arguments: argparse.Namespace) -> Picture:
    return Picture(state.quantile_calibration(), figures.QUANTILES)
