"""Binary problems beside `np.sort` of n doubles, in alternating rounds in one process.

Bars: the SKCE's sums within 2.5 sorts at n = 1e7, 1000 Rademacher forms within 10 at n = 1e6.
"""

import time

import numpy as np

from .common import BANDWIDTH, SEED, THREADS, require

ROUNDS = 5


def problem(n):
    """The pair problem of calibrated predictions, and the predictions."""
    kcalib = require("_packing.pack", "_operators.sorted_scan.SortedScanOperator.quadratic_forms")
    rng = np.random.default_rng([SEED, n])
    p = rng.random(n)
    data = kcalib._inputs.prepare(rng.random(n) < p, p)
    return kcalib._packing.pack(data, kcalib.kernels.Exponential(bandwidth=BANDWIDTH), "delta").problem, p


def ratio_to_sort(call, numbers):
    """Median over rounds of the time of `call` in sorts of `numbers`."""
    ratios = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        np.sort(numbers)
        middle = time.perf_counter()
        call()
        ratios.append((time.perf_counter() - middle) / (middle - start))
    return float(np.median(ratios))


class BesideSort:
    params = THREADS
    param_names = ["threads"]
    timeout = 300
    unit = "sorts"

    def operator(self, n, threads):
        from kcalib._operators.sorted_scan import SortedScanOperator

        pairs, numbers = problem(n)
        return lambda: SortedScanOperator(pairs, threads=threads), numbers

    def track_total(self, threads):
        operator, numbers = self.operator(10**7, threads)
        return ratio_to_sort(lambda: operator().moments(rows=False), numbers)

    def track_rademacher_forms(self, threads):
        from kcalib._resampling import Weights

        n = 10**6
        operator, numbers = self.operator(n, threads)
        return ratio_to_sort(lambda: operator().quadratic_forms(Weights("rademacher", n, 1000, SEED)), numbers)

    def track_skce(self, threads):
        """The public function, all its checks included."""
        import kcalib

        n = 10**7
        rng = np.random.default_rng(SEED)
        p = rng.random(n)
        labels = (rng.random(n) < p).astype(int)
        kernel = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)
        return ratio_to_sort(lambda: kcalib.skce(labels, p, kernel=kernel, threads=threads), p)

    def track_median(self, threads):
        from kcalib.bandwidth import median_distance

        p = np.random.default_rng(SEED).random(10**6)[:, None]
        return ratio_to_sort(lambda: median_distance(p, threads=threads), p[:, 0])
