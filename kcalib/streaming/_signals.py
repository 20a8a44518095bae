"""Signals that ask a run to stop: noted, so that the run can save what it has. `run` asks between chunks."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """The first signal that asked to stop, or None."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._interrupts = 0

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler. A second SIGINT does not wait any longer."""
        if self.signal is None:
            self.signal = signal.Signals(number)
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            raise KeyboardInterrupt


@contextmanager
def note_signals() -> Iterator[StopRequest]:
    """Note SIGTERM and SIGINT while the body runs; the handlers before are restored."""
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
