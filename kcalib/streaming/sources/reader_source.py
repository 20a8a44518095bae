"""`ReaderSource`: consecutive readers as one source, with chunks that do not depend on file boundaries."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.options import check_integer
from kcalib._input.classes import Classes
from kcalib._input.columns import FileError
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._input.source import Source, check_of_classes
from kcalib.distributions import Distribution
from kcalib.lenses import CANONICAL, Lens
from kcalib.streaming._forecasts.families import FIELDS, Family
from kcalib.streaming._options import SharedOptions, StateOptions
from kcalib.streaming.comparison import ComparisonState
from kcalib.streaming.forecasts import ForecastState
from kcalib.streaming.sources.content import file_identity
from kcalib.streaming.sources.layout import Y_TRUE, Block
from kcalib.streaming.sources.model_sources import ModelSources
from kcalib.streaming.sources.reader import Reader, RowCursor, check_room
from kcalib.streaming.state import CalibrationState

CHUNK_ROWS, CHUNK_VALUES = 65_536, 2**22  # limits for the rows and predictions of a chunk

Rows = tuple[Any, Any]  # labels or targets, and predictions


class ReaderSource(Source):
    """Files, or a set of arrays or batches; `maker` is the function that makes it, with arguments."""

    def __init__(
        self,
        readers: Sequence[Reader],
        maker: tuple[Callable[..., ReaderSource], tuple[Any, ...]] | None = None,
        clusters: ReaderSource | None = None,
    ):
        self._readers, self._maker, self.clusters = tuple(readers), maker, clusters
        self._counts: dict[int, int] = {}  # rows of readers that were counted
        # The number of columns of an empty file may be unknown.
        first = next((reader for reader in self._readers if reader.n_columns is not None), self._readers[0])
        for reader in self._readers:
            _check_same(reader, first)
        self._n_columns, self.layout = first.n_columns, first.layout

    def __reduce__(self) -> tuple[Any, ...]:
        """Reopen the files in other processes."""
        if self._maker is None:
            raise TypeError("only what kcalib.streaming.source returns can be pickled; open it by this function")
        return self._maker

    @property
    def n(self) -> int | None:
        counts = [reader.n for reader in self._readers]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def prediction(self) -> str | None:
        return self.layout.family

    @property
    def n_classes(self) -> int:
        if self.prediction is not None:
            raise ValueError(f"the source has {self.prediction} distributions, which have no classes")
        return max(2, self.n_columns)

    @property
    def lens(self) -> Lens:
        """The default lens of states: Confidence for confidences in a log of a language model."""
        lens = None if self.layout.log is None else self.layout.log.lens
        return CANONICAL if lens is None else lens

    @property
    def n_columns(self) -> int:
        if self._n_columns is None:
            raise FileError("there are no rows, expected one for each sample")
        return max(1, self._n_columns)

    def chunks(self, rows: int, start: int = 0) -> Iterator[Rows]:
        rows, start = check_integer("rows", rows, 1), check_integer("start", start, 0)
        return self._chunks(rows, start)

    def chunks_for(self, options: SharedOptions, rows: int, start: int = 0) -> Iterator[tuple[Any, Any, Any]]:
        """Yield chunks with clusters for `update` of a state with these options.

        A `Classification` is not checked again. Clusters are None if there are none.
        """
        if isinstance(lens := getattr(options, "lens", None), Lens):
            lens.check_columns(self.n_columns, "y_pred")
        # Without names of classes a state applies its own softmax.
        raw = not isinstance(options, StateOptions) or (options.from_logits and self.layout.classes is None)
        chunks = self._chunks(rows, start, for_states=not raw)
        if self.clusters is None:
            yield from ((true, pred, None) for true, pred in chunks)
            return
        for chunk, names in itertools.zip_longest(chunks, self.clusters._chunks(rows, start, are_labels=True)):
            n, n_names = (0 if part is None else len(part[0]) for part in (chunk, names))
            if n != n_names:
                raise FileError(f"there are {n_names} clusters for the {n} samples from {start} on; give one for each")
            start += n
            yield *chunk, names[0]

    def _chunks(self, rows: int, start: int, *, for_states: bool = False, are_labels: bool = False) -> Iterator[Rows]:
        pieces: list[Rows] = []
        count = 0
        number, first = self._locate(start)
        for reader in self._readers[number:]:
            with _naming(reader):
                cursor = RowCursor(reader, first, rows)
            first = 0
            try:
                while True:
                    with _naming(reader):
                        at = cursor.at
                        block = cursor.take(rows - count)
                        if block is None:
                            break
                        labels = block[Y_TRUE]
                        pieces.append(
                            (labels, labels) if are_labels else reader.layout.checked(block, at, for_states=for_states)
                        )
                    count += len(pieces[-1][0])
                    if count == rows:
                        yield _join_rows(pieces)
                        pieces, count = [], 0
            finally:
                cursor.close()
        if pieces:
            yield _join_rows(pieces)

    def read(self, start: int, stop: int) -> Rows:
        start = check_integer("start", start, 0)
        stop = check_integer("stop", stop, start + 1, hint=": a row beyond `start`")
        chunks = self._chunks(stop - start, start)
        try:
            rows = next(chunks, None)
        finally:
            chunks.close()  # type: ignore[attr-defined]
        count = 0 if rows is None else len(rows[0])
        if rows is None or count < stop - start:
            raise FileError(f"`stop` is {stop}, but there are {start + count} samples; read fewer")
        return rows

    def prepare(self, threads: int | None = None) -> Data:
        """Read all samples of one file, and check them together."""
        block = self.read_unchecked()
        with _naming(self._readers[0]):
            return self.layout.prepare(block, is_whole=True, threads=threads)

    def read_unchecked(self) -> Block:
        """Read all samples of one file without checks."""
        if len(self._readers) > 1:
            raise FileError(f"there are {len(self._readers)} files, which evaluate --stream reads as one; name one")
        (reader,) = self._readers
        with _naming(reader):
            if reader.n is not None:
                check_room(reader.n * max(1, self._n_columns or 0) * np.dtype(np.float64).itemsize)
            cursor = RowCursor(reader, 0, reader.n or rows_of_chunks(self.n_columns))
            block = cursor.take(reader.n or sys.maxsize)
            if block is None:
                raise FileError("there are no rows, expected one for each sample")
            cursor.take(1)  # check that there are no more labels
            return block

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for reader in self._readers:
            with _naming(reader):
                layout = reader.layout
                classes = layout.order or layout.class_names or layout.classes
                layout_text = f"{layout.describe()} {classes}" + " over their sums" * layout.normalize
                labels = [] if layout.stored_labels is None else file_identity(Path(str(layout.stored_labels.filename)))
                for text in (layout_text.encode("utf-8", "surrogateescape"), *reader.identity(), *labels):
                    digest.update(len(text).to_bytes(8, "little"))
                    digest.update(text)
        if self.clusters is not None:
            digest.update(self.clusters.fingerprint().encode())
        return digest.hexdigest()

    def describe(self) -> str:
        first, last = self._readers[0].printable_place, self._readers[-1].printable_place
        files = f"{len(self._readers)} files, {first} to {last}" if len(self._readers) > 1 else first
        n = "unknown number of" if self.n is None else str(self.n)
        classes = f", {self.n_classes} classes" if self.prediction is None else ""
        name = None if self.clusters is None else self.clusters.layout.targets[0]
        clusters = {None: "", Y_TRUE: ", with clusters"}.get(name, f", clusters in {name!r}")
        return f"{files}{': ' if first else ''}{n} samples{classes}; {self.layout.describe()}{clusters}"

    def summed(self, **options: Any) -> CalibrationState | ForecastState:
        state: CalibrationState | ForecastState
        if self.clusters is not None:  # the SKCE over pairs of different clusters needs flips
            options = {name: value for name, value in options.items() if (name, value) != ("n_resamples", 0)}
            options["clusters"] = True
        if self.prediction is None:
            options["lens"] = options.get("lens") or self.lens
            state = CalibrationState(self.n_classes, **options)
        else:
            check_of_classes(self.prediction, lens=options.pop("lens", None))
            state = ForecastState(**options)
        for true, pred, clusters in self.chunks_for(state.options, rows_of_chunks(self.n_columns)):
            state.update(true, pred, clusters=clusters)
        if not state.n_samples:
            raise FileError(f"there are no samples in the source, {self.describe()}; pass one with samples")
        return state

    def summed_together(self, models: Mapping[str, Source], **options: Any) -> ComparisonState:
        for name, model in models.items():
            if model.prediction is not None:
                raise ValueError(
                    f"`y_true[{name!r}]` has {model.prediction} distributions, and only models of class probabilities "
                    "are compared in pieces; or pass the samples themselves: y, p = source.read(0, n)"
                )
        together = ModelSources(models)
        state = ComparisonState(together.n_classes, together.names, **options)
        for true, preds, _ in together.chunks_for(state.options, rows_of_chunks(together.n_columns)):
            state.update(true, preds)
        return state

    def _locate(self, row: int) -> tuple[int, int]:
        """Return the number of the reader with a row, and the number of the row in it."""
        for number, reader in enumerate(self._readers):
            if row == 0 or (number == len(self._readers) - 1 and reader.n is None):
                return number, row
            count = self._count(number)
            if row < count:
                return number, row
            row -= count
        if row == 0:
            return len(self._readers), 0
        raise FileError(f"`start` is {row} rows beyond the {self.n} samples there are")

    def _count(self, number: int) -> int:
        """Return the number of rows of a reader, reading all if it is unknown."""
        reader = self._readers[number]
        if reader.n is None and number not in self._counts:
            with _naming(reader):
                cursor = RowCursor(reader, 0, CHUNK_ROWS)
                while cursor.take(CHUNK_ROWS) is not None:
                    pass
                self._counts[number] = cursor.at
        return self._counts[number] if reader.n is None else reader.n


def rows_of_chunks(n_columns: int) -> int:
    """Return how many rows to read at a time, so that reading takes a small share of the time."""
    return max(1, min(CHUNK_ROWS, CHUNK_VALUES // n_columns))


def _check_same(reader: Reader, first: Reader) -> None:
    """Check that two files hold the same kind of predictions."""

    def contents(reader: Reader) -> tuple[str, ...]:
        layout = reader.layout
        n_columns = first.n_columns if reader.n_columns is None else reader.n_columns
        return (
            "class probabilities" if layout.family is None else f"{layout.family} distributions",
            f"{n_columns} columns of predictions",
            f"the classes {layout.classes or layout.class_names}",
            "logits" if layout.from_logits else "no logits",
        )

    for value, expected in zip(contents(reader), contents(first), strict=True):
        if value != expected:
            raise FileError(
                f"{reader.printable_place} has {value}, {first.printable_place} {expected}; files of one source hold "
                "the same"
            )


@contextmanager
def _naming(reader: Reader) -> Iterator[None]:
    """Name the file in errors."""
    try:
        yield
    except (FileError, TypeError) as error:
        if not reader.place:
            raise
        raise type(error)(f"{reader.printable_place}: {error}") from None


def _join_rows(pieces: list[Rows]) -> Rows:
    if len(pieces) == 1:
        return pieces[0]
    true, pred = zip(*pieces, strict=True)
    joined = _join_predictions(pred[0], pred)
    if isinstance(joined, Classification):
        return joined.labels, joined
    return arrays.namespace(true[0]).concat(true, axis=0), joined


@singledispatch
def _join_predictions(first: Any, pieces: Sequence[Any]) -> Any:
    return arrays.namespace(first).concat(pieces, axis=0)


@_join_predictions.register
def _(first: Classification, pieces: Sequence[Classification]) -> Classification:
    pieces = [piece.in_order(Classes(first.class_names, "columns")) for piece in pieces]
    return dataclasses.replace(
        first,
        labels=np.concatenate([piece.labels for piece in pieces]),
        given=np.concatenate([piece.given for piece in pieces]),
        input_epsilon=min(piece.input_epsilon for piece in pieces),
    )


@_join_predictions.register
def _(first: Distribution, pieces: Sequence[Distribution]) -> Distribution:
    if any(getattr(piece, "weights", None) is not None for piece in pieces):
        family = Family.of(first)
        return family.distribution(np.concatenate([family.columns(piece) for piece in pieces]))
    xp = arrays.namespace(getattr(first, FIELDS[type(first)][0]))
    fields = {name: xp.concat([getattr(piece, name) for piece in pieces], axis=0) for name in FIELDS[type(first)]}
    return first._with(**fields)
