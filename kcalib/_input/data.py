"""`Data`: the interface of checked data, for estimators, tests, comparison and the command.

There are two kinds, `_input.labels.Classification` and `_input.forecasts.Forecasts`. A third kind would implement the
abstract members, and `_input.forecasts.prepare` would return it. Higher packages that treat the kinds differently use
`functools.singledispatch` functions; those of `_packing`, which make a pair problem, need an implementation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib.lenses import Lens


class Data(ABC):
    """Checked samples (predictions with targets) in one array library on one device; immutable."""

    noun: ClassVar[str]  # what the predictions are, for messages
    has_classes: ClassVar[bool]  # whether these are probabilities of classes
    sample_weight: Array | None  # float64, shape: (n,)
    dtype: str  # the pairwise arithmetic is in "float64" or "float32"
    lens: Lens  # the notion of calibration

    @property
    @abstractmethod
    def n(self) -> int:
        """The number of samples."""

    @property
    @abstractmethod
    def target_size(self) -> str:
        """Size of a target, in words; equal for comparable data."""

    @property
    def size(self) -> str:
        """Number of samples and size of targets, in words."""
        return f"{self.n} samples and {self.target_size}"

    @property
    @abstractmethod
    def reference(self) -> Array:
        """An array in the library and on the device of the data."""

    @property
    def xp(self) -> Any:
        """The array library."""
        return arrays.namespace(self.reference)

    @abstractmethod
    def take(self, rows: Array) -> Self:
        """Return the samples `rows` in this order; they may repeat."""

    def order(self, seed: int) -> Array:
        """Return ``numpy.random.default_rng(seed).permutation(n)``, on the device of the samples."""
        return arrays.like(np.random.default_rng(seed).permutation(self.n), self.reference)

    def permuted(self, seed: int) -> Self:
        """Return the samples in the order of `order`."""
        return self.take(self.order(seed))

    @abstractmethod
    def with_targets(self, targets: Array) -> Self:
        """Return the same predictions with other targets, in the internal form."""

    @abstractmethod
    def draw(self, seed: int, replicate: int) -> Self:
        """Draw a target from each prediction, as if the model were calibrated.

        A pure function of seed and replicate, with the same numbers for every array library.
        """

    @abstractmethod
    def draw_by(self, generator: np.random.Generator) -> Self:
        """Draw a target from each prediction with the next numbers of a generator."""

    @abstractmethod
    def redraw(self, seed: int, replicate: int) -> tuple[Array, Self]:
        """Draw n samples with replacement, and a target from each of their predictions."""

    @abstractmethod
    def as_given(self) -> tuple[Any, Any]:
        """Return targets and predictions in the form that user functions take."""

    @abstractmethod
    def listed(self) -> tuple[tuple[Any, ...], tuple[tuple[float, ...], ...]]:
        """Return targets and predictions as plain Python values for results."""

    def in_order_of(self, other: Data) -> Self:
        """Return the samples with their classes in the order of another model, by name."""
        return self

    @abstractmethod
    def mismatch(self, other: Self, name: str) -> str | None:
        """Describe how the samples differ from those of the model `name`; None if they are the same."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the fields of a result that describe the predictions."""
