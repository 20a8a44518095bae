"""Kernel ridge systems (K + s I) Z = B as the CKCE has them: linear plus Gaussian kernel, s = n^(3/4), 10 residuals.

Conjugate gradients, which never store K, beside our own dense factorisation, that beside the literal NumPy inverse,
and, for many samples, in units of what nothing can do without: a sweep over all pairs. What precedes the first product,
the preconditioner, is timed by itself.
"""

import resource
import sys

import numpy as np

from .common import PAUSE, THREADS, alternated, cached_predictions, limited_blas, ratios, require, seconds_of

CLASSES = 10
BANDWIDTH = 0.5
DENSE, MIDDLE, MANY, MOST = 5000, 10_000, 50_000, 100_000


class System:
    """K as an operator, residuals and shift, of n samples."""

    def __init__(self, n, threads):
        kcalib = require("solvers.solve", "kernels.Linear")
        self.solvers = kcalib.solvers
        labels, p = cached_predictions(n, CLASSES)
        kernel = kcalib.kernels.Linear() + kcalib.kernels.Gaussian(bandwidth=BANDWIDTH)
        self.p, self.shift = p, n**0.75
        self.residuals = np.eye(CLASSES)[labels] - p
        self.operator = kcalib.solvers.kernel_operator(p, kernel, threads=threads)

    def solve(self, method):
        return self.solvers.solve(self.operator, self.residuals, self.shift, method=method)

    def preconditioner(self, rank):
        return self.solvers.pivoted_cholesky(self.operator, rank)

    def sweep(self):
        """All pairs once: a product with one vector, which costs a sweep and little more."""
        return self.operator.matmul(self.residuals[:, :1])

    def literal(self):
        """K and its inverse in NumPy, and the trace formula of the CKCE paper."""
        squares = np.sum(self.p**2, axis=1)
        products = self.p @ self.p.T
        distances = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0)
        k = products + np.exp(-distances / (2 * BANDWIDTH**2))
        inverse = np.linalg.inv(k + self.shift * np.eye(len(k)))
        return np.trace(inverse @ (self.residuals @ self.residuals.T) @ inverse @ k)


class DenseOverLiteral:
    """Our dense factorisation in the time of the literal formula."""

    params = [THREADS]
    param_names = ["threads"]
    unit = "1"
    timeout = 600

    def setup_cache(self):
        pass

    def track_ratio(self, threads):
        import scipy.linalg  # noqa: F401  # its BLAS must be there before it is limited

        system = System(DENSE, threads)
        with limited_blas(threads):
            return ratios([lambda: system.solve("cholesky")], system.literal, threads, 3, warm=False, pause=PAUSE)[0]


class ConjugateGradientsOverDense:
    """Conjugate gradients, preconditioner included, in the time of our dense factorisation."""

    params = [(2000, DENSE, MIDDLE), THREADS]
    param_names = ["n", "threads"]
    unit = "1"
    timeout = 600

    def setup_cache(self):
        pass

    def track_ratio(self, n, threads):
        import scipy.linalg  # noqa: F401

        system = System(n, threads)
        with limited_blas(threads):
            return ratios([lambda: system.solve("cg")], lambda: system.solve("cholesky"), threads, 3, pause=PAUSE)[0]


class ManySamples:
    """Conjugate gradients without their preconditioner, in sweeps over all pairs; and their memory."""

    params = [THREADS]
    param_names = ["threads"]
    timeout = 1200

    def setup_cache(self):
        pass

    def track_sweeps_after_preconditioner(self, threads):
        import scipy.linalg  # noqa: F401

        system = System(MANY, threads)
        with limited_blas(threads):
            rank = system.solve("cg").rank
            functions = (system.sweep, lambda: system.preconditioner(rank), lambda: system.solve("cg"))
            times = alternated(functions, threads, 1, warm=False, pause=PAUSE)
        return float(np.median((times[:, 2] - times[:, 1]) / times[:, 0]))

    track_sweeps_after_preconditioner.unit = "1"

    def track_seconds(self, threads):
        system = System(MOST, threads)
        with limited_blas(threads):
            return seconds_of(lambda: system.solve("auto"), threads)

    track_seconds.unit = "s"

    def track_peak_memory(self, threads):
        """Of the whole process, Python and data included."""
        System(MOST, threads).solve("auto")
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6

    track_peak_memory.unit = "MB"
