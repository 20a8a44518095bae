"""What samples have missed of errors that are rare: for upper limits of the SKCE.

A score interval takes its spread from the samples. Where the predictions leave few errors open, and few were seen, this
may be that of residuals without any error, however often a model errs whose samples just do not show it. The test's
result then has `kcalib.results.FewErrors`, of which it takes the upper limit where that is larger.
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

ENOUGH_SEEN = 5  # the score interval of so many is the binomial one, but for a tenth
FIRST_ROWS = 1024  # mostly enough to see them
# Effective events whose spread under calibration is by itself as large; of few samples, a share of them: where a tenth
# is open, samples show what errors are like.
ENOUGH_OPEN, OPEN_SHARE = 15, 0.1


def few_errors(data: Data, packed: Packed) -> FewErrors | None:
    """Errors seen and expected where both are few; None elsewhere, and where no SKCE is known to be the largest.

    Time O(n m) of labels and counts. Other targets are no more or less probable than each other.
    """
    n_errors = targets_beside_the_likely(data, packed)

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
    """The same of n samples, for which some data, packed with their kernels, may stand."""
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
def targets_beside_the_likely(data: Data, packed: Packed) -> int | None:
    """How many targets are not the most probable one, at least, where they are enough; None: that says nothing."""
    raise TypeError(f"{type(data).__name__} are no data")


@targets_beside_the_likely.register
def _(data: Classification, packed: Packed) -> int:
    n_errors, begin, end = 0, 0, min(data.n, FIRST_ROWS)
    while begin < data.n and n_errors < ENOUGH_SEEN:  # no more are asked for
        n_errors += _differing(data.labels[begin:end], data.probabilities[begin:end, :])
        begin, end = end, min(data.n, 8 * end)
    return n_errors


@targets_beside_the_likely.register
def _(data: Forecasts, packed: Packed) -> int | None:
    parts = finite_parts(data, packed)
    if parts is None:
        return None
    n_errors = 0
    for part, law in parts:
        n_errors += _differing(part.y[:, 0], law.probabilities)
        if n_errors >= ENOUGH_SEEN:  # no more are asked for
            break
    return n_errors


def _differing(targets: Array, probabilities: Array) -> int:
    xp, targets = arrays.namespace(probabilities), arrays.asarray_like(targets, probabilities)
    likely = xp.astype(xp.argmax(probabilities, axis=1), targets.dtype)
    return int(xp.sum(xp.astype(targets != likely, xp.int64)))
