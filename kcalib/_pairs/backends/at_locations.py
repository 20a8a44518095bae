"""Sums over samples at a few test locations, in passes over the predictions that store nothing of their size.

Backends on the host have an `AtLocations` for problems with locations on the left, samples on the right and the
Kronecker delta between labels; `kcalib.estimators.ucme` and the test of it ask for it. What it computes stands in
src/cpu/locations/location_kernels.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib import _native
from kcalib._pairs.problem import PairProblem

MOST_LOCATIONS = 64  # that are few: each sample takes so many sums, and for a covariance their square
METRICS = {"euclidean", "cityblock", "dot"}


@dataclass(frozen=True)
class AtLocations:
    """The values k_ji ([y_i = c_j] - p_i,c_j) of samples i at the locations j, of classes c_j."""

    problem: PairProblem
    classes: np.ndarray
    run: Callable[..., Any]  # a function of the compiled core, with the kernel

    @classmethod
    def of(cls, problem: PairProblem, run: Callable[..., Any]) -> AtLocations | None:
        """None where marks are no residuals on the right and no classes on the left, or the locations not few; in
        float32, which the compiled core does not read."""
        if problem.right is None or not problem.right.marks_follow or len(problem.left.points) > MOST_LOCATIONS:
            return None
        if problem.right.points.dtype != np.float64:
            return None
        if not {factor.metric for term in problem.kernel for factor in term.factors} <= METRICS:
            return None
        marks = problem.left.marks
        classes = np.argmax(marks, axis=1)
        is_one_hot = np.array_equal(marks, classes[:, None] == np.arange(marks.shape[1]))
        return cls(problem, classes, run) if is_one_hot else None

    def sums(self, *, covariance: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sums of the values; if `covariance` also of their covariances for labels drawn from p, and the largest
        |k_ji| of each location."""
        assert self.problem.right is not None
        labels = np.ascontiguousarray(self.problem.right.labels, dtype=np.int64)
        found: tuple[np.ndarray, np.ndarray, np.ndarray] = self.run(
            _native.location_sums, *self._arrays, labels, covariance
        )
        return found

    def fourth(self, gram: np.ndarray) -> float:
        """The sum over samples of E (v^T gram v)^2 for the values v of labels drawn from p."""
        return float(self.run(_native.location_fourth, *self._arrays, np.ascontiguousarray(gram)))

    @property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        points, p = (np.ascontiguousarray(side.points) for side in (self.problem.left, self.problem.columns))
        return points, self.classes, p
