"""Everything public that is a dataclass, and every state, comes back from pickling and from copying as it was."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import pickle
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from few_events import FEW_EVENTS

import kcalib
from kcalib import distributions as D
from kcalib import kernels as K
from kcalib import laws, lenses, methods, parallel, recalibration, regression, solvers, streaming

pytestmark = FEW_EVENTS
N = 40


def exported() -> Iterator[type]:
    """All classes that are exported, with those of the modules that are."""
    modules = [value for name in kcalib.__all__ if inspect.ismodule(value := getattr(kcalib, name))]
    for module in (kcalib, *modules):
        yield from (value for name in module.__all__ if inspect.isclass(value := getattr(module, name)))


# What others are made of, and what holds a connection or workers, which no other process has.
LEFT_OUT = {K.RadialKernel, parallel.Parallel, parallel.Executor, parallel.Dask, parallel.MPI}
DATACLASSES = sorted({*filter(dataclasses.is_dataclass, exported())} - LEFT_OUT, key=lambda cls: cls.__name__)


@functools.cache
def labels() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=N)
    return (rng.uniform(size=(N, 1)) > p.cumsum(axis=1)).sum(axis=1), p


@functools.cache
def numbers() -> tuple[np.ndarray, D.Normal]:
    rng = np.random.default_rng(1)
    mean = rng.normal(size=N)
    return mean + rng.normal(size=N), D.Normal(mean, np.linspace(0.5, 1.5, N))


def of_labels(function: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    return lambda: function(*labels(), **options)


def rows(*columns: float) -> np.ndarray:
    return np.outer(np.linspace(1, 2, 5), columns)


def grouped():
    y, p = labels()
    return kcalib.worst_groups(y, p, {"half": np.arange(len(y)) // (len(y) // 2)}, min_size=2, n_resamples=9, seed=0)


def compared() -> kcalib.Comparison:
    y, p = labels()
    return kcalib.compare(y, {"one": p, "other": p[:, [1, 0, 2]]}, metric="brier_score")


def solution() -> Any:
    backend = solvers.kernel_operator(labels()[1], K.Exponential(bandwidth=0.5))
    return solvers.solve(backend, np.ones(N), 1.0)


def low_rank() -> Any:
    return solvers.pivoted_cholesky(solvers.kernel_operator(labels()[1], K.Exponential(bandwidth=0.5)), 5)


def curve() -> kcalib.QuantileCalibration:
    return kcalib.quantile_calibration(*numbers())


def chosen() -> Any:
    return recalibration.choose(*labels(), {"temperature": recalibration.TemperatureScaling()}, n_folds=3)


def squared() -> regression.SquaredCalibrationErrorResult:
    return kcalib.squared_calibration_error(*labels(), estimators="temperature")


# How to get one of those that cannot be made without arguments.
FACTORIES: dict[type, Callable[[], Any]] = {
    kcalib.BrierDecomposition: of_labels(kcalib.brier_decomposition),
    kcalib.CKCEResult: of_labels(kcalib.ckce.result),
    kcalib.CalibrationCurve: of_labels(kcalib.integrated_calibration_index.result, lens=lenses.ClassWise(0)),
    kcalib.CalibrationTestResult: of_labels(kcalib.calibration_test),
    kcalib.Comparison: compared,
    kcalib.CumulativeCalibrationError: of_labels(kcalib.cumulative_calibration_error, n_resamples=9),
    kcalib.ECEResult: of_labels(kcalib.top_label_ece.result),
    kcalib.Evaluation: of_labels(kcalib.evaluate),
    kcalib.FewErrors: lambda: kcalib.FewErrors(1, 0.01, N, 2.0),
    kcalib.ForecastEvaluation: lambda: kcalib.evaluate(*numbers()),
    kcalib.GoodnessOfFit: of_labels(kcalib.spiegelhalter_test, lens=lenses.ClassWise(0)),
    kcalib.GroupCalibration: lambda: grouped().groups[0],
    kcalib.KDEResult: of_labels(kcalib.kde_calibration_error.result),
    kcalib.LogisticRecalibration: of_labels(kcalib.logistic_recalibration, lens=lenses.ClassWise(0)),
    kcalib.MMCEResult: of_labels(kcalib.mmce.result),
    kcalib.MultilabelEvaluation: lambda: kcalib.evaluate(np.eye(3), np.full((3, 3), 0.5), multilabel=True),
    kcalib.ModelDifference: lambda: compared().differences[0],
    kcalib.ModelValue: lambda: compared().models[0],
    kcalib.ObservedExpectedRatio: of_labels(kcalib.observed_expected_ratio.result, lens=lenses.ClassWise(0)),
    kcalib.QuantileCalibration: curve,
    kcalib.QuantileScores: lambda: kcalib.quantile_scores(*numbers()),
    kcalib.ReliabilityBins: lambda: kcalib.top_label_ece.result(*labels()).bins[0],
    kcalib.ReliabilityDiagram: of_labels(kcalib.reliability, bands="both", seed=0),
    kcalib.SKCEResult: of_labels(kcalib.skce.result),
    kcalib.WorstGroups: lambda: grouped(),
    kcalib.UCMEResult: of_labels(kcalib.ucme.result),
    kcalib.bandwidth.MedianDistance: lambda: kcalib.bandwidth.median_distance(labels()[1]),
    D.Beta: lambda: D.Beta(*rows(2.0, 3.0).T),
    D.Censored: lambda: D.Censored(numbers()[1], 0.0),
    D.Categorical: lambda: D.Categorical(labels()[1]),
    D.Components: lambda: numbers()[1].components(),
    D.Dirichlet: lambda: D.Dirichlet(rows(1.0, 2.0, 3.0)),
    D.Ensemble: lambda: D.Ensemble([D.Normal(*rows(0.0, 1.0).T), D.Normal(*rows(1.0, 1.0).T)]),
    D.Gamma: lambda: D.Gamma(*rows(1.0, 2.0).T),
    D.Laplace: lambda: D.Laplace(*rows(1.0, 2.0).T),
    D.LogNormal: lambda: D.LogNormal(*rows(0.0, 1.0).T),
    D.Mixture: lambda: D.Mixture(np.full((5, 2), 0.5), [D.Normal(*rows(0.0, 1.0).T)] * 2),
    D.MultivariateNormal: lambda: D.MultivariateNormal(rows(0.0, 1.0), np.broadcast_to(np.eye(2), (5, 2, 2))),
    D.NegativeBinomial: lambda: D.NegativeBinomial(*rows(3.0, 0.5).T),
    D.Normal: lambda: numbers()[1],
    D.Poisson: lambda: D.Poisson(rows(2.0)[:, 0]),
    D.PowerExponential: lambda: D.PowerExponential(*rows(0.0, 1.0, 2.0).T),
    D.Quantiles: lambda: D.Quantiles([0.1, 0.5, 0.9], rows(0.0, 1.0, 2.0)),
    D.Samples: lambda: D.Samples(rows(0.0, 1.0, 2.0)),
    D.StudentT: lambda: D.StudentT(*rows(3.0, 0.0, 1.0).T),
    D.Truncated: lambda: D.Truncated(numbers()[1], 0.0),
    D.ZeroInflated: lambda: D.ZeroInflated(numbers()[1], 0.3),
    K.Product: lambda: K.Exponential() * K.Gaussian(bandwidth=2.0),
    K.Scaled: lambda: 2 * K.Matern(2.5),
    K.Sum: lambda: K.Linear() + K.Exponential(metric=K.MMD()),
    laws.ChiSquareMixture: lambda: laws.ChiSquareMixture([0.5, 0.3], 0.1),
    laws.PearsonCurve: lambda: laws.PearsonCurve(0.0, 1.0, 0.5, 4.5),
    kcalib.target_kernels.MahalanobisGaussian: lambda: kcalib.target_kernels.MahalanobisGaussian(np.eye(2)),
    kcalib.streaming.ModelForecasts: lambda: kcalib.streaming.read_forecasts({"y": [1], "0.1": [0], "0.9": [2]})[0],
    lenses.ClassWise: lambda: lenses.ClassWise(1),
    lenses.Groups: lambda: lenses.Groups([[0, 1], [2]]),
    lenses.TopK: lambda: lenses.TopK(2),
    methods.Block: lambda: methods.Block(2),
    methods.Consistency: lambda: methods.Consistency(kcalib.top_label_ece, n_resamples=9),
    recalibration.Choice: chosen,
    regression.EstimatorRisk: lambda: squared().estimators[0],
    regression.SquaredCalibrationErrorResult: squared,
    solvers.KroneckerSolution: lambda: solvers.kronecker(2 * np.eye(3)).solve(np.eye(3), 0.7),
    solvers.LowRank: low_rank,
    solvers.Solution: solution,
    streaming.Score: lambda: state().scores().brier_score,
    streaming.Scores: lambda: state().scores(),
}


def state() -> streaming.CalibrationState:
    return streaming.CalibrationState(3, kernel=K.Exponential(0.5), n_columns=16).update(*labels())


def make(cls: type) -> Any:
    return FACTORIES[cls]() if cls in FACTORIES else cls()


def fields_of(value: Any) -> list[Any]:
    return [getattr(value, field.name) for field in dataclasses.fields(value)]


def alike(first: Any, second: Any) -> bool:
    """Equal, of the same types, all the way down; NaN is NaN."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        same = np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
        return first.dtype == second.dtype and same
    if dataclasses.is_dataclass(first):
        return alike(fields_of(first), fields_of(second))
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(alike, first, second))
    if isinstance(first, (dict, types.MappingProxyType)):
        return list(first) == list(second) and alike(list(first.values()), list(second.values()))
    if isinstance(first, kcalib.recalibration.Recalibrator):
        return alike(vars(first), vars(second))
    return first is second or first == second or (first != first and second != second)


def is_hashable(value: Any) -> bool:
    """What has dictionaries or lists is not."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


WAYS = {
    "protocol 2": lambda value: pickle.loads(pickle.dumps(value, protocol=2)),
    "highest": lambda value: pickle.loads(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("cls", DATACLASSES, ids=lambda cls: cls.__name__)
def test_a_copy_is_as_the_original(cls):
    assert cls.__dataclass_params__.frozen
    value = make(cls)
    assert type(value) is cls
    for name, way in WAYS.items():
        copied = way(value)
        assert alike(value, copied), name
        assert repr(copied) == repr(value) and str(copied) == str(value), name
        if cls.__eq__ is not object.__eq__:
            assert copied == value, name
        if cls.__hash__ is not None and cls.__eq__ is not object.__eq__ and is_hashable(value):
            assert hash(copied) == hash(value), name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(copied, dataclasses.fields(copied)[0].name if dataclasses.fields(copied) else "new", 1)


def test_results_with_arrays_differ_where_an_entry_does():
    value = kcalib.reliability(*labels(), bands="confidence")
    (changed := value.count.copy())[3] += 1
    other = dataclasses.replace(value, count=changed)
    assert value == copy.deepcopy(value) and value != other and not alike(value, other)
    assert value != dataclasses.replace(value, count=value.count.astype(float))
    result = kcalib.top_label_ece.result(*labels())
    assert result != kcalib.top_label_ece.result(labels()[0][::-1], labels()[1]) and result != value
    with pytest.raises(TypeError, match="unhashable"):
        hash(value)


@pytest.mark.parametrize("cls", [kcalib.SKCEResult, kcalib.Comparison, regression.SquaredCalibrationErrorResult])
def test_equal_numbers_are_equal_results(cls):
    """However long they took, and on whichever machine."""
    first, second = make(cls), make(cls)
    elsewhere = {name: "other" for name in ("machine", "version") if hasattr(second, name)}
    second = dataclasses.replace(second, seconds=first.seconds + 1, **elsewhere)
    assert first == second
    assert not is_hashable(first) or hash(first) == hash(second)
    assert first != dataclasses.replace(second, n_samples=3)
