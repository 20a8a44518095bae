"""Kill a checkpointed run at random moments, resume it, and compare the bits of the end with an undisturbed run's.

    python tests/support/kill_campaign.py [KILLS] [SEED]

`campaign` is called by a test with few kills. Runs are children by `fork`, so that most of their time is the run.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np

from kcalib.streaming import CalibrationState, run, source

ROWS, CHUNK = 30_000, 512


def problem(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(3, 0.3), size=ROWS)
    y = (rng.uniform(size=(ROWS, 1)) > np.cumsum(p, axis=1)).sum(axis=1)
    np.savez(folder / "predictions.npz", labels=y, probs=p)
    return folder / "predictions.npz"


def ended(data: Path, checkpoint: Path) -> CalibrationState:
    state = CalibrationState(3, n_columns=32, n_resamples=19, threads=1)
    return run(state, source(str(data)), checkpoint=checkpoint, resume=True, chunk_rows=CHUNK)


def campaign(kills: int, seed: int, folder: Path) -> tuple[int, int]:
    """Runs that came to their end, all with the right bits, and the temporary files that were ever left."""
    data = problem(folder)
    begin = time.perf_counter()
    expected = ended(data, folder / "undisturbed.kcalib").to_bytes()
    seconds = time.perf_counter() - begin
    rng, checkpoint = np.random.default_rng(seed), folder / "run.kcalib"
    done, left = 0, 0
    while kills:
        child = os.fork()
        if child == 0:
            try:
                ended(data, checkpoint)
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
            ended(data, checkpoint)
        elif status:
            raise AssertionError("a run that was resumed failed")
        if CalibrationState.load(checkpoint).to_bytes() != expected:
            raise AssertionError(f"other bits than those of the undisturbed run, with {kills} kills to go, seed {seed}")
        checkpoint.unlink()
        done += 1
    return done, left


if __name__ == "__main__":
    kills, seed = (int(argument) for argument in (sys.argv[1:] + ["1000", "0"][len(sys.argv) - 1 :])[:2])
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done, left = campaign(kills, seed, Path(folder))
    print(
        f"{kills} kills, {done} runs that came to their end with the bits of the undisturbed one, "
        f"{left} kills while a file was being written, {time.perf_counter() - start:.0f} s"
    )
