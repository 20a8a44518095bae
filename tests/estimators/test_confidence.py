"""Pairs of a confidence and whether the prediction was right, through `kcalib.lenses.Confidence`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import kcalib
from kcalib._command.cli import main
from kcalib.lenses import Confidence, TopLabel
from kcalib.recalibration import IsotonicCalibration
from kcalib.streaming import CalibrationState, source

LENS = Confidence()
# 20 of 100 right at 0.4, and 40 of 100 at 0.6: accuracy 0.3, mean confidence 0.5, both gaps 0.2.
C, RIGHT = np.repeat([0.4, 0.6], 100), np.arange(200) % 100 < np.repeat([20, 40], 100)


def evaluate_by(how: str, right: Any, c: Any, **options: Any) -> kcalib.Evaluation:
    if how == "state":
        state = CalibrationState(2, lens=LENS, n_columns=64)
        return state.update(right[::2], c[::2]).update(right[1::2], c[1::2]).result()
    if how == "source":
        return kcalib.evaluate(source((right, c)), lens=LENS)
    clusters = np.arange(len(c)) if how == "clusters" else None
    return kcalib.evaluate(right, c, lens=LENS, seed=0, clusters=clusters, **options)


@pytest.mark.parametrize("how", ["memory", "state", "source", "clusters"])
def test_an_evaluation_is_of_the_confidences_as_given(how: str) -> None:
    e = evaluate_by(how, RIGHT.astype(int), C.astype(np.float32 if how == "memory" else float))
    assert (e.accuracy, e.confidence_from, e.lens) == (0.3, "as given", "Confidence()")
    assert (e.mean_confidence, e.top_label_ece, e.brier_score) == pytest.approx((0.5, 0.2, 0.24), abs=1e-7)
    assert e.verdict.startswith("miscalibrated, over-confident")
    assert "top label" not in [block.name for block in e.test.blocks or ()]
    # Right in 50 of 100 at 0.4 and 70 of 100 at 0.6: as far below.
    e = evaluate_by(how, np.arange(200) % 100 < np.repeat([50, 70], 100), C)
    assert e.verdict.startswith("miscalibrated, under-confident") and e.accuracy == 0.6


def test_findings_about_confidences() -> None:
    c = np.repeat([0.1, 0.9], 500)
    right = np.arange(1000) % 500 < np.repeat([150, 350], 500)  # 30 % and 70 %
    test = kcalib.calibration_test(right, c, lens=LENS, seed=0)
    findings = {block.name: block.finding for block in test.blocks or ()}
    assert findings["temperature"] == "confidences too far from 0.5"
    assert findings["classes"] == "confidences from 0.9 to 0.9 too high"
    groups = kcalib.worst_groups(right, c, {"low": c < 0.5}, lens=LENS, seed=0).groups
    assert {g.group: (g.finding, round(g.gap, 9)) for g in groups} == {
        "low=True": ("confidences too far from 0.5", -0.2),
        "low=False": ("over-confident", 0.2),
    }
    given = kcalib.calibration_test(right, c, given={"low": c < 0.5}, lens=LENS, seed=0)
    assert "-confident where low is" in next(b.finding for b in given.blocks or () if b.name == "given low")


def test_functions_do_not_turn_confidences_round() -> None:
    state = CalibrationState(2, lens=LENS, n_columns=16).update(RIGHT, C)
    for result in (kcalib.top_label_ece.result(RIGHT, C, lens=LENS), state.top_label_ece()):
        assert result.value == pytest.approx(0.2) and result.confidence_from == "as given"
    assert kcalib.debiased_ece.result(RIGHT, C, lens=LENS, n_bins=2).bins[0].confidence == pytest.approx([0.4, 0.6])
    # (0.2^2 k(0) + 0.2^2 k(0.2)) / 2 with k(d) = exp(-d / 0.4)
    assert kcalib.mmce(RIGHT, C, lens=LENS) == pytest.approx(0.2 * ((1 + np.exp(-0.5)) / 2) ** 0.5)
    assert kcalib.skce(RIGHT, C, lens=LENS) == pytest.approx(kcalib.skce(RIGHT, C))
    for diagram in (kcalib.reliability(RIGHT, C, lens=LENS, n_bins=5), state.reliability(lens=TopLabel())):
        used = diagram.weight > 0
        assert diagram.confidence[used] == pytest.approx([0.4, 0.6]) and diagram.lens == "Confidence()"
    method = kcalib.methods.Consistency(n_resamples=19, resample_predictions=False)
    assert kcalib.calibration_test(RIGHT, C, lens=LENS, method=method).estimate == pytest.approx(0.2)
    # Without the lens a column is the probability of a class, and the result says what became of it.
    result = kcalib.top_label_ece.result(RIGHT, C)
    assert result.confidence_from == "max(p, 1 - p)" and result.value < 1e-12  # 120 of 200 right at 0.6
    assert kcalib.evaluate(RIGHT, C, seed=0).confidence_from == "max(p, 1 - p)"
    assert kcalib.class_wise_ece.result(RIGHT, C).confidence_from is None
    # Recalibrators take the pairs as they are.
    assert IsotonicCalibration().fit(RIGHT, C).transform(C[[0, -1]]) == pytest.approx([0.2, 0.4], abs=0.01)


def test_top_labels_below_one_half_are_not_turned_round_either() -> None:
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.ones(8), size=200), rng.integers(8, size=200)
    through, plain = (kcalib.evaluate(y, p, lens=lens, seed=0) for lens in (TopLabel(), None))
    assert (through.accuracy, through.mean_confidence) == (plain.accuracy, pytest.approx(plain.mean_confidence))
    assert through.top_label_ece == pytest.approx(plain.top_label_ece) and through.verdict.startswith("miscal")
    assert through.confidence_from == plain.confidence_from == "largest probability"
    pairs = kcalib.evaluate(y == p.argmax(axis=1), p.max(axis=1), lens=LENS, seed=0)
    assert pairs.top_label_ece == pytest.approx(plain.top_label_ece)
    assert pairs.test.pvalue == pytest.approx(through.test.pvalue)


def test_calibrated_pairs_are_rejected_as_often_as_the_level_says() -> None:
    method, n_called, n_sets = kcalib.methods.Adaptive(n_resamples=19, n_columns=16), 0, 40
    for number in range(n_sets):
        rng = np.random.default_rng(number)
        c = rng.beta(2, 2, size=60)
        right = rng.uniform(size=60) < c
        n_called += kcalib.calibration_test(right, c, lens=LENS, method=method, seed=number).pvalue <= 0.05
    assert n_called <= stats.binom.isf(1e-3, n_sets, 0.05)


def test_models_are_right_about_different_samples() -> None:
    result = kcalib.compare({"a": RIGHT, "b": ~RIGHT}, {"a": C, "b": 1 - C}, lens=LENS, metric="brier_score")
    assert [result.model(name).value for name in "ab"] == pytest.approx([0.24, 0.24])
    both = kcalib.compare(RIGHT, {"a": C, "b": np.full(200, 0.3)}, lens=LENS, metric="ece")
    assert [both.model(name).value for name in "ab"] == pytest.approx([0.2, 0.0], abs=1e-12)
    with pytest.raises(ValueError, match=r"has the models \['a'\], expected \['a', 'b'\]; pass labels"):
        kcalib.compare({"a": RIGHT}, {"a": C, "b": C}, lens=LENS)


@pytest.mark.parametrize(
    ("y", "p", "fault"),
    [
        (RIGHT, np.stack([1 - C, C], axis=1), r"2 columns, expected one .* lens=kcalib.lenses.TopLabel\(\)"),
        (RIGHT, np.full((200, 4), 0.25), "4 columns, expected one"),
        (np.where(RIGHT, "correct", "incorrect"), C, r"is text, expected 0 or 1, .* pass classes=\[label"),
        (RIGHT * 2, C, r"`y_true\[0\]` is 2, expected a label 0..1"),
    ],
)
def test_what_is_no_pair_is_refused(y: Any, p: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        kcalib.top_label_ece(y, p, lens=LENS)
    if p.ndim == 2:
        kcalib.top_label_ece(y.astype(int), p, lens=TopLabel())  # the remedy
        for add in (
            lambda: CalibrationState(p.shape[1], lens=LENS).update(y, p),
            lambda: source((y, p)).summed(lens=LENS),
        ):
            with pytest.raises(ValueError, match="expected one of confidences"):
                add()
    elif y.dtype.kind == "U":  # the remedy
        assert kcalib.top_label_ece(y, p, classes=["incorrect", "correct"], lens=LENS) == pytest.approx(0.2)


def write_pairs(path: Path, right: np.ndarray) -> str:
    rows = zip(C, right.tolist(), strict=True)
    path.write_text("c,ok,two_0,two_1\n" + "".join(f"{c},{str(ok).lower()},{1 - c},{c}\n" for c, ok in rows))
    return str(path)


def test_the_command_reads_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (write_pairs(tmp_path / f"{name}.csv", right) for name, right in (("a", RIGHT), ("b", ~RIGHT)))
    options = ["--confidence", "c", "--labels", "ok"]

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        assert main(list(arguments)) == code
        return capsys.readouterr()

    (entry,) = json.loads(run("evaluate", a, *options, "--json")[0])["models"]
    assert (entry["lens"], entry["accuracy"], entry["confidence_from"]) == ("Confidence()", 0.3, "as given")
    assert entry["top_label_ece"] == pytest.approx(0.2)
    assert "confidences as given; accuracy: share of right predictions" in run("evaluate", a, *options)[0]
    assert "max(p, 1 - p)" in run("evaluate", a, "--probs", "c", "--labels", "ok")[0]
    state = str(tmp_path / "all.kcalib")
    run("update", state, a, *options)
    run("update", state, b, *options)
    (entry,) = json.loads(run("show", state, "--json")[0])["models"]
    assert (entry["n_samples"], entry["accuracy"], entry["lens"]) == (400, 0.5, "Confidence()")
    (entry,) = json.loads(run("evaluate", "--stream", a, *options, "--json")[0])["models"]
    assert entry["accuracy"] == 0.3
    compared = json.loads(run("compare", a, b, *options, "--metric", "ece", "--json")[0])
    assert "Confidence()" in json.dumps(compared)
    for extra, code, fault in (
        (["--lens", "top-label", *options], 2, "--lens does not go with --confidence; leave it out"),
        (["--confidence", "two", "--labels", "ok"], 1, "has 2 columns, expected one of confidences"),
    ):
        for command in (["evaluate", a], ["update", str(tmp_path / "new.kcalib"), a]):
            assert fault in run(*command, *extra, code=code)[1]
    assert "--confidence needs all samples at once" in run("compare", a, b, *options, "--stream", code=2)[1]
    text = tmp_path / "text.csv"
    text.write_text("c,ok\n" + "0.4,correct\n0.6,incorrect\n" * 5)
    assert "expected 0 or 1, true or false" in run("evaluate", str(text), *options, code=1)[1]
    (entry,) = json.loads(run("evaluate", str(text), *options, "--classes=incorrect,correct", "--json")[0])["models"]
    assert entry["top_label_ece"] == pytest.approx(0.6)  # 0.4 is always right, 0.6 never
    fault = "state of confidences; name them by --confidence"
    assert fault in run("update", state, a, "--probs", "c", "--labels", "ok", code=1)[1]
    run("update", str(tmp_path / "classes.kcalib"), a, "--probs", "c", "--labels", "ok")
    fault = "state of class probabilities; leave out --confidence"
    assert fault in run("update", str(tmp_path / "classes.kcalib"), b, *options, code=1)[1]
