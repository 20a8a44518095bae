"""Counts by their distribution functions; src/include/kcalib/families.staircases.h says what their columns are.

Embedded they are quantile functions in L2, whose distances are 2-Wasserstein distances, and whose inner products are
those of counts that go up together. Both are integrals of step functions: between neighbours among all the places where
one of the two steps, neither does.
"""

from __future__ import annotations

from typing import ClassVar

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._pairs import problem
from kcalib._pairs.families._family import PointFamily
from kcalib._pairs.problem import Mixtures

COPIES = 12  # of the columns of two rows that sorting takes


class Staircases(PointFamily):
    name: ClassVar[problem.PointFamily] = "staircases"
    title = "counts"

    def elements(self, n_dims: int, n_components: int) -> int:
        return COPIES * n_dims

    def point_products(self, mixtures: Mixtures, left: Array, right: Array) -> Array:
        """Return E X X', the counts as numbers."""
        lengths, n_left, n_right = _together(left, right)
        return arrays.namespace(lengths).sum(lengths * (n_left + left[..., :1]) * (n_right + right[..., :1]), axis=-1)

    def squared_between(self, mixtures: Mixtures, left: Array, right: Array) -> Array:
        left, right = left[..., 1:], right[..., 1:]
        lengths, n_left, n_right = _together(left, right)
        offset = left[..., :1] - right[..., :1]
        return arrays.namespace(lengths).sum(lengths * (n_left - n_right + offset) ** 2, axis=-1)


def _together(left: Array, right: Array) -> tuple[Array, Array, Array]:
    """Return the lengths between levels where N or N' has a step, N and N', from 1 down to 0."""
    xp = arrays.namespace(left)
    a, b = xp.broadcast_arrays(left[..., 1:], right[..., 1:])
    below = -xp.concat([a, b], axis=-1)
    of_left = xp.astype(xp.argsort(below, axis=-1) < a.shape[-1], below.dtype)
    below = xp.sort(below, axis=-1)
    edge = xp.zeros_like(below[..., :1])
    lengths = xp.concat([below, edge], axis=-1) - xp.concat([edge - 1, below], axis=-1)
    n_left, n_right = (xp.concat([edge, _sums(steps)], axis=-1) for steps in (of_left, 1 - of_left))
    return lengths, n_left, n_right


def _sums(numbers: Array) -> Array:
    """Return cumulative sums along the last axis; `cumulative_sum` is not everywhere."""
    xp, step = arrays.namespace(numbers), 1
    while step < numbers.shape[-1]:
        numbers = xp.concat([numbers[..., :step], numbers[..., step:] + numbers[..., :-step]], axis=-1)
        step *= 2
    return numbers
