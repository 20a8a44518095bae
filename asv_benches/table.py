"""The table of docs/performance.rst: what kcalib takes, beside the machine's limit, a library's time, or peers.

    python asv_benches/table.py [--quick] [--sections limit line ...] [--old old/bin/python] [--save values.json]

measures the kcalib that Python imports, with the functions of the asv benchmarks, and prints
text. With the Python of an environment that has an older version, that is measured in the same run, section by section;
what it lacks is left out.

"yes" and "no" say whether a measured value is within its bar: what was asked of the code, or, with an asterisk, what
was set, with some room, by what versions reached on the machines that were measured. Close other programs. What
sections take is written to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy
from benchmarks import (
    bench_ckce,
    bench_distributions,
    bench_ece,
    bench_import,
    bench_kde,
    bench_limits,
    bench_line,
    bench_peers,
    bench_recalibration,
    bench_regression,
    bench_resampling,
    bench_skce,
    bench_solvers,
    bench_tests,
)
from benchmarks.common import DTYPES, ROUNDS, THREADS, M

import kcalib
from kcalib import _native

AVAILABLE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Row:
    what: str
    value: float
    bar: float
    at_least: bool = False  # the bar; otherwise at most
    is_from_measurements: bool = False  # nobody asked for the bar: it was set, with some room, by what versions reached

    @property
    def verdict(self) -> str:
        return "yes" if (self.value >= self.bar if self.at_least else self.value <= self.bar) else "no"

    @property
    def limit(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bar:.3g}{'*' if self.is_from_measurements else ''}"


def measured_row(what: str, value: float, bar: float, at_least: bool = False) -> Row:
    return Row(what, value, bar, at_least, is_from_measurements=True)


def threads_label(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def thread_counts() -> list[int]:
    return [t for t in THREADS if t <= AVAILABLE]


def samples(m: int, quick: bool) -> int:
    return bench_limits.samples(m) // 2 if quick else bench_limits.samples(m)


def cases(quick: bool) -> Iterator[tuple[str, int, int]]:
    """Name, number of samples and of classes."""
    for m in M:
        yield f"m = {m}", samples(m, quick), m
    if not quick:
        yield "m = 1000, n = 10,000", 10_000, 1000


def limit(quick: bool) -> Iterator[Row]:
    """Fraction of the machine's limit: exponential kernel, n = 10,000 (3000 for m = 1000; --quick: half)"""
    bars = {
        "float64": {2: 0.90, 10: 0.88, 100: 0.70, 1000: 0.75},
        "float32": {2: 0.80, 10: 0.80, 100: 0.70, 1000: 0.75},
    }
    bars_of_skce = {
        "float64": {2: 0.85, 10: 0.80, 100: 0.65, 1000: 0.63},
        "float32": {2: 0.75, 10: 0.65, 100: 0.65, 1000: 0.60},
    }
    rounds = 3 if quick else ROUNDS
    for dtype in DTYPES:
        for name, n, m in cases(quick):
            for threads in thread_counts():
                calls = bench_limits.CALLS[:1] if quick else bench_limits.CALLS
                values = bench_limits.fractions_of_limit(calls, n, m, dtype, threads, rounds)
                what = f"{dtype}, {name}, {threads_label(threads)}"
                yield Row(f"engine, {what}", values[0], bars[dtype][m], at_least=True)
                for value in values[1:]:
                    yield measured_row(f"skce,   {what}", value, bars_of_skce[dtype][m], at_least=True)


def speedup(quick: bool) -> Iterator[Row]:
    """Wall time of the engine with one thread over that with two"""
    for dtype in DTYPES:
        for name, n, m in cases(quick) if AVAILABLE >= 2 else ():
            values = bench_limits.speedup(n, m, dtype, 3 if quick else ROUNDS)
            yield Row(f"{dtype}, {name}", values, 1.9, at_least=True)


def calls(quick: bool) -> Iterator[Row]:
    """What a call costs besides its work"""
    yield Row("skce of 10 samples, microseconds", 1e6 * bench_skce.seconds_of_ten_samples(), 30)
    processes = 3 if quick else 9
    value = 1e3 * bench_import.seconds_of_import("", processes)
    yield Row("import kcalib after NumPy and SciPy, milliseconds", value, 20)
    value = 1e3 * bench_import.seconds_of_import(bench_import.FIRST_CALL, processes)
    yield measured_row("import kcalib and a first call after NumPy and SciPy, milliseconds", value, 45)


def forms(quick: bool) -> Iterator[Row]:
    """w^T H w for 1000 Rademacher weights, n = 10,000 (--quick: 3000), m = 10: time over that of as large a dgemm"""
    for threads in thread_counts():
        case = bench_resampling.Forms(3000 if quick else 10_000, threads)
        values = case.over_product(DTYPES, threads, 3)
        for dtype, value, bar in zip(DTYPES, values, (1.3, 0.65), strict=True):
            yield Row(f"{dtype} over float64 dgemm, {threads_label(threads)}", value, bar)
    yield Row("largest deviation of a float32 draw, standard deviations", case.deviation(), 1e-5)


def line(quick: bool) -> Iterator[Row]:
    """Binary problems: time over that of np.sort (one thread) of as many doubles"""
    n = 1_000_000 if quick else 10_000_000
    case = bench_line.Line(n)
    for threads in thread_counts():
        values = case.over_sort(["total", "skce"], threads, 3 if quick else 5)
        for name, value in zip(("total of the backend", "skce"), values, strict=True):
            yield Row(f"{name}, n = {n:.0e}, {threads_label(threads)}", value, 2)
    n = 100_000 if quick else 1_000_000
    case = bench_line.Line(n)
    for threads in thread_counts():
        value = case.replicates_over_sort(threads, 3 if quick else ROUNDS)
        bar = 9 if threads == 1 else 5
        yield Row(f"1000 Rademacher replicates, n = {n:.0e}, {threads_label(threads)}", value, bar)


def median(quick: bool) -> Iterator[Row]:
    """Exact median of all distances: time over that of one sweep of the engine, float64"""
    for m in M:
        for threads in thread_counts():
            value = bench_limits.median_over_sweep(samples(m, quick), m, threads, 3 if quick else ROUNDS)
            yield Row(f"m = {m}, n = {samples(m, quick)}, {threads_label(threads)}", value, 3)
    n, m = 2000, 10  # as many samples as the default bandwidth is taken from at most
    for threads in thread_counts():
        value = bench_limits.median_over_sweep(n, m, threads, 3 if quick else ROUNDS)
        yield measured_row(f"m = {m}, n = {n}, of the default bandwidth, {threads_label(threads)}", value, 4)


def peers(quick: bool) -> Iterator[Row]:
    """Nanoseconds per pair: unbiased SKCE, exponential kernel, m = 10, n = 10,000 (--quick: 3000), float64"""
    n = 3000 if quick else 10_000
    names = [name for name in bench_peers.IMPLEMENTATIONS if name != "numpy_dense"]
    for threads in thread_counts():
        values = bench_peers.nanoseconds_per_pair(n, threads, 3, names)
        ours, label = values.pop("kcalib"), threads_label(threads)
        yield measured_row(f"kcalib, {label}", ours, min(values.values()) / 2)
        for name, value in values.items():
            yield measured_row(f"{name}, {label}", value, 2 * ours, at_least=True)


# Sweeps over the pairs of 5000 samples that a test takes, at most.
IN_SWEEPS = {
    "linear": 13,
    "block": 42,
    "distribution_free": 6,
    "cme": 9,
    "gamma": 24,
    "spectrum": 32,
    "pearson": 32,
    "multiplier": 420,
    "bootstrap": 18,
    "consistency": 32,
    "exact": 30,
    "features": 15,
}


def tests(quick: bool) -> Iterator[Row]:
    """Tests of calibration: n = 5000 (--quick: 2000), m = 10, R = 1000, and what they rest on"""
    n, rounds = (2000, 3) if quick else (bench_tests.N, 5)
    for threads in thread_counts():
        label = threads_label(threads)
        values = bench_tests.bootstrap_speedup(threads, n, rounds=1 if quick else 3)
        yield Row(f"NumPy with stored H over bootstrap, {label}", values, 70, at_least=True)
        bench_tests.check_spectrum(threads)
        bench_tests.check_drawn_labels(threads)
        # Of the residuals: the spectrum when 0.3 was asked for. The law given the predictions has m times as many rows;
        # its bar is younger than the last measurement on a machine with AMX.
        values = bench_tests.over_bootstrap("residuals", threads, n, rounds)
        yield Row(f"spectrum of the residuals over bootstrap, {label}", values, 0.3)
        yield measured_row(
            f"spectrum over bootstrap, {label}", bench_tests.over_bootstrap("spectrum", threads, n, rounds), 0.8
        )
        yield Row(f"exact over bootstrap, {label}", bench_tests.over_bootstrap("exact", threads, n, rounds), 2)
        values = bench_tests.compare_over_skce(threads, n, 3)
        yield measured_row(f"compare of three models over three skce, {label}", values, 4.5 if threads == 1 else 6.5)
        values = bench_tests.compare_over_ckce(threads, n, 3)
        yield Row(f"compare of three models over three ckce, {label}", values, 3)
    for method, bar in IN_SWEEPS.items():
        value = bench_tests.over_sweep(method, thread_counts()[-1], n)
        yield measured_row(f"{method}, in sweeps over the pairs, {threads_label(thread_counts()[-1])}", value, bar)
    n = 10_000 if quick else 20_000
    for method, bar in (("bootstrap", 120), ("spectrum", 270)):
        half, whole = (bench_tests.bytes_beyond_input(method, k, thread_counts()[-1]) for k in (n // 2, n))
        yield measured_row(f"{method}, n = {n}, megabytes beyond the input", whole / 1e6, bar)
        yield Row(f"{method}, n = {n}, the same over that of half the samples", whole / half, 3)  # 4 if quadratic
    n = 100_000 if quick else bench_tests.BINARY
    for threads in thread_counts():
        parts = bench_tests.BinaryParts(n, threads).seconds(3)
        for what, value in parts.items():
            bar = {"test": 1, "spectrum": 2.2, "median": 0.14, "moments": 0.12}[what]
            what_in_full = f"binary, n = {n:.0e}, {what}, {threads_label(threads)}, seconds"
            yield Row(what_in_full, value, bar, is_from_measurements=what != "test")
    n = 100_000 if quick else bench_tests.LOCATED
    for name, counts, bar in (("ucme", thread_counts(), 5), ("cme", thread_counts()[-1:], 20)):
        for threads in counts:
            (value,) = bench_tests.locations_over_sum([name], threads, n)
            yield Row(f"{name} over np.sum of the predictions, n = {n:.0e}, {threads_label(threads)}", value, bar)
    for count, bar in ((20, 1), (1000, 3)):
        yield measured_row(
            f"tail of {count} weights, milliseconds", 1e3 * bench_tests.seconds_per_pvalue(count, 3.0), bar
        )


def ckce(quick: bool) -> Iterator[Row]:
    """Conditional kernel calibration error, m = 10, linear plus Gaussian kernel (--quick: smaller)"""
    for threads in thread_counts():
        label = threads_label(threads)
        n = 2000 if quick else bench_solvers.DENSE
        value = 1 / bench_solvers.dense_over_literal(n, threads)
        yield Row(f"literal trace formula in NumPy over dense, n = {n}, {label}", value, 10, at_least=True)
        n = 3000 if quick else bench_solvers.MIDDLE
        value = 1 / bench_solvers.cg_over_dense(n, threads)
        yield Row(f"dense over cg, n = {n}, {label}", value, 6, at_least=True)
        n = bench_ckce.FOURIER
        value = bench_ckce.fourier_over_gram(n, threads)
        yield Row(f"fourier over the GEMM of its Gram matrix, n = {n}, {label}", value, 3)
    n = 20_000 if quick else bench_solvers.MANY
    seconds, megabytes = bench_ckce.seconds_and_memory(n, thread_counts()[-1])
    label = threads_label(thread_counts()[-1])
    yield measured_row(f"cg, n = {n}, {label}, seconds", seconds, 5)
    yield Row(f"cg, n = {n}, {label}, megabytes of the whole process", megabytes, 1000)


def regression(quick: bool) -> Iterator[Row]:
    """Kernel ridge regression, 18 regularizations and their risks on 2000 samples (--quick: smaller), beside eigh"""
    n, n_dense = bench_regression.LINE, 1000 if quick else 2000
    for threads in thread_counts():
        for name in bench_regression.FUNCTIONS:
            value = bench_regression.dense_over_line(name, n, n_dense, threads)
            what = f"eigh (n^3, from {n_dense}) over {name}, top-label, n = {n}, {threads_label(threads)}"
            yield Row(what, value, 1000, at_least=True)
    n = 1000 if quick else 3000
    for threads in thread_counts():
        values = bench_regression.simplex_over_dense(n, threads)
        for name, value in zip(bench_regression.FUNCTIONS, values, strict=True):
            yield measured_row(f"{name} over eigh, m = 10, n = {n}, {threads_label(threads)}", value, 2)


def kde(quick: bool) -> Iterator[Row]:
    """Dirichlet kernel density ratio at n = 10,000 samples (--quick: 3000), bandwidth 0.1"""
    n = 3000 if quick else bench_kde.SAMPLES
    for m in bench_kde.CLASSES:
        for threads in thread_counts():
            ratio, label = bench_kde.Ratio(n, m, threads), f"m = {m}, {threads_label(threads)}"
            for name, what in (("numpy_dense", "n x n matrices"), ("numpy_strips", "strips in the cache")):
                value = ratio.over_kcalib(name, rounds=1)
                yield measured_row(f"NumPy, {what}, over kcalib, {label}", value, 3, at_least=True)
    for dtype in DTYPES:
        for m in (2, *bench_kde.CLASSES):
            value = bench_kde.fraction_of_limit(n, m, dtype, 1, rounds=3)
            yield measured_row(
                f"fraction of the machine's limit, {dtype}, m = {m}, 1 thread", value, 0.55, at_least=True
            )


def ece(quick: bool) -> Iterator[Row]:
    """Binned errors: time over np.sum and the sorts they need, n = 1e6 (--quick: 1e5), m = 100; others over np.sort"""
    n, rounds = (100_000, 3) if quick else (bench_ece.N, 5)
    threads = thread_counts()[-1]  # beside np.sum, which has one
    for case in bench_ece.CASES:
        value = bench_ece.over_sum(case, n, bench_ece.CLASSES, threads, rounds)
        yield Row(f"{case}, {threads_label(threads)}", value, 4 if case == "canonical_ece, median variance" else 2)
    n = 100_000 if quick else bench_ece.MMCE_SAMPLES
    for threads in thread_counts():
        value = bench_ece.over_sort("mmce", n, 3, threads=threads)
        yield measured_row(f"mmce, n = {n:.0e}, {threads_label(threads)}", value, 12.5 if threads == 1 else 9)
    n = 100_000 if quick else bench_ece.N
    for name, bar in bench_ece.ON_A_LINE.items():
        yield measured_row(f"{name}, n = {n:.0e}", bench_ece.over_sort(name, n, 3), bar)
    value = bench_ece.smooth_over_relplot(n, threads, 3)
    if value is not None:
        yield Row(f"smooth_ece over relplot, n = {n:.0e}, {threads_label(threads)}", value, 0.5)


def distributions(quick: bool) -> Iterator[Row]:
    """Normal predictions of d numbers, Gaussian target kernel, exponential kernel, n = 10,000 (--quick: 3000)"""
    n, rounds = (3000, 3) if quick else (bench_distributions.N, 5)
    for threads in thread_counts():
        label = threads_label(threads)
        for d in bench_distributions.DIMENSIONS:
            for dtype in DTYPES:
                value = bench_distributions.fraction_of_limit(n, d, dtype, threads, rounds)
                yield Row(f"fraction of the machine's limit, {dtype}, d = {d}, {label}", value, 0.5, at_least=True)
            value = bench_distributions.numpy_over_engine("broadcast", n, d, threads, rounds=1)
            what = f"NumPy, arrays (rows, n, d), over kcalib, d = {d}, {label}"
            asked = d > 1 or threads > 1
            yield Row(what, value, 60 if asked else 30, at_least=True, is_from_measurements=not asked)
            value = bench_distributions.numpy_over_engine("in the cache", n, d, threads, rounds=1)
            bar = (7 if d == 1 else 19) * threads
            yield measured_row(
                f"NumPy, pairs i < j, in the cache, over kcalib, d = {d}, {label}", value, bar, at_least=True
            )
    for family in bench_distributions.FAMILIES:
        for k in bench_distributions.COMPONENTS:
            value = bench_distributions.mixture_over_single(family, 3000, 1, k, 1, 3)
            yield Row(f"{k} components over one, {family}, d = 1, 1 thread", value, k * k)


def fits(quick: bool) -> Iterator[Row]:
    """Seconds of fits of recalibrators, two threads; other libraries over kcalib (--quick: small problems)"""
    bars = {
        (5000, 10): {"temperature": 0.05, "vector": 0.2, "matrix": 0.5, "dirichlet": 0.5},
        (10_000, 100): {"vector": 2, "dirichlet": 30},
        (50_000, 1000): {"temperature": 20, "vector": 20},
    }
    for (n, m), names in bars.items():
        problem = bench_recalibration.over_confident(n, m) if m == 10 or not quick else None
        for name, bar in names.items() if problem is not None else ():
            rounds = 1 if m > 10 else 5
            ours = bench_recalibration.seconds(bench_recalibration.fit, name, *problem, rounds=rounds)
            yield Row(f"{name}, n = {n:,}, m = {m}", ours, bar)
            for library in bench_recalibration.PEERS if m == 10 else ():
                with suppress(NotImplementedError):
                    value = bench_recalibration.seconds(bench_recalibration.peer(library, name), *problem)
                    yield measured_row(f"{library} over {name}, n = {n:,}, m = {m}", value / ours, 1, at_least=True)
    n = 2000 if quick else 10_000
    problem = bench_recalibration.over_confident(n, 10)
    value = bench_recalibration.seconds(bench_recalibration.choose, *problem, rounds=1)
    yield Row(f"choose, n = {n:,}, m = 10", value, 5)
    total, first = bench_recalibration.report_of_two(n, 10)
    yield Row(f"report of two models, n = {n:,}, m = 10", total, 15)
    yield Row("report, until it says what it does", first, 1)


def busy(quick: bool) -> Iterator[Row]:
    """Beside two endless loops, n = 5000 (--quick: 2000), m = 10: time over that without them"""
    for name, function in bench_recalibration.calls(2000 if quick else 5000, 10).items():
        clock, processors = bench_recalibration.busy_over_idle(function, 1 if quick else 5)
        yield Row(f"{name}, by the clock", clock, 3)
        yield measured_row(f"{name}, time of processors", processors, 2)


SECTIONS = {
    f.__name__: f
    for f in (
        limit, speedup, calls, forms, line, median, peers, tests, ckce, regression, kde, ece, distributions, fits, busy,
    )
}  # fmt: skip


def machine() -> Iterator[str]:
    cpu = platform.processor() or platform.machine()
    with suppress(OSError):
        cpu = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())[1]
    yield f"CPU: {cpu}, {AVAILABLE} for this process; instruction level: {_native.cpu_levels()[0]}"
    compilers = re.findall(rb"(GCC: \([^)]*\) [\d.]+|clang version [\d.]+)", Path(_native.__file__).read_bytes())
    compiler = f", compiled by {compilers[-1].decode()}" if compilers else ""
    yield f"kcalib {kcalib.__version__}{compiler}; Python {platform.python_version()}"
    with suppress(ImportError):
        from threadpoolctl import threadpool_info

        blas = [f"{i['internal_api']} {i['version']} {i.get('architecture')}" for i in threadpool_info()]
        libraries = ", ".join(sorted({name for name in blas if name.startswith(("openblas", "mkl", "blis"))}))
        yield f"NumPy {np.__version__}, SciPy {scipy.__version__}, BLAS: {libraries or 'unknown'}"
    for name in ("sklearn", "torch", "pykeops"):
        if name in sys.modules:
            yield f"{name} {sys.modules[name].__version__}"


def measured(section: str, quick: bool) -> list[Row]:
    """The section's rows, up to the first that this version of kcalib does not have."""
    rows = []
    try:
        for row in SECTIONS[section](quick):
            rows.append(row)
    except NotImplementedError as missing:
        print(f"({section}: {missing})", file=sys.stderr)
    return rows


def measured_by(python: str, section: str, quick: bool) -> dict[str, float]:
    """What another Python, with its own version of kcalib, measures."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder, "values.json")
        options = ["--sections", section, "--save", str(saved), *(["--quick"] if quick else [])]
        subprocess.run([python, __file__, *options], stdout=subprocess.DEVNULL, check=True)
        values: dict[str, float] = json.loads(saved.read_text())
        return values


def show(section: str, rows: list[Row], before: dict[str, float]) -> None:
    title = SECTIONS[section].__doc__
    if not rows:
        return
    width = max(len(row.what) for row in rows)
    old = f"{'before':>10}" if before else ""
    print(f"{title}\n{'':{width}}{old}{'measured':>10}  {'bar':8}  within")
    for row in rows:
        key = f"{section}: {row.what}"
        old = f"{number(before.get(key)):>10}" if before else ""
        print(f"{row.what:{width}}{old}{number(row.value):>10}  {row.limit:8}  {row.verdict}".rstrip(), flush=True)
    print()


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def main() -> None:
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller problems: for a first look")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION",
                        help=f"of {', '.join(SECTIONS)}")  # fmt: skip
    parser.add_argument("--save", type=Path, help="write the measured values to this file as JSON")
    parser.add_argument("--old", help="a Python that imports an older version, whose values become a column")
    arguments = parser.parse_args()

    values: dict[str, float] = {}
    for section in arguments.sections:
        begin = time.perf_counter()
        before = measured_by(arguments.old, section, arguments.quick) if arguments.old else {}
        rows = measured(section, arguments.quick)
        print(f"{section}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)
        values |= {f"{section}: {row.what}": row.value for row in rows}
        show(section, rows, before)
    print("\n".join(machine()))
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    if arguments.save:
        arguments.save.write_text(json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
