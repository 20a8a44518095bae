"""Losses with other targets than the observed ones, and their variance under a model's predictions.

For `scores` of targets with finitely many values: labels and counts. The sample variance of losses, or of their
differences, is only reliable if the samples contain the relevant targets. Counts in the tails of a model's distribution
are not relevant: n samples are not expected to contain them, whatever their loss.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kcalib._backend import arrays
from kcalib._backend.arrays import Array

# A model is contradicted if, under its predictions, losses that vary this little, or targets that another model
# predicts
# so much better, have a smaller probability.
CONTRADICTED = 1e-3
SMALLEST = 1e-300  # replaces smaller probabilities of observed targets
EVENTS = 15  # targets that must determine a variance, for the observed one to be believed

Combination = tuple[int, ...]  # a model, or the two of a difference


@dataclass(frozen=True)
class Possible:
    """Changes of the losses of one model, or of the differences of two, by other targets."""

    most: Array  # largest increase of a sample's loss by a near target, shape (n,)
    least: Array  # largest decrease, shape (n,)
    variance: float  # largest variance of the losses by predictions that rest on few targets and are not contradicted
    events: float  # about how many targets such predictions rest on, at most


Possibilities = dict[Combination, Possible]


class Table(NamedTuple):
    """Values for some rows; each field has an entry for each model."""

    losses: Sequence[Array]  # for each of the m possible targets, shape (rows, m)
    laws: Sequence[Array]  # their probabilities, shape (rows, m)
    observed: Sequence[Array]  # index of the observed target, shape (rows,)
    near: Sequence[Array]  # whether a target is outside of the tails, shape (rows, m)


def singles(n_models: int) -> Iterator[tuple[int]]:
    return ((i,) for i in range(n_models))


def pairs(n_models: int) -> Iterator[tuple[int, int]]:
    return itertools.combinations(range(n_models), 2)


def possibilities(n_models: int, tables: Iterable[Table], *, shared: bool = True) -> Possibilities:
    """Return the `Possible` of each model and each pair, from tables of successive rows.

    Those with more than enough events in the first samples are left out. `shared`: models have the same targets, unlike
    for lenses on each model's predicted class.
    """
    combinations: list[Combination] = [*singles(n_models), *(pairs(n_models) if shared else ())]
    likelihoods = [0.0] * n_models if shared else None
    sums = {combination: _Sums(combination, likelihoods) for combination in combinations}
    unread = iter(tables)
    while open_ones := [combination for combination in combinations if not sums[combination].is_settled()]:
        table = next(unread, None)
        if table is None:
            break
        losses, laws, observed, near = table
        xp = arrays.namespace(laws[0])
        positions = xp.arange(len(laws[0]))
        if likelihoods is not None:
            for i, p in enumerate(laws):
                likelihoods[i] += float(xp.log(p[positions, observed[i]].clip(SMALLEST, 1.0)).sum())
        for combination in open_ones:
            first, *other_losses = (losses[i] for i in combination)
            change = first - other_losses[0] if other_losses else first
            change = change - change[positions, observed[combination[0]]][:, None]
            sums[combination].add(change, [(laws[i], near[i]) for i in combination])
    possible = {combination: total.possible() for combination, total in sums.items() if not total.is_settled()}
    for i, j in pairs(n_models):  # targets that are not shared may change separately or together
        if not shared and (i,) in possible and (j,) in possible:
            a, b = possible[i,], possible[j,]
            possible[i, j] = Possible(a.most + b.least, a.least + b.most, 0.0, min(a.events, b.events))
    return possible


class _Sums:
    """Sums over rows for a `Possible`."""

    def __init__(self, combination: Combination, likelihoods: list[float] | None) -> None:
        self.combination, self.likelihoods = combination, likelihoods  # of all models, for the rows so far
        self.laws = [_Law() for _ in combination]

    def add(self, change: Array, laws: Sequence[tuple[Array, Array]]) -> None:
        """Add changes of the loss by label, shape (rows, m), 0 for observed labels, and the models' probabilities."""
        for law, (p, near) in zip(self.laws, laws, strict=True):
            law.add(change, p, near)

    def believed_laws(self) -> list[_Law]:
        """Return those that neither the variance of the losses nor the other model contradicts."""
        laws = [(i, law) for i, law in zip(self.combination, self.laws, strict=True) if not law.is_contradicted()]
        if self.likelihoods is not None and laws:
            least = max(self.likelihoods[i] for i, _ in laws) + math.log(CONTRADICTED)
            laws = [(i, law) for i, law in laws if self.likelihoods[i] >= least]
        return [law for _, law in laws]

    def is_settled(self) -> bool:
        """Return whether the observed variance suffices: an uncontradicted model rests on many labels."""
        return any(law.events() >= 2 * EVENTS for law in self.believed_laws())

    def possible(self) -> Possible:
        believed = self.believed_laws()
        most, least = (_largest([part(law) for law in believed or self.laws]) for part in (_Law.most, _Law.least))
        variance = max((law.variances / law.n for law in believed if law.events() < EVENTS), default=0.0)
        return Possible(most, least, variance, max((law.events() for law in believed), default=0.0))


def _largest(changes: Sequence[Array]) -> Array:
    return functools.reduce(arrays.namespace(changes[0]).maximum, changes)


class _Law:
    """Sums over samples of moments of their losses, given the predictions, if labels are drawn from one model."""

    def __init__(self) -> None:
        self.n = 0
        self.changes: list[tuple[Array, Array]] = []  # the largest and the smallest (negative) by near targets
        self.variances = self.fourth = self.squares = 0.0

    def add(self, change: Array, p: Array, near: Array) -> None:
        xp = arrays.namespace(p)
        near_change = xp.where(near, change, 0.0)
        self.changes.append((near_change.max(axis=1), -near_change.min(axis=1)))
        positions = xp.arange(len(p))
        # Changes relative to the likely label, so that small numbers stay small.
        relative = change - change[positions, xp.argmax(p, axis=1)][:, None]
        deviation = relative - (p * relative).sum(axis=1, keepdims=True)
        squares = deviation * deviation
        self.variances += float((p * squares).sum())
        self.fourth += float((p * squares * squares).sum())
        # The observed label has the change 0, and deviates from its expectation by minus that of the change.
        expected = (p * change).sum(axis=1)
        self.squares += float((expected * expected).sum())
        self.n += len(p)

    def most(self) -> Array:
        return arrays.namespace(self.changes[0][0]).concatenate([most for most, _ in self.changes])

    def least(self) -> Array:
        return arrays.namespace(self.changes[0][0]).concatenate([least for _, least in self.changes])

    def is_contradicted(self) -> bool:
        """Return whether the losses vary significantly less than they would with labels from this model.

        A sum S of independent nonnegative X is below its mean by t with probability at most exp(-t^2 / (2 E sum X^2)).
        """
        deficit = self.variances - self.squares
        return deficit > 0 and deficit**2 > -2 * math.log(CONTRADICTED) * self.fourth

    def events(self) -> float:
        return self.variances**2 / self.fourth if self.fourth > 0 else 0.0
