"""`choose`: the recalibrator with the best proper score on samples that it was not fitted to."""

from __future__ import annotations

import functools
import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.options import check_choice, check_fraction, check_integer, check_positive
from kcalib._backend.threads import TerminalProgress
from kcalib._backend.warnings import warn
from kcalib._input.forecasts import prepare
from kcalib.distributions import Categorical
from kcalib.estimators.forecasts.crps import crps_values
from kcalib.estimators.forecasts.scores import log_score_values
from kcalib.estimators.scores import log_losses, square_residuals
from kcalib.inference.compare import compare, compared
from kcalib.inference.metrics.scores import means
from kcalib.recalibration._families import temper
from kcalib.recalibration._recalibrator import (
    ClassRecalibrator,
    ClassSamples,
    Recalibrator,
    two_columns,
    unwrap_categorical,
)
from kcalib.recalibration.beta_calibration import BetaCalibration
from kcalib.recalibration.isotonic import IsotonicCalibration
from kcalib.recalibration.matrix_scaling import DirichletCalibration, VectorScaling
from kcalib.recalibration.platt import PlattScaling
from kcalib.recalibration.quantile_recalibration import QuantileRecalibration
from kcalib.recalibration.scale_calibration import ScaleCalibration, shift_and_scale
from kcalib.recalibration.temperature_scaling import TemperatureScaling
from kcalib.recalibration.venn_abers import VennAbers
from kcalib.report.summary import Summarized, Summary
from kcalib.results import Comparison, ConfidenceInterval

__all__ = ["Choice", "choose"]

AS_GIVEN, CHOSEN = "as given", "chosen"
# Largest number of classes for which these are default candidates: with more classes they take minutes.
MOST_OF_MATRICES, MOST_OF_EACH = 20, 100
MAX_BEHIND = 3.0  # standard errors above the lowest mean at which a candidate is stopped
MIN_SEEN = 50  # samples before a candidate may be stopped


@dataclass(frozen=True)
class Choice(Summarized):
    """The result of `choose`: the best recalibrator, and scores of all on samples that they were not fitted to."""

    name: str  #: the candidate with the best score; "as given" if none is better by more than a standard error
    recalibrator: Recalibrator | None  #: this candidate, fitted to all samples; None for "as given"
    score: str  #: the score that was compared
    comparison: Comparison  #: of all candidates, of "as given", and of "chosen": the choice repeated in each fold
    left_out: tuple[str, ...]  #: candidates that could not be fitted
    stopped: tuple[str, ...]  #: candidates whose fits were stopped early in some folds, as too far behind
    chosen_in_folds: tuple[str, ...]  #: the candidate chosen without each fold
    predictions: Any = field(compare=False, repr=False)  #: "chosen" class probabilities; None for distributions
    n_folds: int  #: number of folds
    seed: int  #: of the split
    n_samples: int  #: samples given
    seconds: float = field(compare=False)  #: wall time

    def plot(self, ax: Any = None) -> Any:
        """Draw the scores with their intervals, as `kcalib.Comparison.plot`.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            The axes to draw on; a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.

        Raises
        ------
        ImportError
            If matplotlib is missing; ``pip install 'kcalib[plot]'``.
        """
        return self.comparison.plot(ax)

    def _summary(self) -> Summary:
        gain = self.comparison.difference(CHOSEN, AS_GIVEN)
        low, high = gain.confidence_interval
        interval = f"{100 * self.comparison.confidence_level:g} % interval [{low:.3g}, {high:.3g}]"
        below = self.comparison._summary()
        notes = (f"{self.score} of the choice minus that as given: {gain.difference:.3g}, {interval}", *below.notes)
        if self.stopped:
            notes += (f"stopped early, as too far behind to be chosen: {', '.join(self.stopped)}",)
        return replace(below, title=f"recalibration: {self.name}; {below.title}", notes=notes)


def choose(
    y_true: Any,
    y_pred: Any,
    candidates: Mapping[str, Recalibrator] | None = None,
    *,
    score: str | None = None,
    n_folds: int = 5,
    seed: int = 0,
    confidence_level: float = 0.95,
    max_seconds: float | None = None,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
) -> Choice:
    r"""Choose a recalibrator by a nested cross-validation of a proper score.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        Labelled predictions, as in `kcalib.skce`, which should not be those of the training set.
    candidates : mapping of str to Recalibrator, optional
        The candidates besides the predictions as given. Default for class probabilities: temperature scaling and
        isotonic regression; up to 100 classes also Platt scaling, beta calibration and Venn-Abers predictors; for 3 to
        20 classes also vector scaling and Dirichlet calibration with three regularisations. Default for distributions:
        temperature and scale if the family has them, and quantile recalibration if the score is "crps".
    score : {"log_loss", "brier_score", "crps", "log_score"}, optional
        "log_loss" (default) or "brier_score" for class probabilities; "crps" (default) or "log_score" for
        distributions.
    n_folds : int
        Number of random folds, with balanced classes; from 3 to the number of samples.
    seed : int
        Seed of the split.
    confidence_level : float
        Level of the intervals of the comparison.
    max_seconds : float, optional
        Raise a TimeoutError as soon as all fits are expected to take longer.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights of the samples, for fits and scores.

    Returns
    -------
    Choice
        The name and the recalibrator, fitted to all samples, and a `kcalib.Comparison` of scores.

    Raises
    ------
    TypeError
        As `kcalib.skce`; if a candidate is not a `Recalibrator`.
    ValueError
        As `kcalib.skce` and `kcalib.compare`; if there is no candidate (for counts, there is no default) or none can be
        fitted; if a candidate is named "as given" or "chosen"; if `score` does not fit the predictions; if a number is
        out of range.
    TimeoutError
        If it would take longer than `max_seconds`.

    Warns
    -----
    UserWarning
        If candidates cannot be fitted to all samples or to some folds; they are left out. The warnings of the
        candidates are also raised.

    Notes
    -----
    Each fold is predicted by candidates that were fitted to the other folds, so every candidate has a score for each
    sample. The candidate with the lowest mean score is chosen if it is better than the predictions as given by more
    than a standard error of the difference; calibrated predictions therefore usually stay unchanged. The mean of the
    chosen candidate is optimistic, more so with more candidates. Therefore the choice itself is cross-validated: for
    each fold it is repeated with fits that leave out this fold and one more (each such fit serves two folds). "chosen"
    in the comparison estimates the performance of the whole procedure; its difference from "as given" is the gain by
    recalibration.

    Candidates are fitted (n_folds + 1) n_folds / 2 + 1 times, starting from the fit to all samples. A candidate is not
    fitted any more for a fold (`stopped`) if its mean without this fold, over the parts predicted so far, is above the
    lowest by more than three standard errors of the difference. Intervals are those of `kcalib.compare` for the
    predictions of the folds; they ignore that fits of different folds share samples. With weights, scores are weighted
    means, with t-intervals from the weighted deviations of the samples.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.recalibration import IsotonicCalibration, TemperatureScaling, choose
    >>> rng = np.random.default_rng(0)
    >>> true = rng.dirichlet(np.ones(3), size=1500)
    >>> y = (rng.uniform(size=(1500, 1)) > true.cumsum(axis=1)).sum(axis=1)
    >>> p = true**2 / np.sum(true**2, axis=1, keepdims=True)       # too sure of itself
    >>> choice = choose(y, p, {"temperature": TemperatureScaling(), "isotonic": IsotonicCalibration()})
    >>> choice.name, round(choice.recalibrator.temperature_)
    ('temperature', 2)
    >>> gain = choice.comparison.difference("chosen", "as given")
    >>> gain.confidence_interval.high < 0
    True
    """
    start = time.perf_counter()
    n_folds, seed = check_integer("n_folds", n_folds, 3), check_integer("seed", seed, 0)
    check_fraction("confidence_level", confidence_level)
    if isinstance(y_pred, Categorical):
        y_pred, classes = unwrap_categorical(y_pred, classes, from_logits)
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, sample_weight=sample_weight)
    if n_folds > data.n:
        raise ValueError(f"`n_folds` is {n_folds}, but there are {data.n} samples; pass fewer folds, or more samples")
    samples = samples_of(data, y_pred, from_logits)
    score = next(iter(samples.scores)) if score is None else check_choice("score", score, tuple(samples.scores))
    checked_candidates = _check_candidates(default_candidates(data, score) if candidates is None else candidates)
    fold = samples.folds(n_folds, seed)
    rows = [np.flatnonzero(fold == k) for k in range(n_folds)]
    limit = math.inf if max_seconds is None else check_positive("max_seconds", max_seconds)
    results = _cross_validate(samples, checked_candidates, score, rows, start, limit)
    for recalibrator in results.fitted.values() if data.has_classes else ():
        recalibrator._set_classes(data, y_pred)
    comparison = samples.make_comparison(results.parts, rows, score, confidence_level, start)
    name = results.name
    return Choice(
        name=name,
        recalibrator=results.fitted.get(name),
        score=score,
        comparison=comparison,
        left_out=tuple(name for name in checked_candidates if name not in results.fitted),
        stopped=results.stopped,
        chosen_in_folds=results.best,
        predictions=_in_sample_order(results.parts[CHOSEN], rows) if data.has_classes else None,
        n_folds=n_folds,
        seed=seed,
        n_samples=data.n,
        seconds=time.perf_counter() - start,
    )


@dataclass(frozen=True)
class Labelled(ABC):
    """Predictions with targets, split into parts."""

    y: np.ndarray  # labels 0..m-1, or targets
    y_pred: Any  # probabilities or logits of all classes, shape (n, m), or a distribution
    from_logits: bool
    weight: np.ndarray | None

    scores: ClassVar[dict[str, Callable[..., Any]]]  # functions that give the losses of checked data

    @abstractmethod
    def predictions(self, rows: np.ndarray) -> Any:
        """Return the predictions of some samples, as given."""

    @abstractmethod
    def folds(self, n_folds: int, seed: int) -> np.ndarray:
        """Return the fold of each sample."""

    def make_comparison(
        self, parts: dict[str, list[Any]], rows: list[np.ndarray], score: str, confidence_level: float, start: float
    ) -> Comparison:
        """Return the comparison of predictions in parts."""
        losses = [
            _in_sample_order([self.losses(fold, part, score) for fold, part in zip(rows, predicted, strict=True)], rows)
            for predicted in parts.values()
        ]
        if self.weight is not None:
            losses = [_weight_losses(values, self.weight) for values in losses]
        limits = ConfidenceInterval(-math.inf if score == "log_score" else 0.0, math.inf)
        measured = means(losses, confidence_level, limits, None)
        data = prepare(self.y, self.y_pred, from_logits=self.from_logits)
        return compared(tuple(parts), score, confidence_level, measured, data, data.n, start)

    def as_given(self, rows: np.ndarray) -> Any:
        """Return the predictions of some samples in the form of recalibrated ones."""
        return self.predictions(rows)

    def losses(self, rows: np.ndarray, predictions: Any, score: str) -> np.ndarray:
        """Return the loss of the prediction of each of some samples."""
        return arrays.to_compute_device(self.scores[score](prepare(self.y[rows], predictions)), np.float64)

    def weighted_losses(self, rows: np.ndarray, predictions: Any, score: str) -> np.ndarray:
        """Return the losses of the predictions of some samples times their weights."""
        losses = self.losses(rows, predictions, score)
        return losses if self.weight is None else self.weight[rows] * losses

    def fit(self, candidate: Recalibrator, rows: np.ndarray, near: tuple[tuple[int, Any], ...] = ()) -> Recalibrator:
        """Return a copy of the candidate, fitted to some samples, starting from a sum of other fits if it can."""
        copy: Recalibrator = candidate.clone()
        weight = None if self.weight is None else self.weight[rows]
        return copy.fit(self.y[rows], self.predictions(rows), sample_weight=weight, from_logits=self.from_logits)

    def repair(self, recalibrator: Recalibrator, rows: np.ndarray) -> Any:
        """Return the recalibrated predictions of some samples."""
        return recalibrator.transform(self.predictions(rows), from_logits=self.from_logits)


class WithLabels(Labelled):
    """Class probabilities or logits."""

    scores: ClassVar = {"log_loss": log_losses, "brier_score": square_residuals}

    @functools.cached_property
    def samples(self) -> ClassSamples:
        """All samples, which share logarithms with their subsets."""
        data: Any = prepare(self.y, self.y_pred, from_logits=self.from_logits, sample_weight=self.weight)
        return ClassSamples.of(data, self.y_pred, self.from_logits)

    def fit(self, candidate: Recalibrator, rows: np.ndarray, near: tuple[tuple[int, Any], ...] = ()) -> Recalibrator:
        has_weight = self.weight is None or self.weight[rows].any()
        if not has_weight or type(candidate).fit is not ClassRecalibrator.fit:
            return super().fit(candidate, rows)
        copy: ClassRecalibrator = candidate.clone()
        copy._check_parameters()
        copy._near = near
        copy._fit_samples(self.samples.take(rows))
        copy._near = ()
        return copy

    def repair(self, recalibrator: Recalibrator, rows: np.ndarray) -> Any:
        if isinstance(recalibrator, ClassRecalibrator) and type(recalibrator).transform is ClassRecalibrator.transform:
            return recalibrator._transform_samples(self.samples.take(rows))
        return super().repair(recalibrator, rows)

    def predictions(self, rows: np.ndarray) -> Any:
        return self.y_pred[rows]

    def losses(self, rows: np.ndarray, predictions: Any, score: str) -> np.ndarray:
        losses = super().losses(rows, predictions, score)
        return 0.5 * losses if score == "brier_score" and predictions.shape[1] == 2 else losses

    def as_given(self, rows: np.ndarray) -> Any:
        return prepare(self.y[rows], self.y_pred[rows], from_logits=self.from_logits).as_given()[1]

    def folds(self, n_folds: int, seed: int) -> np.ndarray:
        order = np.random.default_rng(seed).permutation(len(self.y))
        return _deal_folds(order[np.argsort(self.y[order], kind="stable")], n_folds)

    def make_comparison(
        self, parts: dict[str, list[Any]], rows: list[np.ndarray], score: str, confidence_level: float, start: float
    ) -> Comparison:
        if self.weight is not None:
            return super().make_comparison(parts, rows, score, confidence_level, start)
        predicted = {name: _in_sample_order(fold_predictions, rows) for name, fold_predictions in parts.items()}
        return compare(self.y, predicted, metric=score, confidence_level=confidence_level)


class WithTargets(Labelled):
    """Distributions, whose families may differ between parts."""

    scores: ClassVar = {"crps": crps_values, "log_score": log_score_values}

    def predictions(self, rows: np.ndarray) -> Any:
        return self.y_pred.take(rows)

    def folds(self, n_folds: int, seed: int) -> np.ndarray:
        return _deal_folds(np.random.default_rng(seed).permutation(len(self.y)), n_folds)


def _deal_folds(order: np.ndarray, n_folds: int) -> np.ndarray:
    fold = np.empty(len(order), dtype=np.int64)
    fold[order] = np.arange(len(order)) % n_folds
    return fold


def _in_sample_order(parts: list[np.ndarray], rows: list[np.ndarray]) -> np.ndarray:
    """Return the values of all parts in the order of the samples."""
    return np.concatenate(parts)[np.argsort(np.concatenate(rows))]


def _weight_losses(losses: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return numbers whose mean is the weighted mean of the losses, with the spread of its deviations."""
    mean = float(weight @ losses) / float(weight.sum())
    return mean + weight / weight.mean() * (losses - mean)


def samples_of(data: Any, y_pred: Any, from_logits: bool) -> Labelled:
    """Return the samples of checked data, with the predictions `y_pred` of the user."""
    arrays.check_not_cuda(data.probabilities if data.has_classes else data.y, "a choice of recalibrators")
    weight = None if data.sample_weight is None else arrays.to_compute_device(data.sample_weight, np.float64)
    if data.has_classes:
        predictions = two_columns(y_pred) if from_logits else arrays.to_compute_device(data.probabilities, np.float64)
        return WithLabels(arrays.to_compute_device(data.labels, np.int64), predictions, from_logits, weight)
    y, prediction = data.as_given()
    return WithTargets(arrays.to_compute_device(y, np.float64), prediction, False, weight)


def default_candidates(data: Any, score: str) -> dict[str, Recalibrator]:
    """Return the default candidates for these data, the fastest first."""
    candidates = dict[str, Recalibrator]()
    if data.has_classes:
        candidates |= {"temperature": TemperatureScaling(), "isotonic": IsotonicCalibration()}
        if data.m <= MOST_OF_EACH:
            candidates |= {"platt": PlattScaling(), "beta": BetaCalibration(), "venn_abers": VennAbers()}
        if 2 < data.m <= MOST_OF_MATRICES:
            candidates["vector"] = VectorScaling()
            sizes = (10.0, 1.0, 0.1)  # each fit starts from the one before
            candidates |= {f"dirichlet_{size:g}": DirichletCalibration(regularization=size) for size in sizes}
        return candidates
    family = type(data.prediction)
    if temper.dispatch(family) is not temper.dispatch(object):
        candidates["temperature"] = TemperatureScaling()
    if shift_and_scale.dispatch(family) is not shift_and_scale.dispatch(object):
        candidates["scale"] = ScaleCalibration()
    if score == "crps" and data.n_dims == 1 and data.prediction.support != "count":
        candidates["quantile"] = QuantileRecalibration()
    if not candidates:
        raise ValueError(
            f"kcalib has no recalibrator of {family.__name__} predictions for the score {score!r}; pass candidates= "
            "of your own"
        )
    return candidates


def _check_candidates(candidates: Any) -> dict[str, Recalibrator]:
    if not isinstance(candidates, Mapping):
        raise TypeError(f"`candidates` is {type(candidates).__name__}, expected a mapping of names to recalibrators")
    if not candidates:
        raise ValueError("`candidates` is empty, expected at least one recalibrator that can repair these predictions")
    for name, candidate in candidates.items():
        if not isinstance(name, str):
            raise TypeError(f"`candidates` has the key {name!r}, expected names that are strings")
        if name in (AS_GIVEN, CHOSEN):
            raise ValueError(f"`candidates` has the key {name!r}, which the result uses itself; pass another name")
        if not isinstance(candidate, Recalibrator):
            description = f"the class {candidate.__name__}" if isinstance(candidate, type) else type(candidate).__name__
            raise TypeError(
                f"`candidates[{name!r}]` is {description}, expected a Recalibrator, such as "
                "kcalib.recalibration.TemperatureScaling()"
            )
    return dict(candidates)


class CrossValidated(NamedTuple):
    """Predictions of folds by candidates, and by the choice, that were not fitted to them."""

    parts: dict[str, list[Any]]
    fitted: dict[str, Recalibrator]  # to all samples
    name: str  # the choice
    best: tuple[str, ...]  # the choice without each fold
    stopped: tuple[str, ...]


def _cross_validate(
    samples: Labelled,
    candidates: dict[str, Recalibrator],
    score: str,
    rows: list[np.ndarray],
    start: float,
    limit: float,
) -> CrossValidated:
    n, n_folds = len(samples.y), len(rows)
    all_rows = np.arange(n)
    parts: dict[str, list[Any]] = {AS_GIVEN: [samples.as_given(fold) for fold in rows]}
    losses = {AS_GIVEN: _losses_of(samples, rows, parts[AS_GIVEN], score)}
    # Losses of each sample without this fold and its own; infinite if a candidate was stopped.
    inner = {AS_GIVEN: np.tile(losses[AS_GIVEN], (n_folds, 1))}
    fitted: dict[str, Recalibrator] = {}
    outside: dict[str, list[Recalibrator]] = {}  # without each fold
    failed: dict[str, Exception] = {}
    pairs = sorted(itertools.combinations(range(n_folds), 2), key=lambda pair: pair[1] - pair[0])
    with TerminalProgress("recalibration") as progress:

        def attempt(name: str, action: Callable[[], None], n_fits: float) -> None:
            try:
                action()
            except (TypeError, ValueError) as error:
                failed[name] = error
            share = n_fits / (1 + n_folds + len(pairs))
            expected = (time.perf_counter() - start) / share
            if expected > limit:
                raise TimeoutError(
                    f"a choice of recalibrators would take about {expected:.0f} s, more than `max_seconds`, {limit:g}; "
                    "pass fewer samples, fewer candidates=, or more seconds"
                )
            if progress is not None:
                progress(share)

        def fit_outside(name: str) -> None:
            alike = [other for other in fitted.values() if type(other) is type(candidates[name])]
            recalibrator = samples.fit(candidates[name], all_rows, tuple((1, other) for other in alike[-1:]))
            fitted[name], parts[name], outside[name] = recalibrator, [], []
            for fold in rows:
                outside[name].append(samples.fit(candidates[name], np.delete(all_rows, fold), ((1, recalibrator),)))
                parts[name].append(samples.repair(outside[name][-1], fold))
            losses[name] = _losses_of(samples, rows, parts[name], score)
            inner[name] = np.full((n_folds, n), np.inf)

        def fit_without(name: str, first: int, second: int) -> None:
            others = np.delete(all_rows, np.concatenate([rows[first], rows[second]]))
            near = (1, outside[name][first]), (1, outside[name][second]), (-1, fitted[name])
            recalibrator = samples.fit(candidates[name], others, near)
            for without, scored in ((first, rows[second]), (second, rows[first])):
                repaired = samples.repair(recalibrator, scored)
                inner[name][without, scored] = samples.weighted_losses(scored, repaired, score)

        for i, name in enumerate(candidates):
            attempt(name, functools.partial(fit_outside, name), (1 + n_folds) * (1 + i) / len(candidates))
        runs = {name: np.full(n_folds, True) for name in candidates}
        seen = [np.zeros(n, dtype=bool) for _ in rows]
        for step, (first, second) in enumerate(pairs):
            for name, is_running in runs.items():
                if name not in failed and (is_running[first] or is_running[second]):
                    attempt(name, functools.partial(fit_without, name, first, second), 2 + n_folds + step)
            for without, scored in ((first, rows[second]), (second, rows[first])):
                seen[without][scored] = True
                seen_losses = {
                    name: values[without, seen[without]]
                    for name, values in inner.items()
                    if name == AS_GIVEN or (name not in failed and runs[name][without])
                }
                for name in _find_behind(seen_losses):
                    runs[name][without] = False
    fitted = {name: recalibrator for name, recalibrator in fitted.items() if name not in failed}
    reasons = "; ".join(f"`candidates[{name!r}]`: {failed[name]}" for name in candidates if name in failed)
    if not fitted:
        kind = TypeError if all(isinstance(error, TypeError) for error in failed.values()) else ValueError
        raise kind(f"no candidate can be fitted to these samples: {reasons}")
    if failed:
        warn(
            f"candidates that cannot be fitted to these samples, or to parts of them, are left out: {reasons}",
            UserWarning,
        )
    parts = {name: values for name, values in parts.items() if name not in failed}
    losses = {name: losses[name] for name in parts}
    other_rows = [np.delete(all_rows, fold) for fold in rows]
    best = [_choose_name({name: inner[name][k, others] for name in parts}) for k, others in enumerate(other_rows)]
    parts[CHOSEN] = [parts[name][k] for k, name in enumerate(best)]
    stopped = tuple(name for name in fitted if not runs[name].all())
    return CrossValidated(parts, fitted, _choose_name(losses), tuple(best), stopped)


def _find_behind(losses: dict[str, np.ndarray]) -> list[str]:
    """Return the names of losses whose mean is clearly above the lowest."""
    best = min(losses.values(), key=lambda values: float(values.sum()))
    if len(best) < MIN_SEEN:
        return []
    gaps = {name: values - best for name, values in losses.items() if name != AS_GIVEN and values is not best}
    return [
        name
        for name, gap in gaps.items()
        if np.isfinite(gap).all() and gap.mean() * math.sqrt(len(gap)) > MAX_BEHIND * gap.std(ddof=1)
    ]


def _choose_name(losses: dict[str, np.ndarray]) -> str:
    """Return the name with the smallest mean, "as given" if that is within a standard error of the difference."""
    best = min(losses, key=lambda name: float(losses[name].sum()))
    gains = losses[AS_GIVEN] - losses[best]
    is_clear = float(np.mean(gains)) * math.sqrt(len(gains)) > float(np.std(gains, ddof=1))
    return best if is_clear else AS_GIVEN


def _losses_of(samples: Labelled, rows: list[np.ndarray], parts: list[Any], score: str) -> np.ndarray:
    """Return the weighted losses of all samples, predicted by folds."""
    return _in_sample_order(
        [samples.weighted_losses(fold, part, score) for fold, part in zip(rows, parts, strict=True)], rows
    )
