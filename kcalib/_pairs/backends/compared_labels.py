"""Sums of H over many labellings by comparisons of labels, in place of products of their marks.

`cpu` has them, and `kcalib.parallel` of its tiles; `inference.exact` asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from kcalib import _native

LabelForms = Callable[[np.ndarray, np.ndarray, Iterable[np.ndarray]], tuple[float, np.ndarray]]


class RoundedSums(Protocol):
    """Sums over the pairs i != j of a symmetric H, its entries rounded to whole units, which are always the same."""

    @property
    def threads(self) -> int | None:
        """Threads of passes over the samples."""

    def rounded_products(self, vectors: np.ndarray) -> np.ndarray:
        """H @ vectors."""

    def matches(self, labels: np.ndarray, *others: np.ndarray) -> np.ndarray:
        """Sums over the pairs with equal labels, for each column of `labels`, shape (n, columns), and of `others`."""


def label_forms(
    backend: RoundedSums, probabilities: np.ndarray, labels: np.ndarray, batches: Iterable[np.ndarray]
) -> tuple[float, np.ndarray]:
    """sum_{i != j} H_ij <e_i, e_j>, e = onehot(y) - p, of labels y, and of others in batches (n, draws).

    Of a symmetric problem with marks 1, float64 `probabilities`.

    With d = onehot(y) - onehot(t) and a = onehot(t) - p for the most probable labels t the sum is that of
    H_ij (1(y_i = y_j) - 1(t_i = t_j)), less 2 <d, H p>, plus <a, H a>: a comparison of a pair in place of m
    products. Where labels are the most probable ones all differences are 0 exactly: H is rounded to multiples of
    a power of two, the same ones throughout, whose sums by labels have no rounding in a block.
    """
    n, m = probabilities.shape
    sweep = _native.Sweep(backend.threads or 1, None, None)
    likely, errors = np.argmax(probabilities, axis=1), -probabilities
    errors[np.arange(n), likely] += 1
    products = backend.rounded_products(np.concatenate([probabilities, errors], axis=1))
    of_likely = float(np.sum(errors * products[:, m:]))
    table = products[:, :m] - np.take_along_axis(products[:, :m], likely[:, None], axis=1)

    def less_linear(sums: np.ndarray, some: np.ndarray) -> np.ndarray:
        return sums - first - 2 * _native.label_sums(table, some, sweep) + of_likely

    given = np.stack([likely, labels], axis=1).astype(np.int32)
    sums, first = np.empty(0), 0.0
    found: list[np.ndarray] = []
    for batch in batches:
        some = np.ascontiguousarray(batch, dtype=np.int32)
        if found:
            found.append(less_linear(backend.matches(some), some))
        else:  # those given come with the first ones: a sweep of their own takes as long as a hundred draws
            both = backend.matches(given, some)
            sums, first = both[:2], both[0]
            found.append(less_linear(both[2:], some))
    return float(less_linear(sums, given)[1]), np.concatenate(found)
