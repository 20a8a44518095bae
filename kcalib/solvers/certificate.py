"""The value <Z, K Z> of a solution of (K + s I) Z = E, and a bound of its error: when a solver may stop.

This is the CKCE for residuals E. `kcalib.estimators.ckce_exact` and `kcalib.inference.ckce_expansion` pass a
`Certificate` as the judge of a solver's solutions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib.solvers.conjugate_gradient import KNOWN
from kcalib.solvers.kernel_operator import SymmetricOperator
from kcalib.solvers.ridge_system import Verdict

SMALLEST_VALUE = 1e-6  # relative to the largest possible: below, `tol` no longer follows the value
COLUMNS_AT_ONCE = 64  # of the residuals, multiplied by K at a time


class Certified(NamedTuple):
    """The value of a solution, a bound of its error, and whether a solver may stop at it."""

    value: float
    bound: float
    accepted: bool
    needed: float = 0.0  # share of the residual that would be good enough, about


class Certificate:
    """The value <Z, K Z> of a solution Z, and a bound of its error; tells a solver when to stop.

    With A = K + s I and the residual R = E - A Z the true solution is Z + A^{-1} R. Its value differs from that of Z by
    2 <Z, K A^{-1} R> + <R, A^{-1} K A^{-1} R>. For a psd K the norm of K A^{-1} is below 1 and that of A^{-1} K A^{-1}
    at most 1 / (4 s), so that by Cauchy and Schwarz, for the inner product with or without K, the first term is at
    most 2 ||Z|| ||R|| and at most 2 sqrt(<Z, K Z>) ||R|| / sqrt(4 s).
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
        # Entries of K are at most max K_ii. Their errors, some epsilon, and those of sums add up like random numbers.
        self._rounding = 4 * epsilon * math.sqrt(len(right)) * float(self._xp.max(matrix.diagonal()))
        self._epsilon = epsilon
        self._rounding_of_value = rounding_of_value

    def __call__(self, z: Array, residual: Array) -> Certified:
        """Value and bound of a solution that a solver shows with its residual; rounding may allow no better one."""
        value, squares = 0.0, 0.0
        for part in self._parts():
            products = self._right[:, part] - self._shift * z[:, part] - residual[:, part]
            value += float(self._xp.sum(z[:, part] * products))
            squares += linalg.squared_norm(residual[:, part])
        norm, size = linalg.norm(z), math.sqrt(squares)
        rounding = self._of_residual(norm)
        # E - s Z - R is K Z with the errors of R.
        bound = self._bound(value, norm, (1 + KNOWN) * size) + (rounding + KNOWN * size) * norm
        aim = self.aim(value)
        return Certified(value, bound, bound <= aim or size <= rounding, min(1.0, aim / bound) if bound > 0 else 0.0)

    def aim(self, value: float) -> float:
        """The largest error that is good enough."""
        return self._tol * max(value, SMALLEST_VALUE * self._right_norm**2 / (4 * self._shift))

    def of(self, z: Array, shown: Verdict | None) -> Certified:
        """Value and bound: those that the solver was told of Z, if the bound is good enough, or from another K Z."""
        if isinstance(shown, Certified) and shown.bound <= self.aim(shown.value):
            return shown
        return self.anew(z)

    def anew(self, z: Array) -> Certified:
        """Value and bound from K Z."""
        value, squares = 0.0, 0.0
        for part in self._parts():
            product = self._matrix.matmul(z[:, part])
            value += float(self._xp.sum(z[:, part] * product))
            squares += linalg.squared_norm(self._right[:, part] - self._shift * z[:, part] - product)
        norm = linalg.norm(z)
        bound = self._bound(value, norm, math.sqrt(squares)) + self._rounding * norm**2
        return Certified(value, bound, bound <= self.aim(value))

    def _parts(self) -> Iterator[slice]:
        for begin in range(0, self._right.shape[1], COLUMNS_AT_ONCE):
            yield slice(begin, begin + COLUMNS_AT_ONCE)

    def _bound(self, value: float, norm: float, residual: float) -> float:
        residual += self._of_residual(norm)
        size = min(norm, math.sqrt(max(value, 0.0) / (4 * self._shift)))
        return 2 * size * residual + residual**2 / (4 * self._shift) + self._rounding_of_value

    def _of_residual(self, norm: float) -> float:
        """Rounding of a residual, for the norm of Z."""
        return self._rounding * norm + self._epsilon * (self._right_norm + self._shift * norm)
