"""Laplace distributions on a line; src/include/kcalib/families/laplace.h says what their columns are."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs import problem
from kcalib._pairs.families._family import ClosedForms, ordered
from kcalib._pairs.problem import Components

# Between these an expression has its value to rounding, and no product overflows in float32.
FARTHEST = 1e3  # Delta / R: exp(-1000) is 0
LARGEST_RATIO = 1e30
SERIES_E1, SERIES_E2 = 0.01, 0.5  # below these E1 and E2 are Taylor sums


class Component(NamedTuple):
    w: Array
    m: Array
    b: Array


class Laplace(ClosedForms):
    name = "laplace"
    title = "Laplace distributions"
    profile: ClassVar[str | None] = "exponential"

    def unit(self, scale: float) -> float:
        return scale

    def columns(self, w: Array, m: Array, scales: Array, scale: float) -> Array:
        return arrays.namespace(m).concat([w, m, scale * scales], axis=2)

    def scales_of_nothing(self, like: Array) -> Array:
        n, count, _ = like.shape
        return arrays.namespace(like).ones((n, count, 1), dtype=like.dtype, device=arrays.device(like))

    def transformed(self, components: Components, root: Array, diagonal: bool) -> tuple[problem.Family, Array]:
        assert components.scales is not None and root.shape == (1, 1)
        return self.name, components.scales * arrays.namespace(root).abs(root[0, 0])

    def elements(self, n_dims: int, n_components: int) -> int:
        return 4

    def component(self, columns: Array, n_dims: int) -> Component:
        return Component(columns[0, ...], columns[1, ...], columns[2, ...])

    def points(self, y: Array, z: Array) -> Array:
        xp = arrays.namespace(y)
        return xp.exp(-xp.abs(y[0, ...] - z[0, ...]))

    def component_point(self, component: Component, y: Array) -> Array:
        return component.w * laplace_at_point(arrays.namespace(y).abs(component.m - y[0, ...]), component.b)

    def components(self, first: Component, second: Component) -> Array:
        f = laplace_between(arrays.namespace(first.m).abs(first.m - second.m), first.b, second.b)
        return first.w * second.w * f


def laplace_at_point(distance: Array, b: Array) -> Array:
    """Return E exp(-|Z - y|), Z ~ Laplace(m, b), |m - y| = `distance`.

    With R >= S the sorted {1, b} it is (R exp(-D/R) - S exp(-D/S)) / (R^2 - S^2), here as a sum of positive terms.
    """
    xp = arrays.namespace(b)
    large, small = ordered(b, xp.ones_like(b))
    x, t = xp.clip(distance / large, None, FARTHEST), xp.clip(distance / small, None, LARGEST_RATIO)
    return xp.exp(-x) * (1 + x * _e1(t * ((large - small) / large))) / (large + small)


def laplace_between(distance: Array, b: Array, other_b: Array) -> Array:
    r"""Return E exp(-|Z - Z'|), Z ~ Laplace(m, b), Z' ~ Laplace(m', b'), |m - m'| = `distance`.

    With R >= S >= T the sorted {1, b, b'} it is the second divided difference of r^3 exp(-D/r) in r^2, up to sign.
    As a sum of positive terms: E1(p) = (1 - exp(-p)) / p, E2(p, q) = int_0^1 int_0^s exp(-...) its divided
    difference, p = D/S - D/R, q = D/T - D/R,

        C exp(-D/S) + C D/S exp(-D/R) E1(p) + D^2 exp(-D/R) E2(p, q) T / (R S (S + T) (R + T)),
        C = (R S + S T + R T) / ((R + S) (S + T) (R + T)).
    """
    xp = arrays.namespace(b)
    high, low = ordered(b, other_b)
    r, middle = ordered(high, xp.ones_like(high))
    s, t = ordered(middle, low)
    s_over_r, t_over_s = s / r, t / s
    x = xp.clip(distance / r, None, FARTHEST)
    to_s, to_t = (xp.clip(distance / scale, None, LARGEST_RATIO) for scale in (s, t))
    p, q, between = to_s * ((r - s) / r), to_t * ((r - t) / r), to_t * ((s - t) / s)
    t_over_r = s_over_r * t_over_s
    c = (1 + t_over_r + t_over_s) / ((1 + s_over_r) * (1 + t_over_s) * (1 + t_over_r))
    far = xp.exp(-x)
    rest = x * to_s * far * _e2(p, q, between) * (t_over_s / ((1 + t_over_s) * (1 + t_over_r)))
    return (c * (xp.exp(-to_s) + to_s * far * _e1(p)) + rest) / r


def _e1(p: Array) -> Array:
    """Return (1 - exp(-p)) / p for p >= 0."""
    xp, small = arrays.namespace(p), p < SERIES_E1
    near, far = xp.where(small, p, xp.zeros_like(p)), xp.where(small, xp.ones_like(p), p)
    series = xp.ones_like(near)
    for k in range(8, 1, -1):
        series = 1 - near / k * series
    return xp.where(small, series, -xp.expm1(-far) / far)


def _e2(p: Array, q: Array, between: Array) -> Array:
    """Return (E1(p) - exp(-p) E1(q - p)) / q for q >= p >= 0, q - p = `between`."""
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
