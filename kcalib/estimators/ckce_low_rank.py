"""Approximate the CKCE with a low-rank kernel matrix: random features, random landmarks, pivoted Cholesky.

Features or columns come from `kcalib.solvers`; the value and its error bound from their normal equations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_integer
from kcalib._pairs.feature_sums import gram_numbers
from kcalib.estimators.ckce_system import Approximation, MethodResult, System
from kcalib.solvers.low_rank import (
    JACKKNIFE_GROUPS,
    FourierFeatures,
    NormalEquations,
    NystromFeatures,
    jackknife,
    row_blocks,
)
from kcalib.solvers.pivoted_cholesky import LowRank, partial_cholesky

AUTOMATIC_RANK = 200  # default number of landmarks and pivots
ENTRY_ROUNDINGS = 10  # rounding error of an entry of K, or of a sum of entries, in units of epsilon


@dataclass(frozen=True, kw_only=True)
class Fourier(Approximation):
    """Compute the CKCE with random Fourier features, for sums of linear and Gaussian kernels.

    Reads the samples once. Time O(n r (r + m)) and memory O(n m + r (r + m)), where r is 2 `n_features` for each
    Gaussian term plus m for a linear one. The error is estimated from the variation over frequencies.

    Parameters
    ----------
    n_features : int
        Number of random frequencies for each Gaussian term, at least 1. Each makes two features. Default: 100, as in
        the paper.
    seed : int, optional
        Seed of the frequencies, at least 0. None draws one, which the result reports.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1], [0.2, 0.6, 0.9]
    >>> result = kcalib.ckce.result(y, p, method=kcalib.methods.Fourier(n_features=500))
    >>> result.n_features, result.error_bound_kind, abs(result.value - kcalib.ckce(y, p)) < 0.01
    (500, 'estimated', True)
    """

    name: ClassVar[str] = "fourier"
    is_shared_out: ClassVar[bool] = True

    n_features: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("n_features", self.n_features, 1)

    def estimate(self, system: System) -> MethodResult:
        problem = system.packed.problem
        if problem.predicted is not None or problem.table is not None:
            raise ValueError(
                "method='fourier' needs points with a Euclidean distance, which these distributions do not have; use "
                "method='nystrom' or 'pivoted_cholesky', or an exact method"
            )
        points = problem.left.points if arrays.is_cuda(problem.left.points) else arrays.to_host(problem.left.points)
        points = arrays.namespace(points).asarray(points, dtype=np.float64)
        dimension = points.shape[1]
        features = FourierFeatures.draw(problem.kernel, dimension, self.n_features, self.drawn_seed, points)
        width = features.width(dimension)
        on_host = arrays.is_host(points)
        extra = gram_numbers(width + system.columns, system.matrix.threads) if on_host else 0
        memory = _check_memory_of_features(system, width, "n_features", extra)
        if on_host:
            gram = system.matrix.gram
            equations = features.equations(
                arrays.as_compact(points, np.float64), system.residuals.take(slice(None)), gram
            )
        else:
            equations = NormalEquations.from_blocks(
                (features(points[rows]), system.residuals.take(rows))
                for rows in row_blocks(system.n, width + system.columns, points)
            )
        value = linalg.squared_norm(equations.solution(system.shift))
        bound = _monte_carlo_error(features, equations, system.shift, value)
        kind = "estimated" if bound is not None else "none: a single frequency has no spread"
        return MethodResult(
            value,
            bound,
            kind,
            self.name,
            "asked for by name",
            memory,
            n_features=int(self.n_features),
            seed=self.drawn_seed,
        )


@dataclass(frozen=True, kw_only=True)
class Nystrom(Approximation):
    """Compute the CKCE with the kernel matrix projected on random samples, the landmarks (Nystrom method).

    Reads the samples once, in blocks. Time O(n r (r + m)) and memory O(r (r + m)) with r landmarks. The error bound
    comes from the trace of the remainder, and is mostly far too large.

    Parameters
    ----------
    n_landmarks : int, optional
        Number of landmarks, 1..n. Default: 200, or n if that is less.
    seed : int, optional
        Seed of the landmarks, at least 0. None draws one, which the result reports.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1], [0.2, 0.6, 0.9]
    >>> result = kcalib.ckce.result(y, p, method=kcalib.methods.Nystrom(n_landmarks=2))
    >>> result.rank, result.error_bound_kind, abs(result.value - kcalib.ckce(y, p)) < result.error_bound
    (2, 'trace', True)
    """

    name: ClassVar[str] = "nystrom"

    n_landmarks: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_landmarks is not None:
            check_integer("n_landmarks", self.n_landmarks, 1)

    def estimate(self, system: System) -> MethodResult:
        count = _checked_rank("n_landmarks", self.n_landmarks, system.n)
        memory = _check_memory_of_features(system, count, "n_landmarks")
        features = NystromFeatures(system.matrix, count, self.drawn_seed)
        feature_trace = [0.0]

        def blocks() -> Iterator[tuple[Array, Array]]:
            for rows in row_blocks(system.n, 2 * count + system.columns, system.matrix.reference):
                block = features(rows)
                feature_trace[0] += linalg.squared_norm(block)
                yield block, system.residuals.take(rows)

        equations = NormalEquations.from_blocks(blocks())
        diagonal = system.matrix.diagonal()
        xp = arrays.namespace(diagonal)
        trace, largest = float(xp.sum(diagonal)), float(xp.max(diagonal))
        rest_trace = trace - feature_trace[0]
        # A pivot is a difference of entries of K, and divides its column of F F^T.
        of_columns = arrays.to_host(xp.linalg.diagonal(equations.gram)) * (largest / arrays.to_host(features.pivots))
        rounding = ENTRY_ROUNDINGS * system.epsilon * (trace + float(np.sum(of_columns)))
        return _from_factor(self, system, equations, max(rest_trace, 0.0) + rounding, 0.0, len(features.pivots), memory)


@dataclass(frozen=True, kw_only=True)
class PivotedCholesky(Approximation):
    """Compute the CKCE with a partial Cholesky factor of the kernel matrix, with random pivots.

    Each pivot is drawn by the diagonal of the remainder. Time O(n rank (rank + m)), memory O(n (rank + m)): the factor
    is stored. The error bound comes from the trace of the remainder, and is mostly far too large.

    Parameters
    ----------
    rank : int, optional
        Number of columns of the factor, 1..n. Default: 200, or n if that is less.
    seed : int, optional
        Seed of the random pivots, at least 0. None draws one, which the result reports.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1], [0.2, 0.6, 0.9]
    >>> result = kcalib.ckce.result(y, p, method=kcalib.methods.PivotedCholesky(rank=2))
    >>> result.rank, result.error_bound_kind, abs(result.value - kcalib.ckce(y, p)) < result.error_bound
    (2, 'trace', True)
    """

    name: ClassVar[str] = "pivoted_cholesky"

    rank: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank is not None:
            check_integer("rank", self.rank, 1)

    def estimate(self, system: System) -> MethodResult:
        return self.estimate_until(system, 0.0)

    def estimate_until(self, system: System, left_out: float) -> MethodResult:
        """Return the value of a factor that stops when its remainder has this share of the trace of K, or less."""
        rank = _checked_rank("rank", self.rank, system.n)
        memory = system.check_memory(
            system.n * (rank + system.columns) + 3 * rank * (rank + system.columns),
            f"the factor of {system.n} samples and rank {rank}",
            "choose a smaller `rank`, or method='nystrom' or 'fourier', which store no factor",
        )
        factor = partial_cholesky(system.matrix, rank, tol=left_out, seed=self.drawn_seed)
        equations = NormalEquations.from_blocks([(factor.factor, system.residuals.take(slice(None)))])
        diagonal = system.matrix.diagonal()
        entry = ENTRY_ROUNDINGS * system.epsilon * float(arrays.namespace(diagonal).max(diagonal))
        rounding = rounding_bound(equations, system.shift, entry, _squared_pivots(factor))
        rest_trace = factor.trace_residual + math.sqrt(system.n) * entry
        return _from_factor(self, system, equations, rest_trace, rounding, factor.rank, memory)


APPROXIMATIONS: tuple[type[Approximation], ...] = (Fourier, Nystrom, PivotedCholesky)


def _monte_carlo_error(
    features: FourierFeatures, equations: NormalEquations, shift: float, value: float
) -> float | None:
    """Return the half width of a 95 % interval, including bias, by a jackknife over groups of frequencies."""
    if not features.frequencies:
        return 0.0  # features of the linear kernel are exact
    groups = min(JACKKNIFE_GROUPS, features.n_frequencies)
    if groups < 2:
        return None
    dimension = features.frequencies[0].shape[0]
    values = [
        linalg.squared_norm(equations.rescale(features.without_group(g, groups, dimension)).solution(shift))
        for g in range(groups)
    ]
    bias, error = jackknife(value, np.array(values))
    return abs(bias) + float(scipy.special.stdtrit(groups - 1, 0.975)) * error


def _from_factor(
    method: Nystrom | PivotedCholesky,
    system: System,
    equations: NormalEquations,
    trace: float,
    rounding: float,
    rank: int,
    memory: int,
) -> MethodResult:
    """Return the value of F F^T, and its error bound from the trace of K - F F^T and the rounding of the value."""
    solution = equations.solution(system.shift)
    bound: float | None = None
    kind = "none: the kernel is not known to be positive definite"
    if system.is_definite:
        bound = float(trace_bound(equations, solution, system.shift, trace) + rounding + system.rounding_of_target)
        kind = "trace"
    return MethodResult(
        linalg.squared_norm(solution),
        bound,
        kind,
        method.name,
        "asked for by name",
        memory,
        rank=rank,
        seed=method.drawn_seed,
    )


def trace_bound(equations: NormalEquations, solution: Array, shift: float, trace: float) -> float:
    """Return the largest difference between the values of K and F F^T for psd D = K - F F^T of trace `trace`.

    With Y = (F F^T + t D + s I)^{-1} E and U = s (F F^T + t D + s I)^{-1} Y the derivative of the value by t is
    <U, D U> - <Y - U, D (Y - U)>, between -||D|| ||Y||^2 and ||D|| ||Y||^2, and ||Y|| <= ||E|| / s: the first bound.
    With Z for F F^T the residual is -D Z, and the value of K differs by <(I - 2 K A^{-1}) Z, D Z> and a term between 0
    and ||D Z||^2 / (4 s): the second bound.
    """
    return trace * min(equations.squares / shift**2, _z_squares(equations, solution, shift) * (1 + trace / (4 * shift)))


def rounding_bound(equations: NormalEquations, shift: float, entry: float, pivots: np.ndarray) -> float:
    """Return the effect of rounding on the value of F F^T, for independent errors `entry` of the entries of K.

    Column F_c is divided by the root of a pivot, a difference of entries of K, so its errors H_c are entry /
    sqrt(pivot) each. They change the value by <(I - 2 K A^{-1}) Z, (F_c H_c^T + H_c F_c^T) Z> to first order, where
    H_c^T Z is about one error times ||Z||, and F^T Z is the solution.
    """
    # Pivots were larger than the rounding of an entry; the squares recovered from F may be smaller, even 0.
    pivots = np.maximum(pivots, entry / ENTRY_ROUNDINGS)
    solution = equations.solution(shift)
    z = math.sqrt(_z_squares(equations, solution, shift))
    smoothed = equations.gram @ equations.solution(shift, solution)  # F^T K A^{-1} Z
    sizes = 3 * linalg.column_norms(solution.T) + 2 * linalg.column_norms(smoothed.T)
    first = float(np.sum((sizes + entry / np.sqrt(pivots) * z) * (entry / np.sqrt(pivots)))) * z
    return first + 4 * np.finfo(np.float64).eps * linalg.squared_norm(solution)


def _z_squares(equations: NormalEquations, solution: Array, shift: float) -> float:
    """Return ||Z||_F^2 for Z = (F F^T + shift I)^{-1} E."""
    products = float(arrays.namespace(solution).sum(equations.cross * solution))
    squares = equations.squares - products - shift * linalg.squared_norm(solution)
    return max(squares, 2.0**-50 * equations.squares) / shift**2


def _squared_pivots(low_rank: LowRank) -> np.ndarray:
    """Return the pivots: the squares of the numbers that the columns were divided by."""
    at = (arrays.like(i, low_rank.factor) for i in (low_rank.pivots, np.arange(low_rank.rank)))
    return arrays.to_host(low_rank.factor[tuple(at)]) ** 2


def _checked_rank(name: str, rank: int | None, n: int) -> int:
    if rank is None:
        return min(AUTOMATIC_RANK, n)
    return check_integer(name, rank, 1, n, ": the samples are the landmarks and pivots")


def _check_memory_of_features(system: System, width: int, option: str, extra: int = 0) -> int:
    """Check the memory of the Gram matrix, its copies, a block of rows and `extra` numbers; return the bytes."""
    block = next(row_blocks(system.n, width, system.matrix.reference))
    return system.check_memory(
        extra + 3 * width * (width + system.columns) + 2 * (block.stop - block.start) * (width + system.columns),
        f"{width} features of {system.columns} residuals",
        f"choose a smaller `{option}`",
    )
