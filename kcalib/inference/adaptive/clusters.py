r"""The adaptive test of samples in clusters, whose targets depend on each other in an unknown way.

The sums of whole clusters keep their sizes, and their signs are flipped, jointly for all blocks: with the sums
:math:`S_g` of residuals over a cluster a flip is :math:`\sum_g s_g S_g`, with independent random signs :math:`s_g`. It
is distributed as the observed sum if clusters are independent and their sums symmetric. Sums of rare events are not
symmetric: blocks that are too skewed, judged by the predictions, are left out. `flips` computes the sums.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.options import OptionError, check_integer
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._packing.features import FeatureProblem, MapOptions, features_of
from kcalib.estimators.forecasts.quantile_calibration import pit_of
from kcalib.inference.adaptive.blocks import (
    FEW_DRAWS,
    FINE,
    LEAST_BANDWIDTH,
    LEAST_FINE_BANDWIDTH,
    MANY_DRAWS,
    Words,
    fine_map_options,
    rescale,
)
from kcalib.inference.adaptive.flips import MOST_TARGETS, FlipMachine, FlippedBlocks, make_blocks
from kcalib.inference.adaptive.sheets import CellSheet, LabelRows, PitRows, given_sheets, label_sheets, pit_sheets
from kcalib.inference.task import Task

COLUMNS = 128  # of the kernel's features
MANY_FLIPS_WORK = 1e7  # clusters times cells and features up to which many signs are drawn
CHUNK_ROWS, CHUNK_ENTRIES = 2**13, 2**22  # largest number of samples, and of probabilities, that are added together


def clusters_of(clusters: Any, time_blocks: Any, n: int) -> np.ndarray | None:
    """Return the cluster of each of n samples, from labels, or from the length of blocks of successive samples."""
    if time_blocks is None:
        return None if clusters is None else read_clusters(clusters, n)
    if clusters is not None:
        raise OptionError("time_blocks", "makes clusters of successive samples, and `clusters` is given; leave one out")
    return np.arange(n) // check_integer("time_blocks", time_blocks, 1, n)


def read_clusters(clusters: Any, n: int) -> np.ndarray:
    """Return the cluster of each of n samples as an integer, from labels of any kind, equal in all parts of data."""
    values = np.asarray(arrays.to_host(arrays.as_array(clusters, "clusters")))
    if values.shape != (n,):
        raise ValueError(f"`clusters` has the shape {values.shape}, expected ({n},): the cluster of each sample")
    is_missing = values != values
    if values.dtype == object:
        is_missing = np.array([value is None or value != value for value in values.tolist()], dtype=bool)
    missing = np.flatnonzero(is_missing)
    if missing.size:
        raise ValueError(
            f"`clusters[{missing[0]}]` is {values[missing[0]]}, expected the cluster of the sample; give a sample "
            "that is independent of all others a cluster of its own"
        )
    if values.dtype.kind in "biu":
        return values.astype(np.int64)
    names = values.tolist()
    numbers = {name: _number_cluster(name) for name in set(names)}
    return np.array([numbers[name] for name in names], dtype=np.int64)


def _number_cluster(name: Any) -> int:
    """Return a whole number unchanged, and a 64-bit hash of anything else."""
    if isinstance(name, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", name):  # files mix numbers with other names
        return int(name)
    if isinstance(name, (int, float)) and float(name).is_integer() and abs(name) < 2**63:
        return int(name)
    return int.from_bytes(hashlib.blake2b(str(name).encode(), digest_size=8).digest(), "little", signed=True)


@singledispatch
def _lay_out(data: Data, seed: int) -> tuple[list[CellSheet], Callable[[np.ndarray], Any]]:
    """Return sheets, and a function that selects their input for some samples."""
    raise NotImplementedError(type(data))


@_lay_out.register
def _(data: Classification, seed: int) -> tuple[list[CellSheet], Callable[[np.ndarray], LabelRows]]:
    sheets = label_sheets(data.m, Words.of(data))
    return sheets, lambda rows: LabelRows(_take(data.probabilities, rows), _take(data.labels, rows), rows)


@_lay_out.register
def _(data: Forecasts, seed: int) -> tuple[list[CellSheet], Callable[[np.ndarray], PitRows]]:
    has_pit = not data.prediction.event_shape
    pit = arrays.to_host(pit_of(data, seed)) if has_pit else np.full(data.n, 0.5)
    return pit_sheets(has_pit=has_pit), lambda rows: PitRows(pit[rows], rows)


def flip_clusters(
    task: Task, n_draws: int | None, n_columns: int | None, seed: int
) -> tuple[FlippedBlocks, dict[str, Any]]:
    """Return the blocks of a task with clusters, and the fields of the result for the SKCE."""
    data, clusters = task.data, task.clusters
    assert clusters is not None
    weights = np.ones(data.n) if data.sample_weight is None else arrays.to_host(data.sample_weight)
    numbers, codes = np.unique(clusters, return_inverse=True)
    of_clusters, order = np.bincount(codes, weights), np.argsort(codes, kind="stable")
    sheets, rows_of = _lay_out(data, seed)
    sheets += [sheet for grouping in task.given for sheet in given_sheets(grouping, data)]
    problems = _kernel_problems(task, n_columns, seed)
    if n_draws is None:
        n_targets = min(problems[0].target_features.shape[1], MOST_TARGETS)
        width = sum(sheet.size for sheet in sheets) + n_targets * sum(problem.map.n_columns for problem in problems)
        n_draws = MANY_DRAWS if len(numbers) * width <= MANY_FLIPS_WORK else FEW_DRAWS
    groups = problems[0].target_groups
    n_frequencies = 0 if groups is None or np.max(groups) == 0 else len(groups) // 2
    maps = [problem.map for problem in problems]
    machine = FlipMachine(sheets, maps, n_draws, seed, task.options.threads, n_frequencies)
    targets, points = problems[0].target_features, problems[0].points
    sums = None
    step = max(1, min(CHUNK_ROWS, CHUNK_ENTRIES // points.shape[1]))
    for begin in range(0, data.n, step):
        rows = order[begin : begin + step]
        part = machine.add(rows_of(rows), _take(points, rows), _take(targets, rows), clusters[rows], weights[rows])
        sums = part if sums is None else sums + part
    assert sums is not None
    noun = "labels" if data.has_classes else "targets"
    blocks = make_blocks(machine, sums, of_clusters, noun, task.cluster_option)
    task.feature_problems.append(problems[-1 if len(problems) > 2 else 0])
    return blocks, {
        "estimator": "unbiased SKCE of random features, pairs of different clusters",
        "estimate": blocks.estimate,
        **task.feature_problems[-1].described(),
    }


def _take(array: arrays.Array, rows: np.ndarray) -> np.ndarray:
    return np.asarray(arrays.to_host(arrays.namespace(array).take(array, arrays.like(rows, array), axis=0)))


def _kernel_problems(task: Task, n_columns: int | None, seed: int) -> list[FeatureProblem]:
    """Return the wider and the fine kernel, and the reported one if its bandwidth is below the wider kernel's."""
    options = MapOptions(n_columns or COLUMNS, seed, task.options.threads)
    problem = features_of(task.data, task.packed, options)
    wide = rescale(problem, 1.0, LEAST_BANDWIDTH)
    fine = rescale(problem.with_map(*fine_map_options(wide.map, seed)), FINE, LEAST_FINE_BANDWIDTH)
    return [wide, fine] if wide is problem else [wide, fine, problem]
