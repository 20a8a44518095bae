"""Numbers of other libraries about the spread of predictions: their values, and values by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

import kcalib
from kcalib.distributions import MultivariateNormal, Normal, Poisson, Samples

# The data of uncertainty-toolbox's tests of its measures.
Y = np.array([1.5, 3.0, 2.0])
PREDICTIONS = Normal([1.0, 2.0, 3.0], [0.1, 0.5, 1.0])


def test_values_of_uncertainty_toolbox():
    assert kcalib.miscalibration_area(Y, PREDICTIONS) == pytest.approx(0.37710437710437716, rel=1e-12)
    assert kcalib.sharpness(Y, PREDICTIONS) == pytest.approx(0.648074069840786, rel=1e-12)


def test_dawid_sebastiani_score():
    y, draws = np.array([1.0, 4.0]), np.array([[0.0, 1.0, 5.0], [2.0, 2.0, 5.0]])  # variances 14/3 and 2
    by_hand = (1 / (14 / 3) + math.log(14 / 3) + 1 / 2 + math.log(2)) / 2
    assert kcalib.dawid_sebastiani_score(y, Samples(draws)) == pytest.approx(by_hand, rel=1e-14)
    assert kcalib.dawid_sebastiani_score([5], Poisson([4.0])) == pytest.approx(1 / 4 + math.log(4), rel=1e-14)
    of_normals = 2 * kcalib.log_score(Y, PREDICTIONS) - math.log(2 * math.pi)
    assert kcalib.dawid_sebastiani_score(Y, PREDICTIONS) == pytest.approx(of_normals, rel=1e-14)
    assert kcalib.dawid_sebastiani_score(Y, PREDICTIONS, sample_weight=[0, 0, 2]) == 1


def test_ence_by_hand():
    y, std = np.array([1.0, 3.0, 3.0, 5.0, 6.0]), np.array([1.0, 1.0, 1.0, 3.0, 4.0])
    low, high = math.sqrt(19 / 3), math.sqrt(61 / 2) / math.sqrt(25 / 2)  # RMSE over RMV: equal ones are in one bin
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        predictions = Normal(np.zeros(5), std[order])
        assert kcalib.ence(y[order], predictions, n_bins=2) == pytest.approx((low - 1 + high - 1) / 2, rel=1e-14)
    weight = [0, 1, 1, 0, 0]
    assert kcalib.ence(y, Normal(np.zeros(5), std), n_bins=2, sample_weight=weight) == pytest.approx(2, rel=1e-14)


def test_numbers_of_a_calibrated_model():
    """The area is that between an empirical distribution function and the uniform one, with seeds of PIT values."""
    rng = np.random.default_rng(1)
    mean, std = rng.normal(size=4000), rng.uniform(0.5, 2, size=4000)
    y = rng.normal(mean, std)
    assert kcalib.miscalibration_area(y, Normal(mean, std)) < 1.36 / math.sqrt(4000) / 2
    assert 0.25 < kcalib.ence(y, Normal(mean, std), n_bins=400) / (0.56 * math.sqrt(400 / 4000)) < 2
    counts = rng.poisson(2.0, size=4000)
    areas = [kcalib.miscalibration_area(counts, Poisson(np.full(4000, 2.0)), seed=seed) for seed in (1, 2)]
    assert areas[0] != areas[1] and max(areas) < 1.36 / math.sqrt(4000)


def test_area_of_weighted_targets_whose_coverage_crosses_the_diagonal():
    """Intervals below 1/2 hold neither target, below 3/4 three quarters of the weight; lines between k / 99."""
    levels, fine = np.linspace(0, 1, 100), np.linspace(0, 1, 99 * 1000 + 1)
    gaps = 0.75 * (levels >= 0.5) + 0.25 * (levels >= 0.75) - levels
    expected = np.mean(np.abs(np.interp((fine[1:] + fine[:-1]) / 2, levels, gaps)))
    y = scipy.stats.norm.ppf([0.875, 0.25])
    area = kcalib.miscalibration_area(y, Normal([0.0, 0.0], 1.0), sample_weight=[1, 3])
    assert area == pytest.approx(expected, abs=1e-8)  # a cell of 1 / 99000 with a kink is wrong by < 76 / 99000^2


@pytest.mark.parametrize("name", ["dawid_sebastiani_score", "ence", "sharpness"])
def test_predictions_without_a_spread(name):
    function = getattr(kcalib, name)
    y, draws = np.array([1.0, 2.0]), np.array([[0.0, 1.0], [3.0, 3.0]])
    options = {"n_bins": 1} if name == "ence" else {}
    with pytest.raises(ValueError, match=r"^`y_pred\[1\]` has the standard deviation 0.0, but .* take kcalib.crps$"):
        function(y, Samples(draws), **options)
    assert function(y[:1], Samples(draws[:1]), **options) > -1 and kcalib.crps(y, Samples(draws)) == 0.625
    with pytest.raises(ValueError, match=r"^`y_pred` predicts vectors of 2 entries, but .* for numbers"):
        function(np.zeros((1, 2)), MultivariateNormal(np.zeros((1, 2)), np.eye(2)[None]), **options)


def test_more_bins_than_samples():
    with pytest.raises(ValueError, match=r"^`n_bins` is 15, but there are 3 samples; pass at most as many bins"):
        kcalib.ence(Y, PREDICTIONS)
