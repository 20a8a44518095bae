"""Densities with gamma functions in Loader's saddle-point form, which has no differences of large terms.

Loader, Fast and accurate computation of binomial probabilities, 2000. Used for the probabilities of counts (`counts`)
and the densities of Beta, Dirichlet, gamma and Student's t distributions.
"""

from __future__ import annotations

import math

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import special

SMALLEST = float(np.finfo(np.float64).smallest_subnormal)


def log_dirichlet(alpha: Array, x: Array) -> Array:
    """Return log densities of Dirichlet distributions, shape (n,), at x >= 0 with rows that sum to 1; alpha, x: (n, d).

    If x has zeros, the limit: -inf if any alpha there is above 1, else inf if any is below 1.
    """
    xp = arrays.namespace(x)
    total = xp.sum(alpha, axis=1, keepdims=True)
    inside = xp.where(x > 0, x, 1.0)
    means = xp.where(total * inside > 0, total * inside, SMALLEST)
    terms = -xp.log(inside) - deviance(alpha, means, alpha - means)
    terms += 0.5 * xp.log(alpha / (2 * math.pi)) - stirling_error(alpha)
    # At relevant zeros alpha is 1: x^0 / Gamma(1), in the same terms.
    terms = xp.where(x > 0, terms, xp.log(total))
    result = xp.sum(terms, axis=1) + stirling_error(total[:, 0]) - 0.5 * xp.log(total[:, 0] / (2 * math.pi))
    result = xp.where(xp.any((x == 0) & (alpha < 1), axis=1), xp.inf, result)
    return xp.where(xp.any((x == 0) & (alpha > 1), axis=1), -xp.inf, result)


def log_student_peak(df: Array) -> Array:
    """Return log densities of Student's t distributions of scale 1 at 0, -log(df) / 2 - log B(1/2, df/2)."""
    half = 0.5 * df
    ratio = stirling_error(half + 0.5) - stirling_error(half) - deviance(half, half + 0.5, 0.0 * half - 0.5)
    return ratio - 0.5 * math.log(2 * math.pi)


def deviance(x: Array, m: Array, difference: Array) -> Array:
    """Return x log(x / m) - x + m, where x - m is `difference`."""
    xp = arrays.namespace(difference)
    with np.errstate(over="ignore"):
        t, ratio = difference / m, x / m
    small = xp.where(xp.abs(t) < 0.1, t, 0.0)
    series = xp.zeros_like(small)
    for j in range(18, 1, -1):
        series = (1 if j % 2 == 0 else -1) / (j * (j - 1)) + small * series
    # Rounding of x / m is multiplied by x below, rounding of t by little.
    middle = xp.where((t > -0.9) & (t < 1), t, 0.0)
    moderate = m * ((1 + middle) * xp.log1p(middle) - middle)
    logarithm = xp.where(xp.isinf(ratio), xp.log(x) - xp.log(m), xp.log(ratio))
    large = xp.where(middle == t, moderate, x * logarithm - difference)
    return xp.where(small == t, m * small * small * series, large)


def stirling_error(x: Array) -> Array:
    """Return log Gamma(x + 1) minus Stirling's approximation, for x > 0."""
    xp = arrays.namespace(x)
    large = xp.maximum(x, 16.0)
    r = 1 / (large * large)
    series = (1 / 12 - r * (1 / 360 - r * (1 / 1260 - r * (1 / 1680 - r / 1188)))) / large
    small = xp.minimum(x, 16.0)
    direct = special(x).gammaln(small + 1) - (small + 0.5) * xp.log(small) + small - 0.5 * math.log(2 * math.pi)
    return xp.where(x < 16, direct, series)
