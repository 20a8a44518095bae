"""How H is cut into tiles: rectangles of pairs whose sums are computed by themselves, and added in the order of tiles.

A sweep of the compiled core over all pairs cuts the samples into at most 32 groups, adds up the pairs of two groups by
themselves, and merges these sums in order (src/cpu/pairs/sweep.h). Tiles are made of whole groups: where they hand over
the sums of each pair of groups, the merged sums are those of one machine, bit for bit. Groups of more than
`LARGEST_GROUP` samples (more than a million samples in all) would be too much work for a task: then groups are smaller,
their sums are merged within a tile, and the result is that of one machine to within rounding.

A plan is a function of sizes and options, never of the number of workers. `backend.DistributedBackend` makes one for
every primitive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

PAIRS_OF_TILE = 2**27  # at least, unless that left fewer than FEWEST_STRIPS: some 0.2 s, of which packing is 1 %
FEWEST_STRIPS = 4
LARGEST_GROUP = 2**15  # samples
MOST_TILES = 9_800
GROUPS_OF_TILE = 3  # on a side, at least, where they are merged


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
        """Of a symmetric problem: half of it is computed."""
        return self.row == self.column

    @property
    def pairs(self) -> int:
        return len(self.rows) * len(self.columns)


@dataclass(frozen=True)
class Grid:
    """All tiles of a problem of n x n_right pairs; of a symmetric one those on and above the diagonal."""

    n: int
    n_right: int
    size: int  # samples on a side of a tile; fewer in the last one
    group: int  # samples of a group; `size` is a multiple
    apart: bool  # whether a tile hands over the sums of each pair of groups
    symmetric: bool

    def tiles(self) -> list[Tile]:
        """Row by row: the order in which their sums are added."""
        found: list[Tile] = []
        for row in range(0, self.n, self.size):
            for column in range(row if self.symmetric else 0, self.n_right, self.size):
                row_end, column_end = min(self.n, row + self.size), min(self.n_right, column + self.size)
                found.append(Tile(len(found), row, row_end, column, column_end))
        return found

    @property
    def groups(self) -> tuple[int, int]:
        """Rows and columns of the matrix of sums that tiles hand over."""
        step = self.group if self.apart else self.size
        return -(-self.n // step), -(-self.n_right // step)

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


def runs(n_blocks: int, block_size: int, entry_cost: float = 1.0) -> Runs:
    """The tiles of blocks of that many samples."""
    enough = max(1, round(2 * PAIRS_OF_TILE / (entry_cost * block_size**2)))
    return Runs(n_blocks, max(1, min(enough, -(-n_blocks // FEWEST_STRIPS)), -(-n_blocks // MOST_TILES)))


def grid(
    n: int,
    n_right: int,
    *,
    symmetric: bool,
    block: int,
    group: int,
    apart: bool = True,
    entry_cost: float = 1.0,
    threads: int = 1,
    tile_size: int | None = None,
) -> Grid:
    """The grid of a problem whose backend adds up blocks of `block` samples, and merges the sums of groups.

    Parameters
    ----------
    n, n_right : int
        Rows and columns of H.
    symmetric : bool
        Whether H_ij = H_ji.
    block, group : int
        Samples of a block and of a group of the backend's own order; `group` is a multiple of `block`.
    apart : bool
        Whether the backend can hand over the sums of each pair of groups.
    entry_cost : float
        An entry's time, relative to usual ones of the compiled core.
    threads : int
        Threads of a task: groups are what they share.
    tile_size : int, optional
        Samples on a side of a tile, rounded up to whole groups.
    """
    largest, fewest = max(n, n_right), 1
    if group > LARGEST_GROUP:
        group, apart, fewest = max(1, LARGEST_GROUP // block) * block, False, GROUPS_OF_TILE
    groups = -(-largest // group)
    if tile_size is not None:
        return Grid(n, n_right, -(-tile_size // group) * group, group, apart, symmetric)
    along = 1
    while (along * group) ** 2 * entry_cost < PAIRS_OF_TILE and along < -(-groups // FEWEST_STRIPS):
        along += 1
    while apart and along * along < 2 * threads and threads > 1:
        along += 1
    along = max(along, fewest)
    along = -(-groups // -(-groups // along))  # as many strips, of equal sizes
    while True:
        found = Grid(n, n_right, along * group, group, apart, symmetric)
        if found.n_tiles <= MOST_TILES:
            return found
        along += 1
