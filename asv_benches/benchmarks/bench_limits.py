"""The machine's own limit, measured in the same process, and how near to it the pair engine comes.

With the exponential kernel every pair costs one exp, one square root and, because one Gram
product gives both the distance and the target factor, m fused multiply-adds. If nothing but
these ran, each at the rate the machine reaches on it alone, a sweep would take

    pairs * (1 / exp_rate + 1 / sqrt_rate + m / fma_rate),    pairs = n (n - 1) / 2.

The engine is the sweep with its packing (`moments` of the cpu backend), public the
function `kcalib.skce` with all its checks. By name: binary problems need no sweep at all.
"""

import numpy as np

from .common import (
    BANDWIDTH,
    ROUNDS,
    alternated,
    cached_predictions,
    pair_problem,
    ratios,
    require,
    seconds_of,
    total_of,
)

SECONDS = 0.02  # of a probe
CALLS = ("engine", "public")


class Probe:
    """Elements per second of one operation on `threads` threads."""

    def __init__(self, what, dtype, threads):
        kcalib = require("_native.probe", "_native.RunOptions")
        self.arguments, self.threads = (what, dtype), threads
        self.native, self.sweep = kcalib._native, kcalib._native.RunOptions(threads)
        self.repetitions = 1000
        while seconds_of(self, threads) < SECONDS:
            self.repetitions *= 2

    def __call__(self):
        self.elements = self.native.probe(*self.arguments, self.repetitions, self.sweep)

    def rate(self):
        return 1 / (seconds_of(self, self.threads) / self.elements)


def samples(m):
    return 10_000 if m < 1000 else 3000


def sweep_of(call, n, m, dtype, threads):
    """A function that sweeps over all pairs once."""
    kcalib = require("skce", "kernels.Exponential", "_native.probe")
    labels, p = cached_predictions(n, m, dtype)
    if call == "engine":
        backend = require("_pairs.backends.cpu.CpuBackend")._pairs.backends.cpu.CpuBackend
        return total_of(backend(pair_problem(labels, p, dtype), threads=threads))
    kernel = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)
    return lambda: kcalib.skce(labels, p, kernel=kernel, dtype=dtype, threads=threads, backend="cpu")


def fractions_of_limit(calls, n, m, dtype, threads, rounds=ROUNDS):
    """Limit time over measured time of each of `calls`: medians over rounds of probes and sweeps."""
    probes = [Probe(what, dtype, threads) for what in ("exp", "sqrt", "fma")]
    sweeps = [sweep_of(call, n, m, dtype, threads) for call in calls]
    times = alternated([*probes, *sweeps], threads, rounds)
    pairs = n * (n - 1) / 2
    limit = sum(pairs * count / probe.elements * times[:, k] for k, (count, probe) in enumerate(zip((1, 1, m), probes)))
    return np.median(limit[:, None] / times[:, len(probes) :], axis=0).tolist()


def speedup(n, m, dtype, rounds=ROUNDS):
    """Wall time of the engine with one thread over that with two."""
    sweeps = [sweep_of("engine", n, m, dtype, threads) for threads in (1, 2)]
    times = alternated(sweeps, 2, rounds)
    return float(np.median(times[:, 0] / times[:, 1]))


def median_over_sweep(n, m, threads, rounds=ROUNDS):
    """Time of the exact median of all pairwise distances over that of the engine's sweep, float64."""
    median_distance = require("bandwidth.median_distance").bandwidth.median_distance
    _, p = cached_predictions(n, m)
    sweep = sweep_of("engine", n, m, "float64", threads)
    return ratios([lambda: median_distance(p, max_samples=None, threads=threads)], sweep, threads, rounds)[0]
