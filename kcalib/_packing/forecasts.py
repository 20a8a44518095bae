"""Pack targets and predicted distributions as a pair problem.

resolve          both kernels with bandwidths as numbers, the same for all compared models
PredictionPoints points for the kernel on predictions: parameters, Wasserstein points, parameters of mixtures (metric
                 "mmd"), or positions in a table of distances
TargetFactor     features: observed minus predicted
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._input.forecasts import Forecasts
from kcalib._packing.atoms import TARGET_SEED
from kcalib._packing.packed import Alike, Packed, medians_of, pack_alike, pack_locations
from kcalib._packing.prediction_points import PredictionPoints, warn_indefinite
from kcalib._packing.target_factors import BinFactor, compact, side_of, target_factor
from kcalib._pairs.problem import PairProblem, Side
from kcalib.bandwidth import MedianDistance, NoLengthScaleError, median_of_points
from kcalib.distributions import Distribution, Quantiles
from kcalib.kernels import LARGEST, MMD, SMALLEST, VECTOR_METRICS, Exponential, Gaussian, Kernel, RadialKernel
from kcalib.target_kernels import Draws, MahalanobisGaussian, TargetKernel

DELTA_BANDWIDTH = 0.02  # of a Gaussian kernel that is 0 between different integers, also in float32


@dataclass(frozen=True)
class Resolved:
    """Both kernels with bandwidths as numbers, and their sources."""

    kernel: Kernel
    target_kernel: Any  # a Kernel, MahalanobisGaussian, or Draws with one of them
    points: tuple[PredictionPoints, ...]  # one entry for each model
    medians: dict[str, list[MedianDistance]]  # by metric, of the models that have one
    target_medians: dict[str, list[MedianDistance]]


@pack_alike.register(Forecasts)
def _pack_alike(
    first: Forecasts,
    *further_models: Forecasts,
    kernel: Kernel | None,
    target_kernel: TargetKernel,
    threads: int | None = None,
) -> Alike:
    models = (first, *further_models)
    kernels = resolve(models, kernel, target_kernel, threads, elsewhere=False)
    medians, target_medians = (
        () if further_models else tuple(by_model[0] for by_model in by_metric.values())
        for by_metric in (kernels.medians, kernels.target_medians)
    )
    packed = []
    for model, points in zip(models, kernels.points, strict=True):
        target = dataclasses.replace(target_factor(model, kernels.target_kernel), medians=target_medians)
        side, terms = target.side(model, points.values, threads), points.terms(kernels.kernel)
        is_definite, kernel_repr = points.is_definite(kernels.kernel), str(kernels.kernel)
        problem = PairProblem(side, None, terms, target.mixtures, points.predicted, points.table, kernel_repr)
        packed.append(Packed(problem, kernels.kernel, medians, target, is_definite, points.route))
    return Alike(tuple(packed), kernels.medians, kernels.target_medians)


@pack_locations.register(Forecasts)
def _pack_locations(
    data: Forecasts,
    locations: Forecasts,
    kernel: Kernel | None,
    target_kernel: TargetKernel,
    *,
    threads: int | None = None,
) -> Packed:
    kernels = resolve([data], kernel, target_kernel, threads, elsewhere=True)
    medians, target_medians = (
        tuple(by_model[0] for by_model in by_metric.values()) for by_metric in (kernels.medians, kernels.target_medians)
    )
    points = kernels.points[0].reaching(locations.prediction)
    target = dataclasses.replace(target_factor(data, kernels.target_kernel), medians=target_medians)
    right = target.side(data, points.values, threads)
    observed = target.of_predictions(locations) if isinstance(target, BinFactor) else target
    left = side_of(data, points.points_of(locations.prediction), observed.observed(locations.y))
    table = points.table_between(locations.prediction)
    problem = PairProblem(
        left, right, points.terms(kernels.kernel), target.mixtures, points.predicted, table, str(kernels.kernel)
    )
    return Packed(problem, kernels.kernel, medians, target, points.is_definite(kernels.kernel), points.route)


def prediction_kernel_problem(prediction: Distribution, kernel: Kernel | None, threads: int | None) -> PairProblem:
    """Return K_ij = k(P_i, P_j) without targets: all features are 1."""
    expected = prediction.expected_value()
    data = Forecasts(expected, prediction, None)
    kernels = resolve([data], kernel, Gaussian(bandwidth=1.0), threads, elsewhere=False)
    points = kernels.points[0]
    ones = arrays.namespace(points.values).ones_like(points.values[:, :1])
    side = Side(compact(points.values), ones)
    return PairProblem(side, None, points.terms(kernels.kernel), None, points.predicted, points.table)


# -- kernels with bandwidths -------------------------------------------------------------------


def resolve(
    models: Sequence[Forecasts],
    kernel: Kernel | None,
    target_kernel: TargetKernel,
    threads: int | None,
    *,
    elsewhere: bool,
) -> Resolved:
    """Return both kernels; a missing bandwidth is the median over the models of a median distance.

    With `elsewhere` the kernel on predictions will be used for other predictions, so that identical ones are an error.
    The kernel on targets depends on the predictions only, so that tests with drawn targets are exact.
    """
    target_medians: dict[str, list[MedianDistance]] = {}
    draws: list[Array] = []

    def target_bandwidth(metric: str) -> float:
        if not draws:
            draws.extend(_draw_targets(model) for model in models)
        are_counts = all(model.prediction.support == "count" for model in models)
        with no_scale_of("targets"):
            median = medians_of(
                draws,
                lambda draw: _median_of_targets(draw, metric, are_counts),
                target_medians,
                metric,
                elsewhere=elsewhere,
            )
        return median if target_medians[metric][0].value > 0 else _typical_deviation(models)

    kernel, target = check_kernels(models, kernel, target_kernel)
    target = _resolve_target(target, {metric: target_bandwidth(metric) for metric in open_metrics(target)})
    if any(_is_open(factor) for factor in kernel.factors()):
        mmd = MMD(target_bandwidth("euclidean"))
        kernel = kernel.mapped(lambda factor: dataclasses.replace(factor, metric=mmd) if _is_open(factor) else factor)
    points = tuple(PredictionPoints.of(model.prediction, kernel) for model in models)
    medians: dict[str, list[MedianDistance]] = {}

    def bandwidth(metric: Any) -> float:
        with no_scale_of("predictions"):
            median = medians_of(
                points,
                lambda model_points: model_points.median(metric, threads),
                medians,
                str(metric),
                elsewhere=elsewhere,
            )
        identical = medians[str(metric)][0].value == 0 and not isinstance(metric, MMD)
        return _typical_deviation(models) if identical else median

    kernel = kernel.resolve({metric: bandwidth(metric) for metric in kernel.open_metrics()})
    return Resolved(kernel, target, points, medians, target_medians)


@contextmanager
def no_scale_of(values: str) -> Iterator[None]:
    """Name the values without a length scale in errors of the median heuristic."""
    try:
        yield
    except NoLengthScaleError as error:
        raise NoLengthScaleError(error.n, of=values) from None


def check_kernels(
    models: Sequence[Forecasts], kernel: Kernel | None, target_kernel: TargetKernel
) -> tuple[Kernel, Any]:
    """Return both kernels, or the defaults; bandwidths may be missing."""
    if any(isinstance(model.prediction, Quantiles) for model in models):
        target = _check_bins(models, target_kernel)
    else:
        target = _check_target(models, target_kernel)
    kernel = _default_kernel(models) if kernel is None else kernel
    if not isinstance(kernel, Kernel):
        raise TypeError(f"`kernel` is {kernel!r}, expected a kernel such as kcalib.kernels.Exponential(bandwidth=0.5)")
    return kernel, target


def _is_open(factor: RadialKernel) -> bool:
    """Return whether a factor has the MMD as metric and no bandwidth."""
    return isinstance(factor.metric, MMD) and factor.metric.bandwidth is None


def _draw_targets(model: Forecasts) -> Array:
    draws = model.prediction.sample(1, seed=TARGET_SEED)
    return model.xp.reshape(draws, (model.n, model.n_dims))


def _median_of_targets(targets: Array, metric: str, are_counts: bool) -> MedianDistance:
    if are_counts and bool(arrays.namespace(targets).all(targets == targets[:1, :])):
        # Of rates near 0 all are 0; the first that are not are 1.
        return MedianDistance(1.0, metric, int(targets.shape[0]), True, None)
    return median_of_points(targets, metric)


def _typical_deviation(models: Sequence[Forecasts]) -> float:
    """Return the largest root mean square standard deviation of a model, or 1: a bandwidth for equal targets."""
    deviations = [model.prediction.standard_deviation() for model in models]
    scale = max(float(arrays.namespace(values).mean(values**2)) ** 0.5 for values in deviations)
    return min(max(scale, SMALLEST), LARGEST) if scale > 0 else 1.0


def _default_kernel(models: Sequence[Forecasts]) -> Kernel:
    pointed = all(_first_prediction(model).wasserstein_points() is not None for model in models)
    return Exponential(metric="wasserstein" if pointed else "mmd")


def _first_prediction(model: Forecasts) -> Distribution:
    """Return the first prediction, as an example of all."""
    return model.prediction.take(arrays.like(np.arange(min(1, model.n)), model.reference))


def default_target_kernel(models: Sequence[Forecasts]) -> Kernel:
    """Return a Gaussian kernel, or for Laplace distributions an exponential one, which has closed forms."""
    components = [model.prediction.components() for model in models]
    return Exponential() if all(c is not None and c.family == "laplace" for c in components) else Gaussian()


def _check_bins(models: Sequence[Forecasts], target_kernel: TargetKernel) -> str:
    """Return the Kronecker delta, the only kernel for binned targets."""
    levels = {m.prediction.levels.tobytes() if isinstance(m.prediction, Quantiles) else b"" for m in models}
    if len(levels) > 1:
        others = [type(m.prediction).__name__ for m in models if not isinstance(m.prediction, Quantiles)]
        raise ValueError(
            f"models predict Quantiles and {others[0] if others else 'Quantiles of other levels'}, whose residuals are "
            "not alike; pass quantiles of each model at the same levels: Quantiles(levels, y_pred.quantile(levels))"
        )
    if not (target_kernel is None or (isinstance(target_kernel, str) and target_kernel == "delta")):
        raise ValueError(
            f"`target_kernel` is {target_kernel}, but Quantiles are unknown between the levels; leave it out"
        )
    return "delta"


def _check_target(models: Sequence[Forecasts], target_kernel: TargetKernel) -> Any:
    """Return the kernel on targets, or the default."""
    if isinstance(target_kernel, Draws):
        return dataclasses.replace(target_kernel, kernel=_check_target(models, target_kernel.kernel))
    if target_kernel is None:
        return default_target_kernel(models)
    if isinstance(target_kernel, str) and target_kernel == "delta":
        if any(model.prediction.support != "count" for model in models):
            raise ValueError(
                "`target_kernel` is 'delta', for classes and counts: numbers that are predicted with a density are "
                "never equal; use kcalib.kernels.Gaussian(), or leave it out"
            )
        return Gaussian(bandwidth=DELTA_BANDWIDTH)
    if isinstance(target_kernel, MahalanobisGaussian):
        if len(target_kernel.matrix) != models[0].n_dims:
            raise ValueError(f"`target_kernel` is {target_kernel}, but the targets have dimension {models[0].n_dims}")
        return target_kernel
    if not isinstance(target_kernel, Kernel):
        raise TypeError(
            f"`target_kernel` is {target_kernel!r}, expected a kernel between targets, such as "
            "kcalib.kernels.Gaussian(), MahalanobisGaussian or Draws of kcalib.target_kernels"
        )
    for factor in target_kernel.factors():
        if factor.metric not in VECTOR_METRICS:
            raise ValueError(
                f"`target_kernel` is {target_kernel}, with a metric between distributions, but targets are numbers; "
                "use metric='euclidean'"
            )
        if models[0].n_dims > 1 and not factor.is_positive_definite():
            warn_indefinite(
                f"{factor} on targets",
                f"in {models[0].n_dims} dimensions {factor.why_indefinite()}",
            )
    return target_kernel


def open_metrics(target: Any) -> tuple[str, ...]:
    """Return the metrics of a kernel on targets without bandwidth."""
    if isinstance(target, Draws):
        return open_metrics(target.kernel)
    return () if isinstance(target, (MahalanobisGaussian, str)) else target.open_metrics()


def _resolve_target(target: Any, bandwidths: dict[str, float]) -> Any:
    if isinstance(target, Draws):
        return dataclasses.replace(target, kernel=_resolve_target(target.kernel, bandwidths))
    return target if isinstance(target, (MahalanobisGaussian, str)) else target.resolve(bandwidths)
