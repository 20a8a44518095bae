"""A fixed set of public calls, to compare the numbers of two versions of kcalib bit for bit.

    python -P tests/support/reference_calls.py --save before.json      with one version installed
    python -P tests/support/reference_calls.py --compare before.json   with the other, on the same machine

Each call's floats are stored as hexadecimal strings, its arrays as hashes with the first entries. What says how a
number was computed (names, reasons, times, threads, memory) is left out. `--compare` prints every number that differs
and every call that fails now; fields that are new are counted only. BLAS gets one thread: its sums depend on them.

The calls are written with the present names. `RENAMED` lists what was renamed, so that either version may be saved and
the other compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import inspect
import itertools
import json
import math
import numbers
import os
import re
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is imported

import numpy as np
import scipy.stats

import kcalib as installed
from kcalib import distributions as D
from kcalib import kernels as K
from kcalib import laws, lenses, recalibration, regression, solvers, target_kernels

LEFT_OUT = ("seconds", "threads", "memory")
FIRST = 3  # entries of an array that are stored beside its hash
LARGE = 2500  # samples: more than those whose median distance is the default bandwidth

Call = tuple[str, Callable[[], Any]]

# For each renamed argument of a public function its name before, and the values that had other names.
RENAMED: dict[str, tuple[str, dict[str, str]]] = {
    "backend": ("operator", {"cpu": "openmp", "array-api": "generic", "sorted": "sorted_scan"}),
    "locations": ("n_locations", {}),
}
# The present word for each old one, in the names of saved calls and fields.
PRESENT_WORDS = {before: now for now, (before, _) in RENAMED.items()} | {
    before: now for _, values in RENAMED.values() for now, before in values.items()
}


class PublicFunction:
    """A public function that is called by its present names, whichever version is installed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.parameters = inspect.signature(function).parameters
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **self.translate(kwargs))

    def result(self, *args: Any, **kwargs: Any) -> Any:
        """Return the whole result of an estimator; before there was `result` an argument asked for it."""
        if "full_output" in self.parameters:
            return self.function(*args, full_output=True, **self.translate(kwargs))
        return self.function.result(*args, **self.translate(kwargs))

    def translate(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Give each argument the name that the installed version knows."""
        translated = {}
        for name, value in kwargs.items():
            if name == "locations" and name not in self.parameters and isinstance(value, tuple):
                translated["test_labels"], translated["test_predictions"] = value
                continue
            before, values = RENAMED.get(name, (name, {}))
            if name not in self.parameters and before in self.parameters:
                translated[before] = values.get(value, value) if isinstance(value, str) else value
            else:
                translated[name] = value
        return translated


kcalib = types.SimpleNamespace(
    **{
        name: PublicFunction(value) if inspect.isfunction(value) else value
        for name, value in ((name, getattr(installed, name)) for name in installed.__all__)
    }
)


def with_present_words(text: str) -> str:
    """Replace the old words in the name of a call or field."""
    return re.sub(r"\w+", lambda match: PRESENT_WORDS.get(match[0], match[0]), text)


def with_present_names(answers: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Replace the old words in the names of all calls and fields."""
    return {
        with_present_words(call): {with_present_words(place): value for place, value in values.items()}
        for call, values in answers.items()
    }


def by(method: str, **options: Any) -> dict[str, Any]:
    """The argument that asks for a method, by its name or with options."""
    if not options:
        return {"method": method}
    (cls,) = (one for one in vars(kcalib.methods).values() if getattr(one, "name", None) == method)
    names = {"rank": "n_landmarks"} if method == "nystrom" else {}
    names |= {} if hasattr(cls, "n_locations") else {"n_locations": "locations"}
    return {"method": cls(**{names.get(k, k): v for k, v in options.items()})}


def chosen(argument: str, name: str, before: dict[str, Any], **options: Any) -> dict[str, Any]:
    """An object of `kcalib.methods` for an argument; what stood for it before, where there is no such class."""
    cls = getattr(kcalib.methods, name, None)
    return before | options if cls is None else {argument: cls(**options)}


def call(name: str, function: Any, *args: Any, **options: Any) -> Call:
    return name, functools.partial(function, *args, **options)


# --- Problems.


@functools.cache
def classes(n: int, m: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Over-confident: labels of the softmax of Gaussian logits, predictions of 1.3 times them."""
    rng = np.random.default_rng([seed, n, m])
    logits = 1.5 * rng.standard_normal((n, m))
    truth, p = _softmax(logits), _softmax(1.3 * logits)
    y = np.minimum((np.cumsum(truth, axis=1) < rng.uniform(size=(n, 1))).sum(axis=1), m - 1)
    return y, p


@functools.cache
def saturated(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Ties, one-hot rows and probabilities of 0."""
    y, p = classes(n, m, seed=1)
    p = p.copy()
    p[n // 2 :] = p[: n - n // 2]
    p[: n // 4] = np.eye(m)[y[: n // 4]]
    return y, p


@functools.cache
def forecasts(n: int = 40) -> dict[str, tuple[Any, Any]]:
    """Each family of distributions with targets that are not quite drawn from it."""
    rng = np.random.default_rng(n)
    mean, std = rng.normal(size=n), rng.uniform(0.5, 1.5, size=n)
    means, stds = rng.normal(size=(n, 2)), rng.uniform(0.5, 1.5, size=(n, 2))
    roots = rng.normal(size=(n, 2, 2))
    covariances = roots @ roots.swapaxes(1, 2) + 0.3 * np.eye(2)
    rate = np.exp(mean)
    number = mean + 1.2 * std * rng.normal(size=n)
    vector = means + 1.2 * stds * rng.normal(size=(n, 2))
    count = rng.poisson(1.1 * rate).astype(float)
    alpha = rng.uniform(0.5, 3.0, size=(n, 3))
    y, p = classes(n, 3)
    return {
        "Normal": (number, D.Normal(mean, std)),
        "Normal of vectors": (vector, D.Normal(means, stds)),
        "MultivariateNormal": (vector, D.MultivariateNormal(means, covariances)),
        "Laplace": (number, D.Laplace(mean, std)),
        "Mixture": (number, D.Mixture([0.3, 0.7], [D.Normal(mean, std), D.Normal(mean + 1, 0.7 * std)])),
        "Ensemble": (number, D.Ensemble([D.Laplace(mean, std), D.Laplace(-mean, std)])),
        "Samples": (number, D.Samples(rng.normal(size=(n, 7)) + mean[:, None])),
        "Samples with weights": (number, D.Samples(rng.normal(size=(n, 3)) + mean[:, None], [0.2, 0.3, 0.5])),
        "Samples of vectors": (vector, D.Samples(rng.normal(size=(n, 4, 2)) + means[:, None])),
        "Poisson": (count, D.Poisson(rate)),
        "NegativeBinomial": (count, D.NegativeBinomial(rate, np.full(n, 0.4))),
        "Categorical": (y, D.Categorical(p)),
        "PowerExponential": (number, D.PowerExponential(mean, std, np.full(n, 1.4))),
        "Beta": (rng.beta(alpha[:, 0], alpha[:, 1]), D.Beta(alpha[:, 0], alpha[:, 1])),
        "Dirichlet": (rng.dirichlet(np.ones(3), size=n), D.Dirichlet(alpha)),
    }


ONE_DIMENSION = ("Normal", "Laplace", "Mixture", "Ensemble", "Samples", "Poisson", "NegativeBinomial", "Beta")


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def kernels() -> dict[str, K.Kernel]:
    return {
        "Exponential()": K.Exponential(),
        "Exponential(0.5)": K.Exponential(bandwidth=0.5),
        "Exponential(cityblock)": K.Exponential(metric="cityblock"),
        "Exponential(0.3, total_variation)": K.Exponential(bandwidth=0.3, metric="total_variation"),
        "Gaussian()": K.Gaussian(),
        "Gaussian(0.4)": K.Gaussian(bandwidth=0.4),
        "GammaExponential(1.5)": K.GammaExponential(bandwidth=0.5, gamma=1.5),
        "GammaExponential(0.3, cityblock)": K.GammaExponential(bandwidth=0.5, gamma=0.3, metric="cityblock"),
        "Matern(1.5)": K.Matern(nu=1.5),
        "Matern(2.5)": K.Matern(bandwidth=0.6, nu=2.5),
        "RationalQuadratic(1.7)": K.RationalQuadratic(bandwidth=0.4, alpha=1.7),
        "Linear()": K.Linear(),
        "Linear()+Gaussian()": K.Linear() + K.Gaussian(),
        "mixed": 0.5 * (K.Linear() + K.Matern(bandwidth=0.5)) * K.Exponential(bandwidth=2.0)
        + 2.0 * K.Exponential(bandwidth=0.5, metric="cityblock"),
    }


def target_matrix(m: int, rank: int) -> np.ndarray:
    root = np.random.default_rng(m).normal(size=(m, rank))
    return root @ root.T / rank


SIZES = ((20, 2), (20, 3), (200, 2), (200, 3), (200, 10), (200, 100))


# --- The calls, by room.


def skce_calls() -> Iterator[Call]:
    for n, m in (*SIZES, (LARGE, 2), (LARGE, 10)):
        y, p = classes(n, m)
        for estimator in ("unbiased", "biased", "block", "linear"):
            yield f"skce({n} x {m}, {estimator})", lambda y=y, p=p, e=estimator: kcalib.skce.result(y, p, estimator=e)
    for name, kernel in kernels().items():
        for n, m in ((60, 2), (60, 3), (60, 12)):
            y, p = saturated(n, m)
            yield f"skce({n} x {m}, {name})", lambda y=y, p=p, k=kernel: kcalib.skce.result(y, p, kernel=k)
        y, p = saturated(60, 5)
        for dtype, backend in (("float32", "cpu"), ("float64", "array-api"), ("float32", "array-api")):
            arguments = {"kernel": kernel, "dtype": dtype, "backend": backend, "estimator": "biased"}
            yield call(f"skce(60 x 5, {name}, {dtype}, {backend})", kcalib.skce.result, y, p, **arguments)
    y, p = classes(200, 10)
    weight = np.random.default_rng(0).uniform(size=200)
    for estimator in ("unbiased", "biased"):
        yield call(f"skce(weights, {estimator})", kcalib.skce.result, y, p, estimator=estimator, sample_weight=weight)
    for rank in (1, 4, 10):
        a = target_matrix(10, rank)
        yield call(f"skce(matrix of rank {rank})", kcalib.skce.result, y, p, target_kernel=a)
        yield call(
            f"skce(matrix of rank {rank}, generic)", kcalib.skce.result, y, p, target_kernel=a, backend="array-api"
        )
        yield call(f"skce(matrix of rank {rank}, float32)", kcalib.skce.result, y, p, target_kernel=a, dtype="float32")
    for size in (2, 7, 50, 100):
        blocks = chosen("estimator", "BlockEstimator", {"estimator": "block"}, block_size=size)
        yield call(f"skce(blocks of {size})", kcalib.skce.result, y, p, **blocks)
    for name, lens in all_lenses().items():
        for estimator in ("unbiased", "block"):
            yield call(f"skce({name}, {estimator})", kcalib.skce.result, y, p, lens=lens, estimator=estimator)
    yield call("skce(logits)", kcalib.skce.result, y, np.log(p), from_logits=True)
    binary_y, binary_p = classes(200, 2)
    for backend in ("sorted", "cpu", "array-api"):
        for kernel in (K.Exponential(), K.Matern(nu=2.5)):
            yield call(
                f"skce(binary, {backend}, {kernel})",
                kcalib.skce.result,
                binary_y,
                binary_p[:, 1],
                kernel=kernel,
                backend=backend,
            )


def all_lenses() -> dict[str, Any]:
    return {
        "Canonical()": lenses.Canonical(),
        "TopLabel()": lenses.TopLabel(),
        "TopK(3)": lenses.TopK(3),
        "ClassWise(2)": lenses.ClassWise(2),
        "Groups": lenses.Groups([[0, 1, 2], [3, 4], [5, 6, 7, 8, 9]]),
    }


def ucme_calls() -> Iterator[Call]:
    for n, m in SIZES:
        y, p = classes(n, m)
        for seed in (0, 1):
            yield call(f"ucme({n} x {m}, seed {seed})", kcalib.ucme.result, y, p, seed=seed)
    y, p = classes(200, 3)
    other_y, other_p = classes(5, 3)
    yield call("ucme(given locations)", kcalib.ucme.result, y, p, locations=(other_y, other_p))
    for name, kernel in kernels().items():
        yield call(f"ucme({name})", kcalib.ucme.result, y, p, kernel=kernel, locations=7, seed=3)
    for family in ("Normal", "Laplace", "Poisson", "MultivariateNormal"):
        yield f"ucme({family})", lambda f=family: kcalib.ucme.result(*forecasts()[f], seed=0)


def method_options() -> dict[str, list[dict[str, Any]]]:
    return {
        "adaptive": [{}],
        "exact": [{}, {"n_resamples": 99}],
        "spectrum": [{}, {"n_eigenvalues": 5}, {"n_eigenvalues": "all"}],
        "multiplier": [{"n_resamples": 99}, {"n_resamples": 99, "multipliers": "gaussian"}],
        "bootstrap": [{"n_resamples": 99}],
        "pearson": [{}, {"n_eigenvalues": 5}],
        "gamma": [{}],
        "block": [{}, {"block_size": 4}, {"variance": "second_moment"}],
        "linear": [{}, {"variance": "second_moment"}],
        "distribution_free": [{}, {"estimator": "biased"}, {"estimator": "block", "block_size": 5}, {"bound": 3.0}],
        "cme": [{}, {"reference": "F"}, {"reference": "chi2", "n_locations": 3}],
        "consistency": [
            {"n_resamples": 49},
            {"n_resamples": 49, "n_bins": 7, "resample_predictions": False},
            {"n_resamples": 19, "estimator": "unbiased"},
            {"n_resamples": 19, "estimator": "ucme"},
            {"n_resamples": 19, "estimator": "block"},
        ],
    }


def with_interval(result: Any) -> Any:
    """A test's result and its confidence interval, where it has one."""
    try:
        return result, result.confidence_interval()
    except ValueError:
        return result


def test_calls() -> Iterator[Call]:
    test = kcalib.calibration_test
    for method, several in method_options().items():
        for options in several:
            shown = ", ".join([method, *(f"{k}={v}" for k, v in options.items())])
            for n, m in ((20, 2), (20, 3), (200, 2), (200, 10)):
                for seed in (0, 1) if n == 200 else (0,):
                    yield (
                        f"calibration_test({n} x {m}, seed {seed}, {shown})",
                        lambda n=n, m=m, s=seed, a=(method, options): with_interval(
                            test(*classes(n, m), seed=s, **by(a[0], **a[1]))
                        ),
                    )
    for method, options in (
        ("features", {}),
        ("spectrum", {}),
        ("pearson", {}),
        ("gamma", {}),
        ("block", {}),
        ("linear", {}),
        ("multiplier", {"n_resamples": 49}),
        ("bootstrap", {"n_resamples": 49}),
        ("exact", {"n_resamples": 19}),
        ("cme", {}),
        ("distribution_free", {}),
    ):
        for m in (2, 3):
            for seed in (0, 1):
                yield (
                    f"calibration_test({LARGE} x {m}, seed {seed}, {method})",
                    lambda m=m, s=seed, a=(method, options): with_interval(
                        test(*classes(LARGE, m), seed=s, **by(a[0], **a[1]))
                    ),
                )
    for method in ("spectrum", "exact", "block", "cme"):
        yield f"calibration_test(200 x 100, {method})", lambda a=method: test(*classes(200, 100), seed=0, **by(a))
        yield f"calibration_test(saturated, {method})", lambda a=method: test(*saturated(200, 5), seed=0, **by(a))
        for dtype in ("float32", "float64"):
            yield (
                f"calibration_test(generic, {dtype}, {method})",
                lambda a=method, d=dtype: test(*classes(60, 4), seed=0, dtype=d, backend="array-api", **by(a)),
            )
        for name, lens in all_lenses().items():
            yield (
                f"calibration_test({name}, {method})",
                lambda a=method, lens=lens: test(*classes(200, 10), seed=0, lens=lens, **by(a)),
            )
        for name in ("Gaussian()", "Matern(2.5)", "mixed"):
            yield (
                f"calibration_test({name}, {method})",
                lambda a=method, k=name: test(*classes(100, 4), seed=0, kernel=kernels()[k], **by(a)),
            )
        yield (
            f"calibration_test(matrix, {method})",
            lambda a=method: test(*classes(100, 4), seed=0, target_kernel=target_matrix(4, 2), **by(a)),
        )
    for family in forecasts():
        for method, options in (
            ("adaptive", {}),
            ("exact", {"n_resamples": 19}),
            ("spectrum", {}),
            ("bootstrap", {"n_resamples": 49}),
            ("block", {}),
            ("distribution_free", {"bound": 1.0}),
            ("cme", {"n_locations": 2}),
            ("consistency", {"n_resamples": 9}),
        ):
            if family in ("Dirichlet", "Samples of vectors", "Ensemble") and method not in ("spectrum", "block"):
                continue
            yield (
                f"calibration_test({family}, {method})",
                lambda f=family, a=(method, options): with_interval(test(*forecasts()[f], seed=0, **by(a[0], **a[1]))),
            )


def compare_calls() -> Iterator[Call]:
    for metric in ("skce", "ckce", "ece", "brier_score", "log_loss"):
        for n, m in ((20, 2), (60, 3), (200, 10)):
            for seed in (0, 5):
                y, p = classes(n, m)
                options = {"seed": seed} if metric in ("skce", "ckce", "ece") else {}
                models = {"a": p, "b": _softmax(0.7 * np.log(p)), "c": classes(n, m, seed=2)[1]}
                yield call(
                    f"compare({metric}, {n} x {m}, seed {seed})", kcalib.compare, y, models, metric=metric, **options
                )
    y, p = classes(200, 10)
    models = {"a": p, "b": _softmax(0.7 * np.log(p))}
    for metric in ("skce", "ece", "brier_score"):
        for lens in ("TopLabel()", "ClassWise(2)"):
            yield call(
                f"compare({metric}, {lens})",
                kcalib.compare,
                y,
                models,
                metric=metric,
                lens=all_lenses()[lens],
                confidence_level=0.9,
            )
    yield (
        "compare(skce, large)",
        lambda: kcalib.compare(
            classes(LARGE, 3)[0], {"a": classes(LARGE, 3)[1], "b": _softmax(0.7 * np.log(classes(LARGE, 3)[1]))}
        ),
    )
    ece = chosen("metric", "ECE", {"metric": "ece"}, n_bins=7, n_resamples=199)
    ckce = chosen("metric", "CKCE", {"metric": "ckce"}, regularization=0.03)
    yield call("compare(ece, 7 bins)", kcalib.compare, y, models, **ece)
    yield call("compare(ckce, regularization)", kcalib.compare, y, models, **ckce)
    target, normal = forecasts()["Normal"]
    distributions = {"normal": normal, "laplace": forecasts()["Laplace"][1], "mixture": forecasts()["Mixture"][1]}
    for metric in ("skce", "crps", "log_score"):
        yield call(f"compare({metric}, distributions)", kcalib.compare, target, distributions, metric=metric)


def ckce_calls() -> Iterator[Call]:
    for n, m in ((20, 2), (20, 3), (200, 2), (200, 3), (200, 10)):
        y, p = classes(n, m)
        for method in ("auto", "cholesky", "cg", "nystrom", "pivoted_cholesky", "fourier"):
            yield call(f"ckce({n} x {m}, {method})", kcalib.ckce.result, y, p, **by(method))
        for estimator in ("unbiased", "biased"):
            yield call(f"jkce({n} x {m}, {estimator})", kcalib.jkce.result, y, p, estimator=estimator)
    y, p = classes(200, 10)
    for method, options in (
        ("cg", {"tol": 1e-4}),
        ("cg", {"rank": 10}),
        ("cholesky", {"tol": 1e-4}),
        ("nystrom", {"rank": 30}),
        ("pivoted_cholesky", {"rank": 30}),
        ("fourier", {"n_features": 20}),
    ):
        seed = {} if method == "cholesky" else {"seed": 3}  # it draws nothing
        yield (
            f"ckce({method}, {options})",
            lambda a=(method, {**options, **seed}): kcalib.ckce.result(y, p, **by(a[0], **a[1])),
        )
    for name in ("Gaussian()", "Linear()", "Exponential()", "Matern(2.5)", "mixed"):
        for m in (2, 4):
            for method in ("auto", "cg"):
                yield (
                    f"ckce({name}, {m} classes, {method})",
                    lambda k=name, m=m, a=method: kcalib.ckce.result(*classes(150, m), kernel=kernels()[k], **by(a)),
                )
    for arguments in (
        {"regularization": 0.01},
        {"target_kernel": target_matrix(10, 3)},
        {"dtype": "float32", "method": "cholesky"},
        {"dtype": "float32", "method": "cg"},
        {"backend": "array-api"},
    ):
        shown = ", ".join(f"{k}={v if k != 'target_kernel' else 'matrix'}" for k, v in arguments.items())
        yield call(f"ckce({shown})", kcalib.ckce.result, y, p, **arguments)
    for name, lens in all_lenses().items():
        yield call(f"ckce({name})", kcalib.ckce.result, y, p, lens=lens)
        yield call(f"jkce({name})", kcalib.jkce.result, y, p, lens=lens)
    for family in ("Normal", "Laplace", "Samples", "Poisson"):
        yield f"ckce({family})", lambda f=family: kcalib.ckce.result(*forecasts()[f])
        yield f"jkce({family})", lambda f=family: kcalib.jkce.result(*forecasts()[f])
    yield "ckce(1500 samples)", lambda: kcalib.ckce.result(*classes(1500, 5))


def evaluate_calls() -> Iterator[Call]:
    evaluate = functools.partial(kcalib.evaluate, method="exact")  # what the default once took for few samples
    for n, m in (*SIZES, (LARGE, 2), (LARGE, 3)):
        yield f"evaluate({n} x {m})", lambda n=n, m=m: evaluate(*classes(n, m))
    for method in ("spectrum", "block", "bootstrap"):
        yield f"evaluate({method})", lambda a=method: kcalib.evaluate(*classes(200, 10), method=a, seed=4)
    yield "evaluate(saturated)", lambda: evaluate(*saturated(200, 5))
    for name, lens in all_lenses().items():
        yield f"evaluate({name})", lambda lens=lens: evaluate(*classes(200, 10), lens=lens)
    for family in forecasts():
        if family not in ("Categorical", "Dirichlet"):
            yield f"evaluate({family})", lambda f=family: evaluate(*forecasts()[f])


def distribution_calls() -> Iterator[Call]:
    probabilities = np.linspace(0.05, 0.95, 40)
    for family in forecasts():
        y, prediction = forecasts()[family]
        for estimator in ("unbiased", "biased", "block"):
            yield call(f"skce({family}, {estimator})", kcalib.skce.result, y, prediction, estimator=estimator)
        yield call(
            f"skce({family}, draws)",
            kcalib.skce.result,
            y,
            prediction,
            target_kernel=target_kernels.Draws(n_draws=16, seed=1),
        )
        if family != "Categorical":
            for target in (K.Gaussian(bandwidth=0.7), K.Exponential(bandwidth=0.7)):
                yield call(f"skce({family}, target {target})", kcalib.skce.result, y, prediction, target_kernel=target)
            yield call(f"skce({family}, generic)", kcalib.skce.result, y, prediction, backend="array-api")
        for metric in (K.MMD(), K.MMD(bandwidth=0.8), K.MixtureWasserstein()):
            yield call(
                f"skce({family}, {metric})", kcalib.skce.result, y, prediction, kernel=K.Exponential(metric=metric)
            )
        yield call(f"{family}.sample", prediction.sample, 5, seed=2)
        yield call(f"{family}.quasi_sample", prediction.quasi_sample, 5, seed=2)
        yield f"{family}.expected_value", prediction.expected_value
        yield f"{family}.standard_deviation", prediction.standard_deviation
        for name, argument in (("log_density", y), ("cdf", y), ("quantile", probabilities)):
            if hasattr(prediction, name):
                yield call(f"{family}.{name}", getattr(prediction, name), argument)
        for score in (kcalib.crps, kcalib.log_score):
            yield call(f"{score.__name__}({family})", score, y, prediction)
        if family in ONE_DIMENSION:
            yield call(f"pinball_loss({family})", kcalib.pinball_loss, y, prediction)
            yield call(f"pit_values({family})", kcalib.pit_values, y, prediction)
            yield call(f"quantile_calibration({family})", kcalib.quantile_calibration, y, prediction)
        yield call(f"mmd_distance({family})", D.mmd_distance, prediction, bandwidth=0.9)
        for order in (1, 2):
            yield call(f"wasserstein_distance({family}, {order})", D.wasserstein_distance, prediction, order=order)
    yield (
        "skce(MahalanobisGaussian)",
        lambda: kcalib.skce.result(
            *forecasts()["MultivariateNormal"],
            target_kernel=target_kernels.MahalanobisGaussian(np.array([[2.0, 0.3], [0.3, 1.0]])),
        ),
    )
    yield (
        "skce(distributions of SciPy)",
        lambda: kcalib.skce.result(forecasts()["Normal"][0], scipy.stats.norm(np.arange(40) / 20, 1.5)),
    )


def binned_calls() -> Iterator[Call]:
    for n, m in ((20, 2), (200, 3), (200, 10), (LARGE, 10)):
        y, p = classes(n, m)
        for norm in ("l1", "l2", "max"):
            for binning in ("uniform", "equal_mass"):
                arguments = {"norm": norm, "binning": binning, "n_bins": 9}
                yield call(
                    f"top_label_ece({n} x {m}, {norm}, {binning})", kcalib.top_label_ece.result, y, p, **arguments
                )
                yield call(
                    f"class_wise_ece({n} x {m}, {norm}, {binning})", kcalib.class_wise_ece.result, y, p, **arguments
                )
            for binning in ("uniform", "median_variance"):
                yield (
                    f"canonical_ece({n} x {m}, {norm}, {binning})",
                    functools.partial(kcalib.canonical_ece.result, y, p, norm=norm, binning=binning, n_bins=4)
                    if binning == "uniform"
                    else functools.partial(
                        kcalib.canonical_ece.result, y, p, norm=norm, binning=binning, n_bins=10, min_bin_size=10
                    ),
                )
        for notion in ("top_label", "class_wise"):
            yield call(f"debiased_ece({n} x {m}, {notion})", kcalib.debiased_ece.result, y, p, notion=notion, n_bins=5)
        for estimator in ("biased", "unbiased"):
            yield call(f"mmce({n} x {m}, {estimator})", kcalib.mmce.result, y, p, estimator=estimator)
        yield call(f"log_loss({n} x {m})", kcalib.log_loss, y, p)
        for scale in (True, False):
            yield call(f"brier_score({n} x {m}, {scale})", kcalib.brier_score, y, p, scale_by_half=scale)
        for binning in ("uniform", "equal_mass", "isotonic"):
            yield call(f"brier_decomposition({n} x {m}, {binning})", kcalib.brier_decomposition, y, p, binning=binning)
        yield call(
            f"brier_decomposition({n} x {m}, canonical)",
            kcalib.brier_decomposition,
            y,
            p,
            grouping="canonical",
            n_bins=3,
        )
        for binning in ("uniform", "equal_mass", "isotonic"):
            drawn = {"bands": "consistency", "seed": 0} if binning == "isotonic" else {"bands": "both"}
            for simultaneous in (False,) if binning == "isotonic" else (False, True):
                yield call(
                    f"reliability({n} x {m}, {binning}, simultaneous={simultaneous})",
                    kcalib.reliability,
                    y,
                    p,
                    binning=binning,
                    simultaneous=simultaneous,
                    **drawn,
                )
    y, p = classes(200, 10)
    weight = np.random.default_rng(0).uniform(size=200)
    for name in ("top_label_ece", "class_wise_ece", "canonical_ece", "brier_score", "log_loss", "brier_decomposition"):
        # The default number of bins of `canonical_ece` was 10 and is 15.
        function = functools.partial(getattr(kcalib, name), **({"n_bins": 10} if name == "canonical_ece" else {}))
        yield call(f"{name}(defaults)", function, y, p)
        yield call(f"{name}(weights)", function, y, p, sample_weight=weight)
        yield call(f"{name}(TopLabel())", function, y, p, lens=lenses.TopLabel())
    yield call("top_label_ece(risk)", kcalib.top_label_ece.result, y, p, n_bins="risk")
    yield call("mmce(weights)", kcalib.mmce.result, y, p, sample_weight=weight)
    yield call("mmce(Gaussian)", kcalib.mmce.result, y, p, kernel=K.Gaussian(bandwidth=0.2))
    yield call("reliability(weights)", kcalib.reliability, y, p, sample_weight=weight, seed=0)


def regression_calls() -> Iterator[Call]:
    for m in (2, 3, 10):
        y, p = classes(120, m)
        other_y, other_p = classes(50, m, seed=7)
        estimators = {
            "KKR(0.01)": regression.KKR(0.01),
            "KKR()": regression.KKR(),
            "UKKR(0.01)": regression.UKKR(0.01),
            "KKR(mixed)": regression.KKR(0.1, kernel=kernels()["mixed"]),
            "BinnedCalibration": regression.BinnedCalibration(5),
            "BinnedCalibration(equal_mass)": regression.BinnedCalibration(5, binning="equal_mass"),
            "DirichletKDE()": regression.DirichletKDE(),
            "DirichletKDE(0.1)": regression.DirichletKDE(0.1, orientation="query"),
            "TemperatureCalibration": regression.TemperatureCalibration(),
        }
        for name, estimator in estimators.items():

            def fitted(estimator: Any = estimator, a: Any = (y, p), b: Any = (other_y, other_p)) -> Any:
                function = estimator.clone().fit(*a)
                return function.h(b[1]), function.risk(*b), function.squared_error(b[1])

            yield f"{name}, {m} classes", fitted
        for bandwidth in ("likelihood", 0.05):
            for norm in (1, 2):
                yield call(
                    f"kde_calibration_error({m} classes, {bandwidth}, {norm})",
                    kcalib.kde_calibration_error.result,
                    y,
                    p,
                    bandwidth=bandwidth,
                    norm=norm,
                )
        for names in ("temperature", "kkr", "ukkr", "kde"):
            yield call(
                f"squared_calibration_error({m} classes, {names})",
                kcalib.squared_calibration_error,
                y,
                p,
                estimators=names,
            )
    yield "squared_calibration_error(all)", lambda: kcalib.squared_calibration_error(*classes(150, 3), seed=2)
    yield (
        "squared_calibration_error(TopLabel())",
        lambda: kcalib.squared_calibration_error(*classes(150, 3), lens=lenses.TopLabel(), n_folds=3),
    )


def recalibration_calls() -> Iterator[Call]:
    for m in (2, 3, 10):
        y, p = classes(120, m)
        for criterion in ("likelihood", "skce"):

            def fitted(y: Any = y, p: Any = p, criterion: str = criterion) -> Any:
                scaling = recalibration.TemperatureScaling(criterion=criterion, floor=1e-6).fit(y, p)
                found = {name: value for name, value in sorted(vars(scaling).items()) if name.endswith("_")}
                return found, scaling.transform(p)

            yield f"TemperatureScaling({criterion}, {m} classes)", fitted


def solver_calls() -> Iterator[Call]:
    for m in (2, 4):
        _, p = classes(150, m)
        right = np.random.default_rng(0).normal(size=(150, 3))
        for name in ("Exponential(0.5)", "Gaussian(0.4)", "Linear()+Gaussian()", "Matern(2.5)"):
            kernel = kernels()[name] if "()" not in name else K.Linear() + K.Gaussian(bandwidth=0.4)
            backend = solvers.kernel_operator(p, kernel)
            yield call(f"kernel_operator({name}, {m}).matmul", backend.matmul, right)
            yield call(f"kernel_operator({name}, {m}).tile", backend.tile, np.arange(5), np.arange(9))
            for method, options in (
                ("auto", {}),
                ("cholesky", {}),
                ("cg", {}),
                ("cg", {"rank": 10}),
                ("cg", {"products": "float32"}),
            ):
                yield (
                    f"solve({name}, {m}, {method}, {options})",
                    lambda a=(backend, method, options), b=right: solvers.solve(a[0], b, 5.0, **by(a[1], **a[2])),
                )
            for pivoting in ("random", "greedy"):
                yield call(
                    f"pivoted_cholesky({name}, {m}, {pivoting})",
                    solvers.pivoted_cholesky,
                    backend,
                    20,
                    pivoting=pivoting,
                    seed=1,
                )
    rng = np.random.default_rng(4)
    left, second = rng.normal(size=(12, 12)), rng.normal(size=(5, 5))
    symmetric = left @ left.T
    for name, pair in {
        "symmetric": (symmetric, second @ second.T),
        "general": (left + 9 * np.eye(12), second),
        "one": (symmetric, None),
    }.items():
        right = rng.normal(size=(12, 5) if pair[1] is not None else (12, 12))
        yield f"kronecker({name})", lambda pair=pair, b=right: solvers.kronecker(*pair).solve(b, 0.7)


def law_calls() -> Iterator[Call]:
    x = np.array([-3.0, -0.4, 0.0, 0.5, 2.0, 10.0, 40.0])
    q = np.array([1e-12, 0.01, 0.3, 0.5, 0.99])
    found = {
        "ChiSquareMixture(3)": laws.ChiSquareMixture([0.5, 0.3, 0.2]),
        "ChiSquareMixture(signed)": laws.ChiSquareMixture([0.5, -0.3, 0.2], 0.1),
        "ChiSquareMixture(degrees)": laws.ChiSquareMixture([0.5, 0.1], degrees_of_freedom=[1.0, 7.5]),
        "ChiSquareMixture(100)": laws.ChiSquareMixture(1.0 / np.arange(1, 101)),
        "PearsonCurve(I)": laws.PearsonCurve(0.0, 1.0, 0.2, 2.5),
        "PearsonCurve(III)": laws.PearsonCurve(0.0, 1.0, 1.0, 4.5),
        "PearsonCurve(VI)": laws.PearsonCurve(0.0, 1.0, 2.0, 9.5),
        "PearsonCurve(IV)": laws.PearsonCurve(0.0, 1.0, 0.5, 4.5),
    }
    for name, law in found.items():
        for function, argument in (("cdf", x), ("sf", x), ("logcdf", x), ("logsf", x), ("ppf", q), ("isf", q)):
            yield call(f"{name}.{function}", getattr(law, function), argument)
        if hasattr(law, "rvs"):
            yield call(f"{name}.rvs", law.rvs, 10, 3)


def bandwidth_calls() -> Iterator[Call]:
    for n, m in (*SIZES, (LARGE, 2), (LARGE, 10)):
        _, p = classes(n, m)
        for metric in ("euclidean", "cityblock"):
            for seed in (0, 1):
                yield call(
                    f"median_distance({n} x {m}, {metric}, seed {seed})",
                    kcalib.bandwidth.median_distance,
                    p,
                    metric,
                    seed=seed,
                )
        if n <= 200:
            for name in ("Exponential()", "Linear()", "mixed"):
                yield call(f"smallest_eigenvalue({n} x {m}, {name})", kcalib.smallest_eigenvalue, p, kernels()[name])


ROOMS = (
    skce_calls,
    ucme_calls,
    test_calls,
    compare_calls,
    ckce_calls,
    evaluate_calls,
    distribution_calls,
    binned_calls,
    regression_calls,
    recalibration_calls,
    solver_calls,
    law_calls,
    bandwidth_calls,
)


# --- What is stored of an answer.


def flattened(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Every number in `value` by its place: of dataclasses and dictionaries the names, of sequences the indices."""
    if isinstance(value, (bool, np.bool_)):
        yield place, str(bool(value))
    elif isinstance(value, numbers.Integral):
        yield place, str(int(value))
    elif isinstance(value, numbers.Real):
        yield place, float(value).hex()
    elif isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        first = " ".join(float(entry).hex() for entry in value.ravel()[:FIRST])
        yield place, f"{value.dtype} {value.shape} {digest} {first}"
    elif dataclasses.is_dataclass(value) and not isinstance(value, (K.Kernel, type)):
        for field in dataclasses.fields(value):
            if field.name not in LEFT_OUT:
                yield from flattened(getattr(value, field.name), f"{place}.{field.name}")
    elif isinstance(value, dict):
        for name, entry in value.items():
            yield from flattened(entry, f"{place}.{name}")
    elif isinstance(value, (tuple, list)):
        names = getattr(value, "_fields", range(len(value)))
        for name, entry in zip(names, value):
            yield from flattened(entry, f"{place}.{name}")


def answers() -> dict[str, dict[str, str]]:
    """Every number of each call, or its error."""
    found: dict[str, dict[str, str]] = {}
    warnings.simplefilter("ignore")
    for room in ROOMS:
        start = time.perf_counter()
        for name, call in room():
            if name in found:
                raise ValueError(f"two calls have the name {name!r}")
            try:
                found[name] = dict(flattened(call()))
            except Exception as error:
                found[name] = {"error": f"{type(error).__name__}: {error}"}
        print(f"{room.__name__}: {len(found)} calls so far, {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return found


def differences(before: dict[str, dict[str, str]], now: dict[str, dict[str, str]], tolerance: float) -> Iterator[str]:
    """Describe each number that differs by more than the tolerance, and each call that fails now."""
    for name, numbers_before in before.items():
        numbers_now = now.get(name, {"error": "no such call"})
        if "error" in numbers_now and "error" not in numbers_before:
            yield f"{name}: {numbers_now['error']}"
            continue
        for place, value in numbers_before.items():
            if place == "error":
                if "error" not in numbers_now:
                    yield f"{name}: an error before: {value}"
            elif place not in numbers_now:
                yield f"{name} {place}: {_shown(value)} before, now missing"
            elif numbers_now[place] != value:
                change = relative_difference(value, numbers_now[place])
                if not change <= tolerance:
                    yield f"{name} {place}: {_shown(value)} before, now {_shown(numbers_now[place])}, {change:.0e} off"


def relative_difference(before: str, now: str) -> float:
    """Return the largest relative difference of two floats, or of the first entries of two arrays."""
    change = 0.0
    for a, b in itertools.zip_longest(before.split(), now.split(), fillvalue=""):
        if "0x" in a and "0x" in b:
            a_float, b_float = float.fromhex(a), float.fromhex(b)
            change = max(change, abs(a_float - b_float) / (max(abs(a_float), abs(b_float)) or 1.0))
        elif a != b and not (re.fullmatch("[0-9a-f]{16}", a) and re.fullmatch("[0-9a-f]{16}", b)):  # no hashes
            return math.inf
    return change


def _shown(value: str) -> str:
    try:
        return f"{value} = {float.fromhex(value)!r}" if "0x" in value and " " not in value else value
    except ValueError:
        return value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--save", metavar="FILE")
    action.add_argument("--compare", metavar="FILE")
    parser.add_argument("--tolerance", type=float, default=0.0, help="relative differences up to this do not count")
    arguments = parser.parse_args()
    found = with_present_names(answers())
    numbers_found = sum(len(entry) for entry in found.values())
    errors = [f"{name}: {entry['error']}" for name, entry in found.items() if "error" in entry]
    print(f"kcalib {installed.__version__} at {installed.__file__}: {len(found)} calls, {numbers_found} numbers")
    if arguments.save:
        with open(arguments.save, "w") as file:
            json.dump(found, file, indent=0)
        print(f"{len(errors)} of the calls are refused, as some families of distributions have to", *errors, sep="\n  ")
        return 0
    with open(arguments.compare) as file:
        before = with_present_names(json.load(file))
    different = list(differences(before, found, arguments.tolerance))
    new = sum(len(found[name].keys() - before[name].keys()) for name in before if name in found)
    print(*different, sep="\n")
    print(f"{len(different)} of {sum(map(len, before.values()))} numbers differ; {new} are new")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
