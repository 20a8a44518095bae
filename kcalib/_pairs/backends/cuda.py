"""The GPU backend: compiles src/cuda/pairs.cu for a problem and launches it.

Points and features are CuPy arrays and stay on their device; only sums come back. A function is compiled for the
required variant (type, kernel as an expression, quantities): `cuda_layout`.

H is computed in rectangles, a launch each, which bound the memory and the time between two checks for signals. Sums are
computed in the launch; for products a rectangle of H is stored and multiplied by cuBLAS. With many features cuBLAS also
computes the inner products for the launch. Partial sums are added in an order that depends on sizes only. The bits of
cuBLAS are the same from run to run on one model of GPU with one version of cuBLAS, if the memory suffices for the same
rectangles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.cuda import Program, struct, tensor_float
from kcalib._backend.options import check_choice
from kcalib._backend.random import Weights, draw_on_device
from kcalib._pairs.backends import rectangles
from kcalib._pairs.backends.base import Backend, powers_of_two, spread
from kcalib._pairs.backends.cuda_layout import (
    FEATURES,
    LAYOUT,
    PROBLEM,
    SIZES,
    THRESHOLDS,
    TILE,
    DeviceSide,
    pairs_program,
    real,
    sums_program,
)
from kcalib._pairs.backends.device_mixtures import (
    MIXTURE_NUMBERS,
    QUANTITIES,
    expression,
    mixture_definitions,
    programs_of,
    table_of,
)
from kcalib._pairs.backends.mixture_rows import bounded, has_own_products, obstacle
from kcalib._pairs.backends.rectangles import Rectangle, free_memory, paced, within_memory
from kcalib._pairs.families import POINT_FAMILIES
from kcalib._pairs.problem import Mixtures, PairProblem, Side
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
)

DIFFERENCES_UP_TO = 8  # features; beyond, squared distances are expanded
# Unless points lie so close, in the mean of their squared distances, that most pairs would have to be computed anew:
# by residuals, whose products have size 1, or by an expansion, as a share of their squares.
SPREAD_OF_RESIDUALS, SPREAD = 0.1, 0.02

# Beyond them one product of residuals gives distances and target factors, if each residual at the other's label comes
# from shared memory, where there are at most `FEATURES` classes. From global memory a warp takes some 20 cycles of a
# multiprocessor for them, a second product m / 2 in float64 and m / 4 in float32: it is the better one in between.
GATHERED_FROM = 64

# From this many features (or points) on their inner products come from cuBLAS. On paper, for an H200: in the register
# tile a pair takes m / 17e12 s of float64 vector arithmetic, of which reading shared memory leaves 65 %; cuBLAS has
# the tensor cores, m / 33e12 s at 80 %, and 16 bytes a pair are written and read again at 4.8e12 a second. They are
# even at m = 63. In float32, where TF32 would leave 3 digits, both have 33e12 and 8 bytes: even at m = 110.
GRAM_FROM = 128

EPILOGUE_COST = 60  # of an exponential kernel and a reduction
BAND = 128  # tiles of rows in a launch
BLOCKS, GROUP_COST = 4096, 2560  # thread blocks that keep any device busy; a block's share, in tiles times their cost
PARTS_BYTES = 2**27  # of partial sums of columns in a launch
# Rows and columns of a rectangle whose entries or inner products are stored: 128 MiB of float64. Larger ones would
# compute more pairs below the diagonal in vain, smaller ones would leave the device waiting for Python.
STRIP, STRIP_GROUP = 4096, 4
TILE_COLUMNS = 128  # products in float32 that are summed in it: less than in the compiled core, and whole tiles
PANEL = 512  # columns of weights or vectors in one product
WEIGHTS_BYTES = 2**33  # of weights at a time, if a quarter of the free memory is more
LARGE_BLOCK = 1024  # samples, from which the sum of a diagonal block is spread over many thread blocks


class CudaBackend(Backend):
    """H in rectangles of tiles; every bit is the same from run to run."""

    name = "cuda"

    def __init__(self, problem: PairProblem, *, reason: str = "") -> None:
        super().__init__(problem, reason=reason)
        self._xp = arrays.namespace(problem.left.points)
        self._dtype = "float32" if problem.left.points.dtype == self._xp.float32 else "float64"
        factors = [factor for term in problem.kernel for factor in term.factors]
        metrics = {f.metric for f in factors}
        n = max(len(problem.left.points), len(problem.columns.points))
        if n >= 2**31:  # pairs.cu counts samples in 32 bits
            raise ValueError(f"backend='cuda' takes fewer than 2**31 samples, `y_pred` has {n}; pass a part of them")
        coordinates, features = int(problem.left.points.shape[1]), int(problem.left.features.shape[1])
        labelled = all(side.labels is not None for side in (problem.left, problem.columns)) and problem.target is None
        many_features = "euclidean" in metrics and features > DIFFERENCES_UP_TO
        mean_squared_distance, size = spread(problem.left.points) if many_features else (0.0, 0.0)
        self._residuals = 0
        if labelled and metrics == {"euclidean"} and mean_squared_distance > SPREAD_OF_RESIDUALS:
            self._residuals = 1 if features <= FEATURES else 2 if features >= GATHERED_FROM else 0
        self._expanded = many_features and mean_squared_distance > SPREAD * size and not self._residuals
        self._dots = self._expanded or "dot" in metrics
        vectors = problem.target is None and problem.predicted is None and problem.table is None
        differences = "euclidean" in metrics and not self._expanded and not self._residuals
        many = max(features, coordinates if self._dots else 0) >= GRAM_FROM
        self._gram = vectors and many and not (self._dtype == "float32" and tensor_float())
        quantities = {QUANTITIES[metric] for metric in metrics}
        self._options = (
            *SIZES,
            f"-DKCALIB_LAYOUT=({LAYOUT})",
            f"-DKCALIB_REAL={real(self._dtype)}",
            f"-DKCALIB_EXPRESSION={expression(problem.kernel)}",
            f"-DKCALIB_QUANTITIES=({'+'.join(sorted(quantities))})",
            f"-DKCALIB_DIFFERENCES={int(differences or 'mmd' in metrics)}",
            f"-DKCALIB_RESIDUALS={self._residuals}",
            *mixture_definitions(problem),
        )
        self._programs: dict[tuple[str, str], Program] = {}
        self._sums_program = sums_program(real(self._dtype))
        self._table = table_of(problem)
        numbers, self._mixtures = programs_of(problem)
        self._numbers = self._xp.asarray(numbers)
        self._sizes = (np.int64(coordinates), np.int64(features))
        self._cost = EPILOGUE_COST + _cost(problem.predicted, coordinates) + _cost(problem.target, features)
        self._left = self._prepared(problem.left)
        self._right = self._left if problem.right is None else self._prepared(problem.right)

    @staticmethod
    def unsuitable(problem: PairProblem) -> str | None:
        """Return why the backend cannot take the problem, or None."""
        return obstacle(problem)

    def program(self, function: str, out: str = "float64") -> Program:
        """Return the program to launch `function` for the problem; kcalib_entries writes numbers of dtype `out`."""
        if (function, out) not in self._programs:
            gram = self._gram and function != "kcalib_block_sums"  # of blocks too small for products of matrices
            options = (*self._options, f"-DKCALIB_GRAM={int(gram)}")
            self._programs[function, out] = pairs_program(self.problem, function, options, out)
        return self._programs[function, out]

    def _moments(self, reduction: Moments) -> MomentSums:
        rectangle = Rectangle(0, self._left.n, 0, self._right.n)
        rows, second = reduction.rows or reduction.second, reduction.second
        total, row_sums, column_sums, squares = within_memory(
            lambda shrink: self._sums(rectangle, rows, second, shrink), "the moments", rectangle.shape[0]
        )
        return self.moment_sums(reduction, total, row_sums, column_sums, squares)

    def _block_sums(self, reduction: BlockSums) -> Array:
        size = reduction.size
        n = self._left.n // size * size
        if size >= LARGE_BLOCK:
            return within_memory(lambda shrink: self._large_block_sums(size, n, shrink), "sums over blocks", n)
        return within_memory(lambda shrink: self._small_block_sums(size, n), "sums over blocks", n)

    def _products(self, reduction: Products) -> Array:
        return within_memory(lambda shrink: self._product(reduction, shrink), "products with H", self._left.n)

    def _quadratic_forms(self, reduction: QuadraticForms) -> Array:
        single = _is_single(reduction.dtype)
        return within_memory(
            lambda shrink: self._forms(reduction.weights, single, shrink), "quadratic forms", self._left.n
        )

    def _counts(self, reduction: Counts) -> np.ndarray:
        thresholds = reduction.thresholds

        def work(shrink: int) -> np.ndarray:
            xp, counts = self._xp, [np.empty(0, np.int64)]
            for begin in range(0, len(thresholds), THRESHOLDS):
                part = np.full(THRESHOLDS, -np.inf)
                part[: len(thresholds) - begin] = thresholds[begin : begin + THRESHOLDS]
                below = xp.zeros(THRESHOLDS, dtype=xp.uint64)
                self._look_at_pairs("kcalib_counts", shrink, xp.asarray(part), below)
                counts.append(arrays.to_host(below).astype(np.int64))
            return np.concatenate(counts)[: len(thresholds)]

        return within_memory(work, "counts of entries", self._left.n)

    def _entries_in_range(self, reduction: EntriesInRange) -> RangeEntries:
        count, low = reduction.count, np.float64(reduction.low)

        def work(shrink: int) -> RangeEntries:
            xp = self._xp
            values, counts = xp.empty(count, dtype=xp.float64), xp.zeros(2, dtype=xp.uint64)
            self._look_at_pairs(
                "kcalib_between", shrink, low, np.float64(reduction.high), values, np.int64(count), counts
            )
            inside, below = (int(number) for number in counts)
            return RangeEntries(arrays.to_host(values[: min(count, inside)]), inside, below)

        return within_memory(work, f"{count} entries", self._left.n)

    def _dense_rectangle(self, reduction: DenseRectangle) -> Array:
        def work(shrink: int) -> Array:
            sides = zip((self.problem.left, self.problem.columns), (reduction.rows, reduction.columns), strict=True)
            left, right = (self._prepared(side.take(at)) for side, at in sides)
            rectangle = Rectangle(0, left.n, 0, right.n)
            out = self._xp.empty(rectangle.shape, dtype=self._xp.float64)
            strip, gram = self._gram_of(rectangle, shrink)
            with paced(rectangle, self._cost) as spent:
                for part in rectangle.parts(strip, strip, symmetric=False):
                    inner = self._inner_products(gram, part, left, right)
                    self._write_entries(part, left, right, inner, out, rectangle, rectangle.shape[1])
                    spent(part, self._cost)
            return out

        return within_memory(work, "a dense piece of H", self._left.n)

    reductions: ClassVar = {
        Moments: _moments,
        BlockSums: _block_sums,
        Products: _products,
        QuadraticForms: _quadratic_forms,
        Counts: _counts,
        EntriesInRange: _entries_in_range,
        DenseRectangle: _dense_rectangle,
    }

    # Sums

    def _sums(
        self, rectangle: Rectangle, rows: bool, second: bool, shrink: int
    ) -> tuple[float, Array | None, Array | None, float | None]:
        """Return the total of a rectangle, and if requested sums of rows and columns, and the sum of squares."""
        xp, symmetric = self._xp, self.problem.symmetric
        n, n_right = rectangle.shape
        tiles, column_tiles = -(-n // TILE), -(-n_right // TILE)
        strip, gram = self._gram_of(rectangle, shrink)
        if self._gram:
            per_group, band, columns_at_once = STRIP_GROUP, strip // TILE, strip
        else:
            # Functions of the sizes alone, as the bits are, but for `band` and the groups of a launch.
            per_group = int(max(1, min(tiles * column_tiles // BLOCKS, GROUP_COST // self._cost)))
            band = max(1, min(BAND, tiles) // shrink)
            groups = rectangles.LAUNCH_COST / (self._cost * band * per_group * TILE**2)
            groups = min(groups, PARTS_BYTES / shrink / (8 * band * per_group * TILE), -(-column_tiles // per_group))
            columns_at_once = per_group * TILE * max(1, int(groups))
        most = min(columns_at_once, n_right)
        groups_at_once = -(-most // (per_group * TILE))
        band_rows = min(band * TILE, n)

        row_sums, column_sums = (xp.zeros(k, dtype=xp.float64) if rows else None for k in (n, n_right))
        totals = xp.zeros(tiles, dtype=xp.float64)
        squares = xp.zeros(tiles, dtype=xp.float64) if second else None
        row_parts, column_parts = (
            xp.empty(k, dtype=xp.float64) if rows else None for k in (groups_at_once * band_rows, band * most)
        )
        total_parts, square_parts = (
            None if sums is None else xp.empty(groups_at_once * band, dtype=xp.float64) for sums in (totals, squares)
        )
        with paced(rectangle, self._cost, symmetric) as spent:
            for part in rectangle.parts(band * TILE, columns_at_once, symmetric):
                inner = self._inner_products(gram, part, self._left, self._right)
                row_tiles, groups = -(-part.shape[0] // TILE), -(-part.shape[1] // (per_group * TILE))
                parts = row_parts, column_parts, total_parts, square_parts
                self._launch(
                    "kcalib_sums", (row_tiles, groups), part, self._left, self._right, inner,
                    np.int64(symmetric), np.int64(per_group), *parts,
                )  # fmt: skip
                self._merge(row_parts, groups, part.shape[0], row_sums, part.row - rectangle.row)
                self._merge(column_parts, row_tiles, part.shape[1], column_sums, part.column - rectangle.column)
                self._merge(total_parts, groups, row_tiles, totals, (part.row - rectangle.row) // TILE)
                self._merge(square_parts, groups, row_tiles, squares, (part.row - rectangle.row) // TILE)
                spent(part, self._cost)
        if row_sums is not None and column_sums is not None and symmetric:
            row_sums = column_sums = row_sums + column_sums
        square = None if squares is None else self._total(squares)
        return self._total(totals), row_sums, column_sums, square

    def _total(self, values: Array) -> float:
        total = self._xp.zeros(1, dtype=self._xp.float64)
        self._merge(values, len(values), 1, total, 0)
        return float(total[0])

    def _merge(self, parts: Array | None, count: int, length: int, out: Array | None, first: int) -> None:
        """Add parts, `count` of `length` numbers, to out[first : first + length] in order; None is nothing."""
        if parts is None:
            return
        arguments = parts, np.int64(count), np.int64(length), out, np.int64(first)
        self._sums_program.launch("kcalib_merge", (self._sums_program.blocks(length), 1), arguments)

    def _large_block_sums(self, size: int, n: int, shrink: int) -> Array:
        xp = self._xp
        blocks = (Rectangle(begin, begin + size, begin, begin + size) for begin in range(0, n, size))
        return xp.asarray([self._sums(block, False, False, shrink)[0] for block in blocks], dtype=xp.float64)

    def _small_block_sums(self, size: int, n: int) -> Array:
        xp, blocks = self._xp, n // size
        out = xp.empty(blocks, dtype=xp.float64)
        at_once = max(1, int(rectangles.LAUNCH_COST / (self._cost * max(size, TILE) ** 2)))
        with paced(Rectangle(0, n, 0, max(size, TILE)), self._cost) as spent:
            for first in range(0, blocks, at_once):
                count = min(at_once, blocks - first)
                rectangle, numbers = Rectangle(0, n, 0, n), (np.int64(size), np.int64(first))
                self._launch(
                    "kcalib_block_sums", (count, 1), rectangle, self._left, self._left, (None, None), *numbers, out
                )
                spent(Rectangle(0, count * size, 0, max(size, TILE)), self._cost)
        return out

    def _look_at_pairs(self, function: str, shrink: int, *arguments: Any) -> None:
        """Launch a function for all tiles on and above the diagonal."""
        rectangle = Rectangle(0, self._left.n, 0, self._left.n)
        strip, gram = self._gram_of(rectangle, shrink)
        with paced(rectangle, self._cost, symmetric=True) as spent:
            for part in rectangle.parts(strip, strip, symmetric=True):
                inner = self._inner_products(gram, part, self._left, self._left)
                grid = -(-part.shape[1] // TILE), -(-part.shape[0] // TILE)
                self._launch(function, grid, part, self._left, self._left, inner, *arguments)
                spent(part, self._cost)

    # Products

    def _product(self, reduction: Products, shrink: int) -> Array:
        xp, vectors, single = self._xp, reduction.vectors, _is_single(reduction.dtype)
        dtype = "float32" if single else "float64"
        n, n_right, count = self._left.n, self._right.n, int(vectors.shape[1])
        if count == 0:
            return xp.empty((n, 0), dtype=xp.float64)
        vectors = xp.asarray(vectors, dtype=xp.float64)
        scales = powers_of_two(xp.max(xp.abs(vectors), axis=0)) if single else None
        if scales is not None:
            vectors = vectors / scales
        panels = [self._panel(vectors[:, c : c + PANEL], dtype) for c in range(0, count, PANEL)]
        outs = [xp.zeros((n, int(panel.shape[1])), dtype=xp.float64) for panel in panels]
        # Float32 sums are of blocks of columns; those of the transposed rectangle would take another layout.
        symmetric = self.problem.symmetric and not single
        for part, h, spent in self._entries(Rectangle(0, n, 0, n_right), symmetric, count, single, shrink):
            for out, panel in zip(outs, panels, strict=True):
                rows = out[part.row : part.row_end]
                rows += self._times(h, panel, part)
                if symmetric and part.column > part.row:
                    columns = out[part.column : part.column_end]
                    columns += xp.matmul(h.T, panel[part.row : part.row_end])
                spent(part, panel.shape[1])
        product = outs[0] if len(outs) == 1 else xp.concat(outs, axis=1)
        return product if scales is None else product * scales

    def _forms(self, weights: Array | Weights, single: bool, shrink: int) -> Array:
        xp, dtype = self._xp, "float32" if single else "float64"
        n, count = weights.shape if not isinstance(weights, Weights) else (weights.n, weights.n_replicates)
        budget = min(WEIGHTS_BYTES, free_memory() // 4) // shrink
        at_once = max(16, budget // (n * (4 if single else 8)))
        at_once = at_once // PANEL * PANEL if at_once > PANEL else at_once
        forms = xp.zeros(count, dtype=xp.float64)
        for begin in range(0, count, at_once):
            end = min(count, begin + at_once)
            bounds = [(c, min(end, c + PANEL)) for c in range(begin, end, PANEL)]
            panels = [self._weights(weights, *columns, dtype) for columns in bounds]
            for part, h, spent in self._entries(Rectangle(0, n, 0, n), True, end - begin, single, shrink):
                for (first, last), panel in zip(bounds, panels, strict=True):
                    products = self._times(h, panel, part)
                    products *= panel[part.row : part.row_end]
                    sums = forms[first:last]
                    sums += (2.0 if part.column > part.row else 1.0) * xp.sum(products, axis=0)
                    spent(part, panel.shape[1])
        return forms

    def _entries(
        self, rectangle: Rectangle, symmetric: bool, vectors: int, single: bool, shrink: int
    ) -> Iterator[tuple[Rectangle, Array, Callable[[Rectangle, float], None]]]:
        """Yield rectangles of H in the same memory, shape (rows, columns), to be multiplied by `vectors`.

        The yielded function must be told how many products of the rectangle are launched.

        With `single` they are float32 in blocks of columns, shape (blocks, rows, TILE_COLUMNS), the last padded with 0.
        """
        xp = self._xp
        strip, gram = self._gram_of(rectangle, shrink, 4 if single else 8)
        width = min(strip, -(-rectangle.shape[1] // TILE_COLUMNS) * TILE_COLUMNS if single else rectangle.shape[1])
        memory = xp.empty(min(strip, rectangle.shape[0]) * width, dtype=xp.float32 if single else xp.float64)
        with paced(rectangle, self._cost + vectors, symmetric) as spent:
            for part in rectangle.parts(strip, strip, symmetric):
                rows, columns = part.shape
                blocks = -(-columns // TILE_COLUMNS)
                shape = (blocks, rows, TILE_COLUMNS) if single else (rows, columns)
                h = memory[: int(np.prod(shape))].reshape(shape)
                inner = self._inner_products(gram, part, self._left, self._right)
                self._write_entries(part, self._left, self._right, inner, h, part, shape[-1])
                spent(part, self._cost)
                yield part, h, spent

    def _times(self, h: Array, panel: Array, part: Rectangle) -> Array:
        """Return the rectangle times the rows of the panel for its columns, in float64."""
        xp = self._xp
        if h.ndim == 2:
            return xp.matmul(h, panel[part.column : part.column_end])
        blocks, _, width = h.shape
        of_columns = panel[part.column : part.column + blocks * width].reshape((blocks, width, panel.shape[1]))
        return xp.sum(xp.matmul(h, of_columns), axis=0, dtype=xp.float64)

    def _panel(self, values: Array, dtype: str) -> Array:
        """Return columns in their own memory; in float32 zeros pad the last block of rows."""
        rows = _padded(len(values), dtype)
        panel = self._xp.empty((rows, values.shape[1]), dtype=dtype)
        panel[: len(values)] = values
        panel[len(values) :] = 0
        return panel

    def _weights(self, weights: Array | Weights, begin: int, end: int, dtype: str) -> Array:
        if isinstance(weights, Weights):
            return draw_on_device(weights, begin, end, end - begin, dtype, _padded(weights.n, dtype))
        return self._panel(self._xp.asarray(weights[:, begin:end]), dtype)

    # Launches

    def _prepared(self, side: Side) -> DeviceSide:
        xp = self._xp
        target, predicted = self.problem.target, self.problem.predicted
        points = xp.ascontiguousarray(side.points) if predicted is None else self._predictions(predicted, side.points)
        if target is None:
            features = xp.ascontiguousarray(side.features)
        else:
            features = xp.ascontiguousarray(bounded(target, side.features, 2 + target.n_dims).T)
        labels = xp.asarray(side.labels, dtype=xp.int32) if self._residuals else None
        norms = None
        if self._residuals or self._expanded:
            n = len(side.points)
            norms = xp.empty((n, 2), dtype=points.dtype)
            arguments = (points, self._sizes[0], features, self._sizes[1], np.int64(n), norms)
            self._sums_program.launch("kcalib_norms", (self._sums_program.blocks(n), 1), arguments)
        return DeviceSide(len(side.points), points, features, norms, labels)

    def _predictions(self, mixtures: Mixtures, points: Array) -> Array:
        """Return points of the metric "mmd" for pairs.cu, with their products with themselves."""
        xp = self._xp
        points, n = bounded(mixtures, points, 0), len(points)
        if not has_own_products(mixtures):
            return xp.ascontiguousarray(POINT_FAMILIES[mixtures.family].rows_apart(mixtures, points).T)
        columns = xp.ascontiguousarray(points.T)
        products = xp.empty((1, n), dtype=columns.dtype)
        numbers = struct(MIXTURE_NUMBERS, self._mixtures["predicted"])
        arguments = (columns, np.int64(n), self._numbers, numbers, products)
        program = self.program("kcalib_own_products")
        program.launch("kcalib_own_products", (program.blocks(n), 1), arguments)
        return xp.concat([columns, products], axis=0)

    def _gram_of(
        self, rectangle: Rectangle, shrink: int, entry_bytes: int = 0
    ) -> tuple[int, tuple[Array | None, Array | None]]:
        """Return rows and columns of a stored rectangle, and memory for inner products of features and points."""
        itemsize = 4 if self._dtype == "float32" else 8
        matrices = (self._gram, self._gram and self._dots)
        size = entry_bytes + itemsize * sum(matrices)
        strip = max(TILE * STRIP_GROUP, STRIP // shrink)
        while strip > TILE * STRIP_GROUP and size * strip**2 > free_memory() // 2:
            strip //= 2
        rows, columns = (min(strip, size) for size in rectangle.shape)
        features, points = (self._xp.empty(rows * columns, dtype=self._dtype) if want else None for want in matrices)
        return strip, (features, points)

    def _inner_products(
        self, gram: tuple[Array | None, Array | None], part: Rectangle, left: DeviceSide, right: DeviceSide
    ) -> tuple[Array | None, Array | None]:
        """Compute inner products of the rectangle's samples by cuBLAS in the memory of `gram`, or return None."""
        rows, columns = slice(part.row, part.row_end), slice(part.column, part.column_end)
        for out, a, b in zip(gram, (left.features, left.points), (right.features, right.points), strict=True):
            if out is not None:
                out = out[: part.shape[0] * part.shape[1]].reshape(part.shape)
                self._xp.matmul(a[rows], b[columns].T, out=out)
        return gram

    def _write_entries(
        self, part: Rectangle, left: DeviceSide, right: DeviceSide, inner: Sequence[Array | None], out: Array,
        out_rectangle: Rectangle, width: int,
    ) -> None:  # fmt: skip
        """Write the entries of the rectangle to `out` for `out_rectangle`, in blocks of `width` columns."""
        place = (
            np.int64(number) for number in (out_rectangle.row, out_rectangle.shape[0], out_rectangle.column, width)
        )
        rows, columns = part.shape if out.ndim == 2 else (part.shape[0], out.shape[0] * width)
        grid = -(-columns // TILE), -(-rows // TILE)
        self._launch("kcalib_entries", grid, part, left, right, inner, out, *place, out=out.dtype.name)

    def _launch(
        self, name: str, grid: tuple[int, int], part: Rectangle, left: DeviceSide, right: DeviceSide,
        inner: Sequence[Array | None], *arguments: Any, out: str = "float64",
    ) -> None:  # fmt: skip
        values = {
            "left": left.fields(part.row, part.row_end),
            "right": right.fields(part.column, part.column_end),
            "n_coordinates": self._sizes[0],
            "n_features": self._sizes[1],
            "program": self._numbers,
            "n_terms": len(self.problem.kernel),
            **self._mixtures,
            "table": self._table,
            "table_columns": 0 if self._table is None else int(self._table.shape[1]),
            "features_gram": inner[0],
            "points_gram": inner[1],
        }
        self.program(name, out).launch(name, grid, (struct(PROBLEM, values), *arguments))


def _cost(mixtures: Mixtures | None, columns: int) -> float:
    """Return the approximate number of instructions for a pair of vectors of `columns` numbers, or of mixtures."""
    if mixtures is None:
        return columns
    d = mixtures.n_dims
    pair = EPILOGUE_COST + 10 * d * (d if _native.FAMILIES[mixtures.family].matrices else 1)
    return mixtures.n_terms * (mixtures.n_components + 1) ** 2 * pair


def _is_single(dtype: str) -> bool:
    return check_choice("dtype", dtype, ("float64", "float32")) == "float32" and not tensor_float()


def _padded(n: int, dtype: str) -> int:
    return -(-n // TILE_COLUMNS) * TILE_COLUMNS if dtype == "float32" else n
