"""Beta distributions of numbers from 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import special
from kcalib.distributions._checks import check_size, positive_array
from kcalib.distributions._distribution import Density, Univariate
from kcalib.distributions._saddle_point import log_dirichlet

__all__ = ["Beta"]


@dataclass(frozen=True, eq=False)
class Beta(Density, Univariate):
    r"""Beta distributions, with density proportional to :math:`y^{a - 1} (1 - y)^{b - 1}` from 0 to 1.

    Parameters
    ----------
    a, b : array_like, shape (n,)
        Positive shapes, from 1e-15 to 1e15. One of the two may be a single number, for all.

    Raises
    ------
    TypeError, ValueError
        If a parameter does not hold finite real numbers in its range, or if the shapes differ.

    See Also
    --------
    Dirichlet : For probability vectors.

    Notes
    -----
    At 0 and 1 log densities are infinite where the density, or its inverse, is.

    There are no closed forms with target kernels: quasi Monte Carlo draws stand for these distributions.

    Examples
    --------
    >>> from kcalib.distributions import Beta
    >>> Beta([1.0, 2.0], [1.0, 6.0]).expected_value().tolist()
    [[0.5], [0.25]]
    """

    a: Array
    b: Array

    support = "unit"

    def __init__(self, a: Any, b: Any) -> None:
        self._set(a=positive_array(a, "a", "a positive shape"), b=positive_array(b, "b", "a positive shape"))

    def expected_value(self) -> Array:
        return (self.a / (self.a + self.b))[:, None]

    def standard_deviation(self) -> Array:
        total = self.a + self.b
        variance = (self.a / total) * (self.b / total) / (total + 1)
        return arrays.namespace(self.a).sqrt(variance)[:, None]

    def sample(self, size: int, *, seed: int = 0) -> Array:
        arrays.check_not_cuda(self.a, "independent draws from Beta distributions")
        a, b = (arrays.to_host(array)[:, None] for array in (self.a, self.b))
        return self._like(np.random.default_rng(seed).beta(a, b, size=(self.n, check_size(size))))

    def _log_density(self, y: Array) -> Array:
        xp = arrays.namespace(y)
        return log_dirichlet(xp.stack(self._columns(y), axis=1), xp.stack([y, 1 - y], axis=1))

    def _cdf(self, y: Array) -> Array:
        return special(y).betainc(*self._columns(y), arrays.namespace(y).clip(y, 0.0, 1.0))

    def _inverse_cdf(self, p: Array) -> Array:
        return special(p).betaincinv(*self._columns(p), p)
