"""Predicted distributions on a GPU, by the public functions: the cuda operator, the numbers of NumPy, nothing copied.

Each estimate is compared with that of NumPy arrays, which other tests compare with textbook definitions. An estimate
is a mean of entries of size about 1 that cancel down to 1e-3 or so: 1e-12 of it is some 1e-15 of the entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import emulated_cupy
import numpy as np
import pytest

import kcalib
from kcalib import kernels as K
from kcalib import target_kernels as TK
from kcalib._dispatch import operator_for
from kcalib._operators.cuda import CudaOperator
from kcalib._problem import Factor, Mixtures, PairProblem, Side, Term
from kcalib._target_features import target_features
from kcalib.distributions import (
    Categorical,
    Distribution,
    Ensemble,
    Laplace,
    Mixture,
    MultivariateNormal,
    Normal,
    Poisson,
    Samples,
)

N = 150  # three tiles of rows, the last ragged
ALL = slice(None)


@dataclass
class Numbers:
    """Targets and parameters of predictions, on the host."""

    y: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    pairs: np.ndarray  # targets of two entries
    means: np.ndarray
    covariances: np.ndarray
    weights: np.ndarray
    samples: np.ndarray


def numbers(n: int = N) -> Numbers:
    rng = np.random.default_rng(0)
    mean, std, means = rng.normal(size=n), np.exp(0.3 * rng.normal(size=n)), rng.normal(size=(n, 2))
    roots = rng.normal(size=(n, 2, 2))
    return Numbers(
        mean + std * rng.normal(size=n),
        mean,
        std,
        means + rng.normal(size=(n, 2)),
        means,
        roots @ np.swapaxes(roots, 1, 2) + 0.1 * np.eye(2),
        rng.dirichlet(np.ones(2), size=n),
        mean[:, None] + std[:, None] * rng.normal(size=(n, 5)),
    )


WASSERSTEIN = K.Exponential(bandwidth=1.0, metric="wasserstein")
MMD = K.Exponential(bandwidth=1.0, metric=K.MMD(2.0))
GAUSSIAN = K.Gaussian(bandwidth=3.0)
Convert = Callable[[np.ndarray], Any]
Case = tuple[Callable[[Numbers, Convert], tuple[Any, Distribution]], K.Kernel, Any]


def _mixture(x: Numbers, a: Convert) -> tuple[Any, Distribution]:
    return a(x.y), Mixture(a(x.weights), [Normal(a(x.mean), a(x.std)), Normal(a(x.mean + 1), a(2 * x.std))])


CASES: dict[str, Case] = {
    "normal": (lambda x, a: (a(x.y), Normal(a(x.mean), a(x.std))), WASSERSTEIN, GAUSSIAN),
    "normal-parameters": (lambda x, a: (a(x.y), Normal(a(x.mean), a(x.std))), K.Gaussian(bandwidth=1.0), GAUSSIAN),
    "normal-vectors": (lambda x, a: (a(x.pairs), Normal(a(x.means), a(np.ones_like(x.means)))), WASSERSTEIN, GAUSSIAN),
    "multivariate": (lambda x, a: (a(x.pairs), MultivariateNormal(a(x.means), a(x.covariances))), MMD, GAUSSIAN),
    "mahalanobis": (
        lambda x, a: (a(x.pairs), MultivariateNormal(a(x.means), a(x.covariances))),
        MMD,
        TK.MahalanobisGaussian([[1.0, 0.3], [0.3, 2.0]]),
    ),
    "laplace": (lambda x, a: (a(x.y), Laplace(a(x.mean), a(x.std))), WASSERSTEIN, K.Exponential(bandwidth=1.0)),
    "mixture": (_mixture, MMD, GAUSSIAN),
    "ensemble": (
        lambda x, a: (a(x.y), Ensemble([Normal(a(x.mean), a(x.std)), Normal(a(x.mean + 1), a(2 * x.std))])),
        MMD,
        GAUSSIAN,
    ),
    "samples": (lambda x, a: (a(x.y), Samples(a(x.samples))), WASSERSTEIN, GAUSSIAN),
    "samples-mmd": (lambda x, a: (a(x.y), Samples(a(x.samples))), MMD, GAUSSIAN),
    "few-samples": (lambda x, a: (a(x.y), Samples(a(x.samples[:, :3]))), MMD, K.Exponential(bandwidth=1.0)),
    "draws": (
        lambda x, a: (a(x.y), Normal(a(x.mean), a(x.std))),
        WASSERSTEIN,
        TK.Draws(kernel=GAUSSIAN, n_draws=8),
    ),
    "poisson": (lambda x, a: (a(np.floor(x.std)), Poisson(a(x.std))), WASSERSTEIN, GAUSSIAN),
}
FEATURES = 30  # of these target kernels, at most; the pivots' matrix is on the host for a moment
ALWAYS = ("normal", "mixture", "samples")  # the others are compiled for some seconds each


@pytest.mark.parametrize("name", [pytest.param(c, marks=[] if c in ALWAYS else pytest.mark.slow) for c in CASES])
def test_skce(cupy, name):
    predicted, kernel, target_kernel = CASES[name]
    options = {"kernel": kernel, "target_kernel": target_kernel, "full_output": True}
    expected = kcalib.skce(*predicted(numbers(), np.asarray), **options)
    y, prediction = predicted(numbers(), cupy.asarray)
    with emulated_cupy.stays_on_device(at_most=FEATURES**2 if "features" in expected.target_factor else N - 1):
        found = kcalib.skce(y, prediction, **options)
    assert found.operator == "cuda"
    assert found.target_factor.partition(", error")[0] == expected.target_factor.partition(", error")[0]
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-11)
