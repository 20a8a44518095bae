"""The CPU operator: hands contiguous NumPy arrays to the compiled sweeps in `_native`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kcalib import _native
from kcalib._operators.diagonal import diagonal
from kcalib._problem import Moments, PairProblem, Side
from kcalib._threads import resolve_threads, terminal_progress

# The enums of src/include/kcalib/profiles.h.
PROFILES = {
    "exponential": 0,
    "gaussian": 1,
    "gamma_exponential": 2,
    "matern_3_2": 3,
    "matern_5_2": 4,
    "rational_quadratic": 5,
    "identity": 6,
}
METRICS = {"euclidean": 0, "cityblock": 1, "dot": 2}

# From this many classes on one product of residuals serves both distances and target factors. The
# gain starts at about 20 (AVX2 and AVX-512); below, fetching residuals at the other sample's label
# costs as much as a second product.
RESIDUAL_CLASSES = 32


class OpenMPOperator:
    """H in tiles, in parallel; the same bits for any number of threads."""

    name = "openmp"

    def __init__(
        self, problem: PairProblem, *, threads: int | None = None, reason: str = "", level: str | None = None
    ) -> None:
        self.problem = problem
        self.reason = reason
        self.threads = resolve_threads(threads)
        self._level = level  # instruction set; the tests force each
        self._kernel = _native.Kernel(
            [
                (t.coefficient, [(PROFILES[f.profile], METRICS[f.metric], f.scale, f.shape) for f in t.factors])
                for t in problem.kernel
            ]
        )

    def moments(self, second: bool = False) -> Moments:
        problem = self.problem
        rows, columns, squares = self._run(
            _native.moments, *self._arrays(problem.left, problem.columns), problem.symmetric, second=second
        )
        if problem.symmetric:
            return Moments(rows, rows, diagonal(problem), squares)
        return Moments(rows, columns, None, squares)

    def block_sums(self, size: int) -> np.ndarray:
        left = self.problem.left
        return self._run(_native.block_sums, *self._arrays(left, left)[:3], size=size)

    def matmul(self, vectors: np.ndarray) -> np.ndarray:
        problem = self.problem
        transposed = np.ascontiguousarray(np.asarray(vectors, dtype=np.float64).T)
        return self._run(
            _native.matmul,
            *self._arrays(problem.left, problem.columns),
            problem.symmetric,
            vectors=transposed,
        )

    def tile(self, rows: Any, columns: Any) -> np.ndarray:
        left, right = self.problem.left.take(rows), self.problem.columns.take(columns)
        return self._run(_native.entries, *self._arrays(left, right), False)

    def _arrays(self, left: Side, right: Side) -> list[np.ndarray | None]:
        """Points, marks and labels of both sides as the compiled core reads them."""
        euclidean = all(f.metric == "euclidean" for term in self.problem.kernel for f in term.factors)
        residual = euclidean and left.points.shape[1] >= RESIDUAL_CLASSES
        residual = residual and left.labels is not None and right.labels is not None and _spread(left.points)
        arrays: list[np.ndarray | None] = []
        for side in (left, right):
            labels = np.ascontiguousarray(side.labels, dtype=np.int32) if residual else None
            arrays += [np.ascontiguousarray(side.points), np.ascontiguousarray(side.marks), labels]
        return arrays

    def _run(self, function: Any, *arrays_and_flags: Any, **options: Any) -> Any:
        with terminal_progress() as progress:
            sweep = _native.Sweep(self.threads, self._level, progress)
            return function(*arrays_and_flags, kernel=self._kernel, sweep=sweep, **options)


def _spread(points: np.ndarray) -> bool:
    """Whether pairs of points are mostly far apart on the scale of residuals.

    The mean squared distance is 2 (mean |x|^2 - |mean x|^2). Distances from residuals are sums of
    terms of size 1: where all points are near each other, differences would repair every pair.
    """
    mean = np.mean(points, axis=0, dtype=np.float64)
    mean_square = float(np.einsum("ij,ij->", points, points, dtype=np.float64)) / len(points)
    return 2 * (mean_square - float(np.sum(mean * mean))) > 0.1
