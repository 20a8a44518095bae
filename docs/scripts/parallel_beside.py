"""Tiles beside the sweep of one machine: time, overhead, scaling, bits; a million samples, interrupted in the middle.

    python docs/scripts/parallel_beside.py scaling [--samples 50000]
    python docs/scripts/parallel_beside.py interrupted [--samples 1e6] [--stop-after 120]
    python docs/scripts/parallel_beside.py begun [--samples 1e6] [--stop-after 45]

`scaling` takes turns: the same call on one machine, in tiles, and on pools of one and of two processes that run,
each of one thread. Where other programs run, processor time says more than time: it is that of this process and of the
pool's, without waiting. `interrupted` makes a call in a process of its own, ends it by SIGKILL, and calls again.
`begun` says from the tiles of some seconds what the whole would take, and what its pairs would at the rate of one
machine, of 100,000 samples. docs/parallel_table.txt is what they printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import kcalib
from kcalib.kernels import Exponential
from kcalib.parallel import Executor, Processes, Serial

M, KERNEL = 10, Exponential(0.3)


def predictions(n):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(M, 0.3), size=n)
    y = (rng.uniform(size=(n, 1)) > np.cumsum(p, axis=1)).sum(axis=1).clip(0, M - 1)
    return y, p


def processor_time(pids):
    """Seconds that this process and those were on a processor (Linux)."""
    nanoseconds = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                nanoseconds += int(file.read().split()[0])
    return time.process_time() + nanoseconds / 1e9


def scaling(n, repetitions):
    y, p = predictions(n)
    pools = {workers: ProcessPoolExecutor(workers) for workers in (1, 2)}
    ways = {
        "one machine, 1 thread": {"threads": 1},
        "tiles, 1 thread": {"backend": Serial(threads=1)},
        **{f"pool, {k} x 1 thread": {"backend": Executor(pool, threads=1)} for k, pool in pools.items()},
        "one machine, 2 threads": {"threads": 2},
    }
    seconds, used = {way: [] for way in ways}, {way: [] for way in ways}
    values = {}
    for repetition in range(repetitions + 1):  # the first starts processes
        for way, options in ways.items():
            pids = [pid for pool in pools.values() for pid in pool._processes or ()]
            start, before = time.perf_counter(), processor_time(pids)
            values[way] = kcalib.skce(y, p, kernel=KERNEL, **options)
            if repetition:
                seconds[way].append(time.perf_counter() - start)
                used[way].append(processor_time(pids) - before)
    for pool in pools.values():
        pool.shutdown()
    print(f"{n:,} samples, {M} classes, {KERNEL}; medians of {repetitions} turns, {os.cpu_count()} CPUs")
    one = statistics.median(seconds["one machine, 1 thread"])
    first = used["one machine, 1 thread"]
    for way, taken in seconds.items():
        median, beside = (
            statistics.median(taken),
            statistics.median(a / b for a, b in zip(used[way], first, strict=True)),
        )
        of_processors = f"processors {statistics.median(used[way]):6.3f} s, {100 * (beside - 1):+5.1f} %"
        print(f"{way:24} {median:7.3f} s  {one / median:5.2f} times  {of_processors}  value {values[way].hex()}")


def call(n, journal, start):
    y, p = predictions(n)
    value = kcalib.skce(y, p, kernel=KERNEL, backend=Processes(2, journal=journal))  # a standard error takes more
    print(f"  {time.time() - start:6.1f} s after its start: SKCE {value.hex()} = {value:.6e}")


def interrupted(n, stop_after):
    with tempfile.TemporaryDirectory() as folder:
        journal = os.path.join(folder, "tiles.journal")
        for seconds in (stop_after, None):
            start = time.time()
            command = [sys.executable, __file__, "call", "--samples", str(n), "--journal", journal]
            process = subprocess.Popen([*command, "--start", str(start)], start_new_session=True)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                size = os.path.getsize(journal) / 1e6
                print(f"  killed after {time.time() - start:.1f} s; the journal has {size:.2f} MB", flush=True)
        print(f"  in all {time.time() - start:.1f} s for the second call", flush=True)


class Enough(Exception):
    pass


class Begun(Processes):
    """Until a time, and what was done by then."""

    def results(self, held, work, tiles, given, progress):
        first, pairs = None, 0.0
        for count, done in enumerate(super().results(held, work, tiles, given, progress)):
            now = time.perf_counter()
            if first is None:
                first = now
            else:
                pairs += work.grid.work(done.tile)
            yield done
            if now > self.ends:
                raise Enough(count, len(tiles), first, pairs / (now - first), sum(map(work.grid.work, tiles)))


def begun(n, seconds):
    def rate(m=100_000):
        y, p = predictions(m)
        start = time.perf_counter()
        kcalib.skce(y, p, kernel=KERNEL, threads=2)
        return m * m / 2 / (time.perf_counter() - start)

    (y, p), rates = predictions(n), [rate() for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        workers, start = Begun(2, journal=os.path.join(folder, "tiles.journal")), time.perf_counter()
        object.__setattr__(workers, "ends", start + seconds)
        try:
            kcalib.skce(y, p, kernel=KERNEL, backend=workers)
        except Enough as enough:
            count, tiles, first, of_tiles, whole = enough.args
    one = statistics.median(rates + [rate() for _ in range(3)])
    print(f"  one machine, 2 threads, 100,000 samples: {one / 1e9:.3f}e9 pairs a second")
    print(f"  {count} of {tiles} tiles: {of_tiles / 1e9:.3f}e9 pairs a second, the first after {first - start:.2f} s")
    print(f"  so all in {first - start + whole / of_tiles:.0f} s, at the rate of one machine {whole / one:.0f} s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("scaling", "interrupted", "begun", "call"))
    parser.add_argument("--samples", type=lambda text: int(float(text)))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--stop-after", type=float, default=120)
    parser.add_argument("--journal")
    parser.add_argument("--start", type=float)
    arguments = parser.parse_args()
    if arguments.what == "scaling":
        scaling(arguments.samples or 50_000, arguments.repetitions)
    elif arguments.what == "interrupted":
        print(f"{arguments.samples or 1_000_000:,} samples, {M} classes, {KERNEL}, two processes of one thread")
        interrupted(arguments.samples or 1_000_000, arguments.stop_after)
    elif arguments.what == "begun":
        print(f"{arguments.samples or 1_000_000:,} samples, {M} classes, {KERNEL}, two processes of one thread")
        begun(arguments.samples or 1_000_000, arguments.stop_after)
    else:
        call(arguments.samples, arguments.journal, arguments.start)


if __name__ == "__main__":
    main()
