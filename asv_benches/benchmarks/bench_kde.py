"""The Dirichlet kernel density ratio at all samples, from all samples, beside NumPy with as many threads.

numpy_dense   the published formula on whole n x n matrices
numpy_strips  the same for strips of predictions, whose temporaries stay in the cache
"""

import numpy as np

from .common import PAUSE, THREADS, alternated, cached_predictions, limited_blas, ratios, require

CLASSES = (10, 100)
SAMPLES = 10_000
BANDWIDTH = 0.1
STRIP = 32


def numpy_shares(labels, p, queries):
    from scipy.special import gammaln

    parameters = p / BANDWIDTH + 1
    log_normalisers = gammaln(parameters.sum(axis=1)) - gammaln(parameters).sum(axis=1)
    log_weights = np.log(queries) @ (parameters - 1).T + log_normalisers
    log_weights -= log_weights.max(axis=1, keepdims=True)
    weights = np.exp(log_weights, out=log_weights)
    return (weights @ np.eye(p.shape[1])[labels]) / weights.sum(axis=1, keepdims=True)


class Ratio:
    """n predictions of m classes."""

    def __init__(self, n, m, threads, dtype="float64"):
        require("regression.DirichletKDE")
        from kcalib.regression import DirichletKDE

        self.labels, self.p = cached_predictions(n, m)
        self.kde = DirichletKDE(BANDWIDTH, dtype=dtype, threads=threads).fit(self.labels, self.p)
        self.threads = threads

    def kcalib(self):
        """h(p_i, p_i) for all samples: their shares, and O(n m) more."""
        return self.kde.squared_error(self.p)

    def numpy_dense(self):
        return numpy_shares(self.labels, self.p, self.p)

    def numpy_strips(self):
        from scipy.special import gammaln

        p = self.p
        powers = p / BANDWIDTH
        log_normalisers = gammaln((powers + 1).sum(axis=1)) - gammaln(powers + 1).sum(axis=1)
        classes, powers = np.eye(p.shape[1])[self.labels], powers.T.copy()
        shares = np.empty_like(p)
        for begin in range(0, len(p), STRIP):
            log_weights = np.log(p[begin : begin + STRIP]) @ powers
            log_weights += log_normalisers
            log_weights -= log_weights.max(axis=1, keepdims=True)
            weights = np.exp(log_weights, out=log_weights)
            shares[begin : begin + STRIP] = (weights @ classes) / weights.sum(axis=1, keepdims=True)
        return shares

    def over_kcalib(self, name, rounds=3):
        """Time of numpy_dense or numpy_strips over ours."""
        import scipy.linalg  # noqa: F401  # its BLAS must be there before it is limited

        with limited_blas(self.threads):
            return ratios([getattr(self, name)], self.kcalib, self.threads, rounds, pause=PAUSE)[0]

    def seconds(self, rounds=3):
        return float(np.median(alternated([self.kcalib], self.threads, rounds)))


def fraction_of_limit(n, m, dtype, threads, rounds=5):
    """Time of the exponentials and multiply-adds alone, at the machine's own rate, over that of the ratio."""
    native = require("_native.probe")._native
    sweep, ratio = native.Sweep(threads), Ratio(n, m, threads, dtype)
    counts = {}

    def probe(what):
        def run():
            counts[what] = native.probe(what, dtype, 200_000, sweep)

        return run

    times = alternated((ratio.kcalib, probe("fma"), probe("exp")), threads, rounds)
    limit = n * n * (m * times[:, 1] / counts["fma"] + times[:, 2] / counts["exp"])
    return float(np.median(limit / times[:, 0]))


class NumPyOverKDE:
    """Times of NumPy over ours."""

    params = [CLASSES, THREADS, ("numpy_dense", "numpy_strips")]
    param_names = ["m", "threads", "implementation"]
    unit = "times"
    timeout = 600

    def setup_cache(self):
        pass

    def setup(self, m, threads, implementation):
        self.ratio = Ratio(3000, m, threads)

    def track_speedup(self, m, threads, implementation):
        return self.ratio.over_kcalib(implementation)


class FractionOfLimit:
    params = [(2, *CLASSES), ("float64", "float32"), THREADS]
    param_names = ["m", "dtype", "threads"]
    unit = "fraction"

    def setup_cache(self):
        pass

    def track_fraction(self, m, dtype, threads):
        return fraction_of_limit(SAMPLES, m, dtype, threads)
