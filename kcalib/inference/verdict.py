"""The verdict of an evaluation: an estimate, a test, a lower bound of the error, and a summary in words.

`measure` packs the samples once; `estimators.rms_bound` has the inequality for the bound of the error.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._input.data import Data
from kcalib._input.groupings import Grouping
from kcalib._pairs.backends.base import Workers
from kcalib.estimators import rms_bound
from kcalib.estimators.feature_moments import feature_moments
from kcalib.estimators.rms_bound import RISK_SHARE, MeanEigenvalue, NoBoundError
from kcalib.estimators.skce import (
    FEATURES,
    PairOptions,
    check_estimator,
    estimate_of,
    features_draws_error,
    features_estimate_of,
)
from kcalib.evaluation_results import INTERVAL
from kcalib.inference.adaptive.witness import witness_bound
from kcalib.inference.calibration_test import check_shared_out, run
from kcalib.inference.task import CalibrationMethod, Task
from kcalib.kernels import Kernel
from kcalib.results import CalibrationTestResult, SKCEResult
from kcalib.target_kernels import TargetKernel


@dataclass(frozen=True)
class ErrorBound:
    """A lower limit of the root mean square calibration error, and its basis."""

    rms_error_lower: float  # holds with the probability 1 - level
    kernel_eigenvalue: float  # upper bound of lambda
    n_eigenvalue_samples: int  # number of samples it comes from
    rms_error_from: str = "kernel"  # the larger bound: this, "fitted map" or "temperature map"

    @classmethod
    def of(
        cls, test: CalibrationTestResult, largest: MeanEigenvalue, diameter: float, level: float, of_features: bool
    ) -> ErrorBound:
        """Return the bound from a test with an interval; `RISK_SHARE` of the level is for the eigenvalue."""
        risk = RISK_SHARE * level
        low = test.limits(level - risk, of_features=of_features).low
        eigenvalue = largest.upper_limit(risk)
        return cls(rms_bound.rms_error_lower(low, eigenvalue, diameter), eigenvalue, largest.n_samples)


@dataclass(frozen=True)
class Measured:
    """The estimate of the SKCE, the test, the bound of the error, and conclusions."""

    skce: SKCEResult
    test: CalibrationTestResult
    bound: ErrorBound | None
    level: float
    tolerance: float | None
    is_independent: bool = True  # whether there are no clusters

    @property
    def miscalibrated(self) -> bool:
        if self.tolerance is None:
            return self.test.pvalue < self.level
        assert self.bound is not None
        return self.bound.rms_error_lower > self.tolerance

    def fields(self) -> dict[str, Any]:
        """Return these as fields of an evaluation."""
        names = [field.name for field in dataclasses.fields(ErrorBound)]
        return {
            "skce": self.skce,
            "test": self.test,
            **{name: None if self.bound is None else getattr(self.bound, name) for name in names},
            "level": float(self.level),
            "tolerance": None if self.tolerance is None else float(self.tolerance),
            "miscalibrated": self.miscalibrated,
        }

    def verdict(self, reasons: Sequence[str]) -> str:
        """Return the verdict in words, with the kind and size of the error.

        The adaptive test names the error; the given reasons are used for other tests, and if only its kernels are
        significant.
        """
        if not self.test.pvalue < self.level:
            return "no evidence against calibration"
        if not self.miscalibrated:
            return f"not shown to be off by more than {self.tolerance:g}"
        has_kernels_alone = all("kernel" in block.name for block in self.test.blocks or ())
        if self.test.finding is not None and not (reasons and has_kernels_alone):
            reasons = [self.test.finding]
        words = ", ".join(["miscalibrated", *reasons])
        least = 0.0 if self.bound is None else self.bound.rms_error_lower
        return f"{words}: off by at least {shown_at_least(least)}" if least > 0 else words


def shown_at_least(value: float) -> str:
    """Format a positive number with two digits, rounded down."""
    digits = 1 - math.floor(math.log10(value))
    return f"{math.floor(value * 10**digits) / 10**digits:.2g}"


def check_tolerance(tolerance: float | None) -> None:
    is_number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
    if tolerance is not None and not (is_number and 0 <= tolerance < 1):
        raise ValueError(
            f"`tolerance` is {tolerance!r}, expected a number from 0 to below 1: the root mean square error of "
            "probabilities that does not matter; or None"
        )


def direction(n: int, accuracy: float, confidence: float) -> list[str]:
    """Name a direction if confidence and accuracy differ by more than two standard errors."""
    error = math.sqrt(accuracy * (1 - accuracy) / n)
    gap = confidence - accuracy
    if abs(gap) <= 2 * error:
        return []
    return ["over-confident" if gap > 0 else "under-confident"]


def off_quantiles(n: float, shift: float, excess: float) -> list[str]:
    """Return what is off by more than two standard errors of n samples of a calibrated model.

    `shift` is the deviation of the mean PIT value from one half, `excess` that of the coverage of central intervals.
    """
    reasons = []
    if abs(shift) > 2 * math.sqrt(1 / (12 * n)):
        reasons.append("too low" if shift > 0 else "too high")
    if abs(excess) > 2 * math.sqrt(INTERVAL * (1 - INTERVAL) / n):
        reasons.append("under-confident" if excess > 0 else "over-confident")
    return reasons


def off_spread(gap: float, error: float) -> list[str]:
    """Return whether squared errors of vectors differ from their variances by more than two standard errors."""
    if abs(gap) <= 2 * error:
        return []
    return ["over-confident" if gap > 0 else "under-confident"]


def measure(
    data: Data,
    kernel: Kernel | None,
    method: str | CalibrationMethod,
    seed: int,
    threads: int | None,
    level: float,
    tolerance: float | None,
    backend: str | Workers | None = None,
    clusters: np.ndarray | None = None,
    given: tuple[Grouping, ...] = (),
    target_kernel: TargetKernel = None,
    cluster_option: str = "clusters",
) -> Measured:
    """Estimate, test and bound from one packed problem; all-pairs sums share one sweep."""
    check_shared_out(method, backend)
    task = Task(data, PairOptions(kernel, target_kernel, backend, threads), clusters, given, cluster_option)
    test = run(task, method, seed)
    bound = bound_or_none(
        lambda: _error_bound(task, test, level),
        tolerance,
        "leave it out, or use the default method and a bounded kernel",
    )
    return Measured(_estimate(task, test, seed), test, bound, level, tolerance, clusters is None)


def bound_or_none(find: Callable[[], ErrorBound], tolerance: float | None, remedy: str) -> ErrorBound | None:
    """Return the bound, or None if there is none and no tolerance needs it."""
    try:
        return find()
    except NoBoundError as error:
        if tolerance is not None:
            raise ValueError(
                f"`tolerance` is {tolerance:g}, but there is no bound of the error to compare with it: {error}; "
                f"{remedy}"
            ) from None
        return None


def _estimate(task: Task, test: CalibrationTestResult, seed: int) -> SKCEResult:
    """Return the estimate of the test, or one of similar cost."""
    if test.n_columns is not None:
        return _estimate_of_test(task, test)
    # Unless the test has summed all pairs, or this is fast, or the kernel has no features.
    if not (test.variance_slope is not None or task.sums_all_pairs) and task.has_features:
        problem = task.features(None, seed)
        return features_estimate_of(problem, feature_moments(problem))
    check_estimator(task.data, "unbiased", None)
    if task.data.sample_weight is not None:
        return estimate_of(task.data, task.packed, task.backend, "unbiased", None)
    null = task.null_moments if task.n > 1 else None
    return estimate_of(task.data, task.packed, task.backend, "unbiased", None, moments=task.moments, null=null)


def _estimate_of_test(task: Task, test: CalibrationTestResult) -> SKCEResult:
    """Return the estimate of a test by random features."""
    start = time.perf_counter()
    of_draws = features_draws_error(task.feature_problems[-1])
    estimate_fields: dict[str, Any] = {"value": test.estimate, "draws_standard_error": of_draws, "estimator": FEATURES}
    shared_names = {field.name for field in dataclasses.fields(SKCEResult)} - {*estimate_fields, "seconds"}
    fields = {name: getattr(test, name) for name in shared_names}
    return SKCEResult(**estimate_fields, **fields, seconds=time.perf_counter() - start)


def _error_bound(task: Task, test: CalibrationTestResult, level: float) -> ErrorBound:
    """Return the limit from a test; raise NoBoundError if it has no interval, or the kernel no bound."""
    if not test.has_interval:
        raise NoBoundError(f"method={test.method!r} has no confidence interval of the SKCE for {task.n} samples")
    of_features = False
    diameter = rms_bound.squared_diameter(task.data, task.packed)
    if test.n_columns is not None:
        problem = task.feature_problems[-1]
        # The error of random features on predictions is not one of the feature kernel, but features of targets have an
        # unknown diameter.
        of_features = problem.target_groups is None
    if of_features:
        largest = rms_bound.feature_eigenvalue(problem)
    else:
        largest = rms_bound.mean_eigenvalue(task.data, task.packed, task.backend)
    fitted = witness_bound(task.data, level / 2) if test.pvalue < level else None
    if fitted is None:
        return ErrorBound.of(test, largest, diameter, level, of_features)
    bound = ErrorBound.of(test, largest, diameter, level / 2, of_features)
    if bound.rms_error_lower >= fitted:
        return bound
    return dataclasses.replace(bound, rms_error_lower=fitted, rms_error_from="fitted map")
