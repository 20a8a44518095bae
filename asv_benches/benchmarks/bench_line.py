"""Binary problems, whose points lie on a line, beside one np.sort of as many numbers.

np.sort runs on one thread, whatever kcalib has.
"""

import numpy as np

from .common import BANDWIDTH, ROUNDS, SEED, THREADS, backend_of, pair_problem, ratios, require, sweep_one, total_of

REPLICATES = 1000


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
        """The backend's total, or the public `kcalib.skce`."""
        kcalib = require("skce", "kernels.Exponential", "_pairs.backends.sorted_line")
        if name == "total":
            return total_of(self.backend(threads))
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
