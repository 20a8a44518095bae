"""The base class of backends: a problem, a sweep, and tiles of H for other machines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.random import Weights
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.mixtures import own_products
from kcalib._pairs.problem import PairProblem
from kcalib._pairs.profiles import PROFILES
from kcalib._pairs.reductions import (
    BlockSums,
    Moments,
    MomentSums,
    NullSquares,
    Part,
    Products,
    QuadraticForms,
    Reduction,
    sweep_one,
)
from kcalib._pairs.tiles import Grid, Runs, Tile

SAMPLES = 64  # largest number of points in a sample

Progress = Callable[[float], None] | None


class Backend:
    """A way to visit the matrix H of a pair problem; see ``kcalib/_pairs/problem.py``.

    Parameters
    ----------
    problem : PairProblem
        The problem.
    reason : str
        Why the backend was chosen, for results.
    """

    name: str
    on_a_line: bool = False  # points lie on a line, and sums and products take O(n log n)
    entry_cost: float = 1.0  # an entry's time, relative to the compiled core's
    reductions: ClassVar[Mapping[type[Reduction[Any]], Callable[[Any, Any], Any]]]  # and the function for each
    options: frozenset[str] = frozenset()  # supported options of reductions that not every backend has
    threads: int | None = None  # limit; None if the array library decides
    parallel: Workers | None = None  # workers that compute its sums, or None

    def __init__(self, problem: PairProblem, *, reason: str = "") -> None:
        self.problem = problem
        self.reason = reason

    @staticmethod
    def unsuitable(problem: PairProblem) -> str | None:
        """Return why the backend cannot take the problem, or None."""
        return None

    def like(self, problem: PairProblem) -> Backend:
        """Return the backend for another problem, with the same code, threads and machines."""
        return type(self)(problem, reason=self.reason)

    def obstacle(self, reduction: Reduction[Any]) -> str | None:
        """Return why the backend does not have this reduction for its problem, or None."""
        if type(reduction) not in self.reductions:
            return "it has no such reduction"
        if reduction.option is not None and reduction.option not in self.options:
            return f"it has no option {reduction.option}"
        return reduction.obstacle(self.problem)

    def sweep(self, reductions: Sequence[Reduction[Any]]) -> list[Any]:
        """Visit H, and return the result of each reduction.

        Raises
        ------
        ValueError
            If the backend lacks a reduction.
        """
        for reduction in reductions:
            obstacle = self.obstacle(reduction)
            if obstacle is not None:
                raise ValueError(f"backend={self.name!r} cannot compute {type(reduction).__name__}: {obstacle}")
        return self._results(reductions)

    def _results(self, reductions: Sequence[Reduction[Any]]) -> list[Any]:
        return [self.reductions[type(reduction)](self, reduction) for reduction in reductions]

    def moment_sums(
        self,
        reduction: Moments,
        total: Any,
        row_sums: Array | None,
        column_sums: Array | None,
        squares: float | None,
        null_squares: NullSquares | None = None,
    ) -> MomentSums:
        """Return the sums with the requested parts of the diagonal."""
        diagonal_entries = trace = None
        if reduction.trace and self.problem.symmetric:
            diagonal_entries = diagonal(self.problem, self.threads or 1)
            trace = arrays.namespace(diagonal_entries).sum(diagonal_entries)
            if arrays.is_host(diagonal_entries) or arrays.is_cuda(diagonal_entries):
                trace = float(trace)
        return MomentSums(total, row_sums, column_sums, diagonal_entries, squares, trace, null_variance=null_squares)

    def tiles(self, in_given_order: bool) -> TileSweep:
        """Return an object that sweeps tiles, with samples in the given order or in that of the backend."""
        return TileSweep(self)


class GivenOrder:
    """Samples in the given order."""

    def sorted(self, values: Any) -> Any:
        """Return values of the samples in the order of summation."""
        return values

    def restored(self, values: Any) -> Any:
        """Return values from the order of summation in the user's order."""
        return values


class TileSweep:
    """A problem in tiles that are swept separately; rows and columns are in the order of summation."""

    block: int = 1  # samples of a block of the backend's order of summation
    group: int = 1  # samples of a group of blocks
    has_group_sums: bool = False  # whether a part has the sums of each pair of groups

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.left: Any = GivenOrder()
        self.right: Any = self.left

    def prepare(self, reduction: Reduction[Any]) -> Any:
        """Return the vectors of a reduction in the order of summation, or None."""
        if isinstance(reduction, Products):
            return np.ascontiguousarray(self.right.sorted(np.asarray(reduction.vectors, dtype=np.float64)))
        if isinstance(reduction, QuadraticForms):
            weights = reduction.weights
            if isinstance(weights, Weights):
                weights = weights.values(dtype=reduction.dtype, threads=self.backend.threads)
            return self.left.sorted(np.asarray(weights, dtype=reduction.dtype))
        return None

    def sweep(self, reduction: Reduction[Any], tile: Tile, grid: Grid | Runs, vectors: Any, progress: Progress) -> Part:
        """Return the part of a tile."""
        rows, columns = tile.rows, tile.columns
        if isinstance(reduction, BlockSums):
            rows = range(tile.row * reduction.size, tile.row_end * reduction.size)
            return {"rows": _on_host(sweep_one(self._part(rows, rows), reduction))[None]}
        if isinstance(reduction, QuadraticForms):
            products = self._product(Products(vectors, reduction.dtype), rows, columns)
            of_rows = (vectors[tile.row : tile.row_end] * products).T
            return {"forms": np.sum(np.ascontiguousarray(of_rows), axis=1)[None, None, :]}
        is_diagonal = self.backend.problem.symmetric and rows == columns
        if isinstance(reduction, Products):
            reduction = replace(reduction, vectors=vectors)
            part = {"rows": self._product(reduction, rows, columns)[None]}
            if self.backend.problem.symmetric and not is_diagonal:
                part["columns"] = self._product(reduction, columns, rows)[None]
            return part
        assert isinstance(reduction, Moments)
        moments = sweep_one(self._part(rows, columns), replace(reduction, trace=False))
        part = {"totals": np.array([[float(moments.total)]])}
        if moments.sum_of_squares is not None:
            part["squares"] = np.array([[float(moments.sum_of_squares)]])
        if reduction.rows or reduction.second:
            part["rows"] = _on_host(moments.row_sums)[None]
            if not is_diagonal:
                part["columns"] = _on_host(moments.column_sums)[None]
        return part

    def _product(self, reduction: Products, rows: range, columns: range) -> np.ndarray:
        part = self._part(rows, columns)
        vectors = arrays.like(reduction.vectors[columns.start : columns.stop], part.problem.left.points, np.float64)
        return _on_host(sweep_one(part, replace(reduction, vectors=vectors)))

    def _part(self, rows: range, columns: range) -> Backend:
        """Return the backend on a rectangle of H."""
        problem = self.backend.problem
        right = None
        if not problem.symmetric or rows != columns:
            right = problem.columns.take(slice(columns.start, columns.stop))
        return self.backend.like(replace(problem, left=problem.left.take(slice(rows.start, rows.stop)), right=right))


def _on_host(values: Any) -> np.ndarray:
    return np.asarray(arrays.to_host(values), dtype=np.float64)


class Workers(ABC):
    """Processes or machines that compute sums over pairs; `kcalib.parallel` implements it."""

    @abstractmethod
    def spread(self, backend: Backend) -> Backend:
        """Return a backend with the same sums, computed by the workers, or the same backend if that is no use."""

    @abstractmethod
    def gram(self, backend: Backend, feature_map: FeatureMap, columns: np.ndarray) -> np.ndarray:
        """Return `feature_sums.gram` of the points of a distributed backend."""


def diagonal(problem: PairProblem, threads: int = 1) -> Array:
    """Return H_ii = k(x_i, x_i) <a_i, a_i>, float64."""
    kernel: float | Array = 0.0
    for term in problem.kernel:
        value: float | Array = term.coefficient
        for factor in term.factors:
            dot = factor.metric == "dot"
            value = value * (square_norms(problem.left.points, threads) if dot else PROFILES[factor.profile].at_zero)
        kernel = kernel + value
    if problem.target is not None:
        return kernel * own_products(problem.target, problem.left.features)
    return kernel * square_norms(problem.left.features, threads)


def square_norms(vectors: Array, threads: int) -> Array:
    """Return |v_i|^2 of the rows, float64; `threads` on the host."""
    if arrays.is_host(vectors):
        return _native.square_norms(arrays.as_compact(vectors, vectors.dtype), threads)
    xp = arrays.namespace(vectors)
    vectors = xp.astype(vectors, xp.float64, copy=False)
    return xp.sum(vectors * vectors, axis=1)


def powers_of_two(sizes: Array) -> Array:
    """Return the power of two below each size (1 for 0), by which it is scaled for float32."""
    xp = arrays.namespace(sizes)
    positive = xp.where(sizes > 0, sizes, xp.ones_like(sizes))
    return xp.pow(2.0 * xp.ones_like(sizes), xp.clip(xp.floor(xp.log2(positive)), -1000.0, 1000.0))


def sampled(points: Array) -> slice:
    """Return the rows of a sample of the points."""
    return slice(None, None, -(-points.shape[0] // SAMPLES))


def spread(points: Array) -> tuple[float, float]:
    """Return the mean squared distance of some points, 2 (mean |x|^2 - |mean x|^2), and their mean square.

    Distances from residuals are sums of terms of size 1, distances from an expansion are sums of terms as large as the
    squares. If all points are close on that scale, most pairs would have to be computed again by differences.
    """
    xp = arrays.namespace(points)
    sample = xp.astype(points[sampled(points), :], xp.float64)
    mean_square = float(xp.sum(sample * sample)) / sample.shape[0]
    center = xp.mean(sample, axis=0)
    return 2 * (mean_square - float(xp.sum(center * center))), mean_square


def spread_about(points: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean squared distance of these points, and their mean."""
    values = np.asarray(points, dtype=np.float64)
    centre = values.mean(axis=0)
    return 2 * float(np.sum((values - centre) ** 2)) / len(values), centre
