"""Decompose the Brier score into miscalibration (reliability), discrimination (resolution) and uncertainty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import check_choice
from kcalib._backend.warnings import warn
from kcalib._input.labels import Classification, prepare
from kcalib._pairs.statistics import group_sums, row_groups
from kcalib.estimators.event_bins import Sample, check_binning, cut, effective_numbers
from kcalib.estimators.scores import brier_score_of, is_halved
from kcalib.lenses import Lens
from kcalib.report.summary import Summarized

__all__ = ["BrierDecomposition", "brier_decomposition"]

GROUPINGS = ("classwise", "canonical")


@dataclass(frozen=True)
class BrierDecomposition(Summarized):
    """The Brier score as a sum of terms, all on the scale of the score.

    score = miscalibration - discrimination + uncertainty + within_variance - within_covariance
    """

    score: float  #: `kcalib.brier_score`
    miscalibration: float  #: also reliability, REL, MCB: what recalibration would gain; 0 is best
    discrimination: float  #: also resolution, RES, DSC: what the groups tell about the labels; larger is better
    uncertainty: float  #: UNC: score of the class frequencies as a constant prediction
    within_variance: float  #: WBV: variance of predictions within groups; 0 for "isotonic"
    within_covariance: float  #: WBC: twice the covariance of predictions and labels within groups; 0 for "isotonic"
    noise: float | None  #: estimated bias of both miscalibration and discrimination due to noise; None if unknown
    binning: str  #: "uniform", "equal_mass" or "isotonic"
    grouping: str  #: "classwise" or "canonical"
    n_bins: int | None  #: bins of each probability, as given; None for "isotonic"
    n_groups: int  #: number of groups that hold samples, over all classes
    n_singletons: int | None  #: number of groups of one sample, which `noise` ignores; None for weighted states
    scale_by_half: bool  #: whether the sum over classes is halved
    lens: str  #: notion of calibration, one of `kcalib.lenses`
    n_samples: int  #: number of samples
    n_classes: int  #: number of classes, induced ones with a lens

    def __float__(self) -> float:
        return self.score

    @property
    def refinement(self) -> float:
        """The sharpness term: uncertainty - discrimination; 0 if each group has labels of one class only."""
        return self.uncertainty - self.discrimination


@on_their_gpu
def brier_decomposition(
    y_true: Any,
    y_pred: Any,
    *,
    lens: Lens | None = None,
    grouping: str | None = None,
    binning: str = "uniform",
    n_bins: int | None = None,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
    scale_by_half: bool | str = "auto",
) -> BrierDecomposition:
    r"""Decompose the Brier score into calibration and sharpness.

    For predictions P and one-hot labels E ([1]_, [2]_)

    .. math:: \operatorname{E} \lVert P - E \rVert^2 = \operatorname{E} \lVert P - \operatorname{E}[E \mid P] \rVert^2
              + \operatorname{E} \lVert E - \operatorname{E}[E \mid P] \rVert^2 ,

    a calibration term and a sharpness term (refinement), which is uncertainty minus resolution. The conditional
    expectation is estimated by the mean label of a group of samples with similar predictions.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`.
    lens : Lens, optional
        Notion of calibration, see `kcalib.lenses`. Default: the whole vector of probabilities.
    grouping : {"classwise", "canonical"}, optional
        What predictions are similar, for more than two classes. "classwise" (default): each class has its own groups,
        by its probability. The score is a sum over classes, and miscalibration uses E[E_k | P_k] instead of E[E_k | P].
        "canonical": groups are cells of the simplex, products of bins of all probabilities. For two classes both use
        bins of the probability of the second class.
    binning : {"uniform", "equal_mass", "isotonic"}
        Bins of each probability, as in `kcalib.reliability`. "isotonic", for "classwise" only, is the CORP
        decomposition [3]_.
    n_bins : int, optional
        Number of bins of each probability, 1 to 1,000,000. Default: 15. Not for "isotonic".
    sample_weight : array_like, shape (n,), optional
        Non-negative weights. Samples of weight 0 are ignored.
    scale_by_half : bool or "auto"
        As in `kcalib.brier_score`.

    Returns
    -------
    BrierDecomposition
        The score and its terms.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce`. Also if an argument is out of range; if `n_bins` or canonical cells are combined with
        "isotonic".
    NotImplementedError
        For "isotonic" on a GPU.

    Warns
    -----
    UserWarning
        If more than half of the cells of ``grouping="canonical"`` hold one sample.

    Notes
    -----
    With the means :math:`\bar p_g, \bar e_g` of a group, its share :math:`s_g` of the weight, and the mean label
    :math:`\bar e` ([4]_, [5]_)

    .. math:: \mathrm{score} = \underbrace{\sum_g s_g \lVert \bar p_g - \bar e_g \rVert^2}_{\text{miscalibration}}
              - \underbrace{\sum_g s_g \lVert \bar e_g - \bar e \rVert^2}_{\text{discrimination}}
              + \underbrace{1 - \lVert \bar e \rVert^2}_{\text{uncertainty}}
              + \underbrace{\langle \lVert p - \bar p_g \rVert^2 \rangle}_{\text{within variance}}
              - \underbrace{2 \langle (e - \bar e_g) \cdot (p - \bar p_g) \rangle}_{\text{within covariance}} ,

    exactly; angle brackets are means over samples. For "isotonic" miscalibration is the score minus that of the
    recalibrated predictions, which is never negative, discrimination is uncertainty minus the score of the
    recalibrated predictions, and terms within groups are 0. With more than two classes each class is recalibrated
    separately.

    **Bias.** The variance of group frequencies increases both miscalibration and discrimination. `noise` of the result
    estimates this bias [6]_, without groups of one sample. Wide bins average over different predictions and hide
    miscalibration.

    Time O(n m log n); memory O(n m).

    References
    ----------
    .. [1] J. Broecker. Reliability, sufficiency, and the decomposition of proper scores. QJRMS 135, 2009.
    .. [2] S. G. Gruber, F. Bach. Optimizing estimators of squared calibration errors in classification. 2024,
       equation 5.
    .. [3] T. Dimitriadis, T. Gneiting, A. I. Jordan. Stable reliability diagrams for probabilistic
       classifiers. PNAS 118(8), 2021.
    .. [4] A. H. Murphy. A new vector partition of the probability score. Journal of Applied Meteorology 12, 1973.
    .. [5] D. B. Stephenson, C. A. S. Coelho, I. T. Jolliffe. Two extra components in the Brier score
       decomposition. Weather and Forecasting 23, 2008.
    .. [6] C. A. T. Ferro, T. E. Fricker. A bias-corrected decomposition of the Brier score. QJRMS 138, 2012.

    Examples
    --------
    >>> import kcalib
    >>> parts = kcalib.brier_decomposition([0, 1, 1, 0], [0.2, 0.2, 0.8, 0.8], n_bins=2)
    >>> round(parts.score, 6), round(parts.miscalibration, 6), round(parts.discrimination, 6), parts.uncertainty
    (0.34, 0.09, 0.0, 0.25)
    """
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, sample_weight=sample_weight, lens=lens)
    n_bins = check_binning(binning, n_bins)
    grouping = check_choice("grouping", "classwise" if grouping is None else grouping, GROUPINGS)
    is_half = is_halved(scale_by_half, data.m)
    if grouping == "canonical" and binning == "isotonic" and data.m > 2:
        raise ValueError(
            f"`binning` is 'isotonic', which needs an order, but grouping='canonical' compares vectors of {data.m} "
            "probabilities; use grouping='classwise' or another binning"
        )
    terms = [_terms(*part) for part in _parts(data, grouping, binning, n_bins)]
    total = _Terms(*(sum(column) for column in zip(*terms, strict=True)))
    if grouping == "canonical" and data.m > 2 and total.n_singletons > total.n_groups / 2:
        warn(
            f"{total.n_singletons} of {total.n_groups} cells hold one sample, whose label alone makes up the "
            "calibration term there; use fewer n_bins or grouping='classwise'",
            UserWarning,
        )
    scale = 0.5 if is_half else 1.0
    miscalibration, variance, covariance = total.miscalibration, total.within_variance, total.within_covariance
    if binning == "isotonic":  # negative by rounding only
        miscalibration, variance, covariance = max(0.0, miscalibration + variance - covariance), 0.0, 0.0
    return BrierDecomposition(
        score=brier_score_of(data, is_half),
        miscalibration=scale * miscalibration,
        discrimination=scale * total.discrimination,
        uncertainty=scale * total.uncertainty,
        within_variance=scale * variance,
        within_covariance=scale * covariance,
        noise=None if binning == "isotonic" else scale * total.noise,
        binning=binning,
        grouping=grouping,
        n_bins=n_bins,
        n_groups=total.n_groups,
        n_singletons=total.n_singletons,
        scale_by_half=is_half,
        lens=str(data.lens),
        n_samples=data.n,
        n_classes=data.m,
    )


class _Terms(NamedTuple):
    """Terms of the decomposition, as sums over classes."""

    miscalibration: float
    discrimination: float
    uncertainty: float
    within_variance: float
    within_covariance: float
    noise: float
    n_groups: int
    n_singletons: int


class _Part(NamedTuple):
    """Some of the classes and the groups of samples for these, without samples of weight 0."""

    probabilities: Array  # shape: (n, classes)
    events: Array  # 0 or 1, the same shape
    weight: Array  # shape: (n,)
    group: Array  # integers from 0, shape: (n,)


def _parts(data: Classification, grouping: str, binning: str, n_bins: int | None) -> Iterator[_Part]:
    p, labels = (
        arrays.to_compute_device(data.probabilities, np.float64),
        arrays.to_compute_device(data.labels, np.int64),
    )
    xp = arrays.namespace(p)
    weight = xp.ones_like(p[:, 0])
    if data.sample_weight is not None:
        weight = arrays.to_compute_device(data.sample_weight, np.float64)
        has_weight = weight > 0
        p, labels, weight = p[has_weight], labels[has_weight], weight[has_weight]
    events = xp.astype(labels[:, None] == arrays.like(np.arange(data.m), labels), p.dtype)

    def groups(k: int) -> Array:
        return cut(Sample(p[:, k], events[:, k], weight), binning, n_bins)[1]

    if data.m == 2:
        yield _Part(p, events, weight, groups(1))
    elif grouping == "canonical":
        bins = xp.stack([groups(k) for k in range(data.m)], axis=1)
        cells = np.unique(bins, axis=0, return_inverse=True)[1] if arrays.is_host(bins) else row_groups(bins)[0]
        yield _Part(p, events, weight, cells)
    else:
        for k in range(data.m):
            yield _Part(p[:, k : k + 1], events[:, k : k + 1], weight, groups(k))


def _terms(p: Array, events: Array, weight: Array, group: Array) -> _Terms:
    xp = arrays.namespace(p)
    group = xp.unique(group, return_inverse=True)[1]  # without empty groups
    size = xp.bincount(group)
    total, n_groups = xp.sum(weight), len(size)
    (sums,) = group_sums(group, n_groups, weight)
    share = 1 / effective_numbers(group, weight, size, sums)  # variance of a weighted mean, relative to a sample's
    loss = xp.where(size > 1, share / xp.where(size > 1, 1 - share, 1.0), 0.0)
    terms = np.zeros(6)
    for k in range(p.shape[1]):
        p_k, e_k = p[:, k], events[:, k]
        mean_p, mean_e = (totals / sums for totals in group_sums(group, n_groups, weight * p_k, weight * e_k))
        overall = xp.sum(weight * e_k) / total
        within_p, within_e = p_k - mean_p[group], e_k - mean_e[group]
        totals = (
            xp.sum(sums * (mean_p - mean_e) ** 2) / total,
            xp.sum(sums * (mean_e - overall) ** 2) / total,
            overall * (1 - overall),
            xp.sum(weight * within_p**2) / total,
            2 * xp.sum(weight * within_e * within_p) / total,
            xp.sum(sums * mean_e * (1 - mean_e) * loss) / total,
        )
        terms += totals if arrays.is_host(p) else arrays.to_host(xp.stack(totals))
    rel, res, unc, variance, covariance, noise = (float(term) for term in terms)
    return _Terms(rel, res, unc, variance, covariance, noise, n_groups, int(xp.sum(size == 1)))
