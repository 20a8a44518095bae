r"""Choose the number of bins by the cross-validated risk of a calibration-error estimation function."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs.statistics import total
from kcalib.estimators.binning import Binning, Columns, bin_edges, ends_of_equal_mass, over_columns, sums_up_to

GRID = tuple(range(5, 101, 5))
FOLDS = 5
FOLD_SEED = 0


class Risk(NamedTuple):
    n_bins: int
    value: float  # mean over folds, and weighted mean over columns


def n_bins_by_risk(
    columns: Columns, rule: str, min_bin_size: int, column_weight: np.ndarray, threads: Any
) -> list[Risk]:
    r"""Return the risk of h(p, p') = gap(p) gap(p') for each number of bins of the grid, by cross-validation.

    gap(p) is the mean of label minus probability in p's bin among the samples of the other folds, or among all of them
    if the bin is empty. The risk is the mean over pairs of different samples of the fold of (r_i r_j - gap_i gap_j)^2,
    r = label - probability. It is a function of sums within bins, which are differences of cumulative sums over the
    sorted column: O(n log n) for all numbers of bins together.
    """
    n = len(columns.values)
    if n < 2 * FOLDS:
        raise ValueError(f"n_bins='risk' needs at least {2 * FOLDS} samples, there are {n}; pass a number of bins")
    fold = np.random.default_rng(FOLD_SEED).permutation(n) % FOLDS
    smallest = n - int(np.max(np.bincount(fold)))
    numbers = tuple(b for b in GRID if rule != "equal_mass" or b <= smallest)
    grid = _Grid(rule, numbers, min_bin_size, {n - int(count) for count in np.bincount(fold)})
    xp, fold = arrays.namespace(columns.values), arrays.like(fold, columns.values)

    def risks(j: int, values: Array) -> np.ndarray:
        order = np.argsort(values, kind="stable") if columns.on_host else xp.argsort(values)
        ascending, of_sorted = values[order], fold[order]
        residuals = (xp.astype(columns.labels == j, values.dtype) - values)[order]
        totals = np.zeros(len(numbers))
        for k in range(FOLDS):
            in_fold = of_sorted == k
            train, test = (_Sorted.of(ascending[rows], residuals[rows]) for rows in (~in_fold, in_fold))
            totals += test.risks_of_gaps_from(train, grid.bounds(train.values), grid)
        return totals / FOLDS

    table = np.array(list(over_columns(columns, risks, threads)))
    return [Risk(b, float(value)) for b, value in zip(numbers, column_weight @ table, strict=True)]


class _Grid:
    """Ends of the bins of a sorted column for all numbers of bins."""

    def __init__(self, rule: str, numbers: tuple[int, ...], min_bin_size: int, sizes: set[int]) -> None:
        """Prepare for columns of these sizes."""
        self.numbers = numbers
        self.begins = np.cumsum([0, *numbers[:-1]])  # first bin of each binning in a list of all bins
        # Place of the lower bound of each bin in the list of all bounds.
        self.low = np.concatenate(
            [np.arange(b) + begin + k for k, (b, begin) in enumerate(zip(numbers, self.begins, strict=True))]
        )
        self._finest = Binning(rule, numbers[-1], min_bin_size)
        self._uniform = np.concatenate([[-np.inf, *bin_edges(b)[1:-1], np.inf] for b in numbers])
        # Numbers of the samples, from 1, that are the edges; 0 and n + 1 for the outermost edges.
        self._places = {n: np.concatenate([[0, *ends_of_equal_mass(n, b) + 1, n + 1] for b in numbers]) for n in sizes}

    def bounds(self, ascending: Array) -> np.ndarray:
        """Return the edges for all numbers of bins, concatenated, with infinity for the outermost."""
        n = len(ascending)
        if self._finest.rule == "uniform":
            return self._uniform
        if self._finest.rule == "equal_mass":
            places = self._places[n]
            upper_edges = np.where(places > 0, np.inf, -np.inf)
            inside = (places > 0) & (places <= n)
            upper_edges[inside] = arrays.to_host(ascending[arrays.like(places[inside] - 1, ascending)])
        else:
            edges = self._finest.median_variance_edges(ascending)
            upper_edges = np.full(len(self._uniform), np.inf)
            begin = 0
            for b in self.numbers:
                inner = np.sort(edges[: b - 1])
                upper_edges[begin] = -np.inf
                upper_edges[begin + 1 : begin + 1 + len(inner)] = inner
                begin += b + 1
        return np.where(upper_edges < float(ascending[-1]), upper_edges, np.inf)


class _Sorted(NamedTuple):
    """A sorted column with residuals and their squares; on the host these are cumulative sums with a leading 0."""

    values: Array
    sums: Array
    squares: Array
    total: tuple[float, float]  # of residuals, and of their squares
    fourth: float  # sum of fourth powers

    @classmethod
    def of(cls, values: Array, residuals: Array) -> _Sorted:
        squares = residuals**2
        if not arrays.is_host(values):
            totals = total(residuals), total(squares)
            return cls(values, residuals, squares, totals, total(squares * squares))
        cumulative = np.zeros((2, len(values) + 1))
        np.cumsum(residuals, out=cumulative[0, 1:])
        np.cumsum(squares, out=cumulative[1, 1:])
        sums, of_squares = cumulative
        return cls(values, sums, of_squares, (sums[-1], of_squares[-1]), float(squares @ squares))

    def risks_of_gaps_from(self, train: _Sorted, bounds: np.ndarray, grid: _Grid) -> np.ndarray:
        """Return the risk for each number of bins."""
        count, sums, _ = train._in_bins(bounds, grid)
        gap = np.where(count > 0, sums / np.maximum(count, 1), train.total[0] / len(train.values))
        count, sums, squares = self._in_bins(bounds, grid)
        n, squared = len(self.values), gap**2
        terms = np.stack([gap * sums, count * squared, squared * squares, count * squared**2])
        products, of_gaps, crossed, fourths = np.add.reduceat(terms, grid.begins, axis=1)
        # Sums over all pairs minus pairs of a sample with itself.
        pairs = self.total[1] ** 2 - 2 * products**2 + of_gaps**2
        diagonal = self.fourth - 2 * crossed + fourths
        return np.asarray((pairs - diagonal) / (n * (n - 1)))

    def _in_bins(self, bounds: np.ndarray, grid: _Grid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return counts and sums in the bins of all binnings, concatenated."""
        values = self.values
        if arrays.is_host(values):
            ends = values.searchsorted(bounds, side="right")
            low, high = ends[grid.low], ends[grid.low + 1]
            return high - low, self.sums[high] - self.sums[low], self.squares[high] - self.squares[low]
        columns = []
        for edges in np.split(bounds, grid.begins[1:] + np.arange(1, len(grid.numbers))):
            ends = arrays.to_host(
                arrays.namespace(values).searchsorted(values, arrays.like(edges, values), side="right")
            )
            columns.append((np.diff(ends), *sums_up_to(ends[1:], self.sums, self.squares)))
        count, sums, squares = (np.concatenate(column) for column in zip(*columns, strict=True))
        return count, sums, squares
