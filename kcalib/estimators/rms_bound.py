r"""Compute a certified lower limit of the root mean square calibration error, in units of probability.

Let e(p) be the signed measure "conditional distribution of the target given the prediction p, minus p", and tv(p) its
total variation, the largest error of the probability that p gives to any event. Then

    SKCE = E k(p, p') <e(p), e(p')> <= lambda E |e(p)|^2 <= lambda D E tv(p)^2

where lambda is the largest eigenvalue of f -> E k(., p) f(p), and D the squared diameter of the targets under their
kernel, 2 for the Kronecker delta, because e is tv times the difference of two distributions. A lower limit of the SKCE
gives one of E tv^2. lambda is the supremum of E g(p)^2 over functions g of length at most 1 in the kernel's space.
lambda_n, the largest eigenvalue of K / n, is the same for the mean over samples, so E lambda_n >= lambda, and lambda_n
is rarely much below its mean (`MeanEigenvalue.upper_limit`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._packing import Packed
from kcalib._packing.features import FeatureProblem
from kcalib._packing.target_factors import TargetFactor
from kcalib._pairs.backends.base import Backend
from kcalib._pairs.feature_sums import feature_rows
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.profiles import kernel_supremum
from kcalib._pairs.reductions import Moments, Products, sweep_one

RISK_SHARE = 0.05  # share of the level for the event that lambda is above its upper limit
WORK = 1e9  # multiply-adds of a product with K; the eigenvalue uses a subset of more samples
ENTRY = 12  # cost of an entry of K in addition to its columns
MOST_WITH_FEATURES, ROWS = 2**14, 2**12  # samples, and how many at a time
MOST_OF_DISTRIBUTIONS = 2000  # samples, if entries are sums over components
SEED = 0  # of the subset, so that the eigenvalue is a function of the predictions
MOST_PRODUCTS, CONVERGED = 30, 1e-3


class NoBoundError(ValueError):
    """Raised if there is no bound, with the reason."""


@dataclass(frozen=True)
class MeanEigenvalue:
    """Upper bound of the largest eigenvalue of K / n for samples of the predictions."""

    value: float
    supremum: float  # of k(p, p)
    n_samples: int

    def upper_limit(self, risk: float) -> float:
        """Return an upper limit, which the eigenvalue of the mean operator exceeds with probability `risk` at most.

        There are two limits: McDiarmid's inequality, as a sample changes lambda_n by at most kappa / n with
        kappa = sup k(p, p); and E lambda_n - lambda_n <= sqrt(2 kappa E lambda_n L / n) with L = -log(risk), as
        lambda_n is self-bounding (Boucheron, Lugosi, Massart 2009). Each fails if lambda_n is below a fixed number, so
        the smaller limit fails no more often than one of them.
        """
        share = -math.log(risk) * self.supremum / (2 * self.n_samples)
        by_range = self.value + math.sqrt(share * self.supremum)
        by_itself = (math.sqrt(share) + math.sqrt(self.value + share)) ** 2
        return min(self.supremum, by_range, by_itself)


def rms_error_lower(skce_low: float, eigenvalue: float, squared_diameter: float) -> float:
    """Return the lower limit of the root of E tv^2 from a lower limit of the SKCE."""
    return math.sqrt(max(0.0, skce_low) / (eigenvalue * squared_diameter))


def mean_eigenvalue(data: Data, packed: Packed, backend: Backend) -> MeanEigenvalue:
    """Return lambda_n of all packed predictions, or of a random subset.

    Raise NoBoundError if the kernel is unbounded, or not known to be positive definite.
    """
    if not packed.is_definite:
        raise NoBoundError(f"the kernel {packed.kernel} is not known to be positive definite")
    supremum = kernel_supremum(packed.problem.kernel, has_bounded_points=points_are_bounded(data))
    if supremum is None:
        raise NoBoundError(f"the kernel {packed.kernel} has no known supremum")
    problem, n = packed.problem, data.n
    size = n if backend.on_a_line else min(n, _most_samples(problem))
    points = problem.left.points
    if size < n:
        points = arrays.namespace(points).take(points, arrays.asarray_like(data.order(SEED)[:size], points), axis=0)
    side = Side(points, arrays.namespace(points).ones_like(points[:, :1]))
    kernel_problem = replace(problem, left=side, target=None)
    backend = backend.like(kernel_problem)
    return MeanEigenvalue(min(supremum, _largest(backend, size)), supremum, size)


def feature_eigenvalue(problem: FeatureProblem) -> MeanEigenvalue:
    """Return `mean_eigenvalue` of a bounded feature kernel, whose matrix has the eigenvalues of phi^T phi."""
    feature_map, points, n = problem.map, problem.points, problem.n
    supremum = feature_supremum(feature_map, has_bounded_points=points_are_bounded(problem.data))
    if supremum is None:
        raise NoBoundError(f"the kernel {problem.packed.kernel} has no known supremum")
    size, xp = min(n, MOST_WITH_FEATURES), arrays.namespace(points)
    rows = np.sort(arrays.to_host(problem.data.order(SEED)[:size]))
    gram: Array | float = 0.0
    for begin in range(0, size, ROWS):
        batch = xp.take(points, arrays.like(rows[begin : begin + ROWS], points), axis=0)
        phi = feature_rows(feature_map, batch, threads=problem.threads)
        gram = gram + linalg.matmul(phi.T, phi)
    return MeanEigenvalue(float(linalg.eigvalsh(arrays.to_host(gram) / size)[-1]), supremum, size)


def feature_supremum(feature_map: FeatureMap, *, has_bounded_points: bool) -> float | None:
    """Return an upper bound of |phi(x)|^2; None if none is known.

    It is sum_f a_f^2 prod_l (<x, r_lf> + o_lf)^2. With one factor this is a convex function of probabilities, which has
    its maximum at a corner.
    """
    squares = feature_map.amplitudes**2
    if not np.any(feature_map.projections):
        return float(np.sum(squares * np.prod(feature_map.offsets**2, axis=0)))
    if not has_bounded_points:
        return None
    corners = (feature_map.projections + feature_map.offsets[:, :, None]) ** 2
    if len(corners) == 1:
        return float(np.max(squares @ corners[0]))
    return float(np.sum(squares * np.prod(np.max(corners, axis=2), axis=0)))


@singledispatch
def points_are_bounded(data: Data) -> bool:
    """Return whether inner products of points are between 0 and 1, as for probabilities."""
    return False


@points_are_bounded.register
def _(data: Classification) -> bool:
    return True


@singledispatch
def squared_diameter(data: Data, packed: Packed) -> float:
    """Return an upper bound of l(y, y) + l(y', y') - 2 l(y, y') over targets; raise NoBoundError if there is none."""
    target = packed.target
    assert isinstance(target, TargetFactor)
    if target.draws is not None:
        raise NoBoundError("draws represent the predictions")
    if target.supremum is None:
        raise NoBoundError(f"the target kernel {target.kernel} is not bounded")
    return 2 * target.supremum


@squared_diameter.register
def _(data: Classification, packed: Packed) -> float:
    matrix = packed.target.matrix
    if matrix is None:
        return 2.0
    diagonal = np.diagonal(matrix)
    return float(np.max(diagonal[:, None] + diagonal[None, :] - 2 * matrix))


def _most_samples(problem: PairProblem) -> int:
    if problem.predicted is not None:
        return MOST_OF_DISTRIBUTIONS
    return math.isqrt(int(WORK / (int(problem.left.points.shape[1]) + ENTRY)))


def _largest(backend: Backend, n: int) -> float:
    """Return the largest eigenvalue of K / n, or slightly more, by power iterations.

    For a matrix without negative entries max_i (K v)_i / v_i is an upper bound for every v > 0 (Collatz, Wielandt). For
    others the root of the sum of squares is one.
    """
    factors = [f for term in backend.problem.kernel for f in term.factors]
    if any(f.profile == "cosine" or (f.metric == "dot" and backend.problem.predicted is not None) for f in factors):
        moments = sweep_one(backend, Moments(second=True))
        diagonal = arrays.to_compute_device(moments.diagonal)
        assert moments.sum_of_squares is not None
        return math.sqrt(moments.sum_of_squares + float((diagonal * diagonal).sum())) / n
    points = backend.problem.left.points
    vector = arrays.to_compute_device(arrays.namespace(points).ones_like(points[:, :1]), np.float64)
    least = math.inf
    for _ in range(MOST_PRODUCTS):
        product = arrays.to_compute_device(sweep_one(backend, Products(arrays.asarray_like(vector, points)))) / n
        least = min(least, float((product / vector).max()))
        reached = float((vector * product).sum()) / float((vector * vector).sum())
        if least <= (1 + CONVERGED) * reached:
            break
        vector = product / float(product.max())
    return least
