"""Compute the binned calibration error of whole predictions: bins are cells of the simplex, gaps are distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_choice
from kcalib._backend.threads import resolve_threads
from kcalib._input.labels import prepare
from kcalib._pairs.statistics import group_sums
from kcalib.estimators.binning import N_BINS, Binning, Columns, SimplexBins, class_columns, norm_of, simplex_bins
from kcalib.estimators.ece import NORMS, ECEResult, described
from kcalib.estimators.with_result import with_result
from kcalib.lenses import Lens

OF_GAPS = ("total_variation", "cityblock", "euclidean", "squared_euclidean")  # functions of a norm
DISTANCES = (*OF_GAPS, "kullback_leibler")
Distance = str | Callable[[Array, Array], Any]


@with_result
def canonical_ece(
    needs_result: bool,
    y_true: Any,
    y_pred: Any,
    *,
    n_bins: int = N_BINS,
    norm: str = "l1",
    distance: Distance = "total_variation",
    binning: str = "uniform",
    min_bin_size: int | None = None,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    threads: int | None = None,
) -> float | ECEResult:
    r"""Compute the expected calibration error of whole predictions, by bins on the probability simplex.

    The value is the mean over samples of the distance between mean prediction and mean one-hot label of the sample's
    bin ([1]_, equation 5). For many classes there are many bins. With few samples in each the value is large for every
    model: for single samples it is 1 minus the probability of the label. `kcalib.skce` needs no bins.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`.
    n_bins : int
        For "uniform" the number of bins of each probability, 1 to 1,000,000. For "median_variance" the largest number.
    norm : {"l1", "l2", "max"}
        Mean of the distances over samples, root mean square, or largest distance.
    distance : {"total_variation", "cityblock", "euclidean", "squared_euclidean", "kullback_leibler"} or callable
        "total_variation" is half of "cityblock"; for binary problems it is \|a - b\| for the probabilities a, b of the
        second class. "kullback_leibler" is the divergence of the mean label from the mean prediction,
        :math:`\sum_k \bar e_k \log(\bar e_k / \bar p_k)`, the calibration term of the log loss; it is infinite if a
        class occurs whose probability is 0. A function is called once, with the mean predictions and the mean one-hot
        labels of the bins, float64 arrays of shape (bins, m); it returns numbers >= 0, shape (bins,).
    binning : {"uniform", "median_variance"}
        "uniform": products of the uniform bins of `kcalib.top_label_ece`. "median_variance": starting with one bin, the
        bin in which a probability has the largest (unbiased) variance is split into values below the median of that
        probability and others, until there are `n_bins` bins or no bin can be split. Of bins with equal variances the
        oldest is split first. Empty bins are ignored.
    min_bin_size : int, optional
        Minimum number of samples in a bin, 1 to n, for "median_variance" only. Default: 10. A bin is not split if one
        of its halves would be smaller.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights, for "uniform".
    lens, threads
        As in `kcalib.top_label_ece`.

    Returns
    -------
    float
        The error, in [0, 1] for "total_variation". ``canonical_ece.result`` returns an `ECEResult` with the weight and
        distance of each bin.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.top_label_ece`. Also if `distance` is unknown, or returns something other than numbers >= 0.
    NotImplementedError
        For "median_variance" on a GPU.
    MemoryError
        If there is no memory for O(n) numbers.

    Notes
    -----
    Uniform bins take time O(n m) and at most 80 n bytes without the input. Samples are in the same bin if 128-bit
    hashes of their m bin numbers are equal. Median-variance bins take time O(n m log n_bins) and 48 n bytes. With a
    very large `n_bins` they are the default ``MedianVarianceBinning`` of the Julia package CalibrationErrors.

    References
    ----------
    .. [1] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests in multi-class
       classification: A unifying framework. NeurIPS 2019.
    .. [2] J. Vaicenavicius, D. Widmann, C. Andersson, F. Lindsten, J. Roll, T. B. Schoen. Evaluating model
       calibration in classification. AISTATS 2019.

    Examples
    --------
    The first two samples share a bin with mean prediction (0.65, 0.25, 0.1) and mean label (1/2, 1/2, 0).

    >>> import kcalib
    >>> y_pred = [[0.62, 0.28, 0.1], [0.68, 0.22, 0.1], [0.1, 0.1, 0.8]]
    >>> round(kcalib.canonical_ece([0, 1, 2], y_pred, n_bins=10), 6)
    0.233333
    """
    data = prepare(
        y_true,
        y_pred,
        classes=classes,
        from_logits=from_logits,
        lens=lens,
        sample_weight=sample_weight,
        threads=threads,
    )
    check_choice("norm", norm, NORMS)
    if not callable(distance):
        check_choice("distance", distance, DISTANCES)
    threads = resolve_threads(threads)
    options = Binning.checked(binning, n_bins, min_bin_size, data, ("uniform", "median_variance"))
    columns = class_columns(data)
    kind = "euclidean" if distance in ("euclidean", "squared_euclidean") else "cityblock"
    bins = simplex_bins(columns, options, kind, threads)
    if distance in OF_GAPS:
        gaps = {"total_variation": bins.gap / 2, "squared_euclidean": bins.gap**2}.get(str(distance), bins.gap)
    else:
        gaps = _gaps(columns, bins, _kullback_leibler if isinstance(distance, str) else distance)
    value = norm_of(gaps, bins.weight, norm)
    if not needs_result:
        return value
    return ECEResult(
        value=value,
        notion="canonical",
        confidence_from=None,
        norm=norm,
        distance=distance if isinstance(distance, str) else getattr(distance, "__name__", repr(distance)),
        square=None,
        **described(options, "given", None),
        n_occupied=int((bins.weight > 0).sum()),
        bins=(),
        class_values=None,
        class_weight=None,
        bin_number=arrays.to_original_library(bins.number, y_pred),
        bin_weight=arrays.to_original_library(bins.weight, y_pred),
        bin_distance=arrays.to_original_library(gaps, y_pred),
        n_samples=data.n,
        n_classes=data.m,
        lens=str(data.lens),
    )


def _gaps(columns: Columns, bins: SimplexBins, distance: Callable[[Array, Array], Any]) -> Array:
    """Return distances between mean predictions and mean labels of bins; 0 for bins without weight."""
    values, labels, weight = columns
    xp, (_, m), n_bins = arrays.namespace(values), values.shape, len(bins.weight)
    if weight is None:
        weight = xp.ones_like(values[:, 0])
    (sums,) = group_sums(bins.number, n_bins, values * weight[:, None])
    (hits,) = group_sums(bins.number * m + labels, n_bins * m, weight)
    divisor = xp.where(bins.weight > 0, bins.weight, 1.0)[:, None]
    distances = xp.asarray(distance(sums / divisor, xp.reshape(hits, (n_bins, m)) / divisor), dtype=xp.float64)
    if distances.shape != (n_bins,) or not bool(xp.all(distances >= 0)):
        raise ValueError(
            f"`distance` returned an array of shape {tuple(distances.shape)}, expected one number >= 0 for each of "
            f"{n_bins} bins, shape ({n_bins},); it is called with the means of all bins at once, shape ({n_bins}, {m})"
        )
    return xp.where(bins.weight > 0, distances, 0.0)


def _kullback_leibler(predictions: Array, labels: Array) -> Array:
    xp = arrays.namespace(predictions)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = xp.where(labels > 0, labels / predictions, 1.0)
    return xp.maximum(xp.sum(labels * xp.log(ratios), axis=1), 0.0)  # below 0 by rounding
