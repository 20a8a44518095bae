"""Fit loess in one dimension, as ``loess(y ~ x)`` in R: local quadratics at vertices, cubics between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib._backend.threads import one_blas_thread

SPAN = 0.75  # share of the samples that a local fit uses
CELL = 0.2  # largest number of samples between two vertices, relative to the span
MARGIN = 0.005  # distance of the outer vertices from the range, relative to the range
SINGULAR = 1e-10  # local moments ignore eigenvalues below this, relative to the largest


@dataclass(frozen=True, eq=False)
class Loess:
    """Vertices of the local fits and the width of each."""

    x: np.ndarray  # ascending, shape: (n,)
    vertices: np.ndarray  # ascending
    widths: np.ndarray  # distance at which the weights of a fit are 0

    @classmethod
    def of(cls, x: np.ndarray) -> Loess:
        margin = MARGIN * max(x[-1] - x[0], 1e-10 * max(abs(x[0]), abs(x[-1])) + 1e-30)
        low, high = float(x[0] - margin), float(x[-1] + margin)
        vertices = np.array([low, *_cuts(x, low, high, int(len(x) * SPAN * CELL)), high])
        return cls(x, vertices, np.array([_width(x, vertex) for vertex in vertices]))

    @one_blas_thread()
    def fit(self, y: np.ndarray, weight: np.ndarray) -> Any:
        """Return the smooth curve of y as a spline; r curves for y or weights of shape (n, r), the other (n, 1)."""
        values, slopes = [], []
        for vertex, width in zip(self.vertices, self.widths, strict=True):
            rows = slice(*np.searchsorted(self.x, [vertex - width, vertex + width]))
            u = (self.x[rows] - vertex) / width
            powers = u ** np.arange(5)[:, None] * (1 - np.minimum(np.abs(u), 1.0) ** 3) ** 3
            moments, products = powers @ weight[rows], powers[:3] @ (y[rows] * weight[rows])
            matrices = np.moveaxis(moments[np.add.outer(np.arange(3), np.arange(3))], (0, 1), (-2, -1))
            inverses = np.linalg.pinv(matrices, SINGULAR, hermitian=True)
            value, slope, _ = np.moveaxis(inverses @ np.moveaxis(products, 0, -1)[..., None], -2, 0)[..., 0]
            values.append(value)
            slopes.append(slope / width)
        return scipy.interpolate.CubicHermiteSpline(self.vertices, np.array(values), np.array(slopes))


def _cuts(x: np.ndarray, low: float, high: float, most: int) -> list[float]:
    """Return medians that split x, until no part has more than `most` samples, unless they are equal."""
    if len(x) <= most:
        return []
    middle = (len(x) - 1) // 2
    # The values of x change after these.
    ends = np.searchsorted(x, x[middle], side="right") - 1, np.searchsorted(x, x[middle]) - 1
    at = min((end for end in ends if 0 <= end < len(x) - 1), key=lambda end: abs(end - middle), default=middle)
    cut = float(x[at])
    if cut in (low, high):
        return []
    return [*_cuts(x[: at + 1], low, cut, most), cut, *_cuts(x[at + 1 :], cut, high, most)]


def _width(x: np.ndarray, vertex: float) -> float:
    """Return the distance that the span reaches, or more if no sample would have a positive weight."""
    count, low, high = max(1, int(len(x) * SPAN + 1e-5)), -1.0, float(np.max(np.abs(x[[0, -1]] - vertex)))
    while low < (middle := (low + high) / 2) < high:
        first, last = np.searchsorted(x, vertex - middle), np.searchsorted(x, vertex + middle, side="right")
        low, high = (low, middle) if last - first >= count else (middle, high)
    nearest = float(np.min(np.abs(x - vertex)))
    return max(high, 1.001 * nearest) or 1.0
