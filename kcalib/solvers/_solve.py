"""Solve kernel ridge systems (K + s I) Z = B by one of the `SOLVERS`.

`solve` is public and checks its arguments; `solve_checked` is for `kcalib.estimators.ckce` and
`kcalib.inference.ckce_expansion`. `AutomaticSolver` chooses between the other solvers.
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
CHOLESKY_COLUMNS = 4  # and up to this times the number of right sides, which conjugate gradients orthonormalise
PATIENCE = 10, 200  # "auto" turns to the dense factorisation after this many iterations, or n over the second number


class ConvergenceWarning(UserWarning):
    """A solver stopped before its tolerance was met."""


@dataclass(frozen=True, eq=False)
class Solution(Summarized):
    """Solution of a kernel ridge system (K + s I) Z = B."""

    values: Array  #: Z, float64, of the shape of B; on a GPU of the library of B, else a NumPy array
    residual: float  #: Frobenius norm of R = B - (K + s I) Z, from products in float64
    relative_residual: float  #: largest norm of a column of R, relative to that of B
    iterations: int  #: of conjugate gradients: products with K, without those that recompute a residual
    rank: int  #: of the preconditioner
    method: str  #: "cholesky" or "cg"
    method_reason: str  #: why that method
    memory: int  #: bytes needed at most, beyond the arguments
    converged: bool  #: whether `tol`, or `accept`, was met

    def __repr__(self) -> str:
        return (
            f"Solution(shape={self.values.shape}, method={self.method!r}, relative_residual="
            f"{self.relative_residual:.3g}, iterations={self.iterations}, rank={self.rank}, converged={self.converged})"
        )


@dataclass(frozen=True, kw_only=True)
class AutomaticSolver(Seeded, Solver):
    """Exact, by whichever is faster: ``"auto"`` of `kcalib.ckce` and `kcalib.solvers.solve`.

    `Cholesky` up to 1000 samples, and up to 4 times the number of right sides, where it takes no longer; else
    `ConjugateGradient`. If this has not converged after 10 (from 2000 samples on n / 200) iterations, which take about
    as long as a dense factorisation, Cholesky follows. If memory does not allow Cholesky, always conjugate gradients.
    `kcalib.ckce` first tries a low-rank factor, see there.

    Parameters
    ----------
    tol : float, optional
        Tolerance of conjugate gradients, as for `ConjugateGradient`.
    seed : int, optional
        Seed of random pivots, at least 0. None draws one, which the result reports.

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
            reason = "a dense factorisation takes more memory than there is, or than is allowed"
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
    r"""Solve a kernel ridge system; only "cholesky" stores K.

    .. math:: (K + s I) Z = B

    Parameters
    ----------
    operator : operator or array_like, shape (n, n)
        K, symmetric and positive semi-definite: what `kernel_operator` returns, a dense matrix, or any object with
        `n`, ``matmul(vectors, dtype="float64")`` (K @ vectors, float64, of an (n, c) array; "float32" allows a
        relative error of 1e-6), ``tile(rows, columns)`` (dense, of slices or NumPy's integer arrays) and
        ``diagonal()``, all of NumPy arrays, or of CuPy arrays for right sides on a GPU. It may have any rank.
    right_sides : array_like, shape (n,) or (n, c)
        B. For CuPy arrays and CUDA tensors K must be on the same GPU, where everything is computed.
    shift : float
        The number s > 0.
    method : {"auto", "cholesky", "cg"} or method
        To set options, pass `kcalib.methods.AutomaticSolver`, `kcalib.methods.Cholesky` or
        `kcalib.methods.ConjugateGradient`, which document cost and tolerances.
    accept : callable, optional
        ``accept(Z, R) -> bool`` says whether a solution and its residual R = B - (K + s I) Z are good enough. It is
        called in each iteration, with all columns, and last with a residual of products in float64. It must not change
        its arguments.
    max_memory : float, optional
        Bytes that may be used; by default those that are available on the machine, or on the right sides' GPU.

    Returns
    -------
    Solution
        `values`, `residual`, `relative_residual`, `iterations`, `rank`, `method`, `method_reason`, `memory` and
        `converged`.

    Raises
    ------
    TypeError
        If `operator` is none, `right_sides` are not real numbers, or `accept` cannot be called; if an operator's
        products are not on the device of the right sides.
    ValueError
        If `shift` is not a positive finite number, shapes do not fit, an entry is not finite, or the method is unknown;
        if K + s I turns out not to be positive definite; if only one of K and `right_sides` is on a GPU.
    MemoryError
        If more memory is needed than available, or than `max_memory`; raised before the computation.

    Warns
    -----
    ConvergenceWarning
        If neither the method's tolerance nor `accept` was met. The best solution is returned, with its residual.

    Notes
    -----
    Z has the same bits for any number of threads, but for a dense factorisation of more than 2000 samples: BLAS adds in
    another order with another number of threads of its own.

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
    """Return the solution for checked arguments, `right_sides` of shape (n, c), and the judge's verdict on it."""
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
    """Return the judge that passes arrays of the user's library to `accept`."""
    return lambda z, r: Verdict(bool(accept(_restore(z, right_sides), _restore(r, right_sides))))


def _restore(array: Array, right_sides: Any) -> Array:
    """Return an array on a GPU in the library of the right sides, and NumPy arrays unchanged."""
    return array if arrays.is_host(array) else arrays.to_original_library(array, right_sides)


def _describe_place(array: Array) -> str:
    return f"on {arrays.describe_device(array)}" if arrays.is_cuda(array) else "in host memory"


def _warn_not_converged(solution: Solution, tol: float | None, solver: Solver) -> None:
    reached = f"the relative residual is {solution.relative_residual:.3g}"
    missed = f"{reached}, not {tol:g}," if tol is not None else f"`accept` was not met ({reached})"
    limit = solver.max_iterations if isinstance(solver, ConjugateGradient) else ConjugateGradient.max_iterations
    if solution.method == ConjugateGradient.name and solution.iterations >= limit:
        cause = f"after {limit} iterations; take methods.ConjugateGradient of a larger max_iterations, or rank"
    else:
        cause = "and rounding allows no less; take a larger shift, or a larger tol"
    warn(f"{missed} {cause}. The best solution is returned.", ConvergenceWarning)
