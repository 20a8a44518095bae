"""Distributions of positive numbers: log-normal and gamma."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import special
from kcalib._input.checks import reject
from kcalib.distributions._checks import LARGEST, positive_array, real_array
from kcalib.distributions._distribution import QuantileLaw, choose
from kcalib.distributions._saddle_point import SMALLEST, deviance, log_student_peak, stirling_error

__all__ = ["Gamma", "LogNormal"]


@dataclass(frozen=True, eq=False)
class LogNormal(QuantileLaw):
    r"""Log-normal distributions: the logarithm of the target is normal.

    Parameters
    ----------
    mean_log : array_like, shape (n,)
        Means of the logarithm; the median is its exponential.
    std_log : array_like, shape (n,)
        Standard deviations of the logarithm, from 1e-15. The median is at least 1e-15, and exp(mean_log + std_log^2),
        which bounds the standard deviation, at most 1e15. One of the two may be a single number.

    Raises
    ------
    TypeError, ValueError
        If a parameter is not finite, real and in its range, or if the shapes differ.

    See Also
    --------
    Gamma : Lighter tails.

    Notes
    -----
    Targets may be any numbers; the density is 0 for y <= 0.

    Target kernels have no closed forms: quasi Monte Carlo draws are used, and characteristic functions in states.
    Wasserstein distances are computed from 128 quantiles.

    Examples
    --------
    >>> from kcalib.distributions import LogNormal
    >>> LogNormal([0.0, 1.0], 0.5).expected_value().round(3).tolist()
    [[1.133], [3.08]]
    """

    mean_log: Array
    std_log: Array

    def __init__(self, mean_log: Any, std_log: Any) -> None:
        self._set(
            mean_log=real_array(mean_log, "mean_log"),
            std_log=positive_array(std_log, "std_log", "a positive standard deviation of the logarithm"),
        )
        limit = math.log(LARGEST)
        reject(
            self.mean_log,
            (self.mean_log < -limit) | (self.mean_log + self.std_log**2 > limit),
            lambda at, x: (
                f"`mean_log{at}` is {x:.6g}, expected at least {-limit:.3g}, and with the square of `std_log{at}` at "
                f"most {limit:.3g}; rescale targets and predictions, or clip it"
            ),
        )

    def expected_value(self) -> Array:
        return arrays.namespace(self.mean_log).exp(self.mean_log + 0.5 * self.std_log**2)[:, None]

    def standard_deviation(self) -> Array:
        xp = arrays.namespace(self.std_log)
        return self.expected_value() * xp.sqrt(xp.expm1(self.std_log**2))[:, None]

    def _standardise(self, y: Array) -> Array:
        """Return (log y - mean_log) / std_log, minus infinity for y <= 0."""
        xp, (mean, std) = arrays.namespace(y), self._columns(y)
        return xp.where(y > 0, (xp.log(xp.where(y > 0, y, 1.0)) - mean) / std, -xp.inf)

    def _log_density(self, y: Array) -> Array:
        xp, z, std = arrays.namespace(y), self._standardise(y), self._columns(y)[1]
        return -0.5 * z * z - xp.log(xp.where(y > 0, y, 1.0)) - xp.log(std) - 0.5 * math.log(2 * math.pi)

    def _tails(self, y: Array) -> tuple[Array, Array]:
        z, ndtr = self._standardise(y), special(y).ndtr
        return ndtr(z), ndtr(-z)

    def _inverse_cdf(self, p: Array) -> Array:
        mean, std = self._columns(p)
        return arrays.namespace(p).exp(mean + std * special(p).ndtri(p))

    def _crps(self, y: Array) -> Array:
        """Return the CRPS at targets, shape (n,) (Baran and Lerch 2015)."""
        xp, (mean, std) = arrays.namespace(y), self._columns(y)
        z, erf = self._standardise(y) / math.sqrt(2), special(y).erf
        expected = xp.exp(mean + 0.5 * std * std)
        return y * erf(z) - expected * (erf(z - std / math.sqrt(2)) + erf(0.5 * std))


@dataclass(frozen=True, eq=False)
class Gamma(QuantileLaw):
    r"""Gamma distributions, with density proportional to :math:`y^{shape - 1} \exp(-y / scale)` for positive y.

    Parameters
    ----------
    shape : array_like, shape (n,)
        Positive shapes, from 1e-15 to 1e15.
    scale : array_like, shape (n,)
        Scales, from 1e-15 to 1e15, and at most 1e15 times the shape; the mean is shape times scale. One of the two may
        be a single number.

    Raises
    ------
    TypeError, ValueError
        If a parameter is not finite, real and in its range, or if the shapes differ.

    See Also
    --------
    LogNormal : Heavier tails.

    Notes
    -----
    Targets may be any numbers; the density is 0 below 0, and infinite at 0 if the shape is below 1.

    Target kernels have no closed forms: quasi Monte Carlo draws are used, and characteristic functions in states.
    Wasserstein distances are computed from 128 quantiles.

    Examples
    --------
    >>> from kcalib.distributions import Gamma
    >>> Gamma([1.0, 4.0], [2.0, 0.5]).standard_deviation().tolist()
    [[2.0], [1.0]]
    """

    shape: Array
    scale: Array

    def __init__(self, shape: Any, scale: Any) -> None:
        self._set(
            shape=positive_array(shape, "shape", "a positive shape"),
            scale=positive_array(scale, "scale", "a positive scale"),
        )
        reject(
            self.scale,
            self.shape * self.scale > LARGEST,
            lambda at, x: f"`scale{at}` is {x:.6g}, more than {LARGEST:.0e} over `shape{at}`; rescale the targets",
        )

    def expected_value(self) -> Array:
        return (self.shape * self.scale)[:, None]

    def standard_deviation(self) -> Array:
        return (arrays.namespace(self.shape).sqrt(self.shape) * self.scale)[:, None]

    def _log_density(self, y: Array) -> Array:
        xp, (shape, scale) = arrays.namespace(y), self._columns(y)
        result = self._log_density_times_y(y) - xp.log(xp.where(y > 0, y, 1.0))
        at_zero = xp.where(shape < 1, xp.inf, xp.where(shape > 1, -xp.inf, -xp.log(scale)))
        return xp.where(y == 0, at_zero, result)

    def _log_density_times_y(self, y: Array) -> Array:
        xp, (shape, scale) = arrays.namespace(y), self._columns(y)
        z = xp.maximum(xp.where(y > 0, y, 1.0) / scale, SMALLEST)
        result = 0.5 * xp.log(shape / (2 * math.pi)) - stirling_error(shape) - deviance(shape, z, shape - z)
        return xp.where(y > 0, result, -xp.inf)

    def _tails(self, y: Array) -> tuple[Array, Array]:
        (shape, scale), functions = self._columns(y), special(y)
        z = arrays.namespace(y).maximum(y / scale, 0.0)
        return functions.gammainc(shape, z), functions.gammaincc(shape, z)

    def _inverse_cdf(self, p: Array) -> Array:
        xp, functions, (shape, scale) = arrays.namespace(p), special(p), self._columns(p)
        p = xp.broadcast_to(p, (self.n, p.shape[1]))
        shape = xp.broadcast_to(shape, p.shape)
        # The smaller tail has a small relative error.
        return scale * choose(
            p < 0.5,
            lambda i: functions.gammaincinv(shape[i], p[i]),
            lambda i: functions.gammainccinv(shape[i], 1 - p[i]),
        )

    def _crps(self, y: Array) -> Array:
        """Return the CRPS at targets, shape (n,) (Moeller and Scheuerer 2013)."""
        xp, (shape, scale) = arrays.namespace(y), self._columns(y)
        lower, upper = self._tails(y)
        half = xp.sqrt(2 * shape) * xp.exp(log_student_peak(2 * shape))  # 1 / B(1/2, shape)
        return (y - shape * scale) * (lower - upper) + scale * (2 * xp.exp(self._log_density_times_y(y)) - half)
