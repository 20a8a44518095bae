"""The same number by plain NumPy, side by side in the same run and with as many threads."""

import numpy as np

from .common import BANDWIDTH, THREADS, load_predictions, require, save_predictions

TILE = 256


def residuals(labels, p):
    e = -p
    e[np.arange(len(p)), labels] += 1
    return e


def numpy_dense(labels, p):
    """The unbiased SKCE from the stored n x n matrix H."""
    n = len(p)
    norms = np.einsum("ij,ij->i", p, p)
    squared = norms[:, None] + norms[None, :] - 2 * (p @ p.T)
    kernel = np.exp(-np.sqrt(np.maximum(squared, 0)) / BANDWIDTH)
    e = residuals(labels, p)
    h = kernel * (e @ e.T)
    return (h.sum() - h.trace()) / (n * (n - 1))


def numpy_tiled(labels, p):
    """The unbiased SKCE from tiles of H above the diagonal, two temporaries of a tile each."""
    n = len(p)
    norms = np.einsum("ij,ij->i", p, p)
    e = residuals(labels, p)
    total = 0.0
    for i in range(0, n, TILE):
        rows = slice(i, i + TILE)
        for j in range(i, n, TILE):
            columns = slice(j, j + TILE)
            tile = p[rows] @ p[columns].T
            tile *= -2
            tile += norms[rows, None]
            tile += norms[None, columns]
            np.maximum(tile, 0, out=tile)
            np.sqrt(tile, out=tile)
            tile *= -1 / BANDWIDTH
            np.exp(tile, out=tile)
            tile *= e[rows] @ e[columns].T
            total += tile.sum() - tile.trace() if i == j else 2 * tile.sum()
    return total / (n * (n - 1))


class Peers:
    """Unbiased SKCE, exponential kernel, ten classes, float64."""

    params = [(2000, 10_000), ("kcalib", "numpy_dense", "numpy_tiled"), THREADS]
    param_names = ["n", "implementation", "threads"]
    repeat = (3, 7, 10.0)
    number = 1

    def setup_cache(self):
        save_predictions((n, 10) for n in self.params[0])

    def setup(self, n, implementation, threads):
        kcalib = require("skce", "kernels.Exponential")
        try:
            from threadpoolctl import threadpool_limits
        except ImportError:
            raise NotImplementedError("needs threadpoolctl, to give NumPy as many threads") from None
        self.labels, self.p = load_predictions(n, 10)
        self.limits = threadpool_limits(threads, user_api="blas")
        kernel = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)

        def ours(labels, p):
            return kcalib.skce(labels, p, kernel=kernel, threads=threads)

        self.implementation = {"kcalib": ours, "numpy_dense": numpy_dense, "numpy_tiled": numpy_tiled}[implementation]
        sample = self.labels[:1000], self.p[:1000]
        expected, value = numpy_dense(*sample), self.implementation(*sample)
        assert abs(value - expected) <= 1e-12, (value, expected)  # and everything is warm

    def teardown(self, n, implementation, threads):
        if hasattr(self, "limits"):
            self.limits.restore_original_limits()

    def time_skce(self, n, implementation, threads):
        self.implementation(self.labels, self.p)
