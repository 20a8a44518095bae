"""Sums over segments on a GPU, with the same bits from run to run; NumPy's `bincount` is their counterpart on the host.

CuPy's `bincount` adds up weights by atomic operations, in any order. Called where samples are in bins.
"""

from __future__ import annotations

import numpy as np

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._cuda import Program

THREADS, COLUMNS = 256, 16  # of a block, as in segments.cu


class Segments:
    """Rows by the number of their segment, `segments`, shape (n,), which is 0 to `count` - 1: a CuPy array."""

    def __init__(self, segments: Array, count: int) -> None:
        xp = _arrays.namespace(segments)
        self._count = count
        self._order = xp.astype(xp.argsort(segments), xp.int64, copy=False)
        begins = xp.searchsorted(xp.take(segments, self._order), xp.arange(count + 1, dtype=segments.dtype))
        self._begins = xp.astype(begins, xp.int64, copy=False)

    def sums(self, values: Array, scales: Array) -> Array:
        """Those of scales[:, None] * values, shape (n, c), over each segment, shape (count, c)."""
        xp, width = _arrays.namespace(values), int(values.shape[1])
        values, scales = (xp.ascontiguousarray(a, dtype=xp.float64) for a in (values, scales))
        out = xp.empty((self._count, width), dtype=xp.float64)
        span = min(COLUMNS, 1 << max(0, width - 1).bit_length())
        if out.size:
            arguments = (values, scales, self._order, self._begins, np.int64(width), np.int64(span), out)
            segments_program().launch("kcalib_segment_sums", (self._count, -(-width // span)), THREADS, arguments)
        return out


def segments_program() -> Program:
    return Program(("cuda/segments.cu",), ())
