"""Columns of .csv files: a header, then one sample a line."""

from __future__ import annotations

import csv
import re
from array import array as CArray
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kcalib._command.files.source import Source
from kcalib._input.columns import Choice, FileError

_INTEGER = re.compile(r"[+-]?[0-9]+")
_BOOLEANS = {"true": True, "false": False}


def csv_source(path: Path) -> Source:
    _, header = next(_csv_rows(path), (0, []))
    if not header:
        raise FileError("there is no header, expected column names in the first line")
    if all(_is_float(cell) for cell in header):
        raise FileError(
            f"the first line, {_shown(','.join(header))}, holds numbers, expected column names; add a header"
        )
    if len(header) == 1 and re.search(r"[;\t|]", header[0]):
        raise FileError(f"the header is {_shown(header[0])}: it has no commas; separate the cells by commas")

    def read(choice: Choice, labels: str | None) -> tuple[np.ndarray, np.ndarray | None]:
        for name in (*choice.names, *((labels,) if labels is not None else ())):
            if header.count(name) > 1:
                raise FileError(f"{header.count(name)} columns have the name {name!r}; rename all but one")
        return _read_csv(path, header, choice, labels)

    return Source("column", tuple(header), read, in_one_pass=True)


def _read_csv(
    path: Path, header: list[str], choice: Choice, labels: str | None
) -> tuple[np.ndarray, np.ndarray | None]:
    columns = [header.index(name) for name in choice.names]
    label_column = None if labels is None else header.index(labels)
    numbers = CArray("d")
    label_cells: list[str] = []
    whole = len(columns) == 1  # a single column of whole numbers looks like labels
    rows = _csv_rows(path)
    next(rows)
    for line, row in rows:
        if len(row) != len(header):
            raise FileError(
                f"line {line} has {len(row)} cells, expected {len(header)} as in the header; repair the line"
            )
        try:
            numbers.extend([float(row[i]) for i in columns])
        except ValueError:
            bad = next(i for i in columns if not _is_float(row[i]))
            raise FileError(
                f"line {line}, column {header[bad]!r} is {_shown(row[bad])}, expected a number; repair or drop the line"
            ) from None
        whole = whole and _INTEGER.fullmatch(row[columns[0]].strip()) is not None
        if label_column is not None:
            label = row[label_column].strip()
            if not label:
                raise FileError(
                    f"line {line}, column {labels!r} is empty, expected a class label; repair or drop the line"
                )
            label_cells.append(label)
    if not numbers:
        raise FileError("there are no rows below the header, expected one for each sample")
    pred = np.frombuffer(numbers).reshape(-1, len(columns))
    if len(columns) == 1:
        pred = pred[:, 0]
        if whole and np.all(np.abs(pred) < 2**53):
            pred = pred.astype(np.int64)
    return pred, None if label_column is None else _typed_labels(label_cells, as_text=choice.classes is not None)


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not blank, with their numbers; names in the first are stripped."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True, skipinitialspace=True)
        first = True
        try:
            for row in reader:
                if row:
                    yield reader.line_num, [cell.strip() for cell in row] if first else row
                    first = False
        except csv.Error as error:
            raise FileError(
                f"line {reader.line_num} is no CSV ({error}); repair the quotes or write it again"
            ) from None
        except UnicodeDecodeError as error:
            raise FileError(f"is not UTF-8 text ({error}); save it as UTF-8") from None


def _typed_labels(cells: list[str], as_text: bool) -> np.ndarray:
    if as_text:
        return np.asarray(cells)
    if all(cell.lower() in _BOOLEANS for cell in cells):
        return np.asarray([_BOOLEANS[cell.lower()] for cell in cells])
    if all(_is_float(cell) for cell in cells):
        if all(_INTEGER.fullmatch(cell) and len(cell) < 19 for cell in cells):
            return np.asarray([int(cell) for cell in cells], dtype=np.int64)
        return np.asarray([float(cell) for cell in cells])
    return np.asarray(cells)


def _is_float(cell: str) -> bool:
    """A number as files write it; Python's own underscores make a class name of it."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _shown(cell: str) -> str:
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")
