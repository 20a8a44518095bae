"""How often the race of `kcalib.recalibration.choose` stops a candidate that would have won without it.

    python docs/scripts/stopped_candidates.py > docs/stopped_table.txt

Each set of samples is chosen for twice: as `choose` does it, and with no candidate ever stopped. Without each of the
five folds there is a choice, so that a set has five. "winner stopped": choices that differ, as the one of the full run
was stopped. "stopped": candidates, of those there are, that missed a fit. "loss": mean log loss of "chosen" by the race
less that of the full run, on samples that neither was fitted to.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple
from unittest import mock

import numpy as np
import scipy

from kcalib.recalibration import Choice, choice, choose

N_SETS = 40
SIZES = ((2, 500), (2, 2000), (5, 500), (5, 2000))  # classes and samples
LAWS = ("calibrated", "temperature", "by class")


class Row(NamedTuple):
    law: str
    m: int
    n: int
    n_choices: int
    n_winners_stopped: int
    stopped: float  # candidates, mean of the sets
    n_candidates: int
    loss: float

    def __str__(self) -> str:
        return (
            f"{self.law:12} {self.m:7} {self.n:7} {self.n_choices:7} {self.n_winners_stopped:14}"
            f" {self.stopped:7.1f} of {self.n_candidates} {self.loss:9.1e}"
        )


def draw(law: str, m: int, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Labels and predictions: right, twice as sure as they should be, or wrong by a weight and shift of each class."""
    logits = 2 * rng.normal(size=(n, m))
    true = logits
    if law == "temperature":
        true = logits / 2
    elif law == "by class":
        true = rng.uniform(0.6, 1.0, m) * logits + 0.3 * rng.normal(size=m)
    p = scipy.special.softmax(true, axis=1)
    y = (rng.uniform(size=(n, 1)) > p.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return y, scipy.special.softmax(logits, axis=1)


def choose_twice(y: np.ndarray, p: np.ndarray) -> tuple[Choice, Choice]:
    """The choice by the race, and that of the full run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        race = choose(y, p)
        with mock.patch.object(choice, "MAX_BEHIND", math.inf):
            return race, choose(y, p)


def measure(law: str, m: int, n: int, n_sets: int = N_SETS) -> Row:
    pairs = [choose_twice(*draw(law, m, n, np.random.default_rng([m, n, seed]))) for seed in range(n_sets)]
    chosen = [zip(race.chosen_in_folds, full.chosen_in_folds, strict=True) for race, full in pairs]
    differ = [first != second for folds in chosen for first, second in folds]
    losses = [race.comparison.model("chosen").value - full.comparison.model("chosen").value for race, full in pairs]
    n_candidates = len(pairs[0][0].comparison.ranking) - 2
    stopped = float(np.mean([len(race.stopped) for race, _ in pairs]))
    return Row(law, m, n, len(differ), sum(differ), stopped, n_candidates, float(np.mean(losses)))


def main() -> None:
    print(f"{'law':12} classes samples choices winner stopped    stopped      loss")
    rows = [measure(law, m, n) for law in LAWS for m, n in SIZES]
    print(*rows, sep="\n")
    n_choices, n_stopped = sum(row.n_choices for row in rows), sum(row.n_winners_stopped for row in rows)
    high = scipy.stats.binomtest(n_stopped, n_choices).proportion_ci(method="exact").high
    print(f"winners stopped: {n_stopped} of {n_choices}, at most {100 * high:.2g} % with confidence 0.975")


if __name__ == "__main__":
    main()
