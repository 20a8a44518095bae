"""Normal distributions with independent entries; src/include/kcalib/families/normal.h says what their columns are."""

from __future__ import annotations

from typing import Any, NamedTuple

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs import problem
from kcalib._pairs.families._family import GaussianForms, ordered
from kcalib._pairs.problem import Components, Mixtures


class Component(NamedTuple):
    w: Array
    v: Array  # w |diag(h) + I/2|^(-1/2)
    m: Array  # (d, ...)
    h: Array  # (d, ...)
    i: Array  # (d, ...)


class Normal(GaussianForms):
    name = "normal"
    title = "normals"

    def columns(self, w: Array, m: Array, scales: Array, scale: float) -> Array:
        xp = arrays.namespace(m)
        h = 0.5 + 2 * scale * scales
        i = 1 / (h + 0.5)
        return xp.concat([w, w * xp.prod(xp.sqrt(i), axis=2, keepdims=True), m, h, i], axis=2)

    def scales_of_nothing(self, like: Array) -> Array:
        return arrays.namespace(like).zeros_like(like)

    def transformed(self, components: Components, root: Array, diagonal: bool) -> tuple[problem.Family, Array]:
        xp, scales = arrays.namespace(root), components.scales
        assert scales is not None
        if diagonal:
            return "normal", scales * xp.sum(root * root, axis=0)
        return "normal_full", xp.matrix_transpose(root) @ (scales[..., None] * root)

    def elements(self, n_dims: int, n_components: int) -> int:
        return n_dims

    def component(self, columns: Array, n_dims: int) -> Component:
        h, i, end = (2 + k * n_dims for k in (1, 2, 3))
        return Component(columns[0, ...], columns[1, ...], columns[2:h, ...], columns[h:i, ...], columns[i:end, ...])

    def component_point(self, component: Component, y: Array) -> Array:
        xp, difference = arrays.namespace(y), component.m - y
        return component.v * xp.exp(-xp.sum(difference**2 * component.i, axis=0))

    def components(self, first: Component, second: Component) -> Array:
        xp, difference = arrays.namespace(first.m), first.m - second.m
        a = first.h + second.h
        # Roots before the product: A of many dimensions would overflow.
        f = xp.exp(-xp.sum(difference**2 / a, axis=0)) * xp.prod(1 / xp.sqrt(a), axis=0)
        return first.w * second.w * f

    def rows_apart(self, mixtures: Mixtures, points: Array) -> Array:
        """Return columns w, r, m, h, 1 / (2 h), with r = w prod (2 h)^(-1/4)."""
        xp, d, width = arrays.namespace(points), mixtures.n_dims, mixtures.component_columns
        points = points.copy()
        for begin in range(0, points.shape[1], width):
            term = points[:, begin : begin + width]  # a view
            twice = 2 * term[:, 2 + d : 2 + 2 * d].astype(xp.float64)
            term[:, 1] = term[:, 0] * xp.exp(-0.25 * xp.sum(xp.log(twice), axis=1))
            term[:, 2 + 2 * d :] = 1 / twice
        return points

    def squared_between(self, mixtures: Mixtures, left: Array, right: Array) -> Array:
        if mixtures.n_components == 1:
            return self._squared_between_single(mixtures, left[..., 1:], right[..., 1:])
        return super().squared_between(mixtures, left, right)

    def _squared_between_single(self, mixtures: Mixtures, left: Array, right: Array) -> Array:
        """Return (a - a')^2 + 2 a a' (1 - exp(-Q)) with a^2 = f(P, P) and f(P, P') = a a' exp(-Q).

        Neither term has cancellation. Here
        Q = sum (m - m')^2 / A + the log of the arithmetic over the geometric mean of h and h', and a' = a exp(L) with
        L = sum log(h / h') / 4.
        """
        xp = arrays.namespace(left)
        total: Any = 0.0
        for (first,), (second,) in zip(self.groups(mixtures, left), self.groups(mixtures, right), strict=True):
            h, high, low = first.h, *ordered(first.h, second.h)
            sign = xp.where(h >= second.h, xp.ones_like(high), -xp.ones_like(high))
            excess = (high - low) / low
            ratio = xp.sum(sign * xp.log1p(excess), axis=0) / 4
            # (h - h')^2 / (4 h h')
            means = xp.sum(xp.log1p(excess * ((high - low) / (4 * high))), axis=0) / 4
            exponent = xp.sum((first.m - second.m) ** 2 / (high + low), axis=0) + means
            a, b = (xp.prod(1 / xp.sqrt(xp.sqrt(2 * g)), axis=0) for g in (first.h, second.h))
            larger, smaller = ordered(a, b)
            difference = larger * xp.expm1(-xp.abs(ratio))
            squared = difference * difference - 2 * larger * smaller * xp.expm1(-exponent)
            total = total + first.w * second.w * squared
        return total
