"""Resampling weights where the data are: on a GPU made there, otherwise on the host, with the same bits.

Called by the tests and intervals that multiply weights with vectors of theirs; operators take `Weights` as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._operators.cuda import drawn_weights
from kcalib._resampling import Weights


def weights_beside(
    reference: Array, weights: Weights, begin: int = 0, end: int | None = None, *, threads: Any = None
) -> Array:
    """`weights.values(begin, end)`, float64, shape (n, end - begin): a CuPy array if `reference` is one, or NumPy's."""
    end = weights.n_replicates if end is None else end
    if _arrays.is_cuda(reference):
        return drawn_weights(weights, begin, end, end - begin, "float64")
    return weights.values(begin, end, threads=threads)


def batches(
    reference: Array, weights: Weights, n_bytes: int, *, threads: Any = None
) -> Iterator[tuple[int, int, Array]]:
    """(begin, end, weights of the replicates in between), each of at most about `n_bytes`."""
    step = max(1, n_bytes // (8 * weights.n))
    for begin in range(0, weights.n_replicates, step):
        end = min(begin + step, weights.n_replicates)
        yield begin, end, weights_beside(reference, weights, begin, end, threads=threads)
