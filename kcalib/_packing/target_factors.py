"""Features of targets: observed minus predicted distribution.

In closed form if the target kernel has one for the family (`kcalib._pairs.mixtures`); by exact features of the kernel;
by sums over atoms; else by draws.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._input.forecasts import Forecasts
from kcalib._packing.atoms import DRAWS, FEWEST_ATOMS, Groups, drawn_atoms, is_exact
from kcalib._packing.finite_rank import LARGEST_RANK, FiniteRankMap, count_features, finite_rank_features
from kcalib._packing.packed import Target
from kcalib._pairs import mixtures
from kcalib._pairs.problem import Mixtures, Side, Term
from kcalib._pairs.profiles import PROFILES, kernel_supremum
from kcalib.bandwidth import MedianDistance
from kcalib.distributions import Components, NegativeBinomial, Poisson, Quantiles
from kcalib.distributions._distribution import take_rows
from kcalib.kernels import Gaussian
from kcalib.target_kernels import Draws, MahalanobisGaussian

COVER = 2**13  # targets that features are good for, if draws stand for the predictions: atoms, and others


@dataclass(frozen=True)
class TargetFactor(Target):
    """Features of targets: observed minus predicted distribution."""

    kernel: Any  # on targets, with bandwidths as numbers
    route: str  # how its expectations were found
    supremum: float | None  # the kernel's; None if it has none that is known
    components: Components | None = None  # after the linear map `root`; None: the features are vectors, differences of
    map: FiniteRankMap | None = None  # images of targets and
    means: Array | None = None  # their means under the predictions, shape (n, rank)
    groups: Groups = ((1.0, 1.0),)  # coefficient and scale of each group of columns
    mixtures: Mixtures | None = None
    root: np.ndarray | None = None  # targets are seen as y @ root
    draws: Draws | None = None  # what the expectations come from, if not from the family itself
    asked_for_draws: bool = False  # by the user; else there is no other way for all pairs
    medians: tuple[MedianDistance, ...] = ()  # where a bandwidth came from the median heuristic

    @property
    def name(self) -> str:
        return str(self.kernel)

    @property
    def resolved_kernel(self) -> Any:
        return self.kernel if self.draws is None or not self.asked_for_draws else self.draws

    def take(self, rows: Array) -> TargetFactor:
        components = None if self.components is None else _take_components(self.components, rows)
        means = None if self.means is None else take_rows(self.means, rows)
        return dataclasses.replace(self, components=components, means=means)

    def side(self, data: Forecasts, points: Array, threads: int | None) -> Side:
        return side_of(data, points, self.features(data.y, data.sample_weight))

    def of_predictions(self, data: Forecasts) -> TargetFactor:
        kernel = self.kernel if self.draws is None else self.draws
        return dataclasses.replace(target_factor(data, kernel), medians=self.medians)

    def redrawn(self, data: Forecasts, n_groups: int) -> Iterator[TargetFactor]:
        """Yield the factor with `n_groups` other sets of draws, together as many, for its standard error."""
        if self.draws is None:
            return
        size = max(1, self.draws.n_draws // n_groups)
        for replicate in range(n_groups):
            yield _by_draws(data, self.draws, replicate, size)

    def features(self, y: Array, weight: Array | None = None) -> Array:
        """Return the features of targets, shape (n, d)."""
        if self.components is None:
            assert self.means is not None
            features = self.observed(y) - self.means
            return features if weight is None else features * arrays.asarray_like(weight, features)[:, None]
        components = self.components
        if weight is not None:
            weight = arrays.asarray_like(weight, components.weights)
        return mixtures.feature_columns(
            _map_targets(y, self.root, components.locations), components, self.groups, weight
        )

    def observed(self, y: Array) -> Array:
        """Return the features of targets without predictions."""
        if self.components is None:
            assert self.map is not None and self.means is not None
            return arrays.like(self.map.points(_map_targets(y, self.root, self.means))[0], self.means)
        return mixtures.location_columns(
            _map_targets(y, self.root, self.components.locations), self.components, self.groups
        )


@dataclass(frozen=True)
class BinFactor(TargetFactor):
    """Features of targets in the bins of quantiles, one-hot minus probability: the Kronecker delta as target kernel."""

    prediction: Quantiles | None = None

    def take(self, rows: Array) -> BinFactor:
        assert self.prediction is not None and self.means is not None
        return dataclasses.replace(self, prediction=self.prediction.take(rows), means=take_rows(self.means, rows))

    def observed(self, y: Array) -> Array:
        assert self.prediction is not None and self.means is not None
        return arrays.like(self.prediction._bin_shares(arrays.to_compute_device(y, np.float64)[:, 0]), self.means)


def _map_targets(y: Array, root: np.ndarray | None, like: Array) -> Array:
    """Return targets after the linear map, for the normal form of the kernel."""
    y = arrays.namespace(like).astype(arrays.asarray_like(y, like), like.dtype)
    return y if root is None else y @ arrays.like(root, y, dtype=y.dtype)


def target_factor(data: Forecasts, target_kernel: Any) -> TargetFactor:
    """Return features of a target kernel whose bandwidths are numbers."""
    if isinstance(target_kernel, Draws):
        return dataclasses.replace(_by_draws(data, target_kernel), asked_for_draws=True)
    if isinstance(data.prediction, Quantiles):
        shape, probabilities = (data.n, len(data.prediction.levels) + 1), data.prediction.bin_probabilities
        means = data.xp.broadcast_to(arrays.like(probabilities, data.y)[None, :], shape)
        return BinFactor(target_kernel, "bins of quantiles", 1.0, means=means, prediction=data.prediction)
    root, terms = normal_form(target_kernel)
    components = data.prediction.components()
    if components is not None and components.family == "atoms":
        components = _transform(components, root)
        return _of_atoms(data, target_kernel, components, terms, root, "")
    if isinstance(data.prediction, (Poisson, NegativeBinomial)):
        factor = _of_counts(data, target_kernel, terms)
        if factor is not None:
            return factor
    groups = None if components is None else mixtures.closed_form(components.family, terms, data.n_dims)
    if components is None or groups is None:
        return _by_draws(data, dataclasses.replace(DRAWS, kernel=target_kernel))
    components, name = _transform(components, root), f"closed form ({components.family})"
    description = mixtures.description(components, terms, groups)
    return TargetFactor(
        target_kernel, name, _supremum(terms), components, groups=groups, mixtures=description, root=root
    )


def _of_atoms(
    data: Forecasts,
    kernel: Any,
    components: Components,
    terms: tuple[Term, ...],
    root: np.ndarray | None,
    draws_name: str,
    draws: Draws | None = None,
) -> TargetFactor:
    """Return sums over atoms, by features of the kernel if these are exact to rounding and faster.

    Features are exact for all targets that a test draws. These are atoms, unless draws represent the predictions:
    features from the observed targets only would then make these look special.
    """
    size = int(components.weights.shape[1])
    if size >= FEWEST_ATOMS and _is_positive_definite(terms):
        like = components.locations
        y = _map_targets(data.y, root, like)
        cover = None if draws is None else _draw_targets(data, size, root, like)
        features = finite_rank_features(
            y, components.locations, components.weights, terms, cover=cover, only_exact=True
        )
        if features is not None and features.cheaper and is_exact(features):
            name = f"features of rank {features.rank}, error below {features.error_bound:.1g}"
            name = f"{draws_name}, {name}" if draws_name else name
            return TargetFactor(
                kernel, name, _supremum(terms), map=features.map, means=features.means, root=root, draws=draws
            )
    description = mixtures.description(components, terms, ((1.0, 1.0),))
    name = draws_name or "sums over atoms"
    return TargetFactor(kernel, name, _supremum(terms), components, mixtures=description, root=root, draws=draws)


def _draw_targets(data: Forecasts, size: int, root: np.ndarray | None, like: Array) -> Array | None:
    """Return targets drawn from the predictions, shape (N, d); None if the atoms suffice."""
    count = -(-COVER // data.n) - size
    if count <= 0:
        return None
    targets = _transform(drawn_atoms(data.prediction, count, seed_of(COVER)), root).locations
    return arrays.namespace(like).reshape(targets, (-1, like.shape[2]))


def _of_counts(data: Forecasts, kernel: Any, terms: tuple[Term, ...]) -> TargetFactor | None:
    """Return features on the counts with positive probability; None if exact features would be too many."""
    assert isinstance(data.prediction, (Poisson, NegativeBinomial))
    if isinstance(kernel, MahalanobisGaussian) or not _is_positive_definite(terms):
        return None
    table = data.prediction._tabulated()
    if table is None:
        return None
    features = count_features(data.y, table, terms, max_rank=LARGEST_RANK, only_exact=True)
    if features is None or not is_exact(features):
        return None
    name = f"counts to {table.shape[1] - 1}, features of rank {features.rank}, error below {features.error_bound:.1g}"
    return TargetFactor(kernel, name, _supremum(terms), map=features.map, means=features.means)


def _is_positive_definite(terms: tuple[Term, ...]) -> bool:
    profiles = {name for name, profile in PROFILES.items() if profile.positive_definite == "EVERYWHERE"}
    return all(f.metric == "euclidean" and f.profile in profiles for t in terms for f in t.factors)


_supremum = partial(kernel_supremum, has_bounded_points=False)  # targets may be anywhere


def _by_draws(data: Forecasts, draws: Draws, replicate: int | None = None, size: int | None = None) -> TargetFactor:
    """Return the factor with predictions replaced by means over draws."""
    root, terms = normal_form(draws.kernel)
    seed = draws.seed if replicate is None else seed_of(draws.seed, replicate)
    components = _transform(drawn_atoms(data.prediction, draws.n_draws if size is None else size, seed), root)
    name = f"{draws.n_draws} draws from each prediction, seed {draws.seed}"
    return _of_atoms(data, draws.kernel, components, terms, root, name, draws)


def _transform(components: Components, root: np.ndarray | None) -> Components:
    """Return the distributions of Z @ root."""
    if root is None:
        return components
    like = components.locations
    return mixtures.transformed(like[:, 0, :], components, root)[1]


def seed_of(*key: int) -> int:
    """Return a distinct seed for each key."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def normal_form(target_kernel: Any) -> tuple[np.ndarray | None, tuple[Term, ...]]:
    """Return the linear map of targets, and the kernel's normal form after it."""
    if isinstance(target_kernel, MahalanobisGaussian):
        return target_kernel.root, Gaussian(bandwidth=1.0).terms()
    return None, target_kernel.terms()


def _take_components(components: Components, rows: Any) -> Components:
    scales = None if components.scales is None else take_rows(components.scales, rows)
    return Components(
        components.family, take_rows(components.weights, rows), take_rows(components.locations, rows), scales
    )


def side_of(data: Forecasts, points: Array, features: Array) -> Side:
    xp = data.xp
    dtype = getattr(xp, data.dtype)
    return Side(*(xp.astype(compact(a), dtype, copy=False) for a in (points, features)))


def compact(array: Array) -> Array:
    return np.ascontiguousarray(array) if arrays.is_host(array) else array
