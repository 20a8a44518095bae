"""Solve kernel ridge systems by a dense Cholesky factorisation: 8 n^2 bytes, n^3 / 3 multiply-adds.

The lower triangle of K + s I is computed in strips and factorised in place by LAPACK, or on a GPU by cuSOLVER, which
needs a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib.solvers.kernel_operator import SymmetricOperator, shifted_product
from kcalib.solvers.ridge_system import RidgeSystem, Solver, SolverResult, relative_residual

STRIP = 256  # rows of the matrix that are computed at a time


@dataclass(frozen=True, kw_only=True)
class Cholesky(Solver):
    """Solve exactly by a dense factorisation: ``"cholesky"`` of `kcalib.ckce` and `kcalib.solvers.solve`.

    Time: one sweep over all pairs and n^3 / 3 multiply-adds. Memory: 8 n^2 bytes, on a GPU 16 n^2.

    Parameters
    ----------
    tol : float, optional
        Larger errors of the result raise a warning; the factorisation has rounding errors only. Meaning and default as
        in `ConjugateGradient`.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1], [0.2, 0.6, 0.9]
    >>> kcalib.ckce(y, p, method=kcalib.methods.Cholesky(tol=1e-12)) == kcalib.ckce(y, p, method="cholesky")
    True
    """

    name: ClassVar[str] = "cholesky"

    def solve(self, system: RidgeSystem, reason: str) -> SolverResult:
        operator, right_sides = system.operator, system.right_sides
        memory = memory_of_cholesky(*right_sides.shape, on_gpu=system.on_gpu)
        noun = f"K + shift I and its Cholesky factor of n = {operator.n} samples"
        system.check_memory(memory, noun, "use method='cg', which needs O(n (rank + c))")
        values = solve_dense(operator, right_sides, system.shift)
        residuals = right_sides - shifted_product(operator, values, system.shift)
        relative = relative_residual(residuals, linalg.column_norms(right_sides))
        is_good, verdict = system.assess(self.tol, values, residuals, relative)
        return SolverResult(values, residuals, is_good, verdict, self.name, reason, memory)


def memory_of_cholesky(n: int, c: int, *, on_gpu: bool = False) -> int:
    """Return the bytes of the matrix, two strips, solution, residual and a product; on a GPU also of the factor."""
    return 8 * n * ((2 if on_gpu else 1) * n + 2 * min(n, STRIP) + 3 * c)


def solve_dense(operator: SymmetricOperator, right_sides: Array, shift: float) -> Array:
    """Return (K + shift I)^{-1} right_sides, shape (n, c)."""
    matrix = _lower_triangle(operator, right_sides, shift)
    try:
        root = linalg.cholesky(matrix, overwrite=True)
    except np.linalg.LinAlgError as error:
        raise ValueError(
            f"K + shift I is not positive definite ({error}), and K is {operator!r}; take a kernel that is positive "
            "definite (such as Exponential(), or Gaussian() with metric='euclidean'), or a larger shift"
        ) from None
    return linalg.cholesky_solve(root, right_sides)


def _lower_triangle(operator: SymmetricOperator, right_sides: Array, shift: float) -> Array:
    """Return K + shift I in row order; entries above the diagonal blocks are not set."""
    n = operator.n
    matrix = arrays.namespace(right_sides).empty((n, n))
    for begin in range(0, n, STRIP):
        end = min(n, begin + STRIP)
        matrix[begin:end, :end] = operator.tile(slice(begin, end), slice(0, end))
    linalg.add_to_diagonal(matrix, shift)
    return matrix
