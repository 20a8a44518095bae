"""`--parallel`: workers of `kcalib evaluate` and `kcalib compare`, and how these end on signals."""

from __future__ import annotations

import argparse
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from kcalib._backend.files import printable
from kcalib._command.streams import BAD_INPUT, INTERRUPTED, SAVED, format_error, report

if TYPE_CHECKING:
    from kcalib.parallel import Parallel
    from kcalib.parallel.backend import Run


def parse_workers(text: str) -> tuple[str, str | int | None]:
    """Return the kind of workers and their number or address."""
    kind, _, rest = text.partition(":")
    if kind == "processes" and rest.isdecimal() and int(rest) > 0:
        return kind, int(rest)
    if kind == "dask" and re.fullmatch(r"//\S+:\d+", rest):
        return kind, f"tcp:{rest}"
    if text in ("dask", "mpi"):
        return kind, None
    raise argparse.ArgumentTypeError(f"{text!r}, expected processes:N, dask://HOST:PORT, dask or mpi")


def check_parallel(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go with --parallel."""
    for name, is_given in (
        ("--stream", arguments.stream),
        ("--rows", arguments.rows),
        ("--checkpoint-every", arguments.checkpoint_every),
        ("--part", getattr(arguments, "part", None) is not None),
    ):
        if is_given:
            arguments.usage_error(f"{name} is for reading in chunks and does not go with --parallel; leave one out")
    if arguments.resume and arguments.checkpoint is None:
        arguments.usage_error("--resume needs --checkpoint FILE")


def with_workers(arguments: argparse.Namespace, run: Callable[[], int]) -> int:
    """Call `run` with the transport in `arguments.parallel`, and return its exit code."""
    kind = arguments.parallel[0]
    try:
        arguments.parallel = _transport(arguments)
    except (ImportError, RuntimeError) as error:
        report(f"error: {format_error(error)}")
        return BAD_INPUT
    try:
        return _run_and_report(arguments.parallel, arguments.checkpoint, arguments.resume, run)
    finally:
        if kind == "mpi":  # before MPI_Finalize an exit code other than 0 would kill all ranks
            from mpi4py import MPI

            if not MPI.Is_finalized():
                MPI.Finalize()


def _run_and_report(transport: Parallel, journal: Path | None, resume: bool, run: Callable[[], int]) -> int:
    from kcalib.parallel import RankError

    def check_and_run() -> int:
        if journal is not None and journal.exists() and not resume:
            report(f"error: {printable(str(journal))} exists; continue by --resume, or remove it")
            return BAD_INPUT
        return run()

    stopped = SAVED if journal is not None else INTERRUPTED
    try:
        with _signals(transport.leads):
            return transport.agreed(check_and_run)
    except RankError:  # the first rank reports the reason
        return stopped
    except KeyboardInterrupt as stop:
        why = str(stop) or "interrupted"
        if journal is None:
            report(f"{why}; to be able to continue, give --checkpoint FILE")
        else:
            where = printable(str(journal))
            report(f"{why}: finished tiles are in {where}; continue by the same command with --resume")
        return stopped


def open_parallel(transport: Parallel | None) -> AbstractContextManager[Run | None]:
    """Open the workers for one call, or yield None without a transport."""
    from kcalib.parallel.argument import opened

    return nullcontext() if transport is None else opened(transport)


def _transport(arguments: argparse.Namespace) -> Parallel:
    from kcalib import parallel

    kind, where = arguments.parallel
    options: dict[str, Any] = {"threads": arguments.threads, "journal": arguments.checkpoint}
    if kind == "processes":
        return parallel.Processes(where, **options)
    return parallel.MPI(**options) if kind == "mpi" else parallel.Dask(where, **options)


@contextmanager
def _signals(leads: bool) -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C; on other ranks than the leading one ignore both."""
    handlers: dict[signal.Signals, Any] = {signal.SIGTERM: _stop}
    if not leads:
        handlers = {signal.SIGTERM: signal.SIG_IGN, signal.SIGINT: signal.SIG_IGN}
    if threading.current_thread() is not threading.main_thread():  # other threads cannot set handlers
        handlers = {}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}")
