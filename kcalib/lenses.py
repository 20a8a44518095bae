"""Lenses: weaker notions of calibration, as maps of labels and predictions to an induced problem.

    Canonical    the predictions as they are
    TopLabel     is the predicted class right, beside the confidence in it
    ClassWise    one class against all others

A lens maps (y, P) to (y', P'), labels and predictions of another problem, to which every estimator and test applies:
`_inputs.prepare` looks through it after its checks, so that nothing behind it knows.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._options import check_integer

__all__ = ["Canonical", "ClassWise", "Lens", "TopLabel"]

Data = TypeVar("Data", bound=Any)  # _inputs.Classification


class Lens:
    """Base of all lenses."""

    is_scalar: ClassVar[bool] = False  # the induced problem is binary: one probability and its complement

    def induced(self, data: Data) -> Data:
        """The checked data seen through the lens, without `classes`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Canonical(Lens):
    """The whole vector of predictions: the strongest notion, and the default."""

    def induced(self, data: Data) -> Data:
        return data


@dataclass(frozen=True)
class TopLabel(Lens):
    """The confidence in the predicted class, and whether that class is right.

    Of classes tied for the highest probability the first is the predicted one.
    """

    is_scalar: ClassVar[bool] = True

    def induced(self, data: Data) -> Data:
        xp, p = data.xp, data.probabilities
        return _one_against_others(data, xp.astype(xp.argmax(p, axis=1), xp.int64))


@dataclass(frozen=True)
class ClassWise(Lens):
    """The probability of one class, against all others.

    Parameters
    ----------
    index : int
        The class's column in the predictions, 0..m-1.
    """

    index: int

    is_scalar: ClassVar[bool] = True

    def induced(self, data: Data) -> Data:
        index = check_integer("index", self.index, 0, data.m - 1, ": the column of a class")
        return _one_against_others(data, data.xp.full_like(data.labels, index))


def _one_against_others(data: Data, chosen: Array) -> Data:
    """Binary problem: is the class `chosen`, shape (n,), the label? Column 1 is its probability, column 0 the others'.

    The others' probabilities are added up, since 1 - p has lost the digits of a confidence near 1 in float32.
    """
    xp, p = data.xp, data.probabilities
    columns = xp.arange(data.m, device=_arrays.device(p))
    mask = chosen[:, None] == columns[None, :]
    zero = xp.zeros_like(p)
    confidence = xp.sum(xp.where(mask, p, zero), axis=1)
    others = xp.sum(xp.where(mask, zero, p), axis=1)
    return dataclasses.replace(
        data,
        labels=xp.astype(chosen == data.labels, xp.int64),
        probabilities=xp.stack((others, confidence), axis=1),
        classes=None,
    )
