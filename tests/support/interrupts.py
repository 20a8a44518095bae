"""Ctrl-C in the middle of a call, as tests send it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest


def _busy() -> float:
    """Seconds that the main thread, which is to notice a signal, has computed: what others do has no part in them."""
    if hasattr(time, "pthread_getcpuclockid"):
        return time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident or 0))
    return time.monotonic()


def stops_within_a_second(call: Callable[[], object], after: float = 0.5) -> None:
    """Interrupt a call once it has gone on for `after` seconds; it must end by KeyboardInterrupt.

    From there on the thread that calls may compute for a second, on a machine that others use, too.
    """
    sent: list[tuple[float, float]] = []

    def interrupt() -> None:
        sent.append((_busy(), time.monotonic()))
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs have not
    timer = threading.Timer(after, interrupt)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
        busy, clock = _busy() - sent[-1][0], time.monotonic() - sent[-1][1]
        assert busy < 1.0 and clock < 20.0, (busy, clock)
    finally:  # no signal is to reach another test
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, before)
