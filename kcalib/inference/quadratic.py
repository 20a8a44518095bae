"""Base class of tests that compare the unbiased SKCE over all pairs with its null distribution.

The statistic is n SKCE_uq, a degenerate U-statistic under calibration (W19 theorem G.2, W21 remark B.2). `AllPairs`
makes a result from the null distribution of a method, `from_draws` a p-value from draws of the statistic.

    Exact                       exact.py
    Bootstrap Multiplier        resampling.py
    Spectrum Pearson            spectrum.py
    Gamma                       gamma.py
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.random import Weights
from kcalib._pairs.backends.base import Backend
from kcalib._pairs.reductions import QuadraticForms, sweep_one
from kcalib.estimators.skce import describe
from kcalib.inference.events import warn_if_few
from kcalib.inference.task import CalibrationMethod, Task
from kcalib.results import CalibrationTestResult

# Whether the null distribution is conditional on the predictions, or uses the observed residuals as published.
REFERENCES = ("conditional", "residuals")
N_RESAMPLES = 999
MAX_RESAMPLES = 2**31
N_QUANTILES = 41  # of draws, in results
# Draws in float32 may miss a tie by rounding; ties count as at least as large. Tolerances relative to the trace, and to
# the statistic and its standard deviation: if all predictions are equal most draws are ties.
TIE, ROUNDING = 1e-6, 2e-5


@dataclass(frozen=True)
class NullLaw:
    """A p-value, and its basis."""

    log_pvalue: float
    description: str
    n_resamples: int | None = None
    n_eigenvalues: int | None = None
    pvalue: float | None = None  # if it is a ratio of counts; otherwise exp(log_pvalue)
    pvalue_from: str | None = None  # draws, or their continuation
    quantiles: tuple[float, ...] | None = None  # of the draws of n SKCE

    @classmethod
    def of_draws(cls, pvalue: float, description: str, statistics: np.ndarray) -> NullLaw:
        quantiles = tuple(np.quantile(statistics, np.linspace(0, 1, N_QUANTILES)).tolist())
        return cls(
            math.log(pvalue), description, n_resamples=len(statistics), pvalue=pvalue, pvalue_from="draws",
            quantiles=quantiles,
        )  # fmt: skip


class AllPairs(CalibrationMethod):
    """A test of n SKCE_uq by a null distribution."""

    is_random: ClassVar[bool]  # whether the null distribution depends on a seed

    def law(self, task: Task, seed: int) -> NullLaw:
        """Return the p-value of the statistic."""
        raise NotImplementedError

    @property
    def fewest_events(self) -> int:
        """The number of events that the null distribution needs; 0 if it is exact."""
        return 0

    def test(self, task: Task, seed: int) -> CalibrationTestResult:
        data = task.data
        if data.n < 2:
            raise ValueError(f"method={self.name!r} needs at least 2 samples, `y_true` has {data.n}")
        if self.fewest_events:
            warn_if_few(task, f"method={self.name!r}", self.fewest_events)
        result = self.law(task, seed if self.is_random else 0)
        return task.result(
            method=self.name,
            statistic=data.n * task.estimate,
            log_pvalue=result.log_pvalue,
            pvalue=result.pvalue,
            null_law=result.description,
            pvalue_from=result.pvalue_from,
            null_quantiles=result.quantiles,
            estimator="unbiased SKCE",
            n_resamples=result.n_resamples,
            n_eigenvalues=result.n_eigenvalues,
            seed=seed if self.is_random else None,
            threads=task.backend.threads,
            **task.estimate_fields(task.moments, task.null_moments.squares),
            **describe(data, task.packed, task.backend),
        )


def from_draws(task: Task, totals: np.ndarray, description: str) -> NullLaw:
    """Return the p-value from `totals`: sums over i != j of draws under calibration."""
    pvalue = (1 + int(np.sum(totals >= least_as_large(task)))) / (1 + len(totals))
    return NullLaw.of_draws(pvalue, description, totals / (task.n - 1))


def least_as_large(task: Task) -> float:
    """Return the smallest sum over i != j that counts as being as large as the observed one."""
    total, deviation = float(task.moments.total), math.sqrt(2 * max(task.null_moments.squares, 0.0))
    return total - TIE * float(task.moments.trace) - ROUNDING * (abs(total) + deviation)


def degenerate(total: float = 0.0) -> NullLaw:
    """Return the p-value if under calibration the sum over i != j is always 0."""
    if total > 0:
        return NullLaw(-math.inf, "none: predictions that are certain are wrong", pvalue=0.0)
    return NullLaw(0.0, "none: all pairs are 0")


def quadratic_forms(backend: Backend, weights: Weights | Array) -> Array:
    """Return w^T H w for each column w, in float32."""
    if not isinstance(weights, Weights):
        weights = arrays.asarray_like(weights, backend.problem.left.points)
    return arrays.to_compute_device(sweep_one(backend, QuadraticForms(weights, dtype="float32")))
