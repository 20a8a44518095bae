"""Poisson and negative binomial distributions, and their base class: Poisson is the case of dispersion 0.

`log_pmf` uses the saddle-point form of `_saddle_point`, in terms of mean and dispersion, which is accurate down to
dispersion 0.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.cuda import Program
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.memory import check_memory
from kcalib._backend.special import betaincc, special, to_device_of
from kcalib._input.checks import reject
from kcalib._pairs.problem import Components
from kcalib.distributions._checks import LARGEST, broadcast_parameters, check_size, positive_array, real_array
from kcalib.distributions._distribution import Density, Univariate, choose, row_blocks
from kcalib.distributions._saddle_point import deviance, stirling_error

UNIFORMS = 2**22  # random numbers that are copied to a GPU at a time

_WIDEST = 2**15  # counts that are summed one by one
_BLOCK = 2**19
LARGEST_COUNT = 20_000  # larger counts are not tabulated
WORKING_ROWS = 5  # temporary rows of the table's length
_NO_PROBABILITY = 1e-20  # of a count: the largest count above it gets the missing mass, which is rounding
_RUN, _LOG_SMALL = 32, -400.0
CELLS = 128  # cells of quantile functions in approximate Wasserstein distances


class Counts(Density, Univariate):
    """Distributions on 0, 1, 2, ... with a mean and a dispersion: variance = mean + dispersion mean^2."""

    support = "count"

    @abstractmethod
    def _shapes(self) -> tuple[Array, Array]:
        """Return means and dispersions, shape (n, 1), as by `to_compute_device`."""

    def wasserstein_points(self) -> Array:
        """Return quantiles at the midpoints of 128 cells of equal probability, over the root of 128.

        Their Euclidean distance approximates the 2-Wasserstein distance, the L2 distance of quantile functions, without
        the shape of the tails beyond 1/256. `wasserstein_distance`, and kernels on predictions, use exact finite sums.
        """
        p = to_device_of((np.arange(CELLS) + 0.5) / CELLS, self._first)
        return self._like(self._inverse_cdf(p[None, :]) / math.sqrt(CELLS))

    def pmf_table(self, tolerance: float = 1e-15) -> Array:
        """Return probabilities of 0, 1, ..., N, with the same N for all.

        Parameters
        ----------
        tolerance : float
            Largest mass of any distribution above N, the smallest number with this property.

        Returns
        -------
        array, shape (n, N + 1)
            Rows sum to 1 within the tolerance and rounding. Time and memory O(n N).

        Raises
        ------
        ValueError
            If the tolerance is not above 0 and below 1.
        MemoryError
            If the table does not fit in memory.
        """
        if not (isinstance(tolerance, (float, np.floating)) and 0 < tolerance < 1):
            raise ValueError(f"`tolerance` is {tolerance!r}, expected a number above 0 and below 1")
        mean, dispersion = self._shapes()
        xp = arrays.namespace(mean)
        level = xp.full((self.n, 1), -float(scipy.special.ndtri(tolerance)))
        last = smallest(lambda k, at: self._upper(k, at) <= tolerance, self._guess(level, xp.arange(self.n)))
        n_counts = int(xp.max(last)) + 1
        check_memory(
            (self.n + WORKING_ROWS) * n_counts * 8,
            None,
            f"probabilities of {n_counts} counts for each of {self.n} predictions",
            "allow a larger `tolerance`, or take fewer predictions",
            mean,
        )
        first, table = xp.zeros((self.n, 1)), xp.empty((self.n, n_counts))
        for rows in row_blocks(self.n, 16 * n_counts):
            table[rows] = tabulate_pmf(first[rows], n_counts, mean[rows], dispersion[rows])
        return self._like(table)

    def _tabulated(self) -> Array | None:
        """Return `pmf_table`, with sums exact to rounding, or None if there are too many counts."""
        parameters = self.expected_value(), self.standard_deviation()
        largest, spread = (float(arrays.namespace(a).max(a)) for a in parameters)
        return None if largest + 10 * spread > LARGEST_COUNT else self.pmf_table()

    def _atoms(self) -> Components | None:
        """Return the distributions as weights of counts, or None if there are too many counts."""
        table = self._tabulated()
        if table is None:
            return None
        xp = arrays.namespace(table)
        table = xp.where(table < _NO_PROBABILITY, 0.0, table)
        counts = xp.arange(table.shape[1], dtype=table.dtype)
        return Components("atoms", table, xp.broadcast_to(counts[None, :, None], (*table.shape, 1)), None)

    def _log_density(self, y: Array) -> Array:
        mean, dispersion = self._shapes()
        return log_pmf(y, mean[:, 0], dispersion[:, 0])

    def _cdf(self, y: Array) -> Array:
        xp = arrays.namespace(y)
        columns = xp.floor(y.reshape(self.n, -1))
        rows = xp.broadcast_to(xp.arange(self.n)[:, None], columns.shape)
        return xp.where(columns < 0, 0.0, self._lower(xp.maximum(columns, 0.0), rows)).reshape(y.shape)

    def _cdf_left(self, y: Array) -> Array:
        return self._cdf(arrays.namespace(y).ceil(y) - 1)

    @abstractmethod
    def _lower(self, k: Array, rows: Array) -> Array:
        """Return P(Z <= k) for counts k >= 0 of these rows, with a small relative error."""

    @abstractmethod
    def _upper(self, k: Array, rows: Array) -> Array:
        """Return P(Z > k), with a small relative error."""

    def _quantile(self, p: Array) -> Array:
        xp = arrays.namespace(p)
        return self._search_quantiles(xp.broadcast_to(p, (self.n, p.shape[1])), xp.arange(self.n))

    def _search_quantiles(self, p: Array, rows: Array) -> Array:
        """Return quantiles of these rows by a search with the tails; p: (n rows, m)."""
        flat, at_rows = p.reshape(-1), arrays.namespace(p).repeat(rows, p.shape[1])

        def reached(k: Array, at: Array) -> Array:
            level, row = flat[at], at_rows[at]
            # The smaller tail has a small relative error; 1 - p is exact where p >= 1/2.
            return choose(
                level < 0.5,
                lambda i: self._lower(k[i], row[i]) >= level[i],
                lambda i: self._upper(k[i], row[i]) <= 1 - level[i],
            )

        return smallest(reached, self._guess(special(p).ndtri(p), rows)).reshape(p.shape)

    def _inverse_cdf(self, p: Array) -> Array:
        """Return quantiles, shape (n, m), of probabilities within 1e-12 of p, shape (1, m) or (n, m).

        From cumulative sums of probabilities if there are not too many, which is far faster than a search.
        """
        xp = arrays.namespace(p)
        p, rows = xp.broadcast_to(p, (self.n, p.shape[1])), xp.arange(self.n)
        if not arrays.is_host(p):
            return self._search_quantiles(p, rows)
        # Uniform numbers of 53 bits do not reach mass 1e-20 at either end.
        bounds = self._guess(np.full((self.n, 1), -9.3), rows), self._guess(np.full((self.n, 1), 9.3), rows)
        first = smallest(lambda k, at: self._lower(k, at) >= 1e-20, bounds[0])
        width = smallest(lambda k, at: self._upper(k, at) <= 1e-20, bounds[1]) - first + 1
        result = np.empty(p.shape)
        wide = rows[width > _WIDEST]
        result[wide] = self._search_quantiles(p[wide], wide)
        order = np.argsort(width)[: self.n - wide.size]  # batches rows of similar width
        start = 0
        while start < order.size:
            size = max(int(_BLOCK // width[order[start]]), 1)
            block = order[start : start + size]
            block = block[width[block] <= 2 * width[block[0]]]
            start += block.size
            sums = self._sums(first[block], int(width[block[-1]]), block)
            for row, cumulative in zip(block, sums, strict=True):
                result[row] = first[row] + np.searchsorted(cumulative[:-1], p[row])
        return result

    def _sums(self, first: Array, width: int, rows: Array) -> Array:
        """Return cumulative probabilities of counts from the first ones on, by ratios of neighbours."""
        mean, dispersion = (shape[rows] for shape in self._shapes())
        k = first[:, None] + np.arange(width)
        terms = (mean / (1 + dispersion * mean)) * ((1 + dispersion * (k - 1)) / np.maximum(k, 1.0))
        terms[:, 0] = np.exp(log_pmf(first, mean[:, 0], dispersion[:, 0]))
        return np.cumsum(np.cumprod(terms, axis=1), axis=1)

    def _guess(self, z: Array, rows: Array) -> Array:
        """Return quantiles of rows at the levels of normal quantiles z, by the Cornish-Fisher expansion, flat."""
        mean, dispersion = (shape[rows] for shape in self._shapes())
        variance = mean * (1 + dispersion * mean)
        skewed = (1 + 2 * dispersion * mean) * (z * z - 1) / 6  # skewness times standard deviation
        xp = arrays.namespace(z)
        return xp.maximum(xp.floor(mean + xp.sqrt(variance) * z + skewed), 0.0).reshape(-1)


def smallest(reached: Callable[[Array, Array], Array], guess: Array) -> Array:
    """Return the smallest counts for which `reached(count, position)`, monotone in the count, is true.

    By doubling steps from the guess, then bisection.
    """
    xp = arrays.namespace(guess)
    low, high = xp.full(guess.shape, -1.0), xp.full(guess.shape, np.inf)
    has_lower = xp.zeros(guess.shape, dtype=bool)  # below as well as above
    at, active, step = guess.copy(), xp.arange(guess.size), 1.0
    while active.size:
        ok = reached(at[active], active)
        high[active[ok]] = at[active[ok]]
        low[active[~ok]] = at[active[~ok]]
        has_lower[active[~ok]] = True
        below, above = low[active], high[active]
        down = xp.where(has_lower[active], xp.floor(below / 2 + above / 2), xp.maximum(above - step, 0.0))
        at[active] = xp.where(xp.isinf(above), below + step, down)
        step *= 2
        # Beyond 2^53 neighbouring numbers differ by more than 1.
        active = active[(above - below > 1) & (at[active] > below) & (at[active] < above)]
    return high


def tabulate_pmf(first: Array, n_counts: int, mean: Array, dispersion: Array) -> Array:
    """Return P(Z = k) of `n_counts` counts from `first` on, shape (rows, n_counts); 0 for k < 0.

    Every `_RUN`-th count is exact to rounding; the others come from ratios of neighbours.
    """
    xp = arrays.namespace(mean)
    k = first + xp.arange(-(-n_counts // _RUN) * _RUN, dtype=np.float64)
    ratios = mean / (1 + dispersion * mean) * (1 + dispersion * (k - 1)) / xp.maximum(k, 1.0)
    ratios = xp.where(k < 1, 1.0, ratios).reshape(len(k), -1, _RUN)
    logs = log_pmf(xp.maximum(k[:, ::_RUN], 0.0), mean, dispersion)
    lift = xp.where(logs < _LOG_SMALL, -_LOG_SMALL, 0.0)  # of runs that start with an underflow
    ratios[:, :, 0] = xp.exp(logs + lift)
    table = xp.cumprod(ratios, axis=2) * xp.exp(-lift)[:, :, None]
    return xp.where(k < 0, 0.0, table.reshape(k.shape))[:, :n_counts]


def log_pmf(k: Array, mean: Array, dispersion: Array) -> Array:
    """Return log P(Z = k) for counts k."""
    xp = arrays.namespace(mean)
    k, mean, dispersion = xp.broadcast_arrays(k, mean, dispersion)
    # With size = 1 / dispersion: P(k) = size / total * Binomial(size; total, 1 / spread), total = size + k.
    spread = 1 + dispersion * mean
    per_size = 1 + dispersion * k  # total / size
    positive = xp.maximum(k, 1.0)
    gap = (mean - k) / spread  # size minus its expectation total / spread, and minus that of k
    result = -stirling_error(positive) - deviance(positive, mean * per_size / spread, -gap)
    result += -0.5 * xp.log(2 * math.pi * positive) - 0.5 * xp.log(per_size)
    is_over = dispersion > 0
    if xp.any(is_over):
        size = 1 / xp.where(is_over, dispersion, 1.0)
        total = size + k
        rest = stirling_error(total) - stirling_error(size) - deviance(size, total / spread, gap)
        result = xp.where(is_over, result + rest, result)
        at_zero = xp.where(is_over, -xp.log1p(dispersion * mean) * size, -mean)
    else:
        at_zero = -mean
    return xp.where(k == 0, at_zero, result)


def poisson_program() -> Program:
    # Round products and sums as NumPy does, without fused operations.
    return Program(("cuda/poisson.cu",), ("-fmad=false",), threads=1)


@dataclass(frozen=True, eq=False)
class Poisson(Counts):
    r"""Poisson distributions of counts.

    Parameters
    ----------
    rate : array_like, shape (n,)
        Expected counts, from 1e-15 to 1e15.

    Raises
    ------
    TypeError, ValueError
        If the rates are not finite, real and in their range, or if the shape is not (n,).

    See Also
    --------
    NegativeBinomial : Counts with a larger variance than mean.

    Examples
    --------
    >>> from kcalib.distributions import Poisson
    >>> predictions = Poisson([1.0, 10.0])
    >>> predictions.quantile([0.5, 0.9]).tolist()
    [[1.0, 2.0], [10.0, 14.0]]
    >>> predictions.pmf_table().shape
    (2, 45)
    """

    rate: Array

    def __init__(self, rate: Any) -> None:
        self._set(rate=positive_array(rate, "rate", "a positive rate"))

    def expected_value(self) -> Array:
        return self.rate[:, None]

    def standard_deviation(self) -> Array:
        return arrays.namespace(self.rate).sqrt(self.rate)[:, None]

    def sample(self, size: int, *, seed: int = 0) -> Array:
        size, rng = check_size(size), np.random.default_rng(seed)
        if arrays.is_cuda(self.rate):
            return self._sample_on_gpu(size, rng)
        return self._like(rng.poisson(arrays.to_host(self.rate)[:, None], size=(self.n, size)))

    def _sample_on_gpu(self, size: int, rng: np.random.Generator) -> Array:
        """Draw as NumPy's generator does, from its uniform numbers, which are copied to the GPU in batches."""
        xp, n_draws = arrays.namespace(self.rate), self.n * size
        # A draw takes on average 1 more number than its rate if that is below 10, and less than 3 otherwise.
        each = float(xp.mean(xp.where(self.rate < 10, self.rate + 1, 3.0)))
        out, progress, unused, n_drawn = xp.empty((self.n, size)), xp.zeros(2, dtype=np.int64), np.empty(0), 0
        while n_drawn < n_draws:
            count = min(UNIFORMS, int(1.1 * each * (n_draws - n_drawn))) + len(unused) + 1000
            uniforms = np.concatenate([unused, rng.random(count)])
            arguments = (
                xp.ascontiguousarray(self.rate),
                np.int64(n_draws),
                np.int64(size),
                arrays.like(uniforms, self.rate),
                np.int64(len(uniforms)),
                progress,
                out,
            )
            poisson_program().launch("kcalib_poisson", (1, 1), arguments)
            n_drawn, used = (int(number) for number in arrays.to_host(progress))
            unused = uniforms[used:]
        return out

    def _shapes(self) -> tuple[np.ndarray, np.ndarray]:
        rate = arrays.to_compute_device(self.rate, np.float64)[:, None]
        return rate, arrays.namespace(rate).zeros_like(rate)

    def _lower(self, k: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return special(k).gammaincc(k + 1, arrays.to_compute_device(self.rate)[rows])

    def _upper(self, k: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return special(k).gammainc(k + 1, arrays.to_compute_device(self.rate)[rows])


@dataclass(frozen=True, eq=False)
class NegativeBinomial(Counts):
    r"""Negative binomial distributions of counts, by mean and dispersion.

    The variance is mean + dispersion * mean^2; for dispersion 0 it would be a Poisson distribution.

    Parameters
    ----------
    mean : array_like, shape (n,)
        Expected counts, from 1e-15 to 1e15.
    dispersion : array_like, shape (n,)
        Dispersions, from 1e-15; mean * dispersion is at most 1e15. The dispersion is 1 / theta of R's glm.nb, alpha of
        statsmodels, and 1 / n of ``scipy.stats.nbinom``. One of the two may be a single number.

    Raises
    ------
    TypeError, ValueError
        If a parameter is not finite, real and in its range, or if the shapes differ.

    See Also
    --------
    Poisson : The limit of dispersion 0.

    Examples
    --------
    >>> from kcalib.distributions import NegativeBinomial
    >>> predictions = NegativeBinomial([1.0, 10.0], 0.5)
    >>> predictions.standard_deviation().round(3).tolist()
    [[1.225], [7.746]]
    >>> NegativeBinomial.from_number_and_probability([2.0, 2.0], [0.5, 0.1]).mean.tolist()
    [2.0, 18.0]
    """

    mean: Array
    dispersion: Array

    def __init__(self, mean: Any, dispersion: Any) -> None:
        self._set(
            mean=positive_array(mean, "mean", "a positive mean"),
            dispersion=positive_array(dispersion, "dispersion", "a positive dispersion (for 0 use Poisson)"),
        )
        reject(
            self.dispersion,
            self.dispersion * self.mean > LARGEST,
            lambda at, x: f"`dispersion{at}` is {x}, more than {LARGEST:.0e} over `mean{at}`; clip it, or drop it",
        )

    @classmethod
    @on_their_gpu
    def from_number_and_probability(cls, n: Any, p: Any) -> NegativeBinomial:
        """Make distributions of the number of failures before the n-th success, as in ``scipy.stats.nbinom``.

        Parameters
        ----------
        n : array_like, shape (n samples,)
            Numbers of successes, positive, not necessarily integers.
        p : array_like, shape (n samples,)
            Probabilities of success, above 0 and below 1. One of the two may be a single number.

        Returns
        -------
        NegativeBinomial
            With mean n (1 - p) / p and dispersion 1 / n.
        """
        number, probability = positive_array(n, "n", "a positive number of successes"), real_array(p, "p")
        reject(
            probability,
            ~((probability > 0) & (probability < 1)),
            lambda at, x: f"`p{at}` is {x}, expected a probability above 0 and below 1; clip it",
        )
        number, probability = broadcast_parameters(n=number, p=probability).values()
        return cls(number * (1 - probability) / probability, 1 / number)

    def expected_value(self) -> Array:
        return self.mean[:, None]

    def standard_deviation(self) -> Array:
        return arrays.namespace(self.mean).sqrt(self.mean * (1 + self.dispersion * self.mean))[:, None]

    def sample(self, size: int, *, seed: int = 0) -> Array:
        arrays.check_not_cuda(self.mean, "independent draws from negative binomial distributions")
        rng = np.random.default_rng(seed)
        mean, dispersion = self._shapes()
        rates = rng.gamma(1 / dispersion, dispersion * mean, size=(self.n, check_size(size)))
        return self._like(rng.poisson(rates))

    def _shapes(self) -> tuple[np.ndarray, np.ndarray]:
        mean, dispersion = (arrays.to_compute_device(a, np.float64)[:, None] for a in (self.mean, self.dispersion))
        return mean, dispersion

    def _lower(self, k: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return self._tail(k, rows, betaincc, _betainc)

    def _upper(self, k: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return self._tail(k, rows, _betainc, betaincc)

    def _tail(self, k: np.ndarray, rows: np.ndarray, of_failure: Any, of_success: Any) -> np.ndarray:
        mean, dispersion = arrays.to_compute_device(self.mean)[rows], arrays.to_compute_device(self.dispersion)[rows]
        size, ratio = 1 / dispersion, dispersion * mean
        # The smaller of the two probabilities has a small relative error.
        return choose(
            ratio < 1,
            lambda i: of_failure(k[i] + 1, size[i], ratio[i] / (1 + ratio[i]), 1 / (1 + ratio[i])),
            lambda i: of_success(size[i], k[i] + 1, 1 / (1 + ratio[i]), ratio[i] / (1 + ratio[i])),
        )


def _betainc(a: Array, b: Array, x: Array, complement: Array) -> Array:
    """Return I_x(a, b), with arguments as for `betaincc`."""
    return special(x).betainc(a, b, x)
