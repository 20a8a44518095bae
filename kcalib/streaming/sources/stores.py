"""Files of named arrays that are cut into chunks: HDF5, read only, and folders of Zarr."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kcalib._input.columns import FileError
from kcalib.streaming.sources.content import damaged, identity, library
from kcalib.streaming.sources.part import Cursor, Part, Wanted
from kcalib.streaming.sources.sliceable import ArraysPart, named_arrays

ZARR_MARKS = ("zarr.json", ".zgroup", ".zarray")


class HDF5Part(Part):
    """Arrays of an HDF5 file, which is open while it is read."""

    def __init__(self, path: Path, wanted: Wanted):
        self.place, self._path, self._wanted = str(path), path, wanted
        file, part = self._opened()
        file.close()
        self.n, self.n_columns, self.found = part.n, part.n_columns, part.found

    def open(self, start: int) -> Cursor:
        file, part = self._opened()
        cursor = part.open(start)
        cursor.closing = file.close
        return cursor

    def identity(self) -> Iterator[bytes]:
        return identity(self._path)

    def _opened(self) -> tuple[Any, ArraysPart]:
        h5py = library("h5py", "HDF5 files", "hdf5")
        try:
            file = h5py.File(self._path, "r")
        except OSError as error:
            raise damaged("the file", error) from None
        try:
            names: list[str] = []
            file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
            return file, named_arrays("the file", names, file.__getitem__, self._wanted, self.place)
        except BaseException:
            file.close()
            raise


class ZarrPart(ArraysPart):
    """Arrays of a Zarr folder."""

    def __init__(self, path: Path, wanted: Wanted):
        zarr = library("zarr", "Zarr folders", "zarr")
        try:
            group = zarr.open(str(path), mode="r")
        except Exception as error:
            raise damaged("the folder", error) from None
        if not hasattr(group, "array_keys"):
            raise FileError("is one array, expected a group with arrays of predictions and labels; store both in one")
        names = sorted(group.array_keys())
        part = named_arrays("the group", names, group.__getitem__, wanted, str(path))
        self._path = path
        super().__init__(part.true, part.pred, part.found, str(path))

    def identity(self) -> Iterator[bytes]:
        """The names, sizes and times of all files beneath the arrays, without a look into them."""
        for array in self.found.names:
            for folder, folders, files in os.walk(self._path / array):
                folders.sort()
                for name in sorted(files):
                    status = os.stat(os.path.join(folder, name))
                    inside = Path(folder).relative_to(self._path) / name
                    yield f"{inside} {status.st_size} {status.st_mtime_ns}".encode("utf-8", "surrogateescape")


def is_zarr(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in ZARR_MARKS)
