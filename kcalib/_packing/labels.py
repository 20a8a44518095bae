"""From checked input to a pair problem: points, marks, and the kernel's normal form.

The only room that knows both user objects (kernels, target kernels) and `PairProblem`.
Called by the estimators; the result goes to `_pairs.dispatch`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.threads import threads_for
from kcalib._backend.warnings import IndefiniteKernelWarning, warn
from kcalib._input.forecasts import Either as Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._packing.forecasts import (
    ForecastProblem,
    is_definite,
    pack_forecast_locations,
    pack_forecasts,
    side_of,
)
from kcalib._pairs.operators.generic import GenericOperator
from kcalib._pairs.problem import PairProblem, Side, Term
from kcalib.bandwidth import MedianDistance, median_of_points
from kcalib.kernels import METRICS, SMALLEST, Exponential, Kernel
from kcalib.target_kernels import TargetKernel, matrix_root


@dataclass(frozen=True)
class Packed:
    """A pair problem and what was decided on the way to it."""

    problem: PairProblem
    kernel: Kernel  # with its bandwidths as numbers
    medians: tuple[MedianDistance, ...]  # where a bandwidth came from the median heuristic
    root: np.ndarray | None  # R of the target kernel's matrix R R^T, shape (m, rank); None for the Kronecker delta
    forecast: ForecastProblem | None = None  # of predicted distributions

    @property
    def matrix(self) -> np.ndarray | None:
        """The target kernel's matrix; None for the Kronecker delta."""
        return None if self.root is None else self.root @ self.root.T

    @classmethod
    def of_forecast(cls, found: ForecastProblem) -> Packed:
        return cls(found.problem, found.kernel, found.medians, None, found)

    @property
    def is_definite(self) -> bool:
        """Whether the kernel on predictions is known to be positive definite."""
        if self.forecast is not None:
            return is_definite(self.kernel, self.forecast.points)
        return self.problem.left.points.shape[1] <= 2 or all(f.is_positive_definite() for f in self.kernel.factors())

    def with_targets(self, data: Forecasts) -> Packed:
        """Other targets beside the same predictions."""
        return self._with_marks(data, None)

    def taken(self, rows: Any) -> Packed:
        """The problem of some of the samples, in the order of `rows`."""
        return replace(self, problem=replace(self.problem, left=self.problem.left.take(rows)))

    def _with_marks(self, data: Forecasts, rows: Any) -> Packed:
        """Samples with the predictions of `rows`, and the targets of `data`."""
        assert self.forecast is not None
        marks = self.forecast.target.marks(data.y, data.sample_weight, rows)
        points = self.problem.columns.points
        if rows is not None:
            points = arrays.namespace(points).take(points, rows, axis=0)
        side = side_of(data, points, marks)
        if self.problem.symmetric:
            return replace(self, problem=replace(self.problem, left=side))
        return replace(self, problem=replace(self.problem, right=side))


def pack(data: Data, kernel: Kernel | None, target_kernel: TargetKernel, *, threads: int | None = None) -> Packed:
    """H_ij = k(p_i, p_j) e_i^T M e_j, samples weighted by scaling their residuals; distributions: see `Mixtures`."""
    if isinstance(data, Forecasts):
        return Packed.of_forecast(pack_forecasts(data, kernel, target_kernel, threads))
    resolved, medians = _resolved(check_kernel(kernel, data.m), data.probabilities, threads)
    root = target_root(target_kernel, data)
    problem = PairProblem(_sample_side(data, root, threads), None, _terms(resolved))
    return Packed(problem, resolved, medians, root)


def pack_locations(
    data: Data,
    locations: Data,
    kernel: Kernel | None,
    target_kernel: TargetKernel,
    *,
    threads: int | None = None,
) -> Packed:
    """H_ji = k(p_T, p_i) onehot(y_T)^T M e_i: test locations T_j = (p_T, y_T) on the left, samples on the right."""
    if isinstance(data, Forecasts):
        assert isinstance(locations, Forecasts)
        return Packed.of_forecast(pack_forecast_locations(data, locations, kernel, target_kernel, threads))
    assert isinstance(locations, Classification)
    resolved, medians = _resolved(check_kernel(kernel, data.m), data.probabilities, threads)
    root = target_root(target_kernel, data)
    problem = PairProblem(_location_side(locations, root), _sample_side(data, root, threads), _terms(resolved))
    return Packed(problem, resolved, medians, root)


def pack_points(points: Array, kernel: Kernel | None, dtype: str, *, threads: int | None = None) -> Packed:
    """K_ij = k(x_i, x_j) of checked points, shape (n, m): all marks are 1."""
    resolved, medians = _resolved(check_kernel(kernel, int(points.shape[1])), points, threads)
    xp = arrays.namespace(points)
    points = xp.astype(points, getattr(xp, dtype), copy=False)
    problem = PairProblem(Side(points, xp.ones_like(points[:, :1])), None, _terms(resolved))
    return Packed(problem, resolved, medians, None)


def repack(packed: Packed, data: Data, *, rows: Any = None, threads: int | None = None) -> Packed:
    """Other samples in place of those of `packed`, with its kernel, bandwidths included, and its locations.

    `rows` are the samples of `packed` that the predictions are of, None for all in their order; only distributions
    need to know.
    """
    if isinstance(data, Forecasts):
        return packed._with_marks(data, rows)
    side, old = _sample_side(data, packed.root, threads), packed.problem
    problem = replace(old, left=side) if old.symmetric else replace(old, right=side)
    return replace(packed, problem=problem)


def target_root(target_kernel: TargetKernel, data: Classification) -> np.ndarray | None:
    """R of the matrix R R^T over the classes, shape (m, rank); None for the Kronecker delta."""
    if not isinstance(target_kernel, Kernel):
        return matrix_root(target_kernel, data.m)  # None stands for the Kronecker delta

    def bandwidth(metric: str) -> float:
        raise ValueError(
            f"`target_kernel` is {target_kernel}, expected a number for its bandwidth, not the median heuristic"
        )

    _check_metrics(target_kernel)
    values = np.arange(data.m) if data.classes is None else np.asarray(data.classes)
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"`target_kernel` is {target_kernel}, a kernel between numbers, but the classes are {values.tolist()}; "
            "pass classes= with a number for each, or the matrix of the kernel"
        )
    points = values.astype(np.float64)[:, None]
    problem = PairProblem(Side(points, np.ones_like(points)), None, _terms(target_kernel.resolve(bandwidth)))
    return matrix_root(GenericOperator(problem).tile(slice(None), slice(None)), data.m)


def _resolved(kernel: Kernel, points: Array, threads: int | None) -> tuple[Kernel, tuple[MedianDistance, ...]]:
    """The kernel with its bandwidths as numbers, and the medians they come from."""
    medians: dict[str, MedianDistance] = {}

    def bandwidth(metric: str) -> float:
        if metric not in medians:
            medians[metric] = median_of_points(points, metric, threads=threads)
        return max(medians[metric].value, SMALLEST)

    return kernel.resolve(bandwidth), tuple(medians.values())


def _sample_side(data: Classification, root: np.ndarray | None, threads: int | None) -> Side:
    dtype = getattr(data.xp, data.dtype)
    if root is None and data.sample_weight is None:
        return _residual_side(data, dtype, threads)
    points, marks = points_and_residuals(data, threads=threads)
    if root is not None:
        marks = marks @ arrays.like(root, marks, dtype=marks.dtype)
    if data.sample_weight is not None:
        marks = marks * data.xp.astype(data.sample_weight, marks.dtype)[:, None]
    return Side(*(data.xp.astype(a, dtype, copy=False) for a in (points, marks)))


def _location_side(locations: Classification, root: np.ndarray | None) -> Side:
    xp, points = locations.xp, locations.probabilities
    columns = xp.arange(locations.m, device=arrays.device(points))
    marks = xp.astype(locations.labels[:, None] == columns[None, :], points.dtype)
    if root is not None:
        marks = marks @ arrays.like(root, marks, dtype=marks.dtype)
    return Side(*(xp.astype(a, getattr(xp, locations.dtype), copy=False) for a in (points, marks)))


def _residual_side(data: Classification, dtype: Any, threads: int | None) -> Side:
    if data.probabilities.dtype == dtype:
        return Side(data.probabilities, lambda: points_and_residuals(data, threads=threads)[1], data.labels)
    return Side(*points_and_residuals(data, data.dtype, threads=threads), data.labels)


def check_kernel(kernel: Any, m: int) -> Kernel:
    """The kernel to use (default: exponential with the median heuristic)."""
    if kernel is None:
        return Exponential()
    if not isinstance(kernel, Kernel):
        raise TypeError(f"`kernel` is {kernel!r}, expected a kernel such as kcalib.kernels.Exponential(bandwidth=0.5)")
    _check_metrics(kernel)
    for factor in kernel.factors():
        if m > 2 and not factor.is_positive_definite():
            warn(
                f"{factor} may be indefinite for {m} classes: with this metric only Exponential and "
                "GammaExponential(gamma <= 1) are known to be positive definite. The estimate can then be negative or "
                "near 0 for a miscalibrated model; use one of those, or metric='euclidean'.",
                IndefiniteKernelWarning,
            )
    return kernel


def _check_metrics(kernel: Kernel) -> None:
    for factor in kernel.factors():
        if factor.metric not in METRICS:
            raise ValueError(
                f"{factor} has a metric between predicted distributions (kcalib.distributions), but `y_pred` holds "
                "class probabilities or other vectors; use metric='euclidean', 'cityblock' or 'total_variation'"
            )


def _terms(kernel: Kernel) -> tuple[Term, ...]:
    """The kernel's normal form; its coefficients must fit float32."""
    terms = kernel.terms()
    for term in terms:
        if not 1e-30 <= term.coefficient <= 1e30:
            raise ValueError(
                f"`kernel` has a term scaled by {term.coefficient:.3g}, expected scales between 1e-30 and 1e30 after "
                "multiplying out; rescale the kernel"
            )
    return terms


def points_and_residuals(
    data: Classification, dtype: str | None = None, *, threads: int | None = None
) -> tuple[Array, Array]:
    """p and one-hot(y) - p, shape (n, m), in `dtype` or that of p.

    The residuals are rounded last: 1 - p would lose the digits of a small one in float32.
    """
    xp, p = data.xp, data.probabilities
    if arrays.is_host(p):
        return _native.points_and_residuals(p, data.labels, dtype or "float64", threads_for(p.size, threads))
    columns = xp.arange(data.m, device=arrays.device(p))
    e = xp.astype(data.labels[:, None] == columns[None, :], p.dtype) - p
    target = p.dtype if dtype is None else getattr(xp, dtype)
    return xp.astype(p, target, copy=False), xp.astype(e, target, copy=False)
