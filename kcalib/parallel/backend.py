"""A backend whose sums are those of tiles, computed by the workers of a transport.

`Run` is what a public function holds while it computes: the transport, open, and the journal. It makes a
`DistributedBackend` of every backend that `_pairs.dispatch` chooses, so that estimators, tests and solvers compute on
many machines without knowing of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice
from kcalib._backend.random import Weights
from kcalib._backend.threads import TerminalProgress
from kcalib._pairs.backends.compared_labels import LabelForms, label_forms
from kcalib._pairs.backends.cpu import IN_UNITS, LABELS, Cut
from kcalib._pairs.backends.diagonal import diagonal
from kcalib._pairs.dispatch import Backend
from kcalib._pairs.feature_sums import gram_rows
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.problem import Moments
from kcalib._version import __version__
from kcalib.parallel.journal import Journal, Sweep
from kcalib.parallel.plan import Grid, Runs, Tile, grid, runs
from kcalib.parallel.reductions import BlockSums, Forms, Gram, MomentSums, Products, Reduction, added
from kcalib.parallel.store import Done, Outline, fingerprint, worker_name
from kcalib.parallel.transport import Parallel, TileError, counted
from kcalib.parallel.work import (
    OF_LABELS,
    OF_ROWS,
    OF_UNITS,
    OF_WEIGHTS,
    ON_GPU,
    Featured,
    PlainCut,
    Prepared,
    Progress,
    Weighting,
    Work,
)

USUAL_ENTRY = 40.0  # multiply-adds; of slower ones, as of distributions, there are fewer in a tile
FEWEST_PAIRS = 2**24  # of a problem that is worth sharing out: less takes about as long as a message there and back
COLUMNS, COLUMNS_BYTES = 2048, 2**28  # of weights, at most, that a worker holds at a time
OF_VECTORS = (
    "matmul",
    OF_UNITS,
)  # tiles as large as the vectors: a journal keeps what they add up to, now and then
STATE_SECONDS = 30.0  # between two of these
# Of all products that a journal keeps, so many columns of numbers, or bytes: those of the first ones.
COLUMNS_KEPT, BYTES_KEPT = 64, 2**28


class Run:
    """A call on a transport."""

    def __init__(self, parallel: Parallel) -> None:
        self.parallel = parallel
        self.journal: Journal | None = None
        self.held: Any = None
        self._begun: dict[str, Sweep] = {}  # that the journal keeps
        self._products = 0  # bytes of those that it keeps
        self._checked = False
        self.workers: dict[str, int] = {}  # tiles by who computed them
        self.resumed = 0  # tiles that were in the journal
        self.tiles = 0
        self.on_gpus = 0  # tiles
        self.sent: dict[str, int] = {}  # bytes of samples and vectors, by worker
        self.returned = 0  # bytes of sums

    @contextmanager
    def with_journal(self) -> Iterator[None]:
        """While the journal is open, if there is one."""
        if self.parallel.journal is None:
            yield
            return
        self.journal = Journal(self.parallel.journal)
        try:
            yield
        finally:
            self.journal.close()

    def spread(self, backend: Backend) -> Backend:
        """The backend on the workers, or itself where there is nothing to share out; its reason says so."""
        problem = backend.problem
        if not arrays.is_host(problem.left.points):
            raise ValueError(
                f"`parallel` takes arrays in host memory, these are on {arrays.describe_device(problem.left.points)}; "
                "bring them to the CPU, or leave parallel=None"
            )
        if backend.on_a_line:
            return _here(backend, "in O(n log n) there is nothing to share out")
        pairs = int(problem.left.points.shape[0]) * int(problem.columns.points.shape[0])
        if self.parallel.tile_size is None and pairs * cost_of(backend) < FEWEST_PAIRS:
            return _here(backend, "too few samples to share out")
        spread = DistributedBackend(backend, self)
        if not self._checked and self.parallel.journal is not None:
            header = spread.described()
            self._open_journal.check(header)
        self._checked = True
        return spread

    def gram(self, backend: Backend, feature_map: FeatureMap, columns: np.ndarray) -> np.ndarray:
        """`feature_sums.gram` of the points of a backend that is spread."""
        assert isinstance(backend, DistributedBackend)
        return backend.gram(feature_map, columns)

    def described(self) -> str:
        """What was done."""
        if not self.tiles:
            return "`parallel` had nothing to share out, as no sum over pairs was needed"
        kept = f", {self.resumed} of them from the journal" if self.resumed else ""
        gpus = f", {self.on_gpus} on GPUs" if self.parallel.gpu else ""
        moved = ""
        if self.sent:
            most = "" if len({*self.sent.values()}) == 1 else "at most "
            each = f"{most}{megabytes(max(self.sent.values()))} sent to each of {counted(len(self.sent), 'worker')}"
            moved = f", {each}, {megabytes(self.returned)} of sums back"
        return f"in parallel: {self.tiles} tiles{kept}{gpus}, {self.parallel.describe()}{moved}"

    def planned(self, work: Work, columns: int = 0) -> Work:
        """The work with the plan that the journal has begun it with, if there is one."""
        if self.parallel.journal is None:
            return work
        key, plan = work.fingerprint(__version__), asdict(work.grid)
        if work.primitive in OF_VECTORS:
            rows = 8 * work.grid.n
            if self._products + rows * columns > max(BYTES_KEPT, rows * COLUMNS_KEPT):
                return work
            self._products += rows * columns
        sweep = self._open_journal.begin(key, plan)
        self._begun[key] = sweep
        return replace(work, grid=type(work.grid)(**sweep.plan))

    def reduced(self, work: Work, given: Mapping[str, Any], reduction: Reduction) -> None:
        """Compute the tiles of planned work, but for those that the journal has, and add them up."""
        key, cost = work.fingerprint(__version__), work.grid.work
        tiles = work.grid.tiles()
        self.tiles += len(tiles)
        journal = self.journal if key in self._begun else None
        begun = self._begun.pop(key, Sweep({}))
        first, arrived = begun.first, dict(begun.tiles)
        if journal is not None and first:
            reduction.restore(journal.state(key))
        begun.tiles = {}  # these are here
        self.resumed += first + len(arrived)
        of_vectors, saved = work.primitive in OF_VECTORS, time.monotonic()
        wanted = [tile for tile in tiles[first:] if tile.number not in arrived]
        first = added(reduction, tiles, first, arrived)
        whole, finished = sum(cost(tile) for tile in wanted) or 1.0, 0.0  # of what is left, as is the time left
        with TerminalProgress() as bar:

            def progress_of(tile: Tile) -> Progress:
                before = finished
                return None if bar is None else lambda share: bar((before + share * cost(tile)) / whole)

            with closing(self._results(work, wanted, given, progress_of)) as results:
                for done in results:
                    arrived[done.tile.number] = done.sums
                    self._count(done)
                    if journal is not None and not of_vectors:
                        journal.add(key, done.tile.number, done.sums)
                    first = added(reduction, tiles, first, arrived)
                    if journal is not None and first < len(tiles):
                        if not of_vectors:
                            journal.advance(key, first, reduction.state(), arrived)
                        elif time.monotonic() > saved + STATE_SECONDS:
                            journal.save(key, first, reduction.state(), {})
                            saved = time.monotonic()
                    finished += cost(done.tile)
                    if bar is not None:
                        bar(finished / whole)
        assert first == len(tiles), (first, len(tiles))
        reduction.finish()
        if journal is not None and begun.first < len(tiles):
            journal.save(key, first, reduction.state(), {})

    def _count(self, done: Done) -> None:
        """Who computed it, and what has moved."""
        self.workers[done.worker] = self.workers.get(done.worker, 0) + 1
        self.on_gpus += ON_GPU in done.sums
        if done.worker != worker_name():
            self.sent[done.worker] = self.sent.get(done.worker, 0) + done.received
            self.returned += sum(values.nbytes for values in done.sums.values())

    def _results(
        self, work: Work, tiles: Sequence[Tile], given: Mapping[str, Any], progress: Callable[[Tile], Progress]
    ) -> Generator[Done]:
        if not tiles:
            return
        try:
            with closing(self.parallel.results(self.held, work, tiles, given, progress)) as results:
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
    """An entry's time, relative to one of the compiled core's that is as fast as those of labels mostly are."""
    return backend.entry_cost * max(1.0, backend.problem.multiply_adds / USUAL_ENTRY)


def megabytes(size: int) -> str:
    """As in "1.25 MB"."""
    return f"{size / 1e6:.3g} MB"


def _here(backend: Any, why: str) -> Backend:
    """The backend as it is, which says why."""
    backend.reason = f"{backend.reason}; {why}"
    return backend


class DistributedBackend:
    """The primitives of H, added up from tiles; what takes few pairs is computed here."""

    on_a_line = False

    def __init__(self, backend: Backend, run: Run) -> None:
        self.problem = backend.problem
        self.name = backend.name
        self.threads = backend.threads
        self.entry_cost = backend.entry_cost
        self.parallel = run
        self._here = backend

    @property
    def reason(self) -> str:
        return f"{self._here.reason}; {self.parallel.described()}"

    def described(self) -> dict[str, str]:
        """What a journal is of."""
        points = self.problem.left.points
        return {
            "version of kcalib": __version__,
            "number of samples": str(len(points)),
            "kernel": str(self.problem.said or self.problem.kernel),
            "dtype": str(points.dtype),
            "backend": self.name,
            "data (fingerprint of labels, predictions and target kernel)": self._key,
        }

    def moments(self, second: bool = False, rows: bool = True, trace: bool = True) -> Moments:
        return self._moments(second, rows, trace)[0]

    @property
    def moments_and_expectation(self) -> Callable[[], tuple[Moments, tuple[float, float]]] | None:
        """As the backend has it; GPUs do not."""
        if not hasattr(self._here, "moments_and_expectation") or self.parallel.parallel.gpu:
            return None

        def both() -> tuple[Moments, tuple[float, float]]:
            moments, expectation = self._moments(True, True, True, expected=True)
            assert expectation is not None
            return moments, expectation

        return both

    def _moments(
        self, second: bool, rows: bool, trace: bool, expected: bool = False
    ) -> tuple[Moments, tuple[float, float] | None]:
        problem, cut = self.problem, self._cut("moments")
        rows = rows or second
        work = self.parallel.planned(self._work("moments", {"second": second, "rows": rows, "expected": expected}))
        assert isinstance(work.grid, Grid)
        sums = MomentSums(work.grid, rows=rows, second=second, expected=expected)
        self.parallel.reduced(work, self._given, sums)
        own = diagonal(problem, self.threads or 1) if trace and problem.symmetric else None
        row_sums = cut.left.restored(sums.row_sums)
        column_sums = row_sums if problem.symmetric else cut.right.restored(sums.column_sums)
        trace_of_own = None if own is None else float(np.sum(np.asarray(own)))
        return Moments(sums.total, row_sums, column_sums, own, sums.squares, trace_of_own), sums.expectation

    def gram(self, feature_map: FeatureMap, columns: np.ndarray) -> np.ndarray:
        rows, n = gram_rows(len(columns)), len(columns)
        of_tile = max(1, (self.parallel.parallel.tile_size or 0) // rows)
        some, sums = Featured(feature_map, columns), Gram(feature_map.n_columns + columns.shape[1])
        key = fingerprint(some)
        work = self._work(OF_ROWS, {"rows": rows}, key)
        work = self.parallel.planned(replace(work, grid=Runs(-(-n // rows), of_tile)))
        self.parallel.reduced(work, self._given | {key: some}, sums)
        return sums.matrix

    def block_sums(self, size: int) -> Array:
        n_blocks = len(self.problem.left.points) // size
        work = self._work("block_sums", {"size": size})
        work = self.parallel.planned(replace(work, grid=runs(n_blocks, size, cost_of(self))))
        sums = BlockSums(n_blocks)
        self.parallel.reduced(work, self._given, sums)
        return sums.sums

    def matmul(self, vectors: Array, *, dtype: str = "float64") -> Array:
        check_choice("dtype", dtype, ("float64", "float32"))
        if vectors.shape[1] == 0:
            return np.empty((len(self.problem.left.points), 0))
        return self._products("matmul", vectors, dtype)

    def _products(self, primitive: str, vectors: Array, dtype: str) -> np.ndarray:
        cut, shape = self._cut(primitive), (len(self.problem.left.points), vectors.shape[1])
        vectors = np.ascontiguousarray(cut.right.sorted(np.asarray(vectors, dtype=np.float64)))
        key, sums = fingerprint(vectors), Products(*shape)
        work = self.parallel.planned(self._work(primitive, {"dtype": dtype}, key), shape[1])
        self.parallel.reduced(work, self._given | {key: vectors}, sums)
        found: np.ndarray = cut.left.restored(sums.products)
        return found

    @property
    def label_forms(self) -> LabelForms | None:
        """As the backend has it; GPUs, which do not compare labels, have products of their marks."""
        here = hasattr(self._here, "label_forms") and not self.parallel.parallel.gpu
        return partial(label_forms, self) if here else None

    def rounded_products(self, vectors: np.ndarray) -> np.ndarray:
        return self._products(OF_UNITS, vectors, IN_UNITS)

    def matches(self, labels: np.ndarray, *others: np.ndarray) -> np.ndarray:
        if others:
            labels = np.concatenate([labels, *others], axis=1)
        parts = (labels[:, begin : begin + COLUMNS] for begin in range(0, labels.shape[1], COLUMNS))
        return np.concatenate([self._forms(OF_LABELS, Weighting(some, 0, some.shape[1], LABELS)) for some in parts])

    def quadratic_forms(self, weights: Array | Weights, *, dtype: str = "float64") -> Array:
        check_choice("dtype", dtype, ("float64", "float32"))
        n = len(self.problem.left.points)
        count = weights.n_replicates if isinstance(weights, Weights) else weights.shape[1]
        step = max(1, min(COLUMNS, COLUMNS_BYTES // (8 * n)))
        found = [np.empty(0)]
        for begin in range(0, count, step):
            end = min(count, begin + step)
            if isinstance(weights, Weights):
                some = Weighting(weights, begin, end, dtype)
            else:
                own = np.ascontiguousarray(weights[:, begin:end], dtype=np.float64)
                some = Weighting(own, 0, end - begin, dtype)
            found.append(self._forms(OF_WEIGHTS, some))
        return np.concatenate(found)

    def _forms(self, primitive: str, some: Weighting) -> np.ndarray:
        count = some.end - some.begin
        key, options = fingerprint(some), {"dtype": some.dtype, "columns": count}
        work = self.parallel.planned(self._work(primitive, options, key))
        assert isinstance(work.grid, Grid)
        sums = Forms(work.grid, count)
        self.parallel.reduced(work, self._given | {key: some}, sums)
        assert sums.forms is not None
        return sums.forms

    def counts(self, thresholds: np.ndarray) -> np.ndarray:
        return self._here.counts(thresholds)

    def between(self, low: float, high: float, count: int) -> np.ndarray:
        return self._here.between(low, high, count)

    def tile(self, rows: slice | Array, columns: slice | Array) -> Array:
        return self._here.tile(rows, columns)

    @cached_property
    def _key(self) -> str:
        return self._outline.key

    @cached_property
    def _outline(self) -> Outline:
        return Outline(self.problem)

    @property
    def _given(self) -> dict[str, Any]:
        """What workers need of the problem."""
        return {**self._outline.arrays, self._key: self._outline}

    def _cut(self, primitive: str) -> Cut | PlainCut:
        return self._prepared.cut(primitive)

    @cached_property
    def _prepared(self) -> Prepared:
        return Prepared(self.problem, self.name, self.threads or 1)

    def _work(self, primitive: str, options: dict[str, Any], vectors: str | None = None) -> Work:
        problem, cut, parallel = self.problem, self._cut(primitive), self.parallel.parallel
        pairs = grid(
            len(problem.left.points),
            len(problem.columns.points),
            symmetric=problem.symmetric,
            block=cut.block,
            group=cut.group,
            apart=cut.apart,
            entry_cost=cost_of(self),
            threads=parallel.threads_of_task,
            tile_size=parallel.tile_size,
        )
        parts = tuple(self._outline.arrays)
        threads = parallel.threads_of_task
        return Work(primitive, self._key, parts, self.name, threads, options, pairs, vectors, parallel.gpu)
