"""Allocations that fail, in the compiled core; files that cannot be written to their end.

NumPy and OpenMP's runtime are left their memory: the one dereferences what it did not get, the other ends the process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kcalib._backend.files import write_whole
from kcalib.kernels import Exponential
from kcalib.streaming import CalibrationState

SUPPORT = Path(__file__).parents[1] / "support"
CALLS = """
import ctypes, json, os, sys
import numpy as np, kcalib
from kcalib import _native, methods
from kcalib.distributions import Mixture, Normal
from kcalib.kernels import Exponential
from kcalib.streaming import CalibrationState

library = ctypes.CDLL(sys.argv[1])
library.arm.argtypes, library.disarm.restype = [ctypes.c_long], ctypes.c_long
rng = np.random.default_rng(0)
p = rng.dirichlet(np.ones(4), size=300)
y, c = p.argmax(axis=1), p[:, 0]
b, mean = (c > 0.5).astype(int), rng.normal(size=60)
mixture = Mixture([0.5, 0.5], [Normal(mean, np.ones(60)), Normal(mean + 1, np.ones(60))])
ties = rng.uniform(size=100_000).round(4)  # enough for two threads, each of which allocates
kernel = Exponential(bandwidth=0.5)
starts_threads = os.environ["OMP_NUM_THREADS"] != "1" and _native.thread_library() == "std"

def state():
    found = CalibrationState(4, n_columns=16, n_resamples=9, kernel=kernel)
    found.update(y, p)
    return found.skce().value

calls = {
    "skce": lambda: kcalib.skce.result(y, p).value,
    "on a line": lambda: kcalib.skce.result(b, c).value,
    "median": lambda: kcalib.bandwidth.median_distance(p).value,
    "exact": lambda: kcalib.calibration_test(y, p, method=methods.Exact(n_resamples=19), seed=0).pvalue,
    "bootstrap": lambda: kcalib.calibration_test(y, p, method=methods.Bootstrap(n_resamples=19), seed=0).pvalue,
    "ckce": lambda: kcalib.ckce(y, p),
    "ckce on a line": lambda: kcalib.ckce(b, c),
    "class-wise": lambda: kcalib.class_wise_ece(y, p),
    "ties on a line": lambda: kcalib.skce(ties > 0.5, ties[::-1]),
    "canonical": lambda: kcalib.canonical_ece(y, p, n_bins=3),
    "Dirichlet": lambda: kcalib.kde_calibration_error(y, p, bandwidth=0.1),
    "features": lambda: kcalib.skce(y, p, estimator=kcalib.methods.FeatureEstimator(32)),
    "mixtures": lambda: kcalib.skce(mean, mixture, kernel=Exponential(metric="mmd")),
    "state": state,
}
counts = {}
for name, call in calls.items():
    expected = call()
    library.arm(2**31)
    call()
    counts[name] = library.disarm()
    for k in range(1, counts[name] + 1):
        library.arm(k)
        try:
            value = call()
            # Fewer threads do the work of one that cannot be started.
            assert starts_threads and value == expected, f"{name}: allocation {k} failed, the result is {value}"
        except MemoryError:
            pass
        finally:
            library.disarm()
    assert call() == expected, name
print(json.dumps(counts))
"""


@pytest.mark.grid
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("c++") is None, reason="no compiler of C++ to preload with")
def test_every_allocation_of_the_core_that_fails_is_a_memory_error(tmp_path: Path, threads: str) -> None:
    """And leaves nothing behind: the next call has the number of the first."""
    library = tmp_path / "failing_allocations.so"
    source = SUPPORT / "failing_allocations.cpp"
    subprocess.run(["c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    done = subprocess.run(
        [sys.executable, "-P", "-c", CALLS, str(library)],
        env={**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": threads},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert min(json.loads(done.stdout).values()) >= 3


@pytest.fixture
def most_bytes():
    """``most_bytes(k)``: a file that would be longer than k bytes cannot be written; None: any can."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(k: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if k is None else k, before[1]))

    yield limit
    limit(None)


@pytest.mark.parametrize("exists", [True, False])
def test_a_write_that_fails_at_any_byte_leaves_the_old_file(tmp_path: Path, exists: bool, most_bytes) -> None:
    path, data = tmp_path / "out.bin", bytes(range(199))
    if exists:
        path.write_bytes(b"old")
    for k in range(len(data)):
        most_bytes(k)
        try:
            with pytest.raises(OSError, match="File too large"):
                write_whole(path, data)
        finally:
            most_bytes(None)
        assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == ([("out.bin", b"old")] * exists)
    write_whole(path, data)
    assert path.read_bytes() == data


@pytest.mark.parametrize("step", [997, pytest.param(1, marks=pytest.mark.slow)])
def test_a_state_that_cannot_be_saved_to_its_end_leaves_the_old_one(tmp_path: Path, step: int, most_bytes) -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=40)
    state = CalibrationState(3, n_columns=16, n_resamples=3, kernel=Exponential(bandwidth=0.5))
    state.update(p[:20].argmax(axis=1), p[:20])
    path = tmp_path / "s.kcalib"
    state.save(path)
    before = path.read_bytes()
    state.update(p[20:].argmax(axis=1), p[20:])
    size = len(state.to_bytes())
    for k in [*range(0, size, step), size - 1]:
        most_bytes(k)
        try:
            with pytest.raises(OSError, match="File too large"):
                state.save(path)
        finally:
            most_bytes(None)
        assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    state.save(path)
    assert CalibrationState.load(path) == state
