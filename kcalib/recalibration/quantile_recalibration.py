"""Quantile recalibration: replace levels of predicted quantiles by the observed share of targets below them."""

from __future__ import annotations

from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.options import check_integer
from kcalib._input.forecasts import Forecasts
from kcalib.distributions import Distribution, Quantiles, Samples
from kcalib.estimators.forecasts.quantile_calibration import pit_values
from kcalib.recalibration._recalibrator import ForecastRecalibrator

__all__ = ["QuantileRecalibration"]

LOWEST = 2.0**-53  # lowest level of a quantile, and 1 minus the highest


class QuantileRecalibration(ForecastRecalibrator):
    r"""Quantile recalibration: the distribution function F of each prediction becomes R(F).

    R is the empirical distribution function of the PIT values :math:`F_i(y_i)` of the fit, which is also the isotonic
    regression of itself on the values [1]_. It is linear between the values, k / (n + 1) at the k-th of n, 0 at 0 and 1
    at 1. Recalibrated PIT values are uniform: over all samples, the right share of targets is below each predicted
    quantile.

    Parameters
    ----------
    n_points : int
        Number of values of each recalibrated prediction, `~kcalib.distributions.Samples`: its quantiles at the levels
        (j - 1/2) / n_points.
    seed : int
        Seed of the randomised PIT values, see `kcalib.pit_values`.

    Attributes
    ----------
    pit_ : ndarray
        PIT values of the fit, ascending, between 0 and 1: the knots of R.
    levels_ : ndarray
        The values of R at the knots.
    n_samples_, family_
        As in `Recalibrator`.

    See Also
    --------
    ScaleCalibration, TemperatureScaling : One or two parameters, and distributions of the same family.
    kcalib.quantile_calibration : The curve R with bands.

    Notes
    -----
    For predictions of numbers with the methods ``cdf`` and ``quantile``, except counts (TypeError). One R is fitted for
    all samples, so errors that are opposite for different samples remain: see `kcalib.calibration_test`. The standard
    error of R is at most 1 / (2 sqrt(n)). Beyond the highest and the lowest PIT value of the fit, tails are those of
    the prediction, rescaled in probability. Time O(n log n) to fit, and n n_points quantiles to transform, with as much
    memory. Distributions on NVIDIA GPUs are refused (NotImplementedError).

    References
    ----------
    .. [1] V. Kuleshov, N. Fenner, S. Ermon. Accurate uncertainties for deep learning using calibrated regression. ICML
       2018.

    Examples
    --------
    >>> import numpy as np
    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> from kcalib.recalibration import QuantileRecalibration
    >>> rng = np.random.default_rng(0)
    >>> mean = rng.normal(size=2000)
    >>> y = mean + rng.exponential(size=2000) - 1              # residuals are skewed
    >>> before = Normal(mean, np.ones(2000))
    >>> after = QuantileRecalibration().fit(y[:1000], before.take(slice(0, 1000))).transform(before)
    >>> kcalib.crps(y[1000:], after.take(slice(1000, 2000))) < kcalib.crps(y[1000:], before.take(slice(1000, 2000)))
    True
    """

    def __init__(self, *, n_points: int = 100, seed: int = 0) -> None:
        self.n_points = n_points
        self.seed = seed

    def _check_parameters(self) -> None:
        check_integer("n_points", self.n_points, 1)
        check_integer("seed", self.seed, 0)

    def _check_kind(self, prediction: Distribution) -> None:
        if not has_levels(prediction):
            raise TypeError(
                f"`y_pred` is {type(prediction).__name__}"
                f"{' of vectors' if prediction.event_shape else ''}, expected continuous distributions of numbers, or "
                "samples, with methods cdf and quantile at all levels"
            )

    def _fit(self, data: Forecasts, weight: np.ndarray) -> None:
        pit = arrays.to_compute_device(pit_values(*data.as_given(), seed=self.seed), np.float64)
        order = np.argsort(pit, kind="stable")
        self.pit_ = np.clip(pit[order], 0.0, 1.0)
        self.levels_ = np.cumsum(weight[order]) / (len(pit) + 1)

    def _transform(self, prediction: Any) -> Distribution:
        midpoints = (np.arange(self.n_points) + 0.5) / self.n_points
        levels = np.interp(
            midpoints, np.append(0.0, np.append(self.levels_, 1.0)), np.append(0.0, np.append(self.pit_, 1))
        )
        return Samples(prediction.quantile(np.clip(levels, LOWEST, 1 - LOWEST)))


def has_levels(prediction: Distribution) -> bool:
    """Return whether these distributions of numbers have cdf and quantile at all levels, as all but counts do."""
    has_methods = hasattr(prediction, "cdf") and hasattr(prediction, "quantile")
    has_methods = has_methods and not isinstance(prediction, Quantiles)
    return prediction.event_shape == () and has_methods and prediction.support != "count"
