"""Compute reliability diagrams: observed frequencies against predicted probabilities, with bands.

`diagram_of` takes checked data. Bins come from `event_bins`, bands from `bands`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import LARGEST_KEY, SEED, check_choice, check_seed
from kcalib._input.labels import Classification, prepare
from kcalib._pairs.statistics import group_sums
from kcalib.estimators.bands import (
    MAX_POINTS,
    Band,
    Draws,
    clopper_pearson,
    drawn_band,
    exact_band,
    isotonic_band,
)
from kcalib.estimators.binning import bin_edges
from kcalib.estimators.curves.smooth_ece import smooth_curve, smooth_error
from kcalib.estimators.ece import result_of_columns
from kcalib.estimators.event_bins import BINNINGS, Bins, Sample, check_binning, cut, find_bins
from kcalib.lenses import ClassWise, Confidence, Lens, TopLabel
from kcalib.report import diagrams
from kcalib.report.summary import Summarized

__all__ = ["Band", "ReliabilityDiagram", "reliability"]

BANDS = ("both", "confidence", "consistency")
FITTED = ("isotonic", "smooth")  # binnings with pointwise bands from draws
HISTOGRAM_BINS = 20
HIGHEST_LEVEL = 1 - 1e-6  # exact tails have an absolute error of 1e-11 for a million samples in a bin


@dataclass(frozen=True, eq=False)
class ReliabilityDiagram(Summarized):
    """The numbers of a reliability diagram; `plot` draws it.

    Arrays are float64. Bins without samples have NaN for all numbers except edges, counts and the confidence interval,
    which is [0, 1]. Points of curves ("smooth") have numbers without samples, too.
    """

    edges: np.ndarray  #: bin b is (edges[b], edges[b + 1]], with 0 in the first; shape (n_bins + 1,)
    count: np.ndarray  #: samples of positive weight in each bin, int64, shape (n_bins,)
    weight: np.ndarray  #: sum of their weights, shape (n_bins,)
    confidence: np.ndarray  #: mean confidence, shape (n_bins,); for "smooth" the kernel-weighted mean of all samples
    frequency: np.ndarray  #: share of samples with the event, shape (n_bins,); for "smooth" likewise
    lowest: np.ndarray  #: smallest confidence, shape (n_bins,); NaN in states, except for the top label
    highest: np.ndarray  #: largest confidence, shape (n_bins,)
    points: np.ndarray  #: confidences of the bands: means of bins, or up to 1000 confidences for "isotonic"
    confidence_band: Band | None  #: limits of the true frequency at `points`
    consistency_band: Band | None  #: limits of the observed frequency at `points` under calibration
    histogram: np.ndarray  #: share of the weight in bins of equal width (`n_bins` of them if uniform, else 20)
    binning: str  #: "uniform", "equal_mass", "isotonic" or "smooth"
    n_bins: int  #: number of bins; fewer than requested if there are ties
    confidence_level: float  #: of the bands
    simultaneous: bool  #: whether the bands hold for all bins at once instead of each separately
    #: "exact", "binomial" (of states), "resampling" (of labels) or "resampling predictions"; None without the band
    consistency_method: str | None
    n_resamples: int | None  #: draws of all labels; None if nothing was drawn
    seed: int | None  #: of the draws; None if nothing was drawn
    lens: str  #: one of `kcalib.lenses`; defines confidence and event
    n_samples: int  #: number of samples
    bandwidth: float | None = None  #: of the kernel ("smooth")

    def __repr__(self) -> str:
        return (
            f"ReliabilityDiagram(binning={self.binning!r}, n_bins={self.n_bins}, lens={self.lens}, "
            f"n_samples={self.n_samples}, confidence_level={self.confidence_level:g}, "
            f"simultaneous={self.simultaneous}, consistency_method={self.consistency_method!r})"
        )

    def plot(
        self,
        ax: Any = None,
        *,
        color: str | None = None,
        histogram: bool = True,
        legend: bool = True,
        scale: str = "linear",
    ) -> Any:
        """Plot the diagram: points and confidence intervals, consistency bands, the diagonal, a histogram.

        Points of bins with less than 0.3 / `n_bins` of the samples are faded.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on. Default: axes of a new figure, which pyplot does not manage (save it by
            ``ax.figure.savefig``).
        color : str, optional
            Color of points and confidence intervals. Default: a blue, lighter on dark axes.
        histogram : bool
            Whether to draw a histogram of the confidences in the lower part of `ax`.
        legend : bool
            Whether to draw a legend above the diagram.
        scale : {"linear", "logit"}
            Scale of both axes. "logit" spreads out confidences near 0 and 1, which are typical of networks; best with
            ``binning="equal_mass"``. Values beyond the ends of the axes, such as an accuracy of 1, are drawn at the
            ends, and the histogram is a density.

        Returns
        -------
        matplotlib.axes.Axes
            The axes of the diagram.

        Raises
        ------
        ImportError
            If matplotlib is missing; ``pip install 'kcalib[plot]'``.
        ValueError
            If `scale` is unknown; if `histogram` is True, but `ax` is no cell of a grid of axes.
        """
        labels = (
            ("confidence", "accuracy") if has_confidence(self.lens) else ("predicted probability", "observed frequency")
        )
        return diagrams.plot_diagram(self, ax, labels, color, histogram, legend, scale)


@on_their_gpu
def reliability(
    y_true: Any,
    y_pred: Any,
    *,
    lens: Lens | None = None,
    n_bins: int | None = None,
    binning: str = "uniform",
    confidence_level: float = 0.95,
    bands: str | None = None,
    simultaneous: bool = False,
    seed: int | None = SEED,
    sample_weight: Any = None,
    classes: Any = None,
    from_logits: bool = False,
) -> ReliabilityDiagram:
    r"""Compute a reliability diagram with confidence and consistency bands.

    Samples are binned by their confidence, the predicted probability of an event. In each bin, the share of samples
    with the event is compared with the mean confidence.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`.
    lens : Lens, optional
        Defines the event. Default: ``kcalib.lenses.TopLabel()``, "the predicted class is right". Others are
        ``kcalib.lenses.ClassWise(k)``, "the class is k", and for binary problems ``kcalib.lenses.Canonical()``, "the
        class is the second one".
    n_bins : int, optional
        Number of bins, 1 to 1,000,000. Default: 15. For "smooth" the number of points. Default: 100.
    binning : {"uniform", "equal_mass", "isotonic", "smooth"}
        How frequencies are estimated:

        - "uniform": in bins of equal width.
        - "equal_mass": in bins with equal shares of the weight, as far as ties allow.
        - "isotonic": by isotonic regression of events on confidences, the CORP diagram [1]_, without a number of bins.
        - "smooth": at equally spaced points, by means of all samples with Gaussian kernel weights, and the bandwidth of
          `kcalib.smooth_ece`.
    confidence_level : float
        Confidence level of both bands, in (0, 1).
    bands : {"both", "confidence", "consistency"}, optional
        Which bands to compute. Default: "both"; for "isotonic" and "smooth" "consistency", the only one they have.
    simultaneous : bool
        Whether the bands hold for all bins at once with probability `confidence_level`. The Sidak correction widens
        them; it is exact, since bins are independent given the predictions. Not for "isotonic" and "smooth".
    seed : int, optional
        Seed of the draws for consistency bands of "isotonic", "smooth" and weighted samples, 0 to 2**64 - 1; all other
        bands are exact. None draws one, which the diagram reports.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights. Samples of weight 0 are ignored.

    Returns
    -------
    ReliabilityDiagram
        The numbers of the diagram, with a method `plot`.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce`. Also if an argument is out of range; if an option without effect is given; if the lens has
        more than two induced classes.
    NotImplementedError
        For "isotonic" on a GPU.
    MemoryError
        If there is no memory for the draws.

    Notes
    -----
    **Confidence bands** contain the true frequency of a bin; they are Clopper-Pearson intervals [2]_. **Consistency
    bands** [3]_ contain the observed frequency under calibration; they are exact, except for weights, isotonic
    regression and curves, where they come from R draws of the labels. A point is outside its confidence band in nearly
    the same cases as outside its consistency band.

    Isotonic regression keeps the order of the predictions; tied confidences share a value. Its frequencies are too
    extreme at both ends, like those of every fit; the consistency band accounts for that. The band holds at `points`:
    all distinct confidences, or 1000 of them, evenly spaced by rank.

    Time O(n m + n log n), plus O(n log^2 n) for exact bands or O(R n) for draws. Memory O(n m), plus 16 R k bytes for
    draws at k points.

    References
    ----------
    .. [1] T. Dimitriadis, T. Gneiting, A. I. Jordan. Stable reliability diagrams for probabilistic
       classifiers. PNAS 118(8), 2021.
    .. [2] C. J. Clopper, E. S. Pearson. The use of confidence or fiducial limits illustrated in the case of the
       binomial. Biometrika 26, 1934.
    .. [3] J. Broecker, L. A. Smith. Increasing the reliability of reliability diagrams. Weather and
       Forecasting 22, 2007.

    Examples
    --------
    >>> import kcalib
    >>> y, p = [0, 1, 1, 0, 1], [0.2, 0.3, 0.4, 0.6, 0.9]
    >>> diagram = kcalib.reliability(y, p, n_bins=2, lens=kcalib.lenses.Canonical())
    >>> diagram.confidence.round(6), diagram.frequency.round(6)
    (array([0.3 , 0.75]), array([0.666667, 0.5     ]))
    >>> diagram.consistency_band.high.round(6)
    array([0.666667, 1.      ])
    """
    lens = TopLabel() if lens is None else lens
    data = prepare(y_true, y_pred, classes=classes, from_logits=from_logits, sample_weight=sample_weight, lens=lens)
    return diagram_of(
        data,
        n_bins=n_bins,
        binning=binning,
        confidence_level=confidence_level,
        bands=bands,
        simultaneous=simultaneous,
        seed=seed,
    )


def diagram_of(
    data: Classification,
    *,
    n_bins: int | None = None,
    binning: str = "uniform",
    confidence_level: float = 0.95,
    bands: str | None = None,
    simultaneous: bool = False,
    seed: int | None = SEED,
) -> ReliabilityDiagram:
    """Return `reliability` of checked data."""
    n_bins = check_binning(binning, n_bins, (*BINNINGS, "smooth"))
    level = check_level(confidence_level)
    has_confidence, has_consistency = check_bands(bands, binning, simultaneous)
    sample = Sample.of(data)
    is_drawn = has_consistency and (binning in FITTED or data.sample_weight is not None)
    seed = _check_seed(is_drawn, seed)

    edges, index = cut(sample, binning, n_bins)
    bins = Bins.of(sample, index, len(edges) - 1)
    filled = np.flatnonzero(bins.count)
    tail = tail_of(level, len(filled) if simultaneous else 1)
    points, consistency, draws, bandwidth = bins.confidence, None, None, None
    if seed is not None:
        size = {"isotonic": MAX_POINTS, "smooth": len(bins.count)}.get(binning, len(filled))
        draws = Draws.of(seed, tail, size, index)
    if binning == "smooth":
        host = sample.to_host()
        bandwidth = smooth_error(host)[1]
        points, frequency, consistency = smooth_curve(host, bandwidth, (edges[:-1] + edges[1:]) / 2, draws)
        bins = replace(bins, confidence=points, frequency=frequency)
    elif draws is not None and binning == "isotonic":
        points, consistency = isotonic_band(sample, draws)
    elif has_consistency:
        if draws is not None:
            position = arrays.namespace(index).searchsorted(arrays.like(filled, index), index)
            limits = drawn_band(sample, position, draws)
        else:
            limits = exact_band(sample, index, filled, bins.count, tail)
        consistency = Band(*(np.full(len(bins.count), np.nan) for _ in range(2)))
        for limit, values in zip(consistency, limits, strict=True):
            limit[filled] = values
    histogram_edges = edges if binning == "uniform" else bin_edges(HISTOGRAM_BINS)
    in_histogram = arrays.to_host(
        group_sums(find_bins(sample.confidence, histogram_edges), len(histogram_edges) - 1, sample.weight)[0]
    )
    return ReliabilityDiagram(
        edges=edges,
        count=bins.count,
        weight=bins.weight,
        confidence=bins.confidence,
        frequency=bins.frequency,
        lowest=bins.lowest,
        highest=bins.highest,
        points=points,
        confidence_band=clopper_pearson(bins, tail) if has_confidence else None,
        consistency_band=consistency,
        histogram=in_histogram / np.sum(in_histogram),
        binning=binning,
        n_bins=len(edges) - 1,
        confidence_level=level,
        simultaneous=simultaneous,
        consistency_method=("resampling" if is_drawn else "exact") if has_consistency else None,
        n_resamples=None if draws is None else draws.n_resamples,
        seed=seed,
        lens=str(data.lens),
        n_samples=data.n,
        bandwidth=bandwidth,
    )


@dataclass(frozen=True)
class ClassDiagram:
    """A class, its calibration error, and its reliability diagram."""

    name: str
    ece: float
    diagram: ReliabilityDiagram


def has_confidence(lens: str) -> bool:
    """Return whether a diagram of this lens shows confidences and accuracies."""
    return lens in (str(TopLabel()), str(Confidence()))


def worst_classes_of(data: Classification, count: int, n_bins: int, binning: str) -> list[ClassDiagram]:
    """Return the classes with the largest expected calibration errors, worst first."""
    errors = result_of_columns("class_wise", data, "l1", binning, n_bins, None, None, None).class_values
    assert errors is not None
    worst = sorted(range(1 if data.m == 2 else 0, data.m), key=lambda k: (-errors[k], k))[:count]
    return [
        ClassDiagram(
            f"class {data.class_names[k]}",
            errors[k],
            diagram_of(ClassWise(k).induced(data), n_bins=n_bins, binning=binning),
        )
        for k in worst
    ]


def tail_of(level: float, n_bands: int) -> float:
    """Return the tail probability of each of `n_bands` bands that hold at once (Sidak correction)."""
    return float(-np.expm1(np.log(level) / n_bands) if n_bands > 1 else 1 - level) / 2


def check_level(confidence_level: Any) -> float:
    is_number = isinstance(confidence_level, (int, float, np.integer, np.floating))
    if not (is_number and 0 < confidence_level <= HIGHEST_LEVEL):
        raise ValueError(f"`confidence_level` is {confidence_level!r}, expected a number between 0 and {HIGHEST_LEVEL}")
    return float(confidence_level)


def check_bands(bands: str | None, binning: str, simultaneous: Any) -> tuple[bool, bool]:
    """Return whether to compute the confidence band, and the consistency band."""
    if not isinstance(simultaneous, (bool, np.bool_)):
        raise TypeError(f"`simultaneous` is {simultaneous!r}, expected True or False")
    if bands is None:
        bands = "consistency" if binning in FITTED else "both"
    check_choice("bands", bands, BANDS)
    if binning in FITTED and bands != "consistency":
        raise ValueError(
            f"`bands` is {bands!r}, but binning={binning!r} is fitted to the labels, so that limits for given "
            "bins do not hold; use bands='consistency' or another binning"
        )
    if binning in FITTED and simultaneous:
        raise ValueError(
            f"`simultaneous` is True, but the band of binning={binning!r} is pointwise; use another binning"
        )
    return bands != "consistency", bands != "confidence"


def _check_seed(is_drawn: bool, seed: Any) -> int | None:
    """Return the seed of the draws; None if nothing is drawn."""
    if is_drawn:
        return check_seed(seed, LARGEST_KEY)
    if seed is not None and seed != SEED:
        raise ValueError(
            f"`seed` is {seed!r}, but nothing is drawn: labels are for the consistency bands of binning='isotonic', "
            "'smooth' and of weighted samples only; leave it out"
        )
    return None
