"""Compare observed and expected numbers of events: O / E, and the tests of Spiegelhalter and Hosmer and Lemeshow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import check_integer
from kcalib._input.labels import Classification, prepare
from kcalib.estimators.bands import clopper_pearson
from kcalib.estimators.binning import MAX_BINS
from kcalib.estimators.event_bins import Bins, Sample, cut
from kcalib.estimators.reliability import check_level
from kcalib.estimators.with_result import with_result
from kcalib.laws._law import log_sf_chi2
from kcalib.lenses import Lens
from kcalib.report.summary import Summarized, format_pvalue
from kcalib.results import ConfidenceInterval

__all__ = [
    "GoodnessOfFit",
    "ObservedExpectedRatio",
    "hosmer_lemeshow_test",
    "observed_expected_ratio",
    "spiegelhalter_test",
]

N_GROUPS = 10


@dataclass(frozen=True)
class ObservedExpectedRatio(Summarized):
    """The number of events over the sum of predicted probabilities, O / E."""

    value: float  #: O / E; above 1 if there are more events than predicted
    interval: ConfidenceInterval  #: of the true O / E, given the predictions
    observed: float  #: O, the sum of the weights of events
    expected: float  #: E, the sum of weights times probabilities
    confidence_level: float  #: of the interval
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    n_samples: int  #: number of samples

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class GoodnessOfFit(Summarized):
    """A classical test of the hypothesis that the predictions of an event are calibrated."""

    test: str  #: "spiegelhalter" or "hosmer_lemeshow"
    statistic: float  #: z or chi-square
    df: int | None  #: degrees of freedom of chi-square; None for z
    pvalue: float  #: two-sided for z
    log_pvalue: float  #: natural logarithm of the p-value, also if that underflows
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    n_samples: int  #: number of samples

    def _brief(self) -> str:
        df = "z" if self.df is None else f"chi-square ({self.df} degrees of freedom)"
        return f"{df} {self.statistic:.4g}, p-value {format_pvalue(self.pvalue)}"


@with_result
def observed_expected_ratio(
    needs_result: bool,
    y_true: Any,
    y_pred: Any,
    *,
    confidence_level: float = 0.95,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
) -> float | ObservedExpectedRatio:
    """Compute the observed over the expected number of events, O / E, with an exact confidence interval.

    Parameters
    ----------
    y_true, y_pred, confidence_level, sample_weight, classes, from_logits, lens
        As in `kcalib.logistic_recalibration`; probabilities of 0 and 1 are allowed.

    Returns
    -------
    float
        The ratio. ``observed_expected_ratio.result`` returns a `kcalib.ObservedExpectedRatio` with its interval.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.logistic_recalibration`. Also if all predictions are 0.

    Notes
    -----
    The limits are Clopper-Pearson limits of the share of events, divided by the mean prediction, which is taken as
    known. Their coverage is at least the stated one, also for events of different probabilities. With weights, n is
    approximated by the effective number of samples, :math:`(\\sum w)^2 / \\sum w^2`. R's ``metamisc`` uses normal
    limits of the logarithm.

    Examples
    --------
    >>> import kcalib
    >>> round(kcalib.observed_expected_ratio([1, 0, 1, 0], [0.5, 0.1, 0.6, 0.4]), 6)
    1.25
    >>> result = kcalib.observed_expected_ratio.result([1, 0, 1, 0], [0.5, 0.1, 0.6, 0.4])
    >>> [round(limit, 3) for limit in result.interval]
    [0.169, 2.331]
    """
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, sample_weight=sample_weight)
    result = ratio_of(data, confidence_level)
    return result if needs_result else result.value


@on_their_gpu
def spiegelhalter_test(
    y_true: Any,
    y_pred: Any,
    *,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
) -> GoodnessOfFit:
    r"""Test calibration by the Brier score (Spiegelhalter's z test).

    .. math:: z = \frac{\sum_i w_i (y_i - p_i) (1 - 2 p_i)}{\sqrt{\sum_i w_i^2 (1 - 2 p_i)^2 p_i (1 - p_i)}}

    Parameters
    ----------
    y_true, y_pred, sample_weight, classes, from_logits, lens
        As in `kcalib.logistic_recalibration`; probabilities of 0 and 1 are allowed.

    Returns
    -------
    GoodnessOfFit
        The statistic z, which is approximately standard normal under calibration, and its two-sided p-value.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.logistic_recalibration`. Also if all predictions are 0, 1/2 or 1.

    Notes
    -----
    z > 0 if the Brier score is larger than expected from the predictions. Predictions near 1/2 have no weight, and
    errors of both signs may cancel; `kcalib.calibration_test` has power against all errors. The result agrees with
    ``S:z`` and ``S:p`` of ``rms::val.prob``.

    References
    ----------
    .. [1] D. J. Spiegelhalter. Probabilistic prediction in patient management and clinical trials. Statistics in
       Medicine 5, 1986.

    Examples
    --------
    >>> import kcalib
    >>> result = kcalib.spiegelhalter_test([0, 1, 0, 1], [0.1, 0.8, 0.3, 0.6])
    >>> round(result.statistic, 4), round(result.pvalue, 4)
    (-1.005, 0.3149)
    """
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, sample_weight=sample_weight)
    return spiegelhalter_of(data)


@on_their_gpu
def hosmer_lemeshow_test(
    y_true: Any,
    y_pred: Any,
    *,
    n_groups: int = N_GROUPS,
    in_sample: bool = False,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
) -> GoodnessOfFit:
    r"""Test calibration by the Hosmer-Lemeshow chi-square test, in groups between quantiles of the predictions.

    .. math:: \chi^2 = \sum_g n_g \frac{(\bar y_g - \bar p_g)^2}{\bar p_g (1 - \bar p_g)}

    Parameters
    ----------
    y_true, y_pred, sample_weight, classes, from_logits, lens
        As in `kcalib.logistic_recalibration`; probabilities of 0 and 1 are allowed.
    n_groups : int
        Number of groups, 1 to 1,000,000; fewer if there are ties.
    in_sample : bool
        Whether a logistic regression was fitted to these samples, which takes two degrees of freedom. For other
        samples there are as many degrees of freedom as groups.

    Returns
    -------
    GoodnessOfFit
        The result. ``kcalib.reliability(..., binning="equal_mass", n_bins=10)`` shows the groups.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.logistic_recalibration`. Also if no degree of freedom is left.

    Notes
    -----
    Prefer `kcalib.calibration_test`. The p-value of this test depends on the number and the boundaries of groups, and
    is wrong for small expected counts; errors within a group cancel; and the test shows neither direction nor size of
    an error. For distinct predictions and `in_sample` it agrees with R's ``ResourceSelection::hoslem.test``. Groups
    whose predictions are all 0 or all 1 have no degree of freedom; if they contain an impossible label, the p-value is
    0. With weights, :math:`n_g` is the effective number of samples of the group.

    References
    ----------
    .. [1] D. W. Hosmer, S. Lemeshow. Goodness of fit tests for the multiple logistic regression model. Communications
       in Statistics 9, 1980.

    Examples
    --------
    Two groups of 2 with 0 and 2 events, and 0.4 and 1.4 expected: chi-square 0.5 + 6/7.

    >>> import kcalib
    >>> result = kcalib.hosmer_lemeshow_test([0, 0, 1, 1], [0.1, 0.3, 0.6, 0.8], n_groups=2)
    >>> round(result.statistic, 6), result.df, round(result.pvalue, 4)
    (1.357143, 2, 0.5073)
    """
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, sample_weight=sample_weight)
    return hosmer_lemeshow_of(data, n_groups, in_sample)


def ratio_of(data: Classification, confidence_level: float) -> ObservedExpectedRatio:
    """Return `observed_expected_ratio` of checked data."""
    level, sample = check_level(confidence_level), Sample.of(data).to_host()
    observed, expected = (float(sample.weight @ values) for values in (sample.event, sample.confidence))
    if expected == 0:
        raise ValueError("`y_pred` gives every event the probability 0, so no event is expected; check the predictions")
    bins = Bins.of(sample, np.zeros(len(sample.event), dtype=np.int64), 1)
    low, high = (float(limit[0] / bins.confidence[0]) for limit in clopper_pearson(bins, (1 - level) / 2))
    interval = ConfidenceInterval(low, high)
    return ObservedExpectedRatio(
        observed / expected, interval, observed, expected, level, lens=str(data.lens), n_samples=data.n
    )


def spiegelhalter_of(data: Classification) -> GoodnessOfFit:
    """Return `spiegelhalter_test` of checked data."""
    sample = Sample.of(data).to_host()
    p, slope = sample.confidence, sample.weight * (1 - 2 * sample.confidence)
    variance = float(np.sum(slope**2 * p * (1 - p)))
    if variance == 0:
        raise ValueError(
            "`y_pred` holds only 0, 1/2 and 1, so the Brier score is not random; use kcalib.calibration_test"
        )
    z = float(np.sum(slope * (sample.event - p))) / math.sqrt(variance)
    return _goodness("spiegelhalter", z, None, math.log(2) + float(scipy.special.log_ndtr(-abs(z))), data)


def hosmer_lemeshow_of(data: Classification, n_groups: Any = N_GROUPS, in_sample: Any = False) -> GoodnessOfFit:
    """Return `hosmer_lemeshow_test` of checked data."""
    n_groups = check_integer("n_groups", n_groups, 1, MAX_BINS)
    if not isinstance(in_sample, (bool, np.bool_)):
        raise TypeError(f"`in_sample` is {in_sample!r}, expected True or False")
    sample = Sample.of(data).to_host()
    edges, index = cut(sample, "equal_mass", n_groups)
    bins = Bins.of(sample, index, len(edges) - 1)
    p, gap = bins.confidence, bins.frequency - bins.confidence
    is_open = (p > 0) & (p < 1)
    df = int(np.count_nonzero(is_open)) - 2 * bool(in_sample)
    if df < 1:
        raise ValueError(
            f"`y_pred` leaves {df + 2 * bool(in_sample)} groups with predictions between 0 and 1, expected at least "
            f"{3 if in_sample else 1}; pass more n_groups, or use kcalib.calibration_test"
        )
    if np.any(gap[(p == 0) | (p == 1)]):
        return _goodness("hosmer_lemeshow", math.inf, df, -math.inf, data)
    statistic = float(np.sum((bins.effective * gap**2)[is_open] / (p * (1 - p))[is_open]))
    return _goodness("hosmer_lemeshow", statistic, df, log_sf_chi2(statistic, df), data)


def _goodness(test: str, statistic: float, df: int | None, log_pvalue: float, data: Classification) -> GoodnessOfFit:
    log_pvalue = min(log_pvalue, 0.0)
    return GoodnessOfFit(test, statistic, df, math.exp(log_pvalue), log_pvalue, str(data.lens), data.n)
