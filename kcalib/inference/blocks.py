"""The asymptotic test on block estimates of the SKCE (W21 remark B.1, both forms; the misprinted
factor B of remark B.3 left out).

The mean of the unbiased estimates of blocks of samples is about normal, with mean 0 if the model is
calibrated. `calibration_test` is the caller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy

from kcalib._backend.options import check_choice, check_integer
from kcalib._pairs import statistics
from kcalib._pairs.dispatch import Operator
from kcalib.estimators.skce import block_estimates

VARIANCES = ("sample", "second_moment")


@dataclass(frozen=True)
class BlockOutcome:
    """Mean of the block estimates, and its place in the normal law."""

    statistic: float
    log_pvalue: float
    estimate: float
    standard_error: float
    null_law: str


def block_test(operator: Operator, n: int, block_size: int, variance: str) -> BlockOutcome:
    """The block test; with equal block estimates the p-value is its limit, 0 or 1."""
    estimate, error = statistics.mean_and_standard_error(block_estimates(operator, block_size))
    assert error is not None  # there are two blocks
    spread, law = error, f"normal law with the spread of {n // block_size} block estimates"
    if variance == "second_moment":
        # Var of a block under calibration is 2 E h^2 / (B (B - 1)); disjoint pairs estimate E h^2 in O(n).
        pairs = block_estimates(operator, 2)
        second_moment = statistics.total(pairs * pairs) / pairs.shape[0]
        spread = math.sqrt(2 * second_moment / (n // block_size * block_size * (block_size - 1)))
        law = f"normal law with the second moment of {n // 2} pairs"
    if spread == 0:
        limit = math.copysign(math.inf, estimate) if estimate else 0.0
        return BlockOutcome(limit, -math.inf if estimate > 0 else 0.0, estimate, error, law)
    statistic = estimate / spread
    return BlockOutcome(statistic, float(scipy.special.log_ndtr(-statistic)), estimate, error, law)


def checked_block_size(block_size: int | None, n: int, method: str) -> int:
    """The size of a block; default: see `default_block_size`."""
    if n < 4:
        raise ValueError(f"method={method!r} needs at least two blocks of 2 samples, `y_true` has {n}")
    if method == "linear":
        return 2
    if block_size is None:
        return default_block_size(n)
    return check_integer("block_size", block_size, 2, n // 2, ": the test needs at least two blocks")


def default_block_size(n: int) -> int:
    """Power grows with the root of the block size; fifty blocks are enough for the normal law."""
    return max(2, math.isqrt(n), n // 50)


def checked_variance(variance: str | None) -> str:
    return check_choice("variance", "sample" if variance is None else variance, VARIANCES)
