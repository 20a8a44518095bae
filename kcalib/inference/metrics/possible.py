"""What other targets would have made of losses, and how much losses vary under the law that a model predicts.

For `scores`, of targets that have finitely many values: labels and counts. A mean of losses, or of their differences,
has the spread of the samples at hand only as far as these hold the targets that matter. Of counts those matter that a
model's law does not put into its tails: however far a count changes a loss, one that no model expects among n samples
says nothing about these.
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

# A law under which losses vary less than at hand, or targets are so much likelier by another model, with a smaller
# probability is not that of these targets.
CONTRADICTED = 1e-3
SMALLEST = 1e-300  # probability of what occurred
EVENTS = 15  # targets that a law must rest on for the spread at hand to be believed beside it

Combination = tuple[int, ...]  # a model, or the two of a difference


@dataclass(frozen=True)
class Possible:
    """What other targets would have made of the losses of one model, or of the differences of two."""

    most: Array  # by how much a sample's loss would be larger with the near target that makes it largest, shape (n,)
    least: Array  # by how much it would be smaller at most, shape (n,)
    variance: float  # of the losses, by the laws that rest on few targets and are not contradicted; the largest
    events: float  # about how many targets such a law rests on, of the law that rests on most


Possibilities = dict[Combination, Possible]


class Table(NamedTuple):
    """Of some rows, an entry for each model."""

    losses: Sequence[Array]  # with each of the m values that targets may have, shape (rows, m)
    laws: Sequence[Array]  # their probabilities, shape (rows, m)
    observed: Sequence[Array]  # which of them occurred, shape (rows,)
    near: Sequence[Array]  # whether the law has them outside of its tails, shape (rows, m)


def singles(n_models: int) -> Iterator[tuple[int]]:
    return ((i,) for i in range(n_models))


def pairs(n_models: int) -> Iterator[tuple[int, int]]:
    return itertools.combinations(range(n_models), 2)


def possibilities(n_models: int, tables: Iterable[Table], *, shared: bool = True) -> Possibilities:
    """Of each model and each two, from tables of successive rows.

    Those of which some samples already hold more than enough events are left out. `shared`: models have the same
    targets, as they have not where each is asked about the class that it predicts.
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
    for i, j in pairs(n_models):  # where targets are not shared one may change without the other, or with it
        if not shared and (i,) in possible and (j,) in possible:
            a, b = possible[i,], possible[j,]
            possible[i, j] = Possible(a.most + b.least, a.least + b.most, 0.0, min(a.events, b.events))
    return possible


class _Sums:
    """What is added up over rows for a `Possible`."""

    def __init__(self, combination: Combination, likelihoods: list[float] | None) -> None:
        self.combination, self.likelihoods = combination, likelihoods  # of all models; those of the rows so far
        self.laws = [_Law() for _ in combination]

    def add(self, change: Array, laws: Sequence[tuple[Array, Array]]) -> None:
        """Changes of the loss by labels, shape (rows, m), those that occurred have 0; the models' probabilities."""
        for law, (p, near) in zip(self.laws, laws, strict=True):
            law.add(change, p, near)

    def believed_laws(self) -> list[_Law]:
        """Those that the targets contradict neither by the spread of losses nor beside the other law."""
        laws = [(i, law) for i, law in zip(self.combination, self.laws, strict=True) if not law.is_contradicted()]
        if self.likelihoods is not None and laws:
            least = max(self.likelihoods[i] for i, _ in laws) + math.log(CONTRADICTED)
            laws = [(i, law) for i, law in laws if self.likelihoods[i] >= least]
        return [law for _, law in laws]

    def is_settled(self) -> bool:
        """Whether the spread at hand will do: a law that is not contradicted rests on many labels."""
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
        self.changes: list[tuple[Array, Array]] = []  # the largest and the smallest, negative, by near targets
        self.variances = self.fourth = self.squares = 0.0

    def add(self, change: Array, p: Array, near: Array) -> None:
        xp = arrays.namespace(p)
        near_change = xp.where(near, change, 0.0)
        self.changes.append((near_change.max(axis=1), -near_change.min(axis=1)))
        positions = xp.arange(len(p))
        # The change relative to that of the likely label, so that small numbers stay small.
        relative = change - change[positions, xp.argmax(p, axis=1)][:, None]
        deviation = relative - (p * relative).sum(axis=1, keepdims=True)
        squares = deviation * deviation
        self.variances += float((p * squares).sum())
        self.fourth += float((p * squares * squares).sum())
        # What was observed has the change 0, and deviates from its expectation by minus that of the change.
        expected = (p * change).sum(axis=1)
        self.squares += float((expected * expected).sum())
        self.n += len(p)

    def most(self) -> Array:
        return arrays.namespace(self.changes[0][0]).concatenate([most for most, _ in self.changes])

    def least(self) -> Array:
        return arrays.namespace(self.changes[0][0]).concatenate([least for _, least in self.changes])

    def is_contradicted(self) -> bool:
        """Whether the losses vary so much less than the law says that the labels do not have this law.

        A sum S of independent nonnegative numbers X is below its mean by t with at most the probability
        exp(-t^2 / (2 E sum X^2)).
        """
        deficit = self.variances - self.squares
        return deficit > 0 and deficit**2 > -2 * math.log(CONTRADICTED) * self.fourth

    def events(self) -> float:
        return self.variances**2 / self.fourth if self.fourth > 0 else 0.0
