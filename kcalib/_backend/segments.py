"""Deterministic sums over segments on a GPU, like `bincount` of NumPy on the host.

`bincount` of CuPy adds up weights by atomic operations in any order.
"""

from __future__ import annotations

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.cuda import Program

COLUMNS = 16  # of a block


class Segments:
    """Rows `order`, shape (n,); segment s has those from begins[s] to begins[s + 1]. CuPy arrays of int64."""

    def __init__(self, order: Array, begins: Array) -> None:
        self._order, self._begins = order, begins
        self._count = int(begins.shape[0]) - 1

    @classmethod
    def of(cls, numbers: Array, count: int) -> Segments:
        """Return segments for the segment number of each row, shape (n,), 0 to `count` - 1."""
        xp = arrays.namespace(numbers)
        order = xp.astype(xp.argsort(numbers), xp.int64, copy=False)
        begins = xp.searchsorted(xp.take(numbers, order), xp.arange(count + 1, dtype=numbers.dtype))
        return cls(order, xp.astype(begins, xp.int64, copy=False))

    @classmethod
    def of_runs(cls, sizes: Array) -> Segments:
        """Return consecutive segments of these sizes."""
        xp = arrays.namespace(sizes)
        begins = xp.zeros(sizes.shape[0] + 1, dtype=xp.int64)
        begins[1:] = xp.cumsum(sizes)  # of integers: exact in any order
        return cls(xp.arange(int(begins[-1]), dtype=xp.int64), begins)

    def sums(self, values: Array, scales: Array | None = None) -> Array:
        """Return sums over segments of scales[:, None] * values, shape (n, c) or (n,); shape (count, c) or (count,)."""
        xp, width = arrays.namespace(values), 1 if values.ndim == 1 else int(values.shape[1])
        scales = xp.ones(values.shape[0], dtype=xp.float64) if scales is None else scales
        numbers, scales = (xp.ascontiguousarray(a, dtype=xp.float64) for a in (values, scales))
        out = xp.empty((self._count, *values.shape[1:]), dtype=xp.float64)
        span = min(COLUMNS, 1 << max(0, width - 1).bit_length())
        if out.size:
            arguments = (numbers, scales, self._order, self._begins, np.int64(width), np.int64(span), out)
            segments_program().launch("kcalib_segment_sums", (self._count, -(-width // span)), arguments)
        return out


def segments_program() -> Program:
    return Program(("cuda/segments.cu",), ())
