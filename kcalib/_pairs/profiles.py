"""Profiles and kernels in normal form (`Term`) between two sets of points, by array API functions.

A profile is a row of src/include/kcalib/profiles.h: its number, properties and formula are read from there. Formulas
use the functions of include/kcalib/math.h, defined here for arrays.

`backends.array_api` calls `kernel_matrix` for kernels on predictions, `mixtures` for target kernels between atoms. The
result is differentiable if the array library is; distances have subgradient 0 at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs.problem import Factor, Term

DIFFERENCES = 2**22  # largest number of elements of a tensor of differences


class Distances:
    """Distances between rows of `left`, shape (..., n, d), and of `right`, shape (..., n right, d), by metric."""

    def __init__(self, left: Array, right: Array) -> None:
        self.left = left
        self.right = right
        self._cache: dict[str, Array] = {}

    def squared(self, metric: str) -> Array:
        if "squared " + metric not in self._cache:
            self._cache["squared " + metric] = self._squared(metric)
        return self._cache["squared " + metric]

    def distance(self, metric: str) -> Array:
        if metric not in self._cache:
            self._cache[metric] = self._distance(metric)
        return self._cache[metric]

    def products(self) -> Array:
        """Return inner products of the rows."""
        return self.left @ arrays.namespace(self.left).matrix_transpose(self.right)

    def _squared(self, metric: str) -> Array:
        if metric == "euclidean":
            return self._over_features(lambda d: d * d)
        d = self.distance(metric)
        return d * d

    def _distance(self, metric: str) -> Array:
        if metric == "cityblock":
            return self._over_features(arrays.namespace(self.left).abs)
        if metric == "euclidean":
            return safe_root(self.squared(metric))
        raise ValueError(f"unknown metric {metric!r}")

    def _over_features(self, step: Callable[[Array], Array]) -> Array:
        """Return sum_k step(x_ik - x'_jk), some coordinates at a time: exact for near-duplicates."""
        xp = arrays.namespace(self.left)
        features, pairs = self.left.shape[-1], 1
        for left_size, right_size in zip(self.left.shape[:-2], self.right.shape[:-2], strict=True):
            pairs *= max(left_size, right_size)
        pairs *= self.left.shape[-2] * self.right.shape[-2]
        if features == 1:
            return step(self.left[..., :, None, 0] - self.right[..., None, :, 0])
        width = max(1, min(features, DIFFERENCES // max(1, pairs)))
        total: Any = None
        for k in range(0, features, width):
            part = slice(k, min(features, k + width))
            difference = self.left[..., :, None, part] - self.right[..., None, :, part]
            value = xp.sum(step(difference), axis=-1)
            total = value if total is None else total + value
        return total


def safe_root(squares: Array) -> Array:
    """Return square roots, and 0 for numbers up to 0, without an infinite slope."""
    xp = arrays.namespace(squares)
    positive = xp.where(squares > 0, squares, xp.ones_like(squares))
    return xp.where(squares > 0, xp.sqrt(positive), xp.zeros_like(squares))


# Functions of formulas


def exp_minus(x: Array) -> Array:
    return arrays.namespace(x).exp(-x)


def log1p(x: Array) -> Array:
    return arrays.namespace(x).log1p(x)


def power(x: Array, exponent: float) -> Array:
    """Return powers of x >= 0 without an infinite slope at 0."""
    xp = arrays.namespace(x)
    positive = xp.where(x > 0, x, xp.ones_like(x))
    return xp.where(x > 0, positive**exponent, xp.zeros_like(x))


def quadratic(x: Array, c: float) -> Array:
    return 1 + x + x * x / c


def cos_pi(x: Array) -> Array:
    """Return cos(pi x), exact near its zeros."""
    xp = arrays.namespace(x)
    return xp.sin(math.pi * (0.5 - xp.abs(x - 2 * xp.round(x / 2))))


FUNCTIONS = {f.__name__: f for f in (exp_minus, log1p, power, quadratic, cos_pi)} | {"R": float}


@dataclass(frozen=True)
class Profile:
    """A row of profiles.h."""

    number: int
    of_square: bool  # the formula is one of the squared distance
    at_zero: float  # 1: the largest value; 0: there is no largest
    slope: str  # "1" or "a": near 0 it changes as that power of its argument
    positive_definite: str  # "EVERYWHERE", "ON_A_LINE" or "NOWHERE", of distances in a Hilbert space
    value: Callable[[Array, float, float], Array]  # of scale * distance (or its square) and the shapes

    def exponent(self, factor: Factor) -> float:
        """Return the power of r that bounds the change of the profile when its argument changes by r."""
        return min(1.0, factor.a) if self.slope == "a" else 1.0


PROFILES = {
    name: Profile(k, argument == "SQUARE", at_zero, slope, definite, eval(f"lambda r, a, b: {formula}", FUNCTIONS))
    for k, (name, argument, slope, definite, at_zero, formula) in enumerate(_native.profiles())
}


def kernel_supremum(terms: Sequence[Term], *, has_bounded_points: bool) -> float | None:
    """Return sup |k(p, q)|, or None if unknown: profiles are at most 1, inner products of bounded points, too."""
    for term in terms:
        if any(
            PROFILES[f.profile].at_zero != 1 and not (f.metric == "dot" and has_bounded_points) for f in term.factors
        ):
            return None
    return float(sum(term.coefficient for term in terms))


def kernel_matrix(terms: Sequence[Term], distances: Distances) -> Array:
    """Return k(x_i, x'_j) in the dtype of the points."""
    kernel: Any = None
    for term in terms:
        product: Any = None
        for factor in term.factors:
            value = _profile(factor, distances)
            product = value if product is None else product * value
        product = product if term.coefficient == 1 else term.coefficient * product
        kernel = product if kernel is None else kernel + product
    return kernel


def _profile(factor: Factor, distances: Distances) -> Array:
    if factor.metric == "dot":
        return distances.products()
    profile = PROFILES[factor.profile]
    argument = distances.squared(factor.metric) if profile.of_square else distances.distance(factor.metric)
    return profile.value(argument if factor.scale == 1 else factor.scale * argument, factor.a, factor.b)
