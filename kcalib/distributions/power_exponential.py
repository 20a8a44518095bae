"""Power exponential (generalised normal) distributions of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import methods_on_their_gpu
from kcalib._backend.special import brought, special
from kcalib._input.checks import reject
from kcalib.distributions._checks import (
    check_numbers,
    check_size,
    column_for,
    events,
    numbers,
    parameters_of,
    positive_array,
    probability_row,
    real_array,
)
from kcalib.distributions._distribution import Density, Family, Quantiles, choose
from kcalib.distributions._quasi import random_points

__all__ = ["PowerExponential"]

LOWEST_SHAPE, HIGHEST_SHAPE = 0.1, 100.0


@methods_on_their_gpu
@dataclass(frozen=True, eq=False)
class PowerExponential(Family, Density, Quantiles):
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

    def parameters(self) -> Array:
        """Means, standard deviations and shapes side by side."""
        parts = [self.expected_value(), self.standard_deviation(), self.shape[:, None]]
        return arrays.namespace(self.loc).concat(parts, axis=1)

    def expected_value(self) -> Array:
        return self.loc[:, None]

    def standard_deviation(self) -> Array:
        inverse = 1 / arrays.where_computed(self.shape)
        xp, gammaln = arrays.namespace(inverse), special(inverse).gammaln
        log_variance = inverse * math.log(2) + gammaln(1.5 * inverse) - gammaln(0.5 * inverse)
        return (self.scale * self._like(xp.exp(0.5 * log_variance)))[:, None]

    def sample(self, size: int, *, seed: int = 0) -> Array:
        return self._draws(random_points(self.n, check_size(size), 1, seed))

    def _draws(self, uniforms: Array) -> Array:
        return self._like(self._inverse_cdf(brought(uniforms, self.loc)[:, :, 0]))

    def _like(self, values: Array) -> Array:
        return arrays.like(values, self.loc, dtype=self.loc.dtype)

    def log_density(self, y: Any) -> Array:
        y = arrays.where_computed(events(y, self.loc, self.n, ()))
        xp, scale, shape = arrays.namespace(y), arrays.where_computed(self.scale), arrays.where_computed(self.shape)
        k = 0.5 / shape
        constant = xp.log(shape) - xp.log(scale) - k * math.log(2) - special(k).gammaln(k)
        return self._like(constant - self._exponents(y)[1])

    def cdf(self, y: Any) -> Array:
        y = numbers(y, self.loc, self.n, (), "cdf")
        z, exponents = self._exponents(y)
        nearer = 0.5 * special(y).gammaincc(0.5 / column_for(self.shape, y), exponents)
        return arrays.namespace(y).where(z < 0, nearer, 1 - nearer)

    def _exponents(self, y: Array) -> tuple[Array, Array]:
        """Standardised targets z and |z|^(2 shape) / 2."""
        z = (y - column_for(self.loc, y)) / column_for(self.scale, y)
        with np.errstate(over="ignore"):  # to inf: the density is 0
            return z, 0.5 * arrays.namespace(y).abs(z) ** (2 * column_for(self.shape, y))

    def quantile(self, probability: Any) -> Array:
        return self._inverse_cdf(probability_row(probability, self.loc, ()))

    def _inverse_cdf(self, p: Array) -> Array:
        xp, functions = arrays.namespace(p), special(p)
        k = xp.broadcast_to(0.5 / column_for(self.shape, p), (self.n, p.shape[1]))
        tails = xp.broadcast_to(2 * xp.minimum(p, 1 - p), k.shape)
        # 1 - tails is exact where it is small.
        t = choose(
            tails < 0.5,
            lambda i: functions.gammainccinv(k[i], tails[i]),
            lambda i: functions.gammaincinv(k[i], 1 - tails[i]),
        )
        z = xp.copysign((2 * t) ** k, p - 0.5)
        return column_for(self.loc, p) + column_for(self.scale, p) * z
