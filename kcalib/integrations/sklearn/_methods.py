"""Recalibration methods by name, and labels as the methods know them. Both estimators of this package begin here."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from kcalib import recalibration
from kcalib.integrations._measures import meant
from kcalib.recalibration import Recalibrator

METHODS: dict[str, type[Recalibrator]] = {
    "temperature": recalibration.TemperatureScaling,
    "platt": recalibration.PlattScaling,
    "isotonic": recalibration.IsotonicCalibration,
    "histogram": recalibration.HistogramBinning,
    "beta": recalibration.BetaCalibration,
    "vector": recalibration.VectorScaling,
    "matrix": recalibration.MatrixScaling,
    "dirichlet": recalibration.DirichletCalibration,
    "venn_abers": recalibration.VennAbers,
}


def recalibrator_of(method: Any) -> Recalibrator:
    """A new recalibrator that is not fitted, of a name or like an instance."""
    if isinstance(method, Recalibrator):
        return method.clone()
    if not isinstance(method, str):
        raise TypeError(
            f"`method` is {method!r}, expected a name such as 'temperature', or one of kcalib.recalibration"
        )
    if method not in METHODS:
        close = ", which is 'platt' here" if method == "sigmoid" else meant(method, list(METHODS))
        raise ValueError(f"`method` is {method!r}{close}; there are {', '.join(METHODS)}")
    return METHODS[method]()


def checked_labels(y: Any) -> np.ndarray:
    """Labels of classes, shape (n,)."""
    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")
    y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    return np.asarray(y)


def fitted_to(method: Any, p: Any, encoded: np.ndarray, sample_weight: Any, from_logits: bool = False) -> Recalibrator:
    """The recalibrator of predictions of all classes, shape (n, m), and of labels 0..m-1."""
    fitted = recalibrator_of(method).fit(encoded, p, sample_weight=sample_weight, from_logits=from_logits)
    assert isinstance(fitted, Recalibrator)
    return fitted


def both_columns(p: np.ndarray, from_logits: bool) -> np.ndarray:
    """Predictions of the second class alone, shape (n,) or (n, 1), as those of both; others as they are."""
    if p.ndim == 2 and p.shape[1] > 1:
        return p
    second = p.reshape(-1)
    return np.stack((np.zeros_like(second) if from_logits else 1 - second, second), axis=1)
