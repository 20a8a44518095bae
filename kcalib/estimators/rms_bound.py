r"""A certified lower bound of the root mean square calibration error, in units of probability.

With e(p) the signed measure "law of the target given the prediction p, minus p" and tv(p) its total variation, which is
the largest error of the probability that p gives to any event,

    SKCE = E k(p, p') <e(p), e(p')> <= lambda E |e(p)|^2 <= lambda D E tv(p)^2

lambda is the largest eigenvalue of f -> E k(., p) f(p), and D the squared diameter of the targets under their kernel,
2 for the Kronecker delta: e is tv times the difference of two laws of targets. So a lower limit of the SKCE is one of
E tv^2. lambda is the supremum of E g(p)^2 over functions g of length at most 1 in the kernel's space, and lambda_n, the
largest eigenvalue of K / n, the same of the mean over samples, of numbers between 0 and kappa = sup k(p, p):
E lambda_n >= lambda, and lambda_n is rarely much below its mean (`MeanEigenvalue.upper_limit`).

Called by `inference.verdict`.
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

RISK_SHARE = 0.05  # of the level that the bound has: lambda is above its upper limit
WORK = 1e9  # multiply-adds of a product with K: samples beyond that, of which the eigenvalue takes some
ENTRY = 12  # what an entry of K takes beside its columns
MOST_WITH_FEATURES, ROWS = 2**14, 2**12  # samples; how many at a time
MOST_OF_DISTRIBUTIONS = 2000  # samples whose entries are sums over components
SEED = 0  # of the samples that are taken, so that the eigenvalue is a function of the predictions
MOST_PRODUCTS, CONVERGED = 30, 1e-3


class NoBoundError(ValueError):
    """Why there is no bound."""


@dataclass(frozen=True)
class MeanEigenvalue:
    """The largest eigenvalue of K / n, at most, for samples of the predictions."""

    value: float
    supremum: float  # of k(p, p)
    n_samples: int

    def upper_limit(self, risk: float) -> float:
        """What the eigenvalue of the mean operator exceeds with at most the probability `risk`.

        By McDiarmid's inequality, as a sample changes lambda_n by kappa / n at most, or by that for self-bounding
        functions (Boucheron, Lugosi, Massart 2009), E lambda_n - lambda_n <= sqrt(2 kappa E lambda_n L / n) with L =
        -log(risk). Each fails where lambda_n is below a number that is not random, so that the smaller limit fails no
        more often than one of them.
        """
        share = -math.log(risk) * self.supremum / (2 * self.n_samples)
        by_range = self.value + math.sqrt(share * self.supremum)
        by_itself = (math.sqrt(share) + math.sqrt(self.value + share)) ** 2
        return min(self.supremum, by_range, by_itself)


def rms_error_lower(skce_low: float, eigenvalue: float, squared_diameter: float) -> float:
    """The root of the least E tv^2 that a lower limit of the SKCE leaves."""
    return math.sqrt(max(0.0, skce_low) / (eigenvalue * squared_diameter))


def mean_eigenvalue(data: Data, packed: Packed, backend: Backend) -> MeanEigenvalue:
    """Return lambda_n of the packed predictions, of all or of some that are drawn with `SEED`.

    A NoBoundError if the kernel is not bounded, or not known to be positive definite.
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
    """Return the same of a bounded feature kernel, whose matrix has the eigenvalues of phi^T phi."""
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
    """sup |phi(x)|^2 or more; None where it is not known.

    It is sum_f a_f^2 prod_l (<x, r_lf> + o_lf)^2, with one factor a convex function of probabilities, which has its
    maximum at a corner.
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
    """Whether inner products of points are between 0 and 1, as those of probabilities."""
    return False


@points_are_bounded.register
def _(data: Classification) -> bool:
    return True


@singledispatch
def squared_diameter(data: Data, packed: Packed) -> float:
    """Return at least sup l(y, y) + l(y', y') - 2 l(y, y') over targets; a NoBoundError where there is none."""
    target = packed.target
    assert isinstance(target, TargetFactor)
    if target.draws is not None:
        raise NoBoundError("draws stand for the predictions")
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
    """The largest eigenvalue of K / n, or little more, by power iterations.

    Of a matrix without negative entries max_i (K v)_i / v_i is never below it, for any v > 0 (Collatz, Wielandt); of
    others the root of the sum of squares is not.
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
