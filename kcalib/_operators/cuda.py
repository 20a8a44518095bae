"""The GPU operator: compiles src/cuda/pairs.cu for a problem and launches it.

Points and marks are CuPy arrays and stay on their device; only sums come back. What is compiled is the text for the
wanted combination (type, kernel as an expression, which quantities); `_cuda` does it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._cuda import Program
from kcalib._operators.device_mixtures import (
    QUANTITIES,
    expression,
    mixture_definitions,
    mixture_files,
    numbers_of,
    table_of,
)
from kcalib._operators.diagonal import diagonal
from kcalib._operators.mixture_rows import bounded, has_own_products, obstacle, with_roots
from kcalib._options import check_choice
from kcalib._problem import Mixtures, Moments, PairProblem, Side
from kcalib._resampling import KINDS, Weights

HEADERS = ("include/kcalib/math.h", "include/kcalib/profiles.h")
TILE, THREADS, VECTORS, THRESHOLDS = 64, 256, 16, 8  # as in pairs.cu
DIFFERENCES_UP_TO = 8  # features; beyond, squared distances are expanded
RESIDUALS_FROM = 9  # classes from which one product of residuals gives distances and target factors
GROUPS, BLOCKS = 32, 4096  # at most so many groups of columns; thread blocks that keep any device busy
PARTS_BYTES = 2**28  # of partial sums at a time


class CudaOperator:
    """H in tiles of thread blocks; the same bits from run to run and on every device."""

    name = "cuda"
    threads = None

    def __init__(self, problem: PairProblem, *, reason: str = "") -> None:
        self.problem = problem
        self.reason = reason
        self._xp = _arrays.namespace(problem.left.points)
        self._dtype = "float32" if problem.left.points.dtype == self._xp.float32 else "float64"
        factors = [factor for term in problem.kernel for factor in term.factors]
        metrics = {f.metric for f in factors}
        features, marks = int(problem.left.points.shape[1]), int(problem.left.marks.shape[1])
        labelled = all(side.labels is not None for side in (problem.left, problem.columns)) and problem.target is None
        self._residuals = labelled and metrics == {"euclidean"} and features >= RESIDUALS_FROM
        self._expanded = "euclidean" in metrics and features > DIFFERENCES_UP_TO and not self._residuals
        quantities = {QUANTITIES[metric] for metric in metrics}
        options = (
            f"-DKCALIB_REAL={'float' if self._dtype == 'float32' else 'double'}",
            f"-DKCALIB_EXPRESSION={expression(problem.kernel)}",
            f"-DKCALIB_QUANTITIES=({'+'.join(sorted(quantities))})",
            f"-DKCALIB_DIFFERENCES={int(not self._expanded)}",
            f"-DKCALIB_RESIDUALS={int(self._residuals)}",
            *mixture_definitions(problem),
        )
        before, behind = mixture_files(problem)
        self._program = Program((*HEADERS, *before, "cuda/pairs.cu", *behind), options)
        self._table = table_of(problem)
        self._numbers, self._mixtures = (self._xp.asarray(numbers) for numbers in numbers_of(problem, self._table))
        self._sizes = (np.int64(features), np.int64(marks))
        self._left = self._prepared(problem.left)
        self._right = self._left if problem.right is None else self._prepared(problem.right)

    @staticmethod
    def unsuitable(problem: PairProblem) -> str | None:
        """Why it cannot take the problem; None if it can."""
        return obstacle(problem)

    @property
    def program(self) -> Program:
        """What is compiled for the problem."""
        return self._program

    def moments(self, second: bool = False, rows: bool = True, trace: bool = True) -> Moments:
        problem, xp = self.problem, self._xp
        rows = rows or second
        row_sums, total, squares = self._sums(self._left, self._right, rows, second)
        column_sums = row_sums
        if rows and not problem.symmetric:
            column_sums = self._sums(self._right, self._left, True, False)[0]
        own = diagonal(problem) if trace and problem.symmetric else None
        return Moments(
            total, row_sums, column_sums if rows else None, own, squares, None if own is None else float(xp.sum(own))
        )

    def block_sums(self, size: int) -> Array:
        blocks = len(self.problem.left.points) // size
        out = self._xp.empty(blocks, dtype=self._xp.float64)
        self._launch("kcalib_block_sums", (blocks, 1), self._left, self._left, np.int64(size), out)
        return out

    def matmul(self, vectors: Array, *, dtype: str = "float64") -> Array:
        xp, single = self._xp, check_choice("dtype", dtype, ("float64", "float32")) == "float32"
        n, n_right, count = self._left.n, self._right.n, int(vectors.shape[1])
        vectors = xp.asarray(vectors, dtype=xp.float64)
        scales = _powers_of_two(xp, xp.max(xp.abs(vectors), axis=0)) if single and count else None
        if scales is not None:
            vectors = vectors / scales
        tiles, groups, per_group = self._groups(n, n_right, VECTORS)
        parts = xp.empty((groups, n, VECTORS), dtype=xp.float64)
        out = xp.empty((n, count), dtype=xp.float64)
        name = "kcalib_product_single" if single else "kcalib_product"
        for begin in range(0, count, VECTORS):
            panel = self._panel(vectors[:, begin : begin + VECTORS], dtype)
            self._launch(name, (tiles, groups), self._left, self._right, panel, np.int64(per_group), parts)
            out[:, begin : begin + VECTORS] = self._merged(parts)[:, : count - begin]
        return out if scales is None else out * scales

    def quadratic_forms(self, weights: Array | Weights, *, dtype: str = "float64") -> Array:
        xp, single = self._xp, check_choice("dtype", dtype, ("float64", "float32")) == "float32"
        n, count = weights.shape if not isinstance(weights, Weights) else (weights.n, weights.n_replicates)
        tiles, groups, per_group = self._groups(n, n, VECTORS / TILE)
        parts = xp.empty((groups * tiles, VECTORS), dtype=xp.float64)
        out = xp.empty(count, dtype=xp.float64)
        name = "kcalib_forms_single" if single else "kcalib_forms"
        for begin in range(0, count, VECTORS):
            end = min(count, begin + VECTORS)
            if isinstance(weights, Weights):
                panel = drawn_weights(weights, begin, end, VECTORS, dtype)
            else:
                panel = self._panel(xp.asarray(weights[:, begin:end]), dtype)
            self._launch(name, (tiles, groups), self._left, self._left, panel, np.int64(per_group), parts)
            out[begin:end] = self._merged(parts)[: end - begin]
        return out

    def counts(self, thresholds: np.ndarray) -> np.ndarray:
        xp, tiles = self._xp, self._tiles(self._left.n)
        counts = []
        for begin in range(0, len(thresholds), THRESHOLDS):
            part = np.full(THRESHOLDS, -np.inf)
            part[: len(thresholds) - begin] = thresholds[begin : begin + THRESHOLDS]
            found = xp.zeros(THRESHOLDS, dtype=xp.uint64)
            self._launch("kcalib_counts", (tiles, tiles), self._left, self._left, xp.asarray(part), found)
            counts.append(_arrays.to_host(found).astype(np.int64))
        return np.concatenate([np.empty(0, np.int64), *counts])[: len(thresholds)]

    def between(self, low: float, high: float, count: int) -> np.ndarray:
        xp, tiles = self._xp, self._tiles(self._left.n)
        values, found = xp.empty(count, dtype=xp.float64), xp.zeros(1, dtype=xp.uint64)
        bounds = np.float64(low), np.float64(high)
        self._launch("kcalib_between", (tiles, tiles), self._left, self._left, *bounds, values, np.int64(count), found)
        assert int(found[0]) == count
        return _arrays.to_host(values)

    def tile(self, rows: Any, columns: Any) -> Array:
        left, right = (self._prepared(side.take(at)) for side, at in zip(self._sides(), (rows, columns), strict=True))
        n, n_right = left.n, right.n
        out = self._xp.empty((n, n_right), dtype=self._xp.float64)
        self._launch("kcalib_entries", (self._tiles(n_right), self._tiles(n)), left, right, out, np.int64(n_right))
        return out

    def _sides(self) -> tuple[Side, Side]:
        return self.problem.left, self.problem.columns

    def _sums(self, left: Prepared, right: Prepared, rows: bool, second: bool) -> tuple[Any, Any, float | None]:
        """Row sums if wanted, the total, and the sum of squares if wanted, of `left` against `right`."""
        xp, n, n_right = self._xp, left.n, right.n
        tiles, groups, per_group = self._groups(n, n_right, 1)
        row_parts = xp.empty((groups, n), dtype=xp.float64) if rows else None
        totals = xp.empty((groups * tiles, 1), dtype=xp.float64)
        squares = xp.empty((groups * tiles, 1), dtype=xp.float64) if second else None
        flags = np.int64(self.problem.symmetric), np.int64(per_group)
        self._launch("kcalib_sums", (tiles, groups), left, right, *flags, row_parts, totals, squares)
        return (
            None if row_parts is None else self._merged(row_parts),
            float(self._merged(totals)[0]),
            None if squares is None else float(self._merged(squares)[0]),
        )

    def _merged(self, parts: Array) -> Array:
        """The sum over the first axis, in order."""
        count, length = len(parts), parts[0].size
        out = self._xp.empty(parts.shape[1:], dtype=self._xp.float64)
        arguments = (parts, np.int64(count), np.int64(length), out)
        self._program.launch("kcalib_merge", (-(-length // THREADS), 1), THREADS, arguments)
        return out

    def _groups(self, n: int, n_right: int, numbers: float) -> tuple[int, int, int]:
        """Tiles of rows, groups of columns and tiles in a group: a function of the sizes alone, as the bits are.

        Enough groups to have `BLOCKS` thread blocks, if parts of `numbers` reals a row fit `PARTS_BYTES`.
        """
        tiles, column_tiles = self._tiles(n), self._tiles(n_right)
        most = max(1, min(GROUPS, int(PARTS_BYTES / (8 * n * numbers))))
        groups = max(1, min(most, -(-BLOCKS // tiles), column_tiles))
        per_group = -(-column_tiles // groups)
        return tiles, -(-column_tiles // per_group), per_group

    @staticmethod
    def _tiles(n: int) -> int:
        return -(-n // TILE)

    def _panel(self, values: Array, dtype: str) -> Array:
        """Columns of vectors, filled up to `VECTORS` with zeros."""
        panel = self._xp.zeros((values.shape[0], VECTORS), dtype=dtype)
        panel[:, : values.shape[1]] = values
        return panel

    def _prepared(self, side: Side) -> Prepared:
        xp = self._xp
        target, predicted = self.problem.target, self.problem.predicted
        points = xp.ascontiguousarray(side.points) if predicted is None else self._predictions(predicted, side.points)
        if target is None:
            marks = xp.ascontiguousarray(side.marks)
        else:
            marks = xp.ascontiguousarray(bounded(target, side.marks, 2 + target.n_dims).T)
        labels = xp.asarray(side.labels, dtype=xp.int32) if self._residuals else None
        norms = None
        if self._residuals or self._expanded:
            n = len(side.points)
            norms = xp.empty((n, 2), dtype=points.dtype)
            arguments = (points, self._sizes[0], marks, self._sizes[1], np.int64(n), norms)
            self._program.launch("kcalib_norms", (-(-n // THREADS), 1), THREADS, arguments)
        return Prepared(len(side.points), points, marks, norms, labels)

    def _predictions(self, mixtures: Mixtures, points: Array) -> Array:
        """Points of the metric "mmd" as pairs.cu reads them: with their products with themselves."""
        xp = self._xp
        points, n = bounded(mixtures, points, 0), len(points)
        if not has_own_products(mixtures):
            return xp.ascontiguousarray(with_roots(mixtures, points).T)
        columns = xp.ascontiguousarray(points.T)
        own = xp.empty((1, n), dtype=columns.dtype)
        arguments = (columns, np.int64(n), self._numbers, self._mixtures, own)
        self._program.launch("kcalib_own_products", (-(-n // THREADS), 1), THREADS, arguments)
        return xp.concat([columns, own], axis=0)

    def _launch(self, name: str, grid: tuple[int, int], left: Prepared, right: Prepared, *arguments: Any) -> None:
        terms = np.int64(len(self.problem.kernel))
        mixtures = self._mixtures, self._table
        problem = (*left.arguments, *right.arguments, *self._sizes, self._numbers, terms, *mixtures)
        self._program.launch(name, grid, THREADS, (*problem, *arguments))


def drawn_weights(weights: Weights, begin: int, end: int, width: int, dtype: str) -> Array:
    """Weights of replicates [begin, end), made on the current device, shape (n, width): the last columns are zeros."""
    import cupy

    n, count = weights.n, np.int64(end - begin)
    program = weights_program("float" if dtype == "float32" else "double")
    panel = cupy.empty((n, width), dtype=dtype)
    grid, seed, sizes = (-(-n // THREADS), 1), np.uint64(weights.seed), (np.int64(n), np.int64(width))
    if weights.kind == "multinomial":
        counts = cupy.zeros((n, width), dtype=cupy.uint32)
        program.launch("kcalib_draws", grid, THREADS, (seed, np.int64(begin), count, *sizes, counts))
        every = (-(-counts.size // THREADS), 1)
        program.launch("kcalib_as_reals", every, THREADS, (counts, np.int64(counts.size), panel))
    else:
        arguments = (np.int64(KINDS[weights.kind]), seed, np.int64(begin), count, *sizes, panel)
        program.launch("kcalib_multipliers", grid, THREADS, arguments)
    return panel


def weights_program(real: str) -> Program:
    # Without fused products, for the bits of the compiled core.
    options = ("-fmad=false", f"-DKCALIB_REAL={real}")
    return Program((HEADERS[0], "include/kcalib/resampling.h", "cuda/weights.cu"), options)


class Prepared:
    """A side as pairs.cu reads it."""

    def __init__(self, n: int, points: Array, marks: Array, norms: Array | None, labels: Array | None) -> None:
        self.n = n
        self.arguments = (points, marks, norms, labels, np.int64(n))


def _powers_of_two(xp: Any, sizes: Array) -> Array:
    """The power of two below each size (1 for 0), which brings it into the range of float32."""
    positive = xp.where(sizes > 0, sizes, xp.ones_like(sizes))
    return 2.0 ** xp.clip(xp.floor(xp.log2(positive)), -1000.0, 1000.0)
