"""Named arrays that are stored in chunks: HDF5 files (read-only) and Zarr folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from kcalib._input.columns import FileError
from kcalib.streaming.sources.content import damage_error, file_identity, import_library
from kcalib.streaming.sources.layout import ReadOptions
from kcalib.streaming.sources.named_arrays import named_reader
from kcalib.streaming.sources.reader import Reader


def hdf5_reader(path: Path, options: ReadOptions) -> Reader:
    """Read arrays of an HDF5 file, which is open during reading."""
    h5py = import_library("h5py", "HDF5 files", "hdf5")
    names: list[str] = []

    @contextmanager
    def open_arrays() -> Iterator[Callable[[str], Any]]:
        try:
            file = h5py.File(path, "r")
        except OSError as error:
            raise damage_error("the file", error) from None
        with file:
            yield file.__getitem__

    with open_arrays() as get:
        get("/").visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return named_reader(options, names, open_arrays, place=str(path), identity=lambda: file_identity(path))


def zarr_reader(path: Path, options: ReadOptions) -> Reader:
    """Read arrays of a Zarr folder."""
    zarr = import_library("zarr", "Zarr folders", "zarr")
    try:
        group = zarr.open(str(path), mode="r")
    except Exception as error:
        raise damage_error("the folder", error) from None
    if not hasattr(group, "array_keys"):
        raise FileError("is one array, expected a group with arrays of predictions and labels; store both in one")

    def identity() -> Iterator[bytes]:
        """Yield the names, sizes and times of all files that hold the arrays, without opening them."""
        for array in reader.layout.names:
            for folder, folders, files in os.walk(path / array):
                folders.sort()
                for name in sorted(files):
                    status = os.stat(os.path.join(folder, name))
                    inside = Path(folder).relative_to(path) / name
                    yield f"{inside} {status.st_size} {status.st_mtime_ns}".encode("utf-8", "surrogateescape")

    reader = zarr_group_reader(group, options, place=str(path), identity=identity)
    return reader


def zarr_group_reader(group: Any, options: ReadOptions, **where: Any) -> Reader:
    """Read arrays of an open Zarr group."""
    names = sorted(group.array_keys())
    return named_reader(options, names, lambda: nullcontext(group.__getitem__), holder="the group", **where)


def is_zarr(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in ("zarr.json", ".zgroup", ".zarray"))
