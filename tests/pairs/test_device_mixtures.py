"""Predicted distributions on a GPU, by the public functions: the cuda backend, the numbers of NumPy, nothing copied.

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
from kcalib._backend.random import Weights
from kcalib._input.forecasts import prepare
from kcalib._packing import pack
from kcalib._packing.finite_rank import finite_rank_features
from kcalib._pairs.backends.array_api import ArrayApiBackend
from kcalib._pairs.backends.cuda import CudaBackend
from kcalib._pairs.problem import Factor, PairProblem, Side, Term
from kcalib._pairs.reductions import DenseRectangle, QuadraticForms, sweep_one
from kcalib.distributions import Distribution, Ensemble, Laplace, Mixture, MultivariateNormal, Normal, Poisson, Samples

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
    "draws": (lambda x, a: (a(x.y), Normal(a(x.mean), a(x.std))), WASSERSTEIN, TK.Draws(kernel=GAUSSIAN, n_draws=8)),
    "poisson": (lambda x, a: (a(np.floor(x.std)), Poisson(a(x.std))), WASSERSTEIN, GAUSSIAN),
}
FEATURES = 30  # of these target kernels, at most; the pivots' matrix is on the host for a moment
ALWAYS = ("normal", "mixture", "samples")  # the others are compiled for some seconds each


@pytest.mark.parametrize("name", [pytest.param(c, marks=[] if c in ALWAYS else pytest.mark.slow) for c in CASES])
def test_skce(cupy, name):
    predicted, kernel, target_kernel = CASES[name]
    options = {"kernel": kernel, "target_kernel": target_kernel}
    expected = kcalib.skce.result(*predicted(numbers(), np.asarray), **options)
    y, prediction = predicted(numbers(), cupy.asarray)
    with emulated_cupy.stays_on_device(at_most=FEATURES**2 if "features" in expected.target_factor else N - 1):
        found = kcalib.skce.result(y, prediction, **options)
    assert found.backend == "cuda"
    assert found.target_factor.partition(", error")[0] == expected.target_factor.partition(", error")[0]
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-11)


@pytest.mark.slow
def test_float32(cupy):
    """Entries to 2e-5, as in test_mixture_backends.py, and the sums of these in float64."""
    predicted, kernel, target_kernel = CASES["normal"]
    options = {"kernel": kernel, "target_kernel": target_kernel}
    expected = kcalib.skce(*predicted(numbers(), np.asarray), **options)
    found = kcalib.skce(*predicted(numbers(), cupy.asarray), dtype="float32", **options)
    assert found == pytest.approx(expected, abs=2e-5)


@pytest.mark.grid
def test_covariances_of_many_dimensions_are_the_generic_operators_on_the_gpu(cupy):
    """Array operations, as on the CPU."""
    n, d, rng = 60, 17, np.random.default_rng(1)
    means, roots = rng.normal(size=(n, d)), 0.2 * rng.normal(size=(n, d, d))
    arrays = means + rng.normal(size=(n, d)), means, roots @ np.swapaxes(roots, 1, 2) + 0.1 * np.eye(d)
    kernel = K.Exponential(bandwidth=0.5, metric=K.MMD(9.0))
    options = {"kernel": kernel, "target_kernel": K.Gaussian(bandwidth=9.0)}
    expected = kcalib.skce.result(arrays[0], MultivariateNormal(*arrays[1:]), **options)
    y, means, covariances = (cupy.asarray(array) for array in arrays)
    predictions = MultivariateNormal(means, covariances)
    with emulated_cupy.stays_on_device(at_most=n - 1):
        found = kcalib.skce.result(y, predictions, **options)
    assert found.backend == expected.backend == "array-api"
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    weights = Weights("rademacher", n, 7, 5)
    forms = [
        ArrayApiBackend(pack(prepare(*each), kernel, options["target_kernel"]).problem)
        for each in ((arrays[0], MultivariateNormal(*arrays[1:])), (y, predictions))
    ]
    np.testing.assert_allclose(
        sweep_one(forms[1], QuadraticForms(weights)).get(), sweep_one(forms[0], QuadraticForms(weights)), rtol=1e-11
    )
    with pytest.raises(ValueError, match="backend='cuda' cannot take this problem: normals with full covariances"):
        kcalib.skce.result(y, predictions, backend="cuda", **options)


@pytest.mark.parametrize("kernel", [GAUSSIAN, K.Exponential(bandwidth=2.0)], ids=str)
def test_target_features(cupy, kernel):
    """Other pivots may be taken where residuals are equal but for rounding: factors agree within both bounds."""
    x = numbers()
    y, atoms = x.y[:, None], x.samples[:, :, None]
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=N)
    expected = finite_rank_features(y, atoms, weights, kernel.terms(), max_rank=300)
    with emulated_cupy.stays_on_device(at_most=300**2):
        found = finite_rank_features(*(cupy.asarray(a) for a in (y, atoms, weights)), kernel.terms(), max_rank=300)
    assert found.exact == expected.exact == (kernel is GAUSSIAN)
    features, bounds, means = (a.get() for a in (found.features, found.row_bounds, found.means))
    difference = np.abs(features @ features.T - expected.features @ expected.features.T)
    assert (difference <= np.outer(bounds, bounds) + np.outer(expected.row_bounds, expected.row_bounds)).all()
    assert found.error_bound == pytest.approx(expected.error_bound, rel=0.5)
    assert means.shape == features.shape
    new = np.array([[0.3], [100.0]])
    phi, errors = found.map.points(cupy.asarray(new))
    own = np.sum(phi.get() ** 2, axis=1)
    assert (np.abs(own - 1) <= errors.get() ** 2 + 1e-12).all()


class TestTable:
    kernel = (Term(1.0, (Factor("exponential", "table", 0.7),)),)

    def problem(self, cupy: Any, table: Any, at: np.ndarray) -> PairProblem:
        positions, features = cupy.asarray(at[:, None].astype(np.float64)), cupy.ones((len(at), 1))
        return PairProblem(Side(positions, features), None, self.kernel, table=table)

    def table(self) -> np.ndarray:
        places = np.random.default_rng(0).normal(size=(80, 2))
        return np.sqrt(np.sum((places[:, None] - places) ** 2, axis=2))

    def test_of_a_device_stays_there(self, cupy):
        table, at = self.table(), np.random.default_rng(1).integers(80, size=100)
        problem = self.problem(cupy, cupy.asarray(table), at)
        with emulated_cupy.stays_on_device():
            found = sweep_one(CudaBackend(problem), DenseRectangle())
            generic = sweep_one(ArrayApiBackend(problem), DenseRectangle())
        expected = np.exp(-0.7 * table[np.ix_(at, at)])
        np.testing.assert_allclose(found.get(), expected, rtol=1e-14)
        np.testing.assert_allclose(generic.get(), expected, rtol=1e-14)
        np.testing.assert_allclose(
            sweep_one(ArrayApiBackend(self.problem(cupy, table, at)), DenseRectangle()).get(), expected, rtol=1e-14
        )

    def test_positions_are_checked(self, cupy):
        with pytest.raises(ValueError, match=r"positions in the table are 0\.0 to 80\.0, expected 0 to 79"):
            CudaBackend(self.problem(cupy, cupy.asarray(self.table()), np.arange(81)))

    def test_too_large_for_the_device(self, emulation):
        with (
            emulated_cupy.memory_limit(emulated_cupy.used_bytes(0) + 40_000),
            pytest.raises(MemoryError, match=r"distances of 80 and 80 predictions take .* on GPU 0.*metric='mmd'"),
        ):
            CudaBackend(self.problem(emulation, self.table(), np.arange(80)))
