"""The command in tests: run in this process, or as a child that is slow enough to be interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from kcalib._command.cli import main

N = 5000
SLOW = Path(__file__).with_name("slow_command.py")


def predictions():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=N)
    return (rng.uniform(size=(N, 1)) > np.cumsum(p, axis=1)).sum(axis=1), p


def ran(*arguments, code=0):
    assert main([*map(str, arguments)]) == code


def error_line(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kcalib: error: ") and err.count("\n") == 1, err
    return err.removeprefix("kcalib: error: ").strip()


def usage_error(capsys, *arguments):
    assert main([*map(str, arguments)]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def started(*arguments, seconds_a_row=2e-3):
    environment = {**os.environ, "KCALIB_TEST_SECONDS_A_ROW": str(seconds_a_row), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(SLOW), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def saved(file, process):
    """Wait until a state is there."""
    while not file.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
