"""Tables of distribution functions of counts, whose squared 2-Wasserstein distances are finite sums.

Rows are those of the family "staircases" (`_pairs.families.staircases`): each distribution has a window of counts, of a
common length, with at most 1e-17 of its probability beyond either end. Windows are centred at the means, unless counts
are small. Used by `_packing.prediction_points`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._backend.random import cumulative_sums
from kcalib.distributions._distribution import row_blocks
from kcalib.distributions.counts import WORKING_ROWS, Counts, smallest, tabulate_pmf

NOTHING = 1e-17  # probability beyond a window
NORMAL_QUANTILE = 8.5  # of `NOTHING`
LAST = 1e-18  # probability, relative to the first of a row, below which a row ends
FEW = 64  # counts up to which windows start at 0: SHORT in src/include/kcalib/families/staircases.h
MOST = 4096  # counts in a window
UNIFORM = 256  # level cells of `quantile_means`; the first and the last are refined
ENTRIES = 2**21  # of the tables in memory in `quantile_vectors`
LEAST_REST = 1e-9  # 1 - P(X > k) below which levels are not distinguished


@dataclass(frozen=True)
class Window:
    """The counts from c - `below` to c + `above`, where c is the rounded mean, or 0."""

    centred: bool
    below: int
    above: int

    @property
    def length(self) -> int:
        """Return the number of probabilities P(X > k) that are not 1 or 0."""
        return self.below + self.above


def window_of(*predictions: Counts) -> Window | None:
    """Return a common window of all predictions, or None if it is too long for tables."""
    largest, below, above = 0.0, 0.0, 0.0
    for counts in predictions:
        low, centre, high = _ends(counts)
        largest = max(largest, float(high.max()))
        below, above = max(below, float((centre - low).max())), max(above, float((high - centre).max()))
    if largest <= FEW:
        return Window(False, 0, max(int(largest), 1))
    window = Window(True, int(below), max(int(above), FEW + 1 - int(below)))  # longer than `FEW`, as centred ones are
    return window if window.length <= MOST else None


def is_long(counts: Counts) -> np.ndarray:
    """Return which predictions have more than `MOST` / 2 counts on a side of the mean; others share a window."""
    low, centre, high = map(arrays.to_host, _ends(counts))
    return np.asarray((centre - low > MOST // 2) | (high - centre > MOST // 2))


def _ends(counts: Counts) -> tuple[Array, Array, Array]:
    """Return the first and the last relevant count, and the rounded mean between them."""
    mean = counts._shapes()[0]
    xp, rows = arrays.namespace(mean), arrays.namespace(mean).arange(counts.n)
    ends = [counts._guess(xp.full(mean.shape, z), rows) for z in (-NORMAL_QUANTILE, NORMAL_QUANTILE)]
    low = smallest(lambda k, at: counts._lower(k, at) > NOTHING, ends[0])
    high = smallest(lambda k, at: counts._upper(k, at) <= NOTHING, ends[1])
    return low, xp.round(mean[:, 0]), high


def staircases_of(counts: Counts, window: Window) -> Array:
    """Return the first count, P(X > k) for the counts k in the window, and 0."""
    mean, dispersion = counts._shapes()
    xp, length = arrays.namespace(mean), window.length
    check_memory(
        8 * (counts.n + WORKING_ROWS) * length,
        None,
        f"distribution functions of {counts.n} predictions at {length} counts each",
        "take fewer predictions, or a kernel with metric='mmd', or of parameters: metric='euclidean'",
        mean,
    )
    centre = xp.round(mean) if window.centred else xp.zeros_like(mean)
    table = xp.zeros((counts.n, 2 + length))
    table[:, :1] = centre - window.below
    for rows in row_blocks(counts.n, 16 * length):
        p = tabulate_pmf(table[rows, :1], length + 1, mean[rows], dispersion[rows])
        # The smaller tail has a small relative error; the sums start at its end.
        lower, upper = cumulative_sums(p)[:, :-1], cumulative_sums(p[:, ::-1])[:, -2::-1]
        tail = xp.where(lower < 0.5, 1 - lower, upper)
        table[rows, 1:-1] = xp.where(tail < LAST * tail[:, :1], 0.0, tail)
    return counts._like(table)


def quantile_edges() -> np.ndarray:
    """Return the levels P(X > k) that bound the cells of averages, ascending from 0 to 1."""
    refined = 2.0 ** -np.arange(math.log2(UNIFORM) + 0.5, -math.log2(NOTHING), 0.5)
    inner = np.arange(1, UNIFORM) / UNIFORM
    return np.concatenate([[0.0], refined[::-1], inner, 1 - refined[refined > LEAST_REST], [1.0]])


def quantile_vectors(counts: Counts) -> np.ndarray:
    """Return vectors of each prediction with approximately 2-Wasserstein distances."""
    edges = quantile_edges()
    vectors, long = np.empty((counts.n, len(edges) - 1)), is_long(counts)
    for rows, is_short in ((np.flatnonzero(~long), True), (np.flatnonzero(long), False)):
        while len(rows):
            some = counts.take(arrays.like(rows, counts._first))
            if is_short:
                window = window_of(some)
                assert window is not None
                size = max(1, ENTRIES // window.length)
                some = some if size >= len(rows) else some.take(arrays.like(np.arange(size), counts._first))
                vectors[rows[:size]] = quantile_means(staircases_of(some, window))[0]
            else:
                size = len(rows)
                levels = arrays.like(1 - (edges[1:] + edges[:-1]) / 2, counts._first)
                vectors[rows] = arrays.to_host(some._inverse_cdf(levels[None, :])) * np.sqrt(np.diff(edges))
            rows = rows[size:]
    return vectors


def quantile_means(table: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors with approximately 2-Wasserstein distances, (n, n_cells), and their errors, (n,).

    Quantile functions in the `table` of `staircases_of` are projected on functions that are constant on level cells.
    Distances of two rows are too small, by at most the sum of the two errors.
    """
    rows, edges = arrays.to_host(table), quantile_edges()
    first, levels = rows[:, 0], rows[:, -2:0:-1]  # ascending
    integrals = np.empty((len(rows), len(edges)))
    for row, ascending in enumerate(levels):
        # The integral of X over levels up to t is the first count plus sum_k min(t, P(X > k)).
        below = np.searchsorted(ascending, edges, side="right")
        sums = np.concatenate([[0.0], np.cumsum(ascending)])
        integrals[row] = sums[below] + edges * (len(ascending) - below)
    lengths = np.sqrt(np.diff(edges))
    means = np.diff(integrals, axis=1) / lengths
    squares = np.sum(levels[:, ::-1] * (2 * np.arange(levels.shape[1]) + 1), axis=1)
    errors = np.sqrt(np.maximum(squares - np.sum(means**2, axis=1), 0.0))
    return means + first[:, None] * lengths, errors
