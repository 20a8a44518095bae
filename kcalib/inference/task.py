"""The base class of tests of calibration, and their input.

A `CalibrationMethod` has options, and a `test` that turns a `Task`, checked data that are packed on first use, into a
`CalibrationTestResult`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from kcalib import _packing
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._input.data import Data
from kcalib._input.groupings import Grouping
from kcalib._input.methods import Method
from kcalib._packing import Packed
from kcalib._packing.features import FeatureProblem, MapOptions, features_of
from kcalib._pairs import statistics
from kcalib._pairs.backends.base import Backend, diagonal
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import MomentSums, Reduction
from kcalib.estimators.few_errors import few_errors
from kcalib.estimators.null_moments import NullMoments, effective_events, moments_and_null_moments
from kcalib.estimators.skce import PairOptions, feature_options
from kcalib.results import CalibrationTestResult, FewErrors

PAIRS_WORK = 1e10  # multiply-adds of a sum over pairs that takes about a second


class CalibrationMethod(Method):
    """A test of the hypothesis that the model is calibrated."""

    def test(self, task: Task, seed: int) -> CalibrationTestResult:
        """Run the test; `seed` determines everything random."""
        raise NotImplementedError


@dataclass(frozen=True)
class Task:
    """Checked data and their pair problem, which is packed, and its matrix H swept, on first use."""

    data: Data
    options: PairOptions
    clusters: np.ndarray | None = None  # of each sample, integers; None for independent samples
    given: tuple[Grouping, ...] = ()  # further variables
    cluster_option: str = "clusters"  # the argument that defines clusters
    feature_problems: list[FeatureProblem] = field(default_factory=list)  # those made so far
    _moments: list[tuple[MomentSums, NullMoments]] = field(default_factory=list)  # of H, after a sweep

    @property
    def n(self) -> int:
        return self.data.n

    @cached_property
    def packed(self) -> Packed:
        options = self.options
        return _packing.pack(self.data, options.kernel, options.target_kernel, threads=options.threads)

    @cached_property
    def backend(self) -> Backend:
        return self.options.backend_for(self.packed.problem)

    def features(self, n_columns: int | None, seed: int | None) -> FeatureProblem:
        """Return the random feature problem, and keep it."""
        problem = features_of(self.data, self.packed, MapOptions(**feature_options(self.options, n_columns, seed)))
        self.feature_problems.append(problem)
        return problem

    def backend_of(self, problem: PairProblem) -> Backend:
        """Return a backend for another problem, of the same kind as for this one."""
        return self.backend.like(problem)

    def ordered(self, seed: int | None) -> Backend:
        """Return the backend on samples shuffled with the seed, or unshuffled for None.

        Bandwidths are those of the unshuffled samples.
        """
        if seed is None:
            return self.backend
        problem = self.packed.take(self.data.order(seed)).problem
        return self.options.backend_for(problem)

    def sweep(self, *reductions: Reduction[Any]) -> list[Any]:
        """Sweep H once for the reductions of a test, and for the moments if these are not known yet."""
        if self._moments:
            return self.backend.sweep(reductions)
        moments, null, results = moments_and_null_moments(self.data, self.packed, self.backend, reductions)
        self._moments.append((moments, null))
        return results

    @property
    def moments(self) -> MomentSums:
        if not self._moments:
            self.sweep()
        return self._moments[0][0]

    @cached_property
    def estimate(self) -> float:
        """The unbiased SKCE."""
        return statistics.unbiased(self.moments, self.n)

    @cached_property
    def kernel_backend(self) -> Backend:
        """The kernel matrix K, as the backend of the problem with features 1."""
        points = self.packed.problem.left.points
        ones = arrays.namespace(points).ones_like(points[:, :1])
        return self.backend_of(replace(self.packed.problem, left=Side(points, ones), target=None))

    @cached_property
    def kernel_diagonal(self) -> Array:
        backend = self.kernel_backend
        return arrays.to_compute_device(diagonal(backend.problem, backend.threads or 1))

    @property
    def null_moments(self) -> NullMoments:
        """Moments of sums over H under calibration, given the predictions."""
        if not self._moments:
            self.sweep()
        return self._moments[0][1]

    @cached_property
    def effective_events(self) -> float:
        """Approximate number of events that the null distribution rests on, from the predictions alone."""
        return effective_events(self.data, self.packed)

    @cached_property
    def few_errors(self) -> FewErrors | None:
        """The basis of upper limits if errors are rare."""
        return few_errors(self.data, self.packed)

    @property
    def null_variance(self) -> float:
        """The variance of n SKCE under calibration: 2 E h^2, estimated from all pairs."""
        assert self.moments.sum_of_squares is not None
        return 2 * self.moments.sum_of_squares / (self.n - 1) ** 2

    @cached_property
    def sums_all_pairs(self) -> bool:
        """Whether a sum over all pairs is requested, or takes at most about a second."""
        if self.options.backend is not None or self.backend.on_a_line:
            return True
        return self.n**2 / 2 * self.packed.problem.multiply_adds <= PAIRS_WORK

    @cached_property
    def has_features(self) -> bool:
        """Whether the kernel has random features."""
        try:
            features_of(self.data, self.packed, MapOptions(threads=self.options.threads))
        except (ValueError, NotImplementedError):
            return False
        return True

    def estimate_fields(
        self, moments: MomentSums, null_squares: float | None, features_error: float | None = None
    ) -> dict[str, Any]:
        """Return the fields of a result for the unbiased SKCE of these moments, with its errors.

        `null_squares` is the sum of squares under calibration, `features_error` the error of random features.
        """
        n, weight = self.n, self.data.sample_weight
        if weight is not None:  # the formulas of errors are for equal weights
            return {"estimate": statistics.unbiased(moments, n, weight)}
        assert null_squares is not None
        variance = statistics.spread_of(moments).score_variance(null_squares) if n >= 4 else None
        error = statistics.standard_error(moments, null_squares)
        return {
            "estimate": statistics.unbiased(moments, n),
            "standard_error": None if error is None else math.hypot(error, features_error or 0.0),
            "null_standard_error": statistics.null_standard_error(null_squares, n),
            "features_standard_error": features_error,
            "variance_slope": None if variance is None else variance.slope,
            "variance_constant": None if variance is None else variance.constant,
            "few_errors": self.few_errors if n >= 4 else None,
        }

    def result(
        self, *, method: str, log_pvalue: float, pvalue: float | None = None, **fields: Any
    ) -> CalibrationTestResult:
        """Return the result of the method of that name; fields it does not have are None, `run` sets the time.

        A p-value that is a ratio of counts is given exactly: 50 of 1000 is 0.05, unlike the exponential of its
        logarithm.
        """
        data = self.data
        about = {"n_samples_used": data.n, **data.describe()}
        return CalibrationTestResult(
            method=method,
            pvalue=math.exp(log_pvalue) if pvalue is None else pvalue,
            log_pvalue=log_pvalue,
            n_samples=data.n,
            dtype=data.dtype,
            seconds=0.0,
            **(about | fields),
        )

    def blocks(self, block_size: int | None) -> dict[str, Any]:
        """Return the fields of an estimate from blocks of this size; None without blocks."""
        if block_size is None:
            return {}
        n_blocks = self.n // block_size
        return {"block_size": block_size, "n_blocks": n_blocks, "n_samples_used": n_blocks * block_size}
