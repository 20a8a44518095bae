"""Estimation functions, Kronecker systems and low-rank features of CuPy arrays: what they are of NumPy arrays."""

from __future__ import annotations

import emulated_cupy
import numpy as np
import pytest
from libraries import MakeProblem

import kcalib
from kcalib import _native
from kcalib.kernels import Exponential, Gaussian, Linear
from kcalib.lenses import ClassWise, TopLabel
from kcalib.regression import (
    KKR,
    UKKR,
    BinnedCalibration,
    DirichletKDE,
    SquaredCalibrationErrorCV,
    TemperatureCalibration,
)
from kcalib.regression import dirichlet_kde as dirichlet
from kcalib.solvers import kernel_operator, kronecker
from kcalib.solvers.low_rank import FourierFeatures, NormalEquations, NystromFeatures, row_blocks

EPSILON = 2.0**-52


def sums_of(queries, training, offsets, labels, n_classes, leave_one_out) -> tuple[np.ndarray, np.ndarray]:
    """By the GPU's text, from NumPy arrays to NumPy arrays."""
    import cupy

    arrays = (cupy.asarray(a) for a in (queries, training, offsets, labels))
    return tuple(a.get() for a in dirichlet.class_shares(*arrays, n_classes, leave_one_out, None))


def check_sums(queries, training, offsets, labels, n_classes, leave_one_out=False) -> None:
    """Against the compiled core, to the rounding of costs."""
    arguments = queries, training, offsets, labels, n_classes, leave_one_out
    shares, log_sums = sums_of(*arguments)
    expected, expected_logs = _native.class_shares(*arguments, _native.RunOptions(1))
    # A cost is a sum of m products and an offset, in either order; a weight is off by what its cost is.
    epsilon = float(np.finfo(training.dtype).eps)
    size = np.max(np.abs(queries).astype(float) @ np.abs(training).astype(float).T + np.abs(offsets))
    rounding = epsilon * (4 * np.sqrt(training.shape[1]) * size + 10)
    assert np.max(np.abs(shares - expected)) <= rounding
    assert np.max(np.abs(log_sums - expected_logs)) <= rounding
    assert np.allclose(shares.sum(axis=1), 1, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("n", "n_queries", "m", "leave_one_out"),
    [
        (1, 3, 2, False),
        (130, 70, 2, False),
        (197, 197, 10, True),
        (150, 65, 37, False),
        (2, 2, 3, True),
        (9, 9, 16, False),
    ],
)
def test_sums_of_the_compiled_core(cupy, dtype, n, n_queries, m, leave_one_out):
    """Ragged sizes, groups of one tile, tiles with one label and with many; and labels that nobody has."""
    rng = np.random.default_rng(n + m)
    training = (rng.dirichlet(np.ones(m), size=n) / 0.05).astype(dtype)
    queries = training if leave_one_out else -np.log(rng.dirichlet(np.ones(m), size=n_queries)).astype(dtype)
    labels = np.sort(rng.choice(np.delete(np.arange(m + 3), m // 2), size=n)).astype(np.int32)
    check_sums(queries, training, rng.normal(size=n).astype(dtype), labels, m + 3, leave_one_out)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_many_classes(cupy, dtype, monkeypatch):
    """Inner products by cuBLAS, of some queries at a time; several labels in a tile."""
    rng = np.random.default_rng(0)
    training = (rng.dirichlet(np.ones(70), size=140) / 0.05).astype(dtype)
    labels = np.sort(rng.integers(0, 70, size=140)).astype(np.int32)
    monkeypatch.setattr(dirichlet, "PRODUCTS_BYTES", 64 * 140 * 8)
    for leave_one_out in (False, True):
        check_sums(training, training, rng.normal(size=140).astype(dtype), labels, 70, leave_one_out)


def test_costs_in_float32_are_not_rounded_to_tf32(emulation, monkeypatch):
    """Where CuPy is told to use it, no product of matrices is asked of it."""

    def refused(*arrays):
        raise AssertionError("a product of matrices")

    monkeypatch.setattr(emulation.ndarray, "__matmul__", refused)
    rng = np.random.default_rng(0)
    training = (rng.dirichlet(np.ones(70), size=80) / 0.05).astype(np.float32)
    arguments = training, training, rng.normal(size=80).astype(np.float32)
    labels = np.sort(rng.integers(0, 70, size=80)).astype(np.int32)
    with pytest.raises(AssertionError, match="a product of matrices"):
        check_sums(*arguments, labels, 70)
    monkeypatch.setenv("CUPY_TF32", "1")
    check_sums(*arguments, labels, 70)


def test_several_tiles_in_a_group(cupy, monkeypatch):
    monkeypatch.setattr(dirichlet, "GROUPS", 2)
    rng = np.random.default_rng(3)
    training, queries = rng.exponential(size=(333, 5)), rng.exponential(size=(70, 5))
    check_sums(queries, training, rng.normal(size=333), np.sort(rng.integers(0, 4, 333)).astype(np.int32), 4)


@pytest.mark.parametrize("steps", [np.linspace(3e5, 0, 150), np.linspace(0, 3e5, 150), np.full(150, 1e6)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_weights_that_grow_by_more_than_any_number_holds(cupy, monkeypatch, dtype, steps):
    """Floors that go down from tile to tile and from group to group, and samples that are all far."""
    monkeypatch.setattr(dirichlet, "GROUPS", 2)
    queries = np.array([[1.0], [0.5], [1e-3]], dtype=dtype)
    labels = (np.arange(150) // 40).astype(np.int32)
    check_sums(queries, steps[:, None].astype(dtype), np.zeros(150, dtype=dtype), labels, 4)


def test_duplicates(cupy):
    """37 samples at one place, each seen by the others."""
    training, labels = np.full((37, 2), 7.0), np.repeat([0, 2], [25, 12]).astype(np.int32)
    shares, log_sums = sums_of(training, training, np.zeros(37), labels, 3, True)
    assert np.allclose(shares, np.where(labels[:, None] == 0, [24 / 36, 0, 12 / 36], [25 / 36, 0, 11 / 36]), rtol=1e-15)
    assert np.all(shares[:, 1] == 0) and np.allclose(log_sums, np.log(36) - 98, rtol=1e-15)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bits_do_not_depend_on_other_queries_nor_on_launches(cupy, dtype, monkeypatch):
    rng = np.random.default_rng(0)
    training, queries = (rng.exponential(size=(n, 6)).astype(dtype) for n in (200, 150))
    problem = training, rng.normal(size=200).astype(dtype), np.sort(rng.integers(0, 9, 200)).astype(np.int32), 9, False
    whole = sums_of(queries, *problem)
    few = sums_of(queries[[141, 5]], *problem)
    done: list[float] = []
    monkeypatch.setattr(dirichlet, "WORK", 1)
    monkeypatch.setattr(dirichlet, "FEWEST_ROWS", 64)
    arrays = (cupy.asarray(a) for a in (queries, *problem[:3]))
    launches = [a.get() for a in dirichlet.class_shares(*arrays, *problem[3:], done.append)]
    for a, b, c in zip(whole, few, launches, strict=True):
        assert np.array_equal(a[[141, 5]], b) and np.array_equal(a, c)
    assert np.allclose(done, [64 / 150, 128 / 150, 1])


def test_sums_of_a_launch_are_bounded(monkeypatch):
    assert dirichlet._rows(10**5, 10, 138) * 138 * 16 <= dirichlet.SUMS_BYTES
    assert dirichlet._rows(10**5, 1000, 1128) * 1128 * 16 <= dirichlet.SUMS_BYTES
    rows = dirichlet._rows(10**6, 1000, 1128)
    assert rows % 64 == 0 and rows * 10**6 * 1030 <= dirichlet.WORK
    assert dirichlet._rows(10**9, 1000, 10**6) == 64


@pytest.mark.parametrize(("n", "m"), [(5, 1), (33, 2), (17, 40)])
def test_log_normalisers(cupy, n, m):
    x = np.random.default_rng(n).choice([0.0, 1e-300, 1e-9, 0.3, 2.5, 7.9999, 8.0, 31.0, 1e7, 1e14], size=(n, m))
    found, expected = (
        dirichlet.log_normalisers(cupy.asarray(x)).get(),
        _native.log_normalisers(x, _native.RunOptions(1)),
    )
    # This is the error of each logarithm of Gamma; below 8 it is a difference of numbers below 24.
    total = x.sum(axis=1)
    size = np.sum(x * np.log(x + 2), axis=1) + 24 * (m + 1) + total * np.log(total + m + 1)
    assert np.all(np.abs(found - expected) <= 4 * EPSILON * size)


# Public functions


FUNCTIONS = [
    DirichletKDE(0.05),
    DirichletKDE(0.05, orientation="query", lens=TopLabel()),
    DirichletKDE(0.2, dtype="float32"),
    DirichletKDE("likelihood"),
    BinnedCalibration(7),
    BinnedCalibration(5, binning="equal_mass", lens=ClassWise(1)),
    TemperatureCalibration(),
    TemperatureCalibration(2.0, lens=TopLabel()),
    UKKR(1e-3),
    KKR(1e-5),
    KKR(1e-5, kernel=Gaussian(bandwidth=0.02)),
    KKR(1e-3, kernel=Gaussian(bandwidth=0.3), lens=ClassWise(0)),
    *(pytest.param(kind(1e-3, kernel=Exponential(bandwidth=0.5)), marks=pytest.mark.slow) for kind in (KKR, UKKR)),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=repr)
def test_functions_are_those_of_numpy_arrays(cupy, function, make_problem: MakeProblem):
    """150 samples: a block of 10 pivots, of the factor of rank 105 that is tried, is a square of 100 numbers."""
    y, p = make_problem(150, 4)
    z, q = make_problem(130, 4, seed=1)
    expected = function.clone().fit(y, p)
    y, p, z_there, q_there = (cupy.asarray(a) for a in (y, p, z, q))
    with emulated_cupy.stays_on_device(at_most=100):
        found = function.clone().fit(y, p)
        error, risk, h = found.squared_error(q_there), found.risk(z_there, q_there), found.h(q_there, p)
    assert type(error) is float and type(risk) is float and type(h) is type(p)
    # Float32 costs have size 4 / 0.2; temperatures are searched to 1e-6; else rounding, times eigenvalues' quotients.
    rounding = (
        1e-5 if "float32" in repr(function) else 1e-6 if function.get_params().get("temperature", 1) is None else 1e-10
    )
    assert error == pytest.approx(expected.squared_error(q), rel=rounding)
    assert risk == pytest.approx(expected.risk(z, q), rel=rounding)
    values = expected.h(q, p.get())
    assert np.max(np.abs(h.get() - values)) <= rounding * np.max(np.abs(values))


def test_kde_calibration_error(cupy, make_problem: MakeProblem):
    y, p = make_problem(70, 5)
    for bandwidth, norm, orientation in [
        (0.03, "l1", "query"),
        (0.03, "l2", "training"),
        ("loo_risk", "l1", "training"),
    ]:
        keywords = {"bandwidth": bandwidth, "norm": norm, "orientation": orientation}
        expected = kcalib.kde_calibration_error.result(y, p, **keywords)
        with emulated_cupy.stays_on_device():
            found = kcalib.kde_calibration_error.result(cupy.asarray(y), cupy.asarray(p), **keywords)
        assert found.value == pytest.approx(expected.value, rel=1e-12)
        assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-12)
        assert found.bandwidth == expected.bandwidth and found.threads is None


def test_options_are_checked(cupy, make_problem: MakeProblem):
    y, p = (cupy.asarray(a) for a in make_problem(20, 3))
    with pytest.raises(ValueError, match="`threads` is 0"):
        DirichletKDE(0.1, threads=0).fit(y, p)
    with pytest.raises(ValueError, match="expected at least 1.2e-06 in float32"):
        kcalib.kde_calibration_error(y, p, bandwidth=1e-7, dtype="float32")
    with pytest.raises(MemoryError, match="fit fewer samples"):
        KKR(kernel=Gaussian(bandwidth=0.02), max_memory=1000).fit(y, p)


def test_rank_of_confidences_at_many_samples(cupy, make_problem: MakeProblem):
    """So many that a block of 64 pivots is less: nothing as long as the samples leaves the device."""
    y, p = make_problem(4500, 3)
    expected = KKR(1e-5, lens=TopLabel()).fit(y, p)
    with emulated_cupy.stays_on_device(at_most=64**2):
        found = KKR(1e-5, lens=TopLabel()).fit(cupy.asarray(y), cupy.asarray(p))
        error = found.squared_error(cupy.asarray(p))
    assert found.method_ == "low_rank" and abs(found.rank_ - expected.rank_) <= 1  # the last is near rounding
    assert error == pytest.approx(expected.squared_error(p), rel=1e-9)


@pytest.mark.parametrize("lens", [None, TopLabel()])
def test_cross_validation(cupy, lens, make_problem: MakeProblem):
    y, p = make_problem(70, 3)
    estimators = ["temperature", (DirichletKDE(), {"bandwidth": [0.01, 0.1]}), (UKKR(), {"regularization": [1e-3, 1]})]
    estimators += [] if lens is None else [(BinnedCalibration(), {"n_bins": [5, 9]})]
    expected = kcalib.squared_calibration_error(y, p, lens=lens, estimators=estimators)
    with emulated_cupy.stays_on_device(at_most=64):
        found = kcalib.squared_calibration_error(cupy.asarray(y), cupy.asarray(p), lens=lens, estimators=estimators)
    assert [e.estimator for e in found.estimators] == [e.estimator for e in expected.estimators]
    for a, b in zip(found.estimators, expected.estimators, strict=True):
        assert a.parameters == b.parameters
        assert a.risk == pytest.approx(b.risk, rel=1e-6) and a.value == pytest.approx(b.value, rel=1e-5)


@pytest.mark.parametrize("function", FUNCTIONS[::2], ids=repr)
def test_functions_and_predictions_meet_on_the_gpu(cupy, function, make_problem: MakeProblem):
    """Fitted on either side, evaluated on the other; nothing is brought to the host for it."""
    y, p = make_problem(60, 4)
    z, q = make_problem(80, 4, seed=1)
    here, there = function.clone().fit(y, p), function.clone().fit(cupy.asarray(y), cupy.asarray(p))
    rounding = (
        1e-5 if "float32" in repr(function) else 1e-6 if function.get_params().get("temperature", 1) is None else 1e-10
    )
    p_there, z_there, q_there = (cupy.asarray(a) for a in (p, z, q))
    with emulated_cupy.stays_on_device(at_most=7):
        errors = here.squared_error(q_there), there.squared_error(q), here.risk(z_there, q_there), there.risk(z, q)
        values = here.h(q_there), there.h(q), here.h(q, q_there), here.h(q_there, q), there.h(q, p)
    expected, risk = here.squared_error(q), here.risk(z, q)
    assert errors == pytest.approx((expected, expected, risk, risk), rel=rounding)
    assert {type(a) for a in values} == {type(p_there)}
    h = here.h(q)
    for found in values[:4]:
        assert np.max(np.abs(found.get() - h)) <= rounding * np.max(np.abs(h))
    assert np.max(np.abs(values[4].get() - here.h(q, p))) <= rounding * np.max(np.abs(h))


def test_two_gpus(emulation, make_problem: MakeProblem):
    """What is on the second is computed there, whichever is current; what is on both is refused."""
    y, p = make_problem(40, 3)
    with emulation.cuda.Device(1):
        y_there, p_there = emulation.asarray(y), emulation.asarray(p)
    kde = DirichletKDE(0.1).fit(y_there, p_there)
    assert kde.h(p_there).device.id == 1
    assert kde.risk(y, p) == pytest.approx(DirichletKDE(0.1).fit(y, p).risk(y, p), rel=1e-12)
    assert kronecker(emulation.asarray(np.eye(2))).solve(np.ones(4), 1.0).values.device.id == 0
    for function in (kde, TemperatureCalibration().fit(y_there, p_there)):
        with pytest.raises(ValueError, match="bring them to one GPU"):
            function.squared_error(emulation.asarray(p))


@pytest.mark.parametrize("library", ["CudaTensor", "CudaJaxArray"])
def test_tensors_of_other_libraries(emulation, monkeypatch, library, make_problem: MakeProblem):
    """What has the size of the predictions comes back as what they are."""
    stand_ins = pytest.importorskip("cuda_stand_ins")
    stand_ins.returned(monkeypatch)
    there = getattr(stand_ins, library)
    y, p = make_problem(40, 3)
    options = [(DirichletKDE(), {"bandwidth": [0.1]})]
    kde, cv = (kind.fit(there.of(y), there.of(p)) for kind in (DirichletKDE(0.1), SquaredCalibrationErrorCV(options)))
    expected = DirichletKDE(0.1).fit(y, p).h(p), SquaredCalibrationErrorCV(options).fit(y, p).h(p)
    for found, values in zip((kde.h(there.of(p)), cv.h(there.of(p))), expected, strict=True):
        assert type(found) is there and np.allclose(found.on_host(), values, rtol=0, atol=1e-13)
    solution = kronecker(np.eye(2)).solve(there.of(np.arange(4.0)), [1.0, 3.0]).values
    assert type(solution) is there and np.allclose(solution.on_host(), np.outer([1 / 2, 1 / 4], np.arange(4)))


# Kronecker systems


def psd(rng: np.random.Generator, n: int) -> np.ndarray:
    factor = rng.normal(size=(n, n))
    return factor @ factor.T / n


def test_kronecker(cupy):
    rng = np.random.default_rng(0)
    a, b, right = psd(rng, 12), psd(rng, 9), rng.normal(size=(108, 5))
    shifts = [0.5, 2.0]
    expected = kronecker(a, b).solve(right, shifts)
    a_there, b_there, right_there = (cupy.asarray(x) for x in (a, b, right))
    with emulated_cupy.stays_on_device():
        found = [
            kronecker(*matrices).solve(r, shifts)
            for matrices in ((a_there, b_there), (a, b_there), (a_there, b), (a, b))
            for r in (right_there, right)
        ][:-1]
        one = kronecker(a_there).solve(cupy.asarray(np.ones((12, 12))), 1.0)
    for solution in found:
        assert type(solution.values) is type(a_there) and (solution.relative_residual < 1e-13).all()
        assert np.allclose(solution.values.get(), expected.values, rtol=0, atol=1e-12)
    assert np.allclose(one.values.get(), kronecker(a).solve(np.ones((12, 12)), 1.0).values, rtol=0, atol=1e-12)
    assert "relative_residual" in repr(one)


def test_kronecker_of_rank_one_and_zero_sides(cupy):
    solution = kronecker(cupy.ones((2, 2))).solve(cupy.zeros(4), 1.0)
    assert solution.truncated == (1, 1) and solution.relative_residual == 0
    assert kronecker(cupy.ones((2, 2))).solve(cupy.zeros((4, 0)), 1.0).values.shape == (4, 0)


def test_kronecker_refuses(cupy):
    general, symmetric = np.array([[1.0, 2.0], [0.0, 1.0]]), np.eye(2)
    with pytest.raises(NotImplementedError, match="the Schur form of a matrix that is not symmetric"):
        kronecker(cupy.asarray(general))
    with pytest.raises(NotImplementedError, match="a system with a matrix that is not symmetric"):
        kronecker(general).solve(cupy.ones(4), 1.0)
    with pytest.raises(ValueError, match=r"times 1 is minus the shift -1, to rounding"):
        kronecker(cupy.asarray(symmetric)).solve(cupy.ones(4), -1.0)
    with pytest.raises(ValueError, match=r"`left\[1, 0\]` is nan, expected a finite number"):
        kronecker(cupy.asarray([[1.0, 0.0], [np.nan, 1.0]]))
    with pytest.raises(TypeError, match="`right_sides` has dtype complex128"):
        kronecker(cupy.asarray(symmetric)).solve(cupy.ones(4) * 1j, 1.0)


# Low-rank features


def test_fourier_features_and_normal_equations(cupy):
    rng = np.random.default_rng(0)
    points, right = rng.dirichlet(np.ones(4), size=150), rng.normal(size=(150, 3))
    terms = (Linear() + Gaussian(bandwidth=0.5)).terms()
    points_there, right_there = cupy.asarray(points), cupy.asarray(right)
    host = FourierFeatures.draw(terms, 4, 10, 3)
    scales = host.without_group(1, 5, 4)
    f = host(points)
    expected = NormalEquations.from_blocks([(f, right)])
    for features in (host, FourierFeatures.draw(terms, 4, 10, 3, points_there)):
        with emulated_cupy.stays_on_device():
            blocks = ((features(points_there[rows]), right_there[rows]) for rows in row_blocks(150, 27, points_there))
            found = NormalEquations.from_blocks(blocks)
            solution, scaled = found.solution(0.3), found.rescale(scales).solution(0.3)
        assert np.allclose(found.gram.get(), expected.gram, rtol=0, atol=1e-12)
        assert found.squares == pytest.approx(expected.squares, rel=1e-14)
        assert np.allclose(solution.get(), expected.solution(0.3), rtol=0, atol=1e-11)
        assert np.allclose(scaled.get(), expected.rescale(scales).solution(0.3), rtol=0, atol=1e-11)


def test_blocks_are_larger_on_a_gpu(cupy):
    assert len(list(row_blocks(10**5, 100))) > 70
    assert len(list(row_blocks(10**5, 100, cupy.zeros(1)))) == 1
    assert list(row_blocks(10**5, 100, np.zeros(1))) == list(row_blocks(10**5, 100))


def test_nystrom_features(cupy):
    """Landmarks are those of the host, and of their matrix alone, of 10 x 10 numbers, is the host told."""
    points = np.random.default_rng(0).dirichlet(np.ones(3), size=150)
    kernel = Gaussian(bandwidth=0.3)
    here = NystromFeatures(kernel_operator(points, kernel), 10, 5)
    with emulated_cupy.stays_on_device(at_most=100):
        there = NystromFeatures(kernel_operator(cupy.asarray(points), kernel), 10, 5)
        features = there(slice(0, 150))
    assert np.array_equal(there.landmarks, here.landmarks) and there.rank == here.rank
    assert np.allclose(there.pivots.get(), here.pivots, rtol=0, atol=1e-13)
    # Rounding of entries by the root of the smallest pivot.
    rounding = 1e-14 / np.sqrt(here.pivots.min())
    assert np.allclose(features.get(), here(slice(0, 150)), rtol=0, atol=rounding)
