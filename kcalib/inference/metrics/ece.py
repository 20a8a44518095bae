"""The top-label ECE of several models with the same bins, with errors bounded by a paired bootstrap."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.options import check_integer, check_seed
from kcalib._backend.random import Weights, batches
from kcalib._backend.segments import Segments
from kcalib._input.labels import Classification
from kcalib.estimators.binning import MAX_BINS, N_BINS, bin_numbers
from kcalib.estimators.scores import top_label
from kcalib.inference.metrics.binned_gaps import ERROR_LIMITS, BinnedGaps, bounded
from kcalib.inference.metrics.measured import Metric, MetricResult, SharedOptions
from kcalib.results import ConfidenceInterval

SMALL = 20  # samples of a kind below which their sum is not nearly normal
MOST_SHARE = 0.1  # of kinds among samples: more would be slower than samples
BYTES_AT_ONCE = 2**26
STREAM = 1  # of the seed, different from other weights

N_RESAMPLES = 2000  # default
WEIGHTS_AT_ONCE = 2**26  # bytes of resampling weights in memory
BY_KINDS = 100_000  # samples from which kinds are drawn instead of samples


@dataclass(frozen=True)
class _Gaps:
    """The signed gap of each sample, by bins of the confidence, without empty bins. NumPy or CuPy arrays."""

    bins: Array  # number of each sample's bin, shape: (n,)
    gaps: Array  # correctness minus confidence, shape: (n,)
    occupied: Array  # numbers of the non-empty bins, shape: (b,)
    binned: BinnedGaps  # sums over these bins
    sums: Callable[[Array], Array]  # the sum over each bin of gaps / n times weights of shape (n, R), shape (b, R)

    @classmethod
    def of(cls, data: Classification, n_bins: int) -> _Gaps:
        confidence, correct = (arrays.to_compute_device(a).astype(np.float64) for a in top_label(data))
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
        counts, means, squares, *further_totals = arrays.to_host(totals)
        return cls(bins, gaps, occupied, BinnedGaps.of(n, counts, means / n, squares / n, *further_totals), sums)

    @property
    def xp(self) -> Any:
        return arrays.namespace(self.gaps)

    @property
    def linear(self) -> Array:
        """Return the contribution of each sample to the ECE, to first order."""
        signs = arrays.like(np.sign(self.binned.means), self.gaps)
        return signs[self.xp.searchsorted(self.occupied, self.bins)] * self.gaps

    def differing(self, other: _Gaps) -> Array:
        """Return 1 for bins whose gaps or samples differ from the other model, otherwise 0, shape (b,)."""
        differ = (self.bins != other.bins) | (self.gaps != other.gaps)
        is_changed = self.xp.isin(self.occupied, self.xp.concatenate([self.bins[differ], other.bins[differ]]))
        return is_changed.astype(np.float64)


@dataclass(frozen=True)
class ECE(Metric):
    """`kcalib.top_label_ece`.

    Parameters
    ----------
    n_bins : int
        Number of bins, 1 to 1,000,000.
    n_resamples : int, optional
        Replicates of the bootstrap, at least 2 / (1 - confidence_level) - 1. p-values are at least 2 / (n_resamples +
        1), before the adjustment for the number of pairs. Default: the larger of 2000 and 4 times the number of pairs
        over 1 - confidence_level.

    Examples
    --------
    >>> import kcalib
    >>> y, models = [0, 1, 1, 0], {"a": [0.2, 0.8, 0.9, 0.2], "b": [0.4, 0.6, 0.6, 0.4]}
    >>> kcalib.compare(y, models, metric=kcalib.methods.ECE(n_bins=5)).n_bins
    5
    """

    n_bins: int = N_BINS
    n_resamples: int | None = None

    name: ClassVar[str] = "ece"

    def __post_init__(self) -> None:
        check_integer("n_bins", self.n_bins, 1, MAX_BINS)
        if self.n_resamples is not None:
            check_integer("n_resamples", self.n_resamples, 1, 2**32)

    def check(self, confidence_level: float) -> None:
        if self.n_resamples is not None:
            least = math.ceil(2 / (1 - confidence_level) * (1 - 1e-12)) - 1
            hint = f" at the confidence level {confidence_level}"
            check_integer("n_resamples", self.n_resamples, least, 2**32, hint)

    def measure(self, data: Sequence[Classification], confidence_level: float, options: SharedOptions) -> MetricResult:
        return _measure(data, int(self.n_bins), self.n_resamples, confidence_level, options)


def _measure(
    data: Sequence[Classification],
    n_bins: int,
    n_resamples: int | None,
    confidence_level: float,
    options: SharedOptions,
) -> MetricResult:
    seed = check_seed(options.seed)
    models = [_Gaps.of(data_of_model, n_bins) for data_of_model in data]
    pairs = list(itertools.combinations(models, 2))
    if n_resamples is None:  # the smallest adjusted p-value is then half the level
        n_resamples = max(N_RESAMPLES, math.ceil(4 * len(pairs) / (1 - confidence_level)))
    weights = Weights("multinomial", data[0].n, n_resamples, seed)
    n_resamples = weights.n_replicates
    bounds = _replicates(models, pairs, weights, options.threads)
    tail = (1 - confidence_level) / 2
    values = []
    for model, bounds_of_model in zip(models, bounds[: len(models)], strict=True):
        binned = model.binned
        excess, unseen = float(binned.excess.sum()), binned.unseen(np.ones(len(binned.counts)), tail)
        variance = _variance(model.linear)
        values.append(
            bounded(binned.ece, variance, binned.n, excess, unseen, bounds_of_model, confidence_level, ERROR_LIMITS)
        )
    differences = []
    for (a, b), bounds_of_pair in zip(pairs, bounds[len(models) :], strict=True):
        in_a, in_b = (arrays.to_host(bins) for bins in (a.differing(b), b.differing(a)))
        excess = float(a.binned.excess @ in_a + b.binned.excess @ in_b)
        unseen = a.binned.unseen(in_a, tail) + b.binned.unseen(in_b, tail)
        difference, variance = a.binned.ece - b.binned.ece, _variance(a.linear - b.linear)
        n, limits = a.binned.n, ConfidenceInterval(-1.0, 1.0)
        differences.append(bounded(difference, variance, n, excess, unseen, bounds_of_pair, confidence_level, limits))
    return MetricResult(
        values,
        differences,
        estimator=f"top-label ECE with {n_bins} bins",
        intervals=f"bounds on the error of the ECE, paired, by a bootstrap with {n_resamples} replicates, seed {seed}",
        described={"n_bins": n_bins, "n_resamples": n_resamples, "seed": seed},
    )


def _variance(values: Array) -> float:
    return float(values.var(ddof=1))


def _replicates(
    models: Sequence[_Gaps], pairs: Sequence[tuple[_Gaps, _Gaps]], weights: Weights, threads: int | None
) -> np.ndarray:
    """Return bootstrapped bounds of (estimate - truth), lower and upper, of the models and then the pairs.

    Shape (models + pairs, 2, replicates).
    """
    out = np.empty((len(models) + len(pairs), 2, weights.n_replicates))
    differing = [(a.differing(b), b.differing(a)) for a, b in pairs]
    rare_deviations = [model.binned.drawn(weights.n_replicates, weights.seed) for model in models]
    for begin, end, deviations_by_model in _deviations(models, weights, threads):
        bounds = {}
        for k, (model, deviations) in enumerate(zip(models, deviations_by_model, strict=True)):
            deviations[arrays.like(np.flatnonzero(model.binned.rare), deviations)] = arrays.like(
                rare_deviations[k][:, begin:end], deviations
            )
            bounds[id(model)] = model.binned.bounds(deviations)
            out[k, :, begin:end] = [arrays.to_host(bound.sum(axis=0)) for bound in bounds[id(model)]]
        for k, ((a, b), (in_a, in_b)) in enumerate(zip(pairs, differing, strict=True), len(models)):
            (low_a, high_a), (low_b, high_b) = bounds[id(a)], bounds[id(b)]
            out[k, 0, begin:end] = arrays.to_host(in_a @ low_a - in_b @ high_b)
            out[k, 1, begin:end] = arrays.to_host(in_a @ high_a - in_b @ low_b)
    return out


def _deviations(
    models: Sequence[_Gaps], weights: Weights, threads: int | None
) -> Iterator[tuple[int, int, list[Array]]]:
    """Yield the range of replicates, and their deviations of the sums over each model's bins, (bins, replicates)."""
    if weights.n >= BY_KINDS:
        places = [np.searchsorted(arrays.to_host(model.occupied), arrays.to_host(model.bins)) for model in models]
        kinds = Kinds.of(places, [arrays.to_host(model.gaps) for model in models])
        if kinds is not None:
            for begin, end, changes in kinds.draw_deviations(weights.n_replicates, weights.seed):
                yield begin, end, [arrays.like(change, models[0].gaps) for change in changes]
            return
    for begin, end, counts in batches(models[0].gaps, weights, WEIGHTS_AT_ONCE, threads=threads):
        yield begin, end, [model.sums(counts) - arrays.like(model.binned.means, counts)[:, None] for model in models]


@dataclass(frozen=True)
class Kinds:
    """Bootstrap of sums over bins by kinds of samples, for very many samples.

    Samples are of one kind if they share bins in all models, and are right for the same models. The counts of the kinds
    in a replicate are multinomial; the deviations of their samples from their mean are a normal vector with the same
    covariances. Samples of small kinds are separate kinds.
    """

    n: int
    counts: np.ndarray  # samples of each kind
    means: Any  # sparse, shape (bins, kinds): mean gap of a kind in each bin, over n
    deviations: np.ndarray  # a root of the covariance of deviations from these, shape (bins, bins)
    starts: np.ndarray  # first bin of each model except the first

    @classmethod
    def of(cls, places: Sequence[np.ndarray], gaps: Sequence[np.ndarray]) -> Kinds | None:
        """Make kinds from the bin number and the gap of each sample, for each model; None if there are too many."""
        n, sizes = len(gaps[0]), [int(place.max()) + 1 for place in places]
        kind = np.zeros(n, dtype=np.int64)
        for place, gap, size in zip(places, gaps, sizes, strict=True):
            _, kind = np.unique(kind * (2 * size) + 2 * place + (gap > 0), return_inverse=True)
        counts = np.bincount(kind)
        singles = np.flatnonzero(counts[kind] < SMALL)
        number = np.cumsum(counts >= SMALL) - 1
        large = int(number[-1]) + 1
        if large + len(singles) > MOST_SHARE * n:
            return None
        kind = number[kind]
        kind[singles] = large + np.arange(len(singles))
        counts = np.bincount(kind)
        starts = np.cumsum([0, *sizes])
        rows = [place + start for place, start in zip(places, starts[:-1], strict=True)]
        mean_gaps = [np.bincount(kind, gap) / counts for gap in gaps]
        entries, at = np.concatenate(mean_gaps) / n, np.empty((len(gaps), len(counts)), dtype=np.int64)
        for k, row in enumerate(rows):
            at[k, kind] = row
        columns = np.tile(np.arange(len(counts)), len(gaps))
        means = scipy.sparse.csr_array((entries, (at.reshape(-1), columns)), shape=(starts[-1], len(counts)))
        deviations = [(gap - mean[kind]) / n for gap, mean in zip(gaps, mean_gaps, strict=True)]
        covariance = np.zeros((starts[-1], starts[-1]))
        for row, deviation in zip(rows, deviations, strict=True):
            for other_row, other_deviation in zip(rows, deviations, strict=True):
                products = np.bincount(
                    row * starts[-1] + other_row, deviation * other_deviation, minlength=covariance.size
                )
                covariance += products.reshape(covariance.shape)
        values, vectors = linalg.eigh(covariance)
        return cls(n, counts, means, vectors * np.sqrt(np.maximum(values, 0.0)), starts[1:-1])

    def draw_deviations(self, n_replicates: int, seed: int) -> Iterator[tuple[int, int, list[np.ndarray]]]:
        """Yield begin and end of replicates, and deviations from each model's sums, shape (bins, replicates)."""
        random = np.random.default_rng((seed, STREAM))
        step = max(1, BYTES_AT_ONCE // (8 * len(self.counts)))
        for begin in range(0, n_replicates, step):
            end = min(n_replicates, begin + step)
            times = random.multinomial(self.n, self.counts / self.n, size=end - begin).T - self.counts[:, None]
            normal = random.standard_normal((len(self.deviations), end - begin))
            changes = linalg.matmul(self.means, times) + linalg.matmul(self.deviations, normal)
            yield begin, end, np.split(changes, self.starts)
