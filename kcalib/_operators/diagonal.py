"""The diagonal of H, shared by the operators: it never comes from an expansion."""

from __future__ import annotations

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._problem import PairProblem


def diagonal(problem: PairProblem) -> Array:
    """H_ii = k(x_i, x_i) <a_i, a_i>, float64; every radial profile is 1 (a bare distance 0) at distance 0."""
    square_marks = _square_norms(problem.left.marks)
    xp = _arrays.namespace(square_marks)
    kernel = xp.zeros_like(square_marks)
    for term in problem.kernel:
        value = xp.full_like(square_marks, term.coefficient)
        for factor in term.factors:
            if factor.profile == "identity":
                value = value * (_square_norms(problem.left.points) if factor.metric == "dot" else 0.0)
        kernel = kernel + value
    return kernel * square_marks


def _square_norms(vectors: Array) -> Array:
    xp = _arrays.namespace(vectors)
    vectors = xp.astype(vectors, xp.float64, copy=False)
    return xp.sum(vectors * vectors, axis=1)
