"""What a worker does: compute the part of a tile from the problem and the place of the tile.

`Work` is what all tiles of a sweep have in common, and is sent with each. `sweep_tile` is a pure function of it, the
problem and the reduction, which `store` keeps on a worker.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._pairs.backends.base import Backend, Progress, TileSweep
from kcalib._pairs.dispatch import ROWS, backend_for
from kcalib._pairs.feature_sums import compiled
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import Merge, Part, Reduction
from kcalib._pairs.tiles import Grid, Runs, Tile

ON_GPU = "on_gpu"  # entry of parts that were computed on a GPU


@dataclass(frozen=True, eq=False)
class Gram(Reduction[np.ndarray]):
    """Gram matrix of random features of the points and of further columns: a sum over samples, not over pairs."""

    feature_map: FeatureMap
    columns: np.ndarray
    rows: int  # samples of a run, which are added up separately

    @property
    def nbytes(self) -> int:
        return self.feature_map.frequencies.nbytes + self.columns.nbytes

    def start(self, grid: Grid | Runs) -> Merge:
        width = self.feature_map.n_columns + self.columns.shape[1]
        return GramMerge(grid, rows=(width, width))

    def finish(self, merge: Merge, tiled: Any) -> np.ndarray:
        assert merge.rows is not None
        return merge.rows

    def part(self, tile: Tile, points: np.ndarray, threads: int, progress: Progress) -> Part:
        """Return the part of a tile, in the order of summation of `_pairs.feature_sums`."""
        rows = slice(tile.row * self.rows, tile.row_end * self.rows)
        tile_points, options = arrays.as_compact(points[rows], np.float64), _native.RunOptions(threads, progress)
        return {"rows": compiled(self.feature_map).gram_parts(tile_points, self.columns[rows], self.rows, options)}


class GramMerge(Merge):
    """Merge parts that are whole matrices."""

    def add(self, tile: Tile, part: Part) -> None:
        sums = self._sides["rows"]
        for matrix in part["rows"]:
            sums.add(0, len(matrix), matrix)


@dataclass(frozen=True)
class Work:
    """A reduction on all tiles of a problem."""

    name: str  # of the reduction
    reduction: str  # fingerprint
    problem: str  # fingerprint
    parts: tuple[str, ...]  # fingerprints of its arrays
    backend: str  # its name
    threads: int
    grid: Grid | Runs
    options: Reduction[Any] | None  # the reduction, if it has no arrays
    gpu: bool = False  # whether to use the GPU of a worker

    @property
    def needs(self) -> tuple[str, ...]:
        """The fingerprints of the inputs that a worker must have."""
        return (*self.parts, self.problem, *(() if self.options is not None else (self.reduction,)))

    def fingerprint(self, library: str) -> str:
        """Return a key that is equal if the numbers of every tile are equal."""
        key = library, self.problem, self.backend, self.reduction
        return hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()


class Prepared:
    """A problem on a worker, bound to its backend."""

    def __init__(self, problem: PairProblem, backend: str, threads: int, gpu: bool = False) -> None:
        self.problem = problem
        self._backend = backend_for(problem, backend=backend, threads=threads if ROWS[backend].with_threads else None)
        self._gpu = gpu and has_gpu()

    def tiles(self, reduction: Reduction[Any]) -> TileSweep:
        """Return what sweeps tiles for the reduction, with samples in the order of summation."""
        return self._given_order if reduction.in_given_order else self._own_order

    @cached_property
    def _own_order(self) -> TileSweep:
        return self._tiles(in_given_order=False)

    @cached_property
    def _given_order(self) -> TileSweep:
        return self._tiles(in_given_order=True)

    def _tiles(self, in_given_order: bool) -> TileSweep:
        tiles = self._backend.tiles(in_given_order)
        return GPUTiles(self.problem, tiles) if self._gpu else tiles

    def prepare(self, reduction: Reduction[Any]) -> tuple[Reduction[Any], Any]:
        """Return the reduction, and its vectors in the order of summation."""
        if isinstance(reduction, Gram):
            return reduction, None
        return reduction, self.tiles(reduction).prepare(reduction)


class GPUTiles(TileSweep):
    """Tiles on the GPU of this machine, with samples in the order of the CPU backend."""

    def __init__(self, problem: PairProblem, tiles: TileSweep) -> None:
        left = _to_gpu(problem.left, tiles.left)
        right = None if problem.right is None else _to_gpu(problem.right, tiles.right)
        super().__init__(_backend_on_gpu(replace(problem, left=left, right=right)))
        self.left, self.right = tiles.left, tiles.right
        self.block, self.group, self.has_group_sums = tiles.block, tiles.group, tiles.has_group_sums

    def sweep(self, reduction: Reduction[Any], tile: Tile, grid: Grid | Runs, vectors: Any, progress: Progress) -> Part:
        part = dict(super().sweep(reduction, tile, grid, vectors, progress))
        part[ON_GPU] = np.ones(1)
        return part


def has_gpu() -> bool:
    """Return whether this process has CuPy and a GPU."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount()) > 0
    except Exception:  # no CuPy, no driver, or no device
        return False


def _to_gpu(side: Side, order: Any) -> Side:
    """Return samples on the GPU in the given order."""
    import cupy

    points, features = (cupy.asarray(order.sorted(np.asarray(values))) for values in (side.points, side.features))
    labels = None if side.labels is None else cupy.asarray(order.sorted(np.asarray(side.labels)))
    return Side(points, features, labels)


def _backend_on_gpu(problem: PairProblem) -> Backend:
    import cupy

    table = None if problem.table is None else cupy.asarray(problem.table)
    return backend_for(replace(problem, table=table))


def sweep_tile(
    work: Work, tile: Tile, prepared: Prepared, reduction: Reduction[Any], vectors: Any, progress: Progress = None
) -> Part:
    """Return the part of a tile."""
    if isinstance(reduction, Gram):
        return reduction.part(tile, prepared.problem.left.points, work.threads, progress)
    return prepared.tiles(reduction).sweep(reduction, tile, work.grid, vectors, progress)
