"""Points of predicted distributions for the kernel on predictions, with the distances of its metric."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.warnings import IndefiniteKernelWarning, warn
from kcalib._packing.atoms import DRAWS, FEWEST_ATOMS, NEARLY_EXACT, TARGET_SEED, drawn_atoms, is_exact
from kcalib._packing.finite_rank import (
    FEATURES_PER_EVALUATION,
    LARGEST_RANK,
    FiniteRankMap,
    feature_map,
    finite_rank_features,
)
from kcalib._packing.packed import check_coefficients
from kcalib._pairs import mixtures
from kcalib._pairs.backends.device_mixtures import uploaded
from kcalib._pairs.families import POINT_FAMILIES
from kcalib._pairs.problem import Factor, Metric, Mixtures, PairProblem, Side, Term
from kcalib.bandwidth import MAX_SAMPLES, MedianDistance, median_of_entries, median_of_points
from kcalib.distributions import Components, Distribution
from kcalib.distributions._distances.mixtures import wasserstein_table
from kcalib.distributions._staircases import Window, quantile_means, quantile_vectors, staircases_of, window_of
from kcalib.distributions.counts import CELLS, Counts
from kcalib.kernels import MMD, VECTOR_METRICS, Gaussian, Kernel, MixtureWasserstein, RadialKernel

Space = str | MMD | MixtureWasserstein
ROUNDINGS = 1e-12  # of a squared distance, where the largest vector's is 1
OPEN_ENTRIES = 2**22  # of tables of pairs whose distances decide on a median
REACH = 1e-2  # squared MMD distance from the features' span that is too far, where the largest of the kernel is 1

# Entries of vectors whose distances are the MMD: these are stored.
FEWEST_VECTORS, MOST_VECTORS, VECTOR_ELEMENTS = 32, 128, 2**24


@dataclass(frozen=True)
class PredictionPoints:
    """Points of the predictions in one space, where all factors of the kernel take their distances."""

    prediction: Distribution
    space: Space
    values: Array  # shape (n, p); parameters, Wasserstein points, mixtures' columns, or positions in the table
    predicted: Mixtures | None = None
    table: Array | None = None  # float64; beside `values` on a GPU, else on the host
    window: Window | None = None  # of counts: `values` are their distribution functions there
    is_drawn: bool = False  # whether draws stand for the predictions
    features: FiniteRankMap | None = None  # `values` are means of these, with the distances of the metric

    @classmethod
    def of(cls, prediction: Distribution, kernel: Kernel) -> PredictionPoints:
        """Return the points for a kernel whose MMD metrics have bandwidths."""
        space = _space(prediction, kernel)
        _check_definite(prediction, kernel, space)
        if isinstance(space, MMD):
            terms = _gaussian(space)
            map_and_means = _count_features(prediction, terms)
            if map_and_means is not None:
                return cls(prediction, space, map_and_means[1], features=map_and_means[0])
            components = _mmd_components(prediction)
            if components.family == "atoms":
                map_and_means = _mean_features(components, terms)
                if map_and_means is not None:
                    is_drawn = _is_drawn(prediction)
                    return cls(prediction, space, map_and_means[1], features=map_and_means[0], is_drawn=is_drawn)
            return cls(prediction, space, *_mmd_columns(components, terms), is_drawn=_is_drawn(prediction))
        if space == "wasserstein" and isinstance(prediction, Counts):
            window = window_of(prediction)
            if window is not None:
                return cls(prediction, space, staircases_of(prediction, window), _staircases(window), window=window)
        if space == "parameters" or space == "wasserstein":
            return cls(prediction, space, points_in(space, prediction))
        table = _table(prediction, None, space)
        return cls(prediction, space, _positions(prediction), None, table)

    @classmethod
    def of_rows(cls, prediction: Distribution, kernel: Kernel) -> PredictionPoints:
        """Return vectors that depend on each prediction separately, as states need."""
        space = _space(prediction, kernel)
        return cls(prediction, space, row_points(space, prediction))

    @property
    def route(self) -> str:
        """How distances are computed, for results."""
        if self.window is not None:
            return f"2-Wasserstein, finite sums over {self.window.length} counts"
        if self.space == "wasserstein" and isinstance(self.prediction, Counts):
            return f"2-Wasserstein, {CELLS} quantiles in place of all counts"
        if self.table is not None:
            return f"{self.space}, in a table"
        if not isinstance(self.space, MMD):
            return "2-Wasserstein, of points" if self.space == "wasserstein" else "of parameters"
        details = [f"{DRAWS.n_draws} draws from each prediction, seed {TARGET_SEED}"] if self.is_drawn else []
        if self.features is not None:
            details.append(f"features of rank {self.features.rank}")
        elif self.predicted is not None and not self.is_drawn:
            family = self.predicted.family
            details.append("sums over atoms" if family == "atoms" else f"closed form ({family})")
        return f"MMD, {', '.join(details)}"

    def is_definite(self, kernel: Kernel) -> bool:
        """Return whether the kernel on these points is known to be positive definite."""
        if self.table is not None:
            return self.space == MixtureWasserstein(2) and isinstance(self.prediction, Counts)
        on_a_line = self.values.shape[1] == 1 and self.predicted is None
        return on_a_line or all(_as_vectors(factor).is_positive_definite() for factor in kernel.factors())

    def terms(self, kernel: Kernel) -> tuple[Term, ...]:
        """Return the kernel's normal form, with bandwidths as numbers."""
        terms = check_coefficients(kernel.mapped(_as_vectors).terms())
        if self.table is None and self.predicted is None:
            return terms
        return _with_metric(terms, "mmd" if self.table is None else "table")

    def median(self, metric: Any, threads: int | None) -> MedianDistance:
        """Return the median heuristic."""
        if self.predicted is None and self.table is None:
            vectors = metric if isinstance(metric, str) and metric in VECTOR_METRICS else "euclidean"
            return dataclasses.replace(median_of_points(self.values, vectors, threads=threads), metric=str(metric))
        if (
            self.window is not None
            and self.window.centred
            and arrays.is_host(self.values)
            and 1 < self.values.shape[0] <= MAX_SAMPLES
        ):
            value = _median_of_staircases(np.asarray(self.values), _staircases(self.window))
            if value:
                return MedianDistance(value, str(metric), int(self.values.shape[0]), True, None)
        # Distances are the entries of a problem without bandwidths and targets.
        factor = Factor("identity", "mmd" if self.table is None else "table")
        ones = arrays.namespace(self.values).ones_like(self.values[:, :1])
        problem = PairProblem(Side(self.values, ones), None, (Term(1.0, (factor,)),), None, self.predicted, self.table)
        return median_of_entries(problem, str(metric))

    def reaching(self, locations: Distribution) -> PredictionPoints:
        """Return the points in a window that also contains the counts of the predictions of locations."""
        if self.window is None or not isinstance(locations, Counts):
            return self
        assert isinstance(self.prediction, Counts)
        window = window_of(self.prediction, locations)
        if window is None:
            raise ValueError(
                "the predictions of `locations` have counts so far from those of `y_pred` that no table holds their "
                "Wasserstein distances; pass such with means like those of `y_pred`, or a kernel with metric='mmd'"
            )
        values = staircases_of(self.prediction, window)
        return dataclasses.replace(self, values=values, predicted=_staircases(window), window=window)

    def points_of(self, locations: Distribution) -> Array:
        """Return the points of the predictions of locations, for rows of a problem with these points as columns."""
        if self.window is not None and isinstance(locations, Counts):
            return arrays.asarray_like(staircases_of(locations, self.window), self.values)
        if self.table is not None:
            return arrays.asarray_like(_positions(locations), self.values)
        if self.features is not None and isinstance(self.prediction, Counts):
            table = locations._tabulated() if isinstance(locations, Counts) else None
            if table is None:
                raise ValueError(_other_family(self.prediction, locations))
            values = self._within_reach(*_means_of_counts(self.features, table))
        elif self.features is not None:
            components = _mmd_components(locations)
            if components.family != "atoms" or components.locations.shape[2] != self.prediction.n_dims:
                raise ValueError(_other_family(self.prediction, locations))
            values = self._within_reach(*self.features.means(components.locations, components.weights))
        elif isinstance(self.space, MMD):
            assert self.predicted is not None
            components = _mmd_components(locations)
            if components.weights.shape[1] > self.predicted.n_components:
                raise ValueError(
                    f"the predictions of `locations` have {components.weights.shape[1]} components, `y_pred` has "
                    f"{self.predicted.n_components}; expected at most as many"
                )
            components = mixtures.padded(components, self.predicted.n_components)
            values, description = _mmd_columns(components, _gaussian(self.space))
            if description != self.predicted:
                raise ValueError(_other_family(self.prediction, locations))
        else:
            points = locations.parameters() if self.space == "parameters" else locations.wasserstein_points()
            if points is None or points.shape[1] != self.values.shape[1]:
                raise ValueError(_other_family(self.prediction, locations))
            values = points
        return arrays.asarray_like(values, self.values)

    def _within_reach(self, means: Array, errors: Array) -> Array:
        """Refuse means of features of predictions with weight where those of `self` have none."""
        assert self.features is not None
        if float(errors.max()) ** 2 > REACH * self.features.largest:
            raise ValueError(
                "the predictions of `locations` have probability where no prediction of `y_pred` has any: of their MMD "
                "distances the features that `y_pred` needs know nothing; pass predictions among those of `y_pred`"
            )
        return arrays.like(means, self.values)

    def table_between(self, locations: Distribution) -> Array | None:
        """Return the table of distances between predictions of locations (rows) and these predictions."""
        return None if self.table is None else _table(locations, self.prediction, self.space)


def _median_of_staircases(rows: np.ndarray, description: Mixtures) -> float | None:
    """Return the median distance of all pairs of rows, to rounding; None if too many distances had to be computed.

    Vectors of `quantile_means` are projections with known residual lengths, which bound distances; the rest is computed
    exactly.
    """
    means, errors = quantile_means(rows)
    means -= np.mean(means, axis=0)
    left, right = np.triu_indices(len(rows), 1)
    products = linalg.matmul(means, means.T)
    lengths = np.diag(products)
    squares = np.maximum((lengths[:, None] + lengths - 2 * products)[left, right], 0.0)
    rounding = ROUNDINGS * float(np.max(lengths))
    low = np.sqrt(np.maximum(squares - rounding + (errors[left] - errors[right]) ** 2, 0.0))
    high = np.sqrt(squares + rounding + (errors[left] + errors[right]) ** 2)
    middle = []
    for k in {(len(left) - 1) // 2, len(left) // 2}:
        least, most = np.partition(low, k)[k], np.partition(high, k)[k]
        open_pairs = np.flatnonzero((high >= least) & (low <= most))
        if len(open_pairs) * rows.shape[1] > OPEN_ENTRIES:
            return None
        pairs = (np.insert(rows[side[open_pairs]], 0, 0.0, axis=1) for side in (left, right))
        distances = POINT_FAMILIES["staircases"].squared_between(description, *pairs)
        place = k - int(np.count_nonzero(high < least))
        middle.append(math.sqrt(max(0.0, float(np.partition(distances, place)[place]))))
    return sum(middle) / len(middle)


def points_in(space: Space, prediction: Distribution) -> Array:
    """Return the points of predictions in a space of vectors, "parameters" or "wasserstein"."""
    values = prediction.parameters() if space == "parameters" else prediction.wasserstein_points()
    assert values is not None
    return values


def row_points(space: Space, prediction: Distribution) -> Array:
    """Return the points as functions of each prediction: for counts means of quantile functions in cells."""
    if space == "wasserstein" and isinstance(prediction, Counts):
        return arrays.like(quantile_vectors(prediction), prediction._first)
    return points_in(space, prediction)


@dataclass(frozen=True)
class Vectors:
    """Points whose Euclidean distances are those of a metric up to an error."""

    values: Array  # shape (n, p)
    terms: tuple[Term, ...]  # the kernel's normal form, of vectors
    error: float = 0.0  # distances are off by this at most


def vectors(prediction: Distribution, kernel: Kernel, problem: PairProblem) -> Vectors:
    """Return the points of a packed problem as vectors.

    MMD distances are those of mean embeddings; the vectors are their images in the span of the embeddings of some
    predictions or atoms. Wasserstein distances of counts are those of quantile functions; the vectors are their means
    in cells.

    Raises
    ------
    ValueError
        If the metric is given by a table, for which there are no vectors.
    """
    points = problem.left.points
    if problem.table is not None:
        raise ValueError(
            f"`kernel` is {kernel}, with Wasserstein distances of {type(prediction).__name__} that are not those of "
            "points: it has no random features; use metric='mmd', or an estimator and a test of all pairs: "
            "estimator='unbiased', method='exact'"
        )
    if problem.predicted is None:
        return Vectors(points, problem.kernel)
    terms = _with_metric(problem.kernel, "euclidean")
    if problem.predicted.family == "staircases":
        means, gaps = quantile_means(points)
        return Vectors(arrays.like(means, points, dtype=points.dtype), terms, 2 * float(gaps.max()))
    rank = max(FEWEST_VECTORS, min(MOST_VECTORS, VECTOR_ELEMENTS // prediction.n))
    if problem.predicted.family == "atoms":
        (space,) = {factor.metric for factor in kernel.factors()}
        assert isinstance(space, MMD)
        components = _mmd_components(prediction)
        atoms, weights = (
            arrays.to_compute_device(array, np.float64) for array in (components.locations, components.weights)
        )
        finite_map = feature_map(atoms.reshape(-1, atoms.shape[2]), _gaussian(space), max_rank=rank)
        assert finite_map is not None
        values, errors = finite_map.means(atoms, weights)
    else:
        rows = arrays.to_compute_device(points, np.float64)
        finite_map = feature_map(rows, problem.predicted, max_rank=rank)
        assert finite_map is not None
        values, errors = finite_map.points(rows)
    return Vectors(arrays.like(values, points), terms, 2 * float(errors.max()))


def _with_metric(terms: tuple[Term, ...], metric: Metric) -> tuple[Term, ...]:
    return tuple(Term(t.coefficient, tuple(dataclasses.replace(f, metric=metric) for f in t.factors)) for t in terms)


def _other_family(prediction: Distribution, locations: Distribution) -> str:
    return (
        f"the predictions of `locations` are of {type(locations).__name__} and have no distance to those of `y_pred`, "
        f"{type(prediction).__name__}, that the kernel could take; expected the same family and sizes"
    )


def _staircases(window: Window) -> Mixtures:
    return Mixtures("staircases", window.length, 1)


def _as_vectors(kernel: RadialKernel) -> RadialKernel:
    return kernel if kernel.metric in VECTOR_METRICS else dataclasses.replace(kernel, metric="euclidean")


def _space(prediction: Distribution, kernel: Kernel) -> Space:
    """Return the common space of all factors of the kernel."""
    name = type(prediction).__name__
    factors: dict[Space, str] = {}
    for factor in kernel.factors():
        if factor.metric == "total_variation":
            raise ValueError(
                f"{factor} has a metric of class probabilities, but `y_pred` is {name}; use metric='wasserstein' or "
                "'mmd', or 'cityblock' for a distance of parameters"
            )
        is_of_vectors = isinstance(factor.metric, str) and factor.metric in VECTOR_METRICS
        space: Space = "parameters" if is_of_vectors else factor.metric
        factors.setdefault(space, str(factor))
    if any(factor.metric == "dot" for factor in _linear_factors(kernel)):
        factors.setdefault("parameters", "Linear()")
    parameters = prediction.parameters() if "parameters" in factors else None
    if "parameters" in factors and parameters is None:
        raise ValueError(
            f"{factors['parameters']} is a function of parameters, but {name} has none whose distance makes sense; "
            "use metric='wasserstein' or metric='mmd'"
        )
    if set(factors) == {"parameters", "wasserstein"}:
        points = prediction.wasserstein_points()
        is_same_shape = points is not None and points.shape == parameters.shape  # type: ignore[union-attr]
        if is_same_shape and bool(arrays.namespace(points).all(points == parameters)):
            return "parameters"
    if len(factors) > 1:
        factor_names = " and ".join(factors.values())
        raise ValueError(
            f"`kernel` combines {factor_names}, whose metrics take distances of different points; use one metric in "
            "all of its parts"
        )
    space = next(iter(factors), "parameters")
    if space == "wasserstein" and not isinstance(prediction, Counts) and prediction.wasserstein_points() is None:
        return MixtureWasserstein(2)
    return space


def _linear_factors(kernel: Kernel) -> Iterator[Factor]:
    vectors = kernel.mapped(_as_vectors)
    numbers = vectors.resolve(dict.fromkeys(vectors.open_metrics(), 1.0))
    for term in numbers.terms():
        yield from (f for f in term.factors if f.metric == "dot")


def _check_definite(prediction: Distribution, kernel: Kernel, space: Space) -> None:
    if isinstance(space, MixtureWasserstein):
        if space.order == 2 and isinstance(prediction, Counts):  # the distance of quantile functions in L2
            return
        components = prediction.components()
        single = components is not None and components.weights.shape[1] == 1
        reason = (
            "the Wasserstein distance between normal distributions with full covariances is not the distance of a "
            "Hilbert space in 2 or more dimensions"
            if single
            else "a transport distance between mixtures is not that of a Hilbert space"
        )
        warn_indefinite(str(next(iter(kernel.factors()))), reason)
        return
    dimension, distances = math.inf, "MMD distances"
    if space == "wasserstein" and isinstance(prediction, Counts):
        distances = "Wasserstein distances of counts"
    elif not isinstance(space, MMD):
        points = prediction.wasserstein_points() if space == "wasserstein" else prediction.parameters()
        dimension = 1 if points is None else int(points.shape[1])
        distances = f"{dimension} {'coordinates' if space == 'wasserstein' else 'parameters'}"
    for factor in kernel.factors():
        if dimension > 1 and not _as_vectors(factor).is_positive_definite():
            warn_indefinite(str(factor), f"for {distances} {factor.why_indefinite()}")


def _gaussian(space: MMD) -> tuple[Term, ...]:
    return Gaussian(bandwidth=space.bandwidth).terms()


def _mmd_components(prediction: Distribution) -> Components:
    """Return the mixtures for the MMD: closed forms under a Gaussian kernel, or draws."""
    components = prediction.components()
    if components is not None and not _is_drawn(prediction):
        return components
    return drawn_atoms(prediction, DRAWS.n_draws, TARGET_SEED)


def _is_drawn(prediction: Distribution) -> bool:
    components = prediction.components()
    return components is None or components.family == "laplace"


def _mmd_columns(components: Components, terms: tuple[Term, ...]) -> tuple[Array, Mixtures]:
    groups = mixtures.closed_form(components.family, terms, int(components.locations.shape[2]))
    assert groups is not None
    return mixtures.point_columns(components, groups), mixtures.description(components, terms, groups)


def _mean_features(components: Components, terms: tuple[Term, ...]) -> tuple[FiniteRankMap, Array] | None:
    """Return means of features of the atoms; None if exact features would be too many."""
    size = int(components.weights.shape[1])
    if size < FEWEST_ATOMS:
        return None
    limit = min(LARGEST_RANK, FEATURES_PER_EVALUATION * size**2)
    y = components.locations[:, 0, :]
    features = finite_rank_features(y, components.locations, components.weights, terms, max_rank=limit, only_exact=True)
    return None if features is None or not is_exact(features) else (features.map, features.means)


def _count_features(prediction: Distribution, terms: tuple[Term, ...]) -> tuple[FiniteRankMap, Array] | None:
    """Return means of features of counts; None for other families, or if exact features would be too many."""
    table = prediction._tabulated() if isinstance(prediction, Counts) else None
    if table is None:
        return None
    counts = arrays.namespace(table).arange(table.shape[1], dtype=np.float64)[:, None]
    finite_map = feature_map(
        arrays.to_compute_device(counts, np.float64), terms, max_rank=LARGEST_RANK, only_exact=True
    )
    if finite_map is None:
        return None
    means, errors = _means_of_counts(finite_map, table)
    is_exact = (2 * float(errors.max())) ** 2 <= NEARLY_EXACT * finite_map.largest
    return (finite_map, arrays.like(means, table)) if is_exact else None


def _means_of_counts(features: FiniteRankMap, table: Array) -> tuple[Array, Array]:
    counts = arrays.namespace(table).arange(table.shape[1], dtype=np.float64)[:, None]
    return features.means(counts, arrays.to_compute_device(table, np.float64))


def _table(left: Distribution, right: Distribution | None, space: Space) -> Array:
    assert isinstance(space, MixtureWasserstein)
    components, right_components = _components_or_atoms(left), None if right is None else _components_or_atoms(right)
    if components is None or (right is not None and right_components is None):
        raise ValueError(
            f"{type(left).__name__} has no Wasserstein distance in closed form; use metric='mmd', or pass "
            "kcalib.distributions.Samples of draws from the predictions"
        )
    if right_components is not None and right_components.family != components.family:
        assert right is not None
        raise ValueError(_other_family(right, left))
    table = wasserstein_table(components, right_components, order=space.order)
    return uploaded(table, components.locations) if arrays.is_cuda(components.locations) else table


def _components_or_atoms(prediction: Distribution) -> Components | None:
    return prediction._atoms() if isinstance(prediction, Counts) else prediction.components()


def _positions(prediction: Distribution) -> Array:
    """Return positions in the rows and columns of the table of distances."""
    positions = np.arange(prediction.n, dtype=np.float64)[:, None]
    components = prediction.components()
    return positions if components is None else arrays.like(positions, components.locations)


def warn_indefinite(kernel_name: str, reason: str) -> None:
    warn(
        f"{kernel_name} may be indefinite: {reason}. The estimate can then be negative or near 0 for a miscalibrated "
        "model; kcalib.smallest_eigenvalue tells how far, and Exponential(metric='mmd') is positive definite.",
        IndefiniteKernelWarning,
    )
