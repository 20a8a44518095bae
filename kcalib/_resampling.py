"""Resampling weights: matrices of numbers that depend on seed, replicate and row alone.

A replicate of a statistic weighs every row of the data by a random number: how often the row is
drawn (the bootstrap) or a multiplier of mean 0 (the multiplier bootstrap). The compiled core
computes the weights (src/include/kcalib/resampling.h says how); any range of replicates can be
had by itself, in any order, and is the same bit for bit on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib import _native
from kcalib._options import check_choice, check_integer
from kcalib._threads import resolve_threads, terminal_progress

# The enum WeightKind of src/include/kcalib/resampling.h.
KINDS = {"multinomial": 0, "rademacher": 1, "gaussian": 2}


@dataclass(frozen=True)
class Weights:
    """Weights of `n` rows in `n_replicates` replicates.

    Parameters
    ----------
    kind : {"multinomial", "rademacher", "gaussian"}
        Counts of `n` draws with replacement (mean 1, each replicate sums to `n`); 1 or -1; standard normal.
    n : int
        Number of rows, at most 2**40.
    n_replicates : int
        Number of replicates, at most 2**32.
    seed : int
        From 0 to 2**64 - 1.
    """

    kind: str
    n: int
    n_replicates: int
    seed: int

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, tuple(KINDS))
        for name, low, high in (("n", 1, 2**40), ("n_replicates", 0, 2**32), ("seed", 0, 2**64 - 1)):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), low, high))

    def values(self, begin: int = 0, end: int | None = None, dtype: Any = "float64", threads: Any = None) -> np.ndarray:
        """The weights in replicates [begin, end), of shape (n, end - begin); float32: the float64 ones, rounded."""
        end = check_integer("end", self.n_replicates if end is None else end, 0, self.n_replicates)
        begin = check_integer("begin", begin, 0, end)
        out = np.empty((self.n, end - begin), dtype=check_choice("dtype", dtype, ("float64", "float32")))
        if out.size:
            with terminal_progress() as progress:
                sweep = _native.Sweep(resolve_threads(threads), None, progress)
                _native.fill_weights(KINDS[self.kind], self.seed, begin, out, sweep)
        return out


def draw_labels(cumulative: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Labels drawn from rows of probabilities, shape (n,), by one uniform number in [0, 1) for each.

    `cumulative` is the cumulative sum of the rows, shape (n, m). A label of probability 0 is never drawn.
    """
    return np.asarray(np.sum(cumulative <= thresholds(cumulative[:, -1], uniform)[:, None], axis=1))


def thresholds(totals: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """`uniform` as shares of `totals`, always below them."""
    shares = uniform * totals
    return np.minimum(shares, np.nextafter(totals, 0.0), out=shares)


def drawn_labels(probabilities: np.ndarray, n_draws: int, seed: int, *, at_once: int) -> Iterator[np.ndarray]:
    """Labels drawn from the rows of `probabilities`, shape (n, draws), `at_once` draws at a time.

    By inversion of one uniform number a label, of NumPy's Philox generator: draw after draw, sample after
    sample, so that neither `at_once` nor an array's library or device matters.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    cumulative = np.cumsum(probabilities, axis=1)
    for begin in range(0, n_draws, at_once):
        uniform = generator.random((min(at_once, n_draws - begin), len(cumulative))).T
        shares = thresholds(cumulative[:, -1:], uniform)
        labels = np.zeros(shares.shape, dtype=np.min_scalar_type(cumulative.shape[1]), order="F")  # as the shares
        for column in cumulative.T[:-1]:
            labels += column[:, None] <= shares
        yield labels.astype(np.intp, order="C")
