"""Normal distributions of vectors with correlated entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import asarray_on_device_of, special, to_device_of
from kcalib._input.checks import reject
from kcalib._pairs.problem import Components
from kcalib.distributions._checks import LARGEST, check_size, read_only, real_array
from kcalib.distributions._distribution import Density

__all__ = ["MultivariateNormal"]


@dataclass(frozen=True, eq=False)
class MultivariateNormal(Density):
    r"""Normal distributions of vectors, with full covariances.

    Parameters
    ----------
    mean : array_like, shape (n, d)
        Means.
    cov : array_like, shape (n, d, d) or (d, d), optional
        Covariance matrices, or one for all: symmetric within 1e-6 of the largest entry (the symmetric part is used) and
        positive definite, with eigenvalues of the correlations above d times 2.2e-16.
    scale_tril : array_like, shape (n, d, d) or (d, d), optional
        Cholesky factors of the covariance matrices: lower triangular with a positive diagonal. Give exactly one of the
        two.

    Raises
    ------
    TypeError, ValueError
        If a parameter is not finite, real and in its range; if not exactly one of `cov` and `scale_tril` is given; if
        shapes do not match; or if a matrix is not symmetric and positive definite, with its index and the smallest
        eigenvalue of its correlations in the message.

    See Also
    --------
    Normal : For vectors with independent entries; closed forms take O(d) instead of O(d^3).

    Notes
    -----
    Memory: both covariances and factors are kept, 16 n d^2 bytes. The 2-Wasserstein distance is not a Euclidean
    distance between points for d >= 2.

    Examples
    --------
    >>> from kcalib.distributions import MultivariateNormal
    >>> predictions = MultivariateNormal([[0.0, 1.0], [2.0, 3.0]], cov=[[2.0, 1.0], [1.0, 2.0]])
    >>> predictions.log_density([[0.0, 1.0], [0.0, 0.0]]).round(3).tolist()
    [-2.387, -4.721]
    """

    mean: Array
    cov: Array
    scale_tril: Array

    def __init__(self, mean: Any, cov: Any = None, scale_tril: Any = None) -> None:
        mean = real_array(mean, "mean")
        if mean.ndim != 2 or mean.shape[1] == 0:
            raise ValueError(
                f"`mean` has shape {tuple(mean.shape)}, expected (n, d); for numbers use Normal(mean, std)"
            )
        if (cov is None) == (scale_tril is None):
            raise TypeError(
                f"{'neither' if cov is None else 'both'} of `cov` and `scale_tril` given, expected exactly one; for "
                "independent entries use Normal(mean, std) with vectors"
            )
        if scale_tril is None:
            matrices = _matrices(cov, "cov", mean)
            matrices, factors = _factorize(matrices)
        else:
            factors = _check_factors(_matrices(scale_tril, "scale_tril", mean))
            matrices = factors @ factors.swapaxes(-1, -2)
        n, d = mean.shape
        for name, array in (("cov", matrices), ("scale_tril", factors)):
            xp = arrays.namespace(array)
            array = xp.broadcast_to(array, (n, d, d)) if array.ndim == 2 else array
            array = arrays.like(xp.ascontiguousarray(array), mean, dtype=mean.dtype)
            self._set_fields(**{name: read_only(array)})
        self._set_fields(mean=read_only(mean))

    def components(self) -> Components:
        xp = arrays.namespace(self.mean)
        weights = xp.ones_like(self.mean[:, :1])
        return Components("normal_full", weights, self.mean[:, None, :], self.cov[:, None, :, :])

    def parameters(self) -> Array:
        """Return means, and lower triangles of the covariances, row by row.

        Off-diagonal entries are multiplied by the root of 2: distances of covariances are then Frobenius norms.
        """
        columns = [self.mean]
        for i in range(self.n_dims):
            columns += [self.cov[:, i, :i] * math.sqrt(2), self.cov[:, i, i : i + 1]]
        return arrays.namespace(self.mean).concat(columns, axis=1)

    def expected_value(self) -> Array:
        return self.mean

    def standard_deviation(self) -> Array:
        xp = arrays.namespace(self.mean)
        return xp.stack([xp.sqrt(self.cov[:, i, i]) for i in range(self.n_dims)], axis=1)

    def sample(self, size: int, *, seed: int = 0) -> Array:
        shape = self.n, check_size(size), self.n_dims
        return self._scale_draws(np.random.default_rng(seed).standard_normal(shape))

    def _draw_from(self, uniforms: Array) -> Array:
        u = to_device_of(uniforms, self.mean)
        return self._scale_draws(special(u).ndtri(u))

    def _scale_draws(self, z: Array) -> Array:
        xp = arrays.namespace(self.mean)
        return self.mean[:, None, :] + xp.matmul(self._like(z), xp.matrix_transpose(self.scale_tril))

    def _log_density(self, y: Array) -> Array:
        xp, factors = arrays.namespace(y), arrays.to_compute_device(self.scale_tril)
        centred = y - arrays.to_compute_device(self.mean)
        solved: list[Array] = []
        total: Any = -0.5 * math.log(2 * math.pi) * self.n_dims
        for i in range(self.n_dims):  # forward substitution
            rest = centred[:, i]
            for j, earlier in enumerate(solved):
                rest = rest - factors[:, i, j] * earlier
            solved.append(rest / factors[:, i, i])
            total = total - 0.5 * solved[-1] ** 2 - xp.log(factors[:, i, i])
        return total


def _matrices(value: Any, name: str, mean: Array) -> Array:
    """Return matrices of shape (n, d, d), or (d, d) for all, on the compute device of the means."""
    n, d = mean.shape
    array = arrays.to_compute_device(asarray_on_device_of(real_array(value, name), mean), np.float64)
    if tuple(array.shape) not in ((n, d, d), (d, d)):
        remedy = (
            "; for variances of independent entries use Normal(mean, numpy.sqrt(variances)) with vectors"
            if tuple(array.shape) == (n, d)
            else ""
        )
        shape = tuple(array.shape)
        raise ValueError(f"`{name}` has shape {shape}, expected ({n}, {d}, {d}), or ({d}, {d}) for all{remedy}")
    return array


def _factorize(cov: Array) -> tuple[Array, Array]:
    """Return the symmetric parts and their Cholesky factors."""
    xp = arrays.namespace(cov)
    largest = xp.max(xp.abs(cov), axis=(-2, -1), keepdims=True)
    asymmetry = xp.abs(cov - cov.swapaxes(-1, -2))
    reject(
        cov,
        asymmetry > 1e-6 * largest,
        lambda at, x: (
            f"`cov{at}` is {x:.9g} and differs from the entry across the diagonal, expected symmetric matrices; "
            "symmetrise them by (C + C^T) / 2"
        ),
    )
    cov = (cov + cov.swapaxes(-1, -2)) / 2
    d, smallest_variance = cov.shape[-1], LARGEST**-2
    reject(
        cov,
        (cov < smallest_variance) & to_device_of(np.eye(d, dtype=bool), cov),
        lambda at, x: f"`cov{at}` is {x:.6g}, expected a variance of at least {smallest_variance:.0e}; clip it",
    )
    # Relative to the diagonal: units of the entries change neither accuracy nor what is refused.
    deviations = xp.stack([xp.sqrt(cov[..., i, i]) for i in range(d)], axis=-1)
    smallest = xp.linalg.eigvalsh(cov / deviations[..., :, None] / deviations[..., None, :])[..., 0]
    try:
        factors = xp.linalg.cholesky(cov)
        is_definite = arrays.is_host(cov) or bool(xp.all(xp.isfinite(factors)))  # cuSOLVER reports by NaN
    except np.linalg.LinAlgError:
        is_definite = False
    limit = d * float(np.finfo(np.float64).eps)
    reject(
        smallest,
        smallest <= (limit if is_definite else max(limit, float(xp.min(smallest)))),
        lambda at, x: (
            f"`cov{at}` has the smallest eigenvalue {x:.6g} relative to its diagonal, expected a positive definite "
            "matrix; add small multiples of the variances to the diagonal, or correct the prediction"
        ),
    )
    return cov, factors


def _check_factors(factors: Array) -> Array:
    d = factors.shape[-1]
    diagonal = to_device_of(np.eye(d, dtype=bool), factors)
    upper = to_device_of(np.triu(np.ones((d, d), dtype=bool), 1), factors)
    reject(
        factors,
        (factors != 0) & upper,
        lambda at, x: f"`scale_tril{at}` is {x:.6g}, expected 0 above the diagonal; for covariance matrices pass cov=",
    )
    reject(
        factors,
        (factors < 1 / LARGEST) & diagonal,
        lambda at, x: (
            f"`scale_tril{at}` is {x:.6g}, expected a positive number on the diagonal, at least {1 / LARGEST:.0e}; "
            "change the signs of the column, or clip it"
        ),
    )
    return factors
