"""Compute scores of predicted distributions from densities and quantiles: log score and pinball loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.special import to_device_of
from kcalib._input.checks import reject
from kcalib._input.forecasts import Forecasts
from kcalib.distributions import Distribution
from kcalib.estimators.forecasts.quantities import (
    event_of,
    forecasts_of,
    has_density,
    levels_of,
    mean_of,
    numbers_of,
    quantiles_of,
)

__all__ = ["log_score", "pinball_loss"]


@on_their_gpu
def log_score(y_true: Any, y_pred: Distribution, *, sample_weight: Any = None) -> float:
    """Compute the log score: the mean negative log-likelihood of the targets, in nats.

    Parameters
    ----------
    y_true, y_pred, sample_weight
        As in `kcalib.crps`.

    Returns
    -------
    float
        The score; lower is better. For densities it can be negative, and depends on the units of the targets.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`. Also if the predictions have no density, like samples; if a density is infinite at its target.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> round(kcalib.log_score([0.0], Normal([0.0], [1.0])), 6)
    0.918939
    """
    data = forecasts_of(y_true, y_pred, sample_weight)
    return mean_of(data, log_score_values(data))


@on_their_gpu
def pinball_loss(y_true: Any, y_pred: Distribution, *, levels: Any = None, sample_weight: Any = None) -> float:
    r"""Compute the mean pinball loss of predicted quantiles, averaged over levels.

    Parameters
    ----------
    y_true, y_pred, sample_weight
        As in `kcalib.crps`, for predictions of numbers.
    levels : array_like, shape (k,), optional
        Levels of the quantiles, each in (0, 1). Default: 0.05, 0.1, ..., 0.95; for
        `kcalib.distributions.Quantiles` the predicted levels.

    Returns
    -------
    float
        The mean over samples and levels of
        :math:`(1 - \tau) (q_\tau - y)_+ + \tau (y - q_\tau)_+`; lower is better. Averaged over all levels in (0, 1) it
        is half the CRPS. Time and memory O(n k).

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`. Also if a level is out of range; if predictions are vectors.

    Notes
    -----
    See Widmann, Lindsten and Zachariah (2021), appendix A.3. Custom distributions without `quantile` are represented by
    512 draws with seed 0.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> round(kcalib.pinball_loss([1.0], Normal([0.0], [1.0]), levels=[0.5]), 6)
    0.5
    """
    data = forecasts_of(y_true, y_pred, sample_weight)
    return mean_of(data, pinball_values(data, levels_of(data, levels)))


def log_score_values(data: Forecasts) -> Array:
    """Return the negative log density at each target, shape (n,), float64."""
    if not has_density(data.prediction):
        raise ValueError(
            f"`y_pred` is {type(data.prediction).__name__}, which has no density (`log_density`), so there is no "
            "log score; use kcalib.crps, or fit a density to the samples"
        )
    prediction: Any = data.prediction
    scores = -arrays.to_compute_device(prediction.log_density(event_of(data)), np.float64)
    bad = (scores == -math.inf) if data.sample_weight is None else (scores == -math.inf) & (data.sample_weight > 0)
    _reject_scores(data, bad, "is infinite and the log score -inf; move the target away from there")
    return scores


def finite_log_score_values(data: Forecasts) -> Array:
    """Return `log_score_values`; raise if any is infinite."""
    scores = log_score_values(data)
    _reject_scores(data, scores == math.inf, "is 0 and the log score inf, without an interval; leave the row out")
    return scores


def _reject_scores(data: Forecasts, bad: Array, problem: str) -> None:
    def message(at: str, _: Any) -> str:
        target = arrays.to_host(event_of(data))[int(at[1:-1])].tolist()
        kind = type(data.prediction).__name__
        return f"`y_true{at}` is {target}, where the density of this row's {kind} {problem}, or use the CRPS"

    reject(bad, bad, message)


def interval_score_values(y: Array, low: Array, high: Array, coverage: Any) -> Array:
    """Return interval scores for targets and ends of intervals, which broadcast."""
    xp = arrays.namespace(y)
    outside = xp.maximum(low - y, 0.0) + xp.maximum(y - high, 0.0)
    return high - low + 2 / (1 - coverage) * outside


def pinball_values(data: Forecasts, levels: np.ndarray) -> Array:
    """Return the pinball loss of each sample, averaged over levels, shape (n,)."""
    y = numbers_of(data, "the pinball loss is")[:, None]
    gap, levels, xp = y - quantiles_of(data, levels), to_device_of(levels, y), arrays.namespace(y)
    return xp.mean(xp.where(gap > 0, levels * gap, (levels - 1) * gap), axis=1)
