"""Kernels on labels and targets.

For class labels with residuals e = one-hot(y) - p, the target factor of a pair is <e_i, e_j> with the Kronecker delta,
and e_i^T M e_j with a positive semi-definite matrix M (the matrix-valued kernel k M of Widmann et al. 2019, definition
1). `_packing` multiplies residuals by R, with M = R R^T. A kernel between numbers is such a matrix for classes that are
numbers.

For predicted distributions (`kcalib.distributions`) a target kernel is one of `kcalib.kernels`, or a class of this
module. `_packing.forecasts` chooses how to compute its expectations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend.arrays import as_array, to_host
from kcalib._backend.options import LARGEST_SEED, check_integer
from kcalib._input.checks import reject
from kcalib.kernels import Kernel

__all__ = ["Draws", "MahalanobisGaussian"]

# None, "delta", an (m, m) array, a Kernel, or a class of this module.
TargetKernel = Any


@dataclass(frozen=True)
class MahalanobisGaussian:
    r"""Gaussian kernel between targets in R^d, with a matrix in place of a bandwidth.

    .. math:: l(y, y') = \exp\Bigl(-\tfrac12 (y - y')^\top A\, (y - y')\Bigr)

    With the inverse covariance matrix of the targets, errors in all directions have equal weight.

    Parameters
    ----------
    matrix : array_like, shape (d, d)
        Symmetric positive semi-definite matrix A, not 0.

    Raises
    ------
    TypeError, ValueError
        If the matrix does not hold real numbers; if it is not square, not finite, not symmetric, or has a negative
        eigenvalue.

    Examples
    --------
    A = I is `kcalib.kernels.Gaussian` of bandwidth 1.

    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> from kcalib.kernels import Gaussian
    >>> from kcalib.target_kernels import MahalanobisGaussian
    >>> y, P = [[0.0, 1.0], [0.5, 0.0]], Normal([[0.0, 0.0], [1.0, 1.0]], [[1.0, 2.0], [2.0, 1.0]])
    >>> value = kcalib.skce(y, P, target_kernel=MahalanobisGaussian([[1.0, 0.0], [0.0, 1.0]]))
    >>> abs(value - kcalib.skce(y, P, target_kernel=Gaussian(bandwidth=1.0))) < 1e-15
    True
    """

    matrix: tuple[tuple[float, ...], ...]

    def __init__(self, matrix: Any) -> None:
        array = to_host(as_array(matrix, "matrix"))
        if array.ndim != 2:
            raise ValueError(f"`matrix` has shape {array.shape}, expected (d, d)")
        matrix_root(array, len(array), "matrix", "a row for each entry of a target")
        object.__setattr__(self, "matrix", tuple(tuple(row) for row in array.astype(np.float64).tolist()))

    @property
    def root(self) -> np.ndarray:
        """Return L with A = L L^T, shape (d, rank); diagonal if A is."""
        matrix = np.array(self.matrix)
        diagonal = np.diagonal(matrix)
        if np.array_equal(matrix, np.diag(diagonal)):
            return np.diag(np.sqrt(diagonal))
        root = matrix_root(matrix, len(matrix))
        assert root is not None
        return root

    def __str__(self) -> str:
        return f"MahalanobisGaussian of dimension {len(self.matrix)}"


@dataclass(frozen=True)
class Draws:
    r"""A target kernel whose expectations are computed from draws from the predictions.

    Draws are also the default if the kernel has neither a closed form nor a finite-rank factor. This class enforces
    them, and sets their number and seed. The error of the estimate due to the draws is
    ``result.draws_standard_error``.

    Parameters
    ----------
    kernel : Kernel or MahalanobisGaussian, optional
        The kernel between targets. Default: as in `kcalib.skce`.
    n_draws : int
        Number of draws from each prediction, at least 2.
    seed : int
        Seed of the draws.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> from kcalib.target_kernels import Draws
    >>> y, P = [0.0, 1.0, 0.5], Normal([0.0, 1.0, 0.0], [1.0, 2.0, 1.5])
    >>> result = kcalib.skce.result(y, P, target_kernel=Draws(n_draws=100, seed=1))
    >>> result.target_factor[:38]
    '100 draws from each prediction, seed 1'
    >>> abs(result.value - kcalib.skce(y, P)) < 4 * result.draws_standard_error
    True
    """

    kernel: Kernel | MahalanobisGaussian | None = None
    n_draws: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.kernel is None or isinstance(self.kernel, (Kernel, MahalanobisGaussian))):
            raise TypeError(f"`kernel` is {self.kernel!r}, expected one of kcalib.kernels, or MahalanobisGaussian")
        object.__setattr__(self, "n_draws", check_integer("n_draws", self.n_draws, 2, 2**20))
        object.__setattr__(self, "seed", check_integer("seed", self.seed, 0, LARGEST_SEED))

    def __str__(self) -> str:
        return f"Draws({self.kernel}, n_draws={self.n_draws}, seed={self.seed})"


def matrix_root(
    target_kernel: TargetKernel,
    n_classes: int,
    name: str = "target_kernel",
    rows: str = "one row per class (with a lens, of the induced problem)",
) -> np.ndarray | None:
    """Return R of shape (m, rank) with M = R R^T; None for the Kronecker delta."""
    if target_kernel is None:
        return None
    if isinstance(target_kernel, (MahalanobisGaussian, Draws)):
        raise ValueError(f"`target_kernel` is {target_kernel}, which is for predicted distributions, not for classes")
    if isinstance(target_kernel, str):
        if target_kernel != "delta":
            raise ValueError(
                f"`target_kernel` is {target_kernel!r}, expected 'delta', a positive semi-definite (m, m) matrix, "
                "or one of kcalib.kernels"
            )
        return None
    matrix = to_host(as_array(target_kernel, name))
    if matrix.dtype.kind not in "biuf":
        raise TypeError(f"`{name}` has dtype {matrix.dtype}, expected real numbers")
    matrix = matrix.astype(np.float64)
    if matrix.shape != (n_classes, n_classes):
        raise ValueError(f"`{name}` has shape {matrix.shape}, expected ({n_classes}, {n_classes}): {rows}")
    reject(matrix, ~np.isfinite(matrix), lambda at, x: f"`{name}{at}` is {x}, expected a finite number")
    asymmetry = np.abs(matrix - matrix.T)
    largest = np.abs(matrix).max()
    if not 1e-15 <= largest <= 1e15:
        raise ValueError(
            f"`{name}` has the largest entry {largest:.3g}, expected one between 1e-15 and 1e15; rescale it"
        )
    if asymmetry.max() > 1e-10 * largest:
        i, j = np.unravel_index(asymmetry.argmax(), matrix.shape)
        raise ValueError(
            f"`{name}[{i}, {j}]` is {matrix[i, j]} but `{name}[{j}, {i}]` is {matrix[j, i]}, "
            "expected a symmetric matrix; symmetrise it by (M + M.T) / 2"
        )
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    rounding = n_classes * np.finfo(np.float64).eps * max(values[-1], 0.0)
    if values[0] < -100 * rounding or values[-1] <= 0:
        raise ValueError(
            f"`{name}` has the eigenvalue {values[0]:.6g}, expected a positive semi-definite, non-zero matrix"
        )
    first = int(np.argmax(values > rounding))
    return vectors[:, first:] * np.sqrt(values[first:])
