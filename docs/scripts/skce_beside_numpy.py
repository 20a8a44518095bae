"""Wall time and peak memory of the unbiased SKCE beside plain NumPy, in one run.

    python docs/scripts/skce_beside_numpy.py [--n 10000 100000] [--m 10] [--repeat 5]

Every measurement is a process of its own (so that its peak memory is its own); the
implementations take turns, and medians are printed. NumPy's two forms are those of
asv_benches/benchmarks/bench_peers.py: `dense` stores the n x n matrix (left out where it would
need more than 16 GB), `tiled` two tiles of it. Threads: as many as the machine gives each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

MEASURE = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[1])
import kcalib
from benchmarks.bench_peers import numpy_dense, numpy_tiled
from benchmarks.common import BANDWIDTH, predictions
kernel = kcalib.kernels.Exponential(bandwidth=BANDWIDTH)
function = {
    "kcalib": lambda y, p: kcalib.skce(y, p, kernel=kernel),
    "kcalib, with standard error": lambda y, p: kcalib.skce.result(y, p, kernel=kernel).value,
    "kcalib, float32": lambda y, p: kcalib.skce(y, p, kernel=kernel, dtype="float32"),
    "NumPy, tiled": numpy_tiled,
    "NumPy, dense": numpy_dense,
}[sys.argv[2]]
y, p = predictions(int(sys.argv[3]), int(sys.argv[4]))
function(y[:500], p[:500])
start = time.perf_counter()
value = function(y, p)
seconds = time.perf_counter() - start
print(json.dumps([value, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""
NAMES = ("kcalib", "kcalib, with standard error", "kcalib, float32", "NumPy, tiled", "NumPy, dense")


def measure(name: str, n: int, m: int) -> tuple[float, float, float]:
    benches = Path(__file__).parents[2] / "asv_benches"
    command = [sys.executable, "-P", "-c", MEASURE, str(benches), name, str(n), str(m)]
    value, seconds, mebibytes = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return value, seconds, mebibytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--m", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} CPUs, Python {platform.python_version()}")
    for n in arguments.n:
        names = [name for name in NAMES if name != "NumPy, dense" or 4 * 8 * n**2 < 16e9]
        runs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
        for _ in range(arguments.repeat):
            for name in names:
                runs[name].append(measure(name, n, arguments.m))
        ours = statistics.median(run[1] for run in runs["kcalib"])
        print(f"\nn = {n}, m = {arguments.m}, medians of {arguments.repeat}")
        print(f"{'':28s} {'SKCE':>24s} {'wall time':>12s} {'ratio':>8s} {'peak memory':>14s}")
        for name in names:
            value, seconds, mebibytes = (statistics.median(column) for column in zip(*runs[name], strict=True))
            print(f"{name:28s} {value:24.16e} {seconds:10.3f} s {seconds / ours:8.1f} {mebibytes:10.0f} MiB")


if __name__ == "__main__":
    main()
