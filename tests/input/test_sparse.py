"""`SparseProbabilities`: some classes of each row, and the rest."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy

import kcalib
from kcalib.kernels import Exponential
from kcalib.lenses import Buckets, Canonical, ClassWise, Groups, TopK, TopLabel
from kcalib.streaming import CalibrationState

N, M = 300, 6
LENSES = [TopLabel(), TopK(1), TopK(4), ClassWise(2), Groups([[0, 3], [1, 2], [4, 5]]), Buckets(), Buckets(3)]


def dense_rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.full(M, 0.4), size=N)
    return (p.cumsum(axis=1) < rng.uniform(size=(N, 1))).sum(axis=1), p


def shuffled(p: np.ndarray) -> kcalib.SparseProbabilities:
    """Keep all classes of dense rows, in another order in each row."""
    ids = np.random.default_rng(0).permuted(np.tile(np.arange(M), (len(p), 1)), axis=1)
    return kcalib.SparseProbabilities(ids, np.take_along_axis(p, ids, axis=1), M)


@pytest.mark.parametrize("lens", LENSES, ids=str)
def test_whole_rows_are_dense_rows_through_every_lens(lens: Any) -> None:
    y, p = dense_rows()
    for metric in (kcalib.brier_score, kcalib.log_loss, kcalib.class_wise_ece):
        assert metric(y, shuffled(p), lens=lens) == pytest.approx(metric(y, p, lens=lens), abs=1e-14)


def test_whole_rows_are_dense_rows_without_a_lens() -> None:
    y, p = dense_rows()
    weight = np.linspace(1, 2, N)
    for metric in (kcalib.brier_score, kcalib.log_loss, kcalib.top_label_ece):
        assert metric(y, shuffled(p), sample_weight=weight) == pytest.approx(metric(y, p, sample_weight=weight))
    sparse, dense = (kcalib.evaluate(y, rows) for rows in (shuffled(p), p))
    names = ["accuracy", "mean_confidence", "log_loss", "brier_score", "top_label_ece", "n_classes", "verdict"]
    for name in names:
        expected = getattr(dense, name)
        assert getattr(sparse, name) == (pytest.approx(expected) if isinstance(expected, float) else expected)
    assert sparse.test.pvalue == dense.test.pvalue
    assert sparse.skce.value == pytest.approx(dense.skce.value)
    diagrams = [kcalib.reliability(y, rows) for rows in (shuffled(p), p)]
    np.testing.assert_allclose(diagrams[0].frequency, diagrams[1].frequency)


def test_scores_of_two_tokens_and_a_rest() -> None:
    p = kcalib.SparseProbabilities([[17, 4], [4, -1], [9, 8]], [[0.6, 0.3], [0.5, -9999], [0.2, 0.1]], 50_000)
    assert p.rest == pytest.approx([0.1, 0.5, 0.7])
    y = [4, 123, 9]
    assert kcalib.log_loss(y, p) == pytest.approx(-np.mean(np.log([0.3, 0.5, 0.2])))
    squares = [0.36 + 0.49 + 0.01, 0.25 + 0.25, 0.64 + 0.01 + 0.49]
    assert kcalib.brier_score(y, p) == pytest.approx(np.mean(squares))
    # Wrong at 0.6 and 0.5, right at 0.2, where the rest is no class: bins (0.5, 0.6], (0.4, 0.5] and (0.1, 0.2].
    assert kcalib.top_label_ece(y, p, n_bins=10) == pytest.approx((0.6 + 0.5 + 0.8) / 3)
    result = kcalib.evaluate(y, p)
    assert (result.n_classes, result.accuracy, result.lens) == (50_000, pytest.approx(1 / 3), str(Buckets()))
    assert [p[1].rest, p[-1:].ids.tolist(), p[[2, 0]].shape, len(p[p.rest > 0.2])] == [[0.5], [[9, 8]], (2, 50_000), 2]
    assert repr(p) == "SparseProbabilities(3 samples, 2 of 50000 classes a row)"


def zipf_rows(rng: np.random.Generator, n: int, k: int) -> tuple[np.ndarray, kcalib.SparseProbabilities]:
    """Draw rows of k of 100,000 tokens, of which few are frequent, and labels from them."""
    ids = (np.sort((1e5 / k) ** rng.uniform(size=(n, k)), axis=1).astype(int) * k + np.arange(k)) % 100_000
    weights = np.arange(1, k + 1) ** -rng.uniform(0.7, 2, size=(n, 1)) * rng.gamma(3, size=(n, k))
    p = weights / weights.sum(axis=1, keepdims=True) * rng.beta(9, 1, size=(n, 1))
    place = (p.cumsum(axis=1) < rng.uniform(size=(n, 1))).sum(axis=1)
    kept = np.take_along_axis(ids, np.minimum(place, k - 1)[:, None], axis=1)[:, 0]
    outside = next(i for i in range(100_000) if not (ids == i).any())
    return np.where(place < k, kept, outside), kcalib.SparseProbabilities(ids, p, 100_000)


def sharpened(p: kcalib.SparseProbabilities, power: float) -> kcalib.SparseProbabilities:
    rows = np.column_stack([p.probabilities, p.rest]) ** power
    rows /= rows.sum(axis=1, keepdims=True)
    return kcalib.SparseProbabilities(p.ids, rows[:, :-1], p.n_classes, rows[:, -1])


@pytest.mark.parametrize("k", [5, 20])
@pytest.mark.parametrize(
    ("n_sets", "least", "most"),
    [(20, 0, 5), pytest.param(400, 8, 35, marks=pytest.mark.slow)],  # binomial, 1e-3 on either side
)
def test_level_and_power_through_buckets(k: int, n_sets: int, least: int, most: int) -> None:
    method, rejected, seen = kcalib.methods.Adaptive(n_resamples=99, n_columns=32), 0, 0
    for seed in range(n_sets):
        y, p = zipf_rows(np.random.default_rng([seed, k]), 150, k)
        rejected += kcalib.calibration_test(y, p, method=method, seed=seed, threads=1).pvalue <= 0.05
        if seed < 3:
            result = kcalib.calibration_test(y, sharpened(p, 2.5), method=method, seed=seed, threads=1)
            seen += result.pvalue <= 0.01
            assert result.lens == str(Buckets())
    assert least <= rejected <= most
    assert seen == 3


def test_observed_tokens_that_are_added_to_the_kept_ones_are_found() -> None:
    y, p = zipf_rows(np.random.default_rng(0), 200, 5)
    is_outside = ~(p.ids == y[:, None]).any(axis=1)
    ids = np.column_stack([p.ids, np.where(is_outside, y, -1)])
    rows = np.column_stack([p.probabilities, np.where(is_outside, p.rest / 2, 0)])
    assert kcalib.calibration_test(y, kcalib.SparseProbabilities(ids, rows, p.n_classes), seed=0).pvalue < 0.01
    assert kcalib.calibration_test(y, p, seed=0).pvalue > 0.05


def test_many_rows_are_summed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    y, p = zipf_rows(np.random.default_rng(2), 400, 4)
    p, texts, kernel = sharpened(p, 2), np.arange(400) // 2, kcalib.kernels.Exponential(0.4)
    whole = [kcalib.evaluate(y, p, kernel=kernel, clusters=clusters) for clusters in (None, texts)]
    monkeypatch.setattr(kcalib.evaluation, "MOST_SPARSE_ROWS", 0)
    monkeypatch.setattr(kcalib.evaluation, "STRIP", 150)
    for clusters, expected in zip((None, texts), whole, strict=True):
        result = kcalib.evaluate(y, p, kernel=kernel, clusters=clusters)
        for name in ("accuracy", "mean_confidence", "log_loss", "brier_score", "top_label_ece"):
            assert getattr(result, name) == pytest.approx(getattr(expected, name))
        assert (result.n_classes, result.lens, result.test.lens) == (100_000, str(Buckets()), str(Buckets()))
        assert result.test.pvalue < 0.01
        assert result.test.finding == expected.test.finding
    with pytest.raises(ValueError, match=r"`y_true` has .* shape \(5,\)"):
        kcalib.evaluate(y[:5], p)


def test_models_are_compared_by_what_they_keep() -> None:
    y, p = zipf_rows(np.random.default_rng(3), 400, 4)
    for metric, score in {
        "brier_score": kcalib.brier_score,
        "log_loss": kcalib.log_loss,
        "ece": kcalib.top_label_ece,
    }.items():
        result = kcalib.compare(y, {"sharp": sharpened(p, 3), "right": p}, metric=metric)
        assert result.ranking == ("right", "sharp")
        assert result.model("right").value == pytest.approx(score(y, p))
        if metric != "ece":
            assert np.mean(kcalib.score_samples(y, p, metric)) == pytest.approx(score(y, p))
    groups = kcalib.worst_groups(y, p, {"subject": np.where(np.arange(400) < 200, "law", "art")}, seed=0)
    assert len(groups.groups) == 2


def test_rest_is_at_least_what_rounding_leaves() -> None:
    ids, rows = [[1, 2]], np.array([[0.75, 0.25 + 2e-7]])
    assert kcalib.SparseProbabilities(ids, rows, 9).rest == [1e-6]
    assert kcalib.SparseProbabilities(ids, rows, 9, rest=3e-9).rest == [3e-9]
    assert kcalib.SparseProbabilities([[1, 0]], rows, 2).rest == [0]


def test_sparse_matrices_are_rows() -> None:
    y, p = dense_rows()
    p[:, 0], p[:, 1] = 0, p[:, 0] + p[:, 1]
    y = np.maximum(y, 1)
    rows = kcalib.SparseProbabilities(scipy.sparse.csr_matrix(p), rest=0)
    assert rows.shape == (N, M)
    assert rows.ids.shape == (N, M - 1)
    assert kcalib.brier_score(y, rows, lens=ClassWise(0)) < 1e-30
    assert kcalib.evaluate(y, rows).test.pvalue == kcalib.evaluate(y, p).test.pvalue


IDS, P = [[1, 2], [3, -1]], [[0.5, 0.25], [0.5, 0.0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1, 1], [3, 0]], P, 9), r"`ids\[0\]` has the class 1 twice"),
        (([[1, 9], [3, 0]], P, 9), r"`ids\[0, 1\]` is 9, expected a class 0..8, or -1"),
        (([[1, -2], [3, 0]], P, 9), r"`ids\[0, 1\]` is -2"),
        ((IDS, [[-0.7, -1.4], [-0.1, 0]], 9), r"`probabilities\[0, 0\]` is -0.7, .* pass np.exp\(logprobs\)"),
        ((IDS, [[0.5, np.nan], [0.5, 0]], 9), r"`probabilities\[0, 1\]` is nan"),
        ((IDS, [[0.5, 0.5], [0.9, 0]], 9, 0.1), r"`probabilities\[0\]` sums to 1.1, expected 1, with `rest`,"),
        ((IDS, [[0.5, 0.6], [0.9, 0]], 9), r"`probabilities\[0\]` sums to 1.1, expected at most 1 within 1e-05"),
        (([[0, 1]], [[0.5, 0.4]], 2), r"`probabilities\[0\]` sums to 0.9"),
        ((IDS, P, 9, [0.25, -0.5]), r"`rest\[1\]` is -0.5"),
        ((IDS, P, 9, [0.25, 0.5, 1]), r"`rest` has dtype float64 and shape \(3,\), expected a number, or \(2,\)"),
        ((IDS, P, 9, "none"), "`rest` has dtype <U4"),
        (([[1, 2], [-1, -1]], P, 9), r"`ids\[1\]` has no class, expected at least one; drop the row"),
        ((IDS, [[0.5], [0.5]], 9), r"`ids` has shape \(2, 2\) and `probabilities` \(2, 1\)"),
        ((IDS, P, 1), "`n_classes` is 1"),
        (([[1.0, 2.0]], [[0.5, 0.25]], 9), "`ids` has dtype float64"),
    ],
)
def test_wrong_rows_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        kcalib.SparseProbabilities(*arguments)


def test_states_add_up_buckets_and_the_rest() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(M), size=500)
    y = (rng.uniform(size=(500, 1)) > p.cumsum(axis=1)).sum(axis=1)
    options = {"kernel": Exponential(0.5), "n_columns": 16, "n_resamples": 9}
    dense, whole = (CalibrationState(M, **options).update(y, rows) for rows in (p, shuffled(p)))
    assert whole == dense
    y, few = zipf_rows(rng, 500, 5)
    at_once, in_parts = (CalibrationState(65, **options, clusters=True) for _ in range(2))
    at_once.update(y, few, clusters=np.arange(500) // 5)
    for part in (slice(0, 300), slice(300, 500)):
        in_parts.update(y[part], few[part], clusters=np.arange(500)[part] // 5)
    assert in_parts == at_once
    assert at_once.options.classes[-1] == "rest"


def test_what_needs_all_classes_is_refused_with_a_remedy() -> None:
    y, p = [1, 3], kcalib.SparseProbabilities(IDS, P, 90)
    for function in (kcalib.skce, kcalib.ckce, kcalib.class_wise_ece, kcalib.mmce):
        with pytest.raises(ValueError, match=r"needs the probabilities of all 90 classes.*Buckets\(\)"):
            function(y, p)
    assert np.isfinite(kcalib.skce(y, p, lens=Buckets()))
    with pytest.raises(ValueError, match="SparseProbabilities; pass lens="):
        kcalib.evaluate(y, p, lens=Canonical())
    with pytest.raises(ValueError, match=r"`y_pred\[1\]` keeps 1 classes, lens=TopK\(k=2\)"):
        kcalib.brier_score(y, p, lens=TopK(2))
    is_long = (p.ids >= 0).sum(axis=1) >= 2
    assert kcalib.brier_score(np.array(y)[is_long], p[is_long], lens=TopK(2)) == pytest.approx(0.25 + 0.0625 * 2)
    with pytest.raises(ValueError, match=r"`y_pred\[1\]` does not keep all that class 2 need"):
        kcalib.brier_score(y, p, lens=ClassWise(2))
    for function in (kcalib.log_loss, kcalib.evaluate):
        with pytest.raises(ValueError, match="`classes` is given"):
            function(y, p, classes=range(90))
    with pytest.raises(ValueError, match=r"`metrics` .* pass a `lens`"):
        kcalib.evaluate(y, p, metrics="clinical")
    with pytest.raises(ValueError, match=r"and a rest, but .* n_classes=99; make it with n_classes=91, or less"):
        CalibrationState(99).update(y, p)
    assert CalibrationState(91).update(y, p).n_samples == 2
    with pytest.raises(TypeError, match=r"but the state has the lens TopLabel\(\); make a state without"):
        CalibrationState(91, lens=TopLabel()).update(y, p)
    with pytest.raises(TypeError, match=r"needs dense probabilities"):
        kcalib.evaluate(y, p, multilabel=True)
    with pytest.raises(ValueError, match=r"pass lens=.* and dense rows to others"):
        kcalib.recalibration.TemperatureScaling().fit(y, p)
    with pytest.raises(ValueError, match=r"`y_true\[1\]` is 90, expected a label 0..89"):
        kcalib.log_loss([1, 90], p)
    with pytest.raises(ValueError, match=r"expected integers of shape \(2,\)"):
        kcalib.log_loss([1.0, 2.0], p)


BAR = """
import resource, time, numpy, kcalib
rng, n, k = numpy.random.default_rng(0), 10**6, 20
ids = rng.integers(0, 128_000 // k, size=(n, 1), dtype=numpy.int32) * k + numpy.arange(k, dtype=numpy.int32)
p = numpy.tile(0.5 ** numpy.arange(1, k + 1, dtype=numpy.float32), (n, 1))
y = ids[numpy.arange(n), numpy.minimum(rng.geometric(0.5, size=n), k) - 1]
begin = time.process_time()
result = kcalib.evaluate(y, kcalib.SparseProbabilities(ids, p, 128_000), threads=2)
assert result.test.pvalue > 0.001, result.test
assert time.process_time() - begin < 120, "60 s on two threads"
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 600 * 2**10
"""


@pytest.mark.slow
def test_a_million_tokens_take_a_minute_and_600_mb() -> None:
    subprocess.run([sys.executable, "-P", "-c", BAR], check=True)
