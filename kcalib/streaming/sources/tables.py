"""Columns of tables: Parquet files, Arrow tables, data frames, Hugging Face data sets, structured arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._input.classes import choose_classes
from kcalib._input.columns import FileError
from kcalib._input.frames import categories_of
from kcalib.streaming.sources.content import (
    check_unique,
    damage_error,
    decode_text,
    file_identity,
    import_library,
)
from kcalib.streaming.sources.layout import Y_PRED, Y_TRUE, Block, Layout, ReadOptions
from kcalib.streaming.sources.named_arrays import row_slices
from kcalib.streaming.sources.reader import Reader, block_bytes

_MOST_ROWS = 65_536  # rows of a Parquet file that are decoded together
_FIRST_ROWS = 16  # rows that identify tables of unknown length

Tables = Callable[[list[str], int, int], Iterator[Any]]  # (columns, start, rows) -> Arrow tables, structured arrays


class TableReader(Reader):
    """Read columns of a table; `tables` yields the rows in order."""

    def __init__(
        self,
        names: Sequence[str],
        tables: Tables,
        options: ReadOptions,
        *,
        n: int | None,
        identity: Callable[[], Iterator[bytes]] | None = None,
        place: str = "",
        holder: str = "the file",
    ):
        self.layout = options.layout(options.columns("column", tuple(names), holder=holder))
        self.place, self.n, self._tables, self._identity = place, n, tables, identity
        check_unique(names, self.layout.names)
        blocks = self.blocks(0, 1)
        first = next(blocks, None)
        blocks.close()  # type: ignore[attr-defined]
        if first is not None:
            self.n_columns = self.layout.count_columns(first)
            self.layout = self._with_categories()

    def _with_categories(self) -> Layout:
        """Return the layout with the classes of an Arrow dictionary of labels, if columns have no names."""
        layout = self.layout
        if layout.classes is not None or layout.family is not None or Y_TRUE not in layout.groups:
            return layout
        (target, *others), columns = layout.targets, layout.predictions[Y_PRED]
        table = next(self._tables([target], 0, 1))
        categories = None if others or isinstance(table, np.ndarray) else categories_of(table.column(target))
        if categories is None:
            return layout
        classes = choose_classes(
            np.unique(np.asarray(categories.names)),
            max(2, self.n_columns or 0),
            columns if len(columns) == 1 and not self.n_columns else (),
            categories,
            (target, columns[0]),
        )
        return replace(layout, classes=classes.names) if classes.is_known else layout

    def blocks(self, start: int, rows: int) -> Iterator[Block]:
        at = start
        for table in self._tables(list(self.layout.names), start, rows):
            if len(table):
                columns = {name: read_column(table, name, at) for name in self.layout.names}
                yield self.layout.block(columns.__getitem__)
                at += len(table)

    def identity(self) -> Iterator[bytes]:
        if self._identity is not None:
            return self._identity()
        if self.n is not None:
            return super().identity()
        return (text for block in self.blocks(0, _FIRST_ROWS) for text in block_bytes(block))


def structured_reader(data: np.ndarray, options: ReadOptions) -> Reader:
    """Read the fields of a structured array."""
    return TableReader(
        data.dtype.names or (), lambda columns, start, rows: row_slices(data, start, rows), options, n=len(data),
        holder="the array",
    )  # fmt: skip


def read_column(table: Any, name: str, at: int) -> np.ndarray:
    """Return a column, whose first row is row `at`, as NumPy."""
    return decode_text(table[name]) if isinstance(table, np.ndarray) else arrow_values(table.column(name), name, at)


def parquet_reader(path: Path, options: ReadOptions) -> Reader:
    return _parquet_reader(lambda: path, lambda: file_identity(path), options, str(path))


def fragment_readers(data: Any, options: ReadOptions) -> list[Reader]:
    """Read the files of a pyarrow.dataset, in the order of their paths."""
    fragments = sorted(data.get_fragments(), key=lambda fragment: str(fragment.path))
    if not fragments or not hasattr(fragments[0], "row_groups"):
        raise FileError("the data set has no Parquet files, expected at least one")

    def read(fragment: Any) -> Reader:
        def identity() -> Iterator[bytes]:
            if Path(fragment.path).is_file():
                yield from file_identity(Path(fragment.path))
            else:
                yield f"{fragment.path} {fragment.metadata.num_rows} {fragment.metadata.serialized_size}".encode()

        return _parquet_reader(fragment.open, identity, options, str(fragment.path))

    return [read(fragment) for fragment in fragments]


def _parquet_reader(
    open_file: Callable[[], Any], identity: Callable[[], Iterator[bytes]], options: ReadOptions, place: str
) -> Reader:
    names, tables, n = open_parquet(open_file)
    return TableReader(names, tables, options, n=n, identity=identity, place=place)


def open_parquet(open_file: Callable[[], Any]) -> tuple[tuple[str, ...], Tables, int]:
    """Return the names of columns, a function that yields tables, and the number of rows."""
    parquet = import_library("pyarrow.parquet", ".parquet files", "parquet")
    try:
        with parquet.ParquetFile(open_file()) as file:
            names, metadata = tuple(file.schema_arrow.names), file.metadata
            counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    except Exception as error:
        raise damage_error("the file", error) from None

    def tables(columns: list[str], start: int, rows: int) -> Iterator[Any]:
        import pyarrow as pa

        group = 0
        while group < len(counts) and start >= counts[group]:
            start -= counts[group]
            group += 1
        try:
            with parquet.ParquetFile(open_file(), metadata=metadata, pre_buffer=False) as file:
                groups = range(group, len(counts))
                for batch in file.iter_batches(min(rows, _MOST_ROWS), row_groups=groups, columns=columns):
                    yield pa.Table.from_batches([batch.slice(min(start, len(batch)))])
                    start -= min(start, len(batch))
        except (OSError, pa.ArrowException) as error:
            raise damage_error("the file", error) from None

    return names, tables, sum(counts)


def arrow_reader(table: Any, options: ReadOptions) -> Reader:
    """Read a pyarrow.Table."""

    def tables(columns: list[str], start: int, rows: int) -> Iterator[Any]:
        for first in range(start, len(table), rows):
            yield table.slice(first, rows)

    return TableReader(table.column_names, tables, options, n=len(table), holder="the table")


def frame_reader(data: Any, options: ReadOptions) -> Reader:
    """Read a DataFrame of pandas or polars; a LazyFrame is collected."""
    pyarrow = import_library("pyarrow", "data frames", "parquet")
    data = arrays.compute_lazy(data)
    if arrays.library(data) == "polars":
        return arrow_reader(data.to_arrow(), options)
    return arrow_reader(pyarrow.Table.from_pandas(data, preserve_index=False), options)


def hugging_face_reader(data: Any, options: ReadOptions) -> Reader:
    """Read a Dataset or IterableDataset of Hugging Face."""
    arrow = data.with_format("arrow")
    n = len(data) if hasattr(data, "__len__") else None

    def tables(columns: list[str], start: int, rows: int) -> Iterator[Any]:
        if n is None:
            yield from (arrow.skip(start) if start else arrow).iter(batch_size=min(rows, _MOST_ROWS))
        else:
            for first in range(start, n, rows):
                yield arrow[first : min(first + rows, n)]

    names = data.column_names
    if names is None:
        names = next(tables([], 0, 1)).column_names
    return TableReader(names, tables, options, n=n, holder="the data set")


def arrow_values(column: Any, name: str, at: int = 0) -> np.ndarray:
    """Return a pyarrow.ChunkedArray as NumPy; lists of equal length become the rows of a matrix."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, kind = pa.types, column.type
    if column.null_count:
        row = at + int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise FileError(f"column {name!r} has no value in row {row}; repair or drop the row")
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_decimal(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    if types.is_string(kind) or types.is_large_string(kind):
        try:
            return np.asarray(column.to_pylist(), dtype=str)
        except UnicodeDecodeError:
            raise FileError(f"column {name!r} holds text that is not UTF-8; write the file again") from None
    if is_list(kind):
        if is_list(kind.value_type):
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
        return arrow_values(flat, name).reshape(len(lengths), size)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return np.asarray(column.to_numpy())
    raise FileError(f"column {name!r} has type {kind}, expected numbers, strings or lists of numbers")


def is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
