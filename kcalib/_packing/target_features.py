"""Features psi(y_i) - E psi(Z_i) of the target kernel, a tile of samples at a time.

Either the exact features of `target_factors`, if they have few entries (samples, counts), or random features psi with
expectations from characteristic functions (`characteristic`); for distributions without these, and for
`kcalib.target_kernels.Draws`, from draws that are the same for all targets. `forecast_features` adds them up for
observed and drawn targets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._input.forecasts import Forecasts
from kcalib._packing.atoms import DRAWS, drawn_atoms
from kcalib._packing.characteristic import centred, centred_mixtures, law_of, shifts
from kcalib._packing.target_factors import BinFactor, TargetFactor, normal_form, seed_of
from kcalib._pairs.features import FeatureMap, feature_map
from kcalib.distributions import Distribution
from kcalib.distributions._distribution import take_rows
from kcalib.target_kernels import Draws

GROUPS = 4  # of random features of the target kernel, independent of each other
FEWEST = 64  # columns of them: with half as many the error of the estimate is mostly theirs
EXACT_RANK = 1  # exact target features have at most so many times as many columns as random ones would have
TILE_ELEMENTS = 2**21  # numbers of a tile


def n_columns_beside(n_columns: int, n_dims: int) -> int:
    """Return the number of columns of the target kernel if the other kernel has `n_columns`: fewer on a line."""
    step = 2 * GROUPS
    return max(FEWEST, n_columns // (8 if n_dims == 1 else 4) // step * step)


class Tile(ABC):
    """Some of the samples."""

    @abstractmethod
    def target_features(self, y: Array) -> Array:
        """Return the features of targets of shape (rows, d), float64, shape (rows, r)."""


class TargetFeatures(ABC):
    """Features psi(y_i) - E psi(Z_i) with r columns."""

    route: str  # how results call it

    @property
    @abstractmethod
    def groups(self) -> np.ndarray:
        """Return the independent group of random features of each column, shape (r,)."""

    @property
    def n_columns(self) -> int:
        return len(self.groups)

    @abstractmethod
    def tile(self, rows: slice) -> Tile:
        """Return the samples of these rows, for target features of any targets."""

    @abstractmethod
    def take(self, rows: Array) -> TargetFeatures:
        """Return the features of some of the samples."""

    def redrawn(self, data: Forecasts, n_groups: int) -> Iterator[TargetFeatures]:
        """Yield features from other draws, in as many groups, if expectations come from draws."""
        yield from ()

    def null_lengths(self) -> np.ndarray | None:
        """Return E |a_i|^2 for targets drawn from the predictions, shape (n,); None if draws are needed."""
        return None

    def null_products(self) -> np.ndarray | None:
        """Return E <a_i, a_j>^2, i != j, for targets drawn from the predictions, shape (n, n); or None."""
        return None


@dataclass(frozen=True, eq=False)
class ExactTargetFeatures(TargetFeatures):
    """Target features of finite rank, exact to rounding."""

    factor: TargetFactor
    route: str

    @property
    def groups(self) -> np.ndarray:
        assert self.factor.means is not None
        return np.zeros(int(self.factor.means.shape[1]), dtype=int)

    def tile(self, rows: slice) -> Tile:
        return ExactTile(self.factor.take(rows))

    def take(self, rows: Array) -> ExactTargetFeatures:
        return replace(self, factor=self.factor.take(rows))


@dataclass(frozen=True, eq=False)
class ExactTile(Tile):
    factor: TargetFactor

    def target_features(self, y: Array) -> Array:
        return self.factor.features(y)


@dataclass(frozen=True, eq=False)
class RandomTargetFeatures(TargetFeatures):
    """Target features by random features of the target kernel."""

    map: FeatureMap
    prediction: Distribution
    means: Array  # expected values, float64, shape (n, d)
    centre: Array  # of phases, shape (1, d): those of small numbers have more digits, and the kernel sees no shift
    frequencies: Array  # of targets as they are given, shape (F, d), beside the means
    route: str
    draws: Draws | None  # what expectations come from; None: from the characteristic function
    expected: tuple[Array, Array] | None  # E exp(i <v, Z - m>) - 1 of the draws

    @property
    def groups(self) -> np.ndarray:
        return np.concatenate([self.map.groups, self.map.groups])

    def tile(self, rows: slice) -> Tile:
        means, xp = self.means[rows, :], arrays.namespace(self.means)
        if self.expected is None:
            real, imaginary = centred(self.prediction.take(rows), means, self.frequencies)
        else:
            real, imaginary = (part[rows, :] for part in self.expected)
        columns = xp.matrix_transpose(self.frequencies)
        phases = xp.matmul(means - self.centre, columns)
        amplitudes = arrays.like(self.map.amplitudes, means, dtype=xp.float64)
        return RandomTile(means, columns, real, imaginary, amplitudes * xp.cos(phases), amplitudes * xp.sin(phases))

    def redrawn(self, data: Forecasts, n_groups: int) -> Iterator[TargetFeatures]:
        if self.draws is None:
            return
        size = max(1, self.draws.n_draws // n_groups)
        for replicate in range(n_groups):
            seed = seed_of(self.draws.seed, replicate)
            yield replace(self, expected=_by_draws(data, size, seed, self.means, self.frequencies))

    def null_lengths(self) -> np.ndarray | None:
        if self.expected is not None:
            return None
        real, imaginary = (arrays.to_host(part) for part in centred(self.prediction, self.means, self.frequencies))
        return np.asarray(-(real * (2 + real) + imaginary * imaginary) @ self.map.amplitudes**2)

    def of_targets(self, y: np.ndarray) -> np.ndarray:
        """Return psi of targets, shape (N, d), without expectations, shape (N, r)."""
        phases = linalg.matmul(y - arrays.to_host(self.centre), arrays.to_host(self.frequencies).T)
        return np.concatenate([self.map.amplitudes * np.cos(phases), self.map.amplitudes * np.sin(phases)], axis=1)

    def null_products(self) -> np.ndarray | None:
        """With u = exp(i <v, Z>) - E exp(i <v, Z>) the product is the real part of sum_f a_f^2 u_if conj(u_jf), and the
        mean of its square half the real part of sum_fg a_f^2 a_g^2 (P_i conj(P_j) + Q_i conj(Q_j)), P_i = E u_f u_g and
        Q_i = E u_f conj(u_g) by the characteristic function at v_f + v_g and v_f - v_g.
        """
        if self.expected is not None:
            return None
        xp = arrays.namespace(self.means)

        def expectations_at(frequencies: Array) -> tuple[np.ndarray, np.ndarray]:
            """Return E exp(i <v, Z - m>) - 1, and exp(i <v, m>)."""
            real, imaginary = (arrays.to_host(part) for part in centred(self.prediction, self.means, frequencies))
            phases = arrays.to_host(xp.matmul(self.means - self.centre, xp.matrix_transpose(frequencies)))
            return real + 1j * imaginary, np.exp(1j * phases)

        v, a = self.frequencies, self.map.amplitudes
        expectations, _ = expectations_at(v)
        total = np.zeros((len(expectations), len(expectations)))
        for f in range(len(a)):
            expectation = expectations[:, f : f + 1]
            for sign, partners in ((1, expectations), (-1, expectations.conj())):
                product_expectations, turn = expectations_at(v[f : f + 1, :] + sign * v)
                covariance = (
                    (product_expectations - expectation - partners - expectation * partners) * turn * (a[f] * a)
                )
                parts = np.concatenate([covariance.real, covariance.imag], axis=1)
                total += linalg.matmul(parts, parts.T)
        return total / 2

    def take(self, rows: Array) -> RandomTargetFeatures:
        expected = self.expected
        if expected is not None:
            expected = take_rows(expected[0], rows), take_rows(expected[1], rows)
        prediction = self.prediction.take(rows)
        return replace(self, prediction=prediction, means=take_rows(self.means, rows), expected=expected)


@dataclass(frozen=True, eq=False)
class RandomTile(Tile):
    """Target features are exp(i <v, m>) [(exp(i <v, y - m>) - 1) - (E exp(i <v, Z - m>) - 1)] times amplitudes."""

    means: Array
    columns: Array  # frequencies, shape (d, F)
    real: Array  # of E exp(i <v, Z - m>) - 1
    imaginary: Array
    cosines: Array  # of the phases of the means, times amplitudes
    sines: Array

    def target_features(self, y: Array) -> Array:
        xp = arrays.namespace(self.means)
        y = xp.astype(arrays.asarray_like(y, self.means), xp.float64, copy=False)
        real, imaginary = shifts(y - self.means, self.columns)
        real, imaginary = real - self.real, imaginary - self.imaginary
        parts = (self.cosines * real - self.sines * imaginary, self.sines * real + self.cosines * imaginary)
        return xp.concat(parts, axis=1)


def make_target_features(data: Forecasts, factor: TargetFactor, n_columns: int, seed: int) -> TargetFeatures:
    """Return exact features if they are few, else random ones; `n_columns` belongs to the other kernel."""
    columns = n_columns_beside(n_columns, data.n_dims)
    is_narrow = factor.means is not None and factor.means.shape[1] <= EXACT_RANK * columns
    if isinstance(factor, BinFactor) or (factor.draws is None and is_narrow):
        return ExactTargetFeatures(factor, factor.route)
    random_map, frequencies = target_map(data.prediction, factor.kernel, columns, seed)
    xp = data.xp
    means = xp.astype(data.prediction.expected_value(), xp.float64, copy=False)
    frequencies = arrays.like(frequencies, means, dtype=xp.float64)
    centre = xp.mean(means, axis=0, keepdims=True)
    if not factor.asked_for_draws and law_of(data.prediction) is not None:
        return closed_target_features(data.prediction, random_map, means, centre, frequencies)
    draws = DRAWS if factor.draws is None else factor.draws
    expected = _by_draws(data, draws.n_draws, draws.seed, means, frequencies)
    route = f"{columns} random features, expectations by {draws.n_draws} draws from each prediction, seed {draws.seed}"
    return RandomTargetFeatures(random_map, data.prediction, means, centre, frequencies, route, draws, expected)


def closed_target_features(
    prediction: Distribution, random_map: FeatureMap, means: Array, centre: Array, frequencies: Array
) -> RandomTargetFeatures:
    """Return random features of distributions whose characteristic function `law_of` knows."""
    law = law_of(prediction)
    how = "sums over atoms" if law == "atoms" else f"characteristic functions ({law or type(prediction).__name__})"
    route = f"{random_map.n_columns} random features, expectations by {how}"
    return RandomTargetFeatures(random_map, prediction, means, centre, frequencies, route, None, None)


def target_map(prediction: Distribution, kernel: Any, columns: int, seed: int) -> tuple[FeatureMap, np.ndarray]:
    """Return random features of a target kernel with its bandwidths, and their frequencies for targets as given.

    The result depends on the predictions only by their family and sizes.
    """
    root, terms = normal_form(kernel)
    if any(factor.metric == "dot" for term in terms for factor in term.factors):
        raise ValueError(
            f"`target_kernel` is {kernel}, with an inner product, of which there are no expected features; use "
            "kcalib.kernels.Gaussian(), or an estimator and a test of all pairs: estimator='unbiased', method='exact'"
        )
    d = prediction.n_dims if root is None else root.shape[1]
    points = np.eye(d) if prediction.support == "simplex" and root is None else spanning(d)
    try:
        # Another seed than that of the features of predictions: both are independent.
        random_map = feature_map(terms, points, columns, seed_of(seed, 1), GROUPS)
    except ValueError as error:
        raise ValueError(str(error).replace("`kernel`", "`target_kernel`")) from None
    return random_map, random_map.frequencies if root is None else random_map.frequencies @ root.T


def spanning(d: int) -> np.ndarray:
    """Return points that represent all vectors: their sums differ."""
    return np.concatenate([np.zeros((1, d)), np.full((1, d), 1e15)])


def _by_draws(data: Forecasts, size: int, seed: int, means: Array, frequencies: Array) -> tuple[Array, Array]:
    components = drawn_atoms(data.prediction, size, seed)
    parts = []
    for rows in slices(data.n, size * int(frequencies.shape[0])):
        weights, locations = components.weights[rows, :], components.locations[rows, :, :]
        tile = replace(components, weights=weights, locations=locations)
        parts.append(centred_mixtures(tile, means[rows, :], frequencies))
    real, imaginary = zip(*parts, strict=True)
    return data.xp.concat(real), data.xp.concat(imaginary)


def slices(n: int, width: int) -> Iterator[slice]:
    """Yield rows 0..n-1 in tiles with `width` numbers per row."""
    step = max(1, TILE_ELEMENTS // max(1, width))
    for begin in range(0, n, step):
        yield slice(begin, min(begin + step, n))
