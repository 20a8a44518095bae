r"""Bounds from sums over maps of the temperature alone, for states, which have no samples.

The tail of the temperature's score is Chernoff's bound at the theta of the sums, or Bennett's where that is less. A
lower bound of the error is that of `witness` with the functions :math:`TV\,1\{q > p\}` of fixed maps q in place of a
fitted one, at a share of the level each.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from kcalib._pairs.label_cells import FLOOR
from kcalib._pairs.temperature_sums import EXPONENTS, TemperatureSums

# t, of the lower bound: those between raise the same classes by other factors.
MAPS = (1 / 4, 1 / 2, 7 / 8, 9 / 8, 3 / 2)


def score_tail(sums: TemperatureSums, score: float, variance: float, n_classes: int) -> float:
    """Return a bound of log P(the centred sum of log probabilities as far on this side)."""
    thetas, cumulants = np.array(EXPONENTS) - 1, sums.sums.to_float()[:, 0]
    of_side = thetas * score > 0
    bounds = cumulants[of_side] - thetas[of_side] * score
    return min(_bennett_tail(score, variance, n_classes), float(np.min(bounds, initial=0.0)))


def _bennett_tail(score: float, variance: float, n_classes: int) -> float:
    """Return Bennett's bound, which is near the normal law's for small deviations.

    The mean of a sample's log probability lies between -log m and 0, the label's between log `FLOOR` and 0.
    """
    if score == 0 or variance <= 0:
        return 0.0
    largest = math.log(n_classes) if score > 0 else -math.log(FLOOR)
    ratio = largest * abs(score) / variance
    return -variance / largest**2 * ((1 + ratio) * math.log1p(ratio) - ratio)


def map_bound(sums: TemperatureSums, n: int, level: float) -> float:
    """Return a lower limit of the root mean square of the total variation over the predictions of n samples.

    The limit is exceeded with at most about the probability `level`.
    """
    of_maps = sums.sums.to_float()[[EXPONENTS.index(t) for t in MAPS]]
    _, total, squares, null_variance, distances = of_maps.T
    variance = np.maximum(squares - total**2 / n, null_variance)
    low = total + float(scipy.special.ndtri(level / len(total))) * np.sqrt(variance)
    limits = np.maximum(low, 0.0) / np.sqrt(np.maximum(distances, 1e-300) * n)
    return min(float(np.max(limits)), 1.0)
