"""Sums over rows that need no kernel: scores, and cells of probabilities by bins.

The terms of each row are converted to fixed point, so that any order and any batches give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kcalib import _native
from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.threads import run_options
from kcalib.streaming._row_sums.rows import Rows

# In the order of src/cpu/state/state_scores.cpp; all but the first two are times the row's weight.
SCORES = (
    "weight",
    "weight_squared",
    "correct",
    "confidence",
    "log_loss",
    "square_residual",
    "log_loss_squared",
    "square_residual_squared",
)
CELLS = ("weight", "probability", "hit", "probability_squared", "probability_hit")


class Extremes(NamedTuple):
    """Extremes of the confidence of the top label in each bin, shape (n_bins,)."""

    counts: np.ndarray  # int64: rows
    lowest: np.ndarray  # infinite where there are none
    highest: np.ndarray  # -infinite there


@dataclass(frozen=True, eq=False)
class ScoreSums:
    """Sums over rows that need no kernel."""

    n_weighted: int  # rows whose weight is not 1
    scores: ExactSums  # in the order of `SCORES`
    cells: ExactSums  # of the top label, then of each class, shape (1 + m, n_bins, 5), in the order of `CELLS`
    extremes: Extremes

    @classmethod
    def empty(cls, m: int, n_bins: int) -> ScoreSums:
        ends = np.full(n_bins, np.inf)
        return cls(
            0,
            ExactSums.zeros(len(SCORES)),
            ExactSums.zeros(1 + m, n_bins, len(CELLS)),
            Extremes(np.zeros(n_bins, np.int64), ends, -ends),
        )

    @cached_property
    def n(self) -> int:
        """The number of rows."""
        return int(self.extremes.counts.sum())

    def weight_sums(self) -> tuple[float, float]:
        """Return the sums of weights and of their squares."""
        weight, squares = self.scores.to_float()[:2].tolist()  # the first of `SCORES`
        return weight, squares

    @cached_property
    def is_full(self) -> bool:
        """Whether sums are so large that no more can be added."""
        return self.scores.is_large()

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the sums by their names in a file."""
        extremes = {f"confidence_{name}": values for name, values in self.extremes._asdict().items()}
        n_weighted = {"n_weighted": np.array(self.n_weighted, dtype=np.int64)}
        return n_weighted | extremes | self.scores.to_arrays("scores") | self.cells.to_arrays("cells")

    def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> ScoreSums:
        """Return the sums from the result of `to_arrays`."""
        extremes = Extremes(*(arrays[f"confidence_{name}"] for name in Extremes._fields))
        scores, cells = (ExactSums.from_arrays(name, arrays) for name in ("scores", "cells"))
        return ScoreSums(int(arrays["n_weighted"]), scores, cells, extremes)

    def __add__(self, other: ScoreSums) -> ScoreSums:
        mine, theirs = self.extremes, other.extremes
        return ScoreSums(
            self.n_weighted + other.n_weighted,
            self.scores + other.scores,
            self.cells + other.cells,
            Extremes(
                mine.counts + theirs.counts,
                np.minimum(mine.lowest, theirs.lowest),
                np.maximum(mine.highest, theirs.highest),
            ),
        )


def sum_scores(rows: Rows, n_bins: int, epsilon: float, threads: int | None) -> ScoreSums:
    """Return the sums of some rows, in one compiled pass; probabilities are at least `epsilon` in the log loss."""
    total = ScoreSums.empty(rows.predictions.shape[1], n_bins)
    n_weighted = int(np.count_nonzero(rows.weights != 1))
    weights = rows.weights if n_weighted else None
    with run_options(threads) as options:
        _native.state_scores(
            rows.predictions,
            rows.targets,
            weights,
            n_bins,
            epsilon,
            total.scores.flat(),
            total.cells.flat(),
            *total.extremes,
            options,
        )
    return replace(total, n_weighted=n_weighted)
