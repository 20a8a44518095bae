"""A program for MPI: every rank makes the calls that the arguments say, and writes what they return.

mpiexec -n 2 python -m mpi4py mpi_calls.py FOLDER WHAT [JOURNAL]
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from typing import Any

import numpy as np
from mpi4py import MPI

import kcalib
from kcalib.kernels import Exponential
from kcalib.parallel import mpi
from kcalib.parallel.store import Store

KERNEL, TILE = Exponential(0.5), 192


def samples(n: int = 3000, m: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(m), size=n)
    return (rng.uniform(size=(n, 1)) > np.cumsum(p, axis=1)).sum(axis=1), p


def at_tile(number: int, act: Any) -> None:
    """Let this rank do something in place of its tile of that number."""
    sums, seen = Store.sums, []

    def instead(store: Store, *arguments: Any) -> Any:
        seen.append(arguments)
        return act() if len(seen) == number else sums(store, *arguments)

    Store.sums = instead


def fail() -> None:
    raise ValueError("a tile that cannot be computed")


def main(folder: str, what: str, journal: str | None = None) -> None:
    rank = MPI.COMM_WORLD.rank

    def say(*values: Any) -> None:
        with open(os.path.join(folder, str(rank)), "a") as file:  # standard output of ranks is mixed by the letter
            file.write(json.dumps([rank, *values]) + "\n")

    y, p = samples() if rank == 0 else (None, None)
    mpi.PIECE = 1000  # so that messages have several pieces
    if what == "killed" and rank == 1:
        at_tile(2, lambda: os.kill(os.getpid(), signal.SIGKILL))
    if what == "failing" and rank == 1:
        at_tile(1, fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parallel = kcalib.parallel.MPI(threads=64 if what == "crowded" else 1, journal=journal, tile_size=TILE)
        found = kcalib.skce.result(y, p, kernel=KERNEL, backend=parallel)
        value = found.value
        if what == "calls":
            blocks = kcalib.skce.result(y, p, kernel=KERNEL, estimator="block", backend=parallel)
            test = kcalib.calibration_test(y, p, kernel=KERNEL, method="spectrum", backend=parallel)
            say(found.backend_reason)
            say(value, blocks.value, blocks.standard_error, test.statistic)
            try:
                kcalib.skce(y, p, kernel="none", backend=parallel)
            except Exception as error:
                say(type(error).__name__, str(error))
        else:
            say(value, *(str(one.message) for one in caught))


if __name__ == "__main__":
    main(*sys.argv[1:])
