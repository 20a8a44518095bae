"""The cumulative calibration error: by hand, against literal sums, exact laws, and levels of its p-values."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from problems import binomial_bounds

import kcalib
from kcalib.lenses import Canonical, Confidence

BINARY = {"lens": Canonical()}


def error(*arguments, **options):
    return kcalib.cumulative_calibration_error(*arguments, **(BINARY | options))


def problem(n=1000, power=1.3):
    rng = np.random.default_rng(0)
    p = rng.beta(1.5, 1.0, size=n)
    return (rng.uniform(size=n) < p**power).astype(int), p, rng.uniform(size=n)


def test_by_hand():
    # (0.6 - 0.4) / 4 after the tie, then -0.6 / 4, then 0.2 / 4.
    y, p = [0, 1, 0, 1], [0.4, 0.4, 0.6, 0.8]
    r = error(y, p, n_resamples=9)
    assert r.difference == pytest.approx([0, 0.05, -0.1, -0.05]) and r.share.tolist() == [0, 0.5, 0.75, 1]
    assert r.value == pytest.approx(0.15) == float(r) and r.confidence.tolist() == [0.4, 0.6, 0.8]
    variances = np.cumsum([0, 2 * 0.24, 0.24, 0.16])
    assert r.standard_deviation == pytest.approx(np.sqrt(variances) / 4)
    assert r.standardized == pytest.approx(0.6 / math.sqrt(variances[-1]))
    assert error(y, p, statistic="ks", n_resamples=9).value == pytest.approx(0.1)
    assert (r.pvalue_from, r.n_resamples, r.seed, r.n_samples) == ("draws", 9, 0, 4)
    # Weights 3, 1, 0, 4: 3 (0 - 0.4) + 1 - 0.4, then 4 (1 - 0.8), over 8.
    r = error(y, p, sample_weight=[3, 1, 0, 4], n_resamples=9)
    assert r.difference == pytest.approx([0, -0.6 / 8, 0.2 / 8])
    assert r.standardized == pytest.approx(0.8 / math.sqrt(10 * 0.24 + 16 * 0.16))


@pytest.mark.parametrize("statistic", ["kuiper", "ks"])
def test_draws_have_the_law_of_all_outcomes(statistic):
    y, p, w = [1, 1, 0, 1], np.array([0.3, 0.3, 0.6, 0.8]), np.array([1.0, 2.0, 1.0, 3.0])
    observed, exact = error(y, p, statistic=statistic, sample_weight=w, n_resamples=9).value, 0.0
    for outcome in itertools.product((0, 1), repeat=4):
        sums = [0.0, *np.cumsum(w * (np.array(outcome) - p))[1:] / 7]
        value = max(sums) - min(sums) if statistic == "kuiper" else max(map(abs, sums))
        exact += math.prod(np.where(outcome, p, 1 - p)) * (value >= observed - 1e-12)
    drawn = error(y, p, statistic=statistic, sample_weight=w, n_resamples=9999, seed=1).pvalue
    low, high = binomial_bounds(9999, exact)
    assert low <= (drawn * 10_000 - 1) / 9999 <= high and 0.02 < exact < 0.8


@pytest.mark.parametrize("x", [0.2, 0.8, 1.0, 1.5, 3.0, 7.0, 10.5, 15.0])
def test_tails_have_all_their_digits(x):
    """Against 1 less the law, in 140 digits. The difference of 400 tied samples is x times its deviation of 1 / 40."""
    mpmath.mp.dps = 140
    laws = {"kuiper": mpmath.mpf(0), "ks": mpmath.mpf(0)}
    for k in range(80):
        a, z = (k + mpmath.mpf(1) / 2) * mpmath.pi, mpmath.mpf(x)
        laws["kuiper"] += (8 / z**2 + 2 / a**2) * mpmath.exp(-2 * a**2 / z**2)
        laws["ks"] += 2 * (-1) ** k / a * mpmath.exp(-(a**2) / (2 * z**2))
    for statistic, law in laws.items():
        r = error(np.arange(400) < 200 + round(10 * x), np.full(400, 0.5), statistic=statistic)
        assert r.standardized == pytest.approx(x)
        assert r.log_pvalue == pytest.approx(float(mpmath.log(1 - law)), rel=1e-12, abs=1e-15)
        assert r.pvalue == pytest.approx(float(1 - law), rel=1e-11)


def test_far_tails_do_not_underflow():
    r = error(np.ones(40_000), np.full(40_000, 0.5), statistic="ks")
    assert r.standardized == pytest.approx(200) and r.pvalue == 0.0
    expected = mpmath.log(2 * mpmath.erfc(mpmath.mpf(200) / mpmath.sqrt(2)))
    assert r.log_pvalue == pytest.approx(float(expected), rel=1e-10)
    # Certain predictions: right, and wrong.
    assert (error([0, 1], [0.0, 1.0]).pvalue, error([0, 1], [0.0, 1.0]).value) == (1, 0)
    wrong = error([1, 1], [0.0, 1.0])
    assert (wrong.pvalue, wrong.log_pvalue, wrong.standardized, wrong.value) == (0, -math.inf, math.inf, 0.5)
    assert error([1, 1], [0.0, 1.0], n_resamples=99).pvalue == 0.01


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", [{}, {"n_resamples": 99}, {"statistic": "ks"}])
def test_order_of_rows_does_not_matter(weighted, options):
    y, p, w = problem(400)
    p, w = np.round(p, 1), w if weighted else np.ones(400)
    order = np.random.default_rng(1).permutation(400)
    first, second = (
        error(y, p, sample_weight=w, **options),
        error(y[order], p[order], sample_weight=w[order], **options),
    )
    assert first == second and len(first.confidence) == len(np.unique(p))


def test_agrees_with_another_implementation():
    """What MCGrad 0.1.5 returns, whose p-values are 1 less the law, and at least 2.2e-16."""
    y, p, w = problem()
    errors = [
        (0.05844333932395469, 4.4427324223732185, 3.552944040308148e-05),
        (0.053927950452581336, 3.534240525872758, 0.0016357949697703988),
    ]
    for weight, (value, standardized, pvalue) in zip((None, w), errors, strict=True):
        r = error(y, p, sample_weight=weight)
        assert (r.value, r.standardized) == pytest.approx((value, standardized), rel=1e-12)
        assert r.pvalue == pytest.approx(pvalue, abs=1e-14)


def test_level_of_calibrated_models():
    sets, level = 400, 0.1
    n_rejected = np.zeros(2)
    for seed in range(sets):
        rng = np.random.default_rng(seed)
        p = rng.beta(1, 6, size=60)
        y = rng.uniform(size=60) < p
        pvalues = error(y, p, n_resamples=49, seed=seed).pvalue, error(y, p, n_resamples=49, statistic="ks").pvalue
        n_rejected += np.array(pvalues) <= level
    low, high = binomial_bounds(sets, level)
    assert all(low <= share <= high for share in n_rejected / sets)


def test_few_events_are_warned_of():
    with pytest.warns(
        kcalib.AntiConservativeWarning, match="about 2 uncertain events, .* needs 20; n_resamples=999 is valid"
    ):
        error([0, 1] * 4, [0.5] * 8)
    error([0, 1] * 40, [0.5] * 80)


def test_lenses_and_plot():
    right, confidence = np.arange(100) % 2, np.full(100, 0.7)
    r = kcalib.cumulative_calibration_error(right, confidence, lens=Confidence())
    assert r.difference == pytest.approx([0, -0.2])
    pytest.importorskip("matplotlib")
    axes = r.plot()
    assert axes.lines[-1].get_ydata().tolist() == r.difference.tolist()
    assert "p-value" in axes.get_legend().get_texts()[1].get_text()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"statistic": "range"}, ValueError, "`statistic` is 'range', expected one of 'kuiper', 'ks'"),
        ({"n_resamples": 0}, ValueError, "`n_resamples` is 0, expected an integer between 1"),
        ({"seed": 3}, ValueError, "`seed` is 3, but nothing is drawn; pass n_resamples=999, or leave it out"),
        ({"n_resamples": 9, "seed": -1}, ValueError, "`seed` is -1"),
    ],
)
def test_bad_options(options, kind, message):
    with pytest.raises(kind, match=message):
        error([0, 1], [0.2, 0.6], **options)


def test_evaluate_names_them():
    y, p, _ = problem(300)
    found = kcalib.evaluate(y, p, metrics=["smooth_ece", "cumulative_calibration_error"], method="spectrum").metrics
    assert found["smooth_ece"] == kcalib.smooth_ece(y, p, **BINARY)
    assert found["cumulative_calibration_error"] == error(y, p)
