"""Loader's saddle-point form of densities made of gamma functions: it has no differences of large terms.

Loader, Fast and accurate computation of binomial probabilities, 2000. The probabilities of counts (`_counts`) and the
densities of Beta and Dirichlet distributions are in it.
"""

from __future__ import annotations

import math

import numpy as np
import scipy


def log_dirichlet(alpha: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Logarithm of Dirichlet densities, shape (n,), at points x >= 0 whose rows sum to 1; alpha and x: (n, d).

    Where x has zeros the limit: -inf if any alpha there is above 1, else inf if any is below 1.
    """
    total = np.sum(alpha, axis=1, keepdims=True)
    inside = np.where(x > 0, x, 1.0)
    terms = -np.log(inside) - deviance(alpha, total * inside, alpha - total * inside)
    terms += 0.5 * np.log(alpha / (2 * math.pi)) - stirling_error(alpha)
    # alpha is 1 at the zeros that count: x^0 / Gamma(1), in the same terms.
    terms = np.where(x > 0, terms, np.log(total))
    result = np.sum(terms, axis=1) + stirling_error(total[:, 0]) - 0.5 * np.log(total[:, 0] / (2 * math.pi))
    result = np.where(np.any((x == 0) & (alpha < 1), axis=1), np.inf, result)
    return np.where(np.any((x == 0) & (alpha > 1), axis=1), -np.inf, result)


def deviance(x: np.ndarray, m: np.ndarray, difference: np.ndarray) -> np.ndarray:
    """x log(x / m) - x + m, where x - m is `difference`."""
    t = difference / m
    small = np.where(np.abs(t) < 0.1, t, 0.0)
    series = np.zeros_like(small)
    for j in range(18, 1, -1):
        series = (1 if j % 2 == 0 else -1) / (j * (j - 1)) + small * series
    # Rounding of x / m is multiplied by x below, that of t by little.
    middle = np.where((t > -0.9) & (t < 1), t, 0.0)
    near = m * ((1 + middle) * np.log1p(middle) - middle)
    far = np.where(middle == t, near, x * np.log(x / m) - difference)
    return np.where(small == t, m * small * small * series, far)


def stirling_error(x: np.ndarray) -> np.ndarray:
    """log Gamma(x + 1) less Stirling's approximation, for x > 0."""
    large = np.maximum(x, 16.0)
    r = 1 / (large * large)
    series = (1 / 12 - r * (1 / 360 - r * (1 / 1260 - r * (1 / 1680 - r / 1188)))) / large
    small = np.minimum(x, 16.0)
    direct = scipy.special.gammaln(small + 1) - (small + 0.5) * np.log(small) + small - 0.5 * math.log(2 * math.pi)
    return np.where(x < 16, direct, series)
