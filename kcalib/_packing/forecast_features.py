"""Random features of predicted distributions: H_ij = <phi_i, phi_j> <a_i, a_j>, for sums in linear time.

The kernel on predictions has random features phi of vectors (`prediction_points.vectors`), the target kernel a few
target features a (`target_features`). Both are independent: the mean of the product is the product of the kernels, and
groups of both give its standard error. Registered for `features.features_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.threads import resolve_threads
from kcalib._input.forecasts import ROWS, Forecasts
from kcalib._packing.features import FeatureProblem, MapOptions, drawn_map, features_of, products_of
from kcalib._packing.packed import Packed
from kcalib._packing.prediction_points import Vectors, vectors
from kcalib._packing.target_factors import TargetFactor
from kcalib._packing.target_features import (
    ExactTargetFeatures,
    RandomTargetFeatures,
    TargetFeatures,
    Tile,
    make_target_features,
    slices,
)
from kcalib._packing.variance import FiniteLaw, expected_lengths, finite_law
from kcalib._pairs.feature_sums import feature_rows, sum_products
from kcalib._pairs.features import FeatureMap
from kcalib.kernels import MMD

DRAWS_BYTES = 2**26  # targets or sums of draws that are computed at a time
NULL_DRAWS, NULL_SEED = 16, 0  # draws of targets for moments under calibration


@dataclass(frozen=True, eq=False)
class ForecastFeatures(FeatureProblem):
    """Features of targets and predicted distributions."""

    data: Forecasts
    vectors: Vectors
    target: TargetFeatures

    @property
    def points(self) -> Array:
        return self.vectors.values

    @cached_property
    def target_features(self) -> Array:
        tiles = ((rows, self.target.tile(rows).target_features(self.data.y[rows, :])) for rows in self._tiles())
        if arrays.is_host(self.points):
            features = np.empty((self.n, self.target.n_columns))
            for rows, tile_features in tiles:
                features[rows] = tile_features
        else:
            features = self.data.xp.concat([tile_features for _, tile_features in tiles])
        weight = self.data.sample_weight
        return features if weight is None else features * arrays.asarray_like(weight, features)[:, None]

    @property
    def target_groups(self) -> np.ndarray:
        return self.target.groups

    def with_map(self, n_columns: int, seed: int) -> ForecastFeatures:
        return replace(self, map=drawn_map(self.vectors.terms, self.points, n_columns, seed), seed=seed)

    def drawn_totals(self, n_draws: int, seed: int, first: int = 0) -> np.ndarray:
        return self._drawn_totals([self.map], n_draws, seed, first)[0]

    def drawn_totals_of_both(
        self, other: FeatureProblem, n_draws: int, seed: int, **drawn: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        totals = self._drawn_totals([self.map, other.map], n_draws, seed, 0)
        return totals[0], totals[1]

    def _drawn_totals(self, maps: list[FeatureMap], n_draws: int, seed: int, first: int) -> np.ndarray:
        """Sum tile by tile for all maps: target features of a tile serve all draws of a batch."""
        sums = 8 * self.target.n_columns * sum(feature_map.n_columns for feature_map in maps)
        at_once = DRAWS_BYTES // sums
        if self.data.prediction._n_uniforms is None:  # all rows are drawn at once
            at_once = min(at_once, DRAWS_BYTES // (8 * self.n * self.data.n_dims))
        totals = [np.empty((len(maps), 0))]
        for begin in range(first, first + n_draws, max(1, at_once)):
            replicates = range(begin, min(begin + max(1, at_once), first + n_draws))
            totals.append(self._totals(maps, self.data.row_draws(seed, replicates), len(replicates)))
        return np.concatenate(totals, axis=1)

    def redrawn(self, n_groups: int) -> Iterator[ForecastFeatures]:
        for target in self.target.redrawn(self.data, n_groups):
            yield replace(self, target=target)

    def null_lengths(self, rows: np.ndarray) -> np.ndarray:
        law = self._law(rows)
        if law is not None:
            return arrays.to_host(expected_lengths(law)[0])
        lengths = self._take_target(rows).null_lengths()
        return self._mean_over_draws(rows, _square_lengths) if lengths is None else lengths

    def null_products(self, rows: np.ndarray) -> np.ndarray:
        law = self._law(rows)
        if law is not None:
            return products_of(law)
        products = self._take_target(rows).null_products()
        return self._mean_over_draws(rows, lambda a: linalg.matmul(a, a.T) ** 2) if products is None else products

    def null_powers(self) -> tuple[np.ndarray, np.ndarray]:
        rows = np.arange(self.n)
        law = self.finite_law(rows)
        if law is not None:
            squares, fourths = (arrays.to_host(part) for part in expected_lengths(law))
            return squares, fourths
        return self.null_lengths(rows), self._mean_over_draws(rows, lambda a: _square_lengths(a) ** 2)

    def _mean_over_draws(self, rows: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return np.asarray(np.mean([function(features) for features in self._draw_target_features(rows)], axis=0))

    def draw_target_features(self, rows: np.ndarray) -> np.ndarray:
        """Return features of targets drawn from the predictions of these rows, shape (rows, columns)."""
        return next(self._draw_target_features(rows))

    def described(self) -> dict[str, Any]:
        description = super().described() | {"target_factor": self.target.route}
        if self.vectors.error:
            description["backend_reason"] += f"; distances of predictions are off by {self.vectors.error:.1g} at most"
        return description

    def _tiles(self) -> Iterator[slice]:
        return slices(self.n, self.target.n_columns)

    def _law(self, rows: np.ndarray) -> FiniteLaw | None:
        """Return the law of counts with exact target features."""
        return self.finite_law(rows) if isinstance(self.target, ExactTargetFeatures) else None

    def finite_law(self, rows: np.ndarray) -> FiniteLaw | None:
        """Return the law of counts that are not too large."""
        law = finite_law(self.data.take(arrays.like(rows, self.data.y)), self.packed)
        if law is None or not isinstance(self.target, RandomTargetFeatures):
            return law
        counts = np.arange(law.probabilities.shape[1], dtype=np.float64)
        return replace(law, root=self.target.of_targets(counts[:, None]))

    def _take_target(self, rows: np.ndarray) -> TargetFeatures:
        return self.target.take(arrays.like(rows, self.data.y))

    def _draw_target_features(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yield features of targets drawn from these predictions."""
        data, tile = self.data.take(arrays.like(rows, self.data.y)), self._take_target(rows).tile(slice(0, len(rows)))
        for replicate in range(NULL_DRAWS):
            yield arrays.to_host(tile.target_features(data.draw(NULL_SEED, replicate).y))

    def _drawn_tiles(self, draw: Callable[[slice], Array], width: int) -> Iterator[tuple[slice, Array]]:
        """Yield rows in tiles of `width` numbers per row, with targets, which are drawn block by block."""
        for begin in range(0, self.n, ROWS):
            end = min(begin + ROWS, self.n)
            y = draw(slice(begin, end))
            for rows in slices(end - begin, width):
                yield slice(begin + rows.start, begin + rows.stop), y[:, rows, :]

    def _totals(self, maps: list[FeatureMap], draw: Callable[[slice], Array], count: int) -> np.ndarray:
        """Return sum_{i != j} H_ij for each map and draw; `draw` returns the targets of rows, (count, rows, d)."""
        points, weight = self.points, self.data.sample_weight
        xp, r = arrays.namespace(points), self.target.n_columns
        sums: list[Any] = [0.0] * len(maps)
        diagonals: list[Any] = [0.0] * len(maps)
        width = max(feature_map.n_columns for feature_map in maps) + r * count
        workers = resolve_threads(self.threads) if arrays.is_host(points) else 1
        with ThreadPoolExecutor(workers) as pool:
            for rows, y in self._drawn_tiles(draw, width):
                tile, tile_points = self.target.tile(rows), points[rows, :]

                def of_draw(replicate: int, tile: Tile = tile, y: Array = y, rows: slice = rows) -> tuple[Array, Array]:
                    target_features = tile.target_features(y[replicate, :, :])
                    if weight is not None:
                        target_features = target_features * arrays.asarray_like(weight[rows], target_features)[:, None]
                    return target_features, xp.sum(target_features * target_features, axis=1)

                results = list(pool.map(of_draw, range(count))) if workers > 1 else list(map(of_draw, range(count)))
                target_features = xp.concat([features for features, _ in results], axis=1)
                for k, feature_map in enumerate(maps):
                    products = sum_products(feature_map, tile_points, target_features, threads=self.threads)[0]
                    sizes = _square_sizes(feature_map, tile_points)
                    sums[k] = products + sums[k]
                    diagonals[k] = xp.stack([xp.sum(sizes * squares) for _, squares in results]) + diagonals[k]
        totals = []
        for feature_map, products, diagonal in zip(maps, sums, diagonals, strict=True):
            squares = xp.sum(xp.reshape(products * products, (feature_map.n_columns, count, r)), axis=(0, 2))
            totals.append(arrays.to_host(squares - diagonal))
        return np.stack(totals)


@features_of.register
def _(data: Forecasts, packed: Packed, options: MapOptions) -> FeatureProblem:
    """Return features of distributions; with MMD distances each model has a map, as embeddings have own coordinates."""
    assert isinstance(packed.target, TargetFactor)
    points = vectors(data.prediction, packed.kernel, packed.problem)
    arrays.check_no_threads(points.values, options.threads)
    if options.reference is None or any(isinstance(factor.metric, MMD) for factor in packed.kernel.factors()):
        feature_map = drawn_map(points.terms, points.values, options.n_columns, options.seed)
    else:
        feature_map = options.reference.map
    target = make_target_features(data, packed.target, feature_map.n_columns, options.seed)
    return ForecastFeatures(data, packed, feature_map, options.seed, options.threads, points, target)


def _square_lengths(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(np.sum(vectors * vectors, axis=1))


def _square_sizes(feature_map: FeatureMap, points: Array) -> Array:
    """Return |phi(x)|^2 of the rows."""
    xp = arrays.namespace(points)
    if not len(feature_map.projections):
        return xp.full_like(xp.astype(points[:, 0], xp.float64), float(np.sum(feature_map.amplitudes**2)))
    phi = feature_rows(feature_map, points)
    return xp.sum(phi * phi, axis=1)
