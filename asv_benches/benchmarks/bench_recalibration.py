"""Fits of recalibrators and their choice: seconds, beside other libraries, and on a machine that is busy."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from .common import cached_predictions, require, seconds_of

THREADS = 2
FITS = {
    "temperature": ("TemperatureScaling", {}),
    "vector": ("VectorScaling", {}),
    "matrix": ("MatrixScaling", {}),
    "dirichlet": ("DirichletCalibration", {}),
    "platt": ("PlattScaling", {}),
    "beta": ("BetaCalibration", {}),
}
PEERS = ("scikit-learn", "netcal", "dirichletcal")


def over_confident(n, m):
    """Labels and predictions that are twice as sure as they should be, shapes (n,) and (n, m)."""
    labels, p = cached_predictions(n, m)
    powers = np.maximum(p, 1e-30) ** 2
    return labels, powers / powers.sum(axis=1, keepdims=True)


def fit(name, labels, p):
    method, options = FITS[name]
    recalibration = require(f"recalibration.{method}").recalibration
    return getattr(recalibration, method)(**options).fit(labels, p)


def choose(labels, p):
    return require("recalibration.choose").recalibration.choose(labels, p)


def peer(name, method):
    """The fit of another library, as a function of labels and predictions; NotImplementedError if it has none."""
    with contextlib.suppress(ImportError):
        if (name, method) == ("scikit-learn", "dirichlet"):
            from sklearn.linear_model import LogisticRegression

            return lambda y, p: LogisticRegression(C=1.0, max_iter=1000, tol=1e-6).fit(np.log(p), y)
        if (name, method) == ("netcal", "temperature"):
            from netcal.scaling import TemperatureScaling

            return lambda y, p: TemperatureScaling().fit(p, y)
        if (name, method) == ("netcal", "vector"):
            from netcal.scaling import LogisticCalibration

            return lambda y, p: LogisticCalibration().fit(p, y)
        if (name, method) == ("dirichletcal", "dirichlet"):
            from dirichletcal import DirichletCalibrator

            return lambda y, p: DirichletCalibrator(reg_lambda=1e-2).fit(p, y)
    raise NotImplementedError(f"{name} is not installed, or has no {method}")


def seconds(function, *arguments, rounds=3):
    """The median of the time of a call, after one that is not measured if there are several."""
    if rounds > 1:
        function(*arguments)
    return float(np.median([seconds_of(partial(function, *arguments), THREADS) for _ in range(rounds)]))


def report(files):
    """Seconds of `kcalib report` on files, and until it says on a terminal what it does."""
    import pty

    with tempfile.TemporaryDirectory() as folder:
        terminal, stderr = pty.openpty()
        command = [sys.executable, "-P", "-m", "kcalib", "report", *files, "-o", str(Path(folder, "page.html"))]
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr) as process:
            os.close(stderr)
            times = []
            with contextlib.suppress(OSError):  # the end of the terminal
                while os.read(terminal, 65536):
                    times.append(time.perf_counter() - start)
        os.close(terminal)
        if process.returncode:
            raise RuntimeError("kcalib report failed")
        seconds = time.perf_counter() - start
        return seconds, times[0] if times else seconds


def report_of_two(n, m):
    """The same of two models of n samples."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder, name)) for name in ("first.npz", "second.npz")]
        labels, p = over_confident(n, m)
        np.savez(files[0], labels=labels, probs=p)
        np.savez(files[1], labels=labels, probs=cached_predictions(n, m)[1])
        return report(files)


def calls(n, m):
    """Public calls that a busy machine may hold up, by name."""
    labels, p = over_confident(n, m)
    kcalib = require("evaluate")
    models = {"given": p, "true": cached_predictions(n, m)[1]}
    return {
        "skce": lambda: kcalib.skce(labels, p),
        "calibration_test": lambda: kcalib.calibration_test(labels, p),
        "evaluate": lambda: kcalib.evaluate(labels, p),
        "compare": lambda: kcalib.compare(labels, models),
        "compare, ckce": lambda: kcalib.compare(labels, models, metric="ckce"),
        "ckce": lambda: kcalib.ckce(labels, p),
        **{f"fit of {name}": partial(fit, name, labels, p) for name in FITS},
        "choose": partial(choose, labels, p),
    }


def _run_endlessly():
    while True:
        pass


@contextlib.contextmanager
def endless_loops(count):
    """Keep so many processors busy."""
    loops = [multiprocessing.get_context("spawn").Process(target=_run_endlessly, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    time.sleep(1.0)  # until they run
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def busy_over_idle(function, rounds=3, count=THREADS):
    """Time of a call beside endless loops over that without them: by the clock, and of processors.

    By the clock it is about 2 where each thread of the call shares a processor with a loop. Processors spend more than
    without loops where threads wait for each other by spinning.
    """
    function()
    idle = np.median([_both_times(function) for _ in range(rounds)], axis=0)
    with endless_loops(count):
        busy = np.median([_both_times(function) for _ in range(rounds)], axis=0)
    return tuple(float(ratio) for ratio in busy / idle)


def _both_times(function):
    start = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - start[0], time.process_time() - start[1]


class TimeFits:
    """Fits of over-confident predictions of 5000 samples and 10 classes."""

    params = tuple(FITS)
    param_names = ("method",)

    def setup(self, method):
        self.problem = over_confident(5000, 10)

    def time_fit(self, method):
        fit(method, *self.problem)
