"""How the sums of tiles become those of H: added tile by tile, in the order of their numbers, in O(n) memory.

A `Reduction` is given every tile once and in order; its state is arrays, which the journal keeps.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from kcalib.parallel.plan import Grid, Tile
from kcalib.parallel.work import Sums

State = dict[str, np.ndarray]


class Reduction(Protocol):
    """Sums over tiles."""

    def add(self, tile: Tile, sums: Sums) -> None:
        """Add those of the next tile."""

    def state(self) -> State:
        """All there is to know of the tiles that were added."""

    def restore(self, state: State) -> None:
        """Go on from there."""


class MomentSums:
    """Total, row and column sums and sum of squares of H, by the compiled core's order of summation."""

    def __init__(self, grid: Grid, *, rows: bool, second: bool) -> None:
        self._grid = grid
        self._step = grid.group if grid.apart else grid.size
        self._totals = np.zeros(grid.groups)
        self._squares = np.zeros(grid.groups) if second else None
        self._rows = np.zeros(grid.n) if rows else None
        self._columns = np.zeros(grid.n_right) if rows and not grid.symmetric else self._rows

    def add(self, tile: Tile, sums: Sums) -> None:
        twice = 2.0 if self._grid.symmetric and not tile.on_diagonal else 1.0
        a, b = tile.row // self._step, tile.column // self._step
        for matrix, values in ((self._totals, sums["totals"]), (self._squares, sums.get("squares"))):
            if matrix is not None and values is not None:
                matrix[a : a + values.shape[0], b : b + values.shape[1]] = twice * values
        if self._rows is not None and self._columns is not None:
            for part in sums["rows"]:
                self._rows[tile.row : tile.row_end] += part
            for part in sums.get("columns", ()):
                self._columns[tile.column : tile.column_end] += part

    def state(self) -> State:
        found = {"totals": self._totals, "squares": self._squares, "rows": self._rows}
        if self._columns is not self._rows:
            found["columns"] = self._columns
        return {name: values for name, values in found.items() if values is not None}

    def restore(self, state: State) -> None:
        for name, values in self.state().items():
            values[...] = state[name]

    @property
    def total(self) -> float:
        return _one_by_one(self._totals)

    @property
    def squares(self) -> float | None:
        return None if self._squares is None else _one_by_one(self._squares)

    @property
    def row_sums(self) -> np.ndarray | None:
        return self._rows

    @property
    def column_sums(self) -> np.ndarray | None:
        return self._columns


class Products:
    """H @ vectors."""

    def __init__(self, n: int, columns: int) -> None:
        self.products = np.zeros((n, columns))

    def add(self, tile: Tile, sums: Sums) -> None:
        self.products[tile.row : tile.row_end] += sums["rows"]
        if "columns" in sums:
            self.products[tile.column : tile.column_end] += sums["columns"]

    def state(self) -> State:
        return {"products": self.products}

    def restore(self, state: State) -> None:
        self.products[...] = state["products"]


class Forms:
    """w^T H w of each column w: the tiles above the diagonal count twice."""

    def __init__(self, columns: int) -> None:
        self.forms = np.zeros(columns)

    def add(self, tile: Tile, sums: Sums) -> None:
        self.forms += sums["forms"] * (1.0 if tile.on_diagonal else 2.0)

    def state(self) -> State:
        return {"forms": self.forms}

    def restore(self, state: State) -> None:
        self.forms[...] = state["forms"]


class BlockSums:
    """Sums of diagonal blocks, which have nothing to do with each other; a tile's rows are numbers of blocks."""

    def __init__(self, n_blocks: int) -> None:
        self.sums = np.zeros(n_blocks)

    def add(self, tile: Tile, sums: Sums) -> None:
        self.sums[tile.row : tile.row_end] = sums["sums"]

    def state(self) -> State:
        return {"sums": self.sums}

    def restore(self, state: State) -> None:
        self.sums[...] = state["sums"]


def _one_by_one(values: np.ndarray) -> float:
    """The sum in the order of the numbers, as the compiled core merges them; not NumPy's by pairs."""
    return float(np.cumsum(values.ravel())[-1])


def added(reduction: Reduction, tiles: list[Tile], first: int, arrived: dict[int, Any]) -> int:
    """Add what has arrived and is next in order, which then is forgotten; the number of tiles that were added."""
    while first < len(tiles) and first in arrived:
        reduction.add(tiles[first], arrived.pop(first))
        first += 1
    return first
