"""Estimate the squared kernel calibration error (SKCE) of class probabilities and of predicted distributions.

`skce` checks its input, packs it into a pair problem, sweeps it with a backend and makes a result of the sums.
`estimate_of` does the second half, for callers that have packed their samples already.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kcalib import _packing
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import LARGEST_SEED, SEED, OptionError, check_choice, check_integer, check_seed
from kcalib._input.checks import dtype_name
from kcalib._input.data import Data
from kcalib._input.forecasts import prepare
from kcalib._input.methods import Method
from kcalib._input.source import (
    Source,
    check_left_to_source,
    check_not_for_sums,
    is_source,
    rows_of,
    state_options,
)
from kcalib._packing import Packed
from kcalib._packing.features import FeatureProblem, check_columns, feature_problem
from kcalib._packing.packed import name_of
from kcalib._pairs import statistics
from kcalib._pairs.backends.base import Backend, Workers, diagonal
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.problem import PairProblem
from kcalib._pairs.reductions import BlockSums, Moments, MomentSums, sweep_one
from kcalib.estimators.feature_moments import FeatureMoments, feature_moments, features_standard_error
from kcalib.estimators.null_moments import NullMoments, moments_and_null_moments
from kcalib.estimators.with_result import with_result
from kcalib.kernels import Kernel
from kcalib.lenses import Lens
from kcalib.results import SKCEResult
from kcalib.target_kernels import TargetKernel

CHUNK = 65_536  # samples of a source that are read at a time, rounded to whole blocks
FIRST = 2000  # samples of a source whose median distance is the default bandwidth

if TYPE_CHECKING:  # not imported otherwise: the SKCE solves no linear systems
    from kcalib.solvers.kernel_operator import KernelOperator

__all__ = ["skce"]

ESTIMATORS = ("unbiased", "biased", "block", "linear")  # those that tests of calibration can use
BIASED_BLOCK = "biased_block"
FEATURES = "features"
PAIRED = (*ESTIMATORS, BIASED_BLOCK)
ALL = (*PAIRED, FEATURES)


@dataclass(frozen=True)
class BlockEstimator(Method):
    """Estimate the SKCE by the mean of the estimates of consecutive blocks.

    Parameters
    ----------
    block_size : int, optional
        Samples in a block, 2..n. Default: the integer square root of n, at least 2. Samples after the last full block
        are not used.
    biased : bool
        Whether to include the pairs of a sample with itself, as "biased_block" does.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1, 0, 1], [0.2, 0.7, 0.9, 0.4, 0.6]
    >>> kcalib.skce.result(y, p, estimator=kcalib.methods.BlockEstimator(block_size=2)).n_samples_used
    4
    """

    block_size: int | None = None
    biased: bool = False

    def __post_init__(self) -> None:
        if self.block_size is not None:
            check_integer("block_size", self.block_size, 2)


@dataclass(frozen=True)
class FeatureEstimator(Method):
    """Estimate the SKCE in linear time, with random features of the kernel.

    Parameters
    ----------
    n_columns : int, optional
        Columns of random features, a multiple of 16. Default: 60 times the eighth root of n, which is 256 for 100,000
        samples.
    seed : int, optional
        Seed of the random features. None draws one, which the result reports.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1, 0, 1], [0.2, 0.7, 0.9, 0.4, 0.6]
    >>> kcalib.skce.result(y, p, estimator=kcalib.methods.FeatureEstimator(n_columns=32, seed=7)).seed
    7
    """

    n_columns: int | None = None
    seed: int | None = SEED

    def __post_init__(self) -> None:
        check_columns(self.n_columns)
        if self.seed is not None:
            check_seed(self.seed, LARGEST_SEED)


@with_result
def skce(
    needs_result: bool,
    y_true: Any,
    y_pred: Any = None,
    *,
    kernel: Kernel | None = None,
    target_kernel: TargetKernel = None,
    estimator: str | Method = "unbiased",
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    dtype: Any = None,
    threads: int | None = None,
    backend: Any = None,
) -> float | SKCEResult:
    r"""Estimate the squared kernel calibration error (SKCE).

    The SKCE of a calibrated model is 0. With a characteristic kernel, such as the default, the SKCE of every other
    model is positive. It uses all classes, not only the predicted one, and no bins.

    Parameters
    ----------
    y_true : array_like, shape (n,) or (n, m)
        Labels: integers 0..m-1, booleans, strings, or one-hot rows. For predicted distributions: targets, which are
        numbers of shape (n,) or vectors of shape (n, d). Or a `kcalib.streaming.Source` of labels and predictions,
        for the estimators "block", "linear" and "features", which read it in chunks; then omit `y_pred`.
    y_pred : array_like, shape (n, m) or (n,), or Distribution
        Predicted probabilities, whose rows sum to 1; for two classes also the probability of the second one alone.
        Or predicted distributions, see `kcalib.distributions`. Arrays can be lists, or come from NumPy, PyTorch, JAX,
        CuPy, Dask, pandas or polars. Gradients are not tracked.
    kernel : Kernel, optional
        Kernel on predictions, see `kcalib.kernels`. Default: `kcalib.kernels.Exponential`, whose bandwidth is the
        median distance of the predictions (`kcalib.bandwidth.median_distance`). For predicted distributions its
        metric is "wasserstein" where the Wasserstein distance is a Euclidean distance of points, else "mmd".
    target_kernel : "delta", array_like of shape (m, m), Kernel, or one of `kcalib.target_kernels`, optional
        Kernel on labels or targets. For classes: "delta", the Kronecker delta (default); a symmetric positive
        semi-definite matrix M, which makes the matrix-valued kernel k M; or, for ordinal classes, one of
        `kcalib.kernels` with a bandwidth, evaluated between the numbers in `classes`, or 0..m-1. With a lens, classes
        are induced classes, with numbers 0..m-1.

        For predicted distributions: one of `kcalib.kernels`, `kcalib.target_kernels.MahalanobisGaussian`,
        `kcalib.target_kernels.Draws`, or "delta" for counts. Default: `kcalib.kernels.Gaussian` (for Laplace
        distributions `kcalib.kernels.Exponential`); its bandwidth is the median distance between single draws from all
        predictions.
    estimator : {"unbiased", "biased", "block", "biased_block", "linear", "features"} or estimator
        Which estimator:

        - "unbiased": U-statistic over all pairs, which may be negative.
        - "biased": V-statistic, which includes the pairs of a sample with itself and is never negative.
        - "block", "biased_block": mean of the unbiased or biased estimates of consecutive blocks.
        - "linear": "block" with blocks of two samples.
        - "features": U-statistic with random features that approximate the kernel, in linear time.

        To set options pass ``kcalib.methods.BlockEstimator`` or ``FeatureEstimator``.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights, for "unbiased", "biased" and "features" only.
    classes : array_like, shape (m,), optional
        Label of each column of `y_pred`. Default: 0..m-1; for strings the sorted distinct labels.
    from_logits : bool
        Whether `y_pred` holds logits, to which a softmax is applied (a sigmoid for one column). Never guessed.
    lens : Lens, optional
        Notion of calibration, see `kcalib.lenses`. Default: the whole vector of probabilities.
    dtype : {"float64", "float32"}, optional
        Arithmetic of kernel entries. Sums are always float64.
    threads : int, optional
        Number of CPU threads, at least 1. Default: OMP_NUM_THREADS, at most the CPUs that the process may use. The
        number does not change any bit of the result.
    backend : {"sorted", "cpu", "cuda", "array-api"}, Parallel, Executor or Client, optional
        What computes sums over pairs. Default: chosen from the type of the arrays. An object of `kcalib.parallel`, a
        concurrent.futures.Executor or a distributed.Client distributes them over processes or machines, for all
        estimators but "features". Results have the same bits for up to a million samples, and agree to rounding
        beyond. Arrays must then be on the CPU, sources are read at once, and `threads` applies to this process only.

    Returns
    -------
    float
        The estimate. ``skce.result`` takes the same arguments and returns an `SKCEResult`, which adds standard errors,
        the kernel with its bandwidth, and how the estimate was computed.

    Raises
    ------
    TypeError
        If an argument has a wrong type, such as complex numbers or objects in an array, or strings in `y_pred`.
    ValueError
        If a value is invalid: NaN, probabilities outside [0, 1], rows that do not sum to 1, labels outside 0..m-1,
        shapes that do not match, swapped arguments, too few samples, a block size outside 2..n, or an indefinite
        `target_kernel`; for "features" a kernel that is not known to be positive definite; for a source without
        a bandwidth, if its first predictions are identical.
    MemoryError
        If there is no memory for a packed copy of the input.

    Warns
    -----
    IndefiniteKernelWarning
        If the kernel is not known to be positive definite.

    See Also
    --------
    kcalib.calibration_test : Test whether a model is calibrated.

    Notes
    -----
    With residuals :math:`e_i = \mathrm{onehot}(y_i) - p_i` the estimators are averages of
    :math:`H_{ij} = k(p_i, p_j)\, e_i^\top M e_j` ([1]_, table 1; [2]_, lemmas 1 and 2). H is never stored: time
    O(n^2 m), memory O(n m). Block estimators take time O(n b m) for blocks of b samples. Binary problems with kernels
    made of `kcalib.kernels.Exponential` and `kcalib.kernels.Matern` take time O(n log n), with the same result to
    rounding, if the two probabilities sum to 1 to float64 rounding (always, if only the second one is given).

    For predicted distributions, residuals are the signed measures :math:`\delta_{y_i} - P_i`, and their inner product
    under the target kernel l gives

    .. math:: H_{ij} = k(P_i, P_j) \bigl( l(y_i, y_j) - \mathbb{E}\, l(Z_i, y_j) - \mathbb{E}\, l(y_i, Z_j)
              + \mathbb{E}\, l(Z_i, Z_j) \bigr), \quad Z_i \sim P_i, Z_j \sim P_j .

    Expectations have a closed form for Gaussian kernels and normal distributions, exponential kernels and Laplace
    distributions, mixtures of these, and any kernel and samples or counts ([2]_, appendix D). ``target_factor`` of the
    result says how they were computed. Mixtures of K components take K^2 times as long.

    "features" replaces k by inner products of cosines and sines of random frequencies, whose expectation is k, in time
    O(n c m) for c columns. ``features_standard_error`` of the result is the error due to the random frequencies. The
    user guide has the formulas in "Formulas of intervals and tests".

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests in multi-class
       classification: A unifying framework. NeurIPS 2019.
    .. [2] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests beyond classification.
       ICLR 2021.

    Examples
    --------
    Two samples: H_12 = exp(-d) <e_1, e_2> with d = 0.4 sqrt(2).

    >>> import kcalib
    >>> from kcalib.kernels import Exponential
    >>> value = kcalib.skce([0, 1], [[0.8, 0.2], [0.4, 0.6]], kernel=Exponential(bandwidth=1.0))
    >>> round(value, 6)
    -0.090875
    >>> result = kcalib.skce.result([0, 1, 1], [0.2, 0.6, 0.9], estimator="biased")
    >>> result.estimator, result.kernel
    ('biased', 'Exponential(bandwidth=0.565685)')

    Random features are near the estimate of all pairs, and much faster for many samples:

    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=5000)
    >>> y = rng.uniform(size=5000) < p**2
    >>> result = kcalib.skce.result(y, p, estimator="features")
    >>> result.n_columns, abs(result.value - kcalib.skce(y, p)) < 3 * result.features_standard_error
    (176, True)

    Samples that are read in chunks, for data larger than memory:

    >>> samples = kcalib.streaming.source((y, p))
    >>> blocks = kcalib.skce(samples, estimator="block", kernel=Exponential(0.3))
    >>> abs(blocks - kcalib.skce(y, p, estimator="block", kernel=Exponential(0.3))) < 1e-12
    True

    Predicted distributions N(0, 1) with targets 0 and 2. As k = 1, the estimate is the inner product of residuals,
    exp(-2) - (1 + exp(-1)) / sqrt(2) + 1 / sqrt(3).

    >>> from kcalib.distributions import Normal
    >>> from kcalib.kernels import Gaussian
    >>> options = {"kernel": Exponential(bandwidth=1.0), "target_kernel": Gaussian(bandwidth=1.0)}
    >>> result = kcalib.skce.result([0.0, 2.0], Normal([0.0, 0.0], [1.0, 1.0]), **options)
    >>> round(result.value, 6), result.target_factor
    (-0.254551, 'closed form (normal)')
    """
    options = PairOptions(kernel, target_kernel, backend, threads)
    if is_source(y_true, y_pred):
        check_left_to_source(classes, from_logits)
        check_not_for_sums(sample_weight=sample_weight)
        result = _of_source(y_true, options, estimator, lens, dtype)
        return result if needs_result else result.value
    data = prepare(
        y_true,
        y_pred,
        classes=classes,
        from_logits=from_logits,
        lens=lens,
        sample_weight=sample_weight,
        dtype=dtype,
        threads=threads,
    )
    name, block_size = name_and_block_size(estimator)
    if name == FEATURES:
        check_not_parallel(backend, "estimator='features'")
        return _features(data, options, estimator, needs_result)
    if needs_result:
        return estimate(data, options, name, block_size)
    return value_of(data, options, name, block_size)


def name_and_block_size(estimator: str | Method) -> tuple[str, int | None]:
    """Check an estimator; return its name and block size (None: the default, or none)."""
    if isinstance(estimator, BlockEstimator):
        return BIASED_BLOCK if estimator.biased else "block", estimator.block_size
    if isinstance(estimator, FeatureEstimator):
        return FEATURES, None
    return check_choice("estimator", estimator, ALL), None


@dataclass(frozen=True)
class PairOptions:
    """Kernels and backend options as the user passed them."""

    kernel: Kernel | None = None
    target_kernel: TargetKernel = None
    backend: str | Workers | None = None
    threads: int | None = None

    def backend_for(self, problem: PairProblem) -> Backend:
        """Return the backend for a problem."""
        return backend_for(problem, backend=self.backend, threads=self.threads)


N_GROUPS = 8  # groups of draws, whose estimates give the standard error due to draws


def _of_source(
    source: Source, options: PairOptions, estimator: str | Method, lens: Lens | None, dtype: Any
) -> SKCEResult:
    """Return the SKCE of a source: from sums of features, or block by block."""
    name, block_size = name_and_block_size(estimator)
    if name == FEATURES:
        check_not_for_sums(dtype=None if dtype_name(dtype) == "float64" else dtype)
        checked = feature_options(options, *_columns_and_seed(estimator))
        kernels = {"kernel": options.kernel, "target_kernel": options.target_kernel}
        return source.summed(lens=lens, n_resamples=0, **kernels, **state_options(**checked)).skce()
    if name not in ("block", "linear"):
        raise OptionError(
            "estimator",
            f"is {name!r}, which reads all samples at once; use estimator='features', or pass the "
            "samples themselves: y, p = source.read(0, n)",
        )
    return _blocks_of_source(source, options, name, block_size, lens, dtype)


def estimate(data: Data, options: PairOptions, estimator: str, block_size: int | None) -> SKCEResult:
    """Return the SKCE of checked data as a result."""
    start = time.perf_counter()
    block_size = check_estimator(data, estimator, block_size)
    packed, backend = _problem(data, options)
    result = estimate_of(data, packed, backend, estimator, block_size)
    return dataclasses.replace(result, seconds=time.perf_counter() - start)


def estimate_of(
    data: Data,
    packed: Packed,
    backend: Backend,
    estimator: str,
    block_size: int | None,
    *,
    moments: MomentSums | None = None,
    null: NullMoments | None = None,
) -> SKCEResult:
    """Return the SKCE of a packed problem; `moments` and `null` save a sweep if they are known."""
    start = time.perf_counter()
    if null is None and block_size is None and data.sample_weight is None and data.n > 1:
        moments, null, _ = moments_and_null_moments(data, packed, backend)
    squares = None if null is None else null.squares
    null_error = None
    if squares is not None and estimator == "unbiased":
        null_error = statistics.null_standard_error(squares, data.n)
    value, error = value_and_error(
        data, backend, estimator, block_size, with_error=True, moments=moments, null_squares=squares
    )
    return SKCEResult(
        value=value,
        standard_error=error,
        null_standard_error=null_error,
        draws_standard_error=draws_standard_error(data, packed, backend, estimator, block_size),
        features_standard_error=None,
        estimator=estimator,
        block_size=block_size,
        n_columns=None,
        seed=None,
        n_samples=data.n,
        n_samples_used=data.n if block_size is None else data.n // block_size * block_size,
        **describe(data, packed, backend),
        dtype=data.dtype,
        threads=backend.threads,
        seconds=time.perf_counter() - start,
    )


def value_of(data: Data, options: PairOptions, estimator: str, block_size: int | None) -> float:
    """Return the SKCE of checked data, without standard errors."""
    block_size = check_estimator(data, estimator, block_size)
    return value_and_error(data, _problem(data, options)[1], estimator, block_size, with_error=False)[0]


def _problem(data: Data, options: PairOptions) -> tuple[Packed, Backend]:
    packed = _packing.pack(data, options.kernel, options.target_kernel, threads=options.threads)
    return packed, options.backend_for(packed.problem)


def draws_standard_error(
    data: Data, packed: Packed, backend: Backend, estimator: str, block_size: int | None
) -> float | None:
    """Return the standard error due to draws from the predictions; None if there are no draws.

    It is the spread of estimates from groups of new draws. Products of draws add more variance in a small group than
    in all draws together, so that it is somewhat too large.
    """
    backends = (backend.like(packed_draw.problem) for packed_draw in packed.redrawn(data, N_GROUPS))
    return _spread([value_and_error(data, b, estimator, block_size, with_error=False)[0] for b in backends])


def features_draws_error(problem: FeatureProblem) -> float | None:
    """Return the standard error due to draws of an estimate by features; None if there are no draws."""
    draws = (feature_moments(draw, second=False) for draw in problem.redrawn(N_GROUPS))
    return _spread([statistics.unbiased(moments, problem.n, problem.data.sample_weight) for moments in draws])


def _spread(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean of estimates from groups of draws; None without any."""
    return math.sqrt(float(np.var(values, ddof=1)) / N_GROUPS) if values else None


def check_estimator(data: Data, estimator: str, block_size: int | None) -> int | None:
    """Check an estimator and its samples; return the block size, None for estimators without blocks."""
    check_choice("estimator", estimator, PAIRED)
    _check_samples(data, estimator)
    return _block_size(data, estimator, block_size)


def value_and_error(
    data: Data,
    backend: Backend,
    estimator: str,
    block_size: int | None,
    *,
    with_error: bool,
    moments: MomentSums | None = None,
    null_squares: float | None = None,
) -> tuple[float, float | None]:
    """Return the estimate and its standard error; given `moments` save a sweep."""
    if block_size is not None:
        of_blocks = biased_block_estimates if estimator == BIASED_BLOCK else block_estimates
        return statistics.mean_and_standard_error(of_blocks(backend, block_size))
    with_error = with_error and data.sample_weight is None
    if moments is None:
        moments = sweep_one(backend, Moments(second=with_error, rows=with_error, trace=estimator == "biased"))
    average = statistics.unbiased if estimator == "unbiased" else statistics.biased
    return average(moments, data.n, data.sample_weight), statistics.standard_error(moments, null_squares)


def block_estimates(backend: Backend, block_size: int) -> Array:
    """Return the unbiased estimate of each block of consecutive samples."""
    return sweep_one(backend, BlockSums(block_size)) / (block_size * (block_size - 1))


def biased_block_estimates(backend: Backend, block_size: int) -> Array:
    """Return the biased estimate of each block: with the pairs of a sample with itself."""
    sums = sweep_one(backend, BlockSums(block_size))
    xp, n_used = arrays.namespace(sums), len(sums) * block_size
    diagonal_entries = arrays.asarray_like(diagonal(backend.problem, backend.threads or 1)[:n_used], sums)
    return (sums + xp.sum(xp.reshape(diagonal_entries, (-1, block_size)), axis=1)) / block_size**2


def describe(data: Data, packed: Packed, backend: Backend | KernelOperator) -> dict[str, Any]:
    """Return the fields of every result that say how it was computed."""
    return {
        **data.describe(),
        **packed.described(),
        "backend": backend.name,
        "backend_reason": backend.reason,
    }


def feature_options(options: PairOptions, n_columns: int | None, seed: int | None) -> dict[str, Any]:
    """Return the checked fields of `_packing.features.MapOptions`; refuse `backend`."""
    if options.backend is not None:
        raise OptionError(
            "backend", f"is {options.backend!r}, but features take no sums over pairs; leave backend=None"
        )
    return {"n_columns": check_columns(n_columns), "seed": check_seed(seed, LARGEST_SEED), "threads": options.threads}


def _columns_and_seed(estimator: str | Method) -> tuple[int | None, int | None]:
    feature_estimator = estimator if isinstance(estimator, FeatureEstimator) else FeatureEstimator()
    return feature_estimator.n_columns, feature_estimator.seed


def _features(data: Data, options: PairOptions, estimator: str | Method, needs_result: bool) -> float | SKCEResult:
    start = time.perf_counter()
    checked = feature_options(options, *_columns_and_seed(estimator))
    _check_samples(data, FEATURES)
    problem = feature_problem(data, options.kernel, options.target_kernel, **checked)
    moments = feature_moments(problem, second=needs_result)
    if not needs_result:
        return statistics.unbiased(moments, data.n, data.sample_weight)
    return dataclasses.replace(features_estimate_of(problem, moments), seconds=time.perf_counter() - start)


def features_estimate_of(problem: FeatureProblem, moments: FeatureMoments) -> SKCEResult:
    """Return the SKCE from the moments of random features as a result."""
    start, data = time.perf_counter(), problem.data
    of_features = features_standard_error(moments, data.n, data.sample_weight)
    of_samples = statistics.standard_error(moments)
    return SKCEResult(
        value=statistics.unbiased(moments, data.n, data.sample_weight),
        standard_error=None if of_samples is None else math.hypot(of_samples, of_features),
        null_standard_error=(
            None if moments.null_squares is None else statistics.null_standard_error(moments.null_squares, data.n)
        ),
        draws_standard_error=features_draws_error(problem),
        features_standard_error=of_features,
        estimator=FEATURES,
        block_size=None,
        seed=problem.seed,
        n_samples=data.n,
        n_samples_used=data.n,
        **problem.described(),
        dtype=data.dtype,
        seconds=time.perf_counter() - start,
    )


def check_not_parallel(backend: str | Workers | None, computation: str, remedy: str = "leave it out") -> None:
    """Raise if `backend` is a Parallel, whose workers only compute sums over pairs."""
    if isinstance(backend, Workers):
        raise OptionError("backend", f"is given, but {computation} takes linear time and no sums over pairs; {remedy}")


def check_has_blocks(estimator: str, block_size: int | None) -> None:
    """Raise if a block size is given to an estimator that has none."""
    if estimator not in ("block", BIASED_BLOCK) and block_size is not None:
        raise OptionError(
            "block_size", f"is {block_size}, but estimator={estimator!r} has no block size; use estimator='block'"
        )


def _check_samples(data: Data, estimator: str) -> None:
    """Raise if there are too few samples for a pair."""
    if estimator == "biased":
        return
    if data.n < 2:
        raise ValueError(f"estimator={estimator!r} needs at least 2 samples, `y_true` has {data.n}")
    if data.sample_weight is None or estimator not in (ESTIMATORS[0], FEATURES):
        return
    if int(data.xp.sum(data.xp.astype(data.sample_weight > 0, data.xp.int64))) < 2:
        raise ValueError(f"estimator={estimator!r} needs at least 2 samples of positive `sample_weight`")


def _block_size(data: Data, estimator: str, block_size: int | None) -> int | None:
    check_has_blocks(estimator, block_size)
    if estimator in ("unbiased", "biased"):
        return None
    if data.sample_weight is not None:
        raise ValueError(
            f"`sample_weight` has no meaning for estimator={estimator!r}: the weight of a block in the average "
            "is not defined; use estimator='unbiased' or 'biased'"
        )
    if estimator == "linear":
        return 2
    if block_size is None:
        return max(2, math.isqrt(data.n))
    return check_integer("block_size", block_size, 2, data.n, ": a block holds 2 to n samples")


@dataclass
class _Mean:
    """Mean of block estimates, and the sum of squared deviations from it."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, other: _Mean) -> None:
        count = self.count + other.count
        difference = other.mean - self.mean
        self.squares += other.squares + difference * difference * (self.count * other.count / count)
        self.mean += difference * (other.count / count)
        self.count = count

    @property
    def standard_error(self) -> float | None:
        return None if self.count < 2 else math.sqrt(self.squares / (self.count - 1) / self.count)


def _blocks_of_source(
    source: Source, options: PairOptions, estimator: str, block_size: int | None, lens: Lens | None, dtype: Any
) -> SKCEResult:
    """Return the mean of the estimates of all full blocks; the default bandwidth is that of the first samples."""
    start = time.perf_counter()
    size = _source_block_size(source, 2 if estimator == "linear" else block_size)
    mean, n, first, from_first = _Mean(), 0, None, ""
    kernel, target_kernel = options.kernel, options.target_kernel
    for true, pred in source.chunks(max(1, CHUNK // size) * size):
        n_used = len(true) // size * size
        n += len(true)
        if not n_used:
            continue
        data = prepare(true[:n_used], rows_of(pred, slice(n_used)), lens=lens, dtype=dtype, threads=options.threads)
        if first is None:
            first_samples = data.take(np.arange(min(FIRST, n_used)))
            packed = _packing.pack(first_samples, kernel, target_kernel, threads=options.threads)
            kernel = packed.kernel
            if packed.target.resolved_kernel is not None:
                target_kernel = packed.target.resolved_kernel
            sources = [*map(name_of, packed.medians)]
            sources += [f"{name_of(median)} of one draw of each" for median in packed.target.medians]
            from_first = f"{' and '.join(sources)} of the first {first_samples.n} samples" if sources else ""
            if any(median.value == 0 for median in packed.medians):  # later ones may differ
                from_first = f"no median: the first {first_samples.n} predictions are identical"
        packed = _packing.pack(data, kernel, target_kernel, threads=options.threads)
        estimate = estimate_of(data, packed, options.backend_for(packed.problem), estimator, size)
        count = n_used // size
        squares = 0.0 if estimate.standard_error is None else estimate.standard_error**2 * count * (count - 1)
        mean.add(_Mean(count, estimate.value, squares))
        first = estimate if first is None else first
    if first is None:
        raise ValueError(f"there are {n} samples, expected at least the {size} of a block")
    return dataclasses.replace(
        first,
        value=mean.mean,
        standard_error=mean.standard_error,
        n_samples=n,
        n_samples_used=mean.count * size,
        bandwidth_source=from_first or first.bandwidth_source,
        seconds=time.perf_counter() - start,
    )


def _source_block_size(source: Source, block_size: int | None) -> int:
    if block_size is not None:
        return check_integer("block_size", block_size, 2, source.n, ": a block holds 2 to n samples")
    if source.n is None:
        raise OptionError(
            "block_size", "is None, but the source does not know its number of samples; pass a block size"
        )
    return max(2, math.isqrt(source.n))
