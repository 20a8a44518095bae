"""Bounds of the p-value that hold for every n and every distribution of the data (W19 lemma 2).

|H_ij| <= B because residuals of two probability vectors are at most 2 apart in every norm. McDiarmid's inequality
(biased estimator) and Hoeffding's (unbiased ones) then give bounds: loose, but valid without approximation.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, ClassVar

import numpy as np

from kcalib._backend.options import check_choice
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._packing import Packed
from kcalib._packing.target_factors import TargetFactor
from kcalib._pairs import statistics
from kcalib._pairs.problem import PairProblem
from kcalib._pairs.profiles import kernel_supremum
from kcalib._pairs.statistics import disjoint_pairs
from kcalib.estimators.skce import ESTIMATORS, check_estimator, check_has_blocks, describe, value_and_error
from kcalib.inference.task import CalibrationMethod, Task
from kcalib.results import CalibrationTestResult

NORMS = (1.0, 2.0, math.inf)

SMALLEST_BOUND, LARGEST_BOUND = 1e-40, 1e40  # of a kernel; scales are between 1e-30 and 1e30


@dataclass(frozen=True)
class DistributionFree(CalibrationMethod):
    r"""Bound the p-value by an inequality, valid for every number of samples and every distribution of the data.

    The bound is so loose that few models are rejected. It needs a bounded kernel.

    Parameters
    ----------
    estimator : {"unbiased", "biased", "block", "linear"}
        The estimator of `kcalib.skce` that is tested: the biased one by McDiarmid's inequality, the others by
        Hoeffding's. The ``seed`` of `kcalib.calibration_test` determines the order from which blocks are formed.
    block_size : int, optional
        Samples in a block, 2..n, for "block" only; default: the integer square root of n, at least 2.
    norms : (p, q), optional
        For class labels with a matrix-valued kernel: the norms of the bound, from 1 to infinity. By default those of
        the smallest bound in closed form.
    bound : float, optional
        The supremum of the kernel, if it is not known (a custom kernel).

    Notes
    -----
    With :math:`|H_{ij}| \le B` and an estimate t the p-value is at most :math:`\exp(-N t^2 / (2 B^2))` for unbiased
    estimates of N disjoint pairs, and :math:`\exp(-\max(0, \sqrt{n t / B} - 1)^2 / 2)` for the biased one [1]_ (lemma
    2). :math:`B = 2^{1 + 1/p - 1/q} \sup |k|\, \|M\|_{p, q}` for the matrix M over the classes; for distributions
    :math:`B = 2 \sup |k| \sup l`, with a target kernel l that is nowhere negative and has expectations in closed form.
    Time and memory as the estimator's.

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests in multi-class
       classification: A unifying framework. NeurIPS 2019.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1, 0, 1], [0.2, 0.7, 0.9, 0.4, 0.6]
    >>> result = kcalib.calibration_test(y, p, method=kcalib.methods.DistributionFree(estimator="biased"))
    >>> result.null_law, result.bound
    ("McDiarmid's inequality with |h| <= 2", 2.0)
    """

    estimator: str = "unbiased"
    block_size: int | None = None
    norms: tuple[float, float] | None = None
    bound: float | None = None

    name: ClassVar[str] = "distribution_free"

    def __post_init__(self) -> None:
        check_choice("estimator", self.estimator, ESTIMATORS)
        check_has_blocks(self.estimator, self.block_size)
        if self.norms is not None:
            check_norms(self.norms)
        if self.bound is not None:
            check_bound(self.bound)

    def test(self, task: Task, seed: int) -> CalibrationTestResult:
        data, biased = task.data, self.estimator == "biased"
        block_size = check_estimator(data, self.estimator, self.block_size)
        order_seed = None if block_size is None else seed
        backend = task.ordered(order_seed)
        unbiased = self.estimator == "unbiased"
        squares = task.null_moments.squares if unbiased else None
        value, error = value_and_error(
            data,
            backend,
            self.estimator,
            block_size,
            with_error=not biased,
            moments=task.moments if unbiased else None,
            null_squares=squares,
        )
        size = entry_bound(data, task.packed, self.bound, self.norms)
        inequality = "McDiarmid's" if biased else "Hoeffding's"
        return task.result(
            method=self.name,
            statistic=value,
            log_pvalue=log_pvalue(value, estimator=self.estimator, n=data.n, block_size=block_size, bound=size),
            estimate=value,
            standard_error=None if biased else error,
            null_standard_error=None if squares is None else statistics.null_standard_error(squares, data.n),
            null_law=f"{inequality} inequality with |h| <= {size:.6g}",
            estimator=f"{self.estimator} SKCE",
            bound=size,
            seed=order_seed,
            threads=backend.threads,
            **task.blocks(block_size),
            **describe(data, task.packed, backend),
        )


def log_pvalue(estimate: float, *, estimator: str, n: int, block_size: int | None, bound: float) -> float:
    """Return the logarithm of the bound of P(SKCE >= estimate) under calibration.

    Biased: -max(0, sqrt(n t / B) - 1)^2 / 2. Unbiased, with N disjoint pairs: -N t^2 / (2 B^2) for t > 0, else 0.
    """
    if estimate <= 0:
        return 0.0
    if estimator == "biased":
        return -(max(0.0, math.sqrt(n * estimate / bound) - 1) ** 2) / 2
    return -disjoint_pairs(n, block_size) * (estimate / bound) ** 2 / 2


@singledispatch
def entry_bound(data: Data, packed: Packed, bound: float | None, norms: Any) -> float:
    """Return B, the largest possible |H_ij|; `bound` of the kernel and `norms` for class labels are optional."""
    return forecast_bound(kernel_bound(packed.problem, bound, is_bounded=False), packed, norms)


@entry_bound.register
def _(data: Classification, packed: Packed, bound: float | None, norms: Any) -> float:
    return residual_bound(kernel_bound(packed.problem, bound), packed.target.matrix, data.m, norms)


def residual_bound(kernel_bound: float, matrix: np.ndarray | None, m: int, norms: Any) -> float:
    """Return B = 2^(1 + 1/p - 1/q) sup |k| ||M||_(p,q); without `norms` the smallest of the known ones."""
    matrix = np.eye(m) if matrix is None else matrix
    pairs = [check_norms(norms)] if norms is not None else list(itertools.product(NORMS, repeat=2))
    bounds = [(2 ** (1 + 1 / p - 1 / q) * norm) for p, q in pairs if (norm := induced_norm(matrix, p, q)) is not None]
    if not bounds:
        p, q = pairs[0]
        raise ValueError(
            f"`norms` is {(p, q)}: this norm of a matrix that is not diagonal is not known in closed form; "
            "use p = 1, q = inf, p = q = 2, or leave it out"
        )
    return kernel_bound * min(bounds)


def forecast_bound(kernel_bound: float, packed: Packed, norms: Any) -> float:
    """Return B = 2 sup |k| sup l for predicted distributions and a non-negative target kernel l.

    The squared norm of delta_y - P is l(y, y) - 2 E l(Z, y) + E l(Z, Z'); the second term is at most 0, the others at
    most sup l. |H_ij| is at most |k| times the product of two such norms.
    """
    if norms is not None:
        raise ValueError("`norms` is for class labels, whose target kernel is a matrix; leave it out")
    target = packed.target
    assert isinstance(target, TargetFactor)
    if target.draws is not None:
        raise ValueError(
            "method='distribution_free' needs expectations of the target kernel that are exact, but they come from "
            f"{target.route}; use method='exact', which stays valid, or a target kernel with a closed form"
        )
    if target.supremum is None:
        raise ValueError(
            f"the target kernel {target.kernel} is not bounded, and method='distribution_free' has no bound; use "
            "kcalib.kernels.Gaussian() or another bounded one"
        )
    return 2 * kernel_bound * target.supremum


def kernel_bound(problem: PairProblem, bound: Any, *, is_bounded: bool = True) -> float:
    """Return sup |k(p, q)| over probability vectors, for which every profile and inner product is at most 1.

    Inner products of other points (not `is_bounded`) are unbounded.
    """
    if bound is not None:
        return check_bound(bound)
    supremum = kernel_supremum(problem.kernel, has_bounded_points=is_bounded)
    if supremum is None:
        raise ValueError("`kernel` has no known bound: method='distribution_free' needs `bound`, its supremum")
    return supremum


def check_bound(bound: Any) -> float:
    if isinstance(bound, bool) or not isinstance(bound, (int, float, np.integer, np.floating)):
        raise TypeError(f"`bound` is {bound!r}, expected a number")
    if not SMALLEST_BOUND <= bound <= LARGEST_BOUND:
        raise ValueError(
            f"`bound` is {bound}, expected a positive number between {SMALLEST_BOUND:.0e} and {LARGEST_BOUND:.0e}: the "
            "supremum of |k(p, q)|"
        )
    return float(bound)


def check_norms(norms: Any) -> tuple[float, float]:
    try:
        p, q = (float(value) for value in norms)
    except (TypeError, ValueError):
        raise TypeError(f"`norms` is {norms!r}, expected two numbers (p, q)") from None
    if not (p >= 1 and q >= 1):
        raise ValueError(f"`norms` is {norms!r}, expected two numbers from 1 to infinity")
    return p, q


def induced_norm(matrix: np.ndarray, p: float, q: float) -> float | None:
    """Return sup |M x|_q / |x|_p, or None if it has no closed form."""
    diagonal = np.abs(np.diagonal(matrix))
    if np.count_nonzero(matrix - np.diag(np.diagonal(matrix))) == 0:
        if p <= q:
            return float(diagonal.max())
        return float(np.linalg.norm(diagonal, 1 / (1 / q - 1 / p)))
    if p == 1:
        return float(np.linalg.norm(matrix, q, axis=0).max())
    if q == math.inf:
        return float(np.linalg.norm(matrix, 1 / (1 - 1 / p), axis=1).max())
    if p == q == 2:
        return float(np.linalg.norm(matrix, 2))
    return None
