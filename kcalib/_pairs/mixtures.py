"""Inner products of signed mixtures under a target kernel: the closed forms for `_pairs.problem.Mixtures`.

`feature_columns`, `location_columns` and `point_columns` write the parameters of mixtures as rows of float64.
`inner_products` returns the target factors of all pairs of such rows, `own_products` those of each row with itself,
`squared_mmd` squared MMD distances of predictions; `expectation` and `pair_expectation` are the closed forms. All use
array API functions, run in every array library, and are differentiable. The formulas are in `_pairs.families`, for the
compiled core in src/include/kcalib/families/. `_packing` calls the first three, `_pairs.backends` the others.

Formulas: Widmann et al. 2021, appendix D, in forms without cancellation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs.families import FAMILIES, POINT_FAMILIES
from kcalib._pairs.problem import Components, Family, Mixtures, Term

BLOCK_ELEMENTS = 2**20  # of a temporary for a block of pairs of rows

# Inverse length scale of a target kernel; for sums of kernels pairs (coefficient, inverse length scale).
Scale = float | Sequence[tuple[float, float]]


# Rows of parameters


def closed_form(family: Family, kernel: Sequence[Term], n_dims: int) -> tuple[tuple[float, float], ...] | None:
    """Return the scale of a target kernel in normal form for `feature_columns`, or None without a closed form.

    Closed forms exist for sums and products of Gaussian kernels for normals, of exponential kernels for Laplace
    distributions, and for all kernels for atoms, whose scale is in `Mixtures.kernel`.
    """
    profile = FAMILIES[family].profile
    if profile is None:
        return ((1.0, 1.0),)
    scales = []
    for term in kernel:
        for factor in term.factors:
            if factor.profile != profile or not (factor.metric == "euclidean" or n_dims == 1):
                return None
        scales.append((term.coefficient, sum(factor.scale for factor in term.factors)))
    return tuple(scales)


def feature_columns(y: Array, components: Components, scale: Scale, weight: Array | None = None) -> Array:
    """Return rows of `Mixtures` features for targets of shape (n, d); `weight` scales the measures.

    l = exp(-scale |y - y'|^2) for normals, exp(-scale |y - y'|) for Laplace distributions; atoms have scale 1. A sum of
    kernels has a group of columns for each pair in `scale`.
    """
    xp = arrays.namespace(y)
    u = xp.ones_like(y[:, :1]) if weight is None else weight[:, None]
    return _rows(y, components, scale, u, xp.ones_like(u))


def location_columns(y: Array, like: Components, scale: Scale) -> Array:
    """Return rows of features for observations only, delta_y, for products with `feature_columns` of `like`."""
    xp, n, d, count = arrays.namespace(y), y.shape[0], y.shape[1], int(like.weights.shape[1])
    no_components = padded(Components(like.family, *_nothing(like, n, d, 0)), count)
    u = xp.ones_like(y[:, :1])
    return _rows(y, no_components, scale, u, xp.ones_like(u))


def point_columns(components: Components, scale: Scale) -> Array:
    """Return rows of `Mixtures` points, for the metric "mmd" under the kernel that `scale` says."""
    xp, n = arrays.namespace(components.locations), components.locations.shape[0]
    groups = [
        xp.reshape(_columns(components, scale, coefficient**0.5), (n, -1)) for coefficient, scale in _pairs_of(scale)
    ]
    return groups[0] if len(groups) == 1 else xp.concat(groups, axis=1)


def padded(components: Components, n_components: int) -> Components:
    """Return the mixtures with further components of weight 0."""
    n, count, d = components.locations.shape
    if count == n_components:
        return components
    extra = _nothing(components, n, d, n_components - count)
    xp = arrays.namespace(components.locations)
    padded_arrays = [
        None if array is None else xp.concat([array, columns], axis=1)
        for array, columns in zip((components.weights, components.locations, components.scales), extra, strict=True)
    ]
    return Components(components.family, *padded_arrays)


def transformed(y: Array, components: Components, root: np.ndarray) -> tuple[Array, Components]:
    """Return targets y R and the distributions of Z R, for the metric |y R - y' R|, with R of shape (d, r)."""
    diagonal = root.shape[0] == root.shape[1] and not (root - np.diag(root.diagonal())).any()
    root = arrays.like(root, y, dtype=y.dtype)
    locations = components.locations @ root
    family, scales = FAMILIES[components.family].transformed(components, root, diagonal)
    return y @ root, Components(family, components.weights, locations, scales)


def _pairs_of(scale: Scale) -> Sequence[tuple[float, float]]:
    return ((1.0, float(scale)),) if isinstance(scale, (int, float)) else scale


def _nothing(like: Components, n: int, d: int, count: int) -> tuple[Array, Array, Array | None]:
    """Return weights 0, locations and scales of `count` components."""
    xp, array = arrays.namespace(like.locations), like.locations
    kind: Any = {"dtype": array.dtype, "device": arrays.device(array)}
    locations = xp.zeros((n, count, d), **kind)
    return xp.zeros((n, count), **kind), locations, FAMILIES[like.family].scales_of_nothing(locations)


def _rows(y: Array, components: Components, scale: Scale, u: Array, c: Array) -> Array:
    xp, n, groups = arrays.namespace(y), y.shape[0], []
    for coefficient, term_scale in _pairs_of(scale):
        group_u = u if coefficient == 1 else coefficient**0.5 * u
        columns = xp.reshape(_columns(components, term_scale), (n, -1))
        groups += [group_u, c, FAMILIES[components.family].unit(term_scale) * y, columns]
    return xp.concat(groups, axis=1)


def _columns(components: Components, scale: float, factor: float = 1.0) -> Array:
    """Return the columns of the components, shape (n, K, columns), their weights times `factor`."""
    family, w = FAMILIES[components.family], components.weights[:, :, None]
    w = w if factor == 1 else factor * w
    return family.columns(w, family.unit(scale) * components.locations, components.scales, scale)


# Products of rows


def inner_products(mixtures: Mixtures, left: Array, right: Array) -> Array:
    """Return target factors of all pairs of rows, shape (n, n right), in their dtype and bounded memory."""
    return _in_blocks(mixtures, FAMILIES[mixtures.family].feature_products, left, right)


def own_products(mixtures: Mixtures, features: Array) -> Array:
    """Return target factors of the rows with themselves, shape (n,), in float64 and bounded memory."""
    xp = arrays.namespace(features)
    feature_products = FAMILIES[mixtures.family].feature_products
    return _over_rows(
        mixtures, lambda rows: feature_products(mixtures, rows, rows), xp.astype(features, xp.float64, copy=False)
    )


def point_products(mixtures: Mixtures, left: Array, right: Array) -> Array:
    """Return E l(Z_i, Z'_j) for all pairs of rows of points, shape (n, n right), in bounded memory."""
    return _in_blocks(mixtures, POINT_FAMILIES[mixtures.family].point_products, left, right)


def own_point_products(mixtures: Mixtures, points: Array) -> Array:
    """Return the products of the rows with themselves, shape (n,)."""
    point_products = POINT_FAMILIES[mixtures.family].point_products
    return _over_rows(mixtures, lambda rows: point_products(mixtures, rows, rows), points)


def squared_mmd(mixtures: Mixtures, left: Array, right: Array) -> Array:
    """Return squared MMD distances of all pairs of rows of points, shape (n, n right), in their dtype.

    Accurate to rounding at any distance for single normals with independent entries or equal covariances, and for
    counts. Otherwise with the rounding of f(P, P) + f(P', P') - 2 f(P, P'), but never negative, and 0 for equal
    parameters.
    """
    sides = (
        arrays.namespace(points).concat([own_point_products(mixtures, points)[:, None], points], axis=1)
        for points in (left, right)
    )
    return _in_blocks(mixtures, POINT_FAMILIES[mixtures.family].squared_between, *sides)


def expectation(components: Components, y: Array, terms: tuple[Term, ...]) -> Array:
    """Return E l(Z_i, y_j), Z_i of the i-th distribution, for all i and j, shape (n, n targets), in closed form.

    Gaussian kernels for normals, exponential ones for Laplace distributions, all kernels for atoms; sums and
    multiples of these. Widmann et al. 2021, appendix D. Time and memory: n times the number of targets.
    """
    mixtures, scale = _describe(components, terms)
    right = location_columns(y, components, scale)
    return -inner_products(mixtures, _predictions(components, scale), right)


def pair_expectation(components: Components, other: Components, terms: tuple[Term, ...]) -> Array:
    """Return E l(Z_i, Z'_j) of independent Z_i and Z'_j of one family for all i and j, as `expectation`."""
    if components.family != other.family:
        raise ValueError(f"`other` is of the family {other.family!r}, expected {components.family!r} too")
    count = max(components.weights.shape[1], other.weights.shape[1])
    components, other = padded(components, count), padded(other, count)
    mixtures, scale = _describe(components, terms)
    return inner_products(mixtures, _predictions(components, scale), _predictions(other, scale))


def description(components: Components, terms: tuple[Term, ...], scale: Sequence[tuple[float, float]]) -> Mixtures:
    """Return the meaning of rows of columns of the components."""
    d, count = int(components.locations.shape[2]), int(components.weights.shape[1])
    kernel = terms if _native.FAMILIES[components.family].of_kernel else ()
    return Mixtures(components.family, d, count, len(scale), kernel)


def _describe(components: Components, terms: tuple[Term, ...]) -> tuple[Mixtures, Scale]:
    scale = closed_form(components.family, terms, int(components.locations.shape[2]))
    if scale is None:
        raise ValueError(f"`terms` are {terms}, which have no closed form for the family {components.family!r}")
    return description(components, terms, scale), scale


def _predictions(components: Components, scale: Scale) -> Array:
    """Return rows of features for predictions only, -P."""
    xp = arrays.namespace(components.locations)
    y = xp.zeros_like(components.locations[:, 0, :])
    u = xp.ones_like(y[:, :1])
    return _rows(y, components, scale, u, xp.zeros_like(u))


def _elements(mixtures: Mixtures) -> int:
    """Return the number of elements of the temporaries for a pair of rows."""
    return POINT_FAMILIES[mixtures.family].elements(mixtures.n_dims, mixtures.n_components)


def _in_blocks(
    mixtures: Mixtures, function: Callable[[Mixtures, Array, Array], Array], left: Array, right: Array
) -> Array:
    """Apply `function` to all pairs of rows, shape (n, n right), in blocks."""
    xp, n, m, pairs = arrays.namespace(left), left.shape[0], right.shape[0], BLOCK_ELEMENTS // _elements(mixtures)
    columns = max(1, min(m, pairs))
    rows = max(1, min(n, pairs // columns))
    strips = []
    for i in range(0, n, rows):
        block = left[i : min(n, i + rows), None, :]
        blocks = [function(mixtures, block, right[None, j : min(m, j + columns), :]) for j in range(0, m, columns)]
        strips.append(blocks[0] if len(blocks) == 1 else xp.concat(blocks, axis=1))
    return strips[0] if len(strips) == 1 else xp.concat(strips, axis=0)


def _over_rows(mixtures: Mixtures, function: Callable[[Array], Array], rows: Array) -> Array:
    n, step = rows.shape[0], max(1, BLOCK_ELEMENTS // _elements(mixtures))
    parts = [function(rows[i : min(n, i + step), :]) for i in range(0, n, step)]
    return parts[0] if len(parts) == 1 else arrays.namespace(rows).concat(parts)
