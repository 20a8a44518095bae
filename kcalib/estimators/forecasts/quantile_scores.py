"""Compute scores of predicted quantiles and intervals: coverage, width, pinball loss and its decomposition."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import check_fraction
from kcalib.distributions import Distribution
from kcalib.estimators.bands import Band
from kcalib.estimators.forecasts.quantile_calibration import check_band, coverage_band
from kcalib.estimators.forecasts.quantities import forecasts_of, levels_of, mean_of, numbers_of, quantiles_of
from kcalib.estimators.forecasts.scores import interval_score_values, pinball_values
from kcalib.report.summary import MOST_ROWS, Summarized, Summary

__all__ = ["QuantileScores", "interval_score", "quantile_scores", "weighted_interval_score"]

SAME = 1e-9  # two levels whose sum differs from 1 by less are ends of a central interval


@dataclass(frozen=True, eq=False)
class QuantileScores(Summarized):
    """Scores of predicted quantiles at each level, and of central intervals between them. Arrays are float64."""

    levels: np.ndarray  #: of the quantiles, shape (k,)
    coverage: np.ndarray  #: share of targets that are at most the quantile, shape (k,)
    #: pointwise limits of the coverage under calibration; NaN at levels where a target is equal to its quantile
    consistency_band: Band
    pinball_loss: np.ndarray  #: mean loss, shape (k,): miscalibration - discrimination + uncertainty
    miscalibration: np.ndarray  #: gain by the best increasing map of the quantiles, shape (k,)
    discrimination: np.ndarray  #: gain of the mapped quantiles over one quantile for all samples, shape (k,)
    uncertainty: np.ndarray  #: loss of one quantile for all samples, that of the targets, shape (k,)
    interval_probabilities: np.ndarray  #: of central intervals between two of the levels, shape (c,)
    interval_coverage: np.ndarray  #: share of targets in the intervals, including ends, shape (c,)
    interval_width: np.ndarray  #: mean width of the intervals, shape (c,)
    interval_score: np.ndarray  #: `kcalib.interval_score`, shape (c,)
    weighted_interval_score: float  #: `kcalib.weighted_interval_score`
    confidence_level: float  #: of the band
    n_samples: int  #: number of samples

    def __repr__(self) -> str:
        return (
            f"QuantileScores(weighted_interval_score={self.weighted_interval_score:.4g}, n_levels={len(self.levels)}, "
            f"n_samples={self.n_samples}, confidence_level={self.confidence_level:g})"
        )

    def _summary(self) -> Summary:
        shown = np.unique(np.linspace(0, len(self.levels) - 1, MOST_ROWS - 1).round().astype(int)).tolist()
        is_tied = np.isnan(self.consistency_band.low)
        scores = (self.pinball_loss, self.miscalibration, self.discrimination, self.uncertainty)
        rows = [
            [
                f"{self.levels[k]:.4g}",
                f"{self.coverage[k]:.4f}",
                "-" if is_tied[k] else f"[{self.consistency_band.low[k]:.4f}, {self.consistency_band.high[k]:.4f}]",
                *(f"{values[k]:.4g}" for values in scores),
            ]
            for k in shown
        ]
        header = ["level", "coverage", "if calibrated", "pinball", "miscalibration", "discrimination", "uncertainty"]
        title = f"QuantileScores: weighted interval score {self.weighted_interval_score:.4g}; {self.n_samples} samples"
        rest = len(self.levels) - len(shown)
        notes = [f"and {rest} levels between"] if rest else []
        if np.any(is_tied):
            notes.append("-: targets equal their quantiles, which are all counted; see kcalib.quantile_calibration")
        return Summary(title, rows, [False] * len(header), header, tuple(notes))


@on_their_gpu
def quantile_scores(
    y_true: Any, y_pred: Distribution, *, levels: Any = None, confidence_level: float = 0.95
) -> QuantileScores:
    r"""Compute coverage, width, pinball loss and its decomposition at each level of predicted quantiles.

    Parameters
    ----------
    y_true, y_pred
        As in `kcalib.crps`, for predictions of numbers: `kcalib.distributions.Quantiles`, or others with quantiles.
    levels : array_like, shape (k,), optional
        As in `kcalib.pinball_loss`.
    confidence_level : float
        Confidence level of the consistency band, in (0, 1).

    Returns
    -------
    QuantileScores
        The scores of each level, and of each central interval whose ends are among the levels.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`. Also if a level is out of range or not predicted; if predictions are vectors.

    See Also
    --------
    kcalib.quantile_calibration : Coverage with randomized ties, and a diagram.

    Notes
    -----
    The pinball loss is decomposed as in [1]_. Isotonic regression gives the increasing function of the predicted
    quantiles with the least loss. *Miscalibration* is its gain over the predicted quantiles; *uncertainty* is the loss
    of one quantile for all samples; *discrimination* is the gain of the function over that. Miscalibration and
    discrimination are at least 0; for calibrated models miscalibration is small, but not 0. The coverage counts every
    target that equals its quantile, as for rain of 0, and can then exceed the level for calibrated models: such levels
    have no band, and `kcalib.quantile_calibration` tells whether the model is calibrated. Time O(k n log n).

    References
    ----------
    .. [1] T. Gneiting, D. Wolffram, J. Resin, K. Kraus, J. Bracher, T. Dimitriadis, V. Hagenmeyer, A. I. Jordan,
       S. Lerch, K. Phipps, M. Schienle. Model diagnostics and forecast evaluation for quantiles. Annual Review of
       Statistics and Its Application, 2023.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Quantiles
    >>> scores = kcalib.quantile_scores([1.0, 5.0], Quantiles([0.25, 0.5, 0.75], [[0.0, 1.0, 3.0], [2.0, 3.0, 4.0]]))
    >>> scores.coverage.tolist(), scores.interval_coverage.tolist(), scores.interval_width.tolist()
    ([0.0, 0.5, 0.5], [0.5], [2.5])
    """
    check_band(confidence_level, False)
    data = forecasts_of(y_true, y_pred)
    levels = levels_of(data, levels)
    order = np.argsort(levels)
    levels = levels[order]
    y = arrays.to_host(numbers_of(data, "quantiles are"))
    quantiles = arrays.to_host(quantiles_of(data, levels))
    gaps = y[:, None] - quantiles
    losses = np.mean(_losses(gaps, levels), axis=0)
    is_tied = np.any(gaps == 0, axis=0)
    band = Band(*(np.where(is_tied, np.nan, limit) for limit in coverage_band(data.n, levels, confidence_level)))
    least, uncertainty = np.empty((2, len(levels)))
    for k, level in enumerate(levels.tolist()):
        best = np.quantile(y, level, method="inverted_cdf")
        uncertainty[k] = np.mean(_losses(y - best, level))
        least[k] = min(np.mean(_losses(y - fit_isotonic_quantile(quantiles[:, k], y, level), level)), losses[k])
    pairs = [
        (i, j) for i in range(len(levels)) for j in range(i + 1, len(levels)) if abs(levels[i] + levels[j] - 1) < SAME
    ]
    low, high = quantiles[:, [i for i, _ in pairs]], quantiles[:, [j for _, j in pairs]]
    probabilities = np.array([levels[j] - levels[i] for i, j in pairs])
    scores = interval_score_values(y[:, None], low, high, probabilities)
    narrow_first = np.argsort(probabilities)
    return QuantileScores(
        levels=levels,
        coverage=np.mean(gaps <= 0, axis=0),
        consistency_band=band,
        pinball_loss=losses,
        miscalibration=losses - least,
        discrimination=np.maximum(uncertainty - least, 0.0),
        uncertainty=uncertainty,
        interval_probabilities=probabilities[narrow_first],
        interval_coverage=np.mean((low <= y[:, None]) & (y[:, None] <= high), axis=0)[narrow_first],
        interval_width=np.mean(high - low, axis=0)[narrow_first],
        interval_score=np.mean(scores, axis=0)[narrow_first],
        weighted_interval_score=float(2 * np.mean(losses)),
        confidence_level=float(confidence_level),
        n_samples=data.n,
    )


@on_their_gpu
def weighted_interval_score(
    y_true: Any, y_pred: Distribution, *, levels: Any = None, sample_weight: Any = None
) -> float:
    r"""Compute the mean weighted interval score of predicted quantiles: twice the pinball loss, averaged over levels.

    Parameters
    ----------
    y_true, y_pred, levels, sample_weight
        As in `kcalib.pinball_loss`.

    Returns
    -------
    float
        The score; lower is better. With the median m and C central intervals of probabilities :math:`1 - \alpha_c`,
        whose interval scores are IS, it is :math:`(|y - m| / 2 + \sum_c \alpha_c \mathrm{IS}_c / 2) / (C + 1/2)`. It
        tends to the CRPS as the levels fill (0, 1).

    Raises
    ------
    TypeError, ValueError
        As `kcalib.pinball_loss`.

    Notes
    -----
    See J. Bracher, E. L. Ray, T. Gneiting, N. G. Reich. Evaluating epidemic forecasts in an interval format. PLoS
    Computational Biology, 2021.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Quantiles
    >>> round(kcalib.weighted_interval_score([4.0], Quantiles([0.1, 0.5, 0.9], [[0.0, 1.0, 3.0]])), 6)
    1.866667
    """
    data = forecasts_of(y_true, y_pred, sample_weight)
    return 2 * mean_of(data, pinball_values(data, levels_of(data, levels)))


@on_their_gpu
def interval_score(y_true: Any, y_pred: Distribution, *, coverage: float = 0.9, sample_weight: Any = None) -> float:
    r"""Compute the mean interval score of central intervals: width plus penalties for targets outside.

    Parameters
    ----------
    y_true, y_pred, sample_weight
        As in `kcalib.crps`, for predictions of numbers.
    coverage : float
        Probability of the intervals, in (0, 1). Predicted `kcalib.distributions.Quantiles` must have their ends, the
        levels (1 - coverage) / 2 and (1 + coverage) / 2.

    Returns
    -------
    float
        The mean of :math:`u - l + (2 / \alpha) (l - y)_+ + (2 / \alpha) (y - u)_+` with :math:`\alpha` = 1 -
        coverage (Gneiting and Raftery 2007); lower is better.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`. Also if the coverage is out of range, or an end is not predicted; if predictions are vectors.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Quantiles
    >>> round(kcalib.interval_score([4.0], Quantiles([0.1, 0.9], [[0.0, 3.0]]), coverage=0.8), 6)
    13.0
    """
    check_fraction("coverage", coverage)
    data = forecasts_of(y_true, y_pred, sample_weight)
    y, ends = numbers_of(data, "intervals are"), np.round([(1 - coverage) / 2, (1 + coverage) / 2], 12)
    limits = quantiles_of(data, ends)
    return mean_of(data, interval_score_values(y, limits[:, 0], limits[:, 1], coverage))


def _losses(gaps: np.ndarray, level: Any) -> np.ndarray:
    return np.where(gaps > 0, level * gaps, (level - 1) * gaps)


def fit_isotonic_quantile(x: np.ndarray, y: np.ndarray, level: float) -> np.ndarray:
    """Return the increasing function of x with the least mean pinball loss for y, at each x, shape (n,).

    The least loss of a function up to a sample is convex and piecewise linear in its last value. A heap holds the
    places where the slope changes, largest first. A sample adds its target; then the increasing part is cut off,
    because the function may stay below.
    """
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    ends = np.append(np.flatnonzero(np.diff(x)) + 1, len(x))
    heap: list[tuple[float, float]] = []
    best, begin = np.empty(len(ends)), 0
    for group, end in enumerate(ends.tolist()):
        for target in y[begin:end].tolist():
            heapq.heappush(heap, (-target, 1.0))
        excess = (1 - level) * (end - begin)
        while excess > 1e-9:
            place, weight = heap[0]
            if weight > excess + 1e-9:
                heapq.heapreplace(heap, (place, weight - excess))
                break
            heapq.heappop(heap)
            excess -= weight
        best[group], begin = -heap[0][0], end
    best = np.minimum.accumulate(best[::-1])[::-1]
    fitted = np.empty(len(x))
    fitted[order] = np.repeat(best, np.diff(ends, prepend=0))
    return fitted
