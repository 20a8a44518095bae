"""Sums over rows that need the kernel: of features and target features, block by block.

A block of rows is added up in float64, in a fixed order, and the sums of blocks are added exactly; which rows are a
block depends on their numbers alone. `Machine` makes the sums of a block for a kernel whose bandwidths are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kcalib import _native
from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.threads import run_options
from kcalib._pairs.feature_sums import compiled
from kcalib._pairs.features import FeatureMap
from kcalib.streaming._options import StateOptions
from kcalib.streaming._row_sums.rows import Rows

BLOCK, DRAWN_BLOCK = 2**7, 2**12  # rows of a block, without and with draws of labels


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

    def to_arrays(self) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        for name, value in vars(self).items():
            arrays |= value.to_arrays(f"drawn_{name}")
        return arrays

    def copy(self) -> DrawnSums:
        return DrawnSums(*(part.copy() for part in vars(self).values()))

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

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the sums by their names in a file."""
        arrays = self.sums.to_arrays("sums") | self.own.to_arrays("own") | self.null_own.to_arrays("null_own")
        return arrays if self.drawn is None else arrays | self.drawn.to_arrays()

    def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> KernelSums:
        """Of the same sizes, what `arrays` has returned."""
        sums, own, null_own = (ExactSums.from_arrays(name, arrays) for name in ("sums", "own", "null_own"))
        drawn = None
        if self.drawn is not None:
            drawn = DrawnSums(*(ExactSums.from_arrays(f"drawn_{name}", arrays) for name in vars(self.drawn)))
        return KernelSums(sums, own, null_own, drawn)


class Machine:
    """What makes sums of blocks; features and target features are divided by powers of two, so that these are about 1.

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
        feature_map, root = options.map(m), options.root()
        self.feature_unit = power_of_two(largest_length(feature_map))
        self.map = replace(feature_map, amplitudes=feature_map.amplitudes / self.feature_unit)
        self.target_unit = 1.0 if root is None else power_of_two(float(np.max(np.linalg.norm(root, axis=1))))
        self.root = None if root is None else np.ascontiguousarray(root / self.target_unit)
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

    def add(self, sums: KernelSums, pieces: Iterable[Rows]) -> KernelSums:
        """With rows of blocks: each piece is ascending, and has all the rows there are of its blocks."""
        drawn = None if sums.drawn is None else sums.drawn.copy()
        new = KernelSums(sums.sums.copy(), sums.own.copy(), sums.null_own.copy(), drawn)
        for rows in pieces:
            tiles = rows.numbers // BLOCK
            ends = np.append(np.flatnonzero(np.diff(tiles)) + 1, len(tiles))
            with run_options(self.threads) as options:
                _native.state_sums(
                    self._features,
                    rows.predictions,
                    rows.targets,
                    rows.weights,
                    self.root,
                    ends,
                    new.sums.flat(),
                    new.own.flat(),
                    new.null_own.flat(),
                    options,
                )
                if drawn is not None:
                    self._add_drawn(rows, drawn, options)
        return new

    def _add_drawn(self, rows: Rows, sums: DrawnSums, options: _native.RunOptions) -> None:
        """Add draws of labels; of an incomplete block rows that are not there are sure of a label, and add nothing."""
        blocks, starts = np.unique(rows.numbers // DRAWN_BLOCK, return_index=True)
        if len(rows.numbers) == len(blocks) * DRAWN_BLOCK:
            self._add_drawn_blocks(blocks, rows.predictions, sums, options)
            return
        for block, begin, end in zip(blocks, starts, [*starts[1:], len(rows.numbers)], strict=True):
            p = np.zeros((DRAWN_BLOCK, self.m))
            p[:, 0] = 1.0
            p[rows.numbers[begin:end] % DRAWN_BLOCK] = rows.predictions[begin:end]
            self._add_drawn_blocks(np.array([block]), p, sums, options)

    def _add_drawn_blocks(
        self, blocks: np.ndarray, p: np.ndarray, sums: DrawnSums, options: _native.RunOptions
    ) -> None:
        _native.drawn_block_sums(
            self._features,
            p,
            self.root,
            self.options.seed,
            self.options.n_resamples,
            blocks * DRAWN_BLOCK,
            sums.base.flat(),
            sums.base_own.flat(),
            sums.changes.flat(),
            sums.changes_own.flat(),
            options,
        )

    def total(self, sums: ExactSums, own: ExactSums) -> float:
        """Return sum_{i != j} H_ij of the observed labels, from the fields `sums` and `own` of `KernelSums`."""
        feature_sums = sums.to_float()
        unit = self.feature_unit * self.target_unit
        return (float(np.sum(feature_sums * feature_sums)) - float(np.sum(own.to_float()))) * unit**2

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
        return (np.array(totals) - own) * (self.feature_unit * self.target_unit) ** 2


def largest_length(feature_map: FeatureMap) -> float:
    """Return an upper bound on the length of the features of any prediction."""
    coefficients = np.abs(feature_map.projections + feature_map.offsets[..., None])
    bounds = feature_map.amplitudes * np.prod(np.max(coefficients, axis=2), axis=0)
    return float(np.linalg.norm(bounds))


def power_of_two(size: float) -> float:
    """The smallest that is at least `size`."""
    return 2.0 ** math.ceil(math.log2(size))
