"""The certified lower bound of the calibration error: its inequality, its eigenvalue, what it leaves of the truth."""

from __future__ import annotations

import numpy as np
import pytest
from problems import (
    DEFINITE_KERNELS,
    KERNELS,
    binomial_bounds,
    duplicates_problem,
    on_a_grid,
    psd_matrix,
    softmax_problem,
)
from scipy.spatial.distance import cdist

import kcalib
from kcalib import _packing
from kcalib._input.forecasts import prepare
from kcalib._packing.features import feature_problem
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.feature_sums import feature_rows
from kcalib.distributions import Normal, Poisson, Samples
from kcalib.estimators import rms_bound
from kcalib.estimators.rms_bound import MeanEigenvalue, NoBoundError
from kcalib.kernels import Cosine, Exponential, Gaussian, Kernel, Linear


def problem_of(y, prediction, kernel: Kernel | None = None, target_kernel=None):
    data = prepare(y, prediction, threads=1)
    packed = _packing.pack(data, kernel, target_kernel, threads=1)
    return data, packed, backend_for(packed.problem, threads=1)


def eigenvalue_of(y, prediction, kernel: Kernel | None = None) -> MeanEigenvalue:
    return rms_bound.mean_eigenvalue(*problem_of(y, prediction, kernel))


def literal_eigenvalue(p: np.ndarray, kernel: Kernel) -> float:
    """Of the matrix whose entries an estimator of the package gives: residuals of a binary problem that are known."""
    n = len(p)
    matrix = np.eye(n)
    e = np.eye(p.shape[1])[0] - p
    for i in range(n):
        for j in range(n):
            value = kcalib.skce([0, 0], p[[i, j]], kernel=kernel) if i != j else None
            own = kcalib.skce([0], p[[i]], kernel=kernel, estimator="biased") if i == j else None
            matrix[i, j] = (value if own is None else own) / (e[i] @ e[j])
    return float(np.linalg.eigvalsh(matrix / n)[-1])


@pytest.mark.parametrize("name", DEFINITE_KERNELS)
@pytest.mark.parametrize("m", [2, pytest.param(4, marks=pytest.mark.grid)])
def test_the_largest_eigenvalue(name, m):
    y, p = softmax_problem(25, m) if m > 2 else on_a_grid(25)
    p = np.clip(p, 1e-6, 1) / np.clip(p, 1e-6, 1).sum(axis=1, keepdims=True)
    found = eigenvalue_of(y, p, KERNELS[name])
    true = literal_eigenvalue(p, KERNELS[name])
    assert true * (1 - 1e-9) <= found.value <= min(found.supremum, true * (1 + 2e-3))
    assert found.n_samples == 25
    assert found.supremum == sum(term.coefficient for term in KERNELS[name].terms())


@pytest.mark.parametrize("problem", [duplicates_problem(300, 5), on_a_grid(300), softmax_problem(300, 20, scale=40.0)])
def test_the_largest_eigenvalue_of_ties_and_saturated_rows(problem):
    y, p = problem
    kernel = Exponential(bandwidth=0.4)
    true = np.linalg.eigvalsh(np.exp(-cdist(p, p) / 0.4) / 300)[-1]
    assert true * (1 - 1e-9) <= eigenvalue_of(y, p, kernel).value <= true * (1 + 2e-3)


def test_kernels_with_negative_entries_have_a_larger_one():
    y, p = on_a_grid(200)
    kernel = np.cos(np.pi * cdist(p, p) / 0.7)
    true = np.linalg.eigvalsh(kernel / 200)[-1]
    found = eigenvalue_of(y, p, Cosine(bandwidth=0.7)).value
    assert true <= found == pytest.approx(np.linalg.norm(kernel) / 200, rel=1e-9)


def test_many_samples_are_seen_in_part(monkeypatch):
    y, p = softmax_problem(400, 4)
    monkeypatch.setattr(rms_bound, "WORK", 16 * 100**2)
    data, packed, backend = problem_of(y, p, Exponential(bandwidth=0.5))
    found = rms_bound.mean_eigenvalue(data, packed, backend)
    some = p[np.random.default_rng(rms_bound.SEED).permutation(400)[:100]]
    true = np.linalg.eigvalsh(np.exp(-cdist(some, some) / 0.5) / 100)[-1]
    assert found.n_samples == 100 and true * (1 - 1e-9) <= found.value <= true * (1 + 2e-3)
    assert found.upper_limit(0.01) > eigenvalue_of(y[:100], p[:100], Exponential(bandwidth=0.5)).value
    # On a line products take little time.
    assert eigenvalue_of(*on_a_grid(2000)).n_samples == 2000


@pytest.mark.parametrize(("bandwidth", "risk"), [(0.5, 0.2), (0.05, 0.2), (0.005, 0.5)])
def test_upper_limits_of_the_mean_eigenvalue(bandwidth, risk):
    """Of samples of a large population; the smaller of two inequalities holds, too."""
    rng = np.random.default_rng(1)
    population = rng.dirichlet(np.ones(3), size=600)
    kernel = np.exp(-cdist(population, population) / bandwidth)
    true, missed = np.linalg.eigvalsh(kernel / 600)[-1], 0
    for _ in range(200):
        rows = rng.integers(600, size=40)
        value = np.linalg.eigvalsh(kernel[np.ix_(rows, rows)] / 40)[-1]
        missed += MeanEigenvalue(float(value), 1.0, 40).upper_limit(risk) < true
    assert missed / 200 <= binomial_bounds(200, risk)[1]
    found = MeanEigenvalue(0.01, 1.0, 10**6)
    assert (
        found.upper_limit(0.01) < 0.01 + np.sqrt(np.log(100) / 2e6)
        and MeanEigenvalue(0.9, 1.0, 5).upper_limit(0.01) == 1
    )


@pytest.mark.parametrize("target", [None, psd_matrix(4, 4), psd_matrix(4, 2, seed=3), np.diag([1.0, 3.0, 0.0, 2.0])])
def test_squared_diameters(target):
    """|e|^2 <= D tv^2, with equality for some e."""
    y, p = softmax_problem(10, 4)
    data, packed, _ = problem_of(y, p, target_kernel=target)
    diameter = rms_bound.squared_diameter(data, packed)
    matrix = np.eye(4) if target is None else target
    rng = np.random.default_rng(0)
    e = rng.dirichlet(np.full(4, 0.3), size=2000) - rng.dirichlet(np.full(4, 0.3), size=2000)
    ratio = np.einsum("ij,jk,ik->i", e, matrix, e) / (np.abs(e).sum(axis=1) / 2) ** 2
    assert ratio.max() <= diameter * (1 + 1e-9) and ratio.max() >= 0.95 * diameter


def test_squared_diameters_of_distributions():
    y = np.array([0.0, 1.0, 2.0, 4.0])
    for target, diameter in ((Gaussian(bandwidth=1.0), 2.0), (3 * Gaussian(bandwidth=2.0), 6.0)):
        data, packed, _ = problem_of(y, Normal(y, np.ones(4)), target_kernel=target)
        assert rms_bound.squared_diameter(data, packed) == diameter
    data, packed, _ = problem_of(y, Poisson(y + 1), target_kernel="delta")
    assert rms_bound.squared_diameter(data, packed) == 2.0


def test_unbounded_kernels_and_draws_have_no_bound():
    y = np.linspace(0.0, 5.0, 12)
    members = Samples(y[:, None] + np.linspace(-1.0, 1.0, 4))
    data, packed, _ = problem_of(y, members, target_kernel=Linear())
    with pytest.raises(NoBoundError, match=r"the target kernel Linear\(\) is not bounded"):
        rms_bound.squared_diameter(data, packed)
    draws = kcalib.target_kernels.Draws(Gaussian(bandwidth=1.0))
    data, packed, _ = problem_of(y, Normal(y, np.ones(12)), target_kernel=draws)
    with pytest.raises(NoBoundError, match="draws represent the predictions"):
        rms_bound.squared_diameter(data, packed)
    problem = problem_of(y, Normal(y, np.ones(12)), kernel=Linear())
    with pytest.raises(NoBoundError, match=r"the kernel Linear\(\) has no known supremum"):
        rms_bound.mean_eigenvalue(*problem)


def test_indefinite_kernels_have_no_bound():
    y, p = softmax_problem(20, 4)
    with pytest.warns(kcalib.IndefiniteKernelWarning):
        problem = problem_of(y, p, Cosine(bandwidth=0.7))
    with pytest.raises(NoBoundError, match="is not known to be positive definite"):
        rms_bound.mean_eigenvalue(*problem)


@pytest.mark.parametrize("kernel", [Exponential(bandwidth=0.4), Linear(), 0.5 * Linear() + 2 * Gaussian(bandwidth=0.3)])
def test_the_eigenvalue_of_a_feature_kernel(kernel, monkeypatch):
    y, p = softmax_problem(300, 4)
    data = prepare(y, p, threads=1)
    problem = feature_problem(data, kernel, None, n_columns=64, seed=3)
    phi = feature_rows(problem.map, p)
    matrix = phi @ phi.T
    found = rms_bound.feature_eigenvalue(problem)
    assert found.value == pytest.approx(np.linalg.eigvalsh(matrix / 300)[-1], rel=1e-9) and found.n_samples == 300
    corners = feature_rows(problem.map, np.eye(4))
    assert max(np.max(np.diagonal(matrix)), np.max(np.sum(corners**2, axis=1))) <= found.supremum * (1 + 1e-12)
    monkeypatch.setattr(rms_bound, "MOST_WITH_FEATURES", 100)
    monkeypatch.setattr(rms_bound, "ROWS", 30)
    some = np.random.default_rng(rms_bound.SEED).permutation(300)[:100]
    found = rms_bound.feature_eigenvalue(problem)
    assert found.value == pytest.approx(np.linalg.eigvalsh(matrix[np.ix_(some, some)] / 100)[-1], rel=1e-9)
    assert found.n_samples == 100


def test_products_of_inner_products_have_a_bound():
    y, p = softmax_problem(50, 3)
    problem = feature_problem(prepare(y, p), Linear() * Linear() * Gaussian(bandwidth=0.5), None, n_columns=64, seed=1)
    phi = feature_rows(problem.map, np.random.default_rng(0).dirichlet(np.full(3, 0.2), size=2000))
    most = np.max(np.sum(phi**2, axis=1))
    assert most <= rms_bound.feature_supremum(problem.map, has_bounded_points=True) <= 10 * most
    assert rms_bound.feature_supremum(problem.map, has_bounded_points=False) is None
