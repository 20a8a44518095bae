r"""Low-rank features F of a kernel, K ~ F F^T, and solutions of systems from F^T F.

Blocks of rows of F are added up (`NormalEquations`) and not stored. `FourierFeatures` are random, for Gaussian and
linear kernels; `NystromFeatures` come from a random subset of the samples. A stored factor, such as that of the pivoted
Cholesky decomposition, is a single block.

Features and sums are on the device of the samples, the host or an NVIDIA GPU. Frequencies and landmarks are drawn on
the host, so that all array libraries have the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.threads import one_blas_thread
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.problem import Term

BLOCK_BYTES = 2**20  # a block of rows fits in the second-level cache
DEVICE_BLOCK_BYTES = 2**27  # a larger block keeps a GPU busy
SMALLEST_SHIFT = 1e-10  # relative to the trace of F^T F; rounding errors dominate for smaller shifts
SMALLEST_PIVOT = 1e-12  # relative to the largest entry of the landmarks' matrix; smaller pivots are rounding errors
JACKKNIFE_GROUPS = 10  # groups of frequencies
Gram = Callable[[FeatureMap, np.ndarray, np.ndarray], np.ndarray]  # `_pairs.feature_sums.gram`, or its distributed form


@dataclass(frozen=True)
class NormalEquations:
    """Sums over the samples of features F, shape (n, r), and right sides B, shape (n, c)."""

    gram: Array  # F^T F, shape (r, r)
    cross: Array  # F^T B, shape (r, c)
    squares: float  # ||B||_F^2

    @classmethod
    def from_blocks(cls, blocks: Iterable[tuple[Array, Array]]) -> NormalEquations:
        """Add up blocks of rows (F, B)."""
        gram: Any = 0.0
        cross: Any = 0.0
        squares = 0.0
        for features, right in blocks:
            gram = gram + linalg.matmul(features.T, features)
            cross = cross + linalg.matmul(features.T, right)
            squares += linalg.squared_norm(right)
        return cls(gram, cross, squares)

    @classmethod
    def from_gram(cls, gram: np.ndarray, columns: int) -> NormalEquations:
        """Split the Gram matrix of (F, B), where B has this number of `columns`."""
        width = len(gram) - columns
        return cls(gram[:width, :width], gram[:width, width:], float(np.trace(gram[width:, width:])))

    def solution(self, shift: float, right_sides: Array | None = None) -> Array:
        """Return (F^T F + shift I)^{-1} right_sides, shape (r, c).

        By default for F^T B, which is F^T (F F^T + shift I)^{-1} B.
        """
        xp = arrays.namespace(self.gram)
        trace = float(xp.trace(self.gram))
        if shift < SMALLEST_SHIFT * trace:
            raise ValueError(
                f"`regularization` times the number of samples is {shift:.3g}, below {SMALLEST_SHIFT:g} of the trace "
                f"{trace:.3g} of the features' Gram matrix, whose rounding would show; use a larger one, or "
                "method='cholesky'"
            )
        shifted = self.gram + shift * xp.eye(len(self.gram))
        return linalg.cholesky_solve(linalg.cholesky(shifted), self.cross if right_sides is None else right_sides)

    def rescale(self, scales: np.ndarray) -> NormalEquations:
        """Return the sums for features times `scales`, on the host, without features of scale 0."""
        columns = np.flatnonzero(scales)
        factors, columns = arrays.like(scales[columns], self.gram), arrays.like(columns, self.gram)
        gram = self.gram[columns[:, None], columns] * (factors[:, None] * factors)
        return NormalEquations(gram, self.cross[columns] * factors[:, None], self.squares)


def row_blocks(n: int, width: int, array: Array | None = None) -> Iterator[slice]:
    """Yield slices of n rows of `width` numbers, of a megabyte each, or larger if `array` is on a GPU."""
    size = BLOCK_BYTES if array is None or arrays.is_host(array) else DEVICE_BLOCK_BYTES
    step = max(1, size // (8 * width))
    for begin in range(0, n, step):
        yield slice(begin, min(n, begin + step))


@dataclass(frozen=True)
class FourierFeatures:
    """Features of sums of linear and Gaussian kernels (Euclidean), random for Gaussian kernels.

    The kernel c exp(-a |x - x'|^2) is the mean of c cos(w.(x - x')) over w ~ N(0, 2 a I). The inner product of
    sqrt(c / D) [cos(w.x), sin(w.x)] is the mean over D such w.
    """

    linear: float | None  # the root of the coefficient of <x, x'>, or None
    frequencies: tuple[Array, ...]  # one of shape (d, D) for each Gaussian term
    amplitudes: tuple[float, ...]  # sqrt(c) of each

    @classmethod
    def draw(
        cls, terms: tuple[Term, ...], dimension: int, n_frequencies: int, seed: int, points: Array | None = None
    ) -> FourierFeatures:
        """Draw frequencies by Philox, equal for every array library, on the device of `points`."""
        random = np.random.Generator(np.random.Philox(seed))
        linear = 0.0
        frequencies, amplitudes = [], []
        for term in terms:
            kinds = {(f.profile, f.metric) for f in term.factors}
            if kinds == {("gaussian", "euclidean")}:
                scale = sum(f.scale for f in term.factors)
                normal = random.standard_normal((dimension, n_frequencies))
                frequency = np.sqrt(2 * scale) * normal
                frequencies.append(frequency if points is None else arrays.asarray_like(frequency, points))
                amplitudes.append(float(np.sqrt(term.coefficient)))
            elif kinds == {("identity", "dot")} and len(term.factors) == 1:
                linear += term.coefficient
            else:
                raise ValueError(
                    "`kernel` has a term that is neither linear nor Gaussian with the Euclidean metric, the only ones "
                    "with Fourier features here; use method='nystrom' or 'pivoted_cholesky', or an exact method"
                )
        return cls(float(np.sqrt(linear)) or None, tuple(frequencies), tuple(amplitudes))

    @property
    def n_frequencies(self) -> int:
        return int(self.frequencies[0].shape[1]) if self.frequencies else 0

    def width(self, dimension: int) -> int:
        """Return the number of features of a point."""
        return (dimension if self.linear else 0) + sum(2 * w.shape[1] for w in self.frequencies)

    def __call__(self, points: Array) -> Array:
        """Return the features of each point, shape (n, width)."""
        xp, (n, dimension) = arrays.namespace(points), points.shape
        out = xp.empty((n, self.width(dimension)))
        begin = 0
        for w, amplitude in zip(self.frequencies, self.amplitudes, strict=True):
            middle, end = begin + w.shape[1], begin + 2 * w.shape[1]
            angles = linalg.matmul(points, arrays.asarray_like(w, points))
            out[:, begin:middle], out[:, middle:end] = xp.cos(angles), xp.sin(angles)
            out[:, begin:end] *= amplitude / np.sqrt(w.shape[1])
            begin = end
        if self.linear:
            xp.multiply(points, self.linear, out=out[:, begin:])
        return out

    def equations(self, points: np.ndarray, right: np.ndarray, gram: Gram) -> NormalEquations:
        """Return the normal equations of points in host memory, added up by `gram`."""
        frequencies = np.concatenate([np.empty((0, points.shape[1])), *(w.T for w in self.frequencies)])
        count = len(frequencies)
        sizes = np.repeat(self.amplitudes, self.n_frequencies) / math.sqrt(max(1, self.n_frequencies))
        no_factors = np.empty((0, count, points.shape[1])), np.empty((0, count))
        columns = right if self.linear is None else np.concatenate([self.linear * points, right], axis=1)
        feature_map = FeatureMap(frequencies, sizes, *no_factors, np.zeros(count, dtype=np.int64))
        return NormalEquations.from_gram(
            gram(feature_map, points, arrays.as_compact(columns, np.float64)), right.shape[1]
        )

    def without_group(self, group: int, n_groups: int, dimension: int) -> np.ndarray:
        """Return scales of features that leave out every `n_groups`-th frequency and reweight the others."""
        is_kept = np.arange(self.n_frequencies) % n_groups != group
        scales = np.where(is_kept, np.sqrt(self.n_frequencies / max(1, is_kept.sum())), 0.0)
        linear = [np.ones(dimension)] if self.linear else []
        return np.concatenate([scales] * (2 * len(self.frequencies)) + linear)


def jackknife(estimate: float, without: np.ndarray) -> tuple[float, float]:
    """Return bias and standard error of an estimate, from estimates `without` each of G groups of draws."""
    count = len(without)
    mean = float(np.mean(without))
    squares = float(np.sum((without - mean) ** 2))
    return (count - 1) * (mean - estimate), float(np.sqrt((count - 1) / count * squares))


class NystromFeatures:
    """Features K_iS L^{-T} for landmarks S, samples drawn without replacement, with L L^T = K_SS."""

    def __init__(self, operator: Any, n_landmarks: int, seed: int) -> None:
        random = np.random.Generator(np.random.Philox(seed))
        candidates = np.sort(random.choice(operator.n, n_landmarks, replace=False))
        tile = operator.tile(candidates, candidates)
        matrix = arrays.to_host(tile)
        smallest = SMALLEST_PIVOT * float(np.max(np.diagonal(matrix)))
        with one_blas_thread():
            factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(matrix, tol=smallest, lower=1)
        self.landmarks = candidates[pivots[:rank] - 1]
        self.pivots = arrays.asarray_like(np.diagonal(factor)[:rank] ** 2, tile)
        self._operator = operator
        self._factor = arrays.asarray_like(factor[:rank, :rank], tile)

    @property
    def rank(self) -> int:
        return len(self.landmarks)

    def __call__(self, rows: slice) -> Array:
        """Return the features of samples, shape (rows, rank)."""
        entries = self._operator.tile(rows, self.landmarks)
        return linalg.solve_triangular(self._factor, entries.T).T
