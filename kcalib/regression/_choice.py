"""Results of the cross-validation: each estimator with its risk and its estimate, and the chosen one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kcalib.report.summary import Summarized, Summary


@dataclass(frozen=True)
class EstimatorRisk(Summarized):
    """One estimator with its best parameters, its estimate and its risk.

    Standard errors are over folds: the standard deviation divided by the square root of the number of folds.
    """

    estimator: str  #: as given
    parameters: dict[str, Any] | None  #: the best setting; None if it differs between classes
    value: float  #: estimate of the squared calibration error, on the samples not used for tuning
    standard_error: float  #: of `value`
    root: float  #: square root of `value`, with its sign
    risk: float  #: mean over folds
    risk_standard_error: float  #: of `risk`
    root_risk: float  #: mean over folds of the root of the risk, as Gruber and Bach report
    root_risk_standard_error: float  #: of `root_risk`
    risk_minus_null: float  #: mean over folds of the risk minus the risk of h = 0; negative if the estimator is useful
    risk_minus_null_standard_error: float  #: of `risk_minus_null`, whose folds are paired
    fold_values: tuple[float, ...]  #: the estimate by the function of each fold
    fold_risks: tuple[float, ...]  #: the risk on each fold


@dataclass(frozen=True)
class SquaredCalibrationErrorResult(Summarized):
    """A squared calibration error, estimated by the estimator with the lowest risk.

    Standard errors are over folds, and do not include the variation of the evaluated samples.
    """

    value: float  #: estimate of the squared calibration error; may be negative
    standard_error: float  #: of `value`, over folds
    root: float  #: square root of `value`, with its sign
    estimator: str  #: the estimator with the lowest risk, as given
    parameters: dict[str, Any] | None  #: its best parameters; None if they differ between classes
    risk: float  #: its risk, mean over folds
    risk_standard_error: float  #: of `risk`
    null_risk: float  #: the risk of h = 0, mean over folds
    null_risk_standard_error: float  #: of `null_risk`
    risk_minus_null: float  #: mean over folds of the difference; above 0 if no estimator was better than h = 0
    risk_minus_null_standard_error: float  #: of `risk_minus_null`
    estimators: tuple[EstimatorRisk, ...]  #: all candidates, by increasing risk
    fold_null_risks: tuple[float, ...]  #: the risk of h = 0 on each fold
    lens: str  #: notion of calibration
    by_class: tuple[Any, ...] | None  #: a result for each class, with lens="class_wise"; otherwise None
    n_samples: int  #: samples given
    n_tuning: int  #: samples of the folds
    n_test: int  #: samples that `value` is a mean over
    n_folds: int  #: folds
    n_classes: int  #: m
    seed: int | None  #: of the permutation; None if the samples kept their order
    seconds: float = field(compare=False)  #: wall time

    def __float__(self) -> float:
        return self.value

    def _summary(self) -> Summary:
        """Return the table of all estimators, by increasing risk."""
        header = ["estimator", "parameters", "squared error", "std. error", "risk minus null", "std. error"]
        rows = []
        for entry in self.estimators:
            items = (entry.parameters or {}).items()
            parameters = ", ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in items)
            numbers = (entry.value, entry.standard_error, entry.risk_minus_null, entry.risk_minus_null_standard_error)
            rows.append([entry.estimator, parameters, *(f"{number:.2e}" for number in numbers)])
        title = f"{type(self).__name__}: {self._brief()}; {self.n_samples} samples, {self.lens}"
        return Summary(title, rows, [True, True, False, False, False, False], header)


def make_entry(
    name: str, parameters: dict[str, Any] | None, values: np.ndarray, risks: np.ndarray, null_risks: np.ndarray
) -> EstimatorRisk:
    value = float(np.mean(values))
    roots = np.sqrt(np.maximum(risks, 0.0))  # a risk of 0 may be negative by rounding
    return EstimatorRisk(
        name,
        parameters,
        value,
        _standard_error(values),
        math.copysign(math.sqrt(abs(value)), value),
        float(np.mean(risks)),
        _standard_error(risks),
        float(np.mean(roots)),
        _standard_error(roots),
        float(np.mean(risks - null_risks)),
        _standard_error(risks - null_risks),
        tuple(values.tolist()),
        tuple(risks.tolist()),
    )


def _standard_error(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def make_result(entries: list[EstimatorRisk], null_risks: np.ndarray, **fields: Any) -> SquaredCalibrationErrorResult:
    entries = sorted(entries, key=lambda entry: entry.risk)
    first = entries[0]
    return SquaredCalibrationErrorResult(
        value=first.value,
        standard_error=first.standard_error,
        root=first.root,
        estimator=first.estimator,
        parameters=first.parameters,
        risk=first.risk,
        risk_standard_error=first.risk_standard_error,
        null_risk=float(np.mean(null_risks)),
        null_risk_standard_error=_standard_error(null_risks),
        risk_minus_null=first.risk_minus_null,
        risk_minus_null_standard_error=first.risk_minus_null_standard_error,
        estimators=tuple(entries),
        fold_null_risks=tuple(null_risks.tolist()),
        **fields,
    )


def average_over_classes(
    results: Sequence[SquaredCalibrationErrorResult], seconds: float
) -> SquaredCalibrationErrorResult:
    """Return the means over classes of each fold; the folds have the same samples for all classes."""
    null_risks = np.mean([result.fold_null_risks for result in results], axis=0)
    entries = []
    for name in (entry.estimator for entry in results[0].estimators):
        class_entries = [entry for result in results for entry in result.estimators if entry.estimator == name]
        values, risks = (
            np.mean([getattr(e, key) for e in class_entries], axis=0) for key in ("fold_values", "fold_risks")
        )
        entries.append(make_entry(name, None, values, risks, null_risks))
    sizes = {name: getattr(results[0], name) for name in ("n_samples", "n_tuning", "n_test", "n_folds", "seed")}
    return make_result(
        entries,
        null_risks,
        lens=f"mean over ClassWise(0..{len(results) - 1})",
        by_class=tuple(results),
        n_classes=len(results),
        seconds=seconds,
        **sizes,
    )
