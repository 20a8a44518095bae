"""Arrays that are sliced by rows: NumPy and other libraries, memory maps, and named arrays in files."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._input.classes import Classes, check_names, choose_classes
from kcalib._input.columns import CLASSES_NAME, FileError
from kcalib._input.frames import categories_of, column_names
from kcalib.distributions import Categorical, Distribution, as_distribution
from kcalib.distributions.adapters import is_external
from kcalib.streaming._forecasts.families import Family
from kcalib.streaming.sources.content import damage_error, decode_text
from kcalib.streaming.sources.layout import Y_PRED, Y_TRUE, Block, Layout, ReadOptions
from kcalib.streaming.sources.reader import Reader

Arrays = AbstractContextManager[Callable[[str], Any]]  # returns arrays by name, and closes their file


class ArraysReader(Reader):
    """Read named arrays; `open_arrays` opens them for each reading."""

    def __init__(
        self,
        layout: Layout,
        open_arrays: Callable[[], Arrays],
        place: str = "",
        identity: Callable[[], Iterator[bytes]] | None = None,
    ):
        self.layout, self.place = layout, place
        self._open, self._identity = open_arrays, identity
        with open_arrays() as get:
            block = {key: get(names[0]) for key, names in layout.groups.items()}
            self.n = layout.check_lengths(block)
            self.n_columns = layout.count_columns(block)

    def blocks(self, start: int, rows: int) -> Iterator[Block]:
        assert self.n is not None
        with self._open() as get:
            opened = {key: get(names[0]) for key, names in self.layout.groups.items()}
            slices = {key: row_slices(array, start, rows) for key, array in opened.items()}
            for first in range(start, self.n, rows):
                try:
                    block = {key: decode_text(next(pieces)) for key, pieces in slices.items()}
                except Exception as error:  # from the library of the array
                    if not self.place or isinstance(error, FileError):
                        raise
                    stop = min(first + rows, self.n)
                    raise damage_error(f"what there is between the rows {first} and {stop}", error) from None
                for array in opened.values():
                    release_pages(array)
                yield block

    def identity(self) -> Iterator[bytes]:
        return super().identity() if self._identity is None else self._identity()


def row_slices(array: Any, start: int, rows: int) -> Iterator[Any]:
    """Yield `rows` rows of an array at a time, from row `start` on."""
    if hasattr(array, "slices"):
        yield from array.slices(start, rows)
    else:
        n = int(array.shape[0])
        for first in range(start, n, rows):
            piece = array[first : min(first + rows, n)]
            yield np.array(piece) if isinstance(piece, np.memmap) else piece


def release_pages(array: Any) -> None:
    """Release the pages of a memory map that were copied; they count as memory of this process."""
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    mode = getattr(array, "mode", None)
    if isinstance(base, mmap.mmap) and mode in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def named_reader(
    options: ReadOptions,
    names: Sequence[str],
    open_arrays: Callable[[], Arrays],
    *,
    holder: str = "the file",
    place: str = "",
    identity: Callable[[], Iterator[bytes]] | None = None,
) -> ArraysReader:
    """Read predictions and labels among several named arrays."""
    layout = options.layout(options.columns("array", tuple(names), holder=holder))
    if CLASSES_NAME in names and layout.family is None:
        with open_arrays() as get:
            classes = get(CLASSES_NAME)
            labels = get(layout.targets[0]) if Y_TRUE in layout.groups else layout.stored_labels
            labels = classes if labels is None else labels
            classes = decode_text(np.asarray(next(row_slices(classes, 0, max(1, classes.shape[0])), ())))
            # Labels of a matrix are 0 and 1 for any names.
            layout = layout.with_classes(classes, classes.dtype if options.multilabel else np.dtype(labels.dtype))
    return ArraysReader(layout, open_arrays, place, identity)


def mapping_reader(data: Mapping[str, Any], options: ReadOptions) -> Reader:
    """Read the arrays of a mapping."""
    reader = named_reader(
        options, [str(name) for name in data], lambda: nullcontext(lambda name: _sliceable(data[name], name)),
        holder="the mapping",
    )  # fmt: skip
    layout = reader.layout
    if layout.family is None and layout.stored_labels is None and not options.multilabel:
        true, pred = data[layout.targets[0]], data[layout.predictions[Y_PRED][0]]
        reader.layout = replace(layout, classes=classes_by_names(true, pred, layout.classes))
    return reader


def pair_reader(true: Any, pred: Any, options: ReadOptions) -> Reader:
    """Read labels or targets, and predictions, each an array or distributions."""
    pred, classes = as_predictions(pred, options.classes)
    data = {Y_TRUE: _sliceable(true, Y_TRUE)}
    if isinstance(pred, Distribution):
        layout = Layout.of_distribution(pred, Y_TRUE)
        data |= {name: getattr(pred, name) for name in layout.predictions}
        if layout.missing == "drop":
            data |= {"samples": Family.of(pred).columns(pred)}
    else:
        classes = classes_by_names(true, pred, classes)
        layout = Layout((Y_TRUE,), {Y_PRED: (Y_PRED,)}, from_logits=options.from_logits, classes=classes)
        data[Y_PRED] = _sliceable(pred, Y_PRED)
    return ArraysReader(layout, lambda: nullcontext(data.__getitem__))


def as_predictions(pred: Any, classes: tuple[Any, ...] | None) -> tuple[Any, tuple[Any, ...] | None]:
    """Return predictions as a `Distribution` or an array, with the names of classes if they have any."""
    if is_external(pred):
        pred = as_distribution(pred)
    if isinstance(pred, Categorical):
        return pred.probabilities, classes if pred.classes is None else tuple(pred.classes)
    return pred, classes


def names_of_columns(pred: Any) -> tuple[Any, ...]:
    shape: tuple[int, ...] = getattr(pred, "shape", ())
    return column_names(pred, shape[1] if len(shape) == 2 and shape[1] > 1 else 2)


def classes_by_names(true: Any, pred: Any, classes: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Return the classes that columns of a frame, or categories of labels, are named after."""
    columns, categories = names_of_columns(pred), categories_of(true)
    if classes is not None:
        check_names(columns, Classes(classes), Y_PRED)
    elif (columns or categories is not None) and len(getattr(true, "shape", (0,))) == 1:
        labels = np.unique(arrays.to_host(arrays.as_array(true, Y_TRUE)))
        m = tuple(pred.shape)[1] if len(pred.shape) == 2 else 2
        chosen = choose_classes(labels, max(2, m), columns, categories, (Y_TRUE, Y_PRED))
        return chosen.names if chosen.is_known else None
    return classes


def _sliceable(value: Any, name: str) -> Any:
    """Return an array unchanged, and lists or frames as arrays."""
    if hasattr(value, "dtype") and hasattr(value, "shape") and not hasattr(value, "iloc"):
        if len(value.shape) == 0:
            raise FileError(f"`{name}` is a single value, expected an array")
        return value
    return arrays.as_array(value, name)
