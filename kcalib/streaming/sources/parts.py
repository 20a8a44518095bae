"""`PartsSource`: parts one after the other as one source, whose chunks know nothing of where parts begin."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kcalib._backend.options import check_integer
from kcalib._input.columns import FileError
from kcalib._input.source import REMEDY, Source, check_of_classes
from kcalib.distributions import Distribution
from kcalib.streaming._options import SharedOptions, StateOptions
from kcalib.streaming.comparison import ComparisonState
from kcalib.streaming.forecasts import ForecastState
from kcalib.streaming.sources.content import normalized
from kcalib.streaming.sources.parameters import Parameters
from kcalib.streaming.sources.part import Cursor, Part, Rows, checked, columns_of, joined
from kcalib.streaming.sources.together import Together
from kcalib.streaming.state import CalibrationState

CHUNK_ROWS, CHUNK_VALUES = 65_536, 2**22  # most rows and most numbers of predictions of a chunk


class PartsSource(Source):
    """Files, or one set of arrays or batches.

    `made` is the function that makes it, and its arguments; with `normalize` rows of probabilities are over their sums.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        made: tuple[Callable[..., PartsSource], tuple[Any, ...]] | None = None,
        *,
        normalize: bool = False,
    ):
        self._parts, self._made, self._normalize = tuple(parts), made, normalize
        self._counts: dict[int, int] = {}  # rows of parts that had to be counted
        # Of an empty file the number of columns need not be known.
        first = next((part for part in self._parts if part.n_columns is not None), self._parts[0])
        for part in self._parts:
            _check_same(part, first)
        self._first, self._n_columns = first, first.n_columns

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes open the files again."""
        if self._made is None:
            raise TypeError("only what kcalib.streaming.source returns can be pickled; open it by this function")
        return self._made

    @property
    def n(self) -> int | None:
        counts = [part.n for part in self._parts]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def prediction(self) -> str | None:
        return self._first.found.family

    @property
    def n_classes(self) -> int:
        if self.prediction is not None:
            raise ValueError(f"the source has {self.prediction} distributions, which have no classes")
        return max(2, self.n_columns)

    @property
    def n_columns(self) -> int:
        if self._n_columns is None:
            pred = self.read(0, 1)[1]
            self._n_columns = columns_of(Parameters.of(pred) if isinstance(pred, Distribution) else pred)
        return max(1, self._n_columns)

    @property
    def resumable(self) -> bool:
        """Whether the samples can be read a second time, or from a later row on."""
        return all(part.resumable for part in self._parts)

    def chunks(self, rows: int, start: int = 0) -> Iterator[Rows]:
        rows, start = check_integer("rows", rows, 1), check_integer("start", start, 0)
        return self._chunks(rows, start)

    def chunks_for(self, options: SharedOptions, rows: int, start: int = 0) -> Iterator[Rows]:
        """The same for the `update` of a state with these options, which checks a `Classification` no more."""
        checked = isinstance(options, StateOptions) and options.takes_checked
        return self._chunks(rows, start, for_states=checked)

    def _chunks(self, rows: int, start: int, *, for_states: bool = False) -> Iterator[Rows]:
        pieces: list[Rows] = []
        held = 0
        first, within = self._place(start)
        for part in self._parts[first:]:
            with _named(part):
                cursor = part.open(within)
            at, within = within, 0
            try:
                while True:
                    with _named(part):
                        piece = self._taken(part, cursor, rows - held, at, for_states)
                    if piece is None:
                        break
                    at += len(piece[0])
                    held += len(piece[0])
                    pieces.append(piece)
                    if held == rows:
                        yield joined(pieces)
                        pieces, held = [], 0
            finally:
                cursor.close()
        if pieces:
            yield joined(pieces)

    def read(self, start: int, stop: int) -> Rows:
        start = check_integer("start", start, 0)
        stop = check_integer("stop", stop, start + 1, hint=": a row beyond `start`")
        chunks = self._chunks(stop - start, start)
        try:
            found = next(chunks, None)
        finally:
            chunks.close()  # type: ignore[attr-defined]
        count = 0 if found is None else len(found[0])
        if found is None or count < stop - start:
            raise FileError(f"`stop` is {stop}, but there are {start + count} samples; read fewer")
        return found

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for part in self._parts:
            with _named(part):
                what = f"{part.found.describe()} {part.found.classes}" + " over their sums" * self._normalize
                for text in (what.encode("utf-8", "surrogateescape"), *part.identity()):
                    digest.update(len(text).to_bytes(8, "little"))
                    digest.update(text)
        return digest.hexdigest()

    def describe(self) -> str:
        first, last = self._parts[0], self._parts[-1]
        where = [first.shown, last.shown] if len(self._parts) > 1 else [first.shown]
        files = f"{len(self._parts)} files, " if len(self._parts) > 1 else ""
        places = f"{files}{' to '.join(where)}: " if where[0] else ""
        n = "unknown number of" if self.n is None else str(self.n)
        classes = f", {self.n_classes} classes" if self.prediction is None else ""
        return f"{places}{n} samples{classes}; {first.found.describe()}"

    def summed(self, **options: Any) -> CalibrationState | ForecastState:
        state: CalibrationState | ForecastState
        if self.prediction is None:
            state = CalibrationState(self.n_classes, **options)
        else:
            check_of_classes(self.prediction, lens=options.pop("lens", None))
            state = ForecastState(**options)
        for true, pred in self.chunks_for(state.options, rows_of_chunks(self.n_columns)):
            state.update(true, pred)
        if not state.n_samples:
            raise FileError(f"there are no samples in the source, {self.describe()}; pass one that has some")
        return state

    def summed_together(self, models: Mapping[str, Source], **options: Any) -> ComparisonState:
        for name, model in models.items():
            if model.prediction is not None:
                raise ValueError(
                    f"`y_true[{name!r}]` has {model.prediction} distributions, and only models of class probabilities "
                    f"are compared in pieces; {REMEDY}"
                )
        together = Together(models)
        state = ComparisonState(together.n_classes, together.names, **options)
        for true, preds in together.chunks_for(state.options, rows_of_chunks(together.n_columns)):
            state.update(true, preds)
        return state

    def _taken(self, part: Part, cursor: Cursor, most: int, at: int, for_states: bool) -> Rows | None:
        """The next rows of a part, as many as asked for, but at its end, checked."""
        pieces: list[Rows] = []
        count = 0
        while count < most and (rows := cursor.take(most - count)) is not None:
            pieces.append(rows)
            count += len(rows[0])
        if not pieces:
            return None
        true, pred = joined(pieces)
        if self._normalize:
            pred = normalized(pred, part.found.from_logits, part.found.describe())
        return checked(part.found, (true, pred), at, for_states=for_states)

    def _place(self, row: int) -> tuple[int, int]:
        """The part that has a row, and the number of the row in it."""
        for number, part in enumerate(self._parts):
            if number == len(self._parts) - 1 and part.n is None:
                return number, row
            count = part.n
            if count is None and row > 0:
                with _named(part):
                    count = self._counts.setdefault(number, part.count())
            if row == 0 or (count is not None and row < count):
                return number, row
            row -= count or 0
        if row == 0:
            return len(self._parts), 0
        raise FileError(f"`start` is {row} rows beyond the {self.n} samples there are")


def rows_of_chunks(n_columns: int) -> int:
    """Rows that are read at a time: enough for the work on them to be most of the time."""
    return max(1, min(CHUNK_ROWS, CHUNK_VALUES // n_columns))


def _check_same(part: Part, first: Part) -> None:
    for what, one, other in (
        ("as predictions", *(one.found.family or "class probabilities" for one in (part, first))),
        ("columns of predictions", part.n_columns, first.n_columns),
        ("classes", part.found.classes, first.found.classes),
        ("logits" if part.found.from_logits else "probabilities", part.found.from_logits, first.found.from_logits),
    ):
        if one != other and one is not None:
            shown = (
                f"{one} {what}, {first.shown} {other}" if not isinstance(one, bool) else f"{what}, {first.shown} not"
            )
            raise FileError(f"{part.shown} has {shown}; parts of one source hold the same")


@contextmanager
def _named(part: Part) -> Iterator[None]:
    """Errors name the part."""
    try:
        yield
    except (FileError, TypeError) as error:
        if not part.place:
            raise
        raise type(error)(f"{part.shown}: {error}") from None
