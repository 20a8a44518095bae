"""`Source`: samples that are read in chunks. The formats are in `streaming.sources`.

Public functions take a source in place of `y_true`. They ask it for sums over all samples (`Source.summed`), which
`streaming.CalibrationState` computes, and the sums for results (`Summed`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import singledispatch
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from kcalib._backend.options import OptionError
from kcalib._input.labels import Classification
from kcalib.distributions import Distribution

if TYPE_CHECKING:
    from kcalib.evaluation_results import Evaluation, ForecastEvaluation
    from kcalib.results import CalibrationTestResult, Comparison, SKCEResult


class Summed(Protocol):
    """Sums over all samples of a source, as `kcalib.streaming.CalibrationState` has them."""

    def result(self, *, level: float, tolerance: float | None) -> Evaluation | ForecastEvaluation: ...

    def skce(self) -> SKCEResult: ...

    def calibration_test(self) -> CalibrationTestResult: ...


class SummedTogether(Protocol):
    """Sums over several models, as `kcalib.streaming.ComparisonState` has them."""

    def result(self, metric: str, *, confidence_level: float) -> Comparison: ...


class Source(ABC):
    """Samples in files, arrays or batches that are read in chunks; `kcalib.streaming.source` opens one."""

    @property
    @abstractmethod
    def n(self) -> int | None:
        """The number of samples; None if it is unknown before all are read."""

    @property
    @abstractmethod
    def prediction(self) -> str | None:
        """The family of predicted distributions, such as "Normal"; None for class probabilities."""

    @property
    @abstractmethod
    def n_classes(self) -> int:
        """The number of classes, 2 for predictions of shape (n,). A ValueError for predicted distributions."""

    @property
    @abstractmethod
    def n_columns(self) -> int:
        """The number of values of a prediction, at least 1."""

    @abstractmethod
    def chunks(self, rows: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yield labels or targets, and predictions, from sample `start` on in chunks of `rows` samples.

        A chunk is read when it is asked for, and only this one is held in memory.

        Parameters
        ----------
        rows : int
            Samples in a chunk, at least 1; the last chunk may have fewer.
        start : int
            Number of the first sample, from 0. Earlier samples are skipped without reading them if the format allows
            it.

        Yields
        ------
        y_true : array, shape (rows,) or (rows, d)
            Labels as column numbers, int64; or targets, float64.
        y_pred : array, shape (rows, m) or (rows,), or Distribution
            Checked probabilities in the dtype of the file, float64 if the file holds logits; or predicted
            distributions.

        Raises
        ------
        ValueError
            If `start` is beyond the last sample; if a value is wrong (the message names file, column and row); or if
            the samples come from an iterator that was read before.
        """

    @abstractmethod
    def read(self, start: int, stop: int) -> tuple[Any, Any]:
        """Return labels and predictions of the samples `start` to `stop` - 1.

        Parameters
        ----------
        start, stop : int
            ``0 <= start < stop``.

        Returns
        -------
        y_true : array, shape (stop - start,) or (stop - start, d)
            As `chunks` yields them.
        y_pred : array, shape (stop - start, m) or (stop - start,), or Distribution
            The same.

        Raises
        ------
        ValueError
            As `chunks`, and if there are fewer than `stop` samples.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a text that changes when a file changes, without reading everything.

        It is computed from sizes, modification times, headers, beginnings and ends of files, and some rows of arrays.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return a description of what is read."""

    @abstractmethod
    def summed(self, **options: Any) -> Summed:
        """Return sums over all samples, chunk by chunk.

        Parameters
        ----------
        **options
            Options of the state.
        """

    @abstractmethod
    def summed_together(self, models: Mapping[str, Source], **options: Any) -> SummedTogether:
        """Return sums over several models with the same labels, of which this source is one.

        Parameters
        ----------
        models : mapping of str to Source
            The models by name.
        **options
            Of the state.
        """


@singledispatch
def rows_of(pred: Any, rows: slice) -> Any:
    """Return some rows of the predictions of a source."""
    return pred[rows]


@rows_of.register
def _(pred: Distribution, rows: slice) -> Distribution:
    return pred.take(rows)


@rows_of.register
def _(pred: Classification, rows: slice) -> Classification:
    """Return rows of checked predictions, which have no weights."""
    return replace(pred, labels=pred.labels[rows], given=pred.probabilities[rows, :])


def is_source(y_true: Any, y_pred: Any, name: str = "y_pred") -> TypeGuard[Source]:
    """Return whether a public function was given a source; its predictions, called `name`, must then be missing."""
    if isinstance(y_true, Source):
        if y_pred is not None:
            raise TypeError(f"`{name}` is given with a source, which has the predictions; leave it out")
        return True
    if y_pred is None:
        raise TypeError(f"`{name}` is missing; pass labels and predictions, or a source")
    return False


def check_left_to_source(classes: Any, from_logits: Any) -> None:
    """Refuse options that belong to the source."""
    for name, value in {"classes": classes, "from_logits": from_logits or None}.items():
        if value is not None:
            raise OptionError(name, f"is {value!r}, but a source has its own; pass it to kcalib.streaming.source")


def check_of_classes(prediction: str | None, **options: Any) -> None:
    """Refuse options of class probabilities if a source has distributions."""
    for name, value in options.items():
        if prediction is not None and value is not None:
            raise OptionError(
                name, f"is for class probabilities, but the source has {prediction} distributions; leave it out"
            )


def check_not_for_sums(**options: Any) -> None:
    """Refuse options that sums over a source do not have."""
    for name, value in options.items():
        if value is not None:
            remedy = "open the source with clusters=" if name == "clusters" else "leave it out"
            description = "given" if hasattr(value, "__len__") and not isinstance(value, str) else repr(value)
            raise OptionError(name, f"is {description}, but sums over a source have no such option; {remedy}")


def state_options(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
