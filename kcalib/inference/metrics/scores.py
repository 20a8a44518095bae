"""Metrics that are means of a loss of each sample: Brier score, log loss, CRPS, log score.

Losses of class probabilities are known for the labels that did not occur, too: what a sample could have added, and how
much its loss varies under the law of labels that either model predicts (`_Possible`). Where few of the labels that
matter have been seen, that says more than the spread of the losses at hand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._pairs import statistics
from kcalib.estimators.crps import crps_values
from kcalib.estimators.forecast_scores import log_score_values
from kcalib.estimators.scores import log_losses, square_residuals
from kcalib.inference.metrics import certainty
from kcalib.inference.metrics.measured import (
    EPSILON,
    ROUNDINGS,
    Estimate,
    Measured,
    MetricOptions,
    joined,
    labels_are_shared,
)
from kcalib.results import ConfidenceInterval

ENTRIES_AT_ONCE = 2**20  # of losses by labels in memory
# A law under which losses vary less than at hand with a smaller probability is not that of these labels.
CONTRADICTED = 1e-3
EVENTS = 15  # labels that a law must rest on for the spread at hand to be believed beside it

ByLabel = Callable[[Classification, slice], Array]


def brier(data: Sequence[Classification], confidence_level: float, options: MetricOptions) -> Measured:
    scale = 0.5 if data[0].m == 2 else 1.0
    losses = [scale * arrays.where_computed(square_residuals(one)) for one in data]

    def by_label(one: Classification, rows: slice) -> Array:
        return -2 * scale * arrays.where_computed(one.probabilities[rows, :]).astype(np.float64)

    return _means(losses, confidence_level, ConfidenceInterval(0.0, 2 * scale), _possible(data, by_label))


def log_loss(data: Sequence[Classification], confidence_level: float, options: MetricOptions) -> Measured:
    losses = [arrays.where_computed(log_losses(one)) for one in data]
    largest = max(-math.log(one.input_epsilon) for one in data)

    def by_label(one: Classification, rows: slice) -> Array:
        p = arrays.where_computed(one.probabilities[rows, :]).astype(np.float64)
        return -arrays.namespace(p).log(p.clip(one.input_epsilon, 1.0))

    return _means(losses, confidence_level, ConfidenceInterval(0.0, largest), _possible(data, by_label))


def crps(data: Sequence[Forecasts], confidence_level: float, options: MetricOptions) -> Measured:
    return _scores(data, crps_values, confidence_level, ConfidenceInterval(0.0, math.inf))


def log_score(data: Sequence[Forecasts], confidence_level: float, options: MetricOptions) -> Measured:
    return _scores(data, log_score_values, confidence_level, ConfidenceInterval(-math.inf, math.inf))


def _scores(
    data: Sequence[Forecasts],
    score: Callable[[Forecasts], Array],
    confidence_level: float,
    limits: ConfidenceInterval,
) -> Measured:
    measured = _means([score(one) for one in data], confidence_level, limits, None)
    return replace(measured, described={"prediction": joined(", ", (one.describe()["prediction"] for one in data))})


@dataclass(frozen=True)
class _Possible:
    """What other labels would have made of the losses of one model, or of the differences of two."""

    most: Array  # by how much a sample's loss would be larger with the label that makes it largest, shape (n,)
    least: Array  # by how much it would be smaller at most, shape (n,)
    variance: float  # of the losses, by the laws that rest on few labels and are not contradicted; the largest
    events: float  # about how many labels such a law rests on, of the law that rests on most


Combination = tuple[int, ...]  # a model, or the two of a difference
Possible = dict[Combination, _Possible]


def _means(
    losses: Sequence[Array], confidence_level: float, limits: ConfidenceInterval, possible: Possible | None
) -> Measured:
    losses = [arrays.where_computed(values).astype(np.float64, copy=False) for values in losses]
    width = limits.high - limits.low
    of_differences = ConfidenceInterval(-width, width)
    values, differences = [], []
    for (i,) in _singles(losses):
        found = None if possible is None else possible.get((i,))
        values.append(_mean(losses[i], confidence_level, limits, found, 0.0))
    for i, j in _pairs(losses):
        found = None if possible is None else possible.get((i, j))
        resolution = ROUNDINGS * EPSILON * float((abs(losses[i]) + abs(losses[j])).mean())
        differences.append(_mean(losses[i] - losses[j], confidence_level, of_differences, found, resolution))
    few = len(losses[0]) <= certainty.FEW
    return Measured(
        values=values,
        differences=differences,
        estimator="mean",
        intervals="by the signs of deviations, paired" if few else "t, paired",
    )


def _singles(models: Sequence[object]) -> Iterator[tuple[int]]:
    return ((i,) for i in range(len(models)))


def _pairs(models: Sequence[object]) -> Iterator[tuple[int, int]]:
    return itertools.combinations(range(len(models)), 2)


def _mean(
    values: Array, confidence_level: float, limits: ConfidenceInterval, possible: _Possible | None, resolution: float
) -> Estimate:
    """The mean of losses, or of their differences, which is between `limits`."""
    n = len(values)
    mean, error = statistics.mean_and_standard_error(values)
    assert error is not None  # there are four samples
    spread = error > max(resolution, ROUNDINGS * EPSILON * abs(mean))
    if possible is not None:
        error = max(error, math.sqrt(possible.variance / n))
    if n <= certainty.FEW:
        found = certainty.by_signs(arrays.to_host(values), confidence_level, resolution)
    else:
        found = certainty.by_student(mean, error, n - 1, confidence_level)
    other = None
    if abs(mean) <= resolution and possible is not None and float(possible.most.max() + possible.least.max()) == 0:
        return Estimate(mean, error, ConfidenceInterval(mean, mean), 1.0)  # the same predictions
    if possible is not None and (possible.events < EVENTS or not spread):
        other = _unseen(mean, n, confidence_level, possible)
    elif possible is None and not spread and abs(mean) > resolution:
        other = certainty.by_share(mean, n, confidence_level, limits, order=1)
    if other is not None:
        found = min(found[0], other[0]), max(found[1], other[1]), max(found[2], other[2])
    return certainty.decided(mean, error, found, n, confidence_level, limits, resolution)


def _unseen(mean: float, n: int, confidence_level: float, possible: _Possible) -> tuple[float, float, float]:
    """Low, high, and the p-value of a mean if labels that were too rare to be seen come out otherwise.

    Given the predictions, n labels show no event with the probability `tail` or more only if their probabilities add
    up to at most n `unseen_share`, and at worst these are of the samples whose loss it changes most.
    """
    number = n * certainty.unseen_share(n, (1 - confidence_level) / 2)
    most, least = (_Descending.of(changes) for changes in (possible.most, possible.least))
    needed = (most if mean < 0 else least).number_of(n * abs(mean))
    pvalue = certainty.unseen_pvalue(n, needed / n)
    return mean - least.sum_of(number) / n, mean + most.sum_of(number) / n, pvalue


@dataclass(frozen=True)
class _Descending:
    """Nonnegative numbers, the largest first, and the sums of the first 1, 2, ... of them; shape (n,)."""

    values: Array
    sums: Array

    @classmethod
    def of(cls, values: Array) -> _Descending:
        values = arrays.namespace(values).sort(values)[::-1]
        return cls(values, statistics.cumulative_sum(values))

    def sum_of(self, number: float) -> float:
        """The sum of the first `number`, with a share of the last one."""
        whole = int(number)
        before = float(self.sums[whole - 1]) if whole else 0.0
        return before + (float(self.values[whole]) * (number - whole) if whole < len(self.values) else 0.0)

    def number_of(self, total: float) -> float:
        """How many of the first have the sum `total`, with a share of the last one; infinite if all are too few."""
        whole = int((self.sums <= total).sum())
        if whole == len(self.values):
            return math.inf
        before = float(self.sums[whole - 1]) if whole else 0.0
        return whole + (total - before) / float(self.values[whole])


def _possible(data: Sequence[Classification], by_label: ByLabel) -> Possible:
    """Of each model and each two, from losses (but for a constant of each row) for every label.

    Those of which some samples already hold more than enough events are left out.
    """
    n, m = data[0].n, data[0].m
    combinations: list[Combination] = [*_singles(data)]
    if labels_are_shared(data):
        combinations += _pairs(data)
    sums = {combination: _Sums(len(combination)) for combination in combinations}
    step = max(1, ENTRIES_AT_ONCE // m)
    for begin in range(0, n, step):
        open_ones = [combination for combination in combinations if not sums[combination].is_settled()]
        if not open_ones:
            break
        rows = slice(begin, min(n, begin + step))
        labels = [arrays.where_computed(one.labels[rows]) for one in data]
        losses = [by_label(one, rows) for one in data]
        laws = [arrays.where_computed(one.probabilities[rows, :]).astype(np.float64) for one in data]
        every = arrays.namespace(laws[0]).arange(len(labels[0]))
        for combination in open_ones:
            first, *others = (losses[i] for i in combination)
            change = first - others[0] if others else first
            change = change - change[every, labels[combination[0]]][:, None]
            sums[combination].add(change, [laws[i] for i in combination])
    found = {combination: one.possible() for combination, one in sums.items() if not one.is_settled()}
    for i, j in _pairs(data):  # where labels are not shared one may change without the other, or with it
        if (i, j) not in sums and (i,) in found and (j,) in found:
            a, b = found[i,], found[j,]
            found[i, j] = _Possible(a.most + b.least, a.least + b.most, 0.0, min(a.events, b.events))
    return found


class _Sums:
    """What is added up over rows for a `_Possible`."""

    def __init__(self, n_laws: int) -> None:
        self.most: list[Array] = []
        self.least: list[Array] = []
        self.laws = [_Law() for _ in range(n_laws)]

    def add(self, change: Array, laws: Sequence[Array]) -> None:
        """Changes of the loss by labels, shape (rows, m), those that occurred have 0; the models' probabilities."""
        self.most.append(change.max(axis=1))
        self.least.append(-change.min(axis=1))
        for law, p in zip(self.laws, laws, strict=True):
            law.add(change, p)

    def is_settled(self) -> bool:
        """Whether the spread at hand will do: a law that is not contradicted rests on many labels."""
        return any(law.events() >= 2 * EVENTS and not law.is_contradicted() for law in self.laws)

    def possible(self) -> _Possible:
        most, least = (arrays.namespace(parts[0]).concatenate(parts) for parts in (self.most, self.least))
        laws = [law for law in self.laws if not law.is_contradicted()]
        variance = max((law.variances / law.n for law in laws if law.events() < EVENTS), default=0.0)
        return _Possible(most, least, variance, max((law.events() for law in laws), default=0.0))


class _Law:
    """Sums over samples of moments of their losses, given the predictions, if labels are drawn from one model."""

    def __init__(self) -> None:
        self.n = 0
        self.variances = self.fourth = self.squares = 0.0

    def add(self, change: Array, p: Array) -> None:
        xp = arrays.namespace(p)
        every = xp.arange(len(p))
        beside = change - change[every, xp.argmax(p, axis=1)][:, None]  # of the likely label: small numbers stay so
        deviation = beside - (p * beside).sum(axis=1, keepdims=True)
        squares = deviation * deviation
        self.variances += float((p * squares).sum())
        self.fourth += float((p * squares * squares).sum())
        # What was observed has the change 0, and deviates from its expectation by minus that of the change.
        expected = (p * change).sum(axis=1)
        self.squares += float((expected * expected).sum())
        self.n += len(p)

    def is_contradicted(self) -> bool:
        """Whether the losses vary so much less than the law says that the labels do not have this law.

        A sum S of independent nonnegative numbers X is below its mean by t with at most the probability
        exp(-t^2 / (2 E sum X^2)).
        """
        missing = self.variances - self.squares
        return missing > 0 and missing**2 > -2 * math.log(CONTRADICTED) * self.fourth

    def events(self) -> float:
        return self.variances**2 / self.fourth if self.fourth > 0 else 0.0
