r"""Wasserstein distances between mixtures, by optimal transport between their components, for many pairs at once.

`distances.wasserstein_distance` uses `wasserstein_table`, and so does `kcalib._packing`, for the metric "table" of
`_pairs.problem.PairProblem`, if the distance is not Euclidean.

The squared distance of two normal components is that of their means plus the squared Bures distance of their
covariances, :math:`\operatorname{tr} S + \operatorname{tr} S' - 2 \operatorname{tr} (S^{1/2} S' S^{1/2})^{1/2}`. These
three traces nearly cancel for similar matrices. With roots :math:`S = A A^T` and :math:`S' = B B^T` the distance is
:math:`\min_U \|A - B U\|_F^2` over orthogonal U, attained at the polar factor of :math:`B^T A`: a sum of squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import asarray_on_device_of
from kcalib._input.checks import reject
from kcalib._pairs.problem import Components
from kcalib.distributions._distances.tables import fill_table
from kcalib.distributions._distances.transport import cheapest, line_costs

EQUAL = 1e-13  # difference below which weights are equal: the mass hardly changes the cost
PSD = 1e-10  # relative size of negative eigenvalues of a covariance that are rounding errors


def wasserstein_table(
    components: Components,
    other: Components | None = None,
    *,
    order: float = 2.0,
    max_memory: float | None = None,
    threads: int | None = None,
) -> Array:
    """Return the table of `wasserstein_distance` of mixtures: W_2 for single components, MW_order otherwise."""
    sides = [_Mixtures.of(side, components.locations) for side in match_components(components, other)]
    left, right = sides[0], sides[-1]
    xp, (n, K, d), (n_others, L, _) = arrays.namespace(left.points), left.points.shape, right.points.shape

    def compute_distances(rows: slice, columns: slice) -> Array:
        i, j = xp.arange(rows.start, rows.stop), xp.arange(columns.start, columns.stop)
        pairs = xp.repeat(i, len(j)), xp.tile(j, len(i))
        return _pair_distances(left, right, *pairs, order).reshape(len(i), len(j))

    return fill_table(
        n,
        n_others,
        K + L if left.is_on_line else K * L * (1 if left.roots is None else d * d),
        left.points,
        compute_distances,
        is_symmetric=other is None,
        max_memory=max_memory,
        threads=threads,
    )


def match_components(components: Components, other: Components | None) -> list[Components]:
    """Return both in one family; raise a ValueError if kind or dimension differ."""
    if other is None:
        return [components]
    if components.locations.shape[2] != other.locations.shape[2]:
        raise ValueError(
            f"`other` has distributions in {other.locations.shape[2]} dimensions, expected "
            f"{components.locations.shape[2]}, as `prediction`"
        )
    families = (components.family, other.family)
    if set(families) == {"normal", "normal_full"}:
        return [_with_full_covariances(components), _with_full_covariances(other)]
    if families[0] != families[1]:
        raise ValueError(
            f"`other` has components of the family {other.family!r}, expected {components.family!r}, as `prediction`; "
            "take `Samples` of both"
        )
    return [components, other]


def _with_full_covariances(components: Components) -> Components:
    if components.family != "normal":
        return components
    assert components.scales is not None
    xp, d = arrays.namespace(components.scales), components.locations.shape[2]
    identity = arrays.like(np.eye(d), components.scales, dtype=components.scales.dtype)
    covariances = xp.expand_dims(components.scales, axis=-1) * identity
    return Components("normal_full", components.weights, components.locations, covariances)


@dataclass(frozen=True)
class _Mixtures:
    """Checked components, as NumPy or CuPy arrays."""

    weights: Array  # shape (n, K)
    points: Array  # with Euclidean distances between components or, with roots, between their means; (n, K, p)
    roots: Array | None  # of covariances, shape (n, K, d, d)
    is_on_line: bool  # whether these are atoms in ascending order

    @classmethod
    def of(cls, components: Components, reference: Array) -> _Mixtures:
        """Return the components on the device of the reference."""

        def check_finite(name: str) -> Array:
            array = arrays.to_compute_device(asarray_on_device_of(getattr(components, name), reference), np.float64)
            reject(
                array,
                ~arrays.namespace(array).isfinite(array),
                lambda at, x: f"`{name}{at}` of components is {x}, expected a finite number",
            )
            return array

        weights, locations = check_finite("weights"), check_finite("locations")
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
            return cls._of_atoms(weights, locations)
        scales = check_finite("scales")
        if components.family == "normal_full":
            return cls(weights, locations, _covariance_roots(scales), False)
        reject(scales, scales < 0, lambda at, x: f"`scales{at}` of components is {x}, expected at least 0")
        spread = xp.sqrt(scales) if components.family == "normal" else math.sqrt(2) * scales
        return cls(weights, xp.concat([locations, spread], axis=2), None, False)

    @classmethod
    def _of_atoms(cls, weights: Array, locations: Array) -> _Mixtures:
        if locations.shape[2] > 1:
            return cls(weights, locations, None, False)
        xp, x = arrays.namespace(weights), locations[:, :, 0]
        highest = xp.max(xp.where(weights > 0, x, -xp.inf), axis=1, keepdims=True)
        x = xp.where(weights > 0, x, highest)  # atoms without weight do not matter there
        ranks = xp.argsort(x, axis=1, stable=True)
        points = xp.take_along_axis(x, ranks, axis=1)[:, :, None]
        return cls(xp.take_along_axis(weights, ranks, axis=1), points, None, True)

    def has_equal_weights(self) -> bool:
        xp = arrays.namespace(self.weights)
        return bool(xp.all(xp.abs(self.weights * self.weights.shape[1] - 1) <= EQUAL))


def _covariance_roots(covariances: Array) -> Array:
    """Return symmetric roots of positive semidefinite matrices, shape (n, K, d, d)."""
    xp = arrays.namespace(covariances)
    values, vectors = xp.linalg.eigh((covariances + xp.swapaxes(covariances, -1, -2)) / 2)
    reject(
        values[..., 0],
        values[..., 0] < -PSD * xp.abs(values[..., -1]),
        lambda at, x: f"`scales{at}` of components has the eigenvalue {x:.6g}, expected a positive semidefinite matrix",
    )
    return (vectors * xp.sqrt(xp.maximum(values, 0.0))[..., None, :]) @ xp.swapaxes(vectors, -1, -2)


def _pair_distances(left: _Mixtures, right: _Mixtures, i: Array, j: Array, order: float) -> Array:
    """Return the distances between mixtures i on the left and j on the right, shape (P,)."""
    xp, w, v = arrays.namespace(left.points), left.weights[i], right.weights[j]
    if left.is_on_line:
        x, y = left.points[i, :, 0], right.points[j, :, 0]
        largest = xp.maximum(xp.abs(x[:, -1] - y[:, 0]), xp.abs(y[:, -1] - x[:, 0]))
        scale = xp.where(largest > 0, largest, 1.0)
        return scale * line_costs(x / scale[:, None], w, y / scale[:, None], v, order) ** (1 / order)
    distances = _component_distances(left, right, i, j)
    if distances.shape[1:] == (1, 1):
        return distances[:, 0, 0]
    arrays.check_not_cuda(left.points, "optimal transport between mixtures of several components")
    has_mass = (w[:, :, None] > 0) & (v[:, None, :] > 0)
    largest = np.max(np.where(has_mass, distances, 0.0), axis=(1, 2))
    scale = np.where(largest > 0, largest, 1.0)
    costs = np.where(has_mass, distances / scale[:, None, None], 1.0) ** order
    are_equal = w.shape == v.shape and left.has_equal_weights() and right.has_equal_weights()
    return scale * cheapest(costs, w, v, are_equal) ** (1 / order)


def _component_distances(left: _Mixtures, right: _Mixtures, i: Array, j: Array) -> Array:
    """Return W_2 between the components of pairs of mixtures, shape (P, K, L)."""
    xp, x, y = arrays.namespace(left.points), left.points[i], right.points[j]
    squares = xp.zeros((len(x), x.shape[1], y.shape[1]))
    for k in range(x.shape[2]):
        squares += (x[:, :, None, k] - y[:, None, :, k]) ** 2
    if left.roots is not None and right.roots is not None:
        a, b = left.roots[i][:, :, None], right.roots[j][:, None]
        u, _, v = xp.linalg.svd(xp.swapaxes(a, -1, -2) @ b)
        bures = xp.sum((a @ u - b @ xp.swapaxes(v, -1, -2)) ** 2, axis=(-1, -2))
        squares += xp.where(xp.all(a == b, axis=(-1, -2)), 0.0, bures)
    return xp.sqrt(squares)
