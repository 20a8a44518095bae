"""What all rooms must know of samples that are read in pieces: `Source`. The formats are in `streaming.sources`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any


class Source(ABC):
    """Samples in files, arrays or batches that are read in pieces; `kcalib.streaming.source` makes one."""

    @property
    @abstractmethod
    def n(self) -> int | None:
        """The number of samples; None where only reading all of them would tell."""

    @property
    @abstractmethod
    def n_classes(self) -> int:
        """The number of classes, 2 for predictions of shape (n,)."""

    @abstractmethod
    def chunks(self, rows: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Labels and predictions of the samples from `start` on, `rows` at a time, fewer in the last chunk.

        Nothing is read ahead: a chunk is read when it is asked for, and only this one is held.

        Parameters
        ----------
        rows : int
            Samples in a chunk, at least 1.
        start : int
            Number of the first sample, from 0; those before it are skipped, without reading them where the format
            allows it.

        Yields
        ------
        y_true : array, shape (rows,)
            Labels as numbers of the columns, int64.
        y_pred : array, shape (rows, m) or (rows,)
            Probabilities, checked; in the dtype that they are kept in, float64 if they are kept as logits.

        Raises
        ------
        ValueError
            If `start` is beyond the last sample, if a value is wrong (naming file, column and row), or if the samples
            come from an iterator that has been read before.
        """

    @abstractmethod
    def read(self, start: int, stop: int) -> tuple[Any, Any]:
        """Labels and predictions of the samples `start` to `stop` - 1.

        Parameters
        ----------
        start, stop : int
            ``0 <= start < stop``.

        Returns
        -------
        y_true, y_pred : array
            As `chunks` has them; functions of kcalib that read all samples at once take them.

        Raises
        ------
        ValueError
            As `chunks`, and if there are fewer than `stop` samples.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """A text that is the same for the same samples, and another after a file was changed; cheap.

        It is made of what can be looked at without reading everything: sizes, times of the last change, headers, the
        beginnings and the ends of files, some rows of arrays.
        """

    @abstractmethod
    def describe(self) -> str:
        """What is read, in words."""
