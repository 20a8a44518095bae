"""Symmetric positive semi-definite matrices for solvers, defined by their products.

`KernelOperator` is K_ij = k(x_i, x_j), a pair problem with features 1; `DenseOperator` is a matrix in memory. Both, and
custom operators, implement `SymmetricOperator`. Solvers see NumPy arrays, or CuPy arrays for points and matrices on an
NVIDIA GPU. Points on other devices stay there, with vectors and products as NumPy arrays.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import check_choice
from kcalib._input.checks import check_points, reject
from kcalib._packing import Packed, pack_points
from kcalib._pairs.backends.base import Backend, Workers, diagonal
from kcalib._pairs.dispatch import backend_for, in_single_precision
from kcalib._pairs.feature_sums import gram
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.reductions import DenseRectangle, Products, sweep_one
from kcalib.kernels import Kernel

MEMBERS = ("n", "matmul", "tile", "diagonal")
ASYMMETRY = 1e-10  # of a dense matrix, relative to its largest entry


class SymmetricOperator(Protocol):
    """Protocol of a symmetric positive semi-definite matrix K for solvers.

    Arrays are NumPy arrays, or CuPy arrays if the right sides are on a GPU.
    """

    @property
    def n(self) -> int:
        """Return the number of rows."""

    def matmul(self, vectors: Array, dtype: str = "float64") -> Array:
        """Return K @ vectors, float64, for float64 `vectors` of shape (n, c).

        With "float32" a relative error of about 1e-6 is allowed; an operator may ignore it.
        """

    def tile(self, rows: Any, columns: Any) -> Array:
        """Return K[rows][:, columns], float64; each is a slice or a NumPy array of integers."""

    def diagonal(self) -> Array:
        """Return the diagonal of K, float64, shape (n,)."""


class KernelOperator:
    """K_ij = k(x_i, x_j), never stored; made by `kernel_operator`."""

    def __init__(self, packed: Packed, *, threads: int | None, backend: str | Workers | None) -> None:
        self.kernel = packed.kernel
        self._backend = backend_for(packed.problem, backend=backend, threads=threads)
        self._threads = threads

    @property
    def n(self) -> int:
        return int(self._backend.problem.left.points.shape[0])

    @property
    def name(self) -> str:
        """Return the name of the backend."""
        return self._backend.name

    @property
    def reason(self) -> str:
        """Return the reason for that backend."""
        return self._backend.reason

    @property
    def threads(self) -> int | None:
        """Return the largest number of threads; None if the array library decides."""
        return self._backend.threads

    @property
    def epsilon(self) -> float:
        """Return the machine epsilon of the kernel's arithmetic."""
        return float(np.finfo(str(self._points.dtype).rpartition(".")[2]).eps)

    @on_their_gpu
    def matmul(self, vectors: Array, dtype: str = "float64") -> Array:
        check_choice("dtype", dtype, ("float64", "float32"))
        if self._on_gpu:
            check_same_device(vectors, self._points, "the vectors to multiply", self)
        backend = self._single if dtype == "float32" else self._backend
        if self._on_gpu:
            return sweep_one(backend, Products(vectors, dtype))
        return arrays.to_host(sweep_one(backend, Products(arrays.like(vectors, self._points), dtype)))

    @on_their_gpu
    def tile(self, rows: Any, columns: Any) -> Array:
        rows, columns = (i if isinstance(i, slice) else arrays.like(i, self._points) for i in (rows, columns))
        tile = sweep_one(self._backend, DenseRectangle(rows, columns))
        if self._on_gpu:
            return arrays.namespace(tile).astype(tile, np.float64, copy=False)
        return np.asarray(arrays.to_host(tile), dtype=np.float64)

    @on_their_gpu
    def diagonal(self) -> Array:
        values = diagonal(self._backend.problem, self.threads or 1)
        values = values if self._on_gpu else arrays.to_host(values)
        return arrays.namespace(values).broadcast_to(values, (self.n,))

    def gram(self, feature_map: FeatureMap, points: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the Gram matrix of features and columns of samples in host memory, computed by the backend."""
        if self._backend.parallel is not None:
            return self._backend.parallel.gram(self._backend, feature_map, columns)
        return gram(feature_map, points, columns, threads=self._threads)

    @property
    def reference(self) -> Array:
        """Return an array on the device of vectors and tiles."""
        return self._points if self._on_gpu else np.empty(0)

    @property
    def _on_gpu(self) -> bool:
        return arrays.is_cuda(self._points)

    @property
    def _points(self) -> Any:
        return self._backend.problem.left.points

    @cached_property
    def _single(self) -> Backend:
        """Return a backend in float32, if that is faster."""
        return in_single_precision(self._backend)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.n} points, {self.kernel}, {self.name}>"


class DenseOperator:
    """A symmetric matrix in memory."""

    def __init__(self, matrix: Array) -> None:
        self.matrix = matrix

    @property
    def n(self) -> int:
        return len(self.matrix)

    @property
    def reference(self) -> Array:
        """Return an array on the device of vectors and tiles."""
        return self.matrix

    def matmul(self, vectors: Array, dtype: str = "float64") -> Array:
        return self.matrix @ vectors

    def tile(self, rows: Any, columns: Any) -> Array:
        rows, columns = (i if isinstance(i, slice) else arrays.like(i, self.matrix) for i in (rows, columns))
        return self.matrix[rows][:, columns]

    def diagonal(self) -> Array:
        return arrays.namespace(self.matrix).linalg.diagonal(self.matrix)

    def __repr__(self) -> str:
        return f"the dense matrix of shape {self.matrix.shape}"


@on_their_gpu
def kernel_operator(
    points: Any,
    kernel: Kernel | None,
    *,
    dtype: str | None = None,
    threads: int | None = None,
    backend: str | None = None,
) -> KernelOperator:
    """Return the kernel matrix of points, without storing it, for `solve` and `pivoted_cholesky`.

    .. math:: K_{ij} = k(x_i, x_j)

    A product with c vectors takes one sweep over the pairs and n^2 c multiply-adds, and O(n (m + c)) memory; for binary
    predictions with exponential and Matern kernels O(n log n + n c).

    Parameters
    ----------
    points : array_like, shape (n, m)
        Predicted probabilities, or other points. For CuPy arrays and CUDA tensors vectors, tiles and diagonal are CuPy
        arrays on their GPU.
    kernel : Kernel or None
        One of `kcalib.kernels` (default `kcalib.kernels.Exponential`); a bandwidth None is the median distance.
    dtype : {"float64", "float32"}, optional
        Precision of the kernel; float64 by default.
    threads : int, optional
        Number of threads.
    backend : {"sorted", "cpu", "cuda", "array-api"}, optional
        The backend of the pair engine; by default the fastest exact one.

    Returns
    -------
    KernelOperator
        `n`, ``matmul(vectors, dtype="float64")``, ``tile(rows, columns)``, ``diagonal()``, the `kernel` with numeric
        bandwidths, and `name`, `reason` and `threads` of the backend.

    Raises
    ------
    TypeError, ValueError
        If `points` are not numbers, or `kernel` is not one of `kcalib.kernels`; if `points` are not finite, not of two
        dimensions, or have no rows; if `dtype` or `backend` is unknown, or `backend` does not support the points; if
        the median heuristic finds no bandwidth.

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
    checked = check_points(arrays.as_array(points, "points"), "points")
    if checked.shape[0] == 0:
        raise ValueError("`points` has no rows, expected at least one")
    return KernelOperator(pack_points(checked, kernel, name, threads=threads), threads=threads, backend=backend)


def as_operator(operator: Any) -> SymmetricOperator:
    """Return an operator unchanged, and a dense matrix as an operator."""
    missing = [name for name in MEMBERS if not hasattr(operator, name)]
    if missing and (isinstance(operator, (list, tuple)) or hasattr(operator, "shape")):
        return DenseOperator(_check_matrix(as_numpy_or_cupy(operator, "operator")))
    if missing:
        raise TypeError(
            f"`operator` is of {type(operator)}, which lacks {', '.join(missing)}; pass a dense symmetric array, "
            "what kernel_operator() returns, or an object with n, matmul, tile and diagonal"
        )
    return operator


def reference_of(operator: SymmetricOperator) -> Array | None:
    """Return an array on the device of the operator's vectors; None for a custom operator."""
    return operator.reference if isinstance(operator, (KernelOperator, DenseOperator)) else None


def shifted_product(operator: SymmetricOperator, vectors: Array, shift: float, dtype: str = "float64") -> Array:
    """Return (K + shift I) vectors."""
    product = operator.matmul(vectors, dtype)
    check_same_device(product, vectors, "a product with K", operator)
    if not math.isfinite(float(arrays.namespace(vectors).sum(product))):
        raise ValueError(f"a product with K, {operator!r}, is not finite; check the operator's matmul")
    return product + shift * vectors


def check_same_device(array: Array, reference: Array, noun: str, operator: SymmetricOperator) -> None:
    """Raise a TypeError if only one of two arrays is on a GPU."""
    if arrays.is_cuda(array) != arrays.is_cuda(reference):
        expected = f"a CuPy array on {arrays.describe_device(reference)}"
        raise TypeError(
            f"{noun} is of {type(array)}, expected {expected if arrays.is_cuda(reference) else 'a NumPy array'}: K is "
            f"{operator!r}, and right sides and products are on one device"
        )


def as_numpy_or_cupy(values: Any, name: str) -> Array:
    """Return a CuPy array for arrays on an NVIDIA GPU, else a NumPy array."""
    array = arrays.as_array(values, name)
    return array if arrays.is_cuda(array) else arrays.to_host(array)


def check_real(array: Array, name: str) -> Array:
    """Return finite real numbers as float64."""
    if array.dtype.kind not in "biuf":
        raise TypeError(f"`{name}` has dtype {array.dtype}, expected real numbers")
    xp = arrays.namespace(array)
    array = xp.asarray(array, dtype=xp.float64)
    reject(array, ~xp.isfinite(array), lambda at, x: f"`{name}{at}` is {x}, expected a finite number")
    return array


def _check_matrix(matrix: Array) -> Array:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise ValueError(f"`operator` has shape {matrix.shape}, expected (n, n) with n >= 1")
    matrix = check_real(matrix, "operator")
    xp = arrays.namespace(matrix)
    bound = max(float(xp.max(matrix)), -float(xp.min(matrix)))
    rows = max(1, (2**24 if arrays.is_cuda(matrix) else 2**20) // len(matrix))  # of temporary arrays
    for begin in range(0, len(matrix), rows):
        asymmetry = xp.abs(matrix[begin : begin + rows] - matrix[:, begin : begin + rows].T)
        if float(xp.max(asymmetry)) > ASYMMETRY * bound:
            i, j = divmod(int(xp.argmax(asymmetry)), len(matrix))
            i += begin
            raise ValueError(
                f"`operator[{i}, {j}]` is {float(matrix[i, j])} but `operator[{j}, {i}]` is {float(matrix[j, i])}, "
                "expected a symmetric matrix; symmetrise it by (K + K.T) / 2"
            )
    return matrix
