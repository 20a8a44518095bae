"""The CKCE by its methods, and random Fourier features beside the GEMM that forms their Gram matrix."""

import numpy as np

from .common import BANDWIDTH, PAUSE, THREADS, alternated, cached_predictions, limited_blas, ratios, require

CLASSES, FEATURES = 10, 100
METHODS = ("auto", "cholesky", "cg", "fourier", "nystrom", "pivoted_cholesky")


def ckce_of(n, method, threads):
    kcalib = require("ckce", "kernels.Linear")
    kernel = kcalib.kernels.Linear() + kcalib.kernels.Gaussian(bandwidth=BANDWIDTH)
    labels, p = cached_predictions(n, CLASSES)
    return lambda: kcalib.ckce(labels, p, kernel=kernel, method=method, threads=threads)


class CkceMethods:
    """Time of each method."""

    params = [METHODS, THREADS]
    param_names = ["method", "threads"]
    unit = "seconds"
    timeout = 600
    n = 3000

    def setup_cache(self):
        pass

    def track_seconds(self, method, threads):
        compute = ckce_of(self.n, method, threads)
        with limited_blas(threads):
            return float(np.median(alternated([compute], threads, 3, pause=PAUSE)))


class FourierOverGram:
    """Random Fourier features in the time of the product F^T F of features that are stored."""

    params = [(100_000, 1_000_000), THREADS]
    param_names = ["n", "threads"]
    unit = "1"
    timeout = 600

    def setup_cache(self):
        pass

    def track_ratio(self, n, threads):
        compute = ckce_of(n, "fourier", threads)
        width = CLASSES + 2 * FEATURES
        features = np.random.default_rng(0).standard_normal((n, width))
        with limited_blas(threads):
            return ratios([compute], lambda: features.T @ features, threads, 3, warm=False, pause=PAUSE)[0]
