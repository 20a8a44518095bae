"""Comparison of models: literal formulas, limits, errors; coverage by simulation against exact population values."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
import re

import numpy as np
import oracle
import pytest
import scipy.optimize
import scipy.stats
from hard_laws import LAWS, Law
from problems import binomial_bounds, softmax_problem

import kcalib
from kcalib import _packing
from kcalib._backend.random import Weights
from kcalib._input.forecasts import prepare as forecasts
from kcalib._input.labels import Classification, prepare
from kcalib._pairs.statistics import ScoreVariance
from kcalib.distributions import Distribution, NegativeBinomial, Normal, Poisson
from kcalib.inference import ckce_expansion, metrics
from kcalib.inference.compare import METRICS, holm
from kcalib.inference.metrics import pair_laws, possible
from kcalib.inference.metrics.certainty import (
    compute_sign_flip_limits,
    compute_unseen_limits,
    limit_certainty,
    unseen_pvalue,
)
from kcalib.inference.metrics.pair_laws import pair_variances
from kcalib.kernels import Exponential, Gaussian, Linear
from kcalib.report.summary import cut
from kcalib.results import ConfidenceInterval

OF_CLASSES = [metric.name for metric in METRICS if Classification in metric.kinds]


def metric_with(name, **options):
    """The metric of this name with options; a kernel only if it has one."""
    (cls,) = (metric for metric in METRICS if metric.name == name)
    if name not in ("skce", "ckce"):
        options.pop("kernel", None)
    return cls(**options)


KERNEL = Exponential(bandwidth=0.5)
CKCE_KERNEL = Linear() + Gaussian(bandwidth=0.5)


def powered(p: np.ndarray, exponent: float) -> np.ndarray:
    q = p**exponent
    return q / q.sum(axis=1, keepdims=True)


def three_models(n: int = 200, m: int = 3, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    y, p = softmax_problem(n, m, seed, scale=1.0)
    return y, {"calibrated": p, "sharp": powered(p, 2.5), "flat": powered(p, 0.4)}


# -- values


def test_values_are_those_of_the_estimators():
    y, models = three_models()
    expected = {
        "skce": lambda p: kcalib.skce(y, p, kernel=KERNEL),
        "ece": lambda p: kcalib.top_label_ece(y, p),
        "brier_score": lambda p: kcalib.brier_score(y, p),
        "log_loss": lambda p: kcalib.log_loss(y, p),
    }
    assert {*expected, "ckce"} == set(OF_CLASSES)  # that one has a bias, which is removed
    for metric, function in expected.items():
        result = kcalib.compare(
            y, models, metric=metric_with(metric, **({"kernel": KERNEL} if metric == "skce" else {}))
        )
        for name, p in models.items():
            assert result.model(name).value == pytest.approx(function(p), rel=1e-12)
        assert result.ranking == tuple(sorted(models, key=lambda name: function(models[name])))
        assert [entry.rank for entry in map(result.model, result.ranking)] == [1, 2, 3]
        for d in result.differences:
            assert d.difference == pytest.approx(function(models[d.first]) - function(models[d.second]), abs=1e-15)
        assert [(d.first, d.second) for d in result.differences] == list(itertools.combinations(models, 2))


def test_binary_brier_score_and_options_reach_the_metrics():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=300)
    y = np.where(rng.uniform(size=300) < p, "yes", "no")
    logits = {"a": np.log(p / (1 - p)), "b": 2 * np.log(p / (1 - p))}
    options = {"classes": ["no", "yes"], "from_logits": True}
    result = kcalib.compare(y, logits, metric="brier_score", **options)
    assert result.model("b").value == pytest.approx(kcalib.brier_score(y, logits["b"], **options), rel=1e-12)
    result = kcalib.compare(y, logits, metric=kcalib.methods.ECE(n_bins=7, n_resamples=99), seed=5, **options)
    expected = kcalib.top_label_ece(y, logits["b"], n_bins=7, **options)
    assert result.model("b").value == pytest.approx(expected, rel=1e-12)
    assert (result.n_bins, result.seed, result.n_resamples) == (7, 5, 99)
    kernels = {"kernel": KERNEL, "target_kernel": np.diag([1.0, 3.0]), "dtype": "float32"}
    result = kcalib.compare(y, logits, metric=kcalib.methods.SKCE(**kernels), **options)
    expected = kcalib.skce.result(y, logits["b"], **kernels, **options)
    entry = result.model("b")
    assert (entry.value, entry.standard_error) == pytest.approx((expected.value, expected.standard_error), rel=1e-6)
    assert (result.dtype, result.target_kernel, result.backend) == ("float32", "matrix of rank 2", expected.backend)


# -- statistics, literally


def distinct_products(h: np.ndarray) -> float:
    """Mean of h_ij h_kl over four distinct indices."""
    products = [h[a, b] * h[c, d] for a, b, c, d in itertools.permutations(range(len(h)), 4)]
    return float(np.mean(products))


def leave_one_out(h: np.ndarray) -> np.ndarray:
    return np.array([oracle.unbiased(np.delete(np.delete(h, i, 0), i, 1)) for i in range(len(h))])


def law_variance(weights: tuple, predictions: tuple, matrix: np.ndarray) -> float:
    """Mean over pairs of the variance of H^A_ij - H^B_ij (one model: of H_ij), by all labels of the two samples.

    The larger one of those under the laws of the labels that the models predict.
    """
    n, m = predictions[0].shape
    means = []
    for p in predictions:
        variances = []
        for i, j in itertools.permutations(range(n), 2):
            labels = list(itertools.product(range(m), repeat=2))
            shares = np.array([p[i, a] * p[j, b] for a, b in labels])
            entries = np.zeros(len(labels))
            for sign, k, q in zip((1, -1), weights, predictions, strict=False):
                unit = np.eye(m)
                entries += [sign * k[i, j] * (unit[a] - q[i]) @ matrix @ (unit[b] - q[j]) for a, b in labels]
            variances.append(shares @ entries**2 - (shares @ entries) ** 2)
        means.append(np.mean(variances))
    return max(means)


def kernel_values(p: np.ndarray) -> np.ndarray:
    return np.exp(-np.sqrt(np.sum((p[:, None] - p) ** 2, axis=-1)) / KERNEL.bandwidth)


def test_skce_intervals_by_hand():
    y, models = three_models(9)
    n, q = 9, scipy.stats.t(8).isf(0.05)
    h = {name: oracle.h_matrix(KERNEL, y, p).astype(float) for name, p in models.items()}
    result = kcalib.compare(y, models, metric=kcalib.methods.SKCE(kernel=KERNEL), confidence_level=0.9)
    off = ~np.eye(n, dtype=bool)
    for d in result.differences:
        difference = h[d.first] - h[d.second]
        jackknife = (n - 1) / n * np.sum((leave_one_out(difference) - np.mean(leave_one_out(difference))) ** 2)
        predicted = (models[d.first], models[d.second])
        floor = law_variance(tuple(map(kernel_values, predicted)), predicted, np.eye(3))
        z2 = max(floor, np.mean(difference[off] ** 2) - distinct_products(difference))
        error = np.sqrt(jackknife + 2 * z2 / (n * (n - 1)))
        assert d.standard_error == pytest.approx(error, rel=1e-10)
        assert d.confidence_interval == pytest.approx((d.difference - q * error, d.difference + q * error), rel=1e-9)
        assert d.pvalue == pytest.approx(2 * scipy.stats.t(8).sf(abs(d.difference) / error), rel=1e-9)
    for name, p in models.items():
        entry = result.model(name)
        literal = kcalib.skce.result(y, p, kernel=KERNEL).standard_error
        assert entry.standard_error == pytest.approx(literal, rel=1e-9)
        # <g, S g> / |g|^2 at the plug-in: S the covariance of the embedded residuals, by the Gram matrix H.
        own = h[name]
        embedded = np.mean(own, axis=1)
        eigenvalue = np.var(embedded) / np.mean(own)
        floor = law_variance((kernel_values(p),), (p,), np.eye(3))
        z2 = max(floor, np.mean(own[off] ** 2) - distinct_products(own))

        def excess(t, value=entry.value, eigenvalue=eigenvalue, z2=z2):
            variance = (4 * (n - 2) * eigenvalue * max(0.0, t) + 2 * z2) / (n * (n - 1))
            return t - value - q * np.sqrt(variance)

        root = scipy.optimize.brentq(excess, entry.value, entry.value + 100, xtol=1e-14)
        assert entry.confidence_interval.high == pytest.approx(root, rel=1e-9)
        score = ScoreVariance(4 * (n - 2) * eigenvalue / (n * (n - 1)), 2 * z2 / (n * (n - 1)))
        low = min(entry.value - q * entry.standard_error, score.lower_limit(entry.value, 0.05))
        assert entry.confidence_interval.low == pytest.approx(low, rel=1e-9)


def literal_ckce(y: np.ndarray, p: np.ndarray, regularization: float, target_kernel: np.ndarray) -> dict:
    """Sample after sample left out, and solved anew."""
    n, e = len(p), (np.eye(p.shape[1])[y] - p) @ np.linalg.cholesky(target_kernel)
    k = p @ p.T + np.exp(-2 * np.sum((p[:, None] - p) ** 2, axis=-1))  # CKCE_KERNEL
    shift = n * regularization

    def ckce(kept):
        z = np.linalg.inv(k[np.ix_(kept, kept)] + shift * np.eye(len(kept))) @ e[kept]
        return np.trace(z.T @ k[np.ix_(kept, kept)] @ z), z

    inverse = np.linalg.inv(k + shift * np.eye(n))
    between = inverse @ k @ inverse
    leverages = np.diag(k @ inverse)
    everything, _ = ckce(np.arange(n))
    scores, without = np.empty(n), np.empty_like(e)
    for i in range(n):
        others = np.delete(np.arange(n), i)
        value, z = ckce(others)
        without[i] = e[i] - k[i, others] @ z
        scores[i] = everything - value - between[i, i] * without[i] @ without[i]
    bias = 0.0
    for i in range(n):
        held_by_others = (between @ e)[i] - between[i, i] * without[i]
        bias += e[i] @ (between[i, i] * without[i] - 2 * leverages[i] * held_by_others)
    influences = 2 * shift * np.sum((inverse @ e) * (between @ e), axis=1)
    return {
        "value": everything - bias, "plug_in": everything, "scores": scores, "influences": influences,
        "pairs": between * (without @ without.T), "between": between,
    }  # fmt: skip


@pytest.mark.parametrize("target_kernel", [None, np.array([[2.0, 1, 0], [1, 2, 0], [0, 0, 1]])])
def test_ckce_intervals_by_hand(target_kernel):
    y, models = three_models(9)
    n, q = 9, scipy.stats.t(8).isf(0.05)
    options = {"kernel": CKCE_KERNEL, "regularization": 0.3}
    options |= {} if target_kernel is None else {"target_kernel": target_kernel}
    result = kcalib.compare(y, models, metric=kcalib.methods.CKCE(**options), confidence_level=0.9)
    assert (result.regularization, result.kernel) == (0.3, str(CKCE_KERNEL))
    matrix = np.eye(3) if target_kernel is None else target_kernel
    literal = {name: literal_ckce(y, p, 0.3, matrix) for name, p in models.items()}
    off = ~np.eye(n, dtype=bool)
    for d in result.differences:
        a, b = literal[d.first], literal[d.second]
        jackknife = n * np.var(a["scores"] - b["scores"], ddof=1)
        predicted = (models[d.first], models[d.second])
        floor = n * (n - 1) * law_variance((a["between"], b["between"]), predicted, matrix)
        error = np.sqrt(jackknife + 2 * max(floor, np.sum((a["pairs"] - b["pairs"])[off] ** 2)))
        assert d.difference == pytest.approx(a["value"] - b["value"], rel=1e-10)
        assert d.standard_error == pytest.approx(error, rel=1e-10)
        assert d.confidence_interval == pytest.approx((d.difference - q * error, d.difference + q * error), rel=1e-9)
    for name, own in literal.items():
        entry = result.model(name)
        assert own["plug_in"] == pytest.approx(kcalib.ckce(y, models[name], **options), rel=1e-9)
        floor = n * (n - 1) * law_variance((own["between"],), (models[name],), matrix)
        degenerate = 2 * max(floor, np.sum(own["pairs"][off] ** 2))
        error = np.sqrt(max(0, n * np.var(own["scores"], ddof=1) - 2 * degenerate) + degenerate)
        assert (entry.value, entry.standard_error) == pytest.approx((own["value"], error), rel=1e-10)
        slope = n * np.var(own["influences"], ddof=1) / own["plug_in"]

        def excess(t, value=entry.value, slope=slope, degenerate=degenerate):
            return t - value - q * np.sqrt(slope * max(0.0, t) + degenerate)

        root = scipy.optimize.brentq(excess, entry.value, entry.value + 100, xtol=1e-14)
        assert entry.confidence_interval.high == pytest.approx(root, rel=1e-9)
        low = min(entry.value - q * error, ScoreVariance(slope, degenerate).lower_limit(entry.value, 0.05))
        assert entry.confidence_interval.low == pytest.approx(low, rel=1e-9)


def test_ckce_of_calibrated_models_has_no_bias():
    """The mean over all labels, each as often as the predictions say, is exactly 0; that of `kcalib.ckce` is not."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 4)
    p[3] = p[2]
    mean = plug_in = 0.0
    for labels in itertools.product(range(3), repeat=4):
        share = np.prod(p[np.arange(4), labels])
        models = {"calibrated": p, "other": np.roll(p, 1, axis=0)}
        result = kcalib.compare(np.array(labels), models, metric=kcalib.methods.CKCE(kernel=CKCE_KERNEL))
        mean += share * result.model("calibrated").value
        plug_in += share * kcalib.ckce(np.array(labels), p, kernel=CKCE_KERNEL)
    assert abs(mean) < 1e-15 < 0.01 < plug_in


@pytest.mark.parametrize(
    ("n", "m", "rank", "regularization", "accuracy"),
    [*((400, m, ckce_expansion.RANK, None, 0.02) for m in (2, 3, 10)), (300, 10, 5, 1e-3, 0.05)],
)
def test_ckce_by_a_factor_of_small_rank(monkeypatch, n, m, rank, regularization, accuracy):
    """Beside a factor that is K: what is left out hardly matters; one that is too small is enlarged."""
    y, p = softmax_problem(n, m, scale=1.0)
    models, metric = {"a": p, "b": powered(p, 1.5)}, kcalib.methods.CKCE(CKCE_KERNEL, regularization=regularization)
    found = []
    for columns in (rank, n):
        monkeypatch.setattr(ckce_expansion, "RANK", columns)
        found.append(kcalib.compare(y, models, metric=metric))
    for a, b in zip(*(one.models + one.differences for one in found), strict=True):
        assert a.standard_error == pytest.approx(b.standard_error, rel=accuracy)
        assert a.confidence_interval == pytest.approx(b.confidence_interval, abs=2.5 * accuracy * b.standard_error)


LOSSES = {
    "brier_score": lambda p, y: np.sum((np.eye(p.shape[1])[y] - p) ** 2, axis=1),
    "log_loss": lambda p, y: -np.log(p[np.arange(len(p)), y]),
}


@pytest.mark.parametrize("metric", LOSSES)
def test_means_are_paired_t_tests(metric):
    y, models = three_models(1000)
    result = kcalib.compare(y, models, metric=metric, confidence_level=0.99)
    losses = {name: LOSSES[metric](p, y) for name, p in models.items()}
    for d in result.differences:
        t = scipy.stats.ttest_rel(losses[d.first], losses[d.second])
        assert d.pvalue == pytest.approx(t.pvalue, rel=1e-9)
        assert d.confidence_interval == pytest.approx(tuple(t.confidence_interval(0.99)), rel=1e-9)
    for entry in result.models:
        t = scipy.stats.ttest_1samp(losses[entry.model], 0.0)
        assert entry.confidence_interval == pytest.approx(tuple(t.confidence_interval(0.99)), rel=1e-9)
        assert entry.standard_error == pytest.approx(entry.value / t.statistic, rel=1e-9)


@pytest.mark.parametrize("metric", LOSSES)
def test_spread_of_losses_under_the_laws_of_the_models(metric):
    """Where few events are expected: each model's law of the labels, by all labels of each sample."""
    rng = np.random.default_rng(0)
    p = rng.beta(1, 100, size=200)
    models = {"a": p, "b": p / 2}
    predicted = [np.stack([1 - q, q], axis=1) for q in models.values()]
    y = np.zeros(200, dtype=int)
    every = [LOSSES[metric](np.repeat(q, 2, axis=0), np.tile([0, 1], 200)).reshape(200, 2) for q in predicted]
    every = np.array(every) * (0.5 if metric == "brier_score" else 1.0)
    result = kcalib.compare(y, models, metric=metric)

    def error(loss, laws):
        variances = [np.sum(q * (loss - np.sum(q * loss, axis=1, keepdims=True)) ** 2) / 200 for q in laws]
        assert max(variances) > np.var(loss[:, 0], ddof=1)
        return np.sqrt(max(variances) / 200)

    assert result.differences[0].standard_error == pytest.approx(error(every[0] - every[1], predicted), rel=1e-9)
    for entry, loss, law in zip(result.models, every, predicted, strict=True):
        assert entry.standard_error == pytest.approx(error(loss, [law]), rel=1e-9)
    # What may not have been seen: 200 samples miss events of probabilities that add up to 3.65 in one of 40 sets.
    (d,) = result.differences
    number = 200 * (1 - 0.025 ** (1 / 200))
    changes = np.sort((every[0] - every[1]) @ [-1.0, 1.0])[::-1]
    for sign in (1, -1):
        worst = np.sort(np.maximum(sign * changes, 0.0))[::-1]
        shift = (worst[: int(number)].sum() + worst[int(number)] * (number - int(number))) / 200
        limit = d.confidence_interval.high if sign > 0 else d.confidence_interval.low
        width = scipy.stats.t(199).isf(0.025) * d.standard_error
        assert limit == pytest.approx(d.difference + sign * max(shift, width), rel=1e-9)


def test_ece_intervals_by_hand(monkeypatch):
    """Bin by bin and replicate by replicate; several batches of replicates."""
    n, n_bins, replicates = 150, 5, 199
    monkeypatch.setattr(metrics.binned_gaps, "EVENTS", 0)  # bins of rare events have draws of their own
    monkeypatch.setattr(metrics.ece, "WEIGHTS_AT_ONCE", 8 * n * 50)
    y, models = three_models(n)
    result = kcalib.compare(y, models, metric=kcalib.methods.ECE(n_bins=n_bins, n_resamples=replicates), seed=3)
    counts = Weights("multinomial", n, replicates, 3).values()
    low = {name: np.zeros((n_bins, replicates)) for name in models}
    high = {name: np.zeros((n_bins, replicates)) for name in models}
    certain = set()
    linear: dict = {}
    unseen: dict = {}
    for name, p in models.items():
        gap = (p.argmax(axis=1) == y) - p.max(axis=1)
        factor = np.sqrt(n / (n - len(set(np.ceil(n_bins * p.max(axis=1))))))
        linear[name] = np.zeros(n)  # what each sample contributes, to first order
        for b in range(n_bins):
            inside = np.where((p.max(axis=1) > b / n_bins) & (p.max(axis=1) <= (b + 1) / n_bins), gap, 0.0)
            mean = inside.mean()
            linear[name] += np.sign(mean) * inside
            for r in range(replicates):
                deviation = factor * (np.mean(counts[:, r] * inside) - mean)
                low[name][b, r] = np.sign(mean) * deviation
                sure = abs(mean) > np.sqrt(np.log(n)) * np.std(inside) / np.sqrt(n)
                high[name][b, r] = low[name][b, r] if sure else abs(deviation)
                certain |= {bool(sure)}
            correct = (p.argmax(axis=1) == y)[(p.max(axis=1) > b / n_bins) & (p.max(axis=1) <= (b + 1) / n_bins)]
            number = unseen.setdefault(name, 0)
            unseen[name] = number + (len(correct) if len(set(correct)) == 1 else 0)
    # Bins of right, or of wrong labels alone: what they may not hold, with a probability of 2.5 %.
    unseen = {name: k * (1 - 0.025 ** (1 / k)) / n if k else 0.0 for name, k in unseen.items()}
    assert certain == {False, True}

    def limits(value, low, high, unseen):
        low, high = np.sort(low.sum(axis=0)) - unseen, np.sort(high.sum(axis=0)) + unseen
        # 2.5 % of 200: the fifth on either side.
        pvalue = 2 * (1 + min(np.sum(high >= value), np.sum(low <= value))) / 200
        return value - high[-5], value - low[4], min(1.0, pvalue)

    for name, entry in zip(models, result.models, strict=True):
        lowest, highest, _ = limits(entry.value, low[name], high[name], unseen[name])
        assert entry.confidence_interval == pytest.approx((max(0.0, lowest), highest), abs=1e-14)
        assert entry.standard_error == pytest.approx(np.std(linear[name], ddof=1) / np.sqrt(n), rel=1e-12)
    for d in result.differences:
        a, b = d.first, d.second
        *interval, pvalue = limits(d.difference, low[a] - high[b], high[a] - low[b], unseen[a] + unseen[b])
        assert d.confidence_interval == pytest.approx(interval, abs=1e-14)
        assert d.pvalue == pytest.approx(pvalue, abs=1e-14)
        assert d.standard_error == pytest.approx(np.std(linear[a] - linear[b], ddof=1) / np.sqrt(n), rel=1e-12)


def test_confidences_that_rounding_puts_above_one():
    """Labels of bins of rare events are drawn: with probabilities."""
    p = np.tile([1 + 1e-9, 0.0], (60, 1))
    p[30:] = [0.995, 0.005]
    flat = np.tile([0.6, 0.4], (60, 1))
    found = kcalib.compare(
        np.zeros(60, dtype=int), {"sure": p, "flat": flat}, metric=kcalib.methods.ECE(n_bins=5), seed=0
    )
    assert found.models[0].value == pytest.approx(0.0025, abs=1e-8)


def test_a_difference_of_zero_is_no_evidence():
    found = limit_certainty(0.0, 0.0, (0.0, 0.0, 0.0), 100, 0.95, ConfidenceInterval(-1.0, 1.0), 0.0)
    assert found.pvalue == 1.0
    assert limit_certainty(0.1, 0.0, (0.1, 0.1, 0.0), 100, 0.95, ConfidenceInterval(-1.0, 1.0), 0.0).pvalue < 1e-9


def test_terms_that_are_all_alike_by_hand():
    """A mean of 1/2 is 0 if a third of the terms is -1: as rare as that is not to be seen in 10 samples."""
    low, high, pvalue = compute_unseen_limits(0.5, 10, 0.95, ConfidenceInterval(-1.0, 2.0), order=1)
    assert pvalue == pytest.approx(unseen_pvalue(10, 1 / 3)) and low < 0.5 < high


def test_holm_by_hand():
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1; 0.04 is raised to 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.4, 0.6, 0.3]) == pytest.approx([0.9, 0.9, 0.9])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]


def test_holm_decides_who_is_distinguishable():
    y, models = three_models(400)
    models["nearly"] = powered(models["calibrated"], 1.02)
    result = kcalib.compare(y, models, metric="brier_score")
    assert [d.pvalue_holm for d in result.differences] == holm([d.pvalue for d in result.differences])
    near = {name: set() for name in models}
    for d in result.differences:
        assert d.distinguishable == (d.pvalue_holm <= 0.05)
        if not d.distinguishable:
            near[d.first].add(d.second)
            near[d.second].add(d.first)
    assert {entry.model: set(entry.not_distinguishable_from) for entry in result.models} == near
    assert near["calibrated"] == {"nearly"}
    strict = kcalib.compare(y, models, metric="brier_score", confidence_level=1 - 1e-12)
    assert all(len(entry.not_distinguishable_from) == 3 for entry in strict.models)


# -- the kernel


def test_one_bandwidth_for_all_models():
    y, models = three_models()
    medians = [kcalib.bandwidth.median_distance(p).value for p in models.values()]
    result = kcalib.compare(y, models)
    kernel = Exponential(bandwidth=float(np.median(medians)))
    assert result.kernel == str(kernel)
    assert result.bandwidth_source == "median over 3 models of the median euclidean distance of all samples"
    for name, p in models.items():
        assert result.model(name).value == pytest.approx(kcalib.skce(y, p, kernel=kernel), rel=1e-12)
    assert kcalib.compare(y, models, metric=kcalib.methods.SKCE(kernel=kernel)).bandwidth_source == "given"
    assert kcalib.compare(y, models, metric=kcalib.methods.SKCE(kernel=Linear())).kernel == "Linear()"
    given = kcalib.compare(
        y, models, metric=kcalib.methods.SKCE(kernel=Gaussian(metric="euclidean") + Exponential(metric="cityblock"))
    )
    assert "cityblock" in given.bandwidth_source and "euclidean" in given.bandwidth_source


def test_models_without_a_length_scale():
    y, models = three_models()
    share = np.bincount(y, minlength=3) / len(y)
    models["constant"] = np.tile(share, (len(y), 1))
    medians = [kcalib.bandwidth.median_distance(p).value for name, p in models.items() if name != "constant"]
    result = kcalib.compare(y, models)
    assert result.kernel == str(Exponential(bandwidth=float(np.median(medians))))
    assert "over 3 models" in result.bandwidth_source
    constant = {"a": models["constant"], "b": np.full((len(y), 3), 1 / 3)}
    found = kcalib.compare(y, constant)
    assert found.bandwidth_source.startswith("any: the distances of all predictions are 0")
    for one, (_, p) in zip(found.models, constant.items(), strict=True):
        assert one.value == kcalib.skce(y, p, kernel=Exponential(bandwidth=0.01))


@pytest.mark.parametrize("metric", OF_CLASSES)
def test_order_of_models_does_not_matter(metric):
    y, models = three_models(300)
    there = kcalib.compare(y, models, metric=metric)
    back = kcalib.compare(y, dict(reversed(models.items())), metric=metric)
    assert there.ranking == back.ranking and there.kernel == back.kernel
    for entry in there.models:
        assert entry == back.model(entry.model)
    for d in there.differences:
        other = back.difference(d.first, d.second)
        assert other.difference == d.difference
        assert other.confidence_interval == pytest.approx(d.confidence_interval, rel=1e-12)
        assert (other.pvalue, other.pvalue_holm) == pytest.approx((d.pvalue, d.pvalue_holm), rel=1e-9)


@pytest.mark.parametrize(
    ("metric", "seed", "accuracy"),
    [(kcalib.methods.SKCE(kernel=KERNEL), None, 0.2), (kcalib.methods.CKCE(kernel=CKCE_KERNEL), 0, 0.1)],
)
def test_subset_of_many_samples(monkeypatch, metric, seed, accuracy):
    """Pairs of 400 of 800 samples: the standard errors hardly change, estimates of the SKCE not at all."""
    y, p = softmax_problem(800, 3 if seed is None else 5, scale=1.0)
    models = {"a": p, "b": powered(p, 1.2)}
    whole = kcalib.compare(y, models, metric=metric)
    monkeypatch.setattr(metrics.skce, "MAX_SAMPLES", 400)
    monkeypatch.setattr(metrics.ckce, "CKCE_SAMPLES", 400)
    first, second, again = (kcalib.compare(y, models, metric=metric, seed=seed) for seed in (1, 2, 1))
    assert (whole.seed, first.seed, second.seed) == (seed, 1, 2)
    assert first.differences == again.differences != second.differences
    for some in (first, second):
        values = [[*(entry.value for entry in of.models), of.differences[0].difference] for of in (some, whole)]
        assert seed == 0 or values[0] == values[1]  # the factor of the CKCE is drawn by the seed, too
        (a,), (b,) = some.differences, whole.differences
        # The mean square of 400 samples is within 4 * 2 / sqrt(400) of its size if squares vary like their mean.
        assert a.standard_error == pytest.approx(b.standard_error, rel=accuracy)
        assert a.confidence_interval == pytest.approx(b.confidence_interval, abs=3 * accuracy * b.standard_error)


@pytest.mark.parametrize("metric", ["skce", "ckce", "ece"])
def test_same_bits_for_any_number_of_threads(metric):
    y, models = three_models(700)
    results = [kcalib.compare(y, models, metric=metric, threads=threads) for threads in (1, 2, 5)]
    for result in results[1:]:
        assert result.models == results[0].models and result.differences == results[0].differences


@pytest.mark.parametrize("metric", OF_CLASSES)
def test_array_libraries(xp, metric):
    y, models = three_models(60)
    metric = metric_with(metric, kernel=KERNEL)
    expected = kcalib.compare(y, models, metric=metric)
    result = kcalib.compare(xp.asarray(y), {name: xp.asarray(p) for name, p in models.items()}, metric=metric)
    for a, b in zip(result.models + result.differences, expected.models + expected.differences, strict=True):
        assert a.confidence_interval == pytest.approx(b.confidence_interval, rel=1e-8, abs=1e-12)


# -- results


def test_result_is_plain_python():
    y, models = three_models()
    for metric in OF_CLASSES:
        result = kcalib.compare(y, models, metric=metric)
        assert pickle.loads(pickle.dumps(result)) == result
        assert json.loads(json.dumps(dataclasses.asdict(result)))["ranking"] == list(result.ranking)
        assert result.n_samples == 200 and result.n_classes == 3 and result.metric == metric
        with pytest.raises(dataclasses.FrozenInstanceError):
            result.metric = "other"


def test_result_is_plain_python_for_numpy_options():
    y, models = three_models(50)
    models = {np.str_(name): p for name, p in models.items()}
    metric = kcalib.methods.ECE(n_bins=np.int64(5), n_resamples=np.int32(199))
    result = kcalib.compare(y, models, metric=metric, confidence_level=np.float64(0.9), seed=np.uint8(3))
    fields = dataclasses.asdict(result)
    assert {type(fields[name]) for name in ("n_bins", "n_resamples", "seed")} == {int}
    assert type(result.confidence_level) is float and {type(name) for name in result.ranking} == {str}


def test_differences_by_name():
    y, models = three_models()
    result = kcalib.compare(y, models)
    there, back = result.difference("calibrated", "sharp"), result.difference("sharp", "calibrated")
    assert (there.first, there.second) == (back.second, back.first) == ("calibrated", "sharp")
    assert back.difference == -there.difference and back.pvalue == there.pvalue
    assert back.confidence_interval == (-there.confidence_interval.high, -there.confidence_interval.low)
    with pytest.raises(KeyError, match="no model is called 'x', there are 'calibrated'"):
        result.model("x")
    with pytest.raises(KeyError, match="'sharp' and 'sharp' are no pair of"):
        result.difference("sharp", "sharp")


def test_table():
    y, models = three_models()
    result = kcalib.compare(y, models, metric=kcalib.methods.ECE(n_resamples=199))
    what, header, *rows = str(result).splitlines()
    assert re.split("  +", header.strip()) == [
        "rank", "model", "ece", "std. error", "95 % interval", "not distinguishable from",
    ]  # fmt: skip
    assert rows[0].split()[:2] == ["1", "calibrated"]
    assert [what, *rows[3:]] == [cut(line) for line in result.remarks()]
    assert result.model_lines() == [header, *rows[:3]] and len(result.pair_lines()) == 4
    assert "199 replicates" in "".join(result.remarks()) and "(Holm)" in rows[-1]
    assert "bandwidth" in str(kcalib.compare(y, models))


# -- limits


@pytest.mark.parametrize("metric", OF_CLASSES)
def test_identical_models_do_not_differ(metric):
    y, models = three_models()
    result = kcalib.compare(y, {"a": models["sharp"], "b": models["sharp"].copy(), "c": models["flat"]}, metric=metric)
    d = result.difference("a", "b")
    assert (d.difference, d.confidence_interval, d.pvalue, d.pvalue_holm) == (0.0, (0.0, 0.0), 1.0, 1.0)
    assert not d.distinguishable
    assert result.model("a").rank == result.model("b").rank


@pytest.mark.parametrize("metric", OF_CLASSES)
def test_models_that_differ_by_rounding_do_not_differ(metric):
    rng = np.random.default_rng(0)
    p = rng.uniform(size=400)
    y = rng.uniform(size=400) < p**2
    rounded = p / 3 * 3
    assert (rounded != p).any()
    d = kcalib.compare(y, {"a": p, "b": rounded}, metric=metric).differences[0]
    assert d.pvalue == 1.0 and abs(d.difference) < 1e-15
    assert d.confidence_interval.low <= 0 <= d.confidence_interval.high


@pytest.mark.parametrize("metric", ["brier_score", "log_loss", "crps", "log_score"])
@pytest.mark.parametrize("n", [8, 300])
@pytest.mark.parametrize("has_weight", [False, True])
def test_intervals_of_equal_forecasts_in_two_forms_hold_0(metric, n, has_weight):
    rng = np.random.default_rng(0)
    for _ in range(8):
        mean, p = rng.normal(size=n), rng.dirichlet([1, 1, 1], size=n)
        if metric in OF_CLASSES:
            y, models = rng.integers(3, size=n), [p, p / 3 * 3]
        else:
            y, models = rng.normal(mean), [Normal(mean, np.ones(n)), Normal(mean / 3 * 3, np.full(n, 0.1 * 3 / 0.3))]
        weight = np.arange(1.0, n + 1) if has_weight else None
        d = kcalib.compare(y, dict(zip("ab", models, strict=True)), metric=metric, sample_weight=weight).differences[0]
        assert d.pvalue == 1.0 and d.confidence_interval.low <= 0 <= d.confidence_interval.high


@pytest.mark.parametrize("metric", OF_CLASSES)
def test_one_hot_and_right(metric):
    """No spread at all: what 40 samples may not hold (with a probability of 2.5 %) is not excluded."""
    y = np.arange(40) % 3
    right = np.eye(3)[y]
    wrong = np.eye(3)[(y + 1) % 3]
    models = {"right": right, "as right": right, "wrong": wrong}
    result = kcalib.compare(y, models, metric=metric_with(metric, kernel=KERNEL))
    entry = result.model("right")
    assert (entry.value, entry.standard_error, entry.confidence_interval.low) == (0.0, 0.0, 0.0)
    unseen = 1 - 0.025 ** (1 / 40)
    largest = -np.log(np.finfo(float).eps)
    high = {
        "brier_score": 2 * unseen, "log_loss": largest * unseen, "ece": unseen, "skce": 2 * (1 - (1 - unseen) ** 2),
        "ckce": (1 - (1 - unseen) ** 2) * 40**0.25 / 2,
    }[metric]  # fmt: skip
    assert entry.confidence_interval.high == pytest.approx(high, rel=1e-9)
    same = result.difference("right", "as right")
    assert (same.pvalue, same.confidence_interval) == (1.0, (0.0, 0.0))
    d = result.difference("right", "wrong")
    assert d.distinguishable and d.pvalue >= 2.0**-39
    assert result.ranking[-1] == "wrong" and "nan" not in str(result)
    if metric in ("brier_score", "log_loss"):  # no spread at all
        assert d.pvalue == 2.0**-39
        size = {"brier_score": 2.0, "log_loss": largest}[metric]
        assert d.confidence_interval == pytest.approx((-size, -size * (1 - 2 * unseen)), rel=1e-9)


# -- few or equal values


RANGES = {"brier_score": 1.0, "log_loss": -np.log(np.finfo(float).eps), "ece": 1.0, "skce": 2.0, "ckce": 1.0}


@pytest.mark.parametrize("metric", OF_CLASSES)
def test_four_equal_differences_exclude_nothing(metric):
    """Four signs are alike with a probability of 1/8, so that no interval at 95 % can exclude anything."""
    y, models = np.array([0, 1, 1, 0]), {"a": np.array([0.2, 0.8, 0.8, 0.2]), "b": np.array([0.4, 0.6, 0.6, 0.4])}
    options = {"kernel": KERNEL} if metric == "skce" else {}
    options |= {"kernel": CKCE_KERNEL, "regularization": 0.5} if metric == "ckce" else {}
    result = kcalib.compare(y, models, metric=metric_with(metric, **options))
    (d,) = result.differences
    assert d.pvalue >= 1 / 8 and not d.distinguishable
    assert d.confidence_interval == pytest.approx((-RANGES[metric], RANGES[metric]))
    for entry in result.models:
        assert entry.confidence_interval == pytest.approx((0.0, RANGES[metric]))
    if metric == "brier_score":
        # The difference is -0.12 for right labels, and would be 0.28 for wrong ones: 0 if 0.3 of the labels were wrong,
        # of which four samples hold none with a probability of 0.7^4.
        assert d.difference == pytest.approx(-0.12)
        assert d.pvalue == pytest.approx(2 * 0.7**4)


def test_signs_by_hand():
    """All 2^n signs of n values, and Hartigan's subset means for the limits."""
    values = np.array([3.0, -1.0, 2.0, 5.0, 4.0, 0.5])
    signs = np.array(list(itertools.product((1, -1), repeat=6)))

    def pvalue(theta):
        sums = signs @ (values - theta)
        seen = np.sum(values - theta)
        return min(1.0, 2 * min(np.mean(sums >= seen - 1e-12), np.mean(sums <= seen + 1e-12)))

    low, high, found = compute_sign_flip_limits(values, 0.9, 1e-15)
    assert found == pvalue(0.0) == 6 / 64
    for limit, inwards in ((low, 1e-6), (high, -1e-6)):
        assert pvalue(limit + inwards) > 0.1 >= pvalue(limit - inwards)
    # At 0.99 a tail has less than one of 64 signs.
    assert compute_sign_flip_limits(values, 0.99, 1e-15)[:2] == (-np.inf, np.inf)


def test_pvalues_never_vanish():
    y = np.zeros(3000, dtype=int)
    models = {"right": np.tile([1.0, 0.0], (3000, 1)), "wrong": np.tile([0.0, 1.0], (3000, 1))}
    for metric in ("brier_score", "log_loss", "skce"):
        (d,) = kcalib.compare(
            y, models, metric=metric_with(metric, **({"kernel": KERNEL} if metric == "skce" else {}))
        ).differences
        assert 0 < d.pvalue < 1e-300 and d.distinguishable
        assert d.confidence_interval.low < d.confidence_interval.high


def test_more_replicates_for_more_pairs():
    y, models = three_models(20)
    assert kcalib.compare(y, models, metric="ece").n_resamples == 2000
    # Three pairs at level 0.001: 4 * 3 / 0.001. The smallest p-value can then be significant.
    result = kcalib.compare(y, models, metric="ece", confidence_level=0.999)
    assert result.n_resamples == pytest.approx(12_000, abs=1)
    assert 3 * 2 / (result.n_resamples + 1) < 0.001


def test_kernel_that_may_be_indefinite():
    y, models = three_models(20)
    with pytest.warns(kcalib.IndefiniteKernelWarning, match="cityblock"):
        kcalib.compare(y, models, metric=kcalib.methods.SKCE(kernel=Gaussian(metric="cityblock")))
    indefinite = pytest.raises(ValueError, match="K is not positive semi-definite")
    with pytest.warns(kcalib.IndefiniteKernelWarning, match="cityblock"), indefinite:
        kcalib.compare(y, models, metric=kcalib.methods.CKCE(kernel=Gaussian(metric="cityblock")))


def test_four_samples_are_enough():
    y, models = three_models(4)
    for metric in OF_CLASSES:
        for d in kcalib.compare(y, models, metric=metric).differences:
            assert 0 < d.pvalue <= 1 and np.isfinite(d.confidence_interval).all()


@pytest.mark.parametrize("m", [2, 3, 20])
def test_variances_of_pairs_keep_their_digits_where_predictions_are_saturated(m):
    """Beside all labels of two samples, with a table of exact fractions' size: 1 - p is as exact as p."""
    rng = np.random.default_rng(0)
    e = 10.0 ** rng.uniform(-8, -4, size=(4, 1))
    p = np.repeat(e, m, axis=1)
    p[:, 0] = 1 - (m - 1) * e[:, 0]
    q = np.tile(p.mean(axis=0), (4, 1))
    data = [prepare(np.zeros(4, dtype=int), one) for one in (p, q)]
    packed = _packing.pack_alike(*data, kernel=KERNEL, target_kernel=None).packed
    found = pair_variances(data, packed, np.arange(4))
    weights = [kernel_values(p), kernel_values(q)]
    assert found[0, 0] == pytest.approx(law_variance((weights[0],), (p,), np.eye(m)), rel=1e-4 if m == 20 else 1e-6)
    assert found[0, 1] == pytest.approx(law_variance(tuple(weights), (p, q), np.eye(m)), rel=1e-3)


@pytest.mark.parametrize("m", [2, 3, 20])
@pytest.mark.parametrize("n", [70, 165])  # strips and blocks that are not full
def test_variances_of_many_pairs_are_those_by_covariance_matrices(n, m):
    rng = np.random.default_rng(n)
    models = [rng.dirichlet(np.full(m, a), size=n) for a in (0.05, 0.3, 2.0)]
    models[2][:5] = np.eye(m)[np.arange(5) % m]
    data = [prepare(np.zeros(n, dtype=int), np.asfortranarray(p)) for p in models]
    packed = _packing.pack_alike(*data, kernel=KERNEL, target_kernel=None).packed
    found = pair_variances(data, packed, np.arange(n), threads=1)
    laws = [np.einsum("ic,cd->icd", p, np.eye(m)) - np.einsum("ic,id->icd", p, p) for p in models]
    off = ~np.eye(n, dtype=bool)
    for a, b in itertools.combinations(range(3), 2):
        means = []
        for i, j in ((a, b), (b, a)):
            own, other, d = kernel_values(models[i]), kernel_values(models[j]), models[i] - models[j]
            forms = np.einsum("jc,icd,jd->ij", d, laws[i], d)
            traces = np.einsum("icd,jdc->ij", laws[i], laws[i])
            means.append(np.mean(((own - other) ** 2 * traces + other**2 * (forms + forms.T))[off]))
        assert found[a, b] == found[b, a] == pytest.approx(max(means), rel=1e-12)
    for threads in (2, 3):
        np.testing.assert_array_equal(pair_variances(data, packed, np.arange(n), threads=threads), found)


def test_variances_of_pairs_of_counts(monkeypatch):
    """The law of counts by its table, beside draws, for models of which one holds more counts possible."""
    rng = np.random.default_rng(0)
    rate = rng.gamma(1.0, 2.0, size=30)
    y = rng.poisson(rate).astype(float)
    data = [forecasts(y, Poisson(rate)), forecasts(y, Poisson(1.7 * rate))]
    packed = _packing.pack_alike(*data, kernel=None, target_kernel=None).packed
    found = pair_variances(data, packed, np.arange(30))
    monkeypatch.setattr(pair_laws, "DRAWS", 100)
    drawn = pair_laws._by_draws(data, packed, np.arange(30))
    # Means over 100 draws and 435 pairs: within some per cent.
    assert found == pytest.approx(np.maximum(drawn, drawn.T), rel=0.15)
    # Predictions of other families have draws alone.
    normals = [forecasts(y, Normal(rate, scale * np.sqrt(rate + 0.1))) for scale in (1.0, 1.3)]
    packed = _packing.pack_alike(*normals, kernel=None, target_kernel=None).packed
    assert not pair_laws.has_finite_laws(normals, packed)
    found = pair_variances(normals, packed, np.arange(30))
    assert np.all(found > 0) and found == pytest.approx(found.T)


# -- many samples: features


def test_features_for_many_samples(monkeypatch):
    """The same map for all models, and what it adds to the error, from its independent groups."""
    y, models = three_models(300)
    pairs = kcalib.compare(y, models, metric=kcalib.methods.SKCE(kernel=KERNEL))
    assert (pairs.n_columns, pairs.backend) == (None, "cpu")
    monkeypatch.setattr(metrics.skce, "PAIRS_WORK", 0)
    result = kcalib.compare(y, models, metric=kcalib.methods.SKCE(kernel=KERNEL), seed=5)
    assert (result.n_columns, result.seed, result.backend) == (128, 5, "features")
    assert "128 random features" in result.estimator
    for name, p in models.items():
        one = kcalib.skce.result(y, p, kernel=KERNEL, estimator=kcalib.methods.FeatureEstimator(seed=5))
        entry = result.model(name)
        assert entry.value == pytest.approx(one.value, rel=1e-9)
        assert entry.standard_error == pytest.approx(one.standard_error, rel=1e-3)
    skce = kcalib.methods.SKCE
    again = kcalib.compare(y, models, metric=skce(kernel=KERNEL), seed=5, threads=2)
    assert again.differences == result.differences
    # All pairs were asked for by their backend; inner products are features of themselves.
    assert kcalib.compare(y, models, metric=skce(kernel=KERNEL), backend="array-api").n_columns is None
    linear, of_pairs = (kcalib.compare(y, models, metric=skce(Linear()), backend=name) for name in (None, "cpu"))
    assert linear.n_columns == 6
    for a, b in zip(linear.differences, of_pairs.differences, strict=True):
        assert (a.difference, a.standard_error) == pytest.approx((b.difference, b.standard_error), rel=1e-9)
    # A kernel that has none is summed over all pairs, whatever they take.
    with pytest.warns(kcalib.IndefiniteKernelWarning):
        assert kcalib.compare(y, models, metric=skce(Gaussian(metric="cityblock"))).n_columns is None


@pytest.mark.grid
def test_differences_by_features_are_those_of_the_given_kernel(monkeypatch):
    """Over draws of the map: no bias, and the part of the error that the groups say."""
    y, models = three_models(300)
    models = {"sharp": models["sharp"], "sharper": powered(models["sharp"], 1.2)}
    exact = kcalib.compare(y, models, metric=kcalib.methods.SKCE(kernel=KERNEL)).differences[0]
    monkeypatch.setattr(metrics.skce, "PAIRS_WORK", 0)
    found = [
        kcalib.compare(y, models, metric=kcalib.methods.SKCE(kernel=KERNEL), seed=seed).differences[0]
        for seed in range(40)
    ]
    errors = np.array([d.difference for d in found]) - exact.difference
    added = np.array([d.standard_error**2 - exact.standard_error**2 for d in found])
    assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(40)
    assert errors.std() < 0.5 * exact.standard_error
    # Paired: with a map for each model the difference would have the errors of both.
    estimators = [kcalib.methods.FeatureEstimator(seed=seed) for seed in range(40)]
    own = [np.std([kcalib.skce(y, p, kernel=KERNEL, estimator=one) for one in estimators]) for p in models.values()]
    assert errors.std() < 0.9 * np.hypot(*own)
    assert np.mean(added) > -0.05 * exact.standard_error**2


@pytest.mark.grid
def test_features_of_distributions_add_the_errors_of_both_kernels(monkeypatch):
    rng = np.random.default_rng(6)
    mean, std = rng.normal(size=120), np.exp(rng.normal(scale=0.5, size=120))
    y = mean + std * rng.normal(size=120)
    models = {"wide": Normal(mean, 1.5 * std), "narrow": Normal(mean, 0.5 * std)}
    exact = kcalib.compare(y, models).differences[0]
    monkeypatch.setattr(metrics.skce, "PAIRS_WORK", 0)
    compared = [kcalib.compare(y, models, seed=seed) for seed in range(16)]
    assert compared[0].estimator.endswith("random features of the kernel, the same for all models")
    found = [one.differences[0] for one in compared]
    errors = np.array([d.difference for d in found]) - exact.difference
    assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(16)
    added = np.mean([d.standard_error**2 for d in found]) - exact.standard_error**2
    # The spread of groups has the noise of the samples in it, which is too much rather than too little.
    assert 0.5 * errors.var() < added < 8 * errors.var()


# -- bad input


def test_unknown_metric_lists_what_there_is():
    with pytest.raises(
        ValueError, match="`metric` is 'mce', expected one of 'skce', 'ckce', 'ece', 'brier_score', 'log_loss'"
    ):
        kcalib.compare([0, 1], {}, metric="mce")


@pytest.mark.parametrize("metric", OF_CLASSES)
def test_options_of_all_metrics(metric):
    """A loop over metrics may give all of them a seed and threads; a backend is for sums over pairs."""
    y, models = three_models(20)
    result = kcalib.compare(y, models, metric=metric, seed=0, threads=1)
    assert result.models == kcalib.compare(y, models, metric=metric).models
    if metric in ("skce", "ckce"):
        kcalib.compare(y, models, metric=metric, backend="cpu")
    else:
        with pytest.raises(ValueError, match=f"`backend` has no meaning for the metric '{metric}', only for 'skce'"):
            kcalib.compare(y, models, metric=metric, backend="cpu")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"y_preds": {}}, ValueError, r"`y_preds` has the models \[\], expected at least 2"),
        ({"y_preds": {"a": [0.5, 0.25, 0.75, 0.5]}}, ValueError, r"`y_preds` has the models \['a'\]"),
        ({"y_preds": [[0.5, 0.25, 0.75, 0.5]] * 2}, TypeError, "`y_preds` is a list, expected a mapping of names"),
        ({"y_preds": {1: [0.5] * 4}}, TypeError, "`y_preds` has the key 1, expected names that are strings"),
        ({"b": [0.5, 0.25, 2.0, 0.5]}, ValueError, r"`y_preds\['b'\]`: `y_pred\[2\]` is 2, expected a probability"),
        ({"b": ["x"] * 4}, TypeError, r"`y_preds\['b'\]`: `y_pred` holds strings"),
        ({"b": [0.5, 0.5]}, ValueError, r"`y_preds\['b'\]`: `y_true` has 4 labels, `y_pred` 2 predictions"),
        ({"b": np.full((4, 3), 1 / 3)}, ValueError, r"`y_preds\['b'\]` has 4 samples and 3 classes, `y_preds\['a'\]`"),
        ({"y_true": [0, 1, 2, 0]}, ValueError, r"`y_preds\['a'\]`: `y_true\[2\]` is 2"),
        ({"confidence_level": 95}, ValueError, "`confidence_level` is 95, expected a number between 0 and 1"),
        ({"confidence_level": "x"}, ValueError, "`confidence_level` is 'x'"),
        ({"metric": kcalib.methods.ECE(n_resamples=38)}, ValueError, "`n_resamples` is 38, .* confidence level 0.95"),
        ({"metric": kcalib.methods.CKCE(kernel="gaussian")}, TypeError, "`kernel` is 'gaussian', expected a kernel"),
        ({"metric": "ckce", "backend": "fast"}, ValueError, "`backend` is 'fast'"),
        ({"seed": -1}, ValueError, "`seed` is -1, expected an integer between 0"),
        ({"seed": -1, "metric": "brier_score"}, ValueError, "`seed` is -1, expected an integer between 0"),
        ({"metric": kcalib.methods.SKCE}, TypeError, r"`metric` is the class SKCE; pass an object, SKCE\(\)"),
        ({"metric": kcalib.methods.SKCE("gaussian")}, TypeError, "`kernel` is 'gaussian', expected a kernel"),
        ({"backend": "fast"}, ValueError, "`backend` is 'fast'"),
        ({"metric": kcalib.methods.SKCE(dtype="int8")}, ValueError, r"`y_preds\['a'\]`: `dtype` is 'int8'"),
    ],
)  # fmt: skip
def test_bad_input(change, error, message):
    arguments = {"y_true": [0, 1, 1, 0], "y_preds": {"a": [0.5, 0.25, 0.75, 0.5], "b": [0.25, 0.5, 0.5, 0.125]}}
    arguments |= {name: value for name, value in change.items() if name != "b"}
    if "b" in change:
        arguments["y_preds"]["b"] = change["b"]
    with pytest.raises(error, match=message):
        kcalib.compare(**arguments)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: kcalib.methods.ECE(n_resamples=0), ValueError, "`n_resamples` is 0, expected an integer between 1"),
        (lambda: kcalib.methods.ECE(n_resamples=2.5), TypeError, "`n_resamples` is 2.5, expected an integer"),
        (lambda: kcalib.methods.ECE(n_bins=0), ValueError, "`n_bins` is 0, expected an integer between 1"),
        (lambda: kcalib.methods.CKCE(regularization=0), ValueError, "`regularization` is 0, expected a positive"),
        (lambda: kcalib.methods.CKCE(regularization=np.nan), ValueError, "`regularization` is nan, expected a posi"),
        (lambda: kcalib.methods.CKCE(regularization="x"), TypeError, "`regularization` is 'x', expected a positive"),
    ],
)
def test_options_of_metrics_are_checked_at_once(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_too_few_samples():
    with pytest.raises(ValueError, match="a comparison needs at least 4 samples, `y_true` has 3"):
        kcalib.compare([0, 1, 1], {"a": [0.5, 0.25, 0.75], "b": [0.5, 0.5, 0.5]})


# -- coverage


@dataclasses.dataclass(frozen=True)
class World:
    """Finitely many inputs with known label probabilities, so that population values are finite sums."""

    share: np.ndarray  # of each input
    truth: np.ndarray  # probabilities of the labels given the input
    models: dict[str, np.ndarray]  # predictions for each input

    def sample(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        x = rng.choice(len(self.share), n, p=self.share)
        u = rng.uniform(size=(n, 1))
        y = np.minimum((np.cumsum(self.truth[x], axis=1) < u).sum(axis=1), self.truth.shape[1] - 1)
        return y, {name: p[x] for name, p in self.models.items()}

    def skce(self, name: str) -> float:
        p = self.models[name]
        gaps = self.share[:, None] * (self.truth - p)
        distances = np.sqrt(np.sum((p[:, None] - p[None]) ** 2, axis=-1))
        return float(np.sum(np.exp(-distances / KERNEL.bandwidth) * (gaps @ gaps.T)))

    def ckce(self, name: str, n: int) -> float:
        """|(C + lambda)^{-1} M|^2 with the default lambda of n samples, by Z = (W^(1/2) K W^(1/2) + lambda)^{-1} D."""
        p, roots = self.models[name], np.sqrt(self.share)[:, None]
        k = p @ p.T + np.exp(-2 * np.sum((p[:, None] - p[None]) ** 2, axis=-1))  # CKCE_KERNEL
        k = roots * k * roots.T
        z = np.linalg.solve(k + n**-0.25 * np.eye(len(p)), roots * (self.truth - p))
        return float(np.trace(z.T @ k @ z))

    def value(self, metric: str, name: str, n: int) -> float:
        return self.ckce(name, n) if metric == "ckce" else float(getattr(self, metric)(name))

    def ece(self, name: str) -> float:
        p = self.models[name]
        confidence = p.max(axis=1)
        gaps = self.share * (self.truth[np.arange(len(p)), p.argmax(axis=1)] - confidence)
        bins = np.ceil(confidence * 15)
        return float(sum(abs(gaps[bins == b].sum()) for b in range(16)))

    def brier_score(self, name: str) -> float:
        p = self.models[name]
        labels = np.eye(p.shape[1])
        losses = np.array([[np.sum((label - row) ** 2) for label in labels] for row in p])
        return float(np.sum(self.share[:, None] * self.truth * losses)) / (2 if p.shape[1] == 2 else 1)


def general_world(m: int = 3) -> World:
    """Calibrated models (the truth; the truth averaged over groups of inputs), and one wrong on either side."""
    rng = np.random.default_rng(0)
    truth, share = rng.dirichlet(np.full(m, 0.5), 20), rng.uniform(0.5, 1.5, 20)
    share /= share.sum()
    groups = np.arange(20) // 4
    coarse = np.array([share[groups == g] @ truth[groups == g] / share[groups == g].sum() for g in groups])
    return World(
        share, truth, {"true": truth, "coarse": coarse, "sharp": powered(truth, 2.0), "flat": powered(truth, 0.5)}
    )


def mirrored_world(m: int = 3) -> World:
    """Two different models of exactly equal miscalibration: wrong on inputs that are mirror images."""
    rng = np.random.default_rng(0)
    half = rng.dirichlet(np.full(m, 0.5), 10)
    truth = np.concatenate([half, half[:, [1, 0, *range(2, m)]]])
    wrong, first = powered(truth, 2.0), np.arange(20)[:, None] < 10
    models = {"left": np.where(first, wrong, truth), "right": np.where(first, truth, wrong)}
    return World(np.full(20, 1 / 20), truth, models)


def certain_world() -> World:
    """A coin that one model calls and the other does not: both calibrated, and the SKCE has a single eigenvalue."""
    return World(np.full(2, 0.5), np.eye(2), {"ignorant": np.full((2, 2), 0.5), "knowing": np.eye(2)})


def shifted_world() -> World:
    """Section 5.2 of the CKCE paper: the model sigmoid(5 x) where sigmoid(x) is right, of inputs near 0 and of others.

    Given the label, the inputs of the two models are independent; in a law of mean 0 either label has probability 1/2.
    """
    x = np.linspace(-1, 1, 21)
    right, said = (1 / (1 + np.exp(-slope * x)) for slope in (1, 5))
    joint = np.zeros((2, 21, 21))  # of label and inputs
    laws = [np.exp(-(x**2) / (2 * scale**2)) for scale in (0.25, 1.0)]
    for label, given in enumerate((1 - right, right)):
        joint[label] = np.outer(laws[0] * given, laws[1] * given)
    share = joint.sum(axis=0).ravel() / joint.sum()
    truth = (joint / joint.sum(axis=0)).reshape(2, -1).T
    near, wide = (grid.ravel() for grid in np.meshgrid(said, said, indexing="ij"))
    return World(share, truth, {name: np.stack([1 - p, p], axis=1) for name, p in (("near", near), ("wide", wide))})


WORLDS = {"general": general_world(), "mirrored": mirrored_world(), "certain": certain_world()}
CKCE_WORLDS = WORLDS | {
    "binary": general_world(2),
    "ten classes": general_world(10),
    "mirrored, ten classes": mirrored_world(10),
    "shifted": shifted_world(),
}


def simulated(world: World, metric: str, n: int, repetitions: int) -> tuple[dict, dict]:
    """Share of covered values and differences, and p-values of the pairs."""
    rng = np.random.default_rng(2024)
    truth = {name: world.value(metric, name, n) for name in world.models}
    options = {
        "skce": {"metric": kcalib.methods.SKCE(kernel=KERNEL), "threads": 1},
        "ckce": {"metric": kcalib.methods.CKCE(kernel=CKCE_KERNEL), "threads": 1},
        "ece": {"metric": kcalib.methods.ECE(n_resamples=199), "threads": 1},
        "brier_score": {"metric": "brier_score"},
    }[metric]
    covered: dict = {}
    pvalues: dict = {}
    for i in range(repetitions):
        y, models = world.sample(n, rng)
        if metric in ("skce", "ece"):
            options["seed"] = i
        result = kcalib.compare(y, models, **options)
        for entry in result.models:
            low, high = entry.confidence_interval
            covered.setdefault(entry.model, []).append(low - 1e-12 <= truth[entry.model] <= high + 1e-12)
        for d in result.differences:
            low, high = d.confidence_interval
            pair = (d.first, d.second)
            covered.setdefault(pair, []).append(low - 1e-12 <= truth[d.first] - truth[d.second] <= high + 1e-12)
            pvalues.setdefault(pair, []).append(d.pvalue)
    return {key: np.mean(values) for key, values in covered.items()}, {k: np.array(v) for k, v in pvalues.items()}


def check_world(name: str, metric: str, n: int, repetitions: int, level: float = 0.95) -> dict:
    """That at least a share `level` of intervals at 0.95 cover, and no more p-values are small than should be."""
    world = CKCE_WORLDS[name]
    covered, pvalues = simulated(world, metric, n, repetitions)
    least, _ = binomial_bounds(repetitions, level)
    for key, share in covered.items():
        assert share >= least, f"{key}: coverage {share}"
    for (first, second), values in pvalues.items():
        if abs(world.value(metric, first, n) - world.value(metric, second, n)) < 1e-12:
            for alpha in (0.01, 0.05, 0.1):
                share = np.mean(values <= alpha)
                assert share <= binomial_bounds(repetitions, alpha)[1], f"{first}, {second}: {share} at {alpha}"
    return pvalues


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "general" else [pytest.mark.grid]) for n in WORLDS])
@pytest.mark.parametrize(("metric", "n"), [("skce", 100), pytest.param("ece", 200, marks=pytest.mark.grid)])
def test_coverage_and_type_one_error(name, metric, n):
    check_world(name, metric, n, 120)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "general" else [pytest.mark.grid]) for n in CKCE_WORLDS]
)
def test_ckce_coverage_and_type_one_error(name):
    check_world(name, "ckce", 100, 50)


@pytest.mark.grid
@pytest.mark.parametrize("name", WORLDS)
def test_brier_coverage(name):
    check_world(name, "brier_score", 100, 500)


@pytest.mark.grid
@pytest.mark.parametrize(("metric", "n"), [("skce", 400), ("ckce", 300), ("ece", 1000)])
def test_power(metric, n):
    pvalues = check_world("general", metric, n, 50)
    for pair in (("true", "sharp"), ("coarse", "sharp")):
        assert np.mean(pvalues[pair] <= 0.05) > binomial_bounds(50, 0.4)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("metric", ["skce", "ece", "brier_score"])
@pytest.mark.parametrize("n", [100, 250, 1000])
def test_coverage_and_type_one_error_of_many_data_sets(name, metric, n):
    check_world(name, metric, n, 2000)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_coverage_and_type_one_error_by_features(monkeypatch, name):
    """Of the given kernel, whose features are drawn anew for each data set."""
    monkeypatch.setattr(metrics.skce, "PAIRS_WORK", 0)
    check_world(name, "skce", 400, 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", CKCE_WORLDS)
@pytest.mark.parametrize(("n", "level", "repetitions"), [(100, 0.92, 2000), (300, 0.93, 1000), (1000, 0.94, 300)])
def test_ckce_of_many_data_sets(name, n, level, repetitions):
    check_world(name, "ckce", n, repetitions, level)


@pytest.mark.grid
def test_plain_ckce_would_tell_calibrated_models_apart():
    """Why the bias is removed: with ten classes it is many standard errors, and not the same for two models."""
    world, rng = CKCE_WORLDS["ten classes"], np.random.default_rng(0)
    differences = []
    for _ in range(30):
        y, models = world.sample(100, rng)
        plain = [kcalib.ckce(y, models[name], kernel=CKCE_KERNEL) for name in ("true", "coarse")]
        result = kcalib.compare(y, models, metric=kcalib.methods.CKCE(kernel=CKCE_KERNEL)).difference("true", "coarse")
        differences.append((plain[0] - plain[1], result.difference))
    plain, unbiased = np.mean(differences, axis=0) / (np.std(differences, axis=0, ddof=1) / np.sqrt(30))
    assert abs(plain) > 6 and abs(unbiased) < 4


# -- levels where errors are rare: predictions and their averages over groups, both calibrated


def coarse(p: np.ndarray) -> np.ndarray:
    """Averages over groups of eight samples that predict the same class with about the same confidence."""
    order = np.lexsort((p.max(axis=1), p.argmax(axis=1)))
    averages = np.empty_like(p)
    for group in np.array_split(order, len(p) // 8):
        averages[group] = p[group].mean(axis=0)
    return averages


def check_levels(law: Law, metric: str, repetitions: int) -> None:
    rng, pvalues = np.random.default_rng(1), []
    chosen = metric_with(metric, **({"n_resamples": 199} if metric == "ece" else {}))
    for _ in range(repetitions):
        y, p = law.calibrated(rng)
        d = kcalib.compare(y, {"fine": p, "coarse": coarse(p)}, metric=chosen, threads=1).differences[0]
        pvalues.append(d.pvalue)
        assert d.pvalue <= 0.05 or d.confidence_interval.low - 1e-12 <= 0 <= d.confidence_interval.high + 1e-12
    for alpha in (0.01, 0.05, 0.1):
        assert np.mean(np.array(pvalues) <= alpha) <= binomial_bounds(repetitions, alpha)[1], alpha


@pytest.mark.parametrize("metric", ["skce", "ece"])
@pytest.mark.parametrize("name", ["saturated, 1e-8..1e-4", "rare, Beta(.1, 100)"])
def test_levels_of_rare_errors(name, metric):
    check_levels(LAWS[name], metric, 60)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["skce", "ckce", "ece"])
@pytest.mark.parametrize("name", LAWS)
def test_levels_of_hard_laws(name, metric):
    check_levels(LAWS[name], metric, 200 if metric == "ckce" else 600)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_levels_of_hard_laws_by_features(monkeypatch, name):
    monkeypatch.setattr(metrics.skce, "PAIRS_WORK", 0)
    check_levels(LAWS[name], "skce", 200)


def rare_losses(n: int, rng: np.random.Generator) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Two models of equal expected Brier score: events of probability e, of which one says 0 and the other 2 e."""
    e = rng.beta(0.1, 100.0, size=n)
    return (rng.uniform(size=n) < e).astype(int), {"never": np.zeros(n), "twice": 2 * e}


@pytest.mark.parametrize("metric", ["crps", "log_score"])
def test_rare_counts_that_have_not_been_seen(metric):
    """Forty counts are all 0, as both models expect: the differences say nothing."""
    rate = np.random.default_rng(0).beta(0.1, 500.0, size=40) + 1e-9
    y = np.zeros(40)
    models = {"right": Poisson(rate), "twice": Poisson(2 * rate)}
    (d,) = kcalib.compare(y, models, metric=metric).differences
    assert d.pvalue > 0.1 and d.confidence_interval.low < 0 < d.confidence_interval.high
    # The spread is that of either law, by the losses of 0, 1, ..., 5.
    score = {"crps": kcalib.crps, "log_score": kcalib.log_score}[metric]
    losses = {
        name: np.array([[score([c], Poisson([r])) for c in range(6)] for r in np.asarray(model.rate)])
        for name, model in models.items()
    }
    change, variances = losses["right"] - losses["twice"], []
    for r in (rate, 2 * rate):
        p = scipy.stats.poisson(r[:, None]).pmf(np.arange(6))
        variances.append(np.sum(p * (change - np.sum(p * change, axis=1, keepdims=True)) ** 2) / 40)
    assert d.standard_error == pytest.approx(np.sqrt(max(variances) / 40), rel=1e-6)


class OwnPoisson(Distribution):
    """Counts by their probabilities alone."""

    support, event_shape, n = "count", (), 0  # a number in place of the property

    def __init__(self, rate):
        self.rate, self.n = rate, len(rate)

    def take(self, rows):
        return OwnPoisson(self.rate[rows])

    def sample(self, size, *, seed=0):
        return np.random.default_rng(seed).poisson(self.rate[:, None], (self.n, size))

    def log_density(self, y):
        return scipy.stats.poisson.logpmf(y, self.rate)

    def quantile(self, p):
        return scipy.stats.poisson.ppf(np.atleast_1d(p), self.rate[:, None])


def test_counts_that_no_model_expects_do_not_widen_intervals():
    """Of 52 counts 3.6 may be others, up to one beyond quantiles at 1/52, by the law that is 1000 times likelier."""
    n, rate, rng = 52, np.linspace(10.0, 30.0, 52), np.random.default_rng(0)
    y = rng.poisson(rate)
    law, wide = scipy.stats.poisson(rate), scipy.stats.nbinom(5, 5 / (5 + rate))
    values, counts = wide.logpmf(y) - law.logpmf(y), np.arange(100)[:, None]
    assert values.sum() < -np.log(1000)  # of the negative binomial law against Poisson's
    near = (counts >= law.ppf(1 / n) - 1) & (counts <= law.ppf(1 - 1 / n) + 1)
    change = np.where(near, wide.logpmf(counts) - law.logpmf(counts) - values, 0.0)
    t = scipy.stats.ttest_1samp(values, 0.0)

    def sum_of_largest(losses, number):
        return np.interp(number, np.arange(n + 1), np.concatenate([[0.0], np.cumsum(np.sort(losses)[::-1])]))

    share = 1 - 0.025 ** (1 / n)
    limits = [values.mean() + sign * sum_of_largest((sign * change).max(axis=0), n * share) / n for sign in (-1, 1)]
    found = kcalib.compare(y, {"P": Poisson(rate), "NB": NegativeBinomial(rate, 0.2)}, metric="log_score").differences[
        0
    ]
    low, high = t.confidence_interval()
    assert found.confidence_interval == pytest.approx((min(limits[0], low), max(limits[1], high)), rel=1e-9)
    assert t.pvalue < found.pvalue < 1e-3 and limits[1] < -0.2
    models = {"P": OwnPoisson(rate), "NB": NegativeBinomial(rate, 0.2)}
    own = kcalib.compare(y, models, metric="log_score").differences[0]
    assert own.pvalue == pytest.approx(found.pvalue)
    assert own.confidence_interval == pytest.approx(found.confidence_interval)


@pytest.mark.parametrize("metric", ["crps", "log_score"])
@pytest.mark.parametrize("law", ["P", "NB"])
def test_intervals_of_counts_hold_their_level(law, metric):
    """The true difference is that of 20,000 counts."""

    def draw(n, seed):
        rng = np.random.default_rng(seed)
        rate = rng.uniform(2.0, 20.0, size=n)
        y = rng.poisson(rate if law == "P" else rng.gamma(2.0, rate / 2))
        return y, {"P": Poisson(rate), "NB": NegativeBinomial(rate, 0.5)}

    y, models = draw(20_000, 10**6)
    true = np.mean(kcalib.score_samples(y, models["P"], metric) - kcalib.score_samples(y, models["NB"], metric))
    differences = [kcalib.compare(*draw(30, seed), metric=metric).differences[0] for seed in range(40)]
    covered = [d.confidence_interval.low <= true <= d.confidence_interval.high for d in differences]
    assert np.mean(covered) >= binomial_bounds(40, 0.95)[0]
    d = kcalib.compare(*draw(300, 0), metric=metric).differences[0]
    assert d.pvalue < 1e-4 and np.sign(d.difference) == (1 if law == "NB" else -1)


@pytest.mark.parametrize("n", [20, 200, pytest.param(3000, marks=pytest.mark.grid)])
def test_levels_of_losses_with_rare_events(n):
    """Most samples hold no event at all: then all differences but some tiny ones have the same sign."""
    rng = np.random.default_rng(0)
    found = [kcalib.compare(*rare_losses(n, rng), metric="brier_score").differences[0] for _ in range(200)]
    covered = [d.confidence_interval.low <= 0 <= d.confidence_interval.high for d in found]
    assert np.mean(covered) >= binomial_bounds(200, 0.95)[0]
    for alpha in (0.01, 0.05, 0.1):
        assert np.mean([d.pvalue <= alpha for d in found]) <= binomial_bounds(200, alpha)[1]


def test_with_mmd_distances_features_are_not_shared(monkeypatch):
    """Embeddings have coordinates of their own."""
    rng = np.random.default_rng(6)
    mean = rng.normal(size=60)
    models = {"wide": Normal(mean, np.full(60, 1.5)), "narrow": Normal(mean, np.full(60, 0.5))}
    monkeypatch.setattr(metrics.skce, "PAIRS_WORK", 0)
    found = kcalib.compare(
        mean + rng.normal(size=60), models, metric=kcalib.methods.SKCE(kernel=Exponential(metric="mmd")), seed=0
    )
    assert found.estimator.endswith("random features of the kernel, drawn for each model")


@pytest.mark.parametrize("shared", [True, False])
def test_what_other_labels_would_do_is_the_same_in_blocks(shared):
    """A model whose samples hold enough events is left out from then on; nothing is read where all are."""
    rng, n = np.random.default_rng(0), 90
    laws = [rng.dirichlet(alpha, size=n) for alpha in ([0.05, 0.05, 4], [0.02, 0.02, 6])]
    observed, everywhere = [rng.integers(3, size=n)] * 2, [np.ones((n, 3), dtype=bool)] * 2
    losses = [-np.log(p + 1e-12) for p in laws]

    def found(rows_at_once, given):
        read = []

        def table(begin):
            rows = slice(begin, begin + rows_at_once)
            read.append(rows)
            return possible.Table(*([of[rows] for of in kind] for kind in (losses, given, observed, everywhere)))

        return possible.possibilities(2, map(table, range(0, n, rows_at_once)), shared=shared), read

    whole, _ = found(n, laws)
    parts, read = found(7, laws)
    assert len(read) == 13 and parts.keys() == whole.keys() and (0,) in whole
    for key, one in whole.items():
        for name in ("most", "least", "variance", "events"):
            assert np.allclose(getattr(parts[key], name), getattr(one, name), rtol=1e-12)
    # Wide laws have so many events that some of the rows settle all.
    wide = [rng.dirichlet([50, 50, 50], size=n) for _ in range(2)]
    nothing, read = found(7, wide)
    assert nothing == {} and len(read) < 13


def test_the_fewest_replicates_of_a_limit():
    """Of 39 replicates one on either side is 2.5 % of 40."""
    y, models = three_models(60)
    assert kcalib.compare(y, models, metric=kcalib.methods.ECE(n_resamples=39)).n_resamples == 39
    with pytest.raises(ValueError, match="`n_resamples` is 38, expected an integer between 39 and .* level 0.95"):
        kcalib.compare(y, models, metric=kcalib.methods.ECE(n_resamples=38))
    with pytest.raises(ValueError, match="`n_resamples` is 198, expected an integer between 199 and .* level 0.99"):
        kcalib.compare(y, models, metric=kcalib.methods.ECE(n_resamples=198), confidence_level=0.99)
