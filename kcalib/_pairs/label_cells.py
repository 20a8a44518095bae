"""Cells for labels: of the probability of each class, of the largest probability, and sums of log probabilities.

`kcalib.inference.adaptive` compares how many observed and how many drawn labels fall into each cell. Edges of cells are
the same for all data, so that sums over parts of the data add up. Afterwards cells are joined to bins with about equal
numbers of predictions. All sums are exact in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.sums import Sums
from kcalib._backend.threads import run_options

# t = 1 + theta, as in src/cpu/samples/temperature_sums.h; for smaller changes the normal law is accurate.
EXPONENTS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8, 15 / 16, 31 / 32, 33 / 32, 17 / 16, 9 / 8, 5 / 4, 3 / 2, 2.0, 3.0)
TERMS = 5  # in the order of src/cpu/samples/temperature_sums.h

FLOOR = 1e-12  # smallest probability in logarithms
OCTAVES = 40  # distinct octaves of p or 1 - p, down to about the floor
FEWEST, FEWEST_OF_TOP, MOST = 32, 256, 512  # cells of a class, of the largest probability, and of either
ENTRIES, MOST_ENTRIES = 2**11, 2**15  # cells of all classes, where these have more than the fewest, and in any case
AT_ONCE = 2**20  # entries of predictions that are processed together on a device
POSSIBLE = 2**63 - 1  # stands for no row
FRACTION = 2.0**-38  # unit of `DrawnCells.fractions`, as in src/cpu/samples/label_cells.h
WEIGHT, HIT, SMALLER, VARIANCE = range(4)  # in the order of src/cpu/samples/label_cells.h


def make_edges(n_cells: int) -> np.ndarray:
    """Return ascending edges of cells of [0, 1], half of them evenly spaced, half finer near 0 and 1.

    `n_cells` is a power of two: edges are sums of few powers of two, the same on every machine; shape (n_cells - 1,).
    """
    even = np.arange(1, n_cells // 2) / (n_cells // 2)
    octaves = np.arange(1, n_cells // 4 + 1) * (4 * OCTAVES / n_cells)
    whole = np.ceil(octaves)
    small = np.ldexp(1 + (whole - octaves), -whole.astype(int))
    return np.sort(np.concatenate([even, small, 1 - small]))


@dataclass(frozen=True, eq=False)
class LabelSums(Sums):
    """Sums of observed labels in each cell, and their expectations for labels drawn from the predictions.

    With weights w, and the smaller side s of a probability p: p below 1/2, else the sum of the other probabilities,
    which has the digits of 1 - p.
    """

    _stored: ClassVar = {"cells": "label_cells", "logs": "label_logs", "impossible": "impossible_label"}
    _least = "impossible"

    cells: ExactSums  # w, w if the label is the cell's, w s, w^2 s (1 - s), shape (size, 4)
    logs: ExactSums  # w times log of the label's probability, w times its mean and w^2 times its variance, shape (3,)
    impossible: np.ndarray  # the first row whose label has the probability 0; `POSSIBLE` if there is none


@dataclass(frozen=True, eq=False)
class LabelCells:
    """Cells of predictions; a probability that equals an edge lies above it.

    Edges ascend: n_cells - 1 for the probability of each class, n_top_cells - 1 for the largest probability.
    """

    n_classes: int
    edges: np.ndarray
    top_edges: np.ndarray

    @classmethod
    def for_classes(cls, m: int) -> LabelCells:
        """Return the cells of problems of m classes."""
        n_cells = min(MOST, max(FEWEST, power_of_two(ENTRIES // m)))
        n_cells = max(4, min(n_cells, power_of_two(MOST_ENTRIES // m)))
        return cls(m, make_edges(n_cells), make_edges(max(n_cells, FEWEST_OF_TOP)))

    @property
    def n_cells(self) -> int:
        """The number of cells of a class."""
        return len(self.edges) + 1

    @property
    def size(self) -> int:
        """The number of cells of all classes and of the largest probability."""
        return self.n_classes * self.n_cells + len(self.top_edges) + 1

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The lower and the upper end of each cell."""
        lower, upper = np.append(0.0, self.edges), np.append(self.edges, 1.0)
        return (
            np.append(np.tile(lower, self.n_classes), np.append(0.0, self.top_edges)),
            np.append(np.tile(upper, self.n_classes), np.append(self.top_edges, 1.0)),
        )

    def compiled(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the edges for `_native`."""
        return self.edges, self.top_edges, FLOOR

    def zeros(self) -> LabelSums:
        """Return sums without labels."""
        return LabelSums(ExactSums.zeros(self.size, 4), ExactSums.zeros(3), np.array([POSSIBLE], dtype=np.int64))

    def drawn_zeros(self, n_draws: int) -> DrawnCells:
        """Return empty sums of drawn labels."""
        return DrawnCells(self, np.zeros((n_draws, self.size)), None, ExactSums.zeros(n_draws))

    def join(self, weights: np.ndarray, n_bins: int, n_top_bins: int) -> np.ndarray:
        """Return the bin of each cell; neighbouring cells are joined to bins of about equal weight.

        Bins of class k start at k * n_bins, followed by the bins of the largest probability. Some may be empty.
        """
        classes, top = np.split(weights, [self.n_classes * self.n_cells])
        of_classes = (
            join_cells(classes.reshape(self.n_classes, -1), n_bins) + n_bins * np.arange(self.n_classes)[:, None]
        )
        return np.append(of_classes.reshape(-1), n_bins * self.n_classes + join_cells(top, n_top_bins))

    def sum(
        self, probabilities: Array, labels: Array, weights: Array | None = None, threads: int | None = None
    ) -> LabelSums:
        """Return the sums of labels of shape (n,)."""
        sums = self.zeros()
        if not arrays.is_cuda(probabilities):
            p, labels = (
                arrays.as_compact(arrays.to_host(part), kind)
                for part, kind in ((probabilities, np.float64), (labels, np.int64))
            )
            of_rows = None if weights is None else arrays.as_compact(arrays.to_host(weights), np.float64)
            with run_options(threads) as options:
                _native.sum_label_cells(
                    p, labels, of_rows, self.compiled(), sums.cells.flat(), sums.logs.flat(), sums.impossible, options
                )
            return sums
        for rows, p, codes, top_codes in self.chunks(probabilities):
            xp, label = arrays.namespace(p), arrays.asarray_like(labels[rows], p)
            w = xp.ones_like(p[:, 0]) if weights is None else arrays.asarray_like(weights[rows], p)
            is_top = xp.arange(self.n_classes) == p.argmax(axis=1)[:, None]
            hits = (xp.arange(self.n_classes) == label[:, None]).astype(xp.float64)
            rest = xp.where(is_top, 0.0, p).sum(axis=1)
            smaller = xp.where(p >= 0.5, rest[:, None], p)
            logarithms = xp.log(p.clip(FLOOR, None))
            means = (p * logarithms).sum(axis=1)
            values = xp.stack([xp.ones_like(p), hits, smaller, smaller * (1 - smaller)], axis=2)
            values = values * xp.stack([w, w, w, w * w], axis=1)[:, None, :]
            of_top = values[is_top]
            of_cells = ExactSums.by_group(
                xp.concatenate([values.reshape(-1, 4), of_top]),
                xp.concatenate([codes.reshape(-1), top_codes]),
                self.size,
            )
            logs = [(hits * logarithms).sum(axis=1) * w, means * w]
            logs.append((p * (logarithms - means[:, None]) ** 2).sum(axis=1) * w**2)
            impossible = arrays.to_host(xp.flatnonzero(((hits * p).sum(axis=1) == 0) & (w > 0)))
            first = np.append(rows.start + impossible, POSSIBLE)[:1]
            sums += LabelSums(of_cells.to_host(), ExactSums.over_rows(xp.stack(logs, axis=1)).to_host(), first)
        return sums

    def chunks(self, probabilities: Array) -> Iterator[tuple[slice, Array, Array, Array]]:
        """Yield rows, their probabilities, and the cells of these and of the largest one, by NumPy or CuPy."""
        step = max(1, AT_ONCE // self.n_classes)
        n = int(probabilities.shape[0])
        for begin in range(0, n, step):
            rows = slice(begin, min(begin + step, n))
            chunk = probabilities[rows, :]
            p = (chunk if arrays.is_cuda(chunk) else arrays.to_host(chunk)).astype(np.float64)
            xp, edges, top_edges = arrays.namespace(p), arrays.like(self.edges, p), arrays.like(self.top_edges, p)
            codes = xp.searchsorted(edges, p, side="right") + xp.arange(self.n_classes) * self.n_cells
            top_codes = xp.searchsorted(top_edges, p.max(axis=1), side="right") + self.n_classes * self.n_cells
            yield rows, p, codes, top_codes


@dataclass(frozen=True, eq=False)
class DrawnCells(Sums):
    """Sums of drawn labels, which `drawn_label_totals` adds to.

    `counts` are weights of labels in cells, shape (draws, size); `fractions` are the parts of exact weights below
    2**-15, as `counts` are exact in multiples of it. `log_scores` are weighted sums of log probabilities of labels.
    """

    cells: LabelCells
    counts: np.ndarray
    fractions: np.ndarray | None
    log_scores: ExactSums

    def __add__(self, other: DrawnCells) -> DrawnCells:
        fractions = self.fractions
        if other.fractions is not None:
            fractions = other.fractions if fractions is None else fractions + other.fractions
        return DrawnCells(self.cells, self.counts + other.counts, fractions, self.log_scores + other.log_scores)

    def copy(self, *, has_fractions: bool = False) -> DrawnCells:
        """Return a copy, with room for weights if `has_fractions`."""
        fractions = None if self.fractions is None else self.fractions.copy()
        if has_fractions and fractions is None:
            fractions = np.zeros(self.counts.shape, np.int64)
        return DrawnCells(self.cells, self.counts.copy(), fractions, self.log_scores.copy())

    def weights(self) -> np.ndarray:
        """Return the weights of labels in the cells."""
        return self.counts if self.fractions is None else self.counts + FRACTION * self.fractions

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the sums by their names in a file."""
        fractions = {} if self.fractions is None else {"drawn_fractions": self.fractions}
        return {"drawn_cells": self.counts} | fractions | self.log_scores.to_arrays("drawn_logs")

    def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> DrawnCells:
        """Return the sums from the result of `to_arrays`."""
        fractions, shape = arrays.get("drawn_fractions"), self.counts.shape
        if fractions is not None and (fractions.dtype != np.int64 or fractions.shape != shape):
            raise ValueError(f"the array 'drawn_fractions' has shape {fractions.shape}, expected int64 and {shape}")
        return DrawnCells(self.cells, arrays["drawn_cells"], fractions, ExactSums.from_arrays("drawn_logs", arrays))

    def compiled(self) -> tuple[Any, ...]:
        """Return the arrays that `_native` adds to."""
        fractions = None if self.fractions is None else self.fractions.reshape(-1)
        return self.cells.compiled(), self.counts.reshape(-1), fractions, self.log_scores.flat()

    def add(self, first: int, probabilities: Array, labels: Array, weights: Array | None = None) -> None:
        """Add labels, shape (n, draws), of the draws from `first` on, for arrays on a device."""
        for rows, p, codes, top_codes in self.cells.chunks(probabilities):
            xp, of_rows = arrays.namespace(p), arrays.asarray_like(labels[rows, :], p)
            w = xp.ones_like(p[:, 0]) if weights is None else arrays.asarray_like(weights[rows], p)
            top = p.argmax(axis=1)
            for b in range(of_rows.shape[1]):
                label = of_rows[:, b : b + 1]
                places = xp.concatenate([xp.take_along_axis(codes, label, axis=1)[:, 0], top_codes])
                of_places = xp.concatenate([w, w * (top == label[:, 0])])
                self.counts[first + b] += arrays.to_host(xp.bincount(places, of_places, minlength=self.cells.size))
                scores = xp.log(xp.take_along_axis(p, label, axis=1)[:, 0].clip(FLOOR, None)) * w
                sums, draw = self.log_scores, slice(first + b, first + b + 1)
                total = ExactSums(sums.high[draw], sums.low[draw]) + ExactSums.over_rows(scores).to_host()
                sums.high[draw], sums.low[draw] = total.high, total.low


def power_of_two(number: int) -> int:
    """Return the largest power of two up to the number, at least 1."""
    return 1 << (max(1, number).bit_length() - 1)


def join_cells(weights: np.ndarray, n_bins: int) -> np.ndarray:
    """Return bins 0 to n_bins - 1 of the cells in the last axis, by the middle of the weight of a cell."""
    ends = np.cumsum(weights, axis=-1)
    middles = ends - weights / 2
    return np.minimum((middles * n_bins // np.maximum(ends[..., -1:], 1e-300)).astype(np.int64), n_bins - 1)


@dataclass(frozen=True, eq=False)
class TemperatureSums(Sums):
    """Sums of five terms for each exponent, for bounds that need no samples.

    With l = log p and its mean under p, the sum of log sum_k p_k exp(theta l_k) - theta mean is the cumulant generating
    function of the temperature's score. Labels of the classes that the map to p^t / sum p^t raises are evidence of an
    error as large as its change.
    """

    _stored: ClassVar = {"sums": "temperature_maps"}

    sums: ExactSums  # shape (exponents, 5)

    @classmethod
    def zeros(cls) -> TemperatureSums:
        """Return sums of no samples."""
        return cls(ExactSums.zeros(len(EXPONENTS), TERMS))

    @classmethod
    def of(cls, probabilities: np.ndarray, labels: np.ndarray, threads: int | None) -> TemperatureSums:
        """Return the sums of samples, float64 and int64, on the host."""
        new = cls.zeros()
        with run_options(threads) as options:
            _native.sum_temperatures(probabilities, labels, FLOOR, new.sums.flat(), options)
        return new
