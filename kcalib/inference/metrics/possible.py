"""What other targets would have made of losses, and how much losses vary under the law that a model predicts.

For `scores`, of targets that have finitely many values: labels and counts. A mean of losses, or of their differences,
has the spread of the samples at hand only as far as these hold the targets that matter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kcalib._backend import arrays
from kcalib._backend.arrays import Array

ENTRIES_AT_ONCE = 2**20  # of losses by targets in memory
# A law under which losses vary less than at hand with a smaller probability is not that of these targets.
CONTRADICTED = 1e-3
EVENTS = 15  # targets that a law must rest on for the spread at hand to be believed beside it

Combination = tuple[int, ...]  # a model, or the two of a difference


@dataclass(frozen=True)
class Possible:
    """What other targets would have made of the losses of one model, or of the differences of two."""

    most: Array  # by how much a sample's loss would be larger with the target that makes it largest, shape (n,)
    least: Array  # by how much it would be smaller at most, shape (n,)
    variance: float  # of the losses, by the laws that rest on few targets and are not contradicted; the largest
    events: float  # about how many targets such a law rests on, of the law that rests on most


Possibilities = dict[Combination, Possible]


class Table(NamedTuple):
    """Of some rows, an entry for each model."""

    losses: Sequence[Array]  # with each of the m values that targets may have, shape (rows, m)
    laws: Sequence[Array]  # their probabilities, shape (rows, m)
    observed: Sequence[Array]  # which of them occurred, shape (rows,)


def singles(n_models: int) -> Iterator[tuple[int]]:
    return ((i,) for i in range(n_models))


def pairs(n_models: int) -> Iterator[tuple[int, int]]:
    return itertools.combinations(range(n_models), 2)


def possibilities(
    n: int, n_models: int, m: int, table: Callable[[slice], Table], *, shared: bool = True
) -> Possibilities:
    """Of each model and each two. Those of which some samples already hold more than enough events are left out.

    `shared`: models have the same targets, as they have not where each is asked about the class that it predicts.
    """
    combinations: list[Combination] = [*singles(n_models), *(pairs(n_models) if shared else ())]
    sums = {combination: _Sums(len(combination)) for combination in combinations}
    step = max(1, ENTRIES_AT_ONCE // m)
    for begin in range(0, n, step):
        open_ones = [combination for combination in combinations if not sums[combination].is_settled()]
        if not open_ones:
            break
        losses, laws, observed = table(slice(begin, min(n, begin + step)))
        positions = arrays.namespace(laws[0]).arange(len(laws[0]))
        for combination in open_ones:
            first, *other_losses = (losses[i] for i in combination)
            change = first - other_losses[0] if other_losses else first
            change = change - change[positions, observed[combination[0]]][:, None]
            sums[combination].add(change, [laws[i] for i in combination])
    possible = {combination: total.possible() for combination, total in sums.items() if not total.is_settled()}
    for i, j in pairs(n_models):  # where targets are not shared one may change without the other, or with it
        if not shared and (i,) in possible and (j,) in possible:
            a, b = possible[i,], possible[j,]
            possible[i, j] = Possible(a.most + b.least, a.least + b.most, 0.0, min(a.events, b.events))
    return possible


class _Sums:
    """What is added up over rows for a `Possible`."""

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

    def possible(self) -> Possible:
        most, least = (arrays.namespace(parts[0]).concatenate(parts) for parts in (self.most, self.least))
        laws = [law for law in self.laws if not law.is_contradicted()]
        variance = max((law.variances / law.n for law in laws if law.events() < EVENTS), default=0.0)
        return Possible(most, least, variance, max((law.events() for law in laws), default=0.0))


class _Law:
    """Sums over samples of moments of their losses, given the predictions, if labels are drawn from one model."""

    def __init__(self) -> None:
        self.n = 0
        self.variances = self.fourth = self.squares = 0.0

    def add(self, change: Array, p: Array) -> None:
        xp = arrays.namespace(p)
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

    def is_contradicted(self) -> bool:
        """Whether the losses vary so much less than the law says that the labels do not have this law.

        A sum S of independent nonnegative numbers X is below its mean by t with at most the probability
        exp(-t^2 / (2 E sum X^2)).
        """
        deficit = self.variances - self.squares
        return deficit > 0 and deficit**2 > -2 * math.log(CONTRADICTED) * self.fourth

    def events(self) -> float:
        return self.variances**2 / self.fourth if self.fourth > 0 else 0.0
