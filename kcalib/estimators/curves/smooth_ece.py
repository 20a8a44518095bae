"""Compute the smooth calibration error, and smoothed frequencies for reliability diagrams.

The reflected Gaussian kernel on [0, 1] is a cosine series, K(s, t) = 1 + 2 sum_k exp(-(pi k sigma)^2 / 2) cos(pi k s)
cos(pi k t), so all bandwidths use the same cosine coefficients of the residuals.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy

from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import check_within
from kcalib._input.labels import prepare
from kcalib.estimators.bands import Band, Draws, drawn_band
from kcalib.estimators.event_bins import Sample
from kcalib.lenses import Lens, TopLabel

__all__ = ["smooth_ece"]

SMALLEST, LARGEST = 1e-4, 1e4  # limits of bandwidths
FIRST = 2e-3  # smallest bandwidth of the first set of coefficients
SERIES = 2.8  # number of frequencies times bandwidth; the next have a factor of exp(-(pi SERIES)^2 / 2) = 1.6e-17
CELLS, NODES = 8, 32  # for each frequency, of moments and of the integral
MOMENTS = 6  # of residuals within a cell; more would change smoothed residuals by less than 1e-7
CURVE_CELLS, MOST_CELLS = 8, 2**15  # of curves: number of cells times bandwidth, and its maximum


@on_their_gpu
def smooth_ece(
    y_true: Any,
    y_pred: Any,
    *,
    bandwidth: float | None = None,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
) -> float:
    r"""Compute the smooth calibration error (smECE): the mean absolute residual, smoothed by a Gaussian kernel.

    Parameters
    ----------
    y_true, y_pred, sample_weight, classes, from_logits, lens
        As in `kcalib.reliability`, which has a diagram of the smoothed frequencies: ``binning="smooth"``.
    bandwidth : float, optional
        Standard deviation :math:`\sigma` of the kernel, 1e-4 to 1e4. Default: the one that equals
        the error.

    Returns
    -------
    float
        The error, in [0, 1].

    Raises
    ------
    TypeError, ValueError
        As `kcalib.reliability`. Also if `bandwidth` is out of range.

    Notes
    -----
    With confidences c, events y of 0 and 1, and the kernel :math:`K_\sigma` reflected at 0 and 1 [1]_,

    .. math:: \mathrm{smECE}_\sigma = \int_0^1 \Bigl| \frac{1}{n} \sum_i K_\sigma(t, c_i) (y_i - c_i) \Bigr| \, dt .

    It decreases with :math:`\sigma`; smECE is the value that equals :math:`\sigma`. The numerical error is below 1e-6.
    Values below 1e-4 use the bandwidth 1e-4. A calibrated model of n samples has a value of about :math:`n^{-1/3} / 3`,
    not 0. Time and memory O(n). Predictions on a GPU are copied to the host.

    References
    ----------
    .. [1] J. Blasiok, P. Nakkiran. Smooth ECE: Principled reliability diagrams via kernel smoothing. ICLR 2024.

    Examples
    --------
    >>> import kcalib
    >>> y, p, second = [0, 1, 1, 0, 1], [0.2, 0.3, 0.4, 0.6, 0.9], kcalib.lenses.Canonical()
    >>> round(kcalib.smooth_ece(y, p, lens=second), 6), round(kcalib.smooth_ece(y, p, lens=second, bandwidth=0.05), 6)
    (0.171202, 0.385893)
    """
    if bandwidth is not None:
        bandwidth = check_within("bandwidth", bandwidth, SMALLEST, LARGEST)
    lens = TopLabel() if lens is None else lens
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, sample_weight=sample_weight, lens=lens)
    return smooth_error(Sample.of(data).to_host(), bandwidth)[0]


def smooth_error(sample: Sample, bandwidth: float | None = None, smallest: float = FIRST) -> tuple[float, float]:
    """Return the error of samples on the host, and the bandwidth: given, or equal to the error."""
    coefficients = _coefficients(sample, smallest if bandwidth is None else bandwidth)
    if bandwidth is None:
        if _integral(coefficients, smallest) >= smallest:
            bandwidth = scipy.optimize.brentq(lambda sigma: _integral(coefficients, sigma) - sigma, smallest, 1.001)
        else:
            return smooth_error(sample, *((None, SMALLEST) if smallest > SMALLEST else (SMALLEST,)))
    return _integral(coefficients, bandwidth), bandwidth


def _coefficients(sample: Sample, bandwidth: float) -> np.ndarray:
    """Return the weighted means of (event - confidence) cos(pi k confidence) for all k that the bandwidth needs.

    Cosines are Taylor series around the centers of cells.
    """
    count = _frequencies(bandwidth)
    place = sample.confidence * (CELLS * count)
    cell = np.minimum(place.astype(np.intp), CELLS * count - 1)
    offset = place - cell - 0.5
    step, moment = np.pi / (CELLS * count) * np.arange(count), sample.weight * (sample.event - sample.confidence)
    result = np.zeros(count)
    for power in range(MOMENTS):
        sums = np.bincount(cell, moment, minlength=CELLS * count)
        waves = np.append(0.0, scipy.fft.dst(sums))[:count] if power % 2 else scipy.fft.dct(sums)[:count]
        result += (1, -1, -1, 1)[power % 4] / (2 * math.factorial(power)) * step**power * waves
        moment *= offset
    return result / np.sum(sample.weight)


def _frequencies(bandwidth: float) -> int:
    return int(scipy.fft.next_fast_len(int(SERIES / bandwidth) + 8, real=True))


def _integral(coefficients: np.ndarray, bandwidth: float) -> float:
    """Return the integral over [0, 1] of the absolute smoothed residuals."""
    count = min(len(coefficients), _frequencies(bandwidth))
    terms = np.zeros(NODES * count + 1)
    terms[:count] = coefficients[:count] * np.exp(-((np.pi * bandwidth * np.arange(count)) ** 2) / 2)
    residuals = scipy.fft.dct(terms, type=1)
    sizes = np.abs(residuals)
    total = np.sum(sizes) - (sizes[0] + sizes[-1]) / 2
    # Correct the trapezoidal rule for zeros within a cell, by the Euler-Maclaurin formula for a kink.
    at = np.flatnonzero(residuals[:-1] * residuals[1:] < 0)
    ends = sizes[at] + sizes[at + 1]
    share = sizes[at] / ends
    return float(total + np.sum(ends * (share * share - share + 1 / 6))) / (NODES * count)


def smooth_curve(
    sample: Sample, bandwidth: float, points: np.ndarray, draws: Draws | None
) -> tuple[np.ndarray, np.ndarray, Band | None]:
    """Return mean confidences and frequencies around points, and limits of drawn frequencies.

    Samples within an eighth of the bandwidth are grouped. Points without samples nearby are NaN.
    """
    n_cells = min(math.ceil(CURVE_CELLS / bandwidth), MOST_CELLS)
    cell = np.minimum((sample.confidence * n_cells).astype(np.intp), n_cells - 1)
    _, group = np.unique(cell, return_inverse=True)
    weight, *sums = (np.bincount(group, sample.weight * a) for a in (1.0, sample.confidence, sample.event))
    confidence, frequency = (total / weight for total in sums)
    shares = weight * reflected_kernel(points[:, None], confidence[None, :], bandwidth)
    totals = np.sum(shares, axis=1, keepdims=True)
    shares = np.divide(shares, totals, out=np.full_like(shares, np.nan), where=totals > 1e-12 * np.sum(weight))
    band = None if draws is None else drawn_band(sample, group, draws, shares.__matmul__)
    return shares @ confidence, shares @ frequency, band


def reflected_kernel(t: np.ndarray, s: np.ndarray, bandwidth: float) -> np.ndarray:
    """Return the density at t of s plus normal noise, reflected at 0 and 1."""
    images = range(-math.ceil(4 * bandwidth) - 1, math.ceil(4 * bandwidth) + 2)
    total = sum(np.exp(-(((t - side * s + 2 * k) / bandwidth) ** 2) / 2) for k in images for side in (1, -1))
    return np.asarray(total) / (math.sqrt(2 * math.pi) * bandwidth)
