r"""The blocks of the adaptive test for predicted distributions of numbers, from sums of functions of PIT values.

Given the predictions of a calibrated model, PIT values are independent and uniform, so the distributions of the sums
are known. Exceptions are samples (with PIT values from ranks) and coarsely rounded targets, which have no bounds.
Vectors have no PIT values, only kernels. The random numbers for the targets of a row depend on seed, draw and row
number alone, and sums of blocks of rows are exact: sums over parts of the data add up to those of the whole, bitwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.exact_sums import ExactSums
from kcalib._input.forecasts import ROWS, Forecasts, draw_targets, row_uniforms
from kcalib.distributions import (
    Censored,
    Laplace,
    LogNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    Quantiles,
    Samples,
    StudentT,
    Truncated,
    ZeroInflated,
)
from kcalib.distributions.external import ExternalDistribution
from kcalib.distributions.wrappers import Wrapper
from kcalib.estimators.forecasts.quantile_calibration import pit_at, pit_uniforms
from kcalib.estimators.forecasts.quantities import samples_of
from kcalib.inference.adaptive.blocks import FEW_DRAWS, Block, binomial_tail, kernel_blocks, null_blocks
from kcalib.inference.task import Task
from kcalib.laws import ChiSquareMixture

N_BINS = 10
COVERAGES = (0.9, 0.99)  # of central intervals
PIT_FLOOR = 1e-15  # smallest PIT value in normal scores
# For each set of targets: normal scores, their squares, PIT values in bins, those outside of intervals, and those at
# the floor, which a uniform distribution excludes.
N_SUMS = 2 + N_BINS + len(COVERAGES) + 1
SECOND = 2**63  # stream of randomised PIT values of drawn targets
# Families drawn by quantiles: PIT values are the uniform numbers.
INVERTED = (
    Normal, Laplace, StudentT, LogNormal, Poisson, NegativeBinomial, Quantiles, Censored, Truncated, ZeroInflated,
)  # fmt: skip
COARSE = 1e-3  # rounding of a number in standard deviations from which on it changes PIT values
DRAWS_AT_ONCE = 2**24  # targets in memory


@null_blocks.register
def _(
    data: Forecasts, task: Task, n_draws: int | None, n_columns: int | None, seed: int
) -> tuple[list[Block], dict[str, Any]]:
    n_draws = n_draws or FEW_DRAWS
    kernels, estimate = kernel_blocks(task, n_draws, n_columns, seed, is_alone=data.prediction.event_shape != ())
    if data.prediction.event_shape:
        return kernels, estimate
    weights = np.ones(data.n) if data.sample_weight is None else arrays.to_host(data.sample_weight)
    sums = _sum_all_rows(data, weights, n_draws, seed)
    has_law = data.sample_weight is None and samples_of(data) is None
    return pit_blocks(sums, float(np.sum(weights)), float(np.sum(weights**2)), has_law=has_law) + kernels, estimate


def _sum_all_rows(data: Forecasts, all_weights: np.ndarray, n_draws: int, seed: int) -> np.ndarray:
    """Return the sums of observed targets, and then of each draw."""
    is_drawn_by_row = data.prediction._n_uniforms is not None
    step = n_draws if is_drawn_by_row else max(1, DRAWS_AT_ONCE // data.n)
    parts = []
    for first in range(0, n_draws, step):
        replicates = range(first, min(first + step, n_draws))
        draw = None if is_drawn_by_row else data.row_draws(seed, replicates)
        observed, drawn = ExactSums.zeros(1, N_SUMS), ExactSums.zeros(len(replicates), N_SUMS)
        for begin in range(0, data.n, ROWS):
            rows = np.arange(begin, min(begin + ROWS, data.n))
            some, weights = data.take(arrays.like(rows, data.reference)), all_weights[rows]
            targets = None if draw is None else draw(slice(begin, begin + ROWS))
            drawn = drawn + ExactSums.of(
                sum_pit_values(drawn_pit_values(some, rows, seed, replicates, targets), weights)
            )
            if first == 0:
                pit = arrays.to_host(pit_at(some, pit_uniforms(seed, rows)))
                observed = observed + ExactSums.of(sum_pit_values(pit[None, :], weights))
        parts += [observed.to_float(), drawn.to_float()] if first == 0 else [drawn.to_float()]
    return np.concatenate(parts)


def sum_pit_values(pit: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return sums over rows for each set of targets, float64, shape (n_sets, N_SUMS); `pit` has shape (n_sets, n)."""
    pit = np.clip(pit, PIT_FLOOR, 1 - PIT_FLOOR)
    is_weighted = bool(np.any(weights != 1))

    def add(values: np.ndarray) -> np.ndarray:
        return np.asarray(np.sum(values * weights if is_weighted else values, axis=1, dtype=np.float64))

    scores = scipy.special.ndtri(pit)
    bins = np.minimum((pit * N_BINS).astype(np.int64), N_BINS - 1) + N_BINS * np.arange(len(pit))[:, None]
    each = np.broadcast_to(weights, pit.shape).ravel() if is_weighted else None
    in_bins = np.bincount(bins.ravel(), each, N_BINS * len(pit)).reshape(-1, N_BINS)
    distance = np.abs(pit - 0.5)
    beyond = [add(distance > limit) for limit in (*(coverage / 2 for coverage in COVERAGES), 0.5 - 1.5 * PIT_FLOOR)]
    return np.stack([add(scores), add(scores * scores), *in_bins.T, *beyond], axis=1)


def drawn_pit_values(
    data: Forecasts, numbers: np.ndarray, seed: int, replicates: range, drawn: Any = None
) -> np.ndarray:
    """Return PIT values of targets drawn from the predictions, shape (replicates, n), for rows of one block.

    `numbers` are the ascending row numbers; `drawn` are the targets, shape (replicates, n, 1), of distributions that
    are not drawn from uniform numbers.
    """
    prediction = data.prediction
    if drawn is None:
        per_row = prediction._n_uniforms
        assert per_row is not None
        uniform = row_uniforms(seed, replicates, numbers, per_row)
        if type(prediction) in INVERTED:  # a derived class may have another distribution
            return _of_inverted(data, uniform)
        if isinstance(prediction, Samples) and prediction.weights is None:
            second = row_uniforms(seed, replicates, numbers, 1, SECOND)[:, :, 0]
            return _of_equal_samples(arrays.to_host(prediction.samples), uniform[:, :, 0], second)
        drawn = draw_targets(prediction, uniform)
    y, second = drawn[:, :, 0], row_uniforms(seed, replicates, numbers, 1, SECOND)[:, :, 0]
    atoms = samples_of(data)
    if isinstance(prediction, ExternalDistribution):  # calls dominate the cost
        lower = prediction.cdf_left(y.T)
        return np.asarray((lower + second.T * (prediction.cdf(y.T) - lower)).T)
    if atoms is None:
        values = [pit_at(data.with_targets(y[k, :, None]), second[k]) for k in range(len(replicates))]
        return np.stack([arrays.to_host(of_draw) for of_draw in values])
    # As `pit_at`, by sorted samples.
    locations, weights = (arrays.to_host(part) for part in (atoms.locations[:, :, 0], atoms.weights))
    targets = arrays.to_host(y)
    pit = np.empty(targets.shape)
    for row, (z, w) in enumerate(zip(locations, weights, strict=True)):
        order, n_effective = np.argsort(z, kind="stable"), 1 / np.sum(w**2)
        below = np.concatenate([[0.0], np.cumsum(w[order])])
        left, right = (below[np.searchsorted(z[order], targets[:, row], side)] for side in ("left", "right"))
        pit[:, row] = (left * n_effective + second[:, row] * (1 + (right - left) * n_effective)) / (n_effective + 1)
    return pit


def _of_equal_samples(samples: np.ndarray, uniform: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return PIT values of members of equal weight, by their positions in ascending order."""
    ordered, size = np.sort(samples, axis=1), samples.shape[1]
    is_new = np.ones(ordered.shape, dtype=bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    places = np.arange(size)
    below = np.maximum.accumulate(np.where(is_new, places, 0), axis=1)
    is_last = np.roll(is_new, -1, axis=1)
    above = np.minimum.accumulate(np.where(is_last, places + 1, size)[:, ::-1], axis=1)[:, ::-1]
    chosen = np.minimum((uniform * size).astype(np.int64), size - 1) + size * np.arange(len(samples))
    low, high = below.ravel()[chosen], above.ravel()[chosen]
    return np.asarray((low + second * (1 + high - low)) / (size + 1))


def _of_inverted(data: Forecasts, uniform: np.ndarray) -> np.ndarray:
    """Return PIT values of quantiles: the uniform numbers, unless rounding of the quantiles matters."""
    pit = uniform[:, :, 0]
    if data.prediction.support == "count" or isinstance(data.prediction, (Quantiles, Wrapper)):
        return pit
    mean, deviation = (
        arrays.to_host(values)[:, 0]
        for values in (data.prediction.expected_value(), data.prediction.standard_deviation())
    )
    (coarse,) = np.nonzero(np.finfo(mean.dtype).eps * np.abs(mean) > COARSE * deviation)
    if len(coarse):
        prediction: Any = data.prediction.take(arrays.like(coarse, data.reference))
        targets = draw_targets(prediction, uniform[:, coarse])[:, :, 0]
        pit[:, coarse] = arrays.to_host(prediction.cdf(targets.T)).T
    return pit


def pit_blocks(sums: np.ndarray, weight: float, weight_squared: float, *, has_law: bool) -> list[Block]:
    """Return the blocks of the sums of observed targets and of each draw, of rows with these sums of weights.

    `has_law` says whether PIT values of a calibrated model are uniform, and weights 1.
    """
    biases, squares, counts, outside, at_floor = np.split(sums, [1, 2, 2 + N_BINS, N_SUMS - 1], axis=1)
    coverages = np.array(COVERAGES)
    bias, spread = biases[:, 0], squares[:, 0] - weight
    histogram, tails = counts - weight / N_BINS, outside - weight * (1 - coverages)
    tail_variances = weight_squared * coverages * (1 - coverages)
    # Only draws are checked for values at the floor, which keeps the level.
    has_law = has_law and not np.any(at_floor[1:])

    def says_histogram() -> str:
        b = int(np.argmax(np.abs(histogram[0])))
        return f"too {'many' if histogram[0, b] > 0 else 'few'} targets in tenth {b + 1} of the predictions"

    def says_tails() -> str:
        k = int(np.argmax(tails[0] ** 2 / tail_variances))
        return describe_coverage(COVERAGES[k], float(tails[0, k]))

    def count_bound(residuals: np.ndarray, shares: list[float]) -> Callable[[], float]:
        def bound() -> float:
            bounds = [
                binomial_tail(np.array([share]), np.array([1 - share]), x, weight)
                for share, x in zip(shares, residuals, strict=True)
            ]
            return math.log(2 * len(shares)) + min(bounds)

        return bound

    def spread_bound() -> float:
        law = ChiSquareMixture([1.0], degrees_of_freedom=weight)  # its tails do not underflow
        return math.log(2) + min(float(law.logsf(squares[0, 0])), float(law.logcdf(squares[0, 0])))

    blocks = [
        Block(
            "bias",
            bias**2 / weight_squared,
            lambda: describe_location(float(bias[0])),
            lambda: math.log(2) + float(scipy.special.log_ndtr(-abs(bias[0]) / math.sqrt(weight))),
        ),
        Block(
            "dispersion",
            spread**2 / (2 * weight_squared),
            lambda: describe_spread(float(spread[0])),
            spread_bound,
        ),
        Block(
            "PIT histogram",
            np.sum(histogram**2, axis=1) / (weight_squared / N_BINS),
            says_histogram,
            count_bound(histogram[0], [1 / N_BINS] * N_BINS),
        ),
        Block(
            "tails",
            np.sum(tails**2 / tail_variances, axis=1),
            says_tails,
            count_bound(tails[0], [1 - coverage for coverage in COVERAGES]),
        ),
    ]
    return blocks if has_law else [replace(block, log_bound=lambda: 0.0) for block in blocks]


def describe_location(total: float) -> str:
    """Describe a sum of normal scores."""
    return f"predictions too {'high' if total < 0 else 'low'}"


def describe_spread(total: float) -> str:
    """Describe a centred sum of squares of normal scores."""
    return f"{'over' if total > 0 else 'under'}-confident"


def describe_coverage(coverage: float, total: float) -> str:
    """Describe a centred number of targets outside of an interval."""
    return f"intervals of {coverage:.0%} hold too {'few' if total > 0 else 'many'} targets"
