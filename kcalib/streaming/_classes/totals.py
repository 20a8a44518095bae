"""Totals of a state as plain numbers, from which results are computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.label_cells import DrawnCells, LabelSums, TemperatureSums
from kcalib.inference.adaptive.flips import FlippedBlocks
from kcalib.kernels import Kernel
from kcalib.lenses import Lens
from kcalib.streaming._row_sums.score_sums import Extremes


@dataclass(frozen=True, eq=False)
class RowTotals:
    """Totals over all rows of a state, in float64."""

    n: int
    n_weighted: int  # rows whose weight is not 1
    scores: dict[str, float]  # sums over rows by their names, "weight" and "weight_squared" among them
    has_clusters: bool

    @property
    def counts_alike(self) -> bool:
        """Whether samples are independent and have weight 1."""
        return not (self.n_weighted or self.has_clusters)

    def describe_samples(self) -> str:
        """Describe samples that are not independent or have weights."""
        return "samples in clusters" if self.has_clusters else "weighted samples"

    def remedy(self) -> str:
        """Describe the state that would be needed."""
        if self.has_clusters:
            return "make a state without clusters=True, of samples that are independent"
        return "make a state without `sample_weight`"


@dataclass(frozen=True, eq=False)
class FeatureTotals(RowTotals):
    """Totals with sums of features, including the rows of open blocks."""

    kernel: Kernel  # with its bandwidths
    bandwidth_rows: (
        int | None
    )  # whose median distance the bandwidth is; None: it was given; below 0: they are identical
    map: FeatureMap  # of the kernel
    sums: np.ndarray  # sum phi(p_i) (x) a_i, shape (n_columns, r)
    own: (
        np.ndarray
    )  # sum |phi_g(p_i)|^2 |a_ih|^2 of each group of features and of target features, shape (n_groups, n_groups')
    null_own: float  # sum w_i^2 |phi(p_i)|^2 E |a_i|^2 of targets drawn from the predictions
    drawn: np.ndarray | None  # sum_{i != j} H_ij of drawn targets, shape (n_resamples,); None without draws
    sample: Data  # the rows of smallest hashes, all of few, in the order of their numbers
    sample_rows: np.ndarray  # their numbers, int64
    cluster_blocks: FlippedBlocks | None  # of samples in clusters


@dataclass(frozen=True, eq=False)
class BinTotals(RowTotals):
    """Totals that need no kernel, of class probabilities after the lens."""

    cells: np.ndarray  # of the top label, then of each class, shape (1 + m, n_bins, 5), in the order of `CELLS`
    extremes: Extremes  # of the top label's confidence in each bin
    lens: Lens

    @property
    def confidences(self) -> slice:
        """The row of the cells with the confidences: of the top label, or of "right"."""
        return slice(2, 3) if self.lens.has_confidence else slice(0, 1)


@dataclass(frozen=True, eq=False)
class Totals(BinTotals, FeatureTotals):
    """All totals of a state of class probabilities."""

    root: np.ndarray | None  # R of the target kernel's matrix R R^T, shape (m, r); None for the Kronecker delta
    sample: Classification
    labels: LabelSums | None  # in cells of the predictions; None without draws of labels
    drawn_cells: DrawnCells | None
    temperatures: TemperatureSums | None
    # Sums over pairs of the observed labels, then of each draw, of the adaptive test's kernels; none without draws.
    kernel_statistics: tuple[np.ndarray, ...]
