"""What all rooms must know of samples that are read in pieces: `Source`. The formats are in `streaming.sources`.

Public functions of lower rooms take a source in place of `y_true`. Sums over it are those of
`streaming.CalibrationState`, of which these rooms know nothing: they ask the source for them (`Source.summed`), and the
sums for results (`Summed`).
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

if TYPE_CHECKING:  # of them the results of few calls are made
    from kcalib.evaluation_results import Evaluation, ForecastEvaluation
    from kcalib.results import CalibrationTestResult, Comparison, SKCEResult


class Summed(Protocol):
    """Sums over all samples of a source, as `kcalib.streaming.CalibrationState` has them."""

    def result(self, *, level: float, tolerance: float | None) -> Evaluation | ForecastEvaluation: ...

    def skce(self) -> SKCEResult: ...

    def calibration_test(self) -> CalibrationTestResult: ...


class SummedTogether(Protocol):
    """The same for several models, as `kcalib.streaming.ComparisonState` has them."""

    def result(self, metric: str, *, confidence_level: float) -> Comparison: ...


class Source(ABC):
    """Samples in files, arrays or batches that are read in pieces; `kcalib.streaming.source` makes one."""

    @property
    @abstractmethod
    def n(self) -> int | None:
        """The number of samples; None where only reading all of them would tell."""

    @property
    @abstractmethod
    def prediction(self) -> str | None:
        """The family of predicted distributions, such as "Normal"; None for class probabilities."""

    @property
    @abstractmethod
    def n_classes(self) -> int:
        """The number of classes, 2 for predictions of shape (n,); a ValueError for predicted distributions."""

    @property
    @abstractmethod
    def n_columns(self) -> int:
        """The number of numbers in a prediction, at least 1."""

    @abstractmethod
    def chunks(self, rows: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yield labels or targets, and predictions, from `start` on, `rows` at a time, fewer in the last chunk.

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
        y_true : array, shape (rows,) or (rows, d)
            Labels as numbers of the columns, int64; targets, float64.
        y_pred : array, shape (rows, m) or (rows,), or Distribution
            Probabilities, checked; in the dtype that they are kept in, float64 if they are kept as logits. Or
            predicted distributions.

        Raises
        ------
        ValueError
            If `start` is beyond the last sample, if a value is wrong (naming file, column and row), or if the samples
            come from an iterator that has been read before.
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
        """Return a text that differs after a file was changed, without reading everything.

        It comes from sizes, times of the last change, headers, beginnings and ends of files, and some rows of arrays.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return what is read, in words."""

    @abstractmethod
    def summed(self, **options: Any) -> Summed:
        """Return sums over all samples, chunk by chunk.

        Parameters
        ----------
        **options
            Of the state.
        """

    @abstractmethod
    def summed_together(self, models: Mapping[str, Source], **options: Any) -> SummedTogether:
        """Return the same for several models with the same labels, of which this is one.

        Parameters
        ----------
        models : mapping of str to Source
            The models by name.
        **options
            Of the state.
        """


@singledispatch
def rows_of(pred: Any, rows: slice) -> Any:
    """Return some rows of predictions that a source has given."""
    return pred[rows]


@rows_of.register
def _(pred: Distribution, rows: slice) -> Distribution:
    return pred.take(rows)


@rows_of.register
def _(pred: Classification, rows: slice) -> Classification:
    """Return rows of checked predictions, which have no weights."""
    return replace(pred, labels=pred.labels[rows], given=pred.probabilities[rows, :])


def is_source(y_true: Any, y_pred: Any, name: str = "y_pred") -> TypeGuard[Source]:
    """Whether a public function was given a source; its predictions, called `name`, are then left out."""
    if isinstance(y_true, Source):
        if y_pred is not None:
            raise TypeError(f"`{name}` is given beside a source, which has the predictions; leave it out")
        return True
    if y_pred is None:
        raise TypeError(f"`{name}` is missing; pass labels and predictions, or a source of both")
    return False


def check_left_to_source(classes: Any, from_logits: Any) -> None:
    """Refuse options that a source has."""
    for name, value in {"classes": classes, "from_logits": from_logits or None}.items():
        if value is not None:
            raise OptionError(name, f"is {value!r}, but a source has its own; pass it to kcalib.streaming.source")


def check_of_classes(prediction: str | None, **options: Any) -> None:
    """Refuse options of class probabilities where a source has distributions."""
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
    """Return the options that are given."""
    return {name: value for name, value in options.items() if value is not None}
