"""What an evaluation of one model says, for each kind of predictions: `kcalib.evaluate`, and what else makes them.

A state that adds up (`kcalib.streaming`) has the same.
"""

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

SHOWN = 5  # labels in a verdict
INTERVAL = 0.9  # probability of the central intervals whose coverage is reported


class ModelEvaluation(Summarized, ABC):
    """An evaluation in words; its fields before `skce` are numbers that only models of its kind have."""

    @abstractmethod
    def columns(self) -> dict[str, str]:
        """The numbers before `skce` as cells of a table, by their headers."""

    def remarks(self) -> list[str]:
        """What the columns are, where their headers do not say it."""
        return []

    @abstractmethod
    def notes(self) -> list[str]:
        """What a picture says beside the diagram."""

    def to_html(self, path: str | os.PathLike[str] | None = None, *, beside: Iterable[Any] = ()) -> str:
        """A page of HTML: the verdict in words, the numbers, the test with its law, and how to repeat it.

        One file that needs no network, light or dark as the reader has it. An evaluation holds no samples, so diagrams,
        comparisons and recalibration are given to it. ``kcalib report`` makes all of these from files.

        Parameters
        ----------
        path : path-like, optional
            File to write it to, whole or not at all.
        beside : iterable of results, optional
            What else is on the page, in this order: each as it is printed, and drawn where it has a ``plot``, such as
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
            If `beside` is no list or the like, or something of it no result of kcalib.

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
    """The usual numbers about one classifier, and a verdict on its calibration."""

    _shown = (
        "verdict", "lens", "n_samples", "n_classes", "positive_class", "accuracy", "log_loss", "brier_score",
        "top_label_ece", "skce", "test",
    )  # fmt: skip

    n_samples: int  #: samples given
    n_classes: int  #: m, of the induced problem if there is a lens
    positive_class: Any  #: of two classes the second, whose probability a single column is; else None, as with a lens
    lens: str  #: the notion of calibration, one of `kcalib.lenses`
    confidence_from: str  #: "largest probability", of two classes "max(p, 1 - p)", or "as given", see `kcalib.lenses`
    accuracy: float  #: share of samples whose predicted class is right; all numbers are those seen through the lens
    mean_confidence: float  #: mean probability of the predicted class
    log_loss: float  #: `kcalib.log_loss`
    brier_score: float  #: `kcalib.brier_score`
    top_label_ece: float  #: `kcalib.top_label_ece`
    skce: SKCEResult  #: the estimate, with its standard error
    test: CalibrationTestResult  #: the test that the verdict rests on
    rms_error_lower: float | None  #: the model is off by at least this, see `evaluate`; None where there is no bound
    rms_error_from: (
        str | None
    )  #: what that rests on: "kernel"; of class probabilities "fitted map", too, or of a state "temperature map"
    kernel_eigenvalue: float | None  #: upper limit of the kernel's largest mean eigenvalue, on which that rests
    n_eigenvalue_samples: int | None  #: samples that this limit comes from
    level: float  #: of the verdict and of `rms_error_lower`
    tolerance: float | None  #: what the verdict allows a model to be off by; None: calibration itself is tested
    miscalibrated: bool  #: whether calibration is rejected at that level, or with a tolerance, that it is kept
    verdict: str  #: the same in words, with the direction where confidence and accuracy tell it
    #: Results by the names of ``evaluate(metrics=...)``, of more than two classes a tuple of them; None without
    metrics: dict[str, Any] | None = None

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
        """`metrics` as rows of a table."""
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
        return replace(summary, rows=summary.rows + self.metric_rows())

    def notes(self) -> list[str]:
        lens = [] if self.lens == str(Canonical()) else [self.lens]
        return [*lens, f"ECE {self.top_label_ece:.4f}"]


@dataclass(frozen=True)
class ForecastEvaluation(ModelEvaluation):
    """The usual numbers about one model that predicts distributions, and a verdict on its calibration.

    What predictions of vectors, or predictions without a density, do not have is None.
    """

    _shown = (
        "verdict", "prediction", "n_samples", "rmse", "crps", "log_score", "interval_coverage",
        "quantile_calibration_error", "skce", "test",
    )  # fmt: skip

    n_samples: int  #: samples given
    n_dims: int  #: d, entries of a target; 1 for numbers
    prediction: str  #: the family of distributions
    rmse: float  #: root of the mean squared difference of targets and predicted means, over all entries
    crps: float  #: `kcalib.crps`; for vectors the energy score, for quantiles the weighted interval score
    log_score: float | None  #: `kcalib.log_score`
    pinball_loss: float | None  #: `kcalib.pinball_loss` at its default levels
    #: share of the targets in the central 90 % intervals, from the quantile at 0.05 to that at 0.95, ends included: of
    #: counts more; of S members as a rule fewer, for they leave 2 / (S + 1) of targets like them outside of all
    interval_coverage: float | None
    interval_width: float | None  #: mean width of these intervals
    pit_mean: float | None  #: mean of `kcalib.pit_values`; 1/2 if the predictions are neither too low nor too high
    quantile_calibration_error: float | None  #: `error` of `kcalib.quantile_calibration`
    skce: SKCEResult  #: the estimate, with its standard error
    test: CalibrationTestResult  #: the test that the verdict rests on
    fair: bool  #: whether `crps` is the fair score of members
    pit_seed: int | None  #: of the randomised PIT values; None where nothing was drawn
    rms_error_lower: float | None  #: the model is off by at least this, see `evaluate`; None where there is no bound
    rms_error_from: str | None  #: what that rests on: "kernel", or for class probabilities "fitted map"
    kernel_eigenvalue: float | None  #: upper limit of the kernel's largest mean eigenvalue, on which that rests
    n_eigenvalue_samples: int | None  #: samples that this limit comes from
    rms_distance_lower: float | None  #: the same in units of the targets, see `evaluate`; None for vectors and states
    level: float  #: of the verdict and of the lower limits
    tolerance: float | None  #: what the verdict allows a model to be off by; None: calibration itself is tested
    miscalibrated: bool  #: whether calibration is rejected at that level, or with a tolerance, that it is kept
    verdict: str  #: the same in words, with what PIT values (of vectors: standardised errors) tell about the reason

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
            remarks.append("S members leave 2 / (S + 1) of targets from their own law outside of all of them")
        if self.fair:
            remarks.append("CRPS: fair, by the law that members are draws from")
        if self.n_dims > 1:
            remarks.append("CRPS of vectors: the energy score; pinball loss and intervals are for numbers only")
        return remarks

    def notes(self) -> list[str]:
        return [f"CRPS {self.crps:.4g}"]


@dataclass(frozen=True)
class MultilabelEvaluation(Summarized):
    """Evaluations of labels of which a sample can have several, each as a binary problem, and what holds for all."""

    labels: tuple[Any, ...]  #: names of the labels, in the order of columns
    #: Of each label. A verdict is by the adjusted p-value, ``test.pvalue`` that of the label by itself.
    evaluations: tuple[Evaluation, ...]
    pvalues_holm: tuple[float, ...]  #: p-values, adjusted over labels by Holm
    n_samples: int  #: samples given
    n_labels: int  #: labels
    accuracy: float  #: mean over labels, as of the next three
    log_loss: float  #: `kcalib.log_loss`
    brier_score: float  #: `kcalib.brier_score`
    top_label_ece: float  #: `kcalib.top_label_ece`
    level: float  #: of the verdict: the probability that any label is called miscalibrated if all are calibrated
    miscalibrated: bool  #: whether any label is
    verdict: str  #: the same in words

    @classmethod
    def of(
        cls, labels: Sequence[Any], evaluations: Sequence[Evaluation], pvalues_holm: Sequence[float]
    ) -> MultilabelEvaluation:
        """Put evaluations together; `pvalues_holm` are their p-values adjusted over labels."""
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
        """Say the means over labels in a line."""
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
    """Return a row for each number of a result that has an interval, or one for the result."""
    limits = {field: limit for field, limit in getattr(result, "__dict__", {}).items() if field.endswith("interval")}
    numbers = {field.removesuffix("interval").removesuffix("_"): limit for field, limit in limits.items()}
    rows = [
        [(number or name) + suffix, f"{getattr(result, number or 'value'):.4g} {format_value(limit)}"]
        for number, limit in numbers.items()
    ]
    return rows or [[name + suffix, format_value(result)]]
