"""Row numbers of a state, and the rows of incomplete blocks.

`RowSet` holds the numbers as sorted intervals. `OpenRows` keep rows that cannot be added yet: rows of incomplete
blocks, or all rows while the bandwidth is unknown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from kcalib._backend.options import check_integer
from kcalib._backend.random import hash_numbers

PART = 2**40  # rows of a part
PARTS = 2**23
MOST_PIECES = 32  # of a block, before they are joined


class Rows(NamedTuple):
    """Some rows with their numbers, ascending by default."""

    numbers: np.ndarray  # int64, shape (n,)
    predictions: np.ndarray  # float64: probabilities as the lens has them, shape (n, m), or parameters
    targets: np.ndarray  # labels, int64, shape (n,), or numbers and vectors, float64, shape (n, d)
    weights: np.ndarray  # float64, shape (n,)
    clusters: np.ndarray  # int64, shape (n,); 0 where there are none

    def take(self, which: slice | np.ndarray) -> Rows:
        return Rows(*(part[which] for part in self))

    def copy(self) -> Rows:
        return Rows(*(part.copy() for part in self))

    @classmethod
    def join(cls, pieces: list[Rows]) -> Rows:
        """Return all rows in ascending order."""
        if len(pieces) > 1:
            pieces = [cls(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))]
        (rows,) = pieces
        if len(rows.numbers) > 1 and np.any(rows.numbers[1:] < rows.numbers[:-1]):
            rows = rows.take(np.argsort(rows.numbers))
        return rows


def format_row_number(number: int) -> str:
    """Return a row number as users know it."""
    part, row = divmod(number, PART)
    return f"{row}" if part == 0 else f"{row} of part {part}"


@dataclass(frozen=True)
class RowSet:
    """Disjoint ascending intervals [start, stop) of numbers; neighbours are joined."""

    starts: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()

    def __len__(self) -> int:
        return sum(self.stops) - sum(self.starts)

    @property
    def intervals(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.starts, self.stops, strict=True))

    def stop_below(self, limit: int) -> int | None:
        """Return the highest stop up to `limit`, or None."""
        place = bisect_right(self.stops, limit)
        return self.stops[place - 1] if place else None

    def add(self, start: int, stop: int) -> RowSet:
        """Return the set with a further interval, which must be new."""
        if self.stops and self.stops[-1] == start:  # the usual case
            return RowSet(self.starts, (*self.stops[:-1], stop))
        first, last = bisect_left(self.stops, start), bisect_right(self.starts, stop)
        inside = slice(first, last)
        begin = min(start, *self.starts[first : first + 1]) if first < last else start
        end = max(stop, *self.stops[last - 1 : last]) if first < last else stop
        for a, b in zip(self.starts[inside], self.stops[inside], strict=True):
            if a < stop and start < b:
                raise ValueError(_seen(max(a, start), min(b, stop)))
        return RowSet(
            (*self.starts[:first], begin, *self.starts[last:]), (*self.stops[:first], end, *self.stops[last:])
        )

    def union(self, other: RowSet) -> RowSet:
        """Return the rows of both sets, which must be disjoint."""
        both = sorted((*self.intervals, *other.intervals))
        starts: list[int] = []
        stops: list[int] = []
        for start, stop in both:
            if stops and start < stops[-1]:
                raise ValueError(_seen(start, min(stop, stops[-1])))
            if stops and start == stops[-1]:
                stops[-1] = stop
            else:
                starts.append(start)
                stops.append(stop)
        return RowSet(tuple(starts), tuple(stops))


def first_number(row_set: RowSet, part: int, first_row: Any, n: int) -> int:
    """Return the number of the first of n rows: `first_row` of the part, or the next one of the part."""
    begin = part * PART
    if first_row is None:
        last = row_set.stop_below(begin + PART)
        first = begin if last is None else max(last, begin)
    else:
        first = begin + check_integer("first_row", first_row, 0, PART - 1, ": a row of the part")
    if first + n > begin + PART:
        raise ValueError(
            f"the batch of {n} rows goes beyond the last number of its part, 2**40 - 1; use another `part=`"
        )
    return first


def _seen(start: int, stop: int) -> str:
    which = (
        f"row {format_row_number(start)} was"
        if stop == start + 1
        else f"rows {format_row_number(start)} to {format_row_number(stop - 1)} were"
    )
    return (
        f"{which} added already; give every process a `part=` of its own, pass `first_row=` where batches are "
        "numbered, and do not add the same batch or state twice"
    )


@dataclass(frozen=True, eq=False)
class OpenRows:
    """Pieces of blocks by block number, row // size. Immutable; pieces are copies."""

    size: int
    nothing: Rows  # no rows, with the shapes of all
    pieces: Mapping[int, tuple[Rows, ...]]

    def split(self, rows: Rows, *, complete: bool = True) -> tuple[list[Rows], OpenRows]:
        """Return the rows of blocks that are complete with these ascending rows, and the remaining open rows."""
        blocks = rows.numbers // self.size
        if blocks[0] == blocks[-1]:
            ends = np.array([len(blocks)])
        else:
            ends = np.append(np.flatnonzero(np.diff(blocks)) + 1, len(blocks))
        begins = np.append(0, ends[:-1])
        pieces, whole = dict(self.pieces), []
        full = (ends - begins == self.size) & complete
        # Complete blocks one behind the other are one piece.
        for k in np.flatnonzero(full & ~np.append(False, full[:-1])).tolist():
            beyond = np.flatnonzero(~full[k:])
            last = int(ends[-1]) if not beyond.size else int(begins[k + int(beyond[0])])
            whole.append(rows.take(slice(int(begins[k]), last)))
        for k in np.flatnonzero(~full).tolist():
            block_rows, block = rows.take(slice(int(begins[k]), int(ends[k]))), int(blocks[begins[k]])
            before = pieces.get(block, ())
            if len(before) >= MOST_PIECES:
                before = (Rows.join(list(before)),)
            pieces[block] = (*before, block_rows.copy())
            if complete and _count(pieces[block]) == self.size:
                whole.append(Rows.join(list(pieces.pop(block))))
        return whole, replace(self, pieces=pieces)

    def union(self, other: OpenRows) -> OpenRows:
        pieces = dict(self.pieces)
        for block, more in other.pieces.items():
            pieces[block] = pieces.get(block, ()) + more
        return replace(self, pieces=pieces)

    def closed(self) -> tuple[list[Rows], OpenRows]:
        """Return the rows of complete blocks, and the open rows without them."""
        whole, pieces = [], {}
        for block, block_pieces in self.pieces.items():
            if _count(block_pieces) == self.size:
                whole.append(Rows.join(list(block_pieces)))
            else:
                pieces[block] = block_pieces
        return whole, replace(self, pieces=pieces)

    def rows(self) -> Rows:
        """Return all open rows."""
        return Rows.join([self.nothing, *(piece for block_pieces in self.pieces.values() for piece in block_pieces)])

    def of(self, rows: Rows) -> OpenRows:
        """Return open rows with these ascending rows instead."""
        starts = np.flatnonzero(np.diff(rows.numbers // self.size, prepend=-1)).tolist()
        ends = [*starts[1:], len(rows.numbers)][: len(starts)]  # none of no rows
        blocks = (rows.take(slice(begin, end)) for begin, end in zip(starts, ends, strict=True))
        return replace(self, pieces={int(block.numbers[0]) // self.size: (block,) for block in blocks})


def _count(pieces: tuple[Rows, ...]) -> int:
    return sum(len(piece.numbers) for piece in pieces)


def no_rows(m: int, n_dims: int | None = None) -> Rows:
    """Return no rows, with labels, or with targets of `n_dims` entries and m parameters."""
    targets = np.empty(0, np.int64) if n_dims is None else np.empty((0, n_dims))
    return Rows(np.empty(0, np.int64), np.empty((0, m)), targets, np.empty(0), np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class RowSample:
    """The `size` rows with the smallest hashes of all rows."""

    size: int
    seed: int
    rows: Rows  # ascending by their numbers
    highest: int  # hashes of further rows must be below

    @classmethod
    def empty(cls, size: int, seed: int, nothing: Rows) -> RowSample:
        return cls.of(size, seed, nothing)

    @classmethod
    def of(cls, size: int, seed: int, rows: Rows) -> RowSample:
        """Return the sample of these rows."""
        hashes = hash_numbers(rows.numbers, seed)
        highest = 2**64 - 1
        if len(hashes) >= size:
            best = np.argpartition(hashes, size - 1)[:size]
            highest = int(hashes[best].max())
            rows = rows.take(np.sort(best))
        order = np.argsort(rows.numbers, kind="stable")
        return cls(size, seed, rows.take(order), highest)

    def find_candidates(self, numbers: np.ndarray) -> np.ndarray:
        """Return the indices of numbers whose rows may belong to the sample."""
        hashes = hash_numbers(numbers, self.seed)
        below = np.flatnonzero(hashes < np.uint64(self.highest))
        if below.size > self.size:
            below = np.sort(below[np.argpartition(hashes[below], self.size - 1)[: self.size]])
        return below

    def add(self, rows: Rows) -> RowSample:
        """Return the sample of the previous rows and these."""
        candidates = self.find_candidates(rows.numbers)
        if not candidates.size:
            return self
        # Hashes of different numbers differ: the map is one to one.
        return RowSample.of(self.size, self.seed, Rows.join([self.rows, rows.take(candidates)]))

    def union(self, other: RowSample) -> RowSample:
        return self.add(other.rows)
