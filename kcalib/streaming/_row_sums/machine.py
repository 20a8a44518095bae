"""Sums of blocks of rows of class probabilities: of kernels, and of labels in cells.

With draws of labels these are the sums that the adaptive test needs: observed and drawn labels in cells of predictions,
the sums of a finer kernel, and of a wider one if the bandwidth is tiny, as in `kcalib.inference.adaptive`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from kcalib import _native
from kcalib._backend import linalg
from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.sums import Sums
from kcalib._backend.threads import run_options
from kcalib._packing.features import class_map
from kcalib._packing.packed import single_bandwidth
from kcalib._pairs.feature_sums import compiled
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.label_cells import POSSIBLE, DrawnCells, LabelCells, LabelSums, TemperatureSums, power_of_two
from kcalib.inference.adaptive.blocks import (
    FINE,
    LEAST_BANDWIDTH,
    LEAST_FINE_BANDWIDTH,
    Words,
    fine_map_options,
    scale_frequencies,
)
from kcalib.inference.adaptive.clusters import CHUNK_ENTRIES
from kcalib.inference.adaptive.flips import FlipMachine, FlippedBlocks
from kcalib.inference.adaptive.sheets import LabelRows, label_sheets
from kcalib.streaming._options import StateOptions
from kcalib.streaming._row_sums.cluster_sums import ClusterSums
from kcalib.streaming._row_sums.kernel_sums import BLOCK, DrawnSums, KernelMachine, KernelSums, Sheet, draw_blocks
from kcalib.streaming._row_sums.rows import Rows

COUNTED_BLOCK, DRAWN_BLOCK = 2**9, 2**12  # rows of a block whose drawn labels are counted alone, and with features
SEEN, WIDE, FINER = "", "wide_", "fine_"  # prefixes in a file: the kernel of the SKCE, and those of the adaptive test


def block_size(options: StateOptions) -> int:
    """Return the number of rows of a block."""
    if options.n_kernel_resamples or options.clusters:
        return DRAWN_BLOCK
    return COUNTED_BLOCK if options.n_resamples else BLOCK


@dataclass(frozen=True, eq=False)
class BlockSums(Sums):
    """Sums over rows of blocks."""

    kernels: dict[str, KernelSums]  # by prefixes
    labels: LabelSums | None  # None without draws
    drawn: DrawnCells | None
    temperatures: TemperatureSums | None
    clusters: ClusterSums | None = None


class Machine:
    """Computes sums of blocks for a kernel with known bandwidths; `m` is the number of induced classes."""

    def __init__(self, options: StateOptions, m: int, threads: int | None) -> None:
        self.options, self.m, self.threads = options, m, threads
        n_draws, seen = 0 if options.clusters else options.n_kernel_resamples, options.map(m)
        self.kernels = {SEEN: KernelMachine(seen, options, m, n_draws)}
        if n_draws:
            maps = make_test_maps(options, seen, m)
            self.kernels = {name: KernelMachine(random_map, options, m, n_draws) for name, random_map in maps.items()}
            if WIDE in maps:
                self.kernels = {SEEN: KernelMachine(seen, options, m, 0)} | self.kernels
        self.cells = LabelCells.for_classes(m) if options.n_resamples and not options.clusters else None
        self.clusters: FlipMachine | None = None
        if options.clusters:
            maps = make_test_maps(options, seen, m)
            if WIDE in maps:
                maps[SEEN] = seen
            self._flip_kernels = [KernelMachine(random_map, options, m, 0) for random_map in maps.values()]
            of_kernels = [machine.map for machine in self._flip_kernels]
            sheets = label_sheets(m, Words.of(options.seen_row()))
            self.clusters = FlipMachine(sheets, of_kernels, options.n_resamples, options.seed, threads)

    @property
    def seen(self) -> KernelMachine:
        """The machine of the kernel of the SKCE."""
        return self.kernels[SEEN]

    def zeros(self) -> BlockSums:
        kernels = {name: machine.zeros() for name, machine in self.kernels.items()}
        if self.cells is None:
            clusters = None if self.clusters is None else ClusterSums.zeros(self.clusters, self.seen.rank)
            return BlockSums(kernels, None, None, None, clusters)
        drawn = self.cells.drawn_zeros(self.options.n_resamples)
        return BlockSums(kernels, self.cells.zeros(), drawn, TemperatureSums.zeros())

    def add(self, sums: BlockSums, pieces: Iterable[Rows]) -> BlockSums:
        """Add rows of blocks; each piece is ascending, and has all rows of its blocks."""
        new = sums.copy()
        for rows in pieces:
            weights = rows.weights if np.any(rows.weights != 1) else None
            if weights is not None and new.drawn is not None and new.drawn.fractions is None:
                new = replace(new, drawn=new.drawn.copy(has_fractions=True))
            with run_options(self.threads) as options:
                for name, machine in self.kernels.items():
                    machine.add(new.kernels[name], rows, options)
                if new.drawn is not None:
                    for sheet in self._sheets(rows):
                        self._add_draws(new, sheet, options)
            if self.clusters is not None:
                assert new.clusters is not None
                new = replace(new, clusters=sum((self._flip(block) for block in self._blocks(rows)), new.clusters))
            if self.cells is not None:
                assert new.labels is not None and new.temperatures is not None
                labels = self.cells.sum(rows.predictions, rows.targets, weights, threads=self.threads)
                if labels.impossible[0] != POSSIBLE:
                    labels = replace(labels, impossible=rows.numbers[labels.impossible])
                temperatures = TemperatureSums.of(rows.predictions, rows.targets, self.threads)
                new = replace(new, labels=new.labels + labels, temperatures=new.temperatures + temperatures)
        return new

    def _add_draws(self, sums: BlockSums, sheet: Sheet, options: _native.RunOptions) -> None:
        counted = sums.drawn
        for name, machine in self.kernels.items():
            drawn = sums.kernels[name].drawn
            if drawn is not None:
                machine.add_draws(drawn, sheet, counted, options)
                counted = None  # the labels are the same for all kernels
        if counted is not None:
            nothing = np.empty((0, self.m)), np.empty(0), np.empty((0, 0, self.m)), np.empty((0, 0))
            features = compiled(FeatureMap(*nothing, np.empty(0, int)))
            unused = DrawnSums(*(ExactSums.zeros(n) for n in (1, 1, 1, self.options.n_resamples)))
            seed, n_draws = self.options.seed, self.options.n_resamples
            draw_blocks(features, None, sheet, seed, n_draws, unused, counted, options)

    def _flip(self, rows: Rows) -> ClusterSums:
        """Return the sums of rows of one block, with flipped signs of clusters."""
        assert self.clusters is not None
        of_labels = LabelRows(rows.predictions, rows.targets, rows.numbers)
        targets, root = of_labels.residuals * rows.weights[:, None], self.seen.root
        targets = targets if root is None else linalg.matmul(targets, root)
        return ClusterSums.of_rows(self.clusters, of_labels, rows.predictions, targets, rows)

    def make_cluster_blocks(self, sums: BlockSums) -> FlippedBlocks:
        """Return the blocks of the test of samples in clusters."""
        assert self.clusters is not None and sums.clusters is not None
        units = tuple(machine.feature_unit * machine.target_unit for machine in self._flip_kernels)
        return sums.clusters.make_blocks(self.clusters, units, "labels")

    def _blocks(self, rows: Rows) -> Iterator[Rows]:
        size = min(block_size(self.options), power_of_two(CHUNK_ENTRIES // self.m))
        starts = np.flatnonzero(np.diff(rows.numbers // size, prepend=-1))
        for begin, end in itertools.pairwise([*starts.tolist(), len(rows.numbers)]):
            yield rows.take(slice(begin, end))

    def _sheets(self, rows: Rows) -> Iterator[Sheet]:
        """Yield whole blocks; missing rows have a certain prediction and weight 0."""
        size = block_size(self.options)
        blocks, starts = np.unique(rows.numbers // size, return_index=True)
        if len(rows.numbers) == len(blocks) * size:
            yield Sheet(blocks * size, rows.predictions, rows.weights if np.any(rows.weights != 1) else None)
            return
        for block, begin, end in zip(blocks, starts, [*starts[1:], len(rows.numbers)], strict=True):
            p, weights = np.zeros((size, self.m)), np.zeros(size)
            p[:, 0] = 1.0
            places = rows.numbers[begin:end] % size
            p[places], weights[places] = rows.predictions[begin:end], rows.weights[begin:end]
            yield Sheet(np.array([block * size]), p, weights)

    def kernel_statistics(self, sums: BlockSums) -> dict[str, np.ndarray]:
        """Return the sums over all pairs for the observed labels and each draw, for kernels with draws."""
        statistics = {}
        for name, machine in self.kernels.items():
            of_kernel = sums.kernels[name]
            if of_kernel.drawn is not None:
                total = machine.total(of_kernel.sums, of_kernel.own)
                statistics[name] = np.append(total, machine.drawn_totals(of_kernel.drawn))
        return statistics


def make_test_maps(options: StateOptions, seen: FeatureMap, m: int) -> dict[str, FeatureMap]:
    """Return the maps of the kernels of the adaptive test, the wider first, which may be that of the SKCE."""
    bandwidth = single_bandwidth(options.kernel)
    factor = scale_frequencies(bandwidth, 1.0, LEAST_BANDWIDTH)
    maps = {SEEN: seen} if factor == 1 else {WIDE: replace(seen, frequencies=seen.frequencies * factor)}
    fine = class_map(options.kernel.terms(), m, *fine_map_options(seen, options.seed))
    factor = scale_frequencies(bandwidth, FINE, LEAST_FINE_BANDWIDTH)
    return maps | {FINER: replace(fine, frequencies=fine.frequencies * factor)}
