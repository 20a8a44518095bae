"""`Reader`, the base class for reading a file or a set of arrays, and `RowCursor`, which takes its rows."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.files import printable
from kcalib._backend.memory import check_memory
from kcalib._input.columns import FileError
from kcalib.streaming.sources.layout import Y_TRUE, Block, Layout

_SAMPLED_ROWS = 32  # rows that identify an array


class Reader(ABC):
    """Read a file or a set of arrays in blocks of rows."""

    layout: Layout
    place: str = ""  # name of the file in messages, if any
    n: int | None = None  # number of rows, if known before reading
    n_columns: int | None = None  # numbers in a prediction, 0 for shape (n,); None if unknown before reading
    is_resumable = True  # whether it can be read again

    @abstractmethod
    def blocks(self, start: int, rows: int) -> Iterator[Block]:
        """Yield the rows from `start` on in order, in blocks of about `rows` rows."""

    def finish(self, block: Block) -> Block:
        """Return the rows of a chunk as arrays, after its blocks were joined."""
        return block

    def identity(self) -> Iterator[bytes]:
        """Yield what changes with the rows; here some of them."""
        n = self.n or 0
        yield str(n).encode()
        for row in sorted({round(i * (n - 1) / _SAMPLED_ROWS) for i in range(_SAMPLED_ROWS + 1)}) if n else ():
            yield from block_bytes(next(self.blocks(row, 1)))

    @property
    def printable_place(self) -> str:
        return printable(self.place)


def block_bytes(block: Block) -> Iterator[bytes]:
    """Yield the values of a block with their types."""
    for array in block.values():
        yield f"{array.dtype} {tuple(array.shape)}".encode()
        values = np.asarray(arrays.to_host(array))
        yield repr(values.tolist()).encode() if values.dtype.kind == "O" else values.tobytes()


def skip_rows(blocks: Iterator[Block], start: int) -> Iterator[Block]:
    """Yield blocks without their first `start` rows."""
    for block in blocks:
        n = n_rows(block)
        if start < n:
            yield {key: array[start:] for key, array in block.items()} if start else block
        start = max(0, start - n)


class RowCursor:
    """The rows of a reader in order, in requested numbers."""

    def __init__(self, reader: Reader, start: int, rows: int):
        self._labels, self._finish = reader.layout.stored_labels, reader.finish
        self._blocks, self.at = reader.blocks(start, rows), start
        self._left: Block | None = None

    def take(self, most: int) -> Block | None:
        """Return the next `most` rows, fewer at the end; None if there are no more."""
        pieces: list[Block] = []
        count = n_bytes = 0
        while count < most:
            block = self._left or next(self._blocks, None)
            if block is None:
                break
            n, remaining = n_rows(block), most - count
            if most == sys.maxsize:  # the number of rows is unknown
                n_bytes += sum(getattr(array, "nbytes", 0) for array in block.values())
                check_room(n_bytes)
            self._left = {key: array[remaining:] for key, array in block.items()} if n > remaining else None
            if n:
                pieces.append({key: array[:remaining] for key, array in block.items()} if n > remaining else block)
                count += min(n, remaining)
        if self._labels is not None:
            n = self._labels.shape[0]
            if self.at + count > n or (not pieces and self.at < n):
                rows = f"more than {n}" if self.at + count > n else f"only {self.at}"
                raise FileError(
                    f"the labels {str(self._labels.filename)!r} are {n}, and there are {rows} rows of predictions; "
                    "expected one label for each"
                )
        if not pieces:
            return None
        block = self._finish(join_blocks(pieces))
        if self._labels is not None:
            block[Y_TRUE] = np.array(self._labels[self.at : self.at + count])
        self.at += count
        return block

    def close(self) -> None:
        """Close files."""
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()


def check_room(n_bytes: int) -> None:
    """Refuse to read a whole file if there is not as much free memory again."""
    check_memory(n_bytes, None, "all samples at once", "read them in pieces (--stream), or a part of them (--rows A:B)")


def n_rows(block: Block) -> int:
    return len(next(iter(block.values())))


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Concatenate blocks."""
    if len(blocks) == 1:
        return dict(blocks[0])
    return {key: _join_arrays(key, [block[key] for block in blocks]) for key in blocks[0]}


def _join_arrays(name: str, pieces: Sequence[Any]) -> Any:
    first = pieces[0]
    if not hasattr(first, "shape"):
        return type(first).join(pieces)
    for piece in pieces:
        if piece.shape[1:] != first.shape[1:]:
            raise FileError(
                f"`{name}` has shape {tuple(piece.shape)} after {tuple(first.shape)}; parts of one source hold the same"
            )
    return arrays.namespace(first).concat(pieces, axis=0)
