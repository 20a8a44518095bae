r"""The adaptive test of samples in clusters, whose labels depend on each other in an unknown way.

The sums of whole clusters keep their sizes, and their signs are flipped, for all blocks together: with the residuals'
sums :math:`S_g` over a cluster a flip is :math:`\sum_g s_g S_g`, of independent random signs :math:`s_g`. It has the
law of the observed sum if clusters are independent and their sums symmetric. They are not where events are rare:
blocks that are too skew for it are left out, by what the predictions say (`MOST_SKEWNESS`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.threads import one_blas_thread
from kcalib._input.labels import Classification
from kcalib._packing.features import FeatureProblem, MapOptions, features_of
from kcalib._pairs.feature_sums import feature_rows
from kcalib.inference.adaptive.blocks import (
    FEW_DRAWS,
    FINE,
    LEAST_BANDWIDTH,
    LEAST_FINE_BANDWIDTH,
    MANY_DRAWS,
    Block,
    rescale,
)
from kcalib.inference.adaptive.given import given_sheets
from kcalib.inference.adaptive.sheets import CellEntries, CellSheet, LabelRows, label_sheets
from kcalib.inference.task import Task

MOST_SKEWNESS = 0.3  # of a block, if the labels of a cluster depend on each other as much as they can
COLUMNS, FINE_COLUMNS = 128, 32  # of the kernels' features: each has a sum for every cluster
MOST_TARGETS = 16  # columns of residuals that features are multiplied with; more classes have random sums
MANY_FLIPS_WORK = 1e7  # clusters times columns up to which many signs are drawn
CHUNK_ENTRIES = 2**22


def read_clusters(clusters: Any, n: int) -> np.ndarray:
    """Return the cluster of each of n samples as an integer, from labels of any kind."""
    values = np.asarray(arrays.to_host(arrays.as_array(clusters, "clusters")))
    if values.shape != (n,):
        raise ValueError(f"`clusters` has the shape {values.shape}, expected ({n},): the cluster of each sample")
    missing = np.flatnonzero(values != values)
    if missing.size:
        raise ValueError(
            f"`clusters[{missing[0]}]` is {values[missing[0]]}, expected the cluster of the sample; give a sample "
            "that is independent of all others a cluster of its own"
        )
    distinct, codes = np.unique(values, return_inverse=True)
    if len(distinct) < 2:
        raise ValueError("`clusters` has one cluster, expected at least 2, which are independent of each other")
    return np.asarray(codes).reshape(-1)


@dataclass(frozen=True, eq=False)
class FlippedBlocks:
    """Blocks whose draws are flips of the clusters' signs."""

    blocks: list[Block]
    estimate: dict[str, Any]  # fields of the result that are about the SKCE
    left_out: list[str]  # names of blocks that are too skew


@one_blas_thread()
def flip_clusters(task: Task, n_draws: int | None, n_columns: int | None, seed: int) -> FlippedBlocks:
    """Return the blocks of a task of class probabilities that has clusters."""
    data, codes = cast(Classification, task.data), task.clusters
    assert codes is not None
    weights = np.ones(data.n) if data.sample_weight is None else arrays.to_host(data.sample_weight)
    of_clusters = np.bincount(codes, weights)
    if np.count_nonzero(of_clusters) < 2:
        raise ValueError("`sample_weight` is positive in one of the `clusters` alone, expected at least 2; drop it")
    order, n_clusters = np.argsort(codes, kind="stable"), int(np.max(codes)) + 1
    sheets = label_sheets(data, n_clusters) + [
        sheet for grouping in task.given for sheet in given_sheets(data, grouping)
    ]
    size = sum(sheet.size for sheet in sheets)
    slices = _split([sheet.size for sheet in sheets])
    variances, skewness = _null_spreads(sheets, weights, order, codes)
    maps = _kernel_maps(task, n_columns, seed)
    targets_of = _make_targets(data, task)
    widths = [len(targets_of(order[:1])[0]) * problem.map.n_columns for problem in maps]
    width = size + sum(widths)

    def rows_of(rows: np.ndarray) -> np.ndarray:
        w = weights[rows][:, None]
        targets = w * targets_of(rows)
        parts = [_spread(sheets, [sheet.entries_of(rows) for sheet in sheets], lambda entries: w * entries.residuals)]
        for problem in maps:
            parts.append(multiply_features(problem, rows, targets))
        return np.concatenate(parts, axis=1)

    n_draws = n_draws or (MANY_DRAWS if n_clusters * width <= MANY_FLIPS_WORK else FEW_DRAWS)
    random = np.random.Generator(np.random.Philox(key=np.array([seed, 2**62], dtype=np.uint64)))
    flipped, squares = np.zeros((1 + n_draws, width)), np.zeros(width)
    for sums in sum_clusters(order, codes, width, rows_of):
        signs = np.where(random.random((len(sums), 1 + n_draws)) < 0.5, -1.0, 1.0)
        signs[:, 0] = 1.0
        flipped += linalg.matmul(signs.T, sums)
        squares += np.sum(sums**2, axis=0)

    blocks, block_skewness = [], []
    scales = np.maximum(squares[:size], variances)
    for sheet, cells in zip(sheets, slices, strict=True):
        standardised = flipped[:, cells] ** 2 / np.where(scales[cells] > 0, scales[cells], 1.0)
        worst = int(np.argmax(standardised[0]))
        total = float(flipped[0, cells][worst])
        blocks.append(
            Block(
                sheet.name,
                np.sum(standardised, axis=1),
                lambda sheet=sheet, worst=worst, total=total: sheet.finding(worst, total),  # type: ignore[misc]
                lambda: 0.0,
            )
        )
        # A cell counts as far as it has events: rarer ones add little to the block.
        shares = 1 / np.maximum(skewness[cells], 1.0) ** 2 * (variances[cells] > 0)
        block_skewness.append(_combine_skewness(skewness[cells], shares))
    bias = slices[1]
    of_kernels = _combine_skewness(skewness[bias], variances[bias])
    pairs = [
        np.sum(flipped[:, part] ** 2, axis=1) - np.sum(squares[part])
        for part in (slice(size + part.start, size + part.stop) for part in _split(widths))
    ]
    for name, statistics in zip(("kernel", "fine kernel"), pairs, strict=False):
        blocks.append(Block(name, statistics, lambda: "an error that only the kernel sees", lambda: 0.0))
        block_skewness.append(of_kernels)
    impossible = np.flatnonzero((LabelRows(data, np.arange(data.n)).label_probabilities == 0) & (weights > 0))
    if impossible.size:
        sample = f"the label of sample {impossible[0]} (counted from 0) has probability 0"
        certain: dict[str, Any] = {
            "finding": lambda: "over-confident",
            "log_bound": lambda: -math.inf,
            "impossible": sample,
        }
        blocks[0], block_skewness[0] = replace(blocks[0], **certain), 0.0
    kept = [block for block, skew in zip(blocks, block_skewness, strict=True) if skew <= MOST_SKEWNESS]
    if not kept:
        least = min(block_skewness)
        raise ValueError(
            f"`clusters` has {n_clusters} clusters, too few for predictions with such rare events: if the labels of a "
            f"cluster depend on each other, their sums can have a skewness of {least:.2g}, expected at most "
            f"{MOST_SKEWNESS}; the test needs about {math.ceil(n_clusters * (least / MOST_SKEWNESS) ** 2)} clusters "
            "like these"
        )
    problem = maps[-1] if len(maps) > 2 else maps[0]
    task.feature_problems.append(problem)
    n_pairs = np.sum(weights) ** 2 - np.sum(of_clusters**2)
    return FlippedBlocks(
        kept,
        {
            "estimator": "unbiased SKCE of random features, pairs of different clusters",
            "estimate": float(pairs[-1 if len(maps) > 2 else 0][0] / n_pairs),
            **problem.described(),
        },
        [block.name for block, skew in zip(blocks, block_skewness, strict=True) if skew > MOST_SKEWNESS],
    )


def _null_spreads(
    sheets: Sequence[CellSheet], weights: np.ndarray, order: np.ndarray, codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return variance and skewness of each cell's sum if the labels of a cluster depend on each other fully.

    Deviations of a cluster's samples add up then, and so do the roots of their variances and third moments.
    """
    size = sum(sheet.size for sheet in sheets)

    def rows_of(rows: np.ndarray) -> np.ndarray:
        w = weights[rows][:, None]
        entries = [sheet.entries_of(rows) for sheet in sheets]
        return np.concatenate(
            [
                _spread(sheets, entries, lambda part: w * np.sqrt(part.variances)),
                _spread(sheets, entries, lambda part: w * np.cbrt(part.thirds)),
            ],
            axis=1,
        )

    variances, thirds = np.zeros((2, size))
    for sums in sum_clusters(order, codes, 2 * size, rows_of):
        deviations, roots = np.split(sums, 2, axis=1)
        variances += np.sum(deviations**2, axis=0)
        thirds += np.sum(roots**3, axis=0)
    return variances, np.abs(thirds) / np.where(variances > 0, variances, 1.0) ** 1.5


def _combine_skewness(skewness: np.ndarray, shares: np.ndarray) -> float:
    """Return the skewness of a sum with these shares: of many cells it averages out."""
    total = float(np.sum(shares))
    return math.sqrt(float(np.sum((shares * skewness) ** 2))) / total if total > 0 else 0.0


def _spread(
    sheets: Sequence[CellSheet], entries: Sequence[CellEntries], values_of: Callable[[CellEntries], np.ndarray]
) -> np.ndarray:
    """Return values of entries in the columns of their cells, the sheets beside each other."""
    parts = []
    for sheet, part in zip(sheets, entries, strict=True):
        values = np.zeros((len(part.cells), sheet.size))
        np.put_along_axis(values, part.cells, values_of(part), axis=1)
        parts.append(values)
    return np.concatenate(parts, axis=1)


def sum_clusters(
    order: np.ndarray, codes: np.ndarray, width: int, rows_of: Callable[[np.ndarray], np.ndarray]
) -> Iterator[np.ndarray]:
    """Yield sums of rows over clusters, shape (clusters, width): each cluster once, in the order of their numbers."""
    step = max(1, CHUNK_ENTRIES // width)
    last_sum, last = np.zeros((0, width)), -1
    for begin in range(0, len(order), step):
        rows = order[begin : begin + step]
        starts = np.flatnonzero(np.diff(codes[rows], prepend=-1))
        sums = np.add.reduceat(rows_of(rows), starts, axis=0)
        if codes[rows[0]] == last:
            sums[0] += last_sum[0]
        elif len(last_sum):
            yield last_sum
        last_sum, last = sums[-1:], codes[rows[-1]]
        yield sums[:-1]
    yield last_sum


def multiply_features(problem: FeatureProblem, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the products of the kernel's features and the target features of some samples, all columns of either."""
    points = arrays.namespace(problem.points).take(problem.points, arrays.like(rows, problem.points), axis=0)
    features = feature_rows(problem.map, np.asarray(arrays.to_host(points)), threads=problem.threads)
    return np.asarray((features[:, :, None] * targets[:, None, :]).reshape(len(rows), -1))


def _split(sizes: Sequence[int]) -> list[slice]:
    ends = np.cumsum([0, *sizes]).tolist()
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def _kernel_maps(task: Task, n_columns: int | None, seed: int) -> list[FeatureProblem]:
    """Return the wider and the fine kernel, and the one that is reported where its bandwidth is below the wider's."""
    options = MapOptions(n_columns or COLUMNS, seed, task.options.threads)
    problem = features_of(task.data, task.packed, options)
    wide = rescale(problem, 1.0, LEAST_BANDWIDTH)
    fine = rescale(problem.with_map(FINE_COLUMNS, seed ^ 1), FINE, LEAST_FINE_BANDWIDTH)
    return [wide, fine] if wide is problem else [wide, fine, problem]


def _make_targets(data: Classification, task: Task) -> Callable[[np.ndarray], np.ndarray]:
    """Return what the kernels' features are multiplied with: residuals, or of many classes random sums of these.

    Their inner products are those of the residuals on average.
    """
    root = task.packed.target.root
    factor = None if root is None else np.asarray(arrays.to_host(root))
    n_targets = data.m if factor is None else factor.shape[1]
    if n_targets > MOST_TARGETS:
        signs = np.where(np.random.default_rng(0).random((n_targets, MOST_TARGETS)) < 0.5, -1.0, 1.0)
        signs /= math.sqrt(MOST_TARGETS)
        factor = signs if factor is None else linalg.matmul(factor, signs)

    def targets_of(rows: np.ndarray) -> np.ndarray:
        residuals = LabelRows(data, rows).residuals
        return residuals if factor is None else linalg.matmul(residuals, factor)

    return targets_of
