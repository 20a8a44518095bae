"""Solve kernel ridge systems (K + s I) Z = B with a matrix K that is never stored, and shifted Kronecker systems.

    kernel_operator    K_ij = k(x_i, x_j), by the pair engine     kernel_operator.py
    solve              Z, by one of two methods                   _solve.py
                       the system, and when to stop               ridge_system.py
                       by the error of <Z, K Z>                   certificate.py
                       dense Cholesky factorisation               cholesky.py
                       preconditioned block conjugate gradients   conjugate_gradient.py
    pivoted_cholesky   K ~ F F^T from a few columns               pivoted_cholesky.py
                       random features, sums over the samples     low_rank.py
    kronecker          (A (x) B + s I) x = b of dense A and B     kronecker.py

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
