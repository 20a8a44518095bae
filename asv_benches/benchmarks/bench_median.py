"""The exact median of all pairwise distances, beside one sweep of the SKCE over the same pairs."""

from .bench_limits import samples, sweep_of
from .common import ROUNDS, THREADS, M, cached_predictions, ratios, require

DEFAULT, CLASSES = 2000, 10  # samples whose median distance is the default bandwidth of more than these


def over_sweep(n, m, threads, rounds=ROUNDS):
    """Time of the median over that of the engine's sweep, float64."""
    median_distance = require("bandwidth.median_distance", "bandwidth.Distances").bandwidth.median_distance
    _, p = cached_predictions(n, m)
    sweep = sweep_of("engine", n, m, "float64", threads)
    return ratios([lambda: median_distance(p, max_samples=None, threads=threads)], sweep, threads, rounds)[0]


class ExactMedian:
    params = [M, THREADS]
    param_names = ["m", "threads"]
    unit = "1"

    def setup_cache(self):
        pass

    def track_time_over_sweep(self, m, threads):
        return over_sweep(samples(m), m, threads)


class DefaultMedian:
    """That of as many samples as the default bandwidth comes from at most."""

    params = [THREADS]
    param_names = ["threads"]
    unit = "1"

    def setup_cache(self):
        pass

    def track_time_over_sweep(self, threads):
        return over_sweep(DEFAULT, CLASSES, threads)
