"""Tables of distances between two sets of predictions, filled block by block.

A table takes n n' numbers (`check_table`); on the host threads fill its blocks (`fill`), on a GPU some rows are
made at a time (`in_rows`). `euclidean_table` is that of points. Called by `distances` and `mixture_distances`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._backend.special import beside_computed
from kcalib._backend.threads import TerminalProgress, resolve_threads

BLOCK = 2**15  # numbers in the largest arrays of one block of pairs
DEVICE_BLOCK = 2**24
Block = Callable[[], int]  # does its part and returns how much of the total it is


def check_table(n: int, n_others: int, max_memory: Any, beside: Array, copies: int = 1) -> None:
    check_memory(
        copies * 8 * n * n_others,
        max_memory,
        f"distances between {n} and {n_others} predictions",
        "take fewer predictions, or a metric whose distances are not stored",
        beside,
    )


def euclidean_table(points: Any, others: Any, max_memory: Any, threads: int | None) -> Array:
    left = arrays.where_computed(points, np.float64)
    right = arrays.where_computed(beside_computed(others, left), np.float64)
    check_table(len(left), len(right), max_memory, left)
    if not arrays.is_host(left):
        xp = arrays.namespace(left)
        norms = partial(xp.linalg.norm, axis=2)
        size = len(left), len(right), left.shape[1]
        return in_rows(*size, xp, lambda rows: norms(left[rows, None, :] - right[None, :, :]))
    table = np.empty((len(left), len(right)))
    step = max(1, BLOCK // len(right))

    def block(begin: int) -> int:
        rows = slice(begin, begin + step)
        scipy.spatial.distance.cdist(left[rows], right, out=table[rows])
        return len(table[rows])

    blocks = (partial(block, begin) for begin in range(0, len(left), step))
    fill([(blocks, resolve_threads(threads))], len(left))
    return table


def in_rows(n: int, n_others: int, width: int, xp: Any, distances: Callable[[slice], Array]) -> Array:
    """A table on a device, some rows at a time; `distances` takes arrays of rows x n_others x width numbers."""
    table, step = xp.empty((n, n_others)), max(1, DEVICE_BLOCK // (n_others * width))
    for begin in range(0, n, step):
        rows = slice(begin, min(begin + step, n))
        table[rows] = distances(rows)
    return table


def fill(jobs: Iterable[tuple[Iterator[Block], int]], total: int) -> None:
    """Do the blocks of each job on so many threads, and show which share of the total is done."""
    done = 0
    with TerminalProgress() as progress:
        for blocks, threads in jobs:
            for count in _run(blocks, threads):
                done += count
                if progress is not None:
                    progress(done / total)


def _run(blocks: Iterator[Block], threads: int) -> Iterator[int]:
    """Do the blocks, some at a time: an interrupt comes through between them."""
    if threads == 1:
        for block in blocks:
            yield block()
        return
    with ThreadPoolExecutor(threads) as pool:
        while wave := list(itertools.islice(blocks, 2 * threads)):
            yield sum(pool.map(lambda block: block(), wave))
