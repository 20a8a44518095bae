"""From checked input to a pair problem: points, marks, and the kernel's normal form.

The only room that knows both user objects (kernels, target kernels) and `PairProblem`.
Called by the estimators; the result goes to `_dispatch`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._inputs import Classification
from kcalib._problem import PairProblem, Side, Term
from kcalib.bandwidth import MedianDistance, median_distance
from kcalib.kernels import SMALLEST, Exponential, Kernel
from kcalib.target_kernels import TargetKernel, matrix_root


class IndefiniteKernelWarning(UserWarning):
    """A kernel that is not known to be positive definite: estimates may mislead."""


@dataclass(frozen=True)
class Packed:
    """A pair problem and what was decided on the way to it."""

    problem: PairProblem
    kernel: Kernel  # with its bandwidths as numbers
    medians: tuple[MedianDistance, ...]  # where a bandwidth came from the median heuristic
    root_rank: int | None  # rank of the target kernel's matrix; None for the Kronecker delta


def pack(
    data: Classification, kernel: Kernel | None, target_kernel: TargetKernel, *, threads: int | None = None
) -> Packed:
    """H_ij = k(p_i, p_j) e_i^T M e_j, samples weighted by scaling their residuals."""
    kernel = check_kernel(kernel, data.m)
    medians: dict[str, MedianDistance] = {}

    def bandwidth(metric: str) -> float:
        if metric not in medians:
            medians[metric] = median_distance(data.probabilities, metric, threads=threads)
        return max(medians[metric].value, SMALLEST)

    resolved = kernel.resolve(bandwidth)
    xp, dtype = data.xp, getattr(data.xp, data.dtype)
    root = matrix_root(target_kernel, data.m)

    def cast(array: Array) -> Array:
        array = xp.astype(array, dtype, copy=False)
        return np.ascontiguousarray(array) if _arrays.is_host(array) else array

    def marks() -> Array:
        result = residuals(data)
        if root is not None:
            result = result @ _arrays.like(root, result, dtype=result.dtype)
        if data.sample_weight is not None:
            result = result * xp.astype(data.sample_weight, result.dtype)[:, None]
        # Only now to the dtype of the sweep: 1 - p would lose the digits of a small residual in float32.
        return cast(result)

    labels = data.labels if root is None and data.sample_weight is None else None
    problem = PairProblem(Side(cast(data.probabilities), marks, labels), None, _terms(resolved))
    return Packed(problem, resolved, tuple(medians.values()), None if root is None else root.shape[1])


def check_kernel(kernel: Any, m: int) -> Kernel:
    """The kernel to use (default: exponential with the median heuristic)."""
    if kernel is None:
        return Exponential()
    if not isinstance(kernel, Kernel):
        raise TypeError(f"`kernel` is {kernel!r}, expected a kernel such as kcalib.kernels.Exponential(bandwidth=0.5)")
    for factor in kernel.factors():
        if m > 2 and not factor.is_positive_definite():
            warnings.warn(
                f"{factor} may be indefinite for {m} classes: with this metric only Exponential and "
                "GammaExponential(gamma <= 1) are known to be positive definite. The estimate can then be negative or "
                "near 0 for a miscalibrated model; use one of those, or metric='euclidean'.",
                IndefiniteKernelWarning,
                stacklevel=5,
            )
    return kernel


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


def residuals(data: Classification) -> Array:
    """one-hot(y) - p, shape (n, m), in the dtype of the probabilities."""
    xp, p = data.xp, data.probabilities
    if _arrays.is_host(p):
        e = -p
        e[np.arange(data.n), data.labels] += 1
        return e
    columns = xp.arange(data.m, device=_arrays.device(p))
    return xp.astype(data.labels[:, None] == columns[None, :], p.dtype) - p
