"""Compute sums over the matrix H of a random-feature kernel, in time O(n) for each column.

`feature_moments` computes the fields of `MomentSums`, which are exact for the feature kernel, except for the sum of
squares, which comes from some of the pairs. It also has sums for independent groups of frequencies, whose variation
gives the error due to the random frequencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._packing.features import FeatureProblem
from kcalib._packing.variance import DOT
from kcalib._pairs import statistics
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.feature_sums import feature_rows, row_forms, sum_products
from kcalib._pairs.problem import PairProblem, Side, Term
from kcalib._pairs.reductions import Moments, MomentSums, sweep_one

ALL_PAIRS = 2000  # up to this number of samples the sum of squares uses all pairs
SUBSET = 1000  # samples drawn with replacement otherwise
RESERVE, RESERVE_ELEMENTS = 2**14, 2**20  # samples, and probabilities, from which the null variance draws
SEED = 0  # of the subset
SMALLEST = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class FeatureMoments(MomentSums):
    """Sums over H for a random-feature kernel."""

    group_totals: np.ndarray  # for the kernel of each group, shape: (n_groups,); their mean is the total
    # The same for groups of features of the target kernel; one group if target features are exact.
    target_group_totals: np.ndarray
    null_squares: float | None  # E sum_{i != j} H_ij^2 under calibration, given the predictions

    @property
    def total_error(self) -> float:
        """Return the standard error of the total due to random features, from the variation of the groups."""
        return math.sqrt(sum(variance for variance, _ in self._error_parts))

    @property
    def error_freedom(self) -> float:
        """Degrees of freedom of the estimated `total_error` (Welch and Satterthwaite)."""
        parts = self._error_parts
        squares = sum(variance**2 / freedom for variance, freedom in parts)
        return sum(variance for variance, _ in parts) ** 2 / squares if squares > 0 else len(self.group_totals) - 1.0

    @property
    def _error_parts(self) -> list[tuple[float, float]]:
        """Variances of the group means of both kernels, with degrees of freedom."""
        return [
            (float(np.var(totals, ddof=1)) / len(totals), len(totals) - 1.0)
            for totals in (self.group_totals, self.target_group_totals)
            if len(totals) > 1
        ]


def feature_moments(problem: FeatureProblem, *, second: bool = True, drawn: np.ndarray | None = None) -> FeatureMoments:
    """Return total and trace; with `second` also row sums, diagonal, and the sum of squares.

    The sum of squares uses all pairs of up to 2000 samples. For more it is estimated from 1000 samples, drawn in
    proportion to their diagonal entries, so that rare samples with large residuals are included. It is at least its
    expectation under calibration given the predictions: half the mean square of `drawn`, sums for drawn targets, or
    otherwise a formula on a subset of the pairs. Weighted samples have none.
    """
    feature_map, points, target_features = problem.map, problem.points, problem.target_features
    sums, trace_parts = sum_products(feature_map, points, target_features, threads=problem.threads)
    squares = arrays.to_host(sums * sums)
    per_group = np.zeros((feature_map.n_groups, squares.shape[1]))
    np.add.at(per_group, np.tile(feature_map.groups, 2), squares)
    per_group, trace_parts = _by_target_groups(problem, per_group, trace_parts)
    totals = per_group - trace_parts
    total, trace = float(np.sum(totals)), float(np.sum(trace_parts))
    groups = feature_map.n_groups * np.sum(totals, axis=1), totals.shape[1] * np.sum(totals, axis=0)
    if not second:
        return FeatureMoments(total, None, None, None, None, trace, *groups, None)
    forms, diagonal = row_forms(feature_map, points, target_features, sums, threads=problem.threads)
    row_sums = forms - diagonal
    if problem.data.sample_weight is not None:
        return FeatureMoments(total, row_sums, row_sums, diagonal, None, trace, *groups, None)
    null_squares = null_squares_of(problem) if drawn is None else float(np.mean(drawn**2)) / 2
    observed = sum_of_squares_of(problem, arrays.to_host(diagonal))
    return FeatureMoments(
        total, row_sums, row_sums, diagonal, max(observed, null_squares), trace, *groups, null_squares
    )


def _by_target_groups(
    problem: FeatureProblem, squares: np.ndarray, trace_parts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return squares of sums, by groups of features and of target features, and the trace by the same groups."""
    groups, feature_map = problem.target_groups, problem.map
    if groups is None:
        return np.sum(squares, axis=1, keepdims=True), trace_parts[:, None]
    by_columns = groups[:, None] == np.arange(groups.max() + 1)
    xp, target_features = arrays.namespace(problem.target_features), problem.target_features
    if len(feature_map.projections):
        columns = [arrays.like(np.flatnonzero(is_in_group), target_features) for is_in_group in by_columns.T]
        parts = [
            sum_products(
                feature_map, problem.points, xp.take(target_features, group_columns, axis=1), threads=problem.threads
            )[1]
            for group_columns in columns
        ]
        return squares @ by_columns, np.stack(parts, axis=1)
    # |phi|^2 is the same for all samples.
    lengths = arrays.to_host(xp.sum(target_features * target_features, axis=0)) @ by_columns
    return squares @ by_columns, np.outer(trace_parts, lengths / max(float(np.sum(lengths)), SMALLEST))


def features_standard_error(moments: FeatureMoments, n: int, sample_weight: Array | None = None) -> float:
    """Return the standard error of the unbiased estimate due to random features."""
    return statistics.unbiased(MomentSums(moments.total_error, None, None, None, None, None), n, sample_weight)


def sum_of_squares_of(problem: FeatureProblem, diagonal: np.ndarray) -> float:
    """Return sum_{i != j} H_ij^2, for many samples estimated from a subset of the pairs."""
    rows, weights = _subset(diagonal, np.arange(problem.n))
    phi = feature_rows(problem.map, _rows_of(problem.points, rows), threads=problem.threads)
    target_features = _rows_of(problem.target_features, rows) * np.sqrt(weights)[:, None]
    products = PairProblem(Side(phi, target_features), None, (Term(1.0, (DOT,)),))
    squares = sweep_one(backend_for(products, threads=problem.threads), Moments(second=True)).sum_of_squares
    assert squares is not None
    return squares


def null_squares_of(problem: FeatureProblem) -> float:
    """Return the expectation of `sum_of_squares_of` under calibration, given the predictions."""
    random = np.random.default_rng(SEED)
    count = min(RESERVE, max(ALL_PAIRS, RESERVE_ELEMENTS // problem.target_features.shape[1]))
    reserve, share = np.arange(problem.n), 1.0
    if problem.n > count:
        reserve = np.sort(random.choice(problem.n, count, replace=False))
        share = problem.n * (problem.n - 1) / (count * (count - 1))
    rows, weights = _subset(problem.null_lengths(reserve), reserve)
    phi = feature_rows(problem.map, _rows_of(problem.points, rows), threads=problem.threads)
    entries = linalg.matmul(phi, phi.T) ** 2
    entries *= problem.null_products(rows)
    np.fill_diagonal(entries, 0.0)
    return share * float(np.einsum("i,ij,j->", weights, entries, weights))


def _subset(sizes: np.ndarray, of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return samples, and their weights in the estimate of a sum over all pairs i != j.

    Few samples are all used. Many are drawn in proportion to their sizes. As entries are at most the product of the
    roots of the sizes, no pair dominates the sum.
    """
    total = float(np.sum(sizes))
    if len(of) <= ALL_PAIRS or not total > 0:
        rows = of[:ALL_PAIRS]
        return rows, np.ones(len(rows))
    uniform = np.random.default_rng(SEED).random(SUBSET)
    cumulative = np.cumsum(sizes)
    positions = np.minimum(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"), len(of) - 1)
    places, times = np.unique(positions, return_counts=True)
    chances = np.maximum(sizes[places] / total, SMALLEST)
    return of[places], times / (chances * math.sqrt(SUBSET * (SUBSET - 1)))


def _rows_of(array: Array, rows: np.ndarray) -> np.ndarray:
    selection = arrays.namespace(array).take(array, arrays.like(rows, array), axis=0)
    return arrays.to_host(selection).astype(np.float64, copy=False)
