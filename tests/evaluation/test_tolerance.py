"""How far off a model is at least, and whether that is more than a tolerance."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import scipy.stats
from few_events import FEW_EVENTS
from hard_laws import LAWS, Law, drawn_labels
from intervals import Leading, misses
from problems import binomial_bounds, softmax_problem

import kcalib
from kcalib.distributions import Normal
from kcalib.estimators.rms_bound import RISK_SHARE
from kcalib.inference.verdict import shown_at_least
from kcalib.kernels import Linear

RISK = 1e-5


def shifted(n: int, error: float, rng: np.random.Generator, low: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Two classes with the error everywhere: about the leading eigenfunction, so that the bound is sharp."""
    p = rng.uniform(low, 0.8, size=n)
    return (rng.uniform(size=n) < p + error).astype(int), p


@pytest.mark.grid
def test_the_bound_is_near_the_truth_where_the_error_is_the_same_everywhere():
    """|e|^2 is 0.02, so that the SKCE is as much of the mean of the kernel, here by a midpoint rule.

    Its lower limit is a normal quantile below the estimate, which is at most four standard errors below the SKCE.
    """
    e = kcalib.evaluate(*shifted(8000, 0.1, np.random.default_rng(0)), threads=1)
    p = 0.2 + 0.6 * (np.arange(1000) + 0.5) / 1000
    skce = 0.02 * np.mean(np.exp(-math.sqrt(2) * np.abs(p[:, None] - p) / e.skce.bandwidth))
    quantile = scipy.stats.norm.isf(0.05 * (1 - RISK_SHARE))
    least = math.sqrt((skce - (4 + quantile) * e.skce.standard_error) / (2 * e.kernel_eigenvalue))
    assert 0.06 < least < e.rms_error_lower <= 0.1
    assert e.miscalibrated and e.verdict.endswith(f": off by at least {shown_at_least(e.rms_error_lower)}")
    assert 0 < e.kernel_eigenvalue <= 1 and e.n_eigenvalue_samples == 8000


@pytest.mark.parametrize("error", [0.03, 0.1])
def test_the_level_at_the_boundary(error):
    """The root mean square error is exactly the tolerance."""
    rng, level = np.random.default_rng(1), 0.1
    found = [
        kcalib.evaluate(*shifted(250, error, rng), tolerance=error, level=level, method="gamma", threads=1)
        for _ in range(60)
    ]
    share = np.mean([e.miscalibrated for e in found])
    assert share <= binomial_bounds(60, level, RISK)[1]
    assert all(e.miscalibrated == (e.rms_error_lower > error) for e in found)


@FEW_EVENTS
def test_rare_events_at_the_boundary():
    """A rate of one in a thousand that is in truth six: the law is far from normal."""
    rng, level, error = np.random.default_rng(2), 0.1, 0.005
    law, rejected = LAWS["rare, Beta(.1, 100)"], 0
    for _ in range(50):
        p = law.draw(400, rng)
        truth = p + np.array([-error, error])
        y = drawn_labels(np.clip(truth, 0, 1), rng)
        rejected += kcalib.evaluate(y, p, tolerance=error, level=level, method="gamma", threads=1).miscalibrated
    assert rejected / 50 <= binomial_bounds(50, level, RISK)[1]


def away_from_zero(m: int) -> Law:
    return Law(250, lambda n, rng: 0.2 / m + 0.8 * rng.dirichlet(np.full(m, 1.0), size=n))


@pytest.mark.parametrize("m", [2, pytest.param(10, marks=pytest.mark.grid)])
def test_errors_along_the_leading_eigenfunction_are_at_the_boundary(m):
    law, level = away_from_zero(m), 0.1
    found = misses(law, Leading(law, 0.02), count=60, level=level)
    assert found.bound <= binomial_bounds(60, level, RISK)[1]


@pytest.mark.slow
@pytest.mark.parametrize(("m", "error"), [(2, 0.03), (2, 0.08), (10, 0.01), (10, 0.05)])
@pytest.mark.parametrize("n", [250, 1000])
def test_the_level_for_errors_along_the_leading_eigenfunction(m, error, n):
    law = away_from_zero(m)
    for level in (0.01, 0.05, 0.1):
        found = misses(law, Leading(law, error), count=1000, n=n, level=level)
        assert found.bound <= binomial_bounds(1000, level, RISK)[1]
    assert found.mean_bound > 0.2


def test_larger_errors_than_the_tolerance_are_found():
    rng = np.random.default_rng(3)
    y, p = shifted(2500, 0.1, rng)
    for tolerance in (0.0, 0.02, 0.06):
        e = kcalib.evaluate(y, p, tolerance=tolerance, method="gamma", threads=1)
        assert e.miscalibrated and e.tolerance == tolerance and "off by at least 0.0" in e.verdict
    e = kcalib.evaluate(y, p, tolerance=0.12, threads=1)
    assert not e.miscalibrated and e.verdict == "not shown to be off by more than 0.12" and e.test.pvalue < 1e-3
    assert kcalib.evaluate(y, p, method="gamma", threads=1).tolerance is None
    # With a lower level less is certified.
    levels = (0.2, 0.05, 1e-3, 1e-30)
    bounds = [kcalib.evaluate(y, p, level=level, method="gamma", threads=1).rms_error_lower for level in levels]
    assert bounds == sorted(bounds, reverse=True) and bounds[0] > bounds[-1]


def test_calibrated_models_have_no_bound_above_zero_where_the_test_does_not_reject():
    rng = np.random.default_rng(4)
    for _ in range(20):
        y, p = LAWS["saturated, 1e-8..1e-4"].calibrated(rng, 300)
        e = kcalib.evaluate(y, p, method="exact", threads=1)
        assert e.miscalibrated or (e.rms_error_lower == 0 and e.verdict == "no evidence against calibration")


@pytest.mark.grid
def test_predicted_distributions():
    """Total variation of two normal laws: 2 Phi(shift / 2) - 1."""
    rng = np.random.default_rng(5)
    mean = rng.normal(size=1500)
    y = mean + 0.5 + rng.normal(size=1500)
    e = kcalib.evaluate(y, Normal(mean, np.ones(1500)), threads=1)
    assert 0.05 < e.rms_error_lower < 0.1974
    assert e.verdict.startswith("miscalibrated, predictions too low") and ": off by at least 0.1" in e.verdict
    e = kcalib.evaluate(y, Normal(mean, np.ones(1500)), tolerance=0.3, threads=1)
    assert not e.miscalibrated and e.verdict == "not shown to be off by more than 0.3"


def test_what_has_no_bound():
    y, p = softmax_problem(60, 3)
    for options in ({"method": "cme"}, {"method": kcalib.methods.DistributionFree(estimator="biased")}):
        e = kcalib.evaluate(y, p, threads=1, **options)
        assert e.rms_error_lower is e.kernel_eigenvalue is e.n_eigenvalue_samples is None
    with pytest.raises(ValueError, match="`tolerance` is 0.1, but there is no bound of the error to compare with it: "):
        kcalib.evaluate(y, p, method="cme", tolerance=0.1)
    with pytest.raises(ValueError, match="has no confidence interval of the SKCE for 3 samples; leave it out"):
        kcalib.evaluate(y[:3], p[:3], tolerance=0.1)
    x = np.linspace(0.0, 1.0, 30)
    e = kcalib.evaluate(x, Normal(x, np.ones(30)), kernel=Linear())
    assert e.rms_error_lower is None
    with pytest.raises(ValueError, match="no known supremum"):
        kcalib.evaluate(x, Normal(x, np.ones(30)), kernel=Linear(), tolerance=0.1)


@pytest.mark.parametrize("method", ["gamma", "features"])
def test_bounds_of_every_library(xp, method):
    y, p = softmax_problem(150, 4)
    y[:60] = 0
    own = kcalib.evaluate(y, p, method=method, seed=2)
    e = kcalib.evaluate(xp.asarray(y), xp.asarray(p), method=method, seed=2, tolerance=0.01)
    assert own.rms_error_lower > 0.01 and e.miscalibrated
    for name in ("rms_error_lower", "kernel_eigenvalue"):
        assert getattr(e, name) == pytest.approx(getattr(own, name), rel=1e-6)
    assert e.skce.null_standard_error == pytest.approx(own.skce.null_standard_error, rel=1e-6)


@pytest.mark.parametrize("tolerance", [-0.1, 1, 1.5, float("nan"), "0.01", True, [0.1]])
def test_bad_tolerances(tolerance):
    y, p = softmax_problem(20, 3)
    message = f"`tolerance` is {tolerance!r}, expected a number from 0 to below 1"
    with pytest.raises(ValueError, match=re.escape(message)):
        kcalib.evaluate(y, p, tolerance=tolerance)


def test_numbers_are_rounded_down():
    for value, shown in ((0.01299, "0.012"), (0.5, "0.5"), (0.9999, "0.99"), (1.99e-5, "1.9e-05"), (0.2, "0.2")):
        assert shown_at_least(value) == shown and float(shown) <= value


def tempered_sets(power: float, n: int, count: int, m: int = 10):
    """Yield labels, predictions, and the root mean square of the total variation."""
    for number in range(count):
        rng = np.random.default_rng([number, n])
        p = rng.dirichlet(np.full(m, 0.3), size=n)
        q = p**power
        q /= q.sum(axis=1, keepdims=True)
        y = (q.cumsum(axis=1)[:, :-1] <= rng.uniform(size=(n, 1))).sum(axis=1)
        yield y, p, float(np.sqrt(np.mean((np.abs(q - p).sum(axis=1) / 2) ** 2)))


@pytest.mark.grid
def test_the_bound_of_over_confident_models_is_near_the_truth():
    """By a map that was fitted to other samples; the kernel alone certifies about a tenth."""
    for n, count, least in ((1000, 30, 0.35), (10_000, 1, 0.75)):
        ratios = []
        for y, p, truth in tempered_sets(0.8, n, count):
            e = kcalib.evaluate(y, p, method=kcalib.methods.Adaptive(39), seed=0, threads=1)
            assert n == 1000 or e.rms_error_from == "fitted map"
            ratios.append(e.rms_error_lower / truth)
        assert least < np.median(ratios) and np.sum(np.array(ratios) > 1) <= binomial_bounds(count, 0.05, RISK)[1]


@pytest.mark.parametrize("power", [0.97, 1.0])
def test_the_bound_of_nearly_calibrated_models_is_rarely_above_the_truth(power):
    misses = 0
    for y, p, truth in tempered_sets(power, 400, 30):
        e = kcalib.evaluate(y, p, method=kcalib.methods.Adaptive(39), seed=0, threads=1)
        misses += e.rms_error_lower > truth
    assert misses <= binomial_bounds(30, 0.05, RISK)[1]
