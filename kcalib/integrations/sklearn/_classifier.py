"""A classifier with its recalibration as one classifier, by cross-validation or for a fitted classifier."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, _routing_enabled, process_routing
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import (
    _check_method_params,
    _check_sample_weight,
    check_is_fitted,
    has_fit_parameter,
)

from kcalib.integrations.sklearn._methods import (
    RecalibratorMixin,
    check_labels,
    fit_recalibrator,
    make_recalibrator,
    two_columns,
)
from kcalib.recalibration import Recalibrator

try:
    from sklearn.frozen import FrozenEstimator
except ImportError:  # before scikit-learn 1.6
    FrozenEstimator = ()

__all__ = ["RecalibratedClassifier"]


class Pair(NamedTuple):
    """A fitted classifier and the recalibrator of its predictions."""

    estimator: Any
    recalibrator: Recalibrator


class RecalibratedClassifier(RecalibratorMixin, ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier whose predicted probabilities are recalibrated, as by scikit-learn's ``CalibratedClassifierCV``.

    The recalibrator is fitted to cross-validated predictions of the classifier, and the classifier then to all samples.
    A fitted classifier is kept if it is wrapped in a ``FrozenEstimator``, or with ``cv="prefit"``; all samples are then
    used for the recalibration.

    Parameters
    ----------
    estimator : classifier
        With ``predict_proba``, or else ``decision_function``, whose values are treated as logits.
    method : str or kcalib.recalibration.Recalibrator
        "temperature", "platt", "beta", "isotonic", "histogram", "venn_abers", "vector", "matrix", "dirichlet", or an
        instance with options, which is not changed.
        In a grid, parameters of an instance are named ``method__...``.
    cv : int, cross-validation generator, iterable or "prefit", optional
        As in scikit-learn; default 5 stratified folds.
    ensemble : bool
        Keep a classifier and a recalibrator for each fold, and average their predictions. Averages of calibrated
        predictions that differ are under-confident.
    n_jobs : int, optional
        Number of parallel jobs, as in scikit-learn.

    Attributes
    ----------
    classes_ : ndarray, shape (m,)
        Labels, in the order of the predicted columns.
    pairs_ : list
        Fitted ``estimator`` and ``recalibrator``; one pair, or one for each fold.
    n_features_in_, feature_names_in_
        Attributes of the classifier, if it has them.

    Warns
    -----
    UserWarning
        By `fit`, if the classifier does not take the sample weights.

    See Also
    --------
    ProbabilityRecalibrator : For existing predictions.
    sklearn.calibration.CalibratedClassifierCV : With scikit-learn's own methods.

    Notes
    -----
    The recalibrator is fitted to predictions of classifiers with fewer training samples than the final one. Time: k + 1
    fits of the classifier for k folds, or k with `ensemble`.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import kcalib
    >>> from kcalib.integrations.sklearn import RecalibratedClassifier
    >>> X, y = make_classification(2000, n_informative=3, n_redundant=9, random_state=1)
    >>> model = make_pipeline(StandardScaler(), RecalibratedClassifier(GaussianNB(), method="temperature"))
    >>> model = model.fit(X[:1000], y[:1000])
    >>> round(model[-1].pairs_[0].recalibrator.temperature_, 1)
    3.7
    >>> plain = GaussianNB().fit(X[:1000], y[:1000])
    >>> [round(kcalib.top_label_ece(y[1000:], m.predict_proba(X[1000:])), 3) for m in (plain, model)]
    [0.132, 0.021]
    """

    def __init__(
        self,
        estimator: Any,
        *,
        method: Any = "temperature",
        cv: Any = None,
        ensemble: bool = False,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.ensemble = ensemble
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> RecalibratedClassifier:
        """Fit classifier and recalibrator.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (n, features)
            Features for the classifier.
        y : array_like, shape (n,)
            Labels.
        sample_weight : array_like, shape (n,), optional
            Non-negative weights for both fits.
        **fit_params
            Passed to ``fit`` of the classifier; ``groups`` to the splitter; others by metadata routing.

        Returns
        -------
        RecalibratedClassifier
            Itself.

        Raises
        ------
        TypeError, ValueError
            As the classifier and the method; if a class has fewer samples than folds.
        NotFittedError
            If a prefit classifier is not fitted.
        """
        make_recalibrator(self.method)
        y = check_labels(y)
        X, y, sample_weight = indexable(X, y, sample_weight)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X)
        classes, encoded = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            count = f"{len(classes)} class{'' if len(classes) == 1 else 'es'}"
            raise ValueError(f"y has samples of {count}: {classes.tolist()}; a classifier needs at least 2")
        routed = self._route(sample_weight, fit_params)
        if self.is_prefit:
            self._fit_to_prefit(X, encoded, sample_weight, classes)
        else:
            self._fit_to_folds(X, y, encoded, sample_weight, classes, *routed)
        self.classes_ = classes
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.pairs_[0].estimator, name):
                setattr(self, name, getattr(self.pairs_[0].estimator, name))
        return self

    @property
    def is_prefit(self) -> bool:
        """Whether the classifier is fitted already."""
        return isinstance(self.estimator, FrozenEstimator) or (isinstance(self.cv, str) and self.cv == "prefit")

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict recalibrated probabilities.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (n, features)
            Features for the classifier.

        Returns
        -------
        ndarray, shape (n, m)
            Probabilities in the order of `classes_`.
        """
        check_is_fitted(self)
        probabilities = []
        for estimator, recalibrator in self.pairs_:
            p, are_logits = predictions(estimator, X, self.classes_)
            probabilities.append(recalibrator.transform(p, from_logits=are_logits))
        return np.mean(probabilities, axis=0) if len(probabilities) > 1 else np.asarray(probabilities[0])

    def _fit_to_prefit(self, X: Any, encoded: np.ndarray, sample_weight: Any, classes: np.ndarray) -> None:
        check_is_fitted(self.estimator)
        p, are_logits = predictions(self.estimator, X, classes)
        self.pairs_ = [Pair(self.estimator, fit_recalibrator(self.method, p, encoded, sample_weight, are_logits))]

    def _fit_to_folds(
        self,
        X: Any,
        y: Any,
        encoded: np.ndarray,
        sample_weight: Any,
        classes: np.ndarray,
        fit_params: Any,
        of_splitter: Any,
    ) -> None:
        folds = check_cv(self.cv, y, classifier=True)
        k = folds.get_n_splits(X, y, **of_splitter)
        fewest = int(np.argmin(np.bincount(encoded)))
        count = int(np.bincount(encoded)[fewest])
        if count < k and (self.cv is None or isinstance(self.cv, int)):
            raise ValueError(
                f"class {classes.tolist()[fewest]!r} has {count} of the {len(y)} samples, fewer than the {k} folds; "
                "pass a lower cv=, or more samples"
            )
        splits = list(folds.split(X, y, **of_splitter))
        fits = Parallel(n_jobs=self.n_jobs)(
            delayed(_fit_fold)(self.estimator, X, y, train, test, fit_params, classes) for train, test in splits
        )
        weights = [None if sample_weight is None else sample_weight[test] for _, test in splits]
        if self.ensemble:
            self.pairs_ = [
                Pair(estimator, fit_recalibrator(self.method, p, encoded[test], weight, are_logits))
                for (estimator, p, are_logits), (_, test), weight in zip(fits, splits, weights)
            ]
            return
        left_out = np.concatenate([test for _, test in splits])
        recalibrator = fit_recalibrator(
            self.method,
            np.concatenate([p for _, p, _ in fits]),
            encoded[left_out],
            None if sample_weight is None else sample_weight[left_out],
            fits[0][2],
        )
        self.pairs_ = [Pair(clone(self.estimator).fit(X, y, **fit_params), recalibrator)]

    def _route(self, sample_weight: Any, fit_params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arguments of the classifier's `fit` and of the splitter."""
        if _routing_enabled():
            routed = process_routing(self, "fit", sample_weight=sample_weight, **fit_params)
            return routed.estimator.fit, routed.splitter.split
        of_splitter = {"groups": fit_params["groups"]} if fit_params.get("groups") is not None else {}
        fit_params = {name: value for name, value in fit_params.items() if name != "groups"}
        if sample_weight is not None and not self.is_prefit:
            if has_fit_parameter(self.estimator, "sample_weight"):
                fit_params = {**fit_params, "sample_weight": sample_weight}
            else:
                warnings.warn(
                    f"{type(self.estimator).__name__}.fit takes no sample_weight: only the recalibration is weighted",
                    UserWarning,
                    stacklevel=3,
                )
        return fit_params, of_splitter

    def get_metadata_routing(self) -> MetadataRouter:
        """Return where metadata of `fit` are routed: to itself, the classifier and the splitter.

        Returns
        -------
        MetadataRouter
            For scikit-learn.
        """
        fit = MethodMapping()
        return (
            MetadataRouter(owner=type(self).__name__)
            .add_self_request(self)
            .add(estimator=self.estimator, method_mapping=fit.add(caller="fit", callee="fit"))
            .add(splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))
        )

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import get_tags

        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = get_tags(self.estimator).input_tags.sparse
        return tags

    def _more_tags(self) -> dict[str, Any]:  # before scikit-learn 1.6
        reason = "folds depend on the order of the samples, and those of weight 0 are in them"
        return {"_xfail_checks": {"check_sample_weights_invariance": reason}}


def predictions(estimator: Any, X: Any, classes: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return predictions of all classes, shape (n, m), and whether they are logits.

    Classes that the estimator has not seen have probability 0.
    """
    are_logits = not hasattr(estimator, "predict_proba")
    if are_logits and not hasattr(estimator, "decision_function"):
        raise TypeError(
            f"{type(estimator).__name__} has neither predict_proba nor decision_function, so that there is nothing to "
            "recalibrate"
        )
    p = np.asarray((estimator.decision_function if are_logits else estimator.predict_proba)(X))
    p = two_columns(p, are_logits) if are_logits else p
    if p.shape[1] != len(estimator.classes_):
        raise ValueError(
            f"{type(estimator).__name__} predicts {p.shape[1]} columns of {len(estimator.classes_)} classes, expected "
            "one for each; of support vector machines pass decision_function_shape='ovr'"
        )
    place = np.searchsorted(classes, estimator.classes_)
    if not np.isin(estimator.classes_, classes).all():
        unknown = [label for label in estimator.classes_.tolist() if label not in classes]
        raise ValueError(
            f"y has no samples of the classes {unknown}, which the fitted classifier predicts; pass samples of every "
            "class, such as train_test_split(stratify=y) gives"
        )
    if len(place) == len(classes):
        return p, are_logits
    if are_logits:
        missing = sorted(set(classes.tolist()) - set(estimator.classes_.tolist()))
        raise ValueError(f"a part of the samples has none of the classes {missing}; pass another cv=")
    padded = np.zeros((len(p), len(classes)), dtype=p.dtype)
    padded[:, place] = p
    return padded, are_logits


def _fit_fold(
    estimator: Any, X: Any, y: Any, train: np.ndarray, test: np.ndarray, fit_params: dict[str, Any], classes: np.ndarray
) -> tuple[Any, np.ndarray, bool]:
    """Fit a classifier to the training samples, and predict the test samples."""
    params = _check_method_params(X, fit_params, indices=train)
    fitted = clone(estimator).fit(_safe_indexing(X, train), _safe_indexing(y, train), **params)
    return fitted, *predictions(fitted, _safe_indexing(X, test), classes)
