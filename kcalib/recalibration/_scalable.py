"""Data that temperature scaling applies to: labels with class probabilities, and targets with distributions.

`scalable` makes a `Scalable` from checked data, for the likelihood and the SKCE.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array, cast
from kcalib._backend.warnings import warn
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib.distributions import Distribution
from kcalib.recalibration._families import temper
from kcalib.recalibration._likelihood import Likelihood, likelihood_of, of_labels
from kcalib.regression.temperature import at_temperature, logits_of


class ProbabilityFloorWarning(UserWarning):
    """A label has the predicted probability 0; small probabilities were raised to make the likelihood positive."""


class Scalable(ABC):
    """Checked data whose predictions can be scaled."""

    data: Data

    @property
    @abstractmethod
    def family(self) -> str:
        """The kind of predictions, for comparisons and messages."""

    @abstractmethod
    def at(self, temperature: float) -> Data:
        """Return the data with predictions at a temperature."""

    @abstractmethod
    def likelihood(self) -> Likelihood:
        """Return the likelihood of the targets as a function of the temperature."""

    def ensure_likelihood(self, floor: float | None) -> tuple[Scalable, float | None]:
        """Return predictions with a positive likelihood, and the floor of their probabilities or None."""
        return self, None


@dataclass(frozen=True)
class Labels(Scalable):
    """Labels and class probabilities."""

    data: Classification
    logits: Array  # shape (n, m), the largest of each row is 0

    @classmethod
    def of(cls, data: Classification, y_pred: Any, from_logits: bool) -> Labels:
        """Make an instance from logits as given, or from those of the probabilities."""
        return cls(data, logits_given(data, y_pred) if from_logits else logits_of(data.probabilities))

    @property
    def family(self) -> str:
        return f"probabilities of {self.data.m} classes"

    def at(self, temperature: float) -> Classification:
        return replace(self.data, given=at_temperature(self.logits, temperature), losses=None)

    def likelihood(self) -> Likelihood:
        logits, labels = arrays.to_compute_device(self.logits, np.float64), arrays.to_compute_device(self.data.labels)
        return of_labels(logits, labels, _weights(self.data, self.data.probabilities[:, 0]))

    def ensure_likelihood(self, floor: float | None) -> tuple[Labels, float | None]:
        xp, labels, weight = self.data.xp, self.data.labels, self.data.sample_weight
        impossible = xp.take_along_axis(self.logits, labels[:, None], axis=1)[:, 0] == -xp.inf
        if weight is not None:
            impossible = impossible & (weight > 0)
        count = int(xp.sum(xp.astype(impossible, xp.int64)))
        if not count:
            return self, None
        i = int(xp.argmax(xp.astype(impossible, xp.int8)))
        label = self.data.class_names[int(labels[i])]
        samples = f"{count} of {self.data.n} samples"
        problem = f"`y_true[{i}]` is class {label}, whose predicted probability is 0 ({samples})"
        if floor is None:
            raise ValueError(
                f"{problem}: the likelihood is 0 at every temperature; pass floor=1e-7, which raises smaller "
                "probabilities, or logits"
            )
        warn(
            f"{problem}: smaller probabilities were raised to floor={floor:g}, which affects the temperature; pass "
            "another floor=, or logits",
            ProbabilityFloorWarning,
        )
        return self.with_floor(floor), floor

    def with_floor(self, floor: float) -> Labels:
        """Return predictions with smaller probabilities raised to the floor.

        The rows no longer sum to 1, which a softmax does not need.
        """
        xp = self.data.xp
        lowest = math.log(floor) + xp.log(xp.sum(xp.exp(self.logits), axis=1, keepdims=True))
        return replace(self, logits=xp.where(self.logits < lowest, lowest, self.logits))


@dataclass(frozen=True)
class Targets(Scalable):
    """Targets and predicted distributions."""

    data: Forecasts

    @property
    def family(self) -> str:
        return family_of(self.data.prediction)

    def at(self, temperature: float) -> Forecasts:
        return replace(self.data, prediction=temper(self.data.prediction, temperature))

    def likelihood(self) -> Likelihood:
        return likelihood_of(self.data.prediction, self.data.y, _weights(self.data, self.data.y[:, 0]))


@functools.singledispatch
def scalable(data: Data, y_pred: Any, from_logits: bool) -> Scalable:
    """Return the scalable data of checked data and the predictions as given."""
    raise AssertionError(f"nothing is registered for {type(data).__name__}")


@scalable.register
def _(data: Classification, y_pred: Any, from_logits: bool) -> Labels:
    return Labels.of(data, y_pred, from_logits)


@scalable.register
def _(data: Forecasts, y_pred: Any, from_logits: bool) -> Targets:
    return Targets(data)


def family_of(prediction: Distribution) -> str:
    """Return the kind of predictions of distributions, for comparisons and messages."""
    size = "" if prediction.event_shape == () else f" of {prediction.n_dims} entries"
    return f"{type(prediction).__name__} distributions{size}"


def _weights(data: Data, targets: Array) -> Array:
    """Return the weights of the samples, by default 1, on the device of the targets."""
    if data.sample_weight is not None:
        return arrays.to_compute_device(data.sample_weight, np.float64)
    computed = arrays.to_compute_device(targets, np.float64)
    return arrays.namespace(computed).ones_like(computed)


def logits_given(data: Classification, y_pred: Any) -> Array:
    """Return logits as given, without rounding by a softmax, shape (n, m), with the largest of each row 0."""
    xp = data.xp
    logits = cast(xp, arrays.as_array(y_pred, "y_pred"), "float64", or_else="float32")
    if logits.ndim == 1 or logits.shape[1] == 1:
        second = xp.reshape(logits, (-1,))
        logits = xp.stack((xp.zeros_like(second), second), axis=1)
    return logits - xp.max(logits, axis=1, keepdims=True)
