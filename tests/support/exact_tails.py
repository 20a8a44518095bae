"""Laws of the SKCE's sum over pairs that are known to the last outcome: of few samples, and few distinct predictions.

With d distinct predictions the sum depends on how often each label occurred with each of them. These numbers are
independent multinomial variables, and all their values are gone through: no draws, and so no noise, at n = 200.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import scipy.spatial.distance
import scipy.special

MOST_OUTCOMES = 5e6


@dataclass(frozen=True)
class KnownLaw:
    """Predictions p, each `times`, and the law of T = sum_{i != j} k(p_i, p_j) <e_i, e_j>, largest first."""

    predictions: np.ndarray  # distinct ones, shape (d, m)
    times: np.ndarray  # shape (d,)
    bandwidth: float
    totals: np.ndarray  # descending
    logs: np.ndarray  # logarithms of their probabilities
    counts: np.ndarray  # of the labels, shape (outcomes, d, m)

    @classmethod
    def of(cls, predictions: np.ndarray, times: np.ndarray, bandwidth: float = 0.5) -> KnownLaw:
        """With the exponential kernel. The number of outcomes is the product of those of each prediction."""
        m = predictions.shape[1]
        kernel = np.exp(-scipy.spatial.distance.cdist(predictions, predictions) / bandwidth)
        values = [_compositions(int(size), m) for size in times]
        assert math.prod(map(len, values)) <= MOST_OUTCOMES
        sums, own, logs = [], [], []  # of residuals, of their squared lengths, log-probabilities
        for p, size, counts in zip(predictions, times, values, strict=True):
            lengths = np.sum((np.eye(m) - p) ** 2, axis=1)
            sums.append(counts - size * p)
            own.append(counts @ lengths)
            terms = scipy.special.gammaln(size + 1) - scipy.special.gammaln(counts + 1).sum(axis=1)
            logs.append(terms + scipy.special.xlogy(counts, p).sum(axis=1))
        shape, d = [len(one) for one in values], len(times)

        def spread(one: np.ndarray, axis: int) -> np.ndarray:
            return one.reshape([-1 if i == axis else 1 for i in range(d)])

        totals, log = np.zeros(shape), np.zeros(shape)
        for i in range(d):
            log = log + spread(logs[i], i)
            totals = totals + spread(np.sum(sums[i] ** 2, axis=1) - own[i], i)
            for j in range(i):
                products = sums[j] @ sums[i].T  # the axis of j is before that of i
                rest = [shape[k] if k in (i, j) else 1 for k in range(d)]
                totals = totals + 2 * kernel[i, j] * products.reshape(rest)
        order = np.argsort(-totals, axis=None)
        where = np.unravel_index(order, shape)
        counts = np.stack([one[at] for one, at in zip(values, where, strict=True)], axis=1)
        return cls(predictions, np.asarray(times), bandwidth, totals.reshape(-1)[order], log.reshape(-1)[order], counts)

    @property
    def p(self) -> np.ndarray:
        """Shape (n, m)."""
        return np.repeat(self.predictions, self.times, axis=0)

    def at(self, level: float) -> tuple[np.ndarray, float]:
        """Labels whose statistic is exceeded or reached with a probability near `level`, and that probability."""
        probabilities = np.cumsum(np.exp(self.logs))
        # Equal sums, but for rounding, are one event: only the last of them has the whole probability.
        gap = np.append(np.diff(-self.totals) > 1e-9 * np.abs(self.totals[:-1]) + 1e-12, True)
        ends = np.flatnonzero(gap)
        ends = ends[probabilities[ends] > 0]
        near = ends[np.argmin(np.abs(np.log(probabilities[ends] / level)))]
        labels = [np.repeat(np.arange(self.p.shape[1]), counts) for counts in self.counts[near]]
        return np.concatenate(labels), float(probabilities[near])


def _compositions(size: int, m: int) -> np.ndarray:
    """All numbers of m labels in so many samples, shape (outcomes, m)."""
    if m == 2:
        first = np.arange(size + 1)
        return np.stack([first, size - first], axis=1)
    found = [one for one in itertools.product(range(size + 1), repeat=m - 1) if sum(one) <= size]
    others = np.array(found)
    return np.column_stack([others, size - others.sum(axis=1)])


def _binary(*events: float) -> np.ndarray:
    return np.array([[1 - e, e] for e in events])


def _one_each(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return p, np.ones(len(p), dtype=int)


_RNG = np.random.default_rng(17)
# Diffuse, rare, confident and skewed predictions, few and many samples: for `KnownLaw.of`.
KNOWN_LAWS = {
    "16 binary, diffuse": _one_each(_RNG.dirichlet(np.ones(2), size=16)),
    "18 binary, Beta(.3, 3)": _one_each(_binary(*_RNG.beta(0.3, 3, size=18))),
    "11 of 3 classes, diffuse": _one_each(_RNG.dirichlet(np.ones(3), size=11)),
    "200 binary, .2 .5 .8": (_binary(0.2, 0.5, 0.8), np.array([60, 70, 70])),
    "200 binary, .02 .05 .3": (_binary(0.02, 0.05, 0.3), np.array([80, 80, 40])),
    "2000 binary, .002 .01": (_binary(0.002, 0.01), np.array([1000, 1000])),
    "3000 binary, .0001 .001": (_binary(0.0001, 0.001), np.array([1500, 1500])),
    "80 of 3 classes": (np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]]), np.array([40, 40])),
    "60 of 3 classes, confident": (np.array([[0.98, 0.015, 0.005], [0.01, 0.02, 0.97]]), np.array([30, 30])),
    "60 binary, .1 .3 .6 .9": (_binary(0.1, 0.3, 0.6, 0.9), np.array([15, 15, 15, 15])),
}


@dataclass(frozen=True)
class DrawnLaw:
    """The same of predictions that are all different, by many draws: at a tail of q the error is 1 / sqrt(draws q)."""

    p: np.ndarray
    bandwidth: float
    totals: np.ndarray  # descending
    candidates: np.ndarray  # labels with large sums, shape (count, n)
    candidate_totals: np.ndarray

    @classmethod
    def of(cls, p: np.ndarray, draws: int, seed: int = 0, bandwidth: float = 0.5) -> DrawnLaw:
        kernel = np.exp(-scipy.spatial.distance.cdist(p, p) / bandwidth)
        np.fill_diagonal(kernel, 0.0)
        rng = np.random.default_rng(seed)
        batch = max(1, int(2e7) // p.size)
        totals = [_totals(kernel, p, _labels(p, batch, rng)) for _ in range(-(-draws // batch))]
        # Large sums are common under other predictions: flatter ones, and sharper ones.
        candidates = []
        for power in np.linspace(0.3, 2.0, 18):
            other = p**power / np.sum(p**power, axis=1, keepdims=True)
            candidates.append(_labels(other, max(1, min(batch, 3000)), rng))
        labels = np.concatenate(candidates)
        sums = np.concatenate([_totals(kernel, p, one) for one in candidates])
        return cls(p, bandwidth, np.sort(np.concatenate(totals))[::-1], labels, sums)

    def at(self, level: float) -> tuple[np.ndarray, float]:
        """As `KnownLaw.at`."""
        wanted = self.totals[int(level * len(self.totals))]
        near = int(np.argmin(np.abs(self.candidate_totals - wanted)))
        count = np.searchsorted(-self.totals, -self.candidate_totals[near], side="right")
        return self.candidates[near], float(count) / len(self.totals)


def _labels(p: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Shape (count, n)."""
    found = np.zeros((count, len(p)), dtype=np.int8)
    uniform = rng.random((count, len(p)), dtype=np.float32)
    for step in np.cumsum(p, axis=1).T[:-1]:
        found += uniform >= step.astype(np.float32)
    return found


def _totals(kernel: np.ndarray, p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    single = kernel.astype(np.float32)
    total = np.zeros(len(labels))
    classes = range(1) if p.shape[1] == 2 else range(p.shape[1])
    for c in classes:
        residuals = (labels == c).astype(np.float32) - p[:, c].astype(np.float32)
        total += np.einsum("di,di->d", residuals @ single, residuals)
    return 2 * total if p.shape[1] == 2 else total


def drawn_laws(draws: int) -> dict[str, DrawnLaw]:
    """Many classes, whose sums have many directions."""
    rng = np.random.default_rng(23)
    error = 10.0 ** rng.uniform(-4, -2, size=100)
    saturated = np.tile(error[:, None], (1, 5))
    saturated[np.arange(100), rng.integers(5, size=100)] = 1 - 4 * error
    rates = np.arange(1, 21) ** -1.5
    laws = {
        "100 binary, Beta(.5, .5)": rng.dirichlet(np.full(2, 0.5), size=100),
        "100 of 5 classes, saturated": saturated,
        "80 of 10 classes, Dir(.3)": rng.dirichlet(np.full(10, 0.3), size=80),
        "60 of 20 classes, skewed": rng.dirichlet(10 * rates / rates.sum(), size=60),
    }
    return {name: DrawnLaw.of(p, draws) for name, p in laws.items()}
