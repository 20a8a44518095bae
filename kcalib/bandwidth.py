"""The median heuristic: bandwidths from pairwise distances.

Called by `_packing` for kernels whose bandwidth is None, and by users. Distances are the entries of
a pair problem whose kernel is the bare distance. They are never stored: sweeps count those below
a few thresholds, which narrows the median down until the few left can be collected and sorted; for
points on a line that takes O(n log n) (src/cpu/line_median.cpp).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib import _arrays, _native
from kcalib._arrays import Array
from kcalib._dispatch import Operator, operator_for
from kcalib._inputs import check_points
from kcalib._operators.sorted_scan import ON_THE_LINE, off_line
from kcalib._options import check_choice, check_integer
from kcalib._problem import Factor, PairProblem, Side, Term
from kcalib._threads import resolve_threads, terminal_progress
from kcalib.kernels import METRICS

__all__ = ["MedianDistance", "median_distance"]

MAX_SAMPLES = 2000
NO_DISTANCE = (
    "`y_pred` has identical rows only, so the median heuristic finds no length scale; "
    "pass a kernel with bandwidth=, such as Exponential(bandwidth=1.0)"
)


@dataclass(frozen=True)
class MedianDistance:
    """The median of pairwise distances, and how it was found."""

    value: float
    metric: str
    n_samples: int  #: samples whose pairwise distances were taken
    exact: bool  #: whether these were all samples
    seed: int | None  #: seed of the subsample, None if exact


def median_distance(
    y_pred: Any,
    metric: str = "euclidean",
    *,
    max_samples: int | None = MAX_SAMPLES,
    seed: int = 0,
    threads: int | None = None,
) -> MedianDistance:
    """Median of the distances between predictions, the default bandwidth of every kernel.

    The median is over all pairs i < j, pairs at distance 0 included; if it is 0, it is the
    median of the non-zero distances. With more than `max_samples` predictions it is taken
    over a random subset of that size; not so for binary problems (and single columns) in host memory,
    where all pairs take time O(n log n).

    Parameters
    ----------
    y_pred : array_like, shape (n, m)
        Predicted probabilities (any points, in fact).
    metric : {"euclidean", "cityblock", "total_variation"}
        Distance.
    max_samples : int, optional
        Size of the subset, at least 2. None for the exact median of all pairs: time O(n^2 m), about
        that of one or two unbiased estimates of the SKCE, memory O(n m).
    seed : int
        Seed of the subset.
    threads : int, optional
        Number of threads.

    Returns
    -------
    MedianDistance
        With fields `value`, `metric`, `n_samples`, `exact` and `seed`.

    Raises
    ------
    TypeError
        If `y_pred` does not hold numbers, or `max_samples` is no integer.
    ValueError
        If there are fewer than two predictions, one is not finite, or all of them are
        identical; if `metric` is unknown.

    Examples
    --------
    >>> from kcalib.bandwidth import median_distance
    >>> median_distance([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], "total_variation").value
    0.5
    """
    check_choice("metric", metric, METRICS)
    if max_samples is not None:
        max_samples = check_integer("max_samples", max_samples, 2)
    points = check_points(_arrays.as_array(y_pred, "y_pred"), "y_pred")
    return median_of_points(points, metric, max_samples=max_samples, seed=seed, threads=threads)


def median_of_points(
    points: Array, metric: str, *, max_samples: int | None = MAX_SAMPLES, seed: int = 0, threads: int | None = None
) -> MedianDistance:
    """`median_distance` of checked points."""
    n = int(points.shape[0])
    if n < 2:
        raise ValueError(f"`y_pred` has {n} rows, expected at least 2 for the median heuristic; pass bandwidth=")
    if _is_on_a_line(points):
        return MedianDistance(_median_on_a_line(points, metric, threads), metric, n, True, None)
    subset = max_samples is not None and n > max_samples
    if subset:
        chosen = np.sort(np.random.default_rng(seed).choice(n, max_samples, replace=False))
        points = _arrays.namespace(points).take(points, _arrays.like(chosen, points), axis=0)
        n = len(chosen)
    return MedianDistance(_median(points, metric, threads), metric, n, not subset, seed if subset else None)


def median_of_entries(problem: PairProblem, name: str) -> MedianDistance:
    """The median of the entries H_ij, i < j, of a symmetric problem whose kernel is a bare distance called `name`.

    For distances that are no vectors': those of at most `MAX_SAMPLES` samples, all of which are in memory at once.
    """
    n = int(problem.left.points.shape[0])
    if n < 2:
        raise ValueError(f"`y_pred` has {n} rows, expected at least 2 for the median heuristic; pass bandwidth=")
    subset = n > MAX_SAMPLES
    rows = np.arange(n)
    if subset:
        rows = np.sort(np.random.default_rng(0).choice(n, MAX_SAMPLES, replace=False))
    rows = _arrays.like(rows, problem.left.points)
    entries = _arrays.to_host(operator_for(problem).tile(rows, rows))
    distances = np.asarray(entries, dtype=np.float64)[np.triu_indices(len(entries), 1)]
    value = float(np.median(distances))
    if value == 0:
        distances = distances[distances > 0]
        if distances.size == 0:
            raise ValueError(NO_DISTANCE)
        value = float(np.median(distances))
    return MedianDistance(value, name, int(rows.shape[0]), not subset, 0 if subset else None)


def _median(points: Array, metric: str, threads: int | None) -> float:
    """Median of the distances of all pairs i < j; if it is 0, of those that are not."""
    distances = Distances.between(points, metric, threads)
    pairs, zeros = distances.pairs, 0
    value = distances.middle(0)
    if value == 0:
        zeros = distances.below(np.nextafter(0.0, 1.0))
        if zeros == pairs:
            raise ValueError(NO_DISTANCE)
        value = distances.middle(zeros)
    return value


def _is_on_a_line(points: Array) -> bool:
    if not _arrays.is_host(points) or points.shape[1] > 2:
        return False
    return points.shape[1] == 1 or off_line(points) <= ON_THE_LINE


def _median_on_a_line(points: np.ndarray, metric: str, threads: int | None) -> float:
    """As `_median`."""
    places = np.append(np.asarray(points[:, -1], dtype=np.float64), np.inf)
    places[:-1].sort()
    with terminal_progress() as progress:
        median = _native.line_median(places, _native.Sweep(resolve_threads(threads), None, progress))
    if median == 0:
        raise ValueError(NO_DISTANCE)
    if points.shape[1] == 1:
        return median / 2 if metric == "total_variation" else median
    return median * {"euclidean": math.sqrt(2), "cityblock": 2.0, "total_variation": 1.0}[metric]


COLLECTED = 2**21  # distances that are sorted at once, and 32 more for each point
SAMPLE = 1448  # points whose distances say where to look first, an eighth of all if that is more
# Quantiles of the distances of so many points around the one sought, where the first thresholds are.
OFFSETS = np.array([-0.12, -0.03, -0.008, -0.002, 0.002, 0.008, 0.03, 0.12])


@dataclass(frozen=True)
class Distances:
    """The distances of all pairs i < j of n points, by rank."""

    operator: Operator  # whose entries they are
    n: int
    highest: float  # all are below

    @classmethod
    def between(cls, points: Array, metric: str, threads: int | None) -> Distances:
        scale = 0.5 if metric == "total_variation" else 1.0
        kernel = (Term(scale, (Factor("identity", "euclidean" if metric == "euclidean" else "cityblock"),)),)
        xp = _arrays.namespace(points)
        marks = xp.ones_like(points[:, :1])
        if _arrays.is_host(points):
            points, marks = np.ascontiguousarray(points), np.ascontiguousarray(marks)
        operator = operator_for(PairProblem(Side(points, marks), None, kernel), threads=threads)
        widths = xp.max(points, axis=0) - xp.min(points, axis=0)
        return cls(operator, int(points.shape[0]), max(2.0 * float(xp.sum(widths)), np.finfo(np.float64).tiny))

    @property
    def pairs(self) -> int:
        return self.n * (self.n - 1) // 2

    def middle(self, first: int) -> float:
        """Median of the distances of rank `first` and up."""
        low, high = (first + self.pairs - 1) // 2, (first + self.pairs) // 2
        start, values = self._around(low)
        if high - start >= len(values):
            return float(0.5 * (values[low - start] + self._around(high)[1][0]))
        return float(0.5 * (values[low - start] + values[high - start]))

    def below(self, threshold: float) -> int:
        return int(self.operator.counts(np.array([threshold]))[0])

    def _around(self, rank: int) -> tuple[int, np.ndarray]:
        """Consecutive distances in ascending order, that of `rank` among them, and the rank of the first."""
        low, high, below_low, below_high = 0.0, self.highest, 0, self.pairs
        room = COLLECTED + 32 * self.n
        guesses = self._guesses(rank) if self.pairs > room else np.empty(0)
        while below_high - below_low > room:
            thresholds = guesses[(guesses > low) & (guesses < high)]
            guesses = np.empty(0)
            if thresholds.size == 0:
                thresholds = _spaced(low, high, len(OFFSETS))
            if thresholds.size == 0:  # neighbouring numbers: all are `low`
                return below_low, np.full(1 + rank - below_low, low)
            for threshold, count in zip(thresholds, self.operator.counts(thresholds).tolist(), strict=True):
                if count <= rank:
                    low, below_low = float(threshold), count
                else:
                    high, below_high = float(threshold), count
                    break
        return below_low, np.sort(self.operator.between(low, high, below_high - below_low))

    def _guesses(self, rank: int) -> np.ndarray:
        """Distances near that of rank `rank`, from some of the points by the same way."""
        size = min(max(SAMPLE, self.n // 8), self.n // 4)
        side = self.operator.problem.left
        rows = np.sort(np.random.default_rng(0).choice(self.n, size, replace=False))
        problem = PairProblem(side.take(_arrays.like(rows, side.points)), None, self.operator.problem.kernel)
        some = Distances(operator_for(problem, threads=self.operator.threads), size, self.highest)
        fraction = (rank + 0.5) / self.pairs
        start, values = some._around(int(fraction * some.pairs))
        ranks = (fraction + math.sqrt(SAMPLE / size) * OFFSETS) * some.pairs - start
        return np.unique(values[np.clip(ranks.astype(np.int64), 0, len(values) - 1)])


def _spaced(low: float, high: float, count: int) -> np.ndarray:
    """At most `count` numbers between two: evenly spaced if these are of one size, else in their representation."""
    if high < 4 * low:
        numbers = np.linspace(low, high, count + 2)
    else:
        ends = np.array([low, high]).view(np.int64).tolist()
        steps = [ends[0] + (ends[1] - ends[0]) * k // (count + 1) for k in range(count + 2)]
        numbers = np.array(steps).view(np.float64)
    return np.unique(numbers[(numbers > low) & (numbers < high)])
