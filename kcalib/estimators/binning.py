r"""Bin predicted probabilities.

A *column* is one probability of every sample, with a label that says which samples hit: the top-label confidence, or
the probability of one class. `column_bins` computes `ReliabilityBins` of each column, in one compiled pass over all
columns or by sorting each; `simplex_bins` bins whole rows.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._backend.options import check_choice, check_integer
from kcalib._backend.segments import Segments
from kcalib._backend.threads import threads_for
from kcalib._input.labels import Classification
from kcalib._pairs.statistics import cumulative_sum, group_sums, row_groups
from kcalib.estimators.scores import top_label
from kcalib.report.summary import Summarized

__all__ = ["ReliabilityBins"]

N_BINS = 15  # default number of bins
MAX_BINS = 1_000_000
BINNINGS = ("uniform", "equal_mass", "median_variance")
MIN_BIN_SIZE = 10
COLUMNS_AT_ONCE = 8  # copied out of the rows at a time: a cache line
DEVICE_ELEMENTS = 2**23  # binned at a time on a device


@dataclass(frozen=True, eq=False)
class ReliabilityBins(Summarized):
    """Mean confidence and accuracy of each bin, as in a reliability diagram."""

    edges: np.ndarray  #: bins are (a, b], the first one includes 0; shape: (n_bins + 1,)
    weight: np.ndarray  #: sum of sample weights, or number of samples, shape: (n_bins,)
    confidence: np.ndarray  #: mean confidence; 0 in empty bins
    accuracy: np.ndarray  #: share of samples that hit; 0 in empty bins

    @property
    def n_occupied(self) -> int:
        """Number of bins that hold samples."""
        return int(np.count_nonzero(self.weight))

    @property
    def ece(self) -> float:
        """Mean over samples of the gap between accuracy and confidence of their bin."""
        return self.error("l1")

    def error(self, norm: str) -> float:
        """Return the norm ("l1", "l2" or "max") over samples of the gaps between accuracy and confidence."""
        return norm_of(np.abs(self.accuracy - self.confidence), self.weight, norm)

    def debiased_square(self) -> float:
        """Return the mean over samples of the squared gap of their bin, minus the bias due to noise in the labels.

        For samples without weights, and at least two in each bin that is not empty.
        """
        has_weight = self.weight > 0
        count, accuracy = self.weight[has_weight], self.accuracy[has_weight]
        noise = accuracy * (1 - accuracy) / (count - 1)
        return float(np.sum(count * ((accuracy - self.confidence[has_weight]) ** 2 - noise)) / np.sum(count))


def norm_of(gaps: Array, weight: Array, norm: str) -> float:
    """Return the norm over samples of the gaps of bins with these weights; 0 without samples."""
    xp = arrays.namespace(gaps)
    total = float(xp.sum(weight))
    if total == 0:
        return 0.0
    if norm == "max":
        return float(xp.max(gaps[weight > 0]))
    if norm == "l1":
        return float(xp.sum(weight * gaps)) / total
    return float(xp.sqrt(xp.sum(weight * gaps**2) / total))


@dataclass(frozen=True)
class Binning:
    """Options of a binning."""

    rule: str  # one of BINNINGS
    n_bins: int
    min_bin_size: int = MIN_BIN_SIZE  # of median-variance bins

    @classmethod
    def checked(
        cls, rule: Any, n_bins: Any, min_bin_size: Any, data: Classification, rules: tuple[str, ...] = BINNINGS
    ) -> Binning:
        """Check options for these samples."""
        check_choice("binning", rule, rules)
        n_bins = check_integer("n_bins", n_bins, 1, MAX_BINS)
        if rule != "median_variance":
            if min_bin_size is not None:
                raise ValueError(f"`min_bin_size` is {min_bin_size!r}, but binning={rule!r} has no such option")
            if rule == "equal_mass" and n_bins > data.n:
                raise ValueError(
                    f"`n_bins` is {n_bins}, but there are {data.n} samples; pass at most as many bins as samples"
                )
            min_bin_size = 1
        size = check_integer("min_bin_size", MIN_BIN_SIZE if min_bin_size is None else min_bin_size, 1)
        if data.n < size:
            raise ValueError(f"`min_bin_size` is {size}, but there are {data.n} samples; pass a smaller one")
        if rule == "median_variance" and data.sample_weight is not None:
            others = " or ".join(f"binning={other!r}" for other in rules if other != rule)
            raise ValueError(f"`sample_weight` has no meaning for binning={rule!r}, which counts samples; use {others}")
        return cls(rule, n_bins, size)

    def edges(self, ascending: Array, weight: Array | None = None) -> np.ndarray:
        """Return the edges of bins of a sorted column; inner edges are values of it, unless bins are uniform."""
        if self.rule == "uniform":
            return bin_edges(self.n_bins)
        if self.rule == "equal_mass":
            if weight is None:
                below = arrays.like(ends_of_equal_mass(len(ascending), self.n_bins), ascending)
            else:
                below = ends_of_equal_weight(weight, self.n_bins)
            inner = np.unique(arrays.to_host(ascending[below]))
        else:
            inner = np.sort(self.median_variance_edges(ascending))
        return np.concatenate([[0.0], inner[inner < float(ascending[-1])], [1.0]])

    def median_variance_edges(self, ascending: Array) -> np.ndarray:
        """Return the inner edges in the order of splits: the first ones are the edges of fewer bins."""
        xp, counter = arrays.namespace(ascending), itertools.count()

        def cell(begin: int, end: int) -> tuple[float, int, int, int]:
            return -float(xp.var(ascending[begin:end], correction=1)), next(counter), begin, end

        def can_be_split(begin: int, end: int) -> bool:
            return end - begin >= 2 * self.min_bin_size

        inner: list[float] = []
        n = len(ascending)
        queue = [cell(0, n)] if can_be_split(0, n) else []
        while queue and len(inner) + 1 < self.n_bins:
            _, _, begin, end = heapq.heappop(queue)
            median = ascending[begin + (end - begin) // 2]
            sides = (
                begin + int(xp.searchsorted(ascending[begin:end], median, side=side)) for side in ("left", "right")
            )
            middle = next((at for at in sides if min(at - begin, end - at) >= self.min_bin_size), None)
            if middle is None:
                continue
            inner.append(float(ascending[middle - 1]))
            for part in ((begin, middle), (middle, end)):
                if can_be_split(*part):
                    heapq.heappush(queue, cell(*part))
        return np.array(inner)


def ends_of_equal_mass(n: int, n_bins: int) -> np.ndarray:
    """Return the ranks of the last samples of all bins but the last."""
    return (n - 1) * np.arange(1, n_bins) // n_bins


def in_order(values: Array, weight: Array) -> tuple[Array, Array | None]:
    """Return sorted values and their positive weights, None if these are equal."""
    xp = arrays.namespace(values)
    if not xp.any(weight != weight[0]):
        return xp.sort(values), None
    # The order of ties affects rounding, and must be the same on all devices.
    order = np.argsort(values, kind="stable") if arrays.is_host(values) else xp.argsort(values)
    return values[order], weight[order]


def ends_of_equal_weight(weight: Array, n_bins: int) -> Array:
    """Return the ranks of the last samples that have at most j / n_bins of the weight before them, j = 1..n_bins-1."""
    before = cumulative_sum(weight) - weight
    # Products, not quotients: exact for equal weights.
    shares = before[-1] * arrays.like(np.arange(1, n_bins), before)
    return arrays.namespace(before).searchsorted(before * n_bins, shares, side="right") - 1


class Columns(NamedTuple):
    """Columns of probabilities to bin: NumPy or CuPy arrays."""

    values: Array  # float64, on the host C-contiguous, shape: (n, columns)
    labels: Array  # int64: the column that the sample hits; -1 for none; shape: (n,)
    weight: Array | None  # float64, shape: (n,)

    @property
    def on_host(self) -> bool:
        return arrays.is_host(self.values)


def top_label_column(data: Classification, threads: Any = None) -> Columns:
    confidence, correct = (arrays.to_compute_device(a, np.float64) for a in top_label(data, threads))
    labels = correct.astype(np.int64)  # 1 or 0
    labels -= 1
    return Columns(confidence[:, None], labels, _weight(data))


def class_columns(data: Classification) -> Columns:
    return Columns(
        arrays.to_compute_device(data.probabilities, np.float64),
        arrays.to_compute_device(data.labels, np.int64),
        _weight(data),
    )


def _weight(data: Classification) -> Array | None:
    return None if data.sample_weight is None else arrays.to_compute_device(data.sample_weight, np.float64)


def reliability_bins(data: Classification, n_bins: int) -> ReliabilityBins:
    """Return bins of equal width of the top-label confidence."""
    return column_bins(top_label_column(data), Binning("uniform", n_bins))[0]


def bin_edges(n_bins: int) -> np.ndarray:
    """Return the edges of bins of equal width: the doubles nearest to 0, 1/n_bins, ..., 1.

    `find_bins` in src/cpu/samples/bins.cpp uses the same. ``numpy.linspace`` differs in the last bit.
    """
    return np.arange(n_bins + 1) / n_bins


def bin_numbers(confidence: Array, n_bins: int) -> Array:
    """Return the bin (a, b] of each confidence; 0 is in the first bin."""
    xp = arrays.namespace(confidence)
    edges = arrays.like(bin_edges(n_bins), confidence)
    return xp.clip(xp.searchsorted(edges, confidence, side="left") - 1, 0, n_bins - 1)


def column_bins(
    columns: Columns, binning: Binning, threads: Any = None, threshold: float | None = None
) -> tuple[ReliabilityBins, ...]:
    """Return the bins of each column, for values above `threshold` if it is given."""
    if binning.rule == "uniform":
        n_columns, n_bins = columns.values.shape[1], binning.n_bins
        check_memory(48 * n_columns * n_bins, None, f"sums of {n_columns} x {n_bins} bins", "use fewer bins")
        if threshold is None:
            return _bins_of_width(columns, binning, threads)
    if threshold is not None or columns.weight is not None:

        def work(j: int, values: Array) -> ReliabilityBins:
            return _summed_bins(columns, j, values, binning, threshold)

        return tuple(over_columns(columns, work, threads))
    xp, hits = arrays.namespace(columns.values), _hits(columns)
    return tuple(over_columns(columns, lambda j, values: _sorted_bins(xp.sort(values), hits(j), binning), threads))


def _bins_of_width(columns: Columns, binning: Binning, threads: Any) -> tuple[ReliabilityBins, ...]:
    values, labels, weight = columns
    if columns.on_host:
        team = threads_for(values.size, threads)
        entries, weights, hits = _native.uniform_bins(values, labels, weight, binning.n_bins, team)
    else:
        entries, weights, hits = _uniform_sums(columns, binning.n_bins)
    divisor = np.where(weights > 0, weights, 1.0)
    edges = bin_edges(binning.n_bins)
    return tuple(ReliabilityBins(edges, *rows) for rows in zip(weights, entries / divisor, hits / divisor, strict=True))


def _uniform_sums(columns: Columns, n_bins: int) -> np.ndarray:
    """Compute `_native.uniform_bins` on a device; return shape (3, columns, n_bins) on the host."""
    values, labels, weight = columns
    xp, (n, n_columns) = arrays.namespace(values), values.shape
    w = xp.ones_like(values[:, 0]) if weight is None else weight
    parts: list[Any] = []
    step = max(1, DEVICE_ELEMENTS // n)
    for begin in range(0, n_columns, step):
        batch = xp.permute_dims(values[:, begin : begin + step], (1, 0))
        width = batch.shape[0]
        offsets = xp.arange(width, device=arrays.device(values))[:, None] * n_bins
        group = xp.reshape(bin_numbers(batch, n_bins) + offsets, (-1,))
        entries = xp.reshape(batch * w[None, :], (-1,))
        parts.append(group_sums(group, width * n_bins, entries, xp.reshape(xp.zeros_like(batch) + w, (-1,))))
    hitting = xp.nonzero(labels >= 0)[0]
    hit = xp.take(labels, hitting, axis=0)
    confidence = values[hitting, hit]
    group = hit * n_bins + bin_numbers(confidence, n_bins)
    (hits,) = group_sums(group, n_columns * n_bins, xp.take(w, hitting, axis=0))
    entries, weights = (xp.concat([part[i] for part in parts]) for i in (0, 1))
    sums = arrays.to_host(xp.stack((entries, weights, hits)))
    return sums.reshape(3, n_columns, n_bins)


def _sorted_bins(ascending: Array, hits: Array, binning: Binning) -> ReliabilityBins:
    """Return the bins of a sorted column; `hits` holds the values of samples that hit."""
    xp, edges = arrays.namespace(ascending), binning.edges(ascending)
    ends = _ends(ascending, edges)
    begins = np.concatenate([[0], ends[:-1]])
    count = ends - begins
    sums = np.add.reduceat(ascending, begins) if arrays.is_host(ascending) else sums_up_to(ends, ascending)[0]
    hit = xp.bincount(xp.searchsorted(arrays.like(edges[1:-1], hits), hits), minlength=len(count))
    return ReliabilityBins(edges, count.astype(np.float64), sums / count, arrays.to_host(hit) / count)


def _summed_bins(columns: Columns, j: int, values: Array, binning: Binning, threshold: float | None) -> ReliabilityBins:
    """Return the bins of a column for weighted samples above the threshold."""
    xp, weight = arrays.namespace(values), columns.weight
    weight = xp.ones_like(values) if weight is None else weight
    counts = (weight > 0) & (values > (-1.0 if threshold is None else threshold))
    values, weight, hit = values[counts], weight[counts], columns.labels[counts] == j
    if not len(values):
        return ReliabilityBins(np.array([0.0, 1.0]), *np.zeros((3, 1)))
    edges = binning.edges(*in_order(values, weight))
    index = xp.searchsorted(arrays.like(edges[1:-1], values), values, side="left")
    terms = (weight, weight * values, weight * hit)
    sums, entries, hits = map(arrays.to_host, group_sums(index, len(edges) - 1, *terms))
    divisor = np.where(sums > 0, sums, 1.0)
    return ReliabilityBins(edges, sums, entries / divisor, hits / divisor)


def sums_up_to(ends: np.ndarray, *values: Array) -> list[np.ndarray]:
    """Return sums of device arrays between these ends, on the host."""
    bins = Segments.of_runs(arrays.like(np.diff(ends, prepend=0), values[0]))
    return [arrays.to_host(bins.sums(values_of_bins)) for values_of_bins in values]


def _ends(ascending: Array, edges: np.ndarray) -> np.ndarray:
    """Return the ends of the bins in a sorted column, shape (n_bins,)."""
    xp = arrays.namespace(ascending)
    ends = xp.searchsorted(ascending, arrays.like(edges[1:-1], ascending), side="right")
    return np.append(arrays.to_host(ends), len(ascending))


def _hits(columns: Columns) -> Callable[[int], Array]:
    """Return a function of a column number that returns the values of the samples that hit the column."""
    if not columns.on_host:
        return lambda j: columns.values[:, j][columns.labels == j]
    small = columns.labels.astype(np.int16) if columns.values.shape[1] < 2**15 else columns.labels
    order = np.argsort(small, kind="stable")  # radix sort for small integers
    starts = np.searchsorted(small[order], np.arange(columns.values.shape[1] + 1))
    return lambda j: columns.values[order[starts[j] : starts[j + 1]], j]


def over_columns(columns: Columns, work: Callable[[int, np.ndarray], Any], threads: Any) -> Iterator[Any]:
    """Yield work(j, a copy of column j) for every column, computed in threads."""
    n_columns = columns.values.shape[1]
    if not columns.on_host:
        return (work(j, columns.values[:, j]) for j in range(n_columns))

    def work_on_batch(begin: int) -> list[Any]:
        copies = columns.values[:, begin : begin + COLUMNS_AT_ONCE].T.copy()
        return [work(begin + k, copy) for k, copy in enumerate(copies)]

    team = min(threads_for(columns.values.size, threads), -(-n_columns // COLUMNS_AT_ONCE))
    begins = range(0, n_columns, COLUMNS_AT_ONCE)
    if team == 1:
        return itertools.chain.from_iterable(map(work_on_batch, begins))
    with ThreadPoolExecutor(team) as pool:
        return itertools.chain.from_iterable(list(pool.map(work_on_batch, begins)))


class SimplexBins(NamedTuple):
    """Bins of whole predictions, on the device of the columns."""

    number: Array  # of each sample's bin, shape: (n,)
    weight: Array  # sum of sample weights, or number of samples, shape: (n_bins,)
    gap: Array  # norm of mean prediction minus mean one-hot label, shape: (n_bins,)


def simplex_bins(columns: Columns, binning: Binning, metric: str, threads: Any = None) -> SimplexBins:
    """Bin whole rows; `metric` of gaps is "cityblock" or "euclidean", and columns are all classes."""
    values, labels, weight = columns
    if not columns.on_host:
        return _device_simplex_bins(columns, binning, metric)
    team = threads_for(values.size, threads)
    if binning.rule == "median_variance":
        cells = _native.median_variance_cells(values, labels, binning.n_bins, binning.min_bin_size, metric, team)
        return SimplexBins(*cells)
    return SimplexBins(*_native.uniform_cells(values, labels, weight, binning.n_bins, metric, team))


def _device_simplex_bins(columns: Columns, binning: Binning, metric: str) -> SimplexBins:
    values, labels, weight = columns
    if binning.rule != "uniform":
        arrays.check_not_cuda(values, "median-variance bins of whole predictions")
    xp, (n, m) = arrays.namespace(values), values.shape
    check_memory(64 * n * m, None, f"bins of {n} x {m} probabilities", "use fewer samples at a time", values)
    number, n_groups = row_groups(bin_numbers(values, binning.n_bins))
    classes = xp.arange(m, device=arrays.device(values))
    residuals = values - xp.astype(labels[:, None] == classes[None, :], xp.float64)
    w = xp.ones_like(values[:, 0]) if weight is None else weight
    weights, sums = group_sums(number, n_groups, w, residuals * w[:, None])
    gaps = xp.abs(sums) / xp.where(weights > 0, weights, 1.0)[:, None]
    return SimplexBins(
        number, weights, xp.sum(gaps, axis=1) if metric == "cityblock" else xp.sqrt(xp.sum(gaps * gaps, axis=1))
    )
