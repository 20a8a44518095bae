"""Collections of sums that are added, copied, and stored in files field by field."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np

from kcalib._backend.exact_sums import ExactSums

UNIT_BITS = 1074  # binary places after the point
DIGIT_BITS, N_DIGITS = 56, 40  # of a sum in a file: up to 2**43 numbers below 2**1024
MASK = (1 << DIGIT_BITS) - 1


class Sums:
    """Base class of frozen dataclasses of `ExactSums`, `WideSums`, arrays, `Sums`, and tuples or dictionaries of these.

    A field may be None, and then stays None.
    """

    _stored: ClassVar[Mapping[str, str]] = {}  # names of fields in a file, if different
    _least: ClassVar[str] = ""  # the field that is merged by minimum

    def __add__(self, other: Self) -> Self:
        return self._map(lambda name: _add(getattr(self, name), getattr(other, name), name == self._least))

    def copy(self) -> Self:
        return self._map(lambda name: _copy(getattr(self, name)))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the sums by their names in a file."""
        arrays: dict[str, np.ndarray] = {}
        for name in _names(self):
            arrays |= _store(self._stored.get(name, name), getattr(self, name))
        return arrays

    def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return sums of the same kinds and sizes from the result of `to_arrays`."""
        return self._map(lambda name: _restore(self._stored.get(name, name), getattr(self, name), arrays))

    def _map(self, function: Callable[[str], Any]) -> Self:
        return replace(self, **{name: function(name) for name in _names(self)})  # type: ignore[type-var]


def _names(sums: Any) -> list[str]:
    return [field.name for field in fields(sums)]


def _add(first: Any, second: Any, take_least: bool) -> Any:
    if first is None or second is None:
        return None
    if isinstance(first, dict):
        return {name: value + second[name] for name, value in first.items()}
    if isinstance(first, tuple):
        return tuple(map(operator.add, first, second))
    return np.minimum(first, second) if take_least else first + second


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copy(part) for name, part in value.items()}
    return value.copy() if isinstance(value, (ExactSums, Sums, np.ndarray)) else value


def _store(name: str, value: Any) -> dict[str, np.ndarray]:
    if value is None:
        return {}
    if isinstance(value, dict):  # keys are prefixes
        return {key + entry: array for key, part in value.items() for entry, array in _store(name, part).items()}
    if isinstance(value, Sums):
        return value.to_arrays()
    return {name: value} if isinstance(value, np.ndarray) else value.to_arrays(name)


def _restore(name: str, value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        return {
            key: _restore(name, part, {n.removeprefix(key): array for n, array in arrays.items() if n.startswith(key)})
            for key, part in value.items()
        }
    if isinstance(value, Sums):
        return value.from_arrays(arrays)
    if isinstance(value, (ExactSums, WideSums)):
        return value.from_arrays(name, arrays)
    return None if value is None else arrays[name]


@dataclass(frozen=True)
class WideSums:
    """Exact sums of numbers of any size, on the host."""

    numbers: tuple[int, ...]
    infinite: tuple[int, ...]  # number of infinite terms

    @classmethod
    def zeros(cls, count: int) -> WideSums:
        return cls((0,) * count, (0,) * count)

    @classmethod
    def of(cls, values: np.ndarray) -> WideSums:
        """Convert each of the numbers, shape (count,), which may be infinity but not minus infinity."""
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
        """Return the nearest float64 numbers; infinite if a term is, or if the sum is too large."""
        return np.array([np.inf if k else _round(n) for n, k in zip(self.numbers, self.infinite, strict=True)])

    def to_arrays(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays by their names in a file."""
        digits = np.array([_digits(number) for number in self.numbers], dtype=np.int64).reshape(-1, N_DIGITS)
        return {f"{name}_digits": digits, f"{name}_infinite": np.array(self.infinite, dtype=np.int64)}

    @classmethod
    def from_arrays(cls, name: str, arrays: Mapping[str, np.ndarray]) -> WideSums:
        """Return the sums from the result of `to_arrays`."""
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
    """Return the digits of a number in ascending order; the last has the sign."""
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
