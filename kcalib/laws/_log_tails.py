"""Compute logarithms of the tails of F and chi-square laws, also where they underflow; for the p-values of `cme`."""

from __future__ import annotations

import math
from collections.abc import Callable

import scipy

SMALLEST_DIRECT = 1e-280  # tails below come from continued fractions
MAX_TERMS = 1_000_000


def log_sf_f(x: float, d1: float, d2: float) -> float:
    """Return log P(F(d1, d2) > x), x >= 0, also where the probability underflows.

    The tail is the regularised incomplete beta function I_w(d2/2, d1/2), w = d2 / (d2 + d1 x).
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
    """Return log P(chi2_d > x), x >= 0, also where the probability underflows."""
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
