"""Dense linear algebra of NumPy arrays (LAPACK, BLAS) and CuPy arrays (cuSOLVER, cuBLAS), on their device.

Matrices are float64; callers have checked the memory (`_backend.memory.check_memory`). On the host BLAS has one thread,
except for large decompositions: every bit is the same for any number of threads, and BLAS threads do not spin during
the next sweep.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.threads import one_blas_thread

LARGE = 2000  # rows of a matrix from which a decomposition takes long enough to share


@one_blas_thread()
def matmul(left: Array, right: Array) -> Array:
    """Return the product of two matrices."""
    return left @ right


def decomposition_threads(matrix: Array) -> AbstractContextManager[None]:
    """Limit BLAS to one thread, unless the matrix is so large that more threads save seconds."""
    return one_blas_thread() if len(matrix) <= LARGE else nullcontext()


def cholesky(matrix: Array, *, overwrite: bool = False) -> Array:
    """Return the lower Cholesky factor of a symmetric matrix L L^T; only the lower triangle is read.

    With `overwrite` the result may use the memory of the matrix.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is not positive definite.
    """
    if arrays.is_host(matrix):
        with decomposition_threads(matrix):
            # The transpose has the column order of LAPACK, which can write to it.
            return scipy.linalg.cholesky(matrix.T, overwrite_a=overwrite, check_finite=False).T
    import cupyx

    xp = arrays.namespace(matrix)
    with cupyx.errstate(linalg="raise"):  # otherwise CuPy ignores what cuSOLVER reports
        root = xp.linalg.cholesky(matrix)
    if not bool(xp.all(xp.isfinite(xp.linalg.diagonal(root)))):
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return root


@one_blas_thread()
def solve_triangular(root: Array, right: Array, *, transposed: bool = False, lower: bool = True) -> Array:
    """Return root^-1 right, or root^-T right, for a triangular `root`."""
    if arrays.is_host(root):
        return scipy.linalg.solve_triangular(root, right, trans=int(transposed), lower=lower, check_finite=False)
    if right.size == 0:  # cuBLAS refuses empty matrices
        return arrays.namespace(right).zeros_like(right)
    import cupyx.scipy.linalg

    if root.flags.c_contiguous:  # cuBLAS would copy it to Fortran order
        root, transposed, lower = root.T, not transposed, not lower
    return cupyx.scipy.linalg.solve_triangular(root, right, trans=int(transposed), lower=lower)


@one_blas_thread()
def cholesky_solve(root: Array, right: Array) -> Array:
    """Return (L L^T)^-1 right for the factor L of `cholesky`."""
    if arrays.is_host(root):
        by_rows = root.flags.c_contiguous  # SciPy would copy it
        return scipy.linalg.cho_solve((root.T if by_rows else root, not by_rows), right, check_finite=False)
    return solve_triangular(root, solve_triangular(root, right), transposed=True)


def eigh(matrix: Array, *, overwrite: bool = False) -> tuple[Array, Array]:
    """Return the ascending eigenvalues and the eigenvectors (columns) of a symmetric matrix.

    By divide and conquer: eigenvectors of equal eigenvalues are orthogonal to rounding.
    """
    if arrays.is_host(matrix):
        with decomposition_threads(matrix):
            return scipy.linalg.eigh(_as_columns(matrix), driver="evd", overwrite_a=overwrite)
    values, vectors = arrays.namespace(matrix).linalg.eigh(matrix)
    return values, vectors


def eigvalsh(matrix: Array, *, overwrite: bool = False) -> Array:
    """Return the ascending eigenvalues of a symmetric matrix."""
    if arrays.is_host(matrix):
        with decomposition_threads(matrix):
            return scipy.linalg.eigvalsh(_as_columns(matrix), overwrite_a=overwrite)
    return arrays.namespace(matrix).linalg.eigvalsh(matrix)


def orthonormalize(columns: np.ndarray) -> np.ndarray:
    """Return Q of columns = Q R, with a positive diagonal of R, for independent columns on the host."""
    orthogonal, triangle = np.linalg.qr(columns)
    return np.asarray(orthogonal * np.copysign(1.0, np.diag(triangle)))


def _as_columns(matrix: np.ndarray) -> np.ndarray:
    """Return a symmetric matrix in column order, which LAPACK does not copy."""
    return matrix if matrix.flags.f_contiguous else matrix.T


def add_to_diagonal(matrix: Array, value: float) -> None:
    """Add `value` times the identity to a matrix in place."""
    i = arrays.namespace(matrix).arange(len(matrix))
    matrix[i, i] += value


def row_products(left: Array, right: Array) -> Array:
    """Return the inner products <l_i, r_i> of rows, shape (n,)."""
    if arrays.is_host(left):
        return np.einsum("ij,ij->i", left, right)
    return arrays.namespace(left).sum(left * right, axis=1)  # einsum would be n products of two vectors


def norm(values: Array) -> float:
    """Return the Euclidean (Frobenius) norm."""
    return math.sqrt(squared_norm(values))


def column_norms(values: Array) -> np.ndarray:
    """Return the norm of each column of (n, c), on the host."""
    return arrays.to_host(arrays.namespace(values).linalg.norm(values, axis=0))


def weighted_squares(values: Array, weights: Array) -> float:
    """Return the sum of weights times squares; on the host without large temporaries."""
    if arrays.is_host(values):
        return float(np.sum(np.einsum("ij,ij,ij->i", values, values, weights)))
    return float(arrays.namespace(values).sum(values * values * weights))


def squared_norm(values: Array) -> float:
    """Return the sum of squares."""
    return float(arrays.namespace(values).sum(values * values))
