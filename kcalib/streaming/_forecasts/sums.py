"""Sums over rows of predicted distributions, block by block: of scores, and of features with target features.

A block has 1024 consecutive row numbers. Its rows are summed in float64 in a fixed order, and blocks are added exactly.
`ForecastMachine` computes them for kernels with known bandwidths.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.memory import check_memory
from kcalib._backend.sums import Sums
from kcalib._backend.threads import resolve_threads
from kcalib._input.forecasts import ROWS, Forecasts, draw_targets, row_uniforms
from kcalib._packing.prediction_points import PredictionPoints, row_points
from kcalib._packing.target_factors import target_factor
from kcalib._packing.target_features import (
    ExactTargetFeatures,
    RandomTile,
    TargetFeatures,
    Tile,
    closed_target_features,
)
from kcalib._pairs.feature_sums import sum_products
from kcalib.distributions import Distribution
from kcalib.estimators.forecasts.quantile_calibration import pit_at, pit_uniforms
from kcalib.inference.adaptive.flips import FlipMachine, FlippedBlocks
from kcalib.inference.adaptive.sheets import PitRows, pit_sheets
from kcalib.streaming._forecasts.options import ForecastOptions
from kcalib.streaming._forecasts.scores import ForecastScores, scores_of_block
from kcalib.streaming._row_sums.cluster_sums import ClusterSums
from kcalib.streaming._row_sums.kernel_sums import largest_length, power_of_two
from kcalib.streaming._row_sums.rows import Rows

COLUMNS_AT_ONCE = 2**9  # columns of target features of drawn targets that are added up together


@dataclass(frozen=True, eq=False)
class DrawnTargets(Sums):
    """Sums for targets drawn from the predictions."""

    _stored: ClassVar = {"sums": "drawn_sums", "squares": "drawn_squares"}

    sums: ExactSums  # sum phi (x) a, shape (n_resamples, n_columns + n_fine, r)
    squares: ExactSums  # sum |a|^2, shape (n_resamples,)

    def add(self, draws: slice, sums: np.ndarray, squares: np.ndarray) -> None:
        """Add the sums of some draws in a block, in place."""
        for total, values in ((self.sums, sums), (self.squares, squares)):
            new = ExactSums(total.high[draws], total.low[draws]) + ExactSums.of(values)
            total.high[draws], total.low[draws] = new.high, new.low


@dataclass(frozen=True, eq=False)
class ForecastSums(Sums):
    """Sums of features and target features in the units of the `ForecastMachine`."""

    sums: ExactSums  # sum phi (x) a, shape (n_columns + n_fine, r), of the kernel and, with draws, the fine one
    target_squares: ExactSums  # sum |a_h|^2 of each independent group h of target features
    null_squares: ExactSums  # sum w^2 E |a|^2 of targets drawn from the predictions
    scores: ForecastScores
    drawn: DrawnTargets | None
    clusters: ClusterSums | None


class BlockSums(NamedTuple):
    """Sums of a block of rows, in float64."""

    sums: np.ndarray
    target_squares: np.ndarray
    null_squares: np.ndarray
    scores: ForecastScores
    drawn: list[tuple[slice, np.ndarray, np.ndarray]]  # which draws, and their sums and squares
    clusters: ClusterSums | None


class ForecastMachine:
    """Computes sums of blocks; features and target features are divided by powers of two to be about 1."""

    def __init__(self, options: ForecastOptions, threads: int | None) -> None:
        self.options, self.threads = options, threads
        self.family = options.family
        assert options.kernel is not None
        points = PredictionPoints.of_rows(self.family.row, options.kernel)
        self.space = points.space
        feature_map = options.map()
        self.feature_unit = power_of_two(largest_length(feature_map))
        maps = [feature_map, options.fine_map()] if options.n_resamples or options.clusters else [feature_map]
        self.maps = [replace(part, amplitudes=part.amplitudes / self.feature_unit) for part in maps]
        self.n_draws = 0 if options.clusters else options.n_resamples
        if options.levels:
            self.target_unit, self.target_groups = 2.0, np.zeros(len(options.levels) + 1, dtype=np.int64)
        else:
            self.target_map, self.frequencies = options.target_map(feature_map.n_columns)
            # No vector of target features is longer than the features of two targets.
            self.target_unit = power_of_two(2 * float(np.linalg.norm(self.target_map.amplitudes)))
            self.target_groups = np.tile(self.target_map.groups, 2)
        self.n_target_groups = int(self.target_groups.max()) + 1
        self.clusters: FlipMachine | None = None
        if options.clusters:
            sheets, n_frequencies = pit_sheets(has_pit=not self.family.row.event_shape), len(self.target_groups) // 2
            self.clusters = FlipMachine(sheets, self.maps, options.n_flips, options.seed, 1, n_frequencies)

    def zeros(self) -> ForecastSums:
        columns = sum(part.n_columns for part in self.maps)
        r, draws = len(self.target_groups), self.n_draws
        what = f"the sums of {draws} draws of targets, of {columns} by {r} features each"
        check_memory(16 * draws * columns * r, None, what, "make the state with fewer `n_resamples` or `n_columns`")
        return ForecastSums(
            ExactSums.zeros(columns, r),
            ExactSums.zeros(self.n_target_groups),
            ExactSums.zeros(),
            ForecastScores.zeros(self.options),
            DrawnTargets(ExactSums.zeros(draws, columns, r), ExactSums.zeros(draws)) if draws else None,
            None if self.clusters is None else ClusterSums.zeros(self.clusters, r),
        )

    def add(self, sums: ForecastSums, pieces: Iterable[Rows]) -> ForecastSums:
        """Add rows of blocks; each piece is ascending, and has all rows of its blocks."""
        drawn = None if sums.drawn is None else sums.drawn.copy()
        new = replace(sums, drawn=None)
        for block in self._blocks(pieces):
            products, squares, null_squares = map(ExactSums.of, (block.sums, block.target_squares, block.null_squares))
            new = new + ForecastSums(products, squares, null_squares, block.scores, None, block.clusters)
            for draws, of_draws, lengths in block.drawn:
                assert drawn is not None
                drawn.add(draws, of_draws, lengths)
        return replace(new, drawn=drawn)

    def _blocks(self, pieces: Iterable[Rows]) -> Iterator[BlockSums]:
        blocks = [block for rows in pieces for block in blocks_of(rows)]
        workers = min(resolve_threads(self.threads), len(blocks))
        stopped = threading.Event()
        if workers <= 1:
            yield from (self._block(rows, stopped) for rows in blocks)
            return
        with ThreadPoolExecutor(workers) as pool:
            try:
                for begin in range(0, len(blocks), workers):  # as many are in memory
                    some = blocks[begin : begin + workers]
                    yield from pool.map(self._block, some, [stopped] * len(some))
            finally:
                stopped.set()  # after an interrupt the pool waits for those that it has begun

    def _block(self, rows: Rows, stopped: threading.Event) -> BlockSums:
        options, prediction = self.options, self.family.distribution(rows.predictions)
        data = Forecasts(rows.targets, prediction, None)
        scores = scores_of_block(data, rows.weights, rows.numbers, options)
        points = row_points(self.space, prediction)
        tile = self.target_features(prediction).tile(slice(None))
        scale = (rows.weights / self.target_unit)[:, None]
        target_features = tile.target_features(rows.targets) * scale
        squares = np.bincount(
            self.target_groups, np.sum(target_features * target_features, axis=0), self.n_target_groups
        )
        if isinstance(tile, RandomTile):
            amplitudes = self.target_map.amplitudes / self.target_unit
            lengths = -(tile.real * (2 + tile.real) + tile.imaginary**2) @ amplitudes**2
        else:  # E |e|^2 = 1 - |p|^2, with the same probabilities of bins for all
            lengths = np.full(data.n, 1 - np.sum(prediction.bin_probabilities**2)) / self.target_unit**2
        drawn = itertools.takewhile(lambda _: not stopped.is_set(), self._drawn(rows, prediction, points, tile, scale))
        return BlockSums(
            self._summed(points, target_features),
            squares,
            np.asarray(np.sum(rows.weights**2 * lengths)),
            scores,
            list(drawn),
            None if self.clusters is None else self._flip(rows, data, points, target_features),
        )

    def _flip(self, rows: Rows, data: Forecasts, points: np.ndarray, target_features: np.ndarray) -> ClusterSums:
        """Return the sums of rows of one block, with flipped signs of clusters."""
        assert self.clusters is not None
        has_pit = not data.prediction.event_shape
        pit = pit_at(data, pit_uniforms(self.options.seed, rows.numbers)) if has_pit else np.full(data.n, 0.5)
        return ClusterSums.of_rows(self.clusters, PitRows(pit, rows.numbers), points, target_features, rows)

    def make_cluster_blocks(self, sums: ForecastSums) -> FlippedBlocks:
        """Return the blocks of the test of samples in clusters."""
        assert self.clusters is not None and sums.clusters is not None
        units = (self.feature_unit * self.target_unit,) * len(self.maps)
        return sums.clusters.make_blocks(self.clusters, units, "targets")

    def _drawn(
        self, rows: Rows, prediction: Distribution, points: np.ndarray, tile: Tile, scale: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Return sums for drawn targets, which depend on seed, draw and row number only."""
        n_draws, r, per_row = self.n_draws, len(self.target_groups), prediction._n_uniforms
        assert per_row is not None
        at_once = max(1, COLUMNS_AT_ONCE // r)
        for first in range(0, n_draws, at_once):
            draws = range(first, min(first + at_once, n_draws))
            targets = draw_targets(prediction, row_uniforms(self.options.seed, draws, rows.numbers, per_row))
            target_features = [tile.target_features(y) * scale for y in targets]
            sums = self._summed(points, np.concatenate(target_features, axis=1)).reshape(-1, len(draws), r)
            squares = np.array([np.sum(features * features) for features in target_features])
            yield slice(draws.start, draws.stop), np.moveaxis(sums, 1, 0), squares

    def _summed(self, points: np.ndarray, target_features: np.ndarray) -> np.ndarray:
        return np.concatenate([sum_products(part, points, target_features, threads=1)[0] for part in self.maps])

    def target_features(self, prediction: Distribution) -> TargetFeatures:
        """Return target features; the centre of phases is 0, as in all states."""
        if self.options.levels:
            factor = target_factor(Forecasts(np.zeros((prediction.n, 1)), prediction, None), self.options.target_kernel)
            return ExactTargetFeatures(factor, factor.route)
        means = np.asarray(prediction.expected_value(), dtype=np.float64)
        return closed_target_features(
            prediction, self.target_map, means, np.zeros((1, means.shape[1])), self.frequencies
        )

    @property
    def n_columns(self) -> int:
        """Number of columns of the kernel, before those of the fine one."""
        return self.maps[0].n_columns

    def group_lengths(self, which: int = 0) -> np.ndarray:
        """Return |phi_g|^2 of each group of features of a kernel, the same for all rows."""
        feature_map = self.maps[which]
        return np.bincount(feature_map.groups, feature_map.amplitudes**2, feature_map.n_groups)

    def drawn_totals(self, drawn: DrawnTargets) -> np.ndarray:
        """Return sum_{i != j} H_ij for each draw, shape (2, n_resamples), for the kernel and the fine one."""
        totals = []
        for high, low in zip(drawn.sums.high, drawn.sums.low, strict=True):
            squares = np.sum(ExactSums(high, low).to_float() ** 2, axis=1)
            totals.append((np.sum(squares[: self.n_columns]), np.sum(squares[self.n_columns :])))
        own = [float(np.sum(self.group_lengths(which))) * drawn.squares.to_float() for which in (0, 1)]
        return (np.array(totals).T - np.array(own)) * (self.feature_unit * self.target_unit) ** 2


def blocks_of(rows: Rows) -> Iterator[Rows]:
    """Yield the rows of each block, given ascending rows."""
    ends = np.append(np.flatnonzero(np.diff(rows.numbers // ROWS)) + 1, len(rows.numbers))
    for begin, end in zip(np.append(0, ends[:-1]).tolist(), ends.tolist(), strict=True):
        yield rows.take(slice(begin, end))
