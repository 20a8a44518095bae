r"""A lower bound of the calibration error of class probabilities by a fitted witness.
For functions f of the predictions, with e = onehot(y) - p, d = E[e | p], and the total variation TV = |d|_1 / 2,

    E <f(p), e> = E <f(p), d(p)> <= E [span(f(p)) TV(p)] <= sqrt(E span(f(p))^2) RMS(TV),

with span(f) = max_c f_c - min_c f_c and equality for f = TV 1{d > 0}. The witness uses the d of a map, from log p to t
log p + b, that is fitted to other samples; `kcalib.inference.verdict` reports the larger of this bound and the
kernel's.
"""

from __future__ import annotations

import itertools
import math
from functools import singledispatch

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.threads import one_blas_thread
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._pairs.label_cells import FLOOR
from kcalib.solvers.logistic import Regression

N_DRAWS = 64  # of each prediction, for means of the witnesses
DRAW_SEED = 0

FIRST_SHARE = 16  # the first fold is this fraction of the samples; each further one is as large as all before it
FIT_ENTRIES = 2**21  # largest number of probabilities for a fit
CHUNK_ENTRIES = 2**20
ORDER_SEED = 0


@singledispatch
def witness_bound(data: Data, level: float) -> float | None:
    """Return a lower limit, in [0, 1], of the root mean square of the total variation over the given predictions.

    A map is fitted to the folds before the one that it is evaluated on, so given the predictions the terms are
    martingale differences, and the limit is exceeded with probability of about `level`. It is 0 for fewer than 16
    samples, and None for predicted distributions, which have no such map.
    """
    return None


@witness_bound.register
def _(data: Classification, level: float) -> float:
    n = data.n
    if n < FIRST_SHARE:
        return 0.0
    order = np.random.default_rng(ORDER_SEED).permutation(n)
    labels = arrays.to_host(data.labels)
    p = data.probabilities

    def rows_of(rows: np.ndarray) -> np.ndarray:
        probabilities = arrays.namespace(p).take(p, arrays.like(rows, p), axis=0)
        return np.asarray(arrays.to_host(probabilities), dtype=np.float64)

    ends = fold_ends(n)
    total = squares = null_variance = span_squares = 0.0
    for begin, end in itertools.pairwise(ends):
        rows = order[: min(begin, max(1, FIT_ENTRIES // data.m))]
        scale, shift = fit_map(rows_of(rows), labels[rows])
        step = max(1, CHUNK_ENTRIES // data.m)
        for first in range(begin, end, step):
            rows = order[first : min(first + step, end)]
            q = rows_of(rows)
            difference = _apply_map(q, scale, shift) - q
            distance = np.sum(np.abs(difference), axis=1) / 2
            witness = distance[:, None] * (difference > 0)
            means = np.sum(q * witness, axis=1)
            terms = witness[np.arange(len(rows)), labels[rows]] - means
            total += float(np.sum(terms))
            squares += float(np.sum(terms**2))
            null_variance += float(np.sum(np.sum(q * witness**2, axis=1) - means**2))
            span_squares += float(np.sum(distance**2))
    if span_squares <= 0:
        return 0.0
    variance = max(squares - total**2 / (n - ends[0]), null_variance)
    low = total + float(scipy.special.ndtri(level)) * math.sqrt(variance)
    return min(max(low, 0.0) / math.sqrt(span_squares * n), 1.0)


def fold_ends(n: int) -> list[int]:
    """Return where folds of n samples end: the first has a sixteenth, each further one as many as all before it."""
    ends = [n // FIRST_SHARE]
    while ends[-1] < n:
        ends.append(2 * ends[-1] if 3 * ends[-1] < n else n)
    return ends


@one_blas_thread()
def fit_map(p: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Return t and b of the map to softmax(t log p + b) of maximum likelihood, with b = 0 if AIC prefers that."""
    n, m = p.shape
    features = np.log(np.maximum(p, FLOOR)).T, np.broadcast_to(1.0, (m, n))
    regression = Regression(features, labels, np.ones(n), np.tile([1.0, 0.0], (m, 1)))

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        shift = parameters[1:] if len(parameters) > 1 else np.zeros(m)
        value, gradient = regression.value_and_gradient(np.stack([np.full(m, parameters[0]), shift], axis=1))
        return value, np.concatenate([[gradient[:, 0].sum()], gradient[: len(parameters) - 1, 1]])

    best: tuple[float, np.ndarray] | None = None
    for size in (1, 1 + m):
        fitted = scipy.optimize.minimize(loss, np.eye(1, size)[0], jac=True, method="L-BFGS-B")
        criterion = float(fitted.fun) + size / n
        if best is None or criterion < best[0]:
            best = criterion, fitted.x
    assert best is not None
    return float(best[1][0]), best[1][1:] if len(best[1]) > 1 else np.zeros(m)


def _apply_map(p: np.ndarray, scale: float, shift: np.ndarray) -> np.ndarray:
    scores = scale * np.log(np.maximum(p, FLOOR)) + shift
    q = np.exp(scores - np.max(scores, axis=1, keepdims=True))
    return np.asarray(q / np.sum(q, axis=1, keepdims=True))


def distance_bound(data: Forecasts, level: float) -> float:
    """Return a lower limit of the root mean square of the Wasserstein-1 distances W_i, in the units of the targets.

    For functions f_i with Lipschitz constant L_i, E [f_i(y_i) - P_i f_i] <= E [L_i W_i] <= sqrt(E L_i^2) RMS(W). The
    witness is f_i(y) = b_i y or c_i |y - m_i|, with m_i a median: equality holds if predictions are shifted by b_i, and
    for normal and Laplace distributions of wrong widths. It is fitted as in `witness_bound`; the limit is 0 for fewer
    than 16 samples.
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
    # Values of a witness of slope 1 for each sample: (n, 2), for the location and the width.
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
