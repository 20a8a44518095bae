"""Recalibration of existing probabilities, as an estimator whose features are probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import sklearn.utils.validation
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from kcalib._input.classes import Classes, check_names
from kcalib._input.frames import check_rows, column_names
from kcalib.integrations.sklearn._methods import RecalibratorMixin, check_labels, fit_recalibrator, two_columns

__all__ = ["ProbabilityRecalibrator"]


class ProbabilityRecalibrator(RecalibratorMixin, ClassifierMixin, BaseEstimator):
    """Recalibration of predicted probabilities, as a classifier whose features are the predictions.

    For predictions of any model, and as the last step of a ``Pipeline`` after a transformer that predicts. To
    recalibrate a classifier of scikit-learn, use `RecalibratedClassifier`.

    Parameters
    ----------
    method : str or kcalib.recalibration.Recalibrator
        "temperature", "platt", "beta", "isotonic", "histogram", "venn_abers", "vector", "matrix", "dirichlet", or an
        instance with options, which is not changed.
    from_logits : bool
        The features are logits.
    classes : array_like, shape (m,), optional
        The label of each column. Default: the sorted labels of the fit, as in ``predict_proba``.

    Attributes
    ----------
    classes_ : ndarray, shape (m,)
        The label of each column.
    recalibrator_ : kcalib.recalibration.Recalibrator
        The fitted method, with its own attributes.
    n_features_in_ : int
        Number of columns.

    See Also
    --------
    kcalib.recalibration : The methods, without scikit-learn.

    Examples
    --------
    >>> from kcalib.integrations.sklearn import ProbabilityRecalibrator
    >>> p = [[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.1, 0.9], [0.2, 0.8]]
    >>> model = ProbabilityRecalibrator("temperature").fit(p, ["no", "no", "yes", "yes", "yes"])
    >>> model.predict_proba([[0.9, 0.1]]).round(3)
    array([[0.793, 0.207]])
    >>> model.predict([[0.9, 0.1]])
    array(['no'], dtype='<U3')
    """

    def __init__(self, method: Any = "temperature", *, from_logits: bool = False, classes: Any = None) -> None:
        self.method = method
        self.from_logits = from_logits
        self.classes = classes

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> ProbabilityRecalibrator:
        """Fit the method to labelled predictions, for other samples than those the model was trained on.

        Parameters
        ----------
        X : array_like, shape (n, m), or (n, 1) for a binary problem
            Probabilities of the classes, or of the second class; logits if `from_logits`.
        y : array_like, shape (n,)
            Labels.
        sample_weight : array_like, shape (n,), optional
            Non-negative weights.

        Returns
        -------
        ProbabilityRecalibrator
            Itself.

        Raises
        ------
        TypeError, ValueError
            If `X` does not hold probabilities with a column for each class; if a parameter is wrong.
        """
        raw, X = X, self._predictions(X, reset=True)
        y = check_labels(y)
        sklearn.utils.validation.check_consistent_length(X, y, sample_weight)
        self.classes_ = np.unique(y) if self.classes is None else np.asarray(self.classes)
        m = X.shape[1]
        if len(self.classes_) != m:
            raise ValueError(
                f"X has predictions of {m} classes, but y has {len(self.classes_)} labels: {self.classes_.tolist()}; "
                "pass classes= with the label of each column"
                if self.classes is None
                else f"`classes` has {len(self.classes_)} labels, but X predictions of {m} classes"
            )
        if len(np.unique(self.classes_)) < m:
            raise ValueError(f"`classes` is {self.classes_.tolist()}, expected a different label for each column")
        check_rows(y, raw, sample_weight, ("y", "X"))
        check_names(column_names(raw, m), Classes(tuple(self.classes_.tolist())), "X")
        order = np.argsort(self.classes_)
        encoded = order[np.minimum(np.searchsorted(self.classes_, y, sorter=order), m - 1)]
        unknown = np.flatnonzero(self.classes_[encoded] != y)
        if unknown.size:
            raise ValueError(
                f"y[{unknown[0]}] is {y.tolist()[unknown[0]]!r}, not among `classes`, {self.classes_.tolist()}"
            )
        self.recalibrator_ = fit_recalibrator(self.method, X, encoded, sample_weight, self.from_logits)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict recalibrated probabilities.

        Parameters
        ----------
        X : array_like, shape (n, m), or (n, 1) for a binary problem
            Predictions, as in `fit`.

        Returns
        -------
        ndarray, shape (n, m)
            Probabilities in the order of `classes_`.
        """
        check_is_fitted(self)
        X = self._predictions(X, reset=False)
        return np.asarray(self.recalibrator_.transform(X, from_logits=self.from_logits))

    def _predictions(self, X: Any, reset: bool) -> np.ndarray:
        """Check features, and return predictions with a column for each class."""
        options = {"dtype": [np.float64, np.float32], "reset": reset}
        if hasattr(sklearn.utils.validation, "validate_data"):
            p = sklearn.utils.validation.validate_data(self, X, **options)
        else:  # before scikit-learn 1.6
            p = self._validate_data(X, **options)
        return two_columns(p, self.from_logits)
