"""Reliability diagrams: observed frequency against predicted probability, with bands that say what is noise.

`reliability` checks its arguments, `diagram_of` is the same on checked data (the command calls it). The bins and what
they hold come from `event_bins`, the bands from `bands`.
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
from kcalib.estimators.event_bins import BINNINGS, Bins, Sample, check_binning, cut, numbers
from kcalib.lenses import ClassWise, Confidence, Lens, TopLabel
from kcalib.report import diagrams
from kcalib.report.summary import Summarized

__all__ = ["Band", "ReliabilityDiagram", "reliability"]

BANDS = ("both", "confidence", "consistency")
FITTED = ("isotonic", "smooth")  # binnings whose bands are pointwise, and drawn
HISTOGRAM_BINS = 20
HIGHEST_LEVEL = 1 - 1e-6  # tails of exact laws have an absolute error of 1e-11 for a million samples in a bin


@dataclass(frozen=True, eq=False)
class ReliabilityDiagram(Summarized):
    """The numbers of a reliability diagram; `plot` draws it.

    Arrays are float64. Of a bin without samples all numbers but its edges and counts are NaN, but for its
    confidence interval, which is [0, 1], and for those of curves.
    """

    edges: np.ndarray  #: bin b is (edges[b], edges[b + 1]], with 0 in the first; shape (n_bins + 1,)
    count: np.ndarray  #: samples of positive weight in each bin, int64, shape (n_bins,)
    weight: np.ndarray  #: sum of their weights, shape (n_bins,)
    confidence: np.ndarray  #: their mean confidence, shape (n_bins,); of "smooth" of all samples by the kernel
    frequency: np.ndarray  #: share of them in which the event happened, shape (n_bins,); of "smooth" likewise
    lowest: np.ndarray  #: their smallest confidence, shape (n_bins,); of a state NaN but for the top label
    highest: np.ndarray  #: their largest confidence, shape (n_bins,)
    points: np.ndarray  #: confidences at which the bands hold: of bins the means, of isotonic regression up to 1000
    confidence_band: Band | None  #: limits of the true frequency at `points`
    consistency_band: Band | None  #: limits of the observed frequency at `points` if the model is calibrated
    histogram: np.ndarray  #: share of the weight in bins of equal width (`n_bins` of them if uniform, else 20)
    binning: str  #: "uniform", "equal_mass", "isotonic" or "smooth"
    n_bins: int  #: bins there are; less than asked for where ties allow no more
    confidence_level: float  #: of the bands
    simultaneous: bool  #: whether the bands hold for all bins at once, and not for each by itself
    #: "exact", "binomial" (of states), "resampling" (of labels) or "resampling predictions"; None without the band
    consistency_method: str | None
    n_resamples: int | None  #: draws of all labels; None where nothing was drawn
    seed: int | None  #: of the draws; None where nothing was drawn
    lens: str  #: one of `kcalib.lenses`: what "confidence" and "event" are
    n_samples: int  #: samples given
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
        """Draw the diagram: points and confidence intervals, consistency bands, the diagonal, a histogram.

        Points of bins that hold less than three tenths of an equal share of the samples are faded.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; by default the axes of a new figure that pyplot does not know (``ax.figure.savefig`` writes
            it).
        color : str, optional
            Of points and confidence intervals, in any form that matplotlib knows. Default: a blue, on dark axes a
            lighter one.
        histogram : bool
            Put the histogram of the confidences below, in axes that are cut off from `ax`.
        legend : bool
            Say what is what, above the diagram.
        scale : {"linear", "logit"}
            Of both axes: "logit" spreads out the confidences near 0 and 1, where those of networks are, best with
            ``binning="equal_mass"``. What is beyond the ends of the axes, such as accuracies of 1, is drawn there, and
            the histogram is a density.

        Returns
        -------
        matplotlib.axes.Axes
            The axes of the diagram.

        Raises
        ------
        ImportError
            If matplotlib is missing; ``pip install 'kcalib[plot]'``.
        ValueError
            If `scale` is neither; if a histogram is to be cut off from axes that are no cell of a grid.
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
    r"""Reliability diagram of confidences, with confidence and consistency bands.

    Samples are put into bins by their confidence c, the probability that was predicted for an event; the share of a
    bin's samples in which the event happened is compared with their mean confidence.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`.
    lens : Lens, optional
        What the event is. Default: ``kcalib.lenses.TopLabel()``, the predicted class is right;
        ``kcalib.lenses.ClassWise(k)``: the class is k. For binary problems ``kcalib.lenses.Canonical()``: the second
        class.
    n_bins : int, optional
        Bins of "uniform" and "equal_mass", 1 to 1,000,000; default 15; points of "smooth", default 100.
    binning : {"uniform", "equal_mass", "isotonic", "smooth"}
        Bins of equal width; bins that hold equal shares of the weight as far as ties allow it; the blocks of the
        isotonic regression of events on confidences, the CORP diagram [1]_, which needs no number of bins; or a curve:
        means of all samples weighted by a Gaussian kernel around the middles of bins of equal width, with the bandwidth
        of `kcalib.smooth_ece`.
    confidence_level : float
        Of both bands, in (0, 1).
    bands : {"both", "confidence", "consistency"}, optional
        Which to compute. Default: "both"; "consistency" for "isotonic" and "smooth", which have no confidence band.
    simultaneous : bool
        Widen the bands so that with probability `confidence_level` no bin lies outside of its own: by the
        Sidak correction, which is exact for bins, since they are independent given the predictions. Not
        for "isotonic" and "smooth".
    seed : int, optional
        Of the draws for the consistency bands of "isotonic", "smooth" and weighted samples, 0 to 2**64 - 1; all others
        are exact. None draws one, which the diagram reports.
    sample_weight : array_like, shape (n,), optional
        Non-negative weights. Samples of weight 0 are left out.

    Returns
    -------
    ReliabilityDiagram
        With the fields of `kcalib.ReliabilityDiagram`, and a method `plot`.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce` for its arguments; if an argument is out of range; if an option is given that has no effect;
        if the lens leaves more than one probability.
    NotImplementedError
        For "isotonic" on a GPU.
    MemoryError
        If the draws do not fit.

    Notes
    -----
    **Confidence bands** hold the true frequency of a bin: limits of Clopper and Pearson [2]_. **Consistency bands**
    [3]_ hold the observed frequency of a calibrated model, exactly, or with weights, isotonic regression and curves by
    R draws of the labels. A point outside its confidence band and a point outside its consistency band are nearly the
    same event.

    Isotonic regression keeps the order of the predictions: confidences that are tied share a value. Its frequencies are
    too far apart at both ends, as those of every fit; the consistency band has the same flaw and takes it
    into account. The band holds at `points`: all distinct confidences, or 1000 of them, evenly spaced by rank.

    Time O(n m + n log n), for exact bands O(n log^2 n), for drawn ones O(R n); memory O(n m), and 16 R k bytes for
    drawn bands at k points.

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
    """`reliability` of checked data."""
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
        group_sums(numbers(sample.confidence, histogram_edges), len(histogram_edges) - 1, sample.weight)[0]
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
    """A class, and the reliability diagram of its probability."""

    name: str
    ece: float
    diagram: ReliabilityDiagram


def has_confidence(lens: str) -> bool:
    """Return whether a diagram of this lens shows confidences and accuracies."""
    return lens in (str(TopLabel()), str(Confidence()))


def worst_classes_of(data: Classification, count: int, n_bins: int, binning: str) -> list[ClassDiagram]:
    """The classes of checked data whose expected calibration errors are largest, the worst one first."""
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
    """What every band leaves on either side, so that so many hold at once (by Sidak's correction)."""
    return float(-np.expm1(np.log(level) / n_bands) if n_bands > 1 else 1 - level) / 2


def check_level(confidence_level: Any) -> float:
    is_number = isinstance(confidence_level, (int, float, np.integer, np.floating))
    if not (is_number and 0 < confidence_level <= HIGHEST_LEVEL):
        raise ValueError(f"`confidence_level` is {confidence_level!r}, expected a number between 0 and {HIGHEST_LEVEL}")
    return float(confidence_level)


def check_bands(bands: str | None, binning: str, simultaneous: Any) -> tuple[bool, bool]:
    """Whether there is a confidence band, and a consistency band."""
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
    """The seed of the draws; None where nothing is drawn."""
    if is_drawn:
        return check_seed(seed, LARGEST_KEY)
    if seed is not None and seed != SEED:
        raise ValueError(
            f"`seed` is {seed!r}, but nothing is drawn: labels are for the consistency bands of binning='isotonic', "
            "'smooth' and of weighted samples only; leave it out"
        )
    return None
