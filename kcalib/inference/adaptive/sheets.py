"""Sheets: the cells of the adaptive test's blocks, and what samples add to them, for sums over clusters.

Cells do not depend on the data, so that sums over parts of the data add up; views join them to bins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.random import draw_replicate_batches
from kcalib._input.groupings import Grouping
from kcalib._input.labels import Classification
from kcalib._pairs.label_cells import FLOOR, LabelCells, join_cells, make_edges, power_of_two
from kcalib.inference.adaptive.blocks import (
    LEAST_SCORE_VARIANCE,
    LEAST_VARIANCE,
    N_BINS,
    N_BINS_OF_TWO,
    N_TOP_BINS,
    Block,
    Words,
    describe_side,
    format_probability,
)
from kcalib.inference.adaptive.forecast_blocks import (
    COVERAGES,
    PIT_FLOOR,
    describe_coverage,
    describe_location,
    describe_spread,
)

LABELS_AT_ONCE = 2**22

CLUSTERS_IN_BIN = 20  # at least: fewer signs have few patterns, and sums of few clusters are skewed
# Cells of all classes if each has more than the fewest, and at most; of each class; of the largest probability.
ENTRIES, MOST_ENTRIES, FEWEST, MOST, TOP_CELLS = 2**9, 2**14, 16, 256, 128
PIT_BINS = {2: "half", 5: "fifth", 10: "tenth"}


@dataclass(frozen=True, eq=False)
class CellEntries:
    """Contributions of samples to cells, each to at most one cell per entry; shape (rows, entries)."""

    cells: np.ndarray  # integers
    residuals: np.ndarray
    variances: np.ndarray  # of the residuals under calibration
    thirds: np.ndarray  # their third central moments


@dataclass(frozen=True, eq=False)
class CellView:
    """A block over bins, which are joined cells of a sheet."""

    name: str | None  # None: not a block, but information for the kernels
    join: Callable[[np.ndarray, int], np.ndarray]  # the bin of each cell, -1 for none; from weights and clusters
    finding: Callable[[np.ndarray, float], str]  # meaning of a bin, from its non-empty cells and its sum
    is_of_kernels: bool = False  # whether sums of kernels are about as skewed


@dataclass(frozen=True, eq=False)
class CellSheet:
    """Cells, and the blocks made of them."""

    size: int  # the number of cells
    entries_of: Callable[[Any], CellEntries]  # from `LabelRows` or `PitRows`
    views: tuple[CellView, ...]


def keep_cells(weights: np.ndarray, n_clusters: int) -> np.ndarray:
    """Return each cell as a bin of its own."""
    return np.arange(len(weights))


class LabelRows:
    """Predictions and labels of some samples, on the host, with their sample numbers."""

    def __init__(self, p: np.ndarray, labels: np.ndarray, numbers: np.ndarray) -> None:
        self.p, self.labels, self.numbers = np.asarray(p, dtype=np.float64), labels, numbers
        self.top = np.argmax(self.p, axis=1)
        self._places = np.arange(len(labels))

    @property
    def residuals(self) -> np.ndarray:
        residuals = -self.p
        residuals[self._places, self.labels] += 1
        return residuals

    @property
    def is_impossible(self) -> np.ndarray:
        """Return whether the label has probability 0."""
        return np.asarray(self.p[self._places, self.labels] == 0)

    def of_classes(self, cells: np.ndarray, first: int) -> CellEntries:
        """Return the residuals of the classes from `first` on."""
        p = self.p[:, first:]
        variances = p * (1 - p)
        return CellEntries(cells, self.residuals[:, first:], variances, variances * (1 - 2 * p))

    def of_top(self, cells: np.ndarray) -> CellEntries:
        """Return the residual of the most probable class."""
        p = self.p[self._places, self.top][:, None]
        variances = p * (1 - p)
        return CellEntries(cells, (self.labels == self.top)[:, None] - p, variances, variances * (1 - 2 * p))

    def of_scores(self, cells: np.ndarray) -> CellEntries:
        """Return the centred log probability of the label."""
        logarithms = np.log(np.maximum(self.p, FLOOR))
        logarithms -= np.sum(self.p * logarithms, axis=1, keepdims=True)
        second, third = (np.sum(self.p * logarithms**power, axis=1, keepdims=True) for power in (2, 3))
        return CellEntries(cells, logarithms[self._places, self.labels][:, None], second, third)


def label_sheets(m: int, words: Words) -> list[CellSheet]:
    """Return temperature, bias and classes, and top label; the second of two classes represents both."""
    first, n_bins = (1, N_BINS_OF_TWO) if m == 2 else (0, N_BINS)
    size = min(MOST, max(FEWEST, power_of_two(ENTRIES // (m - first))))
    size = max(4, min(size, power_of_two(MOST_ENTRIES // m)))
    cells = LabelCells(m - first, make_edges(size), make_edges(TOP_CELLS))
    firsts = size * np.arange(m - first)

    def join_classes(weights: np.ndarray, n_clusters: int) -> np.ndarray:
        count = _count_bins(n_bins, n_clusters)
        return np.asarray(
            (join_cells(weights.reshape(-1, size), count) + count * np.arange(m - first)[:, None]).ravel()
        )

    def add_classes(rows: LabelRows) -> CellEntries:
        return rows.of_classes(np.searchsorted(cells.edges, rows.p[:, first:], side="right") + firsts, first)

    def add_top(rows: LabelRows) -> CellEntries:
        return rows.of_top(np.searchsorted(cells.top_edges, np.max(rows.p, axis=1), side="right")[:, None])

    def format_bin(edges: np.ndarray, inside: np.ndarray) -> str:
        ends = np.concatenate([[0.0], edges, [1.0]])
        return f"from {format_probability(ends[inside[0]])} to {format_probability(ends[inside[-1] + 1])}"

    def describe_class(inside: np.ndarray, total: float) -> str:
        k = inside[0] // size
        return words.describe_bin(first + k, format_bin(cells.edges, inside - k * size), total)

    def describe_top(inside: np.ndarray, total: float) -> str:
        return f"largest probabilities {format_bin(cells.top_edges, inside)} too {describe_side(total)}"

    sheets = [
        CellSheet(
            1,
            lambda rows: rows.of_scores(np.zeros((len(rows.p), 1), dtype=np.int64)),
            (CellView("temperature", keep_cells, lambda inside, total: words.describe_temperature(total)),),
        ),
        CellSheet(
            size * (m - first),
            add_classes,
            (
                CellView(
                    "bias",
                    lambda weights, n_clusters: np.arange(len(weights)) // size,
                    lambda inside, total: words.describe_share(first + inside[0] // size, total),
                    is_of_kernels=True,
                ),
                CellView("classes", join_classes, describe_class),
            ),
        ),
        CellSheet(
            TOP_CELLS,
            add_top,
            (
                CellView(
                    "top label",
                    lambda weights, n_clusters: join_cells(weights[None], _count_bins(N_TOP_BINS, n_clusters))[0],
                    describe_top,
                ),
            ),
        ),
    ]
    return sheets[:-1] if words.has_confidence else sheets


class PitRows:
    """PIT values of some samples, uniform under calibration, with their sample numbers."""

    def __init__(self, pit: np.ndarray, numbers: np.ndarray) -> None:
        self.pit, self.numbers = np.clip(pit, PIT_FLOOR, 1 - PIT_FLOOR), numbers
        self.is_impossible = np.zeros(len(pit), dtype=bool)


def pit_sheets(*, has_pit: bool) -> list[CellSheet]:
    """Return the blocks of predicted numbers; for vectors, without PIT values, a substitute for the kernels."""
    shares = np.concatenate([np.full(n, 1 / n) for n in PIT_BINS] + [1 - np.array(COVERAGES)])
    spreads = shares * (1 - shares)
    variances = np.concatenate([[1.0, 2.0], spreads])  # of normal scores, and of their squares
    thirds = np.concatenate([[0.0, 8.0], spreads * (1 - 2 * shares)])
    size, bins = len(variances), np.repeat(list(PIT_BINS), list(PIT_BINS))

    def add(rows: PitRows) -> CellEntries:
        shape = len(rows.numbers), size
        residuals = np.zeros(shape)
        if has_pit:
            scores = scipy.special.ndtri(rows.pit)
            parts = [np.floor(rows.pit[:, None] * n) == np.arange(n) for n in PIT_BINS]
            outside = np.abs(rows.pit[:, None] - 0.5) > np.array(COVERAGES) / 2
            residuals[:, 0], residuals[:, 1] = scores, scores**2 - 1
            residuals[:, 2:] = np.concatenate([*parts, outside], axis=1) - shares
        cells = np.broadcast_to(np.arange(size), shape)
        return CellEntries(cells, residuals, np.broadcast_to(variances, shape), np.broadcast_to(thirds, shape))

    def choose(is_chosen: np.ndarray) -> np.ndarray:
        return np.where(is_chosen, np.arange(size), -1)

    def join_histogram(weights: np.ndarray, n_clusters: int) -> np.ndarray:
        n_bins = max(n for n in PIT_BINS if n <= _count_bins(max(PIT_BINS), n_clusters))
        return choose(np.concatenate([[False] * 2, bins == n_bins, [False] * len(COVERAGES)]))

    def describe_histogram(inside: np.ndarray, total: float) -> str:
        place = int(inside[0]) - 2
        n_bins = int(bins[place])
        number = place - int(np.flatnonzero(bins == n_bins)[0]) + 1
        return f"too {'many' if total > 0 else 'few'} targets in {PIT_BINS[n_bins]} {number} of the predictions"

    def of_cells(*chosen: int) -> Callable[[np.ndarray, int], np.ndarray]:
        return lambda weights, n_clusters: choose(np.isin(np.arange(size), chosen))

    of_kernels = CellView(None, of_cells(0, 1), lambda inside, total: "", is_of_kernels=True)
    blocks = (
        CellView("bias", of_cells(0), lambda inside, total: describe_location(total)),
        CellView("dispersion", of_cells(1), lambda inside, total: describe_spread(total)),
        CellView("PIT histogram", join_histogram, describe_histogram),
        CellView(
            "tails",
            of_cells(size - 2, size - 1),
            lambda inside, total: describe_coverage(COVERAGES[int(inside[0]) - size], total),
        ),
    )
    return [CellSheet(size, add, (*blocks, of_kernels) if has_pit else (of_kernels,))]


def _count_bins(most: int, n_clusters: int) -> int:
    return min(most, max(2, n_clusters // CLUSTERS_IN_BIN))


def given_blocks(
    data: Classification, groupings: Sequence[Grouping], n_draws: int, seed: int, threads: int | None
) -> list[Block]:
    """Return the blocks of each variable, for the labels of `data.draw(seed, b)`."""
    p, n, m = np.asarray(arrays.to_host(data.probabilities), dtype=np.float64), data.n, data.m
    w = np.ones(n) if data.sample_weight is None else np.asarray(arrays.to_host(data.sample_weight))
    logarithms, rows = np.log(np.maximum(p, FLOOR)), np.arange(n)
    logarithms -= np.sum(p * logarithms, axis=1, keepdims=True)
    counts: list[list[np.ndarray]] = [[] for _ in groupings]
    scores: list[list[np.ndarray]] = [[] for _ in groupings]

    def add(labels: np.ndarray) -> None:
        of_labels = w * logarithms[rows, labels]
        for k, grouping in enumerate(groupings):
            size = len(grouping.values)
            counts[k].append(np.bincount(grouping.codes * m + labels, w, size * m))
            scores[k].append(np.bincount(grouping.codes, of_labels, size))

    add(np.asarray(arrays.to_host(data.labels), dtype=np.int64))
    at_once = max(1, LABELS_AT_ONCE // n)
    for batch in draw_replicate_batches(data.cumulative, n_draws, seed, at_once=at_once, threads=threads):
        for labels in np.asarray(arrays.to_host(batch)).T.astype(np.int64):
            add(labels)

    blocks = []
    for k, grouping in enumerate(groupings):
        sheets = given_sheets(grouping, data)
        size = len(grouping.values)
        classes = np.arange(m)
        cells = grouping.codes[:, None] * m + classes

        def sum_cells(values: np.ndarray, cells: np.ndarray = cells, size: int = size) -> np.ndarray:
            return np.bincount(cells.ravel(), values.ravel(), size * m)

        residuals = np.stack(counts[k]) - sum_cells(w[:, None] * p)
        variances = np.maximum(sum_cells(w[:, None] ** 2 * p * (1 - p)), LEAST_VARIANCE)
        if m == 2:
            residuals, variances = residuals[:, 1::2], variances[1::2]
        score_variances = np.bincount(grouping.codes, w**2 * np.sum(p * logarithms**2, axis=1), size)
        has_score = score_variances > LEAST_SCORE_VARIANCE * n
        of_scores = np.stack(scores[k]) * has_score
        for sheet, sums, spread in zip(
            sheets, (residuals, of_scores), (variances, np.where(has_score, score_variances, 1.0)), strict=True
        ):
            blocks.append(_make_block(sheet, sums, spread))
    return blocks


def _make_block(sheet: CellSheet, sums: np.ndarray, variances: np.ndarray) -> Block:
    squares = sums**2 / variances
    worst = int(np.argmax(squares[0]))
    (view,) = sheet.views
    assert view.name is not None
    finding = functools.partial(view.finding, np.array([worst]), float(sums[0, worst]))
    return Block(view.name, np.sum(squares, axis=1), finding, lambda: 0.0)


def given_sheets(grouping: Grouping, data: Any) -> list[CellSheet]:
    """Return the cells of a variable's two blocks: the classes by category, and the temperature by category."""
    first, size = int(data.m == 2), len(grouping.values)
    n_columns, words = data.m - first, Words.of(data)

    def where(k: int) -> str:
        return f"where {grouping.name} is {grouping.values[k]}"

    def count_classes(rows: LabelRows) -> CellEntries:
        return rows.of_classes(grouping.codes[rows.numbers][:, None] * n_columns + np.arange(n_columns), first)

    def add_scores(rows: LabelRows) -> CellEntries:
        return rows.of_scores(grouping.codes[rows.numbers][:, None])

    def describe_class(cells: np.ndarray, total: float) -> str:
        return f"{words.describe_share(first + cells[0] % n_columns, total)} {where(cells[0] // n_columns)}"

    def describe_score(cells: np.ndarray, total: float) -> str:
        return f"{words.describe_temperature(total)} {where(cells[0])}"

    return [
        CellSheet(size * n_columns, count_classes, (CellView(f"given {grouping.name}", keep_cells, describe_class),)),
        CellSheet(size, add_scores, (CellView(f"temperature given {grouping.name}", keep_cells, describe_score),)),
    ]
