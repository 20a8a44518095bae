"""Define the base class of distributions: both tails, their logarithms and quantiles from one function.

A subclass implements the logarithm of its upper tail for x at or above its mean (`_log_upper_tail`), and the
distribution of the negated variable (`_mirrored`). The smaller tail at x has relative accuracy; the larger one is its
complement. Quantiles are roots of the logarithm of a tail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

SMALLEST_DIRECT = 1e-280  # smaller tails come from continued fractions
MAX_TERMS = 1_000_000

MAX_STEPS = 400  # of the search for a quantile, which usually takes a dozen
SLACK = 4 * np.finfo(float).eps  # relative rounding error of the logarithm of a tail


class Law:
    """Base class of continuous distributions on the real line."""

    @property
    def _centre(self) -> float:
        """Return the mean."""
        raise NotImplementedError

    @property
    def support(self) -> tuple[float, float]:
        """Return the ends of the support, which may be infinite."""
        raise NotImplementedError

    @property
    def _mirrored(self) -> Law:
        """Return the distribution of the negated variable."""
        raise NotImplementedError

    def _log_upper_tail(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log of the upper tail and the hazard rate, for x from the mean to below the upper end."""
        raise NotImplementedError

    def sf(self, x: Any) -> Any:
        """Return the survival function, the probability of a value above `x`.

        Parameters
        ----------
        x : array_like
            Real numbers of any shape, infinities included.

        Returns
        -------
        float or numpy.ndarray
            Of the shape of `x`; a float for a number. Relative accuracy down to the smallest positive float (about
            5e-324); 0 below, see `logsf`.

        Raises
        ------
        TypeError
            If `x` is not real.
        ValueError
            If `x` has NaN.
        """
        log_tail, upper = self._smaller_tail(x)
        return _as_number(np.where(upper, np.exp(log_tail), -np.expm1(log_tail)))

    def cdf(self, x: Any) -> Any:
        """Return the distribution function, the probability of a value of at most `x`.

        Small values have relative accuracy, as in `sf`.

        Parameters
        ----------
        x : array_like
            Real numbers of any shape, infinities included.

        Returns
        -------
        float or numpy.ndarray
            Of the shape of `x`; a float for a number.
        """
        log_tail, upper = self._smaller_tail(x)
        return _as_number(np.where(upper, -np.expm1(log_tail), np.exp(log_tail)))

    def logsf(self, x: Any) -> Any:
        """Return the natural logarithm of the survival function, also if `sf` underflows.

        Parameters
        ----------
        x : array_like
            As in `sf`.

        Returns
        -------
        float or numpy.ndarray
            Of the shape of `x`; a float for a number; ``-inf`` at and above the upper end of the support.
        """
        log_tail, upper = self._smaller_tail(x)
        return _as_number(np.where(upper, log_tail, _log_complement(log_tail)))

    def logcdf(self, x: Any) -> Any:
        """Return the natural logarithm of the distribution function, also if `cdf` underflows.

        Parameters
        ----------
        x : array_like
            As in `sf`.

        Returns
        -------
        float or numpy.ndarray
            Of the shape of `x`; a float for a number; ``-inf`` at and below the lower end of the support.
        """
        log_tail, upper = self._smaller_tail(x)
        return _as_number(np.where(upper, _log_complement(log_tail), log_tail))

    def isf(self, q: Any) -> Any:
        """Return the upper quantile, the inverse of `sf`.

        Parameters
        ----------
        q : array_like
            Probabilities in [0, 1], of any shape, also in far tails: ``isf(1e-200)``.

        Returns
        -------
        float or numpy.ndarray
            Of the shape of `q`; a float for a number. 0 and 1 give the ends of the support.

        Raises
        ------
        TypeError
            If `q` is not real.
        ValueError
            If `q` has NaN or a number outside [0, 1].
        """
        q = _real("q", q)
        _reject("q", q, ~((q >= 0) & (q <= 1)), "expected probabilities in [0, 1]")
        small = q <= math.exp(self._log_upper_tail(np.array([self._centre]))[0][0])
        x = np.empty(q.shape)
        with np.errstate(divide="ignore"):
            x[small] = [self._upper_quantile(log_q) for log_q in np.log(q[small])]
            x[~small] = [0.0 - self._mirrored._upper_quantile(log_q) for log_q in np.log1p(-q[~small])]
        return _as_number(x)

    def ppf(self, q: Any) -> Any:
        """Return the lower quantile, the inverse of `cdf`.

        Parameters
        ----------
        q : array_like
            As in `isf`.

        Returns
        -------
        float or numpy.ndarray
            Of the shape of `q`; a float for a number. 0 and 1 give the ends of the support.
        """
        return 0.0 - self._mirrored.isf(q)

    def _smaller_tail(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the logarithm of the tail on the side of `x` away from the mean, and whether it is the upper tail."""
        x = _real("x", x)
        _reject("x", x, np.isnan(x), "expected a number; drop or replace NaN before the call")
        upper = x >= self._centre
        log_tail = np.empty(x.shape)
        if upper.any():
            log_tail[upper] = self._extended_log_upper_tail(x[upper])
        if not upper.all():
            log_tail[~upper] = self._mirrored._extended_log_upper_tail(-x[~upper])
        return log_tail, upper

    def _extended_log_upper_tail(self, x: np.ndarray) -> np.ndarray:
        """Return `_log_upper_tail`, or -inf at and above the upper end of the support."""
        log_tail = np.full(x.shape, -math.inf)
        inside = x < self.support[1]
        log_tail[inside] = np.minimum(self._log_upper_tail(x[inside])[0], 0.0)
        return log_tail

    def _upper_quantile(self, log_q: float) -> float:
        """Return the point above the mean where the logarithm of the upper tail is `log_q`.

        Use Newton's method within a bracket, in a variable in which this logarithm is nearly linear: x, or, near a
        finite end of the support, the logarithm of the distance from the end.
        """
        end = self.support[1]
        y = low = self._centre if math.isinf(end) else 0.0
        high = math.inf
        for _ in range(MAX_STEPS):
            x, slope = self._place(y)
            if log_q == -math.inf or low == high:
                return end
            if x < end:
                log_tail, hazard = (float(values[0]) for values in self._log_upper_tail(np.array([x])))
                excess = log_tail - log_q
                step = excess / (hazard * slope)
                if abs(excess) <= SLACK * max(1.0, -log_q) or abs(step * slope) <= SLACK * abs(x):
                    return x
            else:  # the step was too large, or the quantile rounds to the end
                excess = step = -math.inf
            low, high = (y, high) if excess > 0 else (low, y)
            y = y + step if low < y + step < high else (low + high) / 2
            if y in (low, high):
                return x
        raise ArithmeticError(f"no quantile found in {MAX_STEPS} steps for {self}")

    def _place(self, y: float) -> tuple[float, float]:
        """Return x and dx/dy: x = y without a finite end, else x = end - (end - mean) exp(-y / (end - mean))."""
        end = self.support[1]
        reach = end - self._centre
        if math.isinf(end):
            return y, 1.0
        slope = math.exp(-y / reach)
        return (end - reach * slope if y > reach else self._centre - reach * math.expm1(-y / reach)), slope


def _real(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"`{name}` has dtype {array.dtype}, expected real numbers")
    return array.astype(np.float64)


def _reject(name: str, array: np.ndarray, wrong: np.ndarray, rule: str) -> None:
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = f"[{', '.join(map(str, index))}]" if index else ""
        raise ValueError(f"`{name}{place}` is {array[index]}, {rule}")


def _as_number(array: np.ndarray) -> Any:
    """Return an array, or a float for an array without axes."""
    return array if array.ndim else float(array)


def _log_complement(log_p: np.ndarray) -> np.ndarray:
    """Return log(1 - p)."""
    with np.errstate(divide="ignore"):
        return np.where(log_p > -0.7, np.log(-np.expm1(log_p)), np.log1p(-np.exp(log_p)))


def log_sf_f(x: float, d1: float, d2: float) -> float:
    """Return log P(F(d1, d2) > x), x >= 0, also if the probability underflows.

    The tail is the regularized incomplete beta function I_w(d2/2, d1/2), w = d2 / (d2 + d1 x).
    """
    a, b, odds = d2 / 2, d1 / 2, d1 * x / d2
    direct = float(scipy.special.fdtrc(d1, d2, x))
    if direct > SMALLEST_DIRECT:
        return math.log(direct)
    w = 1 / (1 + odds)
    prefactor = -a * math.log1p(odds) + b * math.log(odds * w) - math.log(a) - float(scipy.special.betaln(a, b))
    return prefactor + math.log(_continued_fraction(lambda k: (1.0, _beta_coefficient(k, a, b, w))))


def _beta_coefficient(k: int, a: float, b: float, w: float) -> float:
    """Return numerator k of the continued fraction of I_w(a, b) (DLMF 8.17.22)."""
    if k == 0:
        return 1.0
    h = k // 2
    if k % 2 == 0:
        return h * (b - h) * w / ((a + 2 * h - 1) * (a + 2 * h))
    return -(a + h) * (a + b + h) * w / ((a + 2 * h) * (a + 2 * h + 1))


def log_sf_chi2(x: float, d: float) -> float:
    """Return log P(chi2_d > x), x >= 0, also if the probability underflows."""
    direct = float(scipy.special.chdtrc(d, x))
    if direct > SMALLEST_DIRECT:
        return math.log(direct)
    a, y = d / 2, x / 2
    fraction = _continued_fraction(lambda k: (y + 1 - a + 2 * k, k * (a - k) if k else 1.0))  # DLMF 8.9.2, even part
    return a * math.log(y) - y - math.lgamma(a) + math.log(fraction)


def _continued_fraction(term: Callable[[int], tuple[float, float]]) -> float:
    """Return a_0 / (b_0 + a_1 / (b_1 + ...)) for term(k) = (b_k, a_k) by Lentz's method."""
    b, a = term(0)
    value, c, d = a / b, math.inf, 1 / b
    for k in range(1, MAX_TERMS):
        b, a = term(k)
        d = 1 / (b + a * d)
        c = b + a / c
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
