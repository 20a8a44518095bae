"""The results of packing, and the functions that pack, for which each kind of data registers (`labels`, `forecasts`).

Packed samples can be reordered (`Packed.take`) or get other targets (`Packed.with_targets`) without packing again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any, Self

import numpy as np

from kcalib._backend.arrays import Array
from kcalib._input.data import Data
from kcalib._pairs.problem import Mixtures, PairProblem, Side, Term
from kcalib.bandwidth import MedianDistance, NoLengthScaleError
from kcalib.kernels import LARGEST, SMALLEST, Kernel
from kcalib.target_kernels import TargetKernel

Medians = Mapping[str, Sequence[MedianDistance]]  # by metric, for models that have one; for all if none has


def name_of(median: MedianDistance) -> str:
    """Return the name of a median in results."""
    if median.of_positive:
        return f"median of the positive {median.metric} distances"
    return f"median {median.metric} distance"


def describe_any_bandwidth() -> str:
    """Return the source of a bandwidth, for results, if all predictions are equal."""
    return "any: the distances of all predictions are 0, so the value does not depend on it"


def describe_equal_draws() -> str:
    """Return the source of a bandwidth on targets, for results, if draws have no scale."""
    return (
        "on targets: no median, draws from the predictions are all the same; it is their standard deviation, or 1 if "
        "that is 0; target_kernel= gives another"
    )


def single_bandwidth(kernel: Kernel) -> float | None:
    """Return the bandwidth of a kernel; None if it has none or several."""
    bandwidths = {factor.bandwidth for factor in kernel.factors()}
    return bandwidths.pop() if len(bandwidths) == 1 else None


def check_coefficients(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return the terms of a kernel on predictions, or refuse coefficients that do not fit float32."""
    for term in terms:
        if not 1e-30 <= term.coefficient <= 1e30:
            raise ValueError(
                f"`kernel` has a term scaled by {term.coefficient:.3g}, expected scales between 1e-30 and 1e30 after "
                "multiplying out; rescale the kernel"
            )
    return terms


class Target(ABC):
    """Meaning of the features of a problem: the kernel on targets, and how its expectations are computed."""

    root: np.ndarray | None  # linear map R of targets (or one-hot rows of labels); None: the identity
    mixtures: Mixtures | None  # meaning of features; None: vectors
    medians: tuple[MedianDistance, ...]  # of the median heuristic for bandwidths on targets
    route: str | None  # how expectations under predictions are computed, if necessary

    @property
    def matrix(self) -> np.ndarray | None:
        """R R^T; None for the identity."""
        return None if self.root is None else self.root @ self.root.T

    @property
    @abstractmethod
    def name(self) -> str:
        """The kernel on targets in results."""

    @property
    def resolved_kernel(self) -> TargetKernel:
        """Return `target_kernel` with bandwidths as numbers if they depend on the data; else None."""
        return None

    @abstractmethod
    def take(self, rows: Array) -> Self:
        """Return the same for some of the predictions."""

    @abstractmethod
    def of_predictions(self, data: Any) -> Self:
        """Return the same for other predictions."""

    @abstractmethod
    def side(self, data: Any, points: Array, threads: int | None) -> Side:
        """Return the side of samples whose predictions have these points."""

    def redrawn(self, data: Any, n_groups: int) -> Iterator[Self]:
        """Yield the target with other draws, if expectations come from draws."""
        yield from ()


@dataclass(frozen=True)
class Packed:
    """A pair problem and the decisions made for it."""

    problem: PairProblem
    kernel: Kernel  # with its bandwidths as numbers
    medians: tuple[MedianDistance, ...]  # where a bandwidth came from the median heuristic
    target: Target
    is_definite: bool  # whether the kernel on predictions is known to be positive definite
    distances: str | None = None  # how distances of predicted distributions are computed

    @property
    def bandwidth(self) -> float | None:
        """The bandwidth of the kernel on predictions; None if it has none or several."""
        return single_bandwidth(self.kernel)

    def described(self) -> dict[str, Any]:
        """Return the fields of results that describe the kernels."""
        sources = [
            f"{name_of(m)} of " + ("all samples" if m.exact else f"{m.n_samples} samples drawn with seed {m.seed}")
            if m.value > 0
            else describe_any_bandwidth()
            for m in self.medians
        ]
        sources += [
            (f"on targets: {name_of(m)} of one draw from every prediction" if m.value > 0 else describe_equal_draws())
            + ("" if m.exact else f", of {m.n_samples} drawn with seed {m.seed}")
            for m in self.target.medians
        ]
        return {
            "target_factor": self.target.route,
            "prediction_distances": self.distances,
            "kernel": str(self.kernel),
            "bandwidth": self.bandwidth,
            "bandwidth_source": "; ".join(dict.fromkeys(sources)) or "given",
            "target_kernel": self.target.name,
        }

    def take(self, rows: Array) -> Packed:
        """Return the problem of some of the samples, in the order of `rows`."""
        return self._with_samples(self.problem.columns.take(rows), self.target.take(rows))

    def with_targets(self, data: Data, *, threads: int | None = None) -> Packed:
        """Return the problem for data with the same predictions in the same order and other targets."""
        return self._with_samples(self.target.side(data, self.problem.columns.points, threads), self.target)

    def with_features_of(self, data: Data, *, threads: int | None = None) -> Packed:
        """Return the problem with the same points and the features of other predictions and targets."""
        points, target = self.problem.columns.points, self.target.of_predictions(data)
        return self._with_samples(Side(points, target.side(data, points, threads).features), target)

    def redrawn(self, data: Data, n_groups: int) -> Iterator[Packed]:
        """Yield the problem with other draws for predictions that are represented by draws."""
        for target in self.target.redrawn(data, n_groups):
            yield replace(self, target=target).with_targets(data)

    def _with_samples(self, side: Side, target: Target) -> Packed:
        """Return the problem for other samples: the columns, which are on the right if there are test locations."""
        old, mixtures = self.problem, target.mixtures
        left, right = (side, None) if old.symmetric else (old.left, side)
        return replace(self, problem=replace(old, left=left, right=right, target=mixtures), target=target)


@dataclass(frozen=True)
class Alike:
    """Models packed with the same kernels, and the medians that determine the bandwidths.

    For a single model these are in the model.
    """

    packed: tuple[Packed, ...]
    medians: Medians = field(default_factory=dict)
    target_medians: Medians = field(default_factory=dict)


@singledispatch
def pack_alike(
    first: Data, *further_models: Data, kernel: Kernel | None, target_kernel: TargetKernel, threads: int | None = None
) -> Alike:
    """Pack each model with the same kernels; a missing bandwidth is a median over the models."""
    raise NotImplementedError(type(first))


def pack(data: Data, kernel: Kernel | None, target_kernel: TargetKernel, *, threads: int | None = None) -> Packed:
    """Pack checked data.

    For class labels H_ij = k(p_i, p_j) e_i^T M e_j, with residuals e = onehot(y) - p scaled by the weights. For
    predicted distributions H_ij = k(P_i, P_j) <delta_{y_i} - P_i, delta_{y_j} - P_j>, see `Mixtures`.
    """
    return pack_alike(data, kernel=kernel, target_kernel=target_kernel, threads=threads).packed[0]


@singledispatch
def pack_locations(
    data: Data, locations: Any, kernel: Kernel | None, target_kernel: TargetKernel, *, threads: int | None = None
) -> Packed:
    """Pack test locations T_j on the left and samples on the right.

    For class labels H_ji = k(p_T, p_i) onehot(y_T)^T M e_i, for predicted distributions
    H_ji = k(P_T, P_i) <delta_{y_T}, delta_{y_i} - P_i>.
    """
    raise NotImplementedError(type(data))


def medians_of(
    models: Sequence[Any],
    median_of: Callable[[Any], MedianDistance],
    by_metric: dict[str, list[MedianDistance]],
    name: str,
    *,
    elsewhere: bool,
) -> float:
    """Return the common bandwidth of the models: the median of their medians, which `by_metric` stores under `name`.

    A model with identical predictions has none. If no model has one, the kernel is the same for every bandwidth, and 1
    is used; it is an error if the kernel will be used for points `elsewhere`.
    """
    if name not in by_metric:
        medians = [median_of(model) for model in models]
        positive = [median for median in medians if median.value > 0]
        if elsewhere and not positive:
            raise NoLengthScaleError(max(median.n_samples for median in medians))
        by_metric[name] = positive or medians
    if by_metric[name][0].value == 0:
        return 1.0
    values = sorted([m.value for m in by_metric[name]])
    middle = len(values) // 2
    return min(max((values[~middle] + values[middle]) / 2, SMALLEST), LARGEST)
