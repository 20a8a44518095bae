"""Normal distributions of vectors whose entries depend on each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._inputs import reject
from kcalib.distributions._checks import LARGEST, check_size, events, read_only, real_array
from kcalib.distributions._distribution import Components, Density

__all__ = ["MultivariateNormal"]


@dataclass(frozen=True, eq=False)
class MultivariateNormal(Density):
    r"""Normal distributions of vectors, with covariances.

    Parameters
    ----------
    mean : array_like, shape (n, d)
        Means.
    cov : array_like, shape (n, d, d) or (d, d), optional
        Covariance matrices, or one for all: symmetric within 1e-6 of the largest entry (the symmetric part is used)
        and positive definite.
    scale_tril : array_like, shape (n, d, d) or (d, d), optional
        Their Cholesky factors instead: lower triangular with a positive diagonal. Exactly one of the two is given.

    Raises
    ------
    TypeError
        If a parameter does not hold real numbers, or if not exactly one of `cov` and `scale_tril` is given.
    ValueError
        If one is not finite or out of range, if the shapes do not fit, or if a matrix is not symmetric and positive
        definite; the message has its index and its smallest eigenvalue.

    See Also
    --------
    Normal : For vectors with independent entries; the closed forms cost O(d) instead of O(d^3).

    Notes
    -----
    Memory: both the covariances and their factors are kept, 16 n d^2 bytes. The 2-Wasserstein distance has no points
    here: it is not a Euclidean distance for d >= 2.

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
            matrices = _matrices(cov, "cov", tuple(mean.shape))
            matrices, factors = _factorised(matrices)
        else:
            factors = _checked_factors(_matrices(scale_tril, "scale_tril", tuple(mean.shape)))
            matrices = factors @ factors.swapaxes(-1, -2)
        n, d = mean.shape
        for name, array in (("cov", matrices), ("scale_tril", factors)):
            array = np.broadcast_to(array, (n, d, d)) if array.ndim == 2 else array
            array = _arrays.like(np.ascontiguousarray(array), mean, dtype=mean.dtype)
            object.__setattr__(self, name, read_only(array))
        object.__setattr__(self, "mean", read_only(mean))

    @property
    def n(self) -> int:
        return int(self.mean.shape[0])

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (int(self.mean.shape[1]),)

    @property
    def _uniforms(self) -> int:  # type: ignore[override]
        return self.n_dims

    def take(self, rows: Any) -> MultivariateNormal:
        return self._taken(rows, "mean", "cov", "scale_tril")

    def components(self) -> Components:
        xp = _arrays.namespace(self.mean)
        weights = xp.ones_like(self.mean[:, :1])
        return Components("normal_full", weights, self.mean[:, None, :], self.cov[:, None, :, :])

    def parameters(self) -> Array:
        """Means, and lower triangles of the covariances, row by row.

        Off the diagonal times the root of 2, so that distances of covariances are those of Frobenius' norm.
        """
        columns = [self.mean]
        for i in range(self.n_dims):
            columns += [self.cov[:, i, :i] * math.sqrt(2), self.cov[:, i, i : i + 1]]
        return _arrays.namespace(self.mean).concat(columns, axis=1)

    def expected_value(self) -> Array:
        return self.mean

    def standard_deviation(self) -> Array:
        xp = _arrays.namespace(self.mean)
        return xp.stack([xp.sqrt(self.cov[:, i, i]) for i in range(self.n_dims)], axis=1)

    def sample(self, size: int, *, seed: int = 0) -> Array:
        return self._scaled(np.random.default_rng(seed).standard_normal((self.n, check_size(size), self.n_dims)))

    def _draws(self, uniforms: np.ndarray) -> Array:
        return self._scaled(scipy.special.ndtri(uniforms))

    def _scaled(self, z: np.ndarray) -> Array:
        xp = _arrays.namespace(self.mean)
        z = _arrays.like(z, self.mean, dtype=self.mean.dtype)
        return self.mean[:, None, :] + xp.matmul(z, xp.matrix_transpose(self.scale_tril))

    def log_density(self, y: Any) -> Array:
        xp, factors = _arrays.namespace(self.mean), self.scale_tril
        centred = events(y, self.mean, self.n, self.event_shape) - self.mean
        solved: list[Array] = []
        total: Any = -0.5 * math.log(2 * math.pi) * self.n_dims
        for i in range(self.n_dims):  # forward substitution
            rest = centred[:, i]
            for j, earlier in enumerate(solved):
                rest = rest - factors[:, i, j] * earlier
            solved.append(rest / factors[:, i, i])
            total = total - 0.5 * solved[-1] ** 2 - xp.log(factors[:, i, i])
        return total


def _matrices(value: Any, name: str, mean_shape: tuple[int, ...]) -> np.ndarray:
    """Matrices of shape (n, d, d), or (d, d) for all, on the host."""
    n, d = mean_shape
    array = _arrays.to_host(real_array(value, name)).astype(np.float64, copy=False)
    if array.shape not in ((n, d, d), (d, d)):
        remedy = (
            "; for variances of independent entries use Normal(mean, numpy.sqrt(variances)) with vectors"
            if array.shape == (n, d)
            else ""
        )
        raise ValueError(f"`{name}` has shape {array.shape}, expected ({n}, {d}, {d}), or ({d}, {d}) for all{remedy}")
    return array


def _factorised(cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The symmetric parts and their Cholesky factors."""
    largest = np.max(np.abs(cov), axis=(-2, -1), keepdims=True)
    asymmetry = np.abs(cov - cov.swapaxes(-1, -2))
    reject(
        cov,
        asymmetry > 1e-6 * largest,
        lambda at, x: (
            f"`cov{at}` is {x:.9g} and differs from the entry across the diagonal, expected symmetric matrices; "
            "symmetrise them by (C + C^T) / 2"
        ),
    )
    cov = (cov + cov.swapaxes(-1, -2)) / 2
    eigenvalues = np.linalg.eigvalsh(cov)
    smallest, limit = eigenvalues[..., 0], np.maximum(1e-15 * eigenvalues[..., -1], LARGEST**-2)
    remedy = "expected a positive definite matrix; add a small multiple of the identity, or mend the prediction"
    if np.any(smallest <= limit):
        index = _arrays.subscript(np.argwhere(smallest <= limit)[0]) if cov.ndim == 3 else ""
        value = smallest[smallest <= limit].flat[0]
        raise ValueError(f"`cov{index}` has the smallest eigenvalue {value:.6g}, {remedy}")
    try:
        return cov, np.linalg.cholesky(cov)
    except np.linalg.LinAlgError:  # within rounding of a singular matrix
        worst = np.argmin(smallest / eigenvalues[..., -1])
        index = f"[{worst}]" if cov.ndim == 3 else ""
        raise ValueError(f"`cov{index}` has the smallest eigenvalue {smallest.flat[worst]:.6g}, {remedy}") from None


def _checked_factors(factors: np.ndarray) -> np.ndarray:
    d = factors.shape[-1]
    upper = np.triu(np.ones((d, d), dtype=bool), 1)
    reject(
        factors,
        (factors != 0) & upper,
        lambda at, x: f"`scale_tril{at}` is {x:.6g}, expected 0 above the diagonal; for covariance matrices pass cov=",
    )
    reject(
        factors,
        (factors < 1 / LARGEST) & np.eye(d, dtype=bool),
        lambda at, x: (
            f"`scale_tril{at}` is {x:.6g}, expected a positive number on the diagonal, at least {1 / LARGEST:.0e}; "
            "change the signs of the column, or clip it"
        ),
    )
    return factors
