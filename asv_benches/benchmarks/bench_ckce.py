"""The CKCE by its methods, and random Fourier features beside the GEMM that forms their Gram matrix."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from .common import BANDWIDTH, PAUSE, THREADS, alternated, cached_predictions, limited_blas, ratios, require

CLASSES, FEATURES = 10, 100
FOURIER = 100_000  # samples
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


def fourier_over_gram(n, threads):
    compute = ckce_of(n, "fourier", threads)
    width = CLASSES + 2 * FEATURES
    features = np.random.default_rng(0).standard_normal((n, width))
    with limited_blas(threads):
        return ratios([compute], lambda: features.T @ features, threads, 3, warm=False, pause=PAUSE)[0]


PROGRAM = """
import re, time
from benchmarks.bench_ckce import ckce_of
compute = ckce_of({n}, "cg", {threads})
begin = time.perf_counter()
compute()
peak = re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]
print(time.perf_counter() - begin, 1024 * int(peak) / 1e6)
"""


def seconds_and_memory(n, threads):
    """Conjugate gradients in a process of their own; megabytes of the whole process, Python and data included."""
    if sys.platform != "linux":
        raise NotImplementedError("reads the peak memory from /proc")
    program = PROGRAM.format(n=n, threads=threads)
    folder = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, capture_output=True, text=True)
    seconds, megabytes = done.stdout.split()
    return float(seconds), float(megabytes)
