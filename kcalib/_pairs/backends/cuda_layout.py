"""What the `cuda` backend compiles and passes: files of a program, sizes, the structs of problem.cuh."""

from __future__ import annotations

from typing import Any

import numpy as np

from kcalib._backend.arrays import Array
from kcalib._backend.cuda import Program, define, layout_check
from kcalib._pairs.backends.device_mixtures import MIXTURE_NUMBERS, mixture_files
from kcalib._pairs.problem import PairProblem

HEADERS = ("include/kcalib/math.h", "include/kcalib/profiles.h", "cuda/problem.cuh")
FUNCTIONS = {
    "kcalib_sums": "cuda/pair_sums.cu",
    "kcalib_block_sums": "cuda/pair_block_sums.cu",
    "kcalib_entries": "cuda/pair_entries.cu",
    "kcalib_counts": "cuda/pair_counts.cu",
    "kcalib_between": "cuda/pair_counts.cu",
    "kcalib_own_products": "cuda/own_products.cu",
}
# Rows and columns of a tile, threads along each of them, features in shared memory and counts at a time.
TILE, LANES, FEATURES, THRESHOLDS = 64, 16, 16, 8
SIZES = define(TILE=TILE, LANES=LANES, FEATURES=FEATURES, THRESHOLDS=THRESHOLDS)
# What pairs.cu is passed: the structs of problem.cuh.
POINTER, SIZE = np.uintp, np.int64
SIDE = np.dtype(
    [(name, POINTER) for name in ("points", "features", "norms", "labels")]
    + [(name, SIZE) for name in ("stride", "begin", "n")]
)
PROBLEM = np.dtype(
    [
        ("left", SIDE),
        ("right", SIDE),
        ("n_coordinates", SIZE),
        ("n_features", SIZE),
        ("program", POINTER),
        ("n_terms", SIZE),
        ("target", MIXTURE_NUMBERS),
        ("predicted", MIXTURE_NUMBERS),
        ("table", POINTER),
        ("table_columns", SIZE),
        ("features_gram", POINTER),
        ("points_gram", POINTER),
    ]
)
LAYOUT = "&&".join(
    layout_check(name, layout)
    for name, layout in (("Side", SIDE), ("MixtureNumbers", MIXTURE_NUMBERS), ("Problem", PROBLEM))
)


def pairs_program(problem: PairProblem, function: str, options: tuple[str, ...], out: str) -> Program:
    """Return the program of `function` for the problem; kcalib_entries writes numbers of dtype `out`."""
    if function == "kcalib_entries":
        options = (*options, f"-DKCALIB_OUT={real(out)}")
    files = (*HEADERS, *mixture_files(problem), "cuda/pairs.cu", FUNCTIONS[function])
    return Program(files, options)


def sums_program(real: str) -> Program:
    return Program(("cuda/sums.cu",), (f"-DKCALIB_REAL={real}",))


class DeviceSide:
    """A side for pairs.cu."""

    def __init__(self, n: int, points: Array, features: Array, norms: Array | None, labels: Array | None) -> None:
        self.n = n
        self.points, self.features, self.norms, self.labels = points, features, norms, labels

    def fields(self, begin: int, end: int) -> dict[str, Any]:
        """Return the fields of `Side` in problem.cuh for the samples [begin, end) of a rectangle."""
        arrays = {"points": self.points, "features": self.features, "norms": self.norms, "labels": self.labels}
        return {**arrays, "stride": self.n, "begin": begin, "n": end}


def real(dtype: str) -> str:
    return "float" if dtype == "float32" else "double"
