"""Power exponential (generalised normal) distributions of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import special
from kcalib._input.checks import reject
from kcalib.distributions._checks import positive_array, real_array
from kcalib.distributions._distribution import Density, Univariate, choose

__all__ = ["PowerExponential"]


@dataclass(frozen=True, eq=False)
class PowerExponential(Density, Univariate):
    r"""Power exponential distributions, with tails between those of Laplace and uniform distributions.

    The density is proportional to :math:`\exp(-|(y - loc) / scale|^{2\, shape} / 2)` (Gómez et al. 1998): normal for
    shape 1, Laplace (with twice the scale) for shape 1/2.

    Parameters
    ----------
    loc : array_like, shape (n,)
        Means.
    scale : array_like, shape (n,)
        Scales, from 1e-15 to 1e15; the standard deviation for shape 1.
    shape : array_like, shape (n,)
        Shapes, from 0.1 (heavy tails) to 100 (nearly uniform). Up to two of the three may be single numbers.

    Raises
    ------
    TypeError, ValueError
        If a parameter is not finite, real and in its range, or if the shapes differ.

    Notes
    -----
    At temperature T, with a density proportional to :math:`p^{1/T}`, `scale` is multiplied by :math:`T^{1/(2\, shape)}`
    (Widmann et al. 2021, appendix F, whose scale is the square of this one).

    Target kernels have no closed forms: quasi Monte Carlo draws are used.

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

    def __init__(self, loc: Any, scale: Any, shape: Any) -> None:
        self._set(
            loc=real_array(loc, "loc"),
            scale=positive_array(scale, "scale", "a positive scale"),
            shape=real_array(shape, "shape"),
        )
        reject(
            self.shape,
            (self.shape < 0.1) | (self.shape > 100),
            lambda at, x: f"`shape{at}` is {x}, expected one from 0.1 to 100; clip it to these",
        )

    def parameters(self) -> Array:
        """Return means, standard deviations and shapes side by side."""
        columns = [self.expected_value(), self.standard_deviation(), self.shape[:, None]]
        return arrays.namespace(self.loc).concat(columns, axis=1)

    def expected_value(self) -> Array:
        return self.loc[:, None]

    def standard_deviation(self) -> Array:
        inverse = 1 / arrays.to_compute_device(self.shape)
        xp, gammaln = arrays.namespace(inverse), special(inverse).gammaln
        log_variance = inverse * math.log(2) + gammaln(1.5 * inverse) - gammaln(0.5 * inverse)
        return (self.scale * self._like(xp.exp(0.5 * log_variance)))[:, None]

    def _log_density(self, y: Array) -> Array:
        xp, (_, scale, shape) = arrays.namespace(y), self._columns(y)
        k = 0.5 / shape
        constant = xp.log(shape) - xp.log(scale) - k * math.log(2) - special(k).gammaln(k)
        return constant - self._exponents(y)[1]

    def _cdf(self, y: Array) -> Array:
        z, exponents = self._exponents(y)
        nearer = 0.5 * special(y).gammaincc(0.5 / self._columns(y)[2], exponents)
        return arrays.namespace(y).where(z < 0, nearer, 1 - nearer)

    def _exponents(self, y: Array) -> tuple[Array, Array]:
        """Return standardised targets z and |z|^(2 shape) / 2."""
        loc, scale, shape = self._columns(y)
        z = (y - loc) / scale
        with np.errstate(over="ignore"):  # to inf: the density is 0
            return z, 0.5 * arrays.namespace(y).abs(z) ** (2 * shape)

    def _inverse_cdf(self, p: Array) -> Array:
        xp, functions, (loc, scale, shape) = arrays.namespace(p), special(p), self._columns(p)
        k = xp.broadcast_to(0.5 / shape, (self.n, p.shape[1]))
        tails = xp.broadcast_to(2 * xp.minimum(p, 1 - p), k.shape)
        # 1 - tails is exact where it is small.
        t = choose(
            tails < 0.5,
            lambda i: functions.gammainccinv(k[i], tails[i]),
            lambda i: functions.gammaincinv(k[i], 1 - tails[i]),
        )
        z = xp.copysign((2 * t) ** k, p - 0.5)
        return loc + scale * z
