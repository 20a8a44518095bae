"""Laplace distributions of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import methods_on_their_gpu
from kcalib._backend.special import brought
from kcalib._pairs.problem import Components
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
from kcalib.distributions._distribution import Density, Family, Quantiles
from kcalib.distributions._quasi import random_points

__all__ = ["Laplace"]


@methods_on_their_gpu
@dataclass(frozen=True, eq=False)
class Laplace(Family, Density, Quantiles):
    r"""Laplace distributions, with density :math:`\exp(-|y - loc| / scale) / (2\, scale)`.

    Parameters
    ----------
    loc : array_like, shape (n,)
        Medians.
    scale : array_like, shape (n,)
        Scales, from 1e-15 to 1e15; the standard deviation is this times the root of 2. One of the two may be a
        single number, for all.

    Raises
    ------
    TypeError
        If a parameter does not hold real numbers.
    ValueError
        If one is not finite or out of range, or if the shapes differ.

    Examples
    --------
    >>> from kcalib.distributions import Laplace
    >>> predictions = Laplace([0.0, 1.0], [1.0, 2.0])
    >>> predictions.quantile([0.1, 0.5]).round(3).tolist()
    [[-1.609, 0.0], [-2.219, 1.0]]
    """

    loc: Array
    scale: Array

    _uniforms = 1

    def __init__(self, loc: Any, scale: Any) -> None:
        loc, scale = parameters_of(loc=real_array(loc, "loc"), scale=positive_array(scale, "scale", "a positive scale"))
        check_numbers(loc, "loc")
        object.__setattr__(self, "loc", loc)
        object.__setattr__(self, "scale", scale)

    def components(self) -> Components:
        xp = arrays.namespace(self.loc)
        return Components(
            "laplace", xp.ones_like(self.loc)[:, None], self.loc[:, None, None], self.scale[:, None, None]
        )

    def parameters(self) -> Array:
        """Medians and scales side by side."""
        return arrays.namespace(self.loc).stack([self.loc, self.scale], axis=1)

    def wasserstein_points(self) -> Array:
        """Medians and standard deviations: W2 of two is the distance of these (Widmann et al. 2021, appendix D.2)."""
        return arrays.namespace(self.loc).concat([self.expected_value(), self.standard_deviation()], axis=1)

    def expected_value(self) -> Array:
        return self.loc[:, None]

    def standard_deviation(self) -> Array:
        return self.scale[:, None] * math.sqrt(2)

    def sample(self, size: int, *, seed: int = 0) -> Array:
        return self._draws(random_points(self.n, check_size(size), 1, seed))

    def _draws(self, uniforms: Array) -> Array:
        draws = self._inverse_cdf(brought(uniforms, self.loc)[:, :, 0])
        return arrays.like(draws, self.loc, dtype=self.loc.dtype)

    def log_density(self, y: Any) -> Array:
        xp = arrays.namespace(self.loc)
        y = events(y, self.loc, self.n, ())
        return -xp.abs(y - self.loc) / self.scale - xp.log(2 * self.scale)

    def cdf(self, y: Any) -> Array:
        return self._tails(numbers(y, self.loc, self.n, (), "cdf"))[0]

    def _tails(self, y: Array) -> tuple[Array, Array]:
        """P(Z <= y) and P(Z > y), both to relative accuracy."""
        xp, z = arrays.namespace(y), (y - column_for(self.loc, y)) / column_for(self.scale, y)
        nearer = 0.5 * xp.exp(-xp.abs(z))
        return xp.where(z < 0, nearer, 1 - nearer), xp.where(z < 0, 1 - nearer, nearer)

    def quantile(self, probability: Any) -> Array:
        return self._inverse_cdf(probability_row(probability, self.loc, ()))

    def _inverse_cdf(self, p: Array) -> Array:
        xp = arrays.namespace(p)
        z = xp.log(2 * xp.minimum(p, 1 - p))
        return column_for(self.loc, p) + column_for(self.scale, p) * xp.where(p < 0.5, z, -z)
