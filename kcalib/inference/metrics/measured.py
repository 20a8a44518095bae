"""Input and output of the metrics of `kcalib.compare`, and arithmetic that several share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from kcalib import _packing
from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.options import SEED
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._input.methods import Method
from kcalib._packing import Packed, TargetMatrix
from kcalib._packing.packed import describe_any_bandwidth, describe_equal_draws, name_of
from kcalib._pairs.backends.base import Backend, Workers
from kcalib.bandwidth import MedianDistance
from kcalib.estimators.skce import describe
from kcalib.kernels import Kernel
from kcalib.lenses import TopK
from kcalib.results import ConfidenceInterval
from kcalib.solvers.kernel_operator import KernelOperator
from kcalib.target_kernels import TargetKernel

EPSILON = float(np.finfo(np.float64).eps)
ROUNDINGS = 16  # a difference of at most this many roundings counts as 0
STRIP = 256  # samples whose pairs with all others are in memory together; threads synchronise once in each


@dataclass(frozen=True)
class SharedOptions:
    """The options of a comparison that several metrics share, as given or by default."""

    seed: int | None = SEED
    threads: int | None = None
    backend: str | Workers | None = None
    clusters: np.ndarray | None = None  # of each sample, integers
    time_blocks: int | None = None  # length of clusters of successive samples


class Metric(Method):
    """Base class of the metrics of `kcalib.compare`."""

    kinds: ClassVar[tuple[type[Data], ...]] = (Classification,)  # of data that it supports
    has_backend: ClassVar[bool] = False  # whether it sums over pairs
    dtype: Any = None  # precision of sums over pairs

    @abstractmethod
    def measure(self, data: Sequence[Any], confidence_level: float, options: SharedOptions) -> MetricResult:
        """Return the value of each model, and the difference of each pair."""

    def check(self, confidence_level: float) -> None:
        """Refuse options that are too small for the level."""

    def check_models(self, models: Sequence[Data]) -> None:
        """Refuse options that apply to no model."""


@dataclass(frozen=True)
class Estimate:
    """A value or a difference."""

    value: float
    standard_error: float
    interval: ConfidenceInterval
    pvalue: float = math.nan  # of the hypothesis that it is 0; for differences only


@dataclass(frozen=True)
class MetricResult:
    """The result of a metric for all models."""

    values: list[Estimate]  # one for each model
    differences: list[Estimate]  # one for each pair, in the order of itertools.combinations
    estimator: str
    intervals: str
    described: dict[str, Any] = field(default_factory=dict)  # fields of `Comparison`


def labels_are_shared(models: Sequence[Data]) -> bool:
    """Return whether all models share their labels after the lens, unlike for a lens on the predicted class."""
    return not any(model.lens.has_confidence or isinstance(model.lens, TopK) for model in models)


@dataclass(frozen=True)
class PackedModels:
    """Models packed with the same kernels, and the origin of bandwidths."""

    models: Sequence[Data]
    packed: tuple[Packed, ...]
    source: str

    @classmethod
    def of(
        cls, models: Sequence[Data], kernel: Kernel | None, target_kernel: TargetKernel, threads: int | None
    ) -> PackedModels:
        packed_alike = _packing.pack_alike(*models, kernel=kernel, target_kernel=target_kernel, threads=threads)
        sources = [_source(packed_alike.medians)] if packed_alike.medians else []
        targets = packed_alike.target_medians
        if any(medians[0].value == 0 for medians in targets.values()):
            sources.append(describe_equal_draws())
        elif targets:
            sources.append(f"on targets: {_source(targets)}")
        return cls(models, packed_alike.packed, "; ".join(sources) or "given")

    def describe(self, backend: Backend | KernelOperator) -> dict[str, Any]:
        """Return the fields of `Comparison` on models and kernels; `backend` is of the first model."""
        description = describe(self.models[0], self.packed[0], backend)
        families = (model.describe()["prediction"] for model in self.models)
        return description | {
            "bandwidth_source": self.source,
            "prediction": join_distinct(", ", families),
            "target_factor": join_distinct("; ", (packed.target.route for packed in self.packed)),
            "prediction_distances": join_distinct("; ", (packed.distances for packed in self.packed)),
            "threads": backend.threads,
        }


def largest_residual(packed: Packed) -> float:
    """Return the supremum of <e, e> over all predictions and targets; infinite if unknown."""
    if not isinstance(packed.target, TargetMatrix):
        return math.inf
    root = np.eye(2) if packed.target.root is None else packed.target.root
    return float(np.max(np.sum((root[:, None] - root[None]) ** 2, axis=-1)))


def largest_entry(packed: Packed) -> float:
    """Return the supremum of k(p, p') <e, e'>: for probabilities kernels and inner products are at most 1."""
    return largest_residual(packed) * math.fsum(term.coefficient for term in packed.problem.kernel)


def join_distinct(separator: str, names: Iterable[str | None]) -> str | None:
    """Join distinct names; None if there are none."""
    return separator.join(dict.fromkeys(name for name in names if name is not None)) or None


def _source(medians: Mapping[str, Sequence[MedianDistance]]) -> str:
    sources = []
    for alike in medians.values():
        samples = {"all samples" if m.exact else f"{m.n_samples} samples drawn with seed {m.seed}": None for m in alike}
        of = " or ".join(samples)
        if alike[0].value == 0:
            sources.append(describe_any_bandwidth())
            continue
        names = " or ".join(dict.fromkeys(name_of(m) for m in alike))
        sources.append(f"median over {len(alike)} models of the {names} of {of}")
    return "; ".join(dict.fromkeys(sources))


def subset(n: int, most: int, seed: int) -> tuple[np.ndarray, int | None]:
    if n <= most:
        return np.arange(n), None
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False)), seed


def without_own(tile: Array, begin: int) -> Array:
    """Return a tile in float64 whose rows start at `begin`, with zeros for pairs of a sample with itself."""
    tile = arrays.to_compute_device(tile)
    tile = np.require(tile, np.float64, "W") if arrays.is_host(tile) else tile.astype(np.float64, copy=False)
    rows = arrays.namespace(tile).arange(tile.shape[0])
    tile[rows, begin + rows] = 0.0
    return tile
