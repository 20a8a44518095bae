"""Eigenvalues of the never-stored matrix behind the null law of the unbiased SKCE.

With n samples of a calibrated model n SKCE has, given the size of the residuals, about the law of
sum_i l_i Z_i^2, l the eigenvalues of A = (H without its diagonal) / (n - 1) and Z standard
normal: that of the statistic with Gaussian multipliers. (The diagonal of H, and centring, make
small samples' tests reject too rarely; measured by docs/scripts/w19_experiments.py.) They sum to 0.

`full_spectrum` stores A. `leading_spectrum` does not: a block Krylov method finds the largest
eigenvalues with a few products, the sum of squares of all comes exactly from `Moments`, and the third and
fourth powers of the rest from the same products, by stochastic quadrature. Called by `quadratic`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from kcalib import _arrays
from kcalib._dispatch import Operator
from kcalib._problem import Moments
from kcalib.laws import ChiSquareMixture

BLOCK_SIZE = 16
FEWEST_PRODUCTS, MOST_PRODUCTS = 2, 10  # each with at least BLOCK_SIZE columns
CONVERGED = 0.1  # residual of a Ritz pair, relative to its value; the value's own error is about its square
INVARIANT = 1e-6  # of a product's length: what products in float32 do not resolve
MOST_FREEDOM = 1e6  # degrees of freedom with which a chi-square law differs from a normal one


@dataclass(frozen=True)
class Spectrum:
    """Leading eigenvalues, and power sums of the others."""

    leading: np.ndarray  # largest in magnitude first
    rest_squares: float  # sum of squares of the others
    rest_cubes: float
    rest_fourths: float
    has_largest: bool = True  # whether the largest is among the leading ones, on which the far tail depends

    def power_sum(self, power: int) -> float:
        rest = {2: self.rest_squares, 3: self.rest_cubes, 4: self.rest_fourths}[power]
        return float(np.sum(self.leading**power)) + rest

    def truncated(self, count: int) -> Spectrum:
        """The `count` leading eigenvalues; the others by their power sums."""
        others = self.leading[count:]
        squares, cubes, fourths = (float(np.sum(others**power)) for power in (2, 3, 4))
        return Spectrum(self.leading[:count], squares, cubes, fourths)

    @property
    def remainder_share(self) -> float:
        """Share of the variance that the leading eigenvalues leave to the others."""
        total = self.power_sum(2)
        return self.rest_squares / total if total > 0 else 0.0

    def law(self) -> ChiSquareMixture:
        """The law of sum_i l_i (Z_i^2 - 1), its mean not subtracted: see `mean`.

        The sum over the others is a multiple of a chi-square variable plus a normal one, with their
        variance and third cumulant.
        """
        weights, freedom, variance = self.leading, np.ones(len(self.leading)), 2 * self.rest_squares
        # w times a chi-square variable with k degrees of freedom has variance 2 k w^2 and third cumulant 8 k w^3.
        w = self.rest_cubes / self.rest_squares if self.rest_squares > 0 else 0.0
        if w != 0 and self.rest_squares <= MOST_FREEDOM * w**2:
            largest = math.sqrt(self.rest_squares)  # with one degree of freedom
            w = min(largest, max(-largest, w))
            weights = np.append(weights, w)
            freedom = np.append(freedom, self.rest_squares / w**2)
            variance = 0.0
        return ChiSquareMixture(weights, degrees_of_freedom=freedom, normal_variance=variance)


def full_spectrum(operator: Operator, n: int) -> Spectrum:
    """All eigenvalues, of the stored matrix; 16 n^2 bytes."""
    matrix = _arrays.to_host(operator.tile(slice(0, n), slice(0, n))) / (n - 1)
    np.fill_diagonal(matrix, 0.0)
    values = scipy.linalg.eigvalsh(matrix, overwrite_a=True)
    return Spectrum(_by_magnitude(values), 0.0, 0.0, 0.0)


def leading_spectrum(
    operator: Operator, moments: Moments, n: int, count: int, settled: Callable[[Spectrum], bool]
) -> Spectrum:
    """Up to `count` eigenvalues of largest magnitude, from Ritz values of a block Krylov space.

    The space grows by a product with H until `settled`, which is asked after each from `FEWEST_PRODUCTS` on.
    """
    assert moments.sum_of_squares is not None
    diagonal = _arrays.to_host(moments.diagonal)[:, None]
    points = operator.problem.left.points
    squares = moments.sum_of_squares / (n - 1) ** 2
    block = min(n, max(BLOCK_SIZE, -(-count * 4 // 5)))
    vectors = np.random.default_rng(0).standard_normal((n, block))
    basis, projected = np.empty((n, 0)), np.empty((0, 0))
    found = Spectrum(np.empty(0), squares, 0.0, 0.0, False)
    for step in range(1, MOST_PRODUCTS + 1):
        new = _orthonormal(vectors, basis)
        if new.shape[1] == 0:  # the space is invariant
            break
        old, basis = basis.shape[1], np.concatenate([basis, new], axis=1)
        products = _arrays.to_host(operator.matmul(_arrays.like(new, points), dtype="float32"))
        vectors = (products - diagonal * new) / (n - 1)
        columns = basis.T @ vectors
        projected = np.block([[projected, columns[:old]], [columns[:old].T, columns[old:]]])
        if step >= FEWEST_PRODUCTS:
            outside = vectors - basis @ columns
            found = _from_krylov(projected, outside.T @ outside, squares, n, block, count)
            if settled(found):
                break
    return found


def _from_krylov(
    projected: np.ndarray, outside: np.ndarray, squares: float, n: int, block: int, count: int
) -> Spectrum:
    """Converged Ritz values of A as leading eigenvalues, and power sums of the others.

    `projected` is A in an orthonormal basis that begins with a random block, `outside` the Gram matrix of what
    the last product adds to the space, `squares` the sum of all squared eigenvalues.

    The first block is a random subspace: the mean of A^k over it, without the part in vectors that have
    converged, is that over the other eigenvalues (stochastic Lanczos quadrature). It is scaled to their known
    sum of squares.
    """
    values, vectors = scipy.linalg.eigh((projected + projected.T) / 2)
    last = vectors[-len(outside) :]
    residuals = np.sqrt(np.maximum(0.0, np.einsum("ij,ik,kj->j", last, outside, last)))
    order = np.argsort(-np.abs(values))
    leading = order[:count]
    kept = leading[residuals[leading] <= CONVERGED * np.abs(values[leading])]
    rest_squares = squares - float(np.sum(values[kept] ** 2))
    others, has_largest = np.setdiff1d(order, kept), bool(order[0] in kept)
    shares = np.sum(vectors[:block, others] ** 2, axis=0) * (n / block)
    estimates = [float(shares @ values[others] ** power) for power in (2, 3, 4)]
    if rest_squares <= 0 or estimates[0] <= 0:
        return Spectrum(values[kept], max(0.0, rest_squares), 0.0, 0.0, has_largest)
    scale = rest_squares / estimates[0]
    return Spectrum(values[kept], rest_squares, estimates[1] * scale**1.5, estimates[2] * scale**2, has_largest)


def _orthonormal(vectors: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """An orthonormal basis of what `vectors` add to `basis`; twice is enough."""
    size = np.sqrt(np.sum(vectors**2, axis=0).max(initial=0.0))
    for _ in range(2):
        vectors = vectors - basis @ (basis.T @ vectors)
        values, rotation = scipy.linalg.eigh(vectors.T @ vectors)
        kept = values > (INVARIANT * size) ** 2
        vectors = vectors @ (rotation[:, kept] / np.sqrt(values[kept]))
        size = 1.0
    return vectors


def _by_magnitude(values: np.ndarray) -> np.ndarray:
    return values[np.argsort(-np.abs(values))]
