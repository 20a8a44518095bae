"""Wasserstein distances between mixtures: transport between their components, of many pairs at once.

`wasserstein_table` is called by `distances.wasserstein_distance`, and by `kcalib._packing` for the metric "table" of
`_pairs.problem.PairProblem`, where there are no points whose Euclidean distance it is. Components are compared by
differences of points, or by `bures`; mixtures of equally many components are a group, and `transport` moves the weights
between the components of all pairs of two groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import beside_computed
from kcalib._backend.threads import resolve_threads
from kcalib._input.checks import reject
from kcalib._pairs.problem import Components
from kcalib.distributions._tables import BLOCK, Block, check_table, fill, in_rows
from kcalib.distributions.bures import covariance_roots, squared_distances
from kcalib.distributions.transport import Way, cheapest, line_costs, way

SEARCH_BLOCK = 2**18  # as BLOCK, where shortest paths are searched
EQUAL = 1e-13  # weights that differ by less are equal: so little mass hardly costs
PSD = 1e-10  # a covariance's eigenvalues may be negative by that share of the largest: rounding


def wasserstein_table(
    components: Components,
    other: Components | None = None,
    *,
    order: float = 2.0,
    max_memory: float | None = None,
    threads: int | None = None,
) -> Array:
    """As `wasserstein_distance`, of mixtures: W_2 of single components, MW_order of others; shape (n, n')."""
    sides = [_Mixtures.of(side, components.locations) for side in alike(components, other)]
    check_table(sides[0].n, sides[-1].n, max_memory, sides[0].points)
    if not arrays.is_host(sides[0].points):
        return _device_table(sides[0], sides[-1], order)
    table = np.zeros((sides[0].n, sides[-1].n))
    left, right = sides[0].groups(), None if other is None else sides[1].groups()
    jobs = [_Job(table, g, h, order, other is None) for a, g in enumerate(left) for h in (right or left[a:])]
    fill(((job.blocks(), job.threads(threads)) for job in jobs), sum(job.n_pairs for job in jobs))
    return table


def alike(components: Components, other: Components | None) -> list[Components]:
    """Both in one family, and alike in dimension."""
    if other is None:
        return [components]
    if components.locations.shape[2] != other.locations.shape[2]:
        raise ValueError(
            f"`other` has distributions in {other.locations.shape[2]} dimensions, expected "
            f"{components.locations.shape[2]}, as `prediction`"
        )
    families = (components.family, other.family)
    if set(families) == {"normal", "normal_full"}:
        return [_full(components), _full(other)]
    if families[0] != families[1]:
        raise ValueError(
            f"`other` has components of the family {other.family!r}, expected {components.family!r}, as `prediction`; "
            "take `Samples` of both"
        )
    return [components, other]


def _full(components: Components) -> Components:
    """Normals of independent entries with full covariances."""
    if components.family != "normal":
        return components
    assert components.scales is not None
    xp, d = arrays.namespace(components.scales), components.locations.shape[2]
    identity = arrays.like(np.eye(d), components.scales, dtype=components.scales.dtype)
    covariances = xp.expand_dims(components.scales, axis=-1) * identity
    return Components("normal_full", components.weights, components.locations, covariances)


def _device_table(left: _Mixtures, right: _Mixtures, order: float) -> Array:
    """What has closed forms: single components, and as many points of equal weights on a line."""
    xp, K = arrays.namespace(left.points), left.weights.shape[1]
    alike = right.weights.shape[1] == K
    equal = alike and all(bool(xp.all(xp.abs(side.weights * K - 1) <= EQUAL)) for side in (left, right))
    if equal and left.on_a_line:
        x, y = (xp.sort(side.points[:, :, 0], axis=1) for side in (left, right))

        def between_lines(rows: slice) -> Array:
            gaps = xp.abs(x[rows, None, :] - y[None, :, :])
            largest = xp.max(gaps, axis=2)
            scale = xp.where(largest > 0, largest, 1.0)
            return scale * xp.mean((gaps / scale[:, :, None]) ** order, axis=2) ** (1 / order)

        return in_rows(left.n, right.n, K, xp, between_lines)
    if left.on_a_line and K > 1:
        return _device_line_table(left, right, order)
    if not (alike and K == 1):
        arrays.check_not_cuda(left.points, "optimal transport between mixtures of several components")

    def between_components(rows: slice) -> Array:
        squares = xp.sum((left.points[rows, None, 0, :] - right.points[None, :, 0, :]) ** 2, axis=2)
        if left.roots is not None and right.roots is not None:
            squares += squared_distances(left.roots[rows, None, 0], right.roots[None, :, 0])
        return xp.sqrt(squares)

    width = left.points.shape[2] ** (1 if left.roots is None else 2)
    return in_rows(left.n, right.n, width, xp, between_components)


def _device_line_table(left: _Mixtures, right: _Mixtures, order: float) -> Array:
    """Points of any weights on a line, as `_Job` has them on the host."""
    xp = arrays.namespace(left.points)

    def ascending(side: _Mixtures) -> tuple[Array, Array]:
        x, present = side.points[:, :, 0], side.weights > 0
        highest = xp.max(xp.where(present, x, -xp.inf), axis=1)
        x = xp.where(present, x, highest[:, None])
        ranks = xp.argsort(x, axis=1, stable=True)
        return xp.take_along_axis(x, ranks, axis=1), xp.take_along_axis(side.weights, ranks, axis=1)

    (x, w), (y, v) = ascending(left), ascending(right)
    n_others, K, L = right.n, x.shape[1], y.shape[1]

    def between(rows: slice) -> Array:
        n_rows = len(x[rows])
        a, of_a = (xp.repeat(one[rows], n_others, axis=0) for one in (x, w))
        b, of_b = (xp.tile(one, (n_rows, 1)) for one in (y, v))
        largest = xp.maximum(xp.abs(a[:, -1] - b[:, 0]), xp.abs(b[:, -1] - a[:, 0]))
        scale = xp.where(largest > 0, largest, 1.0)
        costs = line_costs(a / scale[:, None], of_a, b / scale[:, None], of_b, order)
        return (scale * costs ** (1 / order)).reshape(n_rows, n_others)

    return in_rows(left.n, n_others, K + L, xp, between)


@dataclass(frozen=True)
class _Group:
    """Mixtures of equally many components of positive weight (on a line, unless weights are equal: up to so many)."""

    rows: np.ndarray  # their numbers, shape: (n,)
    weights: np.ndarray  # shape: (n, K)
    equal_weights: bool
    points: np.ndarray  # whose Euclidean distances are those of components or, with roots, of their means: (n, K, p)
    roots: np.ndarray | None  # of covariances, shape: (n, K, d, d)
    on_a_line: bool  # atoms, in ascending order

    @property
    def n_components(self) -> int:
        return self.weights.shape[1]


@dataclass(frozen=True)
class _Mixtures:
    """Checked components in the form of a group; on the host, or CuPy arrays."""

    weights: Array
    points: Array
    roots: Array | None
    on_a_line: bool

    @classmethod
    def of(cls, components: Components, reference: Array) -> _Mixtures:
        """Beside the reference."""

        def checked(name: str) -> Array:
            array = arrays.where_computed(beside_computed(getattr(components, name), reference), np.float64)
            reject(
                array,
                ~arrays.namespace(array).isfinite(array),
                lambda at, x: f"`{name}{at}` of components is {x}, expected it finite",
            )
            return array

        weights, locations = checked("weights"), checked("locations")
        xp = arrays.namespace(weights)
        reject(weights, weights < 0, lambda at, x: f"`weights{at}` of components is {x}, expected at least 0")
        sums = xp.sum(weights, axis=1)
        reject(
            sums,
            xp.abs(sums - 1) > 1e-6,
            lambda at, x: f"`weights{at}` of components sum to {x}, expected 1; divide them by their sum",
        )
        weights = weights / sums[:, None]
        if components.family == "atoms":
            return cls(weights, locations, None, locations.shape[2] == 1)
        scales = checked("scales")
        if components.family == "normal_full":
            return cls(weights, locations, _roots(scales), False)
        reject(scales, scales < 0, lambda at, x: f"`scales{at}` of components is {x}, expected at least 0")
        spread = xp.sqrt(scales) if components.family == "normal" else math.sqrt(2) * scales
        return cls(weights, xp.concat([locations, spread], axis=2), None, False)

    @property
    def n(self) -> int:
        return len(self.weights)

    def groups(self) -> list[_Group]:
        absent, K = self.weights == 0, self.weights.shape[1]
        counts = K - np.count_nonzero(absent, axis=1)
        equal = np.max(np.abs(self.weights * counts[:, None] - 1) * ~absent, axis=1) <= EQUAL
        order = np.argsort(absent, axis=1, kind="stable")
        if self.on_a_line:
            order = np.lexsort((self.points[:, :, 0], absent), axis=1)
            counts[~equal] = K  # what has no weight does no harm there
        found = []
        for count, is_equal in sorted(set(zip(counts.tolist(), equal.tolist(), strict=True))):
            rows = np.flatnonzero((counts == count) & (equal == is_equal))
            at = (rows[:, None], order[rows, :count])
            weights, points = self.weights[at], self.points[at]
            if self.on_a_line:
                highest = np.max(np.where(weights > 0, points[:, :, 0], -np.inf), axis=1)
                points = np.where(weights > 0, points[:, :, 0], highest[:, None])[:, :, None]
            roots = None if self.roots is None else self.roots[at]
            found.append(_Group(rows, weights, is_equal, points, roots, self.on_a_line))
        return found


def _roots(covariances: Array) -> Array:
    xp = arrays.namespace(covariances)
    symmetric = (covariances + xp.swapaxes(covariances, -1, -2)) / 2
    values = xp.linalg.eigvalsh(symmetric)
    lowest = values[..., 0]
    reject(
        lowest,
        lowest < -PSD * xp.abs(values[..., -1]),
        lambda at, x: f"`scales{at}` of components has the eigenvalue {x:.6g}, expected a positive semidefinite matrix",
    )
    return covariance_roots(symmetric)


@dataclass(frozen=True)
class _Job:
    """The distances between the mixtures of two groups."""

    table: np.ndarray
    left: _Group
    right: _Group
    order: float
    symmetric: bool  # both groups are of one side: every pair once

    @property
    def n_pairs(self) -> int:
        n = len(self.left.rows)
        return n * (n - 1) // 2 if self._same else n * len(self.right.rows)

    @property
    def _same(self) -> bool:
        return self.symmetric and self.left is self.right

    @property
    def _equal_weights(self) -> bool:
        return (
            self.left.equal_weights and self.right.equal_weights and self.left.n_components == self.right.n_components
        )

    @property
    def _way(self) -> Way | None:
        if self.left.on_a_line:
            return None
        return way(self.left.n_components, self.right.n_components, self._equal_weights)

    def threads(self, threads: int | None) -> int:
        count = resolve_threads(threads)
        return 1 if self._way == "assignments" else count  # these hold the interpreter's lock

    def blocks(self) -> Iterator[Block]:
        K, L, d = self.left.n_components, self.right.n_components, self.left.points.shape[2]
        width = K + L if self.left.on_a_line else K * L * (1 if self.left.roots is None else d * d)
        # Shortest paths take many small steps, for all pairs side by side.
        step = max(1, (SEARCH_BLOCK if self._way == "shortest_paths" else BLOCK) // width)
        for begin in range(0, self.n_pairs, step):
            yield partial(self._fill, begin, min(begin + step, self.n_pairs))

    def _fill(self, begin: int, end: int) -> int:
        n, numbers = len(self.left.rows), np.arange(begin, end)
        if self._same:  # i with the 1st after it, then with the 2nd, ...: round a circle
            i = numbers % n
            j = (i + 1 + numbers // n) % n
        else:
            i, j = np.divmod(numbers, len(self.right.rows))
        distances = self._distances(i, j)
        rows, columns = self.left.rows[i], self.right.rows[j]
        self.table[rows, columns] = distances
        if self.symmetric:
            self.table[columns, rows] = distances
        return end - begin

    def _distances(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        left, right = self.left, self.right
        w, v = left.weights[i], right.weights[j]
        if left.on_a_line:
            x, y = left.points[i, :, 0], right.points[j, :, 0]
            largest = np.maximum(np.abs(x[:, -1] - y[:, 0]), np.abs(y[:, -1] - x[:, 0]))
            scale = np.where(largest > 0, largest, 1.0)
            x, y = x / scale[:, None], y / scale[:, None]
            if self._equal_weights:
                costs = np.mean(np.abs(x - y) ** self.order, axis=1)
            else:
                costs = line_costs(x, w, y, v, self.order)
            return scale * costs ** (1 / self.order)
        distances = _between_components(left, right, i, j)
        if distances.shape[1:] == (1, 1):
            return distances[:, 0, 0]
        largest = np.max(distances, axis=(1, 2))
        scale = np.where(largest > 0, largest, 1.0)
        costs = (distances / scale[:, None, None]) ** self.order
        return scale * cheapest(costs, w, v, self._equal_weights) ** (1 / self.order)


def _between_components(left: _Group, right: _Group, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """W_2 between the components of pairs of mixtures, shape (P, K, L)."""
    x, y = left.points[i], right.points[j]
    squares = np.zeros((len(i), left.n_components, right.n_components))
    for a, b in zip(np.moveaxis(x, 2, 0), np.moveaxis(y, 2, 0), strict=True):
        squares += (a[:, :, None] - b[:, None, :]) ** 2
    if left.roots is not None and right.roots is not None:
        squares += squared_distances(left.roots[i][:, :, None], right.roots[j][:, None])
    return np.sqrt(squares)
