"""Inner products of signed mixtures under a target kernel: the closed forms behind `_pairs.problem.Mixtures`.

`mark_columns`, `location_columns` and `point_columns` write the parameters of mixtures as rows of numbers (in float64:
whoever wants float32 rounds the rows, once), `inner_products` gives the target factors of all pairs of such rows,
`own_products` those of each row with itself, `squared_mmd` the squared MMD distances of predictions. All in array API
functions, so that they run, and are differentiable, in every array library; src/include/kcalib/mixtures.h has the same
formulas for the compiled core. `_packing` calls the first three, `_pairs.operators` the others. `expectation` and
`pair_expectation` are the closed forms by themselves.

Formulas: Widmann et al. 2021, appendix D, in forms without cancellation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs.problem import Components, Family, Mixtures, Term
from kcalib._pairs.profiles import Distances, kernel_matrix

BLOCK_ELEMENTS = 2**20  # of a temporary: pairs of rows are taken in blocks of so many
# Between these an expression of the Laplace formulas has its value to rounding, and no product overflows in float32.
FARTHEST = 1e3  # Delta / R: exp(-1000) is 0
LARGEST_RATIO = 1e30
SERIES_E1, SERIES_E2 = 0.01, 0.5  # below these E1 and E2 are Taylor sums

# The inverse length scale of a target kernel; of a sum of kernels pairs (coefficient, inverse length scale).
Scale = float | Sequence[tuple[float, float]]


# Rows of parameters


def closed_form(family: Family, kernel: Sequence[Term], n_dims: int) -> tuple[tuple[float, float], ...] | None:
    """What `mark_columns` takes as the scale of a target kernel in normal form; None: there is no closed form.

    Sums and products of Gaussian kernels for normals, of exponential ones for Laplace distributions; all kernels
    for atoms, which have no scale: theirs is in `Mixtures.kernel`.
    """
    if family == "atoms":
        return ((1.0, 1.0),)
    profile = "exponential" if family == "laplace" else "gaussian"
    scales = []
    for term in kernel:
        for factor in term.factors:
            if factor.profile != profile or not (factor.metric == "euclidean" or n_dims == 1):
                return None
        scales.append((term.coefficient, sum(factor.scale for factor in term.factors)))
    return tuple(scales)


def mark_columns(y: Array, components: Components, scale: Scale, weight: Array | None = None) -> Array:
    """Rows of `Mixtures` marks for targets of shape (n, d); `weight` scales the measures.

    l = exp(-scale |y - y'|^2) for normals, exp(-scale |y - y'|) for Laplace distributions; atoms: scale 1. For a sum
    of kernels there are as many groups of columns as pairs in `scale`.
    """
    xp = arrays.namespace(y)
    u = xp.ones_like(y[:, :1]) if weight is None else weight[:, None]
    return _rows(y, components, scale, u, xp.ones_like(u))


def location_columns(y: Array, like: Components, scale: Scale, weight: Array | None = None) -> Array:
    """Rows of marks that are observations alone, delta_y, beside those of `mark_columns` with components `like`."""
    xp, n, d, count = arrays.namespace(y), y.shape[0], y.shape[1], int(like.weights.shape[1])
    nothing = padded(Components(like.family, *_nothing(like, n, d, 0)), count)
    u = xp.ones_like(y[:, :1]) if weight is None else weight[:, None]
    return _rows(y, nothing, scale, u, xp.ones_like(u))


def point_columns(components: Components, scale: Scale) -> Array:
    """Rows of `Mixtures` points, for the metric "mmd" under the kernel that `scale` says."""
    xp, n = arrays.namespace(components.locations), components.locations.shape[0]
    groups = [
        xp.reshape(_columns(components, scale, coefficient**0.5), (n, -1)) for coefficient, scale in _pairs_of(scale)
    ]
    return groups[0] if len(groups) == 1 else xp.concat(groups, axis=1)


def padded(components: Components, n_components: int) -> Components:
    """The same mixtures with components of weight 0 added to them."""
    n, count, d = components.locations.shape
    if count == n_components:
        return components
    extra = _nothing(components, n, d, n_components - count)
    xp = arrays.namespace(components.locations)
    joined = [
        None if array is None else xp.concat([array, more], axis=1)
        for array, more in zip((components.weights, components.locations, components.scales), extra, strict=True)
    ]
    return Components(components.family, *joined)


def transformed(y: Array, components: Components, root: np.ndarray) -> tuple[Array, Components]:
    """Targets y R and the distributions of Z R, for the metric |y R - y' R|, with R of shape (d, r), on the host.

    Normals become "normal_full" unless R is diagonal.
    """
    xp, family, scales = arrays.namespace(y), components.family, components.scales
    diagonal = root.shape[0] == root.shape[1] and not (root - np.diag(root.diagonal())).any()
    root = arrays.like(root, y, dtype=y.dtype)
    locations = components.locations @ root
    if family == "laplace":
        assert scales is not None and root.shape == (1, 1)
        scales = scales * xp.abs(root[0, 0])
    elif family == "normal" and diagonal:
        scales = scales * xp.sum(root * root, axis=0)
    elif family == "normal":
        assert scales is not None
        family = "normal_full"
        scales = xp.matrix_transpose(root) @ (scales[..., None] * root)
    elif family == "normal_full":
        scales = xp.matrix_transpose(root) @ scales @ root
    return y @ root, Components(family, components.weights, locations, scales)


def _pairs_of(scale: Scale) -> Sequence[tuple[float, float]]:
    return ((1.0, float(scale)),) if isinstance(scale, (int, float)) else scale


def _nothing(like: Components, n: int, d: int, count: int) -> tuple[Array, Array, Array | None]:
    """Weights 0, locations and scales of `count` components."""
    xp, array = arrays.namespace(like.locations), like.locations
    shapes = {"normal": (d,), "normal_full": (d, d), "laplace": (1,)}
    kind: Any = {"dtype": array.dtype, "device": arrays.device(array)}
    scales = None
    if like.family != "atoms":
        make = xp.ones if like.family == "laplace" else xp.zeros
        scales = make((n, count, *shapes[like.family]), **kind)
    return xp.zeros((n, count), **kind), xp.zeros((n, count, d), **kind), scales


def _rows(y: Array, components: Components, scale: Scale, u: Array, c: Array) -> Array:
    xp, n, groups = arrays.namespace(y), y.shape[0], []
    for coefficient, one in _pairs_of(scale):
        own = u if coefficient == 1 else coefficient**0.5 * u
        columns = xp.reshape(_columns(components, one), (n, -1))
        groups += [own, c, _unit(components.family, one) * y, columns]
    return xp.concat(groups, axis=1)


def _unit(family: Family, scale: float) -> float:
    """What locations are multiplied by, so that the kernel has no length scale."""
    return {"normal": scale**0.5, "normal_full": scale**0.5, "laplace": scale, "atoms": 1.0}[family]


def _columns(components: Components, scale: float, factor: float = 1.0) -> Array:
    """The columns of the components, shape (n, K, columns), their weights times `factor`."""
    family, scales = components.family, components.scales
    xp, w = arrays.namespace(components.locations), components.weights[:, :, None]
    w = w if factor == 1 else factor * w
    m = _unit(family, scale) * components.locations
    if family == "atoms":
        return xp.concat([w, m], axis=2)
    assert scales is not None
    if family == "laplace":
        return xp.concat([w, m, scale * scales], axis=2)
    if family == "normal":
        h = 0.5 + 2 * scale * scales
        i = 1 / (h + 0.5)
        return xp.concat([w, w * xp.prod(xp.sqrt(i), axis=2, keepdims=True), m, h, i], axis=2)
    n, count, d = m.shape
    one = _identity(m, d)
    full = 2 * scale * scales
    inverse = _inverse(xp.linalg.cholesky(full + one))
    triangle = arrays.like([i * d + j for i in range(d) for j in range(i + 1)], m)
    h, inverse = (xp.reshape(a, (n, count, d * d)) for a in (full + 0.5 * one, inverse))
    diagonal = xp.take(inverse, arrays.like([i * d + i for i in range(d)], m), axis=2)
    v = w * xp.prod(diagonal, axis=2, keepdims=True)
    return xp.concat([w, v, m, xp.take(h, triangle, axis=2), xp.take(inverse, triangle, axis=2)], axis=2)


def _identity(like: Array, d: int) -> Array:
    return arrays.namespace(like).eye(d, dtype=like.dtype, device=arrays.device(like))


def _inverse(root: Array) -> Array:
    """Inverses of lower triangular matrices, shape (..., d, d), row by row."""
    xp, d = arrays.namespace(root), root.shape[-1]
    rows = xp.zeros_like(root[..., :0, :])
    unit = xp.zeros_like(root) + _identity(root, d)
    for i in range(d):
        left = unit[..., i : i + 1, :] - root[..., i : i + 1, :i] @ rows
        rows = xp.concat([rows, left / root[..., i : i + 1, i : i + 1]], axis=-2)
    return rows


# Products of rows


def inner_products(mixtures: Mixtures, left: Array, right: Array) -> Array:
    """Target factors of all pairs of rows of marks, shape (n, n right), in their dtype; in bounded memory."""
    return _in_blocks(mixtures, _summed, left, right)


def own_products(mixtures: Mixtures, marks: Array) -> Array:
    """Target factors of the rows with themselves, shape (n,), float64; in bounded memory."""
    xp = arrays.namespace(marks)
    return _over_rows(mixtures, lambda rows: _summed(mixtures, rows, rows), xp.astype(marks, xp.float64, copy=False))


def squared_mmd(mixtures: Mixtures, left: Array, right: Array) -> Array:
    """Squared MMD distances of all pairs of rows of points, shape (n, n right), in their dtype.

    For single normals of independent entries, or of equal covariances, to rounding, however close they are. Otherwise
    with the rounding of f(P, P) + f(P', P') - 2 f(P, P'), never negative, and 0 for equal parameters.
    """
    if mixtures.family == "normal" and mixtures.n_components == 1:
        return _in_blocks(mixtures, _squared_between_normals, left, right)
    own = [
        _over_rows(mixtures, lambda rows: _of_points(mixtures, rows, rows), points)[:, None] for points in (left, right)
    ]
    return _in_blocks(mixtures, _squared_between, _beside(own[0], left), _beside(own[1], right))


def expectation(components: Components, y: Array, terms: tuple[Term, ...]) -> Array:
    """E l(Z_i, y_j), Z_i of the i-th distribution, for all i and j, shape (n, n targets), in closed form.

    Gaussian kernels for normals, exponential ones for Laplace distributions, all kernels for atoms; sums and
    multiples of these. Widmann et al. 2021, appendix D. Time and memory: n times the number of targets.
    """
    mixtures, scale = _described(components, terms)
    right = location_columns(y, components, scale)
    return -inner_products(mixtures, _predictions(components, scale), right)


def pair_expectation(components: Components, other: Components, terms: tuple[Term, ...]) -> Array:
    """E l(Z_i, Z'_j) of independent Z_i and Z'_j, for all i and j, as `expectation`; both of one family."""
    if components.family != other.family:
        raise ValueError(f"`other` is of the family {other.family!r}, expected {components.family!r} too")
    count = max(components.weights.shape[1], other.weights.shape[1])
    components, other = padded(components, count), padded(other, count)
    mixtures, scale = _described(components, terms)
    return inner_products(mixtures, _predictions(components, scale), _predictions(other, scale))


def _described(components: Components, terms: tuple[Term, ...]) -> tuple[Mixtures, Scale]:
    d = components.locations.shape[2]
    scale = closed_form(components.family, terms, d)
    if scale is None:
        raise ValueError(f"`terms` are {terms}, which have no closed form for the family {components.family!r}")
    atoms = terms if components.family == "atoms" else ()
    return Mixtures(components.family, d, int(components.weights.shape[1]), len(scale), atoms), scale


def _predictions(components: Components, scale: Scale) -> Array:
    """Rows of marks that are predictions alone, -P."""
    xp = arrays.namespace(components.locations)
    y = xp.zeros_like(components.locations[:, 0, :])
    u = xp.ones_like(y[:, :1])
    return _rows(y, components, scale, u, xp.zeros_like(u))


def _beside(column: Array, rows: Array) -> Array:
    return arrays.namespace(rows).concat([column, rows], axis=1)


def _elements(mixtures: Mixtures) -> int:
    """Elements of the temporaries for a pair of rows."""
    d, count = mixtures.n_dims, mixtures.n_components
    return {"normal": d, "normal_full": 2 * d * d, "laplace": 4, "atoms": 2 * (count + 1) ** 2}[mixtures.family]


def _in_blocks(
    mixtures: Mixtures, function: Callable[[Mixtures, Array, Array], Array], left: Array, right: Array
) -> Array:
    """`function` of all pairs of rows, shape (n, n right), a block at a time."""
    xp, n, m, pairs = arrays.namespace(left), left.shape[0], right.shape[0], BLOCK_ELEMENTS // _elements(mixtures)
    columns = max(1, min(m, pairs))
    rows = max(1, min(n, pairs // columns))
    strips = []
    for i in range(0, n, rows):
        some = left[i : min(n, i + rows), None, :]
        blocks = [function(mixtures, some, right[None, j : min(m, j + columns), :]) for j in range(0, m, columns)]
        strips.append(blocks[0] if len(blocks) == 1 else xp.concat(blocks, axis=1))
    return strips[0] if len(strips) == 1 else xp.concat(strips, axis=0)


def _over_rows(mixtures: Mixtures, function: Callable[[Array], Array], rows: Array) -> Array:
    n, step = rows.shape[0], max(1, BLOCK_ELEMENTS // _elements(mixtures))
    parts = [function(rows[i : min(n, i + step), :]) for i in range(0, n, step)]
    return parts[0] if len(parts) == 1 else arrays.namespace(rows).concat(parts)


def _summed(mixtures: Mixtures, left: Array, right: Array) -> Array:
    """Target factors of rows of marks, shapes (..., columns) that broadcast."""
    if mixtures.family == "atoms":
        return _between_atoms(mixtures, left, right, marks=True)
    terms = zip(_terms(mixtures, left), _terms(mixtures, right), strict=True)
    total: Any = 0.0
    for (u, c, y, p), (v, e, z, q) in terms:
        between = c * e * _at_points(mixtures, y, z)
        for one in p:
            between = between - e * _of_component(mixtures, one, z)
        for other in q:
            between = between - c * _of_component(mixtures, other, y)
        for one in p:
            for other in q:
                between = between + _of_components(mixtures, one, other)
        total = total + u * v * between
    return total


def _of_points(mixtures: Mixtures, left: Array, right: Array) -> Array:
    """sum_kl w_k w'_l f(P_k, P'_l) of rows of points, shapes (..., columns) that broadcast."""
    if mixtures.family == "atoms":
        return _between_atoms(mixtures, left, right, marks=False)
    total: Any = 0.0
    groups = zip(_groups(mixtures, left), _groups(mixtures, right), strict=True)
    for p, q in groups:
        for one in p:
            for other in q:
                total = total + _of_components(mixtures, one, other)
    return total


def _squared_between(mixtures: Mixtures, left: Array, right: Array) -> Array:
    """Squared distances of rows of points that have f(P, P) before them."""
    xp = arrays.namespace(left)
    if mixtures.family == "normal_full" and mixtures.n_components == 1:
        return _squared_between_full(mixtures, left, right)
    squared = left[..., 0] + right[..., 0] - 2 * _of_points(mixtures, left[..., 1:], right[..., 1:])
    nothing = (squared <= 0) | xp.all(left == right, axis=-1)
    return xp.where(nothing, xp.zeros_like(squared), squared)


def _between_atoms(mixtures: Mixtures, left: Array, right: Array, *, marks: bool) -> Array:
    """All atoms of a row at once, an observation being one of them."""
    xp, d = arrays.namespace(left), mixtures.n_dims
    weights, atoms = [], []
    for rows in (left, right):
        start = 2 + d if marks else 0
        groups = xp.reshape(rows[..., start:], (*rows.shape[:-1], mixtures.n_components, 1 + d))
        w, z = groups[..., 0], groups[..., 1:]
        if marks:
            w = rows[..., :1] * xp.concat([rows[..., 1:2], -w], axis=-1)
            z = xp.concat([rows[..., None, 2:start], z], axis=-2)
        weights.append(w)
        atoms.append(z)
    kernel = kernel_matrix(mixtures.kernel, Distances(*atoms))
    return xp.sum(weights[0] * xp.sum(kernel * weights[1][..., None, :], axis=-1), axis=-1)


# Formulas. Columns come first, so that pairs of rows are the long axes.


class _Component(NamedTuple):
    w: Array
    v: Array  # normals: w |H + I/2|^(-1/2)
    m: Array  # shape: (d, ...)
    h: Array  # normal: (d, ...); normal_full: (triangle, ...); laplace: b
    i: Array  # normal: (d, ...); normal_full: W, (triangle, ...)


def _terms(mixtures: Mixtures, rows: Array) -> Iterator[tuple[Array, Array, Array, list[_Component]]]:
    """u, c, y (d, ...) and the components, term by term."""
    columns, d = arrays.namespace(rows).moveaxis(rows, -1, 0), mixtures.n_dims
    width = mixtures.mark_columns // mixtures.n_terms
    for t in range(mixtures.n_terms):
        term = columns[t * width : (t + 1) * width, ...]
        yield term[0, ...], term[1, ...], term[2 : 2 + d, ...], _components(mixtures, term[2 + d :, ...])


def _groups(mixtures: Mixtures, rows: Array) -> Iterator[list[_Component]]:
    """The components of points, term by term."""
    columns, width = arrays.namespace(rows).moveaxis(rows, -1, 0), mixtures.point_columns // mixtures.n_terms
    for t in range(mixtures.n_terms):
        yield _components(mixtures, columns[t * width : (t + 1) * width, ...])


def _components(mixtures: Mixtures, columns: Array) -> list[_Component]:
    d, step = mixtures.n_dims, mixtures.component_columns
    first = 1 if mixtures.family == "laplace" else 2
    size = (step - first - d) // 2 if first == 2 else 1
    found = []
    for k in range(mixtures.n_components):
        one = columns[k * step : (k + 1) * step, ...]
        h = one[first + d : first + d + size, ...]
        found.append(_Component(one[0, ...], one[1, ...], one[first : first + d, ...], h, one[first + d + size :, ...]))
    return found


def _at_points(mixtures: Mixtures, y: Array, z: Array) -> Array:
    """l(y, z)."""
    xp = arrays.namespace(y)
    if mixtures.family == "laplace":
        return xp.exp(-xp.abs(y[0, ...] - z[0, ...]))
    return xp.exp(-xp.sum((y - z) ** 2, axis=0))


def _of_component(mixtures: Mixtures, one: _Component, y: Array) -> Array:
    """w E l(Z, y) of a component."""
    xp, difference = arrays.namespace(y), one.m - y
    if mixtures.family == "laplace":
        return one.w * laplace_at_point(xp.abs(difference[0, ...]), one.h[0, ...])
    if mixtures.family == "normal":
        return one.v * xp.exp(-xp.sum(difference**2 * one.i, axis=0))
    exponent: Any = 0.0
    for i in range(mixtures.n_dims):
        start = i * (i + 1) // 2
        row = xp.sum(one.i[start : start + i + 1, ...] * difference[: i + 1, ...], axis=0)
        exponent = exponent + row * row
    return one.v * xp.exp(-exponent)


def _of_components(mixtures: Mixtures, one: _Component, other: _Component) -> Array:
    """w w' E l(Z, Z') of two components."""
    xp, difference = arrays.namespace(one.m), one.m - other.m
    if mixtures.family == "laplace":
        f = laplace_between(xp.abs(difference[0, ...]), one.h[0, ...], other.h[0, ...])
    elif mixtures.family == "normal":
        a = one.h + other.h
        # Roots before the product: A of many dimensions would overflow.
        f = xp.exp(-xp.sum(difference**2 / a, axis=0)) * xp.prod(1 / xp.sqrt(a), axis=0)
    else:
        root, exponent = _eliminated(mixtures.n_dims, one.h + other.h, difference)
        f = root * xp.exp(-exponent)
    return one.w * other.w * f


def _eliminated(d: int, triangle: Array, r: Array) -> tuple[Array, Array]:
    """|A|^(-1/2) and r^T A^(-1) r by elimination, column after column: r is a further row of A."""
    xp = arrays.namespace(r)
    places = [max(i, j) * (max(i, j) + 1) // 2 + min(i, j) for i in range(d) for j in range(d)]
    a = xp.reshape(xp.take(triangle, arrays.like(places, r), axis=0), (d, d, *triangle.shape[1:]))
    exponent: Any = 0.0
    root: Any = 1.0
    for k in range(d):
        pivot, x = a[0, 0, ...], r[0, ...]
        exponent, root = exponent + x * x / pivot, root / xp.sqrt(pivot)
        if k + 1 < d:
            column = a[1:, 0, ...]
            ratio = column / pivot
            r = r[1:, ...] - ratio * x
            a = a[1:, 1:, ...] - ratio[:, None, ...] * column[None, ...]
    return root, exponent


def laplace_at_point(distance: Array, b: Array) -> Array:
    """E exp(-|Z - y|), Z ~ Laplace(m, b), |m - y| = `distance`.

    With R >= S the sorted {1, b} it is (R exp(-D/R) - S exp(-D/S)) / (R^2 - S^2), here as a sum of positive terms.
    """
    xp = arrays.namespace(b)
    large, small = _sorted(b, xp.ones_like(b))
    x, t = xp.clip(distance / large, None, FARTHEST), xp.clip(distance / small, None, LARGEST_RATIO)
    return xp.exp(-x) * (1 + x * _e1(t * ((large - small) / large))) / (large + small)


def laplace_between(distance: Array, b: Array, other: Array) -> Array:
    r"""E exp(-|Z - Z'|), Z ~ Laplace(m, b), Z' ~ Laplace(m', b'), |m - m'| = `distance`.

    With R >= S >= T the sorted {1, b, b'} it is the second divided difference of r^3 exp(-D/r) in r^2, up to sign.
    As a sum of positive terms: E1(p) = (1 - exp(-p)) / p, E2(p, q) = int_0^1 int_0^s exp(-...) its divided
    difference, p = D/S - D/R, q = D/T - D/R,

        C exp(-D/S) + C D/S exp(-D/R) E1(p) + D^2 exp(-D/R) E2(p, q) T / (R S (S + T) (R + T)),
        C = (R S + S T + R T) / ((R + S) (S + T) (R + T)).
    """
    xp = arrays.namespace(b)
    high, low = _sorted(b, other)
    r, middle = _sorted(high, xp.ones_like(high))
    s, t = _sorted(middle, low)
    second, third = s / r, t / s  # T / R is their product
    x = xp.clip(distance / r, None, FARTHEST)
    to_s, to_t = (xp.clip(distance / scale, None, LARGEST_RATIO) for scale in (s, t))
    p, q, between = to_s * ((r - s) / r), to_t * ((r - t) / r), to_t * ((s - t) / s)
    both = second * third
    c = (1 + both + third) / ((1 + second) * (1 + third) * (1 + both))
    far = xp.exp(-x)
    rest = x * to_s * far * _e2(p, q, between) * (third / ((1 + third) * (1 + both)))
    return (c * (xp.exp(-to_s) + to_s * far * _e1(p)) + rest) / r


def _sorted(a: Array, b: Array) -> tuple[Array, Array]:
    """The larger and the smaller, with the derivative of one of the two where they are equal."""
    xp = arrays.namespace(a)
    return xp.where(a >= b, a, b), xp.where(a >= b, b, a)


def _e1(p: Array) -> Array:
    """(1 - exp(-p)) / p for p >= 0."""
    xp, small = arrays.namespace(p), p < SERIES_E1
    near, far = xp.where(small, p, xp.zeros_like(p)), xp.where(small, xp.ones_like(p), p)
    series = xp.ones_like(near)
    for k in range(8, 1, -1):
        series = 1 - near / k * series
    return xp.where(small, series, -xp.expm1(-far) / far)


def _e2(p: Array, q: Array, between: Array) -> Array:
    """(E1(p) - exp(-p) E1(q - p)) / q for q >= p >= 0, q - p = `between`."""
    xp, small = arrays.namespace(p), q < SERIES_E2
    near, farthest = (xp.where(small, a, xp.zeros_like(a)) for a in (p, q))
    power, symmetric, factorial = xp.ones_like(near), xp.ones_like(near), 2.0
    series = 0.5 * symmetric
    for k in range(1, 16):  # sum_k (-1)^k h_k(p, q) / (k + 2)!, h_k the complete homogeneous symmetric polynomial
        power = power * near
        symmetric = farthest * symmetric + power
        factorial = -factorial * (k + 2)
        series = series + symmetric / factorial
    far = xp.where(small, xp.ones_like(q), q)
    return xp.where(small, series, (_e1(p) - xp.exp(-p) * _e1(between)) / far)


def _squared_between_normals(mixtures: Mixtures, left: Array, right: Array) -> Array:
    """(a - a')^2 + 2 a a' (1 - exp(-Q)) with a^2 = f(P, P) and f(P, P') = a a' exp(-Q), each without cancellation.

    Q = sum (m - m')^2 / A + the log of the arithmetic over the geometric mean of h and h', and a' = a exp(L) with
    L = sum log(h / h') / 4.
    """
    xp = arrays.namespace(left)
    total: Any = 0.0
    for (one,), (other,) in zip(_groups(mixtures, left), _groups(mixtures, right), strict=True):
        h, high, low = one.h, *_sorted(one.h, other.h)
        sign = xp.where(h >= other.h, xp.ones_like(high), -xp.ones_like(high))
        excess = (high - low) / low
        ratio = xp.sum(sign * xp.log1p(excess), axis=0) / 4
        # (h - h')^2 / (4 h h')
        means = xp.sum(xp.log1p(excess * ((high - low) / (4 * high))), axis=0) / 4
        exponent = xp.sum((one.m - other.m) ** 2 / (high + low), axis=0) + means
        a, b = (xp.prod(1 / xp.sqrt(xp.sqrt(2 * g)), axis=0) for g in (one.h, other.h))
        larger, smaller = _sorted(a, b)
        apart = larger * xp.expm1(-xp.abs(ratio))
        squared = apart * apart - 2 * larger * smaller * xp.expm1(-exponent)
        total = total + one.w * other.w * squared
    return total


def _squared_between_full(mixtures: Mixtures, left: Array, right: Array) -> Array:
    """What covariances make, f(P, P) + f(P', P') - 2 |A|^(-1/2), and what means add: 2 |A|^(-1/2) (1 - exp(-q)).

    Neither is negative. For equal covariances the first is 0 and the second has no cancellation.
    """
    xp = arrays.namespace(left)
    spread, apart = left[..., 0] + right[..., 0], 0.0
    groups = zip(_groups(mixtures, left[..., 1:]), _groups(mixtures, right[..., 1:]), strict=True)
    for (one,), (other,) in groups:
        root, exponent = _eliminated(mixtures.n_dims, one.h + other.h, one.m - other.m)
        f = one.w * other.w * root
        spread, apart = spread - 2 * f, apart - 2 * f * xp.expm1(-exponent)
    return xp.where(spread > 0, spread, xp.zeros_like(spread)) + apart
