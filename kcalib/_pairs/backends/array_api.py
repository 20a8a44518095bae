"""The backend for every array library: strips of rows, array API functions only.

Differentiable wherever the library is (distances have their subgradient 0 at 0), on
whatever device the arrays are. Memory: a strip of H, at most `STRIP_ELEMENTS` elements, and of the
tensor of differences, besides O(n m).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice
from kcalib._backend.random import Weights, drawn_weights
from kcalib._pairs.backends.base import Backend
from kcalib._pairs.backends.device_mixtures import uploaded
from kcalib._pairs.backends.digits import powers_of_two
from kcalib._pairs.mixtures import inner_products, squared_mmd
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.profiles import Distances, kernel_matrix, safe_root
from kcalib._pairs.reductions import (
    BlockSums,
    Counts,
    DenseRectangle,
    EntriesInRange,
    Moments,
    MomentSums,
    Products,
    QuadraticForms,
    RangeEntries,
    Reduction,
)

STRIP_ELEMENTS = 2**22
TILE_COLUMNS = 192  # products in float32 that are summed in it, as in the compiled core


class ArrayApiBackend(Backend):
    """H in strips of rows, each a few array operations."""

    name = "array-api"
    entry_cost = 30.0

    def __init__(self, problem: PairProblem, *, reason: str = "") -> None:
        super().__init__(problem, reason=reason)
        self.xp = arrays.namespace(problem.left.points)

    def _results(self, reductions: Sequence[Reduction[Any]]) -> list[Any]:
        results = [self.reductions[type(reduction)](self, reduction) for reduction in reductions]
        in_strips = [result for result in results if isinstance(result, _InStrips)]
        if in_strips:
            for begin, h in self._strips(self.problem.left, self.problem.columns):
                for sums in in_strips:
                    sums.add(begin, h)
        return [result.finish() if isinstance(result, _InStrips) else result for result in results]

    def _block_sums(self, reduction: BlockSums) -> Array:
        xp, left, size = self.xp, self.problem.left, reduction.size
        sums = []
        for begin in range(0, left.points.shape[0] // size * size, size):
            block = left.take(slice(begin, begin + size))
            rows = [xp.sum(self.without_diagonal(h, first), axis=1) for first, h in self._strips(block, block)]
            sums.append(xp.sum(xp.concat(rows)))
        return xp.stack(sums)

    def _dense_rectangle(self, reduction: DenseRectangle) -> Array:
        return self._entries(self.problem.left.take(reduction.rows), self.problem.columns.take(reduction.columns))

    def _strips(self, left: Side, right: Side) -> Iterator[tuple[int, Array]]:
        """The first row of each strip, and its entries."""
        n, n_right = left.points.shape[0], right.points.shape[0]
        step = max(1, STRIP_ELEMENTS // n_right)
        for begin in range(0, n, step):
            yield begin, self._entries(left.take(slice(begin, min(n, begin + step))), right)

    def without_diagonal(self, h: Array, begin: int) -> Array:
        """A strip with zeros in the place of entries H_ii."""
        rows, columns = self._indices(h, begin)
        return self.xp.where(rows == columns, self.xp.zeros_like(h), h)

    def above_diagonal(self, h: Array, begin: int) -> Array:
        """A strip with infinity for pairs i >= j."""
        rows, columns = self._indices(h, begin)
        return self.xp.where(rows < columns, h, self.xp.full_like(h, math.inf))

    def _indices(self, h: Array, begin: int) -> tuple[Array, Array]:
        rows, columns = (
            self.xp.arange(first, first + count, device=arrays.device(h))
            for first, count in zip((begin, 0), h.shape, strict=True)
        )
        return rows[:, None], columns[None, :]

    def _entries(self, left: Side, right: Side) -> Array:
        """Dense H of two sides, computed in their dtype, returned in float64."""
        distances = _Distances(self.problem, left.points, right.points)
        kernel = kernel_matrix(self.problem.kernel, distances)
        if self.problem.target is None:
            h = kernel * (left.marks @ self.xp.matrix_transpose(right.marks))
        else:
            h = kernel * inner_products(self.problem.target, left.marks, right.marks)
        return self.xp.astype(h, self.xp.float64, copy=False)


class _InStrips:
    """A reduction that adds strips."""

    def __init__(self, backend: ArrayApiBackend, reduction: Any) -> None:
        self.backend, self.xp, self.reduction = backend, backend.xp, reduction

    def add(self, begin: int, h: Array) -> None:
        """Add the strip of H that begins with a row."""
        raise NotImplementedError

    def finish(self) -> Any:
        """Return the result."""
        raise NotImplementedError


class _Moments(_InStrips):
    def __init__(self, backend: ArrayApiBackend, reduction: Moments) -> None:
        super().__init__(backend, reduction)
        self._rows: list[Array] = []
        self._columns: Any = 0.0
        self._squares: Any = 0.0

    def add(self, begin: int, h: Array) -> None:
        xp = self.xp
        if self.backend.problem.symmetric:
            h = self.backend.without_diagonal(h, begin)
        else:
            self._columns = xp.sum(h, axis=0) + self._columns
        self._rows.append(xp.sum(h, axis=1))
        if self.reduction.second:
            self._squares = xp.sum(h * h) + self._squares

    def finish(self) -> MomentSums:
        rows = self.xp.concat(self._rows)
        columns = rows if self.backend.problem.symmetric else self._columns
        squares = float(self._squares) if self.reduction.second else None
        return self.backend.moment_sums(self.reduction, self.xp.sum(rows), rows, columns, squares)


class _Products(_InStrips):
    def __init__(self, backend: ArrayApiBackend, reduction: Products) -> None:
        super().__init__(backend, reduction)
        xp, self._scales = self.xp, None
        self._vectors = xp.astype(reduction.vectors, xp.float64)
        if check_choice("dtype", reduction.dtype, ("float64", "float32")) == "float32":
            self._scales = powers_of_two(xp.max(xp.abs(self._vectors), axis=0))
            self._vectors = xp.astype(self._vectors / self._scales, xp.float32)
        self._rows: list[Array] = []

    def add(self, begin: int, h: Array) -> None:
        self._rows.append(h @ self._vectors if self._scales is None else self._single_product(h))

    def _single_product(self, h: Array) -> Array:
        """h @ vectors with products in float32, and sums over more than `TILE_COLUMNS` of them in float64."""
        xp = self.xp
        total: Any = 0.0
        for begin in range(0, h.shape[1], TILE_COLUMNS):
            part = slice(begin, min(h.shape[1], begin + TILE_COLUMNS))
            product = xp.astype(h[:, part], xp.float32) @ self._vectors[part, :]
            total = xp.astype(product, xp.float64) + total
        return total

    def finish(self) -> Array:
        products = self.xp.concat(self._rows)
        return products if self._scales is None else products * self._scales


class _QuadraticForms(_InStrips):
    def __init__(self, backend: ArrayApiBackend, reduction: QuadraticForms) -> None:
        super().__init__(backend, reduction)
        weights = reduction.weights
        if isinstance(weights, Weights):
            weights = self._draw(weights, reduction.dtype)
        self._weights = self.xp.astype(weights, getattr(self.xp, reduction.dtype))
        self._total: Any = 0.0

    def _draw(self, weights: Weights, dtype: str) -> Array:
        points = self.backend.problem.left.points
        if arrays.is_cuda(points):
            return drawn_weights(weights, 0, weights.n_replicates, weights.n_replicates, dtype)
        return arrays.like(weights.values(dtype=dtype), points, dtype=getattr(self.xp, dtype))

    def add(self, begin: int, h: Array) -> None:
        xp, w = self.xp, self._weights
        products = xp.astype(h, w.dtype, copy=False) @ w
        self._total = xp.sum(xp.astype(w[begin : begin + h.shape[0], :] * products, xp.float64), axis=0) + self._total

    def finish(self) -> Array:
        return self._total


class _Counts(_InStrips):
    def __init__(self, backend: ArrayApiBackend, reduction: Counts) -> None:
        super().__init__(backend, reduction)
        self._counts = np.zeros(len(reduction.thresholds), dtype=np.int64)

    def add(self, begin: int, h: Array) -> None:
        above = self.backend.above_diagonal(h, begin)
        below = [self.xp.count_nonzero(above < t) for t in self.reduction.thresholds.tolist()]
        self._counts += np.array([int(count) for count in below], dtype=np.int64)

    def finish(self) -> np.ndarray:
        return self._counts


class _EntriesInRange(_InStrips):
    def __init__(self, backend: ArrayApiBackend, reduction: EntriesInRange) -> None:
        super().__init__(backend, reduction)
        self._values = [np.empty(0)]
        self._below = 0

    def add(self, begin: int, h: Array) -> None:
        low, high = float(self.reduction.low), float(self.reduction.high)
        above = self.backend.above_diagonal(h, begin)
        self._values.append(arrays.to_host(above[(above >= low) & (above < high)]))
        self._below += int(self.xp.count_nonzero(above < low))

    def finish(self) -> RangeEntries:
        values = np.concatenate(self._values)
        return RangeEntries(values[: self.reduction.count], len(values), self._below)


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


ArrayApiBackend.reductions = {
    Moments: _Moments,
    BlockSums: ArrayApiBackend._block_sums,
    Products: _Products,
    QuadraticForms: _QuadraticForms,
    Counts: _Counts,
    EntriesInRange: _EntriesInRange,
    DenseRectangle: ArrayApiBackend._dense_rectangle,
}
