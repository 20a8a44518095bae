r"""The variance of the difference of two models' entries H_ij, given the predictions, if either model is calibrated.
Let labels be drawn from the first model's predictions p, with covariances V_i, and the second model predict q. With
residuals e of the first and d = p - q those of the second are e + d, and

.. math:: H^A_{ij} - H^B_{ij} = (k^A - k^B)_{ij} \langle e_i, e_j\rangle
   - k^B_{ij} (\langle e_i, d_j\rangle + \langle d_i, e_j\rangle + \langle d_i, d_j\rangle)

has the variance :math:`(k^A - k^B)^2 \operatorname{tr}(V_i V_j) + (k^B)^2 (d_j^\top V_i d_j + d_i^\top V_j d_i)`
(with a target matrix M = R R^T of R^T times everything). The two models imply different distributions. `skce` and
`ckce` take the larger variance as the least spread of a difference, because the observed residuals may contain no
errors where these are rare. Counts are labels with many values; targets of other predicted distributions are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kcalib import _native
from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.threads import run_options
from kcalib._input.data import Data
from kcalib._packing import Packed
from kcalib._packing.variance import RANK_WITH_COLUMNS, FiniteLaw, columns, finite_law
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import DenseRectangle, sweep_one
from kcalib.inference.metrics.measured import STRIP, labels_are_shared, without_own

ENTRIES = 2**24  # of covariances in memory
DRAWN_SAMPLES, DRAWS = 300, 8  # for other targets than labels: number of samples, and draws of each
DRAW_SEED = 0  # results of draws are a function of the predictions

Weights = Callable[[np.ndarray, np.ndarray], Array]  # k_ij of rows and columns


def pair_variances(
    data: Sequence[Data],
    packed: Sequence[Packed],
    rows: np.ndarray,
    weights: Sequence[Weights] | None = None,
    *,
    threads: int | None = None,
) -> np.ndarray:
    """Return the mean variance over pairs i != j of `rows`, of H_ij (diagonal), or of the difference of two models.

    Shape (models, models), the larger one of the two models' variances. If targets have finitely many values, `weights`
    of each model replace the values of its kernel on predictions. If models have different labels (after a lens on the
    predicted class), the Cauchy-Schwarz inequality bounds the variance.
    """
    laws = _finite_laws(data, packed, rows)
    covariance = _by_draws(data, packed, rows) if laws is None else _by_laws(laws, packed, rows, weights, threads)
    if labels_are_shared(data):
        return np.maximum(covariance, covariance.T)
    deviations = np.sqrt(np.diag(covariance))
    return (deviations[:, None] - deviations) ** 2 + np.diag(np.diag(covariance))


def has_finite_laws(data: Sequence[Data], packed: Sequence[Packed]) -> bool:
    """Return whether the targets of all models have finitely many values with known probabilities."""
    return _finite_laws(data, packed, np.arange(1)) is not None


def _finite_laws(data: Sequence[Data], packed: Sequence[Packed], rows: np.ndarray) -> list[FiniteLaw] | None:
    """Return the distributions for these samples, with the same values (for counts those of the widest)."""
    laws = []
    for model, packed_model in zip(data, packed, strict=True):
        law = finite_law(model.take(arrays.like(rows, model.reference)), packed_model)
        if law is None:
            return None
        laws.append(replace(law, probabilities=arrays.to_compute_device(law.probabilities).astype(np.float64)))
    widest = max(laws, key=lambda law: int(law.probabilities.shape[1]))
    m = int(widest.probabilities.shape[1])
    xp = arrays.namespace(widest.probabilities)
    wide = []
    for law in laws:
        n, own_m = law.probabilities.shape
        p = xp.concatenate([law.probabilities, xp.zeros((n, m - own_m))], axis=1) if own_m < m else law.probabilities
        wide.append(replace(law, probabilities=p, root=widest.root))
    return wide


def _by_draws(data: Sequence[Any], packed: Sequence[Packed], rows: np.ndarray) -> np.ndarray:
    """Return entries (i, j), the variance of H^i - H^j if targets are drawn from the distributions of model i."""
    rows = rows[:: -(-len(rows) // DRAWN_SAMPLES)]
    at = arrays.like(rows, data[0].reference)
    data, packed = [model.take(at) for model in data], [model.take(at) for model in packed]
    covariance = np.zeros((len(data), len(data)))
    for i, law in enumerate(data):
        sums = squares = np.zeros((len(data), len(rows), len(rows)))
        for replicate in range(DRAWS):
            y = law.draw(DRAW_SEED, replicate).y
            packed_draws = [
                packed_model.with_targets(model.with_targets(y))
                for model, packed_model in zip(data, packed, strict=True)
            ]
            entries = np.stack([_entries(model.problem) for model in packed_draws])
            entries = np.where(np.arange(len(data))[:, None, None] == i, entries[i], entries[i] - entries)
            sums, squares = sums + entries, squares + entries**2
        variances = np.maximum(squares - sums**2 / DRAWS, 0.0) / (DRAWS - 1)
        covariance[i] = variances.sum(axis=(1, 2)) / (len(rows) * (len(rows) - 1))
    return covariance


def _entries(problem: PairProblem) -> np.ndarray:
    positions = np.arange(int(problem.left.points.shape[0]))
    at = arrays.like(positions, problem.left.points)
    tile = arrays.to_host(sweep_one(backend_for(problem), DenseRectangle(at, at))).astype(np.float64)
    return np.asarray(without_own(tile, 0))


def _by_laws(
    laws: Sequence[FiniteLaw],
    packed: Sequence[Packed],
    rows: np.ndarray,
    weights: Sequence[Weights] | None,
    threads: int | None,
) -> np.ndarray:
    """Return the same for targets with finitely many values."""
    if laws[0].root is not None:  # entries of covariances have r (r + 1) / 2 columns
        rank = laws[0].root.shape[1]
        subset = slice(None, None, -(-len(rows) * rank * (rank + 1) // (2 * ENTRIES)))
        laws = [replace(law, probabilities=law.probabilities[subset]) for law in laws]
        rows = rows[subset]
    if weights is None:
        weights = [_kernel_values(model) for model in packed]
    covariances = [_Covariances.of(law, threads) for law in laws]
    covariance = np.zeros((len(laws), len(laws)))
    for begin in range(0, len(rows), STRIP):
        strip = slice(begin, begin + STRIP)
        tiles = [without_own(weight(rows[strip], rows), begin) for weight in weights]
        for i, law in enumerate(covariances):
            traces = law.traces(strip)
            for j, other_law in enumerate(covariances):
                if i == j:
                    covariance[i, i] += linalg.weighted_squares(tiles[i], traces)
                else:
                    covariance[i, j] += law.of_differences(strip, traces, tiles[i], tiles[j], law.p - other_law.p)
    return covariance / (len(rows) * (len(rows) - 1))


def _kernel_values(packed: Packed) -> Weights:
    points = packed.problem.left.points
    ones = arrays.namespace(points).ones_like(points[:, :1])
    backend = backend_for(replace(packed.problem, left=Side(points, ones), target=None))

    def values(rows: np.ndarray, columns: np.ndarray) -> Array:
        return sweep_one(backend, DenseRectangle(arrays.like(rows, points), arrays.like(columns, points)))

    return values


@dataclass(frozen=True)
class _Covariances:
    """V_i of some samples, without cancellation for probabilities near 1."""

    p: Array  # shape (n, m)
    top: Array  # the most probable class, shape (n,)
    rest_probabilities: Array  # probabilities of the other classes, shape (n, m)
    root: Array | None  # R; None for the identity
    entries: Array | None  # of R^T V_i R, with inner products tr(M V_i M V_j); None if there are too many
    threads: int | None

    @classmethod
    def of(cls, law: FiniteLaw, threads: int | None) -> _Covariances:
        p = law.probabilities
        xp = arrays.namespace(p)
        few = law.root is not None or p.shape[1] <= RANK_WITH_COLUMNS
        entries = xp.concatenate(list(columns(law)), axis=1) if few else None
        if entries is not None and arrays.is_host(entries):
            entries = np.asfortranarray(entries)
        root = None if law.root is None else arrays.like(law.root, p)
        return cls(p, xp.argmax(p, axis=1), law.parts[1], root, entries, threads)

    def traces(self, strip: slice) -> Array:
        """Return tr(M V_i M V_j) of the samples i in the strip and all j."""
        if self.entries is not None:
            return linalg.matmul(self.entries[strip], self.entries.T)
        positions = arrays.namespace(self.p).arange(len(self.p))
        variances = self.p * (1 - self.p)
        variances[positions, self.top] = self.p[positions, self.top] * self.rest_probabilities.sum(axis=1)
        products = linalg.matmul(variances[strip], variances.T)
        cross = linalg.matmul(self.p[strip], self.p.T) ** 2
        cross -= linalg.matmul(self.p[strip] ** 2, (self.p**2).T)
        return products + cross.clip(0.0, products)

    def of_differences(self, strip: slice, traces: Array, a: Array, b: Array, d: Array) -> float:
        """Return the sum of (a - b)^2 tr(M V_i M V_j) + 2 b^2 d_j^T M V_i M d_j over i in the strip and all j."""
        d = d if self.root is None else (d @ self.root) @ self.root.T
        rest_probabilities, top = self.rest_probabilities[strip], self.top[strip]
        if arrays.is_host(traces):
            with run_options(self.threads) as options:
                traces, a, b, rest_probabilities, d = map(np.ascontiguousarray, (traces, a, b, rest_probabilities, d))
                return float(np.sum(_native.pair_law_sums(traces, a, b, rest_probabilities, top, d, options)))
        squares = linalg.weighted_squares(a - b, traces)
        return squares + 2 * linalg.weighted_squares(b, self._forms(rest_probabilities, top, d))

    def _forms(self, rest_probabilities: Array, top: Array, d: Array) -> Array:
        """Return d_j^T V_i d_j of some samples i and all j."""
        at_top = d[:, top].T
        rest, first = rest_probabilities.sum(axis=1, keepdims=True), linalg.matmul(rest_probabilities, d.T)
        means = first - at_top * rest
        squares = linalg.matmul(rest_probabilities, (d**2).T) - 2 * at_top * first + at_top**2 * rest
        return (squares - means**2).clip(0.0, None)
