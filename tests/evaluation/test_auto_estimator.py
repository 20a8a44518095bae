"""`kcalib.evaluate` estimates the SKCE as its test does, from the same sums."""

from __future__ import annotations

import numpy as np
import pytest
from problems import on_a_grid, softmax_problem

import kcalib
from kcalib.distributions import Normal, Poisson
from kcalib.inference import task
from kcalib.kernels import Cosine

Y, P = softmax_problem(400, 3)


def test_all_pairs():
    for method in ("exact", "spectrum", "block", "cme"):
        e = kcalib.evaluate(Y, P, method=method, threads=1)
        assert e.skce.estimator == "unbiased" and e.skce.value == kcalib.skce(Y, P, threads=1)


def test_features_of_the_test():
    e = kcalib.evaluate(Y, P, method="features", seed=5, threads=1)
    own = kcalib.skce.result(Y, P, estimator=kcalib.methods.FeatureEstimator(seed=5), threads=1)
    for name in ("value", "features_standard_error", "n_columns", "seed", "estimator", "kernel", "backend", "threads"):
        assert getattr(e.skce, name) == getattr(own, name)
    assert e.skce.standard_error == e.test.standard_error == pytest.approx(own.standard_error, rel=0.3)
    assert e.skce.null_standard_error == pytest.approx(own.null_standard_error, rel=0.3)
    assert 0 < e.skce.null_standard_error <= e.skce.standard_error
    method = kcalib.methods.Features(n_columns=32, n_resamples=19)
    assert kcalib.evaluate(Y, P, method=method, threads=1).skce.n_columns == 32


def test_features_where_pairs_take_long(monkeypatch):
    monkeypatch.setattr(task, "PAIRS_WORK", 1.0)
    for method in ("block", "linear"):
        e = kcalib.evaluate(Y, P, method=method, threads=1)
        assert e.skce.estimator == "features" and e.skce.seed == 0
    assert kcalib.evaluate(Y, P, method="exact", threads=1).skce.estimator == "unbiased"
    # On a line they do not, and some kernels have no features.
    assert kcalib.evaluate(*on_a_grid(2000), method="block", threads=1).skce.estimator == "unbiased"
    with pytest.warns(kcalib.IndefiniteKernelWarning):
        e = kcalib.evaluate(Y, P, method="block", kernel=Cosine(bandwidth=0.5), threads=1)
    assert e.skce.estimator == "unbiased" and e.rms_error_lower is None


@pytest.mark.grid
def test_the_bound_from_features_is_near_that_of_all_pairs():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.5, size=(5000, 1)) * np.array([1.0, 0.5]) + 0.05
    p = np.concatenate([p, 1 - p.sum(axis=1, keepdims=True)], axis=1)
    truth = p + np.array([0.03, -0.03, 0.0])
    y = (np.cumsum(truth, axis=1) < rng.uniform(size=(5000, 1))).sum(axis=1)
    pairs, features = (kcalib.evaluate(y, p, method=method, threads=1) for method in ("gamma", "features"))
    assert 0.015 < features.rms_error_lower <= 0.03 and 0.015 < pairs.rms_error_lower <= 0.03
    assert features.rms_error_lower == pytest.approx(pairs.rms_error_lower, rel=0.15)
    assert features.kernel_eigenvalue == pytest.approx(pairs.kernel_eigenvalue, rel=0.1)


@pytest.mark.grid
@pytest.mark.parametrize("family", ["normal", pytest.param("counts", marks=pytest.mark.grid)])
def test_bounds_of_distributions_by_features(family):
    """Features of counts are exact, so that the bound is one for the feature kernel; those of normals are random."""
    rng = np.random.default_rng(1)
    if family == "normal":
        mean = rng.normal(size=2500)
        y, prediction = mean + 0.6 + rng.normal(size=2500), Normal(mean, np.ones(2500))
    else:
        rate = rng.uniform(1.0, 6.0, size=2500)
        y, prediction = rng.poisson(1.3 * rate), Poisson(rate)
    pairs, features = (kcalib.evaluate(y, prediction, method=method, threads=1) for method in ("gamma", "features"))
    assert features.skce.estimator == "features" and features.miscalibrated
    assert 0.5 * pairs.rms_error_lower < features.rms_error_lower < 1.3 * pairs.rms_error_lower < 0.3
