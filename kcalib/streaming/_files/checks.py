"""Checks of arrays from a file beyond types and shapes.

A checksum detects damage, not intent: numbers that are used as indices or divisors are checked once, when a state is
read (`Accumulator.of`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kcalib.streaming._row_sums.rows import PART, PARTS, Rows, RowSet

LARGEST_WEIGHT = 2.0**18
_ROUNDING = 1e-9
_CUT = 2.0**-80  # what sums may lack of each of their terms


def row_set(intervals: Iterable[tuple[int, int]]) -> RowSet:
    """Return the set of rows with these intervals."""
    starts, stops = [], []
    last = -1
    for start, stop in intervals:
        if not last < start < stop <= PARTS * PART:
            raise ValueError(f"the rows {start} to {stop - 1} are not after {last}, or none")
        starts.append(start)
        stops.append(stop)
        last = stop
    return RowSet(tuple(starts), tuple(stops))


def check_rows(rows: Rows, row_set: RowSet, kind: str) -> None:
    """Refuse rows, called `kind` in messages, that are not in `row_set`, incomplete, or have invalid weights."""
    numbers, weights = rows.numbers, rows.weights
    if len({len(part) for part in rows}) > 1:
        counts = ", ".join(f"{len(part)} {name}" for name, part in zip(rows._fields, rows, strict=True))
        raise ValueError(f"the {kind} rows have {counts}, expected as many of each")
    if not len(numbers):
        return
    if np.any(np.diff(numbers) <= 0):
        raise ValueError(f"the {kind} rows are not in ascending order")
    starts, stops = np.array(row_set.starts, np.int64), np.array(row_set.stops, np.int64)
    place = np.searchsorted(starts, numbers, side="right") - 1
    if np.any(place < 0) or np.any(numbers >= stops[np.maximum(place, 0)]):
        raise ValueError(f"the {kind} rows are not among those that the state has seen")
    if not np.all((weights >= 0) & (weights <= LARGEST_WEIGHT)):  # NaN is neither
        raise ValueError(f"the {kind} rows have weights beyond 0 to {LARGEST_WEIGHT:.0f}")


def check_weight_sums(n: int, n_weighted: int, weight: float, squares: float) -> None:
    """Refuse sums of weights and of their squares that are impossible for n rows."""
    if not 0 <= n_weighted <= n:
        raise ValueError(f"{n_weighted} of {n} rows have weights")
    few, many, cut = 1 - _ROUNDING, 1 + _ROUNDING, n * _CUT
    possible = squares <= LARGEST_WEIGHT * (weight + cut) * many and weight * weight <= n * (squares + cut) * many
    if not (possible and (n_weighted or (n * few <= weight <= n * many and n * few <= squares <= n * many))):
        raise ValueError(f"the weights of {n} rows cannot have the sum {weight:.6g} and squares of sum {squares:.6g}")
