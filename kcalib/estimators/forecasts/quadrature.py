"""Integrate (F(x) - 1{y <= x})^2 for distributions that are known by `cdf` and `quantile` alone.

Intervals between quantiles are bisected until Gauss and Legendre's rule does not change any more, so that infinite
densities and jumps of F cost bisections and no digits. Counts are summed. Called by `crps`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import to_device_of
from kcalib._input.forecasts import Forecasts
from kcalib.estimators.forecasts.quantities import quantiles_of, targets_of

KNOTS = (1e-12, 1e-8, 1e-5, 1e-3, 0.02, 0.15, 0.5, 0.85, 0.98, 0.999, 1 - 1e-5, 1 - 1e-8, 1 - 1e-12)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
TOLERANCE = 1e-9  # change by a bisection, relative to the score of the row, that is the last one
MOST_COUNTS = 2**14  # a row's counts that are summed one by one; F of more is nearly linear between neighbours
BATCH_ELEMENTS = 2**20  # numbers in memory at a time

CDF = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of rows and numbers, both of shape (k,)


def crps_by_quadrature(data: Forecasts) -> Array:
    """Return the CRPS of each sample of numbers, shape (n,), to about 1e-8 relative."""
    y = arrays.to_host(targets_of(data))[:, 0]
    knots = arrays.to_host(quantiles_of(data, np.asarray(KNOTS)))
    edges = np.column_stack((knots, y))
    if data.prediction.support == "unit":
        edges = np.column_stack((edges, np.zeros_like(y), np.ones_like(y)))

    def cdf(rows: np.ndarray, x: np.ndarray) -> np.ndarray:
        prediction: Any = data.prediction.take(arrays.like(rows, data.reference))
        at = arrays.like(x.reshape(-1, *prediction.event_shape), data.y, data.y.dtype)
        return np.asarray(arrays.to_host(prediction.cdf(at)), dtype=np.float64).reshape(-1)

    def interpolated_cdf(rows: np.ndarray, x: np.ndarray) -> np.ndarray:
        count = np.maximum(np.floor(x), 0.0)
        share = np.clip(x - count, 0.0, 1.0)
        return (1 - share) * cdf(rows, count) + share * cdf(rows, count + 1)

    total = np.empty(data.n)
    if data.prediction.support != "count":
        _in_batches(np.full(data.n, 20 * edges.shape[1]), total, lambda rows: _integrate(cdf, edges, y, rows))
        return to_device_of(total, data.reference)
    first, last = edges.min(axis=1), edges.max(axis=1)
    is_wide = last - first > MOST_COUNTS
    _in_batches(
        np.where(is_wide, 20.0 * edges.shape[1], last - first),
        total,
        # A sum over counts is nearly the integral from 1/2 below the first one to 1/2 below the last one.
        lambda rows: (
            _integrate(interpolated_cdf, edges - 0.5, y - 0.5, rows)
            if is_wide[rows[0]]
            else _sum_over_counts(cdf, first[rows], last[rows], y[rows], rows)
        ),
        is_wide,
    )
    return to_device_of(total, data.reference)


def _in_batches(
    sizes: np.ndarray, total: np.ndarray, score: Callable[[np.ndarray], np.ndarray], kinds: np.ndarray | bool = False
) -> None:
    """Set `total` to the scores of rows of one kind, of so many numbers together that there is memory for them."""
    for kind in (False, True):
        (rows,) = np.nonzero(np.broadcast_to(kinds, sizes.shape) == kind)
        batches = np.cumsum(sizes[rows]) // BATCH_ELEMENTS
        for batch in np.split(rows, np.flatnonzero(np.diff(batches)) + 1):
            if len(batch):
                total[batch] = score(batch)


def _sum_over_counts(cdf: CDF, first: np.ndarray, last: np.ndarray, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return sums over the counts from `first` to `last` - 1, of these rows."""
    widths = (last - first).astype(np.int64)
    place = np.repeat(np.arange(len(rows)), widths)
    counts = first[place] + np.arange(len(place)) - np.repeat(np.cumsum(widths) - widths, widths)
    if not len(place):
        return np.zeros(len(rows))
    gaps = cdf(rows[place], counts) - (counts >= y[place])
    return np.bincount(place, gaps * gaps, len(rows))


def _integrate(cdf: CDF, edges: np.ndarray, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return integrals between the first and the last edge of these rows, where `edges` has the targets, too."""
    ends = np.sort(edges[rows], axis=1)
    place = np.repeat(np.arange(len(rows)), ends.shape[1] - 1)
    left, right = ends[:, :-1].reshape(-1), ends[:, 1:].reshape(-1)

    def gauss(place: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        half = 0.5 * (right - left)
        x = (0.5 * (left + right))[:, None] + half[:, None] * NODES
        gaps = cdf(np.repeat(rows[place], len(NODES)), x.reshape(-1)).reshape(x.shape)
        gaps = gaps - (left >= y[rows[place]])[:, None]
        return half * ((gaps * gaps) @ WEIGHTS)

    is_open = right > left
    place, left, right = place[is_open], left[is_open], right[is_open]
    values = gauss(place, left, right) if len(place) else np.empty(0)
    total = np.bincount(place, values, len(rows))
    while len(place):
        middle = 0.5 * (left + right)
        place, was = np.repeat(place, 2), values
        left, right = np.column_stack((left, middle)).reshape(-1), np.column_stack((middle, right)).reshape(-1)
        values = gauss(place, left, right)
        change = values[::2] + values[1::2] - was
        total += np.bincount(place[::2], change, len(rows))
        is_open = (
            (np.abs(change) > TOLERANCE * total[place[::2]]) & (left[::2] < left[1::2]) & (left[1::2] < right[1::2])
        )
        is_open = np.repeat(is_open, 2)
        place, left, right, values = place[is_open], left[is_open], right[is_open], values[is_open]
    return total
