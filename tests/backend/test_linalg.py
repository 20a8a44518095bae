"""Dense linear algebra against its definitions, and the limit on BLAS's threads."""

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy
from threadpoolctl import ThreadpoolController

from kcalib._backend import linalg
from kcalib._backend.threads import one_blas_thread

EPSILON = 2.0**-52


@pytest.mark.parametrize("k", [1, 2, 3, 9, 60, 513])
def test_eigenvectors(k):
    rng = np.random.default_rng(k)
    rank = max(1, k - 2)  # the eigenvalue 0, twice
    half = rng.normal(size=(k, rank)) * 10 ** rng.uniform(-4, 0, rank)
    for matrix in (half @ half.T, np.diag(rng.normal(size=k))):
        before = matrix.copy()
        values, vectors = linalg.eigh(matrix)
        np.testing.assert_array_equal(matrix, before)
        # Householder reflections and divide and conquer are backward stable: errors of a few k epsilon (LAPACK Users'
        # Guide, section 4.7; it measures a tenth of it here).
        bound = 4 * k * EPSILON
        size = np.abs(values).max()
        assert np.all(np.diff(values) >= 0)
        np.testing.assert_allclose(linalg.eigvalsh(matrix), values, rtol=0, atol=bound * size)
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), rtol=0, atol=bound)
        np.testing.assert_allclose(matrix @ vectors, vectors * values, rtol=0, atol=bound * size)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_eigenvalues_of_what_is_not_finite(value):
    matrix = np.eye(40)
    matrix[-1, 0] = matrix[0, -1] = value
    for find in (linalg.eigh, linalg.eigvalsh):
        with pytest.raises(ValueError, match="infs or NaNs"):
            find(matrix)


@pytest.mark.parametrize("order", ["C", "F"])
def test_cholesky_factors(order):
    half = np.random.default_rng(0).normal(size=(30, 40))
    matrix, right = np.array(half @ half.T, order=order), half[:, :3]
    before = matrix.copy()
    root = linalg.cholesky(matrix)
    np.testing.assert_array_equal(matrix, before)
    np.testing.assert_allclose(root @ root.T, matrix, rtol=1e-13)
    np.testing.assert_array_equal(np.triu(root, 1), 0)
    for factor in (np.asfortranarray(root), np.ascontiguousarray(root)):
        np.testing.assert_allclose(matrix @ linalg.cholesky_solve(factor, right), right, rtol=1e-10)
        np.testing.assert_allclose(root @ linalg.solve_triangular(factor, right), right, rtol=1e-12)
    overwritten = np.ascontiguousarray(matrix)
    np.testing.assert_array_equal(linalg.cholesky(overwritten, overwrite=True), root)


def test_no_cholesky_factor_of_an_indefinite_matrix():
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        linalg.cholesky(np.diag([1.0, -1.0]))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (9, 9), (1000, 16)])
def test_orthonormal_columns(n, k):
    columns = np.random.default_rng(n).normal(size=(n, k))
    q = linalg.orthonormalize(columns)
    np.testing.assert_allclose(q.T @ q, np.eye(k), rtol=0, atol=1e-14)
    triangle = q.T @ columns
    assert np.all(np.diag(triangle) > 0)
    np.testing.assert_allclose(np.tril(triangle, -1), 0, atol=1e-12 * np.sqrt(n))


def test_row_products_and_sums_of_squares():
    rng = np.random.default_rng(0)
    left, right, weights = rng.normal(size=(3, 7, 600))
    np.testing.assert_allclose(linalg.row_products(left, right), [sum(a * b) for a, b in zip(left, right, strict=True)])
    total = sum(w * v * v for v, w in zip(left.flat, weights.flat, strict=True))
    assert linalg.weighted_squares(left, weights) == pytest.approx(total, rel=1e-12)
    assert linalg.norm(left) == pytest.approx(np.linalg.norm(left), rel=1e-14)


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()}


@pytest.fixture
def two_threads():
    """Let BLAS have two threads, whatever the environment says; skip where it cannot, as with Accelerate."""

    def limit(count: int) -> None:
        # A thread that ends: as long as it lives threadpoolctl may let no other one set limits.
        assert scipy.linalg  # its BLAS is loaded
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ThreadpoolController().limit, limits=count, user_api="blas").result()

    limit(2)
    before = blas_threads()
    if before != {2}:
        pytest.skip("the number of BLAS threads cannot be set")
    yield
    limit(1)


@pytest.mark.usefixtures("two_threads")
def test_blas_has_one_thread_while_any_block_is_open():
    with one_blas_thread():
        assert blas_threads() == {1}
        with pytest.raises(ZeroDivisionError), one_blas_thread():
            raise ZeroDivisionError
        assert blas_threads() == {1}
    assert blas_threads() == {2}


@pytest.mark.usefixtures("two_threads")
def test_a_limit_waits_for_that_of_another_python_thread():
    """Each would else restore what the other has set."""
    order = []

    def enter() -> None:
        with one_blas_thread():
            order.append(("second", blas_threads()))

    with ThreadPoolExecutor(1) as pool:
        with one_blas_thread():
            other = pool.submit(enter)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.2)
            order.append(("first", blas_threads()))
        other.result(timeout=60)
    assert order == [("first", {1}), ("second", {1})]
    assert blas_threads() == {2}


def multiply_in_child(queue) -> None:
    product = linalg.matmul(np.eye(200), np.eye(200))
    queue.put((blas_threads(), np.array_equal(product, np.eye(200))))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is not available")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.usefixtures("two_threads")
def test_a_process_is_forked_without_the_limit_of_another_thread():
    """The fork waits for it to end: the child has no thread that would lift it."""
    entered, context = threading.Event(), multiprocessing.get_context("fork")

    def hold() -> None:
        with one_blas_thread():
            entered.set()
            time.sleep(0.2)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        entered.wait()
        queue = context.SimpleQueue()
        child = context.Process(target=multiply_in_child, args=(queue,))
        child.start()
        assert queue.get() == ({2}, True)
        child.join()
        holding.result()
    assert blas_threads() == {2}
