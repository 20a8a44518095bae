"""Matrices that the solvers take: symmetric, positive semi-definite, known by their products.

`KernelOperator` is K_ij = k(x_i, x_j) of points, a pair problem whose marks are 1; `DenseOperator` a matrix in
memory. Both, and whatever a user brings, have the members of `SymmetricOperator`. All solvers see NumPy arrays only;
points stay where they are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from kcalib import _arrays
from kcalib._dispatch import Operator, operator_for
from kcalib._inputs import check_points
from kcalib._operators.diagonal import diagonal
from kcalib._options import check_choice
from kcalib._packing import Packed, pack_points
from kcalib._problem import Side
from kcalib.kernels import Kernel

MEMBERS = ("n", "matmul", "tile", "diagonal")
ASYMMETRY = 1e-10  # of a dense matrix, relative to its largest entry


class SymmetricOperator(Protocol):
    """What the solvers need of a symmetric positive semi-definite matrix K; an object of any class may have it."""

    @property
    def n(self) -> int:
        """Number of rows."""

    def matmul(self, vectors: np.ndarray, dtype: str = "float64") -> np.ndarray:
        """K @ vectors, float64, for float64 `vectors` of shape (n, c).

        In "float32" a relative error of about 1e-6 is allowed; an operator that gains nothing by it may ignore it.
        """

    def tile(self, rows: Any, columns: Any) -> np.ndarray:
        """K[rows][:, columns], float64; each a slice or an array of integers."""

    def diagonal(self) -> np.ndarray:
        """The diagonal of K, float64, shape (n,)."""


class KernelOperator:
    """K_ij = k(x_i, x_j), never stored; made by `kernel_operator`."""

    def __init__(self, packed: Packed, *, threads: int | None, operator: str | None) -> None:
        self.kernel = packed.kernel
        self._operator = operator_for(packed.problem, operator=operator, threads=threads)
        self._threads = threads

    @property
    def n(self) -> int:
        return int(self._operator.problem.left.points.shape[0])

    @property
    def name(self) -> str:
        """Which operator of the pair engine computes."""
        return self._operator.name

    @property
    def reason(self) -> str:
        """Why that one."""
        return self._operator.reason

    @property
    def threads(self) -> int | None:
        """Threads used at most; None where the array library decides."""
        return self._operator.threads

    @property
    def epsilon(self) -> float:
        """Machine epsilon of the arithmetic that entries are made in."""
        return float(np.finfo(str(self._points.dtype).rpartition(".")[2]).eps)

    def matmul(self, vectors: np.ndarray, dtype: str = "float64") -> np.ndarray:
        single = check_choice("dtype", dtype, ("float64", "float32")) == "float32"
        operator = self._single if single else self._operator
        return _arrays.to_host(operator.matmul(_arrays.like(vectors, self._points), dtype=dtype))

    def tile(self, rows: Any, columns: Any) -> np.ndarray:
        rows, columns = (i if isinstance(i, slice) else _arrays.like(i, self._points) for i in (rows, columns))
        return np.asarray(_arrays.to_host(self._operator.tile(rows, columns)), dtype=np.float64)

    def diagonal(self) -> np.ndarray:
        return np.broadcast_to(_arrays.to_host(diagonal(self._operator.problem, self.threads or 1)), (self.n,))

    @property
    def _points(self) -> Any:
        return self._operator.problem.left.points

    @cached_property
    def _single(self) -> Operator:
        """The same in float32, points and kernel too, where that is faster."""
        points = self._points
        xp = _arrays.namespace(points)
        problem = self._operator.problem
        if self.name == "sorted_scan" or points.dtype == xp.float32 or problem.predicted is not None:
            return self._operator  # distances of mixtures are roots of differences: too few digits in float32
        side = problem.left
        problem = replace(problem, left=Side(*(xp.astype(a, xp.float32) for a in (side.points, side.marks))))
        return operator_for(problem, operator=self.name, threads=self._threads)

    def __repr__(self) -> str:
        return f"<KernelOperator of {self.n} points, {self.kernel}, {self.name}>"


class DenseOperator:
    """A symmetric matrix in memory."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix

    @property
    def n(self) -> int:
        return len(self.matrix)

    def matmul(self, vectors: np.ndarray, dtype: str = "float64") -> np.ndarray:
        return self.matrix @ vectors

    def tile(self, rows: Any, columns: Any) -> np.ndarray:
        return self.matrix[rows][:, columns]

    def diagonal(self) -> np.ndarray:
        return np.diagonal(self.matrix)

    def __repr__(self) -> str:
        return f"the dense matrix of shape {self.matrix.shape}"


def kernel_operator(
    points: Any,
    kernel: Kernel | None,
    *,
    dtype: str | None = None,
    threads: int | None = None,
    operator: str | None = None,
) -> KernelOperator:
    """The matrix of a kernel between points, never stored, for `solve` and `pivoted_cholesky`.

    .. math:: K_{ij} = k(x_i, x_j)

    A product with c vectors takes the time of one sweep over the pairs and of n^2 c multiply-adds, and O(n (m + c))
    memory; for binary predictions with exponential and Matern kernels O(n log n + n c).

    Parameters
    ----------
    points : array_like, shape (n, m)
        Predicted probabilities, or any other points.
    kernel : Kernel or None
        One of `kcalib.kernels` (default `kcalib.kernels.Exponential`); bandwidths that are None are median distances.
    dtype : {"float64", "float32"}, optional
        Arithmetic of the kernel; float64 by default.
    threads : int, optional
        Number of threads.
    operator : {"openmp", "sorted_scan", "generic"}, optional
        Which operator of the pair engine computes; by default the fastest exact one.

    Returns
    -------
    KernelOperator
        With `n`, ``matmul(vectors, dtype="float64")``, ``tile(rows, columns)``, ``diagonal()``, the `kernel` with its
        bandwidths as numbers, and `name`, `reason` and `threads` of the pair engine's operator.

    Raises
    ------
    TypeError
        If `points` are not numbers, or `kernel` is none of `kcalib.kernels`.
    ValueError
        If `points` are not finite or not of two dimensions, or have no rows; if `dtype` or `operator` is unknown, or
        `operator` cannot take the points; if the median heuristic finds no bandwidth.

    Warns
    -----
    IndefiniteKernelWarning
        If the kernel is not known to be positive definite.

    Examples
    --------
    >>> from kcalib.kernels import Gaussian, Linear
    >>> from kcalib.solvers import kernel_operator
    >>> K = kernel_operator([[1.0, 0.0], [0.0, 1.0]], Linear() + Gaussian(bandwidth=1.0))
    >>> K.tile(slice(0, 2), slice(0, 2)).round(4)
    array([[2.    , 0.3679],
           [0.3679, 2.    ]])
    """
    name = check_choice("dtype", "float64" if dtype is None else dtype, ("float64", "float32"))
    checked = check_points(_arrays.as_array(points, "points"), "points")
    if checked.shape[0] == 0:
        raise ValueError("`points` has no rows, expected at least one")
    return KernelOperator(pack_points(checked, kernel, name, threads=threads), threads=threads, operator=operator)


def as_operator(operator: Any) -> SymmetricOperator:
    """`operator` if it has the members, or the dense matrix that it is as one.

    Raises
    ------
    TypeError, ValueError
        If it is neither, or the matrix is not square, real, finite and symmetric.
    """
    missing = [name for name in MEMBERS if not hasattr(operator, name)]
    if missing and (isinstance(operator, (list, tuple)) or hasattr(operator, "shape")):
        return DenseOperator(_checked_matrix(_arrays.to_host(_arrays.as_array(operator, "operator"))))
    if missing:
        raise TypeError(
            f"`operator` is of {type(operator)}, which lacks {', '.join(missing)}; pass a dense symmetric array, "
            "what kernel_operator() returns, or an object with n, matmul, tile and diagonal"
        )
    return operator


def _checked_matrix(matrix: np.ndarray) -> np.ndarray:
    if matrix.dtype.kind not in "biuf":
        raise TypeError(f"`operator` has dtype {matrix.dtype}, expected real numbers")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise ValueError(f"`operator` has shape {matrix.shape}, expected (n, n) with n >= 1")
    matrix = np.asarray(matrix, dtype=np.float64)
    rows = max(1, 2**20 // len(matrix))  # at a time, so that nothing of the matrix's size is made
    bound = 0.0
    for begin in range(0, len(matrix), rows):
        strip = matrix[begin : begin + rows]
        if not np.isfinite(strip).all():
            i, j = np.argwhere(~np.isfinite(strip))[0]
            raise ValueError(f"`operator[{begin + i}, {j}]` is {strip[i, j]}, expected a finite number")
        bound = max(bound, float(np.abs(strip).max()))
    for begin in range(0, len(matrix), rows):
        asymmetry = np.abs(matrix[begin : begin + rows] - matrix[:, begin : begin + rows].T)
        if asymmetry.max() > ASYMMETRY * bound:
            i, j = np.unravel_index(asymmetry.argmax(), asymmetry.shape)
            i = int(i) + begin
            raise ValueError(
                f"`operator[{i}, {j}]` is {matrix[i, j]} but `operator[{j}, {i}]` is {matrix[j, i]}, expected a "
                "symmetric matrix; symmetrise it by (K + K.T) / 2"
            )
    return matrix
