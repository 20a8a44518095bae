"""Forecasts by quantiles: K numbers at known levels, without a distribution between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import to_device_of
from kcalib._input.checks import reject
from kcalib.distributions._checks import check_probabilities, read_only, real_array
from kcalib.distributions._distribution import Univariate, take_rows

__all__ = ["Quantiles"]

SAME_LEVEL = 1e-9  # levels with a smaller difference are equal


@dataclass(frozen=True, eq=False)
class Quantiles(Univariate):
    r"""Forecasts of numbers by K quantiles at common levels: K + 1 bins of known probability.

    Parameters
    ----------
    levels : array_like, shape (K,)
        Levels of the quantiles, from 0 to 1, distinct, in any order. The quantiles at 0 and 1 are bounds.
    values : array_like, shape (n, K)
        The quantiles, a column for each level.
    sort : bool
        Whether to sort rows whose values do not increase with the levels. By default these raise an error.

    Raises
    ------
    TypeError, ValueError
        If an argument is not finite, real and in its range, if a shape is wrong, or if quantiles cross.

    See Also
    --------
    kcalib.quantile_scores : Coverage, width and scores at each level.

    Notes
    -----
    Nothing is assumed between two quantiles: residuals are those of the bins, one-hot minus probability, and the target
    kernel is "delta". `quantile` only returns the forecast's own levels, `kcalib.crps` is the weighted interval score,
    and there is no density. `cdf_left` and `cdf` are the levels below and above a number; its PIT value is drawn
    between them.

    For a target equal to a quantile, as with counts, the bin is ambiguous: `cdf_left` and `cdf` are then the middles of
    the bins below and above, and residuals share it among the bins between in proportion. A value that is the quantile
    at several levels is an atom of that probability.

    Methods that need a full distribution (`sample`, `expected_value`, `standard_deviation`) spread the probability of a
    bin uniformly between its quantiles, and outside of all quantiles over one mean gap.

    Examples
    --------
    >>> from kcalib.distributions import Quantiles
    >>> predictions = Quantiles([0.1, 0.5, 0.9], [[0.0, 1.0, 3.0], [2.0, 2.5, 4.0]])
    >>> predictions.quantile([0.5, 0.9]).tolist()
    [[1.0, 3.0], [2.5, 4.0]]
    >>> predictions.cdf_left([0.2, 5.0]).tolist(), predictions.cdf([0.2, 5.0]).tolist()
    ([0.1, 0.9], [0.5, 1.0])
    """

    values: Array
    levels: np.ndarray

    _n_uniforms = 1
    _event_axis = 2

    def __init__(self, levels: Any, values: Any, *, sort: bool = False) -> None:
        if not isinstance(sort, (bool, np.bool_)):
            raise TypeError(f"`sort` is {sort!r}, expected True or False")
        given = np.asarray(arrays.to_host(real_array(levels, "levels")), dtype=np.float64)
        if given.ndim != 1:
            raise ValueError(f"`levels` has shape {given.shape}, expected (K,): one level for each column of `values`")
        reject(
            given,
            (given < 0) | (given > 1),
            lambda at, x: f"`levels{at}` is {x}, expected a level from 0 to 1; divide percents by 100",
        )
        order = np.argsort(given, kind="stable")
        for i in np.flatnonzero(np.diff(given[order]) <= SAME_LEVEL):
            first, second = sorted(order[i : i + 2].tolist())
            raise ValueError(
                f"`levels[{first}]` and `levels[{second}]` are both {given[first]:.6g}, expected each level once; drop "
                "one of the columns"
            )
        if not np.any((given > 0) & (given < 1)):
            raise ValueError("`levels` has none above 0 and below 1, expected at least one quantile beside bounds")
        array = real_array(values, "values")
        if array.ndim != 2 or array.shape[1] != len(given):
            raise ValueError(
                f"`values` has shape {tuple(array.shape)}, expected (n, {len(given)}): a column for each of the "
                f"{len(given)} levels"
            )
        if np.any(order != np.arange(len(order))):
            array = arrays.namespace(array).take(array, arrays.asarray_like(order, array), axis=1)
        _check_order(array, given, order, bool(sort))
        if sort:
            array = arrays.namespace(array).sort(array, axis=1)
        self._set_fields(values=read_only(array), levels=read_only(given[order]))

    @classmethod
    def from_intervals(cls, coverages: Any, lower: Any, upper: Any, median: Any = None) -> Quantiles:
        """Return forecasts by central prediction intervals.

        Parameters
        ----------
        coverages : array_like, shape (C,)
            Probabilities of the intervals, above 0 and up to 1; an interval of 1 has the bounds.
        lower, upper : array_like, shape (n, C)
            Ends of the intervals.
        median : array_like, shape (n,), optional
            Medians.

        Returns
        -------
        Quantiles
            Forecasts at the levels (1 - coverage) / 2, (1 + coverage) / 2, and with `median` 1/2.

        Raises
        ------
        TypeError, ValueError
            As the constructor; if a coverage is out of range or a shape is wrong.

        Examples
        --------
        >>> from kcalib.distributions import Quantiles
        >>> predictions = Quantiles.from_intervals([0.5, 0.9], [[1.0, 0.0]], [[2.0, 5.0]])
        >>> predictions.levels.tolist(), predictions.values.tolist()
        ([0.05, 0.25, 0.75, 0.95], [[0.0, 1.0, 2.0, 5.0]])
        """
        shares = np.asarray(arrays.to_host(real_array(coverages, "coverages")), dtype=np.float64)
        if shares.ndim != 1:
            raise ValueError(f"`coverages` has shape {shares.shape}, expected (C,): one for each interval")
        reject(
            shares,
            (shares <= 0) | (shares > 1),
            lambda at, x: f"`coverages{at}` is {x}, expected above 0 and up to 1; divide percents by 100",
        )
        ends = {"lower": real_array(lower, "lower"), "upper": real_array(upper, "upper")}
        for name, array in ends.items():
            if array.ndim != 2 or array.shape[1] != len(shares):
                raise ValueError(
                    f"`{name}` has shape {tuple(array.shape)}, expected (n, {len(shares)}): a column for each of the "
                    f"{len(shares)} intervals"
                )
        columns, below = list(ends.values()), np.round((1 - shares) / 2, 12)
        levels = [below, 1 - below]
        if median is not None:
            middle = real_array(median, "median")
            columns.append(arrays.namespace(middle).reshape(middle, (-1, 1)))
            levels.append(np.array([0.5]))
        if len({array.shape[0] for array in columns}) > 1:
            sizes = ", ".join(str(array.shape[0]) for array in columns)
            raise ValueError(f"`lower`, `upper` and `median` have {sizes} rows, expected one for each prediction")
        return cls(np.concatenate(levels), arrays.namespace(columns[0]).concat(columns, axis=1))

    @property
    def scored_levels(self) -> np.ndarray:
        """Return the levels of quantiles that are not bounds."""
        return self.levels[(self.levels > 0) & (self.levels < 1)]

    @property
    def bin_probabilities(self) -> np.ndarray:
        """Return the probabilities of the K + 1 bins, shape (K + 1,)."""
        return np.diff(self._edges)

    @property
    def _edges(self) -> np.ndarray:
        return np.concatenate([[0.0], self.levels, [1.0]])

    def take(self, rows: Any) -> Quantiles:
        return self._with(values=take_rows(self.values, rows))

    def parameters(self) -> Array:
        """Return the quantiles, shape (n, K)."""
        return self.values

    def wasserstein_points(self) -> Array:
        """Return the quantiles times the roots of the adjacent probabilities: W2 is the distance of these atoms."""
        middles = np.concatenate([[0.0], (self.levels[1:] + self.levels[:-1]) / 2, [1.0]])
        return self.values * arrays.like(np.sqrt(np.diff(middles)), self.values, dtype=self.values.dtype)[None, :]

    def expected_value(self) -> Array:
        return self._moments()[0]

    def standard_deviation(self) -> Array:
        return self._moments()[1]

    def _moments(self) -> tuple[Array, Array]:
        (low, high), (left, right) = self._bin_ends(), self._bin_levels()
        xp, edges = arrays.namespace(low), to_device_of(self._edges[None, :], low)
        # Atoms at ties take halves of the adjacent bins.
        masses = xp.concat([left - edges[:, :-1], right - left, edges[:, 1:] - right], axis=1)
        places = xp.concat([low, (low + high) / 2, high], axis=1)
        mean = xp.sum(masses * places, axis=1, keepdims=True)
        within = xp.sum((right - left) * (high - low) ** 2, axis=1, keepdims=True) / 12
        variance = xp.sum(masses * (places - mean) ** 2, axis=1, keepdims=True) + within
        return self._like(mean), self._like(xp.sqrt(variance))

    def quantile(self, probability: Any) -> Array:
        """Return the quantiles of the forecast at some of its levels.

        Parameters
        ----------
        probability : float or array_like, shape (m,)
            Levels above 0 and below 1, each one of `levels`.

        Returns
        -------
        array, shape (n, m)
            A NumPy array; a CuPy array if the values are on an NVIDIA GPU.

        Raises
        ------
        ValueError
            If a probability is out of range, or not a level of the forecast.
        """
        check_probabilities(probability, self._first, self.event_shape)
        levels = np.atleast_1d(np.asarray(arrays.to_host(arrays.as_array(probability, "probability")), np.float64))
        self._check_levels(levels)
        places = np.argmin(np.abs(self.levels[:, None] - levels), axis=0)
        values = arrays.to_compute_device(self.values)
        return values[:, to_device_of(places, values)]

    def _has_levels(self, probabilities: np.ndarray) -> np.ndarray:
        """Return whether the forecast has a quantile at each of these levels, shape (m,)."""
        return np.any(np.abs(self.levels[:, None] - probabilities) <= SAME_LEVEL, axis=0)

    def _check_levels(self, probabilities: np.ndarray) -> None:
        """Refuse levels, shape (m,), without a quantile in the forecast."""
        for level in probabilities[~self._has_levels(probabilities)]:
            shown = ", ".join(f"{number:.6g}" for number in self.levels)
            raise ValueError(
                f"`y_pred` has no quantile at the level {level:.6g}, but at {shown}; ask for these, or predict that one"
            )

    def _cdf(self, y: Array) -> Array:
        return self._pit_interval(y)[1]

    def _cdf_left(self, y: Array) -> Array:
        return self._pit_interval(y)[0]

    def _pit_interval(self, y: Array) -> tuple[Array, Array]:
        """Return levels below and above numbers, shape (n,) or (n, k)."""
        xp = arrays.namespace(y)
        below, at_most = self._positions(y)
        left, right = self._bin_levels()
        places = below.reshape(self.n, -1)
        low = xp.take_along_axis(left, places, axis=1).reshape(y.shape)
        high = xp.take_along_axis(right, places, axis=1).reshape(y.shape)
        middles = to_device_of((self._edges[1:] + self._edges[:-1]) / 2, y)
        is_equal = below < at_most
        return xp.where(is_equal, middles[below], low), xp.where(is_equal, middles[at_most], high)

    def _positions(self, y: Array) -> tuple[Array, Array]:
        """Return how many quantiles are below numbers, and at most these; shape (n,) or (n, k)."""
        xp, values = arrays.namespace(y), arrays.to_compute_device(self.values)
        if y.ndim == 1:
            return xp.sum(values < y[:, None], axis=1), xp.sum(values <= y[:, None], axis=1)
        below, at_most = (xp.zeros(y.shape, dtype=np.int64) for _ in range(2))
        for k in range(len(self.levels)):
            below += values[:, k : k + 1] < y
            at_most += values[:, k : k + 1] <= y
        return below, at_most

    def _bin_ends(self) -> tuple[Array, Array]:
        """Return lower and upper ends of the bins, shape (n, K + 1); the outer ends are a mean gap away."""
        values = arrays.to_compute_device(self.values)
        xp = arrays.namespace(values)
        spread = values[:, -1:] - values[:, :1]
        gap = xp.where(spread > 0, spread, xp.maximum(xp.abs(values[:, :1]), 1.0)) / len(self.levels)
        low, high = values[:, :1] - gap, values[:, -1:] + gap
        return xp.concat([low, values], axis=1), xp.concat([values, high], axis=1)

    def _bin_levels(self) -> tuple[Array, Array]:
        """Return levels at the ends of the open bins, shape (n, K + 1); atoms at ties take half of each neighbour.

        Empty bins within a tie have the middle for both.
        """
        values = arrays.to_compute_device(self.values)
        xp, n = arrays.namespace(values), self.n
        edges = to_device_of(self._edges[None, :], values)
        no, middles = xp.zeros((n, 1), dtype=bool), (edges[:, 1:] + edges[:, :-1]) / 2
        is_tied = xp.concat([no, values[:, 1:] == values[:, :-1], no], axis=1)  # quantiles k and k + 1
        is_atom = is_tied[:, 1:] | is_tied[:, :-1]  # of each quantile
        left = xp.where(xp.concat([no, is_atom], axis=1), middles, edges[:, :-1])
        right = xp.where(xp.concat([is_atom, no], axis=1), middles, edges[:, 1:])
        return left, right

    def _inverse_cdf(self, p: Array) -> Array:
        xp = arrays.namespace(p)
        p = xp.broadcast_to(p, (self.n, p.shape[1]))
        # The bin with the probability starts at the last level that is at most p. There is no bin above level 1.
        places = xp.zeros(p.shape, dtype=np.int64)
        for level in self.levels[self.levels < 1]:
            places += p >= level
        left, right, low, high = (
            xp.take_along_axis(part, places, axis=1) for part in (*self._bin_levels(), *self._bin_ends())
        )
        share = (p - left) / xp.where(right > left, right - left, 1.0)
        inside = xp.clip(low + share * (high - low), xp.nextafter(low, high), xp.nextafter(high, low))
        return xp.where(p < left, low, xp.where(p >= right, high, inside))

    def _bin_shares(self, y: Array) -> Array:
        """Return the share of each target in each bin, one-hot except at quantiles; shape (n, K + 1), rows sum to 1."""
        xp = arrays.namespace(y)
        below, at_most = self._positions(y)
        bins = xp.arange(len(self.levels) + 1)
        shares = xp.astype(bins[None, :] == below[:, None], np.float64)
        (equal,) = xp.nonzero(below < at_most)
        if len(equal):
            edges = to_device_of(self._edges, y)
            middles = (edges[1:] + edges[:-1]) / 2
            low, high = middles[below[equal]][:, None], middles[at_most[equal]][:, None]
            overlap = xp.minimum(high, edges[1:]) - xp.maximum(low, edges[:-1])
            overlap = xp.maximum(overlap, 0.0)
            shares[equal] = overlap / (high - low)
        return shares


def _check_order(values: Array, given: np.ndarray, order: np.ndarray, sort: bool) -> None:
    """Refuse quantiles that cross, by their positions in the input; `values` are ordered by level."""
    xp = arrays.namespace(values)
    crosses = values[:, 1:] < values[:, :-1]
    if sort or not bool(xp.any(crosses)):
        return
    i, k = (int(place) for place in np.argwhere(arrays.to_host(crosses))[0])
    first, second = int(order[k]), int(order[k + 1])
    raise ValueError(
        f"`values[{i}, {second}]` is {float(values[i, k + 1]):.6g} at the level {given[second]:.6g}, below "
        f"`values[{i}, {first}]`, {float(values[i, k]):.6g} at {given[first]:.6g}: expected quantiles that do not "
        "cross; pass sort=True to sort each row"
    )
