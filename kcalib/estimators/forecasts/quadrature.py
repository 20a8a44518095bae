"""Integrate (F(x) - 1{y <= x})^2 for distributions with `cdf` and `quantile` only, for `crps`.

Intervals between quantiles are bisected until the Gauss-Legendre rule converges, so infinite densities and jumps of F
cost bisections but no accuracy. Counts are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import to_device_of
from kcalib._input.forecasts import Forecasts
from kcalib.estimators.forecasts.quantities import quantiles_of, targets_of

KNOTS = (1e-12, 1e-8, 1e-5, 1e-3, 0.02, 0.15, 0.5, 0.85, 0.98, 0.999, 1 - 1e-5, 1 - 1e-8, 1 - 1e-12)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
TOLERANCE = 1e-9  # bisection stops at this change, relative to the score of the row
MOST_COUNTS = 2**14  # of a row that are summed one by one; with more, F is nearly linear between neighbors
BATCH_ELEMENTS = 2**20  # numbers in memory at a time

CDF = Callable[[Array, Array], Array]  # function of rows and numbers, both of shape (k,)


def crps_by_quadrature(data: Forecasts) -> Array:
    """Return the CRPS of each sample of numbers, shape (n,), with a relative error of about 1e-8."""
    y, support = targets_of(data)[:, 0], data.prediction.support
    xp = arrays.namespace(y)
    ends = [xp.zeros_like(y)[:, None], xp.ones_like(y)[:, None]] if support == "unit" else []
    edges = xp.concat([quantiles_of(data, np.asarray(KNOTS)), y[:, None], *ends], axis=1)

    def cdf(rows: Array, x: Array) -> Array:
        prediction: Any = data.prediction.take(arrays.asarray_like(rows, data.reference))
        at = arrays.like(x.reshape((-1, *prediction.event_shape)), data.y, data.y.dtype)
        return arrays.to_compute_device(prediction.cdf(at), np.float64).reshape(-1)

    def interpolated_cdf(rows: Array, x: Array) -> Array:
        count = xp.maximum(xp.floor(x), 0.0)
        share = xp.clip(x - count, 0.0, 1.0)
        return (1 - share) * cdf(rows, count) + share * cdf(rows, count + 1)

    total, sizes = xp.empty(data.n), np.full(data.n, 2 * len(NODES) * edges.shape[1])
    if support != "count":
        for batch in _batches(sizes):
            rows = to_device_of(batch, y)
            total[rows] = _integrate(cdf, edges[rows], y[rows], rows)
        return total
    widths = arrays.to_host(xp.max(edges, axis=1) - xp.min(edges, axis=1)).astype(np.int64)
    for batch in _batches(np.where(widths > MOST_COUNTS, sizes, widths), widths > MOST_COUNTS):
        rows = to_device_of(batch, y)
        if widths[batch[0]] > MOST_COUNTS:
            # Approximate the sum over counts by the integral from 1/2 below the first to 1/2 below the last one.
            total[rows] = _integrate(interpolated_cdf, edges[rows] - 0.5, y[rows] - 0.5, rows)
            continue
        place = to_device_of(np.repeat(np.arange(len(batch)), widths[batch]), y)
        starts = np.repeat(np.cumsum(widths[batch]) - widths[batch], widths[batch])
        counts = xp.min(edges, axis=1)[rows[place]] + to_device_of(np.arange(len(starts)) - starts, y)
        gaps = cdf(rows[place], counts) - (counts >= y[rows[place]])
        total[rows] = xp.bincount(place, gaps * gaps, len(batch))
    return total


def _batches(sizes: np.ndarray, kinds: np.ndarray | bool = False) -> Iterator[np.ndarray]:
    """Yield batches of rows of one kind, with limited total size."""
    for kind in (False, True):
        (rows,) = np.nonzero(np.broadcast_to(kinds, sizes.shape) == kind)
        numbers = np.cumsum(sizes[rows]) // BATCH_ELEMENTS
        yield from (batch for batch in np.split(rows, np.flatnonzero(np.diff(numbers)) + 1) if len(batch))


def _integrate(cdf: CDF, edges: Array, y: Array, rows: Array) -> Array:
    """Return the integral between the first and the last edge of each row; the target is an edge."""
    xp, n = arrays.namespace(y), len(rows)
    nodes, weights = to_device_of(NODES, y), to_device_of(WEIGHTS, y)

    def gauss(place: Array, left: Array, right: Array) -> Array:
        half = 0.5 * (right - left)
        x = (0.5 * (left + right))[:, None] + half[:, None] * nodes
        gaps = cdf(xp.repeat(rows[place], len(NODES)), x.reshape(-1)).reshape(x.shape) - (left >= y[place])[:, None]
        return half * xp.sum(gaps * gaps * weights, axis=1)

    edges = xp.sort(edges, axis=1)
    place = xp.repeat(xp.arange(n), edges.shape[1] - 1)
    left, right = edges[:, :-1].reshape(-1), edges[:, 1:].reshape(-1)
    is_open = right > left
    place, left, right = place[is_open], left[is_open], right[is_open]
    values = gauss(place, left, right) if len(place) else xp.zeros(0)
    total = xp.bincount(place, values, n)
    while len(place):
        middle = 0.5 * (left + right)
        halves = xp.repeat(place, 2), xp.stack([left, middle], axis=1), xp.stack([middle, right], axis=1)
        parts = gauss(halves[0], halves[1].reshape(-1), halves[2].reshape(-1)).reshape(-1, 2)
        change = xp.sum(parts, axis=1) - values
        total += xp.bincount(place, change, n)
        is_open = (xp.abs(change) > TOLERANCE * total[place]) & (left < middle) & (middle < right)
        place = xp.repeat(place[is_open], 2)
        left, right, values = halves[1][is_open].reshape(-1), halves[2][is_open].reshape(-1), parts[is_open].reshape(-1)
    return total
