"""Kernel ridge systems (K + s I) Z = B on checked data, and the base class of solvers.

A solution is accurate enough by its relative residual (`tol`), or if a *judge* of the caller accepts it. A judge sees
each solution once, and its verdict is returned with the solution. The solvers are in `cholesky`, `conjugate_gradient`
and `_solve`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.memory import available_memory, available_memory_on_gpu, check_memory
from kcalib._backend.options import check_positive
from kcalib._input.methods import Method
from kcalib.solvers.kernel_operator import SymmetricOperator

RESIDUAL_TOLERANCE = 1e-10  # default of `tol` without a judge


@dataclass(frozen=True)
class Verdict:
    """The verdict of a judge on a solution."""

    accepted: bool  # whether the solution is accurate enough
    needed: float = 0.0  # about the share of the residual that would be small enough; 0 if unknown


Judge = Callable[[Array, Array], Verdict]  # takes Z and the residual R = B - (K + s I) Z, and changes neither


@dataclass(frozen=True)
class RidgeSystem:
    """The system (K + shift I) Z = B, with checked arguments."""

    operator: SymmetricOperator
    right_sides: Array  # B, float64, shape (n, c), on the device of the operator's vectors
    shift: float
    judge: Judge | None
    max_memory: float | None
    factor: Array | None = None  # F, shape (n, rank), with K ~ F F^T, if known

    def resolve_tolerance(self, tol: float | None) -> float | None:
        """Return `tol`, or the default if there is no judge either."""
        return RESIDUAL_TOLERANCE if tol is None and self.judge is None else tol

    def assess(
        self, tol: float | None, values: Array, residuals: Array, relative: float
    ) -> tuple[bool, Verdict | None]:
        """Return whether a solution is accurate enough by `tol` or the judge, and the verdict of the judge if asked."""
        tol = self.resolve_tolerance(tol)
        if tol is not None and relative <= tol:
            return True, None
        verdict = None if self.judge is None else self.judge(values, residuals)
        return verdict is not None and verdict.accepted, verdict

    @property
    def on_gpu(self) -> bool:
        return arrays.is_cuda(self.right_sides)

    @property
    def allowed_memory(self) -> float | None:
        """Return the bytes that a solver may take; None if unknown."""
        if self.max_memory is not None:
            return self.max_memory
        return available_memory_on_gpu(self.right_sides.device) if self.on_gpu else available_memory()

    def check_memory(self, needed: int, noun: str, remedy: str) -> None:
        check_memory(needed, self.max_memory, noun, remedy, self.right_sides)


@dataclass(frozen=True, eq=False)
class SolverResult:
    """The result of a solver."""

    values: Array  # Z, shape (n, c)
    residuals: Array  # B - (K + shift I) Z, computed in float64
    converged: bool  # whether these are small enough
    verdict: Verdict | None  # the judge's, if it was asked about these values
    method: str
    reason: str  # for the method
    memory: int  # peak memory in bytes, without the arguments
    iterations: int = 0
    rank: int = 0  # of the preconditioner


@dataclass(frozen=True, kw_only=True)
class Solver(Method):
    """A method that solves a `RidgeSystem`."""

    tol: float | None = None

    def __post_init__(self) -> None:
        if self.tol is not None:
            check_positive("tol", self.tol)

    def check_size(self, n: int) -> None:
        """Raise a ValueError if an option does not fit n samples; call this before `solve`."""

    @abstractmethod
    def solve(self, system: RidgeSystem, reason: str) -> SolverResult:
        """Return the solution; `reason` explains the choice of this method."""


def relative_residual(residuals: Array, scales: np.ndarray) -> float:
    """Return the largest norm of a column relative to that of its right side, given by `scales`."""
    return largest_ratio(linalg.column_norms(residuals), scales)


def largest_ratio(sizes: np.ndarray, scales: np.ndarray) -> float:
    """Return the largest ratio of `sizes` to `scales`, leaving out scales of 0."""
    return float(np.max(np.divide(sizes, scales, out=np.zeros_like(sizes), where=scales > 0), initial=0.0))
