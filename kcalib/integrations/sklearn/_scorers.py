"""Scorers: measures of kcalib for `scoring=` of scikit-learn.

`make_scorer` does not pass the classes of the estimator, which a fold may not have. `CalibrationScorer` does. It
derives from the base class of scikit-learn's scorers, so that several scorers share predictions and sample weights are
routed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.base import is_regressor
from sklearn.metrics._scorer import _BaseScorer
from sklearn.utils.validation import check_is_fitted

from kcalib.distributions import Distribution, Normal
from kcalib.integrations._measures import MEASURES, did_you_mean

__all__ = ["scorer", "scorer_names"]


def scorer_names() -> list[str]:
    """Return the names of scorers.

    Returns
    -------
    list of str
        Names of functions of kcalib.
    """
    return list(MEASURES)


def scorer(name: str, *, response: Callable[[Any, Any], Any] | None = None, **options: Any) -> Any:
    """Return a scorer for scikit-learn, for a measure of calibration or a proper score.

    Greater is better: the score is the negative error, or the p-value for "calibration_test". Choose among models by an
    error or a proper score, not by the p-value: the model with the largest p-value may be the one for which the test
    has the least power.

    Parameters
    ----------
    name : str
        One of `scorer_names`: "skce", "ckce", "ucme", "squared_calibration_error", "kde_calibration_error",
        "top_label_ece", "class_wise_ece", "canonical_ece", "debiased_ece", "mmce", "smooth_ece", "brier_score",
        "log_loss", "calibration_test"; for predicted distributions "skce", "ckce", "ucme", "calibration_test", "crps",
        "log_score", "pinball_loss", and the error of "quantile_calibration".
    response : callable, optional
        Function with ``response(estimator, X)`` that returns class probabilities or predicted distributions of
        `kcalib.distributions`. Default: for classifiers ``estimator.predict_proba(X)`` with columns ``classes_``; for
        regressors the normal distributions of ``estimator.predict(X, return_std=True)``, which Gaussian processes and
        Bayesian linear models have.
    **options
        Options of the function, such as ``n_bins=10`` or a `lens`.

    Returns
    -------
    scorer
        A callable with the arguments ``(estimator, X, y)``, for ``cross_val_score``, ``cross_validate``,
        ``GridSearchCV`` and the like. With metadata routing, ``set_score_request(sample_weight=True)`` requests
        sample weights. Without it, newer versions of scikit-learn weight the scores of a search by
        ``fit(X, y, sample_weight=...)``.

    Raises
    ------
    TypeError
        If `name` is not a string or `response` not callable; for an option that the function does not have; by
        ``set_score_request`` and the scorer, for sample weights if the function has none; by the scorer, if the
        estimator predicts neither probabilities nor distributions.
    ValueError
        For an unknown name; by the scorer, as the function.
    NotFittedError
        By the scorer, if the estimator is not fitted.

    Notes
    -----
    By default the bandwidth of kernels depends on the predictions, so that "skce", "ckce" and "ucme" of two models have
    different scales. To compare models, pass a kernel with a bandwidth, or use `kcalib.compare`.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.model_selection import cross_val_score
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from kcalib.integrations.sklearn import scorer
    >>> X, y = load_wine(return_X_y=True)
    >>> cross_val_score(GaussianNB(), X, y, cv=3, scoring=scorer("top_label_ece", n_bins=5)).round(3)
    array([-0.034, -0.033, -0.022])
    """
    if not isinstance(name, str):
        raise TypeError(f"`name` is {name!r}, expected a name such as 'skce', see scorer_names()")
    if name not in MEASURES:
        raise ValueError(
            f"there is no scorer {name!r}{did_you_mean(name, scorer_names())}; there are {', '.join(MEASURES)}"
        )
    if not (response is None or callable(response)):
        raise TypeError(
            f"`response` is {response!r}, expected a function of (estimator, X) that gives class probabilities, or one "
            "of kcalib.distributions"
        )
    refused = {
        "sample_weight": "pass it to `cross_validate`, with metadata routing, or to the scorer when it is called",
        "classes": "the estimator's `classes_` are taken",
    }
    MEASURES[name].check(options, refused)
    return CalibrationScorer(name, response, options)


class CalibrationScorer(_BaseScorer):
    """A scorer that passes the classes of the estimator, and sample weights if the measure takes them."""

    def __init__(self, name: str, response: Callable[[Any, Any], Any] | None, options: dict[str, Any]) -> None:
        measure = MEASURES[name]
        super().__init__(measure, 1 if measure.greater_is_better else -1, options, "predict_proba")
        self._name, self._response = name, response

    def __repr__(self) -> str:
        options = {**({} if self._response is None else {"response": self._response}), **self._kwargs}
        return f"scorer({', '.join([repr(self._name), *(f'{name}={value!r}' for name, value in options.items())])})"

    def set_score_request(self, **kwargs: Any) -> CalibrationScorer:
        """Request metadata, as for scorers of scikit-learn; refuse sample weights if the function has none.

        Parameters
        ----------
        **kwargs
            ``sample_weight=True``, False, None or an alias.

        Returns
        -------
        scorer
            Itself.

        Raises
        ------
        TypeError
            If weights are requested, but the function takes none.
        """
        if kwargs.get("sample_weight"):
            self._check_takes_weights()
        super().set_score_request(**kwargs)
        return self

    def _check_takes_weights(self) -> None:
        if "sample_weight" not in MEASURES[self._name].options:
            weighted = [name for name, measure in MEASURES.items() if "sample_weight" in measure.options]
            raise TypeError(f"{self._name} takes no sample weights; those that do are {', '.join(weighted)}")

    def _score(self, method_caller: Any, estimator: Any, X: Any, y_true: Any, **kwargs: Any) -> float:
        measure = MEASURES[self._name]
        if "sample_weight" in kwargs:
            self._check_takes_weights()
        y_pred = self._predict(method_caller, estimator, X)
        options = {**self._kwargs, **kwargs}
        if isinstance(y_pred, Distribution):
            return self._sign * measure(y_true, y_pred, **options)
        if measure.of_distributions:
            raise TypeError(
                f"{self._name} is of predicted distributions, but {type(estimator).__name__} predicts class "
                "probabilities; use 'brier_score' or 'log_loss'"
            )
        classes = getattr(estimator, "classes_", None)  # with `response` there may be none
        return self._sign * measure(y_true, y_pred, classes=classes, **options)

    def _predict(self, method_caller: Any, estimator: Any, X: Any) -> Any:
        if self._response is not None:
            return self._response(estimator, X)
        name = type(estimator).__name__
        if is_regressor(estimator):
            try:
                mean, std = estimator.predict(X, return_std=True)
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"{name}.predict(X, return_std=True) fails: {error}; pass response= with a function of (estimator, "
                    "X) that gives one of kcalib.distributions"
                ) from error
            return Normal(mean, std)
        if not hasattr(estimator, "predict_proba"):
            raise TypeError(
                f"{name} has no predict_proba, whose calibration could be scored; wrap it, such as by "
                f"kcalib.integrations.sklearn.RecalibratedClassifier({name}(), method='platt')"
            )
        if not hasattr(estimator, "classes_"):
            check_is_fitted(estimator)
        elif len(estimator.classes_) > 2:
            return method_caller(estimator, "predict_proba", X)
        return estimator.predict_proba(X)  # the caller returns one of two columns
