"""Tests that compare the unbiased SKCE, over all pairs, with its law under calibration.

The statistic is n SKCE_uq, a degenerate U-statistic under calibration (W19 theorem G.2, W21 remark B.2).
Each function gets a `QuadraticProblem` and returns a `NullLaw`: a p-value and what it rests on.

    exact        labels drawn from the predictions: the law given the predictions, at any n
    bootstrap    the Arcones-Gine bootstrap, counts of draws with replacement
    multiplier   Rademacher or Gaussian multipliers of the residuals
    spectrum     sum of chi-square variables weighted by eigenvalues (`spectrum.py`, `kcalib.laws`)
    pearson      the Pearson curve with the four moments of that sum
    gamma        the gamma law with mean and variance of the biased estimate

`calibration_test` is the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kcalib import _packing
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._backend.random import Weights, batches, drawn_labels
from kcalib._input.forecasts import Either as Data
from kcalib._input.forecasts import Forecasts
from kcalib._packing import Packed
from kcalib._pairs import statistics
from kcalib._pairs.dispatch import Operator, operator_for
from kcalib._pairs.operators.diagonal import diagonal
from kcalib._pairs.problem import Moments, PairProblem, Side
from kcalib.estimators.skce import PairOptions
from kcalib.inference.spectrum import Spectrum, full_spectrum, leading_spectrum
from kcalib.laws import PearsonCurve

N_RESAMPLES = 999
N_EIGENVALUES = 20
STORED_UP_TO = 256  # samples of which all eigenvalues are computed by default, from a stored matrix
SETTLED = 0.01  # change of log p by the last product with H; its error is smaller then
BATCH_BYTES = 2**26
# Draws in float32 may miss a tie by rounding; ties count as at least as large as the statistic.
TIE = 1e-6
# Residuals this small change no draw, and products with subnormal float32 numbers (below 1e-38) take 20 times as long.
NEGLIGIBLE = 1e-30


@dataclass(frozen=True)
class QuadraticProblem:
    """H of a data set; packed, and summed, when first asked for."""

    data: Data
    options: PairOptions

    @property
    def n(self) -> int:
        return self.data.n

    @cached_property
    def packed(self) -> Packed:
        options = self.options
        return _packing.pack(self.data, options.kernel, options.target_kernel, threads=options.threads)

    @cached_property
    def operator(self) -> Operator:
        return operator_for(self.packed.problem, operator=self.options.operator, threads=self.options.threads)

    @cached_property
    def moments(self) -> Moments:
        return self.operator.moments(second=True)

    @cached_property
    def estimate(self) -> float:
        """The unbiased SKCE."""
        return statistics.unbiased(self.moments, self.n)

    @property
    def null_variance(self) -> float:
        """Of n SKCE under calibration: 2 E h^2, estimated from all pairs."""
        assert self.moments.sum_of_squares is not None
        return 2 * self.moments.sum_of_squares / (self.n - 1) ** 2


@dataclass(frozen=True)
class NullLaw:
    """A p-value, and what it rests on."""

    log_pvalue: float
    description: str
    n_resamples: int | None = None
    n_eigenvalues: int | None = None
    pvalue: float | None = None  # where it is a ratio of counts; otherwise exp(log_pvalue)


def bootstrap(problem: QuadraticProblem, n_resamples: int, seed: int) -> NullLaw:
    """c^T H~ c - c^T diag H~ with counts c, where H~ is H minus its row and column means plus its mean."""
    n, moments = problem.n, problem.moments
    own = arrays.where_computed(moments.diagonal)
    row_means = (arrays.where_computed(moments.row_sums) + own) / n
    mean = float(row_means.mean())
    # c^T H~ c = c^T H c - 2 n c^T row_means + n^2 mean, because c sums to n.
    subtracted = 2 * n * row_means + (own - 2 * row_means + mean)
    weights = Weights("multinomial", n, n_resamples, seed)
    forms = arrays.to_host(_quadratic_forms(problem.operator, weights))
    linear = _products(subtracted, weights, problem.options.threads, lambda counts: counts)
    draws = forms - linear + n**2 * mean
    return _monte_carlo(problem, draws, f"{n_resamples} Arcones-Gine bootstrap resamples")


def multiplier(problem: QuadraticProblem, n_resamples: int, seed: int, multipliers: str) -> NullLaw:
    """sum_{i != j} w_i w_j H_ij with independent multipliers w of mean 0 and variance 1."""
    n, moments = problem.n, problem.moments
    weights = Weights(multipliers, n, n_resamples, seed)
    forms = arrays.to_host(_quadratic_forms(problem.operator, weights))
    if multipliers == "rademacher":
        own = np.full(n_resamples, float(moments.trace))
    else:
        squares = arrays.where_computed(moments.diagonal)
        own = _products(squares, weights, problem.options.threads, lambda w: w**2)
    return _monte_carlo(problem, forms - own, f"{n_resamples} draws with {multipliers.capitalize()} multipliers")


def exact(problem: QuadraticProblem, n_resamples: int, seed: int) -> NullLaw:
    """The statistic of labels drawn from the predictions, which under calibration has the law of the observed one.

    With marks 1 the pair problem's matrix is the kernel's, K, and the statistic is a sum of
    quadratic forms of K, one for each column of the drawn marks.
    """
    data = problem.data
    if isinstance(data, Forecasts):
        return _exact_by_sweeps(problem, data, n_resamples, seed)
    points = problem.packed.problem.left.points
    ones = arrays.namespace(points).ones_like(points[:, :1])
    kernel = PairProblem(Side(points, ones), None, problem.packed.problem.kernel)
    operator = operator_for(kernel, operator=problem.operator.name, threads=problem.options.threads)
    kernel_diagonal = arrays.where_computed(diagonal(kernel, operator.threads or 1))
    p = arrays.where_computed(data.probabilities)
    root = arrays.like(_root(problem, data.m), p)
    xp = arrays.namespace(p)
    p = xp.where(p < NEGLIGIBLE, 0.0, p)
    n, rank, means = problem.n, root.shape[1], p @ root
    draws = []
    for labels in drawn_labels(p, n_resamples, seed, at_once=max(1, BATCH_BYTES // (8 * n * rank))):
        marks = xp.take(root, labels, axis=0)
        marks -= means[:, None, :]
        marks = marks.reshape(n, -1)
        own = _own_forms(kernel_diagonal, marks)
        draws.append(arrays.to_host((_quadratic_forms(operator, marks) - own).reshape(-1, rank).sum(axis=1)))
    return _monte_carlo(problem, np.concatenate(draws), f"{n_resamples} draws of the labels from the predictions")


def _exact_by_sweeps(problem: QuadraticProblem, data: Forecasts, n_resamples: int, seed: int) -> NullLaw:
    """Targets drawn from distributions, a sweep over the pairs for each; where marks are vectors as for classes."""
    if problem.packed.problem.target is None:
        draws = _vector_draws(problem, data, n_resamples, seed)
    else:
        draws = np.empty(n_resamples)
        for r in range(n_resamples):
            drawn = problem.packed.with_targets(data.draw(seed, r))
            operator = operator_for(drawn.problem, operator=problem.operator.name, threads=problem.options.threads)
            draws[r] = float(operator.moments(rows=False, trace=False).total)
    return _monte_carlo(problem, draws, f"{n_resamples} draws of the targets from the predictions")


def _vector_draws(problem: QuadraticProblem, data: Forecasts, n_resamples: int, seed: int) -> np.ndarray:
    """Sums of quadratic forms of K, one for each column of the drawn marks."""
    packed = problem.packed
    points = packed.problem.left.points
    ones = arrays.namespace(points).ones_like(points[:, :1])
    kernel = replace(packed.problem, left=Side(points, ones))
    operator = operator_for(kernel, operator=problem.operator.name, threads=problem.options.threads)
    kernel_diagonal = arrays.where_computed(diagonal(kernel, operator.threads or 1))
    xp = arrays.namespace(kernel_diagonal)
    rank = packed.problem.left.marks.shape[1]
    at_once = max(1, BATCH_BYTES // (8 * problem.n * rank))
    draws = []
    for begin in range(0, n_resamples, at_once):
        some = range(begin, min(n_resamples, begin + at_once))
        found = [packed.with_targets(data.draw(seed, r)).problem.left.marks for r in some]
        marks = xp.concatenate([xp.asarray(arrays.where_computed(m), dtype=xp.float64) for m in found], axis=1)
        own = _own_forms(kernel_diagonal, marks)
        draws.append(arrays.to_host((_quadratic_forms(operator, marks) - own).reshape(-1, rank).sum(axis=1)))
    return np.concatenate(draws)


# What an entry of H takes in multiply-adds of the compiled core (0.1 ns), measured; Laplace distributions have branches
# of the formula, full covariances a factorisation.
EXPONENTIAL_COST = 12
FAMILY_COST = {"normal": 1.0, "normal_full": 2.5, "laplace": 4.0, "atoms": 1.0}


def entry_cost(problem: PairProblem) -> float:
    """Multiply-adds that an entry of H takes, about: of its points, and of the columns of its marks."""
    cost = float(problem.left.points.shape[1] + EXPONENTIAL_COST)
    for mixtures in (problem.target, problem.predicted):
        if mixtures is not None:
            d = mixtures.n_dims * (mixtures.n_dims if mixtures.family == "normal_full" else 1)
            pairs = mixtures.n_terms * (1 + mixtures.n_components) ** 2
            one = d + EXPONENTIAL_COST * max(1, len(mixtures.kernel))
            cost += pairs * one * FAMILY_COST[mixtures.family]
    if problem.target is None:
        cost += float(problem.left.marks.shape[1])
    return cost


def _root(problem: QuadraticProblem, m: int) -> np.ndarray:
    """R, shape (m, rank), with <a_i, a_j> = <R^T e_i, R^T e_j> for the residuals e."""
    if problem.packed.target.root is not None:
        return problem.packed.target.root
    if problem.operator.name == "sorted_scan" and m == 2:
        return np.sqrt([[0.5], [0.5]]) * [[-1], [1]]  # on a line e is (-r, r), to rounding
    return np.eye(m)


def spectrum(problem: QuadraticProblem, n_eigenvalues: int | str, max_memory: float | None) -> NullLaw:
    """The law of sum_i l_i (Z_i^2 - 1)."""

    def log_pvalue(found: Spectrum) -> float:
        law = found.law()
        return float(law.logsf(problem.n * problem.estimate + law.mean))

    return _by_spectrum(problem, log_pvalue, "chi-square variables weighted by", n_eigenvalues, max_memory)


def pearson(problem: QuadraticProblem, n_eigenvalues: int | str, max_memory: float | None) -> NullLaw:
    """The Pearson curve with the first four moments of sum_i l_i (Z_i^2 - 1)."""

    def log_pvalue(found: Spectrum) -> float:
        squares, cubes, fourths = (found.power_sum(k) for k in (2, 3, 4))
        fourths = max(fourths, cubes**2 / squares)  # as for every spectrum; estimates may miss it
        skewness, kurtosis = 8 * cubes / (2 * squares) ** 1.5, 48 * fourths / (2 * squares) ** 2
        return float(PearsonCurve(0.0, 2 * squares, skewness, kurtosis).logsf(problem.n * problem.estimate))

    return _by_spectrum(problem, log_pvalue, "Pearson curve with four moments from", n_eigenvalues, max_memory)


def gamma(problem: QuadraticProblem) -> NullLaw:
    """The gamma law with the mean of n SKCE_b under calibration, trace / n, and the variance of n SKCE_uq."""
    mean, variance = float(problem.moments.trace) / problem.n, problem.null_variance
    if variance == 0:
        return _degenerate(problem)
    # The gamma law with shape k is the Pearson curve with skewness 2 / sqrt(k) and kurtosis 6 / k.
    ratio = math.sqrt(variance) / mean
    log_pvalue = float(PearsonCurve(0.0, variance, 2 * ratio, 6 * ratio**2).logsf(problem.n * problem.estimate))
    return NullLaw(log_pvalue, f"gamma law of mean {mean:.4g} and standard deviation {math.sqrt(variance):.4g}")


def _quadratic_forms(operator: Operator, weights: Weights | Array) -> Array:
    if not isinstance(weights, Weights):
        weights = arrays.beside(weights, operator.problem.left.points)
    return arrays.where_computed(operator.quadratic_forms(weights, dtype="float32"))


def _own_forms(kernel_diagonal: Array, marks: Array) -> Array:
    """sum_i K_ii w_i^2 for each column w of the marks."""
    if arrays.is_host(marks):
        return np.einsum("i,ij,ij->j", kernel_diagonal, marks, marks)
    return (kernel_diagonal[:, None] * marks * marks).sum(axis=0)


def _products(vector: Array, weights: Weights, threads: int | None, of: Callable[[Array], Array]) -> np.ndarray:
    """`vector` times `of` the weights, one for each replicate."""
    drawn = batches(vector, weights, BATCH_BYTES, threads=threads)
    return np.concatenate([arrays.to_host(vector @ of(values)) for _, _, values in drawn])


def _monte_carlo(problem: QuadraticProblem, totals: np.ndarray, description: str) -> NullLaw:
    """`totals`: sums over i != j that under calibration are drawn from the law of the observed one."""
    observed = float(problem.moments.total)
    as_large = int(np.sum(totals >= observed - TIE * float(problem.moments.trace)))
    pvalue = (1 + as_large) / (1 + len(totals))
    return NullLaw(math.log(pvalue), description, n_resamples=len(totals), pvalue=pvalue)


def _by_spectrum(
    problem: QuadraticProblem,
    log_pvalue: Callable[[Spectrum], float],
    law: str,
    n_eigenvalues: int | str,
    max_memory: float | None,
) -> NullLaw:
    n = problem.n
    if problem.null_variance == 0:
        return _degenerate(problem)
    if n_eigenvalues == "all":
        remedy, array = "pass a number of eigenvalues", problem.packed.problem.left.points
        check_memory(16 * n * n, max_memory, f"all eigenvalues of {n} samples", remedy, array)
        return NullLaw(log_pvalue(full_spectrum(problem.operator, n)), f"{law} all {n} eigenvalues", n_eigenvalues=n)
    assert isinstance(n_eigenvalues, int)
    values = [math.inf]

    def settled(found: Spectrum) -> bool:
        values.append(log_pvalue(found))
        return found.has_largest and abs(values[-1] - values[-2]) <= SETTLED

    found = leading_spectrum(problem.operator, problem.moments, n, n_eigenvalues, settled)
    share = f"{found.remainder_share:.2g} of the variance from the rest"
    described = f"{law} {len(found.leading)} leading eigenvalues, {share}"
    last = values[-1] if len(values) > 1 else log_pvalue(found)
    return NullLaw(last, described, n_eigenvalues=len(found.leading))


def _degenerate(problem: QuadraticProblem) -> NullLaw:
    """All H_ij, i != j, are 0, and so is the statistic."""
    return NullLaw(0.0, "none: all pairs are 0")
