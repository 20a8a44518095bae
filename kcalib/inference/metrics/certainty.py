r"""Inference from few or equal values: an estimate from n samples is never certain, whatever its standard error.

Three rules, for `scores`, `skce` and `ckce`:

*Signs.* If n differences are symmetric about their mean, all :math:`2^n` signs of their deviations are equally likely.
No two-sided p-value is below :math:`2^{1-n}` (`least_pvalue`), and up to `FEW` samples an exact sign-flip test replaces
Student's t: the means of the nonempty subsets of the values divide the line into :math:`2^n` intervals that contain the
mean with probability :math:`2^{-n}` each [1]_ (`compute_sign_flip_limits`).

*Unseen values.* If more than a share :math:`\pi = 1 - \alpha^{1/n}` of the population were of a kind that the n samples
do not contain, at least one sample would contain it with probability :math:`1 - \alpha` (`unseen_share`). Without
spread, the limits are those of a distribution with this share at the end of the range (`compute_unseen_limits`).

*Range.* If n is so small that no p-value can be significant, the interval is the whole range of the metric.

.. [1] J. A. Hartigan. Using subsample values as typical values. Journal of the American Statistical Association 64,
   1969.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np
import scipy

from kcalib._pairs.statistics import ScoreVariance
from kcalib.inference.metrics.measured import Estimate
from kcalib.results import ConfidenceInterval, FewErrors

FEW = 12  # samples for which all 2^n signs are enumerated


def least_pvalue(n: int) -> float:
    """Return the smallest possible p-value of n signs; never 0."""
    return max(2.0 ** (1 - n), sys.float_info.min) if n < 1024 else sys.float_info.min


def unseen_share(n: int, tail: float) -> float:
    """Return the largest share of a population that n samples miss with probability of at least `tail`."""
    return -math.expm1(math.log(tail) / n)


def unseen_pvalue(n: int, share: float) -> float:
    """Return the two-sided level at which `unseen_share` on one side is `share`."""
    return min(1.0, 2 * math.exp(n * math.log1p(-share))) if share < 1 else 0.0


def excludes_nothing(n: int, confidence_level: float) -> bool:
    """Return whether no p-value from n samples can be significant at this level."""
    return least_pvalue(n) > (1 - confidence_level) * (1 + 1e-12)


def clip_interval(low: float, high: float, limits: ConfidenceInterval) -> ConfidenceInterval:
    low, high = (min(max(limit, limits.low), limits.high) for limit in (low, high))
    return ConfidenceInterval(low, high)


class FeatureError(NamedTuple):
    """An independent part of an error, and its degrees of freedom."""

    error: float
    df: float

    def to(self, error: float, df: float) -> tuple[float, float]:
        """Return the total error, and its degrees of freedom (Welch-Satterthwaite)."""
        a, b = error**2, self.error**2
        return math.sqrt(a + b), (a + b) ** 2 / (a**2 / df + b**2 / self.df) if a + b > 0 else df


def compute_student_limits(
    value: float, error: float, df: float, confidence_level: float
) -> tuple[float, float, float]:
    """Return low, high, and the p-value by Student's t distribution."""
    width = -error * float(scipy.special.stdtrit(df, (1 - confidence_level) / 2))
    pvalue = min(1.0, 2 * float(scipy.special.stdtr(df, -abs(value) / error))) if error > 0 else 0.0
    return value - width, value + width, pvalue


def compute_sign_flip_limits(
    values: np.ndarray, confidence_level: float, resolution: float
) -> tuple[float, float, float]:
    """Return low, high, and the p-value of the mean of at most `FEW` values by an exact sign-flip test.

    Sums of at most n `resolution` may be rounding, and count as 0.
    """
    n = len(values)
    sums, sizes = np.zeros(1), np.zeros(1)
    for value in values:
        sums, sizes = np.concatenate([sums, sums + value]), np.concatenate([sizes, sizes + 1])
    # Signs that make the sum no smaller correspond to subsets with a sum of at most 0, including the empty one.
    no_larger, no_smaller = (int(np.sum(sign * sums <= n * resolution)) for sign in (1, -1))
    means = np.sort(sums[1:] / sizes[1:])
    beyond = int((1 - confidence_level) / 2 * 2**n * (1 + 1e-12))
    low, high = (float(means[beyond - 1]), float(means[-beyond])) if beyond else (-math.inf, math.inf)
    return low, high, min(1.0, 2 * min(no_larger, no_smaller) / 2**n)


def compute_unseen_limits(
    value: float, n: int, confidence_level: float, limits: ConfidenceInterval, *, order: int
) -> tuple[float, float, float]:
    """Return low, high, and the p-value of a mean over all sets of `order` samples whose terms all equal `value`.

    `limits` are the smallest and the largest possible terms. A set contains an unseen kind of sample with probability 1
    - (1 - pi)^order.
    """
    share = -math.expm1(order * math.log1p(-unseen_share(n, (1 - confidence_level) / 2)))
    low, high = (value + share * (limit - value) for limit in limits)
    beyond = limits.low if value > 0 else limits.high
    needed = abs(value) / (abs(value) + abs(beyond)) if value else 0.0  # share of `beyond` for which the mean is 0
    return low, high, unseen_pvalue(n, -math.expm1(math.log1p(-needed) / order)) if needed < 1 else 0.0


def estimate_pair_difference(
    value: float,
    error: float,
    n: int,
    confidence_level: float,
    limits: ConfidenceInterval,
    *,
    resolution: float,
    equal: bool,
    added: FeatureError | None = None,
) -> Estimate:
    """Return a difference that is a mean over pairs of n samples, between `limits`, from its standard error.

    A value of at most `resolution` may be rounding. `equal`: the observed pairs have no spread. `added` is the
    additional error of the computation.
    """
    error, df = (error, n - 1.0) if added is None else added.to(error, n - 1)
    low, high, pvalue = compute_student_limits(value, error, df, confidence_level)
    if equal and abs(value) > resolution:
        alike = compute_unseen_limits(value, n, confidence_level, limits, order=2)
        low, high, pvalue = min(low, alike[0]), max(high, alike[1]), max(pvalue, alike[2])
    return limit_certainty(value, error, (low, high, pvalue), n, confidence_level, limits, resolution)


def estimate_pair_value(
    value: float,
    error: float,
    variance: ScoreVariance,
    n: int,
    confidence_level: float,
    most: float,
    *,
    equal: bool,
    added: FeatureError | None = None,
    few_errors: FewErrors | None = None,
) -> Estimate:
    """Return a mean over pairs, between 0 and `most`, with the variance that it would have at other values.

    Limits are those of a score interval, the lower one at least Student's quantile of standard errors below the value.
    If errors are rare and few were observed, the upper one is at least that of `few_errors`.
    """
    df = n - 1.0
    if added is not None:
        error, df = added.to(error, df)
        variance = variance._replace(constant=variance.constant + added.error**2)
    quantile = -float(scipy.special.stdtrit(df, (1 - confidence_level) / 2))
    low = min(value - quantile * error, variance.lower_limit(value, (1 - confidence_level) / 2))
    high = variance.upper_limit(value, quantile)
    if few_errors is not None:
        high = max(high, few_errors.upper_limit((1 - confidence_level) / 2))
    if equal:
        alike = compute_unseen_limits(value, n, confidence_level, ConfidenceInterval(-most, most), order=2)
        low, high = min(low, max(0.0, alike[0])), max(high, alike[1])
    if excludes_nothing(n, confidence_level):
        low, high = 0.0, most
    return Estimate(value, error, clip_interval(low, high, ConfidenceInterval(min(low, value), max(most, value))))


def make_equal(value: float, error: float) -> Estimate:
    """Return the difference of models that are equal up to the rounding error `value`: its interval contains 0."""
    return Estimate(value, error, ConfidenceInterval(min(value, 0.0), max(value, 0.0)), 1.0)


def limit_certainty(
    value: float,
    error: float,
    limits_and_pvalue: tuple[float, float, float],
    n: int,
    confidence_level: float,
    limits: ConfidenceInterval,
    resolution: float,
) -> Estimate:
    """Return the estimate with the given low, high and p-value, limited to what n samples can show."""
    low, high, pvalue = limits_and_pvalue
    if excludes_nothing(n, confidence_level):
        low, high = limits
    if abs(value) <= resolution:
        low, high, pvalue = min(low, 0.0), max(high, 0.0), 1.0
    else:
        pvalue = max(pvalue, least_pvalue(n))
    limits = ConfidenceInterval(min(limits.low, value), max(limits.high, value))  # estimates may be outside of both
    return Estimate(value, error, clip_interval(low, high, limits), pvalue)
