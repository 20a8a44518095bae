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

from kcalib._pairs.tiles import Grid, Runs

PAIRS_OF_TILE = 2**27  # at least, unless that left fewer than FEWEST_STRIPS: some 0.2 s, of which packing is 1 %
FEWEST_STRIPS = 4
LARGEST_GROUP = 2**15  # samples
MOST_TILES = 9_800
GROUPS_OF_TILE = 3  # on a side, at least, where they are merged


def runs(n_blocks: int, block_size: int, entry_cost: float = 1.0) -> Runs:
    """The tiles of blocks of that many samples."""
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
    """The grid of a problem whose backend adds up blocks of `block` samples, and merges the sums of groups.

    Parameters
    ----------
    n, n_right : int
        Rows and columns of H.
    symmetric : bool
        Whether H_ij = H_ji.
    block, group : int
        Samples of a block and of a group of the backend's own order; `group` is a multiple of `block`.
    has_group_sums : bool
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
