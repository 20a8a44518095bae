r"""Random features of Wasserstein distances of counts, for sums over samples that are not kept.

Quantile functions Q of counts are in a space without end, L2. Their inner product with white noise is the integral of Q
along a path of Brownian motion B, which is a sum over the counts: with s_k = P(X > k) and a first count c

    xi = int Q dB = c B(1) + sum_{k >= c} B(s_k),    xi - xi' normal, with the variance W_2(P, P')^2

so that cosines and sines of r xi are features of the kernel, r by the mixing law of its profile (`spectra.scales`). A
path is evaluated at any number: on `CELLS` equal cells it is a table, and within a cell bridges of 2^BITS steps refine
it, level by level. Bridges come from a pool of `POOL`, times a sign: which one is decided by the cell. That two cells
may have the same one changes no mean of (xi - xi')^2, and means of features by less than 1e-4 in the worst case (by an
estimate, which nothing measures), of predictions that differ in a few cells alone. Called by `streaming`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.memory import check_memory
from kcalib._backend.options import LARGEST_KEY
from kcalib._pairs.features import N_GROUPS, FeatureMap, term_shares
from kcalib._pairs.problem import Term
from kcalib._pairs.spectra import scales
from kcalib.distributions._counts import Counts
from kcalib.distributions._staircases import is_long, staircases_of, window_of

TOP_BITS, BITS = 10, 4  # of the table, and of a level of bridges
CELLS, STEPS = 2**TOP_BITS, 2**BITS
POOL = 256
MOST_BITS = 50  # of a number that are looked at
FINEST = 22.0  # bits of cells that are left to straight lines, where a scale is 1: 2^-22 of a squared distance
ENTRIES = 2**21  # of a sparse matrix


@dataclass(frozen=True, eq=False)
class QuantilePaths:
    """Paths of a kernel in normal form, one for each frequency of its map."""

    terms: tuple[Term, ...]
    n_columns: int
    seed: int

    @cached_property
    def map(self) -> FeatureMap:
        """On points that are `of` predictions: each frequency sees the entry that is its own.

        Raises
        ------
        ValueError
            If a factor has no features.
        MemoryError
            If there is no memory for the map and the table of paths.
        """
        size = self.n_columns // 2
        contents = f"paths of {size} frequencies, for {self.n_columns} columns of features of counts,"
        rows = size + CELLS + 1 + 2 * POOL * (STEPS + 1)
        check_memory(8 * size * rows, None, contents, "make the state with fewer `n_columns`")
        per_group = self.n_columns // (2 * N_GROUPS)
        parts = [self._group(per_group, self._random(group)) for group in range(N_GROUPS)]
        lengths, amplitudes = (np.concatenate(by_group) for by_group in zip(*parts, strict=True))
        no_projections = np.zeros((0, len(lengths), len(lengths)))
        groups = np.repeat(np.arange(N_GROUPS), per_group)
        return FeatureMap(
            np.diag(lengths), amplitudes / math.sqrt(N_GROUPS), no_projections, no_projections[:, :, 0], groups
        )

    def _random(self, group: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=np.array([self.seed, LARGEST_KEY - group], dtype=np.uint64)))

    def _group(self, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Scales of paths, and amplitudes; products of factors have the sum of independent paths, which is a path."""
        lengths, amplitudes = [], []
        for term, (share, weight) in zip(self.terms, term_shares(self.terms, count, random), strict=True):
            if share:
                squares = sum((scales(factor, share, random) ** 2 for factor in term.factors), np.zeros(share))
                lengths.append(np.sqrt(squares))
                amplitudes.append(np.full(share, math.sqrt(term.coefficient * weight)))
        return np.concatenate(lengths), np.concatenate(amplitudes)

    @cached_property
    def _levels(self) -> int:
        """Of bridges: further ones are too short for the typical scale."""
        typical = float(np.median(np.diag(self.map.frequencies)))
        bits = FINEST + 2 * math.log2(max(typical, 2.0**-FINEST))
        return min(max(0, math.ceil((bits - TOP_BITS) / BITS)), (MOST_BITS - TOP_BITS) // BITS)

    @cached_property
    def _table(self) -> np.ndarray:
        """Rows: the paths at the ends of cells, and then the bridges, STEPS + 1 rows each; a column for each path."""
        per_group = self.n_columns // (2 * N_GROUPS)
        parts = []
        for group in range(N_GROUPS):
            random = self._random(N_GROUPS + group)
            steps = random.standard_normal((CELLS, per_group)) / math.sqrt(CELLS)
            path = np.concatenate([np.zeros((1, per_group)), np.cumsum(steps, axis=0)])
            walks = np.cumsum(random.standard_normal((POOL, STEPS, per_group)) / math.sqrt(STEPS), axis=1)
            walks = np.concatenate([np.zeros((POOL, 1, per_group)), walks], axis=1)
            bridges = walks - np.linspace(0, 1, STEPS + 1)[:, None] * walks[:, -1:]
            parts.append(np.concatenate([path, bridges.reshape(-1, per_group)]))
        return np.ascontiguousarray(np.concatenate(parts, axis=1))

    def of(self, counts: Counts) -> np.ndarray:
        """Return xi of predictions for every path, shape (n, F)."""
        projections = np.empty((counts.n, self._table.shape[1]))
        long = is_long(counts)
        if np.any(long):
            projections[long] = self._by_quantiles(_take_counts(counts, np.flatnonzero(long)))
        (short,) = np.nonzero(~long)
        begin = 0
        while begin < len(short):
            rows = short[begin:]
            window = window_of(_take_counts(counts, rows))
            assert window is not None
            rows = rows[: max(1, ENTRIES // (window.length * (2 + 2 * self._levels)))]
            table = arrays.to_host(staircases_of(_take_counts(counts, rows), window))
            projections[rows] = self.weights(table[:, 0], table[:, 1:-1]) @ self._table
            begin += len(rows)
        return projections

    def weights(self, first: np.ndarray, above: np.ndarray) -> Any:
        """Return the weights of rows of the table in c B(1) + sum_k B(s_k), a sparse array (n, rows of the table)."""
        certain = above >= 1
        row, _ = np.nonzero((above > 0) & ~certain)
        s = above[(above > 0) & ~certain]
        cells: list[np.ndarray] = []
        weights: list[np.ndarray] = []

        def line(begin: np.ndarray, share: np.ndarray, size: np.ndarray | float) -> None:
            cells.extend((begin, begin + 1))
            weights.extend((size * (1 - share), size * share))

        place = s * CELLS
        cell = np.floor(place)
        line(cell.astype(np.int64), place - cell, 1.0)
        for level in range(self._levels):
            share = place - cell  # of the cell, where the bridge is
            bits = _mixed(cell.astype(np.uint64), level, self.seed)
            sign = 1.0 - 2.0 * (bits & np.uint64(1)).astype(np.float64)
            bridge = (bits >> np.uint64(1)).astype(np.int64) % POOL
            step = np.minimum(np.floor(share * STEPS), STEPS - 1)
            begin = CELLS + 1 + bridge * (STEPS + 1) + step.astype(np.int64)
            line(begin, share * STEPS - step, sign * 2.0 ** (-(TOP_BITS + BITS * level) / 2))
            place = place * STEPS
            cell = np.floor(place)
        counts = first + np.sum(certain, axis=1)  # times that B(1) occurs
        rows = np.concatenate([np.tile(row, len(cells)), np.arange(len(first))])
        cells.append(np.full(len(first), CELLS))
        entries = np.concatenate([*weights, counts]), (rows, np.concatenate(cells))
        return scipy.sparse.csr_array(entries, shape=(len(first), CELLS + 1 + POOL * (STEPS + 1)))

    def _by_quantiles(self, counts: Counts) -> np.ndarray:
        """Return xi of distributions of many counts, by a quantile for each cell of the table."""
        p = 1 - (np.arange(CELLS) + 0.5) / CELLS
        steps = np.diff(self._table[: CELLS + 1], axis=0)
        return np.asarray(arrays.to_host(counts._inverse_cdf(arrays.like(p[None, :], counts._first))) @ steps)


def _mixed(cells: np.ndarray, level: int, seed: int) -> np.ndarray:
    """Return bits that look random, by the finaliser of splitmix64."""
    z = cells + np.uint64((seed * 0x9E3779B97F4A7C15 + (level + 1) * 0xD1B54A32D192ED03) % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((z ^ (z >> np.uint64(31))) >> np.uint64(20))


def _take_counts(counts: Counts, rows: np.ndarray) -> Counts:
    subset = counts.take(rows)
    assert isinstance(subset, Counts)
    return subset


def has_paths(counts: object, space: object) -> bool:
    """Whether features of predictions in this space are those of paths."""
    return space == "wasserstein" and isinstance(counts, Counts)
