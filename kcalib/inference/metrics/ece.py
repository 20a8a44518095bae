"""The top-label ECE of several models with the same bins, its errors bounded by a paired bootstrap."""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_seed
from kcalib._backend.random import Weights, batches
from kcalib._backend.segments import Segments
from kcalib._input.labels import Classification
from kcalib.estimators.binning import N_BINS, bin_numbers
from kcalib.estimators.scores import top_label
from kcalib.inference.metrics.certainty import decided, unseen_share
from kcalib.inference.metrics.measured import Estimate, Measured, MetricOptions
from kcalib.results import ConfidenceInterval

EVENTS = 10  # labels that a calibrated model expects to come out otherwise, in a bin that is resampled
RESOLUTION = 16 * float(np.finfo(np.float64).eps)  # an ECE of so much may be rounding
N_RESAMPLES = 2000  # unless another number is given
WEIGHTS_AT_ONCE = 2**26  # bytes of resampling weights in memory


@dataclass(frozen=True)
class _Gaps:
    """The signed gap of each sample, by bins of the confidence; only bins that hold samples. NumPy or CuPy arrays."""

    bins: Array  # number of each sample's bin, shape: (n,)
    gaps: Array  # correctness minus confidence, shape: (n,)
    occupied: Array  # numbers of the bins that hold samples, shape: (b,)
    means: Array  # X: sum of the gaps of each of these bins over n, shape: (b,)
    certain: Array  # whether X is so far from 0 that its sign is sure, shape: (b,)
    sums: Callable[[Array], Array]  # the sum over each bin of gaps / n times weights of shape (n, R), shape (b, R)
    counts: np.ndarray  # samples of each of these bins, shape: (b,)
    confidences: np.ndarray  # their mean confidence, shape: (b,)
    excess: np.ndarray  # by how much the variance of X under calibration is larger than it looks, where `rare`; else 0
    rare: np.ndarray  # whether it is, and so few labels may come out otherwise that this says nothing, shape: (b,)
    alike: np.ndarray  # whether all labels are right, or all wrong, shape: (b,)

    @classmethod
    def of(cls, data: Classification, n_bins: int) -> _Gaps:
        confidence, correct = (arrays.where_computed(a).astype(np.float64) for a in top_label(data))
        xp = arrays.namespace(confidence)
        bins, gaps, n = bin_numbers(confidence, n_bins), correct - confidence, data.n
        occupied, position = xp.unique(bins, return_inverse=True)
        powers = xp.stack(
            (xp.ones_like(gaps), gaps, gaps**2, confidence, confidence * (1 - confidence), correct), axis=1
        )
        if arrays.is_host(gaps):
            totals = np.stack([np.bincount(position, column) for column in powers.T])
            matrix = scipy.sparse.csr_array((gaps / n, (position, np.arange(n))), shape=(len(occupied), n))
            sums = matrix.__matmul__
        else:
            segments = Segments.of(position, len(occupied))
            totals = segments.sums(powers, xp.ones_like(gaps)).T
            sums = functools.partial(segments.sums, scales=gaps / n)
        means, squares = totals[1] / n, totals[2] / n
        variances = xp.maximum(squares - means**2, 0.0) / n
        counts, confidences, events, right = (arrays.to_host(totals[k]) for k in (0, 3, 4, 5))
        excess = events / n**2 - arrays.to_host(variances)
        rare = (events < EVENTS) & (excess > 0)
        certain = xp.abs(means) > xp.sqrt(math.log(n) * variances)
        certain = certain & (variances > 0) & arrays.like(~rare, gaps)
        alike = (right < 0.5) | (right > counts - 0.5)
        return cls(
            bins, gaps, occupied, means, certain, sums,
            counts, confidences / counts, np.where(rare, excess, 0.0), rare, alike,
        )  # fmt: skip

    @property
    def xp(self) -> Any:
        return arrays.namespace(self.gaps)

    @property
    def signs(self) -> Array:
        return self.xp.sign(self.means)

    @property
    def linear(self) -> Array:
        """The contribution of each sample to the ECE, to first order."""
        return self.signs[self.xp.searchsorted(self.occupied, self.bins)] * self.gaps

    def drawn(self, n_replicates: int, seed: int) -> np.ndarray:
        """Deviations of X in bins where labels come out otherwise too rarely to be resampled, shape (rare, R).

        By the binomial law of the mean confidence, which has at least the variance of that of the confidences.
        """
        # Models have different draws, which do not depend on their order.
        mark = zlib.crc32(self.counts.astype(np.int64).tobytes() + np.round(self.confidences, 6).tobytes())
        random = np.random.default_rng((seed, mark))
        counts, shares = (of[self.rare][:, None] for of in (self.counts, self.confidences.clip(0.0, 1.0)))
        right = random.binomial(counts.astype(np.int64), shares, (len(counts), n_replicates))
        return (right - counts * shares) / len(self.bins)

    def unseen(self, among: Array, tail: float) -> float:
        """By how much the ECE may be otherwise for labels of a kind that the bins `among`, 0 or 1, do not hold."""
        number = float(self.counts[self.alike] @ arrays.to_host(among)[self.alike])
        return number * unseen_share(round(number), tail) / len(self.bins) if number > 0 else 0.0

    def bounds(self, deviations: Array) -> tuple[Array, Array]:
        """For each bin what |X| exceeds |mu| by: at least, and at most. For deviations X - mu, shape (b, R)."""
        n, b = len(self.bins), len(self.occupied)
        deviations = math.sqrt(n / max(1, n - b)) * deviations  # the bootstrap sees too little in bins of few samples
        low = self.signs[:, None] * deviations
        return low, self.xp.where(self.certain[:, None], low, self.xp.abs(deviations))

    def differing(self, other: _Gaps) -> Array:
        """1 for bins that do not hold the same gaps of the same samples in the other model, otherwise 0, shape (b,)."""
        differ = (self.bins != other.bins) | (self.gaps != other.gaps)
        found = self.xp.isin(self.occupied, self.xp.concatenate([self.bins[differ], other.bins[differ]]))
        return found.astype(np.float64)


def ece(data: Sequence[Classification], confidence_level: float, options: MetricOptions) -> Measured:
    n_bins = N_BINS if options.n_bins is None else int(options.n_bins)
    seed = check_seed(options.seed)
    models = [_Gaps.of(one, n_bins) for one in data]
    pairs = list(itertools.combinations(models, 2))
    n_resamples = options.n_resamples
    if n_resamples is None:  # the smallest p-value, adjusted, is then half the level
        n_resamples = max(N_RESAMPLES, math.ceil(4 * len(pairs) / (1 - confidence_level)))
    weights = Weights("multinomial", data[0].n, n_resamples, seed)
    n_resamples = weights.n_replicates
    bounds = _replicates(models, pairs, weights, options.threads)
    tail = (1 - confidence_level) / 2
    values = []
    for model, own in zip(models, bounds[: len(models)], strict=True):
        every = np.ones(len(model.counts))
        excess, unseen = float(model.excess.sum()), model.unseen(every, tail)
        limits = ConfidenceInterval(0.0, 1.0)
        values.append(_bounded(_ece_of(model), model.linear, excess, unseen, own, confidence_level, limits))
    differences = []
    for (a, b), both in zip(pairs, bounds[len(models) :], strict=True):
        in_a, in_b = (arrays.to_host(bins) for bins in (a.differing(b), b.differing(a)))
        excess = float(a.excess @ in_a + b.excess @ in_b)
        unseen = a.unseen(in_a, tail) + b.unseen(in_b, tail)
        difference, linear, limits = _ece_of(a) - _ece_of(b), a.linear - b.linear, ConfidenceInterval(-1.0, 1.0)
        differences.append(_bounded(difference, linear, excess, unseen, both, confidence_level, limits))
    return Measured(
        values,
        differences,
        estimator=f"top-label ECE with {n_bins} bins",
        intervals=f"bounds on the error of the ECE, paired, by a bootstrap with {n_resamples} replicates, seed {seed}",
        described={"n_bins": n_bins, "n_resamples": n_resamples, "seed": seed},
    )


def _ece_of(model: _Gaps) -> float:
    return float(model.xp.sum(model.xp.abs(model.means)))


def _replicates(
    models: Sequence[_Gaps], pairs: Sequence[tuple[_Gaps, _Gaps]], weights: Weights, threads: int | None
) -> np.ndarray:
    """Bootstrap of a lower and an upper bound of (estimate - truth), of the models and then the pairs.

    Shape (models + pairs, 2, replicates).
    """
    out = np.empty((len(models) + len(pairs), 2, weights.n_replicates))
    differing = [(a.differing(b), b.differing(a)) for a, b in pairs]
    drawn = [model.drawn(weights.n_replicates, weights.seed) for model in models]
    for begin, end, counts in batches(models[0].gaps, weights, WEIGHTS_AT_ONCE, threads=threads):
        bounds = {}
        for k, model in enumerate(models):
            deviations = model.sums(counts) - model.means[:, None]
            deviations[arrays.like(np.flatnonzero(model.rare), deviations)] = arrays.like(
                drawn[k][:, begin:end], deviations
            )
            bounds[id(model)] = model.bounds(deviations)
            out[k, :, begin:end] = [arrays.to_host(bound.sum(axis=0)) for bound in bounds[id(model)]]
        for k, ((a, b), (in_a, in_b)) in enumerate(zip(pairs, differing, strict=True), len(models)):
            (low_a, high_a), (low_b, high_b) = bounds[id(a)], bounds[id(b)]
            out[k, 0, begin:end] = arrays.to_host(in_a @ low_a - in_b @ high_b)
            out[k, 1, begin:end] = arrays.to_host(in_a @ high_a - in_b @ low_b)
    return out


def _bounded(
    value: float,
    linear: Array,
    excess: float,
    unseen: float,
    bounds: np.ndarray,
    confidence_level: float,
    limits: ConfidenceInterval,
) -> Estimate:
    """Interval and p-value from replicates of a lower and an upper bound of (value - truth), and what was not seen."""
    n = len(linear)
    error = math.sqrt(float(linear.var(ddof=1)) / n + excess)
    if excess == unseen == 0 and not bounds.any():  # two models with the same gaps of the same samples
        return Estimate(value, error, ConfidenceInterval(value, value), 1.0)
    low, high = np.sort(bounds + np.array([[-unseen], [unseen]]), axis=1)
    replicates = len(low)
    beyond = int((1 - confidence_level) / 2 * (replicates + 1) * (1 + 1e-12))  # at least 1, by Options.check
    exceeding = min(int(np.sum(high >= value)), int(np.sum(low <= value)))
    pvalue = min(1.0, 2 * (1 + exceeding) / (1 + replicates))
    found = value - float(high[-beyond]), value - float(low[beyond - 1]), pvalue
    return decided(value, error, found, n, confidence_level, limits, RESOLUTION)
