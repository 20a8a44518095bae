"""Compute a smooth calibration curve by loess, and its distances from the diagonal (ICI, E50, E90, Emax)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kcalib._backend.options import LARGEST_KEY, SEED, check_integer, check_seed
from kcalib._backend.random import Weights, draw_label_batches
from kcalib._input.labels import Classification, prepare
from kcalib.estimators.bands import Band
from kcalib.estimators.binning import bin_edges
from kcalib.estimators.clinical.loess import Loess
from kcalib.estimators.clinical.logistic import LogisticRecalibration, explain_no_line, log_odds_of, recalibration_of
from kcalib.estimators.clinical.observed_expected import ObservedExpectedRatio, ratio_of
from kcalib.estimators.event_bins import Sample
from kcalib.estimators.reliability import HISTOGRAM_BINS, ReliabilityDiagram, check_level, diagram_of
from kcalib.estimators.with_result import with_result
from kcalib.lenses import Lens
from kcalib.report import diagrams
from kcalib.report.summary import Summarized
from kcalib.results import ConfidenceInterval

__all__ = ["CalibrationCurve", "integrated_calibration_index"]

N_RESAMPLES = 999
N_GROUPS = 10
N_POINTS = 200  # of the curve in the result
MAX_CELLS = 1000  # of each label; more samples are grouped by their predictions for intervals
MANY, FEW_DRAWS = 10**5, 199  # more samples have fewer draws of their labels, to save time
LABELS_AT_ONCE = 2**22
TIE = 1e-9  # relative difference of equal distances by rounding


@dataclass(frozen=True, eq=False)
class CalibrationCurve(Summarized):
    """Frequency of an event as a smooth function of its predicted probability, with its distances from the diagonal."""

    value: float  #: ICI: mean distance of the curve from the diagonal over the samples
    interval: ConfidenceInterval  #: of the ICI
    e50: float  #: median distance
    e50_interval: ConfidenceInterval  #: of E50
    e90: float  #: 90 % quantile of the distances
    e90_interval: ConfidenceInterval  #: of E90
    e_max: float  #: largest distance
    e_max_interval: ConfidenceInterval  #: of Emax
    confidence_level: float  #: of intervals and band
    n_resamples: int  #: draws of the Bayesian bootstrap
    seed: int  #: of the draws
    points: np.ndarray = field(repr=False)  #: 200 predictions, evenly spaced
    curve: np.ndarray = field(repr=False)  #: frequencies at `points` by loess, which can be slightly outside [0, 1]
    band: Band = field(repr=False)  #: pointwise limits of the curve
    groups: ReliabilityDiagram = field(repr=False)  #: ten groups of equal size, with exact intervals
    histogram: np.ndarray = field(repr=False)  #: share of non-events and events by prediction, shape (2, 20)
    line: LogisticRecalibration | None = field(repr=False)  #: `kcalib.logistic_recalibration`; None if it raises
    ratio: ObservedExpectedRatio | None = field(repr=False)  #: O / E; None if E is 0
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    n_samples: int  #: number of samples

    def __float__(self) -> float:
        return self.value

    def plot(self, ax: Any = None, *, color: str | None = None, histogram: bool = True, legend: bool = True) -> Any:
        """Plot the curve with its band, groups, the diagonal, numbers, and histograms of events and non-events.

        It resembles the plots of ``val.prob`` and ``CalibrationCurves`` in R.

        Parameters
        ----------
        ax, color, histogram, legend
            As in `kcalib.ReliabilityDiagram.plot`.

        Returns
        -------
        matplotlib.axes.Axes
            The axes of the curve.

        Raises
        ------
        ImportError
            If matplotlib is missing; ``pip install 'kcalib[plot]'``.
        ValueError
            If `histogram` is True, but `ax` is no cell of a grid of axes.
        """
        return diagrams.plot_curve(self, ax, color, histogram, legend)


@with_result
def integrated_calibration_index(
    needs_result: bool,
    y_true: Any,
    y_pred: Any,
    *,
    n_resamples: int = N_RESAMPLES,
    confidence_level: float = 0.95,
    seed: int | None = SEED,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
) -> float | CalibrationCurve:
    r"""Compute the integrated calibration index (ICI), the mean distance of a smooth curve from the diagonal.

    Parameters
    ----------
    y_true, y_pred, confidence_level, sample_weight, classes, from_logits, lens
        As in `kcalib.logistic_recalibration`; probabilities of 0 and 1 are allowed.
    n_resamples : int
        Number of draws of the Bayesian bootstrap for intervals, at least 99.
    seed : int, optional
        Seed of the draws. None draws one, which the result reports.

    Returns
    -------
    float
        The ICI. ``integrated_calibration_index.result`` returns a `kcalib.CalibrationCurve` with the median, 90 %
        quantile and maximum of the distances (E50, E90, Emax), intervals, and ``plot``.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.logistic_recalibration`. Also if an option is out of range.

    Notes
    -----
    The curve is that of ``loess(y ~ p)`` in R: span 0.75, degree 2, interpolated between vertices [1]_, [2]_, as in
    ``CalibrationCurves``. In contrast, ``Eavg``, ``E90`` and ``Emax`` of ``rms::val.prob`` come from
    ``lowess(p, y, iter = 0)``: lines, span 2/3. Noise makes the ICI of a calibrated model positive.

    Intervals come from R curves of the Bayesian bootstrap [3]_. The upper limit is a quantile of their distances from
    the diagonal. The lower limit is the estimate minus a quantile of their distances from the estimated curve; by the
    triangle inequality these bound the effect of noise (for E50 and E90 under calibration). It is 0 unless at most a
    share (1 - confidence_level) / 2 of R sets of labels drawn from the predictions are as far from the diagonal. For a
    calibrated model the lower limit is therefore 0 with the stated probability, for any number of samples and events.
    With fewer than about ten events or non-events the upper limits of a badly calibrated model are too low. Vertices
    and spans are fixed. Above 1000 samples of a label, neighbors are drawn together. Time O(n R), memory O(n); above
    100,000 samples R is 199 for drawn labels.

    References
    ----------
    .. [1] P. C. Austin, E. W. Steyerberg. The Integrated Calibration Index (ICI) and related metrics for quantifying
       the calibration of logistic regression models. Statistics in Medicine 38, 2019.
    .. [2] W. S. Cleveland, E. Grosse. Computational methods for local regression. Statistics and Computing 1, 1991.
    .. [3] D. B. Rubin. The Bayesian bootstrap. Annals of Statistics 9, 1981.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> p = np.linspace(0.01, 0.99, 200)
    >>> y = np.random.default_rng(0).uniform(size=200) < p**2
    >>> round(kcalib.integrated_calibration_index(y, p), 3)
    0.195
    >>> curve = kcalib.integrated_calibration_index.result(y, p)
    >>> curve.interval.low < 1 / 6 < curve.interval.high, round(curve.e_max, 3)
    (True, 0.254)
    """
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, sample_weight=sample_weight)
    n_resamples, level = check_integer("n_resamples", n_resamples, 99, 10**6), check_level(confidence_level)
    seed = check_seed(seed, LARGEST_KEY)
    if needs_result:
        return curve_of(data, level, seed, n_resamples)
    sample = _sorted(data)
    return float(_estimate(sample, Loess.of(sample.confidence))[1][0, 0])


def curve_of(
    data: Classification, confidence_level: float, seed: int, n_resamples: int = N_RESAMPLES
) -> CalibrationCurve:
    """Return the result of `integrated_calibration_index` for checked data."""
    sample, tail = _sorted(data), (1 - confidence_level) / 2
    p, loess = sample.confidence, Loess.of(sample.confidence)
    curve, estimates = _estimate(sample, loess)
    points = np.linspace(p[0], p[-1], N_POINTS)
    cells, sizes = _cells(sample)
    within = Loess(cells.confidence, loess.vertices, loess.widths)
    # Weights of cells are sums of exponential variables, approximated by Wilson and Hilferty.
    normals, nth = Weights("gaussian", len(sizes), n_resamples, seed).values(), 1 / (9 * sizes[:, None])
    weights = cells.weight[:, None] * np.maximum(1 - nth + np.sqrt(nth) * normals, 0.0) ** 3
    curves = within.fit(cells.event[:, None], weights)
    drawn, noise = curves(cells.confidence), within.fit(cells.event, cells.weight)(cells.confidence)[:, None]
    lower = estimates - np.quantile(_distances(drawn - noise, weights), 1 - tail, axis=0)
    if np.any(lower > 0):
        n_draws = n_resamples if len(p) <= MANY else min(n_resamples, max(FEW_DRAWS, math.ceil(1 / tail)))
        lower[:, _pvalues(sample, loess, n_draws, seed) > tail] = 0.0
    upper = np.quantile(_distances(drawn - cells.confidence[:, None], weights), 1 - tail, axis=0)
    limits = np.stack([np.maximum(lower, 0.0)[0], np.maximum(upper, estimates)[0]])
    intervals = [ConfidenceInterval(*pair) for pair in limits.T.tolist()]
    edges = bin_edges(HISTOGRAM_BINS)
    of_label = [np.where(sample.event == label, sample.weight, 0.0) for label in (0, 1)]
    histogram = np.stack([np.histogram(p, edges, weights=weight)[0] for weight in of_label])
    ici, e50, e90, e_max = estimates[0].tolist()
    has_odds = p[0] > 0 and p[-1] < 1
    has_line = has_odds and explain_no_line(log_odds_of(data), Sample.of(data).to_host().event) is None
    return CalibrationCurve(
        value=ici,
        interval=intervals[0],
        e50=e50,
        e50_interval=intervals[1],
        e90=e90,
        e90_interval=intervals[2],
        e_max=e_max,
        e_max_interval=intervals[3],
        confidence_level=confidence_level,
        n_resamples=n_resamples,
        seed=seed,
        points=points,
        curve=curve(points),
        band=Band(*np.quantile(curves(points), [tail, 1 - tail], axis=1)),
        groups=diagram_of(
            data, n_bins=N_GROUPS, binning="equal_mass", confidence_level=confidence_level, bands="confidence"
        ),
        histogram=histogram / np.sum(histogram),
        line=recalibration_of(data, confidence_level) if has_line else None,
        ratio=ratio_of(data, confidence_level) if p[-1] > 0 else None,
        lens=str(data.lens),
        n_samples=data.n,
    )


def _sorted(data: Classification) -> Sample:
    """Return the samples of positive weight, sorted by prediction."""
    sample = Sample.of(data).to_host()
    order = np.argsort(sample.confidence, kind="stable")
    return Sample(sample.confidence[order], sample.event[order], sample.weight[order])


def _estimate(sample: Sample, loess: Loess) -> tuple[Any, np.ndarray]:
    """Return the curve, and its distances from the diagonal."""
    curve = loess.fit(sample.event, sample.weight)
    gaps = curve(sample.confidence) - sample.confidence
    return curve, _distances(gaps[:, None], sample.weight[:, None])


def _distances(gaps: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return mean, median, 90 % quantile and maximum of the absolute gaps in each column, shape (r, 4)."""
    rows = []
    for gap, w in zip(np.abs(gaps.T), weight.T, strict=True):
        order = np.argsort(gap)
        ordered, before = gap[order], np.cumsum(w[order])
        # Interpolate as R and NumPy do: at the share of the weight before each gap, relative to all but the last.
        shares = np.concatenate([[0.0], before[:-1] / max(before[-2], 1e-300)]) if len(w) > 1 else np.zeros(1)
        rows.append([gap @ w / before[-1], *np.interp([0.5, 0.9], shares, ordered), ordered[-1]])
    return np.array(rows)


def _pvalues(sample: Sample, loess: Loess, n_draws: int, seed: int) -> np.ndarray:
    """Return the exact p-value of each distance under calibration, from labels drawn from the predictions, shape (4,).

    Many samples are grouped by their predictions alone, which keeps observed and drawn labels exchangeable.
    """
    p, w = sample.confidence, sample.weight
    count = min(2 * MAX_CELLS, len(p))
    starts = -(-np.arange(count) * len(p) // count)
    sizes = np.add.reduceat(w, starts)
    within = Loess(np.add.reduceat(w * p, starts) / sizes, loess.vertices, loess.widths)
    events = [np.add.reduceat(w * sample.event, starts)[:, None]]
    for labels in draw_label_batches(np.stack([1 - p, p], axis=1), n_draws, seed, at_once=1 + LABELS_AT_ONCE // len(p)):
        events.append(np.add.reduceat(w[:, None] * labels, starts, axis=0))
    weight = sizes[:, None]
    curves = within.fit(np.concatenate(events, axis=1) / weight, weight)(within.x)
    distances = _distances(curves - within.x[:, None], np.broadcast_to(weight, curves.shape))
    return np.asarray(np.mean(distances >= distances[0] * (1 - TIE), axis=0))


def _cells(sample: Sample) -> tuple[Sample, np.ndarray]:
    """Return samples, with neighbors of the same label grouped if there are many, and their effective numbers."""
    groups = np.empty(len(sample.event), dtype=np.int64)
    for label in (0, 1):
        of_label = np.flatnonzero(sample.event == label)
        groups[of_label] = (
            2 * (np.arange(len(of_label)) * min(MAX_CELLS, len(of_label)) // max(len(of_label), 1)) + label
        )
    _, index = np.unique(groups, return_inverse=True)
    sums, squares, moments, events = (
        np.bincount(index, sample.weight * values) for values in (1, sample.weight, sample.confidence, sample.event)
    )
    order = np.argsort(moments / sums, kind="stable")
    cells = Sample((moments / sums)[order], np.round(events / sums)[order], sums[order])
    return cells, (sums**2 / squares)[order]
