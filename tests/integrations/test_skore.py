"""Scorers of kcalib.integrations.sklearn as metrics of skore's reports, as its page of the guide says."""

from __future__ import annotations

import numpy as np
import pytest

import kcalib

pytest.importorskip("skore")

from kcalib.integrations.sklearn import scorer


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore")  # of what skore uses
def test_a_scorer_is_a_metric_of_a_report():
    from sklearn.linear_model import LogisticRegression
    from skore import EstimatorReport

    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = (X[:, 0] + rng.normal(size=300) > 0).astype(int)
    model = LogisticRegression().fit(X[:150], y[:150])
    report = EstimatorReport(model, X_test=X[150:], y_test=y[150:])
    report.metrics.add(scorer("skce"), name="skce")
    report.metrics.add(scorer("calibration_test", seed=1), name="p_value")
    frame = report.metrics.summarize().frame()
    (row,) = [name for name in frame.index if "skce" in str(name).lower()]
    expected = kcalib.skce(y[150:], model.predict_proba(X[150:]))
    assert float(np.ravel(frame.loc[row])[0]) == pytest.approx(expected, rel=1e-9)
    (row,) = [name for name in frame.index if "p_value" in str(name).lower()]
    expected = kcalib.calibration_test(y[150:], model.predict_proba(X[150:]), seed=1).pvalue
    assert float(np.ravel(frame.loc[row])[0]) == pytest.approx(expected, rel=1e-9)
