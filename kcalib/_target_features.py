r"""Marks of finite rank for predictions that target kernels have no closed form for.

A prediction that puts weights on atoms (samples, counts, quasi-Monte-Carlo draws) has the target factor

    <delta_y - sum_s w_s delta_{z_s}, delta_y' - sum_t w'_t delta_{z'_t}>

under a target kernel l. With features phi, l(x, x') = <phi(x), phi(x')> up to a small error, this is the inner product
of the vectors phi(y) - sum_s w_s phi(z_s): marks for any operator, R multiplications for a pair of rows instead of
(S + 1)^2 kernel evaluations. phi comes from a partial Cholesky factorisation over all points,
phi(x) = L^(-1) l(P, x) with pivots P and L L^T = l(P, P), which is exact to rounding where l is smooth beside the
points' distances (a Gaussian kernel in one dimension: some tens of features for any number of points).

The residual l(x, x') - <phi(x), phi(x')> is itself a positive semi-definite kernel, so that its diagonal bounds the
error of every target factor, by Cauchy and Schwarz: `Errors`. Called by `_packing`. Everything is on the host, and
nothing is larger than a block besides the points and the marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._memory import check_memory
from kcalib._problem import Term
from kcalib._profiles import Distances, kernel_matrix

EPSILON = float(np.finfo(np.float64).eps)
TOLERANCE = 1e-14  # largest diagonal of the residual, relative to that of the kernel: exact to rounding
LARGEST_RANK = 1024
# Features that take about as long, for a pair of rows, as an evaluation of the kernel (an exponential).
FEATURES_PER_EVALUATION = 16
# Pivots are taken in rounds, each over all points, until no residual exceeds this share of the round before: a pivot
# divides by the root of its residual, which must not be far below that of other points, or roundings would grow.
ROUND = 1e-3
BLOCK_ELEMENTS = 2**21
FEWEST = 256  # points of a block, at least
ROUNDINGS = 8  # of an entry of phi phi^T, in epsilon times the kernel's largest value, for each feature


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """phi(x) = L^(-1) l(P, x) of a kernel l in normal form."""

    kernel: tuple[Term, ...]
    pivots: np.ndarray  # P, shape: (R, d)
    root: np.ndarray  # L, lower triangular, shape: (R, R)
    largest: float  # of l on the diagonal

    @property
    def rank(self) -> int:
        """Number of features R."""
        return len(self.pivots)

    @property
    def rounding(self) -> float:
        """Of an entry of phi phi^T."""
        return ROUNDINGS * (self.rank + 1) * EPSILON * self.largest

    def features(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """phi, shape (n, R), and the residual's diagonal, shape (n,), of all points at once."""
        own = _diagonal(self.kernel, points)
        if not self.rank:
            return np.empty((len(points), 0)), own
        between = _matrix(self.kernel, self.pivots, points)
        phi = scipy.linalg.solve_triangular(self.root, between, lower=True, check_finite=False).T
        return phi, np.maximum(own - np.einsum("ij,ij->i", phi, phi), 0.0)

    def points(self, points: Any) -> tuple[np.ndarray, np.ndarray]:
        """phi of points of shape (n, d), and bounds on |delta_x - its image|: the residual's roots, shape (n,)."""
        points = _arrays.to_host(points)
        phi, errors = np.empty((len(points), self.rank)), np.empty(len(points))
        for part in _parts(len(points), self._step):
            phi[part], residual = self.features(points[part])
            errors[part] = np.sqrt(residual + self.rounding)
        return phi, errors

    def means(self, atoms: Any, weights: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """sum_s w_is phi(z_is), shape (n, R), and bounds on their distances from the mean embeddings, shape (n,).

        `atoms` and `weights` are those of `target_features`. The Euclidean distance of two rows is the MMD distance
        of two predictions, up to the sum of their bounds.
        """
        atoms = _arrays.to_host(atoms)
        weights = None if weights is None else _arrays.to_host(weights)
        if atoms.ndim == 2:
            assert weights is not None
            phi, errors = self.points(atoms)
            return weights @ phi, np.abs(weights) @ errors
        n, size, d = atoms.shape
        means, bounds = np.empty((n, self.rank)), np.empty(n)
        for part in _parts(n, max(1, self._step // size)):
            phi, residual = self.features(atoms[part].reshape(-1, d))
            phi, errors = phi.reshape(-1, size, self.rank), np.sqrt(residual + self.rounding).reshape(-1, size)
            if weights is None:
                means[part], bounds[part] = phi.mean(axis=1), errors.mean(axis=1)
            else:
                means[part] = np.einsum("is,isr->ir", weights[part], phi)
                bounds[part] = np.einsum("is,is->i", np.abs(weights[part]), errors)
        return means, bounds

    @property
    def _step(self) -> int:
        return max(FEWEST, BLOCK_ELEMENTS // max(1, self.rank))


@dataclass(frozen=True, eq=False)
class TargetFeatures:
    """Marks phi(y_i) - sum_s w_is phi(z_is) of predictions that put weights on atoms."""

    map: FeatureMap
    marks: Array  # float64, shape: (n, R)
    means: Array  # sum_s w_is phi(z_is), float64, shape: (n, R); their distances are those of the MMD
    row_bounds: np.ndarray  # the target factor of rows i and j is off by row_bounds[i] * row_bounds[j] at most
    mean_bounds: np.ndarray  # the MMD distance of rows i and j is off by mean_bounds[i] + mean_bounds[j] at most
    exact: bool  # to rounding: the tolerance was reached before the largest rank
    kernel_evaluations: int  # that atoms would take instead, for a pair of rows: (S + 1)^2

    @property
    def rank(self) -> int:
        """Number of features."""
        return self.map.rank

    @property
    def error_bound(self) -> float:
        """No target factor of two of the rows is off by more than this."""
        return float(self.row_bounds.max()) ** 2

    @property
    def cheaper(self) -> bool:
        """Whether a pair of rows is likely to take less time than with atoms on the pair engine."""
        return self.rank <= FEATURES_PER_EVALUATION * self.kernel_evaluations


def target_features(
    y: Array,
    atoms: Array,
    weights: Array | None,
    kernel: Sequence[Term],
    *,
    tolerance: float = TOLERANCE,
    max_rank: int | None = None,
    max_memory: int | None = None,
) -> TargetFeatures:
    """Marks and mean embeddings of finite rank.

    Parameters
    ----------
    y : array, shape (n, d)
        Targets.
    atoms : array, shape (n, S, d) or (N, d)
        What the predictions put weight on; two axes: the same atoms for all rows (counts: `count_features`).
    weights : array, shape (n, S) or (n, N), optional
        Weights of the atoms; None: 1 / S each, for atoms of three axes.
    kernel : sequence of Term
        The target kernel in normal form, bandwidths resolved; positive definite.
    tolerance : float
        Largest diagonal of the residual kernel over all points, relative to the kernel's. Factors are then off by 4
        times that and some roundings, at most; `error_bound` says by how much.
    max_rank : int, optional
        Stop at so many features. By default 1024, or fewer where atoms on the pair engine would be faster.
    max_memory : int, optional
        Bytes that marks and means may take.

    Returns
    -------
    TargetFeatures
        Where `exact` is false the caller has the choice between the error and atoms on the pair engine.

    Notes
    -----
    Time: N R^2 multiply-adds and 6 N R kernel evaluations at most, for N points altogether and rank R. Memory: two
    arrays of n R numbers and blocks.
    """
    kernel, host = tuple(kernel), _arrays.to_host(atoms)
    targets = np.asarray(_arrays.to_host(y), dtype=np.float64)
    evaluations = (host.shape[-2] + 1) ** 2
    points = np.concatenate([targets, host.reshape(-1, host.shape[-1])])
    limit = min(len(points), LARGEST_RANK, FEATURES_PER_EVALUATION * evaluations) if max_rank is None else max_rank
    found, exact = feature_map(points, kernel, tolerance=tolerance, max_rank=limit)
    check_memory(
        16 * len(targets) * found.rank,
        max_memory,
        f"{found.rank} target features of {len(targets)} predictions",
        "pass fewer samples, or a wider bandwidth for the target kernel",
    )
    phi, errors = found.points(targets)
    means, bounds = found.means(host, weights)
    return TargetFeatures(
        found,
        _arrays.like(phi - means, y),
        _arrays.like(means, y),
        errors + bounds,
        bounds,
        exact,
        evaluations,
    )


def count_features(y: Array, probabilities: Array, kernel: Sequence[Term], **options: Any) -> TargetFeatures:
    """`target_features` of counts 0, 1, ..., N with probabilities of shape (n, N + 1); `y` may exceed N.

    Mass beyond N is left out, as if the prediction had a smaller total: what that is, the caller knows.
    """
    atoms = np.arange(probabilities.shape[1], dtype=np.float64)[:, None]
    return target_features(y, atoms, probabilities, kernel, **options)


def feature_map(
    points: np.ndarray, kernel: tuple[Term, ...], *, tolerance: float = TOLERANCE, max_rank: int = LARGEST_RANK
) -> tuple[FeatureMap, bool]:
    """phi with a residual of at most `tolerance` at all points of shape (N, d), and whether `max_rank` allowed that."""
    diagonal = _diagonal(kernel, points)
    largest = float(diagonal.max())
    pivots, root = _chosen(points, diagonal.copy(), kernel, tolerance * largest, max_rank)
    exact = len(pivots) < max_rank or _reached(points, FeatureMap(kernel, pivots, root, largest), tolerance * largest)
    return _ordered(kernel, pivots, largest, tolerance * largest), exact


def _chosen(
    points: np.ndarray, residual: np.ndarray, kernel: tuple[Term, ...], tolerance: float, max_rank: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pivots and L. `residual` is an upper bound for every point, and falls as pivots are found."""
    pivots, root = np.empty((0, points.shape[1])), np.empty((0, 0))
    level = float(residual.max())
    while level > tolerance and len(pivots) < max_rank:
        level = max(ROUND * level, tolerance)
        left = np.flatnonzero(residual > level)
        step = max(FEWEST, BLOCK_ELEMENTS // (len(pivots) + 64))
        count = -(-len(left) // step)
        for b in range(count):
            if len(pivots) >= max_rank:
                break
            rows = left[b::count]  # from all over the points
            pivots, root, residual[rows] = _extended(points[rows], pivots, root, kernel, level, max_rank)
    return pivots, root


def _extended(
    block: np.ndarray, pivots: np.ndarray, root: np.ndarray, kernel: tuple[Term, ...], level: float, max_rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pivots of a block until none of its residuals is above `level`: pivots, L, residuals."""
    known = FeatureMap(kernel, pivots, root, 0.0)
    phi, residual = known.features(block)
    room = np.empty((len(block), max(16, 2 * len(pivots))), order="F")
    room[:, : len(pivots)] = phi
    rank, rows = len(pivots), list[int]()
    while rank < max_rank:
        at = int(residual.argmax())
        if residual[at] <= level:
            break
        if rank == room.shape[1]:
            room = np.concatenate([room, np.empty_like(room)], axis=1)
        column = _matrix(kernel, block, block[at : at + 1])[:, 0] - room[:, :rank] @ room[at, :rank]
        room[:, rank] = column / np.sqrt(residual[at])
        residual = np.maximum(residual - room[:, rank] ** 2, 0.0)
        rows.append(at)
        rank += 1
        residual[rows] = 0.0
    if rows:
        # Row i of L is phi of pivot i.
        grown = np.zeros((rank, rank))
        grown[: len(root), : len(root)] = root
        grown[len(root) :] = np.tril(room[rows, :rank], len(root))
        pivots, root = np.concatenate([pivots, block[rows]]), grown
    return pivots, root, residual


def _ordered(kernel: tuple[Term, ...], pivots: np.ndarray, largest: float, tolerance: float) -> FeatureMap:
    """The same span by pivots in descending order, and L anew: the best order for rounding."""
    if not len(pivots):
        return FeatureMap(kernel, pivots, np.empty((0, 0)), largest)
    square = _matrix(kernel, pivots, pivots)
    root, places, rank, _ = scipy.linalg.lapack.dpstrf(square, tol=tolerance / 8, lower=1)
    kept = places[:rank] - 1
    return FeatureMap(kernel, pivots[kept], np.tril(root)[:rank, :rank], largest)


def _reached(points: np.ndarray, found: FeatureMap, tolerance: float) -> bool:
    step = max(FEWEST, BLOCK_ELEMENTS // found.rank)
    return all(found.features(points[part])[1].max() <= tolerance for part in _parts(len(points), step))


def _parts(n: int, step: int) -> Iterator[slice]:
    for begin in range(0, n, step):
        yield slice(begin, min(n, begin + step))


def _matrix(kernel: tuple[Term, ...], left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return kernel_matrix(kernel, Distances(left, right))


def _diagonal(kernel: tuple[Term, ...], points: np.ndarray) -> np.ndarray:
    return kernel_matrix(kernel, Distances(points[:, None, :], points[:, None, :]))[:, 0, 0]
