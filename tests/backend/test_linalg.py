"""Products of tall matrices in strips, and triangular systems a few rows at a time."""

import numpy as np
import pytest

from kcalib._backend import linalg


@pytest.mark.parametrize(("n", "r", "c"), [(1, 1, 1), (5, 3, 2), (3000, 40, 9), (70, 600, 500)])
def test_products_of_tall_matrices(n, r, c):
    rng = np.random.default_rng(n)
    left, right, small = rng.normal(size=(r, n)).T, rng.normal(size=(n, c)), rng.normal(size=(r, c))
    np.testing.assert_allclose(linalg.inner_products(left, right), left.T @ right, rtol=0, atol=1e-14 * n)
    np.testing.assert_allclose(linalg.combined(left, small), left @ small, rtol=0, atol=1e-14 * r)
    assert linalg.combined(left[:, :0], small[:0]).tolist() == np.zeros((n, c)).tolist()


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
