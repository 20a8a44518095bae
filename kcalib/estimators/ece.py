"""Binned calibration errors (ECE) of single probabilities: of the top label, and of every class.

Module `canonical_ece` bins whole predictions, `debiased_ece` subtracts the noise of the labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.options import check_choice, check_fraction
from kcalib._backend.threads import resolve_threads
from kcalib._input.labels import Classification, prepare
from kcalib.estimators.bin_risk import Risk, n_bins_by_risk
from kcalib.estimators.binning import (
    N_BINS,
    Binning,
    ReliabilityBins,
    class_columns,
    column_bins,
    top_label_column,
)
from kcalib.estimators.with_result import with_result
from kcalib.lenses import Lens, TopLabel
from kcalib.report.summary import Summarized

__all__ = [
    "ECEResult",
    "class_wise_ece",
    "top_label_ece",
]

NORMS = ("l1", "l2", "max")


@dataclass(frozen=True)
class ECEResult(Summarized):
    """A binned calibration error and its bins."""

    value: float  #: the error
    notion: str  #: "top_label", "class_wise" or "canonical"
    confidence_from: str | None  #: "largest probability", "max(p, 1 - p)" (two classes) or "as given"; else None
    norm: str  #: norm of the gaps of bins: "l1", "l2" or "max"
    distance: str | None  #: between mean prediction and mean label of a bin ("canonical")
    square: float | None  #: unbiased estimate of the squared error, may be negative (`kcalib.debiased_ece`)
    binning: str  #: "uniform", "equal_mass" or "median_variance"
    n_bins: int  #: number of bins of each column, as given or chosen by risk
    n_bins_source: str  #: "given" or "risk"
    risks: tuple[Risk, ...] | None  #: of each candidate `n_bins`, as (n_bins, value)
    min_bin_size: int | None  #: minimum size of median-variance bins
    n_occupied: int  #: number of bins that hold samples, over all columns
    bins: tuple[ReliabilityBins, ...] = field(repr=False)  #: of the confidence, or of each class; () for "canonical"
    class_values: tuple[float, ...] | None = field(repr=False)  #: the error of each class ("class_wise")
    class_weight: tuple[float, ...] | None = field(repr=False)  #: of the classes, sums to 1 ("class_wise")
    # NumPy arrays; for predictions on a GPU arrays of their library there.
    bin_number: Any = field(repr=False)  #: bin of each sample, shape: (n,) ("canonical")
    bin_weight: Any = field(repr=False)  #: sums of sample weights, shape: (n_occupied,) ("canonical")
    bin_distance: Any = field(repr=False)  #: gaps, shape: (n_occupied,) ("canonical")
    n_samples: int  #: number of samples
    n_classes: int  #: number of classes, induced ones with a lens
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    threshold: float | None = None  #: probabilities up to this are excluded ("class_wise")

    def __float__(self) -> float:
        return self.value


@with_result
def top_label_ece(
    needs_result: bool,
    y_true: Any,
    y_pred: Any,
    *,
    n_bins: int | str = N_BINS,
    norm: str = "l1",
    binning: str = "uniform",
    min_bin_size: int | None = None,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    threads: int | None = None,
) -> float | ECEResult:
    r"""Compute the expected calibration error (ECE) of the top-label confidence.

    Samples are binned by their confidence, the probability of the predicted class. The ECE is the mean over samples of
    \|accuracy - mean confidence\| of the sample's bin. The first of several most probable classes is the predicted one.
    The ECE uses one class of each prediction, depends on the bins, and is biased upwards; `kcalib.skce` avoids this.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`.
    n_bins : int or "risk"
        Number of bins, 1 to 1,000,000; for median-variance bins the largest number. "risk" chooses the number among
        5, 10, ..., 100 with the smallest cross-validated risk; see the Notes.
    norm : {"l1", "l2", "max"}
        Mean of the gaps over samples, root mean square of the gaps, or largest gap (the maximum calibration error).
    binning : {"uniform", "equal_mass", "median_variance"}
        Type of bins, see the Notes. Bins are right-closed, (a, b], and the first includes 0. Empty bins are ignored.
    min_bin_size : int, optional
        Minimum number of samples in a bin, 1 to n, for "median_variance" only. Default: 10.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights, for "uniform" and "equal_mass". Samples of weight 0 are ignored.
    lens : Lens, optional
        Notion of calibration, see `kcalib.lenses`. Top labels and classes are then those of the induced problem.
        Default: the whole vector of probabilities.
    threads : int, optional
        As in `kcalib.skce`.

    Returns
    -------
    float
        The error, in [0, 1]. ``top_label_ece.result`` returns an `ECEResult` with the bins, too.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce`. Also if `norm` or `binning` is unknown; if `n_bins` or `min_bin_size` is out of range, or
        above the number of samples (equal-mass bins, bin sizes); if the binning does not have a given option; with
        "risk" and fewer than 10 samples.
    MemoryError
        If there is no memory for the sums of all bins.

    Notes
    -----
    **uniform**: bins of equal width, with edges at the doubles nearest to j / `n_bins`. Comparisons are exact.

    **equal_mass**: bins with equal numbers of samples. Among the sorted confidences the j-th of B bins ends with number
    :math:`\lfloor (n - 1) j / B \rfloor + 1`, as NumPy's quantiles do; with weights it ends with the last sample that
    has at most the share j / B of the weight before it. Equal confidences are in the same bin.

    **median_variance**: starting with one bin, the bin of the largest variance is split at its median into lower
    confidences and others, until there are `n_bins` bins or no bin can be split into two of `min_bin_size` samples
    [2]_. If too few confidences are below the median, it is split into those up to the median and others.

    **n_bins="risk"**: the risk is the mean over 5 folds (seed 0) of equation 20 of [3]_ for the estimation function
    h(p, p') = gap(p) gap(p') (equation 23), where gap(p) is the gap of p's bin in the other folds.

    Time O(n m), plus O(n log n) for bins that depend on the data; memory O(n) without the input.

    References
    ----------
    .. [1] C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On calibration of modern neural
       networks. ICML 2017, equation 3.
    .. [2] D. Widmann, F. Lindsten, D. Zachariah. Calibration tests in multi-class
       classification: A unifying framework. NeurIPS 2019.
    .. [3] S. G. Gruber, F. Bach. Optimizing estimators of squared calibration errors in classification. TMLR 2025.

    Examples
    --------
    >>> import kcalib
    >>> round(kcalib.top_label_ece([0, 1, 1], [[0.9, 0.1], [0.9, 0.1], [0.3, 0.7]]), 6)
    0.366667
    >>> result = kcalib.top_label_ece.result([0, 1, 1], [[0.9, 0.1], [0.9, 0.1], [0.3, 0.7]], n_bins=2)
    >>> result.bins[0].weight.tolist(), result.bins[0].accuracy.round(4).tolist()
    ([0.0, 3.0], [0.0, 0.6667])
    """
    data = prepare(
        y_true,
        y_pred,
        classes=classes,
        from_logits=from_logits,
        lens=lens,
        sparse_lens=TopLabel(),
        sample_weight=sample_weight,
        threads=threads,
    )
    result = result_of_columns("top_label", data, norm, binning, n_bins, min_bin_size, None, threads)
    return result if needs_result else result.value


@with_result
def class_wise_ece(
    needs_result: bool,
    y_true: Any,
    y_pred: Any,
    *,
    n_bins: int | str = N_BINS,
    norm: str = "l1",
    binning: str = "uniform",
    min_bin_size: int | None = None,
    class_weight: Any = None,
    threshold: float | None = None,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Lens | None = None,
    threads: int | None = None,
) -> float | ECEResult:
    r"""Compute the expected calibration error of each class, averaged over classes.

    The error of class k is that of the binary problem "k or not", with its own bins. The value is
    :math:`\sum_k w_k \mathrm{ECE}_k` with "l1", :math:`(\sum_k w_k \mathrm{ECE}_k^2)^{1/2}` with "l2", and the largest
    gap of all classes and bins with "max". With many classes most probabilities are near 0, and so is the value.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`. For binary problems the value is the average over both classes.
    n_bins, norm, binning, min_bin_size, sample_weight, lens, threads
        As in `kcalib.top_label_ece`. "risk" chooses one number of bins for all classes, by their weighted mean risk.
    class_weight : array_like, shape (m,), optional
        Non-negative weights of the classes, not all 0; they are divided by their sum. Default: equal weights.
    threshold : float, optional
        Ignore probabilities up to this threshold, in (0, 1), so that the many near 0 do not hide the others. The error
        of a class is then that of samples with a larger probability, 0 if there are none.

    Returns
    -------
    float
        The error, in [0, 1]. ``class_wise_ece.result`` returns an `ECEResult` with the bins and the error of each
        class.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `kcalib.top_label_ece`. Also if `class_weight` has another shape, is negative, infinite or all zero, or is
        given with "max"; if `threshold` is out of range, excludes all probabilities, or is given with "risk".

    Notes
    -----
    With the defaults this is the static calibration error (SCE) [3]_; with ``binning="equal_mass"`` the adaptive one
    (ACE) [3]_, and with ``threshold=0.01`` as well the thresholded adaptive one (TACE) [3]_. Bins are weighted by their
    share of the samples; the ACE of the paper weights them equally, which is the same if `n_bins` divides n and no
    equal probabilities meet at an edge.

    Uniform bins take time O(n m) and memory O(n_bins m); other bins sort each column, in time O(n log(n) m) and memory
    O(n). "risk" takes time O(n log(n) m).

    References
    ----------
    .. [1] A. Kumar, P. Liang, T. Ma. Verified uncertainty calibration. NeurIPS 2019, definition 2.3.
    .. [2] M. Kull et al. Beyond temperature scaling: Obtaining well-calibrated multiclass probabilities with Dirichlet
       calibration. NeurIPS 2019.
    .. [3] J. Nixon, M. W. Dusenberry, L. Zhang, G. Jerfel, D. Tran. Measuring calibration in deep learning. CVPR
       workshops 2019.

    Examples
    --------
    Both classes have two bins, with gaps 0.4 (two samples) and 0.7:

    >>> import kcalib
    >>> round(kcalib.class_wise_ece([0, 1, 1], [[0.1, 0.9], [0.1, 0.9], [0.7, 0.3]], n_bins=2), 6)
    0.5

    The adaptive calibration error:

    >>> y_pred = [[0.1, 0.9], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]]
    >>> round(kcalib.class_wise_ece([0, 1, 0, 1], y_pred, binning="equal_mass", n_bins=2), 6)
    0.25
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
    result = result_of_columns(
        "class_wise", data, norm, binning, n_bins, min_bin_size, class_weight, threads, threshold=threshold
    )
    return result if needs_result else result.value


def result_of_columns(
    notion: str,
    data: Classification,
    norm: str,
    binning: Any,
    n_bins: Any,
    min_bin_size: Any,
    class_weight: Any,
    threads: Any,
    debiased: bool = False,
    threshold: Any = None,
) -> ECEResult:
    """Return the error of checked data for the notion "top_label" or "class_wise"."""
    check_choice("norm", norm, NORMS)
    threads = resolve_threads(threads)
    weights = None if notion == "top_label" else class_weights(class_weight, data.m, norm)
    by_risk = isinstance(n_bins, str)
    if threshold is not None:
        check_fraction("threshold", threshold)
        if by_risk:
            raise ValueError("`threshold` has no meaning for n_bins='risk'; pass a number of bins")
    if by_risk:
        _check_risk(n_bins, data)
    options = Binning.checked(binning, 1 if by_risk else n_bins, min_bin_size, data)
    columns = top_label_column(data, threads) if notion == "top_label" else class_columns(data)
    mixture = np.ones(1) if weights is None else weights
    risks = None
    if by_risk:
        risks = tuple(n_bins_by_risk(columns, options.rule, options.min_bin_size, mixture, threads))
        options = Binning(options.rule, min(risks, key=lambda risk: risk.value).n_bins, options.min_bin_size)
    bins = column_bins(columns, options, threads, threshold)
    if not any(column.n_occupied for column in bins):
        raise ValueError(f"`threshold` is {threshold}, and no probability is larger; pass a smaller one")
    return result_of_bins(
        notion,
        bins,
        norm,
        mixture,
        debiased=debiased,
        remedy="use fewer bins, or binning='median_variance' with min_bin_size of at least 2",
        **described(options, "risk" if by_risk else "given", risks),
        n_samples=data.n,
        n_classes=data.m,
        confidence_from=data.confidence_from,
        lens=str(data.lens),
        threshold=threshold,
    )


def result_of_bins(
    notion: str,
    bins: tuple[ReliabilityBins, ...],
    norm: str,
    mixture: np.ndarray,
    *,
    debiased: bool,
    remedy: str,
    confidence_from: str,
    **fields: Any,
) -> ECEResult:
    """Return the error of binned columns; `mixture` holds their weights, `fields` are fields of the result.

    `remedy` ends the error message about bins of a single sample.
    """
    square, values = None, np.array([column.error(norm) for column in bins])
    value = _mean(values, mixture, norm)
    if debiased:
        _check_sizes(bins, notion, remedy)
        squares = np.array([column.debiased_square() for column in bins])
        square = float(mixture @ squares)
        value, values = max(0.0, square) ** 0.5, np.sqrt(np.maximum(squares, 0.0))
    by_class = notion == "class_wise"
    return ECEResult(
        value=value,
        notion=notion,
        confidence_from=confidence_from if notion == "top_label" else None,
        norm=norm,
        distance=None,
        square=square,
        n_occupied=sum(column.n_occupied for column in bins),
        bins=bins,
        class_values=tuple(values.tolist()) if by_class else None,
        class_weight=tuple(mixture.tolist()) if by_class else None,
        bin_number=None,
        bin_weight=None,
        bin_distance=None,
        **fields,
    )


def described(options: Binning, source: str, risks: tuple[Risk, ...] | None) -> dict[str, Any]:
    return {
        "binning": options.rule,
        "n_bins": options.n_bins,
        "n_bins_source": source,
        "risks": risks,
        "min_bin_size": options.min_bin_size if options.rule == "median_variance" else None,
    }


def _mean(values: np.ndarray, weight: np.ndarray, norm: str) -> float:
    """Return the error of all columns from the errors of each."""
    if norm == "max":
        return float(np.max(values))
    return float(weight @ values) if norm == "l1" else float(np.sqrt(weight @ values**2))


def _check_risk(n_bins: str, data: Classification) -> None:
    if n_bins != "risk":
        raise ValueError(f"`n_bins` is {n_bins!r}, expected an integer or 'risk'")
    if data.sample_weight is not None:
        raise ValueError("`sample_weight` has no meaning for n_bins='risk', which counts pairs; pass a number of bins")


def _check_sizes(bins: tuple[ReliabilityBins, ...], notion: str, remedy: str) -> None:
    for k, column in enumerate(bins):
        single_bins = np.flatnonzero(column.weight == 1)
        if len(single_bins):
            low, high = column.edges[single_bins[0] : single_bins[0] + 2]
            where = f" of class {k}" if notion == "class_wise" else ""
            raise ValueError(
                f"bin ({low:.6g}, {high:.6g}]{where} holds a single sample, whose noise cannot be estimated; {remedy}"
            )


def class_weights(class_weight: Any, m: int, norm: str) -> np.ndarray:
    if class_weight is None:
        return np.full(m, 1 / m)
    if norm == "max":
        raise ValueError("`class_weight` is given, but norm='max' has no weights; leave it out")
    weights = arrays.to_host(arrays.as_array(class_weight, "class_weight"))
    if weights.dtype.kind not in "biuf":
        raise TypeError(f"`class_weight` has dtype {weights.dtype}, expected numbers")
    if weights.shape != (m,):
        raise ValueError(f"`class_weight` has shape {weights.shape}, expected ({m},): one weight a class")
    weights = weights.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise ValueError(
            f"`class_weight[{wrong[0]}]` is {weights[wrong[0]]}, expected a finite weight >= 0; "
            "pass 0 to leave a class out"
        )
    total = float(np.sum(weights))
    if not 0 < total < float("inf"):
        raise ValueError(f"`class_weight` sums to {total}, expected a positive number; give some class a weight")
    return weights / total
