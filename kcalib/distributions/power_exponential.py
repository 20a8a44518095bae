"""Power exponential (generalised normal) distributions of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._inputs import reject
from kcalib.distributions._checks import (
    check_numbers,
    check_size,
    events,
    host_column,
    numbers,
    parameters_of,
    positive_array,
    probability_row,
    real_array,
)
from kcalib.distributions._distribution import Density, Quantiles, choose
from kcalib.distributions._quasi import random_points

__all__ = ["PowerExponential"]

LOWEST_SHAPE, HIGHEST_SHAPE = 0.1, 100.0


@dataclass(frozen=True, eq=False)
class PowerExponential(Density, Quantiles):
    r"""Power exponential distributions, with tails between Laplace's and a uniform distribution's.

    The density is proportional to :math:`\exp(-|(y - loc) / scale|^{2\, shape} / 2)`, as of Gómez et al. (1998):
    normal for shape 1, Laplace (of twice the scale) for shape 1/2.

    Parameters
    ----------
    loc : array_like, shape (n,)
        Means.
    scale : array_like, shape (n,)
        Scales, from 1e-15 to 1e15; the standard deviation for shape 1.
    shape : array_like, shape (n,)
        Shapes, from 0.1 (heavy tails) to 100 (nearly uniform). Some of the three may be single numbers, for all.

    Raises
    ------
    TypeError
        If a parameter does not hold real numbers.
    ValueError
        If one is not finite or out of range, or if the shapes differ.

    Notes
    -----
    Tempered by T, a density proportional to :math:`p^{1/T}`, such a distribution has `scale` times
    :math:`T^{1/(2\, shape)}` (Widmann et al. 2021, appendix F: their scale is the square of this one).

    There are no closed forms with target kernels: quasi Monte Carlo draws stand for these distributions.

    Examples
    --------
    >>> from kcalib.distributions import PowerExponential
    >>> predictions = PowerExponential([0.0, 1.0], 1.0, [1.0, 4.0])
    >>> predictions.standard_deviation().round(3).tolist()
    [[1.0], [0.612]]
    """

    loc: Array
    scale: Array
    shape: Array

    _uniforms = 1

    def __init__(self, loc: Any, scale: Any, shape: Any) -> None:
        loc, scale, shape = parameters_of(
            loc=real_array(loc, "loc"),
            scale=positive_array(scale, "scale", "a positive scale"),
            shape=real_array(shape, "shape"),
        )
        check_numbers(loc, "loc")
        reject(
            shape,
            (shape < LOWEST_SHAPE) | (shape > HIGHEST_SHAPE),
            lambda at, x: (
                f"`shape{at}` is {x:.6g}, expected one from {LOWEST_SHAPE} to {HIGHEST_SHAPE:.0f}; clip it to these"
            ),
        )
        object.__setattr__(self, "loc", loc)
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "shape", shape)

    @property
    def n(self) -> int:
        return int(self.loc.shape[0])

    @property
    def event_shape(self) -> tuple[int, ...]:
        return ()

    def take(self, rows: Any) -> PowerExponential:
        return self._taken(rows, "loc", "scale", "shape")

    def parameters(self) -> Array:
        """Means, standard deviations and shapes side by side."""
        parts = [self.expected_value(), self.standard_deviation(), self.shape[:, None]]
        return _arrays.namespace(self.loc).concat(parts, axis=1)

    def expected_value(self) -> Array:
        return self.loc[:, None]

    def standard_deviation(self) -> Array:
        inverse = 1 / _arrays.to_host(self.shape)
        gammaln = scipy.special.gammaln
        log_variance = inverse * math.log(2) + gammaln(1.5 * inverse) - gammaln(0.5 * inverse)
        return (self.scale * self._like(np.exp(0.5 * log_variance)))[:, None]

    def sample(self, size: int, *, seed: int = 0) -> Array:
        return self._draws(random_points(self.n, check_size(size), 1, seed))

    def _draws(self, uniforms: np.ndarray) -> Array:
        return self._like(self._inverse_cdf(uniforms[:, :, 0]))

    def _like(self, values: np.ndarray) -> Array:
        return _arrays.like(values, self.loc, dtype=self.loc.dtype)

    def log_density(self, y: Any) -> Array:
        y = _arrays.to_host(events(y, self.loc, self.n, ()))
        scale, shape = _arrays.to_host(self.scale), _arrays.to_host(self.shape)
        k = 0.5 / shape
        constant = np.log(shape) - np.log(scale) - k * math.log(2) - scipy.special.gammaln(k)
        return self._like(constant - self._exponents(y)[1])

    def cdf(self, y: Any) -> np.ndarray:
        y = numbers(y, self.n, (), "cdf")
        z, exponents = self._exponents(y)
        nearer = 0.5 * scipy.special.gammaincc(0.5 / host_column(self.shape, y), exponents)
        return np.where(z < 0, nearer, 1 - nearer)

    def _exponents(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Standardised targets z and |z|^(2 shape) / 2."""
        z = (y - host_column(self.loc, y)) / host_column(self.scale, y)
        with np.errstate(over="ignore"):  # to inf: the density is 0
            return z, 0.5 * np.abs(z) ** (2 * host_column(self.shape, y))

    def quantile(self, probability: Any) -> np.ndarray:
        return self._inverse_cdf(probability_row(probability, ()))

    def _inverse_cdf(self, p: np.ndarray) -> np.ndarray:
        k = np.broadcast_to(0.5 / host_column(self.shape, p), (self.n, p.shape[1]))
        tails = np.broadcast_to(2 * np.minimum(p, 1 - p), k.shape)
        # 1 - tails is exact where it is small.
        t = choose(
            tails < 0.5,
            lambda i: scipy.special.gammainccinv(k[i], tails[i]),
            lambda i: scipy.special.gammaincinv(k[i], 1 - tails[i]),
        )
        z = np.copysign((2 * t) ** k, p - 0.5)
        return host_column(self.loc, p) + host_column(self.scale, p) * z
