"""Recalibrators of predicted distributions: moments by hand, uniform PIT values, the protocol."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import scipy.stats
from forecast_problems import AtLeastZero

import kcalib
from kcalib.distributions import Categorical, Laplace, MultivariateNormal, Normal, Poisson, PowerExponential, Samples
from kcalib.recalibration import QuantileRecalibration, Recalibrator, ScaleCalibration, TemperatureScaling

every = pytest.mark.parametrize("cls", [ScaleCalibration, QuantileRecalibration])


def biased(n: int, seed: int = 0) -> tuple[np.ndarray, Normal]:
    """Targets that are half a standard deviation too high, and spread twice as far as predicted."""
    rng = np.random.default_rng(seed)
    mean, std = rng.normal(size=n), rng.uniform(0.5, 2.0, size=n)
    return mean + std * (0.5 + 2 * rng.normal(size=n)), Normal(mean, std)


@every
def test_protocol(cls):
    y, prediction = biased(100)
    recalibrator = cls().fit(y, prediction)
    assert isinstance(recalibrator, Recalibrator)
    assert recalibrator.n_samples_ == 100 and recalibrator.family_ == "Normal distributions"
    assert all(one.kind == one.KEYWORD_ONLY for one in inspect.signature(cls).parameters.values())
    foreign = scipy.stats.norm(prediction.mean, prediction.std)
    again = recalibrator.clone().fit(y, foreign).transform(foreign)
    assert np.allclose(again.expected_value(), recalibrator.transform(prediction).expected_value())
    with pytest.raises(ValueError, match=f"this {cls.__name__} is not fitted"):
        cls().transform(prediction)
    with pytest.raises(ValueError, match="holds Laplace distributions, but .* was fitted to Normal distributions"):
        recalibrator.transform(Laplace([0.0], [1.0]))
    for wrong in ([0.5, 0.5], Categorical([[0.5, 0.5]])):
        with pytest.raises(
            TypeError, match="expected a distribution .* for class probabilities use another recalibrator"
        ):
            recalibrator.transform(wrong)
    with pytest.raises(ValueError, match="`from_logits` is for class probabilities"):
        recalibrator.transform(prediction, from_logits=True)
    with pytest.raises(ValueError, match="`classes` is for class probabilities"):
        cls().fit(y, prediction, classes=[0, 1])


@every
def test_weights(cls):
    """Weights of 0 leave samples out, and their unit does not matter."""
    y, prediction = biased(60)
    weight = np.random.default_rng(1).integers(0, 3, 60)
    used = np.flatnonzero(weight)
    first = cls().fit(y, prediction, sample_weight=weight).transform(prediction)
    second = cls().fit(y[used], prediction.take(used), sample_weight=7.0 * weight[used]).transform(prediction)
    assert np.allclose(first.quantile([0.1, 0.6]), second.quantile([0.1, 0.6]), rtol=1e-12)


def test_scale_is_the_likelihood_of_normal_distributions():
    y, prediction = biased(300)
    calibration = ScaleCalibration(bias=False).fit(y, prediction)
    assert calibration.scale_**2 == pytest.approx(TemperatureScaling().fit(y, prediction).temperature_, rel=1e-13)
    expected = TemperatureScaling().fit(y, prediction).standard_error_ / (2 * calibration.scale_)
    assert calibration.scale_standard_error_ == pytest.approx(expected, rel=1e-12)
    residuals = (y - prediction.mean) / prediction.std
    both = ScaleCalibration().fit(y, prediction)
    assert both.shift_ == pytest.approx([residuals.mean()], rel=1e-12)
    assert both.scale_ == pytest.approx(residuals.std(), rel=1e-12)
    assert both.shift_standard_error_ == pytest.approx([residuals.std(ddof=1) / np.sqrt(300)], rel=1e-12)
    after = both.transform(prediction)
    again = (y - after.mean) / after.std
    assert abs(again.mean()) < 1e-14 and again.std() == pytest.approx(1, rel=1e-13)


def test_scale_of_each_family():
    """Moments move and spread as they should; vectors by their factors."""
    rng = np.random.default_rng(2)
    loc, scale = rng.normal(size=40), rng.uniform(0.5, 2.0, 40)
    roots = np.tril(rng.normal(size=(40, 2, 2)), -1) + rng.uniform(0.5, 2.0, (40, 1, 1)) * np.eye(2)
    families = [
        Laplace(loc, scale),
        PowerExponential(loc, scale, rng.uniform(0.5, 2.0, 40)),
        Samples(rng.normal(size=(40, 9))),
        Samples(rng.normal(size=(40, 9, 2)), rng.dirichlet(np.ones(9), size=40)),
        Normal(rng.normal(size=(40, 2)), rng.uniform(0.5, 2.0, (40, 2))),
        MultivariateNormal(rng.normal(size=(40, 2)), scale_tril=roots),
    ]
    for prediction in families:
        y = rng.normal(size=(40, *prediction.event_shape)) * 3 + 1
        calibration = ScaleCalibration().fit(y, prediction)
        after = calibration.transform(prediction)
        assert type(after) is type(prediction)
        deviation = prediction.standard_deviation()
        assert np.allclose(after.standard_deviation(), calibration.scale_ * deviation, rtol=1e-10)
        again = ScaleCalibration().fit(y, after)
        assert again.scale_ == pytest.approx(1, rel=1e-10) and np.allclose(again.shift_, 0, atol=1e-10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ScaleCalibration(bias=1).fit([0.0], Normal([0.0], [1.0])), "`bias` is 1, expected True or False"),
        (lambda: ScaleCalibration().fit([1], Poisson([2.0])), "is Poisson, expected .* of the families Normal, Mult"),
        (lambda: ScaleCalibration().fit([1.0], Samples([[2.0, 2.0]])), "has the standard deviation 0 at sample 0"),
        (
            lambda: ScaleCalibration().fit([1.0], Normal([0.0], [1.0])),
            r"residuals \(1\) are equal, so that the scale would be 0; pass more samples, or bias=False",
        ),
        (
            lambda: ScaleCalibration(bias=False).fit([2.0, 3.0], Normal([2.0, 3.0], [1.0, 1.0])),
            "`y_true` holds the predicted means, so that the scale would be 0; check the targets",
        ),
        (lambda: QuantileRecalibration(n_points=0).fit([0.0], Normal([0.0], [1.0])), "`n_points` is 0"),
        (lambda: QuantileRecalibration(seed=-1).fit([0.0], Normal([0.0], [1.0])), "`seed` is -1"),
        (lambda: QuantileRecalibration().fit([1], Poisson([2.0])), "is Poisson, expected continuous distributions"),
        (
            lambda: QuantileRecalibration().fit([[0.0, 1.0]], Normal([[0.0, 1.0]], [[1.0, 1.0]])),
            "Normal of vectors, exp",
        ),
    ],
)
def test_wrong_input(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_few_samples_have_no_standard_error():
    calibration = ScaleCalibration(bias=False).fit([2.0], Normal([0.0], [1.0]))
    assert calibration.scale_ == 2.0 and np.isinf(calibration.scale_standard_error_)
    assert np.all(
        np.isfinite(QuantileRecalibration().fit([2.0], Normal([0.0], [1.0])).transform(Normal([0.0], [1.0])).samples)
    )


def test_quantiles_by_hand():
    """PIT values 0.2, 0.5 and 0.6 have the levels 1/4, 2/4 and 3/4."""
    prediction = Normal(np.zeros(3), np.ones(3))
    y = scipy.stats.norm.ppf([0.5, 0.2, 0.6])
    found = QuantileRecalibration(n_points=4).fit(y, prediction)
    assert np.allclose(found.pit_, [0.2, 0.5, 0.6]) and np.allclose(found.levels_, [0.25, 0.5, 0.75])
    levels = [0.1, 0.35, 0.55, 0.8]  # of 1/8, 3/8, 5/8, 7/8
    assert np.allclose(found.transform(Normal([1.0], [2.0])).samples, [scipy.stats.norm.ppf(levels, 1, 2)])


def test_quantiles_of_calibrated_predictions_with_atoms_stay():
    """Half of the targets are 0, which has a probability: PIT values that are not randomised are too high."""
    rng = np.random.default_rng(0)
    mean = rng.normal(size=2000)
    y, before = np.maximum(mean + rng.normal(size=2000), 0), AtLeastZero(mean)
    after = QuantileRecalibration().fit(y[:1000], before.take(slice(0, 1000))).transform(before)
    assert kcalib.crps(y, after) < 1.01 * kcalib.crps(y, before)


@pytest.mark.parametrize("samples", [False, True])
def test_pit_values_become_uniform(samples):
    rng = np.random.default_rng(3)
    mean = rng.normal(size=4000)
    y = mean + rng.exponential(size=4000) - 1
    before = Samples(mean[:, None] + rng.normal(size=(4000, 50))) if samples else Normal(mean, np.ones(4000))
    first, second = slice(0, 2000), slice(2000, 4000)
    recalibrator = QuantileRecalibration().fit(y[first], before.take(first))
    after = recalibrator.transform(before.take(second))
    # Both halves have n = 2000: the Kolmogorov-Smirnov distance of two is above 1.95 sqrt(2 / n) once in a thousand.
    distance = scipy.stats.kstest(kcalib.pit_values(y[second], after), "uniform").statistic
    assert (
        distance
        < 1.95 * np.sqrt(2 / 2000)
        < 0.5 * scipy.stats.kstest(kcalib.pit_values(y[second], before.take(second)), "uniform").statistic
    )
    assert kcalib.crps(y[second], after) < kcalib.crps(y[second], before.take(second))
