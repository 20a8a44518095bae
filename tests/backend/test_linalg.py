"""Products of tall matrices in strips, triangular systems a few rows at a time, and other work of one thread."""

import numpy as np
import pytest
import scipy

from kcalib._backend import linalg


@pytest.mark.parametrize(("n", "r", "c"), [(1, 1, 1), (5, 3, 2), (3000, 40, 9), (70, 600, 500)])
def test_products_of_tall_matrices(n, r, c):
    rng = np.random.default_rng(n)
    left, right, small = rng.normal(size=(r, n)).T, rng.normal(size=(n, c)), rng.normal(size=(r, c))
    np.testing.assert_allclose(linalg.inner_products(left, right), left.T @ right, rtol=0, atol=1e-14 * n)
    np.testing.assert_allclose(linalg.combined(left, small), left @ small, rtol=0, atol=1e-14 * r)
    assert linalg.combined(left[:, :0], small[:0]).tolist() == np.zeros((n, c)).tolist()


@pytest.mark.parametrize(("n", "r", "c"), [(1, 1, 1), (513, 4, 11), (40_003, 41, 9)])
def test_products_of_columns_have_the_same_bits_for_any_number_of_threads(n, r, c):
    rng = np.random.default_rng(r)
    left, right, small = rng.normal(size=(r, n)).T, rng.normal(size=(n, c)), rng.normal(size=(r, c))
    inner, combined = linalg.inner_products(left, right, 1), linalg.combined(left, small, 1)
    exact = left.T.astype(np.longdouble) @ right.astype(np.longdouble)
    assert np.max(np.abs(inner - exact)) <= 3e-15 * np.sqrt(n)
    for threads in (2, 3):
        np.testing.assert_array_equal(linalg.inner_products(left, right, threads), inner)
        np.testing.assert_array_equal(linalg.combined(left, small, threads), combined)
    np.testing.assert_allclose(combined, left @ small, rtol=0, atol=1e-14 * r)
    rows = linalg.combined(np.ascontiguousarray(left), small)  # by BLAS
    np.testing.assert_allclose(combined, rows, rtol=0, atol=1e-14 * r)


@pytest.mark.parametrize(("n", "r"), [(1, 1), (513, 41), pytest.param(40_003, 95, marks=pytest.mark.grid), (600, 300)])
def test_gram_matrices(n, r):
    columns = np.random.default_rng(r).normal(size=(r, n)).T
    gram = linalg.gram(columns, 1)
    exact = columns.T.astype(np.longdouble) @ columns.astype(np.longdouble)
    assert np.max(np.abs(gram - exact)) <= 1e-15 * n
    np.testing.assert_array_equal(gram, gram.T)
    for threads in (2, 3):
        np.testing.assert_array_equal(linalg.gram(columns, threads), gram)
    np.testing.assert_allclose(linalg.gram(np.ascontiguousarray(columns)), gram, rtol=0, atol=1e-14 * n)
    assert linalg.gram(columns[:, :0]).shape == (0, 0)


@pytest.mark.parametrize("k", [0, 1, 3, 4, 5, 8, 9, 50, 203, 512, 513])
def test_inverse_roots(k, monkeypatch):
    if 0 < k <= 512:
        monkeypatch.setattr("scipy.linalg.cholesky", None)  # whose threads stay awake beside the next sweep
    rng = np.random.default_rng(k)
    half = rng.normal(size=(k, k + 5)) * 10 ** rng.uniform(-3, 0, (k, 1))
    matrix = half @ half.T
    before = matrix.copy()
    inverse = linalg.inverse_root(matrix)
    np.testing.assert_array_equal(matrix, before)
    np.testing.assert_array_equal(np.triu(inverse, 1), np.zeros((k, k)))
    assert np.all(np.diagonal(inverse) > 0)
    np.testing.assert_allclose(inverse @ matrix @ inverse.T, np.eye(k), rtol=0, atol=2e-11)


@pytest.mark.parametrize(("k", "row"), [(1, 0), (6, 5), (40, 17), (600, 17)])
def test_inverse_roots_of_matrices_that_have_none(k, row):
    matrix = np.eye(k) + 0.5
    matrix[row, row] = -1.0
    message = f"not positive definite: row {row} shows it" if k <= 512 else "leading minor"  # LAPACK's
    with pytest.raises(np.linalg.LinAlgError, match=message):
        linalg.inverse_root(matrix)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (9, 9), (1000, 16), (70, 40), (200, 200)])
def test_orthonormal_columns(n, k, monkeypatch):
    columns = np.random.default_rng(n).normal(size=(n, k))
    if n * k > 2**13 or k > 32:
        monkeypatch.setattr("numpy.linalg.qr", None)  # whose threads stay awake beside the next sweep
    found = linalg.orthonormal(columns)
    np.testing.assert_allclose(found.T @ found, np.eye(k), rtol=0, atol=1e-14)
    triangle = found.T @ columns
    assert np.all(np.diag(triangle) > 0)
    np.testing.assert_allclose(np.tril(triangle, -1), 0, atol=1e-12 * np.sqrt(n))


@pytest.mark.parametrize("n", [50, 400])
def test_orthonormal_columns_that_nearly_depend_on_each_other(n):
    columns = np.random.default_rng(n).normal(size=(n, 40))
    columns[:, 1] = columns[:, 0] + 1e-11 * columns[:, 1]
    found = linalg.orthonormal(columns)
    np.testing.assert_allclose(found.T @ found, np.eye(40), rtol=0, atol=1e-13)


@pytest.mark.parametrize("k", [1, 7, 8, 20])
def test_triangular_systems_of_long_rows(k, monkeypatch):
    monkeypatch.setattr("scipy.linalg.solve_triangular", None)  # whose threads stay awake beside the next sweep
    rng = np.random.default_rng(k)
    root = np.tril(rng.normal(size=(k, k))) + k * np.eye(k)
    right = rng.normal(size=(500, k)).T
    before = right.copy()
    found = linalg.solve_triangular_rows(root, right)
    np.testing.assert_allclose(root @ found, right, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(right, before)


@pytest.mark.parametrize("k", [1, 2, 3, 9, 60, 100, 129, 512, 513])
def test_eigenvectors(k, monkeypatch):
    if k <= 512:
        monkeypatch.setattr("scipy.linalg.eigh", None)  # whose threads stay awake beside the next sweep
        monkeypatch.setattr("scipy.linalg.eigvalsh", None)
    rng = np.random.default_rng(k)
    rank = max(1, k - 2)  # the eigenvalue 0, twice
    half = rng.normal(size=(k, rank)) * 10 ** rng.uniform(-4, 0, rank)
    for matrix in (half @ half.T, np.diag(rng.normal(size=k))):
        before = matrix.copy()
        values, vectors = linalg.eigh(matrix)
        np.testing.assert_array_equal(matrix, before)
        size = np.abs(values).max()
        assert np.all(np.diff(values) >= 0)
        np.testing.assert_allclose(linalg.eigvalsh(matrix), values, rtol=0, atol=1e-14 * k * size)
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), rtol=0, atol=1e-13)
        np.testing.assert_allclose(matrix @ vectors, vectors * values, rtol=0, atol=1e-14 * k * size)


def test_eigenvectors_of_numbers_whose_squares_overflow_or_underflow():
    k = 70
    rng = np.random.default_rng(0)
    half = rng.normal(size=(k, k))
    shrunk = half * 10 ** -np.linspace(0, 200, k)[:, None]
    for matrix in (half @ half.T, np.eye(k) + 1e-161 * (half + half.T), shrunk @ shrunk.T, np.zeros((k, k))):
        for unit in (1e-305, 1e-160, 1e-157, 1.0, 1e150, 1e300):
            scaled = unit * matrix
            values, vectors = linalg.eigh(scaled)
            expected = scipy.linalg.eigvalsh(matrix)
            size = max(np.abs(expected).max(), 1e-300)
            np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), rtol=0, atol=1e-13)
            np.testing.assert_allclose(values / unit, expected, rtol=0, atol=1e-13 * size)
            image = (scaled / unit) @ vectors
            np.testing.assert_allclose(image, vectors * (values / unit), rtol=0, atol=1e-13 * k * size)


@pytest.mark.parametrize("size", [1, 2, 40])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_no_eigenvalues_of_what_is_not_finite(size, value):
    matrix = np.eye(size)
    matrix[-1, 0] = matrix[0, -1] = value
    for find in (linalg.eigh, linalg.eigvalsh):
        with pytest.raises(np.linalg.LinAlgError, match="not finite"):
            find(matrix)


def test_products_of_rows_and_sums_of_squares():
    rng = np.random.default_rng(0)
    left, right, values = rng.normal(size=(7, 5)), rng.normal(size=(600, 5)), rng.normal(size=(7, 600))
    found = linalg.cross_products(left, right, 1)
    np.testing.assert_allclose(found, [[sum(a * b) for b in right] for a in left], rtol=0, atol=1e-14)
    np.testing.assert_array_equal(linalg.cross_products(left, right, 3), found)
    assert linalg.weighted_squares(values) == pytest.approx(sum(v * v for v in values.flat), rel=1e-13)
    total = sum(w * v * v for v, w in zip(values.flat, found.flat, strict=True))
    assert linalg.weighted_squares(values, found) == pytest.approx(total, rel=1e-13)
