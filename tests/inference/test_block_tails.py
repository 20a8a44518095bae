"""The far tail of block tests: never lighter than the law of all pairs."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
from few_events import FEW_EVENTS
from hard_laws import LAWS, drawn_labels
from intervals import tempered
from problems import before_permutation

import kcalib
from kcalib._input.forecasts import prepare
from kcalib.distributions import Normal, Poisson
from kcalib.estimators.skce import PairOptions
from kcalib.inference.conditional_spectrum import conditional, make_subset_matrix
from kcalib.inference.eigenvalues import full_spectrum
from kcalib.inference.spectrum import limit_law
from kcalib.inference.task import Task
from kcalib.kernels import Exponential, Gaussian
from kcalib.laws import ChiSquareMixture
from kcalib.methods import Block

KERNEL = Exponential(bandwidth=0.5)


def far_off(name: str, n: int) -> tuple:
    """Targets, predictions, and options of the test."""
    rng = np.random.default_rng(n)
    if name == "normal":
        means = rng.normal(size=n)
        return (
            means + 0.7 * rng.normal(size=n),
            Normal(means, np.full(n, 1.6)),
            {"target_kernel": Gaussian(bandwidth=1.0)},
        )
    if name == "Poisson":
        rates = rng.uniform(1, 5, size=n)
        return rng.poisson(1.5 * rates), Poisson(rates), {"target_kernel": Exponential(bandwidth=2.0)}
    p = LAWS[name].draw(n, rng)
    q = np.roll(p, 1, axis=1) if p.shape[1] > 2 else tempered(p, 0.2)
    return drawn_labels(q, rng), p, {}


@pytest.mark.parametrize("n_blocks", [*(pytest.param(n, marks=pytest.mark.grid) for n in (2, 20)), 5])
@pytest.mark.parametrize("name", ["Dir(1), m = 2", "Dir(.1), m = 10", "20 distinct rows", "normal", "Poisson"])
def test_no_pvalue_is_below_that_of_all_pairs_with_the_same_statistic(name, n_blocks):
    n = 400
    y, p, options = far_off(name, n)
    found = kcalib.calibration_test(
        y, p, method=Block(block_size=n // n_blocks), kernel=KERNEL, seed=0, threads=1, **options
    )
    task = Task(prepare(y, p), PairOptions(KERNEL, options.get("target_kernel"), threads=1))
    statistic = n * found.estimate
    law = limit_law(conditional(task)[0], statistic)
    assert found.log_pvalue >= 1.03 * float(law.logsf(statistic + law.mean)) - 0.05
    assert found.pvalue < 0.2 or n_blocks == 20


def test_the_tail_is_that_of_the_blocks_eigenvalues():
    rng = np.random.default_rng(3)
    n, size, m = 300, 100, 3
    p = rng.dirichlet(np.ones(m), size=n)
    y = drawn_labels(np.roll(p, 1, axis=1), rng)
    samples = before_permutation(0, y, p)
    found = kcalib.calibration_test(*samples, method=Block(block_size=size), kernel=KERNEL, seed=0)
    weights = []
    for begin in range(0, n, size):
        q = p[begin : begin + size]
        roots = np.stack([np.diag(np.sqrt(one)) - np.outer(one, np.sqrt(one)) for one in q])
        k = oracle.kernel_matrix(KERNEL, q, q).astype(np.float64)
        np.fill_diagonal(k, 0.0)
        matrix = np.einsum("ij,iba,jbc->iajc", k, roots, roots).reshape(size * m, size * m) / (size - 1)
        weights.extend(np.linalg.eigvalsh(matrix) * size / n)
    law = ChiSquareMixture(weights)
    expected = float(law.logsf(size * found.estimate + law.mean))
    assert expected < math.log(1e-10)
    assert found.log_pvalue == pytest.approx(expected, rel=0.06)
    assert found.log_pvalue >= expected - 1  # a largest eigenvalue of a sample is too large, if anything


@pytest.mark.parametrize("name", ["Dir(1), m = 2", "20 distinct rows"])
def test_eigenvalues_of_some_samples_are_those_of_all_where_these_are_few(name):
    y, p, _ = far_off(name, 60)
    task = Task(prepare(y, p), PairOptions(KERNEL))
    matrices = make_subset_matrix(task.data, task.packed), conditional(task)[0]
    some, every = (np.sort(full_spectrum(one).leading) for one in matrices)
    assert some == pytest.approx(every, abs=1e-6 * every[-1])


def test_above_a_thousandth_the_law_is_gamma():
    _, p, _ = far_off("Dir(1), m = 2", 200)
    calibrated = drawn_labels(p, np.random.default_rng(1))
    found = kcalib.calibration_test(calibrated, p, method="block", kernel=KERNEL)
    assert found.pvalue > 1e-3 and "gamma law" in found.null_law


@FEW_EVENTS
def test_events_that_never_happen():
    """Under calibration the variance is of the size of 1e-234: cubes and fourth powers have a unit of their own."""
    p = 10.0 ** -np.array([264, 81, 157, 133, 185, 205, 308, 151])
    found = kcalib.calibration_test([1, 1, 0, 0, 0, 0, 0, 0], p, method=Block(4), seed=0)
    assert -math.inf < found.log_pvalue < -1e100 and found.pvalue == 0
