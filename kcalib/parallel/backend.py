"""A backend that adds up the sums of tiles from workers.

`Run` is a public call on a transport, with its journal. It wraps every backend that `_pairs.dispatch` chooses in a
`DistributedBackend`, so that estimators, tests and solvers do not know about workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.options import check_choice
from kcalib._backend.provenance import machine
from kcalib._backend.threads import TerminalProgress
from kcalib._pairs.backends.base import Backend, Progress, Workers
from kcalib._pairs.feature_sums import gram_rows
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.problem import PairProblem
from kcalib._pairs.reductions import (
    BlockSums,
    Counts,
    DenseRectangle,
    EntriesInRange,
    LabelMatches,
    Merge,
    Moments,
    Products,
    QuadraticForms,
    Reduction,
    sweep_one,
)
from kcalib._pairs.tiles import Grid, Runs, Tile
from kcalib._version import __version__
from kcalib.parallel.journal import Journal, Sweep
from kcalib.parallel.plan import grid, runs
from kcalib.parallel.store import Done, Outline, fingerprint, worker_name
from kcalib.parallel.transport import Parallel, TileError, counted
from kcalib.parallel.work import ON_GPU, Gram, Prepared, Work

USUAL_ENTRY = 40.0  # multiply-adds; tiles with slower entries are smaller
FEWEST_PAIRS = 2**24  # smaller problems take about as long as a message to a worker and back
COLUMNS, COLUMNS_BYTES = 2048, 2**28  # limits for the weights that a worker holds at a time
STATE_SECONDS = 30.0  # between two saved states of products
# A journal keeps the first products, up to this number of columns or bytes.
COLUMNS_KEPT, BYTES_KEPT = 64, 2**28


class Run(Workers):
    """A call on a transport."""

    def __init__(self, parallel: Parallel) -> None:
        self.parallel = parallel
        self.journal: Journal | None = None
        self.held: Any = None
        self._begun: dict[str, Sweep] = {}  # sweeps in the journal
        self._products = 0  # bytes of products in the journal
        self._checked = False
        self.workers: dict[str, int] = {}  # number of tiles by worker
        self.resumed = 0  # tiles from the journal
        self.tiles = 0
        self.on_gpus = 0  # tiles
        self.sent: dict[str, int] = {}  # bytes of samples and vectors, by worker
        self.returned = 0  # bytes of sums

    @contextmanager
    def with_journal(self) -> Iterator[None]:
        """Keep the journal open in the body, if there is one."""
        if self.parallel.journal is None:
            yield
            return
        self.journal = Journal(self.parallel.journal)
        try:
            yield
        finally:
            self.journal.close()

    def spread(self, backend: Backend) -> Backend:
        """Return the backend on the workers, or itself with a reason if distributing is not worth it."""
        problem = backend.problem
        if not arrays.is_host(problem.left.points):
            raise ValueError(
                f"workers take arrays in host memory, but these are on {arrays.describe_device(problem.left.points)}; "
                "bring them to the CPU, or leave backend=None"
            )
        if backend.on_a_line:
            return _with_reason(backend, "in O(n log n) there is nothing to share out")
        pairs = int(problem.left.points.shape[0]) * int(problem.columns.points.shape[0])
        if self.parallel.tile_size is None and pairs * cost_of(backend) < FEWEST_PAIRS:
            return _with_reason(backend, "too few samples to share out")
        spread = DistributedBackend(backend, self)
        if not self._checked and self.parallel.journal is not None:
            header = spread.describe_call()
            self._open_journal.check(header)
        self._checked = True
        return spread

    def gram(self, backend: Backend, feature_map: FeatureMap, columns: np.ndarray) -> np.ndarray:
        """Return `feature_sums.gram` of the points of a distributed backend."""
        assert isinstance(backend, DistributedBackend)
        return backend.gram(feature_map, columns)

    def describe(self) -> str:
        """Return how many tiles were computed, by whom, and how much was sent."""
        if not self.tiles:
            return "workers had nothing to compute, as no sum over pairs was needed"
        resumed = f", {self.resumed} of them from the journal" if self.resumed else ""
        gpus = f", {self.on_gpus} on GPUs" if self.parallel.gpu else ""
        traffic = ""
        if self.sent:
            most = "" if len({*self.sent.values()}) == 1 else "at most "
            sent = f"{most}{megabytes(max(self.sent.values()))} sent to each of {counted(len(self.sent), 'worker')}"
            traffic = f", {sent}, {megabytes(self.returned)} of sums back"
        return f"in parallel: {self.tiles} tiles{resumed}{gpus}, {self.parallel.describe()}{traffic}"

    def _planned(self, work: Work, reduction: Reduction[Any]) -> Work:
        """Return the work with the plan in the journal, if the journal has begun it."""
        if self.parallel.journal is None:
            return work
        key, plan = work.fingerprint(__version__), asdict(work.grid)
        if isinstance(reduction, Products):
            rows = 8 * work.grid.n
            size = rows * int(reduction.vectors.shape[1])
            if self._products + size > max(BYTES_KEPT, rows * COLUMNS_KEPT):
                return work
            self._products += size
        sweep = self._open_journal.begin(key, plan)
        self._begun[key] = sweep
        return replace(work, grid=type(work.grid)(**sweep.plan))

    def merged(self, work: Work, inputs: Mapping[str, Any], reduction: Reduction[Any]) -> Merge:
        """Compute the tiles of the work that the journal does not have, and add up all parts."""
        work = self._planned(work, reduction)
        merge = reduction.start(work.grid)
        key, cost = work.fingerprint(__version__), work.grid.work
        tiles = work.grid.tiles()
        self.tiles += len(tiles)
        journal = self.journal if key in self._begun else None
        begun = self._begun.pop(key, Sweep({}))
        first, arrived = begun.first, dict(begun.tiles)
        if journal is not None and first:
            merge.restore(dict(journal.state(key)))
        begun.tiles = {}  # these are here
        self.resumed += first + len(arrived)
        # Tiles of products are as large as the vectors: save their sum from time to time, not the tiles.
        of_vectors, saved = isinstance(reduction, Products), time.monotonic()
        tiles_left = [tile for tile in tiles[first:] if tile.number not in arrived]
        first = _added(merge, tiles, first, arrived)
        total_cost, finished = sum(map(cost, tiles_left)) or 1.0, 0.0  # of the remaining tiles
        with TerminalProgress() as bar:

            def progress_of(tile: Tile) -> Progress:
                before = finished
                return None if bar is None else lambda share: bar((before + share * cost(tile)) / total_cost)

            with closing(self._results(work, tiles_left, inputs, progress_of)) as results:
                for result in results:
                    arrived[result.tile.number] = result.sums
                    self._count(result)
                    if journal is not None and not of_vectors:
                        journal.add(key, result.tile.number, result.sums)
                    first = _added(merge, tiles, first, arrived)
                    if journal is not None and first < len(tiles):
                        if not of_vectors:
                            journal.advance(key, first, merge.state(), arrived)
                        elif time.monotonic() > saved + STATE_SECONDS:
                            journal.save(key, first, merge.state(), {})
                            saved = time.monotonic()
                    finished += cost(result.tile)
                    if bar is not None:
                        bar(finished / total_cost)
        assert first == len(tiles), (first, len(tiles))
        merge.finish()
        if journal is not None and begun.first < len(tiles):
            journal.save(key, first, merge.state(), {})
        return merge

    def _count(self, result: Done) -> None:
        """Count the tile for its worker, and the bytes that were sent and returned."""
        self.workers[result.worker] = self.workers.get(result.worker, 0) + 1
        self.on_gpus += ON_GPU in result.sums
        if result.worker != worker_name():
            self.sent[result.worker] = self.sent.get(result.worker, 0) + result.received
            self.returned += sum(values.nbytes for values in result.sums.values())

    def _results(
        self, work: Work, tiles: Sequence[Tile], inputs: Mapping[str, Any], progress: Callable[[Tile], Progress]
    ) -> Generator[Done]:
        if not tiles:
            return
        try:
            with closing(self.parallel.results(self.held, work, tiles, inputs, progress)) as results:
                yield from results
        except TileError as error:
            if self.parallel.journal is not None:
                error.add_note(f"finished tiles are in {self.parallel.journal}: the same call goes on from there")
            else:
                error.add_note("with journal='FILE' the same call would go on from here")
            raise

    @property
    def _open_journal(self) -> Journal:
        assert self.journal is not None
        return self.journal


def cost_of(backend: Backend) -> float:
    """Return the time of an entry relative to a usual one of the compiled core."""
    return backend.entry_cost * max(1.0, backend.problem.multiply_adds / USUAL_ENTRY)


def megabytes(size: int) -> str:
    """Format a size, as in "1.25 MB"."""
    return f"{size / 1e6:.3g} MB"


def _with_reason(backend: Backend, why: str) -> Backend:
    """Append to the backend's reason, and return the backend."""
    backend.reason = f"{backend.reason}; {why}"
    return backend


def _added(merge: Merge, tiles: list[Tile], first: int, arrived: dict[int, Any]) -> int:
    """Add and forget the parts that are next in order; return the number of tiles added so far."""
    while first < len(tiles) and first in arrived:
        merge.add(tiles[first], arrived.pop(first))
        first += 1
    return first


class DistributedBackend(Backend):
    """H in tiles that workers sweep; reductions over few pairs are computed in this process."""

    def __init__(self, backend: Backend, run: Run) -> None:
        self.problem = backend.problem
        self.name, self.threads, self.entry_cost = backend.name, backend.threads, backend.entry_cost
        self.parallel: Run = run
        self._local = backend

    @property
    def reason(self) -> str:  # type: ignore[override]
        return f"{self._local.reason}; {self.parallel.describe()}"

    def describe_call(self) -> dict[str, str]:
        """Return what identifies the call that a journal belongs to."""
        points = self.problem.left.points
        return {
            "version of kcalib": __version__,
            "system and instruction level": machine(),
            "number of samples": str(len(points)),
            "kernel": str(self.problem.kernel_repr or self.problem.kernel),
            "dtype": str(points.dtype),
            "backend": self.name,
            "data (fingerprint of labels, predictions and target kernel)": self._outline.key,
        }

    def obstacle(self, reduction: Reduction[Any]) -> str | None:
        if self.parallel.parallel.gpu and reduction.option is not None:
            return f"GPUs have no option {reduction.option}"
        return self._local.obstacle(reduction)

    def like(self, problem: PairProblem) -> Backend:
        return self.parallel.spread(self._local.like(problem))

    def gram(self, feature_map: FeatureMap, columns: np.ndarray) -> np.ndarray:
        rows, n = gram_rows(len(columns)), len(columns)
        of_tile = max(1, (self.parallel.parallel.tile_size or 0) // rows)
        matrix: np.ndarray = self._sweep_tiles(Gram(feature_map, columns, rows), Runs(-(-n // rows), of_tile))
        return matrix

    def _results(self, reductions: Sequence[Reduction[Any]]) -> list[Any]:
        return [self._result(reduction) for reduction in reductions]

    def _result(self, reduction: Reduction[Any]) -> Any:
        n = len(self.problem.left.points)
        if isinstance(reduction, Counts | EntriesInRange | DenseRectangle):
            return sweep_one(self._local, reduction)
        if isinstance(reduction, BlockSums):
            return self._sweep_tiles(reduction, runs(n // reduction.size, reduction.size, cost_of(self)))
        if isinstance(reduction, Products):
            check_choice("dtype", reduction.dtype, ("float64", "float32"))
            vectors = np.ascontiguousarray(reduction.vectors, dtype=np.float64)
            if vectors.shape[1] == 0:
                return np.empty((n, 0))
            reduction = replace(reduction, vectors=vectors)
        if isinstance(reduction, QuadraticForms):
            check_choice("dtype", reduction.dtype, ("float64", "float32"))
        parts = reduction.batches(max(1, min(COLUMNS, COLUMNS_BYTES // (8 * n))))
        results = [self._sweep_tiles(part, self._grid(part)) for part in parts]
        if isinstance(reduction, QuadraticForms | LabelMatches):
            return np.concatenate([np.empty(0), *results])
        return results[0]

    def _sweep_tiles(self, reduction: Reduction[Any], grid: Grid | Runs) -> Any:
        outline, parallel = self._outline, self.parallel.parallel
        key, has_arrays = fingerprint(reduction), not isinstance(reduction, Moments | BlockSums)
        work = Work(
            name=type(reduction).__name__,
            reduction=key,
            problem=outline.key,
            parts=tuple(outline.arrays),
            backend=self.name,
            threads=parallel.threads_of_task,
            grid=grid,
            options=None if has_arrays else reduction,
            gpu=parallel.gpu,
        )
        inputs = {**outline.arrays, outline.key: outline, key: reduction}
        merge = self.parallel.merged(work, inputs, reduction)
        return reduction.finish(merge, self._prepared.tiles(reduction))

    def _grid(self, reduction: Reduction[Any]) -> Grid:
        problem, tiles, parallel = self.problem, self._prepared.tiles(reduction), self.parallel.parallel
        return grid(
            len(problem.left.points),
            len(problem.columns.points),
            symmetric=problem.symmetric,
            block=tiles.block,
            group=tiles.group,
            has_group_sums=tiles.has_group_sums,
            entry_cost=cost_of(self),
            threads=parallel.threads_of_task,
            tile_size=parallel.tile_size,
        )

    @cached_property
    def _outline(self) -> Outline:
        return Outline(self.problem)

    @cached_property
    def _prepared(self) -> Prepared:
        return Prepared(self.problem, self.name, self.threads or 1)
