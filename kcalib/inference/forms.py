"""The statistic for many drawn features at a time: quadratic forms of the kernel's matrix K.

`exact` has features of drawn labels and targets, `resampling` features of random multipliers.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib.inference.quadratic import quadratic_forms
from kcalib.inference.task import Task

BATCH_BYTES = 2**26


def by_forms(task: Task, features: Iterable[Array], rank: int) -> np.ndarray:
    """sum_{i != j} K_ij <a_i, a_j> for each draw of features a; each batch has `rank` columns for a draw."""
    draws = []
    for batch in features:
        totals = quadratic_forms(task.kernel_backend, batch) - _own_forms(task.kernel_diagonal, batch)
        draws.append(arrays.to_host(totals.reshape(-1, rank).sum(axis=1)))
    return np.concatenate(draws)


def _own_forms(kernel_diagonal: Array, features: Array) -> Array:
    """sum_i K_ii w_i^2 for each column w of the features."""
    if arrays.is_host(features):
        return np.einsum("i,ij,ij->j", kernel_diagonal, features, features)
    return (kernel_diagonal[:, None] * features * features).sum(axis=0)


def draws_at_once(n: int, rank: int) -> int:
    """Draws with so many columns of features each that make a batch."""
    return max(1, BATCH_BYTES // (8 * n * rank))
