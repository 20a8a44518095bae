"""The variance of the SKCE under calibration, as pair problems whose features do not depend on labels.

Given the predictions of a calibrated model, targets are independent draws. With residuals e_i and V_i = Cov(e_i)

    E sum_{i != j} H_ij^2 = sum_{i != j} k_ij^2 tr(M V_i M V_j),    V = diag(p) - p p^T for probabilities p, M = R R^T

k^2 is a kernel in normal form (`squared`), and the trace is an inner product of features, the entries of U = R^T V R.
Every backend computes products of factors, also on a line. `estimators.null_moments` needs the sums over all pairs,
`inference.blocks` those within blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import TypeVar, cast

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._input.data import Data
from kcalib._input.forecasts import Forecasts
from kcalib._input.labels import Classification
from kcalib._packing.packed import Packed
from kcalib._packing.target_factors import TargetFactor
from kcalib._pairs.problem import Factor, PairProblem, Side, Term
from kcalib.distributions import NegativeBinomial, Poisson, Quantiles

RANK_WITH_COLUMNS = 16  # up to here a sweep with all r (r + 1) / 2 entries of U takes less time than three with r
COLUMNS_AT_ONCE = 256
COLUMNS_TOLERANCE = 1e-13  # of what few columns leave out, relative to the largest inner product
ROWS_AT_ONCE = 2**16  # of which there is a table of probabilities
DOT = Factor("identity", "dot")
ROUNDING = 4 * float(np.finfo(np.float64).eps)
DIGITS = 1e-6  # relative error of the variance from a difference of sums
COLUMNS_WORK = 1e11  # multiply-adds that are spent to be rid of it

DataT = TypeVar("DataT", bound=Data)
Total = Callable[[PairProblem], float]  # sums of the entries off the diagonal, of all pairs or those within blocks


@dataclass(frozen=True)
class FiniteLaw:
    """Targets with finitely many values: value c of sample i has probability p_ic, and features R^T e."""

    probabilities: Array  # shape (n, m)
    root: np.ndarray | None  # R, shape (m, r); None for the identity
    problem: PairProblem  # of the predictions; its features say nothing here
    is_shared: bool = False  # by all samples
    are_counts: bool = False  # predictions that leave little open are nearly certain of value 0

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        """Return the most probable value one-hot (n, m), probabilities of the others (n, m), and their sums (n, 1).

        These have no cancellation if a probability is near 1.
        """
        p = self.probabilities
        xp = arrays.namespace(p)
        columns = xp.arange(p.shape[1], device=arrays.device(p))
        top = columns[None, :] == xp.argmax(p, axis=1)[:, None]
        rest_probabilities = xp.where(top, xp.zeros_like(p), p)
        return top, rest_probabilities, xp.sum(rest_probabilities, axis=1, keepdims=True)

    @property
    def narrow_root(self) -> np.ndarray:
        """Return R without the common part of its rows, which does not matter for residuals, as they sum to 0."""
        m = int(self.probabilities.shape[1])
        root = np.eye(m) if self.root is None else self.root - np.mean(self.root, axis=0)
        if m == 2:  # a residual is (-e, e)
            length = float(np.linalg.norm(root[1] - root[0]))
            root = np.array([[-length / 2], [length / 2]])
        return root

    @property
    def rank(self) -> int:
        """Number of columns of `narrow_root`."""
        m = int(self.probabilities.shape[1])
        return 1 if m == 2 else m if self.root is None else int(self.root.shape[1])

    def with_features(self, features: Array, *factors: Factor) -> PairProblem:
        """Return k^2 times the factors, between samples with these features."""
        terms = tuple(replace(t, factors=t.factors + factors) for t in squared(self.problem.kernel))
        points = self.problem.left.points
        features = arrays.namespace(points).astype(features, points.dtype, copy=False)
        return replace(self.problem, left=Side(points, features), kernel=terms, target=None)


@singledispatch
def finite_law(data: Data, packed: Packed) -> FiniteLaw | None:
    """Return the law of the targets under calibration given the predictions; None if it is not finite."""
    return None


@finite_law.register
def _(data: Classification, packed: Packed) -> FiniteLaw:
    points = data.probabilities
    xp = arrays.namespace(points)
    p = xp.where(points > 0, points, xp.zeros_like(points))  # roundings of a sum may leave less
    return FiniteLaw(p, packed.target.root, PairProblem(Side(points, p[:, :1]), None, packed.problem.kernel))


@finite_law.register
def _(data: Forecasts, packed: Packed) -> FiniteLaw | None:
    target, prediction = packed.target, data.prediction
    if isinstance(prediction, Quantiles):
        points = packed.problem.left.points
        p = arrays.like(prediction.bin_probabilities, points, dtype=points.dtype)
        xp = arrays.namespace(points)
        return FiniteLaw(xp.broadcast_to(p[None, :], (data.n, int(p.shape[0]))), None, packed.problem, is_shared=True)
    if not isinstance(prediction, (Poisson, NegativeBinomial)):
        return None
    if not isinstance(target, TargetFactor) or target.map is None or target.draws is not None:
        return None
    table = prediction.pmf_table()
    atoms = arrays.namespace(table).arange(table.shape[1], dtype=table.dtype, device=arrays.device(table))
    root = arrays.to_host(target.map.points(atoms[:, None])[0])
    return FiniteLaw(arrays.asarray_like(table, packed.problem.left.points), root, packed.problem, are_counts=True)


def finite_parts(data: DataT, packed: Packed) -> Iterator[tuple[DataT, FiniteLaw]] | None:
    """Yield the data and their law for some samples at a time, to avoid large tables. None as `finite_law`."""

    def part(begin: int, end: int) -> DataT:
        return data.take(arrays.like(np.arange(begin, min(data.n, end)), data.reference))

    if finite_law(part(0, 1), packed) is None:
        return None
    parts = [data] if data.n <= ROWS_AT_ONCE else (part(k, k + ROWS_AT_ONCE) for k in range(0, data.n, ROWS_AT_ONCE))
    return ((chunk, cast(FiniteLaw, finite_law(chunk, packed))) for chunk in parts)


def squared(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return the square of a kernel in normal form, multiplied out."""
    products = []
    for i, a in enumerate(terms):
        products.append(Term(a.coefficient**2, tuple(f for factor in a.factors for f in _squared(factor))))
        products += [Term(2 * a.coefficient * b.coefficient, a.factors + b.factors) for b in terms[:i]]
    return tuple(products)


def _squared(factor: Factor) -> tuple[Factor, ...]:
    if factor.profile in ("exponential", "gaussian"):  # exp(-s d) and exp(-s d^2): one exponential, not two
        return (replace(factor, scale=2 * factor.scale),)
    return factor, factor


def expected_squares(law: FiniteLaw, total: Total) -> tuple[float, bool]:
    """Return sum k_ij^2 tr(M V_i M V_j) over the pairs of `total`, and whether most digits are right."""
    n, m = (int(size) for size in law.probabilities.shape)
    if law.is_shared:
        p = arrays.to_host(law.probabilities[:1, :])[0]
        ones = arrays.namespace(law.probabilities).ones_like(law.probabilities[:, :1])
        return float(np.sum((np.diag(p) - np.outer(p, p)) ** 2)) * total(law.with_features(ones)), True
    if law.root is not None or m <= RANK_WITH_COLUMNS:
        return _by_columns(law, total), True
    # tr(V V') = <v, v'> + <p, p'>^2 - <p^2, p'^2>, v the diagonals: the last two are sum_{a != b} p_a p'_a p_b p'_b.
    xp, p = arrays.namespace(law.probabilities), law.probabilities
    top, _, rest = law.parts
    most = xp.max(p, axis=1, keepdims=True)
    diagonal_products = total(law.with_features(p * xp.where(top, rest, most + rest - p)))
    products = total(law.with_features(xp.ones_like(p[:, :1]), DOT, DOT))
    squares = total(law.with_features(p * p))
    cross = min(max(products - squares, 0.0), diagonal_products)
    if ROUNDING * products <= DIGITS * diagonal_products:
        return diagonal_products + cross, True
    if n * n * m * m / 4 <= COLUMNS_WORK:
        return _by_columns(law, total), True
    return diagonal_products + cross, False


def _by_columns(law: FiniteLaw, total: Total) -> float:
    return math.fsum(total(law.with_features(features)) for features in columns(law))


def columns(law: FiniteLaw) -> Iterator[Array]:
    """Yield entries of U = R^T V R, off-diagonal ones once and times the root of 2, so that <U, U'> is their product.

    With the most probable value t of a row, R is taken relative to its row t: terms of U are then as small as errors
    are rare.
    """
    if law.root is None and law.probabilities.shape[1] > 2:
        yield from _columns_of_identity(law)
        return
    p, root = law.probabilities, law.narrow_root
    if law.are_counts and root.shape[1] * (root.shape[1] + 1) / 2 > COLUMNS_AT_ONCE:
        yield _columns_of_counts(law)
        return
    if p.shape[1] == 2:
        yield (4 * float(root[1, 0]) ** 2 * p[:, 0] * p[:, 1])[:, None]
        return
    xp = arrays.namespace(p)
    _, rest_probabilities, rest = law.parts
    r = arrays.like(root, p, dtype=p.dtype)
    at = xp.take(r, xp.argmax(p, axis=1), axis=0)
    sums = rest_probabilities @ r
    means = sums - at * rest
    first, second = np.triu_indices(root.shape[1])
    for begin in range(0, len(first), COLUMNS_AT_ONCE):
        a, b = first[begin : begin + COLUMNS_AT_ONCE], second[begin : begin + COLUMNS_AT_ONCE]
        rest_products = rest_probabilities @ arrays.like(root[:, a] * root[:, b], p, dtype=p.dtype)
        scale = arrays.like(np.where(a == b, 1.0, math.sqrt(2.0)), p, dtype=p.dtype)
        i, j = arrays.like(a, p), arrays.like(b, p)
        at_a, at_b = xp.take(at, i, axis=1), xp.take(at, j, axis=1)
        sums_a, sums_b = xp.take(sums, i, axis=1), xp.take(sums, j, axis=1)
        inner = rest_products - at_b * sums_a - at_a * sums_b + at_a * at_b * rest
        yield (inner - xp.take(means, i, axis=1) * xp.take(means, j, axis=1)) * scale[None, :]


def _columns_of_counts(law: FiniteLaw) -> Array:
    """Return few columns with the inner products of all entries of U, to rounding.

    With features x of the values relative to those of value 0, and means mu, an inner product of U and U' is the
    expectation of <x, x'>^2 - <x, mu'>^2 - <mu, x'>^2 + <mu, mu'>^2. The predictions of a family have about as many
    independent ones as parameters: a pivoted Cholesky factorisation of their matrix computes a column for each pivot.
    """
    p = arrays.to_host(law.probabilities).astype(np.float64, copy=False)
    x = law.narrow_root - law.narrow_root[0]
    means = p @ x
    squares = p @ (x @ x.T) ** 2
    along = (means @ x.T) ** 2
    rest = np.einsum("ij,ij->i", squares - 2 * along, p) + np.einsum("ij,ij->i", means, means) ** 2
    least = COLUMNS_TOLERANCE * np.max(rest, initial=0.0)
    factor = np.empty((len(p), 0))
    while len(p) and rest.max() > least and factor.shape[1] < len(p):
        pivot = int(rest.argmax())
        products = squares @ p[pivot] - p @ along[pivot] - along @ p[pivot] + (means @ means[pivot]) ** 2
        column = (products - factor @ factor[pivot]) / math.sqrt(rest[pivot])
        factor = np.concatenate([factor, column[:, None]], axis=1)
        rest = np.maximum(rest - column**2, 0.0)
        rest[pivot] = 0.0
    return arrays.like(factor, law.probabilities, dtype=law.probabilities.dtype)


def _columns_of_identity(law: FiniteLaw) -> Iterator[Array]:
    """Yield the entries of U = V, p_a (1 - p_a) and the root of 2 times -p_a p_b, without cancellation."""
    xp = arrays.namespace(law.probabilities)
    top, rest_probabilities, rest = law.parts
    p = xp.where(top, 1 - rest, rest_probabilities)
    of_rows = -math.sqrt(2.0) * p
    first, second = np.triu_indices(p.shape[1], 1)

    def off_diagonal(begin: int, end: int) -> Array:
        a, b = (arrays.like(indices[begin:end], p) for indices in (first, second))
        return xp.take(of_rows, a, axis=1) * xp.take(p, b, axis=1)

    first_end = max(0, COLUMNS_AT_ONCE - p.shape[1])
    yield xp.concat([p * xp.where(top, rest, 1 - rest_probabilities), off_diagonal(0, first_end)], axis=1)
    for begin in range(first_end, len(first), COLUMNS_AT_ONCE):
        yield off_diagonal(begin, begin + COLUMNS_AT_ONCE)


def expected_lengths(law: FiniteLaw) -> tuple[Array, Array]:
    """Return E |R^T e|^2 and E |R^T e|^4 of each sample, shape (n,)."""
    p = law.probabilities
    xp = arrays.namespace(p)
    if p.shape[1] == 2:  # the feature is -p_1 or p_0 times the length of that of the residual (-1, 1)
        square, first, second = 4 * float(law.narrow_root[1, 0]) ** 2, p[:, 0], p[:, 1]
        products = first * second
        return square * products, square**2 * products * (first**3 + second**3)
    top, rest_probabilities, rest = law.parts
    if law.root is None:  # R is the identity
        means = rest_probabilities - xp.astype(top, p.dtype) * rest
        squared_distances, along = 2.0, rest_probabilities + rest
    else:
        r = arrays.like(law.narrow_root, p, dtype=p.dtype)
        at = xp.take(r, xp.argmax(p, axis=1), axis=0)
        means = rest_probabilities @ r - at * rest
        gram = xp.sum(r * r, axis=1)
        squared_distances = gram[None, :] + xp.sum(at * at, axis=1, keepdims=True) - 2 * at @ r.T
        along = means @ r.T - xp.sum(means * at, axis=1, keepdims=True)
    shift = xp.sum(means * means, axis=1, keepdims=True)
    lengths = xp.maximum(squared_distances - 2 * along + shift, xp.zeros_like(p))
    lengths = xp.where(top, shift, lengths)
    return xp.sum(p * lengths, axis=1), xp.sum(p * lengths * lengths, axis=1)
