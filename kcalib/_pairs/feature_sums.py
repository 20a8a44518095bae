"""Sums over samples of random features, in time O(n columns), without storing features.

For a `FeatureMap` phi: the sums of phi(x_i) (x) a_i for the SKCE of the feature kernel, its rows, and the same for
labels drawn from predictions. Features are computed a tile of rows at a time, for NumPy arrays by
src/cpu/features/features.h, for others by array API functions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.compensated import CompensatedSums
from kcalib._backend.random import cumulative_sums, draw_labels, replicate_numbers
from kcalib._backend.threads import resolve_threads, run_options
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.label_cells import DrawnCells

TILE_ELEMENTS = 2**22  # numbers of a tile's features, or of its residuals
SUMS_BYTES = 2**26  # sums of draws that are computed at a time on a device
LABELS = 2**25  # labels that are drawn at a time on a device
LEAST_ROWS, MOST_PARTS, PARTS_BYTES = 2**10, 64, 2**25  # of Gram matrices: rows of a part, parts, and those in memory


def sum_products(
    feature_map: FeatureMap, points: Array, target_features: Array, *, threads: int | None = None
) -> tuple[Array, np.ndarray]:
    """Return the sums of phi(x_i) (x) a_i, shape (n_columns, r), and of |phi_g(x_i)|^2 |a_i|^2 for the columns of each
    group g.

    `points` are (n, d), `target_features` (n, r); the second result has shape (n_groups,). All in float64.
    """
    if arrays.is_host(points):
        points, target_features = _as_common_dtype(points, target_features)
        with run_options(threads) as options:
            sums, by_frequency = compiled(feature_map).sum_products(points, target_features, options)
        return sums, _by_group(feature_map, by_frequency)
    arrays.check_no_threads(points, threads)
    tiles = _Tiles(feature_map, points)
    xp = tiles.xp
    total, diagonal = 0.0, 0.0
    for rows in tiles.slices(feature_map.n_columns + target_features.shape[1]):
        tile = xp.astype(target_features[rows, :], xp.float64)
        features = tiles.features(points[rows, :])
        part = xp.matmul(xp.matrix_transpose(features), tile)
        weights = xp.sum(tile * tile, axis=1)
        norms = tiles.square_sizes(points[rows, :])
        part_diagonal = xp.matmul(xp.matrix_transpose(norms), weights)
        total, diagonal = part + total, part_diagonal + diagonal
    return total, _by_group(feature_map, arrays.to_host(diagonal))


def gram_rows(n: int) -> int:
    """Return the number of rows of a part in `gram`, which determines the order of summation."""
    return max(LEAST_ROWS, -(-n // MOST_PARTS))


def gram_numbers(width: int, threads: int | None) -> int:
    """Return how many numbers `gram` needs in memory besides its result."""
    return (_parts_at_once(width, threads) + resolve_threads(threads) + 2) * width**2


def _parts_at_once(width: int, threads: int | None) -> int:
    return max(resolve_threads(threads), min(MOST_PARTS, PARTS_BYTES // (8 * width**2)))


def gram(feature_map: FeatureMap, points: np.ndarray, columns: np.ndarray, *, threads: int | None = None) -> np.ndarray:
    """Return the sum of z_i (x) z_i with z_i = (phi(x_i), columns_i), for float64 arrays on the host."""
    n, width = len(points), feature_map.n_columns + columns.shape[1]
    rows, sums = gram_rows(n), CompensatedSums((width, width))
    step = rows * _parts_at_once(width, threads)
    for begin in range(0, n, step):
        batch = slice(begin, begin + step)
        with run_options(threads) as options:
            parts = compiled(feature_map).gram_parts(points[batch], columns[batch], rows, options)
        for part in parts:
            sums.add(0, width, part)
    sums.settle()
    return sums.sums


def row_forms(
    feature_map: FeatureMap, points: Array, target_features: Array, sums: Array, *, threads: int | None = None
) -> tuple[Array, Array]:
    """Return <phi(x_i) (x) a_i, sums> and |phi(x_i)|^2 |a_i|^2 for every row; `sums` are from `sum_products`."""
    if arrays.is_host(points):
        points, target_features = _as_common_dtype(points, target_features)
        with run_options(threads) as options:
            return compiled(feature_map).row_forms(
                points, target_features, arrays.as_compact(sums, np.float64), options
            )
    arrays.check_no_threads(points, threads)
    tiles = _Tiles(feature_map, points)
    xp = tiles.xp
    forms, diagonal = [], []
    for rows in tiles.slices(feature_map.n_columns + target_features.shape[1]):
        tile = xp.astype(target_features[rows, :], xp.float64)
        forms.append(xp.sum(xp.matmul(tiles.features(points[rows, :]), sums) * tile, axis=1))
        diagonal.append(xp.sum(tiles.square_sizes(points[rows, :]), axis=1) * xp.sum(tile * tile, axis=1))
    return xp.concat(forms), xp.concat(diagonal)


def drawn_label_totals(
    feature_map: FeatureMap,
    probabilities: Array,
    n_draws: int,
    seed: int,
    *,
    root: np.ndarray | None = None,
    points: Array | None = None,
    threads: int | None = None,
    first: int = 0,
    cells: DrawnCells | None = None,
    weights: Array | None = None,
) -> np.ndarray:
    """Return |S|^2 - sum_i w_i^2 |phi(x_i)|^2 |R^T e_i|^2, S = sum_i w_i phi(x_i) (x) R^T e_i, for drawn labels,
    (n_draws,).

    Entry b has the labels of `draw(seed, first + b)` of the data, and e_i = onehot(y_i) - p_i. The residual of a label,
    1 - p, is exact for p >= 1/2, so that saturated predictions keep their digits.

    Time O(n columns draws), less for confident predictions. Memory O(columns m draws), at most about 64 MB: if all
    draws take more (from 32 draws on for 1000 classes, 256 columns), they are batched, and features are computed for
    each batch.

    `root` is R of the matrix R R^T of the target kernel, (m, r), None for the Kronecker delta. `points` default to the
    probabilities. `cells` also counts the labels.
    """
    if n_draws == 0:
        return np.empty(0)
    points = probabilities if points is None else points
    if arrays.is_host(points):
        probabilities = arrays.as_compact(probabilities, np.float64)
        (points,) = _as_common_dtype(points)
        root = None if root is None else arrays.as_compact(root, np.float64)
        with run_options(threads) as options:
            into = None if cells is None else cells.compiled()
            of_rows = None if weights is None else arrays.as_compact(weights, np.float64)
            return compiled(feature_map).drawn_label_totals(
                points, probabilities, root, seed, first, n_draws, options, into, of_rows
            )
    arrays.check_no_threads(points, threads)
    tiles = _Tiles(feature_map, points)
    xp = tiles.xp
    n, m = probabilities.shape
    factor = None if root is None else arrays.like(root, points, dtype=xp.float64)
    cumulative = cumulative_sums(probabilities)
    at_once = max(1, min(SUMS_BYTES // (8 * feature_map.n_columns * m), LABELS // n))
    classes = arrays.like(np.arange(m), points)
    totals = []
    for begin in range(first, first + n_draws, at_once):
        replicates = range(begin, min(begin + at_once, first + n_draws))
        label_draws = [
            draw_labels(cumulative, replicate_numbers(seed, r, probabilities).uniform(n)) for r in replicates
        ]
        if cells is not None:
            columns = [arrays.asarray_like(labels, points) for labels in label_draws]
            cells.add(begin - first, probabilities, xp.stack(columns, axis=1), weights)
        sums, diagonal = 0.0, 0.0
        for rows in tiles.slices(feature_map.n_columns + m * len(replicates)):
            p = xp.astype(probabilities[rows, :], xp.float64)
            labels = xp.stack([arrays.asarray_like(labels[rows], points) for labels in label_draws], axis=1)
            target_features = xp.astype(labels[:, :, None] == classes, xp.float64) - p[:, None, :]
            target_features = target_features if factor is None else xp.matmul(target_features, factor)
            if weights is not None:
                target_features = target_features * xp.astype(weights[rows], xp.float64)[:, None, None]
            flat = xp.reshape(target_features, (p.shape[0], -1))
            sums = xp.matmul(xp.matrix_transpose(tiles.features(points[rows, :])), flat) + sums
            sizes = xp.sum(tiles.square_sizes(points[rows, :]), axis=1)
            diagonal = xp.sum(sizes[:, None] * xp.sum(target_features * target_features, axis=2), axis=0) + diagonal
        squares = xp.sum(xp.reshape(sums * sums, (feature_map.n_columns, len(replicates), -1)), axis=(0, 2))
        totals.append(arrays.to_host(squares - diagonal))
    return np.concatenate(totals)


def feature_rows(feature_map: FeatureMap, points: Array, *, threads: int | None = None) -> Array:
    """Return phi of every row of `points`, shape (n, n_columns), in float64, for parts of the data."""
    if arrays.is_host(points):
        (points,) = _as_common_dtype(points)
        with run_options(threads) as options:
            return compiled(feature_map).rows(points, options)
    return _Tiles(feature_map, points).features(points)


def compiled(feature_map: FeatureMap) -> _native.Features:
    """Return the map for compiled code."""
    parts = feature_map.frequencies, feature_map.amplitudes, feature_map.projections, feature_map.offsets
    return _native.Features(*(arrays.as_compact(part, np.float64) for part in parts))


def _as_common_dtype(*values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return arrays for compiled code, in float32 if all are."""
    dtype = np.float32 if all(array.dtype == np.float32 for array in values) else np.float64
    return tuple(arrays.as_compact(array, dtype) for array in values)


def _by_group(feature_map: FeatureMap, by_frequency: np.ndarray) -> np.ndarray:
    return np.bincount(feature_map.groups, weights=by_frequency, minlength=feature_map.n_groups)


class _Tiles:
    """Features of rows by array API functions, on the device of the points."""

    def __init__(self, feature_map: FeatureMap, points: Array) -> None:
        self.xp = arrays.namespace(points)
        self._n = int(points.shape[0])
        self._frequencies, self._amplitudes, self._projections, self._offsets = (
            arrays.like(values, points, dtype=self.xp.float64)
            for values in (
                feature_map.frequencies.T,
                feature_map.amplitudes,
                feature_map.projections.transpose(0, 2, 1),
                feature_map.offsets,
            )
        )

    def slices(self, width: int) -> Iterator[slice]:
        """Yield rows 0..n-1 in tiles of at most `TILE_ELEMENTS` numbers, `width` a row."""
        step = max(1, TILE_ELEMENTS // width)
        for begin in range(0, self._n, step):
            yield slice(begin, min(begin + step, self._n))

    def features(self, points: Array) -> Array:
        xp = self.xp
        points = xp.astype(points, xp.float64)
        phases = xp.matmul(points, self._frequencies)
        factors = self._factors(points)
        return xp.concat([factors * xp.cos(phases), factors * xp.sin(phases)], axis=1)

    def square_sizes(self, points: Array) -> Array:
        """Return squared features of the rows, cosine plus sine of a frequency, shape (n, F)."""
        factors = self._factors(self.xp.astype(points, self.xp.float64))
        return self.xp.broadcast_to(factors * factors, (points.shape[0], factors.shape[1]))

    def _factors(self, points: Array) -> Array:
        factors = self._amplitudes[None, :]
        for level in range(self._projections.shape[0]):
            factors = factors * (self.xp.matmul(points, self._projections[level, ...]) + self._offsets[level, :])
        return factors
