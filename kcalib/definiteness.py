"""Compute the smallest eigenvalue of a kernel matrix, to see whether a kernel is positive definite."""

from __future__ import annotations

import warnings
from typing import Any

from kcalib import _packing
from kcalib._backend import arrays, linalg
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.memory import check_memory
from kcalib._backend.warnings import IndefiniteKernelWarning
from kcalib._input.checks import check_points
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.reductions import DenseRectangle, sweep_one
from kcalib.distributions import Categorical, Distribution
from kcalib.kernels import Kernel

__all__ = ["smallest_eigenvalue"]


@on_their_gpu
def smallest_eigenvalue(
    y_pred: Any, kernel: Kernel | None = None, *, max_memory: float | None = None, threads: int | None = None
) -> float:
    r"""Return the smallest eigenvalue of the matrix of a kernel between predictions.

    .. math:: \lambda_{\min}(K), \qquad K_{ij} = k(P_i, P_j)

    If it is negative beyond rounding (about 1e-15 n), the kernel is indefinite. Compare it with the diagonal k(P, P) to
    see whether estimates can mislead. A non-negative value for these predictions proves nothing for others.

    Parameters
    ----------
    y_pred : array_like, shape (n, m), or Distribution
        Predictions as in `kcalib.skce`; class probabilities of shape (n, m).
    kernel : Kernel, optional
        The kernel, see `kcalib.kernels`. Default: as in `kcalib.skce`.
    max_memory : float, optional
        Largest memory of the computation, in bytes. Default: the available memory.
    threads : int, optional
        Number of threads for the entries of the matrix.

    Returns
    -------
    float
        The smallest eigenvalue.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce`.
    MemoryError
        If the computation, which needs 16 n^2 bytes, exceeds `max_memory`.

    Notes
    -----
    The Wasserstein distance between normal distributions with full covariances, and transport distances between
    mixtures, are not distances of a Hilbert space. Time O(n^3), memory O(n^2).

    Examples
    --------
    Two predictions at distance 1 have the matrix [[1, c], [c, 1]], c = exp(-1).

    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> from kcalib.kernels import Exponential
    >>> k = Exponential(bandwidth=1.0, metric="wasserstein")
    >>> round(kcalib.smallest_eigenvalue(Normal([0.0, 1.0], [1.0, 1.0]), k), 6)
    0.632121
    """
    if isinstance(y_pred, Categorical):
        y_pred = y_pred.parameters()
    points = None if isinstance(y_pred, Distribution) else check_points(arrays.as_array(y_pred, "y_pred"), "y_pred")
    n = y_pred.n if points is None else int(points.shape[0])
    if n == 0:
        raise ValueError("`y_pred` has no rows, expected at least one")
    reference = y_pred.parameters() if points is None else points
    check_memory(16 * n * n, max_memory, f"the kernel matrix of {n} predictions", "take fewer of them", reference)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IndefiniteKernelWarning)  # the caller wants to find out
        if points is None:
            problem = _packing.prediction_kernel_problem(y_pred, kernel, threads)
        else:
            problem = _packing.pack_points(points, kernel, "float64", threads=threads).problem
    backend = backend_for(problem, threads=threads)
    matrix = arrays.to_compute_device(sweep_one(backend, DenseRectangle(slice(0, n), slice(0, n))))
    return float(linalg.eigvalsh(matrix, overwrite=True)[0])
