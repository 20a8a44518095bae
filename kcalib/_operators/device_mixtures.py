"""What the `cuda` operator compiles and passes for mixtures and tables: definitions, numbers, and tables.

Families, and few dimensions, are constants of the compiled text; numbers of components and terms are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kcalib import _arrays
from kcalib._arrays import Array
from kcalib._memory import check_memory
from kcalib._operators import mixture_rows
from kcalib._problem import PairProblem, Term

HEADERS = ("cuda/scalars.cuh", "include/kcalib/mixtures.h", "cuda/mixtures.cuh")
CONSTANT_DIMS = 4  # up to which the number of dimensions is a constant; beyond, loops over it are not unrolled
# Which of the quantities of a pair in pairs.cu a metric's distances are.
QUANTITIES = {"euclidean": "SQUARES", "cityblock": "CITYBLOCKS", "dot": "DOTS", "mmd": "SQUARES", "table": "CITYBLOCKS"}
METRICS = {"euclidean": "EUCLIDEAN", "cityblock": "CITYBLOCK", "dot": "DOT", "mmd": "EUCLIDEAN", "table": "CITYBLOCK"}


def files(problem: PairProblem) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is pasted before pairs.cu, and behind it."""
    if problem.target is None and problem.predicted is None:
        return (), ()
    return HEADERS, () if problem.predicted is None else ("cuda/own_products.cu",)


def definitions(problem: PairProblem) -> tuple[str, ...]:
    """Options of the compiler."""
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
    """A kernel as pairs.cu computes it, of factors numbered through the terms."""
    terms, number = [], 0
    for t, term in enumerate(kernel):
        product = [f"coefficient({t})"]
        for factor in term.factors:
            product.append(f"factor<{factor.profile.upper()},{METRICS[factor.metric]}>({number})")
            number += 1
        terms.append("*".join(product))
    return "+".join(terms)


def program(kernel: Sequence[Term]) -> list[float]:
    """The numbers of that expression: coefficients, then scale and shape of each factor."""
    numbers = [t.coefficient for t in kernel]
    return numbers + [number for t in kernel for f in t.factors for number in (f.scale, f.shape)]


def numbers_of(problem: PairProblem, table: Array | None) -> tuple[np.ndarray, np.ndarray]:
    """The programs of the kernel and of the atoms' kernels, float64, and `MixtureNumbers` of mixtures.cuh, int64."""
    programs, numbers = program(problem.kernel), list[int]()
    for mixtures in (problem.target, problem.predicted):
        if mixtures is None:
            numbers += [0] * 5
            continue
        sizes = mixtures.n_dims, mixtures.n_components, mixtures.n_terms
        numbers += [*sizes, len(programs), len(mixtures.kernel)]
        programs += program(mixtures.kernel)
    numbers.append(0 if table is None else int(table.shape[1]))
    return np.array(programs, dtype=np.float64), np.array(numbers, dtype=np.int64)


def table_of(problem: PairProblem) -> Array | None:
    """The table of distances on the device of the points, its rows one behind the other."""
    if problem.table is None:
        return None
    table, points = problem.table, problem.left.points
    mixture_rows.check_positions(problem, table)
    xp = _arrays.namespace(points)
    if _arrays.is_host(table):
        check_memory(
            8 * table.size,
            free_memory(),
            f"distances of {table.shape[0]} and {table.shape[1]} predictions on the GPU",
            "pass fewer samples, or a kernel with metric='mmd', which needs no table",
        )
        table = _arrays.like(np.ascontiguousarray(table, dtype=np.float64), points)
    return xp.ascontiguousarray(xp.astype(table, xp.float64, copy=False))


def free_memory() -> int:
    """Bytes that arrays on the current device can take."""
    import cupy

    free = int(cupy.cuda.Device().mem_info[0]) + int(cupy.get_default_memory_pool().free_bytes())
    return max(1, free)
