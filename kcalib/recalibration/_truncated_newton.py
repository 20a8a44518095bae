"""Newton's method for convex functions of many parameters, by products with the Hessian.

A step solves the Newton equations by conjugate gradients with a preconditioner, the more exactly the smaller it is.
Called for maps of many classes (`_multinomial`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Backend = Callable[[np.ndarray], np.ndarray]  # linear; parameters are of any shape

MOST_STEPS = 100
MOST_PRODUCTS = 250  # of a step
DECREMENT = 1e-13  # of convergence: twice what the function is above its lowest value, beside it
COARSE = 0.1  # relative residual of the equations, at most


class Lowest(NamedTuple):
    """Where a function is lowest."""

    place: np.ndarray
    n_iterations: int
    converged: bool


def minimise_by_products(
    value_of: Callable[[np.ndarray], float],
    value_and_gradient: Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]],
    hessian_at: Callable[[np.ndarray], Backend],
    preconditioner_at: Callable[[np.ndarray], Backend],
    start: np.ndarray,
) -> Lowest:
    """The lowest point of a positive convex function, from `start` on.

    The third that `value_and_gradient` returns says where the Hessian, and its preconditioner, are taken.
    """
    place = start
    value, gradient, state = value_and_gradient(place)
    for iteration in range(MOST_STEPS):
        step = _solved(hessian_at(state), preconditioner_at(state), -gradient)
        slope = float(np.sum(gradient * step))
        if -slope <= DECREMENT * value:
            return Lowest(place, iteration, True)
        length = 1.0
        while not value_of(place + length * step) <= value + 1e-4 * length * slope:
            length /= 2
            if length < 2.0**-40:  # rounding: values no longer tell that the function falls
                return Lowest(place, iteration, -slope <= math.sqrt(DECREMENT) * value)
        place = place + length * step
        value, gradient, state = value_and_gradient(place)
    return Lowest(place, MOST_STEPS, False)


def _solved(hessian: Backend, preconditioner: Backend, right: np.ndarray) -> np.ndarray:
    """x with H x = b, to a residual that falls with b: steps are Newton's where these are small."""
    x, residual = np.zeros_like(right), right
    direction = preconditioned = preconditioner(residual)
    size = float(np.sum(residual * preconditioned))
    enough = min(COARSE, math.sqrt(size)) ** 2 * size
    for _ in range(MOST_PRODUCTS):
        if size <= enough:
            break
        product = hessian(direction)
        curvature = float(np.sum(direction * product))
        if not curvature > 0:  # flat to rounding, as of labels that are found with certainty
            break
        length = size / curvature
        x, residual = x + length * direction, residual - length * product
        preconditioned = preconditioner(residual)
        size, before = float(np.sum(residual * preconditioned)), size
        direction = preconditioned + size / before * direction
    return x
