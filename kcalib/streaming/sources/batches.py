"""Batches from an iterator, as pairs or dictionaries, also of single samples."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kcalib._backend import arrays
from kcalib._input.classes import format_names, places_of
from kcalib._input.columns import FileError
from kcalib.distributions import Distribution
from kcalib.streaming.sources.layout import Y_PRED, Y_TRUE, Block, Layout, ReadOptions
from kcalib.streaming.sources.named_arrays import as_predictions, classes_by_names, names_of_columns
from kcalib.streaming.sources.reader import Reader, block_bytes, skip_rows


class BatchesReader(Reader):
    """Read the result of `make_iterator` from its beginning each time; an iterator can be read once."""

    def __init__(self, make_iterator: Callable[[], Iterator[Any]], options: ReadOptions, *, is_resumable: bool):
        self._make_iterator, self.is_resumable = make_iterator, is_resumable
        self._columns: tuple[Any, ...] = ()  # names in the first batch
        iterator = make_iterator()
        try:
            first = next(iterator)
        except StopIteration:
            raise FileError("there are no batches, expected (y, p) or dictionaries") from None
        self._has_keys = isinstance(first, Mapping)
        if self._has_keys:
            columns = options.columns("array", tuple(map(str, first)), holder="the first batch")
            self.layout = options.layout(columns)
        else:
            self.layout = Layout((Y_TRUE,), {Y_PRED: (Y_PRED,)}, from_logits=options.from_logits)
        if self.layout.family is None:
            values = self._values(first, 0)
            pred, classes = as_predictions(values[Y_PRED], options.classes)
            if isinstance(pred, Distribution):
                self._pred_name = self.layout.predictions[Y_PRED][0]
                self.layout = Layout.of_distribution(pred, self.layout.targets[0])
            else:
                self._columns = names_of_columns(pred)
                classes = classes_by_names(values[Y_TRUE], pred, classes)
                self.layout = dataclasses.replace(self.layout, classes=classes)
        self._first = self._block(first, 0)
        self.n_columns = self.layout.count_columns(self._first)
        self._rest = None if is_resumable else itertools.chain([first], iterator)

    def blocks(self, start: int, rows: int) -> Iterator[Block]:
        batches: Iterator[Any]
        if self.is_resumable:
            batches = iter(self._make_iterator())
        elif self._rest is not None and start == 0:
            batches, self._rest = self._rest, None
        else:
            raise FileError(
                "the samples come from an iterator, which can be read once and from its beginning; pass a function "
                "that returns a new one, such as source(lambda: batches()), or a list"
            )
        return skip_rows((self._block(batch, number) for number, batch in enumerate(batches)), start)

    def identity(self) -> Iterator[bytes]:
        return block_bytes(self._first)

    def _values(self, batch: Any, number: int) -> dict[str, Any]:
        """Return labels or targets, and predictions, of a batch."""
        if isinstance(batch, Mapping) != self._has_keys:
            raise FileError(f"batch {number} is a {type(batch).__name__}, unlike the first one; give all in one form")
        if self._has_keys:
            groups = {key: names[0] for key, names in self.layout.groups.items()}
            if self.layout.distribution is not None:
                groups = {Y_TRUE: self.layout.targets[0], Y_PRED: self._pred_name}
            missing = next((name for name in groups.values() if name not in batch), None)
            if missing is not None:
                raise FileError(f"batch {number} has no {missing!r}, as the first one has; give every batch both")
            return {key: batch[name] for key, name in groups.items()}
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            description = (
                f"has {len(batch)} entries" if isinstance(batch, (tuple, list)) else f"is a {type(batch).__name__}"
            )
            raise FileError(f"batch {number} {description}, expected a pair (labels, predictions) or a dictionary")
        return {Y_TRUE: batch[0], Y_PRED: batch[1]}

    def _block(self, batch: Any, number: int) -> Block:
        """Return a batch as arrays; a single sample is one row."""
        values, layout = self._values(batch, number), self.layout
        if Y_PRED in values:
            pred, _ = as_predictions(values.pop(Y_PRED), None)
            if (type(pred).__name__ if isinstance(pred, Distribution) else None) != layout.family:
                raise FileError(f"batch {number} has other predictions than the first one; give all in one form")
            columns = () if layout.family is not None else names_of_columns(pred)
            if columns != self._columns and columns and self._columns:
                places = places_of(self._columns, columns)
                if places is None:
                    raise FileError(
                        f"batch {number} has the columns {format_names(columns)}, the first one "
                        f"{format_names(self._columns)}; give all the same columns"
                    )
                pred = arrays.as_array(pred, Y_PRED)[:, list(places)]
            has_fields = isinstance(pred, Distribution)
            values |= {name: getattr(pred, name) for name in layout.predictions} if has_fields else {Y_PRED: pred}
        names = {Y_TRUE: layout.targets[0], **{key: names[0] for key, names in layout.predictions.items()}}
        block = {key: _as_array(value, f"{names[key]} of batch {number}") for key, value in values.items()}
        true, shape = block[Y_TRUE], tuple(block[Y_TRUE].shape)
        if layout.family is not None:
            sizes = [len(block[name]) for name in layout.predictions]
            if len(shape) not in (1, 2) or any(size != shape[0] for size in sizes):
                raise FileError(
                    f"batch {number} has targets of shape {shape} for parameters of {min(sizes)} distributions; "
                    "expected one for each"
                )
            return block
        pred = block[Y_PRED]
        if len(shape) == 1 and len(pred.shape) == 1 and shape[0] == 1 != pred.shape[0]:
            block[Y_PRED] = pred = pred[None, :]  # a single sample
        if len(pred.shape) not in (1, 2) or true.shape[0] != pred.shape[0]:
            raise FileError(
                f"batch {number} has labels of shape {shape} and predictions of shape {tuple(pred.shape)}; expected "
                "(k,) and (k, m), or (k,) for two classes"
            )
        return block


def _as_array(value: Any, name: str) -> Any:
    """Return an array; a single value becomes one entry."""
    if hasattr(value, "shape"):
        value = value if len(value.shape) else value.reshape(1)
    elif not isinstance(value, (list, tuple)):
        value = [value]
    return arrays.as_array(value, name)
