"""Dense linear algebra of NumPy arrays (LAPACK, by SciPy) and of CuPy arrays (cuSOLVER, cuBLAS), on the array's device.

Matrices are float64, finite, and small enough: whoever calls has asked `_backend.memory.check_memory`. On the host each
function is the SciPy or NumPy call that it stands for, unless that would wake BLAS's threads for little: these wait for
more, and take the processors from our own for a tenth of a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.threads import resolve_threads

ONE_THREAD, FEW_ROWS = 2**18, 7  # multiply-adds, and rows of triangular systems, that OpenBLAS leaves to one thread
ONE_THREAD_QR, ONE_THREAD_COLUMNS = 2**13, 32  # numbers and columns of matrices that LAPACK's QR leaves to one
OWN_EIGH = 512  # rows of matrices, at most, whose eigenvectors take us as long as LAPACK, which wakes threads
NEGLIGIBLE = 1e-140  # beside 1: squares have all their digits down to about 1e-146
OWN_ROOT, OWN_GRAM, AT_ONCE = 512, 256, 40  # columns at most for which BLAS's threads are not woken, and taken at once


def cholesky(matrix: Array) -> Array:
    """The lower root L of a symmetric matrix L L^T, shape (n, n); only the lower triangle is read.

    A copy, beside the matrix, is made of it.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is not positive definite.
    """
    if arrays.is_host(matrix):
        return scipy.linalg.cholesky(matrix, lower=True, check_finite=False)
    import cupyx

    xp = arrays.namespace(matrix)
    with cupyx.errstate(linalg="raise"):  # unasked it does not look at what cuSOLVER reports
        root = xp.linalg.cholesky(matrix)
    if not bool(xp.all(xp.isfinite(xp.linalg.diagonal(root)))):
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return root


def solve_triangular(root: Array, right: Array, *, transposed: bool = False, lower: bool = True) -> Array:
    """root^-1 right, or root^-T right, for a triangular `root`."""
    if arrays.is_host(root):
        return scipy.linalg.solve_triangular(root, right, trans=int(transposed), lower=lower, check_finite=False)
    if right.size == 0:  # cuBLAS refuses matrices of no size
        return arrays.namespace(right).zeros_like(right)
    import cupyx.scipy.linalg

    if root.flags.c_contiguous:  # as it is, where cuBLAS would have a copy in columns
        root, transposed, lower = root.T, not transposed, not lower
    return cupyx.scipy.linalg.solve_triangular(root, right, trans=int(transposed), lower=lower)


def solve_triangular_rows(root: Array, right: Array) -> Array:
    """root^-1 right of a small lower root and long rows; on the host a few rows at a time, by one thread.

    Row after row within these: BLAS shares triangular systems of any size out, and its threads take the processors from
    the sweeps between them.
    """
    if not arrays.is_host(right):
        return solve_triangular(root, right)
    out = np.array(right, order="C")
    for begin in range(0, len(root), FEW_ROWS):
        rows = slice(begin, begin + FEW_ROWS)
        if begin:
            out[rows] -= combined(out[:begin].T, root[rows, :begin].T, threads=1).T
        for i in range(len(root))[rows]:
            out[i] -= np.einsum("k,kn->n", root[i, begin:i], out[begin:i])
            out[i] /= root[i, i]
    return out


def cholesky_solve(root: Array, right: Array) -> Array:
    """(L L^T)^-1 right, of the root L that `cholesky` returns."""
    if arrays.is_host(root):
        return scipy.linalg.cho_solve((root, True), right, check_finite=False)
    return solve_triangular(root, solve_triangular(root, right), transposed=True)


def inverse_root(matrix: Array) -> Array:
    """L^-1 of a symmetric matrix L L^T; on the host of at most `OWN_ROOT` rows by one thread of our own.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is not positive definite.
    """
    if arrays.is_host(matrix) and 0 < len(matrix) <= OWN_ROOT:
        inverse, fault = _native.inverse_root(matrix)
        if fault >= 0:
            raise np.linalg.LinAlgError(f"the matrix is not positive definite: row {fault} shows it")
        return np.asfortranarray(inverse)
    identity = arrays.beside(arrays.namespace(matrix).eye(len(matrix)), matrix)
    return solve_triangular(cholesky(matrix), identity)


def eigh(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues in ascending order, and eigenvectors in columns, of a symmetric matrix."""
    if arrays.is_host(matrix) and 0 < len(matrix) <= OWN_EIGH:
        return _Tridiagonal.of(matrix).eigenvectors()
    if arrays.is_host(matrix):
        return scipy.linalg.eigh(matrix, check_finite=False)
    found: Any = arrays.namespace(matrix).linalg.eigh(matrix)
    return found[0], found[1]


@dataclass(frozen=True)
class _Tridiagonal:
    """A symmetric matrix by Householder's reflections, of one thread, divided by a power of 2.

    That brings the largest entry to [0.5, 1). Columns are left out whose squares might underflow beside it.
    """

    diagonal: np.ndarray
    beside: np.ndarray
    reflections: np.ndarray
    exponent: int

    @classmethod
    def of(cls, matrix: np.ndarray) -> _Tridiagonal:
        largest = max(float(np.max(matrix)), -float(np.min(matrix)))
        if not math.isfinite(largest):
            raise np.linalg.LinAlgError("a matrix with entries that are not finite has no eigenvalues")
        exponent = math.frexp(largest)[1]
        rest = np.ldexp(np.array(matrix, dtype=np.float64, order="C"), -exponent)
        return cls(*_native.to_tridiagonal(rest, NEGLIGIBLE), rest, exponent)

    def eigenvalues(self) -> np.ndarray:
        values = scipy.linalg.eigvalsh_tridiagonal(self.diagonal, self.beside, check_finite=False)
        return np.ldexp(values, self.exponent)

    def eigenvectors(self) -> tuple[np.ndarray, np.ndarray]:
        """After the eigenvalues, in columns."""
        values, vectors = scipy.linalg.eigh_tridiagonal(self.diagonal, self.beside, check_finite=False)
        rows = np.ascontiguousarray(vectors.T)
        _native.reflect(self.reflections, rows)
        return np.ldexp(values, self.exponent), rows.T


def eigvalsh(matrix: Array) -> Array:
    """Eigenvalues, in ascending order, of a symmetric matrix."""
    if arrays.is_host(matrix) and 0 < len(matrix) <= OWN_EIGH:
        return _Tridiagonal.of(matrix).eigenvalues()
    if arrays.is_host(matrix):
        return scipy.linalg.eigvalsh(matrix, check_finite=False)
    return arrays.namespace(matrix).linalg.eigvalsh(matrix)


def add_to_diagonal(matrix: Array, value: float) -> None:
    """matrix + value I, in its place."""
    i = arrays.namespace(matrix).arange(len(matrix))
    matrix[i, i] += value


def inner_products(left: Array, right: Array, threads: int | None = None) -> Array:
    """left^T right of two matrices with many rows, on the host to the same bits for any number of threads.

    If columns of `left` are given one after the other, by our own threads. Otherwise in strips that one thread of BLAS
    multiplies: more take longer to wake, and to fall asleep, than such products take, and the sweeps between these find
    the processors busy.
    """
    if not arrays.is_host(left):
        return left.T @ right
    if _is_by_columns(left, right):
        return _native.tall_inner_products(left.T, np.ascontiguousarray(right), _sweep(threads))
    total = np.zeros((left.shape[1], right.shape[1]))
    for rows in _strips(len(left), left.shape[1] * right.shape[1]):
        total += left[rows].T @ right[rows]
    return total


def orthonormal(columns: np.ndarray) -> np.ndarray:
    """Q of columns = Q R, R with a positive diagonal, of columns on the host that do not depend on each other.

    Where LAPACK would wake its threads, by the root of their Gram matrix, twice.
    """
    if columns.size > ONE_THREAD_QR or columns.shape[1] > ONE_THREAD_COLUMNS:
        with suppress(np.linalg.LinAlgError):  # they nearly depend on each other
            return _by_gram(_by_gram(columns))
    orthogonal, triangle = np.linalg.qr(columns)
    return np.asarray(orthogonal * np.copysign(1.0, np.diag(triangle)))


def _by_gram(columns: np.ndarray) -> np.ndarray:
    columns = np.asfortranarray(columns)
    return combined(columns, inverse_root(inner_products(columns, columns)).T)


def gram(left: Array, threads: int | None = None) -> Array:
    """left^T left, likewise of columns given one after the other, `OWN_GRAM` at most; of more BLAS is faster."""
    count = left.shape[1]
    if count > OWN_GRAM or not _is_by_columns(left, left):
        return left.T @ left
    total = np.empty((count, count))
    for begin in range(0, count, AT_ONCE):
        end = begin + AT_ONCE
        total[begin:, begin:end] = inner_products(left[:, begin:], left[:, begin:end], threads)
        total[begin:end, end:] = total[end:, begin:end].T
    return total


def combined(left: Array, matrix: Array, threads: int | None = None) -> Array:
    """left @ matrix of a matrix with many rows and a small one, likewise."""
    if not arrays.is_host(left):
        return left @ matrix
    if _is_by_columns(left, matrix):
        return _native.tall_combined(left.T, np.ascontiguousarray(matrix), _sweep(threads)).T
    out = np.empty((len(left), matrix.shape[1]))
    for rows in _strips(len(left), left.shape[1] * matrix.shape[1]):
        np.matmul(left[rows], matrix, out=out[rows])
    return out


def cross_products(left: Array, right: Array, threads: int | None = None) -> Array:
    """left right^T, the inner products of rows of both, likewise."""
    if not arrays.is_host(left):
        return left @ right.T
    return combined(np.asfortranarray(right), left.T, threads).T


def _is_by_columns(left: np.ndarray, right: np.ndarray) -> bool:
    return bool(arrays.is_host(left) and left.flags.f_contiguous and left.size and right.size)


def _sweep(threads: int | None) -> _native.Sweep:
    return _native.Sweep(resolve_threads(threads))


def _strips(n: int, products: int) -> Iterator[slice]:
    """Of rows, with so many products in each."""
    step = max(1, ONE_THREAD // max(1, products))
    return (slice(begin, begin + step) for begin in range(0, n, step))


def row_products(left: Array, right: Array) -> Array:
    """<l_i, r_i> of the rows, shape (n,)."""
    if arrays.is_host(left):
        return np.einsum("ij,ij->i", left, right)
    return arrays.namespace(left).sum(left * right, axis=1)  # einsum would be n products of two vectors


def norm(values: Array) -> float:
    """The Euclidean (Frobenius) norm."""
    if arrays.is_host(values):
        return math.sqrt(squared_norm(values))
    return float(arrays.namespace(values).linalg.norm(values))


def column_norms(values: Array) -> np.ndarray:
    """The norm of each column of (n, c), on the host."""
    return arrays.to_host(arrays.namespace(values).linalg.norm(values, axis=0))


def weighted_squares(values: Array, weights: Array | None = None) -> float:
    """The sum of weights times squares, of weights 1 by default; on the host without arrays of their size."""
    if arrays.is_host(values):
        rows = (
            np.einsum("ij,ij->i", values, values)
            if weights is None
            else np.einsum("ij,ij,ij->i", values, values, weights)
        )
        return float(np.sum(rows))
    squares = values * values if weights is None else values * values * weights
    return float(arrays.namespace(values).sum(squares))


def squared_norm(values: Array) -> float:
    """The sum of squares."""
    return float(arrays.namespace(values).sum(values * values))
