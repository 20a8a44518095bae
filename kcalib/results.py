"""What the public functions return when asked for more than a number.

Frozen dataclasses in the style of `scipy.stats`: the number, its uncertainty, and what was
actually done. Everything in them is plain Python, so they pickle, compare and convert to
JSON (``dataclasses.asdict``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import scipy

from kcalib._backend.options import check_choice, check_fraction
from kcalib._backend.provenance import machine
from kcalib._pairs.features import N_GROUPS
from kcalib._pairs.statistics import ScoreVariance, disjoint_pairs
from kcalib._version import __version__
from kcalib.lenses import Canonical
from kcalib.report import laws
from kcalib.report.summary import Summarized, Summary, align, format_pvalue

__all__ = [
    "CKCEResult",
    "CalibrationTestResult",
    "Comparison",
    "ConfidenceInterval",
    "FewErrors",
    "KDEResult",
    "ModelDifference",
    "ModelValue",
    "SKCEResult",
    "UCMEResult",
]


MOST_MODELS = 6  # in a summary
MODEL_COLUMNS = [False, True, False, False, True, True]  # which are texts


class ConfidenceInterval(NamedTuple):
    """Limits of a confidence interval."""

    low: float  #: lower limit
    high: float  #: upper limit


@dataclass(frozen=True, kw_only=True)
class Computed(Summarized):
    """A result that says what computed it. Equal numbers from several machines are equal results."""

    version: str = field(default=__version__, repr=False, compare=False)  #: of kcalib
    machine: str = field(default_factory=machine, repr=False, compare=False)  #: system, architecture, instruction set


@dataclass(frozen=True)
class FewErrors(Summarized):
    r"""Of predictions that leave few errors open, and samples that hold few: what samples like these may have missed.

    With a share :math:`v` of targets other than the most probable ones, where the model predicts :math:`u`, the root
    of the SKCE is at most :math:`\sqrt{D} (u + v)`, :math:`D` the largest that an SKCE can be.
    """

    seen: int  #: samples whose target is not the most probable one
    expected: float  #: u, the mean probability of that
    n_samples: int  #: n
    largest: float  #: D, at most

    def upper_limit(self, tail: float) -> float:
        """An upper limit of the SKCE, with v from the binomial law of `seen`: below it with at most this probability.

        Clopper and Pearson's limit; where none was seen v is 1 - tail^(1/n), about -log(tail) / n.
        """
        if self.seen >= self.n_samples:
            return self.largest
        share = float(scipy.special.betainccinv(self.seen + 1, self.n_samples - self.seen, tail))
        return self.largest * min(1.0, self.expected + share) ** 2


@dataclass(frozen=True)
class SKCEResult(Computed):
    """An estimate of the squared kernel calibration error."""

    value: float  #: the estimate
    standard_error: float | None  #: None below four samples (two blocks) and with sample weights
    null_standard_error: float | None  #: the same if the model is calibrated, given the predictions; "unbiased" only
    draws_standard_error: float | None  #: what draws from the predictions add to it; None where none were taken
    features_standard_error: float | None  #: the part of it that is due to random features; None without them
    estimator: str  #: "unbiased", "biased", "block", "biased_block", "linear" or "features"
    block_size: int | None  #: samples in a block, None without blocks
    n_columns: int | None  #: columns of random features, None without them
    seed: int | None  #: of random features, or of the order of samples in blocks; None where nothing was random
    n_samples: int  #: samples given
    n_samples_used: int  #: samples used; block estimators drop those after the last full block
    n_classes: int | None  #: m, of the induced problem if there is a lens; None for distributions
    positive_class: Any  #: of two classes the second, whose probability a single column is; else None, as with a lens
    prediction: str | None  #: the family of predicted distributions; None for class probabilities
    lens: str  #: the notion of calibration, one of `kcalib.lenses`
    kernel: str  #: the kernel with its bandwidths as numbers
    bandwidth: float | None  #: of the kernel on predictions, as a number; None where it has none, or several
    bandwidth_source: str  #: "given", or how the median heuristic found it
    target_kernel: str  #: "delta", or "matrix of rank r", or the kernel on targets
    target_factor: str | None  #: how its expectations under predicted distributions were found
    prediction_distances: str | None  #: how distances of predicted distributions were found
    dtype: str  #: arithmetic of the sweep; sums are always float64
    backend: str  #: which backend computed it
    backend_reason: str  #: and why that one
    threads: int | None  #: threads used at most; None where the array library decides
    seconds: float = field(compare=False)  #: wall time

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class TestBlock(Summarized):
    """One of the statistics that the adaptive test combines."""

    __test__ = False  # pytest collects classes by their names

    name: str  #: "temperature", "bias", "classes", "top label", "kernel" or "fine kernel"; "given NAME"
    statistic: float  #: large for one kind of error
    pvalue: float  #: of this statistic alone, by its rank among the draws
    approximate_pvalue: float  #: what is combined, by a gamma law with the moments of the draws
    finding: str  #: what a large value says


@dataclass(frozen=True, kw_only=True)
class CalibrationTestResult(Computed):
    """A test of the hypothesis that the model is calibrated.

    What a method does not have is None.
    """

    _shown = (
        "pvalue", "finding", "estimate", "standard_error", "method", "null_law", "n_samples", "n_classes", "prediction",
        "lens", "kernel",
    )  # fmt: skip

    statistic: float  #: what is compared with its law under calibration; each method says which
    pvalue: float  #: probability of a statistic at least as large if the model is calibrated
    #: its natural logarithm, also where it underflows; minus infinity, in JSON "-Infinity", if a calibrated model never
    #: has such labels
    log_pvalue: float
    estimate: float  #: the calibration error that is tested
    standard_error: float | None = None  #: of the estimate
    null_standard_error: float | None = None  #: of the estimate if the model is calibrated, given the predictions
    method: str  #: the test that was done
    null_law: str  #: what the p-value rests on
    #: "draws", or beyond them "tilted draws", "law" or "bound" (of "cme" "law" in their place); None without draws
    pvalue_from: str | None = None
    blocks: tuple[TestBlock, ...] | None = None  #: the statistics that "adaptive" combines
    finding: str | None = None  #: what the most significant of them says
    #: of the draws of `statistic` under calibration, in float32: least, 39 quantiles, largest; None without draws
    null_quantiles: tuple[float, ...] | None = field(default=None, repr=False)
    estimator: str  #: what `estimate` is
    n_samples: int  #: samples given
    n_samples_used: int  #: samples used; blocks drop those after the last full one
    n_classes: int | None = None  #: m, of the induced problem if there is a lens; None for distributions
    #: of two classes the second, whose probability a single column is; else None, as with a lens
    positive_class: Any = None
    prediction: str | None = None  #: the family of predicted distributions; None for class probabilities
    lens: str  #: the notion of calibration, one of `kcalib.lenses`
    block_size: int | None = None  #: samples in a block
    n_blocks: int | None = None  #: full blocks
    n_resamples: int | None = None  #: random draws of the statistic
    n_eigenvalues: int | None = None  #: eigenvalues computed
    n_columns: int | None = None  #: columns of random features
    features_standard_error: float | None = None  #: the part of the standard error that is due to random features
    features_freedom: float = N_GROUPS - 1.0  #: degrees of freedom of its estimate, by groups of features
    n_locations: int | None = None  #: test locations
    bound: float | None = None  #: largest possible size of an entry H_ij (distribution_free)
    kernel: str | None = None  #: the kernel with its bandwidths as numbers
    bandwidth: float | None = None  #: of the kernel on predictions, as a number; None where it has none, or several
    bandwidth_source: str | None = None  #: "given", or how the median heuristic found it
    target_kernel: str | None = None  #: "delta", or "matrix of rank r", or the kernel on targets
    target_factor: str | None = None  #: how its expectations under predicted distributions were found
    prediction_distances: str | None = None  #: how distances of predicted distributions were found
    variance_slope: float | None = None  #: of the estimate over all pairs: slope * true value + constant, for limits
    variance_constant: float | None = None  #: see there
    few_errors: FewErrors | None = None  #: what upper limits rest on where errors are rare; None elsewhere
    seed: int | None = None  #: of permutation, draws, or locations; None where nothing was random
    dtype: str  #: arithmetic of the sweep; sums are always float64
    backend: str | None = None  #: which backend computed it
    backend_reason: str | None = None  #: and why that one
    threads: int | None = None  #: threads used at most; None where the array library decides
    seconds: float = field(compare=False)  #: wall time

    def _brief(self) -> str:
        return f"p-value {format_pvalue(self.pvalue)}, {self.method}"

    def plot(self, ax: Any = None) -> Any:
        """Draw the law of the statistic under calibration, as draws have found it, and the observed statistic.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; by default the axes of a new figure that pyplot does not know.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.

        Raises
        ------
        ImportError
            If matplotlib is missing; ``pip install 'kcalib[plot]'``.
        ValueError
            If the test had no draws.
        """
        if self.null_quantiles is None:
            raise ValueError(f"the {self.method} test has no draws to show; use method='exact' or 'features'")
        return laws.draw_law(self, ax)

    def confidence_interval(self, confidence_level: float = 0.95, alternative: str = "two-sided") -> ConfidenceInterval:
        """Confidence interval of the calibration error that `estimate` estimates.

        From an unbiased estimate over all pairs a score interval: the variance is that at the limit, not at the
        estimate, and never below what it is under calibration given the predictions; the lower limit allows for the
        estimate's skewness. Of blocks by Student's law. Both are asymptotic. Where the predictions leave few errors
        open, and the samples hold few, the upper limit is at least that of a model that errs as often as a model can
        whose errors were not seen (`FewErrors`). With ``method="distribution_free"`` by
        Hoeffding's inequality: wide, and valid for every n. An interval holds 0 unless the test rejects calibration at
        the level of the interval's lower tail (half of 1 - `confidence_level`, with one limit all of it).

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

        Raises
        ------
        ValueError
            If an argument is out of range, or if there is no interval: for the biased estimate, "cme",
            "consistency", and below four samples.
        """
        check_fraction("confidence_level", confidence_level)
        check_choice("alternative", alternative, ("two-sided", "less", "greater"))
        low, high = self.limits((1 - confidence_level) / (2 if alternative == "two-sided" else 1))
        infinity = float("inf")
        return ConfidenceInterval(
            -infinity if alternative == "less" else low, infinity if alternative == "greater" else high
        )

    def limits(self, tail: float, *, of_features: bool = False) -> ConfidenceInterval:
        """Those of `confidence_interval` that exclude the true value with the probability `tail` each.

        `of_features`: the true value with the kernel of the random features, in place of the given kernel.
        """
        if not self.has_interval:
            raise ValueError(
                f"there is no confidence interval for the {self.estimator} with method={self.method!r} and "
                f"{self.n_samples} samples; use method='spectrum' or 'block' with at least 4"
            )
        if self.bound is not None:
            width = self.bound * math.sqrt(-2 * math.log(tail) / disjoint_pairs(self.n_samples, self.block_size))
            low, high = self.estimate - width, self.estimate + width
        else:
            assert self.standard_error is not None
            low, high = self._asymptotic_limits(self.standard_error, tail, of_features)
            if self.few_errors is not None:
                high = max(high, self.few_errors.upper_limit(tail))
        return ConfidenceInterval(low if self.pvalue < tail else min(low, 0.0), high)

    @property
    def has_interval(self) -> bool:
        """Whether there is a `confidence_interval`."""
        by_hoeffding = self.method == "distribution_free" and self.estimator != "biased SKCE"
        return by_hoeffding or self.standard_error is not None

    def _asymptotic_limits(self, error: float, tail: float, of_features: bool) -> tuple[float, float]:
        """Limits that the estimate's law leaves with the probability `tail` on either side."""
        if self.variance_slope is not None and self.variance_constant is not None:
            quantile = -float(scipy.special.ndtri(tail))
            constant = self.variance_constant
            if self.features_standard_error is not None and not of_features:
                # The spread of few groups: Student's law in place of the normal one.
                wider = float(scipy.special.stdtrit(self.features_freedom, tail)) / -quantile if quantile else 1.0
                constant += (wider * self.features_standard_error) ** 2
            variance = ScoreVariance(self.variance_slope, constant)
            return variance.lower_limit(self.estimate, tail), variance.upper_limit(self.estimate, quantile)
        if self.n_blocks is None:
            quantile = -float(scipy.special.ndtri(tail))
        else:
            quantile = -float(scipy.special.stdtrit(self.n_blocks - 1, tail))
        width = quantile * max(error, self.null_standard_error or 0.0)
        return self.estimate - width, self.estimate + width


@dataclass(frozen=True)
class UCMEResult(Computed):
    """The unnormalised calibration mean embedding statistic at its test locations."""

    value: float  #: mean of the squared differences
    differences: tuple[float, ...]  #: at each location, observed minus expected mean kernel value
    test_predictions: tuple[tuple[float, ...], ...] = field(repr=False)  #: the locations' probabilities
    test_labels: tuple[Any, ...]  #: the locations' labels, as in `y_true`
    seed: int | None  #: seed of the locations, None: they were given
    n_locations: int  #: J
    n_samples: int  #: n
    n_classes: int | None  #: m, of the induced problem if there is a lens; None for distributions
    positive_class: Any  #: of two classes the second, whose probability a single column is; else None, as with a lens
    prediction: str | None  #: the family of predicted distributions; None for class probabilities
    lens: str  #: the notion of calibration, one of `kcalib.lenses`
    kernel: str  #: the kernel with its bandwidths as numbers
    bandwidth: float | None  #: of the kernel on predictions, as a number; None where it has none, or several
    bandwidth_source: str  #: "given", or how the median heuristic found it
    target_kernel: str  #: "delta", or "matrix of rank r", or the kernel on targets
    target_factor: str | None  #: how its expectations under predicted distributions were found
    prediction_distances: str | None  #: how distances of predicted distributions were found
    dtype: str  #: arithmetic of the sweep; sums are always float64
    backend: str  #: which backend computed it
    backend_reason: str  #: and why that one
    threads: int | None  #: threads used at most; None where the array library decides
    seconds: float = field(compare=False)  #: wall time

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class ModelValue(Summarized):
    """One of the models that `kcalib.compare` compared."""

    model: str  #: its name
    value: float  #: of the metric; lower is better
    standard_error: float  #: of the value
    confidence_interval: ConfidenceInterval  #: of the model's population value, for this model by itself
    rank: int  #: 1 for the lowest value; equal values have equal ranks
    not_distinguishable_from: tuple[str, ...]  #: models whose difference from this one is not significant, best first


@dataclass(frozen=True)
class ModelDifference(Summarized):
    """A pair of the models that `kcalib.compare` compared."""

    first: str  #: a model
    second: str  #: another
    difference: float  #: value of the first minus value of the second: negative if the first is better
    standard_error: float  #: of the difference, of paired samples
    confidence_interval: ConfidenceInterval  #: of the difference, for this pair by itself
    pvalue: float  #: two-sided, of the hypothesis that the two population values are equal
    pvalue_holm: float  #: the same adjusted for the number of pairs
    distinguishable: bool  #: whether the adjusted p-value is at most 1 - confidence_level

    def swapped(self) -> ModelDifference:
        """The second model minus the first."""
        low, high = self.confidence_interval
        interval = ConfidenceInterval(-high, -low)
        return replace(
            self, first=self.second, second=self.first, difference=-self.difference, confidence_interval=interval
        )


@dataclass(frozen=True)
class Comparison(Computed):
    """Models compared on the same samples; ``print`` shows the best in a table, `pair_lines` makes one of all pairs."""

    metric: str  #: "skce", "ckce", "ece", "brier_score", "log_loss", "crps" or "log_score"
    estimator: str  #: what estimates it
    intervals: str  #: how standard errors, intervals and p-values were made
    confidence_level: float  #: of the intervals; models are told apart at 1 minus this
    ranking: tuple[str, ...]  #: names of the models, best first
    models: tuple[ModelValue, ...]  #: in the order given
    differences: tuple[ModelDifference, ...]  #: all pairs, in the order given
    n_samples: int  #: n
    n_classes: int | None  #: m, of the induced problem if there is a lens; None for distributions
    positive_class: Any  #: of two classes the second, whose probability a single column is; else None, as with a lens
    prediction: str | None  #: the family of predicted distributions; None for class probabilities
    lens: str  #: the notion of calibration, one of `kcalib.lenses`
    kernel: str | None  #: the one kernel of all models, with its bandwidths as numbers; None without
    bandwidth: float | None  #: of the kernel on predictions, as a number; None where it has none, or several
    bandwidth_source: str | None  #: "given", or how the median heuristic found it; None without kernel
    target_kernel: str | None  #: "delta", or "matrix of rank r", or the kernel on targets; None without kernel
    target_factor: str | None  #: how its expectations under predicted distributions were found
    prediction_distances: str | None  #: how distances of predicted distributions were found
    regularization: float | None  #: lambda of the CKCE; None without
    n_columns: int | None  #: of random features of the kernel; None where all pairs were taken, or without kernel
    n_bins: int | None  #: bins of the confidence; None without
    n_resamples: int | None  #: replicates of the bootstrap; None without
    seed: int | None  #: of the bootstrap, of random features or of a subset of samples; None if nothing was random
    dtype: str | None  #: arithmetic of the sweep over pairs; None without
    backend: str | None  #: which backend computed the first model; None without kernel
    backend_reason: str | None  #: and why that one; by workers who computed how many tiles, of all models
    threads: int | None  #: threads used at most; None where no backend has any
    seconds: float = field(compare=False)  #: wall time

    def plot(self, ax: Any = None) -> Any:
        """Draw the value of each model with its interval, the best one above.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; by default the axes of a new figure that pyplot does not know.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.

        Raises
        ------
        ImportError
            If matplotlib is missing; ``pip install 'kcalib[plot]'``.
        """
        return laws.draw_intervals(self, ax)

    def model(self, name: str) -> ModelValue:
        """The model called `name`.

        Parameters
        ----------
        name : str
            A name from `ranking`.

        Returns
        -------
        ModelValue
            Its value, interval and rank.

        Raises
        ------
        KeyError
            If there is none of that name.
        """
        for entry in self.models:
            if entry.model == name:
                return entry
        raise KeyError(f"no model is called {name!r}, there are {', '.join(map(repr, self.ranking))}")

    def difference(self, first: str, second: str) -> ModelDifference:
        """The model called `first` minus the one called `second`.

        Parameters
        ----------
        first, second : str
            Two names from `ranking`, in any order.

        Returns
        -------
        ModelDifference
            The entry of `differences`, with the sign that the order asks for.

        Raises
        ------
        KeyError
            If there is no such pair.
        """
        for entry in self.differences:
            if (entry.first, entry.second) == (first, second):
                return entry
            if (entry.first, entry.second) == (second, first):
                return entry.swapped()
        raise KeyError(f"{first!r} and {second!r} are no pair of {', '.join(map(repr, self.ranking))}")

    def _summary(self) -> Summary:
        header, *rows = self._model_rows(self.ranking[:MOST_MODELS])
        title, *remarks = self.remarks()
        left = len(self.ranking) - len(rows)
        further = [f"and {left} more models"] if left else []
        return Summary(title, rows, MODEL_COLUMNS, header, (*further, *remarks))

    def model_lines(self) -> list[str]:
        """The models as lines of a table, best first."""
        return align(self._model_rows(self.ranking), MODEL_COLUMNS)

    def _model_rows(self, names: Sequence[str]) -> list[list[str]]:
        rows = [["rank", "model", self.metric, "std. error", self._level(), "not distinguishable from"]]
        for name in names:
            entry = self.model(name)
            rivals = ", ".join(entry.not_distinguishable_from) or "-"
            error, interval = f"{entry.standard_error:.2e}", _format_interval(entry.confidence_interval)
            rows.append([str(entry.rank), name, f"{entry.value:.4g}", error, interval, rivals])
        return rows

    def pair_lines(self) -> list[str]:
        """The pairs as lines of a table, better model first."""
        rows = [["better", "worse", "difference", self._level(), "p-value", "Holm", ""]]
        for first, second in itertools.combinations(self.ranking, 2):
            d = self.difference(first, second)
            note, interval = "" if d.distinguishable else "not distinguishable", _format_interval(d.confidence_interval)
            pvalues = (format_pvalue(d.pvalue), format_pvalue(d.pvalue_holm))
            rows.append([first, second, f"{d.difference:.3g}", interval, *pvalues, note])
        return align(rows, [True, True, False, True, False, False, True])

    def remarks(self) -> list[str]:
        """What was done, a line for each thing."""
        predicted = self.prediction if self.n_classes is None else f"{self.n_classes} classes"
        lines = [f"{self.metric}: {self.estimator}, {self.n_samples} samples, {predicted}"]
        if self.lens != str(Canonical()):
            lines.append(f"lens: {self.lens}")
        if self.kernel is not None:
            lines.append(f"kernel of all models: {self.kernel}; bandwidth: {self.bandwidth_source}")
        if self.regularization is not None:
            lines.append(f"regularization: {self.regularization:.6g}")
        lines.append(f"intervals: {self.intervals}, each by itself")
        lines.append(f"models are told apart at level {1 - self.confidence_level:.3g} over all pairs (Holm)")
        return lines

    def _level(self) -> str:
        return f"{100 * self.confidence_level:g} % interval"


def _format_interval(interval: ConfidenceInterval) -> str:
    return f"[{interval.low:.3g}, {interval.high:.3g}]"


@dataclass(frozen=True)
class CKCEResult(Computed):
    """An estimate of the conditional kernel calibration error.

    What a method does not have is None.
    """

    value: float  #: the estimate
    error_bound: float | None  #: of the absolute error of `value` against equation 7; None where there is none
    error_bound_kind: str  #: "certificate", "trace", "estimated", or why there is none
    method: str  #: how it was computed; never "auto"
    method_reason: str  #: why that way
    iterations: int | None  #: of conjugate gradients
    rank: int | None  #: columns of the low-rank factor, of the preconditioner with conjugate gradients
    n_features: int | None  #: random frequencies of each Gaussian term (fourier)
    memory: int  #: bytes of the largest arrays the method holds, beside the input
    regularization: float  #: lambda; n lambda is added to the diagonal of the kernel matrix
    tol: float | None  #: the relative error of `value` that was asked for (exact methods)
    kernel: str  #: the kernel with its bandwidths as numbers
    bandwidth: float | None  #: of the kernel on predictions, as a number; None where it has none, or several
    bandwidth_source: str  #: "given", or how the median heuristic found it
    target_kernel: str  #: "delta", or "matrix of rank r", or the kernel on targets
    target_factor: str | None  #: how its expectations under predicted distributions were found
    prediction_distances: str | None  #: how distances of predicted distributions were found
    n_samples: int  #: n
    n_classes: int | None  #: m, of the induced problem if there is a lens; None for distributions
    positive_class: Any  #: of two classes the second, whose probability a single column is; else None, as with a lens
    prediction: str | None  #: the family of predicted distributions; None for class probabilities
    lens: str  #: the notion of calibration, one of `kcalib.lenses`
    seed: int | None  #: of features, landmarks, pivots; None where nothing was random
    dtype: str  #: arithmetic of the kernel's entries; sums are always float64
    backend: str  #: which backend computed them
    backend_reason: str  #: and why that one
    threads: int | None  #: threads used at most; None where the array library decides
    seconds: float = field(compare=False)  #: wall time

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class KDEResult(Computed):
    """A calibration error by Dirichlet kernel densities."""

    value: float  #: the estimate
    norm: str  #: "l1" or "l2": p = 1 or 2 of CE_p^p
    bandwidth: float  #: of the Dirichlet kernel
    bandwidth_source: str  #: "given", or by which criterion it is the best
    log_likelihood: float  #: mean leave-one-out log-likelihood of the predictions with this bandwidth
    orientation: str  #: "training" or "query": whose density it is
    lens: str  #: the notion of calibration
    n_samples: int  #: n
    n_classes: int  #: m, through the lens
    dtype: str  #: arithmetic of the weights; sums are always float64
    threads: int | None  #: threads used at most; None on a GPU
    seconds: float = field(compare=False)  #: wall time

    def __float__(self) -> float:
        return self.value
