"""Empirical predictive distributions, such as the members of an ensemble forecast or MCMC draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice
from kcalib._backend.special import to_device_of
from kcalib._input.checks import reject
from kcalib._pairs.problem import Components
from kcalib.distributions._checks import normalized_weights, read_only, real_array
from kcalib.distributions._distribution import Univariate, row_blocks

__all__ = ["Samples"]


MISSING = "drop such predictions, or pass missing='drop' to leave out members that are missing"


@dataclass(frozen=True, eq=False)
class Samples(Univariate):
    r"""Empirical distributions of S samples, such as the members of an ensemble forecast or MCMC draws.

    Parameters
    ----------
    samples : array_like, shape (n, S) or (n, S, d)
        S values for each prediction: numbers, or vectors of d entries.
    weights : array_like, shape (S,) or (n, S), optional
        Weights of the values, at least 0, in rows that sum to 1 within 1e-6 (and are normalised). By default 1 / S.
    missing : {"refuse", "drop"}
        Treatment of members that are NaN or masked: "drop" removes them from their prediction, and the other members
        share their weight. A removed member is stored as a value of weight 0.

    Raises
    ------
    TypeError, ValueError
        If a parameter is not finite, real and in its range; if a shape is wrong; if a prediction has no member left.

    Notes
    -----
    These distributions have no density. The 2-Wasserstein distance of numbers with equal weights is the Euclidean
    distance of sorted values, over the root of S. If members are missing, it is approximated by means of quantile
    functions in S level cells: distances are somewhat too small between two predictions with missing members. `sample`
    and `quasi_sample` draw with replacement.

    Examples
    --------
    >>> from kcalib.distributions import Samples
    >>> predictions = Samples([[0.0, 1.0, 5.0], [2.0, 2.0, 3.0]])
    >>> predictions.cdf([1.0, 1.0]).round(3).tolist()
    [0.667, 0.0]
    >>> predictions.quantile(0.5).tolist()
    [[1.0], [2.0]]

    An ensemble with a missing member:

    >>> Samples([[0.0, float("nan"), 5.0]], missing="drop").expected_value().tolist()
    [[2.5]]
    """

    samples: Array
    weights: Array | None

    _n_uniforms = 1
    _event_axis = 2

    def __init__(self, samples: Any, weights: Any = None, *, missing: str = "refuse") -> None:
        check_choice("missing", missing, ("refuse", "drop"))
        if isinstance(samples, np.ma.MaskedArray):
            samples = np.ma.filled(samples.astype(np.float64), np.nan)
        samples = arrays.as_array(samples, "samples")
        present = None
        if samples.ndim in (2, 3) and arrays.kind_of(samples) == "f":
            is_nan = arrays.namespace(samples).isnan(samples)
            if missing == "refuse":
                reject(samples, is_nan, lambda at, x: f"`samples{at}` is nan, expected a finite number; {MISSING}")
            samples, present = fill_missing(samples, is_nan)
        samples = real_array(samples, "samples")
        if samples.ndim not in (2, 3) or 0 in samples.shape:
            raise ValueError(
                f"`samples` has shape {tuple(samples.shape)}, expected (n, S), or (n, S, d) for predictions of "
                "vectors: S samples for each of n predictions"
            )
        if weights is not None:
            weights = normalized_weights(weights, "weights", tuple(samples.shape[:2]), "sample")
            weights = read_only(arrays.asarray_like(weights, samples))
        if present is not None:
            weights = share_weights(present, weights)
        self._set_fields(samples=read_only(samples), weights=weights)

    @property
    def size(self) -> int:
        """Return the number S of values of each distribution."""
        return int(self.samples.shape[1])

    @property
    def counts_alike(self) -> bool:
        """Return whether all values with positive weight in a prediction have the same weight."""
        if self.weights is None:
            return True
        xp, weights = arrays.namespace(self.weights), self.weights
        least = xp.min(xp.where(weights > 0, weights, 1.0), axis=1)
        return bool(xp.all(xp.max(weights, axis=1) <= least * (1 + 1e-9)))

    def components(self) -> Components:
        xp = arrays.namespace(self.samples)
        atoms = xp.reshape(self.samples, (self.n, self.size, self.n_dims))
        return Components("atoms", self._weight_rows(), atoms, None)

    def _weight_rows(self) -> Array:
        if self.weights is not None:
            return self.weights
        xp = arrays.namespace(self.samples)
        return xp.ones_like(self.samples if self.samples.ndim == 2 else self.samples[:, :, 0]) / self.size

    def parameters(self) -> None:
        """Return None: samples have no such parameters."""

    def wasserstein_points(self) -> Array | None:
        """Return sorted values over the root of S for numbers with equal weights (see the Notes), else None."""
        if self.n_dims > 1 or not self.counts_alike:
            return None
        xp, root = arrays.namespace(self.samples), self.size**0.5
        values = xp.reshape(self.samples, (self.n, self.size))
        if self.weights is None:
            return xp.sort(values, axis=1) / root
        values, present = arrays.to_compute_device(values), arrays.to_compute_device(self.weights) > 0
        xp = arrays.namespace(values)
        counts = xp.sum(present, axis=1)[:, None]
        ordered = xp.sort(xp.where(present, values, np.inf), axis=1)
        ordered = xp.where(xp.arange(self.size)[None, :] < counts, ordered, 0.0)
        # The integral of the quantile function up to each level k / S is a sum of the lowest values.
        places = xp.arange(self.size + 1)[None, :] * counts / self.size
        last = xp.minimum(xp.astype(places, xp.int64), self.size - 1)
        sums = xp.concat([xp.zeros((self.n, 1)), xp.cumsum(ordered, axis=1)], axis=1)
        take = xp.take_along_axis
        integrals = (take(sums, last, axis=1) + (places - last) * take(ordered, last, axis=1)) / counts
        means = (integrals[:, 1:] - integrals[:, :-1]) * root
        return self._like(xp.where(counts == self.size, ordered / root, means))

    def expected_value(self) -> Array:
        components = self.components()
        xp = arrays.namespace(self.samples)
        return xp.sum(components.weights[:, :, None] * components.locations, axis=1)

    def standard_deviation(self) -> Array:
        components = self.components()
        xp = arrays.namespace(self.samples)
        centred = components.locations - self.expected_value()[:, None, :]
        return xp.sqrt(xp.sum(components.weights[:, :, None] * centred**2, axis=1))

    def _draw_from(self, uniforms: Array) -> Array:
        u, values = to_device_of(uniforms, self.samples)[:, :, 0], arrays.to_compute_device(self.samples)
        xp = arrays.namespace(values)
        if self.weights is None:
            # Along the sorted values: evenly spread uniforms then give evenly spread draws.
            positions = xp.minimum((u * self.size).astype(np.int64), self.size - 1)
            positions = xp.take_along_axis(self._order(values), positions, axis=1)
        else:
            order, cumulative = self._cumulative()
            positions = xp.take_along_axis(order, _find_first(cumulative, u), axis=1)
        return self._like(values[xp.arange(self.n)[:, None], positions, ...])

    def _order(self, values: Array) -> Array:
        """Return positions that sort the values (vectors by their first entries)."""
        first = values if values.ndim == 2 else values[:, :, 0]
        if arrays.is_host(first):
            return np.argsort(first, axis=1, kind="stable")
        return arrays.namespace(first).argsort(first, axis=1)

    def _cumulative(self) -> tuple[Array, Array]:
        """Return the sorting positions and cumulative weights of the values, as by `to_compute_device`."""
        order = self._order(arrays.to_compute_device(self.samples))
        xp = arrays.namespace(order)
        weights = xp.take_along_axis(arrays.to_compute_device(self._weight_rows()), order, axis=1)
        if self.counts_alike:  # the exact k / S
            return order, xp.cumsum(weights > 0, axis=1) / xp.sum(weights > 0, axis=1)[:, None]
        return order, xp.cumsum(weights, axis=1)

    def _cdf(self, y: Array) -> Array:
        return self._shares(y, "right")

    def _cdf_left(self, y: Array) -> Array:
        return self._shares(y, "left")

    def _shares(self, y: Array, side: Literal["left", "right"]) -> Array:
        """Return the weights of the values up to y, or with side "left" below y."""
        xp, columns = arrays.namespace(y), y.reshape(self.n, -1)
        samples = arrays.to_compute_device(self.samples).reshape(self.n, self.size)
        if self.weights is None and y.ndim == 1:  # counting is faster than sorting
            counts = []
            for rows in row_blocks(self.n, self.size):
                values, limits = samples[rows], columns[rows]
                counts.append(xp.sum(values < limits if side == "left" else values <= limits, axis=1))
            return xp.concat(counts) / self.size
        if self.weights is None:
            return (_search_rows(xp.sort(samples, axis=1), columns, side) / self.size).reshape(y.shape)
        order, cumulative = self._cumulative()
        ordered = xp.take_along_axis(samples, order, axis=1)
        padded = xp.concat([xp.zeros((self.n, 1)), xp.minimum(cumulative, 1.0)], axis=1)
        padded[:, -1] = 1.0
        return xp.take_along_axis(padded, _search_rows(ordered, columns, side), axis=1).reshape(y.shape)

    def _quantile(self, p: Array) -> Array:
        xp = arrays.namespace(p)
        p = xp.broadcast_to(p, (self.n, p.shape[1]))
        samples = arrays.to_compute_device(self.samples).reshape(self.n, self.size)
        if self.weights is None:
            # k / S >= p: the first k, with the same rounding as in `cdf`.
            k = xp.ceil(p * self.size).astype(np.int64)
            k = xp.where((k - 1) / self.size >= p, k - 1, xp.where(k / self.size < p, k + 1, k))
            return xp.take_along_axis(xp.sort(samples, axis=1), k - 1, axis=1)
        order, cumulative = self._cumulative()
        positions = _find_first(cumulative, p)
        return xp.take_along_axis(xp.take_along_axis(samples, order, axis=1), positions, axis=1)


def fill_missing(samples: Array, is_nan: Array) -> tuple[Array, Array | None]:
    """Return samples whose missing members are copies of others, and a mask of members present, or None for all."""
    xp = arrays.namespace(samples)
    if not bool(xp.any(is_nan)):
        return samples, None
    is_missing = is_nan if is_nan.ndim == 2 else xp.any(is_nan, axis=2)
    none = xp.all(is_missing, axis=1)
    reject(none, none, lambda at, x: f"`samples{at}` has no member that is a number, expected one; drop the prediction")
    first = xp.argmax(xp.astype(~is_missing, xp.int8), axis=1)
    value = samples[xp.arange(samples.shape[0]), first, ...][:, None, ...]
    where = is_missing if is_nan.ndim == 2 else is_missing[:, :, None]
    return xp.where(where, value, samples), ~is_missing


def share_weights(present: Array, weights: Array | None = None) -> Array:
    """Return weights of the present members, which sum to 1, and 0 for the others."""
    xp = arrays.namespace(present)
    shares = xp.astype(present, xp.float64) if weights is None else xp.where(present, weights, 0.0)
    sums = xp.sum(shares, axis=1)
    reject(sums, sums <= 0, lambda at, x: f"`weights{at}` are 0 for all members present; drop such predictions")
    return read_only(shares / sums[:, None])


def _find_first(cumulative: Array, u: Array) -> Array:
    """Return the first position in each row that reaches u, or, if rounding hides it, the last of positive weight."""
    xp = arrays.namespace(cumulative)
    cumulative = cumulative.copy()
    last = xp.argmax(cumulative, axis=1)  # the first maximum: all later weights are 0
    cumulative[xp.arange(len(last)), last] = 1.0
    cumulative[xp.arange(cumulative.shape[1])[None, :] > last[:, None]] = np.inf
    return _search_rows(cumulative, u, "left")


def _search_rows(ordered: Array, values: Array, side: Literal["left", "right"]) -> Array:
    """Return `numpy.searchsorted` for each row of `ordered` and the same row of `values`."""
    if arrays.is_host(ordered):
        return np.array([np.searchsorted(*rows, side=side) for rows in zip(ordered, values, strict=True)])
    xp, blocks = arrays.namespace(ordered), []
    for rows in row_blocks(len(ordered), ordered.shape[1] * values.shape[1]):
        left, right = ordered[rows, :, None], values[rows, None, :]
        blocks.append(xp.sum(left < right if side == "left" else left <= right, axis=1))
    return xp.concat(blocks)
