"""Tests of the hypothesis that a classifier is calibrated.

The asymptotic test on block estimates of the SKCE (Widmann et al. 2021, remark B.1; the
misprinted factor B of remark B.3 left out). `calibration_test` is public, `block_test` is
the same on checked data.
"""

from __future__ import annotations

import math
import time
from typing import Any

import scipy

from kcalib import _packing, _statistics
from kcalib._dispatch import operator_for
from kcalib._inputs import Classification, prepare
from kcalib._options import check_choice, check_integer
from kcalib.estimators.skce import PairOptions, block_estimates, describe
from kcalib.kernels import Kernel
from kcalib.results import CalibrationTestResult
from kcalib.target_kernels import TargetKernel

__all__ = ["calibration_test"]


def calibration_test(
    y_true: Any,
    y_pred: Any,
    *,
    method: str = "block",
    block_size: int | None = None,
    kernel: Kernel | None = None,
    target_kernel: TargetKernel = "delta",
    classes: Any = None,
    from_logits: bool = False,
    dtype: Any = None,
    seed: int | None = None,
    threads: int | None = None,
    operator: str | None = None,
) -> CalibrationTestResult:
    r"""Test the hypothesis that the model is calibrated.

    The mean of the SKCE estimates of blocks of samples is asymptotically normal with mean 0
    if the model is calibrated, and positive otherwise: the test is one-sided.

    Parameters
    ----------
    y_true, y_pred, kernel, target_kernel, classes, from_logits, dtype, threads, operator
        As in `kcalib.skce`.
    method : {"block", "linear"}
        "linear" is "block" with blocks of two: faster and less powerful.
    block_size : int, optional
        Samples in a block, 2..n // 2, for "block" only. Larger blocks find more, but leave
        fewer of them for the normal law. Default: the larger of the integer square root of n
        and n // 50, at least 2.
    seed : int, optional
        Permute the samples by ``numpy.random.default_rng(seed)`` before blocks are formed. Do so
        unless the order is already random: with samples sorted by label, say, blocks
        are not alike, and calibrated models are rejected. None keeps the order.

    Returns
    -------
    CalibrationTestResult
        With `statistic`, `pvalue`, `estimate`, `standard_error`, `CalibrationTestResult.confidence_interval` and
        what was done. If all block estimates are equal (such as with predictions that are
        one-hot and right) the p-value is its limit: 0 if they are positive, otherwise 1.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce` for its arguments, and if there are fewer than two blocks.

    See Also
    --------
    kcalib.skce : The estimate alone.

    Notes
    -----
    With K block estimates of mean :math:`\bar h` and standard deviation s (ddof 1), the
    p-value is :math:`\Phi(-\sqrt{K}\, \bar h / s)` [1]_ (remark B.1). Time O(n b m) for blocks of
    b samples, memory O(n m).

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
    >>> kcalib.calibration_test(y, p).pvalue > 0.05
    True
    >>> kcalib.calibration_test(y, p**3).pvalue < 0.05
    True
    """
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, dtype=dtype, threads=threads)
    method = check_choice("method", method, ("block", "linear"))
    if method == "linear" and block_size is not None:
        raise ValueError(f"`block_size` is {block_size}, but method='linear' has blocks of 2; use method='block'")
    return block_test(data, PairOptions(kernel, target_kernel, operator, threads), method, block_size, seed)


def block_test(
    data: Classification, options: PairOptions, method: str, block_size: int | None, seed: int | None
) -> CalibrationTestResult:
    """The block test of checked data."""
    start = time.perf_counter()
    if data.n < 4:
        raise ValueError(f"the block test needs at least two blocks of 2 samples, `y_true` has {data.n}")
    if block_size is None:
        block_size = 2 if method == "linear" else _default_block_size(data.n)
    block_size = check_integer("block_size", block_size, 2, data.n // 2, ": the test needs at least two blocks")
    if seed is not None:
        seed = check_integer("seed", seed, 0)
        data = data.permuted(seed)
    packed = _packing.pack(data, options.kernel, options.target_kernel, threads=options.threads)
    operator = operator_for(packed.problem, operator=options.operator, threads=options.threads)
    estimate, error = _statistics.mean_and_standard_error(block_estimates(operator, block_size))
    assert error is not None  # there are two blocks
    statistic = estimate / error if error > 0 else math.copysign(math.inf, estimate) if estimate else 0.0
    pvalue = float(scipy.special.ndtr(-statistic)) if error > 0 else float(estimate <= 0)
    return CalibrationTestResult(
        statistic=statistic,
        pvalue=pvalue,
        estimate=estimate,
        standard_error=error,
        method=method,
        block_size=block_size,
        n_blocks=data.n // block_size,
        n_samples=data.n,
        n_samples_used=data.n // block_size * block_size,
        **describe(data, packed, operator),
        seed=seed,
        seconds=time.perf_counter() - start,
    )


def _default_block_size(n: int) -> int:
    """Power grows with the root of the block size; fifty blocks are enough for the normal law."""
    return max(2, math.isqrt(n), n // 50)
