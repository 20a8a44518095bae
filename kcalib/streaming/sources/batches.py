"""Batches that an iterator gives, as pairs or as dictionaries; single samples, too."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kcalib._backend import arrays
from kcalib._input.columns import FileError
from kcalib.streaming.sources.parameters import Parameters
from kcalib.streaming.sources.part import (
    Blocks,
    Cursor,
    Found,
    Part,
    Rows,
    Wanted,
    columns_of,
    found_in,
    plain,
    sampled,
)

ONCE = (
    "the samples come from an iterator, which can be read once and from its beginning; pass a function that returns "
    "a new one, such as source(lambda: batches()), or a list"
)


class BatchesPart(Part):
    """What ``make()`` gives, from its beginning each time; of an iterator (`once`) that is always the same one.

    The first batch is looked at, and given again when the samples are read.
    """

    place = ""
    n = None

    def __init__(
        self,
        make: Callable[[], Iterator[Any]],
        wanted: Wanted,
        *,
        once: bool,
        place: str = "",
        found: Found | None = None,  # of pairs whose arrays have names
    ):
        self._make, self.resumable, self.place = make, not once, place
        iterator = make()
        try:
            first = next(iterator)
        except StopIteration:
            raise FileError("there are no batches, expected (y, p) or dictionaries") from None
        self._names = _names(first, wanted)
        pred = self._parts(first, 0)[1]
        if self._names is None or self._names.family is None:
            pred, wanted = plain(pred, wanted)
        self.found = found or self._names or Found(("y_true",), ("y_pred",), "array", wanted.from_logits)
        if isinstance(pred, Parameters) and self.found.family is None:
            self.found = found_in(pred, self.found.y_true)
        elif wanted.classes is not None:
            self.found = dataclasses.replace(self.found, classes=wanted.classes)
        self._sample: Rows = self._arrays(first, 0)
        self.n_columns = columns_of(self._sample[1])
        self._rest = itertools.chain([first], iterator) if once else None

    def open(self, start: int) -> Cursor:
        batches: Iterator[Any]
        if self.resumable:
            batches = iter(self._make())
        elif self._rest is not None and start == 0:
            batches, self._rest = self._rest, None
        else:
            raise FileError(ONCE)
        return Blocks((self._arrays(batch, number) for number, batch in enumerate(batches)), start)

    def identity(self) -> Iterator[bytes]:
        return sampled(*self._sample)

    def _parts(self, batch: Any, number: int) -> tuple[Any, Any]:
        """Labels or targets, and predictions, as the batch has them."""
        if isinstance(batch, Mapping) != (self._names is not None):
            raise FileError(f"batch {number} is a {type(batch).__name__}, unlike the first one; give all in one form")
        if self._names is None:
            return _pair(batch, number)
        missing = next((name for name in self._names.names if name not in batch), None)
        if missing is not None:
            raise FileError(f"batch {number} has no {missing!r}, as the first one has; give every batch both")
        parts = [batch[group[0]] for group in self._names.groups]
        if self._names.family is not None:
            parts = [_array(part, group[0], number) for part, group in zip(parts, self._names.groups, strict=True)]
        return batch[self._names.y_true], self._names.predictions(parts)

    def _arrays(self, batch: Any, number: int) -> Rows:
        """A batch as arrays, of one row if it is a single sample."""
        true, pred = self._parts(batch, number)
        true = _array(true, self.found.y_true, number)
        if not isinstance(pred, Parameters):
            pred, _ = plain(pred, Wanted())
        if isinstance(pred, Parameters) != (self.found.family is not None):
            raise FileError(f"batch {number} has other predictions than the first one; give all in one form")
        if isinstance(pred, Parameters):
            if len(true.shape) not in (1, 2) or any(true.shape[0] != one.shape[0] for one in pred.values.values()):
                raise FileError(
                    f"batch {number} has targets of shape {tuple(true.shape)} for parameters of "
                    f"{len(pred)} distributions; expected one for each"
                )
            return true, pred
        pred = _array(pred, self.found.pred_name, number)
        if len(true.shape) == 1 and len(pred.shape) == 1 and true.shape[0] == 1 != pred.shape[0]:
            pred = pred[None, :]  # a single sample
        if len(pred.shape) not in (1, 2) or true.shape[0] != pred.shape[0]:
            raise FileError(
                f"batch {number} has labels of shape {tuple(true.shape)} and predictions of shape "
                f"{tuple(pred.shape)}; expected (k,) and (k, m), or (k,) for two classes"
            )
        return true, pred


def _array(value: Any, name: str, number: int) -> Any:
    """An array, of one entry for a single value."""
    if hasattr(value, "shape"):
        value = value if len(value.shape) else value.reshape(1)
    elif not isinstance(value, (list, tuple)):
        value = [value]
    return arrays.as_array(value, f"{name} of batch {number}")


def _names(first: Any, wanted: Wanted) -> Found | None:
    """The keys of dictionaries; None for pairs."""
    if not isinstance(first, Mapping):
        return None
    columns = wanted.columns("array", tuple(map(str, first)), holder="the first batch")
    return wanted.found(columns)


def _pair(batch: Any, number: int) -> tuple[Any, Any]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        what = f"has {len(batch)} entries" if isinstance(batch, (tuple, list)) else f"is a {type(batch).__name__}"
        raise FileError(f"batch {number} {what}, expected a pair (labels, predictions) or a dictionary")
    return batch[0], batch[1]
