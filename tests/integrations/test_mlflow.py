"""Metrics and artifacts in `mlflow.models.evaluate`, which writes to a database of files in a temporary folder."""

from __future__ import annotations

import functools
import json
import math

import numpy as np
import pytest

import kcalib

pytest.importorskip("mlflow")
pytest.importorskip("pandas")

import mlflow
import pandas as pd

from kcalib.integrations.mlflow import artifacts, metric

pytestmark = pytest.mark.filterwarnings("ignore")  # of what MLflow itself uses


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run():
        yield
    mlflow.set_tracking_uri(before)


def samples(m):
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(m), size=200)
    return rng.integers(m, size=200), p


@pytest.mark.parametrize("m", [2, 4])
def test_metrics_and_artifacts_are_logged(m, run):
    y, p = samples(m)
    p = p[:, 1] if m == 2 else p
    data = pd.DataFrame({"y": y, "p": list(p)})
    metrics = [metric(), metric("top_label_ece", n_bins=10), metric("calibration_test", seed=1)]
    found = mlflow.models.evaluate(
        data=data, targets="y", predictions="p", extra_metrics=metrics, custom_artifacts=[artifacts]
    )
    assert found.metrics["skce"] == kcalib.skce(y, p)
    assert found.metrics["top_label_ece"] == pytest.approx(kcalib.top_label_ece(y, p, n_bins=10), rel=1e-12)
    assert found.metrics["calibration_test"] == kcalib.calibration_test(y, p, seed=1).pvalue
    logged = mlflow.get_run(mlflow.active_run().info.run_id).data.metrics
    assert logged["skce"] == found.metrics["skce"]
    content = found.artifacts["kcalib_evaluation"].content
    assert json.loads(json.dumps(content, allow_nan=False))["verdict"] == kcalib.evaluate(y, p).verdict
    assert found.artifacts["kcalib_reliability"].uri.endswith(".png")


def test_labels_have_names_and_artifacts_options(run):
    y, p = samples(3)
    names = np.array(["a", "b", "c"])
    data = pd.DataFrame({"y": names[y], "p": list(p)})
    found = mlflow.models.evaluate(
        data=data,
        targets="y",
        predictions="p",
        extra_metrics=[metric("brier_score", classes=names)],
        custom_artifacts=[functools.partial(artifacts, classes=names, level=0.01)],
    )
    assert found.metrics["brier_score"] == kcalib.brier_score(y, p)
    assert found.artifacts["kcalib_evaluation"].content["level"] == 0.01


def test_the_picture_has_the_options_of_the_evaluation():
    y, p = samples(3)
    rows = pd.DataFrame({"prediction": list(np.log(p)), "target": y})
    found = artifacts(rows, {}, "", from_logits=True)
    assert found["kcalib_evaluation"]["top_label_ece"] == pytest.approx(kcalib.evaluate(y, p).top_label_ece)
    picture = found["kcalib_reliability"].axes[0]
    points = max((len(one.get_offsets()) for one in picture.collections), default=0)
    assert points == np.count_nonzero(kcalib.reliability(y, p).count)


def test_a_model_is_a_function_that_returns_rows(run):
    y, p = samples(3)
    data = pd.DataFrame({"y": y, "x": p[:, 0]})
    found = mlflow.models.evaluate(
        model=lambda X: pd.Series(list(p)), data=data, targets="y", extra_metrics=[metric("brier_score")]
    )
    assert found.metrics["brier_score"] == pytest.approx(kcalib.brier_score(y, p), rel=1e-12)


def test_a_single_row_is_not_a_number():
    assert math.isnan(metric().eval_fn(pd.Series([0.5]), pd.Series([1])))


@pytest.mark.parametrize(
    "name, message",
    [
        ("scke", "no measure of class probabilities, did you mean 'skce'?"),
        (3, "no measure of class probabilities; there are skce, ckce"),
        ("crps", "no measure of class probabilities"),
    ],
)
def test_a_name_that_there_is_not(name, message):
    with pytest.raises(ValueError, match=f"`name` is {name!r}.*{message}".replace("?", r"\?")):
        metric(name)


def test_errors_say_what_to_do():
    with pytest.raises(TypeError, match="kcalib.top_label_ece has no option 'bins', did you mean 'n_bins'"):
        metric("top_label_ece", bins=3)
    ragged = pd.Series([[0.5, 0.5], [0.2, 0.3, 0.5]])
    with pytest.raises(
        ValueError, match=r"row 1 of the predictions has shape \(3,\), row 0 \(2,\); pass a probability"
    ):
        metric().eval_fn(ragged, pd.Series([0, 1]))
    with pytest.raises(ValueError, match="the evaluation has no labels; pass targets="):
        artifacts(pd.DataFrame({"prediction": [0.5, 0.5]}), {}, "")
