"""Arrays of .npz files, and of .npy files, whose fields are columns if they have any."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from kcalib._command.files.source import Source
from kcalib._input.columns import Choice, FileError
from kcalib.streaming.sources.content import check_content, damaged, stacked
from kcalib.streaming.sources.npy import MAX_HEADER, members_of, read_header


def npy_array(path: Path) -> np.ndarray:
    with open(path, "rb") as file:
        return _read(file, "the array", path.stat().st_size)


def npz_array(path: Path, name: str) -> np.ndarray:
    what = f"array {name!r}"
    try:
        with zipfile.ZipFile(path) as archive:
            member = members_of(archive)[name]
            if not member.filename.endswith(".npy"):
                raise FileError(f"{name!r} is no array; write the file by numpy.savez")
            with archive.open(member) as file:
                return _read(file, what, member.file_size)
    except FileError:
        raise
    except Exception as error:
        raise damaged(what, error) from None


def _read(file: IO[bytes], what: str, size: int) -> np.ndarray:
    """The array in a file of so many bytes, once its header is known to be right."""
    read_header(file, what, size)
    try:
        file.seek(0)
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False, max_header_size=MAX_HEADER))
    except Exception as error:
        raise damaged(what, error) from None


def npz_source(path: Path) -> Source:
    try:
        with zipfile.ZipFile(path) as archive:
            names = tuple(members_of(archive))
    except FileError:
        raise
    except Exception as error:
        raise damaged("the archive", error) from None

    def read(choice: Choice, labels: str | None) -> tuple[np.ndarray, np.ndarray | None]:
        return npz_array(path, choice.names[0]), None if labels is None else npz_array(path, labels)

    return Source("array", names, read)


def field_source(array: np.ndarray) -> Source:
    """The fields of a structured array are columns."""

    def read(choice: Choice, labels: str | None) -> tuple[np.ndarray, np.ndarray | None]:
        return stacked([array[name] for name in choice.names], choice.names), None if labels is None else array[labels]

    return Source("column", array.dtype.names or (), read)


def npy_labels(path: Path) -> np.ndarray:
    try:
        check_content(path)
        array = npy_array(path)
    except FileError as error:
        raise FileError(f"the labels {str(path)!r}: {error}") from None
    if array.dtype.names is not None:
        raise FileError(f"the labels {str(path)!r} are an array with fields, expected a plain one")
    return array
