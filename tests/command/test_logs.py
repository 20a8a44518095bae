"""Logs of language models in the command: recognised by their content, with the lines that were not used."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command_runs import error_line, ran

import kcalib
from kcalib.recalibration import TemperatureScaling, save
from kcalib.streaming import load, read_answers


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Two models on 120 questions, of which the second is over-confident in law; confidences; prompts."""
    folder, rng = tmp_path_factory.mktemp("logs"), np.random.default_rng(0)
    z = 2 * rng.normal(size=(120, 4))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) < rng.uniform(size=(120, 1))).sum(axis=1)
    subjects = ["law" if i < 60 else "art" for i in range(120)]
    for model in ("good", "sharp"):
        logits = z * np.where(np.asarray(subjects) == "law", 4 if model == "sharp" else 1, 1)[:, None]
        lines = [
            {"doc": {"subject": s}, "target": str(t), "filtered_resps": [[str(x), "False"] for x in row],
             "acc": float(np.argmax(row) == t)}
            for s, t, row in zip(subjects, y.tolist(), logits.tolist(), strict=True)
        ]  # fmt: skip
        write(folder / f"{model}.jsonl", lines)
    c = rng.uniform(size=90)
    correct = (rng.uniform(size=90) < c).tolist()
    lines = [{"confidence": f"{100 * a:.0f} %", "correct": b} for a, b in zip(c, correct, strict=True)]
    write(folder / "confident.jsonl", [*lines, {"confidence": "high", "correct": True}])
    prompts = []
    for _ in range(6):
        rows = [None]
        for _ in range(15):
            logits = np.log(rng.dirichlet(np.ones(6)))
            label = int(rng.choice(6, p=np.exp(logits)))
            order = np.argsort(-logits).tolist()
            ranks = {label: order.index(label) + 1} | {token: rank + 1 for rank, token in enumerate(order[:2])}
            rows.append({str(t): {"logprob": logits[t], "rank": r} for t, r in ranks.items()})
        prompts.append({"prompt_logprobs": rows})
    write(folder / "prompts.jsonl", prompts)
    return folder


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def evaluated(capsys, *arguments):
    ran("evaluate", *arguments, "--json", "--threads", 1)
    (model,) = json.loads(capsys.readouterr().out)["models"]
    return model


def test_verdict_by_subject(logs, capsys):
    model = evaluated(capsys, logs / "sharp.jsonl", "--by", "subject")
    (log,) = read_answers(logs / "sharp.jsonl")
    assert model["log_loss"] == kcalib.log_loss(log.y_true, log.y_pred) and model["miscalibrated"]
    assert model["rows"] == "softmax of log-likelihoods of choices: 120 of 120 rows, 120 samples"
    law, art = model["groups"]["groups"]
    assert (law["group"], art["group"]) == ("subject=law", "subject=art")
    assert law["pvalue_adjusted"] < 0.05 < art["pvalue_adjusted"]


def test_confidences(logs, capsys):
    """Seen through the lens of confidences without an option, and by --confidence; also in pieces."""
    (log,) = read_answers(logs / "confident.jsonl")
    model = evaluated(capsys, logs / "confident.jsonl")
    assert model["accuracy"] == np.mean(log.y_true) and model["confidence_from"] == "as given"
    assert model["rows"].endswith("90 of 91 rows, 90 samples; not used: a confidence that is not one number (1)")
    again = evaluated(capsys, logs / "confident.jsonl", "--confidence", "confidence", "--labels", "correct")
    in_pieces = evaluated(capsys, logs / "confident.jsonl", "--stream")
    for name in ("accuracy", "top_label_ece", "log_loss"):
        assert again[name] == model[name] and in_pieces[name] == pytest.approx(model[name])


def test_tokens(logs, capsys):
    """In clusters of the texts; scores are those of the tokens."""
    (log,) = read_answers(logs / "prompts.jsonl")
    expected = kcalib.evaluate(log.y_true, log.y_pred, clusters=log.clusters, seed=0, threads=1)
    model = evaluated(capsys, logs / "prompts.jsonl")
    assert model["test"]["pvalue"] == expected.test.pvalue and model["brier_score"] == expected.brier_score
    assert model["test"]["pvalue"] != kcalib.evaluate(log.y_true, log.y_pred, seed=0, threads=1).test.pvalue
    top = evaluated(capsys, logs / "prompts.jsonl", "--lens", "top-label", "--clusters", "position")
    of_position = {"clusters": log.tasks["position"], "lens": kcalib.lenses.TopLabel(), "seed": 0, "threads": 1}
    expected = kcalib.evaluate(log.y_true, log.y_pred, **of_position)
    assert (top["top_label_ece"], top["test"]["pvalue"]) == (expected.top_label_ece, expected.test.pvalue)
    ran("evaluate", logs / "prompts.jsonl", "--weights", "position", code=1)
    assert "holds predictions of tokens, which have no --weights, --given or --time-blocks" in error_line(capsys)


def test_tokens_are_added_up_in_clusters_of_texts(logs, capsys, tmp_path):
    """By comparisons and states, without an option."""
    path, other = logs / "prompts.jsonl", tmp_path / "other.jsonl"
    rng, prompts = np.random.default_rng(1), []
    for line in path.read_text().splitlines():  # the same tokens, of which another model has others among its two
        rows = [None]
        for row in json.loads(line)["prompt_logprobs"][1:]:
            logits, label = np.log(rng.dirichlet(np.ones(6))), int(next(iter(row)))
            order = np.argsort(-logits).tolist()
            ranks = {label: order.index(label) + 1} | {token: rank + 1 for rank, token in enumerate(order[:2])}
            rows.append({str(t): {"logprob": logits[t], "rank": r} for t, r in ranks.items()})
        prompts.append({"prompt_logprobs": rows})
    write(other, prompts)
    intervals = []
    for options in ((), ("--clusters", "text"), ("--clusters", "position")):
        ran("compare", path, other, "--json", *options)
        intervals.append(json.loads(capsys.readouterr().out)["comparison"]["models"][0]["confidence_interval"])
    assert intervals[0] == intervals[1] != intervals[2]
    ran("update", tmp_path / "state.kcalib", path)
    assert "flips of the signs of" in load(tmp_path / "state.kcalib").result().test.null_law
    capsys.readouterr()
    in_pieces = evaluated(capsys, path, "--stream")
    assert "flips of the signs of" in in_pieces["test"]["null_law"]
    ran("report", path, "-o", tmp_path / "page.html", code=1)
    assert "holds predictions of tokens, which depend on each other; use `kcalib evaluate`" in error_line(capsys)
    save(TemperatureScaling().fit([0, 0, 1, 0, 1, 1], [0.3, 0.3, 0.3, 0.7, 0.7, 0.7]), tmp_path / "map.json")
    ran("apply", tmp_path / "map.json", path, "-o", tmp_path / "out.npz", code=1)
    error = error_line(capsys)
    assert "holds predictions of tokens, expected probabilities of all classes" in error and "array `probs`" in error
    ran("evaluate", path, "--by", "text", code=1)
    assert "--by text has several tokens of a text in a group" in error_line(capsys)


def test_other_commands(logs, capsys, tmp_path):
    """Comparison, a state, and what was not used on standard error."""
    ran("compare", logs / "good.jsonl", logs / "sharp.jsonl", "--metric", "brier_score", "--json")
    printed = json.loads(capsys.readouterr().out)["comparison"]
    assert printed["ranking"] == ["good", "sharp"] and printed["n_samples"] == 120
    ran("update", tmp_path / "a.kcal", logs / "good.jsonl")
    assert "120 rows" in capsys.readouterr().out
    ran("report", logs / "confident.jsonl", "-o", tmp_path / "a.html", "--no-repair")
    assert "not used: a confidence that is not one number (1)" in capsys.readouterr().err


def test_options(logs, capsys, tmp_path):
    for options, message in (
        (["--logits", "z"], "is a log of a language model, but --logits is for other files"),
        (["--by", "age"], "there is no field 'age' for --by; the file has the fields 'subject', 'target', 'acc'"),
        (["--per-character"], "no line can be used"),
        (["--classes", "A,B"], "has log-likelihoods, but --classes is for answers; leave it out"),
    ):
        ran("evaluate", logs / "good.jsonl", *options, code=1)
        assert message in error_line(capsys)
    for more in ([], ["--stream"]):
        ran("evaluate", logs / "confident.jsonl", "--lens", "top-label", *more, code=1)
        assert error_line(capsys).endswith("holds confidences, but --lens is for class probabilities; leave it out")
    tops = [{"token": token, "logprob": -1.5} for token in "ABCD"]
    content = [{"token": "A", "logprob": -1.5, "top_logprobs": tops}]
    write(tmp_path / "chat.jsonl", [{"choices": [{"logprobs": {"content": content}}], "answer": a} for a in "ABC" * 9])
    ran("evaluate", tmp_path / "chat.jsonl", code=1)
    assert error_line(capsys).endswith(
        "--classes is not given, and answers that are never right are possible, too; pass all possible answers, such "
        "as --classes=A,B,C,D"
    )
    assert evaluated(capsys, tmp_path / "chat.jsonl", "--classes=A,B,C,D")["log_loss"] == pytest.approx(np.log(4))
    (tmp_path / "a.csv").write_text("p,y\n0.5,1\n")
    ran("evaluate", tmp_path / "a.csv", "--per-character", code=1)
    assert error_line(capsys).endswith("--per-character is for logs of lm_eval; leave it out")
