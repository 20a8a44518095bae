"""The SKCE of several models with one kernel: all pairs of each, and the paired variance of differences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.options import check_seed
from kcalib._input.data import Data
from kcalib._pairs import statistics
from kcalib._pairs.dispatch import Operator, operator_for
from kcalib._pairs.problem import Moments
from kcalib.bandwidth import MAX_SAMPLES
from kcalib.inference.metrics import certainty
from kcalib.inference.metrics.measured import (
    EPSILON,
    ROUNDINGS,
    STRIP,
    Estimate,
    Measured,
    MetricOptions,
    Together,
    largest_entry,
    subset,
    without_own,
)
from kcalib.inference.metrics.pair_laws import pair_variances
from kcalib.results import ConfidenceInterval


def skce(data: Sequence[Data], confidence_level: float, options: MetricOptions) -> Measured:
    together = Together.of(data, options.kernel, options)
    operators = [
        operator_for(one.problem, operator=options.operator, threads=options.threads) for one in together.packed
    ]
    moments = [_moments(operator) for operator in operators]
    n = data[0].n
    rows, seed = subset(n, MAX_SAMPLES, check_seed(options.seed))
    squares = _square_differences(operators, rows)
    pairs = itertools.combinations(range(len(data)), 2)
    laws = pair_variances(data, together.packed, rows) * n * (n - 1)
    largest = math.sqrt(max(m.sum_of_squares or 0.0 for m in moments) / (n * (n - 1)))
    resolution = ROUNDINGS * float(np.finfo(data[0].dtype).eps) * largest
    most = largest_entry(together.packed[0])
    return Measured(
        values=[_value(m, laws[i, i], confidence_level, most) for i, m in enumerate(moments)],
        differences=[
            _difference(
                _minus(moments[i], moments[j], squares[i, j] * n * (n - 1)),
                laws[i, j],
                confidence_level,
                most,
                resolution,
            )
            for i, j in pairs
        ],
        estimator="unbiased estimator",
        intervals="t, differences paired, upper limits of values from a score interval",
        described=together.described(operators[0]) | {"dtype": data[0].dtype, "seed": seed},
    )


def _moments(operator: Operator) -> Moments:
    m = operator.moments(second=True)
    rows, diagonal = (arrays.where_computed(a) for a in (m.row_sums, m.diagonal))
    return Moments(float(m.total), rows, None, diagonal, m.sum_of_squares, float(m.trace))


def _minus(a: Moments, b: Moments, sum_of_squares: float) -> Moments:
    """Those of H^A - H^B."""
    assert a.row_sums is not None and b.row_sums is not None
    return Moments(a.total - b.total, a.row_sums - b.row_sums, None, None, sum_of_squares, None)


def _value(moments: Moments, null_squares: float, confidence_level: float, most: float) -> Estimate:
    assert moments.row_sums is not None
    error = statistics.standard_error(moments, null_squares)
    assert error is not None  # there are four samples
    n = moments.row_sums.shape[0]
    value = statistics.unbiased(moments, n)
    variance = statistics.score_variance(moments, null_squares)
    return certainty.of_value(value, error, variance, n, confidence_level, most, equal=_are_equal(moments))


def _difference(
    moments: Moments, null_squares: float, confidence_level: float, most: float, resolution: float
) -> Estimate:
    assert moments.row_sums is not None
    n = moments.row_sums.shape[0]
    error = statistics.generous_standard_error(moments, null_squares)
    value = statistics.unbiased(moments, n)
    limits, equal = ConfidenceInterval(-most, most), _are_equal(moments)
    return certainty.of_pairs(value, error, n, confidence_level, limits, resolution=resolution, equal=equal)


def _are_equal(moments: Moments) -> bool:
    """Whether all entries off the diagonal are the same, but for what rounding leaves of a difference of squares."""
    assert moments.row_sums is not None and moments.sum_of_squares is not None
    n = moments.row_sums.shape[0]
    return moments.sum_of_squares - moments.total**2 / (n * (n - 1)) <= ROUNDINGS * EPSILON * moments.sum_of_squares


def _square_differences(operators: Sequence[Operator], rows: np.ndarray) -> np.ndarray:
    """Mean of (H^A_ij - H^B_ij)^2 over the pairs i != j of `rows`, for each two models."""
    sums = np.zeros((len(operators), len(operators)))
    for begin in range(0, len(rows), STRIP):
        some = rows[begin : begin + STRIP]
        tiles = []
        for operator in operators:
            points = operator.problem.left.points
            tile = arrays.where_computed(operator.tile(arrays.like(some, points), arrays.like(rows, points)))
            tiles.append(without_own(tile.astype(np.float64), begin))
        for i, j in itertools.combinations(range(len(operators)), 2):
            sums[i, j] += float(((tiles[i] - tiles[j]) ** 2).sum())
    return sums / (len(rows) * (len(rows) - 1))
