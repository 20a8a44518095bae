"""Compute the CKCE by solving (K + n lambda I) Z = E, with a certified error bound.

The solver asks a `Certificate` whether a solution is accurate enough.
"""

from __future__ import annotations

from dataclasses import replace

from kcalib._backend.warnings import warn
from kcalib._input.methods import Seeded
from kcalib.estimators.ckce_low_rank import PivotedCholesky
from kcalib.estimators.ckce_system import MethodResult, System
from kcalib.solvers._solve import AutomaticSolver, solve_checked
from kcalib.solvers.certificate import Certificate
from kcalib.solvers.conjugate_gradient import ConjugateGradient
from kcalib.solvers.ridge_system import Solver

VALUE_TOLERANCES = {"float64": 1e-8, "float32": 1e-3}  # default relative error of the value, by dtype
SMOOTH = {"gaussian", "rational_quadratic", "identity"}  # profiles of kernels that have a small rank on a line
LINE_RANK, LINE_ROUNDING = 100, 1e-15  # rank to try, until this share of the trace is left


class ToleranceWarning(UserWarning):
    """Warn that the error bound of a value is larger than the tolerance."""


def exact_value(system: System, solver: Solver) -> MethodResult:
    """Return the CKCE within the solver's tolerance; smooth kernels on a line are low-rank to rounding."""
    solver.check_size(system.n)
    tol = VALUE_TOLERANCES[system.dtype] if solver.tol is None else float(solver.tol)
    if isinstance(solver, AutomaticSolver) and _is_smooth_on_a_line(system):
        estimate = PivotedCholesky(rank=LINE_RANK, seed=solver.seed).estimate_until(system, LINE_ROUNDING)
        if estimate.error_bound is not None and estimate.error_bound <= tol * estimate.value:
            reason = f"on a line K has the numerical rank {estimate.rank}: exact to the bound"
            return estimate._replace(method_reason=reason, tol=tol)
    return _certified(system, solver, tol)


def _is_smooth_on_a_line(system: System) -> bool:
    profiles = {factor.profile for term in system.packed.problem.kernel for factor in term.factors}
    return system.residuals.is_binary and system.n > LINE_RANK and profiles <= SMOOTH


def _certified(system: System, solver: Solver, tol: float) -> MethodResult:
    """Return the CKCE and its error bound from a solver's solution Z."""
    right = system.residuals.take(slice(None))
    certificate = Certificate(system.matrix, right, system.shift, tol, system.epsilon, system.rounding_of_target)
    until_accepted = replace(solver, tol=None)
    try:
        solution, verdict = solve_checked(system.matrix, right, system.shift, until_accepted, judge=certificate)
    except ValueError as error:  # everything else is checked
        raise ValueError(
            f"{error} (the shift is n times `regularization`, {system.shift:.3g}; enlarge `regularization`)"
        ) from None
    certified = certificate.certify(solution.values, verdict)
    value = max(certified.value, 0.0) if system.is_definite else certified.value
    bound: float | None = certified.bound
    kind = "certificate"
    if not system.is_definite:
        bound, kind = None, "none: the kernel is not known to be positive definite"
    elif certified.bound > certificate.aim(value):
        warn(
            f"the value {value:.6g} has the error bound {certified.bound:.2g}, larger than `tol` {tol:g} times it; "
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
