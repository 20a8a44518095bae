r"""The blocks of the adaptive test, and bounds of the tails of their sums.

`null_blocks` computes each statistic for the observed labels and for labels drawn from the predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._packing.features import FeatureProblem, MapOptions, features_of
from kcalib._pairs.features import FeatureMap, default_columns
from kcalib._pairs.label_cells import EXPONENTS, FLOOR, POSSIBLE, DrawnCells, LabelCells, LabelSums, TemperatureSums
from kcalib.estimators.feature_moments import FeatureMoments, feature_moments, features_standard_error
from kcalib.estimators.skce import describe
from kcalib.inference.exact import draw_counted_labels, draw_work, replicate_totals
from kcalib.inference.features import find_law
from kcalib.inference.task import Task

# t of the lower bound: values in between raise the same classes by other factors.
MAPS = (1 / 4, 1 / 2, 7 / 8, 9 / 8, 3 / 2)

FEW_DRAWS, MANY_DRAWS = 199, 999
MANY_DRAWS_WORK = 1e6  # entries of the predictions up to which many labels are drawn
LONGEST_DRAWS = 3e12  # multiply-adds for drawn statistics of all pairs, about ten seconds on two cores
N_BINS, N_BINS_OF_TWO, N_TOP_BINS = 10, 15, 15
LEAST_VARIANCE = 0.5  # of a cell: with fewer expected events a label would be too large an outlier
LEAST_BANDWIDTH, LEAST_FINE_BANDWIDTH, FINE = 0.05, 0.02, 8.0
FINE_COLUMNS = 0.25  # share of the columns for the fine kernel
LEAST_SCORE_VARIANCE = 1e-20  # of a sample: below it all probabilities are equal, 0 or 1, up to rounding
N_LARGEST = 3  # cells of a block whose tails are bounded: those with the largest deviations
MOST_STEPS, CLOSE = 40, 1e-3  # of Newton's method; every theta gives a bound
BISECTION = 100.0
CHUNK_ENTRIES = 2**20
KERNEL_FINDING = "an error that only the kernel sees"
LARGEST_THETA = 500.0  # exp of it is finite


@dataclass(frozen=True)
class Block:
    """A statistic that is sensitive to one kind of error."""

    name: str
    statistics: np.ndarray  # of the observed labels, then of each draw
    finding: Callable[[], str]  # the meaning of a large value
    log_bound: Callable[[], float]  # of the logarithm of a p-value that is valid on its own
    impossible: str | None = None  # an observation that a calibrated model excludes, whatever the statistic
    log_law: Callable[[], float] = lambda: 0.0  # the same by a limit distribution: approximate


@singledispatch
def null_blocks(
    data: Data, task: Task, n_draws: int | None, n_columns: int | None, seed: int
) -> tuple[list[Block], dict[str, Any]]:
    """Return the blocks of checked data, and the fields of the result for the SKCE."""
    raise NotImplementedError(type(data))


@null_blocks.register
def _(
    data: Classification, task: Task, n_draws: int | None, n_columns: int | None, seed: int
) -> tuple[list[Block], dict[str, Any]]:
    p = data.probabilities
    if n_draws is None:
        is_small = data.n * data.m <= MANY_DRAWS_WORK
        is_quick = draw_work(data, task) * MANY_DRAWS <= LONGEST_DRAWS or task.has_features
        n_draws = MANY_DRAWS if is_small and is_quick else FEW_DRAWS
    cells = LabelCells.for_classes(data.m)
    drawn = cells.drawn_zeros(n_draws)
    kernels, estimate = kernel_blocks(task, n_draws, n_columns, seed, cells=drawn)
    if not kernels:
        for _ in draw_counted_labels(data, n_draws, seed, drawn, task.options.threads):
            pass
    sums = cells.sum(p, data.labels, data.sample_weight, threads=task.options.threads)
    tail = None if data.sample_weight is not None else lambda score, variance: _score_tail(data, score, variance)
    return label_blocks(sums, drawn, data.n, Words.of(data), tail) + kernels, estimate


def kernel_blocks(
    task: Task, n_draws: int, n_columns: int | None, seed: int, *, is_alone: bool = False, **drawn: Any
) -> tuple[list[Block], dict[str, Any]]:
    """Return blocks of the SKCE by random features at two bandwidths, and the fields of the reported SKCE.

    The reported SKCE is over all pairs if that takes about a second, else by the features of the wider kernel. Kernels
    without features have one block, over all pairs, or none if its draws would be slow and there are other blocks.
    `drawn` are further arguments for the draws.
    """
    options = MapOptions(n_columns or default_columns(task.n), seed, task.options.threads)
    try:
        problem = features_of(task.data, task.packed, options)
    except (ValueError, NotImplementedError):
        # Draws over all pairs do not support weights.
        is_quick = task.data.sample_weight is None and draw_work(task.data, task) * n_draws <= LONGEST_DRAWS
        kernels = [replicate_totals(task, n_draws, seed, **drawn)] if is_quick or is_alone else []
        return [kernel_block("kernel", statistics) for statistics in kernels], _all_pairs_fields(task)
    wide = rescale(problem, 1.0, LEAST_BANDWIDTH)
    fine = rescale(problem.with_map(*fine_map_options(wide.map, seed)), FINE, LEAST_FINE_BANDWIDTH)
    totals, fine_totals = wide.drawn_totals_of_both(fine, n_draws, seed, **drawn)
    moments = feature_moments(wide, second=not task.sums_all_pairs and wide is problem, drawn=totals)
    fine_moments = feature_moments(fine, second=False)
    blocks = [
        _feature_block("kernel", task, wide, moments, totals),
        _feature_block("fine kernel", task, fine, fine_moments, fine_totals),
    ]
    if task.sums_all_pairs:
        return blocks, _all_pairs_fields(task)
    task.feature_problems.append(problem)
    if wide is not problem:
        moments = feature_moments(problem)
    return blocks, {
        "estimator": "unbiased SKCE of random features",
        "features_freedom": moments.error_freedom,
        **task.estimate_fields(moments, moments.null_squares, features_standard_error(moments, task.n)),
        **problem.described(),
    }


def _all_pairs_fields(task: Task) -> dict[str, Any]:
    return {
        "estimator": "unbiased SKCE",
        "threads": task.backend.threads,
        **task.estimate_fields(task.moments, task.null_moments.squares),
        **describe(task.data, task.packed, task.backend),
    }


def rescale(problem: FeatureProblem, divisor: float, least: float) -> FeatureProblem:
    """Return the problem with the kernel at its bandwidth over `divisor`, for probabilities at least `least`."""
    if not problem.data.has_classes:
        least = 0.0  # distances of distributions have the units of the targets
    factor = scale_frequencies(problem.packed.bandwidth, divisor, least)
    if factor == 1:
        return problem
    return replace(problem, map=replace(problem.map, frequencies=problem.map.frequencies * factor))


def fine_map_options(wide: FeatureMap, seed: int) -> tuple[int, int]:
    """Return the number of columns and the seed of the fine kernel's map, from those of the wide kernel's map."""
    return 16 * max(1, round(FINE_COLUMNS * wide.n_columns / 16)), seed ^ 1


def scale_frequencies(bandwidth: float | None, divisor: float, least: float) -> float:
    """Return the factor of the frequencies of a kernel at its bandwidth over `divisor`, at least `least`."""
    return divisor if bandwidth is None else bandwidth / max(bandwidth / divisor, least)


def kernel_block(name: str, statistics: np.ndarray) -> Block:
    """Return the block of the SKCE with one kernel."""
    return Block(name, statistics, lambda: KERNEL_FINDING, lambda: 0.0)


def _feature_block(
    name: str, task: Task, problem: FeatureProblem, moments: FeatureMoments, totals: np.ndarray
) -> Block:
    """Return the block of a kernel's features, with a limit distribution if weights are equal."""

    def log_law() -> float:
        law = find_law(task, problem, moments, totals)
        return law.log_pvalue if law.pvalue_from == "law" else 0.0

    block = kernel_block(name, np.array([float(moments.total), *totals]))
    return block if problem.data.sample_weight is not None else replace(block, log_law=log_law)


def label_blocks(
    sums: LabelSums,
    drawn: DrawnCells,
    n: int,
    words: Words,
    score_tail: Callable[[float, float], float] | None,
    unit: float = 1.0,
) -> list[Block]:
    """Return the blocks of sums over cells.

    `score_tail` bounds log P(a centred sum of log probabilities as far on its side), from the sum and its variance;
    None with weights, since all bounds are for equal weights. `unit` makes the mean square of weights 1.
    """
    cells, m = drawn.cells, drawn.cells.n_classes
    n_bins = N_BINS_OF_TWO if m == 2 else N_BINS
    weights, hits, smaller, variances = sums.cells.to_float().T
    weights, hits, smaller, variances = unit * weights, unit * hits, unit * smaller, unit**2 * variances
    bin_numbers = cells.join(weights, n_bins, N_TOP_BINS)
    lower, upper = cells.ends

    bins, starts = np.unique(bin_numbers, return_index=True)

    def add_cells(values: np.ndarray) -> np.ndarray:
        sums = np.zeros((*values.shape[:-1], m * n_bins + N_TOP_BINS))
        sums[..., bins] = np.add.reduceat(values, starts, axis=-1)  # bins are ascending
        return sums

    # For probabilities from 1/2 on use labels of other classes, so that residuals keep their digits.
    is_large = lower >= 0.5
    sure, rest = add_cells(np.where(is_large, weights, 0.0)), add_cells(np.where(is_large, smaller, -smaller))
    counts = np.concatenate([add_cells(hits)[None], add_cells(unit * drawn.weights())])
    residuals, top_residuals = np.split(counts - sure + rest, [m * n_bins], axis=1)
    residuals = residuals.reshape(len(counts), m, n_bins)
    variance, top_variance = np.split(add_cells(variances), [m * n_bins])
    variance = variance.reshape(m, n_bins)
    is_empty, top_is_empty = np.split(add_cells(weights) == 0, [m * n_bins])
    biases, bias_variances = np.sum(residuals, axis=-1), np.sum(variance, axis=-1)
    observed, mean, log_variance = sums.logs.to_float() * (unit, unit, unit**2)
    score = np.append(observed, unit * drawn.log_scores.to_float()) - mean
    impossible = int(sums.impossible[0]) if sums.impossible[0] != POSSIBLE else None

    def format_bin(number: int) -> str:
        inside = np.flatnonzero((bin_numbers == number) & (weights > 0))
        return f"from {format_probability(lower[inside[0]])} to {format_probability(upper[inside[-1]])}"

    def bound_cells(inside: np.ndarray, residual: float) -> float:
        """Return a bound of the logarithm of the tail of a sum of labels in some cells."""
        chosen = np.flatnonzero(inside & (weights > 0))
        of_side = smaller[chosen] / weights[chosen]
        p = np.where(is_large[chosen], 1 - of_side, of_side)
        complement = np.where(is_large[chosen], of_side, 1 - of_side)
        return binomial_tail(p, complement, residual, weights[chosen])

    def says_temperature() -> str:
        return words.describe_temperature(float(score[0])) if score[0] != 0 else "no error of the temperature"

    def says_bias() -> str:
        # Two classes have the same value, up to rounding.
        k = 1 if m == 2 else int(np.argmax(biases[0] ** 2 / np.maximum(bias_variances, LEAST_VARIANCE)))
        return words.describe_share(k, float(biases[0, k]))

    def says_classes() -> str:
        squares = np.where(is_empty.reshape(m, n_bins), -1.0, _squares(residuals[0], variance))
        if m == 2:
            squares[0] = -1.0
        k, b = divmod(int(np.argmax(squares)), n_bins)
        return words.describe_bin(k, format_bin(k * n_bins + b), float(residuals[0, k, b]))

    def says_top() -> str:
        b = int(np.argmax(np.where(top_is_empty, -1.0, _squares(top_residuals[0], top_variance))))
        side = describe_side(float(top_residuals[0, b]))
        return f"largest probabilities {format_bin(m * n_bins + b)} too {side}"

    def score_bound() -> float:
        if impossible is not None or score_tail is None:
            return 0.0 if impossible is None else -math.inf
        return math.log(2) + score_tail(float(score[0]), float(log_variance))

    def bias_bound() -> float:
        squares = _squares(biases[0], bias_variances)
        tails = [bound_cells(bin_numbers // n_bins == k, biases[0, k]) for k in np.argsort(-squares)[:N_LARGEST]]
        return math.log(2 * squares.size) + min(tails)

    def classes_bound() -> float:
        squares, values = _squares(residuals[0], variance).reshape(-1), residuals[0].reshape(-1)
        tails = [bound_cells(bin_numbers == b, values[b]) for b in np.argsort(-squares)[:N_LARGEST]]
        return math.log(2 * squares.size) + min(tails)

    def top_bound() -> float:
        squares = _squares(top_residuals[0], top_variance)
        largest = np.argsort(-squares)[:N_LARGEST]
        tails = [bound_cells(bin_numbers == m * n_bins + b, top_residuals[0, b]) for b in largest]
        return math.log(2 * squares.size) + min(tails)

    blocks = [
        Block(
            "temperature",
            score**2 / log_variance if log_variance > LEAST_SCORE_VARIANCE * n else np.zeros_like(score),
            says_temperature,
            score_bound,
            None if impossible is None else f"the label of sample {impossible} (counted from 0) has probability 0",
        ),
        Block("bias", np.sum(_squares(biases, bias_variances), axis=-1), says_bias, bias_bound),
        Block("classes", np.sum(_squares(residuals, variance), axis=(-2, -1)), says_classes, classes_bound),
        Block("top label", np.sum(_squares(top_residuals, top_variance), axis=-1), says_top, top_bound),
    ]
    if score_tail is None:
        blocks[1:] = [replace(block, log_bound=lambda: 0.0) for block in blocks[1:]]
    return blocks[:-1] if words.has_confidence else blocks


@dataclass(frozen=True)
class Words:
    """Texts of findings about classes; for the classes "wrong" and "right" they are about the confidence.

    These two have no block of the largest probability, which would be that of "right" mirrored.
    """

    names: tuple[Any, ...]
    has_confidence: bool

    @classmethod
    def of(cls, data: Classification) -> Words:
        return cls(tuple(data.class_names), data.lens.has_confidence)

    @property
    def has_event(self) -> bool:
        """Return whether there are two classes, the second of which is an event."""
        return len(self.names) == 2 and not self.has_confidence

    def describe_temperature(self, score: float) -> str:
        """Describe a sum of centred log probabilities."""
        if self.has_confidence:
            return f"confidences too {'far from' if score < 0 else 'near to'} 0.5"
        return f"{'over' if score < 0 else 'under'}-confident"

    def describe_share(self, k: int, residual: float) -> str:
        """Describe a sum of the residuals of class k."""
        if self.has_confidence:
            return f"{'over' if (residual < 0) == (k == 1) else 'under'}-confident"
        return f"class {self.names[k]!r} predicted too {'often' if residual < 0 else 'rarely'}"

    def describe_bin(self, k: int, between: str, residual: float) -> str:
        """Describe a sum of the residuals of class k in a bin."""
        subject = "confidences" if self.has_confidence else f"probabilities of class {self.names[k]!r}"
        return f"{subject} {between} too {describe_side(residual)}"


def describe_side(residual: float) -> str:
    """Return "high" or "low", the error of probabilities with this sum of residuals."""
    return "high" if residual < 0 else "low"


def format_probability(p: float) -> str:
    """Format a probability with two digits, or of its complement if that is smaller."""
    if 0.99 < p < 1:
        return f"1 - {1 - p:.1g}" if p > 0.9999 else f"{p:.{math.ceil(-math.log10(1 - p))}f}"
    return f"{p:.2g}"


def _squares(residuals: np.ndarray, variances: np.ndarray) -> np.ndarray:
    return np.asarray(residuals**2 / np.maximum(variances, LEAST_VARIANCE))


def binomial_tail(p: np.ndarray, complement: np.ndarray, residual: float, counts: np.ndarray | float = 1.0) -> float:
    """Return Chernoff's bound of log P(sum of labels - p as far on this side), for independent labels.

    `complement` is 1 - p, accurate for p near 1. There are `counts` labels for each p, or labels whose probabilities
    have this mean: log(1 - p + p exp(theta)) is concave in p, so it bounds theirs.
    """
    if residual < 0:
        p, complement = complement, p
    counts = np.broadcast_to(counts, p.shape)[p > 0]
    p, complement = p[p > 0], complement[p > 0]

    def cumulants(theta: float) -> tuple[float, float, float]:
        # Of log(1 - p + p exp(theta)) - theta p, without overflow.
        shrunk = complement * math.exp(-theta)
        grown = p / (p + shrunk)
        values = theta * complement + np.log(p + shrunk)
        spread = grown * (shrunk / (p + shrunk))
        return float(np.sum(counts * values)), float(np.sum(counts * (grown - p))), float(np.sum(counts * spread))

    return chernoff(cumulants, abs(residual), float(np.sum(counts * p * complement)))


def _score_tail(data: Classification, score: float, variance: float) -> float:
    """Return Chernoff's bound of log P(the centred sum of log probabilities as far on this side)."""
    sign = 1.0 if score > 0 else -1.0

    def cumulants(theta: float) -> tuple[float, float, float]:
        sums = np.zeros(3)
        step = max(1, CHUNK_ENTRIES // data.m)
        for begin in range(0, data.n, step):
            p = np.asarray(arrays.to_host(data.probabilities[begin : begin + step, :]), dtype=np.float64)
            values = sign * np.log(np.maximum(p, FLOOR))
            values -= np.sum(p * values, axis=1, keepdims=True)
            largest = np.max(np.where(p > 0, values, -np.inf), axis=1, keepdims=True)
            weights = p * np.exp(theta * np.where(p > 0, values - largest, 0.0))
            total = np.sum(weights, axis=1, keepdims=True)
            weights /= total
            means = np.sum(weights * values, axis=1, keepdims=True)
            sums += (
                float(np.sum(theta * largest + np.log(total))),
                float(np.sum(means)),
                float(np.sum(weights * (values - means) ** 2)),
            )
        return float(sums[0]), float(sums[1]), float(sums[2])

    return chernoff(cumulants, abs(score), variance)


def chernoff(cumulants: Callable[[float], tuple[float, float, float]], value: float, variance: float) -> float:
    """Return a bound of log P(X >= value >= 0): the smallest K(theta) - theta value found by Newton steps.

    `cumulants` returns the cumulant generating function K of X and its first two derivatives, at theta.
    """
    if value <= 0 or variance <= 0:
        return 0.0
    best, low, high, theta = 0.0, 0.0, LARGEST_THETA, min(value / variance, LARGEST_THETA)
    for _ in range(MOST_STEPS):
        k, mean, spread = cumulants(theta)
        best = min(best, k - theta * value)
        if abs(mean - value) <= CLOSE * value:
            break
        low, high = (theta, high) if mean < value else (low, theta)
        newton = theta + (value - mean) / spread if spread > 0 else math.inf
        # Between the ends; the geometric mean if Newton's step leaves them.
        theta = newton if low < newton < high else math.sqrt(max(low, high / BISECTION) * high)
    return best


def score_tail(sums: TemperatureSums, score: float, variance: float, n_classes: int) -> float:
    """Return a bound of log P(the centred sum of log probabilities as far on this side)."""
    thetas, cumulants = np.array(EXPONENTS) - 1, sums.sums.to_float()[:, 0]
    of_side = thetas * score > 0
    bounds = cumulants[of_side] - thetas[of_side] * score
    return min(_bennett_tail(score, variance, n_classes), float(np.min(bounds, initial=0.0)))


def _bennett_tail(score: float, variance: float, n_classes: int) -> float:
    """Return Bennett's bound, which is near the normal tail for small deviations.

    The mean of a sample's log probability is between -log m and 0, that of the label between log `FLOOR` and 0.
    """
    if score == 0 or variance <= 0:
        return 0.0
    largest = math.log(n_classes) if score > 0 else -math.log(FLOOR)
    ratio = largest * abs(score) / variance
    return -variance / largest**2 * ((1 + ratio) * math.log1p(ratio) - ratio)


def map_bound(sums: TemperatureSums, n: int, level: float) -> float:
    """Return a lower limit of the root mean square of the total variation over the predictions of n samples.

    As `witness_bound`, with functions TV 1{q > p} of fixed maps q in place of a fitted one, each at a share of the
    `level`.
    """
    of_maps = sums.sums.to_float()[[EXPONENTS.index(t) for t in MAPS]]
    _, total, squares, null_variance, distances = of_maps.T
    variance = np.maximum(squares - total**2 / n, null_variance)
    low = total + float(scipy.special.ndtri(level / len(total))) * np.sqrt(variance)
    limits = np.maximum(low, 0.0) / np.sqrt(np.maximum(distances, 1e-300) * n)
    return min(float(np.max(limits)), 1.0)
