"""What a state of class probabilities holds: its rows are seen through a lens, and sums may be on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from kcalib._backend import arrays
from kcalib._input.labels import Classification
from kcalib._packing.labels import resolve
from kcalib.kernels import Kernel
from kcalib.lenses import Canonical, Lens
from kcalib.streaming._classes.totals import BinTotals, Totals
from kcalib.streaming._contents import (
    MOST_WAITING,
    TOO_FEW,
    TOO_LARGE,
    Batch,
    Contents,
    check_weights,
    joined,
    numbers_of,
    remedy_of_states,
    signed,
)
from kcalib.streaming._options import StateOptions
from kcalib.streaming._row_sums.device import DeviceSums, sums_beside, tally_beside
from kcalib.streaming._row_sums.kernel_sums import KernelSums, Machine, block_size
from kcalib.streaming._row_sums.rows import OpenRows, Rows, RowSet, no_rows
from kcalib.streaming._row_sums.sample import RowSample
from kcalib.streaming._row_sums.tally import SCORES, Tally, tally_of

SUM_TOLERANCE = 1e-2  # of probabilities in low precision, of thousands of classes
SAMPLE, DRAWN_SAMPLE = 256, 4096  # rows that are kept, without and with draws of labels


@dataclass(frozen=True, eq=False)
class ClassContents(Contents):
    """Of a state of class probabilities."""

    options: StateOptions
    tally: Tally
    machine: Machine | None
    sums: KernelSums | None
    m: int  # classes of the problem that the lens induces
    beside: DeviceSums | None  # of rows on a GPU, beside them

    @classmethod
    def empty(cls, options: StateOptions, threads: int | None) -> ClassContents:
        m = options.seen_row().m
        machine = None if options.kernel.open_metrics() else Machine(options, m, threads)
        nothing = no_rows(m)
        return cls(
            options=options,
            seen=RowSet(),
            waiting=(),
            tally=Tally.empty(m, options.n_bins),
            opened=OpenRows(block_size(options), nothing, {}),
            sample=RowSample.empty(DRAWN_SAMPLE if options.n_resamples else SAMPLE, options.seed, nothing),
            bandwidth_rows=0,
            machine=machine,
            sums=None if machine is None else machine.zeros(),
            m=m,
            beside=None,
        )

    def check_values(self, rows: Rows) -> None:
        p, labels = rows.predictions, rows.targets
        if not np.all((p >= 0) & (p <= 1)) or not np.all(np.abs(p.sum(axis=1) - 1) <= SUM_TOLERANCE):  # NaN is neither
            raise ValueError("there are rows whose predictions are no probabilities")
        if labels.min() < 0 or labels.max() >= self.m:
            raise ValueError(f"there are labels beyond 0 to {self.m - 1}")

    def plus(self, batch: Batch, threads: int | None) -> Self:
        if arrays.is_host(batch.predictions):
            return super().plus(batch, threads)
        if batch.n < MOST_WAITING or self.machine is None:
            return super().plus(batch.to_host(), threads)  # small, or to be held
        if self.tally.is_full:
            raise ValueError(TOO_LARGE)
        return replace(self, seen=self.seen.plus(batch.first, batch.first + batch.n))._plus_beside(batch, threads)

    def settled(self, threads: int | None) -> Self:
        """With the batches that wait, and the sums that are on a GPU."""
        new = self._without_waiting(threads)
        if new.beside is None:
            return new
        tally, sums = new.tally + new.beside.tally.to_host(), new.sums
        if new.beside.sums is not None and sums is not None:
            sums = sums + new.beside.sums.to_host()
        return replace(new, beside=None, tally=tally, sums=sums)

    def _plus_beside(self, batch: Batch, threads: int | None) -> Self:
        """With a batch on a GPU, whose whole blocks are added up there; `seen` has it already."""
        if self.beside is not None and arrays.gpu_of(self.beside.tally.extremes.counts) != arrays.gpu_of(batch.targets):
            self = self.settled(threads)
        if self.beside is not None and self.beside.tally.is_full:
            raise ValueError(TOO_LARGE)
        assert self.machine is not None
        data = induced(batch, self.options.lens)
        numbers = np.arange(batch.first, batch.first + batch.n)

        def brought(places: np.ndarray) -> Rows:
            at = arrays.like(places, batch.targets)
            parts = (data.probabilities, data.labels, batch.weights)
            return Rows(numbers[places], *(arrays.to_host(data.xp.take(part, at, axis=0)) for part in parts))

        size = self.opened.size
        begin = min(-batch.first % size, batch.n)
        end = begin + (batch.n - begin) // size * size
        whole = None
        if end > begin:
            blocks = replace(data, labels=data.labels[begin:end], given=data.probabilities[begin:end, :])
            whole = sums_beside(self.machine, blocks, batch.weights[begin:end], batch.first + begin)
        found = DeviceSums(tally_beside(data, batch.weights, self.options.n_bins), whole)
        wanted = self.sample.wanted(numbers)
        sample = self.sample.plus(brought(wanted)) if wanted.size else self.sample
        new = replace(self, beside=found if self.beside is None else self.beside + found, sample=sample)
        for places in (np.arange(begin), np.arange(end, batch.n)):
            if places.size:
                complete, opened = new.opened.split(brought(places))
                new = replace(new, opened=opened)._with_blocks(complete)
        return new

    def _rows_of_waiting(self) -> Rows:
        labels, p, weights = joined(self.waiting)
        data = self.options.lens.induced(Classification(labels, p, None, None, self.waiting[0].epsilon))
        return Rows(numbers_of(self.waiting), np.ascontiguousarray(data.probabilities), data.labels, weights)

    def _tally_of(self, rows: Rows, epsilon: float, threads: int | None) -> Tally:
        return tally_of(rows, self.options.n_bins, epsilon, threads)

    def fixed(self, threads: int | None, *, elsewhere: bool = False) -> Self:
        if self.machine is not None:
            return self
        points = self.first_points()
        with remedy_of_states():
            kernel, medians = resolve([points], self.options.kernel, threads, elsewhere=elsewhere)
        return self.with_kernel(kernel, signed(len(points), medians), threads)

    def first_points(self) -> np.ndarray:
        """The predictions that the bandwidths come from."""
        return self.first_rows().predictions

    def with_kernel(self, kernel: Kernel, bandwidth_rows: int, threads: int | None) -> Self:
        """With these bandwidths, which are medians of so many rows, where they are not known yet."""
        if self.machine is not None:
            return self
        options = replace(self.options, kernel=kernel)
        return self.known(options, Machine(options, self.m, threads), bandwidth_rows)

    def bin_totals(self, threads: int | None) -> BinTotals:
        """What is known without a kernel."""
        n, tally = self.check_some(), self.settled(threads).tally
        scores = dict(zip(SCORES, tally.scores.to_float().tolist(), strict=True))
        check_weights(n, tally.n_weighted, scores["weight_squared"])
        return BinTotals(n, tally.n_weighted, scores, tally.cells.to_float(), tally.extremes, self.options.lens)

    def totals(self, threads: int | None) -> Totals:
        """With the rows of open blocks; of two rows at least where the kernel is not known."""
        found = self.bin_totals(threads)
        if self.machine is None and found.n < 2:
            raise ValueError(TOO_FEW)
        final = self.final(threads)
        machine, sums = final.machine, final.sums
        assert machine is not None and sums is not None
        rows = final.sample.rows
        unit, weighted = machine.feature_unit * machine.target_unit, found.n_weighted > 0
        classes = final.options.classes if isinstance(final.options.lens, Canonical) else None
        weights = rows.weights if weighted else None
        sample = Classification(rows.targets, rows.predictions, weights, classes, 2.0**-52, lens=final.options.lens)
        own = np.bincount(machine.map.groups, sums.own.to_float(), machine.map.n_groups)
        return Totals(
            **vars(found),
            kernel=final.options.kernel,
            bandwidth_rows=final.bandwidth_rows or None,
            map=final.options.map(final.m),
            root=final.options.root(),
            sums=sums.sums.to_float() * unit,
            own=own[:, None] * unit**2,
            null_own=float(sums.null_own.to_float()) * unit**2,
            drawn=None if sums.drawn is None or weighted else machine.drawn_totals(sums.drawn),
            sample=sample,
            sample_rows=rows.numbers,
        )


def induced(batch: Batch, lens: Lens) -> Classification:
    """Seen through the lens, without weights."""
    return lens.induced(Classification(batch.targets, batch.predictions, None, None, batch.epsilon))
