"""What files hold beneath their names: whether it is the format of the suffix, damage, text, and what identifies it.

Called by the formats beside this file, and by those that the command reads whole (`_command.files`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._backend.files import endless, printable
from kcalib._input.columns import FileError

_MAGIC = {  # the second: an archive of nothing
    ".npz": (b"PK\x03\x04", b"PK\x05\x06"),
    ".npy": (b"\x93NUMPY",),
    ".parquet": (b"PAR1",),
    ".gz": (b"\x1f\x8b",),
    ".h5": (b"\x89HDF\r\n\x1a\n",),
    ".hdf5": (b"\x89HDF\r\n\x1a\n",),
}
_ENDS = 4096  # bytes at either end of a file that identify it


def check_content(path: Path) -> None:
    """The system's own error for a file that cannot be opened, ours for one that is nothing."""
    if path.is_dir():
        raise FileError("is a folder, expected a file; name the files in it")
    if (kind := endless(path)) is not None:
        raise FileError(f"is {kind}, expected a file; the command reads CSV from standard input, which is named -")
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
    reason = printable(" ".join(str(error).split())) or type(error).__name__
    return FileError(f"{what} is truncated or damaged ({reason}); write it again")


def stacked(columns: list[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """One column as it is, several as the columns of a matrix."""
    if len(columns) == 1:
        return columns[0]
    for column, name in zip(columns, names, strict=True):
        if column.ndim != 1 or column.dtype.kind not in "biuf":
            raise FileError(f"column {name!r} has dtype {column.dtype} and {column.ndim} axes, expected numbers")
    return np.stack(columns, axis=1)


def as_text(array: np.ndarray) -> np.ndarray:
    """Bytes as text, other arrays as they are."""
    if array.dtype.kind != "S":
        return array
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"a label is not UTF-8 text: {error}") from None


def library(name: str, what: str, extra: str) -> Any:
    """A library that reads `what`, imported when it is needed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingLibrary(f"reading {what} needs {name.partition('.')[0]}; pip install 'kcalib[{extra}]'") from None


class MissingLibrary(FileError, ImportError):
    """A library that a format needs is not installed."""


def identity(path: Path) -> Iterator[bytes]:
    """What changes with a file: its name, its size, when it was changed, its first and last bytes."""
    status = path.stat()
    yield f"{path.name} {status.st_size} {status.st_mtime_ns}".encode("utf-8", "surrogateescape")
    with open(path, "rb") as file:
        yield file.read(_ENDS)
        file.seek(max(0, status.st_size - _ENDS))
        yield file.read(_ENDS)


def normalized(pred: Any, logits: bool, what: str) -> np.ndarray:
    """Rows of probabilities over their sums; a row without a positive sum stays, which the checks refuse."""
    if (
        logits
        or not isinstance(pred, np.ndarray)
        or pred.ndim != 2
        or pred.shape[1] == 1
        or pred.dtype.kind not in "iuf"
    ):
        raise FileError(f"--normalize is for rows of probabilities, one for each class, not for {what}; leave it out")
    sums = pred.sum(axis=1, keepdims=True, dtype=np.float64)
    return np.divide(pred, sums, out=pred.astype(np.float64), where=(sums > 0) & np.isfinite(sums))
