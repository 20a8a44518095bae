"""Cells that labels fall into: bins of a class's probability, bins of the largest probability, and log probabilities.

`kcalib.inference.adaptive` compares how many observed and how many drawn labels fall into each. Bins depend on the
predictions alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array

ROWS = 4096  # evenly spaced rows that the edges are quantiles of
ENTRIES = 2**20  # of predictions at a time


@dataclass(frozen=True, eq=False)
class CellSums:
    """Sums over samples in each cell: of labels, or of what is expected of labels drawn from the predictions.

    Parameters
    ----------
    classes : array, shape (..., m, bins)
        Labels of each class by its probability.
    top : array, shape (..., top bins)
        Labels that are the most probable class, by its probability.
    log_score : array, shape (...)
        Logarithms of the labels' probabilities.
    """

    classes: np.ndarray
    top: np.ndarray
    log_score: np.ndarray


@dataclass(frozen=True, eq=False)
class LabelCells:
    """Bins of predictions: a probability that is equal to an edge lies above it.

    Parameters
    ----------
    edges : array, shape (m, bins - 1)
        Ascending edges for the probability of each class.
    top_edges : array, shape (top bins - 1,)
        Ascending edges for the largest probability.
    floor : float
        The least probability that a logarithm is taken of.
    """

    edges: np.ndarray
    top_edges: np.ndarray
    floor: float

    @classmethod
    def of(cls, probabilities: Array, n_bins: int, n_top_bins: int, floor: float) -> LabelCells:
        """Return bins that hold about as many predictions each."""
        n = int(probabilities.shape[0])
        rows = arrays.like(np.unique(np.linspace(0, n - 1, min(n, ROWS)).astype(np.int64)), probabilities)
        sample = arrays.to_host(arrays.namespace(probabilities).take(probabilities, rows, axis=0)).astype(np.float64)

        def edges(values: np.ndarray, count: int) -> np.ndarray:
            return np.quantile(values, np.arange(1, count) / count, axis=0, method="higher")

        return cls(np.ascontiguousarray(edges(sample, n_bins).T), edges(np.max(sample, axis=1), n_top_bins), floor)

    @property
    def n_classes(self) -> int:
        return len(self.edges)

    @property
    def size(self) -> int:
        """The number of cells that labels are counted in."""
        return self.edges.size + self.n_classes + len(self.top_edges) + 1

    def zeros(self, n_draws: int) -> DrawnCells:
        """Return empty sums of drawn labels."""
        return DrawnCells(self, np.zeros((n_draws, self.size), dtype=np.int64), np.zeros(n_draws))

    def sums_of(self, counts: np.ndarray, log_scores: np.ndarray) -> CellSums:
        """Return the sums of counts of shape (..., size)."""
        n_bins = self.edges.shape[1] + 1
        classes, top = np.split(counts, [self.n_classes * n_bins], axis=-1)
        return CellSums(classes.reshape(*classes.shape[:-1], -1, n_bins), top, log_scores)

    def count(self, probabilities: Array, labels: Array) -> CellSums:
        """Return the sums of labels of shape (n, draws)."""
        draws = int(labels.shape[1])
        counts, log_scores = np.zeros((draws, self.size)), np.zeros(draws)
        for rows, p, codes, top_codes in self._chunks(probabilities):
            of_rows = arrays.asarray_like(labels[rows, :], p)
            top = p.argmax(axis=1)
            for b in range(draws):
                label = of_rows[:, b : b + 1]
                counts[b] += self._totals(_entries(codes, label)) + self._totals(top_codes[top == label[:, 0]])
                log_scores[b] += float(self._logarithms(_entries(p, label)).sum())
        return self.sums_of(counts, log_scores)

    def null_moments(self, probabilities: Array) -> tuple[CellSums, CellSums]:
        """Return the means and variances of the sums over labels that are drawn from the predictions."""
        moments, log_moments = np.zeros((2, self.size)), np.zeros(2)
        for _, p, codes, top_codes in self._chunks(probabilities):
            top = p.max(axis=1)
            for moment, of_classes, of_top in zip(moments, (p, p * (1 - p)), (top, top * (1 - top)), strict=True):
                moment += self._totals(codes, of_classes) + self._totals(top_codes, of_top)
            logarithms = self._logarithms(p)
            means = (p * logarithms).sum(axis=1)
            variances = (p * (logarithms - means[:, None]) ** 2).sum(axis=1)
            log_moments += float(means.sum()), float(variances.sum())
        return self.sums_of(moments[0], log_moments[0]), self.sums_of(moments[1], log_moments[1])

    def _chunks(self, probabilities: Array) -> Iterator[tuple[slice, Array, Array, Array]]:
        """Yield rows, their probabilities, and the numbers of the cells of these and of the largest; NumPy or CuPy."""
        step = max(1, ENTRIES // self.n_classes)
        for begin in range(0, int(probabilities.shape[0]), step):
            rows = slice(begin, begin + step)
            chunk = probabilities[rows, :]
            p = (chunk if arrays.is_cuda(chunk) else arrays.to_host(chunk)).astype(np.float64)
            edges, top_edges = arrays.like(self.edges, p), arrays.like(self.top_edges, p)
            firsts = np.arange(self.n_classes + 1) * (self.edges.shape[1] + 1)
            bins = (p >= edges[:, 0]).astype(np.int8)
            for k in range(1, edges.shape[1]):
                bins += p >= edges[:, k]
            codes = arrays.like(firsts[:-1], p) + bins
            top_codes = (p.max(axis=1)[:, None] >= top_edges).sum(axis=1) + int(firsts[-1])
            yield rows, p, codes, top_codes

    def _totals(self, codes: Array, weights: Array | None = None) -> np.ndarray:
        """Return the sum of the weights in each cell, or the number of codes."""
        xp = arrays.namespace(codes)
        flat = None if weights is None else weights.reshape(-1)
        return arrays.to_host(xp.bincount(codes.reshape(-1), flat, minlength=self.size))

    def _logarithms(self, p: Array) -> Array:
        return arrays.namespace(p).log(p.clip(self.floor, None))


def _entries(table: Array, label: Array) -> Array:
    return arrays.namespace(table).take_along_axis(table, label, axis=1)[:, 0]


@dataclass(frozen=True, eq=False)
class DrawnCells:
    """Sums of draws of labels, which `drawn_label_totals` adds to.

    Parameters
    ----------
    cells : LabelCells
        The cells.
    counts : array, shape (draws, size)
        Labels in the cells, int64.
    log_scores : array, shape (draws,)
        Sums of logarithms of the labels' probabilities.
    """

    cells: LabelCells
    counts: np.ndarray
    log_scores: np.ndarray

    @property
    def sums(self) -> CellSums:
        """The sums, by draws."""
        return self.cells.sums_of(self.counts, self.log_scores)

    def compiled(self) -> tuple[np.ndarray, np.ndarray, float, np.ndarray, np.ndarray]:
        """Return what `_native` takes."""
        cells = self.cells
        return cells.edges, cells.top_edges, cells.floor, self.counts, self.log_scores

    def add(self, first: int, probabilities: Array, labels: Array) -> None:
        """Add all labels, shape (n, draws), of the draws from `first` on."""
        sums, draws = self.cells.count(probabilities, labels), slice(first, first + int(labels.shape[1]))
        self.counts[draws] += np.concatenate([sums.classes.reshape(len(sums.top), -1), sums.top], axis=1).astype(
            np.int64
        )
        self.log_scores[draws] += sums.log_score
