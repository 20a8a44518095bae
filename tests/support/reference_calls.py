"""A fixed set of public calls, to compare the numbers of two versions of kcalib bit for bit.

    python -P tests/support/reference_calls.py --save before.json      with one version installed
    python -P tests/support/reference_calls.py --compare before.json   with the other, on the same machine

Each call's floats are stored as hexadecimal strings, its arrays as hashes with the first entries. What says how a
number was computed (names, reasons, times, threads, memory) is left out. `--compare` prints every number that differs
and every call that fails now; fields that are new are counted only. BLAS gets one thread: its sums depend on them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import numbers
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is imported

import numpy as np
import scipy.stats

import kcalib
from kcalib import distributions as D
from kcalib import kernels as K
from kcalib import laws, lenses, recalibration, regression, solvers, target_kernels
from kcalib import methods as M

LEFT_OUT = ("seconds", "threads", "memory")
FIRST = 3  # entries of an array that are stored beside its hash
LARGE = 2500  # samples: more than those whose median distance is the default bandwidth

Call = tuple[str, Callable[[], Any]]


def grid(title: str, function: Any, *arguments: Any, **options: Any) -> Iterator[Call]:
    """Yield a call for every combination of the options: lists and dictionaries hold alternatives, others are given."""
    choices = []
    for name, values in options.items():
        alternatives = values if isinstance(values, dict) else {str(value): value for value in _listed(values)}
        choices.append([(f"{name}={shown}", (name, value)) for shown, value in alternatives.items()])
    for combination in itertools.product(*choices):
        texts, pairs = [text for text, _ in combination], dict(pair for _, pair in combination)
        yield f"{title}({', '.join(texts)})", functools.partial(function, *arguments, **pairs)


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


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
        "Quantiles": (number, D.Quantiles([0.1, 0.5, 0.9], mean[:, None] + std[:, None] * np.array([-1.3, 0.0, 1.3]))),
        "Samples": (number, D.Samples(rng.normal(size=(n, 7)) + mean[:, None])),
        "Samples with weights": (number, D.Samples(rng.normal(size=(n, 3)) + mean[:, None], [0.2, 0.3, 0.5])),
        "Samples of vectors": (vector, D.Samples(rng.normal(size=(n, 4, 2)) + means[:, None])),
        "Poisson": (count, D.Poisson(rate)),
        "NegativeBinomial": (count, D.NegativeBinomial(rate, np.full(n, 0.4))),
        "Categorical": (y, D.Categorical(p)),
        "PowerExponential": (number, D.PowerExponential(mean, std, np.full(n, 1.4))),
        "StudentT": (number, D.StudentT(np.full(n, 5.0), mean, std)),
        "LogNormal": (np.exp(number), D.LogNormal(mean, std)),
        "Gamma": (rng.gamma(2.0, std), D.Gamma(np.full(n, 2.0), std)),
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
LENSES = {
    str(lens): lens
    for lens in (
        *(lenses.Canonical(), lenses.TopLabel(), lenses.TopK(3), lenses.ClassWise(2)),
        lenses.Groups([[0, 1, 2], [3, 4], [5, 6, 7, 8, 9]]),
    )
}
TESTS = [
    *(M.Adaptive(), M.Exact(), M.Exact(99), M.Spectrum(), M.Spectrum(5), M.Spectrum("all"), M.Multiplier(99)),
    *(M.Multiplier(99, multipliers="gaussian"), M.Bootstrap(99), M.Pearson(), M.Pearson(5), M.Gamma(), M.Block()),
    *(M.Block(4), M.Block(variance="second_moment"), M.Linear(), M.Linear(variance="second_moment")),
    *(M.DistributionFree(), M.DistributionFree(estimator="biased"), M.DistributionFree(bound=3.0), M.CME()),
    *(M.CME(reference="F"), M.CME(reference="chi2", locations=3), M.Consistency(n_resamples=49)),
    *(M.Consistency(n_resamples=19, estimator=name) for name in ("unbiased", "ucme", "block")),
]
FEW_TESTS = [M.Spectrum(), M.Exact(), M.Block(), M.CME()]
LARGE_TESTS = [*FEW_TESTS[:1], *FEW_TESTS[2:], M.Features(), M.Gamma(), M.Bootstrap(49), M.Exact(19)]
OF_FORECASTS = [M.Adaptive(), M.Exact(19), M.Spectrum(), M.Bootstrap(49), M.Block(), M.CME(locations=2)]


# --- The calls, by room.


def skce_calls() -> Iterator[Call]:
    skce = kcalib.skce.result
    for n, m in (*SIZES, (LARGE, 2), (LARGE, 10)):
        yield from grid(f"skce({n} x {m})", skce, *classes(n, m), estimator=["unbiased", "biased", "block", "linear"])
    for m in (2, 3, 12):
        yield from grid(f"skce(60 x {m})", skce, *saturated(60, m), kernel=kernels())
    for dtype, backend in (("float32", "cpu"), ("float64", "array-api"), ("float32", "array-api")):
        yield from grid("skce(60 x 5)", skce, *saturated(60, 5), kernel=kernels(), dtype=dtype, backend=backend)
    y, p = classes(200, 10)
    weight = {"uniform": np.random.default_rng(0).uniform(size=200)}
    matrices = {f"rank {rank}": target_matrix(10, rank) for rank in (1, 4, 10)}
    yield from grid("skce", skce, y, p, estimator=["unbiased", "biased"], sample_weight=weight)
    yield from grid("skce", skce, y, p, target_kernel=matrices, backend=["cpu", "array-api"])
    yield from grid("skce", skce, y, p, target_kernel=matrices, dtype="float32")
    yield from grid("skce", skce, y, p, estimator=[M.BlockEstimator(size) for size in (2, 7, 50, 100)])
    yield from grid("skce", skce, y, p, lens=LENSES, estimator=["unbiased", "block"])
    yield from grid("skce(logits)", skce, y, np.log(p), from_logits=True)
    y, p = classes(200, 2)
    binary = [K.Exponential(), K.Matern(nu=2.5)]
    yield from grid("skce(binary)", skce, y, p[:, 1], backend=["sorted", "cpu", "array-api"], kernel=binary)


def ucme_calls() -> Iterator[Call]:
    for n, m in SIZES:
        yield from grid(f"ucme({n} x {m})", kcalib.ucme.result, *classes(n, m), seed=[0, 1])
    y, p = classes(200, 3)
    yield from grid("ucme", kcalib.ucme.result, y, p, locations={"given": classes(5, 3)})
    yield from grid("ucme", kcalib.ucme.result, y, p, kernel=kernels(), locations=7, seed=3)
    for family in ("Normal", "Laplace", "Poisson", "MultivariateNormal"):
        yield from grid(f"ucme({family})", kcalib.ucme.result, *forecasts()[family], seed=0)


def with_interval(*arguments: Any, **options: Any) -> Any:
    """A test's result and its confidence interval, where it has one."""
    result = kcalib.calibration_test(*arguments, **options)
    try:
        return result, result.confidence_interval()
    except ValueError:
        return result


def test_calls() -> Iterator[Call]:
    for n, m in ((20, 2), (20, 3), (200, 2), (200, 10)):
        yield from grid(f"test({n} x {m})", with_interval, *classes(n, m), method=TESTS, seed=[0, 1])
    for m in (2, 3):
        yield from grid(f"test({LARGE} x {m})", with_interval, *classes(LARGE, m), method=LARGE_TESTS, seed=[0, 1])
    few = {"method": FEW_TESTS, "seed": 0}
    yield from grid("test(200 x 100)", with_interval, *classes(200, 100), **few)
    yield from grid("test(saturated)", with_interval, *saturated(200, 5), **few)
    y, p = classes(60, 4)
    yield from grid("test(60)", with_interval, y, p, dtype=["float32", "float64"], backend="array-api", **few)
    yield from grid("test(60)", with_interval, y, p, target_kernel={"matrix": target_matrix(4, 2)}, **few)
    some = {name: kernels()[name] for name in ("Gaussian()", "Matern(2.5)", "mixed")}
    yield from grid("test(60)", with_interval, y, p, kernel=some, **few)
    yield from grid("test", with_interval, *classes(200, 10), lens=LENSES, **few)
    for family, data in forecasts().items():
        slow = family in ("Dirichlet", "Samples of vectors", "Ensemble")
        methods = [M.Spectrum(), M.Block()] if slow else OF_FORECASTS
        yield from grid(f"test({family})", with_interval, *data, method=methods, seed=0)


def compare_calls() -> Iterator[Call]:
    def models(n: int, m: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        y, p = classes(n, m)
        return y, {"a": p, "b": _softmax(0.7 * np.log(p)), "c": classes(n, m, seed=2)[1]}

    metrics = [
        "skce",
        "ckce",
        "ece",
        "brier_score",
        "log_loss",
        M.ECE(n_bins=7, n_resamples=199),
        M.CKCE(regularization=0.03),
    ]
    for n, m in ((20, 2), (60, 3), (200, 10)):
        yield from grid(f"compare({n} x {m})", kcalib.compare, *models(n, m), metric=metrics, seed=[0, 5])
    yield from grid("compare", kcalib.compare, *models(200, 10), metric=metrics[:4], lens=LENSES, confidence_level=0.9)
    yield from grid("compare(large)", kcalib.compare, *models(LARGE, 3))
    target, normal = forecasts()["Normal"]
    of_targets = {"normal": normal, "laplace": forecasts()["Laplace"][1], "mixture": forecasts()["Mixture"][1]}
    yield from grid("compare(forecasts)", kcalib.compare, target, of_targets, metric=["skce", "crps", "log_score"])


def ckce_calls() -> Iterator[Call]:
    ckce, jkce = kcalib.ckce.result, kcalib.jkce.result
    methods = ["auto", "cholesky", "cg", "nystrom", "pivoted_cholesky", "fourier"]
    for n, m in ((20, 2), (20, 3), (200, 2), (200, 3), (200, 10)):
        yield from grid(f"ckce({n} x {m})", ckce, *classes(n, m), method=methods)
        yield from grid(f"jkce({n} x {m})", jkce, *classes(n, m), estimator=["unbiased", "biased"])
    y, p = classes(200, 10)
    with_options = [
        *(M.ConjugateGradient(tol=1e-4, seed=3), M.ConjugateGradient(rank=10, seed=3), M.Cholesky(tol=1e-4)),
        *(M.Nystrom(n_landmarks=30, seed=3), M.PivotedCholesky(rank=30, seed=3), M.Fourier(n_features=20, seed=3)),
    ]
    yield from grid("ckce", ckce, y, p, method=with_options)
    some = {name: kernels()[name] for name in ("Gaussian()", "Linear()", "Exponential()", "Matern(2.5)", "mixed")}
    for m in (2, 4):
        yield from grid(f"ckce(150 x {m})", ckce, *classes(150, m), kernel=some, method=["auto", "cg"])
    yield from grid("ckce", ckce, y, p, regularization=0.01)
    yield from grid("ckce", ckce, y, p, target_kernel={"matrix": target_matrix(10, 3)})
    yield from grid("ckce", ckce, y, p, dtype="float32", method=["cholesky", "cg"])
    yield from grid("ckce", ckce, y, p, backend="array-api")
    for name, function in (("ckce", ckce), ("jkce", jkce)):
        yield from grid(name, function, y, p, lens=LENSES)
        for family in ("Normal", "Laplace", "Samples", "Poisson"):
            yield from grid(f"{name}({family})", function, *forecasts()[family])
    yield from grid("ckce(1500 samples)", ckce, *classes(1500, 5))


def evaluate_calls() -> Iterator[Call]:
    for n, m in (*SIZES, (LARGE, 2), (LARGE, 3)):
        yield from grid(f"evaluate({n} x {m})", kcalib.evaluate, *classes(n, m), method=["adaptive", "exact"])
    y, p = classes(200, 10)
    yield from grid("evaluate", kcalib.evaluate, y, p, method=["spectrum", "block", "bootstrap"], seed=4)
    yield from grid("evaluate", kcalib.evaluate, y, p, lens=LENSES, method="exact")
    yield from grid("evaluate(saturated)", kcalib.evaluate, *saturated(200, 5), method="exact")
    for family, data in forecasts().items():
        if family not in ("Categorical", "Dirichlet"):
            yield from grid(f"evaluate({family})", kcalib.evaluate, *data, method="exact")


def distribution_calls() -> Iterator[Call]:
    skce, draws = kcalib.skce.result, target_kernels.Draws(n_draws=16, seed=1)
    for family, (y, prediction) in forecasts().items():
        yield from grid(f"skce({family})", skce, y, prediction, estimator=["unbiased", "biased", "block"])
        targets = [draws] if family == "Categorical" else [draws, K.Gaussian(0.7), K.Exponential(0.7)]
        yield from grid(f"skce({family})", skce, y, prediction, target_kernel=targets)
        if family != "Categorical":
            yield from grid(f"skce({family})", skce, y, prediction, backend="array-api")
        metrics = (K.MMD(), K.MMD(bandwidth=0.8), K.MixtureWasserstein())
        yield from grid(f"skce({family})", skce, y, prediction, kernel=[K.Exponential(metric=one) for one in metrics])
        yield from grid(f"{family}.sample", prediction.sample, 5, seed=2)
        yield from grid(f"{family}.quasi_sample", prediction.quasi_sample, 5, seed=2)
        of_targets = (
            kcalib.crps,
            kcalib.log_score,
            kcalib.pinball_loss,
            kcalib.pit_values,
            kcalib.quantile_calibration,
        )
        for function in of_targets if family in ONE_DIMENSION else of_targets[:2]:
            yield from grid(f"{function.__name__}({family})", function, y, prediction)
        for name, argument in (("log_density", y), ("cdf", y), ("quantile", np.linspace(0.05, 0.95, 40))):
            if hasattr(prediction, name):
                yield from grid(f"{family}.{name}", getattr(prediction, name), argument)
        for name in ("expected_value", "standard_deviation"):
            yield from grid(f"{family}.{name}", getattr(prediction, name))
        yield from grid(f"mmd_distance({family})", D.mmd_distance, prediction, bandwidth=0.9)
        yield from grid(f"wasserstein_distance({family})", D.wasserstein_distance, prediction, order=[1, 2])
    matrix = target_kernels.MahalanobisGaussian(np.array([[2.0, 0.3], [0.3, 1.0]]))
    yield from grid("skce(Mahalanobis)", skce, *forecasts()["MultivariateNormal"], target_kernel=matrix)
    yield from grid("skce(SciPy)", skce, forecasts()["Normal"][0], scipy.stats.norm(np.arange(40) / 20, 1.5))


def binned_calls() -> Iterator[Call]:
    norms, binnings = ["l1", "l2", "max"], ["uniform", "equal_mass"]
    for n, m in ((20, 2), (200, 3), (200, 10), (LARGE, 10)):
        data = classes(n, m)
        for name in ("top_label_ece", "class_wise_ece"):
            function = getattr(kcalib, name).result
            yield from grid(f"{name}({n} x {m})", function, *data, norm=norms, binning=binnings, n_bins=9)
        canonical = functools.partial(grid, f"canonical_ece({n} x {m})", kcalib.canonical_ece.result, *data, norm=norms)
        yield from canonical(n_bins=4)
        yield from canonical(binning="median_variance", n_bins=10, min_bin_size=10)
        notions = ["top_label", "class_wise"]
        yield from grid(f"debiased_ece({n} x {m})", kcalib.debiased_ece.result, *data, notion=notions, n_bins=5)
        yield from grid(f"mmce({n} x {m})", kcalib.mmce.result, *data, estimator=["biased", "unbiased"])
        yield from grid(f"log_loss({n} x {m})", kcalib.log_loss, *data)
        yield from grid(f"brier_score({n} x {m})", kcalib.brier_score, *data, scale_by_half=[True, False])
        decomposition = functools.partial(grid, f"brier_decomposition({n} x {m})", kcalib.brier_decomposition, *data)
        yield from decomposition(binning=[*binnings, "isotonic"])
        yield from decomposition(grouping="canonical", n_bins=3)
        reliability = functools.partial(grid, f"reliability({n} x {m})", kcalib.reliability, *data)
        yield from reliability(binning=binnings, simultaneous=[False, True], bands="both")
        yield from reliability(binning="isotonic", bands="consistency", seed=0)
    y, p = classes(200, 10)
    weight = {"uniform": np.random.default_rng(0).uniform(size=200)}
    for name in ("top_label_ece", "class_wise_ece", "canonical_ece", "brier_score", "log_loss", "brier_decomposition"):
        for options in ({}, {"sample_weight": weight}, {"lens": lenses.TopLabel()}):
            yield from grid(name, getattr(kcalib, name), y, p, **options)
    yield from grid("top_label_ece", kcalib.top_label_ece.result, y, p, n_bins="risk")
    yield from grid("mmce", kcalib.mmce.result, y, p, sample_weight=weight)
    yield from grid("mmce", kcalib.mmce.result, y, p, kernel=K.Gaussian(bandwidth=0.2))
    yield from grid("reliability", kcalib.reliability, y, p, sample_weight=weight, seed=0)


def regression_calls() -> Iterator[Call]:
    def fitted(estimator: Any, y: Any, p: Any, other_y: Any, other_p: Any) -> Any:
        function = estimator.clone().fit(y, p)
        return function.h(other_p), function.risk(other_y, other_p), function.squared_error(other_p)

    for m in (2, 3, 10):
        y, p = classes(120, m)
        for estimator in (
            *(
                regression.KKR(0.01),
                regression.KKR(),
                regression.UKKR(0.01),
                regression.KKR(0.1, kernel=kernels()["mixed"]),
            ),
            *(regression.BinnedCalibration(5), regression.BinnedCalibration(5, binning="equal_mass")),
            *(regression.DirichletKDE(), regression.DirichletKDE(0.1, orientation="query")),
            regression.TemperatureCalibration(),
        ):
            yield from grid(f"{estimator}, {m} classes", fitted, estimator, y, p, *classes(50, m, seed=7))
        kde = kcalib.kde_calibration_error.result
        yield from grid(f"kde_calibration_error({m})", kde, y, p, bandwidth=["likelihood", 0.05], norm=["l1", "l2"])
        names = ["temperature", "kkr", "ukkr", "kde"]
        yield from grid(f"squared_calibration_error({m})", kcalib.squared_calibration_error, y, p, estimators=names)
    y, p = classes(150, 3)
    yield from grid("squared_calibration_error", kcalib.squared_calibration_error, y, p, seed=2)
    lens = lenses.TopLabel()
    yield from grid("squared_calibration_error", kcalib.squared_calibration_error, y, p, lens=lens, n_folds=3)


def recalibration_calls() -> Iterator[Call]:
    def fitted(y: Any, p: Any, criterion: str) -> Any:
        scaling = recalibration.TemperatureScaling(criterion=criterion, floor=1e-6).fit(y, p)
        found = {name: value for name, value in sorted(vars(scaling).items()) if name.endswith("_")}
        return found, scaling.transform(p)

    for m in (2, 3, 10):
        yield from grid(f"TemperatureScaling({m} classes)", fitted, *classes(120, m), criterion=["likelihood", "skce"])


def solver_calls() -> Iterator[Call]:
    methods = [*("auto", "cholesky", "cg", M.ConjugateGradient(rank=10), M.ConjugateGradient(products="float32"))]
    some = (K.Exponential(0.5), K.Gaussian(0.4), K.Linear() + K.Gaussian(0.4), K.Matern(1.0, nu=2.5))
    right = np.random.default_rng(0).normal(size=(150, 3))
    for m, kernel in itertools.product((2, 4), some):
        backend = solvers.kernel_operator(classes(150, m)[1], kernel)
        yield from grid(f"matmul({kernel}, {m})", backend.matmul, right)
        yield from grid(f"tile({kernel}, {m})", backend.tile, np.arange(5), np.arange(9))
        yield from grid(f"solve({kernel}, {m})", solvers.solve, backend, right, 5.0, method=methods)
        pivoting = ["random", "greedy"]
        yield from grid(f"pivoted({kernel}, {m})", solvers.pivoted_cholesky, backend, 20, pivoting=pivoting, seed=1)
    rng = np.random.default_rng(4)
    left, second = rng.normal(size=(12, 12)), rng.normal(size=(5, 5))
    symmetric = left @ left.T
    pairs = (symmetric, second @ second.T), (left + 9 * np.eye(12), second), (symmetric, None)
    for name, pair in zip(("symmetric", "general", "one"), pairs, strict=True):
        right = rng.normal(size=(12, 12 if pair[1] is None else 5))
        yield from grid(f"kronecker({name})", solvers.kronecker(*pair).solve, right, 0.7)


def law_calls() -> Iterator[Call]:
    x = np.array([-3.0, -0.4, 0.0, 0.5, 2.0, 10.0, 40.0])
    q = np.array([1e-12, 0.01, 0.3, 0.5, 0.99])
    mixtures = [([0.5, 0.3, 0.2],), ([0.5, -0.3, 0.2], 0.1), (1.0 / np.arange(1, 101),)]
    found = {f"mixture {k}": laws.ChiSquareMixture(*one) for k, one in enumerate(mixtures)}
    found["with degrees"] = laws.ChiSquareMixture([0.5, 0.1], degrees_of_freedom=[1.0, 7.5])
    for skewness, kurtosis in ((0.2, 2.5), (1.0, 4.5), (2.0, 9.5), (0.5, 4.5)):
        found[f"Pearson {skewness}"] = laws.PearsonCurve(0.0, 1.0, skewness, kurtosis)
    for name, law in found.items():
        for function, argument in (("cdf", x), ("sf", x), ("logcdf", x), ("logsf", x), ("ppf", q), ("isf", q)):
            yield from grid(f"{name}.{function}", getattr(law, function), argument)
        if hasattr(law, "rvs"):
            yield from grid(f"{name}.rvs", law.rvs, 10, 3)


def bandwidth_calls() -> Iterator[Call]:
    for n, m in (*SIZES, (LARGE, 2), (LARGE, 10)):
        _, p = classes(n, m)
        metrics = ["euclidean", "cityblock"]
        yield from grid(f"median({n} x {m})", kcalib.bandwidth.median_distance, p, metric=metrics, seed=[0, 1])
        if n <= 200:
            some = {name: kernels()[name] for name in ("Exponential()", "Linear()", "mixed")}
            yield from grid(f"smallest_eigenvalue({n} x {m})", kcalib.smallest_eigenvalue, p, kernel=some)


ROOMS = (
    *(skce_calls, ucme_calls, test_calls, compare_calls, ckce_calls, evaluate_calls, distribution_calls, binned_calls),
    *(regression_calls, recalibration_calls, solver_calls, law_calls, bandwidth_calls),
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
    found = answers()
    numbers_found = sum(len(entry) for entry in found.values())
    errors = [f"{name}: {entry['error']}" for name, entry in found.items() if "error" in entry]
    print(f"kcalib {kcalib.__version__} at {kcalib.__file__}: {len(found)} calls, {numbers_found} numbers")
    if arguments.save:
        with open(arguments.save, "w") as file:
            json.dump(found, file, indent=0)
        print(f"{len(errors)} of the calls are refused, as some families of distributions have to", *errors, sep="\n  ")
        return 0
    with open(arguments.compare) as file:
        before = json.load(file)
    different = list(differences(before, found, arguments.tolerance))
    new = sum(len(found[name].keys() - before[name].keys()) for name in before if name in found)
    print(*different, sep="\n")
    print(f"{len(different)} of {sum(map(len, before.values()))} numbers differ; {new} are new")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
