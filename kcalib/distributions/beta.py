"""Beta distributions of numbers from 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import methods_on_their_gpu
from kcalib._backend.special import brought, special
from kcalib.distributions._checks import (
    check_numbers,
    check_size,
    check_support,
    column_for,
    events,
    numbers,
    parameters_of,
    positive_array,
    probability_row,
)
from kcalib.distributions._distribution import Density, Family, Quantiles
from kcalib.distributions._saddle_point import log_dirichlet

__all__ = ["Beta"]


@methods_on_their_gpu
@dataclass(frozen=True, eq=False)
class Beta(Family, Density, Quantiles):
    r"""Beta distributions, with density proportional to :math:`y^{a - 1} (1 - y)^{b - 1}` from 0 to 1.

    Parameters
    ----------
    a, b : array_like, shape (n,)
        Positive shapes, from 1e-15 to 1e15. One of the two may be a single number, for all.

    Raises
    ------
    TypeError
        If a parameter does not hold real numbers.
    ValueError
        If one is not finite or out of range, or if the shapes differ.

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
    _uniforms = 1

    def __init__(self, a: Any, b: Any) -> None:
        a, b = parameters_of(a=positive_array(a, "a", "a positive shape"), b=positive_array(b, "b", "a positive shape"))
        check_numbers(a, "a")
        object.__setattr__(self, "a", a)
        object.__setattr__(self, "b", b)

    def parameters(self) -> Array:
        """Means and standard deviations side by side."""
        return arrays.namespace(self.a).concat([self.expected_value(), self.standard_deviation()], axis=1)

    def expected_value(self) -> Array:
        return (self.a / (self.a + self.b))[:, None]

    def standard_deviation(self) -> Array:
        total = self.a + self.b
        variance = (self.a / total) * (self.b / total) / (total + 1)
        return arrays.namespace(self.a).sqrt(variance)[:, None]

    def sample(self, size: int, *, seed: int = 0) -> Array:
        arrays.check_not_cuda(self.a, "independent draws from Beta distributions")
        rng = np.random.default_rng(seed)
        a, b = (arrays.to_host(array)[:, None] for array in (self.a, self.b))
        return self._like(rng.beta(a, b, size=(self.n, check_size(size))))

    def _draws(self, uniforms: Array) -> Array:
        return self._like(self._inverse_cdf(brought(uniforms, self.a)[:, :, 0]))

    def _like(self, values: Array) -> Array:
        return arrays.like(values, self.a, dtype=self.a.dtype)

    def log_density(self, y: Any) -> Array:
        y = arrays.where_computed(events(y, self.a, self.n, ()))
        check_support(y, "unit")
        xp = arrays.namespace(y)
        shapes = xp.stack([arrays.where_computed(self.a), arrays.where_computed(self.b)], axis=1)
        return self._like(log_dirichlet(shapes, xp.stack([y, 1 - y], axis=1)))

    def cdf(self, y: Any) -> Array:
        y = numbers(y, self.a, self.n, (), "cdf")
        inside = arrays.namespace(y).clip(y, 0.0, 1.0)
        return special(y).betainc(column_for(self.a, y), column_for(self.b, y), inside)

    def quantile(self, probability: Any) -> Array:
        return self._inverse_cdf(probability_row(probability, self.a, ()))

    def _inverse_cdf(self, p: Array) -> Array:
        return special(p).betaincinv(column_for(self.a, p), column_for(self.b, p), p)
