"""Top-label expected calibration error, and the bins it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib import _arrays
from kcalib._inputs import Classification, prepare
from kcalib._options import check_integer
from kcalib.estimators.scores import top_label
from kcalib.lenses import Lens

__all__ = ["ReliabilityBins", "top_label_ece"]

MAX_BINS = 1_000_000


def top_label_ece(
    y_true: Any,
    y_pred: Any,
    *,
    n_bins: int = 15,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
) -> float:
    """Expected calibration error of the top-label confidence.

    The mean over samples of ``|accuracy - mean confidence|`` of the bin that the confidence of
    the predicted class falls into. Bins are of equal width and right-closed, (a, b], with
    0 in the first; empty bins do not count. Of classes tied for the highest probability the
    first is the predicted one. It looks at one class of each prediction, depends on
    the bins, and is biased upwards: see `kcalib.skce` for a number without these.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`.
    n_bins : int
        Number of bins, 1 to 1,000,000.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights.
    lens : Lens, optional
        The notion of calibration, see `kcalib.lenses`; default the whole vector. The lens comes first: top labels and
        confidences are those of the induced problem.

    Returns
    -------
    float
        The error, in [0, 1]. Time O(n (m + log n_bins)).

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce` for its arguments, and if `n_bins` is out of range.

    References
    ----------
    .. [1] C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On calibration of modern neural
       networks. ICML 2017, equation 3.

    Examples
    --------
    >>> import kcalib
    >>> round(kcalib.top_label_ece([0, 1, 1], [[0.9, 0.1], [0.9, 0.1], [0.3, 0.7]]), 6)
    0.366667
    """
    n_bins = check_integer("n_bins", n_bins, 1, MAX_BINS)
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens, sample_weight=sample_weight)
    return reliability_bins(data, n_bins).ece


@dataclass(frozen=True)
class ReliabilityBins:
    """Confidence against accuracy, bin by bin: what a reliability diagram shows."""

    edges: np.ndarray  # shape: (n_bins + 1,)
    weight: np.ndarray  # sum of sample weights (samples without weights), shape: (n_bins,)
    confidence: np.ndarray  # mean confidence; 0 in empty bins
    accuracy: np.ndarray  # share of correct predictions; 0 in empty bins

    @property
    def ece(self) -> float:
        return float(np.sum(self.weight * np.abs(self.accuracy - self.confidence)) / np.sum(self.weight))

    def accuracy_interval(self, confidence_level: float) -> tuple[np.ndarray, np.ndarray]:
        """Clopper-Pearson limits of each bin's accuracy ([0, 1] in empty bins)."""
        tail = (1 - confidence_level) / 2
        hits = np.round(self.weight * self.accuracy)
        misses = self.weight - hits
        low = np.where(hits > 0, scipy.special.betaincinv(np.maximum(hits, 1), misses + 1, tail), 0.0)
        high = np.where(misses > 0, scipy.special.betaincinv(hits + 1, np.maximum(misses, 1), 1 - tail), 1.0)
        return low, high


def reliability_bins(data: Classification, n_bins: int) -> ReliabilityBins:
    """Bins of equal width (a, b] over the top-label confidence."""
    confidence, correct = (_arrays.to_host(a).astype(np.float64) for a in top_label(data))
    weight = np.ones(data.n) if data.sample_weight is None else _arrays.to_host(data.sample_weight)
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    index = bin_numbers(confidence, n_bins)
    sums = [np.bincount(index, weight * x, minlength=n_bins) for x in (np.ones(data.n), confidence, correct)]
    share = np.where(sums[0] > 0, sums[0], 1.0)
    return ReliabilityBins(edges, sums[0], sums[1] / share, sums[2] / share)


def bin_numbers(confidence: np.ndarray, n_bins: int) -> np.ndarray:
    """The bin (a, b] of each confidence, 0 in the first."""
    edges = np.linspace(0.0, 1.0, n_bins + 1)
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, n_bins - 1)
