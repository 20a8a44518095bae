"""Compute the cumulative calibration error (ECCE), from differences between events and probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy

from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import LARGEST_KEY, SEED, check_choice, check_integer, check_seed
from kcalib._backend.random import draw_label_batches
from kcalib._backend.warnings import AntiConservativeWarning, warn
from kcalib._input.labels import Classification, prepare
from kcalib.estimators.event_bins import Sample
from kcalib.lenses import Lens, TopLabel
from kcalib.report import diagrams
from kcalib.report.summary import Summarized, format_pvalue

__all__ = ["CumulativeCalibrationError", "cumulative_calibration_error"]

STATISTICS = ("kuiper", "ks")
LAW, DRAWS = "Brownian motion", "draws"
BATCH_ELEMENTS = 2**20  # drawn labels in memory at a time
ROUNDING = 1e-12  # relative difference of statistics that count as equal
TERMS = np.arange(1, 12)  # of the series of tail probabilities
FEWEST_EVENTS = 20  # that the asymptotic p-value needs


@dataclass(frozen=True, eq=False)
class CumulativeCalibrationError(Summarized):
    """A cumulative calibration error, its p-value, and the cumulative differences."""

    value: float  #: range of the differences ("kuiper"), or largest absolute difference ("ks")
    statistic: str  #: "kuiper" or "ks"
    standardized: float  #: value over the standard deviation of the last difference under calibration
    pvalue: float  #: probability of an error at least as large, if the model is calibrated
    log_pvalue: float  #: natural logarithm of the p-value, also if that underflows
    pvalue_from: str  #: "Brownian motion" or "draws"
    n_resamples: int | None  #: draws of all labels; None without
    seed: int | None  #: of the draws; None without
    confidence: np.ndarray = field(repr=False)  #: distinct confidences, ascending, shape (u,)
    share: np.ndarray = field(repr=False)  #: share of the weight up to each confidence, from 0 to 1, shape (u + 1,)
    difference: np.ndarray = field(repr=False)  #: cumulative difference up to each confidence, shape (u + 1,)
    standard_deviation: np.ndarray = field(repr=False)  #: of the differences under calibration, shape (u + 1,)
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    n_samples: int  #: number of samples

    def __float__(self) -> float:
        return self.value

    def _brief(self) -> str:
        return f"{self.value:.4g}, p-value {format_pvalue(self.pvalue)}"

    def plot(self, ax: Any = None) -> Any:
        """Plot the cumulative differences against the share of the samples; slopes are calibration errors.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on. Default: axes of a new figure, which pyplot does not manage.

        Returns
        -------
        matplotlib.axes.Axes
            The axes of the diagram.

        Raises
        ------
        ImportError
            If matplotlib is missing; ``pip install 'kcalib[plot]'``.
        """
        return diagrams.plot_cumulative(self, ax)


@on_their_gpu
def cumulative_calibration_error(
    y_true: Any,
    y_pred: Any,
    *,
    statistic: str = "kuiper",
    n_resamples: int | None = None,
    seed: int | None = SEED,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
) -> CumulativeCalibrationError:
    r"""Compute the empirical cumulative calibration error (ECCE) and its p-value, without bins or bandwidth.

    Parameters
    ----------
    y_true, y_pred, sample_weight, classes, from_logits, lens
        As in `kcalib.reliability`. Weights must not depend on the labels.
    statistic : {"kuiper", "ks"}
        "kuiper" is the range of the cumulative differences (ECCE-R); "ks" is the largest absolute difference
        (ECCE-MAD, Kolmogorov-Smirnov).
    n_resamples : int, optional
        Number of draws of all labels from the predictions, 1 to 2**40, for a p-value that is valid for any n. Default:
        the asymptotic p-value, from extremes of a Brownian motion.
    seed : int, optional
        Seed of the draws, 0 to 2**64 - 1. None draws one, which the result reports.

    Returns
    -------
    CumulativeCalibrationError
        The error with its p-value, the cumulative differences, and a method ``plot``.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.reliability`. Also if an option is out of range; if `seed` is given without `n_resamples`.

    Warns
    -----
    AntiConservativeWarning
        If the predictions are too certain for the asymptotic p-value.

    Notes
    -----
    With confidences in ascending order, events y of 0 and 1, and weights w,

    .. math:: C_k = \sum_{i \le k} w_i (y_i - c_i) \Big/ \sum_i w_i, \qquad
              \sigma^2 = \sum_i w_i^2 c_i (1 - c_i) \Big/ \Bigl( \sum_i w_i \Bigr)^2 ,

    ECCE-R is :math:`\max C - \min C`, and ECCE-MAD :math:`\max |C|`, both including :math:`C_0 = 0` [1]_. Only sums
    over equal confidences are used, so the order of samples does not matter. Under calibration :math:`C / \sigma` is
    approximately a Brownian motion [2]_. A p-value from R draws is (1 + number of draws with at least the observed
    value) / (1 + R). Time O(n log n), plus O(R n) for draws; memory O(n). Predictions on a GPU are copied to the host.

    References
    ----------
    .. [1] I. Arrieta-Ibarra, P. Gujral, J. Tannen, M. Tygert, C. Xu. Metrics of calibration for probabilistic
       predictions. JMLR 23, 2022.
    .. [2] M. Tygert. Calibration of P-values for calibration and for deviation of a subpopulation from the full
       population. Advances in Computational Mathematics 49, 2023.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [1, 1, 1, 1], [0.4, 0.4, 0.6, 0.8]
    >>> result = kcalib.cumulative_calibration_error(y, p, lens=kcalib.lenses.Canonical(), n_resamples=999)
    >>> result.difference.round(3), round(result.value, 6), round(result.pvalue, 2)
    (array([0.  , 0.3 , 0.4 , 0.45]), 0.45, 0.09)
    """
    check_choice("statistic", statistic, STATISTICS)
    if n_resamples is not None:
        n_resamples = check_integer("n_resamples", n_resamples, 1, 2**40)
        seed = check_seed(seed, LARGEST_KEY)
    elif seed is not None and seed != SEED:
        raise ValueError(f"`seed` is {seed!r}, but nothing is drawn; pass n_resamples=999, or leave it out")
    lens = TopLabel() if lens is None else lens
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, sample_weight=sample_weight, lens=lens)
    return cumulative_error_of(data, statistic, n_resamples, seed)


def cumulative_error_of(
    data: Classification, statistic: str = "kuiper", n_resamples: int | None = None, seed: int | None = SEED
) -> CumulativeCalibrationError:
    """Return `cumulative_calibration_error` of checked data."""
    sample = Sample.of(data).to_host()
    # Sort by all values, so that sums do not depend on the order of samples.
    order = np.lexsort((sample.event, sample.weight, sample.confidence))
    c, event = sample.confidence[order], sample.event[order]
    w = sample.weight[order] / np.sum(sample.weight[order])
    ends = np.flatnonzero(np.diff(c, append=2.0))
    variance = w * w * c * (1 - c)
    differences = _differences(w, event[:, None], c, ends)
    deviation = np.append(0.0, np.sqrt(np.cumsum(variance)[ends]))
    value, scale = float(_extremes(differences, statistic)[0]), float(deviation[-1])
    standardized = value / scale if scale > 0 else 0.0 if value == 0 else math.inf
    if n_resamples is None:
        events = float(np.sum(variance)) ** 2 / float(np.sum(variance * w * w)) if scale > 0 else math.inf
        if events < FEWEST_EVENTS:
            warn(
                f"the law of Brownian motion may reject calibrated models too often here: the predictions leave about "
                f"{events:.2g} uncertain events, and it needs {FEWEST_EVENTS}; n_resamples=999 is valid for any",
                AntiConservativeWarning,
            )
        log_pvalue = _log_tail(standardized, statistic)
        pvalue = math.exp(log_pvalue)
    else:
        assert seed is not None
        n_larger, probabilities = 0, np.stack((1 - c, c), axis=1)
        at_once = max(1, BATCH_ELEMENTS // len(c))
        for labels in draw_label_batches(probabilities, n_resamples, seed, at_once=at_once):
            drawn = _extremes(_differences(w, labels, c, ends), statistic)
            n_larger += int(np.sum(drawn >= value * (1 - ROUNDING)))
        pvalue = (1 + n_larger) / (1 + n_resamples)
        log_pvalue = math.log(pvalue)
    return CumulativeCalibrationError(
        value=value,
        statistic=statistic,
        standardized=standardized,
        pvalue=pvalue,
        log_pvalue=log_pvalue,
        pvalue_from=LAW if n_resamples is None else DRAWS,
        n_resamples=n_resamples,
        seed=None if n_resamples is None else seed,
        confidence=c[ends],
        share=np.append(0.0, np.cumsum(w)[ends]),
        difference=differences[:, 0],
        standard_deviation=deviation,
        lens=str(data.lens),
        n_samples=data.n,
    )


def _differences(weight: np.ndarray, events: np.ndarray, confidence: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the cumulative differences of each column of events, starting with 0, shape (u + 1, columns)."""
    sums = np.cumsum(weight[:, None] * (events - confidence[:, None]), axis=0)[ends]
    return np.concatenate((np.zeros((1, sums.shape[1])), sums))


def _extremes(differences: np.ndarray, statistic: str) -> np.ndarray:
    return np.ptp(differences, axis=0) if statistic == "kuiper" else np.max(np.abs(differences), axis=0)


def _log_tail(x: float, statistic: str) -> float:
    """Return the log of the probability that the range, or largest absolute value, of a Brownian motion exceeds x.

    By reflection it is 8 sum_k (-1)^(k-1) k P(N > k x), or 4 sum_k (-1)^(k-1) P(N > (2 k - 1) x). Small x use the
    eigenfunction expansion.
    """
    if x <= 0:
        return 0.0
    if not math.isfinite(x):
        return -math.inf
    k, signs = TERMS, (-1.0) ** (TERMS + 1)
    if x < 1:
        frequencies = (np.pi * (k - 0.5)) ** 2
        if statistic == "kuiper":
            law = np.sum((8 / x**2 + 2 / frequencies) * np.exp(-2 * frequencies / x**2))
        else:
            law = 2 * np.sum(signs / np.sqrt(frequencies) * np.exp(-frequencies / (2 * x**2)))
        return math.log1p(-float(law))
    factors, multiples = (8 * k, k) if statistic == "kuiper" else (np.full(len(k), 4), 2 * k - 1)
    tails = scipy.special.log_ndtr(-multiples * x)
    return float(tails[0] + np.log(np.sum(signs * factors * np.exp(tails - tails[0]))))
