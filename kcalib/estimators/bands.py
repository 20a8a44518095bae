"""Compute confidence and consistency limits of frequencies in bins, for `reliability`.

Confidence limits are Clopper-Pearson intervals. Consistency limits, of labels drawn from the predictions, are exact
quantiles of the Poisson binomial distribution, or order statistics of draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._backend.random import draw_label_batches
from kcalib._backend.segments import Segments
from kcalib._pairs.statistics import cumulative_sum
from kcalib.estimators.event_bins import Bins, Sample, by_confidence

N_RESAMPLES = 999
MAX_POINTS = 1000  # of bands of isotonic regression
BATCH_ELEMENTS, DEVICE_ELEMENTS = 2**18, 2**24  # drawn labels in memory at a time
SHORT = 40  # distributions of fewer values are convolved without a Fourier transform


class Band(NamedTuple):
    """Lower and upper limits of observed frequencies."""

    low: np.ndarray  #: float64, in [0, 1], shape (k,)
    high: np.ndarray  #: float64, in [0, 1], shape (k,)


def clopper_pearson(bins: Bins, tail: float) -> Band:
    """Return limits of the true frequency in each bin, from the effective number of samples; [0, 1] for empty bins."""
    filled = bins.count > 0
    hits = bins.effective * np.where(filled, bins.frequency, 0.0)
    misses = bins.effective * np.where(filled, 1 - bins.frequency, 0.0)
    # Arguments of 1 avoid undefined values, which are not used.
    low = scipy.special.betaincinv(np.where(hits > 0, hits, 1.0), misses + 1, tail)
    high = scipy.special.betainccinv(hits + 1, np.where(misses > 0, misses, 1.0), tail)
    return Band(np.where(hits > 0, low, 0.0), np.where(misses > 0, high, 1.0))


def exact_band(sample: Sample, index: Array, filled: np.ndarray, count: np.ndarray, tail: float) -> Band:
    """Return quantiles of each bin's frequency if events are independent with the predicted probabilities."""
    xp = arrays.namespace(index)
    order = np.argsort(index, kind="stable") if arrays.is_host(index) else xp.argsort(index)
    ordered, ends = sample.confidence[order], np.cumsum(count[filled]).tolist()
    parts = [ordered[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    limits = np.array([_count_limits(part, tail) / len(part) for part in parts])
    return Band(limits[:, 0], limits[:, 1])


def binomial_band(bins: Bins, tail: float) -> Band:
    """Return limits as in `exact_band`, or slightly wider, from mean confidences only; NaN for empty bins.

    The probability that fewer than k of independent events happen is at most that of the binomial distribution with
    their mean probability, for k up to its expectation; likewise above, by symmetry (Hoeffding 1956).
    """
    filled = np.flatnonzero(bins.count)
    count, confidence = bins.count[filled].astype(np.float64), np.clip(bins.confidence[filled], 0.0, 1.0)
    band = Band(*(np.full(len(bins.count), np.nan) for _ in range(2)))
    band.low[filled] = _binomial_low(count, confidence, tail) / count
    band.high[filled] = 1 - _binomial_low(count, 1 - confidence, tail) / count
    return band


def _binomial_low(count: np.ndarray, share: np.ndarray, tail: float) -> np.ndarray:
    """Return the largest number, up to the expectation, with a binomial probability below it of at most `tail`."""
    inside = (share > 0) & (share < 1)
    p = np.where(inside, share, 0.5)
    least = np.maximum(np.ceil(scipy.special.bdtrik(tail, count, p)), 0.0)
    below = scipy.special.bdtr(np.maximum(least - 1, 0.0), count.astype(np.int64), p)
    least -= (least > 0) & (below > tail)
    return np.minimum(np.where(inside, least, count * share), np.floor(count * share))


def _count_limits(probabilities: Array, tail: float) -> np.ndarray:
    """Return the lowest and highest count, with probabilities below and above them of at most `tail`."""
    law, xp = count_law(probabilities), arrays.namespace(probabilities)
    low, high = (xp.searchsorted(cumulative_sum(part), tail, side="right") for part in (law, xp.flip(law)))
    return np.array([int(low), len(probabilities) - int(high)])


def count_law(probabilities: Array) -> Array:
    """Return the Poisson binomial distribution: P(k events) for k = 0..n, of independent events.

    It is the product of the polynomials 1 - p + p z, in time O(n log^2 n), with an absolute error of sums of about
    4e-18 n.
    """
    xp = arrays.namespace(probabilities)
    laws = xp.stack((1 - probabilities, probabilities), axis=1)
    while len(laws) > 1:
        if len(laws) % 2:
            laws = xp.concat((laws, arrays.like(np.eye(1, laws.shape[1]), laws)))  # the distribution without events
        laws = _products(laws[::2], laws[1::2])
    return laws[0, : len(probabilities) + 1]


def _products(left: Array, right: Array) -> Array:
    """Return products of polynomials, row by row."""
    xp = arrays.namespace(left)
    size = left.shape[1] + right.shape[1] - 1
    if size >= SHORT:
        length = scipy.fft.next_fast_len(size, real=True)
        fft = scipy.fft if arrays.is_host(left) else xp.fft
        spectrum = fft.rfft(left, n=length) * fft.rfft(right, n=length)
        return xp.maximum(fft.irfft(spectrum, n=length)[:, :size], 0.0)
    result = xp.zeros((len(left), size), **({} if arrays.is_host(left) else {"device": arrays.device(left)}))
    for power in range(left.shape[1]):
        result[:, power : power + right.shape[1]] += left[:, power, None] * right
    return result


class Draws(NamedTuple):
    """Options of draws of all labels, and the rank of the order statistics that are the limits."""

    n_resamples: int
    seed: int
    rank: int  # the lowest and the highest `rank` - 1 values are outside

    @classmethod
    def of(cls, seed: int, tail: float, n_values: int, reference: Array) -> Draws:
        """Return enough draws for limits with probability `tail` on either side, at least `N_RESAMPLES`."""
        n_resamples = max(N_RESAMPLES, int(np.ceil(1 / tail - 1e-9)) - 1)
        contents = f"{n_resamples} draws of {n_values} frequencies"
        check_memory(16 * n_values * n_resamples, None, contents, "use fewer n_bins, or a lower level", reference)
        return cls(n_resamples, seed, int(tail * (n_resamples + 1) + 1e-9))


def isotonic_band(sample: Sample, draws: Draws) -> tuple[np.ndarray, Band]:
    """Return confidences, and limits of the isotonic regression there."""
    distinct = by_confidence(sample)
    u = len(distinct.confidence)
    at = np.unique(np.linspace(0, u - 1, min(u, MAX_POINTS)).round().astype(np.intp))

    def fitted(frequencies: np.ndarray) -> np.ndarray:
        regression = scipy.optimize.isotonic_regression
        return np.stack([regression(column, weights=distinct.weight).x[at] for column in frequencies.T], axis=1)

    return distinct.confidence[at], drawn_band(sample, distinct.place, draws, fitted)


def drawn_band(
    sample: Sample, group: Array, draws: Draws, fitted: Callable[[np.ndarray], np.ndarray] | None = None
) -> Band:
    """Return order statistics of the frequencies of drawn labels in groups 0, 1, ..., after a fit.

    Under calibration the observed frequencies and the R drawn ones are in random order, so an observed frequency is
    below the drawn one of rank r with probability at most r / (R + 1).
    """
    xp, is_host = arrays.namespace(group), arrays.is_host(group)
    # On a device groups are bins, in the order of confidences.
    order = np.lexsort((sample.confidence, group)) if is_host else xp.argsort(sample.confidence)
    confidence, weight = sample.confidence[order], sample.weight[order][:, None]
    sums = _summing(group[order])
    totals = sums(weight)
    probabilities = xp.stack((1 - confidence, confidence), axis=1)
    at_once = max(1, (BATCH_ELEMENTS if is_host else DEVICE_ELEMENTS) // len(group))
    parts = []
    for labels in draw_label_batches(probabilities, draws.n_resamples, draws.seed, at_once=at_once):
        frequencies = sums(weight * labels) / totals
        parts.append(frequencies if fitted is None else fitted(frequencies))
    values = xp.concat(parts, axis=1)
    lowest, highest = draws.rank - 1, draws.n_resamples - draws.rank
    if is_host:
        values.partition((lowest, highest), axis=1)
    else:
        values = xp.sort(values, axis=1)
    return Band(*(np.array(arrays.to_host(values[:, rank])) for rank in (lowest, highest)))


def _summing(group: Array) -> Callable[[Array], Array]:
    """Return a function that sums the rows of an array within sorted, non-empty groups 0, 1, ..."""
    if arrays.is_host(group):
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        return lambda rows: np.add.reduceat(rows, starts)
    return Segments.of_runs(arrays.namespace(group).bincount(group)).sums
