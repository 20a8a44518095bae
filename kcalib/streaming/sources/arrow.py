"""Tables of Arrow: Parquet files, data sets of them, tables in memory, and the data sets of Hugging Face.

`arrow_array` and `check_once` are also what the command reads whole files by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._input.columns import FileError
from kcalib.streaming.sources.content import damaged, identity, library
from kcalib.streaming.sources.npy import label_file
from kcalib.streaming.sources.part import (
    Blocks,
    Cursor,
    Part,
    Rows,
    Slices,
    Wanted,
    columns_of,
    rows_from,
    rows_sampled,
    sampled,
)

_BATCH = 8192  # rows of a Parquet file that are decoded together

Table = Any  # a pyarrow.Table


def parquet_library() -> Any:
    return library("pyarrow.parquet", ".parquet files", "parquet")


class TablePart(Part):
    """Columns of a table of which any rows can be read: ``table(start, stop)``, or rows in order: ``tables(start)``."""

    def __init__(
        self,
        names: tuple[str, ...],
        n: int | None,
        wanted: Wanted,
        *,
        table: Callable[[int, int], Table] | None = None,
        tables: Callable[[int], Iterator[Table]] | None = None,
        identity: Callable[[], Iterator[bytes]] | None = None,
        place: str = "",
        holder: str = "the data set",
    ):
        columns = wanted.columns("column", names, holder="the file" if place else holder)
        self.place, self.n = place, n
        if label_file(wanted.labels) is not None:
            raise FileError("labels of a table that is read in pieces are a column of it; add one")
        self.found = wanted.found(columns)
        self.wanted = self.found.names
        check_once(names, self.wanted)
        self._table, self._tables, self._identity = table, tables, identity
        self.n_columns = None

    def look(self) -> TablePart:
        """The number of columns, from the first row."""
        cursor = self.open(0)
        try:
            rows = cursor.take(1)
        finally:
            cursor.close()
        if rows is not None:
            self.n_columns = columns_of(rows[1])
        return self

    def open(self, start: int) -> Cursor:
        if self._table is not None:
            read = self._table
            assert self.n is not None
            return Slices(lambda a, b: self.rows(read(a, b), a), start, self.n)
        assert self._tables is not None
        return Blocks(self._blocks(self._tables(start), start))

    def _blocks(self, tables: Iterator[Table], at: int) -> Iterator[Rows]:
        for table in tables:
            if len(table):
                yield self.rows(table, at)
                at += len(table)

    def rows(self, table: Table, at: int) -> Rows:
        """Rows from number `at` on as arrays."""
        arrays = {name: arrow_array(table.column(name), name, at) for name in self.wanted}
        return rows_from(self.found, arrays.__getitem__)

    def identity(self) -> Iterator[bytes]:
        if self._identity is not None:
            yield from self._identity()
        elif self.n is not None:
            yield str(self.n).encode()
            for row in rows_sampled(self.n):
                assert self._table is not None
                yield from sampled(*self.rows(self._table(row, row + 1), row))


def parquet_part(path: Path, wanted: Wanted) -> Part:
    return _parquet(lambda: path, lambda: identity(path), wanted, str(path))


def fragment_parts(data: Any, wanted: Wanted) -> list[Part]:
    """The files of a pyarrow.dataset, in the order of their paths."""
    parquet_library()
    fragments = sorted(data.get_fragments(), key=lambda fragment: str(fragment.path))
    if not fragments or not hasattr(fragments[0], "row_groups"):
        raise FileError("the data set has no Parquet files, expected at least one")

    def part(fragment: Any) -> Part:
        def same() -> Iterator[bytes]:
            if Path(fragment.path).is_file():
                yield from identity(Path(fragment.path))
            else:
                yield f"{fragment.path} {fragment.metadata.num_rows} {fragment.metadata.serialized_size}".encode()

        return _parquet(fragment.open, same, wanted, str(fragment.path))

    return [part(fragment) for fragment in fragments]


def _parquet(opened: Callable[[], Any], same: Callable[[], Iterator[bytes]], wanted: Wanted, place: str) -> Part:
    """A Parquet file, whose row groups are read one after the other, in batches."""
    parquet = parquet_library()
    try:
        with parquet.ParquetFile(opened()) as file:
            names = tuple(file.schema_arrow.names)
            metadata = file.metadata
            counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    except Exception as error:
        raise damaged("the file", error) from None

    def tables(start: int) -> Iterator[Table]:
        import pyarrow as pa

        group = 0
        while group < len(counts) and start >= counts[group]:
            start -= counts[group]
            group += 1
        try:
            with parquet.ParquetFile(opened(), metadata=metadata, pre_buffer=False) as file:
                batches = file.iter_batches(_BATCH, row_groups=range(group, len(counts)), columns=list(part.wanted))
                for batch in batches:
                    skipped = min(start, len(batch))
                    start -= skipped
                    yield pa.Table.from_batches([batch.slice(skipped)])
        except (OSError, pa.ArrowException) as error:
            raise damaged("the file", error) from None

    part = TablePart(names, sum(counts), wanted, tables=tables, identity=same, place=place)
    return part.look()


def table_part(data: Any, wanted: Wanted) -> Part:
    """A pyarrow.Table."""
    return TablePart(
        tuple(data.column_names), len(data), wanted, table=lambda a, b: data.slice(a, b - a), holder="the table"
    ).look()


def frame_part(data: Any, wanted: Wanted) -> Part:
    """A DataFrame of pandas or polars; a LazyFrame is collected."""
    pyarrow = library("pyarrow", "data frames", "parquet")
    data = arrays.collected(data)
    is_polars = arrays.library(data) == "polars"
    return table_part(data.to_arrow() if is_polars else pyarrow.Table.from_pandas(data, preserve_index=False), wanted)


def hugging_face_part(data: Any, wanted: Wanted) -> Part:
    """A Dataset or IterableDataset of Hugging Face."""
    library("pyarrow", "data sets of Hugging Face", "datasets")
    arrow = data.with_format("arrow")
    if hasattr(data, "__len__"):
        part = TablePart(tuple(data.column_names), len(data), wanted, table=lambda a, b: arrow[a:b])
        return part.look()

    def tables(start: int) -> Iterator[Table]:
        return iter((arrow.skip(start) if start else arrow).iter(batch_size=_BATCH))

    names = data.column_names
    if names is None:
        names = next(tables(0)).column_names
    part = TablePart(tuple(names), None, wanted, tables=tables, identity=lambda: _first_rows(part))
    return part.look()


def _first_rows(part: Part) -> Iterator[bytes]:
    cursor = part.open(0)
    try:
        rows = cursor.take(_FIRST)
    finally:
        cursor.close()
    return sampled(*rows) if rows is not None else iter(())


_FIRST = 16


def check_once(names: Sequence[str], wanted: Sequence[str]) -> None:
    counts = Counter(names)
    for name in wanted:
        if counts[name] != 1:
            raise FileError(f"{counts[name]} columns have the name {name!r}, expected one")


def arrow_array(column: Any, name: str, at: int = 0) -> np.ndarray:
    """A pyarrow.ChunkedArray from row `at` on as NumPy; columns of lists of one length become a matrix."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        row = at + int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise FileError(f"column {name!r} has no value in row {row}; repair or drop the row")
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            return np.asarray(column.to_pylist(), dtype=str)
        except UnicodeDecodeError:
            raise FileError(f"column {name!r} holds text that is not UTF-8; write the file again") from None
    if pa.types.is_decimal(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    if _is_list(kind):
        if _is_list(kind.value_type):
            raise FileError(f"column {name!r} has lists of lists ({kind}), expected one list of numbers in each row")
        lengths = pc.list_value_length(column).to_numpy()
        size = int(lengths[0]) if len(lengths) else 0
        wrong = np.flatnonzero(lengths != size)
        if len(wrong):
            raise FileError(
                f"column {name!r} has {lengths[wrong[0]]} numbers in row {at + wrong[0]}, expected {size} as in row "
                f"{at}"
            )
        flat = pa.chunked_array([chunk.flatten() for chunk in column.chunks], type=kind.value_type)
        if flat.null_count:
            row = at + int(np.flatnonzero(flat.is_null().to_numpy())[0]) // size
            raise FileError(f"column {name!r} has a missing number in row {row}; repair or drop the row")
        return arrow_array(flat, name).reshape(len(lengths), size)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.asarray(column.to_numpy())
    raise FileError(f"column {name!r} has type {kind}, expected numbers, strings or lists of numbers")


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
