r"""Exact sums over pairs of models on the same rows: of their losses and gaps, and confidence limits from these.

For the losses l of each row (Brier score, log loss) there is :math:`\sum (l^A - l^B)^2`. For the gaps g of top labels,
correctness minus confidence, there are :math:`\sum g^A g^B` over the rows in bin b of A and bin c of B, which with the
bins of each model give the covariance of all gaps, and the number of rows of a bin with another gap or bin in the other
model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcalib._backend import linalg
from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.sums import Sums
from kcalib._input.labels import Classification
from kcalib.estimators.binning import bin_numbers
from kcalib.estimators.scores import log_losses, square_residuals, top_label
from kcalib.inference.metrics.binned_gaps import BinnedGaps, bounded
from kcalib.inference.metrics.measured import Estimate
from kcalib.results import ConfidenceInterval

LOSSES = ("brier_score", "log_loss")


@dataclass(frozen=True, eq=False)
class RowTerms:
    """Terms of the rows of a batch, for one model."""

    losses: np.ndarray  # in the order of `LOSSES`, shape (2, n); the first one is |e|^2
    gaps: np.ndarray  # shape (n,)
    bins: np.ndarray  # of the confidence, shape (n,)

    @classmethod
    def of(cls, data: Classification, n_bins: int) -> RowTerms:
        confidence, correct = top_label(data)
        losses = np.stack([square_residuals(data), log_losses(data)])
        return cls(losses, correct - confidence, bin_numbers(confidence, n_bins))


@dataclass(frozen=True, eq=False)
class PairSums(Sums):
    """Sums for two models, A and B."""

    squares: ExactSums  # of the differences of losses, shape (2,)
    products: ExactSums  # of gaps by the bins of A and of B, shape (n_bins, n_bins)
    differing: np.ndarray  # rows with another gap or bin in the other model, by bins of A and of B: int64, (2, n_bins)

    @classmethod
    def empty(cls, n_bins: int) -> PairSums:
        return cls(ExactSums.zeros(2), ExactSums.zeros(n_bins, n_bins), np.zeros((2, n_bins), np.int64))

    @classmethod
    def of(cls, a: RowTerms, b: RowTerms, n_bins: int) -> PairSums:
        differ = (a.bins != b.bins) | (a.gaps != b.gaps)
        products = ExactSums.by_group((a.gaps * b.gaps)[:, None], a.bins * n_bins + b.bins, n_bins**2)
        return cls(
            ExactSums.over_rows((a.losses - b.losses).T ** 2),
            products.reshape(n_bins, n_bins),
            np.stack([np.bincount(terms.bins[differ], minlength=n_bins) for terms in (a, b)]),
        )


def ece_difference(
    a: BinnedGaps,
    b: BinnedGaps,
    used: tuple[np.ndarray, np.ndarray],
    sums: PairSums,
    confidence_level: float,
    n_replicates: int,
    seed: int,
) -> Estimate:
    """Return the ECE of A minus that of B; `used` are the bins of either that hold samples."""
    n, tail = a.n, (1 - confidence_level) / 2
    products = sums.products.to_float()[np.ix_(*used)] / n
    in_a, in_b = ((sums.differing[k][used[k]] > 0).astype(np.float64) for k in range(2))
    deviations = _normal(a, b, products, n_replicates, seed)
    both = [deviations[: len(a.counts)], deviations[len(a.counts) :]]
    for gaps, part in zip((a, b), both, strict=True):
        part[gaps.rare] = gaps.drawn(n_replicates, seed)
    (low_a, high_a), (low_b, high_b) = a.bounds(both[0]), b.bounds(both[1])
    bounds = np.stack([in_a @ low_a - in_b @ high_b, in_a @ high_a - in_b @ low_b])
    signs_a, signs_b = np.sign(a.means), np.sign(b.means)
    square = float(signs_a**2 @ a.squares + signs_b**2 @ b.squares - 2 * signs_a @ products @ signs_b)
    difference = a.ece - b.ece
    variance = max(0.0, square - difference**2) * n / (n - 1)
    excess = float(a.excess @ in_a + b.excess @ in_b)
    unseen = a.unseen(in_a, tail) + b.unseen(in_b, tail)
    limits = ConfidenceInterval(-1.0, 1.0)
    return bounded(difference, variance, n, excess, unseen, bounds, confidence_level, limits)


def _normal(a: BinnedGaps, b: BinnedGaps, products: np.ndarray, n_replicates: int, seed: int) -> np.ndarray:
    """Return normal deviations of the means of all bins of A, then of B, shape (bins, R)."""
    means = np.concatenate([a.means, b.means])
    seconds = np.block([[np.diag(a.squares), products], [products.T, np.diag(b.squares)]])
    values, vectors = linalg.eigh((seconds - np.outer(means, means)) / a.n)
    random = np.random.default_rng(seed).standard_normal((len(values), n_replicates))
    return np.asarray(vectors @ (np.sqrt(np.maximum(values, 0.0))[:, None] * random))
