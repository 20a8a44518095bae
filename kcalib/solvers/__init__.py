"""Solve kernel ridge systems (K + s I) Z = B with a matrix K that is never stored, and shifted Kronecker systems.

An operator is any object with a product with vectors, tiles and a diagonal, or a dense matrix.
"""

from kcalib.solvers._solve import ConvergenceWarning, Solution, solve
from kcalib.solvers.kernel_operator import KernelOperator, SymmetricOperator, kernel_operator
from kcalib.solvers.kronecker import Kronecker, KroneckerSolution, kronecker
from kcalib.solvers.pivoted_cholesky import LowRank, pivoted_cholesky

__all__ = [
    "ConvergenceWarning",
    "KernelOperator",
    "Kronecker",
    "KroneckerSolution",
    "LowRank",
    "Solution",
    "SymmetricOperator",
    "kernel_operator",
    "kronecker",
    "pivoted_cholesky",
    "solve",
]
