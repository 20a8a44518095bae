"""Pair problems: the input of backends.

Nearly everything that kcalib computes is a reduction over a matrix that is never stored,

    H_ij = k(x_i, x'_j) * <a_i, b_j>

with *points* x (seen by the kernel on predictions) and *features* a, b (for the target kernel). If the target kernel
has infinite rank, <a, b> is the inner product of two signed measures, whose parameters are the features: `Mixtures`.
`_packing` builds a `PairProblem` from checked input, `_pairs.dispatch` chooses a backend, and backends sweep it for
reductions. Nothing here knows user objects, devices or threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array

# mmd: points are parameters of mixtures; table: points are positions in a table of distances.
Metric = Literal["euclidean", "cityblock", "dot", "mmd", "table"]
Family = Literal["normal", "normal_full", "laplace", "atoms"]
PointFamily = Literal["normal", "normal_full", "laplace", "atoms", "staircases"]

EXPONENTIAL_COST = 12  # multiply-adds of the compiled core (0.1 ns), measured


@dataclass(frozen=True)
class Factor:
    """profile(scale * d; a, b) or profile(scale * d^2; a, b): a row of src/include/kcalib/profiles.h."""

    profile: str
    metric: Metric
    scale: float = 1.0
    a: float = 0.0
    b: float = 0.0


@dataclass(frozen=True)
class Term:
    """A coefficient times a product of factors."""

    coefficient: float
    factors: tuple[Factor, ...]


@dataclass(frozen=True, eq=False)
class Components:
    """Distributions as mixtures of K components of one family, for target kernels with closed forms.

    Parameters
    ----------
    family : {"normal", "normal_full", "laplace", "atoms"}
        Normal with independent entries, normal with covariances, Laplace, or points.
    weights : array, shape (n, K)
        Weights of the components; rows sum to 1.
    locations : array, shape (n, K, d)
        Means, medians or points.
    scales : array or None
        Of "normal" variances (n, K, d), of "normal_full" covariances (n, K, d, d), of "laplace" scales (n, K, 1), of
        "atoms" None.

    Examples
    --------
    >>> from kcalib.distributions import Normal
    >>> Normal([0.0, 1.0], 2.0).components().scales.tolist()
    [[[4.0]], [[4.0]]]
    """

    family: Family
    weights: Array
    locations: Array
    scales: Array | None


@dataclass(frozen=True)
class Mixtures:
    """The meaning of a row of features (or of points, for the metric "mmd") that is not a vector.

    A row of features is the signed measure u (c delta_y - sum_k w_k P_k), observed minus predicted. The target factor
    of two rows is the inner product of their embeddings under the target kernel l, with f(P, P') = E l(Z, Z') for
    independent Z ~ P and Z' ~ P':

        u u' (c c' l(y, y') - c' sum_k w_k f(P_k, y') - c sum_k w'_k f(y, P'_k) + sum_kl w_k w'_l f(P_k, P'_l))

    Packing (`kcalib._pairs.mixtures`) divides by the length scale of the kernel. With d = `n_dims` the columns of a row
    are

        features:        u, c, y[d], then the columns of every component; points have only the components

    The header of a family (src/include/kcalib/families/) documents the columns of a component, which begin with w.
    Shorter mixtures have further components of weight 0. For a sum of `n_terms` kernels there are as many groups of
    columns, and the factor is the sum of theirs; the root of a coefficient is part of u (for points: of the weights).

    Points of the family "staircases" are distribution functions of counts, with 2-Wasserstein distances. It has no
    features.
    """

    family: PointFamily
    n_dims: int
    n_components: int
    n_terms: int = 1
    kernel: tuple[Term, ...] = ()  # for atoms: the kernel between two of them, n_terms = 1

    @property
    def component_columns(self) -> int:
        return _native.FAMILIES[self.family].component_columns(self.n_dims)

    @property
    def feature_columns(self) -> int:
        """Number of columns of features; points lack the 2 + d columns of each term's observation."""
        return self.n_terms * (2 + self.n_dims + self.n_components * self.component_columns)

    @property
    def point_columns(self) -> int:
        return self.n_terms * self.n_components * self.component_columns


class Side:
    """One side of a pair problem: points (n, n_coordinates) and features (n, n_features), of the same dtype.

    With `labels`, shape (n,), the features are the residuals onehot(labels) - points, and may be a function that is
    called on first use: a backend may compute distances and target factors from one product. `exact`: float32 points
    are unrounded predictions. `seconds`: points are (1 - c, c) with this c, shape (n,), on the host, or a function that
    returns it.
    """

    def __init__(
        self,
        points: Array | Callable[[], Array],
        features: Array | Callable[[], Array],
        labels: Array | None = None,
        *,
        exact: bool = False,
        seconds: np.ndarray | None = None,
    ) -> None:
        self.labels = labels
        self.seconds = seconds
        self._points = points
        self._features = features
        self._exact = exact

    @property
    def points(self) -> Array:
        if callable(self._points):
            self._points = self._points()
        return self._points

    @property
    def points_or_seconds(self) -> Array:
        """Return an array with the length, library, device and dtype of the points, without computing them."""
        return self.points if self.seconds is None else self.seconds

    @property
    def n_coordinates(self) -> int:
        return int(self.points.shape[1]) if self.seconds is None else 2

    @property
    def features(self) -> Array:
        if callable(self._features):
            self._features = self._features()
        return self._features

    @property
    def has_residual_features(self) -> bool:
        """Whether points and labels determine the features to the last bit."""
        return self.labels is not None and (self._exact or self.points_or_seconds.dtype == np.float64)

    def parts(self) -> tuple[Any, Any, Any]:
        """Return points, features and labels for another machine; features are None if the others determine them."""
        return self.points, None if self.has_residual_features else self.features, self.labels

    @classmethod
    def of(cls, points: Array, features: Array | None, labels: Array | None) -> Side:
        """Return the side with these `parts`."""
        if features is not None:
            return cls(points, features, labels)
        numbers, dtype = np.asarray(labels, dtype=np.int64), str(points.dtype)
        wide = np.asarray(points, dtype=np.float64)
        return cls(points, lambda: _native.points_and_residuals(wide, numbers, dtype, 1)[1], labels, exact=True)

    def take(self, rows: Any) -> Side:
        """Return the side restricted to `rows` (a slice or an integer array)."""
        if isinstance(rows, slice):
            labels = None if self.labels is None else self.labels[rows]
            return Side(self.points[rows, :], self.features[rows, :], labels, exact=self._exact)
        take = arrays.namespace(self.points).take
        labels = None if self.labels is None else take(self.labels, rows, axis=0)
        points = take(self.points, rows, axis=0)
        return Side(points, lambda: take(self.features, rows, axis=0), labels, exact=self._exact)


@dataclass(frozen=True)
class PairProblem:
    """k(x_i, x'_j) <a_i, b_j>; `right=None` for a symmetric problem."""

    left: Side
    right: Side | None
    kernel: tuple[Term, ...]  # the sum of these terms
    target: Mixtures | None = None  # meaning of features; None: vectors
    predicted: Mixtures | None = None  # meaning of points, for the metric "mmd"; None: vectors
    # Metric "table": distance of left point x to right point x' is table[int(x), int(x')]; float64, of NumPy or CuPy.
    table: Any = None
    kernel_repr: Any = field(default=None, compare=False)  # the kernel in messages

    @property
    def symmetric(self) -> bool:
        return self.right is None

    @property
    def columns(self) -> Side:
        return self.left if self.right is None else self.right

    @property
    def multiply_adds(self) -> float:
        """Approximate number of multiply-adds for an entry, for its points and features."""
        cost = float(self.left.points.shape[1] + EXPONENTIAL_COST)
        for mixtures in (self.target, self.predicted):
            if mixtures is not None:
                family = _native.FAMILIES[mixtures.family]
                d = mixtures.n_dims * (mixtures.n_dims if family.matrices else 1)
                pairs = mixtures.n_terms * (1 + mixtures.n_components) ** 2
                cost_per_product = d + EXPONENTIAL_COST * max(1, len(mixtures.kernel))
                cost += pairs * cost_per_product * family.cost
        if self.target is None:
            cost += float((self.left.features if self.left.labels is None else self.left.points).shape[1])
        return cost
