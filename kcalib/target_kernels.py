"""Kernels on targets (class labels): what turns residuals into marks.

With the Kronecker delta the target factor of a pair is <e_i, e_j>, e = one-hot(y) - p the
residuals. With a positive semi-definite matrix M over the classes, that is with the
matrix-valued kernel k M (Widmann et al. 2019, definition 1), it is e_i^T M e_j, the inner
product of e R for M = R R^T. `_packing` multiplies the residuals by R. A kernel between numbers is
such a matrix for classes that are numbers; `_packing` makes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kcalib._arrays import as_array, to_host

TargetKernel = Any  # "delta", a (m, m) array, or a Kernel


def matrix_root(target_kernel: TargetKernel, n_classes: int) -> np.ndarray | None:
    """R of shape (m, rank) with M = R R^T; None for the Kronecker delta.

    Raises
    ------
    TypeError
        If the matrix does not hold real numbers.
    ValueError
        If the matrix has the wrong shape, is not symmetric, or has a negative eigenvalue.
    """
    if isinstance(target_kernel, str):
        if target_kernel != "delta":
            raise ValueError(
                f"`target_kernel` is {target_kernel!r}, expected 'delta', a positive semi-definite (m, m) matrix, "
                "or one of kcalib.kernels"
            )
        return None
    matrix = to_host(as_array(target_kernel, "target_kernel"))
    if matrix.dtype.kind not in "biuf":
        raise TypeError(f"`target_kernel` has dtype {matrix.dtype}, expected real numbers")
    matrix = matrix.astype(np.float64)
    if matrix.shape != (n_classes, n_classes):
        raise ValueError(
            f"`target_kernel` has shape {matrix.shape}, expected ({n_classes}, {n_classes}): one row per class "
            "(with a lens, of the induced problem)"
        )
    if not np.isfinite(matrix).all():
        i, j = np.argwhere(~np.isfinite(matrix))[0]
        raise ValueError(f"`target_kernel[{i}, {j}]` is {matrix[i, j]}, expected a finite number")
    asymmetry = np.abs(matrix - matrix.T)
    largest = np.abs(matrix).max()
    if not 1e-15 <= largest <= 1e15:
        raise ValueError(
            f"`target_kernel` has the largest entry {largest:.3g}, expected one between 1e-15 and 1e15; rescale it"
        )
    if asymmetry.max() > 1e-10 * largest:
        i, j = np.unravel_index(asymmetry.argmax(), matrix.shape)
        raise ValueError(
            f"`target_kernel[{i}, {j}]` is {matrix[i, j]} but `target_kernel[{j}, {i}]` is {matrix[j, i]}, "
            "expected a symmetric matrix; symmetrise it by (M + M.T) / 2"
        )
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    rounding = n_classes * np.finfo(np.float64).eps * max(values[-1], 0.0)
    if values[0] < -100 * rounding or values[-1] <= 0:
        raise ValueError(
            f"`target_kernel` has the eigenvalue {values[0]:.6g}, expected a positive semi-definite, non-zero matrix"
        )
    kept = values > rounding
    return vectors[:, kept] * np.sqrt(values[kept])
