"""Batches that an iterator gives, as pairs or as dictionaries; single samples, too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kcalib._backend import arrays
from kcalib._input.columns import FileError
from kcalib.streaming.sources.part import Blocks, Cursor, Found, Part, Rows, Wanted, columns_of, sampled

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

    def __init__(self, make: Callable[[], Iterator[Any]], wanted: Wanted, *, once: bool, place: str = ""):
        self._make, self._wanted, self.resumable, self.place = make, wanted, not once, place
        iterator = make()
        try:
            first = next(iterator)
        except StopIteration:
            raise FileError("there are no batches, expected (y, p) or dictionaries") from None
        self._names = _names(first, wanted)
        self.found = self._names or Found("y_true", ("y_pred",), "array", wanted.from_logits, wanted.classes)
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

    def _arrays(self, batch: Any, number: int) -> Rows:
        """A batch as two arrays, of one row if it is a single sample."""
        if isinstance(batch, Mapping) != (self._names is not None):
            raise FileError(f"batch {number} is a {type(batch).__name__}, unlike the first one; give all in one form")
        if self._names is not None:
            wanted = (self._names.y_true, *self._names.y_pred)
            missing = next((name for name in wanted if name not in batch), None)
            if missing is not None:
                raise FileError(f"batch {number} has no {missing!r}, as the first one has; give every batch both")
            true, pred = batch[wanted[0]], batch[wanted[1]]
        else:
            true, pred = _pair(batch, number)
        true = arrays.as_array(_at_least_one(true), f"{self.found.y_true} of batch {number}")
        pred = arrays.as_array(_at_least_one(pred), f"{self.found.pred_name} of batch {number}")
        if len(true.shape) == 1 and len(pred.shape) == 1 and true.shape[0] == 1 != pred.shape[0]:
            pred = pred[None, :]  # a single sample
        if len(pred.shape) not in (1, 2) or true.shape[0] != pred.shape[0]:
            raise FileError(
                f"batch {number} has labels of shape {tuple(true.shape)} and predictions of shape "
                f"{tuple(pred.shape)}; expected (k,) and (k, m), or (k,) for two classes"
            )
        return true, pred


def _names(first: Any, wanted: Wanted) -> Found | None:
    """The keys of dictionaries; None for pairs."""
    if not isinstance(first, Mapping):
        return None
    columns = wanted.columns("array", tuple(map(str, first)), holder="the first batch")
    choice = wanted.choice(columns)
    return wanted.found(columns, choice, wanted.label_name(columns))


def _pair(batch: Any, number: int) -> tuple[Any, Any]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        what = f"has {len(batch)} entries" if isinstance(batch, (tuple, list)) else f"is a {type(batch).__name__}"
        raise FileError(f"batch {number} {what}, expected a pair (labels, predictions) or a dictionary")
    return batch[0], batch[1]


def _at_least_one(value: Any) -> Any:
    """A single value as a list of it."""
    if hasattr(value, "shape"):
        return value if len(value.shape) else value.reshape(1)
    return value if isinstance(value, (list, tuple)) else [value]
