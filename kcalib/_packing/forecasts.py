"""From targets and predicted distributions to a pair problem; `_packing` calls it, as for class labels itself.

resolve          both kernels with bandwidths as numbers, the same for all models that are compared
PredictionPoints what the kernel on predictions has distances of: parameters, Wasserstein points, parameters of
                 mixtures (metric "mmd"), or positions in a table of distances
TargetFactor     marks, which say what was observed minus what was predicted: in closed form where the target
                 kernel has one for the family (`kcalib._pairs.mixtures`), else by draws
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.warnings import IndefiniteKernelWarning, warn
from kcalib._input.forecasts import Forecasts
from kcalib._packing.target_features import (
    FEATURES_PER_EVALUATION,
    LARGEST_RANK,
    FeatureMap,
    TargetFeatures,
    count_features,
    target_features,
)
from kcalib._pairs import mixtures
from kcalib._pairs.operators.device_mixtures import uploaded
from kcalib._pairs.problem import Factor, Metric, Mixtures, PairProblem, Side, Term
from kcalib.bandwidth import MedianDistance, median_of_entries, median_of_points
from kcalib.distributions import Components, Distribution, NegativeBinomial, Poisson
from kcalib.distributions._distribution import take_rows
from kcalib.distributions.mixture_distances import wasserstein_table
from kcalib.kernels import METRICS, MMD, SMALLEST, Exponential, Gaussian, Kernel, MixtureWasserstein, RadialKernel
from kcalib.target_kernels import Draws, MahalanobisGaussian, TargetKernel

TARGET_SEED = 0  # of the draws from the predictions whose median distance is the default bandwidth on targets
DELTA_BANDWIDTH = 0.02  # a Gaussian kernel that is 0 between different integers, in float32 too
DRAWS = Draws()

NEARLY_EXACT = 1e-11  # error of a target factor, relative to the kernel: far below its statistical error
FEWEST_ATOMS = 4  # of a prediction, for which features are tried
LARGEST_COUNT = 20_000  # of which probabilities are tabulated

Space = str | MMD | MixtureWasserstein
Groups = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Resolved:
    """Both kernels with their bandwidths as numbers, and where these come from."""

    kernel: Kernel
    target_kernel: Any  # a Kernel, MahalanobisGaussian, or Draws with one of them
    points: tuple[PredictionPoints, ...]  # of each model
    medians: dict[str, list[MedianDistance]]  # by metric, of the models that have one
    target_medians: dict[str, list[MedianDistance]]


@dataclass(frozen=True)
class ForecastProblem:
    """A pair problem, and the kernels with bandwidths as numbers."""

    problem: PairProblem
    kernel: Kernel
    target: TargetFactor
    points: PredictionPoints
    medians: tuple[MedianDistance, ...]
    target_medians: tuple[MedianDistance, ...]


def pack_forecasts(
    data: Forecasts, kernel: Kernel | None, target_kernel: TargetKernel, threads: int | None
) -> ForecastProblem:
    """H_ij = k(P_i, P_j) <delta_{y_i} - P_i, delta_{y_j} - P_j>."""
    resolved = resolve([data], kernel, target_kernel, threads)
    return packed_with(data, resolved, 0)


def packed_with(data: Forecasts, resolved: Resolved, model: int) -> ForecastProblem:
    """The problem of one of the models that the kernels were resolved for."""
    points, target = resolved.points[model], target_factor(data, resolved.target_kernel)
    side = side_of(data, points.values, target.marks(data.y, data.sample_weight))
    problem = PairProblem(side, None, points.terms(resolved.kernel), target.mixtures, points.predicted, points.table)
    medians, of_targets = (
        tuple(found[model] for found in one.values() if len(found) > model)
        for one in (resolved.medians, resolved.target_medians)
    )
    return ForecastProblem(problem, resolved.kernel, target, points, medians, of_targets)


def pack_forecast_locations(
    data: Forecasts, locations: Forecasts, kernel: Kernel | None, target_kernel: TargetKernel, threads: int | None
) -> ForecastProblem:
    """H_ji = k(P_T, P_i) <delta_{y_T}, delta_{y_i} - P_i>: test locations T on the left, samples on the right."""
    packed = pack_forecasts(data, kernel, target_kernel, threads)
    points, target = packed.points, packed.target
    left = side_of(data, *points.beside(locations.prediction), target.observed(locations.y))
    table = points.table_between(locations.prediction)
    problem = dataclasses.replace(packed.problem, left=left, right=packed.problem.left, table=table)
    return dataclasses.replace(packed, problem=problem)


def prediction_kernel_problem(prediction: Distribution, kernel: Kernel | None, threads: int | None) -> PairProblem:
    """K_ij = k(P_i, P_j), without targets: all marks are 1."""
    expected = prediction.expected_value()
    resolved = resolve([Forecasts(expected, prediction, None)], kernel, Gaussian(bandwidth=1.0), threads)
    points = resolved.points[0]
    ones = arrays.namespace(points.values).ones_like(points.values[:, :1])
    side = Side(_compact(points.values), ones)
    return PairProblem(side, None, points.terms(resolved.kernel), None, points.predicted, points.table)


def side_of(data: Forecasts, points: Array, marks: Array) -> Side:
    xp = data.xp
    dtype = getattr(xp, data.dtype)
    return Side(*(xp.astype(_compact(a), dtype, copy=False) for a in (points, marks)))


def _compact(array: Array) -> Array:
    return np.ascontiguousarray(array) if arrays.is_host(array) else array


# -- kernels with bandwidths -------------------------------------------------------------------


def resolve(
    models: Sequence[Forecasts], kernel: Kernel | None, target_kernel: TargetKernel, threads: int | None
) -> Resolved:
    """Both kernels; a bandwidth that is not given is the median over the models of a median distance.

    That on targets is a function of the predictions alone, so that tests that draw targets from them are exact.
    """
    target_medians: dict[str, list[MedianDistance]] = {}
    draws: list[Array] = []

    def target_bandwidth(metric: str) -> float:
        if metric not in target_medians:
            if not draws:
                draws.extend(_one_draw(model) for model in models)
            target_medians[metric] = list(_found(draws, lambda points: median_of_points(points, metric)))
        return _middle(target_medians[metric])

    target = _with_bandwidth(_checked_target(models, target_kernel), target_bandwidth)
    kernel = _default_kernel(models) if kernel is None else kernel
    if not isinstance(kernel, Kernel):
        raise TypeError(f"`kernel` is {kernel!r}, expected a kernel such as kcalib.kernels.Exponential(bandwidth=0.5)")

    def with_metric(radial: RadialKernel) -> RadialKernel:
        if isinstance(radial.metric, MMD) and radial.metric.bandwidth is None:
            return dataclasses.replace(radial, metric=MMD(target_bandwidth("euclidean")))
        return radial

    kernel = kernel.mapped(with_metric)
    points = tuple(PredictionPoints.of(model.prediction, kernel) for model in models)
    medians: dict[str, list[MedianDistance]] = {}

    def bandwidth(metric: Any) -> float:
        if str(metric) not in medians:
            medians[str(metric)] = list(_found(points, lambda one: one.median(metric, threads)))
        return _middle(medians[str(metric)])

    return Resolved(kernel.resolve(bandwidth), target, points, medians, target_medians)


def _found(models: Sequence[Any], median: Callable[[Any], MedianDistance]) -> Iterator[MedianDistance]:
    """Of the models that have a length scale; an error if none has."""
    found = False
    for i, model in enumerate(models):
        try:
            yield median(model)
            found = True
        except ValueError:  # identical predictions only
            if i == len(models) - 1 and not found:
                raise


def _middle(medians: Sequence[MedianDistance]) -> float:
    return max(median(m.value for m in medians), SMALLEST)


def _one_draw(model: Forecasts) -> Array:
    draws = model.prediction.sample(1, seed=TARGET_SEED)
    return model.xp.reshape(draws, (model.n, model.n_dims))


def _default_kernel(models: Sequence[Forecasts]) -> Kernel:
    pointed = all(model.prediction.wasserstein_points() is not None for model in models)
    return Exponential(metric="wasserstein" if pointed else "mmd")


def default_target_kernel(models: Sequence[Forecasts]) -> Kernel:
    """Gaussian; for Laplace distributions, which have closed forms with it, exponential."""
    components = [model.prediction.components() for model in models]
    return Exponential() if all(c is not None and c.family == "laplace" for c in components) else Gaussian()


def _checked_target(models: Sequence[Forecasts], target_kernel: TargetKernel) -> Any:
    """The kernel on targets as the user wrote it, or the default."""
    if isinstance(target_kernel, Draws):
        return dataclasses.replace(target_kernel, kernel=_checked_target(models, target_kernel.kernel))
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
        if factor.metric not in METRICS:
            raise ValueError(
                f"`target_kernel` is {target_kernel}, with a metric between distributions, but targets are numbers; "
                "use metric='euclidean'"
            )
        if models[0].n_dims > 1 and not factor.is_positive_definite():
            _warn_indefinite(
                f"{factor} on targets",
                f"with this metric in {models[0].n_dims} dimensions only "
                "Exponential and GammaExponential(gamma <= 1) are known to be positive definite",
            )
    return target_kernel


def _with_bandwidth(target: Any, bandwidth: Callable[[str], float]) -> Any:
    if isinstance(target, Draws):
        return dataclasses.replace(target, kernel=_with_bandwidth(target.kernel, bandwidth))
    return target if isinstance(target, MahalanobisGaussian) else target.resolve(bandwidth)


def _warn_indefinite(what: str, reason: str) -> None:
    warn(
        f"{what} may be indefinite: {reason}. The estimate can then be negative or near 0 for a miscalibrated model; "
        "kcalib.smallest_eigenvalue tells how far, and Exponential(metric='mmd') is positive definite.",
        IndefiniteKernelWarning,
    )


# -- what the kernel on predictions sees -------------------------------------------------------


@dataclass(frozen=True)
class PredictionPoints:
    """Points of the predictions, of one space: distances of all factors of the kernel are taken there."""

    prediction: Distribution
    space: Space
    values: Array  # shape (n, p); parameters, Wasserstein points, mixtures' columns, or positions in the table
    predicted: Mixtures | None = None
    table: Array | None = None  # float64; beside `values` on a GPU, else on the host
    features: FeatureMap | None = None  # of which `values` are means: their distances are those of the metric

    @classmethod
    def of(cls, prediction: Distribution, kernel: Kernel) -> PredictionPoints:
        """For a kernel whose MMD metrics have bandwidths."""
        space = _space(prediction, kernel)
        _check_definite(prediction, kernel, space)
        if isinstance(space, MMD):
            components, terms = _mmd_components(prediction), _gaussian(space)
            if components.family == "atoms":
                found = _mean_features(components, terms)
                if found is not None:
                    return cls(prediction, space, found[1], features=found[0])
            return cls(prediction, space, *_mmd_columns(components, terms))
        if space == "parameters" or space == "wasserstein":
            values = prediction.parameters() if space == "parameters" else prediction.wasserstein_points()
            assert values is not None
            return cls(prediction, space, values)
        table = _table(prediction, None, space)
        return cls(prediction, space, _positions(prediction), None, table)

    def terms(self, kernel: Kernel) -> tuple[Term, ...]:
        """The kernel's normal form, with bandwidths as numbers."""
        metric: Metric | None = "table" if self.table is not None else None if self.predicted is None else "mmd"
        terms = kernel.mapped(_as_vectors).terms()
        for term in terms:
            if not 1e-30 <= term.coefficient <= 1e30:
                raise ValueError(
                    f"`kernel` has a term scaled by {term.coefficient:.3g}, expected scales between 1e-30 and 1e30 "
                    "after multiplying out; rescale the kernel"
                )
        if metric is None:
            return terms
        return tuple(
            Term(t.coefficient, tuple(dataclasses.replace(f, metric=metric) for f in t.factors)) for t in terms
        )

    def median(self, metric: Any, threads: int | None) -> MedianDistance:
        """The median heuristic."""
        if self.predicted is None and self.table is None:
            vectors = metric if isinstance(metric, str) and metric in METRICS else "euclidean"
            return dataclasses.replace(median_of_points(self.values, vectors, threads=threads), metric=str(metric))
        # Distances are the entries of a problem without bandwidths and targets.
        factor = Factor("identity", "mmd" if self.table is None else "table")
        ones = arrays.namespace(self.values).ones_like(self.values[:, :1])
        problem = PairProblem(Side(self.values, ones), None, (Term(1.0, (factor,)),), None, self.predicted, self.table)
        return median_of_entries(problem, str(metric))

    def beside(self, other: Distribution) -> tuple[Array]:
        """The points of other predictions of the family, for rows against these columns."""
        if self.table is not None:
            return (arrays.beside(_positions(other), self.values),)
        if self.features is not None:
            components = _mmd_components(other)
            if components.family != "atoms" or components.locations.shape[2] != self.prediction.n_dims:
                raise ValueError(_other_family(self.prediction, other))
            values = arrays.like(self.features.means(components.locations, components.weights)[0], self.values)
        elif isinstance(self.space, MMD):
            assert self.predicted is not None
            components = _mmd_components(other)
            if components.weights.shape[1] > self.predicted.n_components:
                raise ValueError(
                    f"`test_predictions` have {components.weights.shape[1]} components, `y_pred` has "
                    f"{self.predicted.n_components}; expected at most as many"
                )
            components = mixtures.padded(components, self.predicted.n_components)
            values, description = _mmd_columns(components, _gaussian(self.space))
            if description != self.predicted:
                raise ValueError(_other_family(self.prediction, other))
        else:
            found = other.parameters() if self.space == "parameters" else other.wasserstein_points()
            if found is None or found.shape[1] != self.values.shape[1]:
                raise ValueError(_other_family(self.prediction, other))
            values = found
        return (arrays.beside(values, self.values),)

    def table_between(self, other: Distribution) -> Array | None:
        """Of other predictions, in rows, and these."""
        return None if self.table is None else _table(other, self.prediction, self.space)


def _other_family(prediction: Distribution, other: Distribution) -> str:
    return (
        f"`test_predictions` are of {type(other).__name__} and have no distance to those of `y_pred`, "
        f"{type(prediction).__name__}, that the kernel could take; expected the same family and sizes"
    )


def _as_vectors(kernel: RadialKernel) -> RadialKernel:
    return kernel if kernel.metric in METRICS else dataclasses.replace(kernel, metric="euclidean")


def _space(prediction: Distribution, kernel: Kernel) -> Space:
    """The one space that all factors of the kernel have their distances in."""
    name = type(prediction).__name__
    wanted: dict[Space, str] = {}
    for factor in kernel.factors():
        if factor.metric == "total_variation":
            raise ValueError(
                f"{factor} has a metric of class probabilities, but `y_pred` is {name}; use metric='wasserstein' or "
                "'mmd', or 'cityblock' for a distance of parameters"
            )
        space: Space = "parameters" if isinstance(factor.metric, str) and factor.metric in METRICS else factor.metric
        wanted.setdefault(space, str(factor))
    if any(factor.metric == "dot" for factor in _linear_factors(kernel)):
        wanted.setdefault("parameters", "Linear()")
    parameters = prediction.parameters() if "parameters" in wanted else None
    if "parameters" in wanted and parameters is None:
        raise ValueError(
            f"{wanted['parameters']} is a function of parameters, but {name} has none whose distance makes sense; "
            "use metric='wasserstein' or metric='mmd'"
        )
    if set(wanted) == {"parameters", "wasserstein"}:
        points = prediction.wasserstein_points()
        same = points is not None and points.shape == parameters.shape  # type: ignore[union-attr]
        if same and bool(arrays.namespace(points).all(points == parameters)):
            return "parameters"
    if len(wanted) > 1:
        shown = " and ".join(wanted.values())
        raise ValueError(
            f"`kernel` combines {shown}, whose metrics take distances of different points; use one metric in all of "
            "its parts"
        )
    space = next(iter(wanted), "parameters")
    if space == "wasserstein" and prediction.wasserstein_points() is None:
        return MixtureWasserstein(2)
    return space


def _linear_factors(kernel: Kernel) -> Iterator[Factor]:
    numbers = kernel.mapped(_as_vectors).resolve(lambda metric: 1.0)
    for term in numbers.terms():
        yield from (f for f in term.factors if f.metric == "dot")


def _check_definite(prediction: Distribution, kernel: Kernel, space: Space) -> None:
    if isinstance(space, MixtureWasserstein):
        for factor in kernel.factors():
            components = prediction.components()
            single = components is not None and components.weights.shape[1] == 1
            reason = (
                "the Wasserstein distance between normal distributions with full covariances is not the distance of "
                "a Hilbert space in 2 or more dimensions"
                if single
                else "a transport distance between mixtures is not that of a Hilbert space"
            )
            _warn_indefinite(f"{factor}", reason)
            return
    if isinstance(space, MMD) or space == "wasserstein":
        return
    parameters = prediction.parameters()
    for factor in kernel.factors():
        if parameters is not None and parameters.shape[1] > 1 and not _as_vectors(factor).is_positive_definite():
            _warn_indefinite(
                f"{factor}",
                f"for {parameters.shape[1]} parameters with this metric only Exponential and "
                "GammaExponential(gamma <= 1) are known to be positive definite",
            )


def is_definite(kernel: Kernel, points: PredictionPoints) -> bool:
    """Whether the kernel on predictions is known to be positive definite."""
    if points.table is not None:
        return False
    if isinstance(points.space, MMD) or points.space == "wasserstein" or points.values.shape[1] == 1:
        return True
    return all(_as_vectors(f).is_positive_definite() for f in kernel.factors())


def _gaussian(space: MMD) -> tuple[Term, ...]:
    return Gaussian(bandwidth=space.bandwidth).terms()


def _mmd_components(prediction: Distribution) -> Components:
    """What the MMD is taken between: mixtures with a closed form under a Gaussian kernel, or draws."""
    components = prediction.components()
    if components is not None and components.family != "laplace":
        return components
    return _atoms(prediction, DRAWS.n_draws, TARGET_SEED)


def _mmd_columns(components: Components, terms: tuple[Term, ...]) -> tuple[Array, Mixtures]:
    groups = mixtures.closed_form(components.family, terms, int(components.locations.shape[2]))
    assert groups is not None
    return mixtures.point_columns(components, groups), _described(components, terms, groups)


def _described(components: Components, terms: tuple[Term, ...], groups: Groups) -> Mixtures:
    d, count = int(components.locations.shape[2]), int(components.weights.shape[1])
    return Mixtures(components.family, d, count, len(groups), terms if components.family == "atoms" else ())


def _mean_features(components: Components, terms: tuple[Term, ...]) -> tuple[FeatureMap, Array] | None:
    """Means of features of the atoms; None where the kernel has too many features to be exact."""
    size = int(components.weights.shape[1])
    if size < FEWEST_ATOMS:
        return None
    limit = min(LARGEST_RANK, FEATURES_PER_EVALUATION * size**2)
    y = components.locations[:, 0, :]
    found = target_features(y, components.locations, components.weights, terms, max_rank=limit, only_exact=True)
    return None if found is None or not _is_exact(found) else (found.map, found.means)


def _is_exact(found: TargetFeatures) -> bool:
    """Whether the features are the kernel but for a few roundings, also at targets far from all others."""
    return found.exact or found.error_bound <= NEARLY_EXACT * found.map.largest


def _table(left: Distribution, right: Distribution | None, space: Space) -> Array:
    assert isinstance(space, MixtureWasserstein)
    components, other = left.components(), None if right is None else right.components()
    if components is None or (right is not None and other is None):
        raise ValueError(
            f"{type(left).__name__} has no Wasserstein distance in closed form; use metric='mmd', or pass "
            "kcalib.distributions.Samples of draws from the predictions"
        )
    if other is not None and other.family != components.family:
        assert right is not None
        raise ValueError(_other_family(right, left))
    table = wasserstein_table(components, other, order=space.order)
    return uploaded(table, components.locations) if arrays.is_cuda(components.locations) else table


def _positions(prediction: Distribution) -> Array:
    """Rows, and columns, of the table of distances."""
    positions = np.arange(prediction.n, dtype=np.float64)[:, None]
    components = prediction.components()
    return positions if components is None else arrays.like(positions, components.locations)


# -- what was observed minus what was predicted ------------------------------------------------


@dataclass(frozen=True)
class TargetFactor:
    """Marks of targets beside predictions."""

    kernel: Any  # on targets, with bandwidths as numbers
    description: str  # the route that was taken
    supremum: float | None  # of the kernel; None if it has none that is known
    components: Components | None  # after the linear map `root`; None: the marks are vectors, differences of
    features: FeatureMap | None  # these and
    means: Array | None  # their means under the predictions, shape (n, rank)
    groups: Groups  # coefficient and scale of each group of columns
    mixtures: Mixtures | None
    root: np.ndarray | None = None  # of targets: y @ root
    draws: Draws | None = None  # what the expectations come from, if not from the family itself

    def marks(self, y: Array, weight: Array | None = None, rows: Any = None) -> Array:
        """Of all samples, or those of `rows`, with targets of shape (n, d)."""
        if self.components is None:
            assert self.means is not None
            marks = self.observed(y) - (self.means if rows is None else take_rows(self.means, rows))
            return marks if weight is None else marks * arrays.beside(weight, marks)[:, None]
        components = self.components if rows is None else _taken(self.components, rows)
        if weight is not None:
            weight = arrays.beside(weight, components.weights)
        return mixtures.mark_columns(self._seen(y, components.locations), components, self.groups, weight)

    def observed(self, y: Array) -> Array:
        """Of targets with no prediction beside them."""
        if self.components is None:
            assert self.features is not None and self.means is not None
            return arrays.like(self.features.points(self._seen(y, self.means))[0], self.means)
        return mixtures.location_columns(self._seen(y, self.components.locations), self.components, self.groups)

    def _seen(self, y: Array, like: Array) -> Array:
        """Targets as the kernel's normal form sees them."""
        y = arrays.namespace(like).astype(arrays.beside(y, like), like.dtype)
        return y if self.root is None else y @ arrays.like(self.root, y, dtype=y.dtype)


def target_factor(data: Forecasts, target_kernel: Any) -> TargetFactor:
    """The way to the expectations of the target kernel, whose bandwidths are numbers."""
    if isinstance(target_kernel, Draws):
        return _by_draws(data, target_kernel)
    root, terms = _normal_form(target_kernel)
    components = data.prediction.components()
    if components is not None and components.family == "atoms":
        components = _seen(components, root)
        return _of_atoms(data, target_kernel, components, terms, root, "")
    if isinstance(data.prediction, (Poisson, NegativeBinomial)):
        found = _of_counts(data, target_kernel, terms)
        if found is not None:
            return found
    groups = None if components is None else mixtures.closed_form(components.family, terms, data.n_dims)
    if components is None or groups is None:
        return _by_draws(data, dataclasses.replace(DRAWS, kernel=target_kernel))
    components = _seen(components, root)
    described = _described(components, terms, groups)
    name = f"closed form ({components.family})"
    return TargetFactor(target_kernel, name, _supremum(terms), components, None, None, groups, described, root)


def _of_atoms(
    data: Forecasts,
    kernel: Any,
    components: Components,
    terms: tuple[Term, ...],
    root: np.ndarray | None,
    draws_name: str,
    draws: Draws | None = None,
) -> TargetFactor:
    """Sums over atoms; by features of the kernel where these are exact to rounding, and less work."""
    size, groups = int(components.weights.shape[1]), ((1.0, 1.0),)
    if size >= FEWEST_ATOMS and _positive_definite(terms):
        like = components.locations
        y = arrays.namespace(like).astype(arrays.beside(data.y, like), like.dtype)
        y = y if root is None else y @ arrays.like(root, like, dtype=like.dtype)
        found = target_features(y, components.locations, components.weights, terms, only_exact=True)
        if found is not None and found.cheaper and _is_exact(found):
            name = f"features of rank {found.rank}, error below {found.error_bound:.1g}"
            name = f"{draws_name}, {name}" if draws_name else name
            return TargetFactor(kernel, name, _supremum(terms), None, found.map, found.means, groups, None, root, draws)
    described = _described(components, terms, groups)
    name = draws_name or "sums over atoms"
    return TargetFactor(kernel, name, _supremum(terms), components, None, None, groups, described, root, draws)


def _of_counts(data: Forecasts, kernel: Any, terms: tuple[Term, ...]) -> TargetFactor | None:
    """Features on the counts that have probability; None where the kernel has too many to be exact."""
    assert isinstance(data.prediction, (Poisson, NegativeBinomial))
    if isinstance(kernel, MahalanobisGaussian) or not _positive_definite(terms):
        return None
    largest, spread = (
        float(arrays.namespace(a).max(a))
        for a in (data.prediction.expected_value(), data.prediction.standard_deviation())
    )
    if largest + 10 * spread > LARGEST_COUNT:
        return None
    table = data.prediction.pmf_table()
    found = count_features(data.y, table, terms, max_rank=LARGEST_RANK, only_exact=True)
    if found is None or not _is_exact(found):
        return None
    name = f"counts to {table.shape[1] - 1}, features of rank {found.rank}, error below {found.error_bound:.1g}"
    return TargetFactor(kernel, name, _supremum(terms), None, found.map, found.means, ((1.0, 1.0),), None)


def _positive_definite(terms: tuple[Term, ...]) -> bool:
    return all(f.metric == "euclidean" for t in terms for f in t.factors)


def _supremum(terms: tuple[Term, ...]) -> float | None:
    """Of the kernel; None for unbounded ones."""
    bounded = not any(f.profile == "identity" for t in terms for f in t.factors)
    return sum(t.coefficient for t in terms) if bounded else None


def _atoms(prediction: Distribution, size: int, seed: int) -> Components:
    """The predictions replaced by draws from them."""
    draws = prediction.quasi_sample(size, seed=seed)
    xp = arrays.namespace(draws)
    atoms = xp.reshape(xp.astype(draws, xp.float64), (prediction.n, size, prediction.n_dims))
    return Components("atoms", xp.full_like(atoms[:, :, 0], 1 / size), atoms, None)


def _by_draws(data: Forecasts, draws: Draws, replicate: int | None = None, size: int | None = None) -> TargetFactor:
    """The predictions replaced by means over draws."""
    root, terms = _normal_form(draws.kernel)
    seed = draws.seed if replicate is None else seed_of(draws.seed, replicate)
    components = _seen(_atoms(data.prediction, draws.n_draws if size is None else size, seed), root)
    name = f"{draws.n_draws} draws from each prediction, seed {draws.seed}"
    return _of_atoms(data, draws.kernel, components, terms, root, name, draws)


def _seen(components: Components, root: np.ndarray | None) -> Components:
    """The distributions of Z @ root."""
    if root is None:
        return components
    like = components.locations
    return mixtures.transformed(like[:, 0, :], components, root)[1]


def redrawn(data: Forecasts, target: TargetFactor, n_groups: int) -> Iterator[TargetFactor]:
    """The factor from `n_groups` other sets of draws, together as many as it has: for its standard error."""
    assert target.draws is not None
    size = max(1, target.draws.n_draws // n_groups)
    for replicate in range(n_groups):
        yield _by_draws(data, target.draws, replicate, size)


def seed_of(*key: int) -> int:
    """A seed of its own for each key."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _normal_form(target_kernel: Any) -> tuple[np.ndarray | None, tuple[Term, ...]]:
    """The linear map of targets, and the kernel's normal form after it."""
    if isinstance(target_kernel, MahalanobisGaussian):
        return target_kernel.root, Gaussian(bandwidth=1.0).terms()
    return None, target_kernel.terms()


def _taken(components: Components, rows: Any) -> Components:
    scales = None if components.scales is None else take_rows(components.scales, rows)
    return Components(
        components.family, take_rows(components.weights, rows), take_rows(components.locations, rows), scales
    )
