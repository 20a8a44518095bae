"""Bound the rare errors that samples may have missed, for upper limits of the SKCE.

A score interval estimates its variance from the samples. If predictions are confident and few errors were seen, this
may be the variance of residuals without any error, however often the model errs. Test results then have a
`kcalib.results.FewErrors`, whose upper limit is used if it is larger.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._packing import Packed
from kcalib._packing.variance import finite_parts
from kcalib._pairs.profiles import kernel_supremum
from kcalib.estimators.null_moments import effective_events
from kcalib.estimators.rms_bound import NoBoundError, points_are_bounded, squared_diameter
from kcalib.results import FewErrors

ENOUGH_SEEN = 5  # with this many errors the score interval is within a tenth of the binomial one
FIRST_ROWS = 1024  # usually enough to see this many errors
# With this many effective events, or this share of the samples, the variance under calibration is large enough.
ENOUGH_OPEN, OPEN_SHARE = 15, 0.1


def few_errors(data: Data, packed: Packed) -> FewErrors | None:
    """Return observed and expected errors if both are few; None otherwise, or if the SKCE has no known upper bound.

    Time O(n m) for labels and counts. Other targets are not more or less probable than each other.
    """
    n_errors = count_unlikely_targets(data, packed)

    def expected() -> float:
        parts = finite_parts(data, packed)
        assert parts is not None
        sums = [arrays.to_compute_device(law.parts[2], np.float64).sum() for _, law in parts]
        return float(sum(sums)) / data.n

    return few_of(n_errors, data.n, lambda: effective_events(data, packed), expected, data, packed)


def few_of(
    n_errors: int | None,
    n: int,
    events: Callable[[], float],
    expected: Callable[[], float],
    data: Data,
    packed: Packed,
) -> FewErrors | None:
    """Return `few_errors` for n samples with these counts; `data` may be some of them."""
    if n_errors is None or n_errors >= ENOUGH_SEEN or events() >= min(ENOUGH_OPEN, OPEN_SHARE * n):
        return None
    supremum = kernel_supremum(packed.problem.kernel, has_bounded_points=points_are_bounded(data))
    try:
        diameter = squared_diameter(data, packed)
    except NoBoundError:
        return None
    if supremum is None:
        return None
    return FewErrors(n_errors, expected(), n, supremum * diameter)


@singledispatch
def count_unlikely_targets(data: Data, packed: Packed) -> int | None:
    """Return how many labels or counts are not the most probable one, up to `ENOUGH_SEEN`; None for other targets."""
    raise TypeError(f"{type(data).__name__} are no data")


@count_unlikely_targets.register
def _(data: Classification, packed: Packed) -> int:
    n_errors, begin, end = 0, 0, min(data.n, FIRST_ROWS)
    while begin < data.n and n_errors < ENOUGH_SEEN:  # more are not needed
        n_errors += _count_differing(data.labels[begin:end], data.probabilities[begin:end, :])
        begin, end = end, min(data.n, 8 * end)
    return n_errors


@count_unlikely_targets.register
def _(data: Forecasts, packed: Packed) -> int | None:
    parts = finite_parts(data, packed)
    if parts is None:
        return None
    n_errors = 0
    for part, law in parts:
        n_errors += _count_differing(part.y[:, 0], law.probabilities)
        if n_errors >= ENOUGH_SEEN:  # more are not needed
            break
    return n_errors


def _count_differing(targets: Array, probabilities: Array) -> int:
    xp, targets = arrays.namespace(probabilities), arrays.asarray_like(targets, probabilities)
    likely = xp.astype(xp.argmax(probabilities, axis=1), targets.dtype)
    return int(xp.sum(xp.astype(targets != likely, xp.int64)))
