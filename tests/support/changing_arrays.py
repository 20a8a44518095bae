"""Calls public functions while another process writes labels and predictions into the memory that they read.

Ends with status 0 if every call returned or raised one of the exceptions of Python. Run by
tests/backend/test_changing_arrays.py in a process of its own, since what it looks for ends the process:

    python tests/support/changing_arrays.py FOLDER SECONDS
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

import kcalib

N, M = 3000, 4
FAR = np.array([0, 1, -1, 3, M, 2**31 - 1, 2**40, -(2**40), 2**62])
ODD = np.array([0.1, 0.7, 0.0, 1.0, np.nan, np.inf, -np.inf, -1e300, 1e300, 2.0])


def arrays(folder: Path, mode: str) -> tuple[np.ndarray, np.ndarray]:
    labels = np.memmap(folder / "labels", np.int64, mode, shape=(N,))
    return labels, np.memmap(folder / "p", np.float64, mode, shape=(N, M))


def good(m: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m)
    p = rng.dirichlet(np.ones(m), N)
    return rng.integers(0, m, N), p


def write_for_ever(folder: Path) -> None:
    """Good labels and predictions, and then some that are not, again and again."""
    labels, p = arrays(folder, "r+")
    rng = np.random.default_rng(0)
    binary = p.reshape(-1)[: 2 * N].reshape(N, 2)  # where the binary problems look
    parent = os.getppid()
    while os.getppid() == parent:
        for m, view in ((2, binary), (M, p)):
            labels[:], view[:] = good(m)
            time.sleep(rng.exponential(1e-3))
            if rng.random() < 0.5:
                labels[:] = rng.choice(FAR, N)
            else:
                rows = rng.random(N) < 0.5
                view[rows] = rng.choice(ODD, (int(rows.sum()), m))
                view[-1] = 0
            time.sleep(rng.exponential(1e-3))


def calls() -> list[Callable[[np.ndarray, np.ndarray], object]]:
    fixed = {"bandwidth": 0.3}
    kernel = kcalib.kernels.Exponential(**fixed)
    return [
        kcalib.brier_score,
        kcalib.log_loss,
        kcalib.brier_decomposition,
        kcalib.top_label_ece,
        kcalib.class_wise_ece,
        kcalib.canonical_ece,
        lambda y, p: kcalib.canonical_ece(y, p, binning="median_variance", min_bin_size=2),
        lambda y, p: kcalib.top_label_ece(y, p, binning="equal_mass"),
        lambda y, p: kcalib.skce(y, p, kernel=kernel),
        lambda y, p: kcalib.skce(y, p, kernel=kernel, estimator=kcalib.methods.BlockEstimator(block_size=7)),
        lambda y, p: kcalib.skce(y, p, kernel=kernel, lens=kcalib.lenses.TopLabel()),
        lambda y, p: kcalib.mmce(y, p),
        lambda y, p: kcalib.jkce(y, p, kernel=kernel),
        lambda y, p: kcalib.ucme(y, p, kernel=kernel),
        lambda y, p: kcalib.calibration_test(y, p, method="block", kernel=kernel, seed=0),
        lambda y, p: kcalib.calibration_test(y, p, method="features", kernel=kernel, seed=0),
        lambda y, p: kcalib.calibration_test(
            y[:300], p[-300:], method=kcalib.methods.Exact(n_resamples=20), kernel=kernel, seed=0
        ),
        lambda y, p: kcalib.calibration_test(y, p, method="cme", kernel=kernel, seed=0),
        lambda y, p: kcalib.calibration_test(y, p, method="consistency", seed=0),
        lambda y, p: kcalib.calibration_test(
            y[:300],
            p[-300:],
            method=kcalib.methods.Consistency(estimator="unbiased", n_resamples=20),
            kernel=kernel,
            seed=0,
        ),
        lambda y, p: kcalib.calibration_test(y[:300], p[-300:], method="spectrum", kernel=kernel, seed=0),
        lambda y, p: kcalib.reliability(y, p, seed=0, binning="isotonic"),
        lambda y, p: kcalib.compare(y, {"a": p, "b": p[::-1]}, metric="ece", seed=0),
        lambda y, p: kcalib.streaming.CalibrationState(p.shape[1], n_columns=64, n_resamples=9).update(y, p),
        lambda y, p: kcalib.kde_calibration_error(y, p, bandwidth=0.1),
        kcalib.reliability,
        kcalib.skce,
    ]


def run(folder: Path, seconds: float) -> None:
    for name, array in zip(("labels", "p"), good(M), strict=True):
        array.tofile(folder / name)
    labels, p = arrays(folder, "r")
    binary = p.reshape(-1)[: 2 * N].reshape(N, 2)
    for call in calls():  # before anything changes all of them return
        call(labels, p)
    writer = subprocess.Popen([sys.executable, "-P", __file__, str(folder), "write"], stdout=subprocess.DEVNULL)
    ends = time.monotonic() + seconds
    done = refused = 0
    try:
        while time.monotonic() < ends:
            for call in calls():
                for view in (binary, p):
                    try:
                        call(labels, view)
                        done += 1
                    except Exception:  # any of those of Python's
                        refused += 1
    finally:
        writer.kill()
        writer.wait()
    print(done, "calls returned,", refused, "were refused")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if sys.argv[2] == "write":
        write_for_ever(Path(sys.argv[1]))
    else:
        run(Path(sys.argv[1]), float(sys.argv[2]))
