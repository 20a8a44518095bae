"""Reliability diagrams as a scikit-learn display, for predictions, estimators, and several models in one picture.

`kcalib.reliability` computes the diagrams, `kcalib.report.diagrams` draws them. Like all displays, it uses a figure of
pyplot if no axes are given.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from kcalib import Evaluation, ReliabilityDiagram, reliability
from kcalib._input.classes import Classes, check_names
from kcalib._input.frames import check_rows, column_names
from kcalib.estimators.reliability import has_confidence
from kcalib.integrations._measures import check_options
from kcalib.lenses import Canonical, Lens, TopLabel
from kcalib.report import diagrams as drawing

__all__ = ["ReliabilityDisplay"]

# Colours of Okabe and Ito, distinct for all kinds of colour vision; on dark paper the light ones come first.
DEEP, BRIGHT = (drawing.CALIBRATED, drawing.MISCALIBRATED), (drawing.CALIBRATED_ON_DARK, drawing.MISCALIBRATED_ON_DARK)
BETWEEN = ("#009E73", "#CC79A7")
COLORS, COLORS_ON_DARK = (*DEEP, *BETWEEN, *BRIGHT[::-1], "0.35"), (*BRIGHT, *BETWEEN, *DEEP[::-1], "0.65")
MODEL = "model"
NOT_OPTIONS = {"y_true", "y_pred", "lens", "classes"}  # parameters of `reliability` that the methods have themselves


class ReliabilityDisplay:
    """Reliability diagrams with bands, as a scikit-learn display.

    Use `from_estimator` or `from_predictions` to create it.

    Parameters
    ----------
    diagrams : dict of str to ReliabilityDiagram
        A diagram for each model by name, all with the same lens.
    pos_label : int, float, bool or str, optional
        The class whose probability is shown; None for the confidence of the predicted class.
    evaluations : dict of str to Evaluation, optional
        Results of `kcalib.evaluate` for some or all models: ECE and verdict are shown in the legend.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
        The axes of the diagrams.
    histogram_ax_ : matplotlib.axes.Axes or None
        The axes of the histogram of predictions below.
    figure_ : matplotlib.figure.Figure
        The figure.
    line_ : list of matplotlib.lines.Line2D
        The line of each model in the legend.

    See Also
    --------
    kcalib.reliability : The numbers.
    sklearn.calibration.CalibrationDisplay : Without bands, for binary problems.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from sklearn.model_selection import train_test_split
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from kcalib.integrations.sklearn import ReliabilityDisplay
    >>> X, X_test, y, y_test = train_test_split(*load_breast_cancer(return_X_y=True), random_state=0)
    >>> models = {"bayes": GaussianNB().fit(X, y), "forest": RandomForestClassifier(20, random_state=0).fit(X, y)}
    >>> display = ReliabilityDisplay.from_estimator(models, X_test, y_test, n_bins=5)
    >>> [line.get_label() for line in display.line_], display.ax_.get_ylabel()
    (['bayes', 'forest'], 'fraction of positives (positive class: 1)')
    >>> import matplotlib.pyplot as plt
    >>> plt.close(display.figure_)
    """

    def __init__(
        self,
        diagrams: Mapping[str, ReliabilityDiagram],
        *,
        pos_label: Any = None,
        evaluations: Mapping[str, Evaluation] | None = None,
    ) -> None:
        self.diagrams = dict(diagrams)
        self.pos_label = pos_label
        self.evaluations = dict(evaluations or {})
        for name, evaluation in self.evaluations.items():
            self._check_evaluation(name, evaluation)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        pos_label: Any = None,
        lens: Lens | None = None,
        name: str | None = None,
        **options: Any,
    ) -> ReliabilityDisplay:
        """Draw the diagrams of fitted classifiers.

        Parameters
        ----------
        estimator : classifier, or dict of str to classifier
            One or several named classifiers with ``predict_proba``.
        X : array_like, shape (n, features)
            Features for the classifiers.
        y : array_like, shape (n,)
            Labels.
        pos_label : int, float, bool or str, optional
            The class whose probability is shown, for binary problems. Default: the second of ``classes_``.
        lens : Lens, optional
            Another event to show, as in `kcalib.reliability`.
        name, **options
            As in `from_predictions`; default for `name`: the class name of the estimator.

        Returns
        -------
        ReliabilityDisplay
            The display, drawn.

        Raises
        ------
        TypeError, ValueError
            As `from_predictions`; if classifiers have different classes, or no ``predict_proba``.
        NotFittedError
            If a classifier is not fitted.
        """
        several = isinstance(estimator, Mapping)
        if isinstance(estimator, (list, tuple)):
            raise TypeError(
                f"`estimator` is a {type(estimator).__name__}, expected a classifier, or a dictionary of several by "
                "their names, which the legend shows"
            )
        _check_names(several, name)
        models = dict(estimator) if several else {type(estimator).__name__ if name is None else name: estimator}
        if not models:
            raise ValueError("`estimator` is empty; there is no model to show")
        classes = None
        for model in models.values():
            if not hasattr(model, "predict_proba"):
                raise TypeError(
                    f"{type(model).__name__} has no predict_proba, whose reliability could be shown; wrap it, such as "
                    f"by kcalib.integrations.sklearn.RecalibratedClassifier({type(model).__name__}(), method='platt')"
                )
            if not hasattr(model, "classes_"):
                check_is_fitted(model)
            if classes is not None and not np.array_equal(classes, model.classes_):
                raise ValueError(
                    f"the classes of the estimators are not the same: {classes.tolist()} and {model.classes_.tolist()}"
                )
            classes = np.asarray(model.classes_)
        assert classes is not None
        if pos_label is None and len(classes) == 2 and lens is None:
            pos_label = classes.tolist()[1]
        predicted = {name_of_model: model.predict_proba(X) for name_of_model, model in models.items()}
        return cls.from_predictions(
            y,
            predicted if several else predicted.popitem()[1],
            classes=classes,
            pos_label=pos_label,
            lens=lens,
            name=None if several else next(iter(models)),
            **options,
        )

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_pred: Any,
        *,
        pos_label: Any = None,
        lens: Lens | None = None,
        classes: Any = None,
        evaluation: Any = None,
        name: str | None = None,
        ax: Any = None,
        histogram: bool | None = None,
        **options: Any,
    ) -> ReliabilityDisplay:
        """Draw the diagrams of predicted probabilities.

        Parameters
        ----------
        y_true : array_like, shape (n,)
            Labels.
        y_pred : array_like, shape (n, m) or (n,), or dict of str to these
            Probabilities of the classes, or of the positive class; several models by name.
        pos_label : int, float, bool or str, optional
            The class whose probability is shown, for binary problems; a single column holds its probability. Default:
            the second class.
        lens : Lens, optional
            As in `kcalib.reliability`. Default: the probability of the positive class for binary problems, otherwise
            ``kcalib.lenses.TopLabel()``.
        classes : array_like, shape (m,), optional
            The label of each column. Default: as in `kcalib.skce`.
        evaluation : kcalib.Evaluation, or dict of str to Evaluation, optional
            Results of `kcalib.evaluate` for these predictions, by name if there are several models.
        name : str, optional
            Name of a single model for the legend; default "model".
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; default: a new figure of pyplot. Axes of another display get further models.
        histogram : bool, optional
            Draw the histogram of the predictions below. Default: only in a new figure.
        **options
            Options of `kcalib.reliability`: ``n_bins``, ``binning``, ``sample_weight``, ``from_logits``, ...

        Returns
        -------
        ReliabilityDisplay
            The display, drawn.

        Raises
        ------
        ImportError
            If matplotlib is missing.
        TypeError, ValueError
            As `kcalib.reliability`; if `pos_label` is not a class of a binary problem; if `name` is given for several
            models; if an evaluation has other samples or another lens.
        """
        drawing.require_matplotlib()
        several = isinstance(y_pred, Mapping)
        _check_names(several, name)
        option_names = [option for option in inspect.signature(reliability).parameters if option not in NOT_OPTIONS]
        check_options(options, "kcalib.reliability", option_names, {})
        models = dict(y_pred) if several else {"model" if name is None else name: y_pred}
        if not models:
            raise ValueError("there is no model to show")
        if evaluation is not None and not isinstance(evaluation, Mapping):
            if several:
                raise TypeError("`evaluation` is one result for several models, expected a dictionary by their names")
            evaluation = {next(iter(models)): evaluation}
        if pos_label is not None:
            are_logits = bool(options.get("from_logits", False))
            y_true, models = _of_class(pos_label, y_true, models, classes, lens, are_logits)
            classes, lens = None, Canonical()
        diagrams = {
            model: reliability(y_true, p, lens=lens or _default_lens(p), classes=classes, **options)
            for model, p in models.items()
        }
        return cls(diagrams, pos_label=pos_label, evaluations=evaluation).plot(ax=ax, histogram=histogram)

    def plot(self, ax: Any = None, *, name: str | None = None, histogram: bool | None = None) -> ReliabilityDisplay:
        """Draw the diagrams.

        Parameters
        ----------
        ax, histogram
            As in `from_predictions`.
        name : str, optional
            Name of a single model in the legend.

        Returns
        -------
        ReliabilityDisplay
            Itself, with the attributes that end in ``_``.
        """
        drawing.require_matplotlib()
        if name is not None and len(self.diagrams) > 1:
            raise ValueError(f"`name` is for one model, there are {len(self.diagrams)}: {', '.join(self.diagrams)}")
        histogram = ax is None if histogram is None else histogram
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(figsize=(4.6, 5.9), layout="constrained")
        below = drawing.split_axes(ax) if histogram else None
        first = sum(line.get_gid() == MODEL for line in ax.lines)
        colors = COLORS_ON_DARK if drawing.Tones.of(ax).is_dark else COLORS
        self.line_, handles = [], []
        for number, (model, diagram) in enumerate(self.diagrams.items(), start=first):
            color = colors[number % len(colors)]
            if diagram.binning != "isotonic" and first + len(self.diagrams) > 1:  # grey bands would hide each other
                diagram = replace(diagram, consistency_band=None)
            handles = drawing.draw_diagram(ax, diagram, color)
            label = self._label(model, name)
            self.line_ += ax.plot([], [], color=color, marker="o", markersize=4, linewidth=0.8, label=label, gid=MODEL)
            if below is not None:
                drawing.draw_histogram(below, diagram, color, outlined=len(self.diagrams) > 1)
        self.ax_, self.histogram_ax_, self.figure_ = ax, below, ax.figure
        self._finish(handles if first + len(self.diagrams) == 1 else [])
        return self

    def _label(self, model: str, name: str | None) -> str:
        label = model if name is None else name
        if model not in self.evaluations:
            return label
        evaluation = self.evaluations[model]
        return f"{label}: ECE {evaluation.top_label_ece:.3f}, {evaluation.verdict.partition(':')[0]}"

    def _finish(self, handles: list[Any]) -> None:
        """Draw the legend and the labels of the axes."""
        models = [line for line in self.ax_.lines if line.get_gid() == MODEL]
        drawing.draw_legend(self.ax_, [*models, *handles])
        of_class = "" if self.pos_label is None else f" (positive class: {self.pos_label})"
        lens = next(iter(self.diagrams.values())).lens
        labels = (f"mean predicted probability{of_class}", f"fraction of positives{of_class}")
        x, y = ("confidence", "accuracy") if has_confidence(lens) else labels
        drawing.label_axes(self.ax_, self.histogram_ax_, (x, y, "share"))

    def _check_evaluation(self, name: str, evaluation: Any) -> None:
        if not isinstance(evaluation, Evaluation):
            raise TypeError(f"the evaluation of {name!r} is {type(evaluation).__name__}, expected a kcalib.Evaluation")
        if name not in self.diagrams:
            raise ValueError(f"there is an evaluation of {name!r}, but no such model: {', '.join(self.diagrams)}")
        diagram = self.diagrams[name]
        if evaluation.n_samples != diagram.n_samples:
            raise ValueError(
                f"the evaluation of {name!r} is of {evaluation.n_samples} samples, its predictions are "
                f"{diagram.n_samples}; pass the result for the same samples"
            )
        if evaluation.lens not in (str(Canonical()), diagram.lens):
            raise ValueError(
                f"the evaluation of {name!r} is through {evaluation.lens}, its diagram through {diagram.lens}; pass "
                "that lens= here, or evaluate without"
            )


def _check_names(several: bool, name: str | None) -> None:
    if several and name is not None:
        raise ValueError("`name` is for one model; the names of several are the keys of the dictionary")


def _is_binary(p: Any) -> bool:
    shape = np.shape(p)
    return len(shape) < 2 or shape[1] < 3


def _default_lens(p: Any) -> Lens:
    return Canonical() if _is_binary(p) else TopLabel()


def _of_class(
    pos_label: Any, y_true: Any, models: dict[str, Any], classes: Any, lens: Lens | None, are_logits: bool
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return whether each sample is in the class, and the probabilities or log-odds of the class."""
    labels, y_true = y_true, np.asarray(y_true)
    class_labels = np.unique(y_true) if classes is None else np.asarray(classes)
    if lens is not None:
        raise ValueError("`pos_label` and `lens` both say what is shown; leave one out")
    if len(class_labels) > 2 or not all(map(_is_binary, models.values())):
        raise ValueError("`pos_label` is for binary problems; of others class k is lens=kcalib.lenses.ClassWise(k)")
    if pos_label not in class_labels.tolist():
        raise ValueError(f"`pos_label` is {pos_label!r}, which is none of the labels {class_labels.tolist()}")
    unknown = np.flatnonzero(~np.isin(y_true, class_labels))
    if unknown.size:
        raise ValueError(
            f"`y_true[{unknown[0]}]` is {y_true.tolist()[unknown[0]]!r}, which is none of the labels "
            f"{class_labels.tolist()}"
        )
    column = class_labels.tolist().index(pos_label)
    of_class = {}
    for name, p in models.items():
        check_rows(labels, p, None, ("y_true", "y_pred"))
        check_names(column_names(p, 2), Classes(tuple(class_labels.tolist())), "y_pred")
        p = np.asarray(p)
        if p.ndim < 2 or p.shape[1] == 1:
            of_class[name] = p.reshape(-1)
        else:
            of_class[name] = p[:, column] - p[:, 1 - column] if are_logits else p[:, column]
    return y_true == pos_label, of_class
