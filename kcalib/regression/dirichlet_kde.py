r"""The Dirichlet kernel density ratio (Popordanoska et al., 2022): the class shares of the density at a prediction.

    DirichletKDE            an estimation function, with its risk
    kde_calibration_error   the published estimate, leave-one-out

Both use a `Ratio`, which holds the training samples and computes the shares

.. math:: r(q) = \frac{\sum_i \mathrm{onehot}(y_i)\, w_i(q)}{\sum_i w_i(q)} .

The compiled sweep (src/cpu/dirichlet/dirichlet.cpp), or `class_shares` on NVIDIA GPUs, adds up the weights
:math:`w_i(q) = \exp(-\langle b_i, a_q\rangle - d_i)`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import numpy as np

from kcalib import _native
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.cuda import Program, define, tensor_float
from kcalib._backend.options import as_float, check_choice
from kcalib._backend.threads import TerminalProgress, resolve_threads
from kcalib._backend.warnings import warn
from kcalib._input.checks import DTYPES
from kcalib._input.labels import prepare
from kcalib.estimators.with_result import with_result
from kcalib.lenses import Canonical, Lens
from kcalib.regression._function import CalibrationFunction, Problem, risk_of
from kcalib.results import KDEResult

FILES = ("include/kcalib/math.h", "include/kcalib/log_gamma.h", "cuda/dirichlet.cu")
TILE, LANES = 64, 16  # queries and training samples of a block, and rows or columns of its threads
GROUPS = 128  # most groups of training samples: they make enough blocks if there are few queries
PRODUCTS_FROM = 64  # number of features from which cuBLAS computes the inner products
PRODUCTS_BYTES = 2**29  # for the inner products of a launch
WORK = 2**40  # most multiply-adds of a launch: less than a second where float64 is fast, else seconds
FEWEST_ROWS = 1024  # of a launch, if its sums fit in memory
SUMS_BYTES = 2**28  # for the sums of a launch

__all__ = ["BANDWIDTHS", "DirichletKDE", "kde_calibration_error"]

# The grid of Popordanoska's code and of appendix B of Gruber and Bach: 15 log-spaced from 1e-5 to 0.1, and 5 up to 1.
BANDWIDTHS: tuple[float, ...] = (*(10.0 ** (-5 + 4 * i / 14) for i in range(15)), 0.2, 0.4, 0.6, 0.8, 1.0)
CRITERIA = ("likelihood", "loo_risk")
ORIENTATIONS = ("training", "query")
POWERS = {"l1": 1, "l2": 2}  # p of each norm
Progress = Callable[[float], None]

SMALLEST = 2.0**-1022  # smallest normal number, which replaces smaller probabilities in logarithms
ROUNDING = 10.0  # smallest bandwidth in machine epsilons: exponents are of the order of 1 / bandwidth


@dataclass(frozen=True)
class Ratio:
    """Training samples, sorted by label, and options for their weights."""

    simplex: Array  # shape: (n, m)
    labels: Array  # int32, ascending, shape: (n,)
    order: Array  # position of each in the original order, shape: (n,)
    orientation: str
    dtype: str
    threads: int | None

    @classmethod
    def of(cls, problem: Problem, orientation: str, dtype: str, threads: int | None) -> Ratio:
        resolve_threads(threads)
        arrays.check_no_threads(problem.simplex, threads)
        order = arrays.namespace(problem.labels).argsort(problem.labels, stable=True)
        labels = problem.labels[order].astype(np.int32)
        return cls(problem.simplex[order], labels, order, orientation, dtype, threads)

    def to_device_of(self, reference: Array) -> Ratio:
        """Return the ratio on the device of `reference`, if that is a GPU."""
        if arrays.is_host(reference) or not arrays.is_host(self.simplex):
            return self
        simplex, labels, order = (arrays.asarray_like(a, reference) for a in (self.simplex, self.labels, self.order))
        return Ratio(simplex, labels, order, self.orientation, self.dtype, self.threads)

    def shares(self, simplex: Array, bandwidth: float) -> Array:
        """Return the shares, shape (number of queries, m); rows sum to 1."""
        with TerminalProgress() as progress:
            return self._shares(simplex, bandwidth, False, progress)[0]

    def leave_one_out(self, bandwidth: float, progress: Progress | None) -> tuple[Array, float]:
        """Return leave-one-out shares at the training samples, and the mean log density."""
        n, xp = len(self.simplex), arrays.namespace(self.simplex)
        if n < 2:
            raise ValueError(f"leave-one-out needs at least 2 samples, there are {n}; pass a number as `bandwidth`")
        shares, log_sums = self._shares(self.simplex, bandwidth, True, progress)
        if self.orientation == "query":
            log_sums += self._log_normalisers(self.simplex / bandwidth)
        result = xp.empty_like(shares)
        result[self.order] = shares
        return result, float(xp.mean(log_sums)) - math.log(n - 1)

    def _shares(
        self, queries: Array, bandwidth: float, leave_one_out: bool, progress: Progress | None
    ) -> tuple[Array, Array]:
        """Return the shares, and the logarithms of the sums of weights."""
        offsets = arrays.namespace(queries).zeros(len(self.simplex), dtype=self.dtype)
        if self.orientation == "training":
            powers = self.simplex / bandwidth
            offsets[:] = -self._log_normalisers(powers)
            left, right = _information(queries), powers
        else:
            left, right = queries / bandwidth, _information(self.simplex)
        problem = self._pack(left), self._pack(right), offsets, self.labels, self.simplex.shape[1], leave_one_out
        if arrays.is_host(left):
            return _native.class_shares(*problem, self._sweep(progress))
        return class_shares(*problem, progress)

    def _pack(self, values: Array) -> Array:
        if arrays.is_host(values):  # subnormal numbers are slow, and their products vanish
            values[np.abs(values) < np.finfo(self.dtype).tiny] = 0.0
        return values.astype(self.dtype, copy=False)

    def _log_normalisers(self, powers: Array) -> Array:
        if arrays.is_host(powers):
            return _native.log_normalisers(powers, self._sweep(None))
        return log_normalisers(powers)

    def _sweep(self, progress: Progress | None) -> _native.RunOptions:
        return _native.RunOptions(resolve_threads(self.threads), progress)


def _information(simplex: Array) -> Array:
    """Return -log p."""
    xp = arrays.namespace(simplex)
    return -xp.log(xp.maximum(simplex, SMALLEST))


@dataclass(frozen=True)
class Bandwidth:
    """A bandwidth and its origin."""

    value: float
    source: str
    criteria: dict[float, float] | None  # for each bandwidth tried; None if it was given

    @classmethod
    def choose(cls, ratio: Ratio, problem: Problem, bandwidth: Any) -> Bandwidth:
        """Return `bandwidth` if it is a number, else the best of BANDWIDTHS by the named criterion."""
        if not isinstance(bandwidth, str):
            return cls(_check_bandwidth(bandwidth, ratio.dtype), "given", None)
        check_choice("bandwidth", bandwidth, CRITERIA)
        log_likelihoods, risks = {}, {}
        with TerminalProgress() as bar:
            for i, candidate in enumerate(BANDWIDTHS):
                progress = None if bar is None else partial(_show_share, bar, i)
                shares, log_likelihoods[candidate] = ratio.leave_one_out(candidate, progress)
                risks[candidate] = risk_of(problem.residuals, _phi(problem, shares), None)
        if bandwidth == "likelihood":
            best = max(BANDWIDTHS, key=lambda b: log_likelihoods[b])
            if best in (BANDWIDTHS[0], BANDWIDTHS[-1]):
                warn(
                    f"the likelihood of the predictions is highest at {best:g}, the end of the bandwidths tried, as "
                    "with a single prediction of 0 or 1; pass bandwidth='loo_risk', or a number",
                    UserWarning,
                )
            return cls(best, f"best leave-one-out log-likelihood of {len(BANDWIDTHS)}", log_likelihoods)
        best = min(BANDWIDTHS, key=lambda b: risks[b])
        return cls(best, f"best leave-one-out risk of {len(BANDWIDTHS)}", risks)


def _show_share(bar: Progress, sweeps: int, share: float) -> None:
    """Show the share of the work on all bandwidths after some sweeps and a part of the next."""
    bar((sweeps + share) / len(BANDWIDTHS))


def _check_bandwidth(bandwidth: Any, dtype: str) -> float:
    if isinstance(bandwidth, (bool, np.bool_)) or not isinstance(bandwidth, Real):
        raise TypeError(f"`bandwidth` is {bandwidth!r}, expected a positive number, or one of {', '.join(CRITERIA)}")
    value, lowest = as_float(bandwidth), ROUNDING * float(np.finfo(dtype).eps)
    if not 0 < value < math.inf:
        raise ValueError(f"`bandwidth` is {bandwidth}, expected a positive, finite number")
    if value < lowest:
        raise ValueError(
            f"`bandwidth` is {bandwidth}, expected at least {lowest:.2g} in {dtype}: the weights of smaller ones are "
            "rounding errors"
        )
    return value


def _phi(problem: Problem, shares: Array) -> Array:
    """Return p - r(p), shape (n, m); for a scalar lens c - r(c), shape (n, 1), from the smaller of c and 1 - c."""
    difference = problem.simplex - shares
    if not problem.is_scalar:
        return difference
    where = arrays.namespace(shares).where
    return where(problem.simplex[:, 1:] > 0.5, -difference[:, :1], difference[:, 1:])


class DirichletKDE(CalibrationFunction):
    r"""Calibration error by the ratio of Dirichlet kernel densities, one for each class.

    h(p, p') = <p - r(p), p' - r(p')>, where r(p) are the class shares among the training samples near p. Fit it to one
    set of samples and evaluate it on another.

    Parameters
    ----------
    bandwidth : float or {"loo_risk", "likelihood"}
        A positive number, at least 2.2e-15 (1.2e-6 in float32): small bandwidths use only the nearest training samples,
        large ones all. Otherwise the best of 20 bandwidths between 1e-5 and 1 (appendix B of [2]_): by the risk
        (equation 20 of [2]_) of the leave-one-out function on the training set, or, as in the code of [1]_, by the
        leave-one-out likelihood of the predictions, which ignores the labels. A single prediction of 0 or 1 drives the
        likelihood to the largest bandwidth, with a warning.
    orientation : {"training", "query"}
        Which point is the parameter of the Dirichlet density, see the Notes.
    lens : Lens, optional
        Notion of calibration, one of `kcalib.lenses`; canonical by default. For the top label or one class against the
        others the kernel is the beta kernel on the confidence.
    dtype : {"float64", "float32"}
        Precision of the weights; their sums are always float64. In float32 a weight has a relative error of about 1e-7
        / bandwidth.
    threads : int, optional
        Threads, at least 1. Default: OMP_NUM_THREADS, at most the CPUs this process may use.

    Attributes
    ----------
    bandwidth_ : float
        The bandwidth.
    criteria_ : dict of float to float, or None
        The leave-one-out risk (lower is better) or mean log-likelihood (higher is better) of each bandwidth tried. None
        if the bandwidth was given.
    n_samples_, n_classes_ : int
        Of the training set, after the lens.

    See Also
    --------
    kde_calibration_error : The published estimate, for one set of samples.

    Notes
    -----
    With training samples :math:`(p_i, y_i)` and bandwidth :math:`b`,

    .. math:: r(q) = \frac{\sum_i \mathrm{onehot}(y_i)\, w_i(q)}{\sum_i w_i(q)}, \qquad
              w_i(q) = \begin{cases} \mathrm{Dir}(q;\, p_i / b + 1) & \text{training} \\
                                     \mathrm{Dir}(p_i;\, q / b + 1) & \text{query} \end{cases}

    ([2]_, equations 11 and 25). "training", the default, has a density around each training sample, as in the published
    codes; "query" has a density around the evaluated prediction, as in [3]_ and in the literal equation 11.

    A probability of 0 is replaced by the smallest normal number; a prediction far from all training samples has the
    shares of the nearest one. The user guide has the details in "Formulas of intervals and tests".

    A `UserWarning` is raised if "likelihood" selects the smallest or the largest bandwidth.

    Time O(n n' m) for n' evaluated predictions, memory O((n + n') m); choosing a bandwidth takes 20 times the time for
    n' = n. Results do not depend on the number of threads or on the other evaluated predictions (on a GPU up to
    rounding). Arrays on an NVIDIA GPU are fitted and evaluated there.

    References
    ----------
    .. [1] T. Popordanoska, R. Sayer, M. B. Blaschko. A consistent and differentiable Lp canonical calibration error
       estimator. NeurIPS 2022.
    .. [2] S. G. Gruber, F. Bach. Optimizing estimators of squared calibration errors in classification. TMLR 2025.
    .. [3] F. Ouimet, R. Tolosana-Delgado. Asymptotic properties of Dirichlet kernel density estimators. Journal of
       Multivariate Analysis 187, 2022.

    Examples
    --------
    One training sample of each class, mirror images of each other: half-way between them r is (1/2, 1/2).

    >>> from kcalib.regression import DirichletKDE
    >>> kde = DirichletKDE(bandwidth=0.1).fit([0, 1], [[0.8, 0.2], [0.2, 0.8]])
    >>> kde.h([[0.5, 0.5]])
    array([[0.]])

    At (0.8, 0.2) the odds are (0.8 / 0.2)^((0.8 - 0.2) / 0.1) = 4096 to 1, and h = 2 (0.8 - 4096 / 4097)^2.

    >>> round(kde.squared_error([[0.8, 0.2]]), 6)
    0.079805
    """

    def __init__(
        self,
        bandwidth: float | str = "loo_risk",
        *,
        orientation: str = "training",
        lens: Lens | None = None,
        dtype: str = "float64",
        threads: int | None = None,
    ) -> None:
        self.bandwidth = bandwidth
        self.orientation = orientation
        self.lens = lens
        self.dtype = dtype
        self.threads = threads

    def _fit(self, problem: Problem) -> None:
        check_choice("orientation", self.orientation, ORIENTATIONS)
        check_choice("dtype", self.dtype, DTYPES)
        self._ratio = Ratio.of(problem, self.orientation, self.dtype, self.threads)
        choice = Bandwidth.choose(self._ratio, problem, self.bandwidth)
        self.bandwidth_, self.criteria_ = choice.value, choice.criteria

    def _features(self, problem: Problem) -> Array:
        return _phi(problem, self._ratio.to_device_of(problem.simplex).shares(problem.simplex, self.bandwidth_))


@with_result
def kde_calibration_error(
    needs_result: bool,
    y_true: Any,
    y_pred: Any,
    *,
    bandwidth: float | str = "loo_risk",
    norm: str = "l1",
    orientation: str = "training",
    lens: Lens | None = None,
    classes: Any = None,
    from_logits: bool = False,
    dtype: Any = None,
    threads: int | None = None,
) -> float | KDEResult:
    r"""Estimate the calibration error by Dirichlet kernel densities, leave-one-out.

    The mean over samples of the p-th power of the p-norm distance between the prediction and the class shares near it.
    It is a plug-in estimate: biased upwards, positive for calibrated models, and dependent on the bandwidth.
    `kcalib.regression.DirichletKDE` has a risk to judge such estimates.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`, at least 2 samples. Arrays on an NVIDIA GPU stay there; those on other devices are copied
        to the host.
    bandwidth : float or {"loo_risk", "likelihood"}
        A number, or the criterion, as in `kcalib.regression.DirichletKDE`; the code of [1]_ uses "likelihood".
    norm : {"l1", "l2"}
        The norm of the distances, p = 1 or 2. "l2" gives a mean squared Euclidean distance, without the root.
    orientation, lens, dtype, threads
        As in `kcalib.regression.DirichletKDE`. For a lens with one probability the distances are :math:`|c - r(c)|^p`,
        c the confidence.

    Returns
    -------
    float
        The estimate. ``kde_calibration_error.result`` returns a `KDEResult` with the bandwidth and how it was chosen.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce`; if `bandwidth` is not a positive number of at least 2.2e-15 (1.2e-6 in float32); if `norm` or
        `orientation` is unknown; if there is only one sample.

    Warns
    -----
    UserWarning
        If "likelihood" selects the smallest or the largest bandwidth.

    See Also
    --------
    kcalib.regression.DirichletKDE : Fit to one set of samples, evaluate on another, with a risk.

    Notes
    -----
    With :math:`r_{-i}` the ratio of `kcalib.regression.DirichletKDE` for all samples except the i-th it is [1]_

    .. math:: \widehat{\mathrm{CE}}_p^p = \frac1n \sum_{i=1}^n \| p_i - r_{-i}(p_i) \|_p^p .

    Time O(n^2 m), 20 times that to choose the bandwidth; memory O(n m).

    The class-wise error is the mean over the classes k of the errors with ``lens=ClassWise(k)``.

    References
    ----------
    .. [1] T. Popordanoska, R. Sayer, M. B. Blaschko. A consistent and differentiable Lp canonical calibration error
       estimator. NeurIPS 2022.

    Examples
    --------
    Each of two samples sees only the other's label: r is (0, 1) at (0.8, 0.2) and (1, 0) at (0.4, 0.6).

    >>> import kcalib
    >>> round(kcalib.kde_calibration_error([0, 1], [[0.8, 0.2], [0.4, 0.6]], bandwidth=0.1), 6)
    1.4
    """
    start = time.perf_counter()
    check_choice("norm", norm, tuple(POWERS))
    check_choice("orientation", orientation, ORIENTATIONS)
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, dtype=dtype, threads=threads, lens=lens)
    lens = Canonical() if lens is None else lens
    problem = Problem.of(data, lens)
    ratio = Ratio.of(problem, orientation, data.dtype, threads)
    choice = Bandwidth.choose(ratio, problem, bandwidth)
    with TerminalProgress() as progress:
        shares, log_likelihood = ratio.leave_one_out(choice.value, progress)
    xp = arrays.namespace(shares)
    value = float(xp.mean(xp.sum(xp.abs(_phi(problem, shares)) ** POWERS[norm], axis=1)))
    if not needs_result:
        return value
    return KDEResult(
        value=value,
        norm=norm,
        bandwidth=choice.value,
        bandwidth_source=choice.source,
        log_likelihood=log_likelihood,
        orientation=orientation,
        lens=str(lens),
        n_samples=problem.n,
        n_classes=problem.simplex.shape[1],
        dtype=data.dtype,
        threads=resolve_threads(threads) if arrays.is_host(shares) else None,
        seconds=time.perf_counter() - start,
    )


def program(dtype: str) -> Program:
    """Return the GPU program with costs and weights in "float64" or "float32"."""
    real = f"-DKCALIB_REAL={'float' if dtype == 'float32' else 'double'}"
    return Program(FILES, (real, *define(TILE=TILE, LANES=LANES)))


PROGRAMS = {dtype: program(dtype) for dtype in ("float64", "float32")}


def class_shares(
    queries: Array,
    training: Array,
    offsets: Array,
    labels: Array,
    n_classes: int,
    leave_one_out: bool,
    progress: Callable[[float], None] | None,
) -> tuple[Array, Array]:
    """Return the class shares of the weights, shape (queries, n_classes), and the logarithms of their sums.

    Weights are exp(-<training_i, query_j> - offset_i). The labels are int32 and ascending. With `leave_one_out` the
    queries are the training samples, and exclude themselves. Queries are processed in launches, so that it can be
    interrupted; results do not depend on the other queries, up to rounding by cuBLAS.
    """
    import cupy

    xp = arrays.namespace(queries)
    compiled = PROGRAMS[str(queries.dtype)]
    (n, n_features), n_training = queries.shape, len(training)
    queries, training = xp.ascontiguousarray(queries), xp.ascontiguousarray(training)
    tiles = -(-n_training // TILE)
    per_group = -(-tiles // GROUPS)
    groups = -(-tiles // per_group)
    places = n_classes + groups
    step = _rows(n_training, n_features, places)
    by_cublas = n_features >= PRODUCTS_FROM and TILE * n_training * queries.itemsize <= PRODUCTS_BYTES
    by_cublas = by_cublas and not (queries.dtype == xp.float32 and tensor_float())
    if by_cublas:
        step = min(step, PRODUCTS_BYTES // (n_training * queries.itemsize * TILE) * TILE)
    shares, log_sums = xp.zeros((n, n_classes), dtype=xp.float64), xp.empty(n, dtype=xp.float64)
    for begin in range(0, n, step):
        end = min(n, begin + step)
        count, self_index = np.int64(end - begin), np.int64(begin if leave_one_out else -n)
        sums = xp.zeros((places, end - begin), dtype=xp.float64)
        floors = xp.full((places, end - begin), 1e30, dtype=xp.float64)
        block = queries[begin:end]
        products = xp.ascontiguousarray(block @ training.T) if by_cublas else None
        samples = training, offsets, labels, np.int64(n_training), np.int64(n_features)
        grid = -(-(end - begin) // TILE), groups
        arguments = products, block, count, *samples, self_index, np.int64(per_group), sums, floors
        compiled.launch("kcalib_class_sums", grid, arguments)
        outputs = shares[begin:end], log_sums[begin:end]
        sizes = np.int64(n_training), np.int64(per_group), np.int64(groups), np.int64(n_classes)
        grid = compiled.blocks(end - begin), 1
        compiled.launch("kcalib_class_shares", grid, (sums, floors, count, labels, *sizes, *outputs))
        if n > step:
            cupy.cuda.get_current_stream().synchronize()
        if progress is not None:
            progress(end / n)
    return shares, log_sums


def log_normalisers(x: Array) -> Array:
    """Return log Gamma(m + sum_k x_ik) - sum_k log Gamma(1 + x_ik) for each row of float64 x >= 0, shape (n, m)."""
    xp = arrays.namespace(x)
    (n, m), out = x.shape, xp.empty(len(x), dtype=xp.float64)
    arguments = (xp.ascontiguousarray(x), np.int64(n), np.int64(m), out)
    PROGRAMS["float64"].launch("kcalib_log_normalisers", (-(-n // LANES), 1), arguments)
    return out


def _rows(n_training: int, n_features: int, places: int) -> int:
    """Return the number of queries of a launch."""
    by_work = max(FEWEST_ROWS, WORK // (n_training * (n_features + 30)))
    return max(TILE, min(by_work, SUMS_BYTES // (16 * places)) // TILE * TILE)
