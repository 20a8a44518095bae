"""Solve kernel ridge systems (K + s I) Z = B without storing K, and shifted Kronecker systems.

An operator is a dense matrix, or any object with products with vectors, tiles and a diagonal.
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
