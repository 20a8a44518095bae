"""Results of the public functions: a number, its uncertainty, and how it was computed.

Frozen dataclasses in the style of `scipy.stats`. They hold plain Python objects only, so they pickle, compare, and
convert to JSON (``dataclasses.asdict``).
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


MOST_MODELS = 6  # rows of a summary
MODEL_COLUMNS = [False, True, False, False, True, True]  # whether a column holds text


class ConfidenceInterval(NamedTuple):
    """Limits of a confidence interval."""

    low: float  #: lower limit
    high: float  #: upper limit


@dataclass(frozen=True, kw_only=True)
class Computed(Summarized):
    """Base class of results that name the version and machine; these do not count when results are compared."""

    version: str = field(default=__version__, repr=False, compare=False)  #: of kcalib
    machine: str = field(default_factory=machine, repr=False, compare=False)  #: system, architecture, instruction set


@dataclass(frozen=True)
class FewErrors(Summarized):
    r"""Largest SKCE of errors that the samples may have missed, for confident predictions with few observed errors.

    Suppose the target differs from the most probable class with probability :math:`v`, and the model predicts
    :math:`u` for it. Then the root of the SKCE is at most :math:`\sqrt{D} (u + v)`, where :math:`D` is the largest
    possible SKCE.
    """

    seen: int  #: samples whose target is not the most probable class
    expected: float  #: u, the mean predicted probability that it is not
    n_samples: int  #: number of samples
    largest: float  #: upper bound of D

    def upper_limit(self, tail: float) -> float:
        """Return an upper confidence limit of the SKCE, which the SKCE exceeds with probability `tail` at most.

        It uses the Clopper-Pearson limit of v; if no error was seen, that is 1 - tail^(1/n), about -log(tail) / n.
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
    null_standard_error: float | None  #: under calibration, given the predictions; "unbiased" only
    draws_standard_error: float | None  #: part due to draws from the predictions; None without draws
    features_standard_error: float | None  #: part of `standard_error` due to random features; None without
    estimator: str  #: "unbiased", "biased", "block", "biased_block", "linear" or "features"
    block_size: int | None  #: samples in a block, None without blocks
    n_columns: int | None  #: columns of random features, None without them
    seed: int | None  #: of random features, or of the order of samples in blocks; None if nothing was random
    n_samples: int  #: number of samples
    n_samples_used: int  #: number of samples used; block estimators drop those after the last full block
    n_classes: int | None  #: number of classes, induced ones with a lens; None for distributions
    positive_class: Any  #: the second of two classes, whose probability a single column is; else, and with a lens, None
    prediction: str | None  #: the family of predicted distributions; None for class probabilities
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    kernel: str  #: the kernel with its bandwidths as numbers
    bandwidth: float | None  #: bandwidth of the kernel on predictions; None if it has none or several
    bandwidth_source: str  #: "given", or how the median heuristic chose it
    target_kernel: str  #: "delta", or "matrix of rank r", or the kernel on targets
    target_factor: str | None  #: how its expectations under predicted distributions were computed
    prediction_distances: str | None  #: how distances between predicted distributions were computed
    dtype: str  #: arithmetic of kernel entries; sums are always float64
    backend: str  #: backend that computed it
    backend_reason: str  #: why this backend was chosen
    threads: int | None  #: largest number of threads used; None if the array library decides
    seconds: float = field(compare=False)  #: wall time

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class TestBlock(Summarized):
    """One of the statistics that the adaptive test combines."""

    __test__ = False  # pytest collects classes by their names

    name: str  #: "temperature", "bias", "classes", "top label", "kernel" or "fine kernel"; "given NAME"
    statistic: float  #: large for one kind of error
    pvalue: float  #: of this statistic alone, from its rank among the draws
    approximate_pvalue: float  #: by a gamma distribution with the moments of the draws; the test combines these
    finding: str  #: what a large value means, in words


@dataclass(frozen=True, kw_only=True)
class CalibrationTestResult(Computed):
    """Result of a test of the hypothesis that the model is calibrated.

    Fields that a method does not have are None.
    """

    _shown = (
        "pvalue", "finding", "estimate", "standard_error", "method", "null_law", "n_samples", "n_classes", "prediction",
        "lens", "kernel",
    )  # fmt: skip

    statistic: float  #: test statistic, defined by the method
    pvalue: float  #: probability of a statistic at least as large if the model is calibrated
    #: natural logarithm of the p-value, also if that underflows; minus infinity ("-Infinity" in JSON) if a calibrated
    #: model never has such labels
    log_pvalue: float
    estimate: float  #: of the calibration error that is tested
    standard_error: float | None = None  #: of the estimate
    null_standard_error: float | None = None  #: under calibration, given the predictions
    method: str  #: name of the test
    null_law: str  #: null distribution that the p-value is from
    #: "draws"; for p-values too small for draws "tilted draws", "law" or "bound" ("cme": "law"); None without draws
    pvalue_from: str | None = None
    blocks: tuple[TestBlock, ...] | None = None  #: the statistics that "adaptive" combines
    #: direction of the most significant of `blocks`, also if it is not significant: evidence only if `pvalue` is small
    finding: str | None = None
    #: draws of `statistic` under calibration, in float32: minimum, 39 quantiles, maximum; None without draws
    null_quantiles: tuple[float, ...] | None = field(default=None, repr=False)
    estimator: str  #: estimator of `estimate`
    n_samples: int  #: number of samples
    n_samples_used: int  #: number of samples used; block estimators drop those after the last full block
    n_classes: int | None = None  #: number of classes, induced ones with a lens; None for distributions
    #: the second of two classes, whose probability a single column is; else, and with a lens, None
    positive_class: Any = None
    prediction: str | None = None  #: the family of predicted distributions; None for class probabilities
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    block_size: int | None = None  #: samples in a block
    n_blocks: int | None = None  #: full blocks
    n_resamples: int | None = None  #: draws of the statistic under calibration
    n_eigenvalues: int | None = None  #: eigenvalues computed
    n_columns: int | None = None  #: columns of random features
    features_standard_error: float | None = None  #: part of `standard_error` due to random features
    features_freedom: float = N_GROUPS - 1.0  #: degrees of freedom of its estimate
    n_locations: int | None = None  #: test locations
    bound: float | None = None  #: largest possible size of an entry H_ij (distribution_free)
    kernel: str | None = None  #: the kernel with its bandwidths as numbers
    bandwidth: float | None = None  #: bandwidth of the kernel on predictions; None if it has none or several
    bandwidth_source: str | None = None  #: "given", or how the median heuristic chose it
    target_kernel: str | None = None  #: "delta", or "matrix of rank r", or the kernel on targets
    target_factor: str | None = None  #: how its expectations under predicted distributions were computed
    prediction_distances: str | None = None  #: how distances between predicted distributions were computed
    variance_slope: float | None = None  #: variance of the estimate over all pairs = slope * true value + constant
    variance_constant: float | None = None  #: constant of this variance
    few_errors: FewErrors | None = None  #: for upper limits if errors are rare; else None
    seed: int | None = None  #: of the permutation, draws, or locations; None if nothing was random
    dtype: str  #: arithmetic of kernel entries; sums are always float64
    backend: str | None = None  #: backend that computed it
    backend_reason: str | None = None  #: why this backend was chosen
    threads: int | None = None  #: largest number of threads used; None if the array library decides
    seconds: float = field(compare=False)  #: wall time

    def _brief(self) -> str:
        return f"p-value {format_pvalue(self.pvalue)}, {self.method}"

    def plot(self, ax: Any = None) -> Any:
        """Plot the null distribution of the statistic, from draws, and the observed statistic.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on. Default: axes of a new figure, which pyplot does not manage.

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
        """Return a confidence interval of the calibration error that `estimate` estimates.

        For an unbiased estimate over all pairs it is a score interval: it uses the variance at the limit, which is at
        least the variance under calibration given the predictions, and its lower limit corrects for skewness. For
        block estimates it uses Student's t distribution. Both are asymptotic. For confident predictions with few
        observed errors the upper limit also allows for errors that the samples may have missed (`FewErrors`). With
        ``method="distribution_free"`` the interval is Hoeffding's: wide, and valid for every n.

        The interval contains 0 unless the test rejects calibration at the level of the interval's lower tail: half of
        1 - `confidence_level` for two-sided intervals, else all of it.

        Parameters
        ----------
        confidence_level : float
            Confidence level, in (0, 1).
        alternative : {"two-sided", "less", "greater"}
            Two limits, an upper limit only, or a lower limit only.

        Returns
        -------
        ConfidenceInterval
            Interval with fields `low` and `high`.

        Raises
        ------
        ValueError
            If an argument is out of range, or if there is no interval: for the biased estimate, "cme", "consistency",
            and fewer than four samples.
        """
        check_fraction("confidence_level", confidence_level)
        check_choice("alternative", alternative, ("two-sided", "less", "greater"))
        low, high = self.limits((1 - confidence_level) / (2 if alternative == "two-sided" else 1))
        infinity = float("inf")
        return ConfidenceInterval(
            -infinity if alternative == "less" else low, infinity if alternative == "greater" else high
        )

    def limits(self, tail: float, *, of_features: bool = False) -> ConfidenceInterval:
        """Return the limits of `confidence_interval`, each of which excludes the true value with probability `tail`.

        With `of_features` the true value is that of the random-feature kernel instead of the given kernel.
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
        """Whether there is a confidence interval."""
        by_hoeffding = self.method == "distribution_free" and self.estimator != "biased SKCE"
        return by_hoeffding or self.standard_error is not None

    def _asymptotic_limits(self, error: float, tail: float, of_features: bool) -> tuple[float, float]:
        """Return asymptotic limits with probability `tail` on either side."""
        if self.variance_slope is not None and self.variance_constant is not None:
            quantile = -float(scipy.special.ndtri(tail))
            constant = self.variance_constant
            if self.features_standard_error is not None and not of_features:
                # The error comes from few groups, so it needs Student's t instead of the normal quantile.
                factor = float(scipy.special.stdtrit(self.features_freedom, tail)) / -quantile if quantile else 1.0
                constant += (factor * self.features_standard_error) ** 2
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
    """The unnormalized calibration mean embedding (UCME) statistic at its test locations."""

    value: float  #: mean of the squared differences
    differences: tuple[float, ...]  #: at each location, observed minus expected mean kernel value
    test_predictions: tuple[tuple[float, ...], ...] = field(repr=False)  #: the locations' probabilities
    test_labels: tuple[Any, ...]  #: the locations' labels, as in `y_true`
    seed: int | None  #: of the locations; None if they were given
    n_locations: int  #: number of locations J
    n_samples: int  #: number of samples
    n_classes: int | None  #: number of classes, induced ones with a lens; None for distributions
    positive_class: Any  #: the second of two classes, whose probability a single column is; else, and with a lens, None
    prediction: str | None  #: the family of predicted distributions; None for class probabilities
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    kernel: str  #: the kernel with its bandwidths as numbers
    bandwidth: float | None  #: bandwidth of the kernel on predictions; None if it has none or several
    bandwidth_source: str  #: "given", or how the median heuristic chose it
    target_kernel: str  #: "delta", or "matrix of rank r", or the kernel on targets
    target_factor: str | None  #: how its expectations under predicted distributions were computed
    prediction_distances: str | None  #: how distances between predicted distributions were computed
    dtype: str  #: arithmetic of kernel entries; sums are always float64
    backend: str  #: backend that computed it
    backend_reason: str  #: why this backend was chosen
    threads: int | None  #: largest number of threads used; None if the array library decides
    seconds: float = field(compare=False)  #: wall time

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class ModelValue(Summarized):
    """Value and rank of one of the models that `kcalib.compare` compared."""

    model: str  #: name of the model
    value: float  #: of the metric; lower is better
    standard_error: float  #: of the value
    confidence_interval: ConfidenceInterval  #: of the population value; not adjusted for the number of models
    rank: int  #: 1 for the lowest value; equal values have equal ranks
    not_distinguishable_from: tuple[str, ...]  #: models whose difference from this one is not significant, best first


@dataclass(frozen=True)
class ModelDifference(Summarized):
    """Difference of two models that `kcalib.compare` compared."""

    first: str  #: name of the first model
    second: str  #: name of the second model
    difference: float  #: first minus second value; negative if the first model is better
    standard_error: float  #: of the difference between paired samples
    confidence_interval: ConfidenceInterval  #: of the difference; not adjusted for the number of pairs
    pvalue: float  #: two-sided, for equal population values
    pvalue_holm: float  #: p-value adjusted for the number of pairs by Holm
    distinguishable: bool  #: whether the adjusted p-value is at most 1 - confidence_level

    def swapped(self) -> ModelDifference:
        """Return the difference of the second model minus the first."""
        low, high = self.confidence_interval
        interval = ConfidenceInterval(-high, -low)
        return replace(
            self, first=self.second, second=self.first, difference=-self.difference, confidence_interval=interval
        )


@dataclass(frozen=True)
class Comparison(Computed):
    """Comparison of models on the same samples; ``print`` shows a table of models, `pair_lines` makes one of pairs."""

    metric: str  #: "skce", "ckce", "ece", "brier_score", "log_loss", "crps" or "log_score"
    estimator: str  #: estimator of the metric
    intervals: str  #: how standard errors, intervals and p-values were computed
    confidence_level: float  #: of the intervals; 1 minus it is the level of `distinguishable`
    ranking: tuple[str, ...]  #: names of the models, best first
    models: tuple[ModelValue, ...]  #: in the order given
    differences: tuple[ModelDifference, ...]  #: all pairs, in the order given
    n_samples: int  #: number of samples
    n_classes: int | None  #: number of classes, induced ones with a lens; None for distributions
    positive_class: Any  #: the second of two classes, whose probability a single column is; else, and with a lens, None
    prediction: str | None  #: the family of predicted distributions; None for class probabilities
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    kernel: str | None  #: kernel of all models with its bandwidths as numbers; None without
    bandwidth: float | None  #: bandwidth of the kernel on predictions; None if it has none or several
    bandwidth_source: str | None  #: "given", or how the median heuristic chose it; None without kernel
    target_kernel: str | None  #: "delta", or "matrix of rank r", or the kernel on targets; None without kernel
    target_factor: str | None  #: how its expectations under predicted distributions were computed
    prediction_distances: str | None  #: how distances between predicted distributions were computed
    regularization: float | None  #: lambda of the CKCE; None without
    n_columns: int | None  #: columns of random features; None for sums over all pairs, or without kernel
    n_bins: int | None  #: bins of the confidence; None without
    n_resamples: int | None  #: replicates of the bootstrap; None without
    seed: int | None  #: of the bootstrap, of random features or of a subset of samples; None if nothing was random
    dtype: str | None  #: arithmetic of kernel entries; None without kernel
    backend: str | None  #: backend that computed the first model; None without kernel
    backend_reason: str | None  #: why it was chosen; with workers, how many tiles of all models each computed
    threads: int | None  #: largest number of threads used; None if no backend uses any
    seconds: float = field(compare=False)  #: wall time

    def plot(self, ax: Any = None) -> Any:
        """Plot the value of each model with its interval, best model on top.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on. Default: axes of a new figure, which pyplot does not manage.

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
        """Return the entry of the model called `name`.

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
            If no model has that name.
        """
        for entry in self.models:
            if entry.model == name:
                return entry
        raise KeyError(f"no model is called {name!r}, there are {', '.join(map(repr, self.ranking))}")

    def difference(self, first: str, second: str) -> ModelDifference:
        """Return the difference of the model called `first` minus the one called `second`.

        Parameters
        ----------
        first, second : str
            Names from `ranking`.

        Returns
        -------
        ModelDifference
            The entry of `differences` for this pair, with the sign of this order.

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
        """Return a table of the models as lines, best first."""
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
        """Return a table of all pairs as lines, better model first."""
        rows = [["better", "worse", "difference", self._level(), "p-value", "Holm", ""]]
        for first, second in itertools.combinations(self.ranking, 2):
            d = self.difference(first, second)
            note, interval = "" if d.distinguishable else "not distinguishable", _format_interval(d.confidence_interval)
            pvalues = (format_pvalue(d.pvalue), format_pvalue(d.pvalue_holm))
            rows.append([first, second, f"{d.difference:.3g}", interval, *pvalues, note])
        return align(rows, [True, True, False, True, False, False, True])

    def remarks(self) -> list[str]:
        """Return lines that say how the comparison was computed."""
        predicted = self.prediction if self.n_classes is None else f"{self.n_classes} classes"
        lines = [f"{self.metric}: {self.estimator}, {self.n_samples} samples, {predicted}"]
        if self.lens != str(Canonical()):
            lines.append(f"lens: {self.lens}")
        if self.kernel is not None:
            lines.append(f"kernel of all models: {self.kernel}; bandwidth: {self.bandwidth_source}")
        if self.regularization is not None:
            lines.append(f"regularization: {self.regularization:.6g}")
        lines.append(f"intervals: {self.intervals}, not adjusted")
        lines.append(f"models are distinguished at level {1 - self.confidence_level:.3g} over all pairs (Holm)")
        return lines

    def _level(self) -> str:
        return f"{100 * self.confidence_level:g} % interval"


def _format_interval(interval: ConfidenceInterval) -> str:
    return f"[{interval.low:.3g}, {interval.high:.3g}]"


@dataclass(frozen=True)
class CKCEResult(Computed):
    """An estimate of the conditional kernel calibration error (CKCE).

    Fields that a method does not have are None.
    """

    value: float  #: the estimate
    error_bound: float | None  #: of the absolute error of `value` against equation 7 of the CKCE paper; None if unknown
    error_bound_kind: str  #: "certificate", "trace", "estimated", or why there is none
    method: str  #: method that was used; never "auto"
    method_reason: str  #: why this method was chosen
    iterations: int | None  #: of conjugate gradients
    rank: int | None  #: columns of the low-rank factor; with conjugate gradients those of the preconditioner
    n_features: int | None  #: random frequencies of each Gaussian term (fourier)
    memory: int  #: bytes of the largest arrays of the method, without the input
    regularization: float  #: lambda; n lambda is added to the diagonal of the kernel matrix
    tol: float | None  #: requested relative error of `value` (exact methods)
    kernel: str  #: the kernel with its bandwidths as numbers
    bandwidth: float | None  #: bandwidth of the kernel on predictions; None if it has none or several
    bandwidth_source: str  #: "given", or how the median heuristic chose it
    target_kernel: str  #: "delta", or "matrix of rank r", or the kernel on targets
    target_factor: str | None  #: how its expectations under predicted distributions were computed
    prediction_distances: str | None  #: how distances between predicted distributions were computed
    n_samples: int  #: number of samples
    n_classes: int | None  #: number of classes, induced ones with a lens; None for distributions
    positive_class: Any  #: the second of two classes, whose probability a single column is; else, and with a lens, None
    prediction: str | None  #: the family of predicted distributions; None for class probabilities
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    seed: int | None  #: of features, landmarks, pivots; None if nothing was random
    dtype: str  #: arithmetic of kernel entries; sums are always float64
    backend: str  #: backend that computed them
    backend_reason: str  #: why this backend was chosen
    threads: int | None  #: largest number of threads used; None if the array library decides
    seconds: float = field(compare=False)  #: wall time

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class KDEResult(Computed):
    """An estimate of the calibration error by Dirichlet kernel densities."""

    value: float  #: the estimate
    norm: str  #: "l1" or "l2": p = 1 or 2 of CE_p^p
    bandwidth: float  #: of the Dirichlet kernel
    bandwidth_source: str  #: "given", or the criterion that chose it
    log_likelihood: float  #: mean leave-one-out log-likelihood of the predictions with this bandwidth
    orientation: str  #: "training" or "query": point whose Dirichlet density is used
    lens: str  #: notion of calibration
    n_samples: int  #: number of samples
    n_classes: int  #: number of classes, induced ones with a lens
    dtype: str  #: arithmetic of the weights; sums are always float64
    threads: int | None  #: largest number of threads used; None on a GPU
    seconds: float = field(compare=False)  #: wall time

    def __float__(self) -> float:
        return self.value
