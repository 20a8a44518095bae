"""Which number is said where the statistic is above all draws: what draws contradict, and what they do not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from problems import draw_labels, softmax_problem

import kcalib
from kcalib import methods
from kcalib._input.forecasts import prepare
from kcalib._packing.features import feature_problem
from kcalib.distributions import Normal, Poisson
from kcalib.inference import exact
from kcalib.inference.conditional_spectrum import make_feature_matrix
from kcalib.inference.quadratic import NullLaw
from kcalib.inference.spectrum import limit_law
from kcalib.inference.tail import Tail, agree, beyond_draws, tail_agrees
from kcalib.kernels import Exponential, Gaussian
from kcalib.laws import ChiSquareMixture

LAW = ChiSquareMixture([0.6, 0.3, 0.2, -0.1])
FOUND = NullLaw(-math.log(200), "199 draws", n_resamples=199, pvalue=1 / 200, pvalue_from="draws")


def drawn(count: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return scale * (LAW.rvs(count, seed) - LAW.mean)


EXPONENTS = np.linspace(0.0, 12.0, 60)[1:]
QUANTILES = LAW.isf(10.0**-EXPONENTS) - LAW.mean


def tail_of(count: int, factor: float = 1.0, own: float = -50.0, least: float = 10.0) -> Tail:
    """Draws that are uniform in the exponent of their p-value, with the weights of the law, or `factor` times them."""
    exponents = np.random.default_rng(1).uniform(EXPONENTS[0], 8, size=count)
    values = np.interp(exponents, EXPONENTS, QUANTILES)
    weights = 8 * math.log(10) * 10.0**-exponents * np.where(exponents > 2, factor, 1.0)
    return Tail(values, np.log(weights), values >= least, own)


def test_draws_of_the_law_agree_and_others_do_not():
    assert all(agree(drawn(199, seed), LAW) for seed in range(20))
    assert sum(agree(drawn(999, seed, scale=1.5), LAW) for seed in range(20)) == 0
    # A law with the same variance and another shape: rare events.
    rng = np.random.default_rng(0)
    events = rng.poisson(0.05, size=(20, 999))
    rare = (events * (events - 1) - 0.05**2) * math.sqrt(LAW.var / 2) / 0.05
    assert not any(agree(sample, LAW) for sample in rare)


def test_tilted_draws_that_contradict_the_law():
    for known in (True, False):
        assert tail_agrees(tail_of(4000), LAW, needs_all=known)
        assert not tail_agrees(tail_of(4000, factor=2.0), LAW, needs_all=known)
        assert tail_agrees(tail_of(20), LAW, needs_all=known) == (not known)  # they do not know


@pytest.mark.parametrize(
    ("statistic", "events", "tail", "source"),
    [
        (10.0, 3000, None, "law"),
        (10.0, 1000, None, "draws"),
        (10.0, 1000, tail_of(4000, least=10.0), "tilted draws"),
        (35.0, 1000, tail_of(4000, least=35.0, own=-20.0), "law"),
        (35.0, 50, tail_of(4000, least=35.0, own=-20.0), "tilted draws"),
        (35.0, 1000, tail_of(20, least=35.0, own=-20.0), "tilted draws"),
        (35.0, 3000, tail_of(20, least=35.0, own=-20.0), "law"),
        (35.0, 3000, tail_of(4000, least=35.0, own=-70.0), "tilted draws"),  # know more than the law
        (35.0, 1000, tail_of(4000, factor=2.0, least=35.0, own=-20.0), "tilted draws"),
        (35.0, 50, tail_of(4000, own=10.0, least=35.0), "draws"),
    ],
)
def test_the_order(statistic, events, tail, source):
    found = beyond_draws(FOUND, statistic, drawn(199), events=lambda: events, law=lambda: LAW, tail=tail)
    assert found.pvalue_from == source
    if source == "draws":
        assert found == FOUND
    elif source == "law":
        assert found.log_pvalue == LAW.logsf(statistic + LAW.mean)
        assert found.description == "199 draws; beyond them the limit law of many samples, which they do not contradict"
    else:
        assert found.log_pvalue == tail.log_pvalue < FOUND.log_pvalue


def test_where_some_draws_are_as_large_nothing_is_asked():
    found = NullLaw(math.log(0.01), "199 draws", n_resamples=199, pvalue=0.01, pvalue_from="draws")
    assert beyond_draws(found, 9.0, drawn(199), events=pytest.fail, law=pytest.fail) is found


@pytest.mark.parametrize("name", ["classes", *(pytest.param(k, marks=pytest.mark.slow) for k in ("normal", "Poisson"))])
def test_the_law_of_features_is_that_of_its_draws(name):
    means, n, count = np.random.default_rng(5).uniform(1, 4, size=1200), 1200, 3000
    if name == "classes":
        y, prediction, kernel, target_kernel = np.zeros(n, dtype=int), softmax_problem(n, 3)[1], Exponential(0.5), None
    else:
        y, kernel = np.ones(n), Exponential(bandwidth=1.0)
        prediction, target_kernel = Poisson(means) if name == "Poisson" else Normal(means, 0.5 + means / 4), kernel
    problem = feature_problem(prepare(y, prediction), kernel, target_kernel, n_columns=32, seed=0)
    totals = problem.drawn_totals(count, 1) / (n - 1)
    law = limit_law(make_feature_matrix(problem, problem.n), 3 * float(np.std(totals)))
    assert np.mean(totals**2) == pytest.approx(law.var, rel=0.15)
    for level in (0.5, 0.1, 0.01):
        beyond = int(np.sum(totals > law.isf(level) - law.mean))
        assert abs(beyond - count * level) < 4.5 * math.sqrt(count * level)


@pytest.mark.grid
def test_features_of_distributions_go_on_below_the_draws():
    rng, n = np.random.default_rng(6), 3000
    means = rng.normal(size=n)
    y, kernel = means + rng.normal(size=n), Gaussian(bandwidth=1.0)
    method = methods.Features(n_columns=16, n_resamples=99)
    for deviation, source in ((1.0, "draws"), (1.3, "law")):
        prediction = Normal(means, np.full(n, deviation))
        found = kcalib.calibration_test(y, prediction, method=method, kernel=kernel, target_kernel=kernel, seed=0)
        assert found.pvalue_from == source
        assert (found.pvalue < 1e-6) == (source == "law")


def test_features_say_where_the_number_is_from():
    _, p = softmax_problem(6000, 3, scale=1.0)
    rng = np.random.default_rng(0)
    near = kcalib.calibration_test(draw_labels(p, rng), p, method="features", seed=0)
    assert (near.pvalue_from, near.pvalue > 0.01) == ("draws", True)
    q = p**0.6 / np.sum(p**0.6, axis=1, keepdims=True)
    far = draw_labels(q, rng)
    found = kcalib.calibration_test(far, p, method="features", seed=0)
    assert found.pvalue_from == "law"
    all_pairs = kcalib.calibration_test(far, p, method=methods.Spectrum())
    assert found.log_pvalue == pytest.approx(all_pairs.log_pvalue, rel=0.2)
    few = kcalib.calibration_test(far[:1500], p[:1500], method="features", seed=0)
    assert (few.pvalue, few.pvalue_from) == (0.005, "draws")
    # Confident predictions, some of them wrong: no law of many samples.
    errors = 10.0 ** rng.uniform(-8, -4, size=6000)
    p = np.tile(errors[:, None], (1, 4))
    p[np.arange(6000), rng.integers(4, size=6000)] = 1 - 3 * errors
    y = np.where(rng.uniform(size=6000) < 0.01, 0, p.argmax(axis=1))
    confident = kcalib.calibration_test(y, p, method="features", seed=0)
    assert (confident.pvalue, confident.pvalue_from) == (0.005, "draws")


@pytest.mark.grid
def test_labels_are_tilted_only_where_the_law_says_nothing(monkeypatch):
    tails, tail = [], exact._tail
    monkeypatch.setattr(exact, "_tail", lambda *arguments: tails.append(1) or tail(*arguments))
    rng = np.random.default_rng(0)
    p = rng.uniform(size=6000)
    y = (rng.uniform(size=6000) < p**1.3).astype(int)
    method = methods.Exact(n_resamples=199)
    assert kcalib.calibration_test(y, p, method=method, seed=0).pvalue_from == "law"
    assert not tails
    errors = 10.0 ** rng.uniform(-4, -3, size=6000)
    y = (rng.uniform(size=6000) < 20 * errors).astype(int)
    assert kcalib.calibration_test(y, errors, method=method, seed=0).pvalue_from == "tilted draws"
    assert tails == [1]


@pytest.mark.parametrize("name", [pytest.param("normal", marks=pytest.mark.grid), "Poisson", "classes"])
def test_weights_count_twice_in_the_law_of_features(name):
    """An entry of H has the weights of both samples, its variance their squares."""
    rng = np.random.default_rng(5)
    means, kernel = rng.uniform(1, 4, size=60), Exponential(bandwidth=1.0)
    weight = np.where(np.arange(60) < 20, 3.0, 1e-9)  # a third of the rows, which stand for all
    found = []
    for rows, w in ((slice(None), weight), (slice(20), None)):
        if name == "classes":
            p = np.random.default_rng(6).dirichlet(np.ones(3), size=60)[rows]
            data, target = prepare(np.zeros(len(p), dtype=int), p, sample_weight=w), None
        else:
            prediction = Poisson(means[rows]) if name == "Poisson" else Normal(means[rows], 0.5 + means[rows] / 4)
            data, target = prepare(np.ones(prediction.n), prediction, sample_weight=w), kernel
        problem = feature_problem(data, kernel, target, n_columns=16, seed=0)
        found.append(limit_law(make_feature_matrix(problem, 21), 3.0).var)
    assert found[0] == pytest.approx(3.0**4 * (20 / 60) ** 2 * found[1], rel=1e-6)
