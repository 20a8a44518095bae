"""Files that users name: names in messages, special files, atomic writing, and locks."""

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
UNFINISHED = ".part"  # suffix of files that are being written
LOCK = ".lock"  # suffix of files that lock others
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
    """Return a name on one line, with control characters escaped as by `repr`."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def printable_lines(text: str) -> str:
    """Return a text with control characters other than newlines, and those that change direction, escaped."""
    return "\n".join(map(printable, text.split("\n")))


def describe_special_file(path: Any) -> str | None:
    """Return the kind of a pipe, device or socket, whose reading might never end; None for files."""
    mode = os.stat(path).st_mode
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), None)


def write_whole(path: Any, data: bytes) -> None:
    """Write a file as a whole or not at all.

    The bytes are written to a new file next to it, which replaces it when it is on disk.
    """
    target = Path(os.path.realpath(os.fspath(path)))  # replace the target of a link
    if target.is_dir():
        raise ValueError(f"{printable(os.fspath(path))} is a folder, expected the name of a file")
    if target.exists() and not target.is_file():  # do not replace devices
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
    """Create a locked file next to the target; the lock shows that its writer lives."""
    while True:
        unfinished = target.with_name(f".{target.name}.{secrets.token_hex(6)}{UNFINISHED}")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        if lock_file(descriptor) is not False and unfinished.exists():
            return descriptor, unfinished
        os.close(descriptor)  # another process removed it as abandoned before it was locked


def lock_file(descriptor: int) -> bool | None:
    """Lock an open file and return whether that worked; None on a system without locks."""
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
    """Remove files that killed processes have left; files of living processes are locked."""
    for unfinished in target.parent.glob(f".{glob.escape(target.name)}.*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(unfinished, os.O_RDWR)
            try:
                if lock_file(descriptor):
                    unfinished.unlink()
            finally:
                os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Write the folder entries to disk, if the file system can."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def hold_file(path: Any, wait_seconds: float = 0.0) -> Iterator[None]:
    """Keep other processes from changing a file between reading and writing it.

    A file next to it is locked; it exists while a process holds or awaits the lock. The lock of a dead process is free.
    There is a warning if the file system has no locks, and a FileBusyError if another process holds the lock after
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
            raise FileBusyError(errno.EAGAIN, "is being changed by another process; try again later", os.fspath(path))
        time.sleep(POLL_SECONDS)
    try:
        if is_locked is None:
            warn(
                f"the file system of {printable(os.fspath(path))} has no locks, and simultaneous changes are lost; "
                "let one process at a time change the file",
                UserWarning,
            )
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes no open file: the empty one stays
            lock.unlink()
        os.close(descriptor)


def _is_file(descriptor: int, path: Path) -> bool:
    """Return whether the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
