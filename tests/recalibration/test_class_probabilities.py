"""Recalibrators of class probabilities: one protocol for all, and what each is against scikit-learn and by hand."""

from __future__ import annotations

import inspect
import json
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
    BetaCalibration,
    DirichletCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    PlattScaling,
    ProbabilityFloorWarning,
    Recalibrator,
    SeparationWarning,
    TemperatureScaling,
    VectorScaling,
    VennAbers,
)
from kcalib.recalibration._recalibrator import ClassRecalibrator
from kcalib.solvers import ConvergenceWarning, logistic

OF_CLASSES = [
    value
    for name in recalibration.__all__
    if inspect.isclass(value := getattr(recalibration, name)) and issubclass(value, ClassRecalibrator)
]
CLASSES = [TemperatureScaling, *OF_CLASSES]
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
def test_a_saved_map_repairs_with_the_same_bits(cls, tmp_path):
    recalibrator, p = fitted(cls)
    recalibration.save(recalibrator, tmp_path / "map.json")
    loaded = recalibration.load(tmp_path / "map.json")
    assert type(loaded) is cls and loaded.get_params() == recalibrator.get_params()
    assert np.array_equal(loaded.transform(p), recalibrator.transform(p))
    assert {name for name in vars(loaded) if name.endswith("_")} == {n for n in vars(recalibrator) if n.endswith("_")}


def test_files_that_hold_no_map(tmp_path):
    path = tmp_path / "map.json"
    for text in ("{", "[1]", '{"format": "kcalib recalibrator 1", "class": "choose", "state": {}}'):
        path.write_text(text)
        with pytest.raises(
            ValueError, match="holds no recalibrator of this version of kcalib; write one by kcalib.recal"
        ):
            recalibration.load(path)
    y, p, _ = overconfident(100, 3)
    for cls, name, value in (
        (TemperatureScaling, "temperature_", {"number": "nan"}),
        (TemperatureScaling, "temperature_", "cold"),
        (PlattScaling, "family_", None),
    ):
        recalibration.save(cls().fit(y, p), path)
        content = json.loads(path.read_text())
        assert name in content["state"]
        content["state"][name] = value
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match="holds no recalibrator of this version"):
            recalibration.load(path)
    with pytest.raises(ValueError, match="this PlattScaling is not fitted"):
        recalibration.save(PlattScaling(), path)
    scaling = TemperatureScaling(criterion="skce", kernel=kcalib.kernels.Gaussian(0.5)).fit(*overconfident(100, 3)[:2])
    with pytest.raises(TypeError, match="`kernel` is Gaussian, which JSON cannot hold; leave it at its default"):
        recalibration.save(scaling, path)


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


@pytest.mark.parametrize(
    "cls", [pytest.param(cls, marks=[] if cls is PlattScaling else pytest.mark.grid) for cls in OF_CLASSES]
)
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
        with pytest.raises(TypeError, match="is Normal, expected class probabilities; for distributions use"):
            call(Normal([0.0], [1.0]))


@every
@pytest.mark.parametrize(
    ("n", "m"),
    [pytest.param(n, m, marks=[] if n == 4 and m == 3 else pytest.mark.grid) for n in (1, 4, 20) for m in (2, 3)],
)
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
            if cls is not TemperatureScaling:
                assert getattr(recalibrator, "converged_", True)
            for given in (p, np.eye(m), tied, saturated):
                q = recalibrator.transform(given)
                assert np.all((q >= 0) & (q <= 1)) and np.allclose(q.sum(axis=1), 1, atol=1e-12)


FAR = [0.0, 5e-324, 1e-311, 1e-310, 2e-308, 1e-300, 1e-17, 0.5, 1 - 2**-53, 1.0]


@every
@pytest.mark.parametrize("smoothing", [True, False])
def test_any_probability_has_a_repaired_one(cls, smoothing):
    """Without overflow in differences, exponentials, logarithms or the inverse of a Hessian."""
    rng = np.random.default_rng(7)
    has_smoothing = not smoothing and "smoothing" in cls().get_params()
    parameters = {"smoothing": type(cls().smoothing)(0)} if has_smoothing else {}
    for n in range(5, 26, 4):
        second = np.append(np.exp(rng.uniform(-745, 0, n)), rng.choice(FAR, size=n))
        third = rng.choice([0.0, 1e-310, 1e-5], size=2 * n) * (1 - second)
        weight = np.append(1.0, 10.0 ** rng.uniform(-330, 14, 2 * n - 1)) if n % 3 == 0 else None
        for p in (second, np.stack([second, third, 1 - second - third], axis=1)):
            with np.errstate(all="raise", under="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                recalibrator = cls(**parameters).fit(rng.integers(0, p.ndim + 1, 2 * n), p, sample_weight=weight)
                q = recalibrator.transform(FAR if p.ndim == 1 else np.roll(p, 1, axis=1))
            assert np.all((q >= 0) & (q <= 1)) and (p.ndim == 1 or np.allclose(q.sum(axis=1), 1))


@pytest.mark.parametrize("cls", [PlattScaling, VectorScaling, MatrixScaling])
def test_far_logits_are_transformed_as_they_were_fitted(cls):
    """Beyond -690, too; the lowest floats, which mask impossible classes, are zeros."""
    y, _, logits = overconfident(400, 2, scale=1500.0, temperature=1000.0)
    far = cls().fit(y, logits, from_logits=True)
    q = far.transform(logits, from_logits=True)
    assert far.floor_ is None and np.min(logits[:, 1] - logits[:, 0]) < -4000
    if cls is PlattScaling:
        expected = special.expit(far.slope_ * (logits[:, 1] - logits[:, 0]) + far.intercept_)
        assert np.allclose(q[:, 1], expected, rtol=1e-12)
    assert np.mean(-np.log(q[np.arange(400), y])) == pytest.approx(kcalib.log_loss(y, q))
    masked = np.where(logits == logits.max(), np.finfo(float).min, logits)
    with pytest.warns(ProbabilityFloorWarning, match=r"\(1 of 400 samples have one\)"):
        assert np.all(np.isfinite(cls().fit_transform(y, masked, from_logits=True)))


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
        (IsotonicCalibration, {"smoothing": -1.0}, r"`smoothing` is -1\.0, expected a number from 0 to 1e.15"),
        (IsotonicCalibration, {"smoothing": True}, r"`smoothing` is True, expected a number, such as 1\.0"),
        (BetaCalibration, {"smoothing": "yes"}, "`smoothing` is 'yes', expected True or False"),
        (VectorScaling, {"regularization": -1}, "`regularization` is -1, expected a number from 0 to 1e"),
        (MatrixScaling, {"regularization": None}, "`regularization` is None, expected a number"),
        (DirichletCalibration, {"intercept_regularization": np.inf}, "`intercept_regularization` is inf, expected"),
        (VennAbers, {"n_folds": 1}, "`n_folds` is 1, expected an integer at least 2"),
        (VennAbers, {"n_folds": 21}, "`n_folds` is 21, but there are 20 samples with a weight; pass fewer"),
        (VennAbers, {"seed": -1}, "`seed` is -1, expected an integer at least 0"),
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
    """Of a model with logits, which both take for scores."""
    pytest.importorskip("sklearn", minversion="1.6")
    from sklearn import calibration, frozen, linear_model

    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 3))
    y = (rng.uniform(size=400) < special.expit(x[:, 0] - 0.5)).astype(int)
    model = linear_model.LogisticRegression(C=100.0).fit(x[:30], y[:30])
    theirs = calibration.CalibratedClassifierCV(frozen.FrozenEstimator(model), method="sigmoid").fit(x, y)
    ours = PlattScaling().fit_transform(y, model.decision_function(x), from_logits=True)
    # Theirs stops at a gradient of 1e-6 or so.
    assert np.allclose(ours, theirs.predict_proba(x)[:, 1], atol=1e-5)


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
    # The fit stops where the gradient, in units of its curvature, is below 1e-7.
    s = special.logit(p[:, 0])
    hits = y == 0
    targets = np.where(hits, (hits.sum() + 1) / (hits.sum() + 2), 1 / ((~hits).sum() + 2))
    gap = special.expit(scaling.slope_[0] * s + scaling.intercept_[0]) - targets
    assert abs(np.mean(gap)) < 1e-7 and abs(np.mean(gap * s)) < 1e-7


@pytest.mark.grid
def test_platt_standard_errors_are_the_spread_of_estimates():
    estimates, errors = [], []
    for seed in range(100):
        y, p, _ = overconfident(400, 2, seed=seed)
        scaling = PlattScaling(smoothing=False).fit(y, p)
        estimates.append((scaling.slope_[0], scaling.intercept_[0]))
        errors.append((scaling.slope_standard_error_[0], scaling.intercept_standard_error_[0]))
    # The standard deviation of 100 estimates has a relative error of 7 %.
    assert np.allclose(np.std(estimates, axis=0), np.mean(errors, axis=0), rtol=0.28)
    assert np.all(abs(np.mean(estimates, axis=0) - [0.5, 0.0]) < 4.4 * np.mean(errors, axis=0) / np.sqrt(100) + 0.01)


def test_platt_without_smoothing_says_that_classes_are_separated():
    p = np.array([0.1, 0.2, 0.7, 0.8])
    with pytest.warns(SeparationWarning, match=r"predictions separate class 1 from the others .* pass smoothing=True"):
        PlattScaling(smoothing=False).fit([0, 0, 1, 1], p)
    smooth = PlattScaling().fit([0, 0, 1, 1], p)
    assert smooth.converged_ and np.all(np.isfinite(smooth.slope_))


@pytest.mark.parametrize("cls", [PlattScaling, BetaCalibration])
def test_certain_predictions_that_are_right(cls):
    """The second derivative is 1e-316, whose inverse overflows."""
    logits = np.array([-740.0, 740.0, -740.0, 740.0])
    with np.errstate(all="raise", under="ignore"), pytest.warns(SeparationWarning):
        q = (
            cls(smoothing=False)
            .fit([0, 1, 0, 1], logits, from_logits=True)
            .transform([-740.0, 0, 740], from_logits=True)
        )
    assert q[0] < 1e-300 and q[1:].tolist() == [0.5, 1.0]


def test_platt_at_one_prediction():
    """There is no slope: 1 is taken, so that no order is turned round, and neither number has a standard error."""
    for p in (0.5, 0.3, 1e-9):
        scaling = PlattScaling(smoothing=False).fit([0, 1, 1, 1], np.full(4, p))
        assert scaling.slope_[0] == 1.0 and scaling.converged_
        assert np.isinf(scaling.slope_standard_error_[0]) and np.isinf(scaling.intercept_standard_error_[0])
        assert scaling.transform([p]) == pytest.approx(0.75, abs=1e-8)
        assert scaling.transform([p / 2]) < 0.75 < scaling.transform([0.6])
    one = PlattScaling().fit([1], [0.3])
    assert one.transform([0.3]) == pytest.approx(2 / 3) and one.slope_[0] == 1.0


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


def test_isotonic_between_places_that_are_very_near():
    """A tenth of the way from 0.2 to 0.6, where a slope would be infinite."""
    y = np.arange(150) % 50 < np.repeat([10, 30, 45], 50)
    isotonic = IsotonicCalibration(smoothing=0.0).fit(y, np.repeat([0, 1e-310, 1.0], 50))
    assert np.allclose(isotonic.transform([0, 1e-311, 1e-310, 0.5, 1]), [0.2, 0.24, 0.6, 0.75, 0.9], rtol=1e-12)


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


def literal_histogram(y, p, n_bins):
    """The frequency of each sample's bin, whose ends are samples, by a comparison with each of them."""
    ordered, n = sorted(p), len(p)
    ends = {ordered[(n - 1) * k // n_bins] for k in range(1, n_bins)}
    bins = [sum(end < s for end in ends) for s in p]
    return [np.mean([y[j] for j in range(n) if bins[j] == bins[i]]) for i in range(n)]


def test_histogram_of_tied_scores():
    ends = HistogramBinning(smoothing=0).fit(np.arange(200) % 100 < np.repeat([15, 90], 100), np.repeat([0.0, 1], 100))
    assert ends.edges_[0].tolist() == [0, 0, 1] and ends.transform([0, 1e-9, 1]).tolist() == [0.15, 0.9, 0.9]
    for seed in range(50):
        rng = np.random.default_rng(seed)
        p = np.round(rng.beta(0.3, 0.3, 60), 1)
        y = rng.integers(0, 2, 60)
        histogram = HistogramBinning(n_bins=int(rng.integers(1, 12)), smoothing=0).fit(y, p)
        assert np.allclose(histogram.transform(p), literal_histogram(y, p, histogram.n_bins), atol=1e-12)


# Beta calibration.


def literal_beta(y, p, k):
    """By scipy's bounded optimiser, of Platt's targets."""
    hits = y == k
    targets = np.where(hits, (hits.sum() + 1) / (hits.sum() + 2), 1 / ((~hits).sum() + 2))
    features = np.stack([np.log(p[:, k]), -np.log1p(-p[:, k]), np.ones(len(y))])

    def loss(theta):
        gap = special.expit(theta @ features) - targets
        return np.mean(np.logaddexp(0, theta @ features) - targets * (theta @ features)), features @ gap / len(y)

    bounds = [(0, None), (0, None), (None, None)]
    tight = {"ftol": 1e-15, "gtol": 1e-12}
    return optimize.minimize(loss, [1.0, 1.0, 0.0], jac=True, method="L-BFGS-B", bounds=bounds, options=tight).x


@pytest.mark.parametrize("flipped", [False, True])
def test_beta_as_a_bounded_optimiser(flipped):
    """Flipped labels want negative slopes, which are 0 then."""
    y, p, _ = overconfident(400, 3, seed=8)
    if flipped:
        y = p.argmin(axis=1)
    beta = BetaCalibration().fit(y, p)
    expected = np.array([literal_beta(y, p, k) for k in range(3)])
    assert np.allclose(np.stack([beta.a_, beta.b_, beta.c_], axis=1), expected, atol=1e-4)
    if flipped:
        assert np.any(beta.a_ == 0) and np.all(beta.a_standard_error_[beta.a_ == 0] == 0)
    features = expected[:, 0] * np.log(p) - expected[:, 1] * np.log1p(-p) + expected[:, 2]
    assert np.allclose(beta.transform(p), one_against_others(special.expit(features)), atol=1e-4)


def test_beta_without_smoothing_says_that_classes_are_separated():
    with pytest.warns(SeparationWarning, match="BetaCalibration has no maximum"):
        BetaCalibration(smoothing=False).fit([0, 0, 1, 1], [0.1, 0.2, 0.7, 0.8])


# Softmax regressions.


@pytest.mark.parametrize("cls", [MatrixScaling, DirichletCalibration])
@pytest.mark.parametrize("shared", [False, True])
def test_odir_objective_is_lowest(cls, shared, monkeypatch):
    """The gradient of the literal objective, by complex steps, is 0, whether classes share a preconditioner or not."""
    monkeypatch.setattr(logistic, "MAX_HESSIAN_ENTRIES", 0 if shared else 100)
    y, _, logits = overconfident(300, 3, seed=9)
    logits[:, 1] += 1
    found = cls(regularization=0.3, intercept_regularization=0.7).fit(y, logits, from_logits=True)
    assert found.converged_
    z = logits if cls is MatrixScaling else special.log_softmax(logits, axis=1)
    theta = np.concatenate([found.weights_, found.intercept_[:, None]], axis=1).ravel()
    value = lambda t: literal_complex(t, z, y, 0.3, 0.7)  # noqa: E731
    steps = [value(theta + 1e-20j * e).imag / 1e-20 for e in np.eye(12)]
    assert np.max(np.abs(steps)) < 1e-7
    if cls is DirichletCalibration:
        of_probabilities = cls(regularization=0.3, intercept_regularization=0.7).fit(y, special.softmax(logits, axis=1))
        assert np.allclose(of_probabilities.weights_, found.weights_, atol=1e-6)


def literal_complex(theta, z, y, first, second):
    m = z.shape[1]
    theta = theta.reshape(m, m + 1)
    logits = z @ theta[:, :m].T + theta[:, m]
    losses = np.log(np.sum(np.exp(logits), axis=1)) - logits[np.arange(len(y)), y]
    off = theta[:, :m] - np.diag(np.diag(theta[:, :m]))
    return np.mean(losses) + first * np.sum(off**2) / (m * (m - 1)) + second * np.sum(theta[:, m] ** 2) / m


def test_an_optimum_that_is_not_reached(monkeypatch):
    monkeypatch.setattr(logistic, "MAX_ITERATIONS", 1)
    y, p, _ = overconfident(100, 3)
    with pytest.warns(ConvergenceWarning, match="DirichletCalibration has not converged after 2 steps; pass"):
        assert not DirichletCalibration().fit(y, p).converged_


@pytest.mark.slow
@pytest.mark.parametrize("n, scale", [(2000, 2.0), (2000, 6.0), (5000, 3.0)])
def test_a_hundred_classes_converge(n, scale):
    rng = np.random.default_rng(0)
    logits = scale * rng.normal(size=(n, 100)) + 0.5 * rng.normal(size=100)
    y = draw_labels(special.softmax(logits / 1.7, axis=1), rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeparationWarning)
        found = DirichletCalibration().fit(y, logits, from_logits=True)
    assert found.converged_ and found.n_iterations_ < 60


def test_vector_scaling_is_at_the_optimum():
    y, _, logits = overconfident(400, 3, seed=11)
    logits = logits * [1.0, 2.0, 0.5] + [0.0, 1.0, -1.0]
    scaling = VectorScaling(regularization=0.01).fit(y, logits, from_logits=True)

    def loss(theta):
        z = logits * theta[:3] + theta[3:]
        data = np.mean(np.log(np.sum(np.exp(z), axis=1)) - z[np.arange(400), y])
        return data + 0.01 * (np.sum((theta[:3] - 1) ** 2) + np.sum(theta[3:] ** 2))

    theta = np.concatenate([scaling.weights_, scaling.intercept_])
    gradient = [loss(theta + 1e-20j * e).imag / 1e-20 for e in np.eye(6)]
    assert np.max(np.abs(gradient)) < 1e-8
    assert np.allclose(scaling.transform(logits, from_logits=True), special.softmax(logits * theta[:3] + theta[3:], 1))
    assert scaling.criterion_before_ == pytest.approx(kcalib.log_loss(y, logits, from_logits=True), rel=1e-12)
    assert scaling.criterion_after_ < scaling.criterion_before_


@pytest.mark.slow
def test_standard_errors_of_vector_scaling_are_the_spread_of_estimates():
    estimates, errors = [], []
    for seed in range(150):
        y, _, logits = overconfident(500, 3, seed=seed)
        scaling = VectorScaling().fit(y, logits, from_logits=True)
        estimates.append(scaling.weights_)
        errors.append(scaling.weights_standard_error_)
    # The standard deviation of 150 estimates has a relative error of 6 %.
    assert np.allclose(np.std(estimates, axis=0), np.mean(errors, axis=0), rtol=0.24)
    assert np.all(np.isinf(VectorScaling(regularization=0.0).fit(y, logits, from_logits=True).weights_standard_error_))


@pytest.mark.parametrize("cls", [VectorScaling, MatrixScaling])
def test_logits_after_logits(cls):
    y, p, logits = overconfident(100, 3)
    with pytest.raises(ValueError, match=rf"holds probabilities, but this {cls.__name__} was fitted to logits"):
        cls().fit(y, logits, from_logits=True).transform(p)
    with pytest.raises(
        ValueError, match=r"holds logits, but .* was fitted to probabilities; pass these \(from_logits=F"
    ):
        cls().fit(y, p).transform(logits, from_logits=True)


@pytest.mark.parametrize("cls", [VectorScaling, MatrixScaling, DirichletCalibration])
def test_all_labels_found(cls):
    p = np.array([[0.6, 0.4], [0.3, 0.7], [0.8, 0.2]])
    with pytest.warns(SeparationWarning, match=rf"{cls.__name__} predicts the labels of all 3 samples of the fit"):
        cls().fit([0, 1, 0], p)


@pytest.mark.parametrize("cls", [PlattScaling, BetaCalibration, VectorScaling, MatrixScaling])
def test_saturated_logits_reach_the_optimum(cls):
    """Newton's method from certain predictions, some of them wrong: their second derivatives are 0."""
    y, _, logits = overconfident(300, 3, seed=12, scale=200.0, temperature=80.0)
    found = cls().fit(y, logits, from_logits=True)
    assert found.converged_
    moved = cls().fit(y, logits / 50, from_logits=True)
    if cls is not VectorScaling and cls is not MatrixScaling:
        again = moved.transform(logits / 50, from_logits=True)
        assert np.allclose(found.transform(logits, from_logits=True), again, atol=0.05)
    assert kcalib.log_loss(y, found.transform(logits, from_logits=True)) < 0.9


# Venn-Abers.


def literal_value(y, p, weight, s, label):
    """Of isotonic regression at a sample that is added."""
    place, number = np.unique(np.append(p, s), return_inverse=True)
    total = np.bincount(number, np.append(weight, 1.0))
    hits = np.bincount(number, np.append(weight, 1.0) * np.append(y, label))
    return optimize.isotonic_regression(hits / total, weights=total).x[np.searchsorted(place, s)]


def test_venn_abers_is_two_isotonic_regressions():
    for seed in range(25):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 30))
        p = np.round(rng.uniform(size=n), int(rng.integers(1, 4)))
        y = (rng.uniform(size=n) < (p if seed % 2 else 0.5)).astype(int)
        weight = rng.exponential(size=n) if seed % 3 == 0 else np.ones(n)
        venn = VennAbers().fit(y, p, sample_weight=weight)
        given = np.concatenate([p, rng.uniform(size=5), [0.0, 1.0]])
        lower, upper = venn.bounds(given)
        for label, found in ((0, lower[:, 1]), (1, upper[:, 1])):
            expected = [literal_value(y, p, weight / weight.mean(), s, label) for s in given]
            assert np.allclose(found, expected, rtol=0, atol=1e-12)
        assert np.allclose(lower[:, 0], 1 - upper[:, 1]) and np.allclose(upper[:, 0], 1 - lower[:, 1])
        q = venn.transform(given)
        assert np.allclose(q, upper[:, 1] / (1 - lower[:, 1] + upper[:, 1]), atol=1e-12)


def test_folds_of_venn_abers():
    """Geometric means over the folds; of several classes divided by their sum."""
    y, p, _ = overconfident(60, 3, seed=13)
    venn = VennAbers(n_folds=3, seed=5).fit(y, p)
    folds = np.array_split(np.random.default_rng(5).permutation(60), 3)
    parts = [VennAbers().fit(y[rows], p[rows]).bounds(p) for rows in folds]
    misses = np.prod([1 - lower for lower, _ in parts], axis=0) ** (1 / 3)
    hits = np.prod([upper for _, upper in parts], axis=0) ** (1 / 3)
    assert np.allclose(venn.transform(p), one_against_others(hits / (hits + misses)), rtol=1e-10)
    with pytest.raises(ValueError, match="this VennAbers is not fitted"):
        VennAbers().bounds(p)
    for wrapped, plain in zip(venn.bounds(Categorical(p, list("abc"))), venn.bounds(p), strict=True):
        assert np.array_equal(wrapped, plain)
    with pytest.raises(TypeError, match="`y_pred` is Normal, expected class probabilities"):
        venn.bounds(Normal([0.0], [1.0]))


def test_venn_abers_is_valid():
    """The share of the class among samples with a label of their own between the bounds, at any n."""
    rng = np.random.default_rng(14)
    gaps = []
    for _ in range(300):
        p = rng.uniform(size=21)
        y = (rng.uniform(size=21) < p**3).astype(int)
        lower, upper = VennAbers().fit(y[:20], p[:20]).bounds(p[20:])
        gaps.append((y[20] - lower[0, 1], upper[0, 1] - y[20]))
    # The mean of lower bounds is below the frequency, that of upper ones above it; 4.4 standard errors.
    assert np.all(np.mean(gaps, axis=0) > -4.4 * np.std(gaps, axis=0) / np.sqrt(300))
