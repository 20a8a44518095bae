"""Rows of mixtures and positions in a table, for the engines on CPU and GPU.

Parameters within bounds, further columns for distances, and checks of positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs.families import POINT_FAMILIES
from kcalib._pairs.problem import Mixtures, PairProblem


def obstacle(problem: PairProblem) -> str | None:
    """Return what the engines have no formulas for, or None."""
    for mixtures in (problem.target, problem.predicted):
        if mixtures is None:
            continue
        most = _native.FAMILIES[mixtures.family].max_dims
        if most is not None and mixtures.n_dims > most:
            return f"{POINT_FAMILIES[mixtures.family].title} have {mixtures.n_dims} dimensions, more than {most}"
    return None


def bounded(mixtures: Mixtures, rows: Array, first: int) -> Array:
    """Return features or points with parameters within the bound of the family; `first`: columns of a term before
    components.

    Larger parameters, in units of the length scale of the target kernel, are equivalent to the bound, whose products
    neither overflow nor vanish: their factors are below the rounding of others.
    """
    xp, family = arrays.namespace(rows), _native.FAMILIES[mixtures.family]
    bound = family.bound[np.dtype(rows.dtype).name]
    if max(float(rows.max()), -float(rows.min())) <= bound:
        return rows
    clipped, width, d = xp.clip(rows, -bound, bound), mixtures.component_columns, mixtures.n_dims
    for term in range(0, rows.shape[1], first + mixtures.n_components * width):
        components = [term + first + k * width for k in range(mixtures.n_components)]
        weights = [*components, *((term, term + 1) if first else ())]  # also of the row and its observation
        clipped[:, weights] = rows[:, weights]
        if family.matrices:
            for begin in components:  # scale whole matrices, which stay positive definite
                matrix = slice(begin + 2 + d, begin + 2 + d + d * (d + 1) // 2)
                size = xp.max(xp.abs(rows[:, matrix]), axis=1, keepdims=True)
                clipped[:, matrix] = rows[:, matrix] * (bound / xp.maximum(size, bound))
    return clipped


def has_own_products(mixtures: Mixtures) -> bool:
    """Return whether distances come from products of points, with those with themselves in a further column."""
    return mixtures.n_components > 1 or not _native.FAMILIES[mixtures.family].apart


def check_positions(problem: PairProblem, table: Any) -> None:
    """Check that points are rows and columns of the table of distances."""
    for axis, side in enumerate((problem.left, problem.columns)):
        low, high = float(side.points.min()), float(side.points.max())
        if not 0 <= low <= high < table.shape[axis]:
            raise ValueError(f"positions in the table are {low} to {high}, expected 0 to {table.shape[axis] - 1}")
