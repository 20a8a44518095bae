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
    """The sum of numbers, or arrays, one after the other."""
    total: Any = 0.0
    lost: Any = 0.0
    for part in parts:
        total, more = _two_sum(total, part)
        lost = lost + more
    return _settled(total, lost)


class CompensatedSums:
    """An array of sums, to whose rows there is added."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.sums = np.zeros(shape)
        self._lost: np.ndarray | None = np.zeros(shape)

    def add(self, begin: int, end: int, more: np.ndarray) -> None:
        """Add to rows [begin, end)."""
        assert self._lost is not None
        self.sums[begin:end], lost = _two_sum(self.sums[begin:end], more)
        self._lost[begin:end] += lost

    def settle(self) -> None:
        """Add what was lost: nothing more comes."""
        if self._lost is not None:
            self.sums = _settled(self.sums, self._lost)
            self._lost = None

    def state(self, name: str) -> State:
        """Both arrays; once it is settled, the sums."""
        return {name: self.sums} | ({} if self._lost is None else {f"{name} lost": self._lost})

    def restore(self, name: str, state: State) -> None:
        """Go on from there."""
        self.sums[...] = state[name]
        self._lost = np.array(state[f"{name} lost"]) if f"{name} lost" in state else None


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b, and what its rounding takes off."""
    total = a + b
    added = total - a
    return total, (a - (total - added)) + (b - added)


def _settled(total: Any, lost: Any) -> Any:
    """Both; of sums that have overflown the first."""
    return np.where(np.isfinite(lost), total + lost, total)
