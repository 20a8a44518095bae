"""Points on a line, on an NVIDIA GPU: the samples' order, products, quadratic forms and distances.

`sorted` has one `Order` for NumPy arrays, whose loops are compiled (src/cpu/line/*.cpp), and `DeviceOrder` for CuPy
arrays: CuPy sorts, src/cuda/line.cu scans, and src/cuda/places.cu adds up, in an order that the number of samples alone
decides. `SortedPlaces` counts and lists distances for `bandwidth`. Arrays stay on their device; only sums come back.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.cuda import Program, define
from kcalib._backend.random import Weights, draw_on_device

CHUNK, PIECE, THRESHOLDS = 32, 32, 8  # what a thread has: points or nodes, numbers, and counts
COLUMNS = 4  # of a thread, where there are several
WEIGHTS_BYTES = 2**28  # of resampling weights at a time
HALF_THE_DIGITS = 2.0**-26
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class LineTerm:
    """left (exp(-rate d) polynomial(d)) right^T with d the distance on the line."""

    rate: float
    polynomial: np.ndarray  # coefficients, lowest first
    left: Array  # shape: (n, r)
    right: Array  # shape: (n, r)

    def __mul__(self, other: LineTerm) -> LineTerm:
        """Return the product of the two entry by entry."""
        return LineTerm(
            self.rate + other.rate,
            np.convolve(self.polynomial, other.polynomial),
            column_products(self.left, other.left),
            column_products(self.right, other.right),
        )


def column_products(a: Array, b: Array) -> Array:
    """Return the products of each column of a with each of b."""
    return arrays.namespace(a).reshape(a[:, :, None] * b[:, None, :], (len(a), -1))


def scan_program(degree: int, columns: int) -> Program:
    """What scans polynomials of a degree, `columns` columns a thread."""
    return Program(("include/kcalib/math.h", "cuda/line.cu"), define(DEGREE=degree, COLUMNS=columns, CHUNK=CHUNK))


def places_program() -> Program:
    return Program(("include/kcalib/math.h", "cuda/places.cu"), define(PIECE=PIECE, THRESHOLDS=THRESHOLDS))


def off_line(points: Array) -> float:
    """Return the largest |p + q - 1| of points (p, q)."""
    xp = arrays.namespace(points)
    p, q = (xp.astype(points[:, k], xp.float64, copy=False) for k in (0, 1))
    return float(xp.max(xp.abs(1 - xp.maximum(p, q) - xp.minimum(p, q))))  # 1 - x is exact for the larger of the two


def group_sums(values: Array, groups: int, size: int, count: int = 1) -> Array:
    """Sums over the middle axis of `values`, which has the shape (groups, size, count); shape (groups, count)."""
    xp = arrays.namespace(values)
    values = xp.ascontiguousarray(values)
    while True:
        pieces = -(-size // PIECE)
        out = xp.empty((groups, pieces, count), dtype=xp.float64)
        arguments = (values, np.int64(groups), np.int64(size), np.int64(count), out)
        if out.size:
            program = places_program()
            program.launch("kcalib_group_sums", (program.blocks(out.size), 1), arguments)
        if pieces == 1:
            return out[:, 0, :]
        values, size = out, pieces


def total(values: Array) -> float:
    return float(group_sums(values, 1, int(values.size))[0, 0])


@dataclass(frozen=True)
class DeviceOrder:
    """As `sorted_line.Order`."""

    positions: Array
    places: Array
    block: int
    residuals: Array | None
    residuals_for_totals: Array | None

    @classmethod
    def of(cls, points: Array, labels: Array | None, block: int) -> DeviceOrder:
        xp = arrays.namespace(points)
        places = xp.astype(points[:, -1], xp.float64, copy=False)
        positions = xp.argsort(places, stable=True)
        if block < len(places):  # among the blocks, of which each keeps its order
            positions = positions[xp.argsort(positions // block, stable=True)]
        positions = xp.astype(positions, xp.int64, copy=False)
        residuals, in_entries, in_totals = None, False, False
        if labels is not None:
            residuals, in_entries, in_totals = _residuals(points, labels, positions)
        return cls(
            positions,
            xp.ascontiguousarray(places[positions]),
            block,
            residuals if in_entries else None,
            residuals if in_totals else None,
        )

    def row_sums(self, terms: Sequence[LineTerm]) -> Array:
        return self.product(terms, None, first=0, n_rows=len(self.positions))[:, 0]

    def product(self, terms: Sequence[LineTerm], vectors: Array | None, *, first: int, n_rows: int) -> Array:
        xp = arrays.namespace(self.places)
        if vectors is not None:
            vectors = xp.ascontiguousarray(xp.asarray(vectors, dtype=xp.float64))
        count = 1 if vectors is None else int(vectors.shape[1])
        out = xp.zeros((n_rows, count), dtype=xp.float64)
        if count == 0:
            return out
        vector_args = vectors, np.int64(first)
        for term in terms:
            scan = Scan(self, term, count, directions=2)
            left, right = (xp.ascontiguousarray(factors) for factors in (term.left, term.right))
            for r in range(right.shape[1]):
                column = np.int64(right.shape[1]), np.int64(r)
                reaching = scan.sums((right, *column, *vector_args))
                for direction in range(2):
                    self_weight = np.float64(vectors is not None and direction == 0)  # a sample sees itself once
                    arguments = (
                        left,
                        right,
                        *column,
                        *vector_args,
                        scan.coefficients,
                        self_weight,
                        np.int64(direction),
                    )
                    results = reaching[direction], np.int64(n_rows), out
                    scan.launch("kcalib_line_products", scan.nodes[0], 1, *arguments, *results)
        return out

    def forms(self, terms: Sequence[LineTerm], weights: Array | Weights) -> Array:
        """Return w^T H w of terms with the same factors on both sides, for each column w."""
        xp, n = arrays.namespace(self.places), len(self.places)
        if not isinstance(weights, Weights):
            return self._forms(terms, xp.ascontiguousarray(xp.asarray(weights, dtype=xp.float64)))
        step = max(COLUMNS, WEIGHTS_BYTES // (8 * n) // COLUMNS * COLUMNS)
        ranges = [(b, min(b + step, weights.n_replicates)) for b in range(0, weights.n_replicates, step)]
        parts = [self._forms(terms, draw_on_device(weights, b, e, e - b, "float64")) for b, e in ranges]
        return xp.concat(parts)

    def _forms(self, terms: Sequence[LineTerm], values: Array) -> Array:
        xp, count = arrays.namespace(self.places), int(values.shape[1])
        out = xp.zeros(count, dtype=xp.float64)
        for term in terms:
            scan, factors = Scan(self, term, count, directions=1), xp.ascontiguousarray(term.left)
            parts = xp.empty((scan.nodes[0], count), dtype=xp.float64)
            for r in range(factors.shape[1]):
                column = (factors, np.int64(factors.shape[1]), np.int64(r), values)
                reaching = scan.sums((*column, np.int64(0)))
                scan.launch("kcalib_line_forms", scan.nodes[0], 1, *column, scan.coefficients, reaching, parts)
                out = out + group_sums(parts, 1, len(parts), count)[0]
        return out


class Scan:
    """What reaches every node of a path through the sorted points, for one term and `count` columns."""

    def __init__(self, order: DeviceOrder, term: LineTerm, count: int, directions: int) -> None:
        self._xp = arrays.namespace(order.places)
        self._columns = 1 if count == 1 else COLUMNS
        self._count, self._directions, self._powers = count, directions, len(term.polynomial)
        self._program = scan_program(self._powers - 1, self._columns)
        n = len(order.places)
        self._line = (order.places, order.positions, np.int64(n), np.int64(order.block), np.float64(term.rate))
        self.coefficients = self._xp.asarray(np.ascontiguousarray(term.polynomial, dtype=np.float64))
        self.nodes = [-(-n // CHUNK)]  # of each level, until one node above would have them all
        while self.nodes[-1] > CHUNK:
            self.nodes.append(-(-self.nodes[-1] // CHUNK))

    def sums(self, vectors: tuple[Any, ...]) -> Array:
        """Shape (directions, nodes, powers, count); `vectors`: factors and numbers, as `kcalib_line_point_sums` has."""
        shape = self._powers, self._count
        levels = [self._xp.empty((self._directions, nodes, *shape), dtype=self._xp.float64) for nodes in self.nodes]
        self.launch("kcalib_line_point_sums", self.nodes[0], self._directions, *vectors, levels[0])
        spans = [np.int64(CHUNK ** (k + 1)) for k in range(len(levels))]
        for k, (below, above) in enumerate(itertools.pairwise(levels)):
            children = spans[k], np.int64(self.nodes[k])
            self.launch("kcalib_line_sums_up", self.nodes[k + 1], self._directions, *children, below, above)
        for k in reversed(range(len(levels))):
            nodes, above = (self.nodes[k + 1], levels[k + 1]) if k + 1 < len(levels) else (1, None)
            children = spans[k], np.int64(self.nodes[k])
            self.launch("kcalib_line_sums_down", nodes, self._directions, *children, levels[k], above)
        return levels[0]

    def launch(self, name: str, nodes: int, directions: int, *arguments: Any) -> None:
        threads = nodes * -(-self._count // self._columns)
        line = (*self._line, np.int64(nodes), np.int64(self._count))
        self._program.launch(name, (self._program.blocks(threads), directions), (*line, *arguments))


def _residuals(points: Array, labels: Array, positions: Array) -> tuple[Array, bool, bool]:
    """sqrt(2) r of the sorted samples, shape (n, 1), and whether what is off the line counts not in an entry, a total.

    The same numbers as line_order in src/cpu/line/line.cpp.
    """
    xp = arrays.namespace(points)
    points, second = points[positions, :], labels[positions] == 1
    p, q = points[:, 0], points[:, 1]
    other_probability, rest = xp.where(second, p, q), 1 - xp.where(second, q, p)
    size, distance = 0.5 * (other_probability + rest), 0.5 * xp.abs(other_probability - rest)
    in_entries = bool(xp.all(distance <= HALF_THE_DIGITS * xp.abs(size)))
    off, norms = total(distance), total(other_probability * other_probability + rest * rest)
    values = math.sqrt(2.0) * xp.where(second, size, -size)
    return values[:, None], in_entries, 2 * off**2 <= EPSILON * norms


@dataclass(frozen=True)
class SortedPlaces:
    """Places on a line, and the distances of all pairs."""

    places: Array  # ascending

    @classmethod
    def of(cls, places: Array) -> SortedPlaces:
        xp = arrays.namespace(places)
        return cls(xp.sort(xp.astype(places, xp.float64)))

    @property
    def n(self) -> int:
        return len(self.places)

    def highest(self) -> float:
        """Return the largest distance."""
        return float(self.places[-1] - self.places[0])

    def some(self, count: int) -> SortedPlaces:
        """Return `count` of them, at equal steps in their order."""
        at = np.linspace(0, self.n - 1, count).astype(np.int64)
        return SortedPlaces(self.places[arrays.like(at, self.places)])

    def counts(self, thresholds: np.ndarray) -> np.ndarray:
        """Return the number of distances below each threshold."""
        xp, batches = arrays.namespace(self.places), []
        for begin in range(0, len(thresholds), THRESHOLDS):
            part = np.zeros(THRESHOLDS)
            part[: len(thresholds) - begin] = thresholds[begin : begin + THRESHOLDS]
            counts = xp.zeros(THRESHOLDS, dtype=xp.uint64)
            self._launch("kcalib_line_counts", xp.asarray(part), counts)
            batches.append(arrays.to_host(counts).astype(np.int64))
        return np.concatenate([np.empty(0, np.int64), *batches])[: len(thresholds)]

    def between(self, low: float, high: float, count: int) -> Array:
        """Return the `count` distances in [low, high), ascending."""
        xp = arrays.namespace(self.places)
        values, counter = xp.empty(count, dtype=xp.float64), xp.zeros(1, dtype=xp.uint64)
        self._launch("kcalib_line_distances", np.float64(low), np.float64(high), np.int64(count), counter, values)
        assert int(counter[0]) == count
        return xp.sort(values)

    def _launch(self, name: str, *arguments: Any) -> None:
        program = places_program()
        grid = program.blocks(-(-self.n // PIECE)), 1
        program.launch(name, grid, (self.places, np.int64(self.n), *arguments))
