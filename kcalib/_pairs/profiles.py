"""Kernels in normal form (`Term`) between two sets of points, in array API functions.

Called by `operators.generic`, for kernels on predictions, and by `mixtures`, for target kernels between atoms.
Differentiable wherever the array library is: distances have their subgradient 0 at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs.problem import Factor, Term

DIFFERENCES = 2**22  # elements of the tensor of differences, at most: a few features at a time


class Distances:
    """Distances between the rows of `left`, shape (..., n, d), and of `right`, shape (..., n right, d), by metric."""

    def __init__(self, left: Array, right: Array) -> None:
        self.left = left
        self.right = right
        self._known: dict[str, Array] = {}

    def squared(self, metric: str) -> Array:
        if "squared " + metric not in self._known:
            self._known["squared " + metric] = self._squared(metric)
        return self._known["squared " + metric]

    def distance(self, metric: str) -> Array:
        if metric not in self._known:
            self._known[metric] = self._distance(metric)
        return self._known[metric]

    def products(self) -> Array:
        """Inner products of the rows."""
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
        """sum_k step(x_ik - x'_jk), by differences: exact for near-duplicates. A few features at a time."""
        xp = arrays.namespace(self.left)
        features, pairs = self.left.shape[-1], 1
        for size, other in zip(self.left.shape[:-2], self.right.shape[:-2], strict=True):
            pairs *= max(size, other)
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
    """Square roots, and 0 at 0 and below, with no infinite slope there."""
    xp = arrays.namespace(squares)
    positive = xp.where(squares > 0, squares, xp.ones_like(squares))
    return xp.where(squares > 0, xp.sqrt(positive), xp.zeros_like(squares))


def kernel_matrix(terms: Sequence[Term], distances: Distances) -> Array:
    """k(x_i, x'_j), in the points' dtype."""
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
    xp, a = arrays.namespace(distances.left), factor.scale
    if factor.profile == "gaussian":
        return xp.exp(-a * distances.squared(factor.metric))
    if factor.profile == "rational_quadratic":
        return xp.exp(-factor.shape * xp.log1p(a * distances.squared(factor.metric)))
    if factor.profile == "identity":
        return distances.products() if factor.metric == "dot" else distances.distance(factor.metric)
    r = a * distances.distance(factor.metric)
    if factor.profile == "exponential":
        return xp.exp(-r)
    if factor.profile == "matern_3_2":
        return (1 + r) * xp.exp(-r)
    if factor.profile == "matern_5_2":
        return (1 + r + r * r / 3) * xp.exp(-r)
    if factor.profile == "gamma_exponential":
        positive = xp.where(r > 0, r, xp.ones_like(r))
        return xp.where(r > 0, xp.exp(-(positive**factor.shape)), xp.ones_like(r))
    raise ValueError(f"unknown profile {factor.profile!r}")
