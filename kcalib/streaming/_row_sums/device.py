"""Sums over rows where the rows are: by functions of the array API, for arrays on a GPU, where the sums stay.

`tally_beside` and `sums_beside` make of rows on a device what `tally` and `kernel_sums` make of those on the host,
the same but for rounding. `DeviceSums` are added up on the device, and come to the host when they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import add

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.random import cumulative_sums, draw_labels, replicate_numbers
from kcalib._input.labels import Classification
from kcalib._packing.labels import sample_side
from kcalib._packing.variance import FiniteLaw, expected_lengths
from kcalib._pairs.feature_sums import feature_rows
from kcalib._pairs.problem import PairProblem, Side
from kcalib.estimators.binning import bin_numbers
from kcalib.estimators.scores import log_losses, square_residuals, top_label
from kcalib.streaming._row_sums.kernel_sums import BLOCK, DRAWN_BLOCK, DrawnSums, KernelSums, Machine
from kcalib.streaming._row_sums.tally import CELLS, Extremes, Tally

ROWS_AT_ONCE = 2**18  # probabilities of rows whose features are in memory at once
CHANGES_AT_ONCE = 2**23  # numbers of what draws change in a block, in memory at once


@dataclass(frozen=True, eq=False)
class DeviceSums:
    """Of rows on one device; of features those of whole blocks."""

    tally: Tally
    sums: KernelSums | None  # None before the first whole block

    def __add__(self, other: DeviceSums) -> DeviceSums:
        if self.sums is None or other.sums is None:
            return DeviceSums(self.tally + other.tally, other.sums if self.sums is None else self.sums)
        return DeviceSums(self.tally + other.tally, self.sums + other.sums)


def tally_beside(data: Classification, weights: Array, n_bins: int) -> Tally:
    """What `tally_of` counts, of rows with these weights."""
    xp, p = data.xp, data.probabilities
    confidence, correct = top_label(data)
    losses, squares = log_losses(data), square_residuals(data)
    of_row = (weights, correct, confidence, losses, squares, losses * losses, squares * squares)
    scores = xp.stack([weights, *(weights * one for one in of_row)], axis=1)
    columns = xp.arange(1 + data.m, device=arrays.device(p))
    values = xp.concat([confidence[:, None], p], axis=1)
    is_label = xp.astype(data.labels[:, None] == columns[None, 1:] - 1, p.dtype)
    hits = xp.concat([correct[:, None], is_label], axis=1)
    bins = bin_numbers(values, n_bins)
    w = weights[:, None] + xp.zeros_like(values)
    terms = xp.stack([w, w * values, w * hits, w * values * values, w * values * hits], axis=2)
    groups = xp.reshape(bins + columns[None, :] * n_bins, (-1,))
    cells = ExactSums.by_group(xp.reshape(terms, (-1, len(CELLS))), groups, (1 + data.m) * n_bins)
    # Bins of ascending confidences ascend.
    ascending = xp.sort(confidence)
    numbers = xp.arange(n_bins, dtype=bins.dtype, device=arrays.device(p))
    sorted_bins = bin_numbers(ascending, n_bins)
    begins, ends = (xp.searchsorted(sorted_bins, numbers, side=side) for side in ("left", "right"))
    counts = xp.astype(ends - begins, xp.int64)
    infinite = xp.full_like(xp.astype(counts, p.dtype), xp.inf)
    lowest = xp.where(counts > 0, xp.take(ascending, xp.clip(begins, 0, data.n - 1)), infinite)
    highest = xp.where(counts > 0, xp.take(ascending, xp.clip(ends - 1, 0, data.n - 1)), -infinite)
    weighted = int(xp.sum(xp.astype(weights != 1, xp.int64)))
    return Tally(
        weighted,
        ExactSums.over_rows(scores),
        cells.reshape(1 + data.m, n_bins, len(CELLS)),
        Extremes(counts, lowest, highest),
    )


def sums_beside(machine: Machine, data: Classification, weights: Array, first: int) -> KernelSums:
    """What `machine` adds up, of whole blocks of rows, of which the first has the number `first`."""
    step = max(1, ROWS_AT_ONCE // data.m // DRAWN_BLOCK) * DRAWN_BLOCK
    parts = []
    for begin in range(0, data.n, step):
        rows = slice(begin, min(begin + step, data.n))
        part = replace(
            data,
            labels=data.labels[rows],
            given=data.probabilities[rows, :],
            sample_weight=weights[rows],
        )
        parts.append(_sums_of_some(machine, part, first + begin))
    return reduce(add, parts)


def _sums_of_some(machine: Machine, data: Classification, first: int) -> KernelSums:
    xp, p, weights = data.xp, data.probabilities, data.sample_weight
    phi = feature_rows(machine.map, p)
    target_features = sample_side(data, machine.root, None).features
    half = phi.shape[1] // 2
    squares = phi[:, :half] ** 2 + phi[:, half:] ** 2
    norms = xp.sum(squares, axis=1)
    own = squares * xp.sum(target_features * target_features, axis=1)[:, None]
    law = FiniteLaw(xp.where(p > 0, p, xp.zeros_like(p)), machine.root, PairProblem(Side(p, p[:, :1]), None, ()))
    null_own = norms * weights * weights * expected_lengths(law)[0]

    def in_tiles(array: Array) -> Array:
        return xp.reshape(array, (-1, BLOCK, *array.shape[1:]))

    return KernelSums(
        ExactSums.over_rows(xp.matmul(xp.matrix_transpose(in_tiles(phi)), in_tiles(target_features))),
        ExactSums.over_rows(xp.sum(in_tiles(own), axis=1)),
        ExactSums.over_rows(xp.sum(in_tiles(null_own), axis=1)),
        _drawn(machine, p, phi, norms, first) if machine.options.n_resamples else None,
    )


def _drawn(machine: Machine, p: Array, phi: Array, norms: Array, first: int) -> DrawnSums:
    xp, (n, m) = arrays.namespace(p), p.shape
    columns = xp.arange(m, device=arrays.device(p))
    likely = columns[None, :] == xp.argmax(p, axis=1)[:, None]
    likely = likely & ((xp.max(p, axis=1, keepdims=True) >= 0.5) | (m == 2))
    base = xp.astype(likely, p.dtype) - p
    base_costs = norms * _lengths(machine, base)
    cumulative, options = cumulative_sums(p), machine.options
    uniforms = (replicate_numbers(options.seed, r, p, first).uniform(n) for r in range(options.n_resamples))
    labels = xp.stack([arrays.asarray_like(draw_labels(cumulative, one), p) for one in uniforms], axis=1)
    at_once = max(1, CHANGES_AT_ONCE // (DRAWN_BLOCK * m))
    parts = []
    for begin in range(0, n, DRAWN_BLOCK):
        rows = slice(begin, begin + DRAWN_BLOCK)
        transposed = xp.matrix_transpose(phi[rows, :])
        changes, own = [], []
        for draw in range(0, options.n_resamples, at_once):
            drawn = labels[rows, draw : min(draw + at_once, options.n_resamples)]
            is_label = drawn[:, :, None] == columns[None, None, :]
            moved = xp.astype(is_label, p.dtype) - xp.astype(likely[rows, :], p.dtype)[:, None, :]
            found = xp.matmul(transposed, xp.reshape(moved, (DRAWN_BLOCK, -1)))
            changes.append(xp.permute_dims(xp.reshape(found, (phi.shape[1], -1, m)), (1, 0, 2)))
            residuals = base[rows, :][:, None, :] + moved
            costs = norms[rows][:, None] * _lengths(machine, residuals) - base_costs[rows][:, None]
            own.append(xp.sum(costs, axis=0))
        parts.append(
            DrawnSums(
                ExactSums.of(xp.matmul(transposed, base[rows, :])),
                ExactSums.of(xp.sum(base_costs[rows])),
                ExactSums.of(xp.concat(changes)),
                ExactSums.of(xp.concat(own)),
            )
        )
    return reduce(add, parts)


def _lengths(machine: Machine, residuals: Array) -> Array:
    """|R^T e|^2 of residuals in the last axis."""
    xp = arrays.namespace(residuals)
    if machine.root is not None:
        residuals = xp.matmul(residuals, arrays.like(machine.root, residuals))
    return xp.sum(residuals * residuals, axis=-1)
