"""Solve kernel ridge systems (K + s I) Z = B by one of the `SOLVERS`.

`solve` is public and checks its arguments; `solve_checked` is for checked arguments. `AutomaticSolver` chooses between
the other solvers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.memory import check_max_memory
from kcalib._backend.options import check_integer, check_positive
from kcalib._backend.warnings import warn
from kcalib._input.methods import Seeded, resolved
from kcalib.report.summary import Summarized
from kcalib.solvers.cholesky import Cholesky, memory_of_cholesky
from kcalib.solvers.conjugate_gradient import ConjugateGradient
from kcalib.solvers.kernel_operator import (
    SymmetricOperator,
    as_numpy_or_cupy,
    as_operator,
    check_real,
    reference_of,
)
from kcalib.solvers.ridge_system import Judge, RidgeSystem, Solver, SolverResult, Verdict, relative_residual

CHOLESKY_UP_TO = 1000  # samples; for more conjugate gradients are faster, unless the shift is very small
CHOLESKY_COLUMNS = 4  # or up to this times the number of right sides, which conjugate gradients orthonormalise
PATIENCE = 10, 200  # iterations, or n over the second number, after which "auto" switches to a dense factorisation


class ConvergenceWarning(UserWarning):
    """A solver stopped before its tolerance was met."""


@dataclass(frozen=True, eq=False)
class Solution(Summarized):
    """Solution of a kernel ridge system (K + s I) Z = B."""

    values: Array  #: Z, float64, of the shape of B, in the library of B on a GPU, else a NumPy array
    residual: float  #: Frobenius norm of R = B - (K + s I) Z, computed in float64
    relative_residual: float  #: largest norm of a column of R, relative to that of B
    iterations: int  #: of conjugate gradients: products with K, except for recomputed residuals
    rank: int  #: of the preconditioner
    method: str  #: "cholesky" or "cg"
    method_reason: str  #: the reason for this method
    memory: int  #: peak memory in bytes, without the arguments
    converged: bool  #: whether `tol`, or `accept`, was met

    def __repr__(self) -> str:
        return (
            f"Solution(shape={self.values.shape}, method={self.method!r}, relative_residual="
            f"{self.relative_residual:.3g}, iterations={self.iterations}, rank={self.rank}, converged={self.converged})"
        )


@dataclass(frozen=True, kw_only=True)
class AutomaticSolver(Seeded, Solver):
    """Solve exactly by the faster method: ``"auto"`` of `kcalib.ckce` and `kcalib.solvers.solve`.

    `Cholesky` up to 1000 samples, or up to 4 times the number of right sides; otherwise `ConjugateGradient`. If this
    does not converge within 10 iterations (n / 200 from 2000 samples on), which take about as long as a dense
    factorisation, Cholesky follows. Without enough memory for Cholesky, always conjugate gradients. `kcalib.ckce` tries
    a low-rank factor first.

    Parameters
    ----------
    tol : float, optional
        Tolerance of conjugate gradients, as for `ConjugateGradient`.
    seed : int, optional
        Seed of random pivots, at least 0. By default a seed is drawn; the result reports it.

    Examples
    --------
    >>> import kcalib
    >>> method = kcalib.methods.AutomaticSolver(tol=1e-6)
    >>> kcalib.ckce.result([0, 1, 1], [0.2, 0.6, 0.9], method=method).method
    'cholesky'
    """

    name: ClassVar[str] = "auto"

    def __post_init__(self) -> None:
        Solver.__post_init__(self)
        Seeded.__post_init__(self)

    def solve(self, system: RidgeSystem, reason: str) -> SolverResult:
        n, columns = system.right_sides.shape
        dense, iterative = Cholesky(tol=self.tol), ConjugateGradient(tol=self.tol, seed=self.seed)
        limit = system.allowed_memory
        if limit is not None and memory_of_cholesky(n, columns, on_gpu=system.on_gpu) > limit:
            reason = "a dense factorisation takes more memory than available or allowed"
            return iterative.solve(system, reason)
        if n <= CHOLESKY_UP_TO:
            return dense.solve(system, f"up to {CHOLESKY_UP_TO} samples a dense factorisation takes no longer")
        if n <= CHOLESKY_COLUMNS * columns:
            return dense.solve(system, f"with {columns} right sides a dense factorisation takes no longer")
        reason = f"from {CHOLESKY_UP_TO} samples on faster than a dense factorisation"
        patience = max(PATIENCE[0], n // PATIENCE[1])
        if iterative.max_iterations <= patience:
            return iterative.solve(system, reason)
        result = replace(iterative, max_iterations=patience).solve(system, reason)
        if result.converged:
            return result
        left = relative_residual(result.residuals, linalg.column_norms(system.right_sides))
        return dense.solve(system, f"{result.iterations} iterations of conjugate gradients have left {left:.2g}")


SOLVERS: tuple[type[Solver], ...] = (AutomaticSolver, Cholesky, ConjugateGradient)


@on_their_gpu
def solve(
    operator: Any,
    right_sides: Any,
    shift: float,
    *,
    method: str | Solver = "auto",
    accept: Callable[[Array, Array], bool] | None = None,
    max_memory: float | None = None,
) -> Solution:
    r"""Solve a kernel ridge system; K is stored by "cholesky" only.

    .. math:: (K + s I) Z = B

    Parameters
    ----------
    operator : operator or array_like, shape (n, n)
        K, symmetric and positive semi-definite, of any rank: the result of `kernel_operator`, a dense matrix, or any
        object with `n`, ``matmul(vectors, dtype="float64")`` (K @ vectors, float64, for an (n, c) array; "float32"
        allows a relative error of 1e-6), ``tile(rows, columns)`` (dense, for slices or integer arrays of NumPy) and
        ``diagonal()``. These return NumPy arrays, or CuPy arrays if the right sides are on a GPU.
    right_sides : array_like, shape (n,) or (n, c)
        B. For CuPy arrays and CUDA tensors K must be on the same GPU, and everything is computed there.
    shift : float
        The number s > 0.
    method : {"auto", "cholesky", "cg"} or method
        The solver; for options pass `kcalib.methods.AutomaticSolver`, `kcalib.methods.Cholesky` or
        `kcalib.methods.ConjugateGradient`, which document costs and tolerances.
    accept : callable, optional
        ``accept(Z, R) -> bool`` decides whether a solution with residual R = B - (K + s I) Z is accurate enough. It is
        called in each iteration with all columns, and finally with a residual computed in float64. It must not modify
        its arguments.
    max_memory : float, optional
        Bytes that may be used. Default: available memory of the machine, or of the GPU with the right sides.

    Returns
    -------
    Solution
        `values`, `residual`, `relative_residual`, `iterations`, `rank`, `method`, `method_reason`, `memory` and
        `converged`.

    Raises
    ------
    TypeError
        If `operator` is not an operator, `right_sides` are not real numbers, or `accept` is not callable; if products
        of an operator are not on the device of the right sides.
    ValueError
        If `shift` is not a positive finite number; if shapes do not match, an entry is not finite, or the method is
        unknown; if K + s I is not positive definite; if only one of K and `right_sides` is on a GPU.
    MemoryError
        If the memory needed exceeds the available memory or `max_memory`; raised before the computation.

    Warns
    -----
    ConvergenceWarning
        If neither the tolerance nor `accept` is satisfied. The best solution is returned, with its residual.

    Notes
    -----
    Z is bitwise identical for any number of threads, except for dense factorisations of more than 2000 samples, where
    BLAS sums in an order that depends on its number of threads.

    References
    ----------
    Ji, Li (2017), A breakdown-free block conjugate gradient method. Chen, Epperly, Tropp, Webber (2023), Randomly
    pivoted Cholesky. Diaz, Epperly, Frangella, Tropp, Webber (2023), Robust, randomized preconditioning for kernel
    ridge regression. Sleijpen, van der Vorst (1996), Reliable updated residuals in hybrid Bi-CG methods.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.kernels import Gaussian, Linear
    >>> from kcalib.solvers import kernel_operator, solve
    >>> rng = np.random.default_rng(0)
    >>> points = rng.dirichlet(np.ones(3), size=2000)
    >>> K = kernel_operator(points, Linear() + Gaussian(bandwidth=0.4))
    >>> solution = solve(K, rng.normal(size=(2000, 3)), shift=2000**0.75)
    >>> solution.method, solution.converged, solution.relative_residual < 1e-10
    ('cg', True, True)
    """
    matrix = as_operator(operator)
    n = check_integer("operator.n", matrix.n, 1)
    vectors = _check_right_sides(right_sides, matrix, n)
    shift = check_positive("shift", shift)
    solver = resolved(method, SOLVERS)
    solver.check_size(n)
    if accept is not None and not callable(accept):
        raise TypeError(f"`accept` is {accept!r}, expected a function of (Z, R) that returns True or False")
    if max_memory is not None:
        check_max_memory(max_memory)
    judge = None if accept is None else _make_judge(accept, right_sides)
    solution, _ = solve_checked(matrix, vectors.reshape(n, -1), shift, solver, judge=judge, max_memory=max_memory)
    return replace(solution, values=_restore(solution.values.reshape(vectors.shape), right_sides))


def solve_checked(
    operator: SymmetricOperator,
    right_sides: Array,
    shift: float,
    solver: Solver,
    *,
    judge: Judge | None = None,
    max_memory: float | None = None,
    factor: Array | None = None,
) -> tuple[Solution, Verdict | None]:
    """Return the solution for checked arguments, `right_sides` of shape (n, c), and the verdict of the judge."""
    right_sides = arrays.namespace(right_sides).ascontiguousarray(right_sides)
    system = RidgeSystem(operator, right_sides, shift, judge, max_memory, factor)
    result = solver.solve(system, "asked for by name")
    solution = Solution(
        values=result.values,
        residual=linalg.norm(result.residuals),
        relative_residual=relative_residual(result.residuals, linalg.column_norms(right_sides)),
        iterations=result.iterations,
        rank=result.rank,
        method=result.method,
        method_reason=result.reason,
        memory=result.memory,
        converged=result.converged,
    )
    if not solution.converged:
        _warn_not_converged(solution, system.resolve_tolerance(solver.tol), solver)
    return solution, result.verdict


def _check_right_sides(right_sides: Any, operator: SymmetricOperator, n: int) -> Array:
    """Return a NumPy or CuPy array, float64, on the device of the operator's vectors."""
    array = as_numpy_or_cupy(right_sides, "right_sides")
    reference = reference_of(operator)
    if reference is not None and arrays.is_cuda(reference) != arrays.is_cuda(array):
        remedy = "pass cupy.asarray(right_sides)" if arrays.is_cuda(reference) else "pass cupy.asnumpy(right_sides)"
        raise ValueError(
            f"`right_sides` are {_describe_place(array)}, but K, {operator!r}, is {_describe_place(reference)}; "
            f"{remedy}, or bring K there"
        )
    array = check_real(array, "right_sides")
    if array.ndim not in (1, 2) or len(array) != n:
        raise ValueError(f"`right_sides` has shape {array.shape}, expected ({n},) or ({n}, c), as K has {n} rows")
    return arrays.namespace(array).ascontiguousarray(array)


def _make_judge(accept: Callable[[Array, Array], bool], right_sides: Any) -> Judge:
    """Return a judge that passes arrays of the user's library to `accept`."""
    return lambda z, r: Verdict(bool(accept(_restore(z, right_sides), _restore(r, right_sides))))


def _restore(array: Array, right_sides: Any) -> Array:
    """Return an array on a GPU in the library of the right sides; NumPy arrays unchanged."""
    return array if arrays.is_host(array) else arrays.to_original_library(array, right_sides)


def _describe_place(array: Array) -> str:
    return f"on {arrays.describe_device(array)}" if arrays.is_cuda(array) else "in host memory"


def _warn_not_converged(solution: Solution, tol: float | None, solver: Solver) -> None:
    reached = f"the relative residual is {solution.relative_residual:.3g}"
    missed = f"{reached}, not {tol:g}," if tol is not None else f"`accept` was not met ({reached})"
    limit = solver.max_iterations if isinstance(solver, ConjugateGradient) else ConjugateGradient.max_iterations
    if solution.method == ConjugateGradient.name and solution.iterations >= limit:
        cause = f"after {limit} iterations; pass methods.ConjugateGradient with a larger max_iterations or rank"
    else:
        cause = "because of rounding; take a larger shift, or a larger tol"
    warn(f"{missed} {cause}. The best solution is returned.", ConvergenceWarning)
