"""A part of a source, one file or one set of arrays: `Part`, what was found in it, and how its rows are read in order.

A `Cursor` gives the next rows, as many as are asked for or fewer; `Slices` has them from anything that can be sliced,
`Blocks` from an iterator of blocks of any size. `checked` is the only place where values are looked at.
"""

from __future__ import annotations

import dataclasses
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.files import printable
from kcalib._input.columns import Choice, Columns, FileError, choose, label_name
from kcalib._input.labels import Names, prepare

Rows = tuple[Array, Array]  # labels and predictions


@dataclass(frozen=True)
class Wanted:
    """What the user says of arrays or columns."""

    probs: str | None = None
    logits: str | None = None
    labels: Any = None
    from_logits: bool = False
    classes: tuple[Any, ...] | None = None
    columns: type[Columns] = Columns  # how messages spell these options

    def choice(self, columns: Columns) -> Choice:
        return choose(columns, self.probs, self.logits)

    def found(self, columns: Columns, choice: Choice, labels: str | None) -> Found:
        """What is read of a part; `labels` is the name among its columns, None if they are elsewhere."""
        return Found(
            y_true=str(self.labels) if labels is None else labels,
            y_pred=choice.names,
            noun=columns.noun,
            from_logits=self.from_logits or choice.logits,
            classes=self.classes if self.classes is not None else choice.classes,
            spelled=columns.spelled("from_logits").replace("=", "=True"),
        )

    def label_name(self, columns: Columns) -> str:
        if not (self.labels is None or isinstance(self.labels, (str, os.PathLike))):
            raise TypeError(
                f"`labels` is a {type(self.labels).__name__}, expected the name of one of the {columns.noun}s; an "
                "array goes with an array of predictions"
            )
        return label_name(columns, None if self.labels is None else os.fspath(self.labels))


@dataclass(frozen=True)
class Found:
    """Which names of a part are read, and what they mean."""

    y_true: str
    y_pred: tuple[str, ...]  # one name, or those of a family of columns
    noun: str
    from_logits: bool = False
    classes: tuple[Any, ...] | None = None
    spelled: str = "from_logits=True"

    @property
    def pred_name(self) -> str:
        return self.y_pred[0] if len(self.y_pred) == 1 else f"{self.y_pred[0]} to {self.y_pred[-1]}"

    def describe(self) -> str:
        kind = "logits" if self.from_logits else "probabilities"
        names = " to ".join(repr(name) for name in dict.fromkeys((self.y_pred[0], self.y_pred[-1])))
        return f"{kind} in {self.noun}{'s' if len(self.y_pred) > 1 else ''} {names}, labels in {self.y_true!r}"


class Cursor(ABC):
    """The rows of a part in order."""

    @abstractmethod
    def take(self, most: int) -> Rows | None:
        """The next rows, between 1 and `most` of them; None at the end."""

    def close(self) -> None:  # noqa: B027
        """Let go of files."""


class Part(ABC):
    """A part of a source."""

    place: str  # what messages call it; "" for what has no name
    n: int | None  # rows, if they are known without reading all of them
    n_columns: int | None  # of the predictions: 0 for shape (n,); None if not known before reading
    found: Found
    resumable = True  # whether it can be read a second time

    @property
    def shown(self) -> str:
        """Its place as messages have it."""
        return printable(self.place)

    @abstractmethod
    def open(self, start: int) -> Cursor:
        """A cursor at row `start`; the rows before it are skipped."""

    @abstractmethod
    def identity(self) -> Iterator[bytes]:
        """What changes if the rows do."""

    def count(self) -> int:
        """The number of rows, all of which are read if it is not known."""
        if self.n is not None:
            return self.n
        cursor, n = self.open(0), 0
        try:
            while (rows := cursor.take(_SKIPPED)) is not None:
                n += len(rows[1])
        finally:
            cursor.close()
        return n


_SKIPPED = 16_384  # rows that are read at a time where they are skipped


class Slices(Cursor):
    """Rows of something of which any can be read: ``read(start, stop)``."""

    def __init__(self, read: Callable[[int, int], Rows], start: int, n: int, close: Callable[[], None] | None = None):
        self._read, self._at, self._n, self.closing = read, start, n, close

    def take(self, most: int) -> Rows | None:
        stop = min(self._at + most, self._n)
        if stop <= self._at:
            return None
        rows = self._read(self._at, stop)
        self._at = stop
        return rows

    def close(self) -> None:
        if self.closing is not None:
            self.closing()


class Blocks(Cursor):
    """Rows of blocks that an iterator gives; what is left of a block is kept, and none is asked for before its turn."""

    def __init__(self, blocks: Iterator[Rows], skip: int = 0):
        self._blocks, self._skip = blocks, skip
        self._left: Rows | None = None

    def take(self, most: int) -> Rows | None:
        while self._left is None or len(self._left[1]) == 0:
            self._left = next(self._blocks, None)
            if self._left is None:
                return None
            skipped = min(self._skip, len(self._left[1]))
            self._skip -= skipped
            self._left = self._left[0][skipped:], self._left[1][skipped:]
        y, p = self._left
        self._left = y[most:], p[most:]
        return y[:most], p[:most]

    def close(self) -> None:
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()


def checked(found: Found, rows: Rows, at: int) -> Rows:
    """Rows from number `at` on as `Source.chunks` gives them; errors name the columns and the row in the part."""
    true, pred = rows
    if found.classes is None and isinstance(true, np.ndarray) and true.dtype.kind in "SUO":
        row = next((i for i, label in enumerate(true.tolist()) if isinstance(label, (str, bytes))), 0)
        raise FileError(
            f"`{found.y_true}[{at + row}]` is {true.tolist()[row]!r}, and a piece does not show all classes; pass "
            "classes= with the label of each column"
        )
    names = Names(found.y_true, found.pred_name, found.spelled)
    try:
        data = prepare(true, pred, classes=found.classes, from_logits=found.from_logits, names=names)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else FileError
        raise kind(_in_part(str(error), found, at)) from None
    return data.labels, data.probabilities if found.from_logits else pred


def _in_part(message: str, found: Found, at: int) -> str:
    """The message with numbers of rows of the part, and with the column of a family."""

    def placed(match: re.Match[str]) -> str:
        name, row, column = match[1], int(match[2]) + at, match[3]
        if name == found.pred_name and column is not None and len(found.y_pred) > 1:
            return f"`{found.y_pred[int(column)]}[{row}]"
        return f"`{name}[{row}" + (f", {column}]" if column is not None else "]")

    names = "|".join(re.escape(name) for name in (found.pred_name, found.y_true))
    return re.sub(rf"`({names})\[(\d+)(?:, (\d+))?\]", placed, message)


def joined(pieces: list[Rows]) -> Rows:
    """Pieces one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    xp = arrays.namespace(pieces[0][1])
    true, pred = zip(*pieces, strict=True)
    return arrays.namespace(true[0]).concat(true, axis=0), xp.concat(pred, axis=0)


def columns_of(pred: Any) -> int:
    """`Part.n_columns` of predictions of this shape."""
    shape = tuple(pred.shape)
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] == 0):
        raise FileError(f"the predictions have shape {shape}, expected (n, m) probabilities, or (n,) for two classes")
    return 0 if len(shape) == 1 else int(shape[1])


def check_lengths(true: Any, pred: Any, found: Found) -> int:
    """The number of rows of two arrays."""
    shape = tuple(true.shape)
    if len(shape) not in (1, 2) or shape[0] != pred.shape[0]:
        raise FileError(
            f"{found.noun} {found.y_true!r} has shape {shape}, {found.noun} {found.pred_name!r} {tuple(pred.shape)}; "
            "expected one label for each row of predictions"
        )
    return int(shape[0])


def with_classes(found: Found, classes: np.ndarray, labels: np.dtype[Any]) -> Found:
    """Names of classes that a file has beside its labels are those of the labels if both are text or neither is."""
    if found.classes is None and (classes.dtype.kind == "U") == (labels.kind in "SUO"):
        return dataclasses.replace(found, classes=tuple(classes.tolist()))
    return found


def sampled(true: Any, pred: Any) -> Iterator[bytes]:
    """What identifies two arrays: dtypes, shapes and some rows, the first and the last among them."""
    for array in (true, pred):
        yield f"{array.dtype} {tuple(array.shape)}".encode()
        for row in rows_sampled(int(array.shape[0])):
            found = np.asarray(arrays.to_host(array[row : row + 1]))
            yield repr(found.tolist()).encode() if found.dtype.kind == "O" else found.tobytes()


def rows_sampled(n: int) -> list[int]:
    """Numbers of some rows, evenly spaced."""
    return sorted({round(i * (n - 1) / _SAMPLED) for i in range(_SAMPLED + 1)}) if n else []


_SAMPLED = 32
