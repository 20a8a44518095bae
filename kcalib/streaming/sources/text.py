"""Columns of text files: a header, then one sample a line, `.csv` and `.tsv`, also compressed (`.gz`).

`Table` and `its rows are also what the command reads whole files and standard input by.
"""

from __future__ import annotations

import io
import operator
import re
from array import array as CArray
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._input.columns import FileError
from kcalib.streaming.sources.content import identity
from kcalib.streaming.sources.fast_text import arrow_reader, block_columns, plain
from kcalib.streaming.sources.lines import Lines, Records, delimiter_of, lines_of, records
from kcalib.streaming.sources.npy import label_file
from kcalib.streaming.sources.part import Cursor, Found, Part, Rows, Wanted

BLOCK = 2**20  # bytes that pyarrow reads at once; of shorter files importing it would take longer than reading them
_LINES = 64  # headers in a block at least: of thousands of columns a few lines are more bytes
_ROWS = 8192  # that are read cell by cell at once

_INTEGER = re.compile(r"[+-]?[0-9]+")
_BOOLEANS = {"true": True, "false": False}


class Table:
    """A text whose header has been read."""

    def __init__(self, lines: Lines, delimiter: str):
        self.lines, self.delimiter = lines, delimiter
        _, cells = next(records(lines, delimiter), (0, []))
        self.header = tuple(cell.strip() for cell in cells)
        lines.underscores = False
        if not self.header:
            raise FileError("there is no header, expected column names in the first line")
        word = {",": "commas", "\t": "tabs"}[delimiter]
        if all(map(is_float, self.header)):
            raise FileError(
                f"the first line, {shown(delimiter.join(self.header))}, holds numbers, expected column names; add a "
                "header"
            )
        if len(self.header) == 1 and re.search(r"[;\t|,]", self.header[0]):
            raise FileError(f"the header is {shown(self.header[0])}: it has no {word}; separate the cells by {word}")

    @classmethod
    def opened(cls, path: Path) -> Table:
        lines = lines_of(path)
        try:
            return cls(lines, delimiter_of(path))
        except BaseException:
            lines.close()
            raise

    def rows(self, found: Found) -> FoundRows:
        """The rows of the columns that were found."""
        classes = found.classes
        as_text = classes is not None and isinstance(classes[0], str)
        names, labels = (found.y_pred, found.y_true) if found.family is None else (found.names, None)
        return FoundRows(self.columns(names, labels, logits=found.from_logits, as_text=as_text), found)

    def columns(
        self, names: Sequence[str], labels: str | None, *, logits: bool = False, as_text: bool = False
    ) -> TextRows:
        """The rows of some columns; labels are text if they are names of classes, whatever they look like."""
        count = Counter(self.header)
        for name in (*names, *(() if labels is None else (labels,))):
            if count[name] > 1:
                raise FileError(f"{count[name]} columns have the name {name!r}; rename all but one")
        return TextRows(self, names, labels, logits=logits, as_text=as_text)


@dataclass
class _Piece:
    """Some rows."""

    values: np.ndarray  # float64, shape: (rows, columns)
    codes: np.ndarray  # places of the rows' labels among `cells`; empty without labels
    cells: list[str]
    whole: bool  # a single column whose cells are all written without a point

    def split(self, rows: int) -> tuple[_Piece, _Piece]:
        first = _Piece(self.values[:rows], self.codes[:rows], self.cells, self.whole)
        return first, _Piece(self.values[rows:], self.codes[rows:], self.cells, self.whole)


class TextRows:
    """Predictions and labels of the rows of a text in order, by pyarrow where it is there."""

    def __init__(self, table: Table, names: Sequence[str], labels: str | None, *, logits: bool, as_text: bool):
        self._table, self._lines = table, table.lines
        places = {name: i for i, name in enumerate(table.header)}
        self._columns = [places[name] for name in names]
        self._labels = None if labels is None else places[labels]
        self._logits, self._as_text = logits, as_text
        self._block = max(BLOCK, _LINES * sum(len(name) + 1 for name in table.header))
        self._reader: Any = None
        self._records: Records | None = None  # where the rest is read cell by cell
        self._within: tuple[Records, Lines] | None = None  # a block that pyarrow does not read
        self._left: _Piece | None = None
        self._begun = False

    def take(self, most: int | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Predictions and labels of the next rows, at most so many, or all of them (None); no labels without a name.

        A single column of whole numbers that are no logits looks like labels, and is given as integers for the checks.
        """
        pieces: list[_Piece] = []
        count = 0
        while most is None or count < most:
            piece = self._left
            if piece is None:
                piece = self._piece(_ROWS if most is None else min(_ROWS, most - count))
            self._left = None
            if piece is None:
                break
            if most is not None and count + len(piece.values) > most:
                piece, self._left = piece.split(most - count)
            count += len(piece.values)
            pieces.append(piece)
        width = len(self._columns)
        values = np.concatenate([piece.values for piece in pieces]) if pieces else np.empty((0, width))
        if width == 1:
            values = values[:, 0]
            if not self._logits and all(piece.whole for piece in pieces) and np.all(np.abs(values) < 2**53):
                values = values.astype(np.int64)
        return values, None if self._labels is None else _labels_of(pieces, self._as_text)

    def skip(self, rows: int) -> None:
        """Pass by as many rows, whose values are not looked at."""
        while rows > 0:
            block = self._plain_block()
            if block is None:
                break
            if b"\n\n" in block or b"\n\r\n" in block or block.startswith((b"\n", b"\r")):  # blank lines
                self._lines.put_back(block)
                break
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            skipped = min(rows, len(ends))
            self._lines.number += skipped
            rows -= skipped
            rest = block[ends[skipped - 1] + 1 :] if skipped else block
            if rows and rest:  # the last line, which has no end
                self._lines.number += 1
                rows -= 1
            elif rest:
                self._lines.put_back(rest)
        for _ in range(rows):
            if next(self._by_cells(), None) is None:
                break

    def close(self) -> None:
        self._lines.close()

    def _plain_block(self) -> bytes | None:
        """The next lines, if all readers see the same in them; None if the rest is to be read cell by cell."""
        if self._records is not None:
            return None
        block = self._lines.block(self._block)
        if not self._begun:
            self._begun = True
            self._reader = arrow_reader() if len(block) >= self._block else None
        if self._reader is not None and block and plain(block, self._table.delimiter):
            return block
        self._lines.put_back(block)
        self._by_cells()
        return None

    def _by_cells(self) -> Records:
        if self._records is None:
            self._records = records(self._lines, self._table.delimiter)
        return self._records

    def _piece(self, most: int) -> _Piece | None:
        """The next rows, at most so many where they are read cell by cell; None at the end."""
        table = self._table
        while True:
            if self._within is not None:
                piece = self._cells(*self._within, most)
                if piece is not None:
                    return piece
                self._within = None
            block = self._plain_block()
            if block is None:
                return self._cells(self._by_cells(), self._lines, most)
            before = self._lines.number
            ends = np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n"))  # `count` stops at each of them
            self._lines.number += int(ends) + (not block.endswith(b"\n"))
            found = block_columns(self._reader, block, table.delimiter, len(table.header), self._columns, self._labels)
            # Of one column the cells must be seen where they may be whole numbers.
            if found is not None and (len(self._columns) > 1 or np.any(found[0] != np.rint(found[0]))):
                return _Piece(*found, whole=False)
            lines = Lines(io.BytesIO(block), before)
            self._within = records(lines, table.delimiter), lines

    def _cells(self, rows: Records, lines: Lines, most: int) -> _Piece | None:
        """The next rows, cell by cell; None at the end."""
        header, columns = self._table.header, self._columns
        cells_of = operator.itemgetter(*columns) if len(columns) > 1 else lambda row: (row[columns[0]],)
        numbers, codes = CArray("d"), CArray("q")
        different: dict[str, int] = {}
        whole = len(columns) == 1
        count = 0
        while count < most:
            line, row = next(rows, (0, None))
            if row is None:
                break
            count += 1
            if len(row) != len(header):
                raise FileError(
                    f"line {line} has {len(row)} cells, expected {len(header)} as in the header; repair the line"
                )
            cells = cells_of(row)
            try:
                if lines.underscores and any("_" in cell for cell in cells):
                    raise ValueError
                numbers.extend(map(float, cells))
            except ValueError:
                bad = next(i for i in columns if not is_float(row[i]))
                raise FileError(
                    f"line {line}, column {header[bad]!r} is {shown(row[bad])}, expected a number; repair or drop the "
                    "line"
                ) from None
            whole = whole and _INTEGER.fullmatch(cells[0].strip()) is not None
            if self._labels is not None:
                label = row[self._labels].strip()
                if not label:
                    raise FileError(
                        f"line {line}, column {header[self._labels]!r} is empty, expected a class label; repair or "
                        "drop the line"
                    )
                codes.append(different.setdefault(label, len(different)))
        if not count:
            return None
        return _Piece(np.frombuffer(numbers).reshape(-1, len(columns)), np.array(codes), list(different), whole)


class FoundRows:
    """Labels or targets, and predictions, of the rows of a text in order."""

    def __init__(self, rows: TextRows, found: Found):
        self._rows, self._found = rows, found
        self.skip, self.close = rows.skip, rows.close

    def take(self, most: int) -> Rows:
        """Those of the next rows, at most so many."""
        values, labels = self._rows.take(most)
        if labels is not None:
            return labels, values
        places = {name: i for i, name in enumerate(self._found.names)}
        table = values.reshape(len(values), len(places)).astype(np.float64, copy=False)

        def of(names: tuple[str, ...]) -> np.ndarray:
            return table[:, places[names[0]]] if len(names) == 1 else table[:, [places[name] for name in names]]

        return of(self._found.targets), self._found.predictions([of(names) for names in self._found.groups])


def _labels_of(pieces: list[_Piece], as_text: bool) -> np.ndarray:
    different: dict[str, int] = {}
    codes = []
    for piece in pieces:
        places = [different.setdefault(cell, len(different)) for cell in piece.cells]
        codes.append(np.asarray(places, np.int64)[piece.codes])
    return typed_labels(list(different), as_text)[np.concatenate(codes)] if codes else np.empty(0, str)


def typed_labels(different: list[str], as_text: bool) -> np.ndarray:
    """Booleans, integers, other numbers or text: what the different cells are."""
    if as_text or not different:
        return np.asarray(different)
    if all(cell.lower() in _BOOLEANS for cell in different):
        return np.asarray([_BOOLEANS[cell.lower()] for cell in different])
    if not all(map(is_float, different)):
        return np.asarray(different)
    if all(_INTEGER.fullmatch(cell) and len(cell) < 19 for cell in different):
        return np.asarray(list(map(int, different)))
    return np.asarray(list(map(float, different)))


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
        table = Table.opened(path)
        try:
            if label_file(wanted.labels) is not None:
                raise FileError("labels of a text file that is read in pieces are a column of it; add one")
            self.found = wanted.found(wanted.columns("column", table.header))
            table.rows(self.found)
        finally:
            table.lines.close()
        self.n_columns = self.found.n_columns
        self._whole: bool | None = None

    def open(self, start: int) -> Cursor:
        table = Table.opened(self._path)
        rows = table.rows(self.found)
        try:
            rows.skip(start)
        except BaseException:
            rows.close()
            raise
        return _TextCursor(self, rows)

    def is_whole(self) -> bool:
        """Whether the single column of predictions has whole numbers alone, from its first row to its last."""
        if self._whole is None:
            rows = Table.opened(self._path).rows(self.found)
            try:
                kinds = iter(lambda: _kind(rows.take(_ROWS)[1]), None)
                self._whole = all(kind == "i" for kind in kinds)
            finally:
                rows.close()
        return self._whole

    def identity(self) -> Iterator[bytes]:
        return identity(self._path)


def _kind(pred: Any) -> str | None:
    """That of the dtype of numbers; None of no rows."""
    if not len(pred):
        return None
    return pred.dtype.kind if isinstance(pred, np.ndarray) else "f"


class _TextCursor(Cursor):
    def __init__(self, part: TextPart, rows: FoundRows):
        self._part, self._rows = part, rows

    def take(self, most: int) -> Rows | None:
        true, pred = self._rows.take(most)
        if not len(pred):
            return None
        if _kind(pred) == "i" and not self._part.is_whole():  # the column has others elsewhere
            pred = pred.astype(np.float64)
        return true, pred

    def close(self) -> None:
        self._rows.close()
