"""Checks of files of any format before they are opened, errors about damaged ones, and what identifies a file."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._backend.files import describe_special_file, printable
from kcalib._input.columns import FileError

_MAGIC = {
    ".npz": (b"PK\x03\x04", b"PK\x05\x06"),  # the second begins an empty archive
    ".npy": (b"\x93NUMPY",),
    ".parquet": (b"PAR1",),
    ".gz": (b"\x1f\x8b",),
    ".h5": (b"\x89HDF\r\n\x1a\n",),
    ".hdf5": (b"\x89HDF\r\n\x1a\n",),
}
_END_BYTES = 4096  # bytes at either end of a file that identify it


def check_file(path: Path) -> None:
    """Check that a file exists and starts as its suffix says."""
    if path.is_dir():
        raise FileError("is a folder, expected a file; name the files in it")
    if (kind := describe_special_file(path)) is not None:
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


def check_unique(header: Sequence[str], names: Sequence[str]) -> None:
    """Check that the names of columns to read are unique."""
    count = Counter(header)
    for name in names:
        if count[name] != 1:
            raise FileError(f"{count[name]} columns have the name {name!r}; rename all but one")


def damage_error(noun: str, error: Exception) -> FileError:
    """Return the error for a file, called `noun` in messages, whose library raised `error`."""
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return FileError(
            f"{noun} holds Python objects (dtype object), which are never unpickled here; "
            "save it as numbers or strings, such as array.astype(str)"
        )
    if isinstance(error, MemoryError):
        return FileError(f"{noun} does not fit into memory, if its header is right ({error}); use fewer samples")
    reason = printable(" ".join(str(error).split())) or type(error).__name__
    return FileError(f"{noun} is truncated or damaged ({reason}); write it again")


def decode_text(array: Any) -> Any:
    """Return arrays of bytes, also in objects (text in HDF5), as arrays of text; other arrays unchanged."""
    if not isinstance(array, np.ndarray):
        return array
    if array.dtype.kind == "O" and array.size and isinstance(array.flat[0], bytes):
        array = array.astype(np.bytes_)
    if array.dtype.kind == "U" and array.dtype.itemsize and array.size:
        codes = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).view(np.uint32)
        if (code := int(codes.max())) > sys.maxunicode:
            raise FileError(f"a label is not text: it holds the number {code:#x}, expected code points up to 0x10ffff")
    if array.dtype.kind != "S":
        return array
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"a label is not UTF-8 text: {error}") from None


class MissingLibraryError(FileError, ImportError):
    """A library that a format needs is not installed."""


def import_library(name: str, format_name: str, extra: str) -> Any:
    """Import a library for a format, or raise an error that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        message = f"reading {format_name} needs {name.partition('.')[0]}; pip install 'kcalib[{extra}]'"
        raise MissingLibraryError(message) from None


def file_identity(path: Path) -> Iterator[bytes]:
    """Yield what changes with a file: name, size, modification time, first and last bytes."""
    status = path.stat()
    yield f"{path.name} {status.st_size} {status.st_mtime_ns}".encode("utf-8", "surrogateescape")
    with open(path, "rb") as file:
        yield file.read(_END_BYTES)
        file.seek(max(0, status.st_size - _END_BYTES))
        yield file.read(_END_BYTES)


def normalize_rows(pred: Any, logits: bool, noun: str) -> np.ndarray:
    """Divide rows of probabilities by their sums; rows without a positive sum are refused later."""
    is_matrix = isinstance(pred, np.ndarray) and pred.ndim == 2 and pred.shape[1] != 1 and pred.dtype.kind in "iuf"
    if logits or not is_matrix:
        raise FileError(f"--normalize is for rows of probabilities, one for each class, not for {noun}; leave it out")
    sums = pred.sum(axis=1, keepdims=True, dtype=np.float64)
    return np.divide(pred, sums, out=pred.astype(np.float64), where=(sums > 0) & np.isfinite(sums))
