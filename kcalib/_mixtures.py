"""Inner products of signed mixtures under a target kernel: the closed forms behind `_problem.Mixtures`.

`mark_columns` and `point_columns` write the parameters of mixtures as rows of numbers, `inner_products` gives the
target factors of all pairs of such rows, `own_products` those of each row with itself, `squared_mmd` the squared MMD
distances of predictions. All in array API functions, so that they run, and are differentiable, in every array library;
src/include/kcalib/mixtures.h has the same formulas for the compiled core. `_packing` calls the
first two, `_operators` the others.

Formulas: Widmann et al. 2021, appendix D, in forms without cancellation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._problem import Mixtures
from kcalib.distributions._distribution import Components


def mark_columns(y: Array, components: Components, scale: float, weight: Array | None = None) -> Array:
    """Rows of `Mixtures` marks, one term, for targets of shape (n, d); l has the inverse length scale `scale`.

    normal: l = exp(-scale |y - y'|^2).
    """
    xp, n = _arrays.namespace(y), y.shape[0]
    root = scale**0.5
    u = xp.ones_like(y[:, :1]) if weight is None else weight[:, None]
    return xp.concat([u, xp.ones_like(u), root * y, xp.reshape(_columns(components, scale), (n, -1))], axis=1)


def point_columns(components: Components, scale: float) -> Array:
    """Rows of `Mixtures` points, one term."""
    xp = _arrays.namespace(components.locations)
    return xp.reshape(_columns(components, scale), (components.locations.shape[0], -1))


def _columns(components: Components, scale: float) -> Array:
    """The columns of the components, shape (n, K, columns)."""
    xp, w = _arrays.namespace(components.locations), components.weights[:, :, None]
    if components.family == "normal":
        assert components.scales is not None
        h = 0.5 + 2 * scale * components.scales
        i = 1 / (h + 0.5)
        v = w * xp.sqrt(xp.prod(i, axis=2, keepdims=True))
        return xp.concat([w, v, scale**0.5 * components.locations, h, i], axis=2)
    raise NotImplementedError(components.family)


def inner_products(mixtures: Mixtures, left: Array, right: Array) -> Array:
    """Target factors of all pairs of rows of marks, shape (n, n right), in their dtype."""
    return _summed(mixtures, left[:, None, :], right[None, :, :])


def own_products(mixtures: Mixtures, marks: Array) -> Array:
    """Target factors of the rows with themselves, shape (n,), float64."""
    xp = _arrays.namespace(marks)
    marks = xp.astype(marks, xp.float64, copy=False)
    return _summed(mixtures, marks, marks)


def _summed(mixtures: Mixtures, a: Array, b: Array) -> Array:
    total: Any = 0.0
    for (u, c, y, p), (v, e, z, q) in zip(_terms(mixtures, a), _terms(mixtures, b), strict=True):
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


def _terms(mixtures: Mixtures, rows: Array) -> Iterator[tuple[Array, Array, Array, list[Array]]]:
    """u, c, y (..., d) and the columns of each component (..., columns), term by term."""
    width, d = mixtures.mark_columns // mixtures.n_terms, mixtures.n_dims
    for t in range(mixtures.n_terms):
        term = rows[..., t * width : (t + 1) * width]
        step = mixtures.component_columns
        starts = range(2 + d, width, step)
        yield term[..., 0], term[..., 1], term[..., 2 : 2 + d], [term[..., s : s + step] for s in starts]


def _at_points(mixtures: Mixtures, y: Array, z: Array) -> Array:
    """l(y, z)."""
    xp = _arrays.namespace(y)
    return xp.exp(-xp.sum((y - z) ** 2, axis=-1))


def _of_component(mixtures: Mixtures, one: Array, y: Array) -> Array:
    """w E l(Z, y) of a component."""
    xp, d = _arrays.namespace(y), mixtures.n_dims
    m, i = one[..., 2 : 2 + d], one[..., 2 + 2 * d :]
    return one[..., 1] * xp.exp(-xp.sum((m - y) ** 2 * i, axis=-1))


def _of_components(mixtures: Mixtures, one: Array, other: Array) -> Array:
    """w w' E l(Z, Z') of two components."""
    xp, d = _arrays.namespace(one), mixtures.n_dims
    a = one[..., 2 + d : 2 + 2 * d] + other[..., 2 + d : 2 + 2 * d]
    difference = one[..., 2 : 2 + d] - other[..., 2 : 2 + d]
    f = xp.exp(-xp.sum(difference**2 / a, axis=-1)) / xp.sqrt(xp.prod(a, axis=-1))
    return one[..., 0] * other[..., 0] * f
