"""From sums over H to numbers: plain O(n) arithmetic, in the array's own library.

Called by the estimators with what a backend returned. Formulas: Widmann et al. 2019,
table 1; Hoeffding's variance of a U-statistic of order two.

Sums within groups (`group_sums`, `row_groups`) and cumulative sums are here, too: on other devices they add numbers in
an order that depends on the sizes alone, so that they have the same bits every time.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.segments import Segments
from kcalib._pairs.reductions import MomentSums

_HASH_SEED = 0


def unbiased(moments: MomentSums, n: int, sample_weight: Array | None = None) -> float:
    """Return sum_{i != j} H_ij / (n (n - 1)); weighted: over sum_{i != j} w_i w_j, with the w in H."""
    if sample_weight is None:
        return float(moments.total) / (n * (n - 1))
    # sum_{i != j} w_i w_j without the cancellation of W^2 - sum w^2.
    before = cumulative_sum(sample_weight)
    return float(moments.total) / (2 * total(sample_weight[1:] * before[:-1]))


def biased(moments: MomentSums, n: int, sample_weight: Array | None = None) -> float:
    """Return sum_{i, j} H_ij / n^2, never negative for a positive definite kernel."""
    assert moments.trace is not None  # as everywhere here, the problem is symmetric
    return float(moments.total + moments.trace) / (n if sample_weight is None else total(sample_weight)) ** 2


def standard_error(moments: MomentSums, null_squares: float | None = None) -> float | None:
    """Return the standard error of the unbiased estimate; None below four samples. See `Spread`."""
    if moments.row_sums is None or moments.sum_of_squares is None or moments.row_sums.shape[0] < 4:
        return None
    return spread_of(moments).standard_error(null_squares)


def null_standard_error(null_squares: float, n: int) -> float:
    """Return the standard error of the unbiased estimate under calibration, given the predictions."""
    return math.sqrt(2 * null_squares) / (n * (n - 1))


class ScoreVariance(NamedTuple):
    """Variance of the unbiased estimate as a function of what it estimates, t: slope * t + constant."""

    slope: float
    constant: float

    def upper_limit(self, value: float, quantile: float) -> float:
        """Return the t above `value` with t - value = quantile * SE(t)."""
        # The larger root of (t - value)^2 = quantile^2 (slope t + constant); below 0 the variance is the constant.
        half = quantile**2 * self.slope / 2
        constant = quantile**2 * self.constant
        root = value + half + math.sqrt(max(0.0, half * half + 2 * half * value + constant))
        return root if root >= 0 else value + math.sqrt(constant)

    def lower_limit(self, value: float, tail: float) -> float:
        """Return the t that the estimate exceeds by as much as from `value` on with a probability of about `tail`.

        The variance at the limit, not at the estimate, and the estimate's skewness: under calibration by the largest
        quantile of gamma laws, of which chi-square mixtures have at most about that, elsewhere by that of the square
        of a normal variable (Cornish and Fisher's expansion).
        """
        normal = -float(scipy.special.ndtri(tail))
        if normal <= 0:
            return self.upper_limit(value, -normal)
        spread = math.sqrt(self.constant)
        excess = gamma_quantile(tail) - normal
        if value <= (normal + excess) * spread:
            return value - (normal + excess) * spread
        skewness = max(0.0, normal**2 - 1) / 4 * self.slope**2

        def exceeded(t: float) -> bool:
            variance = self.slope * t + self.constant
            bent = skewness * t / variance if variance > 0 else 0.0
            return value - t > normal * math.sqrt(variance) + bent + excess * spread

        low, high = 0.0, value
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if exceeded(middle) else (low, middle)
        return low


@functools.cache
def gamma_quantile(tail: float) -> float:
    """The largest upper quantile of gamma laws with mean 0 and variance 1, of the chi-square to the normal one."""
    shapes = np.geomspace(0.5, 50, 100)
    standardized = (scipy.special.gammainccinv(shapes, tail) - shapes) / np.sqrt(shapes)
    return max(float(np.max(standardized)), -float(scipy.special.ndtri(tail)))


class Spread(NamedTuple):
    """Sums over the rows of H that the variance of the unbiased estimate is made of, of at least four.

    Var U = (4 (n - 2) z1 + 2 z2) / (n (n - 1)), z1 = Var E[h(X, X') | X], z2 = Var h(X, X').
    """

    n: int
    total: float  # of H off the diagonal
    plug_in: float  # the biased estimate; 0 where it is not known
    sum_of_squares: float  # of H off the diagonal
    square_rows: float  # of the rows' sums off the diagonal
    square_deviations: float  # of these from their mean
    square_scores: float  # of the rows' sums with the diagonal, over n

    def standard_error(self, null_squares: float | None = None) -> float:
        """Return the root of the variance.

        Both terms are estimated without bias from row sums and the sum of squares; z1 is 0 under
        calibration, where its estimate can be negative and is set to 0: there the standard error
        is somewhat too large. With `null_squares`, what the sum of squares is on average under calibration given the
        predictions, z2 is at least what it is then: where errors are rare the residuals at hand may hold none.
        """
        z1, z2 = self._components(null_squares)
        return math.sqrt((4 * (self.n - 2) * z1 + 2 * z2) / (self.n * (self.n - 1)))

    def score_variance(self, null_squares: float | None = None) -> ScoreVariance:
        """Return the variance with z1 proportional to t, for limits of score intervals.

        z1 = <g, S g> and t = |g|^2 for the mean embedding g of the residuals and their covariance S, so that z1 / t is
        a mean of S's eigenvalues. It is taken at the plug-in g, where t is the biased estimate, which is positive. The
        variance at the estimate is too small whenever the estimate is, and a limit made with it is exceeded too often.
        """
        n, plug_in = self.n, self.plug_in
        eigenvalue = max(0.0, self.square_scores / n / plug_in - plug_in) if plug_in > 0 else 0.0
        constant = 2 * self._components(null_squares)[1] / (n * (n - 1))
        return ScoreVariance(4 * (n - 2) * eigenvalue / (n * (n - 1)), constant)

    def generous_standard_error(self, null_squares: float | None = None) -> float:
        """Return the standard error with z1 by the jackknife, for intervals that must hold near calibration, too.

        The jackknife's z1 is too large by about z2 / (n - 2) and never negative. `standard_error` has no such excess,
        but is too small whenever the estimate errs towards 0, as the two are correlated, and intervals miss too often.
        """
        n = self.n
        jackknife = 4 * self.square_deviations / (n * (n - 1) * (n - 2) ** 2)
        return math.sqrt(jackknife + 2 * self._components(null_squares)[1] / (n * (n - 1)))

    def _components(self, null_squares: float | None = None) -> tuple[float, float]:
        """Return z1 and z2, at least 0, and the latter at least what it is under calibration."""
        n, squares = self.n, self.sum_of_squares
        pairs = n * (n - 1)
        # Products h_ij h_kl with four distinct indices: an unbiased estimate of (E h)^2.
        square_mean = (self.total**2 - 4 * self.square_rows + 2 * squares) / (pairs * (n - 2) * (n - 3))
        z1 = (self.square_rows - squares) / (pairs * (n - 2)) - square_mean
        return max(0.0, z1), max(0.0, squares / pairs - square_mean, (null_squares or 0.0) / pairs)


def spread_of(moments: MomentSums) -> Spread:
    """Return the spread of all rows of H."""
    rows, squares = moments.row_sums, moments.sum_of_squares
    assert rows is not None and squares is not None
    n = int(rows.shape[0])
    deviations = rows - total(rows) / n
    plug_in = square_scores = 0.0
    if moments.diagonal is not None:
        scores = (rows + moments.diagonal) / n
        plug_in, square_scores = biased(moments, n), total(scores * scores)
    return Spread(
        n, float(moments.total), plug_in, squares, total(rows * rows), total(deviations * deviations), square_scores
    )


def mean_and_standard_error(values: Array) -> tuple[float, float | None]:
    """Return the mean of block estimates and its standard error (ddof 1); None for one block."""
    count = values.shape[0]
    mean = total(values) / count
    if count < 2:
        return mean, None
    deviation = values - mean
    return mean, math.sqrt(total(deviation * deviation) / (count - 1) / count)


def disjoint_pairs(n: int, block_size: int | None) -> int:
    """Return pairs without a common sample among all (None), or among those within blocks."""
    return n // 2 if block_size is None else n // block_size * (block_size // 2)


def total(values: Any) -> float:
    if arrays.is_host(values):
        return float(values.sum())
    return float(arrays.namespace(values).sum(values))


def cumulative_sum(values: Array) -> Array:
    """Return sums of the first 1, 2, ... numbers, shape (n,)."""
    if arrays.is_host(values):
        return np.cumsum(values)  # cumulative_sum only since NumPy 2.1
    # A device's own scan adds floating-point numbers in the order in which its blocks happen to finish.
    xp, step = arrays.namespace(values), 1
    while step < values.shape[0]:
        values = xp.concat((values[:step], values[step:] + values[:-step]))
        step *= 2
    return values


def group_sums(group: Array, n_groups: int, *values: Array) -> list[Array]:
    """Return sums of `values`, shapes (n,) or (n, k), in the groups 0..n_groups-1 that `group`, shape (n,), names."""
    if arrays.is_host(group):
        return [_host_sums(group, n_groups, array) for array in values]
    segments = Segments.of(group, n_groups)
    return [segments.sums(array) for array in values]


def _host_sums(group: np.ndarray, n_groups: int, values: np.ndarray) -> np.ndarray:
    if values.ndim == 1:
        return np.bincount(group, values, minlength=n_groups)
    return np.stack([np.bincount(group, column, minlength=n_groups) for column in values.T], axis=1)


def row_groups(rows: Array) -> tuple[Array, int]:
    """Return numbers of the groups of equal rows of integers, in the order of their first rows; how many."""
    xp = arrays.namespace(rows)
    factors = np.random.default_rng(_HASH_SEED).integers(2**63, size=(2, rows.shape[1]), dtype=np.uint64) * 2 + 1
    first, second = (
        xp.sum((xp.astype(rows, xp.uint64) + 1) * arrays.like(factor, rows)[None, :], axis=1) for factor in factors
    )
    order = xp.lexsort(xp.stack((second, first)))
    first, second = xp.take(first, order, axis=0), xp.take(second, order, axis=0)
    new = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    starts = xp.concat((xp.ones_like(order[:1]), xp.astype(new, order.dtype)))
    run = xp.cumsum(starts) - 1  # of integers
    n_groups = int(run[-1]) + 1
    # Equal rows stay in order: the first of a run is the first row of its group.
    firsts = xp.take(order, xp.nonzero(starts)[0], axis=0)
    number = xp.argsort(xp.argsort(firsts))
    group = xp.empty_like(order)
    group[order] = xp.take(number, run, axis=0)
    return group, n_groups
