"""What backends ask before they give digits away: how vectors are scaled for float32, how far apart points are."""

from __future__ import annotations

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array

SAMPLES = 64  # points that are looked at, at most


def powers_of_two(sizes: Array) -> Array:
    """Return the power of two below each size (1 for 0), which brings it into the range of float32."""
    xp = arrays.namespace(sizes)
    positive = xp.where(sizes > 0, sizes, xp.ones_like(sizes))
    return xp.pow(2.0 * xp.ones_like(sizes), xp.clip(xp.floor(xp.log2(positive)), -1000.0, 1000.0))


def sampled(points: Array) -> slice:
    """Return the rows that are looked at."""
    return slice(None, None, -(-points.shape[0] // SAMPLES))


def spread(points: Array) -> tuple[float, float]:
    """Return the mean squared distance of some of the points, 2 (mean |x|^2 - |mean x|^2), and their mean square.

    Distances from residuals are sums of terms of size 1, those from an expansion of terms as large as the squares:
    where all points are near each other on that scale, most pairs would have to be computed anew by differences.
    """
    xp = arrays.namespace(points)
    sample = xp.astype(points[sampled(points), :], xp.float64)
    mean_square = float(xp.sum(sample * sample)) / sample.shape[0]
    center = xp.mean(sample, axis=0)
    return 2 * (mean_square - float(xp.sum(center * center))), mean_square


def spread_about(points: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean squared distance of these points, and their mean."""
    values = np.asarray(points, dtype=np.float64)
    centre = values.mean(axis=0)
    return 2 * float(np.sum((values - centre) ** 2)) / len(values), centre
