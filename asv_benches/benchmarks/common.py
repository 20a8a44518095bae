"""Data, parameter values and clocks of all benchmarks, in one place.

How ratios are measured. On a shared host times jump by tens of per cent and drift with the clock
rate, so what is compared takes turns in one process, and the reported number is the median over
the rounds of the ratio within a round. With one thread all work is in the calling thread (BLAS
and OpenMP start none), and its CPU time is read, which other processes disturb less; with more
threads wall time is.
"""

import contextlib
import importlib
import time
from functools import cache

import numpy as np

N = (1000, 10_000)  # samples
M = (2, 10, 100, 1000)  # classes
DTYPES = ("float64", "float32")
THREADS = (1, 2)
BANDWIDTH = 0.5  # given, so that timings of the sweep hold no median heuristic
LOGIT_SCALE = 3.0
SEED = 20190523
ROUNDS = 9
PAUSE = 0.1  # seconds, where libraries with threads of their own take turns
BUDGET = 3.0  # seconds; no new round after it, from the third on
LONG = 10.0  # seconds, with the warm-up; no new round after it: what takes so long is disturbed less


def predictions(n, m, dtype="float64"):
    """Softmax predictions of a calibrated model, (n, m), and labels drawn from them, (n,)."""
    rng = np.random.default_rng([SEED, n, m])
    p = LOGIT_SCALE * rng.standard_normal((n, m))
    p -= p.max(axis=1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return np.minimum(labels, m - 1), p.astype(dtype, copy=False)


cached_predictions = cache(predictions)


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
            if not hasattr(value, part) and hasattr(value, "__path__"):  # a room that nobody has asked for
                with contextlib.suppress(ModuleNotFoundError):
                    importlib.import_module(f"{value.__name__}.{part}")
            if not hasattr(value, part):
                raise NotImplementedError(f"kcalib.{name} is not in kcalib {kcalib.__version__}")
            value = getattr(value, part)
    return kcalib


def pair_problem(labels, p, dtype="float64"):
    """The pair problem of `kcalib.skce` with the exponential kernel, for backends."""
    kcalib = require("kernels.Exponential", "_input.labels.prepare", "_packing.pack")
    data = kcalib._input.labels.prepare(labels, p, dtype=dtype)
    return kcalib._packing.pack(data, kcalib.kernels.Exponential(bandwidth=BANDWIDTH), "delta").problem


def backend_of(name, problem, threads):
    """The backend `name`, and nothing chosen."""
    return require("_pairs.dispatch.backend_for")._pairs.dispatch.backend_for(problem, backend=name, threads=threads)


def total_of(backend):
    """A function that sums the entries: what the unbiased estimator needs, packing included."""
    return lambda: sweep_one(backend, "Moments", rows=False, trace=False)


def sweep_one(backend, reduction, *arguments, **options):
    """The result of the reduction of that name."""
    reductions = require("_pairs.reductions.sweep_one")._pairs.reductions
    return reductions.sweep_one(backend, getattr(reductions, reduction)(*arguments, **options))


def limited_blas(threads):
    """BLAS and OpenMP libraries that are loaded by now use `threads` threads; not those loaded later."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise NotImplementedError("needs threadpoolctl, to give BLAS as many threads") from None
    return threadpool_limits(threads)


def seconds_of(function, threads):
    clock = time.thread_time if threads == 1 else time.perf_counter
    start = clock()
    function()
    return clock() - start


def alternated(functions, threads, rounds=ROUNDS, *, warm=True, pause=0.0):
    """Seconds of each function in each round, shape (rounds, number of functions).

    `pause`: before each, until the threads of another library have stopped spinning.
    """
    start = time.perf_counter()
    if warm:
        for function in functions:
            function()
    begin, times = time.perf_counter(), []
    while len(times) < rounds:
        now = time.perf_counter()
        if times and (now - start > LONG or (len(times) >= 3 and now - begin > BUDGET)):
            break
        times.append([])
        for function in functions:
            time.sleep(pause)
            times[-1].append(seconds_of(function, threads))
    return np.array(times)


def ratios(functions, reference, threads, rounds=ROUNDS, **options):
    """Time of each of `functions` over that of `reference`: medians over rounds of turns."""
    times = alternated((reference, *functions), threads, rounds, **options)
    return np.median(times[:, 1:] / times[:, :1], axis=0).tolist()
