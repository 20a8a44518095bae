"""The CPU backend: hands contiguous NumPy arrays to the compiled sweeps in `_native`.

Residuals of class labels, signed measures (`Mixtures`; products in src/cpu/pairs/mixture_kernels.cpp), and distances of
points, of mixtures, and from a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from kcalib import _native
from kcalib._backend.compensated import compensated
from kcalib._backend.options import check_choice
from kcalib._backend.random import Weights
from kcalib._backend.threads import TerminalProgress, resolve_threads
from kcalib._pairs.backends.at_locations import AtLocations
from kcalib._pairs.backends.base import Backend, Progress, TileSweep
from kcalib._pairs.backends.diagonal import diagonal
from kcalib._pairs.backends.digits import sampled, spread_about
from kcalib._pairs.backends.mixture_rows import bounded, check_positions, has_own_products, obstacle
from kcalib._pairs.families import POINT_FAMILIES
from kcalib._pairs.problem import Mixtures, PairProblem, Side, Term
from kcalib._pairs.profiles import PROFILES
from kcalib._pairs.reductions import (
    BlockSums,
    Counts,
    DenseRectangle,
    EntriesInRange,
    LabelMatches,
    Moments,
    MomentSums,
    NullSquares,
    Part,
    Products,
    QuadraticForms,
    RangeEntries,
    Reduction,
)
from kcalib._pairs.tiles import Grid, Runs, Tile

# The enum of src/include/kcalib/profiles.h.
METRIC_NUMBERS = {"euclidean": 0, "cityblock": 1, "dot": 2, "mmd": 3, "table": 4}
# From this many classes on one product of residuals serves both distances and target factors, if
# the samples are sorted by label. Unsorted, a residual at another sample's label has to be gathered,
# which costs as much as a second product up to about 20 classes (AVX2 and AVX-512).
RESIDUAL_CLASSES = 9
RESIDUAL_CLASSES_UNSORTED = 32
SPREAD_OF_RESIDUALS = 0.1  # mean squared distance of points up to which residuals would lose its digits
SMALL_RESIDUALS = 0.1  # lengths up to which points would lose digits of theirs
SORT_FROM = 128  # samples; fewer are swept in less time than sorting them takes
LABELS = "int32"  # dtype of panels of labels
WEIGHTS_BYTES = 2**28  # of packed resampling weights in memory at a time


class CpuBackend(Backend):
    """H in tiles, in parallel; the same bits for any number of threads."""

    name = "cpu"
    options = frozenset({"null_variance", "rounded"})

    def __init__(
        self, problem: PairProblem, *, threads: int | None = None, reason: str = "", level: str | None = None
    ) -> None:
        super().__init__(problem, reason=reason)
        self.threads: int = resolve_threads(threads)
        self._level = level  # instruction set; the tests force each
        # Whether sorting samples by label is worth it; both sides have labels in the core, or neither.
        self._worth_sorting = len(problem.left.points) >= SORT_FROM <= len(problem.columns.points)
        self._by_labels, centre = self._one_product()
        self._kernel = _native.Kernel(
            _terms(problem.kernel),
            _mixtures(problem.target),
            _mixtures(problem.predicted),
            _table(problem),
            centre,
            self._by_labels,
        )

    def like(self, problem: PairProblem) -> CpuBackend:
        return CpuBackend(problem, threads=self.threads, reason=self.reason, level=self._level)

    @staticmethod
    def unsuitable(problem: PairProblem) -> str | None:
        """Why the problem is not one for this backend; None if it is."""
        return obstacle(problem)

    def _moment_sums(self, reduction: Moments) -> MomentSums:
        second = reduction.second or reduction.null_variance
        moments, expected = self._moments(second, reduction.rows, reduction.trace, expected=reduction.null_variance)
        return moments if expected is None else replace(moments, null_variance=NullSquares(*expected))

    def _moments(
        self, second: bool, rows: bool, trace: bool, expected: bool = False
    ) -> tuple[MomentSums, tuple[float, float] | None]:
        problem = self.problem
        left = self._prepared(problem.left)
        right = None if problem.right is None else self._prepared(problem.right)
        with TerminalProgress() as progress:
            total, row_sums, column_sums, squares, expectation = _native.moments(
                *left.arrays,
                *_arrays(right),
                right is None,
                self._kernel,
                self._sweep(progress),
                rows or second,
                second,
                expected,
            )
        row_sums = left.restored(row_sums)
        column_sums = row_sums if right is None else right.restored(column_sums)
        if trace and right is None:
            return self._completed(total, row_sums, squares), expectation
        return MomentSums(total, row_sums, column_sums, None, squares, None), expectation

    def _completed(self, total: float, row_sums: np.ndarray | None, squares: float | None) -> MomentSums:
        """Sums of a symmetric problem, with the diagonal."""
        own = diagonal(self.problem, self.threads)
        return MomentSums(total, row_sums, row_sums, own, squares, float(np.sum(own)))

    def _block_sums(self, reduction: BlockSums) -> np.ndarray:
        size = reduction.size
        return self._run(_native.block_sums, *self._prepared(self.problem.left, size).arrays, size=size)

    def _matmul(self, reduction: Products) -> np.ndarray:
        problem, rounded = self.problem, reduction.rounded
        single = check_choice("dtype", reduction.dtype, ("float64", "float32")) == "float32"
        vectors = np.ascontiguousarray(reduction.vectors, dtype=np.float64)
        if vectors.shape[1] == 0:
            return np.empty((len(problem.left.points), 0))
        left = self._prepared(problem.left, sort=not rounded)
        right = left if problem.right is None else self._prepared(problem.right, sort=not rounded)
        arrays = *left.arrays, *right.arrays, problem.symmetric
        products: np.ndarray = self._run(_native.matmul, *arrays, vectors=vectors, single=single, in_units=rounded)[0]
        return products

    def _quadratic_forms(self, reduction: QuadraticForms) -> np.ndarray:
        side, forms = self._prepared(self.problem.left), [np.empty(0)]
        for begin, end, panels in self._batches(reduction.weights, reduction.dtype, side.order):
            forms.append(self._forms(side, panels, end - begin))
        return np.concatenate(forms)

    def _forms(self, side: HostSide, panels: list[np.ndarray], count: int) -> np.ndarray:
        found = self._run(_native.quadratic_forms, *side.arrays, panels=panels, first_panel=panels[0])
        forms: np.ndarray = found.reshape(-1)[:count]
        return forms

    def _batches(
        self, weights: np.ndarray | Weights, dtype: str, order: np.ndarray | None
    ) -> Iterator[tuple[int, int, list[np.ndarray]]]:
        """Columns [begin, end) of the weights, some at a time, and these in panels, see `_panels`."""
        n, count = weights.shape if isinstance(weights, np.ndarray) else (weights.n, weights.n_replicates)
        width = _native.weights_at_once(dtype, self._sweep())
        at_once = max(1, WEIGHTS_BYTES // (n * width * np.dtype(dtype).itemsize)) * width
        for begin in range(0, count, at_once):
            end = min(count, begin + at_once)
            yield begin, end, self._panels(weights, begin, end, dtype, order)

    def _panels(
        self, weights: np.ndarray | Weights, begin: int, end: int, dtype: str, order: np.ndarray | None
    ) -> list[np.ndarray]:
        """Columns [begin, end) of the weights, or of labels, as the compiled core takes them at once, in that order."""
        if dtype == LABELS:
            assert isinstance(weights, np.ndarray)
            return self._label_panels(np.ascontiguousarray(weights, dtype=LABELS), begin, end)
        width = _native.weights_at_once(dtype, self._sweep())
        return [self._panel(weights, c, min(end, c + width), width, dtype, order) for c in range(begin, end, width)]

    def _panel(
        self,
        weights: np.ndarray | Weights,
        begin: int,
        end: int,
        width: int,
        dtype: str,
        order: np.ndarray | None = None,
    ) -> np.ndarray:
        """Columns [begin, end) of the weights, filled up to `width` with zeros."""
        if isinstance(weights, Weights):
            values = weights.values(begin, end, dtype, threads=self.threads)
        else:
            values = weights[:, begin:end]
        if order is not None:
            values = values[order]
        if end - begin == width:
            return np.ascontiguousarray(values, dtype=dtype)
        panel = np.zeros((len(values), width), dtype=dtype)
        panel[:, : end - begin] = values
        return panel

    def _label_matches(self, reduction: LabelMatches) -> np.ndarray:
        side = self._prepared(self.problem.left, sort=False)
        labels = np.ascontiguousarray(reduction.labels, dtype=LABELS)
        panels = self._label_panels(labels, 0, labels.shape[1])
        sums: np.ndarray = self._run(_native.matches, *side.arrays, panels=panels).reshape(-1)[: labels.shape[1]]
        return sums

    def _label_panels(self, labels: np.ndarray, begin: int, end: int) -> list[np.ndarray]:
        width = _native.labels_at_once(self._sweep())
        return [self._panel(labels, c, min(end, c + width), width, LABELS) for c in range(begin, end, width)]

    @property
    def at_locations(self) -> AtLocations | None:
        return AtLocations.of(self.problem, self._run)

    def _counts(self, reduction: Counts) -> np.ndarray:
        side, thresholds = self._prepared(self.problem.left), reduction.thresholds
        padded = np.full(-(-len(thresholds) // _native.THRESHOLDS) * _native.THRESHOLDS, -np.inf)
        padded[: len(thresholds)] = thresholds
        parts = [
            self._run(_native.counts, *side.arrays, thresholds=part) for part in padded.reshape(-1, _native.THRESHOLDS)
        ]
        return np.concatenate(parts)[: len(thresholds)]

    def _entries_in_range(self, reduction: EntriesInRange) -> RangeEntries:
        side, bounds = self._prepared(self.problem.left), {"low": reduction.low, "high": reduction.high}
        return RangeEntries(*self._run(_native.between, *side.arrays, **bounds, most=reduction.count))

    def _dense_rectangle(self, reduction: DenseRectangle) -> np.ndarray:
        sides = self.problem.left.take(reduction.rows), self.problem.columns.take(reduction.columns)
        arrays = [a for side in sides for a in self._prepared(side, sort=False).arrays]
        return self._run(_native.entries, *arrays, False)

    reductions: ClassVar = {
        Moments: _moment_sums,
        BlockSums: _block_sums,
        Products: _matmul,
        QuadraticForms: _quadratic_forms,
        LabelMatches: _label_matches,
        Counts: _counts,
        EntriesInRange: _entries_in_range,
        DenseRectangle: _dense_rectangle,
    }

    def _one_product(self) -> tuple[bool, np.ndarray | None]:
        """Whether labels make one product of distances and target factors, and the centre of points that it is of.

        Without a centre it is that of the residuals. Predictions that are near each other, as diffuse ones are, are
        nearer than terms of size 1 have digits for, and their residuals large: one product of points about their
        mean does then (`Quantities::both_from` in src/cpu/pairs/quantities.h). Where residuals are small, too, as of
        rare events, two products are needed.
        """
        sides, points = (self.problem.left, self.problem.columns), self.problem.left.points
        least = RESIDUAL_CLASSES if self._worth_sorting else RESIDUAL_CLASSES_UNSORTED
        if points.shape[1] < least or any(s.labels is None for s in sides):
            return False, None
        if any(f.metric != "euclidean" for term in self.problem.kernel for f in term.factors):
            return False, None
        rows = sampled(points)
        apart, centre = spread_about(points[rows])
        if apart > SPREAD_OF_RESIDUALS:
            return True, None
        residuals = np.array(points[rows], dtype=np.float64)
        residuals[np.arange(len(residuals)), np.asarray(self.problem.left.labels)[rows]] -= 1
        enough = np.einsum("ij,ij->i", residuals, residuals).min() > SMALL_RESIDUALS**2
        return enough, centre.astype(points.dtype).astype(np.float64) if enough else None

    def _prepared(self, side: Side, block: int | None = None, sort: bool = True) -> HostSide:
        """The side as the compiled core reads it, sorted by label (within blocks) where that helps."""
        points = np.ascontiguousarray(side.points)
        n, m = points.shape
        if self.problem.predicted is not None:
            points = self._predictions(self.problem.predicted, points)
        if self.problem.target is not None:
            first = 2 + self.problem.target.n_dims
            marks = bounded(self.problem.target, np.ascontiguousarray(side.marks), first)
            return HostSide(points, marks, None, None)
        sort = sort and self._worth_sorting and (block is None or block >= SORT_FROM)
        enough = m >= (RESIDUAL_CLASSES if sort else RESIDUAL_CLASSES_UNSORTED)
        if not (self._by_labels and enough):
            if self._by_labels or not side.marks_follow:
                return HostSide(points, np.ascontiguousarray(side.marks), None, None)
            return HostSide(points, None, np.ascontiguousarray(side.labels, dtype=np.int32), None)
        labels = np.ascontiguousarray(side.labels, dtype=np.int32)
        order = None
        if sort:
            keys = labels.astype(np.uint16) if m <= 2**16 else labels  # which NumPy sorts by radix
            order = np.argsort(keys, kind="stable") if block is None else np.lexsort((keys, np.arange(n) // block))
        # Points that were rounded to float32 have lost digits that small residuals have.
        marks = None if side.marks_follow else np.ascontiguousarray(side.marks)
        return HostSide(points, marks, labels, order)

    def _predictions(self, mixtures: Mixtures, points: np.ndarray) -> np.ndarray:
        """Points of the metric "mmd" as the compiled core reads them: with their products with themselves."""
        points = bounded(mixtures, points, 0)
        if not has_own_products(mixtures):
            return POINT_FAMILIES[mixtures.family].rows_apart(mixtures, points)
        own = np.empty(len(points), points.dtype)
        _native.own_products(points, self._kernel, self._sweep(), own)
        return np.concatenate([points, own[:, None]], axis=1)

    def tiles(self, in_given_order: bool) -> CpuTiles:
        return CpuTiles(self, sort=not in_given_order)

    def _sweep(self, progress: Callable[[float], None] | None = None, block: int = 0, group: int = 0) -> _native.Sweep:
        return _native.Sweep(self.threads, self._level, progress, block, group)

    def _run(self, function: Any, *arrays_and_flags: Any, **options: Any) -> Any:
        with TerminalProgress() as progress:
            return function(*arrays_and_flags, kernel=self._kernel, sweep=self._sweep(progress), **options)


HostArrays = tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None, np.ndarray | None]


@dataclass(frozen=True)
class HostSide:
    """A side as the compiled core reads it; see `Side` in src/cpu/pairs/tile.h."""

    points: np.ndarray
    marks: np.ndarray | None
    labels: np.ndarray | None
    order: np.ndarray | None

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray | None]:
        return self.points, self.marks, self.labels, self.order

    def part(self, rows: range) -> HostSide:
        """Some of the samples, counted in the order of the sweep."""
        at = slice(rows.start, rows.stop)
        if self.order is not None:
            return replace(self, order=self.order[at])
        marks, labels = (None if values is None else values[at] for values in (self.marks, self.labels))
        return HostSide(self.points[at], marks, labels, None)

    def gathered(self) -> HostSide:
        """The samples in the order of the sweep."""
        if self.order is None:
            return self
        marks, labels = (None if values is None else values[self.order] for values in (self.marks, self.labels))
        return HostSide(self.points[self.order], marks, labels, None)

    def sorted(self, values: np.ndarray) -> np.ndarray:
        """Values of the samples in the order of the sweep."""
        return values if self.order is None else values[self.order]

    def restored(self, values: Any) -> Any:
        """Values of the samples (None: none) in the user's order."""
        if self.order is None or values is None:
            return values
        result = np.empty_like(values)
        result[self.order] = values
        return result


class CpuTiles(TileSweep):
    """A problem prepared once, to be swept in rectangles of whole groups of samples.

    A sweep over all pairs adds up the pairs of two groups by themselves, and merges these sums in order. Parts that
    keep them apart make up the same sums, bit for bit.
    """

    apart = True

    def __init__(self, backend: CpuBackend, sort: bool) -> None:
        self.backend: CpuBackend = backend
        problem = backend.problem
        self.left: HostSide = backend._prepared(problem.left, sort=sort)
        self.right: HostSide = self.left if problem.right is None else backend._prepared(problem.right, sort=sort)
        arguments = problem.symmetric, backend._kernel, backend._sweep()
        self.block, blocks = _native.groups(*self.left.arrays, *self.right.arrays, *arguments)
        self.group = self.block * blocks
        self._in_blocks: dict[int, HostSide] = {}

    def prepare(self, reduction: Reduction[Any]) -> Any:
        """Panels of weights and of labels may have columns of zeros at their ends."""
        backend = self.backend
        if isinstance(reduction, QuadraticForms):
            return backend._panels(reduction.weights, 0, reduction.n_columns, reduction.dtype, self.left.order)
        if isinstance(reduction, LabelMatches):
            assert isinstance(reduction.labels, np.ndarray)
            return backend._panels(reduction.labels, 0, reduction.labels.shape[1], LABELS, None)
        return super().prepare(reduction)

    def sweep(self, reduction: Reduction[Any], tile: Tile, grid: Grid | Runs, vectors: Any, progress: Progress) -> Part:
        if isinstance(reduction, BlockSums):
            return self._block_sums(reduction, tile, progress)
        assert isinstance(grid, Grid)
        if isinstance(reduction, Products):
            return self._products(reduction, tile, vectors, progress)
        left, right = self.left.part(tile.rows), self.right.part(tile.columns)
        own = self.backend.problem.symmetric and tile.on_diagonal
        sweep = self.backend._sweep(progress, self.block, grid.group // self.block)  # the same entries, to the bit
        arguments = *left.arrays, *(left if own else right).arrays, own, self.backend._kernel, sweep
        if isinstance(reduction, Moments):
            return self._moments(reduction, grid, arguments)
        options: Any = {"panels": vectors, "first_row": tile.row, "first_column": tile.column}
        if isinstance(reduction, QuadraticForms):
            sums = _native.quadratic_parts(*arguments, first_panel=vectors[0], **options)
            return {"forms": self._of_groups(sums.reshape(*sums.shape[:2], -1), grid, reduction.n_columns)}
        assert isinstance(reduction, LabelMatches) and isinstance(reduction.labels, np.ndarray)
        sums = _native.match_parts(*arguments, **options)
        return {"matches": self._of_groups(sums, grid, reduction.labels.shape[1])}

    def _moments(self, reduction: Moments, grid: Grid, arguments: tuple[Any, ...]) -> Part:
        """Totals (a, b), row sums (b, rows), column sums (a, columns; none on the diagonal) and squares (a, b), of the
        groups of rows a and of columns b, and (a, b, 2) of what is expected; merged a = b = 1."""
        second = reduction.second or reduction.null_variance
        options: Any = {"rows": reduction.rows or second, "second": second, "expected": reduction.null_variance}
        names = "totals", "rows", "columns", "squares", "null"
        sums = (_native.moment_parts if grid.apart else _native.moments)(*arguments, **options)
        part = {name: np.asarray(values) for name, values in zip(names, sums, strict=True) if values is not None}
        if grid.apart:
            return part
        sides = ("rows", "columns")
        return {name: values[None] if name in sides else values[None, None] for name, values in part.items()}

    def _products(self, reduction: Products, tile: Tile, vectors: np.ndarray, progress: Progress) -> Part:
        """H[rows, columns] @ vectors[columns], and off the diagonal H[rows, columns]^T @ vectors[rows]."""
        symmetric, single = self.backend.problem.symmetric, reduction.dtype == "float32"
        own = symmetric and tile.on_diagonal
        left, right = self.left.part(tile.rows).gathered(), self.right.part(tile.columns).gathered()
        on_right = np.ascontiguousarray(vectors[tile.column : tile.column_end])
        on_left = np.ascontiguousarray(vectors[tile.row : tile.row_end]) if symmetric and not own else None
        sweep = self.backend._sweep(progress, self.block, self.group // self.block)
        arguments = *left.arrays, *right.arrays, own, self.backend._kernel, sweep, on_right, single, on_left
        rows, columns = _native.matmul(*arguments, reduction.rounded)
        return {"rows": rows[None]} if columns is None else {"rows": rows[None], "columns": columns[None]}

    def _block_sums(self, reduction: BlockSums, tile: Tile, progress: Progress) -> Part:
        size, backend = reduction.size, self.backend
        if size not in self._in_blocks:
            self._in_blocks[size] = backend._prepared(backend.problem.left, size)
        part = self._in_blocks[size].part(range(tile.row * size, tile.row_end * size)).gathered()
        sums = _native.block_sums(*part.arrays, kernel=backend._kernel, sweep=backend._sweep(progress), size=size)
        return {"rows": sums[None]}

    @staticmethod
    def _of_groups(sums: np.ndarray, grid: Grid, count: int) -> np.ndarray:
        """The first `count` columns of sums of pairs of groups, merged unless they are kept apart."""
        merged = sums if grid.apart else compensated(sums.reshape(-1, sums.shape[2]))[None, None, :]
        return np.ascontiguousarray(merged[:, :, :count])


def _arrays(side: HostSide | None) -> HostArrays:
    """Those of the right side, which has none where it is the left one."""
    return (None, None, None, None) if side is None else side.arrays


def _terms(terms: tuple[Term, ...]) -> list[tuple[float, list[tuple[int, int, float, float, float]]]]:
    """A kernel in normal form as the compiled core reads it."""
    return [
        (t.coefficient, [(PROFILES[f.profile].number, METRIC_NUMBERS[f.metric], f.scale, f.a, f.b) for f in t.factors])
        for t in terms
    ]


def _mixtures(mixtures: Mixtures | None) -> tuple[Any, ...] | None:
    if mixtures is None:
        return None
    numbers = mixtures.n_dims, mixtures.n_components, mixtures.n_terms
    return _native.FAMILIES[mixtures.family].number, *numbers, _terms(mixtures.kernel)


def _table(problem: PairProblem) -> np.ndarray | None:
    """The table of distances, with numbers beside each other in its rows, which positions are checked against."""
    if problem.table is None:
        return None
    table = np.asarray(problem.table, dtype=np.float64)
    check_positions(problem, table)
    return table if table.strides[1] == table.itemsize else np.ascontiguousarray(table)
