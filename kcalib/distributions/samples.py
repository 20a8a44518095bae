"""Empirical predictive distributions: the members of an ensemble forecast, draws of a Markov chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import methods_on_their_gpu
from kcalib._backend.special import brought
from kcalib._pairs.problem import Components
from kcalib.distributions._checks import check_size, numbers, probability_row, read_only, real_array, weight_rows
from kcalib.distributions._distribution import Family, Quantiles, row_blocks
from kcalib.distributions._quasi import random_points

__all__ = ["Samples"]


@methods_on_their_gpu
@dataclass(frozen=True, eq=False)
class Samples(Family, Quantiles):
    r"""Empirical distributions of S samples, such as the members of an ensemble forecast or draws by MCMC.

    Parameters
    ----------
    samples : array_like, shape (n, S) or (n, S, d)
        S values for each prediction: numbers, or vectors of d entries.
    weights : array_like, shape (S,) or (n, S), optional
        Weights of the values, at least 0, whose rows sum to 1 within 1e-6 (what is left is divided out). By default
        all are 1 / S.

    Raises
    ------
    TypeError
        If a parameter does not hold real numbers.
    ValueError
        If one is not finite or out of range, or has a wrong shape.

    Notes
    -----
    These distributions have no density. The 2-Wasserstein distance of two on the real line with equal weights is that
    of the sorted values, over the root of S. `sample` and `quasi_sample` draw with replacement.

    Examples
    --------
    >>> from kcalib.distributions import Samples
    >>> predictions = Samples([[0.0, 1.0, 5.0], [2.0, 2.0, 3.0]])
    >>> predictions.cdf([1.0, 1.0]).round(3).tolist()
    [0.667, 0.0]
    >>> predictions.quantile(0.5).tolist()
    [[1.0], [2.0]]
    """

    samples: Array
    weights: Array | None

    _uniforms = 1
    _event_axis = 2

    def __init__(self, samples: Any, weights: Any = None) -> None:
        samples = real_array(samples, "samples")
        if samples.ndim not in (2, 3) or 0 in samples.shape:
            raise ValueError(
                f"`samples` has shape {tuple(samples.shape)}, expected (n, S), or (n, S, d) for predictions of "
                "vectors: S samples for each of n predictions"
            )
        if weights is not None:
            weights = weight_rows(weights, "weights", tuple(samples.shape[:2]), "sample")
            weights = read_only(arrays.asarray_like(weights, samples))
        object.__setattr__(self, "samples", read_only(samples))
        object.__setattr__(self, "weights", weights)

    @property
    def size(self) -> int:
        """Number S of values of each distribution."""
        return int(self.samples.shape[1])

    def components(self) -> Components:
        xp = arrays.namespace(self.samples)
        atoms = xp.reshape(self.samples, (self.n, self.size, self.n_dims))
        return Components("atoms", self._weight_rows(), atoms, None)

    def _weight_rows(self) -> Array:
        if self.weights is not None:
            return self.weights
        xp = arrays.namespace(self.samples)
        return xp.ones_like(self.samples if self.samples.ndim == 2 else self.samples[:, :, 0]) / self.size

    def wasserstein_points(self) -> Array | None:
        """Sorted values over the root of S for numbers with equal weights; else None."""
        if self.n_dims > 1 or self.weights is not None:
            return None
        xp = arrays.namespace(self.samples)
        return xp.sort(xp.reshape(self.samples, (self.n, self.size)), axis=1) / self.size**0.5

    def expected_value(self) -> Array:
        components = self.components()
        xp = arrays.namespace(self.samples)
        return xp.sum(components.weights[:, :, None] * components.locations, axis=1)

    def standard_deviation(self) -> Array:
        components = self.components()
        xp = arrays.namespace(self.samples)
        centred = components.locations - self.expected_value()[:, None, :]
        return xp.sqrt(xp.sum(components.weights[:, :, None] * centred**2, axis=1))

    def sample(self, size: int, *, seed: int = 0) -> Array:
        return self._draws(random_points(self.n, check_size(size), 1, seed))

    def _draws(self, uniforms: Array) -> Array:
        u, values = brought(uniforms, self.samples)[:, :, 0], arrays.where_computed(self.samples)
        xp = arrays.namespace(values)
        if self.weights is None:
            # Along the sorted values, so that points spread evenly over (0, 1) are spread over them.
            positions = xp.minimum((u * self.size).astype(np.int64), self.size - 1)
            positions = xp.take_along_axis(self._order(values), positions, axis=1)
        else:
            order, cumulative = self._cumulative()
            positions = xp.take_along_axis(order, _first_above(cumulative, u), axis=1)
        chosen = values[xp.arange(self.n)[:, None], positions, ...]
        return arrays.like(chosen, self.samples, dtype=self.samples.dtype)

    def _order(self, values: Array) -> Array:
        """Positions of the values (of vectors: of their first entries) in ascending order."""
        first = values if values.ndim == 2 else values[:, :, 0]
        if arrays.is_host(first):
            return np.argsort(first, axis=1, kind="stable")
        return arrays.namespace(first).argsort(first, axis=1)

    def _cumulative(self) -> tuple[Array, Array]:
        """Order of the values and cumulative weights in it, as `where_computed` has the values."""
        order = self._order(arrays.where_computed(self.samples))
        xp = arrays.namespace(order)
        cumulative = xp.cumsum(xp.take_along_axis(arrays.where_computed(self._weight_rows()), order, axis=1), axis=1)
        return order, cumulative

    def cdf(self, y: Any) -> Array:
        y = numbers(y, self.samples, self.n, self.event_shape, "cdf")
        xp, columns = arrays.namespace(y), y.reshape(self.n, -1)
        samples = arrays.where_computed(self.samples).reshape(self.n, self.size)
        if self.weights is None:
            return (_ranks(xp.sort(samples, axis=1), columns, "right") / self.size).reshape(y.shape)
        order, cumulative = self._cumulative()
        ordered = xp.take_along_axis(samples, order, axis=1)
        padded = xp.concat([xp.zeros((self.n, 1)), xp.minimum(cumulative, 1.0)], axis=1)
        padded[:, -1] = 1.0
        return xp.take_along_axis(padded, _ranks(ordered, columns, "right"), axis=1).reshape(y.shape)

    def quantile(self, probability: Any) -> Array:
        row = probability_row(probability, self.samples, self.event_shape)
        xp, p = arrays.namespace(row), arrays.namespace(row).broadcast_to(row, (self.n, row.shape[1]))
        samples = arrays.where_computed(self.samples).reshape(self.n, self.size)
        if self.weights is None:
            # k / S >= p: the first k for which this holds as it is computed in `cdf`.
            k = xp.ceil(p * self.size).astype(np.int64)
            k = xp.where((k - 1) / self.size >= p, k - 1, xp.where(k / self.size < p, k + 1, k))
            return xp.take_along_axis(xp.sort(samples, axis=1), k - 1, axis=1)
        order, cumulative = self._cumulative()
        positions = _first_above(cumulative, p)
        return xp.take_along_axis(xp.take_along_axis(samples, order, axis=1), positions, axis=1)


def _first_above(cumulative: Array, u: Array) -> Array:
    """The first position in each row where it reaches u; the last of positive weight where rounding keeps it below."""
    xp = arrays.namespace(cumulative)
    cumulative = cumulative.copy()
    last = xp.argmax(cumulative, axis=1)  # the first of the largest: no weight comes after it
    cumulative[xp.arange(len(last)), last] = 1.0
    cumulative[xp.arange(cumulative.shape[1])[None, :] > last[:, None]] = np.inf
    return _ranks(cumulative, u, "left")


def _ranks(ordered: Array, at: Array, side: Literal["left", "right"]) -> Array:
    """Where each number of a row belongs in the same row of `ordered`, as by `numpy.searchsorted`."""
    if arrays.is_host(ordered):
        return np.array([np.searchsorted(row, some, side=side) for row, some in zip(ordered, at, strict=True)])
    xp, parts = arrays.namespace(ordered), []
    for rows in row_blocks(len(ordered), ordered.shape[1] * at.shape[1]):
        values, bounds = ordered[rows, :, None], at[rows, None, :]
        parts.append(xp.sum(values < bounds if side == "left" else values <= bounds, axis=1))
    return xp.concat(parts)
