"""Reliability diagrams: observed frequency against predicted probability, with bands that say what is noise.

`reliability` checks its arguments, `diagram_of` is the same on checked data (the command calls it). `cut` gives the
bins (`kcalib.estimators.brier` calls it, too), `_Bins` sums up the samples in them. Consistency bands come from
`_exact_band` or, for weights and for isotonic regression, from `_drawn_band`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.memory import check_memory
from kcalib._backend.options import check_choice, check_integer, check_seed
from kcalib._backend.random import drawn_labels
from kcalib._backend.segments import Segments
from kcalib._input.labels import Classification, prepare
from kcalib._pairs.statistics import cumulative_sum, group_sums
from kcalib.estimators.binning import MAX_BINS, N_BINS
from kcalib.lenses import Lens, TopLabel
from kcalib.report import figures

__all__ = ["Band", "ReliabilityDiagram", "reliability"]

BINNINGS = ("uniform", "equal_mass", "isotonic")
BANDS = ("both", "confidence", "consistency")
DEFAULT_RESAMPLES = 999
SEED = 0  # unless another is given
MAX_POINTS = 1000  # of the bands of isotonic regression
HISTOGRAM_BINS = 20
BATCH_ELEMENTS, DEVICE_ELEMENTS = 2**18, 2**24  # drawn labels in memory at a time
HIGHEST_LEVEL = 1 - 1e-6  # tails of exact laws have an absolute error of 1e-11 for a million samples in a bin
SHORT = 40  # laws of fewer values are multiplied without a Fourier transform


class Band(NamedTuple):
    """Lower and upper limits of observed frequencies."""

    low: np.ndarray  #: float64, in [0, 1], shape (k,)
    high: np.ndarray  #: the same


@dataclass(frozen=True, eq=False)
class ReliabilityDiagram:
    """The numbers of a reliability diagram; `plot` draws it.

    Arrays are float64. Of a bin without samples all numbers but its edges and counts are NaN, but for its
    confidence interval, which is [0, 1].
    """

    edges: np.ndarray  #: bin b is (edges[b], edges[b + 1]], with 0 in the first; shape (n_bins + 1,)
    count: np.ndarray  #: samples of positive weight in each bin, int64, shape (n_bins,)
    weight: np.ndarray  #: sum of their weights, shape (n_bins,)
    confidence: np.ndarray  #: their mean confidence, shape (n_bins,)
    frequency: np.ndarray  #: share of them in which the event happened, shape (n_bins,)
    lowest: np.ndarray  #: their smallest confidence, shape (n_bins,)
    highest: np.ndarray  #: their largest confidence, shape (n_bins,)
    points: np.ndarray  #: confidences at which the bands hold: of bins the means, of isotonic regression up to 1000
    confidence_band: Band | None  #: limits of the true frequency at `points`
    consistency_band: Band | None  #: limits of the observed frequency at `points` if the model is calibrated
    histogram: np.ndarray  #: share of the weight in bins of equal width (`n_bins` of them if uniform, else 20)
    binning: str  #: "uniform", "equal_mass" or "isotonic"
    n_bins: int  #: bins there are; less than asked for where ties allow no more
    confidence_level: float  #: of the bands
    simultaneous: bool  #: whether the bands hold for all bins at once, and not for each by itself
    consistency_method: str | None  #: "exact" or "resampling"; None without a consistency band
    n_resamples: int | None  #: draws of all labels; None where nothing was drawn
    seed: int | None  #: of the draws; None where nothing was drawn
    lens: str  #: one of `kcalib.lenses`: what "confidence" and "event" are
    n_samples: int  #: samples given

    def __repr__(self) -> str:
        return (
            f"ReliabilityDiagram(binning={self.binning!r}, n_bins={self.n_bins}, lens={self.lens}, "
            f"n_samples={self.n_samples}, confidence_level={self.confidence_level:g}, "
            f"simultaneous={self.simultaneous}, consistency_method={self.consistency_method!r})"
        )

    def plot(
        self, ax: Any = None, *, color: str = figures.CALIBRATED, histogram: bool = True, legend: bool = True
    ) -> Any:
        """Draw the diagram: points and confidence intervals, consistency bands, the diagonal, a histogram.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; by default the axes of a new figure that pyplot does not know (``ax.figure.savefig`` writes
            it).
        color : str
            Of points and confidence intervals, in any form that matplotlib knows.
        histogram : bool
            Put the histogram of the confidences below, in axes that are cut off from `ax`.
        legend : bool
            Say what is what in a corner.

        Returns
        -------
        matplotlib.axes.Axes
            The axes of the diagram.

        Raises
        ------
        ImportError
            If matplotlib is missing; ``pip install 'kcalib[plot]'``.
        """
        top_label = self.lens == str(TopLabel())
        labels = ("confidence", "accuracy") if top_label else ("predicted probability", "observed frequency")
        return figures.plot_diagram(self, ax, labels, color, histogram, legend)


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
    n_resamples: int | None = None,
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
        Bins of "uniform" and "equal_mass", 1 to 1,000,000; default 15.
    binning : {"uniform", "equal_mass", "isotonic"}
        Bins of equal width; bins that hold equal shares of the weight as far as ties allow it; or the blocks of the
        isotonic regression of events on confidences, the CORP diagram [1]_, which needs no number of bins.
    confidence_level : float
        Of both bands, in (0, 1).
    bands : {"both", "confidence", "consistency"}, optional
        Which to compute. Default: "both"; "consistency" for "isotonic", which has no confidence band.
    simultaneous : bool
        Widen the bands so that with probability `confidence_level` no bin lies outside of its own: by the
        Sidak correction, which is exact for bins, since they are independent given the predictions. Not
        for "isotonic".
    n_resamples : int, optional
        Draws of all labels for the consistency bands of "isotonic" and of weighted samples; default 999. All
        others are exact.
    seed : int, optional
        Of these draws, 0 to 2**64 - 1. None draws one, which the diagram reports.
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
        if the lens leaves more than one probability; if `n_resamples` is too small for the level.
    NotImplementedError
        For "isotonic" on a GPU.
    MemoryError
        If the draws do not fit.

    Notes
    -----
    **Confidence bands** hold the true frequency, the mean of P(event | prediction) over the bin's samples: limits of
    Clopper and Pearson [2]_. The number of events in a bin is binomial only if all its samples have
    the same true frequency; otherwise it varies less [3]_ and the limits are wider than need be. With weights n is
    replaced by the effective size :math:`(\sum w)^2 / \sum w^2` [4]_, which is an approximation.

    **Consistency bands** [5]_ hold the observed frequency of a calibrated model: given the predictions, events
    are then independent with probabilities c, and their number in a bin is Poisson binomial. Its quantiles are exact
    (products of generating functions), with at most (1 - `confidence_level`) / 2 on each side. With
    weights, and for isotonic regression, labels are drawn from the predictions, which stay as they are, and the
    limits are order statistics of the R draws: as the data would be one more draw, they hold with at least the
    probability stated for every R. Reference [1]_ draws the predictions again, too.

    A point outside its confidence band and a point outside its consistency band are nearly the same event. The
    consistency bands lie where a calibrated model's points lie, also of bins with few samples.

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
    .. [3] W. Hoeffding. On the distribution of the number of successes in independent trials. Annals of
       Mathematical Statistics 27, 1956.
    .. [4] E. L. Korn, B. I. Graubard. Confidence intervals for proportions with small expected number of positive
       counts estimated from survey data. Survey Methodology 24, 1998 (without their factor for degrees of freedom).
    .. [5] J. Broecker, L. A. Smith. Increasing the reliability of reliability diagrams. Weather and
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
        n_resamples=n_resamples,
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
    n_resamples: int | None = None,
    seed: int | None = SEED,
) -> ReliabilityDiagram:
    """`reliability` of checked data."""
    n_bins = check_binning(binning, n_bins)
    level = _check_level(confidence_level)
    has_confidence, has_consistency = _check_bands(bands, binning, simultaneous)
    sample = Sample.of(data)
    is_drawn = has_consistency and (binning == "isotonic" or data.sample_weight is not None)
    n_resamples, seed = _check_draws(is_drawn, n_resamples, seed)

    edges, index = cut(sample, binning, n_bins)
    bins = _Bins.of(sample, index, len(edges) - 1)
    filled = np.flatnonzero(bins.count)
    tail = float(-np.expm1(np.log(level) / len(filled)) if simultaneous else 1 - level) / 2
    points, consistency = bins.confidence, None
    if binning == "isotonic":
        points, consistency = _isotonic_band(sample, _Draws.checked(n_resamples, seed, tail, MAX_POINTS, index))
    elif has_consistency:
        if is_drawn:
            draws = _Draws.checked(n_resamples, seed, tail, len(filled), index)
            position = arrays.namespace(index).searchsorted(arrays.like(filled, index), index)
            limits = _drawn_band(sample, position, draws)
        else:
            limits = _exact_band(sample, index, filled, bins.count, tail)
        consistency = Band(*(np.full(len(bins.count), np.nan) for _ in range(2)))
        for whole, part in zip(consistency, limits, strict=True):
            whole[filled] = part
    shown = edges if binning == "uniform" else np.linspace(0, 1, HISTOGRAM_BINS + 1)
    in_histogram = arrays.to_host(group_sums(numbers(sample.confidence, shown), len(shown) - 1, sample.weight)[0])
    return ReliabilityDiagram(
        edges=edges,
        count=bins.count,
        weight=bins.weight,
        confidence=bins.confidence,
        frequency=bins.frequency,
        lowest=bins.lowest,
        highest=bins.highest,
        points=points,
        confidence_band=_clopper_pearson(bins, tail) if has_confidence else None,
        consistency_band=consistency,
        histogram=in_histogram / np.sum(in_histogram),
        binning=binning,
        n_bins=len(edges) - 1,
        confidence_level=level,
        simultaneous=simultaneous,
        consistency_method=("resampling" if is_drawn else "exact") if has_consistency else None,
        n_resamples=n_resamples,
        seed=seed,
        lens=str(data.lens),
        n_samples=data.n,
    )


def check_binning(binning: str, n_bins: int | None) -> int | None:
    """`n_bins`, by default 15; None for isotonic regression."""
    check_choice("binning", binning, BINNINGS)
    if binning != "isotonic":
        return check_integer("n_bins", N_BINS if n_bins is None else n_bins, 1, MAX_BINS)
    if n_bins is not None:
        raise ValueError(f"`n_bins` is {n_bins!r}, but binning='isotonic' finds the number itself; leave it out")
    return None


def _check_level(confidence_level: Any) -> float:
    is_number = isinstance(confidence_level, (int, float, np.integer, np.floating))
    if not (is_number and 0 < confidence_level <= HIGHEST_LEVEL):
        raise ValueError(f"`confidence_level` is {confidence_level!r}, expected a number between 0 and {HIGHEST_LEVEL}")
    return float(confidence_level)


def _check_bands(bands: str | None, binning: str, simultaneous: Any) -> tuple[bool, bool]:
    """Whether there is a confidence band, and a consistency band."""
    if not isinstance(simultaneous, (bool, np.bool_)):
        raise TypeError(f"`simultaneous` is {simultaneous!r}, expected True or False")
    if bands is None:
        bands = "consistency" if binning == "isotonic" else "both"
    check_choice("bands", bands, BANDS)
    if binning == "isotonic" and bands != "consistency":
        raise ValueError(
            f"`bands` is {bands!r}, but binning='isotonic' chooses its bins by the labels, so that limits for given "
            "bins do not hold; use bands='consistency' or another binning"
        )
    if binning == "isotonic" and simultaneous:
        raise ValueError("`simultaneous` is True, but the band of binning='isotonic' is pointwise; use another binning")
    return bands != "consistency", bands != "confidence"


def _check_draws(is_drawn: bool, n_resamples: Any, seed: Any) -> tuple[int | None, int | None]:
    """Both with their defaults; None where nothing is drawn."""
    if is_drawn:
        n_resamples = check_integer("n_resamples", DEFAULT_RESAMPLES if n_resamples is None else n_resamples, 1, 2**32)
        return n_resamples, check_seed(seed, 2**64 - 1)
    for name, value, default in (("n_resamples", n_resamples, None), ("seed", seed, SEED)):
        if value is not None and value != default:
            raise ValueError(
                f"`{name}` is {value!r}, but nothing is drawn: labels are for the consistency bands of "
                "binning='isotonic' and of weighted samples only; leave it out"
            )
    return None, None


@dataclass(frozen=True)
class Sample:
    """Confidences, events and weights, float64, shape (n,), without those of weight 0; CuPy arrays, or on the host."""

    confidence: Array
    event: Array  # 0 or 1
    weight: Array

    @classmethod
    def of(cls, data: Classification) -> Sample:
        if data.m != 2:
            raise ValueError(
                f"`lens` is {data.lens}, which leaves {data.m} classes, expected one that leaves two; "
                "pass lens=kcalib.lenses.TopLabel() or lens=kcalib.lenses.ClassWise(k)"
            )
        second = arrays.where_computed(data.probabilities[:, 1], np.float64)
        xp = arrays.namespace(second)
        confidence, event = xp.minimum(second, 1.0), arrays.where_computed(data.labels, np.float64)
        if data.sample_weight is None:
            return cls(confidence, event, xp.ones_like(second))
        weight = arrays.where_computed(data.sample_weight, np.float64)
        used = weight > 0
        return cls(confidence[used], event[used], weight[used])


def cut(sample: Sample, binning: str, n_bins: int | None) -> tuple[np.ndarray, Array]:
    """Edges of the bins, shape (k + 1,), and the bin of each sample, shape (n,), where the samples are."""
    if binning == "isotonic":
        arrays.check_not_cuda(sample.confidence, "isotonic regression")
        distinct = _by_confidence(sample)
        blocks = scipy.optimize.isotonic_regression(distinct.frequency, weights=distinct.weight).blocks
        inner = distinct.confidence[blocks[1:-1] - 1]
    elif binning == "equal_mass":
        assert n_bins is not None
        inner = _equal_mass(sample.confidence, sample.weight, n_bins)
    else:
        assert n_bins is not None
        inner = np.linspace(0.0, 1.0, n_bins + 1)[1:-1]
    edges = np.concatenate(([0.0], inner, [1.0]))
    return edges, numbers(sample.confidence, edges)


def numbers(confidence: Array, edges: np.ndarray) -> Array:
    """The bin (a, b] of each confidence, 0 in the first."""
    inner = arrays.like(edges[1:-1], confidence)
    return arrays.namespace(confidence).searchsorted(inner, confidence, side="left")


def _equal_mass(confidence: Array, weight: Array, n_bins: int) -> np.ndarray:
    """Inner edges: the last confidences with at most shares 1/n_bins, 2/n_bins, ... of the weight before them.

    Without weights number floor((n - 1) j / n_bins) + 1 in ascending order, as in `kcalib.estimators.binning`.
    """
    xp = arrays.namespace(confidence)
    # With weights the order of ties matters, and must be the same everywhere; NumPy is faster where it may choose it.
    is_host, is_weighted = arrays.is_host(confidence), bool(xp.any(weight != weight[0]))
    order = np.argsort(confidence, kind="stable" if is_weighted else None) if is_host else xp.argsort(confidence)
    weight = weight[order]
    before = cumulative_sum(weight) - weight
    # Products, not quotients: exact for samples without weights.
    shares = before[-1] * arrays.like(np.arange(1, n_bins), before)
    at = xp.searchsorted(before * n_bins, shares, side="right") - 1
    inner = np.unique(arrays.to_host(confidence[order][at]))
    return inner[inner < float(confidence[order[-1]])]


class _Distinct(NamedTuple):
    confidence: np.ndarray  # distinct and ascending, shape: (u,)
    place: np.ndarray  # of each sample's confidence among them, shape: (n,)
    frequency: np.ndarray  # weighted mean of the events of each, shape: (u,)
    weight: np.ndarray  # shape: (u,)


def _by_confidence(sample: Sample) -> _Distinct:
    distinct, place = np.unique(sample.confidence, return_inverse=True)
    weight = np.bincount(place, sample.weight)
    return _Distinct(distinct, place, np.bincount(place, sample.weight * sample.event) / weight, weight)


@dataclass(frozen=True)
class _Bins:
    """Numbers of each bin, on the host."""

    count: np.ndarray
    weight: np.ndarray
    square_weight: np.ndarray  # sum of the squares of the weights
    confidence: np.ndarray
    frequency: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray

    @classmethod
    def of(cls, sample: Sample, index: Array, n_bins: int) -> _Bins:
        w = sample.weight
        count = arrays.to_host(arrays.namespace(index).bincount(index, minlength=n_bins))
        terms = (w, w * w, w * sample.confidence, w * sample.event)
        sums = [arrays.to_host(found) for found in group_sums(index, n_bins, *terms)]
        share = np.where(count > 0, sums[0], np.nan)
        lowest, highest = np.full(n_bins, np.nan), np.full(n_bins, np.nan)
        if arrays.is_host(index):
            np.fmin.at(lowest, index, sample.confidence)
            np.fmax.at(highest, index, sample.confidence)
        else:  # bins follow each other in the order of confidences
            filled, ends = count > 0, np.cumsum(count)
            ascending = arrays.namespace(index).sort(sample.confidence)
            first, last = (arrays.like(at[filled], index) for at in (ends - count, ends - 1))
            lowest[filled], highest[filled] = (arrays.to_host(ascending[at]) for at in (first, last))
        return cls(count, sums[0], sums[1], sums[2] / share, sums[3] / share, lowest, highest)


def _clopper_pearson(bins: _Bins, tail: float) -> Band:
    """Limits of the true frequency in each bin, for the effective number of samples; [0, 1] in empty bins."""
    filled = bins.count > 0
    effective = np.where(filled, bins.weight**2 / np.where(filled, bins.square_weight, 1.0), 0.0)
    hits = effective * np.where(filled, bins.frequency, 0.0)
    misses = effective * np.where(filled, 1 - bins.frequency, 0.0)
    # 1 where betaincinv is not defined and not used.
    low = scipy.special.betaincinv(np.where(hits > 0, hits, 1.0), misses + 1, tail)
    high = scipy.special.betainccinv(hits + 1, np.where(misses > 0, misses, 1.0), tail)
    return Band(np.where(hits > 0, low, 0.0), np.where(misses > 0, high, 1.0))


def _exact_band(sample: Sample, index: Array, filled: np.ndarray, count: np.ndarray, tail: float) -> Band:
    """Quantiles of each bin's frequency if events are independent with the predicted probabilities."""
    xp = arrays.namespace(index)
    order = np.argsort(index, kind="stable") if arrays.is_host(index) else xp.argsort(index)
    ordered, ends = sample.confidence[order], np.cumsum(count[filled]).tolist()
    parts = [ordered[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    limits = np.array([_count_limits(part, tail) / len(part) for part in parts])
    return Band(limits[:, 0], limits[:, 1])


def _count_limits(probabilities: Array, tail: float) -> np.ndarray:
    """Lowest and highest count that at most `tail` of the law lies below and above."""
    law, xp = count_law(probabilities), arrays.namespace(probabilities)
    low, high = (xp.searchsorted(cumulative_sum(part), tail, side="right") for part in (law, xp.flip(law)))
    return np.array([int(low), len(probabilities) - int(high)])


def count_law(probabilities: Array) -> Array:
    """The Poisson binomial law: P(k events) for k = 0..n, of independent events with these probabilities.

    The product of the polynomials 1 - p + p z, pair by pair: O(n log^2 n), absolute error of sums about 4e-18 n.
    """
    xp = arrays.namespace(probabilities)
    laws = xp.stack((1 - probabilities, probabilities), axis=1)
    while len(laws) > 1:
        if len(laws) % 2:
            laws = xp.concat((laws, arrays.like(np.eye(1, laws.shape[1]), laws)))  # the law of no event
        laws = _products(laws[::2], laws[1::2])
    return laws[0, : len(probabilities) + 1]


def _products(left: Array, right: Array) -> Array:
    """Products of polynomials, row by row."""
    xp = arrays.namespace(left)
    size = left.shape[1] + right.shape[1] - 1
    if size >= SHORT:
        length = scipy.fft.next_fast_len(size, real=True)
        fft = scipy.fft if arrays.is_host(left) else xp.fft
        spectrum = fft.rfft(left, n=length) * fft.rfft(right, n=length)
        return xp.maximum(fft.irfft(spectrum, n=length)[:, :size], 0.0)
    result = xp.zeros((len(left), size), **({} if arrays.is_host(left) else {"device": arrays.device(left)}))
    for power in range(left.shape[1]):
        result[:, power : power + right.shape[1]] += left[:, power, None] * right
    return result


class _Draws(NamedTuple):
    """Draws of all labels, and which of the ordered values are the limits."""

    n_resamples: int
    seed: int
    rank: int  # the lowest and the highest `rank` - 1 values lie outside

    @classmethod
    def checked(cls, n_resamples: int | None, seed: int | None, tail: float, n_values: int, beside: Array) -> _Draws:
        assert n_resamples is not None and seed is not None
        rank = int(tail * (n_resamples + 1) + 1e-9)
        if rank < 1:
            raise ValueError(
                f"`n_resamples` is {n_resamples}, expected at least {int(np.ceil(1 / tail - 1e-9)) - 1} for limits "
                f"that a calibrated model leaves with a probability of {tail:.2g} on each side"
            )
        check_memory(
            16 * n_values * n_resamples,
            None,
            f"{n_resamples} draws of {n_values} frequencies",
            "use fewer n_bins or n_resamples",
            beside,
        )
        return cls(n_resamples, seed, rank)


def _isotonic_band(sample: Sample, draws: _Draws) -> tuple[np.ndarray, Band]:
    """Confidences, and limits of the isotonic regression there."""
    distinct = _by_confidence(sample)
    u = len(distinct.confidence)
    at = np.unique(np.linspace(0, u - 1, min(u, MAX_POINTS)).round().astype(np.intp))

    def fitted(frequencies: np.ndarray) -> np.ndarray:
        regression = scipy.optimize.isotonic_regression
        return np.stack([regression(column, weights=distinct.weight).x[at] for column in frequencies.T], axis=1)

    return distinct.confidence[at], _drawn_band(sample, distinct.place, draws, fitted)


def _drawn_band(
    sample: Sample, group: Array, draws: _Draws, fitted: Callable[[np.ndarray], np.ndarray] | None = None
) -> Band:
    """Order statistics of the frequencies in groups 0, 1, ... of samples, after a fit, of labels that are drawn.

    With the frequencies of a calibrated model there are R + 1 of them, in random order: those below the value of a
    rank r, among the R that are drawn, have the rank r at most among all, which has a probability of r / (R + 1).
    """
    xp, is_host = arrays.namespace(group), arrays.is_host(group)
    # On a device groups are bins, which ascend with the confidence.
    order = np.lexsort((sample.confidence, group)) if is_host else xp.argsort(sample.confidence)
    confidence, weight = sample.confidence[order], sample.weight[order][:, None]
    sums = _summing(group[order])
    totals = sums(weight)
    probabilities = xp.stack((1 - confidence, confidence), axis=1)
    at_once = max(1, (BATCH_ELEMENTS if is_host else DEVICE_ELEMENTS) // len(group))
    parts = []
    for labels in drawn_labels(probabilities, draws.n_resamples, draws.seed, at_once=at_once):
        frequencies = sums(weight * labels) / totals
        parts.append(frequencies if fitted is None else fitted(frequencies))
    values = xp.concat(parts, axis=1)
    lowest, highest = draws.rank - 1, draws.n_resamples - draws.rank
    if is_host:
        values.partition((lowest, highest), axis=1)
    else:
        values = xp.sort(values, axis=1)
    return Band(*(np.array(arrays.to_host(values[:, rank])) for rank in (lowest, highest)))


def _summing(group: Array) -> Callable[[Array], Array]:
    """A function that sums the rows of an array within groups 0, 1, ... that ascend and hold samples."""
    if arrays.is_host(group):
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        return lambda rows: np.add.reduceat(rows, starts)
    return Segments.of_runs(arrays.namespace(group).bincount(group)).sums
