"""Sums of float64 numbers in fixed point: the same bits whatever the order in which numbers are added.

A sum is (high * 2**56 + low) * 2**-80 with two int64 numbers, 0 <= low < 2**56. A number is cut at 2**-80 towards zero,
and integers are added from there on, so that sums below 2**39 are exact beside that. src/cpu/exact_sums.h has the same
in C. `streaming` adds with it what batches, processes and machines have found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

LOW_BITS = 56
LOW_MASK = (1 << LOW_BITS) - 1
HALF = LOW_BITS // 2
LARGEST = 2.0**38  # of a number; sums are below twice that
AT_ONCE = 2**16  # numbers whose pieces are added in one go: 2**34 each at most, so that float64 sums are exact


@dataclass(frozen=True, eq=False)
class ExactSums:
    """An array of sums."""

    high: np.ndarray  # int64
    low: np.ndarray  # int64, 0 <= low < 2**56, the same shape

    @classmethod
    def zeros(cls, *shape: int) -> ExactSums:
        return cls(np.zeros(shape, np.int64), np.zeros(shape, np.int64))

    @classmethod
    def of(cls, values: Any) -> ExactSums:
        """Float64 numbers below 2**38 in size, each by itself."""
        return cls._carried(*_cut(values))

    @classmethod
    def over_rows(cls, values: np.ndarray) -> ExactSums:
        """The sums over the first axis."""
        total = cls.zeros(*values.shape[1:])
        for begin in range(0, len(values), AT_ONCE):
            high, low = _cut(values[begin : begin + AT_ONCE])
            total = total + cls._joined(high.sum(axis=0), (low >> HALF).sum(axis=0), (low & _mask(HALF)).sum(axis=0))
        return total

    @classmethod
    def by_group(cls, values: np.ndarray, groups: np.ndarray, n_groups: int) -> ExactSums:
        """The sums over the rows of each group, shape (n_groups, ...); `groups` are 0..n_groups-1, shape (n,)."""
        columns = values.reshape(len(values), -1)
        total = cls.zeros(n_groups, columns.shape[1])
        places = (groups[:, None] * columns.shape[1] + np.arange(columns.shape[1])).astype(np.intp)
        for begin in range(0, len(values), AT_ONCE):
            rows = slice(begin, begin + AT_ONCE)
            high, low = _cut(columns[rows])
            sums = [
                np.bincount(places[rows].ravel(), piece.ravel(), total.high.size).astype(np.int64)
                for piece in (high >> HALF, high & _mask(HALF), low >> HALF, low & _mask(HALF))
            ]
            top, bottom, upper, lower = (one.reshape(total.high.shape) for one in sums)
            total = total + cls._joined((top << HALF) + bottom, upper, lower)
        return total.reshape(n_groups, *values.shape[1:])

    @classmethod
    def _joined(cls, high: Any, upper: Any, lower: Any) -> ExactSums:
        """From sums of the two halves of what is low."""
        upper = upper + (lower >> HALF)
        return cls._carried(high + (upper >> HALF), ((upper & _mask(HALF)) << HALF) + (lower & _mask(HALF)))

    @classmethod
    def _carried(cls, high: Any, low: Any) -> ExactSums:
        return cls(np.asarray(high + (low >> LOW_BITS)), np.asarray(low & LOW_MASK))

    def __add__(self, other: ExactSums) -> ExactSums:
        return self._carried(self.high + other.high, self.low + other.low)

    def copy(self) -> ExactSums:
        return ExactSums(self.high.copy(), self.low.copy())

    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """High and low in one dimension, the same memory: what compiled code adds to."""
        return self.high.reshape(-1), self.low.reshape(-1)

    def reshape(self, *shape: int) -> ExactSums:
        return ExactSums(self.high.reshape(shape), self.low.reshape(shape))

    def to_float(self) -> np.ndarray:
        """The nearest float64 numbers, up to one unit in the last place."""
        up = self.low >> (LOW_BITS - 1)  # so that a small negative sum is not the difference of two large ones
        high, low = self.high + up, self.low - (up << LOW_BITS)
        return np.asarray(high.astype(np.float64) * 2.0**-24 + low.astype(np.float64) * 2.0**-80)

    def is_large(self) -> bool:
        """Whether a sum is beyond 2**37: the next addition could be beyond what is represented."""
        return bool(np.any(np.abs(self.high) >= 2**61))


def _cut(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """High and low, towards zero: |low| < 2**56."""
    scaled = np.asarray(values, dtype=np.float64) * 2.0**24
    whole = np.trunc(scaled)
    return whole.astype(np.int64), ((scaled - whole) * 2.0**LOW_BITS).astype(np.int64)


def _mask(bits: int) -> int:
    return (1 << bits) - 1
