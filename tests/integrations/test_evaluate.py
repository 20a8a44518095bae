"""The metric of Hugging Face's `evaluate`, by its class and by `load`, offline."""

from __future__ import annotations

import numpy as np
import pytest

import kcalib

pytest.importorskip("evaluate")

import evaluate

import kcalib.integrations.evaluate as ours
from kcalib.integrations.evaluate import Calibration

pytestmark = pytest.mark.filterwarnings("ignore")  # of what `datasets` uses


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    for name in ("HF_METRICS_CACHE", "METRIC_PATH", "HF_EVALUATE_CACHE"):
        if hasattr(evaluate.config, name):
            monkeypatch.setattr(evaluate.config, name, tmp_path / "cache", raising=False)
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", tmp_path / "modules")
    monkeypatch.setattr(evaluate.config, "HF_EVALUATE_OFFLINE", True)


def samples(m):
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(m), size=60)
    return rng.integers(m, size=60), p


@pytest.mark.parametrize("name", ["skce", "top_label_ece", "brier_score", "calibration_test"])
def test_values_are_those_of_kcalib(name, tmp_path):
    y, p = samples(3)
    options = {"seed": 1} if name == "calibration_test" else {}
    found = Calibration(name, cache_dir=str(tmp_path)).compute(predictions=p, references=y, **options)
    expected = getattr(kcalib, name)(y, p, **options)
    assert found == {name: pytest.approx(getattr(expected, "pvalue", expected), rel=1e-12)}


def test_batches_two_classes_and_names():
    y, p = samples(2)
    metric = Calibration(keep_in_memory=True)
    for rows in np.split(np.arange(60), 4):
        metric.add_batch(predictions=p[rows, 1], references=y[rows])
    assert metric.compute() == {"skce": pytest.approx(kcalib.skce(y, p[:, 1]), rel=1e-12)}
    names = np.array(["no", "yes"])[y]
    found = Calibration("brier_score", keep_in_memory=True).compute(
        predictions=p[:, 1], references=names.tolist(), classes=["no", "yes"]
    )
    assert found == {"brier_score": pytest.approx(kcalib.brier_score(y, p[:, 1]), rel=1e-12)}


def test_it_is_loaded_and_combined_by_its_file():
    y, p = samples(3)
    loaded = [evaluate.load(ours.__file__, name, keep_in_memory=True) for name in ("skce", "top_label_ece")]
    assert evaluate.load(ours.__file__, keep_in_memory=True).config_name == "skce"
    found = evaluate.combine(loaded).compute(predictions=p.tolist(), references=y.tolist())
    assert found == {
        "skce": pytest.approx(kcalib.skce(y, p), rel=1e-12),
        "top_label_ece": pytest.approx(kcalib.top_label_ece(y, p), rel=1e-12),
    }


def test_a_name_that_there_is_not():
    with pytest.raises(ValueError, match=r"did you mean 'log_loss'\?"):
        Calibration("logloss")
    y, p = samples(3)
    with pytest.raises(TypeError, match="kcalib.top_label_ece has no option 'bins', did you mean 'n_bins'"):
        Calibration("top_label_ece", keep_in_memory=True).compute(predictions=p, references=y, bins=3)
