"""The contents of a state of predicted distributions, whose family the first batch determines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.sums import Sums
from kcalib._input.forecasts import ROWS, Forecasts, prepare_forecasts
from kcalib._packing.forecasts import open_metrics
from kcalib.streaming._accumulator import (
    Accumulator,
    check_weights,
    explain_bandwidths,
    join_batches,
    number_rows,
    sign_row_count,
)
from kcalib.streaming._classes.totals import FeatureTotals, RowTotals
from kcalib.streaming._forecasts.families import Family
from kcalib.streaming._forecasts.options import ForecastOptions
from kcalib.streaming._forecasts.scores import SHARES, WIDE, ForecastScores, scores_of_block
from kcalib.streaming._forecasts.sums import ForecastMachine, ForecastSums, blocks_of
from kcalib.streaming._row_sums.rows import OpenRows, Rows, RowSample, RowSet, no_rows

SAMPLE = 1024  # rows that are kept
WEIGHTS = ("weight", "weight_squared")


@dataclass(frozen=True, eq=False)
class ForecastTotals(RowTotals):
    """Totals that need no kernel, in float64; `scores` includes the sums of `WIDE` and `SHARES`."""

    coverage: np.ndarray  # sums of weights of PIT values up to each of `levels_there_are`
    histogram: np.ndarray  # of PIT values in bins
    prediction: Any  # one distribution of the family
    pit_sums: np.ndarray  # of observed targets, then of each draw, shape (1 + n_pit_draws, N_SUMS); none of vectors


@dataclass(frozen=True, eq=False)
class ForecastFeatureTotals(ForecastTotals, FeatureTotals):
    """All totals of a state of predicted distributions."""

    target_kernel: Any  # with its bandwidths
    target_rows: int | None  # whose median distance, of one draw each, the target kernel's is; None: it was given
    machine: ForecastMachine
    sample: Forecasts
    fine_total: float | None  # sum_{i != j} H_ij of the fine kernel; None without draws
    fine_drawn: np.ndarray | None


@dataclass(frozen=True, eq=False)
class WeightSums(Sums):
    """Sums over single rows."""

    counts: np.ndarray  # of rows, and of rows whose weight is not 1
    weights: ExactSums  # in the order of `WEIGHTS`

    @property
    def n(self) -> int:
        return int(self.counts[0])

    @property
    def n_weighted(self) -> int:
        return int(self.counts[1])

    @property
    def is_full(self) -> bool:
        return self.weights.is_large()

    def weight_sums(self) -> tuple[float, float]:
        """Return the sums of weights and of their squares."""
        weight, squares = self.weights.to_float().tolist()
        return weight, squares


@dataclass(frozen=True, eq=False)
class ForecastAccumulator(Accumulator):
    """The contents of a state of predicted distributions."""

    options: ForecastOptions
    row_sums: WeightSums
    machine: ForecastMachine | None
    sums: ForecastSums | None
    target_rows: int  # as `bandwidth_rows`, of the target kernel

    @classmethod
    def empty(cls, options: ForecastOptions, threads: int | None) -> ForecastAccumulator:
        nothing = no_rows(0, 0)
        if options.prediction is not None:
            nothing = no_rows(options.family.n_columns, options.family.row.n_dims)
        machine = ForecastMachine(options, threads) if options.has_bandwidths else None
        return cls(
            options=options,
            row_set=RowSet(),
            pending_batches=(),
            row_sums=WeightSums(np.zeros(2, np.int64), ExactSums.zeros(len(WEIGHTS))),
            open_rows=OpenRows(ROWS, nothing, {}),
            sample=RowSample.empty(SAMPLE, options.seed, nothing),
            bandwidth_rows=0,
            machine=machine,
            sums=None if machine is None else machine.zeros(),
            target_rows=0,
        )

    def of_family(self, family: Family, threads: int | None) -> ForecastAccumulator:
        """Return the contents for predictions of this family."""
        known = self.options.prediction
        if known is None:
            return ForecastAccumulator.empty(self.options.of_family(family), threads)
        if self.options.family != family:
            is_padded = family.name == self.options.family.name == "Samples"
            remedy = "make a state for each family"
            if is_padded:
                remedy = "pad all to one number of samples with NaN, for Samples(..., missing='drop')"
            raise ValueError(f"`y_pred` is {family}, but the state is of {self.options.family}; {remedy}")
        return self

    def merge(self, other: Accumulator, threads: int | None) -> Self:
        assert isinstance(other, ForecastAccumulator)
        if other.options.prediction is None or self.options.prediction is None:
            return self._merged_with_none(other, threads)
        new = super().merge(other, threads)
        return replace(new, target_rows=max(self.target_rows, other.target_rows, key=abs))

    def _merged_with_none(self, other: ForecastAccumulator, threads: int | None) -> Any:
        """Merge if one of both has no rows and no family yet."""
        if self.options.prediction == other.options.prediction:
            different = self.options.difference(other.options)
            if different is not None:
                raise ValueError(different)
            return self
        if other.options.prediction is None:
            return self.merge(other.of_family(self.options.family, threads), threads)
        return self.of_family(other.options.family, threads).merge(other, threads)

    def _join_pending_batches(self) -> Rows:
        targets, predictions, *others = join_batches(self.pending_batches)
        return Rows(number_rows(self.pending_batches), predictions, targets, *others)

    def _sum_row_scores(self, rows: Rows, epsilon: float, threads: int | None) -> WeightSums:
        weights = rows.weights
        both = ExactSums.over_rows(np.stack([weights, weights * weights], axis=1))
        return WeightSums(np.array([len(weights), np.count_nonzero(weights != 1)]), both)

    def fix_bandwidths(self, threads: int | None, *, elsewhere: bool = False) -> Self:
        if self.machine is not None:
            return self
        first = self.first_rows()
        assert self.options.kernel is not None
        n, of_kernel, of_target = len(first.numbers), self.options.kernel.open_metrics(), self._open_target
        with explain_bandwidths():
            options, medians, target_medians = self.options.resolved(first.predictions, threads, elsewhere)
        new = self.with_bandwidths(
            options, ForecastMachine(options, threads), sign_row_count(n, medians) if of_kernel else 0
        )
        return replace(new, target_rows=sign_row_count(n, target_medians) if of_target else 0)

    @property
    def _open_target(self) -> bool:
        return bool(open_metrics(self.options.target_kernel))

    def to_arrays(self) -> dict[str, np.ndarray]:
        return super().to_arrays() | {"target_rows": np.array(self.target_rows, dtype=np.int64)}

    @classmethod
    def of(cls, options: Any, arrays: Any, threads: int | None) -> Self:
        return replace(super().of(options, arrays, threads), target_rows=int(arrays["target_rows"]))

    def check_values(self, rows: Rows) -> None:
        prediction = self.options.family.checked(rows.predictions)
        prepare_forecasts(rows.targets if prediction.event_shape else rows.targets[:, 0], prediction)

    def score_totals(self, threads: int | None) -> ForecastTotals:
        """Return the totals that need no kernel."""
        n, settled = self.check_not_empty(), self.flush(threads)
        row_sums, options = settled.row_sums, settled.options
        weights = dict(zip(WEIGHTS, row_sums.weights.to_float().tolist(), strict=True))
        check_weights(n, row_sums.n_weighted, weights["weight_squared"])
        scores = ForecastScores.zeros(options) if settled.sums is None else settled.sums.scores
        if settled.open_rows.pieces:
            for rows in blocks_of(settled.open_rows.rows()):
                data = Forecasts(rows.targets, options.family.distribution(rows.predictions), None)
                scores = scores + scores_of_block(data, rows.weights, rows.numbers, options)
        wide = dict(zip(WIDE, scores.wide.to_float().tolist(), strict=True))
        shares = dict(zip(SHARES, scores.shares.to_float().tolist(), strict=True))
        return ForecastTotals(
            n,
            row_sums.n_weighted,
            weights | wide | shares,
            options.clusters,
            scores.coverage.to_float(),
            scores.histogram.to_float(),
            options.family.row,
            scores.pit_sums.to_float(),
        )

    def totals(self, threads: int | None) -> ForecastFeatureTotals:
        """Return the totals with open rows; at least two rows if bandwidths are unknown."""
        score_totals = self.score_totals(threads)
        self.check_two_rows()
        final = self.finalize(threads)
        options, machine, sums, rows = final.options, final.machine, final.sums, final.sample.rows
        assert machine is not None and sums is not None and options.kernel is not None
        unit, weighted = machine.feature_unit * machine.target_unit, score_totals.n_weighted > 0
        all_sums, target_squares, n_columns = (
            sums.sums.to_float() * unit,
            sums.target_squares.to_float(),
            machine.n_columns,
        )
        lengths = machine.group_lengths()
        drawn = fine_total = fine_drawn = None
        if sums.drawn is not None:
            drawn, fine_drawn = machine.drawn_totals(sums.drawn)
            fine_own = float(np.sum(machine.group_lengths(1))) * float(np.sum(target_squares)) * unit**2
            fine_total = float(np.sum(all_sums[n_columns:] ** 2)) - fine_own
        prediction = options.family.distribution(rows.predictions)
        return ForecastFeatureTotals(
            **vars(score_totals),
            kernel=options.kernel,
            bandwidth_rows=final.bandwidth_rows or None,
            map=options.map(),
            sums=all_sums[:n_columns],
            own=np.outer(lengths, target_squares) * unit**2,
            null_own=float(np.sum(lengths)) * float(sums.null_squares.to_float()) * unit**2,
            drawn=drawn,
            fine_total=fine_total,
            fine_drawn=fine_drawn,
            sample=Forecasts(rows.targets, prediction, rows.weights if weighted else None),
            sample_rows=rows.numbers,
            cluster_blocks=None if machine.clusters is None else machine.make_cluster_blocks(sums),
            target_kernel=options.target_kernel,
            target_rows=final.target_rows or None,
            machine=machine,
        )
