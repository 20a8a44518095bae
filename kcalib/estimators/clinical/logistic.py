"""Compute calibration slope, intercept and calibration-in-the-large by logistic recalibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.devices import on_their_gpu
from kcalib._input.checks import reject
from kcalib._input.labels import Classification, prepare
from kcalib.estimators.event_bins import Sample
from kcalib.estimators.reliability import check_level
from kcalib.lenses import Lens
from kcalib.report.summary import Summarized
from kcalib.results import ConfidenceInterval
from kcalib.solvers.logistic import Regression, invert, minimise

__all__ = ["LogisticRecalibration", "logistic_recalibration"]


@dataclass(frozen=True)
class LogisticRecalibration(Summarized):
    """Log-odds of the event as a linear function of the predicted log-odds: slope 1, intercepts 0 under calibration."""

    slope: float  #: b of a + b logit(p); below 1: predictions are too extreme, as in overfitted models
    slope_interval: ConfidenceInterval  #: of the slope
    intercept: float  #: a, fitted with the slope
    intercept_interval: ConfidenceInterval  #: of the intercept
    calibration_in_the_large: float  #: a with the slope fixed at 1; above 0: more events than predicted
    calibration_in_the_large_interval: ConfidenceInterval  #: of calibration-in-the-large
    slope_standard_error: float  #: of the slope
    intercept_standard_error: float  #: of the intercept
    calibration_in_the_large_standard_error: float  #: of calibration-in-the-large
    confidence_level: float  #: of each interval
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    n_samples: int  #: number of samples


@on_their_gpu
def logistic_recalibration(
    y_true: Any,
    y_pred: Any,
    *,
    confidence_level: float = 0.95,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
) -> LogisticRecalibration:
    r"""Compute calibration slope, intercept and calibration-in-the-large, with confidence intervals.

    .. math:: \mathrm{logit}\, P(y = 1) = a + b\, \mathrm{logit}\, p

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`, for two classes; the event is the second one.
    confidence_level : float
        Confidence level of the intervals, in (0, 1).
    sample_weight : array_like, shape (n,), optional
        Non-negative weights. Samples of weight 0 are ignored.
    lens : Lens, optional
        As in `kcalib.reliability`. Default: the event is the second of two classes.

    Returns
    -------
    LogisticRecalibration
        The three numbers with standard errors and intervals.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce`. Also if there are more than two classes, through the lens; for probabilities of 0 and 1, whose
        log-odds are infinite; if predictions separate the labels; if all labels or all predictions are equal.

    Notes
    -----
    Calibration-in-the-large is the intercept with the log-odds as an offset, so the slope is 1, as in the R package
    CalibrationCurves [2]_. ``Intercept`` of ``rms::val.prob`` is `intercept`, which is fitted with the slope. Values
    agree with ``glm``. Intervals are Wald intervals; CalibrationCurves has profile likelihood intervals for the
    intercept. Standard errors with weights are
    :math:`H^{-1} (\sum w_i^2 q_i (1 - q_i) x_i x_i^\top) H^{-1}`, for independent labels. Time and memory O(n).

    References
    ----------
    .. [1] D. R. Cox. Two further applications of a model for binary regression. Biometrika 45, 1958.
    .. [2] B. Van Calster et al. Calibration: the Achilles heel of predictive analytics. BMC Medicine 17, 2019.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 0, 1, 0, 1, 1], [0.1, 0.2, 0.3, 0.4, 0.7, 0.9]
    >>> result = kcalib.logistic_recalibration(y, p)
    >>> round(result.slope, 3), round(result.intercept, 3), round(result.calibration_in_the_large, 3)
    (1.999, 1.014, 0.39)
    """
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, sample_weight=sample_weight)
    return recalibration_of(data, confidence_level)


def recalibration_of(data: Classification, confidence_level: float) -> LogisticRecalibration:
    """Return `logistic_recalibration` of checked data."""
    level, sample, odds = check_level(confidence_level), Sample.of(data).to_host(), log_odds_of(data)
    reason = explain_no_line(odds, sample.event)
    if reason is not None:
        raise ValueError(reason)
    width = -float(scipy.special.ndtri((1 - level) / 2))
    numbers: dict[str, Any] = {}
    for is_slope_free, names in ((True, ("slope", "intercept")), (False, ("", "calibration_in_the_large"))):
        for name, value, error in zip(names, *_fit(odds, sample, is_slope_free), strict=True):
            interval = ConfidenceInterval(value - width * error, value + width * error)
            numbers |= {name: value, f"{name}_standard_error": error, f"{name}_interval": interval} if name else {}
    return LogisticRecalibration(**numbers, confidence_level=level, lens=str(data.lens), n_samples=data.n)


def log_odds_of(data: Classification) -> np.ndarray:
    """Return the log-odds of the samples of positive weight; raise if any is infinite."""
    weight = None if data.sample_weight is None else arrays.to_host(data.sample_weight)
    other, event = np.asarray(arrays.to_host(data.probabilities), dtype=np.float64).T
    used = np.ones(data.n, dtype=bool) if weight is None else weight > 0
    reject(
        event,
        used & ((event <= 0) | (other <= 0)),
        lambda at, x: (
            f"`y_pred{at}` gives the event the probability {x:g}, whose log-odds are infinite; move such predictions "
            "inside, as numpy.clip(p, 1e-6, 1 - 1e-6) does"
        ),
    )
    return np.log(event[used]) - np.log(other[used])


def explain_no_line(odds: np.ndarray, event: np.ndarray) -> str | None:
    """Return why the likelihood has no finite maximum; None if it has one."""
    n_events = int(event.sum())
    if n_events in (0, len(event)):
        return f"`y_true` has {n_events} events in {len(event)} samples: the intercept is infinite; pass more samples"
    if np.min(odds) == np.max(odds):
        return (
            "`y_pred` is the same for all samples, so there is no slope; kcalib.observed_expected_ratio compares it "
            "with the share of events"
        )
    events, others = odds[event == 1], odds[event == 0]
    if np.max(others) <= np.min(events) or np.max(events) <= np.min(others):
        return (
            "`y_pred` separates the labels: no prediction for an event lies among those for the others, and the slope "
            "is infinite; pass more samples, or take the slope of kcalib.recalibration.PlattScaling(smoothing=True)"
        )
    return None


def _fit(odds: np.ndarray, sample: Sample, is_slope_free: bool) -> tuple[list[float], list[float]]:
    """Return slope and intercept, and their standard errors; the slope is 1 unless it is free."""
    weight, free = sample.weight / np.mean(sample.weight), np.array([[is_slope_free, True]])
    features = (odds[None], np.ones((1, len(odds))))
    regression = Regression(features, sample.event[None], weight, np.array([[1.0, 0.0]]), free=free)
    place = minimise(regression).parameters
    inverse = np.zeros((2, 2))
    used = np.ix_(free[0], free[0])
    inverse[used] = invert(regression.class_hessians(place)[0][used])[0]
    place = place - regression.value_and_gradient(place)[1] @ inverse  # a last Newton step, to float64 precision
    parts = zip(regression.blocks(), regression.probabilities(place), strict=True)
    spread = regression.second_moments([weight[rows] ** 2 * q * (1 - q) for rows, q in parts])[0]
    variances = np.diag(inverse @ spread @ inverse) / regression.n
    return place[0].tolist(), np.sqrt(variances).tolist()
