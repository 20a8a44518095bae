"""Maximum mean calibration error: by hand, against the published double sum, and on large problems."""

from __future__ import annotations

import math

import numpy as np
import pytest
from problems import softmax_problem

import kcalib


def literal_square(c, correct, kernel=lambda d: math.exp(-d / 0.4), *, diagonal=True):
    terms = [
        (a - c_i) * (b - c_j) * kernel(abs(c_i - c_j))
        for i, (c_i, a) in enumerate(zip(c, correct, strict=True))
        for j, (c_j, b) in enumerate(zip(c, correct, strict=True))
        if diagonal or i != j
    ]
    return math.fsum(terms)


def test_by_hand():
    # Confidences 0.8 (right) and 0.6 (wrong): residuals 0.2 and -0.6, 0.2 apart.
    y, p = [1, 0], [[0.2, 0.8], [0.4, 0.6]]
    cross = -0.12 * math.exp(-0.5)
    assert kcalib.mmce(y, p) == pytest.approx(math.sqrt((0.04 + 0.36 + 2 * cross) / 4))
    result = kcalib.mmce.result(y, p, estimator="unbiased")
    assert result.square == pytest.approx(cross)
    assert result.value == 0
    # One right, one wrong: both groups have size 1, so that nothing is divided.
    assert kcalib.mmce(y, p, estimator="weighted") == pytest.approx(math.sqrt(0.04 + 0.36 + 2 * cross))


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_one_column_is_the_second_class_of_two(shape):
    """A single column is not a confidence: below 1/2 the first class is predicted."""
    y, p = softmax_problem(50, 2)
    assert kcalib.mmce(y, p[:, 1].reshape(shape)) == pytest.approx(kcalib.mmce(y, p), rel=1e-12)
    c = np.maximum(p[:, 1], 1 - p[:, 1])
    correct = (p[:, 1] > 0.5) == y
    assert kcalib.mmce(y, p[:, 1].reshape(shape)) == pytest.approx(math.sqrt(literal_square(c, correct)) / 50)


@pytest.mark.parametrize("n", [60, 700])  # the sweep over pairs, and the sorted line
def test_double_sums(n):
    y, p = softmax_problem(n, 5)
    c, correct = p.max(axis=1), (p.argmax(axis=1) == y).astype(float)
    assert kcalib.mmce(y, p) == pytest.approx(math.sqrt(literal_square(c, correct)) / n, rel=1e-11)
    unbiased = kcalib.mmce.result(y, p, estimator="unbiased")
    assert unbiased.backend == ("cpu" if n < 512 else "sorted")
    expected = literal_square(c, correct, diagonal=False) / (n * (n - 1))
    assert unbiased.square == pytest.approx(expected, rel=1e-9, abs=1e-15)
    # The published three sums of MMCE_w.
    right, wrong = c[correct == 1], c[correct == 0]
    k = [[np.exp(-np.abs(a[:, None] - b) / 0.4) for b in (right, wrong)] for a in (right, wrong)]
    square = (1 - right) @ k[0][0] @ (1 - right) / len(right) ** 2 + wrong @ k[1][1] @ wrong / len(wrong) ** 2
    square -= 2 * (1 - right) @ k[0][1] @ wrong / (len(right) * len(wrong))
    assert kcalib.mmce(y, p, estimator="weighted") == pytest.approx(math.sqrt(square), rel=1e-10)


def test_weighted_estimator_of_a_model_that_is_always_right():
    c = np.array([0.7, 0.9])
    expected = math.sqrt(literal_square(c, [1, 1])) / 2
    assert kcalib.mmce([1, 1], c, estimator="weighted") == pytest.approx(expected)


def test_other_kernels():
    y, p = softmax_problem(40, 3)
    c, correct = p.max(axis=1), p.argmax(axis=1) == y
    for kernel, profile in (
        (kcalib.kernels.Gaussian(bandwidth=0.3), lambda d: math.exp(-(d**2) / 0.18)),
        (
            kcalib.kernels.Matern(bandwidth=0.2),
            lambda d: (1 + math.sqrt(3) * d / 0.2) * math.exp(-math.sqrt(3) * d / 0.2),
        ),
    ):
        value = kcalib.mmce(y, p, kernel=kernel)
        assert value == pytest.approx(math.sqrt(literal_square(c, correct, profile)) / 40, rel=1e-10)
    median = kcalib.mmce.result(y, p, kernel=kcalib.kernels.Exponential())
    distances = [abs(a - b) for i, a in enumerate(c) for b in c[:i]]
    assert median.kernel == f"Exponential(bandwidth={np.median(distances):.6g})"


def test_integer_weights_are_repeated_samples():
    y, p = softmax_problem(100, 3)
    weight = np.random.default_rng(0).integers(0, 3, size=100)
    repeated = kcalib.mmce(np.repeat(y, weight), np.repeat(p, weight, axis=0))
    assert kcalib.mmce(y, p, sample_weight=weight) == pytest.approx(repeated, rel=1e-11)


def test_a_million_samples():
    """O(n log n): the double sum would have 1e12 terms. Of tied confidences it has few."""
    rng = np.random.default_rng(0)
    levels = np.linspace(0.5, 1, 11)
    c = rng.choice(levels, size=1_000_000)
    y = rng.uniform(size=c.size) < c**2
    sums = np.array([np.sum(y[c == level] - level) for level in levels])
    kernel = np.exp(-np.abs(levels[:, None] - levels) / 0.4)
    # At 1/2 the first class is predicted.
    sums[0] = np.sum(~y[c == 0.5] - 0.5)
    assert kcalib.mmce(y, c) == pytest.approx(math.sqrt(sums @ kernel @ sums) / c.size, rel=1e-9)


def test_bad_options():
    y, p = softmax_problem(20, 3)
    with pytest.raises(ValueError, match="`estimator` is 'block', expected one of 'biased', 'unbiased', 'weighted'"):
        kcalib.mmce(y, p, estimator="block")
    with pytest.raises(ValueError, match="'unbiased' needs at least 2 samples of positive weight, there are 1"):
        kcalib.mmce(y[:1], p[:1], estimator="unbiased")
    with pytest.raises(ValueError, match="positive weight, there are 1"):
        kcalib.mmce(y, p, estimator="unbiased", sample_weight=np.eye(20)[0])
    with pytest.raises(ValueError, match="`sample_weight` has no meaning for estimator='weighted'"):
        kcalib.mmce(y, p, estimator="weighted", sample_weight=np.ones(20))
    with pytest.raises(TypeError, match="`kernel` is 'rbf', expected a kernel"):
        kcalib.mmce(y, p, kernel="rbf")
