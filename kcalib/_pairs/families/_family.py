"""Columns of families of distributions, written from components, and the products of their parts, in Python.

The sums over parts, and squared MMD distances, are made of these; `_pairs.mixtures` takes them for all pairs of rows.
Everything is in array API functions. How many columns there are, their bounds and costs, and the products for the
compiled core and for GPUs are in a header of the same name in src/include/kcalib/families/, which `_native.FAMILIES`
speaks for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs import problem
from kcalib._pairs.problem import Components, Mixtures


class PointFamily(ABC):
    """Operations on points for `_pairs.mixtures`; rows have shapes (..., columns) that broadcast."""

    name: ClassVar[problem.PointFamily]
    title: ClassVar[str]  # what a message calls such distributions

    @abstractmethod
    def elements(self, n_dims: int, n_components: int) -> int:
        """Return the number of elements of the temporaries for a pair of rows."""

    @abstractmethod
    def point_products(self, mixtures: Mixtures, left: Array, right: Array) -> Array:
        """Return inner products of embedded mixtures, sum_kl w_k w'_l f(P_k, P'_l), of rows of points."""

    def squared_between(self, mixtures: Mixtures, left: Array, right: Array) -> Array:
        """Return squared distances of embeddings; rows of points begin with their products with themselves."""
        xp = arrays.namespace(left)
        squared = left[..., 0] + right[..., 0] - 2 * self.point_products(mixtures, left[..., 1:], right[..., 1:])
        is_zero = (squared <= 0) | xp.all(left == right, axis=-1)
        return xp.where(is_zero, xp.zeros_like(squared), squared)

    def rows_apart(self, mixtures: Mixtures, points: Array) -> Array:
        """Return points of single components as `apart` of the family's header reads them; NumPy's or CuPy's."""
        return points


class Family(PointFamily):
    """Operations on points and features for `_pairs.mixtures`."""

    name: ClassVar[problem.Family]
    profile: ClassVar[str | None]  # the target kernels that have closed forms; None: all of them

    # Columns

    @abstractmethod
    def unit(self, scale: float) -> float:
        """Return what locations are multiplied by, so that the kernel has no length scale."""

    @abstractmethod
    def columns(self, w: Array, m: Array, scales: Array, scale: float) -> Array:
        """Return a component's columns, shape (n, K, columns), of weights (n, K, 1), locations in units, and scales."""

    @abstractmethod
    def scales_of_nothing(self, like: Array) -> Array | None:
        """Return scales for components of weight 0, whose locations are `like`, shape (n, K, d)."""

    @abstractmethod
    def transformed(self, components: Components, root: Array, diagonal: bool) -> tuple[problem.Family, Array | None]:
        """Return family and scales of Z R for Z of the components; `diagonal`: whether R is."""

    @abstractmethod
    def feature_products(self, mixtures: Mixtures, left: Array, right: Array) -> Array:
        """Return target factors of rows of features."""


class ClosedForms(Family):
    """A family with a closed form for each product of two parts."""

    # Products. Columns come first, so that pairs of rows are the long axes.

    @abstractmethod
    def component(self, columns: Array, n_dims: int) -> Any:
        """Return a component's columns by name."""

    @abstractmethod
    def points(self, y: Array, z: Array) -> Array:
        """Return l(y, z), shapes (d, ...)."""

    @abstractmethod
    def component_point(self, component: Any, y: Array) -> Array:
        """Return w E l(Z, y) of a component."""

    @abstractmethod
    def components(self, first: Any, second: Any) -> Array:
        """Return w w' E l(Z, Z') of two components."""

    # Sums over parts

    def feature_products(self, mixtures: Mixtures, left: Array, right: Array) -> Array:
        total: Any = 0.0
        for (u, c, y, p), (v, e, z, q) in zip(
            self._measures(mixtures, left), self._measures(mixtures, right), strict=True
        ):
            between = c * e * self.points(y, z)
            for component in p:
                between = between - e * self.component_point(component, z)
            for component in q:
                between = between - c * self.component_point(component, y)
            for first in p:
                for second in q:
                    between = between + self.components(first, second)
            total = total + u * v * between
        return total

    def point_products(self, mixtures: Mixtures, left: Array, right: Array) -> Array:
        total: Any = 0.0
        for p, q in zip(self.groups(mixtures, left), self.groups(mixtures, right), strict=True):
            for first in p:
                for second in q:
                    total = total + self.components(first, second)
        return total

    def groups(self, mixtures: Mixtures, rows: Array) -> Iterator[list[Any]]:
        """Return the components of points, term by term."""
        columns, width = arrays.namespace(rows).moveaxis(rows, -1, 0), mixtures.point_columns // mixtures.n_terms
        for t in range(mixtures.n_terms):
            yield self._components(mixtures, columns[t * width : (t + 1) * width, ...])

    def _measures(self, mixtures: Mixtures, rows: Array) -> Iterator[tuple[Array, Array, Array, list[Any]]]:
        """Return u, c, y (d, ...) and the components, term by term."""
        columns, d = arrays.namespace(rows).moveaxis(rows, -1, 0), mixtures.n_dims
        width = mixtures.feature_columns // mixtures.n_terms
        for t in range(mixtures.n_terms):
            term = columns[t * width : (t + 1) * width, ...]
            yield term[0, ...], term[1, ...], term[2 : 2 + d, ...], self._components(mixtures, term[2 + d :, ...])

    def _components(self, mixtures: Mixtures, columns: Array) -> list[Any]:
        step = mixtures.component_columns
        return [
            self.component(columns[k * step : (k + 1) * step, ...], mixtures.n_dims)
            for k in range(mixtures.n_components)
        ]


class GaussianForms(ClosedForms):
    """A family for the Gaussian target kernel, exp(-scale |y - y'|^2)."""

    profile: ClassVar[str | None] = "gaussian"

    def unit(self, scale: float) -> float:
        return scale**0.5

    def points(self, y: Array, z: Array) -> Array:
        xp = arrays.namespace(y)
        return xp.exp(-xp.sum((y - z) ** 2, axis=0))


def ordered(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the larger and the smaller, with the derivative of one of the two where they are equal."""
    xp = arrays.namespace(a)
    return xp.where(a >= b, a, b), xp.where(a >= b, b, a)
