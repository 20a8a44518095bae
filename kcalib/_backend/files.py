"""Names of files as messages show them, what is no file although it has a name of one, and files written whole.

Called by whatever opens files that users name: sources, states, pictures, the command.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import secrets
import stat
from pathlib import Path
from typing import Any

UNFINISHED = ".part"  # suffix of a file that is being written

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def printable(text: Any) -> str:
    """A name in one line that no terminal obeys: what cannot be printed is escaped, as Python's `repr` does it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def endless(path: Any) -> str | None:
    """What a name stands for if it is no file, and reading it might wait forever or never end; None if it is one.

    Raises
    ------
    OSError
        The system's own error if there is nothing of that name.
    """
    mode = os.stat(path).st_mode
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), None)


def write_whole(path: Any, data: bytes) -> None:
    """Put the bytes into the file, all of them or none: until then what was there stays.

    They are written to a new file beside it, which takes its place when it is on the disk.

    Raises
    ------
    OSError
        If there is no such folder, no right to write there, or no space; the file is as it was then.
    ValueError
        If it is a folder, a device or a pipe.
    """
    target = Path(os.path.realpath(os.fspath(path)))  # of a link the file that it leads to is replaced
    if target.is_dir():
        raise ValueError(f"{printable(os.fspath(path))} is a folder, expected the name of a file")
    if target.exists() and not target.is_file():  # it would be replaced, too
        raise ValueError(f"{printable(os.fspath(path))} is a device or a pipe, expected the name of a file")
    remove_unfinished(target)
    beside = None
    try:
        descriptor, beside = _begun(target)
        with open(descriptor, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(beside, target.stat().st_mode & 0o7777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(beside, target)
    except BaseException:
        if beside is not None:
            with contextlib.suppress(OSError):
                beside.unlink()
        raise
    _keep_name(target.parent)


def _begun(target: Path) -> tuple[int, Path]:
    """A new file beside the target, open and locked as long as it is: by this others know that its writer lives."""
    while True:
        beside = target.with_name(f".{target.name}.{secrets.token_hex(6)}{UNFINISHED}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        if _locked(descriptor) is not False and beside.exists():
            return descriptor, beside
        os.close(descriptor)  # another process has taken it for one that was left, before it was locked


def _locked(descriptor: int) -> bool | None:
    """Whether the file is locked by us now; None on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def remove_unfinished(target: Path) -> None:
    """Remove what killed processes have left beside the file; what a living one is writing is locked."""
    for beside in target.parent.glob(f".{glob.escape(target.name)}.*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            descriptor = os.open(beside, os.O_RDWR)
            try:
                if _locked(descriptor):
                    beside.unlink()
            finally:
                os.close(descriptor)


def _keep_name(folder: Path) -> None:
    """That the folder knows the file by its name must be on the disk, too; not all file systems can be asked for it."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
