"""Metrics that are means of a loss of each sample: Brier score, log loss, CRPS, log score."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._pairs import statistics
from kcalib.estimators.crps import crps_values
from kcalib.estimators.forecast_scores import log_score_values
from kcalib.estimators.scores import log_losses, square_residuals
from kcalib.inference.metrics.measured import EPSILON, ROUNDINGS, Estimate, Measured, MetricOptions, joined, symmetric


def brier(data: Sequence[Classification], confidence_level: float, options: MetricOptions) -> Measured:
    scale = 0.5 if data[0].m == 2 else 1.0
    return _means([scale * arrays.where_computed(square_residuals(one)) for one in data], confidence_level)


def log_loss(data: Sequence[Classification], confidence_level: float, options: MetricOptions) -> Measured:
    return _means([arrays.where_computed(log_losses(one)) for one in data], confidence_level)


def crps(data: Sequence[Forecasts], confidence_level: float, options: MetricOptions) -> Measured:
    return _scores(data, crps_values, confidence_level)


def log_score(data: Sequence[Forecasts], confidence_level: float, options: MetricOptions) -> Measured:
    return _scores(data, log_score_values, confidence_level)


def _scores(data: Sequence[Forecasts], score: Callable[[Forecasts], Array], confidence_level: float) -> Measured:
    measured = _means([score(one) for one in data], confidence_level)
    return replace(measured, described={"prediction": joined(", ", (one.describe()["prediction"] for one in data))})


def _means(losses: Sequence[Array], confidence_level: float) -> Measured:
    def estimate(values: Array, resolution: float = 0.0) -> Estimate:
        mean, error = statistics.mean_and_standard_error(values)
        assert error is not None  # there are four samples
        return symmetric(mean, error, confidence_level, len(values) - 1, resolution)

    losses = [arrays.where_computed(values).astype(np.float64, copy=False) for values in losses]
    pairs = itertools.combinations(losses, 2)
    return Measured(
        values=[estimate(values) for values in losses],
        differences=[estimate(a - b, ROUNDINGS * EPSILON * float((abs(a) + abs(b)).mean())) for a, b in pairs],
        estimator="mean",
        intervals="t, paired",
    )
