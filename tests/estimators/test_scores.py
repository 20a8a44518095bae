"""Proper scores and the top-label ECE: by hand, and against scikit-learn."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import scipy
from problems import softmax_problem

import kcalib
from kcalib._input.labels import prepare
from kcalib.estimators.binning import reliability_bins


def test_brier_by_hand():
    # (0.2^2 + 0.4^2) / 2 for the second class; twice that over both classes.
    assert kcalib.brier_score([0, 1], [0.2, 0.6]) == pytest.approx(0.1)
    assert kcalib.brier_score([0, 1], [0.2, 0.6], scale_by_half=False) == pytest.approx(0.2)
    three = [[0.5, 0.3, 0.2]]  # 0.25 + 0.09 + 0.64
    assert kcalib.brier_score([2], three) == pytest.approx(0.98)
    assert kcalib.brier_score([2], three, scale_by_half=True) == pytest.approx(0.49)
    with pytest.raises(ValueError, match="`scale_by_half` is 'yes', expected True, False or 'auto'"):
        kcalib.brier_score([2], three, scale_by_half="yes")


def test_log_loss_by_hand():
    assert kcalib.log_loss([0, 1], [0.2, 0.6]) == pytest.approx(-(math.log(0.8) + math.log(0.6)) / 2)
    epsilon = np.finfo(np.float64).eps
    assert kcalib.log_loss([0], [1.0]) == pytest.approx(-math.log(epsilon))
    single = np.array([1.0], dtype=np.float32)
    assert kcalib.log_loss([0], single) == pytest.approx(-math.log(np.finfo(np.float32).eps))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_loss_of_logits_is_exact(xp, dtype):
    """No probability is clipped, though softmax makes it 0 or less than a rounding error."""
    logits = np.array([[-40.0, 0.0], [-1000.0, 3.0], [0.5, -0.5]], dtype=dtype)
    exact = (40 + 1003 + math.log1p(math.exp(-1.0))) / 3
    y = [0, 0, 0]
    assert kcalib.log_loss(y, xp.asarray(logits), from_logits=True) == pytest.approx(exact, rel=1e-6)
    column = (logits[:, 1] - logits[:, 0]).astype(dtype)
    assert kcalib.log_loss(y, xp.asarray(column), from_logits=True) == pytest.approx(exact, rel=1e-6)


def test_log_loss_of_logits_everywhere():
    """Against SciPy's log-softmax: through a lens, in an evaluation, a comparison and a state."""
    rng = np.random.default_rng(0)
    logits = (30 * rng.normal(size=(50, 3))).astype(np.float32)
    y = rng.integers(3, size=50)
    exact = -scipy.special.log_softmax(logits.astype(np.float64), axis=1)[np.arange(50), y]
    weight = rng.uniform(size=50)
    found = kcalib.log_loss(y, logits, from_logits=True, sample_weight=weight)
    assert found == pytest.approx(np.average(exact, weights=weight), rel=1e-13)
    assert kcalib.evaluate(y, logits, from_logits=True).log_loss == pytest.approx(exact.mean(), rel=1e-13)
    compared = kcalib.compare(y, {"a": logits, "b": logits[:, ::-1]}, metric="log_loss", from_logits=True)
    assert {one.model: one.value for one in compared.models}["a"] == pytest.approx(exact.mean(), rel=1e-13)
    state = kcalib.streaming.CalibrationState(3, from_logits=True).update(y, logits)
    assert state.scores().log_loss.value == pytest.approx(exact.mean(), rel=1e-13)
    groups = kcalib.lenses.Groups([[0], [1, 2]])
    pairs = np.stack([logits[:, 0], scipy.special.logsumexp(logits[:, 1:].astype(np.float64), axis=1)], axis=1)
    of_pairs = -scipy.special.log_softmax(pairs, axis=1)[np.arange(50), np.minimum(y, 1)]
    assert kcalib.log_loss(y, logits, from_logits=True, lens=groups) == pytest.approx(of_pairs.mean(), rel=1e-13)
    # A logit of -inf is a probability of 0, for which the smallest normal number stands.
    assert kcalib.log_loss([0], [[-np.inf, 0.0]], from_logits=True) == pytest.approx(-math.log(2.0**-1022))


def test_ece_by_hand():
    # Bins of width 1/2, right-closed: 0.5 is in the first. Confidences 0.5 and 0.5 right and wrong,
    # 0.9 and 0.7 wrong and right: gaps 0 and |0.5 - 0.8|, half of the samples each.
    p = [[0.5, 0.5], [0.5, 0.5], [0.1, 0.9], [0.7, 0.3]]
    assert kcalib.top_label_ece([0, 1, 0, 0], p, n_bins=2) == pytest.approx(0.15)
    bins = reliability_bins(prepare([0, 1, 0, 0], p), 4)
    assert bins.weight.tolist() == [0, 2, 1, 1]
    assert bins.confidence.tolist() == [0, 0.5, 0.7, 0.9]
    assert bins.accuracy.tolist() == [0, 0.5, 1, 0]


def test_ece_ignores_where_bin_edges_are_not_representable():
    # 3/5 in floating point is an edge: it belongs to the bin that ends there.
    edges = np.array([0.0, 1 / 5, 2 / 5, 3 / 5, 4 / 5, 1.0])
    p = np.stack((1 - edges[3:], edges[3:]), axis=1)
    bins = reliability_bins(prepare([1, 1, 1], p), 5)
    assert bins.weight.tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("m", [2, 3, 10])
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_agree_with_scikit_learn(m, weighted):
    metrics = pytest.importorskip("sklearn.metrics")
    y, p = softmax_problem(500, m)
    weight = np.random.default_rng(0).uniform(size=500) if weighted else None
    pred = p[:, 1] if m == 2 else p
    labels = {"labels": np.arange(m)}
    assert kcalib.log_loss(y, p, sample_weight=weight) == pytest.approx(
        metrics.log_loss(y, p, sample_weight=weight, **labels), rel=1e-12
    )
    if "labels" not in inspect.signature(metrics.brier_score_loss).parameters:  # before 1.7: of two classes alone
        labels = {}
    if m == 2 or labels:
        assert kcalib.brier_score(y, pred, sample_weight=weight) == pytest.approx(
            metrics.brier_score_loss(y, pred, sample_weight=weight, **labels), rel=1e-12
        )


def test_ece_agrees_with_scikit_learn_calibration_curve():
    calibration = pytest.importorskip("sklearn.calibration")
    y, p = softmax_problem(2000, 4)
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
    share, mean = calibration.calibration_curve(correct, confidence, n_bins=15)
    bins = reliability_bins(prepare(y, p), 15)
    filled = bins.weight > 0
    np.testing.assert_allclose(bins.accuracy[filled], share, rtol=1e-12)
    np.testing.assert_allclose(bins.confidence[filled], mean, rtol=1e-12)


def test_ece_refuses_bad_bins():
    with pytest.raises(ValueError, match="`n_bins` is 0, expected an integer between 1 and 1000000"):
        kcalib.top_label_ece([0, 1], [0.2, 0.6], n_bins=0)
    with pytest.raises(TypeError, match="`n_bins` is 1.5, expected an integer"):
        kcalib.top_label_ece([0, 1], [0.2, 0.6], n_bins=1.5)
