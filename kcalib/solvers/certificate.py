"""The value <Z, K Z> of a solution of (K + s I) Z = E, with a bound of its error.

The value is the CKCE if E are residuals. `kcalib.estimators.ckce_system` and `kcalib.inference.ckce_expansion` pass a
`Certificate` as the judge to solvers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib.solvers.conjugate_gradient import KNOWN
from kcalib.solvers.kernel_operator import SymmetricOperator
from kcalib.solvers.ridge_system import Verdict

SMALLEST_VALUE = 1e-6  # relative to the largest possible; below it `tol` is absolute
BLOCK_COLUMNS = 64  # columns that are multiplied by K together


@dataclass(frozen=True, kw_only=True)
class CertifiedValue(Verdict):
    """The value of a solution, a bound of its error, and whether the solver may stop."""

    value: float
    bound: float


class Certificate:
    """A judge that bounds the error of the value <Z, K Z> of a solution Z.

    With A = K + s I and the residual R = E - A Z the exact solution is Z + A^{-1} R. Its value exceeds that of Z by 2
    <Z, K A^{-1} R> + <R, A^{-1} K A^{-1} R>. For a psd K the norm of K A^{-1} is below 1 and that of A^{-1} K A^{-1} at
    most 1 / (4 s). By the Cauchy-Schwarz inequality, for the inner product with or without K, the first term is at most
    2 ||Z|| ||R|| and at most 2 sqrt(<Z, K Z>) ||R|| / sqrt(4 s).
    """

    def __init__(
        self,
        matrix: SymmetricOperator,
        right: Array,
        shift: float,
        tol: float,
        epsilon: float = 2.0**-52,
        rounding_of_value: float = 0.0,
    ) -> None:
        self._matrix, self._right, self._shift, self._tol = matrix, right, shift, tol
        self._right_norm = linalg.norm(right)
        self._xp = arrays.namespace(right)
        # Entries of K are at most max K_ii, with errors of a few epsilon that accumulate like random numbers.
        self._rounding = 4 * epsilon * math.sqrt(len(right)) * float(self._xp.max(matrix.diagonal()))
        self._epsilon = epsilon
        self._rounding_of_value = rounding_of_value

    def __call__(self, z: Array, residual: Array) -> CertifiedValue:
        """Return value and bound for a solution and its residual; accept them if rounding prevents better ones."""
        value, squares = 0.0, 0.0
        for columns in self._column_blocks():
            # E - s Z - R is K Z with the errors of R.
            products = self._right[:, columns] - self._shift * z[:, columns] - residual[:, columns]
            value += float(self._xp.sum(z[:, columns] * products))
            squares += linalg.squared_norm(residual[:, columns])
        norm, size = linalg.norm(z), math.sqrt(squares)
        rounding = self._residual_rounding(norm)
        bound = self._bound(value, norm, (1 + KNOWN) * size) + (rounding + KNOWN * size) * norm
        aim = self.aim(value)
        is_accepted = bound <= aim or size <= rounding
        needed = min(1.0, aim / bound) if bound > 0 else 0.0
        return CertifiedValue(is_accepted, needed, value=value, bound=bound)

    def aim(self, value: float) -> float:
        """Return the largest error that is accurate enough."""
        return self._tol * max(value, SMALLEST_VALUE * self._right_norm**2 / (4 * self._shift))

    def certify(self, z: Array, verdict: Verdict | None) -> CertifiedValue:
        """Return value and bound: from the solver's last verdict if its bound is small enough, else recomputed."""
        if isinstance(verdict, CertifiedValue) and verdict.bound <= self.aim(verdict.value):
            return verdict
        return self.recompute(z)

    def recompute(self, z: Array) -> CertifiedValue:
        """Return value and bound from another product K Z."""
        value, squares = 0.0, 0.0
        for columns in self._column_blocks():
            product = self._matrix.matmul(z[:, columns])
            value += float(self._xp.sum(z[:, columns] * product))
            squares += linalg.squared_norm(self._right[:, columns] - self._shift * z[:, columns] - product)
        norm = linalg.norm(z)
        bound = self._bound(value, norm, math.sqrt(squares)) + self._rounding * norm**2
        return CertifiedValue(bound <= self.aim(value), value=value, bound=bound)

    def _column_blocks(self) -> Iterator[slice]:
        for begin in range(0, self._right.shape[1], BLOCK_COLUMNS):
            yield slice(begin, begin + BLOCK_COLUMNS)

    def _bound(self, value: float, norm: float, residual: float) -> float:
        residual += self._residual_rounding(norm)
        size = min(norm, math.sqrt(max(value, 0.0) / (4 * self._shift)))
        return 2 * size * residual + residual**2 / (4 * self._shift) + self._rounding_of_value

    def _residual_rounding(self, norm: float) -> float:
        """Return the rounding error of a residual for the norm of Z."""
        return self._rounding * norm + self._epsilon * (self._right_norm + self._shift * norm)
