r"""The adaptive test: several alternatives over shared draws of the labels, exact for every number of samples.

Each block is a statistic of sums of the residuals :math:`e_i`, sensitive to one kind of error: temperature, class
frequencies, probabilities of a class or of the top label in bins, and errors that kernels detect. All blocks are
computed for the observed labels and for the same drawn labels. Their approximate p-values are combined by the harmonic
mean, and the combined value is ranked among those of the draws. `kcalib.inference.adaptive.blocks` makes the blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import scipy

import kcalib.inference.adaptive.forecast_blocks  # noqa: F401 - registers the blocks of distributions
from kcalib._backend.options import check_integer
from kcalib._input.labels import Classification
from kcalib._packing.features import check_columns
from kcalib.inference.adaptive.blocks import LEAST_BANDWIDTH, LEAST_FINE_BANDWIDTH, Block, Words, null_blocks
from kcalib.inference.adaptive.clusters import flip_clusters
from kcalib.inference.adaptive.sheets import given_blocks
from kcalib.inference.quadratic import MAX_RESAMPLES, N_QUANTILES
from kcalib.inference.task import CalibrationMethod, Task
from kcalib.results import CalibrationTestResult, TestBlock

TIE = 1e-9  # relative difference of combined p-values by rounding
SIGNIFICANT = 0.05
SMALLEST = 1e-300
CANCELLED = 1e-6  # variance, relative to the square of the largest deviation, below which it is summed directly
LEAST_SKEWNESS = 1e-3  # of the gamma distribution; below it is nearly normal


@dataclass(frozen=True)
class Adaptive(CalibrationMethod):
    r"""Test several alternatives over shared draws of the labels: detects the errors that models usually have.

    Valid for every number of samples and classes: given the predictions of a calibrated model, labels are independent
    draws from them, so observed and drawn labels are exchangeable.

    Parameters
    ----------
    n_resamples : int, optional
        Number R of draws, at least 1. Default: 999 for class probabilities with at most a million entries, otherwise
        199.
    n_columns : int, optional
        Columns of the random features of the wider kernel, a multiple of 16; default as for `kcalib.methods.Features`.

    Notes
    -----
    With :math:`e_i = \mathrm{onehot}(y_i) - p_i` the blocks of class probabilities are

    - *temperature*: :math:`\sum_i \langle e_i, \log p_i \rangle`, the score of the temperature, squared;
    - *bias*: :math:`\sum_c S_c^2 / V_c` with the sums :math:`S_c` of :math:`e_{ic}` and their variances under
      calibration;
    - *classes*: the same over 10 bins of each class's probability;
    - *top label*: the same over 15 bins of the largest probability, for whether its class is the label;
    - *kernel* and *fine kernel*: the SKCE of all pairs by random features of the kernel, at its bandwidth (at least
      .05) and at an eighth of it (at least .02). Kernels without random features have one block, the SKCE of all pairs,
      or none if it would take longer than about ten seconds, as ``result.null_law`` reports.

    The blocks of predicted numbers are *bias*, the sum of the normal scores of the PIT values; *dispersion*, the sum of
    their squares; *PIT histogram*, in 10 bins; *tails*, the numbers of targets outside of central intervals of 90 % and
    99 %; and the two kernels. Vectors have only the kernels.

    Each statistic is mapped to an approximate p-value :math:`p_k`, and the K values are combined to :math:`K / \sum_k 1
    / p_k`. The p-value is (1 + number of draws whose combined value is at least as small) / (1 + R). Values below 1 /
    (1 + R) come from bounds that are valid at every level, or from a limit distribution: ``result.pvalue_from`` says
    which. Time O(n c (m + R)) for c columns, memory O(n m). The user guide has the details in "Formulas of intervals
    and tests".

    ``result.blocks`` has the statistic, the p-value and the finding of each block. The SKCE is also reported: of all
    pairs if that takes about a second or a `backend` is given, otherwise by random features.

    References
    ----------
    .. [1] A. Schrab, I. Kim, M. Albert, B. Laurent, B. Guedj, A. Gretton. MMD aggregated two-sample test. JMLR
       24, 2023.

    Examples
    --------
    Over-confident predictions, which the SKCE alone does not detect:

    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> q = rng.dirichlet(np.full(10, 0.3), size=500)
    >>> y = (q.cumsum(axis=1) < rng.uniform(size=(500, 1))).sum(axis=1)
    >>> p = q**1.3 / (q**1.3).sum(axis=1, keepdims=True)
    >>> kcalib.calibration_test(y, p, method="exact", seed=0).pvalue < 0.05
    False
    >>> result = kcalib.calibration_test(y, p, method="adaptive", seed=0)
    >>> result.pvalue < 0.001, result.finding
    (True, 'over-confident')
    """

    n_resamples: int | None = None
    n_columns: int | None = None

    name: ClassVar[str] = "adaptive"

    def __post_init__(self) -> None:
        check_columns(self.n_columns)
        if self.n_resamples is not None:
            check_integer("n_resamples", self.n_resamples, 1, MAX_RESAMPLES)

    def test(self, task: Task, seed: int) -> CalibrationTestResult:
        if task.n < 2:
            raise ValueError(f"method={self.name!r} needs at least 2 samples, `y_true` has {task.n}")
        options = self.n_resamples, self.n_columns, seed
        if task.clusters is None:
            blocks, estimate = null_blocks(task.data, task, *options)
            if task.given:
                data, n_draws = cast(Classification, task.data), len(blocks[0].statistics) - 1
                blocks += given_blocks(data, task.given, n_draws, seed, task.options.threads)
            noun = "labels" if task.data.has_classes else "targets"
            draws, left_out = f"draws of the {noun} from the predictions", _describe_kernels(blocks, task)
        else:
            flips, estimate = flip_clusters(task, *options)
            blocks, (draws, left_out) = flips.blocks, flips.describe()
        bandwidth = task.packed.bandwidth if task.data.has_classes else None
        has_event = task.data.has_classes and Words.of(cast(Classification, task.data)).has_event
        ranked = rank_blocks(blocks, bandwidth, draws, left_out, has_event=has_event)
        return task.result(method=self.name, seed=seed, **ranked, **estimate)


def rank_blocks(
    blocks: list[Block], bandwidth: float | None, draws: str, left_out: str = "", *, has_event: bool = False
) -> dict[str, Any]:
    """Return the fields of the result from blocks with the same draws.

    `bandwidth` is of the SKCE that is reported; `draws` and `left_out` describe draws and missing blocks. For an event
    the finding prefers "too often" or "too rarely" to the temperature, see `_is_mainly_share`.
    """
    n_draws = len(blocks[0].statistics) - 1
    pvalues = np.stack([approximate_pvalues(block.statistics) for block in blocks])
    combined = combine(pvalues)
    n_extreme = int(np.sum(combined[1:] <= combined[0] * (1 + TIE)))
    pvalue = (1 + n_extreme) / (1 + n_draws)
    log_pvalue, pvalue_from = math.log(pvalue), "draws"
    null_law = f"{n_draws} {draws}, shared by {len(blocks)} blocks{left_out}"
    has_features = any(block.name == "fine kernel" for block in blocks)
    if has_features and bandwidth is not None and bandwidth < LEAST_BANDWIDTH:
        null_law += (
            f"; its kernels have the bandwidths {LEAST_BANDWIDTH} and {LEAST_FINE_BANDWIDTH}: the one of the SKCE, "
            f"{bandwidth:.2g}, sees nothing but nearly equal predictions"
        )
    reported = tuple(map(_report, blocks, pvalues[:, 0]))
    finding = _choose_finding(reported)
    if n_extreme == 0 or any(block.impossible for block in blocks):
        bounds = [math.log(len(blocks)) + block.log_bound() for block in blocks]
        smallest = int(np.argmin(bounds))
        if bounds[smallest] < log_pvalue:
            log_pvalue, pvalue_from = float(bounds[smallest]), "bound"
            pvalue = math.exp(log_pvalue)
            impossible = blocks[smallest].impossible
            if impossible is None:
                finding = blocks[smallest].finding()
            elif np.min(np.delete(pvalues[:, 0], smallest), initial=1.0) > SIGNIFICANT / len(blocks):
                finding = impossible  # this label alone says nothing about the other predictions
            bound = "beyond them Chernoff's bound of the largest sum of a block"
            null_law += f"; {impossible or bound}"
        elif n_extreme == 0:
            laws = [math.log(len(blocks)) + block.log_law() for block in blocks]
            smallest = int(np.argmin(laws))
            if laws[smallest] < log_pvalue:
                log_pvalue, pvalue_from, finding = float(laws[smallest]), "law", blocks[smallest].finding()
                pvalue = math.exp(log_pvalue)
                null_law += f"; beyond them the limit law of the block {blocks[smallest].name!r} (approximate)"
    findings = {block.name: block.finding for block in reported}
    if has_event and finding == findings.get("temperature") and _is_mainly_share(reported):
        finding = findings["bias"]
    quantiles = np.quantile(-np.log(combined[1:]), np.linspace(0, 1, N_QUANTILES))
    return {
        "statistic": -math.log(combined[0]),
        "pvalue": pvalue,
        "log_pvalue": log_pvalue,
        "pvalue_from": pvalue_from,
        "null_law": null_law,
        "null_quantiles": tuple(quantiles.tolist()),
        "n_resamples": n_draws,
        "blocks": reported,
        "finding": finding,
    }


def _describe_kernels(blocks: list[Block], task: Task) -> str:
    """Describe the blocks of a kernel without random features."""
    names = {block.name for block in blocks}
    if "fine kernel" in names:
        return ""
    if "kernel" in names:
        return "; the kernel has no random features: its block is of all pairs"
    reason = "would take long" if task.data.sample_weight is None else "have no weights"
    return f"; the kernel has no random features, and no block: draws for all pairs {reason}"


def approximate_pvalues(statistics: np.ndarray) -> np.ndarray:
    """Return the upper tail of each value by the gamma distribution with the first three moments of the others.

    Leaving out the value itself keeps outliers, observed or drawn, from widening their own reference distribution, and
    treats observed and drawn values alike.
    """
    # Central power sums over the draws; subtracting a value gives those of the others.
    centred = statistics - np.mean(statistics[1:])
    scale = np.max(np.abs(centred))
    if scale <= TIE * np.max(np.abs(statistics)):
        return np.ones(len(statistics))
    centred = centred / scale
    powers = centred ** np.arange(1, 4)[:, None]
    of_draws = np.sum(powers[:, 1:], axis=1, keepdims=True)
    others = np.concatenate([of_draws, of_draws - powers[:, 1:] + powers[:, :1]], axis=1)
    mean, second, third = others / (len(statistics) - 1)
    variance, skew = second - mean**2, third - 3 * mean * second + 2 * mean**3
    # The moments without an outlier are rounding errors if they come from a subtraction; sum the others directly.
    for k in np.flatnonzero(variance < CANCELLED):
        rest = np.delete(centred, k)
        mean[k] = np.mean(rest)
        variance[k], skew[k] = np.mean((rest - mean[k]) ** 2), np.mean((rest - mean[k]) ** 3)
    is_constant = variance <= (TIE * np.maximum(np.abs(mean), TIE)) ** 2
    spread = np.sqrt(np.where(is_constant, 1.0, variance))
    shape = 4 / np.maximum(skew / spread**3, LEAST_SKEWNESS) ** 2
    score = (centred - mean) / spread
    tail = scipy.special.gammaincc(shape, np.maximum(shape + score * np.sqrt(shape), 0.0))
    # If all others are equal, the tail is unknown.
    unknown = np.where(centred - mean > TIE, 1 / len(statistics), 1.0)
    return np.asarray(np.maximum(np.where(is_constant, unknown, tail), SMALLEST))


def combine(pvalues: np.ndarray) -> np.ndarray:
    """Return the harmonic mean over blocks, the first axis."""
    return np.asarray(len(pvalues) / np.sum(1 / pvalues, axis=0))


def _report(block: Block, approximate_pvalue: float) -> TestBlock:
    values = block.statistics
    as_large = int(np.sum(values[1:] >= values[0] - TIE * abs(values[0])))
    return TestBlock(
        name=block.name,
        statistic=float(values[0]),
        pvalue=(1 + as_large) / len(values),
        approximate_pvalue=float(approximate_pvalue),
        finding=block.finding(),
    )


def _is_mainly_share(blocks: tuple[TestBlock, ...]) -> bool:
    """Return whether the share of an event is significant, with at least half the log p-value of the first block.

    The temperature of rare events that are predicted too often is "under-confident", which nobody would call it.
    """
    pvalues = {block.name: block.approximate_pvalue for block in blocks}
    share = pvalues.get("bias", 1.0)
    return share <= SIGNIFICANT / len(blocks) and math.log(share) <= math.log(min(pvalues.values())) / 2


def _choose_finding(blocks: tuple[TestBlock, ...]) -> str:
    """Return the finding of the most significant block; of a kernel only if no other block is significant."""
    least = min(blocks, key=lambda block: block.approximate_pvalue)
    plain = [block for block in blocks if "kernel" not in block.name]
    if not plain:
        return least.finding
    first = min(plain, key=lambda block: block.approximate_pvalue)
    return (first if first.approximate_pvalue <= SIGNIFICANT / len(blocks) else least).finding
