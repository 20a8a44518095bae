"""Kill calls with `parallel=` at random moments, go on from the journal by another transport, and compare bits.

    python tests/support/tile_campaign.py [KILLS] [SEED] [TRANSPORT]

Each call is a process of its own, which is killed with all that it has started; the next one takes whichever transport
chance says, of those whose name begins with TRANSPORT. A quarter of the calls are killed while they start, the others
some time after their first tile has come to the journal: so calls by slow starters, too, come to their end, on a
machine however busy. With Dask and MPI where they are installed (`pip install '.[cluster]'`); killed MPICH ranks leave
files in /dev/shm.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import kcalib
from kcalib.kernels import Exponential

N, M, TILE = 20_000, 10, 1000
TRANSPORTS = {
    "serial": 0.5,
    "threads:1": 0.5,
    "threads:2": 0.5,
    "threads:7": 0.5,
    "processes:1": 1.2,
    "processes:2": 1.2,
    "processes:7": 4.0,
    "dask:2": 3.0,
    "mpi:2": 1.5,
}  # and the seconds that one takes to start
STARTING = 0.25  # of the calls are killed while they start
SECONDS = 2.5  # after the first tile, at most
HEADER = 2000  # bytes, at most, of a journal without tiles


def problem():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(M, 0.3), size=N)
    return (rng.uniform(size=(N, 1)) > np.cumsum(p, axis=1)).sum(axis=1).clip(0, M - 1), p


def value(parallel):
    found = kcalib.skce(*problem(), kernel=Exponential(0.3), full_output=True, parallel=parallel)
    return f"{found.value.hex()} {found.standard_error.hex()}"


def call(transport, journal):
    from kcalib import parallel

    kind, _, count = transport.partition(":")
    options = {"journal": journal, "tile_size": TILE}
    if kind == "serial":
        return value(parallel.Serial(**options))
    if kind == "threads":
        with ThreadPoolExecutor(int(count)) as pool:
            return value(parallel.Executor(pool, **options))
    if kind == "processes":
        return value(parallel.Processes(int(count), **options))
    if kind == "mpi":
        return value(parallel.MPI(**options))
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=int(count), threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        return value(parallel.Dask(client, **options))


def kill(pid):
    """A process and all that it has started."""
    started = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            started += [int(child) for child in task.read_text().split()]
        except OSError:
            continue  # it has ended
    for child in started:
        kill(child)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def installed():
    found = dict(TRANSPORTS)
    if importlib.util.find_spec("distributed") is None:
        del found["dask:2"]
    if importlib.util.find_spec("mpi4py") is None or shutil.which("mpiexec") is None:
        del found["mpi:2"]
    return found


def ended_before_kill(process, journal, starting, seconds):
    """Whether the process ends by itself: before `starting`, where that is a time, or `seconds` after its first tile.

    Both in seconds, from its start and from the journal's growth.
    """

    def size():
        return journal.stat().st_size if journal.exists() else 0

    before, begun = size(), time.monotonic()
    while process.poll() is None:
        if starting is not None and time.monotonic() > begun + starting:
            return False
        if starting is None and size() > max(before, HEADER):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            return process.poll() is not None
        time.sleep(0.005)
    return True


def campaign(kills, seed, folder, only):
    transports = {name: start for name, start in installed().items() if name.startswith(only)}
    rng = np.random.default_rng(seed)
    journal, expected = folder / "tiles.journal", value(None)
    killed, ended = Counter(), Counter()
    while sum(killed.values()) < kills:
        transport = str(rng.choice(list(transports)))
        command = [sys.executable, "-P", __file__, "call", transport, str(journal)]
        if transport.startswith("mpi"):
            command = ["mpiexec", "-n", transport[4:], sys.executable, "-m", "mpi4py", *command[2:]]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        starting = rng.uniform(0, transports[transport]) if rng.uniform() < STARTING else None
        if not ended_before_kill(process, journal, starting, rng.uniform(0, SECONDS)):
            kill(process.pid)
            process.communicate()
            killed[transport] += 1
            continue
        out, error = process.communicate()
        if process.returncode:
            raise AssertionError(f"a call by {transport} that went on failed:\n{error}")
        if {*out.split("\n")} - {""} != {expected}:
            raise AssertionError(f"by {transport} {out!r}, expected {expected!r}; seed {seed}")
        ended[transport] += 1
        journal.unlink()
    return killed, ended


if __name__ == "__main__":
    if sys.argv[1:2] == ["call"]:
        print(call(*sys.argv[2:]))
    else:
        kills, seed, only = (*sys.argv[1:], *["200", "0", ""][len(sys.argv) - 1 :])
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            killed, ended = campaign(int(kills), int(seed), Path(folder), only)
        print(f"{sum(killed.values())} kills ({dict(killed)}),")
        print(f"{sum(ended.values())} calls that ended with the bits of one machine ({dict(ended)}),")
        print(f"{time.perf_counter() - start:.0f} s")
