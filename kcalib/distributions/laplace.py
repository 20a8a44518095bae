"""Laplace distributions of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs.problem import Components
from kcalib.distributions._checks import positive_array, real_array
from kcalib.distributions._distribution import Density, Univariate

__all__ = ["Laplace"]


@dataclass(frozen=True, eq=False)
class Laplace(Density, Univariate):
    r"""Laplace distributions, with density :math:`\exp(-|y - loc| / scale) / (2\, scale)`.

    Parameters
    ----------
    loc : array_like, shape (n,)
        Medians.
    scale : array_like, shape (n,)
        Scales, from 1e-15 to 1e15; the standard deviation is the scale times the root of 2. One of the two may be a
        single number.

    Raises
    ------
    TypeError, ValueError
        If a parameter is not finite, real and in its range, or if the shapes differ.

    Examples
    --------
    >>> from kcalib.distributions import Laplace
    >>> predictions = Laplace([0.0, 1.0], [1.0, 2.0])
    >>> predictions.quantile([0.1, 0.5]).round(3).tolist()
    [[-1.609, 0.0], [-2.219, 1.0]]
    """

    loc: Array
    scale: Array

    def __init__(self, loc: Any, scale: Any) -> None:
        self._set(loc=real_array(loc, "loc"), scale=positive_array(scale, "scale", "a positive scale"))

    def components(self) -> Components:
        xp = arrays.namespace(self.loc)
        return Components(
            "laplace", xp.ones_like(self.loc)[:, None], self.loc[:, None, None], self.scale[:, None, None]
        )

    def parameters(self) -> Array:
        """Return medians and scales side by side."""
        return arrays.namespace(self.loc).stack([self.loc, self.scale], axis=1)

    def wasserstein_points(self) -> Array:
        """Return medians and standard deviations: W2 is their distance (Widmann et al. 2021, appendix D.2)."""
        return arrays.namespace(self.loc).concat([self.expected_value(), self.standard_deviation()], axis=1)

    def expected_value(self) -> Array:
        return self.loc[:, None]

    def standard_deviation(self) -> Array:
        return self.scale[:, None] * math.sqrt(2)

    def _log_density(self, y: Array) -> Array:
        xp, (loc, scale) = arrays.namespace(y), self._columns(y)
        return -xp.abs(y - loc) / scale - xp.log(2 * scale)

    def _tails(self, y: Array) -> tuple[Array, Array]:
        xp, (loc, scale) = arrays.namespace(y), self._columns(y)
        z = (y - loc) / scale
        nearer = 0.5 * xp.exp(-xp.abs(z))
        return xp.where(z < 0, nearer, 1 - nearer), xp.where(z < 0, 1 - nearer, nearer)

    def _inverse_cdf(self, p: Array) -> Array:
        xp, (loc, scale) = arrays.namespace(p), self._columns(p)
        z = xp.log(2 * xp.minimum(p, 1 - p))
        return loc + scale * xp.where(p < 0.5, z, -z)
