"""Blocks of plain lines by pyarrow, some thirty times as fast as cell by cell: `plain`, `block_columns`.

pyarrow reads only what it reads as Python does; of all else there is None, and `text` looks at it cell by cell: values
and errors are the same with and without pyarrow.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np

_QUOTED = re.compile(rb'(?:(?<=[,\t\n])|\A)"[^"\r\n]*"(?=[,\t\r\n]|\Z)')
_PART = 2**18  # bytes that pyarrow works on at once, of which caches hold the numbers, too
_CELL = 2**16  # bytes; of a cell with twice as many Python's reader says that it is too long


def arrow_reader() -> Any | None:
    """The module pyarrow.csv; None if it is not there."""
    try:
        return importlib.import_module("pyarrow.csv")
    except ImportError:
        return None


def plain(block: bytes, delimiter: str) -> bool:
    """Whether all that reads text sees the same cells: UTF-8, no quotes within cells, all lines end alike."""
    # To look for what is not there takes a tenth of counting it.
    if b"\0" in block or (b"\r" in block and block.count(b"\r") != block.count(b"\r\n")):
        return False
    if b'"' in block and 2 * len(_QUOTED.findall(block)) != block.count(b'"'):
        return False
    if not block.isascii():
        try:
            block.decode("utf-8")
        except UnicodeDecodeError:
            return False
    separators = (delimiter.encode(), b"\n")
    return all(
        any(block.find(separator, start, start + _CELL) >= 0 for separator in separators)
        for start in range(0, len(block) - _CELL, _CELL)
    )


def block_columns(
    reader: Any, block: bytes, delimiter: str, width: int, columns: list[int], labels: int | None
) -> tuple[np.ndarray, np.ndarray, list[str]] | None:
    """Numbers of a plain block, shape (rows, columns), and of the labels the places of different ones, and those.

    `width` is the number of columns of the text. None if a cell is no finite number, or one is missing.
    """
    import pyarrow as pa

    names = list(map(str, range(width)))
    types = {names[column]: pa.float64() for column in columns}
    wanted = [names[column] for column in columns]
    text = len(columns)
    if labels is not None:
        if labels in columns:  # numbers and labels in one
            return None
        types[names[labels]] = pa.dictionary(pa.int32(), pa.string())
        wanted.append(names[labels])
    size = max(_PART, len(block) // 4)
    try:
        table = reader.read_csv(
            pa.BufferReader(block),
            read_options=reader.ReadOptions(use_threads=False, block_size=size, column_names=names),
            parse_options=reader.ParseOptions(delimiter=delimiter),
            convert_options=reader.ConvertOptions(
                column_types=types, include_columns=wanted, null_values=[], strings_can_be_null=False
            ),
        )
    except pa.ArrowException:
        return None
    values = np.empty((len(table), text))
    for i in range(text):
        begin = 0
        for chunk in table.column(i).chunks:
            values[begin : begin + len(chunk), i] = _numbers(chunk)
            begin += len(chunk)
    if not np.isfinite(values.sum()) and not np.all(np.isfinite(values)):
        return None
    if labels is None:
        return values, np.empty(0, np.int64), []
    codes = np.empty(len(table), np.int64)
    cells: dict[str, int] = {}
    begin = 0
    for chunk in table.column(text).chunks:
        places = [cells.setdefault(cell.strip(), len(cells)) for cell in chunk.dictionary.to_pylist()]
        codes[begin : begin + len(chunk)] = np.asarray(places, np.int64)[_numbers(chunk.indices)]
        begin += len(chunk)
    return None if "" in cells else (values, codes, list(cells))


def _numbers(chunk: Any) -> np.ndarray:
    """Without a copy, and without pandas, which pyarrow's own way imports."""
    return np.from_dlpack(chunk) if len(chunk) else np.empty(0, np.int64)
