"""The CME test: by hand, against literal computations, its level and power, and its limits."""

from __future__ import annotations

import itertools
import math
import pickle
import re
import sys
import warnings

import numpy as np
import pytest
import scipy.stats
from hard_laws import LAWS
from oracle import literal_differences
from problems import (
    KERNELS,
    binomial_bounds,
    draw_labels,
    locations,
    psd_matrix,
    softmax_problem,
    w19_labels,
    w19_predictions,
)

import kcalib
from kcalib import _packing
from kcalib._backend.random import draw_label_batches
from kcalib._input.labels import prepare
from kcalib.estimators.skce import PairOptions
from kcalib.inference import cme, location_moments
from kcalib.inference.cme import CME
from kcalib.kernels import Exponential
from kcalib.laws import _law

mpmath = pytest.importorskip("mpmath")
KERNEL = Exponential(bandwidth=0.5)


def run(y, p, kernel=KERNEL, target_kernel="delta", dtype=None, backend=None, reference="F", seed=0, **options):
    pair_options = PairOptions(kernel, target_kernel, backend)
    return CME(reference=reference, **options).outcome(prepare(y, p, dtype=dtype), pair_options, seed)


def literal_values(kernel, y, p, given, m_matrix=None):
    """The n values z_i, each the literal difference of one sample, shape (n, J)."""
    labels, points = given["locations"]
    rows = [literal_differences(kernel, y[i : i + 1], p[i : i + 1], labels, points, m_matrix) for i in range(len(y))]
    return np.array(rows).astype(float)


def test_two_samples_one_location_by_hand():
    """F(1, 1) is the square of a Cauchy variable; z = (0.2, 0.6) times the kernel of sqrt(2) times (0.3, 0.1)."""
    z1, z2 = 0.2 * math.exp(-0.3 * math.sqrt(2)), 0.6 * math.exp(-0.1 * math.sqrt(2))
    mean, variance = (z1 + z2) / 2, (z1 - z2) ** 2 / 2
    statistic = 2 * mean**2 / variance
    given = {"locations": ([0], [[0.5, 0.5]])}
    result = run([0, 0], [[0.8, 0.2], [0.4, 0.6]], Exponential(bandwidth=1.0), **given)
    assert result.statistic == pytest.approx(statistic, rel=1e-12)
    assert result.pvalue == pytest.approx(1 - 2 / math.pi * math.atan(math.sqrt(statistic)), rel=1e-12)
    assert result.log_pvalue == pytest.approx(math.log(result.pvalue), rel=1e-12)
    assert result.estimate == pytest.approx(mean**2, rel=1e-14)
    # Under calibration the variances are k^2 p (1 - p): 0.16 and 0.24 times the squared kernel.
    k1, k2 = z1 / 0.2, z2 / 0.6
    chi2 = 2 * mean**2 / ((0.16 * k1**2 + 0.24 * k2**2) / 2)
    result = run([0, 0], [[0.8, 0.2], [0.4, 0.6]], Exponential(bandwidth=1.0), reference="conditional", **given)
    assert result.statistic == pytest.approx(chi2, rel=1e-12)
    assert result.pvalue == pytest.approx(math.erfc(math.sqrt(chi2 / 2)), rel=1e-12)


@pytest.mark.parametrize(("name", "rank"), [("exponential", None), ("gaussian", 2), ("mixed", None), ("mixed", 3)])
def test_hotelling_against_a_literal_computation(name, rank):
    y, p = softmax_problem(40, 3, scale=1.0)
    matrix = None if rank is None else psd_matrix(3, rank)
    given = locations(5, 3)
    z = literal_values(KERNELS[name], y, p, given, matrix)
    q = 40 * z.mean(axis=0) @ np.linalg.solve(np.cov(z, rowvar=False), z.mean(axis=0))
    target = "delta" if matrix is None else matrix
    result = run(y, p, KERNELS[name], target, **given)
    # Rounding of S, 1e-16, times its condition.
    tolerance = 1e-15 * np.linalg.cond(np.corrcoef(z, rowvar=False)) + 1e-12
    assert result.statistic == pytest.approx(35 / (5 * 39) * q, rel=tolerance)
    assert result.pvalue == pytest.approx(scipy.stats.f.sf(result.statistic, 5, 35), rel=1e-10)
    chi2 = run(y, p, KERNELS[name], target, reference="chi2", **given)
    assert chi2.statistic == pytest.approx(q, rel=tolerance)
    assert chi2.pvalue == pytest.approx(scipy.stats.chi2.sf(chi2.statistic, 5), rel=1e-10)
    options = {"kernel": KERNELS[name], "target_kernel": target}
    assert result.estimate == chi2.estimate == kcalib.ucme(y, p, **options, **given)
    assert (result.rank, result.n_locations, result.reference, chi2.reference) == (5, 5, "F", "chi2")


@pytest.mark.parametrize("rank", [None, 2])
def test_conditional_covariance_is_that_over_all_labels(rank):
    """With the labels of 4 samples enumerated, the mean of Q over them is J, exactly; Q is not constant."""
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(3), size=4)
    matrix = None if rank is None else psd_matrix(3, rank)
    given = locations(3, 3)
    mean, values = 0.0, []
    for labels in itertools.product(range(3), repeat=4):
        target = "delta" if matrix is None else matrix
        result = run(list(labels), p, target_kernel=target, reference="conditional", **given)
        mean += result.statistic * np.prod(p[np.arange(4), labels])
        values.append(result.statistic)
    assert result.rank == 3
    assert mean == pytest.approx(3, rel=1e-10)
    assert max(values) > 2 * min(values)


@pytest.mark.parametrize("reference", cme.REFERENCES)
def test_array_libraries(xp, reference):
    y, p = softmax_problem(60, 4, scale=1.0)
    host = run(y, p, reference=reference, locations=6)
    result = run(xp.asarray(y), xp.asarray(p), reference=reference, locations=6)
    assert result.description["backend"] == xp.backend
    assert result.statistic == pytest.approx(host.statistic, rel=1e-9)
    assert result.pvalue == pytest.approx(host.pvalue, rel=1e-8)
    assert (result.test_labels, result.test_predictions) == (host.test_labels, host.test_predictions)


@pytest.mark.parametrize("reference", cme.REFERENCES)
def test_float32(reference):
    y, p = softmax_problem(60, 3, scale=1.0)
    given = locations(4, 3)
    double = run(y, p, reference=reference, **given)
    single = run(y, p, dtype="float32", reference=reference, **given)
    z = literal_values(KERNEL, y, p, given)
    condition = np.linalg.cond(np.corrcoef(z, rowvar=False))
    assert single.statistic == pytest.approx(double.statistic, rel=4 * np.finfo("f4").eps * condition)


@pytest.mark.parametrize("reference", cme.REFERENCES)
def test_blocks_of_samples_change_nothing(reference, monkeypatch):
    y, p = softmax_problem(100, 3, scale=1.0)
    whole = run(y, p, reference=reference)
    monkeypatch.setattr(location_moments, "BLOCK_ELEMENTS", 70)
    assert run(y, p, reference=reference).statistic == pytest.approx(whole.statistic, rel=1e-9)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_no_bit(threads):
    y, p = softmax_problem(400, 12)
    data = prepare(y, p)
    for reference in cme.REFERENCES:
        one, other = (CME(reference=reference).outcome(data, PairOptions(KERNEL, threads=t), 0) for t in (1, threads))
        assert one == other


@pytest.mark.parametrize(("n_locations", "rank"), [(3, None), (11, 2)])
def test_drawn_labels_have_the_differences_of_these_labels(n_locations, rank):
    """Of more samples than are summed at a time; the same bits for any number of threads."""
    y, p = softmax_problem(9000, 4)
    matrix = None if rank is None else psd_matrix(4, rank)
    data = prepare(y, p)
    places = cme.locations_for(data, n_locations, 0)
    found = []
    for threads in (1, 2):
        options = PairOptions(Exponential(bandwidth=0.5), matrix, None, threads)
        packed = _packing.pack_locations(data, places.data, options.kernel, matrix, threads=threads)
        backend = options.backend_for(packed.problem)
        found.append(cme.drawn_differences(data, places.data, packed, backend, 3, 1))
    assert np.array_equal(*found)
    at, chosen = places.data.probabilities, places.data.labels
    kernel = np.exp(-np.linalg.norm(at[:, None] - p, axis=2) / 0.5)
    values = (np.eye(4) if matrix is None else matrix)[chosen]
    (drawn,) = draw_label_batches(p, 3, 1, at_once=3)
    for labels, differences in zip(drawn.T, found[0].T, strict=True):
        expected = np.mean(kernel * (values @ (np.eye(4)[labels] - p).T), axis=1)
        assert differences == pytest.approx(expected, rel=0, abs=1e-14)


def test_outcome_is_plain():
    y, p = softmax_problem(40, 3)
    result = run(np.array(["a", "b", "c"])[y], p, locations=3, seed=5)
    assert pickle.loads(pickle.dumps(result)) == result
    assert set(result.test_labels) <= {"a", "b", "c"} and result.seed == 5
    assert run(y, p, locations=3, seed=6).statistic != result.statistic


# The tails


@pytest.mark.parametrize("d1", [1, 2, 5, 10])
@pytest.mark.parametrize("d2", [1, 6, 40, 990])
def test_log_tail_of_f(d1, d2):
    mpmath.mp.dps = 40
    for x in (1e-3, 0.5, 1.0, 3.0, 50.0, 1e4, 1e40, 1e250):
        w = mpmath.mpf(d2) / (d2 + mpmath.mpf(d1) * x)
        expected = mpmath.log(mpmath.betainc(mpmath.mpf(d2) / 2, mpmath.mpf(d1) / 2, 0, w, regularized=True))
        assert _law.log_sf_f(x, d1, d2) == pytest.approx(float(expected), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("d", [1, 2, 5, 10, 101])
def test_log_tail_of_chi2(d):
    mpmath.mp.dps = 40
    for x in (1e-3, 0.5, 5.0, 100.0, 1400.0, 1e4, 1e8):
        expected = mpmath.log(mpmath.gammainc(mpmath.mpf(d) / 2, mpmath.mpf(x) / 2, regularized=True))
        assert _law.log_sf_chi2(x, d) == pytest.approx(float(expected), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("reference", ["F", "chi2", "conditional"])
def test_far_tail_has_a_logarithm(reference):
    y, p = softmax_problem(5000, 3, scale=1.0)
    result = run((y + 1) % 3, p, reference=reference)
    assert result.pvalue == 0.0
    assert -1e6 < result.log_pvalue < -1000


# Level and power


@pytest.mark.parametrize("n", [16, 50, 250])
def test_level_for_normal_values(n):
    """F keeps its level exactly; chi-square rejects as often as the F law says, at n = 16 far too often."""
    n_locations, repetitions = 10, 1000
    rng = np.random.default_rng(n)
    root = rng.normal(size=(n_locations, n_locations))
    pvalues = {"F": [], "chi2": []}
    for _ in range(repetitions):
        z = root @ rng.normal(size=(n_locations, n))
        covariance = location_moments.Covariance(np.cov(z), np.max(np.abs(z), axis=1))
        whitening = cme.Whitening.of(covariance, "float64")
        value = float(whitening.forms(z.mean(axis=1)[:, None], n)[0])
        for reference, found in pvalues.items():
            found.append(math.exp(cme._compute_pvalue(value, whitening.rank, n, reference)[1]))
    scale = (n - n_locations) / (n_locations * (n - 1))
    for alpha in (0.01, 0.05, 0.1):
        low, high = binomial_bounds(repetitions, alpha)
        assert low <= np.mean(np.array(pvalues["F"]) < alpha) <= high
        true = scipy.stats.f.sf(scale * scipy.stats.chi2.isf(alpha, n_locations), n_locations, n - n_locations)
        low, high = binomial_bounds(repetitions, true)
        assert low <= np.mean(np.array(pvalues["chi2"]) < alpha) <= high
    if n == 16:
        assert np.mean(np.array(pvalues["chi2"]) < 0.05) > 0.6


def rejections(model, predictions, kernel, n_locations, reference, repetitions, seed=2021):
    rng = np.random.default_rng(seed)
    options = PairOptions(kernel, threads=1)
    pvalues = np.empty(repetitions)
    for i in range(repetitions):
        p = predictions(rng)
        y = draw_labels(p, rng) if model == "M1" else w19_labels(model, p, rng)
        outcome = CME(n_locations, reference=reference).outcome(prepare(y, p), options, i)
        pvalues[i] = outcome.pvalue
    return {alpha: np.mean(pvalues < alpha) for alpha in (0.01, 0.05, 0.1)}


@pytest.mark.parametrize(
    ("predictions", "bandwidth", "n_locations"),
    [
        pytest.param(lambda rng: w19_predictions(250, rng), 0.5, 10, marks=pytest.mark.slow),
        pytest.param(lambda rng: rng.dirichlet(np.ones(3), size=50), 0.3, 5, marks=pytest.mark.slow),
        (lambda rng: rng.dirichlet(np.ones(2), size=250), 0.3, 5),
    ],
    ids=["W19", "three classes", "binary"],
)
def test_conditional_keeps_its_level(predictions, bandwidth, n_locations):
    shares = rejections("M1", predictions, Exponential(bandwidth=bandwidth), n_locations, "conditional", 400)
    for alpha, share in shares.items():
        low, high = binomial_bounds(400, alpha)
        assert low <= share <= high, f"type I error {share} at level {alpha}"


def whitened(p, n_locations):
    """What the test has for predictions, and where their locations are."""
    data, options = prepare(np.zeros(len(p), int), p), PairOptions(KERNEL, threads=1)
    places = cme.locations_for(data, n_locations, 0)
    packed = _packing.pack_locations(data, places.data, KERNEL, None, threads=1)
    about = data, places.data, packed, options.backend_for(packed.problem)
    return cme.Whitening.of(location_moments.covariance_given_predictions(*about, 0), "float64"), about


# Where 40,000 predictions leave 10,000 events open at ten locations.
OPEN = ("Dir(1), m = 10", "20 distinct rows")
EVERY_LAW = [pytest.param(name, 40_000, 10, 5000, marks=pytest.mark.slow) for name in LAWS]


@pytest.mark.parametrize(("law", "n", "n_locations", "count"), [("skewed, m = 100", 12_000, 1, 500), *EVERY_LAW])
def test_where_the_limit_law_is_taken_it_is_that_of_draws(law, n, n_locations, count):
    """The tails of draws of Q, down to 1e-3."""
    whitening, about = whitened(LAWS[law].draw(n, np.random.default_rng(3)), n_locations)
    events = cme._open_events(*about, whitening)
    assert (events is not None) == (n_locations == 1 or law in OPEN)
    if events is None:
        return
    drawn = whitening.forms(cme.drawn_differences(*about, count, 1), n)
    for level in (0.5, 0.1, 0.05, 0.01, 0.001):
        low, high = binomial_bounds(count, level)
        assert low <= np.mean(drawn >= scipy.stats.chi2.isf(level, whitening.rank) * (1 - 1e-6)) <= high


FEW = ("saturated, 1e-8..1e-4", "rare, Beta(.1, 100)", "one sample", "all are certain but ten")
OTHERS = [pytest.param(name, marks=pytest.mark.grid) for name in LAWS if name not in FEW]


@pytest.mark.parametrize("law", [*FEW, *OTHERS])
def test_few_open_events_are_drawn(law):
    """Confident, rare, tied and few predictions, whatever their labels."""
    rng = np.random.default_rng(5)
    if law in LAWS:
        p = LAWS[law].draw(4000, rng)
    else:
        p = np.eye(3)[np.zeros(1 if law == "one sample" else 5000, int)]
        p[:10] = 1 / 3
    n_locations = 5 if law in LAWS else 1
    for y in (np.zeros(len(p), int), p.argmax(axis=1)):
        result = kcalib.calibration_test(y, p, method=CME(n_locations), kernel=KERNEL, seed=1)
        assert (result.pvalue_from, result.n_resamples) == ("draws", 999)
        assert result.null_law == "999 draws from the predictions"


def test_open_events_are_those_of_the_fourth_moments():
    """Of equal binary predictions of p: n 3 / E z^4 for z of variance 1, E z^4 = (1 - 3 p q) / (p q), but at most n."""
    for q in (0.5, 0.01):
        whitening, about = whitened(np.tile([1 - q, q], (400_000, 1)), 1)
        expected = min(1.0, 3 * q * (1 - q) / (1 - 3 * q * (1 - q)))
        assert cme._open_events(*about, whitening) == pytest.approx(400_000 * expected, rel=1e-9)
    whitening, about = whitened(np.tile([0.99, 0.01], (300_000, 1)), 1)
    assert cme._open_events(*about, whitening) is None  # 9182
    p = np.random.default_rng(0).dirichlet(np.ones(3), size=12_000)
    whitening, about = whitened(p, 4)
    places = about[1]
    kernel = np.exp(-np.linalg.norm(places.probabilities[:, None] - p, axis=2) / 0.5)
    fourth = 0.0
    for label in range(3):
        values = kernel * ((places.labels == label)[:, None] - p[:, places.labels].T)
        fourth += np.mean(p[:, label] * np.sum((whitening.directions.T @ values) ** 2, axis=0) ** 2)
    assert location_moments.fourth_moment(*about, whitening.directions) == pytest.approx(fourth, rel=1e-9)


@pytest.mark.parametrize("q", [0.5, 0.25])
def test_steps_of_equal_predictions_are_within_5_percent(q):
    """Q of n equal binary predictions is that of a binomial variable, whose steps are widest where q = 1 / 2."""
    found = {n: whitened(np.tile([1 - q, q], (n, 1)), 1) for n in range(3000, 12_000, 500)}
    n = min(n for n, (whitening, about) in found.items() if cme._open_events(*about, whitening) is not None)
    counts = np.arange(n + 1)
    forms, chance = (counts - n * q) ** 2 / (n * q * (1 - q)), scipy.stats.binom.pmf(counts, n, q)
    for at in (1.0, 2.0, 2.6, 3.0, 3.2):
        form = forms[int(n * q + at * math.sqrt(n * q * (1 - q)))]
        exact = np.sum(chance[forms >= form * (1 - 1e-9)])
        assert scipy.stats.chi2.sf(form, 1) == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize(("events", "is_enough"), [(0.5, False), (50.0, True)])
def test_one_of_many_locations_has_too_few_events(events, is_enough, monkeypatch):
    """200 directions in which z is normal, and one of few events: where it counts the law of Q has a heavier tail."""
    n, rank = 30_000, 201
    fourth = rank * (rank + 2) + n / events  # a Poisson variable's share is its excess, 1 / events, n times
    monkeypatch.setattr(cme, "fourth_moment", lambda *_: fourth)
    assert n * rank * (rank + 2) / fourth > cme.ENOUGH_EVENTS
    counts = np.arange(1000)
    rest = np.maximum(0, scipy.stats.chi2.isf(1e-3, rank) - (counts - events) ** 2 / events)
    exact = np.sum(scipy.stats.poisson.pmf(counts, events) * scipy.stats.chi2.sf(rest, rank - 1))
    assert (exact < 1.05e-3) == is_enough
    whitening = cme.Whitening(np.ones(rank), np.ones(rank, bool), np.zeros(rank), np.eye(rank))
    data = prepare(np.zeros(n, int), np.tile([0.5, 0.5], (n, 1)))
    assert (cme._open_events(data, None, None, None, whitening) is not None) == is_enough


def test_many_open_events_take_the_law():
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(4), size=12_000)
    y = draw_labels(p, rng)
    method = CME(locations=3)
    result = kcalib.calibration_test(y, p, method=method, kernel=KERNEL, seed=1)
    assert (result.pvalue_from, result.n_resamples, result.seed) == ("law", None, 1)
    assert re.fullmatch(
        r"chi-square law with 3 degrees of freedom, .* predictions, which leave about \S+ uncertain events",
        result.null_law,
    )
    same = kcalib.calibration_test(y, p, method=CME(locations=3, reference="conditional"), kernel=KERNEL, seed=1)
    assert (same.pvalue, same.statistic) == (result.pvalue, result.statistic)
    for asked in (CME(locations=3, n_resamples=999), CME(locations=3, reference="draws")):
        drawn = kcalib.calibration_test(y, p, method=asked, kernel=KERNEL, seed=1)
        assert (drawn.pvalue_from, drawn.n_resamples, drawn.statistic) == ("draws", 999, result.statistic)
        assert abs(drawn.pvalue - result.pvalue) < 4 * math.sqrt(result.pvalue * (1 - result.pvalue) / 999)


def test_a_certain_prediction_that_is_wrong_is_drawn():
    """Q is infinite; its draws say no more than 1 / (R + 1)."""
    p = np.random.default_rng(0).dirichlet(np.ones(3), size=4000)
    p[:1000] = [1.0, 0.0, 0.0]
    given = {"locations": ([0], [[1.0, 0.0, 0.0]])}
    kernel = kcalib.kernels.Gaussian(bandwidth=1e-3)
    y = (np.arange(4000) < 1000).astype(int)
    result = kcalib.calibration_test(y, p, method=CME(n_resamples=None, **given), kernel=kernel, seed=0)
    assert (result.pvalue, result.pvalue_from) == (1e-3, "draws")


@pytest.mark.grid
def test_small_samples_reject_too_often_as_documented():
    """Calibrated binary predictions, values far from normal: chi-square is wrong, F less so, but still is."""

    def predictions(rng):
        return rng.dirichlet(np.ones(2), size=16)

    kernel = Exponential(bandwidth=0.3)
    shares = {r: rejections("M1", predictions, kernel, 10, r, 400)[0.05] for r in cme.REFERENCES}
    assert shares["chi2"] > binomial_bounds(400, 0.85)[0]
    assert binomial_bounds(400, 0.05)[1] < shares["F"] < binomial_bounds(400, 0.3)[1]
    # Measured: 0.08; not derived.
    assert shares["conditional"] < binomial_bounds(400, 0.1)[1]


@pytest.mark.parametrize("reference", ["F", "conditional"])
def test_power(reference):
    """W19's M2 and M3."""
    for model in ("M2", "M3"):
        shares = rejections(model, lambda rng: w19_predictions(250, rng), KERNEL, 10, reference, 60)
        assert shares[0.05] > binomial_bounds(60, 0.9)[0]


# Limits


def test_duplicated_locations_count_once():
    y, p = softmax_problem(60, 3, scale=1.0)
    given = locations(4, 3)
    twice = {"locations": tuple(np.concatenate([a, a[:2]]) for a in given["locations"])}
    for reference in cme.REFERENCES:
        once, again = (run(y, p, reference=reference, **g) for g in (given, twice))
        assert (again.rank, again.n_locations) == (4, 6)
        assert again.pvalue == pytest.approx(once.pvalue, rel=1e-8)


@pytest.mark.parametrize("reference", cme.REFERENCES)
def test_one_hot_and_right_is_calibrated(reference):
    y = np.arange(30) % 3
    result = run(y, np.eye(3)[y], reference=reference)
    assert (result.statistic, result.pvalue, result.log_pvalue, result.rank, result.estimate) == (0.0, 1.0, 0.0, 0, 0.0)


def test_rounded_rows_are_no_evidence():
    """Rows (1 - 1e-7, 0, 0), as float32 networks write them, and right in all of 1000 samples."""
    p = np.tile(np.array([1 - 1e-7, 0, 0], dtype=np.float32), (1000, 1))
    given = {"locations": ([0], [[1.0, 0.0, 0.0]])}
    result = run(np.zeros(1000, dtype=int), p, reference="conditional", **given)
    # No error among 1000 samples of probability 1.2e-7 each: Q = n r^2 / (r (1 - r)), r = 2^-23.
    assert result.statistic == pytest.approx(1000 * 2.0**-23, rel=1e-3)
    assert result.pvalue > 0.9


def test_certain_and_wrong_has_p_value_zero():
    p = np.eye(3)[np.zeros(30, dtype=int)]
    given = {"locations": ([0], [[1.0, 0.0, 0.0]])}
    result = run(np.ones(30, dtype=int), p, reference="conditional", **given)
    assert (result.statistic, result.pvalue, result.log_pvalue) == (math.inf, 0.0, -math.inf)
    with pytest.raises(ValueError, match="the values at test location 0 are the same, and not 0, for all 30 samples"):
        run(np.ones(30, dtype=int), p, **given)


def test_label_that_never_occurs():
    """Equal predictions: the second location sees -0.1 in every sample; a calibrated model must not get p = 0."""
    p = np.tile([0.5, 0.4, 0.1], (12, 1))
    y = np.arange(12) % 2
    given = {"locations": ([0, 2], p[:2])}
    with pytest.raises(ValueError, match="test location 1 are the same, and not 0.*use reference='conditional'"):
        run(y, p, **given)
    result = run(y, p, reference="conditional", **given)
    # (N - n p)^T (n (diag(p) - p p^T))^-1 (N - n p) of the counts 6 and 0 of classes 0 and 2: Pearson's chi-square.
    expected = scipy.stats.chisquare([6, 6, 0], [6, 4.8, 1.2])
    assert result.statistic == pytest.approx(expected.statistic, rel=1e-10)
    assert result.pvalue == pytest.approx(expected.pvalue, rel=1e-10)


@pytest.mark.parametrize("reference", ["F", "chi2"])
def test_too_few_samples(reference):
    y, p = softmax_problem(10, 3)
    message = (
        f"reference='{reference}' needs more samples than test locations, `y_true` has 10 for 10 locations; use fewer"
    )
    with pytest.raises(ValueError, match=message):
        run(y, p, reference=reference)
    assert run(y, p, reference="conditional", locations=20).pvalue > 0
    assert 0 < run(y, p, reference=reference, locations=9).pvalue <= 1
    with pytest.raises(ValueError, match="`y_true` has 1 for 10 locations; use reference='conditional'"):
        run(y[:1], p[:1], reference=reference)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference": "t"}, "`reference` is 't', expected one of 'auto', 'draws', 'conditional', 'F', 'chi2'"),
        ({"n_resamples": 0}, "`n_resamples` is 0, expected an integer between 1"),
        ({"n_resamples": 99, "reference": "F"}, "`n_resamples` is 99, but reference='F' draws nothing; leave it out"),
        ({"locations": 0}, "`locations` is 0, expected an integer between 1"),
        ({"locations": 100_001}, "`locations` is 100001, expected an integer between 1 and 100000"),
        ({"locations": ([0],)}, "`locations` has 1 entries, expected a pair of labels and predictions"),
        ({"from_logits": True}, "`from_logits` is True, but no `locations` are given; it is for these"),
    ],
)
def test_messages(options, message):
    """When the object is made, before there are any data."""
    with pytest.raises(ValueError, match=message):
        CME(**options)


def test_logits_are_not_distributions():
    rng = np.random.default_rng(0)
    prediction = kcalib.distributions.Normal(rng.normal(size=20), np.ones(20))
    method = CME(locations=([0.0, 1.0], prediction.take(np.arange(2))), from_logits=True)
    with pytest.raises(ValueError, match="`from_logits` is for class probabilities, but `locations\\[1\\]` is Normal"):
        kcalib.calibration_test(rng.normal(size=20), prediction, method=method)


def test_given_logits():
    y, p = softmax_problem(30, 3)
    given = locations(4, 3)
    labels, predictions = given["locations"]
    logits = {"locations": (labels, np.log(predictions) + 1.0)}
    assert run(y, p, from_logits=True, **logits).statistic == pytest.approx(run(y, p, **given).statistic, rel=1e-9)


def test_warning_points_at_the_users_line():
    y, p = softmax_problem(30, 3)
    kernel = kcalib.kernels.Gaussian(bandwidth=0.5, metric="cityblock")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kcalib.calibration_test(y, p, method="cme", kernel=kernel); line = sys._getframe().f_lineno  # fmt: skip  # noqa: E702
    assert [(w.category, w.filename, w.lineno) for w in caught] == [(kcalib.IndefiniteKernelWarning, __file__, line)]


def test_one_draw_is_a_test():
    y, p = softmax_problem(30, 3)
    found = kcalib.calibration_test(y, p, method=CME(locations=3, n_resamples=1), kernel=Exponential(bandwidth=0.5))
    assert found.pvalue in (0.5, 1.0)
