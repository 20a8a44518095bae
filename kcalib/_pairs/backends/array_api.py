"""The backend for every array library: strips of rows, by array API functions.

It is differentiable if the library is (distances have subgradient 0 at 0), and runs on the device of the arrays.
Memory: a strip of H and of the tensor of differences, at most `STRIP_ELEMENTS` elements, besides O(n m).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice
from kcalib._backend.random import Weights, draw_on_device
from kcalib._pairs.backends.base import Backend, powers_of_two
from kcalib._pairs.backends.device_mixtures import uploaded
from kcalib._pairs.mixtures import inner_products, squared_mmd
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.profiles import Distances, kernel_matrix, safe_root
from kcalib._pairs.reductions import (
    BlockSums,
    Counts,
    DenseRectangle,
    EntriesInRange,
    Moments,
    Products,
    QuadraticForms,
    RangeEntries,
    Reduction,
)

STRIP_ELEMENTS = 2**22
TILE_COLUMNS = 192  # float32 products that are summed in float32, as in the compiled core


# Receives the first row and the entries of each strip, then None, and returns the result.
Sums = Generator[None, Any, Any]


class ArrayApiBackend(Backend):
    """H in strips of rows, each by a few array operations."""

    name = "array-api"
    entry_cost = 30.0

    def __init__(self, problem: PairProblem, *, reason: str = "") -> None:
        super().__init__(problem, reason=reason)
        self._xp = arrays.namespace(problem.left.points)

    def _results(self, reductions: Sequence[Reduction[Any]]) -> list[Any]:
        results = [self.reductions[type(reduction)](self, reduction) for reduction in reductions]
        sums = [result for result in results if isinstance(result, Generator)]
        for generator in sums:
            next(generator)
        for strip in self._strips(self.problem.left, self.problem.columns) if sums else ():
            for generator in sums:
                generator.send(strip)
        return [_end_of(result) if isinstance(result, Generator) else result for result in results]

    def _moments(self, reduction: Moments) -> Sums:
        xp, symmetric = self._xp, self.problem.symmetric
        rows: list[Array] = []
        columns: Any = 0.0
        squares: Any = 0.0
        while (strip := (yield)) is not None:
            begin, h = strip
            if symmetric:
                h = self._without_diagonal(h, begin)
            else:
                columns = xp.sum(h, axis=0) + columns
            rows.append(xp.sum(h, axis=1))
            if reduction.second:
                squares = xp.sum(h * h) + squares
        row_sums = xp.concat(rows)
        column_sums = row_sums if symmetric else columns
        sum_of_squares = float(squares) if reduction.second else None
        return self.moment_sums(reduction, xp.sum(row_sums), row_sums, column_sums, sum_of_squares)

    def _products(self, reduction: Products) -> Sums:
        xp, rows = self._xp, []
        vectors = xp.astype(reduction.vectors, xp.float64)
        single = check_choice("dtype", reduction.dtype, ("float64", "float32")) == "float32"
        scales: Any = powers_of_two(xp.max(xp.abs(vectors), axis=0)) if single else 1.0
        if single:
            vectors = xp.astype(vectors / scales, xp.float32)
        while (strip := (yield)) is not None:
            rows.append(self._single_product(strip[1], vectors) if single else strip[1] @ vectors)
        products = xp.concat(rows)
        return products * scales if single else products

    def _single_product(self, h: Array, vectors: Array) -> Array:
        """Return h @ vectors with float32 products, and float64 sums over blocks of `TILE_COLUMNS`."""
        xp = self._xp
        total: Any = 0.0
        for begin in range(0, h.shape[1], TILE_COLUMNS):
            part = slice(begin, min(h.shape[1], begin + TILE_COLUMNS))
            product = xp.astype(h[:, part], xp.float32) @ vectors[part, :]
            total = xp.astype(product, xp.float64) + total
        return total

    def _quadratic_forms(self, reduction: QuadraticForms) -> Sums:
        xp, weights, points = self._xp, reduction.weights, self.problem.left.points
        dtype = getattr(xp, reduction.dtype)
        if isinstance(weights, Weights) and arrays.is_cuda(points):
            weights = draw_on_device(weights, 0, weights.n_replicates, weights.n_replicates, reduction.dtype)
        elif isinstance(weights, Weights):
            weights = arrays.like(weights.values(dtype=reduction.dtype), points, dtype=dtype)
        w = xp.astype(weights, dtype)
        total: Any = 0.0
        while (strip := (yield)) is not None:
            begin, h = strip
            products = xp.astype(h, w.dtype, copy=False) @ w
            total = xp.sum(xp.astype(w[begin : begin + h.shape[0], :] * products, xp.float64), axis=0) + total
        return total

    def _counts(self, reduction: Counts) -> Sums:
        counts = np.zeros(len(reduction.thresholds), dtype=np.int64)
        while (strip := (yield)) is not None:
            h = self._above_diagonal(*strip)
            below = [self._xp.count_nonzero(h < t) for t in reduction.thresholds.tolist()]
            counts += np.array([int(count) for count in below], dtype=np.int64)
        return counts

    def _entries_in_range(self, reduction: EntriesInRange) -> Sums:
        values, n_below, (low, high) = [np.empty(0)], 0, (float(reduction.low), float(reduction.high))
        while (strip := (yield)) is not None:
            h = self._above_diagonal(*strip)
            values.append(arrays.to_host(h[(h >= low) & (h < high)]))
            n_below += int(self._xp.count_nonzero(h < low))
        inside = np.concatenate(values)
        return RangeEntries(inside[: reduction.count], len(inside), n_below)

    def _block_sums(self, reduction: BlockSums) -> Array:
        xp, left, size = self._xp, self.problem.left, reduction.size
        sums = []
        for begin in range(0, left.points.shape[0] // size * size, size):
            block = left.take(slice(begin, begin + size))
            rows = [xp.sum(self._without_diagonal(h, first), axis=1) for first, h in self._strips(block, block)]
            sums.append(xp.sum(xp.concat(rows)))
        return xp.stack(sums)

    def _dense_rectangle(self, reduction: DenseRectangle) -> Array:
        return self._entries(self.problem.left.take(reduction.rows), self.problem.columns.take(reduction.columns))

    reductions: ClassVar = {
        Moments: _moments,
        BlockSums: _block_sums,
        Products: _products,
        QuadraticForms: _quadratic_forms,
        Counts: _counts,
        EntriesInRange: _entries_in_range,
        DenseRectangle: _dense_rectangle,
    }

    def _strips(self, left: Side, right: Side) -> Iterator[tuple[int, Array]]:
        """Yield the first row and the entries of each strip."""
        n, n_right = left.points.shape[0], right.points.shape[0]
        step = max(1, STRIP_ELEMENTS // n_right)
        for begin in range(0, n, step):
            yield begin, self._entries(left.take(slice(begin, min(n, begin + step))), right)

    def _without_diagonal(self, h: Array, begin: int) -> Array:
        """Return a strip with zeros in place of H_ii."""
        rows, columns = self._indices(h, begin)
        return self._xp.where(rows == columns, self._xp.zeros_like(h), h)

    def _above_diagonal(self, begin: int, h: Array) -> Array:
        """Return a strip with infinity for pairs i >= j."""
        rows, columns = self._indices(h, begin)
        return self._xp.where(rows < columns, h, self._xp.full_like(h, math.inf))

    def _indices(self, h: Array, begin: int) -> tuple[Array, Array]:
        rows, columns = (
            self._xp.arange(first, first + count, device=arrays.device(h))
            for first, count in zip((begin, 0), h.shape, strict=True)
        )
        return rows[:, None], columns[None, :]

    def _entries(self, left: Side, right: Side) -> Array:
        """Return the dense H of two sides in float64, computed in their dtype."""
        distances = _Distances(self.problem, left.points, right.points)
        kernel = kernel_matrix(self.problem.kernel, distances)
        if self.problem.target is None:
            h = kernel * (left.features @ self._xp.matrix_transpose(right.features))
        else:
            h = kernel * inner_products(self.problem.target, left.features, right.features)
        return self._xp.astype(h, self._xp.float64, copy=False)


class _Distances(Distances):
    """Distances of points of a problem, also of mixtures and positions in a table."""

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


def _end_of(sums: Sums) -> Any:
    """Return the result of a generator after the last strip."""
    try:
        sums.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a reduction goes on behind the last strip")
