"""The SKCE of several models with one kernel, and the paired variance of differences.

Over all pairs, or, if these would take more than about a second for a model, by random features of the kernel. All
models share the features, which pairs their differences, except for MMD distances of predictions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_seed
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._packing.features import FeatureProblem, MapOptions, features_of
from kcalib._pairs import statistics
from kcalib._pairs.backends.base import Backend
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.feature_sums import feature_rows
from kcalib._pairs.reductions import DenseRectangle, Moments, MomentSums, sweep_one
from kcalib._pairs.statistics import Spread
from kcalib.bandwidth import MAX_SAMPLES
from kcalib.estimators.feature_moments import feature_moments
from kcalib.estimators.few_errors import few_errors
from kcalib.inference.metrics import certainty
from kcalib.inference.metrics.certainty import FeatureError
from kcalib.inference.metrics.measured import (
    EPSILON,
    ROUNDINGS,
    STRIP,
    Estimate,
    Metric,
    MetricResult,
    PackedModels,
    SharedOptions,
    largest_entry,
    subset,
    without_own,
)
from kcalib.inference.metrics.pair_laws import pair_variances
from kcalib.inference.task import PAIRS_WORK
from kcalib.kernels import Kernel
from kcalib.results import ConfidenceInterval, FewErrors
from kcalib.target_kernels import TargetKernel

Entries = Callable[[np.ndarray, np.ndarray], Array]  # of rows and columns


@dataclass(frozen=True, eq=False)
class SKCE(Metric):
    """The unbiased estimate of `kcalib.skce`.

    Parameters
    ----------
    kernel : Kernel, optional
        The kernel on predictions, common to all models, since values under different kernels are not comparable.
        Default: `kcalib.kernels.Exponential`. A bandwidth of None is the median over the models of the bandwidth that
        `kcalib.skce` would take, the median distance between predictions; models whose predictions are all identical
        are ignored.
    target_kernel : optional
        As in `kcalib.skce`, common to all models; for distributions a bandwidth of None is the median over the models
        of the bandwidth that `kcalib.skce` would take.
    dtype : {"float64", "float32"}, optional
        As in `kcalib.skce`.

    Examples
    --------
    >>> import kcalib
    >>> y, models = [0, 1, 1, 0], {"a": [0.2, 0.8, 0.9, 0.2], "b": [0.4, 0.6, 0.6, 0.4]}
    >>> metric = kcalib.methods.SKCE(kernel=kcalib.kernels.Gaussian(bandwidth=0.5))
    >>> kcalib.compare(y, models, metric=metric).kernel
    'Gaussian(bandwidth=0.5)'
    """

    kernel: Kernel | None = None
    target_kernel: TargetKernel = None
    dtype: Any = None

    name: ClassVar[str] = "skce"
    kinds: ClassVar[tuple[type[Data], ...]] = (Classification, Forecasts)
    has_backend: ClassVar[bool] = True

    def measure(self, data: Sequence[Data], confidence_level: float, options: SharedOptions) -> MetricResult:
        return _measure(
            data, PackedModels.of(data, self.kernel, self.target_kernel, options.threads), confidence_level, options
        )


def _measure(
    data: Sequence[Data], packed_models: PackedModels, confidence_level: float, options: SharedOptions
) -> MetricResult:
    n, seed = data[0].n, check_seed(options.seed)
    rows, subset_seed = subset(n, MAX_SAMPLES, seed)
    summed = _by_features(data, packed_models, rows, options, seed) or _by_pairs(packed_models, options)
    moments = summed.moments
    squares = square_differences(summed.entries, rows) * n * (n - 1)
    laws = pair_variances(data, packed_models.packed, rows, summed.weights, threads=options.threads) * n * (n - 1)
    largest = math.sqrt(max(m.sum_of_squares or 0.0 for m in moments) / (n * (n - 1)))
    resolution = ROUNDINGS * float(np.finfo(data[0].dtype).eps) * largest
    most = largest_entry(packed_models.packed[0])

    def value(i: int) -> Estimate:
        few = few_errors(data[i], packed_models.packed[i])
        return value_estimate(
            statistics.spread_of(moments[i]), laws[i, i], summed.added(i), few, confidence_level, most
        )

    def difference(i: int, j: int) -> Estimate:
        difference_moments = _minus(moments[i], moments[j], squares[i, j])
        return difference_estimate(
            statistics.spread_of(difference_moments), laws[i, j], summed.added(i, j), confidence_level, most, resolution
        )

    return MetricResult(
        values=[value(i) for i in range(len(data))],
        differences=[difference(i, j) for i, j in itertools.combinations(range(len(data)), 2)],
        estimator=summed.estimator,
        intervals="t, differences paired, upper limits of values from a score interval",
        described=summed.fields | {"dtype": data[0].dtype, "seed": seed if summed.added(0) else subset_seed},
    )


@dataclass(frozen=True)
class _Summed:
    """Sums over the matrices H of all models, with the kernel or with features, and some of their entries."""

    n: int
    moments: list[MomentSums]
    entries: list[Entries]
    weights: list[Entries] | None  # values of the kernel on predictions, if they come from features
    group_totals: list[Sequence[np.ndarray]] | None  # of each model by independent groups of features of both kernels
    estimator: str
    fields: dict[str, Any]  # fields of `Comparison`

    def added(self, i: int, j: int | None = None) -> FeatureError | None:
        """Return the error that random features add to a value, or to a difference, for which they are shared."""
        if self.group_totals is None:
            return None
        other_totals = None if j is None else self.group_totals[j]
        return feature_error_of_groups(self.group_totals[i], other_totals, self.n)


def feature_error_of_groups(
    group_totals: Sequence[np.ndarray], other_totals: Sequence[np.ndarray] | None, n: int
) -> FeatureError | None:
    """Return the error from group totals for both kernels, of one or two models; None if no features were drawn."""
    total = None
    for k, totals in enumerate(group_totals):
        values = totals if other_totals is None else totals - other_totals[k]
        if len(values) > 1:
            error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) / (n * (n - 1))
            part = FeatureError(error, len(values) - 1)
            total = part if total is None else FeatureError(*part.to(total.error, total.df))
    return total


def _by_pairs(packed_models: PackedModels, options: SharedOptions) -> _Summed:
    backends = _backends(packed_models, options)

    def entries(backend: Backend) -> Entries:
        points = backend.problem.left.points
        return lambda rows, columns: sweep_one(
            backend, DenseRectangle(arrays.like(rows, points), arrays.like(columns, points))
        )

    return _Summed(
        n=packed_models.models[0].n,
        moments=[_on_host_or_device(sweep_one(backend, Moments(second=True))) for backend in backends],
        entries=[entries(backend) for backend in backends],
        weights=None,
        group_totals=None,
        estimator="unbiased estimator",
        fields=packed_models.describe(backends[0]),
    )


def _by_features(
    data: Sequence[Data], packed_models: PackedModels, rows: np.ndarray, options: SharedOptions, seed: int
) -> _Summed | None:
    """Return sums by one map for all models; None if all pairs take about a second, or the kernel has no features."""
    backend = _backends(packed_models, options)[0]
    work = data[0].n ** 2 / 2 * backend.problem.multiply_adds  # compared with the same limit as in `evaluate`
    if options.backend is not None or backend.on_a_line or work <= PAIRS_WORK:
        return None
    problems: list[FeatureProblem] = []
    try:
        for model, packed in zip(data, packed_models.packed, strict=True):
            first = problems[0] if problems else None
            map_options = MapOptions(seed=seed, threads=options.threads, reference=first)
            problems.append(features_of(model, packed, map_options))
    except (ValueError, NotImplementedError):
        return None
    description = problems[0].described()
    n_columns = description["n_columns"]
    is_shared = all(problem.map is problems[0].map for problem in problems)
    # Embeddings of distributions have their own coordinates.
    map_note = "the same for all models" if is_shared else "drawn for each model"
    moments = [feature_moments(problem) for problem in problems]
    tiles = [FeatureTiles.of(problem, rows) for problem in problems]
    return _Summed(
        n=data[0].n,
        moments=[_on_host_or_device(model) for model in moments],
        entries=[model.entries for model in tiles],
        weights=[model.values for model in tiles],
        group_totals=[(model.group_totals, model.target_group_totals) for model in moments],
        estimator=f"unbiased estimator by {n_columns} random features of the kernel, {map_note}",
        fields=packed_models.describe(backend)
        | {name: description[name] for name in ("backend", "backend_reason", "n_columns")},
    )


def _backends(packed_models: PackedModels, options: SharedOptions) -> list[Backend]:
    return [
        backend_for(model.problem, backend=options.backend, threads=options.threads) for model in packed_models.packed
    ]


@dataclass(frozen=True)
class FeatureTiles:
    """Entries of the matrix H of features between some samples."""

    rows: np.ndarray  # ascending
    features: Array  # shape (rows, columns)
    target_features: Array

    @classmethod
    def of(cls, problem: FeatureProblem, rows: np.ndarray) -> FeatureTiles:
        points, target_features = (arrays.to_compute_device(a) for a in (problem.points, problem.target_features))
        at = arrays.like(rows, points)
        features = arrays.to_compute_device(feature_rows(problem.map, points[at], threads=problem.threads))
        return cls(rows, features, target_features[at].astype(np.float64))

    def values(self, rows: np.ndarray, columns: np.ndarray) -> Array:
        left, right = (arrays.like(np.searchsorted(self.rows, of), self.features) for of in (rows, columns))
        return linalg.matmul(self.features[left], self.features[right].T)

    def entries(self, rows: np.ndarray, columns: np.ndarray) -> Array:
        left, right = (arrays.like(np.searchsorted(self.rows, of), self.target_features) for of in (rows, columns))
        return self.values(rows, columns) * linalg.matmul(self.target_features[left], self.target_features[right].T)


def _on_host_or_device(m: MomentSums) -> MomentSums:
    rows, diagonal = (arrays.to_compute_device(a) for a in (m.row_sums, m.diagonal))
    return MomentSums(float(m.total), rows, None, diagonal, m.sum_of_squares, float(m.trace))


def _minus(a: MomentSums, b: MomentSums, sum_of_squares: float) -> MomentSums:
    """Return the moments of H^A - H^B."""
    assert a.row_sums is not None and b.row_sums is not None
    return MomentSums(a.total - b.total, a.row_sums - b.row_sums, None, None, sum_of_squares, None)


def value_estimate(
    spread: Spread,
    null_squares: float,
    added: FeatureError | None,
    few: FewErrors | None,
    confidence_level: float,
    most: float,
) -> Estimate:
    """Return the SKCE of a model, which is at most `most`."""
    n = spread.n
    return certainty.estimate_pair_value(
        spread.total / (n * (n - 1)),
        spread.standard_error(null_squares),
        spread.score_variance(null_squares),
        n,
        confidence_level,
        most,
        equal=_are_equal(spread),
        added=added,
        few_errors=few,
    )


def difference_estimate(
    spread: Spread,
    null_squares: float,
    added: FeatureError | None,
    confidence_level: float,
    most: float,
    resolution: float,
) -> Estimate:
    """Return the difference of two models, from sums over H^A - H^B."""
    n = spread.n
    return certainty.estimate_pair_difference(
        spread.total / (n * (n - 1)),
        spread.generous_standard_error(null_squares),
        n,
        confidence_level,
        ConfidenceInterval(-most, most),
        resolution=resolution,
        equal=_are_equal(spread),
        added=added,
    )


def _are_equal(spread: Spread) -> bool:
    """Return whether all off-diagonal entries are equal, up to rounding of a difference of squares."""
    squares, pairs = spread.sum_of_squares, spread.n * (spread.n - 1)
    return squares - spread.total**2 / pairs <= ROUNDINGS * EPSILON * squares


def square_differences(models: Sequence[Entries], rows: np.ndarray) -> np.ndarray:
    """Return the mean of (H^A_ij - H^B_ij)^2 over pairs i != j of `rows`, for each two models."""
    sums = np.zeros((len(models), len(models)))
    for begin in range(0, len(rows), STRIP):
        strip = rows[begin : begin + STRIP]
        tiles = [without_own(entries(strip, rows), begin) for entries in models]
        for i, j in itertools.combinations(range(len(models)), 2):
            sums[i, j] += linalg.squared_norm(tiles[i] - tiles[j])
    return sums / (len(rows) * (len(rows) - 1))
