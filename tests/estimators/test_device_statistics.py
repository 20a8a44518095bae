"""What is no pair problem, on a GPU: the numbers of the CPU, of which only small results leave the device.

`EXPECTED` says of every public name what is expected of it there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import emulated_cupy
import numpy as np
import pytest
from emulated_cupy import stays_on_device
from grid import some

import kcalib
from kcalib import _input, evaluation
from kcalib import distributions as D
from kcalib import lenses as L
from kcalib._backend import arrays
from kcalib._pairs import statistics
from kcalib.distributions import counts
from kcalib.estimators import binning, scores
from kcalib.estimators.forecasts import quantities
from kcalib.recalibration import (
    BetaCalibration,
    DirichletCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    PlattScaling,
    QuantileRecalibration,
    ScaleCalibration,
    TemperatureScaling,
    VectorScaling,
    VennAbers,
)

N = 250  # more than any result has numbers
RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), size=N)
P[:50] = P[50:100]  # ties
Y = (RNG.uniform(size=(N, 1)) > P.cumsum(axis=1)).sum(axis=1)
W = RNG.uniform(size=N)
MEAN, SCALE, SHAPE = RNG.normal(size=N), RNG.uniform(0.5, 2, size=N), RNG.uniform(0.5, 2, size=N)
MEANS, SCALES = RNG.normal(size=(N, 3)), RNG.uniform(0.5, 2, size=(N, 3))
FACTORS = np.tril(RNG.normal(size=(N, 3, 3)), -1) + np.eye(3) * SCALES[:, None, :]
SAMPLES, WEIGHTS = RNG.normal(size=(N, 7)), RNG.dirichlet(np.ones(7), size=N)
RATE, DISPERSION = RNG.uniform(0.2, 20, size=N), RNG.uniform(0.2, 2, size=N)
SHARES = RNG.dirichlet(np.ones(3), size=N)


def same(found: Any, expected: Any, rtol: float = 1e-12) -> None:
    """Numbers, arrays, results of either."""
    if dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            if field.name not in ("backend", "backend_reason", "threads", "seconds"):
                same(getattr(found, field.name), getattr(expected, field.name), rtol)
    elif isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other, rtol)
    elif isinstance(expected, float | np.ndarray):
        found = found if isinstance(found, float) else arrays.to_host(found)
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-15)
    else:
        assert found == expected


def tolerance(cupy: Any, rtol: float) -> float:
    """On a GPU of what special functions are made of: CuPy's are older than SciPy's."""
    return rtol if cupy.ndarray is emulated_cupy.ndarray else max(rtol, 1e-9)


# -- distributions -----------------------------------------------------------------------------

Asarray = Callable[[np.ndarray], Any]
# Families, and targets for each.
OF_FORECASTS = (QuantileRecalibration, ScaleCalibration)
REFUSED = (
    BetaCalibration, DirichletCalibration, HistogramBinning, IsotonicCalibration, MatrixScaling, PlattScaling,
    VectorScaling, VennAbers, *OF_FORECASTS,
)  # fmt: skip
FAMILIES: dict[str, tuple[Callable[[Asarray], D.Distribution], Any]] = {
    "normal": (lambda a: D.Normal(a(MEAN), a(SCALE)), MEAN + 1),
    "vectors": (lambda a: D.Normal(a(MEANS), a(SCALES)), MEANS + 1),
    "laplace": (lambda a: D.Laplace(a(MEAN), a(SCALE)), MEAN + 1),
    "multivariate_normal": (lambda a: D.MultivariateNormal(a(MEANS), a(FACTORS @ FACTORS.swapaxes(1, 2))), MEANS + 1),
    "factors": (lambda a: D.MultivariateNormal(a(MEANS), scale_tril=a(FACTORS)), MEANS + 1),
    "mixture": (lambda a: D.Mixture([0.25, 0.75], [D.Normal(a(MEAN), a(SCALE)), D.Normal(a(MEAN + 1), 3.0)]), MEAN),
    "ensemble": (lambda a: D.Ensemble([D.Laplace(a(MEAN), a(SCALE)), D.Laplace(a(MEAN + 1), a(SCALE))]), MEAN),
    "samples": (lambda a: D.Samples(a(SAMPLES)), MEAN),
    "quantiles": (lambda a: D.Quantiles([0.01, 0.3, 0.5, 0.99], a(np.sort(SAMPLES[:, :4], axis=1))), MEAN),
    "censored": (lambda a: D.Censored(D.Normal(a(MEAN), a(SCALE)), a(MEAN - 1), 3.0), MEAN),
    "truncated": (lambda a: D.Truncated(D.Laplace(a(MEAN), a(SCALE)), a(MEAN - 1)), MEAN),
    "inflated": (lambda a: D.ZeroInflated(D.Normal(a(MEAN), a(SCALE)), 0.3), 0 * MEAN),
    "weighted": (lambda a: D.Samples(a(SAMPLES), a(WEIGHTS)), SAMPLES[:, 1]),
    "vector_samples": (lambda a: D.Samples(a(SAMPLES[:, :, None] * [1.0, 2.0])), MEANS[:, :2]),
    "poisson": (lambda a: D.Poisson(a(RATE)), np.floor(RATE)),
    "negative_binomial": (lambda a: D.NegativeBinomial(a(RATE), a(DISPERSION)), np.floor(RATE)),
    "power_exponential": (lambda a: D.PowerExponential(a(MEAN), a(SCALE), a(SHAPE)), MEAN + 1),
    "student_t": (lambda a: D.StudentT(a(SCALE + 2.5), a(MEAN), a(SHAPE)), MEAN + 1),
    "log_normal": (lambda a: D.LogNormal(a(MEAN), a(SHAPE)), MEAN + 1),
    "gamma": (lambda a: D.Gamma(a(SHAPE), a(SCALE)), SCALE),
    "beta": (lambda a: D.Beta(a(RATE), a(SHAPE)), SHARES[:, 0]),
    "dirichlet": (lambda a: D.Dirichlet(a(SCALES)), SHARES),
    "categorical": (lambda a: D.Categorical(a(P)), Y),
}
NO_DRAWS = ("negative_binomial", "beta")


@pytest.mark.parametrize("name", FAMILIES)
def test_distributions_are_computed_where_they_are(cupy, name):
    make, y = FAMILIES[name]
    with stays_on_device(at_most=2):
        there, here = make(cupy.asarray), make(np.asarray)
        calls: dict[str, Callable[[Any, Asarray], Any]] = {
            "mean": lambda d, a: d.expected_value(),
            "deviation": lambda d, a: d.standard_deviation(),
            "parameters": lambda d, a: d.parameters(),
            "points": lambda d, a: d.wasserstein_points(),
            "quasi_sample": lambda d, a: d.quasi_sample(4, seed=1),
            "taken": lambda d, a: d.take([3, 1]).quasi_sample(4, seed=1),
        }
        if name not in NO_DRAWS:
            calls["sample"] = lambda d, a: d.sample(3, seed=2)
        if hasattr(here, "log_density"):
            calls["log_density"] = lambda d, a: d.log_density(a(y))
            calls["log_density of the host's"] = lambda d, a: d.log_density(y)
        if hasattr(here, "cdf") and here.event_shape == ():
            calls["cdf"] = lambda d, a: d.cdf(a(np.asarray(y, dtype=float)))
            calls["cdfs"] = lambda d, a: d.cdf(a(np.asarray(y, dtype=float)[:, None] + np.arange(3)))
            calls["quantile"] = lambda d, a: d.quantile([0.01, 0.3, 0.5, 0.99])
        if hasattr(here, "pmf_table"):
            calls["pmf_table"] = lambda d, a: d.pmf_table()
        found = {key: call(there, cupy.asarray) for key, call in calls.items()}
    for key, call in calls.items():
        expected = call(here, np.asarray)
        if expected is None:
            assert found[key] is None
        else:
            assert type(found[key]) is cupy.ndarray, key
            # Quantiles by bisection stop within 1e-12.
            rtol = tolerance(cupy, 2e-12)
            np.testing.assert_allclose(found[key].get(), expected, rtol=rtol, atol=1e-14, err_msg=key)


@pytest.mark.parametrize("name", NO_DRAWS)
def test_draws_by_rejection_are_refused(cupy, name):
    with pytest.raises(NotImplementedError, match="^independent draws from .* cannot be computed on a GPU"):
        FAMILIES[name][0](cupy.asarray).sample(1)


@pytest.mark.parametrize("rate", [1e-15, 0.5, 9.99, 10.0, 11.0, 1e3, 1e9, 1e15])
def test_poisson_draws_are_those_of_numpy(cupy, monkeypatch, rate):
    """A thousand of each of both methods' rates, with random numbers brought in parts that end within a draw."""
    monkeypatch.setattr(counts, "UNIFORMS", 1)
    rates = np.array([rate, 3.0, 20.0])
    with stays_on_device(at_most=2):
        found = D.Poisson(cupy.asarray(rates)).sample(1000, seed=7)
    np.testing.assert_array_equal(found.get(), D.Poisson(rates).sample(1000, seed=7))


def test_bad_parameters_are_named(cupy):
    with pytest.raises(ValueError, match=r"^`std\[2\]` is -1, expected a positive standard deviation"):
        D.Normal(cupy.zeros(3), cupy.asarray([1.0, 1.0, -1.0]))
    singular = cupy.asarray(np.stack([np.eye(2), np.ones((2, 2))]))
    with pytest.raises(ValueError, match=r"^`cov\[1\]` has the smallest eigenvalue .*, expected a positive definite"):
        D.MultivariateNormal(cupy.zeros((2, 2)), singular)
    with pytest.raises(ValueError, match=r"^`scale_tril\[1, 0, 1\]` is 1, expected 0 above the diagonal"):
        D.MultivariateNormal(cupy.zeros((2, 2)), scale_tril=singular)
    with pytest.raises(ValueError, match=r"^`probability\[1\]` is 1, expected a number above 0 and below 1"):
        D.Normal(cupy.zeros(3), 1.0).quantile([0.5, 1.0])
    with pytest.raises(ValueError, match=r"^`y\[1\]` is 3, expected the position of a class"):
        D.Categorical(cupy.asarray(P[:2])).log_density(np.array([0, 3]))


# -- scores of distributions -------------------------------------------------------------------

LEVELS = len(quantities.LEVELS)
SCORES: dict[str, Callable[..., Any]] = {
    "crps": kcalib.crps,
    "weighted": lambda y, d: kcalib.crps(y, d, sample_weight=W[: len(y)]),
    "log_score": kcalib.log_score,
    "pinball_loss": kcalib.pinball_loss,
    "dawid_sebastiani_score": kcalib.dawid_sebastiani_score,
    "sharpness": kcalib.sharpness,
    "pit_values": lambda y, d: arrays.to_host(kcalib.pit_values(y, d, seed=3)),
    "quantile_calibration": kcalib.quantile_calibration,
}


@pytest.mark.parametrize(
    "name",
    some([name for name in FAMILIES if name != "categorical"], "normal", "vectors", "poisson", "samples", "beta"),
)
def test_scores_of_distributions(cupy, name):
    make, y = FAMILIES[name]
    there, here = make(cupy.asarray), make(np.asarray)
    if name == "dirichlet":  # whose energy score is that of 512 draws
        there, here, y = there.take(slice(0, LEVELS + 1)), here.take(slice(0, LEVELS + 1)), y[: LEVELS + 1]
    for score, function in SCORES.items():
        if name == "dirichlet" and score == "weighted":
            continue
        if here.event_shape and score not in ("crps", "weighted", "log_score"):
            continue
        if score == "log_score" and not hasattr(here, "log_density"):
            continue
        with stays_on_device(at_most=N if score == "pit_values" else LEVELS):
            found = function(cupy.asarray(y), there)
        # The widths of pinball and CRPS hold quantiles, by bisection to 1e-12 for mixtures.
        same(found, function(y, here), rtol=tolerance(cupy, 1e-11))


class Uniform(D.Distribution):
    """A family of the user's own, of which kcalib has draws only."""

    def __init__(self, low: Any, high: Any) -> None:
        self.low, self.high = low, high

    n = property(lambda self: len(self.low))
    event_shape = ()

    def take(self, rows: Any) -> Uniform:
        return Uniform(self.low[rows], self.high[rows])

    def sample(self, size: int, *, seed: int = 0) -> Any:
        u = arrays.like(np.random.default_rng(seed).uniform(size=(self.n, size)), self.low)
        return self.low[:, None] + (self.high - self.low)[:, None] * u


def test_families_of_the_users_own(cupy):
    y, low = MEAN, MEAN - SHAPE
    there, here = Uniform(cupy.asarray(low), cupy.asarray(low + 2 * SHAPE)), Uniform(low, low + 2 * SHAPE)
    for function in (kcalib.crps, kcalib.pinball_loss, kcalib.quantile_calibration):
        with stays_on_device(at_most=LEVELS):
            found = function(cupy.asarray(y), there)
        same(found, function(y, here))


def test_fair_crps(cupy):
    with stays_on_device(at_most=1):
        found = kcalib.crps(cupy.asarray(MEAN), D.Samples(cupy.asarray(SAMPLES)), fair=True)
    same(found, kcalib.crps(MEAN, D.Samples(SAMPLES), fair=True))


# -- temperature scaling -----------------------------------------------------------------------

TEMPERED = ("normal", "vectors", "factors", "laplace", "power_exponential", "beta", "dirichlet", "categorical")


def fitted(scaling: TemperatureScaling) -> tuple[Any, ...]:
    return (
        scaling.temperature_,
        scaling.standard_error_,
        scaling.confidence_interval_,
        scaling.criterion_before_,
        scaling.criterion_after_,
        scaling.n_iterations_,
    )


@pytest.mark.parametrize("name", TEMPERED)
def test_temperature_of_highest_likelihood(cupy, name):
    make, y = FAMILIES[name]
    with stays_on_device(at_most=1):
        there = TemperatureScaling().fit(cupy.asarray(y), make(cupy.asarray), sample_weight=cupy.asarray(W))
        scaled = there.transform(make(cupy.asarray))
    here = TemperatureScaling().fit(y, make(np.asarray), sample_weight=W)
    rtol = tolerance(cupy, 1e-11)  # Newton's steps and bisection stop at 1e-12
    same(fitted(there), fitted(here), rtol)
    same(scaled.parameters(), here.transform(make(np.asarray)).parameters(), rtol)


def test_temperature_of_logits(cupy):
    with stays_on_device(at_most=1):
        there = TemperatureScaling().fit(cupy.asarray(Y), cupy.asarray(np.log(P)), from_logits=True)
        scaled = there.transform(cupy.asarray(np.log(P)), from_logits=True)
    here = TemperatureScaling().fit(Y, np.log(P), from_logits=True)
    same(fitted(there), fitted(here), rtol=1e-11)
    same(scaled, here.transform(np.log(P), from_logits=True), rtol=1e-11)


def test_temperature_of_lowest_skce(cupy):
    options = {"criterion": "skce", "kernel": kcalib.kernels.Exponential(bandwidth=0.5), "bounds": (0.2, 5.0)}
    with stays_on_device(at_most=1):
        there = TemperatureScaling(**options).fit(
            cupy.asarray(Y[:40]), cupy.asarray(P[:40] ** 2 / np.sum(P[:40] ** 2, axis=1, keepdims=True))
        )
    here = TemperatureScaling(**options).fit(Y[:40], P[:40] ** 2 / np.sum(P[:40] ** 2, axis=1, keepdims=True))
    # A minimum is found to the root of the error of its value.
    same(there.temperature_, here.temperature_, rtol=1e-5)
    same(there.criterion_after_, here.criterion_after_, rtol=1e-9)


def test_impossible_labels_are_named(cupy):
    p = cupy.asarray([[0.5, 0.5], [1.0, 0.0]])
    with pytest.raises(ValueError, match=r"^`y_true\[1\]` is class 1, whose predicted probability is 0 \(1 of 2"):
        TemperatureScaling(floor=None).fit(cupy.asarray([0, 1]), p)


# -- distances ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["normal", "vectors", "laplace", "multivariate_normal", "samples", pytest.param("poisson", marks=pytest.mark.grid)],
)
def test_wasserstein_distances(cupy, name):
    make, few = FAMILIES[name][0], slice(0, 9)
    with stays_on_device(at_most=1):
        there = make(cupy.asarray)
        found = D.wasserstein_distance(there), D.wasserstein_distance(there.take(few), there)
    here = make(np.asarray)
    for table, other in zip(found, (here, here.take(few)), strict=True):
        # Squares of covariances have the error of the roots and polar factors, of a scale of up to 10.
        np.testing.assert_allclose(table.get() ** 2, D.wasserstein_distance(other, here) ** 2, rtol=1e-12, atol=1e-13)


def test_distances_of_other_orders_and_under_kernels(cupy):
    there, here = D.Samples(cupy.asarray(SAMPLES)), D.Samples(SAMPLES)
    with stays_on_device(at_most=1):
        found = D.wasserstein_distance(there, order=1.5)
        pairs = [
            D.mmd_distance(d(cupy.asarray), bandwidth=0.7) for d in (FAMILIES["normal"][0], FAMILIES["mixture"][0])
        ]
    np.testing.assert_allclose(found.get(), D.wasserstein_distance(here, order=1.5), rtol=1e-12, atol=1e-15)
    for table, name in zip(pairs, ("normal", "mixture"), strict=True):
        expected = D.mmd_distance(FAMILIES[name][0](np.asarray), bandwidth=0.7)
        np.testing.assert_allclose(table.get() ** 2, expected**2, atol=1e-14)
    with stays_on_device(at_most=1):
        weighted = D.wasserstein_distance(FAMILIES["weighted"][0](cupy.asarray), order=1)
    expected = D.wasserstein_distance(FAMILIES["weighted"][0](np.asarray), order=1)
    np.testing.assert_allclose(weighted.get(), expected, rtol=1e-12, atol=1e-15)
    for name, options in (("mixture", {}), ("vector_samples", {})):
        with pytest.raises(
            NotImplementedError, match="^optimal transport between mixtures of several components cannot"
        ):
            D.wasserstein_distance(FAMILIES[name][0](cupy.asarray), **options)
    negative = cupy.asarray(-np.ones((2, 1, 1, 1)) * np.eye(2))
    components = D.Components("normal_full", cupy.ones((2, 1)), cupy.zeros((2, 1, 2)), negative)
    with pytest.raises(ValueError, match=r"^`scales\[0, 0\]` of components has the eigenvalue .*, expected a positive"):
        D._distances.mixtures.wasserstein_table(components)


# -- class probabilities -----------------------------------------------------------------------

SMALL = 3 * 3 * 15  # sums of 15 bins of 3 classes
CLASSES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "top label": (kcalib.top_label_ece.result, {}),
    "top label, weights": (kcalib.top_label_ece.result, {"sample_weight": W}),
    "top label, equal mass": (kcalib.top_label_ece.result, {"binning": "equal_mass"}),
    "top label, median variance": (kcalib.top_label_ece.result, {"binning": "median_variance"}),
    "top label, by risk": (kcalib.top_label_ece.result, {"n_bins": "risk"}),
    "class-wise": (kcalib.class_wise_ece.result, {}),
    "class-wise, weights": (kcalib.class_wise_ece.result, {"sample_weight": W, "norm": "l2"}),
    "class-wise, weights, equal mass": (
        kcalib.class_wise_ece.result,
        {"sample_weight": W, "binning": "equal_mass", "threshold": 0.2},
    ),
    "class-wise, median variance": (kcalib.class_wise_ece, {"binning": "median_variance", "norm": "max"}),
    "class-wise, by risk": (kcalib.class_wise_ece.result, {"n_bins": "risk", "binning": "equal_mass"}),
    "class-wise, equal mass": (kcalib.class_wise_ece, {"binning": "equal_mass", "lens": L.Groups([0, 1, 1])}),
    "debiased": (kcalib.debiased_ece.result, {"n_bins": 10}),
    "canonical": (kcalib.canonical_ece, {}),
    "canonical, weights": (kcalib.canonical_ece, {"sample_weight": W, "distance": "euclidean", "norm": "max"}),
    "brier_score": (kcalib.brier_score, {"sample_weight": W, "lens": L.TopK(2)}),
    "log loss": (kcalib.log_loss, {"sample_weight": W, "lens": L.ClassWise(1)}),
    "mmce": (kcalib.mmce.result, {}),
    "mmce, unbiased": (kcalib.mmce, {"estimator": "unbiased", "sample_weight": W}),
    "mmce, weighted": (kcalib.mmce, {"estimator": "weighted"}),
    "reliability": (kcalib.reliability, {}),
    "reliability, equal mass": (kcalib.reliability, {"binning": "equal_mass", "lens": L.ClassWise(2)}),
    "reliability, weights": (
        kcalib.reliability,
        {"binning": "equal_mass", "sample_weight": W, "bands": "confidence", "simultaneous": True},
    ),
    "reliability, drawn labels": (kcalib.reliability, {"sample_weight": W, "seed": 5}),
    "decomposition": (kcalib.brier_decomposition, {}),
    "decomposition, cells": (kcalib.brier_decomposition, {"grouping": "canonical", "n_bins": 4}),
    "decomposition, weights": (kcalib.brier_decomposition, {"sample_weight": W, "binning": "equal_mass"}),
}


def check_scores_of_class_probabilities(cupy, name, y, p):
    function, options = CLASSES[name]
    given = {key: cupy.asarray(value) if key == "sample_weight" else value for key, value in options.items()}
    with stays_on_device(at_most=EDGES if name in BY_RISK else SMALL):
        found = function(cupy.asarray(y), cupy.asarray(p), **given)
    same(found, function(y, p, **options))


BY_RISK = [name for name in CLASSES if name.endswith("by risk")]  # n binnings of n samples
EDGES = sum(range(5, 101, 5))  # of all of these


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.grid] if name in BY_RISK else []) for name in CLASSES]
)
def test_scores_of_class_probabilities(cupy, name):
    check_scores_of_class_probabilities(cupy, name, Y, P)


@pytest.mark.parametrize("name", some(BY_RISK, BY_RISK[-1]))
def test_number_of_bins_by_risk(cupy, name):
    check_scores_of_class_probabilities(cupy, name, Y[:24], P[:24])


def test_bins_of_whole_predictions_stay_on_the_device(cupy):
    with stays_on_device(at_most=1):
        found = kcalib.canonical_ece.result(cupy.asarray(Y), cupy.asarray(P))
    assert type(found.bin_number) is type(found.bin_distance) is cupy.ndarray
    same(found, kcalib.canonical_ece.result(Y, P))


@pytest.mark.parametrize("library", ["CudaTensor", "CudaJaxArray"])
def test_tensors_of_other_libraries(monkeypatch, library):
    stand_ins = pytest.importorskip("cuda_stand_ins")
    stand_ins.returned(monkeypatch)
    there = getattr(stand_ins, library).of
    with emulated_cupy.installed(), stays_on_device(at_most=SMALL):
        y, p, mean = there(Y), there(P), there(MEAN)
        found = kcalib.canonical_ece.result(y, p)
        numbers = kcalib.class_wise_ece(y, p), kcalib.crps(mean, D.Normal(mean, 2.0)), kcalib.log_loss(Y, p)
        scaled = TemperatureScaling().fit(y, p).transform(p)
    assert type(found.bin_number) is type(found.bin_distance) is type(scaled) is getattr(stand_ins, library)
    np.testing.assert_array_equal(found.bin_number.on_host(), kcalib.canonical_ece.result(Y, P).bin_number)
    np.testing.assert_allclose(scaled.on_host(), TemperatureScaling().fit(Y, P).transform(P), rtol=1e-11)
    same(numbers, (kcalib.class_wise_ece(Y, P), kcalib.crps(MEAN, D.Normal(MEAN, 2.0)), kcalib.log_loss(Y, P)))


def test_too_little_memory(cupy):
    if cupy.ndarray is not emulated_cupy.ndarray:
        pytest.skip("a GPU has enough")
    y, p, normal = cupy.asarray(Y), cupy.asarray(P), D.Normal(cupy.asarray(MEAN), 1.0)
    used = emulated_cupy.Device().mem_info
    with emulated_cupy.memory_limit(used[1] - used[0] + 2**15):
        with pytest.raises(
            MemoryError, match=r"^bins of 250 x 3 probabilities take .* on GPU 0, .* are available; use"
        ):
            kcalib.canonical_ece(y, p)
        with pytest.raises(MemoryError, match=r"^distances between 250 and 250 predictions take .* on GPU 0, .*; take"):
            D.wasserstein_distance(normal)


def test_samples_of_weight_zero_and_empty_bins(cupy):
    w = np.where(P[:, 0] < 0.4, W, 0.0)
    for function in (kcalib.reliability, kcalib.brier_decomposition, kcalib.top_label_ece, kcalib.canonical_ece):
        options = {"bands": "confidence"} if function is kcalib.reliability else {}
        found = function(cupy.asarray(Y), cupy.asarray(P), sample_weight=w, **options)
        same(found, function(Y, P, sample_weight=w, **options))


def test_no_hit_at_all(cupy):
    y, p = np.zeros(N, dtype=int), np.stack([1 - W / 2 - 0.5, W / 2 + 0.5], axis=1)
    for options in ({}, {"binning": "equal_mass"}):
        same(kcalib.top_label_ece(cupy.asarray(y), cupy.asarray(p), **options), kcalib.top_label_ece(y, p, **options))


@pytest.mark.parametrize(
    "function, options, what",
    [
        (kcalib.canonical_ece, {"binning": "median_variance"}, "median-variance bins of whole predictions"),
        (kcalib.reliability, {"binning": "isotonic"}, "isotonic regression"),
        (kcalib.brier_decomposition, {"binning": "isotonic"}, "isotonic regression"),
    ],
)
def test_what_has_no_method(cupy, function, options, what):
    with pytest.raises(NotImplementedError, match=f"^{what} cannot be computed on a GPU"):
        function(cupy.asarray(Y), cupy.asarray(P), **options)


def test_bad_input_is_named(cupy):
    def refused(error: type[Exception], message: str, y: Any, p: Any, **options: Any) -> None:
        with stays_on_device(at_most=3), pytest.raises(error, match=message):  # a row, whose digits count
            kcalib.brier_score(y, p, **options)

    y, p, bad = cupy.asarray(Y), cupy.asarray(P), P.copy()
    bad[171, 1] = np.nan
    refused(ValueError, r"^`y_pred\[171, 1\]` is nan, expected a finite probability", y, cupy.asarray(bad))
    bad[171] = 0.3
    refused(ValueError, r"^`y_pred\[171\]` sums to 0.9, expected 1 within 0.015", Y, cupy.asarray(bad))
    labels = np.where(np.arange(N) == 99, 3, Y)
    for given in (labels, cupy.asarray(labels)):
        refused(ValueError, r"^`y_true\[99\]` is 3, expected a label 0..2", given, p)
        refused(ValueError, r"^`y_true\[99\]` is 3, expected one of classes=\[0, 1, 2\]", given, p, classes=[0, 1, 2])
    weight = np.where(np.arange(N) == 7, -1.0, 1.0)
    for given in (weight, cupy.asarray(weight)):
        refused(ValueError, r"^`sample_weight\[7\]` is -1, expected a finite weight >= 0", y, p, sample_weight=given)
    refused(ValueError, "the arguments are swapped", p, y)
    refused(
        TypeError, "^`classes` holds <U1 and `y_true` int64, expected labels of one type", y, p, classes=list("abc")
    )


@pytest.mark.parametrize("classes", [[3, 5, 9], [9, 3, 5], [0.5, 1.5, -1.0], list("abc")])
def test_labels_by_name(cupy, classes):
    expected, labels = kcalib.log_loss(Y, P), np.asarray(classes)[Y]
    with stays_on_device(at_most=1):
        for given in (labels, *(() if labels.dtype.kind == "U" else (cupy.asarray(labels),))):
            same(kcalib.log_loss(given, cupy.asarray(P), classes=classes), expected)
        same(kcalib.log_loss(cupy.asarray(Y == 1), cupy.asarray(P[:, :2] + P[:, 2:] / 2), classes=[False, True]),
             kcalib.log_loss(Y == 1, P[:, :2] + P[:, 2:] / 2))  # fmt: skip


# -- evaluate ----------------------------------------------------------------------------------


def test_numbers_of_an_evaluation(cupy):
    with stays_on_device(at_most=SMALL):
        data = _input.labels.prepare(cupy.asarray(Y), cupy.asarray(P))
        found = (
            scores.accuracy_of(data),
            scores.log_loss_of(data),
            scores.brier_score_of(data, False),
            binning.reliability_bins(data, 15).ece,
        )
    accuracy = float(np.mean(P.argmax(axis=1) == Y))
    same(found, (accuracy, kcalib.log_loss(Y, P), kcalib.brier_score(Y, P), kcalib.top_label_ece(Y, P)))


@pytest.mark.parametrize("name", ["normal", "weighted", "poisson", "vectors", "multivariate_normal"])
def test_numbers_of_an_evaluation_of_distributions(cupy, name):
    make, y = FAMILIES[name]

    def numbers(a: Asarray) -> Any:
        data = _input.forecasts.prepare(a(y), make(a))
        if data.n_dims == 1:
            found = evaluation._of_numbers(data, 3)
            return tuple(found.values())
        errors = data.y - quantities.means_of(data)
        return evaluation._spread(data, errors)

    with stays_on_device(at_most=LEVELS):
        found = numbers(cupy.asarray)
    same(found, numbers(np.asarray))


@pytest.mark.slow  # to compile the kernels of the test and the estimate
@pytest.mark.parametrize("name", ["normal", "vectors"])
def test_evaluation_of_distributions(cupy, name):
    make, y = FAMILIES[name]
    few = slice(0, 30)
    found = kcalib.evaluate(cupy.asarray(y[few]), make(cupy.asarray).take(few))
    expected = kcalib.evaluate(y[few], make(np.asarray).take(few))
    for field in ("rmse", "crps", "log_score", "pinball_loss", "interval_coverage", "interval_width", "verdict"):
        same(getattr(found, field), getattr(expected, field))


# -- sums in a fixed order ---------------------------------------------------------------------


def test_sums_of_groups(cupy):
    """Segments have every size around powers of two, or are empty; against exact sums."""
    rng, sizes = np.random.default_rng(1), [0, 1, 2, 3, 4, 5, 7, 8, 9, 0, 63, 64, 65, 0]
    group = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    values = rng.normal(size=(len(group), 2))
    for found in (
        statistics.group_sums(cupy.asarray(group), len(sizes), cupy.asarray(values[:, 0]), cupy.asarray(values)),
        statistics.group_sums(group, len(sizes), values[:, 0], values),
    ):
        one, two = (arrays.to_host(sums) for sums in found)
        exact = np.array([[math.fsum(values[group == g, k]) for k in (0, 1)] for g in range(len(sizes))])
        np.testing.assert_allclose(two, exact, rtol=0, atol=1e-13)
        np.testing.assert_array_equal(one, two[:, 0])


@pytest.mark.parametrize("n", [1, 2, 5, 64, 100])
def test_cumulative_sums(cupy, n):
    found = statistics.cumulative_sum(cupy.asarray(W[:n]))
    np.testing.assert_allclose(found.get(), [math.fsum(W[: i + 1]) for i in range(n)], rtol=1e-15)


def test_groups_of_rows(cupy):
    rows = np.random.default_rng(2).integers(0, 3, size=(N, 3))
    number, count = statistics.row_groups(cupy.asarray(rows))
    seen: dict[tuple[int, ...], int] = {}
    assert number.get().tolist() == [seen.setdefault(tuple(row), len(seen)) for row in rows.tolist()]
    assert count == len(seen)


# -- every public name -------------------------------------------------------------------------

HERE, ELSEWHERE, NO_ARRAYS = "tested here", "tested elsewhere", "takes no arrays"
EXPECTED = {
    HERE: """
        brier_decomposition brier_score canonical_ece class_wise_ece crps debiased_ece
        dawid_sebastiani_score distributions evaluate lenses log_loss log_score mmce pinball_loss
        pit_values quantile_calibration recalibration reliability sharpness top_label_ece
    """,
    ELSEWHERE: """
        bandwidth calibration_test ckce compare ence jkce kde_calibration_error kernels
        miscalibration_area parallel regression score_samples skce smallest_eigenvalue smooth_ece solvers
        cumulative_calibration_error
        hosmer_lemeshow_test integrated_calibration_index logistic_recalibration observed_expected_ratio
        spiegelhalter_test
        squared_calibration_error streaming target_kernels ucme interval_score quantile_scores weighted_interval_score
        worst_groups SparseProbabilities
    """,
    NO_ARRAYS: """
        AntiConservativeWarning Band BrierDecomposition CKCEResult CalibrationTestResult Comparison ConfidenceInterval
        ECEResult Evaluation FewErrors ForecastEvaluation GradientWarning GroupCalibration
        IndefiniteKernelWarning KDEResult
        CalibrationCurve GoodnessOfFit LogisticRecalibration LogitsWarning MMCEResult ObservedExpectedRatio
        ModelDifference ModelValue MultilabelEvaluation
        QuantileCalibration QuantileScores ReliabilityBins ReliabilityDiagram SKCEResult
        CumulativeCalibrationError
        ToleranceWarning UCMEResult WorstGroups __version__ laws methods
    """,
}


def test_every_public_name_is_expected_something_of():
    named = [name for names in EXPECTED.values() for name in names.split()]
    assert sorted(named) == sorted(kcalib.__all__)
    families = {type(make(np.asarray)).__name__ for make, _ in FAMILIES.values()}
    functions = {"as_distribution", "mmd_distance", "wasserstein_distance", "Components", "Distribution"}
    assert families | functions == set(D.__all__)
    of_temperatures = {"TemperatureScaling", "ProbabilityFloorWarning", "TemperatureBoundWarning"}
    on_the_host = {cls.__name__ for cls in REFUSED} | {"Choice", "Recalibrator", "SeparationWarning"}
    on_the_host |= {"choose", "load", "save"}
    assert of_temperatures | on_the_host == set(kcalib.recalibration.__all__)
    assert {"Buckets", "Canonical", "ClassWise", "Confidence", "Groups", "Lens", "TopK", "TopLabel"} == set(L.__all__)


@pytest.mark.parametrize("recalibrator", REFUSED)
def test_recalibrators_that_need_the_host_say_so(cupy, recalibrator):
    y, p = np.array([0, 1, 1, 0]), np.array([[0.7, 0.3], [0.2, 0.8], [0.4, 0.6], [0.9, 0.1]])
    pred = D.Normal(cupy.asarray(p[:, 0]), cupy.asarray(p[:, 1])) if recalibrator in OF_FORECASTS else cupy.asarray(p)
    with pytest.raises(NotImplementedError, match="NumPy|host|numpy"):
        recalibrator().fit(cupy.asarray(y), pred)


@pytest.mark.parametrize("function", [kcalib.top_label_ece, kcalib.class_wise_ece, kcalib.canonical_ece, kcalib.skce])
def test_threads_are_refused(cupy, function):
    y, p = np.array([0, 1, 2, 1]), np.random.default_rng(0).dirichlet(np.ones(3), 4)
    function(y, p, threads=1)
    with pytest.raises(ValueError, match="`threads` has no effect on arrays on GPU 0; leave it out"):
        function(cupy.asarray(y), cupy.asarray(p), threads=1)
