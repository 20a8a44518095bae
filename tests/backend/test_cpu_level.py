"""KCALIB_CPU_LEVEL lowers the instruction level of the compiled core, of this process and of those that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kcalib import _native

# JSON keeps all digits of numbers.
PROGRAM = """
import json, subprocess, sys
import numpy as np
import kcalib
from kcalib import _native
from kcalib._backend.random import KINDS, Weights
from kcalib.kernels import Exponential, Matern

rng = np.random.default_rng(0)
p = rng.dirichlet(np.ones(12), size=400)
y = rng.integers(0, 12, size=400)
values = {
    "skce": [kcalib.skce(y, p, threads=threads) for threads in (1, 3)],
    "ece": [kcalib.class_wise_ece(y, p, threads=threads) for threads in (1, 3)],
    "canonical": [kcalib.canonical_ece(y, p, binning="median_variance", threads=threads) for threads in (1, 3)],
    "test": [
        kcalib.calibration_test(y, p, method=kcalib.methods.Exact(n_resamples=19), seed=0, threads=threads).pvalue
        for threads in (1, 3)
    ],
    "spectrum": [kcalib.calibration_test(y, p, method="spectrum", threads=threads).pvalue for threads in (1, 3)],
    "weights": [
        [Weights(kind, 1001, 99, 7).values(3, 97, threads=threads).sum() for kind in KINDS] for threads in (1, 3)
    ],
}
seconds = rng.uniform(size=3000)
z = rng.integers(0, 2, size=3000)
for kernel in (Exponential(0.3), Matern(0.3, nu=2.5)):
    values[repr(kernel)] = []
    for options in ({"kernel": kernel, "threads": threads} for threads in (1, 3)):
        result = kcalib.skce.result(z, seconds, **options)
        method = kcalib.methods.Bootstrap(n_resamples=99)
        bootstrap = kcalib.calibration_test(z, seconds, method=method, seed=1, **options)
        values[repr(kernel)].append([result.value, result.standard_error, *bootstrap.null_quantiles])
result = kcalib.skce.result(y, p)
child = "from kcalib import _native; print(_native.cpu_levels()[0])"
inherited = subprocess.check_output([sys.executable, "-P", "-c", child], text=True).strip()
outcome = {"values": values, "levels": _native.cpu_levels(), "machine": result.machine, "inherited": inherited}
print(json.dumps(outcome))
"""


# Weights have the same bits everywhere; eigenvalues are iterated until the p-value is known well enough.
REL = {"weights": 0.0, "spectrum": 1e-7}


def run_at(level: str, program: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"KCALIB_CPU_LEVEL": level}
    return subprocess.run([sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict]:
    processes = {level: run_at(level, PROGRAM) for level in _native.cpu_levels()}
    assert {process.stderr for process in processes.values()} == {""}
    return {level: json.loads(process.stdout) for level, process in processes.items()}


@pytest.mark.grid
def test_the_variable_chooses_the_highest_level(outcomes):
    levels = list(_native.cpu_levels())
    for level, outcome in outcomes.items():
        assert outcome["levels"] == levels[levels.index(level) :]
        assert outcome["machine"].endswith(f", {level}")
        assert outcome["inherited"] == level


def test_levels_agree_and_each_has_the_same_bits_for_any_threads(outcomes):
    expected = next(iter(outcomes.values()))["values"]
    for outcome in outcomes.values():
        for name, (first, second) in outcome["values"].items():
            assert first == second, name
            assert first == pytest.approx(expected[name][0], rel=REL.get(name, 1e-12)), name


def test_an_empty_value_is_no_value():
    done = run_at("", "from kcalib import _native; print(*_native.cpu_levels())")
    assert _native.cpu_levels() == tuple(done.stdout.split()[-len(_native.cpu_levels()) :])


@pytest.mark.parametrize("level", ["avx2", "neon" if "baseline" in _native.cpu_levels() else "v3"])
def test_a_level_that_is_not_there_is_an_error(level):
    done = run_at(level, "import kcalib._native")
    assert done.returncode != 0
    message = done.stderr.strip().splitlines()[-1]
    assert f"KCALIB_CPU_LEVEL is '{level}', expected a level that this processor has: " in message
    allowed = message.partition("has: ")[2].partition(";")[0].split(", ")
    assert message.endswith("; unset it for the best of them")
    for name in allowed:  # the remedy works
        assert run_at(name, "import kcalib._native").returncode == 0
