"""The CKCE: every method against the literal trace, its bounds, bad input, and the paper's claims."""

from __future__ import annotations

import importlib
import json
import math
import pickle
import warnings
from dataclasses import asdict, replace

import numpy as np
import oracle
import pytest
from problems import DEFINITE_KERNELS, KERNELS, duplicates_problem, psd_matrix, softmax_problem
from scripts import load_script

import kcalib
from kcalib.bandwidth import median_distance
from kcalib.distributions import Samples
from kcalib.estimators import ckce
from kcalib.estimators.ckce_low_rank import rounding_bound, trace_bound
from kcalib.kernels import Exponential, Gaussian, Linear
from kcalib.methods import AutomaticSolver, Cholesky, ConjugateGradient, Fourier, Nystrom, PivotedCholesky
from kcalib.solvers.certificate import Certificate
from kcalib.solvers.low_rank import FourierFeatures, NormalEquations, jackknife

PAPER = Linear() + Gaussian(bandwidth=0.4)
METHODS = {cls.name: cls for cls in ckce.CKCE_METHODS}
LOW_RANK = ("fourier", "nystrom", "pivoted_cholesky")


def inverse(matrix: np.ndarray) -> np.ndarray:
    """By Gauss-Jordan elimination with row exchanges, in extended precision."""
    n = len(matrix)
    work = np.concatenate([matrix, np.eye(n, dtype=oracle.LONG)], axis=1)
    for k in range(n):
        pivot = k + int(np.argmax(np.abs(work[k:, k])))
        work[[k, pivot]] = work[[pivot, k]]
        work[k] /= work[k, k]
        others = np.arange(n) != k
        work[others] -= work[others, k : k + 1] * work[k]
    return work[:, n:]


def literal(kernel, y, p, regularization=None, m_matrix=None, k=None) -> float:
    """tr(W T W K) with W = (K + n lambda I)^{-1}: equation 7, without residuals."""
    n = len(y)
    regularization = n**-0.25 if regularization is None else regularization
    k = oracle.kernel_matrix(kernel, p, p) if k is None else k
    w = inverse(k + n * oracle.LONG(regularization) * np.eye(n, dtype=oracle.LONG))
    t = oracle.target_factor(y, p, y, p, m_matrix)
    return float(np.trace(w @ t @ w @ k))


covariate_shift = load_script("ckce_experiments").problem  # of sections 5.2 and 5.3


def test_one_and_two_samples_by_hand():
    # K = |p|^2 + 1 = 1.68, n lambda = 1, |e|^2 = 0.08; lambda = 0.5.
    for method in ("auto", "cholesky", "nystrom", "pivoted_cholesky"):
        one = kcalib.ckce([0], [[0.8, 0.2]], method=method)
        assert one == pytest.approx(0.08 * 1.68 / 2.68**2, rel=1e-14), method
    one = kcalib.ckce([0], [[0.8, 0.2]], regularization=0.5)
    assert one == pytest.approx(0.08 * 1.68 / 2.18**2, rel=1e-14)
    # K has the entries a, b, b, c: the inverse of a 2 by 2 matrix by its determinant.
    p, s = [[0.8, 0.2], [0.4, 0.6]], 2 * 0.3
    a, b, c = 1.68, 0.44 + math.exp(-0.32 / (2 * 0.16)), 1.52
    determinant = (a + s) * (c + s) - b * b
    w = np.array([[c + s, -b], [-b, a + s]]) / determinant
    z = w @ np.array([[0.2, -0.2], [-0.4, 0.4]])
    expected = (a * z[0] @ z[0] + 2 * b * z[0] @ z[1] + c * z[1] @ z[1]).item()
    assert kcalib.ckce([0, 1], p, kernel=PAPER, regularization=0.3) == pytest.approx(expected, rel=1e-14)


def test_targets_that_are_certain_have_no_residuals():
    found = kcalib.ckce.result(np.zeros(9), Samples(np.zeros((9, 1))), target_kernel=Gaussian(1.0))
    assert (found.value, found.error_bound) == (0, 0)


@pytest.mark.parametrize("kernel", ["gaussian", "exponential", "linear", "linear+gaussian", "mixed"])
@pytest.mark.parametrize("target", ["delta", "matrix"])
@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 10), (60, 2), (50, 4)])
def test_exact_methods_agree_with_the_literal_trace(kernel, target, n, m):
    y, p = softmax_problem(n, m, seed=1)
    matrix = psd_matrix(m, min(m, 3)) if target == "matrix" else None
    options = {"kernel": KERNELS[kernel], "target_kernel": "delta" if matrix is None else matrix}
    for regularization in (None, 1e-3, 10.0):
        expected = literal(KERNELS[kernel], y, p, regularization, matrix)
        for method in ("auto", "cholesky", "cg"):
            tight = METHODS[method](tol=1e-7)
            found = kcalib.ckce.result(y, p, method=tight, regularization=regularization, **options)
            assert abs(found.value - expected) <= found.error_bound, method
            assert found.error_bound <= 1e-7 * expected
            assert found.error_bound_kind == "certificate"
            assert found.value == pytest.approx(expected, rel=1e-7 if method == "cg" else 1e-10), method


def nystrom(rank: int, seed: int) -> Nystrom:
    return Nystrom(n_landmarks=rank, seed=seed)


def pivoted_cholesky(rank: int, seed: int) -> PivotedCholesky:
    return PivotedCholesky(rank=rank, seed=seed)


@pytest.mark.parametrize("method", [nystrom, pivoted_cholesky])
@pytest.mark.parametrize(("n", "m", "rank"), [(60, 2, 5), (60, 3, 20), (50, 10, 30), (40, 4, 40)])
def test_trace_bounds_hold(method, n, m, rank):
    for seed in range(5):
        y, p = softmax_problem(n, m, seed)
        matrix = psd_matrix(m, 2) if seed % 2 else None
        options = {"target_kernel": "delta" if matrix is None else matrix, "kernel": PAPER}
        k = oracle.kernel_matrix(PAPER, p, p)
        for regularization in (1e-3, None):
            expected = literal(PAPER, y, p, regularization, matrix, k)
            found = kcalib.ckce.result(y, p, method=method(rank, seed), regularization=regularization, **options)
            assert abs(found.value - expected) <= found.error_bound
            assert found.error_bound_kind == "trace" and found.rank <= rank
            if rank == n and regularization is None:  # nothing is left out
                assert found.value == pytest.approx(expected, rel=1e-9)


def test_the_trace_bound_by_its_definition():
    """The second bound is the smaller one where the matrix explains most of the labels, the first where it does not."""
    rng, smaller = np.random.default_rng(0), set()
    f, e = rng.normal(size=(30, 4)), rng.normal(size=(30, 2))
    for shift in (1e-2, 0.7, 50.0):
        for right in (e, f @ rng.normal(size=(4, 2))):
            z = np.linalg.solve(f @ f.T + shift * np.eye(30), right)
            for lost in (1e-3, 0.4, 300.0):
                first, second = np.sum(right**2) / shift**2, np.sum(z**2) * (1 + lost / (4 * shift))
                equations = NormalEquations.from_blocks([(f, right)])
                found = trace_bound(equations, equations.solution(shift), shift, lost)
                assert found == pytest.approx(lost * min(first, second), rel=1e-7)
                smaller.add(first < second)
    assert smaller == {True, False}


def check_random_problems(seed: int, count: int) -> None:
    """Kernels, saturated and duplicate rows, regularizations over eight decades, ranks, tolerances."""
    rng = np.random.default_rng(seed)
    # Its entries are right to 1e-11 only.
    kernels = [kernel for name, kernel in DEFINITE_KERNELS.items() if name != "rational_quadratic_1e6"]
    for _ in range(count):
        n, m, seed = int(rng.integers(1, 45)), int(rng.choice([2, 3, 5, 12])), int(rng.integers(10**6))
        if rng.uniform() < 0.3:
            n = max(n, 16)
            y, p = duplicates_problem(n, m, seed)
        else:
            y, p = softmax_problem(n, m, seed, scale=float(rng.choice([0.3, 3.0, 30.0])))
        kernel = kernels[rng.integers(len(kernels))]
        regularization = float(10 ** rng.uniform(-5, 3))
        matrix = psd_matrix(m, int(rng.integers(1, m + 1)), seed) if rng.uniform() < 0.4 else None
        k = oracle.kernel_matrix(kernel, p, p)
        expected = literal(kernel, y, p, regularization, matrix, k)
        # The target factor of the oracle has absolute errors, of extended precision: some n^2 |K| |W|^2 epsilon.
        largest = 1 if matrix is None else np.abs(matrix).max()
        own = 1e-18 * largest * float(np.max(np.diagonal(k))) / regularization**2
        options = {"kernel": kernel, "regularization": regularization}
        options["target_kernel"] = "delta" if matrix is None else matrix
        for method in (
            Cholesky(tol=float(10 ** rng.uniform(-7, -1))),
            ConjugateGradient(tol=float(10 ** rng.uniform(-7, -1)), seed=seed),
            nystrom(int(rng.integers(1, n + 1)), seed),
            pivoted_cholesky(int(rng.integers(1, n + 1)), seed),
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of indefinite kernels; of a tolerance that rounding keeps it from
                found = kcalib.ckce.result(y, p, method=method, **options)
            assert math.isfinite(found.value)
            if found.error_bound is not None:
                assert abs(found.value - expected) <= found.error_bound + own, (method, kernel, n, m, regularization)


def test_bounds_hold_for_random_problems():
    check_random_problems(0, 30)


@pytest.mark.slow
def test_bounds_hold_for_many_random_problems():
    for seed in range(1, 30):
        check_random_problems(seed, 50)


def test_certificate_bounds_the_error_of_any_solution():
    """Z of conjugate gradients stopped early, and Z disturbed at random, by every size."""
    rng = np.random.default_rng(0)
    n, m = 60, 3
    for seed in range(10):
        y, p = softmax_problem(n, m, seed)
        k = oracle.kernel_matrix(PAPER, p, p)
        right = np.eye(m)[y] - p
        for shift in (0.05, 1.0, 20.0, 2000.0):
            matrix = Dense(np.array(k, float))
            exact = np.array(inverse(k + shift * np.eye(n)) @ right, float)
            expected = literal(PAPER, y, p, shift / n, k=k)
            for size in (1e-15, 1e-12, 1e-6, 1e-2, 1.0):
                z = exact + size * np.linalg.norm(exact) * rng.normal(size=(n, m)) / n
                certificate = Certificate(matrix, right, shift, tol=1e-8)
                residual = right - shift * z - k @ z
                for found in (certificate.recompute(z), certificate.certify(z, certificate(z, residual))):
                    assert abs(found.value - expected) <= found.bound
                    assert size < 1e-10 or found.bound > 1e-12 * found.value


class Dense:
    """A stored matrix as a backend."""

    def __init__(self, matrix):
        self.matrix = matrix
        self.products = 0

    def matmul(self, vectors):
        self.products += 1
        return self.matrix @ vectors

    def diagonal(self):
        return np.diagonal(self.matrix)


def test_matrices_on_the_labels_that_cancel():
    """e^T M e is 1e-7 of |M| |e|^2: the rounding of M is in the bound."""
    y, p = softmax_problem(16, 2, scale=10.0)
    matrix = np.array([[4.0, 4.0], [4.0, 4.0 + 2.0**-20]])
    expected = literal(PAPER, y, p, m_matrix=matrix)
    for method in (Cholesky(tol=1e-4), Nystrom()):
        found = kcalib.ckce.result(y, p, kernel=PAPER, target_kernel=matrix, method=method)
        assert abs(found.value - expected) <= found.error_bound
        assert found.value == pytest.approx(expected, rel=1e-8)


def test_certificate_of_a_residual_known_to_one_percent():
    """Solvers may show a residual that is wrong by that much; the value then is as well."""
    rng = np.random.default_rng(1)
    y, p = softmax_problem(60, 3)
    k = oracle.kernel_matrix(PAPER, p, p)
    right, matrix = np.eye(3)[y] - p, Dense(np.array(k, float))
    for shift in (0.1, 10.0, 1000.0):
        exact = np.array(inverse(k + shift * np.eye(60)) @ right, float)
        expected = literal(PAPER, y, p, shift / 60, k=k)
        for _ in range(20):
            z = exact + 1e-5 * np.linalg.norm(exact) * rng.normal(size=(60, 3)) / 60
            residual = right - shift * z - k @ z
            wrong = z * np.linalg.norm(residual) / np.linalg.norm(z)  # where it moves the value most
            shown = np.array(residual + 0.0099 * wrong, float)
            certificate = Certificate(matrix, right, shift, tol=1.0)
            verdict = certificate(z, shown)
            assert verdict.accepted and certificate.certify(z, verdict) is verdict and matrix.products == 0
            assert abs(verdict.value - expected) <= verdict.bound


def test_conjugate_gradients_beside_the_dense_factorisation():
    """True error, certificate, and what was asked for; K is multiplied a few times only."""
    for n, m, scale in ((1500, 2, 3.0), (1200, 10, 3.0), (300, 200, 1.0)):
        y, p = softmax_problem(n, m, scale=scale)
        dense = kcalib.ckce.result(y, p, method="cholesky")
        assert dense.iterations is None and dense.rank is None and dense.seed is None
        for tol in (1e-3, 1e-6, 1e-10):
            found = kcalib.ckce.result(y, p, method=ConjugateGradient(tol=tol, seed=3))
            assert abs(found.value - dense.value) <= found.error_bound + dense.error_bound
            assert found.error_bound <= tol * found.value
            assert found.iterations <= 12 and found.seed == (3 if found.rank else None)
    assert kcalib.ckce.result(*softmax_problem(1500, 3)).method == "cg"
    ranked = kcalib.ckce.result(*softmax_problem(300, 3), method=ConjugateGradient(rank=7))
    assert ranked.rank == 7 and ranked.memory < 8 * 300 * 300


def test_conjugate_gradients_multiply_once_in_an_iteration(monkeypatch):
    """The certificate comes back with the solution."""
    products = []
    kernel_operator = importlib.import_module("kcalib.solvers.kernel_operator")  # which is a function there, too
    matmul = kernel_operator.KernelOperator.matmul

    def counted(self, vectors, dtype="float64"):
        products.append(vectors.shape)
        return matmul(self, vectors, dtype)

    monkeypatch.setattr(kernel_operator.KernelOperator, "matmul", counted)
    found = kcalib.ckce.result(*softmax_problem(300, 5), method="cg")
    assert len(products) == found.iterations > 0 and found.error_bound < 1e-8 * found.value


def binary_problem(n: int, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated for power 1; over-confident above."""
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 0.5, size=n)
    return rng.uniform(size=n) < p, p**power / (p**power + (1 - p) ** power)


@pytest.mark.parametrize("power", [1.0, 1.5])
def test_binary_problems_take_a_factor_that_is_the_matrix(power):
    y, p = binary_problem(2000, power)
    found, dense = kcalib.ckce.result(y, p), kcalib.ckce.result(y, p, method="cholesky")
    assert (found.method, found.error_bound_kind) == ("pivoted_cholesky", "trace") and found.rank < 30
    assert abs(found.value - dense.value) <= found.error_bound + dense.error_bound
    assert found.error_bound < 1e-9 * found.value

    # Many samples: not n^2 work, and other pivots give the same.
    y, p = binary_problem(50_000, power)
    found = kcalib.ckce.result(y, p)
    other = kcalib.ckce.result(y, p, method=PivotedCholesky(rank=60, seed=1))
    assert found.method == "pivoted_cholesky" and found.error_bound <= 1e-8 * found.value
    assert abs(found.value - other.value) <= found.error_bound + other.error_bound


def test_no_digits_are_lost_where_the_regularization_dominates():
    """n lambda is 1e14 times the eigenvalues of K: <Z, E> - n lambda |Z|^2 has no correct digit."""
    y, p = softmax_problem(40, 3)
    for regularization in (1e6, 1e12):
        found = kcalib.ckce(y, p, kernel=PAPER, regularization=regularization, method=AutomaticSolver(tol=1.0))
        assert found == pytest.approx(literal(PAPER, y, p, regularization), rel=1e-13)


def test_many_classes():
    """1000 classes and few samples: columns of the residuals in groups."""
    y, p = softmax_problem(30, 1000, scale=1.0)
    expected = literal(PAPER, y, p)
    assert kcalib.ckce(y, p, kernel=PAPER) == pytest.approx(expected, rel=1e-12)
    for method in ("nystrom", "pivoted_cholesky"):
        assert kcalib.ckce(y, p, kernel=PAPER, method=method) == pytest.approx(expected, rel=1e-9)


def test_default_kernel_is_equation_8_with_the_median_heuristic():
    y, p = softmax_problem(80, 3)
    bandwidth = median_distance(p).value
    found = kcalib.ckce.result(y, p)
    assert found.kernel == f"Linear() + Gaussian(bandwidth={bandwidth:.6g})"
    assert found.bandwidth_source == "median euclidean distance of all samples"
    assert found.regularization == pytest.approx(80**-0.25, rel=1e-15)
    assert found.value == kcalib.ckce(y, p, kernel=Linear() + Gaussian(bandwidth=bandwidth))


# Fourier features


def test_fourier_features_are_those_of_the_paper():
    """Against the literal sum over frequencies, drawn as documented."""
    y, p = softmax_problem(50, 3)
    count, seed = 7, 11
    w = np.random.Generator(np.random.Philox(seed)).standard_normal((3, count)) / 0.4
    k = np.array([[a @ b + np.mean(np.cos(w.T @ (a - b))) for b in p] for a in p])
    expected = literal(None, y, p, k=k.astype(oracle.LONG))
    found = kcalib.ckce(y, p, kernel=PAPER, method=Fourier(n_features=count, seed=seed))
    assert found == pytest.approx(expected, rel=1e-10)


def test_fourier_features_of_sums_scalings_and_products():
    kernel = 0.5 * Linear() + 2.0 * Gaussian(bandwidth=0.3) * Gaussian(bandwidth=0.6) + Gaussian(bandwidth=1.0)
    points = softmax_problem(20, 4)[1]
    features = FourierFeatures.draw(kernel.terms(), 4, 20_000, 0)(points)
    expected = np.array(oracle.kernel_matrix(kernel, points, points), float)
    # An entry is a mean of 20,000 cosines of deviation below 1, times 3: 5 deviations of the worst of 400.
    assert np.abs(features @ features.T - expected).max() < 5 * 3 / math.sqrt(20_000)
    linear = kcalib.ckce.result(*softmax_problem(40, 3), kernel=Linear(), method="fourier")
    assert linear.value == pytest.approx(kcalib.ckce(*softmax_problem(40, 3), kernel=Linear()), rel=1e-12)
    assert linear.error_bound == 0.0


@pytest.mark.grid
def test_fourier_error_is_an_interval():
    """The half width covers the exact value about 95 times in 100, and falls like the root of the frequencies."""
    widths: dict[int, list[float]] = {25: [], 400: []}
    covered = 0
    for seed in range(100):
        y, p = softmax_problem(150, 3, seed % 5)
        exact = kcalib.ckce(y, p, kernel=PAPER)
        found = kcalib.ckce.result(y, p, kernel=PAPER, method=Fourier(n_features=50, seed=seed))
        covered += abs(found.value - exact) <= found.error_bound
    for count, values in widths.items():
        for seed in range(10):
            found = kcalib.ckce.result(y, p, kernel=PAPER, method=Fourier(n_features=count, seed=seed))
            values.append(found.error_bound)
    assert covered >= 85  # a binomial share of 0.95 falls below with probability 5e-5
    assert 2 < np.mean(widths[25]) / np.mean(widths[400]) < 8


def test_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(0).normal(size=10)
    without = np.array([np.delete(values, i).mean() for i in range(10)])
    bias, error = jackknife(values.mean(), without)
    assert bias == pytest.approx(0, abs=1e-14)
    assert error == pytest.approx(values.std(ddof=1) / math.sqrt(10), rel=1e-12)


def test_streaming_equals_one_block(monkeypatch):
    y, p = softmax_problem(500, 4)
    from kcalib._pairs import feature_sums
    from kcalib.solvers import low_rank

    for method in (Fourier(seed=0), Nystrom(seed=0)):
        whole = kcalib.ckce(y, p, kernel=PAPER, method=method)
        monkeypatch.setattr(low_rank, "BLOCK_BYTES", 2**14)
        monkeypatch.setattr(feature_sums, "LEAST_ROWS", 60)
        assert kcalib.ckce(y, p, kernel=PAPER, method=method) == pytest.approx(whole, rel=1e-11)
        monkeypatch.undo()


def test_normal_equations_by_their_definition():
    rng = np.random.default_rng(0)
    f, b = rng.normal(size=(30, 4)), rng.normal(size=(30, 2))
    whole = NormalEquations.from_blocks([(f, b)])
    expected = np.linalg.solve(f.T @ f + 0.7 * np.eye(4), f.T @ b)
    assert np.allclose(whole.solution(0.7), expected, rtol=1e-12)
    assert np.allclose(whole.solution(0.7), f.T @ np.linalg.solve(f @ f.T + 0.7 * np.eye(30), b), rtol=1e-11)
    scales = np.array([1.0, 0.0, 2.0, 0.5])
    assert np.allclose(
        whole.rescale(scales).solution(0.7),
        NormalEquations.from_blocks([(f[:, [0, 2, 3]] * [1, 2, 0.5], b)]).solution(0.7),
    )


def test_a_value_of_zero_is_no_failure():
    """Identical predictions and balanced labels: K Z = 0, and no relative error is small."""
    y, p = np.arange(40) % 4, np.full((40, 4), 0.25)
    found = kcalib.ckce.result(y, p)
    assert 0 <= found.value <= found.error_bound < 1e-14


@pytest.mark.parametrize("method", [Fourier(n_features=20), Nystrom(n_landmarks=20), PivotedCholesky(rank=20)], ids=str)
def test_seeds(method):
    y, p = softmax_problem(200, 10)
    first = kcalib.ckce(y, p, method=replace(method, seed=1))
    assert kcalib.ckce(y, p, method=replace(method, seed=1)) == first
    other = kcalib.ckce.result(y, p, method=replace(method, seed=2))
    assert other.value != first and other.seed == 2


@pytest.mark.parametrize("method", METHODS)
def test_threads_do_not_change_a_bit(method):
    y, p = softmax_problem(700, 10)
    assert kcalib.ckce(y, p, method=method, threads=1) == kcalib.ckce(y, p, method=method, threads=3)


# Inputs


def test_every_array_library_gives_the_same(xp):
    y, p = softmax_problem(60, 3)
    expected = {method: kcalib.ckce(y, p, method=method) for method in METHODS}
    for method, value in expected.items():
        found = kcalib.ckce.result(xp.asarray(y), xp.asarray(p), method=method)
        assert found.backend == xp.backend
        assert isinstance(found.value, float) and found.value == pytest.approx(value, rel=1e-7), method
    assert kcalib.jkce(xp.asarray(y), xp.asarray(p)) == pytest.approx(kcalib.jkce(y, p), rel=1e-12)


def test_no_nan_for_degenerate_predictions():
    for y, p in (
        duplicates_problem(64, 3),
        (np.zeros(20, int), np.tile([0.25, 0.75], (20, 1))),  # identical, a single class
        (np.arange(20) % 3, np.eye(3)[np.arange(20) % 3]),  # one-hot and right
        (np.arange(20) % 3, np.eye(3)[(np.arange(20) + 1) % 3]),  # one-hot and wrong
        (np.zeros(30, int), softmax_problem(30, 3)[1]),  # a single class
        (np.array([1]), np.array([[0.3, 0.7]])),
    ):
        expected = kcalib.ckce(y, p)
        assert math.isfinite(expected) and expected >= 0
        for method in METHODS:
            assert kcalib.ckce(y, p, method=method) == pytest.approx(expected, rel=0.9, abs=1e-30), method
    # Right and certain: no residual at all.
    y = np.arange(20) % 3
    for method in METHODS:
        assert kcalib.ckce(y, np.eye(3)[y], method=method) == 0


def test_identical_predictions_need_no_bandwidth():
    y, p = np.array([0, 1, 1]), np.tile([0.5, 0.5], (3, 1))
    found = kcalib.ckce.result(y, p)
    assert found.value == pytest.approx(literal(Linear() + Gaussian(bandwidth=7.0), y, p), rel=1e-13)
    assert found.bandwidth_source.startswith("any")
    assert kcalib.ckce.result(y, p, kernel=PAPER).bandwidth_source == "given"


def test_labels_logits_and_classes():
    y, p = softmax_problem(40, 3)
    value = kcalib.ckce(y, p)
    assert kcalib.ckce(np.array(["a", "b", "c"])[y], p, classes=["a", "b", "c"]) == value
    assert kcalib.ckce(y, np.log(p), from_logits=True) == pytest.approx(value, rel=1e-11)
    assert kcalib.ckce(np.eye(3)[y], p) == value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regularization": 0}, "`regularization` is 0, expected a positive finite number"),
        ({"regularization": -1.0}, "`regularization` is -1"),
        ({"regularization": math.nan}, "`regularization` is nan"),
        ({"regularization": math.inf}, "`regularization` is inf"),
        ({"method": "exact"}, "`method` is 'exact', expected one of 'auto'"),
        ({"method": Nystrom(n_landmarks=31)}, "`n_landmarks` is 31, expected an integer between 1 and 30"),
        ({"method": PivotedCholesky(rank=31)}, "`rank` is 31, expected an integer between 1 and 30"),
        ({"method": ConjugateGradient(rank=31)}, "`rank` is 31, expected an integer between 0 and 30"),
        ({"method": "fourier", "kernel": Exponential(bandwidth=1.0)}, "neither linear nor Gaussian"),
        ({"method": "fourier", "kernel": Linear() * Gaussian(bandwidth=1.0)}, "neither linear nor Gaussian"),
        ({"method": "fourier", "regularization": 1e-12}, "below 1e-10 of the trace"),
        ({"target_kernel": [[1.0, 2.0, 0], [2.0, 1.0, 0], [0, 0, 1]]}, "positive semi-definite"),
        ({"backend": "gpu"}, "`backend` is 'gpu'"),
    ],
)
def test_wrong_values_are_named(options, message):
    y, p = softmax_problem(30, 3)
    with pytest.raises(ValueError, match="(?s).*") as error:
        kcalib.ckce(y, p, **options)
    assert message in str(error.value) and "larger one helps" not in str(error.value)


@pytest.mark.parametrize(
    ("method", "options", "error", "message"),
    [
        (AutomaticSolver, {"tol": 0.0}, ValueError, "`tol` is 0.0, expected a positive finite number"),
        (Cholesky, {"tol": [1]}, TypeError, r"`tol` is \[1\], expected a positive number"),
        (ConjugateGradient, {"tol": math.inf}, ValueError, "`tol` is inf"),
        (ConjugateGradient, {"tol": True}, TypeError, "`tol` is True"),
        (ConjugateGradient, {"rank": -1}, ValueError, "`rank` is -1, expected an integer at least 0"),
        (ConjugateGradient, {"products": "float16"}, ValueError, "`products` is 'float16', expected one of 'auto'"),
        (ConjugateGradient, {"max_iterations": 0}, ValueError, "`max_iterations` is 0"),
        (Fourier, {"n_features": 0}, ValueError, "`n_features` is 0, expected an integer at least 1"),
        (Nystrom, {"n_landmarks": 0}, ValueError, "`n_landmarks` is 0"),
        (Nystrom, {"n_landmarks": 2.5}, TypeError, "`n_landmarks` is 2.5, expected an integer"),
        (PivotedCholesky, {"rank": 0}, ValueError, "`rank` is 0"),
        *((cls, {"seed": -1}, ValueError, "`seed` is -1") for cls in METHODS.values() if cls is not Cholesky),
        (Cholesky, {"seed": 1}, TypeError, "unexpected keyword argument 'seed'"),
        (Fourier, {"tol": 1e-3}, TypeError, "unexpected keyword argument 'tol'"),
    ],
)
def test_options_are_checked_when_a_method_is_made(method, options, error, message):
    with pytest.raises(error, match=message):
        method(**options)


@pytest.mark.parametrize("method", METHODS)
def test_a_name_is_a_method_with_its_defaults(method):
    y, p = softmax_problem(250, 3)
    assert kcalib.ckce(y, p, method=METHODS[method]()) == kcalib.ckce(y, p, method=method)
    assert getattr(kcalib.methods, METHODS[method].__name__) is METHODS[method]
    with pytest.raises(AttributeError):
        METHODS[method]().tol = 1.0
    with pytest.raises(TypeError, match="`method` is the class"):
        kcalib.ckce(y, p, method=METHODS[method])


@pytest.mark.parametrize("options", [{"regularization": "1"}, {"regularization": True}, {"method": 3}])
def test_wrong_types_are_named(options):
    y, p = softmax_problem(30, 3)
    with pytest.raises(TypeError, match="expected (a|one of)"):
        kcalib.ckce(y, p, **options)


def test_unreachable_tolerance_keeps_value_and_bound():
    y, p = softmax_problem(40, 3)
    with pytest.warns(kcalib.ToleranceWarning, match="has the error bound"):
        found = kcalib.ckce.result(y, p, kernel=PAPER, method=AutomaticSolver(tol=1e-18))
    assert found.value == pytest.approx(literal(PAPER, y, p), rel=1e-12)
    assert found.error_bound > 1e-18 * found.value


def test_indefinite_kernels_have_no_bound():
    y, p = softmax_problem(40, 3)
    kernel = Gaussian(bandwidth=0.5, metric="cityblock")
    for method in ("cholesky", "nystrom"):
        with pytest.warns(kcalib.IndefiniteKernelWarning):
            found = kcalib.ckce.result(y, p, kernel=kernel, method=method)
        assert found.error_bound is None and found.error_bound_kind.startswith("none")


@pytest.mark.parametrize(("n", "m"), [(400, 2), (1500, 2), (1500, 3)])
def test_pivots_in_float32_are_rounded_as_float32(n, m):
    """What is left of K is noise of 1e-7, sometimes below 0: no sign of an indefinite kernel."""
    y, p = softmax_problem(n, m)
    exact = kcalib.ckce(y, p)
    for method in ("auto", "cg", "pivoted_cholesky", "nystrom"):
        loose = METHODS[method]() if method in LOW_RANK else METHODS[method](tol=0.02)
        found = kcalib.ckce.result(y, p, method=loose, dtype="float32")
        assert abs(found.value - exact) <= found.error_bound and abs(found.value / exact - 1) < 1e-3, method


def test_float32():
    y, p = softmax_problem(100, 4)
    exact = kcalib.ckce(y, p, kernel=PAPER)
    single = kcalib.ckce.result(y, p, kernel=PAPER, dtype="float32")
    assert single.dtype == "float32" and single.value != exact
    assert abs(single.value - exact) <= single.error_bound
    assert single.value == pytest.approx(exact, rel=1e-5)


def test_results_are_plain():
    y, p = softmax_problem(40, 3)
    for method in METHODS:
        found = kcalib.ckce.result(y, p, method=method)
        assert float(found) == found.value == kcalib.ckce(y, p, method=method)
        assert pickle.loads(pickle.dumps(found)) == found
        json.dumps(asdict(found))
        assert found.memory > 0 and found.seconds > 0 and found.n_samples == 40 and found.n_classes == 3
        assert found.method != "auto" and found.method_reason


# JKCE


def test_jkce_is_the_mmd_of_equation_11():
    y, p = softmax_problem(30, 3)
    for matrix in (None, psd_matrix(3, 2)):
        h = oracle.h_matrix(PAPER, y, p, m_matrix=matrix)
        options = {"kernel": PAPER, "target_kernel": "delta" if matrix is None else matrix}
        assert kcalib.jkce(y, p, **options) == pytest.approx(oracle.unbiased(h), rel=1e-11)
        assert kcalib.jkce(y, p, estimator="biased", **options) == pytest.approx(oracle.biased(h), rel=1e-12)
    with pytest.raises(ValueError, match="`estimator` is 'block', expected one of 'unbiased', 'biased'"):
        kcalib.jkce(y, p, estimator="block")


# The paper's claims


LOCATIONS = (-1.0, -0.5, 0.0, 0.5, 1.0)


def spread(values) -> float:
    """Largest by smallest."""
    return max(values) / min(values)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_covariate_shift(seed):
    """Section 5.2: over the location of the inputs CKCE stays flat, JKCE does not, ECE less so.

    In twelve runs the spread was 1.16 to 1.69 for the CKCE (mean 1.37), 7.4 to 12.2 for the JKCE, and 1.57 to 2.1 for
    the ECE.
    """
    ckce, jkce, ece = [], [], []
    for location in LOCATIONS:
        y, p = covariate_shift(1000, location, seed)
        ckce.append(kcalib.ckce(y, p, method=PivotedCholesky(rank=50)))
        jkce.append(kcalib.jkce(y, p))
        ece.append(kcalib.top_label_ece(y, p))
    assert spread(ckce) < 2.0 and spread(jkce) > 5.0
    assert spread(ckce) < spread(ece)


def test_both_parts_of_the_kernel_are_needed():
    """Section 5.3: the mean CKCE dips at location 0 with the linear and with the Gaussian kernel alone.

    Means of twelve runs at 0 by those at 0.5 and -0.5: 0.97 with both, 0.76 and 0.62 with one. A run deviates by 13 %,
    so that the ratio of means of ten deviates by 5 %; the runs of the three kernels share their samples.
    """
    ratios = {}
    for name, kernel in (("both", None), ("linear", Linear()), ("gaussian", Gaussian())):
        means = []
        for location in (-0.5, 0.0, 0.5):
            problems = [covariate_shift(1000, location, seed) for seed in range(10)]
            means.append(
                np.mean([kcalib.ckce(y, p, kernel=kernel, method=PivotedCholesky(rank=50)) for y, p in problems])
            )
        ratios[name] = 2 * means[1] / (means[0] + means[2])
    assert ratios["both"] > 0.82 and ratios["gaussian"] < 0.78
    assert ratios["both"] > 1.1 * ratios["linear"] > 1.1 * ratios["gaussian"]


def test_models_rank_by_conditional_calibration():
    """Two models that turn a prediction q into sigmoid(logit(q) / 5), but predict in different places.

    The CKCE of the two is the same within noise, the JKCE is not: the first is worse by a factor of 8 on average.
    A model that is calibrated better is ranked first wherever it predicts.
    """
    first, second, joint = [], [], []
    for seed in range(10):
        y, p = covariate_shift(500, -0.5, seed)
        z, q = covariate_shift(500, 0.0, 100 + seed)
        better = 1 / (1 + np.exp(-0.4 * np.log(p / (1 - p))))  # sigmoid(2 x)
        first.append(kcalib.ckce(y, p, method=PivotedCholesky(rank=50)))
        second.append(kcalib.ckce(z, q, method=PivotedCholesky(rank=50)))
        joint.append(kcalib.jkce(y, p) / kcalib.jkce(z, q))
        assert kcalib.ckce(y, better, method=PivotedCholesky(rank=50)) < min(first[-1], second[-1])
    error = math.sqrt((np.var(first, ddof=1) + np.var(second, ddof=1)) / 10)
    assert abs(np.mean(first) - np.mean(second)) < 4 * error
    assert np.mean(first) < 1.5 * np.mean(second)
    assert np.median(joint) > 4


def test_marginal_model_of_table_1():
    """1000 classes, all equally probable for every sample, one sample of each.

    The residuals sum to 0 and K is constant, so that K Z = 0. The unbiased JKCE is minus the trace over n (n - 1):
    k(p, p) (1 - 1/m) / (n - 1) with k(p, p) = 1 + 1/m.
    """
    m, n = 1000, 1000
    y, p = np.arange(n) % m, np.full((n, m), 1 / m)
    found = kcalib.ckce.result(y, p, method=Nystrom(n_landmarks=1))
    assert 0 <= found.value < 1e-25
    assert kcalib.jkce(y, p) == pytest.approx(-(1 + 1 / m) * (1 - 1 / m) / (n - 1), rel=1e-9)


def test_a_pivot_that_rounding_left_nothing_of():
    """Two classes, a linear kernel and more pivots than its rank: the last ones are noise, and one may be 0."""
    equations = NormalEquations(np.eye(2), np.ones((2, 2)), 2.0)
    bound = rounding_bound(equations, 1.0, 1e-15, np.array([1.0, 0.0]))
    assert 0 < bound < 1


def test_a_matrix_that_rounding_makes_indefinite_asks_for_a_larger_shift():
    y, p = softmax_problem(20, 3)
    with pytest.raises(ValueError, match=r"\(the shift is n times `regularization`, 4e-18; enlarge `regularization`\)"):
        kcalib.ckce(np.tile(y, 2), np.tile(p, (2, 1)), kernel=PAPER, regularization=1e-19, method="cholesky")
