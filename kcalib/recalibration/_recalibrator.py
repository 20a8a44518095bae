"""Base classes of recalibrators: parameters, fit, transform, checks of the input, output of the same kind.

`Recalibrator` is the protocol. `ClassRecalibrator`, for class probabilities, checks the input and calls `_fit` and
`_transform` of a subclass with `ClassSamples`, which are NumPy arrays of float64. Its subclass `OneVsRest` is for
binary methods, which handle one column at a time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array, kind_of
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.warnings import warn
from kcalib._input.checks import LARGEST_POINT, is_column
from kcalib._input.classes import POSITION, Classes, format_names, match_columns
from kcalib._input.forecasts import Forecasts, prepare_forecasts
from kcalib._input.frames import column_names
from kcalib._input.labels import Classification
from kcalib._input.labels import prepare as prepare_labels
from kcalib.distributions import Categorical, Distribution, as_distribution
from kcalib.distributions.adapters import is_external
from kcalib.recalibration._scalable import ProbabilityFloorWarning, family_of
from kcalib.regression._function import Parametrised

FLOOR, SMALLEST_FLOOR, SMALLEST_FLOAT = 1e-7, 1e-300, 5e-324


class SeparationWarning(UserWarning):
    """The predictions separate the classes of the fit: the likelihood has no maximum, as it grows towards certainty."""


class Recalibrator(Parametrised, ABC):
    """Base class of all recalibrators: fitted to labelled predictions, they transform other predictions.

    Parameters are the arguments of the constructor, stored unchanged and checked by `fit`, as in scikit-learn: there
    are `get_params`, `set_params` and `clone`. Names of fitted attributes end in ``_``.

    Attributes
    ----------
    n_samples_ : int
        Number of samples of the fit.
    family_ : str
        The kind of predictions that were fitted; `transform` takes the same kind.
    classes_, columns_ : tuple
        For class probabilities: the class of each column of the fit, and the column names, if any. `transform` takes
        frames with these names in any order.
    """

    n_samples_: int
    family_: str
    classes_: tuple[Any, ...]
    columns_: tuple[Any, ...]

    @abstractmethod
    def fit(
        self, y_true: Any, y_pred: Any, *, sample_weight: Any = None, classes: Any = None, from_logits: bool = False
    ) -> Self:
        """Fit to labelled predictions, which should not be those of the training set.

        Parameters
        ----------
        y_true : array_like
            Labels or targets, as in `kcalib.skce`.
        y_pred : array_like or Distribution
            Predictions, as in `kcalib.skce`.
        sample_weight : array_like, shape (n,), optional
            Non-negative weights.
        classes : array_like, shape (m,), optional
            The label of each column of `y_pred`, as in `kcalib.skce`.
        from_logits : bool
            Whether `y_pred` holds logits. They are used directly, without rounding by a softmax.

        Returns
        -------
        Recalibrator
            The fitted object itself.

        Raises
        ------
        TypeError, ValueError
            As `kcalib.skce`; if a parameter is invalid.
        """

    @abstractmethod
    def transform(self, y_pred: Any, *, classes: Any = None, from_logits: bool = False) -> Any:
        """Recalibrate predictions.

        Parameters
        ----------
        y_pred : array_like or Distribution
            Predictions of the kind that was fitted. Columns of frames may be in any order if they are named as in the
            fit, or after the classes.
        classes : array_like, shape (m,), optional
            The class of each column of an array; by default those of the fit, in their order.
        from_logits : bool
            Whether `y_pred` holds logits.

        Returns
        -------
        array or Distribution
            Class probabilities with the shape, floating point type and column order of `y_pred`, in the same array
            library on the same device (float32 if JAX has no 64-bit floats); NumPy arrays for lists, data frames and
            Dask arrays.

        Raises
        ------
        TypeError, ValueError
            As `kcalib.skce` for its `y_pred`; ValueError if the object is not fitted, or was fitted to another kind.
        """

    def fit_transform(
        self, y_true: Any, y_pred: Any, *, sample_weight: Any = None, classes: Any = None, from_logits: bool = False
    ) -> Any:
        """Fit, and transform the same predictions.

        Parameters
        ----------
        y_true, y_pred, sample_weight, classes, from_logits
            As in `fit`.

        Returns
        -------
        array or Distribution
            As `transform`. Evaluating these predictions on the same labels is optimistic.
        """
        self.fit(y_true, y_pred, sample_weight=sample_weight, classes=classes, from_logits=from_logits)
        return self.transform(y_pred, classes=classes, from_logits=from_logits)

    def _set_classes(self, data: Any, y_pred: Any) -> None:
        """Store the class of each column of the fit."""
        self.classes_, self.columns_ = data.class_names, column_names(y_pred, data.m)

    def _match_columns(self, y_pred: Any, m: int, names: Any = None) -> tuple[int, ...] | None:
        """Return the class of each column by name, or None if they are in the order of the fit."""
        columns = column_names(y_pred, m) if names is None else tuple(names)
        places = match_columns(columns, self.columns_, self.classes_)
        is_silent = names is not None and places is None and columns != self.columns_
        if is_silent and (len(columns) != m or self.classes_ != tuple(range(m))):
            raise ValueError(
                f"`classes` is {format_names(columns)}, but the fit had {format_names(self.classes_)}; name the same"
            )
        return None if places == tuple(range(m)) else places

    def _check_fitted(self) -> None:
        if not hasattr(self, "family_"):
            raise ValueError(f"this {type(self).__name__} is not fitted; call fit(y_true, y_pred) first")

    def _check_family(self, family: str) -> None:
        if family != self.family_:
            raise ValueError(
                f"`y_pred` holds {family}, but this {type(self).__name__} was fitted to {self.family_}; fit it to these"
            )


@dataclass(frozen=True)
class ClassSamples:
    """Checked class probabilities with their labels and weights, float64 on the host."""

    probabilities: np.ndarray  # unchanged, so that ties stay ties, shape: (n, m)
    labels: np.ndarray  # int64, 0..m-1, shape: (n,)
    weight: np.ndarray  # in a fit positive with mean 1, shape: (n,)
    logits: np.ndarray | None  # as given, with one column for each class, shape: (n, m)
    whole: ClassSamples | None = None  # all samples, if these are some `rows`: logarithms are computed once
    rows: np.ndarray | None = None

    @classmethod
    def of(cls, data: Classification, y_pred: Any, from_logits: bool) -> ClassSamples:
        """Return all samples of checked data."""
        p = arrays.to_compute_device(data.probabilities, np.float64)
        labels = arrays.to_compute_device(data.labels, np.int64)
        weight = np.ones(data.n)
        if data.sample_weight is not None:
            weight = arrays.to_compute_device(data.sample_weight, np.float64)
        return cls(p, labels, weight, two_columns(y_pred) if from_logits else None)

    def take(self, rows: np.ndarray) -> ClassSamples:
        """Return a subset of the samples."""
        logits = None if self.logits is None else self.logits[rows]
        return ClassSamples(self.probabilities[rows], self.labels[rows], self.weight[rows], logits, self, rows)

    def used(self) -> ClassSamples:
        """Return the samples with a non-negligible weight, with weights of mean 1."""
        part = self.take(np.flatnonzero(self.weight / self.weight.max() > 0))
        return replace(part, weight=part.weight / part.weight.mean())

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.labels)

    @property
    def m(self) -> int:
        """The number of classes."""
        return int(self.probabilities.shape[1])

    @property
    def scores(self) -> np.ndarray:
        """Logits as given, or the logarithms of probabilities, shape (n, m)."""
        return self.log_probabilities if self.logits is None else self.logits

    @cached_property
    def log_probabilities(self) -> np.ndarray:
        """Logarithms of the probabilities, for logits without rounding by a softmax, shape (n, m)."""
        if self.whole is not None:
            return self.whole.log_probabilities[self.rows]
        if self.logits is None:
            with np.errstate(divide="ignore"):
                return np.log(self.probabilities)
        shifted = self.logits - self.logits.max(axis=1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))

    @cached_property
    def log_complements(self) -> np.ndarray:
        """log(1 - p) of each class, shape (n, m); above 1/2 from the sum of the others, which keeps precision."""
        if self.whole is not None:
            return self.whole.log_complements[self.rows]
        p, logs = np.exp(self.log_probabilities), self.log_probabilities
        rows, classes = np.nonzero(p > 0.5)
        other_logs = logs[rows]
        other_logs[np.arange(len(rows)), classes] = -np.inf
        highest = other_logs.max(axis=1)
        with np.errstate(divide="ignore"):
            complements = np.log1p(-np.minimum(p, 0.5))
            shift = np.where(np.isfinite(highest), highest, 0.0)
            complements[rows, classes] = shift + np.log(np.exp(other_logs - shift[:, None]).sum(axis=1))
        return complements

    @property
    def zeros(self) -> np.ndarray:
        """Mask of probabilities of 0, including logits that are too low to be squared, such as masks."""
        return np.asarray(self.log_probabilities < -LARGEST_POINT)

    def with_floor(self, floor: float | None) -> ClassSamples:
        """Return the samples with smaller probabilities raised to the floor; if None, zeros only, to 5e-324."""
        lowest = math.log(SMALLEST_FLOAT if floor is None else floor)
        is_low = self.zeros if floor is None else self.log_probabilities < lowest
        if not is_low.any():
            return self
        if self.logits is not None:
            highest = self.logits.max(axis=1, keepdims=True)
            level = highest + np.log(np.exp(self.logits - highest).sum(axis=1, keepdims=True))
            return replace(self, logits=np.where(is_low, level + lowest, self.logits), whole=None)
        p = np.where(is_low, math.exp(lowest), self.probabilities)
        return replace(self, probabilities=p if floor is None else p / p.sum(axis=1, keepdims=True), whole=None)


class ClassRecalibrator(Recalibrator):
    """Base class of recalibrators of class probabilities."""

    _takes_logarithms: ClassVar[bool] = False  # has the parameter `floor` and the attribute `floor_`
    floor: float
    floor_: float | None
    _near: tuple[tuple[int, Any], ...] = ()  # fits to overlapping samples: a fit starts at this combination of them

    @on_their_gpu
    def fit(
        self, y_true: Any, y_pred: Any, *, sample_weight: Any = None, classes: Any = None, from_logits: bool = False
    ) -> Self:
        self._check_parameters()
        y_pred = arrays.compute_lazy(y_pred)
        if isinstance(y_pred, Categorical):
            y_pred, classes = unwrap_categorical(y_pred, classes, from_logits)
        self._check_no_distribution(y_pred)
        data = prepare_labels(y_true, y_pred, classes=classes, from_logits=from_logits, sample_weight=sample_weight)
        self._set_classes(data, y_pred)
        return self._fit_samples(self._make_samples(data, y_pred, from_logits))

    def _fit_samples(self, samples: ClassSamples) -> Self:
        self.n_samples_, self.family_ = samples.n, family_of_classes(samples.m)
        samples = samples.used()
        self._fit(self._raise_zeros(samples) if self._takes_logarithms else samples)
        return self

    @on_their_gpu
    def transform(self, y_pred: Any, *, classes: Any = None, from_logits: bool = False) -> Any:
        self._check_fitted()
        y_pred = arrays.compute_lazy(y_pred)
        if isinstance(y_pred, Categorical):
            p, classes = unwrap_categorical(y_pred, classes, from_logits)
            return Categorical(self._transform_checked(p, from_logits, classes), classes)
        return self._transform_checked(y_pred, from_logits, classes)

    def _transform_checked(self, y_pred: Any, from_logits: bool, names: Any = None) -> Any:
        data, samples, places = self._prepare_unlabelled(y_pred, from_logits, names)
        q = restore_order(self._transform_samples(samples), places)
        return restore_like(arrays.like(q, data.probabilities), y_pred)

    def _transform_samples(self, samples: ClassSamples) -> np.ndarray:
        return self._transform(samples.with_floor(self.floor_) if self._takes_logarithms else samples)

    def _prepare_unlabelled(
        self, y_pred: Any, from_logits: bool, names: Any = None
    ) -> tuple[Classification, ClassSamples, tuple[int, ...] | None]:
        """Return checked predictions to transform, the same as samples in the column order of the fit, and that order.

        The labels are 0. The order has the class of each column, or is None if it is that of the fit.
        """
        self._check_no_distribution(y_pred)
        data = prepare_unlabelled(y_pred, from_logits, self._check_family)
        samples = self._make_samples(data, y_pred, from_logits)
        places = self._match_columns(y_pred, data.m, names)
        if places is not None:
            order = np.argsort(places)
            logits = None if samples.logits is None else samples.logits[:, order]
            samples = replace(samples, probabilities=samples.probabilities[:, order], logits=logits)
        return data, samples, places

    def _make_samples(self, data: Classification, y_pred: Any, from_logits: bool) -> ClassSamples:
        arrays.check_not_cuda(data.probabilities, type(self).__name__)
        return ClassSamples.of(data, y_pred, from_logits)

    def _raise_zeros(self, samples: ClassSamples) -> ClassSamples:
        """Return the samples with finite log-probabilities, and set `floor_`."""
        floor = check_floor(self.floor)
        zero = samples.zeros
        self.floor_ = None
        if not zero.any():
            return samples
        self.floor_ = floor
        warn(
            f"`y_pred` has probabilities of 0 ({int(zero.any(axis=1).sum())} of {samples.n} samples have one), whose "
            f"logarithms are infinite: smaller probabilities were raised to floor={floor:g}, which affects the fit; "
            "pass another floor=, or logits",
            ProbabilityFloorWarning,
        )
        return samples.with_floor(floor)

    def _start(self) -> np.ndarray | None:
        """Return the start parameters of a fit, or None for the default."""
        return sum(factor * fitted._parameters() for factor, fitted in self._near) if self._near else None

    def _check_no_distribution(self, y_pred: Any) -> None:
        if isinstance(y_pred, Distribution):
            raise TypeError(
                f"`y_pred` is {type(y_pred).__name__}, expected class probabilities; for distributions use "
                "TemperatureScaling, ScaleCalibration or QuantileRecalibration"
            )

    @abstractmethod
    def _check_parameters(self) -> None:
        """Raise for invalid parameters, except `floor`."""

    @abstractmethod
    def _fit(self, samples: ClassSamples) -> None:
        """Set the attributes of the fit."""

    @abstractmethod
    def _transform(self, samples: ClassSamples) -> np.ndarray:
        """Return the recalibrated probabilities, shape (n, m)."""


class OneVsRest(ClassRecalibrator):
    """Base class that fits a binary problem for each class against all others; of two classes, for the second."""

    @abstractmethod
    def _fit_columns(self, samples: ClassSamples, columns: list[int]) -> None:
        """Set the attributes of the fit for these classes."""

    @abstractmethod
    def _hits_and_misses(self, samples: ClassSamples, columns: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities of these classes, and of their complements, shape (n, columns)."""

    def _fit(self, samples: ClassSamples) -> None:
        self._fit_columns(samples, columns_of(samples.m))

    def _transform(self, samples: ClassSamples) -> np.ndarray:
        hits, misses = self._hits_and_misses(samples, columns_of(samples.m))
        return np.concatenate([misses, hits], axis=1) if samples.m == 2 else normalise_rows(hits)


def columns_of(m: int) -> list[int]:
    """Return the classes with a binary problem."""
    return [1] if m == 2 else list(range(m))


def normalise_rows(scores: np.ndarray) -> np.ndarray:
    """Return rows divided by their sums; uniform where all scores are 0, as in scikit-learn."""
    sums = scores.sum(axis=1, keepdims=True)
    return np.where(sums > 0, scores, 1.0) / np.where(sums > 0, sums, scores.shape[1])


def two_columns(y_pred: Any) -> np.ndarray:
    """Return logits of all classes on the host, float64; a single column gets a first column of 0."""
    logits = arrays.to_compute_device(arrays.as_array(y_pred, "y_pred"), np.float64)
    if logits.ndim == 1 or logits.shape[1] == 1:
        second = logits.reshape(-1)
        logits = np.stack((np.zeros_like(second), second), axis=1)
    return logits


def family_of_classes(m: int) -> str:
    """Return a description of class probabilities, for comparisons and messages."""
    return f"probabilities of {m} classes"


def unwrap_categorical(y_pred: Categorical, classes: Any, from_logits: bool) -> tuple[Array, Any]:
    """Return the probabilities, and the classes from the prediction or from the argument."""
    if from_logits:
        raise ValueError("`from_logits` is for arrays, but `y_pred` is Categorical; leave it out")
    if classes is not None and y_pred.classes is not None:
        raise ValueError("`classes` is given twice, with `y_pred` and beside it; leave one out")
    return y_pred.probabilities, y_pred.classes if classes is None else classes


def prepare_unlabelled(y_pred: Any, from_logits: bool, check_family: Callable[[str], None]) -> Classification:
    """Return checked predictions, all with the label 0."""
    array = arrays.as_array(y_pred, "y_pred")
    if array.ndim in (1, 2) and all(array.shape):  # before sums, which differ from 1 if classes are missing
        check_family(family_of_classes(2 if is_column(array) else int(array.shape[1])))
    labels = np.zeros(array.shape[0] if array.ndim else 0, dtype=np.int64)
    return prepare_labels(labels, y_pred, from_logits=from_logits, classes=Classes((), POSITION))


def restore_order(q: np.ndarray, places: tuple[int, ...] | None) -> np.ndarray:
    """Return the columns of the fit in the order of the predictions, whose classes are `places`."""
    return q if places is None else q[:, list(places)]


def restore_like(q: Array, y_pred: Any) -> Array:
    """Return probabilities in the shape, the floating point type and the library of `y_pred`."""
    array = arrays.as_array(y_pred, "y_pred")
    if array.ndim == 1 or array.shape[1] == 1:
        q = arrays.namespace(q).reshape(q[:, 1], tuple(array.shape))
    if kind_of(array) == "f":
        q = arrays.namespace(q).astype(q, array.dtype, copy=False)
    return arrays.to_original_library(q, y_pred)


def check_number(name: str, value: Any, low: float, high: float, example: str) -> float:
    """Return a numeric parameter after checking it; `example` is a valid value for the message."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"`{name}` is {value!r}, expected a number, such as {example}")
    if not low <= value <= high:
        raise ValueError(f"`{name}` is {value}, expected a number from {low:g} to {high:g}, such as {example}")
    return float(value)


def check_floor(floor: Any, example: str = "1e-7") -> float:
    """Return the parameter `floor` after checking it."""
    return check_number("floor", floor, SMALLEST_FLOOR, 0.1, example)


def check_penalty(name: str, value: Any) -> float:
    """Return a penalty, or the weight of added samples, after checking it."""
    return check_number(name, value, 0.0, LARGEST_POINT, "1.0")


def check_flag(name: str, value: Any) -> bool:
    """Return a boolean parameter after checking it."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` is {value!r}, expected True or False")
    return bool(value)


class ForecastRecalibrator(Recalibrator):
    """Base class of recalibrators of predicted distributions, on the host."""

    @on_their_gpu
    def fit(
        self, y_true: Any, y_pred: Any, *, sample_weight: Any = None, classes: Any = None, from_logits: bool = False
    ) -> Self:
        self._check_parameters()
        self._check_left_out(classes=classes is not None, from_logits=from_logits)
        y_pred = self._checked_prediction(y_pred)
        data = prepare_forecasts(y_true, y_pred, sample_weight=sample_weight)
        arrays.check_not_cuda(data.y, type(self).__name__)
        weight = np.ones(data.n)
        if data.sample_weight is not None:
            weight = arrays.to_compute_device(data.sample_weight, np.float64)
        used = np.flatnonzero(weight > 0)
        used_data = data if len(used) == data.n else data.take(used)
        self._fit(used_data, weight[used] / weight[used].mean())
        self.n_samples_, self.family_ = data.n, family_of(data.prediction)
        return self

    @on_their_gpu
    def transform(self, y_pred: Any, *, classes: Any = None, from_logits: bool = False) -> Any:
        self._check_fitted()
        self._check_left_out(classes=classes is not None, from_logits=from_logits)
        y_pred = self._checked_prediction(y_pred)
        self._check_family(family_of(y_pred))
        return self._transform(y_pred)

    def _check_left_out(self, **options: bool) -> None:
        for name in (name for name, is_used in options.items() if is_used):
            raise ValueError(
                f"`{name}` is for class probabilities, {type(self).__name__} for distributions; leave it out"
            )

    def _checked_prediction(self, y_pred: Any) -> Distribution:
        if is_external(y_pred):
            y_pred = as_distribution(y_pred)
        if not isinstance(y_pred, Distribution) or isinstance(y_pred, Categorical):
            raise TypeError(
                f"`y_pred` is {type(y_pred).__name__}, expected a distribution of kcalib.distributions; for class "
                "probabilities use another recalibrator, such as TemperatureScaling"
            )
        self._check_kind(y_pred)
        return y_pred

    @abstractmethod
    def _check_parameters(self) -> None:
        """Raise for invalid parameters."""

    @abstractmethod
    def _check_kind(self, prediction: Distribution) -> None:
        """Raise for distributions that cannot be recalibrated."""

    @abstractmethod
    def _fit(self, data: Forecasts, weight: np.ndarray) -> None:
        """Set the attributes of the fit to samples with weights of mean 1."""

    @abstractmethod
    def _transform(self, prediction: Distribution) -> Distribution:
        """Return the recalibrated distributions."""
