"""On an NVIDIA GPU: the device's own limit, measured in the same process, and how near to it kcalib comes.

The limits are those of bench_limits.py and bench_kde.py: what the exponentials, square roots and multiply-adds of all
pairs would take, each at the rate that the device reaches on it alone; multiply-adds at the rate of its vector units
or of cuBLAS, whichever is higher. `asv_benches/gpu.py` prints a table.
"""

import functools
import time
from pathlib import Path

import numpy as np

from .common import BANDWIDTH, DTYPES, predictions, require

SECONDS = 0.05  # of a probe
BLOCKS, THREADS, CHAINS = 1056, 256, 8  # eight blocks for each of 132 multiprocessors; CHAINS as in probes.cu
GRAM = 8192  # rows of cuBLAS's product
RESAMPLES = 1000
SKCE = [(n, m, dtype) for n in (100_000, 1_000_000) for m in (10, 1000) for dtype in DTYPES]


def cupy_module():
    """CuPy with a device, or NotImplementedError."""
    try:
        import cupy

        if cupy.cuda.runtime.getDeviceCount() > 0:
            return cupy
    except Exception as error:  # whatever an installation without a driver raises
        raise NotImplementedError(f"no GPU: {error}") from None
    raise NotImplementedError("no GPU")


def seconds_of(function, rounds=5):
    """Median wall time, with the device idle before and after; the first call does not count."""
    cupy, times = cupy_module(), []
    for _ in range(rounds + 1):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        function()
        cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


@functools.cache
def vector_rate(operation, dtype):
    """Operations per second of all vector units: "fma", "exp" or "sqrt"."""
    cupy, kcalib = cupy_module(), require("_backend.cuda.Program")
    text = Path(__file__).with_name("probes.cu").read_text(encoding="utf-8")
    program = kcalib._backend.cuda.Program(("include/kcalib/math.h",), ())
    real = "float" if dtype == "float32" else "double"
    options = (*program.every_option, f"-DPROBE_REAL={real}", f"-DPROBE_OPERATION={operation.upper()}")
    probe = cupy.RawModule(code=program.source + text, options=options).get_function("probe")
    out, repetitions = cupy.empty(BLOCKS * THREADS, dtype=dtype), 64

    def once():
        probe((BLOCKS,), (THREADS,), (np.int64(repetitions), out))

    while seconds_of(once, 1) < SECONDS:
        repetitions *= 2
    return BLOCKS * THREADS * CHAINS * repetitions / seconds_of(once)


@functools.cache
def matmul_rate(dtype, size=GRAM):
    """Multiply-adds per second of cuBLAS."""
    cupy = cupy_module()
    a = cupy.ones((size, size), dtype=dtype)
    out = cupy.empty_like(a)
    return size**3 / seconds_of(lambda: cupy.matmul(a, a, out=out))


def fma_rate(dtype):
    return max(vector_rate("fma", dtype), matmul_rate(dtype))


def sweep_limit(pairs, fmas, dtype):
    """Seconds of an exponential, a square root and `fmas` multiply-adds a pair."""
    own = 1 / vector_rate("exp", dtype) + 1 / vector_rate("sqrt", dtype)
    return pairs * (own + fmas / fma_rate(dtype))


class Case:
    """Predictions on the device, what is timed, and its limit in seconds."""

    def __init__(self, n, m, dtype="float64"):
        self.cupy, self.kcalib = cupy_module(), require("skce", "_backend.cuda.Program")
        self.n, self.m, self.dtype = n, m, dtype
        labels, p = predictions(n, m)
        self.labels, self.p = self.cupy.asarray(labels), self.cupy.asarray(p)
        self.kernel = self.kcalib.kernels.Exponential(bandwidth=BANDWIDTH)

    @property
    def pairs(self):
        return self.n * (self.n - 1) / 2


class SkceCase(Case):
    def run(self):
        return self.kcalib.skce(self.labels, self.p, kernel=self.kernel, dtype=self.dtype)

    def limit(self):
        return sweep_limit(self.pairs, self.m, self.dtype)


class BootstrapCase(Case):
    """R quadratic forms of all pairs, products in float32."""

    def run(self, resamples=RESAMPLES):
        return self.kcalib.calibration_test(
            self.labels, self.p, method=self.kcalib.methods.Bootstrap(n_resamples=resamples), seed=0, kernel=self.kernel
        )

    def limit(self, resamples=RESAMPLES):
        return sweep_limit(self.pairs, self.m, "float64") + self.pairs * resamples / fma_rate("float32")


class CkceCase(Case):
    """Conjugate gradients: `iterations` products of all ordered pairs with m columns."""

    def run(self):
        self.result = self.kcalib.ckce.result(self.labels, self.p, method="cg", kernel=self.kernel)
        return self.result

    def limit(self):
        return self.result.iterations * sweep_limit(2.0 * self.pairs, 2 * self.m, "float32")


class KdeCase(Case):
    """The canonical calibration error by Dirichlet kernels: all ordered pairs."""

    def run(self):
        return self.kcalib.kde_calibration_error(self.labels, self.p, bandwidth=0.1)

    def limit(self):
        return 2 * self.pairs * (1 / vector_rate("exp", "float64") + self.m / fma_rate("float64"))
