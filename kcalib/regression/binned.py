"""The binned calibration error as an estimation function.

`BinnedCalibration` fits the mean residual in each bin of the probability. Edges and gaps are always on the host.
"""

from __future__ import annotations

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice, check_integer
from kcalib._pairs.statistics import group_sums
from kcalib.estimators.binning import MAX_BINS, N_BINS, Binning
from kcalib.lenses import Lens, TopLabel
from kcalib.regression._function import CalibrationFunction, Problem

__all__ = ["BinnedCalibration"]

TOP_LABEL = TopLabel()


class BinnedCalibration(CalibrationFunction):
    r"""Estimation function by bins: the squared difference of confidence and accuracy in the bin.

    With the gap :math:`\mathrm{conf} - \mathrm{acc}` of each bin of the training samples,

    .. math:: h(p, p') = \mathrm{gap}(\mathrm{bin}(p))\, \mathrm{gap}(\mathrm{bin}(p')) ,

    so that `squared_error` of the training samples is the squared binned L2 error; of other samples the estimate is
    less optimistic. A bin without training samples has the gap of all samples together.

    Parameters
    ----------
    n_bins : int
        Number of bins, 1 to 1,000,000.
    binning : {"uniform", "equal_mass"}
        Bins of equal width, or with equal numbers of training samples (up to one), as in `kcalib.top_label_ece`. Bins
        are right-closed, (a, b], and the first includes 0. Equal probabilities share a bin, so "equal_mass" may make
        fewer bins: see `n_bins_`.
    lens : Lens, optional
        Notion of calibration with one probability, one of `kcalib.lenses`; by default the confidence in the predicted
        class. None is possible for two classes only; then bins are of the probability of the second class, and `h` is
        twice that of ``ClassWise(1)``.

    Attributes
    ----------
    n_bins_ : int
        Number of bins.
    edges_ : ndarray of float64, shape (b - 1,)
        Edges between these b bins, ascending.
    gaps_ : ndarray of float64, shape (b, 1), or (b, 2) for two classes without a lens
        Confidence minus accuracy.
    counts_ : ndarray of int64, shape (b,)
        Training samples in each bin.

    See Also
    --------
    kcalib.top_label_ece : The L1 error with the same bins.
    kcalib.regression.SquaredCalibrationErrorCV : Choose the number of bins by risk.

    Notes
    -----
    Fitting sorts n probabilities; evaluation takes O(n log n_bins) time. `fit` raises ValueError for more than two
    classes without a lens, and with "equal_mass" for more bins than samples; TypeError or ValueError if a parameter is
    out of range.

    References
    ----------
    .. [1] S. G. Gruber, F. Bach. Optimizing estimators of squared calibration errors in classification. 2025,
       equation 23.

    Examples
    --------
    >>> from kcalib.regression import BinnedCalibration
    >>> y, p = [0, 1, 1, 0], [[0.9, 0.1], [0.9, 0.1], [0.3, 0.7], [0.4, 0.6]]
    >>> function = BinnedCalibration(n_bins=5).fit(y, p)
    >>> function.counts_.tolist()
    [0, 0, 1, 1, 2]
    >>> function.gaps_.ravel().round(6).tolist()
    [0.275, 0.275, 0.6, -0.3, 0.4]
    >>> round(function.squared_error(p), 6)
    0.1925
    """

    def __init__(self, n_bins: int = N_BINS, *, binning: str = "uniform", lens: Lens | None = TOP_LABEL) -> None:
        self.n_bins = n_bins
        self.binning = binning
        self.lens = lens

    def _fit(self, problem: Problem) -> None:
        n_bins = check_integer("n_bins", self.n_bins, 1, MAX_BINS)
        check_choice("binning", self.binning, ("uniform", "equal_mass"))
        if problem.points.shape[1] > 2:
            raise ValueError(
                f"BinnedCalibration has no bins for {problem.points.shape[1]} classes together; pass a lens with one "
                "probability, such as lens=kcalib.lenses.TopLabel() or ClassWise(0), or use another estimator"
            )
        if self.binning == "equal_mass" and n_bins > problem.n:
            raise ValueError(
                f"`n_bins` is {n_bins}, there are {problem.n} samples to fit; bins of equal mass need at least one "
                "each: pass fewer bins, or binning='uniform'"
            )
        xp = arrays.namespace(problem.points)
        self.edges_ = Binning(self.binning, n_bins).edges(xp.sort(problem.points[:, -1]))[1:-1]
        self.n_bins_ = len(self.edges_) + 1
        index = self._bins(problem)
        self.counts_ = arrays.to_host(xp.bincount(index, minlength=self.n_bins_))
        gaps = -problem.residuals
        (sums,) = group_sums(index, self.n_bins_, gaps)
        means = arrays.to_host(sums) / np.maximum(self.counts_[:, None], 1)
        self.gaps_ = np.where(self.counts_[:, None] > 0, means, arrays.to_host(gaps.mean(axis=0)))

    def _features(self, problem: Problem) -> Array:
        return arrays.asarray_like(self.gaps_, problem.points)[self._bins(problem)]

    def _bins(self, problem: Problem) -> Array:
        edges = arrays.asarray_like(self.edges_, problem.points)
        return arrays.namespace(edges).searchsorted(edges, problem.points[:, -1], side="left")
