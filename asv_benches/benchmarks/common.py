"""Data and parameter values of all benchmarks, in one place."""

import numpy as np

N = (1000, 10_000)  # samples
M = (2, 10, 100, 1000)  # classes
DTYPES = ("float64", "float32")
THREADS = (1, 2)
BANDWIDTH = 0.5  # given, so that timings of the sweep hold no median heuristic
LOGIT_SCALE = 3.0
SEED = 20190523


def predictions(n, m, dtype="float64"):
    """Softmax predictions of a calibrated model, (n, m), and labels drawn from them, (n,)."""
    rng = np.random.default_rng([SEED, n, m])
    p = LOGIT_SCALE * rng.standard_normal((n, m))
    p -= p.max(axis=1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return np.minimum(labels, m - 1), p.astype(dtype)


def save_predictions(sizes):
    """For `setup_cache`: the predictions of each (n, m) of `sizes`, in asv's cache directory."""
    for n, m in sizes:
        labels, p = predictions(n, m)
        np.savez(f"predictions_{n}_{m}.npz", labels=labels, p=p)


def load_predictions(n, m, dtype="float64"):
    """For `setup`: what `save_predictions` saved, read into memory."""
    with np.load(f"predictions_{n}_{m}.npz") as file:
        return file["labels"], np.ascontiguousarray(file["p"], dtype=dtype)


def require(*names):
    """kcalib, or NotImplementedError (asv skips the benchmark) if this version lacks one of `names`."""
    import kcalib

    for name in names:
        value = kcalib
        for part in name.split("."):
            if not hasattr(value, part):
                raise NotImplementedError(f"kcalib.{name} is not in kcalib {kcalib.__version__}")
            value = getattr(value, part)
    return kcalib
