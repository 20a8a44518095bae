"""Sums of H over many labellings by comparisons of labels instead of products of features."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kcalib import _native
from kcalib._pairs.backends.base import Backend
from kcalib._pairs.reductions import LabelMatches, Products


def label_forms(
    backend: Backend, probabilities: np.ndarray, labels: np.ndarray, batches: Iterable[np.ndarray]
) -> tuple[float, np.ndarray]:
    """Return sum_{i != j} H_ij <e_i, e_j>, e = onehot(y) - p, for labels y, and for others in batches (n, draws).

    For a symmetric problem with features 1 and float64 `probabilities`.

    With d = onehot(y) - onehot(t) and a = onehot(t) - p for the most probable labels t, the sum is that of H_ij (1(y_i
    = y_j) - 1(t_i = t_j)), minus 2 <d, H p>, plus <a, H a>: a comparison per pair instead of m products. If labels are
    the most probable ones, all differences are exactly 0: H is rounded to multiples of a power of two, whose sums by
    labels are exact within a block.
    """
    n, m = probabilities.shape
    options = _native.RunOptions(backend.threads or 1)
    likely, errors = np.argmax(probabilities, axis=1), -probabilities
    errors[np.arange(n), likely] += 1
    # The given labels join the first batch: a separate sweep takes as long as a hundred draws.
    first_columns = [np.stack([likely, labels], axis=1)]
    totals: list[np.ndarray] = []
    products = Products(np.concatenate([probabilities, errors], axis=1), rounded=True)
    table = np.empty(0)
    of_likely = first = 0.0
    for batch in batches:
        label_columns = np.concatenate([*first_columns, batch], axis=1, dtype=np.int32)
        if first_columns:
            of_pairs, matches = backend.sweep([products, LabelMatches(label_columns)])
            of_likely, first = float(np.sum(errors * of_pairs[:, m:])), matches[0]
            table = of_pairs[:, :m] - np.take_along_axis(of_pairs[:, :m], likely[:, None], axis=1)
            first_columns = []
        else:
            (matches,) = backend.sweep([LabelMatches(label_columns)])
        totals.append(matches - first - 2 * _native.label_sums(table, label_columns, options) + of_likely)
    sums = np.concatenate(totals)
    return float(sums[1]), sums[2:]
