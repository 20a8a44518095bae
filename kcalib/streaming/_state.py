"""What states of single models have in common, whatever they are of: rows, merging, copies, and what files hold."""

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

VALUES_AT_ONCE, ROWS_AT_ONCE = 2**24, 2**18  # of a batch; what is made of them takes less memory than a large batch


class ModelState(Saved):
    """Of one model: options, and contents that are replaced as a whole."""

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
        """Return the clusters of a batch, if the state is of samples in clusters."""
        if clusters is None:
            if self.options.clusters and n:
                raise ValueError(
                    "`clusters` is missing, but the state was made with clusters=True; pass the cluster of each sample"
                )
            return np.zeros(n, dtype=np.int64)
        if not self.options.clusters:
            raise ValueError("`clusters` is given, but the state is of independent samples; make it with clusters=True")
        return read_clusters(clusters, n)

    def _start(self, options: SharedOptions, threads: int | None) -> None:
        """With no rows."""
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
        """Add all rows of another state with the same options, but for `part`; an error leaves both as they were.

        The state keeps its own `part`, in which it counts on; ``a + b`` is a new state of the smaller one. A state that
        does not know its bandwidth yet takes that of one that does. While none does, all rows are held, in memory, too:
        at most 1999 of each state that is merged. The next `update` fixes the bandwidth as soon as there are 2000
        rows, on those of the smallest numbers; results take the same rows.

        Parameters
        ----------
        other : state
            Of the same kind, of other rows; it stays as it is.

        Returns
        -------
        state
            The state itself.

        Raises
        ------
        TypeError
            If `other` is no state of this kind.
        ValueError
            If an option differs, the bandwidth of the kernel and the order of classes among them; if a row is in both.
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
        """Another state with the same rows."""
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
    """Weights of n samples, float64, beside the reference; 1 where none are given."""
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
            f"{LARGEST_WEIGHT:.0f} in a state, whose sums are in fixed point; divide all weights by one number, so "
            "that their mean is about 1"
        )
    if float(xp.sum(weights * weights)) > 2.0**36:
        raise large_weights_error()
    return weights
