"""Random features of Wasserstein distances of counts: variances of differences are the distances, to rounding."""

from __future__ import annotations

import numpy as np
import pytest

import kcalib
from kcalib._packing.quantile_paths import CELLS, POOL, STEPS, QuantilePaths
from kcalib.distributions import NegativeBinomial, Poisson, _staircases, wasserstein_distance
from kcalib.distributions._staircases import is_long, staircases_of, window_of
from kcalib.kernels import Exponential, GammaExponential, Gaussian, Matern, RationalQuadratic
from kcalib.streaming import ForecastState

PAIRS = {
    "moderate": (Poisson([1.2, 3.0, 10.0, 30.0]), Poisson([3.4, 3.1, 12.0, 30.01]), 2.0),
    "rare": (Poisson([1e-3, 1e-5, 1e-3]), Poisson([2e-3, 1.3e-5, 1.01e-3]), 0.03),
    "large": (Poisson([900.0, 3000.0]), Poisson([1100.0, 3001.0]), 50.0),
    "dispersed": (NegativeBinomial([1.2, 40.0], [0.5, 2.0]), NegativeBinomial([3.4, 60.0], [0.3, 1.0]), 3.0),
}


def variances(paths: QuantilePaths, counts, others) -> np.ndarray:
    """Of xi - xi', by the covariances of Brownian motion at the ends of cells, and of each bridge by itself."""
    window = window_of(counts, others)
    tables = [staircases_of(one, window) for one in (counts, others)]
    one, other = (paths.weights(table[:, 0], table[:, 1:-1]).toarray() for table in tables)
    weight = one - other
    ends = np.arange(CELLS + 1) / CELLS
    top = np.einsum("ni,ij,nj->n", weight[:, : CELLS + 1], np.minimum.outer(ends, ends), weight[:, : CELLS + 1])
    steps = np.arange(STEPS + 1) / STEPS
    bridge = np.minimum.outer(steps, steps) - np.outer(steps, steps)
    within = weight[:, CELLS + 1 :].reshape(-1, POOL, STEPS + 1)
    return top + np.einsum("npi,ij,npj->n", within, bridge, within)


@pytest.mark.parametrize("which", PAIRS)
def test_variances_are_squared_distances(which):
    counts, others, bandwidth = PAIRS[which]
    squares = np.diag(wasserstein_distance(counts, others)) ** 2
    found = np.array(
        [variances(QuantilePaths(Gaussian(bandwidth).terms(), 16, seed), counts, others) for seed in range(8)]
    )
    # Two cells that have the same bridge are as likely to add to a variance as to take from it.
    gaps = (found - squares) / (bandwidth**2 + squares)
    assert np.all(np.median(abs(gaps), axis=0) < 1e-4) and np.all(abs(gaps.mean(axis=0)) < 5e-4)


@pytest.mark.parametrize(
    ("kernel", "value"),
    [
        (Exponential(1.5), lambda d: np.exp(-d / 1.5)),
        pytest.param(Gaussian(1.5), lambda d: np.exp(-(d**2) / 4.5), marks=pytest.mark.grid),
        pytest.param(
            Matern(nu=2.5, bandwidth=1.5),
            lambda d: (1 + np.sqrt(5) * d / 1.5 + 5 * d**2 / 6.75) * np.exp(-np.sqrt(5) * d / 1.5),
            marks=pytest.mark.grid,
        ),
        pytest.param(
            RationalQuadratic(alpha=2.0, bandwidth=1.5), lambda d: (1 + d**2 / 9) ** -2, marks=pytest.mark.grid
        ),
        pytest.param(
            GammaExponential(gamma=1.3, bandwidth=1.5), lambda d: np.exp(-((d / 1.5) ** 1.3)), marks=pytest.mark.grid
        ),
        (
            2 * Gaussian(1.0) * Exponential(2.0) + Exponential(3.0),
            lambda d: 2 * np.exp(-(d**2) / 2 - d / 2) + np.exp(-d / 3),
        ),
    ],
    ids=lambda given: None if callable(given) else type(given).__name__,
)
def test_features_have_the_kernel_for_their_mean(kernel, value):
    counts, others, _ = PAIRS["moderate"]
    distances = np.diag(wasserstein_distance(counts, others))
    found = []
    for seed in range(20):
        paths = QuantilePaths(kernel.terms(), 32, seed)
        apart = (paths.of(counts) - paths.of(others)) @ paths.map.frequencies
        found.append(np.cos(apart) @ paths.map.amplitudes**2)
    error = np.std(found, axis=0, ddof=1) / np.sqrt(20)
    assert np.all(abs(np.mean(found, axis=0) - value(distances)) < 4.5 * error + 1e-4)


def test_states_of_rare_counts_tell_rates_apart():
    """Of rates whose 128 quantiles are all 0; the exact value of samples in memory is within four standard errors."""
    rng = np.random.default_rng(0)
    rate = 10 ** rng.uniform(-3, -1, 500)
    y, prediction = rng.poisson(2 * rate).astype(float), Poisson(rate)
    kernels = {"kernel": Exponential(0.1, metric="wasserstein"), "target_kernel": Gaussian(1.0)}
    result = ForecastState(**kernels).update(y, prediction).skce()
    exact = kcalib.skce(y, prediction, **kernels)
    assert abs(result.value - exact) < 4 * result.features_standard_error
    assert result.prediction_distances == "2-Wasserstein, of all quantiles, along random paths"


def test_quantiles_stand_for_thousands_of_counts(monkeypatch):
    """On the same paths: one in each cell is near the integral of all, in the same rows as others."""
    counts, others = NegativeBinomial([3.0, 900.0, 1200.0], [0.1, 0.01, 0.02]), Poisson([4.0, 1000.0, 1100.0])
    paths = QuantilePaths(Gaussian(100.0).terms(), 64, 0)
    exact = paths.of(counts) - paths.of(others)
    monkeypatch.setattr(_staircases, "MOST", 400)
    assert is_long(counts).tolist() == [False, True, True]
    found = paths.of(counts) - paths.of(others)
    assert np.allclose(found[0], exact[0], rtol=1e-9)
    size = np.sqrt(np.mean(exact**2, axis=1))
    assert np.all(np.sqrt(np.mean((found - exact) ** 2, axis=1))[1:] < 0.02 * size[1:])
    assert not np.allclose(found[1], exact[1], rtol=1e-9)


def test_kernels_without_features_are_refused():
    with pytest.raises(ValueError, match="factor 'gamma_exponential' .* not known to be positive definite"):
        QuantilePaths(GammaExponential(gamma=1.3, bandwidth=1.5, metric="cityblock").terms(), 64, 0).map.n_columns  # noqa: B018


def test_columns_without_memory_are_refused():
    with pytest.raises(MemoryError, match="paths of 67108864 frequencies, .* make the state with fewer `n_columns`"):
        QuantilePaths(Gaussian(1.0).terms(), 2**27, 0).map  # noqa: B018
