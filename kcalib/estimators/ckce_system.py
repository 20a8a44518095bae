"""The linear system of the CKCE, and what its methods return.

`kcalib.estimators.ckce` makes a `System` from packed data and `residual_rows`; methods return a `MethodResult`.
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
    """Rows of E for class probabilities, onehot(y) - p times the root of the target matrix; computed on request."""

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
        """The trace of the change of E E^T due to rounding of the target matrix."""
        if self.root is None:
            return 0.0
        p, labels = self.data.probabilities, self.data.labels
        xp = arrays.namespace(p)
        squares = float(xp.sum(p * p)) + float(xp.sum(1 - 2 * p[xp.arange(len(labels)), labels]))
        return 4 * 2.0**-52 * float(np.linalg.norm(self.root, 2)) ** 2 * squares


@functools.singledispatch
def default_kernel(first: Data, *further_models: Data) -> Kernel:
    """Return the default kernel on the predictions of all models."""
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
    """Return E for packed data; for distributions a factor, whose random pivots depend on `seed`."""
    raise NotImplementedError(type(data))


@residual_rows.register(Classification)
def _residuals_of_labels(data: Classification, packed: Packed, *, threads: int | None, seed: int = 0) -> ClassResiduals:
    return ClassResiduals(_on_solver_device(data), packed.target.root)


@residual_rows.register(Forecasts)
def _residuals_of_targets(data: Forecasts, packed: Packed, *, threads: int | None, seed: int = 0) -> Residuals:
    return residuals_of(packed, threads=threads, seed=seed)


def _on_solver_device(data: Classification) -> Classification:
    """Return the data as NumPy arrays, or as CuPy arrays on an NVIDIA GPU, for SciPy or CuPy."""
    if arrays.is_host(data.probabilities) or arrays.is_cuda(data.probabilities):
        return data
    return replace(
        data,
        labels=np.ascontiguousarray(arrays.to_host(data.labels), dtype=np.int64),
        given=np.ascontiguousarray(arrays.to_host(data.probabilities), dtype=np.float64),
    )


@dataclass(frozen=True)
class System:
    """The system (K + n lambda I) Z = E."""

    dtype: str  # arithmetic of the entries of K
    residuals: ClassResiduals | Residuals  # E
    packed: Packed  # on the user's device
    matrix: KernelOperator  # K, for arrays on the device of the residuals
    shift: float

    @property
    def n(self) -> int:
        return self.matrix.n

    @property
    def columns(self) -> int:
        """Number of columns of E."""
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
        """Bound of the effect of rounding in E: the value is tr(B E E^T) with psd B of norm at most 1 / (4 shift)."""
        return self.residuals.rounding / (4 * self.shift)

    def check_memory(self, numbers: int, contents: str, remedy: str) -> int:
        """Raise if there is no memory for so many float64 numbers; return their bytes."""
        check_memory(8 * numbers, None, contents, remedy, self.matrix.reference)
        return 8 * numbers


class MethodResult(NamedTuple):
    """Fields of `CKCEResult` that depend on the method."""

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
    """Base class of methods that replace K by a random low-rank matrix."""

    is_shared_out: ClassVar[bool] = False  # whether other machines may compute its sums

    @abstractmethod
    def estimate(self, system: System) -> MethodResult:
        """Return the value with an error bound."""
