"""How many threads a CPU operator may use, and progress of long sweeps."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from kcalib import _native
from kcalib._options import check_integer


def resolve_threads(threads: Any = None) -> int:
    """The number of threads: `threads` if given, else OpenMP's (OMP_NUM_THREADS), capped by
    the CPUs of the affinity mask and of the control group."""
    if threads is not None:
        return check_integer("threads", threads, 1)
    return max(1, min(_native.max_threads(), _affinity(), _cgroup_quota()))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cgroup_quota(path: str = "/sys/fs/cgroup/cpu.max") -> int:
    try:
        with open(path) as file:
            quota, period = file.read().split()
        return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no control group, or "max": no limit
        return sys.maxsize


class ProgressBar:
    """A share of work done on a terminal, from two seconds on; silent anywhere else."""

    def __init__(self, label: str = "kcalib", stream: TextIO | None = None, delay: float = 2.0):
        self._label = label
        self._stream = sys.stderr if stream is None else stream
        self._start = time.monotonic()
        self._delay = delay
        self._shown = False

    def __call__(self, done: float) -> None:
        elapsed = time.monotonic() - self._start
        if elapsed < self._delay:
            return
        remaining = elapsed * (1 - done) / done if done > 0 else 0.0
        self._shown = True
        self._stream.write(f"\r{self._label}: {100 * done:3.0f} %, {remaining:.0f} s left   ")
        self._stream.flush()

    def close(self) -> None:
        if self._shown:
            self._stream.write("\r\033[K")
            self._stream.flush()


@contextmanager
def terminal_progress() -> Iterator[ProgressBar | None]:
    """A progress bar if standard error is a terminal, else None; cleared at the end."""
    stream = sys.stderr
    bar = ProgressBar(stream=stream) if stream is not None and stream.isatty() else None
    try:
        yield bar
    finally:
        if bar is not None:
            bar.close()
