"""Kernel ridge systems against dense solves, pivoted Cholesky against a literal loop, limits and errors."""

from __future__ import annotations

import dataclasses
import functools
import tracemalloc

import numpy as np
import oracle
import pytest
from grid import some
from problems import DEFINITE_KERNELS, KERNELS, binomial_bounds, draw_labels, duplicates_problem, softmax_problem
from threadpoolctl import ThreadpoolController

import kcalib
from kcalib import solvers
from kcalib._backend import arrays
from kcalib.kernels import Exponential, Gaussian, Linear
from kcalib.methods import AutomaticSolver, Cholesky, ConjugateGradient, Nystrom
from kcalib.solvers import ConvergenceWarning, kernel_operator, pivoted_cholesky, solve
from kcalib.solvers._solve import solve_checked

EQUATION_8 = Linear() + Gaussian(bandwidth=0.4)
METHODS = {
    "cholesky": Cholesky(),
    "cg": ConjugateGradient(),
    "cg_plain": ConjugateGradient(rank=0),
    "cg_rank": ConjugateGradient(rank=30, seed=3),
    "cg_single": ConjugateGradient(products="float32"),
}


def to(tol: float, method):
    """The method with another tolerance."""
    return dataclasses.replace(method, tol=tol)


def of_rank(rank: int, method):
    """The method with a preconditioner of another rank, if it has one of a given rank."""
    return dataclasses.replace(method, rank=rank) if getattr(method, "rank", None) else method


def residuals(n: int, m: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Predictions p and onehot(y) - p: right sides as the CKCE has them, whose rows sum to 0."""
    y, p = softmax_problem(n, m, seed)
    return p, np.eye(m)[y] - p


def dense(kernel, p: np.ndarray) -> np.ndarray:
    return _dense(kernel, p.tobytes(), p.shape).copy()


@functools.cache
def _dense(kernel, points: bytes, shape: tuple[int, int]) -> np.ndarray:
    p = np.frombuffer(points).reshape(shape)
    return oracle.kernel_matrix(kernel, p, p).astype(np.float64)


def literal_residual(matrix: np.ndarray, b: np.ndarray, z: np.ndarray, shift: float) -> np.ndarray:
    """B - (K + s I) Z in extended precision."""
    k, z = matrix.astype(np.longdouble), z.astype(np.longdouble)
    return (b - (k @ z + shift * z)).astype(np.float64)


class UserOperator:
    """An operator of the user's, by its members alone; it counts products."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix
        self.n = len(matrix)
        self.products = 0

    def matmul(self, vectors, dtype="float64"):
        self.products += 1
        return (self.matrix.astype(dtype) @ vectors.astype(dtype)).astype(np.float64)

    def tile(self, rows, columns):
        return self.matrix[rows][:, columns]

    def diagonal(self):
        return np.diag(self.matrix)


# Against dense solves


@pytest.mark.parametrize("shift", some([1e-3, 1.0, 1e3], 1e-3))
@pytest.mark.parametrize("method", some(METHODS, "cholesky", "cg"))
@pytest.mark.parametrize("name", DEFINITE_KERNELS)
def test_solutions_are_those_of_a_dense_solve(name, method, shift):
    """|dZ| <= |R| / s, as (K + s I)^-1 has norm 1 / s at most; tol is that of R relative to B, for each column."""
    p, b = residuals(90, 3)
    matrix = dense(KERNELS[name], p)
    exact = np.linalg.solve(matrix + shift * np.eye(len(p)), b)
    found = solve(kernel_operator(p, KERNELS[name]), b, shift, method=to(1e-9, METHODS[method]))
    assert found.converged and found.relative_residual <= 1e-9
    rounding = 1e-12 * np.linalg.norm(exact) * (1 + np.linalg.norm(matrix, 2) / shift)  # of both solves
    assert np.linalg.norm(found.values - exact) <= 1e-9 * np.linalg.norm(b) / shift + rounding


@pytest.mark.parametrize("method", METHODS)
def test_one_column_and_many(method):
    p, b = residuals(120, 4)
    operator = kernel_operator(p, EQUATION_8)
    many = solve(operator, b, 2.0, method=to(1e-12, METHODS[method]))
    one = solve(operator, b[:, 1], 2.0, method=to(1e-12, METHODS[method]))
    assert one.values.shape == (120,) and many.values.shape == (120, 4)
    # Either is within tol |b| / s of the exact one.
    assert np.linalg.norm(one.values - many.values[:, 1]) <= 2e-12 * np.linalg.norm(b[:, 1]) / 2.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tol", [1e-3, 1e-7, 1e-11])
def test_the_residual_is_the_true_one(method, tol):
    """Up to rounding of a product in float64, and 1 per cent, which the recurrence may have (`KNOWN`)."""
    p, b = residuals(300, 3, seed=1)
    found = solve(kernel_operator(p, EQUATION_8), b, 5.0, method=to(tol, METHODS[method]))
    matrix = dense(EQUATION_8, p)
    true = literal_residual(matrix, b, found.values, 5.0)
    rounding = 1e-14 * np.linalg.norm(matrix, 2) * np.linalg.norm(found.values)
    assert found.residual == pytest.approx(np.linalg.norm(true), rel=0.01, abs=rounding)
    relative = np.max(np.linalg.norm(true, axis=0) / np.linalg.norm(b, axis=0))
    assert found.relative_residual == pytest.approx(relative, rel=0.01, abs=rounding / np.linalg.norm(b, axis=0).min())
    assert found.relative_residual <= tol


@pytest.mark.parametrize("method", METHODS)
def test_duplicates_and_a_matrix_of_low_rank(method):
    _, p = duplicates_problem(160, 3)
    b = np.random.default_rng(0).normal(size=(160, 5))
    for kernel in (Linear(), EQUATION_8):
        matrix = dense(kernel, p)
        found = solve(kernel_operator(p, kernel), b, 0.1, method=to(1e-11, METHODS[method]))
        exact = np.linalg.solve(matrix + 0.1 * np.eye(160), b)
        rounding = 1e-12 * np.linalg.norm(matrix, 2) / 0.1 * np.linalg.norm(exact)
        assert np.linalg.norm(found.values - exact) <= 1e-11 * np.linalg.norm(b) / 0.1 + rounding


@pytest.mark.parametrize("method", METHODS)
def test_zeros_no_columns_and_dependent_columns(method):
    p, b = residuals(100, 3)
    operator = kernel_operator(p, EQUATION_8)
    zeros = solve(operator, np.zeros((100, 2)), 1.0, method=METHODS[method])
    assert not zeros.values.any() and zeros.residual == 0 and zeros.relative_residual == 0 and zeros.converged
    none = solve(operator, np.empty((100, 0)), 1.0, method=METHODS[method])
    assert none.values.shape == (100, 0) and none.residual == 0 and none.converged
    mixed = np.column_stack([b[:, 0], np.zeros(100), b[:, 0], -3 * b[:, 0], 1e-200 * b[:, 1], 1e150 * b[:, 2]])
    found = solve(operator, mixed, 1.0, method=to(1e-11, METHODS[method]))
    exact = np.linalg.solve(dense(EQUATION_8, p) + np.eye(100), mixed)
    assert found.converged and not found.values[:, 1].any()
    for j in (0, 2, 3, 4, 5):
        assert np.linalg.norm((found.values - exact)[:, j]) <= 1e-11 * np.linalg.norm(mixed[:, j])


@pytest.mark.parametrize("method", METHODS)
def test_one_sample(method):
    few = of_rank(1, METHODS[method])
    found = solve(kernel_operator([[0.25, 0.75]], EQUATION_8), [[3.0, -1.0]], 0.5, method=few)
    # k(x, x) = 0.25^2 + 0.75^2 + 1
    np.testing.assert_allclose(found.values, np.array([[3.0, -1.0]]) / (0.625 + 1 + 0.5), rtol=1e-10)


def test_points_on_a_line_take_the_operator_in_n_log_n():
    y, p = softmax_problem(700, 2)
    b = np.eye(2)[y] - p
    operator = kernel_operator(p, Exponential(bandwidth=0.2))
    assert operator.name == "sorted"
    found = solve(operator, b, 3.0, method=ConjugateGradient(tol=1e-11))
    exact = np.linalg.solve(dense(Exponential(bandwidth=0.2), p) + 3 * np.eye(700), b)
    np.testing.assert_allclose(found.values, exact, rtol=0, atol=2e-11 * np.abs(exact).max() * 30)


def test_operators_of_the_user_and_dense_matrices():
    p, b = residuals(200, 3)
    matrix = dense(EQUATION_8, p)
    exact = np.linalg.solve(matrix + 4 * np.eye(200), b)
    for operator in (matrix, matrix.tolist(), UserOperator(matrix)):
        for method in METHODS.values():
            found = solve(operator, b, 4.0, method=to(1e-11, method))
            assert np.linalg.norm(found.values - exact) <= 1e-11 * np.linalg.norm(b)


def test_every_array_library(xp):
    """Solutions are NumPy arrays, but for right sides on an NVIDIA GPU arrays of their library there."""
    p, b = residuals(90, 3)
    operator = kernel_operator(xp.asarray(p), EQUATION_8)
    assert operator.name == xp.backend
    exact = np.linalg.solve(dense(EQUATION_8, p) + 2 * np.eye(90), b)
    right = xp.asarray(b)
    for matrix in (operator, xp.asarray(dense(EQUATION_8, p))):
        for method in ("cholesky", "cg"):
            found = solve(matrix, right, 2.0, method=method)
            assert found.converged
            assert isinstance(found.values, type(right) if xp.backend == "cuda" else np.ndarray)
            # |R| <= 1e-10 |B|, and (K + 2 I)^-1 has the norm 1 / 2 at most.
            assert np.linalg.norm(arrays.to_host(found.values) - exact) <= 1e-10 * np.linalg.norm(b)
    low = pivoted_cholesky(operator, 5)
    assert (
        low.factor.shape == (90, 5) and low.pivots.tolist() == pivoted_cholesky(dense(EQUATION_8, p), 5).pivots.tolist()
    )


def test_float32_points():
    p, b = residuals(200, 3)
    operator = kernel_operator(p, EQUATION_8, dtype="float32")
    found = solve(operator, b, 20.0, method="cg")
    exact = np.linalg.solve(dense(EQUATION_8, p) + 20 * np.eye(200), b)
    assert found.converged
    # Entries of K are rounded to float32, 1e-6 at most: |dZ| <= |dK| |Z| / s.
    assert np.linalg.norm(found.values - exact) <= 200 * 1e-6 * np.linalg.norm(exact) / 20


# Conjugate gradients


def test_the_preconditioner_saves_iterations():
    p, b = residuals(600, 5)
    operator = kernel_operator(p, EQUATION_8)
    iterations = [solve(operator, b, 0.5, method=ConjugateGradient(rank=rank)).iterations for rank in (0, 20, 100, 300)]
    assert iterations == sorted(iterations, reverse=True) and iterations[0] >= 3 * iterations[-1]


def test_the_callers_factor_is_the_preconditioner(monkeypatch):
    """None is made beside it; one of a given rank is."""
    p, b = residuals(600, 5)
    operator = kernel_operator(p, EQUATION_8)
    factor = pivoted_cholesky(operator, 100).factor
    made, _ = solve_checked(operator, b, 0.5, ConjugateGradient(rank=100))
    asked, _ = solve_checked(operator, b, 0.5, ConjugateGradient(rank=0), factor=factor)
    monkeypatch.setattr("kcalib.solvers.conjugate_gradient.partial_cholesky", None)
    given, _ = solve_checked(operator, b, 0.5, ConjugateGradient(), factor=factor)
    assert given.rank == 100 and asked.rank == 0
    assert given.iterations == made.iterations < asked.iterations
    np.testing.assert_allclose(given.values, made.values, rtol=0, atol=1e-9 * np.abs(made.values).max())


def test_a_residual_below_the_tolerance_is_not_computed_anew():
    """What rounding adds is small beside the tolerance, if not beside the residual."""
    p, b = residuals(600, 5)
    operator = Rounded(dense(EQUATION_8, p), 1e-7)
    found = solve(operator, b, 600**0.75, method=ConjugateGradient(tol=1e-6))
    assert found.converged and len(operator.asked) == found.iterations
    exact = b - operator.matrix @ found.values - 600**0.75 * found.values
    assert np.max(np.linalg.norm(exact, axis=0) / np.linalg.norm(b, axis=0)) < 1.02e-6


def test_products_are_counted():
    """One product for an iteration, and none more in float64; float32 needs some in float64."""
    p, b = residuals(300, 4)
    operator = UserOperator(dense(EQUATION_8, p))
    found = solve(operator, b, 10.0, method=ConjugateGradient(products="float64"))
    assert operator.products == found.iterations < 10
    operator.products = 0
    found = solve(operator, b, 10.0, method=ConjugateGradient(products="float32"))
    assert found.iterations < operator.products <= found.iterations + 5


class Rounded:
    """A dense matrix that remembers the precisions of its products; those in float32 are off by `error`."""

    def __init__(self, matrix, error):
        self.matrix, self.error, self.n, self.asked = matrix, error, len(matrix), []

    def matmul(self, vectors, dtype="float64"):
        self.asked.append(dtype)
        found = self.matrix @ vectors
        if dtype == "float32":
            found += self.error * np.random.default_rng(len(self.asked)).normal(size=found.shape)
        return found

    def tile(self, rows, columns):
        return self.matrix[rows][:, columns]

    def diagonal(self):
        return np.diagonal(self.matrix)


@pytest.mark.parametrize(("error", "single"), [(1e-10, True), (1e-2, False)])
@pytest.mark.parametrize("by_judge", [False, True])
def test_last_products_are_in_float32_where_their_errors_do_not_count(error, single, by_judge):
    """The residual that is returned is right to 1 % of what was asked for; bad products are found, and made anew."""
    from kcalib.solvers.certificate import Certificate

    p, b = residuals(900, 5)
    operator = Rounded(dense(EQUATION_8, p), error)
    if by_judge:
        judge = Certificate(operator, b, 30.0, 1e-8)
        found, _ = solve_checked(operator, b, 30.0, ConjugateGradient(rank=60, seed=1), judge=judge)
    else:
        found = solve(operator, b, 30.0, method=ConjugateGradient(rank=60, seed=1, tol=1e-8))
    assert found.converged and operator.asked[0] == "float64"
    singles = operator.asked.count("float32")
    assert singles == 1
    residual = b - (operator.matrix @ found.values + 30.0 * found.values)
    assert np.linalg.norm(residual) == pytest.approx(found.residual, rel=0.02)
    assert len(operator.asked) == found.iterations + (not single)


def test_a_last_product_in_float32_goes_far_below_the_tolerance():
    """Its error is small beside the tolerance, if not beside what is left of the residual."""
    p, b = residuals(900, 5)
    operator = Rounded(dense(EQUATION_8, p), 1e-8)
    found = solve(operator, b, 600.0, method=ConjugateGradient(rank=100, seed=1, tol=1e-8))
    assert operator.asked == ["float64", "float32"] and found.relative_residual < 0.1 * 1e-8
    exact = b - (operator.matrix @ found.values + 600.0 * found.values)
    of_columns = np.linalg.norm(exact, axis=0) / np.linalg.norm(b, axis=0)
    assert np.max(of_columns) == pytest.approx(found.relative_residual, rel=0, abs=0.01 * 1e-8)


def test_a_block_needs_fewer_products_than_a_column():
    p, b = residuals(500, 10)
    operator = kernel_operator(p, EQUATION_8)
    alone = solve(operator, b[:, 0], 1.0, method=ConjugateGradient(rank=0)).iterations
    assert solve(operator, b, 1.0, method=ConjugateGradient(rank=0)).iterations <= 0.6 * alone


@pytest.mark.parametrize("method", METHODS)
def test_accept_decides(method):
    p, b = residuals(300, 3)
    seen = []

    def accept(z, r):
        assert z.shape == r.shape == b.shape
        seen.append(np.linalg.norm(r))
        return seen[-1] <= 1e-6

    found = solve(kernel_operator(p, EQUATION_8), b, 10.0, accept=accept, method=METHODS[method])
    assert found.converged and found.residual <= 1e-6 and found.residual == pytest.approx(seen[-1])
    if method != "cholesky":
        assert found.residual > 1e-13  # it did not go on to the default tol
    if method in ("cg", "cg_plain", "cg_rank"):
        assert len(seen) == found.iterations + 1  # once for each solution, that of zeros included
    either = solve(kernel_operator(p, EQUATION_8), b, 10.0, accept=lambda z, r: False, method=to(1e-5, METHODS[method]))
    assert either.converged and either.relative_residual <= 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_a_tolerance_out_of_reach_gives_the_best_and_a_warning(method):
    p, b = residuals(200, 3)
    with pytest.warns(ConvergenceWarning, match="not 1e-20"):
        found = solve(kernel_operator(p, EQUATION_8), b, 1.0, method=to(1e-20, METHODS[method]))
    assert not found.converged and found.relative_residual < 1e-12 and np.isfinite(found.values).all()
    with pytest.warns(ConvergenceWarning, match="`accept` was not met"):
        found = solve(kernel_operator(p, EQUATION_8), b, 1.0, accept=lambda z, r: False, method=METHODS[method])
    assert not found.converged and found.relative_residual < 1e-12


def test_an_accept_that_zeros_do_not_meet():
    for method in METHODS.values():
        with pytest.warns(ConvergenceWarning):
            found = solve(np.eye(4), np.zeros(4), 1.0, accept=lambda z, r: False, method=of_rank(3, method))
        assert not found.converged and not found.values.any()


def test_too_few_iterations_give_the_best_and_a_warning():
    p, b = residuals(400, 3)
    operator = kernel_operator(p, EQUATION_8)
    with pytest.warns(ConvergenceWarning, match="after 3 iterations; pass methods.ConjugateGradient with"):
        found = solve(operator, b, 0.1, method=ConjugateGradient(rank=0, max_iterations=3))
    assert not found.converged and found.iterations == 3
    true = literal_residual(dense(EQUATION_8, p), b, found.values, 0.1)
    assert found.residual == pytest.approx(np.linalg.norm(true), rel=1e-9)


@pytest.mark.parametrize("products", ["float64", "float32"])
def test_a_very_small_shift_ends(products):
    """Condition 1e15 and beyond: whatever is returned is finite, with its true residual."""
    p, b = residuals(120, 3)
    method = ConjugateGradient(products=products, tol=1e-12, max_iterations=300)
    with pytest.warns(ConvergenceWarning):
        found = solve(kernel_operator(p, EQUATION_8), b, 1e-13, method=method)
    true = literal_residual(dense(EQUATION_8, p), b, found.values, 1e-13)
    rounding = 1e-14 * 200 * np.linalg.norm(found.values)
    assert found.residual == pytest.approx(np.linalg.norm(true), rel=0.01, abs=rounding)


def test_auto():
    p, b = residuals(1200, 3)
    few = solve(kernel_operator(p[:300], EQUATION_8), b[:300], 10.0)
    assert (few.method, few.iterations, few.rank) == ("cholesky", 0, 0)
    operator = kernel_operator(p, EQUATION_8)
    many = solve(operator, b, 1200**0.75)
    assert many.method == "cg" and many.rank > 0 and many.converged
    hard = solve(operator, b, 1e-3)
    assert hard.method == "cholesky" and "iterations of conjugate gradients" in hard.method_reason and hard.converged
    short = solve(kernel_operator(p[:300], EQUATION_8), b[:300], 10.0, max_memory=500_000)
    assert short.method == "cg" and "memory" in short.method_reason
    exact = solve(kernel_operator(p[:300], EQUATION_8), b[:300], 10.0, method=AutomaticSolver(tol=1e-3))
    assert np.array_equal(exact.values, few.values)
    np.testing.assert_allclose(short.values, few.values, rtol=0, atol=1e-10 * np.linalg.norm(b[:300]) / 10)


def test_memory_is_linear_in_n():
    """Far below the 8 n^2 bytes of K, and below what the solution says."""
    p, b = residuals(4000, 3)
    operator = kernel_operator(p, EQUATION_8)
    tracemalloc.start()
    try:
        found = solve(operator, b, 4000**0.75, method=ConjugateGradient(rank=60))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.rank == 60
    assert peak <= found.memory <= 8 * 4000 * 200 < 8 * 4000**2 / 15


def test_cholesky_holds_one_matrix():
    p, b = residuals(1500, 3)
    tracemalloc.start()
    try:
        found = solve(kernel_operator(p, EQUATION_8), b, 10.0, method="cholesky")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 8 * 1500**2 <= peak <= found.memory < 1.5 * 8 * 1500**2


# Pivoted Cholesky


def literal_partial_cholesky(matrix: np.ndarray, pivots: np.ndarray) -> np.ndarray:
    """Column after column, the Schur complement in full."""
    rest, columns = matrix.astype(np.longdouble), []
    for i in pivots:
        columns.append(rest[:, i] / np.sqrt(rest[i, i]))
        rest = rest - np.outer(columns[-1], columns[-1])
    return np.column_stack(columns).astype(np.float64)


@pytest.mark.parametrize("options", [{}, {"block_size": 1}, {"block_size": 50}, {"pivoting": "greedy"}], ids=str)
@pytest.mark.parametrize("name", ["exponential", "gaussian", "linear+gaussian"])
def test_pivoted_cholesky_is_the_literal_loop(name, options):
    _, p = softmax_problem(120, 4)
    matrix = dense(KERNELS[name], p)
    found = pivoted_cholesky(kernel_operator(p, KERNELS[name]), 12, **options)
    assert found.factor.shape == (120, 12) and len(set(found.pivots.tolist())) == 12
    np.testing.assert_allclose(found.factor, literal_partial_cholesky(matrix, found.pivots), rtol=0, atol=1e-10)
    left = matrix - found.factor @ found.factor.T
    assert found.trace_residual == pytest.approx(np.trace(left), rel=1e-9)
    assert np.linalg.eigvalsh(left)[0] > -1e-10


def test_greedy_pivots_are_the_largest():
    _, p = softmax_problem(80, 3)
    rest = dense(EQUATION_8, p)
    for pivot in pivoted_cholesky(rest, 6, pivoting="greedy").pivots:
        assert rest[pivot, pivot] == pytest.approx(np.diag(rest).max(), rel=1e-9)
        rest = rest - np.outer(rest[:, pivot], rest[:, pivot]) / rest[pivot, pivot]


@pytest.mark.parametrize("block_size", [1, 4])
def test_random_pivots_have_their_law(block_size):
    """The first two pivots of three rows, in 500 draws: P(i, j) = d_i / tr K times that of j in what i leaves."""
    matrix = np.array([[2.0, 1.2, 0.3], [1.2, 1.0, 0.1], [0.3, 0.1, 0.5]])
    draws = [pivoted_cholesky(matrix, 2, block_size=block_size, seed=s).pivots for s in range(500)]
    for i in range(3):
        left = np.diag(matrix - np.outer(matrix[i], matrix[i]) / matrix[i, i])
        for j in set(range(3)) - {i}:
            expected = matrix[i, i] / 3.5 * left[j] / (left.sum() - left[i])
            low, high = binomial_bounds(500, expected)
            assert low <= np.mean([tuple(d) == (i, j) for d in draws]) <= high


def test_rank_and_tolerance():
    _, p = softmax_problem(200, 3)
    operator = kernel_operator(p, Linear())
    for pivoting in ("random", "greedy"):
        found = pivoted_cholesky(operator, 50, pivoting=pivoting)
        assert found.rank == 3  # all that K has
        np.testing.assert_allclose(found.factor @ found.factor.T, p @ p.T, rtol=0, atol=1e-13)
    assert pivoted_cholesky(operator, 0).factor.shape == (200, 0)
    assert pivoted_cholesky(operator, 0).trace_residual == pytest.approx(np.sum(p**2))
    trace = np.sum(p**2) + 200
    found = pivoted_cholesky(kernel_operator(p, EQUATION_8), 200, tol=0.01)
    assert found.trace_residual <= 0.01 * trace and found.rank < 100
    full = pivoted_cholesky(kernel_operator(p, Exponential(bandwidth=0.01)), 200)
    assert full.rank == 200 and full.trace_residual <= 1e-12 * 200


def test_seeds():
    _, p = softmax_problem(300, 4)
    operator = kernel_operator(p, EQUATION_8)
    a, b, c = (pivoted_cholesky(operator, 20, seed=seed) for seed in (1, 1, 2))
    assert (a.pivots == b.pivots).all() and (a.factor == b.factor).all() and (a.pivots != c.pivots).any()


def test_a_matrix_of_zeros():
    found = pivoted_cholesky(np.zeros((5, 5)), 3)
    assert found.rank == 0 and found.trace_residual == 0
    for method in METHODS.values():
        found = solve(np.zeros((5, 5)), np.arange(5.0), 2.0, method=of_rank(3, method))
        np.testing.assert_allclose(found.values, np.arange(5) / 2, rtol=1e-15)


# What is refused


@pytest.mark.parametrize("method", [name for name in METHODS if name != "cg_rank"])
def test_an_indefinite_matrix_is_an_error_naming_it(method):
    matrix = np.diag(np.array([1.0] * 9 + [-3.0]))
    with pytest.raises(ValueError, match=r"(not positive definite|not positive semi-definite).*dense matrix"):
        solve(matrix, np.ones(10), 1.0, method=METHODS[method])


def test_an_indefinite_kernel_is_an_error_naming_it():
    """Hidden in the diagonal, seen by pivots and directions: the distance itself is no kernel."""
    rng = np.random.default_rng(0)
    p = rng.normal(size=(40, 2))
    matrix = 0.5 - np.linalg.norm(p[:, None] - p, axis=-1)
    for method in METHODS.values():
        with pytest.raises(ValueError, match="not positive"):
            solve(matrix, rng.normal(size=40), 0.1, method=method)
    for pivoting in ("random", "greedy"):
        with pytest.raises(ValueError, match="not positive semi-definite"):
            pivoted_cholesky(matrix, 10, pivoting=pivoting)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"shift": 0.0}, ValueError, "`shift` is 0.0, expected a positive finite number"),
        ({"shift": -1.0}, ValueError, "`shift`"),
        ({"shift": np.inf}, ValueError, "`shift`"),
        ({"shift": np.nan}, ValueError, "`shift`"),
        ({"shift": "1"}, TypeError, "`shift`"),
        ({"accept": 3}, TypeError, "`accept`"),
        ({"right_sides": np.ones(9)}, ValueError, r"`right_sides` has shape \(9,\), expected \(10,\) or \(10, c\)"),
        ({"right_sides": np.ones((10, 1, 1))}, ValueError, "`right_sides` has shape"),
        ({"right_sides": np.array([1.0] * 9 + [np.nan])}, ValueError, r"`right_sides\[9\]` is nan"),
        ({"right_sides": np.full((10, 2), np.inf)}, ValueError, r"`right_sides\[0, 0\]` is inf"),
        ({"right_sides": np.array(["a"] * 10)}, TypeError, "`right_sides` has dtype"),
        ({"method": "lu"}, ValueError, "`method` is 'lu'"),
        ({"method": "nystrom"}, ValueError, "`method` is 'nystrom', expected one of 'auto', 'cholesky', 'cg'"),
        ({"method": Nystrom()}, ValueError, "`method` is Nystrom"),
        ({"method": ConjugateGradient}, TypeError, "pass an object"),
        ({"method": ConjugateGradient(rank=11)}, ValueError, "`rank` is 11, expected an integer between 0 and 10"),
        ({"max_memory": 0}, ValueError, "`max_memory`"),
        ({"method": "cholesky", "max_memory": 100}, MemoryError, "use method='cg'"),
        ({"method": "cg", "max_memory": 100}, MemoryError, "pass a smaller rank="),
        ({"operator": np.ones((10, 9))}, ValueError, r"`operator` has shape \(10, 9\)"),
        ({"operator": np.triu(np.ones((10, 10)))}, ValueError, r"`operator\[\d, \d\]` is .*symmetrise it"),
        ({"operator": np.full((10, 10), np.nan)}, ValueError, r"`operator\[0, 0\]` is nan"),
        ({"operator": 3}, TypeError, "lacks n, matmul, tile, diagonal"),
    ],
    ids=str,
)
def test_errors(change, error, message):
    arguments = {"operator": np.eye(10), "right_sides": np.ones(10), "shift": 1.0} | change
    with pytest.raises(error, match=message):
        solve(**arguments)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rank": 6}, ValueError, "`rank` is 6"),
        ({"tol": 1.0}, ValueError, "`tol`"),
        ({"tol": np.nan}, ValueError, "`tol`"),
        ({"pivoting": "best"}, ValueError, "`pivoting`"),
        ({"block_size": 0}, ValueError, "`block_size`"),
        ({"pivoting": "greedy", "block_size": 2}, ValueError, "greedy pivots come one at a time"),
        ({"operator": np.diag([1.0, -1e-3, 1, 1, 1])}, ValueError, "has -0.001 at 1"),
    ],
    ids=str,
)
def test_errors_of_pivoted_cholesky(change, error, message):
    with pytest.raises(error, match=message):
        pivoted_cholesky(**({"operator": np.eye(5), "rank": 2} | change))


@pytest.mark.parametrize(
    ("points", "options", "error", "message"),
    [
        ([[0.5, np.nan]], {}, ValueError, r"`points\[0, 1\]` is nan"),
        ([0.5, 0.1], {}, ValueError, "`points` has shape"),
        (np.empty((0, 2)), {}, ValueError, "`points` has no rows"),
        ([["a"]], {}, TypeError, "`points` has dtype"),
        ([[0.5]], {"kernel": "rbf"}, TypeError, "`kernel` is 'rbf'"),
        ([[0.5]], {"dtype": "float16"}, ValueError, "`dtype`"),
        ([[0.5]], {"backend": "opencl"}, ValueError, "`backend`"),
    ],
    ids=str,
)
def test_errors_of_kernel_operator(points, options, error, message):
    with pytest.raises(error, match=message):
        kernel_operator(points, **({"kernel": Linear()} | options))


def test_a_product_that_is_not_finite_is_an_error():
    operator = UserOperator(np.eye(10))
    operator.matmul = lambda vectors, dtype="float64": np.full(vectors.shape, np.nan)
    for method in (ConjugateGradient(rank=0), "cholesky"):
        with pytest.raises(ValueError, match="is not finite"):
            solve(operator, np.ones(10), 1.0, method=method)


def test_results_are_frozen_and_shown():
    found, low = solve(np.eye(3), np.ones(3), 1.0), pivoted_cholesky(np.eye(3), 2)
    assert "Solution(shape=(3,), method='cholesky'" in repr(found)
    assert repr(low) == "LowRank(n=3, rank=2, trace_residual=1)"
    for result, name in ((found, "values"), (low, "factor")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, name, None)
    assert set(solvers.__all__) <= set(dir(solvers))


def test_a_small_shift_leaves_the_preconditioner_its_digits():
    """With the inverse of the small matrix, not its roots, it takes four times as many iterations."""
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.full(10, 50.0), size=900)
    y = draw_labels(p, rng)
    found = kcalib.ckce.result(
        y, p, kernel=Exponential(bandwidth=0.3), regularization=1e-10, method=ConjugateGradient()
    )
    assert found.iterations < 220


def test_same_bits_for_any_number_of_threads():
    """Neither ours nor BLAS's count."""
    rng = np.random.default_rng(0)
    p, b = rng.dirichlet(np.ones(4), size=1200), rng.normal(size=(1200, 5))
    methods = ConjugateGradient(seed=0), ConjugateGradient(seed=0, products="float32"), Cholesky()
    found = []
    for threads, blas_threads in ((1, 1), (2, 1), (1, 2), (5, 2)):
        matrix = kernel_operator(p, Linear() + Gaussian(bandwidth=0.3), threads=threads)
        with ThreadpoolController().limit(limits=blas_threads, user_api="blas"):
            solutions = [solve(matrix, b, 9.0, method=method).values for method in methods]
            found.append([pivoted_cholesky(matrix, 40).factor, *solutions])
    for others in zip(*found, strict=True):
        for other in others[1:]:
            np.testing.assert_array_equal(other, others[0])
