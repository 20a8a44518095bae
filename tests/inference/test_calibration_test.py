"""Every method of `calibration_test` against a literal computation; statistical claims are in test_inference.py
and test_validity.py."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pickle
import re

import numpy as np
import oracle
import pytest
import scipy.stats
from few_events import FEW_EVENTS
from grid import some
from problems import before_permutation, draw_labels, named_method, psd_matrix, softmax_problem

import kcalib
from kcalib import _packing, methods
from kcalib._backend.random import Weights, draw_label_batches
from kcalib._input.labels import prepare
from kcalib.distributions import Normal, Samples
from kcalib.estimators.skce import PairOptions
from kcalib.inference import distribution_free
from kcalib.inference.calibration_test import METHODS
from kcalib.kernels import Exponential, Gaussian, Linear
from kcalib.laws import ChiSquareMixture

pytestmark = FEW_EVENTS

KERNEL = Exponential(bandwidth=0.5)
ALL_PAIRS = ("exact", "bootstrap", "multiplier", "spectrum", "pearson", "gamma")
PLAIN = ("adaptive", *ALL_PAIRS, "block", "linear", "distribution_free")


def dense(y: np.ndarray, p: np.ndarray, kernel: kcalib.kernels.Kernel = KERNEL, matrix: np.ndarray | None = None):
    return oracle.h_matrix(kernel, y, p, m_matrix=matrix).astype(np.float64)


def spectrum_of_residuals(n_eigenvalues: int | str) -> methods.Spectrum:
    return methods.Spectrum(n_eigenvalues=n_eigenvalues, reference="residuals")


def off_diagonal(h: np.ndarray) -> np.ndarray:
    return h - np.diag(np.diag(h))


# -- the laws, one by one ------------------------------------------------------------------------


def test_exact_by_enumeration():
    """Three samples, three classes: 27 vectors of labels, whose probabilities are known."""
    p = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])
    y = np.array([0, 0, 2])
    law = [
        (oracle.unbiased(dense(np.array(labels), p)), np.prod(p[np.arange(3), labels]))
        for labels in itertools.product(range(3), repeat=3)
    ]
    observed = oracle.unbiased(dense(y, p))
    expected = sum(weight for value, weight in law if value >= observed - 1e-12)
    draws = 20_000
    result = kcalib.calibration_test(y, p, method=methods.Exact(n_resamples=draws), seed=1, kernel=KERNEL)
    low, high = scipy.stats.binom(draws, expected).interval(1 - 1e-6)
    assert low <= result.pvalue * (draws + 1) - 1 <= high
    assert 0.05 < expected < 0.95
    assert result.statistic == pytest.approx(3 * observed, rel=1e-12)


def test_exact_is_the_share_of_drawn_labels():
    y, p = softmax_problem(23, 4, seed=3)
    matrix = psd_matrix(4, 2)
    for target, m_matrix in (("delta", None), (matrix, matrix)):
        result = kcalib.calibration_test(
            y, p, method=methods.Exact(n_resamples=49), seed=7, kernel=KERNEL, target_kernel=target
        )
        (labels,) = draw_label_batches(p, 49, 7, at_once=100)
        draws = [oracle.unbiased(dense(column, p, matrix=m_matrix)) for column in labels.T]
        assert result.pvalue == pytest.approx((1 + np.sum(draws >= np.float64(result.estimate))) / 50)


def test_drawn_labels_have_the_predicted_shares_and_do_not_depend_on_the_batch():
    p = np.array([[0.2, 0.0, 0.5, 0.3], [0.0, 1.0, 0.0, 0.0]])
    labels = np.concatenate(list(draw_label_batches(p, 4000, 5, at_once=4000)), axis=1)
    for shares, row in zip(p, labels, strict=True):
        counts = np.bincount(row, minlength=4)
        for share, count in zip(shares, counts, strict=True):
            low, high = scipy.stats.binom(4000, share).interval(1 - 1e-5) if 0 < share < 1 else (4000 * share,) * 2
            assert low <= count <= high
    again = np.concatenate(list(draw_label_batches(p, 4000, 5, at_once=7)), axis=1)
    assert np.array_equal(labels, again)


@pytest.mark.parametrize("n", [5, 40])
def test_bootstrap_is_that_of_the_centred_matrix(n):
    y, p = softmax_problem(n, 3, seed=n)
    h = dense(y, p)
    centred = h - h.mean(axis=0) - h.mean(axis=1)[:, None] + h.mean()
    counts = Weights("multinomial", n, 199, 3).values()
    draws = np.einsum("ib,ij,jb->b", counts, centred, counts) - counts.T @ np.diag(centred)
    result = kcalib.calibration_test(y, p, method=methods.Bootstrap(n_resamples=199), seed=3, kernel=KERNEL)
    assert result.pvalue == pytest.approx((1 + np.sum(draws >= off_diagonal(h).sum())) / 200)


@pytest.mark.parametrize("multipliers", ["rademacher", "gaussian"])
def test_multiplier_is_that_without_the_diagonal(multipliers):
    n = 40
    y, p = softmax_problem(n, 3, seed=2)
    h = off_diagonal(dense(y, p))
    w = Weights(multipliers, n, 199, 4).values()
    draws = np.einsum("ib,ij,jb->b", w, h, w)
    result = kcalib.calibration_test(
        y, p, method=methods.Multiplier(199, multipliers, "residuals"), seed=4, kernel=KERNEL
    )
    assert result.pvalue == pytest.approx((1 + np.sum(draws >= h.sum())) / 200)
    assert result.null_law.endswith("multipliers of the residuals, as published")


@pytest.mark.parametrize("multipliers", ["rademacher", "gaussian"])
@pytest.mark.parametrize("target", ["delta", "matrix"])
@pytest.mark.parametrize("m", [2, 3])
def test_multiplier_given_the_predictions(multipliers, target, m):
    """Residuals L g, with L L^T the covariance of a drawn residual, in a literal double loop over H."""
    n, matrix = 20, np.eye(m) if target == "delta" else psd_matrix(m, 2)
    y, p = softmax_problem(n, m, seed=2)
    p[0] = np.eye(m)[0] * (1 - m * 1e-9) + 1e-9  # saturated
    g = Weights(multipliers, n * m, 49, 4).values().reshape(n, m, 49)
    roots = np.array([np.diag(np.sqrt(row)) - np.outer(row, np.sqrt(row)) for row in p])
    for row, root in zip(p, roots, strict=True):
        np.testing.assert_allclose(root @ root.T, np.diag(row) - np.outer(row, row), atol=1e-15)
    k = off_diagonal(oracle.kernel_matrix(KERNEL, p, p).astype(float))
    residuals = np.einsum("iab,ibr->iar", roots, g)
    draws = np.einsum("ij,iar,ab,jbr->r", k, residuals, matrix, residuals)
    observed = off_diagonal(oracle.h_matrix(KERNEL, y, p, m_matrix=matrix).astype(float)).sum()
    result = kcalib.calibration_test(
        y, p, method=methods.Multiplier(49, multipliers), seed=4, kernel=KERNEL,
        target_kernel="delta" if target == "delta" else matrix,
    )  # fmt: skip
    assert result.pvalue == pytest.approx((1 + np.sum(draws >= observed)) / 50)
    assert result.null_law.endswith("multipliers, given the predictions")


@pytest.mark.parametrize(
    ("n", "m", "tolerance"),
    [(60, 3, 1e-9), (400, 2, 1e-2), (400, 10, 2e-3), pytest.param(400, 50, 1e-2, marks=pytest.mark.grid)],
)
def test_spectrum_is_the_law_of_all_eigenvalues(n, m, tolerance):
    """Few samples have all eigenvalues; otherwise products with H are added until p changes by less than 1 %."""
    for y, p in (softmax_problem(n, m, seed=1), softmax_problem(n, m, seed=2, scale=1.0)):
        p = p**1.2 / np.sum(p**1.2, axis=1, keepdims=True)
        h = off_diagonal(dense(y, p)) / (n - 1)
        law = ChiSquareMixture(np.linalg.eigvalsh(h))
        expected = law.sf(h.sum() + law.mean)
        full = kcalib.calibration_test(
            y, p, method=methods.Spectrum(n_eigenvalues="all", reference="residuals"), kernel=KERNEL
        )
        assert full.pvalue == pytest.approx(expected, rel=1e-8)
        assert full.n_eigenvalues == n
        default = kcalib.calibration_test(y, p, method=methods.Spectrum(reference="residuals"), kernel=KERNEL)
        assert default.pvalue == pytest.approx(expected, rel=tolerance)
        assert default.n_eigenvalues == n if n <= 256 else 0 < default.n_eigenvalues <= 20
        many = kcalib.calibration_test(
            y, p, method=methods.Spectrum(n_eigenvalues=n // 2, reference="residuals"), kernel=KERNEL
        )
        assert many.pvalue == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("n", "m"), [(7, 2), (12, 3)])
def test_spectrum_of_fewer_samples_than_a_block(n, m):
    y, p = softmax_problem(n, m, seed=1)
    full, all_found = (
        kcalib.calibration_test(y, p, method=methods.Spectrum(n_eigenvalues=count), kernel=KERNEL)
        for count in ("all", n)
    )
    # The search may end with fewer than it may take, where p-values have settled; else float32 is what is left.
    settled = 1e-5 if all_found.n_eigenvalues == n else 1e-2
    assert 1 <= all_found.n_eigenvalues <= n
    assert all_found.pvalue == pytest.approx(full.pvalue, rel=settled)


@pytest.mark.parametrize("width", [1e-9, 0.1])
@pytest.mark.parametrize(
    "kernel", [kcalib.kernels.Exponential(), kcalib.kernels.GammaExponential(gamma=0.1)], ids=["exponential", "gamma"]
)
def test_spectrum_where_float32_would_round_distances_away(width, kernel):
    rng = np.random.default_rng(0)
    noise = width * rng.standard_normal((400, 10))
    p = 0.1 + noise - noise.mean(axis=1, keepdims=True)
    p = np.clip(p, 0, None) / np.clip(p, 0, None).sum(axis=1, keepdims=True)
    y = rng.integers(10, size=400)
    results = (
        kcalib.calibration_test(y, p, method=spectrum_of_residuals(count), kernel=kernel) for count in ("all", 20)
    )
    full, found = (result.pvalue for result in results)
    assert found == pytest.approx(full, rel=2e-2)


@pytest.mark.parametrize(("n", "tolerance"), [(60, 1e-9), (400, 0.02)])
def test_pearson_has_the_moments_of_the_spectrum(n, tolerance):
    y, p = softmax_problem(n, 4, seed=1)
    h = off_diagonal(dense(y, p)) / (n - 1)
    cumulants = [2 ** (k - 1) * math.factorial(k - 1) * np.trace(np.linalg.matrix_power(h, k)) for k in (2, 3, 4)]
    curve = kcalib.laws.PearsonCurve(
        0.0, cumulants[0], cumulants[1] / cumulants[0] ** 1.5, cumulants[2] / cumulants[0] ** 2
    )
    result = kcalib.calibration_test(y, p, method=methods.Pearson(reference="residuals"), kernel=KERNEL)
    assert result.pvalue == pytest.approx(curve.sf(h.sum()), rel=tolerance)


def test_gamma_has_mean_and_variance():
    n = 80
    y, p = softmax_problem(n, 4, seed=1)
    h = dense(y, p)
    mean, variance = np.trace(h) / n, 2 * np.sum(off_diagonal(h) ** 2) / (n - 1) ** 2
    law = scipy.stats.gamma(mean**2 / variance, scale=variance / mean)
    result = kcalib.calibration_test(y, p, method=methods.Gamma("residuals"), kernel=KERNEL)
    assert result.pvalue == pytest.approx(law.sf(off_diagonal(h).sum() / (n - 1) + mean), rel=1e-9)
    assert result.null_law.endswith("of the residuals")


@pytest.mark.parametrize(("n", "tolerance"), [(60, 1e-9), (150, 2e-2)])
def test_gamma_given_the_predictions(n, tolerance):
    """The variance by sums over all pairs, the third cumulant by all eigenvalues; whatever the labels were."""
    y, p = softmax_problem(n, 4, seed=1)
    k = off_diagonal(oracle.kernel_matrix(KERNEL, p, p).astype(float)) / (n - 1)
    roots = np.array([np.diag(np.sqrt(row)) - np.outer(row, np.sqrt(row)) for row in p])
    values = np.linalg.eigvalsh(np.einsum("iba,ij,jbc->iajc", roots, k, roots).reshape(4 * n, 4 * n))
    variance = 2 * np.sum(values**2)
    law = scipy.stats.pearson3(8 * np.sum(values**3) / variance**1.5, scale=np.sqrt(variance))
    for labels in (y, np.roll(y, 1)):
        result = kcalib.calibration_test(labels, p, method="gamma", kernel=KERNEL)
        statistic = off_diagonal(dense(labels, p)).sum() / (n - 1)
        assert result.pvalue == pytest.approx(law.sf(statistic), rel=tolerance)
        assert result.null_law.endswith("given the predictions")


def test_second_form_of_the_block_test():
    y, p = softmax_problem(43, 3)
    h = dense(y, p)
    size, count = 6, 7
    estimate = np.mean([oracle.unbiased(h[s : s + size, s : s + size]) for s in range(0, size * count, size)])
    second_moment = np.mean([h[i, i + 1] ** 2 for i in range(0, 42, 2)])
    z = math.sqrt(count * size * (size - 1)) * estimate / math.sqrt(2 * second_moment)
    samples, method = before_permutation(0, y, p), methods.Block(block_size=6, variance="second_moment")
    result = kcalib.calibration_test(*samples, method=method, kernel=KERNEL, seed=0)
    assert result.statistic == pytest.approx(z, rel=1e-11)
    assert result.pvalue == pytest.approx(scipy.stats.norm.sf(z), rel=1e-10)
    method = methods.Block(block_size=6, variance="sample")
    sample = kcalib.calibration_test(*samples, method=method, kernel=KERNEL, seed=0)
    assert sample.statistic != result.statistic
    assert sample.confidence_interval() == result.confidence_interval()


# -- the distribution-free bounds -----------------------------------------------------------------


def test_distribution_free_by_hand():
    """Two samples, h = k <e_1, e_2> = exp(-d) 0.96, d = 0.4 sqrt(2): B = 2, N = 1."""
    y, p = [0, 0], [[0.2, 0.8], [0.6, 0.4]]
    t = math.exp(-0.4 * math.sqrt(2)) * 2 * 0.8 * 0.4
    kernel = Exponential(bandwidth=1.0)
    result = kcalib.calibration_test(y, p, method="distribution_free", kernel=kernel)
    assert result.estimate == pytest.approx(t, rel=1e-12)
    assert result.pvalue == pytest.approx(math.exp(-(t**2) / 8), rel=1e-12)
    assert result.bound == 2
    biased = kcalib.calibration_test(y, p, method=methods.DistributionFree(estimator="biased"), kernel=kernel)
    value = (2 * t + 2 * 0.8**2 + 2 * 0.4**2) / 4
    assert biased.estimate == pytest.approx(value, rel=1e-12)
    assert biased.pvalue == 1.0  # sqrt(2 t / 2) < 1
    loose = kcalib.calibration_test(
        y, p, method=methods.DistributionFree(estimator="biased", bound=1e-3, norms=(1, 1)), kernel=kernel
    )
    assert loose.log_pvalue == pytest.approx(-((math.sqrt(2 * value / 2e-3) - 1) ** 2) / 2, rel=1e-12)


@pytest.mark.parametrize(
    ("estimator", "block_size", "pairs"), [("unbiased", None, 50), ("block", 7, 42), ("linear", None, 50)]
)
def test_distribution_free_counts_disjoint_pairs(estimator, block_size, pairs):
    y, p = softmax_problem(101, 3)
    p = p[:, ::-1].copy()
    result = kcalib.calibration_test(
        y, p, method=methods.DistributionFree(estimator=estimator, block_size=block_size), kernel=3 * KERNEL
    )
    assert result.estimate > 0
    assert result.log_pvalue == pytest.approx(-pairs * result.estimate**2 / (2 * 6.0**2), rel=1e-12)
    low, high = result.confidence_interval(0.9)
    assert high - result.estimate == pytest.approx(6 * math.sqrt(2 * math.log(20) / pairs))
    assert result.estimate - low == pytest.approx(high - result.estimate)


@pytest.mark.parametrize("method", ["spectrum", methods.Block(20), methods.CME(locations=3)], ids=str)
def test_the_unit_of_the_kernel_changes_no_pvalue(method):
    rng = np.random.default_rng(0)
    mean = rng.normal(size=80)
    y = mean + 1.3 * rng.normal(size=80)
    labels, p = softmax_problem(80, 3)
    of_units = [
        (
            kcalib.calibration_test(
                y, Normal(mean, np.ones(80)), method=method, kernel=KERNEL, target_kernel=unit * Gaussian(1.0), seed=0
            ).log_pvalue,
            kcalib.calibration_test(labels, p, method=method, kernel=unit * KERNEL, seed=0).log_pvalue,
        )
        for unit in (1.0, 2.0**20)
    ]
    assert of_units[0] == of_units[1]


def test_beyond_the_draws_the_exact_test_has_the_law_of_the_spectrum():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=300)
    y = draw_labels(np.roll(p, 1, axis=1), rng)
    exact, spectrum = (
        kcalib.calibration_test(y, p, method=method, kernel=KERNEL, seed=0)
        for method in (methods.Exact(99), "spectrum")
    )
    assert exact.pvalue_from == "law" and spectrum.log_pvalue < -20
    assert exact.log_pvalue == pytest.approx(spectrum.log_pvalue, rel=1e-9)


def test_two_classes_have_the_draws_of_any_matrix_of_the_same_kernel():
    y, p = softmax_problem(80, 2)
    given, default = (
        kcalib.calibration_test(y, p, method=methods.Exact(199), kernel=KERNEL, target_kernel=target, seed=0).pvalue
        for target in (np.eye(2), None)
    )
    assert given == default


def test_distribution_free_does_not_square_negative_estimates():
    y, p = softmax_problem(60, 3, seed=1)
    result = kcalib.calibration_test(y, p, method="distribution_free", kernel=KERNEL)
    assert result.estimate < 0
    assert result.pvalue == 1.0


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, pytest.param(4.0, marks=pytest.mark.grid), math.inf])
@pytest.mark.parametrize("q", [1.0, pytest.param(1.5, marks=pytest.mark.grid), 2.0, 4.0, math.inf])
def test_induced_norms(p, q):
    """Never exceeded, and reached by some vector that a search finds."""
    rng = np.random.default_rng(0)
    for matrix in (np.diag([0.5, 2.0, 1.0]), psd_matrix(3, 3)):
        norm = distribution_free.induced_norm(matrix, p, q)
        if norm is None:
            assert matrix[0, 1] != 0 and not (p == 1 or q == math.inf or p == q == 2)
            continue

        def ratio(x, matrix=matrix):
            return np.linalg.norm(matrix @ x, q) / np.linalg.norm(x, p)

        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=2)))
        starts = [*np.eye(3), *np.c_[np.ones(4), signs], *rng.normal(size=(2, 3))]
        found = [scipy.optimize.minimize(lambda x: -ratio(x), s, method="Nelder-Mead", tol=1e-6).fun for s in starts]
        assert -min(found) == pytest.approx(norm, rel=1e-3)
        assert max(ratio(s) for s in starts) <= norm * (1 + 1e-12)


def test_residual_bound_holds_and_is_the_smallest():
    matrix = psd_matrix(3, 2)
    corners = np.eye(3)
    entries = [abs((a - b) @ matrix @ (c - d)) for a, b, c, d in itertools.product(corners, repeat=4)]
    bounds = {}
    for p, q in [(1, 1), (1, 2), (1, np.inf), (2, 2), (2, np.inf), (np.inf, np.inf)]:
        bounds[p, q] = distribution_free.residual_bound(1.0, matrix, 3, (p, q))
        assert max(entries) <= bounds[p, q] * (1 + 1e-12)
    assert distribution_free.residual_bound(1.0, matrix, 3, None) == pytest.approx(min(bounds.values()))
    y, p = softmax_problem(30, 3)
    chosen = kcalib.calibration_test(
        y, p, method=methods.DistributionFree(norms=(2, 2)), kernel=KERNEL, target_kernel=matrix
    )
    assert chosen.bound == pytest.approx(2 * np.linalg.norm(matrix, 2))


def test_kernel_bounds():
    y, p = softmax_problem(30, 3)

    def bound(kernel, **options):
        return kcalib.calibration_test(y, p, method=methods.DistributionFree(**options), kernel=kernel).bound

    assert bound(Linear() + 2 * Gaussian(bandwidth=0.3)) == 6
    assert bound((Linear() + Gaussian(bandwidth=0.3)) * (0.5 * KERNEL)) == 2
    assert bound(KERNEL, bound=0.25) == 0.5


# -- what all have in common -----------------------------------------------------------------------


@pytest.mark.parametrize("method", PLAIN)
def test_results_are_plain_frozen_and_complete(method):
    y, p = softmax_problem(80, 3)
    result = kcalib.calibration_test(y, p, method=method, seed=3)
    assert 0 <= result.pvalue <= 1
    assert result.pvalue == pytest.approx(math.exp(result.log_pvalue))
    assert result.method == method
    assert (result.n_samples, result.n_classes, result.dtype) == (80, 3, "float64")
    assert "Exponential(bandwidth=" in result.kernel and "median" in result.bandwidth_source
    assert pickle.loads(pickle.dumps(result)) == result
    assert json.loads(json.dumps(dataclasses.asdict(result)))["method"] == method
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.pvalue = 0.0
    low, high = result.confidence_interval()
    assert low < result.estimate < high


@pytest.mark.parametrize("method", some(PLAIN, "exact", "gamma", "spectrum"))
def test_every_array_library_gives_the_same(method, xp):
    y, p = softmax_problem(90, 3)
    expected = kcalib.calibration_test(y, p, method=method, seed=3)
    result = kcalib.calibration_test(xp.asarray(y), xp.asarray(p), method=method, seed=3)
    # Products in float32 are rounded in another order.
    assert result.pvalue == pytest.approx(
        expected.pvalue, rel=1e-7 if method in ("spectrum", "pearson", "gamma") else 1e-9
    )
    assert result.statistic == pytest.approx(expected.statistic, rel=1e-10)
    assert result.backend == xp.backend


@pytest.mark.parametrize("method", PLAIN)
@pytest.mark.parametrize("n", [300, pytest.param(700, marks=pytest.mark.grid)])
def test_bits_do_not_depend_on_threads(method, n):
    for m in (2, 3):
        y, p = softmax_problem(n, m)
        results = [kcalib.calibration_test(y, p, method=method, seed=0, threads=t) for t in (1, 2, 7)]
        for other in results[1:]:
            assert (other.pvalue, other.statistic, other.log_pvalue) == (
                results[0].pvalue, results[0].statistic, results[0].log_pvalue,
            )  # fmt: skip


@pytest.mark.parametrize("method", PLAIN)
def test_float32(method):
    y, p = softmax_problem(200, 3)
    double = kcalib.calibration_test(y, p, method=method, seed=0, kernel=KERNEL)
    single = kcalib.calibration_test(y, p, method=method, seed=0, kernel=KERNEL, dtype="float32")
    assert single.dtype == "float32"
    # Entries are rounded to 6e-8 of 2; a draw passes the statistic with a probability of about that over its spread.
    assert single.pvalue == pytest.approx(double.pvalue, abs=2e-3)


@pytest.mark.parametrize("method", ["exact", "bootstrap", "multiplier"])
def test_a_seed_is_drawn_and_reported(method):
    y, p = softmax_problem(40, 3)
    first, second = (kcalib.calibration_test(y, p, method=method) for _ in range(2))
    assert first.seed != second.seed
    assert kcalib.calibration_test(y, p, method=method, seed=first.seed).pvalue == first.pvalue
    assert first.pvalue >= 1 / 1000
    # The exact law goes on below 1 / (n_resamples + 1), by one draw, too.
    of_one_draw = kcalib.calibration_test(y, p, method=named_method(method, n_resamples=1)).pvalue
    assert of_one_draw in (0.5, 1.0) or (method == "exact" and 0 < of_one_draw < 0.5)


@pytest.mark.parametrize("method", ["spectrum", "pearson", "gamma"])
def test_nothing_random_no_seed(method):
    y, p = softmax_problem(300, 3)
    results = [kcalib.calibration_test(y, p, method=method, seed=seed) for seed in (None, 1)]
    assert results[0].seed is results[1].seed is None
    assert results[0].pvalue == results[1].pvalue


@pytest.mark.parametrize("method", PLAIN)
def test_one_hot_and_right(method):
    """Nothing varies: the documented limits."""
    y = np.arange(20) % 3
    result = kcalib.calibration_test(y, np.eye(3)[y], method=method, seed=0)
    assert (result.statistic, result.estimate, result.pvalue, result.log_pvalue) == (0, 0, 1, 0)


@pytest.mark.parametrize("method", PLAIN)
@pytest.mark.parametrize("n", [4, *(pytest.param(n, marks=pytest.mark.grid) for n in (5, 8))])
def test_hard_data_give_numbers(method, n):
    rng = np.random.default_rng(n)
    problems = {
        "one-hot and wrong": (np.zeros(n, dtype=int), np.eye(3)[np.full(n, 1)]),
        "identical": (np.arange(n) % 3, np.tile([0.2, 0.3, 0.5], (n, 1))),
        "saturated": (rng.integers(3, size=n), np.eye(3)[rng.integers(3, size=n)] * (1 - 3e-16) + 1e-16),
        "one class": (np.zeros(n, dtype=int), rng.dirichlet(np.ones(3), size=n)),
        "binary": (np.arange(n) % 2, rng.uniform(size=n)),
    }
    for name, (y, p) in problems.items():
        result = kcalib.calibration_test(y, p, method=method, seed=0, kernel=KERNEL)
        assert 0 <= result.pvalue <= 1, name
        assert not math.isnan(result.statistic) and not math.isnan(result.log_pvalue), name
        if name == "one-hot and wrong" and method in ALL_PAIRS and method not in ("gamma", "pearson", "bootstrap"):
            assert result.estimate == pytest.approx(2.0)


@pytest.mark.parametrize("method", ALL_PAIRS)
@pytest.mark.parametrize("n", [2, 3])
def test_two_and_three_samples(method, n):
    y, p = np.array([0, 1, 1])[:n], np.array([[0.3, 0.7], [0.6, 0.4], [0.2, 0.8]])[:n]
    result = kcalib.calibration_test(y, p, method=method, seed=0, kernel=KERNEL)
    assert 0 < result.pvalue <= 1
    assert result.standard_error is None
    with pytest.raises(ValueError, match="there is no confidence interval for the unbiased SKCE"):
        result.confidence_interval()
    with pytest.raises(ValueError, match=f"method='{method}' needs at least 2 samples, `y_true` has 1"):
        kcalib.calibration_test(y[:1], p[:1], method=method, kernel=KERNEL)


# -- the default -------------------------------------------------------------------------------------


def test_adaptive_is_the_default():
    y, p = softmax_problem(60, 3)
    (default, named), (evaluation, by_name) = (
        [dataclasses.replace(test(y, p, seed=2, **options), seconds=0) for options in ({}, {"method": "adaptive"})]
        for test in (kcalib.calibration_test, lambda *a, **o: kcalib.evaluate(*a, **o).test)
    )
    assert default == named == evaluation == by_name and default.method == "adaptive"


@pytest.mark.grid
@pytest.mark.parametrize("n", [60, pytest.param(300, marks=pytest.mark.grid)])
def test_exact_reaches_beyond_the_draws(n):
    y, p = softmax_problem(n, 3)
    p = p[:, ::-1].copy()
    result = kcalib.calibration_test(y, p, method="exact", seed=0)
    assert result.pvalue_from == "tilted draws"
    assert result.pvalue < 1e-9 and result.n_resamples == 999


@pytest.mark.grid
def test_the_default_does_not_mind_sorted_labels():
    y, p = softmax_problem(12_000, 10)
    order = np.argsort(y, kind="stable")
    assert kcalib.calibration_test(y[order], p[order], seed=0).pvalue > 1e-3


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (methods.Exact, {"n_resamples": 0}, "`n_resamples` is 0, expected an integer between 1 and"),
        (methods.Bootstrap, {"n_resamples": 0}, "`n_resamples` is 0, expected an integer between 1 and"),
        (methods.Multiplier, {"n_resamples": 0}, "`n_resamples` is 0, expected an integer between 1 and"),
        (methods.Multiplier, {"multipliers": "mammen"}, "`multipliers` is 'mammen', expected one of 'rademacher'"),
        (methods.Spectrum, {"n_eigenvalues": 0}, "`n_eigenvalues` is 0, expected an integer at least 1, or 'all'"),
        (methods.Spectrum, {"n_eigenvalues": "some"}, "`n_eigenvalues` is 'some', expected one of 'all'"),
        (methods.Pearson, {"n_eigenvalues": 3, "max_memory": 1e9}, "`max_memory` is for all eigenvalues, but "
         "`n_eigenvalues` is 3"),
        (methods.Spectrum, {"max_memory": -1}, "`max_memory` is -1, expected a positive number of bytes"),
        (methods.Multiplier, {"reference": "null"}, "`reference` is .null., expected one of 'conditional'"),
        (methods.Gamma, {"reference": "null"}, "`reference` is .null., expected one of 'conditional'"),
        (methods.Block, {"block_size": 1}, "`block_size` is 1, expected an integer at least 2"),
        (methods.Block, {"variance": "null"}, "`variance` is 'null', expected one of 'conditional', 'sample'"),
        (methods.Linear, {"variance": "null"}, "`variance` is 'null', expected one of 'conditional', 'sample'"),
        (methods.DistributionFree, {"estimator": "ece"}, "`estimator` is 'ece', expected one of 'unbiased'"),
        (methods.DistributionFree, {"block_size": 4}, "`block_size` is 4, but estimator='unbiased' has no block size"),
        (methods.DistributionFree, {"bound": 0}, "`bound` is 0, expected a positive number"),
        (methods.DistributionFree, {"norms": (0.5, 1)}, r"`norms` is \(0.5, 1\), expected two numbers from 1"),
    ],
)  # fmt: skip
def test_errors_of_options(method, options, message):
    """When the object is made, before there are any data."""
    with pytest.raises(ValueError, match=message):
        method(**options)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (methods.Exact, {"n_resamples": 9.5}, "`n_resamples` is 9.5, expected an integer"),
        (methods.Spectrum, {"max_memory": "1 GB"}, "`max_memory` is '1 GB', expected a number of bytes"),
        (methods.Spectrum, {"max_memory": True}, "`max_memory` is True, expected a number of bytes"),
        (methods.DistributionFree, {"bound": "1"}, "`bound` is '1', expected a number"),
        (methods.DistributionFree, {"norms": 2}, "`norms` is 2, expected two numbers"),
        (methods.Gamma, {"n_eigenvalues": 3}, "unexpected keyword argument 'n_eigenvalues'"),
    ],
)
def test_type_errors_of_options(method, options, message):
    with pytest.raises(TypeError, match=message):
        method(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "wald"}, "`method` is 'wald', expected one of 'adaptive', 'exact', 'features', 'spectrum'"),
        ({"method": methods.Spectrum(n_eigenvalues=13)}, "`n_eigenvalues` is 13, expected an integer between 1 and 12"),
        ({"method": methods.Block(block_size=7)}, "`block_size` is 7, expected an integer between 2 and 6: the test "
         "needs at least two blocks"),
        ({"method": methods.DistributionFree(norms=(2, 1)), "target_kernel": psd_matrix(3, 3)},
         r"`norms` is \(2.0, 1.0\): this norm of a matrix that is not diagonal is not known in closed form"),
        ({"seed": -1}, "`seed` is -1, expected an integer between 0 and"),
    ],
)  # fmt: skip
def test_errors(options, message):
    y, p = softmax_problem(12, 3)
    with pytest.raises(ValueError, match=message):
        kcalib.calibration_test(y, p, **options)


@pytest.mark.parametrize(
    ("method", "message"),
    [(methods.Exact, r"`method` is the class Exact; pass an object, Exact\(\)"), (3, "`method` is 3, expected one of")],
)
def test_what_is_no_method(method, message):
    y, p = softmax_problem(12, 3)
    with pytest.raises(TypeError, match=message):
        kcalib.calibration_test(y, p, method=method)


def test_all_eigenvalues_are_refused_where_memory_is_short():
    y, p = softmax_problem(300, 3)
    with pytest.raises(
        MemoryError, match=r"all eigenvalues of 300 samples take 12.4 MiB of memory, 0.954 MiB are allowed"
    ):
        kcalib.calibration_test(y, p, method=methods.Spectrum(n_eigenvalues="all", max_memory=1e6))
    wide, tall = softmax_problem(100, 2)
    labels, predictions = np.tile(wide, 5000), np.tile(tall, (5000, 1))
    with pytest.raises(
        MemoryError, match=r"all eigenvalues of 500000 samples take 3.73e\+03 GiB of memory, .* are available"
    ):
        kcalib.calibration_test(labels, predictions, method=methods.Spectrum(n_eigenvalues="all"), kernel=KERNEL)


def test_a_kernel_without_a_bound():
    class Distance(kcalib.kernels.Kernel):
        def resolve(self, median_distance):
            return self

        def terms(self):
            return (kcalib._pairs.problem.Term(1.0, (kcalib._pairs.problem.Factor("identity", "euclidean"),)),)

        def factors(self):
            return ()

    y, p = softmax_problem(12, 3)
    with pytest.raises(ValueError, match="`kernel` has no known bound: method='distribution_free' needs `bound`"):
        kcalib.calibration_test(y, p, method="distribution_free", kernel=Distance())
    assert (
        kcalib.calibration_test(y, p, method=methods.DistributionFree(bound=2**0.5), kernel=Distance()).bound
        == 2 * 2**0.5
    )


@pytest.mark.parametrize(
    "method",
    [
        methods.Exact(n_resamples=5),
        methods.Block(),
        methods.DistributionFree(estimator="linear"),
        methods.CME(locations=3),
        methods.Consistency("unbiased", n_resamples=5),
        methods.Consistency("ucme", n_resamples=5, resample_predictions=False),
    ],
    ids=str,
)
@pytest.mark.parametrize("predicted", ["classes", "distributions"])
@pytest.mark.filterwarnings("ignore::kcalib.AntiConservativeWarning")
def test_what_is_reordered_or_redrawn_is_not_packed_again(method, predicted, monkeypatch):
    called = []
    for name in ("pack", "pack_locations"):
        packing = getattr(_packing, name)
        monkeypatch.setattr(_packing, name, lambda *a, packing=packing, **k: called.append(1) or packing(*a, **k))
    y, p = softmax_problem(40, 3)
    if predicted == "distributions":
        y, p = p[:, 0] + p[:, 1], kcalib.distributions.Normal(p[:, 0], 0.1 + p[:, 1])
    kcalib.calibration_test(y, p, method=method, seed=1)
    assert len(called) == 1


def test_methods_are_public():
    assert [getattr(methods, cls.__name__) for cls in METHODS] == list(METHODS)
    for cls in METHODS:
        assert f'"{cls.name}"' in kcalib.calibration_test.__doc__ or cls.name in kcalib.calibration_test.__doc__


@pytest.mark.parametrize("cls", METHODS)
def test_a_method_documents_its_options(cls):
    documented = cls.__doc__.partition("Notes\n")[0]
    for option in dataclasses.fields(cls):
        assert re.search(rf"\n    (\w+, )*{option.name}(, \w+)* : ", documented), option.name
    assert "References" in cls.__doc__ and "Examples" in cls.__doc__


@pytest.mark.parametrize("cls", METHODS)
@pytest.mark.filterwarnings("ignore::kcalib.AntiConservativeWarning")
def test_a_name_is_the_method_with_its_defaults(cls):
    y, p = (np.arange(60) % 7, Samples(np.eye(60, 5))) if cls is methods.Ranks else softmax_problem(60, 3)
    named, made = (
        dataclasses.replace(kcalib.calibration_test(y, p, method=method, seed=2), seconds=0)
        for method in (cls.name, cls())
    )
    assert named == made
    assert cls() == cls() or not cls.__dataclass_params__.eq
    assert pickle.loads(pickle.dumps(cls())).name == cls.name
    with pytest.raises(dataclasses.FrozenInstanceError):
        cls().name = "other"


# -- the methods of other files --------------------------------------------------------------------


def test_cme_is_that_of_its_file():
    y, p = softmax_problem(60, 3)
    for options in ({}, {"reference": "conditional"}, {"reference": "F", "locations": 4}, {"reference": "chi2"}):
        result = kcalib.calibration_test(y, p, method=methods.CME(**options), seed=3, kernel=KERNEL)
        expected = methods.CME(**options).outcome(prepare(y, p), PairOptions(KERNEL), 3)
        assert (result.pvalue, result.statistic) == (expected.pvalue, expected.statistic)
        assert result.estimate == kcalib.ucme(y, p, seed=3, kernel=KERNEL, locations=result.n_locations)
        assert (result.method, result.estimator, result.seed) == ("cme", "UCME", 3)
        assert result.n_locations == options.get("locations", 10)
    given = {"locations": ([0, 2], np.log(p[:2]) + 3.0)}
    method = methods.CME(from_logits=True, reference="conditional", **given)
    logits = kcalib.calibration_test(y, np.log(p), method=method, from_logits=True, kernel=KERNEL)
    assert logits.seed is None and logits.n_locations == 2
    expected = kcalib.ucme(y, p, kernel=KERNEL, locations=([0, 2], p[:2]))
    assert logits.estimate == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError, match="there is no confidence interval for the UCME with method='cme'"):
        result.confidence_interval()


@pytest.mark.grid
def test_exact_and_consistency_with_labels_only_agree():
    """The same law by two ways: quadratic forms of the kernel matrix, and the estimate of each replicate."""
    y, p = softmax_problem(50, 3, seed=5)
    p = p**1.5 / np.sum(p**1.5, axis=1, keepdims=True)
    one = kcalib.calibration_test(y, p, method=methods.Exact(n_resamples=4000), seed=0, kernel=KERNEL)
    method = methods.Consistency("unbiased", resample_predictions=False, n_resamples=4000)
    other = kcalib.calibration_test(y, p, method=method, seed=1, kernel=KERNEL)
    assert one.estimate == pytest.approx(other.estimate, rel=1e-12)
    share = (one.pvalue + other.pvalue) / 2
    assert abs(one.pvalue - other.pvalue) < 4.5 * math.sqrt(2 * share * (1 - share) / 4000)


@pytest.mark.parametrize("method", ["exact", "bootstrap", "multiplier", "consistency"])
def test_pvalues_of_resampling_are_ratios_bit_for_bit(method):
    """So that `pvalue <= 0.05` says what it means at 1 of 20."""
    for seed in range(15):
        y, p = softmax_problem(30, 3, seed=seed)
        options = {"resample_predictions": False} if method == "consistency" else {}
        chosen = named_method(method, n_resamples=199, **options)
        pvalue = kcalib.calibration_test(y, p, method=chosen, seed=0).pvalue
        assert pvalue == round(pvalue * 200) / 200


@pytest.mark.parametrize("errors", [9, 11, 12, 26])
def test_ties_of_identical_predictions_count(errors):
    """The statistic is a function of the number of events, and rounding must not tell equal numbers apart."""
    n, rate, count = 200, 0.1, 10 * 999
    events = np.arange(n + 1)
    squares = 2 * (events - n * rate) ** 2 - 2 * (events * (1 - rate) ** 2 + (n - events) * rate**2)
    law = scipy.stats.binom.pmf(events, n, rate)
    expected = law[squares >= squares[errors] - 1e-9].sum()
    y, p = (np.arange(n) < errors).astype(int), np.full(n, rate)
    found = [kcalib.calibration_test(y, p, method="exact", seed=seed) for seed in range(10)]
    as_large = sum(round(1000 * one.pvalue) - 1 for one in found if one.pvalue > 1e-3)
    low, high = scipy.stats.binom.interval(1 - 1e-6, count, expected)
    assert low <= as_large <= high


def test_ties_of_predictions_rounded_to_float32_count():
    """They sum to 1 + 4e-8: residuals are not (-r, r), neither of the labels nor of those that are drawn."""
    n = 20_000
    p, kernel = np.tile(np.float32([4e-8, 1]), (n, 1)), Exponential(bandwidth=0.5)
    method = methods.Exact(n_resamples=99)
    for target_kernel in (None, [[2.0, 0.5], [0.5, 1.0]]):
        options = {"kernel": kernel, "target_kernel": target_kernel, "method": method, "dtype": "float32", "seed": 0}
        found = kcalib.calibration_test(np.ones(n, int), p, **options)
        assert found.backend == "sorted"
        assert found.pvalue == 1.0


def test_blocks_of_kernels_that_are_not_one_on_the_diagonal():
    """The law has E H_ii, which a linear kernel multiplies by |p|^2; a scale of the kernel is no evidence."""
    y, p = softmax_problem(60, 3)
    pvalues = [
        kcalib.calibration_test(y, p, method="block", kernel=kernel, seed=0).pvalue
        for kernel in (Linear(), 3.0 * Linear(), Linear() + Exponential(bandwidth=0.5))
    ]
    assert pvalues[1] == pytest.approx(pvalues[0], rel=1e-9) and 0.001 < pvalues[2] < 1
