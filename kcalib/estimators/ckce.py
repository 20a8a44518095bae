"""The conditional kernel calibration error (CKCE) of predictions, and the joint one (JKCE).

`ckce` checks its input, packs it (`_packing`), and hands kernel matrix, residuals and n lambda, a `System`, to a
function of `METHODS`: exact ones solve (K + n lambda I) Z = E by `kcalib.solvers` and bound the error of the value by
the residual; the others replace K by F F^T (`kcalib.solvers.low_rank`). `jkce` is `kcalib.skce` with another kernel.

On an NVIDIA GPU points, residuals, solutions and factors stay there; single numbers leave it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import scipy

from kcalib import _packing
from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.memory import check_max_memory, check_memory
from kcalib._backend.options import check_choice, check_integer
from kcalib._backend.warnings import warn
from kcalib._input.forecasts import Forecasts, prepare
from kcalib._input.labels import Classification
from kcalib._packing import Packed
from kcalib.estimators.forecast_residuals import Residuals, kernel_alone, residuals_of
from kcalib.estimators.skce import PairOptions, compute, describe, estimate
from kcalib.kernels import Gaussian, Kernel, Linear
from kcalib.lenses import Lens
from kcalib.results import CKCEResult, SKCEResult
from kcalib.solvers import KernelOperator, pivoted_cholesky, solve
from kcalib.solvers.low_rank import GROUPS, FourierFeatures, NormalEquations, NystromFeatures, jackknife, row_blocks
from kcalib.target_kernels import TargetKernel

__all__ = ["ToleranceWarning", "ckce", "jkce"]

TOLERANCES = {"float64": 1e-8, "float32": 1e-3}  # of the value, by dtype
RANK = 200  # landmarks and pivots
SMOOTH = {"gaussian", "rational_quadratic", "identity"}  # profiles whose kernels on a line have small rank
ROUNDINGS = 10  # of an entry of K, or of a sum of entries, in units of epsilon
LINE_RANK, LINE_ROUNDING = 100, 1e-15  # rank that is tried there, until this share of the trace is left
FEATURES = 100  # frequencies, as in the paper
SMALLEST_VALUE = 1e-6  # relative to the largest possible: below, `tol` no longer follows the value
KNOWN = 0.01  # error of the norm of a residual that a solver shows, relative to it
COLUMNS = 64  # of the residuals, multiplied by K at a time


class ToleranceWarning(UserWarning):
    """The error bound of a value is larger than was asked for."""


@on_their_gpu
def ckce(
    y_true: Any,
    y_pred: Any,
    *,
    kernel: Kernel | None = None,
    target_kernel: TargetKernel = None,
    regularization: float | None = None,
    method: str = "auto",
    tol: float | None = None,
    rank: int | None = None,
    n_features: int | None = None,
    max_memory: float | None = None,
    seed: int = 0,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    dtype: Any = None,
    threads: int | None = None,
    operator: str | None = None,
    full_output: bool = False,
) -> float | CKCEResult:
    r"""Conditional kernel calibration error of predicted class probabilities, or of predicted distributions.

    Compares the conditional laws of labels and of draws from the predictions, given the prediction, as
    operators. Unlike the SKCE and the ECE it hardly depends on where a model puts its predictions, so
    that it compares models. Not a test: the value of a calibrated model is positive.

    Parameters
    ----------
    y_true : array_like, shape (n,) or (n, m)
        Labels: integers 0..m-1, booleans, strings, or one-hot rows. For distributions targets, as in `kcalib.skce`.
    y_pred : array_like, shape (n, m) or (n,), or Distribution
        Predicted probabilities; rows sum to 1. For a binary problem also the probability of
        the second class alone. NumPy, PyTorch, JAX, CuPy, Dask, pandas, polars, lists. On NVIDIA GPUs everything is
        done there; of arrays on other devices the residuals are copied to the host. Gradients are not tracked. Or one
        of `kcalib.distributions`.
    kernel : Kernel, optional
        Positive definite kernel on predictions, see `kcalib.kernels`. Default: equation 8 of [1]_,
        ``Linear() + Gaussian()`` with the median heuristic. For distributions ``Gaussian(metric="wasserstein")`` where
        their Wasserstein distance is that of points, else ``Gaussian(metric="mmd")``.
    target_kernel : optional
        Kernel on labels or targets, as in `kcalib.skce`; of distributions one whose expectations are not by draws.
    regularization : float, optional
        :math:`\lambda > 0`. Default: :math:`n^{-1/4}`, as in [1]_. Values with different ones are not comparable.
    method : {"auto", "cholesky", "cg", "fourier", "nystrom", "pivoted_cholesky"}
        Exact: "cholesky" (dense), "cg" (conjugate gradients; the kernel matrix is not stored), "auto" (one of these
        two; for binary problems with a smooth kernel a factor that is the kernel matrix to rounding, if its bound is
        below `tol`). Approximate, only if asked for: "fourier" (random features, for sums of linear and Gaussian
        kernels), "nystrom" (random landmarks), "pivoted_cholesky" (randomly pivoted, incomplete).
    tol : float, optional
        Exact methods: largest error of the value, by its bound, relative to the value, or to 1e-6 of the largest
        possible one, :math:`\|E\|_F^2 / (4 n \lambda)`, if that is more; default 1e-8, for float32 1e-3.
    rank : int, optional
        Landmarks of "nystrom", pivots of "pivoted_cholesky" (default 200, at most n); with "cg" the rank of the
        preconditioner (default: the solver's choice).
    n_features : int, optional
        Random frequencies of "fourier" for each Gaussian term, at least 1; default 100. Each makes two features.
    max_memory : float, optional
        Bytes that the method may take. Default: what the machine, or the arrays' GPU, has available.
    seed : int
        Of features, landmarks, pivots and the preconditioner, at least 0.
    classes : array_like, shape (m,), optional
        The label of each column of `y_pred`. Default: 0..m-1; for strings the sorted
        distinct labels.
    from_logits : bool
        `y_pred` holds logits: apply a softmax (a sigmoid for one column). Never guessed.
    lens : Lens, optional
        The notion of calibration, see `kcalib.lenses`; default the whole vector.
    dtype : {"float64", "float32"}, optional
        Arithmetic of the kernel's entries. Sums are always float64.
    threads : int, optional
        Threads of products with the kernel matrix, at least 1. Default: OMP_NUM_THREADS, at most the CPUs this process
        may use. Factorisations use those of NumPy's and SciPy's BLAS.
    operator : {"sorted_scan", "openmp", "cuda", "generic"}, optional
        Who computes the kernel's entries; chosen from the arrays by default.
    full_output : bool
        Return a `CKCEResult` instead of a float.

    Returns
    -------
    float or CKCEResult
        The estimate; with `full_output` also a bound of its error, the method, what it took, and the kernel.

    Raises
    ------
    TypeError
        If an argument has a type that is never meant.
    ValueError
        If a value is wrong, as in `kcalib.skce`; if `regularization` is not positive and finite, or so small that
        the shifted kernel matrix is singular or its rounding shows; if the kernel is indefinite beyond it; if
        a method is given an option that it does not have, or "fourier" a kernel without such features.
    MemoryError
        If the method takes more memory than `max_memory`, or than there is.

    Warns
    -----
    ToleranceWarning
        If an exact method does not reach `tol`. The value is the best it reached, and the result has its bound.
    IndefiniteKernelWarning
        If the kernel is not known to be positive definite. There is no error bound then.

    See Also
    --------
    jkce : The same kernels without the conditioning.
    kcalib.skce : Calibration error with a standard error.
    kcalib.calibration_test : Is a model calibrated?

    Notes
    -----
    With the kernel matrix K, residuals :math:`e_i = \mathrm{onehot}(y_i) - p_i` in the rows of E (times R for the
    matrix :math:`M = R R^\top` on the labels), and :math:`Z = (K + n\lambda I)^{-1} E`, equation 7 of [1]_ is

    .. math:: \mathrm{CKCE} = \operatorname{tr}(Z^\top K Z) .

    Exact methods compute it from K Z in float64, which also gives the residual
    :math:`R = E - n\lambda Z - K Z`; the error is at most
    :math:`2 z \|R\|_F + \|R\|_F^2 / (4 n \lambda)`, z the smaller of :math:`\|Z\|_F` and
    :math:`\sqrt{\mathrm{CKCE} / (4 n \lambda)}` ("certificate"), with an allowance for rounding, and for kernel entries
    that are right to a few epsilon. With :math:`K \approx F F^\top` the value is
    :math:`\|(F^\top F + n\lambda I)^{-1} F^\top E\|_F^2`. If
    :math:`K - F F^\top` is positive semi-definite ("nystrom", "pivoted_cholesky") of trace t, the error is at most the
    smaller of :math:`t \|E\|_F^2 / (n\lambda)^2` and :math:`t \|Z\|_F^2 (1 + t / (4 n \lambda))`, Z that of
    :math:`F F^\top` ("trace"): mostly far too large. The error of "fourier" is "estimated": a 95 % interval's half
    width, bias included, by a jackknife over ten groups of frequencies.

    Time: O(n^3) and memory O(n^2) for "cholesky"; O(n^2 m) for each iteration of "cg" and for the final product,
    memory O(n (m + rank)); O(n r (r + m)) with r features for "fourier" and "nystrom", which read the samples once,
    in blocks; "pivoted_cholesky" stores F, n times rank.

    Of distributions the inner products of :math:`\delta_{y_i} - P_i` under the target kernel take the place of
    :math:`E E^\top`, and rows of E come from a pivoted Cholesky factor of their matrix, which leaves out 1e-12 of its
    trace at most: few columns for targets that are numbers and smooth kernels, up to n for targets in many dimensions
    (time O(n^3) then, memory O(n^2)). The error bound contains what is left out.

    A single sample, or identical class probabilities, are allowed: the default kernel then needs no bandwidth.

    References
    ----------
    .. [1] P. Moskvichev, D. Sejdinovic. All models are miscalibrated, but some less so: comparing calibration with
       conditional mean operators.

    Examples
    --------
    One sample, K = 0.68 + 1, n lambda = 1, squared residual 0.08: the value is 0.08 K / (K + 1)^2.

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
    >>> result = kcalib.ckce(y, sharp, method="fourier", full_output=True)
    >>> abs(result.value - kcalib.ckce(y, sharp)) < result.error_bound, result.error_bound_kind
    (True, 'estimated')

    A normal distribution N(0, 1) and the target 0: K = 1, n lambda = 1, and the value is 1/4 of the squared norm of the
    residual, 1 - 2 / sqrt(2) + 1 / sqrt(3).

    >>> from kcalib.distributions import Normal
    >>> from kcalib.kernels import Gaussian
    >>> options = {"kernel": Gaussian(bandwidth=1.0), "target_kernel": Gaussian(bandwidth=1.0)}
    >>> round(kcalib.ckce([0.0], Normal([0.0], [1.0]), **options), 6)
    0.040784
    """
    start = time.perf_counter()
    check_choice("method", method, tuple(METHODS))
    options = _checked_options(method, tol, rank, n_features, max_memory, seed)
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, dtype=dtype, threads=threads)
    shift = data.n * _regularization(regularization, data.n)
    source, residuals = None, None
    if isinstance(data, Forecasts):
        packed = _packing.pack(data, _forecast_kernel(data, kernel), target_kernel, threads=threads)
        residuals = residuals_of(packed, threads=threads, max_memory=options.max_memory, seed=options.seed)
        packed, sides = kernel_alone(packed), None
    else:
        sides = _where_solved(data)
        kernel, source = _kernel(sides, kernel)
        packed = _packing.pack_points(data.probabilities, kernel, data.dtype, threads=threads)
        packed = dataclasses.replace(packed, target=_packing.TargetMatrix(_packing.target_root(target_kernel, data)))
    matrix = KernelOperator(packed, threads=threads, operator=operator)
    system = System(data.n, data.dtype, sides, residuals, packed, matrix, shift, options)
    found = METHODS[method].compute(system)
    if not full_output:
        return found.value
    description = describe(data, packed, matrix)
    if source is not None:
        description["bandwidth_source"] = source
    return CKCEResult(
        **found._asdict(),
        regularization=shift / data.n,
        tol=system.tol if "tol" in METHODS[method].options else None,
        n_samples=data.n,
        **description,
        dtype=data.dtype,
        threads=matrix.threads,
        seconds=time.perf_counter() - start,
    )


@on_their_gpu
def jkce(
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
    operator: str | None = None,
    full_output: bool = False,
) -> float | SKCEResult:
    r"""Joint kernel calibration error of predicted class probabilities, or of predicted distributions.

    The squared distance (MMD) between the joint laws of prediction and label, and of prediction and a draw from it:
    `kcalib.skce` with the kernel of equation 8 of [1]_. It depends on the law of the predictions, see `ckce`.

    Parameters
    ----------
    y_true, y_pred, target_kernel, classes, from_logits, dtype, threads, operator
        As in `kcalib.skce`.
    lens : Lens, optional
        The notion of calibration, see `kcalib.lenses`; default the whole vector.
    kernel : Kernel, optional
        Kernel on predictions. Default: ``Linear() + Gaussian()`` with the median heuristic; for distributions as in
        `ckce`.
    estimator : {"unbiased", "biased"}
        "unbiased" is a U-statistic over all pairs and may be negative; "biased" never is.
    full_output : bool
        Return an `SKCEResult` instead of a float.

    Returns
    -------
    float or SKCEResult
        The estimate; with `full_output` also its standard error, the kernel with its bandwidth, sizes,
        operator and time.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `kcalib.skce`; ValueError also for another `estimator`.

    Warns
    -----
    IndefiniteKernelWarning
        If the kernel is not known to be positive definite.

    Notes
    -----
    Equation 11 of [1]_ with the tensor product of `kernel` and `target_kernel`. Time O(n^2 m), memory O(n m).

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
    source = None
    if isinstance(data, Forecasts):
        kernel = _forecast_kernel(data, kernel)
    else:
        kernel, source = _kernel(data, kernel)
    options = PairOptions(kernel, target_kernel, operator, threads)
    if not full_output:
        return compute(data, options, estimator, None, with_error=False).value
    result = estimate(data, options, estimator, None)
    return result if source is None else dataclasses.replace(result, bandwidth_source=source)


@dataclass(frozen=True)
class Options:
    """The options of a method, checked; None where the method chooses."""

    tol: float | None
    rank: int | None
    n_features: int | None
    max_memory: float | None
    seed: int


@dataclass(frozen=True)
class System:
    """K, the residuals E, and n lambda."""

    n: int
    dtype: str
    data: Classification | None  # on the host, or an NVIDIA GPU; None for distributions, which have
    distributed: Residuals | None  # these residuals
    packed: Packed  # on the user's device
    matrix: KernelOperator  # K, which takes and returns arrays where the data are
    shift: float
    options: Options

    @property
    def columns(self) -> int:
        """Columns of E."""
        if self.distributed is not None:
            return self.distributed.rows.shape[1]
        assert self.data is not None
        return self.data.m if self.packed.target.root is None else self.packed.target.root.shape[1]

    @property
    def tol(self) -> float:
        return TOLERANCES[self.dtype] if self.options.tol is None else self.options.tol

    @property
    def is_definite(self) -> bool:
        """Whether the kernel is known to be positive definite."""
        return self.packed.is_definite

    @property
    def is_binary(self) -> bool:
        """Whether the points are on a line because there are two classes."""
        return self.data is not None and self.data.m == 2

    def residuals(self, rows: slice = slice(None)) -> Array:
        """Rows of E: onehot(y) - p, times the root of the matrix on the labels."""
        if self.distributed is not None:
            return self.distributed.rows[rows]
        assert self.data is not None
        e = -self.data.probabilities[rows]
        e[arrays.namespace(e).arange(len(e)), self.data.labels[rows]] += 1
        return e if self.packed.target.root is None else e @ arrays.like(self.packed.target.root, e)

    @property
    def rounding_of_target(self) -> float:
        """What the rounding of a matrix on the labels, relative to its norm, changes the value by."""
        if self.distributed is not None:
            # The value is tr(B G) with a psd B of norm at most 1 / (4 shift).
            rounding = 4 * 2.0**-52 * linalg.squared_norm(self.distributed.rows)
            return (self.distributed.lost + rounding) / (4 * self.shift)
        root = self.packed.target.root
        if root is None or self.data is None:
            return 0.0
        p, labels = self.data.probabilities, self.data.labels
        xp = arrays.namespace(p)
        squares = float(xp.sum(p * p)) + float(xp.sum(1 - 2 * p[xp.arange(self.n), labels]))
        return 4 * 2.0**-52 * float(np.linalg.norm(root, 2)) ** 2 * squares / (4 * self.shift)

    def exceeds(self, rank: int) -> bool:
        """Whether a factor of this rank takes more memory than is allowed."""
        limit = self.options.max_memory
        return limit is not None and 8 * self.n * (rank + self.columns) > limit

    def check_memory(self, numbers: int, what: str, remedy: str) -> int:
        """Bytes of so many numbers, if they may be taken."""
        check_memory(8 * numbers, self.options.max_memory, what, remedy, self.matrix.reference)
        return 8 * numbers


class Found(NamedTuple):
    """What a method returns; the fields of `CKCEResult` that depend on it."""

    value: float
    error_bound: float | None
    error_bound_kind: str
    method: str
    method_reason: str
    memory: int
    iterations: int | None = None
    rank: int | None = None
    n_features: int | None = None
    seed: int | None = None


def _automatic(system: System) -> Found:
    """An exact method. On a line a smooth kernel has a small numerical rank, and its factor is K to rounding."""
    profiles = {factor.profile for term in system.packed.problem.kernel for factor in term.factors}
    if system.is_binary and system.n > LINE_RANK and profiles <= SMOOTH and not system.exceeds(LINE_RANK):
        options = dataclasses.replace(system.options, rank=LINE_RANK)
        found = _pivoted_cholesky(dataclasses.replace(system, options=options), tol=LINE_ROUNDING)
        if found.error_bound is not None and found.error_bound <= system.tol * found.value:
            return found._replace(method_reason=f"on a line K has the numerical rank {found.rank}: exact to the bound")
    return _exact("auto", system)


def _exact(method: str, system: System) -> Found:
    """The value and its certificate, from a solver's Z."""
    options, right = system.options, system.residuals()
    certificate = Certificate(
        system.matrix, right, system.shift, system.tol, _epsilon(system), system.rounding_of_target
    )
    try:
        solution = solve(
            system.matrix,
            right,
            system.shift,
            method=method,
            rank=options.rank,
            max_memory=options.max_memory,
            seed=options.seed,
            accept=certificate,
        )
    except ValueError as error:  # everything else is checked
        raise ValueError(
            f"{error} (n times `regularization` is the shift, {system.shift:.3g}: a larger one helps in any case)"
        ) from None
    value, size = certificate.of(solution.values, solution.residual)
    value = max(value, 0.0) if system.is_definite else value
    bound: float | None = size
    kind = "certificate"
    if not system.is_definite:
        bound, kind = None, "none: the kernel is not known to be positive definite"
    elif size > certificate.aim(value):
        warn(
            f"the value {value:.6g} has the error bound {size:.2g}, larger than `tol` {system.tol:g} times the value; "
            "enlarge `tol` or `regularization`",
            ToleranceWarning,
        )
    return Found(
        value,
        bound,
        kind,
        solution.method,
        solution.method_reason,
        solution.memory,
        iterations=solution.iterations if solution.method == "cg" else None,
        rank=solution.rank if solution.method == "cg" else None,
        seed=options.seed if solution.rank else None,
    )


class Certificate:
    """The value <Z, K Z> of a solution Z, and a bound of its error; tells a solver when to stop.

    With A = K + s I and the residual R = E - A Z the true solution is Z + A^{-1} R. Its value differs from that of Z by
    2 <Z, K A^{-1} R> + <R, A^{-1} K A^{-1} R>. For a psd K the norm of K A^{-1} is below 1 and that of A^{-1} K A^{-1}
    at most 1 / (4 s), so that by Cauchy and Schwarz, for the inner product with or without K, the first term is at
    most 2 ||Z|| ||R|| and at most 2 sqrt(<Z, K Z>) ||R|| / sqrt(4 s).
    """

    def __init__(
        self,
        matrix: Any,
        right: Array,
        shift: float,
        tol: float,
        epsilon: float = 2.0**-52,
        rounding_of_value: float = 0.0,
    ) -> None:
        self._matrix, self._right, self._shift, self._tol = matrix, right, shift, tol
        self._right_norm = linalg.norm(right)
        self._xp = arrays.namespace(right)
        # Entries of K are at most max K_ii. Their errors, some epsilon, and those of sums add up like random numbers.
        self._rounding = 4 * epsilon * math.sqrt(len(right)) * float(self._xp.max(matrix.diagonal()))
        self._epsilon = epsilon
        self._rounding_of_value = rounding_of_value
        self._last: tuple[float, float, float] | None = None

    def __call__(self, z: Array, residual: Array) -> bool:
        """Whether the value is accurate enough, or rounding allows no better residual."""
        value, squares = 0.0, 0.0
        for part in self._parts():
            products = self._right[:, part] - self._shift * z[:, part] - residual[:, part]
            value += float(self._xp.sum(z[:, part] * products))
            squares += linalg.squared_norm(residual[:, part])
        norm, size = linalg.norm(z), math.sqrt(squares)
        rounding = self._of_residual(norm)
        # E - s Z - R is K Z with the errors of R.
        bound = self._bound(value, norm, (1 + KNOWN) * size) + (rounding + KNOWN * size) * norm
        self._last = size, value, bound
        return bound <= self.aim(value) or size <= rounding

    def aim(self, value: float) -> float:
        """The largest error that is good enough."""
        return self._tol * max(value, SMALLEST_VALUE * self._right_norm**2 / (4 * self._shift))

    def of(self, z: Array, residual: float) -> tuple[float, float]:
        """Value and bound, from what the solver showed last if it was Z and good enough; else from another K Z."""
        if self._last is not None and math.isclose(self._last[0], residual, rel_tol=1e-12):
            _, value, bound = self._last
            if bound <= self.aim(value):
                return value, bound
        return self.anew(z)

    def anew(self, z: Array) -> tuple[float, float]:
        """Value and bound from K Z."""
        value, squares = 0.0, 0.0
        for part in self._parts():
            product = self._matrix.matmul(z[:, part])
            value += float(self._xp.sum(z[:, part] * product))
            squares += linalg.squared_norm(self._right[:, part] - self._shift * z[:, part] - product)
        norm = linalg.norm(z)
        return value, self._bound(value, norm, math.sqrt(squares)) + self._rounding * norm**2

    def _parts(self) -> Iterator[slice]:
        for begin in range(0, self._right.shape[1], COLUMNS):
            yield slice(begin, begin + COLUMNS)

    def _bound(self, value: float, norm: float, residual: float) -> float:
        residual += self._of_residual(norm)
        size = min(norm, math.sqrt(max(value, 0.0) / (4 * self._shift)))
        return 2 * size * residual + residual**2 / (4 * self._shift) + self._rounding_of_value

    def _of_residual(self, norm: float) -> float:
        """Rounding of a residual, for the norm of Z."""
        return self._rounding * norm + self._epsilon * (self._right_norm + self._shift * norm)


def _epsilon(system: System) -> float:
    return float(np.finfo(system.dtype).eps)


def _fourier(system: System) -> Found:
    """The value with random features, and its spread over the frequencies."""
    options = system.options
    problem = system.packed.problem
    if problem.predicted is not None or problem.table is not None:
        raise ValueError(
            "method='fourier' needs points with a Euclidean distance, which these distributions do not have; use "
            "method='nystrom' or 'pivoted_cholesky', or an exact method"
        )
    points = problem.left.points if arrays.is_cuda(problem.left.points) else arrays.to_host(problem.left.points)
    points = arrays.namespace(points).asarray(points, dtype=np.float64)
    width_of_points = points.shape[1]
    count = FEATURES if options.n_features is None else options.n_features
    features = FourierFeatures.drawn(problem.kernel, width_of_points, count, options.seed, points)
    width = features.width(width_of_points)
    memory = _check_low_rank_memory(system, width, "n_features")
    equations = NormalEquations.summed(
        (features(points[rows]), system.residuals(rows))
        for rows in row_blocks(system.n, width + system.columns, points)
    )
    value = linalg.squared_norm(equations.solution(system.shift))
    bound = _monte_carlo_error(features, equations, system.shift, value)
    kind = "estimated" if bound is not None else "none: a single frequency has no spread"
    return Found(value, bound, kind, "fourier", "asked for by name", memory, n_features=count, seed=options.seed)


def _monte_carlo_error(
    features: FourierFeatures, equations: NormalEquations, shift: float, value: float
) -> float | None:
    """Half width of a 95 % interval around the value, bias included, by a jackknife over groups of frequencies."""
    if not features.frequencies:
        return 0.0  # the linear kernel's features are the kernel
    groups = min(GROUPS, features.n_frequencies)
    if groups < 2:
        return None
    dimension = features.frequencies[0].shape[0]
    without = [
        linalg.squared_norm(equations.scaled(features.without_group(g, groups, dimension)).solution(shift))
        for g in range(groups)
    ]
    bias, error = jackknife(value, np.array(without))
    return abs(bias) + float(scipy.special.stdtrit(groups - 1, 0.975)) * error


def _nystrom(system: System) -> Found:
    """The value with K replaced by its projection on random landmarks."""
    rank = _checked_rank(system)
    memory = _check_low_rank_memory(system, rank, "rank")
    features = NystromFeatures(system.matrix, rank, system.options.seed)
    kept = [0.0]

    def blocks() -> Iterator[tuple[Array, Array]]:
        for rows in row_blocks(system.n, 2 * rank + system.columns, system.matrix.reference):
            block = features(rows)
            kept[0] += linalg.squared_norm(block)
            yield block, system.residuals(rows)

    equations = NormalEquations.summed(blocks())
    diagonal = system.matrix.diagonal()
    xp = arrays.namespace(diagonal)
    trace, largest = float(xp.sum(diagonal)), float(xp.max(diagonal))
    lost = trace - kept[0]
    # A pivot is a difference of entries of K, and divides its column of F F^T.
    of_columns = arrays.to_host(xp.linalg.diagonal(equations.gram)) * (largest / arrays.to_host(features.pivots))
    rounding = ROUNDINGS * _epsilon(system) * (trace + float(np.sum(of_columns)))
    return _from_factor(system, equations, max(lost, 0.0) + rounding, 0.0, len(features.pivots), "nystrom", memory)


def _pivoted_cholesky(system: System, tol: float = 0.0) -> Found:
    """The value with K replaced by an incomplete Cholesky factorisation, until `tol` of the trace is left."""
    rank = _checked_rank(system)
    memory = system.check_memory(
        system.n * (rank + system.columns) + 3 * rank * (rank + system.columns),
        f"the factor of {system.n} samples and rank {rank}, and what follows",
        "choose a smaller `rank`, or method='nystrom' or 'fourier', which store no factor",
    )
    factor = pivoted_cholesky(system.matrix, rank, tol=tol, seed=system.options.seed)
    equations = NormalEquations.summed([(factor.factor, system.residuals())])
    at = (arrays.like(i, factor.factor) for i in (factor.pivots, np.arange(factor.rank)))
    pivots = arrays.to_host(factor.factor[tuple(at)]) ** 2
    diagonal = system.matrix.diagonal()
    entry = ROUNDINGS * _epsilon(system) * float(arrays.namespace(diagonal).max(diagonal))
    rounding = rounding_bound(equations, system.shift, entry, pivots)
    lost = factor.trace_residual + math.sqrt(system.n) * entry
    return _from_factor(system, equations, lost, rounding, factor.rank, "pivoted_cholesky", memory)


def _from_factor(
    system: System, equations: NormalEquations, lost: float, rounding: float, rank: int, method: str, memory: int
) -> Found:
    """The value of F F^T, and its error from the trace of K - F F^T and the rounding of the value."""
    solution = equations.solution(system.shift)
    bound: float | None = None
    kind = "none: the kernel is not known to be positive definite"
    if system.is_definite:
        bound = float(trace_bound(equations, solution, system.shift, lost) + rounding + system.rounding_of_target)
        kind = "trace"
    return Found(
        linalg.squared_norm(solution),
        bound,
        kind,
        method,
        "asked for by name",
        memory,
        rank=rank,
        seed=system.options.seed,
    )


def trace_bound(equations: NormalEquations, solution: Array, shift: float, lost: float) -> float:
    """Largest difference of the value of K from that of F F^T, for a psd K - F F^T = D of trace `lost`.

    With Y = (F F^T + t D + s I)^{-1} E and U = s (F F^T + t D + s I)^{-1} Y the value has the derivative
    <U, D U> - <Y - U, D (Y - U)> by t, between -||D|| ||Y||^2 and ||D|| ||Y||^2, where ||Y|| <= ||E|| / s: the first
    bound. With Z that of F F^T, the residual is -D Z and the value of K differs by <(I - 2 K A^{-1}) Z, D Z> and a term
    between 0 and ||D Z||^2 / (4 s): the second.
    """
    return lost * min(equations.squares / shift**2, _z_squares(equations, solution, shift) * (1 + lost / (4 * shift)))


def rounding_bound(equations: NormalEquations, shift: float, entry: float, pivots: np.ndarray) -> float:
    """What rounding changes the value of F F^T by, for errors `entry` of K's entries that add up like random numbers.

    A pivot is a difference of entries of K, and its root divides its column F_c, whose errors H_c are so
    entry / sqrt(pivot) each. They change the value by <(I - 2 K A^{-1}) Z, (F_c H_c^T + H_c F_c^T) Z> to first order,
    in which H_c^T Z has the size of one error times ||Z||, and F^T Z is the solution.
    """
    # What was divided by is more than the rounding of an entry; the square of what is in F may be less, even 0.
    pivots = np.maximum(pivots, entry / ROUNDINGS)
    solution = equations.solution(shift)
    z = math.sqrt(_z_squares(equations, solution, shift))
    smoothed = equations.gram @ equations.solved(solution, shift)  # F^T K A^{-1} Z
    sizes = 3 * linalg.column_norms(solution.T) + 2 * linalg.column_norms(smoothed.T)
    first = float(np.sum((sizes + entry / np.sqrt(pivots) * z) * (entry / np.sqrt(pivots)))) * z
    return first + 4 * np.finfo(np.float64).eps * linalg.squared_norm(solution)


def _z_squares(equations: NormalEquations, solution: Array, shift: float) -> float:
    """||Z||_F^2 of Z = (F F^T + shift I)^{-1} E."""
    products = float(arrays.namespace(solution).sum(equations.cross * solution))
    squares = equations.squares - products - shift * linalg.squared_norm(solution)
    return max(squares, 2.0**-50 * equations.squares) / shift**2


@dataclass(frozen=True)
class Method:
    compute: Callable[[System], Found]
    options: tuple[str, ...]  # which it has, of tol, rank, n_features


METHODS = {
    "auto": Method(_automatic, ("tol",)),
    "cholesky": Method(lambda system: _exact("cholesky", system), ("tol",)),
    "cg": Method(lambda system: _exact("cg", system), ("tol", "rank")),
    "fourier": Method(_fourier, ("n_features",)),
    "nystrom": Method(_nystrom, ("rank",)),
    "pivoted_cholesky": Method(_pivoted_cholesky, ("rank",)),
}


def _checked_options(method: str, tol: Any, rank: Any, n_features: Any, max_memory: Any, seed: Any) -> Options:
    given = {"tol": tol, "rank": rank, "n_features": n_features}
    for name, value in given.items():
        if value is not None and name not in METHODS[method].options:
            those = ", ".join(repr(key) for key, entry in METHODS.items() if name in entry.options)
            raise ValueError(f"`{name}` is {value!r}, but method={method!r} has no such option; {those} have it")
    return Options(
        None if tol is None else _positive("tol", tol),
        None if rank is None else check_integer("rank", rank, 1),
        None if n_features is None else check_integer("n_features", n_features, 1),
        None if max_memory is None else check_max_memory(max_memory),
        check_integer("seed", seed, 0, 2**64 - 1),
    )


def _positive(name: str, value: Any, remedy: str = "") -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (Real, np.floating)):
        raise TypeError(f"`{name}` is {value!r}, expected a positive number")
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"`{name}` is {number:g}, expected a positive finite number{remedy}")
    return number


def _regularization(value: Any, n: int) -> float:
    if value is None:
        return float(n**-0.25)
    return _positive("regularization", value, "; leave it out for n**-0.25")


def _checked_rank(system: System) -> int:
    rank = system.options.rank
    if rank is None:
        return min(RANK, system.n)
    return check_integer("rank", rank, 1, system.n, ": the samples are the landmarks and pivots")


def _check_low_rank_memory(system: System, width: int, option: str) -> int:
    """Bytes of the Gram matrix, its copies, and a block of rows."""
    block = next(row_blocks(system.n, width, system.matrix.reference))
    return system.check_memory(
        3 * width * (width + system.columns) + 2 * (block.stop - block.start) * (width + system.columns),
        f"{width} features of {system.columns} residuals",
        f"choose a smaller `{option}`",
    )


def _where_solved(data: Classification) -> Classification:
    """The data as NumPy arrays unless they are on an NVIDIA GPU: residuals and features go to SciPy, or to CuPy."""
    if arrays.is_host(data.probabilities) or arrays.is_cuda(data.probabilities):
        return data
    return dataclasses.replace(
        data,
        labels=np.ascontiguousarray(arrays.to_host(data.labels), dtype=np.int64),
        probabilities=np.ascontiguousarray(arrays.to_host(data.probabilities), dtype=np.float64),
    )


def _forecast_kernel(data: Forecasts, kernel: Kernel | None) -> Kernel:
    if kernel is not None:
        return kernel
    return Gaussian(metric="mmd" if data.prediction.wasserstein_points() is None else "wasserstein")


def _kernel(data: Classification, kernel: Kernel | None) -> tuple[Kernel, str | None]:
    """The kernel, and where its bandwidth comes from, if not from the user or the median heuristic."""
    kernel = _packing.check_kernel(Linear() + Gaussian() if kernel is None else kernel, data.m)
    xp, p = data.xp, data.probabilities
    if not bool(xp.all(xp.min(p, axis=0) == xp.max(p, axis=0))):
        return kernel, None
    resolved = kernel.resolve(lambda metric: 1.0)
    source = "any: the predictions are identical, so the value does not depend on it"
    return resolved, None if resolved == kernel else source
