"""The CKCE by all methods, beside the trace formula of the paper computed literally in NumPy.

    python docs/scripts/ckce_methods.py [--samples 2000]

prints, for softmax predictions of 2, 10 and 100 classes, each method's relative difference from the literal value
tr(W R W K), W = (K + n lambda I)^{-1}, R = E E^T, and the relative error bound that the method gives.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

import kcalib

BANDWIDTH = 0.5
METHODS = ("auto", "cholesky", "cg", "fourier", "nystrom", "pivoted_cholesky")


def predictions(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Over-confident softmax predictions, and labels."""
    rng = np.random.default_rng(m)
    logits = 3 * rng.standard_normal((n, m))
    p, right = (np.exp(scale * logits) for scale in (1.0, 0.7))
    p, right = (a / a.sum(axis=1, keepdims=True) for a in (p, right))
    y = (right.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return np.minimum(y, m - 1), p


def literal(y: np.ndarray, p: np.ndarray) -> float:
    """Equation 7 of the paper, with the default regularization."""
    n, m = p.shape
    squares = ((p[:, None, :] - p[None, :, :]) ** 2).sum(axis=2) if m <= 10 else squared_distances(p)
    k = p @ p.T + np.exp(-squares / (2 * BANDWIDTH**2))
    inverse = np.linalg.inv(k + n**0.75 * np.eye(n))
    residuals = np.eye(m)[y] - p
    return float(np.trace(inverse @ (residuals @ residuals.T) @ inverse @ k))


def squared_distances(p: np.ndarray) -> np.ndarray:
    """By rows: all differences at once would not fit."""
    return np.array([((row - p) ** 2).sum(axis=1) for row in p])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000)
    n = parser.parse_args().samples
    kernel = kcalib.kernels.Linear() + kcalib.kernels.Gaussian(bandwidth=BANDWIDTH)
    print(f"n = {n}, kernel {kernel}")
    print(f"{'m':>4} {'method':18} {'value':>10} {'difference':>11} {'bound':>9}  {'kind':12} {'taken':18} {'rank':>4}")
    for m in (2, 10, 100):
        y, p = predictions(n, m)
        expected = literal(y, p)
        for method in METHODS:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = kcalib.ckce.result(y, p, kernel=kernel, method=method)
            difference, bound = abs(found.value / expected - 1), found.error_bound / found.value
            print(
                f"{m:4} {method:18} {found.value:10.6f} {difference:11.1e} {bound:9.1e}  {found.error_bound_kind:12} "
                f"{found.method:18} {found.rank or '':>4}"
            )


if __name__ == "__main__":
    main()
