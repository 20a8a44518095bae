"""Sums over rows that need the kernel: of features and marks, block by block.

A block of rows is added up in float64, in a fixed order, and the sums of blocks are added exactly; which rows are a
block depends on their numbers alone. `Machine` makes the sums of a block for a kernel whose bandwidths are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from kcalib import _native
from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.random import cumulative_sums, draw_labels
from kcalib._backend.threads import sweeping
from kcalib._pairs.feature_sums import compiled, feature_rows, mark_sums
from kcalib._pairs.features import FeatureMap
from kcalib.streaming._options import StateOptions
from kcalib.streaming._rows import Rows

BLOCK, DRAWN_BLOCK = 2**7, 2**12  # rows of a block, without and with draws of labels
MARKS_AT_ONCE = 320  # columns of drawn labels whose sums share one pass of features


def block_size(options: StateOptions) -> int:
    """Rows of a block."""
    return DRAWN_BLOCK if options.n_resamples else BLOCK


@dataclass(frozen=True, eq=False)
class DrawnSums:
    """Of labels that are drawn from the predictions, without weights: residuals are base + change, change by draws.

    Of a row whose most probable class has at least 1/2 the base is onehot(class) - p, else -p: so those of saturated
    predictions keep their digits.
    """

    base: ExactSums  # sum phi (x) base, shape (n_columns, m)
    base_own: ExactSums  # sum |phi|^2 |R^T base|^2
    changes: ExactSums  # shape (n_resamples, n_columns, m)
    changes_own: ExactSums  # sum |phi|^2 (|R^T e|^2 - |R^T base|^2), shape (n_resamples,)

    def __add__(self, other: DrawnSums) -> DrawnSums:
        return DrawnSums(
            self.base + other.base,
            self.base_own + other.base_own,
            self.changes + other.changes,
            self.changes_own + other.changes_own,
        )


@dataclass(frozen=True, eq=False)
class KernelSums:
    """In the units of the `Machine`."""

    sums: ExactSums  # sum phi (x) a, shape (n_columns, r)
    own: ExactSums  # sum |a|^2 times the squares of a frequency's two columns, shape (n_frequencies,)
    null_own: ExactSums  # sum w^2 |phi|^2 E |R^T e|^2 of labels drawn from the predictions
    drawn: DrawnSums | None

    def __add__(self, other: KernelSums) -> KernelSums:
        return KernelSums(
            self.sums + other.sums,
            self.own + other.own,
            self.null_own + other.null_own,
            None if self.drawn is None or other.drawn is None else self.drawn + other.drawn,
        )


class Machine:
    """What makes sums of blocks; features and marks are divided by powers of two, so that these are about 1.

    Parameters
    ----------
    options : StateOptions
        Whose kernel has its bandwidths.
    m : int
        Classes of the problem that the lens induces.
    threads : int, optional
        At most so many.
    """

    def __init__(self, options: StateOptions, m: int, threads: int | None) -> None:
        self.options, self.m, self.threads = options, m, threads
        found, root = options.map(m), options.root()
        self.feature_unit = _power_of_two(_largest_length(found))
        self.map = replace(found, amplitudes=found.amplitudes / self.feature_unit)
        self.mark_unit = 1.0 if root is None else _power_of_two(float(np.max(np.linalg.norm(root, axis=1))))
        self.root = None if root is None else np.ascontiguousarray(root / self.mark_unit)
        self.rank = m if root is None else root.shape[1]
        self._features = compiled(self.map)

    def zeros(self) -> KernelSums:
        options, columns = self.options, self.map.n_columns
        drawn = None
        if options.n_resamples:
            drawn = DrawnSums(
                ExactSums.zeros(columns, self.m),
                ExactSums.zeros(),
                ExactSums.zeros(options.n_resamples, columns, self.m),
                ExactSums.zeros(options.n_resamples),
            )
        own = ExactSums.zeros(len(self.map.frequencies))
        return KernelSums(ExactSums.zeros(columns, self.rank), own, ExactSums.zeros(), drawn)

    def plus(self, sums: KernelSums, pieces: Iterable[Rows]) -> KernelSums:
        """With rows of blocks: each piece is ascending, and has all the rows there are of its blocks."""
        new = KernelSums(sums.sums.copy(), sums.own.copy(), sums.null_own.copy(), sums.drawn)
        for rows in pieces:
            tiles = rows.numbers // BLOCK
            ends = np.append(np.flatnonzero(np.diff(tiles)) + 1, len(tiles))
            with sweeping(self.threads) as sweep:
                _native.state_sums(
                    self._features,
                    rows.probabilities,
                    rows.labels,
                    rows.weights,
                    self.root,
                    ends,
                    new.sums.flat(),
                    new.own.flat(),
                    new.null_own.flat(),
                    sweep,
                )
            if new.drawn is not None:
                blocks = rows.numbers // DRAWN_BLOCK
                for block in np.unique(blocks).tolist():
                    new = replace(new, drawn=new.drawn + self._drawn(block, rows.taken(blocks == block)))
        return new

    def _drawn(self, block: int, rows: Rows) -> DrawnSums:
        p, (n, m) = rows.probabilities, rows.probabilities.shape
        count, columns = self.options.n_resamples, self.map.n_columns
        norms = np.sum(feature_rows(self.map, p) ** 2, axis=1)
        likely = np.argmax(p, axis=1)[:, None] == np.arange(m)
        likely &= (p.max(axis=1, keepdims=True) >= 0.5) | (m == 2)
        base = likely - p
        base_costs = norms * self._lengths(base)
        base_sums, _ = mark_sums(self.map, p, base, threads=self.threads)
        cumulative = cumulative_sums(p)
        changes, own = np.empty((count, columns, m)), np.empty(count)
        at_once = max(1, MARKS_AT_ONCE // m)
        for begin in range(0, count, at_once):
            draws = range(begin, min(begin + at_once, count))
            moved = np.empty((n, len(draws), m))
            for k, draw in enumerate(draws):
                labels = draw_labels(cumulative, self._uniforms(block, draw)[rows.numbers % DRAWN_BLOCK])
                moved[:, k] = (labels[:, None] == np.arange(m)) * 1.0 - likely
                own[draw] = float(np.sum(norms * self._lengths(base + moved[:, k]) - base_costs))
            found, _ = mark_sums(self.map, p, moved.reshape(n, -1), threads=self.threads)
            changes[begin : draws.stop] = found.reshape(columns, len(draws), m).transpose(1, 0, 2)
        return DrawnSums(
            ExactSums.of(base_sums), ExactSums.of(np.sum(base_costs)), ExactSums.of(changes), ExactSums.of(own)
        )

    def _lengths(self, residuals: np.ndarray) -> np.ndarray:
        seen = residuals if self.root is None else residuals @ self.root
        return np.asarray(np.sum(seen * seen, axis=1))

    def _uniforms(self, block: int, draw: int) -> np.ndarray:
        """The numbers of the rows of a block in the stream of the draw."""
        key = np.array([self.options.seed, draw], dtype=np.uint64)
        counter = np.array([block * DRAWN_BLOCK // 4, 0, 0, 0], dtype=np.uint64)  # it gives four numbers at a time
        return np.random.Generator(np.random.Philox(key=key, counter=counter)).random(DRAWN_BLOCK)

    def drawn_totals(self, drawn: DrawnSums) -> np.ndarray:
        """sum_{i != j} H_ij of each draw's labels, shape (n_resamples,)."""
        base = drawn.base.to_float()
        totals = []
        for k in range(self.options.n_resamples):
            high, low = drawn.changes.high[k], drawn.changes.low[k]
            sums = base + ExactSums(high, low).to_float()
            sums = sums if self.root is None else sums @ self.root
            totals.append(float(np.sum(sums * sums)))
        own = (drawn.base_own + drawn.changes_own).to_float()
        return (np.array(totals) - own) * (self.feature_unit * self.mark_unit) ** 2


def _largest_length(found: FeatureMap) -> float:
    """No row of probabilities has longer features."""
    bounds = found.amplitudes * np.prod(np.max(np.abs(found.projections + found.offsets[..., None]), axis=2), axis=0)
    return float(np.linalg.norm(bounds))


def _power_of_two(size: float) -> float:
    """The smallest that is at least `size`."""
    return 2.0 ** math.ceil(math.log2(size))
