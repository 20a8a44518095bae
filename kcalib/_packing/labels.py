"""From class labels and probabilities to a pair problem: points, features, and the kernel's normal form."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.threads import threads_for
from kcalib._backend.warnings import IndefiniteKernelWarning, warn
from kcalib._input.labels import Classification
from kcalib._packing.packed import Alike, Packed, Target, check_coefficients, medians_of, pack_alike, pack_locations
from kcalib._pairs.backends.array_api import ArrayApiBackend
from kcalib._pairs.problem import PairProblem, Side, Term
from kcalib._pairs.reductions import DenseRectangle, sweep_one
from kcalib.bandwidth import MedianDistance, median_of_points
from kcalib.kernels import VECTOR_METRICS, Exponential, Kernel, RadialKernel
from kcalib.target_kernels import TargetKernel, matrix_root

DEFAULT = Exponential()  # kernel, with the median heuristic


@dataclass(frozen=True)
class TargetMatrix(Target):
    """Features of class labels: residuals onehot(y) - p times the root R of the target matrix M = R R^T."""

    root: np.ndarray | None = None  # shape (m, rank); None for the Kronecker delta

    mixtures = None
    medians = ()
    route = None

    @property
    def name(self) -> str:
        return "delta" if self.root is None else f"matrix of rank {self.root.shape[1]}"

    def take(self, rows: Array) -> TargetMatrix:
        return self

    def of_predictions(self, data: Classification) -> TargetMatrix:
        return self

    def side(self, data: Classification, points: Array, threads: int | None) -> Side:
        return sample_side(data, self.root, threads)


DELTA = TargetMatrix()


@pack_alike.register(Classification)
def _pack_alike(
    first: Classification,
    *further_models: Classification,
    kernel: Kernel | None,
    target_kernel: TargetKernel,
    threads: int | None = None,
) -> Alike:
    models = (first, *further_models)
    m = first.m
    resolved = check_kernel(kernel, m)
    medians: dict[str, list[MedianDistance]] = {}
    facts = _facts(resolved)
    if facts.open_metrics:
        resolved, medians = resolve([model.probabilities for model in models], resolved, threads, elsewhere=False)
    root = target_root(target_kernel, first)
    target, terms = DELTA if root is None else TargetMatrix(root), _terms(resolved)
    is_definite = _is_definite(facts, m)
    own_medians = () if further_models else _first(medians)
    problems = [
        PairProblem(sample_side(model, target.root, threads), None, terms, kernel_repr=resolved) for model in models
    ]
    return Alike(tuple([Packed(problem, resolved, own_medians, target, is_definite) for problem in problems]), medians)


@pack_locations.register(Classification)
def _pack_locations(
    data: Classification,
    locations: Classification,
    kernel: Kernel | None,
    target_kernel: TargetKernel,
    *,
    threads: int | None = None,
) -> Packed:
    resolved, medians = resolve([data.probabilities], check_kernel(kernel, data.m), threads, elsewhere=True)
    target = TargetMatrix(target_root(target_kernel, data))
    left, right = _location_side(locations, target.root), sample_side(data, target.root, threads)
    problem = PairProblem(left, right, _terms(resolved), kernel_repr=resolved)
    return Packed(problem, resolved, _first(medians), target, _is_definite(_facts(resolved), data.m))


def pack_points(
    points: Array, kernel: Kernel | None, dtype: str, *, threads: int | None = None, elsewhere: bool = False
) -> Packed:
    """Return K_ij = k(x_i, x_j) of checked points, shape (n, m): all features are 1."""
    m = int(points.shape[1])
    resolved, medians = resolve([points], check_kernel(kernel, m), threads, elsewhere=elsewhere)
    xp = arrays.namespace(points)
    points = xp.astype(points, getattr(xp, dtype), copy=False)
    problem = PairProblem(Side(points, xp.ones_like(points[:, :1])), None, _terms(resolved), kernel_repr=resolved)
    return Packed(problem, resolved, _first(medians), TargetMatrix(), _is_definite(_facts(resolved), m))


def target_root(target_kernel: TargetKernel, data: Classification) -> np.ndarray | None:
    """Return R of the matrix R R^T over the classes, shape (m, rank); None for the Kronecker delta."""
    if target_kernel is None:
        return None
    if not isinstance(target_kernel, Kernel):
        return matrix_root(target_kernel, data.m)
    _check_metrics(target_kernel)
    values = np.asarray(data.class_names)
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"`target_kernel` is {target_kernel}, a kernel between numbers, but the classes are {values.tolist()}; "
            "pass classes= with a number for each, or the matrix of the kernel"
        )
    if target_kernel.open_metrics():
        raise ValueError(
            f"`target_kernel` is {target_kernel}, expected a number for its bandwidth, not the median heuristic"
        )
    points = values.astype(np.float64)[:, None]
    problem = PairProblem(Side(points, np.ones_like(points)), None, _terms(target_kernel))
    return matrix_root(sweep_one(ArrayApiBackend(problem), DenseRectangle()), data.m)


def resolve(
    models: Sequence[Array], kernel: Kernel, threads: int | None, *, elsewhere: bool
) -> tuple[Kernel, dict[str, list[MedianDistance]]]:
    """Return the kernel with bandwidths as numbers, the same for the points of all models, and the medians.

    With `elsewhere` the kernel will be used for other points, so that identical ones are an error.
    """
    medians: dict[str, list[MedianDistance]] = {}

    def bandwidth(metric: str) -> float:
        return medians_of(
            models,
            lambda points: median_of_points(points, metric, threads=threads),
            medians,
            metric,
            elsewhere=elsewhere,
        )

    open_metrics = _facts(kernel).open_metrics
    if not open_metrics:
        return kernel, medians
    return kernel.resolve({metric: bandwidth(metric) for metric in open_metrics}), medians


def _first(medians: dict[str, list[MedianDistance]]) -> tuple[MedianDistance, ...]:
    return tuple([by_model[0] for by_model in medians.values()])


def sample_side(data: Classification, root: np.ndarray | None, threads: int | None) -> Side:
    """Return predictions, and residuals times `root` and weights."""
    dtype = getattr(data.xp, data.dtype)
    if root is None and data.sample_weight is None:
        return _residual_side(data, dtype, threads)
    points, features = points_and_residuals(data, threads=threads)
    if root is not None:
        features = features @ arrays.like(root, features, dtype=features.dtype)
    if data.sample_weight is not None:
        features = features * data.xp.astype(data.sample_weight, features.dtype)[:, None]
    return Side(*(data.xp.astype(a, dtype, copy=False) for a in (points, features)))


def _location_side(locations: Classification, root: np.ndarray | None) -> Side:
    xp, points = locations.xp, locations.probabilities
    columns = xp.arange(locations.m, device=arrays.device(points))
    features = xp.astype(locations.labels[:, None] == columns[None, :], points.dtype)
    if root is not None:
        features = features @ arrays.like(root, features, dtype=features.dtype)
    return Side(*(xp.astype(a, getattr(xp, locations.dtype), copy=False) for a in (points, features)))


def _residual_side(data: Classification, dtype: Any, threads: int | None) -> Side:
    p = data.given
    if p.ndim == 1 and p.dtype == dtype:
        return Side(
            lambda: data.probabilities, lambda: points_and_residuals(data, threads=threads)[1], data.labels, seconds=p
        )
    if p.ndim == 2 and p.dtype == dtype:
        return Side(
            p, lambda: points_and_residuals(data, data.dtype, threads=threads)[1], data.labels, exact=arrays.is_host(p)
        )
    return Side(*points_and_residuals(data, data.dtype, threads=threads), data.labels)


def check_kernel(kernel: Any, m: int) -> Kernel:
    """Return the kernel to use, by default exponential with the median heuristic."""
    if kernel is None:
        return DEFAULT
    if not isinstance(kernel, Kernel):
        raise TypeError(f"`kernel` is {kernel!r}, expected a kernel such as kcalib.kernels.Exponential(bandwidth=0.5)")
    facts = _check_metrics(kernel)
    for factor in facts.indefinite if m > 2 else ():
        warn(
            f"{factor} may be indefinite for {m} classes: {factor.why_indefinite()}. The estimate can then be "
            "negative or near 0 for a miscalibrated model; use Exponential, or another kernel with "
            "metric='euclidean'.",
            IndefiniteKernelWarning,
        )
    return kernel


def _is_definite(facts: _Facts, m: int) -> bool:
    """Return whether a kernel on vectors of m entries is known to be positive definite; on a line all are."""
    return m <= 2 or not facts.indefinite


def _check_metrics(kernel: Kernel) -> _Facts:
    facts = _facts(kernel)
    for factor in facts.misfits:
        raise ValueError(
            f"{factor} has a metric between predicted distributions (kcalib.distributions), but `y_pred` holds "
            "class probabilities or other vectors; use metric='euclidean', 'cityblock' or 'total_variation'"
        )
    return facts


class _Facts(NamedTuple):
    """Properties of a kernel that are needed for every problem."""

    misfits: tuple[RadialKernel, ...]  # factors that are not kernels between vectors
    indefinite: tuple[RadialKernel, ...]  # factors that are not known to be positive definite
    open_metrics: tuple[Any, ...]


@functools.lru_cache(maxsize=64)
def _facts(kernel: Kernel) -> _Facts:
    """Return the facts of a kernel, cached because computing them is slow for few samples."""
    factors = kernel.factors()
    misfits = tuple(factor for factor in factors if factor.metric not in VECTOR_METRICS)
    indefinite = tuple(factor for factor in factors if not factor.is_positive_definite())
    return _Facts(misfits, indefinite, kernel.open_metrics())


@functools.lru_cache(maxsize=64)
def _terms(kernel: Kernel) -> tuple[Term, ...]:
    """Return the kernel's normal form."""
    return check_coefficients(kernel.terms())


def points_and_residuals(
    data: Classification, dtype: str | None = None, *, threads: int | None = None
) -> tuple[Array, Array]:
    """Return p and onehot(y) - p, shape (n, m), in `dtype` or that of p.

    Residuals are rounded last: 1 - p would lose the digits of a small one in float32.
    """
    xp, p = data.xp, data.probabilities
    if arrays.is_host(p):
        return _native.points_and_residuals(p, data.labels, dtype or "float64", threads_for(p.size, threads))
    columns = xp.arange(data.m, device=arrays.device(p))
    e = xp.astype(data.labels[:, None] == columns[None, :], p.dtype) - p
    target = p.dtype if dtype is None else getattr(xp, dtype)
    return xp.astype(p, target, copy=False), xp.astype(e, target, copy=False)
