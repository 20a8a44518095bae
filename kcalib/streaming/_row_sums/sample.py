"""A sample of rows, the same whatever the order in which they come: those whose numbers have the smallest hashes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcalib._backend.random import hash_numbers
from kcalib.streaming._row_sums.rows import Rows


@dataclass(frozen=True, eq=False)
class RowSample:
    """The `size` rows of smallest hashes of all that were seen, or all of fewer."""

    size: int
    seed: int
    rows: Rows  # ascending by their numbers
    highest: int  # hash that a further row must be below

    @classmethod
    def empty(cls, size: int, seed: int, nothing: Rows) -> RowSample:
        return cls.of(size, seed, nothing)

    @classmethod
    def of(cls, size: int, seed: int, rows: Rows) -> RowSample:
        """Return the sample of these rows: those of the smallest hashes."""
        hashes = hash_numbers(rows.numbers, seed)
        highest = 2**64 - 1
        if len(hashes) >= size:
            best = np.argpartition(hashes, size - 1)[:size]
            highest = int(hashes[best].max())
            rows = rows.take(np.sort(best))
        order = np.argsort(rows.numbers, kind="stable")
        return cls(size, seed, rows.take(order), highest)

    def find_candidates(self, numbers: np.ndarray) -> np.ndarray:
        """Return the indices of the numbers whose rows may belong to the sample."""
        hashes = hash_numbers(numbers, self.seed)
        below = np.flatnonzero(hashes < np.uint64(self.highest))
        if below.size > self.size:
            below = np.sort(below[np.argpartition(hashes[below], self.size - 1)[: self.size]])
        return below

    def add(self, rows: Rows) -> RowSample:
        """Return the sample of all rows so far and of these."""
        candidates = self.find_candidates(rows.numbers)
        if not candidates.size:
            return self
        # Hashes of different numbers differ: the map is one to one.
        return RowSample.of(self.size, self.seed, Rows.join([self.rows, rows.take(candidates)]))

    def union(self, other: RowSample) -> RowSample:
        return self.add(other.rows)
