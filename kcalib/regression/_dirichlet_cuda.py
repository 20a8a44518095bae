"""The sums of the Dirichlet kernel ratio on NVIDIA GPUs: compiles src/cuda/dirichlet.cu and launches it.

What `_native.class_shares` and `_native.log_normalisers` are for NumPy arrays. Called by `dirichlet_kde`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.cuda import Program, define, tensor_float

FILES = ("include/kcalib/math.h", "include/kcalib/log_gamma.h", "cuda/dirichlet.cu")
TILE, LANES = 64, 16  # of a block: queries, also of training samples, and rows or columns of its threads
GROUPS = 128  # of training samples, at most: enough blocks where there are few queries
PRODUCTS_FROM = 64  # features from which cuBLAS makes the inner products
PRODUCTS_BYTES = 2**29  # of the inner products of a launch
WORK = 2**40  # multiply-adds of a launch, at most: a part of a second where float64 is fast, seconds where it is not
FEWEST_ROWS = 1024  # of a launch, if its sums fit
SUMS_BYTES = 2**28  # of the sums of a launch


def program(dtype: str) -> Program:
    """Return what is compiled: costs and weights are in "float64" or "float32"."""
    real = f"-DKCALIB_REAL={'float' if dtype == 'float32' else 'double'}"
    return Program(FILES, (real, *define(TILE=TILE, LANES=LANES)))


PROGRAMS = {dtype: program(dtype) for dtype in ("float64", "float32")}


def class_shares(
    queries: Array,
    training: Array,
    offsets: Array,
    labels: Array,
    n_classes: int,
    leave_one_out: bool,
    progress: Callable[[float], None] | None,
) -> tuple[Array, Array]:
    """Return each class's part of the weights, shape (queries, n_classes), and the logarithms of their sums.

    Weights are exp(-<training_i, query_j> - offset_i). The labels are int32 and ascend. With `leave_one_out` the
    queries are the training samples, and do not see themselves. Queries pass some at a time, which are waited for, so
    that it can be interrupted. Their results do not depend on each other, but for rounding by cuBLAS.
    """
    import cupy

    xp = arrays.namespace(queries)
    compiled = PROGRAMS[str(queries.dtype)]
    (n, n_features), n_training = queries.shape, len(training)
    queries, training = xp.ascontiguousarray(queries), xp.ascontiguousarray(training)
    tiles = -(-n_training // TILE)
    per_group = -(-tiles // GROUPS)
    groups = -(-tiles // per_group)
    places = n_classes + groups
    step = _rows(n_training, n_features, places)
    by_cublas = n_features >= PRODUCTS_FROM and TILE * n_training * queries.itemsize <= PRODUCTS_BYTES
    by_cublas = by_cublas and not (queries.dtype == xp.float32 and tensor_float())
    if by_cublas:
        step = min(step, PRODUCTS_BYTES // (n_training * queries.itemsize * TILE) * TILE)
    shares, log_sums = xp.zeros((n, n_classes), dtype=xp.float64), xp.empty(n, dtype=xp.float64)
    for begin in range(0, n, step):
        end = min(n, begin + step)
        count, self_index = np.int64(end - begin), np.int64(begin if leave_one_out else -n)
        sums = xp.zeros((places, end - begin), dtype=xp.float64)
        floors = xp.full((places, end - begin), 1e30, dtype=xp.float64)
        block = queries[begin:end]
        products = xp.ascontiguousarray(block @ training.T) if by_cublas else None
        samples = training, offsets, labels, np.int64(n_training), np.int64(n_features)
        grid = -(-(end - begin) // TILE), groups
        arguments = products, block, count, *samples, self_index, np.int64(per_group), sums, floors
        compiled.launch("kcalib_class_sums", grid, arguments)
        outputs = shares[begin:end], log_sums[begin:end]
        sizes = np.int64(n_training), np.int64(per_group), np.int64(groups), np.int64(n_classes)
        grid = compiled.blocks(end - begin), 1
        compiled.launch("kcalib_class_shares", grid, (sums, floors, count, labels, *sizes, *outputs))
        if n > step:
            cupy.cuda.get_current_stream().synchronize()
        if progress is not None:
            progress(end / n)
    return shares, log_sums


def log_normalisers(x: Array) -> Array:
    """Return log Gamma(m + sum_k x_ik) - sum_k log Gamma(1 + x_ik) for each row of float64 x >= 0, shape (n, m)."""
    xp = arrays.namespace(x)
    (n, m), out = x.shape, xp.empty(len(x), dtype=xp.float64)
    arguments = (xp.ascontiguousarray(x), np.int64(n), np.int64(m), out)
    PROGRAMS["float64"].launch("kcalib_log_normalisers", (-(-n // LANES), 1), arguments)
    return out


def _rows(n_training: int, n_features: int, places: int) -> int:
    """Return the queries of a launch."""
    by_work = max(FEWEST_ROWS, WORK // (n_training * (n_features + 30)))
    return max(TILE, min(by_work, SUMS_BYTES // (16 * places)) // TILE * TILE)
