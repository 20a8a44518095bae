"""Binary problems, whose points lie on a line, beside one np.sort of as many numbers.

np.sort runs on one thread, whatever kcalib has.
"""

import numpy as np

from .common import BANDWIDTH, ROUNDS, SEED, THREADS, backend_of, pair_problem, ratios, require, sweep_one, total_of

REPLICATES = 1000
VECTORS = (1, 16)
CALLS = ("total", "skce", "median")


class Line:
    """n binary predictions of a calibrated model, the probability of the second class given."""

    def __init__(self, n):
        rng = np.random.default_rng([SEED, n])
        self.n, self.p = n, rng.random(n)
        self.labels = (rng.random(n) < self.p).astype(np.int64)

    def sort(self):
        return np.sort(self.p)

    def backend(self, threads):
        require("_pairs.backends.sorted_line")
        return backend_of("sorted", pair_problem(self.labels, self.p), threads)

    def call(self, name, threads):
        """The backend's total, the public `kcalib.skce`, or the exact median of all distances."""
        kcalib = require("skce", "kernels.Exponential", "_pairs.backends.sorted_line")
        if name == "total":
            return total_of(self.backend(threads))
        if name == "median":
            return lambda: kcalib.bandwidth.median_distance(self.p[:, None], max_samples=None, threads=threads)
        kernel = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)
        return lambda: kcalib.skce(self.labels, self.p, kernel=kernel, threads=threads)

    def over_sort(self, calls, threads, rounds=ROUNDS):
        """Time of each of `calls` over that of the sort."""
        return ratios([self.call(name, threads) for name in calls], self.sort, threads, rounds)

    def replicates_over_sort(self, threads, rounds=ROUNDS, replicates=REPLICATES):
        """Time of Rademacher replicates of the SKCE over that of the sort."""
        weights = require("_backend.random.Weights")._backend.random.Weights("rademacher", self.n, replicates, SEED)
        backend = self.backend(threads)
        return ratios([lambda: sweep_one(backend, "QuadraticForms", weights)], self.sort, threads, rounds)[0]

    def products_over_sort(self, count, threads, rounds=ROUNDS):
        """Time of H @ V for `count` columns, of samples that have been sorted, over that of the sort."""
        backend = self.backend(threads)
        vectors = np.random.default_rng(SEED).standard_normal((self.n, count))
        return ratios([lambda: sweep_one(backend, "Products", vectors)], self.sort, threads, rounds)[0]


class Binary:
    params = [(100_000, 10_000_000), THREADS, CALLS]
    param_names = ["n", "threads", "call"]
    unit = "sorts"

    def setup_cache(self):
        pass

    def setup(self, n, threads, call):
        self.line = Line(n)

    def track_time_over_sort(self, n, threads, call):
        return self.line.over_sort([call], threads)[0]


class BinaryReplicates:
    """A thousand of them."""

    params = [(100_000, 1_000_000), THREADS]
    param_names = ["n", "threads"]
    unit = "sorts"

    def setup_cache(self):
        pass

    def setup(self, n, threads):
        self.line = Line(n)

    def track_time_over_sort(self, n, threads):
        return self.line.replicates_over_sort(threads)


class BinaryProducts:
    """What a block method for eigenvalues calls again and again; `ratios` warms up, and so sorts before."""

    params = [(100_000, 1_000_000), THREADS, VECTORS]
    param_names = ["n", "threads", "vectors"]
    unit = "sorts"

    def setup_cache(self):
        pass

    def setup(self, n, threads, vectors):
        self.line = Line(n)

    def track_time_over_sort(self, n, threads, vectors):
        return self.line.products_over_sort(vectors, threads)
