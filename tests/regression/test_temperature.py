"""Calibration errors at another temperature: by hand, the fitted one, section 5.1 of Gruber and Bach."""

from __future__ import annotations

import numpy as np
import pytest
from libraries import MakeProblem

from kcalib.lenses import ClassWise, TopLabel
from kcalib.recalibration import TemperatureBoundWarning
from kcalib.regression import TemperatureCalibration


def simulated(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Section 5.1: P ~ Dir(0.04, ..., 0.04), Y ~ P, and logits 0.3 log P of the model."""
    rng = np.random.default_rng(seed)
    true = rng.dirichlet(np.full(5, 0.04), size=500)
    y = np.minimum((rng.uniform(size=(500, 1)) > true.cumsum(axis=1)).sum(axis=1), 4)
    with np.errstate(divide="ignore"):
        return y, 0.3 * np.log(true)


def test_by_hand():
    """At temperature 1/2 probabilities are squared: (0.8, 0.2) -> (16, 1) / 17, (0.5, 0.5) stays."""
    p = [[0.8, 0.2], [0.5, 0.5], [0.2, 0.8]]
    gap = 0.8 - 16 / 17
    expected = 2 * gap**2 * np.array([[1, 0, -1], [0, 0, 0], [-1, 0, 1]])
    function = TemperatureCalibration(0.5).fit([0, 0, 1], p)
    assert np.allclose(function.h(p), expected, rtol=1e-13, atol=1e-18)
    second = TemperatureCalibration(0.5, lens=ClassWise(1)).fit([0, 0, 1], p)
    assert np.allclose(second.h(p), expected / 2, rtol=1e-13, atol=1e-18)


@pytest.mark.parametrize("temperature", [0.01, 0.3, 1.0, 7.0])
def test_zeros_stay_zeros(temperature):
    p = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 - 1e-300, 1e-300, 0.0]])
    function = TemperatureCalibration(temperature).fit([0, 1, 2], p)
    h = function.h(p)
    assert np.all(np.abs(h[:2]) <= 1e-15)
    assert np.all(np.isfinite(h))
    assert np.isfinite(function.risk([0, 1, 2], p))


def test_confidence_near_one_keeps_its_gap():
    """c = 1 - 1e-20 at temperature 2: (1 - c)^(1/2) = 1e-10."""
    p = np.array([[1e-20, 1.0]])
    function = TemperatureCalibration(2.0, lens=TopLabel()).fit([1], p)
    assert function.squared_error(p) == pytest.approx(1e-20, rel=1e-9)


def test_fitted_temperature_has_the_lowest_risk_of_a_fine_grid(make_problem: MakeProblem):
    y, p = make_problem(300, 4, seed=1)
    p = p**2 / np.sum(p**2, axis=1, keepdims=True)
    function = TemperatureCalibration().fit(y, p)
    risks = [TemperatureCalibration(t).fit(y, p).risk(y, p) for t in np.geomspace(0.01, 100, 500)]
    assert function.risk(y, p) <= min(risks)
    assert function.temperature_ == pytest.approx(np.geomspace(0.01, 100, 500)[np.argmin(risks)], rel=0.02)


def test_risk_is_lowest_at_the_true_temperature():
    """Figure 1. In 200 repetitions log(theta) had mean 0.010 and standard deviation 0.131: four of those of 20."""
    logs = []
    for seed in range(20):
        y, logits = simulated(seed)
        logs.append(np.log(0.3 / TemperatureCalibration().fit(y, logits, from_logits=True).temperature_))
    assert abs(np.mean(logs)) < 0.010 + 4 * 0.131 / np.sqrt(20)
    thetas = np.linspace(0.6, 1.4, 5)
    risks = np.zeros(5)
    for seed in range(12):
        y, logits = simulated(seed)
        for k, theta in enumerate(thetas):
            function = TemperatureCalibration(0.3 / theta).fit(y, logits, from_logits=True)
            risks[k] += function.risk(y, logits, from_logits=True)
    assert np.argmin(risks) == 2


def test_one_hot_predictions_say_nothing():
    p = np.eye(3)[[0, 1, 2, 0]]
    function = TemperatureCalibration().fit([0, 1, 1, 0], p)
    assert function.temperature_ == 1.0
    assert function.squared_error(p) == 0.0


@pytest.mark.parametrize(("y", "first", "bound"), [([0, 0, 0, 0], 0.7, 0.01), ([1, 1, 1, 0], 0.9, 100.0)])
def test_bounds_warn(y, first, bound):
    """The more probable class always, or hardly ever: a risk that falls as T goes to 0, or as it goes to infinity."""
    p = np.tile([first, 1 - first], (4, 1))
    with pytest.warns(TemperatureBoundWarning, match=f"up to the bound T = {bound:g}, the fitted temperature"):
        function = TemperatureCalibration().fit(y, p)
    assert function.temperature_ == bound


def test_calibrated_predictions_are_not_repaired(make_problem: MakeProblem):
    y, p = make_problem(4000, 3, seed=5)
    assert TemperatureCalibration().fit(y, p).temperature_ == pytest.approx(1.0, abs=0.1)
    assert TemperatureCalibration(1.0).fit(y, p).squared_error(p) == pytest.approx(0.0, abs=1e-30)


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf")])
def test_temperature_out_of_range(bad):
    with pytest.raises(ValueError, match=r"`temperature` is .*, expected a positive finite number"):
        TemperatureCalibration(bad).fit([0, 1], [0.2, 0.7])


def test_errors():
    for bad in ("auto", True):
        with pytest.raises(TypeError, match=r"`temperature` is .*, expected a positive number"):
            TemperatureCalibration(bad).fit([0, 1], [0.2, 0.7])
    with pytest.raises(ValueError, match="at least 2 samples, there are 1"):
        TemperatureCalibration().fit([0], [0.2])
    assert TemperatureCalibration(2).fit([0], [0.2]).temperature_ == 2.0
