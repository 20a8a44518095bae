"""What a method of `ckce` computes from, kernel matrix, residuals and n lambda, and what it returns.

`kcalib.estimators.ckce` makes a `System` of packed data and their `residual_rows`, which are others for class
probabilities than for distributions; `ckce_exact` and `ckce_low_rank` make a `MethodResult` of it. On an NVIDIA GPU
points, residuals, solutions and factors stay there; single numbers leave it.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._input.methods import Seeded
from kcalib._packing import Packed
from kcalib.estimators.forecast_residuals import Residuals, residuals_of
from kcalib.kernels import Gaussian, Kernel, Linear
from kcalib.solvers.kernel_operator import KernelOperator


@dataclass(frozen=True)
class ClassResiduals:
    """Rows of E, onehot(y) - p times the root of the matrix on the labels; made when they are asked for."""

    data: Classification  # on the host, or an NVIDIA GPU
    root: np.ndarray | None  # None for the Kronecker delta

    @property
    def is_binary(self) -> bool:
        """Whether predictions are on a line because there are two classes."""
        return self.data.m == 2

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


@functools.singledispatch
def default_kernel(first: Data, *further_models: Data) -> Kernel:
    """The kernel on the predictions of all models."""
    raise NotImplementedError(type(first))


@default_kernel.register(Classification)
def _of_classes(first: Classification, *further_models: Classification) -> Kernel:
    return Linear() + Gaussian()


@default_kernel.register(Forecasts)
def _of_distributions(first: Forecasts, *further_models: Forecasts) -> Kernel:
    pointed = all(model.prediction.wasserstein_points() is not None for model in (first, *further_models))
    return Gaussian(metric="wasserstein" if pointed else "mmd")


@functools.singledispatch
def residual_rows(data: Data, packed: Packed, *, threads: int | None, seed: int = 0) -> ClassResiduals | Residuals:
    """E of packed data; of distributions it is a factor, whose pivots `seed` draws."""
    raise NotImplementedError(type(data))


@residual_rows.register(Classification)
def _residuals_of_labels(data: Classification, packed: Packed, *, threads: int | None, seed: int = 0) -> ClassResiduals:
    return ClassResiduals(_where_solved(data), packed.target.root)


@residual_rows.register(Forecasts)
def _residuals_of_targets(data: Forecasts, packed: Packed, *, threads: int | None, seed: int = 0) -> Residuals:
    return residuals_of(packed, threads=threads, seed=seed)


def _where_solved(data: Classification) -> Classification:
    """The data as NumPy arrays unless they are on an NVIDIA GPU: residuals and features go to SciPy, or to CuPy."""
    if arrays.is_host(data.probabilities) or arrays.is_cuda(data.probabilities):
        return data
    return replace(
        data,
        labels=np.ascontiguousarray(arrays.to_host(data.labels), dtype=np.int64),
        given=np.ascontiguousarray(arrays.to_host(data.probabilities), dtype=np.float64),
    )


@dataclass(frozen=True)
class System:
    """K, the residuals E, and n lambda."""

    dtype: str  # arithmetic of the entries of K
    residuals: ClassResiduals | Residuals  # E, whose rows are taken from it
    packed: Packed  # on the user's device
    matrix: KernelOperator  # K, which takes and returns arrays where the residuals are
    shift: float

    @property
    def n(self) -> int:
        return self.matrix.n

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

    def check_memory(self, numbers: int, contents: str, remedy: str) -> int:
        """Bytes of so many numbers, if they may be taken."""
        check_memory(8 * numbers, None, contents, remedy, self.matrix.reference)
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

    is_shared_out: ClassVar[bool] = False  # whether other machines may compute its sums

    @abstractmethod
    def estimate(self, system: System) -> MethodResult:
        """The value, and what is known of its error."""
