"""Differences at test locations of targets drawn from the predictions, among which `cme` ranks its statistic."""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple

import numpy as np

from kcalib import _native
from kcalib._backend import arrays, linalg
from kcalib._backend.random import draw_label_batches
from kcalib._backend.threads import run_options
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._packing import Packed
from kcalib._pairs.backends.base import Backend
from kcalib.inference.location_moments import (
    BLOCK_ELEMENTS,
    DRAWS_AT_ONCE,
    blocks,
    of_kernel_alone,
    values_of_classes,
)

LABELS_AT_ONCE, SUMS_AT_ONCE = 2**24, 2**20  # that are drawn, and of them
NULL_DRAWS = 2**40  # replicates from here on are null draws, those before make covariances


@singledispatch
def drawn_differences(
    data: Data, locations: Data, packed: Packed, backend: Backend, count: int, seed: int
) -> np.ndarray:
    """Mean differences at the locations of targets drawn from the predictions, shape (J, count)."""
    at_once = min(count, max(1, DRAWS_AT_ONCE // data.n))
    rows = arrays.like(np.tile(np.arange(data.n), at_once), data.reference)
    repeated, packed_samples = data.take(rows), packed.take(rows)
    parts = []
    for r in range(-(-count // at_once)):
        packed_draw = packed_samples.with_targets(repeated.draw(seed, NULL_DRAWS + r))
        backend_of_draw = backend.like(packed_draw.problem)
        parts_of = [block for _, block in blocks(backend_of_draw)]
        z = arrays.namespace(parts_of[0]).concatenate(parts_of, axis=1)
        parts.append(arrays.to_host(z.reshape(len(z), at_once, data.n).mean(axis=2)))
    return np.concatenate(parts, axis=1)[:, :count]


@drawn_differences.register
def _(
    data: Classification, locations: Classification, packed: Packed, backend: Backend, count: int, seed: int
) -> np.ndarray:
    """Beside those of the most probable labels, so that nothing is lost where all others are improbable."""
    values, groups = values_of_classes(locations, packed)
    p = arrays.to_compute_device(data.probabilities)
    xp = arrays.namespace(p)
    kernels = [kernel for _, kernel in blocks(of_kernel_alone(packed, backend))]
    kernel = arrays.asarray_like(xp.concatenate(kernels, axis=1), p)
    values, of_class = arrays.like(values, p), arrays.like(groups, p)
    likely = xp.argmax(p, axis=1)
    top = of_class[likely]
    improbable = xp.where(xp.arange(data.m)[None, :] == likely[:, None], 0.0, p)
    # A_jt - sum_c p_c A_jc at the most probable label t.
    at_top = values[:, top]
    promised = at_top * xp.sum(improbable, axis=1)[None, :]
    promised -= linalg.matmul(values[:, of_class], improbable.T)
    constant = xp.sum(kernel * promised, axis=1)
    if arrays.is_host(p):
        threads = backend.threads
        at_once = max(1, min(LABELS_AT_ONCE // data.n, SUMS_AT_ONCE // len(values)))
        changes = _Changes.of(kernel, values[:, of_class], likely)
        batches = draw_label_batches(p, count, seed, at_once=at_once, threads=threads)
        return (
            np.concatenate([constant[:, None] + changes.sums(labels, threads) for labels in batches], axis=1) / data.n
        )
    result = []
    for labels in draw_label_batches(p, count, seed, at_once=max(1, BLOCK_ELEMENTS // data.n)):
        groups_of_labels = of_class[labels]
        changed = groups_of_labels != top[:, None]
        sums = constant[:, None] - (kernel * at_top) @ changed.astype(np.float64)
        for group in range(values.shape[1]):
            is_in_group = ((groups_of_labels == group) & changed).astype(np.float64)
            sums = sums + values[:, group][:, None] * (kernel @ is_in_group)
        result.append(arrays.to_host(sums) / data.n)
    return np.concatenate(result, axis=1)


class _Changes(NamedTuple):
    """What labels other than the most probable ones change at the locations; on the host."""

    kernel: np.ndarray  # (n, width), width a multiple of 8 that is at least J
    values: np.ndarray  # (m, width)
    likely: np.ndarray  # int32, (n,)
    n_locations: int

    @classmethod
    def of(cls, kernel: np.ndarray, values: np.ndarray, likely: np.ndarray) -> _Changes:
        """Of the kernel's values (J, n) and those of the classes (J, m)."""
        n_locations = len(values)
        rows, columns = (np.zeros((part.shape[1], -(-n_locations // 8) * 8)) for part in (kernel, values))
        rows[:, :n_locations], columns[:, :n_locations] = kernel.T, values.T
        return cls(rows, columns, likely.astype(np.int32), n_locations)

    def sums(self, labels: np.ndarray, threads: int | None) -> np.ndarray:
        """Of labels (n, draws): shape (J, draws)."""
        with run_options(threads) as options:
            return _native.changed_sums(self.kernel, self.values, self.likely, labels, options)[:, : self.n_locations].T
