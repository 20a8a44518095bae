r"""The operator for points on a line: O(n log n) instead of O(n^2), and exact.

Binary problems are this case: two predictions (1 - c, c) and (1 - c', c') are sqrt(2) |c - c'|
apart (cityblock: 2 |c - c'|). A product of exponential and Matern profiles is then
exp(-s |c - c'|) times a polynomial in |c - c'|, and after sorting, K @ v is a recurrence from
the left and one from the right (src/cpu/line.cpp). Marks and inner products <x, x'> have finite
rank, so H is a sum of such K between columns:

    H_ij = sum_t sum_r left_t[i, r] K_t[i, j] right_t[j, r]

and every primitive is a few products with the K_t. `tile` is the openmp operator's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib import _native
from kcalib._operators.diagonal import diagonal
from kcalib._operators.openmp import OpenMPOperator
from kcalib._problem import Factor, Moments, PairProblem, Term
from kcalib._threads import terminal_progress

POLYNOMIALS = {"exponential": (1.0,), "matern_3_2": (1.0, 1.0), "matern_5_2": (1.0, 1.0, 1.0 / 3.0)}
VECTORS_AT_ONCE = 8  # columns of a product that are in memory together


@dataclass(frozen=True)
class LineTerm:
    """left (exp(-rate d) polynomial(d)) right^T with d the distance on the line."""

    rate: float
    polynomial: np.ndarray  # coefficients, lowest first
    left: np.ndarray  # shape: (n, r)
    right: np.ndarray  # shape: (n, r)

    def __mul__(self, other: LineTerm) -> LineTerm:
        """The product of the two entry by entry."""
        return LineTerm(
            self.rate + other.rate,
            np.convolve(self.polynomial, other.polynomial),
            _paired(self.left, other.left),
            _paired(self.right, other.right),
        )


class SortedScanOperator:
    """H of a symmetric problem on a line, by sorting and recurrences; the same bits for any number of threads."""

    name = "sorted_scan"

    def __init__(self, problem: PairProblem, *, threads: int | None = None, reason: str = "") -> None:
        self.problem = problem
        self.reason = reason
        self._dense = OpenMPOperator(problem, threads=threads)
        self.threads = self._dense.threads

    @staticmethod
    def unsuitable(problem: PairProblem) -> str | None:
        """Why the problem is not one for this operator; None if it is."""
        points = problem.left.points
        if not problem.symmetric:
            return "it takes symmetric problems only"
        if points.shape[1] > 2:
            return f"the points have {points.shape[1]} coordinates, not one or two that sum to 1"
        for term in problem.kernel:
            radial = [f for f in term.factors if f.metric != "dot"]
            if not radial or any(f.profile not in POLYNOMIALS for f in radial):
                return "the kernel is not made of exponential and Matern kernels on distances"
        if points.shape[1] == 2:
            # Off the line by more than rounding, distances would lose digits.
            gap = float(np.max(np.abs(points[:, 0] + points[:, 1] - 1)))
            if gap > 2 * np.finfo(np.float64).eps:
                return f"the two probabilities sum to 1 within {gap:.1g} only; pass those of the second class"
        return None

    def moments(self, second: bool = False, rows: bool = True) -> Moments:
        order, terms = self._sorted(self.problem.left.points.shape[0])
        line = order.line()
        row_sums = order.restored(sum((_row_sums(line, term) for term in terms), start=np.zeros(order.n)))
        squares = None
        if second:
            squares = float(sum(np.sum(_row_sums(line, a * b)) for a in terms for b in terms))
        own = diagonal(self.problem)
        return Moments(float(np.sum(row_sums)), row_sums, row_sums, own, squares, float(np.sum(own)))

    def block_sums(self, size: int) -> np.ndarray:
        n = self.problem.left.points.shape[0] // size * size
        order, terms = self._sorted(n, size)
        line = order.line()
        rows = sum((_row_sums(line, term) for term in terms), start=np.zeros(n))
        return rows.reshape(-1, size).sum(axis=1)

    def matmul(self, vectors: np.ndarray) -> np.ndarray:
        vectors = np.asarray(vectors, dtype=np.float64)
        order, terms = self._sorted(len(vectors))
        line = order.line()
        out = diagonal(self.problem)[:, None] * vectors
        for c in range(vectors.shape[1]):
            v = vectors[order.positions, c, None]
            weighted = (LineTerm(t.rate, t.polynomial, t.left, t.right * v) for t in terms)
            out[:, c] += order.restored(sum((_row_sums(line, t) for t in weighted), start=np.zeros(order.n)))
        return out

    def counts(self, thresholds: np.ndarray) -> np.ndarray:
        return self._dense.counts(thresholds)

    def between(self, low: float, high: float, count: int) -> np.ndarray:
        return self._dense.between(low, high, count)

    def tile(self, rows: Any, columns: Any) -> np.ndarray:
        return self._dense.tile(rows, columns)

    def _sorted(self, n: int, block: int | None = None) -> tuple[Order, list[LineTerm]]:
        """The first n samples sorted by their place on the line (within blocks), and H as terms."""
        side = self.problem.left
        points = np.asarray(side.points[:n], dtype=np.float64)
        marks = np.asarray(side.marks[:n], dtype=np.float64)
        place = points[:, -1]
        positions = np.argsort(place, kind="stable") if block is None else np.lexsort((place, np.arange(n) // block))
        order = Order(positions, place[positions], block, self.threads)
        points, marks = points[positions], marks[positions]
        return order, [_line_term(term, points, marks) for term in self.problem.kernel]


@dataclass(frozen=True)
class Order:
    """Samples in the order of their places on the line, block by block."""

    positions: np.ndarray  # of the sorted samples in the user's order, shape: (n,)
    places: np.ndarray  # ascending within a block, shape: (n,)
    block: int | None
    threads: int

    @property
    def n(self) -> int:
        return len(self.positions)

    def restored(self, values: np.ndarray) -> np.ndarray:
        """Values of the sorted samples in the user's order."""
        result = np.empty_like(values)
        result[self.positions] = values
        return result

    def line(self) -> Line:
        gaps = np.diff(self.places, prepend=self.places[:1])
        starts = slice(0, None, self.block if self.block is not None else self.n)
        gaps[starts] = 0.0
        return Line(gaps, starts, self.threads)


@dataclass(frozen=True)
class Line:
    """Gaps between sorted points, and where blocks start."""

    gaps: np.ndarray
    starts: slice
    threads: int

    def product(self, rate: float, polynomial: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """K @ vectors without the diagonal, within blocks."""
        decay = np.exp(-rate * self.gaps)
        decay[self.starts] = 0.0
        with terminal_progress() as progress:
            sweep = _native.Sweep(self.threads, None, progress)
            return _native.line_product(self.gaps, decay, polynomial, np.ascontiguousarray(vectors), sweep)


def _line_term(term: Term, points: np.ndarray, marks: np.ndarray) -> LineTerm:
    rate, polynomial = 0.0, np.array([term.coefficient])
    left = right = marks
    for factor in term.factors:
        if factor.metric == "dot":
            left, right = _paired(left, points), _paired(right, points)
            continue
        scale = factor.scale * _unit(factor, points.shape[1])
        rate += scale
        base = np.array(POLYNOMIALS[factor.profile])
        polynomial = np.convolve(polynomial, base * scale ** np.arange(len(base)))
    return LineTerm(rate, polynomial, left, right)


def _unit(factor: Factor, n_features: int) -> float:
    """Distance of two points whose last coordinates are 1 apart."""
    if n_features == 1:
        return 1.0
    return math.sqrt(2.0) if factor.metric == "euclidean" else 2.0


def _paired(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Products of each column of a with each of b."""
    return np.reshape(a[:, :, None] * b[:, None, :], (len(a), -1))


def _row_sums(line: Line, term: LineTerm) -> np.ndarray:
    total = np.zeros(len(term.left))
    for columns in _groups(term.right.shape[1]):
        product = line.product(term.rate, term.polynomial, term.right[:, columns])
        total += np.sum(term.left[:, columns] * product, axis=1)
    return total


def _groups(count: int) -> Iterator[slice]:
    for begin in range(0, count, VECTORS_AT_ONCE):
        yield slice(begin, min(count, begin + VECTORS_AT_ONCE))
