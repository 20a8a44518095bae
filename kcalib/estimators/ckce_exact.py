"""The CKCE by solving (K + n lambda I) Z = E: the value of a solution, and a certificate of its error.

`exact_value` is what `ckce` calls for the methods of `kcalib.solvers`; the certificate goes down to the solver as the
judge of its solutions, and what it found about the last one comes back with it. `kcalib.inference.ckce_expansion` uses
the certificate too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.warnings import warn
from kcalib._input.methods import Seeded
from kcalib.estimators.ckce_low_rank import PivotedCholesky
from kcalib.estimators.ckce_system import MethodResult, System
from kcalib.solvers._solve import AutomaticSolver, solved
from kcalib.solvers.conjugate_gradient import KNOWN, ConjugateGradient
from kcalib.solvers.kernel_operator import SymmetricOperator
from kcalib.solvers.ridge_system import Solver, Verdict

VALUE_TOLERANCES = {"float64": 1e-8, "float32": 1e-3}  # error of the value relative to it, by dtype
SMALLEST_VALUE = 1e-6  # relative to the largest possible: below, `tol` no longer follows the value
SMOOTH = {"gaussian", "rational_quadratic", "identity"}  # profiles whose kernels on a line have small rank
LINE_RANK, LINE_ROUNDING = 100, 1e-15  # rank that is tried there, until this share of the trace is left
COLUMNS_AT_ONCE = 64  # of the residuals, multiplied by K at a time


class ToleranceWarning(UserWarning):
    """The error bound of a value is larger than was asked for."""


def exact_value(system: System, solver: Solver) -> MethodResult:
    """The value to the solver's tolerance. On a line a smooth kernel's factor of small rank is K to rounding.

    Raises
    ------
    ValueError
        If K + n lambda I is not positive definite, or an option does not fit the system.
    MemoryError
        If more memory is needed than is allowed.
    """
    solver.check_size(system.n)
    tol = VALUE_TOLERANCES[system.dtype] if solver.tol is None else float(solver.tol)
    if isinstance(solver, AutomaticSolver) and _is_smooth_on_a_line(system):
        found = PivotedCholesky(rank=LINE_RANK, seed=solver.seed).estimate_until(system, LINE_ROUNDING)
        if found.error_bound is not None and found.error_bound <= tol * found.value:
            reason = f"on a line K has the numerical rank {found.rank}: exact to the bound"
            return found._replace(method_reason=reason, tol=tol)
    return _certified(system, solver, tol)


def _is_smooth_on_a_line(system: System) -> bool:
    profiles = {factor.profile for term in system.packed.problem.kernel for factor in term.factors}
    needed = 8 * system.n * (LINE_RANK + system.columns)
    has_room = system.max_memory is None or needed <= system.max_memory
    return system.sides.is_binary and system.n > LINE_RANK and profiles <= SMOOTH and has_room


def _certified(system: System, solver: Solver, tol: float) -> MethodResult:
    """The value and its certificate, from a solver's Z."""
    right = system.residuals.take(slice(None))
    certificate = Certificate(system.matrix, right, system.shift, tol, system.epsilon, system.rounding_of_target)
    until_accepted = replace(solver, tol=None)
    try:
        solution, verdict = solved(
            system.matrix, right, system.shift, until_accepted, judge=certificate, max_memory=system.max_memory
        )
    except ValueError as error:  # everything else is checked
        raise ValueError(
            f"{error} (n times `regularization` is the shift, {system.shift:.3g}: a larger one helps in any case)"
        ) from None
    value, size, _ = certificate.of(solution.values, verdict)
    value = max(value, 0.0) if system.is_definite else value
    bound: float | None = size
    kind = "certificate"
    if not system.is_definite:
        bound, kind = None, "none: the kernel is not known to be positive definite"
    elif size > certificate.aim(value):
        warn(
            f"the value {value:.6g} has the error bound {size:.2g}, larger than `tol` {tol:g} times the value; "
            "enlarge `tol` or `regularization`",
            ToleranceWarning,
        )
    iterative = solution.method == ConjugateGradient.name
    return MethodResult(
        value,
        bound,
        kind,
        solution.method,
        solution.method_reason,
        solution.memory,
        tol,
        iterations=solution.iterations if iterative else None,
        rank=solution.rank if iterative else None,
        seed=solver.drawn_seed if solution.rank and isinstance(solver, Seeded) else None,
    )


class Certified(NamedTuple):
    """The value of a solution, a bound of its error, and whether a solver may stop at it."""

    value: float
    bound: float
    accepted: bool


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
        return Certified(value, bound, bound <= self.aim(value) or size <= rounding)

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
