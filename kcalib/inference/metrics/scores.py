"""Metrics that are means of a loss of each sample: Brier score, log loss, CRPS, log score.

For class probabilities and predicted counts the losses of other targets are known: how they would change the mean, and
how losses vary under either model's predictions (`possible`). If few relevant targets were observed, this is more
reliable than the sample variance of the losses.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import OptionError
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._pairs import statistics
from kcalib.distributions import Quantiles
from kcalib.distributions.wrappers import Wrapper
from kcalib.estimators.forecasts.crps import check_fair, crps_values, has_members
from kcalib.estimators.forecasts.quantities import event_of, has_density, quantiles_of
from kcalib.estimators.forecasts.scores import finite_log_score_values
from kcalib.estimators.scores import log_losses, square_residuals
from kcalib.inference.metrics import certainty
from kcalib.inference.metrics.measured import (
    EPSILON,
    ROUNDINGS,
    Estimate,
    Metric,
    MetricResult,
    SharedOptions,
    join_distinct,
    labels_are_shared,
)
from kcalib.inference.metrics.possible import (
    EVENTS,
    Possibilities,
    Possible,
    Table,
    pairs,
    possibilities,
    singles,
)
from kcalib.results import ConfidenceInterval

LEAST_TAIL = 1e-10  # counts outside of these quantiles are ignored
MOST_COUNTS = 4096  # between them; with more the sample variance is used
LEAST_LOG = -1e4
ROWS_AT_ONCE = 2**8  # samples whose counts are tabulated together
MOST_ENTRIES = 2**20  # of tables of counts; as many samples as fit represent all
ENTRIES_AT_ONCE = 2**20  # of losses by label in memory


class MeanMetric(Metric):
    """Base class of metrics that are means of a loss of each sample."""

    @abstractmethod
    def losses(self, model: Any) -> Array:
        """Return the loss of each sample, shape (n,)."""

    def range_of(self, model: Any) -> float:
        """Return the largest possible difference of two losses."""
        return math.inf


@dataclass(frozen=True)
class BrierScore(MeanMetric):
    """`kcalib.brier_score`."""

    name: ClassVar[str] = "brier_score"

    def losses(self, model: Classification) -> Array:
        return (0.5 if model.m == 2 else 1.0) * arrays.to_compute_device(square_residuals(model))

    def range_of(self, model: Classification) -> float:
        return brier_law([model])[0].high

    def measure(self, data: Sequence[Any], confidence_level: float, options: SharedOptions) -> MetricResult:
        return means([self.losses(model) for model in data], confidence_level, *brier_law(data))


@dataclass(frozen=True)
class LogLoss(MeanMetric):
    """`kcalib.log_loss`."""

    name: ClassVar[str] = "log_loss"

    def losses(self, model: Classification) -> Array:
        return arrays.to_compute_device(log_losses(model))

    def range_of(self, model: Classification) -> float:
        return -math.log(model.input_epsilon)

    def measure(self, data: Sequence[Any], confidence_level: float, options: SharedOptions) -> MetricResult:
        losses = [self.losses(model) for model in data]
        limits, possible = log_loss_law(data)
        largest = max(float(values.max()) for values in losses)  # with logits it can exceed that of a probability
        return means(losses, confidence_level, limits._replace(high=max(limits.high, largest)), possible)


def brier_law(data: Sequence[Classification]) -> tuple[ConfidenceInterval, Possibilities]:
    """Return the limits of a sample's Brier score, and its changes by other labels."""
    scale = 0.5 if data[0].m == 2 else 1.0

    def by_label(model: Classification, p: Array) -> Array:
        return -2 * scale * p

    return ConfidenceInterval(0.0, 2 * scale), _of_labels(data, by_label)


def log_loss_law(data: Sequence[Classification]) -> tuple[ConfidenceInterval, Possibilities]:
    """Return the limits of a sample's log loss, and its changes by other labels."""
    largest = max(-math.log(model.input_epsilon) for model in data)

    def by_label(model: Classification, p: Array) -> Array:
        return -arrays.namespace(p).log(p.clip(model.input_epsilon, 1.0))

    return ConfidenceInterval(0.0, largest), _of_labels(data, by_label)


@dataclass(frozen=True)
class CRPS(MeanMetric):
    """The mean CRPS, or energy score, of predicted distributions: `kcalib.crps`.

    Parameters
    ----------
    fair : bool
        Whether to score ``Samples`` by the distribution that their members are drawn from (`kcalib.crps`): ensembles of
        10 and of 50 members from one distribution then have the same expected score. Other distributions are not
        affected.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> from kcalib.distributions import Samples
    >>> values = np.random.default_rng(0).normal(size=(1000, 61))
    >>> models = {"10 members": Samples(values[:, 1:11]), "50 members": Samples(values[:, 11:])}
    >>> metrics = "crps", kcalib.methods.CRPS(fair=True)
    >>> [kcalib.compare(values[:, 0], models, metric=m).difference(*models).distinguishable for m in metrics]
    [True, False]
    """

    fair: bool = False

    name: ClassVar[str] = "crps"
    kinds: ClassVar[tuple[type[Data], ...]] = (Forecasts,)

    def __post_init__(self) -> None:
        check_fair(self.fair)

    def check_models(self, models: Sequence[Any]) -> None:
        if self.fair and not any(not model.has_classes and has_members(model) for model in models):
            raise OptionError("fair", "is for Samples, and no model predicts these; leave it out")
        _check_levels([model.prediction for model in models])

    def losses(self, model: Forecasts) -> Array:
        return crps_values(model, fair=self.fair and has_members(model))

    def measure(self, data: Sequence[Any], confidence_level: float, options: SharedOptions) -> MetricResult:
        return _scores(data, self.losses, _crps_by_count, confidence_level, ConfidenceInterval(0.0, math.inf))


@dataclass(frozen=True)
class LogScore(MeanMetric):
    """`kcalib.log_score`."""

    name: ClassVar[str] = "log_score"
    kinds: ClassVar[tuple[type[Data], ...]] = (Forecasts,)

    def check_models(self, models: Sequence[Any]) -> None:
        has_mass = [_has_mass(model) for model in models]
        for model, other in zip(models[1:], has_mass[1:], strict=True):
            for i in np.flatnonzero(other != has_mass[0])[:1]:
                discrete, continuous = (model, models[0]) if other[i] else (models[0], model)
                raise OptionError(
                    "metric",
                    f"is 'log_score', but the target of row {i} has a probability under "
                    f"{type(discrete.prediction).__name__} and a density under "
                    f"{type(continuous.prediction).__name__}, which are not comparable; use 'crps'",
                )

    def losses(self, model: Forecasts) -> Array:
        return finite_log_score_values(model)

    def measure(self, data: Sequence[Any], confidence_level: float, options: SharedOptions) -> MetricResult:
        return _scores(data, self.losses, np.negative, confidence_level, ConfidenceInterval(-math.inf, math.inf))


def _check_levels(predictions: Sequence[Any]) -> None:
    """Refuse quantiles with distributions or quantiles of other levels: their CRPS is a score at their levels."""
    levels = [tuple(p.scored_levels.tolist()) if isinstance(p, Quantiles) else () for p in predictions]
    for prediction, of_prediction in zip(predictions[1:], levels[1:], strict=True):
        if of_prediction != levels[0]:
            common = set.intersection(*(set(own) for own in levels if own))
            remedy = f"pass Quantiles(levels, y_pred.quantile(levels)) of each model, levels = {sorted(common)}"
            raise OptionError(
                "metric",
                f"is 'crps', but `y_preds` are {_name(predictions[0])} and {_name(prediction)}, whose scores are not "
                f"comparable; {remedy if common else 'predict the same levels by each model'}",
            )


def _name(prediction: Any) -> str:
    levels = f" at the levels {prediction.levels.tolist()}" if isinstance(prediction, Quantiles) else ""
    return type(prediction).__name__ + levels


def _has_mass(model: Forecasts) -> np.ndarray:
    """Return whether each target has positive probability under the prediction, shape (n,)."""
    prediction: Any = model.prediction
    if prediction.support == "count" or not isinstance(prediction, Wrapper):
        return np.full(model.n, prediction.support == "count")
    y = event_of(model)
    return np.asarray(arrays.to_host(prediction.cdf(y) > prediction.cdf_left(y)))


def _crps_by_count(log_p: Array) -> Array:
    """Return the CRPS of each count, up to a constant of each row: the next count adds 2 F - 1."""
    xp = arrays.namespace(log_p)
    steps = 2 * xp.cumsum(xp.exp(log_p), axis=1) - 1
    return xp.cumsum(steps, axis=1) - steps


def _scores(
    data: Sequence[Forecasts],
    score: Callable[[Forecasts], Array],
    by_count: Callable[[Array], Array],
    confidence_level: float,
    limits: ConfidenceInterval,
) -> MetricResult:
    measured = means([score(model) for model in data], confidence_level, limits, _of_counts(data, by_count))
    return replace(
        measured, described={"prediction": join_distinct(", ", (model.describe()["prediction"] for model in data))}
    )


def _of_labels(data: Sequence[Classification], by_label: Callable[[Classification, Array], Array]) -> Possibilities:
    """Return possibilities; `by_label` gives losses, up to a constant of each row, from probabilities, (rows, m)."""

    def table(rows: slice) -> Table:
        labels = [arrays.to_compute_device(model.labels[rows]) for model in data]
        laws = [arrays.to_compute_device(model.probabilities[rows, :]).astype(np.float64) for model in data]
        losses, everywhere = [by_label(model, p) for model, p in zip(data, laws, strict=True)], laws[0] > -1
        return Table(losses, laws, labels, [everywhere] * len(data))

    n, step = data[0].n, max(1, ENTRIES_AT_ONCE // data[0].m)
    tables = (table(slice(begin, min(n, begin + step))) for begin in range(0, n, step))
    return possibilities(len(data), tables, shared=labels_are_shared(data))


def _of_counts(data: Sequence[Forecasts], by_count: Callable[[Array], Array]) -> Possibilities | None:
    """Return the possibilities of counts that a model predicts or that were observed; None unless all predict counts.

    `by_count` gives losses, up to a constant of each row, from log probabilities of successive counts. Near counts are
    those up to one beyond a model's quantiles at 1 / n on either side: one of n counts is expected to be further out.
    """
    n = data[0].n
    if not all(model.prediction.support == "count" and has_density(model.prediction) for model in data):
        return None
    order = np.argsort(np.arange(n) % -(-n // ROWS_AT_ONCE), kind="stable")  # the first rows are spread over all

    def tables() -> Iterator[Table]:
        begin = n_entries = 0
        while begin < n and n_entries < MOST_ENTRIES:
            rows = order[begin : begin + ROWS_AT_ONCE]
            models = [model.take(arrays.like(rows, model.reference)) for model in data]
            y = arrays.to_compute_device(models[0].y)
            xp, tails = arrays.namespace(y), np.array([LEAST_TAIL, 1 - LEAST_TAIL])
            ends = xp.concatenate([y, *(quantiles_of(model, tails) for model in models)], axis=1)
            first = xp.maximum(ends.min(axis=1) - 1, 0.0)
            width = int((ends.max(axis=1) - first).max()) + 2
            if width > MOST_COUNTS:
                raise _TooManyCountsError
            counts = first[:, None] + xp.arange(width)
            logs = [_log_probabilities(model, counts) for model in models]
            laws = [xp.exp(log_p) for log_p in logs]
            near = [_is_near(p, 1 / n) for p in laws]
            observed = (y[:, 0] - first).astype(np.int64)
            yield Table([by_count(log_p) for log_p in logs], laws, [observed] * len(data), near)
            begin, n_entries = begin + len(rows), n_entries + counts.size

    try:
        possible = possibilities(len(data), tables())
    except _TooManyCountsError:
        return None
    return {models: replace(law, events=law.events * n / len(law.most)) for models, law in possible.items()}


class _TooManyCountsError(Exception):
    """A model predicts more than `MOST_COUNTS` counts for a sample."""


def _log_probabilities(model: Forecasts, counts: Array) -> Array:
    """Return log probabilities of some counts in each row, shape (rows, counts); finite for impossible counts."""
    prediction: Any = model.prediction
    rows = np.repeat(np.arange(model.n), counts.shape[1])
    repeated = prediction.take(arrays.like(rows, model.reference))
    log_p = repeated.log_density(arrays.like(counts.reshape(-1), model.y, model.y.dtype))
    log_p = arrays.to_compute_device(log_p, np.float64).reshape(counts.shape)
    return arrays.namespace(log_p).maximum(log_p, LEAST_LOG)


def _is_near(p: Array, tail: float) -> Array:
    """Return whether counts are at most one beyond the quantiles at `tail` on either side, from probabilities."""
    xp = arrays.namespace(p)
    lower, upper = xp.cumsum(p, axis=1), xp.cumsum(p[:, ::-1], axis=1)[:, ::-1]
    near = xp.ones(p.shape, dtype=bool)
    near[:, 1:] &= upper[:, :-1] > tail
    near[:, :-1] &= lower[:, 1:] > tail
    return near


def means(
    losses: Sequence[Array], confidence_level: float, limits: ConfidenceInterval, possible: Possibilities | None
) -> MetricResult:
    """Return means and differences of losses of each model, shape (n,), which are between the limits."""
    losses = [arrays.to_compute_device(values).astype(np.float64, copy=False) for values in losses]
    width = limits.high - limits.low
    of_differences = ConfidenceInterval(-width, width)
    values, differences = [], []
    for (i,) in singles(len(losses)):
        result = None if possible is None else possible.get((i,))
        values.append(_mean(losses[i], confidence_level, limits, result, 0.0))
    for i, j in pairs(len(losses)):
        result = None if possible is None else possible.get((i, j))
        resolution = ROUNDINGS * EPSILON * float((abs(losses[i]) + abs(losses[j])).mean())
        differences.append(_mean(losses[i] - losses[j], confidence_level, of_differences, result, resolution))
    few = len(losses[0]) <= certainty.FEW
    rare = any(law.events < EVENTS for law in (possible or {}).values())
    return MetricResult(
        values=values,
        differences=differences,
        estimator="mean",
        intervals=("by the signs of deviations, paired" if few else "t, paired")
        + (", allowing for targets too rare to be seen" if rare else ""),
    )


def _mean(
    values: Array, confidence_level: float, limits: ConfidenceInterval, possible: Possible | None, resolution: float
) -> Estimate:
    """Return the mean of losses, or of their differences, which is between `limits`."""
    mean, error = statistics.mean_and_standard_error(values)
    assert error is not None  # there are at least four samples
    few = arrays.to_host(values) if len(values) <= certainty.FEW else None
    return mean_estimate(mean, error, len(values), few, confidence_level, limits, possible, resolution)


def mean_estimate(
    mean: float,
    error: float,
    n: int,
    few: np.ndarray | None,
    confidence_level: float,
    limits: ConfidenceInterval,
    possible: Possible | None,
    resolution: float,
) -> Estimate:
    """Return the same from mean and standard error of n losses, and from the losses if they are few.

    `possible` may be for a subset that represents all samples.
    """
    spread = error > max(resolution, ROUNDINGS * EPSILON * abs(mean))
    if possible is not None:
        error = max(error, math.sqrt(possible.variance / n))
    if few is not None:
        limits_and_pvalue = certainty.compute_sign_flip_limits(few, confidence_level, resolution)
    else:
        limits_and_pvalue = certainty.compute_student_limits(mean, error, n - 1, confidence_level)
    other_limits = None
    if abs(mean) <= resolution and possible is not None and float(possible.most.max() + possible.least.max()) == 0:
        return certainty.make_equal(mean, error)
    if possible is not None and (possible.events < EVENTS or not spread):
        other_limits = _unseen(mean, n, confidence_level, possible)
    elif possible is None and not spread and abs(mean) > resolution:
        other_limits = certainty.compute_unseen_limits(mean, n, confidence_level, limits, order=1)
    if other_limits is not None:
        limits_and_pvalue = (
            min(limits_and_pvalue[0], other_limits[0]),
            max(limits_and_pvalue[1], other_limits[1]),
            max(limits_and_pvalue[2], other_limits[2]),
        )
    return certainty.limit_certainty(mean, error, limits_and_pvalue, n, confidence_level, limits, resolution)


def _unseen(mean: float, n: int, confidence_level: float, possible: Possible) -> tuple[float, float, float]:
    """Return low, high, and the p-value of a mean if labels that are too rare to be observed were different.

    Given the predictions, n labels show no event with probability of at least `tail` only if their probabilities sum to
    at most n `unseen_share`. In the worst case these belong to the samples with the largest changes.
    """
    most, least = (_Descending.of(changes) for changes in (possible.most, possible.least))
    count = len(most.values)  # n, or the size of the subset
    number = count * certainty.unseen_share(n, (1 - confidence_level) / 2)
    needed = (most if mean < 0 else least).number_of(count * abs(mean))
    pvalue = certainty.unseen_pvalue(n, needed / count)
    return mean - least.sum_of(number) / count, mean + most.sum_of(number) / count, pvalue


@dataclass(frozen=True)
class _Descending:
    """Nonnegative numbers in descending order, and their cumulative sums; shape (n,)."""

    values: Array
    sums: Array

    @classmethod
    def of(cls, values: Array) -> _Descending:
        values = arrays.namespace(values).sort(values)[::-1]
        return cls(values, statistics.cumulative_sum(values))

    def sum_of(self, number: float) -> float:
        """Return the sum of the first `number`, with a fraction of the last one."""
        count = int(number)
        before = float(self.sums[count - 1]) if count else 0.0
        return before + (float(self.values[count]) * (number - count) if count < len(self.values) else 0.0)

    def number_of(self, total: float) -> float:
        """Return how many of the first numbers have the sum `total`, with a fraction; infinite if all are too few."""
        count = int((self.sums <= total).sum())
        if count == len(self.values):
            return math.inf
        before = float(self.sums[count - 1]) if count else 0.0
        return count + (total - before) / float(self.values[count])
