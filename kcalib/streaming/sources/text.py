"""Text files, a header and one sample per line: `.csv` and `.tsv`, also compressed (`.gz`), and standard input.

pyarrow reads them some thirty times as fast as the csv module. The csv module reads short files, all files if pyarrow
is missing, and continues where pyarrow refuses a line, to name the line of an error.
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
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from kcalib._input.columns import FileError
from kcalib.streaming.sources.content import check_unique, damage_error, file_identity
from kcalib.streaming.sources.layout import Y_PRED, Y_TRUE, Block, ReadOptions
from kcalib.streaming.sources.reader import Reader, n_rows, skip_rows

BLOCK_BYTES = 2**20  # of a block; for shorter files importing pyarrow takes longer than reading
BLOCK_HEADERS = 64  # minimum size of a block in headers, for thousands of columns
BLOCK_CELLS = 2**18  # numbers that the csv module reads at once

_INTEGER = re.compile(r"[+-]?[0-9]+")
_BOOLEANS = {"true": True, "false": False}


def text_reader(path: Path, options: ReadOptions) -> Reader:
    open_file, delimiter = open_text(path)
    return TextReader(open_file, options, str(path), delimiter, lambda: file_identity(path))


def open_text(path: Path) -> tuple[Callable[[], IO[bytes]], str]:
    """Return a function that opens a text file, and the delimiter."""
    open_file: Any = gzip.open if path.suffix.lower() == ".gz" else open
    is_tabbed = ".tsv" in (suffix.lower() for suffix in path.suffixes[-2:])
    return lambda: open_file(path, "rb"), "\t" if is_tabbed else ","


class TextReader(Reader):
    """Read a text file; the number of rows is unknown before reading.

    In blocks labels are numbers of distinct cells in the order of appearance, in chunks they are values.
    """

    def __init__(
        self,
        open_file: Callable[[], IO[bytes]],
        options: ReadOptions,
        place: str,
        delimiter: str,
        identity: Callable[[], Iterator[bytes]],
    ):
        self.place, self._open_file, self._delimiter, self._identity = place, open_file, delimiter, identity
        self._header_end, cells = next(read_records(self._open_file, self._delimiter), (0, []))
        for cell in cells:
            check_text(cell, self._header_end)
        self._header = tuple(cell.strip() for cell in cells)
        self._check_header()
        self.layout = layout = options.layout(options.columns("column", self._header))
        check_unique(self._header, layout.names)
        is_family = options.multilabel and len(layout.targets) > 1
        has_labels = (layout.family is None or options.has_names) and Y_TRUE in layout.groups and not is_family
        places = {name: i for i, name in enumerate(self._header)}
        self._label_column = places[layout.targets[0]] if has_labels else None
        self._groups = {key: names for key, names in layout.groups.items() if not (has_labels and key == Y_TRUE)}
        self._columns = [places[name] for names in self._groups.values() for name in names]
        self._label_numbers: dict[str, int] = {}
        width = sum(map(len, layout.predictions.values()))
        self.n_columns = 0 if layout.family is None and width == 1 else width

    def blocks(self, start: int, rows: int) -> Iterator[Block]:
        return skip_rows(self._blocks(), start)

    def finish(self, block: Block) -> Block:
        if self._label_column is not None:
            classes = self.layout.classes
            as_text = classes is not None and isinstance(classes[0], str)
            block[Y_TRUE] = self._label_values(block[Y_TRUE], as_text)
        return block

    def identity(self) -> Iterator[bytes]:
        return self._identity()

    def _blocks(self) -> Iterator[Block]:
        rows_read = 0
        try:
            with self._open_file() as file:
                is_short = len(file.read(BLOCK_BYTES)) < BLOCK_BYTES
            reader = None if is_short else import_arrow_csv()
            if reader is not None:
                for block in self._blocks_by_arrow(reader):
                    yield block
                    rows_read += n_rows(block)
                return
        except (ValueError, OSError, EOFError, zlib.error):
            pass  # the csv module reads the rest, or names the wrong line
        yield from skip_rows(self._blocks_by_cells(), rows_read)

    def _blocks_by_arrow(self, reader: Any) -> Iterator[Block]:
        """Read by pyarrow; a ValueError if it refuses a line, or a cell is not a finite number or a label."""
        import pyarrow as pa

        names = list(map(str, range(len(self._header))))
        types = {names[column]: pa.float64() for column in self._columns}
        if self._label_column is not None:
            if self._label_column in self._columns:  # pyarrow would read it as one type
                raise ValueError
            types[names[self._label_column]] = pa.dictionary(pa.int32(), pa.string())
        size = max(BLOCK_BYTES, BLOCK_HEADERS * sum(len(name) + 1 for name in self._header))
        with (
            self._open_file() as file,
            reader.open_csv(
                file,
                read_options=reader.ReadOptions(
                    use_threads=False, block_size=size, column_names=names, skip_rows=self._header_end
                ),
                parse_options=reader.ParseOptions(delimiter=self._delimiter),
                convert_options=reader.ConvertOptions(
                    column_types=types, include_columns=list(types), null_values=[], strings_can_be_null=False
                ),
            ) as batches,
        ):
            for batch in batches:
                numbers = np.empty((len(batch), len(self._columns)))
                for i, column in enumerate(self._columns):
                    numbers[:, i] = _as_numpy(batch.column(names[column]))
                if not np.all(np.isfinite(numbers)):
                    raise ValueError
                labels = None
                if self._label_column is not None:
                    column = batch.column(names[self._label_column])
                    cells = [cell.strip() for cell in column.dictionary.to_pylist()]
                    if any(not cell or "\n" in cell for cell in cells):
                        raise ValueError
                    labels = self._number_labels(cells)[_as_numpy(column.indices)]
                yield self._as_block(numbers, labels)

    def _blocks_by_cells(self) -> Iterator[Block]:
        header, columns = self._header, self._columns
        get_cells = operator.itemgetter(*columns) if len(columns) > 1 else lambda row: (row[columns[0]],)
        numbers, labels = CArray("d"), []
        for line, row in read_records(self._open_file, self._delimiter):
            if line == self._header_end:
                continue
            if len(row) != len(header):
                raise FileError(
                    f"line {line} has {len(row)} cells, expected {len(header)} as in the header; repair the line"
                )
            cells = get_cells(row)
            if self.layout.missing == "drop":
                cells = [cell if cell.strip() else "nan" for cell in cells]
            try:
                if any("_" in cell for cell in cells):
                    raise ValueError
                numbers.extend(map(float, cells))
            except ValueError:
                bad = next(i for i in columns if not is_number(row[i]))
                check_text(row[bad], line)
                is_member = self.layout.family == "Samples" and not row[bad].strip()
                raise FileError(
                    f"line {line}, column {header[bad]!r} is {_shorten(row[bad])}, expected a number; repair or drop "
                    "the line" + ", or pass missing='drop'" * is_member
                ) from None
            if self._label_column is not None:
                label = row[self._label_column].strip()
                check_text(label, line)
                if not label:
                    raise FileError(
                        f"line {line}, column {header[self._label_column]!r} is empty, expected a class label; repair "
                        "or drop the line"
                    )
                labels.append(label)
            if len(numbers) >= BLOCK_CELLS:
                yield self._cells_as_block(numbers, labels)
                numbers, labels = CArray("d"), []
        if numbers:
            yield self._cells_as_block(numbers, labels)

    def _cells_as_block(self, numbers: CArray[float], labels: list[str]) -> Block:
        values = np.frombuffer(numbers).reshape(-1, len(self._columns))
        return self._as_block(values, None if self._label_column is None else self._number_labels(labels))

    def _as_block(self, numbers: np.ndarray, labels: np.ndarray | None) -> Block:
        block: Block = {}
        begin = 0
        for key, names in self._groups.items():
            block[key] = numbers[:, begin] if len(names) == 1 else numbers[:, begin : begin + len(names)]
            begin += len(names)
        if labels is not None:
            block[Y_TRUE] = labels
        if self.n_columns == 0 and not self.layout.from_logits and self._is_whole:
            block[Y_PRED] = block[Y_PRED].astype(np.int64)
        return block

    @cached_property
    def _is_whole(self) -> bool:
        """Whether all predictions are written as integers, which checks take for labels."""
        (column,) = (place for place, name in enumerate(self._header) if name == self.layout.predictions[Y_PRED][0])
        return all(
            len(row) <= column or _INTEGER.fullmatch(row[column].strip())
            for line, row in read_records(self._open_file, self._delimiter)
            if line != self._header_end
        )

    def _number_labels(self, cells: Iterable[str]) -> np.ndarray:
        numbers = self._label_numbers
        return np.array([numbers.setdefault(cell, len(numbers)) for cell in cells], np.int64)

    def _label_values(self, labels: np.ndarray, as_text: bool) -> np.ndarray:
        """Return booleans, integers, numbers or texts, whichever fits all cells."""
        count = np.bincount(labels, minlength=len(self._label_numbers))
        cells: list[Any] = [cell for cell, n in zip(self._label_numbers, count, strict=True) if n]
        if not as_text and all(cell.lower() in _BOOLEANS for cell in cells):
            cells = [_BOOLEANS[cell.lower()] for cell in cells]
        elif not as_text and all(map(is_number, cells)):
            is_whole = all(_INTEGER.fullmatch(cell) and len(cell) < 19 for cell in cells)
            cells = list(map(int if is_whole else float, cells))
        return np.asarray(cells)[np.cumsum(count > 0)[labels] - 1] if cells else np.empty(0, str)

    def _check_header(self) -> None:
        word, first = {",": "commas", "\t": "tabs"}[self._delimiter], _shorten(self._delimiter.join(self._header))
        if not self._header:
            raise FileError("there is no header, expected column names in the first line")
        if all(map(is_number, self._header)):
            raise FileError(f"the first line, {first}, holds numbers, expected column names; add a header")
        if len(self._header) == 1 and re.search(r"[;\t|,]", self._header[0]):
            raise FileError(f"the header is {first}: it has no {word}; separate the cells by {word}")


def read_records(open_file: Callable[[], IO[bytes]], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each line that is not blank, with the number of the line."""
    with io.TextIOWrapper(open_file(), "utf-8-sig", "surrogateescape", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True, skipinitialspace=True)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise FileError(
                f"line {reader.line_num} is not CSV ({error}); repair the quotes or write it again"
            ) from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise damage_error("the file", error) from None


def import_arrow_csv() -> Any | None:
    try:
        return importlib.import_module("pyarrow.csv")
    except ImportError:
        return None


def _as_numpy(array: Any) -> np.ndarray:
    """Return an Arrow array without importing pandas, as pyarrow would."""
    return np.from_dlpack(array) if len(array) else np.empty(0, np.int64)


def is_number(cell: str) -> bool:
    """Return whether a cell is a number; cells with underscores are names of classes."""
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
