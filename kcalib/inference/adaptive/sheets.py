"""Cells of the adaptive test's blocks as sheets: what a sample adds to which cell, for sums over clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kcalib._backend import arrays
from kcalib._input.labels import Classification
from kcalib._pairs.label_cells import FLOOR
from kcalib.inference.adaptive.blocks import (
    N_BINS,
    N_BINS_OF_TWO,
    N_TOP_BINS,
    describe_share,
    describe_side,
    describe_temperature,
    format_probability,
)

CLUSTERS_IN_BIN = 20  # at least: signs of fewer have few patterns, and sums of few are skew
ROWS = 4096  # evenly spaced rows that the edges of bins are quantiles of


@dataclass(frozen=True, eq=False)
class CellEntries:
    """What some samples add to cells, in each to at most one; shape (rows, entries)."""

    cells: np.ndarray  # integers
    residuals: np.ndarray
    variances: np.ndarray  # of the residuals, if the model is calibrated
    thirds: np.ndarray  # their third central moments


@dataclass(frozen=True, eq=False)
class CellSheet:
    """The cells of a block."""

    name: str
    size: int  # the number of cells
    entries_of: Callable[[np.ndarray], CellEntries]  # of samples by their numbers
    finding: Callable[[int, float], str]  # what the cell with the largest deviation says, and the sum in it


class LabelRows:
    """Predictions, labels and moments of some samples, on the host."""

    def __init__(self, data: Classification, rows: np.ndarray) -> None:
        def take(array: arrays.Array) -> np.ndarray:
            return np.asarray(arrays.to_host(arrays.namespace(array).take(array, arrays.like(rows, array), axis=0)))

        self.p = take(data.probabilities).astype(np.float64)
        self.labels = take(data.labels)
        self.top = np.argmax(self.p, axis=1)
        self._numbers = np.arange(len(rows))

    @property
    def residuals(self) -> np.ndarray:
        residuals = -self.p
        residuals[self._numbers, self.labels] += 1
        return residuals

    @property
    def label_probabilities(self) -> np.ndarray:
        return self.p[self._numbers, self.labels]

    def of_classes(self, cells: np.ndarray, first: int) -> CellEntries:
        """Return the residuals of the classes from `first` on."""
        p = self.p[:, first:]
        variances = p * (1 - p)
        return CellEntries(cells, self.residuals[:, first:], variances, variances * (1 - 2 * p))

    def of_top(self, cells: np.ndarray) -> CellEntries:
        """Return the residual of the most probable class."""
        p = self.p[self._numbers, self.top][:, None]
        variances = p * (1 - p)
        return CellEntries(cells, (self.labels == self.top)[:, None] - p, variances, variances * (1 - 2 * p))

    def of_scores(self, cells: np.ndarray) -> CellEntries:
        """Return the label's log probability less its mean."""
        logarithms = np.log(np.maximum(self.p, FLOOR))
        logarithms -= np.sum(self.p * logarithms, axis=1, keepdims=True)
        second, third = (np.sum(self.p * logarithms**power, axis=1, keepdims=True) for power in (2, 3))
        return CellEntries(cells, logarithms[self._numbers, self.labels][:, None], second, third)


def label_sheets(data: Classification, n_clusters: int) -> list[CellSheet]:
    """Return temperature, bias, classes and top label; of two classes the second stands for both."""
    most = max(2, n_clusters // CLUSTERS_IN_BIN)  # bins
    m, names = data.m, data.classes if data.classes is not None else tuple(range(data.m))
    first, n_bins = (1, min(N_BINS_OF_TWO, most)) if m == 2 else (0, min(N_BINS, most))
    n_top_bins = min(N_TOP_BINS, most)
    sample = LabelRows(data, np.unique(np.linspace(0, data.n - 1, min(data.n, ROWS)).astype(np.int64))).p

    def make_edges(values: np.ndarray, count: int) -> np.ndarray:
        return np.quantile(values, np.arange(1, count) / count, axis=0, method="higher")

    edges, top_edges = make_edges(sample[:, first:], n_bins), make_edges(np.max(sample, axis=1), n_top_bins)
    firsts = n_bins * np.arange(m - first)

    def bin_classes(rows: np.ndarray) -> CellEntries:
        part = LabelRows(data, rows)
        cells = np.zeros((len(rows), m - first), dtype=np.int64) + firsts
        for edge in edges:
            cells += part.p[:, first:] >= edge
        return part.of_classes(cells, first)

    def bin_top(rows: np.ndarray) -> CellEntries:
        part = LabelRows(data, rows)
        return part.of_top(np.searchsorted(top_edges, np.max(part.p, axis=1), side="right")[:, None])

    def count_classes(rows: np.ndarray) -> CellEntries:
        return LabelRows(data, rows).of_classes(np.broadcast_to(np.arange(m - first), (len(rows), m - first)), first)

    def add_scores(rows: np.ndarray) -> CellEntries:
        return LabelRows(data, rows).of_scores(np.zeros((len(rows), 1), dtype=np.int64))

    def describe_class(cell: int, total: float) -> str:
        ends = np.concatenate([[0.0], edges[:, cell // n_bins], [1.0]])
        between = _format_bin(ends, cell % n_bins)
        return f"probabilities of class {names[first + cell // n_bins]!r} {between} too {describe_side(total)}"

    def describe_top(cell: int, total: float) -> str:
        ends = np.concatenate([[0.0], top_edges, [1.0]])
        return f"largest probabilities {_format_bin(ends, cell)} too {describe_side(total)}"

    return [
        CellSheet("temperature", 1, add_scores, lambda cell, total: describe_temperature(total)),
        CellSheet(
            "bias",
            m - first,
            count_classes,
            lambda cell, total: describe_share(names[first + cell], total),
        ),
        CellSheet("classes", n_bins * (m - first), bin_classes, describe_class),
        CellSheet("top label", n_top_bins, bin_top, describe_top),
    ]


def _format_bin(ends: np.ndarray, number: int) -> str:
    return f"from {format_probability(ends[number])} to {format_probability(ends[number + 1])}"
