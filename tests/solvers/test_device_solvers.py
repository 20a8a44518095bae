"""Kernel ridge systems, CKCE and its expansion with CuPy arrays: NumPy's numbers, and nothing large leaves the GPU.

Kernels are few, as each is compiled.
"""

from __future__ import annotations

from dataclasses import replace

import emulated_cupy
import numpy as np
import pytest
from problems import softmax_problem

import kcalib
from kcalib.distributions import Normal
from kcalib.estimators import ckce
from kcalib.inference.ckce_expansion import CKCEExpansion
from kcalib.kernels import Gaussian, Linear
from kcalib.methods import AutomaticSolver, Cholesky, ConjugateGradient, Fourier, Nystrom, PivotedCholesky
from kcalib.solvers import ConvergenceWarning, kernel_operator, pivoted_cholesky, solve

METHODS = {cls.name: cls() for cls in ckce.CKCE_METHODS}
METHODS |= {"nystrom": Nystrom(n_landmarks=12), "pivoted_cholesky": PivotedCholesky(rank=12)}
PAPER = Linear() + Gaussian(bandwidth=0.4)
N, M = 160, 3  # several tiles of 64 rows, the last one ragged
SMALL = 150  # numbers that may leave at once: squares of a rank or a block, fewer than samples
SOLVERS = {
    "auto": AutomaticSolver(tol=1e-11),
    "cholesky": Cholesky(tol=1e-11),
    "cg": ConjugateGradient(tol=1e-11),
    "cg_plain": ConjugateGradient(tol=1e-11, rank=0),
    "cg_rank": ConjugateGradient(tol=1e-11, rank=30, seed=3),
    "cg_single": ConjugateGradient(tol=1e-11, products="float32"),
}


@pytest.fixture(scope="module")
def problem():
    y, p = softmax_problem(N, M)
    return y, p, np.eye(M)[y] - p


def host(array) -> np.ndarray:
    """An array that is on the GPU."""
    assert type(array).__module__ == "cupy"
    return array.get()


class UserOperator:
    """An operator of the user's on the device of its matrix, by its members alone."""

    def __init__(self, matrix) -> None:
        self.matrix, self.n = matrix, len(matrix)

    def matmul(self, vectors, dtype="float64"):
        return self.matrix @ vectors

    def tile(self, rows, columns):
        if type(self.matrix).__module__ == "cupy":
            rows, columns = (i if isinstance(i, slice) else emulated_cupy.asarray(i) for i in (rows, columns))
        return self.matrix[rows][:, columns]

    def diagonal(self):
        return self.matrix.diagonal()


@pytest.mark.parametrize("method", SOLVERS)
def test_solutions_are_those_of_numpy_arrays(cupy, problem, method):
    """|dZ| <= |R| / s, for residuals of both of at most tol |B|."""
    _, p, b = problem
    expected = solve(kernel_operator(p, PAPER), b, 5.0, method=SOLVERS[method])
    points, right = cupy.asarray(p), cupy.asarray(b)
    operator = kernel_operator(points, PAPER)
    assert operator.name == "cuda"
    with emulated_cupy.stays_on_device(at_most=SMALL):
        found = solve(operator, right, 5.0, method=SOLVERS[method])
    assert found.converged and found.method == expected.method and found.rank == expected.rank
    assert found.relative_residual <= 1e-11
    difference = np.linalg.norm(host(found.values) - expected.values)
    assert difference <= 2e-11 * np.linalg.norm(b) / 5.0
    if found.method == "cholesky":  # both are exact to rounding, times the condition |K| / s, below 60
        assert difference <= 60e-12 * np.linalg.norm(expected.values)
    true = b - (np.array(operator.tile(slice(0, N), slice(0, N)).get()) + 5.0 * np.eye(N)) @ host(found.values)
    assert found.residual == pytest.approx(np.linalg.norm(true), rel=0.01, abs=1e-12)


@pytest.mark.parametrize("products", ["float64", "float32"])
def test_large_blocks_are_decomposed_on_the_gpu(cupy, monkeypatch, problem, products):
    from kcalib.solvers import conjugate_gradient

    _, p, _ = problem
    matrix = kernel_operator(p, PAPER).tile(slice(0, N), slice(0, N))
    b = np.random.default_rng(1).normal(size=(N, 20))
    b[:, 7] = b[:, 3] - b[:, 5]
    exact = np.linalg.solve(matrix + 5 * np.eye(N), b)
    monkeypatch.setattr(conjugate_gradient, "BLOCK_ON_HOST", 0)
    with emulated_cupy.stays_on_device(at_most=20):  # not 20 x 20
        found = solve(
            cupy.asarray(matrix), cupy.asarray(b), 5.0, method=ConjugateGradient(tol=1e-11, products=products)
        )
    assert found.converged
    assert np.linalg.norm(host(found.values) - exact) <= 1.1e-11 * np.linalg.norm(b) / 5.0
    with pytest.raises(ValueError, match=r"a vector has p\^T \(K \+ shift I\) p / p\^T p = -"):
        solve(cupy.asarray(np.diag([1.0] * 9 + [-3.0])), cupy.ones(10), 1.0, method=ConjugateGradient(rank=0))


def test_dense_matrices_and_operators_of_the_user(cupy, problem):
    _, p, b = problem
    matrix = kernel_operator(p, PAPER).tile(slice(0, N), slice(0, N))
    exact = np.linalg.solve(matrix + 5 * np.eye(N), b)
    on_gpu = cupy.asarray(matrix)
    for operator in (on_gpu, UserOperator(on_gpu)):
        for method in ("cholesky", "cg_rank", "cg_single"):
            with emulated_cupy.stays_on_device(at_most=SMALL):
                found = solve(operator, cupy.asarray(b), 5.0, method=SOLVERS[method])
            assert np.linalg.norm(host(found.values) - exact) <= 1.1e-11 * np.linalg.norm(b) / 5.0
    one = solve(on_gpu, cupy.asarray(b[:, 0]), 5.0)
    assert one.values.shape == (N,)
    np.testing.assert_allclose(host(one.values), exact[:, 0], rtol=0, atol=1e-10)


def test_accept_sees_arrays_on_the_gpu(cupy, problem):
    _, p, b = problem
    seen = []

    def accept(z, residual):
        assert isinstance(z, cupy.ndarray) and isinstance(residual, cupy.ndarray)
        seen.append(float(cupy.linalg.norm(residual)))
        return seen[-1] < 1e-5

    found = solve(kernel_operator(cupy.asarray(p), PAPER), cupy.asarray(b), 5.0, method="cg", accept=accept)
    assert found.converged and found.residual == pytest.approx(seen[-1]) and found.residual > 1e-13


def test_zeros_no_columns_dependent_columns_and_one_sample(cupy, problem):
    _, p, b = problem
    matrix = cupy.asarray(kernel_operator(p, PAPER).tile(slice(0, N), slice(0, N)))
    dependent = np.column_stack([b[:, 0], np.zeros(N), -3 * b[:, 0], 1e-200 * b[:, 1], 1e150 * b[:, 2]])
    exact = np.linalg.solve(matrix.get() + np.eye(N), dependent)
    for name in ("cholesky", "cg_plain", "cg_rank"):
        method = SOLVERS[name]
        zeros = solve(matrix, cupy.zeros((N, 2)), 1.0, method=method)
        assert not host(zeros.values).any() and zeros.residual == 0 and zeros.converged
        none = solve(matrix, cupy.zeros((N, 0)), 1.0, method=method)
        assert none.values.shape == (N, 0) and none.residual == 0 and none.converged
        found = solve(matrix, cupy.asarray(dependent), 1.0, method=method)
        error = np.linalg.norm(host(found.values) - exact, axis=0)
        assert (error <= 1.1e-11 * np.linalg.norm(dependent, axis=0)).all()
        few = replace(method, rank=1) if name == "cg_rank" else method
        one = solve(cupy.asarray([[1.5]]), cupy.asarray([3.0]), 0.5, method=few)
        np.testing.assert_allclose(host(one.values), [1.5], rtol=1e-10)
        nothing = solve(cupy.zeros((5, 5)), cupy.arange(5.0), 2.0, method=few)
        np.testing.assert_allclose(host(nothing.values), np.arange(5) / 2, rtol=1e-15)


@pytest.mark.parametrize("options", [{}, {"block_size": 5}, {"pivoting": "greedy"}, {"tol": 1e-3}], ids=str)
def test_pivots_are_those_of_numpy_arrays(cupy, problem, options):
    p = problem[1]
    expected = pivoted_cholesky(kernel_operator(p, PAPER), 12, **options)
    operator = kernel_operator(cupy.asarray(p), PAPER)
    with emulated_cupy.stays_on_device(at_most=SMALL):
        found = pivoted_cholesky(operator, 12, **options)
    assert found.pivots.tolist() == expected.pivots.tolist()
    assert found.trace_residual == pytest.approx(expected.trace_residual, rel=1e-10)
    # A column is divided by the root of its pivot, 1e-3 of the trace or more here.
    np.testing.assert_allclose(host(found.factor), expected.factor, rtol=0, atol=1e-11)


@pytest.mark.parametrize("m", [2, M])
@pytest.mark.parametrize("method", METHODS)
def test_ckce_is_that_of_numpy_arrays(cupy, method, m):
    y, p = softmax_problem(N, m)
    chosen = Fourier(n_features=20) if method == "fourier" else METHODS[method]
    options = {"kernel": PAPER, "method": chosen}
    expected = kcalib.ckce.result(y, p, **options)
    labels, points = cupy.asarray(y), cupy.asarray(p)
    with emulated_cupy.stays_on_device(at_most=SMALL):
        found = kcalib.ckce.result(labels, points, **options)
    assert found.backend == "cuda"
    assert (found.method, found.rank) == (expected.method, expected.rank)
    assert isinstance(found.value, float)
    if found.method == "cg":  # which ends where the bound is small enough
        assert abs(found.value - expected.value) <= found.error_bound + expected.error_bound
        assert found.error_bound <= 1e-8 * found.value
    else:
        assert found.value == pytest.approx(expected.value, rel=1e-12)
        assert found.error_bound == pytest.approx(expected.error_bound, rel=0.05)


@pytest.mark.parametrize(
    "method", ["pivoted_cholesky", *(pytest.param(m, marks=pytest.mark.slow) for m in ("cholesky", "cg", "nystrom"))]
)
def test_ckce_of_distributions(cupy, method):
    """Residuals are a factor of the matrix of their inner products, which stays on the GPU."""
    rng = np.random.default_rng(0)
    mean, deviation = rng.normal(size=N), rng.uniform(0.5, 1.5, size=N)
    y = mean + deviation * rng.normal(size=N)
    kernel, target_kernel = Gaussian(bandwidth=1.0, metric="wasserstein"), Gaussian(bandwidth=1.0)
    options = {"kernel": kernel, "target_kernel": target_kernel, "method": METHODS[method]}
    expected = kcalib.ckce.result(y, Normal(mean, deviation), **options)
    targets, prediction = cupy.asarray(y), Normal(cupy.asarray(mean), cupy.asarray(deviation))
    with emulated_cupy.stays_on_device(at_most=30**2 if method == "cg" else SMALL):  # of a block of 29 residuals
        found = kcalib.ckce.result(targets, prediction, **options)
    assert found.backend == "cuda"
    # The factor leaves out 1e-12 of its trace at most, and that is in the bound of "cg", whose tolerance is 1e-8.
    assert found.value == pytest.approx(expected.value, rel=1e-8 if method == "cg" else 1e-12)


def test_ckce_with_a_matrix_on_the_labels_and_the_median_bandwidth(cupy, problem):
    y, p, _ = problem
    matrix = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 0.7]])
    labels, points = cupy.asarray(y), cupy.asarray(p)
    expected = kcalib.ckce(y, p, kernel=PAPER, target_kernel=matrix)
    with emulated_cupy.stays_on_device(at_most=SMALL):
        found = kcalib.ckce(labels, points, kernel=PAPER, target_kernel=matrix)
    assert found == pytest.approx(expected, rel=1e-12)
    assert kcalib.ckce(labels, points) == pytest.approx(kcalib.ckce(y, p), rel=1e-12)
    same = np.tile([0.25, 0.25, 0.5], (N, 1))
    found = kcalib.ckce.result(cupy.asarray(y), cupy.asarray(same))
    assert found.bandwidth_source.startswith("any") and found.value == pytest.approx(kcalib.ckce(y, same), rel=1e-12)
    assert kcalib.jkce(labels, points, kernel=PAPER) == pytest.approx(kcalib.jkce(y, p, kernel=PAPER), rel=1e-12)


@pytest.mark.parametrize(("shift", "bandwidth"), [(N**0.75, 0.4), (0.05, 0.1)], ids=["by_factor", "by_solver"])
def test_expansion_is_that_of_numpy_arrays(cupy, monkeypatch, problem, shift, bandwidth):
    """With a factor that is K to rounding, and with one that leaves out a part."""
    from kcalib.inference import ckce_expansion

    exact = bandwidth == 0.4
    _, p, e = problem
    if exact:
        p, e = p.copy(), e.copy()
        p[:, :] = p[np.arange(N) % 9]  # nine points: K has the rank 9
    monkeypatch.setattr(ckce_expansion, "RANK", 12)
    monkeypatch.setattr(ckce_expansion, "SMALL_REST", 1e9)  # the first factor will do
    kernel, rows = Linear() + Gaussian(bandwidth=bandwidth), np.arange(0, N, 2)
    expected = CKCEExpansion.of(kernel_operator(p, kernel), e, shift, rows, seed=0)
    operator, residuals = kernel_operator(cupy.asarray(p), kernel), cupy.asarray(e)
    with emulated_cupy.stays_on_device(at_most=SMALL):
        found = CKCEExpansion.of(operator, residuals, shift, rows, seed=0)
        pairs = found.pairs(slice(0, 7))
    assert found.factor.is_exact == expected.factor.is_exact == exact
    # The solver knows b to 1e-6 only, divided by what is left of it.
    rtol = 1e-9 if exact else 1e-4
    assert found.value == pytest.approx(expected.value, rel=rtol)
    assert found.plug_in == pytest.approx(expected.plug_in, rel=1e-9)
    for name in ("scores", "influences", "residuals"):
        wanted = getattr(expected, name)
        np.testing.assert_allclose(host(getattr(found, name)), wanted, rtol=0, atol=rtol * np.abs(wanted).max())
    wanted = expected.pairs(slice(0, 7))
    np.testing.assert_allclose(host(pairs), wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())


def test_the_gpu_of_the_arrays_is_taken(emulation, problem):
    y, p, b = problem
    cupy = emulation  # of two GPUs
    with cupy.cuda.Device(1):
        labels, points, right = (cupy.asarray(a) for a in (y, p, b))
    operator = kernel_operator(points, PAPER)
    for found in (solve(operator, right, 5.0, method="cg").values, operator.matmul(right), operator.diagonal()):
        assert found.device.id == 1
    assert pivoted_cholesky(operator, 5).factor.device.id == 1
    assert kcalib.ckce(labels, points, kernel=PAPER) == pytest.approx(kcalib.ckce(y, p, kernel=PAPER), rel=1e-12)
    with pytest.raises(ValueError, match=r"is on GPU 0, .* on GPU 1; bring them to one GPU"):
        solve(operator, cupy.asarray(b), 5.0)


# What is refused


def test_host_and_device_do_not_mix(cupy, problem):
    _, p, b = problem
    on_host, on_gpu = kernel_operator(p, PAPER), kernel_operator(cupy.asarray(p), PAPER)
    with pytest.raises(ValueError, match=r"`right_sides` are in host memory, but K, .*cuda>, is on .*cupy.asarray"):
        solve(on_gpu, b, 1.0)
    with pytest.raises(ValueError, match=r"`right_sides` are on .*, but K, .*cpu>, is in host memory; .*asnumpy"):
        solve(on_host, cupy.asarray(b), 1.0)
    with pytest.raises(ValueError, match=r"`right_sides` are on .*dense matrix"):
        solve(np.eye(N), cupy.asarray(b), 1.0)
    with pytest.raises(TypeError, match=r"the vectors to multiply is of .*numpy.* expected a CuPy array"):
        on_gpu.matmul(b)
    back = UserOperator(cupy.eye(N))
    back.matmul = lambda vectors, dtype="float64": vectors.get()
    with pytest.raises(TypeError, match=r"a product with K is of .*numpy.* expected a CuPy array"):
        solve(back, cupy.asarray(b), 1.0, method=ConjugateGradient(rank=0))


@pytest.mark.parametrize("method", [name for name in SOLVERS if name != "cg_rank"])
def test_an_indefinite_matrix_is_the_same_error(cupy, method):
    matrix = cupy.asarray(np.diag(np.array([1.0] * 9 + [-3.0])))
    with pytest.raises(ValueError, match=r"(not positive definite|not positive semi-definite).*dense matrix"):
        solve(matrix, cupy.ones(10), 1.0, method=SOLVERS[method])


def test_a_residual_below_zero_is_the_same_error(cupy):
    """The distance itself is no kernel."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(40, 2))
    matrix = 0.5 - np.linalg.norm(points[:, None] - points, axis=-1)
    for pivoting in ("random", "greedy"):
        messages = []
        for given in (matrix, cupy.asarray(matrix)):
            with pytest.raises(ValueError, match="not positive semi-definite") as error:
                pivoted_cholesky(given, 10, pivoting=pivoting)
            messages.append(str(error.value))
        assert messages[0] == messages[1]
    with pytest.raises(ValueError, match="the diagonal of K has -1.0 at 2"):
        pivoted_cholesky(cupy.asarray(np.diag([1.0, 1.0, -1.0])), 2)


def test_entries_that_are_wrong_are_named(cupy):
    right = np.ones((10, 2))
    right[7, 1] = np.nan
    matrix = np.eye(10)
    matrix[3, 4] = 0.5
    for given, b, message in (
        (np.eye(10), right, r"`right_sides\[7, 1\]` is nan"),
        (np.eye(10), np.ones(9), r"`right_sides` has shape \(9,\), expected \(10,\)"),
        (matrix, np.ones(10), r"`operator\[3, 4\]` is 0.5 but `operator\[4, 3\]` is 0.0"),
        (np.where(np.eye(10) > 0, np.inf, 0), np.ones(10), r"`operator\[0, 0\]` is inf"),
    ):
        with pytest.raises(ValueError, match=message):
            solve(cupy.asarray(given), cupy.asarray(b), 1.0)


def test_a_tolerance_out_of_reach_gives_the_best_and_a_warning(cupy, problem):
    _, p, b = problem
    matrix = cupy.asarray(kernel_operator(p, PAPER).tile(slice(0, N), slice(0, N)))
    with pytest.warns(ConvergenceWarning, match="not 1e-20"):
        found = solve(matrix, cupy.asarray(b), 1.0, method=ConjugateGradient(tol=1e-20))
    assert not found.converged and found.relative_residual < 1e-12


def test_memory_is_that_of_the_gpu(cupy, problem):
    """A GPU with 600 kB left holds the vectors, and not two matrices of 205 kB, strips and all; the host would."""
    y, p, b = problem
    points, right = cupy.asarray(p), cupy.asarray(b)
    operator = kernel_operator(points, PAPER)
    with emulated_cupy.memory_limit(int(cupy.get_default_memory_pool().used_bytes()) + 600_000):
        with pytest.raises(MemoryError, match=r"factor of n = 160 samples take .* on GPU 0, .* use method='cg'"):
            solve(operator, right, 5.0, method="cholesky")
        found = solve(operator, right, 5.0)
        assert found.method == "cg" and "memory" in found.method_reason and found.converged
    with emulated_cupy.memory_limit(int(cupy.get_default_memory_pool().used_bytes()) + 30_000):
        for method in ("cg", "nystrom", "pivoted_cholesky", "fourier"):
            with pytest.raises(MemoryError, match="on GPU 0"):
                kcalib.ckce(cupy.asarray(y), points, kernel=PAPER, method=method)
        with pytest.raises(MemoryError, match=r"a factor of K with 100 columns take .* on GPU 0"):
            CKCEExpansion.of(operator, right, 5.0, np.arange(N), seed=0)
    with pytest.raises(MemoryError, match="allowed by `max_memory`"):
        solve(operator, right, 5.0, method="cholesky", max_memory=1000)
