"""Metrics of models on the same rows, from the totals of their states and the sums of pairs of models.

They follow `inference.metrics`. If the states keep all rows, these functions get the losses and bins of the rows.
Otherwise the variance of paired scores is exact, that of the SKCE comes from the rows that all states keep, and limits
of an ECE use normal deviations instead of a bootstrap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kcalib._input.labels import Classification
from kcalib._pairs.statistics import Spread
from kcalib.bandwidth import MAX_SAMPLES
from kcalib.estimators.binning import reliability_bins
from kcalib.estimators.scores import log_loss_of
from kcalib.inference.metrics import certainty, scores
from kcalib.inference.metrics.binned_gaps import estimate_of
from kcalib.inference.metrics.ece import ECE
from kcalib.inference.metrics.measured import (
    EPSILON,
    ROUNDINGS,
    Estimate,
    MetricResult,
    SharedOptions,
    largest_entry,
    subset,
)
from kcalib.inference.metrics.pair_laws import pair_variances
from kcalib.inference.metrics.possible import EVENTS, Possible
from kcalib.inference.metrics.skce import (
    FeatureTiles,
    difference_estimate,
    feature_error_of_groups,
    square_differences,
    value_estimate,
)
from kcalib.results import ConfidenceInterval
from kcalib.streaming._classes.binned_results import N_REPLICATES, gaps_of, scores_of
from kcalib.streaming._classes.kernel_results import LabelResults, sum_about_mean
from kcalib.streaming._classes.pair_sums import LOSSES, PairSums, ece_difference
from kcalib.streaming._classes.totals import Totals
from kcalib.streaming._options import StateOptions

SHARED = (
    "kernel",
    "bandwidth",
    "bandwidth_source",
    "target_kernel",
    "target_factor",
    "prediction_distances",
    "n_columns",
    "backend",
    "backend_reason",
)
SAME = 1e-12  # relative difference of equal values


@dataclass(frozen=True)
class Compared:
    """States of models with their sums."""

    totals: Sequence[Totals]  # of each model
    pairs: Sequence[PairSums]  # in the order of itertools.combinations
    options: StateOptions
    threads: int | None

    @property
    def n(self) -> int:
        return self.totals[0].n

    @property
    def samples(self) -> list[Classification]:
        return [totals.sample for totals in self.totals]

    @property
    def numbers(self) -> list[tuple[int, int]]:
        return list(itertools.combinations(range(len(self.totals)), 2))

    def has_all(self, values: Sequence[float], of: Callable[[Classification], float]) -> bool:
        """Return whether the states keep all rows, and `of` these rows returns the same values."""
        if self.n > self.totals[0].sample.n:
            return False
        return all(
            math.isclose(value, of(sample), rel_tol=SAME, abs_tol=SAME)
            for value, sample in zip(values, self.samples, strict=True)
        )


def skce(compared: Compared, confidence_level: float) -> MetricResult:
    models = [LabelResults.of(totals, compared.options, compared.threads) for totals in compared.totals]
    n, problems = compared.n, [model.problem for model in models]
    rows, _ = subset(compared.totals[0].sample.n, MAX_SAMPLES, compared.options.seed)
    tiles = [FeatureTiles.of(problem, rows) for problem in problems]
    squares = square_differences([tile.entries for tile in tiles], rows) * n * (n - 1)
    packed = [problem.packed for problem in problems]
    weights = [tile.values for tile in tiles]
    laws = pair_variances(compared.samples, packed, rows, weights, threads=compared.threads) * n * (n - 1)
    most = largest_entry(packed[0])
    largest = math.sqrt(max(model.spread.sum_of_squares for model in models) / (n * (n - 1)))
    groups = [[model.moments.group_totals, model.moments.target_group_totals] for model in models]

    def value(i: int) -> Estimate:
        model = models[i]
        null, added = max(model.null_squares, laws[i, i]), feature_error_of_groups(groups[i], None, n)
        return value_estimate(model.spread, null, added, model.few_errors(), confidence_level, most)

    def difference(i: int, j: int) -> Estimate:
        spread = _difference(models[i], models[j], squares[i, j])
        added = feature_error_of_groups(groups[i], groups[j], n)
        return difference_estimate(spread, laws[i, j], added, confidence_level, most, ROUNDINGS * EPSILON * largest)

    described = models[0].described()
    return MetricResult(
        values=[value(i) for i in range(len(models))],
        differences=[difference(i, j) for i, j in compared.numbers],
        estimator=f"unbiased estimator by {described['n_columns']} random features, the same for all models",
        intervals="t, differences paired, upper limits of values from a score interval",
        described={name: described[name] for name in (*SHARED, "seed", "dtype", "threads")},
    )


def _difference(a: LabelResults, b: LabelResults, squares: float) -> Spread:
    """Return the spread of H^A - H^B, from the rows that both keep."""
    n, total = a.n, float(a.moments.total) - float(b.moments.total)
    unseen = (math.sqrt(a.unseen) + math.sqrt(b.unseen)) ** 2
    deviations = sum_about_mean(a.rows[0] - b.rows[0], n) + unseen
    squares += (a.lacking + b.lacking) ** 2
    return Spread(n, total, 0.0, squares, deviations + total**2 / n, deviations, 0.0)


def top_label_ece(compared: Compared, confidence_level: float) -> MetricResult:
    options, n = compared.options, compared.n
    gaps = [gaps_of(totals.cells[totals.confidences][0], n) for totals in compared.totals]
    values = [model_gaps.ece for model_gaps in gaps]
    if compared.has_all(values, lambda sample: reliability_bins(sample, options.n_bins).ece):
        return ECE(options.n_bins).measure(compared.samples, confidence_level, SharedOptions(seed=options.seed))
    used = [np.flatnonzero(totals.cells[totals.confidences][0, :, 0] > 0) for totals in compared.totals]
    n_replicates = max(N_REPLICATES, math.ceil(4 * len(compared.pairs) / (1 - confidence_level)))

    def value(i: int) -> Estimate:
        random = np.random.default_rng((options.seed, i))
        return estimate_of(gaps[i], confidence_level, n_replicates, random, options.seed)

    def difference(i: int, j: int, sums: PairSums) -> Estimate:
        bins = used[i], used[j]
        return ece_difference(gaps[i], gaps[j], bins, sums, confidence_level, n_replicates, options.seed)

    return MetricResult(
        values=[value(i) for i in range(len(gaps))],
        differences=[difference(i, j, sums) for (i, j), sums in zip(compared.numbers, compared.pairs, strict=True)],
        estimator=f"top-label ECE with {options.n_bins} bins",
        intervals=f"bounds on the error of the ECE, paired, by {n_replicates} normal deviations, seed {options.seed}",
        described={"n_bins": options.n_bins, "n_resamples": n_replicates, "seed": options.seed},
    )


def brier(compared: Compared, confidence_level: float) -> MetricResult:
    half = 0.5 if compared.samples[0].m == 2 else 1.0
    limits, possible = scores.brier_law(compared.samples)
    if compared.n <= compared.totals[0].sample.n:
        return scores.BrierScore().measure(compared.samples, confidence_level, SharedOptions())
    return _means(compared, "brier_score", half, confidence_level, limits, possible)


def log_loss(compared: Compared, confidence_level: float) -> MetricResult:
    limits, possible = scores.log_loss_law(compared.samples)
    values = [scores_of(totals).log_loss.value for totals in compared.totals]
    if compared.has_all(values, log_loss_of):
        return scores.LogLoss().measure(compared.samples, confidence_level, SharedOptions())
    return _means(compared, "log_loss", 1.0, confidence_level, limits, possible)


def _means(
    compared: Compared,
    metric: str,
    scale: float,
    confidence_level: float,
    limits: ConfidenceInterval,
    possible: dict[tuple[int, ...], Possible],
) -> MetricResult:
    n, sample_size = compared.n, compared.totals[0].sample.n
    means = [getattr(scores_of(totals), metric) for totals in compared.totals]
    rare = {models: targets for models, targets in possible.items() if targets.events * n / sample_size < EVENTS}
    width = limits.high - limits.low

    def value(i: int) -> Estimate:
        mean, error = means[i].value, means[i].standard_error
        return scores.mean_estimate(mean, error, n, None, confidence_level, limits, rare.get((i,)), 0.0)

    def difference(i: int, j: int, sums: PairSums) -> Estimate:
        mean = means[i].value - means[j].value
        square = scale**2 * float(sums.squares.to_float()[LOSSES.index(metric)])
        error = math.sqrt(max(0.0, square / n - mean**2) / (n - 1))
        resolution = ROUNDINGS * EPSILON * (means[i].value + means[j].value)
        if square == 0:
            return certainty.make_equal(mean, 0.0)
        both = ConfidenceInterval(-width, width)
        return scores.mean_estimate(mean, error, n, None, confidence_level, both, rare.get((i, j)), resolution)

    return MetricResult(
        values=[value(i) for i in range(len(means))],
        differences=[difference(i, j, sums) for (i, j), sums in zip(compared.numbers, compared.pairs, strict=True)],
        estimator="mean",
        intervals="t, paired" + (", allowing for targets too rare to be seen" if rare else ""),
    )


METRICS: dict[str, Callable[[Compared, float], MetricResult]] = {
    "skce": skce,
    "ece": top_label_ece,
    "brier_score": brier,
    "log_loss": log_loss,
}
