"""Shifted Kronecker systems against dense solves, and in higher precision; limits and errors."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import scipy.linalg

from kcalib._backend import arrays
from kcalib.solvers import kronecker

EPSILON = 2.0**-52


def drawn(n: int, kind: str, seed: int) -> np.ndarray:
    matrix = np.random.default_rng(seed).normal(size=(n, n))
    return matrix + matrix.T if kind == "symmetric" else matrix


def dense_solution(a: np.ndarray, b: np.ndarray, right: np.ndarray, shift: float) -> tuple[np.ndarray, float]:
    """By the Kronecker product itself, and the condition number."""
    system = np.kron(a, b) + shift * np.eye(len(a) * len(b))
    return np.linalg.solve(system, right), float(np.linalg.cond(system))


def test_by_hand():
    """A has the eigenvector (1, 1) for 3, B has (0, 1) for 5: with s = 1 their product is divided by 16."""
    system = kronecker([[2, 1], [1, 2]], [[4, 0], [0, 5]])
    assert np.allclose(system.solve([0, 1, 0, 1], 1).values, [0, 1 / 16, 0, 1 / 16], rtol=0, atol=1e-16)
    # (1, -1) for 1 and (1, 0) for 4.
    assert np.allclose(system.solve([1, 0, -1, 0], 1).values, [1 / 5, 0, -1 / 5, 0], rtol=0, atol=1e-16)


def test_by_hand_not_symmetric():
    """A = [[1, 1], [0, 1]] and B = (2), s = 1: 3 x_2 = b_2, 3 x_1 + 2 x_2 = b_1."""
    found = kronecker([[1, 1], [0, 1]], [[2]]).solve([5, 3], 1)
    assert found.method == "schur"
    assert np.allclose(found.values, [1, 1], rtol=1e-15)


@pytest.mark.parametrize("kinds", [("symmetric",) * 2, ("symmetric", "general"), ("general", "symmetric"), ("g",) * 2])
@pytest.mark.parametrize("sizes", [(5, 4), (1, 6), (6, 1), (1, 1)])
def test_is_the_dense_solution(kinds, sizes):
    a, b = (drawn(n, kind, seed) for n, kind, seed in zip(sizes, kinds, (0, 1), strict=True))
    system = kronecker(a, b)
    n = len(a) * len(b)
    assert system.shape == (n, n)
    right = np.random.default_rng(2).normal(size=(n, 3))
    shifts = [0.4, -0.7, 30.0]
    found = system.solve(right, shifts)
    assert found.values.shape == (3, n, 3)
    for shift, values, residual in zip(shifts, found.values, found.relative_residual, strict=True):
        expected, condition = dense_solution(a, b, right, shift)
        bound = 50 * condition * EPSILON
        assert np.linalg.norm(values - expected) <= bound * np.linalg.norm(expected)
        literal = right - (np.kron(a, b) @ values + shift * values)
        sizes_of = np.linalg.norm(literal, axis=0) / np.linalg.norm(right, axis=0)
        assert residual == pytest.approx(sizes_of.max(), abs=50 * EPSILON * (1 + np.linalg.norm(values)))
        assert residual <= bound
        assert np.array_equal(values, system.solve(right, shift).values)


def test_vectors_columns_and_matrices_are_the_same():
    system = kronecker(drawn(4, "general", 3), drawn(3, "general", 4))
    matrix = np.random.default_rng(5).normal(size=(4, 3))
    of_matrix = system.solve(matrix, 0.5).values
    assert of_matrix.shape == (4, 3)
    assert np.array_equal(of_matrix.reshape(-1), system.solve(matrix.reshape(-1), 0.5).values)
    assert np.array_equal(of_matrix.reshape(-1, 1), system.solve(matrix.reshape(-1, 1), 0.5).values)
    a, b = system._left, system._right
    assert np.allclose(a @ of_matrix @ b.T + 0.5 * of_matrix, matrix, rtol=1e-12)
    assert system.solve(np.empty((12, 0)), [0.5, 1.0]).values.shape == (2, 12, 0)


@pytest.mark.parametrize(("decomposition", "kind"), [("eigh", "symmetric"), ("schur", "general")])
def test_one_decomposition_if_both_are_the_same(monkeypatch, decomposition, kind):
    calls = []
    real = getattr(scipy.linalg, decomposition)
    monkeypatch.setattr(scipy.linalg, decomposition, lambda *a, **k: calls.append(1) or real(*a, **k))
    a = drawn(4, kind, 0)
    system, right = kronecker(a), np.arange(16.0)
    for shift in (0.5, 1.5):
        expected, condition = dense_solution(a, a, right, shift)
        assert np.allclose(system.solve(right, shift).values, expected, rtol=50 * condition * EPSILON)
    assert len(calls) == 1


@pytest.mark.parametrize("shift", [1e-3, 1e-8])
def test_ill_conditioned_in_higher_precision(shift):
    """Hilbert matrices, of condition 15,514 and 524: products of eigenvalues from 4e-7 to 2, so that s decides."""
    n_a, n_b = 4, 3
    a, b = (1.0 / (np.arange(n)[:, None] + np.arange(n) + 1) for n in (n_a, n_b))
    right = np.arange(1.0, 13.0)
    with mpmath.workdps(50):
        exact = [mpmath.matrix(m.tolist()) for m in (a, b)]
        system = mpmath.matrix(12, 12)
        for i in range(12):
            for j in range(12):
                product = exact[0][i // 3, j // 3] * exact[1][i % 3, j % 3]
                system[i, j] = product + (mpmath.mpf(shift) if i == j else 0)
        expected = np.array([float(x) for x in mpmath.lu_solve(system, mpmath.matrix(right.tolist()))])
    found = kronecker(a, b).solve(right, shift)
    condition = 1 + 2.0 / (4e-7 + shift)
    assert np.linalg.norm(found.values - expected) <= 10 * condition * EPSILON * np.linalg.norm(expected)
    assert found.truncated == (0, 0)


def test_eigenvalues_below_rounding_are_zero():
    a = np.ones((3, 3))
    system = kronecker(a, np.eye(2))
    assert system.truncated == (2, 0)
    right = np.arange(6.0)
    expected, _ = dense_solution(a, np.eye(2), right, 0.5)
    found = system.solve(right, 0.5)
    assert found.truncated == (2, 0)
    assert np.allclose(found.values, expected, rtol=1e-14)
    assert np.allclose(kronecker(np.zeros((2, 2))).solve([1, 2, 3, 4], 2).values, [0.5, 1, 1.5, 2])


def test_rotations_have_complex_eigenvalues():
    """Eigenvalues i and -i: products 1 and -1."""
    system = kronecker([[0, -1], [1, 0]])
    found = system.solve(np.eye(4), 3.0)
    assert np.isrealobj(found.values)
    assert np.allclose(found.values, dense_solution(*[system._left] * 2, np.eye(4), 3.0)[0], rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("a", "b", "shift", "product"),
    [
        ([[1, 2], [2, 1]], None, 3.0, "-1 times 3"),  # eigenvalues -1 and 3
        ([[1, 1], [1, 1]], [[2]], 0.0, "0 times 2"),
        ([[0, -1], [1, 0]], None, 1.0, r"\(0\+1j\) times \(0\+1j\)"),
        ([[1, 5], [0, 2]], [[-3]], 3.0, "1 times -3"),
    ],
)
def test_singular_systems_are_refused(a, b, shift, product):
    system = kronecker(a, b)
    right = np.ones(system.shape[0])
    with pytest.raises(ValueError, match=f"is singular: .*product {product} is minus the shift .*; take a shift that"):
        system.solve(right, [50.0, shift])
    assert system.solve(right, shift + 0.1).relative_residual < 1e-13


def test_bad_input():
    with pytest.raises(ValueError, match=r"`left` has shape \(2, 3\), expected \(n, n\)"):
        kronecker(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"`right` has shape \(0, 0\)"):
        kronecker(np.ones((2, 2)), np.ones((0, 0)))
    with pytest.raises(ValueError, match=r"`left\[0, 1\]` is nan, expected a finite number"):
        kronecker([[1.0, np.nan], [0.0, 1.0]])
    with pytest.raises(TypeError, match="`left` has dtype complex128, expected real numbers"):
        kronecker(np.eye(2) * 1j)
    system = kronecker(np.eye(2), np.eye(3))
    for shape in ((5,), (3, 2), (5, 6), (6, 1, 1), ()):
        with pytest.raises((ValueError, TypeError), match="`right_sides`"):
            system.solve(np.ones(shape), 1.0)
    with pytest.raises(ValueError, match=r"`right_sides\[2\]` is inf"):
        system.solve([1, 1, np.inf, 1, 1, 1], 1.0)
    for shift in (np.nan, np.inf, [1.0, np.nan], [], [[1.0]]):
        with pytest.raises(ValueError, match="`shift"):
            system.solve(np.ones(6), shift)
    for shift in (True, None, "1", 1j):
        with pytest.raises(TypeError, match="`shift"):
            system.solve(np.ones(6), shift)


def test_repr_says_what_was_done():
    system = kronecker(np.ones((2, 2)))
    assert repr(system) == "<Kronecker of A (2, 2) and B (2, 2), by eigendecompositions>"
    assert repr(system.solve(np.zeros(4), 1.0)) == (
        "KroneckerSolution(shape=(4,), method='eigendecompositions', relative_residual=0, truncated=(1, 1))"
    )


def test_array_libraries(xp):
    a, right = np.array([[2.0, 1.0], [1.0, 3.0]]), np.arange(4.0)
    found = kronecker(xp.asarray(a)).solve(xp.asarray(right), 0.5).values
    expected = kronecker(a).solve(right, 0.5).values
    if xp.backend == "cuda":
        assert type(found) is type(xp.asarray(a))
        assert np.allclose(arrays.to_host(found), expected, rtol=1e-14, atol=0)
    else:
        assert type(found) is np.ndarray
        assert np.array_equal(found, expected)
