"""Moments of the values at test locations, for `cme`: their covariance, and how far their sums are from normal.

The covariance is that of the samples, or conditional on the predictions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from typing import NamedTuple

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._input.data import Data
from kcalib._input.labels import Classification
from kcalib._packing import Packed
from kcalib._pairs.backends.base import Backend
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import DenseRectangle, sweep_one

BLOCK_ELEMENTS = 2**17  # of a dense block of samples
DRAWS, DRAWS_FOR_A_PAIR = 20_000, 200  # fewest draws of targets for a covariance: in total, and per pair of locations
DRAWS_AT_ONCE = 2**13


class Covariance(NamedTuple):
    """The covariance of the values of one sample at the locations."""

    matrix: np.ndarray  # shape: (J, J)
    size: np.ndarray  # largest absolute value at each location, shape: (J,)
    is_drawn: bool = False  # whether it comes from draws


def sample_covariance(n: int, backend: Backend) -> Covariance:
    """Return the covariance (ddof 1) of the samples' values at the locations, and the size of the values."""
    parts = [block for _, block in blocks(backend)]
    xp = arrays.namespace(parts[0])
    z = xp.concatenate(parts, axis=1)
    deviations = z - xp.mean(z, axis=1, keepdims=True)
    return Covariance(arrays.to_host(linalg.matmul(deviations, deviations.T) / (n - 1)), _largest(z))


@singledispatch
def covariance_given_predictions(
    data: Data, locations: Data, packed: Packed, backend: Backend, seed: int
) -> Covariance:
    """Return the mean covariance of the values with targets drawn from the predictions, and the size of the values."""
    n_locations = backend.problem.left.points.shape[0]
    count = -(-max(DRAWS, DRAWS_FOR_A_PAIR * n_locations**2) // data.n)
    matrix, size = np.zeros((n_locations, n_locations)), np.zeros(n_locations)
    at_once = min(count, max(1, DRAWS_AT_ONCE // data.n))  # of each sample
    rows = arrays.like(np.tile(np.arange(data.n), at_once), data.reference)
    repeated, packed_samples = data.take(rows), packed.take(rows)
    count = -(-count // at_once) * at_once
    for r in range(count // at_once):
        packed_draw = packed_samples.with_targets(repeated.draw(seed, r))
        backend_of_draw = backend.like(packed_draw.problem)
        for _, z in blocks(backend_of_draw):
            matrix += arrays.to_host(linalg.matmul(z, z.T))
            size = np.maximum(size, _largest(z))
    return Covariance(matrix / (count * data.n), size, is_drawn=True)


@covariance_given_predictions.register
def _(data: Classification, locations: Classification, packed: Packed, backend: Backend, seed: int) -> Covariance:
    """Return it in closed form, from the probabilities of all labels."""
    n_locations = packed.problem.left.points.shape[0]
    covariance, size = np.zeros((n_locations, n_locations)), np.zeros(n_locations)
    if packed.target.root is None:
        classes = arrays.to_host(locations.labels)
        for kernel, probabilities in _own_classes(data, classes, packed, backend):
            xp, p = arrays.namespace(kernel), probabilities.p
            alike = kernel * xp.sqrt(p * ((1 - p) ** 2 + p * probabilities.rest))
            unlike = kernel * p * xp.sqrt(2 - probabilities.total)
            products = [arrays.to_host(z @ z.T) for z in (alike, unlike)]
            covariance += np.where(classes[:, None] == classes, products[0], -products[1])
            size = np.maximum(size, _largest(kernel))
        return Covariance(covariance / data.n, size)
    for deviations, p, largest in _deviations(data, locations, packed, backend):
        weighted = (deviations * arrays.namespace(p).sqrt(p)).reshape(n_locations, -1)
        covariance += arrays.to_host(linalg.matmul(weighted, weighted.T))
        size = np.maximum(size, largest)
    return Covariance(covariance / data.n, size)


@singledispatch
def fourth_moment(
    data: Data, locations: Data, packed: Packed, backend: Backend, directions: np.ndarray
) -> float | None:
    """Return the mean of E |u|^4 given the predictions, u the values in the directions (J, rank); None if unknown."""
    return None


@fourth_moment.register
def _(
    data: Classification, locations: Classification, packed: Packed, backend: Backend, directions: np.ndarray
) -> float:
    total = 0.0
    if packed.target.root is None:
        classes, gram = arrays.to_host(locations.labels), directions @ directions.T
        for kernel, probabilities in _own_classes(data, classes, packed, backend):
            xp, p = arrays.namespace(kernel), probabilities.p
            expected = kernel * p
            turned = arrays.like(gram, p) @ expected
            of_others = xp.sum(expected * turned, axis=0)
            total += float((probabilities.other_labels * of_others**2).sum())
            for label in np.unique(classes):
                positions = np.flatnonzero(classes == label)
                at = arrays.like(positions, p)
                kernel_rows = kernel[at]
                form = xp.sum(
                    kernel_rows * (arrays.like(gram[np.ix_(positions, positions)], p) @ kernel_rows - 2 * turned[at]),
                    axis=0,
                )
                total += float((p[int(positions[0])] * (form + of_others) ** 2).sum())
        return total / data.n
    for deviations, p, _ in _deviations(data, locations, packed, backend):
        turned = linalg.matmul(arrays.like(directions.T, p), deviations.reshape(len(directions), -1))
        squares = arrays.namespace(p).sum(turned**2, axis=0).reshape(p.shape)
        total += float((p * squares**2).sum())
    return total / data.n


class OwnClasses(NamedTuple):
    """Probabilities that samples give the classes of the locations."""

    p: Array  # shape: (J, samples)
    rest: Array  # of all other labels, and the rounding error of a row's sum; shape: (J, samples)
    other_labels: Array  # of labels at no location; shape: (samples,)
    total: Array  # of all labels


def _own_classes(
    data: Classification, classes: np.ndarray, packed: Packed, backend: Backend
) -> Iterator[tuple[Array, OwnClasses]]:
    """Yield, for blocks of samples, the kernel between locations of these classes and samples, and class probabilities.

    For the Kronecker delta: values at location j are k_ji (1(y_i = c_j) - p_i,c_j). Small probabilities are added up,
    without differences of large ones.
    """
    labels, place = np.unique(classes, return_inverse=True)
    probabilities = arrays.to_compute_device(data.probabilities)
    xp = arrays.namespace(probabilities)
    off_diagonal = 1.0 - xp.eye(len(labels))
    elsewhere = np.setdiff1d(np.arange(data.m), labels)
    labels, place, elsewhere = (arrays.like(at, probabilities) for at in (labels, place, elsewhere))
    for rows, kernel in blocks(of_kernel_alone(packed, backend)):
        p = probabilities[rows, :].astype(np.float64)
        row_sums = xp.sum(p, axis=1)
        # The rounding error of a row's sum, above all in float32, is a class of its own with that probability.
        other_labels = xp.sum(p[:, elsewhere], axis=1) + xp.maximum(0.0, 1.0 - row_sums)
        p_of_labels = p[:, labels].T
        rest = off_diagonal @ p_of_labels + other_labels
        kernel = arrays.asarray_like(kernel, p)
        yield kernel, OwnClasses(p_of_labels[place], rest[place], other_labels, xp.maximum(1.0, row_sums))


def _deviations(
    data: Classification, locations: Classification, packed: Packed, backend: Backend
) -> Iterator[tuple[Array, Array, np.ndarray]]:
    """Yield, for blocks of samples, values at the locations for each group of classes, their probabilities, and sizes.

    Shapes (J, samples, groups) of values. Given p_i the value at location j is k(p_j, p_i) (A_jy - sum_c p_ic A_jc)
    with probability p_iy, A = M[y_T].
    """
    table, groups = values_of_classes(locations, packed)
    members = (groups[:, None] == np.arange(table.shape[1])).astype(np.float64)
    table = np.append(table, np.zeros((len(table), 1)), axis=1)
    largest = np.max(np.abs(table), axis=1)
    probabilities = arrays.to_compute_device(data.probabilities)
    xp = arrays.namespace(probabilities)
    values, members = (arrays.like(a, probabilities) for a in (table, members))
    for rows, kernel in blocks(of_kernel_alone(packed, backend), table.shape[1]):
        p = linalg.matmul(probabilities[rows, :].astype(np.float64), members)
        # The rounding error of a row's sum, above all in float32, is a class of its own with that probability.
        p = xp.concatenate([p, xp.maximum(0.0, 1.0 - xp.sum(p, axis=1, keepdims=True))], axis=1)
        deviations = values[:, None, :] - linalg.matmul(values, p.T)[:, :, None]
        yield kernel[:, :, None] * deviations, p, _largest(kernel) * largest


def _largest(z: Array) -> np.ndarray:
    """Return the largest absolute value of each row, shape (J,)."""
    xp = arrays.namespace(z)
    return arrays.to_host(xp.max(xp.abs(z), axis=1))


def blocks(backend: Backend, width: int = 1) -> Iterator[tuple[slice, Array]]:
    """Yield columns of H for blocks of samples, small enough for `width` numbers in place of each entry."""
    n_locations, n = (side.points.shape[0] for side in (backend.problem.left, backend.problem.columns))
    step = max(1, BLOCK_ELEMENTS // (n_locations * width))
    for begin in range(0, n, step):
        rows = slice(begin, min(n, begin + step))
        yield (
            rows,
            arrays.to_compute_device(sweep_one(backend, DenseRectangle(slice(0, n_locations), rows))).astype(
                np.float64
            ),
        )


def of_kernel_alone(packed: Packed, backend: Backend) -> Backend:
    """Return the backend of k(p_j, p_i): the same problem with features of 1."""
    left, right = (Side(s.points, _ones(s.points)) for s in (packed.problem.left, packed.problem.columns))
    problem = PairProblem(left, right, packed.problem.kernel)  # for class probabilities
    return backend.like(problem)


def _ones(points: Array) -> Array:
    xp = arrays.namespace(points)
    return xp.ones((points.shape[0], 1), dtype=points.dtype, device=arrays.device(points))


def values_of_classes(locations: Classification, packed: Packed) -> tuple[np.ndarray, np.ndarray]:
    """Return A = M[y_T], with a column for each group of classes that all locations merge, and these groups."""
    table = (arrays.to_host(locations.labels)[:, None] == np.arange(locations.m)).astype(np.float64)
    if packed.target.root is not None:
        table = table @ packed.target.root @ packed.target.root.T
    values, groups = np.unique(table, axis=1, return_inverse=True)
    return values, groups.reshape(-1)
