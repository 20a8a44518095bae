"""The CPU operator: hands contiguous NumPy arrays to the compiled sweeps in `_native`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kcalib import _native
from kcalib._operators.diagonal import diagonal
from kcalib._problem import Moments, PairProblem, Side
from kcalib._threads import progress_callback, resolve_threads

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
            _native.moments, *self._sides(problem.left, problem.columns), problem.symmetric, second=second
        )
        if problem.symmetric:
            return Moments(rows, rows, diagonal(problem), squares)
        return Moments(rows, columns, None, squares)

    def block_sums(self, size: int) -> np.ndarray:
        left = self.problem.left
        return self._run(_native.block_sums, left.points, left.marks, size=size)

    def matmul(self, vectors: np.ndarray) -> np.ndarray:
        problem = self.problem
        transposed = np.ascontiguousarray(np.asarray(vectors, dtype=np.float64).T)
        return self._run(
            _native.matmul, *self._sides(problem.left, problem.columns), problem.symmetric, vectors=transposed
        )

    def tile(self, rows: Any, columns: Any) -> np.ndarray:
        left, right = self.problem.left.take(rows), self.problem.columns.take(columns)
        return self._run(_native.entries, *self._sides(left, right), False)

    def _sides(self, left: Side, right: Side) -> tuple[np.ndarray, ...]:
        return tuple(np.ascontiguousarray(a) for a in (left.points, left.marks, right.points, right.marks))

    def _run(self, function: Any, *arrays_and_flags: Any, **options: Any) -> Any:
        progress = progress_callback("kcalib")
        sweep = _native.Sweep(self.threads, self._level, progress)
        try:
            return function(*arrays_and_flags, kernel=self._kernel, sweep=sweep, **options)
        finally:
            if progress is not None:
                progress.close()
