"""Compute the conditional kernel calibration error (CKCE) of predictions, and the joint one (JKCE).

`ckce` packs its input into a `System`: kernel matrix K, residuals E and n lambda. Exact methods solve
(K + n lambda I) Z = E by `kcalib.solvers` (`ckce_exact`); others replace K by F F^T (`ckce_low_rank`). `jkce` is
`kcalib.skce` with another kernel. On an NVIDIA GPU points, residuals, solutions and factors stay there.
"""

from __future__ import annotations

import time
from typing import Any

from kcalib import _packing
from kcalib._backend.options import check_choice, check_within
from kcalib._input.forecasts import prepare
from kcalib._input.methods import Method, Seeded, resolved
from kcalib.estimators.ckce_exact import ToleranceWarning, exact_value
from kcalib.estimators.ckce_low_rank import APPROXIMATIONS
from kcalib.estimators.ckce_system import Approximation, System, default_kernel, residual_rows
from kcalib.estimators.forecast_residuals import kernel_alone
from kcalib.estimators.skce import PairOptions, check_not_parallel, describe, estimate, value_of
from kcalib.estimators.with_result import with_result
from kcalib.kernels import Kernel
from kcalib.lenses import Lens
from kcalib.results import CKCEResult, SKCEResult
from kcalib.solvers._solve import SOLVERS
from kcalib.solvers.kernel_operator import KernelOperator
from kcalib.solvers.ridge_system import Solver
from kcalib.target_kernels import TargetKernel

__all__ = ["ToleranceWarning", "ckce", "jkce"]

CKCE_METHODS: tuple[type[Solver] | type[Approximation], ...] = (*SOLVERS, *APPROXIMATIONS)


@with_result
def ckce(
    needs_result: bool,
    y_true: Any,
    y_pred: Any,
    *,
    kernel: Kernel | None = None,
    target_kernel: TargetKernel = None,
    regularization: float | None = None,
    method: str | Method = "auto",
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    dtype: Any = None,
    threads: int | None = None,
    backend: Any = None,
) -> float | CKCEResult:
    r"""Compute the conditional kernel calibration error (CKCE), to compare models.

    It compares the conditional distributions of labels and of draws from the predictions, given the prediction, as
    operators. Unlike the SKCE and the ECE it hardly depends on how a model's predictions are distributed, so that it
    can compare models. It is not a test: its value is positive for calibrated models.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits, lens, dtype
        As in `kcalib.skce`; sources need workers as `backend`. Arrays on NVIDIA GPUs stay there. For arrays on other
        devices, residuals are copied to the host.
    kernel : Kernel, optional
        Positive definite kernel on predictions, see `kcalib.kernels`. Default: ``Linear() + Gaussian()``, equation 8
        of [1]_. For predicted distributions ``Gaussian(metric="wasserstein")`` where the Wasserstein distance is a
        Euclidean distance of points, else ``Gaussian(metric="mmd")``.
    target_kernel : optional
        Kernel on labels or targets, as in `kcalib.skce`; not ``Draws``, or others whose expectations need draws.
    regularization : float, optional
        :math:`\lambda > 0`. Default: :math:`n^{-1/4}`, as in [1]_. Values with different :math:`\lambda` are not
        comparable.
    method : {"auto", "cholesky", "cg", "fourier", "nystrom", "pivoted_cholesky"} or method
        Exact methods:

        - "cholesky": dense Cholesky decomposition.
        - "cg": conjugate gradients, without storing the kernel matrix.
        - "auto": one of these; or, for binary problems with a smooth kernel, a low-rank factor, if its error bound is
          below the tolerance.

        Approximations:

        - "fourier": random features, for sums of linear and Gaussian kernels.
        - "nystrom": random landmarks.
        - "pivoted_cholesky": randomly pivoted, partial Cholesky decomposition.

        To set options pass `kcalib.methods.AutomaticSolver`, ``Cholesky``, ``ConjugateGradient``, ``Fourier``,
        ``Nystrom`` or ``PivotedCholesky``.
    threads : int, optional
        As in `kcalib.skce`, for products with the kernel matrix. Matrix decompositions use the threads of BLAS.
    backend : optional
        What computes products with the kernel matrix and the sums of "fourier", as in `kcalib.skce`. Solvers run in
        this process. Workers are not for "nystrom" and "pivoted_cholesky".

    Returns
    -------
    float
        The estimate. ``ckce.result`` returns a `CKCEResult` with an error bound, the method and the kernel.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce`. Also if `regularization` is not positive and finite, or too small to solve the system
        accurately; if the kernel is too indefinite for it; if `method` is unknown, or one of its options does not fit
        the samples; if "fourier" has no features of the kernel; if workers are given for "nystrom" or
        "pivoted_cholesky".
    MemoryError
        If the method needs more memory than the machine, or the GPU of the arrays, has available.

    Warns
    -----
    ToleranceWarning
        If an exact method does not reach its tolerance. The result has the error bound that it did reach.
    IndefiniteKernelWarning
        If the kernel is not known to be positive definite. There is then no error bound.

    See Also
    --------
    jkce : The same without conditioning on the prediction.
    kcalib.skce : Calibration error with a standard error.
    kcalib.calibration_test : Test whether a model is calibrated.

    Notes
    -----
    With the kernel matrix K, residuals :math:`e_i = \mathrm{onehot}(y_i) - p_i` in the rows of E (times R for the
    matrix :math:`M = R R^\top` on the labels), and :math:`Z = (K + n\lambda I)^{-1} E`, equation 7 of [1]_ is

    .. math:: \mathrm{CKCE} = \operatorname{tr}(Z^\top K Z) .

    ``error_bound`` of the result is certified for exact methods; for low-rank methods it is a bound ("trace") that is
    mostly far too large, and for "fourier" an estimate. The user guide has the formulas in "Formulas of intervals and
    tests".

    Time: O(n^3) and memory O(n^2) for "cholesky"; O(n^2 m) for each iteration of "cg" and for the final product,
    memory O(n (m + rank)); O(n r (r + m)) with r features for "fourier" and "nystrom", which read the samples once;
    "pivoted_cholesky" stores F, n times rank.

    For predicted distributions, inner products of residuals are those of `kcalib.skce`. For a single sample, or
    identical predictions, the value does not depend on the bandwidth.

    References
    ----------
    .. [1] P. Moskvichev, D. Sejdinovic. All models are miscalibrated, but some less so: comparing calibration with
       conditional mean operators.

    Examples
    --------
    One sample with K = 0.68 + 1, n lambda = 1 and squared residual 0.08 has the value 0.08 K / (K + 1)^2.

    >>> import kcalib
    >>> round(kcalib.ckce([0], [[0.8, 0.2]]), 9)
    0.018712408
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(size=400)
    >>> y = rng.uniform(size=400) < p
    >>> sharp = p**3 / (p**3 + (1 - p) ** 3)
    >>> kcalib.ckce(y, p) < kcalib.ckce(y, sharp)
    True
    >>> result = kcalib.ckce.result(y, sharp, method="fourier")
    >>> abs(result.value - kcalib.ckce(y, sharp)) < result.error_bound, result.error_bound_kind
    (True, 'estimated')

    Prediction N(0, 1) and target 0: K = 1, n lambda = 1, and the value is 1/4 of the squared norm of the residual,
    1 - 2 / sqrt(2) + 1 / sqrt(3).

    >>> from kcalib.distributions import Normal
    >>> from kcalib.kernels import Gaussian
    >>> options = {"kernel": Gaussian(bandwidth=1.0), "target_kernel": Gaussian(bandwidth=1.0)}
    >>> round(kcalib.ckce([0.0], Normal([0.0], [1.0]), **options), 6)
    0.040784
    """
    start = time.perf_counter()
    ckce_method = resolved(method, CKCE_METHODS)
    if isinstance(ckce_method, Approximation) and not ckce_method.is_shared_out:
        check_not_parallel(backend, f"method={ckce_method.name!r}", "leave it out, or use method='cg'")
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, dtype=dtype, threads=threads)
    shift = data.n * _regularization(regularization, data.n)
    kernel = default_kernel(data) if kernel is None else kernel
    packed = _packing.pack(data, kernel, target_kernel, threads=threads)
    seed = ckce_method.drawn_seed if isinstance(ckce_method, Seeded) else 0
    residuals = residual_rows(data, packed, threads=threads, seed=seed)
    packed = kernel_alone(packed)
    matrix = KernelOperator(packed, threads=threads, backend=backend)
    system = System(data.dtype, residuals, packed, matrix, shift)
    outcome = exact_value(system, ckce_method) if isinstance(ckce_method, Solver) else ckce_method.estimate(system)
    if not needs_result:
        return outcome.value
    return CKCEResult(
        **outcome._asdict(),
        regularization=shift / data.n,
        n_samples=data.n,
        **describe(data, packed, matrix),
        dtype=data.dtype,
        threads=matrix.threads,
        seconds=time.perf_counter() - start,
    )


@with_result
def jkce(
    needs_result: bool,
    y_true: Any,
    y_pred: Any,
    *,
    kernel: Kernel | None = None,
    target_kernel: TargetKernel = None,
    estimator: str = "unbiased",
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    dtype: Any = None,
    threads: int | None = None,
    backend: Any = None,
) -> float | SKCEResult:
    r"""Compute the joint kernel calibration error (JKCE).

    It is the squared MMD between the joint distributions of prediction and label, and of prediction and a draw from it:
    `kcalib.skce` with the kernel of equation 8 of [1]_. Unlike `ckce` it depends on the distribution of the
    predictions.

    Parameters
    ----------
    y_true, y_pred, target_kernel, classes, from_logits, lens, dtype, threads, backend
        As in `kcalib.skce`; sources need workers as `backend`.
    kernel : Kernel, optional
        Kernel on predictions. Default: as in `ckce`.
    estimator : {"unbiased", "biased"}
        As in `kcalib.skce`.

    Returns
    -------
    float
        The estimate. ``jkce.result`` returns an `SKCEResult` with its standard error and the kernel.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `kcalib.skce`.

    Warns
    -----
    IndefiniteKernelWarning
        If the kernel is not known to be positive definite.

    Notes
    -----
    It is equation 11 of [1]_ with the tensor product of `kernel` and `target_kernel`. Time O(n^2 m), memory O(n m).

    References
    ----------
    .. [1] P. Moskvichev, D. Sejdinovic. All models are miscalibrated, but some less so: comparing calibration with
       conditional mean operators.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.kernels import Gaussian, Linear
    >>> y, p = [0, 1, 1], [0.2, 0.6, 0.9]
    >>> kcalib.jkce(y, p) == kcalib.skce(y, p, kernel=Linear() + Gaussian())
    True
    """
    check_choice("estimator", estimator, ("unbiased", "biased"))
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, dtype=dtype, threads=threads)
    kernel = default_kernel(data) if kernel is None else kernel
    options = PairOptions(kernel, target_kernel, backend, threads)
    if not needs_result:
        return value_of(data, options, estimator, None)
    return estimate(data, options, estimator, None)


def _regularization(value: Any, n: int) -> float:
    if value is None:
        return float(n**-0.25)
    return check_within("regularization", value, 1e-100, 1e100, "; leave it out for n**-0.25")
