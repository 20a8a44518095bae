"""Compensated sums of many parts (Knuth's two-sum), the same as in src/cpu/pairs/blocks.h.

The compiled core adds up blocks of pairs, and tasks, in this way, `kcalib.parallel` tiles: the bits are the same where
the order is, and where it is not, both are within a rounding or two of the same number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

State = dict[str, np.ndarray]


def compensated_sum(parts: Iterable[Any]) -> Any:
    """Return the sum of numbers, or arrays, one after the other."""
    total: Any = 0.0
    errors: Any = 0.0
    for part in parts:
        total, error = _two_sum(total, part)
        errors = errors + error
    return _add_errors(total, errors)


class CompensatedSums:
    """An array of sums, to whose rows there is added."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.sums = np.zeros(shape)
        self._errors: np.ndarray | None = np.zeros(shape)

    def add(self, begin: int, end: int, values: np.ndarray) -> None:
        """Add `values` to rows [begin, end)."""
        assert self._errors is not None
        self.sums[begin:end], errors = _two_sum(self.sums[begin:end], values)
        self._errors[begin:end] += errors

    def settle(self) -> None:
        """Add the errors of rounding to the sums; nothing is added afterwards."""
        if self._errors is not None:
            self.sums = _add_errors(self.sums, self._errors)
            self._errors = None

    def state(self, name: str) -> State:
        """Both arrays; once it is settled, the sums."""
        return {name: self.sums} | ({} if self._errors is None else {f"{name} lost": self._errors})

    def restore(self, name: str, state: State) -> None:
        """Go on from there."""
        self.sums[...] = state[name]
        self._errors = np.array(state[f"{name} lost"]) if f"{name} lost" in state else None


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a + b, and the error of its rounding."""
    total = a + b
    added = total - a
    return total, (a - (total - added)) + (b - added)


def _add_errors(total: Any, errors: Any) -> Any:
    """Return the total plus the errors; the total alone where it has overflown."""
    return np.where(np.isfinite(errors), total + errors, total)
