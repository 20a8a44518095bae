"""The test by random features: its level on hard laws, ties, libraries, and what it says."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
import scipy
from grid import some
from hard_laws import LAWS, dirichlet, drawn_labels, saturated

import kcalib
from kcalib import lenses
from kcalib._input.forecasts import prepare
from kcalib._packing.features import feature_problem
from kcalib.distributions import Beta, Laplace, Mixture, Normal, Poisson, Samples
from kcalib.estimators.feature_moments import feature_moments
from kcalib.kernels import Exponential, Gaussian, Linear
from kcalib.methods import Exact, Features

SETS = 100
TESTS = {
    "saturated": (saturated(-3, -1), 100),
    "confident": (saturated(-8, -4), 100),
    "rare": (LAWS["rare, Beta(.1, 100)"].draw, 100),
    "tied": (LAWS["20 distinct rows"].draw, 60),
    "one-hot and uncertain": (LAWS["one-hot and uncertain"].draw, 60),
    "diffuse": (dirichlet(5, 1.0), 60),
    "few": (dirichlet(3, 0.5), 4),
}


@pytest.mark.parametrize("name", some(TESTS, "saturated", "tied", "diffuse"))
def test_level_is_kept(name):
    draw, n = TESTS[name]
    pvalues = []
    for seed in range(SETS):
        rng = np.random.default_rng([seed, 17])
        p = draw(n, rng)
        y = drawn_labels(p, rng)
        kernel = Exponential(0.4)
        method = Features(n_columns=16, n_resamples=19)
        pvalues.append(kcalib.calibration_test(y, p, kernel=kernel, method=method, seed=seed).pvalue)
    for alpha in (0.05, 0.1, 0.5):
        rejected = np.sum(np.array(pvalues) <= alpha + 1e-12)
        assert rejected <= scipy.stats.binom.ppf(0.9999, SETS, alpha), (name, alpha)
        if name == "diffuse":  # there the draws have no ties
            assert rejected >= scipy.stats.binom.ppf(0.0001, SETS, alpha)


@pytest.mark.slow
@pytest.mark.parametrize("name", TESTS)
def test_level_of_defaults_is_kept(name):
    draw, n = TESTS[name]
    count = 1000
    rejected = np.zeros(3)
    for seed in range(count):
        rng = np.random.default_rng([seed, 18])
        p = draw(5 * n, rng)
        pvalue = kcalib.calibration_test(drawn_labels(p, rng), p, kernel=Exponential(0.4), method="features").pvalue
        rejected += pvalue <= np.array([0.01, 0.05, 0.1]) + 1e-12
    assert np.all(rejected <= scipy.stats.binom.ppf(0.9999, count, [0.01, 0.05, 0.1]))


def predictions(name, rng):
    """Laws that are hard for tests: rare events, nearly certain, tied, few."""
    n = 4 if name == "few" else 40
    mean, std = rng.normal(size=n), np.exp(rng.normal(scale=0.5, size=n))
    return {
        "normal": lambda: Normal(mean, std),
        "nearly certain": lambda: Normal(mean, 10.0 ** rng.uniform(-8, -4, size=n)),
        "rare counts": lambda: Poisson(10.0 ** rng.uniform(-4, -1, size=n)),
        "tied": lambda: Normal(np.round(mean), 1.0),
        "few": lambda: Laplace(mean, std),
        "mixture": lambda: Mixture([0.3, 0.7], [Normal(mean, std), Normal(mean + 1, std)]),
        "samples": lambda: Samples(rng.normal(size=(n, 3))),
        "draws": lambda: Beta(np.exp(mean), std),
    }[name]()


DISTRIBUTIONS = ("normal", "nearly certain", "rare counts", "tied", "few", "mixture", "samples")


@pytest.mark.grid
@pytest.mark.parametrize(
    "name",
    [*some(DISTRIBUTIONS, "normal", "rare counts", "tied", "few"), pytest.param("draws", marks=pytest.mark.slow)],
)
def test_level_of_distributions_is_kept(name):
    pvalues, sets = [], 50
    kernel = Exponential(0.4, metric="mmd" if name in ("mixture", "draws") else "wasserstein")
    target_kernel = Exponential(0.5) if name == "few" else Gaussian(0.5)
    for seed in range(sets):
        prediction = predictions(name, np.random.default_rng([seed, 29]))
        y = prediction.sample(1, seed=seed + 1000)[:, 0]
        method = Features(n_columns=16, n_resamples=19)
        options = {"kernel": kernel, "target_kernel": target_kernel, "method": method, "threads": 1}
        pvalues.append(kcalib.calibration_test(y, prediction, seed=seed, **options).pvalue)
    for alpha in (0.05, 0.1, 0.5):
        rejected = np.sum(np.array(pvalues) <= alpha + 1e-12)
        assert rejected <= scipy.stats.binom.ppf(0.9999, sets, alpha), (name, alpha)
        if name in ("normal", "mixture", "draws"):
            assert rejected >= scipy.stats.binom.ppf(0.0001, sets, alpha)


def test_distributions_that_are_too_narrow_are_found():
    rng = np.random.default_rng(4)
    mean, std = rng.normal(size=400), np.exp(rng.normal(scale=0.5, size=400))
    y = mean + std * rng.normal(size=400)
    result = kcalib.calibration_test(y, Normal(mean, std / 2), method="features", seed=0)
    assert result.pvalue == 0.005
    assert result.target_factor == "64 random features, expectations by characteristic functions (normal)"
    assert result.null_law == f"199 draws of the targets from the predictions, with {result.n_columns} features"
    assert result.features_standard_error > 0 and result.confidence_interval().low > 0


def test_errors_of_features_have_the_freedom_of_both_kernels_groups():
    """By Welch and Satterthwaite; features of labels alone have eight groups."""
    rng = np.random.default_rng(4)
    mean = rng.normal(size=400)
    y, prediction = mean + rng.normal(size=400), Normal(mean, np.full(400, 1.3))
    result = kcalib.calibration_test(y, prediction, method="features", seed=0)
    problem = feature_problem(prepare(y, prediction), None, None, result.n_columns, 0)
    moments = feature_moments(problem)
    parts = [(np.var(totals, ddof=1) / len(totals), len(totals) - 1) for totals in
             (moments.group_totals, moments.target_group_totals)]  # fmt: skip
    squares = sum(variance**2 / freedom for variance, freedom in parts)
    assert result.features_freedom == pytest.approx(sum(variance for variance, _ in parts) ** 2 / squares)
    assert min(freedom for _, freedom in parts) < result.features_freedom
    few = dataclasses.replace(result, features_freedom=3.0)
    assert few.confidence_interval().high > result.confidence_interval().high
    p = rng.dirichlet(np.ones(3), size=100)
    labels = kcalib.calibration_test(drawn_labels(p, rng), p, method="features", seed=0)
    assert labels.features_freedom == pytest.approx(7)


@pytest.mark.grid
def test_power_is_near_that_of_all_pairs():
    found = np.zeros(2)
    for seed in range(25):
        rng = np.random.default_rng([seed, 19])
        p = rng.dirichlet(np.full(5, 0.5), size=500)
        q = p**0.65
        y = drawn_labels(q / q.sum(axis=1, keepdims=True), rng)
        for k, method in enumerate((Features(n_columns=64, n_resamples=99), Exact(n_resamples=99))):
            found[k] += kcalib.calibration_test(y, p, kernel=Exponential(0.5), method=method, seed=seed).pvalue <= 0.05
    assert 6 < found[1] < 25  # where differences would be seen
    assert found[0] > 0.75 * found[1]


def problem(n=200, m=4, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(m, 0.6), size=n)
    return drawn_labels(p, rng), p


def test_result_is_that_of_the_estimator_and_the_draws():
    y, p = problem()
    method = Features(n_columns=32, n_resamples=99)
    result = kcalib.calibration_test(y, p, method=method, seed=5, threads=1)
    estimate = kcalib.skce.result(y, p, estimator=kcalib.methods.FeatureEstimator(n_columns=32, seed=5))
    assert result.estimate == estimate.value and result.statistic == len(y) * result.estimate
    assert result.features_standard_error == estimate.features_standard_error
    assert result.method == "features"
    assert (result.n_columns, result.n_resamples, result.seed, result.threads) == (32, 99, 5, 1)
    assert result.null_law == "99 draws of the labels from the predictions, with 32 features"
    assert result.estimator == "unbiased SKCE of random features" and result.backend == "features"
    drawn = feature_problem(prepare(y, p), None, None, 32, 5).drawn_totals(99, 5)
    expected = (1 + np.sum(drawn >= result.estimate * len(y) * (len(y) - 1))) / 100
    assert result.pvalue == expected and result.log_pvalue == math.log(expected)
    interval = result.confidence_interval()
    assert interval.low < result.estimate < interval.high
    drawn_seed = kcalib.calibration_test(y, p, method=method).seed
    again = kcalib.calibration_test(y, p, method=method, seed=drawn_seed)
    assert again.seed == drawn_seed
    default = kcalib.calibration_test(y, p, method="features", seed=5)
    assert (default.n_columns, default.n_resamples) == (112, 199)


def test_intervals_cover_the_error_under_the_given_kernel():
    """Few columns, so that features are as much of the error as samples are."""
    rng = np.random.default_rng(11)
    rows = rng.dirichlet(np.full(4, 0.5), size=12)
    truth = rows**0.5 / (rows**0.5).sum(axis=1, keepdims=True)
    kernel, gaps = Exponential(0.5), truth - rows
    distances = np.sqrt(((rows[:, None] - rows[None, :]) ** 2).sum(axis=2))
    error = np.mean(np.exp(-distances / 0.5) * (gaps @ gaps.T))
    missed, count, shares = 0, 100, []
    for seed in range(count):
        chosen = rng.integers(12, size=500)
        y = drawn_labels(truth[chosen], rng)
        method = Features(n_columns=16, n_resamples=1)
        result = kcalib.calibration_test(y, rows[chosen], kernel=kernel, method=method, seed=seed)
        missed += error > result.limits(0.025).high or result.estimate - error > 1.96 * result.standard_error
        shares.append(result.features_standard_error / result.standard_error)
        assert result.standard_error > result.null_standard_error > 0
    assert np.median(shares) > 0.5
    assert missed <= scipy.stats.binom.ppf(0.999, count, 0.05)


def test_draws_are_those_of_the_data_by_brute_force():
    y, p = problem(40, 3)
    for target in (None, np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]])):
        data = prepare(y, p)
        found = feature_problem(data, Exponential(0.4), target, 32, 1)
        features = kcalib.methods.FeatureEstimator(n_columns=32, seed=1)
        options = {"kernel": Exponential(0.4), "target_kernel": target, "estimator": features}
        drawn = [np.asarray(data.draw(9, r).labels) for r in range(6)]
        totals = [kcalib.skce(labels, p, **options) * (40 * 39) for labels in drawn]
        np.testing.assert_allclose(found.drawn_totals(6, 9), totals, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("power", [(-16, -10), (-12, -9), (-9, -5)])
@pytest.mark.parametrize("m", [2, 10])
def test_labels_as_most_draws_are_no_evidence(power, m):
    """Saturated predictions that are all right: all draws have the observed labels, up to rounding."""
    p = saturated(*power, m=m)(2000, np.random.default_rng(0))
    result = kcalib.calibration_test(p.argmax(axis=1), p, kernel=Exponential(0.3), method="features", seed=0)
    assert result.pvalue > 0.9


def test_certain_predictions():
    p = np.eye(3)[np.random.default_rng(0).integers(3, size=50)]
    right = kcalib.calibration_test(p.argmax(axis=1), p, kernel=Exponential(0.3), method="features", seed=0)
    assert (right.pvalue, right.statistic) == (1, 0)
    wrong = (p.argmax(axis=1) + 1) % 3
    assert kcalib.calibration_test(wrong, p, kernel=Exponential(0.3), method="features", seed=0).pvalue == 1 / 200


def test_every_library_gives_the_same_result(xp):
    y, p = problem(120)
    options = {"method": Features(n_columns=32, n_resamples=49), "seed": 3}
    expected = kcalib.calibration_test(y, p, **options)
    found = kcalib.calibration_test(xp.asarray(y), xp.asarray(p), **options)
    assert found.pvalue == expected.pvalue and found.null_law == expected.null_law
    for name in ("statistic", "standard_error", "features_standard_error"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-10), name


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_gives_the_same_bits(threads):
    y, p = problem(3000)
    results = [
        kcalib.calibration_test(y, p, method=Features(n_columns=32, n_resamples=19), seed=0, threads=t)
        for t in (2, threads)
    ]
    one, other = (dataclasses.replace(r, threads=None, seconds=0) for r in results)
    assert one == other


def test_lens_target_matrix_dtype_and_few_samples():
    y, p = problem(100)
    method = Features(n_columns=32, n_resamples=39)
    top = kcalib.calibration_test(y, p, lens=lenses.TopLabel(), method=method, seed=0)
    assert top.lens == "TopLabel()" and top.n_classes == 2
    matrix = kcalib.calibration_test(y, p, target_kernel=np.ones((4, 4)) + np.eye(4), method=method, seed=0)
    # Residuals sum to 0, so that the ones add nothing.
    plain = kcalib.calibration_test(y, p, method=method, seed=0)
    assert matrix.statistic == pytest.approx(plain.statistic, rel=1e-9) and matrix.pvalue == plain.pvalue
    single = kcalib.calibration_test(y, p, dtype="float32", method=method, seed=0)
    assert single.dtype == "float32" and single.statistic == pytest.approx(plain.statistic, rel=1e-3)
    for n in (2, 3):
        few = kcalib.calibration_test(y[:n], p[:n], method=method, seed=0)
        assert 0 < few.pvalue <= 1 and few.standard_error is None
    product = kcalib.calibration_test(y, p, kernel=Linear() + Gaussian(0.3), method=method, seed=0)
    assert 0 < product.pvalue <= 1


GROWTH = """
import resource, sys
import numpy as np
from kcalib._input.forecasts import prepare
from kcalib._packing.features import feature_problem
from kcalib.estimators.feature_moments import feature_moments
from kcalib.kernels import Exponential

n, m, columns, draws = map(int, sys.argv[1:])
p = np.random.default_rng(0).dirichlet(np.full(m, 0.05), size=n)
found = feature_problem(prepare(p.argmax(axis=1), p), Exponential(0.5), None, columns, 0)
found.target_features
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found.drawn_totals(draws, 0)
feature_moments(found, second=False)
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m", "columns"), [(3000, 1000, 112), (200_000, 10, 256)])
def test_features_and_drawn_labels_are_never_stored(n, m, columns):
    """Beside the samples are sums of draws, of columns times classes, and tiles; features alone are n x columns."""
    draws = 40
    done = subprocess.run(
        [sys.executable, "-P", "-c", GROWTH, *map(str, (n, m, columns, draws))],
        capture_output=True,
        text=True,
        check=True,
    )
    sums, samples = 8 * columns * m * draws, 8 * n * m
    assert int(done.stdout) < 2 * sums + 2 * samples + 2e7
    assert 2 * sums + 2 * samples + 2e7 < max(8 * n * columns, 8 * n * m * draws)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_columns": 30}, ValueError, "`n_columns` is 30, expected a multiple of 16"),
        ({"n_columns": "64"}, TypeError, "`n_columns` is '64', expected an integer"),
        ({"n_resamples": 0}, ValueError, "`n_resamples` is 0, expected an integer between 1"),
    ],
    ids=str,
)
def test_options_are_checked_when_the_method_is_made(options, error, message):
    with pytest.raises(error, match=message):
        Features(**options)


def test_what_has_no_features_is_refused():
    y, p = problem(20)
    with (
        pytest.raises(ValueError, match=r"(?s)'gaussian' of cityblock.*method='exact'"),
        pytest.warns(kcalib.IndefiniteKernelWarning),
    ):
        kcalib.calibration_test(y, p, kernel=Gaussian(0.3, metric="cityblock"), method="features")
    with pytest.raises(ValueError, match="`backend` is 'cpu', but features take no sums over pairs"):
        kcalib.calibration_test(y, p, backend="cpu", method="features")
    with pytest.raises(ValueError, match="method='features' needs at least 2 samples, `y_true` has 1"):
        kcalib.calibration_test(y[:1], p[:1], kernel=Exponential(0.3), method="features")
