"""Consistency resampling: compare an estimate with estimates of labels drawn from the predictions.

`replicates.py` computes the estimates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, ClassVar

import numpy as np

from kcalib import _packing
from kcalib._backend.options import check_choice, check_integer
from kcalib._backend.warnings import AntiConservativeWarning, warn
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib.estimators.binning import MAX_BINS, N_BINS
from kcalib.estimators.skce import ESTIMATORS as SKCE_ESTIMATORS
from kcalib.estimators.skce import PairOptions, check_estimator, check_not_parallel
from kcalib.estimators.ucme import DEFAULT_LOCATIONS, check_locations, locations_for
from kcalib.inference.cme import check_from_logits
from kcalib.inference.replicates import (
    Draws,
    PairStatistic,
    Statistic,
    TopLabelECE,
    UserStatistic,
    compute_ucme,
    make_skce_statistic,
)
from kcalib.inference.task import CalibrationMethod, Task
from kcalib.results import CalibrationTestResult

# Estimators, and their names in results.
ESTIMATORS = {"ece": "top-label ECE", **{name: f"{name} SKCE" for name in SKCE_ESTIMATORS}, "ucme": "UCME"}
# Options that only some estimators have.
OPTIONS = {
    "ece": ("n_bins",),
    "block": ("block_size",),
    "ucme": ("locations", "from_logits"),
}
# Relative difference below which estimates are equal up to rounding.
ROUNDING = {"float64": 1e-12, "float32": 1e-5}

Estimator = str | Callable[[Any, Any], float]


@dataclass(frozen=True, eq=False)
class Consistency(CalibrationMethod):
    """Test an estimate of your choice by calibrated replicates of the data.

    A replicate draws n predictions with replacement and a label from each of them [1]_, [2]_; the p-value is (1 +
    number of replicates with an estimate at least as large) / (1 + R). Provided for comparison with published results:
    in the published form it rejects calibrated models too often.

    Parameters
    ----------
    estimator : {"ece", "unbiased", "biased", "block", "linear", "ucme"} or callable, optional
        What is tested: `kcalib.top_label_ece`, an estimator of `kcalib.skce`, `kcalib.ucme`, or a function
        ``estimator(y_true, y_pred) -> float`` that is larger for worse calibration. It gets labels 0..m-1, shape (n,),
        and probabilities, shape (n, m), after the lens, in the array library of the data (NumPy on the CPU); for
        distributions targets, shape (n,) or (n, d), and a distribution. Default: "ece", or "unbiased" for
        distributions.
    n_resamples : int
        Number R of replicates, at least 1.
    resample_predictions : bool
        False keeps the predictions and draws only labels: then the test is exact for every n, R and estimator.
    n_bins : int, optional
        For "ece": number of bins, 1 to 1,000,000; default 15.
    block_size : int, optional
        For "block": as in `kcalib.skce`.
    locations : optional
        For "ucme": as in `kcalib.ucme`. All replicates share the locations.
    from_logits : bool
        For "ucme": whether given `locations` are logits.

    Notes
    -----
    Resampling the predictions repeats some of them and omits others: fewer bins are occupied than in the data, so
    estimates of replicates are too small and calibrated models are rejected too often [3]_ (section 7.2), with a
    `kcalib.AntiConservativeWarning`. For "ece" the effect is small with many samples in every bin; with few it
    dominates.

    Time R times that of the estimate and of drawing n labels, O(n m); for "ece" O(n) for each replicate. Memory O(n m).

    References
    ----------
    .. [1] J. Broecker, L. A. Smith. Increasing the reliability of reliability diagrams. Weather and Forecasting, 2007.
    .. [2] J. Vaicenavicius, D. Widmann, C. Andersson, F. Lindsten, J. Roll, T. B. Schoen. Evaluating model
       calibration in classification. AISTATS 2019.
    .. [3] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests in multi-class classification: A unifying
       framework. NeurIPS 2019.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=1000)
    >>> y = rng.uniform(size=1000) < p
    >>> method = kcalib.methods.Consistency(n_bins=10, resample_predictions=False)
    >>> result = kcalib.calibration_test(y, p, method=method, seed=0)
    >>> result.estimator, result.pvalue > 0.05
    ('top-label ECE', True)
    """

    estimator: Estimator | None = None
    n_resamples: int = 999
    resample_predictions: bool = True
    n_bins: int | None = None
    block_size: int | None = None
    locations: int | tuple[Any, Any] | None = None
    from_logits: bool = False

    name: ClassVar[str] = "consistency"

    def __post_init__(self) -> None:
        check_integer("n_resamples", self.n_resamples, 1, 2**40)
        if not isinstance(self.resample_predictions, (bool, np.bool_)):
            raise TypeError(f"`resample_predictions` is {self.resample_predictions!r}, expected True or False")
        if self.estimator is not None:
            if not callable(self.estimator):
                check_choice("estimator", self.estimator, tuple(ESTIMATORS))
            self._check_options(self.estimator)
        if self.n_bins is not None:
            check_integer("n_bins", self.n_bins, 1, MAX_BINS)
        if self.block_size is not None:
            check_integer("block_size", self.block_size, 2)
        if self.locations is not None:
            check_locations(self.locations)
        check_from_logits(self.from_logits, self.locations)

    def test(self, task: Task, seed: int) -> CalibrationTestResult:
        outcome = self.outcome(task.data, task.options, seed)
        redrawn = "predictions and labels" if outcome.resample_predictions else "labels"
        return task.result(
            method=self.name,
            statistic=outcome.estimate,
            log_pvalue=math.log(outcome.pvalue),
            pvalue=outcome.pvalue,
            estimate=outcome.estimate,
            null_law=f"{outcome.n_resamples} replicates of {redrawn}",
            pvalue_from="draws",
            estimator=ESTIMATORS.get(outcome.estimator, outcome.estimator),
            n_resamples=outcome.n_resamples,
            n_locations=None if outcome.locations is None else outcome.locations["n_locations"],
            seed=outcome.seed,
            **task.blocks(outcome.block_size),
            **(outcome.description or {}),
        )

    def outcome(self, data: Data, options: PairOptions, seed: int) -> ConsistencyOutcome:
        """Test checked data; `seed` determines replicates and random locations."""
        estimator = default_estimator(data) if self.estimator is None else self.estimator
        self._check_options(estimator)
        _check_kernels(estimator, options)
        statistic = self._statistic(estimator, data, options, seed)
        if self.resample_predictions:
            warn(
                "consistency resampling with resampled predictions rejects calibrated models too often, above all with "
                "few samples in a bin; kcalib.methods.Consistency(resample_predictions=False) is exact",
                AntiConservativeWarning,
            )
        n_resamples, resample = int(self.n_resamples), bool(self.resample_predictions)
        estimate = statistic.observed()
        null = statistic.resampled(Draws(data, seed, resample), n_resamples)
        rounding = ROUNDING[data.dtype] * max(abs(estimate), float(np.max(np.abs(null))))
        return ConsistencyOutcome(
            estimate=estimate,
            pvalue=(1 + int(np.sum(null >= estimate - rounding))) / (1 + n_resamples),
            estimator=estimator if isinstance(estimator, str) else getattr(estimator, "__name__", repr(estimator)),
            null_mean=float(np.mean(null)),
            null_standard_deviation=float(np.std(null, ddof=1)) if n_resamples > 1 else None,
            n_resamples=n_resamples,
            seed=seed,
            resample_predictions=resample,
            **statistic.describe(),
        )

    def _check_options(self, estimator: Estimator) -> None:
        """Refuse options that the estimator does not have."""
        name = estimator if isinstance(estimator, str) else "callable"
        values = {option: getattr(self, option) for options in OPTIONS.values() for option in options}
        for option, value in values.items():
            if value is not None and value is not False and option not in OPTIONS.get(name, ()):
                _refuse(option, value, name)

    def _statistic(self, estimator: Estimator, data: Data, options: PairOptions, seed: int) -> Statistic:
        if callable(estimator):
            return UserStatistic(data, estimator)
        if estimator == "ece":
            return binned(data, N_BINS if self.n_bins is None else int(self.n_bins))
        kernels = options.kernel, options.target_kernel
        if estimator == "ucme":
            where = DEFAULT_LOCATIONS if self.locations is None else self.locations
            locations = locations_for(data, where, None if isinstance(where, tuple) else seed, self.from_logits)
            packed = _packing.pack_locations(data, locations.data, *kernels, threads=options.threads)
            return PairStatistic(data, options, packed, compute_ucme, {"locations": locations.describe()})
        size = check_estimator(data, estimator, self.block_size)
        packed = _packing.pack(data, *kernels, threads=options.threads)
        return PairStatistic(data, options, packed, make_skce_statistic(data, estimator, size), {"block_size": size})


@singledispatch
def default_estimator(data: Data) -> str:
    """Return the default estimator."""
    return "unbiased"


@default_estimator.register
def _(data: Classification) -> str:
    return "ece"


@singledispatch
def binned(data: Data, n_bins: int) -> Statistic:
    """Return the statistic "ece"."""
    names = ", ".join(repr(name) for name in ESTIMATORS if name != "ece")
    raise ValueError(
        f"estimator='ece' needs class probabilities, `y_pred` is {data.describe()['prediction']}; use one of {names}, "
        "or a function"
    )


binned.register(Classification, TopLabelECE)


@dataclass(frozen=True)
class ConsistencyOutcome:
    """The result of the test, before it becomes a CalibrationTestResult."""

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


def _check_kernels(estimator: Estimator, options: PairOptions) -> None:
    """Refuse kernels, backends and workers for estimators without sums over pairs."""
    if estimator != "ece" and not callable(estimator):
        return
    name = estimator if isinstance(estimator, str) else "callable"
    of_pairs = ", ".join(repr(statistic) for statistic in ESTIMATORS if statistic != "ece")
    remedy = f"leave it out, or use kcalib.methods.Consistency with one of {of_pairs}"
    check_not_parallel(options.backend, f"method='consistency' with estimator={name!r}", remedy)
    delta = options.target_kernel is None or (
        isinstance(options.target_kernel, str) and options.target_kernel == "delta"
    )
    target_kernel = None if delta else "a matrix"
    values = {"kernel": options.kernel, "target_kernel": target_kernel, "backend": options.backend}
    for option, value in values.items():
        if value is not None:
            _refuse(option, value, name)


def _refuse(option: str, value: Any, estimator: str) -> None:
    value_text = f" is {value!r}, but" if isinstance(value, (int, str)) else " is given, but"
    raise ValueError(f"`{option}`{value_text} estimator={estimator!r} has no such option; leave it out")
