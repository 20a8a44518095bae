"""Sums of probabilities that rounding has moved from 1: one rule for arrays, frames, sources, states, the command."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import special

import kcalib
from kcalib._command.cli import main
from kcalib._input.labels import prepare
from kcalib.streaming import CalibrationState, load, run, source

LOGITS = 3 * np.random.default_rng(0).standard_normal((60, 4))
P, Y = special.softmax(LOGITS, axis=1), np.arange(60) % 4
BFLOAT16 = (P.astype(np.float32).view(np.uint32) + 2**15 & ~np.uint32(2**16 - 1)).view(np.float32)
ROUNDED = {
    "float16 in float32": (P.astype(np.float16).astype(np.float32), 5e-4),
    "float16 in float64": (P.astype(np.float16).astype(np.float64), 5e-4),
    "bfloat16 in float32": (BFLOAT16, 2e-3),
    "2 decimals": (P.round(2), 5e-3),
    "4 decimals": (P.round(4), 5e-5),
    "4 decimals in float32": (P.round(4).astype(np.float32), 5e-5),
    "6 decimals": (P.round(6), 5e-7),
    "below 0": (P * [1, 1, 1, 0] / P[:, :3].sum(axis=1, keepdims=True) + [1e-16, 0, 0, -1e-16], None),
    "above 1": (np.where(P.max(axis=1, keepdims=True) == P, 1 + 1e-7, 0), None),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_rows_are_taken_everywhere(name, tmp_path, capsys):
    p, error = ROUNDED[name]
    assert np.abs(p.astype(float).sum(axis=1) - 1).max() > 1e-6 or np.any((p < 0) | (p > 1))
    taken = prepare(Y, p).probabilities
    assert np.array_equal(taken, np.clip(p.astype(float), 0, 1))
    if error is not None:
        assert np.abs(taken - P).max() <= error
    score = np.mean(np.sum((np.eye(4)[Y] - taken) ** 2, axis=1))
    assert kcalib.brier_score(Y, p) == pytest.approx(score, rel=1e-12)
    np.savez(tmp_path / "p.npz", probs=p, labels=Y)
    np.savetxt(tmp_path / "p.csv", np.c_[Y, p], delimiter=",", header="label,p_0,p_1,p_2,p_3", comments="", fmt="%.17g")
    state = run(CalibrationState(4), source(tmp_path / "p.npz"))
    state.save(tmp_path / "state")
    assert load(tmp_path / "state").result().brier_score == pytest.approx(score, rel=1e-9)
    assert main(["evaluate", str(tmp_path / "p.csv"), "--method", "features", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["brier_score"] == pytest.approx(score, rel=1e-9)
    pandas = pytest.importorskip("pandas")
    assert kcalib.brier_score(Y, pandas.DataFrame(p)) == pytest.approx(score, rel=1e-12)


@pytest.mark.parametrize(
    "p, message",
    [
        (P * 1.0001, r"`y_pred\[0\]` sums to 1\.0001, expected 1 within 1e-6; normalise the rows"),
        (np.tile([0.33, 0.33, 0.3], (60, 1)), r"`y_pred\[0\]` sums to 0\.96, expected 1 within 0\.015; normalise"),
        (np.tile([0.3, 0.3, 0.3], (60, 1)), r"`y_pred\[0\]` sums to 0\.9, expected 1 within 0\.015; normalise"),
        (np.tile([0.5, 0.5, 0.0625], (60, 1)), r"`y_pred\[0\]` sums to 1\.0625, expected 1 within 0\.031; normalise"),
        (np.r_[P[:9].round(3), P[9:] * 1.0001], r"`y_pred\[9\]` sums to 1\.0001, expected 1 within 1e-6; normalise"),
    ],
)
def test_rows_that_rounding_does_not_explain(p, message):
    with pytest.raises(ValueError, match=message):
        kcalib.brier_score(np.zeros(60, int), p)
    assert kcalib.brier_score(np.zeros(60, int), p / p.sum(axis=1, keepdims=True)) > 0


@pytest.mark.parametrize("column", [[0.2, 1 + 2**-52], [0.2, -(2.0**-60)], [0.2, 1 + 9e-7]])
def test_a_column_and_its_complement_are_one(column):
    p = np.array(column)
    assert kcalib.log_loss([0, 1], p) == kcalib.log_loss([0, 1], np.stack([1 - p, p], axis=1))
    assert kcalib.log_loss([0, 1], p) == kcalib.log_loss([0, 1], np.clip(p, 0, 1))
    with pytest.raises(ValueError, match="for rounding errors clip to"):
        kcalib.log_loss([0, 1], p + [0, np.sign(p[1]) * 2e-6])
