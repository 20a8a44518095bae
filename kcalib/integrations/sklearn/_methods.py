"""Recalibration methods by name, and checks of labels, for both estimators of this package."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from kcalib import recalibration
from kcalib.integrations._measures import did_you_mean
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


class RecalibratorMixin:
    """Prediction of labels from recalibrated probabilities."""

    def predict(self, X: Any) -> np.ndarray:
        """Predict the most probable class.

        Parameters
        ----------
        X : array_like
            As in `predict_proba`.

        Returns
        -------
        ndarray, shape (n,)
            Labels.
        """
        p = self.predict_proba(X)  # type: ignore[attr-defined]
        return np.asarray(self.classes_[np.argmax(p, axis=1)])  # type: ignore[attr-defined]


def make_recalibrator(method: Any) -> Recalibrator:
    """Return an unfitted recalibrator by name, or a clone."""
    if isinstance(method, Recalibrator):
        return method.clone()
    if not isinstance(method, str):
        raise TypeError(
            f"`method` is {method!r}, expected a name such as 'temperature', or one of kcalib.recalibration"
        )
    if method not in METHODS:
        close = ", which is 'platt' here" if method == "sigmoid" else did_you_mean(method, list(METHODS))
        raise ValueError(f"`method` is {method!r}{close}; there are {', '.join(METHODS)}")
    return METHODS[method]()


def check_labels(y: Any) -> np.ndarray:
    """Check class labels, and return them with shape (n,)."""
    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")
    y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    return np.asarray(y)


def fit_recalibrator(
    method: Any, p: Any, encoded: np.ndarray, sample_weight: Any, from_logits: bool = False
) -> Recalibrator:
    """Fit a recalibrator to predictions, shape (n, m), and labels 0..m-1."""
    recalibrator = make_recalibrator(method)
    return recalibrator.fit(encoded, p, sample_weight=sample_weight, from_logits=from_logits)


def two_columns(p: np.ndarray, from_logits: bool) -> np.ndarray:
    """Return predictions of both classes, given predictions of the second class, shape (n,) or (n, 1)."""
    if p.ndim == 2 and p.shape[1] > 1:
        return p
    second = p.reshape(-1)
    return np.stack((np.zeros_like(second) if from_logits else 1 - second, second), axis=1)
