"""The eight reductions: what a sweep over the pairs keeps of H.

`backend.sweep([...])` visits the blocks of H and returns a result for each reduction:

    moments, forms = backend.sweep([Moments(second=True), QuadraticForms(weights)])

A distributed sweep computes a part, arrays by name, for each tile (a rectangle of H). `Merge` adds the parts in the
order of tiles with compensation, as the compiled core adds groups of blocks: sums have the bits of one machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from kcalib._backend.arrays import Array
from kcalib._backend.compensated import CompensatedSums, State, compensated_sum
from kcalib._backend.random import BinaryDraws, Weights
from kcalib._pairs.problem import PairProblem
from kcalib._pairs.tiles import Grid, Runs, Tile

R = TypeVar("R")
Part = Mapping[str, np.ndarray]  # of a tile


class Sweeping(Protocol):
    """An object with a sweep."""

    def sweep(self, reductions: Sequence[Reduction[Any]]) -> list[Any]: ...


def sweep_one(backend: Sweeping, reduction: Reduction[R]) -> R:
    """Sweep for one reduction and return its result."""
    result: R = backend.sweep([reduction])[0]
    return result


class Merge:
    """Parts of tiles, added in the order of their numbers.

    Sums of pairs of groups are kept separately and added at the end; sums of rows and columns are added immediately.
    The state is arrays, which a journal keeps.
    """

    def __init__(
        self,
        grid: Grid | Runs,
        groups: Mapping[str, tuple[int, ...]] | None = None,
        rows: tuple[int, ...] | None = None,
        columns: tuple[int, ...] | None = None,
    ) -> None:
        self._grid = grid
        self.sums: dict[str, np.ndarray] = {}  # over all groups, after `finish`
        self._groups: dict[str, np.ndarray] = {}
        if isinstance(grid, Grid):
            self._groups = {name: np.zeros((*grid.groups, *shape)) for name, shape in (groups or {}).items()}
        sides = {"rows": rows, "columns": columns}
        self._sides = {name: CompensatedSums(shape) for name, shape in sides.items() if shape is not None}

    def add(self, tile: Tile, part: Part) -> None:
        """Add the part of the next tile."""
        if isinstance(self._grid, Grid):
            twice = 2.0 if self._grid.symmetric and not tile.on_diagonal else 1.0
            a, b = tile.row // self._grid.step, tile.column // self._grid.step
            for name, matrix in self._groups.items():
                values = part[name]
                matrix[a : a + values.shape[0], b : b + values.shape[1]] = twice * values
        if "rows" in self._sides:
            rows, columns = self._sides["rows"], self._sides.get("columns", self._sides["rows"])
            for sums in part["rows"]:
                rows.add(tile.row, tile.row_end, sums)
            for sums in part.get("columns", ()):
                columns.add(tile.column, tile.column_end, sums)

    def state(self) -> State:
        """Return the state of all tiles so far."""
        state = dict(self.sums) if self.sums else {f"{name} of groups": sums for name, sums in self._groups.items()}
        for name, sums in self._sides.items():
            state |= sums.state(name)
        return state

    def restore(self, state: State) -> None:
        """Restore a state."""
        for name, matrix in self._groups.items():
            if name in state:
                self.sums[name] = state[name]
            else:
                matrix[...] = state[f"{name} of groups"]
        for name, sums in self._sides.items():
            sums.restore(name, state)

    def finish(self) -> None:
        """Add up the groups after the last tile."""
        for name, matrix in self._groups.items():
            if name not in self.sums:
                self.sums[name] = np.asarray(compensated_sum(matrix.reshape(-1, *matrix.shape[2:])))
        for sums in self._sides.values():
            sums.settle()

    @property
    def rows(self) -> np.ndarray | None:
        """The sums of rows."""
        return self._sides["rows"].sums if "rows" in self._sides else None

    @property
    def columns(self) -> np.ndarray | None:
        """The sums of columns; None if they equal those of rows."""
        return self._sides["columns"].sums if "columns" in self._sides else None


class Tiled(Protocol):
    """An object with the problem of tiles and their order of summation."""

    backend: Any
    left: Any
    right: Any


class Reduction(Generic[R]):
    """Base class of reductions: options, with a result of type R."""

    needs_symmetry: ClassVar[bool] = False  # rows and columns of H are the same samples

    def obstacle(self, problem: PairProblem) -> str | None:
        """Return why the problem has no such result, or None."""
        if self.needs_symmetry and not problem.symmetric:
            return "rows and columns of H are not the same samples"
        return None

    @property
    def option(self) -> str | None:
        """The option that not every backend has, or None if it is not used."""
        return None

    def start(self, grid: Grid | Runs) -> Merge:
        """Return a `Merge` for the parts of tiles, for reductions over many pairs."""
        raise NotImplementedError

    def finish(self, merge: Merge, tiled: Tiled) -> R:
        """Return the result of merged parts."""
        raise NotImplementedError

    def batches(self, size: int) -> Iterator[Reduction[R]]:
        """Yield reductions of at most `size` columns, with consecutive results; itself without columns."""
        yield self

    @property
    def in_given_order(self) -> bool:
        """Whether samples are added in the given order instead of the order of the backend."""
        return False

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


class NullSquares(NamedTuple):
    """sum_{i != j} k_ij^2 tr(V_i V_j): expectation of the sum of squares if labels are drawn from the points."""

    value: float
    magnitude: float  # sum of k_ij^2 <x_i, x_j>; for nearly certain predictions rounding is relative to it


@dataclass(frozen=True)
class MomentSums:
    """Sums over H. In a symmetric problem only `diagonal` and `trace` include the diagonal."""

    total: Any  # of all entries: a float, or a float64 array of shape ()
    row_sums: Array | None  # float64, shape: (n,); None if not requested
    column_sums: Array | None  # float64, shape: (n right,); the row sums if symmetric
    diagonal: Array | None  # float64, shape: (n,); None like trace or row sums
    sum_of_squares: float | None  # None if not requested
    trace: Any  # sum of the diagonal; None for rectangular problems, or if not requested
    null_variance: NullSquares | None = field(default=None, kw_only=True)  # None if not requested


@dataclass(frozen=True)
class Moments(Reduction[MomentSums]):
    """Total, row and column sums, sum of squares, trace and diagonal.

    Parameters
    ----------
    second : bool
        Compute the sum of squares, and the sums of rows and columns.
    rows : bool
        Compute the sums of rows and columns.
    trace : bool
        Compute the diagonal and its sum, for symmetric problems.
    null_variance : bool
        Compute `NullSquares`, for symmetric problems whose features are residuals of labels; with `second`.
    """

    second: bool = False
    rows: bool = True
    trace: bool = True
    null_variance: bool = False

    def obstacle(self, problem: PairProblem) -> str | None:
        if self.null_variance and (problem.left.labels is None or not problem.symmetric):
            return "a null variance is that of residuals of labels"
        return super().obstacle(problem)

    @property
    def option(self) -> str | None:
        return "null_variance" if self.null_variance else None

    def start(self, grid: Grid | Runs) -> Merge:
        assert isinstance(grid, Grid)
        groups: dict[str, tuple[int, ...]] = {"totals": ()}
        if self.second or self.null_variance:
            groups["squares"] = ()
        if self.null_variance:
            groups["null"] = (2,)
        rows = (grid.n,) if self.rows or "squares" in groups else None
        return Merge(grid, groups, rows, None if rows is None or grid.symmetric else (grid.n_right,))

    def finish(self, merge: Merge, tiled: Tiled) -> MomentSums:
        sums, rows = merge.sums, tiled.left.restored(merge.rows)
        columns = rows if tiled.backend.problem.symmetric else tiled.right.restored(merge.columns)
        squares = sums["squares"].item() if "squares" in sums else None
        null = NullSquares(*sums["null"].tolist()) if "null" in sums else None
        moments: MomentSums = tiled.backend.moment_sums(self, sums["totals"].item(), rows, columns, squares, null)
        return moments


@dataclass(frozen=True)
class BlockSums(Reduction[Array]):
    """Sum over i != j of each of the n // size consecutive diagonal blocks, shape (n // size,)."""

    size: int

    needs_symmetry: ClassVar[bool] = True

    @property
    def in_given_order(self) -> bool:
        return True

    def start(self, grid: Grid | Runs) -> Merge:
        return Merge(grid, rows=(grid.n,))

    def finish(self, merge: Merge, tiled: Tiled) -> Array:
        return merge.rows


@dataclass(frozen=True, eq=False)
class Products(Reduction[Array]):
    """H @ vectors in float64, for `vectors` of shape (n right, c).

    Parameters
    ----------
    vectors : array, shape (n right, c)
        Columns of any scale.
    dtype : {"float64", "float32"}
        With "float32" entries and products may be rounded to it, but sums over tiles are float64: an error of about
        1e-7 of sum_j |H_ij v_j|, for iterations that correct it.
    rounded : bool
        Round entries to the units of `LabelMatches`, and omit the diagonal.
    """

    vectors: Array
    dtype: str = "float64"
    rounded: bool = False

    @property
    def option(self) -> str | None:
        return "rounded" if self.rounded else None

    @property
    def in_given_order(self) -> bool:
        return self.rounded

    def start(self, grid: Grid | Runs) -> Merge:
        return Merge(grid, rows=(grid.n, int(self.vectors.shape[1])))

    def finish(self, merge: Merge, tiled: Tiled) -> Array:
        return tiled.left.restored(merge.rows)


@dataclass(frozen=True, eq=False)
class QuadraticForms(Reduction[Array]):
    """w^T H w for each column w of `weights`, shape (n, c).

    Parameters
    ----------
    weights : array or Weights
        Columns, or resampling weights, which are drawn on use.
    dtype : {"float64", "float32"}
        With "float32" entries and products may be rounded to it, but sums over tiles are float64: for null
        distributions, twice as fast if products dominate.
    """

    weights: Array | Weights
    dtype: str = "float64"

    needs_symmetry: ClassVar[bool] = True

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.weights.n_replicates if isinstance(self.weights, Weights) else int(self.weights.shape[1])

    def batches(self, size: int) -> Iterator[QuadraticForms]:
        for begin in range(0, self.n_columns, size):
            end = min(self.n_columns, begin + size)
            batch = self.weights.part(begin, end) if isinstance(self.weights, Weights) else self.weights[:, begin:end]
            yield replace(self, weights=batch)

    def start(self, grid: Grid | Runs) -> Merge:
        return Merge(grid, {"forms": (self.n_columns,)})

    def finish(self, merge: Merge, tiled: Tiled) -> Array:
        return merge.sums["forms"]


@dataclass(frozen=True, eq=False)
class LabelMatches(Reduction[np.ndarray]):
    """Sums of H_ij <a_i, a_j> over i != j for many labellings, by comparisons of labels or products of their features.

    Parameters
    ----------
    labels : array of integers, shape (n, draws), or BinaryDraws
        A labelling in each column.
    features : array, shape (n, 2, r), optional
        a_i is features[i, label]. Without features it is the unit vector of the label: pairs with equal labels count,
        and entries are rounded to units whose sums are exact, so that equal labellings have equal sums.
    """

    labels: np.ndarray | BinaryDraws
    features: np.ndarray | None = None

    needs_symmetry: ClassVar[bool] = True

    @property
    def option(self) -> str | None:
        return "rounded" if self.features is None else "features"

    @property
    def in_given_order(self) -> bool:
        return True

    def batches(self, size: int) -> Iterator[LabelMatches]:
        assert isinstance(self.labels, np.ndarray)
        for begin in range(0, self.labels.shape[1], size):
            yield replace(self, labels=self.labels[:, begin : begin + size])

    def start(self, grid: Grid | Runs) -> Merge:
        assert isinstance(self.labels, np.ndarray)
        return Merge(grid, {"matches": (self.labels.shape[1],)})

    def finish(self, merge: Merge, tiled: Tiled) -> np.ndarray:
        return merge.sums["matches"]


@dataclass(frozen=True, eq=False)
class Counts(Reduction[np.ndarray]):
    """Number of entries H_ij, i < j, below each threshold."""

    thresholds: np.ndarray

    needs_symmetry: ClassVar[bool] = True


class RangeEntries(NamedTuple):
    """Entries of H in a range."""

    values: np.ndarray  # unordered; some of them if there are more than requested
    n_inside: int  # in the range
    n_below: int  # entries below it


@dataclass(frozen=True)
class EntriesInRange(Reduction[RangeEntries]):
    """The entries H_ij, i < j, in [low, high), at most `count` of them."""

    low: float
    high: float
    count: int

    needs_symmetry: ClassVar[bool] = True


@dataclass(frozen=True, eq=False)
class DenseRectangle(Reduction[Array]):
    """The dense H[rows][:, columns]; each a slice or an array of integers."""

    rows: Any = field(default_factory=lambda: slice(None))
    columns: Any = field(default_factory=lambda: slice(None))
