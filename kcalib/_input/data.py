"""What all checked data offer, whatever was predicted: estimators, tests, comparison and the command ask for no more.

There are two kinds, `_input.labels.Classification` and `_input.forecasts.Forecasts`. A third, say counts of a
multinomial, or times that may be censored, would be a class with the abstract members of `Data`, which
`_input.forecasts.prepare` returns. Imports point down, so data know nothing of the rooms above. Where these treat the
kinds differently beyond what is here, they have a `functools.singledispatch` function: those of `_packing`, which makes
a pair problem of the data, are the ones to register for, in a file of its own there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib.lenses import Lens


class Data(ABC):
    """Checked samples, predictions with a target each, in one array library on one device; immutable."""

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
        """What a target is one of, or made of, in words; data of the same kind and size have equal ones."""

    @property
    def size(self) -> str:
        """How many samples of what size, in words."""
        return f"{self.n} samples and {self.target_size}"

    @property
    @abstractmethod
    def reference(self) -> Array:
        """An array in the library and on the device of all of them."""

    @property
    def xp(self) -> Any:
        """The array library."""
        return arrays.namespace(self.reference)

    @abstractmethod
    def take(self, rows: Array) -> Self:
        """Return the samples `rows`, in this order; some may be repeated."""

    def order(self, seed: int) -> Array:
        """Return ``numpy.random.default_rng(seed).permutation(n)``, on the device of the samples."""
        return arrays.like(np.random.default_rng(seed).permutation(self.n), self.reference)

    def permuted(self, seed: int) -> Self:
        """Return the samples in the order of `order`."""
        return self.take(self.order(seed))

    @abstractmethod
    def with_targets(self, targets: Array) -> Self:
        """Return the same predictions with other targets, in the form in which they are kept here."""

    @abstractmethod
    def draw(self, seed: int, replicate: int) -> Self:
        """Draw a target from each prediction, as if these were calibrated.

        A pure function of seed and replicate, with the same numbers for every array library.
        """

    @abstractmethod
    def draw_by(self, generator: np.random.Generator) -> Self:
        """Draw the same with the next numbers of a generator."""

    @abstractmethod
    def redraw(self, seed: int, replicate: int) -> tuple[Array, Self]:
        """Draw n samples with replacement, and a target from each of their predictions."""

    @abstractmethod
    def as_given(self) -> tuple[Any, Any]:
        """Return targets and predictions in the form in which a function of the user takes them."""

    @abstractmethod
    def listed(self) -> tuple[tuple[Any, ...], tuple[tuple[float, ...], ...]]:
        """Return targets and predictions as plain Python values, in the form in which results show them."""

    def in_order_of(self, other: Data) -> Self:
        """Return the same samples with their classes, if there are any, in the order of another model's, by name."""
        return self

    @abstractmethod
    def mismatch(self, other: Self, name: str) -> str | None:
        """Return how the samples differ from those of the model called `name`; None if they are the same."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the fields of a result that say what was predicted."""
