"""Samples of predictions for a bandwidth that states share."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from kcalib import lenses
from kcalib.bandwidth import median_distance
from kcalib.kernels import Exponential, Gaussian
from kcalib.streaming import CalibrationState, PredictionSample

P = np.random.default_rng(0).dirichlet(np.ones(3), size=900)


@pytest.mark.parametrize("size", [2000, 100])
def test_samples_of_parts_add_up_in_any_order(size):
    whole = PredictionSample(3, size=size).update(P)
    rng = np.random.default_rng(1)
    pieces = [PredictionSample(3, size=size).update(P[a : a + 90], first_row=a) for a in range(0, 900, 90)]
    for _ in range(3):
        order = rng.permutation(10)
        joined = pieces[order[0]]
        for k in order[1:]:
            joined = joined + pieces[k]
        assert joined.kernel() == whole.kernel() and joined.n_samples == 900
    assert pieces[0].n_samples == 90  # what is added stays as it is
    assert pickle.loads(pickle.dumps(whole)).kernel() == whole.kernel()


def test_a_sample_of_all_has_the_median_of_all_and_a_part_is_near_it():
    exact = median_distance(P).value
    assert PredictionSample(3).update(P).kernel() == Exponential(exact)
    assert PredictionSample(3).update(P).kernel(Gaussian()) == Gaussian(exact)
    few = PredictionSample(3, size=200, seed=5).update(P).kernel()
    assert few.bandwidth == pytest.approx(exact, rel=0.1)
    confidence = P.max(axis=1)
    seen = PredictionSample(3, lens=lenses.TopLabel()).update(P).kernel()
    assert seen.bandwidth == pytest.approx(median_distance(np.stack([1 - confidence, confidence], 1)).value, rel=1e-12)
    logits = PredictionSample(3, from_logits=True).update(np.log(P)).kernel()
    assert logits.bandwidth == pytest.approx(exact, rel=1e-12)


def test_states_of_one_kernel_are_merged():
    kernel = (PredictionSample(3).update(P[:400]) + PredictionSample(3, part=1).update(P[400:])).kernel()
    y = np.zeros(900, dtype=int)
    parts = [CalibrationState(3, kernel=kernel, n_resamples=0, part=k) for k in range(2)]
    assert (parts[0].update(y[:400], P[:400]) + parts[1].update(y[400:], P[400:])).kernel == kernel


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: PredictionSample(1), ValueError, "`n_classes`"),
        (lambda: PredictionSample(3, size=1), ValueError, "`size`"),
        (lambda: PredictionSample(3, part=-1), ValueError, "`part`"),
        (lambda: PredictionSample(3, seed=-1), ValueError, "`seed`"),
        (lambda: PredictionSample(3, lens=3), TypeError, "`lens`"),
        (lambda: PredictionSample(4).update(P), ValueError, "`y_pred` has 3 classes, expected n_classes=4"),
        (lambda: PredictionSample(3).update(P * np.nan), ValueError, r"`y_pred\[0, 0\]` is nan"),
        (lambda: PredictionSample(3).update(P).update(P, first_row=5), ValueError, "rows 5 to 899 were added already"),
        (lambda: PredictionSample(3).kernel(), ValueError, "`y_pred` has 0 rows"),
        (lambda: PredictionSample(3).merge(3), TypeError, "`other` is int"),
        (lambda: PredictionSample(3) + PredictionSample(3, size=5), ValueError, "`size` is 2000 in one sample and 5"),
        (lambda: PredictionSample(3) + PredictionSample(3, seed=5), ValueError, "`seed` is 0 in one sample and 5"),
    ],
)
def test_faults_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_sum_of_a_list():
    parts = [PredictionSample(3, part=k).update(P[k::3]) for k in range(3)]
    assert sum(parts).kernel() == (parts[0] + parts[1] + parts[2]).kernel()
    assert parts[0].n_samples == len(P[::3])
    with pytest.raises(TypeError, match="unsupported operand"):
        1 + parts[0]


def test_without_a_distance():
    p = np.full((4, 3), 1 / 3)
    for rows, message in ((0, "has 0 rows"), (1, "has 1 row,"), (4, "has identical rows only")):
        sample = PredictionSample(3).update(p[:rows])
        assert sample.n_samples == rows
        with pytest.raises(ValueError, match=rf"{message}.*; add more predictions, or make st"):
            sample.kernel()
