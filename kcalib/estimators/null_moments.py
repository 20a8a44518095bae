"""Compute moments of the SKCE under calibration, given the predictions; labels are not used.

With T = sum_{i != j} H_ij, SKCE = T / (n (n - 1)), a calibrated model has E T = 0 and Var T = 2 E sum_{i != j} H_ij^2.
For labels and counts the expectation is a sweep over the pairs (`_packing.variance`), for labels in host memory usually
the same sweep as for the moments of H. For other targets it is a mean over draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._input.data import Data
from kcalib._packing import Packed
from kcalib._packing.variance import FiniteLaw, expected_lengths, expected_squares, finite_law, finite_parts
from kcalib._pairs.backends.base import Backend, diagonal, square_norms
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import Moments, MomentSums, NullSquares, Reduction, sweep_one
from kcalib._pairs.statistics import total

# Largest deviation of row sums from 1, and mean |p|^2, for expected squares in the same sweep as the moments.
SUMS, CERTAIN = 1e-14, 0.95
CANCELLED = 1000  # largest ratio of terms to their sum; the error is then below 2e-11, also for 1000 classes
SEED = 0  # of draws, so that results are functions of the predictions
FEWEST_DRAWS, TARGETS = 4, 1000  # minimum of sets of drawn targets, and of targets in all sets


@dataclass(frozen=True)
class NullMoments:
    """Expected sums over H for targets drawn from the predictions."""

    squares: float  # E sum_{i != j} H_ij^2; the variance of sum_{i != j} H_ij is twice that
    trace: float  # E sum_i H_ii
    exact: bool  # False: from draws of targets, or from a difference of sums with cancellation


def null_moments(data: Data, packed: Packed, backend: Backend) -> NullMoments:
    """Return the moments of the packed problem.

    For labels this takes a sweep over the pairs with m (m + 1) / 2 features, or, from 17 classes on, three with at most
    m; with a target matrix of rank r, r (r + 1) / 2 features. For other targets it takes some sweeps with their
    features. Memory O(n m).
    """
    law = finite_law(data, packed)
    if law is None:
        means = np.mean(list(_moments_of_draws(data, packed, backend)), axis=0)
        return NullMoments(float(means[0]), float(means[1]), False)
    return _of_law(law, backend)


def moments_and_null_moments(
    data: Data, packed: Packed, backend: Backend, further_reductions: Sequence[Reduction[Any]] = ()
) -> tuple[MomentSums, NullMoments, list[Any]]:
    """Return the moments of H with the sum of squares, `null_moments`, and the results of `further_reductions`."""
    reduction = Moments(second=True, null_variance=True)
    if backend.obstacle(reduction) is not None or not _are_residuals(backend.problem):
        reduction = Moments(second=True)
    moments, *results = backend.sweep([reduction, *further_reductions])
    null_variance: NullSquares | None = moments.null_variance
    if null_variance is None or null_variance.magnitude > CANCELLED * null_variance.value:
        return moments, null_moments(data, packed, backend), results
    law = finite_law(data, packed)
    assert law is not None
    return moments, NullMoments(null_variance.value, _trace(law, backend), True), results


def _are_residuals(problem: PairProblem) -> bool:
    """Return whether points are the exact probabilities of the labels, and mostly uncertain.

    If rows were rounded, so that their sum is not 1, `FiniteLaw` computes the largest probability from the others.
    """
    side = problem.left
    if side.points.dtype != np.float64:
        return False
    deviation = np.abs(1 - np.einsum("ij->i", side.points)).max()  # for few columns five times as fast as `sum`
    return bool(deviation <= SUMS and np.mean(square_norms(side.points, 1)) <= CERTAIN)


def _of_law(law: FiniteLaw, backend: Backend) -> NullMoments:
    def total_of(problem: PairProblem) -> float:
        backend_of_problem = backend.like(problem)
        return float(sweep_one(backend_of_problem, Moments(rows=False, trace=False)).total)

    squares, exact = expected_squares(law, total_of)
    return NullMoments(squares, _trace(law, backend), exact)


def _trace(law: FiniteLaw, backend: Backend) -> float:
    points = law.problem.left.points
    features = arrays.namespace(points).sqrt(expected_lengths(law)[0])[:, None]
    return total(diagonal(PairProblem(Side(points, features), None, law.problem.kernel), backend.threads or 1))


def effective_events(data: Data, packed: Packed) -> float:
    """Return (sum_i E |e_i|^2)^2 / sum_i E |e_i|^4, roughly the number of events that determine the null distribution.

    It is n if all residuals e have the same length, and about n q for n rare events of probability q; 0 for predictions
    that are certain. Time O(n m); for targets other than labels and counts some draws.
    """
    parts = finite_parts(data, packed)
    if parts is None:
        packed_draws = [_with_drawn(data, packed, replicate) for replicate in range(n_draws(data.n))]
        lengths = [diagonal(packed_draw.problem) for packed_draw in packed_draws]
        second, fourth = sum(total(values) for values in lengths), sum(total(values * values) for values in lengths)
        return second**2 / (len(packed_draws) * fourth) if fourth > 0 else 0.0
    second = fourth = 0.0
    for _, law in parts:
        squares, fourths = expected_lengths(law)
        second, fourth = second + total(squares), fourth + total(fourths)
    return second**2 / fourth if fourth > 0 else 0.0


def _moments_of_draws(data: Data, packed: Packed, backend: Backend) -> Iterator[tuple[float, float]]:
    """Yield sum of squares and trace for sets of drawn targets."""
    for replicate in range(n_draws(data.n)):
        problem = _with_drawn(data, packed, replicate).problem
        moments = sweep_one(backend.like(problem), Moments(second=True))
        assert moments.sum_of_squares is not None
        yield moments.sum_of_squares, float(moments.trace)


def _with_drawn(data: Data, packed: Packed, replicate: int) -> Packed:
    return packed.with_targets(data.draw(SEED, replicate))


def n_draws(n: int) -> int:
    """Return the number of sets of drawn targets for expectations."""
    return max(FEWEST_DRAWS, -(-TARGETS // n))
