r"""Compute both tails of a weighted sum of squares of normal variables.

Quadratic forms of normal vectors have this distribution, and so do degenerate U-statistics asymptotically. Its Laplace
transform is known: for any :math:`s_0 > 0` left of the first singularity of the transform

.. math:: P(Q > x) = \frac{1}{2 \pi i} \int_{s_0 - i\infty}^{s_0 + i\infty} e^{K(s) - s x} \frac{ds}{s}, \qquad
          K(s) = -\frac{1}{2} \sum_i \log(1 - 2 s w_i) + \frac{s^2 \tau}{2} .

Along a path through the saddlepoint of the whole integrand, including the pole, nothing cancels, and the factor
:math:`e^{K(s_0) - s_0 x} / s_0` has the size of the tail (Rice 1980). The path is a hyperbola from the saddlepoint,
:math:`s = s_0 + b\,(\sin\alpha\,(\cosh t - 1) + i \cos\alpha \sinh t)`, where :math:`b` is the width of the saddle. In
:math:`t` the integrand is analytic in a strip whose width is bounded below for all weights, because the pole and the
branch points are at least about :math:`b` away. The trapezoidal rule therefore converges geometrically, with steps that
do not depend on the weights.

`ChiSquareMixture._log_upper_tail` finds saddlepoints (`_saddlepoints`) and integrates along paths through them
(`_integrals`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kcalib._backend.threads import one_blas_thread
from kcalib.laws._law import Law, _as_number, _real, _reject

TILT = math.pi / 8  # of the hyperbola: half of what exp(s^2) allows, so both sides of the strip are equally wide
FIRST_STEP = 0.2
MAX_HALVINGS = 6
AGREEMENT = 1e-9  # of two steps; halving the step squares the error, so the finer one is exact to rounding
NEGLIGIBLE = 1e-18  # of the integrand, relative to its largest value
BLOCK = 16  # abscissas at a time, until the integrand is negligible
FARTHEST = 300.0  # t at which even a single square root has decayed
CHUNK = 1 << 15  # factors of the integrand held at a time
SMALL = 0.01  # 2 s0 w / (1 - 2 s0 w) of weights that count as small
GROWTH = 2.0  # largest absolute value of the integrand along a good path
NEAR_SADDLE = 0.05  # largest distance between saddlepoint and start of the path, in widths of the saddle
OVERFLOW = 1e150  # x whose square is near the largest float
UNDERFLOW = 1e-300  # x whose reciprocal is near the largest float
MAX_STEPS = 200  # of the search for the saddlepoint


class Spectrum(NamedTuple):
    """Distinct weights with counts, and the standard deviation of the normal part, scaled to a maximum of 1."""

    weights: np.ndarray
    counts: np.ndarray
    deviation: float
    largest: float  # largest weight; 0 if none is positive


class Saddle(NamedTuple):
    """Saddlepoints for some x, and terms of the integrals along paths through them; s is in units of s0."""

    point: np.ndarray  # s0 > 0
    width: np.ndarray  # of the saddle, (s0^2 K''(s0) + 1)^(-1/2)
    tilted: np.ndarray  # 2 s0 w / (1 - 2 s0 w), a row for each x
    linear: np.ndarray  # of the exponent: s0^2 tau - s0 x
    quadratic: np.ndarray  # of the exponent: s0^2 tau / 2
    log_factor: np.ndarray  # K(s0) - s0 x


@dataclass(frozen=True)
class ChiSquareMixture(Law):
    r"""The distribution of a weighted sum of squares of independent standard normal variables.

    .. math:: Q = \sum_{i=1}^k w_i Z_i^2 + N(0, \tau), \qquad Z_i \sim N(0, 1),

    with weights of either sign and an independent normal part of variance :math:`\tau`, which may be 0. With
    `degrees_of_freedom`, :math:`Z_i^2` is a chi-square variable with that many degrees of freedom, which need not be
    integers.

    Both tails :math:`p` have a relative accuracy of about :math:`10^{-14} + 10^{-15} |\log p|`, the rounding of their
    logarithm (:math:`10^{-13}` with 10^5 degrees of freedom). `logsf` and `logcdf` do not underflow.

    Parameters
    ----------
    weights : array_like
        The weights :math:`w_i`, shape (k,), finite. Zeros are ignored.
    normal_variance : float
        The variance :math:`\tau \ge 0` of the normal part.
    degrees_of_freedom : array_like
        Numbers >= 1: one for all weights, or one for each, shape (k,).

    Attributes
    ----------
    weights : tuple of float
        As given.
    normal_variance : float
        As given.
    degrees_of_freedom : tuple of float
        One for each weight.

    Raises
    ------
    TypeError
        If the weights or the variance are not real numbers.
    ValueError
        If `weights` does not have one axis; if a number is not finite; if `normal_variance` is negative; if all are 0,
        so that the distribution is a point; if `degrees_of_freedom` are below 1, or not as many as the weights; if the
        variance overflows.

    Notes
    -----
    The Laplace transform is inverted numerically along a hyperbola through the saddlepoint of the inversion integral
    [1]_. Imhof [2]_ and Davies [3]_ integrate along the imaginary axis, where the integrand is near 1 for every tail,
    and have absolute accuracy only.

    A value takes time O(d) for d distinct weights, with 50 to 250 complex logarithms each. Arrays are faster than
    single values. A quantile takes about as long as a dozen values.

    References
    ----------
    .. [1] S. O. Rice, Distribution of quadratic forms in normal random variables: evaluation by
       numerical integration. SIAM J. Sci. Stat. Comput. 1, 1980.
    .. [2] J. P. Imhof, Computing the distribution of quadratic forms in normal variables.
       Biometrika 48, 1961.
    .. [3] R. B. Davies, Algorithm AS 155: the distribution of a linear combination of chi-square random
       variables. Applied Statistics 29, 1980.

    Examples
    --------
    >>> from kcalib.laws import ChiSquareMixture
    >>> law = ChiSquareMixture([0.6, 0.3, 0.1])
    >>> print(f"{law.sf(0.7):.10f} {law.sf(20.0):.3e} {law.logsf(1e5):.3f}")
    0.5064382335 1.225e-08 -83339.133
    >>> print(f"{law.isf(1e-200):.4f}")
    548.7831
    """

    weights: tuple[float, ...]
    normal_variance: float
    degrees_of_freedom: tuple[float, ...]

    def __init__(self, weights: Any, normal_variance: float = 0.0, *, degrees_of_freedom: Any = 1.0) -> None:
        array, variance = _real("weights", weights), _real("normal_variance", normal_variance)
        if array.ndim != 1:
            raise ValueError(f"`weights` has shape {array.shape}, expected (k,)")
        if variance.ndim != 0:
            raise ValueError(f"`normal_variance` has shape {variance.shape}, expected a number")
        _reject("weights", array, ~np.isfinite(array), "expected finite numbers")
        _reject(
            "normal_variance", variance, ~(np.isfinite(variance) & (variance >= 0)), "expected a finite number >= 0"
        )
        if not (array.any() or variance):
            raise ValueError("all `weights` and `normal_variance` are 0: the distribution is the point 0")
        freedom = _real("degrees_of_freedom", degrees_of_freedom)
        if freedom.shape not in ((), array.shape):
            raise ValueError(f"`degrees_of_freedom` has shape {freedom.shape}, expected () or {array.shape}")
        _reject("degrees_of_freedom", freedom, ~(np.isfinite(freedom) & (freedom >= 1)), "expected finite numbers >= 1")
        object.__setattr__(self, "weights", tuple(array.tolist()))
        object.__setattr__(self, "normal_variance", float(variance))
        object.__setattr__(self, "degrees_of_freedom", tuple(np.broadcast_to(freedom, array.shape).tolist()))
        if not math.isfinite(self.var):
            raise ValueError("the variance overflows: scale `weights` and `normal_variance` down")

    @property
    def mean(self) -> float:
        """Return the expectation, the sum of the weights times their degrees of freedom."""
        return self._scale * self._cumulant(1)

    @property
    def var(self) -> float:
        """Return the variance: twice the squared weights times degrees of freedom, plus `normal_variance`."""
        return self._scale * self._scale * self._scaled_variance

    @property
    def skewness(self) -> float:
        """Return the third cumulant over the variance to the power 3/2."""
        return self._cumulant(3) / self._scaled_variance**1.5

    @property
    def kurtosis(self) -> float:
        """Return the excess kurtosis, the fourth cumulant over the squared variance; 0 for normal distributions."""
        return self._cumulant(4) / self._scaled_variance**2

    @property
    def support(self) -> tuple[float, float]:
        """Return the ends of the support; one is 0 if all weights have one sign and there is no normal part."""
        low = -math.inf if self.normal_variance or min(self.weights) < 0 else 0.0
        high = math.inf if self.normal_variance or max(self.weights) > 0 else 0.0
        return low, high

    def rvs(self, size: int | tuple[int, ...] | None = None, rng: Any = None) -> Any:
        """Draw random numbers from this distribution.

        Parameters
        ----------
        size : int or tuple of int, optional
            Shape of the result. Default: one number.
        rng : int or numpy.random.Generator, optional
            Argument of ``numpy.random.default_rng``.

        Returns
        -------
        float or numpy.ndarray
            Of shape `size`; a float for None.
        """
        rng = np.random.default_rng(rng)
        weights, counts = self._distinct_weights
        values = math.sqrt(self.normal_variance) * rng.standard_normal(() if size is None else size)
        for weight, count in zip(weights, counts):
            values = values + weight * rng.chisquare(count, size)
        return _as_number(np.asarray(values))

    @property
    def _centre(self) -> float:
        return self.mean

    def _cumulant(self, order: int) -> float:
        """Return the cumulant of Q / scale without the normal part."""
        factor = 2.0 ** (order - 1) * math.factorial(order - 1)
        return factor * math.fsum(
            count * (weight / self._scale) ** order for weight, count in zip(self.weights, self.degrees_of_freedom)
        )

    @property
    def _scaled_variance(self) -> float:
        return self._cumulant(2) + (math.sqrt(self.normal_variance) / self._scale) ** 2

    @cached_property
    def _scale(self) -> float:
        return max(*map(abs, self.weights), math.sqrt(self.normal_variance), 0.0)

    @property
    def _distinct_weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Return distinct weights and their degrees of freedom."""
        weights, index = np.unique(self.weights, return_inverse=True)
        return weights, np.bincount(index, self.degrees_of_freedom, minlength=len(weights))

    @cached_property
    def _spectrum(self) -> Spectrum:
        weights, counts = self._distinct_weights
        weights = weights / self._scale
        is_nonzero = weights != 0
        deviation = math.sqrt(self.normal_variance) / self._scale
        return Spectrum(weights[is_nonzero], counts[is_nonzero], deviation, max(weights.max(initial=0.0), 0.0))

    @cached_property
    def _mirrored(self) -> ChiSquareMixture:
        return ChiSquareMixture(
            [-weight for weight in self.weights], self.normal_variance, degrees_of_freedom=self.degrees_of_freedom
        )

    @one_blas_thread()
    def _log_upper_tail(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore"):
            x = x / self._scale
        log_tail, hazard = np.full(x.shape, -math.inf), np.full(x.shape, math.inf)
        # Logarithms that would overflow are infinite.
        limit = OVERFLOW if self._spectrum.deviation > OVERFLOW * self._spectrum.largest else math.inf
        finite = np.flatnonzero(x < limit)
        rows = max(1, CHUNK // (BLOCK * max(1, self._spectrum.weights.size)))
        for first in range(0, finite.size, rows):
            chunk = finite[first : first + rows]
            point, log_power = self._move_from_end(x[chunk])
            saddle = _saddlepoints(self._spectrum, point)
            integral, mean_s = _integrals(self._spectrum, saddle, point)
            log_tail[chunk] = saddle.log_factor + np.log(integral) + log_power
            with np.errstate(over="ignore"):
                hazard[chunk] = mean_s / self._scale
        return log_tail, hazard

    def _move_from_end(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return `x` and 0; or, if 1 / x overflows, a point farther from the end 0, and the log ratio of the tails.

        Near the end, tails are proportional to the power d/2 of the distance, for d degrees of freedom.
        """
        near = (x > -UNDERFLOW) & (self.support[1] == 0)
        log_ratio = np.log(np.where(near, -x, UNDERFLOW)) - math.log(UNDERFLOW)
        return np.where(near, -UNDERFLOW, x), log_ratio * self._spectrum.counts.sum() / 2


def _saddlepoints(spectrum: Spectrum, x: np.ndarray) -> Saddle:
    """Return points near the root s0 > 0 of K'(s) - x - 1/s, which increases from minus to plus infinity.

    The search is in log(r), s = r / (1 + 2 w r) with w the largest weight: then 1 - 2 s w_i is
    (1 + 2 r (w - w_i)) / (1 + 2 r w), which keeps its accuracy next to the singularity.
    """
    low, high = np.log(_brackets(spectrum, x))
    middle = (low + high) / 2
    for _ in range(MAX_STEPS):
        r = np.exp(middle)
        stretch = 1 + 2 * r * spectrum.largest
        s, tilted = r / stretch, _tilted(spectrum, r)
        quadratic = (s * spectrum.deviation) ** 2 / 2
        linear = 2 * quadratic - s * x
        slope = tilted @ spectrum.counts / 2 + linear - 1  # times s, as the following terms
        root = _root_curvature(spectrum, s, tilted)
        if np.all(np.abs(slope) <= NEAR_SADDLE * root):
            break
        low, high = np.where(slope < 0, middle, low), np.where(slope < 0, high, middle)
        newton = middle - slope / root / root * stretch  # ds = s d log(r) / (1 + 2 w r)
        middle = np.where((newton > low) & (newton < high) & (high - low < 2), newton, (low + high) / 2)
    else:
        raise ArithmeticError(f"no saddlepoint found in {MAX_STEPS} steps at x = {x} times the largest weight")
    log_factor = _cumulant_function(spectrum, r) + linear - quadratic
    return Saddle(s, 1 / root, tilted, linear, quadratic, log_factor)


def _brackets(spectrum: Spectrum, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper bounds of r at the saddlepoint."""
    weights, counts, deviation, largest = spectrum
    size = np.abs(x)
    positive, negative = counts @ np.maximum(weights, 0), counts @ np.maximum(-weights, 0)
    low = 1 / (2 * positive + 2 * deviation + size + 2 * largest)
    high = np.full(x.shape, math.inf)
    if largest > 0:
        high = np.minimum(high, 1 / largest + (negative + size) / largest / largest)
    if deviation > 0:
        s = 1 / deviation + (negative + size + deviation) / deviation / deviation
        high = np.minimum(high, np.divide(s, 1 - 2 * largest * s, out=high.copy(), where=2 * largest * s < 1))
    if not largest and not deviation:  # x < 0
        high = (counts.sum() / 2 + 1) / size
    return low, high


def _tilted(spectrum: Spectrum, r: np.ndarray) -> np.ndarray:
    """Return 2 s w_i / (1 - 2 s w_i)."""
    r = r[:, None]
    return 2 * r * spectrum.weights / (1 + 2 * r * (spectrum.largest - spectrum.weights))


def _root_curvature(spectrum: Spectrum, s: np.ndarray, tilted: np.ndarray) -> np.ndarray:
    """Return the square root of s^2 K''(s) + 1, which itself may overflow."""
    size = np.maximum(np.abs(tilted).max(axis=1, initial=1.0), s * spectrum.deviation)
    squares = (tilted / size[:, None]) ** 2 @ spectrum.counts / 2 + (s * spectrum.deviation / size) ** 2 + size**-2.0
    return size * np.sqrt(squares)


def _cumulant_function(spectrum: Spectrum, r: np.ndarray) -> np.ndarray:
    """Return K(s) without the normal part."""
    largest, r = spectrum.largest, r[:, None]
    stretch = 1 + 2 * r * largest
    share = 2 * spectrum.weights * r / stretch  # 2 s w_i < 1
    near = share > 0.5
    logs = np.log1p(-np.where(near, 0.0, share))
    logs = np.where(near, np.log((1 + 2 * r * (largest - spectrum.weights)) / stretch), logs)
    return logs @ spectrum.counts / -2


def _integrals(spectrum: Spectrum, saddle: Saddle, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the inversion integral relative to the saddlepoint, and the mean of s over it, which is the hazard rate.

    The path bends towards decay of exp(-s x), unless the factors of the weights grow faster there. Small weights have
    factors of about exp(s m), where m is their mean; with many degrees of freedom m may exceed x.
    """
    mean = np.where(np.abs(saddle.tilted) < SMALL, spectrum.weights, 0.0) @ spectrum.counts
    tilt = np.where(x < mean, -TILT, TILT)
    with np.errstate(over="ignore", invalid="ignore"):  # for paths with the wrong tilt
        integral, mean_s, largest = _trapezoidal(saddle, tilt, spectrum.counts)
    poor = np.flatnonzero(~(largest < GROWTH))
    if poor.size:
        rows = Saddle(*(field[poor] for field in saddle))
        with np.errstate(over="ignore", invalid="ignore"):
            second_try = _trapezoidal(rows, -tilt[poor], spectrum.counts)
        better = ~(second_try[2] >= largest[poor])
        integral[poor] = np.where(better, second_try[0], integral[poor])
        mean_s[poor] = np.where(better, second_try[1], mean_s[poor])
        if not np.all(np.minimum(second_try[2], largest[poor]) < GROWTH):
            raise ArithmeticError(f"the inversion integral did not converge at s = {saddle.point[poor]}")
    return integral, mean_s


def _trapezoidal(saddle: Saddle, tilt: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return integral, mean of s, and largest absolute integrand, by the trapezoidal rule with halved steps."""

    def sums(t: np.ndarray) -> tuple[np.ndarray, ...]:
        return _sums(saddle, tilt, counts, t)

    step, first = FIRST_STEP, saddle.width * np.cos(tilt) / 2  # half the summand at t = 0
    total, moment, largest, end = _sums_to_the_end(sums, step)
    total, moment = total + first, moment + first
    for _ in range(MAX_HALVINGS):
        t = (np.arange(end) + 0.5) * step
        blocks = [sums(t[i : i + BLOCK]) for i in range(0, end, BLOCK)]
        before, step, end = total, step / 2, 2 * end
        total = total + sum(block[0] for block in blocks)
        moment = moment + sum(block[1] for block in blocks)
        if np.all(np.abs(total - 2 * before) <= AGREEMENT * np.abs(total)):
            break
    else:
        largest = np.where(np.abs(total - 2 * before) <= AGREEMENT * np.abs(total), largest, math.inf)
    return total * step / math.pi, moment / total * saddle.point, largest


def _sums_to_the_end(sums: Any, step: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return sums over t = step, 2 step, ... until the integrand is negligible, its maximum, and their number."""
    total, moment, largest, end = np.zeros(1), np.zeros(1), np.ones(1), 0
    while end * step < FARTHEST:
        part, part_moment, height, last = sums((np.arange(BLOCK) + end + 1) * step)
        total, moment, largest, end = total + part, moment + part_moment, np.maximum(largest, height), end + BLOCK
        if np.all(last <= NEGLIGIBLE * np.abs(total)):
            break
    return total, moment, largest, end


def _sums(saddle: Saddle, tilt: np.ndarray, counts: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return sums of Im(f ds/dt) and Im(f s ds/dt) over `t`, the largest |f|, and the larger last summand."""
    sine, cosine, width = np.sin(tilt)[:, None], np.cos(tilt)[:, None], saddle.width[:, None]
    z = width * (sine * (np.cosh(t) - 1) + 1j * cosine * np.sinh(t))
    dz = width * (sine * np.sinh(t) + 1j * cosine * np.cosh(t))
    real = 1 - z.real[:, :, None] * saddle.tilted[:, None, :]
    imaginary = -z.imag[:, :, None] * saddle.tilted[:, None, :]
    # np.log of complex numbers is several times slower.
    logs = np.log(real**2 + imaginary**2) @ counts / 2 + 1j * (np.arctan2(imaginary, real) @ counts)
    values = np.exp(z * (saddle.linear[:, None] + saddle.quadratic[:, None] * z) - logs / 2) * dz
    f = values / (1 + z)
    height = np.abs(f / dz).max(axis=1)
    last = np.maximum(np.abs(f[:, -1]), np.abs(values[:, -1]))
    return f.imag.sum(axis=1), values.imag.sum(axis=1), height, last
