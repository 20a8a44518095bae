"""The diagonal of H, shared by the backends: it never comes from an expansion."""

from __future__ import annotations

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs.mixtures import own_products
from kcalib._pairs.problem import PairProblem
from kcalib._pairs.profiles import PROFILES


def diagonal(problem: PairProblem, threads: int = 1) -> Array:
    """Return H_ii = k(x_i, x_i) <a_i, a_i>, float64."""
    kernel: float | Array = 0.0
    for term in problem.kernel:
        value: float | Array = term.coefficient
        for factor in term.factors:
            dot = factor.metric == "dot"
            value = value * (square_norms(problem.left.points, threads) if dot else PROFILES[factor.profile].at_zero)
        kernel = kernel + value
    if problem.target is not None:
        return kernel * own_products(problem.target, problem.left.features)
    return kernel * square_norms(problem.left.features, threads)


def square_norms(vectors: Array, threads: int) -> Array:
    """Return |v_i|^2 of the rows, float64; `threads` on the host."""
    if arrays.is_host(vectors):
        return _native.square_norms(arrays.as_compact(vectors, vectors.dtype), threads)
    xp = arrays.namespace(vectors)
    vectors = xp.astype(vectors, xp.float64, copy=False)
    return xp.sum(vectors * vectors, axis=1)
