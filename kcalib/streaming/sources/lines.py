"""Lines of text files, one by one or in blocks of many, and their cells: `Lines`, `records`.

What a line is, and what is no text, is decided here for whatever reads text.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from kcalib._input.columns import FileError
from kcalib.streaming.sources.content import damaged

LONGEST = 2**28  # bytes of a line; what has more is no table
_BOM = b"\xef\xbb\xbf"
_RETURN = re.compile(rb"(?<=\r)(?!\n)")

Records = Iterator[tuple[int, list[str]]]


class Lines:
    """The lines of a file of bytes, each with its end; `number` counts those that were given."""

    def __init__(self, file: IO[bytes], number: int = 0):
        self._file, self.number = file, number
        self._begun = number > 0
        self._pending: list[bytes] = []  # read already, the next one last
        self.underscores = False  # in some line so far: Python takes them within numbers, files do not mean that

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        line = self._pending.pop() if self._pending else self._line()
        if not line:
            raise StopIteration
        if b"\r" in line[:-2]:  # lines that end with a return alone
            line, *more = filter(None, _RETURN.split(line))
            self._pending.extend(reversed(more))
        self.number += 1
        self.underscores = self.underscores or b"_" in line
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FileError(f"line {self.number} is not UTF-8 text ({error.reason}); save the file as UTF-8") from None

    def block(self, size: int) -> bytes:
        """The next lines, of `size` bytes or somewhat more, of fewer only at the end; `number` stays as it is."""
        block = b"".join(reversed(self._pending))
        self._pending.clear()
        if len(block) < size:
            block += _bytes(self._file.read, size - len(block))
            if len(block) == size and not block.endswith(b"\n"):
                block += self._line()
        return block

    def put_back(self, block: bytes) -> None:
        """What was given as a block comes next, line by line."""
        self._pending.extend(reversed(block.splitlines(keepends=True)))

    def close(self) -> None:
        self._file.close()

    def _line(self) -> bytes:
        line = _bytes(self._file.readline, LONGEST + 1)
        if len(line) > LONGEST:
            raise FileError(
                f"line {self.number + 1} or one after it has more than {LONGEST} bytes, expected one sample a line; "
                "write the file again"
            )
        if not self._begun:
            self._begun, line = True, line.removeprefix(_BOM)
        return line


def _bytes(read: Callable[[int], bytes], size: int) -> bytes:
    try:
        return read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged("the file", error) from None


def records(lines: Lines, delimiter: str) -> Records:
    """The cells of the lines that are not blank, with the number of the last line of each; names in line 1 are as
    they are."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
    try:
        for row in reader:
            if row:
                yield lines.number, row
    except csv.Error as error:
        raise FileError(f"line {lines.number} is no CSV ({error}); repair the quotes or write it again") from None


def lines_of(path: Path) -> Lines:
    """The lines of a file, which is compressed if its name says so."""
    return Lines(gzip.open(path, "rb") if path.suffix.lower() == ".gz" else open(path, "rb"))  # type: ignore[arg-type]


def delimiter_of(path: Path) -> str:
    return "\t" if ".tsv" in (suffix.lower() for suffix in path.suffixes[-2:]) else ","
