"""Public names: one meaning each, and what is said of names that others use for something else."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from few_events import FEW_EVENTS

import kcalib
from kcalib.distributions import Normal, Poisson, Samples


def public_parameters() -> Iterator[tuple[str, inspect.Parameter]]:
    """Where each parameter of everything public is, such as "kernels.Matern.__init__"."""
    for name in kcalib.__all__:
        value = getattr(kcalib, name)
        if inspect.ismodule(value):
            parts = {f"{name}.{part}": getattr(value, part) for part in value.__all__}
        else:
            parts = {name: value}
        for path, part in parts.items():
            yield from parameters_of(path, part)


def parameters_of(path: str, value: Any) -> Iterator[tuple[str, inspect.Parameter]]:
    if inspect.isclass(value):
        for name, member in inspect.getmembers(value, inspect.isfunction):
            if name == "__init__" or not name.startswith("_"):
                yield from parameters_of(f"{path}.{name}", member)
    elif callable(value):
        yield from ((path, parameter) for parameter in inspect.signature(value).parameters.values())


REQUIRED = inspect.Parameter.empty
# For each name its types and defaults; a field of a result is required.
MEANINGS: dict[str, tuple[set[str], set[Any]]] = {
    "confidence_level": ({"float"}, {REQUIRED, 0.95}),
    "from_logits": ({"bool"}, {False}),
    "level": ({"float"}, {REQUIRED, 0.05}),  # of a test
    "n_bins": (
        {"int", "int | None", "int | str"},
        {REQUIRED, 15, 20, None},
    ),  # 20 of PIT values; None: 15, or no bins at all
    "norm": ({"str"}, {REQUIRED, "l1"}),
    # An integer, or None for a seed that is drawn and that the result reports; "int" where there is no result.
    "seed": ({"int", "int | None"}, {REQUIRED, 0, None}),
    "threads": ({"int | None"}, {REQUIRED, None}),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_a_name_has_one_meaning(name):
    types, defaults = MEANINGS[name]
    found = [(where, parameter) for where, parameter in public_parameters() if parameter.name == name]
    assert found
    for where, parameter in found:
        assert parameter.annotation in types, where
        assert parameter.default in defaults, where


ESTIMATORS = [name for name in kcalib.__all__ if hasattr(getattr(kcalib, name), "result")]


OF_TWO_CLASSES = {"integrated_calibration_index", "observed_expected_ratio"}


def test_estimators():
    assert len(ESTIMATORS) == 12


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_returns_a_float_or_its_result(name):
    """Both functions have the same parameters, and can be pickled."""
    function = getattr(kcalib, name)
    signature, of_result = inspect.signature(function), inspect.signature(function.result)
    assert signature.parameters == of_result.parameters
    assert signature.return_annotation == "float"
    options = {"lens": kcalib.lenses.ClassWise(0)} if name in OF_TWO_CLASSES else {}
    result = function.result(Y, P, **options)
    assert type(result).__name__ == of_result.return_annotation
    value = function(Y, P, **options)
    assert type(value) is float
    assert value == result.value
    assert pickle.loads(pickle.dumps(function)) is function
    assert pickle.loads(pickle.dumps(function.result)) == function.result


def test_alpha_is_no_level():
    """It is a shape: of kernels, and of Dirichlet distributions."""
    found = {where for where, parameter in public_parameters() if parameter.name == "alpha"}
    assert {where for where in found if not where.startswith("kernels.")} == {"distributions.Dirichlet.__init__"}


Y, P = np.arange(40) % 3, np.random.default_rng(0).dirichlet(np.ones(3), size=40)
SEEDED = {
    "compare": lambda seed: kcalib.compare(
        Y, {"a": P, "b": P[:, ::-1]}, metric=kcalib.methods.ECE(n_resamples=99), seed=seed
    ),
    "evaluate": lambda seed: kcalib.evaluate(Y, P, method="bootstrap", seed=seed).test,
    "test": lambda seed: kcalib.calibration_test(Y, P, method="bootstrap", seed=seed),
    **{
        f"test, {method}": lambda seed, method=method: kcalib.calibration_test(Y, P, method=method, seed=seed)
        for method in ("block", "linear", "exact", "features", "multiplier", "cme")
    },
    "test, source": lambda seed: kcalib.calibration_test(kcalib.streaming.source((Y, P)), seed=seed),
    "evaluate, source": lambda seed: kcalib.evaluate(kcalib.streaming.source((Y, P)), seed=seed).skce,
    "skce": lambda seed: kcalib.skce.result(Y, P, estimator=kcalib.methods.FeatureEstimator(seed=seed)),
    "skce, source": lambda seed: kcalib.skce.result(
        kcalib.streaming.source((Y, P)), estimator=kcalib.methods.FeatureEstimator(seed=seed)
    ),
    "worst_groups": lambda seed: kcalib.worst_groups(Y, P, {"half": np.arange(40) // 20}, min_size=5, seed=seed),
    "ucme": lambda seed: kcalib.ucme.result(Y, P, seed=seed),
    **{
        f"ckce, {cls.__name__}": lambda seed, cls=cls: kcalib.ckce.result(Y, P, method=cls(seed=seed))
        for cls in (kcalib.methods.Fourier, kcalib.methods.Nystrom, kcalib.methods.PivotedCholesky)
    },
    "ckce, ConjugateGradient": lambda seed: kcalib.ckce.result(
        Y, P, method=kcalib.methods.ConjugateGradient(rank=5, seed=seed)
    ),
    "integrated_calibration_index": lambda seed: kcalib.integrated_calibration_index.result(
        Y, P, lens=kcalib.lenses.ClassWise(0), n_resamples=99, seed=seed
    ),
    "median_distance": lambda seed: kcalib.bandwidth.median_distance(P, max_samples=5, seed=seed),
    "cumulative_calibration_error": lambda seed: kcalib.cumulative_calibration_error(Y, P, n_resamples=99, seed=seed),
    "quantile_calibration": lambda seed: kcalib.quantile_calibration(
        Y, Samples(np.random.default_rng(0).normal(size=(40, 5))), seed=seed
    ),
    "reliability": lambda seed: kcalib.reliability(Y, P, binning="isotonic", seed=seed),
    "squared_calibration_error": lambda seed: kcalib.squared_calibration_error(
        Y, P, estimators="temperature", seed=seed
    ),
    "squared_calibration_error, class by class": lambda seed: kcalib.squared_calibration_error(
        Y, P, estimators="temperature", lens="class_wise", seed=seed
    ),
}


AT_BOUNDS = pytest.mark.filterwarnings("ignore::kcalib.recalibration.TemperatureBoundWarning")  # of few samples


@AT_BOUNDS
@FEW_EVENTS
@pytest.mark.parametrize("name", SEEDED)
def test_seed_none_is_drawn_and_reported(name):
    call = SEEDED[name]
    drawn, other = call(None), call(None)
    assert None not in (drawn.seed, other.seed) and drawn.seed != other.seed
    again = call(drawn.seed)
    for field in ("value", "log_pvalue", "histogram", "consistency_band"):
        np.testing.assert_array_equal(getattr(drawn, field, None), getattr(again, field, None))
    assert call(0).seed == 0


def test_every_function_with_a_seed_is_tested():
    functions = {name for name in kcalib.__all__ if inspect.isfunction(getattr(kcalib, name))}
    seeded = {name for name in functions if "seed" in inspect.signature(getattr(kcalib, name)).parameters}
    tested = {name.partition(",")[0].replace("test", "calibration_test") for name in SEEDED}
    assert seeded - tested == {"pit_values", "miscalibration_area"}  # which return numbers, and take no None


def test_evaluate_reports_the_seed_of_pit_values():
    rates = np.linspace(0.5, 2.0, 40)
    counts = kcalib.evaluate(Y, Poisson(rates), seed=None)
    assert counts.pit_seed is not None and counts.pit_seed != kcalib.evaluate(Y, Poisson(rates)).pit_seed == 0
    assert kcalib.evaluate(Y, Poisson(rates), seed=counts.pit_seed).pit_mean == counts.pit_mean
    assert kcalib.evaluate(Y, Normal(rates, 1.0), seed=None).pit_seed is None


@AT_BOUNDS
def test_nothing_is_drawn_where_nothing_is_random():
    assert kcalib.reliability(Y, P, seed=None).seed is None
    assert kcalib.squared_calibration_error(Y, P, estimators="temperature", shuffle=False, seed=None).seed is None
    with pytest.raises(TypeError, match="`seed` is None, expected an integer"):
        kcalib.pit_values(Y, Samples(np.zeros((40, 5))), seed=None)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        (
            "calibration_error",
            "`squared_calibration_error` estimates a squared error .* binned error is `top_label_ece`",
        ),
        ("static_calibration_error", r"it is `class_wise_ece\(y_true, y_pred\)`"),
        ("adaptive_calibration_error", r"it is `class_wise_ece\(y_true, y_pred, binning='equal_mass'\)`"),
    ],
)
def test_a_name_that_users_look_for_says_what_to_call(name, remedy):
    with pytest.raises(AttributeError, match=f"no attribute '{name}': {remedy}"):
        getattr(kcalib, name)


def test_other_names_are_missing_as_usual():
    with pytest.raises(AttributeError, match=r"^module 'kcalib' has no attribute 'nothing'$"):
        kcalib.nothing  # noqa: B018


@pytest.mark.parametrize("name", ["Kernel", "RadialKernel", "Lens"])
def test_what_others_are_made_of_is_refused(name):
    base = getattr(kcalib.lenses if name == "Lens" else kcalib.kernels, name)
    y, p = [0, 1, 1], [[0.5, 0.5], [0.4, 0.6], [0.1, 0.9]]
    with pytest.raises(TypeError, match=f"^{name} .*pass (one|a kernel) such as kcalib"):
        kcalib.skce(y, p, **{"lens" if name == "Lens" else "kernel": base()})


PUBLIC_FUNCTIONS = {
    f"{module.__name__}.{name}": value
    for module in (kcalib, *(getattr(kcalib, name) for name in kcalib.__all__))
    if inspect.ismodule(module)
    for name in getattr(module, "__all__", ())
    if callable(value := getattr(module, name))
}


ARRAYS_OF_SAMPLES = {"y_true", "y_pred", "y_preds", "sample_weight", "clusters", "given", "groups"}


def test_no_public_function_has_more_than_twelve_options():
    counts = {
        name: len(inspect.signature(value).parameters.keys() - ARRAYS_OF_SAMPLES)
        for name, value in PUBLIC_FUNCTIONS.items()
        if not inspect.isclass(value)
    }
    assert len(counts) > 30
    # `metrics` of `evaluate` names further results, and changes none.
    assert counts.pop("kcalib.evaluate") == 13
    assert {name: count for name, count in counts.items() if count > 12} == {}
