"""The SKCE: time, peak memory, and what a call costs besides its sweep."""

import numpy as np

from .common import (
    BANDWIDTH,
    DTYPES,
    THREADS,
    M,
    N,
    alternated,
    cached_predictions,
    load_predictions,
    require,
    save_predictions,
)


class Skce:
    """Time of one call, bandwidth given."""

    params = [N, M, DTYPES, THREADS, ("unbiased", "block")]
    param_names = ["n", "m", "dtype", "threads", "estimator"]
    repeat = (3, 7, 10.0)  # 3 to 7 samples, no new one after 10 s
    number = 1

    def setup_cache(self):
        save_predictions((n, m) for n in N for m in M)

    def setup(self, n, m, dtype, threads, estimator):
        kcalib = require("skce", "kernels.Exponential")
        self.labels, self.p = load_predictions(n, m, dtype)
        kernel = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)
        self.options = {"kernel": kernel, "dtype": dtype, "threads": threads, "estimator": estimator}
        self.skce = kcalib.skce
        self.skce(self.labels[:100], self.p[:100], **self.options)  # starts the threads

    def time_skce(self, n, m, dtype, threads, estimator):
        self.skce(self.labels, self.p, **self.options)


class Memory:
    """Peak memory of the process: the input and O(n m) besides it, never n x n."""

    params = [(10_000, 100_000), ("unbiased", "block")]
    param_names = ["n", "estimator"]

    def setup_cache(self):
        save_predictions((n, 10) for n in self.params[0])

    def setup(self, n, estimator):
        kcalib = require("skce", "kernels.Exponential")
        self.labels, self.p = load_predictions(n, 10)
        self.kernel = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)
        self.skce = kcalib.skce

    def peakmem_input(self, n, estimator):
        pass

    def peakmem_skce(self, n, estimator):
        self.skce(self.labels, self.p, kernel=self.kernel, estimator=estimator)


class Extras:
    """What the standard error and the median heuristic add to a call."""

    params = [N, ("value", "result", "median_heuristic")]
    param_names = ["n", "what"]
    repeat = (3, 7, 5.0)
    number = 1

    def setup_cache(self):
        save_predictions((n, 10) for n in N)

    def setup(self, n, what):
        kcalib = require("skce", "kernels.Exponential")
        self.labels, self.p = load_predictions(n, 10)
        self.options = {} if what == "median_heuristic" else {"kernel": kcalib.kernels.Exponential(bandwidth=BANDWIDTH)}
        self.skce = kcalib.skce.result if what == "result" else kcalib.skce
        self.skce(self.labels[:100], self.p[:100], **self.options)

    def time_skce(self, n, what):
        self.skce(self.labels, self.p, **self.options)


class Overhead:
    """A call with ten samples: checks, packing and dispatch."""

    def setup_cache(self):
        pass

    def setup(self):
        self.call = call_of_ten_samples()

    def time_skce_of_ten_samples(self):
        self.call()


def call_of_ten_samples():
    kcalib = require("skce", "kernels.Exponential")
    labels, p = cached_predictions(10, 10)
    kernel = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)
    return lambda: kcalib.skce(labels, p, kernel=kernel)


def seconds_of_ten_samples(calls=200, rounds=300):
    """Median over rounds of the mean over calls: two seconds in all, as a processor may be slow for half of one."""
    call = call_of_ten_samples()
    times = alternated([lambda: [call() for _ in range(calls)]], 1, rounds)
    return float(np.median(times)) / calls
