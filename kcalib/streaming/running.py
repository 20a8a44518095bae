"""`run` adds a source to a state chunk by chunk, with checkpoints, signals and progress.

The file of a state is the checkpoint. It also holds a note of the run (`Note`), by which a run of another source or of
other rows is refused. A resumed run continues at the first missing row.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, TypeVar

from kcalib._backend.files import hold_file, printable
from kcalib._backend.options import OptionError, check_integer, check_positive
from kcalib._input.source import Source, rows_of
from kcalib.streaming._files.format import Content, pack_content, read, unpack, write
from kcalib.streaming._row_sums.rows import PART
from kcalib.streaming._state import ModelState
from kcalib.streaming.comparison import ComparisonState
from kcalib.streaming.forecasts import ForecastState
from kcalib.streaming.loading import state_of
from kcalib.streaming.sources.model_sources import ModelSources, chunks_for
from kcalib.streaming.state import CalibrationState

AnyState = CalibrationState | ForecastState | ComparisonState
S = TypeVar("S", bound=ModelState)
State = TypeVar("State", bound=AnyState)
Samples = Source | ModelSources

CHUNK_ROWS = 65536
CHUNK_VALUES = 2**22  # limit for the predictions of a chunk
FIRST_SLICE = 1024  # rows of the first slice, whose time is measured
SLICE_SECONDS = 0.25  # signals wait for the end of a slice
SHARE_OF_SAVING = 0.05  # of the time of a run


class RunStopped(Exception):
    """A signal stopped a run after its state was saved. Continue by the same call with ``resume=True``.

    Attributes
    ----------
    signal : signal.Signals
        SIGTERM or SIGINT.
    checkpoint : pathlib.Path
        The file with the state.
    row : int
        Rows of the source before this one are in the state.
    """

    def __init__(self, number: signal.Signals, checkpoint: Path, row: int) -> None:
        super().__init__(number, checkpoint, row)
        self.signal, self.checkpoint, self.row = number, checkpoint, row

    def __str__(self) -> str:
        return (
            f"stopped by {self.signal.name} before row {self.row} of the source; the state is in "
            f"{str(self.checkpoint)!r}; continue by the same call with resume=True"
        )


@dataclass(frozen=True)
class Note:
    """What a checkpoint says about the run that wrote it."""

    source: str  # its description
    fingerprint: str
    begin: int  # rows of the source
    end: int | None
    part: int
    first_row: int  # number of the source's row 0
    finished: bool

    def difference(self, other: Note) -> str | None:
        """Describe the difference to another run; None if it is the same."""
        if self.fingerprint != other.fingerprint:
            same = self.source == other.source
            return f"its source is {self.source}, {'as it was before a change' if same else f'not {other.source}'}"
        if (self.begin, self.end) != (other.begin, other.end):
            return f"its rows are {self._rows()}, not {other._rows()}"
        if self.part != other.part:
            return f"its part is {self.part}, not {other.part}"
        if self.first_row != other.first_row:
            return f"its row 0 has the number {self.first_row}, not {other.first_row}"
        return None

    def _rows(self) -> str:
        return f"{self.begin}:{'' if self.end is None else self.end}"

    @classmethod
    def of(cls, entries: dict[str, Any]) -> Note:
        """Return the note in a file, without entries that later versions have added."""
        return cls(**{field.name: entries[field.name] for field in fields(cls)})


def run(
    state: State,
    source: Source | Mapping[str, Source],
    *,
    checkpoint: str | PathLike[str] | None = None,
    resume: bool = False,
    rows: tuple[int, int | None] | None = None,
    first_row: int = 0,
    chunk_rows: int = CHUNK_ROWS,
    checkpoint_seconds: float = 0.0,
    log_seconds: float | None = None,
) -> State:
    """Update a state with the rows of a source in O(chunk) memory, so that an interrupted run can continue.

    With a `checkpoint` the state is saved after a chunk if saving takes at most 5 % of the time, and at the end. A
    process that is killed loses the rows after the last save. On SIGTERM or SIGINT the run finishes the chunk at hand,
    which takes about a quarter of a second, saves the state and raises `RunStopped`. A second SIGINT stops at once. A
    run that was stopped or killed and resumed returns the same state as an uninterrupted one, bit for bit.

    Parameters
    ----------
    state : CalibrationState, ForecastState or ComparisonState
        The state to update, in place.
    source : Source, or mapping of str to Source
        See `kcalib.streaming.source`. For a `ComparisonState` one source for each model, with the same labels.
    checkpoint : path-like, optional
        File for the state. It can be loaded, merged and shown like any other.
    resume : bool
        Continue from the checkpoint if it exists, and return its state. Without `resume` an existing file is refused.
    rows : tuple of int, optional
        Read the rows of the source from the first number up to but not including the second (None: to the end).
        Default: all.
    first_row : int
        Number of row 0 of the source, relative to the part of the state, see `CalibrationState.update`. Rows keep their
        numbers of the source, so states of different `rows` can be merged. A second source for the same state needs
        another number.
    chunk_rows : int
        Maximum number of rows of a chunk. It does not change the result.
    checkpoint_seconds : float
        Minimum time between two saves.
    log_seconds : float, optional
        If standard error is not a terminal, write a line with rate and remaining time there at this interval. A
        terminal shows such a line after two seconds.

    Returns
    -------
    CalibrationState, ForecastState or ComparisonState
        `state`, or the state from the checkpoint.

    Raises
    ------
    RunStopped
        On SIGTERM or SIGINT, if there is a checkpoint.
    ValueError
        If a value is wrong (the message names its row); if the checkpoint belongs to another run; if rows are not in
        the source; if the state has some of the rows already; if labels of models differ.
    TypeError
        If the state is of one model and there are several sources, or vice versa.
    FileExistsError
        If the checkpoint exists and `resume` is False.
    OSError
        If the checkpoint cannot be written; an existing one is kept. BlockingIOError if another process uses it.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.streaming import CalibrationState, run, source
    >>> rng = np.random.default_rng(0)
    >>> p = rng.dirichlet(np.ones(3), size=1000)
    >>> y = (rng.uniform(size=(1000, 1)) > np.cumsum(p, axis=1)).sum(axis=1)
    >>> batches = [(y[:600], p[:600]), (y[600:], p[600:])]
    >>> run(CalibrationState(3, n_resamples=0), source(batches)).n_samples
    1000
    """
    samples = _samples(state, source)
    if log_seconds is not None:
        log_seconds = check_positive("log_seconds", log_seconds)
    if checkpoint_seconds != 0:
        checkpoint_seconds = check_positive("checkpoint_seconds", checkpoint_seconds, ", or 0")
    begin, end = checked_rows(rows, samples.n)
    first_row = check_integer("first_row", first_row, 0)
    note = Note(samples.describe(), samples.fingerprint(), begin, end, state.options.part, first_row, finished=False)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and path.is_dir():
        raise OptionError("checkpoint", f"is {str(path)!r}, a folder; name a file in it")
    with nullcontext() if path is None else hold_file(path):
        if path is not None and path.exists():
            if not resume:
                raise FileExistsError(
                    f"the checkpoint {str(path)!r} exists; pass resume=True to continue, or remove it"
                )
            state = _resumed(state, path, note)
        return feed(
            state, samples, note, path,
            resume=resume, chunk_rows=chunk_rows, checkpoint_seconds=checkpoint_seconds, log_seconds=log_seconds,
        )  # fmt: skip


def _samples(state: AnyState, source: Any) -> Samples:
    """Check the source of a run."""
    if isinstance(state, ComparisonState):
        if not isinstance(source, Mapping):
            raise TypeError(f"`source` is a {type(source).__name__}, expected a mapping of models to sources")
        if source.keys() != set(state.models):
            raise ValueError(
                f"`source` has the models {list(source)}, expected those of the state: {list(state.models)}"
            )
        return ModelSources({name: source[name] for name in state.models})
    if not isinstance(source, Source):
        raise TypeError(f"`source` is a {type(source).__name__}, expected the result of kcalib.streaming.source")
    return source


def loaded(path: Path) -> tuple[Any, Note | None]:
    """Return the state in a file and the note of the run that wrote it."""
    name = printable(path)
    content = unpack(read(path), name)
    return state_of(content, name), None if content.run is None else Note.of(content.run)


def _save(state: AnyState, path: Path, note: Note) -> None:
    write(path, pack_content(Content(state._kind, *state._content(), asdict(note))))


def next_row(state: ModelState) -> int:
    """Return the number after the last row of the state's part, relative to its start."""
    begin = state.options.part * PART
    return max((stop - begin for _, stop in state.rows if begin < stop <= begin + PART), default=0)


def with_part(state: S, part: int) -> S:
    """Return the state with the same rows; new rows are numbered in another part."""
    return state._from(replace(state.options, part=part), state._arrays())  # type: ignore[type-var]


def checked_rows(rows: Any, n: int | None) -> tuple[int, int | None]:
    """Return the first and last row of a run over a source of `n` rows (None: unknown)."""
    if rows is None:
        return 0, n
    try:
        begin, end = rows
    except (TypeError, ValueError):
        raise TypeError(f"`rows` is {rows!r}, expected a pair of row numbers such as (0, 1000)") from None
    begin = check_integer("rows", begin, 0)
    if end is not None:
        end = check_integer("rows", end, begin, hint=": the end, which is exclusive")
    if n is not None and (begin > n or (end is not None and end > n)):
        raise OptionError("rows", f"is {begin}:{'' if end is None else end}, but the source has {n} rows")
    end = n if end is None else end
    return begin, end


def _resumed(state: State, path: Path, note: Note) -> State:
    """Return the state of a checkpoint, or refuse it if it belongs to another run."""
    saved_state, saved_note = loaded(path)
    fault = f"the checkpoint {str(path)!r} belongs to another run"
    remedy = "name another checkpoint, or remove this one to start over"
    if not isinstance(saved_state, type(state)):
        raise ValueError(f"{fault}: it holds a {type(saved_state).__name__}; {remedy}")
    options = state.options if state.n_samples else state.options.with_classes_of(saved_state.options)
    reason = saved_state.options.difference(options)
    if reason is not None:
        raise ValueError(f"{fault}: {reason.partition(';')[0]}; {remedy}")
    reason = "it has no note of a run" if saved_note is None else saved_note.difference(note)
    if reason is not None:
        raise ValueError(f"{fault}: {reason}; {remedy}")
    missing = next((rows for rows in state.rows if not _holds(saved_state.rows, rows)), None)
    if missing is not None:
        raise ValueError(
            f"{fault}: it has no rows {missing[0]} to {missing[1] - 1}, which the given state has; {remedy}"
        )
    return saved_state


def _holds(intervals: tuple[tuple[int, int], ...], rows: tuple[int, int]) -> bool:
    return any(start <= rows[0] and rows[1] <= stop for start, stop in intervals)


def feed(
    state: State,
    source: Samples,
    note: Note,
    path: Path | None,
    *,
    resume: bool,
    chunk_rows: int = CHUNK_ROWS,
    checkpoint_seconds: float = 0.0,
    log_seconds: float | None = None,
) -> State:
    """Update `state` with the rows of `note` that it does not have yet, and save it to `path`. See `run`."""
    chunk_rows = check_integer("chunk_rows", chunk_rows, 1)
    chunk_rows = max(1, min(chunk_rows, CHUNK_VALUES // source.n_columns))
    begin = row = _place(state, note) if resume else note.begin
    finished = note.end is not None and begin >= note.end
    with ExitStack() as stack:
        stop = stack.enter_context(note_signals()) if path is not None else StopRequest()
        total = None if note.end is None else note.end - note.begin
        progress = stack.enter_context(row_progress(total, log_seconds))
        saver = _Saver(state, note, path, checkpoint_seconds)
        for y_true, y_pred, clusters in (
            () if finished else _slices(_chunks(source, state, chunk_rows, begin), begin, note.end, chunk_rows)
        ):
            if clusters is None and state.options.clusters:
                raise ValueError(
                    "the state was made with clusters=True, but the source has no clusters; open it with "
                    "clusters=NAME of their array or column"
                )
            of_rows = {} if clusters is None else {"clusters": clusters}
            state.update(y_true, y_pred, first_row=note.first_row + row, **of_rows)
            row += len(y_true)
            if progress is not None:
                progress(row - begin, begin - note.begin)
            if stop.signal is not None:
                break
            saver.after_chunk()
        else:
            finished = True
        saver.save(finished or row == note.end)
        if stop.signal is not None:
            assert path is not None  # signals are noted only if there is a checkpoint
            raise RunStopped(stop.signal, path, row)
    return state


def _place(state: AnyState, note: Note) -> int:
    """Return the first row of the run that the state does not have."""
    number = state.options.part * PART + note.first_row
    for start, stop in state.rows:
        if start <= number + note.begin < stop:
            return int(stop - number if note.end is None else min(stop - number, note.end))
    return note.begin


def _chunks(source: Samples, state: AnyState, rows: int, start: int) -> Iterator[tuple[Any, Any, Any]]:
    if isinstance(source, ModelSources):
        return source.chunks_for(state.options, rows, start)
    return chunks_for(source, state.options, rows, start)


def _slices(
    chunks: Iterator[tuple[Any, Any, Any]], begin: int, end: int | None, chunk_rows: int
) -> Iterator[tuple[Any, Any, Any]]:
    """Split chunks into slices that take about `SLICE_SECONDS`."""
    row, size = begin, min(FIRST_SLICE, chunk_rows)
    for y_true, y_pred, clusters in chunks:
        at, length = 0, len(y_true) if end is None else min(len(y_true), end - row)
        while at < length:
            stop = min(length, at + size - row % size)
            before = time.perf_counter()
            yield y_true[at:stop], _part(y_pred, at, stop), None if clusters is None else clusters[at:stop]
            seconds = time.perf_counter() - before
            fitting = SLICE_SECONDS * (stop - at) / max(seconds, 1e-6)
            size = max(1, min(2 * size, chunk_rows, 2 ** int(math.log2(max(1.0, fitting)))))
            row, at = row + stop - at, stop
        if row == end:
            return


def _part(y_pred: Any, start: int, stop: int) -> Any:
    """Return rows of the predictions of one model or of each model."""
    if isinstance(y_pred, dict):
        return {name: rows_of(predictions, slice(start, stop)) for name, predictions in y_pred.items()}
    return rows_of(y_pred, slice(start, stop))


class _Saver:
    """Saves the state from time to time."""

    def __init__(self, state: AnyState, note: Note, path: Path | None, least_seconds: float):
        self._state, self._note, self._path, self._least = state, note, path, least_seconds
        self._cost = 0.0  # seconds of the last save
        self._last = time.perf_counter()

    def after_chunk(self) -> None:
        since = time.perf_counter() - self._last
        if self._path is not None and since >= max(self._least, self._cost / SHARE_OF_SAVING):
            self.save(finished=False)

    def save(self, finished: bool) -> None:
        if self._path is None:
            return
        before = time.perf_counter()
        _save(self._state, self._path, replace(self._note, finished=finished))
        self._last = time.perf_counter()
        self._cost = self._last - before


class StopRequest:
    """The first signal that asked to stop, or None."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._interrupts = 0

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; a second SIGINT interrupts at once."""
        if self.signal is None:
            self.signal = signal.Signals(number)
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            raise KeyboardInterrupt


@contextmanager
def note_signals() -> Iterator[StopRequest]:
    """Note SIGTERM and SIGINT in the body, and restore the previous handlers."""
    request = StopRequest()
    before: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                handler = signal.getsignal(number)
                if handler is not None and handler != signal.SIG_IGN:
                    before[number] = handler
                    signal.signal(number, request.note)
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class RowProgress:
    """Shows the progress of a run."""

    def __init__(self, stream: TextIO, total: int | None, interval: float, delay: float):
        self._stream, self._total, self._interval = stream, total, interval
        self._terminal = stream.isatty()
        self._begin = time.monotonic()
        self._next = self._begin + delay
        self._is_visible = False

    def __call__(self, n_rows: int, skipped: int) -> None:
        """Show progress after `n_rows` rows of this run and `skipped` rows of previous runs."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._interval
        line = "kcalib: " + format_progress(n_rows, skipped, self._total, now - self._begin)
        if self._terminal:
            self._is_visible = True
            self._stream.write(f"\r{line}\033[K")
        else:
            self._stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        self._stream.flush()

    def close(self) -> None:
        if self._is_visible:
            self._stream.write("\r\033[K")
            self._stream.flush()


def format_progress(n_rows: int, skipped: int, total: int | None, seconds: float) -> str:
    """Return rows, rate and time left in words."""
    rate = n_rows / max(seconds, 1e-9)
    if total is None:
        return f"{skipped + n_rows:,} rows, {rate:,.0f} rows/s"
    left = (total - skipped - n_rows) / max(rate, 1e-9)
    share = 100 * (skipped + n_rows) / max(total, 1)
    return f"{skipped + n_rows:,} of {total:,} rows ({share:.0f} %), {rate:,.0f} rows/s, {duration(left)} left"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


@contextmanager
def row_progress(total: int | None, log_seconds: float | None) -> Iterator[RowProgress | None]:
    """Show progress on a terminal after two seconds, or write a line to another stream each `log_seconds`."""
    stream = sys.stderr
    if stream is not None and stream.isatty():
        progress = RowProgress(stream, total, interval=0.1, delay=2.0)
        try:
            yield progress
        finally:
            progress.close()
    elif stream is not None and log_seconds is not None:
        yield RowProgress(stream, total, interval=log_seconds, delay=log_seconds)
    else:
        yield None
