r"""Kernel ridge systems by block conjugate gradients: products with K only, O(n (rank + c)) memory.

All columns share one Krylov space, so that c right sides take fewer products than one does: the breakdown-free block
method of Ji and Li (2017), whose directions are an orthonormal basis, short of columns where these depend on each other
(residuals of predictions always do: their rows sum to 0). The preconditioner is :math:`(F F^\top + s I)^{-1}` with
:math:`F` from `pivoted_cholesky`.

Products may be made in float32. Each leaves an error in the recurrence of the residual; these are added up, and before
they count the residual is computed anew, in float64 (reliable updates: Sleijpen and van der Vorst 1996), while the
directions go on. What is returned is a residual of float64 products, but for 1 % of what is asked for. By themselves
("auto") the last products are in float32, when what is left of the residual is so small that their errors cannot count
(inexact Krylov methods: Simoncini and Szyld 2003); some rows of each are checked. Called by `_solve`.

Arrays of n rows stay where they are, in host memory or on a GPU, and so does the preconditioner. Matrices of the size
of a block, whose factors choose directions and lengths, are the host's unless they are large.
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
from kcalib.solvers.kernel_operator import SymmetricOperator, shifted_product
from kcalib.solvers.pivoted_cholesky import automatic_block, partial_cholesky
from kcalib.solvers.ridge_system import (
    RidgeSystem,
    Solved,
    Solver,
    StoppingRule,
    Verdict,
    largest_ratio,
    relative_residual,
)

PRODUCT_ROUNDING = {"float64": 5e-16, "float32": 1e-7}  # of a product with K, relative to ||K|| and the vector's length
KNOWN, NOISY = 0.01, 0.1  # share of a residual that rounding has: of one that is returned, or goes on
# By which the residual must fall between two renewals, or else: the iteration ends, float64 takes over.
GAIN = {"float64": 0.5, "float32": 1e-4}
CHECKED_ROWS, CHECK_SAFETY = 16, 4  # rows of a float32 product that are computed anew; for those that are not
STALLED = 100  # iterations in which the residual finds no new minimum
DEPENDENT = 1e-7  # length of a direction without what others have of it
INDEFINITE = 1e-10  # negative curvature that is no rounding, relative to the largest
GROUP_NUMBERS, GROUP_COLUMNS = 2**22, 64  # numbers in the columns solved at once; columns at least
BLOCK_ON_HOST = 64  # columns up to which LAPACK takes no longer than cuSOLVER, transfers included
# The preconditioner's rank: n / RANK_SHARE, so that it costs less than it saves.
RANK_SHARE, LARGEST_PRECONDITIONER = 50, 400
SMALL_REMAINDER = 0.001  # trace(K - F F^T) / shift below which more columns save nothing


@dataclass(frozen=True, kw_only=True)
class ConjugateGradient(Seeded, Solver):
    """Exact to a tolerance, the kernel matrix never stored: ``"cg"`` of `kcalib.ckce` and `kcalib.solvers.solve`.

    Block conjugate gradients with a randomly pivoted Cholesky preconditioner. Each iteration takes one product of K
    with c vectors, a sweep over all pairs and n^2 c multiply-adds: O(n^2 m) for m classes. The better conditioned
    K + s I, the fewer; hardly ten for the shift n^(3/4) of the CKCE. Memory O(n (rank + c)).

    Parameters
    ----------
    tol : float, optional
        Where to stop. In `kcalib.ckce` the largest error of the value, by its bound, relative to the value, or to 1e-6
        of the largest possible one, if that is more; default 1e-8, for float32 1e-3. In `kcalib.solvers.solve` the
        largest residual of a column, relative to the norm of its right side; default 1e-10, or, if there is an
        ``accept``, none. With both, the one that is met first decides.
    rank : int, optional
        Columns of K in the preconditioner, 0 for none. By default n / 50, at most 400, and fewer where these make up
        all of K but a small part of s.
    products : {"auto", "float64", "float32"}
        Arithmetic of the products with K. In "float32" the residual is computed anew in float64 whenever rounding
        would count, so that the solution is as exact; the more iterations. "auto": float64, and float32 for last
        products whose errors do not count.
    max_iterations : int
        Iterations after which the best solution so far is returned, at least 1.
    seed : int, optional
        Seed of the preconditioner's random pivots, at least 0. None draws one, which the result reports.

    Examples
    --------
    >>> import numpy as np
    >>> import kcalib
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet(np.ones(5), size=500)
    >>> y = rng.integers(5, size=500)
    >>> found = kcalib.ckce.result(y, p, method=kcalib.methods.ConjugateGradient(tol=1e-6))
    >>> found.method, found.tol, found.error_bound < 1e-6 * found.value
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

    def solve(self, system: RidgeSystem, reason: str) -> Solved:
        n, c = system.right_sides.shape
        most = automatic_rank(n) if self.rank is None else self.rank
        memory = memory_of_cg(n, c, most, together=system.judge is not None)
        what = f"the vectors of conjugate gradients (n = {n}, rank {most}, {c} right sides)"
        system.check_memory(memory, what, "pass a smaller rank=, or fewer right sides at a time")
        preconditioner = self._preconditioner(system, most)
        rule = system.stopping_rule(self.tol)
        task = _Task(system.operator, system.shift, preconditioner, rule, self.products, self.max_iterations)
        found = _by_groups(task, system.right_sides, c if system.judge is not None else columns_at_once(n))
        return Solved(
            found.values,
            found.residuals,
            found.converged,
            found.verdict,
            self.name,
            reason,
            memory,
            found.iterations,
            0 if preconditioner is None else preconditioner.rank,
        )

    def _preconditioner(self, system: RidgeSystem, most: int) -> Preconditioner | None:
        if most == 0 or system.right_sides.shape[1] == 0:
            return None
        if system.factor is not None and self.rank is None:
            return Preconditioner.of_factor(system.factor, system.shift, getattr(system.operator, "threads", None))
        tol = 0.0
        if self.rank is None:
            trace = float(arrays.namespace(system.right_sides).sum(system.operator.diagonal()))
            tol = min(0.5, SMALL_REMAINDER * system.shift / trace) if trace > 0 else 0.0
        return Preconditioner.of(system.operator, system.shift, most, tol, self.drawn_seed)


@dataclass(frozen=True)
class Preconditioner:
    """(F F^T + shift I)^{-1} = (I - F (shift I + F^T F)^{-1} F^T) / shift."""

    factor: Array  # F, shape (n, rank)
    root: Array  # L^{-1} of shift I + F^T F = L L^T, lower
    shift: float
    threads: int | None = None

    @classmethod
    def of(cls, operator: SymmetricOperator, shift: float, rank: int, tol: float, seed: int) -> Preconditioner:
        factor = partial_cholesky(operator, rank, tol=tol, seed=seed).factor
        return cls.of_factor(factor, shift, getattr(operator, "threads", None))

    @classmethod
    def of_factor(cls, factor: Array, shift: float, threads: int | None) -> Preconditioner:
        gram = linalg.gram(factor, threads)
        linalg.add_to_diagonal(gram, shift)
        return cls(factor, linalg.inverse_root(gram), shift, threads)

    @property
    def rank(self) -> int:
        return self.factor.shape[1]

    def __call__(self, vectors: Array) -> Array:
        # By both roots: the inverse itself has lost twice as many digits where the shift is small.
        half = linalg.combined(self.root, linalg.inner_products(self.factor, vectors, self.threads))
        inner = linalg.inner_products(self.root, half)
        return (vectors - linalg.combined(self.factor, inner, self.threads)) / self.shift


def is_good_factor(rank: int, n: int, left_out: float, shift: float) -> bool:
    """Whether a factor of so many columns, which leaves out so much of the trace, does for a preconditioner."""
    return rank >= automatic_rank(n) or left_out <= SMALL_REMAINDER * shift


def automatic_rank(n: int) -> int:
    """Columns of K in the preconditioner, at most."""
    return min(n, LARGEST_PRECONDITIONER, n // RANK_SHARE)


def columns_at_once(n: int) -> int:
    return max(GROUP_COLUMNS, GROUP_NUMBERS // n)


def memory_of_cg(n: int, c: int, rank: int, *, together: bool) -> int:
    """Bytes: solution and residual, eight arrays of the size of the columns solved at once, the factor."""
    columns = c if together else min(c, columns_at_once(n))
    return 8 * n * (2 * c + 8 * columns + rank + 4 * automatic_block(rank))


@dataclass(frozen=True)
class _Task:
    """What is iterated upon, but for the right sides."""

    operator: SymmetricOperator
    shift: float
    preconditioner: Preconditioner | None
    rule: StoppingRule
    products: str
    max_iterations: int

    @property
    def threads(self) -> int | None:
        threads: int | None = getattr(self.operator, "threads", None)
        return threads

    def product(self, vectors: Array, dtype: str = "float64") -> Array:
        return shifted_product(self.operator, vectors, self.shift, dtype)

    def preconditioned(self, residuals: Array) -> Array:
        return residuals if self.preconditioner is None else self.preconditioner(residuals)


@dataclass(frozen=True)
class _Iterate:
    """Solutions of some columns, with residuals of float64 products."""

    values: Array
    residuals: Array
    iterations: int
    converged: bool
    verdict: Verdict | None = None


def _by_groups(task: _Task, right_sides: Array, at_once: int) -> _Iterate:
    """The solution of all columns, so many together; a judge sees all, so that there is one group then."""
    n, c = right_sides.shape
    xp = arrays.namespace(right_sides)
    found = _Iterate(xp.zeros((n, c)), xp.asarray(right_sides, copy=True), 0, True)
    step = max(1, at_once)
    for begin in range(0, c, step):
        columns = slice(begin, min(c, begin + step))
        part = _Iteration(task, right_sides[:, columns]).run()
        found.values[:, columns], found.residuals[:, columns] = part.values, part.residuals
        iterations, converged = max(found.iterations, part.iterations), found.converged and part.converged
        found = replace(found, iterations=iterations, converged=converged, verdict=part.verdict)
    return found


class _Iteration:
    """Columns that are solved together."""

    def __init__(self, task: _Task, right_sides: Array) -> None:
        xp = arrays.namespace(right_sides)
        self.task = task
        self.products = "float64" if task.products == "auto" else task.products
        self.may_round = task.products == "auto"  # products whose errors do not count
        self.right_sides = right_sides
        self.scales = linalg.column_norms(right_sides)
        self.values = xp.zeros_like(right_sides)
        self.residuals = xp.asarray(right_sides, copy=True)
        self.largest = 0.0  # norm of K + s I, as far as seen
        self.errors = np.zeros(len(self.scales))  # of the residuals, by rounding: at most about
        self.history: list[float] = []
        self.iterations = 0
        self._assess()
        # Directions, their products with K + s I, and the inverse Cholesky root of both's.
        self.last: tuple[Array, Array, Array] | None = None
        # The best of those whose residual was computed anew.
        self.best = _Iterate(self.values, self.residuals, 0, False, self.verdict)
        self.best_relative = math.inf
        self.last_relative = math.inf if self.products == "float64" else self.relative  # when last computed anew

    def run(self) -> _Iterate:
        while not (self.good and self._noise() <= KNOWN):
            directions = self._directions()
            stuck = directions is None or self._is_stalled()
            exhausted = self.iterations >= self.task.max_iterations
            if stuck or exhausted or self._noise() > NOISY or self.good:
                gains = self._recompute()
                if self.good:
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
        return _Iterate(self.values, self.residuals, self.iterations, True, self.verdict)

    def _directions(self) -> Array | None:
        """An orthonormal basis of the next directions; None where there is none, or rounding has hidden it."""
        news, threads = self.task.preconditioned(self.residuals), self.task.threads
        if self.last is not None:
            directions, images, curvature = self.last
            lengths = _solved_block(curvature, linalg.inner_products(images, news, threads))
            news = news - linalg.combined(directions, arrays.beside(lengths, news), threads)
        return _orthonormal(news, threads)

    def _step(self, directions: Array) -> None:
        dtype, threads = self.products, self.task.threads
        images, rounding = self._images(directions)
        matrix = _small(linalg.inner_products(directions, images, threads))
        curvature = self._curvature(matrix)
        if curvature is None and dtype == "float32":
            self.products, dtype = "float64", "float64"
            images = self.task.product(directions)
            matrix = _small(linalg.inner_products(directions, images, threads))
            curvature = self._curvature(matrix)
        self.iterations += 1
        if curvature is None:
            self._forget()
            self.history += STALLED * self.history[-1:]
            return
        lengths = _solved_block(curvature, linalg.inner_products(directions, self.residuals, threads))
        steps = arrays.beside(lengths, directions)
        self.values += linalg.combined(directions, steps, threads)
        self.residuals -= linalg.combined(images, steps, threads)
        self.largest = max(self.largest, _spectral_norm(matrix))
        rounding = max(rounding, PRODUCT_ROUNDING[dtype] * self.largest)
        self.errors += rounding * linalg.column_norms(lengths)
        self.last = directions, images, curvature
        self._assess()

    def _images(self, directions: Array) -> tuple[Array, float]:
        """(K + s I) P, and the size of its error where that was measured."""
        task = self.task
        # The residual will fall by as much as it just did, about, and lengths are at most its own over the shift.
        expected = self.history[-1] ** 2 / self.history[-2] if len(self.history) > 1 else math.inf
        if self.may_round and expected <= self._aim():
            size = max(expected, self.task.rule.tol or 0.0)
            allowed = KNOWN / 2 * size - largest_ratio(self.errors, self.scales)
            lengths = self.relative / task.shift
            if PRODUCT_ROUNDING["float32"] * self.largest * lengths <= allowed:
                images = task.product(directions, "float32")
                error = self._error(directions, images)
                if error * lengths <= allowed:
                    return images, error
                self.may_round = False
        return task.product(directions, self.products), 0.0

    def _aim(self) -> float:
        """The relative residual that is good enough, about; 0 where nobody says."""
        needed = 0.0 if self.verdict is None else self.verdict.needed
        return max(self.task.rule.tol or 0.0, self.relative * needed)

    def _error(self, directions: Array, images: Array) -> float:
        """The size of the error of a product, about, from some of its rows."""
        n = len(directions)
        rows = np.unique(np.linspace(0, n - 1, CHECKED_ROWS).astype(np.int64))
        at = arrays.like(rows, directions)
        tile = self.task.operator.tile(rows, slice(0, n))
        exact = linalg.inner_products(tile.T, directions, self.task.threads) + self.task.shift * directions[at]
        return CHECK_SAFETY * linalg.norm(exact - images[at]) * math.sqrt(n / len(rows))

    def _curvature(self, matrix: Array) -> Array | None:
        """L^-1 of P^T (K + s I) P = L L^T; None where rounding hides that it is positive."""
        matrix = (matrix + matrix.T) / 2
        try:
            return linalg.inverse_root(matrix)
        except np.linalg.LinAlgError:
            values = arrays.to_host(linalg.eigvalsh(matrix))
        tolerance = INDEFINITE * max(abs(values[0]), values[-1], self.task.shift)
        if values[0] > -tolerance or self.products != "float64":
            return None
        raise ValueError(
            f"K + shift I is not positive definite: a vector has p^T (K + shift I) p / p^T p = {values[0]:.3g}, and K "
            f"is {self.task.operator!r}; take a kernel that is positive definite (such as Exponential(), or "
            "Gaussian() with metric='euclidean'), or a larger shift"
        )

    def _forget(self) -> None:
        """Start anew from the residual."""
        self.last, self.history = None, self.history[-1:]

    def _recompute(self) -> bool:
        """The residual in float64; whether it has fallen enough since it was so computed before."""
        self.residuals = self.right_sides - self.task.product(self.values)
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
        """How large the residual is, and whether that is good enough: once for each."""
        self.relative = relative_residual(self.residuals, self.scales)
        self.history.append(self.relative)
        self.good, self.verdict = self.task.rule(self.values, self.residuals, self.relative)

    def _noise(self) -> float:
        """Share of the residual, or of the tolerance that it has met, that may be rounding."""
        error, size = largest_ratio(self.errors, self.scales), self.relative
        tol = self.task.rule.tol
        if tol is not None and size <= tol:
            size = tol
        return error / size if error > 0 and size > 0 else math.inf if error > 0 else 0.0

    def _is_stalled(self) -> bool:
        return len(self.history) > STALLED and int(np.argmin(self.history)) < len(self.history) - STALLED


def _orthonormal(vectors: Array, threads: int | None) -> Array | None:
    """An orthonormal basis of the space of the columns, twice by their Gram matrix; None of zeros."""
    for threshold in (DEPENDENT, 0.5):
        sizes = linalg.column_norms(vectors)
        some = np.flatnonzero(sizes > 0)
        if len(some) == 0:
            return None
        vectors = vectors[:, arrays.like(some, vectors)] / arrays.like(sizes[some], vectors)
        found, rotation = linalg.eigh(_small(linalg.inner_products(vectors, vectors, threads)))
        values = arrays.to_host(found)
        kept = np.flatnonzero(values > threshold**2 * values[-1])
        rotation = rotation[:, arrays.like(kept, rotation)] / arrays.like(np.sqrt(values[kept]), rotation)
        vectors = linalg.combined(vectors, arrays.beside(rotation, vectors), threads)
    return vectors


def _small(matrix: Array) -> Array:
    """A matrix of the size of a block: on the host, unless it is large and on a GPU."""
    return arrays.to_host(matrix) if len(matrix) <= BLOCK_ON_HOST else matrix


def _solved_block(inverse: Array, right: Array) -> Array:
    """(L L^T)^-1 right where L^-1 is, of the size of a block."""
    right = arrays.to_host(right) if arrays.is_host(inverse) else right
    return linalg.inner_products(inverse, linalg.combined(inverse, right))


def _spectral_norm(matrix: Array) -> float:
    """The spectral norm of a matrix that is symmetric to rounding."""
    return float(np.max(np.abs(arrays.to_host(linalg.eigvalsh((matrix + matrix.T) / 2)))))
