"""Weighted samples in tests of calibration and evaluations: levels, sums by hand, and weights that are refused."""

import numpy as np
import pytest
from problems import binomial_bounds

import kcalib
from kcalib.distributions import Normal
from kcalib.kernels import Exponential
from kcalib.lenses import TopLabel
from kcalib.methods import Adaptive

QUICK = Adaptive(n_resamples=99, n_columns=16)


def calibrated(seed, n=300, m=3):
    rng = np.random.default_rng([7, seed])
    p = rng.dirichlet(np.ones(m), size=n)
    return rng, np.minimum((p.cumsum(axis=1) <= rng.uniform(size=(n, 1))).sum(axis=1), m - 1), p


def count_rejections(make_weight, sets=60):
    rejections = 0
    for seed in range(sets):
        rng, y, p = calibrated(seed)
        weight = make_weight(rng, y, p)
        pvalue = kcalib.calibration_test(y, p, sample_weight=weight, method=QUICK, seed=seed, threads=1).pvalue
        rejections += pvalue <= 0.05 + 1e-9
    return rejections / sets


def test_weights_that_depend_on_predictions_keep_the_level():
    _, high = binomial_bounds(60, 0.05, 1e-3)
    assert count_rejections(lambda rng, y, p: rng.exponential(size=len(y)) ** 2 * (0.1 + p[:, 0])) <= high


def test_weights_of_the_labels_reject_calibrated_models():
    assert count_rejections(lambda rng, y, p: np.where(y == 0, 2.0, 1.0), sets=10) == 1


def test_bias_and_temperature_by_hand():
    rng, y, p = calibrated(0)
    w = rng.exponential(size=len(y))
    result = kcalib.calibration_test(y, p, sample_weight=w, method=QUICK, seed=0)
    statistics = {block.name: block.statistic for block in result.blocks}
    residuals = w[:, None] * (np.eye(3)[y] - p)
    variances = np.sum(w[:, None] ** 2 * p * (1 - p), axis=0)
    assert statistics["bias"] == pytest.approx(np.sum(np.sum(residuals, axis=0) ** 2 / variances), rel=1e-10)
    means = np.sum(p * np.log(p), axis=1)
    score = np.sum(w * (np.log(p[np.arange(len(y)), y]) - means))
    variance = np.sum(w**2 * np.sum(p * (np.log(p) - means[:, None]) ** 2, axis=1))
    assert statistics["temperature"] == pytest.approx(score**2 / variance, rel=1e-10)
    assert result.estimate == pytest.approx(kcalib.skce(y, p, sample_weight=w), rel=1e-10)
    assert result.standard_error is result.null_standard_error is None
    assert result.pvalue_from == "draws"


def test_weights_of_distributions():
    rejections, quick = 0, Adaptive(n_resamples=39, n_columns=16)
    for seed in range(20):
        rng = np.random.default_rng([8, seed])
        mean, weight = rng.normal(size=50), rng.exponential(size=50)
        y, predicted = mean + rng.normal(size=50), Normal(mean, np.ones(50))
        result = kcalib.calibration_test(y, predicted, sample_weight=weight, method=quick, seed=seed)
        rejections += result.pvalue <= 0.1 + 1e-9
    assert rejections / 20 <= binomial_bounds(20, 0.1, 1e-3)[1]
    again = kcalib.calibration_test(y, predicted, sample_weight=1e3 * weight, method=quick, seed=seed)
    assert [block.pvalue for block in again.blocks] == [block.pvalue for block in result.blocks]
    options = {"kernel": Exponential(1.0, metric="wasserstein")}
    found = kcalib.evaluate(y, predicted, sample_weight=weight, method=quick, **options, seed=0)
    state = kcalib.streaming.ForecastState(n_columns=16, **options).update(y, predicted, weight)
    with pytest.warns(kcalib.AntiConservativeWarning):
        expected = state.result()
    for name in ("rmse", "crps", "pinball_loss", "interval_coverage", "pit_mean", "quantile_calibration_error"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12)
    assert found.skce.value == pytest.approx(kcalib.skce(y, predicted, sample_weight=weight, **options))


@pytest.mark.parametrize("clusters", [None, np.arange(300) // 5], ids=["alone", "clusters"])
def test_neither_the_scale_of_weights_nor_equal_ones_matter(clusters):
    rng, y, p = calibrated(1)
    w = rng.exponential(size=len(y))

    def blocks(weight):
        options = {"clusters": clusters, "method": QUICK, "seed": 0}
        return kcalib.calibration_test(y, p, sample_weight=weight, **options).blocks

    for first, second in ((w, 1e6 * w), (None, np.full(len(y), 3.0))):
        for block, other in zip(blocks(first), blocks(second), strict=True):
            assert block.statistic == pytest.approx(other.statistic, rel=1e-9)
            assert block.pvalue == other.pvalue


def test_a_sample_of_weight_0_is_none():
    rng, y, p = calibrated(2)
    p[0], y[0] = [1.0, 0.0, 0.0], 2
    w = rng.exponential(size=len(y))
    assert kcalib.calibration_test(y, p, sample_weight=w, method=QUICK, seed=0).pvalue == 0
    w[0] = 0
    assert kcalib.calibration_test(y, p, sample_weight=w, method=QUICK, seed=0).pvalue > 0.05


def test_evaluation_weighs_scores_and_has_no_numbers_of_equal_weights():
    rng, y, p = calibrated(3)
    w = rng.exponential(size=len(y))
    result = kcalib.evaluate(y, p, sample_weight=w, method="adaptive", seed=0)
    assert result.accuracy == pytest.approx(np.average(p.argmax(axis=1) == y, weights=w))
    assert result.mean_confidence == pytest.approx(np.average(p.max(axis=1), weights=w))
    for name in ("brier_score", "log_loss", "top_label_ece"):
        assert getattr(result, name) == pytest.approx(getattr(kcalib, name)(y, p, sample_weight=w))
    assert result.skce.value == pytest.approx(kcalib.skce(y, p, sample_weight=w))
    assert result.rms_error_lower is result.skce.standard_error is result.skce.null_standard_error is None
    seen = kcalib.evaluate(y, p, sample_weight=w, method="adaptive", lens=TopLabel(), seed=0)
    assert seen.skce.value == pytest.approx(kcalib.skce(y, p, sample_weight=w, lens=TopLabel()))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([1, -1, 1, 1], r"`sample_weight\[1\]` is -1.*expected a finite weight >= 0"),
        ([1, 1, float("nan"), 1], r"`sample_weight\[2\]` is nan"),
        ([0, 0, 0, 0], "`sample_weight` is 0 for all samples"),
        ([1, 1], r"`sample_weight` has shape \(2,\), expected \(4,\)"),
    ],
)
@pytest.mark.parametrize("function", [kcalib.calibration_test, kcalib.evaluate])
def test_weights_are_checked(function, weight, message):
    with pytest.raises(ValueError, match=message):
        function([0, 1, 1, 0], [0.4, 0.6, 0.5, 0.5], sample_weight=weight, method="adaptive")


def test_what_has_no_weights_refuses_them():
    y, p, w = [0, 1, 1, 0], [0.4, 0.6, 0.5, 0.5], [1, 2, 1, 2]
    with pytest.raises(ValueError, match="`sample_weight` has no meaning for the method 'exact'; use 'adaptive'"):
        kcalib.calibration_test(y, p, sample_weight=w, method="exact")
    with pytest.raises(ValueError, match="`sample_weight` is given, but sums over a source have no such option"):
        kcalib.calibration_test(kcalib.streaming.source((y, p)), sample_weight=w)
