"""Histogram binning: the frequency of a class among samples whose predictions share a bin."""

from __future__ import annotations

import numpy as np

from kcalib._backend.options import check_choice, check_integer
from kcalib.estimators.binning import MAX_BINS, N_BINS, Binning
from kcalib.recalibration._recalibrator import ClassSamples, OneVsRest, check_penalty

__all__ = ["HistogramBinning"]

BINNINGS = ("equal_mass", "uniform")


class HistogramBinning(OneVsRest):
    r"""Histogram binning: replaces a prediction by the frequency of the class among the samples in its bin.

    With more than two classes, each class has its own bins against all others, and each row of values is divided by its
    sum (uniform if all are 0) [1]_.

    Parameters
    ----------
    n_bins : int
        Number of bins (a, b] of each class; the first bin includes 0. With "equal_mass" at most the number of distinct
        predictions, and the first bin is 0 alone, with the edges 0 and 0, if that many predictions are 0.
    binning : {"equal_mass", "uniform"}
        Bins with equally many samples, or of equal width.
    smoothing : float
        Weight, in units of the mean weight, of one sample added to each bin with the mean prediction as label: the
        frequency k / n becomes (k + s p) / (n + s), which is never 0. With 0.0 it stays the frequency.

    Attributes
    ----------
    edges_ : list of ndarray, shape (bins + 1,)
        Edges of the bins of each class; for two classes of the second only.
    values_ : list of ndarray, shape (bins,)
        The recalibrated predictions; the middle of the bin if it has no samples.
    standard_errors_ : list of ndarray, shape (bins,)
        Binomial standard errors of the frequencies; infinite in bins without samples.
    n_samples_, family_
        As in `Recalibrator`.

    See Also
    --------
    IsotonicCalibration : Chooses the bins from the data, and keeps the order.

    Notes
    -----
    All predictions in a bin become equal, and their ranking is lost. Weights count in the frequencies, but not in the
    number of samples of equal-mass bins. Time O(m n log n), memory O(n m). Arrays on NVIDIA GPUs are refused
    (NotImplementedError).

    References
    ----------
    .. [1] B. Zadrozny, C. Elkan. Obtaining calibrated probability estimates from decision trees and naive Bayesian
       classifiers. ICML 2001.

    Examples
    --------
    >>> from kcalib.recalibration import HistogramBinning
    >>> y, p = [0, 0, 1, 0, 1, 1], [0.1, 0.2, 0.3, 0.6, 0.7, 0.8]
    >>> histogram = HistogramBinning(n_bins=2, binning="uniform", smoothing=0.0).fit(y, p)
    >>> histogram.transform([0.25, 0.75]).round(3).tolist()
    [0.333, 0.667]
    """

    def __init__(self, *, n_bins: int = N_BINS, binning: str = "equal_mass", smoothing: float = 1.0) -> None:
        self.n_bins = n_bins
        self.binning = binning
        self.smoothing = smoothing

    def _check_parameters(self) -> None:
        check_integer("n_bins", self.n_bins, 1, MAX_BINS)
        check_choice("binning", self.binning, BINNINGS)
        check_penalty("smoothing", self.smoothing)

    def _fit_columns(self, samples: ClassSamples, columns: list[int]) -> None:
        self.edges_: list[np.ndarray] = []
        self.values_: list[np.ndarray] = []
        self.standard_errors_: list[np.ndarray] = []
        for k in columns:
            predicted = samples.probabilities[:, k]
            edges = Binning(self.binning, self.n_bins).edges(np.sort(predicted))
            number = numbers_of(predicted, edges)
            weight, hits, sums, squares = (
                np.bincount(number, weights=values, minlength=len(edges) - 1)
                for values in (
                    samples.weight,
                    samples.weight * (samples.labels == k),
                    samples.weight * predicted,
                    samples.weight**2,
                )
            )
            used = weight > 0
            divisor = np.where(used, weight, 1.0)
            added = self.smoothing * (sums / divisor)
            value = np.where(used, (hits + added) / (divisor + self.smoothing), (edges[:-1] + edges[1:]) / 2)
            value = np.clip(value, 0.0, 1.0)
            self.edges_.append(edges)
            self.values_.append(value)
            errors = np.sqrt(value * (1 - value) * squares) / divisor
            self.standard_errors_.append(np.where(used, errors, np.inf))

    def _hits_and_misses(self, samples: ClassSamples, columns: list[int]) -> tuple[np.ndarray, np.ndarray]:
        values = [
            value[numbers_of(samples.probabilities[:, k], edges)]
            for k, edges, value in zip(columns, self.edges_, self.values_, strict=True)
        ]
        hits = np.stack(values, axis=1)
        return hits, 1 - hits


def numbers_of(predicted: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the bin (a, b] of each prediction; the first bin includes 0."""
    return np.clip(np.searchsorted(edges, predicted, side="left") - 1, 0, len(edges) - 2)
