"""The Dirichlet kernel density ratio at all samples, from all samples, beside NumPy with as many threads.

    numpy_dense      the formula on whole n x n matrices
    numpy_strips     the formula for strips of predictions, whose temporaries stay in the cache

And beside the machine's own limit: the exponentials and multiply-adds alone.
"""

import numpy as np

from .common import PAUSE, alternated, cached_predictions, limited_blas, ratios, require

CLASSES = (10, 100)
SAMPLES = 10_000
BANDWIDTH = 0.1
STRIP = 32


def log_normalisers_of(p):
    from scipy.special import gammaln

    parameters = p / BANDWIDTH + 1
    return gammaln(parameters.sum(axis=1)) - gammaln(parameters).sum(axis=1)


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
        return self.numpy_strips(len(self.p))

    def numpy_strips(self, strip=STRIP):
        p, powers = self.p, (self.p / BANDWIDTH).T.copy()
        log_normalisers, classes = log_normalisers_of(p), np.eye(p.shape[1])[self.labels]
        shares = np.empty_like(p)
        for begin in range(0, len(p), strip):
            log_weights = np.log(p[begin : begin + strip]) @ powers
            log_weights += log_normalisers
            log_weights -= log_weights.max(axis=1, keepdims=True)
            weights = np.exp(log_weights, out=log_weights)
            shares[begin : begin + strip] = (weights @ classes) / weights.sum(axis=1, keepdims=True)
        return shares

    def over_kcalib(self, name, rounds=3):
        """Time of NumPy's `name` over ours."""
        import scipy.linalg  # noqa: F401  # its BLAS must be there before it is limited

        with limited_blas(self.threads):
            return ratios([getattr(self, name)], self.kcalib, self.threads, rounds, pause=PAUSE)[0]


def fraction_of_limit(n, m, dtype, threads, rounds=5):
    """Time of the exponentials and multiply-adds alone, at the machine's own rate, over that of the ratio."""
    native = require("_native.probe")._native
    options, ratio = native.RunOptions(threads), Ratio(n, m, threads, dtype)
    counts = {}

    def probe(what):
        def run():
            counts[what] = native.probe(what, dtype, 200_000, options)

        return run

    times = alternated((ratio.kcalib, probe("fma"), probe("exp")), threads, rounds)
    limit = n * n * (m * times[:, 1] / counts["fma"] + times[:, 2] / counts["exp"])
    return float(np.median(limit / times[:, 0]))
