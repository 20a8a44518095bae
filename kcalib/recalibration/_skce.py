"""The temperature of the lowest SKCE."""

from __future__ import annotations

import math

import numpy as np

from kcalib import _packing
from kcalib._backend import arrays
from kcalib._pairs import statistics
from kcalib._pairs.backends.base import Backend
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.reductions import Moments, sweep_one
from kcalib.estimators.skce import PairOptions, describe
from kcalib.recalibration._scalable import Scalable
from kcalib.recalibration._search import ROUNDING, TemperatureFit, normal_quantile, warn_of_bound, warn_of_nothing
from kcalib.regression.temperature import bound_at, lowest
from kcalib.results import ConfidenceInterval

GRID = 25  # temperatures between the bounds at which the SKCE is taken first
STEP = 0.05  # of log(T), for derivatives of the SKCE


class SKCECriterion:
    """The biased SKCE as a function of log(T), with a kernel that sees the predictions at T = 1."""

    def __init__(self, predictions: Scalable, options: PairOptions) -> None:
        data = predictions.data
        self.predictions, self.data, self.threads = predictions, data, options.threads
        self.packed = _packing.pack(data, options.kernel, options.target_kernel, threads=options.threads)
        description = describe(data, self.packed, self._backend(0.0))
        self.names = description["kernel"], description["target_kernel"]

    def lowest(self, bounds: tuple[float, float], level: float) -> TemperatureFit:
        before = self.value(0.0)
        place, after, n_evaluations = lowest(self.value, *bounds, points=GRID)
        temperature = math.exp(place)
        fit = TemperatureFit(temperature, None, None, before, after, n_evaluations + 1, False)
        bound = bound_at(place, bounds)
        if bound is not None:
            warn_of_bound(bound, before, after)
            return fit._replace(temperature=bound)
        ends = [math.log(bound) for bound in bounds]
        if place == 0 and all(abs(self.value(end) - before) <= 4 * ROUNDING * abs(before) for end in ends):
            warn_of_nothing(temperature)
            return fit
        relative = self._standard_error(place) if self.data.sample_weight is None else None
        if relative is None:
            return fit._replace(converged=True)
        factor = math.exp(normal_quantile(level) * relative)
        interval = ConfidenceInterval(temperature / factor, temperature * factor)
        return fit._replace(standard_error=relative * temperature, interval=interval, converged=True)

    def value(self, log_temperature: float) -> float:
        moments = sweep_one(self._backend(log_temperature), Moments(rows=False))
        return statistics.biased(moments, self.data.n, self.data.sample_weight)

    def _standard_error(self, place: float) -> float | None:
        """The error of log(T): 2 sd(g) / (sqrt(n) U''), with U' the mean of 2 g_i, the derivatives of row means."""
        n = self.data.n
        moments = [sweep_one(self._backend(place + step), Moments()) for step in (-STEP, 0.0, STEP)]
        values = [statistics.biased(m, n) for m in moments]
        curvature = (values[0] - 2 * values[1] + values[2]) / STEP**2
        if n < 2 or curvature <= 0:
            return None
        below, _, above = (
            arrays.to_compute_device(m.row_sums, np.float64) + arrays.to_compute_device(m.diagonal, np.float64)
            for m in moments
        )
        slopes = (above - below) / (2 * STEP * n)
        deviation = float(arrays.namespace(slopes).std(slopes, correction=1))
        return 2 * deviation / math.sqrt(n) / curvature

    def _backend(self, log_temperature: float) -> Backend:
        """Return the backend of the points at T = 1 and the features of the scaled predictions."""
        packed = self.packed.with_features_of(self.predictions.at(math.exp(log_temperature)), threads=self.threads)
        return backend_for(packed.problem, threads=self.threads)
