"""Compute PIT values, and the quantile calibration curve of predicted distributions."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import SEED, check_fraction, check_integer, check_seed
from kcalib._backend.special import to_device_of
from kcalib._input.forecasts import Forecasts
from kcalib.distributions import Distribution, Samples
from kcalib.distributions.wrappers import Wrapper
from kcalib.estimators.bands import Band
from kcalib.estimators.binning import bin_edges
from kcalib.estimators.forecasts.quantities import cdf_at, forecasts_of, levels_of, numbers_of, samples_of
from kcalib.report import diagrams
from kcalib.report.summary import Summarized

PIT_STREAM = 0x504954  # added to the seed, so that targets simulated with the same seed use other random numbers
HISTOGRAM_BINS = 20
SMALLEST_JUMP = 1e-4  # of a distribution function; rounding of float32 parameters causes smaller ones


@on_their_gpu
def pit_values(y_true: Any, y_pred: Distribution, *, seed: int = 0) -> Array:
    """Compute the probability integral transform (PIT): each target's place in its predicted distribution.

    Parameters
    ----------
    y_true, y_pred
        As in `kcalib.crps`, for predictions of numbers.
    seed : int
        Seed of the randomization, for counts, samples, and distributions with atoms.

    Returns
    -------
    array, float64, shape (n,)
        PIT values in [0, 1]; a CuPy array for predictions on a GPU. They are P(Z <= y) for continuous predictions, and
        P(Z < y) + u P(Z = y) with u uniform in (0, 1), a function of the seed and the row, if the target has a positive
        probability. For S samples they are the randomized rank of the target,
        (number below + u (1 + number equal)) / (S + 1), which is uniform if targets and samples come from the same
        distribution; with weights w, S is 1 / (sum of w^2), and numbers are weights times S. PIT values of a calibrated
        model are uniform. The converse is false, see `kcalib.calibration_test`.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`. Also if predictions are vectors.

    Examples
    --------
    >>> import kcalib
    >>> from kcalib.distributions import Normal
    >>> kcalib.pit_values([0.0, 5.0], Normal([0.0, 5.0], [1.0, 2.0]))
    array([0.5, 0.5])
    """
    return pit_of(forecasts_of(y_true, y_pred), check_integer("seed", seed, 0))


@dataclass(frozen=True, eq=False)
class QuantileCalibration(Summarized):
    """Observed coverage of predicted quantiles. Arrays are float64."""

    levels: np.ndarray  #: levels of the quantiles, shape (k,)
    coverage: np.ndarray  #: share of targets that are at most the quantile, shape (k,)
    standard_error: np.ndarray  #: of the coverage under calibration, shape (k,)
    consistency_band: Band  #: limits of the coverage under calibration, at each level
    error: float  #: mean absolute difference of coverage and level; about 0.3 / sqrt(n) for calibrated models
    histogram: np.ndarray  #: share of the PIT values in bins of equal width, 20 unless a state has another number
    confidence_level: float  #: of the band
    simultaneous: bool  #: whether the band holds for all levels at once
    seed: int | None  #: of randomized PIT values; None if nothing was randomized
    n_samples: int  #: number of samples

    def __repr__(self) -> str:
        return (
            f"QuantileCalibration(error={self.error:.4g}, n_levels={len(self.levels)}, n_samples={self.n_samples}, "
            f"confidence_level={self.confidence_level:g}, simultaneous={self.simultaneous})"
        )

    def plot(self, ax: Any = None, *, color: str | None = None, histogram: bool = True, legend: bool = True) -> Any:
        """Plot observed against predicted coverage, the band, the diagonal, and a histogram of PIT values.

        The histogram has a binomial band for its bars under calibration.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on. Default: axes of a new figure, which pyplot does not manage (save it by
            ``ax.figure.savefig``).
        color : str, optional
            Color of the curve. Default: a blue, lighter on dark axes.
        histogram : bool
            Whether to draw a histogram of the PIT values in the lower part of `ax`.
        legend : bool
            Whether to draw a legend above the diagram.

        Returns
        -------
        matplotlib.axes.Axes
            The axes of the curve.

        Raises
        ------
        ImportError
            If matplotlib is missing; ``pip install 'kcalib[plot]'``.
        """
        return diagrams.plot_quantiles(self, ax, color, histogram, legend)


@on_their_gpu
def quantile_calibration(
    y_true: Any,
    y_pred: Distribution,
    *,
    levels: Any = None,
    confidence_level: float = 0.95,
    simultaneous: bool = False,
    seed: int | None = SEED,
) -> QuantileCalibration:
    """Compute the quantile calibration curve: how often targets are at most the predicted quantiles.

    Parameters
    ----------
    y_true, y_pred
        As in `kcalib.crps`, for predictions of numbers.
    levels : array_like, shape (k,), optional
        As in `kcalib.pinball_loss`.
    confidence_level : float
        Confidence level of the consistency band, in (0, 1).
    simultaneous : bool
        Whether the band holds for all levels at once, instead of each level separately.
    seed : int, optional
        Seed of randomized PIT values, see `kcalib.pit_values`. None draws one, which the curve reports.

    Returns
    -------
    QuantileCalibration
        The curve and its band.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.crps`. Also if a level is out of range; if predictions are vectors.

    See Also
    --------
    kcalib.calibration_test : Test that also detects errors which cancel in the curve.

    Notes
    -----
    The coverage at level tau is the share of PIT values (`kcalib.pit_values`) up to tau (Widmann, Lindsten and
    Zachariah 2021, appendix A.1). Under calibration n times the coverage is binomial, which gives the standard error
    and the band at each level. The simultaneous band has the half width sqrt(log(2 / a) / (2 n)) with
    a = 1 - confidence_level, by the Dvoretzky-Kiefer-Wolfowitz inequality with Massart's constant. The curve averages
    over all predictions, so errors of opposite sign can cancel. Time O(n log n + n k), memory O(n).

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> from kcalib.distributions import Normal
    >>> y = np.random.default_rng(0).normal(size=400)
    >>> curve = kcalib.quantile_calibration(y, Normal(np.zeros(400), np.full(400, 0.5)), levels=[0.1, 0.5, 0.9])
    >>> curve.coverage.round(2)  # over-confident
    array([0.28, 0.53, 0.75])
    """
    data = forecasts_of(y_true, y_pred)
    return curve_of(
        data,
        levels=levels_of(data, levels),
        confidence_level=confidence_level,
        simultaneous=simultaneous,
        seed=check_seed(seed),
    )


def pit_of(data: Forecasts, seed: int) -> Array:
    """Return PIT values, shape (n,)."""
    return pit_at(data, pit_uniforms(seed, np.arange(data.n)))


def pit_uniforms(seed: int, numbers: np.ndarray) -> np.ndarray:
    """Return the uniform numbers that randomize PIT values, for rows with these ascending numbers."""
    if not len(numbers):
        return np.empty(0)
    first, last = int(numbers[0]), int(numbers[-1])
    generator = np.random.default_rng((PIT_STREAM, seed))
    generator.bit_generator.advance(first)  # type: ignore[attr-defined]
    return np.asarray(generator.uniform(size=last - first + 1)[numbers - first])


def pit_at(data: Forecasts, uniform: np.ndarray) -> Array:
    """Return PIT values randomized by these uniform numbers, shape (n,)."""
    y = numbers_of(data, "PIT values are")
    uniform = to_device_of(uniform, y)
    atoms = None if isinstance(data.prediction, Samples) else samples_of(data)
    if atoms is not None:
        data = dataclasses.replace(data, prediction=Samples(atoms.locations[:, :, 0], atoms.weights))
    lower = cdf_at(data, y, left=True)
    jump, samples = cdf_at(data, y) - lower, data.prediction
    if not isinstance(samples, Samples):
        return lower + uniform * jump
    weights = None if samples.weights is None else arrays.to_compute_device(samples.weights, np.float64)
    size = samples.size if weights is None else 1 / arrays.namespace(y).sum(weights**2, axis=1)
    return (lower * size + uniform * (1 + jump * size)) / (size + 1)


def curve_of(
    data: Forecasts, *, levels: np.ndarray, confidence_level: float, simultaneous: bool, seed: int
) -> QuantileCalibration:
    """Return `quantile_calibration` of checked data."""
    check_band(confidence_level, simultaneous)
    pit, n = pit_of(data, seed), data.n
    xp = arrays.namespace(pit)
    ascending = xp.sort(pit)
    return curve_at(
        levels,
        arrays.to_host(xp.searchsorted(ascending, to_device_of(levels, pit), side="right")) / n,
        _histogram(ascending) / n,
        n,
        confidence_level,
        simultaneous,
        None if is_continuous(data) else seed,
    )


def check_band(confidence_level: float, simultaneous: bool) -> None:
    check_fraction("confidence_level", confidence_level)
    if not isinstance(simultaneous, (bool, np.bool_)):
        raise TypeError(f"`simultaneous` is {simultaneous!r}, expected True or False")


def curve_at(
    levels: np.ndarray,
    coverage: np.ndarray,
    histogram: np.ndarray,
    n: int,
    confidence_level: float,
    simultaneous: bool,
    seed: int | None,
) -> QuantileCalibration:
    """Return the curve of n samples from the coverage of levels and the histogram of PIT values."""
    if simultaneous:
        width = math.sqrt(math.log(2 / (1 - confidence_level)) / (2 * n))
        band = Band(np.maximum(levels - width, 0), np.minimum(levels + width, 1))
    else:
        band = coverage_band(n, levels, confidence_level)
    return QuantileCalibration(
        levels=levels,
        coverage=coverage,
        standard_error=np.sqrt(levels * (1 - levels) / n),
        consistency_band=band,
        error=float(np.mean(np.abs(coverage - levels))),
        histogram=histogram,
        confidence_level=float(confidence_level),
        simultaneous=bool(simultaneous),
        seed=seed,
        n_samples=n,
    )


def coverage_band(n: int, levels: np.ndarray, confidence_level: float) -> Band:
    """Return limits of the coverage of n samples under calibration, at each level: binomial quantiles."""
    tail = (1 - confidence_level) / 2
    return Band(_binomial_quantile(n, levels, tail) / n, 1 - _binomial_quantile(n, 1 - levels, tail) / n)


def _histogram(ascending: Array) -> np.ndarray:
    """Return the number of sorted PIT values in each bin of equal width."""
    inner = arrays.like(bin_edges(HISTOGRAM_BINS)[1:-1], ascending)
    below = arrays.to_host(arrays.namespace(ascending).searchsorted(ascending, inner, side="left"))
    return np.diff(below, prepend=0, append=len(ascending))


def _binomial_quantile(n: int, p: np.ndarray, probability: float) -> np.ndarray:
    """Return the smallest k with P(X <= k) >= probability."""
    k = np.maximum(np.ceil(scipy.special.bdtrik(probability, n, p)), 0)  # rounding may make it too large by one
    return np.where((k > 0) & (scipy.special.bdtr(k - 1, n, p) >= probability), k - 1, k)


def is_continuous(data: Forecasts) -> bool:
    """Return whether no target has a positive predicted probability, so PIT values need no randomization."""
    if data.prediction.support == "count" or isinstance(data.prediction, Wrapper) or samples_of(data) is not None:
        return False
    y = numbers_of(data, "PIT values are")
    return bool(arrays.namespace(y).all(cdf_at(data, y) - cdf_at(data, y, left=True) < SMALLEST_JUMP))
