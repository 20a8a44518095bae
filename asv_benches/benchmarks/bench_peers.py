"""The same number by others, side by side in the same run and with as many threads.

    numpy_dense    plain NumPy, the n x n matrix stored
    numpy_tiled    plain NumPy, two temporaries of a tile
    scikit_learn   pairwise_distances_chunked, strips of rows
    torch          PyTorch's cdist on the CPU, tiles
    keops          LazyTensor of pykeops on the CPU: compiles C++ for the formula, nothing stored

An implementation that is not installed, or that does not build here, is skipped.
"""

import contextlib
import io
import logging

import numpy as np

from .common import (
    BANDWIDTH,
    PAUSE,
    ROUNDS,
    alternated,
    cached_predictions,
    limited_blas,
    require,
)

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


def scikit_learn(labels, p):
    """The unbiased SKCE from strips of the distances, which scikit-learn hands out."""
    from sklearn.metrics import pairwise_distances_chunked

    n = len(p)
    e = residuals(labels, p)

    def row_sums(strip, start):
        strip *= -1 / BANDWIDTH
        np.exp(strip, out=strip)
        strip *= e[start : start + len(strip)] @ e.T
        return strip.sum(axis=1)

    strips = pairwise_distances_chunked(p, reduce_func=row_sums, working_memory=16)
    return (sum(strip.sum() for strip in strips) - np.einsum("ij,ij->", e, e)) / (n * (n - 1))


def torch_tiled(labels, p):
    """The unbiased SKCE from tiles of H above the diagonal; as many threads as `torch.set_num_threads` says."""
    import torch

    n, tile = len(p), 2 * TILE
    with torch.inference_mode():
        points, e = torch.from_numpy(p), torch.from_numpy(residuals(labels, p))
        total = torch.zeros((), dtype=torch.float64)
        for i in range(0, n, tile):
            rows = slice(i, i + tile)
            for j in range(i, n, tile):
                columns = slice(j, j + tile)
                h = torch.cdist(points[rows], points[columns]).mul_(-1 / BANDWIDTH).exp_()
                h *= e[rows] @ e[columns].T
                total += h.sum() - h.trace() if i == j else 2 * h.sum()
    return float(total) / (n * (n - 1))


def keops(labels, p):
    """The unbiased SKCE by a reduction that KeOps compiles; over all ordered pairs, it knows no symmetry."""
    from pykeops.numpy import LazyTensor

    n = len(p)
    e = residuals(labels, p)
    x, x_ = LazyTensor(p[:, None, :]), LazyTensor(p[None, :, :])
    h = (-((x - x_) ** 2).sum(-1).sqrt() / BANDWIDTH).exp() * (LazyTensor(e[:, None, :]) | LazyTensor(e[None, :, :]))
    return (float(h.sum(axis=1, backend="CPU").sum()) - np.einsum("ij,ij->", e, e)) / (n * (n - 1))


PEERS = {
    "numpy_dense": numpy_dense,
    "numpy_tiled": numpy_tiled,
    "scikit_learn": scikit_learn,
    "torch": torch_tiled,
    "keops": keops,
}
IMPLEMENTATIONS = ("kcalib", *PEERS)


def implementation(name, threads, sample):
    """The function (labels, p) -> SKCE, warm; NotImplementedError if it cannot run here."""
    kcalib = require("skce", "kernels.Exponential")
    kernel = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)

    def ours(labels, p):
        return kcalib.skce(labels, p, kernel=kernel, threads=threads)

    function = PEERS.get(name, ours)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # KeOps says on it what it does
            if name == "torch":
                import torch

                torch.set_num_threads(threads)
            value = function(*sample)
    except ImportError as error:
        raise NotImplementedError(f"{name} is not installed") from error
    except Exception as error:
        if name in ("kcalib", "numpy_dense", "numpy_tiled"):
            raise
        logging.getLogger(__name__).exception("%s does not run here", name)
        raise NotImplementedError(f"{name} does not run here") from error
    expected = numpy_dense(*sample)
    assert abs(value - expected) <= 1e-9, (name, value, expected)
    return function


def nanoseconds_per_pair(n, threads, rounds=ROUNDS, names=IMPLEMENTATIONS):
    """{name: ns per pair i < j} of those that run here, ten classes: medians over rounds of turns."""
    data = cached_predictions(n, 10)
    functions = {}
    for name in names:
        with contextlib.suppress(NotImplementedError):
            functions[name] = implementation(name, threads, (data[0][:1000], data[1][:1000]))
    with limited_blas(threads):
        calls = [lambda f=f: f(*data) for f in functions.values()]
        times = alternated(calls, threads, rounds, warm=False, pause=PAUSE)
    return dict(zip(functions, (np.median(times, axis=0) / (n * (n - 1) / 2) * 1e9).tolist()))
