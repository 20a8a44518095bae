"""Estimates of the data, and of calibrated replicates of them.

The replicates come from `Draws`. A `Statistic` computes the estimate of the data and those of the replicates in the
same way: `TopLabelECE` (in batches), `PairStatistic` (SKCE and UCME, on the pair engine) or `UserStatistic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.random import cumulative_sums, thresholds
from kcalib._backend.segments import Segments
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._packing import Packed
from kcalib._pairs.backends.base import Backend
from kcalib.estimators.binning import bin_numbers
from kcalib.estimators.skce import PairOptions, describe, value_and_error
from kcalib.estimators.ucme import mean_differences, mean_square
from kcalib.inference.quadratic import quadratic_forms
from kcalib.inference.task import Task

BATCH_BYTES = 2**26

BATCH_ELEMENTS = 2**18  # draws of ECE replicates in memory
DEVICE_BATCH_ELEMENTS = 2**23  # on a GPU, with more threads to occupy


@dataclass(frozen=True)
class Draws:
    """Calibrated replicates of the data, each a function of seed and number alone."""

    data: Data
    seed: int
    resample_predictions: bool

    def sample(self, replicate: int) -> tuple[Array | None, Data]:
        """Return the resampled positions (None: all samples in order) and the data of a replicate."""
        if self.resample_predictions:
            return self.data.redraw(self.seed, replicate)
        return None, self.data.draw(self.seed, replicate)


class Statistic(Protocol):
    def observed(self) -> float:
        """Return the estimate of the data."""

    def resampled(self, draws: Draws, count: int) -> np.ndarray:
        """Return the estimates of this many replicates."""

    def describe(self) -> dict[str, Any]:
        """Return the fields of `ConsistencyOutcome` for the estimator."""


NOTHING_TO_SAY = {"block_size": None, "n_bins": None, "locations": None, "description": None}


@dataclass(frozen=True)
class UserStatistic:
    data: Data
    function: Callable[[Any, Any], float]

    def observed(self) -> float:
        return self._value(self.data, "for the data")

    def resampled(self, draws: Draws, count: int) -> np.ndarray:
        return np.array([self._value(draws.sample(r)[1], f"for replicate {r}") for r in range(count)])

    def describe(self) -> dict[str, Any]:
        return NOTHING_TO_SAY

    def _value(self, data: Data, where: str) -> float:
        output = self.function(*data.as_given())
        try:
            value = float(output)
        except (TypeError, ValueError):
            raise TypeError(f"`estimator` returned {output!r} {where}, expected a number") from None
        if not np.isfinite(value):
            raise ValueError(f"`estimator` returned {value} {where}, expected a finite number")
        return value


class PairStatistic:
    """An estimate from the sums of a pair problem, with the kernel and bandwidths of the data."""

    def __init__(
        self,
        data: Data,
        options: PairOptions,
        packed: Packed,
        value: Callable[[Backend], float],
        fields: dict[str, Any],
    ) -> None:
        self._data = data
        self._options = options
        self._packed = packed
        self._value = value
        self._backend = self._backend_for(packed)
        self._fields = fields

    def observed(self) -> float:
        return self._value(self._backend)

    def resampled(self, draws: Draws, count: int) -> np.ndarray:
        return np.array([self._of_sample(*draws.sample(r)) for r in range(count)])

    def describe(self) -> dict[str, Any]:
        description = describe(self._data, self._packed, self._backend)
        return NOTHING_TO_SAY | self._fields | {"description": description}

    def _of_sample(self, rows: Array | None, sample: Data) -> float:
        packed_rows = self._packed if rows is None else self._packed.take(rows)
        packed = packed_rows.with_targets(sample, threads=self._options.threads)
        return self._value(self._backend_for(packed))

    def _backend_for(self, packed: Packed) -> Backend:
        return self._options.backend_for(packed.problem)


def compute_ucme(backend: Backend) -> float:
    return mean_square(mean_differences(backend))


def make_skce_statistic(data: Data, estimator: str, block_size: int | None) -> Callable[[Backend], float]:
    def value(backend: Backend) -> float:
        return value_and_error(data, backend, estimator, block_size, with_error=False)[0]

    return value


class TopLabelECE:
    """`kcalib.top_label_ece`: the sum over bins of |sum of (correct - confidence)|, over n."""

    def __init__(self, data: Classification, n_bins: int) -> None:
        p = arrays.to_compute_device(data.probabilities).astype(np.float64, copy=False)
        self._xp = xp = arrays.namespace(p)
        positions, predicted = xp.arange(data.n), arrays.to_compute_device(data.predicted)
        cumulative = cumulative_sums(p)
        self._data, self._n_bins = data, n_bins
        self._confidence = p[positions, predicted]
        self._bin = bin_numbers(self._confidence, n_bins)
        self._correct = predicted == arrays.to_compute_device(data.labels)
        # Uniform numbers between these bounds give the predicted class.
        self._from = xp.where(predicted > 0, cumulative[positions, predicted - 1], 0.0)
        self._to, self._totals = cumulative[positions, predicted], cumulative[:, -1]

    def observed(self) -> float:
        return float(self._values(self._xp.arange(len(self._bin))[None, :], self._correct[None, :])[0])

    def resampled(self, draws: Draws, count: int) -> np.ndarray:
        elements = BATCH_ELEMENTS if arrays.is_host(self._bin) else DEVICE_BATCH_ELEMENTS
        batch = max(1, elements // max(len(self._bin), self._n_bins))
        return np.concatenate([self._batch(draws, b, min(count, b + batch)) for b in range(0, count, batch)])

    def describe(self) -> dict[str, Any]:
        return NOTHING_TO_SAY | {"n_bins": self._n_bins}

    def _batch(self, draws: Draws, begin: int, end: int) -> np.ndarray:
        positions = self._xp.arange(len(self._bin))
        redraw = draws.resample_predictions
        samples = [self._data.uniforms(draws.seed, replicate, redraw=redraw) for replicate in range(begin, end)]
        rows = self._xp.stack([positions if resampled is None else resampled for resampled, _ in samples])
        at = thresholds(self._totals[rows], self._xp.stack([uniform for _, uniform in samples]))
        return self._values(rows, (self._from[rows] <= at) & (at < self._to[rows]))

    def _values(self, rows: Array, correct: Array) -> np.ndarray:
        xp, (count, n) = self._xp, rows.shape
        bins = (self._bin[rows] + self._n_bins * xp.arange(count)[:, None]).ravel()
        gaps = (correct - self._confidence[rows]).ravel()
        if arrays.is_host(bins):
            sums = np.bincount(bins, gaps, minlength=count * self._n_bins)
        else:
            sums = Segments.of(bins, count * self._n_bins).sums(gaps)
        return arrays.to_host(xp.sum(xp.abs(sums.reshape(count, self._n_bins)), axis=1) / n)


def by_forms(task: Task, features: Iterable[Array], rank: int) -> np.ndarray:
    """Return sum_{i != j} K_ij <a_i, a_j> for each draw of features a; batches have `rank` columns for each draw."""
    draws = []
    for batch in features:
        totals = quadratic_forms(task.kernel_backend, batch) - _own_forms(task.kernel_diagonal, batch)
        draws.append(arrays.to_host(totals.reshape(-1, rank).sum(axis=1)))
    return np.concatenate(draws)


def _own_forms(kernel_diagonal: Array, features: Array) -> Array:
    """Return sum_i K_ii w_i^2 for each column w of the features."""
    if arrays.is_host(features):
        return np.einsum("i,ij,ij->j", kernel_diagonal, features, features)
    return (kernel_diagonal[:, None] * features * features).sum(axis=0)


def draws_at_once(n: int, rank: int) -> int:
    """Return the number of draws in a batch, with this number of feature columns each."""
    return max(1, BATCH_BYTES // (8 * n * rank))
