"""Tests on block estimates of the SKCE (W21 remark B.1, both forms; the misprinted factor B of remark B.3 left out).

The mean of the unbiased estimates of blocks of samples is about normal, with mean 0 if the model is calibrated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import scipy

from kcalib._backend.options import check_choice, check_integer
from kcalib._pairs import statistics
from kcalib._pairs.dispatch import Operator
from kcalib.estimators.skce import block_estimates, describe
from kcalib.inference.task import CalibrationMethod, Task
from kcalib.results import CalibrationTestResult

VARIANCES = ("sample", "second_moment")


@dataclass(frozen=True)
class Block(CalibrationMethod):
    r"""The normal law of the mean of unbiased estimates, one for each block of consecutive samples.

    For samples too many for all pairs. Blocks hold consecutive samples: unless their order is already random,
    give `kcalib.calibration_test` a ``seed``, which permutes them. With samples sorted by label, say, blocks are not
    alike, and calibrated models are rejected.

    Parameters
    ----------
    block_size : int, optional
        Samples in a block, 2..n // 2. Larger blocks find more, but leave fewer of them for the normal law. Default: the
        larger of the integer square root of n and n // 50, at least 2. Samples after the last full block are not used.
    variance : {"sample", "second_moment"}
        The spread of the block estimates, or what it is under calibration, from the second moment of H over disjoint
        pairs: :math:`2\, \mathbb{E} h^2 / (B (B - 1))` for blocks of B.

    Notes
    -----
    The statistic is the mean over its standard error; [1]_, remark B.1. Time O(n B m), memory O(n m). If all block
    estimates are equal the p-value is its limit: 1 if they are 0, and 0 if they are positive.

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests beyond classification.
       ICLR 2021.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=1000)
    >>> y = rng.uniform(size=1000) < p
    >>> result = kcalib.calibration_test(y, p, method=kcalib.methods.Block(block_size=50), seed=0)
    >>> result.n_blocks, result.pvalue > 0.05
    (20, True)
    """

    block_size: int | None = None
    variance: str = "sample"

    name: ClassVar[str] = "block"

    def __post_init__(self) -> None:
        if self.block_size is not None:
            check_integer("block_size", self.block_size, 2)
        check_choice("variance", self.variance, VARIANCES)

    def test(self, task: Task, seed: int | None) -> CalibrationTestResult:
        _check_size(self.name, task.n)
        if self.block_size is None:
            return _result(task, seed, self.name, default_block_size(task.n), self.variance)
        block_size = check_integer(
            "block_size", self.block_size, 2, task.n // 2, ": the test needs at least two blocks"
        )
        return _result(task, seed, self.name, block_size, self.variance)


@dataclass(frozen=True)
class Linear(CalibrationMethod):
    """The test of `Block` with blocks of two samples: linear time, and the least power.

    Parameters
    ----------
    variance : {"sample", "second_moment"}
        The spread of the estimates, or what it is under calibration, as in `Block`.

    Notes
    -----
    Time and memory O(n m); [1]_, remark B.1. As in `Block`, the order of the samples counts.

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests beyond classification.
       ICLR 2021.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1, 0, 1], [0.2, 0.7, 0.9, 0.4, 0.6]
    >>> result = kcalib.calibration_test(y, p, method=kcalib.methods.Linear(variance="second_moment"))
    >>> result.n_blocks, result.null_law
    (2, 'normal law with the second moment of 2 pairs')
    """

    variance: str = "sample"

    name: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        check_choice("variance", self.variance, VARIANCES)

    def test(self, task: Task, seed: int | None) -> CalibrationTestResult:
        _check_size(self.name, task.n)
        return _result(task, seed, self.name, 2, self.variance)


def default_block_size(n: int) -> int:
    """Power grows with the root of the block size; fifty blocks are enough for the normal law."""
    return max(2, math.isqrt(n), n // 50)


def _check_size(method: str, n: int) -> None:
    if n < 4:
        raise ValueError(f"method={method!r} needs at least two blocks of 2 samples, `y_true` has {n}")


def _result(task: Task, seed: int | None, method: str, block_size: int, variance: str) -> CalibrationTestResult:
    """The test on blocks of the samples, in an order drawn with the seed."""
    n, operator = task.n, task.ordered(seed)
    estimate, error = statistics.mean_and_standard_error(block_estimates(operator, block_size))
    assert error is not None  # there are two blocks
    spread, law = error, f"normal law with the spread of {n // block_size} block estimates"
    if variance == "second_moment":
        spread = _spread_under_calibration(operator, n // block_size * block_size, block_size)
        law = f"normal law with the second moment of {n // 2} pairs"
    statistic, log_pvalue = _referred(estimate, spread)
    return task.result(
        method=method,
        statistic=statistic,
        log_pvalue=log_pvalue,
        estimate=estimate,
        standard_error=error,
        null_law=law,
        estimator="block SKCE",
        seed=seed,
        threads=operator.threads,
        **task.blocks(block_size),
        **describe(task.data, task.packed, operator),
    )


def _referred(estimate: float, spread: float) -> tuple[float, float]:
    """The statistic, and the logarithm of its p-value: with equal block estimates its limit, 0 or 1."""
    if spread == 0:
        return math.copysign(math.inf, estimate) if estimate else 0.0, -math.inf if estimate > 0 else 0.0
    statistic = estimate / spread
    return statistic, float(scipy.special.log_ndtr(-statistic))


def _spread_under_calibration(operator: Operator, n: int, block_size: int) -> float:
    """The standard error of the mean of blocks of n samples together.

    The variance of a block under calibration is 2 E h^2 / (B (B - 1)); disjoint pairs estimate E h^2 in O(n).
    """
    pairs = block_estimates(operator, 2)
    second_moment = statistics.total(pairs * pairs) / pairs.shape[0]
    return math.sqrt(2 * second_moment / (n * (block_size - 1)))
