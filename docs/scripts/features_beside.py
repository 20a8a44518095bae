"""Random features beside all pairs, NumPy and Compress Then Test, each pair of rivals in one run.

    python docs/scripts/features_beside.py [--parts sums test large two-sample] [--threads 2] [--repeat 5]

sums: those that an estimate with 256 columns needs, n = 100,000, m = 10, microseconds a sample. test: estimate and 199
draws beside the spectrum of all pairs. large: `kcalib.evaluate` of a million samples and `kcalib.compare` of three
models, with the peak memory of each. two-sample: Gaussians in 10 dimensions, one of which is shifted: the squared norm
of the difference of the two sums of features, whose law comes from points that change sides, pair by pair. This part
needs Compress Then Test: `pip install goodpoints`, and a C compiler.

Rivals take turns, each measurement of `large` is a process of its own; medians are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import kcalib
from kcalib._pairs import feature_sums
from kcalib._pairs.features import feature_map

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "asv_benches"))
from benchmarks.common import BANDWIDTH, predictions

N, CLASSES, COLUMNS, DRAWS = 100_000, 10, 256, 199
KERNEL = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)
LARGE = 1_000_000
DIMENSIONS, LEVEL, DRAWS_OF_PAIRS = 10, 0.05, 39  # of the two-sample test; 39 is Compress Then Test's default
SIZES = {4096: 0.08, 16_384: 0.04, 65_536: 0.02}  # points of each of the two samples, and the shift of one


def seconds_of(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turns(functions: dict[str, Callable[[], Any]], repeat: int) -> dict[str, float]:
    """Median seconds of each; the first round does not count."""
    rounds = [{name: seconds_of(function) for name, function in functions.items()} for _ in range(1 + repeat)]
    return {name: statistics.median(times[name] for times in rounds[1:]) for name in functions}


def numpy_sums(
    frequencies: np.ndarray, amplitudes: np.ndarray, p: np.ndarray, target_features: np.ndarray
) -> np.ndarray:
    """Cosines and sines of phases, a tile of rows at a time."""
    total = np.zeros((2 * len(amplitudes), target_features.shape[1]))
    for first in range(0, len(p), 4096):
        phases = p[first : first + 4096] @ frequencies.T
        tile = np.concatenate([amplitudes * np.cos(phases), amplitudes * np.sin(phases)], axis=1)
        total += tile.T @ target_features[first : first + 4096]
    return total


def sums(threads: int, repeat: int) -> None:
    y, p = predictions(N, CLASSES)
    target_features = np.eye(CLASSES)[y] - p
    features = feature_map(KERNEL.terms(), p, COLUMNS, 0)
    ours, _ = feature_sums.sum_products(features, p, target_features, threads=threads)
    theirs = numpy_sums(features.frequencies, features.amplitudes, p, target_features)
    assert np.allclose(ours, theirs, rtol=0, atol=1e-8 * N)
    times = in_turns(
        {
            "kcalib": lambda: feature_sums.sum_products(features, p, target_features, threads=threads),
            "NumPy": lambda: numpy_sums(features.frequencies, features.amplitudes, p, target_features),
        },
        repeat,
    )
    print(f"\nsums of {COLUMNS} columns, n = {N}, m = {CLASSES}: microseconds a sample")
    for name, seconds in times.items():
        print(f"  {name:42}{1e6 * seconds / N:10.3f}")


def test(threads: int, repeat: int) -> None:
    y, p = predictions(N, CLASSES)
    method = kcalib.methods.Features(n_columns=COLUMNS, n_resamples=DRAWS)
    times = in_turns(
        {
            "features, estimate and 199 draws": lambda: kcalib.calibration_test(
                y, p, kernel=KERNEL, method=method, seed=0, threads=threads
            ),
            "features, estimate": lambda: kcalib.skce(
                y,
                p,
                kernel=KERNEL,
                estimator=kcalib.methods.FeatureEstimator(n_columns=COLUMNS, seed=0),
                threads=threads,
            ),
        },
        repeat,
    )
    name = "spectrum of all pairs"
    times[name] = seconds_of(lambda: kcalib.calibration_test(y, p, kernel=KERNEL, method="spectrum", threads=threads))
    print(f"\ntests, n = {N}, m = {CLASSES}: seconds, and share of the spectrum's")
    for label, seconds in times.items():
        print(f"  {label:42}{seconds:10.3f}{seconds / times[name]:10.3f}")


CHILD = """
import json, resource, sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
import kcalib
from benchmarks.common import predictions
what, n, m, threads = sys.argv[2], *map(int, sys.argv[3:])
y, p = predictions(n, m)
models = {"one": p}
if what == "compare":
    for name, power in (("sharper", 1.1), ("flatter", 0.9)):
        models[name] = p**power / (p**power).sum(axis=1, keepdims=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
if what == "compare":
    kcalib.compare(y, models, seed=0, threads=threads)
else:
    kcalib.evaluate(y, p, seed=0, threads=threads)
seconds = time.perf_counter() - start
print(json.dumps([seconds, before / 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def large(threads: int, repeat: int) -> None:
    benches = Path(__file__).resolve().parents[2] / "asv_benches"
    print(f"\nn = {LARGE}, m = {CLASSES}: seconds, peak memory before and after")
    for what in ("evaluate", "compare"):
        command = [sys.executable, "-c", CHILD, str(benches), what, str(LARGE), str(CLASSES), str(threads)]
        runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeat)]
        seconds, before, after = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"  {what:42}{seconds:10.2f}{before:10.0f} MiB{after:8.0f} MiB")


def two_features(x: np.ndarray, y: np.ndarray, columns: int, seed: int, threads: int) -> bool:
    """Whether features reject that both samples have one law: the sum of either in place of the other, pair by pair."""
    kernel = kcalib.kernels.Gaussian(bandwidth=math.sqrt(x.shape[1]))  # exp(-|x - y|^2 / (2 d)), as the rival's
    features = feature_map(kernel.terms(), x, columns, seed)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(len(x), 1 + DRAWS_OF_PAIRS))
    signs[:, 0] = 1.0
    sums, _ = feature_sums.sum_products(
        features, np.concatenate([x, y]), np.concatenate([signs, -signs]), threads=threads
    )
    statistics_of_draws = (sums * sums).sum(axis=0)  # but for a constant
    return np.mean(statistics_of_draws >= statistics_of_draws[0]) <= LEVEL * (1 + 1e-9)


def two_sample(threads: int, sets: int) -> None:
    try:
        from goodpoints.ctt import ctt
    except ImportError:
        print("\ntwo-sample: left out, `pip install goodpoints` is what it needs")
        return

    def compressed(x: np.ndarray, y: np.ndarray, g: int, seed: int) -> bool:
        found = ctt(
            x, y, g, B=DRAWS_OF_PAIRS, lam=math.sqrt(2 * x.shape[1]), null_seed=seed, statistic_seed=seed, alpha=LEVEL
        )
        return np.random.default_rng(seed).uniform() < found.rejects  # ties are decided by chance

    rivals: dict[str, Callable[[np.ndarray, np.ndarray, int], bool]] = {
        **{
            f"features, {columns} columns": lambda x, y, i, c=columns: two_features(x, y, c, i, threads)
            for columns in (64, 128, 256)
        },
        **{f"Compress Then Test, g = {g}": lambda x, y, i, g=g: compressed(x, y, g, i) for g in (0, 1, 2, 3)},
    }
    print(f"\ntwo samples in {DIMENSIONS} dimensions, level {LEVEL}, {DRAWS_OF_PAIRS} draws, {sets} sets")
    print(f"  {'':26}{'n':>8}{'shift':>8}{'power':>8}{'level':>8}{'seconds':>10}{'power / s':>12}")
    for size, shift in SIZES.items():
        rejected = {name: [0, 0, 0.0] for name in rivals}
        for i in range(sets):
            rng = np.random.default_rng([size, i])
            for place, moved in enumerate((shift, 0.0)):
                x, y = rng.normal(size=(2, size, DIMENSIONS))
                x[:, 0] += moved
                for name, rival in rivals.items():
                    start = time.perf_counter()
                    rejected[name][place] += rival(x, y, i)
                    rejected[name][2] += time.perf_counter() - start
        for name, (power, level, seconds) in rejected.items():
            one, share = seconds / (2 * sets), power / sets
            print(f"  {name:26}{size:8}{shift:8}{share:8.2f}{level / sets:8.2f}{one:10.3f}{share / one:12.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("sums", "test", "large", "two-sample")
    parser.add_argument("--parts", nargs="+", choices=names, default=list(names))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sets", type=int, default=50, help="of the two-sample test")
    given = parser.parse_args()
    cpus = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cpus} CPUs, Python {platform.python_version()}, {given.threads} threads")
    parts: dict[str, Callable[[], None]] = {
        "sums": lambda: sums(given.threads, given.repeat),
        "test": lambda: test(given.threads, given.repeat),
        "large": lambda: large(given.threads, max(1, given.repeat // 3)),
        "two-sample": lambda: two_sample(given.threads, given.sets),
    }
    with threadpool_limits(limits=given.threads):
        for name in given.parts:
            parts[name]()


if __name__ == "__main__":
    main()
