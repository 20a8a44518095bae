"""Distributions as mixtures for the engine: in closed form, or as atoms, if necessary by draws.

For the kernel on predictions (`prediction_points`) and on targets (`target_factors`).
"""

from __future__ import annotations

from kcalib._backend import arrays
from kcalib._packing.finite_rank import FiniteRankFeatures
from kcalib.distributions import Components, Distribution
from kcalib.target_kernels import Draws

TARGET_SEED = 0  # of draws from the predictions for the default bandwidth on targets
DRAWS = Draws()

NEARLY_EXACT = 1e-11  # error of a target factor relative to the kernel, far below its statistical error
FEWEST_ATOMS = 4  # features do not pay off for predictions with fewer

Groups = tuple[tuple[float, float], ...]


def drawn_atoms(prediction: Distribution, size: int, seed: int) -> Components:
    """Return the predictions replaced by draws from them."""
    draws = prediction.quasi_sample(size, seed=seed)
    xp = arrays.namespace(draws)
    atoms = xp.reshape(xp.astype(draws, xp.float64), (prediction.n, size, prediction.n_dims))
    return Components("atoms", xp.full_like(atoms[:, :, 0], 1 / size), atoms, None)


def is_exact(features: FiniteRankFeatures) -> bool:
    """Return whether the features equal the kernel to a few roundings, also at targets far from all others."""
    return features.exact or features.error_bound <= NEARLY_EXACT * features.map.largest
