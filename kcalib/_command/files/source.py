"""A file as named arrays or columns (`Source`): what each format's module makes, and `names` chooses from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


class FileError(ValueError):
    """Why a file holds no predictions. The message leaves naming the file to the caller."""


@dataclass(frozen=True)
class Choice:
    """The names that make up the predictions."""

    names: tuple[str, ...]
    logits: bool
    classes: tuple[str, ...] | None = None  # from suffixes that are no numbers


# Gives the predictions, and the labels if a name is given.
Reader = Callable[[Choice, str | None], tuple[np.ndarray, np.ndarray | None]]


@dataclass(frozen=True)
class Source:
    """The arrays or columns of a file."""

    noun: str  # "array" or "column"
    names: tuple[str, ...]
    read: Reader
    in_one_pass: bool = False  # several columns are best read together

    def inventory(self) -> str:
        shown = ", ".join(map(repr, self.names[:20])) + (", ..." if len(self.names) > 20 else "")
        return f"the file has the {self.noun}s {shown}" if self.names else f"the file has no {self.noun}s"


def named(source: Source, names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{source.noun} {names[0]!r}"
    return f"{source.noun}s {names[0]!r} to {names[-1]!r}"


_MAGIC = {  # the second: an archive of nothing
    ".npz": (b"PK\x03\x04", b"PK\x05\x06"),
    ".npy": (b"\x93NUMPY",),
    ".parquet": (b"PAR1",),
}


def check_content(path: Path) -> None:
    """The system's own error for a file that cannot be opened, ours for one that is nothing."""
    if path.is_dir():
        raise FileError("is a folder, expected a file; name the files in it")
    with open(path, "rb") as file:
        start = file.read(8)
    if not start:
        raise FileError("is empty (0 bytes); write it again")
    magics = _MAGIC.get(path.suffix.lower(), (b"",))
    if not start.startswith(magics):
        raise FileError(
            f"is not what its suffix says: it starts with {start!r}, a {path.suffix} file with {magics[0]!r}; "
            "write it again, or give it the suffix of its format"
        )


def damaged(what: str, error: Exception) -> FileError:
    if "allow_pickle" in str(error):
        return FileError(
            f"{what} holds Python objects (dtype object), which are never unpickled here; "
            "save it as numbers or strings, such as array.astype(str)"
        )
    if isinstance(error, MemoryError):
        return FileError(f"{what} does not fit into memory, if its header is right ({error}); use fewer samples")
    reason = str(error) or type(error).__name__
    return FileError(f"{what} is truncated or damaged ({reason}); write it again")


def stacked(columns: list[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """One column as it is, several as the columns of a matrix."""
    if len(columns) == 1:
        return columns[0]
    for column, name in zip(columns, names, strict=True):
        if column.ndim != 1 or column.dtype.kind not in "biuf":
            raise FileError(f"column {name!r} has dtype {column.dtype} and {column.ndim} axes, expected numbers")
    return np.stack(columns, axis=1)
