"""The CKCE of several models with one kernel, without its bias, by its expansion in the residuals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import singledispatch

import numpy as np
import scipy

from kcalib import _packing
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_seed
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._packing import Packed
from kcalib._pairs import statistics
from kcalib.estimators.forecast_residuals import kernel_alone, residuals_of
from kcalib.inference.ckce_expansion import CKCEExpansion
from kcalib.inference.metrics.measured import (
    STRIP,
    Estimate,
    Measured,
    MetricOptions,
    Together,
    subset,
    symmetric,
    without_own,
)
from kcalib.kernels import Gaussian, Kernel, Linear
from kcalib.results import ConfidenceInterval
from kcalib.solvers.kernel_operator import KernelMatrix

CKCE_SAMPLES = 1000  # whose pairs stand for all pairs


def ckce(data: Sequence[Data], confidence_level: float, options: MetricOptions) -> Measured:
    n = data[0].n
    regularization = float(n**-0.25 if options.regularization is None else options.regularization)
    seed = check_seed(options.seed)
    rows, _ = subset(n, CKCE_SAMPLES, seed)
    kernel = _default_kernel(*data) if options.kernel is None else options.kernel
    together = Together.of(data, kernel, options)
    matrices = [
        KernelMatrix(kernel_alone(one), threads=options.threads, operator=options.operator) for one in together.packed
    ]
    expansions = [
        CKCEExpansion.of(matrix, _residuals(one, packed, options, seed), n * regularization, rows, seed=seed)
        for matrix, one, packed in zip(matrices, data, together.packed, strict=True)
    ]
    degenerate = 2 * n * (n - 1) * _pair_squares(expansions, rows)
    pairs = itertools.combinations(range(len(data)), 2)
    return Measured(
        values=[_value(e, degenerate[i, i], confidence_level) for i, e in enumerate(expansions)],
        differences=[_difference(expansions[i], expansions[j], degenerate[i, j], confidence_level) for i, j in pairs],
        estimator="CKCE without its bias",
        intervals="normal, differences paired, upper limits of values from a score interval",
        described=together.described(matrices[0])
        | {"regularization": regularization, "dtype": "float64", "seed": seed},
    )


@singledispatch
def _default_kernel(first: Data, *others: Data) -> Kernel:
    """The kernel on the predictions of all models."""
    raise NotImplementedError


@_default_kernel.register(Classification)
def _of_classes(first: Classification, *others: Classification) -> Kernel:
    return Linear() + Gaussian()


@_default_kernel.register(Forecasts)
def _of_distributions(first: Forecasts, *others: Forecasts) -> Kernel:
    pointed = all(one.prediction.wasserstein_points() is not None for one in (first, *others))
    return Gaussian(metric="wasserstein" if pointed else "mmd")


@singledispatch
def _residuals(data: Data, packed: Packed, options: MetricOptions, seed: int) -> Array:
    """Residuals as vectors, float64, whose inner products are the target factors; without sample weights."""
    raise NotImplementedError


@_residuals.register(Classification)
def _residuals_of_labels(data: Classification, packed: Packed, options: MetricOptions, seed: int) -> Array:
    rows = arrays.where_computed(_packing.points_and_residuals(data, "float64")[1])
    root = packed.target.root
    return rows if root is None else rows @ arrays.like(root, rows)


@_residuals.register(Forecasts)
def _residuals_of_targets(data: Forecasts, packed: Packed, options: MetricOptions, seed: int) -> Array:
    return residuals_of(packed, threads=options.threads, seed=seed).rows


def _value(expansion: CKCEExpansion, degenerate: float, confidence_level: float) -> Estimate:
    """`degenerate`: the part of the variance that noise alone has."""
    n = len(expansion.scores)
    linear = max(0.0, n * float(expansion.scores.var(ddof=1)) - 2 * degenerate)  # the jackknife holds it twice
    error = math.sqrt(linear + degenerate)
    slope = n * float(expansion.influences.var(ddof=1)) / expansion.plug_in if expansion.plug_in > 0 else 0.0
    quantile = -float(scipy.special.ndtri((1 - confidence_level) / 2))
    high = statistics.ScoreVariance(slope, degenerate).upper_limit(expansion.value, quantile)
    return Estimate(expansion.value, error, ConfidenceInterval(expansion.value - quantile * error, high))


def _difference(a: CKCEExpansion, b: CKCEExpansion, degenerate: float, confidence_level: float) -> Estimate:
    jackknife = len(a.scores) * float((a.scores - b.scores).var(ddof=1))
    error = math.sqrt(jackknife + degenerate)
    return symmetric(a.value - b.value, error, confidence_level, resolution=a.error_bound + b.error_bound)


def _pair_squares(expansions: Sequence[CKCEExpansion], rows: np.ndarray) -> np.ndarray:
    """Mean squares over the pairs i != j of `rows`: of models in the diagonal, elsewhere of differences of two."""
    sums = np.zeros((len(expansions), len(expansions)))
    for begin in range(0, len(rows), STRIP):
        some = rows[begin : begin + STRIP]
        tiles = [without_own(expansion.pairs(some, rows), begin) for expansion in expansions]
        for i, tile in enumerate(tiles):
            sums[i, i] += float((tile**2).sum())
        for i, j in itertools.combinations(range(len(tiles)), 2):
            sums[i, j] += float(((tiles[i] - tiles[j]) ** 2).sum())
    return sums / (len(rows) * (len(rows) - 1))
