"""Check that an installed wheel computes the right numbers: `python -P tests/support/wheel_test.py`.

This takes a few seconds and needs only kcalib and its dependencies. cibuildwheel runs it with every wheel, `.ci/wheels`
with the wheel of this machine. It prints what was tested, and on which interpreter. With the argument `openmp` or `std`
it also checks that the wheel starts threads by it.
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

# The SKCE of the predictions that come with kcalib, as `kcalib demo` prints it.
DEMO = {
    "forest": 1.46e-03,
    "forest_temperature": 1.48e-05,
    "gaussian_nb": 5.96e-03,
    "logistic": -3.15e-06,
    "mlp": 5.11e-06,
    "multinomial_nb": 1.53e-03,
}


def load_predictions(model: str) -> tuple[np.ndarray, np.ndarray]:
    with (resources.files("kcalib") / "data" / f"digits_{model}.npz").open("rb") as file, np.load(file) as arrays:
        return arrays["labels"], arrays["probs"].astype(np.float64)


def check_published_numbers() -> None:
    for model, expected in DEMO.items():
        labels, probs = load_predictions(model)
        value = kcalib.skce(labels, probs)
        assert abs(value - expected) <= 0.006 * abs(expected), (model, value, expected)
    for model, miscalibrated in (("gaussian_nb", True), ("logistic", False)):
        labels, probs = load_predictions(model)
        pvalue = kcalib.calibration_test(labels[:500], probs[:500], seed=0).pvalue
        assert (pvalue < 0.05) == miscalibrated, (model, pvalue)


def check_sum_by_hand() -> None:
    """Compare the SKCE of six samples with its definition, a sum in plain Python."""
    rng = np.random.default_rng(3)
    p = rng.dirichlet((1.0, 1.0, 1.0), 6)
    y = rng.integers(3, size=6)
    total = 0.0
    for i in range(6):
        for j in range(i):
            distance = math.dist(p[i], p[j])
            residuals = [[float(y[k] == c) - p[k, c] for c in range(3)] for k in (i, j)]
            total += math.exp(-distance / 0.4) * sum(a * b for a, b in zip(*residuals, strict=True))
    value = kcalib.skce(y, p, kernel=kcalib.kernels.Exponential(bandwidth=0.4))
    assert math.isclose(value, total / 15, rel_tol=1e-12), (value, total / 15)


def check_bits_across_threads() -> None:
    labels, probs = load_predictions("mlp")
    values = {kcalib.skce(labels, probs, threads=threads) for threads in (1, 2, 5)}
    with ThreadPoolExecutor(4) as pool:  # four callers at once, also without a GIL
        values |= set(pool.map(lambda _: kcalib.skce(labels, probs), range(8)))
    assert len(values) == 1, values


def check_dtypes_and_forecasts() -> None:
    labels, probs = load_predictions("forest")
    single = kcalib.skce(labels, probs.astype(np.float32))
    assert math.isclose(single, kcalib.skce(labels, probs), rel_tol=1e-4), single
    rng = np.random.default_rng(5)
    mean = rng.standard_normal(500)
    forecast = kcalib.distributions.Normal(mean, np.full(500, 0.5))
    assert kcalib.calibration_test(mean + 0.5 * rng.standard_normal(500), forecast, seed=1).pvalue > 0.01
    assert kcalib.calibration_test(mean + 1.5 * rng.standard_normal(500), forecast, seed=1).pvalue < 0.01


def check_command() -> None:
    output = subprocess.run(
        [sys.executable, "-P", "-m", "kcalib", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert kcalib.__version__ in output, output
    files = metadata.files("kcalib") or []
    assert any(file.name == "pair_sums.cu" for file in files), "texts for GPUs are missing"


def main() -> None:
    assert kcalib.__version__ == _native.version == metadata.version("kcalib"), "versions differ"
    no_gil = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    if no_gil:
        assert not sys._is_gil_enabled(), "importing kcalib has switched the GIL on"
    for expected in sys.argv[1:]:
        assert _native.thread_library() == expected, f"the wheel has {_native.thread_library()!r}, not {expected!r}"
    start = time.perf_counter()
    for check in (
        check_published_numbers,
        check_sum_by_hand,
        check_bits_across_threads,
        check_dtypes_and_forecasts,
        check_command,
    ):
        check()
    python = f"{platform.python_implementation()} {platform.python_version()}{' without GIL' if no_gil else ''}"
    system = f"{platform.machine()}, {' '.join(filter(None, platform.libc_ver())) or platform.system()}"
    build = f"threads by {_native.thread_library()}, {_native.cpu_levels()[0]}"
    print(f"kcalib {kcalib.__version__} ({build}) on {python}, {system}")
    print(f"NumPy {np.__version__}, SciPy {scipy.__version__}: right, in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
