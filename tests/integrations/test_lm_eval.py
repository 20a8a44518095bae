"""Multiple choice in `lm_eval`: its own evaluation of a model that guesses, on questions in a file."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import kcalib

pytest.importorskip("lm_eval")

import lm_eval
from lm_eval.api.model import LM

from kcalib.integrations.lm_eval import CalibratedTask, predictions

pytestmark = [pytest.mark.grid, pytest.mark.filterwarnings("ignore")]  # of what `datasets` uses


class Guessing(LM):
    """Log-likelihoods that are drawn, and kept."""

    def __init__(self):
        super().__init__()
        self.random, self.drawn = np.random.default_rng(1), []

    def loglikelihood(self, requests, **options):
        self.drawn = [float(value) for value in -self.random.exponential(3.0, size=len(requests))]
        return [(value, False) for value in self.drawn]

    def generate_until(self, requests, **options):
        raise NotImplementedError

    def loglikelihood_rolling(self, requests, **options):
        raise NotImplementedError


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Results of 40 questions with three choices, some with two; and the probabilities and labels by hand."""
    folder = tmp_path_factory.mktemp("questions")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
    choices = [["odd", "even", "none"], ["odd", "even"]]
    docs = [{"q": f"{i} is", "choices": choices[i % 5 == 4], "label": i % 2} for i in range(40)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    config = {
        "task": "parity",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "questions.jsonl")}, "cache_dir": str(folder / "cache")},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "choices",
        "doc_to_target": "label",
        "metric_list": [{"metric": name} for name in ("acc", "kcalib_skce", "kcalib_top_label_ece")],
    }
    model = Guessing()
    results = lm_eval.simple_evaluate(model, tasks=[CalibratedTask(config=config)], log_samples=True, bootstrap_iters=0)
    p, values = np.zeros((40, 3)), iter(model.drawn)
    for row, doc in zip(p, docs, strict=True):
        powers = np.exp([next(values) for _ in doc["choices"]])
        row[: len(powers)] = powers / powers.sum()
    monkeypatch.undo()
    return results, np.array([doc["label"] for doc in docs]), p


def test_logged_samples_are_labels_and_probabilities(evaluated):
    results, labels, p = evaluated
    y_true, y_pred = predictions(results["samples"]["parity"])
    assert np.array_equal(y_true, labels)
    np.testing.assert_allclose(y_pred, p, rtol=1e-12)
    # As the file has them.
    lines = [json.loads(json.dumps(one, default=str)) for one in results["samples"]["parity"]]
    as_text = [one | {"filtered_resps": [[str(a), str(b)] for a, b in one["filtered_resps"]]} for one in lines]
    again = predictions(one | {"target": str(one["target"])} for one in as_text)
    assert np.array_equal(again[0], labels) and np.allclose(again[1], p, rtol=1e-12)


def test_metrics_of_a_task(evaluated):
    results, labels, p = evaluated
    found = results["results"]["parity"]
    assert found["kcalib_skce,none"] == pytest.approx(kcalib.skce(labels, p), rel=1e-9)
    assert found["kcalib_top_label_ece,none"] == pytest.approx(kcalib.top_label_ece(labels, p), rel=1e-9)
    assert found["acc,none"] == pytest.approx(np.mean(p.argmax(axis=1) == labels))
    assert results["higher_is_better"]["parity"]["kcalib_skce"] is False


def test_a_target_may_be_the_text_of_a_choice():
    sample = {
        "target": "even",
        "filtered_resps": [(-1.0, True), (-2.0, False)],
        "arguments": [("", " odd"), ("", " even")],
    }
    assert predictions([sample])[0].tolist() == [1]
    of_file = {f"gen_args_{i}": {"arg_0": "", "arg_1": choice} for i, choice in enumerate((" odd", " even"))}
    assert predictions([sample | {"arguments": of_file}])[0].tolist() == [1]


def test_log_likelihoods_without_a_context_are_no_choices():
    """The metric acc_mutual_info asks for them, too, after those of the choices."""
    values, choices = [-1.0, -2.0, -0.1, -9.0], [" odd", " even"]
    sample = {
        "target": 0,
        "filtered_resps": [(value, False) for value in values],
        "arguments": [("3 is", one) for one in choices] + [("", one) for one in choices],
    }
    (y,), (p,) = predictions([sample])
    assert y == 0 and p == pytest.approx(np.exp([-1, -2]) / np.exp([-1, -2]).sum())
    (_,), (again,) = predictions([sample | {"filtered_resps": sample["filtered_resps"][:2], "arguments": []}])
    assert np.array_equal(p, again)


def _of_numbers(targets, likeliest, **metrics):
    """Samples whose choices are the texts "1" to "4"."""
    arguments = [("", f" {choice}") for choice in range(1, 5)]
    values = [[(-1.0 if place == first else -3.0, False) for place in range(4)] for first in likeliest]
    samples = zip(targets, values, strict=True)
    accuracies = metrics.get("acc", [None] * len(targets))
    return [
        {"target": target, "filtered_resps": pairs, "arguments": arguments} | ({} if acc is None else {"acc": acc})
        for (target, pairs), acc in zip(samples, accuracies, strict=True)
    ]


@pytest.mark.parametrize("write", [int, str, lambda target: [target], lambda target: str([target]), np.int64, float])
def test_targets_that_are_indices_and_texts_are_what_the_task_counts_as_right(write):
    """Target 2 is the choice "3": the same from memory and from a file."""
    samples = _of_numbers([write(2), write(1)], [2, 0], acc=[1.0, 0.0])
    assert predictions(samples)[0].tolist() == [2, 1]


def test_whether_targets_are_indices_or_texts_is_decided_once_for_all_samples():
    assert predictions(_of_numbers(["2", "1", "0"], [0, 0, 0]))[0].tolist() == [2, 1, 0]  # "0" is no choice
    assert predictions(_of_numbers(["2", "1", "4"], [0, 0, 0]))[0].tolist() == [1, 0, 3]  # 4 is no place
    assert predictions(_of_numbers(["2", "1"], [1, 2], acc=[1.0, 0.0]))[0].tolist() == [1, 0]
    ambiguous = _of_numbers(["2", "1"], [3, 3], acc=[0.0, 0.0])
    with pytest.raises(
        ValueError, match=r"`samples\[0\]` has the target '2', .* pass targets='index' or targets='text'"
    ):
        predictions(ambiguous)
    assert predictions(ambiguous, targets="index")[0].tolist() == [2, 1]
    assert predictions(ambiguous, targets="text")[0].tolist() == [1, 0]
    with pytest.raises(ValueError, match="some targets of `samples` are indices of choices, others texts"):
        predictions(_of_numbers([2, "4"], [0, 0]))


def test_a_logged_boolean_is_an_index():
    sample = {"filtered_resps": [(-1.0, True), (-2.0, False)], "arguments": [("", " no"), ("", " yes")]}
    assert [predictions([sample | {"target": target}])[0].tolist() for target in (True, "True")] == [[1], [1]]


@pytest.mark.parametrize(
    "samples, message",
    [
        ([], "`samples` is empty; pass those of a task"),
        ("samples.jsonl", r"`samples` is a str, expected the samples of one task, .* map\(json.loads, open\(file\)\)"),
        ({"arc": []}, r"`samples` is a dict, .*: results\[\"samples\"\]\[task\]"),
        (None, "`samples` is a NoneType"),
        (["{}"], r"`samples\[0\]` is a str, expected a dictionary"),
        ([{"filtered_resps": [(-1, 0), (-1, 0)]}], r"`samples\[0\]` has no 'target'"),
        ([{"target": 0, "filtered_resps": [(-1, 0), (float("nan"), 0)]}], r"`samples\[0\]` has the log-likelihoods"),
        ([{"target": 0, "filtered_resps": [(-math.inf, 0), (-math.inf, 0)]}], "of which one is finite; leave such"),
        ([{"target": "a", "filtered_resps": ["text"]}], r"`samples\[0\]` has no log-likelihoods of choices"),
        ([{"target": 2, "filtered_resps": [(-1, 0), (-1, 0)]}], "has the target 2, expected one of its 2 choices"),
        ([{"target": 1.7, "filtered_resps": [(-1, 0), (-1, 0)]}], "has the target 1.7, expected one of its 2 choices"),
        ([{"target": "1.7", "filtered_resps": [(-1, 0), (-1, 0)]}], "has the target '1.7', expected one of its"),
        (
            # Of winogrande: one text in two contexts.
            [{"target": "ran", "filtered_resps": [(-1, 0), (-1, 0)], "arguments": [("He", " ran"), ("She", " ran")]}],
            "has the target 'ran', expected one of its 2 choices or its place",
        ),
        ([{"target": [0, 1], "filtered_resps": [(-1, 0), (-1, 0)]}], r"has the target \[0, 1\], expected one of"),
    ],
)
def test_samples_of_another_kind(samples, message):
    with pytest.raises((TypeError, ValueError), match=message):
        predictions(samples)
