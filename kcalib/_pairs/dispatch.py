"""Which backend computes a pair problem: the one table, the one place that chooses.

Read top to bottom: of the rows whose arrays fit, the first whose backend has no obstacle is taken. Only exact
backends are chosen automatically. The table is printed in the documentation. Who wants to know what a backend can do
asks for a capability, not for its name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice
from kcalib._backend.random import Weights
from kcalib._native import FAMILIES
from kcalib._pairs.backends.array_api import ArrayApiBackend
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.backends.cuda import CudaBackend
from kcalib._pairs.backends.sorted_line import SortedBackend
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.problem import Moments, PairProblem, Side


class Backend(Protocol):
    """The primitives of the matrix H of a pair problem; see ``_pairs.problem``."""

    name: str
    on_a_line: bool  # points lie on a line, and sums and products take O(n log n)
    entry_cost: float  # an entry's time, relative to the compiled core's
    problem: PairProblem

    @property
    def reason(self) -> str:
        """Why it was chosen, and what else results say of it."""

    @property
    def parallel(self) -> Spread | None:
        """What shares its sums out; None where they are computed here."""

    @property
    def threads(self) -> int | None:
        """Threads it uses at most; None where the array library decides."""

    def moments(self, second: bool = False, rows: bool = True, trace: bool = True) -> Moments:
        """Total, on request row and column sums, with these the sum of squares, and the trace (and diagonal)."""

    def block_sums(self, size: int) -> Array:
        """Sum over i != j of each of the n // size consecutive diagonal blocks, shape (n // size,)."""

    def matmul(self, vectors: Array, *, dtype: str = "float64") -> Array:
        """H @ vectors, float64, for `vectors` of shape (n right, c).

        In "float32" entries and products are rounded to it (sums of more than a tile's are float64): an error of
        some 1e-7 of the sum of all sizes of H_ij v_j, for iterations that correct it. Columns of any scale are right.
        """

    def quadratic_forms(self, weights: Array | Weights, *, dtype: str = "float64") -> Array:
        """w^T H w for each column w of `weights`, shape (n, c); symmetric problems.

        In "float32" entries and products are rounded to it (sums of more than a tile's are float64):
        for null distributions, twice as fast where products take the time.
        """

    def counts(self, thresholds: np.ndarray) -> np.ndarray:
        """Number of entries H_ij, i < j, below each threshold; symmetric problems."""

    def between(self, low: float, high: float, count: int) -> np.ndarray:
        """The `count` entries H_ij, i < j, in [low, high), in no order; `counts` says how many there are."""

    def tile(self, rows: slice | Array, columns: slice | Array) -> Array:
        """The dense piece H[rows][:, columns]."""


class Spread(Protocol):
    """Several machines: `kcalib.parallel` has it, of which this room knows nothing."""

    def spread(self, backend: Backend) -> Backend:
        """A backend with the same sums, computed there; or the same backend, where that is no use."""

    def gram(self, backend: Backend, feature_map: FeatureMap, columns: np.ndarray) -> np.ndarray:
        """`feature_sums.gram` of the points of such a backend."""


Place = Literal["host", "cuda", "elsewhere"]  # of arrays: the CPU, CuPy's GPU, any other device


@dataclass(frozen=True)
class Capability:
    """What a backend can do: a column of the documentation's table."""

    name: str
    arrays: str
    dtypes: tuple[str, ...]
    primitives: tuple[str, ...]
    exact: bool
    differentiable: bool
    memory: str


@dataclass(frozen=True)
class Row:
    """A backend, what it can do, and when it is taken."""

    capability: Capability
    backend: Any  # the class
    places: tuple[Place, ...]  # of the arrays that it takes
    reason: str  # why it is taken, unless because of an obstacle that a row above has
    with_threads: bool = False  # on the host
    scheduler: str = "the GPU"  # what decides on threads elsewhere
    samples_from: int = 0  # where it is worth it

    @property
    def name(self) -> str:
        return self.capability.name


FULL_DIMS = FAMILIES["normal_full"].max_dims
PRIMITIVES = ("moments", "block_sums", "matmul", "quadratic_forms", "counts", "between", "tile")
TABLE = (
    Row(
        Capability(
            "sorted", "NumPy and all CPU arrays, and CuPy arrays on their NVIDIA GPU: binary problems (points on "
            "a line) with kernels made of exponential and Matern kernels on distances",
            ("float64",), PRIMITIVES, exact=True, differentiable=False, memory="O(n m), time O(n log n)",
        ),
        SortedBackend, ("host", "cuda"), "the predictions lie on a line and the kernel allows O(n log n)",
        with_threads=True, samples_from=512,  # with fewer the sweep over all pairs takes no longer
    ),
    Row(
        Capability(
            "cpu", "NumPy and all CPU arrays, which become NumPy arrays without a copy; not predictions that are "
            f"normal with full covariances in more than {FULL_DIMS} dimensions",
            ("float64", "float32"), PRIMITIVES, exact=True, differentiable=False, memory="O(n m)",
        ),
        CpuBackend, ("host",), "the arrays are in host memory", with_threads=True,
    ),
    Row(
        Capability(
            "cuda", "CuPy arrays, on their NVIDIA GPU, which CUDA tensors of PyTorch and JAX become without a copy; "
            f"not predictions that are normal with full covariances in more than {FULL_DIMS} dimensions",
            ("float64", "float32"), PRIMITIVES, exact=True, differentiable=False, memory="O(n m), rectangles of H",
        ),
        CudaBackend, ("cuda",), "the arrays are on {where}",
    ),
    Row(
        Capability(
            "array-api", "any array API namespace, on its device",
            ("float64", "float32"), PRIMITIVES, exact=True, differentiable=True, memory="O(n m), strips of rows",
        ),
        ArrayApiBackend, ("host", "cuda", "elsewhere"), "{library} arrays on {where} stay there",
        scheduler="the array library",
    ),
)  # fmt: skip
ROWS = {row.name: row for row in TABLE}
NEEDS: dict[Place, tuple[str, str]] = {
    "host": ("in host memory", "bring it to the CPU first"),
    "cuda": ("on an NVIDIA GPU", "pass cupy.asarray(y_pred)"),
}


def backend_for(
    problem: PairProblem,
    *,
    backend: str | None = None,
    threads: int | None = None,
    parallel: Spread | None = None,
) -> Backend:
    """The backend for `problem`, or the one named `backend`; with `parallel` its sums are shared out.

    Raises
    ------
    ValueError
        If `backend` is unknown or cannot take the problem's arrays, or if `threads` is
        given to a backend that has none.
    """
    chosen = _backend_here(problem, backend, threads)
    return chosen if parallel is None else parallel.spread(chosen)


def like(backend: Backend, problem: PairProblem) -> Backend:
    """Another problem, computed as that of `backend` is: by the same code, with as many threads, on its machines."""
    if isinstance(backend, SortedBackend):
        return backend.like(problem)
    return backend_for(problem, backend=backend.name, threads=backend.threads, parallel=backend.parallel)


def _backend_here(problem: PairProblem, backend: str | None, threads: int | None) -> Backend:
    place = _place(problem.left.given)
    if backend is None:
        row, reason = _choice(problem, place)
    else:
        row, reason = ROWS[check_choice("backend", backend, tuple(ROWS))], "asked for by name"
        _check(row, problem, place)
    if row.with_threads and place == "host":
        return row.backend(problem, threads=threads, reason=reason)
    if threads is not None:
        raise ValueError(f"`threads` has no effect on backend={row.name!r}: {row.scheduler} decides; leave it out")
    return row.backend(problem, reason=reason)


def in_single_precision(backend: Backend) -> Backend:
    """The same backend of samples in float32, whose entries take half the time, or `backend` where that is no use.

    Distances of mixtures are roots of differences, for which float32 has too few digits.
    """
    problem = backend.problem
    side, xp = problem.left, arrays.namespace(problem.left.points)
    use = "float32" in ROWS[backend.name].capability.dtypes and problem.predicted is None
    if not use or side.points.dtype == xp.float32:
        return backend
    points, marks = (xp.astype(a, xp.float32) for a in (side.points, side.marks))
    single = replace(problem, left=Side(points, marks, side.labels))
    return like(backend, single)


def _place(points: Array) -> Place:
    if arrays.is_host(points):
        return "host"
    return "cuda" if arrays.library(points) == "cupy" else "elsewhere"


def _choice(problem: PairProblem, place: Place) -> tuple[Row, str]:
    """The backend that can take the problem and is the fastest, and why it is taken."""
    points = problem.left.given
    n = int(points.shape[0])
    obstacle = None  # of an engine; that of a scan on a line, which takes few problems, is not worth telling
    for row in TABLE:
        if n < row.samples_from or place not in row.places:
            continue
        found = row.backend.unsuitable(problem)
        if found is None:
            if place == "host":
                return row, obstacle or row.reason
            where = arrays.describe_device(points)
            reason = obstacle or row.reason.format(library=arrays.library(points), where=where)
            return row, reason if where in reason else f"{reason}; the arrays are on {where}"
        obstacle = obstacle if row.backend.on_a_line else found
    raise AssertionError("the last row takes everything")


def _check(row: Row, problem: PairProblem, place: Place) -> None:
    """That the row's backend can take the problem."""
    if place not in row.places:
        needed, remedy = NEEDS[row.places[0]]
        raise ValueError(
            f"backend={row.name!r} needs arrays {needed}, `y_pred` is on "
            f"{arrays.describe_device(problem.left.points)}; {remedy}, or leave backend=None"
        )
    obstacle = row.backend.unsuitable(problem)
    if obstacle is not None:
        raise ValueError(f"backend={row.name!r} cannot take this problem: {obstacle}; leave backend=None")
