"""Random features of the kernel of a packed problem: near-linear sums in place of sums over all pairs.

A `FeatureProblem` has the map phi, points and target features of the samples, and sums for drawn targets. `features_of`
makes one from checked data and a packed problem; kinds of data register for it, class labels here.
`estimators.feature_moments` uses its sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, ClassVar

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.options import LARGEST_SEED, SEED, check_integer
from kcalib._backend.threads import resolve_threads
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._packing.packed import Packed, pack
from kcalib._packing.variance import RANK_WITH_COLUMNS, FiniteLaw, columns, expected_lengths, finite_law
from kcalib._pairs.feature_sums import drawn_label_totals
from kcalib._pairs.features import N_GROUPS, FeatureMap, default_columns, feature_map
from kcalib._pairs.label_cells import DrawnCells
from kcalib._pairs.problem import Term
from kcalib.kernels import Kernel
from kcalib.target_kernels import TargetKernel


@dataclass(frozen=True, eq=False)
class FeatureProblem(ABC):
    """Feature map and samples: the mean over maps of H_ij = <phi(x_i), phi(x_j)> <a_i, a_j> is that of the kernel."""

    targets: ClassVar[str] = "targets"  # noun for what is drawn

    data: Data
    packed: Packed  # kernels with their bandwidths and their sources
    map: FeatureMap
    seed: int  # of the map
    threads: int | None  # limit, for arrays on the host

    @property
    def n(self) -> int:
        """The number of samples."""
        return self.data.n

    @property
    @abstractmethod
    def points(self) -> Array:
        """Return the points for the map, shape (n, d)."""

    @property
    @abstractmethod
    def target_features(self) -> Array:
        """Return the features of the observed targets times weights, shape (n, r)."""

    @property
    def target_groups(self) -> np.ndarray | None:
        """The independent group of random features of each column of target features; None if all are exact.

        H times the part of <a_i, a_j> in one of H groups is unbiased for the target factor.
        """
        return None

    @abstractmethod
    def with_map(self, n_columns: int, seed: int) -> FeatureProblem:
        """Return the problem with another map of the kernel."""

    @abstractmethod
    def drawn_totals(self, n_draws: int, seed: int, first: int = 0) -> np.ndarray:
        """Return sum_{i != j} H_ij for the targets of `data.draw(seed, first + b)` for each draw b."""

    def drawn_totals_of_both(
        self, other: FeatureProblem, n_draws: int, seed: int, **drawn: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return `drawn_totals` of this problem and of that with another map; `drawn` are options of the first."""
        return self.drawn_totals(n_draws, seed, **drawn), other.drawn_totals(n_draws, seed)

    def redrawn(self, n_groups: int) -> Iterator[FeatureProblem]:
        """Yield the problem with other draws for predictions that are represented by draws."""
        yield from ()

    @abstractmethod
    def null_lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return E |a_i|^2 for targets drawn from the predictions of these rows, unweighted, shape (rows,)."""

    @abstractmethod
    def null_products(self, rows: np.ndarray) -> np.ndarray:
        """Return E <a_i, a_j>^2, i != j, for targets drawn from these predictions, unweighted, shape (rows, rows)."""

    @abstractmethod
    def null_powers(self) -> tuple[np.ndarray, np.ndarray]:
        """Return E |a_i|^2 and E |a_i|^4 for targets drawn from the predictions, unweighted, shape (n,) each."""

    def described(self) -> dict[str, Any]:
        """Return the fields of results on how they were computed."""
        where = "in host memory" if arrays.is_host(self.points) else f"on {arrays.describe_device(self.points)}"
        return {
            **self.data.describe(),
            **self.packed.described(),
            "backend": "features",
            "backend_reason": f"sums of {self.map.n_columns} features of the kernel; the arrays are {where}",
            "n_columns": self.map.n_columns,
            "threads": resolve_threads(self.threads) if arrays.is_host(self.points) else None,
        }


@dataclass(frozen=True)
class MapOptions:
    """Options of a map of features of a kernel."""

    n_columns: int | None = None  # None: `default_columns(n)`; or as `check_columns` returns it
    seed: int = SEED
    threads: int | None = None
    reference: FeatureProblem | None = None  # of another model with the same kernel, for the same map


def check_columns(n_columns: Any) -> int | None:
    """Check the columns of a map: a multiple of twice the number of groups; None for the default."""
    if n_columns is None:
        return None
    step = 2 * N_GROUPS
    number = check_integer("n_columns", n_columns, step, 2**31)
    if number % step:
        raise ValueError(
            f"`n_columns` is {number}, expected a multiple of {step}, for {N_GROUPS} independent groups of frequencies "
            f"with a cosine and a sine each; {step * round(number / step)} would do"
        )
    return number


def feature_problem(
    data: Data,
    kernel: Kernel | None,
    target_kernel: TargetKernel,
    n_columns: int | None = None,
    seed: int = SEED,
    threads: int | None = None,
) -> FeatureProblem:
    """Return checked data with a map of their kernel."""
    packed = pack(data, kernel, target_kernel, threads=threads)
    return features_of(data, packed, MapOptions(n_columns, seed, threads))


@singledispatch
def features_of(data: Data, packed: Packed, options: MapOptions) -> FeatureProblem:
    """Return the features of packed data; the map depends on seed, kernel and sizes only."""
    raise NotImplementedError(type(data))


def drawn_map(terms: Sequence[Term], points: Array, n_columns: int | None, seed: int) -> FeatureMap:
    """Return a map of a kernel in normal form, for points whose distances are those of vectors."""
    seed = check_integer("seed", seed, 0, LARGEST_SEED)
    return feature_map(terms, points, n_columns or default_columns(int(points.shape[0])), seed)


def class_map(terms: Sequence[Term], n_classes: int, n_columns: int, seed: int) -> FeatureMap:
    """Return a map of a kernel in normal form for class probabilities, the same for all predictions."""
    return drawn_map(terms, np.eye(1, n_classes), n_columns, seed)


@features_of.register
def _(data: Classification, packed: Packed, options: MapOptions) -> FeatureProblem:
    arrays.check_no_threads(packed.problem.left.points, options.threads)
    if options.reference is None:
        n_columns = options.n_columns or default_columns(data.n)
        random_map = class_map(packed.problem.kernel, data.m, n_columns, options.seed)
    else:
        random_map = options.reference.map
    return LabelFeatures(data, packed, random_map, options.seed, options.threads)


@dataclass(frozen=True, eq=False)
class LabelFeatures(FeatureProblem):
    """Features of class labels: target features are residuals times the root of the target matrix."""

    targets: ClassVar[str] = "labels"

    data: Classification

    @property
    def points(self) -> Array:
        return self.packed.problem.left.points

    @property
    def target_features(self) -> Array:
        return self.packed.problem.left.features

    def with_map(self, n_columns: int, seed: int) -> LabelFeatures:
        return replace(self, map=class_map(self.packed.problem.kernel, self.data.m, n_columns, seed), seed=seed)

    def drawn_totals(self, n_draws: int, seed: int, first: int = 0, cells: DrawnCells | None = None) -> np.ndarray:
        return drawn_label_totals(
            self.map,
            self.data.probabilities,
            n_draws,
            seed,
            root=self.packed.target.root,
            points=self.points,
            threads=self.threads,
            first=first,
            cells=cells,
            weights=self.data.sample_weight,
        )

    def null_lengths(self, rows: np.ndarray) -> np.ndarray:
        return arrays.to_host(expected_lengths(self._law(rows))[0])

    def null_products(self, rows: np.ndarray) -> np.ndarray:
        return products_of(self._law(rows), self.threads)

    def null_powers(self) -> tuple[np.ndarray, np.ndarray]:
        squares, fourths = (arrays.to_host(part) for part in expected_lengths(self._law(np.arange(self.n))))
        return squares, fourths

    def _law(self, rows: np.ndarray) -> FiniteLaw:
        law = finite_law(self.data.take(arrays.like(rows, self.data.reference)), self.packed)
        assert law is not None
        return law


def products_of(law: FiniteLaw, threads: int | None = None) -> np.ndarray:
    """Return tr(M V_i M V_j) for pairs i != j, shape (n, n)."""

    def own_products(target_features: np.ndarray) -> np.ndarray:
        return linalg.matmul(target_features, target_features.T)

    p = arrays.to_host(law.probabilities)
    if law.root is not None or p.shape[1] <= RANK_WITH_COLUMNS:
        return np.asarray(sum(own_products(target_features) for target_features in map(arrays.to_host, columns(law))))
    # As in `expected_squares`, entry by entry: the difference lies between 0 and the products of the diagonals.
    top, _, rest = (arrays.to_host(part) for part in law.parts)
    diagonal = p * np.where(top, rest, p.max(axis=1, keepdims=True) + rest - p)
    diagonal_products = own_products(diagonal)
    return diagonal_products + np.clip(own_products(p) ** 2 - own_products(p * p), 0.0, diagonal_products)
