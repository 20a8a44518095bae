"""The choice of a backend for a pair problem, by one table.

The first row of the table is taken whose arrays fit and whose backend has no obstacle. Only exact backends are chosen
automatically. The documentation prints the table. Code asks for capabilities of a backend, not for its name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice
from kcalib._native import FAMILIES
from kcalib._pairs.backends.array_api import ArrayApiBackend
from kcalib._pairs.backends.base import Backend, Workers
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.backends.cuda import CudaBackend
from kcalib._pairs.backends.sorted_line import SortedBackend
from kcalib._pairs.problem import PairProblem, Side

Place = Literal["host", "cuda", "elsewhere"]  # CPU, GPU of CuPy, any other device


@dataclass(frozen=True)
class Capability:
    """A capability of backends: a column of the table in the documentation."""

    name: str
    arrays: str
    dtypes: tuple[str, ...]
    exact: bool
    differentiable: bool
    memory: str


@dataclass(frozen=True)
class Row:
    """A backend, its capabilities, and when it is chosen."""

    capability: Capability
    backend: Any  # the class
    places: tuple[Place, ...]  # where its arrays may be
    reason: str  # why it is chosen, unless for an obstacle of a row above
    with_threads: bool = False  # on the host
    scheduler: str = "the GPU"  # what decides on threads otherwise
    samples_from: int = 0  # smallest number of samples

    @property
    def name(self) -> str:
        return self.capability.name


FULL_DIMS = FAMILIES["normal_full"].max_dims
TABLE = (
    Row(
        Capability(
            "sorted", "NumPy and all CPU arrays, and CuPy arrays on their NVIDIA GPU: binary problems (points on "
            "a line) with kernels made of exponential and Matern kernels on distances",
            ("float64",), exact=True, differentiable=False, memory="O(n m), time O(n log n)",
        ),
        SortedBackend, ("host", "cuda"), "the predictions lie on a line and the kernel allows O(n log n)",
        with_threads=True, samples_from=512,  # below, a sweep over all pairs is as fast
    ),
    Row(
        Capability(
            "cpu", "NumPy and all CPU arrays, which become NumPy arrays without a copy; not predictions that are "
            f"normal with full covariances in more than {FULL_DIMS} dimensions",
            ("float64", "float32"), exact=True, differentiable=False, memory="O(n m)",
        ),
        CpuBackend, ("host",), "the arrays are in host memory", with_threads=True,
    ),
    Row(
        Capability(
            "cuda", "CuPy arrays, on their NVIDIA GPU, which CUDA tensors of PyTorch and JAX become without a copy; "
            f"not predictions that are normal with full covariances in more than {FULL_DIMS} dimensions",
            ("float64", "float32"), exact=True, differentiable=False, memory="O(n m), rectangles of H",
        ),
        CudaBackend, ("cuda",), "the arrays are on {where}",
    ),
    Row(
        Capability(
            "array-api", "any array API namespace, on its device",
            ("float64", "float32"), exact=True, differentiable=True, memory="O(n m), strips of rows",
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
    backend: str | Workers | None = None,
    threads: int | None = None,
) -> Backend:
    """Return the backend for `problem`, or the named `backend`, or one on the workers `backend`.

    Raises
    ------
    ValueError
        If `backend` is unknown or cannot take the arrays of the problem, or if `threads` is given for a backend without
        threads.
    """
    if isinstance(backend, Workers):
        return backend.spread(_local_backend(problem, None, threads))
    return _local_backend(problem, backend, threads)


def _local_backend(problem: PairProblem, backend: str | None, threads: int | None) -> Backend:
    place = _place(problem.left.points_or_seconds)
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
    """Return the backend for samples in float32, which is twice as fast per entry, or the same if it is no use."""
    problem = backend.problem
    side, xp = problem.left, arrays.namespace(problem.left.points)
    use = "float32" in ROWS[backend.name].capability.dtypes and problem.predicted is None
    if not use or side.points.dtype == xp.float32:
        return backend
    points, features = (xp.astype(a, xp.float32) for a in (side.points, side.features))
    single = replace(problem, left=Side(points, features, side.labels))
    return backend.like(single)


def _place(points: Array) -> Place:
    if arrays.is_host(points):
        return "host"
    return "cuda" if arrays.library(points) == "cupy" else "elsewhere"


def _choice(problem: PairProblem, place: Place) -> tuple[Row, str]:
    """Return the fastest backend for the problem, and the reason."""
    points = problem.left.points_or_seconds
    n = int(points.shape[0])
    obstacle = None  # of a general backend; the sorted one has obstacles for most problems
    for row in TABLE:
        if n < row.samples_from or place not in row.places:
            continue
        row_obstacle = row.backend.unsuitable(problem)
        if row_obstacle is None:
            if place == "host":
                return row, obstacle or row.reason
            where = arrays.describe_device(points)
            reason = obstacle or row.reason.format(library=arrays.library(points), where=where)
            return row, reason if where in reason else f"{reason}; the arrays are on {where}"
        obstacle = obstacle if row.backend.on_a_line else row_obstacle
    raise AssertionError("the last row takes everything")


def _check(row: Row, problem: PairProblem, place: Place) -> None:
    """Raise ValueError if the backend of the row cannot take the problem."""
    if place not in row.places:
        needed, remedy = NEEDS[row.places[0]]
        raise ValueError(
            f"backend={row.name!r} needs arrays {needed}, `y_pred` is on "
            f"{arrays.describe_device(problem.left.points)}; {remedy}, or leave backend=None"
        )
    obstacle = row.backend.unsuitable(problem)
    if obstacle is not None:
        raise ValueError(f"backend={row.name!r} cannot take this problem: {obstacle}; leave backend=None")
