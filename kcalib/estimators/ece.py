"""Binned calibration errors of probabilities one at a time: of the top label, and of every class.

The public functions check their input and hand columns to `kcalib.estimators.binning`, whose bins they turn into an
`ECEResult`. That of the whole prediction is `canonical_ece`, that without the part of noise in labels `debiased_ece`.
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
    """A binned calibration error and the bins it is made of."""

    value: float  #: the error
    notion: str  #: "top_label", "class_wise" or "canonical"
    confidence_from: str | None  #: of top labels: "largest probability", of two classes "max(p, 1 - p)", or "as given"
    norm: str  #: of the gaps of bins: "l1", "l2" or "max"
    distance: str | None  #: of mean predictions and mean labels in a bin ("canonical")
    square: float | None  #: the unbiased estimate whose root `value` is, may be negative (`kcalib.debiased_ece`)
    binning: str  #: "uniform", "equal_mass" or "median_variance"
    n_bins: int  #: bins asked for, or chosen by risk; of each column
    n_bins_source: str  #: "given" or "risk"
    risks: tuple[Risk, ...] | None  #: of the numbers of bins tried, as (n_bins, value)
    min_bin_size: int | None  #: of median-variance bins
    n_occupied: int  #: bins that hold samples, of all columns
    bins: tuple[ReliabilityBins, ...] = field(repr=False)  #: of the confidence, or of each class; () for "canonical"
    class_values: tuple[float, ...] | None = field(repr=False)  #: the error of each class ("class_wise")
    class_weight: tuple[float, ...] | None = field(repr=False)  #: of the classes, sums to 1 ("class_wise")
    # NumPy arrays; for predictions on a GPU arrays of their library there.
    bin_number: Any = field(repr=False)  #: of each sample, shape: (n,) ("canonical")
    bin_weight: Any = field(repr=False)  #: sums of sample weights, shape: (n_occupied,) ("canonical")
    bin_distance: Any = field(repr=False)  #: the gaps, shape: (n_occupied,) ("canonical")
    n_samples: int  #: n
    n_classes: int  #: m, of the induced problem if there is a lens
    lens: str  #: the notion of calibration, one of `kcalib.lenses`
    threshold: float | None = None  #: probabilities up to this are left out ("class_wise")

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
    r"""Expected calibration error of the top-label confidence.

    The mean over samples of \|accuracy - mean confidence\| of the bin that the confidence of
    the predicted class falls into. Of classes tied for the highest probability the
    first is the predicted one. It looks at one class of each prediction, depends on
    the bins, and is biased upwards: see `kcalib.skce` for a number without these.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`.
    n_bins : int or "risk"
        Number of bins, 1 to 1,000,000; of median-variance bins the largest. "risk" takes, of 5, 10, ..., 100,
        the number whose calibration-error estimation function has the smallest cross-validated risk.
    norm : {"l1", "l2", "max"}
        Of the gaps: their mean over samples, the root of the mean of their squares, or the largest gap
        (the maximum calibration error).
    binning : {"uniform", "equal_mass", "median_variance"}
        How confidences are cut into bins, right-closed (a, b] with 0 in the first; see the notes. Empty bins do not
        count.
    min_bin_size : int, optional
        "median_variance" only. Samples that every bin holds at least, 1 to n; default 10.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights, for bins of equal width and of equal mass. Samples of weight 0 are left out.
    lens : Lens, optional
        The notion of calibration, see `kcalib.lenses`; default the whole vector. The lens comes first: top labels and
        classes are those of the induced problem.
    threads : int, optional
        Threads on the CPU, at least 1; default as in `kcalib.skce`. The result is the same bit for bit
        for any number.

    Returns
    -------
    float
        The error, in [0, 1]. ``top_label_ece.result`` returns an `ECEResult` with the bins, too.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce` for its arguments; if `norm` or `binning` is something else; if `n_bins` or
        `min_bin_size` is out of range, or above the number of samples (equal-mass bins, bin sizes); if an option is
        given that the binning does not have; with "risk" and fewer than 10 samples.
    MemoryError
        If there is no memory for the sums of all bins.

    Notes
    -----
    **uniform**: the doubles nearest to j / `n_bins` are the edges; the comparison with them is exact.

    **equal_mass**: with the confidences in ascending order the j-th of B bins ends with number
    :math:`\lfloor (n - 1) j / B \rfloor + 1`, as the quantiles of NumPy, and with weights with the last sample that has
    at most the share j / B of the weight before it. Equal confidences share a bin.

    **median_variance**: starting with one bin, the bin of the largest variance is split into confidences below its
    median and others, until there are `n_bins` or no bin can be split into two of `min_bin_size` samples [2]_. Where
    too few are below the median, it is split into those up to the median and others.

    **n_bins="risk"**: the mean over 5 folds (seed 0) of the risk [3]_ (equation 20) of
    h(p, p') = gap(p) gap(p') (equation 23), where gap(p) is that of p's bin in the other folds.

    Time O(n m), sorting in O(n log n) for data-dependent bins; memory O(n) beside the input.

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
    r"""Expected calibration error of the probability of each class, averaged over classes.

    For each class k the error of the binary problem "k or not" with the probability of k, in bins of its own. With
    "l1" the value is :math:`\sum_k w_k \mathrm{ECE}_k`, with "l2" :math:`(\sum_k w_k \mathrm{ECE}_k^2)^{1/2}`, with
    "max" the largest gap of all classes and bins. With many classes most probabilities are near 0, and so is the value.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`. For a binary problem both classes are averaged.
    n_bins, norm, binning, min_bin_size, sample_weight, lens, threads
        As in `kcalib.top_label_ece`; "risk" chooses one number for all classes, by their weighted mean risk.
    class_weight : array_like, shape (m,), optional
        Weights of the classes, not negative, some positive; they are divided by their sum. Default: all equal.
    threshold : float, optional
        Probabilities up to this, in (0, 1), are left out: of each class the error is then that of the samples with a
        larger one, 0 where there are none. With many classes most are near 0, and hide the others.

    Returns
    -------
    float
        The error, in [0, 1]. ``class_wise_ece.result`` returns an `ECEResult` with the bins and the error of each
        class, too.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `kcalib.top_label_ece`; if `class_weight` has another shape, is negative, infinite or all zero,
        or is given with "max", which has no weights; if `threshold` is out of range, leaves no probability, or is given
        with "risk".

    Notes
    -----
    The static calibration error (SCE) [3]_ is this with the defaults; the adaptive one (ACE) [3]_ is
    ``class_wise_ece(y_true, y_pred, binning="equal_mass")``. There bins are weighted by their share of the samples,
    which is 1 / n_bins, as published, where `n_bins` divides n and no equal probabilities meet at an edge. With
    ``threshold=0.01`` it is the thresholded one (TACE) [3]_.

    Uniform bins take one pass over the predictions, O(n m) time and O(n_bins m) memory; other bins sort each
    column, O(n log(n) m) time and O(n) memory; "risk" takes O(n log(n) m) time for any bins.

    References
    ----------
    .. [1] A. Kumar, P. Liang, T. Ma. Verified uncertainty calibration. NeurIPS 2019, definition 2.3.
    .. [2] M. Kull et al. Beyond temperature scaling: Obtaining well-calibrated multiclass probabilities with Dirichlet
       calibration. NeurIPS 2019.
    .. [3] J. Nixon, M. W. Dusenberry, L. Zhang, G. Jerfel, D. Tran. Measuring calibration in deep learning. CVPR
       workshops 2019.

    Examples
    --------
    The first class has two bins, with gaps 0.4 (two samples) and 0.7; so has the second.

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
    """Return the error of the columns of a notion."""
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
    """From the bins of each column; `mixture` are the weights of these, and the fields say what was done.

    `remedy` is what the caller can do about bins of a single sample.
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
    """The error of all columns from those of each."""
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
