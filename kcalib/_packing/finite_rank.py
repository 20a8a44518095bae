"""Features of finite rank for target kernels without a closed form for the predictions.

A prediction with weights on atoms (samples, counts, quasi-Monte-Carlo draws) has the target factor

    <delta_y - sum_s w_s delta_{z_s}, delta_y' - sum_t w'_t delta_{z'_t}>

under a target kernel l. With features phi, l(x, x') = <phi(x), phi(x')> up to a small error, it is the inner product of
the vectors phi(y) - sum_s w_s phi(z_s): features for any backend, R multiplications per pair of rows instead of (S +
1)^2 kernel evaluations. phi comes from a partial Cholesky factorisation over all points, phi(x) = L^(-1) l(P, x) with
pivots P and L L^T = l(P, P). It is exact to rounding if l is smooth on the scale of the distances between points (for a
Gaussian kernel in one dimension some tens of features for any number of points).

The residual l(x, x') - <phi(x), phi(x')> is a positive semi-definite kernel, so that its diagonal bounds the error of
every target factor (Cauchy-Schwarz). `_packing.forecasts` calls it. Besides the points and the features there are only
blocks. CuPy arrays stay on their GPU, except numbers of a pivot and the matrix of the pivots; others are on the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._pairs import mixtures
from kcalib._pairs.problem import Mixtures, Term
from kcalib._pairs.profiles import Distances, kernel_matrix

KernelOfPoints = tuple[Term, ...] | Mixtures

EPSILON = float(np.finfo(np.float64).eps)
TOLERANCE = 1e-14  # largest diagonal of the residual, relative to that of the kernel: exact to rounding
LARGEST_RANK = 1024
# Features that take about as long, for a pair of rows, as an evaluation of the kernel (an exponential).
FEATURES_PER_EVALUATION = 16
# Pivots are taken in rounds, each over all points, until no residual exceeds this share of the round before: a pivot
# divides by the root of its residual, which must not be far below that of other points, or roundings would grow.
ROUND = 1e-3
NEGATIVE = 1e-6  # entry of the residual's diagonal that shows an indefinite kernel, relative to the kernel's largest
PASSES = 4  # over all points, at most
SLACK = 8  # between the residual where pivots stop, and that of all points in the end
SAMPLE = 4096  # points that the first pivots come from
BLOCK_ELEMENTS = 2**19
FEWEST, MOST = 256, 4096  # points of a block
ROUNDINGS = 8  # an entry of phi phi^T has these and one for each feature, in epsilon times the kernel's largest value


@dataclass(frozen=True, eq=False)
class FiniteRankMap:
    """phi(x) = L^(-1) l(P, x) of a kernel l in normal form, or of mean embeddings: points are then rows of mixtures."""

    kernel: KernelOfPoints
    pivots: Array  # P, shape: (R, d)
    root: Array  # L, lower triangular, shape: (R, R)
    largest: float  # value of l on the diagonal

    @property
    def rank(self) -> int:
        """Number of features R."""
        return len(self.pivots)

    @property
    def rounding(self) -> float:
        """The rounding of an entry of phi phi^T and of the residual; smaller values are noise."""
        return (self.rank + ROUNDINGS) * EPSILON * self.largest

    def features(self, points: Array) -> tuple[Array, Array]:
        """Return phi, shape (n, R), and the diagonal of the residual, shape (n,), of all points."""
        xp, diagonal = arrays.namespace(points), _diagonal(self.kernel, points)
        if not self.rank:
            return xp.empty((len(points), 0)), diagonal
        phi = _solve(self.root, _matrix(self.kernel, points, self.pivots).T).T
        residual = diagonal - xp.einsum("ij,ij->i", phi, phi)
        lowest = float(residual.min()) if len(residual) else 0.0
        if lowest < -NEGATIVE * self.largest:
            raise ValueError(
                "the target kernel is not positive definite: the residual of its partial Cholesky factorisation has "
                f"{lowest:.3g} in the diagonal; take one that is, such as Exponential(), or one with "
                "metric='euclidean'"
            )
        # What is below 0 is rounding, of pivots that are nearly dependent, and as wrong as what is above.
        return phi, xp.abs(residual)

    def points(self, points: Any) -> tuple[Array, Array]:
        """Return phi of points (n, d), and the roots of the residual, shape (n,), which bound |delta_x - its image|."""
        points = _to_host_unless_cuda(points)
        xp = arrays.namespace(points)
        phi, errors = xp.empty((len(points), self.rank)), xp.empty(len(points))
        for block in _blocks(len(points), self.step):
            phi[block], residual = self.features(points[block])
            errors[block] = xp.sqrt(residual + self.rounding)
        return phi, errors

    def means(self, atoms: Any, weights: Any = None) -> tuple[Array, Array]:
        """Return sum_s w_is phi(z_is), shape (n, R), and bounds on distances from the mean embeddings, shape (n,).

        `atoms` and `weights` are as in `finite_rank_features`. The Euclidean distance of two rows is the MMD distance
        of the predictions, up to the sum of their bounds.
        """
        atoms = _to_host_unless_cuda(atoms)
        weights = None if weights is None else _to_host_unless_cuda(weights)
        xp = arrays.namespace(atoms)
        if atoms.ndim == 2:
            assert weights is not None
            phi, errors = self.points(atoms)
            return weights @ phi, xp.abs(weights) @ errors
        n, size, d = atoms.shape
        means, bounds = xp.empty((n, self.rank)), xp.empty(n)
        for block in _blocks(n, max(1, self.step // size)):
            block_atoms = atoms[block]
            phi, residual = self.features(block_atoms.reshape(-1, d))
            phi, errors = phi.reshape(*block_atoms.shape[:2], self.rank), xp.sqrt(residual + self.rounding)
            errors = errors.reshape(block_atoms.shape[:2])
            if weights is None:
                means[block], bounds[block] = phi.mean(axis=1), errors.mean(axis=1)
            else:
                means[block] = xp.einsum("is,isr->ir", weights[block], phi)
                bounds[block] = xp.einsum("is,is->i", xp.abs(weights[block]), errors)
        return means, bounds

    @property
    def step(self) -> int:
        """Points of a block."""
        return max(FEWEST, min(MOST, BLOCK_ELEMENTS // max(1, self.rank)))


@dataclass(frozen=True, eq=False)
class FiniteRankFeatures:
    """Features phi(y_i) - sum_s w_is phi(z_is) of predictions with weights on atoms."""

    map: FiniteRankMap
    features: Array  # float64, shape: (n, R)
    means: Array  # sum_s w_is phi(z_is), float64, shape: (n, R); their distances are those of the MMD
    row_bounds: Array  # the target factor of rows i and j is off by row_bounds[i] * row_bounds[j] at most
    mean_bounds: Array  # the MMD distance of rows i and j is off by mean_bounds[i] + mean_bounds[j] at most
    cover_bound: float  # |delta_x - its image| is less than this for all points of `cover`
    exact: bool  # to rounding: the tolerance was reached before the largest rank
    kernel_evaluations: int  # that atoms would take instead, for a pair of rows: (S + 1)^2

    @property
    def rank(self) -> int:
        """Number of features."""
        return self.map.rank

    @property
    def error_bound(self) -> float:
        """Largest error of a target factor of two rows, or of targets in `cover`."""
        return max(float(self.row_bounds.max()), self.cover_bound + float(self.mean_bounds.max())) ** 2

    @property
    def cheaper(self) -> bool:
        """Whether a pair of rows is likely faster than with atoms on the pair engine."""
        return self.rank <= FEATURES_PER_EVALUATION * self.kernel_evaluations


def finite_rank_features(
    y: Array,
    atoms: Array,
    weights: Array | None,
    kernel: Sequence[Term],
    *,
    cover: Array | None = None,
    tolerance: float = TOLERANCE,
    max_rank: int | None = None,
    max_memory: int | None = None,
    only_exact: bool = False,
) -> FiniteRankFeatures | None:
    """Return features and mean embeddings of finite rank, for targets `y` of shape (n, d).

    Time about N R^2 multiply-adds and 2 N R kernel evaluations for N points in total and rank R; memory two arrays of n
    R numbers, R^2 and blocks. If `exact` is false, the caller may choose atoms on the pair engine instead.

    Parameters
    ----------
    atoms, weights : arrays of shapes (n, S, d) and (n, S), or (N, d) and (n, N)
        Atoms of the predictions, with the second shapes the same for all rows; without weights 1 / S each.
    kernel : sequence of Term
        Kernel on targets in normal form with resolved bandwidths; positive definite.
    cover : array, shape (N, d), optional
        Further targets that the features must suit, such as those that tests draw.
    tolerance : float
        Largest diagonal of the residual kernel over all points, relative to the kernel. The error of factors is at most
        4 times that plus some roundings; see `error_bound`.
    max_rank : int, optional
        By default 1024, or less if atoms on the pair engine would be faster.
    only_exact : bool
        Return None early if `max_rank` features do not suffice for a sample of the points.
    """
    kernel, atoms, targets = tuple(kernel), _to_host_unless_cuda(atoms), _to_host_unless_cuda(y)
    xp = arrays.namespace(targets)
    targets = xp.astype(targets, xp.float64, copy=False)
    evaluations = (atoms.shape[-2] + 1) ** 2
    cover_points = targets[:0] if cover is None else _to_host_unless_cuda(cover)
    points = xp.concat([targets, atoms.reshape(-1, atoms.shape[-1]), cover_points])
    limit = min(len(points), LARGEST_RANK, FEATURES_PER_EVALUATION * evaluations) if max_rank is None else max_rank
    finite_map = feature_map(points, kernel, tolerance=tolerance, max_rank=limit, only_exact=only_exact)
    if finite_map is None:
        return None
    check_memory(
        16 * len(targets) * finite_map.rank,
        max_memory,
        f"{finite_map.rank} target features of {len(targets)} predictions",
        "pass fewer samples, or a wider bandwidth for the target kernel",
        points,
    )
    phi, errors = finite_map.points(targets)
    means, bounds = finite_map.means(atoms, weights)
    row_bounds = errors + bounds
    total = 1.0 if weights is None else float(xp.abs(_to_host_unless_cuda(weights)).sum(axis=1).max())
    least = SLACK * max(tolerance * finite_map.largest, finite_map.rounding) + finite_map.rounding
    cover_bound = float(finite_map.points(cover_points)[1].max()) if len(cover_points) else 0.0
    exact = float(row_bounds.max()) <= (1 + total) * math.sqrt(least) and cover_bound <= math.sqrt(least)
    features, means = arrays.like(phi - means, y), arrays.like(means, y)
    return FiniteRankFeatures(finite_map, features, means, row_bounds, bounds, cover_bound, exact, evaluations)


def count_features(y: Array, probabilities: Array, kernel: Sequence[Term], **options: Any) -> FiniteRankFeatures | None:
    """Return features of counts 0, 1, ..., N with probabilities of shape (n, N + 1); `y` may exceed N."""
    atoms = np.arange(probabilities.shape[1], dtype=np.float64)[:, None]
    if arrays.is_cuda(y):
        atoms, probabilities = arrays.like(atoms, y), arrays.asarray_like(probabilities, y)
    return finite_rank_features(y, atoms, probabilities, kernel, **options)


def feature_map(
    points: Array,
    kernel: KernelOfPoints,
    *,
    tolerance: float = TOLERANCE,
    max_rank: int = LARGEST_RANK,
    only_exact: bool = False,
) -> FiniteRankMap | None:
    """Return phi with a residual of at most `tolerance` (or rounding) at all points (N, d), if `max_rank` allows it.

    Pivots come from a sample of the points, then from points with a remaining residual. The result is None with
    `only_exact` if `max_rank` is too small for the sample.
    """
    xp, diagonal = arrays.namespace(points), _diagonal(kernel, points)
    largest = float(diagonal.max())
    finite_map = FiniteRankMap(kernel, points[:0], xp.empty((0, 0)), largest)
    absolute, stride = tolerance * largest, -(-len(points) // SAMPLE)
    finite_map, residual = _refine(finite_map, points[::stride], diagonal[::stride], absolute, max_rank)
    if only_exact and float(residual.max()) > max(absolute, finite_map.rounding) * SLACK:
        return None
    # Pivots that ordering leaves out as noise may be missed by points near them: look at all points again.
    for _ in range(PASSES):
        residual = xp.empty(len(points))
        for block in _blocks(len(points), finite_map.step):
            residual[block] = finite_map.features(points[block])[1]
        if float(residual.max()) <= SLACK * max(absolute, finite_map.rounding) or finite_map.rank >= max_rank:
            break
        finite_map = _refine(finite_map, points, residual, absolute, max_rank)[0]
    return finite_map


def _refine(
    finite_map: FiniteRankMap, points: Array, residual: Array, tolerance: float, max_rank: int
) -> tuple[FiniteRankMap, Array]:
    """Add pivots until no residual is above `tolerance`; each pivot lowers the bounds."""
    xp, residual, level = arrays.namespace(points), residual.copy(), float(residual.max())
    while level > (least := max(tolerance, finite_map.rounding)) and finite_map.rank < max_rank:
        level = max(ROUND * level, least)
        left = xp.nonzero(residual > level)[0]
        count = -(-len(left) // finite_map.step)
        for b in range(count):
            if finite_map.rank >= max_rank:
                break
            rows = left[b::count]  # from all over the points
            finite_map, residual[rows] = _extend(finite_map, points[rows], level, max_rank)
        finite_map = _order_pivots(finite_map, tolerance)
        level = min(level, float(residual.max()))
    return finite_map, residual


def _extend(finite_map: FiniteRankMap, block: Array, level: float, max_rank: int) -> tuple[FiniteRankMap, Array]:
    """Add pivots of a block until no residual in it is above `level`; also return the residuals."""
    xp, (phi, residual) = arrays.namespace(block), finite_map.features(block)
    rank, rows = finite_map.rank, list[int]()
    room = xp.empty((max(16, 2 * rank), len(block))).T  # column by column
    room[:, :rank] = phi
    while rank < max_rank:
        at = int(residual.argmax())
        pivot = float(residual[at])
        if pivot <= max(level, (rank + ROUNDINGS) * EPSILON * finite_map.largest):
            break
        if rank == room.shape[1]:
            room = xp.concat([room, xp.empty_like(room)], axis=1)
        column = _matrix(finite_map.kernel, block, block[at : at + 1])[:, 0] - room[:, :rank] @ room[at, :rank]
        room[:, rank] = column / math.sqrt(pivot)
        residual = xp.maximum(residual - room[:, rank] ** 2, 0.0)
        residual[at] = 0.0
        rows.append(at)
        rank += 1
    if not rows:
        return finite_map, residual
    root = xp.zeros((rank, rank))  # row i is phi of pivot i
    root[: finite_map.rank, : finite_map.rank] = finite_map.root
    root[finite_map.rank :] = xp.tril(room[rows, :rank], finite_map.rank)
    return replace(finite_map, pivots=xp.concat([finite_map.pivots, block[rows]]), root=root), residual


def _order_pivots(finite_map: FiniteRankMap, tolerance: float) -> FiniteRankMap:
    """Return the same span with pivots in descending order, which has the least rounding."""
    square = arrays.to_host(_matrix(finite_map.kernel, finite_map.pivots, finite_map.pivots))
    root, places, rank, _ = scipy.linalg.lapack.dpstrf(square, tol=max(tolerance, finite_map.rounding) / 4, lower=1)
    order = arrays.like(places[:rank] - 1, finite_map.pivots)
    return replace(
        finite_map, pivots=finite_map.pivots[order], root=arrays.like(np.tril(root)[:rank, :rank], finite_map.pivots)
    )


def _to_host_unless_cuda(array: Array) -> Array:
    """Return CuPy arrays unchanged, others on the host."""
    return array if arrays.is_cuda(array) else arrays.to_host(array)


def _solve(root: Array, right: Array) -> Array:
    """Return root^-1 right; `right` may be overwritten."""
    if arrays.is_host(root):
        return scipy.linalg.solve_triangular(root, right, lower=True, overwrite_b=True, check_finite=False)
    from kcalib._backend import linalg

    return linalg.solve_triangular(root, right)


def _blocks(n: int, step: int) -> Iterator[slice]:
    """Yield the rows 0..n-1 in blocks of `step`."""
    for begin in range(0, n, step):
        yield slice(begin, min(n, begin + step))


def _matrix(kernel: KernelOfPoints, left: Array, right: Array) -> Array:
    if isinstance(kernel, Mixtures):
        return mixtures.point_products(kernel, left, right)
    return kernel_matrix(kernel, Distances(left, right))


def _diagonal(kernel: KernelOfPoints, points: Array) -> Array:
    if isinstance(kernel, Mixtures):
        return mixtures.own_point_products(kernel, points)
    return kernel_matrix(kernel, Distances(points[:, None, :], points[:, None, :]))[:, 0, 0]
