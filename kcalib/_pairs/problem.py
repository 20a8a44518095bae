"""Pair problems: what every estimator hands to a backend.

Nearly everything kcalib computes is a reduction over a matrix that is never stored,

    H_ij = k(x_i, x'_j) * <a_i, b_j>

with *points* x (what the prediction kernel k sees) and *features* a, b (what the target
kernel sees). Where the target kernel has infinite rank <a, b> is the inner product of two signed
measures, of which the features are the parameters: `Mixtures`. `_packing` builds a `PairProblem` from
checked user input, `_pairs.dispatch` picks a backend for it, and the backends in `_pairs.backends/` sweep
it for reductions. Nothing in here knows about user objects, devices or threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array

# mmd: the points are the parameters of mixtures; table: they are positions in a table of distances.
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
    r"""What a row of features (or of points, for the metric "mmd") says if it is not a vector.

    A row of features is the signed measure u (c delta_y - sum_k w_k P_k): what was observed minus what was predicted,
    and the target factor of two rows is the inner product of their embeddings under the target kernel, with
    f(P, P') = E l(Z, Z') of independent Z ~ P and Z' ~ P':

        u u' (c c' l(y, y') - c' sum_k w_k f(P_k, y') - c sum_k w'_k f(y, P'_k) + sum_kl w_k w'_l f(P_k, P'_l))

    The kernel's length scale is divided out in packing (`kcalib._pairs.mixtures` does it), so that l has none. With d
    = `n_dims` the columns of a row are

        features:        u, c, y[d], then every component's columns; points have the components alone

    and those of a component, beginning with w, are said in the family's header (src/include/kcalib/families/).
    Components of weight 0 fill up shorter mixtures. A sum of `n_terms` kernels l_t has as many such groups of
    columns beside each other, and its factor is the sum of theirs (a coefficient is in u: its root; in points, in the
    weights).

    Points of the family "staircases" are distribution functions of counts, in the place of one component in so many
    dimensions, and their distances 2-Wasserstein distances; it has no features.
    """

    family: PointFamily
    n_dims: int
    n_components: int
    n_terms: int = 1
    kernel: tuple[Term, ...] = ()  # of atoms: between two of them, with n_terms = 1

    @property
    def component_columns(self) -> int:
        return _native.FAMILIES[self.family].component_columns(self.n_dims)

    @property
    def feature_columns(self) -> int:
        """Columns of features; those of points are less the 2 + d of each term's observation."""
        return self.n_terms * (2 + self.n_dims + self.n_components * self.component_columns)

    @property
    def point_columns(self) -> int:
        return self.n_terms * self.n_components * self.component_columns


class Side:
    """One side of a pair problem: points (n, n_coordinates) and features (n, n_features), of the same dtype.

    With `labels`, shape (n,), the features are the residuals onehot(labels) - points, which a backend may
    use to have distances and target factors from one product, or without the features: these may be
    given as a function, which is called when they are first asked for. `exact`: float32 points are the
    predictions, which have not been rounded to it. `seconds`: points are (1 - c, c) with these c, shape (n,), in
    host memory; they may be a function then, too.
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
        """Return an array of the length, library, device and dtype of the points, without making them."""
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
        """Whether points and labels say what the features are, to the last bit."""
        return self.labels is not None and (self._exact or self.points_or_seconds.dtype == np.float64)

    def parts(self) -> tuple[Any, Any, Any]:
        """Return points, features and labels for another machine; None for features that follow from the others."""
        return self.points, None if self.has_residual_features else self.features, self.labels

    @classmethod
    def of(cls, points: Array, features: Array | None, labels: Array | None) -> Side:
        """Return the side that has these `parts`."""
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
    """k(x_i, x'_j) <a_i, b_j>; `right=None` means that right is left (symmetric)."""

    left: Side
    right: Side | None
    kernel: tuple[Term, ...]  # the sum of these terms
    target: Mixtures | None = None  # what the features are; None: vectors, and <a, b> their inner product
    predicted: Mixtures | None = None  # what the points are, for the metric "mmd"; None: vectors
    # Metric "table": distance of left point x to right point x' is table[int(x), int(x')]; float64, of NumPy or CuPy.
    table: Any = None
    kernel_repr: Any = field(default=None, compare=False)  # the kernel, which messages show as users write it

    @property
    def symmetric(self) -> bool:
        return self.right is None

    @property
    def columns(self) -> Side:
        return self.left if self.right is None else self.right

    @property
    def multiply_adds(self) -> float:
        """That an entry takes, about: of its points, and of the columns, or parts, of its features."""
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
