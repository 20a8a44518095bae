"""The limit law that `exact` takes beyond its draws, from 2000 events on, beside brute force for distributions.

There are 25 distinct predictions, so that the statistic of a draw is one of sums over these.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from kcalib._input.forecasts import prepare
from kcalib.distributions import Normal, Poisson
from kcalib.estimators.null_moments import effective_events
from kcalib.estimators.skce import PairOptions
from kcalib.inference.conditional_spectrum import conditional
from kcalib.inference.spectrum import limit_law
from kcalib.inference.task import Task
from kcalib.kernels import Exponential, Gaussian

KINDS, EACH = 25, 100
WIDTH = 1.5  # bandwidth of both kernels


def kernels(prediction) -> tuple[np.ndarray, PairOptions]:
    """The kernel's matrix between the distinct predictions, and both kernels as options."""
    points = prediction.take(np.arange(0, KINDS * EACH, EACH)).parameters()
    distances = np.sqrt(np.sum((points[:, None] - points) ** 2, axis=-1))
    kernel = Exponential(bandwidth=WIDTH, metric="wasserstein")
    if isinstance(prediction, Poisson):
        quantiles = scipy.stats.poisson(points[:, :1]).ppf((np.arange(128) + 0.5) / 128)
        distances = np.sqrt(np.mean((quantiles[:, None] - quantiles) ** 2, axis=-1))
    return np.exp(-distances / WIDTH), PairOptions(kernel, Gaussian(bandwidth=WIDTH), threads=1)


def normal_totals(mean: np.ndarray, deviation: np.ndarray, k: np.ndarray, draws: int) -> np.ndarray:
    """The Gaussian kernel by Gauss and Hermite's rule: cosines and sines, of which expectations are known."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(48)
    v, a = nodes[24:] / WIDTH, np.sqrt(2 * weights[24:] / weights.sum())
    rng, totals = np.random.default_rng(1), []
    damped = np.exp(-((v * deviation[:, None]) ** 2) / 2)
    expected = np.concatenate([damped * np.cos(mean[:, None] * v), damped * np.sin(mean[:, None] * v)], axis=1)
    a = np.tile(a, 2)
    for _ in range(draws):
        y = mean[:, None] + deviation[:, None] * rng.normal(size=(KINDS, EACH))
        phases = y[:, :, None] * v
        features = (np.concatenate([np.cos(phases), np.sin(phases)], axis=2) - expected[:, None, :]) * a
        sums = features.sum(axis=1)
        totals.append(np.sum(k * (sums @ sums.T)) - np.sum(features**2))
    return np.array(totals)


def poisson_totals(rates: np.ndarray, k: np.ndarray, draws: int) -> np.ndarray:
    counts = np.arange(40)
    p = scipy.stats.poisson(rates[:, None]).pmf(counts)
    p /= p.sum(axis=1, keepdims=True)
    target = np.exp(-((counts[:, None] - counts) ** 2) / (2 * WIDTH**2))
    means = p @ target
    own = 1 - 2 * means + np.sum(means * p, axis=1)[:, None]  # of each count
    values, vectors = np.linalg.eigh(k)
    root = vectors * np.sqrt(np.maximum(values, 0))
    inner, axes = np.linalg.eigh(target)
    other = axes * np.sqrt(np.maximum(inner, 0))
    rng, totals = np.random.default_rng(1), []
    for _ in range(draws // 1000):
        seen = np.stack([rng.multinomial(EACH, one, size=1000) for one in p], axis=1)  # draws, kinds, counts
        sums = np.einsum("ka,dkc->dac", root, (seen - EACH * p) @ other)
        totals.append(np.sum(sums**2, axis=(1, 2)) - np.einsum("dkc,kc->d", seen, own))
    return np.concatenate(totals)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal", "Poisson"])
def test_tails_of_the_limit_law_are_those_of_brute_force(name):
    rng = np.random.default_rng(4)
    if name == "normal":
        mean, deviation = rng.normal(size=KINDS), rng.uniform(0.8, 1.2, size=KINDS)
        prediction = Normal(np.repeat(mean, EACH), np.repeat(deviation, EACH))
        k, options = kernels(prediction)
        totals = normal_totals(mean, deviation, k, 15_000)
    else:
        rates = rng.uniform(3, 8, size=KINDS)
        prediction = Poisson(np.repeat(rates, EACH))
        k, options = kernels(prediction)
        totals = poisson_totals(rates, k, 200_000)
    n = KINDS * EACH
    task = Task(prepare(np.ones(n), prediction), options)
    assert 1000 < effective_events(task.data, task.packed) < 2500  # about as few as `exact` takes it for
    drawn = np.sort(totals / (n - 1))[::-1]
    law = limit_law(conditional(task)[0], float(drawn[0]))
    assert np.mean(drawn**2) == pytest.approx(law.var, rel=0.1)
    for level in (1e-1, 1e-2, 1e-3, 1e-4):
        if level * len(drawn) >= 20:
            ratio = law.sf(float(drawn[int(level * len(drawn))]) + law.mean) / level
            noise = 4 / np.sqrt(level * len(drawn))
            assert 1 / 1.2 - noise < ratio < 1.2 + noise, (level, ratio)
