"""Names of files as messages show them, what is no file although it has a name of one, and files written whole.

Called by whatever opens files that users name: sources, states, pictures, the command.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kcalib._backend.warnings import warn

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

REPLACES_OPEN_FILES = os.name != "nt"  # Windows does not
UNFINISHED = ".part"  # suffix of a file that is being written
LOCK = ".lock"  # suffix of a file beside one that is being changed
POLL_SECONDS = 0.02  # between two attempts to lock a file

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class FileBusyError(BlockingIOError):
    """A file that another process is changing."""


def printable(text: Any) -> str:
    """Return a name in one line, with control characters escaped as by Python's `repr`."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def printable_lines(text: str) -> str:
    """Return a text of several lines with all other control characters, and those that turn a text round, escaped."""
    return "\n".join(map(printable, text.split("\n")))


def describe_special_file(path: Any) -> str | None:
    """Return the kind of a pipe, device or socket, which reading might never end; None for files."""
    mode = os.stat(path).st_mode
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), None)


def write_whole(path: Any, data: bytes) -> None:
    """Put the bytes into the file, all of them or none: until then what was there stays.

    They are written to a new file beside it, which takes its place when it is on the disk.
    """
    target = Path(os.path.realpath(os.fspath(path)))  # of a link the file that it leads to is replaced
    if target.is_dir():
        raise ValueError(f"{printable(os.fspath(path))} is a folder, expected the name of a file")
    if target.exists() and not target.is_file():  # it would be replaced, too
        raise ValueError(f"{printable(os.fspath(path))} is a device or a pipe, expected the name of a file")
    remove_unfinished(target)
    unfinished = None
    try:
        descriptor, unfinished = _create_unfinished(target)
        with open(descriptor, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(unfinished, target.stat().st_mode & 0o7777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if not REPLACES_OPEN_FILES:  # elsewhere the file stays locked until it has its name
                file.close()
            os.replace(unfinished, target)
    except BaseException:
        if unfinished is not None:
            with contextlib.suppress(OSError):
                unfinished.unlink()
        raise
    _sync_folder(target.parent)


def _create_unfinished(target: Path) -> tuple[int, Path]:
    """Create a file beside the target and lock it, by which other processes know that its writer lives."""
    while True:
        unfinished = target.with_name(f".{target.name}.{secrets.token_hex(6)}{UNFINISHED}")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        if lock_file(descriptor) is not False and unfinished.exists():
            return descriptor, unfinished
        os.close(descriptor)  # another process has taken it for one that was left, before it was locked


def lock_file(descriptor: int) -> bool | None:
    """Lock an open file and say whether that worked; None on a system without locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def remove_unfinished(target: Path) -> None:
    """Remove files that killed processes have left; those of living ones are locked."""
    for unfinished in target.parent.glob(f".{glob.escape(target.name)}.*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(unfinished, os.O_RDWR)
            try:
                if lock_file(descriptor):
                    unfinished.unlink()
            finally:
                os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Write the folder's entries to the disk, where the file system can."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def hold_file(path: Any, wait_seconds: float = 0.0) -> Iterator[None]:
    """Keep other processes that hold the file from changing it, from before it is read until it is written.

    A file beside it is locked, which is there as long as a process holds or awaits it; the lock of a process that died
    is free. On a file system without locks there is a warning. A FileBusyError if another process still holds it after
    `wait_seconds`.
    """
    target = Path(os.path.realpath(os.fspath(path)))
    lock, end = target.with_name(f".{target.name}{LOCK}"), time.monotonic() + wait_seconds
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, os.fspath(path)) from None
        try:
            is_locked = lock_file(descriptor)
            # Whoever held it may have removed it in the meantime.
            if is_locked is None or (is_locked and _is_file(descriptor, lock)):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() >= end and not is_locked:
            raise FileBusyError(
                errno.EAGAIN, "is being changed by another process; try again when that has ended", os.fspath(path)
            )
        time.sleep(POLL_SECONDS)
    try:
        if is_locked is None:
            warn(
                f"the file system of {printable(os.fspath(path))} has no locks: what another process writes into that "
                "file at the same time is lost; let one process at a time change it",
                UserWarning,
            )
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes no open file: the empty one stays
            lock.unlink()
        os.close(descriptor)


def _is_file(descriptor: int, path: Path) -> bool:
    """Say whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
