"""Linear systems with kernel matrices."""

from kcalib.solvers._stand_in import kernel_operator, pivoted_cholesky, solve

__all__ = ["kernel_operator", "pivoted_cholesky", "solve"]
