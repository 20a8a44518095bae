"""Predicted distributions as finite sums over grids: what the tests of `kcalib.distributions` problems compare with.

Nothing of kcalib's formulas is in here: expectations are sums over nodes, distances and matrices literal loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from kcalib.distributions import (
    Distribution,
    Ensemble,
    Laplace,
    Mixture,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    Samples,
)

N = 6
RNG = np.random.default_rng(7)
MEAN, STD = RNG.normal(size=N), RNG.uniform(0.5, 1.5, size=N)
MEANS, STDS = RNG.normal(size=(N, 2)), RNG.uniform(0.5, 1.5, size=(N, 2))
ROOTS = RNG.normal(size=(N, 2, 2))
COVARIANCES = ROOTS @ ROOTS.swapaxes(1, 2) + 0.3 * np.eye(2)
ENSEMBLE = RNG.normal(size=(N, 5)) + MEAN[:, None]
VECTORS = RNG.normal(size=(N, 3, 2))
RATES, DISPERSIONS = np.exp(MEAN), np.full(N, 0.4)


@dataclass(frozen=True, eq=False)
class AtLeastZero(Distribution):
    """A user's own family: normal laws censored at 0, which say nothing of the probability of 0."""

    loc: np.ndarray

    event_shape = ()

    @property
    def n(self):
        return len(self.loc)

    def take(self, rows):
        return AtLeastZero(self.loc[rows])

    def sample(self, size, *, seed=0):
        return np.maximum(self.loc[:, None] + np.random.default_rng(seed).normal(size=(self.n, size)), 0)

    def cdf(self, y):
        return np.where(y < 0, 0, special.ndtr(y - (self.loc if y.ndim == 1 else self.loc[:, None])))

    def quantile(self, levels):
        return np.maximum(self.loc[:, None] + special.ndtri(levels), 0)


Nodes = tuple[np.ndarray, np.ndarray]  # points, shape (count, d), and their weights


def on_a_line(density: Callable[[np.ndarray], np.ndarray], step: float = 0.02) -> Nodes:
    """The trapezoidal rule: exact to rounding for normal densities and smooth kernels."""
    grid = np.arange(-16, 16 + step / 2, step)
    return grid[:, None], density(grid) * step


def in_the_plane(mean: np.ndarray, covariance: np.ndarray, count: int = 24) -> Nodes:
    """Gauss-Hermite nodes of a normal distribution."""
    x, w = np.polynomial.hermite_e.hermegauss(count)
    grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    return mean + grid @ np.linalg.cholesky(covariance).T, np.outer(w, w).ravel() / (2 * np.pi)


def counted(pmf: Callable[[np.ndarray], np.ndarray]) -> Nodes:
    counts = np.arange(150)
    return counts[:, None].astype(float), pmf(counts)


# Each family: predictions, the nodes of every one of them, and the relative accuracy of the nodes' sums.
FAMILIES: dict[str, tuple[Distribution, list[Nodes], float]] = {
    "normal": (Normal(MEAN, STD), [on_a_line(stats.norm(m, s).pdf, 0.05) for m, s in zip(MEAN, STD)], 1e-11),
    "normal of vectors": (Normal(MEANS, STDS), [in_the_plane(m, np.diag(s**2)) for m, s in zip(MEANS, STDS)], 1e-5),
    "full covariances": (
        MultivariateNormal(MEANS, COVARIANCES),
        [in_the_plane(m, c) for m, c in zip(MEANS, COVARIANCES)],
        1e-4,
    ),
    # Kinks of density and kernel: an error of about step^2 / 12 times the jumps of the slope.
    "laplace": (Laplace(MEAN, STD), [on_a_line(stats.laplace(m, s).pdf) for m, s in zip(MEAN, STD)], 1e-3),
    "mixture": (
        Mixture([0.3, 0.7], [Normal(MEAN, STD), Normal(MEAN + 1, 0.7 * STD)]),
        [
            on_a_line(lambda z, m=m, s=s: 0.3 * stats.norm(m, s).pdf(z) + 0.7 * stats.norm(m + 1, 0.7 * s).pdf(z), 0.05)
            for m, s in zip(MEAN, STD)
        ],
        1e-10,
    ),
    "ensemble": (
        Ensemble([Laplace(MEAN, STD), Laplace(-MEAN, STD)]),
        [
            on_a_line(lambda z, m=m, s=s: 0.5 * (stats.laplace(m, s).pdf(z) + stats.laplace(-m, s).pdf(z)))
            for m, s in zip(MEAN, STD)
        ],
        1e-3,
    ),
    "samples": (Samples(ENSEMBLE), [(row[:, None], np.full(5, 0.2)) for row in ENSEMBLE], 1e-11),
    "samples of vectors": (Samples(VECTORS), [(row, np.full(3, 1 / 3)) for row in VECTORS], 1e-11),
    "poisson": (Poisson(RATES), [counted(stats.poisson(r).pmf) for r in RATES], 1e-10),
    "negative binomial": (
        NegativeBinomial(RATES, DISPERSIONS),
        [counted(stats.nbinom(1 / a, 1 / (1 + a * r)).pmf) for r, a in zip(RATES, DISPERSIONS)],
        1e-10,
    ),
}


def targets(name: str) -> np.ndarray:
    """Targets of the right shape, not drawn from the predictions: all terms count."""
    prediction = FAMILIES[name][0]
    y = np.random.default_rng(3).normal(scale=1.5, size=(N, *prediction.event_shape))
    return np.abs(np.round(2 * y)) if prediction.support == "count" else y


def gaussian(bandwidth: float) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda d: np.exp(-(d**2) / (2 * bandwidth**2))


def exponential(bandwidth: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda d: np.exp(-d / bandwidth)


def residual_products(y: np.ndarray, nodes: list[Nodes], ell: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """<delta_{y_i} - P_i, delta_{y_j} - P_j>, a pair at a time."""
    signed = []
    for target, (points, weights) in zip(y.reshape(len(y), -1), nodes, strict=True):
        signed.append((np.concatenate([target[None], points]), np.concatenate([[1.0], -weights])))
    return _products(signed, ell)


def mmd_distances(nodes: list[Nodes], ell: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    f = _products(nodes, ell)
    own = np.diag(f)
    return np.sqrt(np.maximum(own[:, None] + own[None, :] - 2 * f, 0.0))


def _products(measures: list[Nodes], ell: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    n = len(measures)
    out = np.empty((n, n))
    for i, (x, v) in enumerate(measures):
        for j, (z, w) in enumerate(measures):
            distances = np.sqrt(np.sum((x[:, None, :] - z[None, :, :]) ** 2, axis=-1))
            out[i, j] = v @ ell(distances) @ w
    return out


def estimates(h: np.ndarray, weights: np.ndarray | None = None, block_size: int = 2) -> dict[str, float]:
    """All estimators of the SKCE from the matrix of all pairs, by loops."""
    n = len(h)
    w = np.ones(n) if weights is None else weights
    total, pairs, everything, squares = 0.0, 0.0, 0.0, 0.0
    for i in range(n):
        for j in range(n):
            everything += w[i] * w[j] * h[i, j]
            squares += w[i] * w[j]
            if i != j:
                total += w[i] * w[j] * h[i, j]
                pairs += w[i] * w[j]
    blocks = []
    for b in range(n // block_size):
        rows = range(b * block_size, (b + 1) * block_size)
        blocks.append(np.mean([h[i, j] for i in rows for j in rows if i != j]))
    return {"unbiased": total / pairs, "biased": everything / squares, "block": float(np.mean(blocks))}
