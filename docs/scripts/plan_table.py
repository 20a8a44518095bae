"""What the exact SKCE takes on a cluster, by the plan that kcalib makes: docs/plan_table.txt.

    python docs/scripts/plan_table.py [--rate PAIRS_PER_SECOND] > docs/plan_table.txt

Tiles, their sizes and what travels are counted in the plan itself; times are pairs over the rate at which one core sums
tiles, which is measured here (without --rate): the median of several tiles of random samples. With standard errors
every pair is summed twice, once for the estimate and once for its law given the predictions; the float of `skce`
alone needs one sum.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import statistics
import time

import numpy as np

from kcalib import _packing
from kcalib._input.labels import prepare
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.reductions import Moments
from kcalib._pairs.tiles import Grid, Tile
from kcalib.kernels import Exponential
from kcalib.parallel.plan import grid
from kcalib.parallel.store import Outline, Store, fingerprint
from kcalib.parallel.work import Work

CLASSES, BLOCK, GROUPS = 10, 192, 32
SIZES, WORKERS = (10**6, 10**7, 10**8), 64
CORES, NETWORK = 16, 1.25e9  # of a worker's machine; bytes/s, 10 Gbit/s


def plan(n: int) -> Grid:
    """That of n samples."""
    group = math.ceil(math.ceil(n / BLOCK) / GROUPS) * BLOCK
    return grid(n, n, symmetric=True, block=BLOCK, group=group)


def problem(n: int):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(CLASSES, 0.3), size=n)
    y = (rng.uniform(size=(n, 1)) > np.cumsum(p, axis=1)).sum(axis=1)
    return _packing.pack(prepare(y, p), Exponential(0.4), None, threads=1).problem


def measured(n: int = 20_000, tiles: int = 7) -> tuple[float, int]:
    """Pairs a second of one core, and bytes of a task as it is sent."""
    pairs = problem(n)
    backend, outline = backend_for(pairs, threads=1), Outline(pairs)
    half = n // 2 // BLOCK * BLOCK
    plan = Grid(n, n, half, half, has_group_sums=False, symmetric=True)
    sums = Moments(rows=False)
    names = {"name": "Moments", "reduction": fingerprint(sums), "problem": outline.key, "parts": tuple(outline.arrays)}
    work = Work(**names, backend=backend.name, threads=1, grid=plan, options=sums)
    store, tile, rates = Store(), Tile(1, 0, half, half, 2 * half), []
    store.sums(work, tile, {**outline.arrays, outline.key: outline})
    for _ in range(tiles):
        start = time.process_time()
        store.sums(work, tile, {})
        rates.append(tile.pairs / (time.process_time() - start))
    return statistics.median(rates), len(pickle.dumps((work, tile)))


def row(n: int, rate: float, task_bytes: int) -> list[str]:
    found = plan(n)
    samples = n * (8 * CLASSES + 4)
    back = sum(16 + 8 * (len(tile.rows) + len(tile.columns)) for tile in found.tiles())
    whole = n * (n + 1) / 2
    tile = found.size**2 / rate
    return [
        f"{n:.0e}".replace("e+0", "e"),
        f"{found.n_tiles:,}",
        f"{found.size:,}",
        shown_time(tile),
        shown_bytes(samples),
        shown_bytes(samples * WORKERS),
        shown_time(samples * WORKERS / NETWORK),
        shown_bytes(task_bytes * found.n_tiles),
        shown_bytes(back),
        shown_time(whole / rate / 2),
        shown_time(whole / rate / WORKERS),
        shown_time(whole / rate / WORKERS / CORES),
    ]


def shown_time(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2g} s"


def shown_bytes(size: float) -> str:
    for unit, base in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= base:
            return f"{size / base:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, help="pairs a second of one core (default: measured)")
    given = parser.parse_args().rate
    load = os.getloadavg()[0]
    rate, task_bytes = measured()
    names = [
        "samples", "tiles", "side of a tile", "a tile, one core", "samples, bytes", f"to {WORKERS} workers",
        "at 10 Gbit/s from one", "tasks, bytes", "sums back", "2 cores", f"{WORKERS} cores",
        f"{WORKERS} x {CORES} cores",
    ]  # fmt: skip
    rows = [row(n, given or rate, task_bytes) for n in SIZES]
    width = max(map(len, names))
    for name, *values in zip(names, *rows, strict=True):
        print(f"{name:<{width}}" + "".join(f"{value:>12}" for value in values))
    source = (
        "given" if given else f"measured in processor time, median of 7 tiles; load of the machine before it {load:.1f}"
    )
    print(f"\n{(given or rate) / 1e9:.2f}e9 pairs a second and core: exponential kernel, {CLASSES} classes, float64")
    print(f"({source})")


if __name__ == "__main__":
    main()
