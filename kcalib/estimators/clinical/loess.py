"""Loess in one dimension, as R's ``loess(y ~ x)``: local quadratics at a few vertices, and cubics between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib._backend.threads import one_blas_thread

SPAN = 0.75  # share of the samples that a local fit looks at
CELL = 0.2  # of the span: the largest share of the samples between two vertices
MARGIN = 0.005  # of the range, by which the outer vertices lie outside
SINGULAR = 1e-10  # eigenvalues of local moments, beside the largest, that say nothing


@dataclass(frozen=True, eq=False)
class Loess:
    """Where the local fits are, and how far each looks."""

    x: np.ndarray  # ascending, shape: (n,)
    vertices: np.ndarray  # ascending
    widths: np.ndarray  # distance at which the weights of each fit vanish

    @classmethod
    def of(cls, x: np.ndarray) -> Loess:
        margin = MARGIN * max(x[-1] - x[0], 1e-10 * max(abs(x[0]), abs(x[-1])) + 1e-30)
        low, high = float(x[0] - margin), float(x[-1] + margin)
        vertices = np.array([low, *_cuts(x, low, high, int(len(x) * SPAN * CELL)), high])
        return cls(x, vertices, np.array([_width(x, vertex) for vertex in vertices]))

    @one_blas_thread()
    def fit(self, y: np.ndarray, weight: np.ndarray) -> Any:
        """Return the smooth curve of y, or several for weights of shape (n, r), as a spline."""
        values, slopes = [], []
        for vertex, width in zip(self.vertices, self.widths, strict=True):
            rows = slice(*np.searchsorted(self.x, [vertex - width, vertex + width]))
            u = (self.x[rows] - vertex) / width
            powers = u ** np.arange(5)[:, None] * (1 - np.minimum(np.abs(u), 1.0) ** 3) ** 3
            moments, products = powers @ weight[rows], (powers[:3] * y[rows]) @ weight[rows]
            matrices = np.moveaxis(moments[np.add.outer(np.arange(3), np.arange(3))], (0, 1), (-2, -1))
            inverses = np.linalg.pinv(matrices, SINGULAR, hermitian=True)
            value, slope, _ = np.moveaxis(inverses @ np.moveaxis(products, 0, -1)[..., None], -2, 0)[..., 0]
            values.append(value)
            slopes.append(slope / width)
        return scipy.interpolate.CubicHermiteSpline(self.vertices, np.array(values), np.array(slopes))


def _cuts(x: np.ndarray, low: float, high: float, most: int) -> list[float]:
    """Return medians that halve x, between two vertices, until no part has more than so many, but for equal ones."""
    if len(x) <= most:
        return []
    middle = (len(x) - 1) // 2
    ends = np.searchsorted(x, x[middle], side="right") - 1, np.searchsorted(x, x[middle]) - 1  # where values change
    at = min((end for end in ends if 0 <= end < len(x) - 1), key=lambda end: abs(end - middle), default=middle)
    cut = float(x[at])
    if cut in (low, high):
        return []
    return [*_cuts(x[: at + 1], low, cut, most), cut, *_cuts(x[at + 1 :], cut, high, most)]


def _width(x: np.ndarray, vertex: float) -> float:
    """Return the distance of the sample that ends the span; more, where no other sample would have a weight."""
    count, low, high = max(1, int(len(x) * SPAN + 1e-5)), -1.0, float(np.max(np.abs(x[[0, -1]] - vertex)))
    while low < (middle := (low + high) / 2) < high:
        first, last = np.searchsorted(x, vertex - middle), np.searchsorted(x, vertex + middle, side="right")
        low, high = (low, middle) if last - first >= count else (middle, high)
    nearest = float(np.min(np.abs(x - vertex)))
    return max(high, 1.001 * nearest) or 1.0
