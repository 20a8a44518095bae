"""Define kernel ridge systems (K + s I) Z = B on checked data, stopping rules, and the base class of solvers.

A solution is good enough by its relative residual (`tol`), or because a *judge* of the caller accepts it. A judge sees
each solution once, and its verdict is returned with the solution. The solvers are in `cholesky`, `conjugate_gradient`
and `_solve`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.memory import available_memory, available_memory_on_gpu, check_memory
from kcalib._backend.options import check_positive
from kcalib._input.methods import Method
from kcalib.solvers.kernel_operator import SymmetricOperator

RESIDUAL_TOLERANCE = 1e-10  # default of `tol` where there is no judge


class Verdict(Protocol):
    """What a judge returns about a solution."""

    @property
    def accepted(self) -> bool:
        """Return whether the solution is good enough."""

    @property
    def needed(self) -> float:
        """Return about the share of the residual that would be good enough; 0 if unknown."""


Judge = Callable[[Array, Array], Verdict]  # takes Z and the residual R = B - (K + s I) Z, and changes neither


class Assessment(NamedTuple):
    """Whether a solution is good enough, and the judge's verdict if it was asked."""

    is_good: bool
    verdict: Verdict | None


@dataclass(frozen=True)
class StoppingRule:
    """Accept a solution whose relative residual is at most `tol`, or that the judge accepts."""

    tol: float | None
    judge: Judge | None

    def __call__(self, values: Array, residuals: Array, relative: float) -> Assessment:
        if self.tol is not None and relative <= self.tol:
            return Assessment(True, None)
        if self.judge is None:
            return Assessment(False, None)
        verdict = self.judge(values, residuals)
        return Assessment(verdict.accepted, verdict)


@dataclass(frozen=True)
class RidgeSystem:
    """The system (K + shift I) Z = B, with checked arguments."""

    operator: SymmetricOperator
    right_sides: Array  # B, float64, shape (n, c), where the operator's vectors lie
    shift: float
    judge: Judge | None
    max_memory: float | None
    factor: Array | None = None  # F, shape (n, rank), with K ~ F F^T, if the caller has one

    def stopping_rule(self, tol: float | None) -> StoppingRule:
        """Return the rule of the judge and `tol`; without either, of the default tolerance."""
        if tol is None and self.judge is None:
            tol = RESIDUAL_TOLERANCE
        return StoppingRule(tol, self.judge)

    @property
    def on_gpu(self) -> bool:
        return arrays.is_cuda(self.right_sides)

    @property
    def allowed_memory(self) -> float | None:
        """Return the bytes that a solver may take; None if unknown."""
        if self.max_memory is not None:
            return self.max_memory
        return available_memory_on_gpu(self.right_sides.device) if self.on_gpu else available_memory()

    def check_memory(self, needed: int, what: str, remedy: str) -> None:
        check_memory(needed, self.max_memory, what, remedy, self.right_sides)


@dataclass(frozen=True, eq=False)
class SolverResult:
    """What a solver returns."""

    values: Array  # Z, shape (n, c)
    residuals: Array  # B - (K + shift I) Z, from products in float64
    converged: bool  # whether the stopping rule was met
    verdict: Verdict | None  # the judge's, if it was asked about these values
    method: str
    reason: str  # why that method
    memory: int  # bytes needed at most, beyond the arguments
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
        """Return the solution; `reason` says why this method was chosen.

        Raises
        ------
        ValueError
            If K + shift I is not positive definite, or a product with K is not finite.
        MemoryError
            If more memory is needed than is allowed.
        """


def relative_residual(residuals: Array, scales: np.ndarray) -> float:
    """Return the largest norm of a column relative to that of its right side, given by `scales`."""
    return largest_ratio(linalg.column_norms(residuals), scales)


def largest_ratio(sizes: np.ndarray, scales: np.ndarray) -> float:
    """Return the largest of `sizes` over `scales`, leaving out scales of 0."""
    return float(np.max(np.divide(sizes, scales, out=np.zeros_like(sizes), where=scales > 0), initial=0.0))
