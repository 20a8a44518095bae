"""Results from cells of a state: binned calibration errors, diagrams, Brier score decomposition, mean scores.

For a bin there are sums of weights, probabilities p, hits h (0 or 1), p^2 and p h. They determine all results of
`estimators.ece`, `reliability` and `brier` for bins of equal width, and the variance of the gaps h - p. Confidence
limits of an ECE are those of `inference.metrics.ece`, with normal deviations of gaps instead of a bootstrap of samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend.options import check_choice, check_fraction
from kcalib.estimators.bands import Band, binomial_band, clopper_pearson
from kcalib.estimators.binning import Binning, ReliabilityBins, bin_edges
from kcalib.estimators.brier import BrierDecomposition
from kcalib.estimators.debiased_ece import NOTIONS
from kcalib.estimators.ece import NORMS, ECEResult, class_weights, described, result_of_bins
from kcalib.estimators.event_bins import Bins
from kcalib.estimators.reliability import ReliabilityDiagram, check_bands, check_level, tail_of
from kcalib.inference.metrics.binned_gaps import BinnedGaps, estimate_of
from kcalib.lenses import Canonical, ClassWise, Lens, TopLabel
from kcalib.report.summary import Summarized
from kcalib.results import ConfidenceInterval
from kcalib.streaming._classes.totals import BinTotals
from kcalib.streaming._row_sums.score_sums import CELLS

N_REPLICATES = 4000  # of the deviations of bins


@dataclass(frozen=True)
class Score(Summarized):
    """A mean over samples."""

    value: float  #: the mean
    standard_error: float | None  #: for independent samples; None with weights, or for a single sample


@dataclass(frozen=True)
class Scores(Summarized):
    """Means over all samples of a state, for the problem that its lens induces."""

    n_samples: int  #: number of samples
    accuracy: Score  #: share of samples with the right most probable class
    mean_confidence: Score  #: mean probability of the predicted class
    log_loss: Score  #: `kcalib.log_loss`
    brier_score: Score  #: `kcalib.brier_score`; for two classes half the sum of squares


def scores_of(totals: BinTotals) -> Scores:
    sums = totals.scores
    half = 0.5 if len(totals.cells) == 3 else 1.0
    # A hit equals its square; squares of confidences are in the cells.
    confidences = dict(zip(CELLS, totals.cells[totals.confidences][0].sum(axis=0).tolist(), strict=True))
    correct, confidence = sums["correct"], sums["confidence"]
    if totals.lens.has_confidence:
        correct, confidence = confidences["hit"], confidences["probability"]

    def score(total: float, squares: float, scale: float = 1.0) -> Score:
        mean, n = total / sums["weight"], totals.n
        error = None
        if n > 1 and totals.counts_alike:
            error = scale * math.sqrt(max(0.0, squares / n - mean**2) / (n - 1))
        return Score(scale * mean, error)

    return Scores(
        n_samples=totals.n,
        accuracy=score(correct, correct),
        mean_confidence=score(confidence, confidences["probability_squared"]),
        log_loss=score(sums["log_loss"], sums["log_loss_squared"]),
        brier_score=score(sums["square_residual"], sums["square_residual_squared"], half),
    )


def bins_of(totals: BinTotals, notion: str) -> tuple[ReliabilityBins, ...]:
    """Of the top label's confidence, or of each class's probability."""
    cells = totals.cells[totals.confidences] if notion == "top_label" else totals.cells[1:]
    edges = bin_edges(cells.shape[1])
    return tuple(ReliabilityBins(edges, w, p, h) for w, p, h in zip(*_means(cells), strict=True))


def _means(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weight, mean probability and share of hits of each bin; 0 in empty ones."""
    weight = cells[..., 0]
    divisor = np.where(weight > 0, weight, 1.0)
    return weight, cells[..., 1] / divisor, cells[..., 2] / divisor


def ece_of(totals: BinTotals, notion: str, norm: str, class_weight: Any = None, *, debiased: bool = False) -> ECEResult:
    """The binned calibration error of a notion, "top_label" or "class_wise"."""
    check_choice("norm", norm, NORMS)
    check_choice("notion", notion, NOTIONS)
    m, n_bins = len(totals.cells) - 1, totals.cells.shape[1]
    if notion == "top_label" and class_weight is not None:
        raise ValueError("`class_weight` is given, but notion='top_label' has no such option; leave it out")
    if debiased and not totals.counts_alike:
        raise ValueError(f"the noise of {totals.describe_samples()} is not known from a state; {totals.remedy()}")
    return result_of_bins(
        notion,
        bins_of(totals, notion),
        norm,
        np.ones(1) if notion == "top_label" else class_weights(class_weight, m, norm),
        debiased=debiased,
        remedy="make a state with fewer `n_bins`, or add more samples",
        **described(Binning("uniform", n_bins), "given", None),
        n_samples=totals.n,
        n_classes=m,
        confidence_from=totals.lens.confidence_from(m),
        lens=str(totals.lens),
    )


def ece_interval_of(totals: BinTotals, notion: str, confidence_level: float, seed: int) -> ConfidenceInterval:
    """Of the "l1" error; of classes the mean of their limits, which holds however these depend on each other."""
    check_choice("notion", notion, NOTIONS)
    check_fraction("confidence_level", confidence_level)
    if not totals.counts_alike:
        raise ValueError(f"the ECE of {totals.describe_samples()} has no interval; {totals.remedy()}")
    if totals.n < 4:
        raise ValueError(f"an interval needs at least 4 samples, the state has {totals.n}; call update() with more")
    cells = totals.cells[totals.confidences] if notion == "top_label" else totals.cells[1:]
    n_replicates = max(N_REPLICATES, math.ceil(20 / (1 - confidence_level)))
    limits = []
    for column, part in enumerate(cells):
        random = np.random.default_rng((seed, column))
        limits.append(estimate_of(gaps_of(part, totals.n), confidence_level, n_replicates, random, seed).interval)
    low, high = np.mean(limits, axis=0).tolist()
    return ConfidenceInterval(low, high)


def gaps_of(cells: np.ndarray, n: int) -> BinnedGaps:
    """The gaps of the bins of one column."""
    used = cells[cells[:, 0] > 0]
    count, p, hit, p_squared, p_hit = used.T
    squares = np.maximum(hit - 2 * p_hit + p_squared, 0.0)
    return BinnedGaps.of(n, count, (hit - p) / n, squares / n, p, np.maximum(p - p_squared, 0.0), hit)


def diagram_of(
    totals: BinTotals, lens: Lens | None, confidence_level: float, bands: str | None, simultaneous: bool
) -> ReliabilityDiagram:
    """`kcalib.reliability` in bins of equal width, of the problem that the lens of the state induces."""
    level = check_level(confidence_level)
    has_confidence, has_consistency = check_bands(bands, "uniform", simultaneous)
    row, name = _event(totals, lens)
    cells, n_bins = totals.cells[row], totals.cells.shape[1]
    weight, p, hit = (part.copy() for part in _means(cells))
    used = weight > 0
    p[~used], hit[~used] = np.nan, np.nan
    lowest = highest = np.full(n_bins, np.nan)
    if row == 0:
        lowest, highest = (np.where(used, end, np.nan) for end in totals.extremes[1:])
    count = totals.extremes.counts.copy()
    if row:
        count = np.rint(weight).astype(np.int64)
    weighted = totals.n_weighted > 0
    if weighted and row:
        raise ValueError(
            "how many weighted samples are in the bins of a class is not known from a state; "
            + ("" if totals.lens.has_confidence else "pass lens=kcalib.lenses.TopLabel(), or ")
            + "leave out `sample_weight`"
        )
    bins = Bins(count, weight, weight, p, hit, lowest, highest)
    tail = tail_of(level, int(np.count_nonzero(used)) if simultaneous else 1)
    consistency: Band | None = None
    if has_consistency and not weighted:
        consistency = binomial_band(bins, tail)
    return ReliabilityDiagram(
        edges=bin_edges(n_bins),
        count=count,
        weight=weight,
        confidence=p,
        frequency=hit,
        lowest=lowest,
        highest=highest,
        points=p,
        confidence_band=clopper_pearson(bins, tail) if has_confidence and not weighted else None,
        consistency_band=consistency,
        histogram=weight / np.sum(weight),
        binning="uniform",
        n_bins=n_bins,
        confidence_level=level,
        simultaneous=bool(simultaneous),
        consistency_method=None if consistency is None else "binomial",
        n_resamples=None,
        seed=None,
        lens=name,
        n_samples=totals.n,
    )


def _event(totals: BinTotals, lens: Lens | None) -> tuple[int, str]:
    """The row of the cells that has the event's probability, and what the diagram calls it."""
    m, own = len(totals.cells) - 1, totals.lens
    if lens is None or (own.has_confidence and isinstance(lens, TopLabel)):
        lens = TopLabel() if isinstance(own, Canonical) or m > 2 else Canonical()
    name = str(lens) if isinstance(own, Canonical) else str(own) if isinstance(lens, Canonical) else f"{lens} of {own}"
    if isinstance(lens, TopLabel):
        return 0, name
    if isinstance(lens, Canonical) and m == 2:
        return 2, name
    if isinstance(lens, ClassWise) and lens.index < m:
        return 1 + lens.index, name
    if isinstance(lens, ClassWise):
        raise ValueError(f"`lens` is {lens}, expected a class 0..{m - 1}")
    raise ValueError(
        f"`lens` is {lens!r}, of which a state of {m} classes has no bins; pass kcalib.lenses.TopLabel() or "
        "kcalib.lenses.ClassWise(k), or make the state with this lens"
    )


def decomposition_of(totals: BinTotals) -> BrierDecomposition:
    """`kcalib.brier_decomposition` by classes, in bins of equal width."""
    m = len(totals.cells) - 1
    # Of two classes each has the bins of the second one, where its gaps are those of the other.
    cells, copies = (totals.cells[2:], 2) if m == 2 else (totals.cells[1:], 1)
    weight, p, hit = _means(cells)
    total = np.sum(weight, axis=1, keepdims=True)
    share = weight / total
    overall = np.sum(share * hit, axis=1)
    used = weight > 0
    divisor = np.where(used, weight, 1.0)
    variance = np.maximum(cells[..., 3] / divisor - p * p, 0.0)
    covariance = cells[..., 4] / divisor - p * hit
    scale = copies * (0.5 if m == 2 else 1.0)
    noise, singletons = None, None
    if totals.counts_alike:
        loss = np.where(weight > 1, 1 / np.where(weight > 1, weight - 1, 1.0), 0.0)
        noise, singletons = scale * float(np.sum(share * hit * (1 - hit) * loss)), int(np.sum(weight == 1))
    return BrierDecomposition(
        score=scores_of(totals).brier_score.value,
        miscalibration=scale * float(np.sum(share * (p - hit) ** 2)),
        discrimination=scale * float(np.sum(share * (hit - overall[:, None]) ** 2)),
        uncertainty=scale * float(np.sum(overall * (1 - overall))),
        within_variance=scale * float(np.sum(share * variance)),
        within_covariance=scale * float(np.sum(2 * share * covariance)),
        noise=noise,
        binning="uniform",
        grouping="classwise",
        n_bins=cells.shape[1],
        n_groups=int(np.count_nonzero(used)),
        n_singletons=singletons,
        scale_by_half=m == 2,
        lens=str(totals.lens),
        n_samples=totals.n,
        n_classes=m,
    )
