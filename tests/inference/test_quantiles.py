"""Calibration of quantiles: residuals are those of the bins, whose law is known given the predictions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats

import kcalib
from kcalib.distributions import Censored, Normal, Poisson, Quantiles
from kcalib.kernels import Exponential, Gaussian

HUB = np.array([0.01, 0.025, *np.arange(1, 20) / 20, 0.975, 0.99])


def problem(n, levels, seed=0, scale=1.0):
    """Normal targets, and quantiles of a normal law with `scale` times its standard deviation."""
    rng = np.random.default_rng(seed)
    mean, std = rng.normal(size=n), np.exp(0.3 * rng.normal(size=n))
    quantiles = mean[:, None] + scale * std[:, None] * scipy.stats.norm.ppf(levels)
    return mean + std * rng.normal(size=n), Quantiles(levels, quantiles)


@pytest.mark.parametrize("metric", ["euclidean", "wasserstein"])
def test_skce_by_hand(metric):
    y, predictions = problem(40, [0.1, 0.5, 0.9])
    bins = [int(np.sum(row < target)) for row, target in zip(predictions.values, y, strict=True)]
    residuals = np.eye(4)[bins] - [0.1, 0.4, 0.4, 0.1]
    # 2-Wasserstein distances of atoms at the quantiles, each of the probability next to it.
    weights = np.sqrt([0.3, 0.4, 0.3]) if metric == "wasserstein" else np.ones(3)
    points = predictions.values * weights
    distances = np.sqrt(np.sum((points[:, None] - points) ** 2, axis=2))
    entries = np.exp(-distances) * (residuals @ residuals.T)
    expected = (np.sum(entries) - np.trace(entries)) / (40 * 39)
    kernel = Exponential(bandwidth=1.0, metric=metric)
    for target_kernel in (None, "delta"):
        result = kcalib.skce.result(y, predictions, kernel=kernel, target_kernel=target_kernel)
        assert result.value == pytest.approx(expected, rel=1e-12)
    assert (result.target_kernel, result.target_factor) == ("delta", "bins of quantiles")


def test_variance_under_calibration_by_hand():
    """The law of the bins is that of all samples: the variance is 2 sum k^2 tr(V^2), with the covariance V of a bin."""
    y, predictions = problem(50, HUB)
    p = np.diff([0, *HUB, 1])
    distances = np.sqrt(np.sum((predictions.values[:, None] - predictions.values) ** 2, axis=2))
    squares = np.sum(np.exp(-2 * distances)) - 50
    variance = 2 * squares * np.sum((np.diag(p) - np.outer(p, p)) ** 2) / (50 * 49) ** 2
    result = kcalib.skce.result(y, predictions, kernel=Exponential(bandwidth=1.0))
    assert result.null_standard_error == pytest.approx(np.sqrt(variance), rel=1e-10)


def test_unconditional_error_of_locations_in_their_own_bins():
    y, predictions = problem(30, [0.2, 0.5])
    shifted = Quantiles(predictions.levels, predictions.values + 100.0)
    expected = kcalib.ucme(
        y, predictions, locations=(y[:5], predictions.take(slice(0, 5))), kernel=Exponential(bandwidth=1.0)
    )
    kernel = Exponential(bandwidth=1.0)
    found = kcalib.ucme(y + 100.0, shifted, locations=(y[:5] + 100.0, shifted.take(slice(0, 5))), kernel=kernel)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("method", "levels"), [("adaptive", [0.5]), ("adaptive", HUB), ("spectrum", HUB), ("features", HUB)]
)
def test_wrong_widths_are_found_and_right_ones_are_not(method, levels):
    n = 200
    y, calibrated = problem(n, levels, seed=4)
    assert kcalib.calibration_test(y, calibrated, method=method).pvalue > 0.05
    wrong = Quantiles(levels, calibrated.values + 1.5)
    assert kcalib.calibration_test(y, wrong, method=method).pvalue < 0.05


def test_evaluation():
    y, predictions = problem(500, HUB, scale=0.6)
    result = kcalib.evaluate(y, predictions)
    assert result.verdict.startswith("miscalibrated, over-confident")
    assert result.crps == kcalib.crps(y, predictions) == pytest.approx(2 * result.pinball_loss)
    low, high = predictions.quantile([0.05, 0.95]).T
    assert result.interval_coverage == np.mean((y >= low) & (y <= high))
    assert result.interval_width == pytest.approx(np.mean(high - low))
    curve = kcalib.quantile_calibration(y, predictions)
    np.testing.assert_allclose(curve.coverage, np.mean(y[:, None] <= predictions.values, axis=0))
    assert result.quantile_calibration_error == pytest.approx(curve.error)
    assert result.rms_distance_lower is result.log_score is None
    assert "weighted interval score" in str(result.remarks())


def test_levels_without_a_90_percent_interval_have_none():
    result = kcalib.evaluate(*problem(200, [0.1, 0.9]), method="spectrum")
    assert result.interval_coverage is result.interval_width is None


def test_comparison():
    y, good = problem(400, HUB)
    wide = Quantiles(HUB, good.values + 0.3 * (good.values - good.quantile(0.5)))
    law = Normal(np.zeros(400), np.ones(400))
    models = {"wide": wide, "good": good, "law": Quantiles(HUB, law.quantile(HUB))}
    assert kcalib.compare(y, models, metric="crps").ranking[0] == "good"
    assert kcalib.compare(y, {"wide": wide, "good": good}).differences[0].pvalue < 0.05


@pytest.mark.parametrize("metric", ["crps", "skce"])
def test_scores_at_different_levels_are_not_compared(metric):
    """The remedy gives models of the same law the same scores."""
    y, good = problem(400, HUB)
    law = Normal(np.zeros(400), np.ones(400))
    few = Quantiles([0.25, 0.5, 0.75], good.quantile([0.25, 0.5, 0.75]))
    for other in (law, few):
        with pytest.raises(ValueError, match=r"pass (q|Q)uantiles.*\(levels, y_pred\.quantile\(levels\)\)"):
            kcalib.compare(y, {"good": good, "other": other}, metric=metric)
    levels = few.levels
    models = {str(k): Quantiles(levels, p.quantile(levels)) for k, p in enumerate((good, few))}
    assert abs(kcalib.compare(y, models, metric=metric, seed=0).differences[0].difference) < 1e-12
    kcalib.compare(y, {"good": few, "law": Quantiles(levels, law.quantile(levels))}, metric=metric)
    with pytest.raises(ValueError, match="predict the same levels by each model|at the same levels"):
        kcalib.compare(y, {"few": few, "other": Quantiles([0.1], good.quantile([0.1]))}, metric=metric)


def test_log_scores_of_masses_and_densities_are_not_compared():
    y = np.array([0.0, 1.0, 0.0, 2.0, 3.0])
    normal, rate = Normal(np.ones(5), np.ones(5)), Poisson(np.ones(5))
    models = {"normal": normal, "censored": Censored(normal, lower=0.0), "counts": rate}
    for pair in itertools.combinations(models, 2):
        with pytest.raises(ValueError, match=r"row \d has a probability under .* a density under .*; use 'crps'"):
            kcalib.compare(y, {name: models[name] for name in pair}, metric="log_score")
    kcalib.compare(y, models, metric="crps")
    kcalib.compare(y + 1, {name: models[name] for name in ("normal", "censored")}, metric="log_score")


def test_a_kernel_between_targets_is_refused():
    with pytest.raises(ValueError, match="^`target_kernel` is Gaussian.*, but Quantiles are unknown between"):
        kcalib.skce(*problem(20, [0.5]), target_kernel=Gaussian())
    with pytest.raises(ValueError, match="no density"):
        kcalib.log_score(*problem(20, [0.5]))


@pytest.mark.slow
@pytest.mark.parametrize("levels", [np.array([0.1, 0.5, 0.9]), HUB, np.arange(1, 100) / 100], ids=["3", "23", "99"])
def test_levels_over_400_sets(levels):
    """Rejections at 5 % of calibrated sets are between limits of the binomial law that 1 in 1000 are outside of."""
    pvalues = [kcalib.calibration_test(*problem(100, levels, seed), threads=1).pvalue for seed in range(400)]
    low, high = scipy.stats.binom(400, 0.05).ppf([5e-4, 1 - 5e-4])
    assert low <= np.sum(np.array(pvalues) <= 0.05) <= high
