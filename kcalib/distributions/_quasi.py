"""Randomised quasi Monte Carlo points in the unit cube, a set for each distribution; families map them to draws.

`Distribution.quasi_sample` calls `sobol_points`, families whose draws are made from uniform numbers `random_points`.
"""

from __future__ import annotations

import numpy as np

from kcalib._backend.memory import check_memory

_BITS = 30  # of scipy.stats.qmc.Sobol's points


def sobol_points(n: int, size: int, n_dims: int, seed: int) -> np.ndarray:
    """n sets of `size` points, shape (n, size, n_dims), all above 0 and below 1, float64.

    One scrambled Sobol set (Matousek's linear scrambling), shifted digitally for each distribution. Every point is
    uniform in the cube, so averages over a set have no bias, and the sets of two distributions are independent given
    the scrambling, so averages over pairs of points of two distributions have none either.
    """
    import scipy.stats.qmc  # takes longer to import than all of kcalib

    check_memory(
        n * size * n_dims * 24, None, f"{size} draws from each of {n} predictions", "take fewer draws, or fewer rows"
    )
    rng = np.random.default_rng(seed)
    points = scipy.stats.qmc.Sobol(n_dims, scramble=True, seed=rng).random_base2((size - 1).bit_length())[:size]
    digits = (points * 2.0**_BITS).astype(np.uint32)
    shifts = rng.integers(2**_BITS, size=(n, 1, n_dims), dtype=np.uint32)
    shifted = (digits[None, :, :] ^ shifts).astype(np.float64)
    shifted += rng.uniform(size=(n, 1, n_dims))  # digits beyond the last
    shifted *= 2.0**-_BITS
    return _inside(shifted)


def random_points(n: int, size: int, n_dims: int, seed: int) -> np.ndarray:
    """Independent uniform points instead, in the same layout."""
    return _inside(np.random.default_rng(seed).uniform(size=(n, size, n_dims)))


def _inside(points: np.ndarray) -> np.ndarray:
    return np.clip(points, 2.0**-64, 1 - 2.0**-53, out=points)
