"""Columns of text files: a header, then one sample a line, `.csv` and `.tsv`, also compressed (`.gz`).

`header_of` and `columns_in` are also what the command reads whole files by.
"""

from __future__ import annotations

import csv
import gzip
import operator
import re
import zlib
from array import array as CArray
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from kcalib._input.columns import FileError
from kcalib.streaming.sources.content import damaged, identity
from kcalib.streaming.sources.npy import label_file
from kcalib.streaming.sources.part import Cursor, Part, Rows, Wanted

_INTEGER = re.compile(r"[+-]?[0-9]+")
_BOOLEANS = {"true": True, "false": False}

Lines = Iterator[tuple[int, list[str]]]


def delimiter_of(path: Path) -> str:
    return "\t" if ".tsv" in (suffix.lower() for suffix in path.suffixes[-2:]) else ","


def lines_of(path: Path) -> Lines:
    """The lines of a file, see `lines_in`."""
    return lines_in(_opened(path), delimiter_of(path))


def lines_in(text: IO[str], delimiter: str) -> Lines:
    """The lines that are not blank, with their numbers; names in the first are stripped."""
    with text as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True, skipinitialspace=True)
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
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise damaged("the file", error) from None


def _opened(path: Path) -> IO[str]:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", newline="", encoding="utf-8-sig")
    return open(path, newline="", encoding="utf-8-sig")


def header_of(path: Path) -> list[str]:
    """The names of the columns."""
    lines = lines_of(path)
    try:
        return header_in(lines, delimiter_of(path))
    finally:
        lines.close()  # type: ignore[attr-defined]


def header_in(lines: Lines, delimiter: str) -> list[str]:
    """The first of the lines, checked."""
    _, header = next(lines, (0, []))
    if not header:
        raise FileError("there is no header, expected column names in the first line")
    word = {",": "commas", "\t": "tabs"}[delimiter]
    if all(is_float(cell) for cell in header):
        raise FileError(
            f"the first line, {shown(delimiter.join(header))}, holds numbers, expected column names; add a header"
        )
    if len(header) == 1 and re.search(r"[;\t|,]", header[0]):
        raise FileError(f"the header is {shown(header[0])}: it has no {word}; separate the cells by {word}")
    return header


def check_unique(header: list[str], names: tuple[str, ...]) -> None:
    for name in names:
        if header.count(name) > 1:
            raise FileError(f"{header.count(name)} columns have the name {name!r}; rename all but one")


def columns_in(
    lines: Lines,
    header: list[str],
    names: tuple[str, ...],
    labels: str | None,
    most: int | None,
    *,
    logits: bool = False,
    as_text: bool = False,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Predictions and labels of the next rows, at most so many, or all of them (None); no labels without a name.

    A single column of whole numbers that are no logits looks like labels, and is given as integers for the checks.
    """
    columns = [header.index(name) for name in names]
    cells_of = operator.itemgetter(*columns) if len(columns) > 1 else lambda row: (row[columns[0]],)
    label_column = None if labels is None else header.index(labels)
    numbers = CArray("d")
    label_cells: list[str] = []
    whole = len(columns) == 1
    count = 0
    while most is None or count < most:
        line, row = next(lines, (0, None))
        if row is None:
            break
        count += 1
        if len(row) != len(header):
            raise FileError(
                f"line {line} has {len(row)} cells, expected {len(header)} as in the header; repair the line"
            )
        try:
            numbers.extend(map(float, cells_of(row)))
        except ValueError:
            bad = next(i for i in columns if not is_float(row[i]))
            raise FileError(
                f"line {line}, column {header[bad]!r} is {shown(row[bad])}, expected a number; repair or drop the line"
            ) from None
        whole = whole and _INTEGER.fullmatch(row[columns[0]].strip()) is not None
        if label_column is not None:
            label = row[label_column].strip()
            if not label:
                raise FileError(
                    f"line {line}, column {labels!r} is empty, expected a class label; repair or drop the line"
                )
            label_cells.append(label)
    pred = np.frombuffer(numbers).reshape(-1, len(columns))
    if len(columns) == 1:
        pred = pred[:, 0]
        if whole and not logits and np.all(np.abs(pred) < 2**53):
            pred = pred.astype(np.int64)
    return pred, None if labels is None else typed_labels(label_cells, as_text)


def typed_labels(cells: list[str], as_text: bool) -> np.ndarray:
    """Booleans, integers, other numbers or text; the few different cells are looked at once."""
    different = set() if as_text else set(cells)
    values: dict[str, bool | int | float]
    if as_text or not different:
        return np.asarray(cells)
    if all(cell.lower() in _BOOLEANS for cell in different):
        values = {cell: _BOOLEANS[cell.lower()] for cell in different}
    elif not all(map(is_float, different)):
        return np.asarray(cells)
    elif all(_INTEGER.fullmatch(cell) and len(cell) < 19 for cell in different):
        values = {cell: int(cell) for cell in different}
    else:
        values = {cell: float(cell) for cell in different}
    return np.asarray([values[cell] for cell in cells])


def is_float(cell: str) -> bool:
    """A number as files write it; Python's own underscores make a class name of it."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def shown(cell: str) -> str:
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")


class TextPart(Part):
    """A text file; how many rows it has is not known before it is read."""

    n = None

    def __init__(self, path: Path, wanted: Wanted):
        self.place, self._path = str(path), path
        self.header = header_of(path)
        columns = wanted.columns("column", tuple(self.header))
        choice = wanted.choice(columns)
        if label_file(wanted.labels) is not None:
            raise FileError("labels of a text file that is read in pieces are a column of it; add one")
        self.labels = wanted.label_name(columns)
        check_unique(self.header, (*choice.names, self.labels))
        self.found = wanted.found(columns, choice, self.labels)
        self.n_columns = len(choice.names) if len(choice.names) > 1 else 0

    def open(self, start: int) -> Cursor:
        lines = lines_of(self._path)
        try:
            next(lines)  # the header
            for _ in range(start):
                if next(lines, None) is None:
                    break
        except BaseException:
            lines.close()  # type: ignore[attr-defined]
            raise
        return _TextRows(self, lines)

    def identity(self) -> Iterator[bytes]:
        return identity(self._path)


class _TextRows(Cursor):
    def __init__(self, part: TextPart, lines: Lines):
        self._part, self._lines = part, lines
        classes = part.found.classes
        self._as_text = classes is not None and isinstance(classes[0], str)

    def take(self, most: int) -> Rows | None:
        part, found = self._part, self._part.found
        pred, true = columns_in(
            self._lines,
            part.header,
            found.y_pred,
            part.labels,
            most,
            logits=found.from_logits,
            as_text=self._as_text,
        )
        assert true is not None
        return (true, pred) if len(pred) else None

    def close(self) -> None:
        self._lines.close()  # type: ignore[attr-defined]
