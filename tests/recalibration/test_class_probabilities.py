"""Recalibrators of class probabilities: one protocol for all, and what each is against scikit-learn and by hand."""

from __future__ import annotations

import inspect
import pickle
import warnings

import numpy as np
import pytest
from libraries import Library
from problems import draw_labels
from scipy import optimize, special

import kcalib
from kcalib import recalibration
from kcalib._backend import arrays
from kcalib.distributions import Categorical, Normal
from kcalib.recalibration import (
    HistogramBinning,
    IsotonicCalibration,
    PlattScaling,
    ProbabilityFloorWarning,
    Recalibrator,
    SeparationWarning,
    TemperatureScaling,
)

CLASSES = [
    value
    for name in recalibration.__all__
    if inspect.isclass(value := getattr(recalibration, name))
    and issubclass(value, Recalibrator)
    and not inspect.isabstract(value)
]
OF_CLASSES = [value for value in CLASSES if value is not TemperatureScaling]
every = pytest.mark.parametrize("cls", CLASSES)
every_new = pytest.mark.parametrize("cls", OF_CLASSES)


def overconfident(n: int, m: int, seed: int = 0, temperature: float = 2.0, scale: float = 2.0):
    """Labels, probabilities and logits that are too sure of themselves."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(n, m))
    y = draw_labels(special.softmax(logits / temperature, axis=1), rng)
    return y, special.softmax(logits, axis=1), logits


def fitted(cls: type[Recalibrator], m: int = 3, n: int = 200, **parameters):
    y, p, _ = overconfident(n, m)
    return cls(**parameters).fit(y, p), p


# The protocol.


@every
@pytest.mark.parametrize("m", [2, 4])
def test_probabilities_in_probabilities_out(cls, m):
    recalibrator, p = fitted(cls, m)
    q = recalibrator.transform(p)
    assert q.shape == p.shape and q.dtype == p.dtype
    assert np.all(q >= 0) and np.allclose(q.sum(axis=1), 1, rtol=0, atol=1e-14)
    assert np.array_equal(q, recalibrator.clone().fit_transform(overconfident(200, m)[0], p))
    single = recalibrator.transform(p.astype(np.float32))
    assert single.dtype == np.float32
    if m == 2:
        assert np.allclose(recalibrator.transform(p[:, 1]), q[:, 1], rtol=1e-13, atol=0)
        assert recalibrator.transform(p[:, 1:]).shape == (200, 1)
    wrapped = recalibrator.transform(Categorical(p, list("abcd"[:m])))
    assert isinstance(wrapped, Categorical) and np.array_equal(wrapped.probabilities, q)


@every
def test_parameters(cls):
    recalibrator, p = fitted(cls)
    assert recalibrator.n_samples_ == 200 and recalibrator.family_ == "probabilities of 3 classes"
    assert isinstance(recalibrator, Recalibrator)
    assert all(parameter.kind == parameter.KEYWORD_ONLY for parameter in inspect.signature(cls).parameters.values())
    copied = pickle.loads(pickle.dumps(recalibrator))
    assert np.array_equal(copied.transform(p), recalibrator.transform(p))
    assert repr(recalibrator) == f"{cls.__name__}()"
    fresh = recalibrator.clone()
    assert fresh.get_params() == recalibrator.get_params() and not hasattr(fresh, "family_")
    with pytest.raises(ValueError, match=rf"this {cls.__name__} is not fitted; call fit\(y_true, y_pred\) first"):
        fresh.transform(p)
    with pytest.raises(ValueError, match=r"`y_pred` holds probabilities of 2 classes, but .* fitted to prob"):
        recalibrator.transform(p[:, :2] / p[:, :2].sum(axis=1, keepdims=True))


@every
def test_weights(cls):
    """Weights of 0 leave samples out, and their unit does not matter."""
    y, p, _ = overconfident(150, 3)
    weight = np.random.default_rng(1).integers(0, 3, 150).astype(float)
    given = p[:20]
    if cls in (HistogramBinning,):
        weight = np.minimum(weight, 1)  # bins of equal mass count samples
    used = weight > 0
    q = cls().fit(y, p, sample_weight=weight).transform(given)
    assert np.allclose(q, cls().fit(y[used], p[used], sample_weight=7 * weight[used]).transform(given), atol=1e-10)


@every
def test_labels_by_name(cls):
    y, p, _ = overconfident(120, 3)
    names = np.array(["red", "green", "blue"])
    assert np.array_equal(cls().fit(names[y], p, classes=names).transform(p), cls().fit(y, p).transform(p))


@every_new
def test_libraries(cls, xp: Library):
    """Arrays come back in their library; those on NVIDIA GPUs are refused."""
    y, p, _ = overconfident(60, 3)
    recalibrator = cls().fit(y, p)
    if xp.on_gpu:
        with pytest.raises(NotImplementedError, match=f"{cls.__name__} cannot be computed on a GPU"):
            recalibrator.transform(xp.asarray(p))
        return
    given = xp.asarray(p)
    q = recalibrator.clone().fit(xp.asarray(y), given).transform(given)
    assert type(q) is (np.ndarray if xp.name == "dask" else type(given))
    expected = recalibrator.transform(p)
    assert np.allclose(arrays.to_host(q), expected, rtol=1e-6 if xp.name == "jax" else 1e-12)


@every_new
def test_distributions_are_refused(cls):
    recalibrator, _ = fitted(cls)
    for call in (lambda q: recalibrator.clone().fit([0.0], q), recalibrator.transform):
        with pytest.raises(TypeError, match=f"is Normal, expected class probabilities: {cls.__name__} is for these"):
            call(Normal([0.0], [1.0]))


@every
@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("n", [1, 4, 20])
def test_hard_samples_make_probabilities(cls, m, n):
    """Few samples, ties, saturated predictions, a class that is missing: numbers, perhaps with a warning."""
    rng = np.random.default_rng(n)
    parameters = {"n_bins": 1} if cls is HistogramBinning else {}
    small = 10 ** rng.uniform(-8, -4, n)
    saturated = np.repeat(small[:, None], m, axis=1)
    saturated[:, 0] = 1 - (m - 1) * small
    tied = np.full((n, m), 1 / m)
    one_hot = np.eye(m)[rng.integers(0, m, n)]
    far = special.softmax(rng.normal(size=(n, m)) * 200, axis=1)
    for p in (saturated, tied, one_hot, far, overconfident(n, m, seed=n)[1]):
        for y in (np.zeros(n, int), p.argmax(axis=1), rng.integers(0, m, n)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                recalibrator = cls(**parameters).fit(y, p)
            for given in (p, np.eye(m), tied, saturated):
                q = recalibrator.transform(given)
                assert np.all((q >= 0) & (q <= 1)) and np.allclose(q.sum(axis=1), 1, atol=1e-12)


@every
def test_it_helps(cls):
    y, p, _ = overconfident(4000, 3, seed=3)
    recalibrator = cls().fit(y[:2000], p[:2000])
    after = recalibrator.transform(p[2000:])
    assert kcalib.log_loss(y[2000:], after) < kcalib.log_loss(y[2000:], p[2000:]) - 0.02
    assert kcalib.skce(y[2000:], after) < 0.2 * kcalib.skce(y[2000:], p[2000:])


@pytest.mark.parametrize(
    ("cls", "parameters", "message"),
    [
        (PlattScaling, {"smoothing": 1}, "`smoothing` is 1, expected True or False"),
        (PlattScaling, {"floor": "low"}, "`floor` is 'low', expected a number"),
        (PlattScaling, {"floor": 0.2}, r"`floor` is 0\.2, expected a number from 1e-300 to 0\.1"),
        (IsotonicCalibration, {"smoothing": -1.0}, r"`smoothing` is -1\.0, expected a finite number of at least 0"),
        (IsotonicCalibration, {"smoothing": True}, r"`smoothing` is True, expected a number, such as 1\.0"),
        (HistogramBinning, {"n_bins": 0}, "`n_bins` is 0, expected an integer"),
        (HistogramBinning, {"binning": "wide"}, "`binning` is 'wide', expected one of 'equal_mass', 'uniform'"),
    ],
)
def test_wrong_parameters(cls, parameters, message):
    y, p, _ = overconfident(20, 3)
    with pytest.raises((TypeError, ValueError), match=message):
        cls(**parameters).fit(y, p)


# Binary problems one by one.


def one_against_others(q: np.ndarray) -> np.ndarray:
    return q / q.sum(axis=1, keepdims=True)


def test_platt_as_scikit_learn():
    calibration = pytest.importorskip("sklearn.calibration")
    y, _, logits = overconfident(400, 2, seed=1)
    scores = logits[:, 1] - logits[:, 0]
    theirs = calibration._SigmoidCalibration().fit(scores, y)  # a sigmoid of -(a s + b)
    scaling = PlattScaling().fit(y, scores, from_logits=True)
    # Theirs stops at a gradient of 1e-6.
    assert scaling.slope_[0] == pytest.approx(-theirs.a_, rel=1e-5)
    assert scaling.intercept_[0] == pytest.approx(-theirs.b_, abs=1e-5)
    assert np.allclose(scaling.transform(scores, from_logits=True), special.expit(scores), atol=0.5)


def literal_platt(y, p, k):
    """Of class k, by another optimiser and from probabilities."""
    hits = y == k
    targets = np.where(hits, (hits.sum() + 1) / (hits.sum() + 2), 1 / ((~hits).sum() + 2))
    s = special.logit(p[:, k])

    def loss(theta):
        return np.sum(np.logaddexp(0, theta[0] * s + theta[1]) - targets * (theta[0] * s + theta[1]))

    return optimize.minimize(loss, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x


def test_platt_of_three_classes():
    y, p, _ = overconfident(300, 3, seed=2)
    scaling = PlattScaling().fit(y, p)
    expected = np.array([literal_platt(y, p, k) for k in range(3)])
    assert np.allclose(np.stack([scaling.slope_, scaling.intercept_], axis=1), expected, atol=1e-6)
    scores = special.expit(expected[:, 0] * special.logit(p) + expected[:, 1])
    assert np.allclose(scaling.transform(p), one_against_others(scores), atol=1e-6)
    # The gradient is zero to rounding.
    s = special.logit(p[:, 0])
    hits = y == 0
    targets = np.where(hits, (hits.sum() + 1) / (hits.sum() + 2), 1 / ((~hits).sum() + 2))
    gap = special.expit(scaling.slope_[0] * s + scaling.intercept_[0]) - targets
    assert abs(np.mean(gap)) < 1e-13 and abs(np.mean(gap * s)) < 1e-12


def test_platt_standard_errors_are_the_spread_of_estimates():
    estimates, errors = [], []
    for seed in range(200):
        y, p, _ = overconfident(400, 2, seed=seed)
        scaling = PlattScaling(smoothing=False).fit(y, p)
        estimates.append((scaling.slope_[0], scaling.intercept_[0]))
        errors.append((scaling.slope_standard_error_[0], scaling.intercept_standard_error_[0]))
    # The standard deviation of 200 estimates has a relative error of 5 %.
    assert np.allclose(np.std(estimates, axis=0), np.mean(errors, axis=0), rtol=0.2)
    assert np.all(abs(np.mean(estimates, axis=0) - [0.5, 0.0]) < 4.4 * np.mean(errors, axis=0) / np.sqrt(200) + 0.01)


def test_platt_without_smoothing_says_that_classes_are_separated():
    p = np.array([0.1, 0.2, 0.7, 0.8])
    with pytest.warns(SeparationWarning, match=r"class 1 separate it from the others .* pass smoothing=True"):
        PlattScaling(smoothing=False).fit([0, 0, 1, 1], p)
    smooth = PlattScaling().fit([0, 0, 1, 1], p)
    assert smooth.converged_ and np.all(np.isfinite(smooth.slope_))


def test_platt_at_one_prediction():
    """There is no slope: the nearest to 1 is taken, and has no standard error."""
    scaling = PlattScaling(smoothing=False).fit([0, 1, 1, 1], np.full(4, 0.5))
    assert scaling.slope_[0] == 1.0 and np.isinf(scaling.slope_standard_error_[0])
    assert scaling.transform([0.5]) == pytest.approx(0.75, abs=1e-12)


def test_zeros_are_raised():
    y, p, _ = overconfident(40, 3)
    p[5] = [0.0, 0.4, 0.6]
    with pytest.warns(ProbabilityFloorWarning, match=r"has probabilities of 0 \(1 of 40 samples"):
        scaling = PlattScaling(floor=1e-5).fit(y, p)
    assert scaling.floor_ == 1e-5
    raised = np.maximum(p, 1e-5)
    raised /= raised.sum(axis=1, keepdims=True)
    expected = PlattScaling().fit(y, raised)
    assert expected.floor_ is None
    assert np.allclose(scaling.transform(p), expected.transform(raised), rtol=1e-9)


def test_confident_predictions_keep_their_digits():
    """Log-odds of 1 - 9e are those of the other classes' sum; of logits they are exact where p rounds to 1."""
    y, _, logits = overconfident(300, 3, seed=4, scale=30.0, temperature=10.0)
    of_logits = PlattScaling().fit(y, logits, from_logits=True)
    shifted = PlattScaling().fit(y, logits + 5.0, from_logits=True)
    assert np.allclose(of_logits.slope_, shifted.slope_, rtol=1e-9)
    p = special.softmax(logits.astype(np.longdouble), axis=1)
    others = np.stack([p[:, [1, 2]].sum(1), p[:, [0, 2]].sum(1), p[:, [0, 1]].sum(1)], axis=1)
    odds = np.asarray(np.log(p) - np.log(others), dtype=float)
    direct = [PlattScaling().fit(y == k, odds[:, k], from_logits=True).slope_[0] for k in range(3)]
    assert np.allclose(of_logits.slope_, direct, rtol=1e-10)


def test_isotonic_as_scikit_learn():
    isotonic = pytest.importorskip("sklearn.isotonic")
    y, p, _ = overconfident(300, 3, seed=5)
    p = np.round(p, 2)
    p /= p.sum(axis=1, keepdims=True)
    weight = np.random.default_rng(0).exponential(size=300)
    ours = IsotonicCalibration(smoothing=0.0).fit(y, p, sample_weight=weight)
    given = overconfident(200, 3, seed=6)[1]
    scores = [
        isotonic.IsotonicRegression(out_of_bounds="clip")
        .fit(p[:, k], y == k, sample_weight=weight)
        .predict(given[:, k])
        for k in range(3)
    ]
    assert np.allclose(ours.transform(given), one_against_others(np.stack(scores, axis=1)), atol=1e-12)


def test_smoothing_of_isotonic_regression():
    """Two samples more, as literal ones."""
    y, p, _ = overconfident(100, 2, seed=7)
    p = np.round(p[:, 1], 2)
    plain = IsotonicCalibration(smoothing=0.0)
    more = plain.fit(np.append(y, [1, 0]), np.append(p, [p.min(), p.max()])).transform(p)
    smooth = IsotonicCalibration().fit(y, p)
    assert np.allclose(smooth.transform(p), more, rtol=1e-12)
    assert smooth.values_[0][0] > 0 and smooth.values_[0][-1] < 1
    assert np.all(np.diff(smooth.thresholds_[0]) > 0) and np.all(np.diff(smooth.values_[0]) >= 0)
    absent = IsotonicCalibration().fit(np.zeros(8, int), np.linspace(0.1, 0.8, 8))
    assert np.allclose(absent.transform([0.0, 0.5, 1.0]), 0.1)


def test_no_class_is_possible():
    """Scores of 0 for all classes become uniform probabilities, as in scikit-learn."""
    y, p = [0, 1, 2], np.array([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]])
    isotonic = IsotonicCalibration(smoothing=0.0).fit(y, p)
    assert np.allclose(isotonic.transform([[0.2, 0.6, 0.2]]), [[0, 1, 0]])
    thirds = HistogramBinning(n_bins=2, binning="uniform", smoothing=0.0).fit([0, 0, 0], p[:, [1, 0, 2]])
    assert np.all(np.isfinite(thirds.transform(p)))
    lowest = IsotonicCalibration(smoothing=0.0).fit([0, 1, 2, 0], np.vstack([p, [[0.1, 0.45, 0.45]]]))
    assert np.allclose(lowest.transform([[0.05, 0.475, 0.475]]).sum(axis=1), 1)


def test_histogram_by_hand():
    y, p = [0, 1, 1, 1, 0, 1], [0.1, 0.2, 0.2, 0.6, 0.7, 0.8]
    equal = HistogramBinning(n_bins=2, smoothing=0.0).fit(y, p)
    assert equal.edges_[0].tolist() == [0.0, 0.2, 1.0]
    assert np.allclose(equal.values_[0], 2 / 3)
    assert np.allclose(equal.standard_errors_[0], np.sqrt(2 / 9 / 3))
    smooth = HistogramBinning(n_bins=2, smoothing=2.0).fit(y, p)
    assert np.allclose(smooth.values_[0], [(2 + 2 * 0.5 / 3) / 5, (2 + 2 * 0.7) / 5])
    wide = HistogramBinning(n_bins=4, binning="uniform", smoothing=0.0).fit(y, p, sample_weight=[1, 1, 1, 1, 1, 3])
    assert np.allclose(wide.values_[0], [2 / 3, 0.375, 0.5, 1.0])
    assert np.isinf(wide.standard_errors_[0][1])
    assert wide.transform([0.0, 0.25, 0.26, 1.0]).tolist() == pytest.approx([2 / 3, 2 / 3, 0.375, 1.0])
