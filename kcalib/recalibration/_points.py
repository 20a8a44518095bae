"""Samples whose predictions are equal, as one point: what isotonic regressions are of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Points(NamedTuple):
    """Distinct predictions of one class, ascending."""

    place: np.ndarray  # shape: (k,)
    weight: np.ndarray  # sum over the samples, shape: (k,)
    hits: np.ndarray  # sum over those of the class, shape: (k,)


def points_of(predicted: np.ndarray, hits: np.ndarray, weight: np.ndarray) -> Points:
    """Of samples of shape (n,); `hits` says which are of the class."""
    place, number = np.unique(predicted, return_inverse=True)
    return Points(
        place,
        np.bincount(number, weights=weight, minlength=len(place)),
        np.bincount(number, weights=weight * hits, minlength=len(place)),
    )
