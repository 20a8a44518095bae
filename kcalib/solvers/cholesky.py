"""Kernel ridge systems by a dense Cholesky factorisation: 8 n^2 bytes, n^3 / 3 multiply-adds.

The lower triangle of K + s I is computed in strips and factorised in place by LAPACK, or on a GPU by cuSOLVER, beside
it. Called by `_solve`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib.solvers.kernel_operator import SymmetricOperator, shifted_product
from kcalib.solvers.ridge_system import RidgeSystem, Solved, Solver, relative_residual

STRIP = 256  # rows of the matrix that are computed at a time


@dataclass(frozen=True, kw_only=True)
class Cholesky(Solver):
    """Exact, by a factorisation of the dense matrix: ``"cholesky"`` of `kcalib.ckce` and `kcalib.solvers.solve`.

    Time: n^3 / 3 multiply-adds beside one sweep over all pairs. Memory: 8 n^2 bytes, on a GPU 16 n^2.

    Parameters
    ----------
    tol : float, optional
        How exact the result has to be, or there is a warning; the factorisation leaves rounding only. What it is an
        error of, and its default, are as for `ConjugateGradient`.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1], [0.2, 0.6, 0.9]
    >>> kcalib.ckce(y, p, method=kcalib.methods.Cholesky(tol=1e-12)) == kcalib.ckce(y, p, method="cholesky")
    True
    """

    name: ClassVar[str] = "cholesky"

    def solve(self, system: RidgeSystem, reason: str) -> Solved:
        operator, right_sides = system.operator, system.right_sides
        memory = memory_of_cholesky(*right_sides.shape, on_gpu=system.on_gpu)
        what = f"K + shift I and its Cholesky factor of n = {operator.n} samples"
        system.check_memory(memory, what, "use method='cg', which needs O(n (rank + c))")
        values = solve_dense(operator, right_sides, system.shift)
        residuals = right_sides - shifted_product(operator, values, system.shift)
        relative = relative_residual(residuals, linalg.column_norms(right_sides))
        good, verdict = system.stopping_rule(self.tol)(values, residuals, relative)
        return Solved(values, residuals, good, verdict, self.name, reason, memory)


def memory_of_cholesky(n: int, c: int, *, on_gpu: bool = False) -> int:
    """Bytes: the matrix, two strips of it, solution, residual and a product; on a GPU the factor beside the matrix."""
    return 8 * n * ((2 if on_gpu else 1) * n + 2 * min(n, STRIP) + 3 * c)


def solve_dense(operator: SymmetricOperator, right_sides: Array, shift: float) -> Array:
    """(K + shift I)^{-1} right_sides, shape (n, c).

    Raises
    ------
    ValueError
        If K + shift I is not positive definite.
    """
    matrix = _lower_triangle(operator, right_sides, shift)
    if arrays.is_host(matrix):
        factor, info = scipy.linalg.lapack.dpotrf(matrix.T, lower=0, clean=0, overwrite_a=1)
        if info > 0:
            raise _not_definite(operator, f" at row {info - 1}")
        return scipy.linalg.cho_solve((factor, False), right_sides, check_finite=False)
    try:
        matrix = linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        raise _not_definite(operator, "") from None
    return linalg.cholesky_solve(matrix, right_sides)


def _lower_triangle(operator: SymmetricOperator, right_sides: Array, shift: float) -> Array:
    """K + shift I, row after row; what is above the diagonal blocks is never read, nor set."""
    n = operator.n
    matrix = arrays.namespace(right_sides).empty((n, n))
    for begin in range(0, n, STRIP):
        end = min(n, begin + STRIP)
        matrix[begin:end, :end] = operator.tile(slice(begin, end), slice(0, end))
    linalg.add_to_diagonal(matrix, shift)
    return matrix


def _not_definite(operator: SymmetricOperator, where: str) -> ValueError:
    return ValueError(
        f"K + shift I is not positive definite: its Cholesky factorisation ends{where}, and K is "
        f"{operator!r}; take a kernel that is positive definite (such as Exponential(), or Gaussian() with "
        "metric='euclidean'), or a larger shift"
    )
