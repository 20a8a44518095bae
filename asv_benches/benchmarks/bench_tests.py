"""Tests of calibration: each method, the bootstrap beside plain NumPy, and what tests rest on.

Bandwidths are given: no timing here holds a median heuristic, but that of one million binary forecasts with
all defaults. Before anything is timed, a small problem is computed in another way: bootstrap and spectrum
within the error of random draws, everything else to rounding.
"""

import contextlib
import math
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np

from .bench_limits import sweep_of
from .bench_line import Line
from .bench_peers import residuals
from .common import (
    BANDWIDTH,
    PAUSE,
    SEED,
    THREADS,
    alternated,
    cached_predictions,
    limited_blas,
    ratios,
    require,
    save_predictions,
    sweep_one,
)

CLASSES = 10
N = 5000
RESAMPLES = 1000
BINARY = 1_000_000
LOCATED = 1_000_000
METHODS = (
    "linear",
    "block",
    "distribution_free",
    "cme",
    "gamma",
    "spectrum",
    "pearson",
    "multiplier",
    "bootstrap",
    "consistency",
    "exact",
    "features",
)
CHECKED, CHECK_DRAWS = 300, 2000  # samples and draws of the small problems
DEVIATIONS = 5  # standard deviations that two random p-values may differ by


def kernel_matrix(p, q):
    norms = np.einsum("ij,ij->i", p, p)[:, None] + np.einsum("ij,ij->i", q, q)
    return np.exp(-np.sqrt(np.maximum(norms - 2 * (p @ q.T), 0)) / BANDWIDTH)


def numpy_bootstrap(labels, p, n_resamples):
    """Unbiased SKCE and p-value of the Arcones-Gine bootstrap, from the stored H, one resample after another."""
    n = len(p)
    e = residuals(labels, p)
    h = kernel_matrix(p, p) * (e @ e.T)
    estimate = (h.sum() - h.trace()) / (n * (n - 1))
    means = h.mean(axis=0)
    h += means.mean() - means[:, None] - means[None, :]
    diagonal = h.diagonal().copy()
    rng = np.random.default_rng(SEED)
    draws = np.empty(n_resamples)
    for r in range(n_resamples):
        counts = rng.multinomial(n, np.full(n, 1 / n)).astype(np.float64)
        draws[r] = (counts @ h @ counts - counts @ diagonal) / (n * (n - 1))
    return estimate, (1 + np.sum(draws >= estimate)) / (1 + n_resamples)


def run_test(labels, p, method, threads):
    """A method by its name, or an object of `kcalib.methods`."""
    kcalib = require("calibration_test", "kernels.Exponential")
    kernel = None if method == "consistency" else kcalib.kernels.Exponential(bandwidth=BANDWIDTH)  # of the ECE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consistency resampling says that it rejects too often
        return kcalib.calibration_test(labels, p, method=method, kernel=kernel, seed=SEED, threads=threads)


def methods():
    return require("methods").methods


def check_pvalues(first, second, draws, random=2):
    """That p-values of `draws` draws each (`random` of the two; else exact) differ by chance."""
    spread = math.sqrt(random * max(first * (1 - first), 1 / draws) / draws)
    assert abs(first - second) <= DEVIATIONS * spread, (first, second)


def check_bootstrap(threads):
    data = cached_predictions(CHECKED, CLASSES)
    estimate, pvalue = numpy_bootstrap(*data, CHECK_DRAWS)
    ours = run_test(*data, methods().Bootstrap(n_resamples=CHECK_DRAWS), threads)
    assert abs(ours.estimate - estimate) <= 1e-12, (ours.estimate, estimate)
    check_pvalues(ours.pvalue, pvalue, CHECK_DRAWS)


def check_spectrum(threads, m=CLASSES):
    """Against draws of the same law, with Gaussian multipliers; `n_eigenvalues`: not all, as by default here."""
    data = cached_predictions(CHECKED, m)
    ours = run_test(*data, methods().Spectrum(n_eigenvalues=20), threads)
    draws = run_test(*data, methods().Multiplier(multipliers="gaussian", n_resamples=CHECK_DRAWS), threads)
    check_pvalues(draws.pvalue, ours.pvalue, CHECK_DRAWS, random=1)


def check_drawn_labels(threads, m=CLASSES):
    """All pairs, and random features, against statistics of drawn labels from the stored kernel matrix."""
    labels, p = cached_predictions(CHECKED, m)
    k = kernel_matrix(p, p)
    rng = np.random.default_rng(SEED)
    cuts = np.cumsum(p, axis=1)[:, :-1]
    drawn = ((cuts < rng.random((CHECKED, 1))).sum(axis=1) for _ in range(CHECK_DRAWS))
    observed, *draws = (np.sum(e * (k @ e)) - np.sum(e * e) for e in (residuals(y, p) for y in (labels, *drawn)))
    pvalue = (1 + np.sum(np.array(draws) >= observed)) / (1 + CHECK_DRAWS)
    for method in ("exact", methods().Features(n_columns=1024)):
        ours = run_test(labels, p, method, threads)
        check_pvalues(ours.pvalue, pvalue, ours.n_resamples)


def bootstrap_speedup(threads, n=N, resamples=RESAMPLES, rounds=3):
    """Time of plain NumPy over that of kcalib."""
    check_bootstrap(threads)
    data = cached_predictions(n, CLASSES)
    ours = partial(run_test, *data, methods().Bootstrap(n_resamples=resamples), threads)
    peer = partial(numpy_bootstrap, *data, resamples)
    ours()
    with limited_blas(threads):
        return ratios([peer], ours, threads, rounds, warm=False, pause=PAUSE)[0]


def over_bootstrap(method, threads, n=N, rounds=9):
    """Time of a method over that of the bootstrap; "residuals": the spectrum of the residuals at hand."""
    if method == "exact":
        method = require("methods.Exact").methods.Exact(n_resamples=RESAMPLES)
    elif method == "residuals":
        method = require("methods.Spectrum").methods.Spectrum(reference="residuals")
    data = cached_predictions(n, CLASSES)
    bootstrap = partial(run_test, *data, methods().Bootstrap(n_resamples=RESAMPLES), threads)
    with limited_blas(threads):
        return ratios([partial(run_test, *data, method, threads)], bootstrap, threads, rounds)[0]


def over_sweep(method, threads, n=N, rounds=3):
    """Time of a method, with its defaults, over that of one sweep of the engine."""
    test = partial(run_test, *cached_predictions(n, CLASSES), method, threads)
    sweep = sweep_of("engine", n, CLASSES, "float64", threads)
    with limited_blas(threads):
        return ratios([test], sweep, threads, rounds)[0]


class TestMethods:
    """Time of a test with its defaults."""

    params = [METHODS, THREADS]
    param_names = ["method", "threads"]
    repeat = (3, 7, 10.0)
    number = 1

    def setup_cache(self):
        pass

    def setup(self, method, threads):
        check_bootstrap(threads)
        check_spectrum(threads)
        check_drawn_labels(threads)
        self.data = cached_predictions(N, CLASSES)
        run_test(self.data[0][:100], self.data[1][:100], method, threads)  # starts the threads

    def time_test(self, method, threads):
        run_test(*self.data, method, threads)


PEAK = """
import re, sys
sys.path.insert(0, {folder!r})
from benchmarks.bench_tests import CLASSES, run_test
from benchmarks.common import load_predictions
def peak():  # not getrusage, which begins with the memory of the process that started this one
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
labels, p = load_predictions({n}, CLASSES)  # making them would take more than a test
run_test(labels[:500], p[:500], {method!r}, {threads})
before = peak()
run_test(labels, p, {method!r}, {threads})
print(peak() - before)
"""


def bytes_beyond_input(method, n, threads):
    """What a test adds to the peak memory of a process that holds its input; of a fresh process."""
    if sys.platform != "linux":
        raise NotImplementedError("reads the peak memory from /proc")
    require("calibration_test")
    folder = str(Path(__file__).parents[1])
    program = PEAK.format(folder=folder, n=n, method=method, threads=threads)
    with tempfile.TemporaryDirectory() as here, contextlib.chdir(here):
        save_predictions([(n, CLASSES)])
        done = subprocess.run([sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True)
    return int(done.stdout)


class BinaryParts:
    def __init__(self, n, threads):
        check_spectrum(threads, m=2)
        check_drawn_labels(threads, m=2)
        self.kcalib = require("calibration_test", "bandwidth.median_distance")
        self.line, self.threads = Line(n), threads

    def test(self, method=None):
        method = method or methods().Exact(n_resamples=199)
        return self.kcalib.calibration_test(self.line.labels, self.line.p, method=method, threads=self.threads)

    def spectrum(self):
        return self.test("spectrum")

    def median(self):
        return self.kcalib.bandwidth.median_distance(self.line.p[:, None], threads=self.threads)

    def moments(self):
        """The samples are ones that nobody has sorted yet."""
        return sweep_one(self.line.backend(self.threads), "Moments", second=True)

    def seconds(self, rounds):
        calls = {"test": self.test, "spectrum": self.spectrum, "median": self.median, "moments": self.moments}
        with limited_blas(self.threads):
            times = alternated([*calls.values()], self.threads, rounds)
        return dict(zip(calls, np.median(times, axis=0).tolist()))


def compare_over_skce(threads, n=N, rounds=9):
    kcalib = require("compare", "skce", "kernels.Exponential")
    kernel = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)
    labels, p = cached_predictions(n, CLASSES)
    models = {str(a): p**a / np.sum(p**a, axis=1, keepdims=True) for a in (1.0, 1.2, 1.5)}
    options = {"kernel": kernel, "threads": threads}
    metric = kcalib.methods.SKCE(kernel=kernel)
    compare = partial(kcalib.compare, labels, models, metric=metric, threads=threads)

    def skces():
        return [kcalib.skce.result(labels, q, **options).value for q in models.values()]

    assert np.allclose([model.value for model in compare().models], skces(), rtol=1e-9, atol=1e-12)
    with limited_blas(threads):
        return ratios([compare], skces, threads, rounds)[0]


def compare_over_ckce(threads, n=N, rounds=9):
    kcalib = require("compare", "ckce", "inference.ckce_expansion", "kernels.Gaussian")
    kernel = kcalib.kernels.Linear() + kcalib.kernels.Gaussian(bandwidth=BANDWIDTH)
    labels, p = cached_predictions(n, CLASSES)
    models = {str(a): p**a / np.sum(p**a, axis=1, keepdims=True) for a in (1.0, 1.2, 1.5)}
    options = {"kernel": kernel, "threads": threads}
    metric = kcalib.methods.CKCE(kernel=kernel)
    compare = partial(kcalib.compare, labels, models, metric=metric, threads=threads)

    def ckces():
        return [kcalib.ckce(labels, q, **options) for q in models.values()]

    # What compare removes is at most what residuals that are noise alone add.
    for model, plain in zip(compare().models, ckces(), strict=True):
        assert 0 < plain - model.value < plain + 2 * model.standard_error, (model, plain)
    with limited_blas(threads):
        return ratios([compare], ckces, threads, rounds)[0]


class TestLocations:
    """UCME and the CME test with ten test locations, beside one `np.sum` of the predictions."""

    params = [("ucme", "cme"), THREADS]
    param_names = ["what", "threads"]
    unit = "sums"

    def setup_cache(self):
        pass

    def track_time_over_sum(self, what, threads):
        return locations_over_sum([what], threads)[0]


def locations_over_sum(names, threads, n=LOCATED, rounds=5):
    """np.sum runs on one thread, whatever kcalib has."""
    kcalib = require("ucme", "calibration_test")
    kernel = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)
    check_ucme(kcalib, kernel, threads)
    labels, p = cached_predictions(n, CLASSES)
    calls = {
        "ucme": partial(kcalib.ucme, labels, p, kernel=kernel, threads=threads),
        "cme": partial(run_test, labels, p, "cme", threads),
    }
    with limited_blas(threads):
        return ratios([calls[name] for name in names], partial(np.sum, p), threads, rounds, warm=False)


def check_ucme(kcalib, kernel, threads):
    labels, p = cached_predictions(CHECKED, CLASSES)
    ours = kcalib.ucme.result(labels, p, kernel=kernel, threads=threads)
    at, chosen = np.array(ours.test_predictions), np.array(ours.test_labels)
    differences = np.mean(kernel_matrix(at, p) * residuals(labels, p)[:, chosen].T, axis=1)
    assert abs(np.mean(differences**2) - ours.value) <= 1e-12, (np.mean(differences**2), ours.value)


def tail(count, deviations):
    """A p-value so many standard deviations above the mean, of a law that is new each time."""
    laws = require("laws.ChiSquareMixture").laws
    import scipy.stats

    equal = laws.ChiSquareMixture(np.full(count, 2.0)).sf(3.0 * count)
    expected = scipy.stats.chi2(count).sf(1.5 * count)
    assert abs(equal / expected - 1) <= 1e-6, (equal, expected)
    weights = 1 / np.arange(1, count + 1) ** 1.5

    def call():
        law = laws.ChiSquareMixture(weights)
        return law.sf(law.mean + deviations * math.sqrt(law.var))

    return call


def seconds_per_pvalue(count, deviations, rounds=20):
    call = tail(count, deviations)
    return float(np.median(alternated([call], 1, rounds)))
