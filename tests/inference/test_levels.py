"""Levels of the tests of calibration on the laws of predictions that are hardest for them (`hard_laws`)."""

from __future__ import annotations

import numpy as np
import pytest
from hard_laws import LAWS

import kcalib


@pytest.mark.parametrize("name", LAWS)
def test_labels_of_the_laws_are_drawn_from_their_predictions(name):
    law, rng = LAWS[name], np.random.default_rng(0)
    y, p = law.calibrated(rng, n=20_000)
    assert p.min() >= 0
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=0, atol=1e-12)
    seen, expected = np.bincount(y, minlength=p.shape[1]), p.sum(axis=0)
    spread = np.sqrt((p * (1 - p)).sum(axis=0))
    assert (np.abs(seen - expected) <= 6 * spread + 6).all()


def test_exact_keeps_its_level_where_errors_are_rare():
    law, rng = LAWS["saturated, 1e-8..1e-4"], np.random.default_rng(0)
    method = kcalib.methods.Exact(n_resamples=19)
    pvalues = [
        kcalib.calibration_test(*law.calibrated(rng, n=100), method=method, seed=i, threads=1).pvalue
        for i in range(200)
    ]
    assert np.mean(np.array(pvalues) <= 0.05 * (1 + 1e-9)) < 0.13
