"""Compensated sums of many parts (Knuth's two-sum), as in src/cpu/pairs/blocks.h.

The compiled core adds up blocks of pairs and tasks in this way, `kcalib.parallel` adds up tiles. Equal orders give
equal bits; different orders differ by a rounding or two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

State = dict[str, np.ndarray]


def compensated_sum(parts: Iterable[Any]) -> Any:
    """Return the sum of numbers or arrays in order."""
    total: Any = 0.0
    errors: Any = 0.0
    for part in parts:
        total, error = _two_sum(total, part)
        errors = errors + error
    return _add_errors(total, errors)


class CompensatedSums:
    """An array of sums; values are added to rows."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.sums = np.zeros(shape)
        self._errors: np.ndarray | None = np.zeros(shape)

    def add(self, begin: int, end: int, values: np.ndarray) -> None:
        """Add `values` to rows [begin, end)."""
        assert self._errors is not None
        self.sums[begin:end], errors = _two_sum(self.sums[begin:end], values)
        self._errors[begin:end] += errors

    def settle(self) -> None:
        """Add the rounding errors to the sums; nothing is added afterwards."""
        if self._errors is not None:
            self.sums = _add_errors(self.sums, self._errors)
            self._errors = None

    def state(self, name: str) -> State:
        """Return sums and errors; after `settle` only the sums."""
        return {name: self.sums} | ({} if self._errors is None else {f"{name} lost": self._errors})

    def restore(self, name: str, state: State) -> None:
        """Restore a state."""
        self.sums[...] = state[name]
        self._errors = np.array(state[f"{name} lost"]) if f"{name} lost" in state else None


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a + b and its rounding error."""
    total = a + b
    added = total - a
    return total, (a - (total - added)) + (b - added)


def _add_errors(total: Any, errors: Any) -> Any:
    """Return the total plus the errors; the total alone if it has overflown."""
    return np.where(np.isfinite(errors), total + errors, total)
