"""Normal distributions of numbers, and of vectors with independent entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import special, to_device_of
from kcalib._pairs.problem import Components
from kcalib.distributions._checks import broadcast_parameters, check_size, positive_array, real_array
from kcalib.distributions._distribution import Density, Univariate

__all__ = ["Normal"]


@dataclass(frozen=True, eq=False)
class Normal(Density, Univariate):
    r"""Normal distributions of numbers, or of vectors with independent entries.

    Parameters
    ----------
    mean : array_like, shape (n,) or (n, d)
        Means, with d independent entries for targets that are vectors.
    std : array_like, shape of `mean`
        Standard deviations, from 1e-15 to 1e15. One of the two may be a single number.

    Raises
    ------
    TypeError, ValueError
        If a parameter is not finite, real and in its range, or if the shapes differ.

    See Also
    --------
    MultivariateNormal : Vectors with full covariances.

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
        fields = broadcast_parameters(
            mean=real_array(mean, "mean"), std=positive_array(std, "std", "a positive standard deviation")
        )
        shape = tuple(fields["mean"].shape)
        if len(shape) not in (1, 2) or shape[1:] == (0,):
            raise ValueError(f"`mean` has shape {shape}, expected (n,), or (n, d) for predictions of vectors")
        self._set_fields(**fields)

    def components(self) -> Components:
        xp, shape = arrays.namespace(self.mean), (self.n, 1, self.n_dims)
        mean, std = xp.reshape(self.mean, shape), xp.reshape(self.std, shape)
        return Components("normal", xp.ones_like(mean[:, :, 0]), mean, std * std)

    def wasserstein_points(self) -> Array:
        """Return the `parameters`: W2 is their Euclidean distance (Widmann et al. 2021, appendix D.1)."""
        return self.parameters()

    def expected_value(self) -> Array:
        return arrays.namespace(self.mean).reshape(self.mean, (self.n, self.n_dims))

    def standard_deviation(self) -> Array:
        return arrays.namespace(self.std).reshape(self.std, (self.n, self.n_dims))

    def sample(self, size: int, *, seed: int = 0) -> Array:
        shape = self.n, check_size(size), *self.event_shape
        return self._scale_draws(np.random.default_rng(seed).standard_normal(shape))

    def _draw_from(self, uniforms: Array) -> Array:
        u = to_device_of(uniforms, self.mean)
        return self._scale_draws(special(u).ndtri(u).reshape(*u.shape[:2], *self.event_shape))

    def _scale_draws(self, z: Array) -> Array:
        return self.mean[:, None, ...] + self.std[:, None, ...] * self._like(z)

    def _log_density(self, y: Array) -> Array:
        xp, mean, std = arrays.namespace(y), arrays.to_compute_device(self.mean), arrays.to_compute_device(self.std)
        z = (y - mean) / std
        terms = -0.5 * z * z - xp.log(std) - 0.5 * math.log(2 * math.pi)
        return terms if terms.ndim == 1 else xp.sum(terms, axis=1)

    def _tails(self, y: Array) -> tuple[Array, Array]:
        mean, std = self._columns(y)
        z = (y - mean) / std
        return special(z).ndtr(z), special(z).ndtr(-z)

    def _inverse_cdf(self, p: Array) -> Array:
        mean, std = self._columns(p)
        return mean + std * special(p).ndtri(p)
