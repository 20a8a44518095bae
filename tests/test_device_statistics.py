"""What is no pair problem, on a GPU: the numbers of the CPU, of which only small results leave the device.

`EXPECTED` says of every public name what is expected of it there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulated_cupy import stays_on_device

import kcalib
from kcalib import _arrays
from kcalib import distributions as D
from kcalib.recalibration import TemperatureScaling

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
            if field.name not in ("operator", "operator_reason", "threads", "seconds"):
                same(getattr(found, field.name), getattr(expected, field.name), rtol)
    elif isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other, rtol)
    elif isinstance(expected, float | np.ndarray):
        found = found if isinstance(found, float) else _arrays.to_host(found)
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-15)
    else:
        assert found == expected


# -- distributions -----------------------------------------------------------------------------

Asarray = Callable[[np.ndarray], Any]
# Families, and targets for each.
FAMILIES: dict[str, tuple[Callable[[Asarray], D.Distribution], Any]] = {
    "normal": (lambda a: D.Normal(a(MEAN), a(SCALE)), MEAN + 1),
    "vectors": (lambda a: D.Normal(a(MEANS), a(SCALES)), MEANS + 1),
    "laplace": (lambda a: D.Laplace(a(MEAN), a(SCALE)), MEAN + 1),
    "multivariate_normal": (lambda a: D.MultivariateNormal(a(MEANS), a(FACTORS @ FACTORS.swapaxes(1, 2))), MEANS + 1),
    "factors": (lambda a: D.MultivariateNormal(a(MEANS), scale_tril=a(FACTORS)), MEANS + 1),
    "mixture": (lambda a: D.Mixture([0.25, 0.75], [D.Normal(a(MEAN), a(SCALE)), D.Normal(a(MEAN + 1), 3.0)]), MEAN),
    "ensemble": (lambda a: D.Ensemble([D.Laplace(a(MEAN), a(SCALE)), D.Laplace(a(MEAN + 1), a(SCALE))]), MEAN),
    "samples": (lambda a: D.Samples(a(SAMPLES)), MEAN),
    "weighted": (lambda a: D.Samples(a(SAMPLES), a(WEIGHTS)), SAMPLES[:, 1]),
    "vector_samples": (lambda a: D.Samples(a(SAMPLES[:, :, None] * [1.0, 2.0])), MEANS[:, :2]),
    "poisson": (lambda a: D.Poisson(a(RATE)), np.floor(RATE)),
    "negative_binomial": (lambda a: D.NegativeBinomial(a(RATE), a(DISPERSION)), np.floor(RATE)),
    "power_exponential": (lambda a: D.PowerExponential(a(MEAN), a(SCALE), a(SHAPE)), MEAN + 1),
    "beta": (lambda a: D.Beta(a(RATE), a(SHAPE)), SHARES[:, 0]),
    "dirichlet": (lambda a: D.Dirichlet(a(SCALES)), SHARES),
    "categorical": (lambda a: D.Categorical(a(P)), Y),
}
NO_DRAWS = ("poisson", "negative_binomial", "beta")


@pytest.mark.parametrize("name", FAMILIES)
def test_distributions_are_computed_where_they_are(cupy, name):
    make, y = FAMILIES[name]
    with stays_on_device(at_most=1):
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
            # Quantiles by bisection stop within 1e-12; other inverses are SciPy's in both places.
            np.testing.assert_allclose(found[key].get(), expected, rtol=2e-12, atol=1e-14, err_msg=key)


@pytest.mark.parametrize("name", NO_DRAWS)
def test_draws_by_rejection_are_refused(cupy, name):
    with pytest.raises(NotImplementedError, match="^independent draws from .* cannot be computed on a GPU"):
        FAMILIES[name][0](cupy.asarray).sample(1)


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

LEVELS = len(kcalib.estimators.forecast_scores.LEVELS)
SCORES: dict[str, Callable[..., Any]] = {
    "crps": kcalib.crps,
    "weighted": lambda y, d: kcalib.crps(y, d, sample_weight=W[: len(y)]),
    "log_score": kcalib.log_score,
    "pinball_loss": kcalib.pinball_loss,
    "pit_values": lambda y, d: _arrays.to_host(kcalib.pit_values(y, d, seed=3)),
    "quantile_calibration": kcalib.quantile_calibration,
}


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "categorical"])
def test_scores_of_distributions(cupy, name):
    make, y = FAMILIES[name]
    there, here = make(cupy.asarray), make(np.asarray)
    if name == "dirichlet":  # whose energy score is that of 512 draws
        there, here, y = there.take(slice(0, LEVELS + 1)), here.take(slice(0, LEVELS + 1)), y[: LEVELS + 1]
    for score, function in SCORES.items():
        if here.event_shape and score not in ("crps", "weighted", "log_score"):
            continue
        if score == "log_score" and not hasattr(here, "log_density"):
            continue
        with stays_on_device(at_most=N if score == "pit_values" else LEVELS):
            found = function(cupy.asarray(y), there)
        # The widths of pinball and CRPS hold quantiles, by bisection to 1e-12 for mixtures.
        same(found, function(y, here), rtol=1e-11)


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
    same(fitted(there), fitted(here), rtol=1e-11)  # Newton's steps and bisection stop at 1e-12
    same(scaled.parameters(), here.transform(make(np.asarray)).parameters(), rtol=1e-11)


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
            cupy.asarray(Y[:60]), cupy.asarray(P[:60] ** 2 / np.sum(P[:60] ** 2, axis=1, keepdims=True))
        )
    here = TemperatureScaling(**options).fit(Y[:60], P[:60] ** 2 / np.sum(P[:60] ** 2, axis=1, keepdims=True))
    # A minimum is found to the root of the error of its value.
    same(there.temperature_, here.temperature_, rtol=1e-5)
    same(there.criterion_after_, here.criterion_after_, rtol=1e-9)


def test_impossible_labels_are_named(cupy):
    p = cupy.asarray([[0.5, 0.5], [1.0, 0.0]])
    with pytest.raises(
        ValueError, match=r"^`y_true\[1\]` is class 1, whose predicted probability is 0 \(so for 1 of 2"
    ):
        TemperatureScaling().fit(cupy.asarray([0, 1]), p)


# -- distances ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["normal", "vectors", "laplace", "multivariate_normal", "samples", "poisson"])
def test_wasserstein_distances(cupy, name):
    make, few = FAMILIES[name][0], slice(0, 9)
    with stays_on_device(at_most=1):
        there = make(cupy.asarray)
        found = D.wasserstein_distance(there), D.wasserstein_distance(there.take(few), there)
    here = make(np.asarray)
    for table, other in zip(found, (here, here.take(few)), strict=True):
        # Of covariances squares have the error of the roots and polar factors, of a scale of up to 10.
        np.testing.assert_allclose(table.get() ** 2, D.wasserstein_distance(other, here) ** 2, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(
        D.wasserstein_distance(here.take(few), there), D.wasserstein_distance(here.take(few), here), rtol=1e-12
    )


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
    for name, options in (("mixture", {}), ("vector_samples", {}), ("weighted", {"order": 1})):
        with pytest.raises(
            NotImplementedError, match="^optimal transport between mixtures of several components cannot"
        ):
            D.wasserstein_distance(FAMILIES[name][0](cupy.asarray), **options)
    negative = cupy.asarray(-np.ones((2, 1, 1, 1)) * np.eye(2))
    components = D.Components("normal_full", cupy.ones((2, 1)), cupy.zeros((2, 1, 2)), negative)
    with pytest.raises(ValueError, match=r"^`scales\[0, 0\]` of components has the eigenvalue .*, expected a positive"):
        D.distances.wasserstein_table(components)
