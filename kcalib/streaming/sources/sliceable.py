"""Two arrays, or named arrays: NumPy's and memory maps, of other libraries, of HDF5 and Zarr."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._input.columns import CLASSES_NAME, FileError
from kcalib.streaming.sources.content import as_text, damaged
from kcalib.streaming.sources.parameters import Parameters
from kcalib.streaming.sources.part import (
    Found,
    Part,
    Rows,
    Slices,
    Wanted,
    check_lengths,
    columns_of,
    found_in,
    plain,
    rows_from,
    sampled,
    with_classes,
)


class ArraysPart(Part):
    """Labels and predictions as arrays that can be sliced, from wherever they are."""

    def __init__(self, true: Any, pred: Sequence[Any], found: Found, place: str = ""):
        self.place, self.found = place, found
        self.n = check_lengths(true, pred, found)
        self.n_columns = columns_of(found.predictions(pred))
        self.true, self.pred = true, tuple(pred)

    def open(self, start: int) -> Slices:
        assert self.n is not None
        return Slices(self._rows, start, self.n, self._release)

    def _rows(self, start: int, stop: int) -> Rows:
        self._release()  # what was read before
        try:
            pred = self.found.predictions([sliced(array, start, stop) for array in self.pred])
            return sliced(self.true, start, stop), pred
        except Exception as error:  # of the library that reads them
            if not self.place or isinstance(error, FileError):
                raise
            raise damaged(f"what there is between the rows {start} and {stop}", error) from None

    def _release(self) -> None:
        for array in (self.true, *self.pred):
            release(array)

    def identity(self) -> Iterator[bytes]:
        return sampled(self.true, self.found.predictions(self.pred))


class DistributionsPart(ArraysPart):
    """Targets as an array, and distributions, whose parameters were checked when they were made."""

    def __init__(self, true: Any, pred: Parameters):
        self._made = pred
        super().__init__(true, list(pred.values.values()), found_in(pred, "y_true"))

    def _rows(self, start: int, stop: int) -> Rows:
        return sliced(self.true, start, stop), self._made[start:stop]


def pair(true: Any, pred: Any, wanted: Wanted) -> Part:
    pred, wanted = plain(pred, wanted)
    true = _sliceable(true, "y_true")
    if isinstance(pred, Parameters):
        return DistributionsPart(true, pred)
    found = Found(("y_true",), ("y_pred",), "array", wanted.from_logits, wanted.classes)
    return ArraysPart(true, [_sliceable(pred, "y_pred")], found)


def named_arrays(holder: str, names: list[str], get: Callable[[str], Any], wanted: Wanted, place: str) -> ArraysPart:
    """Two of several arrays that have names."""
    columns = wanted.columns("array", tuple(names), holder=holder)
    found = wanted.found(columns)
    pred, true = [get(group[0]) for group in found.groups], get(found.y_true)
    if CLASSES_NAME in names and found.family is None:
        found = with_classes(found, as_text(np.asarray(get(CLASSES_NAME)[:])), np.dtype(true.dtype))
    return ArraysPart(true, pred, found, place)


def mapping(data: Mapping[str, Any], wanted: Wanted) -> Part:
    return named_arrays(
        "the mapping", [str(name) for name in data], lambda name: _sliceable(data[name], name), wanted, ""
    )


class FieldsPart(Part):
    """Rows of a structured array, from wherever `rows` reads them; its fields are columns."""

    def __init__(
        self,
        rows: Callable[[int, int], np.ndarray],
        dtype: np.dtype[Any],
        n: int,
        wanted: Wanted,
        place: str = "",
        identity: Callable[[], Iterator[bytes]] | None = None,
    ):
        columns = wanted.columns("column", dtype.names or (), holder="the file" if place else "the array")
        self.place, self.n, self.found = place, n, wanted.found(columns)
        self._structured, self._identity = rows, identity
        self.n_columns = columns_of(rows_from(self.found, np.empty(1, dtype).__getitem__)[1])

    def open(self, start: int) -> Slices:
        assert self.n is not None
        return Slices(self._rows, start, self.n)

    def _rows(self, start: int, stop: int) -> Rows:
        return rows_from(self.found, self._structured(start, stop).__getitem__)

    def identity(self) -> Iterator[bytes]:
        if self._identity is not None:
            return self._identity()
        assert self.n is not None
        return sampled(*self._rows(0, self.n))


def _sliceable(value: Any, name: str) -> Any:
    """An array as it is; what cannot be sliced by rows, such as lists and frames, as an array."""
    if hasattr(value, "dtype") and hasattr(value, "shape") and not hasattr(value, "iloc"):
        if len(value.shape) == 0:
            raise FileError(f"`{name}` is a single value, expected an array")
        return value
    return arrays.as_array(value, name)


def sliced(array: Any, start: int, stop: int) -> Any:
    rows = array[start:stop]
    return as_text(_without_bytes(rows)) if isinstance(rows, np.ndarray) else rows


def _without_bytes(rows: np.ndarray) -> np.ndarray:
    """HDF5 gives text as objects."""
    if rows.dtype.kind == "O" and len(rows) and isinstance(rows.flat[0], bytes):
        return rows.astype(np.bytes_)
    return rows


def release(array: Any) -> None:
    """Let the system take back the pages of a memory map that have been read; they count as this process's memory."""
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    mode = getattr(array, "mode", None)
    if isinstance(base, mmap.mmap) and mode in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)
