"""Which operator computes a pair problem: the one table, the one place that chooses.

Read top to bottom: the first row whose arrays fit is taken. Only exact operators are
chosen automatically. The table is printed in the documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice
from kcalib._backend.random import Weights
from kcalib._native import MAX_FULL_DIMS
from kcalib._pairs.operators.cuda import CudaOperator
from kcalib._pairs.operators.generic import GenericOperator
from kcalib._pairs.operators.openmp import OpenMPOperator
from kcalib._pairs.operators.sorted_scan import SortedScanOperator
from kcalib._pairs.problem import Moments, PairProblem


class Operator(Protocol):
    """The primitives of the matrix H of a pair problem; see `_pairs.problem`."""

    name: str
    reason: str  # why it was chosen
    problem: PairProblem

    @property
    def threads(self) -> int | None:
        """Threads it uses at most; None where the array library decides."""

    def moments(self, second: bool = False, rows: bool = True, trace: bool = True) -> Moments:
        """Total, on request row and column sums, with these the sum of squares, and the trace (and diagonal)."""

    def block_sums(self, size: int) -> Array:
        """Sum over i != j of each of the n // size consecutive diagonal blocks, shape (n // size,)."""

    def matmul(self, vectors: Array, *, dtype: str = "float64") -> Array:
        """H @ vectors, float64, for `vectors` of shape (n right, c).

        In "float32" entries and products are rounded to it (sums of more than a tile's are float64): an error of
        some 1e-7 of the sum of all sizes of H_ij v_j, for iterations that correct it. Columns of any scale are right.
        """

    def quadratic_forms(self, weights: Array | Weights, *, dtype: str = "float64") -> Array:
        """w^T H w for each column w of `weights`, shape (n, c); symmetric problems.

        In "float32" entries and products are rounded to it (sums of more than a tile's are float64):
        for null distributions, twice as fast where products take the time.
        """

    def counts(self, thresholds: np.ndarray) -> np.ndarray:
        """Number of entries H_ij, i < j, below each threshold; symmetric problems."""

    def between(self, low: float, high: float, count: int) -> np.ndarray:
        """The `count` entries H_ij, i < j, in [low, high), in no order; `counts` says how many there are."""

    def tile(self, rows: slice | Array, columns: slice | Array) -> Array:
        """The dense piece H[rows][:, columns]."""


@dataclass(frozen=True)
class Capability:
    """One row of the table: what an operator can do."""

    name: str
    arrays: str
    dtypes: tuple[str, ...]
    primitives: tuple[str, ...]
    exact: bool
    differentiable: bool
    memory: str


PRIMITIVES = ("moments", "block_sums", "matmul", "quadratic_forms", "counts", "between", "tile")
TABLE = (
    Capability(
        "sorted_scan", "NumPy and all CPU arrays, and CuPy arrays on their NVIDIA GPU: binary problems (points on a "
        "line) with kernels made of exponential and Matern kernels on distances",
        ("float64",), PRIMITIVES, exact=True, differentiable=False, memory="O(n m), time O(n log n)",
    ),
    Capability(
        "openmp", "NumPy and all CPU arrays, which become NumPy arrays without a copy; not predictions that are normal "
        f"with full covariances in more than {MAX_FULL_DIMS} dimensions",
        ("float64", "float32"), PRIMITIVES, exact=True, differentiable=False, memory="O(n m)",
    ),
    Capability(
        "cuda", "CuPy arrays, on their NVIDIA GPU, which CUDA tensors of PyTorch and JAX become without a copy; not "
        f"predictions that are normal with full covariances in more than {MAX_FULL_DIMS} dimensions",
        ("float64", "float32"), PRIMITIVES, exact=True, differentiable=False, memory="O(n m), rectangles of H",
    ),
    Capability(
        "generic", "any array API namespace, on its device",
        ("float64", "float32"), PRIMITIVES, exact=True, differentiable=True, memory="O(n m), strips of rows",
    ),
)  # fmt: skip
SORTED_SCAN_FROM = 512  # samples; below, the sweep over all pairs takes no longer


def operator_for(problem: PairProblem, *, operator: str | None = None, threads: int | None = None) -> Operator:
    """The operator for `problem`, or the one named `operator`.

    Raises
    ------
    ValueError
        If `operator` is unknown or cannot take the problem's arrays, or if `threads` is
        given to an operator that has none.
    """
    points = problem.left.points
    host = arrays.is_host(points)
    where = arrays.describe_device(points)
    on_cuda = arrays.library(points) == "cupy"
    if operator is None:
        operator, reason = _choice(problem)
    else:
        check_choice("operator", operator, tuple(row.name for row in TABLE))
        reason = "asked for by name"
        if operator == "cuda" and not on_cuda:
            raise ValueError(
                f"operator='cuda' needs arrays on an NVIDIA GPU, `y_pred` is on {where}; pass cupy.asarray(y_pred), "
                "or leave operator=None"
            )
        if not host and (operator == "openmp" or (operator == "sorted_scan" and not on_cuda)):
            raise ValueError(
                f"operator={operator!r} needs arrays in host memory, `y_pred` is on {where}; "
                "bring it to the CPU first, or leave operator=None"
            )
        obstacle = None
        if operator in ("sorted_scan", "cuda"):
            obstacle = (SortedScanOperator if operator == "sorted_scan" else CudaOperator).unsuitable(problem)
        if obstacle is not None:
            raise ValueError(f"operator={operator!r} cannot take this problem: {obstacle}; leave operator=None")
    if operator == "openmp":
        return OpenMPOperator(problem, threads=threads, reason=reason)
    if operator == "sorted_scan" and host:
        return SortedScanOperator(problem, threads=threads, reason=reason)
    if threads is not None:
        decides = "the array library" if operator == "generic" else "the GPU"
        raise ValueError(f"`threads` has no effect on operator={operator!r}: {decides} decides; leave it out")
    if operator == "sorted_scan":
        return SortedScanOperator(problem, reason=reason)
    if operator == "cuda":
        return CudaOperator(problem, reason=reason)
    return GenericOperator(problem, reason=reason)


def _choice(problem: PairProblem) -> tuple[str, str]:
    """The operator that can take the problem and is the fastest, and why it is taken."""
    points = problem.left.points
    host, on_cuda = arrays.is_host(points), arrays.library(points) == "cupy"
    where = arrays.describe_device(points)
    many = (host or on_cuda) and int(points.shape[0]) >= SORTED_SCAN_FROM
    if many and SortedScanOperator.unsuitable(problem) is None:
        reason = "the predictions lie on a line and the kernel allows O(n log n)"
        return "sorted_scan", reason if host else f"{reason}; the arrays are on {where}"
    if on_cuda and CudaOperator.unsuitable(problem) is None:
        return "cuda", f"the arrays are on {where}"
    if not host:
        return "generic", f"{arrays.library(points)} arrays on {where} stay there"
    obstacle = OpenMPOperator.unsuitable(problem)
    return ("openmp", "the arrays are in host memory") if obstacle is None else ("generic", obstacle)
