"""Distances between predicted distributions: pairs a second.

Tables of Bures distances (d dimensions), of mixtures in three dimensions whose K components have equal weights, of
those with other weights, and of samples of 50 numbers and of 50 vectors; on one thread.
"""

import numpy as np

from .common import SEED, alternated, require

PROBLEMS = {  # predictions; dimension, components, equal weights
    "Bures, d = 2": (500, 2, 1, True),
    "Bures, d = 3": (300, 3, 1, True),
    "Bures, d = 10": (150, 10, 1, True),
    "equal weights, K = 4": (300, 3, 4, True),
    "equal weights, K = 10": (200, 3, 10, True),
    "equal weights, K = 50": (50, 3, 50, True),
    "weights, K = 2": (500, 3, 2, False),
    "weights, K = 4": (200, 3, 4, False),
    "weights, K = 10": (80, 3, 10, False),
    "numbers, K = 50": (500, 1, 50, True),
    "numbers with weights, K = 50": (300, 1, 50, False),
}


def components(n, d, K, equal_weights):
    """Normals with full covariances if K = 1, else points."""
    distributions = require("distributions.Components").distributions
    rng = np.random.default_rng([SEED, n, d, K])
    weights = np.full((n, K), 1 / K) if equal_weights else rng.dirichlet(np.ones(K), size=n)
    locations = rng.standard_normal((n, K, d))
    if K > 1:
        return distributions.Components("atoms", weights, locations, None)
    roots = rng.standard_normal((n, 1, d, d))
    return distributions.Components("normal_full", weights, locations, roots @ np.swapaxes(roots, 2, 3))


def pairs_a_second(problem):
    table = require("distributions._distances.mixtures").distributions._distances.mixtures.wasserstein_table
    n, *shape = PROBLEMS[problem]
    data = components(n, *shape)
    times = alternated([lambda: table(data, threads=1)], 1, rounds=5)
    return n * (n - 1) / 2 / float(np.median(times))


class Tables:
    params = tuple(PROBLEMS)
    param_names = ["problem"]
    unit = "pairs/s"
    timeout = 300

    def track_pairs_a_second(self, problem):
        return pairs_a_second(problem)
