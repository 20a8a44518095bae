"""The backend for every array library: strips of rows, array API functions only.

Differentiable wherever the library is (distances have their subgradient 0 at 0), on
whatever device the arrays are. Memory: a strip of H, at most `STRIP_ELEMENTS` elements, and of the
tensor of differences, besides O(n m).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice
from kcalib._backend.random import Weights, drawn_weights
from kcalib._pairs.backends.device_mixtures import uploaded
from kcalib._pairs.backends.diagonal import diagonal
from kcalib._pairs.backends.digits import powers_of_two
from kcalib._pairs.mixtures import inner_products, squared_mmd
from kcalib._pairs.problem import Moments, PairProblem, Side
from kcalib._pairs.profiles import Distances, kernel_matrix, safe_root

STRIP_ELEMENTS = 2**22
TILE_COLUMNS = 192  # products in float32 that are summed in it, as in the compiled core


class ArrayApiBackend:
    """H in strips of rows, each a few array operations."""

    name = "array-api"
    threads = None
    on_a_line = False
    parallel = None
    entry_cost = 30.0

    def __init__(self, problem: PairProblem, *, reason: str = "") -> None:
        self.problem = problem
        self.reason = reason
        self._xp = arrays.namespace(problem.left.points)

    @staticmethod
    def unsuitable(problem: PairProblem) -> str | None:
        """Nothing is."""
        return None

    def moments(self, second: bool = False, rows: bool = True, trace: bool = True) -> Moments:
        xp, problem = self._xp, self.problem
        sums, columns, squares = [], None, None
        for begin, h in self._all_strips():
            if problem.symmetric:
                h = self._without_diagonal(h, begin)
            else:
                part = xp.sum(h, axis=0)
                columns = part if columns is None else columns + part
            sums.append(xp.sum(h, axis=1))
            if second:
                part = xp.sum(h * h)
                squares = part if squares is None else squares + part
        row_sums = xp.concat(sums)
        total, squares = xp.sum(row_sums), None if squares is None else float(squares)
        own = diagonal(problem) if trace and problem.symmetric else None
        columns = row_sums if problem.symmetric else columns
        return Moments(total, row_sums, columns, own, squares, None if own is None else xp.sum(own))

    def block_sums(self, size: int) -> Array:
        xp, left = self._xp, self.problem.left
        sums = []
        for begin in range(0, left.points.shape[0] // size * size, size):
            block = left.take(slice(begin, begin + size))
            rows = [xp.sum(self._without_diagonal(h, first), axis=1) for first, h in self._strips(block, block)]
            sums.append(xp.sum(xp.concat(rows)))
        return xp.stack(sums)

    def matmul(self, vectors: Array, *, dtype: str = "float64") -> Array:
        xp = self._xp
        vectors = xp.astype(vectors, xp.float64)
        if check_choice("dtype", dtype, ("float64", "float32")) == "float64":
            return xp.concat([h @ vectors for _, h in self._all_strips()])
        scales = powers_of_two(xp.max(xp.abs(vectors), axis=0))
        rounded = xp.astype(vectors / scales, xp.float32)
        return xp.concat([self._single_product(h, rounded) for _, h in self._all_strips()]) * scales

    def _single_product(self, h: Array, vectors: Array) -> Array:
        """h @ vectors with products in float32, and sums over more than `TILE_COLUMNS` of them in float64."""
        xp = self._xp
        total: Any = 0.0
        for begin in range(0, h.shape[1], TILE_COLUMNS):
            part = slice(begin, min(h.shape[1], begin + TILE_COLUMNS))
            product = xp.astype(h[:, part], xp.float32) @ vectors[part, :]
            total = xp.astype(product, xp.float64) + total
        return total

    def quadratic_forms(self, weights: Array | Weights, *, dtype: str = "float64") -> Array:
        xp = self._xp
        if isinstance(weights, Weights):
            weights = self._drawn(weights, dtype)
        w = xp.astype(weights, getattr(xp, dtype))
        total: Any = 0.0
        for begin, h in self._all_strips():
            products = xp.astype(h, w.dtype, copy=False) @ w
            part = xp.sum(xp.astype(w[begin : begin + h.shape[0], :] * products, xp.float64), axis=0)
            total = part + total
        return total

    def _drawn(self, weights: Weights, dtype: str) -> Array:
        points = self.problem.left.points
        if arrays.is_cuda(points):
            return drawn_weights(weights, 0, weights.n_replicates, weights.n_replicates, dtype)
        return arrays.like(weights.values(dtype=dtype), points, dtype=getattr(self._xp, dtype))

    def counts(self, thresholds: np.ndarray) -> np.ndarray:
        total = np.zeros(len(thresholds), dtype=np.int64)
        for h in self._pairs():
            below = [self._xp.count_nonzero(h < t) for t in thresholds.tolist()]
            total += np.array([int(count) for count in below], dtype=np.int64)
        return total

    def between(self, low: float, high: float, count: int) -> np.ndarray:
        low, high = float(low), float(high)
        found = [arrays.to_host(h[(h >= low) & (h < high)]) for h in self._pairs()]
        values = np.concatenate([np.empty(0), *found])
        assert len(values) == count
        return values

    def tile(self, rows: Any, columns: Any) -> Array:
        return self._entries(self.problem.left.take(rows), self.problem.columns.take(columns))

    def _all_strips(self) -> Iterator[tuple[int, Array]]:
        return self._strips(self.problem.left, self.problem.columns)

    def _strips(self, left: Side, right: Side) -> Iterator[tuple[int, Array]]:
        """The first row of each strip, and its entries."""
        n, n_right = left.points.shape[0], right.points.shape[0]
        step = max(1, STRIP_ELEMENTS // n_right)
        for begin in range(0, n, step):
            yield begin, self._entries(left.take(slice(begin, min(n, begin + step))), right)

    def _pairs(self) -> Iterator[Array]:
        """Strips of H with infinity for pairs i >= j."""
        xp = self._xp
        for begin, h in self._all_strips():
            rows = xp.arange(begin, begin + h.shape[0], device=arrays.device(h))
            columns = xp.arange(h.shape[1], device=arrays.device(h))
            yield xp.where(rows[:, None] < columns[None, :], h, xp.full_like(h, math.inf))

    def _without_diagonal(self, h: Array, begin: int) -> Array:
        xp, dev = self._xp, arrays.device(h)
        rows = xp.arange(begin, begin + h.shape[0], device=dev)
        columns = xp.arange(h.shape[1], device=dev)
        return xp.where(rows[:, None] == columns[None, :], xp.zeros_like(h), h)

    def _entries(self, left: Side, right: Side) -> Array:
        """Dense H of two sides, computed in their dtype, returned in float64."""
        distances = _Distances(self.problem, left.points, right.points)
        kernel = kernel_matrix(self.problem.kernel, distances)
        if self.problem.target is None:
            h = kernel * (left.marks @ self._xp.matrix_transpose(right.marks))
        else:
            h = kernel * inner_products(self.problem.target, left.marks, right.marks)
        return self._xp.astype(h, self._xp.float64, copy=False)


class _Distances(Distances):
    """Those of points of a problem: of mixtures and of positions in a table too."""

    def __init__(self, problem: PairProblem, left: Array, right: Array) -> None:
        super().__init__(left, right)
        self._problem = problem

    def _squared(self, metric: str) -> Array:
        if metric == "mmd":
            assert self._problem.predicted is not None
            return squared_mmd(self._problem.predicted, self.left, self.right)
        return super()._squared(metric)

    def _distance(self, metric: str) -> Array:
        if metric == "mmd":
            return safe_root(self.squared(metric))
        if metric == "table":
            return self._table()
        return super()._distance(metric)

    def _table(self) -> Array:
        if arrays.is_cuda(self.left):
            xp, table = arrays.namespace(self.left), uploaded(self._problem.table, self.left)
            rows, columns = (xp.astype(x[:, 0], xp.int64) for x in (self.left, self.right))
            return xp.astype(table[rows[:, None], columns], self.left.dtype)
        rows, columns = (arrays.to_host(x[:, 0]).astype(np.intp) for x in (self.left, self.right))
        return arrays.like(self._problem.table[rows[:, None], columns], self.left, dtype=self.left.dtype)
