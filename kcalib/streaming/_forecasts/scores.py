"""Sums of scores of predicted distributions, block by block, without a kernel.

The rows of a block are summed in float64 in a fixed order, and blocks are added exactly; scores, which have the units
of the targets, by `WideSums`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.sums import Sums, WideSums
from kcalib._input.forecasts import Forecasts
from kcalib.distributions import Distribution, NegativeBinomial, Quantiles
from kcalib.distributions.wrappers import Wrapper
from kcalib.estimators.forecasts.crps import crps_values
from kcalib.estimators.forecasts.quantile_calibration import pit_at, pit_uniforms
from kcalib.estimators.forecasts.quantities import LEVELS, has_density, means_of, quantiles_of
from kcalib.estimators.forecasts.scores import log_score_values, pinball_values
from kcalib.evaluation_results import INTERVAL
from kcalib.inference.adaptive.forecast_blocks import N_SUMS, drawn_pit_values, sum_pit_values
from kcalib.streaming._forecasts.options import ForecastOptions

ENDS = np.array([(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])  # of the reported interval
# Times the row's weight. Of vectors the last two: the mean square of standardised errors, and the square of that.
WIDE = ("square_error", "crps", "log_score", "pinball_loss", "interval_width", "standardised", "standardised_squared")
DRAWS_AT_ONCE = 2**8
# Between 0 and 1; of counts whether it is another one than the most probable, of vectors whether an entry is certain.
SHARES = ("pit", "covered", "not_most_probable", "without_spread")


@dataclass(frozen=True, eq=False)
class ForecastScores(Sums):
    """Sums over rows."""

    _stored: ClassVar = {"wide": "scores"}

    wide: WideSums  # in the order of `WIDE`
    shares: ExactSums  # in the order of `SHARES`
    coverage: ExactSums  # of PIT values up to each of `levels_there_are`
    histogram: ExactSums  # of PIT values in bins of equal width
    pit_sums: ExactSums  # of the adaptive test's blocks: of observed targets, then of each draw; none of vectors

    @classmethod
    def zeros(cls, options: ForecastOptions) -> ForecastScores:
        n_levels = len(levels_there_are(options.family.row))
        shares, coverage, histogram = (ExactSums.zeros(size) for size in (len(SHARES), n_levels, options.n_bins))
        n_sets = 1 + options.n_pit_draws if options.n_pit_draws else 0
        pit_sums = ExactSums.zeros(n_sets, N_SUMS)
        return cls(WideSums.zeros(len(WIDE)), shares, coverage, histogram, pit_sums)


def scores_of_block(
    data: Forecasts, weights: np.ndarray, numbers: np.ndarray, options: ForecastOptions
) -> ForecastScores:
    """Return the sums of the rows of a block, with these numbers."""
    errors = data.y - means_of(data)
    values = {"square_error": np.mean(errors * errors, axis=1), "crps": crps_values(data, fair=options.fair)}
    shares: dict[str, np.ndarray] = {}
    levels = levels_there_are(data.prediction)
    coverage, histogram = np.zeros(len(levels)), np.zeros(options.n_bins)
    pit_sums = [np.empty((0, N_SUMS))]
    if has_density(data.prediction):
        values["log_score"] = log_score_values(data)
    if data.n_dims == 1:
        pit = pit_at(data, pit_uniforms(options.seed, numbers))
        values["pinball_loss"], shares["pit"] = pinball_values(data, levels), pit
        if has_interval(data.prediction):
            limits, y = quantiles_of(data, ENDS), data.y[:, 0]
            values["interval_width"] = limits[:, 1] - limits[:, 0]
            shares["covered"] = ((y >= limits[:, 0]) & (y <= limits[:, 1])).astype(np.float64)
        if data.prediction.support == "count":
            shares["not_most_probable"] = (data.y[:, 0] != most_probable(data.prediction)).astype(np.float64)
        coverage = weights @ (pit[:, None] <= levels)
        histogram = np.histogram(pit, options.n_bins, (0, 1), weights=weights)[0]
        if options.n_pit_draws:
            pit_sums.append(sum_pit_values(pit[None, :], weights))
        for first in range(0, options.n_pit_draws, DRAWS_AT_ONCE):
            replicates = range(first, min(first + DRAWS_AT_ONCE, options.n_pit_draws))
            pit_sums.append(sum_pit_values(drawn_pit_values(data, numbers, options.seed, replicates), weights))
    else:
        spread = np.asarray(data.prediction.standard_deviation(), dtype=np.float64)
        none = np.any(spread <= 0, axis=1)
        squares = np.mean((errors / np.where(spread > 0, spread, 1.0)) ** 2, axis=1)
        values |= {"standardised": squares, "standardised_squared": squares * squares}
        shares = {"without_spread": none.astype(np.float64)}
    return ForecastScores(
        WideSums.of(_weighted(values, WIDE, weights)),
        ExactSums.of(_weighted(shares, SHARES, weights)),
        ExactSums.of(coverage),
        ExactSums.of(histogram),
        ExactSums.of(np.concatenate(pit_sums)),
    )


def _weighted(values: Mapping[str, np.ndarray], names: tuple[str, ...], weights: np.ndarray) -> np.ndarray:
    """Return sums over rows, 0 for missing scores; a score may be infinite."""
    used = weights > 0
    return np.array([np.sum(values[name][used] * weights[used]) if name in values else 0.0 for name in names])


def levels_there_are(prediction: Distribution) -> np.ndarray:
    """Return the levels at which coverage is counted: `LEVELS`, or those of quantiles."""
    return prediction.scored_levels if isinstance(prediction, Quantiles) else np.asarray(LEVELS)


def has_interval(prediction: Distribution) -> bool:
    """Return whether the ends of the reported interval are known."""
    return not isinstance(prediction, Quantiles) or bool(prediction._has_levels(ENDS).all())


def most_probable(prediction: Distribution) -> np.ndarray:
    """Return the most probable count, the smaller one of ties."""
    nodes = prediction._nodes() if isinstance(prediction, Wrapper) else None
    if nodes is not None:
        return np.asarray(np.take_along_axis(nodes[0], np.argmax(nodes[1], axis=1)[:, None], axis=1)[:, 0])
    mean = prediction.expected_value()[:, 0]
    reach = mean * (1 - prediction.dispersion) if isinstance(prediction, NegativeBinomial) else mean
    return np.asarray(np.maximum(np.ceil(reach) - 1, 0.0))


def scores_there_are(prediction: Distribution) -> tuple[str, ...]:
    """Return the names in `WIDE` of the scores that predictions of the family have."""
    names = ["square_error", "crps"]
    if has_density(prediction):
        names.append("log_score")
    if prediction.n_dims > 1:
        return (*names, *WIDE[5:])
    return (*names, *(WIDE[3:5] if has_interval(prediction) else WIDE[3:4]))
