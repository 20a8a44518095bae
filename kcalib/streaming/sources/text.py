"""Text files: a header, then one sample a line, `.csv` and `.tsv`, also compressed (`.gz`), and standard input.

Blocks of whole lines are read by pyarrow, some thirty times as fast as by the csv module. The csv module reads blocks
that pyarrow refuses, and all if it is not installed: it finds the line of an error.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import operator
import re
import zlib
from array import array as CArray
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from kcalib._input.columns import FileError
from kcalib.streaming.sources.content import damage_error, file_identity
from kcalib.streaming.sources.layout import Y_PRED, Y_TRUE, Block, ReadOptions
from kcalib.streaming.sources.reader import Reader, skip_rows
from kcalib.streaming.sources.tables import check_unique

BLOCK_BYTES = 2**20  # that are read at once; of shorter files importing pyarrow would take longer than reading them
MOST_BYTES = 2**28  # of a line, or of lines between two quotes
_HEADERS = 64  # bytes of so many headers are in a block at least: of thousands of columns a few lines are more bytes
_ARROW_BYTES = 2**18  # that pyarrow works on at once, of which caches hold the numbers, too

_INTEGER = re.compile(r"[+-]?[0-9]+")
_QUOTED = re.compile(rb'(?:(?<=[,\t\n])|\A)"[^"\r\n]*"(?=[,\t\r\n]|\Z)')
_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOOLEANS = {"true": True, "false": False}


def text_reader(path: Path, options: ReadOptions) -> Reader:
    open_file: Any = gzip.open if path.suffix.lower() == ".gz" else open
    delimiter = "\t" if ".tsv" in (suffix.lower() for suffix in path.suffixes[-2:]) else ","
    return TextReader(lambda: open_file(path, "rb"), options, str(path), delimiter)


class TextReader(Reader):
    """Read a text file; how many rows it has is not known before it is read."""

    def __init__(
        self,
        open_file: Callable[[], IO[bytes]],
        options: ReadOptions,
        place: str,
        delimiter: str = ",",
        is_resumable: bool = True,
    ):
        self.place, self._open_file, self._delimiter, self.is_resumable = place, open_file, delimiter, is_resumable
        self._kept: Lines | None = None
        lines = Lines(open_file())
        try:
            self._header = lines.read_header(delimiter)
            self._check_header()
            self.layout = layout = options.layout(options.columns("column", self._header))
            check_unique(self._header, layout.names)
            if not is_resumable:
                self._kept, self._first = lines, lines.peek(BLOCK_BYTES)
        finally:
            if is_resumable:
                lines.file.close()
        has_labels = layout.family is None and layout.stored_labels is None
        places = {name: i for i, name in enumerate(self._header)}
        self._labels = places[layout.targets[0]] if has_labels else None
        self._groups = {key: names for key, names in layout.groups.items() if not (has_labels and key == Y_TRUE)}
        self._columns = [places[name] for names in self._groups.values() for name in names]
        width = sum(map(len, layout.predictions.values()))
        self.n_columns = 0 if layout.family is None and width == 1 else width
        self._may_be_labels = self.n_columns == 0 and not layout.from_logits

    def blocks(self, start: int, rows: int) -> Iterator[Block]:
        return skip_rows(self._blocks(), start)

    def finish(self, block: Block) -> Block:
        if Y_TRUE in block and isinstance(block[Y_TRUE], Labels):
            classes = self.layout.classes
            as_text = classes is not None and isinstance(classes[0], str)
            block[Y_TRUE] = block[Y_TRUE].values(as_text=as_text)
        return block

    def identity(self) -> Iterator[bytes]:
        return file_identity(Path(self.place)) if self.is_resumable else iter((self._first,))

    def _blocks(self) -> Iterator[Block]:
        """Yield blocks; whole numbers are integers, for the checks, if the column of predictions has no others."""
        is_whole = True
        for block in self._parsed_blocks():
            if self._may_be_labels and block[Y_PRED].dtype.kind == "i":
                is_whole = is_whole and (not self.is_resumable or self._is_whole)
                if not is_whole:
                    block[Y_PRED] = block[Y_PRED].astype(np.float64)
            else:
                is_whole = False
            yield block

    @cached_property
    def _is_whole(self) -> bool:
        return all(block[Y_PRED].dtype.kind == "i" for block in self._parsed_blocks())

    def _parsed_blocks(self) -> Iterator[Block]:
        lines, cells = self._open(), dict[str, int]()
        size = max(BLOCK_BYTES, _HEADERS * sum(len(name) + 1 for name in self._header))
        try:
            block = lines.read(size)
            reader = import_arrow_csv() if len(block) >= size else None
            while block:
                parsed = None
                if reader is not None and is_plain(block):
                    parsed = self._parse_by_arrow(reader, block, cells)
                if parsed is None:
                    parsed = self._parse_by_cells(block, cells, lines.number)
                lines.number += count_lines(block)
                yield self._as_block(*parsed, cells)
                block = lines.read(size)
        finally:
            if self.is_resumable:
                lines.file.close()

    def _as_block(self, numbers: np.ndarray, places: np.ndarray | None, cells: dict[str, int]) -> Block:
        block: Block = {}
        begin = 0
        for key, names in self._groups.items():
            block[key] = numbers[:, begin] if len(names) == 1 else numbers[:, begin : begin + len(names)]
            begin += len(names)
        if places is not None:
            block[Y_TRUE] = Labels(places, cells)
        return block

    def _parse_by_arrow(
        self, reader: Any, block: bytes, cells: dict[str, int]
    ) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return numbers and places of labels; None if a cell is no finite number, or a label is empty."""
        import pyarrow as pa

        names = list(map(str, range(len(self._header))))
        columns = [names[i] for i in self._columns]
        types = dict.fromkeys(columns, pa.float64())
        if self._labels is not None:
            if self._labels in self._columns:  # which pyarrow would read as one type
                return None
            types[names[self._labels]] = pa.dictionary(pa.int32(), pa.string())
        size = max(_ARROW_BYTES, len(block) // 4)
        try:
            table = reader.read_csv(
                pa.BufferReader(block),
                read_options=reader.ReadOptions(use_threads=False, block_size=size, column_names=names),
                parse_options=reader.ParseOptions(delimiter=self._delimiter),
                convert_options=reader.ConvertOptions(
                    column_types=types, include_columns=list(types), null_values=[], strings_can_be_null=False
                ),
            )
        except pa.ArrowException:
            return None
        numbers = np.empty((len(table), len(columns)))
        for i, name in enumerate(columns):
            numbers[:, i] = _as_numpy(table.column(name).combine_chunks())
        if not np.isfinite(numbers.sum()) and not np.all(np.isfinite(numbers)):
            return None
        if self._may_be_labels and np.all(numbers == np.rint(numbers)):  # how they are written says what they are
            return None
        if self._labels is None:
            return numbers, None
        column = table.column(names[self._labels]).combine_chunks()
        texts = [cell.strip() for cell in column.dictionary.to_pylist()]
        if "" in texts:
            return None
        places = np.asarray([cells.setdefault(cell, len(cells)) for cell in texts], np.int64)
        return numbers, places[_as_numpy(column.indices)]

    def _parse_by_cells(self, block: bytes, cells: dict[str, int], number: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return numbers and places of labels in lines behind line `number`."""
        header, columns = self._header, self._columns
        get_cells = operator.itemgetter(*columns) if len(columns) > 1 else lambda row: (row[columns[0]],)
        numbers, places = CArray("d"), CArray("q")
        has_underscores, is_whole = b"_" in block, self._may_be_labels
        for line, row in csv_records(block, self._delimiter, number):
            if len(row) != len(header):
                raise FileError(
                    f"line {line} has {len(row)} cells, expected {len(header)} as in the header; repair the line"
                )
            of_row = get_cells(row)
            try:
                if has_underscores and any("_" in cell for cell in of_row):
                    raise ValueError
                numbers.extend(map(float, of_row))
            except ValueError:
                bad = next(i for i in columns if not is_number(row[i]))
                check_text(row[bad], line)
                raise FileError(
                    f"line {line}, column {header[bad]!r} is {_shorten(row[bad])}, expected a number; repair or drop "
                    "the line"
                ) from None
            is_whole = is_whole and _INTEGER.fullmatch(of_row[0].strip()) is not None
            if self._labels is not None:
                label = row[self._labels].strip()
                check_text(label, line)
                if not label:
                    raise FileError(
                        f"line {line}, column {header[self._labels]!r} is empty, expected a class label; repair or "
                        "drop the line"
                    )
                places.append(cells.setdefault(label, len(cells)))
        values = np.frombuffer(numbers).reshape(-1, len(columns)) if numbers else np.empty((0, len(columns)))
        if is_whole and np.all(np.abs(values) < 2**53):
            values = values.astype(np.int64)
        return values, None if self._labels is None else np.array(places, np.int64)

    def _open(self) -> Lines:
        """Open the file behind its header."""
        if self._kept is not None:
            lines, self._kept = self._kept, None
            return lines
        if not self.is_resumable:
            raise FileError("standard input is read once, from its beginning; write it to a file")
        lines = Lines(self._open_file())
        lines.read_header(self._delimiter)
        return lines

    def _check_header(self) -> None:
        word, first = {",": "commas", "\t": "tabs"}[self._delimiter], _shorten(self._delimiter.join(self._header))
        if not self._header:
            raise FileError("there is no header, expected column names in the first line")
        if all(map(is_number, self._header)):
            raise FileError(f"the first line, {first}, holds numbers, expected column names; add a header")
        if len(self._header) == 1 and re.search(r"[;\t|,]", self._header[0]):
            raise FileError(f"the header is {first}: it has no {word}; separate the cells by {word}")


class Lines:
    """The lines of a file of bytes, in blocks; `number` is that of the last line before the next block."""

    def __init__(self, file: IO[bytes]):
        self.file, self.number = file, 0
        self._is_begun, self._pending = False, b""

    def read(self, size: int) -> bytes:
        """Return the next lines, `size` bytes or somewhat more, which end where no quotes are open."""
        block, self._pending = self._pending, b""
        if len(block) < size:
            block += self._read(self.file.read, size - len(block))
        if block and not block.endswith(b"\n"):
            block += self._read(self.file.readline, MOST_BYTES + 1)
        if not self._is_begun:
            self._is_begun, block = True, block.removeprefix(b"\xef\xbb\xbf")
        pieces, n_bytes, is_open = [block], len(block), b'"' in block and block.count(b'"') % 2
        while n_bytes <= MOST_BYTES + size and is_open and (line := self._read(self.file.readline, MOST_BYTES + 1)):
            pieces.append(line)
            n_bytes, is_open = n_bytes + len(line), (is_open + line.count(b'"')) % 2
        if n_bytes > MOST_BYTES + size:
            raise FileError(
                f"line {self.number + 1} or one after it has more than {MOST_BYTES} bytes, expected one sample a line; "
                "write the file again"
            )
        return b"".join(pieces)

    def peek(self, size: int) -> bytes:
        """Return the next lines, which come again."""
        self._pending = self.read(size)
        return self._pending

    def read_header(self, delimiter: str) -> tuple[str, ...]:
        """Return the cells of the first line that is not blank."""
        while block := self.read(1):
            line, cells = next(csv_records(block, delimiter, self.number), (0, []))
            if cells:
                ends = [match.end() for match in _LINE_END.finditer(block)][: line - self.number]
                self._pending, self.number = block[ends[-1] :] if ends else b"", line
                for cell in cells:
                    check_text(cell, line)
                return tuple(cell.strip() for cell in cells)
            self.number += count_lines(block)
        return ()

    def _read(self, read: Callable[[int], bytes], size: int) -> bytes:
        try:
            return read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise damage_error("the file", error) from None


def csv_records(block: bytes, delimiter: str, number: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of lines that are not blank, with the number of the line, behind line `number`."""
    text = io.StringIO(block.decode("utf-8", "surrogateescape"), newline="")
    reader = csv.reader(text, delimiter=delimiter, strict=True, skipinitialspace=True)
    try:
        for row in reader:
            if row:
                yield number + reader.line_num, row
    except csv.Error as error:
        line = number + reader.line_num
        raise FileError(f"line {line} is no CSV ({error}); repair the quotes or write it again") from None


def count_lines(block: bytes) -> int:
    n = int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))  # ten times as fast as `count`
    return n + (block.count(b"\r") - block.count(b"\r\n") if b"\r" in block else 0)


def is_plain(block: bytes) -> bool:
    """Whether pyarrow sees the cells that the csv module sees: lines end alike, quotes enclose whole cells."""
    if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
        return False
    return b'"' not in block or 2 * len(_QUOTED.findall(block)) == block.count(b'"')


def import_arrow_csv() -> Any | None:
    try:
        return importlib.import_module("pyarrow.csv")
    except ImportError:
        return None


def _as_numpy(array: Any) -> np.ndarray:
    """Return an array of Arrow without pandas, which pyarrow's own way imports."""
    return np.from_dlpack(array) if len(array) else np.empty(0, np.int64)


class Labels:
    """Cells of labels as places among the different ones, which all blocks share."""

    def __init__(self, places: np.ndarray, cells: dict[str, int]):
        self.places, self.cells = places, cells

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: slice) -> Labels:
        return Labels(self.places[rows], self.cells)

    @staticmethod
    def join(pieces: Sequence[Labels]) -> Labels:
        return Labels(np.concatenate([piece.places for piece in pieces]), pieces[0].cells)

    def values(self, *, as_text: bool) -> np.ndarray:
        """Return booleans, integers, other numbers, or text: what all cells are, if not names of classes."""
        count = np.bincount(self.places, minlength=len(self.cells))
        cells: list[Any] = [cell for cell, n in zip(self.cells, count, strict=True) if n]
        if not as_text and all(cell.lower() in _BOOLEANS for cell in cells):
            cells = [_BOOLEANS[cell.lower()] for cell in cells]
        elif not as_text and all(map(is_number, cells)):
            is_whole = all(_INTEGER.fullmatch(cell) and len(cell) < 19 for cell in cells)
            cells = list(map(int if is_whole else float, cells))
        return np.asarray(cells)[np.cumsum(count > 0)[self.places] - 1] if cells else np.empty(0, str)


def is_number(cell: str) -> bool:
    """Whether files mean a number; Python's own underscores make a class name of it."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def check_text(cell: str, line: int) -> None:
    try:
        cell.encode()
    except UnicodeEncodeError:
        raise FileError(f"line {line} is not UTF-8 text; save the file as UTF-8") from None


def _shorten(cell: str) -> str:
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")
