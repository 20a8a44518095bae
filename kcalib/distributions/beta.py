"""Beta distributions of numbers from 0 to 1, and Dirichlet distributions of probability vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import betainccinv, special, to_device_of
from kcalib.distributions._checks import check_size, positive_array, read_only
from kcalib.distributions._distribution import Density, Univariate, choose
from kcalib.distributions._saddle_point import log_dirichlet

__all__ = ["Beta"]


@dataclass(frozen=True, eq=False)
class Beta(Density, Univariate):
    r"""Beta distributions, with density proportional to :math:`y^{a - 1} (1 - y)^{b - 1}` on [0, 1].

    Parameters
    ----------
    a, b : array_like, shape (n,)
        Positive shape parameters, from 1e-15 to 1e15. One of the two may be a single number.

    Raises
    ------
    TypeError, ValueError
        If a parameter is not finite, real and in its range, or if the shapes differ.

    See Also
    --------
    Dirichlet : For probability vectors.

    Notes
    -----
    At 0 and 1 log densities are infinite where the density is 0 or infinite.

    Target kernels have no closed forms: quasi Monte Carlo draws are used.

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


@dataclass(frozen=True, eq=False)
class Dirichlet(Density):
    r"""Dirichlet distributions, with density proportional to :math:`\prod_i y_i^{\alpha_i - 1}` on the simplex.

    Parameters
    ----------
    alpha : array_like, shape (n, d)
        Positive concentrations, from 1e-15 to 1e15, of d >= 2 entries.

    Raises
    ------
    TypeError, ValueError
        If the concentrations are not finite, real and in their range, or if the shape is not (n, d).

    See Also
    --------
    Beta : The distribution of the first of two entries.

    Notes
    -----
    The density is that of the first d - 1 entries; on the faces of the simplex its logarithm is infinite where the
    density is 0 or infinite.

    Target kernels have no closed forms: quasi Monte Carlo draws are used. Entries are drawn one after another, each as
    a Beta-distributed share of the remainder.

    Examples
    --------
    >>> from kcalib.distributions import Dirichlet
    >>> Dirichlet([[1.0, 1.0, 2.0], [10.0, 5.0, 5.0]]).expected_value().tolist()
    [[0.25, 0.25, 0.5], [0.5, 0.25, 0.25]]
    """

    alpha: Array

    support = "simplex"

    def __init__(self, alpha: Any) -> None:
        alpha = positive_array(alpha, "alpha", "a positive concentration")
        if alpha.ndim != 2 or alpha.shape[1] < 2:
            raise ValueError(f"`alpha` has shape {tuple(alpha.shape)}, expected (n, d) with d >= 2")
        self._set_fields(alpha=read_only(alpha))

    @property
    def _n_uniforms(self) -> int:  # type: ignore[override]
        return self.n_dims - 1

    def expected_value(self) -> Array:
        return self.alpha / arrays.namespace(self.alpha).sum(self.alpha, axis=1, keepdims=True)

    def standard_deviation(self) -> Array:
        xp = arrays.namespace(self.alpha)
        total = xp.sum(self.alpha, axis=1, keepdims=True)
        mean = self.alpha / total
        return xp.sqrt(mean * ((total - self.alpha) / total) / (total + 1))

    def _draw_from(self, uniforms: Array) -> Array:
        alpha, uniforms = arrays.to_compute_device(self.alpha), to_device_of(uniforms, self.alpha)
        xp = arrays.namespace(alpha)
        tails = xp.cumsum(alpha[:, ::-1], axis=1)[:, ::-1]  # of an entry and the following ones
        draws, remainder = xp.empty((*uniforms.shape[:2], self.n_dims)), xp.ones(uniforms.shape[:2])
        for i in range(self.n_dims - 1):
            share, rest = _draw_shares(alpha[:, i : i + 1], tails[:, i + 1 : i + 2], uniforms[:, :, i])
            draws[:, :, i] = remainder * share
            remainder = remainder * rest
        draws[:, :, -1] = remainder
        return self._like(draws)

    def _log_density(self, y: Array) -> Array:
        shares = y / arrays.namespace(y).sum(y, axis=1, keepdims=True)
        return log_dirichlet(arrays.to_compute_device(self.alpha), shares)


def _draw_shares(first: Array, second: Array, u: Array) -> tuple[Array, Array]:
    """Return quantiles of a Beta distribution, and 1 minus these, both with small relative errors."""
    xp = arrays.namespace(u)
    first, second = xp.broadcast_to(first, u.shape), xp.broadcast_to(second, u.shape)
    share = special(u).betaincinv(first, second, u)
    rest = choose(
        share < 0.9,
        lambda i: 1 - share[i],
        lambda i: betainccinv(second[i], first[i], u[i]),
    )
    return share, rest
