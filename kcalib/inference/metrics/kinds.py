"""Bootstrap of sums over bins from how often each kind of samples is drawn, not each sample: for very many of them.

Samples in the same bins of all models, all of them right for the same models, are of one kind: their gaps differ by
less than the width of a bin. How often each kind occurs in a replicate is multinomial, as by samples; what its samples
add to their mean is a normal vector, with their covariances. Samples of small kinds are kinds of their own. `ece` takes
it for many samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from kcalib._backend import linalg

SMALL = 20  # samples of a kind, so that their sum is not nearly normal
MOST_SHARE = 0.1  # kinds, of samples: more take longer than samples do
BYTES_AT_ONCE = 2**26
STREAM = 1  # of the seed, beside that of other weights


@dataclass(frozen=True)
class Kinds:
    """Of n samples, with sums over the bins of all models, one model after the other."""

    n: int
    counts: np.ndarray  # samples of each kind
    means: Any  # sparse, shape (bins, kinds): mean gap of a kind in each of its bins, over n
    deviations: np.ndarray  # a root of the covariance of what samples add to these, shape (bins, bins)
    starts: np.ndarray  # of each model's bins but the first's

    @classmethod
    def of(cls, places: Sequence[np.ndarray], gaps: Sequence[np.ndarray]) -> Kinds | None:
        """From the number of each sample's bin, and its gap, for each model; None where there are too many kinds."""
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
