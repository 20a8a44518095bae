"""`worst_groups`: the groups of samples for which the model is calibrated worst, with family-wise p-values."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import LARGEST_SEED, check_fraction, check_integer, check_seed
from kcalib._backend.random import draw_label_batches
from kcalib._input.frames import check_variables
from kcalib._input.groupings import Grouping, read_groupings
from kcalib._input.labels import Classification, prepare
from kcalib._pairs.label_cells import FLOOR
from kcalib.inference.adaptive.blocks import (
    LEAST_SCORE_VARIANCE,
    LEAST_VARIANCE,
    Words,
    describe_side,
)
from kcalib.inference.adaptive.method import TIE, approximate_pvalues, combine
from kcalib.lenses import Buckets
from kcalib.report.summary import Summarized, Summary, format_pvalue
from kcalib.results import Computed, ConfidenceInterval

__all__ = ["GroupCalibration", "WorstGroups", "worst_groups"]

FEW_DRAWS, MANY_DRAWS, MANY_DRAWS_WORK = 199, 999, 2e5
LABELS_AT_ONCE = 2**22
POWER = 0.8  # of the minimum detectable error


@dataclass(frozen=True)
class GroupCalibration(Summarized):
    """Calibration of the model for the samples of one group."""

    group: str  #: the groupings and their values: "sex=f" or "sex=f, age=old"
    n_samples: int  #: samples of the group
    #: mean probability minus share of labels: of the second of two classes, else of the most probable one. Above 0 the
    #: class is predicted too often. "over-confident" is about probabilities too far from even ones, at either sign
    gap: float
    confidence_interval: ConfidenceInterval  #: of the gap, for this group by itself
    pvalue: float  #: of the hypothesis that the model is calibrated for this group alone
    pvalue_adjusted: float  #: the family-wise p-value over all groups
    finding: str  #: what the largest statistic of the group shows
    minimum_detectable_error: float  #: the gap that would be detected with probability 0.8 among this many groups


@dataclass(frozen=True)
class WorstGroups(Computed):
    """Groups by how significantly the model is miscalibrated for them; ``print`` shows the first groups."""

    groups: tuple[GroupCalibration, ...]  #: all tested groups, the smallest p-value first
    pvalue: float  #: of the hypothesis that the model is calibrated for all of them
    level: float  #: of intervals and of the minimum detectable errors
    n_left_out: int  #: groups with fewer than `min_size` samples
    min_size: int  #: smallest number of samples of a tested group
    n_resamples: int  #: random draws of the labels
    seed: int  #: of the draws
    n_samples: int  #: samples given
    n_classes: int  #: m
    lens: str  #: the notion of calibration, one of `kcalib.lenses`
    seconds: float = field(compare=False)  #: wall time

    def _summary(self) -> Summary:
        head = ["group", "n", "gap", f"{100 * (1 - self.level):g} % interval", "p-value", "adjusted", "finding"]
        rows = [head]
        for group in self.groups[:10]:
            low, high = group.confidence_interval
            numbers = (str(group.n_samples), f"{group.gap:.3g}", f"[{low:.3g}, {high:.3g}]")
            finding = group.finding if group.pvalue_adjusted <= self.level else ""
            pvalues = (format_pvalue(group.pvalue), format_pvalue(group.pvalue_adjusted))
            rows.append([group.group, *numbers, *pvalues, finding])
        of_class = "class 1" if self.n_classes == 2 else "the most probable class"
        notes = (
            f"{len(self.groups)} groups, {self.n_left_out} of fewer than {self.min_size} samples left out",
            f"gap: mean probability minus share of {of_class}; above 0 it is predicted too often. A finding of "
            "over-confidence is about probabilities too far from even ones, whatever the sign of the gap",
        )
        return Summary("WorstGroups", rows, [True, False, False, False, False, False, True], notes=notes)


@on_their_gpu
def worst_groups(
    y_true: Any,
    y_pred: Any,
    groups: Mapping[str, Any],
    *,
    max_crossed: int = 2,
    min_size: int = 30,
    level: float = 0.05,
    n_resamples: int | None = None,
    seed: int | None = None,
    classes: Any = None,
    from_logits: bool = False,
    lens: Any = None,
    threads: int | None = None,
) -> WorstGroups:
    r"""Test calibration in groups of samples and their crossings, and rank the groups.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits, lens, threads
        As in `kcalib.skce`, for class probabilities; arrays on a GPU are copied to the host.
    groups : mapping of str to array_like, shape (n,)
        Groupings by name, or a data frame: a category for every sample. Values are compared as text; None, NaN and NA
        become the category "missing". At most 100 categories each: cut numbers into intervals first.
    max_crossed : int
        Largest number of groupings to cross; 1 crosses none.
    min_size : int
        Groups with fewer samples are left out; at least 2.
    level : float
        In (0, 1): 1 minus the confidence level of intervals, and the level of the minimum detectable errors.
    n_resamples : int, optional
        Random draws R of the labels; default 999, or 199 for more than 200,000 samples times groupings.
    seed : int, optional
        Seed of the draws. By default a seed is drawn; the result reports it.

    Returns
    -------
    WorstGroups
        A `kcalib.GroupCalibration` for each group, the smallest p-value first.

    Raises
    ------
    TypeError
        As `kcalib.skce`; if `groups` is not a mapping.
    ValueError
        As `kcalib.skce`; if the length of a grouping differs from the labels, or it has more than 100 values; if no
        group has `min_size` samples; if a number is out of range.

    See Also
    --------
    kcalib.calibration_test : Is the model calibrated for all samples together?

    Notes
    -----
    The statistics of a group are those of `kcalib.methods.Adaptive` for its samples: the score of the temperature, the
    class frequencies, and how often the most probable class is right. They are combined as in that test, for the
    observed labels and for R draws of all labels from the predictions, which all groups share. The adjusted p-value
    compares a group with the smallest combined value over all groups in each draw. It is exact at every sample size if
    labels are independent draws given predictions and groups, and accounts for overlap of the groups. Intervals of the
    gap are normal intervals with the larger of two variances: of the samples, and under calibration. The minimum
    detectable error is :math:`(z_{1 - \alpha / 2G} + z_{0.8})` standard errors under calibration, for G groups at the
    level :math:`\alpha`. Time O(n R) for each crossing of groupings.

    Examples
    --------
    Predictions that are too high in one region only:

    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=2000)
    >>> region, age = rng.choice(["north", "south"], 2000), rng.choice(["old", "young"], 2000)
    >>> y = rng.uniform(size=2000) < np.where(region == "north", 0.8 * p, p)
    >>> result = kcalib.worst_groups(y, p, {"region": region, "age": age}, seed=0)
    >>> worst = result.groups[0]
    >>> worst.group, worst.pvalue_adjusted < 0.01, worst.gap > 0.05, worst.finding
    ('region=north', True, True, 'class 1 predicted too often')
    """
    checks = {"classes": classes, "from_logits": from_logits, "lens": lens, "threads": threads}
    data = prepare(y_true, y_pred, sparse_lens=Buckets(), **checks)
    check_variables(y_true, y_pred, groups=groups)
    return find_worst_groups(
        data, groups, max_crossed, min_size, level=level, n_resamples=n_resamples, seed=seed, threads=threads
    )


def find_worst_groups(
    data: Classification,
    groups: Mapping[str, Any],
    max_crossed: int = 2,
    min_size: int = 30,
    *,
    level: float = 0.05,
    n_resamples: int | None = None,
    seed: int | None = None,
    threads: int | None = None,
) -> WorstGroups:
    """Test checked data in groups, as `worst_groups` does."""
    start = time.perf_counter()
    check_fraction("level", level)
    check_integer("max_crossed", max_crossed, 1)
    check_integer("min_size", min_size, 2)
    seed = check_seed(seed, LARGEST_SEED)
    partitions = list(_cross_groupings(read_groupings(groups, data.n), max_crossed, min_size))
    n_left_out = sum(left_out for _, _, left_out in partitions)
    names = [name for _, names, _ in partitions for name in names]
    if not names:
        raise ValueError(
            f"`groups` has no group of at least {min_size} samples (`min_size`); pass fewer categories, or lower it"
        )
    if n_resamples is None:
        n_resamples = MANY_DRAWS if data.n * len(partitions) <= MANY_DRAWS_WORK else FEW_DRAWS
    n_draws = check_integer("n_resamples", n_resamples, 1, 2**31)
    sums = _Sums.of(data, [codes for codes, _, _ in partitions], n_draws, seed, threads)
    combined, findings = sums.combine_blocks(data)
    smallest = np.min(combined, axis=0)
    results = []
    quantile = -float(scipy.special.ndtri(level / 2))
    detectable = -float(scipy.special.ndtri(level / 2 / len(names))) + float(scipy.special.ndtri(POWER))
    for k, name in enumerate(names):
        own, n = combined[k], int(sums.sizes[k])
        gap, spread = -float(sums.gaps[k]) / n, float(sums.gap_squares[k]) / n
        null_variance = float(sums.gap_variances[k]) / n
        width = quantile * math.sqrt(max(spread - gap**2, null_variance) / n)
        results.append(
            GroupCalibration(
                group=name,
                n_samples=n,
                gap=gap,
                confidence_interval=ConfidenceInterval(max(gap - width, -1.0), min(gap + width, 1.0)),
                pvalue=compute_pvalue(own[0], own[1:]),
                pvalue_adjusted=compute_pvalue(own[0], smallest[1:]),
                finding=findings[k],
                minimum_detectable_error=detectable * math.sqrt(null_variance / n),
            )
        )
    order = np.argsort(combined[:, 0], kind="stable")
    return WorstGroups(
        groups=tuple(results[k] for k in order),
        pvalue=compute_pvalue(smallest[0], smallest[1:]),
        level=float(level),
        n_left_out=n_left_out,
        min_size=int(min_size),
        n_resamples=n_draws,
        seed=seed,
        n_samples=data.n,
        n_classes=data.m,
        lens=str(data.lens),
        seconds=time.perf_counter() - start,
    )


def compute_pvalue(observed: float, drawn: np.ndarray) -> float:
    """Return the p-value of a combined value among those of the draws."""
    return float((1 + np.sum(drawn <= observed * (1 + TIE))) / (1 + len(drawn)))


def _cross_groupings(
    groupings: Sequence[Grouping], max_crossed: int, min_size: int
) -> Iterator[tuple[np.ndarray, list[str], int]]:
    """Yield each sample's group (-1: left out), the names of the groups, and how many groups were left out."""
    for size in range(1, min(max_crossed, len(groupings)) + 1):
        for crossed in itertools.combinations(groupings, size):
            cells = np.stack([grouping.codes for grouping in crossed], axis=1)
            present, codes, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
            large = counts >= min_size
            numbers = np.where(large, np.cumsum(large) - 1, -1)
            names = [
                ", ".join(f"{part.name}={part.values[k]}" for part, k in zip(crossed, cell, strict=True))
                for cell in present[large]
            ]
            yield numbers[codes.reshape(-1)], names, int(np.sum(~large))


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over the samples of each of G groups: for the observed labels, then for R draws."""

    sizes: np.ndarray  # shape: (G,)
    scores: np.ndarray  # of centred log probabilities of the labels, shape: (G, R + 1)
    counts: np.ndarray  # of the residuals of the classes, shape: (G, m, R + 1)
    hits: np.ndarray  # of the residuals of the most probable classes, shape: (G, R + 1)
    score_variances: np.ndarray  # under calibration, shape: (G,)
    count_variances: np.ndarray  # shape: (G, m)
    hit_variances: np.ndarray  # shape: (G,)
    gaps: np.ndarray  # sum of the residuals of the class that `gap` is about, shape: (G,)
    gap_squares: np.ndarray  # of their squares
    gap_variances: np.ndarray  # of their variances under calibration

    @classmethod
    def of(
        cls, data: Classification, partitions: Sequence[np.ndarray], n_draws: int, seed: int, threads: int | None
    ) -> _Sums:
        p, n, m = np.asarray(arrays.to_host(data.probabilities), dtype=np.float64), data.n, data.m
        logarithms = np.log(np.maximum(p, FLOOR))
        means = np.sum(p * logarithms, axis=1)
        top, rows = np.argmax(p, axis=1), np.arange(n)
        confidence = p[rows, top]
        variances = np.sum(p * (logarithms - means[:, None]) ** 2, axis=1)
        observed = np.asarray(arrays.to_host(data.labels), dtype=np.int64)
        shown = np.ones(n, dtype=np.int64) if m == 2 else top
        residuals = (observed == shown) - p[rows, shown]
        sizes = [int(codes.max(initial=-1)) + 1 for codes in partitions]
        included = [np.flatnonzero(codes >= 0) for codes in partitions]

        def sums_of(values: np.ndarray) -> np.ndarray:
            return np.concatenate(
                [
                    np.bincount(codes[chosen], values[chosen], minlength=size)
                    for codes, chosen, size in zip(partitions, included, sizes, strict=True)
                ]
            )

        def of_labels(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            counts = np.concatenate(
                [
                    np.bincount(codes[chosen] * m + labels[chosen], minlength=size * m).reshape(size, m)
                    for codes, chosen, size in zip(partitions, included, sizes, strict=True)
                ]
            )
            return sums_of(logarithms[rows, labels] - means), counts, sums_of((labels == top) - confidence)

        every = [of_labels(observed)]
        at_once = max(1, LABELS_AT_ONCE // n)
        for batch in draw_label_batches(p, n_draws, seed, at_once=at_once, threads=threads):
            every += [of_labels(labels) for labels in np.asarray(batch).T.astype(np.int64)]
        scores, counts, hits = (np.stack(parts, axis=-1) for parts in zip(*every, strict=True))
        expected = np.stack([sums_of(p[:, k]) for k in range(m)], axis=1)
        return cls(
            sizes=sums_of(np.ones(n)),
            scores=scores,
            counts=counts - expected[:, :, None],
            hits=hits,
            score_variances=sums_of(variances),
            count_variances=np.stack([sums_of(p[:, k] * (1 - p[:, k])) for k in range(m)], axis=1),
            hit_variances=sums_of(confidence * (1 - confidence)),
            gaps=sums_of(residuals),
            gap_squares=sums_of(residuals**2),
            gap_variances=sums_of(p[rows, shown] * (1 - p[rows, shown])),
        )

    def combine_blocks(self, data: Classification) -> tuple[np.ndarray, list[str]]:
        """Return combined p-values, shape (G, R + 1), and the finding of the largest statistic of each group."""
        words = Words.of(data)
        combined, findings = [], []
        for k in range(len(self.sizes)):
            has_score = self.score_variances[k] > LEAST_SCORE_VARIANCE * self.sizes[k]
            in_classes = self.counts[k] ** 2 / np.maximum(self.count_variances[k], LEAST_VARIANCE)[:, None]
            blocks = [
                self.scores[k] ** 2 * (1 / self.score_variances[k] if has_score else 0.0),
                np.sum(in_classes, axis=0),
                self.hits[k] ** 2 / max(self.hit_variances[k], LEAST_VARIANCE),
            ]
            pvalues = np.stack([approximate_pvalues(block) for block in blocks[: 2 if words.has_confidence else 3]])
            worst = int(np.argmax(in_classes[:, 0]))
            findings_of_blocks = (
                words.describe_temperature(float(self.scores[k, 0])),
                words.describe_share(worst, float(self.counts[k, worst, 0])),
                f"largest probabilities too {describe_side(float(self.hits[k, 0]))}",
            )
            combined.append(combine(pvalues))
            findings.append(findings_of_blocks[int(np.argmin(pvalues[:, 0]))])
        return np.stack(combined), findings
