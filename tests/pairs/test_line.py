"""Points on a line: sums, quadratic forms and medians against brute force, and what is extreme."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from grid import some
from problems import (
    KERNELS,
    LINE_KERNELS,
    PLACES,
    PRODUCT_KERNELS,
    brute_median,
    on_a_grid,
    psd_matrix,
    softmax_problem,
    unusual_samples,
)

from kcalib import _native, _packing
from kcalib import kernels as K
from kcalib._backend.random import BinaryDraws, Weights, draw_label_batches
from kcalib._input.labels import prepare
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.backends.sorted_line import SortedBackend
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import (
    BlockSums,
    DenseRectangle,
    LabelMatches,
    Moments,
    Products,
    QuadraticForms,
    sweep_one,
)
from kcalib.bandwidth import median_distance


def pair_problem(y, p, kernel, target="delta") -> PairProblem:
    return _packing.pack(prepare(y, p), kernel, target).problem


def check_sums(kernel, y, p, tolerance=1e-13):
    """Total, trace and sum of squares to 1e-13 of the sums of absolute terms."""
    h = np.asarray(oracle.h_matrix(kernel, y, p), float)
    off = h - np.diag(np.diag(h))
    backend = SortedBackend(pair_problem(y, p, kernel))
    moments = sweep_one(backend, Moments(second=True, rows=False))
    assert moments.row_sums is None
    # The oracle's target factor adds up terms of size 1.
    floor = 8 * float(np.finfo(np.longdouble).eps) * float(np.sum(oracle.kernel_matrix(kernel, p, p)))
    assert abs(moments.total - off.sum()) <= tolerance * np.abs(off).sum() + floor
    assert abs(moments.trace - np.trace(h)) <= tolerance * np.trace(h) + floor
    assert abs(moments.sum_of_squares - (off**2).sum()) <= 2 * tolerance * (off**2).sum() + floor
    with_rows = sweep_one(backend, Moments(second=True))
    assert (with_rows.total, with_rows.trace) == (moments.total, moments.trace)
    assert with_rows.sum_of_squares == moments.sum_of_squares


@pytest.mark.parametrize("kernel", LINE_KERNELS)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 511, 513])
def test_sums(kernel, n):
    check_sums(KERNELS[kernel], *softmax_problem(n, 2, seed=n))


@pytest.mark.parametrize("order", ["sorted", "reversed", "one label", "ties", "one place", "two places", "duplicates"])
@pytest.mark.parametrize("kernel", ["exponential", "matern_2.5", "mixed"])
def test_sums_of_unusual_samples(order, kernel):
    check_sums(KERNELS[kernel], *unusual_samples(order, 300))


@pytest.mark.parametrize("bandwidth", [1e-12, 1e-9, 1e-4, 1e4, 1e12])
@pytest.mark.parametrize("profile", [K.Exponential, K.Matern])
def test_sums_with_extreme_bandwidths(bandwidth, profile):
    y, p = on_a_grid(200)
    p[50:100] = p[:50]
    check_sums(profile(bandwidth=bandwidth), y, p)


def test_residuals_below_rounding_count_as_they_are():
    """Certain and right: residuals (-1e-20, 0), whose products are 1e-40, not half of it."""
    y = np.array([1, 1, 1, 0])
    p = np.array([[1e-20, 1.0], [3e-20, 1.0], [1e-22, 1.0], [1.0, 2e-21]])
    residuals = np.eye(2)[y] - p
    kernel = np.exp(-np.sqrt(2) * np.abs(p[:, 1] - p[:, 1:]) / 0.5)
    h = kernel * (residuals @ residuals.T)
    backend = SortedBackend(pair_problem(y, p, K.Exponential(bandwidth=0.5)))
    moments = sweep_one(backend, Moments(second=True, rows=False))
    off = h - np.diag(np.diag(h))
    assert moments.total == pytest.approx(off.sum(), rel=1e-13, abs=0)
    assert moments.trace == pytest.approx(np.trace(h), rel=1e-13, abs=0)
    assert moments.sum_of_squares == pytest.approx((off**2).sum(), rel=1e-13, abs=0)
    np.testing.assert_allclose(sweep_one(backend, Products(np.eye(4))), h, rtol=1e-13, atol=0)
    weights = Weights("rademacher", 4, 9, 0)
    w = weights.values()
    expected = np.einsum("ib,ij,jb->b", w, h, w)
    np.testing.assert_allclose(
        sweep_one(backend, QuadraticForms(weights)), expected, rtol=0, atol=1e-13 * np.abs(h).sum()
    )


@pytest.mark.parametrize("kernel", some(["exponential", "matern_2.5"], "exponential"))
def test_sums_carried_across_chunks(kernel):
    y, p = softmax_problem(20_011, 2, seed=3)
    p[5000:9000] = p[4000]
    problem = pair_problem(y, p, KERNELS[kernel])
    found = sweep_one(SortedBackend(problem), Moments(second=True))
    expected = sweep_one(CpuBackend(problem), Moments(second=True))
    sizes = PairProblem(Side(problem.left.points, np.abs(problem.left.features)), None, problem.kernel)
    scale = sweep_one(CpuBackend(sizes), Moments()).row_sums
    assert abs(found.total - np.sum(expected.row_sums)) <= 1e-13 * scale.sum()
    assert (np.abs(found.row_sums - expected.row_sums) <= 1e-13 * scale).all()
    assert found.sum_of_squares == pytest.approx(expected.sum_of_squares, rel=1e-12)


@pytest.mark.parametrize("size", [2, 7, 100, 4000])
def test_block_sums_are_those_of_the_blocks(size):
    y, p = softmax_problem(12_001, 2)
    p[2000:2500] = p[0]
    problem = pair_problem(y, p, KERNELS["matern_1.5"])
    found = sweep_one(SortedBackend(problem), BlockSums(size))
    assert found.shape == (len(y) // size,)
    for b in {0, 1, len(found) // 2, len(found) - 1}:
        block = PairProblem(problem.left.take(slice(b * size, (b + 1) * size)), None, problem.kernel)
        sums = sweep_one(CpuBackend(block), Moments()).row_sums
        assert abs(found[b] - sums.sum()) <= 1e-13 * 4 * size**2


COLUMNS = (0, 1, 3, 8, 16, 17, 40)


def check_products(kernel, y, p, columns=COLUMNS):
    """To 1e-13 of |H| |V|, for numbers of columns that do and do not fill registers and cache lines."""
    h = np.asarray(oracle.h_matrix(kernel, y, p), float)
    floor = 8 * float(np.finfo(np.longdouble).eps) * np.asarray(oracle.kernel_matrix(kernel, p, p), float)
    backend = SortedBackend(pair_problem(y, p, kernel))
    v = np.random.default_rng(0).normal(size=(len(y), max(columns)))
    for count in columns:
        found = sweep_one(backend, Products(v[:, :count]))
        assert found.shape == (len(y), count)
        size = np.abs(v[:, :count])
        assert (np.abs(found - h @ v[:, :count]) <= 1e-13 * (np.abs(h) @ size) + floor @ size).all()


@pytest.mark.parametrize("kernel", PRODUCT_KERNELS)
@pytest.mark.parametrize("n", [1, 2, 3, 128, 129, 260])
def test_products(kernel, n):
    check_products(PRODUCT_KERNELS[kernel], *softmax_problem(n, 2, seed=n))


@pytest.mark.parametrize("samples", ["ties", "one label", "one place", "two places", "certain"])
@pytest.mark.parametrize("kernel", ["exponential", "matern_2.5", "linear * matern_2.5 + exponential"])
def test_products_of_unusual_samples(samples, kernel):
    check_products(PRODUCT_KERNELS[kernel], *unusual_samples(samples, 150), columns=(1, 9))


@pytest.mark.parametrize("bandwidth", [1e-12, 1e-4, 1e12])
@pytest.mark.parametrize("profile", [K.Exponential, K.Matern])
def test_products_with_extreme_bandwidths(bandwidth, profile):
    y, p = on_a_grid(200)
    p[50:100] = p[:50]
    check_products(profile(bandwidth=bandwidth), y, p, columns=(2,))


@pytest.mark.parametrize("n", [4095, 4097, 9000])
def test_products_carried_across_tasks(n):
    """Entry by entry: the sums of a constant column do not see which strip is which."""
    y, p = softmax_problem(n, 2, seed=n)
    p[3000:3500] = p[17]
    problem = pair_problem(y, p, KERNELS["matern_2.5"])
    v = np.random.default_rng(n).normal(size=(n, 5))
    sizes = PairProblem(Side(problem.left.points, np.abs(problem.left.features)), None, problem.kernel)
    scale = sweep_one(CpuBackend(sizes), Products(np.abs(v)))
    error = sweep_one(SortedBackend(problem), Products(v)) - sweep_one(CpuBackend(problem), Products(v))
    assert (np.abs(error) <= 1e-13 * scale).all()


def test_layouts_of_vectors():
    y, p = softmax_problem(500, 2)
    backend = SortedBackend(pair_problem(y, p, KERNELS["mixed"]))
    v = np.random.default_rng(0).normal(size=(500, 20))
    expected = sweep_one(backend, Products(v[:, :9].copy()))
    unaligned = np.frombuffer(b"\0" + v[:, :9].tobytes(), np.uint8)[1:].view(np.float64).reshape(500, 9)
    for same in (v[:, :9], np.asfortranarray(v[:, :9]), v[::-1, :9][::-1], v[:, 8::-1][:, ::-1], unaligned):
        np.testing.assert_array_equal(sweep_one(backend, Products(same)), expected)
    reverse = sweep_one(SortedBackend(pair_problem(y[::-1], p[::-1], KERNELS["mixed"])), Products(v[::-1, :9]))
    np.testing.assert_allclose(reverse[::-1], expected, rtol=0, atol=1e-13 * np.abs(v).sum())
    integers = np.arange(500)[:, None] % 7
    np.testing.assert_array_equal(
        sweep_one(backend, Products(integers)), sweep_one(backend, Products(integers.astype(float)))
    )
    np.testing.assert_array_equal(sweep_one(backend, Products(v, dtype="float32")), sweep_one(backend, Products(v)))


def test_samples_are_sorted_once(monkeypatch):
    y, p = softmax_problem(100, 2)
    sorts = []
    line_order = _native.line_order
    monkeypatch.setattr(_native, "line_order", lambda *args: sorts.append(1) or line_order(*args))
    backend = SortedBackend(pair_problem(y, p, KERNELS["exponential"]))
    for _ in range(3):
        sweep_one(backend, Moments(second=True))
        sweep_one(backend, Products(np.ones((100, 2))))
        sweep_one(backend, QuadraticForms(Weights("rademacher", 100, 5, 0)))
        sweep_one(backend, QuadraticForms(np.ones((100, 1))))
    assert len(sorts) == 1
    left = backend.problem.left
    at_same_points = PairProblem(Side(left.points, np.ones((100, 1))), None, backend.problem.kernel)
    found = backend.like(at_same_points)
    alone = SortedBackend(at_same_points)
    np.testing.assert_array_equal(sweep_one(found, Products(np.eye(100))), sweep_one(alone, Products(np.eye(100))))
    assert len(sorts) == 2  # the latter alone
    elsewhere = PairProblem(Side(left.points[::-1].copy(), left.features), None, backend.problem.kernel)
    found = backend.like(elsewhere)
    np.testing.assert_array_equal(
        sweep_one(found, Products(np.eye(100))), sweep_one(SortedBackend(elsewhere), Products(np.eye(100)))
    )


@pytest.mark.parametrize("target", ["delta", "matrix"])
@pytest.mark.parametrize("kernel", LINE_KERNELS)
@pytest.mark.parametrize(("n", "count"), [(1, 1), (2, 3), (5, 9), (200, 70), (130, 600)])
def test_quadratic_forms(kernel, target, n, count):
    y, p = softmax_problem(n, 2, seed=n)
    p[n // 2 :] = p[: n - n // 2]
    problem = pair_problem(y, p, KERNELS[kernel], target if target == "delta" else psd_matrix(2, 2))
    backend = SortedBackend(problem)
    h = sweep_one(CpuBackend(problem), DenseRectangle())

    def check(weights, w):
        found = sweep_one(backend, QuadraticForms(weights))
        assert found.shape == (w.shape[1],)
        assert found.dtype == np.float64
        scale = np.einsum("ib,ij,jb->b", np.abs(w), np.abs(h), np.abs(w))
        assert (np.abs(found - np.einsum("ib,ij,jb->b", w, h, w)) <= 1e-13 * scale).all()

    explicit = np.random.default_rng(0).normal(size=(n, count))
    check(explicit, explicit)
    for kind in ("rademacher", "gaussian", "multinomial"):
        weights = Weights(kind, n, count, seed=2**63 + 5)
        check(weights, weights.values())


def test_quadratic_forms_of_many_samples():
    """Several strips of points; forms of replicates do not depend on how many there are."""
    n = 40_000
    y, p = softmax_problem(n, 2)
    backend = SortedBackend(pair_problem(y, p, KERNELS["exponential"]))
    found = sweep_one(backend, QuadraticForms(Weights("rademacher", n, 1030, 1)))
    some = Weights("rademacher", n, 1030, 1).values(1020, 1030)
    products = np.einsum("ib,ib->b", some, sweep_one(backend, Products(some)))
    scale = np.sum(np.abs(sweep_one(backend, Products(np.ones((n, 1))))))
    assert (np.abs(found[1020:] - products) <= 1e-13 * scale).all()
    np.testing.assert_array_equal(sweep_one(backend, QuadraticForms(Weights("rademacher", n, 10, 1))), found[:10])


def test_quadratic_forms_of_no_replicates():
    y, p = softmax_problem(10, 2)
    backend = SortedBackend(pair_problem(y, p, KERNELS["exponential"]))
    for kind in ("rademacher", "gaussian", "multinomial"):
        assert sweep_one(backend, QuadraticForms(Weights(kind, 10, 0, 1))).shape == (0,)
    assert sweep_one(backend, QuadraticForms(np.empty((10, 0)))).shape == (0,)


def of_unusual_rows(n, seed):
    """Probabilities of two classes: any, near 0 and 1, these themselves, and ties."""
    rng = np.random.default_rng([n, seed])
    p, e = rng.random(n), 10 ** rng.uniform(-8, -4, n)
    p = np.select([rng.random(n) < share for share in (0.2, 0.25, 0.1, 0.1, 0.1)], [e, 1 - e, 0, 1, 0.5], p)
    return np.stack([1 - p, p], axis=1)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 63, 64, 65, 511, 513, 1537])
def test_labels_drawn_as_bits_are_the_drawn_labels(n):
    """A label that is another one changes the totals, also where the residual of the right one is 0."""
    p = of_unusual_rows(n, 0)
    draws, order = 19, np.argsort(p[:, 1], kind="stable")
    labels = np.concatenate(list(draw_label_batches(p, draws, 3, at_once=7)), axis=1)
    of_bits = BinaryDraws.of(p, draws, 3)
    given = np.stack([-p[order, 1], p[order, 0]])[:, None, :]
    terms = [(3.0, polynomial, given) for polynomial in (np.ones(1), np.array([1.0, 2.0]))]
    places = np.sort(p[:, 1])
    for threads in (1, 2):
        options = _native.RunOptions(threads)
        drawn = _native.line_drawn_forms(places, order, terms, of_bits.thresholds, *of_bits.key, draws, options)
        assert np.array_equal(drawn, _native.line_label_forms(places, order, terms, labels, options))


@pytest.mark.parametrize("kernel", LINE_KERNELS)
@pytest.mark.parametrize("n", [2, 5, 130, 700])
def test_totals_of_labels(kernel, n):
    p = of_unusual_rows(n, 1)
    residuals = np.stack([-p[:, 1], p[:, 0]], axis=1)
    labels = np.random.default_rng(n).integers(2, size=(n, 11), dtype=np.int32)
    problem = PairProblem(Side(p, np.ones((n, 1))), None, pair_problem(labels[:, 0], p, KERNELS[kernel]).kernel)
    found = sweep_one(SortedBackend(problem, threads=2), LabelMatches(labels, residuals[:, :, None]))
    k = np.asarray(oracle.kernel_matrix(KERNELS[kernel], p, p), float)
    np.fill_diagonal(k, 0.0)
    features = np.take_along_axis(residuals, labels.astype(int), axis=1)
    expected = np.einsum("id,ij,jd->d", features, k, features)
    sizes = np.einsum("id,ij,jd->d", abs(features), k, abs(features))
    assert np.all(abs(found - expected) <= 1e-13 * sizes)


@pytest.mark.parametrize("kernel", LINE_KERNELS)
@pytest.mark.parametrize(("n", "other"), [(1, 1), (1, 50), (80, 3), (300, 200)])
def test_rectangular_problems(kernel, n, other):
    y, p = softmax_problem(n + other, 2, seed=n)
    p[n:] = np.where(np.arange(other)[:, None] % 3 == 0, p[0], p[n:])  # some places on both sides
    whole = pair_problem(y, p, KERNELS[kernel])
    problem = PairProblem(whole.left.take(slice(0, n)), whole.left.take(slice(n, None)), whole.kernel)
    backend = SortedBackend(problem)
    h = sweep_one(CpuBackend(problem), DenseRectangle())
    moments = sweep_one(backend, Moments(second=True))
    for found, expected, scale in (
        (moments.total, h.sum(), np.abs(h).sum()),
        (moments.row_sums, h.sum(axis=1), np.abs(h).sum(axis=1)),
        (moments.column_sums, h.sum(axis=0), np.abs(h).sum(axis=0)),
        (moments.sum_of_squares, (h**2).sum(), (h**2).sum()),
    ):
        assert (np.abs(found - expected) <= 1e-12 * scale).all()
    assert moments.diagonal is None
    assert sweep_one(backend, Moments(rows=False)).total == moments.total
    w = np.random.default_rng(0).normal(size=(other, 3))
    assert (np.abs(sweep_one(backend, Products(w)) - h @ w) <= 1e-13 * (np.abs(h) @ np.abs(w) + 1)).all()
    np.testing.assert_allclose(sweep_one(backend, DenseRectangle([0], slice(None))), h[:1], rtol=1e-13)


def test_points_of_one_column():
    rng = np.random.default_rng(0)
    x, features = rng.normal(size=(700, 1)), rng.normal(size=(700, 3))
    kernel = pair_problem(*softmax_problem(5, 2), K.Exponential(bandwidth=0.5)).kernel
    problem = PairProblem(Side(x, features), None, kernel)
    assert backend_for(problem).name == "sorted"
    h = np.exp(-np.abs(x - x.T) / 0.5) * (features @ features.T)
    scale = np.abs(h).sum(axis=1)
    found = sweep_one(backend_for(problem), Moments()).row_sums
    assert (np.abs(found - (h.sum(axis=1) - np.diag(h))) <= 1e-13 * scale).all()


@pytest.mark.parametrize("other", [0, 520])
def test_rounded_to_single_precision(other):
    """Sums of two float32 numbers are 1 within rounding, which distances are off by: little of a bandwidth."""
    n = 600
    y, p = softmax_problem(n + other, 2, scale=6.0)
    p = p.astype(np.float32)
    assert 0 < np.abs(p.sum(axis=1, dtype=np.float64) - 1).max() < 2.0**-24
    kernel = K.Exponential(bandwidth=0.02)
    whole = _packing.pack(prepare(y, p, dtype="float32"), kernel, "delta").problem
    left = whole.left.take(slice(0, n))
    problem = PairProblem(left, whole.left.take(slice(n, None)) if other else None, whole.kernel)
    backend = backend_for(problem)
    assert backend.name == "sorted"
    exact, e = p.astype(np.float64), np.eye(2)[y] - p.astype(np.float64)
    rows, columns = slice(0, n), slice(n, None) if other else slice(0, n)
    k = np.exp(-np.linalg.norm(exact[rows, None] - exact[None, columns], axis=2) / 0.02)
    h, size = k * (e[rows] @ e[columns].T), k * np.outer(*(np.linalg.norm(e[part], axis=1) for part in (rows, columns)))
    if not other:
        np.fill_diagonal(h, 0.0)
        np.fill_diagonal(size, 0.0)
    moments = sweep_one(backend, Moments(second=True))
    assert (np.abs(moments.row_sums - h.sum(axis=1)) <= 1e-5 * size.sum(axis=1)).all()
    assert abs(sweep_one(backend, Moments(rows=False)).total - h.sum()) <= 1e-5 * size.sum()
    assert moments.sum_of_squares == pytest.approx(np.sum(h**2), rel=1e-5)


def test_single_precision_off_the_line():
    """Narrow kernels see what rounding does to distances, and sums may be off by more than it."""
    y, p = softmax_problem(600, 2)
    data = prepare(y, p, dtype="float32")

    def chosen(bandwidth: float, shift: float = 0.0) -> str:
        problem = _packing.pack(data, K.Exponential(bandwidth=bandwidth), "delta").problem
        side = Side(problem.left.points + np.array([0.0, shift], np.float32), problem.left.features)
        return backend_for(PairProblem(side, None, problem.kernel)).name

    assert chosen(0.1) == "sorted"
    assert chosen(0.1, shift=1e-6) == "cpu"
    assert chosen(1e-3) == "cpu"


def test_problems_like_one_in_single_precision_are_on_its_line():
    """Squares of the kernel, and the predictions as they were given: laws of the draws ask for both."""
    y, p = softmax_problem(600, 2, scale=6.0)
    p = p.astype(np.float32).astype(np.float64)
    gap = np.abs(p.sum(axis=1) - 1).max()
    data, bandwidth = prepare(y, p, dtype="float32"), 1.1 * np.sqrt(2) * 2 * gap / 1e-5
    backend = backend_for(_packing.pack(data, K.Exponential(bandwidth=bandwidth), "delta").problem)
    assert (backend.name, gap > 1e-9) == ("sorted", True)
    square = _packing.pack(data, K.Exponential(bandwidth=bandwidth / 2), "delta").problem
    assert backend_for(square).name == "cpu"
    v = np.random.default_rng(0).normal(size=(600, 3))
    expected = np.exp(-2 / bandwidth * np.linalg.norm(p[:, None] - p[None], axis=2))
    for points in (square.left.points, p):
        found = backend.like(PairProblem(Side(points, np.ones_like(points[:, :1])), None, square.kernel))
        assert found.name == "sorted"
        assert (np.abs(sweep_one(found, Products(v)) - expected @ v) <= 2e-5 * (expected @ np.abs(v))).all()


@pytest.mark.parametrize("kernel", ["exponential", "mixed"])
def test_samples_in_single_precision(kernel):
    """Where the two probabilities sum to 1 exactly, float32 problems come here, and are computed in float64."""
    y, p = on_a_grid(600, bits=20)
    packed = [_packing.pack(prepare(y, p, dtype=dtype), KERNELS[kernel], "delta") for dtype in ("float32", "float64")]
    single, double = (backend_for(pack.problem) for pack in packed)
    assert single.name == "sorted"
    expected = sweep_one(double, Moments(second=True))
    found = sweep_one(single, Moments(second=True))
    np.testing.assert_allclose(found.row_sums, expected.row_sums, rtol=0, atol=1e-6 * 600)
    assert found.total == pytest.approx(expected.total, rel=0, abs=1e-6 * 600**2)
    weights = Weights("rademacher", 600, 9, 0)
    forms = sweep_one(single, QuadraticForms(weights)), sweep_one(double, QuadraticForms(weights))
    np.testing.assert_allclose(*forms, rtol=0, atol=1e-6 * 600**2)


@pytest.mark.parametrize("kernel", some(["exponential", "mixed"], "mixed"))
def test_bits_do_not_depend_on_the_number_of_threads(kernel):
    n = 40_000
    y, p = softmax_problem(n, 2)
    p[1000:3000] = p[10]
    problem = pair_problem(y, p, KERNELS[kernel])
    rectangular = PairProblem(problem.left.take(slice(0, 20_000)), problem.left.take(slice(20_000, n)), problem.kernel)
    w = np.random.default_rng(0).normal(size=(n, 40))

    def everything(threads: int) -> list[bytes]:
        backend = SortedBackend(problem, threads=threads)
        moments = sweep_one(backend, Moments(second=True))
        numbers = [moments.total, moments.trace, moments.sum_of_squares]
        forms = [w[:, :9], *(Weights(kind, n, 40, 1) for kind in ("rademacher", "gaussian"))]
        arrays = [moments.row_sums, sweep_one(backend, BlockSums(777))]
        arrays += [sweep_one(backend, Products(w[:, :count])) for count in (1, 2, 16, 40)]
        arrays += [sweep_one(backend, QuadraticForms(weights)) for weights in forms]
        arrays.append(sweep_one(SortedBackend(rectangular, threads=threads), Products(w[20_000:, :1])))
        arrays.append(np.array([*numbers, median_distance(p, threads=threads).value]))
        return [a.tobytes() for a in arrays]

    first = everything(1)
    assert all(everything(threads) == first for threads in (2, 3, 7))


@pytest.mark.parametrize("n", [1, 64, 300])
def test_signs_and_labels_of_few_and_many_replicates(n):
    """Bits come in runs of 8 to 64 replicates, and in tasks: all are the forms of the same weights as numbers."""
    rng = np.random.default_rng(n)
    places, positions = np.sort(rng.random(n)), rng.permutation(n)
    factors = rng.normal(size=(2, 1, n))
    distances = np.abs(places[:, None] - places)
    for count in (1, 3, 64, 65, 130, 257, 520):
        signs = Weights("rademacher", n, count, 3).values()
        labels = (signs < 0).astype(np.int32)
        for coefficients in ([2.0], [1.0, 3.0]):
            kernel = np.exp(-3 * distances) * np.polynomial.Polynomial(coefficients)(distances)
            signed = factors[0, 0][:, None] * signs[positions]
            chosen = np.where(labels[positions] == 0, *factors[:, 0, :, None])
            own = (chosen**2).sum(axis=0) * kernel[0, 0]
            tolerance = 1e-13 * np.abs(factors).sum() ** 2 * kernel.max()
            polynomial, of_labels = np.array(coefficients), []
            for threads in (1, 2, 3):
                options = _native.RunOptions(threads)
                terms = [(3.0, polynomial, factors[:1])]
                found = _native.line_forms(places, positions, terms, None, 3, count, options)
                expected = (signed * (kernel @ signed)).sum(axis=0)
                np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
                both = [(3.0, polynomial, factors)]
                of_labels.append(_native.line_label_forms(places, positions, both, labels, options))
                expected = (chosen * (kernel @ chosen)).sum(axis=0) - own
                np.testing.assert_allclose(of_labels[-1], expected, rtol=0, atol=tolerance)
                np.testing.assert_array_equal(of_labels[-1], of_labels[0])


def test_passes_over_few_and_many_samples():
    """Residuals by label in the order of the samples, their sums, and the largest gap, of any number of samples."""
    options = _native.RunOptions(2)
    rng = np.random.default_rng(5)
    for n in (*range(1, 40), 8191, 20_000):
        q = 10 ** rng.uniform(-8, 0, n)
        p = np.stack([1 - q, q], axis=1)[:, :: rng.choice([-1, 1])] * (1 + rng.normal(size=(n, 1)) * 1e-9)
        y = rng.integers(0, 2, n)
        p = np.ascontiguousarray(p)
        pairs = p.astype(np.longdouble)
        assert abs(_native.line_gap(p, options) - np.abs(pairs.sum(axis=1) - 1).max()) <= 3e-16
        sizes, n_zeros, off, norms = _native.line_residuals(p, y, options)
        residuals = np.eye(2)[y] - pairs
        expected = np.abs(residuals[:, 1] - residuals[:, 0]) / 2
        assert n_zeros == (y == 0).sum() and sizes[n_zeros] == np.inf == -sizes[n_zeros + 1]
        found = np.delete(sizes, [n_zeros, n_zeros + 1])
        by_label = np.concatenate([expected[y == 0], expected[y == 1]]).astype(float)
        np.testing.assert_allclose(found, by_label, rtol=0, atol=3e-16)
        np.testing.assert_allclose(off, float(np.abs(residuals.sum(axis=1)).sum() / 2), rtol=1e-5, atol=2e-16 * n)
        np.testing.assert_allclose(norms, float((residuals**2).sum()), rtol=1e-12, atol=1e-15)
        column = _native.line_residuals(q, y, options)
        of_rows = _native.line_residuals(np.stack([1 - q, q], axis=1), y, options)
        np.testing.assert_array_equal(column[0], of_rows[0])
        assert column[1:] == of_rows[1:]
    with pytest.raises(ValueError, match="for 3 labels"):
        _native.line_residuals(q, y[:3], options)


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 50, 701, 1500])
def test_median_on_a_line(places, n):
    x = PLACES[places](np.random.default_rng(n), n)
    if not np.ptp(x):
        with pytest.raises(ValueError, match="identical rows only"):
            median_distance(x[:, None])
        return
    found = median_distance(x[:, None])
    assert found.value == brute_median(x)
    distances = np.abs(x[:, None] - x[None, :])[np.triu_indices(n, 1)]
    assert found.of_positive == bool(np.median(distances) == 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_distances_on_a_line_are_counted_and_listed(threads):
    n = 20_000
    places = np.sort(np.random.default_rng(0).integers(0, 500, n))
    x = np.append(places / 512, np.inf)
    in_place = np.bincount(places, minlength=500)
    pairs = np.correlate(in_place, in_place, "full")[499:]  # that are k / 512 apart
    pairs[0] = (pairs[0] - n) // 2
    distances = np.arange(500) / 512
    thresholds = np.array([1e-9, 0.25, 1 / 512, 0.1, 0.9, 2.0])
    counts = _native.line_counts(x, thresholds, _native.RunOptions(threads))
    assert counts.tolist() == [int(pairs[distances < t].sum()) for t in thresholds]
    near = _native.line_between(x, 1 / 512, 3 / 512, int(pairs[1] + pairs[2]))
    assert np.bincount((near * 512).astype(int)).tolist() == [0, *pairs[1:3].tolist()]


def test_median_distance_is_exact_on_a_line():
    _, p = softmax_problem(3000, 2)
    exact = brute_median(p[:, 1])
    for metric, unit in (("euclidean", np.sqrt(2)), ("cityblock", 2), ("total_variation", 1)):
        found = median_distance(p, metric, max_samples=10)
        assert (found.exact, found.n_samples, found.seed) == (True, 3000, None)
        assert found.value == pytest.approx(unit * exact, rel=1e-15)
    column = p[:, 1:]
    assert median_distance(column).value == exact
    assert median_distance(column, "total_variation").value == exact / 2
    off = p + np.array([0.0, 1e-9])
    assert not median_distance(off, max_samples=10).exact


@pytest.mark.grid
def test_ctrl_c_stops_every_loop():
    """A handler that raises stops the work: here a progress callback does.

    It is asked ten times a second, so there is work for many times as long, also on faster machines. What is never
    reached is never touched, and takes no memory.
    """

    class Stop(Exception):
        pass

    def stop(done: float) -> None:
        raise Stop

    options = _native.RunOptions(1, stop)
    many = np.append(np.cumsum(np.random.default_rng(0).random(12_000_000)), np.inf)
    with pytest.raises(Stop):
        _native.line_counts(many, np.full(64, 1e3), options)
    n = 3_000_000
    _, p = on_a_grid(n, bits=52)
    places = np.append(np.sort(p[:, 1]), np.inf)
    factors = np.ones((1, n))
    positions = np.argsort(p[:, 1])
    of_bits = [(1.0, np.ones(3), np.stack([factors, -factors]))]
    for weights, count in ((None, 512), (np.ones((n, 8)), 8)):
        with pytest.raises(Stop):
            _native.line_forms(places[:-1], positions, of_bits, weights, 0, count, options)
    with pytest.raises(Stop):
        _native.line_drawn_forms(places[:-1], positions, of_bits, np.zeros(n, np.uint64), 1, 2, 4096, options)
    with pytest.raises(Stop):
        _native.line_label_forms(places[:-1], positions, of_bits, np.zeros((n, 128), np.int32), options)
    terms = [(1.0, np.ones(3), factors.T.copy(), factors.T.copy())]
    with pytest.raises(Stop):
        _native.line_product(places[:-1], positions, n, terms, True, np.ones((n, 16)), 0, n, options)
