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
DECREMENT = 1e-24  # of convergence: twice what the function is above its lowest value, beside 1 or its size
ROUNDING_DECREMENT = 1e-13  # from where on values are equal to rounding, and steps are taken while they get smaller
FLAT = 1e-150  # square root of a second derivative that says nothing: products of two inverses would overflow
SINGULAR = 1e-12  # eigenvalues of the scaled Hessian, beside the largest, that say nothing
ROUNDING = 2.0**-52
SCALES = np.concatenate([[1.0], np.logspace(-4, 0, 25)[:-1]])  # of scores, to begin with the best

Value = Callable[[np.ndarray], float]
Objective = Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]  # value, gradient and Hessian


class Minimum(NamedTuple):
    """Where a function is lowest."""

    place: np.ndarray  # shape: (r,)
    value: float
    inverse: np.ndarray  # pseudo-inverse of the Hessian there, shape: (r, r)
    is_singular: bool
    n_iterations: int
    converged: bool


def best_start(value: Value, identity: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Parameters that multiply all scores by one number, the best of a list.

    From there certain predictions do not hide that some of them are wrong: the second derivative would be 0.
    """
    starts = [np.where(weights > 0, scale * identity, identity) for scale in SCALES]
    return starts[int(np.argmin([value(parameters) for parameters in starts]))]


def minimise(value_of: Value, objective: Objective, start: np.ndarray) -> Minimum:
    """The lowest point of a convex function, from `start` on."""
    place, last = np.asarray(start, dtype=np.float64), math.inf
    value, gradient, hessian = objective(place)
    for iteration in range(MAX_ITERATIONS):
        inverse, is_singular = pseudo_inverse(hessian)
        step = -inverse @ gradient
        decrement = max(0.0, -float(gradient @ step)) / max(1.0, abs(value))
        is_close = decrement <= ROUNDING_DECREMENT
        is_higher = is_close and not value_of(place + step) <= value + 8 * ROUNDING * max(1.0, abs(value))
        if decrement <= DECREMENT or is_higher or (is_close and decrement >= 0.5 * last):
            return Minimum(place, value, inverse, is_singular, iteration, True)
        length = 1.0 if is_close else _length(value_of, place, step, value, decrement)
        if length is None:
            return Minimum(place, value, inverse, is_singular, iteration, False)
        place, last = place + length * step, decrement
        value, gradient, hessian = objective(place)
    inverse, is_singular = pseudo_inverse(hessian)
    return Minimum(place, value, inverse, is_singular, MAX_ITERATIONS, False)


def _length(value_of: Value, place: np.ndarray, step: np.ndarray, value: float, decrement: float) -> float | None:
    """The first of 1, 1/2, 1/4, ... that makes the function lower by its share, to rounding; None if none does."""
    length = 1.0
    while length > 2.0**-40:
        trial = value_of(place + length * step)
        if math.isfinite(trial) and trial <= value - 1e-4 * length * decrement + ROUNDING * max(1.0, abs(value)):
            return length
        length /= 2
    return None


def pseudo_inverse(hessian: np.ndarray) -> tuple[np.ndarray, bool]:
    """Of a symmetric matrix without negative eigenvalues, and whether it is singular; units of parameters cancel."""
    scale = np.sqrt(np.maximum(np.diag(hessian), 0.0))
    inverse_scale = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > FLAT)
    values, vectors = np.linalg.eigh(hessian * inverse_scale[:, None] * inverse_scale)
    is_regular = values > SINGULAR * max(float(values[-1]), 0.0)
    inverses = np.divide(1.0, values, out=np.zeros_like(values), where=is_regular)
    return (vectors * inverses) @ vectors.T * inverse_scale[:, None] * inverse_scale, not bool(is_regular.all())
