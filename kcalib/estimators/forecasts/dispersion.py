"""Compute statistics of the spread of predictions, with the names and definitions of other libraries.

`sharpness` and `miscalibration_area` are from uncertainty-toolbox, `ence` from Levi et al. and netcal,
`dawid_sebastiani_score` from scoringRules and scoringutils.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import check_integer
from kcalib._input.checks import reject
from kcalib._input.forecasts import Forecasts
from kcalib.distributions import Distribution
from kcalib.estimators.binning import MAX_BINS, N_BINS, ends_of_equal_mass
from kcalib.estimators.forecasts.quantile_calibration import pit_of
from kcalib.estimators.forecasts.quantities import forecasts_of, mean_of, means_of, numbers_of

__all__ = ["dawid_sebastiani_score", "ence", "miscalibration_area", "sharpness"]

AREA_LEVELS = 100  # number of interval probabilities, from 0 to 1


@on_their_gpu
def sharpness(y_true: Any, y_pred: Distribution, *, sample_weight: Any = None) -> float:
    """Return the root of the mean variance of the predictions; targets are not used.

    Parameters
    ----------
    y_true, y_pred, sample_weight
        As in `kcalib.crps`, for predictions of numbers.

    Returns
    -------
    float
        The root mean variance, in the units of the targets. Lower is sharper; compare calibrated models only.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`. Also if predictions are vectors, or a standard deviation is 0 or infinite.

    Notes
    -----
    It agrees with ``sharpness`` of uncertainty-toolbox (Tran et al. 2020).

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> kcalib.sharpness([0.0, 2.0], Normal([0.0, 0.0], [1.0, 7.0]))
    5.0
    """
    data = forecasts_of(y_true, y_pred, sample_weight)
    return math.sqrt(mean_of(data, _errors_and_spread(data, "sharpness is")[1] ** 2))


@on_their_gpu
def dawid_sebastiani_score(y_true: Any, y_pred: Distribution, *, sample_weight: Any = None) -> float:
    r"""Return the mean Dawid-Sebastiani score, which uses means and standard deviations only.

    Parameters
    ----------
    y_true, y_pred, sample_weight
        As in `kcalib.crps`, for predictions of numbers.

    Returns
    -------
    float
        The mean of :math:`(y - \mu)^2 / \sigma^2 + 2 \log \sigma`; lower is better. It is proper, and depends on the
        units of the targets.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`. Also if predictions are vectors, or a standard deviation is 0 or infinite.

    Notes
    -----
    It agrees with ``dss_norm`` and ``dss_sample`` of scoringRules and scoringutils: the variance of S samples has
    divisor S. For normal distributions it is twice the log score minus log(2 pi).

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> kcalib.dawid_sebastiani_score([3.0], Normal([1.0], [1.0]))
    4.0
    """
    data = forecasts_of(y_true, y_pred, sample_weight)
    errors, std = _errors_and_spread(data, "the Dawid-Sebastiani score is")
    return mean_of(data, (errors / std) ** 2 + 2 * arrays.namespace(std).log(std))


@on_their_gpu
def ence(y_true: Any, y_pred: Distribution, *, n_bins: int = N_BINS, sample_weight: Any = None) -> float:
    r"""Return the expected normalized calibration error (ENCE) of predicted standard deviations.

    Parameters
    ----------
    y_true, y_pred, sample_weight
        As in `kcalib.crps`, for predictions of numbers.
    n_bins : int
        Number of bins of the standard deviations, with about equal numbers of samples. Equal standard deviations share
        a bin.

    Returns
    -------
    float
        The mean over bins of :math:`|\mathrm{RMSE} - \mathrm{RMV}| / \mathrm{RMV}`, where RMSE is the root mean squared
        error and RMV the root mean variance of the bin. For calibrated models it is not 0, but about
        :math:`0.56 \sqrt{B / n}` for normal distributions and B bins.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`. Also if `n_bins` is no integer between 1 and the number of samples; if predictions are
        vectors, or a standard deviation is 0 or infinite.

    Notes
    -----
    See Levi, Gispan, Giladi and Fetaya (2022), equation 8. ``netcal.metrics.ENCE`` uses bins of equal width.

    Examples
    --------
    Errors of 2 with predicted standard deviation 1, and errors of 3 with 3:

    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> kcalib.ence([2.0, -2.0, 3.0, -3.0], Normal([0.0] * 4, [1.0, 1.0, 3.0, 3.0]), n_bins=2)
    0.5
    """
    data = forecasts_of(y_true, y_pred, sample_weight)
    n_bins = check_integer("n_bins", n_bins, 1, MAX_BINS)
    if n_bins > data.n:
        raise ValueError(f"`n_bins` is {n_bins}, but there are {data.n} samples; pass at most as many bins as samples")
    errors, std = map(arrays.to_host, _errors_and_spread(data, "the ENCE is"))
    edges = np.unique(np.sort(std)[ends_of_equal_mass(data.n, n_bins)])
    bins = np.searchsorted(edges, std, side="left")
    weight = np.ones(data.n) if data.sample_weight is None else arrays.to_host(data.sample_weight)
    squares, variances = (np.bincount(bins, weight * values**2) for values in (errors, std))
    rmse, rmv = np.sqrt(squares[variances > 0]), np.sqrt(variances[variances > 0])
    return float(np.mean(np.abs(rmse - rmv) / rmv))


@on_their_gpu
def miscalibration_area(y_true: Any, y_pred: Distribution, *, seed: int = 0, sample_weight: Any = None) -> float:
    """Return the area between the coverage curve of central intervals and the diagonal.

    Parameters
    ----------
    y_true, y_pred, sample_weight
        As in `kcalib.crps`, for predictions of numbers.
    seed : int
        Seed of randomized PIT values, for distributions with atoms.

    Returns
    -------
    float
        The area, at most 1/2; 0 if the coverage of each interval equals its probability.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`. Also if predictions are vectors.

    See Also
    --------
    kcalib.quantile_calibration : Coverage of quantiles, with a band; it also shows shifts.

    Notes
    -----
    It agrees with ``miscalibration_area`` of uncertainty-toolbox: intervals with 100 probabilities p from 0 to 1,
    between the quantiles at (1 - p) / 2 and (1 + p) / 2, and linear interpolation.

    Examples
    --------
    Targets are medians, which all intervals contain:

    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> kcalib.miscalibration_area([0.0, 1.0], Normal([0.0, 1.0], [1.0, 1.0]))
    0.5
    """
    data = forecasts_of(y_true, y_pred, sample_weight)
    numbers_of(data, "the miscalibration area is")
    offsets = np.abs(2 * arrays.to_host(pit_of(data, check_integer("seed", seed, 0))) - 1)
    weight = np.ones(data.n) if data.sample_weight is None else arrays.to_host(data.sample_weight)
    order, levels = np.argsort(offsets), np.linspace(0, 1, AREA_LEVELS)
    shares = np.concatenate([[0.0], np.cumsum(weight[order])]) / np.sum(weight)
    gaps = shares[np.searchsorted(offsets[order], levels, side="right")] - levels
    first, second = np.abs(gaps[:-1]), np.abs(gaps[1:])
    both = np.maximum(first + second, np.finfo(float).tiny)
    crossing = gaps[:-1] * gaps[1:] < 0  # two triangles instead of a trapezoid
    heights = np.where(crossing, (first**2 + second**2) / both, both)
    return float(np.sum(heights) / 2 / (AREA_LEVELS - 1))


def _errors_and_spread(data: Forecasts, statistic: str) -> tuple[Array, Array]:
    """Return targets minus means, and standard deviations, which must be positive and finite."""
    y = numbers_of(data, statistic)
    std = arrays.to_compute_device(data.prediction.standard_deviation(), np.float64)[:, 0]
    reject(
        std,
        ~((std > 0) & (std < math.inf)),
        lambda at, x: (
            f"`y_pred{at}` has the standard deviation {x!r}, but {statistic} for positive and finite ones; "
            "leave such samples out, or take kcalib.crps"
        ),
    )
    return y - means_of(data)[:, 0], std
