r"""The CKCE as a function of its samples, to second order, for its bias and its variance.

With n lambda = s, residuals e_i in the rows of E, :math:`B = K (K + s I)^{-2}` and b = B E, the CKCE is
:math:`\sum_{ij} B_{ij} \langle e_i, e_j\rangle`. With the leverages l, the diagonal of :math:`K (K + s I)^{-1}`, and
the residual of a regression without the sample itself, :math:`r_i = s Z_i / (1 - l_i)`, leaving out sample i (at the
same s) lowers it by

.. math:: 2 \langle r_i, b_i - B_{ii} r_i\rangle + B_{ii} |r_i|^2 .

The first term is the sample's score. The second is noise of the sample alone, and belongs to the bias, which by the
jackknife at fixed lambda is :math:`\sum_i B_{ii} |r_i|^2 - 2 l_i \langle r_i, b_i\rangle`. Instead of this
`CKCEExpansion` subtracts

.. math:: \sum_i \langle e_i, B_{ii} r_i - 2 l_i (b_i - B_{ii} r_i)\rangle ,

which is the same to first order. For a calibrated model it has exactly the expectation of the CKCE, given the
predictions, for any n, since :math:`b_i - B_{ii} r_i` and :math:`r_i - e_i` do not depend on e_i.

Z and b come from `kcalib.solvers`, the diagonals from a `SpectralFactor`. Arrays with n rows, and eigenvectors, are on
the device of the residuals; eigenvalues are on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcalib._backend import arrays, linalg
from kcalib._backend.arrays import Array
from kcalib._backend.memory import check_memory
from kcalib.estimators.ckce_exact import VALUE_TOLERANCES
from kcalib.estimators.ckce_low_rank import trace_bound
from kcalib.solvers._solve import AutomaticSolver, solve_checked
from kcalib.solvers.certificate import Certificate
from kcalib.solvers.conjugate_gradient import is_good_factor
from kcalib.solvers.kernel_operator import KernelOperator
from kcalib.solvers.low_rank import SMALLEST_SHIFT, NormalEquations
from kcalib.solvers.pivoted_cholesky import partial_cholesky

RANK = 100  # of the first factor that is tried
SMALL_REST = 0.01  # mean eigenvalue of K - P P^T, relative to the shift, for which a factor is accurate enough
TOLERANCE_OF_B = 1e-6  # relative residual
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class CKCEExpansion:
    """A model's CKCE, and the contributions of each sample and each pair of samples."""

    value: float  # the CKCE with its bias removed
    plug_in: float  # the CKCE
    error_bound: float  # of the CKCE, from the solver
    scores: Array  # contribution of a sample together with others, shape (n,)
    influences: Array  # first-order contribution, with the sample's own noise, up to a constant, shape (n,)
    residuals: Array  # r, shape (n, c)
    factor: SpectralFactor
    rows: np.ndarray  # samples whose pairs represent all pairs
    weights: Array  # B_ij between these, shape (rows, rows)

    @classmethod
    def of(
        cls, matrix: KernelOperator, residuals: Array, shift: float, rows: np.ndarray, *, seed: int
    ) -> CKCEExpansion:
        """Return the expansion for the kernel matrix K, the residuals E, shape (n, c), and n lambda.

        Pairs of `rows` represent all pairs.
        """
        factor = SpectralFactor.of(matrix, shift, rows, seed=seed)
        smoothed = _by_factor(factor, residuals) if factor.is_exact else _by_solver(factor, residuals, seed)
        leverages, diagonal = factor.diagonal(1), factor.diagonal(2)
        # (K + s I)^{-1} has the diagonal (1 - l_i) / s, which is at least 1 / (K_ii + s).
        xp = arrays.namespace(residuals)
        complements = xp.maximum(1 - leverages, shift / (shift + matrix.diagonal()))
        residuals_without = shift * smoothed.z / complements[:, None]
        b_without = smoothed.b - diagonal[:, None] * residuals_without
        bias = xp.sum(residuals * (diagonal[:, None] * residuals_without - 2 * leverages[:, None] * b_without))
        return cls(
            value=smoothed.value - float(bias),
            plug_in=smoothed.value,
            error_bound=smoothed.bound,
            scores=2 * linalg.row_products(residuals_without, b_without),
            influences=2 * shift * linalg.row_products(smoothed.z, smoothed.b),
            residuals=residuals_without,
            factor=factor,
            rows=rows,
            weights=factor.tile(2),
        )

    def between(self, rows: np.ndarray, columns: np.ndarray) -> Array:
        """Return B_ij of some of the `rows`, which are in order."""
        i, j = (arrays.like(np.searchsorted(self.rows, positions), self.weights) for positions in (rows, columns))
        return self.weights[i][:, j]

    def pairs(self, strip: slice) -> Array:
        """Return B_ij <r_i, r_j> of a strip of the `rows` and all of them."""
        r = self.residuals[arrays.like(self.rows, self.residuals)]
        return self.weights[strip] * linalg.matmul(r[strip], r.T)


@dataclass(frozen=True, eq=False)
class SpectralFactor:
    r"""K = P P^T + D with orthogonal columns of P, and D small relative to s I, for functions of K.

    These are :math:`f(K) = K (K + s I)^{-p}`, by diagonals and tiles. To first order in D the trace of f(K) is that of
    :math:`f(P P^\top)`, plus :math:`f'(\gamma_k) \langle u_k, D u_k\rangle` for each direction :math:`u_k` of P with
    eigenvalue :math:`\gamma_k`, plus f of the part of D outside of P, whose eigenvalues are taken to be equal. All
    entries of D are weighted by the number that gives this trace.
    """

    matrix: KernelOperator
    shift: float
    vectors: Array  # P, shape (n, rank)
    eigenvalues: np.ndarray  # of P P^T, shape (rank,)
    rest: Array  # diagonal of D, shape (n,)
    inside: np.ndarray  # <u_k, D u_k>, shape (rank,)
    mean_eigenvalue: float  # of D, weighted by the eigenvalues
    some_vectors: Array  # of the selected `rows`, shape (rows, rank)
    some_entries: Array  # K between these, shape (rows, rows)
    is_exact: bool  # whether D is rounding error

    @classmethod
    def of(cls, matrix: KernelOperator, shift: float, rows: np.ndarray, *, seed: int) -> SpectralFactor:
        """Return a factor with as many columns as needed; D is examined between `rows`."""
        rank, entries = min(matrix.n, RANK), None
        while True:
            contents = f"a factor of K with {rank} columns"
            check_memory(16 * matrix.n * rank, None, contents, "enlarge `regularization`", matrix.reference)
            entries = matrix.tile(rows, rows) if entries is None else entries
            factor = cls._of_rank(matrix, shift, rows, entries, rank, seed)
            if factor.is_exact or rank == matrix.n or factor.mean_eigenvalue <= SMALL_REST * shift:
                return factor
            rank = min(matrix.n, 2 * rank)

    @classmethod
    def _of_rank(
        cls, matrix: KernelOperator, shift: float, rows: np.ndarray, entries: Array, rank: int, seed: int
    ) -> SpectralFactor:
        result = partial_cholesky(matrix, rank, seed=seed)
        values, rotation = linalg.eigh(linalg.matmul(result.factor.T, result.factor))
        eigenvalues = arrays.to_host(values)
        positive = np.flatnonzero(eigenvalues > EPSILON * eigenvalues[-1])
        vectors = linalg.matmul(result.factor, rotation[:, arrays.like(positive, rotation)])
        eigenvalues, factor_rows = eigenvalues[positive], vectors[arrays.like(rows, vectors)]
        diagonal = matrix.diagonal()
        xp = arrays.namespace(diagonal)
        rest = xp.maximum(diagonal - linalg.row_products(vectors, vectors), 0.0)
        trace = float(xp.sum(diagonal))
        exact = result.trace_residual <= 2 * matrix.n * EPSILON * trace and shift >= SMALLEST_SHIFT * trace
        inside, mean_eigenvalue = np.zeros(len(eigenvalues)), 0.0
        if not exact:
            own_rest = rest[arrays.like(rows, rest)]
            inside, mean_eigenvalue = _of_rest(matrix, factor_rows, eigenvalues, own_rest, entries, float(xp.sum(rest)))
        return cls(matrix, shift, vectors, eigenvalues, rest, inside, mean_eigenvalue, factor_rows, entries, exact)

    def diagonal(self, power: int) -> Array:
        """Return the diagonal of K (K + s I)^{-power}, shape (n,)."""
        scales = arrays.like((self.eigenvalues + self.shift) ** -power, self.vectors)
        squares = linalg.matmul(self.vectors**2, scales[:, None])[:, 0]
        return squares + self._weight(power) * self.rest

    def tile(self, power: int) -> Array:
        """Return K (K + s I)^{-power} between the selected rows, shape (rows, rows)."""
        weight, vectors = self._weight(power), self.some_vectors
        scales = arrays.like((self.eigenvalues + self.shift) ** -power - weight, vectors)
        return linalg.matmul(vectors * scales, vectors.T) + weight * self.some_entries

    def _weight(self, power: int) -> float:
        trace = float(arrays.namespace(self.rest).sum(self.rest))
        if trace == 0:
            return 0.0
        shifted = self.eigenvalues + self.shift
        slopes = (self.shift + (1 - power) * self.eigenvalues) / shifted ** (power + 1)
        outside = trace - float(np.sum(self.inside))
        return float(self.inside @ slopes + outside / (self.shift + self.mean_eigenvalue) ** power) / trace


def _of_rest(
    matrix: KernelOperator, factor_rows: Array, eigenvalues: np.ndarray, own_rest: Array, entries: Array, trace: float
) -> tuple[np.ndarray, float]:
    """Return <u_k, D u_k> and the mean eigenvalue, from P, the diagonal of D, and K between some rows."""
    n, k, xp = matrix.n, len(factor_rows), arrays.namespace(factor_rows)
    of_samples, of_pairs = n / k, n * (n - 1) / max(1, k * (k - 1))
    between = entries - linalg.matmul(factor_rows, factor_rows.T)
    i = xp.arange(k)
    between[i, i] = 0.0
    images = linalg.matmul(between, factor_rows)
    products = arrays.to_host(xp.sum(factor_rows * images, axis=0))
    inside = of_pairs * products + of_samples * arrays.to_host(xp.sum(own_rest[:, None] * factor_rows**2, axis=0))
    total = of_pairs * linalg.squared_norm(between) + of_samples * linalg.squared_norm(own_rest)
    return inside / eigenvalues, total / trace if trace > 0 else 0.0


@dataclass(frozen=True, eq=False)
class _Smoothed:
    z: Array  # (K + s I)^{-1} E
    b: Array  # K (K + s I)^{-2} E
    value: float  # <E, b>
    bound: float  # of its error


def _by_factor(factor: SpectralFactor, residuals: Array) -> _Smoothed:
    vectors, eigenvalues = factor.vectors, arrays.like(factor.eigenvalues, factor.vectors)
    shifted = (eigenvalues + factor.shift)[:, None]
    cross = linalg.matmul(vectors.T, residuals)
    solution = cross / shifted
    z = (residuals - linalg.matmul(vectors, solution)) / factor.shift
    b = linalg.matmul(vectors, solution / shifted)
    gram = arrays.namespace(vectors).diag(eigenvalues)
    equations = NormalEquations(gram, cross, linalg.squared_norm(residuals))
    diagonal = factor.matrix.diagonal()
    xp = arrays.namespace(diagonal)
    rest_trace = float(xp.sum(factor.rest)) + EPSILON * float(xp.sum(diagonal))
    value = linalg.squared_norm(solution)
    return _Smoothed(z, b, value, trace_bound(equations, solution, factor.shift, rest_trace))


def _by_solver(factor: SpectralFactor, residuals: Array, seed: int) -> _Smoothed:
    matrix, shift, trace = factor.matrix, factor.shift, float(arrays.namespace(factor.rest).sum(factor.rest))
    vectors = factor.vectors if is_good_factor(len(factor.eigenvalues), matrix.n, trace, shift) else None
    certificate = Certificate(matrix, residuals, shift, VALUE_TOLERANCES["float64"])
    solver = AutomaticSolver(seed=seed)
    solution, verdict = solve_checked(matrix, residuals, shift, solver, judge=certificate, factor=vectors)
    certified = certificate.certify(solution.values, verdict)
    solver = AutomaticSolver(tol=TOLERANCE_OF_B, seed=seed)
    second, _ = solve_checked(matrix, solution.values, shift, solver, factor=vectors)
    b = solution.values - shift * second.values
    return _Smoothed(solution.values, b, certified.value, certified.bound)
