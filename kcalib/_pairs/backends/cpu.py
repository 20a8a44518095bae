"""The CPU backend: hands contiguous NumPy arrays to the compiled sweeps in `_native`.

Residuals of class labels, signed measures (`Mixtures`; products in src/cpu/pairs/mixture_kernels.cpp), and distances of
points, of mixtures, and from a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kcalib import _native
from kcalib._backend.compensated import compensated
from kcalib._backend.options import check_choice
from kcalib._backend.random import Weights
from kcalib._backend.threads import TerminalProgress, resolve_threads
from kcalib._pairs.backends.at_locations import AtLocations
from kcalib._pairs.backends.compared_labels import label_forms
from kcalib._pairs.backends.diagonal import diagonal
from kcalib._pairs.backends.digits import sampled, spread_about
from kcalib._pairs.backends.mixture_rows import bounded, check_positions, has_own_products, obstacle
from kcalib._pairs.families import POINT_FAMILIES
from kcalib._pairs.problem import Mixtures, Moments, PairProblem, Side, Term
from kcalib._pairs.profiles import PROFILES

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
IN_UNITS = "units"  # in place of the dtype of products: entries as comparisons of labels have them
WEIGHTS_BYTES = 2**28  # of packed resampling weights in memory at a time


class CpuBackend:
    """H in tiles, in parallel; the same bits for any number of threads."""

    name = "cpu"
    on_a_line = False
    parallel = None
    entry_cost = 1.0

    def __init__(
        self, problem: PairProblem, *, threads: int | None = None, reason: str = "", level: str | None = None
    ) -> None:
        self.problem = problem
        self.reason = reason
        self.threads = resolve_threads(threads)
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

    @staticmethod
    def unsuitable(problem: PairProblem) -> str | None:
        """Why the problem is not one for this backend; None if it is."""
        return obstacle(problem)

    def moments(self, second: bool = False, rows: bool = True, trace: bool = True) -> Moments:
        return self._moments(second, rows, trace)[0]

    def moments_and_expectation(self) -> tuple[Moments, tuple[float, float]]:
        """`moments` with the sum of squares, and by the same sweep the mean of this over labels given the points.

        Of symmetric problems of labels, whose residuals the marks are: sum_{i != j} k_ij^2 tr(V_i V_j), V_i = diag(x_i)
        - x_i x_i^T. And the sum of k_ij^2 <x_i, x_j>, of which roundings are a share: where predictions are nearly
        certain it is much larger. The moments have the bits that they have alone.
        """
        moments, expectation = self._moments(True, True, True, expected=True)
        assert expectation is not None
        return moments, expectation

    def _moments(
        self, second: bool, rows: bool, trace: bool, expected: bool = False
    ) -> tuple[Moments, tuple[float, float] | None]:
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
        return Moments(total, row_sums, column_sums, None, squares, None), expectation

    def _completed(self, total: float, row_sums: np.ndarray | None, squares: float | None) -> Moments:
        """Sums of a symmetric problem, with the diagonal."""
        own = diagonal(self.problem, self.threads)
        return Moments(total, row_sums, row_sums, own, squares, float(np.sum(own)))

    def block_sums(self, size: int) -> np.ndarray:
        return self._run(_native.block_sums, *self._prepared(self.problem.left, size).arrays, size=size)

    def matmul(self, vectors: np.ndarray, *, dtype: str = "float64") -> np.ndarray:
        problem = self.problem
        single = check_choice("dtype", dtype, ("float64", "float32")) == "float32"
        if vectors.shape[1] == 0:
            return np.empty((len(problem.left.points), 0))
        left = self._prepared(problem.left)
        right = left if problem.right is None else self._prepared(problem.right)
        vectors = np.ascontiguousarray(vectors, dtype=np.float64)
        arrays = *left.arrays, *right.arrays
        return self._run(_native.matmul, *arrays, problem.symmetric, vectors=vectors, single=single)[0]

    def quadratic_forms(self, weights: np.ndarray | Weights, *, dtype: str = "float64") -> np.ndarray:
        side, forms = self._prepared(self.problem.left), [np.empty(0)]
        for begin, end, panels in self._batches(weights, dtype, side.order):
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

    def label_forms(
        self, probabilities: np.ndarray, labels: np.ndarray, batches: Iterable[np.ndarray]
    ) -> tuple[float, np.ndarray]:
        """See `compared_labels.label_forms`."""
        return label_forms(self, probabilities, labels, batches)

    def rounded_products(self, vectors: np.ndarray) -> np.ndarray:
        side = self._prepared(self.problem.left, sort=False)
        sides = *side.arrays, *side.arrays, True
        found: np.ndarray = self._run(_native.matmul, *sides, vectors=vectors, single=False, in_units=True)[0]
        return found

    def matches(self, labels: np.ndarray, *others: np.ndarray) -> np.ndarray:
        side = self._prepared(self.problem.left, sort=False)
        wholes = [np.ascontiguousarray(some, dtype=LABELS) for some in (labels, *others)]
        parts = [self._label_panels(some, 0, some.shape[1]) for some in wholes]
        found = self._run(_native.matches, *side.arrays, panels=[panel for part in parts for panel in part])
        sums, first = [], 0
        for some, part in zip(wholes, parts, strict=True):
            sums.append(found[first : first + len(part)].reshape(-1)[: some.shape[1]])
            first += len(part)
        return np.concatenate(sums)

    def _label_panels(self, labels: np.ndarray, begin: int, end: int) -> list[np.ndarray]:
        width = _native.labels_at_once(self._sweep())
        return [self._panel(labels, c, min(end, c + width), width, LABELS) for c in range(begin, end, width)]

    @property
    def at_locations(self) -> AtLocations | None:
        return AtLocations.of(self.problem, self._run)

    def counts(self, thresholds: np.ndarray) -> np.ndarray:
        """Number of pairs i < j with H_ij below each threshold, shape and order of `thresholds`."""
        side = self._prepared(self.problem.left)
        padded = np.full(-(-len(thresholds) // _native.THRESHOLDS) * _native.THRESHOLDS, -np.inf)
        padded[: len(thresholds)] = thresholds
        parts = [
            self._run(_native.counts, *side.arrays, thresholds=part) for part in padded.reshape(-1, _native.THRESHOLDS)
        ]
        return np.concatenate(parts)[: len(thresholds)]

    def between(self, low: float, high: float, count: int) -> np.ndarray:
        """The `count` entries H_ij, i < j, in [low, high), in no order."""
        values, found, _ = self.some_between(low, high, count)
        assert found == count
        return values

    def some_between(self, low: float, high: float, most: int) -> tuple[np.ndarray, int, int]:
        """So many of these entries, how many there are, and how many are below `low`: by one sweep."""
        side = self._prepared(self.problem.left)
        return self._run(_native.between, *side.arrays, low=low, high=high, most=most)

    def tile(self, rows: Any, columns: Any) -> np.ndarray:
        left, right = self.problem.left.take(rows), self.problem.columns.take(columns)
        arrays = [a for side in (left, right) for a in self._prepared(side, sort=False).arrays]
        return self._run(_native.entries, *arrays, False)

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

    def cut(self, sort: bool = True) -> Cut:
        """The problem prepared once, to be computed in rectangles; what compares labels does without `sort`."""
        left = self._prepared(self.problem.left, sort=sort)
        right = left if self.problem.right is None else self._prepared(self.problem.right, sort=sort)
        return Cut(self, left, right)

    def _sweep(self, progress: Callable[[float], None] | None = None, block: int = 0, group: int = 0) -> _native.Sweep:
        return _native.Sweep(self.threads, self._level, progress, block, group)

    def _run(self, function: Any, *arrays_and_flags: Any, **options: Any) -> Any:
        with TerminalProgress() as progress:
            return function(*arrays_and_flags, kernel=self._kernel, sweep=self._sweep(progress), **options)


# Totals, row sums, column sums, squares, expectations.
Parts = tuple[np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray | None, np.ndarray | None]
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


class Cut:
    """A problem whose sums come rectangle by rectangle: rows and columns are counted in the order of summation.

    A sweep over all pairs adds up the pairs of two groups of `group` samples by themselves, and merges these sums in
    order. Rectangles of whole groups that keep them apart make up the same sums, bit for bit.
    """

    apart = True

    def __init__(self, backend: CpuBackend, left: HostSide, right: HostSide) -> None:
        self._backend = backend
        self.left, self.right = left, right
        self.symmetric = backend.problem.symmetric
        kernel, sweep = backend._kernel, backend._sweep()
        block, blocks = _native.groups(*left.arrays, *right.arrays, self.symmetric, kernel, sweep)
        self.block = block
        self.group = block * blocks
        self._in_blocks: dict[int, HostSide] = {}

    def moments(
        self,
        rows: range,
        columns: range,
        group: int,
        *,
        second: bool,
        with_rows: bool,
        apart: bool,
        expected: bool = False,
        progress: Callable[[float], None] | None = None,
    ) -> Parts:
        """Totals (a, b), row sums (b, rows), column sums (a, columns; None on the diagonal) and squares (a, b).

        Of the groups of `group` samples of rows a and of columns b; with `apart` False all are merged, and a = b = 1.
        With `expected` also (a, b, 2) of what `moments_and_expectation` adds.
        """
        function = _native.moment_parts if apart else _native.moments
        options = {"rows": with_rows, "second": second, "expected": expected}
        found: Parts = self._of_part(function, rows, columns, group, progress, **options)
        if apart:
            return found
        total, row_sums, column_sums, squares, expectation = found
        row_parts, column_parts = (None if sums is None else sums[None, :] for sums in (row_sums, column_sums))
        of_squares, of_expected = (None if sums is None else np.array([[sums]]) for sums in (squares, expectation))
        return np.array([[total]]), row_parts, column_parts, of_squares, of_expected

    def matmul(
        self,
        rows: range,
        columns: range,
        vectors: np.ndarray,
        *,
        dtype: str,
        both: bool,
        progress: Callable[[float], None] | None = None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """H[rows, columns] @ vectors[columns]; `both`: and H[rows, columns]^T @ vectors[rows], off the diagonal.

        Of the dtype `IN_UNITS` with entries as `matches` has them.
        """
        own = self.symmetric and rows == columns
        left, right = self.left.part(rows).gathered(), self.right.part(columns).gathered()
        on_right = np.ascontiguousarray(vectors[columns.start : columns.stop])
        on_left = np.ascontiguousarray(vectors[rows.start : rows.stop]) if both and not own else None
        sweep = self._backend._sweep(progress, self.block, self.group // self.block)  # the same entries, to the bit
        arguments = (*left.arrays, *right.arrays, own, self._backend._kernel, sweep)
        how = dtype == "float32", on_left, dtype == IN_UNITS
        return _native.matmul(*arguments, on_right, *how)

    def weights(self, weights: np.ndarray | Weights, begin: int, end: int, dtype: str) -> list[np.ndarray]:
        """Columns [begin, end) of weights as `forms` takes them, or, of the dtype `LABELS`, of labels for `matches`."""
        return self._backend._panels(weights, begin, end, dtype, self.left.order)

    def forms(
        self,
        rows: range,
        columns: range,
        group: int,
        weights: list[np.ndarray],
        *,
        apart: bool,
        progress: Callable[[float], None] | None = None,
    ) -> np.ndarray:
        """w[rows]^T H[rows, columns] w[columns], of the groups of `group` samples a and b: shape (a, b, weights).

        With what `weights` returns, which may have columns of zeros at its end; with `apart` False a = b = 1.
        """
        options = {"first_panel": weights[0], "first_row": rows.start, "first_column": columns.start}
        found = self._of_part(_native.quadratic_parts, rows, columns, group, progress, panels=weights, **options)
        return self._merged(found.reshape(*found.shape[:2], -1), apart)

    def matches(
        self,
        rows: range,
        columns: range,
        group: int,
        labels: list[np.ndarray],
        *,
        apart: bool,
        progress: Callable[[float], None] | None = None,
    ) -> np.ndarray:
        """The same of the sums of rounded entries over pairs i != j with equal labels, as `weights` returns these."""
        options = {"first_row": rows.start, "first_column": columns.start}
        found = self._of_part(_native.match_parts, rows, columns, group, progress, panels=labels, **options)
        return self._merged(found, apart)

    def block_sums(self, size: int, blocks: range, progress: Callable[[float], None] | None = None) -> np.ndarray:
        """The sums of these of the consecutive diagonal blocks."""
        if size not in self._in_blocks:
            self._in_blocks[size] = self._backend._prepared(self._backend.problem.left, size)
        part = self._in_blocks[size].part(range(blocks.start * size, blocks.stop * size)).gathered()
        return _native.block_sums(
            *part.arrays, kernel=self._backend._kernel, sweep=self._backend._sweep(progress), size=size
        )

    def _of_part(
        self,
        function: Any,
        rows_of: range,
        columns: range,
        group: int,
        progress: Callable[[float], None] | None,
        **options: Any,
    ) -> Any:
        """What a function of the compiled core makes of a rectangle."""
        own = self.symmetric and rows_of == columns
        left = self.left.part(rows_of)
        right = left if own else self.right.part(columns)
        sweep = self._backend._sweep(progress, self.block, group // self.block)
        return function(*left.arrays, *right.arrays, own, self._backend._kernel, sweep, **options)

    @staticmethod
    def _merged(parts: np.ndarray, apart: bool) -> np.ndarray:
        return parts if apart else compensated(parts.reshape(-1, parts.shape[2]))[None, None, :]


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
