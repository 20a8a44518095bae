"""Sums of float64 numbers in fixed point: every bit is the same for any order of addition.

A sum is (high * 2**56 + low) * 2**-80 with two int64 numbers, 0 <= low < 2**56. Numbers are truncated at 2**-80 towards
zero, then integers are added, exactly for sums below 2**39. src/cpu/state/exact_sums.h is the same in C. `streaming`
adds up batches, processes and machines with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array

LOW_BITS = 56
LOW_MASK = (1 << LOW_BITS) - 1
HALF = LOW_BITS // 2
AT_ONCE = 2**16  # numbers that are added together: halves are at most 2**34, so that float64 sums are exact


@dataclass(frozen=True, eq=False)
class ExactSums:
    """An array of sums, on the host or on a device."""

    high: Array  # int64
    low: Array  # int64, 0 <= low < 2**56, the same shape

    @classmethod
    def zeros(cls, *shape: int) -> ExactSums:
        """Return sums without terms, on the host."""
        return cls(np.zeros(shape, np.int64), np.zeros(shape, np.int64))

    @classmethod
    def of(cls, values: Array) -> ExactSums:
        """Convert each of float64 numbers below 2**38 in size."""
        return cls._carry(*_cut(values))

    @classmethod
    def over_rows(cls, values: Array) -> ExactSums:
        """Return the sums over the first axis."""
        xp, parts = arrays.namespace(values), []
        for begin in range(0, max(1, values.shape[0]), AT_ONCE):
            high, low = _cut(values[begin : begin + AT_ONCE, ...])
            halves = xp.sum(low >> HALF, axis=0), xp.sum(low & _mask(HALF), axis=0)
            parts.append(cls._join(xp.sum(high, axis=0), *halves))
        return reduce(add, parts)

    @classmethod
    def by_group(cls, values: Array, groups: Array, n_groups: int) -> ExactSums:
        """Return the sums of the rows of each group, shape (n_groups, c); `groups` are 0..n_groups-1, shape (n,)."""
        xp, parts, width = arrays.namespace(values), [], values.shape[1]
        columns = xp.arange(width, device=arrays.device(values))
        for begin in range(0, max(1, values.shape[0]), AT_ONCE):
            rows = slice(begin, min(begin + AT_ONCE, values.shape[0]))
            places = xp.reshape(groups[rows, None] * width + columns[None, :], (-1,))
            high, low = _cut(values[rows, :])
            sums = [
                # Sums of integers below 2**53 are exact in any order.
                xp.astype(
                    xp.bincount(places, xp.astype(xp.reshape(piece, (-1,)), xp.float64), n_groups * width), xp.int64
                )
                for piece in (high >> HALF, high & _mask(HALF), low >> HALF, low & _mask(HALF))
            ]
            top, bottom, upper, lower = (xp.reshape(part, (n_groups, width)) for part in sums)
            parts.append(cls._join((top << HALF) + bottom, upper, lower))
        return reduce(add, parts)

    @classmethod
    def _join(cls, high: Array, upper: Array, lower: Array) -> ExactSums:
        """Combine high parts with sums of the two halves of the low parts."""
        upper = upper + (lower >> HALF)
        return cls._carry(high + (upper >> HALF), ((upper & _mask(HALF)) << HALF) + (lower & _mask(HALF)))

    @classmethod
    def _carry(cls, high: Array, low: Array) -> ExactSums:
        high, low = high + (low >> LOW_BITS), low & LOW_MASK
        return cls(np.asarray(high), np.asarray(low)) if isinstance(high, np.generic) else cls(high, low)

    def __add__(self, other: ExactSums) -> ExactSums:
        return self._carry(self.high + other.high, self.low + other.low)

    def copy(self) -> ExactSums:
        return ExactSums(self.high.copy(), self.low.copy())

    def to_host(self) -> ExactSums:
        return ExactSums(arrays.to_host(self.high), arrays.to_host(self.low))

    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """Return high and low flattened without a copy, for compiled code."""
        return self.high.reshape(-1), self.low.reshape(-1)

    def reshape(self, *shape: int) -> ExactSums:
        xp = arrays.namespace(self.high)
        return ExactSums(xp.reshape(self.high, shape), xp.reshape(self.low, shape))

    def limbs(self) -> Array:
        """Return three int64 numbers for each sum, shape (3, ...), on the host; they may be added up 2**35 times."""
        return np.stack([self.high, self.low >> HALF, self.low & _mask(HALF)])

    @classmethod
    def of_limbs(cls, limbs: np.ndarray) -> ExactSums:
        """Return the sums of added `limbs`."""
        return cls._join(*limbs)

    def to_arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return the two arrays by their names in a file, of sums on the host."""
        return {f"{name}_high": self.high, f"{name}_low": self.low}

    @classmethod
    def from_arrays(cls, name: str, arrays: Mapping[str, np.ndarray]) -> ExactSums:
        """Return the sums that `to_arrays` has written."""
        return cls(arrays[f"{name}_high"], arrays[f"{name}_low"])

    def to_float(self) -> np.ndarray:
        """Return the nearest float64 numbers, up to one unit in the last place, on the host."""
        up = self.low >> (LOW_BITS - 1)  # avoids cancellation for small negative sums
        high, low = self.high + up, self.low - (up << LOW_BITS)
        return np.asarray(high.astype(np.float64) * 2.0**-24 + low.astype(np.float64) * 2.0**-80)

    def is_large(self) -> bool:
        """Return whether a sum exceeds 2**37: the next addition might overflow."""
        xp = arrays.namespace(self.high)
        return bool(xp.any(xp.abs(self.high) >= 2**61))


def _cut(values: Array) -> tuple[Array, Array]:
    """Split numbers into high and low parts towards zero, |low| < 2**56."""
    xp = arrays.namespace(values)
    scaled = values * 2.0**24
    integers = xp.trunc(scaled)
    low = (scaled - integers) * 2.0**LOW_BITS
    return xp.asarray(integers, dtype=xp.int64), xp.asarray(low, dtype=xp.int64)  # NumPy scalars become arrays


def _mask(bits: int) -> int:
    return (1 << bits) - 1
