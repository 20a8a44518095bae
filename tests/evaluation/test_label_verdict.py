"""The verdict rests on the p-value of the test alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import kcalib
from kcalib.distributions import MultivariateNormal, Normal

METHOD = kcalib.methods.Adaptive(n_resamples=39, n_columns=16)


def many_classes(temper: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    logits = 3 * rng.standard_normal((600, 300))
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    y = np.minimum((p.cumsum(axis=1) < rng.random((600, 1))).sum(axis=1), 299)
    p = np.exp(temper * logits)
    return y, p / p.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("temper", "verdict"),
    [
        (1.0, "no evidence against calibration"),
        (1.5, "miscalibrated, over-confident"),
        pytest.param(0.7, "miscalibrated, under-confident", marks=pytest.mark.grid),
    ],
)
def test_the_default_sees_a_temperature_of_many_classes(temper: float, verdict: str) -> None:
    y, p = many_classes(temper)
    assert kcalib.evaluate(y, p, level=1e-6).verdict.partition(":")[0] == verdict
    # The kernel alone does not, and the verdict says no more than its test.
    by_kernel = kcalib.evaluate(y, p, level=1e-6, method="features")
    assert by_kernel.verdict == "no evidence against calibration" and not by_kernel.miscalibrated


@pytest.mark.parametrize("kind", ["labels", *(pytest.param(k, marks=pytest.mark.grid) for k in ("numbers", "vectors"))])
def test_calibrated_sets_are_called_so(kind: str) -> None:
    """As often as the level says, in 60 sets; the verdict is that of the p-value in each."""
    n, n_sets, n_called = 60, 60, 0
    for number in range(n_sets):
        rng = np.random.default_rng([number, len(kind)])
        if kind == "labels":
            prediction = rng.dirichlet(np.ones(3), size=n)
            y = (prediction.cumsum(axis=1)[:, :-1] <= rng.uniform(size=(n, 1))).sum(axis=1)
        elif kind == "numbers":
            mean, scale = rng.normal(size=n), rng.uniform(0.5, 2.0, size=n)
            y, prediction = rng.normal(mean, scale), Normal(mean, scale)
        else:
            mean = rng.normal(size=(n, 2))
            y, prediction = mean + rng.normal(size=(n, 2)), MultivariateNormal(mean, np.tile(np.eye(2), (n, 1, 1)))
        e = kcalib.evaluate(y, prediction, method=METHOD, seed=number)
        assert e.miscalibrated == (e.test.pvalue < e.level) == (e.verdict != "no evidence against calibration")
        n_called += e.miscalibrated
    assert n_called <= stats.binom.isf(1e-4, n_sets, 0.05)


def test_vectors_have_reasons_by_squared_errors() -> None:
    rng = np.random.default_rng(1)
    mean = rng.normal(size=(200, 2))
    y, prediction = mean + 2 * rng.normal(size=(200, 2)), MultivariateNormal(mean, np.tile(np.eye(2), (200, 1, 1)))
    e = kcalib.evaluate(y, prediction, seed=0)
    assert e.verdict.partition(":")[0] == "miscalibrated, over-confident"
