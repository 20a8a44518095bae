r"""Metrics of weighted or clustered samples, by a jackknife that leaves out whole clusters.

With the value :math:`\theta` of all samples and :math:`\theta_{-g}` without cluster g of G, the squared standard error
is :math:`(G - 1) / G \sum_g (\theta_{-g} - \bar\theta)^2`, for values and for differences. Weighted samples without
clusters are clusters of size one. The variance of means of time series comes from their autocovariances.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import OptionError, check_seed
from kcalib._backend.threads import one_blas_thread
from kcalib._input.data import Data
from kcalib._packing.features import FeatureProblem, MapOptions, features_of
from kcalib._pairs.feature_sums import feature_rows
from kcalib.inference.metrics import certainty
from kcalib.inference.metrics.certainty import FeatureError
from kcalib.inference.metrics.measured import (
    EPSILON,
    ROUNDINGS,
    Estimate,
    Metric,
    MetricResult,
    PackedModels,
    SharedOptions,
)
from kcalib.inference.metrics.scores import MeanMetric
from kcalib.inference.metrics.skce import SKCE
from kcalib.results import ConfidenceInterval

UNLIMITED = ConfidenceInterval(-math.inf, math.inf)
FEWEST_CLUSTERS = 4
CHUNK_ENTRIES = 2**22


@dataclass(frozen=True, eq=False)
class LeftOut:
    """The value of a model, with and without each cluster."""

    value: float
    without: np.ndarray  # shape (clusters,)
    of_groups: np.ndarray  # values by independent groups of random features, with the value as mean; empty if exact

    def __sub__(self, other: LeftOut) -> LeftOut:
        return LeftOut(self.value - other.value, self.without - other.without, self.of_groups - other.of_groups)

    def estimate(self, confidence_level: float, resolution: float, largest: float = math.inf) -> Estimate:
        n = len(self.without)
        error, df = math.sqrt((n - 1) * float(np.var(self.without))), n - 1.0
        n_groups = len(self.of_groups)
        if n_groups > 1:
            of_features = float(np.std(self.of_groups, ddof=1)) / math.sqrt(n_groups)
            error, df = FeatureError(of_features, n_groups - 1.0).to(error, df)
        return _of_units(self.value, error, df, n, confidence_level, resolution, largest)


def _of_units(
    value: float, error: float, df: float, n: int, confidence_level: float, resolution: float, largest: float
) -> Estimate:
    """Return a value of n clusters or blocks; equal differences of at most `largest` are as for samples."""
    limits = certainty.compute_student_limits(value, error, df, confidence_level)
    if 0 < resolution < abs(value) and error <= resolution * math.sqrt(df + 1):
        limits = certainty.compute_unseen_limits(
            value, n, confidence_level, ConfidenceInterval(-largest, largest), order=1
        )
    return certainty.limit_certainty(value, error, limits, n, confidence_level, UNLIMITED, resolution)


def measure_clusters(
    metric: Metric, data: Sequence[Any], confidence_level: float, options: SharedOptions
) -> MetricResult:
    """Measure models whose samples have weights or clusters."""
    option = "sample_weight" if options.clusters is None else "clusters"
    if options.time_blocks is not None:
        option = "time_blocks"
    if not isinstance(metric, (SKCE, MeanMetric)):
        names = "'skce' or the mean of a score, such as 'brier_score'"
        raise OptionError(option, f"has no meaning for the metric {metric.name!r}; use {names}")
    if options.backend is not None:
        raise OptionError("backend", f"sums pairs of samples that count alike, and `{option}` is given; leave it out")
    units = {"sample_weight": "samples", "clusters": "clusters", "time_blocks": "blocks"}[option]
    codes = np.arange(data[0].n) if options.clusters is None else np.unique(options.clusters, return_inverse=True)[1]
    n_clusters = int(np.count_nonzero(np.bincount(codes, _weights_of(data[0]))))
    if n_clusters < FEWEST_CLUSTERS:
        raise ValueError(
            f"`{option}` leaves {n_clusters} {units} of positive weight, expected at least {FEWEST_CLUSTERS} for "
            "standard errors"
        )
    if isinstance(metric, MeanMetric) and options.time_blocks is not None:
        return _measure_in_time(metric, data, confidence_level, options.time_blocks)
    if isinstance(metric, SKCE):
        measured, estimator, described = _leave_out_of_pairs(metric, data, codes, options)
    else:
        measured = [_leave_out_of_mean(metric.losses(model), model, codes) for model in data]
        estimator, described = "weighted mean" if options.clusters is None else "mean", {}
    size = max(abs(model.value) + float(np.max(np.abs(model.without))) for model in measured)
    resolution, largest = ROUNDINGS * EPSILON * size, _range_of(metric, data)
    return MetricResult(
        values=[replace(model.estimate(confidence_level, 0.0), pvalue=math.nan) for model in measured],
        differences=[
            (a - b).estimate(confidence_level, resolution, largest) for a, b in itertools.combinations(measured, 2)
        ],
        estimator=estimator,
        intervals=f"t, paired, by a jackknife over {n_clusters} {units}",
        described=described,
    )


def _range_of(metric: Metric, data: Sequence[Any]) -> float:
    return max(map(metric.range_of, data)) if isinstance(metric, MeanMetric) else math.inf


def _weights_of(data: Data) -> np.ndarray:
    return np.ones(data.n) if data.sample_weight is None else np.asarray(arrays.to_host(data.sample_weight))


def _measure_in_time(metric: MeanMetric, data: Sequence[Data], confidence_level: float, reach: int) -> MetricResult:
    """Measure means of losses in time order that depend on each other within `reach` steps."""
    losses = [np.asarray(arrays.to_host(metric.losses(model)), dtype=np.float64) for model in data]
    weights = _weights_of(data[0])
    losses, largest = [np.where(weights > 0, values, 0.0) for values in losses], _range_of(metric, data)
    weighting = ""

    def estimate(values: np.ndarray, resolution: float) -> Estimate:
        nonlocal weighting
        n, mean = len(values), float(np.average(values, weights=weights))
        deviations = weights / np.mean(weights) * (values - mean)
        products = np.array([deviations[k:] @ deviations[: n - k] for k in range(reach)]) / n
        spread = 2 * np.sum(products) - products[0]
        if spread <= ROUNDINGS * EPSILON * products[0]:
            if products[0] > 0:
                weighting = "; Bartlett's weights where the variance would be negative"
            spread = 2 * (1 - np.arange(reach) / reach) @ products - products[0]
        correction = (n + 1 - 2 * reach + reach * (reach - 1) / n) / n
        error = math.sqrt(max(0.0, spread) / (n * correction))
        return _of_units(mean, error, n - 1, -(-n // reach), confidence_level, resolution, largest)

    resolution = ROUNDINGS * EPSILON * max(float(np.max(np.abs(values))) for values in losses)
    return MetricResult(
        values=[replace(estimate(values, 0.0), pvalue=math.nan) for values in losses],
        differences=[estimate(a - b, resolution) for a, b in itertools.combinations(losses, 2)],
        estimator="mean" if data[0].sample_weight is None else "weighted mean",
        intervals=f"t, paired, by autocovariances up to lag {reach - 1} (Diebold and Mariano, Harvey's correction)"
        + weighting,
    )


def _leave_out_of_mean(losses: Array, data: Data, codes: np.ndarray) -> LeftOut:
    weights = _weights_of(data)
    terms = np.where(weights > 0, weights * arrays.to_host(losses), 0.0)
    sums, of_clusters = np.bincount(codes, terms), np.bincount(codes, weights)
    rest, counts = np.sum(of_clusters) - of_clusters, of_clusters > 0
    without = (np.sum(sums) - sums[counts]) / rest[counts]
    return LeftOut(float(np.sum(sums) / np.sum(of_clusters)), without, np.empty(0))


def _leave_out_of_pairs(
    metric: SKCE, data: Sequence[Data], codes: np.ndarray, options: SharedOptions
) -> tuple[list[LeftOut], str, dict[str, Any]]:
    """Return the SKCE over pairs of different clusters, by random features that all models share."""
    seed = check_seed(options.seed)
    packed_models = PackedModels.of(data, metric.kernel, metric.target_kernel, options.threads)
    problems: list[FeatureProblem] = []
    for model, packed in zip(data, packed_models.packed, strict=True):
        reference = problems[0] if problems else None
        problems.append(features_of(model, packed, MapOptions(seed=seed, threads=options.threads, reference=reference)))
    about = problems[0].described()
    own = {name: about[name] for name in ("backend", "backend_reason", "n_columns", "threads")}
    measured = [_leave_out_of_features(problem, codes) for problem in problems]
    estimator = f"unbiased estimator by {about['n_columns']} random features, pairs of different clusters"
    described = about | own | {"bandwidth_source": packed_models.source, "dtype": "float64", "seed": seed}
    return measured, estimator, described


@one_blas_thread()
def _leave_out_of_features(problem: FeatureProblem, codes: np.ndarray) -> LeftOut:
    order = np.argsort(codes, kind="stable")
    targets = np.asarray(arrays.to_host(problem.target_features), dtype=np.float64)
    width = problem.map.n_columns * targets.shape[1]
    weights = np.bincount(codes, _weights_of(problem.data))
    sums, squares, products = np.zeros(width), np.zeros(width), []

    def rows_of(rows: np.ndarray) -> np.ndarray:
        return _multiply_features(problem, rows, targets[rows])

    for of_clusters in _sum_clusters(order, codes, width, rows_of):
        sums += np.sum(of_clusters, axis=0)
        squares += np.sum(of_clusters**2, axis=0)
    for of_clusters in _sum_clusters(order, codes, width, rows_of):
        products.append(of_clusters @ sums - np.sum(of_clusters**2, axis=1))
    without = np.sum(sums**2 - squares) - 2 * np.concatenate(products)
    others, own = np.sum(weights) - weights, np.sum(weights**2) - weights**2
    pairs = np.sum(weights) ** 2 - np.sum(weights**2)
    columns = np.sum((sums**2 - squares).reshape(problem.map.n_columns, -1), axis=1)
    n_groups = problem.map.n_groups
    of_groups = np.bincount(np.tile(problem.map.groups, 2), columns) * n_groups / pairs
    return LeftOut(
        float(np.sum(sums**2 - squares) / pairs),
        (without / (others**2 - own))[weights > 0],
        of_groups if n_groups > 1 else np.empty(0),
    )


def _sum_clusters(
    order: np.ndarray, codes: np.ndarray, width: int, rows_of: Callable[[np.ndarray], np.ndarray]
) -> Iterator[np.ndarray]:
    """Yield sums of rows over clusters, shape (clusters, width): each cluster once, in the order of their numbers."""
    step = max(1, CHUNK_ENTRIES // width)
    last_sum, last = np.zeros((0, width)), -1
    for begin in range(0, len(order), step):
        rows = order[begin : begin + step]
        starts = np.flatnonzero(np.diff(codes[rows], prepend=-1))
        sums = np.add.reduceat(rows_of(rows), starts, axis=0)
        if codes[rows[0]] == last:
            sums[0] += last_sum[0]
        elif len(last_sum):
            yield last_sum
        last_sum, last = sums[-1:], codes[rows[-1]]
        yield sums[:-1]
    yield last_sum


def _multiply_features(problem: FeatureProblem, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the products of all kernel feature columns and all target feature columns of some samples."""
    points = arrays.namespace(problem.points).take(problem.points, arrays.like(rows, problem.points), axis=0)
    features = feature_rows(problem.map, np.asarray(arrays.to_host(points)), threads=problem.threads)
    return np.asarray((features[:, :, None] * targets[:, None, :]).reshape(len(rows), -1))
