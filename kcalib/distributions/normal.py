"""Normal distributions of numbers, and of vectors with independent entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib.distributions._checks import check_rows, check_same_shape, positive_array, real_array
from kcalib.distributions._distribution import Components, Distribution, take_rows

__all__ = ["Normal"]


@dataclass(frozen=True, eq=False)
class Normal(Distribution):
    r"""Normal distributions, one for each sample.

    Parameters
    ----------
    mean : array_like, shape (n,) or (n, d)
        Means; of d independent entries for targets that are vectors.
    std : array_like, shape of `mean`
        Standard deviations, from 1e-15 to 1e15.

    Raises
    ------
    TypeError
        If a parameter does not hold real numbers.
    ValueError
        If one is not finite or out of range, or if the shapes differ.

    Examples
    --------
    >>> from kcalib.distributions import Normal
    >>> Normal([0.0, 1.0], [1.0, 2.0]).n
    2
    """

    mean: Array
    std: Array

    def __init__(self, mean: Any, std: Any) -> None:
        mean, std = real_array(mean, "mean"), positive_array(std, "std", "a positive standard deviation")
        check_rows(mean, "mean")
        check_same_shape(mean, "mean", std, "std")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", _arrays.beside(std, mean))

    @property
    def n(self) -> int:
        return int(self.mean.shape[0])

    @property
    def event_shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.mean.shape[1:])

    def take(self, rows: Any) -> Normal:
        return Normal(take_rows(self.mean, rows), take_rows(self.std, rows))

    def components(self) -> Components:
        xp, shape = _arrays.namespace(self.mean), (self.n, 1, self.n_dims)
        mean, std = xp.reshape(self.mean, shape), xp.reshape(self.std, shape)
        return Components("normal", xp.ones_like(mean[:, :, 0]), mean, std * std)

    def parameters(self) -> Array:
        """Means and standard deviations side by side."""
        xp = _arrays.namespace(self.mean)
        return xp.concat([xp.reshape(a, (self.n, self.n_dims)) for a in (self.mean, self.std)], axis=1)

    def wasserstein_points(self) -> Array:
        return self.parameters()

    def sample(self, size: int, *, seed: int = 0) -> Array:
        rng = np.random.default_rng(seed)
        shape = (self.n, size, *self.event_shape)
        draws = _arrays.like(rng.standard_normal(shape), self.mean, dtype=self.mean.dtype)
        return self.mean[:, None, ...] + self.std[:, None, ...] * draws

    def log_density(self, y: Array) -> Array:
        """Logarithm of the density at one target for each sample, shape (n,)."""
        xp = _arrays.namespace(self.mean)
        r = (y - self.mean) / self.std
        terms = -0.5 * r * r - xp.log(self.std) - 0.5 * math.log(2 * math.pi)
        return terms if terms.ndim == 1 else xp.sum(terms, axis=1)

    def cdf(self, y: Array) -> Array:
        """P(Z <= y), shape (n,), on the host; for numbers only."""
        return scipy.special.ndtr((_arrays.to_host(y) - _arrays.to_host(self.mean)) / _arrays.to_host(self.std))

    def quantile(self, probability: Any) -> np.ndarray:
        """Quantiles, shape (n, number of probabilities), on the host; for numbers only."""
        z = scipy.special.ndtri(np.atleast_1d(np.asarray(probability, dtype=np.float64)))
        return _arrays.to_host(self.mean)[:, None] + _arrays.to_host(self.std)[:, None] * z
