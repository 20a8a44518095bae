"""How H is divided into tiles: rectangles of pairs, whose sums are computed separately and added in the order of tiles.

A sweep of the compiled core over all pairs divides the samples into at most 32 groups, adds up the pairs of each two
groups, and merges these sums in order (src/cpu/pairs/sweep.h). Tiles consist of whole groups. If they return the sums
of each pair of groups, the merged sums are those of one machine, bit for bit. Groups of more than `LARGEST_GROUP`
samples (for more than a million samples) would be too much work for a task. They are divided, their sums are merged
within a tile, and the result agrees with that of one machine to rounding.

A plan depends on sizes and options, never on the number of workers.
"""

from __future__ import annotations

from kcalib._pairs.tiles import Grid, Runs

PAIRS_OF_TILE = 2**27  # minimum, unless there were fewer than FEWEST_STRIPS strips: 0.2 s, 1 % of it for packing
FEWEST_STRIPS = 4
LARGEST_GROUP = 2**15  # samples
MOST_TILES = 9_800
GROUPS_OF_TILE = 3  # minimum on a side, if they are merged


def runs(n_blocks: int, block_size: int, entry_cost: float = 1.0) -> Runs:
    """Return the tiles of `n_blocks` blocks of samples."""
    blocks_per_tile = max(1, round(2 * PAIRS_OF_TILE / (entry_cost * block_size**2)))
    return Runs(n_blocks, max(1, min(blocks_per_tile, -(-n_blocks // FEWEST_STRIPS)), -(-n_blocks // MOST_TILES)))


def grid(
    n: int,
    n_right: int,
    *,
    symmetric: bool,
    block: int,
    group: int,
    has_group_sums: bool = True,
    entry_cost: float = 1.0,
    threads: int = 1,
    tile_size: int | None = None,
) -> Grid:
    """Return the grid of a problem.

    Parameters
    ----------
    n, n_right : int
        Rows and columns of H.
    symmetric : bool
        Whether H_ij = H_ji.
    block, group : int
        Samples of a block and of a group in the backend's order of summation; `group` is a multiple of `block`.
    has_group_sums : bool
        Whether the backend returns the sums of each pair of groups.
    entry_cost : float
        Time of an entry, relative to a usual one of the compiled core.
    threads : int
        Threads of a task, which share its groups.
    tile_size : int, optional
        Samples on a side of a tile, rounded up to whole groups.
    """
    largest, fewest = max(n, n_right), 1
    if group > LARGEST_GROUP:
        group, has_group_sums, fewest = max(1, LARGEST_GROUP // block) * block, False, GROUPS_OF_TILE
    groups = -(-largest // group)
    if tile_size is not None:
        return Grid(n, n_right, -(-tile_size // group) * group, group, has_group_sums, symmetric)
    along = 1
    while (along * group) ** 2 * entry_cost < PAIRS_OF_TILE and along < -(-groups // FEWEST_STRIPS):
        along += 1
    while has_group_sums and along * along < 2 * threads and threads > 1:
        along += 1
    along = max(along, fewest)
    along = -(-groups // -(-groups // along))  # as many strips, of equal sizes
    while True:
        tiling = Grid(n, n_right, along * group, group, has_group_sums, symmetric)
        if tiling.n_tiles <= MOST_TILES:
            return tiling
        along += 1
