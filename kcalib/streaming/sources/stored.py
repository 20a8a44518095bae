"""Arrays in .npy files, which are memory-mapped, and in members of .npz files; nothing is unpickled."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from kcalib._backend.memory import check_memory
from kcalib._input.columns import FileError
from kcalib.streaming.sources.content import check_file, damage_error

_MAX_HEADER = 1_000_000  # some 500 fields exceed the limit of NumPy, 10000 characters


def map_array(path: Path, noun: str) -> np.memmap:
    """Map an .npy file into memory."""
    try:
        with np.errstate(over="ignore"):  # for impossible sizes
            array: np.memmap = np.load(path, mmap_mode="r", max_header_size=_MAX_HEADER)
    except Exception as error:
        raise damage_error(noun, error) from None
    if not array.shape:
        raise FileError(f"{noun} is a single value, expected an array")
    return array


def map_labels(path: Path) -> np.memmap:
    """Map an .npy file that holds the labels of the predictions in another file."""
    noun = f"the labels {str(path)!r}"
    try:
        check_file(path)
    except FileError as error:
        raise FileError(f"{noun}: {error}") from None
    array = map_array(path, noun)
    if array.dtype.names is not None:
        raise FileError(f"{noun} are an array with fields, expected a plain one")
    return array


def archive_members(path: Path) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an .npz file by the names of their arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except Exception as error:
        raise damage_error("the archive", error) from None
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename.removesuffix(".npy")
        if name in members:
            raise FileError(f"two arrays have the name {name!r}; write the file with one")
        members[name] = info
    return members


class ArchivedArray:
    """An array in an .npz file, read by rows in order; an array in column order is read as a whole."""

    def __init__(self, path: Path, name: str, member: zipfile.ZipInfo):
        if not member.filename.endswith(".npy"):
            raise FileError(f"{name!r} is not an array; write the file by numpy.savez")
        self._path, self._noun, self._member = path, f"array {name!r}", member
        with self._open() as (_, self.shape, _, self.dtype):
            pass

    def slices(self, start: int, rows: int) -> Iterator[np.ndarray]:
        """Yield `rows` rows at a time, from row `start` on."""
        with self._open() as (file, (n, *size), is_by_columns, dtype):
            row_bytes = dtype.itemsize * math.prod(size)
            if is_by_columns:
                remedy = "write it by rows (numpy.ascontiguousarray)"
                check_memory(n * row_bytes, None, f"all rows of {self._noun}, which is stored by columns,", remedy)
                array = np.frombuffer(bytearray(file.read()), dtype).reshape((n, *size), order="F")
                for first in range(start, n, rows):
                    yield array[first : first + rows]
                return
            file.seek(start * row_bytes, 1)
            for first in range(start, n, rows):
                content = bytearray(file.read(min(rows, n - first) * row_bytes))
                yield np.frombuffer(content, dtype).reshape((min(rows, n - first), *size))

    @contextmanager
    def _open(self) -> Iterator[tuple[IO[bytes], tuple[int, ...], bool, np.dtype[Any]]]:
        """Open the member after its header; yield shape, whether it is in column order, and dtype."""
        try:
            with zipfile.ZipFile(self._path) as archive, archive.open(self._member) as file:
                version = np.lib.format.read_magic(file)
                read_header = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                )
                shape, is_by_columns, dtype = read_header(file, max_header_size=_MAX_HEADER)
                if dtype.hasobject:
                    raise ValueError("allow_pickle")
                if not shape:
                    raise FileError(f"{self._noun} is a single value, expected an array")
                n_bytes = self._member.file_size - file.tell()
                if min(shape) < 0 or dtype.itemsize == 0 or dtype.itemsize * math.prod(shape) > n_bytes:
                    raise ValueError(f"{n_bytes} bytes for shape {shape} of {dtype}")
                yield file, tuple(map(int, shape)), is_by_columns and len(shape) > 1, dtype
        except FileError:
            raise
        except Exception as error:
            raise damage_error(self._noun, error) from None
