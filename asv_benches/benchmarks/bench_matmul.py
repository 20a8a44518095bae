"""Products H @ V with c vectors, beside the sweep that every product needs and the product with a stored H.

A product computes each entry of the symmetric H once, as the sweep of `moments` does, and uses it for two rows: n^2 c
multiply-adds on top. BLAS, float64 or float32 with as many threads, does as many with a stored H, whose n^2 numbers
it has to read and somebody has to compute and keep: what iterative methods do without this backend.
"""

import numpy as np

from .common import (
    DTYPES,
    PAUSE,
    ROUNDS,
    SEED,
    THREADS,
    backend_of,
    cached_predictions,
    limited_blas,
    pair_problem,
    ratios,
    sweep_one,
)

CLASSES = 10
N = 5000
VECTORS = (1, 16, 64)


class Products:
    """A product, the sweep without it, and the product with a stored H; each a function without arguments."""

    def __init__(self, vectors, dtype, threads, n=N):
        from scipy.linalg.blas import dgemm, sgemm  # here: before `limited_blas` looks for libraries

        self.backend = backend_of("cpu", pair_problem(*cached_predictions(n, CLASSES), dtype), threads)
        rng = np.random.default_rng(SEED)
        self.vectors = rng.standard_normal((n, vectors))
        self.gemm = dgemm if dtype == "float64" else sgemm
        self.stored = np.asfortranarray(rng.random((n, n)), dtype=dtype)
        self.right = np.asfortranarray(self.vectors, dtype=dtype)
        self.dtype, self.threads = dtype, threads

    def product(self):
        return sweep_one(self.backend, "Products", self.vectors, dtype=self.dtype)

    def sweep(self):
        return sweep_one(self.backend, "Moments", trace=False)

    def stored_product(self):
        return self.gemm(1.0, self.stored, self.right)

    def over(self, reference, rounds=ROUNDS):
        with limited_blas(self.threads):
            return ratios([self.product], reference, self.threads, rounds, pause=PAUSE)[0]


class Matmul:
    params = [VECTORS, DTYPES, THREADS]
    param_names = ["vectors", "dtype", "threads"]
    unit = "1"

    def setup_cache(self):
        pass

    def setup(self, vectors, dtype, threads):
        self.products = Products(vectors, dtype, threads)

    def track_time_over_sweep(self, vectors, dtype, threads):
        return self.products.over(self.products.sweep)

    def track_time_over_gemm_of_stored_matrix(self, vectors, dtype, threads):
        return self.products.over(self.products.stored_product)
