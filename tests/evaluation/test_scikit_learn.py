"""The first ten minutes with scikit-learn: its models as they come, and every default of ours."""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import numpy as np
import pytest
from grid import some

pytest.importorskip("sklearn")
from sklearn import datasets, dummy, ensemble, linear_model, naive_bayes, neighbors, tree
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import kcalib
from kcalib.distributions import Normal, Poisson
from kcalib.recalibration import ProbabilityFloorWarning, TemperatureBoundWarning, TemperatureScaling

CLASSIFIERS: dict[str, Any] = {
    "dummy": dummy.DummyClassifier(),
    "most frequent": dummy.DummyClassifier(strategy="most_frequent"),
    "tree": tree.DecisionTreeClassifier(random_state=0),
    "nearest neighbours": neighbors.KNeighborsClassifier(),
    "naive Bayes": naive_bayes.GaussianNB(),
    "forest": ensemble.RandomForestClassifier(10, random_state=0),
    "logistic": make_pipeline(StandardScaler(), linear_model.LogisticRegression()),
}
REGRESSORS: dict[str, Any] = {
    "dummy": dummy.DummyRegressor(),
    "linear": linear_model.LinearRegression(),
    "tree": tree.DecisionTreeRegressor(min_samples_leaf=10, random_state=0),
    "Bayesian": linear_model.BayesianRidge(),
}
OUR_WARNINGS = (
    ProbabilityFloorWarning,
    TemperatureBoundWarning,
    kcalib.AntiConservativeWarning,
    kcalib.IndefiniteKernelWarning,
    kcalib.ToleranceWarning,
)


@functools.cache
def halves(name: str, n: int) -> tuple[np.ndarray, ...]:
    """Samples to train, and n others."""
    if name == "friedman":
        x, y = datasets.make_friedman1(400, random_state=0)
    else:
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    half = len(y) // 2
    return x[order[:half]], y[order[:half]], x[order[half : half + n]], y[order[half : half + n]]


def check_all(y: np.ndarray, p: Any) -> None:
    """What people call first gives numbers."""
    result = kcalib.evaluate(y, p)
    assert result.verdict and math.isfinite(result.skce.value)
    assert math.isfinite(kcalib.skce(y, p)) and kcalib.ckce(y, p) >= 0
    assert 0 <= kcalib.calibration_test(y, p, seed=0).pvalue <= 1


def check_temperature(y: np.ndarray, p: Any, criterion: str) -> None:
    """A temperature that is the best, or a warning that it is not."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scaling = TemperatureScaling(criterion=criterion).fit(y, p)
    assert {one.category for one in caught} <= set(OUR_WARNINGS)
    at_bound = any(one.category is TemperatureBoundWarning for one in caught)
    assert scaling.converged_ is not at_bound and 0.01 <= scaling.temperature_ <= 100
    if not at_bound:
        assert 0.01 < scaling.temperature_ < 100
    zeros = isinstance(p, np.ndarray) and bool((p[np.arange(len(y)), y] == 0).any())
    assert (scaling.floor_ is not None) == zeros
    assert any(one.category is ProbabilityFloorWarning for one in caught) == (scaling.floor_ is not None)
    q = scaling.transform(p)
    if isinstance(q, np.ndarray):
        np.testing.assert_allclose(q.sum(axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize("data", some(["digits", "breast_cancer", "wine"], "breast_cancer"))
@pytest.mark.filterwarnings("ignore::kcalib.AntiConservativeWarning")
def test_classifiers(data):
    x, labels, x_test, y = halves(data, 300 if data == "digits" else 100)
    models = {name: model.fit(x, labels).predict_proba(x_test) for name, model in CLASSIFIERS.items()}
    for p in models.values():
        check_all(y, p)
        for criterion in ("likelihood", "skce"):
            check_temperature(y, p, criterion)
    compared = kcalib.compare(y, models)
    assert all(math.isfinite(one.value) for one in compared.models)
    assert "6 models" in compared.bandwidth_source or "5 models" in compared.bandwidth_source  # but for the dummies


@pytest.mark.parametrize("data", ["diabetes", pytest.param("friedman", marks=pytest.mark.grid)])
@pytest.mark.filterwarnings("ignore::kcalib.AntiConservativeWarning")
def test_regressors(data):
    x, targets, x_test, y = halves(data, 50)
    models = {}
    for name, model in REGRESSORS.items():
        model.fit(x, targets)
        mean, std = model.predict(x_test), np.std(targets - model.predict(x))
        models[name] = Normal(mean, np.full(len(y), std))
        check_all(y, models[name])
        for criterion in ("likelihood", "skce"):
            check_temperature(y, models[name], criterion)
    assert all(math.isfinite(one.value) for one in kcalib.compare(y, models).models)


@pytest.mark.parametrize("rate", [np.full(200, 0.3), np.geomspace(1e-5, 1e-2, 200)], ids=["climatology", "rare"])
@pytest.mark.filterwarnings("ignore::kcalib.AntiConservativeWarning")
def test_counts(rate):
    y = np.random.default_rng(0).poisson(rate)
    check_all(y, Poisson(rate))
    found = kcalib.skce.result(y, Poisson(rate))
    if rate[0] == rate[-1]:
        assert found.bandwidth_source.startswith("any: the distances of all predictions are 0")
    else:
        assert "identical" not in found.bandwidth_source and 1e-4 < found.bandwidth < 0.1
