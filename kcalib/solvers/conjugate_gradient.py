r"""Kernel ridge systems by block conjugate gradients: products with K only, O(n (rank + c)) memory.

All columns share one Krylov space, so that c right sides take fewer products than one does: the breakdown-free block
method of Ji and Li (2017), whose directions are an orthonormal basis, short of columns where these depend on each other
(residuals of predictions always do: their rows sum to 0). The preconditioner is :math:`(F F^\top + s I)^{-1}` with
:math:`F` from `pivoted_cholesky`.

Products may be made in float32. Each leaves an error in the recurrence of the residual; these are added up, and before
they count the residual is computed anew, in float64 (reliable updates: Sleijpen and van der Vorst 1996), while the
directions go on. What is returned is a residual of float64 products. Called by `_solve`.

Arrays of n rows stay where they are, in host memory or on a GPU, and so does the preconditioner. Matrices of the size
of a block, whose factors choose directions and lengths, are the host's unless they are large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib.solvers._operators import SymmetricOperator, check_beside
from kcalib.solvers.pivoted_cholesky import automatic_block, partial_cholesky

Stop = Callable[[Array, Array], bool]

ROUNDING = {"float64": 5e-16, "float32": 1e-7}  # of a product with K, relative to ||K|| and the vector's length
KNOWN, NOISY = 0.01, 0.1  # share of a residual that rounding has: of one that is returned, or goes on
# By which the residual must fall between two renewals, or else: the iteration ends, float64 takes over.
GAIN = {"float64": 0.5, "float32": 1e-4}
STALLED = 100  # iterations in which the residual finds no new minimum
DEPENDENT = 1e-7  # length of a direction without what others have of it
INDEFINITE = 1e-10  # negative curvature that is no rounding, relative to the largest
GROUP_NUMBERS, GROUP_COLUMNS = 2**22, 64  # numbers in the columns solved at once; columns at least
BLOCK_ON_HOST = 64  # columns up to which LAPACK takes no longer than cuSOLVER, transfers included
RANK_SHARE, LARGEST_RANK = 50, 400  # of the preconditioner: n / RANK_SHARE, so that it costs less than it saves
SMALL_REMAINDER = 0.001  # trace(K - F F^T) / shift below which more columns save nothing


@dataclass(frozen=True)
class Preconditioner:
    """(F F^T + shift I)^{-1} = (I - F (shift I + F^T F)^{-1} F^T) / shift."""

    factor: Array  # F, shape (n, rank)
    root: Array  # of shift I + F^T F = L L^T, lower
    shift: float

    @classmethod
    def of(cls, operator: SymmetricOperator, shift: float, rank: int, tol: float, seed: int) -> Preconditioner:
        factor = partial_cholesky(operator, rank, tol=tol, seed=seed).factor
        gram = factor.T @ factor
        linalg.add_to_diagonal(gram, shift)
        return cls(factor, linalg.cholesky(gram), shift)

    @property
    def rank(self) -> int:
        return self.factor.shape[1]

    def __call__(self, vectors: Array) -> Array:
        inner = linalg.cholesky_solve(self.root, self.factor.T @ vectors)
        return (vectors - self.factor @ inner) / self.shift


@dataclass(frozen=True)
class Solved:
    """What `_solve` makes a `Solution` of."""

    values: Array
    residuals: Array
    iterations: int
    converged: bool


def relative_residual(residuals: Array, scales: np.ndarray) -> float:
    """Largest residual of a column, relative to its right side, whose length is in `scales`; 0 for zeros."""
    return _largest_ratio(linalg.column_norms(residuals), scales)


def _largest_ratio(sizes: np.ndarray, scales: np.ndarray) -> float:
    return float(np.max(np.divide(sizes, scales, out=np.zeros_like(sizes), where=scales > 0), initial=0.0))


def shifted_product(operator: SymmetricOperator, vectors: Array, shift: float, dtype: str = "float64") -> Array:
    """(K + shift I) vectors."""
    found = operator.matmul(vectors, dtype)
    check_beside(found, vectors, "a product with K", operator)
    if not math.isfinite(float(arrays.namespace(vectors).sum(found))):
        raise ValueError(f"a product with K, {operator!r}, is not finite; check the operator's matmul")
    return found + shift * vectors


def automatic_rank(n: int) -> int:
    """Columns of K in the preconditioner, at most."""
    return min(n, LARGEST_RANK, n // RANK_SHARE)


def columns_at_once(n: int) -> int:
    return max(GROUP_COLUMNS, GROUP_NUMBERS // n)


def memory_of_cg(n: int, c: int, rank: int, *, together: bool) -> int:
    """Bytes: solution and residual, eight arrays of the size of the columns solved at once, the factor."""
    columns = c if together else min(c, columns_at_once(n))
    return 8 * n * (2 * c + 8 * columns + rank + 4 * automatic_block(rank))


def conjugate_gradient_solve(
    operator: SymmetricOperator,
    right_sides: Array,
    shift: float,
    *,
    tol: float | None,
    preconditioner: Preconditioner | None,
    max_iterations: int,
    products: str,
    accept: Stop | None,
) -> Solved:
    """(K + shift I)^{-1} right_sides, shape (n, c), until `accept` or the relative residual of each column is `tol`.

    Raises
    ------
    ValueError
        If K + shift I shows negative curvature, or a product is not finite.
    """
    n, c = right_sides.shape
    at_once = max(1, c if accept is not None else columns_at_once(n))
    xp = arrays.namespace(right_sides)
    solved = Solved(xp.zeros((n, c)), xp.asarray(right_sides, copy=True), 0, True)
    for begin in range(0, c, at_once):
        columns = slice(begin, min(c, begin + at_once))
        system = _System(operator, shift, preconditioner, tol, accept, products)
        part = _Iteration(system, right_sides[:, columns]).run(max_iterations)
        solved.values[:, columns], solved.residuals[:, columns] = part.values, part.residuals
        iterations = max(solved.iterations, part.iterations)
        solved = replace(solved, iterations=iterations, converged=solved.converged and part.converged)
    return solved


@dataclass
class _System:
    operator: SymmetricOperator
    shift: float
    preconditioner: Preconditioner | None
    tol: float | None
    accept: Stop | None
    products: str

    def product(self, vectors: Array, dtype: str = "float64") -> Array:
        return shifted_product(self.operator, vectors, self.shift, dtype)

    def preconditioned(self, residuals: Array) -> Array:
        return residuals if self.preconditioner is None else self.preconditioner(residuals)


class _Iteration:
    """Columns that are solved together."""

    def __init__(self, system: _System, right_sides: Array) -> None:
        xp = arrays.namespace(right_sides)
        self.system = system
        self.products = system.products
        self.right_sides = right_sides
        self.scales = linalg.column_norms(right_sides)
        self.values = xp.zeros_like(right_sides)
        self.residuals = xp.asarray(right_sides, copy=True)
        self.relative = _largest_ratio(self.scales, self.scales)
        self.largest = 0.0  # norm of K + s I, as far as seen
        self.errors = np.zeros(len(self.scales))  # of the residuals, by rounding: at most about
        self.history = [self.relative]
        self.iterations = 0
        # Directions, their products with K + s I, and the Cholesky root of both's.
        self.last: tuple[Array, Array, Array] | None = None
        self.best = Solved(self.values, self.residuals, 0, False)  # of those whose residual was computed anew
        self.best_relative = math.inf
        self.last_relative = math.inf if system.products == "float64" else self.relative  # when last computed anew

    def run(self, max_iterations: int) -> Solved:
        while not (self._is_small() and self._noise() <= KNOWN):
            directions = self._directions()
            stuck = directions is None or self._is_stalled()
            exhausted = self.iterations >= max_iterations
            if stuck or exhausted or self._noise() > NOISY or self._is_small():
                gains = self._recompute()
                if self._is_small():
                    break
                if self.products == "float32" and not gains:
                    self.products, gains, stuck = "float64", True, True
                if stuck:
                    self._forget()
                directions = self._directions()
                if exhausted or not gains or directions is None:
                    return replace(self.best, iterations=self.iterations)
            assert directions is not None
            self._step(directions)
        return Solved(self.values, self.residuals, self.iterations, True)

    def _directions(self) -> Array | None:
        """An orthonormal basis of the next directions; None where there is none, or rounding has hidden it."""
        news = self.system.preconditioned(self.residuals)
        if self.last is not None:
            directions, images, curvature = self.last
            lengths = _solved(curvature, images.T @ news)
            news = news - directions @ arrays.beside(lengths, news)
        return _orthonormal(news)

    def _step(self, directions: Array) -> None:
        dtype = self.products
        images = self.system.product(directions, dtype)
        matrix = _small(directions.T @ images)
        curvature = self._curvature(matrix)
        if curvature is None and dtype == "float32":
            self.products, dtype = "float64", "float64"
            images = self.system.product(directions)
            matrix = _small(directions.T @ images)
            curvature = self._curvature(matrix)
        self.iterations += 1
        if curvature is None:
            self._forget()
            self.history += STALLED * self.history[-1:]
            return
        lengths = _solved(curvature, directions.T @ self.residuals)
        steps = arrays.beside(lengths, directions)
        self.values += directions @ steps
        self.residuals -= images @ steps
        self.largest = max(self.largest, _spectral_norm(matrix))
        self.errors += ROUNDING[dtype] * self.largest * linalg.column_norms(lengths)
        self.last = directions, images, curvature
        self._measure()

    def _curvature(self, matrix: Array) -> Array | None:
        """Cholesky root of P^T (K + s I) P; None where rounding hides that it is positive."""
        matrix = (matrix + matrix.T) / 2
        try:
            return linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            values = arrays.to_host(linalg.eigvalsh(matrix))
        tolerance = INDEFINITE * max(abs(values[0]), values[-1], self.system.shift)
        if values[0] > -tolerance or self.products != "float64":
            return None
        raise ValueError(
            f"K + shift I is not positive definite: a vector has p^T (K + shift I) p / p^T p = {values[0]:.3g}, and K "
            f"is {self.system.operator!r}; take a kernel that is positive definite (such as Exponential(), or "
            "Gaussian() with metric='euclidean'), or a larger shift"
        )

    def _forget(self) -> None:
        """Start anew from the residual."""
        self.last, self.history = None, self.history[-1:]

    def _recompute(self) -> bool:
        """The residual in float64; whether it has fallen enough since it was so computed before."""
        self.residuals = self.right_sides - self.system.product(self.values)
        sizes = self.largest * linalg.column_norms(self.values)
        self.errors = ROUNDING["float64"] * (sizes + self.scales)
        self._measure()
        gains = self.relative < self.last_relative * GAIN[self.products]
        self.last_relative = self.relative
        if self.relative < self.best_relative:
            self.best = Solved(self.values.copy(), self.residuals.copy(), self.iterations, False)
            self.best_relative = self.relative
        return gains

    def _measure(self) -> None:
        self.relative = relative_residual(self.residuals, self.scales)
        self.history.append(self.relative)

    def _is_small(self) -> bool:
        tol, accept = self.system.tol, self.system.accept
        if tol is not None and self.relative <= tol:
            return True
        return accept is not None and bool(accept(self.values, self.residuals))

    def _noise(self) -> float:
        """Share of the residual that may be rounding."""
        error = _largest_ratio(self.errors, self.scales)
        return error / self.relative if error > 0 and self.relative > 0 else math.inf if error > 0 else 0.0

    def _is_stalled(self) -> bool:
        return len(self.history) > STALLED and int(np.argmin(self.history)) < len(self.history) - STALLED


def _orthonormal(vectors: Array) -> Array | None:
    """An orthonormal basis of the space of the columns, twice by their Gram matrix; None of zeros."""
    for threshold in (DEPENDENT, 0.5):
        sizes = linalg.column_norms(vectors)
        some = np.flatnonzero(sizes > 0)
        if len(some) == 0:
            return None
        vectors = vectors[:, arrays.like(some, vectors)] / arrays.like(sizes[some], vectors)
        found, rotation = _eigh(_small(vectors.T @ vectors))
        values = arrays.to_host(found)
        kept = np.flatnonzero(values > threshold**2 * values[-1])
        rotation = rotation[:, arrays.like(kept, rotation)] / arrays.like(np.sqrt(values[kept]), rotation)
        vectors = vectors @ arrays.beside(rotation, vectors)
    return vectors


def _small(matrix: Array) -> Array:
    """A matrix of the size of a block: on the host, unless it is large and on a GPU."""
    return arrays.to_host(matrix) if len(matrix) <= BLOCK_ON_HOST else matrix


def _solved(root: Array, right: Array) -> Array:
    """(L L^T)^-1 right where L is, of the size of a block."""
    return linalg.cholesky_solve(root, arrays.to_host(right) if arrays.is_host(root) else right)


def _eigh(matrix: Array) -> tuple[Array, Array]:
    if arrays.is_host(matrix):
        return scipy.linalg.eigh(matrix, check_finite=False, driver="ev")
    return linalg.eigh(matrix)


def _spectral_norm(matrix: Array) -> float:
    """Of a matrix that is symmetric to rounding."""
    if arrays.is_host(matrix):
        return float(np.linalg.norm(matrix, 2))
    return float(np.max(np.abs(arrays.to_host(linalg.eigvalsh((matrix + matrix.T) / 2)))))
