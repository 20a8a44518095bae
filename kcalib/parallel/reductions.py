"""How the sums of tiles become those of H: added tile by tile, in the order of their numbers, in O(n) memory.

A `Reduction` is given every tile once and in order; its state is arrays, which the journal keeps. Additions are
compensated, as those of the compiled core are.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from kcalib._backend.compensated import CompensatedSums, State, compensated
from kcalib.parallel.plan import Grid, Tile
from kcalib.parallel.work import Sums


class Reduction(Protocol):
    """Sums over tiles."""

    def add(self, tile: Tile, sums: Sums) -> None:
        """Add those of the next tile."""

    def state(self) -> State:
        """All there is to know of the tiles that were added."""

    def restore(self, state: State) -> None:
        """Go on from there."""

    def finish(self) -> None:
        """All tiles were added."""


class MomentSums:
    """Total, row and column sums and sum of squares of H, and what `expected` adds, by the compiled core's order."""

    def __init__(self, grid: Grid, *, rows: bool, second: bool, expected: bool = False) -> None:
        self._grid = grid
        self._step = grid.group if grid.apart else grid.size
        self._groups = {"totals": np.zeros(grid.groups)}
        if second:
            self._groups["squares"] = np.zeros(grid.groups)
        if expected:
            self._groups["expected"] = np.zeros((*grid.groups, 2))
        self._rows = CompensatedSums((grid.n,)) if rows else None
        self._columns = CompensatedSums((grid.n_right,)) if rows and not grid.symmetric else self._rows

    def add(self, tile: Tile, sums: Sums) -> None:
        twice = 2.0 if self._grid.symmetric and not tile.on_diagonal else 1.0
        a, b = tile.row // self._step, tile.column // self._step
        for name, matrix in self._groups.items():
            values = sums[name]
            matrix[a : a + values.shape[0], b : b + values.shape[1]] = twice * values
        if self._rows is not None and self._columns is not None:
            for part in sums["rows"]:
                self._rows.add(tile.row, tile.row_end, part)
            for part in sums.get("columns", ()):
                self._columns.add(tile.column, tile.column_end, part)

    def state(self) -> State:
        found = dict(self._groups)
        for name, values in self._sides.items():
            found |= values.state(name)
        return found

    def restore(self, state: State) -> None:
        for name, matrix in self._groups.items():
            matrix[...] = state[name]
        for name, values in self._sides.items():
            values.restore(name, state)

    def finish(self) -> None:
        for values in self._sides.values():
            values.settle()

    @property
    def _sides(self) -> dict[str, CompensatedSums]:
        found = {"rows": self._rows} | ({} if self._columns is self._rows else {"columns": self._columns})
        return {name: values for name, values in found.items() if values is not None}

    @property
    def total(self) -> float:
        return self._sum(self._groups["totals"])

    @property
    def squares(self) -> float | None:
        return self._sum(self._groups["squares"]) if "squares" in self._groups else None

    @property
    def expectation(self) -> tuple[float, float] | None:
        """As `CpuBackend.moments_and_expectation` has it."""
        if "expected" not in self._groups:
            return None
        mean, magnitude = (self._sum(self._groups["expected"][:, :, k]) for k in range(2))
        return mean, magnitude

    @staticmethod
    def _sum(groups: np.ndarray) -> float:
        return float(compensated(groups.ravel().tolist()))

    @property
    def row_sums(self) -> np.ndarray | None:
        return None if self._rows is None else self._rows.sums

    @property
    def column_sums(self) -> np.ndarray | None:
        return None if self._columns is None else self._columns.sums


class Products:
    """H @ vectors."""

    def __init__(self, n: int, columns: int) -> None:
        self._products = CompensatedSums((n, columns))

    def add(self, tile: Tile, sums: Sums) -> None:
        self._products.add(tile.row, tile.row_end, sums["rows"])
        if "columns" in sums:
            self._products.add(tile.column, tile.column_end, sums["columns"])

    def state(self) -> State:
        return self._products.state("products")

    def restore(self, state: State) -> None:
        self._products.restore("products", state)

    def finish(self) -> None:
        self._products.settle()

    @property
    def products(self) -> np.ndarray:
        return self._products.sums


class Forms:
    """w^T H w of each column w, of a symmetric problem, by the compiled core's order of summation."""

    def __init__(self, grid: Grid, columns: int) -> None:
        self._step = grid.group if grid.apart else grid.size
        self._parts = np.zeros((*grid.groups, columns))
        self.forms: np.ndarray | None = None  # in the end

    def add(self, tile: Tile, sums: Sums) -> None:
        a, b, values = tile.row // self._step, tile.column // self._step, sums["forms"]
        twice = 1.0 if tile.on_diagonal else 2.0
        self._parts[a : a + values.shape[0], b : b + values.shape[1]] = twice * values

    def state(self) -> State:
        return {"parts": self._parts} if self.forms is None else {"forms": self.forms}

    def restore(self, state: State) -> None:
        if "forms" in state:
            self.forms = state["forms"]
        else:
            self._parts[...] = state["parts"]

    def finish(self) -> None:
        if self.forms is None:
            self.forms = np.asarray(compensated(self._parts.reshape(-1, self._parts.shape[2])))


class Gram:
    """Gram matrices of parts of the samples, by the order of summation of `_pairs.feature_sums`."""

    def __init__(self, width: int) -> None:
        self._sums = CompensatedSums((width, width))

    def add(self, tile: Tile, sums: Sums) -> None:
        for part in sums["parts"]:
            self._sums.add(0, len(part), part)

    def state(self) -> State:
        return self._sums.state("gram")

    def restore(self, state: State) -> None:
        self._sums.restore("gram", state)

    def finish(self) -> None:
        self._sums.settle()

    @property
    def matrix(self) -> np.ndarray:
        return self._sums.sums


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

    def finish(self) -> None:
        """There is nothing to do."""


def added(reduction: Reduction, tiles: list[Tile], first: int, arrived: dict[int, Any]) -> int:
    """Add what has arrived and is next in order, which then is forgotten; the number of tiles that were added."""
    while first < len(tiles) and first in arrived:
        reduction.add(tiles[first], arrived.pop(first))
        first += 1
    return first
