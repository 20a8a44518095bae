r"""The SKCE of a state: estimate, test, and bound of the error, as with random features in memory.

The test of class probabilities is the adaptive one, from sums of labels in cells and of two kernels.

Estimates are exact for the kernel of the features, as is the null distribution of drawn labels. The variance of row
sums, the limit law and the eigenvalue come from the sample of rows that the state keeps. Sums over all rows are known,
:math:`\sum_i |\varphi_i|^2 |e_i|^2` and its expectation under calibration. They scale the results of the sample; the
part that the sample lacks (`_lacking`) counts as if it were in one row or one direction, the worst case. While all rows
are in the sample, everything is as in memory.
"""

from __future__ import annotations

import functools
import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import numpy as np

from kcalib._packing import pack
from kcalib._packing.features import FeatureProblem, LabelFeatures
from kcalib._packing.packed import describe_any_bandwidth
from kcalib._pairs import statistics
from kcalib._pairs.feature_sums import feature_rows, row_forms
from kcalib._pairs.statistics import Spread
from kcalib.estimators import rms_bound
from kcalib.estimators.feature_moments import FeatureMoments, null_squares_of, sum_of_squares_of
from kcalib.estimators.few_errors import few_of
from kcalib.estimators.rms_bound import MeanEigenvalue, NoBoundError
from kcalib.inference import events
from kcalib.inference.adaptive import Adaptive
from kcalib.inference.adaptive.blocks import KERNEL_FINDING, Words, kernel_block, label_blocks, map_bound, score_tail
from kcalib.inference.adaptive.flips import FlippedBlocks
from kcalib.inference.adaptive.method import rank_blocks
from kcalib.inference.conditional_spectrum import make_feature_matrix
from kcalib.inference.features import Features, law_of_draws
from kcalib.inference.quadratic import NullLaw, degenerate
from kcalib.inference.spectrum import limit_law
from kcalib.inference.tail import FEWEST_DRAWS
from kcalib.inference.verdict import ErrorBound, Measured, bound_or_none
from kcalib.kernels import Kernel
from kcalib.laws import ChiSquareMixture
from kcalib.results import CalibrationTestResult, FewErrors, SKCEResult, TestBlock
from kcalib.streaming._classes.totals import FeatureTotals, Totals
from kcalib.streaming._options import SharedOptions, StateOptions

ERRORS = 2.0  # standard errors that a sum of the sample may lack by chance


@dataclass(frozen=True, eq=False)
class KernelResults(ABC):
    """Results for the totals of a state."""

    totals: FeatureTotals
    options: SharedOptions
    threads: int | None

    @classmethod
    def of(cls, totals: Any, options: Any, threads: int | None) -> Self:
        """Return results of at least two samples of positive weight."""
        results = cls(totals, options, threads)
        if totals.n < 2 or not results.pairs > 0:
            which = "" if totals.n < 2 else " of positive weight"
            raise ValueError(f"the SKCE needs at least 2 samples{which}, and there is 1; add more")
        return results

    @property
    def n(self) -> int:
        return self.totals.n

    @property
    def is_weighted(self) -> bool:
        return self.totals.n_weighted > 0

    @property
    def counts_alike(self) -> bool:
        """Whether samples are independent and have weight 1."""
        return self.totals.counts_alike

    @cached_property
    def pairs(self) -> float:
        """sum_{i != j} w_i w_j."""
        scores = self.totals.scores
        return scores["weight"] ** 2 - scores["weight_squared"] if self.is_weighted else float(self.n * (self.n - 1))

    @cached_property
    @abstractmethod
    def problem(self) -> FeatureProblem:
        """The problem of the sample of rows, with the feature map of the state."""

    @abstractmethod
    def few_errors(self) -> FewErrors | None:
        """Return the basis of upper limits if errors are rare."""

    @abstractmethod
    def eigenvalue(self) -> MeanEigenvalue:
        """Return the largest eigenvalue of the kernel, for the bound of the error."""

    def target_sources(self) -> list[str]:
        """Return where a missing bandwidth of the target kernel comes from."""
        return []

    of_features: ClassVar[bool]  # whether it is that of the feature kernel

    @property
    def scale(self) -> float:
        """Number of rows that a row of the sample represents."""
        return self.n / self.totals.sample.n

    @cached_property
    def moments(self) -> FeatureMoments:
        """Total, trace, and totals of the groups of features."""
        totals = self.totals
        squares = np.zeros((totals.map.n_groups, totals.own.shape[1]))
        groups = np.tile(totals.map.groups, 2)
        for column, sums in enumerate(self.by_target_groups(totals.sums**2)):
            np.add.at(squares[:, column], groups, sums)
        pair_sums = squares - totals.own
        total, trace = float(np.sum(pair_sums)), float(np.sum(totals.own))
        by_features = pair_sums.shape[0] * np.sum(pair_sums, axis=1)
        by_targets = pair_sums.shape[1] * np.sum(pair_sums, axis=0)
        return FeatureMoments(total, None, None, None, None, trace, by_features, by_targets, None)

    def by_target_groups(self, squares: np.ndarray) -> list[np.ndarray]:
        """Return sums over the columns of each independent group of target features."""
        return [np.sum(squares, axis=1)]

    @property
    def estimate(self) -> float:
        """The estimate; for samples in clusters over pairs of different clusters."""
        flipped = self.totals.cluster_blocks
        return float(self.moments.total) / self.pairs if flipped is None else flipped.estimate

    @property
    def features_error(self) -> float:
        return self.moments.total_error / self.pairs

    @cached_property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """For the sample: sums of H over the other rows, and H_ii, shape (rows,)."""
        problem = self.problem
        forms, own = row_forms(
            problem.map, problem.points, problem.target_features, self.totals.sums, threads=self.threads
        )
        return forms - own, own

    @cached_property
    def lacking(self) -> float:
        """The part of sum_i H_ii that the sample does not represent."""
        trace = float(self.moments.trace or 0.0)
        return trace * _lacking(self.rows[1], trace, self.n)

    @property
    def unseen(self) -> float:
        """Upper bound of their part in the sum of squared row sums, each at most |S|^2 H_ii."""
        return max(0.0, float(self.moments.total) + float(self.moments.trace or 0.0)) * self.lacking

    @cached_property
    def spread(self) -> Spread:
        """Spread of all rows, estimated from the sample; unweighted rows, at least four."""
        rows, own = self.rows
        n, total, trace = self.n, float(self.moments.total), float(self.moments.trace or 0.0)
        plug_in, unseen = (total + trace) / n**2, self.unseen
        deviations = sum_about_mean(rows, n)
        scores = sum_about_mean((rows + own) / n, n) + n * plug_in**2 + unseen / n**2
        count = len(rows)
        observed = sum_of_squares_of(self.problem, own) * n * (n - 1) / (count * (count - 1)) + self.lacking**2
        squares = max(observed, self.null_squares)
        return Spread(n, total, plug_in, squares, deviations + total**2 / n + unseen, deviations + unseen, scores)

    @cached_property
    def null_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """For the sample under calibration given the predictions: E H_ii, E |a_i|^2 and E |a_i|^4, weighted."""
        weight = self.totals.sample.sample_weight
        squares, fourths = self.problem.null_powers()
        if weight is not None:
            squares, fourths = weight**2 * squares, weight**4 * fourths
        norms = np.sum(feature_rows(self.problem.map, self.problem.points) ** 2, axis=1)
        return norms * squares, np.stack([squares, fourths])

    @property
    def null_ratio(self) -> float:
        """E sum H_ii of all rows over that of the sample; 1 if it has all rows, infinite if it has 0."""
        sampled = self.scale * float(np.sum(self.null_rows[0]))
        if self.scale == 1.0:
            return 1.0
        return self.totals.null_own / sampled if sampled > 0 else math.inf

    @property
    def effective_events(self) -> float:
        """Number of events that the null distribution rests on, see `null_moments.effective_events`."""
        own, (squares, fourths) = self.null_rows
        lacking = _lacking(own, self.totals.null_own, self.n)
        sampled = self.scale * float(np.sum(squares)) ** 2 / float(np.sum(fourths)) if np.any(fourths > 0) else 0.0
        share = (1 - lacking) ** 2 / sampled if sampled > 0 else 0.0
        return 1 / (share + lacking**2) if share + lacking > 0 else 0.0

    @cached_property
    def null_squares(self) -> float:
        """E sum_{i != j} H_ij^2 under calibration given the predictions."""
        if self.totals.drawn is not None and len(self.totals.drawn) >= FEWEST_DRAWS:
            return float(np.mean(self.totals.drawn**2)) / 2
        ratio, count = self.null_ratio, self.totals.sample.n
        if not math.isfinite(ratio) or self.is_weighted:
            return self.totals.null_own**2  # no law has a larger one
        return null_squares_of(self.problem) * ratio**2 * self.n * (self.n - 1) / (count * (count - 1))

    def law(self, statistic: float) -> ChiSquareMixture:
        """Return the limit law of n SKCE, not centred: shape from the sample, sum of eigenvalues from all rows."""
        ratio = self.null_ratio
        implicit = make_feature_matrix(self.problem, self.n)
        if not math.isfinite(ratio) or implicit.squares == 0:
            return ChiSquareMixture(np.array([self.totals.null_own / (self.n - 1)]))
        return limit_law(
            replace(
                implicit,
                scale=implicit.scale / ratio,
                squares=implicit.squares * ratio**2,
                stored=lambda: ratio * implicit.stored(),
            ),
            statistic,
        )

    def null_law(self) -> NullLaw:
        """Return the p-value of the total."""
        total, n, drawn = float(self.moments.total), self.n, self.totals.drawn
        if drawn is not None:
            description = (
                f"{len(drawn)} draws of the {self.problem.targets} from the predictions, with "
                f"{self.totals.map.n_columns} features"
            )
            return law_of_draws(
                total,
                float(self.moments.trace or 0.0),
                n,
                drawn,
                description,
                events=lambda: self.effective_events,
                law=lambda statistic: self.law(statistic) if self.totals.null_own > 0 else None,
            )
        if not self.totals.null_own > 0:
            return degenerate(total)
        remedy = (
            "make the state with n_resamples=199, or of a source pass method=kcalib.methods.Adaptive(n_resamples=199): "
            f"draws of the {self.problem.targets} hold for any number"
        )
        events.warn_of(self.effective_events, "the test of a state without draws", events.SAMPLED, remedy)
        statistic = total / (n - 1)
        law = self.law(statistic)
        description = f"the limit law of many samples given the predictions, from {self.totals.sample.n} of them"
        return NullLaw(float(law.logsf(statistic + law.mean)), description, pvalue_from="law")

    def described(self) -> dict[str, Any]:
        """Return the fields of results on how they were computed."""
        rows, fields = self.totals.bandwidth_rows, self.problem.described()
        sources = (
            [] if rows is None else [f"median {metrics_of(self.totals.kernel)} distance of the first {rows} samples"]
        )
        if rows is not None and rows < 0:
            sources = [
                describe_any_bandwidth()
                if -rows == self.n
                else f"no median: the first {-rows} predictions are identical"
            ]
        sources += self.target_sources()
        fields["bandwidth_source"] = "; ".join(sources) or "given"
        return fields | {
            "backend_reason": f"sums of {self.totals.map.n_columns} features of the kernel, which a state adds up",
            "dtype": "float64",
            "n_samples": self.n,
            "n_samples_used": self.n,
            "seed": self.options.seed,
        }

    def errors(self) -> dict[str, Any]:
        """Return standard errors of the estimate; those of samples are None below four, and with weights."""
        spread = self.spread if self.n >= 4 and self.counts_alike else None
        of_samples = None if spread is None else spread.standard_error(self.null_squares)
        null_error = None if not self.counts_alike else statistics.null_standard_error(self.null_squares, self.n)
        return {
            "standard_error": None if of_samples is None else math.hypot(of_samples, self.features_error),
            "null_standard_error": null_error,
            "features_standard_error": None if self.totals.has_clusters else self.features_error,
        }

    def skce(self) -> SKCEResult:
        start = time.perf_counter()
        return SKCEResult(
            value=self.estimate,
            **self.errors(),
            draws_standard_error=None,
            estimator="features",
            block_size=None,
            **self.described(),
            seconds=time.perf_counter() - start,
        )

    def null_fields(self) -> dict[str, Any]:
        """Return the fields of the test about its statistic and p-value."""
        law = self.null_law()
        return {
            "method": Features.name,
            "statistic": float(self.moments.total) / (self.n - 1),
            "log_pvalue": law.log_pvalue,
            "pvalue": math.exp(law.log_pvalue) if law.pvalue is None else law.pvalue,
            "null_law": law.description,
            "pvalue_from": law.pvalue_from,
            "null_quantiles": law.quantiles,
            "n_resamples": law.n_resamples,
        }

    def make_cluster_fields(self, flipped: FlippedBlocks) -> dict[str, Any]:
        """Return the fields of the test for samples in clusters."""
        data = self.problem.data
        bandwidth = self.problem.packed.bandwidth if data.has_classes else None
        has_event = data.has_classes and Words.of(cast("Any", data)).has_event
        ranked = rank_blocks(flipped.blocks, bandwidth, *flipped.describe(), has_event=has_event)
        return {"method": Adaptive.name, **ranked}

    def combine_with_law(self, ranked: dict[str, Any]) -> dict[str, Any]:
        """Combine the fields with a kernel block without draws, by Bonferroni's inequality."""
        law = self.null_law()
        pvalue = math.exp(law.log_pvalue) if law.pvalue is None else law.pvalue
        total = float(self.moments.total)
        kernel = TestBlock(
            name="kernel", statistic=total, pvalue=pvalue, approximate_pvalue=pvalue, finding=KERNEL_FINDING
        )
        n_blocks = len(ranked["blocks"]) + 1
        log_ranked = ranked["log_pvalue"] - math.log1p(-1 / n_blocks)
        log_kernel = law.log_pvalue + math.log(n_blocks)
        log_pvalue = min(0.0, log_ranked, log_kernel)
        fields = {
            "log_pvalue": log_pvalue,
            "pvalue": math.exp(log_pvalue),
            "null_law": (
                f"{ranked['null_law']}, at {n_blocks - 1} of {n_blocks} parts of the level; the kernel has no draws in "
                f"this state, and at the last part {law.description}"
            ),
            "blocks": (*ranked["blocks"], kernel),
        }
        if log_kernel < log_ranked:
            fields |= {"pvalue_from": law.pvalue_from, "finding": KERNEL_FINDING}
        return ranked | fields

    def test(self) -> CalibrationTestResult:
        start, flipped = time.perf_counter(), self.totals.cluster_blocks
        fields = self.null_fields() if flipped is None else self.make_cluster_fields(flipped)
        variance = None
        if self.n >= 4 and self.counts_alike:
            variance = self.spread.score_variance(self.null_squares)
        return CalibrationTestResult(
            **fields,
            estimate=self.estimate,
            **self.errors(),
            features_freedom=math.inf if self.totals.has_clusters else self.moments.error_freedom,
            variance_slope=None if variance is None else variance.slope,
            variance_constant=None if variance is None else variance.constant,
            few_errors=self.few_errors() if self.n >= 4 and self.counts_alike else None,
            estimator="unbiased SKCE of random features"
            + (", pairs of different clusters" if self.totals.has_clusters else ""),
            **self.described(),
            seconds=time.perf_counter() - start,
        )

    def measured(self, level: float, tolerance: float | None) -> Measured:
        """Return estimate, test, and confidence bounds of the error."""
        test = self.test()
        bound = bound_or_none(lambda: self._bound(test, level), tolerance, "leave it out")
        return Measured(self.skce(), test, bound, level, tolerance)

    def _bound(self, test: CalibrationTestResult, level: float) -> ErrorBound:
        if not test.has_interval:
            what = f"{self.n} samples" if self.counts_alike else self.totals.describe_samples()
            raise NoBoundError(f"{what} have no confidence interval of the SKCE")
        diameter = rms_bound.squared_diameter(self.totals.sample, self.problem.packed)
        return ErrorBound.of(test, self.eigenvalue(), diameter, level, of_features=self.of_features)


class StateResults(ABC):
    """Base class of results of states of every kind."""

    _RESULTS: ClassVar[type[KernelResults]]
    _threads: int | None

    @property
    @abstractmethod
    def options(self) -> SharedOptions:
        """The options of the state."""

    @abstractmethod
    def _totals(self) -> FeatureTotals:
        """Return the sums of the state as plain numbers."""

    def _kernel_results(self) -> KernelResults:
        return self._RESULTS.of(self._totals(), self.options, self._threads)

    def skce(self) -> SKCEResult:
        """Return the squared kernel calibration error.

        Returns
        -------
        SKCEResult
            The result of ``kcalib.skce(..., estimator="features")``: exact for the kernels of the features, unbiased
            for the given kernels. The variance over samples comes from the rows that the state keeps, and is at least
            what the predictions imply. With weights there is no standard error.

        Raises
        ------
        ValueError
            If the state has fewer than two samples of positive weight.

        Examples
        --------
        >>> import kcalib
        >>> y, p = [0, 1, 1, 0, 1], [0.2, 0.3, 0.7, 0.6, 0.9]
        >>> kernel = kcalib.kernels.Exponential(0.5)
        >>> state = kcalib.streaming.CalibrationState(2, kernel=kernel, n_columns=64).update(y, p)
        >>> value = kcalib.skce(y, p, kernel=kernel, estimator=kcalib.methods.FeatureEstimator(64))
        >>> abs(state.skce().value - value) < 1e-15
        True
        """
        return self._kernel_results().skce()

    def calibration_test(self) -> CalibrationTestResult:
        """Test the hypothesis that the model is calibrated.

        Returns
        -------
        CalibrationTestResult
            For class probabilities the result of `kcalib.methods.Adaptive`, exact for every number of samples. The
            p-value is that of the samples in memory if it is at least 1 / (1 + n_resamples) and rows are numbered from
            0 on. Below, it is slightly larger, since the bound of the temperature uses fixed tilts. If the sums of all
            draws are too large for the state (see `n_resamples`), the kernel has a fifth of the level, and its p-value
            comes from the limit law; ``null_law`` says so. For predicted numbers the same by their PIT values, which
            always have draws; for vectors the result of ``method="features"``. Without draws of labels or vectors the
            p-value comes from the limit law of the SKCE given the predictions, with its shape from the rows that the
            state keeps and its scale from all rows. With weights, which must not depend on the labels, the p-value is
            at least 1 / (1 + n_resamples).

        Raises
        ------
        ValueError
            If the state has fewer than two samples of positive weight.

        Warns
        -----
        AntiConservativeWarning
            If a kernel has no draws and the predictions leave too few uncertain events for the limit law.

        Examples
        --------
        >>> import numpy as np, kcalib
        >>> rng = np.random.default_rng(1)
        >>> p = rng.dirichlet([1, 1, 1], size=500)
        >>> y = (p.cumsum(axis=1) < rng.uniform(size=(500, 1))).sum(axis=1)
        >>> kernel = kcalib.kernels.Exponential(0.5)
        >>> state = kcalib.streaming.CalibrationState(3, kernel=kernel, n_columns=64, seed=3).update(y, p)
        >>> method = kcalib.methods.Adaptive(n_resamples=199, n_columns=64)
        >>> test = kcalib.calibration_test(y, p, kernel=kernel, method=method, seed=3)
        >>> state.calibration_test().pvalue == test.pvalue
        True
        """
        return self._kernel_results().test()


class LabelResults(KernelResults):
    """Results of a state of class probabilities."""

    totals: Totals
    options: StateOptions
    of_features = True

    @cached_property
    def problem(self) -> LabelFeatures:
        totals, target = self.totals, self.options.target_kernel
        matrix = np.array(target) if isinstance(target, tuple) else target
        packed = pack(totals.sample, totals.kernel, matrix, threads=self.threads)
        return LabelFeatures(totals.sample, packed, totals.map, self.options.seed, self.threads)

    def null_fields(self) -> dict[str, Any]:
        """Return the fields of the adaptive test, if labels were drawn."""
        totals = self.totals
        if totals.labels is None:
            return super().null_fields()
        assert totals.drawn_cells is not None and totals.temperatures is not None
        tail = functools.partial(score_tail, totals.temperatures, n_classes=totals.sample.m)
        square = self.n / totals.scores["weight_squared"]  # makes the mean square of weights 1
        bounded = None if self.is_weighted else tail
        blocks = label_blocks(
            totals.labels, totals.drawn_cells, self.n, Words.of(totals.sample), bounded, math.sqrt(square)
        )
        blocks += [
            kernel_block(name, square * statistics)
            for name, statistics in zip(("kernel", "fine kernel"), totals.kernel_statistics, strict=False)
        ]
        ranked = {
            "method": Adaptive.name,
            **rank_blocks(
                blocks,
                self.problem.packed.bandwidth,
                "draws of the labels from the predictions",
                has_event=Words.of(totals.sample).has_event,
            ),
        }
        return ranked if totals.kernel_statistics else self.combine_with_law(ranked)

    def _bound(self, test: CalibrationTestResult, level: float) -> ErrorBound:
        temperatures = self.totals.temperatures
        if temperatures is None or not self.counts_alike or not test.pvalue < level:
            return super()._bound(test, level)
        bound, of_maps = super()._bound(test, level / 2), map_bound(temperatures, self.n, level / 2)
        if bound.rms_error_lower >= of_maps:
            return bound
        return replace(bound, rms_error_lower=of_maps, rms_error_from="temperature map")

    def few_errors(self) -> FewErrors | None:
        scores = self.totals.scores
        return few_of(
            round(self.n - scores["correct"]),
            self.n,
            lambda: self.effective_events,
            lambda: max(0.0, self.n - scores["confidence"]) / self.n,
            self.problem.data,
            self.problem.packed,
        )

    def eigenvalue(self) -> MeanEigenvalue:
        return rms_bound.feature_eigenvalue(self.problem)


def metrics_of(kernel: Kernel) -> str:
    return " and ".join(dict.fromkeys(str(factor.metric) for factor in kernel.factors()))


def sum_about_mean(values: np.ndarray, n: int) -> float:
    """Return an unbiased estimate of the sum of squared deviations of n numbers, given a sample of them."""
    count = len(values)
    return float(np.var(values, ddof=1)) * (n - 1) if count > 1 else 0.0


def _lacking(values: np.ndarray, total: float, n: int) -> float:
    """Return the share of the total, in [0, 1], that the sample lacks beyond what chance explains."""
    count = len(values)
    if count == n or not total > 0:
        return 0.0
    sampled = n / count * float(np.sum(values))
    error = n * float(np.std(values, ddof=1)) / math.sqrt(count)
    return min(1.0, max(0.0, 1 - (sampled + ERRORS * error) / total))
