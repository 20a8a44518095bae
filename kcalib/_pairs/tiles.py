"""Tiles: the rectangles of H in a distributed sweep, and their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Tile(NamedTuple):
    """Rows [row, row_end) and columns [column, column_end) of H, counted in the order of summation."""

    number: int
    row: int
    row_end: int
    column: int
    column_end: int

    @property
    def rows(self) -> range:
        return range(self.row, self.row_end)

    @property
    def columns(self) -> range:
        return range(self.column, self.column_end)

    @property
    def on_diagonal(self) -> bool:
        """Whether the tile is on the diagonal; half of it is computed in a symmetric problem."""
        return self.row == self.column

    @property
    def pairs(self) -> int:
        return len(self.rows) * len(self.columns)


@dataclass(frozen=True)
class Grid:
    """All tiles of a problem of n x n_right pairs; in a symmetric problem those on and above the diagonal."""

    n: int
    n_right: int
    size: int  # samples on a side of a tile; fewer in the last one
    group: int  # samples of a group; `size` is a multiple
    has_group_sums: bool  # whether a tile hands over the sums of each pair of groups
    symmetric: bool

    def tiles(self) -> list[Tile]:
        """Return the tiles row by row, the order in which their sums are added."""
        tiles: list[Tile] = []
        for row in range(0, self.n, self.size):
            for column in range(row if self.symmetric else 0, self.n_right, self.size):
                row_end, column_end = min(self.n, row + self.size), min(self.n_right, column + self.size)
                tiles.append(Tile(len(tiles), row, row_end, column, column_end))
        return tiles

    @property
    def step(self) -> int:
        """Samples of a row, or column, of the matrix of sums that tiles hand over."""
        return self.group if self.has_group_sums else self.size

    @property
    def groups(self) -> tuple[int, int]:
        """Rows and columns of that matrix."""
        return -(-self.n // self.step), -(-self.n_right // self.step)

    def work(self, tile: Tile) -> float:
        """Pairs that a tile computes."""
        return tile.pairs * (0.5 if self.symmetric and tile.on_diagonal else 1.0)

    @property
    def n_tiles(self) -> int:
        strips, columns = -(-self.n // self.size), -(-self.n_right // self.size)
        return strips * (strips + 1) // 2 if self.symmetric else strips * columns


@dataclass(frozen=True)
class Runs:
    """Runs of consecutive diagonal blocks, which are counted instead of samples."""

    n: int
    size: int  # blocks of a tile

    def tiles(self) -> list[Tile]:
        """From the first on."""
        starts = range(0, self.n, self.size)
        ends = [min(self.n, start + self.size) for start in starts]
        return [Tile(k, start, end, start, end) for k, (start, end) in enumerate(zip(starts, ends, strict=True))]

    def work(self, tile: Tile) -> float:
        """Blocks that a tile has."""
        return float(len(tile.rows))
