"""Parameters of predicted distributions as arrays with rows: `Parameters`, and what joins any predictions.

A part reads parameters as it reads class probabilities, in pieces that are cut and joined; `part.checked` makes
distributions of them, which are what whoever reads a source gets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from math import prod
from typing import Any

import numpy as np

import kcalib.distributions as distributions
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._input.columns import FileError
from kcalib._input.labels import Classification
from kcalib.distributions import Distribution
from kcalib.streaming._families import FIELDS, OTHERS


@dataclass(frozen=True, eq=False)
class Parameters:
    """Of distributions of one family, one for each row."""

    family: str  # a class of `kcalib.distributions`
    values: Mapping[str, Array]  # by the names that the family has for them
    made: Distribution | None = None  # a distribution of the family whose parameters these are, checked already

    @classmethod
    def of(cls, made: Distribution) -> Parameters:
        """Those of distributions."""
        fields = FIELDS.get(type(made))
        if fields is None or getattr(made, "weights", None) is not None:
            weights = "" if fields is None else " with weights"
            raise FileError(f"the predictions are {type(made).__name__}{weights}, which come in no pieces; {OTHERS}")
        return cls(type(made).__name__, {name: getattr(made, name) for name in fields}, made)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and numbers in each."""
        rows = min(int(array.shape[0]) for array in self.values.values())
        return rows, sum(prod(map(int, array.shape[1:])) for array in self.values.values())

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Parameters:
        return dataclasses.replace(self, values={name: array[rows] for name, array in self.values.items()})

    def distribution(self) -> Distribution:
        """The distributions; errors are those of `kcalib.distributions`."""
        if self.made is not None:
            return self.made._with(**self.values)
        made: Distribution = getattr(distributions, self.family)(**self.values)
        return made


def joined_predictions(pieces: Sequence[Any]) -> Any:
    """Pieces one after the other."""
    return pieces[0] if len(pieces) == 1 else _joined(pieces[0], pieces)


@singledispatch
def _joined(first: Any, pieces: Sequence[Any]) -> Any:
    return arrays.namespace(first).concat(pieces, axis=0)


@_joined.register
def _(first: Parameters, pieces: Sequence[Parameters]) -> Parameters:
    for piece in pieces:
        sizes = [[tuple(array.shape[1:]) for array in one.values.values()] for one in (piece, first)]
        if piece.family != first.family or sizes[0] != sizes[1]:
            raise FileError(
                f"there are {piece.family} with parameters of shapes {sizes[0]} after {first.family} of {sizes[1]}; "
                "parts of one source hold the same"
            )
    values = {
        name: arrays.namespace(array).concat([piece.values[name] for piece in pieces], axis=0)
        for name, array in first.values.items()
    }
    return dataclasses.replace(first, values=values)


@_joined.register
def _(first: Classification, pieces: Sequence[Classification]) -> Classification:
    labels = np.concatenate([one.labels for one in pieces])
    p = np.concatenate([one.probabilities for one in pieces])
    epsilon = min(one.input_epsilon for one in pieces)
    return dataclasses.replace(first, labels=labels, probabilities=p, input_epsilon=epsilon)


@_joined.register
def _(first: Distribution, pieces: Sequence[Distribution]) -> Distribution:
    joined: Parameters = _joined(Parameters.of(first), [Parameters.of(piece) for piece in pieces])
    return joined.distribution()
