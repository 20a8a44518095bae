r"""Compute distributions of Pearson's system, from mean, variance, skewness and kurtosis.

All types are computed in the same way. In standard units a density :math:`f` of the system solves

.. math:: \frac{f'(z)}{f(z)} = -\frac{p + (1 + 3r) z}{1 + p z + r z^2}, \qquad
          p = \frac{\gamma_1 (\gamma_2 + 6)}{N}, \quad r = \frac{2\gamma_2 - 3\gamma_1^2}{N}, \quad
          N = 4\gamma_2 + 12 - 3\gamma_1^2,

with skewness :math:`\gamma_1` and excess kurtosis :math:`\gamma_2`. The roots of the denominator determine the type:
beta (I, :math:`r < 0`), gamma (III, :math:`r = 0`), beta prime (VI), inverse gamma (V: a double root), type IV (complex
roots), or normal (:math:`p = r = 0`). With :math:`1 + p u + r u^2 = (1 - \alpha u)(1 - \beta u)` the logarithm of the
density is

.. math:: h(z) = -\log(1 + p z + r z^2) - (1 + r)\, z^2\, \psi[\alpha z, \beta z], \qquad \psi(y) = -\log(1 - y) / y,

where :math:`\psi[\cdot, \cdot]` is a divided difference, which is smooth for all roots: equal, distinct, complex, or
infinite. `_divided_difference` computes it without cancellation, so types need no cases. `_tail_integral` integrates
:math:`e^h` in logarithms, by the double exponential rule; the integral over both sides of the mean normalizes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kcalib.laws._law import Law, _real

NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(24)
NODES, NODE_WEIGHTS = (NODES + 1) / 2, NODE_WEIGHTS / 2  # on [0, 1]
FIRST_STEP = 1 / 8
MAX_HALVINGS = 7
AGREEMENT = 1e-10  # of two steps; halving the step approximately squares the error
ROUNDING = 1e-13  # relative error of the logarithms
TINY = 1e-250  # instead of 0
NEGLIGIBLE = -42.0  # logarithm of ignored summands, relative to the largest
FARTHEST = 20.0  # limit of the variable of the double exponential rule
LARGEST_LOG = 300.0  # of a distance from the mean, in standard deviations
FARTHEST_TAIL = 1e70  # in standard deviations; beyond, squares would overflow, and this tail is an upper bound
WITHOUT_DIGITS = -1e14  # logarithms below have no digits left to distinguish summands


@dataclass(frozen=True)
class PearsonCurve(Law):
    r"""The distribution of Pearson's system with four given moments.

    These are beta distributions (types I and II), gamma (III), type IV, inverse gamma (V), beta prime (VI), Student's t
    (VII) and normal distributions, shifted, scaled and mirrored. They depend smoothly on the moments, also between
    types.

    Parameters
    ----------
    mean : float
        Mean, finite.
    variance : float
        Variance, positive and finite.
    skewness : float
        Third central moment over the variance to the power 3/2.
    kurtosis : float
        Excess kurtosis: fourth central moment over the squared variance, minus 3. More than ``skewness**2 - 2``, as for
        every distribution on more than two points.

    Raises
    ------
    TypeError, ValueError
        If an argument is not a finite real number; if `variance` is not positive, or no density has such a skewness and
        kurtosis.

    Notes
    -----
    Probabilities are integrals of the density, in logarithms. Both tails have a relative accuracy of about 1e-12, and
    `logsf` and `logcdf` do not underflow. Near a finite end of the support accuracy is lower, because the moments
    determine the end to rounding only. Beyond 1e70 standard deviations the tail is constant. A value takes about a
    millisecond.

    References
    ----------
    .. [1] K. Pearson, Mathematical contributions to the theory of evolution, XIX: second supplement to a
       memoir on skew variation. Phil. Trans. R. Soc. A 216, 1916.
    .. [2] J. Heinrich, A guide to the Pearson type IV distribution. CDF/MEMO/STATISTICS/PUBLIC/6820, 2004.

    Examples
    --------
    >>> from kcalib.laws import ChiSquareMixture, PearsonCurve
    >>> law = ChiSquareMixture([0.6, 0.3, 0.1])
    >>> curve = PearsonCurve(law.mean, law.var, law.skewness, law.kurtosis)
    >>> curve.kind
    'VI'
    >>> print(f"{law.sf(5.0):.5f} {curve.sf(5.0):.5f}")
    0.00654 0.00640
    """

    mean: float
    variance: float
    skewness: float
    kurtosis: float

    def __post_init__(self) -> None:
        for name in ("mean", "variance", "skewness", "kurtosis"):
            value = _real(name, getattr(self, name))
            if value.ndim or not np.isfinite(value):
                raise ValueError(f"`{name}` is {getattr(self, name)!r}, expected a finite number")
            object.__setattr__(self, name, float(value))
        if self.variance <= 0:
            raise ValueError(f"`variance` is {self.variance}, expected a positive number")
        if not self.kurtosis > self.skewness**2 - 2:
            raise ValueError(
                f"`kurtosis` is {self.kurtosis} with `skewness` {self.skewness}, expected more than skewness**2 - 2 = "
                f"{self.skewness**2 - 2}: no density has such moments (excess kurtosis, 0 for a normal distribution)"
            )

    @property
    def var(self) -> float:
        """Return the variance."""
        return self.variance

    @property
    def kind(self) -> str:
        """Return the type of the curve: "normal", "I" (II included), "III", "IV", "V", "VI" or "VII"."""
        p, r = self._shape
        if not p:
            return "normal" if not r else ("I" if r < 0 else "VII")
        if r <= 0:
            return "III" if not r else "I"
        discriminant = p * p - 4 * r
        return "V" if not discriminant else ("VI" if discriminant > 0 else "IV")

    @property
    def support(self) -> tuple[float, float]:
        """Return the ends of the support, which may be infinite."""
        return -self._mirrored._upper_end, self._upper_end

    @property
    def _centre(self) -> float:
        return self.mean

    @property
    def _deviation(self) -> float:
        return math.sqrt(self.variance)

    @property
    def _upper_end(self) -> float:
        return self.mean + self._deviation * _end(*self._shape)

    @cached_property
    def _mirrored(self) -> PearsonCurve:
        return PearsonCurve(-self.mean, self.variance, -self.skewness, self.kurtosis)

    @property
    def _shape(self) -> tuple[float, float]:
        """Return p and r."""
        size = 4 * self.kurtosis + 12 - 3 * self.skewness**2
        return self.skewness * (self.kurtosis + 6) / size, (2 * self.kurtosis - 3 * self.skewness**2) / size

    @cached_property
    def _log_normaliser(self) -> float:
        p, r = self._shape
        return float(np.logaddexp(_tail_integral(0.0, p, r)[0], _tail_integral(0.0, -p, r)[0]))

    def _log_upper_tail(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tails = [_tail_integral((value - self.mean) / self._deviation, *self._shape) for value in x]
        log_integral, log_density = np.array(tails).reshape(-1, 2).T
        return log_integral - self._log_normaliser, np.exp(log_density - log_integral) / self._deviation


def _roots(p: float, r: float) -> tuple[complex, complex]:
    """Return alpha and beta in 1 + p z + r z^2 = (1 - alpha z)(1 - beta z); the larger real one first."""
    discriminant = p * p - 4 * r
    if discriminant < 0:
        alpha = complex(-p / 2, math.sqrt(-discriminant) / 2)
        return alpha, alpha.conjugate()
    root = math.sqrt(discriminant)
    if p > 0:
        return -2 * r / (p + root), -(p + root) / 2
    return (root - p) / 2, 2 * r / (root - p) if root > p else 0.0


def _end(p: float, r: float) -> float:
    """Return the upper end of the support in standard units."""
    alpha = _roots(p, r)[0]
    return math.inf if isinstance(alpha, complex) or alpha <= 0 else 1 / alpha


def _tail_integral(z: float, p: float, r: float) -> tuple[float, float]:
    """Return logarithms of the integral of exp(h) from `z` >= 0 to the upper end, and of exp(h(z)).

    With u = z + w E / (E + w), E = end - z, the range becomes w > 0, and w = L exp(pi/2 sinh(t))
    makes the summands of the trapezoidal rule vanish at a double exponential rate. L is
    the density's own scale at z.
    """
    end, z = _end(p, r), min(z, FARTHEST_TAIL)
    reach = end - z
    if reach <= 0:  # by rounding of z
        return -math.inf, 0.0
    denominator = 1 + z * (p + r * z) if math.isinf(end) else reach * (1 / end - r * z)
    scale = math.log(denominator) - math.log(abs(p + (1 + 3 * r) * z) + math.sqrt(denominator))

    log_density = float(_log_density(np.array([z]), np.log(np.array([reach])), p, r)[0])
    if log_density < WITHOUT_DIGITS:  # the density decays within an ulp of its logarithm
        return log_density + scale, log_density

    def summands(t: np.ndarray) -> np.ndarray:
        log_w = scale + math.pi / 2 * np.sinh(t)
        if math.isinf(reach):
            log_w = np.minimum(log_w, LARGEST_LOG)
            log_jacobian, log_gap, u = 0.0, log_w, z + np.exp(log_w)
        else:
            log_reach = math.log(reach)
            log_sum = np.logaddexp(log_reach, log_w)
            log_jacobian, log_gap = 2 * (log_reach - log_sum), 2 * log_reach - log_sum
            u = z + np.exp(log_w + log_reach - log_sum)
        with np.errstate(over="ignore", invalid="ignore"):  # for negligible summands
            height = _log_density(u, log_gap, p, r)
        height = np.where(np.isnan(height), -np.inf, height)
        return height + log_jacobian + log_w + np.log(math.pi / 2 * np.cosh(t))

    return _trapezoidal(summands), log_density


def _trapezoidal(log_summands: Any) -> float:
    """Return the log of the integral over the real line of exp(log_summands(t)), doubly exponential at both ends."""
    t = np.arange(-4.5, FARTHEST, FIRST_STEP)
    values = log_summands(t)
    range_of_t = t[values > values.max() + NEGLIGIBLE]
    low, step = range_of_t[0] - FIRST_STEP, FIRST_STEP
    count = math.ceil((range_of_t[-1] + FIRST_STEP - low) / step)
    log_sum = np.logaddexp.reduce(values)
    agreement = AGREEMENT + ROUNDING * abs(log_sum)
    for _ in range(MAX_HALVINGS):
        between = np.logaddexp.reduce(log_summands(low + (np.arange(count) + 0.5) * step))
        before, log_sum = log_sum, np.logaddexp(log_sum, between)
        step, count = step / 2, 2 * count
        if abs(log_sum - before - math.log(2)) <= agreement:
            return float(log_sum + math.log(step))
    raise ArithmeticError("the integral of the density did not converge")


def _log_density(u: np.ndarray, log_gap: np.ndarray, p: float, r: float) -> np.ndarray:
    """Return h(u); `log_gap` is the logarithm of the distance from the upper end, if that is finite."""
    alpha, beta = _roots(p, r)
    first, second, between = alpha * u, beta * u, np.emath.sqrt(p * p - 4 * r) * u
    if _end(p, r) < math.inf:
        log_first = np.where(first > 0.5, log_gap + math.log(abs(alpha)), np.log1p(-np.minimum(first, 0.5)))
        log_sum = np.logaddexp(log_first, np.log(np.maximum(between, TINY)))  # 1 - second = 1 - first + between
        log_second = np.where(second > 0.5, log_sum, np.log1p(-np.minimum(second, 0.5)))
    else:
        log_first, log_second = np.log1p(-first), np.log1p(-second)
    difference = _divided_difference(first, second, between, log_first, log_second)
    return (-(log_first + log_second) - (1 + r) * u * u * difference).real


def _divided_difference(
    first: np.ndarray, second: np.ndarray, between: np.ndarray, log_first: np.ndarray, log_second: np.ndarray
) -> np.ndarray:
    """Return the divided difference of psi(y) = -log(1 - y) / y at two points, which are below 1 or complex.

    For distant points use the values; else Gauss quadrature: near 0 of the integral of s / ((1 - s y1)(1 - s y2)) over
    [0, 1], elsewhere of psi' between the points.
    """
    difference = np.empty_like(first)
    nearest = np.exp(np.minimum(np.real(log_first), np.real(log_second)))
    is_small = np.maximum(abs(first), abs(second)) <= 0.5
    # Beyond a pair of complex roots the points are on different sides of the branch cut of the logarithm.
    is_close = ~is_small & (abs(between) <= 0.5 * nearest) & (np.exp(log_first).real >= 0)
    is_far = ~(is_small | is_close)

    y1, y2 = first[is_small, None], second[is_small, None]
    difference[is_small] = (NODES / ((1 - NODES * y1) * (1 - NODES * y2))) @ NODE_WEIGHTS
    rest = np.exp(log_first)[is_close, None] + NODES * between[is_close, None] + TINY  # 1 - y
    difference[is_close] = ((1 / rest + np.log(rest) / (1 - rest)) / (1 - rest)) @ NODE_WEIGHTS
    psi_first, psi_second = _psi(first[is_far], log_first[is_far]), _psi(second[is_far], log_second[is_far])
    difference[is_far] = (psi_first - psi_second) / between[is_far]
    return difference


def _psi(y: np.ndarray, log: np.ndarray) -> np.ndarray:
    return np.where(y == 0, 1.0, -log / np.where(y == 0, 1.0, y))
