"""The contents of a state; changes replace it as a whole, so that nothing is added by half.

`Accumulator` has what all kinds of states share: row numbers, pending batches, rows of open blocks, the sample of rows,
and merging. Each kind adds sums of single rows (`row_sums`) and sums of blocks of rows (`sums`). A machine computes the
latter once the bandwidths are known: `_classes.accumulator` for class probabilities, `_forecasts.accumulator` for
predicted distributions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._packing.packed import Medians
from kcalib.bandwidth import NoLengthScaleError
from kcalib.streaming._files.checks import check_rows, check_weight_sums, row_set
from kcalib.streaming._options import SharedOptions
from kcalib.streaming._row_sums.rows import OpenRows, Rows, RowSample, RowSet

MOST_WAITING = 2048  # largest number of rows in pending batches
FIRST_ROWS = 2000  # rows for the bandwidth, if none is given
SMALLEST_WEIGHT = 1e-6  # root mean square; smaller squares have too few digits in fixed point


class Batch(NamedTuple):
    """Checked samples with consecutive numbers, before the lens is applied."""

    first: int
    targets: Array  # labels, int64, shape (n,), or numbers and vectors, float64, shape (n, d)
    predictions: Array  # float64: probabilities, shape (n, n_classes), or parameters
    weights: Array  # float64, shape (n,)
    epsilon: float  # machine epsilon of the dtype that the predictions came in
    clusters: np.ndarray  # int64, on the host, shape (n,); 0 where there are none
    classes: tuple[Any, ...] | None = None  # of the columns of probabilities

    @property
    def n(self) -> int:
        return int(self.weights.shape[0])

    @property
    def parts(self) -> tuple[Array, Array, Array, Array]:
        return self.targets, self.predictions, self.weights, self.clusters

    def map_arrays(self, change: Callable[[Array], Array], first: int | None = None) -> Batch:
        """Return the batch with changed arrays and another first number."""
        targets, predictions, weights, clusters = map(change, self.parts)
        first = self.first if first is None else first
        return Batch(first, targets, predictions, weights, self.epsilon, clusters, self.classes)

    def copy(self) -> Batch:
        return self.map_arrays(lambda part: part.copy())

    def to_host(self) -> Batch:
        return self.map_arrays(arrays.to_host)

    def take(self, begin: int, end: int) -> Batch:
        """Return rows [begin, end) of the batch."""
        rows = slice(begin, min(end, self.n))
        return self.map_arrays(lambda part: part[rows, ...], self.first + begin)


@contextmanager
def explain_bandwidths() -> Iterator[None]:
    """Add the remedy for states to errors about predictions without a median distance."""
    try:
        yield
    except NoLengthScaleError as error:
        remedy = "make the state with a kernel that has its bandwidth, such as kernel=Exponential(bandwidth=1.0)"
        raise NoLengthScaleError(error.n, remedy, error.of) from None


class Part(Protocol):
    """Sums that can be added, and stored as arrays of fixed types."""

    def __add__(self, other: Any) -> Any: ...

    def to_arrays(self) -> dict[str, np.ndarray]: ...

    def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> Any: ...


class RowSums(Part, Protocol):
    """Sums over rows that need no kernel."""

    @property
    def n(self) -> int: ...

    @property
    def is_full(self) -> bool:
        """Whether sums are so large that no more can be added."""
        ...


class BlockMachine(Protocol):
    """Computes sums of blocks of rows."""

    def zeros(self) -> Any: ...

    def add(self, sums: Any, pieces: Iterable[Rows]) -> Any: ...


@dataclass(frozen=True, eq=False)
class Accumulator(ABC):
    """The contents of a state."""

    options: SharedOptions
    row_set: RowSet  # including those of pending batches
    pending_batches: tuple[Batch, ...]  # with equal epsilon; empty while the bandwidth is unknown
    row_sums: Any  # a RowSums
    open_rows: OpenRows
    sample: RowSample
    # Number of rows for the bandwidth, negative if they are identical; 0 if it was given or is unknown.
    bandwidth_rows: int
    machine: Any  # a BlockMachine; None while the bandwidth is unknown and all rows are open
    sums: Any  # a Part; None then

    @classmethod
    @abstractmethod
    def empty(cls, options: Any, threads: int | None) -> Self:
        """Return the contents of a state without rows."""

    @abstractmethod
    def fix_bandwidths(self, threads: int | None, *, elsewhere: bool = False) -> Self:
        """Set missing bandwidths by the median heuristic on the rows with the smallest numbers; all rows are open.

        Identical rows have no median: an error if the kernel will be used `elsewhere`, otherwise a bandwidth that
        depends on their prediction, which matters for later rows.
        """

    @abstractmethod
    def check_values(self, rows: Rows) -> None:
        """Refuse invalid predictions and targets in rows from a file."""

    @abstractmethod
    def _join_pending_batches(self) -> Rows:
        """Return the pending batches as rows in the order of arrival."""

    @abstractmethod
    def _sum_row_scores(self, rows: Rows, epsilon: float, threads: int | None) -> RowSums: ...

    def add(self, batch: Batch, threads: int | None) -> Self:
        """Add a batch on the host; a small one is kept until it can be added with others, which is faster."""
        if self.row_sums.is_full:
            raise large_weights_error()
        row_numbers = self.row_set.add(batch.first, batch.first + batch.n)
        waiting = sum(pending.n for pending in self.pending_batches) + batch.n
        small = batch.n < MOST_WAITING and self.machine is not None
        if small and not (self.pending_batches and self.pending_batches[0].epsilon != batch.epsilon):
            new = replace(self, row_set=row_numbers, pending_batches=(*self.pending_batches, batch.copy()))
            return new if waiting < MOST_WAITING else new.flush(threads)
        return replace(self.flush(threads), row_set=row_numbers, pending_batches=(batch,)).flush(threads)

    def flush(self, threads: int | None) -> Self:
        """Add up the pending batches."""
        if not self.pending_batches:
            return self
        rows, epsilon = Rows.join([self._join_pending_batches()]), self.pending_batches[0].epsilon
        before, n = self.row_sums.n, len(rows.numbers)
        row_sums = self.row_sums + self._sum_row_scores(rows, epsilon, threads)
        new = replace(self, pending_batches=(), row_sums=row_sums, sample=self.sample.add(rows))
        if new.machine is None:
            held = min(n, max(FIRST_ROWS - before, 0))  # merged states may hold more
            if held:
                _, open_rows = self.open_rows.split(rows.take(slice(0, held)), complete=False)
                new = replace(new, open_rows=open_rows)
            if before + held < FIRST_ROWS:
                return new
            new, rows = new.fix_bandwidths(threads), rows.take(slice(held, n))
            if held == n:
                return new
        blocks, open_rows = new.open_rows.split(rows)
        return replace(new, open_rows=open_rows)._with_blocks(blocks)

    def merge(self, other: Accumulator, threads: int | None) -> Self:
        """Add all rows of another accumulator.

        While neither knows its bandwidth, the result does not either, however many open rows it has: the bandwidth must
        not depend on the order of merging.
        """
        different = self.options.difference(other.options)
        if different is not None:
            raise ValueError(different)
        self, other = self.flush(threads), other.flush(threads)
        reference = self if self.machine is not None else other
        new = replace(
            self,
            options=self.options.with_kernels_of(reference.options),
            row_set=self.row_set.union(other.row_set),
            row_sums=self.row_sums + other.row_sums,
            open_rows=self.open_rows.union(other.open_rows),
            sample=self.sample.union(other.sample),
            bandwidth_rows=max(self.bandwidth_rows, other.bandwidth_rows, key=abs),
            machine=reference.machine,
            sums=reference.sums if self.sums is None or other.sums is None else self.sums + other.sums,
        )
        if new.row_sums.is_full:
            raise large_weights_error()
        if new.machine is None:
            return new
        blocks, opened = new.open_rows.closed()
        return replace(new, open_rows=opened)._with_blocks(blocks)

    def first_rows(self) -> Rows:
        """Return the rows that determine the bandwidths."""
        return self.flush(None).open_rows.rows().take(slice(0, FIRST_ROWS))

    def with_bandwidths(self, options: Any, machine: BlockMachine, bandwidth_rows: int) -> Self:
        """Return the contents with known bandwidths, the medians of `bandwidth_rows` rows."""
        blocks, opened = self.open_rows.closed()
        new = replace(
            self,
            options=options,
            open_rows=opened,
            bandwidth_rows=bandwidth_rows,
            machine=machine,
            sums=machine.zeros(),
        )
        return new._with_blocks(blocks)

    def finalize(self, threads: int | None) -> Self:
        """Add the open rows, and fix missing bandwidths by the rows so far, for results."""
        new = self.flush(threads).fix_bandwidths(threads)
        return new._with_blocks([new.open_rows.rows()]) if new.open_rows.pieces else new

    def _with_blocks(self, pieces: list[Rows]) -> Self:
        if not pieces:
            return self
        assert self.machine is not None and self.sums is not None
        return replace(self, sums=self.machine.add(self.sums, pieces))

    def check_not_empty(self) -> int:
        """Return the number of rows, or refuse 0."""
        if not len(self.row_set):
            raise ValueError("there are no samples yet; add some by update or merge")
        return len(self.row_set)

    def check_two_rows(self) -> None:
        """Refuse a single row if the bandwidth is unknown, since it is the distance of two rows."""
        if self.machine is None and len(self.row_set) < 2:
            raise ValueError("the SKCE needs at least 2 samples, and there is 1; add more")

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return everything except the options as arrays of fixed types, equal for equal states."""
        assert not self.pending_batches
        return {
            "rows": np.array(self.row_set.intervals, dtype=np.int64).reshape(-1, 2),
            "bandwidth_rows": np.array(self.bandwidth_rows, dtype=np.int64),
            **self._name_arrays("open", self.open_rows.rows()),
            **self._name_arrays("sample", self.sample.rows),
            **self.row_sums.to_arrays(),
            **({} if self.sums is None else self.sums.to_arrays()),
        }

    def _name_arrays(self, of: str, rows: Rows) -> dict[str, np.ndarray]:
        """Return the arrays of rows by their names in a file, without clusters if the options have none."""
        named = {f"{of}_{field}": getattr(rows, field) for field in Rows._fields}
        return named if self.options.clusters else {name: named[name] for name in named if "clusters" not in name}

    @classmethod
    def of(cls, options: Any, arrays: Mapping[str, np.ndarray], threads: int | None) -> Self:
        """Return the contents from the result of `to_arrays`.

        Raises
        ------
        ValueError
            If the arrays do not fit these options.
        """
        empty = cls.empty(options, threads)
        _check_like(arrays, empty.to_arrays())

        row_numbers = row_set(arrays["rows"].tolist())

        def rows(of: str) -> Rows:
            numbers = arrays[f"{of}_numbers"]
            no_clusters = {f"{of}_clusters": np.zeros(len(numbers), dtype=np.int64)}
            stored_rows = Rows(*((no_clusters | {**arrays})[f"{of}_{field}"] for field in Rows._fields))
            check_rows(stored_rows, row_numbers, of)
            if len(stored_rows.numbers):
                empty.check_values(stored_rows)
            return stored_rows

        row_sums = empty.row_sums.from_arrays(arrays)
        if row_sums.n != len(row_numbers):
            raise ValueError(f"there are sums of {row_sums.n} rows, but {len(row_numbers)} row numbers")
        check_weight_sums(row_sums.n, row_sums.n_weighted, *row_sums.weight_sums())
        return replace(
            empty,
            row_set=row_numbers,
            row_sums=row_sums,
            open_rows=empty.open_rows.of(rows("open")),
            sample=RowSample.of(empty.sample.size, options.seed, rows("sample")),
            bandwidth_rows=int(arrays["bandwidth_rows"]),
            sums=None if empty.sums is None else empty.sums.from_arrays(arrays),
        )


def large_weights_error() -> ValueError:
    """Return the error for weights whose sums are not exact any more."""
    return ValueError(
        "the sums of `sample_weight` or of its squares are beyond 1e11, which a state cannot add up exactly; divide "
        "all weights by one number, so that their mean is about 1"
    )


def sign_row_count(n: int, medians: Medians) -> int:
    """Return `bandwidth_rows` for the medians of n rows: -n if one of them is 0."""
    return -n if any(metric_medians[0].value == 0 for metric_medians in medians.values()) else n


def check_weights(n: int, n_weighted: int, squares: float) -> None:
    """Refuse weights whose squares have too few digits."""
    if n_weighted and squares < n * SMALLEST_WEIGHT**2:
        raise ValueError(
            f"`sample_weight` has a root mean square of {math.sqrt(squares / n):.3g}, expected at least 1e-6 in a "
            "state; divide the weights by their mean"
        )


def number_rows(waiting: Iterable[Batch]) -> np.ndarray:
    return np.concatenate([np.arange(batch.first, batch.first + batch.n) for batch in waiting])


def join_batches(pending_batches: tuple[Batch, ...]) -> tuple[np.ndarray, ...]:
    """Return targets, predictions, weights and clusters of batches on the host."""
    parts = [batch.parts for batch in pending_batches]
    return parts[0] if len(parts) == 1 else tuple(map(np.concatenate, zip(*parts, strict=True)))


LENGTHS = ("rows", "open_", "sample_", "cluster_")  # arrays with as many rows as there are


def _check_like(arrays: Mapping[str, np.ndarray], like: Mapping[str, np.ndarray]) -> None:
    """Check that types and shapes are those of an empty state; further arrays are ignored."""
    missing = sorted(like.keys() - arrays.keys())
    if missing:
        raise ValueError(f"the arrays {missing} are missing in a state with these options")
    for name, model in like.items():
        array, free = arrays[name], name.startswith(LENGTHS)
        same = array.dtype == model.dtype and array.ndim == model.ndim
        if not same or array.shape[int(free) :] != model.shape[int(free) :]:
            raise ValueError(
                f"the array {name!r} has dtype {array.dtype} and shape {array.shape}, expected {model.dtype} and "
                f"{model.shape}"
            )
