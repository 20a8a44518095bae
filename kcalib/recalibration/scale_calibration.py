"""Scale calibration: shift and scale predicted distributions so that standardised residuals have mean 0, variance 1."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._input.forecasts import Forecasts
from kcalib.distributions import Distribution, Laplace, MultivariateNormal, Normal, PowerExponential, Samples
from kcalib.recalibration._families import temper
from kcalib.recalibration._recalibrator import ForecastRecalibrator, check_flag
from kcalib.recalibration.quantile_recalibration import has_levels

__all__ = ["ScaleCalibration"]


class ScaleCalibration(ForecastRecalibrator):
    r"""Scale calibration: shifts predictions and scales them about their means, in units of their standard deviations.

    .. math:: Z \mapsto m + \sigma (b + s (Z - m) / \sigma)

    for a prediction Z of mean m and standard deviation :math:`\sigma`. On the samples of the fit, the residuals
    :math:`r = (y - m) / \sigma` have mean b and mean square :math:`s^2` about it [1]_. This is maximum likelihood for
    normal distributions, where s is the root of the temperature. No density is needed, so ensembles and draws can also
    be scaled.

    Parameters
    ----------
    bias : bool
        Whether to fit b; otherwise it is 0.

    Attributes
    ----------
    scale_ : float
        s.
    scale_standard_error_ : float
        Sandwich (Huber-White) standard error of s; infinite for fewer than three samples.
    shift_, shift_standard_error_ : ndarray, shape (d,)
        b and its standard error; for vectors one number for each entry.
    n_samples_, family_
        As in `Recalibrator`.

    See Also
    --------
    TemperatureScaling : The scale of maximum likelihood, which differs for Laplace distributions.
    QuantileRecalibration : Any monotone change of the levels.

    Notes
    -----
    For `~kcalib.distributions.Normal`, `~kcalib.distributions.MultivariateNormal` (residuals times the inverse of
    ``scale_tril``), `~kcalib.distributions.Laplace`, `~kcalib.distributions.PowerExponential` and
    `~kcalib.distributions.Samples`, of numbers or vectors (entry by entry); TypeError for others. Time and memory O(n)
    for each parameter of the distributions. Distributions on NVIDIA GPUs are refused (NotImplementedError).

    References
    ----------
    .. [1] M.-H. Laves, S. Ihler, J. F. Fast, L. A. Kahrs, T. Ortmaier. Well-calibrated regression uncertainty in
       medical imaging with deep learning. MIDL 2020.

    Examples
    --------
    >>> from kcalib.distributions import Samples
    >>> from kcalib.recalibration import ScaleCalibration
    >>> calibration = ScaleCalibration(bias=False).fit([2.0, -2.0], Samples([[-1.0, 1.0], [-1.0, 1.0]]))
    >>> calibration.scale_
    2.0
    >>> calibration.transform(Samples([[0.0, 4.0]])).samples
    array([[-2.,  6.]])
    """

    def __init__(self, *, bias: bool = True) -> None:
        self.bias = bias

    def _check_parameters(self) -> None:
        check_flag("bias", self.bias)

    def _check_kind(self, prediction: Distribution) -> None:
        if shift_and_scale.dispatch(type(prediction)) is shift_and_scale.dispatch(object):
            remedy = "; use QuantileRecalibration" if has_levels(prediction) else ""
            if temper.dispatch(type(prediction)) is not temper.dispatch(object):
                remedy = "; use TemperatureScaling"
            raise TypeError(
                f"`y_pred` is {type(prediction).__name__}, expected distributions of one of the families "
                f"{', '.join(family.__name__ for family in shift_and_scale.registry if family is not object)}: others "
                f"are not closed under shift and scale{remedy}"
            )

    def _fit(self, data: Forecasts, weight: np.ndarray) -> None:
        residuals = standardise(data.prediction, data.y)
        n, d = residuals.shape
        if not np.all(np.isfinite(residuals)):
            i = int(np.argmin(np.isfinite(residuals).all(axis=1)))
            raise ValueError(
                f"`y_pred` has the standard deviation 0 at sample {i}, expected a positive number; drop such samples"
            )
        shift = weight @ residuals / n if self.bias else np.zeros(d)
        centred = residuals - shift
        squares = np.mean(centred**2, axis=1)
        variance = float(weight @ squares) / n
        if not variance > 0:
            if np.any(residuals):
                raise ValueError(
                    f"all standardised residuals ({n}) are equal, so that the scale would be 0; pass more samples, or "
                    "bias=False"
                )
            raise ValueError("`y_true` holds the predicted means, so that the scale would be 0; check the targets")
        self.shift_, self.scale_ = shift, float(np.sqrt(variance))
        factor = n / (n - 1) / n**2 if n > 2 else np.inf
        self.shift_standard_error_ = np.sqrt(factor * (weight**2 @ centred**2)) if self.bias else np.zeros(d)
        spread = float(weight**2 @ (squares - variance) ** 2)
        self.scale_standard_error_ = float(np.sqrt(factor * spread) if n > 2 else np.inf) / (2 * self.scale_)

    def _transform(self, prediction: Distribution) -> Distribution:
        return shift_and_scale(prediction, self.shift_, self.scale_)


def standardise(prediction: Any, y: Any) -> np.ndarray:
    """Return (y - mean) / standard deviation, shape (n, d), by Cholesky factors for correlated normal distributions."""
    if isinstance(prediction, MultivariateNormal):
        factors, gaps = (arrays.to_compute_device(a, np.float64) for a in (prediction.scale_tril, y - prediction.mean))
        return np.asarray(np.linalg.solve(factors, gaps[:, :, None])[:, :, 0])
    mean, deviation = prediction.expected_value(), prediction.standard_deviation()
    gaps, unit = arrays.to_compute_device(y - mean, np.float64), arrays.to_compute_device(deviation, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(gaps / unit)


@functools.singledispatch
def shift_and_scale(prediction: Distribution, shift: np.ndarray, scale: float) -> Distribution:
    """Return the distributions of m + sigma (shift + scale (Z - m) / sigma)."""
    raise AssertionError(f"nothing is registered for {type(prediction).__name__}")


def _offset(prediction: Any, shift: np.ndarray) -> Any:
    """Return shift times the standard deviations, in the shape of the means."""
    deviation = prediction.standard_deviation()
    offset = deviation * arrays.like(shift, deviation)
    return offset if prediction.event_shape else offset[:, 0]


@shift_and_scale.register
def _(prediction: Normal, shift: np.ndarray, scale: float) -> Normal:
    return Normal(prediction.mean + _offset(prediction, shift), scale * prediction.std)


@shift_and_scale.register
def _(prediction: MultivariateNormal, shift: np.ndarray, scale: float) -> MultivariateNormal:
    factors = prediction.scale_tril
    offset = arrays.namespace(factors).sum(factors * arrays.like(shift, factors), axis=2)
    return MultivariateNormal(prediction.mean + offset, scale_tril=scale * factors)


@shift_and_scale.register
def _(prediction: Laplace, shift: np.ndarray, scale: float) -> Laplace:
    return Laplace(prediction.loc + _offset(prediction, shift), scale * prediction.scale)


@shift_and_scale.register
def _(prediction: PowerExponential, shift: np.ndarray, scale: float) -> PowerExponential:
    return PowerExponential(prediction.loc + _offset(prediction, shift), scale * prediction.scale, prediction.shape)


@shift_and_scale.register
def _(prediction: Samples, shift: np.ndarray, scale: float) -> Samples:
    mean, deviation = prediction.expected_value()[:, None, :], prediction.standard_deviation()[:, None, :]
    xp = arrays.namespace(prediction.samples)
    values = xp.reshape(prediction.samples, (prediction.n, prediction.size, prediction.n_dims))
    values = mean + deviation * arrays.like(shift, deviation) + scale * (values - mean)
    return Samples(xp.reshape(values, tuple(prediction.samples.shape)), prediction.weights)
