"""Rows done, rate and time left of a run: a line that changes on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class RowProgress:
    """Says how far a run is."""

    def __init__(self, stream: TextIO, total: int | None, interval: float, delay: float):
        self._stream, self._total, self._interval = stream, total, interval
        self._terminal = stream.isatty()
        self._begin = time.monotonic()
        self._next = self._begin + delay
        self._is_visible = False

    def __call__(self, n_rows: int, skipped: int) -> None:
        """Show progress after `n_rows` rows of this run, and `skipped` rows of runs before."""
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
    """A line on a terminal, from two seconds on; where standard error is none, one each `log_seconds` (None: none)."""
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
