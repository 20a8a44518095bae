"""scorers, display and estimators in scikit-learn, on the newest and on the oldest version that is supported."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_diabetes, load_wine, make_classification
from sklearn.dummy import DummyClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, cross_val_score, cross_validate
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils import check_array
from sklearn.utils.estimator_checks import check_estimator

import kcalib
from kcalib.distributions import Normal
from kcalib.integrations.sklearn import (
    ProbabilityRecalibrator,
    RecalibratedClassifier,
    ReliabilityDisplay,
    scorer,
    scorer_names,
)
from kcalib.integrations.sklearn._methods import METHODS
from kcalib.lenses import Canonical, ClassWise, TopLabel
from kcalib.recalibration import HistogramBinning, PlattScaling, Recalibrator, TemperatureScaling

NEW = tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 6)
OF_CLASSES = [
    name for name in scorer_names() if name not in ("crps", "log_score", "pinball_loss", "quantile_calibration")
]
CHEAP = ["skce", "top_label_ece", "brier_score", "log_loss"]


@functools.cache
def wine() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return x[order, :4], np.array(["c", "a", "b"])[y[order]]


@functools.cache
def binary() -> tuple[np.ndarray, np.ndarray]:
    return make_classification(300, n_informative=3, flip_y=0.1, random_state=0)


# -- scorers


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in CHEAP else pytest.mark.grid) for one in OF_CLASSES]
)
def test_scores_are_those_of_the_function(name: str) -> None:
    x, y = wine()
    folds = list(StratifiedKFold(2).split(x, y))
    options = {"seed": 0} if name == "calibration_test" else {}
    scores = cross_val_score(GaussianNB(), x, y, cv=folds, scoring=scorer(name, **options), error_score="raise")
    for score, (train, test) in zip(scores, folds):
        model = GaussianNB().fit(x[train], y[train])
        result = getattr(kcalib, name)(y[test], model.predict_proba(x[test]), classes=model.classes_, **options)
        assert score == (result.pvalue if name == "calibration_test" else -float(result))


def test_a_fold_without_some_of_the_classes() -> None:
    """make_scorer could not know them: labels 0 and 2 of three columns."""
    x, y = load_wine(return_X_y=True)
    model = GaussianNB().fit(x, y)
    some = y != 1
    assert scorer("skce")(model, x[some], y[some]) == -kcalib.skce(y[some], model.predict_proba(x[some]))
    x, y = binary()
    model = GaussianNB().fit(x, np.where(y, "yes", "no"))
    p = model.predict_proba(x[y == 0])
    assert scorer("brier_score")(model, x[y == 0], ["no"] * int((y == 0).sum())) == pytest.approx(
        -np.mean(p[:, 1] ** 2)
    )


def test_a_grid_search_takes_the_best() -> None:
    x, y = binary()
    grid = {"var_smoothing": [1e-9, 1.0, 30.0]}
    search = GridSearchCV(GaussianNB(), grid, scoring=scorer("log_loss"), cv=3, error_score="raise").fit(x, y)
    assert search.best_score_ == max(search.cv_results_["mean_test_score"]) < 0
    several = {
        "ece": scorer("top_label_ece", n_bins=5),
        "p": scorer("calibration_test", seed=0),
        "host": "neg_log_loss",
    }
    found = cross_validate(GaussianNB(), x, y, cv=2, scoring=several, error_score="raise")
    assert (found["test_ece"] < 0).all() and ((found["test_p"] >= 0) & (found["test_p"] <= 1)).all()
    ours = cross_val_score(GaussianNB(), x, y, cv=2, scoring=scorer("log_loss"))
    np.testing.assert_allclose(found["test_host"], ours, rtol=1e-9)


def test_sample_weights_are_routed() -> None:
    x, y = binary()
    w = np.random.default_rng(0).uniform(size=len(y))
    folds = list(KFold(2).split(x, y))
    with sklearn.config_context(enable_metadata_routing=True):
        weighted = scorer("skce").set_score_request(sample_weight=True)
        model = GaussianNB().set_fit_request(sample_weight=False)
        found = cross_validate(
            model, x, y, cv=folds, scoring=weighted, params={"sample_weight": w}, error_score="raise"
        )
    for score, (train, test) in zip(found["test_score"], folds):
        p = GaussianNB().fit(x[train], y[train]).predict_proba(x[test])
        assert score == -kcalib.skce(y[test], p, sample_weight=w[test]) != -kcalib.skce(y[test], p)
    model = GaussianNB().fit(x, y)
    assert scorer("skce")(model, x, y, sample_weight=w) == -kcalib.skce(y, model.predict_proba(x), sample_weight=w)
    with pytest.raises(TypeError, match="ckce takes no sample weights; those that do are skce, top_label_ece"):
        scorer("ckce")(model, x, y, sample_weight=w)
    with (
        sklearn.config_context(enable_metadata_routing=True),
        pytest.raises(TypeError, match="ckce takes no sample weights"),  # else all scores were NaN
    ):
        scorer("ckce").set_score_request(sample_weight=True)


def test_the_host_sees_whether_a_scorer_takes_weights() -> None:
    """Without routing a search hands them to scorers that do, and warns of others."""
    x, y = binary()
    w = np.random.default_rng(0).uniform(size=len(y))
    weighted, plain = scorer("skce"), scorer("ckce")
    if not hasattr(weighted, "_accept_sample_weight"):
        pytest.skip("this version weights scores with metadata routing alone")
    assert weighted._accept_sample_weight() and not plain._accept_sample_weight()
    folds = [(np.arange(150), np.arange(150, 300))]
    search = GridSearchCV(GaussianNB(), {}, scoring=weighted, cv=folds).fit(x, y, sample_weight=w)
    p = GaussianNB().fit(x[:150], y[:150], w[:150]).predict_proba(x[150:])
    assert search.best_score_ == -kcalib.skce(y[150:], p, sample_weight=w[150:]) != -kcalib.skce(y[150:], p)


def test_predicted_distributions() -> None:
    x, y = load_diabetes(return_X_y=True)
    model = BayesianRidge().fit(x[:200], y[:200])
    predicted = Normal(*model.predict(x[200:], return_std=True))
    for name in ("crps", "log_score", "pinball_loss", "skce"):
        assert scorer(name)(model, x[200:], y[200:]) == -getattr(kcalib, name)(y[200:], predicted)
    error = kcalib.quantile_calibration(y[200:], predicted).error
    assert scorer("quantile_calibration")(model, x[200:], y[200:]) == -error
    pipeline = make_pipeline(StandardScaler(), GaussianProcessRegressor(alpha=0.1, normalize_y=True))
    assert (cross_val_score(pipeline, x[:60], y[:60], cv=2, scoring=scorer("crps"), error_score="raise") < 0).all()
    other = LinearRegression().fit(x, y > 100)  # without classes_, as many a model of others
    share = np.clip(other.predict(x), 0, 1)
    found = scorer("brier_score", response=lambda model, x: np.clip(model.predict(x), 0, 1))(other, x, y > 100)
    assert found == -kcalib.brier_score(y > 100, share)
    constant = scorer("crps", response=lambda model, x: Normal(model.predict(x), np.full(len(x), 50.0)))
    assert constant(LinearRegression().fit(x, y), x, y) < 0


def test_scorers_pickle_and_say_what_they_are() -> None:
    x, y = binary()
    model = GaussianNB().fit(x, y)
    one = scorer("top_label_ece", n_bins=7)
    again = pickle.loads(pickle.dumps(one))
    assert repr(one) == repr(again) == "scorer('top_label_ece', n_bins=7)"
    assert one(model, x, y) == again(model, x, y)
    assert cross_val_score(GaussianNB(), x, y, cv=2, n_jobs=1, scoring=again).shape == (2,)


def test_errors_of_scorers() -> None:
    x, y = binary()
    with pytest.raises(ValueError, match=r"there is no scorer 'skse', did you mean 'skce'\?; there are skce, ckce"):
        scorer("skse")
    with pytest.raises(ValueError, match="no scorer 'ece', did you mean 'top_label_ece'"):
        scorer("ece")
    with pytest.raises(ValueError, match="no scorer 'zzz'; there are"):
        scorer("zzz")
    for given in (3, ["skce"], kcalib.skce):
        with pytest.raises(TypeError, match="`name` is .*, expected a name such as 'skce', see scorer_names"):
            scorer(given)
    with pytest.raises(TypeError, match=r"`response` is 'predict_proba', expected a function of \(estimator, X\)"):
        scorer("skce", response="predict_proba")
    with pytest.raises(sklearn.exceptions.NotFittedError, match="This GaussianNB instance is not fitted yet"):
        scorer("skce")(GaussianNB(), x, y)
    with pytest.raises(TypeError, match=r"kcalib.top_label_ece has no option 'bins', did you mean 'n_bins'\?; it has"):
        scorer("top_label_ece", bins=3)
    with pytest.raises(TypeError, match="`classes` is no option here: the estimator's"):
        scorer("skce", classes=[0, 1])
    with pytest.raises(TypeError, match=r"LinearSVC has no predict_proba, .*RecalibratedClassifier\(LinearSVC"):
        scorer("skce")(LinearSVC().fit(x, y), x, y)
    with pytest.raises(TypeError, match="crps is of predicted distributions, but GaussianNB predicts class prob"):
        scorer("crps")(GaussianNB().fit(x, y), x, y)
    with pytest.raises(TypeError, match=r"LinearRegression.predict\(X, return_std=True\) fails: .*pass response="):
        scorer("crps")(LinearRegression().fit(x, y), x, y)


# -- recalibration


class Together(ClassifierMixin, BaseEstimator):
    """A model and the recalibration of its predictions of the same samples: what sklearn's checks call meets both."""

    def __init__(self, method: Any = "temperature") -> None:
        self.method = method

    def fit(self, x: Any, y: Any, sample_weight: Any = None) -> Together:
        x = check_array(x)
        self.model_ = LogisticRegression(tol=1e-12, max_iter=10000).fit(x, y, sample_weight)
        p = self.model_.predict_proba(x)
        self.recalibration_ = ProbabilityRecalibrator(self.method).fit(p, y, sample_weight)
        self.classes_, self.n_features_in_ = self.recalibration_.classes_, self.model_.n_features_in_
        return self

    def predict_proba(self, x: Any) -> Any:
        sklearn.utils.validation.check_is_fitted(self)
        return self.recalibration_.predict_proba(self.model_.predict_proba(x))

    def predict(self, x: Any) -> Any:
        p = self.predict_proba(x)
        return self.classes_[p.argmax(axis=1)]


def failures(estimator: Any) -> dict[str, Exception]:
    """What fails of scikit-learn's checks, by name; what it skips by itself is left out."""
    found = {}
    if NEW:
        for one in check_estimator(estimator, on_fail=None, on_skip=None):
            if one["status"] == "failed":
                found[one["check_name"]] = one["exception"]
        return found
    for checked, check in check_estimator(estimator, generate_only=True):
        try:
            check(checked)
        except Exception as error:
            if type(error).__name__ != "SkipTest":
                found[check.func.__name__] = error
    return found


def unsmoothed(name: str) -> Recalibrator:
    """What smooths adds samples of the mean weight, so that three times the weight is not three times the samples."""
    method = METHODS[name]()
    if "smoothing" in method.get_params():
        method.set_params(smoothing=type(method.get_params()["smoothing"])(0))
    return method


# Folds depend on the order of the samples, and those of weight 0 are in them: so says scikit-learn of its own.
OF_FOLDS = {"check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"}
OF_METHODS = {
    "PlattScaling": {"check_sample_weight_equivalence_on_dense_data"},  # 15 samples that a line separates
    "BetaCalibration": {"check_sample_weight_equivalence_on_dense_data"},
    # The model's rounding depends on batches and weights, and edges of bins are between samples that differ by it; the
    # sample that Venn-Abers predicts has the mean weight.
    "HistogramBinning": {"check_methods_subset_invariance", "check_sample_weight_equivalence_on_dense_data"},
    "VennAbers": {"check_methods_subset_invariance", "check_sample_weight_equivalence_on_dense_data"},
}
ESTIMATORS = [
    RecalibratedClassifier(LogisticRegression(), cv=2),
    *(RecalibratedClassifier(LogisticRegression(), method=name, cv=2) for name in METHODS if name != "temperature"),
    RecalibratedClassifier(LogisticRegression(), method=PlattScaling(), cv=2, ensemble=True),
    RecalibratedClassifier(LinearSVC(), cv=2),
    *(Together(unsmoothed(name)) for name in METHODS),
]


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda one: repr(one).replace("\n", ""))
def test_check_estimator(estimator: Any) -> None:
    allowed = OF_FOLDS if isinstance(estimator, RecalibratedClassifier) else set()
    if isinstance(estimator, Together):
        allowed = OF_METHODS.get(type(estimator.method).__name__, set())
    assert failures(estimator).keys() <= allowed


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore")
def test_checks_with_features_that_are_no_probabilities() -> None:
    """The checks' features are numbers of any size: each that fails does so since these are refused."""
    found = failures(ProbabilityRecalibrator())
    refused = (
        "expected a probability", "sums to", "X has predictions of", "raised ValueError unexpectedly",
        "of type pandas.Series",
    )  # fmt: skip
    assert [name for name, error in found.items() if not any(one in str(error) for one in refused)] == []


def test_wrapping_is_fitting_to_what_was_left_out() -> None:
    x, y = wine()
    folds = StratifiedKFold(3)
    model = RecalibratedClassifier(GaussianNB(), cv=folds).fit(x, y)
    p = np.zeros((len(y), 3))
    for train, test in folds.split(x, y):
        p[test] = GaussianNB().fit(x[train], y[train]).predict_proba(x[test])
    scaling = TemperatureScaling().fit(y, p)
    assert model.pairs_[0].recalibrator.temperature_ == pytest.approx(scaling.temperature_, rel=1e-12)
    expected = scaling.transform(GaussianNB().fit(x, y).predict_proba(x))
    np.testing.assert_allclose(model.predict_proba(x), expected, rtol=1e-9, atol=1e-12)
    assert model.classes_.tolist() == ["a", "b", "c"] and (model.predict(x) == GaussianNB().fit(x, y).predict(x)).all()

    several = RecalibratedClassifier(GaussianNB(), cv=folds, ensemble=True).fit(x, y)
    means = np.zeros((len(y), 3))
    for train, test in folds.split(x, y):
        part = GaussianNB().fit(x[train], y[train])
        means += TemperatureScaling().fit(y[test], part.predict_proba(x[test])).transform(part.predict_proba(x)) / 3
    np.testing.assert_allclose(several.predict_proba(x), means, rtol=1e-9, atol=1e-12)


def test_a_fitted_classifier_is_kept() -> None:
    x, y = binary()
    model = GaussianNB().fit(x[:150], y[:150])
    wrapped = [RecalibratedClassifier(model, cv="prefit")]
    if NEW:
        from sklearn.frozen import FrozenEstimator

        wrapped.append(RecalibratedClassifier(FrozenEstimator(model)))
    expected = TemperatureScaling().fit(y[150:], model.predict_proba(x[150:])).transform(model.predict_proba(x))
    for one in wrapped:
        one.fit(x[150:], y[150:])
        np.testing.assert_array_equal(one.predict_proba(x), expected)
        assert len(one.pairs_) == 1 and one.n_features_in_ == 20
    with pytest.raises(sklearn.exceptions.NotFittedError):
        RecalibratedClassifier(GaussianNB(), cv="prefit").fit(x, y)
    with pytest.raises(ValueError, match=r"y has no samples of the classes \[2\], which the fitted clas"):
        RecalibratedClassifier(GaussianNB().fit(x, np.arange(300) % 3), cv="prefit").fit(x, y)


def test_values_of_a_decision_function_are_logits() -> None:
    x, y = binary()
    model = RecalibratedClassifier(LinearSVC(), method="platt", cv=2).fit(x, y)
    assert model.pairs_[0].recalibrator.family_ == "probabilities of 2 classes"
    z = LinearSVC().fit(x, y).decision_function(x)
    np.testing.assert_allclose(model.predict_proba(x), two(model.pairs_[0].recalibrator.transform(z, from_logits=True)))


def two(second: np.ndarray) -> np.ndarray:
    return np.stack((1 - second, second), axis=1)


def test_weights_reach_both_fits() -> None:
    x, y = binary()
    w = np.random.default_rng(1).integers(1, 4, size=len(y))
    train, test = np.arange(150), np.arange(150, 300)
    model = RecalibratedClassifier(GaussianNB(), cv=[(train, test)]).fit(x, y, sample_weight=w)
    p = GaussianNB().fit(x[train], y[train], w[train]).predict_proba(x[test])
    expected = TemperatureScaling().fit(y[test], p, sample_weight=w[test]).temperature_
    assert model.pairs_[0].recalibrator.temperature_ == pytest.approx(expected, rel=1e-12)
    with sklearn.config_context(enable_metadata_routing=True):
        inner = GaussianNB().set_fit_request(sample_weight=True)
        routed = RecalibratedClassifier(inner, cv=[(train, test)]).set_fit_request(sample_weight=True)
        outer = make_pipeline(routed).fit(x, y, sample_weight=w)
    assert outer[-1].pairs_[0].recalibrator.n_samples_ == 150
    with pytest.warns(UserWarning, match="Pipeline.fit takes no sample_weight: only the recalibration is weighted"):
        RecalibratedClassifier(make_pipeline(GaussianNB()), cv=2).fit(x, y, sample_weight=w)


def test_a_place_in_a_pipeline_and_in_a_grid() -> None:
    x, y = binary()
    model = make_pipeline(StandardScaler(), RecalibratedClassifier(GaussianNB(), method=HistogramBinning(), cv=2))
    grid = {"recalibratedclassifier__method__n_bins": [3, 8], "recalibratedclassifier__estimator__var_smoothing": [1.0]}
    search = GridSearchCV(model, grid, cv=2, scoring=scorer("brier_score"), error_score="raise").fit(x, y)
    best = search.best_estimator_[-1]
    assert best.pairs_[0].recalibrator.n_bins == search.best_params_["recalibratedclassifier__method__n_bins"]
    methods = GridSearchCV(RecalibratedClassifier(GaussianNB(), cv=2), {"method": ["platt", "temperature"]}, cv=2)
    assert methods.fit(x, y).best_params_["method"] in METHODS
    again = clone(best)
    assert again.method is not best.method and not hasattr(again, "pairs_")
    assert pickle.loads(pickle.dumps(best)).predict_proba(x).tolist() == best.predict_proba(x).tolist()


@pytest.mark.parametrize("name", METHODS)
def test_probabilities_as_features(name: str) -> None:
    x, y = wine()
    p = GaussianNB().fit(x[:60], y[:60]).predict_proba(x)
    model = ProbabilityRecalibrator(name).fit(p[60:], y[60:])
    assert isinstance(model.recalibrator_, Recalibrator)
    np.testing.assert_array_equal(model.predict_proba(p), METHODS[name]().fit(y[60:], p[60:]).transform(p))
    assert model.classes_.tolist() == ["a", "b", "c"] and model.n_features_in_ == 3
    assert (model.predict(p) == model.classes_[model.predict_proba(p).argmax(axis=1)]).all()


def test_one_column_and_logits() -> None:
    x, y = binary()
    p = GaussianNB().fit(x, y).predict_proba(x)
    both = ProbabilityRecalibrator("platt").fit(p, y).predict_proba(p)
    np.testing.assert_allclose(
        ProbabilityRecalibrator("platt").fit(p[:, 1:], y).predict_proba(p[:, 1:]), both, rtol=1e-6
    )
    z = LinearSVC().fit(x, y).decision_function(x)[:, None]
    model = ProbabilityRecalibrator("platt", from_logits=True).fit(z, y)
    assert model.predict_proba(z).shape == (300, 2) and model.score(z, y) > 0.65


def test_columns_in_another_order() -> None:
    pd = pytest.importorskip("pandas")
    x, y = wine()
    p = GaussianNB().fit(x[:60], y[:60]).predict_proba(x)
    turned = pd.DataFrame(p[:, ::-1], columns=["c", "b", "a"])
    with pytest.raises(ValueError, match=r"`X` has the columns \['c', 'b', 'a'\], expected them in the order"):
        ProbabilityRecalibrator().fit(turned, y)
    model = ProbabilityRecalibrator(classes=["c", "b", "a"]).fit(turned, y)
    assert model.classes_.tolist() == ["c", "b", "a"] and model.feature_names_in_.tolist() == ["c", "b", "a"]
    expected = ProbabilityRecalibrator().fit(p, y).predict_proba(p)[:, ::-1]
    np.testing.assert_allclose(model.predict_proba(turned), expected, rtol=1e-9, atol=1e-15)


def test_errors_of_recalibration() -> None:
    x, y = binary()
    p = GaussianNB().fit(x, y).predict_proba(x)
    with pytest.raises(ValueError, match=r"`method` is 'temprature', did you mean 'temperature'\?; there are temp"):
        RecalibratedClassifier(GaussianNB(), method="temprature").fit(x, y)
    with pytest.raises(ValueError, match=r"`method` is 'sigmoid', which is 'platt' here; there are temp"):
        RecalibratedClassifier(GaussianNB(), method="sigmoid").fit(x, y)
    with pytest.raises(TypeError, match="`method` is 3, expected a name such as 'temperature', or one of kcalib.recal"):
        ProbabilityRecalibrator(3).fit(p, y)
    with pytest.raises(ValueError, match=r"X has predictions of 2 classes, but y has 3 labels: \[0, 1, 2\]; pass cl"):
        ProbabilityRecalibrator().fit(p, np.arange(300) % 3)
    with pytest.raises(ValueError, match="`classes` has 3 labels, but X predictions of 2 classes"):
        ProbabilityRecalibrator(classes=[0, 1, 2]).fit(p, y)
    with pytest.raises(ValueError, match=r"`classes` is \[1, 1\], expected a different label for each column"):
        ProbabilityRecalibrator(classes=[1, 1]).fit(p, y)
    with pytest.raises(ValueError, match=r"y\[\d+\] is 1, not among `classes`, \[0, 2\]"):
        ProbabilityRecalibrator(classes=[0, 2]).fit(p, y)
    with pytest.raises(ValueError, match="class 1 has 1 of the 20 samples, fewer than the 5 folds"):
        RecalibratedClassifier(GaussianNB()).fit(x[:20], (np.arange(20) == 3).astype(int))
    with pytest.raises(ValueError, match="y has samples of 1 class: "):
        RecalibratedClassifier(GaussianNB()).fit(x, np.zeros(300))
    with pytest.raises(TypeError, match="LinearRegression has neither predict_proba nor decision_function"):
        RecalibratedClassifier(LinearRegression(), cv=2).fit(x, y)
    with pytest.raises(ValueError, match=r"a part of the samples has none of the classes \[2\]; pass another cv="):
        RecalibratedClassifier(LinearSVC(), cv=KFold(3)).fit(x, np.r_[np.arange(200) % 2, np.full(100, 2)])
    with pytest.raises(ValueError, match="SVC predicts 6 columns of 4 classes, .* decision_function_shape='ovr'"):
        RecalibratedClassifier(SVC(decision_function_shape="ovo"), cv=2).fit(x[:40], np.arange(40) % 4)


@pytest.mark.filterwarnings("ignore")
def test_classes_that_a_fold_did_not_see_have_the_probability_zero() -> None:
    x, _ = binary()
    y = np.r_[np.arange(200) % 2, np.full(100, 2)]
    model = RecalibratedClassifier(GaussianNB(), method="histogram", cv=KFold(3)).fit(x, y)
    assert model.predict_proba(x).shape == (300, 3)


# -- display


@pytest.fixture
def pyplot() -> Any:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


def test_display_of_an_estimator(pyplot: Any) -> None:
    x, y = binary()
    model = GaussianNB().fit(x, np.where(y, "yes", "no"))
    display = ReliabilityDisplay.from_estimator(model, x, np.where(y, "yes", "no"), n_bins=5, histogram=True)
    expected = kcalib.reliability(y, model.predict_proba(x)[:, 1], n_bins=5, lens=Canonical())
    np.testing.assert_array_equal(display.diagrams["GaussianNB"].frequency, expected.frequency)
    assert display.ax_.get_ylabel() == "fraction of positives (positive class: yes)"
    assert display.histogram_ax_.get_xlabel() == "mean predicted probability (positive class: yes)"
    assert display.figure_ is display.ax_.figure and display.figure_.number in pyplot.get_fignums()
    shown = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert shown == ["GaussianNB", "95 % consistency band", "95 % confidence interval"]
    other = ReliabilityDisplay.from_estimator(model, x, np.where(y, "yes", "no"), pos_label="no", n_bins=5)
    np.testing.assert_allclose(other.diagrams["GaussianNB"].frequency, 1 - expected.frequency[::-1])


def test_display_of_several_models(pyplot: Any) -> None:
    x, y = wine()
    models = {"bayes": GaussianNB().fit(x, y), "dummy": DummyClassifier().fit(x, y)}
    evaluations = {name: kcalib.evaluate(y, model.predict_proba(x)) for name, model in models.items()}
    display = ReliabilityDisplay.from_estimator(models, x, y, evaluation=evaluations)
    labels = [line.get_label() for line in display.line_]
    verdict = evaluations["bayes"].verdict.partition(":")[0]
    assert labels[0] == f"bayes: ECE {evaluations['bayes'].top_label_ece:.3f}, {verdict}"
    assert display.diagrams["bayes"].lens == str(TopLabel()) and display.ax_.get_ylabel() == "accuracy"
    assert len({line.get_color() for line in display.line_}) == 2 and len(display.line_) == 2

    _, ax = pyplot.subplots()
    p = {name: model.predict_proba(x) for name, model in models.items()}
    first = ReliabilityDisplay.from_predictions(y, p["bayes"], name="bayes", ax=ax)
    second = ReliabilityDisplay.from_predictions(y, p["dummy"], name="dummy", ax=ax)
    assert first.ax_ is second.ax_ is ax and first.histogram_ax_ is None
    assert first.line_[0].get_color() != second.line_[0].get_color()
    assert sum(line.get_linestyle() == "--" for line in ax.lines) == 1  # one diagonal
    again = first.plot(name="again")
    assert again is first and again.ax_ is not ax and again.line_[0].get_label() == "again"


def test_display_on_dark_axes_has_colours_that_are_seen(pyplot: Any) -> None:
    from matplotlib.colors import to_rgb

    y, p = np.tile([0, 1], 20), np.linspace(0.1, 0.9, 40)
    models = {str(k): p for k in range(7)}
    light = ReliabilityDisplay.from_predictions(y, models)
    with pyplot.style.context("dark_background"):
        dark = ReliabilityDisplay.from_predictions(y, models)
    for display, side in ((light, 1), (dark, -1)):
        colors = [line.get_color() for line in display.line_]
        brightness = [side * np.mean(to_rgb(color)) for color in colors]
        assert len(set(colors)) == 7 and max(brightness[:2]) < min(brightness[4:6])
        below = display.histogram_ax_
        assert [text.get_text() for text in below.get_yticklabels()] == ["0", "0.5", "1"]
        assert not below.spines["top"].get_visible() and len(below.patches) == 7
        assert not any(outline.get_fill() for outline in below.patches)


def test_display_of_logits_of_both_classes(pyplot: Any) -> None:
    """A softmax is of differences: the other column counts."""
    x, y = binary()
    logits = np.random.default_rng(0).normal(size=(len(y), 2)) * 2 + x[:, :1]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for column in (0, 1):
        shown, expected = (
            ReliabilityDisplay.from_predictions(y, given, pos_label=column, **options).diagrams["model"]
            for given, options in ((logits, {"from_logits": True}), (p, {}))
        )
        np.testing.assert_allclose(shown.confidence, expected.confidence, rtol=1e-9)
        np.testing.assert_array_equal(shown.frequency, expected.frequency)


def test_columns_of_a_display_in_another_order(pyplot: Any) -> None:
    pd = pytest.importorskip("pandas")
    x, y = binary()
    y = np.where(y, "yes", "no")
    turned = pd.DataFrame(GaussianNB().fit(x, y).predict_proba(x)[:, ::-1], columns=["yes", "no"])
    with pytest.raises(ValueError, match=r"`y_pred` has the columns \['yes', 'no'\], expected them in the order"):
        ReliabilityDisplay.from_predictions(y, turned, pos_label="yes")
    shown = ReliabilityDisplay.from_predictions(y, turned, pos_label="yes", classes=["yes", "no"]).diagrams["model"]
    expected = kcalib.reliability(y == "yes", turned["yes"].to_numpy(), lens=Canonical())
    np.testing.assert_array_equal(shown.frequency, expected.frequency)


def test_labels_are_objects_as_those_of_pandas(pyplot: Any) -> None:
    x, y = binary()
    y = np.array(["no", "yes"], dtype=object)[y]
    model = LogisticRegression().fit(x, y)
    assert model.classes_.dtype == object
    shown = ReliabilityDisplay.from_estimator(model, x, y)
    expected = kcalib.reliability(y == "yes", model.predict_proba(x)[:, 1], lens=ClassWise(1))
    np.testing.assert_array_equal(shown.diagrams["LogisticRegression"].frequency, expected.frequency)
    wrong = np.where(np.arange(len(y)) == 3, "perhaps", y)
    with pytest.raises(ValueError, match=r"`y_true\[3\]` is 'perhaps', which is none of the labels \['no', 'yes'\]"):
        ReliabilityDisplay.from_estimator(model, x, wrong)
    with pytest.raises(ValueError, match=r"y\[3\] is 'perhaps', not among `classes`, \['no', 'yes'\]"):
        ProbabilityRecalibrator(classes=["no", "yes"]).fit(model.predict_proba(x), wrong)
    with pytest.raises(ValueError, match="class 'perhaps' has 1 of the 300 samples, fewer than the 3 folds"):
        RecalibratedClassifier(GaussianNB(), cv=3).fit(x, wrong)


def test_errors_of_the_display(pyplot: Any) -> None:
    x, y = wine()
    model = GaussianNB().fit(x, y)
    p = model.predict_proba(x)
    with pytest.raises(ValueError, match="`name` is for one model; the names of several are the keys"):
        ReliabilityDisplay.from_predictions(y, {"a": p, "b": p}, name="c")
    with pytest.raises(ValueError, match="`name` is for one model, there are 2: a, b"):
        ReliabilityDisplay.from_predictions(y, {"a": p, "b": p}).plot(name="c")
    with pytest.raises(ValueError, match="there is no model to show"):
        ReliabilityDisplay.from_predictions(y, {})
    with pytest.raises(TypeError, match="`evaluation` is one result for several models"):
        ReliabilityDisplay.from_predictions(y, {"a": p, "b": p}, evaluation=kcalib.evaluate(y, p))
    with pytest.raises(TypeError, match="the evaluation of 'model' is str, expected a kcalib.Evaluation"):
        ReliabilityDisplay.from_predictions(y, p, evaluation="good")
    with pytest.raises(ValueError, match="the evaluation of 'model' is of 50 samples, its predictions are 178"):
        ReliabilityDisplay.from_predictions(y, p, evaluation=kcalib.evaluate(y[:50], p[:50]))
    with pytest.raises(ValueError, match=r"is through ClassWise\(index=0\), its diagram through TopLabel\(\)"):
        ReliabilityDisplay.from_predictions(y, p, evaluation=kcalib.evaluate(y, p, lens=ClassWise(0)))
    with pytest.raises(ValueError, match="there is an evaluation of 'b', but no such model: a"):
        ReliabilityDisplay.from_predictions(y, {"a": p}, evaluation={"b": kcalib.evaluate(y, p)})
    with pytest.raises(ValueError, match=r"`pos_label` is for binary problems; of others class k is lens="):
        ReliabilityDisplay.from_predictions(y, p, pos_label="a")
    q = p[:, 0] / p.sum(axis=1)
    with pytest.raises(ValueError, match=r"`pos_label` is 3, which is none of the labels \[False, True\]"):
        ReliabilityDisplay.from_predictions(y == "a", q, pos_label=3)
    with pytest.raises(ValueError, match="`pos_label` and `lens` both say what is shown"):
        ReliabilityDisplay.from_predictions(y == "a", q, pos_label=True, lens=Canonical())
    with pytest.raises(ValueError, match=r"`y_true\[0\]` is '[abc]', which is none of the labels \[False, True\]"):
        ReliabilityDisplay.from_estimator(GaussianNB().fit(x, y == "a"), x, y)
    with pytest.raises(TypeError, match="kcalib.reliability has no option 'nbins', did you mean 'n_bins'"):
        ReliabilityDisplay.from_predictions(y, p, nbins=3)
    with pytest.raises(TypeError, match="LinearSVC has no predict_proba, whose reliability .*method='platt'"):
        ReliabilityDisplay.from_estimator(LinearSVC().fit(x, y), x, y)
    with pytest.raises(sklearn.exceptions.NotFittedError, match="This GaussianNB instance is not fitted yet"):
        ReliabilityDisplay.from_estimator(GaussianNB(), x, y)
    with pytest.raises(TypeError, match="`estimator` is a list, expected a classifier, or a dictionary of several"):
        ReliabilityDisplay.from_estimator([model], x, y)
    with pytest.raises(ValueError, match="`estimator` is empty; there is no model to show"):
        ReliabilityDisplay.from_estimator({}, x, y)
    with pytest.raises(ValueError, match="`name` is for one model; the names of several are the keys"):
        ReliabilityDisplay.from_estimator({"a": model, "b": model}, x, y, name="c")
    with pytest.raises(ValueError, match="the classes of the estimators are not the same: "):
        ReliabilityDisplay.from_estimator({"a": model, "b": GaussianNB().fit(x, y == "a")}, x, y)
