"""Kernel ridge systems (K + s I) Z = B: arguments checked, a method taken, the solution with its residual.

`solve` is for users and checks everything; `solved` is the same on checked data, for `kcalib.estimators.ckce` and
`kcalib.inference.ckce_expansion`. Both take one of `SOLVERS`, of which `AutomaticSolver` chooses between the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

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
from kcalib.solvers.kernel_operator import SymmetricOperator, as_operator, where_vectors_lie
from kcalib.solvers.ridge_system import Judge, RidgeSystem, Solved, Solver, Verdict, relative_residual

CHOLESKY_UP_TO = 1000  # samples; from there on conjugate gradients are faster, for shifts that are not very small
CHOLESKY_COLUMNS = 4  # and up to this times the right sides, whose blocks conjugate gradients keep orthonormal
PATIENCE = 10, 200  # "auto" turns to the dense factorisation after so many iterations, or n / so many


class ConvergenceWarning(UserWarning):
    """A solver stopped before the tolerance it was asked for."""


@dataclass(frozen=True, eq=False)
class Solution(Summarized):
    """Solution of a kernel ridge system (K + s I) Z = B."""

    values: Array  #: Z, float64, of the shape of B: NumPy, or on a GPU an array of the library of B
    residual: float  #: Frobenius norm of R = B - (K + s I) Z, from products in float64
    relative_residual: float  #: largest norm of a column of R, relative to that of B
    iterations: int  #: of conjugate gradients: products with K, but for those that compute a residual anew
    rank: int  #: of the preconditioner
    method: str  #: "cholesky" or "cg"
    method_reason: str  #: why that one
    memory: int  #: bytes needed at most, beyond what was given
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
    `ConjugateGradient`. If this has not arrived after 10 (from 2000 samples on n / 200) iterations, which take about as
    long as a dense factorisation, Cholesky follows. Where memory does not allow Cholesky, always conjugate gradients.
    `kcalib.ckce` tries a low-rank factor before, see there.

    Parameters
    ----------
    tol : float, optional
        Where conjugate gradients stop, as for `ConjugateGradient`.
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

    def solve(self, system: RidgeSystem, reason: str) -> Solved:
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
        found = replace(iterative, max_iterations=patience).solve(system, reason)
        if found.converged:
            return found
        left = relative_residual(found.residuals, linalg.column_norms(system.right_sides))
        return dense.solve(system, f"{found.iterations} iterations of conjugate gradients have left {left:.2g}")


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
    r"""Solve a kernel ridge system, K never stored (but by "cholesky").

    .. math:: (K + s I) Z = B

    Parameters
    ----------
    operator : operator or array_like, shape (n, n)
        K, symmetric and positive semi-definite: what `kernel_operator` returns, a dense matrix, or any object with
        `n`, ``matmul(vectors, dtype="float64")`` (K @ vectors, float64, of an (n, c) array; "float32" allows a
        relative error of 1e-6), ``tile(rows, columns)`` (dense, of slices or NumPy's integer arrays) and
        ``diagonal()``, all of NumPy arrays, or of CuPy arrays for right sides on a GPU. It may have any rank.
    right_sides : array_like, shape (n,) or (n, c)
        B. With CuPy arrays, or CUDA tensors, K has to be on the same GPU, and all is done there.
    shift : float
        The number s > 0.
    method : {"auto", "cholesky", "cg"} or method
        With options an object: `kcalib.methods.AutomaticSolver`, `kcalib.methods.Cholesky` or
        `kcalib.methods.ConjugateGradient`, which say what they cost and where they stop.
    accept : callable, optional
        ``accept(Z, R) -> bool``: whether a solution and its residual R = B - (K + s I) Z are good enough; asked in
        each iteration, with all columns, and last with a residual of products in float64. It must not change them.
    max_memory : float, optional
        Bytes that may be taken; by default what the machine, or the right sides' GPU, has available.

    Returns
    -------
    Solution
        With `values` (a NumPy array, or for right sides on a GPU one of their library there), `residual`,
        `relative_residual`, `iterations`, `rank`, `method`, `method_reason`, `memory` and
        `converged`.

    Raises
    ------
    TypeError
        If `operator` is none, `right_sides` are not real numbers, or `accept` cannot be called; if an operator's
        products are not where the right sides are.
    ValueError
        If `shift` is not a positive finite number, shapes do not fit, an entry is not finite, or there is no such
        method; if K + s I turns out not to be positive definite; if one of K and `right_sides` is on a GPU and the
        other is not.
    MemoryError
        If more memory is needed than there is, or than `max_memory`; raised before it is taken.

    Warns
    -----
    ConvergenceWarning
        If neither the method's tolerance nor `accept` was met: the best solution found is returned, with its residual.

    Notes
    -----
    Products with K, and of tall arrays with few columns, have the same bits for any number of threads. The square of
    the preconditioner's factor, and the dense factorisation, are left to BLAS, which may add in another order with
    another number of threads of its own: the last digits of Z may differ with that.

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
    >>> found = solve(K, rng.normal(size=(2000, 3)), shift=2000**0.75)
    >>> found.method, found.converged, found.relative_residual < 1e-10
    ('cg', True, True)
    """
    matrix = as_operator(operator)
    n = check_integer("operator.n", matrix.n, 1)
    vectors = _checked_right_sides(right_sides, matrix, n)
    shift = check_positive("shift", shift)
    solver = resolved(method, SOLVERS)
    solver.check_size(n)
    if accept is not None and not callable(accept):
        raise TypeError(f"`accept` is {accept!r}, expected a function of (Z, R) that returns True or False")
    if max_memory is not None:
        check_max_memory(max_memory)
    judge = None if accept is None else _judge(accept, right_sides)
    solution, _ = solved(matrix, vectors.reshape(n, -1), shift, solver, judge=judge, max_memory=max_memory)
    return replace(solution, values=_returned(solution.values.reshape(vectors.shape), right_sides))


def solved(
    operator: SymmetricOperator,
    right_sides: Array,
    shift: float,
    solver: Solver,
    *,
    judge: Judge | None = None,
    max_memory: float | None = None,
    factor: Array | None = None,
) -> tuple[Solution, Verdict | None]:
    """`solve` of checked arguments, `right_sides` of shape (n, c), and what the judge found about the solution.

    A `factor` F with K ~ F F^T, if the caller has one, is the preconditioner's.
    """
    right_sides = arrays.namespace(right_sides).ascontiguousarray(right_sides)
    system = RidgeSystem(operator, right_sides, shift, judge, max_memory, factor)
    found = solver.solve(system, "asked for by name")
    solution = Solution(
        values=found.values,
        residual=linalg.norm(found.residuals),
        relative_residual=relative_residual(found.residuals, linalg.column_norms(right_sides)),
        iterations=found.iterations,
        rank=found.rank,
        method=found.method,
        method_reason=found.reason,
        memory=found.memory,
        converged=found.converged,
    )
    if not solution.converged:
        _warn(solution, system.stopping_rule(solver.tol).tol, solver)
    return solution, found.verdict


def _checked_right_sides(right_sides: Any, operator: SymmetricOperator, n: int) -> Array:
    """NumPy or CuPy array, float64, where the operator's vectors lie."""
    array = arrays.as_array(right_sides, "right_sides")
    if not arrays.is_cuda(array):
        array = arrays.to_host(array)
    wanted = where_vectors_lie(operator)
    if wanted is not None and arrays.is_cuda(wanted) != arrays.is_cuda(array):
        remedy = "pass cupy.asarray(right_sides)" if arrays.is_cuda(wanted) else "pass cupy.asnumpy(right_sides)"
        raise ValueError(
            f"`right_sides` are {_where(array)}, but K, {operator!r}, is {_where(wanted)}; {remedy}, or bring K there"
        )
    if array.dtype.kind not in "biuf":
        raise TypeError(f"`right_sides` has dtype {array.dtype}, expected real numbers")
    if array.ndim not in (1, 2) or len(array) != n:
        raise ValueError(f"`right_sides` has shape {array.shape}, expected ({n},) or ({n}, c), as K has {n} rows")
    xp = arrays.namespace(array)
    array = xp.ascontiguousarray(array, dtype=xp.float64)
    finite = xp.isfinite(array)
    if not bool(xp.all(finite)):
        flat = int(xp.argmin(xp.reshape(finite, (-1,))))
        at = tuple(int(i) for i in np.unravel_index(flat, array.shape))
        raise ValueError(f"`right_sides{arrays.subscript(at)}` is {float(array[at])}, expected a finite number")
    return array


@dataclass(frozen=True)
class _Answer:
    """The verdict of a user's `accept`."""

    accepted: bool
    needed: float = 0.0


def _judge(accept: Callable[[Array, Array], bool], right_sides: Any) -> Judge:
    """`accept`, shown arrays as they are returned."""
    return lambda z, r: _Answer(bool(accept(_returned(z, right_sides), _returned(r, right_sides))))


def _returned(array: Array, right_sides: Any) -> Array:
    """A NumPy array as it is, one on a GPU in the library of the right sides."""
    return array if arrays.is_host(array) else arrays.restored(array, right_sides)


def _where(array: Array) -> str:
    return f"on {arrays.describe_device(array)}" if arrays.is_cuda(array) else "in host memory"


def _warn(found: Solution, tol: float | None, solver: Solver) -> None:
    reached = f"the relative residual is {found.relative_residual:.3g}"
    missed = f"{reached}, not {tol:g}," if tol is not None else f"`accept` was not met ({reached})"
    limit = solver.max_iterations if isinstance(solver, ConjugateGradient) else ConjugateGradient.max_iterations
    if found.method == ConjugateGradient.name and found.iterations >= limit:
        cause = f"after {limit} iterations; take methods.ConjugateGradient of a larger max_iterations, or rank"
    else:
        cause = "and rounding allows no less; take a larger shift, or a larger tol"
    warn(f"{missed} {cause}. The best solution found is returned.", ConvergenceWarning)
