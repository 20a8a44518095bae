"""What a state of predicted distributions says: the results of samples in memory, from sums."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kcalib._backend.options import check_fraction
from kcalib._input.forecasts import Forecasts
from kcalib._packing import ForecastFeatures, pack
from kcalib._packing.packed import describe_equal_draws
from kcalib._packing.prediction_points import PredictionPoints, Vectors
from kcalib._packing.variance import finite_parts
from kcalib._pairs.dispatch import backend_for
from kcalib.distributions import Samples
from kcalib.distributions.counts import Counts
from kcalib.estimators import rms_bound
from kcalib.estimators.few_errors import few_of
from kcalib.estimators.forecasts.quantile_calibration import QuantileCalibration, check_band, curve_at, is_continuous
from kcalib.estimators.rms_bound import MeanEigenvalue
from kcalib.evaluation_results import INTERVAL, ForecastEvaluation
from kcalib.inference.adaptive.blocks import kernel_block
from kcalib.inference.adaptive.forecast_blocks import pit_blocks
from kcalib.inference.adaptive.method import Adaptive, rank_blocks
from kcalib.inference.verdict import check_tolerance, off_quantiles, off_spread
from kcalib.kernels import Kernel
from kcalib.laws import ChiSquareMixture
from kcalib.results import FewErrors
from kcalib.streaming._classes.kernel_results import KernelResults, StateResults, metrics_of
from kcalib.streaming._forecasts.accumulator import ForecastFeatureTotals, ForecastTotals
from kcalib.streaming._forecasts.options import ForecastOptions
from kcalib.streaming._forecasts.scores import ENDS, has_interval, levels_there_are, scores_there_are


@dataclass(frozen=True, eq=False)
class DistributionResults(KernelResults):
    """The SKCE of a state of predicted distributions."""

    totals: ForecastFeatureTotals
    options: ForecastOptions
    of_features = False  # the diameter of features of targets is unknown

    @cached_property
    def problem(self) -> ForecastFeatures:
        totals = self.totals
        packed = pack(totals.sample, totals.kernel, totals.target_kernel, threads=self.threads)
        points = PredictionPoints.of_rows(totals.sample.prediction, totals.kernel)
        machine = totals.machine
        is_of_counts = points.space == "wasserstein" and isinstance(totals.prediction, Counts)
        route = "2-Wasserstein, of means of quantile functions in cells" if is_of_counts else points.route
        packed = replace(packed, distances=route)
        vectors = Vectors(points.values, points.terms(totals.kernel))
        target_features = machine.target_features(totals.sample.prediction)
        return ForecastFeatures(
            totals.sample, packed, totals.map, self.options.seed, self.threads, vectors, target_features
        )

    def by_target_groups(self, squares: np.ndarray) -> list[np.ndarray]:
        groups = self.totals.machine.target_groups
        return [np.sum(squares[:, groups == group], axis=1) for group in range(groups.max() + 1)]

    def few_errors(self) -> FewErrors | None:
        """Return the bound for counts, by targets that are not among the most probable ones."""
        data, packed = self.totals.sample, self.problem.packed
        parts = finite_parts(data, packed)
        if parts is None or not isinstance(data.prediction, Counts):
            return None

        def expected() -> float:
            return sum(float(np.sum(law.parts[2])) for _, law in parts) / data.n

        seen = round(self.totals.scores["not_most_probable"])
        return few_of(seen, self.n, lambda: self.effective_events, expected, data, packed)

    def law(self, statistic: float) -> ChiSquareMixture:
        """Return the law; except for counts its shape comes from one draw of the targets, and its variance is known."""
        law = super().law(statistic)
        known = 2 * self.null_squares / (self.n - 1) ** 2
        if not (known > 0 and law.var > 0):
            return law
        scale = math.sqrt(known / law.var)
        weights, variance = scale * np.array(law.weights), scale**2 * law.normal_variance
        return ChiSquareMixture(weights, variance, degrees_of_freedom=law.degrees_of_freedom)

    def eigenvalue(self) -> MeanEigenvalue:
        packed = self.problem.packed
        return rms_bound.mean_eigenvalue(self.totals.sample, packed, backend_for(packed.problem, threads=self.threads))

    def null_fields(self) -> dict[str, Any]:
        """Return the fields of the adaptive test; PIT values of numbers have draws."""
        totals = self.totals
        if totals.prediction.event_shape:
            return super().null_fields()
        scores, has_law = totals.scores, not self.is_weighted and not isinstance(totals.prediction, Samples)
        blocks = pit_blocks(totals.pit_sums, scores["weight"], scores["weight_squared"], has_law=has_law)
        if totals.drawn is not None:
            assert totals.fine_total is not None and totals.fine_drawn is not None
            blocks.append(kernel_block("kernel", np.append(float(self.moments.total), totals.drawn)))
            blocks.append(kernel_block("fine kernel", np.append(totals.fine_total, totals.fine_drawn)))
        ranked = {
            "method": Adaptive.name,
            **rank_blocks(blocks, None, "draws of the targets from the predictions"),
        }
        return self.combine_with_law(ranked) if totals.drawn is None else ranked

    def target_sources(self) -> list[str]:
        rows, kernel = self.totals.target_rows, self.totals.target_kernel
        if rows is None:
            return []
        assert isinstance(kernel, Kernel)
        if rows < 0:
            return [describe_equal_draws()]
        return [f"on targets: median {metrics_of(kernel)} distance of one draw from each of the first {rows}"]


class ForecastResults(StateResults):
    """Results of a state of predicted distributions."""

    _RESULTS = DistributionResults

    @property
    @abstractmethod
    def options(self) -> ForecastOptions:
        """The options of the state."""

    @abstractmethod
    def _totals(self) -> ForecastFeatureTotals:
        """Return the sums of the state."""

    @abstractmethod
    def _score_totals(self) -> ForecastTotals:
        """Return the sums that need no kernel."""

    def result(self, *, level: float = 0.05, tolerance: float | None = None) -> ForecastEvaluation:
        """Return scores, calibration errors, the SKCE and a test of calibration, with a verdict.

        Parameters
        ----------
        level : float
            Level of the verdict, in (0, 1).
        tolerance : float, optional
            As in `kcalib.evaluate`.

        Returns
        -------
        ForecastEvaluation
            The result of `kcalib.evaluate` with ``estimator="features"`` and the test of `calibration_test`. With
            weights all means are weighted.

        Raises
        ------
        TypeError, ValueError
            If an argument is out of range; if the state has fewer than two samples; if `tolerance` is given and there
            is no lower bound of the error (with weights, fewer than four samples, or unbounded kernels).

        Warns
        -----
        AntiConservativeWarning
            As `calibration_test`.
        """
        check_fraction("level", level)
        check_tolerance(tolerance)
        totals = self._totals()
        measured = self._RESULTS.of(totals, self.options, self._threads).measured(level, tolerance)
        weight = totals.scores["weight"]
        means = {name: total / weight for name, total in totals.scores.items()}
        shown = {name: means[name] for name in scores_there_are(totals.prediction)}
        numbers = totals.prediction.n_dims == 1
        # The number of samples of equal weight whose means have the same variance.
        n = totals.n if not totals.n_weighted else weight**2 / totals.scores["weight_squared"]
        levels, has_ends = levels_there_are(totals.prediction), numbers and has_interval(totals.prediction)
        if numbers:
            ends = np.searchsorted(levels, ENDS - 1e-9)
            excess = float(totals.coverage[ends] @ [-1, 1]) / weight - INTERVAL if has_ends else 0.0
            shift = means["pit"] - 0.5
            verdict = measured.verdict(off_quantiles(n, shift, excess))
        else:
            gap, error = _spread(means, totals.n, n)
            verdict = measured.verdict(off_spread(gap, error))
        coverage = totals.coverage / weight
        return ForecastEvaluation(
            n_samples=totals.n,
            n_dims=totals.prediction.n_dims,
            prediction=type(totals.prediction).__name__,
            rmse=math.sqrt(shown["square_error"]),
            crps=shown["crps"],
            log_score=shown.get("log_score"),
            pinball_loss=shown.get("pinball_loss"),
            interval_coverage=means["covered"] if has_ends else None,
            interval_width=shown.get("interval_width"),
            pit_mean=means["pit"] if numbers else None,
            quantile_calibration_error=float(np.mean(np.abs(coverage - levels))) if numbers else None,
            fair=self.options.fair,
            pit_seed=self._pit_seed(totals),
            **measured.fields(),
            rms_distance_lower=None,
            verdict=verdict,
        )

    def quantile_calibration(
        self, *, confidence_level: float = 0.95, simultaneous: bool = False
    ) -> QuantileCalibration:
        """Return the quantile calibration curve at the levels 0.05, 0.1, ..., 0.95, see `kcalib.quantile_calibration`.

        Parameters
        ----------
        confidence_level, simultaneous
            As in `kcalib.quantile_calibration`.

        Returns
        -------
        QuantileCalibration
            The curve, with a method `plot`. Coverage is exact, because a state counts PIT values up to each of these
            levels. The histogram has the bins of the state.

        Raises
        ------
        TypeError, ValueError
            If an argument is out of range, if the state has no samples or weighted ones, or for predictions of vectors.

        Examples
        --------
        >>> import numpy as np, kcalib
        >>> from kcalib.distributions import Poisson
        >>> y, prediction = [0, 2, 1, 4], Poisson([1.0, 1.5, 2.0, 2.5])
        >>> state = kcalib.streaming.ForecastState().update(y, prediction)
        >>> state.quantile_calibration().error == kcalib.quantile_calibration(y, prediction, seed=0).error
        True
        """
        check_band(confidence_level, simultaneous)
        totals = self._score_totals()
        if totals.prediction.n_dims > 1:
            raise ValueError(
                f"the state has predictions of vectors of {totals.prediction.n_dims} entries, but quantiles need "
                "numbers; make a state for each entry"
            )
        if not totals.counts_alike:
            raise ValueError(f"the band of {totals.describe_samples()} is not known from a state; {totals.remedy()}")
        return curve_at(
            levels_there_are(totals.prediction),
            totals.coverage / totals.n,
            totals.histogram / totals.n,
            totals.n,
            confidence_level,
            simultaneous,
            self._pit_seed(totals),
        )

    def _pit_seed(self, totals: ForecastTotals) -> int | None:
        if totals.prediction.n_dims > 1:
            return None
        data = Forecasts(np.zeros((1, 1)), totals.prediction, None)
        return None if is_continuous(data) else self.options.seed


def _spread(means: dict[str, float], n: int, effective: float) -> tuple[float, float]:
    """Return how much squared errors exceed their variances on average, and the standard error."""
    if n < 2 or means["without_spread"] > 0:
        return 0.0, math.inf
    variance = max(0.0, means["standardised_squared"] - means["standardised"] ** 2)
    return means["standardised"] - 1, math.sqrt(variance / max(effective - 1, 1.0))
