r"""Sums over samples in clusters with flipped signs of whole clusters, which add up over parts of the data.

With :math:`x_i` the contribution of a sample to cells and kernel features, flip r has the sum :math:`S^{(r)} = \sum_i
s^{(r)}_{g(i)} w_i x_i`. The signs are bits of a hash of the cluster number, so a cluster may be spread over parts. Flip
0 has the observed sums. The variance of a sum of independent clusters, :math:`\sum_g S_g^2`, is the mean of squares
over flips.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import linalg
from kcalib._backend.random import hash_numbers
from kcalib._backend.sums import Sums
from kcalib._backend.threads import one_blas_thread
from kcalib._pairs.feature_sums import feature_rows
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.label_cells import POSSIBLE
from kcalib.inference.adaptive.blocks import Block, kernel_block
from kcalib.inference.adaptive.sheets import CellEntries, CellSheet, CellView

MOST_SKEWNESS = 0.3  # of a block, if the targets of a cluster depend on each other fully
MOST_TARGETS = 16  # target feature columns that features are multiplied by; more are reduced to random sums
SPREADS = 256  # flips for estimates of variances, accurate to about a tenth
FLIP_STREAM = 2**62
WEIGHT, VARIANCE, SQUARED_VARIANCE, SQUARED_THIRD = range(4)


@dataclass(frozen=True, eq=False)
class FlippedSums(Sums):
    """Sums over samples, with flips as the last axis; all fields except `impossible` add up."""

    _least = "impossible"

    cells: np.ndarray  # shape (cells, flips)
    spreads: np.ndarray  # of standard deviations under calibration, shape (cells, SPREADS)
    moments: np.ndarray  # of w, w v, w^2 v and w^2 t, with variances v and third moments t, shape (4, cells)
    kernels: tuple[np.ndarray, ...]  # of features times targets, shape (features, flips)
    impossible: int  # the first sample whose label has probability 0; `POSSIBLE` if there is none


def draw_signs(clusters: np.ndarray, n_flips: int, seed: int) -> np.ndarray:
    """Return the signs of clusters by their numbers, shape (clusters, 1 + n_flips); the first are 1."""
    keys = hash_numbers(FLIP_STREAM + np.arange(-(-n_flips // 64)), seed)
    words = np.stack([hash_numbers(clusters, int(key)) for key in keys], axis=1).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=n_flips, bitorder="little")
    return np.concatenate([np.ones((len(clusters), 1)), 1.0 - 2.0 * bits], axis=1)


def reduce_targets(targets: np.ndarray, n_frequencies: int) -> np.ndarray:
    """Return target features with far fewer columns, whose inner products are equal on average.

    If columns are cosines and then sines of random frequencies, some of the frequencies; else random sums.
    """
    n_columns = targets.shape[1]
    if n_columns <= MOST_TARGETS:
        return targets
    if n_frequencies:
        some = np.arange(MOST_TARGETS // 2) * n_frequencies // (MOST_TARGETS // 2)
        return targets[:, np.append(some, n_frequencies + some)] * math.sqrt(n_columns / MOST_TARGETS)
    signs = np.where(np.random.default_rng(0).random((n_columns, MOST_TARGETS)) < 0.5, -1.0, 1.0)
    return linalg.matmul(targets, signs / math.sqrt(MOST_TARGETS))


@dataclass(frozen=True, eq=False)
class FlipMachine:
    """Computes the sums of some samples."""

    sheets: Sequence[CellSheet]
    maps: Sequence[FeatureMap]  # of the kernels
    n_flips: int
    seed: int
    threads: int | None
    n_frequencies: int = 0  # number of random frequencies of target features, if any

    @property
    def slices(self) -> list[slice]:
        """The cells of each sheet."""
        ends = np.cumsum([0, *(sheet.size for sheet in self.sheets)]).tolist()
        return [slice(*ends[k : k + 2]) for k in range(len(self.sheets))]

    def zeros(self, n_targets: int) -> FlippedSums:
        """Return the sums of no samples, with this number of target features."""
        size, n_targets = sum(sheet.size for sheet in self.sheets), min(n_targets, MOST_TARGETS)
        kernels = tuple(np.zeros((n_targets * random_map.n_columns, 1 + self.n_flips)) for random_map in self.maps)
        cells, spreads = np.zeros((size, 1 + self.n_flips)), np.zeros((size, SPREADS))
        return FlippedSums(cells, spreads, np.zeros((4, size)), kernels, POSSIBLE)

    @one_blas_thread()
    def add(
        self, rows: Any, points: np.ndarray, targets: np.ndarray, clusters: np.ndarray, weights: np.ndarray
    ) -> FlippedSums:
        """Return the sums of samples: `rows` is the input of sheets, `targets` are target features times weights."""
        numbers, codes = np.unique(clusters, return_inverse=True)
        signs, w = draw_signs(numbers, self.n_flips, self.seed), weights[:, None]
        # The same for every seed, so that the seed does not decide whether a block is too skewed.
        of_spreads = draw_signs(numbers, SPREADS, 0)[:, 1:]
        cells, spreads, moments = [], [], []
        for sheet in self.sheets:
            entries = sheet.entries_of(rows)
            squares = w * entries.variances
            cells.append(_add_entries(entries, w * entries.residuals, codes, sheet.size) @ signs)
            spreads.append(_add_entries(entries, w * np.sqrt(entries.variances), codes, sheet.size) @ of_spreads)
            of_cells = (np.broadcast_to(w, squares.shape), squares, w * squares, w * w * entries.thirds)
            places = entries.cells.ravel()
            moments.append(np.stack([np.bincount(places, values.ravel(), sheet.size) for values in of_cells]))
        of_rows, kernels = (codes, np.arange(len(codes))), []
        for feature_map in self.maps:
            features = np.asarray(feature_rows(feature_map, points, threads=self.threads))
            columns = reduce_targets(targets, self.n_frequencies).T
            parts = (_make_sparse(column, of_rows, (len(numbers), len(codes))) @ features for column in columns)
            kernels.append(np.concatenate([linalg.matmul(part.T, signs) for part in parts]))
        impossible = np.flatnonzero(rows.is_impossible & (weights > 0))
        first = int(np.min(rows.numbers[impossible])) if impossible.size else POSSIBLE
        return FlippedSums(
            np.concatenate(cells), np.concatenate(spreads), np.concatenate(moments, axis=1), tuple(kernels), first
        )


def _add_entries(entries: CellEntries, values: np.ndarray, codes: np.ndarray, size: int) -> Any:
    """Return sparse sums of the values, one for each entry, by cell and cluster."""
    places = entries.cells.ravel(), np.repeat(codes, entries.cells.shape[1])
    return _make_sparse(values.ravel(), places, (size, int(np.max(codes)) + 1))


def _make_sparse(values: np.ndarray, places: tuple[np.ndarray, np.ndarray], shape: tuple[int, int]) -> Any:
    """Return a sparse matrix of summed values, whose products are bitwise equal on all machines."""
    from scipy.sparse import coo_array

    return coo_array((values, places), shape=shape).tocsr()


@dataclass(frozen=True, eq=False)
class FlippedBlocks:
    """Blocks whose draws are flips of the signs of clusters."""

    blocks: list[Block]
    left_out: list[str]  # names of blocks that are too skewed
    estimate: float  # the SKCE of the reported kernel over pairs of different clusters
    n_clusters: int

    def describe(self) -> tuple[str, str]:
        """Return descriptions of the draws, and of the blocks that are left out."""
        left_out = f"; too few clusters for {', '.join(self.left_out)}" if self.left_out else ""
        return f"flips of the signs of {self.n_clusters} clusters", left_out


def make_blocks(
    machine: FlipMachine, sums: FlippedSums, clusters: np.ndarray, noun: str, option: str = "clusters"
) -> FlippedBlocks:
    """Return the blocks of sums over all samples; `clusters` are the weights of clusters, `noun` describes targets.

    `option` is the argument that defines clusters.
    """
    n_clusters = int(np.count_nonzero(clusters))
    if n_clusters < 2:
        raise ValueError(
            f"`{option}` has {n_clusters} cluster of positive weight, expected at least 2, which are independent of "
            "each other"
        )
    blocks: list[tuple[float, Block]] = []
    of_kernels = 0.0
    for sheet, cells in zip(machine.sheets, machine.slices, strict=True):
        part = sums.cells[cells], sums.spreads[cells], sums.moments[:, cells]
        for view in sheet.views:
            joined = _join(view, *part, n_clusters)
            if view.is_of_kernels:
                of_kernels = _combine_skewness(joined.skewness, joined.variances)
            if view.name is not None:
                blocks.append(joined.block(view))
    if sums.impossible != POSSIBLE:
        certain = Block(
            "temperature",
            blocks[0][1].statistics,
            blocks[0][1].finding,
            lambda: -math.inf,
            f"the label of sample {sums.impossible} (counted from 0) has probability 0",
        )
        blocks[0] = 0.0, certain
    estimates, n_pairs = [], float(np.sum(clusters) ** 2 - np.sum(clusters**2))
    for name, of_flips in zip(("kernel", "fine kernel", None), sums.kernels, strict=False):
        statistics = np.sum(of_flips**2, axis=0)
        statistics -= np.mean(statistics[1:])  # pairs within a cluster
        estimates.append(float(statistics[0]) / n_pairs)
        if name is not None:
            blocks.append((of_kernels, kernel_block(name, statistics)))
    kept = [block for skewness, block in blocks if skewness <= MOST_SKEWNESS]
    if not kept:
        least = min(skewness for skewness, _ in blocks)
        raise ValueError(
            f"`{option}` has {n_clusters} clusters, too few for predictions with such rare events: if the {noun} of a "
            f"cluster depend on each other, their sums can have a skewness of {least:.2g}, expected at most "
            f"{MOST_SKEWNESS}; the test needs about {math.ceil(n_clusters * (least / MOST_SKEWNESS) ** 2)} clusters "
            "like these"
        )
    left_out = [block.name for skewness, block in blocks if skewness > MOST_SKEWNESS]
    # The kernel of the SKCE is the last one, if its bandwidth differs from the first.
    return FlippedBlocks(kept, left_out, estimates[-1 if len(estimates) > 2 else 0], n_clusters)


@dataclass(frozen=True, eq=False)
class _Bins:
    """Sums in the bins of a view."""

    sums: np.ndarray  # shape (bins, flips)
    scales: np.ndarray
    variances: np.ndarray  # if the targets of a cluster depend on each other fully: roots of variances add up
    skewness: np.ndarray
    inside: list[np.ndarray]  # non-empty cells

    def block(self, view: CellView) -> tuple[float, Block]:
        """Return the skewness of the block, and the block."""
        assert view.name is not None
        standardised = self.sums**2 / np.where(self.scales > 0, self.scales, 1.0)[:, None]
        worst = int(np.argmax(standardised[:, 0]))
        # Bins count in proportion to their events: rarer ones contribute little to the block.
        shares = 1 / np.maximum(self.skewness, 1.0) ** 2 * (self.variances > 0)
        return _combine_skewness(self.skewness, shares), Block(
            view.name,
            np.sum(standardised, axis=0),
            lambda: view.finding(self.inside[worst], float(self.sums[worst, 0])),
            lambda: 0.0,
        )


def _join(view: CellView, cells: np.ndarray, spreads: np.ndarray, moments: np.ndarray, n_clusters: int) -> _Bins:
    bins = view.join(moments[WEIGHT], n_clusters)
    chosen = np.flatnonzero((bins >= 0) & (moments[WEIGHT] > 0))
    order = chosen[np.argsort(bins[chosen], kind="stable")]
    starts = np.flatnonzero(np.diff(bins[order], prepend=-1))
    sums, deviations, of_bins = (np.add.reduceat(part[order], starts, axis=0) for part in (cells, spreads, moments.T))
    variances = np.mean(deviations**2, axis=1)
    # A cluster's third moment is about that of its samples times the square of their effective number.
    _, variance, squared, third = of_bins.T
    products = variance * squared
    skewness = np.abs(third) * np.sqrt(variances) / np.where(products > 0, products, 1.0)
    scales = np.maximum(np.mean(sums**2, axis=1), variances)
    return _Bins(sums, scales, variances, skewness, np.split(order, starts[1:]))


def _combine_skewness(skewness: np.ndarray, shares: np.ndarray) -> float:
    """Return the skewness of a sum with these shares: it averages out over many cells."""
    total = float(np.sum(shares))
    return math.sqrt(float(np.sum((shares * skewness) ** 2))) / total if total > 0 else 0.0
