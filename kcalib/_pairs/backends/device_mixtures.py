"""What the `cuda` backend compiles and passes for mixtures and tables: definitions, numbers, and tables.

Families and small dimensions are compile-time constants; numbers of components and terms are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._pairs.backends.mixture_rows import check_positions
from kcalib._pairs.problem import PairProblem, Term

FOLDER = "include/kcalib/families/"
HEADERS = (
    "cuda/scalars.cuh",
    f"{FOLDER}common.h",
    *(f"{FOLDER}{family}.h" for family in _native.FAMILIES),
    "include/kcalib/mixtures.h",
    "cuda/mixtures.cuh",
)
CONSTANT_DIMS = 4  # up to which the number of dimensions is a constant; beyond, loops over it are not unrolled
# The quantity of a pair in pairs.cu that a metric's distances are.
QUANTITIES = {"euclidean": "SQUARES", "cityblock": "CITYBLOCKS", "dot": "DOTS", "mmd": "SQUARES", "table": "CITYBLOCKS"}
METRIC_NAMES = {
    "euclidean": "EUCLIDEAN",
    "cityblock": "CITYBLOCK",
    "dot": "DOT",
    "mmd": "EUCLIDEAN",
    "table": "CITYBLOCK",
}


# The struct of problem.cuh: sizes, the first of an atoms' kernel's numbers in the program, and how many terms it has.
MIXTURE_NUMBERS = np.dtype(
    [(name, np.int64) for name in ("n_dims", "n_components", "n_terms", "program", "program_terms")]
)


def mixture_files(problem: PairProblem) -> tuple[str, ...]:
    """Return the files that precede pairs.cu."""
    return () if problem.target is None and problem.predicted is None else HEADERS


def mixture_definitions(problem: PairProblem) -> tuple[str, ...]:
    """Return the options for the compiler."""
    options = []
    for name, mixtures in (("TARGET", problem.target), ("PREDICTED", problem.predicted)):
        if mixtures is not None:
            dims = mixtures.n_dims if mixtures.n_dims <= CONSTANT_DIMS else 0
            of_atoms = expression(mixtures.kernel) if mixtures.kernel else "0"
            options += [f"-DKCALIB_{name}={mixtures.family.upper()}", f"-DKCALIB_{name}_DIMS={dims}"]
            options.append(f"-DKCALIB_{name}_EXPRESSION={of_atoms}")
    if problem.table is not None:
        options.append("-DKCALIB_TABLE")
    return tuple(options)


def expression(kernel: Sequence[Term]) -> str:
    """Return a kernel as an expression for pairs.cu, with factors numbered across terms."""
    terms, number = [], 0
    for t, term in enumerate(kernel):
        product = [f"coefficient({t})"]
        for factor in term.factors:
            product.append(f"factor<Profile::{factor.profile},{METRIC_NAMES[factor.metric]}>({number})")
            number += 1
        terms.append("*".join(product))
    return "+".join(terms)


def program(kernel: Sequence[Term]) -> list[float]:
    """Return the numbers of the expression: coefficients, then scale and shapes of each factor."""
    numbers = [t.coefficient for t in kernel]
    return numbers + [number for t in kernel for f in t.factors for number in (f.scale, f.a, f.b)]


def programs_of(problem: PairProblem) -> tuple[np.ndarray, dict[str, dict[str, int]]]:
    """Return the programs of the kernel and of the atoms' kernels, and `MixtureNumbers` of "target" and "predicted"."""
    programs, numbers = program(problem.kernel), {}
    for name, mixtures in (("target", problem.target), ("predicted", problem.predicted)):
        values = (0, 0, 0, 0, 0)
        if mixtures is not None:
            sizes = mixtures.n_dims, mixtures.n_components, mixtures.n_terms
            values = (*sizes, len(programs), len(mixtures.kernel))
            programs += program(mixtures.kernel)
        numbers[name] = dict(zip(MIXTURE_NUMBERS.names or (), values, strict=True))
    return np.array(programs, dtype=np.float64), numbers


def table_of(problem: PairProblem) -> Array | None:
    """Return the table of distances on the device of the points, in row-major order."""
    if problem.table is None:
        return None
    check_positions(problem, problem.table)
    table = uploaded(problem.table, problem.left.points)
    xp = arrays.namespace(table)
    return xp.ascontiguousarray(xp.astype(table, xp.float64, copy=False))


def uploaded(table: Array, reference: Array) -> Array:
    """Return a table of distances on the device of the reference, as a CuPy array.

    Raises
    ------
    MemoryError
        If it does not fit.
    """
    if not arrays.is_host(table):
        return table
    check_memory(
        8 * table.size,
        None,
        f"distances of {table.shape[0]} and {table.shape[1]} predictions",
        "pass fewer samples, or a kernel with metric='mmd', which needs no table of distances",
        reference,
    )
    return arrays.like(np.ascontiguousarray(table, dtype=np.float64), reference)
