"""What differs between class probabilities and predicted distributions: options and pictures."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from kcalib._input.columns import FileError
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib.distributions import Samples
from kcalib.estimators.binning import N_BINS
from kcalib.estimators.forecasts.quantile_calibration import QuantileCalibration, curve_of
from kcalib.estimators.forecasts.quantities import levels_of
from kcalib.estimators.reliability import ClassDiagram, ReliabilityDiagram, diagram_of, worst_classes_of
from kcalib.lenses import Canonical, Confidence, Lens, TopLabel
from kcalib.report import figures
from kcalib.report.diagrams import require_matplotlib
from kcalib.streaming import CalibrationState, ForecastState


@dataclass(frozen=True)
class Picture:
    """The diagram of a model and its style."""

    diagram: ReliabilityDiagram | QuantileCalibration
    style: figures.Style
    classes: tuple[ClassDiagram, ...] = ()  # those with the largest errors


def check_options(data: Data, arguments: argparse.Namespace) -> None:
    """Refuse options that do not apply to the data."""
    if isinstance(data, Forecasts):
        check_dimensions(data.n_dims, arguments)
        check_for_forecasts(arguments)
    else:
        check_confidences(data.lens, arguments)
    if arguments.command != "compare":  # there the models may be of different kinds
        check_fair(type(data.prediction).__name__ if isinstance(data, Forecasts) else None, arguments)


def check_confidences(lens: Lens, arguments: argparse.Namespace) -> None:
    """Refuse --lens for confidences."""
    if lens == Confidence() and arguments.lens not in (Canonical(), Confidence()):
        raise FileError("holds confidences, but --lens is for class probabilities; leave it out")


def check_fair(prediction: str | None, arguments: argparse.Namespace) -> None:
    """Refuse --fair for predictions that are not samples."""
    if arguments.fair and prediction != Samples.__name__:
        what = Classification.noun if prediction is None else f"{prediction} distributions"
        raise FileError(f"holds {what}, but --fair is for samples; leave it out")


def check_dimensions(n_dims: int, arguments: argparse.Namespace) -> None:
    """Refuse pictures of predictions of vectors."""
    if n_dims == 1:
        return
    vectors = f"holds predictions of vectors of {n_dims} entries, but "
    if arguments.command == "report":
        raise FileError(
            f"{vectors}a report draws predictions of numbers; write a file for each entry, or use `kcalib evaluate`"
        )
    if getattr(arguments, "plot", None) is not None:
        raise FileError(f"{vectors}--plot draws predictions of numbers; leave it out, or write a file for each entry")


def check_for_forecasts(arguments: argparse.Namespace) -> None:
    """Refuse options of class probabilities."""
    is_given = {
        "--lens": arguments.lens not in (None, Canonical()),
        "--bins": arguments.n_bins is not None,
        "--bandwidth": getattr(arguments, "bandwidth", None) is not None,
        "--axes": getattr(arguments, "axes", None) is not None,
        "--plot-classes": bool(getattr(arguments, "plot_classes", 0)),
        "--metrics": bool(getattr(arguments, "metrics", ())),
    }
    for option, is_used in is_given.items():
        if is_used:
            raise FileError(f"holds {Forecasts.noun}, but {option} is for class probabilities; leave it out")


def check_plotting(arguments: argparse.Namespace) -> None:
    """Refuse options of pictures without --plot, and a missing matplotlib, before the work starts."""
    if arguments.plot is not None:
        require_matplotlib()
        return
    for option, value in {"--axes": "axes", "--theme": "theme", "--plot-classes": "plot_classes"}.items():
        if getattr(arguments, value, None):
            arguments.usage_error(f"{option} needs --plot OUT; leave it out")


def draw_data(data: Data, arguments: argparse.Namespace) -> Picture:
    """Return the picture of checked data."""
    if isinstance(data, Forecasts):
        levels = levels_of(data, None)
        curve = curve_of(data, levels=levels, confidence_level=0.95, simultaneous=False, seed=arguments.seed)
        return Picture(curve, figures.QUANTILES)
    assert isinstance(data, Classification)
    n_bins = N_BINS if arguments.n_bins is None else arguments.n_bins
    binning = "equal_mass" if arguments.axes == "logit" else "uniform"
    confidences = data if data.lens.has_confidence else TopLabel().induced(data)
    diagram = diagram_of(confidences, n_bins=n_bins, binning=binning)
    has_classes = arguments.plot_classes and not data.lens.has_confidence
    classes = worst_classes_of(data, arguments.plot_classes, n_bins, binning) if has_classes else ()
    return Picture(diagram, _reliability_style(arguments), tuple(classes))


def draw_state(state: CalibrationState | ForecastState, arguments: argparse.Namespace) -> Picture:
    """Return the picture of a state."""
    if isinstance(state, ForecastState):
        return Picture(state.quantile_calibration(), figures.QUANTILES)
    return Picture(state.reliability(), _reliability_style(arguments))


def _reliability_style(arguments: argparse.Namespace) -> figures.Style:
    return figures.RELIABILITY_ON_LOGITS if arguments.axes == "logit" else figures.RELIABILITY
