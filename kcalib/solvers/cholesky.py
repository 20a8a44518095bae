"""Kernel ridge systems by one dense Cholesky factorisation: 8 n^2 bytes, n^3 / 3 multiply-adds.

The upper triangle of K + s I is computed in strips and factorised in place by LAPACK. Called by `_solve`.
"""

from __future__ import annotations

import numpy as np
import scipy

from kcalib.solvers._operators import SymmetricOperator

STRIP = 256  # columns of the matrix that are computed at a time


def memory_of_cholesky(n: int, c: int) -> int:
    """Bytes: the matrix, two strips of it, solution, residual and a product."""
    return 8 * n * (n + 2 * min(n, STRIP) + 3 * c)


def cholesky_solve(operator: SymmetricOperator, right_sides: np.ndarray, shift: float) -> np.ndarray:
    """(K + shift I)^{-1} right_sides, shape (n, c).

    Raises
    ------
    ValueError
        If K + shift I is not positive definite.
    """
    factor = _factorised(_upper_triangle(operator, shift), operator)
    return scipy.linalg.cho_solve((factor, False), right_sides, check_finite=False)


def _upper_triangle(operator: SymmetricOperator, shift: float) -> np.ndarray:
    """K + shift I, in the column order of LAPACK; what is below the diagonal blocks is never read, nor set."""
    n = operator.n
    matrix = np.empty((n, n), order="F")
    for begin in range(0, n, STRIP):
        end = min(n, begin + STRIP)
        matrix[:end, begin:end] = operator.tile(slice(begin, end), slice(0, end)).T
    matrix[np.diag_indices(n)] += shift
    return matrix


def _factorised(matrix: np.ndarray, operator: SymmetricOperator) -> np.ndarray:
    factor, info = scipy.linalg.lapack.dpotrf(matrix, lower=0, clean=0, overwrite_a=1)
    if info > 0:
        raise ValueError(
            f"K + shift I is not positive definite: its Cholesky factorisation ends at row {info - 1}, and K is "
            f"{operator!r}; take a kernel that is positive definite (such as Exponential(), or Gaussian() with "
            "metric='euclidean'), or a larger shift"
        )
    return factor
