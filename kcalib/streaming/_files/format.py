"""What a state is on disk: one small versioned file with a checksum, no pickle, written whole or not at all.

    magic (8 bytes) | format version (uint32) | length of the header (uint32) | length of the file (uint64)
    header: JSON with sorted keys, padded by blanks to a multiple of 64 bytes
    arrays: little-endian, in the order of their names, each at a multiple of 64 bytes, zeros in between
    BLAKE2b of all of that (32 bytes)

Magic, the two lengths and the checksum stay where they are in every later version, so that whoever reads a file knows
whether it is whole before asking for its version. Within a version entries of the header may be added; who does not
know them skips them. The header has no time and no name in it: equal contents have equal bytes.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

import kcalib.kernels as kernels
import kcalib.lenses as lenses
import kcalib.target_kernels as target_kernels
from kcalib._backend.files import describe_special_file, printable, write_whole
from kcalib._version import __version__

CLASS = "class"
ARRAY = "array"
CLASSES: dict[str, type] = {
    f"{module.__name__.removeprefix('kcalib.')}.{name}": getattr(module, name)
    for module in (kernels, lenses, target_kernels)
    for name in module.__all__
    if dataclasses.is_dataclass(getattr(module, name))
}
NAMES = {kind: name for name, kind in CLASSES.items()}

MAGIC = b"\x89KCALIB\n"
VERSION = 2
PROLOGUE = struct.Struct("<8sIIQ")
ALIGNMENT, DIGEST = 64, 32
DTYPES = ("|b1", "|u1", "<i4", "<i8", "<u8", "<f4", "<f8")


class Content(NamedTuple):
    """The content of a file."""

    kind: str  # of state
    options: dict[str, Any]
    arrays: dict[str, np.ndarray]
    run: dict[str, Any] | None = None  # plain values about the run that wrote it, which are no part of the state


def pack_content(content: Content) -> bytes:
    """Return the bytes of the file, equal for equal contents."""
    parts, entries, size = [], {}, 0
    for name in sorted(content.arrays):
        array = np.asarray(content.arrays[name])
        dtype = array.dtype.newbyteorder("<").str
        assert dtype in DTYPES, (name, dtype)
        data = array.astype(dtype, order="C", copy=False).tobytes()
        entries[name] = {"dtype": dtype, "shape": list(array.shape), "offset": size}
        parts.append(data.ljust(_aligned(len(data)), b"\0"))
        size += len(parts[-1])
    header_fields = {
        "kind": content.kind,
        "library": __version__,
        "options": {name: describe(value, f"`{name}`") for name, value in content.options.items()},
        "arrays": entries,
    }
    if content.run is not None:
        header_fields["run"] = content.run
    text = json.dumps(header_fields, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True).encode()
    header = text.ljust(_aligned(PROLOGUE.size + len(text)) - PROLOGUE.size)
    total = PROLOGUE.size + len(header) + size + DIGEST
    body = b"".join((PROLOGUE.pack(MAGIC, VERSION, len(header), total), header, *parts))
    return body + _digest(body)


def unpack(data: bytes, name: str) -> Content:
    """Return the content of the bytes; messages call their origin `name`."""
    _check_start(data[: PROLOGUE.size], len(data), name)
    _, version, header_size, _ = PROLOGUE.unpack(data[: PROLOGUE.size])
    view = memoryview(data)  # of whose parts there are no copies
    if _digest(view[:-DIGEST]) != view[-DIGEST:]:
        raise ValueError(f"{name} is damaged: its checksum is not that of its contents; take a copy, or make it again")
    begin = PROLOGUE.size + header_size
    try:
        header = json.loads(data[PROLOGUE.size : begin])
        library = str(header.get("library"))
    except (ValueError, AttributeError, RecursionError):
        header, library = {}, "of a later version" if version > VERSION else "of an unknown version"
    if version != VERSION:
        expected = f"this version, {__version__}, reads format {VERSION}"
        remedy = "update kcalib" if version > VERSION else "make the state again"
        raise ValueError(f"{name} was written by kcalib {library} in format {version}, but {expected}; {remedy}")
    try:
        arrays = {key: _array(view[begin:-DIGEST], entry) for key, entry in header["arrays"].items()}
        options = {key: restore(value) for key, value in header["options"].items()}
        return Content(str(header["kind"]), options, arrays, header.get("run"))
    except UnknownError as error:
        raise ValueError(f"{name} was written by kcalib {library} and has {error}; update kcalib") from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        raise ValueError(f"{name} is not as kcalib writes a state, although its checksum is right") from None


def read(path: Any) -> bytes:
    """Return the bytes of a file with the start of a state and the length that it states.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is a folder, a device or a pipe, or not a state.
    """
    name = printable(os.fspath(path))
    if os.path.isdir(path):
        raise ValueError(f"{name} is a folder, expected a file with a state")
    if (kind := describe_special_file(path)) is not None:
        raise ValueError(f"{name} is {kind}, expected a file with a state")
    with open(path, "rb") as file:
        start = file.read(PROLOGUE.size)
        _check_start(start, os.fstat(file.fileno()).st_size, name)
        return start + file.read()


def write(path: Any, data: bytes) -> None:
    """Write a file as a whole or not at all.

    Raises
    ------
    OSError
        If the folder is missing, not writable or full; an existing file is kept.
    ValueError
        If it is a folder, a device or a pipe.
    """
    try:
        write_whole(path, data)
    except OSError as error:
        fault = f"{error.strerror}, the state was not saved and the file is as it was"
        raise type(error)(error.errno, fault, os.fspath(path)) from None


def _check_start(start: bytes, size: int, name: str) -> None:
    """Refuse files that are empty, foreign, or of another length than they state."""
    if not size:
        raise ValueError(f"{name} is empty, expected a state")
    if start[: len(MAGIC)] != MAGIC[: len(start)]:
        raise ValueError(f"{name} is not a state of kcalib, expected what `save` has written")
    total = PROLOGUE.unpack(start)[3] if len(start) == PROLOGUE.size else None
    if total is None or size < total:
        of = "" if total is None else f" of {total}"
        raise ValueError(f"{name} is truncated: it has {size} bytes{of}; copy or make it again")
    header_size = PROLOGUE.unpack(start)[2]
    if size > total or PROLOGUE.size + header_size + DIGEST > total:
        raise ValueError(f"{name} is damaged: it has {size} bytes, but says {total}; take a copy, or make it again")


def _array(data: memoryview, entry: Mapping[str, Any]) -> np.ndarray:
    dtype, shape, offset = entry["dtype"], tuple(entry["shape"]), entry["offset"]
    if dtype not in DTYPES or offset < 0 or any(not isinstance(length, int) or length < 0 for length in shape):
        raise ValueError
    count = 1
    for length in shape:
        count *= length
    values = np.frombuffer(data, dtype=dtype, count=count, offset=offset) if count else np.empty(0, dtype)
    return values.reshape(shape).astype(values.dtype.newbyteorder("="))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST, person=b"kcalib state").digest()


class UnknownError(ValueError):
    """A description names an unknown class."""


def describe(value: Any, name: str) -> Any:
    """Return `value` for JSON: objects of kcalib by class and fields, matrices by their bytes."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        return describe(value.item(), name)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, np.ndarray):
        data = value.astype(value.dtype.newbyteorder("<"), order="C")
        text = base64.b64encode(data.tobytes()).decode()
        return {CLASS: ARRAY, "dtype": data.dtype.str, "shape": list(data.shape), "base64": text}
    if isinstance(value, (tuple, list)):
        return [describe(entry, name) for entry in value]
    if type(value) not in NAMES:
        raise TypeError(
            f"{name} is {value!r}, of the class {type(value).__qualname__}, which is none of kcalib's, so that a file "
            "cannot say what it is; use kernels and lenses of kcalib"
        )
    fields = {field.name: describe(getattr(value, field.name), name) for field in dataclasses.fields(value)}
    return {CLASS: NAMES[type(value)], **fields}


def restore(value: Any) -> Any:
    """Return the value for a result of `describe`; lists become tuples. An UnknownError for an unknown class."""
    if isinstance(value, list):
        return tuple(restore(entry) for entry in value)
    if not isinstance(value, dict):
        return value
    name = value[CLASS]
    if name == ARRAY:
        data = np.frombuffer(base64.b64decode(value["base64"], validate=True), dtype=np.dtype(value["dtype"]))
        return data.reshape(tuple(value["shape"])).astype(data.dtype.newbyteorder("="))
    if name not in CLASSES:
        raise UnknownError(f"an option of the class {name}, which this version does not know")
    return CLASSES[name](**{key: restore(entry) for key, entry in value.items() if key != CLASS})
