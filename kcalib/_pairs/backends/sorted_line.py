r"""The backend for points on a line: O(n log n) instead of O(n^2), and exact.

Binary problems are this case: two predictions (1 - c, c) and (1 - c', c') are sqrt(2) |c - c'|
apart (cityblock: 2 |c - c'|). A product of exponential and Matern profiles is then
exp(-s |c - c'|) times a polynomial in |c - c'|, and after sorting, K @ v is a recurrence from
the left and one from the right (src/cpu/line/line_product.cpp). Features and inner products <x, x'> have finite
rank, so H is a sum of such K between columns:

    H_ij = sum_t sum_r left_t[i, r] K_t[i, j] right_t[j, r]

and every reduction is a few products with the K_t. Sums over the pairs of residuals of binary
labels take less on the CPU: place and label of a sample follow from its residual, so these numbers are sorted
and nothing else (`BinaryResiduals`). Rectangular problems put both sides on one line. CuPy arrays are sorted
and scanned on their device (`sorted_cuda.DeviceOrder`). What looks at single entries (counts, ranges, dense
rectangles) is the cpu backend's, of CuPy arrays the cuda backend's.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.random import BinaryDraws, Weights
from kcalib._backend.threads import TerminalProgress, resolve_threads
from kcalib._pairs.backends import sorted_cuda
from kcalib._pairs.backends.base import Backend, diagonal
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.backends.cuda import CudaBackend
from kcalib._pairs.backends.sorted_cuda import DeviceOrder, LineTerm, column_products
from kcalib._pairs.problem import Factor, PairProblem, Side, Term
from kcalib._pairs.reductions import (
    BlockSums,
    Counts,
    DenseRectangle,
    EntriesInRange,
    LabelMatches,
    Moments,
    MomentSums,
    Products,
    QuadraticForms,
    sweep_one,
)

POLYNOMIALS = {"exponential": (1.0,), "matern_3_2": (1.0, 1.0), "matern_5_2": (1.0, 1.0, 1.0 / 3.0)}
WEIGHTS_AT_ONCE = 2**28  # bytes of resampling weights in memory
SORT_IN_THREADS_FROM = 100_000  # samples; below, a thread takes longer to start than to sort
EPSILON = float(np.finfo(np.float64).eps)
ON_THE_LINE = 2 * EPSILON  # two probabilities may sum to 1 within this
ON_THE_LINE_SINGLE = 2 * float(np.finfo(np.float32).eps)  # in float32
OFF_IN_BANDWIDTHS = 1e-5  # by what is off the line, distances in float32 may be off by so much of a bandwidth


class SortedBackend(Backend):
    """H of a problem on a line, by sorting and recurrences; the same bits for any number of threads."""

    name = "sorted"
    on_a_line = True

    def __init__(self, problem: PairProblem, *, threads: int | None = None, reason: str = "") -> None:
        super().__init__(problem, reason=reason)
        self.threads = resolve_threads(threads) if arrays.is_host(problem.left.points_or_seconds) else None
        self.options = frozenset() if self.threads is None else frozenset({"features"})
        self._sorted_by: SortedBackend | None = None

    def like(self, problem: PairProblem) -> SortedBackend:
        """Return the backend of another problem of these predictions, with a kernel made of this one.

        They are on the line as they are here, also with a narrower kernel or before they were rounded to float32.
        Samples at the same points are sorted once for both.
        """
        assert _without_sums(problem) is None
        backend = SortedBackend(problem, threads=self.threads, reason=self.reason)
        if problem.left.points is self.problem.left.points and problem.right is None and self.problem.right is None:
            backend._sorted_by = self
        return backend

    @staticmethod
    def unsuitable(problem: PairProblem) -> str | None:
        """Return why the problem is not one for this backend; None if it is."""
        obstacle = _without_sums(problem)
        if obstacle is None and problem.left.n_coordinates == 2:
            # Off the line by more than rounding, distances would lose digits: each is off by twice the gap.
            sides = (side for side in (problem.left, problem.right) if side is not None and side.seconds is None)
            gap = max((off_line(side.points) for side in sides), default=0.0)
            if gap > _largest_gap(problem):
                return f"the two probabilities sum to 1 within {gap:.1g} only; pass those of the second class"
        return obstacle

    def _moments(self, reduction: Moments) -> MomentSums:
        problem = self.problem
        sums = self._sums_of_residuals(reduction.second)
        if sums is not None and not reduction.rows:
            return sums
        order, terms = self._order, self._terms
        row_sums = column_sums = order.row_sums(terms)
        if not problem.symmetric:
            n_left = len(problem.left.points)
            swapped = [LineTerm(t.rate, t.polynomial, t.right, t.left) for t in terms]
            row_sums, column_sums = row_sums[:n_left], order.row_sums(swapped)[n_left:]
        entries = diagonal(problem, self.threads or 1) if reduction.trace and problem.symmetric else None
        if sums is None:
            squares = None
            if reduction.second:
                squares = float(sum(_total(order.row_sums([a * b])) for a in terms for b in terms))
            trace = None if entries is None else _total(entries)
            sums = MomentSums(_total(row_sums), None, None, None, squares, trace)
        if not reduction.rows:
            return sums
        return replace(sums, row_sums=row_sums, column_sums=column_sums, diagonal=entries)

    def _block_sums(self, reduction: BlockSums) -> Array:
        size = reduction.size
        order = self._sorted(size)
        rows = order.row_sums(self._terms_of(order, order.residuals))
        if arrays.is_host(rows):
            return rows.reshape(-1, size).sum(axis=1)
        return sorted_cuda.group_sums(rows, len(rows) // size, size)[:, 0]

    def _products(self, reduction: Products) -> Array:
        """Multiply in float64, whatever the dtype allows: reading and writing vectors takes the time."""
        xp = arrays.namespace(self.problem.left.points)
        vectors = xp.asarray(reduction.vectors, dtype=xp.float64)
        n_left = len(self.problem.left.points)
        first = 0 if self.problem.symmetric else n_left
        return self._order.product(self._terms, vectors, first=first, n_rows=n_left)

    def _quadratic_forms(self, reduction: QuadraticForms) -> Array:
        """Compute in float64, whatever the dtype allows: products take little of the time."""
        weights = reduction.weights
        if weights.n_replicates == 0 if isinstance(weights, Weights) else weights.shape[1] == 0:
            xp = arrays.namespace(self.problem.left.points)
            return xp.empty(0, dtype=xp.float64)
        signs = isinstance(weights, Weights) and weights.kind == "rademacher" and weights.first == 0
        order = self._order
        terms = self._terms_of(order, order.residuals_for_totals) if signs else self._terms
        if isinstance(order, DeviceOrder):
            return order.forms(terms, weights)
        packed = [(t.rate, t.polynomial, _as_rows(t.left)) for t in terms]

        def forms(values: np.ndarray | None, seed: int, count: int) -> np.ndarray:
            with TerminalProgress() as progress:
                options = _native.RunOptions(self.threads or 1, progress)
                return _native.line_forms(order.places, order.positions, packed, values, seed, count, options)

        if not isinstance(weights, Weights):
            values = np.ascontiguousarray(weights, dtype=np.float64)
            return forms(values, 0, values.shape[1])
        if signs:
            return forms(None, weights.seed, weights.n_replicates)
        step = max(8, WEIGHTS_AT_ONCE // (8 * weights.n))
        ranges = [(b, min(b + step, weights.n_replicates)) for b in range(0, weights.n_replicates, step)]
        parts = [forms(weights.values(begin, end, threads=self.threads), 0, end - begin) for begin, end in ranges]
        return np.concatenate(parts)

    def _label_totals(self, reduction: LabelMatches) -> np.ndarray:
        """Labels are 0 and 1, in host memory, or drawn where they are needed and never stored but as bits, 64 bytes a
        sample and thread."""
        order, labels = self._order, reduction.labels
        assert reduction.features is not None
        features = reduction.features[order.positions]
        terms = [
            (t.rate, t.polynomial, _as_rows(*(column_products(t.left, features[:, label]) for label in range(2))))
            for t in self._terms
        ]
        with TerminalProgress() as progress:
            options = _native.RunOptions(self.threads or 1, progress)
            if isinstance(labels, BinaryDraws):
                draw_arguments = labels.thresholds, *labels.key, labels.n_draws
                return _native.line_drawn_forms(order.places, order.positions, terms, *draw_arguments, options)
            return _native.line_label_forms(order.places, order.positions, terms, labels, options)

    def _of_blocks(self, reduction: Counts | EntriesInRange | DenseRectangle) -> Any:
        """Compute reductions of single entries on a backend that visits blocks of H."""
        if arrays.is_host(self.problem.left.points):
            return sweep_one(CpuBackend(self.problem, threads=self.threads), reduction)
        return sweep_one(CudaBackend(self.problem), reduction)

    reductions: ClassVar = {
        Moments: _moments,
        BlockSums: _block_sums,
        Products: _products,
        QuadraticForms: _quadratic_forms,
        LabelMatches: _label_totals,
        Counts: _of_blocks,
        EntriesInRange: _of_blocks,
        DenseRectangle: _of_blocks,
    }

    @property
    def _has_binary_residuals(self) -> bool:
        """Whether H_ij is 2 k(x_i, x_j) r_i r_j with a kernel of distances and the residuals of binary labels."""
        left = self.problem.left
        if self.problem.right is not None or left.labels is None or left.n_coordinates != 2:
            return False
        # Residuals in float32 were rounded after the subtraction, not before.
        return left.points_or_seconds.dtype == arrays.namespace(left.points_or_seconds).float64 and not self._has_dot

    @property
    def _has_dot(self) -> bool:
        return any(factor.metric == "dot" for term in self.problem.kernel for factor in term.factors)

    def _sums_of_residuals(self, second: bool) -> MomentSums | None:
        if not self._has_binary_residuals or self.threads is None:
            return None
        return BinaryResiduals.sorted(self.problem.left, self.threads).sums(self.problem.kernel, second)

    @cached_property
    def _order(self) -> Order | DeviceOrder:
        """The order of all samples, which are sorted once for all calls."""
        if self._sorted_by is None:
            return self._sorted(None)
        same_labels = self.problem.left.labels is self._sorted_by.problem.left.labels
        order = self._sorted_by._order
        return order if same_labels else replace(order, residuals=None, residuals_for_totals=None)

    @cached_property
    def _terms(self) -> list[LineTerm]:
        """H between the samples of `_order`, to full precision in every entry."""
        return self._terms_of(self._order, self._order.residuals)

    def _sorted(self, block: int | None) -> Order | DeviceOrder:
        """Return the samples sorted by their place on the line, all or within whole blocks."""
        left, right = self.problem.left, self.problem.right
        points = left.points if right is None else _concatenated(left.points, right.points)
        n = len(points) if block is None else len(points) // block * block
        labels = left.labels if self._has_binary_residuals else None
        if self.threads is None:
            return DeviceOrder.of(points[:n], labels, block or n)
        return Order.of(points[:n], labels, block or n, self.threads)

    def _terms_of(self, order: Order | DeviceOrder, residuals: Array | None) -> list[LineTerm]:
        """Return H between the sorted samples, as terms; with `residuals`, if there are any, for features.

        A rectangular H is between samples of the left, whose right features are 0, and those of the right, whose
        left features are.
        """
        left, right = self.problem.left, self.problem.right
        zeros_like = arrays.namespace(left.points).zeros_like
        features = residuals
        if features is None:
            features = left.features if right is None else _concatenated(left.features, zeros_like(right.features))
            features = _float64(features[order.positions])
        columns = features
        if right is not None:
            columns = _float64(_concatenated(zeros_like(left.features), right.features)[order.positions])
        points = left.points[:0]
        if self._has_dot:
            points = left.points if right is None else _concatenated(left.points, right.points)
            points = points[order.positions]
        return [_line_term(term, _float64(points), features, columns) for term in self.problem.kernel]


@dataclass(frozen=True)
class BinaryResiduals:
    """Residuals (-r, r) of binary labels, sorted: H_ij = 2 k(x_i, x_j) r_i r_j.

    Two probabilities that do not quite sum to 1 have a residual (d - r, d + r), and H_ij has another
    2 k d_i d_j. Each d is below rounding, and their sum tells when all of them are.
    """

    sizes: np.ndarray  # |r| of label 0 ascending, infinity, -infinity, of label 1 ascending; shape: (n + 2,)
    n_zeros: int  # samples of label 0
    off_line: float  # sum of |d|
    square_norms: float  # sum of 2 r^2 + 2 d^2
    threads: int

    @classmethod
    def sorted(cls, side: Side, threads: int) -> BinaryResiduals:
        labels, points = np.ascontiguousarray(side.labels, dtype=np.int64), np.ascontiguousarray(side.points_or_seconds)
        with TerminalProgress() as progress:
            options = _native.RunOptions(threads, progress)
            sizes, n_zeros, off, square_norms = _native.line_residuals(points, labels, options)
        parts = (sizes[:n_zeros], sizes[n_zeros + 2 :])
        if threads > 1 and len(sizes) >= SORT_IN_THREADS_FROM:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(np.ndarray.sort, parts))
        else:
            for part in parts:
                part.sort()
        return cls(sizes, n_zeros, off, square_norms, threads)

    def sums(self, kernel: tuple[Term, ...], second: bool) -> MomentSums | None:
        """Return the moments without rows; None if what is off the line counts."""
        terms = [_radial(term, n_coordinates=2) for term in kernel]
        total, size = np.sum([self._pair_sums(*term, squared=False) for term in terms], axis=0)
        highest = sum(term.coefficient for term in kernel)
        left_out = 2 * highest * self.off_line**2
        squares = None
        if second:
            products = [(a[0] + b[0], np.convolve(a[1], b[1])) for a in terms for b in terms]
            squares = 8 * float(np.sum([self._pair_sums(*product, squared=True)[0] for product in products]))
        if left_out > EPSILON * min(4 * size, math.inf if squares is None else math.sqrt(squares)):
            return None
        return MomentSums(4 * float(total), None, None, None, squares, highest * self.square_norms)

    def _pair_sums(self, rate: float, polynomial: np.ndarray, *, squared: bool) -> tuple[float, float]:
        with TerminalProgress() as progress:
            options = _native.RunOptions(self.threads, progress)
            return _native.line_total(self.sizes, self.n_zeros, rate, polynomial, squared, options)


@dataclass(frozen=True)
class Order:
    """Samples in the order of their places on the line, block by block."""

    positions: np.ndarray  # of the sorted samples in the user's order, shape: (n,)
    places: np.ndarray  # ascending within a block, shape: (n,)
    block: int
    threads: int
    # sqrt(2) r of the sorted samples, shape (n, 1), of binary labels; see `BinaryResiduals`. None without
    # labels, and where what is off the line counts in an entry of H (in a sum of them all).
    residuals: np.ndarray | None
    residuals_for_totals: np.ndarray | None

    @classmethod
    def of(cls, points: np.ndarray, labels: np.ndarray | None, block: int, threads: int) -> Order:
        """Sort samples by their last coordinates, with residuals if there are labels."""
        points = np.ascontiguousarray(points, dtype=np.float64)
        labels = None if labels is None else np.ascontiguousarray(labels, dtype=np.int64)
        with TerminalProgress() as progress:
            options = _native.RunOptions(threads, progress)
            positions, places, values, off, norms, worst = _native.line_order(points, labels, block, options)
        residuals = None if values is None else values[:, None]
        in_entries = residuals if worst**2 <= EPSILON else None
        in_totals = residuals if 2 * off**2 <= EPSILON * norms else None
        return cls(positions, places, block, threads, in_entries, in_totals)

    def row_sums(self, terms: list[LineTerm]) -> np.ndarray:
        """Return row sums of H without its diagonal, within blocks, in the user's order."""
        return self.product(terms, None, first=0, n_rows=len(self.positions))[:, 0]

    def product(self, terms: list[LineTerm], vectors: np.ndarray | None, *, first: int, n_rows: int) -> np.ndarray:
        """Return H @ vectors of the samples from the number `first` on, the rows of the first `n_rows` samples.

        Without vectors: sums of rows, from which the diagonal is left out.
        """
        if vectors is not None and vectors.shape[1] == 0:
            return np.empty((n_rows, 0))
        if vectors is not None and (vectors.strides[1] != vectors.itemsize or not vectors.flags.aligned):
            vectors = np.ascontiguousarray(vectors)
        packed = [(t.rate, t.polynomial, t.left, t.right) for t in terms]
        with TerminalProgress() as progress:
            options = _native.RunOptions(self.threads, progress)
            return _native.line_product(
                self.places, self.positions, self.block, packed, vectors is not None, vectors, first, n_rows, options
            )


def _without_sums(problem: PairProblem) -> str | None:
    """Return why the problem has no sums in O(n log n), if two probabilities sum to 1; None if it has."""
    n_coordinates = problem.left.n_coordinates
    if problem.target is not None or problem.predicted is not None or problem.table is not None:
        return "the predictions are distributions, not probabilities of two classes"
    if n_coordinates > 2:
        return f"the points have {n_coordinates} coordinates, not one or two that sum to 1"
    for term in problem.kernel:
        radial = [f for f in term.factors if f.metric != "dot"]
        if not radial or any(f.profile not in POLYNOMIALS for f in radial):
            return "the kernel is not made of exponential and Matern kernels on distances"
    return None


def _largest_gap(problem: PairProblem) -> float:
    """Return how far from 1 the sum of two probabilities may be."""
    points = problem.left.points_or_seconds
    if points.dtype == arrays.namespace(points).float64:
        return ON_THE_LINE
    rate = max(_radial(term, 2)[0] for term in problem.kernel)
    return max(ON_THE_LINE, min(ON_THE_LINE_SINGLE, OFF_IN_BANDWIDTHS / (2 * rate)))


def off_line(points: Array) -> float:
    """Return the largest |p + q - 1| of points (p, q)."""
    if not arrays.is_host(points):
        return sorted_cuda.off_line(points)
    options = _native.RunOptions(resolve_threads())
    return _native.line_gap(np.ascontiguousarray(points, dtype=np.float64), options)


def _total(values: Array) -> float:
    return float(np.sum(values)) if arrays.is_host(values) else sorted_cuda.total(values)


def _concatenated(first: Array, second: Array) -> Array:
    if arrays.is_host(first):
        return np.concatenate([first, second])
    return arrays.namespace(first).concat([first, second])


def _as_rows(*columns: np.ndarray) -> np.ndarray:
    """Return columns of factors as compiled code reads them, shape (len(columns), rank, n)."""
    if len(columns) == 1:  # of one column not even copied
        return np.ascontiguousarray(columns[0].T)[None]
    return np.ascontiguousarray(np.stack([block.T for block in columns]))


def _float64(array: Array) -> Array:
    xp = arrays.namespace(array)
    return xp.asarray(array, dtype=xp.float64)


def _line_term(term: Term, points: Array, left: Array, right: Array) -> LineTerm:
    rate, polynomial = _radial(term, points.shape[1])
    for factor in term.factors:
        if factor.metric == "dot":
            is_symmetric = left is right
            left = column_products(left, points)
            right = left if is_symmetric else column_products(right, points)
    return LineTerm(rate, polynomial, left, right)


def _radial(term: Term, n_coordinates: int) -> tuple[float, np.ndarray]:
    """Return the rate and polynomial of the factors that see distances, in units of the last coordinate."""
    rate, polynomial = 0.0, np.array([term.coefficient])
    for factor in term.factors:
        if factor.metric != "dot":
            scale = factor.scale * _unit(factor, n_coordinates)
            rate += scale
            base = np.array(POLYNOMIALS[factor.profile])
            polynomial = np.convolve(polynomial, base * scale ** np.arange(len(base)))
    return rate, polynomial


def _unit(factor: Factor, n_coordinates: int) -> float:
    """Return the distance of two points whose last coordinates are 1 apart."""
    if n_coordinates == 1:
        return 1.0
    return math.sqrt(2.0) if factor.metric == "euclidean" else 2.0
