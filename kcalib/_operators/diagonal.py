"""The diagonal of H, shared by the operators: it never comes from an expansion."""

from __future__ import annotations

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._problem import PairProblem


def diagonal(problem: PairProblem) -> Array:
    """H_ii = k(x_i, x_i) <a_i, a_i>, float64; every radial profile is 1 (a bare distance 0) at distance 0."""
    xp = _arrays.namespace(problem.left.points)
    points = xp.astype(problem.left.points, xp.float64)
    marks = xp.astype(problem.left.marks, xp.float64)
    square_norm = xp.sum(points * points, axis=1)
    total = xp.zeros_like(square_norm)
    for term in problem.kernel:
        value = xp.full_like(square_norm, term.coefficient)
        for factor in term.factors:
            if factor.profile == "identity":
                value = value * (square_norm if factor.metric == "dot" else 0.0)
        total = total + value
    return total * xp.sum(marks * marks, axis=1)
