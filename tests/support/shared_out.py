"""Every kind of number that is shared out, on one transport; as a program for MPI, rank 0 writes them to a file.

mpiexec -n 2 python -m mpi4py shared_out.py FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import kcalib
from kcalib.kernels import Exponential
from kcalib.methods import Bootstrap, Exact, Fourier

KERNEL, TILE = Exponential(0.4), 400
N, M = 2500, 4
OF_PRODUCTS = ("spectrum", "ckce by cg", "comparison by ckce")  # whose order of summation is that of tiles


def samples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(M), size=N)
    return (rng.uniform(size=(N, 1)) > np.cumsum(p, axis=1)).sum(axis=1).clip(0, M - 1), p


def numbers(parallel: Any, *, root: bool = True) -> dict[str, list[float]]:
    """By name; ranks that are not the root have no samples."""
    y, p = samples() if root else (None, None)
    models = {"a": p, "b": np.roll(p, 1, axis=0)} if root else None
    found = {}
    for estimator in ("unbiased", "biased", "block"):
        options = {"kernel": KERNEL, "estimator": estimator}
        one = kcalib.skce.result(y, p, **options, backend=parallel)
        found[estimator] = [one.value, one.standard_error, one.null_standard_error]
    for name, method in (("exact", Exact(99)), ("bootstrap", Bootstrap(99)), ("spectrum", "spectrum")):
        test = kcalib.calibration_test(y, p, kernel=KERNEL, method=method, seed=1, backend=parallel)
        found[name] = [test.estimate, test.log_pvalue]
    for name, method in (("ckce by cg", "cg"), ("ckce by fourier", Fourier(n_features=20, seed=1))):
        one = kcalib.ckce.result(y, p, method=method, backend=parallel)
        found[name] = [one.value, one.error_bound]
    for name in ("skce", "ckce"):
        (pair,) = kcalib.compare(y, models, metric=name, backend=parallel).differences
        found[f"comparison by {name}"] = [pair.difference, pair.standard_error]
    return {name: [-1.0 if value is None else float(value) for value in values] for name, values in found.items()}


def main(path: str) -> None:
    from mpi4py import MPI

    root = MPI.COMM_WORLD.rank == 0
    found = numbers(kcalib.parallel.MPI(tile_size=TILE), root=root)
    if root:
        Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
