"""The metric in evidently's reports. evidently 0.7 does not import beside pandas 3."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kcalib

pytestmark = pytest.mark.filterwarnings("ignore")  # of what evidently uses
pd = pytest.importorskip("pandas")
evidently = pytest.importorskip("evidently", exc_type=ImportError)

from evidently.tests import lt  # noqa: E402

from kcalib.integrations.evidently import Calibration  # noqa: E402


def dataset(y, p):
    data = pd.DataFrame(p, columns=[f"p{k}" for k in range(p.shape[1])])
    data["target"], data["predicted"] = [f"p{label}" for label in y], [f"p{label}" for label in p.argmax(axis=1)]
    columns = evidently.MulticlassClassification(
        target="target", prediction_labels="predicted", prediction_probas=[f"p{k}" for k in range(p.shape[1])]
    )
    return evidently.Dataset.from_pandas(data, evidently.DataDefinition(classification=[columns]))


def samples(seed):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(3), size=80)
    return rng.integers(3, size=80), p


def values(report):
    return [one["value"] for one in report.dict()["metrics"]]


def test_values_and_tests_of_several_classes():
    (y, p), before = samples(1), samples(2)
    metrics = [Calibration(), Calibration(measure="top_label_ece", tests=[lt(0.5)])]
    report = evidently.Report(metrics).run(dataset(y, p), dataset(*before))
    assert values(report) == pytest.approx([kcalib.skce(y, p), kcalib.top_label_ece(y, p)], rel=1e-9)
    (test,) = report.dict()["tests"]
    assert test["status"] == "SUCCESS" and "kcalib.top_label_ece" in test["name"]


def test_two_classes_have_the_positive_label():
    y, p = samples(1)
    data = pd.DataFrame({"target": np.array(["no", "yes"])[y % 2], "p": p[:, 0]})
    columns = evidently.BinaryClassification(target="target", prediction_probas="p", pos_label="yes")
    current = evidently.Dataset.from_pandas(data, evidently.DataDefinition(classification=[columns]))
    report = evidently.Report([Calibration(measure="brier_score")]).run(current, None)
    assert values(report) == [pytest.approx(kcalib.brier_score(y % 2, p[:, 0]), rel=1e-9)]


def test_a_positive_label_that_is_neither_of_two():
    """Else all samples would be of the other class."""
    y, p = samples(1)
    data = pd.DataFrame({"target": np.array(["no", "yes"])[y % 2], "p": p[:, 0]})
    columns = evidently.BinaryClassification(target="target", prediction_probas="p")
    current = evidently.Dataset.from_pandas(data, evidently.DataDefinition(classification=[columns]))
    with pytest.raises(ValueError, match="'target' has the labels '(no|yes)' and '(no|yes)' beside .* pass pos_label="):
        values(evidently.Report([Calibration()]).run(current, None))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"measure": "scke"}, "did you mean 'skce'"),
        ({"measur": "log_loss"}, "Calibration has no option 'measur', did you mean 'measure'"),
        ({"classification_name": "other"}, "no classification 'other' with `prediction_probas`"),
    ],
)
def test_errors_say_what_to_do(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        values(evidently.Report([Calibration(**options)]).run(dataset(*samples(1)), None))


def test_a_metric_comes_back_from_its_description():
    metric = Calibration("log_loss", tests=[lt(0.5)])
    again = Calibration.parse_obj(json.loads(metric.json()))
    assert again.measure == "log_loss" and again == metric
