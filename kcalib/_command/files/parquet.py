"""Columns of .parquet files, by pyarrow, which is imported when one is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kcalib._command.files.source import Source
from kcalib._input.columns import Choice, FileError
from kcalib.streaming.sources.content import damaged, stacked


def parquet_source(path: Path) -> Source:
    try:
        import pyarrow.parquet
    except ImportError:
        raise FileError("reading .parquet files needs pyarrow; pip install 'kcalib[parquet]'") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = tuple(file.schema_arrow.names)
    except Exception as error:
        raise damaged("the file", error) from None

    def read(choice: Choice, labels: str | None) -> tuple[np.ndarray, np.ndarray | None]:
        wanted = [*choice.names, *(() if labels is None else (labels,))]
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                table = file.read(columns=wanted)
        except Exception as error:
            raise damaged("the file", error) from None
        for name in wanted:
            if table.column_names.count(name) != 1:
                raise FileError(f"{table.column_names.count(name)} columns have the name {name!r}, expected one")
        columns = [_arrow_array(table.column(name), name) for name in choice.names]
        return stacked(columns, choice.names), None if labels is None else _arrow_array(table.column(labels), labels)

    return Source("column", names, read)


def _arrow_array(column: Any, name: str) -> np.ndarray:
    """A pyarrow.ChunkedArray as NumPy; columns of lists of one length become a matrix."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise FileError(f"column {name!r} has no value in row {row}; repair or drop the row")
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.asarray(column.to_pylist(), dtype=str)
    if pa.types.is_decimal(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.list_value_length(column).to_numpy()
        size = int(lengths[0]) if len(lengths) else 0
        wrong = np.flatnonzero(lengths != size)
        if len(wrong):
            raise FileError(
                f"column {name!r} has {lengths[wrong[0]]} numbers in row {wrong[0]}, expected {size} as in row 0"
            )
        flat = pa.chunked_array([chunk.flatten() for chunk in column.chunks], type=kind.value_type)
        if flat.null_count:
            row = int(np.flatnonzero(flat.is_null().to_numpy())[0]) // size
            raise FileError(f"column {name!r} has a missing number in row {row}; repair or drop the row")
        return _arrow_array(flat, name).reshape(len(lengths), size)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.asarray(column.to_numpy())
    raise FileError(f"column {name!r} has type {kind}, expected numbers, strings or lists of numbers")
