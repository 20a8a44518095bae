"""What a worker does: the sums of a tile, from the problem, which it gets once, and the tile's place.

`Work` says what all tiles of a sweep have in common, and is sent with each; `computed` is a pure function of it, of the
problem and of the vectors. `store` has both on a worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.random import Weights
from kcalib._pairs.backends.cpu import CpuBackend, Cut, HostSide, Parts
from kcalib._pairs.dispatch import Backend, backend_for
from kcalib._pairs.feature_sums import compiled
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.problem import PairProblem, Side
from kcalib.parallel.plan import Grid, Runs, Tile

Progress = Callable[[float], None] | None
Sums = dict[str, np.ndarray]
OF_WEIGHTS, OF_LABELS, OF_UNITS = "forms", "matches", "rounded products"
OF_ROWS = "gram"  # what is a sum over samples, not over pairs
AS_GIVEN = (OF_LABELS, OF_UNITS)  # what takes samples in the order in which they are given
ON_GPU = "on_gpu"  # among the sums of a tile: it was computed on a GPU


class Weighting(NamedTuple):
    """Columns [begin, end) of a matrix of weights or labels; weights of resampling every worker makes for itself."""

    weights: Weights | np.ndarray
    begin: int
    end: int
    dtype: str

    @property
    def nbytes(self) -> int:
        """Of what is sent."""
        return 0 if isinstance(self.weights, Weights) else self.weights.nbytes


class Featured(NamedTuple):
    """Random features of the points, and columns beside them."""

    feature_map: FeatureMap
    columns: np.ndarray

    @property
    def nbytes(self) -> int:
        """Of what is sent."""
        return self.feature_map.frequencies.nbytes + self.columns.nbytes


@dataclass(frozen=True)
class Work:
    """A primitive of the backend on all tiles of a problem."""

    primitive: str  # of COMPUTED
    problem: str  # fingerprint
    parts: tuple[str, ...]  # and those of its arrays
    backend: str  # name, of the one that computes
    threads: int
    options: Mapping[str, Any]
    grid: Grid | Runs
    vectors: str | None = None  # fingerprint
    gpu: bool = False  # on that of the worker, if it has one

    @property
    def needs(self) -> tuple[str, ...]:
        """The fingerprints of what a worker must have."""
        return (*self.parts, self.problem, *(() if self.vectors is None else (self.vectors,)))

    def fingerprint(self, library: str) -> str:
        """The same for the same numbers of every tile."""
        what = (library, self.primitive, self.problem, self.backend, sorted(self.options.items()), self.vectors)
        return hashlib.blake2b(repr(what).encode(), digest_size=16).hexdigest()


class Prepared:
    """A problem on a worker, as its backend reads it."""

    def __init__(self, problem: PairProblem, backend: str, threads: int, gpu: bool = False) -> None:
        self.problem = problem
        self._name, self._threads = backend, threads
        self._gpu = gpu and has_gpu()

    def cut(self, primitive: str) -> Cut | PlainCut:
        """With samples in the order in which the backend adds them up; for comparisons of labels as they are given."""
        return self._as_given if primitive in AS_GIVEN else self._sorted

    @cached_property
    def _sorted(self) -> Cut | PlainCut:
        return self._cut(sort=True)

    @cached_property
    def _as_given(self) -> Cut | PlainCut:
        return self._cut(sort=False)

    def _cut(self, sort: bool) -> Cut | PlainCut:
        backend = made(self.problem, self._name, self._threads)
        here = backend.cut(sort) if isinstance(backend, CpuBackend) else PlainCut(backend, self._threads)
        return GPUCut(self.problem, here, self._threads) if self._gpu else here


class PlainCut:
    """A problem in rectangles for backends whose sums have no order that tiles could keep: the samples' own."""

    block: int = 1
    group: int = 1
    apart = False

    def __init__(self, backend: Backend, threads: int) -> None:
        self._backend, self._threads = backend, threads
        self.symmetric = backend.problem.symmetric
        self.left: HostSide | AsTheyAre = AsTheyAre()
        self.right: HostSide | AsTheyAre = self.left

    def _part(self, rows: range, columns: range) -> Backend:
        problem = self._backend.problem
        left = problem.left.take(slice(rows.start, rows.stop))
        own = self.symmetric and rows == columns
        right: Side | None = None if own else problem.columns.take(slice(columns.start, columns.stop))
        part = PairProblem(left, right, problem.kernel, problem.target, problem.predicted, problem.table)
        return made(part, self._backend.name, self._threads)

    def moments(
        self,
        rows: range,
        columns: range,
        group: int,
        *,
        second: bool,
        with_rows: bool,
        apart: bool,
        expected: bool = False,
        progress: Progress = None,
    ) -> Parts:
        assert not expected  # `DistributedBackend` asks `Cut` alone
        found = self._part(rows, columns).moments(second=second, rows=with_rows, trace=False)
        own = self.symmetric and rows == columns
        row_sums, column_sums = (
            None if sums is None else np.asarray(arrays.to_host(sums), dtype=np.float64)[None, :]
            for sums in (found.row_sums, None if own else found.column_sums)
        )
        squares = None if found.sum_of_squares is None else np.array([[float(found.sum_of_squares)]])
        return np.array([[float(found.total)]]), row_sums, column_sums, squares, None

    def matmul(
        self, rows: range, columns: range, vectors: np.ndarray, *, dtype: str, both: bool, progress: Progress = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        own = self.symmetric and rows == columns
        return self._product(rows, columns, vectors, dtype), (
            self._product(columns, rows, vectors, dtype) if both and not own else None
        )

    def _product(self, rows: range, columns: range, vectors: np.ndarray, dtype: str) -> np.ndarray:
        part = self._part(rows, columns)
        some = arrays.like(vectors[columns.start : columns.stop], part.problem.left.points, np.float64)
        return np.asarray(arrays.to_host(part.matmul(some, dtype=dtype)), dtype=np.float64)

    def weights(self, weights: np.ndarray | Weights, begin: int, end: int, dtype: str) -> np.ndarray:
        if isinstance(weights, Weights):
            return self.left.sorted(weights.values(begin, end, dtype, self._threads))
        return self.left.sorted(np.asarray(weights[:, begin:end], dtype=dtype))

    def forms(
        self,
        rows: range,
        columns: range,
        group: int,
        weights: np.ndarray,
        *,
        apart: bool,
        progress: Progress = None,
    ) -> np.ndarray:
        products = self._product(rows, columns, weights, str(weights.dtype))
        of_rows = (weights[rows.start : rows.stop] * products).T
        return np.sum(np.ascontiguousarray(of_rows), axis=1)[None, None, :]

    def block_sums(self, size: int, blocks: range, progress: Progress = None) -> np.ndarray:
        rows = range(blocks.start * size, blocks.stop * size)
        return np.asarray(arrays.to_host(self._part(rows, rows).block_sums(size)), dtype=np.float64)


class GPUCut(PlainCut):
    """The same on this machine's GPU, in the order of samples of `here`, by which others compute."""

    def __init__(self, problem: PairProblem, here: Cut | PlainCut, threads: int) -> None:
        self._given = problem
        self._threads = threads
        left = on_gpu(problem.left, here.left)
        right = None if problem.right is None else on_gpu(problem.right, here.right)
        super().__init__(backend_for(replace(problem, left=left, right=right, table=_table(problem))), threads)
        self.left, self.right = here.left, here.right
        self.block, self.group, self.apart = here.block, here.group, here.apart

    def block_sums(self, size: int, blocks: range, progress: Progress = None) -> np.ndarray:
        rows = slice(blocks.start * size, blocks.stop * size)
        side = on_gpu(self._given.left.take(rows), AsTheyAre())
        backend = backend_for(replace(self._given, left=side, table=_table(self._given)))
        return np.asarray(arrays.to_host(backend.block_sums(size)), dtype=np.float64)


def has_gpu() -> bool:
    """Whether this process has CuPy and a GPU."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount()) > 0
    except Exception:  # no CuPy, no driver, no device: CuPy has an error for each
        return False


def on_gpu(side: Side, order: HostSide | AsTheyAre) -> Side:
    """Samples on this machine's GPU, in that order."""
    import cupy

    points, marks = (cupy.asarray(order.sorted(np.asarray(values))) for values in (side.points, side.marks))
    labels = None if side.labels is None else cupy.asarray(order.sorted(np.asarray(side.labels)))
    return Side(points, marks, labels)


def _table(problem: PairProblem) -> Any:
    if problem.table is None:
        return None
    import cupy

    return cupy.asarray(problem.table)


class AsTheyAre:
    """Samples in the order in which they were given."""

    def sorted(self, values: np.ndarray) -> np.ndarray:
        return values

    def restored(self, values: Any) -> Any:
        return values


def made(problem: PairProblem, backend: str, threads: int) -> Backend:
    """The backend of that name, with threads where it has a say in them."""
    return backend_for(problem, backend=backend, threads=threads if backend == CpuBackend.name else None)


def computed(work: Work, tile: Tile, prepared: Prepared, vectors: Any, progress: Progress = None) -> Sums:
    """The sums of a tile."""
    if work.primitive == OF_ROWS:
        return _gram(work, tile, prepared.problem, vectors, progress)
    cut = prepared.cut(work.primitive)
    found = COMPUTED[work.primitive](work, tile, cut, vectors, progress)
    return found | {ON_GPU: np.ones(1)} if isinstance(cut, GPUCut) else found


def _moments(work: Work, tile: Tile, cut: Cut | PlainCut, vectors: None, progress: Progress) -> Sums:
    grid = work.grid
    assert isinstance(grid, Grid)
    totals, rows, columns, squares, expected = cut.moments(
        tile.rows,
        tile.columns,
        grid.group,
        second=work.options["second"],
        with_rows=work.options["rows"],
        apart=grid.apart,
        expected=work.options["expected"],
        progress=progress,
    )
    found = {"totals": totals, "rows": rows, "columns": columns, "squares": squares, "expected": expected}
    return {name: values for name, values in found.items() if values is not None}


def _block_sums(work: Work, tile: Tile, cut: Cut | PlainCut, vectors: None, progress: Progress) -> Sums:
    return {"sums": cut.block_sums(work.options["size"], tile.rows, progress)}


def _matmul(work: Work, tile: Tile, cut: Cut | PlainCut, vectors: np.ndarray, progress: Progress) -> Sums:
    both, dtype = cut.symmetric, work.options["dtype"]
    rows, columns = cut.matmul(tile.rows, tile.columns, vectors, dtype=dtype, both=both, progress=progress)
    return {"rows": rows} if columns is None else {"rows": rows, "columns": columns}


def _forms(work: Work, tile: Tile, cut: Cut | PlainCut, weights: Any, progress: Progress) -> Sums:
    grid = work.grid
    assert isinstance(grid, Grid)
    forms = cut.forms(tile.rows, tile.columns, grid.group, weights, apart=grid.apart, progress=progress)
    return {"forms": np.ascontiguousarray(forms[:, :, : work.options["columns"]])}


def _matches(work: Work, tile: Tile, cut: Cut | PlainCut, labels: Any, progress: Progress) -> Sums:
    grid = work.grid
    assert isinstance(grid, Grid) and isinstance(cut, Cut)
    sums = cut.matches(tile.rows, tile.columns, grid.group, labels, apart=grid.apart, progress=progress)
    return {"forms": np.ascontiguousarray(sums[:, :, : work.options["columns"]])}


def _gram(work: Work, tile: Tile, problem: PairProblem, featured: Featured, progress: Progress) -> Sums:
    size = work.options["rows"]
    rows = slice(tile.row * size, tile.row_end * size)
    points = arrays.compact(problem.left.points[rows], np.float64)
    sweep = _native.Sweep(work.threads, None, progress)
    return {"parts": compiled(featured.feature_map).gram_parts(points, featured.columns[rows], size, sweep)}


COMPUTED: dict[str, Callable[[Work, Tile, Cut | PlainCut, Any, Progress], Sums]] = {
    "moments": _moments,
    "block_sums": _block_sums,
    "matmul": _matmul,
    OF_WEIGHTS: _forms,
    OF_LABELS: _matches,
    OF_UNITS: _matmul,
}
