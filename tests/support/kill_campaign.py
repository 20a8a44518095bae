"""Kill a checkpointed run at random moments, resume it, and compare the bits of the end with an undisturbed run's.

`campaign` is called by tests, by a slow one with many kills. Runs are children by `fork`, so that most of their time is
the run.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from pathlib import Path

import numpy as np

from kcalib.streaming import CalibrationState, ForecastState, load, run, source

ROWS, CHUNK = 30_000, 512


def problem(folder: Path, kind: str) -> Path:
    rng = np.random.default_rng(0)
    path = folder / "predictions.npz"
    if kind == "classes":
        p = rng.dirichlet(np.full(3, 0.3), size=ROWS)
        y = (rng.uniform(size=(ROWS, 1)) > np.cumsum(p, axis=1)).sum(axis=1)
        np.savez(path, labels=y, probs=p)
    else:
        mean, std = rng.normal(size=ROWS), rng.uniform(0.5, 2, size=ROWS)
        np.savez(path, y=mean + std * rng.normal(size=ROWS), mean=mean, std=std)
    return path


def ended(data: Path, checkpoint: Path, kind: str) -> CalibrationState | ForecastState:
    options = {"n_columns": 32, "n_resamples": 19 if kind == "classes" else 2, "threads": 1}
    state = CalibrationState(3, **options) if kind == "classes" else ForecastState(**options)
    return run(state, source(str(data)), checkpoint=checkpoint, resume=True, chunk_rows=CHUNK)


def campaign(kills: int, seed: int, folder: Path, kind: str = "classes") -> tuple[int, int]:
    """Runs that came to their end, all with the right bits, and the temporary files that were ever left."""
    data = problem(folder, kind)
    begin = time.perf_counter()
    expected = ended(data, folder / "undisturbed.kcalib", kind).to_bytes()
    seconds = time.perf_counter() - begin
    rng, checkpoint = np.random.default_rng(seed), folder / "run.kcalib"
    done, left = 0, 0
    while kills:
        child = os.fork()
        if child == 0:
            try:
                ended(data, checkpoint, kind)
                os._exit(0)
            except BaseException as error:
                traceback.print_exception(error)
                os._exit(1)
        time.sleep(rng.uniform(0, seconds / 3))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        left += len(list(folder.glob(".*.part")))
        if os.WIFSIGNALED(status):
            kills -= 1
            if kills and rng.uniform() < 0.8:
                continue
            ended(data, checkpoint, kind)
        elif status:
            raise AssertionError("a run that was resumed failed")
        if load(checkpoint).to_bytes() != expected:
            raise AssertionError(f"other bits than those of the undisturbed run, with {kills} kills to go, seed {seed}")
        checkpoint.unlink()
        done += 1
    return done, left
