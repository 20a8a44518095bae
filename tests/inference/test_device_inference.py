"""Tests and intervals of arrays on a GPU: the p-values of NumPy arrays, and nothing as long as a sample leaves it."""

from __future__ import annotations

import emulated_cupy
import numpy as np
import nvrtc
import pytest
from few_events import FEW_EVENTS
from grid import some
from problems import softmax_problem

import kcalib
from kcalib import kernels as K
from kcalib._backend.random import (
    KINDS,
    RandomNumbers,
    Weights,
    batches,
    cumulative_sums,
    draw_label_batches,
    draw_labels,
    make_weights,
    philox_program,
)
from kcalib._backend.segments import Segments
from kcalib.distributions import Normal
from kcalib.inference import metrics

N, M = 150, 3  # more than two tiles of 64
KERNEL = K.Exponential(bandwidth=0.4)


def test_random_numbers_compile():
    program = philox_program()
    assert nvrtc.cubin(program.source, program.every_option, "sm_80")[:4] == b"\x7fELF"


# -- random numbers --------------------------------------------------------------------------------


def _generators(*keys):
    return [np.random.Generator(np.random.Philox(**key)) for key in keys for _ in range(2)]


@pytest.mark.parametrize("key", [{"seed": 0}, {"seed": 2**64 - 1}, {"key": np.array([2**64 - 1, 3], dtype=np.uint64)}])
@pytest.mark.parametrize("ahead", [0, 1, 2, 3, 4, 37])
def test_uniform_numbers_are_those_of_numpy(cupy, key, ahead):
    """From any word of the generator's buffer on, in parts of any length."""
    here, there = _generators(key)
    for generator in (here, there):
        generator.integers(1000, size=ahead)  # takes half a word each
    found = RandomNumbers(there, cupy.zeros(1))
    for count in (1, 3, 600, 2):
        np.testing.assert_array_equal(found.uniform(count).get(), here.random(count))


def test_uniform_numbers_far_on(cupy):
    here, there = _generators({"seed": 5})
    for generator in (here, there):
        generator.bit_generator.advance(2**40 + 1)  # counted in blocks of four words
    np.testing.assert_array_equal(RandomNumbers(there, cupy.zeros(1)).uniform(9).get(), here.random(9))


@pytest.mark.parametrize("high", [1, 2, 300, 3 * 2**30, 2**31 + 1, 2**32 - 1])
def test_integers_are_those_of_numpy(cupy, high):
    """Where NumPy refuses none, a few, and nearly half of the half words; then uniform numbers."""
    for count in (0, 1, 301):
        here, there = _generators({"seed": 9})
        for generator in (here, there):
            generator.random(5)
        found = RandomNumbers(there, cupy.zeros(1))
        np.testing.assert_array_equal(found.integers(high, count).get(), here.integers(high, size=count))
        np.testing.assert_array_equal(found.uniform(6).get(), here.random(6))


def test_other_generators_come_from_the_host(cupy):
    found = RandomNumbers(np.random.default_rng(3), cupy.zeros(1))
    np.testing.assert_array_equal(found.uniform(7).get(), np.random.default_rng(3).random(7))


@pytest.mark.parametrize("m", [2, 3, 17, 300])
def test_drawn_labels_are_those_of_the_host(cupy, m):
    _, p = softmax_problem(270, m, seed=m)
    p[::7] = np.eye(m)[np.arange(270)[::7] % m]  # of probability 0 none is drawn
    expected = np.concatenate(list(draw_label_batches(p, 11, 4, at_once=11)), axis=1)
    with emulated_cupy.stays_on_device(0):
        found = list(draw_label_batches(cupy.asarray(p), 11, 4, at_once=4))
    np.testing.assert_array_equal(np.concatenate([labels.get() for labels in found], axis=1), expected)


def test_labels_at_the_steps_of_the_cumulative_sums(cupy):
    """Uniform numbers that are cumulative probabilities themselves, 0, and the largest below 1."""
    _, p = softmax_problem(40, 5)
    cumulative = np.cumsum(p, axis=1)
    on_device = cumulative_sums(cupy.asarray(p))
    np.testing.assert_array_equal(on_device.get(), cumulative)
    rows = np.random.default_rng(0).integers(40, size=300)
    uniform = np.resize(np.concatenate([np.minimum(cumulative.ravel(), 1 - 2**-53), [0.0, 1 - 2**-53]]), 300)
    found = draw_labels(on_device, cupy.asarray(uniform), cupy.asarray(rows))
    np.testing.assert_array_equal(found.get(), draw_labels(cumulative, uniform, rows))
    np.testing.assert_array_equal(found.get(), draw_labels(cumulative[rows], uniform))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_host(cupy, kind):
    weights = Weights(kind, 70, 11, 8)
    np.testing.assert_array_equal(make_weights(cupy.zeros(1), weights, 2, 5).get(), weights.values(2, 5))
    assert isinstance(make_weights(np.zeros(1), weights), np.ndarray)
    parts = [(begin, end, part.get()) for begin, end, part in batches(cupy.zeros(1), weights, 4 * 8 * 70)]
    assert [part[:2] for part in parts] == [(0, 4), (4, 8), (8, 11)]
    np.testing.assert_array_equal(np.concatenate([part[2] for part in parts], axis=1), weights.values())


@pytest.mark.parametrize("width", [1, 3, 16, 21])
def test_segment_sums(cupy, width):
    """There are empty segments, and more rows than a block has threads; roundings of 700 terms of size 1."""
    rng = np.random.default_rng(width)
    numbers = rng.choice([0, 2, 2, 2, 5], size=700)
    values, scales = rng.normal(size=(700, width)), rng.normal(size=700)
    found = Segments.of(cupy.asarray(numbers), 7).sums(cupy.asarray(values), cupy.asarray(scales)).get()
    for segment in range(7):
        terms = scales[numbers == segment, None] * values[numbers == segment]
        np.testing.assert_allclose(found[segment], terms.sum(axis=0), rtol=0, atol=700 * 2e-16 * 20)
    again = Segments.of(cupy.asarray(numbers), 7).sums(cupy.asarray(values), cupy.asarray(scales)).get()
    np.testing.assert_array_equal(found, again)


# -- tests and intervals ---------------------------------------------------------------------------

DRAWS = {"n_resamples": 29}
METHODS = {
    "exact": {"method": kcalib.methods.Exact(**DRAWS)},
    "exact, matrix": {"method": kcalib.methods.Exact(**DRAWS), "target_kernel": np.eye(M) + 0.1 * np.ones((M, M))},
    "bootstrap": {"method": kcalib.methods.Bootstrap(**DRAWS)},
    "rademacher": {"method": kcalib.methods.Multiplier(**DRAWS)},
    "gaussian": {"method": kcalib.methods.Multiplier(multipliers="gaussian", **DRAWS)},
    "gamma, residuals": {"method": kcalib.methods.Gamma("residuals")},
    "rademacher, residuals": {"method": kcalib.methods.Multiplier(reference="residuals", **DRAWS)},
    "block": {"method": "block"},
    "block, second moment": {"method": kcalib.methods.Block(variance="second_moment", block_size=13)},
    "linear": {"method": "linear"},
    "distribution_free": {"method": "distribution_free"},
    "distribution_free, block": {"method": kcalib.methods.DistributionFree(estimator="block")},
    "distribution_free, biased": {"method": kcalib.methods.DistributionFree(estimator="biased")},
    "cme": {"method": kcalib.methods.CME(locations=4, **DRAWS)},
    "cme, conditional": {"method": kcalib.methods.CME(reference="conditional")},
    "cme, F": {"method": kcalib.methods.CME(reference="F")},
    "cme, chi2": {"method": kcalib.methods.CME(reference="chi2", locations=4)},
    "consistency, ece": {"method": kcalib.methods.Consistency(n_resamples=19), "kernel": None},
    "consistency, labels": {"method": kcalib.methods.Consistency(resample_predictions=False, **DRAWS), "kernel": None},
    "consistency, unbiased": {"method": kcalib.methods.Consistency(estimator="unbiased", n_resamples=3)},
    "consistency, biased": {"method": kcalib.methods.Consistency(estimator="biased", n_resamples=3)},
    "consistency, block": {"method": kcalib.methods.Consistency(estimator="block", n_resamples=3)},
    "consistency, ucme": {"method": kcalib.methods.Consistency("ucme", resample_predictions=False, n_resamples=5)},
}  # fmt: skip
COUNTED = ("exact", "bootstrap", "multiplier", "consistency")


@pytest.mark.filterwarnings("ignore::kcalib.AntiConservativeWarning")
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", some(METHODS, "exact", "bootstrap", "block", "cme"))
def test_calibration_test(cupy, name, dtype):
    """p-values that are counts are equal; others to 1e-10, which is 1e-12 of the largest eigenvalue over those that
    `RANK_CUT` keeps here, and in float32 to its rounding."""
    y, p = softmax_problem(N, M, seed=1, scale=1.0)
    options = {"seed": 7, "kernel": KERNEL, "dtype": dtype, **METHODS[name]}
    expected = kcalib.calibration_test(y, p, **options)
    y, p = cupy.asarray(y), cupy.asarray(p)
    with emulated_cupy.stays_on_device(N - 1):
        found = kcalib.calibration_test(y, p, **options)
    accuracy = 1e-10 if dtype == "float64" else 1e-3
    if expected.method in COUNTED:
        assert found.pvalue == expected.pvalue
    assert found.pvalue == pytest.approx(expected.pvalue, rel=accuracy)
    assert found.statistic == pytest.approx(expected.statistic, rel=accuracy)
    assert found.seed == expected.seed
    if options["kernel"] is not None:
        assert found.backend == "cuda"
    if expected.standard_error is not None:
        assert found.confidence_interval() == pytest.approx(expected.confidence_interval(), rel=accuracy)


@pytest.mark.parametrize(
    "method, accuracy",
    [
        (kcalib.methods.Spectrum(n_eigenvalues="all"), 1e-10),
        (kcalib.methods.Spectrum(n_eigenvalues=20), 1e-6),
        (kcalib.methods.Pearson(n_eigenvalues="all"), 1e-10),
        (kcalib.methods.Gamma(), 1e-5),
    ],
)
def test_spectra(cupy, method, accuracy):
    """All eigenvalues to rounding; leading ones from products in float32, which settle p-values to 1 %.

    Roundings of float32 (1e-7) change what products find by its square for eigenvalues, and by itself for the third
    moment of the others.
    """
    n = 300
    y, p = softmax_problem(n, M, seed=2, scale=1.0)
    options = {"method": method, "kernel": KERNEL}
    expected = kcalib.calibration_test(y, p, **options)
    with emulated_cupy.stays_on_device(n * M):  # eigenvalues, and 16 x 16 products
        found = kcalib.calibration_test(cupy.asarray(y), cupy.asarray(p), **options)
    assert found.pvalue == pytest.approx(expected.pvalue, rel=accuracy)
    assert found.statistic == pytest.approx(expected.statistic, rel=1e-10)
    assert (found.n_eigenvalues, found.backend) == (expected.n_eigenvalues, "cuda")


@FEW_EVENTS
def test_binary_problems_and_the_default(cupy):
    y, p = softmax_problem(70, 2, seed=3, scale=1.0)
    for options in (
        {},
        {"method": "exact"},
        {"method": kcalib.methods.Bootstrap(**DRAWS)},
        {"method": kcalib.methods.CME(locations=2, **DRAWS)},
    ):
        expected = kcalib.calibration_test(y, p, seed=2, kernel=KERNEL, **options)
        # Four sums of each cell of probabilities, whose number does not depend on the samples; or the draws.
        at_most = {None: 4 * 3 * 1024, "exact": 999}.get(options.get("method"), 69)
        with emulated_cupy.stays_on_device(at_most):
            found = kcalib.calibration_test(cupy.asarray(y), cupy.asarray(p), seed=2, kernel=KERNEL, **options)
        assert found.method == expected.method
        assert found.pvalue == pytest.approx(expected.pvalue, rel=1e-10)


def test_ucme_and_smallest_eigenvalue(cupy):
    y, p = softmax_problem(N, M, seed=1)
    expected = kcalib.ucme.result(y, p, kernel=KERNEL, seed=3)
    with emulated_cupy.stays_on_device(30):  # ten locations, which the result lists
        found = kcalib.ucme.result(cupy.asarray(y), cupy.asarray(p), kernel=KERNEL, seed=3)
    assert (found.test_labels, found.test_predictions) == (expected.test_labels, expected.test_predictions)
    np.testing.assert_allclose(found.differences, expected.differences, rtol=0, atol=1e-15)
    with emulated_cupy.stays_on_device(1):
        smallest = kcalib.smallest_eigenvalue(cupy.asarray(p), KERNEL)
    # Eigenvalues are right to roundings of the largest, which is at most N.
    assert smallest == pytest.approx(kcalib.smallest_eigenvalue(p, KERNEL), abs=N * 1e-14)


METRICS = {
    "skce": kcalib.methods.SKCE(kernel=KERNEL),
    "ckce": kcalib.methods.CKCE(kernel=K.Linear() + K.Gaussian(bandwidth=0.5)),
    "ece": kcalib.methods.ECE(n_resamples=99),
    "brier_score": "brier_score",
    "log_loss": "log_loss",
}


def _numbers(result):
    values = [(v.value, v.standard_error, *v.confidence_interval) for v in result.models]
    return values, [(d.difference, d.standard_error, *d.confidence_interval) for d in result.differences]


@pytest.mark.parametrize("metric", some(METRICS, "skce"))
def test_compare(cupy, metric):
    y, p = softmax_problem(N, M, seed=4, scale=1.0)
    q = softmax_problem(N, M, seed=5, scale=1.0)[1]
    models = {"right": p, "half": (p + q) / 2, "again": p}
    options = {"metric": METRICS[metric]}
    expected = kcalib.compare(y, models, **options)
    with emulated_cupy.stays_on_device(100**2 if metric == "ckce" else N - 1):  # the square of a factor's rank
        found = kcalib.compare(cupy.asarray(y), {k: cupy.asarray(v) for k, v in models.items()}, **options)
    assert found.ranking == expected.ranking
    # 1e-10 of numbers of size 1; the CKCE is solved for to 1e-6 of its size.
    for a, b in zip(_numbers(found), _numbers(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6 if metric == "ckce" else 1e-10, atol=1e-14)
    pvalues = [[d.pvalue for d in result.differences] for result in (found, expected)]
    if metric == "ece":
        assert pvalues[0] == pvalues[1]
    np.testing.assert_allclose(*pvalues, rtol=1e-4 if metric == "ckce" else 1e-10)


def test_compare_by_features(cupy, monkeypatch):
    monkeypatch.setattr(metrics.skce, "PAIRS_WORK", 0)
    y, p = softmax_problem(N, M, seed=4, scale=1.0)
    models = {"right": p, "half": (p + softmax_problem(N, M, seed=5, scale=1.0)[1]) / 2}
    expected = kcalib.compare(y, models)
    found = kcalib.compare(cupy.asarray(y), {k: cupy.asarray(v) for k, v in models.items()})
    assert found.n_columns == expected.n_columns is not None
    for a, b in zip(_numbers(found), _numbers(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)


def test_compare_ece_with_more_bins_than_threads_of_a_block(cupy):
    y, p = softmax_problem(N, 2, seed=6, scale=1.0)
    models = {"a": p, "b": 0.9 * p + 0.05}
    expected = kcalib.compare(y, models, metric=kcalib.methods.ECE(n_bins=5000, n_resamples=39))
    with emulated_cupy.stays_on_device(6 * N):  # six sums of each bin
        models = {k: cupy.asarray(v) for k, v in models.items()}
        found = kcalib.compare(cupy.asarray(y), models, metric=kcalib.methods.ECE(n_bins=5000, n_resamples=39))
    np.testing.assert_allclose(_numbers(found)[1], _numbers(expected)[1], rtol=1e-10)
    assert found.differences[0].pvalue == expected.differences[0].pvalue


NORMALS = {
    "exact": {"method": kcalib.methods.Exact(n_resamples=3)},
    "bootstrap": {"method": kcalib.methods.Bootstrap(**DRAWS)},
    "gamma": {"method": kcalib.methods.Gamma("residuals")},
    "multiplier": {"method": kcalib.methods.Multiplier(**DRAWS)},
    "block": {"method": "block"},
    "distribution_free": {"method": "distribution_free"},
    "cme": {"method": kcalib.methods.CME(locations=3, **DRAWS)},
    "cme, conditional": {"method": kcalib.methods.CME(locations=3, reference="conditional")},
    "cme, F": {"method": kcalib.methods.CME(reference="F")},
    "consistency": {"method": kcalib.methods.Consistency(n_resamples=3, resample_predictions=False)},
}


@FEW_EVENTS
@pytest.mark.parametrize("name", some(NORMALS, *list(NORMALS)[::3]))
def test_calibration_test_of_distributions(cupy, name):
    rng = np.random.default_rng(0)
    mean, deviation = rng.normal(size=N), np.exp(0.3 * rng.normal(size=N))
    y = rng.normal(mean, 1.1 * deviation)
    options = {"kernel": K.Exponential(bandwidth=0.7, metric="wasserstein"), "seed": 5, **NORMALS[name]}
    options["target_kernel"] = K.Gaussian(bandwidth=0.8)
    expected = kcalib.calibration_test(y, Normal(mean, deviation), **options)
    with emulated_cupy.stays_on_device(N - 1):
        prediction = Normal(cupy.asarray(mean), cupy.asarray(deviation))
        found = kcalib.calibration_test(cupy.asarray(y), prediction, **options)
    if expected.method in COUNTED:
        assert found.pvalue == expected.pvalue
    assert found.pvalue == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.statistic == pytest.approx(expected.statistic, rel=1e-9)


def test_a_users_estimator_gets_arrays_on_the_device(cupy):
    y, p = softmax_problem(N, M, seed=1)

    def on_the_host(labels, probabilities):
        return float(np.mean((labels == 0) - probabilities[:, 0]))

    def on_the_device(labels, probabilities):
        return float(cupy.mean((labels == 0) - probabilities[:, 0]))

    def method(estimator):
        return kcalib.methods.Consistency(estimator, n_resamples=9, resample_predictions=False)

    expected = kcalib.calibration_test(y, p, method=method(on_the_host), seed=1)
    with emulated_cupy.stays_on_device(1):
        found = kcalib.calibration_test(cupy.asarray(y), cupy.asarray(p), method=method(on_the_device), seed=1)
    assert found.pvalue == expected.pvalue
