r"""A lower bound of the calibration error by a fitted witness, for class probabilities.

For functions f of the predictions, with e = onehot(y) - p, d = E[e | p], and the total variation TV = |d|_1 / 2,

    E <f(p), e> = E <f(p), d(p)> <= E [span(f(p)) TV(p)] <= sqrt(E span(f(p))^2) RMS(TV),

with span(f) = max_c f_c - min_c f_c and equality for f = TV 1{d > 0}. The witness puts the d of a map in, log p to
t log p + b, that is fitted to other samples; `kcalib.inference.verdict` reports the larger of this bound and the
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
from kcalib._input.labels import Classification
from kcalib._pairs.label_cells import FLOOR
from kcalib.solvers.logistic import Regression

FIRST_SHARE = 16  # the first fold is one of so many parts; each further one is as large as all before it
FIT_ENTRIES = 2**21  # probabilities that a map is fitted to, at most
CHUNK_ENTRIES = 2**20
ORDER_SEED = 0


@singledispatch
def witness_bound(data: Data, level: float) -> float | None:
    """Return a lower limit, in [0, 1], of the root mean square of the total variation over the given predictions.

    A map is fitted to the folds before the one that it is evaluated on, so that given the predictions the terms are
    differences of a martingale, and the limit is exceeded with about the probability `level`. Below 16 samples it is 0;
    None for predicted distributions, which have no such map.
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
            difference = _mapped(q, scale, shift) - q
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
    """Return t and b of the map to softmax(t log p + b): of maximum likelihood, b = 0 where AIC prefers that."""
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


def _mapped(p: np.ndarray, scale: float, shift: np.ndarray) -> np.ndarray:
    scores = scale * np.log(np.maximum(p, FLOOR)) + shift
    q = np.exp(scores - np.max(scores, axis=1, keepdims=True))
    return np.asarray(q / np.sum(q, axis=1, keepdims=True))
