"""Points on a line on a GPU: compiled for real devices, and equal to the CPU's results on an emulated one."""

from __future__ import annotations

import sys

import emulated_cupy
import numpy as np
import pytest
from grid import some
from problems import (
    KERNELS,
    PLACES,
    PRODUCT_KERNELS,
    brute_median,
    on_a_grid,
    psd_matrix,
    softmax_problem,
    unusual_samples,
)

import kcalib
from kcalib import _packing, bandwidth
from kcalib import kernels as K
from kcalib._backend.random import Weights
from kcalib._input.labels import prepare
from kcalib._pairs.backends import sorted_cuda
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.backends.sorted_line import SortedBackend
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.problem import Factor, PairProblem, Side, Term
from kcalib._pairs.reductions import BlockSums, DenseRectangle, Moments, Products, QuadraticForms, sweep_one
from kcalib.bandwidth import median_distance, median_of_entries
from kcalib.lenses import TopLabel


def on_device(side: Side | None) -> Side | None:
    if side is None:
        return None
    asarray = sys.modules["cupy"].asarray
    labels = None if side.labels is None else asarray(side.labels)
    return Side(*(asarray(a) for a in (side.points, side.features)), labels)


def both(problem: PairProblem) -> tuple[SortedBackend, SortedBackend]:
    """The backend of NumPy arrays, and that of the same arrays on a device."""
    moved = PairProblem(on_device(problem.left), on_device(problem.right), problem.kernel)
    return SortedBackend(problem), SortedBackend(moved)


def pair_problem(y, p, kernel, target="delta") -> PairProblem:
    return _packing.pack(prepare(y, p), kernel, target).problem


def close(found, expected, scale) -> None:
    """To 1e-12 of the sums of the sizes of terms; scale 0: both are."""
    found = found.get() if hasattr(found, "get") else found
    assert np.shape(found) == np.shape(expected)
    assert (np.abs(found - expected) <= 1e-12 * scale).all()


def check(cupy, problem: PairProblem, columns=(1, 6), block_sizes=(2, 31)) -> None:
    """Every primitive, with nothing but sums leaving the device."""
    expected, found = both(problem)
    assert (found.name, found.threads) == ("sorted", None)
    n, n_right = len(problem.left.points), len(problem.columns.points)
    sizes = np.abs(sweep_one(CpuBackend(problem), DenseRectangle()))
    rng = np.random.default_rng(n)
    with emulated_cupy.stays_on_device(1):
        moments, only = sweep_one(found, Moments(second=True)), sweep_one(found, Moments(rows=False))
    assert (only.total, only.row_sums) == (moments.total, None)
    of_host = sweep_one(expected, Moments(second=True))
    close(moments.total, of_host.total, sizes.sum())
    close(moments.row_sums, of_host.row_sums, sizes.sum(axis=1))
    close(moments.column_sums, of_host.column_sums, sizes.sum(axis=0))
    close(moments.sum_of_squares, of_host.sum_of_squares, (sizes**2).sum())
    for count in columns:
        vectors = rng.normal(size=(n_right, count))
        with emulated_cupy.stays_on_device(1):
            product = sweep_one(found, Products(cupy.asarray(vectors)))
        close(product, sweep_one(expected, Products(vectors)), sizes @ np.abs(vectors))
    if not problem.symmetric:
        return
    close(moments.trace, of_host.trace, np.trace(sizes))
    close(moments.diagonal, of_host.diagonal, np.diag(sizes))
    for size in (s for s in block_sizes if 2 <= s <= n):
        with emulated_cupy.stays_on_device(1):
            blocks = sweep_one(found, BlockSums(size))
        close(blocks, sweep_one(expected, BlockSums(size)), sizes.max() * size**2)
    explicit = rng.normal(size=(n, 3))
    kinds = [Weights(kind, n, 5, 3) for kind in ("rademacher", "gaussian", "multinomial")]
    for weights, w in [(explicit, explicit)] + [(k, k.values()) for k in kinds]:
        with emulated_cupy.stays_on_device(1):
            forms = sweep_one(found, QuadraticForms(weights if w is not weights else cupy.asarray(w)))
        close(forms, sweep_one(expected, QuadraticForms(weights)), np.sum(np.abs(w) * (sizes @ np.abs(w)), axis=0))


MANY_KERNELS = [name for name in PRODUCT_KERNELS if name not in ("exponential", "matern_2.5")]


# Around the borders of nodes of 32 points, and of 32 nodes.
@pytest.mark.parametrize("n", some([1, 2, 31, 32, 33, 1023, 1024, 1025], 2, 1025))
def test_sizes(cupy, n):
    y, p = softmax_problem(n, 2, seed=n)
    p[n // 2 :] = p[: n - n // 2]  # ties
    check(cupy, pair_problem(y, p, KERNELS["exponential"]), block_sizes=(2, 31, 32, 33, n))


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param("matern_2.5", marks=pytest.mark.grid),
        *(pytest.param(name, marks=pytest.mark.slow) for name in MANY_KERNELS),
    ],
)
def test_kernels(cupy, kernel):
    y, p = softmax_problem(201, 2)
    p[100:120] = p[7]
    check(cupy, pair_problem(y, p, PRODUCT_KERNELS[kernel]), columns=(1, 5), block_sizes=(100,))


@pytest.mark.parametrize(
    "samples", some(["ties", "one label", "one place", "two places", "certain", "duplicates"], "ties", "one label")
)
def test_unusual_samples(cupy, samples):
    check(cupy, pair_problem(*unusual_samples(samples, 150), KERNELS["exponential"]), columns=(2,))


@pytest.mark.grid
@pytest.mark.parametrize("n", [1100, pytest.param(33_000, marks=pytest.mark.slow)])
def test_sums_carried_through_levels(cupy, n):
    """Blocks that begin and end anywhere, against the compiled core."""
    y, p = softmax_problem(n, 2, seed=3)
    p[300:900] = p[200]
    expected, found = both(pair_problem(y, p, KERNELS["matern_2.5"]))
    a, b = sweep_one(found, Moments()), sweep_one(expected, Moments())
    # Terms of size 1 at most, of n samples.
    close(a.row_sums, b.row_sums, n)
    close(a.total, b.total, n * n)
    for size in (7, 500, 1050):
        close(sweep_one(found, BlockSums(size)), sweep_one(expected, BlockSums(size)), size**2)
    vectors = np.random.default_rng(0).normal(size=(n, 2))
    close(sweep_one(found, Products(cupy.asarray(vectors))), sweep_one(expected, Products(vectors)), n)


def test_targets_without_labels(cupy):
    """A matrix of target values: features of rank 2, as of weighted samples."""
    y, p = softmax_problem(90, 2)
    check(cupy, pair_problem(y, p, KERNELS["exponential"], psd_matrix(2, 2)))


@pytest.mark.parametrize(("n", "other"), [(1, 50), (80, 3), (90, 70)])
def test_rectangular_problems(cupy, n, other):
    y, p = softmax_problem(n + other, 2, seed=n)
    p[n:] = np.where(np.arange(other)[:, None] % 3 == 0, p[0], p[n:])  # some places on both sides
    whole = pair_problem(y, p, KERNELS["exponential"])
    check(cupy, PairProblem(whole.left.take(slice(0, n)), whole.left.take(slice(n, None)), whole.kernel))


@pytest.mark.grid
def test_huge_gaps_carry_nothing(cupy):
    """Points of one column in two clusters so far apart that decays are 0, and powers of distances infinite."""
    x = np.concatenate([np.linspace(0.0, 3.0, 40), 1e200 + np.zeros(30), 1e300 * np.ones(30)])[:, None]
    features = np.random.default_rng(0).normal(size=(100, 2))
    kernel = pair_problem(*softmax_problem(5, 2), K.Matern(bandwidth=0.5, nu=2.5)).kernel
    found = both(PairProblem(Side(x, features), None, kernel))[1]
    d = np.sqrt(5) * np.minimum(np.abs(x - x.T), 1e3) / 0.5
    h = np.exp(-d) * (1 + d + d * d / 3) * (features @ features.T)
    close(sweep_one(found, Moments()).row_sums, h.sum(axis=1) - np.diag(h), np.abs(h).sum(axis=1))
    close(sweep_one(found, Products(cupy.asarray(features))), h @ features, np.abs(h) @ np.abs(features))
    weights = Weights("gaussian", 100, 3, 0)
    w = weights.values()
    scale = np.sum(np.abs(w) * (np.abs(h) @ np.abs(w)), axis=0)
    close(sweep_one(found, QuadraticForms(weights)), np.sum(w * (h @ w), axis=0), scale)


@pytest.mark.parametrize("bandwidth", [1e-12, 1e-4, 1e12])
def test_extreme_bandwidths(cupy, bandwidth):
    y, p = on_a_grid(150)
    p[50:100] = p[:50]
    check(cupy, pair_problem(y, p, K.Exponential(bandwidth=bandwidth)), columns=(2,), block_sizes=())


def test_samples_in_single_precision(cupy):
    """Where the two probabilities sum to 1 exactly, float32 problems come here, and are computed in float64."""
    y, p = on_a_grid(520, bits=20)
    problem = _packing.pack(prepare(y, p, dtype="float32"), KERNELS["exponential"], "delta").problem
    expected, found = both(problem)
    assert backend_for(found.problem).name == "sorted"
    close(sweep_one(found, Moments()).row_sums, sweep_one(expected, Moments()).row_sums, 520)
    vectors = np.random.default_rng(0).normal(size=(520, 2))
    single = sweep_one(found, Products(cupy.asarray(vectors, dtype="float32"), dtype="float32"))
    close(single, sweep_one(expected, Products(vectors.astype(np.float32))), 520)


def test_weights_a_few_at_a_time_have_the_same_bits(cupy, monkeypatch):
    y, p = softmax_problem(100, 2)
    found = both(pair_problem(y, p, KERNELS["exponential"]))[1]
    weights = Weights("multinomial", 100, 11, 1)
    forms = sweep_one(found, QuadraticForms(weights)).get()
    monkeypatch.setattr(sorted_cuda, "WEIGHTS_BYTES", 1)
    np.testing.assert_array_equal(sweep_one(found, QuadraticForms(weights)).get(), forms)
    assert sweep_one(found, QuadraticForms(Weights("gaussian", 100, 0, 1))).shape == (0,)
    assert sweep_one(found, QuadraticForms(cupy.empty((100, 0)))).shape == (0,)
    assert sweep_one(found, Products(cupy.empty((100, 0)))).shape == (100, 0)


def test_it_is_chosen_where_it_is_exact(cupy):
    y, p = softmax_problem(600, 2)
    side = on_device(pair_problem(y, p, KERNELS["exponential"]).left)
    kernel = pair_problem(y, p, KERNELS["exponential"]).kernel
    chosen = backend_for(PairProblem(side, None, kernel))
    assert chosen.name == "sorted"
    assert chosen.reason == ("the predictions lie on a line and the kernel allows O(n log n); the arrays are on GPU 0")
    few = PairProblem(side.take(slice(0, 511)), None, kernel)
    assert backend_for(few).name == "cuda"
    assert backend_for(few, backend="sorted").name == "sorted"
    assert backend_for(PairProblem(side, None, pair_problem(y, p, KERNELS["gaussian"]).kernel)).name == "cuda"
    off = PairProblem(Side(side.points + cupy.asarray([0.0, 1e-12]), side.features), None, kernel)
    assert backend_for(off).name == "cuda"
    with pytest.raises(ValueError, match="backend='sorted' cannot take this problem: the two probabilities"):
        backend_for(off, backend="sorted")
    with pytest.raises(ValueError, match="`threads` has no effect on backend='sorted': the GPU decides"):
        backend_for(chosen.problem, threads=2)
    with pytest.raises(ValueError, match="`threads` has no effect on arrays on GPU 0"):
        median_distance(side.points, threads=2)


@pytest.mark.parametrize("estimator", ["unbiased", "biased", "block", "linear"])
def test_skce(cupy, estimator):
    y, p = softmax_problem(600, 2, seed=1)
    y[:200] = 1  # not calibrated: an estimate that is not all cancellation
    with emulated_cupy.stays_on_device(8):  # thresholds of the median's search
        found = kcalib.skce.result(cupy.asarray(y), cupy.asarray(p), estimator=estimator)
    expected = kcalib.skce.result(y, p, estimator=estimator)
    assert found.backend == expected.backend == "sorted"
    assert found.kernel == expected.kernel  # the very same bandwidth
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-12)
    assert kcalib.skce(cupy.asarray(y), cupy.asarray(p), estimator=estimator) == found.value


def test_skce_of_a_binary_problem_that_a_lens_makes(cupy):
    y, p = softmax_problem(600, 5, seed=1)
    y[:200] = 1
    found = kcalib.skce.result(cupy.asarray(y), cupy.asarray(p), lens=TopLabel())
    expected = kcalib.skce.result(y, p, lens=TopLabel())
    assert found.backend == expected.backend == "sorted"
    assert found.value == pytest.approx(expected.value, rel=1e-12)


@pytest.mark.parametrize(
    "method",
    [
        kcalib.methods.Bootstrap(n_resamples=50),
        kcalib.methods.Multiplier(n_resamples=50),
        kcalib.methods.Multiplier(n_resamples=50, multipliers="gaussian"),
        kcalib.methods.Exact(n_resamples=50),
        kcalib.methods.Spectrum(),
    ],
    ids=str,
)
def test_calibration_test(cupy, method):
    y, p = softmax_problem(600, 2, seed=2)
    found = kcalib.calibration_test(cupy.asarray(y), cupy.asarray(p), method=method, seed=3)
    expected = kcalib.calibration_test(y, p, method=method, seed=3)
    assert found.backend == expected.backend == "sorted"
    if method.name != "spectrum":
        assert found.pvalue == expected.pvalue
    else:  # where a Krylov space stops may differ by rounding
        assert found.pvalue == pytest.approx(expected.pvalue, rel=1e-9)


def test_bits_do_not_depend_on_the_run(cupy):
    y, p = softmax_problem(600, 2)
    first, second = (both(pair_problem(y, p, KERNELS["exponential"]))[1] for _ in range(2))
    assert sweep_one(first, Moments(second=True)).total == sweep_one(second, Moments(second=True)).total
    weights = Weights("rademacher", 600, 9, 4)
    np.testing.assert_array_equal(
        sweep_one(first, QuadraticForms(weights)).get(), sweep_one(second, QuadraticForms(weights)).get()
    )


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("n", some([2, 3, 50, 701, 2400], 3, 701))
def test_the_median_on_a_line_is_the_very_same_number(cupy, places, n):
    """2400 points have more pairs than are sorted at once."""
    x = PLACES[places](np.random.default_rng(n), n)
    expected = brute_median(x)
    with emulated_cupy.stays_on_device(8):
        if expected == 0:
            with pytest.raises(ValueError, match="identical rows only"):
                median_distance(cupy.asarray(x[:, None]))
            return
        assert median_distance(cupy.asarray(x[:, None])).value == expected


@pytest.mark.parametrize("collected", [1, 2**10])
def test_the_median_on_a_line_with_little_room(cupy, monkeypatch, collected):
    """Down to neighbouring numbers, and to a few distances in a list."""
    x = np.random.default_rng(0).uniform(size=(300, 1))
    monkeypatch.setattr(bandwidth, "LINE_COLLECTED", collected - 600)
    monkeypatch.setattr(bandwidth, "SAMPLE", 20)
    assert median_distance(cupy.asarray(x)).value == brute_median(x[:, 0])
    assert median_distance(cupy.asarray(np.round(8 * x) / 8)).value == brute_median(np.round(8 * x[:, 0]) / 8)


@pytest.mark.parametrize("metric", ["euclidean", "cityblock", "total_variation"])
def test_the_median_of_binary_predictions(cupy, metric):
    p = softmax_problem(600, 2)[1]
    found, expected = median_distance(cupy.asarray(p), metric), median_distance(p, metric)
    assert found == expected
    assert found.exact


def test_the_median_of_other_predictions(cupy, monkeypatch):
    """All of them, or a subset: as on the CPU, to the rounding of a distance."""
    p = softmax_problem(90, 3)[1]
    ties = np.where(np.arange(90)[:, None] < 70, p[0], p)  # more than half of the pairs are at distance 0
    for points, option in ((p, {}), (p, {"max_samples": 40, "seed": 2}), (ties, {})):
        with emulated_cupy.stays_on_device(8):
            found = median_distance(cupy.asarray(points), **option)
        expected = median_distance(points, **option)
        assert found.value == pytest.approx(expected.value, rel=1e-14)
        assert (found.n_samples, found.exact, found.seed) == (expected.n_samples, expected.exact, expected.seed)
    # With less room, pairs are counted, and those of 30 samples sorted.
    monkeypatch.setattr(bandwidth, "COLLECTED", 500)
    monkeypatch.setattr(bandwidth, "SAMPLE", 30)
    few = p[:62]
    expected = brute_median_of_rows(few)
    with emulated_cupy.stays_on_device(8):
        assert median_distance(cupy.asarray(few)).value == pytest.approx(expected, rel=1e-14)


def brute_median_of_rows(points: np.ndarray) -> float:
    distances = np.linalg.norm(points[:, None, :] - points[None, :, :], axis=2)
    return float(np.median(distances[np.triu_indices(len(points), 1)]))


@pytest.mark.parametrize("ties", [0, 25])
def test_the_median_of_entries(cupy, ties):
    """Entries of a problem stay on the device too; with ties, 0 is left out."""
    p = softmax_problem(30, 3)[1]
    p[:ties] = p[0]
    terms = (Term(1.0, (Factor("identity", "euclidean"),)),)
    side = Side(p, np.ones((30, 1)))
    with emulated_cupy.stays_on_device(1):
        found = median_of_entries(PairProblem(on_device(side), None, terms), "euclidean")
    expected = median_of_entries(PairProblem(side, None, terms), "euclidean")
    assert found.value == pytest.approx(expected.value, rel=1e-14)
    assert (found.n_samples, found.exact) == (30, True)
    assert found.of_positive == expected.of_positive == (ties > 0)
    same = Side(np.repeat(p[:1], 5, axis=0), np.ones((5, 1)))
    assert median_of_entries(PairProblem(on_device(same), None, terms), "euclidean").value == 0
