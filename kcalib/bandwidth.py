"""Compute default bandwidths by the median heuristic: the median of pairwise distances.

Distances are the entries of a pair problem whose kernel is the distance. They are never stored together: sweeps count
the distances below a few thresholds, until the few between two thresholds can be collected and sorted. For points on a
line this takes O(n log n) (src/cpu/line/line_distances.cpp; for CuPy arrays src/cuda/places.cu).
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import SEED, check_choice, check_integer, check_seed
from kcalib._backend.threads import run_options
from kcalib._input.checks import check_points
from kcalib._pairs.backends.base import Backend
from kcalib._pairs.backends.sorted_cuda import SortedPlaces
from kcalib._pairs.backends.sorted_line import ON_THE_LINE, off_line
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.problem import Factor, PairProblem, Side, Term
from kcalib._pairs.reductions import Counts, DenseRectangle, EntriesInRange, sweep_one
from kcalib.kernels import VECTOR_METRICS
from kcalib.report.summary import Summarized

__all__ = ["MedianDistance", "median_distance"]

MAX_SAMPLES = 2000


@dataclass(frozen=True)
class MedianDistance(Summarized):
    """The median of pairwise distances, and how it was computed."""

    value: float  # 0 for identical points or a single one, for which users get an error
    metric: str
    n_samples: int  #: samples whose pairwise distances were used
    exact: bool  #: whether these are all samples
    seed: int | None  #: of the subsample; None if exact
    of_positive: bool = False  #: whether pairs at distance 0 are left out, because the median of all is 0
    diagonal: bool = False  #: whether the distance 0 of each sample from itself is counted


@on_their_gpu
def median_distance(
    y_pred: Any,
    metric: str = "euclidean",
    *,
    diagonal: bool = False,
    max_samples: int | None = MAX_SAMPLES,
    seed: int | None = SEED,
    threads: int | None = None,
) -> MedianDistance:
    """Return the median of the distances between predictions, the default bandwidth of kernels.

    The median is over all pairs i < j. If it is 0, it is the median of the positive distances, and the result says so.
    With more than `max_samples` predictions it is taken over a random subset of this size, except for binary problems
    (and single columns) in host memory or on an NVIDIA GPU, where all pairs take time O(n log n).

    Parameters
    ----------
    y_pred : array_like, shape (n, m)
        Predicted probabilities, or any points.
    metric : {"euclidean", "cityblock", "total_variation"}
        Distance.
    diagonal : bool
        Whether to take the median of all n^2 entries of the distance matrix, including its zero diagonal, as Widmann et
        al. (2019) do. This is slightly smaller. `max_samples` then applies to binary problems, too.
    max_samples : int, optional
        Size of the subset, at least 2. None: the exact median of all pairs, in time O(n^2 m), about as long as one or
        two unbiased estimates of the SKCE take, and memory O(n m).
    seed : int, optional
        Seed of the subset, at least 0. None draws one, which the result reports.
    threads : int, optional
        Number of threads, for arrays in host memory.

    Returns
    -------
    MedianDistance
        Result with fields `value`, `metric`, `n_samples`, `exact`, `seed`, `of_positive` and `diagonal`.

    Raises
    ------
    TypeError, ValueError
        If `y_pred` does not hold finite numbers, has fewer than two rows, or only identical rows; if `metric` is
        unknown; if another argument has a wrong type; if `threads` is given for arrays on a device.

    Examples
    --------
    >>> from kcalib.bandwidth import median_distance
    >>> median_distance([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], "total_variation").value
    0.5
    """
    check_choice("metric", metric, VECTOR_METRICS)
    if max_samples is not None:
        max_samples = check_integer("max_samples", max_samples, 2)
    if not isinstance(diagonal, (bool, np.bool_)):
        raise TypeError(f"`diagonal` is {diagonal!r}, expected True or False")
    points = check_points(arrays.as_array(y_pred, "y_pred"), "y_pred")
    median = median_of_points(
        points, metric, diagonal=bool(diagonal), max_samples=max_samples, seed=check_seed(seed), threads=threads
    )
    if median.value == 0:
        raise NoLengthScaleError(median.n_samples)
    return median


class NoLengthScaleError(ValueError):
    """The error for `n` predictions without a positive distance; `fault` is its message without the remedy.

    `of` says whose distances are meant: "classes", "predictions" (distributions) or "targets" (draws from these).
    """

    def __init__(self, n: int, remedy: str | None = None, of: str = "classes"):
        super().__init__(n, remedy, of)
        self.n, self.of = n, of
        self.remedy = remedy or "pass a kernel with bandwidth=, such as Exponential(bandwidth=1.0)"
        self.fault = "`y_pred` has identical rows only, so the median heuristic finds no length scale"
        if of == "targets":
            self.remedy = remedy or "pass target_kernel=kcalib.kernels.Gaussian(bandwidth=1.0) to kcalib.skce or a test"
            self.fault = "draws from `y_pred` are all the same, so the median heuristic finds no scale of targets"
        if n < 2:
            self.fault = f"`y_pred` has {n} row{'' if n else 's'}, expected at least 2 for the median heuristic"

    def __str__(self) -> str:
        return f"{self.fault}; {self.remedy}"


def median_of_points(
    points: Array,
    metric: str,
    *,
    diagonal: bool = False,
    max_samples: int | None = MAX_SAMPLES,
    seed: int = 0,
    threads: int | None = None,
) -> MedianDistance:
    """Return `median_distance` of checked points; its value is 0 if no distance is positive."""
    n = int(points.shape[0])
    if n < 2:
        return MedianDistance(0.0, metric, n, True, None, diagonal=diagonal)
    arrays.check_no_threads(points, threads)
    if not diagonal and _is_on_a_line(points):
        median, of_positive = _median_on_a_line(points, metric, threads)
        return MedianDistance(median, metric, n, True, None, of_positive)
    is_subset = max_samples is not None and n > max_samples
    if is_subset:
        rows = np.sort(np.random.default_rng(seed).choice(n, max_samples, replace=False))
        points = arrays.namespace(points).take(points, arrays.like(rows, points), axis=0)
        n = len(rows)
    median, of_positive = PairDistances.between(points, metric, threads).median(n if diagonal else 0)
    return MedianDistance(median, metric, n, not is_subset, seed if is_subset else None, of_positive, diagonal)


def median_of_entries(problem: PairProblem, name: str) -> MedianDistance:
    """Return the median of the entries H_ij, i < j, of a symmetric problem whose kernel is the distance `name`."""
    n = int(problem.left.points.shape[0])
    if n < 2:
        return MedianDistance(0.0, name, n, True, None)
    is_subset = n > MAX_SAMPLES
    rows = np.arange(n)
    if is_subset:
        rows = np.sort(np.random.default_rng(0).choice(n, MAX_SAMPLES, replace=False))
    rows = arrays.like(rows, problem.left.points)
    distances = _above_diagonal(sweep_one(backend_for(problem), DenseRectangle(rows, rows)))
    if arrays.is_cuda(distances):
        value = _middle(arrays.namespace(distances).sort(distances))
    else:
        distances = np.asarray(arrays.to_host(distances), dtype=np.float64)
        value = float(np.median(distances))
    positive = distances[distances > 0] if value == 0 else distances[:0]
    of_positive = positive.size > 0
    if of_positive:
        value = _middle(arrays.namespace(positive).sort(positive))
    return MedianDistance(value, name, int(rows.shape[0]), not is_subset, 0 if is_subset else None, of_positive)


def _above_diagonal(entries: Array) -> Array:
    """Return the entries H_ij, i < j, of a square matrix; CuPy arrays stay on their device and become float64."""
    if not arrays.is_cuda(entries):
        return arrays.to_host(entries)[np.triu_indices(entries.shape[0], 1)]
    xp = arrays.namespace(entries)
    number = xp.arange(len(entries))
    return xp.astype(entries[number[:, None] < number[None, :]], xp.float64, copy=False)


def _middle(ascending: Array) -> float:
    """Return the median of sorted numbers."""
    n = len(ascending)
    return 0.5 * (float(ascending[(n - 1) // 2]) + float(ascending[n // 2]))


def _is_on_a_line(points: Array) -> bool:
    if not (arrays.is_host(points) or arrays.is_cuda(points)) or points.shape[1] > 2:
        return False
    return points.shape[1] == 1 or off_line(points) <= ON_THE_LINE


def _median_on_a_line(points: Array, metric: str, threads: int | None) -> tuple[float, bool]:
    """Return the median, and whether it is that of the positive distances only."""
    places = HostPlaces(points[:, -1], threads) if arrays.is_host(points) else SortedPlaces.of(points[:, -1])
    median, of_positive = LineDistances(places).median()
    if points.shape[1] == 1:
        return median / 2 if metric == "total_variation" else median, of_positive
    return median * {"euclidean": math.sqrt(2), "cityblock": 2.0, "total_variation": 1.0}[metric], of_positive


FAR = np.finfo(np.float64).max / 4
COLLECTED = 2**21  # distances that are in memory at once, plus 32 for each point
LINE_COLLECTED = 2**20  # the same on a line on a GPU, plus 2 for each point
HOST_LINE_COLLECTED = 2**15  # the same on a line in host memory, plus 4 for each point
DISTANCES = {  # for each metric, the distance as a kernel
    "euclidean": (Term(1.0, (Factor("identity", "euclidean"),)),),
    "cityblock": (Term(1.0, (Factor("identity", "cityblock"),)),),
    "total_variation": (Term(0.5, (Factor("identity", "cityblock"),)),),
}
SAMPLE = 1448  # points of the subsample that provides the first thresholds
FEW_POINTS = 256  # the same if all distances can be collected
HOST_LINE_SAMPLE = 256  # the same on a line in host memory
# The first thresholds are quantiles of the subsample at these offsets from the wanted one.
OFFSETS = np.array([-0.12, -0.03, -0.008, -0.002, 0.002, 0.008, 0.03, 0.12])
# The next thresholds are at these offsets from the expected place, relative to the range between two thresholds.
NEAR = np.array([-1 / 64, -1 / 1024, 1 / 1024, 1 / 64])


class Distances(ABC):
    """The distances of all pairs i < j of n points, by rank."""

    n: int
    highest: float  # upper bound of all distances; used if they are too many to be collected
    room: int  # number of distances that may be collected
    sample_size = SAMPLE  # points in a subsample

    @abstractmethod
    def counts(self, thresholds: np.ndarray) -> np.ndarray:
        """Return how many distances are below each threshold."""

    @abstractmethod
    def collect(self, low: float, high: float, count: int) -> Array:
        """Return the `count` distances in [low, high); sorted unless they are a NumPy array."""

    @abstractmethod
    def subsample(self) -> Distances:
        """Return the distances between `sample_size` of the points."""

    @property
    def pairs(self) -> int:
        return self.n * (self.n - 1) // 2

    def median(self, n_zeros: int = 0) -> tuple[float, bool]:
        """Return the median, and whether it is that of the positive distances, because the median of all is 0.

        With `n_zeros` it is the median of the matrix that has these zeros on its diagonal, and each distance twice.
        """
        value = self.middle(0) if n_zeros == 0 else self._middle_with(n_zeros)
        if value > 0:
            return value, False
        zeros = int(self.counts(np.array([np.nextafter(0.0, 1.0)]))[0])
        return (0.0, False) if zeros == self.pairs else (self.middle(zeros), True)

    def middle(self, first: int) -> float:
        """Return the median of the distances of rank `first` and above."""
        return self._mean((first + self.pairs - 1) // 2, (first + self.pairs) // 2)

    def _middle_with(self, n_zeros: int) -> float:
        count = n_zeros + 2 * self.pairs
        low, high = ((rank - n_zeros) // 2 for rank in ((count - 1) // 2, count // 2))
        if low < 0:  # with two samples one middle value is on the diagonal
            return 0.5 * self._mean(high, high)
        return self._mean(low, high)

    def _mean(self, low: int, high: int) -> float:
        """Return the mean of the distances of two ranks, which are equal or adjacent."""
        start, values = self._around(low)
        if high - start < len(values):
            return 0.5 * sum(_pick_ranks(values, low - start, high - start))
        lower = _pick_ranks(values, low - start)
        start, values = self._around(high)
        return 0.5 * sum(lower + _pick_ranks(values, high - start))

    def _around(self, rank: int) -> tuple[int, Array]:
        """Return the lowest rank and the distances, in the order of `collect`, of a range of ranks around `rank`."""
        low, high, below_low, below_high = 0.0, self.highest, 0, self.pairs
        guesses = self._guesses(rank) if self.pairs > self.room and self.n > self.sample_size else np.empty(0)
        is_smooth = guesses.size > 0  # whether distances between thresholds are roughly uniform
        while below_high - below_low > self.room:
            thresholds = guesses[(guesses > low) & (guesses < high)]
            guesses, before = np.empty(0), below_high - below_low
            if thresholds.size == 0 and is_smooth:
                expected = low + (high - low) * ((rank - below_low) / before + NEAR)
                thresholds = expected[(expected > low) & (expected < high)]
            if thresholds.size == 0:
                thresholds = _space(low, high, len(OFFSETS))
            if thresholds.size == 0:  # adjacent floats: all distances equal `low`
                return rank, np.full(min(2, below_high - rank), low)
            for threshold, count in zip(thresholds, self.counts(thresholds).tolist(), strict=True):
                if count <= rank:
                    low, below_low = float(threshold), count
                else:
                    high, below_high = float(threshold), count
                    break
            is_smooth &= 2 * (below_high - below_low) <= before
        return below_low, self.collect(low, high, below_high - below_low)

    def _guesses(self, rank: int) -> np.ndarray:
        """Return guesses of the distance of rank `rank`: quantiles of the distances in a subsample."""
        sample = self.subsample()
        fraction = (rank + 0.5) / self.pairs
        start, values = sample._around(int(fraction * sample.pairs))
        values = np.sort(values) if arrays.is_host(values) else values
        offsets = OFFSETS if self.sample_size == SAMPLE else OFFSETS[2:6]  # subsamples on a line are regular
        ranks = (fraction + math.sqrt(SAMPLE / sample.n) * offsets) * sample.pairs - start
        ranks = np.clip(ranks.astype(np.int64), 0, len(values) - 1)
        return np.unique(arrays.to_host(values[arrays.like(ranks, values)]))


class PairDistances(Distances):
    """The entries of a pair problem whose kernel is the bare distance."""

    def __init__(self, backend: Backend, n: int, highest: float) -> None:
        self.backend, self.n, self.highest = backend, n, highest
        self._on_device = arrays.is_cuda(backend.problem.left.points)
        self.room = COLLECTED + 32 * n
        if self._on_device:  # all or none, sorted on the device
            self.room = COLLECTED if self.pairs <= COLLECTED else 0

    @classmethod
    def between(cls, points: Array, metric: str, threads: int | None) -> PairDistances:
        xp = arrays.namespace(points)
        if arrays.is_host(points):
            points, features = np.ascontiguousarray(points), np.ones((len(points), 1), points.dtype)
        else:
            features = xp.ones_like(points[:, :1])
        backend = backend_for(PairProblem(Side(points, features), None, DISTANCES[metric]), threads=threads)
        distances = cls(backend, int(points.shape[0]), math.inf)
        if distances.pairs > distances.room:  # otherwise all are collected at once
            widths = xp.max(points, axis=0) - xp.min(points, axis=0)
            distances.highest = max(2.0 * float(xp.sum(widths)), sys.float_info.min)
        return distances

    def _around(self, rank: int) -> tuple[int, Array]:
        # If quantiles of few points are right within 6 %, only an eighth of all distances is left to partition.
        if not self._on_device and self.n > 4 * FEW_POINTS and self.pairs <= self.room:
            sample = np.sort(self.subsample(FEW_POINTS).collect(0.0, math.inf, math.comb(FEW_POINTS, 2)))
            ends = np.clip([rank / self.pairs - 0.06, rank / self.pairs + 0.06], 0, 1) * (len(sample) - 1)
            low, high = sample[ends.astype(np.int64)].tolist()
            distances = sweep_one(self.backend, EntriesInRange(low, high, self.pairs // 4))
            if 0 <= rank - distances.n_below < distances.n_inside == len(distances.values):
                return distances.n_below, distances.values
        return super()._around(rank)

    def counts(self, thresholds: np.ndarray) -> np.ndarray:
        return sweep_one(self.backend, Counts(thresholds))

    def collect(self, low: float, high: float, count: int) -> Array:
        return self._sorted if self._on_device else sweep_one(self.backend, EntriesInRange(low, high, count)).values

    @cached_property
    def _sorted(self) -> Array:
        """Return all distances, sorted on their device."""
        entries = _above_diagonal(sweep_one(self.backend, DenseRectangle()))
        return arrays.namespace(entries).sort(entries)

    def subsample(self, size: int = SAMPLE) -> PairDistances:
        side = self.backend.problem.left
        rows = np.sort(np.random.default_rng(0).choice(self.n, size, replace=False))
        problem = PairProblem(side.take(arrays.like(rows, side.points)), None, self.backend.problem.kernel)
        return PairDistances(backend_for(problem, threads=self.backend.threads), size, self.highest)


class HostPlaces:
    """Places on a line in host memory, with the methods of `SortedPlaces`."""

    def __init__(self, places: np.ndarray, threads: int | None) -> None:
        self.threads = threads
        self.ends = np.append(np.asarray(places, dtype=np.float64), np.inf)  # ascending places, then infinity
        # The caller's array may have changed since it was checked: keep values and differences finite.
        np.nan_to_num(self.ends[:-1].clip(-FAR, FAR, out=self.ends[:-1]), copy=False)
        self.ends[:-1].sort()
        self.n = len(places)

    def highest(self) -> float:
        return float(self.ends[-2] - self.ends[0])

    def some(self, count: int) -> HostPlaces:
        """Return `count` places at equal steps of rank."""
        return HostPlaces(self.ends[np.linspace(0, self.n - 1, count).astype(np.int64)], self.threads)

    def counts(self, thresholds: np.ndarray) -> np.ndarray:
        with run_options(self.threads) as options:
            return _native.line_counts(self.ends, thresholds, options)

    def between(self, low: float, high: float, count: int) -> np.ndarray:
        return _native.line_between(self.ends, low, high, count)


class LineDistances(Distances):
    """The distances between places on a line."""

    def __init__(self, places: HostPlaces | SortedPlaces) -> None:
        self.places, self.n = places, places.n
        self.highest = float(np.nextafter(places.highest(), np.inf))
        self.room = 2 * places.n + LINE_COLLECTED
        if isinstance(places, HostPlaces):
            self.room, self.sample_size = 4 * places.n + HOST_LINE_COLLECTED, HOST_LINE_SAMPLE

    def counts(self, thresholds: np.ndarray) -> np.ndarray:
        return self.places.counts(thresholds)

    def collect(self, low: float, high: float, count: int) -> Array:
        return self.places.between(low, high, count)

    def subsample(self) -> LineDistances:
        return LineDistances(self.places.some(self.sample_size))


def _pick_ranks(values: Array, *ranks: int) -> list[float]:
    """Return the values of one rank, or of two adjacent ranks, among those that `Distances.collect` returns."""
    if not arrays.is_host(values):
        return [float(values[rank]) for rank in ranks]
    first = ranks[0]
    values.partition(first)
    return [float(values[first] if rank == first else values[first + 1 :].min()) for rank in ranks]


def _space(low: float, high: float, count: int) -> np.ndarray:
    """Return up to `count` numbers between two, evenly spaced; in the float representation if magnitudes differ."""
    if high < 4 * low:
        numbers = np.linspace(low, high, count + 2)
    else:
        ends = np.array([low, high]).view(np.int64).tolist()
        steps = [ends[0] + (ends[1] - ends[0]) * k // (count + 1) for k in range(count + 2)]
        numbers = np.array(steps).view(np.float64)
    return np.unique(numbers[(numbers > low) & (numbers < high)])
