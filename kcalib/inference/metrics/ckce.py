"""The bias-corrected CKCE of several models with one kernel, by its expansion in the residuals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kcalib._backend import linalg
from kcalib._backend.options import check_seed, check_within
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._pairs import statistics
from kcalib.estimators.ckce_system import default_kernel, residual_rows
from kcalib.estimators.forecast_residuals import kernel_alone
from kcalib.inference.ckce_expansion import CKCEExpansion
from kcalib.inference.metrics import certainty
from kcalib.inference.metrics.measured import (
    STRIP,
    Estimate,
    Metric,
    MetricResult,
    PackedModels,
    SharedOptions,
    largest_residual,
    subset,
    without_own,
)
from kcalib.inference.metrics.pair_laws import has_finite_laws, pair_variances
from kcalib.kernels import Kernel
from kcalib.results import ConfidenceInterval
from kcalib.solvers.kernel_operator import KernelOperator
from kcalib.target_kernels import TargetKernel

CKCE_SAMPLES = 1000  # samples whose pairs represent all pairs


@dataclass(frozen=True, eq=False)
class CKCE(Metric):
    """`kcalib.ckce` with its bias removed.

    Parameters
    ----------
    kernel, target_kernel : optional
        As in `SKCE`; the default kernel is ``Linear() + Gaussian()``.
    regularization : float, optional
        As in `kcalib.ckce`: positive; default :math:`n^{-1/4}`.

    Examples
    --------
    >>> import kcalib
    >>> y, models = [0, 1, 1, 0], {"a": [0.2, 0.8, 0.9, 0.2], "b": [0.4, 0.6, 0.6, 0.4]}
    >>> kcalib.compare(y, models, metric=kcalib.methods.CKCE(regularization=0.5)).regularization
    0.5
    """

    kernel: Kernel | None = None
    target_kernel: TargetKernel = None
    regularization: float | None = None

    name: ClassVar[str] = "ckce"
    kinds: ClassVar[tuple[type[Data], ...]] = (Classification, Forecasts)
    has_backend: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.regularization is not None:
            check_within("regularization", self.regularization, 1e-100, 1e100, "; leave it out for n**-0.25")

    def measure(self, data: Sequence[Data], confidence_level: float, options: SharedOptions) -> MetricResult:
        regularization = float(data[0].n ** -0.25 if self.regularization is None else self.regularization)
        kernel = default_kernel(*data) if self.kernel is None else self.kernel
        packed_models = PackedModels.of(data, kernel, self.target_kernel, options.threads)
        return _measure(data, packed_models, regularization, confidence_level, options)


def _measure(
    data: Sequence[Data],
    packed_models: PackedModels,
    regularization: float,
    confidence_level: float,
    options: SharedOptions,
) -> MetricResult:
    n, seed = data[0].n, check_seed(options.seed)
    rows, _ = subset(n, CKCE_SAMPLES, seed)
    matrices = [
        KernelOperator(kernel_alone(packed_model), threads=options.threads, backend=options.backend)
        for packed_model in packed_models.packed
    ]
    residuals = [
        residual_rows(packed_model, packed, threads=options.threads, seed=seed).take(slice(None))
        for packed_model, packed in zip(data, packed_models.packed, strict=True)
    ]
    expansions = [
        CKCEExpansion.of(matrix, of_model, n * regularization, rows, seed=seed)
        for matrix, of_model in zip(matrices, residuals, strict=True)
    ]
    degenerate = 2 * n * (n - 1) * _pair_squares(expansions, len(rows))
    if has_finite_laws(data, packed_models.packed):
        weights = [expansion.between for expansion in expansions]
        laws = pair_variances(data, packed_models.packed, rows, weights, threads=options.threads)
        degenerate = np.maximum(degenerate, 2 * n * (n - 1) * laws)
    pairs = itertools.combinations(range(len(data)), 2)
    # With eigenvalues g of K it is at most |E|^2 max g / (g + n lambda)^2.
    most = largest_residual(packed_models.packed[0]) / (4 * regularization)
    return MetricResult(
        values=[_value(e, degenerate[i, i], confidence_level, most) for i, e in enumerate(expansions)],
        differences=[
            _difference(expansions[i], expansions[j], degenerate[i, j], confidence_level, most) for i, j in pairs
        ],
        estimator="CKCE without its bias",
        intervals="t, differences paired, upper limits of values from a score interval",
        described=packed_models.describe(matrices[0])
        | {"regularization": regularization, "dtype": "float64", "seed": seed},
    )


def _value(expansion: CKCEExpansion, degenerate: float, confidence_level: float, most: float) -> Estimate:
    """Return the value; `degenerate` is the variance from noise alone."""
    n = len(expansion.scores)
    linear = max(0.0, n * float(expansion.scores.var(ddof=1)) - 2 * degenerate)  # the jackknife contains it twice
    error = math.sqrt(linear + degenerate)
    slope = n * float(expansion.influences.var(ddof=1)) / expansion.plug_in if expansion.plug_in > 0 else 0.0
    variance = statistics.ScoreVariance(slope, degenerate)
    equal = error <= expansion.error_bound
    return certainty.estimate_pair_value(expansion.value, error, variance, n, confidence_level, most, equal=equal)


def _difference(
    a: CKCEExpansion, b: CKCEExpansion, degenerate: float, confidence_level: float, most: float
) -> Estimate:
    n = len(a.scores)
    error = math.sqrt(n * float((a.scores - b.scores).var(ddof=1)) + degenerate)
    limits, bound = ConfidenceInterval(-most, most), a.error_bound + b.error_bound
    return certainty.estimate_pair_difference(
        a.value - b.value, error, n, confidence_level, limits, resolution=bound, equal=error <= bound
    )


def _pair_squares(expansions: Sequence[CKCEExpansion], k: int) -> np.ndarray:
    """Return mean squares over the pairs i != j of k rows: of models on the diagonal, else of differences."""
    sums = np.zeros((len(expansions), len(expansions)))
    for begin in range(0, k, STRIP):
        tiles = [without_own(expansion.pairs(slice(begin, begin + STRIP)), begin) for expansion in expansions]
        for i, tile in enumerate(tiles):
            sums[i, i] += linalg.squared_norm(tile)
        for i, j in itertools.combinations(range(len(tiles)), 2):
            sums[i, j] += linalg.squared_norm(tiles[i] - tiles[j])
    return sums / (k * (k - 1))
