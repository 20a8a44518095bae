"""Number of threads of sweeps and BLAS, and progress of long sweeps."""

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
from kcalib._backend.options import OptionError, check_integer

MOUNTS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

MOST_THREADS = 4096


def resolve_threads(threads: Any = None) -> int:
    """Return the number of threads of a sweep: `threads`, by default OMP_NUM_THREADS or the number of processors.

    The default is at most the number of CPUs of the affinity mask and the control group, divided by the number of
    concurrent sweeps of Python threads.
    """
    if threads is not None:
        return _check_startable(check_integer("threads", threads, 1, MOST_THREADS))
    allowed = _native.max_threads()
    if allowed == 1:
        return 1
    return max(1, min(allowed, processors()) // (1 + _native.running_sweeps()))


def processors() -> int:
    """Return the number of CPUs of the affinity mask, or of the control group if that is smaller."""
    return min(_affinity(), _cgroup_quota())


def _check_startable(threads: int) -> int:
    """Return `threads` if they can be started; OpenMP would end the process at a limit of the system."""
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
    """Return the number of threads of compiled code; OpenMP threads wait for the next sweep."""
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
    """Return the CPUs of the smallest quota of the process's control groups, rounded up."""
    quota = min(map(_own_quota, control_groups("cpu", mounts, membership)), default=math.inf)
    return sys.maxsize if quota == math.inf else max(1, math.ceil(quota))


def _own_quota(group: Path) -> float:
    """Return the CPUs of the quota of a control group; inf without a quota."""
    for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):  # version 2, 1
        try:
            quota, period = " ".join((group / file).read_text() for file in files).split()
            return int(quota) / int(period) if int(quota) > 0 else math.inf
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return math.inf


class ProgressBar:
    """Show the finished share of work on a terminal, after two seconds."""

    def __init__(self, label: str = "kcalib", stream: TextIO | None = None, delay: float = 2.0):
        self._label = label
        self._stream = sys.stderr if stream is None else stream
        self._start = time.monotonic()
        self._delay = delay
        self._is_visible = False

    def __call__(self, share: float) -> None:
        elapsed = time.monotonic() - self._start
        if elapsed < self._delay:
            return
        remaining = elapsed * (1 - share) / share if share > 0 else 0.0
        self._is_visible = True
        self._stream.write(f"\r{self._label}: {100 * share:3.0f} %, {remaining:.0f} s left   ")
        self._stream.flush()

    def close(self) -> None:
        if self._is_visible:
            self._stream.write("\r\033[K")
            self._stream.flush()


class TerminalProgress:
    """Return a progress bar if standard error is a terminal, else None; clear it at the end."""

    def __init__(self, label: str = "kcalib") -> None:
        stream = sys.stderr
        self._bar = ProgressBar(label, stream) if stream is not None and stream.isatty() else None

    def __enter__(self) -> ProgressBar | None:
        return self._bar

    def __exit__(self, *fault: object) -> None:
        if self._bar is not None:
            self._bar.close()


_blas_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a fork must not keep lock and limit of a lost thread
    os.register_at_fork(
        before=_blas_lock.acquire, after_in_parent=_blas_lock.release, after_in_child=_blas_lock.release
    )


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread, by ``with`` or as a decorator.

    Some libraries have a limit for the process, others for the thread. Only one Python thread at a time is inside, so
    that each restores the previous limit.
    """
    with _blas_lock, _blas().limit(limits=1):
        yield


@functools.cache
def _blas() -> Any:
    """Return the threadpoolctl controller of the BLAS libraries of NumPy and SciPy."""
    import scipy.linalg  # noqa: F401  # load the BLAS of SciPy before the controller
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


@contextmanager
def run_options(threads: Any = None) -> Iterator[_native.RunOptions]:
    """Yield options of a sweep with a number of threads, and show its progress on a terminal."""
    with TerminalProgress() as progress:
        yield _native.RunOptions(resolve_threads(threads), progress)


def threads_for(values: int, threads: Any) -> int:
    """Return the threads for a pass over `values` numbers; small passes take less time than waking a thread."""
    return resolve_threads(threads) if values > 100_000 else 1


def control_groups(controller: str, mounts: Path = MOUNTS, membership: Path = MEMBERSHIP) -> list[Path]:
    """Return the folders of the process's control groups for a controller, versions 1 and 2; none elsewhere."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # no control groups
        return []
    groups = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = [mounts, mounts / "unified"]  # version 2; beside version 1
        else:
            roots = [mounts / controller] if controller in controllers.split(",") else []
        for root in roots:
            group = root / path.lstrip("/")
            # In a container `path` may be that of the host, and only the mount is visible.
            groups += [folder for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return groups
