"""Kernel ridge systems (K + s I) Z = B: arguments checked, a method chosen, the solution with its residual.

`solve` calls `cholesky` or `conjugate_gradient`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.memory import available_memory, available_memory_on_gpu, check_max_memory, check_memory
from kcalib._backend.options import check_choice, check_integer
from kcalib._backend.warnings import warn
from kcalib.solvers._operators import SymmetricOperator, as_operator, where_vectors_lie
from kcalib.solvers.cholesky import cholesky_solve, memory_of_cholesky
from kcalib.solvers.conjugate_gradient import (
    SMALL_REMAINDER,
    Preconditioner,
    Solved,
    Stop,
    automatic_rank,
    conjugate_gradient_solve,
    memory_of_cg,
    relative_residual,
    shifted_product,
)

METHODS = ("auto", "cholesky", "cg")
PRODUCTS = ("auto", "float64", "float32")
TOLERANCE = 1e-10  # relative residual, by default
CHOLESKY_UP_TO = 1000  # samples; from there on conjugate gradients are faster, for shifts that are not very small
CHOLESKY_COLUMNS = 4  # and up to this times the right sides, whose blocks conjugate gradients keep orthonormal
PATIENCE = 10, 200  # "auto" turns to the dense factorisation after so many iterations, or n / so many


class ConvergenceWarning(UserWarning):
    """A solver stopped before the tolerance it was asked for."""


@dataclass(frozen=True, eq=False)
class Solution:
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


@on_their_gpu
def solve(
    operator: Any,
    right_sides: Any,
    shift: float,
    *,
    method: str = "auto",
    tol: float | None = None,
    accept: Stop | None = None,
    rank: int | None = None,
    products: str = "auto",
    max_iterations: int = 1000,
    max_memory: float | None = None,
    seed: int = 0,
) -> Solution:
    r"""Solve a kernel ridge system, K never stored (but by "cholesky").

    .. math:: (K + s I) Z = B

    "cholesky" computes and factorises the dense matrix: 8 n^2 bytes (on a GPU 16 n^2), n^3 / 3 multiply-adds. "cg",
    block conjugate gradients with a randomly pivoted Cholesky preconditioner, takes a few products of K with c vectors
    (a sweep over all pairs and n^2 c multiply-adds each) and O(n (rank + c)) memory. The better conditioned K + s I,
    the fewer; hardly ten for the shift n^(3/4) of the CKCE.

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
    method : {"auto", "cholesky", "cg"}
        "auto": Cholesky up to 1000 samples, and up to 4 times the number of right sides, where it takes no
        longer; else conjugate gradients. If these have not
        arrived after 10 (from 2000 samples on n / 200) iterations, which take about as long as a dense
        factorisation, Cholesky follows. Where memory does not allow Cholesky, always conjugate gradients.
    tol : float, optional
        Stop when the residual of each column is at most `tol` times the norm of its right side. By default 1e-10, or,
        if there is an `accept`, not at all. With both, the one that is met first decides.
    accept : callable, optional
        ``accept(Z, R) -> bool``: whether a solution and its residual R = B - (K + s I) Z are good enough; asked in
        each iteration, with all columns, and last with a residual of products in float64. It must not change them.
    rank : int, optional
        Columns of K in the preconditioner of "cg", 0 for none. By default n / 50, at most 400, and fewer where these
        make up all of K but a small part of s.
    products : {"auto", "float64", "float32"}
        Arithmetic of the products with K in "cg". In "float32" the residual is computed anew in float64 whenever
        rounding would count, so that the solution is as exact; the more iterations. "auto": float64, which with the
        preconditioner was faster wherever it was measured.
    max_iterations : int
        Of "cg", at least 1.
    max_memory : float, optional
        Bytes that may be taken; by default what the machine, or the right sides' GPU, has available.
    seed : int
        Of the preconditioner's random pivots.

    Returns
    -------
    Solution
        With `values` (a NumPy array, or for right sides on a GPU one of their library there), `residual`,
        `relative_residual`, `iterations`, `rank`, `method`, `method_reason`, `memory` and
        `converged`.

    Raises
    ------
    TypeError
        If `operator` is none, `right_sides` are not real numbers, `accept` cannot be called, or an integer is none; if
        an operator's products are not where the right sides are.
    ValueError
        If `shift` or `tol` is not a positive finite number, shapes do not fit, an entry is not finite, or an option
        is out of range or has no effect on the method; if K + s I turns out not to be positive definite; if one of K
        and `right_sides` is on a GPU and the other is not.
    MemoryError
        If more memory is needed than there is, or than `max_memory`; raised before it is taken.

    Warns
    -----
    ConvergenceWarning
        If neither `tol` nor `accept` was met: the best solution found is returned, with its residual.

    Notes
    -----
    Products with K have the same bits for any number of threads. Those of tall arrays with small ones, and the dense
    factorisation, are left to BLAS, which may add in another order with another number of threads of its own: the last
    digits of Z may differ with that.

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
    shift, tol = _positive("shift", shift), _tolerance(tol, accept)
    check_choice("method", method, METHODS)
    check_choice("products", products, PRODUCTS)
    check_integer("max_iterations", max_iterations, 1)
    check_integer("seed", seed, 0)
    if rank is not None:
        check_integer("rank", rank, 0, n)
    if max_memory is not None:
        check_max_memory(max_memory)
    _check_options(method, rank, products)
    stop = None if accept is None else _restoring(accept, right_sides)
    task = _Task(matrix, vectors.reshape(n, -1), shift, tol, stop, rank, products, max_iterations, max_memory, seed)
    solution = task.automatically() if method == "auto" else task.by(method, "asked for by name")
    if not solution.converged:
        _warn(solution, tol, max_iterations)
    values = solution.values.reshape(vectors.shape)
    return replace(solution, values=_returned(values, right_sides))


@dataclass(frozen=True)
class _Task:
    """Checked arguments of `solve`, all right sides as columns."""

    operator: SymmetricOperator
    right_sides: Array
    shift: float
    tol: float | None
    accept: Stop | None
    rank: int | None
    products: str
    max_iterations: int
    max_memory: float | None
    seed: int

    def automatically(self) -> Solution:
        n = self.operator.n
        if self.rank is not None or self.products != "auto":
            return self.by("cg", "`rank` and `products` are options of conjugate gradients")
        limit = self._available_memory if self.max_memory is None else self.max_memory
        if limit is not None and self._memory_of_cholesky > limit:
            return self.by("cg", "a dense factorisation takes more memory than there is, or than is allowed")
        if n <= CHOLESKY_UP_TO:
            return self.by("cholesky", f"up to {CHOLESKY_UP_TO} samples a dense factorisation takes no longer")
        columns = self.right_sides.shape[1]
        if n <= CHOLESKY_COLUMNS * columns:
            return self.by("cholesky", f"with {columns} right sides a dense factorisation takes no longer")
        reason = f"from {CHOLESKY_UP_TO} samples on faster than a dense factorisation"
        patience = max(PATIENCE[0], n // PATIENCE[1])
        if self.max_iterations <= patience:
            return self.by("cg", reason)
        solution = replace(self, max_iterations=patience).by("cg", reason)
        if solution.converged:
            return solution
        reason = f"{solution.iterations} iterations of conjugate gradients have left {solution.relative_residual:.2g}"
        return self.by("cholesky", reason)

    def by(self, method: str, reason: str) -> Solution:
        found, rank, memory = self._by_cholesky() if method == "cholesky" else self._by_conjugate_gradients()
        return Solution(
            values=found.values,
            residual=linalg.norm(found.residuals),
            relative_residual=relative_residual(found.residuals, linalg.column_norms(self.right_sides)),
            iterations=found.iterations,
            rank=rank,
            method=method,
            method_reason=reason,
            memory=memory,
            converged=found.converged,
        )

    @property
    def _available_memory(self) -> int | None:
        right = self.right_sides
        return available_memory_on_gpu(right.device) if arrays.is_cuda(right) else available_memory()

    @property
    def _memory_of_cholesky(self) -> int:
        right = self.right_sides
        return memory_of_cholesky(self.operator.n, right.shape[1], on_gpu=arrays.is_cuda(right))

    def _by_cholesky(self) -> tuple[Solved, int, int]:
        what = f"K + shift I and its Cholesky factor of n = {self.operator.n} samples"
        memory, remedy = self._memory_of_cholesky, "use method='cg', which needs O(n (rank + c))"
        check_memory(memory, self.max_memory, what, remedy, self.right_sides)
        values = cholesky_solve(self.operator, self.right_sides, self.shift)
        residuals = self.right_sides - shifted_product(self.operator, values, self.shift)
        relative = relative_residual(residuals, linalg.column_norms(self.right_sides))
        small = self.tol is not None and relative <= self.tol
        accepted = small or (self.accept is not None and bool(self.accept(values, residuals)))
        return Solved(values, residuals, 0, accepted), 0, memory

    def _by_conjugate_gradients(self) -> tuple[Solved, int, int]:
        n, c = self.right_sides.shape
        most = automatic_rank(n) if self.rank is None else self.rank
        memory = memory_of_cg(n, c, most, together=self.accept is not None)
        what = f"the vectors of conjugate gradients (n = {n}, rank {most}, {c} right sides)"
        remedy = "pass a smaller rank=, or fewer right sides at a time"
        check_memory(memory, self.max_memory, what, remedy, self.right_sides)
        preconditioner = self._preconditioner(most)
        found = conjugate_gradient_solve(
            self.operator,
            self.right_sides,
            self.shift,
            tol=self.tol,
            preconditioner=preconditioner,
            max_iterations=self.max_iterations,
            products="float64" if self.products == "auto" else self.products,
            accept=self.accept,
        )
        return found, 0 if preconditioner is None else preconditioner.rank, memory

    def _preconditioner(self, most: int) -> Preconditioner | None:
        if most == 0 or self.right_sides.shape[1] == 0:
            return None
        tol = 0.0
        if self.rank is None:
            trace = float(arrays.namespace(self.right_sides).sum(self.operator.diagonal()))
            tol = min(0.5, SMALL_REMAINDER * self.shift / trace) if trace > 0 else 0.0
        return Preconditioner.of(self.operator, self.shift, most, tol, self.seed)


def _check_options(method: str, rank: int | None, products: str) -> None:
    if method != "cholesky":
        return
    for name, given in (("rank", rank is not None), ("products", products != "auto")):
        if given:
            raise ValueError(f"`{name}` has no effect on method='cholesky'; leave it out, or take method='cg'")


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


def _restoring(accept: Stop, right_sides: Any) -> Stop:
    """`accept`, shown arrays as they are returned."""
    return lambda z, r: accept(_returned(z, right_sides), _returned(r, right_sides))


def _returned(array: Array, right_sides: Any) -> Array:
    """A NumPy array as it is, one on a GPU in the library of the right sides."""
    return array if arrays.is_host(array) else arrays.restored(array, right_sides)


def _where(array: Array) -> str:
    return f"on {arrays.describe_device(array)}" if arrays.is_cuda(array) else "in host memory"


def _tolerance(tol: Any, accept: Any) -> float | None:
    if accept is not None and not callable(accept):
        raise TypeError(f"`accept` is {accept!r}, expected a function of (Z, R) that returns True or False")
    if tol is None:
        return TOLERANCE if accept is None else None
    return _positive("tol", tol)


def _positive(name: str, value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"`{name}` is {value!r}, expected a positive number")
    number = float(value)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"`{name}` is {value}, expected a positive finite number")
    return number


def _warn(found: Solution, tol: float | None, max_iterations: int) -> None:
    reached = f"the relative residual is {found.relative_residual:.3g}"
    missed = f"{reached}, not {tol:g}," if tol is not None else f"`accept` was not met ({reached})"
    if found.method == "cg" and found.iterations >= max_iterations:
        cause = f"after {max_iterations} iterations; raise max_iterations, or rank"
    else:
        cause = "and rounding allows no less; take a larger shift, or a larger tol"
    warn(f"{missed} {cause}. The best solution found is returned.", ConvergenceWarning)
