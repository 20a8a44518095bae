"""Return properties of predicted distributions that scores need: means, quantiles, components, draws, in float64.

A custom distribution that only has draws is represented by `N_DRAWS` of them. CuPy arrays stay on their GPU; others are
returned on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._backend.options import show_number
from kcalib._input.forecasts import Forecasts, as_forecast, prepare_forecasts
from kcalib._pairs.problem import Components
from kcalib.distributions import Distribution, Quantiles, Samples
from kcalib.distributions.wrappers import Wrapper

LEVELS = tuple(round(0.05 * i, 2) for i in range(1, 20))  # of the pinball loss in Widmann et al. 2021, appendix A.3
N_DRAWS = 512  # of distributions without other methods
DRAW_SEED = 0


def forecasts_of(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Forecasts:
    """Check the input of functions for distributions of numbers and vectors."""
    y_pred = as_forecast(y_true, y_pred)
    if not isinstance(y_pred, Distribution) or y_pred.support == "class":
        raise TypeError(
            f"`y_pred` is {type(y_pred).__name__}, expected predicted distributions of numbers or vectors, such as "
            "kcalib.distributions.Normal(mean, std), or Samples(y_pred) for draws of shape (n, S); for class "
            "probabilities use kcalib.brier_score or kcalib.log_loss"
        )
    return prepare_forecasts(y_true, y_pred, sample_weight=sample_weight)


def mean_of(data: Forecasts, values: Array) -> float:
    xp = arrays.namespace(values)
    if data.sample_weight is None:
        return float(xp.mean(values))
    weights = arrays.to_compute_device(data.sample_weight)
    has_weight = weights > 0  # a score may be infinite
    values, weights = values[has_weight], weights[has_weight]
    return float(xp.sum(values * weights) / xp.sum(weights))


def means_of(data: Forecasts) -> Array:
    """Return means of the predictions, shape (n, d)."""
    return arrays.to_compute_device(data.prediction.expected_value(), np.float64)


def has_density(prediction: Any) -> bool:
    if isinstance(prediction, Wrapper):
        return has_density(prediction.distribution)
    return hasattr(prediction, "log_density")


def checked_levels(levels: Any) -> np.ndarray:
    try:
        array = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    except OverflowError:
        raise ValueError("`levels` has an integer beyond all floats, expected levels between 0 and 1") from None
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"`levels` has shape {array.shape}, expected (k,) with k at least 1")
    for i in np.flatnonzero(~((array > 0) & (array < 1))):
        raise ValueError(f"`levels[{i}]` is {show_number(array[i])}, expected a level between 0 and 1")
    return array


def levels_of(data: Forecasts, levels: Any) -> np.ndarray:
    """Return checked levels; default: the predicted levels of quantiles, else `LEVELS`."""
    prediction = data.prediction
    if not isinstance(prediction, Quantiles):
        return checked_levels(LEVELS if levels is None else levels)
    if levels is None:
        return prediction.scored_levels
    array = checked_levels(levels)
    prediction._check_levels(array)
    return array


def numbers_of(data: Forecasts, statistic: str) -> Array:
    """Return the targets, shape (n,); raise if they are vectors."""
    if data.n_dims != 1:
        raise ValueError(
            f"`y_pred` predicts vectors of {data.n_dims} entries, but {statistic} for numbers; pass the targets and "
            "the predictions of one entry at a time"
        )
    return targets_of(data)[:, 0]


def cdf_at(data: Forecasts, x: Array, *, left: bool = False) -> Array:
    """Return P(Z <= x), or P(Z < x), at one number for each sample, shape (n,)."""
    prediction: Any = data.prediction
    x = arrays.like(x.reshape((data.n, *prediction.event_shape)), data.y, data.y.dtype)
    return arrays.to_compute_device(prediction.cdf_left(x) if left else prediction.cdf(x)).reshape(-1)


def targets_of(data: Forecasts) -> Array:
    return arrays.to_compute_device(data.y, np.float64)


def event_of(data: Forecasts) -> Any:
    """Return the targets in the shape of densities: (n,) or (n, d)."""
    return data.y if data.prediction.event_shape else data.y[:, 0]


def components_of(prediction: Distribution) -> Components | None:
    c = prediction.components()
    if c is None:
        return None
    fields = (c.weights, c.locations, c.scales)
    return Components(c.family, *(None if a is None else arrays.to_compute_device(a, np.float64) for a in fields))


def draws_of(data: Forecasts) -> Array:
    """Return draws that represent the predictions, shape (n, S, d)."""
    check_memory(
        5 * 8 * data.n * N_DRAWS * data.n_dims,
        None,
        f"{N_DRAWS} draws from each of {data.n} predictions and what is computed of them",
        "define `quantile` and `cdf` for the family, or take fewer predictions at a time",
        data.y,
    )
    draws = data.prediction.quasi_sample(N_DRAWS, seed=DRAW_SEED)
    return arrays.to_compute_device(draws, np.float64).reshape(data.n, N_DRAWS, data.n_dims)


def samples_of(data: Forecasts) -> Components | None:
    """Return the samples that are, or represent, the predictions; None for others."""
    components = data.prediction.components()
    if components is not None and components.family == "atoms":
        return components_of(data.prediction)
    return None if hasattr(data.prediction, "cdf") else atoms_of(draws_of(data))


def quantiles_of(data: Forecasts, levels: np.ndarray) -> Array:
    """Return inf {x: F(x) >= level}, shape (n, k)."""
    if hasattr(data.prediction, "quantile"):
        return arrays.to_compute_device(data.prediction.quantile(levels), np.float64)
    draws = draws_of(data)[:, :, 0]
    if not arrays.is_host(draws):
        return Samples(draws).quantile(levels)
    return np.quantile(draws, levels, axis=1, method="inverted_cdf").T


def atoms_of(samples: Array) -> Components:
    """Return components for samples of equal weight, shape (n, S, d)."""
    equal = arrays.namespace(samples).full(samples.shape[:2], 1 / samples.shape[1])
    return Components("atoms", equal, samples, None)
