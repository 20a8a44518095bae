"""What a method of `ckce` computes from, kernel matrix, residuals and n lambda, and what it returns.

`kcalib.estimators.ckce` takes both sides of a `System` from `sides_of` its data, which differs for class probabilities
and distributions; `ckce_exact` and `ckce_low_rank` make a `MethodResult` of it. On an NVIDIA GPU points, residuals,
solutions and factors stay there; single numbers leave it.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kcalib import _packing
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._input.methods import Seeded
from kcalib._packing import Packed
from kcalib.estimators.forecast_residuals import Residuals, kernel_alone, residuals_of
from kcalib.kernels import Gaussian, Kernel, Linear
from kcalib.solvers.kernel_operator import KernelMatrix
from kcalib.target_kernels import TargetKernel


@dataclass(frozen=True)
class ClassResiduals:
    """Rows of E, onehot(y) - p times the root of the matrix on the labels; made when they are asked for."""

    data: Classification  # on the host, or an NVIDIA GPU
    root: np.ndarray | None  # None for the Kronecker delta

    @property
    def columns(self) -> int:
        return self.data.m if self.root is None else self.root.shape[1]

    def take(self, rows: slice) -> Array:
        e = -self.data.probabilities[rows]
        e[arrays.namespace(e).arange(len(e)), self.data.labels[rows]] += 1
        return e if self.root is None else e @ arrays.like(self.root, e)

    @property
    def rounding(self) -> float:
        """The trace of what the rounding of the matrix on the labels, relative to its norm, changes E E^T by."""
        if self.root is None:
            return 0.0
        p, labels = self.data.probabilities, self.data.labels
        xp = arrays.namespace(p)
        squares = float(xp.sum(p * p)) + float(xp.sum(1 - 2 * p[xp.arange(len(labels)), labels]))
        return 4 * 2.0**-52 * float(np.linalg.norm(self.root, 2)) ** 2 * squares


class Sides(NamedTuple):
    """What K is made of, and E."""

    packed: Packed  # of K, on the user's device
    residuals: ClassResiduals | Residuals
    is_binary: bool  # whether the points are on a line because there are two classes


@functools.singledispatch
def default_kernel(data: Data, kernel: Kernel | None) -> tuple[Kernel, str | None]:
    """The kernel on predictions, and where its bandwidth comes from, if not from the user or the median heuristic."""
    raise NotImplementedError(type(data))


@default_kernel.register
def _(data: Classification, kernel: Kernel | None) -> tuple[Kernel, str | None]:
    kernel = _packing.check_kernel(Linear() + Gaussian() if kernel is None else kernel, data.m)
    xp, p = data.xp, data.probabilities
    if not bool(xp.all(xp.min(p, axis=0) == xp.max(p, axis=0))):
        return kernel, None
    with_bandwidths = kernel.resolve(lambda metric: 1.0)
    source = "any: the predictions are identical, so the value does not depend on it"
    return with_bandwidths, None if with_bandwidths == kernel else source


@default_kernel.register
def _(data: Forecasts, kernel: Kernel | None) -> tuple[Kernel, str | None]:
    if kernel is not None:
        return kernel, None
    return Gaussian(metric="mmd" if data.prediction.wasserstein_points() is None else "wasserstein"), None


@functools.singledispatch
def sides_of(
    data: Data, kernel: Kernel, target_kernel: TargetKernel, threads: int | None, max_memory: float | None, seed: int
) -> Sides:
    """Kernel matrix and residuals of checked data; of distributions these are a factor whose pivots `seed` draws."""
    raise NotImplementedError(type(data))


@sides_of.register
def _(
    data: Classification,
    kernel: Kernel,
    target_kernel: TargetKernel,
    threads: int | None,
    max_memory: float | None,
    seed: int,
) -> Sides:
    packed = _packing.pack_points(data.probabilities, kernel, data.dtype, threads=threads)
    root = _packing.target_root(target_kernel, data)
    residuals = ClassResiduals(_where_solved(data), root)
    return Sides(replace(packed, target=_packing.TargetMatrix(root)), residuals, data.m == 2)


@sides_of.register
def _(
    data: Forecasts,
    kernel: Kernel,
    target_kernel: TargetKernel,
    threads: int | None,
    max_memory: float | None,
    seed: int,
) -> Sides:
    packed = _packing.pack(data, kernel, target_kernel, threads=threads)
    residuals = residuals_of(packed, threads=threads, max_memory=max_memory, seed=seed)
    return Sides(kernel_alone(packed), residuals, False)


def _where_solved(data: Classification) -> Classification:
    """The data as NumPy arrays unless they are on an NVIDIA GPU: residuals and features go to SciPy, or to CuPy."""
    if arrays.is_host(data.probabilities) or arrays.is_cuda(data.probabilities):
        return data
    return replace(
        data,
        labels=np.ascontiguousarray(arrays.to_host(data.labels), dtype=np.int64),
        probabilities=np.ascontiguousarray(arrays.to_host(data.probabilities), dtype=np.float64),
    )


@dataclass(frozen=True)
class System:
    """K, the residuals E, and n lambda."""

    dtype: str  # arithmetic of the entries of K
    sides: Sides
    matrix: KernelMatrix  # K, which takes and returns arrays where the residuals are
    shift: float
    max_memory: float | None

    @property
    def n(self) -> int:
        return self.matrix.n

    @property
    def packed(self) -> Packed:
        return self.sides.packed

    @property
    def residuals(self) -> ClassResiduals | Residuals:
        """E, whose rows are taken from it."""
        return self.sides.residuals

    @property
    def columns(self) -> int:
        """Columns of E."""
        return self.residuals.columns

    @property
    def epsilon(self) -> float:
        return float(np.finfo(self.dtype).eps)

    @property
    def is_definite(self) -> bool:
        """Whether the kernel is known to be positive definite."""
        return self.packed.is_definite

    @property
    def rounding_of_target(self) -> float:
        """What rounding in E changes the value by: it is tr(B E E^T) with a psd B of norm at most 1 / (4 shift)."""
        return self.residuals.rounding / (4 * self.shift)

    def check_memory(self, numbers: int, what: str, remedy: str) -> int:
        """Bytes of so many numbers, if they may be taken."""
        check_memory(8 * numbers, self.max_memory, what, remedy, self.matrix.reference)
        return 8 * numbers


class MethodResult(NamedTuple):
    """What a method returns; the fields of `CKCEResult` that depend on it."""

    value: float
    error_bound: float | None
    error_bound_kind: str
    method: str
    method_reason: str
    memory: int
    tol: float | None = None
    iterations: int | None = None
    rank: int | None = None
    n_features: int | None = None
    seed: int | None = None


class Approximation(Seeded):
    """A method that replaces K by a random matrix of low rank."""

    @abstractmethod
    def estimate(self, system: System) -> MethodResult:
        """The value, and what is known of its error.

        Raises
        ------
        ValueError
            If an option does not fit the system, or the regularization is lost in rounding.
        MemoryError
            If more memory is needed than is allowed.
        """
