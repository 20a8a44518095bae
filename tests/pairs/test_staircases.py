"""Wasserstein distances of counts in the pair engine: on every backend and device, to rounding.

The oracle counts pairs of numbers, sum_{j <= k} (2 - [j = k]) ((s_k - s'_j)_+ + (s'_k - s_j)_+), where the engine
merges lists of steps; distribution functions are scipy's.
"""

from __future__ import annotations

from typing import Any

import emulated_cupy
import numpy as np
import pytest
import scipy.stats

import kcalib
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.backends.cuda import CudaBackend
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.problem import Factor, Mixtures, PairProblem, Side, Term
from kcalib._pairs.reductions import DenseRectangle, sweep_one
from kcalib.distributions import NegativeBinomial, Poisson, wasserstein_distance
from kcalib.distributions import _staircases as staircases
from kcalib.distributions._staircases import FEW, staircases_of, window_of
from kcalib.kernels import MMD, Exponential, Gaussian

LONG = np.longdouble
EMULATED = "cuda-emulated"
BACKENDS = [
    "cpu",
    "array-api",
    pytest.param(EMULATED, marks=pytest.mark.slow),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
TOLERANCE = {"float64": 1e-13, "float32": 1e-4}
WASSERSTEIN = Exponential(bandwidth=1.0, metric="wasserstein")


def literal(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Squared distances, from P(X > k), k = 0, 1, ..., of each."""
    s, t = left.astype(LONG)[:, None], right.astype(LONG)[None]
    found = np.sum(np.abs(s - t), axis=2)
    for gap in range(1, s.shape[2]):
        ahead, behind = slice(gap, None), slice(None, -gap)
        found += 2 * np.sum(np.maximum(s[..., ahead] - t[..., behind], 0), axis=2)
        found += 2 * np.sum(np.maximum(t[..., ahead] - s[..., behind], 0), axis=2)
    return found


def rows_of(n: int, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows as the engine has them, some of them equal, or of one count alone, and all counts from 0 on."""
    first, s = (
        rng.integers(0, 5 if length > FEW else 1, size=(n, 1)),
        -np.sort(-(rng.uniform(size=(n, length)) ** 3), axis=1),
    )
    s[rng.uniform(size=s.shape) < 0.1] = 0
    s = -np.sort(-s, axis=1)
    s[2], s[3], first[4] = 0, 1, first[5]
    s[4] = s[5]
    rows = np.concatenate([first, s, np.zeros((n, 1))], axis=1)
    every = np.ones((n, length + 5))
    for i in range(n):
        every[i, first[i, 0] :] = 0
        every[i, first[i, 0] : first[i, 0] + length] = s[i]
    return rows, every


@pytest.mark.parametrize("length", [1, 11, FEW, FEW + 1])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("backend", BACKENDS)
def test_distances(backend, dtype, length):
    rows, every = rows_of(41, length, np.random.default_rng(0))
    rows = rows.astype(dtype)
    problem = PairProblem(
        Side(rows, np.ones((41, 1), dtype)), None, (Term(1.0, (Factor("identity", "mmd"),)),), None,
        Mixtures("staircases", length, 1),
    )  # fmt: skip
    found = entries(backend, problem)
    expected = np.sqrt(literal(every, every))
    assert np.max(np.abs(found - expected)) <= TOLERANCE[dtype] * max(1.0, float(expected.max()))
    np.testing.assert_array_equal(found, found.T)
    assert np.all(np.diag(found) == 0) and found[4, 5] == 0


def entries(backend: str, problem: PairProblem) -> np.ndarray:
    if backend == "array-api":
        return np.asarray(sweep_one(backend_for(problem, backend="array-api"), DenseRectangle()))
    if backend == EMULATED:
        with emulated_cupy.installed():
            return on_a_device(problem)
    if backend == "cuda":
        return on_a_device(problem)
    return np.asarray(sweep_one(CpuBackend(problem), DenseRectangle()))


def on_a_device(problem: PairProblem) -> np.ndarray:
    import cupy

    side = Side(cupy.asarray(problem.left.points), cupy.asarray(problem.left.features))
    there: Any = CudaBackend(PairProblem(side, None, problem.kernel, None, problem.predicted))
    return np.asarray(sweep_one(there, DenseRectangle()).get())


RATES = {
    "rare": np.array([1e-12, 1e-5, 1e-3, 1e-2, 0.0100001]),
    "few": np.array([0.5, 0.5 + 1e-9, 1.2, 3.4, 30.0]),
    "many": np.array([40.0, 95.0, 95.4, 96.2, 1.0]),
}


def survival(prediction: Poisson | NegativeBinomial, n: int) -> np.ndarray:
    k = np.arange(n)
    mean, dispersion = (np.asarray(one) for one in prediction._shapes())
    if not dispersion.any():
        return scipy.stats.poisson.sf(k, mean)
    return scipy.stats.nbinom.sf(k, 1 / dispersion, 1 / (1 + dispersion * mean))


def overdispersed(rates: np.ndarray) -> NegativeBinomial:
    return NegativeBinomial(rates, 0.3)


@pytest.mark.parametrize(
    ("make", "name"),
    [(Poisson, name) for name in RATES]
    + [(overdispersed, "few")]
    + [pytest.param(overdispersed, name, marks=pytest.mark.grid) for name in ("rare", "many")],
)
def test_the_default_kernel_on_counts_is_exact(name, make):
    """To relative accuracy of the distance, also between rates that 128 quantiles cannot tell apart."""
    prediction = make(RATES[name])
    window = window_of(prediction)
    n = len(RATES[name])
    rows = staircases_of(prediction, window)
    term = (Term(1.0, (Factor("identity", "mmd"),)),)
    problem = PairProblem(Side(rows, np.ones((n, 1))), None, term, None, Mixtures("staircases", window.length, 1))
    found = entries("cpu", problem)
    every = survival(prediction, 1200)
    expected = np.sqrt(literal(every, every))
    np.testing.assert_allclose(found, expected.astype(float), rtol=1e-7, atol=1e-13)
    assert np.all(found[~np.eye(n, dtype=bool)] > 0)
    y = np.zeros(n)
    h = kcalib.skce.result(y, prediction, kernel=WASSERSTEIN, target_kernel="delta")
    assert h.prediction_distances == f"2-Wasserstein, finite sums over {window.length} counts"


def test_rare_events_have_a_bandwidth():
    """Rates from 1e-5 to 1e-2: of W_2^2, which is about the difference of the rates."""
    rates = np.geomspace(1e-5, 1e-2, 31)
    result = kcalib.skce.result(np.zeros(31), Poisson(rates))
    pairs = np.sqrt(np.abs(rates[:, None] - rates)[np.triu_indices(31, 1)])
    assert result.bandwidth == pytest.approx(np.median(pairs), rel=1e-2)
    assert result.bandwidth_source.startswith("median wasserstein distance of all samples")


@pytest.mark.parametrize("make", [Poisson, lambda rates: NegativeBinomial(rates, 0.5)])
@pytest.mark.parametrize("n", [24, 61])
@pytest.mark.parametrize("entries_left_open", [0, 2**22])
def test_the_bandwidth_of_large_counts_is_the_median_distance(monkeypatch, make, n, entries_left_open):
    """Of an odd and an even number of pairs, some predictions equal; also where bounds leave no pair to decide."""
    monkeypatch.setattr("kcalib._packing.prediction_points.OPEN_ENTRIES", entries_left_open)
    rates = np.random.default_rng(0).uniform(5.0, 80.0, size=n)
    rates[:5] = rates[5]
    prediction = make(rates)
    pairs = wasserstein_distance(prediction)[np.triu_indices(n, 1)]
    found = kcalib.skce.result(np.zeros(n), prediction)
    assert found.bandwidth == pytest.approx(np.median(pairs), rel=1e-12)


def test_windows_around_the_means():
    """Of large counts few columns, and the same distances as from 0 on."""
    rates = np.array([900.0, 1000.0, 1100.5])
    window = window_of(Poisson(rates))
    assert window.centred and window.length < 600
    problem = kcalib._packing.forecasts.prediction_kernel_problem(Poisson(rates), WASSERSTEIN, 1)
    every = survival(Poisson(rates), 1600)
    found = -np.log(entries("cpu", problem)[0, 1])
    assert found == pytest.approx(float(np.sqrt(literal(every, every))[0, 1]), rel=1e-11)


def test_counts_that_are_too_many_have_quantiles(monkeypatch):
    y, prediction = np.array([30.0, 80.0, 50.0]), Poisson([30.0, 32.0, 29.0])
    exact = kcalib.skce.result(y, prediction, kernel=WASSERSTEIN)
    monkeypatch.setattr(staircases, "MOST", 20)
    found = kcalib.skce.result(y, prediction, kernel=WASSERSTEIN)
    assert found.prediction_distances == "2-Wasserstein, 128 quantiles in place of all counts"
    assert found.value != exact.value and found.value == pytest.approx(exact.value, rel=0.05)


def test_no_memory_for_the_table(monkeypatch):
    monkeypatch.setattr("kcalib._backend.memory.available_memory", lambda *_: 1000)
    with pytest.raises(MemoryError, match=r"distribution functions of 60 predictions at 20000 counts each.*take fewer"):
        staircases_of(Poisson([1.0, 2.0, 3.0] * 20), staircases.Window(False, 0, 20_000))


def test_locations_of_other_counts():
    """Test locations beyond the window of the predictions widen it; beyond every table they are refused."""
    rng = np.random.default_rng(0)
    rates = rng.uniform(1, 4, 40)
    y, options = rng.poisson(rates), {"kernel": WASSERSTEIN, "target_kernel": Gaussian(2.0)}
    at = {"locations": ([1.0, 140.0], Poisson([2.0, 150.0]))}
    found = kcalib.ucme(y, Poisson(rates), **at, **options)
    every = survival(Poisson(np.append(rates, [2.0, 150.0])), 400)
    k = np.exp(-np.sqrt(literal(every[-2:], every[:-2])).astype(float))
    counts = np.arange(401.0)
    features = np.eye(401)[y] - scipy.stats.poisson.pmf(counts, rates[:, None])
    factors = np.exp(-((np.array([[1.0], [140.0]]) - counts) ** 2) / 8) @ features.T
    assert found == pytest.approx(np.mean(np.mean(k * factors, axis=1) ** 2), rel=1e-9)
    with pytest.raises(ValueError, match="counts so far from those of `y_pred` that no table holds"):
        kcalib.ucme(y, Poisson(rates), locations=([1.0, 140.0], Poisson([2.0, 1e9])), **options)


@pytest.mark.grid
def test_results_say_how_distances_are_found():
    y, metric = np.array([1.0, 2.0, 3.0]), Exponential(bandwidth=1.0, metric=MMD(0.01))

    def said(prediction, kernel=None):
        return kcalib.skce.result(y, prediction, kernel=kernel).prediction_distances

    draws = "MMD, 64 draws from each prediction, seed 0"
    assert said(kcalib.distributions.Laplace([0.0, 1.0, 2.0], 1.0), metric).startswith(draws)
    assert said(Poisson([3e4, 3.1e4, 3.2e4]), metric).startswith(draws)  # features would be too many
    assert said(Poisson([3.0, 4.0, 5.0]), metric).startswith("MMD, features of rank")
    normal = kcalib.distributions.Normal([0.0, 1.0, 2.0], 1.0)
    assert said(normal, metric) == "MMD, closed form (normal)"
    assert said(normal) == "2-Wasserstein, of points"
    assert said(normal, Exponential(bandwidth=1.0)) == "of parameters"
    assert kcalib.skce.result([0, 1, 1], [0.2, 0.6, 0.7]).prediction_distances is None
