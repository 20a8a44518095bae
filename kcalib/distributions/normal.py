"""Normal distributions of numbers, and of vectors with independent entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import methods_on_their_gpu
from kcalib._backend.special import brought, special
from kcalib._pairs.problem import Components
from kcalib.distributions._checks import (
    check_rows,
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

__all__ = ["Normal"]


@methods_on_their_gpu
@dataclass(frozen=True, eq=False)
class Normal(Family, Density, Quantiles):
    r"""Normal distributions of numbers, or of vectors with independent entries.

    Parameters
    ----------
    mean : array_like, shape (n,) or (n, d)
        Means; of d independent entries for targets that are vectors.
    std : array_like, shape of `mean`
        Standard deviations, from 1e-15 to 1e15. One of the two may be a single number, for all.

    Raises
    ------
    TypeError
        If a parameter does not hold real numbers.
    ValueError
        If one is not finite or out of range, or if the shapes differ.

    See Also
    --------
    MultivariateNormal : With covariances.

    Examples
    --------
    >>> from kcalib.distributions import Normal
    >>> predictions = Normal([0.0, 1.0], [1.0, 2.0])
    >>> predictions.cdf([0.0, 5.0]).round(4).tolist()
    [0.5, 0.9772]
    """

    mean: Array
    std: Array

    def __init__(self, mean: Any, std: Any) -> None:
        mean, std = parameters_of(
            mean=real_array(mean, "mean"), std=positive_array(std, "std", "a positive standard deviation")
        )
        check_rows(mean, "mean")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)

    @property
    def _uniforms(self) -> int:  # type: ignore[override]
        return self.n_dims

    def components(self) -> Components:
        xp, shape = arrays.namespace(self.mean), (self.n, 1, self.n_dims)
        mean, std = xp.reshape(self.mean, shape), xp.reshape(self.std, shape)
        return Components("normal", xp.ones_like(mean[:, :, 0]), mean, std * std)

    def parameters(self) -> Array:
        """Means and standard deviations side by side."""
        return arrays.namespace(self.mean).concat([self.expected_value(), self.standard_deviation()], axis=1)

    def wasserstein_points(self) -> Array:
        """The `parameters`: W2 of two is the distance of these (Widmann et al. 2021, appendix D.1)."""
        return self.parameters()

    def expected_value(self) -> Array:
        return arrays.namespace(self.mean).reshape(self.mean, (self.n, self.n_dims))

    def standard_deviation(self) -> Array:
        return arrays.namespace(self.std).reshape(self.std, (self.n, self.n_dims))

    def sample(self, size: int, *, seed: int = 0) -> Array:
        rng = np.random.default_rng(seed)
        return self._scaled(rng.standard_normal((self.n, check_size(size), *self.event_shape)))

    def _draws(self, uniforms: Array) -> Array:
        u = brought(uniforms, self.mean)
        return self._scaled(special(u).ndtri(u).reshape(*u.shape[:2], *self.event_shape))

    def _scaled(self, z: Array) -> Array:
        return self.mean[:, None, ...] + self.std[:, None, ...] * arrays.like(z, self.mean, dtype=self.mean.dtype)

    def log_density(self, y: Any) -> Array:
        xp = arrays.namespace(self.mean)
        r = (events(y, self.mean, self.n, self.event_shape) - self.mean) / self.std
        terms = -0.5 * r * r - xp.log(self.std) - 0.5 * math.log(2 * math.pi)
        return terms if terms.ndim == 1 else xp.sum(terms, axis=1)

    def cdf(self, y: Any) -> Array:
        return self._tails(numbers(y, self.mean, self.n, self.event_shape, "cdf"))[0]

    def _tails(self, y: Array) -> tuple[Array, Array]:
        """P(Z <= y) and P(Z > y), both to relative accuracy."""
        z = (y - column_for(self.mean, y)) / column_for(self.std, y)
        return special(z).ndtr(z), special(z).ndtr(-z)

    def quantile(self, probability: Any) -> Array:
        return self._inverse_cdf(probability_row(probability, self.mean, self.event_shape))

    def _inverse_cdf(self, p: Array) -> Array:
        z = special(p).ndtri(p)
        return column_for(self.mean, z) + column_for(self.std, z) * z
