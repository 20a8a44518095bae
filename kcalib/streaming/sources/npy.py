"""`.npy` and `.npz` files, read in pieces by position; members that are compressed are unpacked in order.

Reading by position leaves no pages behind that count as this process's memory, as a memory map does.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from kcalib._input.columns import CLASSES_NAME, LABEL_NAMES, FileError
from kcalib.streaming.sources.content import as_text, check_content, damaged, identity
from kcalib.streaming.sources.part import (
    Cursor,
    Found,
    Part,
    Rows,
    Slices,
    Wanted,
    check_lengths,
    columns_of,
    with_classes,
)
from kcalib.streaming.sources.sliceable import FieldsPart

MAX_HEADER = 1_000_000  # NumPy's limit of 10000 characters is met by some 500 fields


@dataclass(frozen=True)
class Header:
    """Where the rows of an array are, and what they are."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int  # of the first row

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])


def read_header(file: IO[bytes], what: str, size: int) -> Header:
    """The header of an array that has as many bytes with it, and as many numbers as its shape says."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file, max_header_size=MAX_HEADER)
    except Exception as error:
        raise damaged(what, error) from None
    if version == (3, 0) and dtype.names is not None:  # NumPy's public reader takes UTF-8 for Latin-1
        dtype.names = tuple(name.encode("latin-1").decode("utf-8") for name in dtype.names)
    if dtype.hasobject:
        raise damaged(what, ValueError("allow_pickle"))
    if not shape:
        raise FileError(f"{what} is a single value, expected an array")
    begin = file.tell()
    header = Header(dtype, tuple(int(n) for n in shape), bool(fortran) and len(shape) > 1, begin)
    if min(header.shape) < 0 or dtype.itemsize == 0:
        raise damaged(what, ValueError(f"shape {header.shape} of {dtype}"))
    if size - begin < (expected := header.row_bytes * header.shape[0]):
        raise damaged(what, ValueError(f"{size - begin} bytes of {expected} for shape {header.shape} of {dtype}"))
    return header


class StoredArray:
    """Rows of an array that lies in a file as it is in memory, an .npy file or a member that is not compressed."""

    def __init__(self, path: Path, what: str, start: int = 0, stop: int | None = None):
        self.path, self.what = path, what
        with open(path, "rb") as file:
            file.seek(start)
            self.header = read_header(file, what, path.stat().st_size if stop is None else stop)
        self.dtype, self.shape = self.header.dtype, self.header.shape

    def __getitem__(self, rows: slice) -> np.ndarray:
        header = self.header
        if header.fortran:
            mapped: np.memmap = np.memmap(self.path, header.dtype, "r", header.offset, header.shape, order="F")
            return np.ascontiguousarray(mapped[rows])
        start, stop, _ = rows.indices(header.shape[0])
        array = np.empty((stop - start, *header.shape[1:]), header.dtype)
        with open(self.path, "rb", buffering=0) as file:
            file.seek(header.offset + start * header.row_bytes)
            _fill(file, array, self.what)
        return array


class PackedArray:
    """The header of a compressed member, and its rows in order."""

    def __init__(self, path: Path, member: zipfile.ZipInfo, what: str):
        self.path, self.member, self.what = path, member, what
        with zipfile.ZipFile(path) as archive, archive.open(member) as file:
            self.header = read_header(file, what, member.file_size)
        self.dtype, self.shape = self.header.dtype, self.header.shape
        if self.header.fortran:
            raise FileError(
                f"{what} is compressed column by column, so that no rows can be read by themselves; save it by "
                "numpy.savez, or as numpy.ascontiguousarray(array)"
            )

    def open(self, start: int) -> PackedRows:
        return PackedRows(self, start)


class PackedRows:
    """The rows of a compressed member from `start` on."""

    def __init__(self, array: PackedArray, start: int):
        self._array = array
        self._archive = zipfile.ZipFile(array.path)
        try:
            self._file = self._archive.open(array.member)
            read_header(self._file, array.what, array.member.file_size)
            self.skip(start * array.header.row_bytes)
        except BaseException:
            self._archive.close()
            raise

    def skip(self, size: int) -> None:
        try:
            while size > 0 and (done := len(self._file.read(min(size, 1 << 20)))):
                size -= done
        except Exception as error:
            raise damaged(self._array.what, error) from None

    def take(self, count: int) -> np.ndarray:
        array = np.empty((count, *self._array.shape[1:]), self._array.dtype)
        _fill(self._file, array, self._array.what)
        return array

    def close(self) -> None:
        self._file.close()
        self._archive.close()


def _fill(file: IO[bytes], array: np.ndarray, what: str) -> None:
    """Read the bytes of an array."""
    view = memoryview(array.reshape(-1).view(np.uint8).data)
    done = 0
    try:
        while done < len(view):
            count = file.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise EOFError(f"{done} bytes of {len(view)}")
            done += count
    except Exception as error:
        raise damaged(what, error) from None


Member = StoredArray | PackedArray


class NumpyPart(Part):
    """Predictions and labels in .npy files or in members of an .npz file."""

    def __init__(self, path: Path, true: Member, pred: Sequence[Member], found: Found):
        self.place, self.found = str(path), found
        self.n = check_lengths(true, pred, found)
        self.n_columns = columns_of(found.predictions(pred))
        self._files = list(dict.fromkeys((path, true.path)))
        self._true, self._pred = true, pred

    def open(self, start: int) -> Cursor:
        assert self.n is not None
        true, *pred = (_Reader(array, start) for array in (self._true, *self._pred))

        def rows(start: int, stop: int) -> Rows:
            return as_text(true.read(start, stop)), self.found.predictions([one.read(start, stop) for one in pred])

        def close() -> None:
            for reader in (true, *pred):
                reader.close()

        return Slices(rows, start, self.n, close)

    def identity(self) -> Iterator[bytes]:
        for path in self._files:
            yield from identity(path)


class _Reader:
    """Rows of either kind of array, one piece after the other."""

    def __init__(self, array: Member, start: int):
        self._array = array
        self._rows = array.open(start) if isinstance(array, PackedArray) else None

    def read(self, start: int, stop: int) -> np.ndarray:
        if self._rows is not None:
            return self._rows.take(stop - start)
        assert isinstance(self._array, StoredArray)
        return self._array[start:stop]

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()


def npy_part(path: Path, wanted: Wanted) -> Part:
    array = StoredArray(path, "the array")
    if array.dtype.names is not None:
        return FieldsPart(
            lambda start, stop: array[start:stop],
            array.dtype,
            array.shape[0],
            wanted,
            str(path),
            lambda: identity(path),
        )
    for option in wanted.given():
        columns = wanted.columns("array", ())
        remedy = f"leave it out (for logits: {columns.spelled('from_logits')})"
        if option not in ("probs", "logits"):
            remedy = "save predicted distributions as an .npz file of named arrays"
        raise FileError(f"the array has no fields, so {columns.spelled(option)} names nothing; {remedy}")
    file = _labels_beside(path, wanted)
    logits = wanted.from_logits or "logits" in path.stem.lower()
    found = Found((file.name,), (path.name,), "file", logits, wanted.classes)
    return NumpyPart(path, label_array(file), [array], found)


def _labels_beside(path: Path, wanted: Wanted) -> Path:
    labels = label_file(wanted.labels)
    beside = [path.with_name(name + ".npy") for name in LABEL_NAMES]
    if wanted.labels is None:
        labels = next((file for file in beside if file.is_file() and file != path), None)
    if labels is None:
        tried = "" if wanted.labels is None else f" (there is no file {str(wanted.labels)!r})"
        how = wanted.columns("array", ()).spelled("labels")
        raise FileError(
            f"the array has no labels{tried}; name a file by {how}{'' if how.endswith('=') else ' '}FILE.npy, "
            f"or put one of {', '.join(file.name for file in beside)} beside it"
        )
    return labels


def label_file(labels: Any) -> Path | None:
    """The .npy file that holds the labels, if that is what was named."""
    if isinstance(labels, (str, Path)) and str(labels).lower().endswith(".npy") and Path(labels).is_file():
        return Path(labels)
    return None


def label_array(path: Path) -> StoredArray:
    what = f"the labels {str(path)!r}"
    try:
        check_content(path)
    except FileError as error:
        raise FileError(f"{what}: {error}") from None
    array = StoredArray(path, what)
    if array.dtype.names is not None:
        raise FileError(f"{what} are an array with fields, expected a plain one")
    return array


def npz_part(path: Path, wanted: Wanted) -> Part:
    try:
        with zipfile.ZipFile(path) as archive:
            members = members_of(archive)
            starts = {name: _start(archive, info) for name, info in members.items()}
    except FileError:
        raise
    except Exception as error:
        raise damaged("the archive", error) from None
    columns = wanted.columns("array", tuple(members))
    file = label_file(wanted.labels)
    found = wanted.found(columns, labels=file is None)

    def array(name: str) -> Member:
        info, what = members[name], f"array {name!r}"
        if not info.filename.endswith(".npy"):
            raise FileError(f"{name!r} is no array; write the file by numpy.savez")
        try:
            if info.compress_type == zipfile.ZIP_STORED:
                return StoredArray(path, what, starts[name], starts[name] + info.file_size)
            return PackedArray(path, info, what)
        except FileError:
            raise
        except Exception as error:
            raise damaged(what, error) from None

    pred = [array(group[0]) for group in found.groups]
    true = array(found.y_true) if file is None else label_array(file)
    if CLASSES_NAME in members and found.family is None:
        classes = array(CLASSES_NAME)
        named = classes[:] if isinstance(classes, StoredArray) else _Reader(classes, 0).read(0, classes.shape[0])
        found = with_classes(found, as_text(named), true.dtype)
    return NumpyPart(path, true, pred, found)


def members_of(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members of an .npz file by the names of their arrays, no two of which are one."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name in members:
            raise FileError(f"two arrays have the name {name!r}, and either may be meant; write the file with one")
        members[name] = info
    return members


def _start(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """Where the content of a member begins: behind its own header, whose name and extra part have lengths."""
    file = archive.fp
    assert file is not None
    file.seek(info.header_offset + 26)
    lengths = file.read(4)
    return info.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
