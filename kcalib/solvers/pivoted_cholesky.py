r"""Factorise K ~ F F^T from a few columns of K, by partial Cholesky factorisation with pivots.

After k steps the residual :math:`K - F F^\top` is positive semi-definite, zero in the rows and columns of the pivots,
and its diagonal is known. The next pivot is drawn with probability proportional to that diagonal ("random":
RPCholesky), or is its largest entry ("greedy"). Random pivots are proposed in blocks, from the diagonal at the start of
the block, and accepted so that they have the distribution of pivots drawn one at a time (`_accept_proposals`). Columns
and diagonal are on the device of K, pivots and block matrices on the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import check_choice, check_integer
from kcalib._pairs.statistics import cumulative_sum
from kcalib.report.summary import Summarized
from kcalib.solvers.kernel_operator import SymmetricOperator, as_operator

# A diagonal entry of the residual below minus this, or minus this many epsilon, relative to the largest diagonal entry
# of K, shows that K is indefinite.
NEGATIVE, NEGATIVE_ROUNDINGS = 1e-8, 100
EPSILON = float(np.finfo(np.float64).eps)
# `to_rounding` stops at this trace of the residual, in epsilon times the trace of K, or if the newest columns have this
# mean square, in rank times epsilon times the trace.
ROUNDINGS, SMALL, NEWEST = 8, 0.25, 64


@dataclass(frozen=True, eq=False)
class LowRank(Summarized):
    """K ~ F F^T."""

    factor: Array  #: F, float64, shape (n, rank); on the GPU of K, if any
    pivots: np.ndarray  #: the chosen rows of K, in order, shape (rank,), in host memory
    trace_residual: float  #: trace(K - F F^T), a bound of the eigenvalues of K - F F^T
    rank: int  #: columns of F

    def __repr__(self) -> str:
        return f"LowRank(n={len(self.factor)}, rank={self.rank}, trace_residual={self.trace_residual:.6g})"


@on_their_gpu
def pivoted_cholesky(
    operator: Any,
    rank: int,
    *,
    tol: float = 0.0,
    pivoting: str = "random",
    block_size: int | None = None,
    seed: int = 0,
) -> LowRank:
    r"""Approximate a positive semi-definite matrix from `rank` of its columns.

    .. math:: K \approx F F^\top, \qquad 0 \preceq K - F F^\top, \qquad
              \lambda_{\max}(K - F F^\top) \le \operatorname{trace}(K - F F^\top)

    Time: `rank` columns of K (about 2 rank / n of a sweep over all pairs) and n rank^2 multiply-adds; memory n rank
    numbers. Only the diagonal of K and these columns are computed.

    Parameters
    ----------
    operator : operator or array_like, shape (n, n)
        K: the result of `kernel_operator`, a dense symmetric matrix, or any object with `n`, `matmul`, `tile` and
        `diagonal`.
    rank : int
        Columns of F, from 0 to n. F has fewer if `tol` is reached earlier, or if K has a smaller rank.
    tol : float
        Stop when trace(K - F F^T) is at most `tol` times trace(K); 0 <= tol < 1.
    pivoting : {"random", "greedy"}
        The next column is drawn with probability proportional to the residual's diagonal, or is its largest entry.
        Random pivots have better bounds and are computed in blocks; greedy ones need no seed.
    block_size : int, optional
        Number of random pivots that are proposed together, which only affects speed. By default a tenth of `rank`,
        between 1 and 64. Not for greedy pivots, which come one at a time.
    seed : int
        Seed of the random pivots.

    Returns
    -------
    LowRank
        `factor`, `pivots`, `trace_residual` (exact up to rounding) and `rank`.

    Raises
    ------
    TypeError
        If `operator` is neither an operator nor numeric, or `rank`, `block_size` or `seed` is not an integer.
    ValueError
        If a matrix is not square, finite and symmetric; if its diagonal or that of a residual has a negative entry, so
        that it is not positive semi-definite; if `rank`, `tol`, `pivoting` or `block_size` is out of range.

    References
    ----------
    Chen, Epperly, Tropp, Webber (2023), Randomly pivoted Cholesky; for the blocks Epperly, Tropp, Webber (2024),
    Embrace rejection.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.kernels import Linear
    >>> from kcalib.solvers import kernel_operator, pivoted_cholesky
    >>> points = np.random.default_rng(0).dirichlet(np.ones(3), size=100)
    >>> low = pivoted_cholesky(kernel_operator(points, Linear()), 10, tol=1e-12)
    >>> low.rank, bool(np.allclose(low.factor @ low.factor.T, points @ points.T))
    (3, True)
    """
    matrix = as_operator(operator)
    check_integer("rank", rank, 0, matrix.n)
    check_choice("pivoting", pivoting, ("random", "greedy"))
    check_integer("seed", seed, 0)
    if not 0 <= tol < 1:
        raise ValueError(f"`tol` is {tol!r}, expected a number from 0 to 1, 1 excluded")
    if block_size is not None:
        check_integer("block_size", block_size, 1)
        if pivoting == "greedy" and block_size > 1:
            raise ValueError(f"`block_size` is {block_size}, but greedy pivots come one at a time; leave it out")
    low = partial_cholesky(matrix, rank, tol=tol, greedy=pivoting == "greedy", block_size=block_size, seed=seed)
    return low if arrays.is_host(low.factor) else replace(low, factor=arrays.to_original_library(low.factor, operator))


def partial_cholesky(
    operator: SymmetricOperator,
    rank: int,
    *,
    tol: float = 0.0,
    greedy: bool = False,
    block_size: int | None = None,
    seed: int = 0,
    to_rounding: bool = False,
) -> LowRank:
    """Return `pivoted_cholesky` of checked arguments.

    With `to_rounding` stop when D = K - F F^T is small relative to the rounding errors of an eigendecomposition of F^T
    F: by its trace, or by the squares of the newest columns. Since pivots are drawn in proportion to the diagonal, the
    mean square of a column is ||D||_F^2 / trace(D), the mean of D's eigenvalues weighted by themselves, which is far
    below the trace if these decay slowly.
    """
    diagonal = _diagonal(operator)
    xp = arrays.namespace(diagonal)
    trace, largest = float(xp.sum(diagonal)), float(xp.max(diagonal))
    epsilon = getattr(operator, "epsilon", EPSILON)
    rest, least = diagonal.copy(), max(tol * trace, (ROUNDINGS if to_rounding else 1) * epsilon * trace)
    block = 1 if greedy else block_size or automatic_block(rank)
    factor, pivots = xp.empty((rank, operator.n)).T, np.empty(0, dtype=np.int64)  # in column order
    random = np.random.default_rng(seed)
    while len(pivots) < rank and float(xp.sum(rest)) > least:
        count, size = len(pivots), min(block, rank - len(pivots))
        proposed = np.array([int(xp.argmax(rest))]) if greedy else _draw_rows(rest, size, random)
        current_factor, rows = factor[:, :count], arrays.like(proposed, diagonal)
        square = operator.tile(proposed, proposed)
        if count:
            at = xp.ascontiguousarray(current_factor[rows]).T
            square = square - linalg.matmul(at.T, at)
        accepted, root = _accept_proposals(arrays.to_host(square), epsilon * largest, random)
        if not accepted:  # the residuals of these rows are rounding errors
            rest[rows] = 0.0
            continue
        new = proposed[accepted]
        rows = arrays.like(new, diagonal)
        columns = operator.tile(new, slice(0, operator.n)).T
        if count:
            columns = columns - linalg.matmul(current_factor, current_factor[rows].T)
        columns = linalg.solve_triangular(arrays.like(root, diagonal), columns.T).T
        factor[:, count : count + len(new)] = columns
        pivots = np.append(pivots, new)
        rest -= linalg.row_products(columns, columns)
        rest[rows] = 0.0
        _check_residual(rest, max(NEGATIVE, NEGATIVE_ROUNDINGS * epsilon) * largest, operator)
        xp.maximum(rest, 0.0, out=rest)
        newest = factor[:, max(0, len(pivots) - NEWEST) : len(pivots)]
        if to_rounding and linalg.squared_norm(newest) <= SMALL * len(pivots) * epsilon * trace * NEWEST:
            break
    factor = factor[:, : len(pivots)]
    left = math.fsum(rest) if arrays.is_host(rest) else float(xp.sum(rest))
    return LowRank(factor, pivots, left, len(pivots))


def automatic_block(rank: int) -> int:
    """Return the number of pivots that are proposed together."""
    return min(64, max(1, rank // 10))


def _diagonal(operator: SymmetricOperator) -> Array:
    diagonal = operator.diagonal()
    xp = arrays.namespace(diagonal) if arrays.is_cuda(diagonal) else np
    diagonal = xp.array(diagonal, dtype=xp.float64)
    good = (diagonal >= 0) & xp.isfinite(diagonal)
    if not bool(xp.all(good)):
        i = int(xp.argmin(good))
        raise ValueError(
            f"the diagonal of K has {float(diagonal[i])} at {i}, expected finite numbers >= 0: K is {operator!r}, "
            "which is not positive semi-definite"
        )
    return diagonal


def _draw_rows(weights: Array, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw rows with probability proportional to `weights`, with replacement."""
    xp = arrays.namespace(weights)
    ladder = cumulative_sum(weights)
    places = xp.searchsorted(ladder, arrays.like(random.random(count), ladder) * ladder[-1], side="right")
    return np.minimum(arrays.to_host(places), int(xp.flatnonzero(weights)[-1]))


def _accept_proposals(square: np.ndarray, rounding: float, random: np.random.Generator) -> tuple[list[int], np.ndarray]:
    """Return which proposals become pivots, and the Cholesky factor of their part of the residual.

    A proposal is accepted with probability equal to the ratio of its residual, given earlier accepted pivots, to its
    residual when proposed: pivots then have the distribution of those drawn one at a time. The first one is always
    accepted unless it is rounding.
    """
    initial_diagonal = np.diag(square).copy()
    root, accepted = np.zeros_like(square), list[int]()
    for i in range(len(square)):
        row = root[i, : len(accepted)]
        left = initial_diagonal[i] - row @ row
        if left > max(random.random() * initial_diagonal[i], rounding):
            k = len(accepted)
            root[:, k] = (square[:, i] - root[:, :k] @ row) / math.sqrt(left)
            accepted.append(i)
    return accepted, root[np.ix_(accepted, range(len(accepted)))]


def _check_residual(rest: Array, tolerance: float, operator: SymmetricOperator) -> None:
    worst = int(arrays.namespace(rest).argmin(rest))
    value = float(rest[worst])
    if value < -tolerance:
        raise ValueError(
            "K is not positive semi-definite: the residual of its partial Cholesky factorisation has "
            f"{value:.3g} in row {worst} of the diagonal, and K is {operator!r}; take a kernel that is positive "
            "definite (such as Exponential(), or Gaussian() with metric='euclidean')"
        )
