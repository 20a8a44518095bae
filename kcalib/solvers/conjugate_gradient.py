r"""Solve kernel ridge systems by block conjugate gradients: products with K only, O(n (rank + c)) memory.

All columns share one Krylov space, so c right sides take fewer products than a single one. This is the breakdown-free
block method of Ji and Li (2017): directions are an orthonormal basis, with fewer columns if right sides are linearly
dependent (as residuals, whose rows sum to 0). The preconditioner is :math:`(F F^\top + s I)^{-1}` with :math:`F` from
`pivoted_cholesky`.

Products may be in float32. Their errors in the residual recurrence are tracked, and before they matter the residual is
recomputed in float64, keeping the directions (reliable updates: Sleijpen and van der Vorst 1996). The returned residual
is accurate to 1 % of the tolerance. With "auto" the last products are in float32, when the residual is so small that
their errors do not matter (inexact Krylov methods: Simoncini and Szyld 2003); some rows of each are checked.

Arrays with n rows and the preconditioner stay in host memory or on their GPU. Block-sized matrices are on the host
unless they are large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice, check_integer
from kcalib._input.methods import Seeded
from kcalib.solvers.kernel_operator import shifted_product
from kcalib.solvers.pivoted_cholesky import automatic_block, partial_cholesky
from kcalib.solvers.ridge_system import (
    RidgeSystem,
    Solver,
    SolverResult,
    Verdict,
    largest_ratio,
    relative_residual,
)

PRODUCT_ROUNDING = {"float64": 5e-16, "float32": 1e-7}  # relative to ||K|| and the norm of the vector
# Largest share of rounding errors in a residual that is returned, and in one of the recurrence.
KNOWN, NOISY = 0.01, 0.1
# Reduction of the residual between two recomputations, below which float64 ends and float32 changes to float64.
GAIN = {"float64": 0.5, "float32": 1e-4}
CHECKED_ROWS, CHECK_SAFETY = 16, 4  # checked rows of a float32 product, and the safety factor for the others
STALLED = 100  # iterations without a new minimum of the residual
DEPENDENT = 1e-7  # smallest norm of the part of a direction that is orthogonal to the others
INDEFINITE = 1e-10  # relative negative curvature that is larger than rounding
BLOCK_ON_HOST = 64  # columns up to which LAPACK with transfers is as fast as cuSOLVER
RANK_SHARE, LARGEST_PRECONDITIONER = 50, 400  # the rank is n / 50, at most 400: larger ones cost more than they save
SMALL_REMAINDER = 0.001  # trace(K - F F^T) / shift below which more columns save nothing


@dataclass(frozen=True, kw_only=True)
class ConjugateGradient(Seeded, Solver):
    """Solve to a tolerance without storing the kernel matrix: ``"cg"`` of `kcalib.ckce` and `kcalib.solvers.solve`.

    Block conjugate gradients with a randomly pivoted Cholesky preconditioner. Each iteration takes one product of K
    with c vectors, a sweep over all pairs and n^2 c multiply-adds: O(n^2 m) for m classes. The shift n^(3/4) of the
    CKCE takes at most about ten iterations; worse conditioned systems take more. Memory O(n (rank + c)).

    Parameters
    ----------
    tol : float, optional
        In `kcalib.ckce` the bound of the error of the value, relative to the larger of the value and 1e-6 of the
        largest possible value; default 1e-8, for float32 1e-3. In `kcalib.solvers.solve` the largest residual of a
        column, relative to the norm of its right side; default 1e-10, or none if ``accept`` is given. With both, the
        first one that is satisfied ends the iteration.
    rank : int, optional
        Columns of K in the preconditioner, 0 for none. By default n / 50, at most 400, and fewer if these leave out
        only a small part of s.
    products : {"auto", "float64", "float32"}
        Precision of the products with K. With "float32" the residual is recomputed in float64 before rounding errors
        matter: equal accuracy with more iterations. "auto": float64, and float32 for the last products, whose errors do
        not matter.
    max_iterations : int
        Largest number of iterations, at least 1; the best solution is returned.
    seed : int, optional
        Seed of the preconditioner's random pivots, at least 0. By default a seed is drawn; the result reports it.

    Examples
    --------
    >>> import numpy as np
    >>> import kcalib
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet(np.ones(5), size=500)
    >>> y = rng.integers(5, size=500)
    >>> result = kcalib.ckce.result(y, p, method=kcalib.methods.ConjugateGradient(tol=1e-6))
    >>> result.method, result.tol, result.error_bound < 1e-6 * result.value
    ('cg', 1e-06, True)
    """

    name: ClassVar[str] = "cg"

    rank: int | None = None
    products: str = "auto"
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        Solver.__post_init__(self)
        Seeded.__post_init__(self)
        if self.rank is not None:
            check_integer("rank", self.rank, 0)
        check_choice("products", self.products, ("auto", "float64", "float32"))
        check_integer("max_iterations", self.max_iterations, 1)

    def check_size(self, n: int) -> None:
        if self.rank is not None:
            check_integer("rank", self.rank, 0, n, ": there are no more samples")

    def solve(self, system: RidgeSystem, reason: str) -> SolverResult:
        n, c = system.right_sides.shape
        largest_rank = automatic_rank(n) if self.rank is None else self.rank
        memory = memory_of_cg(n, c, largest_rank)
        noun = f"the vectors of conjugate gradients (n = {n}, rank {largest_rank}, {c} right sides)"
        system.check_memory(memory, noun, "pass a smaller rank=, or fewer right sides at a time")
        preconditioner = self._preconditioner(system, largest_rank)
        iterate = _Iteration(self, system, preconditioner).run()
        return SolverResult(
            iterate.values,
            iterate.residuals,
            iterate.converged,
            iterate.verdict,
            self.name,
            reason,
            memory,
            iterate.iterations,
            0 if preconditioner is None else preconditioner.rank,
        )

    def _preconditioner(self, system: RidgeSystem, largest_rank: int) -> Preconditioner | None:
        if largest_rank == 0 or system.right_sides.shape[1] == 0:
            return None
        if system.factor is not None and self.rank is None:
            return Preconditioner.of(system.factor, system.shift)
        tol = 0.0
        if self.rank is None:
            trace = float(arrays.namespace(system.right_sides).sum(system.operator.diagonal()))
            tol = min(0.5, SMALL_REMAINDER * system.shift / trace) if trace > 0 else 0.0
        factor = partial_cholesky(system.operator, largest_rank, tol=tol, seed=self.drawn_seed).factor
        return Preconditioner.of(factor, system.shift)


@dataclass(frozen=True)
class Preconditioner:
    """(F F^T + shift I)^{-1} = (I - F (shift I + F^T F)^{-1} F^T) / shift."""

    factor: Array  # F, shape (n, rank)
    root: Array  # L of shift I + F^T F = L L^T
    shift: float

    @classmethod
    def of(cls, factor: Array, shift: float) -> Preconditioner:
        gram = linalg.matmul(factor.T, factor)
        linalg.add_to_diagonal(gram, shift)
        return cls(factor, linalg.cholesky(gram), shift)

    @property
    def rank(self) -> int:
        return self.factor.shape[1]

    def __call__(self, vectors: Array) -> Array:
        inner = linalg.cholesky_solve(self.root, linalg.matmul(self.factor.T, vectors))
        return (vectors - linalg.matmul(self.factor, inner)) / self.shift


def is_good_factor(rank: int, n: int, left_out: float, shift: float) -> bool:
    """Return whether a factor of `rank` columns that leaves out `left_out` of the trace is a good preconditioner."""
    return rank >= automatic_rank(n) or left_out <= SMALL_REMAINDER * shift


def automatic_rank(n: int) -> int:
    """Return the largest number of columns of K in the preconditioner."""
    return min(n, LARGEST_PRECONDITIONER, n // RANK_SHARE)


def memory_of_cg(n: int, c: int, rank: int) -> int:
    """Return the bytes of ten arrays of all columns and of the factor."""
    return 8 * n * (10 * c + rank + 4 * automatic_block(rank))


@dataclass(frozen=True)
class _Iterate:
    """A solution, with residuals computed in float64."""

    values: Array
    residuals: Array
    iterations: int
    converged: bool
    verdict: Verdict | None = None


class _Iteration:
    """The iteration for all columns of a system."""

    def __init__(self, method: ConjugateGradient, system: RidgeSystem, preconditioner: Preconditioner | None) -> None:
        right_sides = system.right_sides
        xp = arrays.namespace(right_sides)
        self.operator, self.shift, self.preconditioner = system.operator, system.shift, preconditioner
        self.system, self.tol = system, system.resolve_tolerance(method.tol)
        self.max_iterations = method.max_iterations
        self.products = "float64" if method.products == "auto" else method.products
        self.may_round = method.products == "auto"  # whether the last products may be in float32
        self.right_sides = right_sides
        self.scales = linalg.column_norms(right_sides)
        self.values = xp.zeros_like(right_sides)
        self.residuals = xp.asarray(right_sides, copy=True)
        self.largest = 0.0  # lower bound of the norm of K + s I
        self.errors = np.zeros(len(self.scales))  # approximate largest rounding errors of the residuals
        self.history: list[float] = []
        self.iterations = 0
        self._assess()
        # Directions, their products with K + s I, and the Cholesky root of the inner products of both.
        self.last: tuple[Array, Array, Array] | None = None
        # The best iterate with a recomputed residual.
        self.best = _Iterate(self.values, self.residuals, 0, False, self.verdict)
        self.best_relative = math.inf
        self.last_relative = math.inf if self.products == "float64" else self.relative  # at the last recomputation

    def run(self) -> _Iterate:
        while not (self.is_good and self._rounding_share() <= KNOWN):
            directions = self._next_directions()
            stuck = directions is None or self._is_stalled()
            exhausted = self.iterations >= self.max_iterations
            if stuck or exhausted or self._rounding_share() > NOISY or self.is_good:
                gains = self._recompute()
                if self.is_good:
                    break
                if self.products == "float32" and not gains:
                    self.products, gains, stuck = "float64", True, True
                if stuck:
                    self._restart()
                directions = self._next_directions()
                if exhausted or not gains or directions is None:
                    return replace(self.best, iterations=self.iterations)
            assert directions is not None
            self._step(directions)
        return _Iterate(self.values, self.residuals, self.iterations, True, self.verdict)

    def _product(self, vectors: Array, dtype: str = "float64") -> Array:
        return shifted_product(self.operator, vectors, self.shift, dtype)

    def _next_directions(self) -> Array | None:
        """Return an orthonormal basis of the next directions, or None if only rounding errors remain."""
        news = self.residuals if self.preconditioner is None else self.preconditioner(self.residuals)
        if self.last is not None:
            directions, images, curvature = self.last
            lengths = _solve_block(curvature, linalg.matmul(images.T, news))
            news = news - linalg.matmul(directions, arrays.asarray_like(lengths, news))
        return _orthonormalize(news)

    def _step(self, directions: Array) -> None:
        dtype = self.products
        images, rounding = self._images(directions)
        matrix = _block_on_host(linalg.matmul(directions.T, images))
        curvature = self._curvature_root(matrix)
        if curvature is None and dtype == "float32":
            self.products, dtype = "float64", "float64"
            images = self._product(directions)
            matrix = _block_on_host(linalg.matmul(directions.T, images))
            curvature = self._curvature_root(matrix)
        self.iterations += 1
        if curvature is None:
            self._restart()
            self.history += STALLED * self.history[-1:]
            return
        lengths = _solve_block(curvature, linalg.matmul(directions.T, self.residuals))
        steps = arrays.asarray_like(lengths, directions)
        self.values += linalg.matmul(directions, steps)
        self.residuals -= linalg.matmul(images, steps)
        self.largest = max(self.largest, _spectral_norm(matrix))
        rounding = max(rounding, PRODUCT_ROUNDING[dtype] * self.largest)
        self.errors += rounding * linalg.column_norms(lengths)
        self.last = directions, images, curvature
        self._assess()

    def _images(self, directions: Array) -> tuple[Array, float]:
        """Return (K + s I) P, and the size of its error if measured, else 0."""
        # Expect the residual to fall as in the last step; lengths are at most its norm over the shift.
        expected = self.history[-1] ** 2 / self.history[-2] if len(self.history) > 1 else math.inf
        if self.may_round and expected <= self._target():
            size = max(expected, self.tol or 0.0)
            allowed = KNOWN / 2 * size - largest_ratio(self.errors, self.scales)
            lengths = self.relative / self.shift
            if PRODUCT_ROUNDING["float32"] * self.largest * lengths <= allowed:
                images = self._product(directions, "float32")
                error = self._measure_error(directions, images)
                if error * lengths <= allowed:
                    return images, error
                self.may_round = False
        return self._product(directions, self.products), 0.0

    def _target(self) -> float:
        """Return about the relative residual that is accurate enough; 0 if unknown."""
        needed = 0.0 if self.verdict is None else self.verdict.needed
        return max(self.tol or 0.0, self.relative * needed)

    def _measure_error(self, directions: Array, images: Array) -> float:
        """Return about the norm of the error of a product, from some rows."""
        n = len(directions)
        rows = np.unique(np.linspace(0, n - 1, CHECKED_ROWS).astype(np.int64))
        at = arrays.like(rows, directions)
        tile = self.operator.tile(rows, slice(0, n))
        exact = linalg.matmul(tile, directions) + self.shift * directions[at]
        return CHECK_SAFETY * linalg.norm(exact - images[at]) * math.sqrt(n / len(rows))

    def _curvature_root(self, matrix: Array) -> Array | None:
        """Return L of P^T (K + s I) P = L L^T, or None if rounding makes it indefinite."""
        matrix = (matrix + matrix.T) / 2
        try:
            return linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            values = arrays.to_host(linalg.eigvalsh(matrix))
        tolerance = INDEFINITE * max(abs(values[0]), values[-1], self.shift)
        if values[0] > -tolerance or self.products != "float64":
            return None
        raise ValueError(
            f"K + shift I is not positive definite: a vector has p^T (K + shift I) p / p^T p = {values[0]:.3g}, and K "
            f"is {self.operator!r}; take a kernel that is positive definite (such as Exponential(), or "
            "Gaussian() with metric='euclidean'), or a larger shift"
        )

    def _restart(self) -> None:
        """Discard the directions, and restart from the residual."""
        self.last, self.history = None, self.history[-1:]

    def _recompute(self) -> bool:
        """Recompute the residual in float64; return whether it fell enough since the last time."""
        self.residuals = self.right_sides - self._product(self.values)
        sizes = self.largest * linalg.column_norms(self.values)
        self.errors = PRODUCT_ROUNDING["float64"] * (sizes + self.scales)
        self._assess()
        gains = self.relative < self.last_relative * GAIN[self.products]
        self.last_relative = self.relative
        if self.relative < self.best_relative:
            self.best = _Iterate(self.values.copy(), self.residuals.copy(), self.iterations, False, self.verdict)
            self.best_relative = self.relative
        return gains

    def _assess(self) -> None:
        """Set the relative residual and whether it is accurate enough; call once for each residual."""
        self.relative = relative_residual(self.residuals, self.scales)
        self.history.append(self.relative)
        self.is_good, self.verdict = self.system.assess(self.tol, self.values, self.residuals, self.relative)

    def _rounding_share(self) -> float:
        """Return the share of rounding errors in the residual, or in the tolerance if that is met."""
        error, size = largest_ratio(self.errors, self.scales), self.relative
        if self.tol is not None and size <= self.tol:
            size = self.tol
        return error / size if error > 0 and size > 0 else math.inf if error > 0 else 0.0

    def _is_stalled(self) -> bool:
        return len(self.history) > STALLED and int(np.argmin(self.history)) < len(self.history) - STALLED


def _orthonormalize(vectors: Array) -> Array | None:
    """Return an orthonormal basis of the space of the columns, by two Gram matrices; None for zeros."""
    for threshold in (DEPENDENT, 0.5):
        sizes = linalg.column_norms(vectors)
        columns = np.flatnonzero(sizes > 0)
        if len(columns) == 0:
            return None
        vectors = vectors[:, arrays.like(columns, vectors)] / arrays.like(sizes[columns], vectors)
        values, rotation = linalg.eigh(_block_on_host(linalg.matmul(vectors.T, vectors)))
        values = arrays.to_host(values)
        first = int(np.argmax(values > threshold**2 * values[-1]))
        rotation = rotation[:, first:] / arrays.like(np.sqrt(values[first:]), rotation)
        vectors = linalg.matmul(vectors, arrays.asarray_like(rotation, vectors))
    return vectors


def _block_on_host(matrix: Array) -> Array:
    """Return a block-sized matrix on the host, unless it is large and on a GPU."""
    return arrays.to_host(matrix) if len(matrix) <= BLOCK_ON_HOST else matrix


def _solve_block(root: Array, right: Array) -> Array:
    """Return (L L^T)^-1 right, block-sized, on the device of L."""
    return linalg.cholesky_solve(root, arrays.to_host(right) if arrays.is_host(root) else right)


def _spectral_norm(matrix: Array) -> float:
    """Return the spectral norm of a matrix that is symmetric up to rounding."""
    return float(np.max(np.abs(arrays.to_host(linalg.eigvalsh((matrix + matrix.T) / 2)))))
