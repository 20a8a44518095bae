"""The block estimate of the SKCE of samples that are read in pieces: each piece holds whole blocks.

`skce` calls `blocks_of_source`, and hands it what makes a checked piece, its pair problem and its estimate.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend.options import OptionError, check_integer
from kcalib._input.data import Data
from kcalib._input.source import Source, rows_of
from kcalib._packing import Packed
from kcalib._packing.packed import name_of
from kcalib.kernels import Kernel
from kcalib.results import SKCEResult
from kcalib.target_kernels import TargetKernel

PIECE = 65_536  # samples that are read at a time, about: as many whole blocks
FIRST = 2000  # samples whose median distance is a bandwidth that is not given


@dataclass
class _Mean:
    """Mean of block estimates, and the sum of their squared deviations from it."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, other: _Mean) -> None:
        count = self.count + other.count
        difference = other.mean - self.mean
        self.squares += other.squares + difference * difference * (self.count * other.count / count)
        self.mean += difference * (other.count / count)
        self.count = count

    @property
    def standard_error(self) -> float | None:
        return None if self.count < 2 else math.sqrt(self.squares / (self.count - 1) / self.count)


def blocks_of_source(
    source: Source,
    block_size: int | None,
    kernel: Kernel | None,
    prepared: Callable[[Any, Any], Data],
    packed: Callable[[Data, Kernel | None, TargetKernel], Packed],
    estimated: Callable[[Data, Packed, int], SKCEResult],
) -> SKCEResult:
    """The mean of the estimates of all whole blocks, with the bandwidth of the first samples where none is given."""
    start = time.perf_counter()
    size = _size(source, block_size)
    mean, n, first, from_first = _Mean(), 0, None, ""
    target: TargetKernel = None  # with the bandwidth of the first samples
    for true, pred in source.chunks(max(1, PIECE // size) * size):
        n_used = len(true) // size * size
        n += len(true)
        if not n_used:
            continue
        data = prepared(true[:n_used], rows_of(pred, slice(n_used)))
        if first is None:
            first_samples = data.take(np.arange(min(FIRST, n_used)))
            packed_first = packed(first_samples, kernel, None)
            kernel, target = packed_first.kernel, packed_first.target.resolved_kernel
            sources = [*map(name_of, packed_first.medians)]
            sources += [f"{name_of(median)} of one draw of each" for median in packed_first.target.medians]
            from_first = f"{' and '.join(sources)} of the first {first_samples.n} samples" if sources else ""
            if any(median.value == 0 for median in packed_first.medians):  # others may differ
                from_first = f"no median: the first {first_samples.n} predictions are identical"
        estimate = estimated(data, packed(data, kernel, target), size)
        count = n_used // size
        spread = 0.0 if estimate.standard_error is None else estimate.standard_error**2 * count * (count - 1)
        mean.add(_Mean(count, estimate.value, spread))
        first = estimate if first is None else first
    if first is None:
        raise ValueError(f"there are {n} samples, expected at least the {size} of a block")
    return dataclasses.replace(
        first,
        value=mean.mean,
        standard_error=mean.standard_error,
        n_samples=n,
        n_samples_used=mean.count * size,
        bandwidth_source=from_first or first.bandwidth_source,
        seconds=time.perf_counter() - start,
    )


def _size(source: Source, block_size: int | None) -> int:
    if block_size is not None:
        return check_integer("block_size", block_size, 2, source.n, ": a block holds 2 to n samples")
    if source.n is None:
        raise OptionError(
            "block_size", "is None, but how many samples there are is not known before they are read; give it"
        )
    return max(2, math.isqrt(source.n))
