"""Arrays of .npz files, and of .npy files, whose fields are columns if they have any."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kcalib._command.files.source import Source
from kcalib._input.columns import Choice, FileError
from kcalib.streaming.sources.content import check_content, damaged, stacked
from kcalib.streaming.sources.npy import MAX_HEADER


def npy_array(path: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(path, allow_pickle=False, max_header_size=MAX_HEADER))
    except Exception as error:
        raise damaged("the array", error) from None


def npz_array(path: Path, name: str) -> np.ndarray:
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False, max_header_size=MAX_HEADER) as file:
            array = file[name]
    except Exception as error:
        raise damaged(f"array {name!r}", error) from None
    if not isinstance(array, np.ndarray):
        raise FileError(f"{name!r} is no array; write the file by numpy.savez")
    return array


def npz_source(path: Path) -> Source:
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            names = tuple(file.files)
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
