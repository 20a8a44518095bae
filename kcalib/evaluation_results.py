"""Results of `kcalib.evaluate` and of the states of `kcalib.streaming`, a class for each kind of predictions."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kcalib._backend.files import write_whole
from kcalib.lenses import Canonical
from kcalib.report.evaluations import page_of
from kcalib.report.summary import MOST_ROWS, Summarized, Summary, format_pvalue, format_value
from kcalib.results import CalibrationTestResult, SKCEResult

__all__ = ["Evaluation", "ForecastEvaluation", "MultilabelEvaluation"]

SHOWN = 5  # labels that a verdict names
INTERVAL = 0.9  # probability of the central intervals whose coverage is reported


class ModelEvaluation(Summarized, ABC):
    """Base class of evaluations; the fields before `skce` depend on the kind of predictions."""

    @abstractmethod
    def columns(self) -> dict[str, str]:
        """Return the numbers before `skce` as cells of a table, by header."""

    def remarks(self) -> list[str]:
        """Return explanations of the columns."""
        return []

    @abstractmethod
    def notes(self) -> list[str]:
        """Return lines of text for a diagram."""

    def to_html(self, path: str | os.PathLike[str] | None = None, *, beside: Iterable[Any] = ()) -> str:
        """Return an HTML page with the verdict, the numbers, the test with its null distribution, and how to repeat it.

        The page is one file, needs no network, and has a light and a dark mode. An evaluation holds no samples, so
        diagrams, comparisons and recalibrators are passed to it. ``kcalib report`` makes a page with all of these from
        files.

        Parameters
        ----------
        path : path-like, optional
            File to write; a failure leaves no partial file.
        beside : iterable of results, optional
            Further results for the page: each is printed, and plotted if it has a ``plot`` method, such as those of
            `kcalib.reliability`, `kcalib.quantile_calibration`, `kcalib.compare` and `kcalib.recalibration.choose`.

        Returns
        -------
        str
            The page.

        Raises
        ------
        ImportError
            If matplotlib is missing; ``pip install 'kcalib[plot]'``.
        OSError
            If the file cannot be written.
        TypeError
            If `beside` is not iterable, or one of its elements is no result of kcalib.

        Examples
        --------
        >>> import kcalib
        >>> y, p = [0, 1, 1, 0, 1], [0.2, 0.7, 0.9, 0.4, 0.6]
        >>> page = kcalib.evaluate(y, p).to_html(beside=[kcalib.reliability(y, p)])
        >>> page.startswith("<!doctype html>"), len(page) < 1e5
        (True, True)
        """
        if not isinstance(beside, Iterable):
            raise TypeError(f"`beside` is {type(beside).__name__}, expected several results of kcalib; pass [result]")
        others = list(beside)
        for i, result in enumerate(others):
            if not isinstance(result, Summarized):
                raise TypeError(
                    f"`beside[{i}]` is {type(result).__name__}, expected a result of kcalib, such as that of "
                    "kcalib.reliability(y_true, y_pred)"
                )
        page = page_of(self, others)
        if path is not None:
            write_whole(path, page.encode())
        return page


@dataclass(frozen=True)
class Evaluation(ModelEvaluation):
    """Scores, calibration error and test of one classifier, with a verdict on its calibration."""

    _shown = (
        "verdict", "n_samples", "n_classes", "accuracy", "log_loss", "brier_score", "top_label_ece", "skce", "test",
        "positive_class", "lens",
    )  # fmt: skip

    n_samples: int  #: number of samples
    n_classes: int  #: number of classes, induced ones with a lens
    positive_class: Any  #: the second of two classes, whose probability a single column is; else, and with a lens, None
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    confidence_from: str  #: "largest probability", of two classes "max(p, 1 - p)", or "as given", see `kcalib.lenses`
    accuracy: float  #: share of samples whose predicted class is right; all numbers are of the induced problem
    mean_confidence: float  #: mean probability of the predicted class
    log_loss: float  #: `kcalib.log_loss`
    brier_score: float  #: `kcalib.brier_score`
    top_label_ece: float  #: `kcalib.top_label_ece`
    skce: SKCEResult  #: estimate of the SKCE
    test: CalibrationTestResult  #: test that the verdict depends on
    #: lower confidence limit of the calibration error, see `evaluate`; None if there is none
    rms_error_lower: float | None
    #: what the limit comes from: "kernel"; for class probabilities also "fitted map", in states "temperature map"
    rms_error_from: str | None
    kernel_eigenvalue: float | None  #: upper limit of the kernel's largest eigenvalue, which the limit uses
    n_eigenvalue_samples: int | None  #: samples that this eigenvalue was computed from
    level: float  #: of the verdict and of `rms_error_lower`
    tolerance: float | None  #: acceptable error; None: the verdict is about calibration itself
    miscalibrated: bool  #: whether calibration, or an error within the tolerance, is rejected
    verdict: str  #: the same in words, with the direction of the error if it is known
    #: results by the names in ``evaluate(metrics=...)``, for more than two classes a tuple of results; None without
    metrics: dict[str, Any] | None = None
    undefined: dict[str, str] | None = None  #: reasons why results in `metrics` are None, by name; None without

    def columns(self) -> dict[str, str]:
        return {
            "n": str(self.n_samples),
            "classes": str(self.n_classes),
            "accuracy": f"{self.accuracy:.4f}",
            "log loss": f"{self.log_loss:.4f}",
            "Brier": f"{self.brier_score:.4f}",
            "ECE": f"{self.top_label_ece:.4f}",
        }

    def remarks(self) -> list[str]:
        remarks = []
        if self.positive_class is not None:
            remarks.append(
                f"two classes: the second column, or the only one, is the probability of {self.positive_class}"
            )
        if self.confidence_from == "max(p, 1 - p)":
            remarks.append("accuracy and ECE: of the more probable of two classes, whose confidence is max(p, 1 - p)")
        return remarks

    def metric_rows(self) -> list[list[str]]:
        """Return `metrics` as rows of a table."""
        return [
            row
            for name, results in (self.metrics or {}).items()
            for row in (
                [row for k, result in enumerate(results) for row in _rows_of(name, result, f", class {k}")]
                if isinstance(results, tuple)
                else _rows_of(name, results)
            )
        ]

    def _summary(self) -> Summary:
        summary = super()._summary()
        notes = tuple(f"{name}: {reason}" for name, reason in (self.undefined or {}).items())
        return replace(summary, rows=summary.rows + self.metric_rows(), notes=summary.notes + notes)

    def notes(self) -> list[str]:
        lens = [] if self.lens == str(Canonical()) else [self.lens]
        return [*lens, f"ECE {self.top_label_ece:.4f}"]


@dataclass(frozen=True)
class ForecastEvaluation(ModelEvaluation):
    """Scores, calibration error and test of one model that predicts distributions, with a verdict on its calibration.

    Fields that do not exist for predictions of vectors, or without a density, are None.
    """

    _shown = (
        "verdict", "prediction", "n_samples", "rmse", "crps", "log_score", "interval_coverage",
        "quantile_calibration_error", "skce", "test",
    )  # fmt: skip

    n_samples: int  #: number of samples
    n_dims: int  #: d, dimension of a target; 1 for numbers
    prediction: str  #: the family of distributions
    rmse: float  #: root mean squared difference between targets and predicted means
    crps: float  #: `kcalib.crps`; energy score of vectors, weighted interval score of quantiles
    log_score: float | None  #: `kcalib.log_score`
    pinball_loss: float | None  #: `kcalib.pinball_loss` at its default levels
    #: share of targets in the central 90 % intervals, from the quantile at 0.05 to the one at 0.95, both included. It
    #: is higher for calibrated counts, and lower for S members: 2 / (S + 1) of all targets are outside their range
    interval_coverage: float | None
    interval_width: float | None  #: mean width of these intervals
    pit_mean: float | None  #: mean of `kcalib.pit_values`; 1/2 under calibration, more if predictions are too low
    quantile_calibration_error: float | None  #: `error` of `kcalib.quantile_calibration`
    skce: SKCEResult  #: estimate of the SKCE
    test: CalibrationTestResult  #: test that the verdict depends on
    fair: bool  #: whether `crps` is the fair score of members
    pit_seed: int | None  #: of randomized PIT values; None if nothing was drawn
    #: lower confidence limit of the calibration error, see `evaluate`; None if there is none
    rms_error_lower: float | None
    rms_error_from: str | None  #: what the limit comes from: "kernel"
    kernel_eigenvalue: float | None  #: upper limit of the kernel's largest eigenvalue, which the limit uses
    n_eigenvalue_samples: int | None  #: samples that this eigenvalue was computed from
    #: the same in the units of the targets, see `evaluate`; None for vectors and states
    rms_distance_lower: float | None
    level: float  #: of the verdict and of the lower limits
    tolerance: float | None  #: acceptable error; None: the verdict is about calibration itself
    miscalibrated: bool  #: whether calibration, or an error within the tolerance, is rejected
    verdict: str  #: the same in words, with the reason if PIT values (vectors: standardized errors) tell it

    def columns(self) -> dict[str, str]:
        return {
            "n": str(self.n_samples),
            "predicted": self.prediction,
            "RMSE": f"{self.rmse:.4g}",
            "CRPS": f"{self.crps:.4g}",
            "log score": _optional(self.log_score, ".4f"),
            "pinball": _optional(self.pinball_loss, ".4g"),
            f"in {100 * INTERVAL:g} %": _optional(self.interval_coverage, ".4f"),
        }

    def remarks(self) -> list[str]:
        remarks = [f"in {100 * INTERVAL:g} %: share of the targets in central intervals of that probability"]
        if self.prediction == "Quantiles":
            remarks.append(
                "CRPS of quantiles: the weighted interval score; RMSE: of means if they are evenly spread between"
            )
        if self.prediction == "Samples":
            remarks.append(
                "targets from the distribution of S members are outside their range with probability 2 / (S + 1)"
            )
        if self.fair:
            remarks.append("CRPS: fair, for the distribution that members are drawn from")
        if self.n_dims > 1:
            remarks.append("CRPS of vectors: the energy score; pinball loss and intervals are for numbers only")
        return remarks

    def notes(self) -> list[str]:
        return [f"CRPS {self.crps:.4g}"]


@dataclass(frozen=True)
class MultilabelEvaluation(Summarized):
    """Evaluations of all labels of a multilabel problem, each as a binary problem, and a verdict on all."""

    labels: tuple[Any, ...]  #: names of the labels, in the order of columns
    #: one for each label. Verdicts use adjusted p-values; ``test.pvalue`` is not adjusted
    evaluations: tuple[Evaluation, ...]
    pvalues_holm: tuple[float, ...]  #: p-values adjusted over labels by Holm
    n_samples: int  #: number of samples
    n_labels: int  #: number of labels
    accuracy: float  #: mean over labels, as the next three
    log_loss: float  #: `kcalib.log_loss`
    brier_score: float  #: `kcalib.brier_score`
    top_label_ece: float  #: `kcalib.top_label_ece`
    level: float  #: of the verdict: largest probability that any label is called miscalibrated if all are calibrated
    miscalibrated: bool  #: whether any label is miscalibrated
    verdict: str  #: the same in words

    @classmethod
    def of(
        cls, labels: Sequence[Any], evaluations: Sequence[Evaluation], pvalues_holm: Sequence[float]
    ) -> MultilabelEvaluation:
        """Join evaluations; `pvalues_holm` are their p-values adjusted over labels."""
        level = evaluations[0].level
        adjusted = tuple(
            replace(e, miscalibrated=False, verdict="no evidence against calibration among all labels")
            if e.miscalibrated and not p < level
            else e
            for e, p in zip(evaluations, pvalues_holm, strict=True)
        )
        wrong = [str(label) for label, e in zip(labels, adjusted, strict=True) if e.miscalibrated]
        shown = ", ".join(wrong[:SHOWN]) + (", ..." if len(wrong) > SHOWN else "")
        means = ("accuracy", "log_loss", "brier_score", "top_label_ece")
        return cls(
            labels=tuple(labels),
            evaluations=adjusted,
            pvalues_holm=tuple(pvalues_holm),
            n_samples=evaluations[0].n_samples,
            n_labels=len(labels),
            **{name: math.fsum(getattr(e, name) for e in evaluations) / len(labels) for name in means},
            level=level,
            miscalibrated=bool(wrong),
            verdict=f"miscalibrated for {len(wrong)} of {len(labels)} labels: {shown}"
            if wrong
            else "no evidence against calibration",
        )

    def means(self) -> str:
        """Return the means over labels as a line of text."""
        scores = f"log loss {self.log_loss:.4f}, Brier {self.brier_score:.4f}, ECE {self.top_label_ece:.4f}"
        return f"means over {self.n_labels} labels: accuracy {self.accuracy:.4f}, {scores}"

    def _summary(self) -> Summary:
        columns = ("accuracy", "log loss", "Brier", "ECE")
        of_labels = list(zip(self.labels, self.evaluations, self.pvalues_holm, strict=True))
        shown = sorted(of_labels, key=lambda entry: entry[1].test.log_pvalue)[: MOST_ROWS - 3]
        rows = [
            [
                str(label),
                *(e.columns()[name] for name in columns),
                format_pvalue(e.test.pvalue),
                format_pvalue(p),
                e.verdict,
            ]
            for label, e, p in shown
        ]
        header = ["label", *columns, "p-value", "p (Holm)", "verdict"]
        title = f"{type(self).__name__}: {self.verdict}; {self.n_samples} samples"
        n_further = self.n_labels - len(shown)
        further = f"; and {n_further} labels of larger p-values" if n_further else ""
        return Summary(title, rows, [True, *[False] * 6, True], header, (self.means() + further,))


def _optional(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _rows_of(name: str, result: Any, suffix: str = "") -> list[list[str]]:
    """Return a row for each number of a result that has an interval, or one row for the result."""
    if result is None:
        return [[name + suffix, "-"]]
    limits = {field: limit for field, limit in getattr(result, "__dict__", {}).items() if field.endswith("interval")}
    numbers = {field.removesuffix("interval").removesuffix("_"): limit for field, limit in limits.items()}
    rows = [
        [(number or name) + suffix, f"{getattr(result, number or 'value'):.4g} {format_value(limit)}"]
        for number, limit in numbers.items()
    ]
    return rows or [[name + suffix, format_value(result)]]
