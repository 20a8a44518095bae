"""The pipeline that chooses an estimator by risk: literal loops, scikit-learn's manners, what cannot be done."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import math
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from libraries import Library, MakeProblem

import kcalib
from kcalib.lenses import Canonical, ClassWise, Lens, TopLabel
from kcalib.regression import BinnedCalibration, SquaredCalibrationErrorCV, TemperatureCalibration
from kcalib.regression._function import CalibrationFunction, Problem

Function = Callable[[np.ndarray, np.ndarray], float]


def overconfident(n: int, m: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    true = rng.dirichlet(np.ones(m), size=n)
    y = np.minimum((rng.uniform(size=(n, 1)) > true.cumsum(axis=1)).sum(axis=1), m - 1)
    return y, true**2 / np.sum(true**2, axis=1, keepdims=True)


def binned(confidence: np.ndarray, correct: np.ndarray, n_bins: int) -> Callable[[float], float]:
    """The gap of the bin of a confidence, bins (k / n_bins, (k + 1) / n_bins]."""

    def bin_of(c: float) -> int:
        return max(math.ceil(c * n_bins) - 1, 0)

    def gap(c: float) -> float:
        inside = [k for k in range(len(confidence)) if bin_of(confidence[k]) == bin_of(c)] or range(len(confidence))
        return math.fsum(confidence[k] - correct[k] for k in inside) / len(inside)

    return gap


def literal_risk(gap: Callable[[float], float], confidence: np.ndarray, correct: np.ndarray) -> float:
    e = confidence - correct
    pairs = [(i, j) for i in range(len(e)) for j in range(len(e)) if i != j]
    return math.fsum((e[i] * e[j] - gap(confidence[i]) * gap(confidence[j])) ** 2 for i, j in pairs) / len(pairs)


def test_pipeline_is_the_literal_one():
    """41 samples: 8 for the estimate, 33 in folds of 7, 7, 7, 6, 6; bins with exact edges."""
    y, p = overconfident(41, 3, 1)
    confidence, correct = p.max(axis=1), (p.argmax(axis=1) == y).astype(float)
    order = np.random.default_rng(7).permutation(41)
    bounds = [0, 7, 14, 21, 27, 33]
    risks: dict[int, list[float]] = {}
    values: dict[int, list[float]] = {}
    nulls = []
    for begin, end in itertools.pairwise(bounds):
        fold, rest, test = order[begin:end], np.concatenate([order[:begin], order[end:33]]), order[33:]
        for n_bins in (1, 2, 4, 8):
            gap = binned(confidence[rest], correct[rest], n_bins)
            risks.setdefault(n_bins, []).append(literal_risk(gap, confidence[fold], correct[fold]))
            values.setdefault(n_bins, []).append(math.fsum(gap(c) ** 2 for c in confidence[test]) / 8)
        nulls.append(literal_risk(lambda c: 0.0, confidence[fold], correct[fold]))
    best = min(risks, key=lambda n_bins: sum(risks[n_bins]))

    cv = SquaredCalibrationErrorCV((BinnedCalibration(), {"n_bins": [1, 2, 4, 8]}), lens=TopLabel(), seed=7).fit(y, p)
    result = cv.result_
    assert cv.best_params_ == {"n_bins": best} == result.parameters
    assert (result.n_samples, result.n_tuning, result.n_test, result.n_folds, result.seed) == (41, 33, 8, 5, 7)
    assert result.value == pytest.approx(np.mean(values[best]), rel=1e-12)
    assert result.root == pytest.approx(math.sqrt(np.mean(values[best])), rel=1e-12)
    assert result.standard_error == pytest.approx(np.std(values[best], ddof=1) / math.sqrt(5), rel=1e-10)
    assert result.risk == pytest.approx(np.mean(risks[best]), rel=1e-11)
    assert result.null_risk == pytest.approx(np.mean(nulls), rel=1e-11)
    difference = np.subtract(risks[best], nulls)
    assert result.risk_minus_null == pytest.approx(np.mean(difference), rel=1e-9)
    assert result.risk_minus_null_standard_error == pytest.approx(np.std(difference, ddof=1) / math.sqrt(5), rel=1e-9)
    entry = result.estimators[0]
    assert entry.root_risk == pytest.approx(np.mean(np.sqrt(risks[best])), rel=1e-11)
    assert entry.fold_values == pytest.approx(values[best], rel=1e-12)

    found = cv.cv_results_
    assert [found[f"split{k}_risk"].tolist() for k in range(5)] == [
        pytest.approx([risks[n_bins][k] for n_bins in (1, 2, 4, 8)], rel=1e-11) for k in range(5)
    ]
    assert found["mean_risk"].tolist() == pytest.approx([np.mean(risks[b]) for b in (1, 2, 4, 8)], rel=1e-11)
    assert found["rank_risk"][cv.best_index_] == 1
    assert found["params"][cv.best_index_] == cv.best_params_
    assert cv.best_risk_ == result.risk == found["mean_risk"][cv.best_index_]


def test_ensemble_is_the_mean_of_the_folds_functions(make_problem: MakeProblem):
    y, p = make_problem(60, 3)
    other = make_problem(9, 3, seed=4)[1]
    cv = SquaredCalibrationErrorCV("bins", lens=TopLabel(), n_folds=3).fit(y, p)
    assert len(cv.estimators_) == 3
    assert np.allclose(cv.h(other), np.mean([f.h(other) for f in cv.estimators_], axis=0), rtol=1e-13, atol=1e-18)
    assert cv.squared_error(other) == pytest.approx(np.mean(np.diag(cv.h(other))), rel=1e-12)
    test = np.random.default_rng(0).permutation(60)[48:]
    assert cv.result_.value == pytest.approx(cv.squared_error(p[test]), rel=1e-12)


def test_samples_keep_their_order_without_shuffle(make_problem: MakeProblem):
    y, p = make_problem(80, 3)
    order = np.random.default_rng(3).permutation(80)
    shuffled = kcalib.squared_calibration_error(y, p, estimators="temperature", seed=3)
    given = kcalib.squared_calibration_error(y[order], p[order], estimators="temperature", shuffle=False)
    assert given.seed is None
    same = {"seed": 3, "seconds": shuffled.seconds}
    assert dataclasses.replace(given, **same) == shuffled


def test_the_estimator_of_the_lowest_risk_is_taken():
    y, p = overconfident(4000, 3, 2)
    estimators = ["bins", "temperature", (BinnedCalibration(binning="equal_mass"), {"n_bins": [2, 4]})]
    cv = SquaredCalibrationErrorCV(estimators, lens=TopLabel()).fit(y, p)
    result = cv.result_
    assert [entry.risk for entry in result.estimators] == sorted(entry.risk for entry in result.estimators)
    assert {entry.estimator for entry in result.estimators} == {
        "bins", "temperature", "BinnedCalibration(binning='equal_mass')",
    }  # fmt: skip
    assert result.estimator == result.estimators[0].estimator == cv.cv_results_["estimator"][cv.best_index_]
    assert result.value == result.estimators[0].value == float(result)
    assert result.risk_minus_null < 0
    assert len(cv.cv_results_["params"]) == 20 + 1 + 2
    assert cv.cv_results_["param_n_bins"].mask.tolist() == [False] * 20 + [True] + [False] * 2
    lines = str(result).splitlines()
    assert len(lines) == 5 and lines[2].startswith(result.estimator)


def test_by_default_all_that_apply(make_problem: MakeProblem):
    y, p = make_problem(20, 3)
    alone = {entry.estimator for entry in kcalib.squared_calibration_error(y, p, lens=TopLabel(), n_folds=2).estimators}
    together = {entry.estimator for entry in kcalib.squared_calibration_error(y, p, n_folds=2).estimators}
    assert alone == {"bins", "temperature", "kde", "kkr", "ukkr"}
    assert together == alone - {"bins"}
    binary = kcalib.squared_calibration_error(y > 0, p[:, 1:].sum(axis=1), n_folds=2)
    assert {entry.estimator for entry in binary.estimators} == alone


@pytest.mark.grid
def test_class_wise_is_the_mean_over_classes():
    y, p = overconfident(300, 3, 5)
    options: dict[str, Any] = {"estimators": ["bins", "temperature"], "n_folds": 3, "seed": 2}
    result = kcalib.squared_calibration_error(y, p, lens="class_wise", **options)
    single = [kcalib.squared_calibration_error(y, p, lens=ClassWise(k), **options) for k in range(3)]
    assert [dataclasses.replace(r, seconds=0.0) for r in result.by_class] == [
        dataclasses.replace(r, seconds=0.0) for r in single
    ]
    assert result.n_classes == 3 and result.parameters is None
    for entry in result.estimators:
        same = [next(e for e in r.estimators if e.estimator == entry.estimator) for r in single]
        assert entry.value == pytest.approx(np.mean([e.value for e in same]), rel=1e-13)
        assert entry.risk == pytest.approx(np.mean([e.risk for e in same]), rel=1e-13)
        folds = np.mean([e.fold_values for e in same], axis=0)
        assert entry.standard_error == pytest.approx(np.std(folds, ddof=1) / math.sqrt(3), rel=1e-12)
    assert result.null_risk == pytest.approx(np.mean([r.null_risk for r in single]), rel=1e-13)
    assert result.risk == min(entry.risk for entry in result.estimators)
    with pytest.raises(ValueError, match=r"`lens` is 'top', expected one of kcalib.lenses, or 'class_wise'"):
        kcalib.squared_calibration_error(y, p, lens="top")


def test_calibrated_predictions_have_nothing_to_learn(make_problem: MakeProblem):
    """The expected risk of any h but 0 is larger than the null risk, whose value the folds share."""
    y, p = make_problem(3000, 3, seed=1)
    result = kcalib.squared_calibration_error(
        y, p, estimators=[TemperatureCalibration(0.5), TemperatureCalibration(1.0)]
    )
    assert result.estimator == "TemperatureCalibration(temperature=1.0)"
    assert result.risk_minus_null == pytest.approx(0.0, abs=1e-12)
    assert result.estimators[1].risk_minus_null > 5 * result.estimators[1].risk_minus_null_standard_error


def test_a_label_of_one_fold_only():
    """Class 2 occurs once, so that it is absent from all folds but one, or from all."""
    y, p = overconfident(60, 3, 3)
    y[y == 2] = 1
    y[11] = 2
    for seed in range(2):
        result = kcalib.squared_calibration_error(y, p, seed=seed, n_folds=3)
        for entry in result.estimators:
            assert math.isfinite(entry.value) and math.isfinite(entry.risk)


def test_reproducible_by_seed(make_problem: MakeProblem):
    y, p = make_problem(100, 3)
    first, again, other = (
        kcalib.squared_calibration_error(y, p, estimators="temperature", seed=s).value for s in (1, 1, 2)
    )
    assert first == again != other


class TestManners:
    def test_parameters_and_clone(self, make_problem: MakeProblem):
        y, p = make_problem(60, 3)
        estimators = [(BinnedCalibration(), {"n_bins": [2, 3]}), "temperature"]
        cv = SquaredCalibrationErrorCV(estimators, lens=TopLabel(), n_folds=3)
        assert cv.get_params()["estimators"] is estimators
        value = cv.fit(y, p).result_.value
        copy = cv.clone()
        assert not hasattr(copy, "result_") and copy.fit(y, p).result_.value == value
        assert cv.set_params(seed=4).seed == 4 and not hasattr(cv, "result_")
        with pytest.raises(ValueError, match="has no parameter 'cv'; it has estimators, lens, n_folds"):
            cv.set_params(cv=3)
        base = pytest.importorskip("sklearn.base")
        cloned = base.clone(copy)
        assert not hasattr(cloned, "result_") and cloned.fit(y, p).result_.value == value

    def test_the_functions_given_are_not_fitted(self, make_problem: MakeProblem):
        function = TemperatureCalibration()
        SquaredCalibrationErrorCV(function, lens=TopLabel()).fit(*make_problem(60, 3))
        assert not hasattr(function, "temperature_") and function.lens is None

    def test_pickle_and_json(self, make_problem: MakeProblem):
        y, p = make_problem(60, 3)
        cv = SquaredCalibrationErrorCV(["bins", "temperature"], lens=TopLabel()).fit(y, p)
        copy = pickle.loads(pickle.dumps(cv))
        assert copy.result_ == cv.result_
        assert np.array_equal(copy.h(p), cv.h(p))
        assert json.loads(json.dumps(dataclasses.asdict(cv.result_)))["value"] == cv.result_.value

    def test_unfitted(self):
        with pytest.raises(ValueError, match="this SquaredCalibrationErrorCV is not fitted; call fit"):
            SquaredCalibrationErrorCV().squared_error([[0.5, 0.5]])


class Watched(CalibrationFunction):
    """phi(p) = scale (1, ..., 1); counts its fits, and how many functions of its kind are alive."""

    fits = 0
    alive = 0
    most = 0
    stop_at: int | None = None

    def __init__(self, scale: float = 0.0, lens: Lens | None = None) -> None:
        self.scale, self.lens = scale, lens

    def _fit(self, problem: Problem) -> None:
        Watched.fits += 1
        if Watched.fits == Watched.stop_at:
            raise KeyboardInterrupt
        self.held_ = Held()

    def _features(self, problem: Problem) -> np.ndarray:
        return np.full_like(problem.residuals, self.scale)


class Held:
    def __init__(self) -> None:
        Watched.alive += 1
        Watched.most = max(Watched.most, Watched.alive)

    def __del__(self) -> None:
        Watched.alive -= 1


@pytest.fixture(autouse=True)
def _unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("fits", 0), ("alive", 0), ("most", 0), ("stop_at", None)):
        monkeypatch.setattr(Watched, name, value)


def test_each_setting_is_fitted_once_a_fold_and_few_functions_live(make_problem: MakeProblem):
    y, p = make_problem(60, 3)
    SquaredCalibrationErrorCV((Watched(), {"scale": np.linspace(1, 0, 12)}), n_folds=4).fit(y, p)
    assert Watched.fits == 12 * 4
    assert Watched.most <= 2 * 4  # those of the best setting so far, and of the one at hand
    several = [(Watched(k), {"scale": np.linspace(1, 0, 5)}) for k in range(4)]
    cv = SquaredCalibrationErrorCV(several, n_folds=4).fit(y, p)
    assert Watched.most <= 3 * 4 and len(cv.estimators_) == 4


def test_settings_that_share_work_are_tried_together(make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch):
    asked: list[list[dict[str, Any]]] = []

    class Sharing(Watched):
        _path = "scale"

        def _try_settings(self, settings: Any, train: Problem, validation: Problem) -> Any:
            asked.append(list(settings))
            return super()._try_settings(settings, train, validation)

    y, p = make_problem(40, 3)
    grid = {"scale": [0.2, 0.1], "lens": [None]}
    with pytest.raises(ValueError, match="the grid of Sharing.* has 'lens'; its parameters are scale"):
        SquaredCalibrationErrorCV((Sharing(), grid), n_folds=2).fit(y, p)
    grid = {"scale": [0.2, 0.1, 0.0]}
    assert SquaredCalibrationErrorCV((Sharing(), grid), n_folds=2).fit(y, p).best_params_ in [
        {"scale": s} for s in (0.2, 0.1, 0)
    ]
    assert asked == 2 * [[{"scale": 0.2}, {"scale": 0.1}, {"scale": 0.0}]]


def test_interrupted_fit_changes_nothing(make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch):
    y, p = make_problem(60, 3)
    cv = SquaredCalibrationErrorCV((Watched(), {"scale": [0.0, 0.1]}))
    monkeypatch.setattr(Watched, "stop_at", 7)
    with pytest.raises(KeyboardInterrupt):
        cv.fit(y, p)
    assert not [name for name in vars(cv) if name.endswith("_")]
    monkeypatch.setattr(Watched, "stop_at", None)
    before = cv.fit(y, p).result_
    monkeypatch.setattr(Watched, "stop_at", Watched.fits + 1)
    with pytest.raises(KeyboardInterrupt):
        cv.fit(y[::-1], p)
    assert cv.result_ is before


class TestProgress:
    def test_quiet_without_a_terminal(self, make_problem: MakeProblem, capfd: pytest.CaptureFixture[str]):
        kcalib.squared_calibration_error(*make_problem(60, 3), lens="class_wise", estimators="bins")
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize("lens", [TopLabel(), "class_wise"])
    def test_shares_rise_to_all_on_a_terminal(
        self, lens: Any, make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
    ):
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr("kcalib._backend.threads.ProgressBar.__init__.__defaults__", ("kcalib", None, 0.0))
        kcalib.squared_calibration_error(*make_problem(60, 3), lens=lens, estimators="bins")
        shown = [
            int(line.partition(":")[2].partition("%")[0]) for line in terminal.getvalue().split("\r") if "%" in line
        ]
        assert shown == sorted(shown) and shown[0] <= 1 and shown[-1] == 100
        assert len(shown) == 20 * 5 * (3 if lens == "class_wise" else 1)
        assert terminal.getvalue().endswith("\r\033[K")


def test_array_libraries(xp: Library, make_problem: MakeProblem):
    y, p = make_problem(60, 3)
    given = kcalib.squared_calibration_error(xp.asarray(y), xp.asarray(p), estimators="temperature")
    assert given.value == pytest.approx(
        kcalib.squared_calibration_error(y, p, estimators="temperature").value, rel=1e-9
    )


class TestErrors:
    @pytest.mark.parametrize(
        ("parameters", "error", "message"),
        [
            ({"estimators": "bin"}, ValueError, r"`estimators` has 'bin', expected a name \('bins', "),
            ({"estimators": []}, TypeError, r"`estimators` is \[\], expected a name .* or a list of these"),
            ({"estimators": 3}, TypeError, r"`estimators` is 3, expected a name .* or a list of these"),
            ({"estimators": [3]}, TypeError, r"`estimators` has 3, expected a name"),
            ({"estimators": ["bins", "bins"]}, ValueError, r"`estimators` has bins twice"),
            ({"estimators": (BinnedCalibration(), 3)}, TypeError, r"the grid of BinnedCalibration\(\) is 3"),
            ({"estimators": (BinnedCalibration(), [3])}, TypeError, r"expected a dictionary of lists, or a list"),
            ({"estimators": (BinnedCalibration(), [])}, ValueError, r"the grid of BinnedCalibration\(\) is empty"),
            ({"estimators": (BinnedCalibration(), {"n_bins": 3})}, TypeError, r"has n_bins=3, expected a list"),
            ({"estimators": (BinnedCalibration(), {"n_bins": []})}, ValueError, r"has no values of n_bins to try"),
            ({"estimators": (BinnedCalibration(), {"binning": "uniform"})}, TypeError, r"expected a list of values"),
            ({"estimators": (BinnedCalibration(), {"bins": [3]})}, ValueError, r"has 'bins'; its parameters are"),
            ({"estimators": (BinnedCalibration(), {"n_bins": [0]})}, ValueError, r"`n_bins` is 0, expected an integer"),
            ({"estimators": BinnedCalibration(lens=ClassWise(0))}, ValueError, r"give the lens once, as `lens`"),
            ({"lens": "top"}, TypeError, r"`lens` is 'top', expected a lens"),
            ({"n_folds": 1}, ValueError, r"`n_folds` is 1, expected an integer at least 2"),
            ({"test_size": 0}, ValueError, r"`test_size` is 0, expected a share"),
            ({"test_size": 1.0}, ValueError, r"`test_size` is 1.0, expected a share"),
            ({"test_size": True}, TypeError, r"`test_size` is True, expected a share"),
            ({"test_size": 0.001}, ValueError, r"leaves 0 for the estimate and 60 for 5 folds"),
            ({"n_folds": 25}, ValueError, r"has 60 predictions.* leaves 12 for the estimate and 48 for 25 folds"),
            ({"shuffle": 1}, TypeError, r"`shuffle` is 1, expected True or False"),
            ({"seed": -1}, ValueError, r"`seed` is -1, expected an integer at least 0"),
            ({"shuffle": False, "seed": 3}, ValueError, r"`seed` is 3 but `shuffle` is False"),
        ],
    )  # fmt: skip
    def test_parameters(self, parameters, error, message, make_problem: MakeProblem):
        options = {"estimators": "bins", "lens": TopLabel()} | parameters
        with pytest.raises(error, match=message):
            SquaredCalibrationErrorCV(**options).fit(*make_problem(60, 3))

    def test_bins_of_all_classes_together(self, make_problem: MakeProblem):
        for lens in (None, Canonical()):
            with pytest.raises(ValueError, match="no bins for 3 classes together; pass a lens"):
                SquaredCalibrationErrorCV("bins", lens=lens).fit(*make_problem(60, 3))

    def test_folds_smaller_than_bins_of_equal_mass(self, make_problem: MakeProblem):
        function = BinnedCalibration(40, binning="equal_mass")
        with pytest.raises(ValueError, match="`n_bins` is 40, there are 38 samples to fit"):
            SquaredCalibrationErrorCV(function, lens=TopLabel()).fit(*make_problem(60, 3))

    def test_folds_smaller_than_uniform_bins(self, make_problem: MakeProblem):
        result = SquaredCalibrationErrorCV(BinnedCalibration(1000), lens=TopLabel()).fit(*make_problem(60, 3)).result_
        assert math.isfinite(result.value)
