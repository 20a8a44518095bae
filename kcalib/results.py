"""What the public functions return when asked for more than a number.

Frozen dataclasses in the style of `scipy.stats`: the number, its uncertainty, and what was
actually done. Everything in them is plain Python, so they pickle, compare and convert to
JSON (``dataclasses.asdict``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import scipy

from kcalib._options import check_choice

__all__ = ["CalibrationTestResult", "ConfidenceInterval", "Evaluation", "SKCEResult", "UCMEResult"]


class ConfidenceInterval(NamedTuple):
    """Limits of a confidence interval."""

    low: float  #: lower limit
    high: float  #: upper limit


@dataclass(frozen=True)
class SKCEResult:
    """An estimate of the squared kernel calibration error."""

    value: float  #: the estimate
    standard_error: float | None  #: None below four samples (two blocks) and with sample weights
    estimator: str  #: "unbiased", "biased", "block" or "linear"
    block_size: int | None  #: samples in a block, None without blocks
    n_samples: int  #: samples given
    n_samples_used: int  #: samples used; block estimators drop those after the last full block
    n_classes: int  #: m
    kernel: str  #: the kernel with its bandwidths as numbers
    bandwidth_source: str  #: "given", or how the median heuristic found it
    target_kernel: str  #: "delta", or "matrix of rank r"
    dtype: str  #: arithmetic of the sweep; sums are always float64
    operator: str  #: which operator computed it
    operator_reason: str  #: and why that one
    threads: int | None  #: threads used at most; None where the array library decides
    seconds: float  #: wall time

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class CalibrationTestResult:
    """A test of the hypothesis that the model is calibrated."""

    statistic: float  #: the standardised statistic, N(0, 1) under calibration
    pvalue: float  #: probability of a statistic at least as large if the model is calibrated
    estimate: float  #: the SKCE estimate that is tested
    standard_error: float  #: of the estimate
    method: str  #: "block" or "linear"
    block_size: int  #: samples in a block
    n_blocks: int  #: full blocks
    n_samples: int  #: samples given
    n_samples_used: int  #: samples in full blocks
    n_classes: int  #: m
    kernel: str  #: the kernel with its bandwidths as numbers
    bandwidth_source: str  #: "given", or how the median heuristic found it
    target_kernel: str  #: "delta", or "matrix of rank r"
    seed: int | None  #: seed of the permutation before blocks are formed, None: order kept
    operator: str  #: which operator computed it
    operator_reason: str  #: and why that one
    seconds: float  #: wall time

    def confidence_interval(self, confidence_level: float = 0.95, alternative: str = "two-sided") -> ConfidenceInterval:
        """Normal confidence interval of the SKCE from the block estimates.

        Parameters
        ----------
        confidence_level : float
            In (0, 1).
        alternative : {"two-sided", "less", "greater"}
            Two limits, an upper one, or a lower one.

        Returns
        -------
        ConfidenceInterval
            With fields `low` and `high`.
        """
        if not 0 < confidence_level < 1:
            raise ValueError(f"`confidence_level` is {confidence_level}, expected a number between 0 and 1")
        check_choice("alternative", alternative, ("two-sided", "less", "greater"))
        tail = (1 - confidence_level) / (2 if alternative == "two-sided" else 1)
        width = -float(scipy.special.ndtri(tail)) * self.standard_error
        infinity = float("inf")
        low = -infinity if alternative == "less" else self.estimate - width
        high = infinity if alternative == "greater" else self.estimate + width
        return ConfidenceInterval(low, high)


@dataclass(frozen=True)
class Evaluation:
    """The usual numbers about one classifier, and a verdict on its calibration."""

    n_samples: int  #: samples given
    n_classes: int  #: m
    accuracy: float  #: share of samples whose most probable class is right
    mean_confidence: float  #: mean probability of the predicted class
    log_loss: float  #: `kcalib.log_loss`
    brier_score: float  #: `kcalib.brier_score`
    top_label_ece: float  #: `kcalib.top_label_ece`
    skce: SKCEResult  #: the estimate, with its standard error
    test: CalibrationTestResult  #: the block test that the verdict rests on
    alpha: float  #: level of the verdict
    miscalibrated: bool  #: whether calibration is rejected at that level
    verdict: str  #: the same in words, with the direction where confidence and accuracy tell it


@dataclass(frozen=True)
class UCMEResult:
    """The unnormalised calibration mean embedding statistic at its test locations."""

    value: float  #: mean of the squared differences
    differences: tuple[float, ...]  #: at each location, observed minus expected mean kernel value
    test_predictions: tuple[tuple[float, ...], ...] = field(repr=False)  #: the locations' probabilities
    test_labels: tuple[Any, ...]  #: the locations' labels, as in `y_true`
    seed: int | None  #: seed of the locations, None: they were given
    n_locations: int  #: J
    n_samples: int  #: n
    n_classes: int  #: m
    kernel: str  #: the kernel with its bandwidths as numbers
    bandwidth_source: str  #: "given", or how the median heuristic found it
    target_kernel: str  #: "delta", or "matrix of rank r"
    dtype: str  #: arithmetic of the sweep; sums are always float64
    operator: str  #: which operator computed it
    operator_reason: str  #: and why that one
    threads: int | None  #: threads used at most; None where the array library decides
    seconds: float  #: wall time

    def __float__(self) -> float:
        return self.value
