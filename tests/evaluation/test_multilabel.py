"""Problems whose samples have several labels or none: `kcalib.evaluate(..., multilabel=True)`, and the command."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kcalib
from kcalib._command.cli import main

METHOD = kcalib.methods.Adaptive(n_resamples=199, n_columns=16)
RNG = np.random.default_rng(1)
P = RNG.uniform(size=(300, 3))
Y = (RNG.uniform(size=P.shape) < P * [1, 0.6, 1]).astype(int)  # the second label is predicted too often
NAMES = ["cat", "dog", "owl"]


def evaluate(y: Any, p: Any, **options: Any) -> kcalib.MultilabelEvaluation:
    return kcalib.evaluate(y, p, multilabel=True, method=METHOD, seed=0, **options)


def test_each_label_is_a_binary_problem() -> None:
    result = evaluate(Y, P, classes=NAMES)
    alone = [kcalib.evaluate(Y[:, k], P[:, k], method=METHOD, seed=0) for k in range(3)]
    assert [e.test.pvalue for e in result.evaluations] == [e.test.pvalue for e in alone]
    assert (result.labels, result.n_samples, result.n_labels) == (("cat", "dog", "owl"), 300, 3)
    for name in ("accuracy", "log_loss", "brier_score", "top_label_ece"):
        assert getattr(result, name) == pytest.approx(np.mean([getattr(e, name) for e in alone]))
    # Holm: the smallest times 3, the next times 2, the largest as it is, at least those before it.
    order = np.argsort([e.test.pvalue for e in alone])
    a, b, c = (alone[k].test.pvalue for k in order)
    assert [result.pvalues_holm[k] for k in order] == [3 * a, max(3 * a, 2 * b), max(3 * a, 2 * b, c)]
    assert result.miscalibrated and result.verdict == "miscalibrated for 1 of 3 labels: dog"
    assert result.evaluations[1].verdict.startswith("miscalibrated, class 'dog' predicted too often")
    assert "means over 3 labels" in str(result) and "p (Holm)" in result._repr_html_()


def test_a_label_is_called_miscalibrated_by_its_adjusted_pvalue() -> None:
    y, p = Y[:, [1] + [0] * 9], P[:, [1] + [0] * 9]
    alone = kcalib.evaluate(y[:20, 0], p[:20, 0], method=METHOD, seed=0).test.pvalue
    result = evaluate(y[:20], p[:20], level=2 * alone)  # between p and 10 p
    assert result.evaluations[0].test.pvalue == alone < result.level <= result.pvalues_holm[0]
    assert not result.miscalibrated and result.verdict == "no evidence against calibration"
    assert result.evaluations[0].verdict == "no evidence against calibration among all labels"


def test_one_hot_labels_are_of_classes_unless_asked() -> None:
    p = P / P.sum(axis=1, keepdims=True)
    one_hot = np.eye(3, dtype=int)[Y.argmax(axis=1)]
    assert kcalib.evaluate(one_hot, p, method=METHOD, seed=0).n_classes == 3
    assert evaluate(one_hot, p).n_labels == 3
    logits = np.log(P) - np.log1p(-P)
    assert evaluate(Y, logits, from_logits=True).brier_score == pytest.approx(evaluate(Y, P).brier_score)
    weighted = evaluate(Y, P, sample_weight=np.arange(300) < 150)
    assert weighted.brier_score == pytest.approx(evaluate(Y[:150], P[:150]).brier_score)


@pytest.mark.parametrize(
    ("y", "p", "options", "fault"),
    [
        (Y, P[:, :2], {}, r"shape \(300, 3\), `y_pred` \(300, 2\); with multilabel=True expected \(n, labels\)"),
        (Y[:, 0], P, {}, r"shape \(300,\)"),
        (Y - 1, P, {}, r"`y_true\[\d+, \d+\]` is -1, expected 0 or 1: whether the sample has the label"),
        (Y, P + 1, {}, r"`y_pred\[:, 0\]\[0\]` is 1.*expected a probability"),
        (Y, P, {"classes": ["cat"]}, "`classes` has 1 names, expected 3"),
        (Y, P, {"lens": kcalib.lenses.TopLabel()}, "`lens` is TopLabel.* leave it out"),
        (Y, P, {"tolerance": 0.1}, "`tolerance` is 0.1, .* leave it out"),
        (kcalib.streaming.source((Y[:, 0], P[:, 0])), None, {}, "`multilabel` is True, but sums over a source"),
    ],
)
def test_what_is_no_such_problem_is_refused(y: Any, p: Any, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        evaluate(y, p, **options)


def test_matrices_of_labels_are_refused_with_a_remedy_that_works() -> None:
    for function in (kcalib.evaluate, kcalib.skce, kcalib.brier_score):
        with pytest.raises(ValueError, match="pass multilabel=True to kcalib.evaluate"):
            function(Y, P)
    kcalib.evaluate(Y, P, multilabel=True, method=METHOD)


@pytest.mark.parametrize("kind", ["npz", "csv", "numbered"])
def test_the_command_evaluates_labels(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"model.{'npz' if kind == 'npz' else 'csv'}"
    names = ["0", "1", "2"] if kind == "numbered" else NAMES
    if kind == "npz":
        np.savez(path, labels=Y, probs=P, classes=np.array(NAMES))
    else:
        shuffled = [2, 0, 1]  # columns are matched by name
        header = [f"label_{names[k]}" for k in shuffled] + [f"probs_{name}" for name in names]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([header, *np.hstack([Y[:, shuffled], P]).tolist()])
    assert main(["evaluate", str(path), "--multilabel", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["models"]
    expected = kcalib.evaluate(Y, P, multilabel=True, seed=0)
    assert [entry["pvalue_holm"] for entry in entries] == list(expected.pvalues_holm)
    assert entries[0]["means_over_labels"]["brier_score"] == pytest.approx(expected.brier_score)
    assert [entry["model"] for entry in entries] == [f"model: {name}" for name in names]
    assert main(["evaluate", str(path), "--multilabel", "--fail-if-miscalibrated"]) == 3
    text = capsys.readouterr().out
    assert "p (Holm)" in text and "means over 3 labels: accuracy" in text and "adjusted over the labels" in text
    if kind == "numbered":
        assert main(["evaluate", str(path), "--multilabel", "--classes=cat,dog,owl"]) == 0
        assert "model: owl" in capsys.readouterr().out
    if kind == "npz":
        assert main(["evaluate", str(path)]) == 1
        assert "evaluate them with --multilabel" in capsys.readouterr().err
        assert main(["evaluate", str(path), "--multilabel", "--lens", "top-label"]) == 2
        assert "--lens does not go with --multilabel" in capsys.readouterr().err
