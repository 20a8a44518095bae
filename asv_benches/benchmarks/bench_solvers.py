"""Kernel ridge systems (K + s I) Z = B as the CKCE has them: linear plus Gaussian kernel, s = n^(3/4), 10 residuals.

Conjugate gradients, which never store K, beside our own dense factorisation, that beside the literal NumPy inverse,
and, for many samples, in units of what nothing can do without: a sweep over all pairs. What precedes the first product,
the preconditioner, is timed by itself.
"""

import numpy as np

from .common import PAUSE, cached_predictions, limited_blas, ratios, require

CLASSES = 10
BANDWIDTH = 0.5
DENSE, MIDDLE, MANY = 5000, 10_000, 50_000


class System:
    """K as a backend, residuals and shift, of n samples."""

    def __init__(self, n, threads):
        kcalib = require("solvers.solve", "kernels.Linear")
        self.solvers = kcalib.solvers
        labels, p = cached_predictions(n, CLASSES)
        kernel = kcalib.kernels.Linear() + kcalib.kernels.Gaussian(bandwidth=BANDWIDTH)
        self.p, self.shift = p, n**0.75
        self.residuals = np.eye(CLASSES)[labels] - p
        self.backend = kcalib.solvers.kernel_operator(p, kernel, threads=threads)

    def solve(self, method):
        return self.solvers.solve(self.backend, self.residuals, self.shift, method=method)

    def literal(self):
        """K and its inverse in NumPy, and the trace formula of the CKCE paper."""
        squares = np.sum(self.p**2, axis=1)
        products = self.p @ self.p.T
        distances = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0)
        k = products + np.exp(-distances / (2 * BANDWIDTH**2))
        inverse = np.linalg.inv(k + self.shift * np.eye(len(k)))
        return np.trace(inverse @ (self.residuals @ self.residuals.T) @ inverse @ k)


def dense_over_literal(n, threads, rounds=1):
    import scipy.linalg  # noqa: F401  # its BLAS must be there before it is limited

    system = System(n, threads)
    with limited_blas(threads):
        return ratios([lambda: system.solve("cholesky")], system.literal, threads, rounds, warm=False, pause=PAUSE)[0]


def cg_over_dense(n, threads):
    import scipy.linalg  # noqa: F401

    system = System(n, threads)
    with limited_blas(threads):
        return ratios([lambda: system.solve("cg")], lambda: system.solve("cholesky"), threads, 3, pause=PAUSE)[0]
