"""Quadratic forms w^T H w for many weights w, beside the matrix product that they hold.

B forms take n^2/2 * B multiply-adds (H is symmetric), besides H itself: as many as a product of
an n/2 x n matrix with an n x B one, by BLAS, float64, with as many threads.
"""

import numpy as np

from .common import (
    PAUSE,
    ROUNDS,
    SEED,
    backend_of,
    cached_predictions,
    limited_blas,
    pair_problem,
    ratios,
    require,
    sweep_one,
)

CLASSES = 10
REPLICATES = 1000


class Forms:
    """Rademacher forms of the exponential kernel's H, and the product; both as functions without arguments."""

    def __init__(self, n, threads, replicates=REPLICATES):
        from scipy.linalg.blas import dgemm  # here: before `limited_blas` looks for libraries

        self.dgemm = dgemm
        self.weights = require("_backend.random.Weights")._backend.random.Weights("rademacher", n, replicates, SEED)
        self.backend = backend_of("cpu", pair_problem(*cached_predictions(n, CLASSES)), threads)
        rng = np.random.default_rng(SEED)
        self.left = np.asfortranarray(rng.random((n // 2, n)))
        self.right = np.asfortranarray(rng.random((n, replicates)))

    def values(self, dtype):
        return sweep_one(self.backend, "QuadraticForms", self.weights, dtype=dtype)

    def product(self):
        return self.dgemm(1.0, self.left, self.right)

    def over_product(self, dtypes, threads, rounds=ROUNDS):
        """Time of the forms in each of `dtypes` over that of the float64 product."""
        with limited_blas(threads):
            return ratios([lambda d=d: self.values(d) for d in dtypes], self.product, threads, rounds, pause=PAUSE)

    def deviation(self):
        """Largest difference between a draw in float32 and in float64, in standard deviations of the draws."""
        double, single = self.values("float64"), self.values("float32")
        return float(np.max(np.abs(single - double)) / np.std(double))
