"""Send SIGINT and SIGTERM to calls at random moments: each ends within a second, and no file is broken.

    python -P tests/support/signal_campaign.py [SIGNALS] [SEED] [NAME OF A CALL ...]

Calls are made in children by `fork`, where SIGINT raises KeyboardInterrupt, as in a user's process, and SIGTERM ends
the process. A call is repeated until the signal comes, so that it may come at any moment of it. What the system then
has of the output files is the old file, or the new one, or for a journal one from which the call goes on. `campaign`
is called by a test with few signals.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from problems import softmax_problem

import kcalib
from kcalib import methods
from kcalib.distributions import Normal
from kcalib.kernels import Exponential
from kcalib.parallel import Serial
from kcalib.report import figures
from kcalib.streaming import CalibrationState, run, source

KERNEL = Exponential(bandwidth=0.5)
LATEST = 1.0  # seconds
Call = Callable[[Path], Any]


@functools.cache
def problem(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    return softmax_problem(n, m, seed=0)


@functools.cache
def line(n: int) -> tuple[np.ndarray, np.ndarray]:
    p = np.random.default_rng(0).uniform(size=n)
    return (p > 0.5).astype(int), p


@functools.cache
def normals(n: int) -> tuple[np.ndarray, Normal]:
    mean = np.random.default_rng(0).normal(size=n)
    return mean, Normal(mean, np.ones(n))


def state(rows: int) -> CalibrationState:
    y, p = problem(rows, 3)
    found = CalibrationState(3, n_columns=64, n_resamples=99, kernel=KERNEL, threads=1)
    found.update(y, p)
    return found


@functools.cache
def states() -> tuple[CalibrationState, CalibrationState]:
    """That before, and that after a call that writes it."""
    return state(200), state(400)


def save(folder: Path) -> None:
    states()[1].save(folder / "state.kcalib")


def checkpointed(folder: Path) -> None:
    options = {"n_columns": 64, "n_resamples": 99, "kernel": KERNEL, "threads": 1}
    (folder / "run.kcalib").unlink(missing_ok=True)
    run(CalibrationState(3, **options), source(problem(20_000, 3)), checkpoint=folder / "run.kcalib", chunk_rows=512)


def journalled(folder: Path) -> Any:
    return kcalib.skce(*problem(2500, 3), kernel=KERNEL, backend=Serial(journal=folder / "run.journal", tile_size=192))


@functools.cache
def panel() -> figures.Panel:
    diagram = kcalib.reliability(*line(2000))
    return figures.Panel("a", None, False, (), diagram, figures.RELIABILITY)


def same_journal(folder: Path) -> bool:
    return journalled(folder) == kcalib.skce(*problem(2500, 3), kernel=KERNEL)


# What is left of a file is one of these; a checkpoint holds rows that came so far.
FILES: dict[str, Callable[[Path], bool]] = {
    "state.kcalib": lambda folder: CalibrationState.load(folder / "state.kcalib") in states(),
    "run.kcalib": lambda folder: CalibrationState.load(folder / "run.kcalib").n_samples <= 20_000,
    "run.journal": same_journal,
    "out.svg": lambda folder: (folder / "out.svg").read_bytes().rstrip().endswith(b"</svg>"),
}

CALLS: dict[str, Call] = {
    "skce": lambda _: kcalib.skce(*problem(30_000, 10), kernel=KERNEL),
    "skce on a line": lambda _: kcalib.skce(*line(500_000), kernel=KERNEL),
    "skce by features": lambda _: kcalib.skce(*problem(200_000, 10), kernel=KERNEL, estimator="features"),
    "skce of distributions": lambda _: kcalib.skce(*normals(3000)),
    "median": lambda _: kcalib.bandwidth.median_distance(problem(20_000, 10)[1]),
    "exact": lambda _: kcalib.calibration_test(*problem(10_000, 3), kernel=KERNEL, method=methods.Exact()),
    "bootstrap": lambda _: kcalib.calibration_test(*problem(10_000, 3), kernel=KERNEL, method=methods.Bootstrap()),
    "spectrum": lambda _: kcalib.calibration_test(*problem(10_000, 3), kernel=KERNEL, method=methods.Spectrum()),
    "ckce": lambda _: kcalib.ckce(*problem(3000, 3)),
    "class-wise": lambda _: kcalib.class_wise_ece(*problem(20_000, 50), n_bins="risk"),
    "canonical": lambda _: kcalib.canonical_ece(*problem(100_000, 10)),
    "densities": lambda _: kcalib.kde_calibration_error(*problem(5000, 5)),
    "mmce": lambda _: kcalib.mmce(*problem(100_000, 10)),
    "evaluate": lambda _: kcalib.evaluate(*problem(5000, 5)),
    "temperature": lambda _: kcalib.recalibration.TemperatureScaling().fit(*problem(50_000, 10)),
    "state": lambda _: state(20_000),
    "save": save,
    "checkpoint": checkpointed,
    "journal": journalled,
    "picture": lambda folder: figures.plot_reliability([panel()], folder / "out.svg"),
}


def unraised(ignored: Any) -> None:
    """What Python does not raise where an interrupt comes at the wrong moment.

    It throws away what is raised in a callback of its garbage collector: the interrupt itself, now and then. And it
    warns of a file that was opened, a module's by its importer or our own, and that nothing had a name for yet: the
    collector closes it, and the interrupt goes on.
    """
    if ignored.exc_type is not ResourceWarning:
        os._exit(0 if ignored.exc_type is KeyboardInterrupt else 1)


def child(call: Call, folder: Path, ready: int) -> None:
    """Repeats the call until a signal ends it."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.unraisablehook = unraised
        os.write(ready, b".")
        while True:
            call(folder)
            (folder / "run.journal").unlink(missing_ok=True)  # from which the next call would have it all
    except (KeyboardInterrupt, kcalib.streaming.RunStopped):
        code = 0
    except BaseException as error:
        # Up to 3.11, Python makes another exception of an interrupt while a class of a module is being made.
        code = 0 if isinstance(error.__cause__, KeyboardInterrupt) else 1
        if code:
            os.write(2, "".join(traceback.format_exception(error)).encode())  # what is buffered ends with this process
    os._exit(code)


def stopped(call: Call, folder: Path, number: signal.Signals, after: float) -> float:
    """Seconds from the signal to the end of the process that makes the call."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(call, folder, writing)
    os.close(writing)
    assert os.read(reading, 1) == b"."
    os.close(reading)
    time.sleep(after)
    begin = time.monotonic()
    os.kill(pid, number)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        seconds = time.monotonic() - begin
        if ended:
            break
        if seconds > 60 * LATEST:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"{number.name} after {after:.3f} s: the process went on")
        time.sleep(0.002)
    assert status == 0 or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == number == signal.SIGTERM), status
    return seconds


def campaign(signals: int, seed: int, folder: Path, names: list[str] | None = None) -> dict[str, list[float]]:
    """For each call the seconds from signal to end."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[float]] = {}
    for name in names or CALLS:
        if name in ("save", "picture"):  # the file that is there before
            CALLS[name](folder)
        for _ in range(signals):
            number = signal.SIGINT if rng.uniform() < 0.7 else signal.SIGTERM
            seconds = stopped(CALLS[name], folder, number, 10.0 ** rng.uniform(-3, 0.3))
            found.setdefault(name, []).append(seconds)
            for file in sorted(folder.iterdir()):
                if not file.name.endswith(".part"):  # of SIGTERM, which leaves no time; the next writer removes it
                    assert FILES[file.name](folder), f"{name}: {file.name} is broken"
            (folder / "run.journal").unlink(missing_ok=True)
    return found


if __name__ == "__main__":
    each, seed = (int(argument) for argument in (sys.argv[1:] + ["20", "0"][len(sys.argv) - 1 :])[:2])
    with tempfile.TemporaryDirectory() as name:
        for call in sys.argv[3:] or CALLS:
            (seconds,) = campaign(each, seed, Path(name), [call]).values()
            late, most = sum(one > LATEST for one in seconds), max(seconds)
            print(f"{call:24} {len(seconds)} signals, at most {most:.2f} s to the end, {late} late", flush=True)
