"""Random features of kernels: finite sums phi(x) . phi(x') whose expectation over the frequencies is k(x, x').

`feature_sums` adds up what is made of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """phi(x) has the columns amplitude_f prod_l (<x, projection_lf> + offset_lf) cos <w_f, x>, and the same with sines.

    The cosines of all F frequencies w_f come first, then their sines. The feature kernel is <phi(x), phi(x')>.

    Parameters
    ----------
    frequencies : array, shape (F, d)
        In float64, d columns as the points have.
    amplitudes : array, shape (F,)
        Factors of the frequencies.
    projections : array, shape (L, F, d)
        Directions of the further factors; L = 0 for radial kernels.
    offsets : array, shape (L, F)
        What is added to the projections.
    groups : array, shape (F,)
        Integers 0..n_groups-1, ascending: the features of each group are independent of the others', and the kernel of
        each has the expectation k.
    """

    frequencies: np.ndarray
    amplitudes: np.ndarray
    projections: np.ndarray
    offsets: np.ndarray
    groups: np.ndarray

    @property
    def n_columns(self) -> int:
        """The length of phi(x): twice the number of frequencies."""
        return 2 * len(self.frequencies)

    @property
    def n_groups(self) -> int:
        """How many independent groups the frequencies are in."""
        return int(self.groups[-1]) + 1
