"""Pair problems: what every estimator hands to an operator.

Nearly everything kcalib computes is a reduction over a matrix that is never stored,

    H_ij = k(x_i, x'_j) * <a_i, b_j>

with *points* x (what the prediction kernel k sees) and *marks* a, b (what the target
kernel sees). `_packing` builds a `PairProblem` from checked user input, `_dispatch` picks
an operator for it, and the operators in `_operators/` return `Moments` and the like.
Nothing in here knows about user objects, devices or threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from kcalib import _arrays
from kcalib._arrays import Array

Profile = Literal[
    "exponential", "gaussian", "gamma_exponential", "matern_3_2", "matern_5_2", "rational_quadratic", "identity"
]
Metric = Literal["euclidean", "cityblock", "dot"]


@dataclass(frozen=True)
class Factor:
    """profile(scale * d) or profile(scale * d^2); see src/include/kcalib/profiles.h."""

    profile: Profile
    metric: Metric
    scale: float = 1.0
    shape: float = 0.0


@dataclass(frozen=True)
class Term:
    """A coefficient times a product of factors."""

    coefficient: float
    factors: tuple[Factor, ...]


class Side:
    """One side of a pair problem: points, shape (n, n_features), and marks, shape (n, n_marks), of the same dtype.

    With `labels`, shape (n,), the marks are the residuals onehot(labels) - points, which an operator may
    use to have distances and target factors from one product, or without the marks: these may be
    given as a function, which is called when they are first asked for.
    """

    def __init__(self, points: Array, marks: Array | Callable[[], Array], labels: Array | None = None) -> None:
        self.points = points
        self.labels = labels
        self._marks = marks

    @property
    def marks(self) -> Array:
        if callable(self._marks):
            self._marks = self._marks()
        return self._marks

    def take(self, rows: Any) -> Side:
        """The side restricted to `rows` (a slice or an integer array)."""
        if isinstance(rows, slice):
            labels = None if self.labels is None else self.labels[rows]
            return Side(self.points[rows, :], self.marks[rows, :], labels)
        take = _arrays.namespace(self.points).take
        labels = None if self.labels is None else take(self.labels, rows, axis=0)
        return Side(take(self.points, rows, axis=0), take(self.marks, rows, axis=0), labels)


@dataclass(frozen=True)
class PairProblem:
    """k(x_i, x'_j) <a_i, b_j>; `right=None` means that right is left (symmetric)."""

    left: Side
    right: Side | None
    kernel: tuple[Term, ...]  # the sum of these terms

    @property
    def symmetric(self) -> bool:
        return self.right is None

    @property
    def columns(self) -> Side:
        return self.left if self.right is None else self.right


@dataclass(frozen=True)
class Moments:
    """Sums over H. In a symmetric problem the diagonal is kept out of all but `diagonal` and `trace`."""

    total: Any  # of all entries: a float, or a float64 array of shape ()
    row_sums: Array | None  # float64, shape: (n,); None if only the total was asked for
    column_sums: Array | None  # float64, shape: (n right,); the row sums if symmetric
    diagonal: Array | None  # float64, shape: (n,); as the trace, and None where the row sums may be
    sum_of_squares: float | None  # None unless asked for
    trace: Any  # sum of the diagonal, as `total`; None for rectangular problems, or if not asked for
