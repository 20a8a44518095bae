r"""The matrix whose eigenvalues give the conditional null distribution of the SKCE.

Residuals of targets with finitely many values are e_i = L_i x_i with L_i = diag(sqrt p_i) - p_i sqrt(p_i)^T, where
L_i L_i^T = V_i = Cov(e_i), and x_i has mean 0 and covariance 1 (except along sqrt(p_i), which L_i maps to 0). With the
target kernel's matrix M = R R^T

    sum_{i != j} k_ij e_i^T M e_j = x^T B x,   B with the blocks L_i^T k_ij M L_j, i != j

and n SKCE is distributed approximately as sum_i l_i Z_i^2, with l the eigenvalues of A = B / (n - 1), which do not
depend on labels. A has n m rows and is not stored; a product with it takes one with the kernel matrix. If R^T e_i is a
number (two classes), so is V_i, and A has n rows. Other targets are drawn once, and their matrix H replaces A.

`make_subset_matrix`, for blocks, and `make_feature_matrix`, for random features, take a subset of the samples to
represent all: an eigenvalue is a mean over samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, singledispatch

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._input.data import Data
from kcalib._packing import Packed
from kcalib._packing.features import FeatureProblem, LabelFeatures, products_of
from kcalib._packing.forecast_features import ForecastFeatures
from kcalib._packing.variance import FiniteLaw, expected_lengths, finite_law
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.feature_sums import feature_rows
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import DenseRectangle, Moments, sweep_one
from kcalib.inference.eigenvalues import (
    BLOCK_SIZE,
    FEWEST_RANDOM,
    LINE_BLOCK_SIZE,
    ImplicitMatrix,
    of_residuals,
    products_with_diagonal,
)
from kcalib.inference.task import Task

MOST_ROWS, ROW_CLASSES, FEWEST_ROWS = 2048, 2**17, 128  # of the subset matrix; fewer for many classes
# Features of a sample up to which start vectors for groups of the largest eigenvalues are used. A vector takes a column
# for each feature, so with more features the groups would take products with that number of columns squared.
STARTED_UP_TO, FEWEST_COLUMNS = 16, 8
SEED = 0  # of drawn targets, so that results are a function of the predictions
GIVEN = "given the predictions"
DRAWN = f"of targets drawn from the predictions with seed {SEED}"


def conditional(task: Task) -> tuple[ImplicitMatrix, str]:
    """Return the matrix A, and a description of its origin."""
    law = finite_law(task.data, task.packed)
    if law is None:
        backend = task.backend_of(task.packed.with_targets(task.data.draw(SEED, 0)).problem)
        return of_residuals(backend, sweep_one(backend, Moments(second=True)), task.n), DRAWN
    return _make_conditional_matrix(task, law), GIVEN


class Scalars:
    """Numbers F_i with F_i^2 = R^T V_i R."""

    size = rank = columns = 1

    def __init__(self, law: FiniteLaw) -> None:
        lengths = arrays.to_compute_device(expected_lengths(law)[0], np.float64)
        self._deviations = arrays.namespace(lengths).sqrt(lengths)[:, None]

    def apply_root(self, vectors: Array) -> Array:
        return self._deviations * vectors

    def apply_transposed_root(self, vectors: Array, less: tuple[Array, Array] | None = None) -> Array:
        return self._deviations * (vectors if less is None else vectors - less[0] * less[1])


class Vectors:
    """F_i = R^T L_i, and their transposes, in products without cancellation for probabilities near 1.

    If R is the identity, the entries of F_i x sum to 0, and F_i^T z does not depend on the mean of the entries of z: a
    reflection that maps equal entries to the last axis leaves `rank` - 1 of them, and products have fewer columns.
    """

    def __init__(self, law: FiniteLaw) -> None:
        p = arrays.to_compute_device(law.probabilities, np.float64)
        self._law, self._p, self._deviations = law, p[:, :, None], arrays.namespace(p).sqrt(p)[:, :, None]
        self._root = None if law.root is None else arrays.like(law.narrow_root, p)
        self.size = int(p.shape[1])
        self.rank = self.size if self._root is None else int(self._root.shape[1])
        self._share = 1 / (math.sqrt(self.size) - 1)  # of the last entry, in each of the others

    @cached_property
    def _top(self) -> Array:
        return arrays.to_compute_device(self._law.parts[0])[:, :, None]

    @property
    def columns(self) -> int:
        """Return the number of columns of `apply_root` for a vector, and of the input of `apply_transposed_root`."""
        return self.rank - 1 if self._root is None else self.rank

    def apply_root(self, vectors: Array) -> Array:
        """Return F_i x_i for vectors (n size, c), shape (n, columns c)."""
        xp = arrays.namespace(vectors)
        n, m, _ = self._p.shape
        result = self._deviations * vectors.reshape(n, m, -1)
        result -= self._p * result.sum(axis=1, keepdims=True)
        result = xp.where(self._top, 0.0, result)
        result -= xp.where(self._top, result.sum(axis=1, keepdims=True), 0.0)  # the entries sum to 0
        if self._root is not None:
            result = xp.einsum("imc,mr->irc", result, self._root)
        else:
            result = result[:, :-1] + self._share * result[:, -1:]
        return result.reshape(n, -1)

    def apply_transposed_root(self, vectors: Array, less: tuple[Array, Array] | None = None) -> Array:
        """Return F_i^T z_i for (n, columns c), or for these minus a_i b_i, a (n, 1) and b like them, (n size, c)."""
        xp = arrays.namespace(vectors)
        n, m, _ = self._p.shape
        result = (vectors if less is None else vectors - less[0] * less[1]).reshape(n, self.columns, -1)
        result = self.widen(result) if self._root is None else xp.einsum("irc,mr->imc", result, self._root)
        result = result - xp.where(self._top, result, 0.0).sum(axis=1, keepdims=True)
        result -= (self._p * result).sum(axis=1, keepdims=True)
        result *= self._deviations
        return result.reshape(n * m, -1)

    def widen(self, narrow: Array) -> Array:
        """Return numbers, shape (n, size - 1, c), widened to (n, size, c), up to a constant for each."""
        xp = arrays.namespace(narrow)
        return xp.concat([narrow, self._share * xp.sum(narrow, axis=1, keepdims=True)], axis=1)


def _make_conditional_matrix(task: Task, law: FiniteLaw) -> ImplicitMatrix:
    backend, kernel_diagonal = task.kernel_backend, task.kernel_diagonal[:, None]
    threads = backend.threads or 1
    roots = (Scalars if law.rank == 1 else Vectors)(law)
    n, size = task.n, task.n * roots.size
    moments, lengths = task.null_moments, arrays.to_compute_device(expected_lengths(law)[0], np.float64)
    with_diagonal = products_with_diagonal(backend, moments.squares, task.kernel_diagonal * lengths)

    def product(vectors: Array) -> Array:
        target_features = roots.apply_root(vectors)
        return roots.apply_transposed_root(with_diagonal(target_features), (kernel_diagonal, target_features))

    def stored() -> Array:
        kernel = arrays.to_compute_device(sweep_one(backend, DenseRectangle(slice(0, n), slice(0, n))), np.float64) / (
            n - 1
        )
        xp = arrays.namespace(kernel)
        xp.fill_diagonal(kernel, 0.0)
        units = xp.tile(xp.eye(roots.size), (n, 1))
        forms = xp.moveaxis(roots.apply_root(units).reshape(n, -1, roots.size), 2, 1).reshape(size, -1)
        matrix = linalg.matmul(forms, forms.T)
        matrix.reshape(n, roots.size, n, roots.size)[...] *= kernel[:, None, :, None]
        return matrix

    width = LINE_BLOCK_SIZE if backend.on_a_line else _width(roots)
    squares = moments.squares / (n - 1) ** 2
    return ImplicitMatrix(
        size, n - 1.0, squares, product, stored, kernel_diagonal, width, threads, _start(roots, kernel_diagonal)
    )


def _width(roots: Scalars | Vectors) -> int:
    """Return the columns of a product; each vector takes one kernel matrix column for each target feature."""
    if roots.rank == 1 or roots.rank > STARTED_UP_TO:
        return BLOCK_SIZE
    return max(FEWEST_COLUMNS, roots.rank + FEWEST_RANDOM)


def _start(roots: Scalars | Vectors, reference: Array) -> Callable[[], Array] | None:
    """Return F_i^T for all samples: the range of A for a constant kernel."""
    if roots.rank > STARTED_UP_TO:
        return None

    def start() -> Array:
        xp = arrays.namespace(reference)
        unit = xp.reshape(xp.eye(roots.columns, dtype=xp.float64, device=arrays.device(reference)), (1, -1))
        return roots.apply_transposed_root(xp.tile(unit, (len(reference), 1)))

    return start


def some_rows(n: int, m: int) -> np.ndarray:
    """Return a subset of samples that represents all, as a function of the sizes."""
    count = min(n, max(FEWEST_ROWS, min(MOST_ROWS, ROW_CLASSES // m)))
    return np.sort(np.random.default_rng(SEED).choice(n, count, replace=False, shuffle=False))


def make_subset_matrix(data: Data, packed: Packed) -> ImplicitMatrix:
    """Return A between a subset that represents all samples. On the host, O(rows^2 (m + features)) for a product."""
    law = finite_law(data.take(_index_like_samples(some_rows(data.n, 1), data)), packed)
    rows = some_rows(data.n, 1 if law is None else int(law.probabilities.shape[1]))
    at = _index_like_samples(rows, data)
    if law is None:
        problem = packed.with_targets(data.draw(SEED, 0)).take(at).problem
        return _between(_entries(problem), len(rows), data.n)
    law = finite_law(data.take(at), packed.take(at))
    assert law is not None
    points = law.problem.left.points
    ones = arrays.namespace(points).ones_like(points[:, :1])
    return _of_law(law, _entries(replace(law.problem, left=Side(points, ones))), data.n)


@singledispatch
def make_feature_matrix(problem: FeatureProblem, n: int) -> ImplicitMatrix:
    """Return the same for a feature kernel, from a random subset of n samples, with their weights."""
    raise NotImplementedError(type(problem))


@make_feature_matrix.register
def _(problem: ForecastFeatures, n: int) -> ImplicitMatrix:
    law = problem.finite_law(some_rows(problem.n, 1))
    rows = some_rows(problem.n, 1 if law is None else int(law.probabilities.shape[1]))
    points = arrays.namespace(problem.points).take(problem.points, _index_like_samples(rows, problem.data), axis=0)
    features = arrays.to_host(feature_rows(problem.map, points, threads=problem.threads))
    if problem.data.sample_weight is not None:
        features = features * arrays.to_host(problem.data.sample_weight)[rows, None]
    if law is not None:
        law = problem.finite_law(rows)
        assert law is not None
        return _of_law(law, linalg.matmul(features, features.T), n)
    target_features = problem.draw_target_features(rows)
    kernels, targets = (linalg.matmul(a, a.T) for a in (features, target_features))
    return _between(kernels * targets, len(rows), n)


@make_feature_matrix.register
def _(problem: LabelFeatures, n: int) -> ImplicitMatrix:
    rows = some_rows(problem.n, problem.data.m)
    data = problem.data.take(_index_like_samples(rows, problem.data))
    law = finite_law(data, problem.packed)
    assert law is not None
    features = arrays.to_host(feature_rows(problem.map, law.problem.left.points, threads=problem.threads))
    if data.sample_weight is not None:
        features = features * arrays.to_host(data.sample_weight)[:, None]
    return _of_law(law, linalg.matmul(features, features.T), n)


def _index_like_samples(rows: np.ndarray, data: Data) -> Array:
    """Return row numbers as an array of the samples' library and device."""
    return arrays.like(rows, data.reference)


def _entries(problem: PairProblem) -> np.ndarray:
    tile = sweep_one(backend_for(problem), DenseRectangle())
    return arrays.to_host(tile).astype(np.float64)


def _of_law(law: FiniteLaw, kernel: np.ndarray, n: int) -> ImplicitMatrix:
    """Return A with the kernel matrix between the samples of the law, which represent n."""
    np.fill_diagonal(kernel, 0.0)
    law = FiniteLaw(arrays.to_host(law.probabilities), law.root, law.problem)
    roots = (Scalars if law.rank == 1 else Vectors)(law)
    size, scale = len(kernel) * roots.size, _scale(len(kernel), n)

    def product(vectors: Array) -> Array:
        return roots.apply_transposed_root(
            linalg.matmul(kernel.T, roots.apply_root(vectors))
        )  # the kernel is symmetric

    squares = float(np.sum(kernel**2 * products_of(law))) / scale**2
    width, start = _width(roots), _start(roots, kernel[:, :1])
    return ImplicitMatrix(size, scale, squares, product, lambda: product(np.eye(size)) / scale, kernel, width, 1, start)


def _between(entries: np.ndarray, size: int, n: int) -> ImplicitMatrix:
    """Return H of drawn targets between a subset of n samples."""
    np.fill_diagonal(entries, 0.0)
    scale = _scale(size, n)
    squares = float(np.sum(entries**2)) / scale**2
    return ImplicitMatrix(size, scale, squares, entries.__matmul__, lambda: entries / scale, entries, BLOCK_SIZE, 1)


def _scale(rows: int, n: int) -> float:
    return (n - 1) * rows / n
