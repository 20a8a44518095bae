"""All that wants an NVIDIA GPU, in one go: contract tests, accuracy beside the CPU, speed beside the device's limit.

    python asv_benches/gpu.py [--steps tests accuracy sanitizer speed] [--quick] [--only TEXT] [--save FILE]

prints a table with the card's name, and saves it. Exit code 1: a test failed, or a number is off; 2: there is no GPU.
"yes" and "no" say whether a value is within its bar. `--rehearse` goes through all of it on the CPU, on few samples,
with the module of the tests that stands for CuPy; its times mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import bench_gpu
from benchmarks.common import BANDWIDTH, predictions

ROOT = Path(__file__).resolve().parent.parent
STEPS = ("tests", "accuracy", "sanitizer", "speed")
TOLERANCE = 1e-12  # relative, float64
SOLVED = 1e-9  # p-values that follow from a statistic, and solutions: rounding times a condition number
COMPARED = ("value", "statistic", "standard_error", "pvalue", "low", "high", "")  # numbers of results, by name
BAR = 0.6  # of the device's limit
# What compute-sanitizer runs: every kind of sweep, on a few hundred samples.
SMALL = """
import cupy, numpy as np, kcalib
rng = np.random.default_rng(0)
for n, m in ((200, 3), (300, 12)):
    p = rng.dirichlet(np.ones(m), n)
    y = cupy.asarray((rng.uniform(size=(n, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(0, m - 1))
    p = cupy.asarray(p)
    kcalib.skce.result(y, p)
    kcalib.skce(y, p, estimator="block")
    for method in ("bootstrap", "multiplier", "spectrum"):
        kcalib.calibration_test(y, p, method=method, seed=0)
    kcalib.ckce(y, p, method="cg")
    kcalib.kde_calibration_error(y, p, bandwidth=0.1)
p = rng.uniform(size=2000)
kcalib.skce.result(cupy.asarray(rng.uniform(size=2000) < p), cupy.asarray(p))
"""


@dataclasses.dataclass
class Report:
    """Lines, printed as they come."""

    lines: list[str] = dataclasses.field(default_factory=list)
    failed: bool = False

    def add(self, line: str = "") -> None:
        print(line, flush=True)
        self.lines.append(line)

    def check(self, right: bool) -> str:
        self.failed |= not right
        return "yes" if right else "no"


def numbers_of(value: Any) -> dict[str, float]:
    """The numbers of a result that are compared, by name."""
    if isinstance(value, (bool, str)) or value is None:
        return {}
    if dataclasses.is_dataclass(value):
        compared = [field.name for field in dataclasses.fields(value) if field.name in COMPARED]
        return {name: float(getattr(value, name)) for name in compared if getattr(value, name) is not None}
    try:
        return {"": float(value)}
    except (TypeError, ValueError):
        return {}


def calls(n: int, classes: tuple[int, ...]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """What is compared: a name, and a function of the library's asarray."""
    import kcalib

    kernel, gaussian = (kind(bandwidth=BANDWIDTH) for kind in (kcalib.kernels.Exponential, kcalib.kernels.Gaussian))

    def overconfident(m: int) -> tuple[np.ndarray, np.ndarray]:
        labels, p = predictions(n, m)
        p = p**1.5
        return labels, p / p.sum(axis=1, keepdims=True)

    for m in classes:
        y, p = overconfident(m)

        def call(function: Any, y: np.ndarray = y, p: np.ndarray = p, **options: Any) -> Callable[..., Any]:
            return lambda asarray: function(asarray(y), asarray(p), **options)

        for estimator in ("unbiased", "biased", "block", "linear"):
            yield f"skce, {estimator}, m = {m}", call(kcalib.skce.result, kernel=kernel, estimator=estimator)
        for name in ("Gaussian", "Matern", "RationalQuadratic", "GammaExponential"):
            other = getattr(kcalib.kernels, name)(bandwidth=BANDWIDTH)
            yield f"skce, {name}, m = {m}", call(kcalib.skce.result, kernel=other)
        yield f"skce, median heuristic, m = {m}", call(kcalib.skce.result)
        for method in ("exact", "bootstrap", "multiplier", "spectrum", "pearson", "gamma", "linear", "block", "cme"):
            options = {} if method == "gamma" else {"seed": 0}
            yield f"test, {method}, m = {m}", call(kcalib.calibration_test, method=method, kernel=kernel, **options)
        yield f"ucme, m = {m}", call(kcalib.ucme.result, kernel=kernel, seed=0)
        for method in ("cholesky", "cg", "pivoted_cholesky"):
            yield f"ckce, {method}, m = {m}", call(kcalib.ckce.result, kernel=gaussian, method=method)
        yield f"kde, m = {m}", call(kcalib.kde_calibration_error.result, bandwidth=0.1)
        yield f"top-label ECE, m = {m}", call(kcalib.top_label_ece)
        yield f"Brier score, m = {m}", call(kcalib.brier_score)
    rng = np.random.default_rng(0)
    mean = rng.normal(size=n)
    y, std = mean + 1.3 * rng.normal(size=n), np.exp(0.3 * rng.normal(size=n))

    def of_normal(asarray: Any) -> Any:
        return kcalib.skce.result(asarray(y), kcalib.distributions.Normal(asarray(mean), asarray(std)))

    yield "skce of normal predictions", of_normal


def accuracy(report: Report, n: int, classes: tuple[int, ...], only: str) -> None:
    cupy = bench_gpu.cupy_module()
    report.add(
        f"Accuracy: GPU beside CPU, n = {n:,}, float64 (bar: {TOLERANCE:g} relative; p-values of resampling equal;"
    )
    report.add(f"{SOLVED:g} of other p-values, and of what solves linear systems)")
    report.add(f"{'call':44} {'largest relative difference':>28}  within")
    for name, function in (call for call in calls(n, classes) if only in call[0]):
        try:
            here, there = numbers_of(function(np.asarray)), numbers_of(function(cupy.asarray))
        except NotImplementedError as error:
            report.add(f"{name:44} {'not on a GPU':>28}  {str(error)[:60]}")
            continue
        worst, off = 0.0, []
        for key, value in here.items():
            difference = 0.0 if value == there[key] else abs(there[key] - value) / abs(value)
            resampled = any(method in name for method in ("exact", "bootstrap", "multiplier"))
            solved = name.startswith("ckce") or "cme" in name or (key == "pvalue" and not resampled)
            bar = SOLVED if solved else 0.0 if key == "pvalue" else TOLERANCE
            worst = max(worst, difference)
            off += [f"{key}: {difference:.1e}"] if not difference <= bar else []
        report.add(f"{name:44} {worst:28.1e}  {report.check(not off)} {', '.join(off)}")
    report.add()


def tests(report: Report, rehearse: bool) -> None:
    selected = ["tests/backend/test_cuda.py", "-m", "not slow"] if rehearse else ["-m", "gpu"]
    command = [sys.executable, "-P", "-m", "pytest", "-q", "--no-header", *selected]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = result.stdout.strip().splitlines()[-1] if result.stdout.strip() else result.stderr[-500:]
    report.add(f"Tests: {' '.join(command[3:])}: {last}  {report.check(result.returncode == 0)}")
    if result.returncode:
        print(result.stdout[-6000:])
    report.add()


def sanitizer(report: Report) -> None:
    program = shutil.which("compute-sanitizer")
    if program is None:
        report.add("compute-sanitizer is not on the PATH: not run")
        return
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        command = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-P", "-c", SMALL]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        last = [line for line in result.stdout.splitlines() if "SUMMARY" in line] or result.stderr.splitlines()[-1:]
        report.add(f"compute-sanitizer {tool}: {' '.join(last)}  {report.check(result.returncode == 0)}")
    report.add()


def speed(report: Report, small: bool, only: str) -> None:
    report.add(
        "The device alone, 1e12 a second: multiply-adds of vector units and of cuBLAS, exponentials, square roots"
    )
    for dtype in bench_gpu.DTYPES:
        rates = [bench_gpu.vector_rate("fma", dtype), bench_gpu.matmul_rate(dtype, *([64] if small else []))]
        rates += [bench_gpu.vector_rate(what, dtype) for what in ("exp", "sqrt")]
        report.add(f"{dtype}:  " + "  ".join(f"{rate / 1e12:.4g}" for rate in rates))
    report.add()
    report.add(f"{'call':44} {'seconds':>10} {'limit':>10} {'fraction':>9}  >= {BAR:g}")
    sizes = [(200, 3, dtype) for dtype in bench_gpu.DTYPES] if small else bench_gpu.SKCE
    cases = [(f"skce, n = {n:,}, m = {m}, {d}", bench_gpu.SkceCase, n, m, d) for n, m, d in sizes]
    n = 100 if small else 100_000
    cases += [(f"bootstrap, R = {bench_gpu.RESAMPLES}, n = {n:,}, m = 10", bench_gpu.BootstrapCase, n, 10, "float64")]
    cases += [(f"ckce, conjugate gradients, n = {n:,}, m = 10", bench_gpu.CkceCase, n, 10, "float64")]
    cases += [(f"Dirichlet kernels, n = {n:,}, m = 10", bench_gpu.KdeCase, n, 10, "float64")]
    for name, kind, size, m, dtype in (case for case in cases if only in case[0]):
        case = kind(size, m, dtype)
        seconds = bench_gpu.seconds_of(case.run, 1 if small else 3)
        limit = case.limit()
        fraction = limit / seconds
        verdict = "yes" if fraction >= BAR else "no"  # a bar that is missed is no error
        report.add(f"{name:44} {seconds:10.4g} {limit:10.4g} {fraction:9.3f}  {verdict}")
        del case
    report.add()


def card(rehearse: bool) -> str:
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    name = properties["name"].decode()
    versions = f"driver {cupy.cuda.runtime.driverGetVersion()}, runtime {cupy.cuda.runtime.runtimeGetVersion()}"
    if rehearse:
        return "a rehearsal on the CPU: no number below is of a GPU"
    return f"{name}, compute capability {cupy.cuda.Device().compute_capability}, {versions}, CuPy {cupy.__version__}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--quick", action="store_true", help="accuracy and speed on few samples")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="accuracy and speed of calls with this in their names"
    )
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, where CuPy is emulated")
    parser.add_argument("--save", type=Path, help="file that the table goes to, too")
    arguments = parser.parse_args()
    stand_in: Any = contextlib.nullcontext()
    if arguments.rehearse:
        sys.path.insert(0, str(ROOT / "tests"))
        import emulated_cupy

        stand_in = emulated_cupy.installed()
        bench_gpu.SECONDS, bench_gpu.BLOCKS, bench_gpu.GRAM, bench_gpu.RESAMPLES = 1e-4, 2, 64, 40
    with stand_in:
        try:
            bench_gpu.cupy_module()
        except NotImplementedError as error:
            print(f"{error}; this script needs an NVIDIA GPU and CuPy: pip install 'kcalib[cuda13]'", file=sys.stderr)
            return 2
        import kcalib

        report, small = Report(), arguments.quick or arguments.rehearse
        report.add(f"kcalib {kcalib.__version__} on {card(arguments.rehearse)}; Python {platform.python_version()}")
        report.add(time.strftime("%Y-%m-%d"))
        report.add()
        if "tests" in arguments.steps:
            tests(report, arguments.rehearse)
        if "accuracy" in arguments.steps:
            size = (100, (2, 12)) if arguments.rehearse else (600 if small else 3000, (2, 10, 200))
            accuracy(report, *size, arguments.only)
        if "sanitizer" in arguments.steps and not arguments.rehearse:
            sanitizer(report)
        if "speed" in arguments.steps:
            speed(report, small, arguments.only)
    if arguments.save is not None:
        arguments.save.write_text("\n".join(report.lines) + "\n", encoding="utf-8")
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
