"""Exact sums of rows in clusters, with flipped signs of whole clusters, and the weight of each cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.memory import check_memory
from kcalib._backend.sums import Sums
from kcalib.inference.adaptive.flips import MOST_TARGETS, SPREADS, FlipMachine, FlippedBlocks, FlippedSums, make_blocks
from kcalib.streaming._row_sums.rows import Rows

FIELDS = ("cells", "spreads", "moments")


@dataclass(frozen=True, eq=False)
class ClusterSums(Sums):
    """Exact sums of `FlippedSums`."""

    sums: Mapping[str, ExactSums]  # of `FIELDS`, and of each kernel by its number
    impossible: np.ndarray  # shape (1,)
    numbers: np.ndarray  # of clusters, int64, ascending, shape (clusters,)
    weights: ExactSums  # of clusters, shape (clusters,)

    @classmethod
    def of(cls, flipped: FlippedSums, numbers: np.ndarray, weights: ExactSums) -> ClusterSums:
        """Return the sums of a block of rows."""
        fields = {name: getattr(flipped, name) for name in FIELDS}
        fields |= {f"{k}": values for k, values in enumerate(flipped.kernels)}
        sums = {name: ExactSums.of(np.ascontiguousarray(values)) for name, values in fields.items()}
        return cls(sums, np.array([flipped.impossible], dtype=np.int64), numbers, weights)

    @classmethod
    def zeros(cls, machine: FlipMachine, n_targets: int) -> ClusterSums:
        """Return sums without rows."""
        columns = min(n_targets, MOST_TARGETS) * sum(random_map.n_columns for random_map in machine.maps)
        cells = sum(sheet.size for sheet in machine.sheets)
        what = f"the sums of {machine.n_flips} flips, of {cells} cells and {columns} features each"
        needed = 16 * ((cells + columns) * machine.n_flips + cells * SPREADS)
        check_memory(needed, None, what, "make the state with fewer `n_resamples` or `n_columns`")
        return cls.of(machine.zeros(n_targets), np.empty(0, dtype=np.int64), ExactSums.zeros(0))

    @classmethod
    def of_rows(
        cls, machine: FlipMachine, sheet_rows: Any, points: np.ndarray, targets: np.ndarray, rows: Rows
    ) -> ClusterSums:
        """Return the sums of ascending rows of one block."""
        flipped = machine.add(sheet_rows, points, targets, rows.clusters, rows.weights)
        numbers, codes = np.unique(rows.clusters, return_inverse=True)
        weights = ExactSums.by_group(rows.weights[:, None], codes, len(numbers)).reshape(-1)
        return cls.of(flipped, numbers, weights)

    def __add__(self, other: ClusterSums) -> ClusterSums:
        numbers, codes = np.unique(np.append(self.numbers, other.numbers), return_inverse=True)
        limbs = np.zeros((3, len(numbers)), dtype=np.int64)
        for row, parts in zip(limbs, zip(self.weights.limbs(), other.weights.limbs(), strict=True), strict=True):
            np.add.at(row, codes, np.concatenate(parts))
        return ClusterSums(
            {name: sums + other.sums[name] for name, sums in self.sums.items()},
            np.minimum(self.impossible, other.impossible),
            numbers,
            ExactSums.of_limbs(limbs),
        )

    def make_blocks(self, machine: FlipMachine, units: tuple[float, ...], noun: str) -> FlippedBlocks:
        """Return the blocks of the test; sums of kernels are in these units."""
        fields = {name: self.sums[name].to_float() for name in FIELDS}
        kernels = tuple(unit * self.sums[f"{k}"].to_float() for k, unit in enumerate(units))
        flipped = FlippedSums(**fields, kernels=kernels, impossible=int(self.impossible[0]))
        return make_blocks(machine, flipped, self.weights.to_float(), noun)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the sums by their names in a file."""
        arrays = {"impossible_cluster": self.impossible, "cluster_numbers": self.numbers}
        arrays |= self.weights.to_arrays("cluster_weights")
        for name, sums in self.sums.items():
            arrays |= sums.to_arrays(f"flipped_{name}")
        return arrays

    def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> ClusterSums:
        """Return the sums from the result of `to_arrays`, for the same options."""
        sums = {name: ExactSums.from_arrays(f"flipped_{name}", arrays) for name in self.sums}
        numbers, weights = arrays["cluster_numbers"], ExactSums.from_arrays("cluster_weights", arrays)
        if not len(numbers) == len(weights.high) == len(weights.low) or np.any(np.diff(numbers) <= 0):
            raise ValueError("the clusters are not in ascending order, with a weight each")
        return ClusterSums(sums, arrays["impossible_cluster"], numbers, weights)
