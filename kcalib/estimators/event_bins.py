"""Bin confidences and events, for reliability diagrams (`reliability`, `bands`) and `brier`.

A `Sample` holds confidences and events, through a lens with two induced classes. `cut` computes bins of equal width, of
equal mass, or the blocks of isotonic regression; `Bins` holds their sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice, check_integer
from kcalib._input.labels import Classification
from kcalib._pairs.statistics import group_sums
from kcalib.estimators.binning import MAX_BINS, N_BINS, Binning, bin_edges, in_order

BINNINGS = ("uniform", "equal_mass", "isotonic")
N_POINTS = 100  # default number of points of curves


def check_binning(binning: str, n_bins: int | None, binnings: tuple[str, ...] = BINNINGS) -> int | None:
    """Check `binning` and `n_bins`; return the number, by default 15 (curves: 100), None for isotonic regression."""
    check_choice("binning", binning, binnings)
    if binning != "isotonic":
        default = N_POINTS if binning == "smooth" else N_BINS
        return check_integer("n_bins", default if n_bins is None else n_bins, 1, MAX_BINS)
    if n_bins is not None:
        raise ValueError(f"`n_bins` is {n_bins!r}, but binning='isotonic' chooses the number; leave it out")
    return None


@dataclass(frozen=True)
class Sample:
    """Confidences, events and weights of samples of positive weight: float64, shape (n,), NumPy or CuPy arrays."""

    confidence: Array
    event: Array  # 0 or 1
    weight: Array

    @classmethod
    def of(cls, data: Classification) -> Sample:
        if data.m != 2:
            raise ValueError(
                f"`lens` is {data.lens}, which has {data.m} induced classes, expected a lens with two; "
                "pass lens=kcalib.lenses.TopLabel() or lens=kcalib.lenses.ClassWise(k)"
            )
        second = arrays.to_compute_device(data.probabilities[:, 1], np.float64)
        xp = arrays.namespace(second)
        confidence, event = xp.minimum(second, 1.0), arrays.to_compute_device(data.labels, np.float64)
        if data.sample_weight is None:
            return cls(confidence, event, xp.ones_like(second))
        weight = arrays.to_compute_device(data.sample_weight, np.float64)
        has_weight = weight > 0
        return cls(confidence[has_weight], event[has_weight], weight[has_weight])

    def to_host(self) -> Sample:
        return Sample(*map(arrays.to_host, (self.confidence, self.event, self.weight)))


def cut(sample: Sample, binning: str, n_bins: int | None) -> tuple[np.ndarray, Array]:
    """Return the edges of the bins, shape (k + 1,), and the bin of each sample, shape (n,), on the samples' device."""
    if binning == "isotonic":
        arrays.check_not_cuda(sample.confidence, "isotonic regression")
        distinct = by_confidence(sample)
        blocks = scipy.optimize.isotonic_regression(distinct.frequency, weights=distinct.weight).blocks
        edges = np.concatenate(([0.0], distinct.confidence[blocks[1:-1] - 1], [1.0]))
    elif binning == "equal_mass":
        assert n_bins is not None
        edges = Binning(binning, n_bins).edges(*in_order(sample.confidence, sample.weight))
    else:
        assert n_bins is not None
        edges = bin_edges(n_bins)
    return edges, find_bins(sample.confidence, edges)


def find_bins(confidence: Array, edges: np.ndarray) -> Array:
    """Return the bin (a, b] of each confidence; 0 is in the first bin."""
    inner = arrays.like(edges[1:-1], confidence)
    return arrays.namespace(confidence).searchsorted(inner, confidence, side="left")


class _Distinct(NamedTuple):
    confidence: np.ndarray  # distinct and ascending, shape: (u,)
    place: np.ndarray  # of each sample's confidence among them, shape: (n,)
    frequency: np.ndarray  # weighted mean of the events of each, shape: (u,)
    weight: np.ndarray  # shape: (u,)


def by_confidence(sample: Sample) -> _Distinct:
    distinct, place = np.unique(sample.confidence, return_inverse=True)
    weight = np.bincount(place, sample.weight)
    return _Distinct(distinct, place, np.bincount(place, sample.weight * sample.event) / weight, weight)


def effective_numbers(group: Array, weight: Array, count: Array, sums: Array) -> Array:
    """Return the squared sum over the sum of squares of each group's positive weights; 0 for empty groups."""
    xp = arrays.namespace(weight)
    relative = weight / (sums / xp.where(count > 0, count, 1))[group]
    first, second = group_sums(group, len(count), relative, relative * relative)
    return xp.where(count > 0, first**2 / xp.where(count > 0, second, 1.0), 0.0)


@dataclass(frozen=True)
class Bins:
    """Statistics of each bin, on the host."""

    count: np.ndarray
    weight: np.ndarray
    effective: np.ndarray  # number of samples of equal weight whose mean has the same variance
    confidence: np.ndarray
    frequency: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray

    @classmethod
    def of(cls, sample: Sample, index: Array, n_bins: int) -> Bins:
        w = sample.weight
        count = arrays.to_host(arrays.namespace(index).bincount(index, minlength=n_bins))
        terms = (w, w * sample.confidence, w * sample.event)
        sums = [arrays.to_host(totals) for totals in group_sums(index, n_bins, *terms)]
        share = np.where(count > 0, sums[0], np.nan)
        lowest, highest = np.full(n_bins, np.nan), np.full(n_bins, np.nan)
        if arrays.is_host(index):
            np.fmin.at(lowest, index, sample.confidence)
            np.fmax.at(highest, index, sample.confidence)
        else:  # bins are in the order of confidences
            filled, ends = count > 0, np.cumsum(count)
            ascending = arrays.namespace(index).sort(sample.confidence)
            first, last = (arrays.like(at[filled], index) for at in (ends - count, ends - 1))
            lowest[filled], highest[filled] = (arrays.to_host(ascending[at]) for at in (first, last))
        effective = arrays.to_host(effective_numbers(index, w, *(arrays.like(array, w) for array in (count, sums[0]))))
        return cls(count, sums[0], effective, sums[1] / share, sums[2] / share, lowest, highest)
