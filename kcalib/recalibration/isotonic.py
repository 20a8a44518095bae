"""Isotonic regression of labels on predicted probabilities."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from kcalib.recalibration._recalibrator import ClassSamples, OneVsRest, check_penalty

__all__ = ["IsotonicCalibration"]


class IsotonicCalibration(OneVsRest):
    r"""Isotonic regression: the monotone function of the predicted probability with the lowest Brier score.

    Samples with equal predictions are one point, with the frequency of their labels. The function is linear between
    points, and constant beyond the first and the last. With more than two classes, each class has its own function
    against all others, and each row of values is divided by its sum (uniform if all are 0) [1]_.

    Parameters
    ----------
    smoothing : float
        Weight, in units of the mean weight, of two added samples: one of the class at the lowest prediction and one of
        another class at the highest. With 0.0 the lowest values are 0 and the highest 1 as soon as a few extreme
        samples are right, and the log loss of the next error is infinite. A class without samples gets 1 / (n + 2)
        everywhere.

    Attributes
    ----------
    thresholds_, values_ : list of ndarray
        Predictions, ascending, and their recalibrated values, of each class; for two classes of the second only.
    n_samples_, family_
        As in `Recalibrator`.

    See Also
    --------
    VennAbers : Two isotonic regressions for each prediction, with a guarantee of validity.
    HistogramBinning : Does not keep the order.

    Notes
    -----
    Isotonic regression assumes nothing but the order, and needs more samples than a few parameters: below about a
    thousand samples Platt scaling or beta calibration are usually better. There is no standard error, because the error
    of a value is not asymptotically normal; it decreases with the cube root of n. Time O(m n log n), memory O(n m).
    Uses ``scipy.optimize.isotonic_regression``. Arrays on NVIDIA GPUs are refused (NotImplementedError).

    References
    ----------
    .. [1] B. Zadrozny, C. Elkan. Transforming classifier scores into accurate multiclass probability estimates. KDD
       2002.

    Examples
    --------
    >>> from kcalib.recalibration import IsotonicCalibration
    >>> isotonic = IsotonicCalibration(smoothing=0.0).fit([0, 1, 0, 1], [0.1, 0.4, 0.4, 0.8])
    >>> isotonic.transform([0.05, 0.25, 0.4, 0.9]).round(3).tolist()
    [0.0, 0.25, 0.5, 1.0]
    """

    def __init__(self, *, smoothing: float = 1.0) -> None:
        self.smoothing = smoothing

    def _check_parameters(self) -> None:
        check_penalty("smoothing", self.smoothing)

    def _fit_columns(self, samples: ClassSamples, columns: list[int]) -> None:
        self.thresholds_: list[np.ndarray] = []
        self.values_: list[np.ndarray] = []
        for k in columns:
            points = points_of(samples.probabilities[:, k], samples.labels == k, samples.weight)
            smoothing = float(self.smoothing)
            points.weight[0] += smoothing
            points.hits[0] += smoothing
            points.weight[-1] += smoothing
            regression = scipy.optimize.isotonic_regression(points.hits / points.weight, weights=points.weight)
            ends = np.unique(np.concatenate([regression.blocks[:-1], regression.blocks[1:] - 1]))
            self.thresholds_.append(points.place[ends])
            self.values_.append(np.clip(regression.x[ends], 0.0, 1.0))

    def _hits_and_misses(self, samples: ClassSamples, columns: list[int]) -> tuple[np.ndarray, np.ndarray]:
        values = [
            interpolate(samples.probabilities[:, k], place, value)
            for k, place, value in zip(columns, self.thresholds_, self.values_, strict=True)
        ]
        hits = np.stack(values, axis=1)
        return hits, 1 - hits


def interpolate(predicted: np.ndarray, place: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return `numpy.interp`, computed without slopes, which overflow between points that are very close."""
    predicted, ends = np.maximum(predicted, place[0]), np.append(place, np.inf)
    below = np.searchsorted(place, predicted, side="right") - 1
    share = (predicted - place[below]) / (ends[below + 1] - place[below])
    upper = np.append(value, value[-1])[below + 1]
    return np.minimum(value[below] + share * (upper - value[below]), upper)


class Points(NamedTuple):
    """Distinct predictions of one class, in ascending order."""

    place: np.ndarray  # shape: (k,)
    weight: np.ndarray  # sum over the samples, shape: (k,)
    hits: np.ndarray  # sum over those of the class, shape: (k,)


def points_of(predicted: np.ndarray, hits: np.ndarray, weight: np.ndarray) -> Points:
    """Return the points of samples, shape (n,); `hits` marks samples of the class."""
    place, number = np.unique(predicted, return_inverse=True)
    return Points(
        place,
        np.bincount(number, weights=weight, minlength=len(place)),
        np.bincount(number, weights=weight * hits, minlength=len(place)),
    )
