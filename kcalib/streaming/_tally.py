"""Sums over rows that need no kernel: scores, and cells of probabilities by bins.

Each row's terms are cut to fixed point by themselves, so that rows may come in any order and in any batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kcalib._backend.exact_sums import ExactSums
from kcalib._input.labels import Classification
from kcalib.estimators.binning import bin_numbers
from kcalib.estimators.scores import log_losses, square_residuals, top_label

# All but the first two are times the row's weight.
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
ROWS_AT_ONCE, NUMBERS_AT_ONCE = 2**14, 2**20


class Extremes(NamedTuple):
    """Of the top label's confidence in each bin, shape (n_bins,)."""

    counts: np.ndarray  # int64: rows
    lowest: np.ndarray  # infinite where there are none
    highest: np.ndarray  # -infinite there


@dataclass(frozen=True, eq=False)
class Tally:
    """What is known of the rows without a kernel."""

    n_weighted: int  # rows whose weight is not 1
    scores: ExactSums  # in the order of `SCORES`
    cells: ExactSums  # of the top label, then of each class, shape (1 + m, n_bins, 5), in the order of `CELLS`
    extremes: Extremes

    @classmethod
    def empty(cls, m: int, n_bins: int) -> Tally:
        ends = np.full(n_bins, np.inf)
        return cls(
            0,
            ExactSums.zeros(len(SCORES)),
            ExactSums.zeros(1 + m, n_bins, len(CELLS)),
            Extremes(np.zeros(n_bins, np.int64), ends, -ends),
        )

    def __add__(self, other: Tally) -> Tally:
        mine, theirs = self.extremes, other.extremes
        return Tally(
            self.n_weighted + other.n_weighted,
            self.scores + other.scores,
            self.cells + other.cells,
            Extremes(
                mine.counts + theirs.counts,
                np.minimum(mine.lowest, theirs.lowest),
                np.maximum(mine.highest, theirs.highest),
            ),
        )


def tally_of(data: Classification, weights: np.ndarray, n_bins: int) -> Tally:
    """Of checked data in host memory."""
    total = Tally.empty(data.m, n_bins)
    step = max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // data.m))
    for begin in range(0, data.n, step):
        rows = np.arange(begin, min(begin + step, data.n))
        total = total + _tally_of_some(data.take(rows) if step < data.n else data, weights[rows], n_bins)
    return total


def _tally_of_some(data: Classification, weights: np.ndarray, n_bins: int) -> Tally:
    p = data.probabilities
    confidence, correct = top_label(data)
    losses, squares = log_losses(data), square_residuals(data)
    of_row = (weights, correct, confidence, losses, squares, losses * losses, squares * squares)
    scores = np.stack([weights, *(weights * one for one in of_row)], axis=1)
    values = np.concatenate([confidence[:, None], p], axis=1)
    hits = np.concatenate([correct[:, None], data.labels[:, None] == np.arange(data.m)], axis=1)
    bins = bin_numbers(values, n_bins)
    w = weights[:, None]
    weighted, hit = w * values, w * hits
    terms = np.stack([np.broadcast_to(w, values.shape), weighted, hit, weighted * values, hit * values], axis=2)
    groups = bins + np.arange(1 + data.m) * n_bins
    cells = ExactSums.by_group(terms.reshape(-1, len(CELLS)), groups.ravel(), (1 + data.m) * n_bins)
    lowest, highest = np.full(n_bins, np.inf), np.full(n_bins, -np.inf)
    np.minimum.at(lowest, bins[:, 0], confidence)
    np.maximum.at(highest, bins[:, 0], confidence)
    return Tally(
        int(np.count_nonzero(weights != 1)),
        ExactSums.over_rows(scores),
        cells.reshape(1 + data.m, n_bins, len(CELLS)),
        Extremes(np.bincount(bins[:, 0], minlength=n_bins), lowest, highest),
    )
