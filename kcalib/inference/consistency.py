"""Consistency resampling: how large is an estimate if labels are drawn from the predictions?

`consistency_test` takes checked data and is called by `kcalib.inference.calibration_test`. The estimates
come from a statistic, which computes that of the data and those of its replicates in the same way: `_TopLabelECE`
(many replicates at once), `_PairStatistic` (SKCE and UCME, on the pair engine) or `_UserStatistic`.
The replicates come from `Draws`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kcalib import _packing
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice, check_integer
from kcalib._backend.random import cumulative_sums, thresholds
from kcalib._backend.segments import Segments
from kcalib._backend.warnings import warn
from kcalib._input.forecasts import Either as Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._packing import Packed
from kcalib._pairs.dispatch import Operator, operator_for
from kcalib.estimators.binning import MAX_BINS, bin_numbers
from kcalib.estimators.skce import ESTIMATORS as SKCE_ESTIMATORS
from kcalib.estimators.skce import PairOptions, check_estimator, describe, value_and_error
from kcalib.estimators.ucme import DEFAULT_SEED, locations_for, mean_differences, mean_square

ESTIMATORS = ("ece", *SKCE_ESTIMATORS, "ucme")
DEFAULT_BINS = 15
BATCH_ELEMENTS = 2**18  # draws of ECE replicates in memory at a time
DEVICE_BATCH_ELEMENTS = 2**23  # on a GPU, which has more threads to occupy
# Estimates that differ by less, relative to the largest, are equal but for rounding.
ROUNDING = {"float64": 1e-12, "float32": 1e-5}

Estimator = str | Callable[[Any, Any], float]


class AntiConservativeWarning(UserWarning):
    """A test that may reject calibrated models more often than its level says."""


@dataclass(frozen=True)
class ConsistencyOutcome:
    """What the test found."""

    estimate: float
    pvalue: float
    estimator: str  # one of ESTIMATORS, or the name of the user's function
    null_mean: float  # of the estimates of the replicates
    null_standard_deviation: float | None  # ddof 1; None for one replicate
    n_resamples: int
    seed: int
    resample_predictions: bool
    block_size: int | None  # "block" and "linear"
    n_bins: int | None  # "ece"
    locations: dict[str, Any] | None  # "ucme": where the test locations are
    description: dict[str, Any] | None  # `kcalib.estimators.skce.describe`; None for "ece" and a user's function


def consistency_test(
    data: Data,
    *,
    estimator: Estimator | None = None,
    n_resamples: int = 999,
    seed: int | None = None,
    resample_predictions: bool = True,
    options: PairOptions | None = None,
    n_bins: int | None = None,
    block_size: int | None = None,
    n_locations: int | None = None,
    test_predictions: Any = None,
    test_labels: Any = None,
    from_logits: bool = False,
) -> ConsistencyOutcome:
    """Compare an estimate of the calibration error with those of calibrated replicates of the data.

    A replicate draws n predictions with replacement and a label from each of them [1]_, [2]_.

    Parameters
    ----------
    data : Classification or Forecasts
        Checked labels and predictions, without weights.
    estimator : {"ece", "unbiased", "biased", "block", "linear", "ucme"} or callable
        `kcalib.top_label_ece`, one of the estimators of `kcalib.skce`, `kcalib.ucme`, or a function
        ``estimator(y_true, y_pred) -> float`` of labels 0..m-1, shape (n,), and probabilities, shape (n, m), in the
        array library of the data (NumPy on the CPU), that is larger for worse calibration. For distributions it gets
        targets, shape (n,) or (n, d), and a distribution. Default: "ece"; for distributions, which have none,
        "unbiased".
    n_resamples : int
        Number R of replicates, at least 1.
    seed : int, optional
        Seed of the replicates, and of random locations, 0 to 2**64 - 1; default 0.
    resample_predictions : bool
        False keeps the predictions and draws labels only: then the test is exact, for every n,
        R and estimator, up to the chance of the draws.
    options : PairOptions, optional
        Kernels and operator of "unbiased", "biased", "block", "linear" and "ucme", and threads. The bandwidth
        of the median heuristic is that of the data for all replicates.
    n_bins : int, optional
        Bins of "ece", 1 to 1,000,000; default 15.
    block_size : int, optional
        As in `kcalib.skce`.
    n_locations, test_predictions, test_labels : optional
        As in `kcalib.ucme`. All replicates have the same locations.
    from_logits : bool
        `test_predictions` holds logits.

    Returns
    -------
    ConsistencyOutcome
        The p-value is (1 + the number of replicates with an estimate at least that of the data) / (1 + R), never 0.

    Raises
    ------
    TypeError, ValueError
        As the estimators for their arguments; if an option is given that the estimator does not have; if a number
        is out of range; if a user's estimator returns no finite number.

    Warns
    -----
    AntiConservativeWarning
        If predictions are resampled.

    Notes
    -----
    Drawing the predictions again puts some of them into a replicate twice, and leaves others out: fewer bins are
    occupied than in the data, so that the estimates of replicates are too small, and calibrated models are rejected
    too often [3]_ (section 7.2). For "ece" with many samples in every bin the difference is small;
    with few it is all that the test sees.

    The draws come from ``numpy.random.Generator(numpy.random.Philox(key=[seed, replicate]))``: rows
    ``integers(n, size=n)``, unless they are kept, then ``uniform(size=n)``, of which each gives the label
    at which the cumulative probabilities exceed it. They are the same for every estimator, array library and
    number of threads; on a GPU they are made there, with the same bits.

    Time R times that of the estimate and of n m for the labels; O(n) a replicate for "ece", many at once.
    Memory O(n m).

    References
    ----------
    .. [1] J. Broecker, L. A. Smith. Increasing the reliability of reliability diagrams. Weather and Forecasting, 2007.
    .. [2] J. Vaicenavicius, D. Widmann, C. Andersson, F. Lindsten, J. Roll, T. B. Schoen. Evaluating model
       calibration in classification. AISTATS 2019.
    .. [3] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests in multi-class classification: A unifying
       framework. NeurIPS 2019.
    """
    n_resamples = check_integer("n_resamples", n_resamples, 1, 2**40)
    seed = check_integer("seed", DEFAULT_SEED if seed is None else seed, 0, 2**64 - 1)
    if not isinstance(resample_predictions, (bool, np.bool_)):
        raise TypeError(f"`resample_predictions` is {resample_predictions!r}, expected True or False")
    if estimator is None:
        estimator = "unbiased" if isinstance(data, Forecasts) else "ece"
    if not callable(estimator):
        check_choice("estimator", estimator, ESTIMATORS)
    if estimator == "ece" and isinstance(data, Forecasts):
        others = ", ".join(repr(name) for name in ESTIMATORS if name != "ece")
        raise ValueError(
            "estimator='ece' needs class probabilities, `y_pred` is "
            f"{type(data.prediction).__name__}; use one of {others}, or a function"
        )
    given = {
        "n_bins": n_bins,
        "block_size": block_size,
        "n_locations": n_locations,
        "test_predictions": test_predictions,
        "test_labels": test_labels,
    }
    options = options or PairOptions()
    _check_options(estimator, options, given)
    statistic: _Statistic
    if callable(estimator):
        statistic = _UserStatistic(data, estimator)
    elif estimator == "ece":
        assert isinstance(data, Classification)
        statistic = _TopLabelECE(data, check_integer("n_bins", DEFAULT_BINS if n_bins is None else n_bins, 1, MAX_BINS))
    elif estimator == "ucme":
        own_seed = seed if test_predictions is None and test_labels is None else None
        locations = locations_for(data, n_locations, test_predictions, test_labels, own_seed, from_logits)
        kernels = options.kernel, options.target_kernel
        packed = _packing.pack_locations(data, locations.data, *kernels, threads=options.threads)
        statistic = _PairStatistic(data, options, packed, _ucme_of, {"locations": locations.described()})
    else:
        size = check_estimator(data, estimator, block_size)
        packed = _packing.pack(data, options.kernel, options.target_kernel, threads=options.threads)
        statistic = _PairStatistic(data, options, packed, _skce_by(data, estimator, size), {"block_size": size})
    if resample_predictions:
        _warn()
    estimate = statistic.observed()
    null = statistic.resampled(Draws(data, seed, bool(resample_predictions)), n_resamples)
    rounding = ROUNDING[data.dtype] * max(abs(estimate), float(np.max(np.abs(null))))
    return ConsistencyOutcome(
        estimate=estimate,
        pvalue=(1 + int(np.sum(null >= estimate - rounding))) / (1 + n_resamples),
        estimator=estimator if isinstance(estimator, str) else getattr(estimator, "__name__", repr(estimator)),
        null_mean=float(np.mean(null)),
        null_standard_deviation=float(np.std(null, ddof=1)) if n_resamples > 1 else None,
        n_resamples=n_resamples,
        seed=seed,
        resample_predictions=bool(resample_predictions),
        **statistic.described(),
    )


def _warn() -> None:
    warn(
        "consistency resampling rejects calibrated models too often where predictions are drawn again, the more "
        "the fewer samples a bin holds; pass resample_predictions=False for an exact test of the same estimate",
        AntiConservativeWarning,
    )


OPTIONS = {"ece": ("n_bins",), "block": ("block_size",), "ucme": ("n_locations", "test_predictions", "test_labels")}


def _check_options(estimator: Estimator, options: PairOptions, given: dict[str, Any]) -> None:
    """No option that the estimator would ignore."""
    name = estimator if isinstance(estimator, str) else "callable"
    if name in ("ece", "callable"):
        delta = options.target_kernel is None or (
            isinstance(options.target_kernel, str) and options.target_kernel == "delta"
        )
        kernels = {"kernel": options.kernel, "target_kernel": None if delta else "a matrix"}
        given = given | kernels | {"operator": options.operator}
    for option, value in given.items():
        if value is not None and option not in OPTIONS.get(name, ()):
            shown = f" is {value!r}, but" if isinstance(value, (int, str)) else " is given, but"
            raise ValueError(f"`{option}`{shown} estimator={name!r} has no such option; leave it out")


@dataclass(frozen=True)
class Draws:
    """Replicates of the data that are calibrated by construction; each a function of seed and number alone."""

    data: Data
    seed: int
    resample_predictions: bool

    def sample(self, replicate: int) -> tuple[Array | None, Data]:
        """The samples of which a replicate takes the predictions, None for all in their order, and the replicate."""
        if self.resample_predictions:
            return self.data.redraw(self.seed, replicate)
        return None, self.data.draw(self.seed, replicate)


class _Statistic(Protocol):
    def observed(self) -> float:
        """The estimate of the data."""

    def resampled(self, draws: Draws, count: int) -> np.ndarray:
        """The estimates of that many replicates."""

    def described(self) -> dict[str, Any]:
        """The fields of `ConsistencyOutcome` that belong to the estimator."""


NOTHING_TO_SAY = {"block_size": None, "n_bins": None, "locations": None, "description": None}


@dataclass(frozen=True)
class _UserStatistic:
    data: Data
    function: Callable[[Any, Any], float]

    def observed(self) -> float:
        return self._value(self.data, "for the data")

    def resampled(self, draws: Draws, count: int) -> np.ndarray:
        return np.array([self._value(draws.sample(r)[1], f"for replicate {r}") for r in range(count)])

    def described(self) -> dict[str, Any]:
        return NOTHING_TO_SAY

    def _value(self, data: Data, where: str) -> float:
        returned = self.function(*data.as_given())
        try:
            value = float(returned)
        except (TypeError, ValueError):
            raise TypeError(f"`estimator` returned {returned!r} {where}, expected a number") from None
        if not np.isfinite(value):
            raise ValueError(f"`estimator` returned {value} {where}, expected a finite number")
        return value


class _PairStatistic:
    """An estimate from the sums of a pair problem, whose kernel, bandwidths included, is that of the data."""

    def __init__(
        self,
        data: Data,
        options: PairOptions,
        packed: Packed,
        value: Callable[[Operator], float],
        fields: dict[str, Any],
    ) -> None:
        self._data = data
        self._options = options
        self._packed = packed
        self._value = value
        self._operator = self._operator_for(packed)
        self._fields = fields

    def observed(self) -> float:
        return self._value(self._operator)

    def resampled(self, draws: Draws, count: int) -> np.ndarray:
        return np.array([self._of_sample(*draws.sample(r)) for r in range(count)])

    def described(self) -> dict[str, Any]:
        description = describe(self._data, self._packed, self._operator)
        return NOTHING_TO_SAY | self._fields | {"description": description}

    def _of_sample(self, rows: Array | None, sample: Data) -> float:
        there = self._packed if rows is None else self._packed.taken(rows)
        packed = there.with_targets(sample, threads=self._options.threads)
        return self._value(self._operator_for(packed))

    def _operator_for(self, packed: Packed) -> Operator:
        return operator_for(packed.problem, operator=self._options.operator, threads=self._options.threads)


def _ucme_of(operator: Operator) -> float:
    return mean_square(mean_differences(operator))


def _skce_by(data: Data, estimator: str, block_size: int | None) -> Callable[[Operator], float]:
    def value(operator: Operator) -> float:
        return value_and_error(data, operator, estimator, block_size, with_error=False)[0]

    return value


class _TopLabelECE:
    """`kcalib.top_label_ece`: the sum over bins of |sum of (correct - confidence)|, over n."""

    def __init__(self, data: Classification, n_bins: int) -> None:
        p = arrays.where_computed(data.probabilities).astype(np.float64, copy=False)
        self._xp = xp = arrays.namespace(p)
        everyone, predicted = xp.arange(data.n), xp.argmax(p, axis=1)
        cumulative = cumulative_sums(p)
        self._data, self._n_bins = data, n_bins
        self._confidence = p[everyone, predicted]
        self._bin = bin_numbers(self._confidence, n_bins)
        self._correct = predicted == arrays.where_computed(data.labels)
        # A uniform number gives the predicted class from here to there.
        self._from = xp.where(predicted > 0, cumulative[everyone, predicted - 1], 0.0)
        self._to, self._totals = cumulative[everyone, predicted], cumulative[:, -1]

    def observed(self) -> float:
        return float(self._values(self._xp.arange(len(self._bin))[None, :], self._correct[None, :])[0])

    def resampled(self, draws: Draws, count: int) -> np.ndarray:
        elements = BATCH_ELEMENTS if arrays.is_host(self._bin) else DEVICE_BATCH_ELEMENTS
        batch = max(1, elements // max(len(self._bin), self._n_bins))
        return np.concatenate([self._batch(draws, b, min(count, b + batch)) for b in range(0, count, batch)])

    def described(self) -> dict[str, Any]:
        return NOTHING_TO_SAY | {"n_bins": self._n_bins}

    def _batch(self, draws: Draws, begin: int, end: int) -> np.ndarray:
        everyone = self._xp.arange(len(self._bin))
        redraw = draws.resample_predictions
        drawn = [self._data.uniforms(draws.seed, replicate, redraw=redraw) for replicate in range(begin, end)]
        rows = self._xp.stack([everyone if taken is None else taken for taken, _ in drawn])
        at = thresholds(self._totals[rows], self._xp.stack([uniform for _, uniform in drawn]))
        return self._values(rows, (self._from[rows] <= at) & (at < self._to[rows]))

    def _values(self, rows: Array, correct: Array) -> np.ndarray:
        xp, (count, n) = self._xp, rows.shape
        bins = (self._bin[rows] + self._n_bins * xp.arange(count)[:, None]).ravel()
        gaps = (correct - self._confidence[rows]).ravel()
        if arrays.is_host(bins):
            sums = np.bincount(bins, gaps, minlength=count * self._n_bins)
        else:
            sums = Segments.of(bins, count * self._n_bins).sums(gaps)
        return arrays.to_host(xp.sum(xp.abs(sums.reshape(count, self._n_bins)), axis=1) / n)
