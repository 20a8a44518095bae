"""Stand-in for the exact solvers: dense Cholesky through scipy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib._arrays import like, namespace, to_host
from kcalib._dispatch import operator_for
from kcalib._problem import PairProblem, Side


class KernelOperator:
    def __init__(self, points: Any, kernel: Any, threads: Any, operator: Any) -> None:
        self.n = int(points.shape[0])
        self.pairs = operator_for(
            PairProblem(Side(points, namespace(points).ones_like(points[:, :1])), None, kernel.terms()),
            operator=operator,
            threads=threads,
        )
        self.name, self.reason, self.threads = self.pairs.name, self.pairs.reason, self.pairs.threads

    def matmul(self, vectors: np.ndarray, *, dtype: str = "float64") -> np.ndarray:
        return to_host(self.pairs.matmul(like(vectors, self.pairs.problem.left.points), dtype=dtype))

    def tile(self, rows: Any, columns: Any) -> np.ndarray:
        points = self.pairs.problem.left.points
        rows, columns = (i if isinstance(i, slice) else like(i, points) for i in (rows, columns))
        return np.asarray(to_host(self.pairs.tile(rows, columns)), dtype=np.float64)

    def diagonal(self) -> np.ndarray:
        return to_host(self.pairs.moments().diagonal)


def kernel_operator(
    points: Any, kernel: Any, *, dtype: Any = None, threads: Any = None, operator: Any = None
) -> KernelOperator:
    return KernelOperator(points, kernel, threads, operator)


@dataclass(frozen=True)
class Solution:
    values: np.ndarray
    residual: float
    relative_residual: float
    iterations: int
    rank: int | None
    method: str
    method_reason: str
    memory: int
    converged: bool


def solve(
    operator: Any,
    right_sides: np.ndarray,
    shift: float,
    *,
    method: str = "auto",
    tol: float | None = None,
    rank: int | None = None,
    max_memory: Any = None,
    seed: int = 0,
    accept: Callable[[np.ndarray, np.ndarray], bool] | None = None,
) -> Solution:
    dense = operator.tile(slice(0, operator.n), slice(0, operator.n)) + shift * np.eye(operator.n)
    values = scipy.linalg.cho_solve(scipy.linalg.cho_factor(dense), right_sides)
    residual = right_sides - dense @ values
    converged = accept is not None and accept(values, residual)
    return Solution(
        values, float(np.linalg.norm(residual)), 0.0, 0, 0, "cholesky", "stand-in", 8 * operator.n**2, converged
    )


@dataclass(frozen=True)
class LowRank:
    factor: np.ndarray
    pivots: np.ndarray
    trace_residual: float
    rank: int


def pivoted_cholesky(operator: Any, rank: int, *, tol: float = 0.0, pivoting: str = "random", seed: int = 0) -> LowRank:
    diagonal = operator.diagonal().copy()
    factor = np.zeros((operator.n, rank))
    pivots = []
    for k in range(rank):
        i = int(np.argmax(diagonal))
        if diagonal[i] <= 1e-14:
            break
        column = operator.tile(slice(0, operator.n), np.array([i]))[:, 0] - factor @ factor[i]
        factor[:, k] = column / np.sqrt(column[i])
        diagonal = np.maximum(diagonal - factor[:, k] ** 2, 0)
        pivots.append(i)
    return LowRank(factor[:, : len(pivots)], np.array(pivots), float(diagonal.sum()), len(pivots))
