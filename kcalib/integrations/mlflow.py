"""Calibration in MLflow: metrics and artifacts for `mlflow.models.evaluate`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from mlflow.models import make_metric

import kcalib
from kcalib._command.machine import without_infinity
from kcalib.integrations._measures import measure_of_classes

__all__ = ["artifacts", "metric"]


def metric(name: str = "skce", **options: Any) -> Any:
    """Return a measure of kcalib as an extra metric.

    Predictions are a column with probabilities of the second of two classes, or with rows of class probabilities
    (``list(p)``).

    Parameters
    ----------
    name : str
        "skce", "ckce", "ucme", "squared_calibration_error", "kde_calibration_error", "top_label_ece", "class_wise_ece",
        "canonical_ece", "debiased_ece", "mmce", "smooth_ece", "brier_score", "log_loss", or "calibration_test", whose
        value is the p-value.
    **options
        Options of the function with this name, such as ``n_bins=10`` or ``classes=["no", "yes"]``.

    Returns
    -------
    mlflow.models.EvaluationMetric
        For ``extra_metrics=[...]``. It is NaN for a single row, on which MLflow tries metrics.

    Raises
    ------
    TypeError
        For an option that the function does not have.
    ValueError
        If there is no measure with this name.

    Examples
    --------
    >>> from kcalib.integrations.mlflow import metric
    >>> ece = metric("top_label_ece", n_bins=10)
    >>> ece.name, ece.greater_is_better
    ('top_label_ece', False)
    """
    measure = measure_of_classes(name)
    measure.check(options)

    def value(predictions: Any, targets: Any) -> float:
        return measure(np.asarray(targets), _rows(predictions), **options) if len(predictions) > 1 else float("nan")

    return make_metric(
        eval_fn=value, greater_is_better=measure.greater_is_better, name=name, long_name=f"kcalib.{name}"
    )


def artifacts(eval_df: Any, builtin_metrics: Any, artifacts_dir: Any, **options: Any) -> dict[str, Any]:
    """Return the result of `kcalib.evaluate` for a JSON file, and the reliability diagram.

    Parameters
    ----------
    eval_df : pandas.DataFrame
        Columns "prediction", as in `metric`, and "target".
    builtin_metrics, artifacts_dir
        Passed by MLflow; not used.
    **options
        Options of `kcalib.evaluate`, passed by ``functools.partial(artifacts, level=0.01)``.

    Returns
    -------
    dict
        ``"kcalib_evaluation"`` and ``"kcalib_reliability"``: for ``custom_artifacts=[artifacts]``.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.evaluate`; if there are no targets.
    ImportError
        If matplotlib is missing.
    """
    if "target" not in eval_df:
        raise ValueError("the evaluation has no labels; pass targets= to mlflow.models.evaluate")
    y_true, y_pred = np.asarray(eval_df["target"]), _rows(eval_df["prediction"])
    shared = {name: options[name] for name in ("classes", "from_logits", "lens") if name in options}
    return {
        "kcalib_evaluation": without_infinity(asdict(kcalib.evaluate(y_true, y_pred, **options))),
        "kcalib_reliability": kcalib.reliability(y_true, y_pred, **shared).plot().figure,
    }


def _rows(predictions: Any) -> np.ndarray:
    """Stack rows; leave numbers as they are."""
    values = np.asarray(predictions)
    if values.dtype != object:
        return values
    rows = [np.asarray(row) for row in values]
    for number, row in enumerate(rows):
        if row.shape != rows[0].shape:
            raise ValueError(
                f"row {number} of the predictions has shape {row.shape}, row 0 {rows[0].shape}; pass a probability of "
                "each class in every row"
            )
    return np.stack(rows)
