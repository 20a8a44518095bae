"""Binary problems, whose points lie on a line, beside one sort of as many numbers.

np.sort runs on one thread, whatever kcalib has.
"""

import numpy as np

from .common import (
    BANDWIDTH,
    ROUNDS,
    SEED,
    THREADS,
    operator_of,
    pair_problem,
    predictions,
    ratios,
    require,
    total_of,
)

CALLS = ("operator", "public")
REPLICATES = 1000


class Line:
    """n binary predictions."""

    def __init__(self, n):
        self.n = n
        self.labels, self.p = predictions(n, 2)
        self.places = np.ascontiguousarray(self.p[:, 1])

    def sort(self):
        return np.sort(self.places)

    def call(self, name, threads):
        kcalib = require("skce", "kernels.Exponential", "_operators.sorted_scan")
        if name == "operator":
            return total_of(operator_of("sorted_scan", pair_problem(self.labels, self.p), threads))
        kernel = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)
        return lambda: kcalib.skce(self.labels, self.p, kernel=kernel, threads=threads)

    def over_sort(self, calls, threads, rounds=ROUNDS):
        """Time of each of `calls` over that of the sort."""
        return ratios([self.call(name, threads) for name in calls], self.sort, threads, rounds)

    def replicates_over_sort(self, threads, rounds=ROUNDS, replicates=REPLICATES):
        """Time of Rademacher replicates of the SKCE over that of the sort."""
        weights = require("_resampling.Weights")._resampling.Weights("rademacher", self.n, replicates, SEED)
        operator = operator_of("sorted_scan", pair_problem(self.labels, self.p), threads)
        if not hasattr(operator, "quadratic_forms"):
            raise NotImplementedError("this version has no quadratic forms on a line")
        return ratios([lambda: operator.quadratic_forms(weights)], self.sort, threads, rounds)[0]


class BinarySkce:
    params = [(100_000, 10_000_000), THREADS, CALLS]
    param_names = ["n", "threads", "call"]
    unit = "1"

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
    unit = "1"

    def setup_cache(self):
        pass

    def setup(self, n, threads):
        self.line = Line(n)

    def track_time_over_sort(self, n, threads):
        return self.line.replicates_over_sort(threads)
