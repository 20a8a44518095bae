"""Eigenvalues of a symmetric matrix A that is not stored, for null distributions of the unbiased SKCE.

n SKCE of a calibrated model is distributed approximately as sum_i l_i Z_i^2, with l the eigenvalues of A, which sum to
0, and Z standard normal. `conditional_spectrum` and `spectrum` define A as an `ImplicitMatrix`.

`full_spectrum` stores A. `leading_spectrum` does not: a block Krylov method finds the largest eigenvalues with a few
products, the sum of squares of all is given, and the third and fourth powers of the rest come from the same products,
by stochastic quadrature.

If the kernel changes slowly, the eigenvectors of the largest eigenvalues, which come in groups of nearly as many as
there are classes, are nearly those for the kernel 1. `ImplicitMatrix.start` has these; the first block contains them
and a few random vectors, and two products usually determine a p-value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.random import Weights, make_weights
from kcalib._pairs.backends.base import Backend
from kcalib._pairs.dispatch import in_single_precision
from kcalib._pairs.profiles import PROFILES
from kcalib._pairs.reductions import DenseRectangle, MomentSums, Products, sweep_one
from kcalib.laws import ChiSquareMixture

BLOCK_SIZE = 16  # columns of a product, for up to BLOCK_EIGENVALUES; fewer take nearly the same time
LINE_BLOCK_SIZE = 8  # in one dimension, where the time is proportional to the columns
BLOCK_EIGENVALUES = 20
FEWEST_PRODUCTS, MOST_PRODUCTS = 2, 10
FEWEST_RANDOM = 4  # random columns of the first block, for estimates of power sums
CONVERGED = 0.1  # residual of a Ritz pair relative to its value, whose error is about the square
INVARIANT = 1e-6  # relative length that products in float32 do not resolve
CANCELLED = 1e-6  # relative squared length below which digits are lost by subtraction
ROUGH = 1e-3  # relative error of an entry of H that products may have
FAR_BELOW = 1e-3  # relative to the diagonal: float32 products with it lose 6e-8 / 1e-3, a share of 6e-5
MOST_FREEDOM = 1e6  # degrees of freedom with which a chi-square distribution differs from a normal one


@dataclass(frozen=True)
class Eigenvalues:
    """Leading eigenvalues, and power sums of the others."""

    leading: np.ndarray  # largest in magnitude first
    rest_squares: float  # sum of squares of the others
    rest_cubes: float
    rest_fourths: float
    has_largest: bool = True  # whether the largest, which determines the far tail, is among the leading ones
    # The eigenvalues after the expected effect of the next product, if the first block has approximate leading
    # eigenvectors: random vectors alone, fewer than a group of equal eigenvalues, do not reveal its size.
    beyond: Eigenvalues | None = None

    def power_sum(self, power: int) -> float:
        rest = {2: self.rest_squares, 3: self.rest_cubes, 4: self.rest_fourths}[power]
        return float(np.sum(self.leading**power)) + rest

    @property
    def skewness(self) -> float:
        """The skewness of the distribution, whose third cumulant is 8 sum_i l_i^3."""
        return math.sqrt(8) * self._in_units(3)

    @property
    def kurtosis(self) -> float:
        """The excess kurtosis, with the fourth cumulant 48 sum_i l_i^4; at least its bound from the skewness."""
        return 12 * max(self._in_units(4), self._in_units(3) ** 2)  # true for every spectrum, not for estimates

    def _in_units(self, power: int) -> float:
        """Return the power sum scaled so that the sum of squares is 1: powers of eigenvalues may underflow."""
        unit, rest = math.sqrt(self.power_sum(2)), {3: self.rest_cubes, 4: self.rest_fourths}[power]
        if unit == 0:
            return 0.0
        for _ in range(power):
            rest /= unit
        return float(np.sum((self.leading / unit) ** power)) + rest

    @property
    def remainder_share(self) -> float:
        """Share of the variance from eigenvalues that are not leading."""
        total = self.power_sum(2)
        return self.rest_squares / total if total > 0 else 0.0

    def law(self) -> ChiSquareMixture:
        """The distribution of sum_i l_i (Z_i^2 - 1), plus its `mean`.

        A multiple of a chi-square variable plus a normal one, with the right variance and third cumulant, represents
        the other eigenvalues.
        """
        weights, freedom, variance = self.leading, np.ones(len(self.leading)), 2 * self.rest_squares
        # w times a chi-square variable with k degrees of freedom has variance 2 k w^2 and third cumulant 8 k w^3.
        w = self.rest_cubes / self.rest_squares if self.rest_squares > 0 else 0.0
        if w != 0 and self.rest_squares <= MOST_FREEDOM * w**2:
            largest = math.sqrt(self.rest_squares)  # with one degree of freedom
            w = min(largest, max(-largest, w))
            weights = np.append(weights, w)
            freedom = np.append(freedom, max(1.0, self.rest_squares / w**2))  # the root's rounding may leave less
            variance = 0.0
        return ChiSquareMixture(weights, degrees_of_freedom=freedom, normal_variance=variance)


@dataclass(frozen=True)
class ImplicitMatrix:
    """A symmetric matrix A = B / scale, known by its products."""

    size: int
    scale: float
    squares: float  # sum of the squares of the entries of A
    product: Callable[[Array], Array]  # B @ vectors, for vectors of shape (size, columns); a new array
    stored: Callable[[], Array]  # A itself, a new array
    reference: Array  # an array in the library and on the device of vectors
    width: int  # columns of a product, for up to BLOCK_EIGENVALUES
    threads: int
    start: Callable[[], Array] | None = None  # approximate leading eigenvectors, fewer than the columns


def of_residuals(backend: Backend, moments: MomentSums, n: int) -> ImplicitMatrix:
    """Return H of the observed residuals, without its diagonal, over n - 1.

    Its null distribution is that of Gaussian multipliers. (The diagonal of H, and centring, make tests of small samples
    reject too rarely; measured by docs/scripts/w19_experiments.py.)
    """
    assert moments.sum_of_squares is not None and moments.trace is not None
    diagonal = arrays.to_compute_device(moments.diagonal)[:, None]
    threads = backend.threads or 1
    squares = moments.sum_of_squares / (n - 1) ** 2
    with_diagonal = products_with_diagonal(backend, moments.sum_of_squares, diagonal)

    def product(vectors: Array) -> Array:
        result = with_diagonal(vectors)
        return result - diagonal * vectors

    def stored() -> Array:
        matrix = arrays.to_compute_device(sweep_one(backend, DenseRectangle(slice(0, n), slice(0, n)))) / (n - 1)
        arrays.namespace(matrix).fill_diagonal(matrix, 0.0)
        return matrix

    def start() -> Array:
        return arrays.to_compute_device(backend.problem.left.features, np.float64)

    width = LINE_BLOCK_SIZE if backend.on_a_line else BLOCK_SIZE
    # In one dimension there is one such vector; seven random ones in addition took more products than eight.
    vectors = backend.problem.target is None and not backend.on_a_line
    few = vectors and backend.problem.left.features.shape[1] <= width - FEWEST_RANDOM
    return ImplicitMatrix(n, n - 1.0, squares, product, stored, diagonal, width, threads, start if few else None)


def full_spectrum(implicit: ImplicitMatrix) -> Eigenvalues:
    """Return all eigenvalues, from the stored matrix; 16 bytes times its size squared."""
    values = arrays.to_host(linalg.eigvalsh(implicit.stored(), overwrite=True))
    return Eigenvalues(_by_magnitude(values), 0.0, 0.0, 0.0)


def leading_spectrum(implicit: ImplicitMatrix, count: int, is_settled: Callable[[Eigenvalues], bool]) -> Eigenvalues:
    """Return up to `count` eigenvalues of largest magnitude, from Ritz values of a block Krylov space."""
    scale, squares = implicit.scale, implicit.squares
    new, sample = _first_block(implicit, count)
    blocks: list[Array] = []  # of an orthonormal basis
    projected = np.empty((0, 0))
    result = Eigenvalues(np.empty(0), squares, 0.0, 0.0, False)
    for step in range(1, MOST_PRODUCTS + 1):
        if new.shape[1] == 0:  # the space is invariant
            break
        blocks.append(new)
        vectors = implicit.product(new)
        inside, gram = _inner_products(blocks, vectors)
        old = len(projected)
        projected = np.block([[projected, inside[:old]], [inside[:old].T, inside[old:]]])
        outside = (gram - _gram(inside)) / scale**2
        if step >= FEWEST_PRODUCTS:
            result = _from_krylov(projected / scale, outside, squares, sample, count)
            if is_settled(result):
                break
        new = _orthonormalize(vectors, blocks, inside, gram)
        if new.shape[1] == 0 and step < FEWEST_PRODUCTS:  # convergence was not checked
            result = _from_krylov(projected / scale, outside, squares, sample, count)
    return result


def _first_block(implicit: ImplicitMatrix, count: int) -> tuple[Array, _Sample]:
    """Return orthonormal vectors: start vectors, and random ones orthogonal to them."""
    width = min(implicit.size, max(implicit.width, -(-count * implicit.width // BLOCK_EIGENVALUES)))
    blocks: list[Array] = []
    if implicit.start is not None:
        vectors = implicit.start()
        blocks.append(_orthonormalize(vectors, [], *_inner_products([], vectors)))
    fixed = sum(int(block.shape[1]) for block in blocks)
    if fixed < width:
        weights = Weights("gaussian", implicit.size, width - fixed, 0)
        vectors = make_weights(implicit.reference, weights, threads=implicit.threads)
        blocks.append(_orthonormalize(vectors, list(blocks), *_inner_products(blocks, vectors)))
    first = blocks[0] if len(blocks) == 1 else arrays.namespace(blocks[0]).concat(blocks, axis=1)
    return first, _Sample(implicit.size, fixed, int(first.shape[1]))


def rounded(backend: Backend) -> Backend:
    """Return the backend in float32, which takes half the time, unless its rounding errors may matter.

    Products determine p-values to 1 %, with entries accurate to `ROUGH`. For points that differ by rounding, the kernel
    changes by rounding times `scale`.
    """
    rounding = float(np.finfo(np.float32).eps)
    factors = [f for term in backend.problem.kernel for f in term.factors]
    change = max((rounding * f.scale) ** PROFILES[f.profile].exponent(f) for f in factors)
    return backend if change > ROUGH else in_single_precision(backend)


def products_with_diagonal(backend: Backend, squares: float, diagonal: Array) -> Callable[[Array], Array]:
    """Return products with H, including the diagonal, which callers subtract.

    They are in float32 (`rounded`), unless the sum of `squares` of off-diagonal entries is so far below that of the
    diagonal, as for very narrow kernels, that they would be lost.
    """
    needs_double = squares <= FAR_BELOW**2 * float(arrays.namespace(diagonal).sum(diagonal * diagonal))
    product_backend, dtype = (backend, "float64") if needs_double else (rounded(backend), "float32")
    points = product_backend.problem.left.points
    return lambda vectors: arrays.to_compute_device(
        sweep_one(product_backend, Products(arrays.asarray_like(vectors, points), dtype=dtype))
    )


@dataclass(frozen=True)
class _Sample:
    """The first vectors of a basis: `fixed` ones, and random ones orthogonal to them, `width` in total."""

    size: int  # of all vectors
    fixed: int
    width: int

    def shares(self, vectors: np.ndarray) -> np.ndarray:
        """Return weights of Ritz vectors in the basis for which functions of Ritz values estimate traces."""
        squares, random = vectors[: self.width] ** 2, self.width - self.fixed
        random_shares = np.sum(squares[self.fixed :], axis=0) * ((self.size - self.fixed) / max(1, random))
        return np.sum(squares[: self.fixed], axis=0) + random_shares


def _from_krylov(
    projected: np.ndarray, outside: np.ndarray, squares: float, sample: _Sample, count: int
) -> Eigenvalues:
    """Return converged Ritz values of A as leading eigenvalues, and power sums of the others.

    `projected` is A in an orthonormal basis that starts with the sample, `outside` the Gram matrix of what the last
    product adds to the space, `squares` the sum of all squared eigenvalues.

    The random vectors of the first block span a random subspace: the mean of A^k over it, without the part in converged
    vectors, estimates the mean over the other eigenvalues (stochastic Lanczos quadrature). It is scaled to their known
    sum of squares.

    A Ritz value is smaller than its eigenvalue by about its squared residual over itself: `beyond` adds that, and takes
    Ritz values that have not converged for eigenvalues.
    """
    values, vectors = linalg.eigh((projected + projected.T) / 2)
    last = vectors[-len(outside) :]
    residuals = np.sqrt(np.maximum(0.0, np.einsum("ij,ij->j", last, linalg.matmul(outside, last))))
    sizes, shares = np.abs(values), sample.shares(vectors)
    order = np.argsort(-sizes)
    leading = order[:count]
    converged = leading[residuals[leading] <= CONVERGED * sizes[leading]]
    has_largest = bool(order[0] in converged)

    def with_rest(indices: np.ndarray, values: np.ndarray, beyond: Eigenvalues | None) -> Eigenvalues:
        rest_squares, is_rest = squares - float(np.sum(values[indices] ** 2)), np.ones(len(values), dtype=bool)
        is_rest[indices] = False
        estimates = [float(shares[is_rest] @ values[is_rest] ** power) for power in (2, 3, 4)]
        if rest_squares <= 0 or estimates[0] <= 0:
            return Eigenvalues(values[indices], max(0.0, rest_squares), 0.0, 0.0, has_largest, beyond)
        scale = rest_squares / estimates[0]
        cubes, fourths = estimates[1] * scale**1.5, estimates[2] * scale**2
        return Eigenvalues(values[indices], rest_squares, cubes, fourths, has_largest, beyond)

    corrections = np.divide(residuals**2, sizes, out=np.zeros_like(sizes), where=sizes > 0)
    corrected_values = values + np.sign(values) * np.minimum(corrections, sizes)
    return with_rest(converged, values, with_rest(leading, corrected_values, None) if sample.fixed else None)


def _inner_products(blocks: list[Array], vectors: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the inner products of the columns of `blocks` with `vectors`, and of these with each other."""
    *inside, gram = (arrays.to_host(linalg.matmul(block.T, vectors)) for block in (*blocks, vectors))
    return np.concatenate([np.empty((0, vectors.shape[1])), *inside]), gram


def _orthonormalize(vectors: Array, blocks: list[Array], inside: np.ndarray, gram: np.ndarray) -> Array:
    """Return an orthonormal basis of what `vectors` add to the basis `blocks`, whose inner products are given.

    The Gram matrix of the addition follows from these; a second round restores digits lost by cancellation.
    """
    size = float(np.max(np.diag(gram), initial=0.0))
    while True:
        rotation, is_exact = _rotation(gram - _gram(inside), size)
        vectors = linalg.matmul(vectors, arrays.asarray_like(rotation, vectors))
        begin = 0
        for block in blocks:
            end = begin + block.shape[1]
            vectors -= linalg.matmul(block, arrays.asarray_like(linalg.matmul(inside[begin:end], rotation), vectors))
            begin = end
        if is_exact:
            return vectors
        inside, gram = _inner_products(blocks, vectors)
        size = 1.0


def _rotation(gram: np.ndarray, size: float) -> tuple[np.ndarray, bool]:
    """Return the matrix that orthonormalises vectors with these inner products, without negligible ones, and a flag.

    The flag says whether no vector has lost digits.
    """
    values, rotation = linalg.eigh(gram)
    has_length = values > INVARIANT**2 * size
    squares = values[has_length]
    return rotation[:, has_length] / np.sqrt(squares), bool(np.min(squares, initial=size) >= CANCELLED * size)


def _gram(inside: np.ndarray) -> np.ndarray:
    return np.asarray(linalg.matmul(inside.T, inside))


def _by_magnitude(values: np.ndarray) -> np.ndarray:
    return values[np.argsort(-np.abs(values))]
