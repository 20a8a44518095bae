"""The CKCE of several models with one kernel, without its bias, by its expansion in the residuals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from kcalib._backend import linalg
from kcalib._backend.options import check_seed
from kcalib._input.data import Data
from kcalib._pairs import statistics
from kcalib.estimators.ckce_system import default_kernel, residual_rows
from kcalib.estimators.forecast_residuals import kernel_alone
from kcalib.inference.ckce_expansion import CKCEExpansion
from kcalib.inference.metrics import certainty
from kcalib.inference.metrics.measured import (
    STRIP,
    Estimate,
    Measured,
    MetricOptions,
    Together,
    largest_residual,
    subset,
    without_own,
)
from kcalib.inference.metrics.pair_laws import has_finite_laws, pair_variances
from kcalib.results import ConfidenceInterval
from kcalib.solvers.kernel_operator import KernelMatrix

CKCE_SAMPLES = 1000  # pairs of so many stand for all pairs


def ckce(data: Sequence[Data], confidence_level: float, options: MetricOptions) -> Measured:
    n = data[0].n
    regularization = float(n**-0.25 if options.regularization is None else options.regularization)
    seed = check_seed(options.seed)
    rows, _ = subset(n, CKCE_SAMPLES, seed)
    kernel = default_kernel(*data) if options.kernel is None else options.kernel
    together = Together.of(data, kernel, options)
    matrices = [
        KernelMatrix(kernel_alone(packed_model), threads=options.threads, backend=options.backend)
        for packed_model in together.packed
    ]
    residuals = [
        residual_rows(packed_model, packed, threads=options.threads, seed=seed).take(slice(None))
        for packed_model, packed in zip(data, together.packed, strict=True)
    ]
    expansions = [
        CKCEExpansion.of(matrix, of_model, n * regularization, rows, seed=seed)
        for matrix, of_model in zip(matrices, residuals, strict=True)
    ]
    degenerate = 2 * n * (n - 1) * _pair_squares(expansions, len(rows))
    if has_finite_laws(data, together.packed):
        weights = [expansion.between for expansion in expansions]
        laws = pair_variances(data, together.packed, rows, weights, threads=options.threads)
        degenerate = np.maximum(degenerate, 2 * n * (n - 1) * laws)
    pairs = itertools.combinations(range(len(data)), 2)
    # With eigenvalues g of K it is at most |E|^2 max g / (g + n lambda)^2.
    most = largest_residual(together.packed[0]) / (4 * regularization)
    return Measured(
        values=[_value(e, degenerate[i, i], confidence_level, most) for i, e in enumerate(expansions)],
        differences=[
            _difference(expansions[i], expansions[j], degenerate[i, j], confidence_level, most) for i, j in pairs
        ],
        estimator="CKCE without its bias",
        intervals="t, differences paired, upper limits of values from a score interval",
        described=together.described(matrices[0])
        | {"regularization": regularization, "dtype": "float64", "seed": seed},
    )


def _value(expansion: CKCEExpansion, degenerate: float, confidence_level: float, most: float) -> Estimate:
    """`degenerate`: the part of the variance that noise alone has."""
    n = len(expansion.scores)
    linear = max(0.0, n * float(expansion.scores.var(ddof=1)) - 2 * degenerate)  # the jackknife holds it twice
    error = math.sqrt(linear + degenerate)
    slope = n * float(expansion.influences.var(ddof=1)) / expansion.plug_in if expansion.plug_in > 0 else 0.0
    variance = statistics.ScoreVariance(slope, degenerate)
    equal = error <= expansion.error_bound
    return certainty.of_value(expansion.value, error, variance, n, confidence_level, most, equal=equal)


def _difference(
    a: CKCEExpansion, b: CKCEExpansion, degenerate: float, confidence_level: float, most: float
) -> Estimate:
    n = len(a.scores)
    error = math.sqrt(n * float((a.scores - b.scores).var(ddof=1)) + degenerate)
    limits, bound = ConfidenceInterval(-most, most), a.error_bound + b.error_bound
    return certainty.of_pairs(
        a.value - b.value, error, n, confidence_level, limits, resolution=bound, equal=error <= bound
    )


def _pair_squares(expansions: Sequence[CKCEExpansion], k: int) -> np.ndarray:
    """Mean squares over the pairs i != j of k rows: of models in the diagonal, elsewhere of differences of two."""
    sums = np.zeros((len(expansions), len(expansions)))
    for begin in range(0, k, STRIP):
        tiles = [without_own(expansion.pairs(slice(begin, begin + STRIP)), begin) for expansion in expansions]
        for i, tile in enumerate(tiles):
            sums[i, i] += linalg.squared_norm(tile)
        for i, j in itertools.combinations(range(len(tiles)), 2):
            sums[i, j] += linalg.squared_norm(tiles[i] - tiles[j])
    return sums / (k * (k - 1))
