"""The contents of a state of class probabilities: sums over rows, to which the lens is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from kcalib._input.classes import Classes
from kcalib._input.digits import MOST
from kcalib._input.labels import Classification
from kcalib._packing.labels import resolve
from kcalib.kernels import Kernel
from kcalib.lenses import Canonical, Lens
from kcalib.streaming._accumulator import (
    Accumulator,
    Batch,
    check_weights,
    explain_bandwidths,
    join_batches,
    number_rows,
    sign_row_count,
)
from kcalib.streaming._classes.totals import BinTotals, Totals
from kcalib.streaming._options import StateOptions
from kcalib.streaming._row_sums.machine import FINER, SEEN, WIDE, BlockSums, Machine, block_size
from kcalib.streaming._row_sums.rows import OpenRows, Rows, RowSample, RowSet, no_rows
from kcalib.streaming._row_sums.score_sums import SCORES, ScoreSums, sum_scores

SAMPLE, DRAWN_SAMPLE = 256, 4096  # rows that are kept, without and with draws of labels


@dataclass(frozen=True, eq=False)
class ClassAccumulator(Accumulator):
    """The contents of a state of class probabilities."""

    options: StateOptions
    row_sums: ScoreSums
    machine: Machine | None
    sums: BlockSums | None
    m: int  # classes of the problem that the lens induces

    @classmethod
    def empty(cls, options: StateOptions, threads: int | None) -> ClassAccumulator:
        m = options.seen_row().m
        machine = None if options.kernel.open_metrics() else Machine(options, m, threads)
        nothing = no_rows(m)
        return cls(
            options=options,
            row_set=RowSet(),
            pending_batches=(),
            row_sums=ScoreSums.empty(m, options.n_bins),
            open_rows=OpenRows(block_size(options), nothing, {}),
            sample=RowSample.empty(DRAWN_SAMPLE if options.n_kernel_resamples else SAMPLE, options.seed, nothing),
            bandwidth_rows=0,
            machine=machine,
            sums=None if machine is None else machine.zeros(),
            m=m,
        )

    def with_classes(self, classes: tuple[Any, ...] | None, threads: int | None) -> Self:
        """Return the contents with the classes of the first samples, if none were given."""
        if len(self.row_set) or classes is None or self.options.classes is not None:
            return self
        options = replace(self.options, classes=classes)
        options.root()  # a kernel between numbers needs classes that are numbers
        machine = None if self.machine is None else Machine(options, self.m, threads)
        return replace(self, options=options, machine=machine, sums=None if machine is None else machine.zeros())

    def add(self, batch: Batch, threads: int | None) -> Self:
        return Accumulator.add(self.with_classes(batch.classes, threads), batch, threads)

    def merge(self, other: Accumulator, threads: int | None) -> Self:
        assert isinstance(other, ClassAccumulator)
        self = self.with_classes(other.options.classes, threads)
        return Accumulator.merge(self, other.with_classes(self.options.classes, threads), threads)

    @classmethod
    def of(cls, options: StateOptions, arrays: Mapping[str, np.ndarray], threads: int | None) -> Self:
        new = super().of(options, arrays, threads)
        n_weighted = new.row_sums.n_weighted - np.count_nonzero(new.open_rows.rows().weights != 1)  # in sums of blocks
        drawn = None if new.sums is None else new.sums.drawn
        if n_weighted and drawn is not None and drawn.fractions is None:
            raise ValueError("the rows have weights, but not the draws of their labels; make the state again")
        return new

    def check_values(self, rows: Rows) -> None:
        p, labels = rows.predictions, rows.targets
        if not np.all((p >= 0) & (p <= 1)) or not np.all(np.abs(p.sum(axis=1) - 1) <= MOST):  # NaN is neither
            raise ValueError("there are rows whose predictions are no probabilities")
        if labels.min() < 0 or labels.max() >= self.m:
            raise ValueError(f"there are labels beyond 0 to {self.m - 1}")

    def _join_pending_batches(self) -> Rows:
        labels, p, *others = join_batches(self.pending_batches)
        data = self.options.lens.induced(Classification(labels, p, None, None, self.pending_batches[0].epsilon))
        return Rows(number_rows(self.pending_batches), np.ascontiguousarray(data.probabilities), data.labels, *others)

    def _sum_row_scores(self, rows: Rows, epsilon: float, threads: int | None) -> ScoreSums:
        return sum_scores(rows, self.options.n_bins, epsilon, threads)

    def fix_bandwidths(self, threads: int | None, *, elsewhere: bool = False) -> Self:
        if self.machine is not None:
            return self
        points = self.first_points()
        with explain_bandwidths():
            kernel, medians = resolve([points], self.options.kernel, threads, elsewhere=elsewhere)
        return self.with_kernel(kernel, sign_row_count(len(points), medians), threads)

    def first_points(self) -> np.ndarray:
        """Return the predictions that determine the bandwidths."""
        return self.first_rows().predictions

    def with_kernel(self, kernel: Kernel, bandwidth_rows: int, threads: int | None) -> Self:
        """Return the contents with these bandwidths, medians of `bandwidth_rows` rows, if they are missing."""
        if self.machine is not None:
            return self
        options = replace(self.options, kernel=kernel)
        return self.with_bandwidths(options, Machine(options, self.m, threads), bandwidth_rows)

    def bin_totals(self, threads: int | None) -> BinTotals:
        """Return the totals that need no kernel."""
        n, row_sums = self.check_not_empty(), self.flush(threads).row_sums
        scores = dict(zip(SCORES, row_sums.scores.to_float().tolist(), strict=True))
        check_weights(n, row_sums.n_weighted, scores["weight_squared"])
        return BinTotals(
            n,
            row_sums.n_weighted,
            scores,
            self.options.clusters,
            row_sums.cells.to_float(),
            row_sums.extremes,
            self.options.lens,
        )

    def totals(self, threads: int | None) -> Totals:
        """Return the totals with open rows; at least two rows if the bandwidth is unknown."""
        bin_totals = self.bin_totals(threads)
        self.check_two_rows()
        final = self.finalize(threads)
        machine, sums = final.machine, final.sums
        assert machine is not None and sums is not None
        rows, seen, of_kernel = final.sample.rows, machine.seen, sums.kernels[SEEN]
        unit = seen.feature_unit * seen.target_unit
        names = final.options.classes if isinstance(final.options.lens, Canonical) else None
        classes = None if names is None else Classes(names)
        weights = rows.weights if bin_totals.n_weighted else None
        sample = Classification(rows.targets, rows.predictions, weights, classes, 2.0**-52, lens=final.options.lens)
        own = np.bincount(seen.map.groups, of_kernel.own.to_float(), seen.map.n_groups)
        statistics = machine.kernel_statistics(sums)
        return Totals(
            **vars(bin_totals),
            kernel=final.options.kernel,
            bandwidth_rows=final.bandwidth_rows or None,
            map=final.options.map(final.m),
            root=final.options.root(),
            sums=of_kernel.sums.to_float() * unit,
            own=own[:, None] * unit**2,
            null_own=float(of_kernel.null_own.to_float()) * unit**2,
            drawn=statistics[SEEN][1:] if SEEN in statistics else None,
            sample=sample,
            sample_rows=rows.numbers,
            labels=sums.labels,
            drawn_cells=sums.drawn,
            temperatures=sums.temperatures,
            kernel_statistics=tuple(statistics[name] for name in (SEEN, WIDE, FINER) if name in statistics),
            cluster_blocks=None if machine.clusters is None else machine.make_cluster_blocks(sums),
        )


def induced(batch: Batch, lens: Lens) -> Classification:
    """Apply the lens to a batch, without weights."""
    return lens.induced(Classification(batch.targets, batch.predictions, None, None, batch.epsilon))
