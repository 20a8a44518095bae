"""The median heuristic: bandwidths from pairwise distances.

Called by `_packing` for kernels whose bandwidth is None, and by users. Distances are the
dense tile of a pair problem whose kernel is the bare distance; for points on a line pairs are
counted by the compiled core (src/cpu/line_median.cpp).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib import _arrays, _native
from kcalib._arrays import Array
from kcalib._dispatch import operator_for
from kcalib._inputs import check_choice, check_integer, check_points
from kcalib._operators.sorted_scan import ON_THE_LINE, off_line
from kcalib._problem import Factor, PairProblem, Side, Term
from kcalib._threads import resolve_threads, terminal_progress
from kcalib.kernels import METRICS

__all__ = ["MedianDistance", "median_distance"]

MAX_SAMPLES = 2000


@dataclass(frozen=True)
class MedianDistance:
    """The median of pairwise distances, and how it was found."""

    value: float
    metric: str
    n_samples: int  #: samples whose pairwise distances were taken
    exact: bool  #: whether these were all samples
    seed: int | None  #: seed of the subsample, None if exact


def median_distance(
    y_pred: Any, metric: str = "euclidean", *, max_samples: int = MAX_SAMPLES, seed: int = 0, threads: int | None = None
) -> MedianDistance:
    """Median of the distances between predictions, the default bandwidth of every kernel.

    The median is over all pairs i < j, pairs at distance 0 included; if it is 0, it is the
    median of the non-zero distances. With more than `max_samples` predictions it is taken
    over a random subset of that size, except for those of binary problems (and single columns),
    where all pairs take time O(n log n).

    Parameters
    ----------
    y_pred : array_like, shape (n, m)
        Predicted probabilities (any points, in fact).
    metric : {"euclidean", "cityblock", "total_variation"}
        Distance.
    max_samples : int
        Size of the subset, at least 2. Pass n for the exact median: memory and time grow
        with its square (16 MB at 2,000, 400 MB at 10,000).
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
    max_samples = check_integer("max_samples", max_samples, 2)
    points = check_points(_arrays.as_array(y_pred, "y_pred"), "y_pred")
    n = int(points.shape[0])
    if n < 2:
        raise ValueError(f"`y_pred` has {n} rows, expected at least 2 for the median heuristic; pass bandwidth=")
    on_a_line = _is_on_a_line(points)
    exact = on_a_line or n <= max_samples
    if not exact:
        chosen = np.sort(np.random.default_rng(seed).choice(n, max_samples, replace=False))
        points = _arrays.namespace(points).take(points, _arrays.like(chosen, points), axis=0)
        n = max_samples
    value = (_median_on_a_line if on_a_line else _median_of_all)(points, metric, threads)
    if value == 0:
        raise ValueError(
            "`y_pred` has identical rows only, so the median heuristic finds no length scale; "
            "pass a kernel with bandwidth=, such as Exponential(bandwidth=1.0)"
        )
    return MedianDistance(value, metric, n, exact, None if exact else seed)


def _is_on_a_line(points: Array) -> bool:
    if not _arrays.is_host(points) or points.shape[1] > 2:
        return False
    return points.shape[1] == 1 or off_line(points) <= ON_THE_LINE


def _median_on_a_line(points: np.ndarray, metric: str, threads: int | None) -> float:
    """Median of all distances; if it is 0, of those that are not; 0 if there is none."""
    places = np.append(np.asarray(points[:, -1], dtype=np.float64), np.inf)
    places[:-1].sort()
    with terminal_progress() as progress:
        median = _native.line_median(places, _native.Sweep(resolve_threads(threads), None, progress))
    if points.shape[1] == 1:
        return median / 2 if metric == "total_variation" else median
    return median * {"euclidean": math.sqrt(2), "cityblock": 2.0, "total_variation": 1.0}[metric]


def _median_of_all(points: Array, metric: str, threads: int | None) -> float:
    """As `_median_on_a_line`, of points anywhere."""
    distances = _distances(points, metric, threads)
    value = float(np.median(distances))
    if value == 0 and distances.any():
        value = float(np.median(distances[distances > 0]))
    return value


def _distances(points: Array, metric: str, threads: int | None) -> np.ndarray:
    """Distances of all pairs i < j, in float64."""
    n = points.shape[0]
    scale = 0.5 if metric == "total_variation" else 1.0
    kernel = (Term(scale, (Factor("identity", "euclidean" if metric == "euclidean" else "cityblock"),)),)
    marks = _arrays.namespace(points).ones_like(points[:, :1])
    if _arrays.is_host(points):
        points, marks = np.ascontiguousarray(points), np.ascontiguousarray(marks)
    side = Side(points, marks)
    operator = operator_for(PairProblem(side, None, kernel), threads=threads)
    condensed = np.empty(n * (n - 1) // 2)
    filled = 0
    strip = 256
    for begin in range(0, n - 1, strip):
        end = min(begin + strip, n - 1)
        tile = _arrays.to_host(operator.tile(slice(begin, end), slice(begin + 1, n)))
        upper = tile[np.triu(np.ones(tile.shape, dtype=bool))]
        condensed[filled : filled + upper.size] = upper
        filled += upper.size
    return condensed
