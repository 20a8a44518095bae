"""Dense factorisations of NumPy arrays (LAPACK, by SciPy) and of CuPy arrays (cuSOLVER, cuBLAS), on the array's device.

Matrices are float64, finite, and small enough: whoever calls has asked `_memory.check_memory`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

from kcalib import _arrays
from kcalib._arrays import Array


def cholesky(matrix: Array) -> Array:
    """The lower root L of a symmetric matrix L L^T, shape (n, n).

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is not positive definite.
    """
    if _arrays.is_host(matrix):
        return scipy.linalg.cholesky(matrix, lower=True, check_finite=False)
    xp = _arrays.namespace(matrix)
    root = xp.linalg.cholesky(matrix)
    if not bool(xp.all(xp.isfinite(xp.linalg.diagonal(root)))):  # cuSOLVER reports by NaN
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return root


def solve_triangular(root: Array, right: Array, *, transposed: bool = False, lower: bool = True) -> Array:
    """root^-1 right, or root^-T right, for a triangular `root`."""
    if _arrays.is_host(root):
        return scipy.linalg.solve_triangular(root, right, trans=int(transposed), lower=lower, check_finite=False)
    import cupyx.scipy.linalg

    return cupyx.scipy.linalg.solve_triangular(root, right, trans=int(transposed), lower=lower)


def eigh(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues in ascending order, and eigenvectors in columns, of a symmetric matrix."""
    if _arrays.is_host(matrix):
        return scipy.linalg.eigh(matrix, check_finite=False)
    found: Any = _arrays.namespace(matrix).linalg.eigh(matrix)
    return found[0], found[1]


def eigvalsh(matrix: Array) -> Array:
    """Eigenvalues, in ascending order, of a symmetric matrix."""
    if _arrays.is_host(matrix):
        return scipy.linalg.eigvalsh(matrix, check_finite=False)
    return _arrays.namespace(matrix).linalg.eigvalsh(matrix)
