"""Sums over rows that need the kernel: of features and target features, block by block.

The rows of a block are summed in float64 in a fixed order, and blocks are added exactly. Row numbers determine the
blocks. `KernelMachine` computes the sums of a block for a feature map.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from kcalib import _native
from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.sums import Sums
from kcalib._pairs.feature_sums import compiled
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.label_cells import DrawnCells
from kcalib.streaming._options import StateOptions
from kcalib.streaming._row_sums.rows import Rows

BLOCK = 2**7  # rows whose features are added up in float64


@dataclass(frozen=True, eq=False)
class DrawnSums(Sums):
    """Sums for labels drawn from the predictions: weighted residuals are base + change, and the change depends on the
    draw.

    The base is onehot(class) - p for a class with probability at least 1/2, else -p, so that saturated predictions keep
    their digits.
    """

    _stored: ClassVar = {name: f"drawn_{name}" for name in ("base", "base_own", "changes", "changes_own")}

    base: ExactSums  # sum phi (x) base, shape (n_columns, m)
    base_own: ExactSums  # sum |phi|^2 |R^T base|^2
    changes: ExactSums  # shape (n_resamples, n_columns, m)
    changes_own: ExactSums  # sum |phi|^2 (|R^T e|^2 - |R^T base|^2), (n_resamples,)


@dataclass(frozen=True, eq=False)
class KernelSums(Sums):
    """Sums in the units of the `KernelMachine`."""

    sums: ExactSums  # sum phi (x) a, shape (n_columns, r)
    own: ExactSums  # sum |a|^2 times the squares of a frequency's two columns, shape (n_frequencies,)
    null_own: ExactSums  # sum w^2 |phi|^2 E |R^T e|^2 of labels drawn from the predictions
    drawn: DrawnSums | None


class KernelMachine:
    """Computes sums of blocks; features and target features are divided by powers of two to be about 1."""

    def __init__(self, feature_map: FeatureMap, options: StateOptions, m: int, n_draws: int) -> None:
        self.m, self.seed, self.n_draws = m, options.seed, n_draws
        root = options.root()
        self.feature_unit = power_of_two(largest_length(feature_map))
        self.map = replace(feature_map, amplitudes=feature_map.amplitudes / self.feature_unit)
        self.target_unit = 1.0 if root is None else power_of_two(float(np.max(np.linalg.norm(root, axis=1))))
        self.root = None if root is None else np.ascontiguousarray(root / self.target_unit)
        self.rank = m if root is None else root.shape[1]
        self._features = compiled(self.map)

    def zeros(self) -> KernelSums:
        n_draws, columns = self.n_draws, self.map.n_columns
        drawn = None
        if n_draws:
            drawn = DrawnSums(
                ExactSums.zeros(columns, self.m),
                ExactSums.zeros(),
                ExactSums.zeros(n_draws, columns, self.m),
                ExactSums.zeros(n_draws),
            )
        own = ExactSums.zeros(len(self.map.frequencies))
        return KernelSums(ExactSums.zeros(columns, self.rank), own, ExactSums.zeros(), drawn)

    def add(self, sums: KernelSums, rows: Rows, options: _native.RunOptions) -> None:
        """Add ascending rows in place, which are all rows of their blocks, without draws."""
        tiles = rows.numbers // BLOCK
        _native.state_sums(
            self._features,
            rows.predictions,
            rows.targets,
            rows.weights,
            self.root,
            np.append(np.flatnonzero(np.diff(tiles)) + 1, len(tiles)),
            sums.sums.flat(),
            sums.own.flat(),
            sums.null_own.flat(),
            options,
        )

    def add_draws(self, sums: DrawnSums, rows: Sheet, cells: DrawnCells | None, options: _native.RunOptions) -> None:
        """Add draws of the labels of whole blocks in place, and count them."""
        draw_blocks(self._features, self.root, rows, self.seed, self.n_draws, sums, cells, options)

    def total(self, sums: ExactSums, own: ExactSums) -> float:
        """Return sum_{i != j} H_ij of the observed labels, from the fields `sums` and `own` of `KernelSums`."""
        feature_sums = sums.to_float()
        unit = self.feature_unit * self.target_unit
        return (float(np.sum(feature_sums * feature_sums)) - float(np.sum(own.to_float()))) * unit**2

    def drawn_totals(self, drawn: DrawnSums) -> np.ndarray:
        """Return sum_{i != j} H_ij for the labels of each draw, shape (n_resamples,)."""
        base = drawn.base.to_float()
        totals = []
        for k in range(self.n_draws):
            high, low = drawn.changes.high[k], drawn.changes.low[k]
            sums = base + ExactSums(high, low).to_float()
            sums = sums if self.root is None else sums @ self.root
            totals.append(float(np.sum(sums * sums)))
        own = (drawn.base_own + drawn.changes_own).to_float()
        return (np.array(totals) - own) * (self.feature_unit * self.target_unit) ** 2


class Sheet(NamedTuple):
    """Predictions of whole blocks of rows."""

    first_rows: np.ndarray  # numbers of the first rows of the blocks, int64, shape (blocks,)
    predictions: np.ndarray  # shape (rows of all blocks, m)
    weights: np.ndarray | None  # 0 of rows that are not there; None if all are 1


def draw_blocks(
    features: _native.Features,
    root: np.ndarray | None,
    rows: Sheet,
    seed: int,
    n_draws: int,
    sums: DrawnSums,
    cells: DrawnCells | None,
    options: _native.RunOptions,
) -> None:
    """Add the draws of labels to the sums, in place."""
    _native.drawn_block_sums(
        features,
        rows.predictions,
        root,
        seed,
        n_draws,
        rows.first_rows,
        sums.base.flat(),
        sums.base_own.flat(),
        sums.changes.flat(),
        sums.changes_own.flat(),
        options,
        None if cells is None else cells.compiled(),
        rows.weights,
    )


def largest_length(feature_map: FeatureMap) -> float:
    """Return an upper bound on the length of the features of any prediction."""
    coefficients = np.abs(feature_map.projections + feature_map.offsets[..., None])
    bounds = feature_map.amplitudes * np.prod(np.max(coefficients, axis=2), axis=0)
    return float(np.linalg.norm(bounds))


def power_of_two(size: float) -> float:
    """Return the smallest power of two that is at least `size`."""
    return 2.0 ** math.ceil(math.log2(size))
