r"""A lower bound of the Wasserstein distance between predicted distributions of numbers and the laws of the targets.

For functions f_i with the Lipschitz constant L_i, and the Wasserstein-1 distance W_i between the prediction P_i and the
law of the target given it,

    E [f_i(y_i) - P_i f_i] <= E [L_i W_i] <= sqrt(E L_i^2) RMS(W).

A witness is f_i(y) = b_i y or f_i(y) = c_i |y - m_i|, with m_i a median: equality holds where the predictions are
shifted by b_i, and for normal and Laplace laws where their widths are wrong. Both are fitted to other samples;
`kcalib.inference.verdict` reports the bound.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._input.forecasts import Forecasts
from kcalib.inference.adaptive.witness import FIRST_SHARE, ORDER_SEED, fold_ends

N_DRAWS = 64  # of each prediction, for its means of the witnesses
DRAW_SEED = 0


def distance_bound(data: Forecasts, level: float) -> float:
    """Return a lower limit of the root mean square of the Wasserstein-1 distances, in the units of the targets.

    The witness is fitted to the folds before the one that it is evaluated on, so that given the predictions the terms
    are differences of a martingale, and the limit is exceeded with about the probability `level`. Below 16 samples it
    is 0.
    """
    n = data.n
    if n < FIRST_SHARE:
        return 0.0
    order = np.random.default_rng(ORDER_SEED).permutation(n)
    y = arrays.to_host(data.y)[order, 0]
    drawn = arrays.to_host(data.prediction.sample(N_DRAWS, seed=DRAW_SEED))
    drawn = drawn.reshape(n, N_DRAWS)[order]
    centres = np.median(drawn, axis=1)
    distances = np.abs(drawn - centres[:, None])
    means, widths = np.mean(drawn, axis=1), np.mean(distances, axis=1)
    # What a witness of slope 1 gives for each sample: (n, 2), of the location and of the width.
    gains = np.stack([y - means, np.abs(y - centres) - widths], axis=1)
    null_variances = np.stack([np.var(drawn, axis=1), np.var(distances, axis=1)], axis=1)
    columns = np.stack([np.ones(n), scipy.stats.rankdata(centres) / n, widths / max(np.mean(widths), 1e-300)], axis=1)
    total = squares = null_variance = slope_squares = 0.0
    for begin, end in itertools.pairwise(fold_ends(n)):
        slopes = columns[begin:end] @ np.linalg.lstsq(columns[:begin], gains[:begin], rcond=None)[0]
        rows, chosen = np.arange(end - begin), np.argmax(np.abs(slopes), axis=1)
        slope = slopes[rows, chosen]
        terms = slope * gains[begin:end][rows, chosen]
        total += float(np.sum(terms))
        squares += float(np.sum(terms**2))
        null_variance += float(np.sum(slope**2 * null_variances[begin:end][rows, chosen]))
        slope_squares += float(np.sum(slope**2))
    if slope_squares <= 0:
        return 0.0
    variance = max(squares - total**2 / (n - n // FIRST_SHARE), null_variance)
    low = total + float(scipy.special.ndtri(level)) * math.sqrt(variance)
    return max(low, 0.0) / math.sqrt(slope_squares * n)
