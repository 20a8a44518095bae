"""Sums of any float64 numbers without rounding: the same bits whatever the order in which they are added.

For few numbers, of any size, where `exact_sums` is for many of about 1. A sum is an integer in units of 2**-1074, of
which every finite float64 number is a multiple; infinite ones are counted. `streaming` adds scores of predicted
distributions with it, which have the units of the targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

UNIT_BITS = 1074  # of a number after the point
DIGIT_BITS, N_DIGITS = 56, 40  # of a sum in a file: 2**43 numbers of at most 2**1024
MASK = (1 << DIGIT_BITS) - 1


@dataclass(frozen=True)
class WideSums:
    """Some sums, on the host."""

    numbers: tuple[int, ...]
    infinite: tuple[int, ...]  # how many terms were, all of them positive

    @classmethod
    def zeros(cls, count: int) -> WideSums:
        return cls((0,) * count, (0,) * count)

    @classmethod
    def of(cls, values: np.ndarray) -> WideSums:
        """Convert numbers above minus infinity, shape (count,), each by itself."""
        values = np.asarray(values, dtype=np.float64)
        assert not np.any(np.isnan(values) | (values == -np.inf))
        infinite = np.isinf(values)
        return cls(tuple(map(_scale, np.where(infinite, 0.0, values).tolist())), tuple(map(int, infinite)))

    def __add__(self, other: WideSums) -> WideSums:
        return WideSums(
            tuple(a + b for a, b in zip(self.numbers, other.numbers, strict=True)),
            tuple(a + b for a, b in zip(self.infinite, other.infinite, strict=True)),
        )

    def to_float(self) -> np.ndarray:
        """Return the nearest float64 numbers; infinite where a term is, or the sum is too large."""
        return np.array([np.inf if k else _round(n) for n, k in zip(self.numbers, self.infinite, strict=True)])

    def to_arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays by their names in a file."""
        digits = np.array([_digits(number) for number in self.numbers], dtype=np.int64).reshape(-1, N_DIGITS)
        return {f"{name}_digits": digits, f"{name}_infinite": np.array(self.infinite, dtype=np.int64)}

    @classmethod
    def from_arrays(cls, name: str, arrays: Mapping[str, np.ndarray]) -> WideSums:
        """Return the sums that `to_arrays` has written."""
        numbers = tuple(_number(digits) for digits in arrays[f"{name}_digits"].tolist())
        return cls(numbers, tuple(arrays[f"{name}_infinite"].tolist()))


def _scale(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator << (UNIT_BITS - denominator.bit_length() + 1)


def _round(number: int) -> float:
    try:
        return number / (1 << UNIT_BITS)
    except OverflowError:
        return np.inf if number > 0 else -np.inf


def _digits(number: int) -> list[int]:
    """Return the digits of a number, ascending; the last has the sign."""
    digits = []
    for _ in range(N_DIGITS - 1):
        digits.append(number & MASK)
        number >>= DIGIT_BITS
    return [*digits, number]


def _number(digits: list[int]) -> int:
    number = 0
    for digit in reversed(digits):
        number = (number << DIGIT_BITS) + digit
    return number
