"""Normal distributions with covariances; src/include/kcalib/families/normal_full.h says what their columns are."""

from __future__ import annotations

from typing import Any, NamedTuple

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs import problem
from kcalib._pairs.families._family import GaussianForms
from kcalib._pairs.problem import Components, Mixtures


class Component(NamedTuple):
    w: Array
    v: Array  # w |H + I/2|^(-1/2)
    m: Array  # (d, ...)
    h: Array  # a triangle, (d (d + 1) / 2, ...)
    inverse: Array  # of the Cholesky factor of H + I/2, a triangle


class NormalFull(GaussianForms):
    name = "normal_full"
    title = "normals with full covariances"

    def columns(self, w: Array, m: Array, scales: Array, scale: float) -> Array:
        xp = arrays.namespace(m)
        n, count, d = m.shape
        identity = _identity(m, d)
        full = 2 * scale * scales
        inverse = _inverse(xp.linalg.cholesky(full + identity))
        triangle = arrays.like([i * d + j for i in range(d) for j in range(i + 1)], m)
        h, inverse = (xp.reshape(a, (n, count, d * d)) for a in (full + 0.5 * identity, inverse))
        diagonal = xp.take(inverse, arrays.like([i * d + i for i in range(d)], m), axis=2)
        v = w * xp.prod(diagonal, axis=2, keepdims=True)
        return xp.concat([w, v, m, xp.take(h, triangle, axis=2), xp.take(inverse, triangle, axis=2)], axis=2)

    def scales_of_nothing(self, like: Array) -> Array:
        n, count, d = like.shape
        return arrays.namespace(like).zeros((n, count, d, d), dtype=like.dtype, device=arrays.device(like))

    def transformed(self, components: Components, root: Array, diagonal: bool) -> tuple[problem.Family, Array]:
        assert components.scales is not None
        return self.name, arrays.namespace(root).matrix_transpose(root) @ components.scales @ root

    def elements(self, n_dims: int, n_components: int) -> int:
        return 2 * n_dims * n_dims

    def component(self, columns: Array, n_dims: int) -> Component:
        h, size = 2 + n_dims, n_dims * (n_dims + 1) // 2
        return Component(
            columns[0, ...],
            columns[1, ...],
            columns[2:h, ...],
            columns[h : h + size, ...],
            columns[h + size : h + 2 * size, ...],
        )

    def component_point(self, component: Component, y: Array) -> Array:
        xp, difference = arrays.namespace(y), component.m - y
        exponent: Any = 0.0
        for i in range(component.m.shape[0]):
            start = i * (i + 1) // 2
            row = xp.sum(component.inverse[start : start + i + 1, ...] * difference[: i + 1, ...], axis=0)
            exponent = exponent + row * row
        return component.v * xp.exp(-exponent)

    def components(self, first: Component, second: Component) -> Array:
        root, exponent = eliminated(first.m.shape[0], first.h + second.h, first.m - second.m)
        return first.w * second.w * (root * arrays.namespace(first.m).exp(-exponent))

    def squared_between(self, mixtures: Mixtures, left: Array, right: Array) -> Array:
        if mixtures.n_components == 1:
            return self._squared_between_single(mixtures, left, right)
        return super().squared_between(mixtures, left, right)

    def _squared_between_single(self, mixtures: Mixtures, left: Array, right: Array) -> Array:
        """Return f(P, P) + f(P', P') - 2 |A|^(-1/2), from covariances, plus 2 |A|^(-1/2) (1 - exp(-q)), from means.

        Neither is negative. For equal covariances the first is 0 and the second has no cancellation.
        """
        xp = arrays.namespace(left)
        spread, means_part = left[..., 0] + right[..., 0], 0.0
        groups = zip(self.groups(mixtures, left[..., 1:]), self.groups(mixtures, right[..., 1:]), strict=True)
        for (first,), (second,) in groups:
            root, exponent = eliminated(mixtures.n_dims, first.h + second.h, first.m - second.m)
            f = first.w * second.w * root
            spread, means_part = spread - 2 * f, means_part - 2 * f * xp.expm1(-exponent)
        return xp.where(spread > 0, spread, xp.zeros_like(spread)) + means_part


def eliminated(d: int, triangle: Array, r: Array) -> tuple[Array, Array]:
    """Return |A|^(-1/2) and r^T A^(-1) r by elimination, column after column: r is a further row of A."""
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


def _identity(like: Array, d: int) -> Array:
    return arrays.namespace(like).eye(d, dtype=like.dtype, device=arrays.device(like))


def _inverse(root: Array) -> Array:
    """Return inverses of lower triangular matrices, shape (..., d, d), row by row."""
    xp, d = arrays.namespace(root), root.shape[-1]
    rows = xp.zeros_like(root[..., :0, :])
    unit = xp.zeros_like(root) + _identity(root, d)
    for i in range(d):
        left = unit[..., i : i + 1, :] - root[..., i : i + 1, :i] @ rows
        rows = xp.concat([rows, left / root[..., i : i + 1, i : i + 1]], axis=-2)
    return rows
