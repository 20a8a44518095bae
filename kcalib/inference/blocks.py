"""Tests on block estimates of the SKCE (W21 remark B.1, both forms, without the misprinted factor B of remark B.3).

The mean of the unbiased estimates of blocks of samples has mean 0 if the model is calibrated, and a variance that the
predictions determine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.options import check_choice, check_integer
from kcalib._input.data import Data
from kcalib._packing import Packed
from kcalib._packing.variance import expected_lengths, expected_squares, finite_law
from kcalib._pairs import statistics
from kcalib._pairs.backends.base import Backend, diagonal
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import BlockSums, sweep_one
from kcalib.estimators.null_moments import SEED, n_draws
from kcalib.estimators.skce import block_estimates, describe
from kcalib.inference import events
from kcalib.inference.conditional_spectrum import make_subset_matrix
from kcalib.inference.events import warn_if_few, warn_if_pairs_are_few
from kcalib.inference.gamma import log_gamma_tail
from kcalib.inference.spectrum import limit_law
from kcalib.inference.task import CalibrationMethod, Task
from kcalib.laws import ChiSquareMixture
from kcalib.results import CalibrationTestResult

VARIANCES = ("conditional", "sample", "second_moment")
FEWEST = {
    "conditional": events.BLOCKS,
    "sample": events.BLOCKS_OF_RESIDUALS,
    "second_moment": events.SECOND_MOMENT,
}
MORE_DRAWS, MOST_DRAWS = 4, 64  # draws for a third cumulant relative to a variance, and at most
FAR = math.log(1e-3)  # below this p-value a gamma tail may be too light
EQUAL = 1e-12  # relative spread below which block estimates are equal


@dataclass(frozen=True)
class Block(CalibrationMethod):
    r"""Test the SKCE by the mean of unbiased estimates, one for each block of samples.

    For samples too many for all pairs. The ``seed`` of `kcalib.calibration_test` determines a random order of the
    samples: without it, blocks of sorted samples would differ systematically, and calibrated models would be rejected.

    Parameters
    ----------
    block_size : int, optional
        Samples in a block, 2..n // 2. Larger blocks increase the power, but leave fewer blocks for the normal
        approximation. Default: the larger of the integer square root of n and n // 50, at least 2. Samples after the
        last full block are not used.
    variance : {"conditional", "sample", "second_moment"}
        The variance in the standard error of the mean, and the null distribution. "conditional": the variance under
        calibration given the predictions, exact for labels and counts (from draws for other targets), and a gamma
        distribution with it and with the larger of two skewnesses, of the biased estimates and of blocks of drawn
        targets. Below 0.001 the p-value is at least the one of a sum of chi-square variables weighted by eigenvalues
        (see `Spectrum`) of at most 2048 samples. "sample": the sample variance of the block estimates, and Student's t
        distribution with one degree of freedom fewer than blocks. "second_moment": the variance under calibration,
        :math:`2\, \mathbb{E} h^2 / (B (B - 1))` for blocks of B samples, from H over disjoint pairs, and the normal
        distribution. The last two use the observed residuals as published, except for Student's t: where errors are
        rare they reject calibrated models far too often.

    Warns
    -----
    AntiConservativeWarning
        If the predictions leave too few events uncertain, or too few pairs of samples that can agree, see
        `kcalib.AntiConservativeWarning`.

    Notes
    -----
    The statistic is the mean over its standard error; [1]_, remark B.1. Time O(n B m), with "conditional" and up to 16
    classes O(n B m^2), memory O(n m). If all b block estimates are equal, the p-value is 1 if they are at most 0, and
    2^-b, that of a sign test, if they are positive.

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
    >>> result = kcalib.calibration_test(y, p, method=kcalib.methods.Block(block_size=50), seed=1)
    >>> result.n_blocks, result.pvalue > 0.05
    (20, True)
    """

    block_size: int | None = None
    variance: str = "conditional"

    name: ClassVar[str] = "block"

    def __post_init__(self) -> None:
        if self.block_size is not None:
            check_integer("block_size", self.block_size, 2)
        check_choice("variance", self.variance, VARIANCES)

    def test(self, task: Task, seed: int) -> CalibrationTestResult:
        _check_size(self.name, task.n)
        if self.block_size is None:
            return _result(task, seed, self.name, default_block_size(task.n), self.variance)
        block_size = check_integer(
            "block_size", self.block_size, 2, task.n // 2, ": the test needs at least two blocks"
        )
        return _result(task, seed, self.name, block_size, self.variance)


@dataclass(frozen=True)
class Linear(CalibrationMethod):
    """Test the SKCE by `Block` with blocks of two samples: linear time, and the least power.

    Parameters
    ----------
    variance : {"conditional", "sample", "second_moment"}
        The variance in the standard error, and the null distribution, as in `Block`.

    Warns
    -----
    AntiConservativeWarning
        If the predictions leave too few events uncertain, or too few pairs of samples that can agree, see
        `kcalib.AntiConservativeWarning`.

    Notes
    -----
    Time and memory O(n m); [1]_, remark B.1.

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

    variance: str = "conditional"

    name: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        check_choice("variance", self.variance, VARIANCES)

    def test(self, task: Task, seed: int) -> CalibrationTestResult:
        _check_size(self.name, task.n)
        return _result(task, seed, self.name, 2, self.variance)


def default_block_size(n: int) -> int:
    """Return the block size: power grows with its root, and the mean of fifty blocks is nearly normal."""
    return max(2, math.isqrt(n), n // 50)


def _check_size(method: str, n: int) -> None:
    if n < 4:
        raise ValueError(f"method={method!r} needs at least two blocks of 2 samples, `y_true` has {n}")


def _result(task: Task, seed: int, method: str, block_size: int, variance: str) -> CalibrationTestResult:
    """Return the test on blocks of the samples, in an order drawn with the seed."""
    test = f"method={method!r} with variance={variance!r}"
    warned = warn_if_few(task, test, FEWEST[variance])
    n_blocks, backend = task.n // block_size, task.ordered(seed)
    estimate, error = statistics.mean_and_standard_error(block_estimates(backend, block_size))
    assert error is not None  # there are two blocks
    if variance == "conditional":
        order = task.data.order(seed)
        data, packed = task.data.take(order), task.packed.take(order)
        moments = _null_moments(data, packed, backend, block_size)
        if not warned:
            warn_if_pairs_are_few(moments.pairs, test)
        scale = n_blocks * block_size * (block_size - 1)
        spread = math.sqrt(2 * moments.squares) / scale
        law = f"gamma law with the variance of {n_blocks} blocks given the predictions"
    elif variance == "sample":
        spread = error if error > EQUAL * abs(estimate) else 0.0
        law = f"Student's law with {n_blocks - 1} degrees of freedom, spread of {n_blocks} block estimates"
    else:
        spread = _spread_under_calibration(backend, n_blocks * block_size, block_size)
        law = f"normal law with the second moment of {task.n // 2} pairs"
    if spread == 0:
        statistic = math.copysign(math.inf, estimate) if estimate else 0.0
        log_pvalue = -n_blocks * math.log(2) if estimate > 0 else 0.0
        law = f"signs of {n_blocks} block estimates, which vary by nothing"
    else:
        statistic = estimate / spread
        if variance == "conditional":
            log_pvalue = log_gamma_tail(estimate, spread**2, moments.skewness)
            if log_pvalue < FAR:
                limit = limit_law(make_subset_matrix(data, packed), block_size * estimate, n_blocks)
                log_pvalue = max(log_pvalue, _log_far_tail(limit, block_size, estimate, spread))
        elif variance == "sample":
            log_pvalue = _log_student_tail(statistic, n_blocks - 1)
        else:
            log_pvalue = float(scipy.special.log_ndtr(-statistic))
    return task.result(
        method=method,
        statistic=statistic,
        log_pvalue=log_pvalue,
        estimate=estimate,
        standard_error=error,
        null_standard_error=spread if variance == "conditional" else None,
        few_errors=task.few_errors,
        null_law=law,
        estimator="block SKCE",
        seed=seed,
        threads=backend.threads,
        **task.blocks(block_size),
        **describe(task.data, task.packed, backend),
    )


def _log_far_tail(law: ChiSquareMixture, block_size: int, estimate: float, spread: float) -> float:
    """Return the log tail of the mean of blocks, from their distribution scaled to a spread of at least `spread`.

    A gamma tail falls off by variance and skewness, a sum of chi-square variables by its largest weight.
    """
    wider = max(1.0, block_size * spread / math.sqrt(law.var))
    return float(law.logsf(block_size * estimate / wider + law.mean))


class BlockMoments(NamedTuple):
    """Moments of sums over all pairs within blocks, under calibration."""

    squares: float  # E sum H_ij^2; the variance of the sum of H_ij is twice that
    skewness: float  # of the sum
    pairs: float  # (sum E H_ij^2)^2 / sum E H_ij^4: the number of pairs whose entries are as large as the largest


def _null_moments(data: Data, packed: Packed, backend: Backend, size: int) -> BlockMoments:
    """Return `estimators.null_moments` of the pairs within blocks of the samples."""
    n_used, law = data.n // size * size, finite_law(data, packed)
    count = MORE_DRAWS * n_draws(data.n)
    if law is not None:
        count = min(MOST_DRAWS, count)
    draws = np.array([_of_drawn(data, packed, backend, size, r) for r in range(count)])
    unit = float(draws[:, 0].max())  # fourth powers of 1e-100 would be 0
    shares = draws[:, 0] / unit
    square, third, fourth = (float(np.mean(shares**k * draws[:, k - 1])) for k in (2, 3, 4))
    trace = float(np.mean(draws[:, 4]))
    squares = n_used * (size - 1) * square * unit * unit
    pairs = n_used * (size - 1) / 2 * square**2 / fourth if fourth else math.inf
    if law is not None:

        def within_blocks(problem: PairProblem) -> float:
            backend_of_problem = backend.like(problem)
            return statistics.total(sweep_one(backend_of_problem, BlockSums(size)))

        points = law.problem.left.points
        features = data.xp.sqrt(expected_lengths(law)[0])[:, None]
        entries = diagonal(PairProblem(Side(points, features), None, packed.problem.kernel), backend.threads or 1)
        squares, trace = expected_squares(law, within_blocks)[0], statistics.total(entries[:n_used])
    if squares == 0:
        return BlockMoments(0.0, 0.0, math.inf)
    deviation = math.sqrt(2 * squares)
    steps = deviation / unit
    return BlockMoments(squares, max(2 * deviation / trace if trace > 0 else 0.0, third / steps / steps / steps), pairs)


def _of_drawn(data: Data, packed: Packed, backend: Backend, size: int, replicate: int) -> tuple[float, ...]:
    """Return moments of drawn targets.

    A unit (the largest pair or block); in this unit mean squares of consecutive pairs, the sum of cubes of blocks and
    mean fourth powers of pairs; and the trace.
    """
    packed_draw, n_used = packed.with_targets(data.draw(SEED, replicate)), data.n // size * size
    backend_of_draw = backend.like(packed_draw.problem)
    pairs, sums = block_estimates(backend_of_draw, 2), sweep_one(backend_of_draw, BlockSums(size))
    largest = max(float(arrays.namespace(array).max(abs(array))) for array in (pairs, sums))
    unit = math.ldexp(0.5, math.frexp(largest)[1])  # a power of 2
    pairs, sums = pairs / unit, sums / unit
    square, fourth = (statistics.total(pairs**power) / pairs.shape[0] for power in (2, 4))
    trace = statistics.total(diagonal(packed_draw.problem, backend.threads or 1)[:n_used])
    return unit, square, statistics.total(sums * sums * sums), fourth, trace


def _log_student_tail(x: float, freedom: int) -> float:
    """Return log P(t > x), by the leading term where the probability underflows."""
    tail = float(scipy.special.stdtr(freedom, -x))
    if tail > 1e-290:
        return math.log(tail)
    # P(t > x) = I_w(f / 2, 1 / 2) / 2 with w = f / (f + x^2), and I_w(a, b) -> w^a / (a B(a, b)) for small w.
    return (
        freedom / 2 * (math.log(freedom) - 2 * math.log(x) - math.log1p(freedom / x / x))
        - math.log(freedom)
        - float(scipy.special.betaln(freedom / 2, 0.5))
    )


def _spread_under_calibration(backend: Backend, n: int, block_size: int) -> float:
    """Return the standard error under calibration of the mean of blocks with n samples in total."""
    pairs = block_estimates(backend, 2)
    second_moment = statistics.total(pairs * pairs) / pairs.shape[0]
    return math.sqrt(2 * second_moment / (n * (block_size - 1)))
