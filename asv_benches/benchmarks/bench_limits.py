"""The machine's own limit, measured in the same process, and how near to it the SKCE comes.

With the exponential kernel every pair costs one exp, one square root and, because one Gram
product gives both the distance and the target factor, m fused multiply-adds. If nothing but
these ran, each at the rate the machine reaches on it alone, a sweep would take

    pairs * (1 / exp_rate + 1 / sqrt_rate + m / fma_rate),    pairs = n (n - 1) / 2.
"""

import time

from .common import BANDWIDTH, DTYPES, THREADS, M, load_predictions, require, save_predictions

ROUNDS = 5
SECONDS = 0.05  # of a probe


def seconds_of(function, *arguments, **options):
    start = time.perf_counter()
    function(*arguments, **options)
    return time.perf_counter() - start


class Probe:
    """Elements per second of one operation on `threads` threads."""

    def __init__(self, what, dtype, threads):
        kcalib = require("_native.probe", "_native.Sweep")
        self.arguments = what, dtype
        self.native, self.sweep = kcalib._native, kcalib._native.Sweep(threads)
        self.repetitions = 1000
        while seconds_of(self) < SECONDS:
            self.repetitions *= 2

    def __call__(self):
        return self.native.probe(*self.arguments, self.repetitions, self.sweep)

    def rate(self):
        start = time.perf_counter()
        elements = self()
        return elements / (time.perf_counter() - start)


class Rates:
    """Peak rate of each operation; fma counts one multiply and one add as one element."""

    params = [("fma", "exp", "sqrt"), DTYPES, THREADS]
    param_names = ["operation", "dtype", "threads"]
    unit = "1e9/s"

    def setup_cache(self):
        pass

    def setup(self, operation, dtype, threads):
        require("_native.probe")

    def track_rate(self, operation, dtype, threads):
        probe = Probe(operation, dtype, threads)
        return max(probe.rate() for _ in range(ROUNDS)) / 1e9


class FractionOfLimit:
    """Limit time over measured time of `kcalib.skce`, public function, all its checks included."""

    params = [M, DTYPES, THREADS]
    param_names = ["m", "dtype", "threads"]

    @staticmethod
    def n(m):
        return 10_000 if m < 1000 else 3000

    def setup_cache(self):
        save_predictions((self.n(m), m) for m in M)

    def setup(self, m, dtype, threads):
        kcalib = require("skce", "kernels.Exponential", "_native.probe")
        labels, p = load_predictions(self.n(m), m, dtype)
        kernel = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)
        # By name: binary problems need no sweep over pairs at all.
        self.call = lambda: kcalib.skce(labels, p, kernel=kernel, dtype=dtype, threads=threads, operator="openmp")

    def measure(self, m, dtype, threads):
        """Best of a few rounds that alternate between probes and the sweep: (limit, seconds)."""
        probes = {what: Probe(what, dtype, threads) for what in ("fma", "exp", "sqrt")}
        rates = dict.fromkeys(probes, 0.0)
        best = float("inf")
        self.call()
        for _ in range(ROUNDS):
            for what, probe in probes.items():
                rates[what] = max(rates[what], probe.rate())
            best = min(best, seconds_of(self.call))
        n = self.n(m)
        pairs = n * (n - 1) / 2
        return pairs * (1 / rates["exp"] + 1 / rates["sqrt"] + m / rates["fma"]), best

    def track_fraction_of_limit(self, m, dtype, threads):
        limit, seconds = self.measure(m, dtype, threads)
        return limit / seconds

    track_fraction_of_limit.unit = "1"

    def track_pairs_per_second(self, m, dtype, threads):
        n = self.n(m)
        self.call()
        return n * (n - 1) / 2 / min(seconds_of(self.call) for _ in range(ROUNDS)) / 1e6

    track_pairs_per_second.unit = "1e6/s"
