"""The verdict on class probabilities where the SKCE finds nothing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import kcalib
from kcalib.inference.verdict import beyond_chance

LEVEL = 0.05


def test_beyond_chance_by_hand() -> None:
    # KL(1/2 || 9/10) = log(5/3) and log(2 / 0.05) = 7.2 log(5/3)
    assert [beyond_chance(n, 0.5, 0.9, LEVEL) for n in (7, 8)] == [False, True]
    assert beyond_chance(1, 0.0, 1.0, LEVEL) and beyond_chance(1, 0.0, 1 + 1e-15, LEVEL)  # cannot be
    assert not beyond_chance(10, 1.0, 1.0, LEVEL)


@pytest.mark.parametrize("n", [1, 20, 500])
@pytest.mark.parametrize("confidence", [0.01, 0.5, 0.93, 0.9999])
def test_beyond_chance_is_rare_for_equal_confidences(n: int, confidence: float) -> None:
    right = np.arange(n + 1)
    named = np.array([beyond_chance(n, k / n, confidence, LEVEL) for k in right])
    assert stats.binom.pmf(right, n, confidence)[named].sum() <= LEVEL


def test_beyond_chance_is_rare_for_unequal_confidences() -> None:
    confidence = np.random.default_rng(1).beta(5, 0.2, 300)
    law = np.ones(1)
    for p in confidence:  # of the sum of events that are right with these probabilities
        law = np.convolve(law, [1 - p, p])
    named = [beyond_chance(300, k / 300, float(confidence.mean()), LEVEL) for k in range(301)]
    assert 0 < law[named].sum() <= LEVEL


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
        (1.5, "no evidence by the SKCE, but over-confident"),
        (0.7, "no evidence by the SKCE, but under-confident"),
    ],
)
def test_accuracy_that_confidence_cannot_explain_is_named(temper: float, verdict: str) -> None:
    y, p = many_classes(temper)
    found = kcalib.evaluate(y, p, level=1e-6, method="features")
    state = kcalib.streaming.CalibrationState(300, n_columns=64).update(y, p).result(level=1e-6)
    assert not found.miscalibrated and found.verdict == state.verdict == verdict
