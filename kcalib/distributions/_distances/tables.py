"""Fill tables of distances between two sets of predictions, block by block.

A table has n n' numbers (`check_table`). Threads fill its blocks on the host; a GPU computes one block after another.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._backend.special import asarray_on_device_of
from kcalib._backend.threads import TerminalProgress, resolve_threads

BLOCK = 2**17  # numbers in the largest arrays of one block of pairs
DEVICE_BLOCK = 2**24


def check_table(n: int, n_others: int, max_memory: Any, reference: Array, copies: int = 1) -> None:
    check_memory(
        copies * 8 * n * n_others,
        max_memory,
        f"distances between {n} and {n_others} predictions",
        "take fewer predictions, or a metric whose distances are not stored",
        reference,
    )


def fill_table(
    n: int,
    n_others: int,
    width: int,
    reference: Array,
    compute_distances: Callable[[slice, slice], Array],
    *,
    is_symmetric: bool,
    max_memory: Any,
    threads: int | None,
) -> Array:
    """Return the table of `compute_distances(rows, columns)`, on the device of the reference."""
    check_table(n, n_others, max_memory, reference)
    xp, on_host = arrays.namespace(reference), arrays.is_host(reference)
    n_threads = resolve_threads(threads) if on_host else 1
    table, step = xp.empty((n, n_others)), max(1, (BLOCK if on_host else DEVICE_BLOCK) // (n_others * width))

    def fill(begin: int) -> int:
        rows, columns = slice(begin, min(begin + step, n)), slice(begin if is_symmetric else 0, n_others)
        block = compute_distances(rows, columns)
        if is_symmetric:
            n_rows = len(block)
            upper = xp.triu(block[:, :n_rows], 1)
            block[:, :n_rows] = upper + upper.T
            table[columns, rows] = block.T
        table[rows, columns] = block
        return len(block)

    begins, n_filled = iter(range(0, n, step)), 0
    with TerminalProgress() as progress, ThreadPoolExecutor(n_threads) as pool:
        while wave := list(itertools.islice(begins, 2 * n_threads)):  # interrupts are handled between two waves
            n_filled += sum(map(fill, wave) if n_threads == 1 else pool.map(fill, wave))
            if progress is not None:
                progress(n_filled / n)
    return table


def euclidean_table(points: Any, other_points: Any | None, max_memory: Any, threads: int | None) -> Array:
    """Return the Euclidean distances between points, or between points and other points."""
    left = arrays.to_compute_device(points, np.float64)
    right = (
        left if other_points is None else arrays.to_compute_device(asarray_on_device_of(other_points, left), np.float64)
    )
    xp = arrays.namespace(left)

    def compute_distances(rows: slice, columns: slice) -> Array:
        if arrays.is_host(left):
            return scipy.spatial.distance.cdist(left[rows], right[columns])
        return xp.linalg.norm(left[rows, None, :] - right[None, columns, :], axis=2)

    return fill_table(
        len(left),
        len(right),
        1 if arrays.is_host(left) else left.shape[1],
        left,
        compute_distances,
        is_symmetric=other_points is None,
        max_memory=max_memory,
        threads=threads,
    )
