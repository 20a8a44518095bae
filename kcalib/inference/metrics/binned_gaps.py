"""Gaps of bins and bounds of their deviations, from sums over each bin: they bound the error of an ECE.

`ece` computes these sums and resamples them; a state (`kcalib.streaming`) only has the sums, and draws normal
deviations with their covariance.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib.inference.metrics.certainty import limit_certainty, unseen_share
from kcalib.inference.metrics.measured import Estimate
from kcalib.results import ConfidenceInterval

EVENTS = 10  # expected deviating labels of a calibrated model in a bin that is resampled
RESOLUTION = 16 * float(np.finfo(np.float64).eps)  # an ECE of this size may be rounding
ERROR_LIMITS = ConfidenceInterval(0.0, 1.0)


@dataclass(frozen=True)
class BinnedGaps:
    """Non-empty bins of n samples; NumPy arrays of shape (b,)."""

    n: int
    counts: np.ndarray  # samples
    confidences: np.ndarray  # their mean confidence
    means: np.ndarray  # X: sum of the gaps, correctness minus confidence, over n
    squares: np.ndarray  # sum of the squares of the gaps over n
    certain: np.ndarray  # whether the sign of X is certain
    excess: np.ndarray  # how far the variance of X under calibration exceeds the observed one, where `rare`; else 0
    rare: np.ndarray  # whether it does, and so few deviating labels are expected that the observed one is unreliable
    alike: np.ndarray  # whether all labels are right, or all are wrong

    @classmethod
    def of(
        cls,
        n: int,
        counts: np.ndarray,
        means: np.ndarray,
        squares: np.ndarray,
        confidence: np.ndarray,
        events: np.ndarray,
        right: np.ndarray,
    ) -> BinnedGaps:
        """Make an instance from means and squares as above, and sums over each bin of p, p (1 - p) and hits."""
        variances = np.maximum(squares - means**2, 0.0) / n
        excess = events / n**2 - variances
        rare = (events < EVENTS) & (excess > 0)
        certain = (np.abs(means) > np.sqrt(math.log(n) * variances)) & (variances > 0) & ~rare
        alike = (right < 0.5) | (right > counts - 0.5)
        return cls(n, counts, confidence / counts, means, squares, certain, np.where(rare, excess, 0.0), rare, alike)

    @property
    def ece(self) -> float:
        return float(np.sum(np.abs(self.means)))

    @property
    def linear_variance(self) -> float:
        """Return the variance of a sample's contribution to the ECE, to first order."""
        signs = np.sign(self.means)
        mean, square = float(signs @ self.means), float((signs * signs) @ self.squares)
        return max(0.0, square - mean**2) * self.n / (self.n - 1)

    def drawn(self, n_replicates: int, seed: int) -> np.ndarray:
        """Return deviations of X in bins with too few deviating labels for resampling, shape (rare, R)."""
        # Different models have different draws, which do not depend on the order of models.
        digest = zlib.crc32(self.counts.astype(np.int64).tobytes() + np.round(self.confidences, 6).tobytes())
        random = np.random.default_rng((seed, digest))
        counts, shares = (of[self.rare][:, None] for of in (self.counts, self.confidences.clip(0.0, 1.0)))
        right = random.binomial(counts.astype(np.int64), shares, (len(counts), n_replicates))
        return (right - counts * shares) / self.n

    def normal(self, n_replicates: int, random: np.random.Generator) -> np.ndarray:
        """Return normal deviations of X, shape (b, R), except for rare bins, which are as in `drawn`.

        Gaps and the number of samples in a bin vary: the covariance is (diag(squares) - X X^T) / n.
        """
        n, b = self.n, len(self.counts)
        share = self.counts / n
        within = np.sqrt(np.maximum(self.squares - self.means**2 / share, 0.0) / n)
        sums_of_bins = within[:, None] * random.standard_normal((b, n_replicates))
        numbers = np.sqrt(share / n)[:, None] * random.standard_normal((b, n_replicates))
        numbers -= share[:, None] * numbers.sum(axis=0)
        return sums_of_bins + (self.means / share)[:, None] * numbers

    def unseen(self, among: np.ndarray, tail: float) -> float:
        """Return how much the ECE may change by labels of a kind that the bins `among` (0 or 1) do not contain."""
        number = float(self.counts[self.alike] @ among[self.alike])
        return number * unseen_share(round(number), tail) / self.n if number > 0 else 0.0

    def bounds(self, deviations: Array) -> tuple[Array, Array]:
        """Return lower and upper bounds of |X| - |mu| for each bin, from deviations X - mu, shape (b, R)."""
        n, b, xp = self.n, len(self.counts), arrays.namespace(deviations)
        signs, certain = (arrays.like(of, deviations)[:, None] for of in (np.sign(self.means), self.certain))
        deviations = math.sqrt(n / max(1, n - b)) * deviations  # corrects the bootstrap in bins of few samples
        low = signs * deviations
        return low, xp.where(certain, low, xp.abs(deviations))


def bounded(
    value: float,
    variance: float,
    n: int,
    excess: float,
    unseen: float,
    bounds: np.ndarray,
    confidence_level: float,
    limits: ConfidenceInterval,
) -> Estimate:
    """Return interval and p-value from replicated bounds of (value - truth), and from unseen labels.

    `variance` is that of a sample's contribution to the value, to first order.
    """
    error = math.sqrt(variance / n + excess)
    if excess == unseen == 0 and not bounds.any():  # two models with identical gaps
        return Estimate(value, error, ConfidenceInterval(value, value), 1.0)
    low, high = np.sort(bounds + np.array([[-unseen], [unseen]]), axis=1)
    replicates = len(low)
    beyond = int((1 - confidence_level) / 2 * (replicates + 1) * (1 + 1e-12))  # at least 1, by Options.check
    exceeding = min(int(np.sum(high >= value)), int(np.sum(low <= value)))
    pvalue = min(1.0, 2 * (1 + exceeding) / (1 + replicates))
    limits_and_pvalue = value - float(high[-beyond]), value - float(low[beyond - 1]), pvalue
    return limit_certainty(value, error, limits_and_pvalue, n, confidence_level, limits, RESOLUTION)


def estimate_of(
    gaps: BinnedGaps, confidence_level: float, n_replicates: int, random: np.random.Generator, seed: int
) -> Estimate:
    """Return the ECE of one column of bins from the sums alone."""
    deviations = gaps.normal(n_replicates, random)
    deviations[gaps.rare] = gaps.drawn(n_replicates, seed)
    bounds = np.stack([bound.sum(axis=0) for bound in gaps.bounds(deviations)])
    excess, unseen = float(gaps.excess.sum()), gaps.unseen(np.ones(len(gaps.counts)), (1 - confidence_level) / 2)
    return bounded(gaps.ece, gaps.linear_variance, gaps.n, excess, unseen, bounds, confidence_level, ERROR_LIMITS)
