"""Levels of the tests of calibration on the laws of predictions that are hardest for them, and power along n.

docs/scripts/levels_and_powers.py makes the tables of the documentation; here are its bars with fewer sets.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
from grid import some
from hard_laws import LAWS, dirichlet, drawn_labels
from problems import binomial_bounds
from threadpoolctl import threadpool_limits

import kcalib
from kcalib.inference.calibration_test import METHODS

ALPHAS = (0.05, 0.1)
SETS, DRAWS = 300, 39
RISK = 1e-5  # that an assertion fails with other seeds; there are fewer than 1000
BY_DRAWS = ("adaptive", "exact", "features")  # no warning excuses these
FORMS = {method.name: method for method in METHODS}


def pvalues_and_warnings(name: str, law: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Of calibrated sets: p-values, and which came with a warning that the test may reject too often."""
    method: Any = FORMS[name]()
    if getattr(method, "n_resamples", None) is not None:
        method = dataclasses.replace(method, n_resamples=DRAWS)
    pvalues, warned = np.empty(count), np.empty(count, dtype=bool)
    for i in range(count):
        y, p = LAWS[law].calibrated(np.random.default_rng([17, i]))
        with warnings.catch_warnings(record=True) as caught, threadpool_limits(limits=1):
            warnings.simplefilter("always")
            pvalues[i] = kcalib.calibration_test(y, p, method=method, seed=i, threads=1).pvalue
        warned[i] = any(issubclass(w.category, kcalib.AntiConservativeWarning) for w in caught)
    return pvalues, warned


def share(pvalues: np.ndarray, alpha: float) -> float:
    """Of p-values at most alpha; those of draws are multiples of 1 / (R + 1) but for rounding."""
    return float(np.mean(pvalues <= alpha * (1 + 1e-9)))


@pytest.mark.parametrize("name", LAWS)
def test_labels_of_the_laws_are_drawn_from_their_predictions(name):
    law, rng = LAWS[name], np.random.default_rng(0)
    y, p = law.calibrated(rng, n=20_000)
    assert p.min() >= 0
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=0, atol=1e-12)
    seen, expected = np.bincount(y, minlength=p.shape[1]), p.sum(axis=0)
    spread = np.sqrt((p * (1 - p)).sum(axis=0))
    assert (np.abs(seen - expected) <= 6 * spread + 6).all()


@pytest.mark.parametrize("name", some(["adaptive", "exact", "features"], "adaptive"))
def test_draws_keep_their_level_where_errors_are_rare(name):
    pvalues, _ = pvalues_and_warnings(name, "saturated, 1e-8..1e-4", 60)
    for alpha in ALPHAS:
        assert share(pvalues, alpha) <= binomial_bounds(60, alpha, RISK)[1]


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", FORMS)
def test_a_calibrated_model_is_not_rejected_too_often_unless_a_warning_says_so(name, law):
    pvalues, warned = pvalues_and_warnings(name, law, SETS)
    silent = pvalues if name in BY_DRAWS else pvalues[~warned]
    for alpha in ALPHAS:
        if len(silent):
            assert share(silent, alpha) <= binomial_bounds(len(silent), alpha, RISK)[1], alpha


@pytest.mark.slow
@pytest.mark.parametrize("law", ["Dir(.1), m = 10", "Dir(1), m = 2", "Dir(1), m = 100", "20 distinct rows"])
@pytest.mark.parametrize("name", ["adaptive", "exact", "features"])
def test_draws_have_exactly_their_level_where_the_statistic_takes_many_values(name, law):
    pvalues, _ = pvalues_and_warnings(name, law, SETS)
    for alpha in ALPHAS:
        low, high = binomial_bounds(SETS, alpha, RISK)
        assert low <= share(pvalues, alpha) <= high


@pytest.mark.slow
def test_more_data_do_not_mean_less_power():
    """By one fixed miscalibration; the SKCE is that of features between the first size and the second."""
    powers, estimators = [], set()
    for n in (3000, 12_000, 40_000):
        rejected = []
        for i in range(20):
            rng = np.random.default_rng([n, i])
            p = dirichlet(10, 0.3)(n, rng)
            truth = p**0.86 / (p**0.86).sum(axis=1, keepdims=True)
            result = kcalib.calibration_test(drawn_labels(truth, rng), p, seed=i, threads=1)
            rejected.append(result.pvalue <= 0.05)
            estimators.add(result.estimator)
        powers.append(np.mean(rejected))
    assert estimators == {"unbiased SKCE", "unbiased SKCE of random features"}
    assert min(powers) >= 0.85
