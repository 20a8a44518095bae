"""Does an installed wheel compute what it should? `python -P tests/support/wheel_test.py`, in a few seconds.

Needs kcalib and what it depends on, nothing else: cibuildwheel runs it with every wheel, .ci/wheels with those that are
built on this machine. It prints what was tested, and on which interpreter. With an argument, `openmp` or `std`,
also whether the wheel starts threads by it.
"""

from __future__ import annotations

import math
import platform
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata, resources

import numpy as np
import scipy

import kcalib
from kcalib import _native

# The SKCE of predictions that come with kcalib, as the README prints it.
DEMO = {
    "forest": 1.46e-03,
    "forest_temperature": 1.48e-05,
    "gaussian_nb": 5.96e-03,
    "logistic": -3.15e-06,
    "mlp": 5.11e-06,
    "multinomial_nb": 1.53e-03,
}


def predictions(model: str) -> tuple[np.ndarray, np.ndarray]:
    with (resources.files("kcalib") / "data" / f"digits_{model}.npz").open("rb") as file, np.load(file) as arrays:
        return arrays["labels"], arrays["probs"].astype(np.float64)


def published_numbers() -> None:
    for model, value in DEMO.items():
        labels, probs = predictions(model)
        found = kcalib.skce(labels, probs)
        assert abs(found - value) <= 0.006 * abs(value), (model, found, value)
    for model, miscalibrated in (("gaussian_nb", True), ("logistic", False)):
        labels, probs = predictions(model)
        found = kcalib.calibration_test(labels[:500], probs[:500], seed=0).pvalue
        assert (found < 0.05) == miscalibrated, (model, found)


def by_hand() -> None:
    """The SKCE of six samples as the sum that its definition is, without an array and without compiled code."""
    rng = np.random.default_rng(3)
    p = rng.dirichlet((1.0, 1.0, 1.0), 6)
    y = rng.integers(3, size=6)
    total = 0.0
    for i in range(6):
        for j in range(i):
            distance = math.dist(p[i], p[j])
            residuals = [[float(y[k] == c) - p[k, c] for c in range(3)] for k in (i, j)]
            total += math.exp(-distance / 0.4) * sum(a * b for a, b in zip(*residuals, strict=True))
    found = kcalib.skce(y, p, kernel=kcalib.kernels.Exponential(bandwidth=0.4))
    assert math.isclose(found, total / 15, rel_tol=1e-12), (found, total / 15)


def same_bits_by_threads() -> None:
    labels, probs = predictions("mlp")
    values = {kcalib.skce(labels, probs, threads=threads) for threads in (1, 2, 5)}
    with ThreadPoolExecutor(4) as pool:  # four callers at once: without a GIL, too
        values |= set(pool.map(lambda _: kcalib.skce(labels, probs), range(8)))
    assert len(values) == 1, values


def other_dtypes_and_forecasts() -> None:
    labels, probs = predictions("forest")
    single = kcalib.skce(labels, probs.astype(np.float32))
    assert math.isclose(single, kcalib.skce(labels, probs), rel_tol=1e-4), single
    rng = np.random.default_rng(5)
    mean = rng.standard_normal(500)
    forecast = kcalib.distributions.Normal(mean, np.full(500, 0.5))
    assert kcalib.calibration_test(mean + 0.5 * rng.standard_normal(500), forecast, seed=1).pvalue > 0.01
    assert kcalib.calibration_test(mean + 1.5 * rng.standard_normal(500), forecast, seed=1).pvalue < 0.01


def the_command() -> None:
    said = subprocess.run(
        [sys.executable, "-P", "-m", "kcalib", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert kcalib.__version__ in said, said
    files = metadata.files("kcalib") or []
    assert any(file.name == "pair_sums.cu" for file in files), "texts for GPUs are missing"


def main() -> None:
    assert kcalib.__version__ == _native.version == metadata.version("kcalib"), "versions differ"
    no_gil = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    if no_gil:
        assert not sys._is_gil_enabled(), "importing kcalib has switched the GIL on"
    for meant in sys.argv[1:]:
        assert _native.thread_library() == meant, f"the wheel has {_native.thread_library()!r}, not {meant!r}"
    began = time.perf_counter()
    for check in (published_numbers, by_hand, same_bits_by_threads, other_dtypes_and_forecasts, the_command):
        check()
    python = f"{platform.python_implementation()} {platform.python_version()}{' without GIL' if no_gil else ''}"
    system = f"{platform.machine()}, {' '.join(filter(None, platform.libc_ver())) or platform.system()}"
    build = f"threads by {_native.thread_library()}, {_native.cpu_levels()[0]}"
    print(f"kcalib {kcalib.__version__} ({build}) on {python}, {system}")
    print(f"NumPy {np.__version__}, SciPy {scipy.__version__}: right, in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
