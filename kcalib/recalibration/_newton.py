"""Newton's method for convex functions of a few parameters, whose Hessian may be singular.

Called for all recalibrators that are fitted by the likelihood of more than one number. Steps have the smallest norm
where the Hessian says nothing, so that what the samples do not tell stays where it began.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

MAX_ITERATIONS = 200
DECREMENT = 1e-22  # of convergence: twice what the function is above its lowest value
ROUNDING_DECREMENT = 1e-10  # of convergence, where rounding hides whether a step goes down
SINGULAR = 1e-12  # eigenvalues of the scaled Hessian, beside the largest, that say nothing
ROUNDING = 2.0**-50

Objective = Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]  # value, gradient and Hessian


class Minimum(NamedTuple):
    """Where a function is lowest."""

    place: np.ndarray  # shape: (r,)
    value: float
    inverse: np.ndarray  # pseudo-inverse of the Hessian there, shape: (r, r)
    is_singular: bool
    n_iterations: int
    converged: bool


def minimise(objective: Objective, start: np.ndarray) -> Minimum:
    """The lowest point of a convex function, from `start` on."""
    place = np.asarray(start, dtype=np.float64)
    value, gradient, hessian = objective(place)
    for iteration in range(MAX_ITERATIONS):
        inverse, is_singular = pseudo_inverse(hessian)
        step = -inverse @ gradient
        decrement = max(0.0, -float(gradient @ step))
        if decrement <= DECREMENT * max(1.0, abs(value)):
            return Minimum(place, value, inverse, is_singular, iteration, True)
        length = _length(objective, place, step, value, decrement)
        if length is None:
            is_lowest = decrement <= ROUNDING_DECREMENT * max(1.0, abs(value))
            return Minimum(place, value, inverse, is_singular, iteration, is_lowest)
        place = place + length * step
        value, gradient, hessian = objective(place)
    inverse, is_singular = pseudo_inverse(hessian)
    return Minimum(place, value, inverse, is_singular, MAX_ITERATIONS, False)


def _length(objective: Objective, place: np.ndarray, step: np.ndarray, value: float, decrement: float) -> float | None:
    """The first of 1, 1/2, 1/4, ... that makes the function lower by its share, to rounding; None if none does."""
    length = 1.0
    while length > 2.0**-40:
        tried = objective(place + length * step)[0]
        if math.isfinite(tried) and tried <= value - 1e-4 * length * decrement + ROUNDING * abs(value):
            return length
        length /= 2
    return None


def pseudo_inverse(hessian: np.ndarray) -> tuple[np.ndarray, bool]:
    """Of a symmetric matrix without negative eigenvalues, and whether it is singular; units of parameters cancel."""
    scale = np.sqrt(np.maximum(np.diag(hessian), 0.0))
    inverse_scale = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    values, vectors = np.linalg.eigh(hessian * inverse_scale[:, None] * inverse_scale)
    kept = values > SINGULAR * max(float(values[-1]), 0.0)
    inverses = np.divide(1.0, values, out=np.zeros_like(values), where=kept)
    return (vectors * inverses) @ vectors.T * inverse_scale[:, None] * inverse_scale, not bool(kept.all())
