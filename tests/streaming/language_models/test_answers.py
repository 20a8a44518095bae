"""`read_answers`: logs of language models, from what harnesses and servers write to labels and predictions."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import kcalib
from kcalib.lenses import Confidence
from kcalib.streaming import read_answers, source

SAMPLES = Path(__file__).parent / "samples_arc_easy_2026-11-29T04-46-15.555632.jsonl"  # written by lm_eval 0.4.13


def read_one(records, **options):
    (log,) = read_answers(records, **options)
    assert log.n_rows == log.n_rows_used + sum(log.unused.values())
    return log


def sample_of(values, target=0, choices=("yes", "no", "may be"), **more):
    """A line of a file of lm_eval, which holds numbers as strings."""
    arguments = {
        f"gen_args_{i}": {"arg_0": "Is it?", "arg_1": f" {choices[i % len(choices)]}"} for i in range(len(values))
    }
    pairs = [[str(value), "False"] for value in values]
    return {
        "target": str(target),
        "filtered_resps": pairs,
        "resps": [[p] for p in pairs],
        "arguments": arguments,
    } | more


def chat_of(tops, token="A", **more):
    content = [{"token": token, "logprob": -0.1, "top_logprobs": [{"token": t, "logprob": x} for t, x in tops.items()]}]
    choice = {"index": 0, "message": {"role": "assistant", "content": token}, "logprobs": {"content": content}}
    return {"object": "chat.completion", "choices": [choice]} | more


def test_file_that_lm_eval_wrote():
    """Six questions with three to five choices, and the log-likelihoods of the first as they stand in the file."""
    log = read_one(SAMPLES)
    assert log.model == SAMPLES.stem and log.y_true.tolist() == [0, 1, 2, 0, 1, 2] and log.y_pred.shape == (6, 5)
    p = np.exp([-0.560600218853524, -0.012436318829314397, -0.7415743774106636])
    np.testing.assert_allclose(log.y_pred[0], [*p / p.sum(), 0, 0], rtol=1e-14)
    per_character = np.exp([-0.560600218853524 / 3, -0.012436318829314397 / 2, -0.7415743774106636])  # "a b", "cc", "d"
    again = read_one(SAMPLES, per_character=True)
    np.testing.assert_allclose(again.y_pred[0], [*per_character / per_character.sum(), 0, 0], rtol=1e-14)
    assert (log.read_as, again.read_as) == (
        "softmax of log-likelihoods of choices", "softmax of log-likelihoods of choices per character",
    )  # fmt: skip
    lines = [json.loads(line) for line in SAMPLES.read_text().splitlines()]
    for norm, read in (("acc", log), ("acc_norm", again)):
        assert (read.y_pred.argmax(axis=1) == read.y_true).tolist() == [line[norm] == 1 for line in lines]
    with pytest.raises(
        ValueError, match="has log-likelihoods, but `probs` is for confidences and probabilities; leave"
    ):
        read_answers(SAMPLES, probs="p")
    assert read_one([sample_of([-1.0, -2.0], doc={"key": "no"})], labels="key").y_true.tolist() == [1]
    assert log.tasks["task"].tolist() == ["arc_easy"] * 6 and log.tasks["answerKey"].tolist() == list("ABCABC")
    assert kcalib.evaluate(log.y_true, log.y_pred, seed=0).n_classes == 5  # choices that a question lacks have 0


def test_files_of_tasks_and_models(tmp_path):
    """As a folder, in a document, compressed; results that lm_eval writes beside are no samples."""
    for model, value in (("a", -1.0), ("b", -9.0)):
        (tmp_path / model).mkdir()
        (tmp_path / model / "results_2026.json").write_text("{}")
        for task in ("law", "art"):
            line = json.dumps(sample_of([value, -2.0], doc={"subject": task, "long": "x" * 65}))
            (tmp_path / model / f"samples_{task}_2026-11-29T04-46-15.5.jsonl").write_text(f"{line}\n\n{line}\n")
    a, b = read_answers(tmp_path)
    assert (a.model, b.model, a.n_samples) == ("a", "b", 4) and a.y_pred[0, 0] == 1 / (1 + math.exp(-1)) > b.y_pred[
        0, 0
    ]
    assert a.tasks["task"].tolist() == a.tasks["subject"].tolist() == ["art", "art", "law", "law"]
    assert "long" not in a.tasks and [part.model for part in a.split("subject")] == ["a, subject art", "a, subject law"]
    assert a.split("task")[1].y_pred.tolist() == a.y_pred[2:].tolist()
    with pytest.raises(ValueError, match=r"holds lines of 2 models, a, b, expected one; write a file for each"):
        source(tmp_path)
    again = tmp_path / "a" / "samples_art_2026-11-30T04-46-15.5.jsonl"
    again.write_text(json.dumps(sample_of([-1.0, -2.0])))
    with pytest.raises(ValueError, match="and samples_art_2026-11-30T04-46-15.5.jsonl are runs of one task; name"):
        read_answers(tmp_path / "a")
    (tmp_path / "c.csv").write_text("p,y\n0.5,1\n")
    with pytest.raises(ValueError, match=r"c.csv'\) has no files with the suffixes .jsonl, .json"):
        read_answers(tmp_path / "c.csv")
    records = [sample_of([-1.0, -2.0])] * 2
    assert read_one(records[0]).n_samples == 1
    (tmp_path / "document.json").write_text(json.dumps(records, indent=2))
    (tmp_path / "one.json").write_text(json.dumps(records))
    (tmp_path / "lines.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in records).encode()))
    for name in ("document.json", "one.json", "lines.jsonl.gz"):
        assert read_one(tmp_path / name).y_pred.tolist() == read_one(records).y_pred.tolist()
    (tmp_path / "cut.jsonl.gz").write_bytes((tmp_path / "lines.jsonl.gz").read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"cut.jsonl.gz: the file is truncated or damaged"):
        read_answers(tmp_path / "cut.jsonl.gz")


@pytest.mark.parametrize(
    ("targets", "likeliest", "acc", "places"),
    [
        (["2", "1", "0"], [0, 0, 0], None, [2, 1, 0]),  # "0" is no choice
        (["2", "1", "4"], [0, 0, 0], None, [1, 0, 3]),  # 4 is no place
        (["2", "1"], [1, 2], [1, 0], [1, 0]),  # as the log counts them
        (["2", "1"], [2, 0], [1, 0], [2, 1]),
        (["2", "1"], [3, 3], [0, 0], None),
        (["[2]", "True", 3.0], [0, 0, 0], None, [2, 1, 3]),
        ([2, np.int64(1), [0]], [0, 0, 0], None, [2, 1, 0]),
    ],
)  # fmt: skip
def test_targets_that_are_places_or_texts(targets, likeliest, acc, places):
    """Choices are the texts "1" to "4", so that target 2 is the choice "3" or "2": decided once for all lines."""
    records = [
        sample_of([-1.0 if place == first else -3.0 for place in range(4)], choices="1234") | {"target": target}
        | ({} if acc is None else {"acc": acc[i]})
        for i, (target, first) in enumerate(zip(targets, likeliest, strict=True))
    ]  # fmt: skip
    if places is None:
        with pytest.raises(
            ValueError, match=r"the target '2' is the index of the choice '3' and the text of another one"
        ):
            read_answers(records)
    else:
        assert read_one(records).y_true.tolist() == places


def test_choices_of_one_text_in_two_contexts():
    """As of winogrande: the target names neither, and the score says which is right."""
    lines = [sample_of([-1.0, -2.0], "ran", ("ran", "ran"), acc=acc) for acc in (1.0, 0.0)]
    assert read_one(lines).y_true.tolist() == [0, 1]


def test_log_likelihoods_without_context_are_no_choices():
    """The metric acc_mutual_info asks for them, too, after those of the choices."""
    sample = sample_of([-1.0, -2.0, -0.1, -9.0], "no", ("yes", "no"))
    for i in (2, 3):
        sample["arguments"][f"gen_args_{i}"]["arg_0"] = ""
    log = read_one([sample, {key: value for key, value in sample.items() if key != "filtered_resps"}])
    assert log.y_true.tolist() == [1, 1] and log.y_pred[1] == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.e)])


def test_answers_of_chats():
    """Of A to C, with and without a space; a question where C is not among the top ones is not used."""
    tops = {"A": math.log(0.5), " A": math.log(0.1), "B": math.log(0.2), "C": math.log(0.1), "The": math.log(0.1)}
    lines = [
        {"custom_id": "1", "response": {"body": chat_of(tops, model="gpt")}, "answer": "A"},  # of a batch
        chat_of(tops, answer="C", model="gpt"),
        chat_of({"A": -0.1, "B": -2.0, "C": -9999.0}, answer="B", model="gpt"),
        chat_of(tops, model="gpt"),
        {"model": "gpt", "answer": "B", "choices": [{"logprobs": {
            "tokens": ["\n", " B"], "token_logprobs": [-0.1, -1.0], "top_logprobs": [{"\n": -0.1}, tops]}}]},
    ]  # fmt: skip
    log = read_one(lines, choices="ABC")
    assert log.model == "gpt" and log.y_true.tolist() == [0, 2, 1]
    np.testing.assert_allclose(log.y_pred, [[6 / 9, 2 / 9, 1 / 9]] * 3, rtol=1e-12)
    missing, generated = sorted(log.unused)
    assert missing.startswith("a choice of A, B, C that is not among the top_logprobs; ask for more")
    assert generated.startswith("generated tokens, which are drawn from the predictions: calibrated by construction")
    assert read_one(lines, choices="AB").y_true.tolist() == [0, 1, 1]  # C is none of them
    assert read_one([chat_of(tops, right=2)], labels="right", choices="ABC").y_true.tolist() == [2]  # a place
    numbered = [chat_of({"1": -0.7, "2": -0.7}, answer=x) for x in ("2", "1")]
    assert read_one(numbered, choices=[1, 2]).y_true.tolist() == [1, 0]  # texts
    with pytest.raises(ValueError, match="gpt has answers, but `per_character` is for log-likelihoods; leave it"):
        read_answers(lines, per_character=True)


@pytest.mark.parametrize(
    ("answers", "remedy"),
    [
        ("A", "['A', 'B', 'C', 'D']"),
        ("AABBC", "['A', 'B', 'C', 'D']"),  # all lines have a D, which is never right
        ([0, 2], "['A', 'B', 'C', 'D']"),
        ("F", "['A', 'B', 'C', 'D', 'E', 'F']"),
        (["1", "2"], "['1', '2']"),
        (["cat", "dog"], "['cat', 'dog']"),
    ],
)
def test_choices_are_not_guessed_from_right_answers(answers, remedy):
    tops = {token: math.log(p) for token, p in zip("ABCD", (0.4, 0.3, 0.2, 0.1), strict=True)}
    lines = [chat_of(tops, answer=answer) for answer in answers]
    with pytest.raises(ValueError, match=re.escape(f"pass all possible answers, such as choices={remedy}")):
        read_answers(lines)
    for choices in ("A", "AAB"):
        with pytest.raises(ValueError, match="has not two or more different answers"):
            read_answers(lines, choices=choices)
    if answers == "AABBC":
        log = read_one(lines, choices="ABCD")
        assert log.y_true.tolist() == [0, 0, 1, 1, 2] and log.y_pred[0] == pytest.approx([0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize("answers", [["Yes"], ["Yes", "No"], ["True"], [True, False]])
def test_yes_and_no_are_all_choices(answers):
    no, yes = ("No", "Yes") if "Yes" in answers else ("False", "True")
    log = read_one([chat_of({yes: math.log(0.9), no: math.log(0.1)}, answer=answer) for answer in answers])
    assert log.y_true.tolist() == [1, 0][: len(answers)] and log.y_pred[0] == pytest.approx([0.1, 0.9])


@pytest.mark.parametrize(
    ("values", "expected", "read_as"),
    [
        ([0.25, 1], [0.25, 1], "confidences"),
        ([25, 1, 0], [0.25, 0.01, 0], "confidences in percent"),
        (["25%", "0.5 %", "about 99%"], [0.25, 0.005, 0.99], "confidences in percent"),
        (["Confidence: .5", "25 %", 1e-5, "2E-3"], [0.5, 0.25, 1e-5, 2e-3], "confidences"),
    ],
)
def test_confidences(values, expected, read_as):
    log = read_one([{"confidence": value, "correct": i == 0} for i, value in enumerate(values)])
    assert log.y_pred == pytest.approx(expected) and log.read_as == read_as and log.lens == Confidence()
    assert log.y_true.tolist() == [True] + [False] * (len(values) - 1)
    assert kcalib.top_label_ece(log.y_true, log.y_pred, lens=log.lens) >= 0


def test_confidences_that_do_not_fit():
    values = ["sure", "1 or 2", None, -5, 101, 50, 70]
    lines = [{"confidence": value, "correct": 1} for value in values[:-1]] + [{"confidence": 70, "correct": "perhaps"}]
    log = read_one([*lines, 5, {"prob": 0.3}])
    assert log.y_pred.tolist() == [0.5] and log.unused == {
        "a confidence that is not one number": 2,
        "none of confidence, lists of probs, filtered_resps, choices with logprobs, prompt_logprobs": 2,
        "a confidence outside 0 to 1 or 0 to 100 %": 2,
        "neither true nor false, 1 nor 0, in 'correct'": 1,
        "no JSON object": 1,
    }
    with pytest.raises(
        ValueError, match=r"the confidences 0.5 and 80, a fraction and a percentage; .* or all with a %$"
    ):
        read_answers([{"confidence": value, "correct": 1} for value in (0.5, 80)])
    named = read_one([{"certainty": 0.5, "hit": "true", "p": 1}], probs="certainty", labels="hit")
    assert named.y_pred.tolist() == [0.5] and named.y_true.tolist() == [True]


def test_probabilities():
    """A list with a place or text, and fewer choices than others have."""
    log = read_one([
        {"probs": [0.2, 0.5, 0.3], "label": 2},
        {"probs": [0.4, 0.6], "choices": ["B", "A"], "label": "A"},
        {"probs": [1, 0], "choices": ["x", "y"], "label": "x"},
        {"probs": [1, 0], "choices": ["x", "y", "z"], "label": "x"},
        {"probs": [0.5, 0.5], "label": 0},
        {"probs": [0.5, 0.5], "label": 2},
        {"probs": [0.5, "0.5"], "label": 1},
        {"probs": [1.5, -0.5], "label": 1},
    ])  # fmt: skip
    assert log.y_true.tolist() == [2, 1, 0, 0]
    assert log.y_pred.tolist() == [[0.2, 0.5, 0.3], [0.4, 0.6, 0], [1, 0, 0], [0.5, 0.5, 0]]
    assert log.unused == {
        "a target that is none of the choices": 1,
        "fields that are not as logs have them (TypeError)": 1,
        "probabilities that are not two or more numbers in 0 to 1": 1,
        "another number of choices than of probabilities": 1,
    }
    assert log.lens is None and log.read_as == "probabilities of choices"


@pytest.mark.parametrize(
    ("lines", "labels", "rows"),
    [
        ([({"A": 0.6, "B": 0.4}, "A"), ({"B": 0.7, "A": 0.3}, "A")], [0, 0], [[0.6, 0.4], [0.3, 0.7]]),
        ([({"0": 0.6, "1": 0.4}, 1), ({"1": 0.7, "0": 0.3}, 1)], [1, 1], [[0.6, 0.4], [0.3, 0.7]]),  # keys
        ([({"A": 0.6, "B": 0.4}, 0), ({"B": 0.7, "A": 0.3}, 1)], [0, 1], [[0.6, 0.4], [0.3, 0.7]]),  # columns
        ([({"false": 0.6, "true": 0.4}, True), ({"true": 0.7, "false": 0.3}, False)], [1, 0], [[0.6, 0.4], [0.3, 0.7]]),
        ([({"A": 0.6, "B": 0.4}, "A"), ({"C": 0.7, "B": 0.3}, "A")], [0, 0], [[0.6, 0.4, 0], [0, 0.3, 0.7]]),
    ],
)  # fmt: skip
def test_mappings_of_probabilities_are_read_by_key(lines, labels, rows):
    log = read_one([{"probs": probs, "label": label} for probs, label in lines])
    assert log.y_true.tolist() == labels and log.y_pred.tolist() == rows


def test_lists_of_the_same_choices_in_another_order():
    """The labels are places in the line, or texts. Lines with choices of their own keep their order."""
    lines = [{"probs": [0.6, 0.4], "choices": ["x", "y"], "label": 0}]
    log = read_one([*lines, *({"probs": [0.7, 0.3], "choices": ["y", "x"], "label": label} for label in (1, "x", "y"))])
    assert log.y_true.tolist() == [0, 0, 0, 1] and log.y_pred.tolist() == [[0.6, 0.4], *[[0.3, 0.7]] * 3]
    log = read_one([*lines, {"probs": [0.7, 0.3], "choices": ["y", "z"], "label": "z"}])
    assert log.y_true.tolist() == [0, 1] and log.y_pred.tolist() == [[0.6, 0.4], [0.7, 0.3]]


def test_mappings_without_common_choices():
    with pytest.raises(ValueError, match="some lines name the choices of their probabilities, others do not; write"):
        read_answers([{"probs": {"A": 0.6, "B": 0.4}, "label": "A"}, {"probs": [0.6, 0.4], "label": 0}])
    lines = [{"probs": {f"{i} yes": 0.6, f"{i} no": 0.4}, "label": f"{i} no"} for i in range(11)]
    with pytest.raises(
        ValueError, match="probabilities of 22 different choices, of at most 2 in a line; write them as"
    ):
        read_answers(lines)
    lists = [{"probs": list(x["probs"].values()), "choices": list(x["probs"]), "label": x["label"]} for x in lines]
    assert read_one(lists).y_true.tolist() == [1] * 11


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("kind", ["probabilities", "log-likelihoods", "answers"])
def test_targets_that_are_counted_from_1(kind, first):
    """Refused, as `kcalib.evaluate` does."""
    p = [0.1, 0.2, 0.3, 0.4]
    logs, options = [math.log(x) for x in p], {"choices": "ABCD"} if kind == "answers" else {}
    line = {
        "probabilities": lambda label: {"probs": p, "label": label},
        "log-likelihoods": lambda label: sample_of(logs, label, "ABCD"),
        "answers": lambda label: chat_of(dict(zip("ABCD", logs, strict=True)), answer=label),
    }[kind]
    lines = [line(i + first) for i in (3, 1, 2)] + [line(first)] * (first == 0)
    if first == 0:
        assert read_one(lines, **options).y_true.tolist() == [3, 1, 2, 0]
    else:
        with pytest.raises(
            ValueError, match=r"the targets look like 1..4, expected indices 0..3; subtract 1 from each"
        ):
            read_answers(lines, **options)


def test_lines_of_another_filter():
    """`lm_eval` writes a line for each filter and question; the first is read."""
    lines = [
        sample_of([-1.0, x], doc_id=i, doc={"q": i}, filter=name)
        for name, x in (("a", -2.0), ("b", -3.0))
        for i in (0, 1)
    ]
    log, expected = read_one(lines), read_one(lines[:2])
    assert np.array_equal(log.y_pred, expected.y_pred) and not expected.unused
    assert log.unused == {"a question again, as another filter logs it; pass the lines of one filter": 2}
    assert read_one(lines[2:]).y_pred[0, 1] == 1 / (1 + math.exp(2))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (sample_of([-1.0, -2.0], filtered_resps=["lol"]), "no log-likelihoods of choices; its task is not of multiple"),
        (sample_of([-1.0]), "one choice alone; its task is not of multiple choice"),
        (sample_of(["nan", -1.0]), "log-likelihoods that are NaN or all minus infinity"),
        (sample_of([-math.inf] * 2), "log-likelihoods that are NaN or all minus infinity"),
        (sample_of([-1.0, "x"]), "fields that are not as logs have them (ValueError)"),
        (sample_of([-1.0, -2.0], "[0, 1]"), "a target that is none of the choices"),
        (sample_of([-1.0, -2.0], "maybe"), "a target that is none of the choices"),
        ({"choices": [{"message": {"content": "A"}, "logprobs": None}]}, "no log-probabilities; ask for th"),
        (chat_of({}, answer="A"), "no top_logprobs; ask for them"),
        (chat_of({"A": -0.1}, answer="A", temperature=0.7), "log-probabilities after temperature or top-p"),
        (chat_of({"A": -0.1}, answer="A", request={"top_p": 0.9}), "log-probabilities after temperature or top-p"),
        (chat_of({"A": -0.1}, answer="A", logprobs_mode="processed_logprobs"), "log-probabilities after temperature"),
        ({"response": 5, "choices": 7}, "fields that are not as logs have them (TypeError)"),
    ],
)  # fmt: skip
def test_lines_that_do_not_fit(record, reason):
    with pytest.raises(ValueError, match=re.escape(f"no line can be used: {reason}") + r".*\(1\)$"):
        read_answers([record], choices="AB" if "choices" in record else None)


def test_lines_without_a_model():
    """Failed requests of a batch name no model: they count for the one that other lines of the file name."""
    lines = [chat_of({"yes": -0.7, "no": -0.7}, answer="yes", model="gpt"), {"response": {"body": {"error": "x"}}}]
    log = read_one(lines)
    assert (log.model, log.n_rows, log.n_samples) == ("gpt", 2, 1)
    with pytest.raises(ValueError, match="^other: no line can be used: none of confidence, lists of probs, filtered"):
        read_answers([*lines, {"model": "other"}])


def test_empty_file(tmp_path):
    (tmp_path / "log.jsonl").touch()
    with pytest.raises(ValueError, match="there are no lines, expected a JSON object on each"):
        read_answers(tmp_path / "log.jsonl")


def test_lens_of_each_kind_of_log():
    entries = [{"1": {"logprob": -0.4, "rank": 1}, "2": {"logprob": -1.5, "rank": 2}}] * 2
    for lines in (
        [{"confidence": 0.7, "correct": i % 2} for i in range(4)],
        [{"prompt_logprobs": [None, *entries]}] * 2
        + [{"prompt_logprobs": [None, {"2": entries[0]["2"], **entries[0]}]}],
        [{"probs": [0.7, 0.3], "label": i % 2} for i in range(4)],
    ):
        log = read_one(lines)
        assert kcalib.evaluate(log.y_true, log.y_pred, lens=log.lens, seed=0).log_loss > 0


def test_raw_log_probabilities_at_a_temperature():
    """The remedy: the line says that they are those of the model."""
    record = chat_of({"A": -0.1, "B": -1.0}, answer="B", temperature=0.7, logprobs_mode="raw_logprobs")
    other = chat_of({"A": -0.1, "B": -1.0}, answer="A", temperature=0)
    assert read_one([record, other], choices="AB").n_samples == 2


def test_lines_of_another_kind_and_hostile_ones(tmp_path):
    lines = [json.dumps(sample_of([-1.0, -2.0]))] * 2
    lines += [
        '{"confidence": 1, "correct": 1}',
        "{",
        "[" * 99999,
        '{"filtered_resps": 3}',
        '{"choices": {"a": [1]}}',
        "7",
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    log = read_one(tmp_path / "log.jsonl")
    assert log.n_samples == 2 and log.n_rows == 8 and log.unused["no JSON object"] == 3
    assert log.unused["another kind of log"] == 1
    (tmp_path / "none.jsonl").write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"none.jsonl: no line can be used: none of con"):
        source(tmp_path / "none.jsonl")


def test_sources(tmp_path):
    """The samples of a file, a field of them as clusters, and options that a log does not have."""
    lines = [{"confidence": x / 40, "correct": x % 3 > 0} for x in range(1, 40)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    expected = kcalib.evaluate(
        [x["correct"] for x in lines], [x["confidence"] for x in lines], lens=Confidence(), seed=0
    )
    streamed = kcalib.evaluate(source(tmp_path / "log.jsonl"), seed=0)
    assert (streamed.accuracy, streamed.confidence_from) == (expected.accuracy, "as given")
    samples, log = source(SAMPLES), read_one(SAMPLES)
    y, p = samples.read(0, 6)
    assert np.array_equal(y, log.y_true) and np.array_equal(p, log.y_pred) and samples.n_classes == 5
    state = kcalib.streaming.CalibrationState(5)
    for true, pred in samples.chunks(4):
        state.update(true, pred)
    assert state.n_samples == 6 and source(SAMPLES, clusters="answerKey").clusters is not None
    with pytest.raises(ValueError, match=re.escape("there is no field 'subject' for clusters=; the file has the")):
        source(SAMPLES, clusters="subject")
    for options in ({"logits": "z"}, {"from_logits": True}, {"parameters": {"mean": "m"}}):
        with pytest.raises(ValueError, match=r"is a log of a language model, but .* is for other files"):
            source(SAMPLES, **options)
