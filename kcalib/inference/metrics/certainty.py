r"""What few or equal values say: an estimate from n samples is never certain, whatever its standard error.

Three rules, for `scores`, `skce` and `ckce`:

*Signs.* If n differences are symmetric about their mean, all :math:`2^n` signs of their deviations are equally likely.
No two-sided p-value is below :math:`2^{1-n}` (`least_pvalue`), and up to `FEW` samples the law of the signs is taken
instead of Student's: the means of the nonempty subsets of the values divide the line into :math:`2^n` intervals that
hold the mean with probability :math:`2^{-n}` each [1]_ (`by_signs`).

*What was not seen.* If more than a share :math:`\pi = 1 - \alpha^{1/n}` of what can happen were of a kind that the
n samples do not hold, then at least one of them would hold it with probability :math:`1 - \alpha`
(`unseen_share`). Equal values say no more than this: where there is no spread the limits are those of a law with
this share at the end of the range (`by_share`).

*The range.* Where n is so small that no p-value can be significant, nothing is excluded: the interval is all that the
metric can be.

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

FEW = 12  # samples whose 2^n signs are gone through


def least_pvalue(n: int) -> float:
    """What n signs can say at most; never 0."""
    return max(2.0 ** (1 - n), sys.float_info.min) if n < 1024 else sys.float_info.min


def unseen_share(n: int, tail: float) -> float:
    """The largest share of a population that n samples miss with at least the probability `tail`."""
    return -math.expm1(math.log(tail) / n)


def unseen_pvalue(n: int, share: float) -> float:
    """Two-sided: the level at which `unseen_share` on one side is `share`."""
    return min(1.0, 2 * math.exp(n * math.log1p(-share))) if share < 1 else 0.0


def nothing_excluded(n: int, confidence_level: float) -> bool:
    """Whether no p-value from n samples can be significant at this level."""
    return least_pvalue(n) > (1 - confidence_level) * (1 + 1e-12)


def clipped(low: float, high: float, limits: ConfidenceInterval) -> ConfidenceInterval:
    low, high = (min(max(limit, limits.low), limits.high) for limit in (low, high))
    return ConfidenceInterval(low, high)


class FeatureError(NamedTuple):
    """An independent part of an error, and the degrees of freedom with which it was estimated."""

    error: float
    df: float

    def to(self, error: float, df: float) -> tuple[float, float]:
        """The whole error, and its degrees of freedom by Welch and Satterthwaite."""
        a, b = error**2, self.error**2
        return math.sqrt(a + b), (a + b) ** 2 / (a**2 / df + b**2 / self.df) if a + b > 0 else df


def by_student(value: float, error: float, df: float, confidence_level: float) -> tuple[float, float, float]:
    """Low, high, and the p-value by Student's law."""
    width = -error * float(scipy.special.stdtrit(df, (1 - confidence_level) / 2))
    pvalue = min(1.0, 2 * float(scipy.special.stdtr(df, -abs(value) / error))) if error > 0 else 0.0
    return value - width, value + width, pvalue


def by_signs(values: np.ndarray, confidence_level: float, resolution: float) -> tuple[float, float, float]:
    """Low, high, and the p-value of the mean of at most `FEW` values by the law of their signs.

    Sums of at most n `resolution` may be rounding, and count as 0.
    """
    n = len(values)
    sums, sizes = np.zeros(1), np.zeros(1)
    for value in values:
        sums, sizes = np.concatenate([sums, sums + value]), np.concatenate([sizes, sizes + 1])
    # Signs that make the sum no smaller are those of the subsets with a sum of at most 0, the empty one among them.
    no_larger, no_smaller = (int(np.sum(sign * sums <= n * resolution)) for sign in (1, -1))
    means = np.sort(sums[1:] / sizes[1:])
    beyond = int((1 - confidence_level) / 2 * 2**n * (1 + 1e-12))
    low, high = (float(means[beyond - 1]), float(means[-beyond])) if beyond else (-math.inf, math.inf)
    return low, high, min(1.0, 2 * min(no_larger, no_smaller) / 2**n)


def by_share(
    value: float, n: int, confidence_level: float, limits: ConfidenceInterval, *, order: int
) -> tuple[float, float, float]:
    """Low, high, and the p-value of a mean over all sets of `order` samples whose terms are all `value`.

    `limits` are the least and the largest that a term can be. A set holds a sample that was not seen with the
    probability 1 - (1 - pi)^order.
    """
    share = -math.expm1(order * math.log1p(-unseen_share(n, (1 - confidence_level) / 2)))
    low, high = (value + share * (limit - value) for limit in limits)
    beyond = limits.low if value > 0 else limits.high
    needed = abs(value) / (abs(value) + abs(beyond)) if value else 0.0  # of terms that are `beyond`, for a mean of 0
    return low, high, unseen_pvalue(n, -math.expm1(math.log1p(-needed) / order)) if needed < 1 else 0.0


def of_pairs(
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
    """A difference that is a mean over pairs of n samples, between `limits`, from its standard error.

    A value of at most `resolution` may be rounding. `equal`: the pairs at hand have no spread. `added` is what the way
    of computing it adds to the error.
    """
    error, df = (error, n - 1.0) if added is None else added.to(error, n - 1)
    low, high, pvalue = by_student(value, error, df, confidence_level)
    if equal and abs(value) > resolution:
        alike = by_share(value, n, confidence_level, limits, order=2)
        low, high, pvalue = min(low, alike[0]), max(high, alike[1]), max(pvalue, alike[2])
    return decided(value, error, (low, high, pvalue), n, confidence_level, limits, resolution)


def of_value(
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
    """A mean over pairs that is from 0 to `most`, with the variance that it would have at other values.

    Limits are those of a score interval, the lower one at least Student's quantile of standard errors below the value.
    Where errors are rare and few were seen, the upper one is at least that of `few_errors`.
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
        alike = by_share(value, n, confidence_level, ConfidenceInterval(-most, most), order=2)
        low, high = min(low, max(0.0, alike[0])), max(high, alike[1])
    if nothing_excluded(n, confidence_level):
        low, high = 0.0, most
    return Estimate(value, error, clipped(low, high, ConfidenceInterval(min(low, value), max(most, value))))


def make_equal(value: float, error: float) -> Estimate:
    """Return the difference of models that are the same but for rounding, which is `value`: its interval holds 0."""
    return Estimate(value, error, ConfidenceInterval(min(value, 0.0), max(value, 0.0)), 1.0)


def decided(
    value: float,
    error: float,
    limits_and_pvalue: tuple[float, float, float],
    n: int,
    confidence_level: float,
    limits: ConfidenceInterval,
    resolution: float,
) -> Estimate:
    """The estimate with low, high and p-value as given, as far as n samples can say so much."""
    low, high, pvalue = limits_and_pvalue
    if nothing_excluded(n, confidence_level):
        low, high = limits
    if abs(value) <= resolution:
        low, high, pvalue = min(low, 0.0), max(high, 0.0), 1.0
    else:
        pvalue = max(pvalue, least_pvalue(n))
    limits = ConfidenceInterval(min(limits.low, value), max(limits.high, value))  # estimates can be outside of both
    return Estimate(value, error, clipped(low, high, limits), pvalue)
