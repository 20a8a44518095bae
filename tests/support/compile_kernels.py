"""Every text that kcalib can ask NVRTC for, compiled for real devices without one.

    python -P tests/support/compile_kernels.py  the list
    python -P tests/support/compile_kernels.py --all  compiles it for sm_70, sm_80, sm_90; warnings are errors
    python -P tests/support/compile_kernels.py --in-turn  compiles each for one of them, in turn: each fourth to machine
                                                          code, the others to assembly text, which takes a quarter
    python -P tests/support/compile_kernels.py --all residuals  what has that in its name

A program is a function x the type of numbers x what distances come from x where inner products come from, with the
kernel as an expression of base profiles of metrics. Kernels are sums of products of these, so that one which has every
profile of every metric, as here, has every other's instructions. Of mixtures, whose products are functions of their
own, the families x the dimensions that are constants. Then what is no pair problem: scans on a line by degree of the
polynomial and columns a thread, Dirichlet kernels, random numbers and weights, sums.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).parent))  # as pytest has it

import emulated_cupy
import numpy as np
import nvrtc

from kcalib import _native
from kcalib._backend.cuda import Program
from kcalib._backend.random import philox_program, weights_program
from kcalib._backend.segments import segments_program
from kcalib._pairs.backends.cuda import CudaBackend
from kcalib._pairs.backends.cuda_layout import FUNCTIONS, sums_program
from kcalib._pairs.backends.device_mixtures import CONSTANT_DIMS
from kcalib._pairs.backends.sorted_cuda import COLUMNS, places_program, scan_program
from kcalib._pairs.families import FAMILIES as CLOSED_FORMS
from kcalib._pairs.problem import Factor, Mixtures, PairProblem, Side, Term
from kcalib._pairs.profiles import PROFILES
from kcalib.distributions.counts import poisson_program
from kcalib.regression import dirichlet_kde

ARCHITECTURES = ("sm_70", "sm_80", "sm_90")
DTYPES = ("float64", "float32")
VECTOR_FUNCTIONS = [function for function in FUNCTIONS if function != "kcalib_own_products"]


def kernel(*metrics: str, profiles: Iterable[str] = PROFILES) -> tuple[Term, ...]:
    """Every profile of the metrics."""
    factors = [Factor(p, m, 0.5, 1.5, 0.7) for m in metrics for p in (("identity",) if m == "dot" else profiles)]
    return tuple(Term(1.0, (factor,)) for factor in factors)


EVERYTHING = kernel("euclidean", "cityblock", "dot")
# Coordinates, features, whether these are residuals, and the kernel.
VECTORS: dict[str, tuple[int, int, bool, Any]] = {
    "one": (10, 10, True, kernel("euclidean", profiles=("exponential",))),
    "cityblock": (20, 20, True, kernel("cityblock", profiles=("exponential",))),
    "dot": (20, 20, True, kernel("dot")),
    "differences": (3, 3, True, EVERYTHING),
    "expanded": (20, 20, True, EVERYTHING),
    "residuals": (10, 10, True, kernel("euclidean")),
    "gathered residuals": (70, 70, True, kernel("euclidean")),
    "cityblock, gram": (200, 200, True, kernel("cityblock", profiles=("exponential",))),
    "dot, gram": (200, 200, True, kernel("dot")),
    "differences, gram": (3, 200, False, EVERYTHING),
    "expanded, gram": (200, 200, True, EVERYTHING),
    "gathered residuals, gram": (200, 200, True, kernel("euclidean")),
}
MOST_DIMS = CONSTANT_DIMS + 1
FAMILIES = {
    name: range(1, min(family.max_dims or MOST_DIMS, MOST_DIMS) + 1) for name, family in _native.FAMILIES.items()
}


def vectors(shape: str, dtype: str) -> CudaBackend:
    n_coordinates, n_features, residuals, terms = VECTORS[shape]
    points, features = (emulated_cupy.asarray(np.eye(2, k), dtype=dtype) for k in (n_coordinates, n_features))
    labels = emulated_cupy.asarray([0, 1]) if residuals else None
    return CudaBackend(PairProblem(Side(points, features, labels), None, terms))


def mixtures(what: str, family: Any, dims: int, dtype: str) -> CudaBackend:
    """A problem whose features ("target") or points ("predicted") are mixtures of two components, or of one."""
    of_atoms = EVERYTHING if _native.FAMILIES[family].of_kernel else ()
    found = Mixtures(family, dims, 2 if family in CLOSED_FORMS else 1, 1, of_atoms)
    sizes = (3, found.feature_columns) if what == "target" else (found.point_columns, 3)
    points, features = (emulated_cupy.asarray([[0.5] * k] * 2, dtype=dtype) for k in sizes)
    terms = kernel("euclidean" if what == "target" else "mmd", profiles=("exponential",))
    return CudaBackend(PairProblem(Side(points, features), None, terms, **{what: found}))


def table(dtype: str) -> CudaBackend:
    side = Side(*(emulated_cupy.asarray([[0.0] * k] * 2, dtype=dtype) for k in (1, 3)))
    distances = emulated_cupy.asarray([[0.0, 1.0], [1.0, 0.0]])
    return CudaBackend(PairProblem(side, None, kernel("table"), table=distances))


def together(backend: CudaBackend, out: str) -> Program:
    """All functions in one program."""
    program = backend.program("kcalib_entries", out)
    functions = dict.fromkeys(FUNCTIONS.values())
    if backend.problem.predicted is None:
        del functions[FUNCTIONS["kcalib_own_products"]]
    others = [file for file in program.files if file not in functions]
    return dataclasses.replace(program, files=(*others, *functions))


def programs() -> Iterator[tuple[str, Callable[[], Program]]]:
    """All of them, by name."""
    for dtype in DTYPES:
        for shape in VECTORS:
            for function in VECTOR_FUNCTIONS:
                for out in DTYPES if function == "kcalib_entries" else ("float64",):
                    to = f" to {out}" if function == "kcalib_entries" else ""
                    make = functools.partial(lambda s, d, *f: vectors(s, d).program(*f), shape, dtype, function, out)
                    yield f"{function}{to}, {dtype}, {shape}", make
        for out in DTYPES:
            make = functools.partial(lambda d, out: together(table(d), out), dtype, out)
            yield f"all functions to {out}, {dtype}, table", make
        for what, (family, all_dims) in itertools.product(("target", "predicted"), FAMILIES.items()):
            if what == "target" and family not in CLOSED_FORMS:
                continue
            for dims, out in itertools.product(all_dims, DTYPES):
                if dims == 1 or out == "float64":
                    shown = dims if dims <= CONSTANT_DIMS else "n"
                    make = functools.partial(
                        lambda *problem: together(mixtures(*problem[:-1]), problem[-1]), what, family, dims, dtype, out
                    )
                    yield f"all functions to {out}, {dtype}, {what} {family}, {shown}-d", make
        real = "float" if dtype == "float32" else "double"
        yield f"weights, {dtype}", functools.partial(weights_program, dtype)
        yield f"sums, {dtype}", functools.partial(sums_program, real)
        yield f"Dirichlet kernels, {dtype}", functools.partial(dirichlet_kde.PROGRAMS.__getitem__, dtype)
    # Kernels have degree 0 to 2, their squares to 4, and products of kernels more.
    for degree, columns in itertools.product((0, 1, 2, 3, 4, 6, 8), (1, COLUMNS)):
        yield f"scan on a line, degree {degree}, {columns} columns", functools.partial(scan_program, degree, columns)
    yield "places on a line", places_program
    yield "random numbers", philox_program
    yield "Poisson draws", poisson_program
    yield "segments", segments_program


def named(part: str = "") -> dict[str, Program]:
    """Programs with `part` in their names, each once: functions of one file are compiled together."""
    found: dict[Program, str] = {}
    with emulated_cupy.installed(), mock.patch.object(Program, "launch"):
        for name, make in programs():
            if part in name:
                found.setdefault(make(), name)
    return {name: program for program, name in found.items()}


def compile_for(program: Program, architecture: str) -> float:
    """Seconds that it takes."""
    start = time.perf_counter()
    code = nvrtc.cubin(program.source, program.every_option, architecture)
    assert code[:4] == b"\x7fELF" if architecture.startswith("sm_") else b".target" in code
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="compile them, not only list them")
    parser.add_argument("--in-turn", action="store_true", help="compile each for one architecture, few to machine code")
    parser.add_argument("--jobs", type=int, default=1, help="compilations at a time")
    parser.add_argument("part", nargs="?", default="", help="only programs with this in their names")
    arguments = parser.parse_args()
    found = named(arguments.part)
    start = time.perf_counter()
    wanted = dict.fromkeys(found, ARCHITECTURES if arguments.all else ())
    if arguments.in_turn:
        in_turn = itertools.cycle((kind, a) for a in ARCHITECTURES for kind in ("sm", *["compute"] * 3))
        wanted = {name: (f"{kind}_{a.removeprefix('sm_')}",) for name, (kind, a) in zip(found, in_turn)}
    pieces = [(program, a) for name, program in found.items() for a in wanted[name]]
    with ThreadPoolExecutor(arguments.jobs) as pool:  # NVRTC does not hold Python's lock
        compiled = pool.map(lambda one: compile_for(*one), pieces)
        for name in found:
            print(f"{name:75s}", *(f"{a} {next(compiled):5.1f} s" for a in wanted[name]), flush=True)
    of = f", compiled {len(pieces)} times, {time.perf_counter() - start:.0f} s" if pieces else ""
    print(f"{len(found)} programs{of}")


if __name__ == "__main__":
    main()
