"""Sums that consist of sums: added, copied, and stored in files field by field."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import numpy as np

from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.wide_sums import WideSums


class Sums:
    """Base of frozen dataclasses of `ExactSums`, `WideSums`, arrays, other `Sums`, tuples and dictionaries of these.

    A field may be None where there is nothing of its kind, and stays so.
    """

    _stored: ClassVar[Mapping[str, str]] = {}  # names of fields in a file, where they are others
    _least: ClassVar[str] = ""  # the field of which the smaller one is taken instead of the sum

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
        """Return sums of the same kinds and sizes, which `to_arrays` has written."""
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
    if isinstance(value, dict):  # whose keys are prefixes
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
