"""`ModelState`: the base class of states of single models, with rows, merging, copies and files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Self

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import show_number
from kcalib._backend.threads import resolve_threads
from kcalib._input.checks import finite_weights
from kcalib.inference.adaptive.clusters import read_clusters
from kcalib.streaming._accumulator import Accumulator, Batch, large_weights_error
from kcalib.streaming._files.checks import LARGEST_WEIGHT
from kcalib.streaming._files.saving import Saved
from kcalib.streaming._options import SharedOptions

VALUES_AT_ONCE, ROWS_AT_ONCE = 2**24, 2**18  # larger batches are split to save memory


class ModelState(Saved):
    """Base class of states of a single model: immutable options, and sums that are replaced as a whole."""

    _ACCUMULATOR: ClassVar[type[Accumulator]]
    _OPTIONS: ClassVar[type[SharedOptions]]
    _accumulator: Any  # of the class `_ACCUMULATOR`
    _threads: int | None

    @property
    @abstractmethod
    def options(self) -> SharedOptions:
        """The options of the state."""

    @abstractmethod
    def update(self, y_true: Any, y_pred: Any, sample_weight: Any = None, *, first_row: int | None = None) -> Any:
        """Add a batch of samples."""

    def _number_clusters(self, clusters: Any, n: int) -> np.ndarray:
        """Return the clusters of a batch, or zeros for independent samples."""
        if clusters is None:
            if self.options.clusters and n:
                raise ValueError(
                    "`clusters` is None, but the state was made with clusters=True; pass the cluster of each sample"
                )
            return np.zeros(n, dtype=np.int64)
        if not self.options.clusters:
            raise ValueError("`clusters` is given, but the state was made without; make it with clusters=True")
        return read_clusters(clusters, n)

    def _start(self, options: SharedOptions, threads: int | None) -> None:
        """Start without rows."""
        if threads is not None:
            resolve_threads(threads)
        self._threads = threads
        self._accumulator = self._ACCUMULATOR.empty(options, threads)

    @property
    def n_samples(self) -> int:
        """The number of rows so far."""
        return len(self._accumulator.row_set)

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """The numbers of the rows, as intervals [start, stop) in ascending order."""
        intervals: tuple[tuple[int, int], ...] = self._accumulator.row_set.intervals
        return intervals

    def _add(self, batch: Batch) -> Self:
        accumulator = self._accumulator
        step = max(1, min(ROWS_AT_ONCE, VALUES_AT_ONCE // max(1, batch.predictions.shape[1])))
        for begin in range(0, batch.n, step):
            accumulator = accumulator.add(batch.take(begin, begin + step), self._threads)
        self._accumulator = accumulator
        return self

    def merge(self, other: Self) -> Self:
        """Add all rows of another state with the same options, except `part`. An error leaves both states unchanged.

        The state keeps its own `part` for further rows; ``a + b`` returns a new state with the smaller one. A state
        without bandwidth takes the bandwidth of the other. While both have none, all rows are held in memory, at most
        1999 for each merged state. The next `update` fixes the bandwidth as soon as there are 2000 rows, by those with
        the smallest numbers; results use the same rows.

        Parameters
        ----------
        other : state
            A state of the same kind with other rows, which is not changed.

        Returns
        -------
        state
            The state itself.

        Raises
        ------
        TypeError
            If `other` is not a state of this kind.
        ValueError
            If an option differs, including the bandwidth of the kernel and the order of classes; if a row is in both.
        """
        if not isinstance(other, type(self)):
            raise TypeError(f"`other` is {type(other).__name__}, expected a {type(self).__name__}")
        self._accumulator = self._accumulator.merge(other._accumulator, self._threads)
        return self

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, type(self)):
            return NotImplemented
        first, second = sorted((self, other), key=lambda state: state._accumulator.options.part)
        return first.copy().merge(second)

    def copy(self) -> Self:
        """Return a copy."""
        return self._with(self._accumulator, self._threads)

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = self._arrays()
        return type(self)._from, (self._accumulator.options, arrays, self._threads)

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = self._flush().to_arrays()
        return arrays

    def _flush(self) -> Any:
        self._accumulator = self._accumulator.flush(self._threads)
        return self._accumulator

    def _content(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        arrays = self._arrays()
        return dict(vars(self._accumulator.options)), arrays

    @classmethod
    def _from_content(cls, options: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        defaults = {"clusters": False}
        option_values = {field.name: (defaults | options)[field.name] for field in fields(cls._OPTIONS)}  # type: ignore[arg-type]
        return cls._from(cls._OPTIONS.from_file(**option_values), arrays)

    @classmethod
    def _from(cls, options: SharedOptions, arrays: Mapping[str, np.ndarray], threads: int | None = None) -> Self:
        return cls._with(cls._ACCUMULATOR.of(options, arrays, threads), threads)

    @classmethod
    def _with(cls, accumulator: Accumulator, threads: int | None) -> Self:
        state = cls.__new__(cls)
        state._accumulator, state._threads = accumulator, threads
        return state


def checked_weights(sample_weight: Any, n: int, reference: Array) -> Array:
    """Return the float64 weights of n samples on the device of `reference`; 1 if None."""
    xp = arrays.namespace(reference)
    if sample_weight is None:
        return (
            np.ones(n) if arrays.is_host(reference) else xp.ones(n, dtype=xp.float64, device=arrays.device(reference))
        )
    weights = finite_weights(sample_weight, n, reference)
    highest = float(xp.max(weights))
    if highest > LARGEST_WEIGHT:
        raise ValueError(
            f"`sample_weight[{int(xp.argmax(weights))}]` is {show_number(highest)}, expected at most "
            f"{LARGEST_WEIGHT:.0f} in a state; divide all weights by the same number, so that "
            "their mean is about 1"
        )
    if float(xp.sum(weights * weights)) > 2.0**36:
        raise large_weights_error()
    return weights
