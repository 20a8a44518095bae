"""Multiple choice in `lm_eval`: its own evaluation of a model that guesses, on questions in a file."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

import kcalib

pytest.importorskip("lm_eval")

import lm_eval
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker

from kcalib.integrations.lm_eval import CalibratedTask

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


def test_logged_samples_are_labels_and_probabilities(evaluated, tmp_path):
    """From memory, and from the file that `lm_eval` writes, which holds numbers as strings."""
    results, labels, p = evaluated
    tracker = EvaluationTracker(output_path=str(tmp_path))
    tracker.general_config_tracker.model_name_sanitized = "guessing"
    samples = copy.deepcopy(results["samples"])
    tracker.save_results_aggregated(results={"results": {}}, samples=samples)
    tracker.save_results_samples(task_name="parity", samples=samples["parity"])
    for data in (results["samples"]["parity"], tmp_path):
        (log,) = kcalib.streaming.read_answers(data)
        assert np.array_equal(log.y_true, labels) and not log.unused
        np.testing.assert_allclose(log.y_pred, p, rtol=1e-12)
    assert set(log.tasks["task"]) == {"parity"} and log.tasks["q"][3] == "3 is" and len(list(tmp_path.rglob("*"))) == 3


def test_metrics_of_a_task(evaluated):
    results, labels, p = evaluated
    found = results["results"]["parity"]
    assert found["kcalib_skce,none"] == pytest.approx(kcalib.skce(labels, p), rel=1e-9)
    assert found["kcalib_top_label_ece,none"] == pytest.approx(kcalib.top_label_ece(labels, p), rel=1e-9)
    assert found["acc,none"] == pytest.approx(np.mean(p.argmax(axis=1) == labels))
    assert results["higher_is_better"]["parity"]["kcalib_skce"] is False


def test_a_target_that_is_no_choice():
    task = object.__new__(CalibratedTask)
    host = {"process_results": lambda *_: {}, "doc_to_choice": lambda *_: ["a", "b"], "doc_to_target": lambda *_: "c"}
    with pytest.MonkeyPatch.context() as patch:
        for name, method in host.items():
            patch.setattr(lm_eval.api.task.ConfigurableTask, name, method)
        with pytest.raises(ValueError, match="has the target 'c', expected one of its choices"):
            task.process_results({}, [(-1.0, True), (-2.0, False)])
