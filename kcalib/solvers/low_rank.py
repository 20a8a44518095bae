r"""Low-rank features of a kernel: K ~ F F^T, and what follows from F^T F alone.

Features come in blocks of rows and are summed up as they pass (`NormalEquations`), so that F is never
stored: `FourierFeatures` are random, for Gaussian and linear kernels; `NystromFeatures` come from a random
subset of the samples. Called by `kcalib.estimators.ckce`; a stored factor, such as that of the pivoted Cholesky
decomposition, is a single block.

Features and sums are where the samples are, on the host or an NVIDIA GPU. What is drawn, frequencies and landmarks, is
drawn on the host, and so the same for every library.
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

BLOCK_BYTES = 2**20  # of a block of rows: stays in the second-level cache
DEVICE_BLOCK_BYTES = 2**27  # on a GPU: keeps it busy
SMALLEST_SHIFT = 1e-10  # of the trace of F^T F: below, its rounding shows in the solution
SMALLEST_PIVOT = 1e-12  # of the largest entry of the landmarks' matrix: below, pivots are mostly rounding
JACKKNIFE_GROUPS = 10  # of the jackknife over frequencies
Gram = Callable[[FeatureMap, np.ndarray, np.ndarray], np.ndarray]  # `_pairs.feature_sums.gram`, or the same of tiles


@dataclass(frozen=True)
class NormalEquations:
    """Sums over the samples of features F, shape (n, r), and right sides B, shape (n, c)."""

    gram: Array  # F^T F, shape (r, r)
    cross: Array  # F^T B, shape (r, c)
    squares: float  # ||B||_F^2

    @classmethod
    def summed(cls, blocks: Iterable[tuple[Array, Array]]) -> NormalEquations:
        """From blocks of rows (F, B), which are dropped as soon as they are added up."""
        gram: Any = 0.0
        cross: Any = 0.0
        squares = 0.0
        for features, right in blocks:
            gram = gram + linalg.matmul(features.T, features)
            cross = cross + linalg.matmul(features.T, right)
            squares += linalg.squared_norm(right)
        return cls(gram, cross, squares)

    @classmethod
    def of_gram(cls, gram: np.ndarray, columns: int) -> NormalEquations:
        """From the Gram matrix of (F, B), B with so many columns."""
        width = len(gram) - columns
        return cls(gram[:width, :width], gram[:width, width:], float(np.trace(gram[width:, width:])))

    def solution(self, shift: float) -> Array:
        """(F^T F + shift I)^{-1} F^T B = F^T (F F^T + shift I)^{-1} B, shape (r, c).

        Raises
        ------
        ValueError
            If `shift` is lost in the rounding of F^T F.
        """
        return self.solved(self.cross, shift)

    def solved(self, right_sides: Array, shift: float) -> Array:
        """(F^T F + shift I)^{-1} right_sides, of r rows; raises as `solution` does."""
        xp = arrays.namespace(self.gram)
        trace = float(xp.trace(self.gram))
        if shift < SMALLEST_SHIFT * trace:
            raise ValueError(
                f"`regularization` times the number of samples is {shift:.3g}, below {SMALLEST_SHIFT:g} of the trace "
                f"{trace:.3g} of the features' Gram matrix, whose rounding would show; use a larger one, or "
                "method='cholesky'"
            )
        shifted = self.gram + shift * xp.eye(len(self.gram))
        return linalg.cholesky_solve(linalg.cholesky(shifted), right_sides)

    def scaled(self, scales: np.ndarray) -> NormalEquations:
        """The sums of the features times `scales`, which are on the host; those at scale 0 are left out."""
        kept = np.flatnonzero(scales)
        factors, kept = arrays.like(scales[kept], self.gram), arrays.like(kept, self.gram)
        gram = self.gram[kept[:, None], kept] * (factors[:, None] * factors)
        return NormalEquations(gram, self.cross[kept] * factors[:, None], self.squares)


def row_blocks(n: int, width: int, array: Array | None = None) -> Iterator[slice]:
    """Slices of 0..n-1, each of a megabyte for `width` numbers in a row; larger ones beside an `array` on a GPU."""
    size = BLOCK_BYTES if array is None or arrays.is_host(array) else DEVICE_BLOCK_BYTES
    step = max(1, size // (8 * width))
    for begin in range(0, n, step):
        yield slice(begin, min(n, begin + step))


@dataclass(frozen=True)
class FourierFeatures:
    """Features of sums of linear and Gaussian kernels (Euclidean), the Gaussian ones random.

    The kernel c exp(-a |x - x'|^2) is the mean of c cos(w.(x - x')) over w ~ N(0, 2 a I), and of D such w
    the inner product of sqrt(c / D) [cos(w.x), sin(w.x)].
    """

    linear: float | None  # the root of the coefficient of <x, x'>; None without a linear term
    frequencies: tuple[Array, ...]  # one of shape (d, D) for each Gaussian term
    amplitudes: tuple[float, ...]  # sqrt(c) of each

    @classmethod
    def drawn(
        cls, terms: tuple[Term, ...], dimension: int, n_frequencies: int, seed: int, points: Array | None = None
    ) -> FourierFeatures:
        """Frequencies by Philox, the same for every array library; beside the `points` that it is for.

        Raises
        ------
        ValueError
            If a term is neither linear nor Gaussian with the Euclidean metric.
        """
        random = np.random.Generator(np.random.Philox(seed))
        linear = 0.0
        frequencies, amplitudes = [], []
        for term in terms:
            kinds = {(f.profile, f.metric) for f in term.factors}
            if kinds == {("gaussian", "euclidean")}:
                scale = sum(f.scale for f in term.factors)
                normal = random.standard_normal((dimension, n_frequencies))
                frequency = np.sqrt(2 * scale) * normal
                frequencies.append(frequency if points is None else arrays.beside(frequency, points))
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
        """Features of a point in so many dimensions."""
        return (dimension if self.linear else 0) + sum(2 * w.shape[1] for w in self.frequencies)

    def __call__(self, points: Array) -> Array:
        """Features of each point, shape (n, width)."""
        xp, (n, dimension) = arrays.namespace(points), points.shape
        out = xp.empty((n, self.width(dimension)))
        begin = 0
        for w, amplitude in zip(self.frequencies, self.amplitudes, strict=True):
            middle, end = begin + w.shape[1], begin + 2 * w.shape[1]
            angles = linalg.matmul(points, arrays.beside(w, points))
            _cos_and_sin(angles, amplitude / np.sqrt(w.shape[1]), out[:, begin:middle], out[:, middle:end])
            begin = end
        if self.linear:
            xp.multiply(points, self.linear, out=out[:, begin:])
        return out

    def equations(self, points: np.ndarray, right: np.ndarray, gram: Gram) -> NormalEquations:
        """Those of points in host memory, which `gram` adds up."""
        frequencies = np.concatenate([np.empty((0, points.shape[1])), *(w.T for w in self.frequencies)])
        count = len(frequencies)
        sizes = np.repeat(self.amplitudes, self.n_frequencies) / math.sqrt(max(1, self.n_frequencies))
        none = np.empty((0, count, points.shape[1])), np.empty((0, count))
        columns = right if self.linear is None else np.concatenate([self.linear * points, right], axis=1)
        drawn = FeatureMap(frequencies, sizes, *none, np.zeros(count, dtype=np.int64))
        return NormalEquations.of_gram(gram(drawn, points, arrays.compact(columns, np.float64)), right.shape[1])

    def without_group(self, group: int, n_groups: int, dimension: int) -> np.ndarray:
        """Scales of the features that leave out every `n_groups`-th frequency; the others make up for them."""
        kept = np.arange(self.n_frequencies) % n_groups != group
        scales = np.where(kept, np.sqrt(self.n_frequencies / max(1, kept.sum())), 0.0)
        linear = [np.ones(dimension)] if self.linear else []
        return np.concatenate([scales] * (2 * len(self.frequencies)) + linear)


def _cos_and_sin(angles: Array, amplitude: float, cos: Array, sin: Array) -> None:
    """`amplitude` times the cosine and the sine of `angles`, which are overwritten.

    Both are rational in t, the tangent of half the angle, which NumPy computes in a sixth of the time of one of them:
    sin = 2 t / (1 + t^2), cos = 2 / (1 + t^2) - 1. An error of a few epsilon, relative to 1.
    """
    xp = arrays.namespace(angles)
    angles *= 0.5
    t = xp.tan(angles, out=angles)
    xp.multiply(t, t, out=cos)
    cos += 1
    xp.divide(2 * amplitude, cos, out=cos)
    xp.multiply(t, cos, out=sin)
    cos -= amplitude


def jackknife(estimate: float, without: np.ndarray) -> tuple[float, float]:
    """Bias and standard error of an estimate from those without each of G groups of the draws it rests on."""
    count = len(without)
    mean = float(np.mean(without))
    squares = float(np.sum((without - mean) ** 2))
    return (count - 1) * (mean - estimate), float(np.sqrt((count - 1) / count * squares))


class NystromFeatures:
    """Features K_iS L^{-T} for landmarks S, samples drawn without replacement, with L L^T = K_SS.

    Then F F^T = K_nS K_SS^{-1} K_Sn. A pivoted Cholesky factorisation of K_SS, on the host, leaves out landmarks that
    the others explain to rounding.
    """

    def __init__(self, operator: Any, n_landmarks: int, seed: int) -> None:
        random = np.random.Generator(np.random.Philox(seed))
        drawn = np.sort(random.choice(operator.n, n_landmarks, replace=False))
        tile = operator.tile(drawn, drawn)
        matrix = arrays.to_host(tile)
        smallest = SMALLEST_PIVOT * float(np.max(np.diagonal(matrix)))
        with one_blas_thread():
            factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(matrix, tol=smallest, lower=1)
        self.landmarks = drawn[pivots[:rank] - 1]
        self.pivots = arrays.beside(np.diagonal(factor)[:rank] ** 2, tile)
        self._operator = operator
        self._factor = arrays.beside(factor[:rank, :rank], tile)

    @property
    def rank(self) -> int:
        return len(self.landmarks)

    def __call__(self, rows: slice) -> Array:
        """Features of these samples, shape (rows, rank)."""
        entries = self._operator.tile(rows, self.landmarks)
        return linalg.solve_triangular(self._factor, entries.T).T
