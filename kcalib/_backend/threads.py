"""How many threads a sweep and BLAS may use, and progress of long sweeps."""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from kcalib import _native
from kcalib._backend.control_groups import MEMBERSHIP, MOUNTS, control_groups
from kcalib._backend.options import OptionError, check_integer

MOST_THREADS = 4096


def resolve_threads(threads: Any = None) -> int:
    """Return the number of threads: `threads` if given, else OMP_NUM_THREADS or all processors, capped by
    the CPUs of the affinity mask and of the control group, shared with the sweeps that other
    Python threads are running."""
    if threads is not None:
        return _startable(check_integer("threads", threads, 1, MOST_THREADS))
    allowed = _native.max_threads()
    if allowed == 1:
        return 1
    return max(1, min(allowed, processors()) // (1 + _native.running_sweeps()))


def processors() -> int:
    """CPUs of the affinity mask, or of the control group."""
    return min(_affinity(), _cgroup_quota())


def _startable(threads: int) -> int:
    """So many, if more than there are CPUs can be started: OpenMP would end the process at a limit of the system's."""
    if threads <= _affinity():
        return threads
    over, started = threading.Event(), []
    waiting = _native_threads()
    try:
        for _ in range(threads - 1 - waiting):  # the calling thread is one of them
            thread = threading.Thread(target=over.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        raise OptionError(
            "threads",
            f"is {threads}, but only {len(started) + waiting + 1} can be started, by a limit on processes or memory; "
            f"pass fewer, such as the number of CPUs, {_affinity()}",
        ) from None
    finally:
        over.set()
        for thread in started:
            thread.join()
    return threads


def _native_threads() -> int:
    """Threads that compiled code has started: OpenMP's wait for the next sweep."""
    try:
        return max(0, len(os.listdir("/proc/self/task")) - threading.active_count())
    except OSError:  # no Linux
        return 0


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def _cgroup_quota(mounts: Path = MOUNTS, membership: Path = MEMBERSHIP) -> int:
    """CPUs of the smallest quota of the process's control group and those above it, rounded up.

    Read once in a process: the files take longer than a small sweep.
    """
    quota = min(map(_own_quota, control_groups("cpu", mounts, membership)), default=math.inf)
    return sys.maxsize if quota == math.inf else max(1, math.ceil(quota))


def _own_quota(group: Path) -> float:
    """CPUs of one control group's own quota; inf if it has none."""
    for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):  # version 2, 1
        try:
            quota, period = " ".join((group / file).read_text() for file in files).split()
            return int(quota) / int(period) if int(quota) > 0 else math.inf
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return math.inf


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


class TerminalProgress:
    """A progress bar if standard error is a terminal, else None; cleared at the end."""

    def __init__(self, label: str = "kcalib") -> None:
        stream = sys.stderr
        self._bar = ProgressBar(label, stream) if stream is not None and stream.isatty() else None

    def __enter__(self) -> ProgressBar | None:
        return self._bar

    def __exit__(self, *fault: object) -> None:
        if self._bar is not None:
            self._bar.close()


_blas_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a forked process has neither the lock nor the limit of a thread that it lacks
    os.register_at_fork(
        before=_blas_lock.acquire, after_in_parent=_blas_lock.release, after_in_child=_blas_lock.release
    )


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread, by ``with`` or as a decorator.

    Limits are the process's with some libraries, the calling thread's with others. One Python thread at a time is
    inside, so that each restores what was there before.
    """
    with _blas_lock, _blas().limit(limits=1):
        yield


@functools.cache
def _blas() -> Any:
    """Return threadpoolctl's controller of the BLAS libraries of NumPy and SciPy."""
    import scipy.linalg  # noqa: F401  # loads SciPy's BLAS, which the controller would miss later
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


@contextmanager
def sweeping(threads: Any = None) -> Iterator[_native.Sweep]:
    """A sweep with so many threads, and its progress on a terminal."""
    with TerminalProgress() as progress:
        yield _native.Sweep(resolve_threads(threads), None, progress)


def threads_for(values: int, threads: Any) -> int:
    """Threads for one pass over that many values: few are done before a second thread is awake."""
    return resolve_threads(threads) if values > 100_000 else 1
