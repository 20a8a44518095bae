"""Moments of the SKCE under calibration, against all outcomes of the labels, draws, and extended precision."""

from __future__ import annotations

import functools
import itertools

import emulated_cupy
import mpmath
import numpy as np
import oracle
import pytest
from grid import some
from problems import KERNELS, psd_matrix, softmax_problem

import kcalib
from kcalib import kernels as K
from kcalib._input.forecasts import prepare
from kcalib._packing import variance
from kcalib._pairs.reductions import Moments, sweep_one
from kcalib.distributions import Laplace, NegativeBinomial, Normal, Poisson
from kcalib.estimators import null_moments
from kcalib.estimators.skce import PairOptions
from kcalib.inference.task import Task

pytestmark = pytest.mark.filterwarnings("ignore::kcalib.IndefiniteKernelWarning")
KERNEL = K.Exponential(bandwidth=0.4)


def task_of(y, p, kernel=KERNEL, target=None, backend=None, **options) -> Task:
    return Task(prepare(y, p, **options), PairOptions(kernel, target, backend, None))


def outcomes(kernel, p, matrix=None) -> tuple[float, float]:
    """E sum_{i != j} H_ij^2 and E sum_i H_ii by all outcomes of the labels; checks that half of Var T is the first."""
    n, m = p.shape
    k = oracle.kernel_matrix(kernel, p, p)
    off = ~np.eye(n, dtype=bool)
    probability = np.longdouble(0)
    squares, trace, mean, second = np.zeros(4, np.longdouble)
    for labels in itertools.product(range(m), repeat=n):
        y = np.array(labels)
        weight = np.prod(p[np.arange(n), y].astype(np.longdouble))
        h = k * oracle.target_factor(y, p, y, p, matrix)
        total = np.sum(h[off])
        probability += weight
        squares += weight * np.sum(h[off] ** 2)
        trace += weight * np.trace(h)
        mean += weight * total
        second += weight * total**2
    assert abs(float(probability) - 1) < 1e-12
    assert abs(float(mean)) < 1e-12
    np.testing.assert_allclose(float(second), 2 * float(squares), rtol=1e-10)
    return float(squares), float(trace)


@functools.cache
def predictions(name: str) -> np.ndarray:
    if name == "diffuse":
        return softmax_problem(5, 3, seed=1)[1]
    if name == "binary":
        return softmax_problem(7, 2, seed=2)[1]
    if name == "rare":
        rare = np.array([1e-6, 2e-3, 1e-9, 3e-5, 0.02, 1e-4])
        return np.stack([1 - rare, rare], axis=1)
    if name == "tied":
        return softmax_problem(3, 3, seed=3)[1][[0, 0, 1, 1, 2, 2]]
    p = np.full((5, 3), 1e-7)  # saturated
    p[np.arange(5), [0, 0, 1, 2, 0]] = 1 - 2e-7
    p[4] = [0.999, 0.0, 0.001]
    return p


@pytest.mark.parametrize("name", ["diffuse", "binary", "rare", "tied", "saturated"])
@pytest.mark.parametrize("target", ["delta", "matrix"])
def test_all_outcomes_of_the_labels(name, target):
    """n samples of m classes have m^n outcomes, each with its probability."""
    p = predictions(name)
    matrix = None if target == "delta" else psd_matrix(p.shape[1], 2)
    squares, trace = outcomes(KERNEL, p, matrix)
    found = task_of(np.zeros(len(p), int), p, target=matrix).null_moments
    assert found.exact
    np.testing.assert_allclose(found.squares, squares, rtol=1e-9)
    np.testing.assert_allclose(found.trace, trace, rtol=1e-9)


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_squared(name):
    p = softmax_problem(6, 3, seed=4)[1]
    k = oracle.kernel_matrix(KERNELS[name], p, p)
    v = np.array([np.diag(row) - np.outer(row, row) for row in p])
    expected = np.einsum("ij,iab,jba->ij", (k**2).astype(float), v, v)
    found = task_of(np.zeros(6, int), p, KERNELS[name]).null_moments
    np.testing.assert_allclose(found.squares, expected.sum() - np.trace(expected), rtol=1e-11)


def saturated(n: int, m: int, low: float, high: float, seed: int = 0) -> np.ndarray:
    """p = 1 - (m - 1) e for one class, e for the others, e in 10^U(low, high)."""
    rng = np.random.default_rng(seed)
    e = 10 ** rng.uniform(low, high, size=n)
    p = np.repeat(e[:, None], m, axis=1) * rng.uniform(0.5, 1.5, size=(n, m))
    top = rng.integers(m, size=n)
    p[np.arange(n), top] = 0
    p[np.arange(n), top] = 1 - p.sum(axis=1)
    return p


@pytest.mark.parametrize(("m", "low"), [(2, -8), (10, -8), (10, -14), (30, -6), (30, -12)])
def test_saturated_predictions_in_extended_precision(m, low):
    """No digits are lost where a probability is near 1, nor where a difference of two sums has none left."""
    p = saturated(6, m, low, low + 2)
    rows = []
    with mpmath.workdps(60):
        for row in p:
            top = int(np.argmax(row))
            exact = [mpmath.mpf(float(x)) for x in row]
            exact[top] = 1 - (mpmath.fsum(exact) - exact[top])  # what the others leave
            rows.append(exact)
        distance = [
            [mpmath.sqrt(mpmath.fsum((a - b) ** 2 for a, b in zip(x, y, strict=True))) for y in rows] for x in rows
        ]
        traces = [
            [
                mpmath.fsum(a * b for a, b in zip(x, y, strict=True))
                - mpmath.fsum(a * b * b + a * a * b for a, b in zip(x, y, strict=True))
                + mpmath.fsum(a * b for a, b in zip(x, y, strict=True)) ** 2
                for y in rows
            ]
            for x in rows
        ]
        squares = mpmath.fsum(
            mpmath.exp(-2 * distance[i][j] / mpmath.mpf("0.4")) * traces[i][j]
            for i in range(6)
            for j in range(6)
            if i != j
        )
        trace = mpmath.fsum(1 - mpmath.fsum(a * a for a in x) for x in rows)
    found = task_of(np.zeros(6, int), p).null_moments
    assert found.exact
    np.testing.assert_allclose(found.squares, float(squares), rtol=1e-6)
    np.testing.assert_allclose(found.trace, float(trace), rtol=1e-9)


@pytest.mark.parametrize("m", [16, 17, 40])
def test_three_sweeps_are_those_of_all_columns(m, monkeypatch):
    p = np.random.default_rng(5).dirichlet(np.full(m, 0.3), size=60)
    found = task_of(np.zeros(60, int), p).null_moments
    monkeypatch.setattr(variance, "RANK_WITH_COLUMNS", 100 if m > 16 else 1)
    other = task_of(np.zeros(60, int), p).null_moments
    np.testing.assert_allclose(found.squares, other.squares, rtol=1e-12)


def test_where_digits_would_take_too_long_it_is_said(monkeypatch):
    p = saturated(40, 30, -12, -11)
    exact = task_of(np.zeros(40, int), p).null_moments
    monkeypatch.setattr(variance, "COLUMNS_WORK", 0.0)
    found = task_of(np.zeros(40, int), p).null_moments
    assert exact.exact
    assert not found.exact
    assert 0.5 * exact.squares <= found.squares <= 2 * exact.squares


@pytest.mark.parametrize("target", ["delta", "matrix"])
@pytest.mark.parametrize("backend", ["cpu", "array-api", "sorted"])
def test_every_backend(backend, target):
    m = 2 if backend == "sorted" else 4
    y, p = softmax_problem(40, m, seed=6)
    p[:, 0] = 1 - p[:, 1:].sum(axis=1)
    matrix = None if target == "delta" else psd_matrix(m, 2)
    expected = task_of(y, p, target=matrix, backend="cpu").null_moments
    found = task_of(y, p, target=matrix, backend=backend).null_moments
    np.testing.assert_allclose([found.squares, found.trace], [expected.squares, expected.trace], rtol=1e-12)
    k, v = oracle.kernel_matrix(KERNEL, p, p), np.array([np.diag(row) - np.outer(row, row) for row in p])
    middle = np.eye(m) if matrix is None else matrix
    pairs = np.einsum("ij,iab,jba->ij", (k**2).astype(float), middle @ v, middle @ v)
    np.testing.assert_allclose(found.squares, pairs.sum() - np.trace(pairs), rtol=1e-10)


@pytest.mark.parametrize("m", [2, 3, 20])
@pytest.mark.parametrize("target", ["delta", "matrix"])
def test_other_libraries(xp, m, target):
    y, p = softmax_problem(30, m, seed=7)
    matrix = None if target == "delta" else psd_matrix(m, 2)
    here = task_of(y, p, target=matrix)
    there = task_of(xp.asarray(y), xp.asarray(p), target=matrix)
    single = "jax" in xp.name
    np.testing.assert_allclose(there.null_moments.squares, here.null_moments.squares, rtol=1e-4 if single else 1e-11)
    np.testing.assert_allclose(there.null_moments.trace, here.null_moments.trace, rtol=1e-4 if single else 1e-11)
    np.testing.assert_allclose(there.effective_events, here.effective_events, rtol=1e-4 if single else 1e-11)


@pytest.mark.grid
def test_a_line_on_a_gpu(emulation):
    y, p = softmax_problem(30, 2, seed=8)
    p[:, 0] = 1 - p[:, 1]
    here = task_of(y, p).null_moments
    there = task_of(emulated_cupy.asarray(y), emulated_cupy.asarray(p), backend="sorted").null_moments
    np.testing.assert_allclose(there.squares, here.squares, rtol=1e-12)


def test_the_same_bits_for_any_number_of_threads():
    y, p = softmax_problem(700, 5, seed=9)
    data = prepare(y, p)
    one, two = (Task(data, PairOptions(KERNEL, None, None, threads)).null_moments for threads in (1, 2))
    assert one == two


@pytest.mark.parametrize(("low", "in_one_sweep"), [(-2.0, True), (-5.0, False)])
def test_a_sweep_of_its_own_where_the_common_one_has_lost_digits(low, in_one_sweep, monkeypatch):
    """Half of the predictions are nearly certain, half diffuse or as certain as well."""
    certain, diffuse = saturated(80, 4, low, low + 1), softmax_problem(80, 4, seed=12, scale=0.5)[1]
    p = np.concatenate([certain, diffuse if in_one_sweep else certain])
    monkeypatch.setattr(null_moments, "CERTAIN", 1.0)  # to try it in any case
    swept = []
    monkeypatch.setattr(null_moments, "_of_law", lambda *given, of=null_moments._of_law: swept.append(1) or of(*given))
    found = task_of(np.zeros(len(p), int), p).null_moments
    assert bool(swept) == (not in_one_sweep)
    k = oracle.kernel_matrix(KERNEL, p, p)
    v = np.array([np.diag(row) - np.outer(row, row) for row in p.astype(np.longdouble)]).reshape(len(p), -1)
    every = k**2 * (v @ v.T)
    np.testing.assert_allclose(found.squares, float(np.sum(every) - np.trace(every)), rtol=2e-11)


def test_rows_that_were_rounded_to_float32():
    """They sum to 1 but for 1e-7, which another formula for the same covariances would keep."""
    y, p = softmax_problem(60, 4, seed=13)
    p = p.astype(np.float32).astype(np.float64)
    here, there = (task_of(y, p, backend=backend).null_moments for backend in ("cpu", "array-api"))
    np.testing.assert_allclose(here.squares, there.squares, rtol=1e-13)


def test_float32_and_lenses():
    y, p = softmax_problem(50, 4, seed=10)
    double, single = (task_of(y, p, dtype=dtype).null_moments for dtype in ("float64", "float32"))
    np.testing.assert_allclose(single.squares, double.squares, rtol=1e-12)  # the variance is always in float64
    lens = kcalib.lenses.TopLabel()
    seen = task_of(y, p, lens=lens)
    c = p.max(axis=1)
    right = task_of((y == p.argmax(axis=1)).astype(int), c)
    np.testing.assert_allclose(seen.null_moments.squares, right.null_moments.squares, rtol=1e-12)


def test_labels_do_not_matter():
    _, p = softmax_problem(30, 3, seed=11)
    first, second = (task_of(np.full(30, label), p) for label in (0, 2))
    assert first.null_moments == second.null_moments
    assert first.effective_events == second.effective_events


# -- distributions -----------------------------------------------------------------------------


def law_by_draws(task: Task, count: int) -> tuple[float, float, float]:
    """Half the variance of T, its standard error, and the mean trace, of drawn targets."""
    totals, traces = [], []
    for r in range(count):
        moments = sweep_one(task.backend_of(task.packed.with_targets(task.data.draw(77, r)).problem), Moments())
        totals.append(float(moments.total))
        traces.append(float(moments.trace))
    squares = np.square(totals) / 2
    return float(squares.mean()), float(squares.std() / np.sqrt(count)), float(np.mean(traces))


@pytest.mark.grid
@pytest.mark.parametrize("family", some(["normal", "laplace", "poisson", "negative binomial"], "normal", "poisson"))
def test_distributions_against_draws(family):
    rng = np.random.default_rng(12)
    n, mean = 60, rng.normal(size=60)
    prediction = {
        "normal": lambda: Normal(mean, 1.0),
        "laplace": lambda: Laplace(mean, 1.0),
        "poisson": lambda: Poisson(np.exp(mean)),
        "negative binomial": lambda: NegativeBinomial(np.exp(mean), 0.4),
    }[family]()
    y = np.zeros(n, int) if family in ("poisson", "negative binomial") else np.zeros(n)
    task = task_of(y, prediction, kernel=None)
    found = task.null_moments
    squares, error, trace = law_by_draws(task, 1500)
    assert abs(found.squares - squares) < 5 * error
    np.testing.assert_allclose(found.trace, trace, rtol=0.03)
    assert found.exact == (family in ("poisson", "negative binomial"))
    again = task_of(y + 1, prediction, kernel=None).null_moments  # of the predictions alone; features are not, quite
    np.testing.assert_allclose([again.squares, again.trace], [found.squares, found.trace], rtol=1e-9)


@pytest.mark.parametrize("prediction", [NegativeBinomial([4.0, 9.0, 6.0, 0.5], 0.4), Poisson([3.0, 1e-6, 2e-6, 20.0])])
def test_counts_of_many_features_by_literal_sums(prediction):
    y, d = np.arange(4.0), kcalib.distributions.wasserstein_distance(prediction)
    kernel = K.Exponential(2.0, metric="wasserstein")
    result = kcalib.calibration_test(y, prediction, kernel=kernel, target_kernel=K.Gaussian(0.7), method="exact")
    p = prediction.pmf_table()
    counts = np.arange(p.shape[1])
    gram = np.exp(-((counts[:, None] - counts) ** 2) / (2 * 0.7**2)).astype(np.longdouble)
    p = p.astype(np.longdouble)
    squares = np.longdouble(0)
    for i, j in itertools.permutations(range(4), 2):
        # Features of the two targets less their means, for all pairs of counts.
        products = gram - (p[i] @ gram)[None, :] - (gram @ p[j])[:, None] + p[i] @ gram @ p[j]
        squares += np.exp(-2 * d[i, j] / 2.0) * (p[i] @ products**2 @ p[j])
    assert result.null_standard_error == pytest.approx(float(np.sqrt(2 * squares)) / 12, rel=1e-9)


def test_rare_counts_are_exact():
    """Draws of some thousand counts with mean 1e-6 hold no event; the variance comes from their probabilities."""
    rng = np.random.default_rng(13)
    rates = 10 ** rng.uniform(-7, -5, size=40)
    kernel, target = K.Exponential(bandwidth=1e3, metric="wasserstein"), K.Gaussian(bandwidth=1.0)
    task = task_of(np.zeros(40, int), Poisson(rates), kernel=kernel, target=target)
    # All predictions are alike to the kernel. There is one event or none, and |R^T e|^2 is 2 (1 - exp(-1/2)) e^2.
    v = rates * (1 - rates) * 2 * (1 - np.exp(-0.5))
    np.testing.assert_allclose(task.null_moments.squares, v.sum() ** 2 - np.sum(v**2), rtol=1e-3)
    np.testing.assert_allclose(task.effective_events, rates.sum(), rtol=1e-3)


# -- effective events ----------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["delta", "matrix"])
@pytest.mark.parametrize("name", ["diffuse", "binary", "rare", "saturated"])
def test_effective_events_from_their_definition(name, target):
    p = predictions(name)
    m = p.shape[1]
    matrix = np.eye(m) if target == "delta" else psd_matrix(m, 2)
    second = fourth = np.longdouble(0)
    for row in p.astype(np.longdouble):
        for label in range(m):
            e = np.eye(m, dtype=np.longdouble)[label] - row
            length = e @ matrix @ e
            second += row[label] * length
            fourth += row[label] * length**2
    found = task_of(np.zeros(len(p), int), p, target=None if target == "delta" else matrix).effective_events
    np.testing.assert_allclose(found, float(second**2 / fourth), rtol=1e-9)


def test_effective_events_of_known_predictions():
    assert task_of([0, 1, 1, 0], [0.5] * 4).effective_events == pytest.approx(4)
    rare = np.full(10_000, 1e-4)
    assert task_of(np.zeros(10_000, int), rare).effective_events == pytest.approx(1, rel=1e-3)
    assert task_of([0, 1], np.eye(2)).effective_events == 0
    assert task_of(np.zeros(300), Normal(np.zeros(300), 1.0)).effective_events > 50
