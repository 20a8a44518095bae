"""A part of a source, one file or one set of arrays: `Part`, what was found in it, and how its rows are read in order.

A `Cursor` gives the next rows, as many as are asked for or fewer; `Slices` has them from anything that can be sliced,
`Blocks` from an iterator of blocks of any size. `checked` is the only place where values are looked at.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.files import printable
from kcalib._input.columns import Columns, FileError, choose, label_name
from kcalib._input.forecasts import FOREIGN, prepare_forecasts
from kcalib._input.labels import Names, prepare
from kcalib._input.parameters import VECTORS, FamilyChoice, choose_forecasts, target_names
from kcalib.distributions import Categorical, Distribution, as_distribution
from kcalib.streaming.sources.content import as_text, stacked
from kcalib.streaming.sources.parameters import Parameters, joined_predictions

Rows = tuple[Array, Any]  # labels or targets, and predictions: an array, `Parameters`, or a `Distribution`


@dataclass(frozen=True)
class Wanted:
    """What the user says of arrays or columns."""

    probs: str | None = None
    logits: str | None = None
    labels: Any = None
    from_logits: bool = False
    classes: tuple[Any, ...] | None = None
    parameters: Mapping[str, str | None] = field(default_factory=dict)  # names, by those of `_input.parameters`
    columns: type[Columns] = Columns  # how messages spell these options

    def found(self, columns: Columns, *, labels: bool = True) -> Found:
        """What is read of a part; without `labels` they are not among the columns."""
        spelled = columns.spelled("from_logits").replace("=", "=True")
        forecasts = None
        if self.probs is None and self.logits is None and not self.from_logits:
            forecasts = choose_forecasts(columns, self.parameters)
        if forecasts is not None:
            if self.classes is not None:
                raise FileError(
                    f"there are predicted distributions, {forecasts.described(columns)}, but "
                    f"{columns.spelled('classes')} is for class probabilities; leave it out"
                )
            vectors = forecasts.family in VECTORS and len(forecasts.names["mean"]) > 1
            targets = target_names(columns, self._label_option(columns), vectors) if labels else (str(self.labels),)
            return Found(targets, (), columns.noun, spelled=spelled, forecasts=forecasts)
        choice = choose(columns, self.probs, self.logits)
        return Found(
            (label_name(columns, self._label_option(columns)) if labels else str(self.labels),),
            choice.names,
            columns.noun,
            from_logits=self.from_logits or choice.logits,
            classes=self.classes if self.classes is not None else choice.classes,
            spelled=spelled,
        )

    def given(self) -> list[str]:
        """Options that name arrays of predictions."""
        names = {"probs": self.probs, "logits": self.logits, **self.parameters}
        return [option for option, name in names.items() if name is not None]

    def _label_option(self, columns: Columns) -> str | None:
        if not (self.labels is None or isinstance(self.labels, (str, os.PathLike))):
            raise TypeError(
                f"`labels` is a {type(self.labels).__name__}, expected the name of one of the {columns.noun}s; an "
                "array goes with an array of predictions"
            )
        return None if self.labels is None else os.fspath(self.labels)


@dataclass(frozen=True)
class Found:
    """Which names of a part are read, and what they mean."""

    targets: tuple[str, ...]  # one name, of labels always, or columns of vectors
    y_pred: tuple[str, ...]  # one name, or those of a family of columns; none for distributions
    noun: str
    from_logits: bool = False
    classes: tuple[Any, ...] | None = None
    spelled: str = "from_logits=True"
    forecasts: FamilyChoice | None = None

    @property
    def family(self) -> str | None:
        """Of predicted distributions."""
        return None if self.forecasts is None else self.forecasts.family

    @property
    def y_true(self) -> str:
        return _together(self.targets)

    @property
    def pred_name(self) -> str:
        return " and ".join(map(_together, self.groups))

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The names that make up each array of the predictions."""
        return (self.y_pred,) if self.forecasts is None else tuple(self.forecasts.names.values())

    @property
    def n_columns(self) -> int:
        """`Part.n_columns` where each name is a column of numbers."""
        count = sum(map(len, self.groups))
        return 0 if self.forecasts is None and count == 1 else count

    @property
    def names(self) -> tuple[str, ...]:
        """All that are read."""
        return tuple(dict.fromkeys((*itertools.chain(*self.groups), *self.targets)))

    def predictions(self, values: Sequence[Array]) -> Any:
        """Those of which `values` are the arrays, one for each of `groups`."""
        if self.forecasts is None:
            return values[0]
        return Parameters(self.forecasts.family, dict(zip(self.forecasts.names, values, strict=True)))

    def describe(self) -> str:
        if self.forecasts is not None:
            what = " and ".join(f"{name} in {_quoted(names)}" for name, names in self.forecasts.names.items())
            return f"{self.forecasts.family} distributions, {self.noun}s of {what}, targets in {_quoted(self.targets)}"
        kind = "logits" if self.from_logits else "probabilities"
        plural = "s" if len(self.y_pred) > 1 else ""
        return f"{kind} in {self.noun}{plural} {_quoted(self.y_pred)}, labels in {self.y_true!r}"


def _together(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _quoted(names: tuple[str, ...]) -> str:
    return " to ".join(repr(name) for name in dict.fromkeys((names[0], names[-1])))


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
                n += len(rows[0])
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
        while self._left is None or len(self._left[0]) == 0:
            self._left = next(self._blocks, None)
            if self._left is None:
                return None
            skipped = min(self._skip, len(self._left[0]))
            self._skip -= skipped
            self._left = self._left[0][skipped:], self._left[1][skipped:]
        y, p = self._left
        self._left = y[most:], p[most:]
        return y[:most], p[:most]

    def close(self) -> None:
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()


def checked(found: Found, rows: Rows, at: int, *, for_states: bool) -> Rows:
    """Rows from number `at` on as `Source.chunks` gives them; errors name the columns and the row in the part.

    With `for_states` probabilities on the host are a `Classification`, which a state does not check again.
    """
    true, pred = rows
    if found.family is not None:
        return _checked_forecasts(found, true, pred, at)
    if found.classes is None and isinstance(true, np.ndarray) and true.dtype.kind in "SUO":
        row = next((i for i, label in enumerate(true.tolist()) if isinstance(label, (str, bytes))), 0)
        raise FileError(
            f"`{found.y_true}[{at + row}]` is {true.tolist()[row]!r}, and a piece does not show all classes; pass "
            "classes= with the label of each column"
        )
    names = Names(found.y_true, found.pred_name, found.spelled)
    with _placed({found.pred_name: found.y_pred, found.y_true: found.targets}, at):
        data = prepare(true, pred, classes=found.classes, from_logits=found.from_logits, names=names)
    if for_states and not found.from_logits and isinstance(data.probabilities, np.ndarray):
        return data.labels, dataclasses.replace(data, classes=None)  # labels are numbers of columns
    return data.labels, data.probabilities if found.from_logits else pred


def _checked_forecasts(found: Found, true: Array, pred: Parameters, at: int) -> Rows:
    assert found.forecasts is not None
    columns = {**found.forecasts.names, found.y_true: found.targets}
    with _placed(columns, at):
        data = prepare_forecasts(true, pred.distribution(), names=Names(found.y_true, found.pred_name, found.spelled))
    return data.as_given()


@contextmanager
def _placed(columns: Mapping[str, tuple[str, ...]], at: int) -> Iterator[None]:
    """Errors of the arrays that have these names name the columns that they are of, and rows of the part."""

    def placed(match: re.Match[str]) -> str:
        names, row, entry = columns[match[1]], int(match[2]) + at, match[3]
        if entry is not None and len(names) > 1:
            return f"`{names[int(entry)]}[{row}]"
        return f"`{_together(names)}[{row}" + (f", {entry}]" if entry is not None else "]")

    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else FileError
        names = "|".join(map(re.escape, columns))
        raise kind(re.sub(rf"`({names})\[(\d+)(?:, (\d+))?\]", placed, str(error))) from None


def joined(pieces: list[Rows]) -> Rows:
    """Pieces one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    true, pred = zip(*pieces, strict=True)
    return arrays.namespace(true[0]).concat(true, axis=0), joined_predictions(pred)


def plain(pred: Any, wanted: Wanted) -> tuple[Any, Wanted]:
    """Predictions as `Parameters` or an array, and with the names of classes that they may have."""
    if type(pred).__module__.startswith(FOREIGN):
        pred = as_distribution(pred)
    if isinstance(pred, Categorical):
        classes = wanted.classes if pred.classes is None else tuple(pred.classes)
        return pred.probabilities, dataclasses.replace(wanted, classes=classes)
    return Parameters.of(pred) if isinstance(pred, Distribution) else pred, wanted


def found_in(pred: Parameters, targets: str) -> Found:
    """Of distributions that come as such."""
    choice = FamilyChoice(pred.family, {name: (name,) for name in pred.values})
    return Found((targets,), (), "parameter", forecasts=choice)


def rows_from(found: Found, column: Callable[[str], np.ndarray]) -> Rows:
    """Rows of columns, by their names."""

    def of(names: tuple[str, ...]) -> np.ndarray:
        return stacked([column(name) for name in names], names)

    return as_text(of(found.targets)), found.predictions([of(names) for names in found.groups])


def columns_of(pred: Any) -> int:
    """`Part.n_columns` of predictions of this shape."""
    shape = tuple(map(int, pred.shape))
    if isinstance(pred, Parameters):
        return shape[1]
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] == 0):
        raise FileError(f"the predictions have shape {shape}, expected (n, m) probabilities, or (n,) for two classes")
    return 0 if len(shape) == 1 else int(shape[1])


def check_lengths(true: Any, pred: Sequence[Any], found: Found) -> int:
    """The number of rows of labels and of each array of the predictions."""
    shape = tuple(true.shape)
    for array, names in zip(pred, found.groups, strict=True):
        if len(shape) not in (1, 2) or not array.shape or shape[0] != array.shape[0]:
            raise FileError(
                f"{found.noun} {found.y_true!r} has shape {shape}, {found.noun} {_together(names)!r} "
                f"{tuple(array.shape)}; expected one {'label' if found.family is None else 'target'} for each row of "
                "predictions"
            )
    return int(shape[0])


def with_classes(found: Found, classes: np.ndarray, labels: np.dtype[Any]) -> Found:
    """Names of classes that a file has beside its labels are those of the labels if both are text or neither is."""
    if found.classes is None and (classes.dtype.kind == "U") == (labels.kind in "SUO"):
        return dataclasses.replace(found, classes=tuple(classes.tolist()))
    return found


def sampled(true: Any, pred: Any) -> Iterator[bytes]:
    """What identifies labels and predictions: dtypes, shapes and some rows, the first and the last among them."""
    for array in (true, *(pred.values.values() if isinstance(pred, Parameters) else (pred,))):
        yield f"{array.dtype} {tuple(array.shape)}".encode()
        for row in rows_sampled(int(array.shape[0])):
            found = np.asarray(arrays.to_host(array[row : row + 1]))
            yield repr(found.tolist()).encode() if found.dtype.kind == "O" else found.tobytes()


def rows_sampled(n: int) -> list[int]:
    """Numbers of some rows, evenly spaced."""
    return sorted({round(i * (n - 1) / _SAMPLED) for i in range(_SAMPLED + 1)}) if n else []


_SAMPLED = 32
