"""Calibration errors by bins: gaps by hand, literal bins, the edges, what cannot be done."""

from __future__ import annotations

import math

import numpy as np
import pytest
from libraries import MakeProblem

import kcalib
from kcalib.lenses import Canonical, ClassWise
from kcalib.regression import BinnedCalibration


def literal_gap(confidence: np.ndarray, correct: np.ndarray, n_bins: int, at: float) -> float:
    """Confidence minus accuracy in the bin (a, b] of `at`; over all samples if there are none in it."""
    for k in range(n_bins):
        low, high = k / n_bins, (k + 1) / n_bins
        if low < at <= high or (k == 0 and at == 0):
            inside = [i for i, c in enumerate(confidence) if low < c <= high or (k == 0 and c == 0)]
    inside = inside or list(range(len(confidence)))
    return math.fsum(confidence[i] - correct[i] for i in inside) / len(inside)


@pytest.mark.parametrize("n_bins", [1, 4, 8, 64])
def test_h_is_the_product_of_literal_gaps(n_bins, make_problem: MakeProblem):
    """With powers of two the edges are exact; most of 64 bins are empty."""
    y, p = make_problem(50, 4, seed=1)
    other = make_problem(20, 4, seed=2)[1]
    correct = p.argmax(axis=1) == y
    gaps = [literal_gap(p.max(axis=1), correct, n_bins, c) for c in other.max(axis=1)]
    function = BinnedCalibration(n_bins).fit(y, p)
    assert np.allclose(function.h(other), np.outer(gaps, gaps), rtol=1e-12, atol=1e-16)
    assert function.squared_error(other) == pytest.approx(np.mean(np.square(gaps)), rel=1e-12)


def test_squared_error_of_the_training_samples_is_the_squared_binned_error():
    """Two bins by hand: (0.5, 1] has confidences 0.9, 0.8, 0.6, accuracy 2/3; (0, 0.5] one of 0.4, wrong."""
    y, p = [0, 1, 1, 2], [[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.6, 0.2, 0.2], [0.4, 0.3, 0.3]]
    function = BinnedCalibration(2).fit(y, p)
    assert np.allclose(function.gaps_, [[0.4], [2.3 / 3 - 2 / 3]], rtol=1e-14)
    assert function.counts_.tolist() == [1, 3]
    assert function.squared_error(p) == pytest.approx((0.16 + 3 * 0.01) / 4, rel=1e-13)


def test_bins_are_those_of_the_ece(make_problem: MakeProblem):
    """ECE = mean |gap|: the same right-closed bins, also at their edges and at 0 and 1."""
    c = np.concatenate([np.linspace(0.5, 1, 11), [1.0, 0.7, 0.7, 0.8]])
    y = np.arange(len(c)) % 2
    p = np.stack([1 - c, c], axis=1)
    for n_bins in (1, 3, 10, 15):
        function = BinnedCalibration(n_bins).fit(y, p)
        gaps = np.sqrt(np.diag(function.h(p)))
        assert kcalib.top_label_ece(y, p, n_bins=n_bins) == pytest.approx(np.mean(gaps), rel=1e-13)


def test_zero_is_in_the_first_bin():
    p = np.array([[1.0, 0.0], [0.75, 0.25], [0.0, 1.0]])
    function = BinnedCalibration(4, lens=ClassWise(1)).fit([1, 0, 1], p)
    assert function.counts_.tolist() == [2, 0, 0, 1]
    assert np.allclose(function.gaps_[0], (0 + 0.25) / 2 - 1 / 2, rtol=1e-15)


def test_two_classes_without_a_lens_count_twice(make_problem: MakeProblem):
    """e = (-r, r), so every inner product is twice that of r."""
    y, p = make_problem(60, 2, seed=3)
    both = BinnedCalibration(5, lens=None).fit(y, p)
    second = BinnedCalibration(5, lens=ClassWise(1)).fit(y, p)
    assert both.gaps_.shape == (5, 2)
    assert np.allclose(both.h(p), 2 * second.h(p), rtol=1e-12, atol=1e-16)
    assert both.risk(y, p) == pytest.approx(4 * second.risk(y, p), rel=1e-12)


def test_equal_mass_bins():
    c = np.array([0.9, 0.6, 0.7, 0.55, 0.8, 0.65, 0.95])
    p = np.stack([c, 1 - c], axis=1)
    function = BinnedCalibration(3, binning="equal_mass").fit(np.zeros(7, dtype=int), p)
    assert function.counts_.tolist() == [3, 2, 2]
    assert np.allclose(function.edges_, [0.65, 0.8], rtol=1e-15)
    gaps = [-(0.45 + 0.4 + 0.35) / 3, -(0.3 + 0.2) / 2, -(0.1 + 0.05) / 2]
    assert np.allclose(function.gaps_[:, 0], gaps, rtol=1e-13)
    ece = kcalib.top_label_ece(np.zeros(7, dtype=int), p, n_bins=3, binning="equal_mass")
    assert ece == pytest.approx(np.mean(np.sqrt(np.diag(function.h(p)))), rel=1e-13)


def test_equal_mass_bins_do_not_divide_ties():
    c = np.array([0.6, 1.0, 1.0, 1.0, 1.0, 1.0, 0.7, 0.7])
    p = np.stack([c, 1 - c], axis=1)
    function = BinnedCalibration(8, binning="equal_mass").fit(np.zeros(8, dtype=int), p)
    assert function.n_bins_ == 3
    assert function.counts_.tolist() == [1, 2, 5]


def test_confidences_of_float32_keep_their_gap():
    """1 - c = 1e-20 is a gap of -1e-20; c - 1 would be 0."""
    p = np.array([[1e-20, 1.0], [1e-20, 1.0]], dtype=np.float32)
    assert BinnedCalibration(3).fit([1, 1], p).gaps_[-1, 0] == pytest.approx(-1e-20, rel=1e-7)


def test_what_cannot_be_done(make_problem: MakeProblem):
    y, p = make_problem(10, 3)
    for lens in (None, Canonical()):
        with pytest.raises(ValueError, match=r"no bins for 3 classes together; pass a lens .*TopLabel\(\)"):
            BinnedCalibration(lens=lens).fit(y, p)
    with pytest.raises(ValueError, match=r"`n_bins` is 11, there are 10 samples .* binning='uniform'"):
        BinnedCalibration(11, binning="equal_mass").fit(y, p)
    with pytest.raises(ValueError, match=r"`n_bins` is 0, expected an integer between 1 and 1000000"):
        BinnedCalibration(0).fit(y, p)
    with pytest.raises(TypeError, match=r"`n_bins` is 2.5, expected an integer"):
        BinnedCalibration(2.5).fit(y, p)
    with pytest.raises(ValueError, match=r"`binning` is 'adaptive', expected one of 'uniform', 'equal_mass'"):
        BinnedCalibration(binning="adaptive").fit(y, p)
    with pytest.raises(ValueError, match="not fitted"):
        BinnedCalibration().squared_error(p)


def test_more_bins_than_samples_take_the_gap_of_all():
    function = BinnedCalibration(100).fit([0, 1], [[0.9, 0.1], [0.7, 0.3]])
    assert function.h([[0.55, 0.45]])[0, 0] == pytest.approx((0.8 - 0.5) ** 2, rel=1e-13)
