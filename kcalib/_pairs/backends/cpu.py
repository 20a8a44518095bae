"""The CPU backend: passes contiguous NumPy arrays to the compiled sweeps in `_native`.

It takes residuals of class labels, signed measures (`Mixtures`; products in src/cpu/pairs/mixture_kernels.cpp), and
distances of points, of mixtures, and from a table.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import GeneratorType
from typing import Any, ClassVar

import numpy as np

from kcalib import _native
from kcalib._backend.options import check_choice
from kcalib._backend.random import Weights
from kcalib._backend.threads import TerminalProgress, resolve_threads
from kcalib._pairs.backends.base import Backend, Progress, TileSweep, sampled, spread_about
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
# From this many classes on one product of residuals gives distances and target factors, if samples are sorted by label.
# Otherwise a residual at another sample's label has to be gathered, which costs as much as a second product up to about
# 20 classes (AVX2 and AVX-512).
RESIDUAL_CLASSES = 9
RESIDUAL_CLASSES_UNSORTED = 32
SPREAD_OF_RESIDUALS = 0.1  # mean squared distance below which residuals lose digits
SMALL_RESIDUALS = 0.1  # lengths below which points lose digits
SORT_FROM = 128  # samples; sorting fewer takes longer than sweeping them
VECTORS_AT_ONCE = 256  # of a sweep: bounds the sums of each thread
WEIGHTS_BYTES = 2**28  # of packed resampling weights in memory at a time


class CpuBackend(Backend):
    """H in tiles, in parallel; every bit is the same for any number of threads."""

    name = "cpu"
    options = frozenset({"null_variance", "rounded"})

    def __init__(self, problem: PairProblem, *, threads: int | None = None, reason: str = "") -> None:
        super().__init__(problem, reason=reason)
        self.threads: int = resolve_threads(threads)
        # Whether to sort samples by label; in the core both sides have labels, or neither.
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
        return CpuBackend(problem, threads=self.threads, reason=self.reason)

    @staticmethod
    def unsuitable(problem: PairProblem) -> str | None:
        """Return why the backend cannot take the problem, or None."""
        return obstacle(problem)

    def _results(self, reductions: Sequence[Reduction[Any]]) -> list[Any]:
        """Sweep once for all reductions with the same order of samples, and again for further batches of columns."""
        results = [self.reductions[type(reduction)](self, reduction) for reduction in reductions]
        orders: dict[bool, dict[int, Steps]] = {}
        for k, (reduction, result) in enumerate(zip(reductions, results, strict=True)):
            if isinstance(result, GeneratorType):
                orders.setdefault(reduction.in_given_order, {})[k] = result
        for in_given_order, steps in orders.items():
            for k, result in self._swept(steps, self._pairs(in_given_order)).items():
                results[k] = result
        return results

    def _swept(self, steps: Mapping[int, Steps], pairs: HostPairs) -> dict[int, Any]:
        """Sweep for the requests of the steps, until all have results."""
        results: dict[int, Any] = {}
        pending: dict[int, _native.Reduction] = {}

        def advance(k: int, answer: Any) -> None:
            pending.pop(k, None)
            try:
                pending[k] = steps[k].send(answer)
            except StopIteration as end:
                results[k] = end.value

        for k, step in steps.items():
            next(step)
            advance(k, pairs)
        problem = pairs.bind(self)
        while pending:
            with TerminalProgress() as progress:
                answers = problem.sweep(list(pending.values()), self._run_options(progress))
            for k, answer in zip(list(pending), answers, strict=True):
                advance(k, answer)
        return results

    def _pairs(self, in_given_order: bool) -> HostPairs:
        problem = self.problem
        left = self._prepared(problem.left, sort=not in_given_order)
        right = None if problem.right is None else self._prepared(problem.right, sort=not in_given_order)
        return HostPairs(left, right)

    def _moment_steps(self, reduction: Moments) -> Steps:
        pairs = yield None
        total, rows, columns, squares, null = yield native_moments(reduction)
        rows = pairs.left.restored(rows)
        columns = rows if pairs.right is None else pairs.right.restored(columns)
        return self.moment_sums(reduction, total, rows, columns, squares, None if null is None else NullSquares(*null))

    def _product_steps(self, reduction: Products) -> Steps:
        yield None
        vectors = np.ascontiguousarray(reduction.vectors, dtype=np.float64)
        products = np.empty((len(self.problem.left.points), vectors.shape[1]))
        for begin in range(0, vectors.shape[1], VECTORS_AT_ONCE):
            columns = slice(begin, begin + VECTORS_AT_ONCE)
            products[:, columns], _ = yield native_products(reduction, vectors[:, columns])
        return products

    def _form_steps(self, reduction: QuadraticForms) -> Steps:
        pairs = yield None
        forms, n = [np.empty(0)], len(self.problem.left.points)
        width = _native.weights_at_once(reduction.dtype, self._run_options())
        at_once = max(1, WEIGHTS_BYTES // (n * width * np.dtype(reduction.dtype).itemsize)) * width
        for batch in reduction.batches(at_once):
            sums = yield _native.QuadraticForms(self._weight_panels(batch, pairs.left.order))
            forms.append(sums[: batch.n_columns])
        return np.concatenate(forms)

    def _match_steps(self, reduction: LabelMatches) -> Steps:
        yield None
        sums = yield _native.LabelMatches(self._label_panels(reduction))
        return sums[: np.asarray(reduction.labels).shape[1]]

    def _count_steps(self, reduction: Counts) -> Steps:
        yield None
        thresholds, size = reduction.thresholds, _native.THRESHOLDS
        padded = np.full(-(-len(thresholds) // size) * size, -np.inf)
        padded[: len(thresholds)] = thresholds
        counts = []
        for part in padded.reshape(-1, size):
            counts.append((yield _native.Counts(part)))
        return np.concatenate(counts)[: len(thresholds)]

    def _range_steps(self, reduction: EntriesInRange) -> Steps:
        yield None
        return RangeEntries(*(yield _native.EntriesInRange(reduction.low, reduction.high, reduction.count)))

    def _block_sums(self, reduction: BlockSums) -> np.ndarray:
        pairs = HostPairs(self._prepared(self.problem.left, reduction.size))
        with TerminalProgress() as progress:
            return pairs.bind(self).block_sums(reduction.size, self._run_options(progress))

    def _dense_rectangle(self, reduction: DenseRectangle) -> np.ndarray:
        sides = self.problem.left.take(reduction.rows), self.problem.columns.take(reduction.columns)
        pairs = HostPairs(*(self._prepared(side, sort=False) for side in sides))
        with TerminalProgress() as progress:
            matrix: np.ndarray = pairs.bind(self).sweep([_native.DenseRectangle()], self._run_options(progress))[0]
        return matrix

    reductions: ClassVar = {
        Moments: _moment_steps,
        Products: _product_steps,
        QuadraticForms: _form_steps,
        LabelMatches: _match_steps,
        Counts: _count_steps,
        EntriesInRange: _range_steps,
        BlockSums: _block_sums,
        DenseRectangle: _dense_rectangle,
    }

    def _weight_panels(self, reduction: QuadraticForms, order: np.ndarray | None) -> list[np.ndarray]:
        """Return the weights in panels for the compiled core, in this order of samples."""
        weights, dtype = reduction.weights, reduction.dtype
        width = _native.weights_at_once(dtype, self._run_options())
        columns = (slice(c, min(reduction.n_columns, c + width)) for c in range(0, reduction.n_columns, width))
        if isinstance(weights, Weights):
            parts = (weights.values(c.start, c.stop, dtype, threads=self.threads) for c in columns)
        else:
            parts = (weights[:, c] for c in columns)
        return [_panel(part if order is None else part[order], width, dtype) for part in parts]

    def _label_panels(self, reduction: LabelMatches) -> list[np.ndarray]:
        labels = np.asarray(reduction.labels)
        width = _native.labels_at_once(self._run_options())
        return [_panel(labels[:, c : c + width], width, "int32") for c in range(0, labels.shape[1], width)]

    def _one_product(self) -> tuple[bool, np.ndarray | None]:
        """Return whether labels allow one product for distances and target factors, and the centre of its points.

        Without a centre it is the product of residuals. Predictions that are close to each other, as diffuse ones are,
        are closer than the precision of terms of size 1, and their residuals are large: then one product of points
        about their mean is used (`Quantities::both_from` in src/cpu/pairs/quantities.h). If residuals are small, too,
        as for rare events, two products are needed.
        """
        sides, points = (self.problem.left, self.problem.columns), self.problem.left.points
        least = RESIDUAL_CLASSES if self._worth_sorting else RESIDUAL_CLASSES_UNSORTED
        if points.shape[1] < least or any(s.labels is None for s in sides):
            return False, None
        if any(f.metric != "euclidean" for term in self.problem.kernel for f in term.factors):
            return False, None
        rows = sampled(points)
        mean_squared_distance, centre = spread_about(points[rows])
        if mean_squared_distance > SPREAD_OF_RESIDUALS:
            return True, None
        residuals = np.array(points[rows], dtype=np.float64)
        residuals[np.arange(len(residuals)), np.asarray(self.problem.left.labels)[rows]] -= 1
        are_large = np.einsum("ij,ij->i", residuals, residuals).min() > SMALL_RESIDUALS**2
        return are_large, centre.astype(points.dtype).astype(np.float64) if are_large else None

    def _prepared(self, side: Side, block: int | None = None, sort: bool = True) -> HostSide:
        """Return the side for the compiled core, sorted by label (within blocks) if that helps."""
        points = np.ascontiguousarray(side.points)
        n, m = points.shape
        if self.problem.predicted is not None:
            points = self._predictions(self.problem.predicted, points)
        if self.problem.target is not None:
            first = 2 + self.problem.target.n_dims
            features = bounded(self.problem.target, np.ascontiguousarray(side.features), first)
            return HostSide(points, features, None, None)
        sort = sort and self._worth_sorting and (block is None or block >= SORT_FROM)
        has_enough_classes = m >= (RESIDUAL_CLASSES if sort else RESIDUAL_CLASSES_UNSORTED)
        if not (self._by_labels and has_enough_classes):
            if self._by_labels or not side.has_residual_features:
                return HostSide(points, np.ascontiguousarray(side.features), None, None)
            return HostSide(points, None, np.ascontiguousarray(side.labels, dtype=np.int32), None)
        labels = np.ascontiguousarray(side.labels, dtype=np.int32)
        order = None
        if sort:
            keys = labels.astype(np.uint16) if m <= 2**16 else labels  # NumPy uses radix sort
            order = np.argsort(keys, kind="stable") if block is None else np.lexsort((keys, np.arange(n) // block))
        # Points that were rounded to float32 have lost digits that small residuals have.
        features = None if side.has_residual_features else np.ascontiguousarray(side.features)
        return HostSide(points, features, labels, order)

    def _predictions(self, mixtures: Mixtures, points: np.ndarray) -> np.ndarray:
        """Return points of the metric "mmd" for the compiled core, with their products with themselves."""
        points = bounded(mixtures, points, 0)
        if not has_own_products(mixtures):
            return POINT_FAMILIES[mixtures.family].rows_apart(mixtures, points)
        products = HostPairs(HostSide(points, points, None, None)).bind(self).own_products(self._run_options())
        return np.concatenate([points, products[:, None]], axis=1)

    def tiles(self, in_given_order: bool) -> CpuTiles:
        return CpuTiles(self, sort=not in_given_order)

    def _run_options(
        self, progress: Callable[[float], None] | None = None, block: int = 0, group: int = 0
    ) -> _native.RunOptions:
        return _native.RunOptions(self.threads, progress, block, group)


# A generator that yields native reductions to sweep, receives their sums, and returns a result.
Steps = Generator[Any, Any, Any]


def native_moments(reduction: Moments) -> _native.Moments:
    squares = reduction.second or reduction.null_variance
    return _native.Moments(reduction.rows or squares, squares, reduction.null_variance)


def native_products(
    reduction: Products, right: np.ndarray, left: np.ndarray | None = None, has_group_sums: bool = False
) -> _native.Products:
    single = check_choice("dtype", reduction.dtype, ("float64", "float32")) == "float32"
    left = None if left is None else np.ascontiguousarray(left)
    return _native.Products(
        np.ascontiguousarray(right), left, single=single, rounded=reduction.rounded, apart=has_group_sums
    )


def _panel(values: np.ndarray, width: int, dtype: str) -> np.ndarray:
    """Return columns, padded with zeros to `width`."""
    if values.shape[1] == width:
        return np.ascontiguousarray(values, dtype=dtype)
    panel = np.zeros((len(values), width), dtype=dtype)
    panel[:, : values.shape[1]] = values
    return panel


@dataclass(frozen=True)
class HostSide:
    """A side for the compiled core; see `Side` in src/cpu/pairs/tile.h."""

    points: np.ndarray
    features: np.ndarray | None
    labels: np.ndarray | None
    order: np.ndarray | None

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray | None]:
        return self.points, self.features, self.labels, self.order

    def part(self, rows: range) -> HostSide:
        """Return some of the samples, in the order of the sweep."""
        at = slice(rows.start, rows.stop)
        if self.order is not None:
            return replace(self, order=self.order[at])
        features, labels = (None if values is None else values[at] for values in (self.features, self.labels))
        return HostSide(self.points[at], features, labels, None)

    def gathered(self) -> HostSide:
        """Return the samples in the order of the sweep."""
        if self.order is None:
            return self
        features, labels = (None if values is None else values[self.order] for values in (self.features, self.labels))
        return HostSide(self.points[self.order], features, labels, None)

    def sorted(self, values: np.ndarray) -> np.ndarray:
        """Return values of the samples in the order of the sweep."""
        return values if self.order is None else values[self.order]

    def restored(self, values: Any) -> Any:
        """Return values of the samples (or None) in the user's order."""
        if self.order is None or values is None:
            return values
        result = np.empty_like(values)
        result[self.order] = values
        return result


@dataclass(frozen=True)
class HostPairs:
    """Both sides of a problem for the compiled core; symmetric without a right side."""

    left: HostSide
    right: HostSide | None = None

    def bind(self, backend: CpuBackend) -> _native.Problem:
        return _native.Problem(backend._kernel, self.left.arrays, None if self.right is None else self.right.arrays)


class CpuTiles(TileSweep):
    """A problem that is prepared once, and swept in rectangles of whole groups of samples.

    A sweep over all pairs adds up the pairs of each two groups, and merges these sums in order. Parts that keep the
    sums of groups separate therefore give the same sums, bit for bit.
    """

    has_group_sums = True

    def __init__(self, backend: CpuBackend, sort: bool) -> None:
        self.backend: CpuBackend = backend
        pairs = backend._pairs(in_given_order=not sort)
        self.left: HostSide = pairs.left
        self.right: HostSide = pairs.left if pairs.right is None else pairs.right
        self.block, blocks = pairs.bind(backend).groups(backend._run_options())
        self.group = self.block * blocks
        self._in_blocks: dict[int, HostSide] = {}

    def prepare(self, reduction: Reduction[Any]) -> Any:
        """Return panels of weights and labels, which may have zero columns at the end."""
        if isinstance(reduction, QuadraticForms):
            return self.backend._weight_panels(reduction, self.left.order)
        if isinstance(reduction, LabelMatches):
            return self.backend._label_panels(reduction)
        return super().prepare(reduction)

    def sweep(self, reduction: Reduction[Any], tile: Tile, grid: Grid | Runs, vectors: Any, progress: Progress) -> Part:
        if isinstance(reduction, BlockSums):
            return self._block_sums(reduction, tile, progress)
        assert isinstance(grid, Grid)
        left, right = self.left.part(tile.rows), self.right.part(tile.columns)
        native: _native.Reduction
        is_diagonal = self.backend.problem.symmetric and tile.on_diagonal
        if isinstance(reduction, Products):
            left, right = left.gathered(), right.gathered()  # as the vectors are
            transposed = (
                vectors[tile.row : tile.row_end] if self.backend.problem.symmetric and not is_diagonal else None
            )
            native = native_products(reduction, vectors[tile.column : tile.column_end], transposed, grid.has_group_sums)
        elif isinstance(reduction, Moments):
            native = native_moments(reduction)
        else:
            kind = _native.QuadraticForms if isinstance(reduction, QuadraticForms) else _native.LabelMatches
            native = kind(vectors, tile.row, tile.column)
        problem = HostPairs(left, None if is_diagonal else right).bind(self.backend)
        options = self.backend._run_options(
            progress, self.block, grid.group // self.block
        )  # the same entries, to the bit
        (sums,) = problem.sweep([native], options, merged=not grid.has_group_sums)
        return self._part_of(reduction, sums, grid)

    def _part_of(self, reduction: Reduction[Any], sums: Any, grid: Grid) -> Part:
        """Sums of the groups of rows a and of columns b: totals and squares (a, b), row sums or products (b, rows),
        column sums (a, columns; none on the diagonal), and (a, b, 2) of the null variance; merged a = b = 1."""
        if isinstance(reduction, Products | Moments):
            names = ["totals", "rows", "columns", "squares", "null"]
            if isinstance(reduction, Products):
                names = ["rows", "columns"]
            part = {name: np.asarray(v) for name, v in zip(names, sums, strict=True) if v is not None}
            if grid.has_group_sums:
                return part
            return {name: v[None] if name in ("rows", "columns") else v[None, None] for name, v in part.items()}
        sums = sums if grid.has_group_sums else sums[None, None]
        if isinstance(reduction, QuadraticForms):
            return {"forms": np.ascontiguousarray(sums[:, :, : reduction.n_columns])}
        assert isinstance(reduction, LabelMatches) and isinstance(reduction.labels, np.ndarray)
        return {"matches": np.ascontiguousarray(sums[:, :, : reduction.labels.shape[1]])}

    def _block_sums(self, reduction: BlockSums, tile: Tile, progress: Progress) -> Part:
        size, backend = reduction.size, self.backend
        if size not in self._in_blocks:
            self._in_blocks[size] = backend._prepared(backend.problem.left, size)
        part = self._in_blocks[size].part(range(tile.row * size, tile.row_end * size)).gathered()
        return {"rows": HostPairs(part).bind(backend).block_sums(size, backend._run_options(progress))[None]}


def _terms(terms: tuple[Term, ...]) -> list[tuple[float, list[tuple[int, int, float, float, float]]]]:
    """Return a kernel in normal form for the compiled core."""
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
    """Return the table of distances in row-major order; positions are checked against it."""
    if problem.table is None:
        return None
    table = np.asarray(problem.table, dtype=np.float64)
    check_positions(problem, table)
    return table if table.strides[1] == table.itemsize else np.ascontiguousarray(table)
