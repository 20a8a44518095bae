"""The contract that every backend meets, against the literal oracle.

backends x problems x kernels x target kernels x dtypes x sizes, each primitive: for the compiled core at the level
that this machine takes all but a few sizes; for array operations on NumPy each kernel once and the problems of `FEW`;
for other libraries and the emulated device the problems of `FEW`. All of them with `-m "not slow"`.
"""

from __future__ import annotations

import functools
import time

import emulated_cupy
import numpy as np
import oracle
import pytest
from grid import cells, some
from problems import KERNELS, draw_labels, duplicates_problem, psd_matrix, softmax_problem

from kcalib import _native, _packing
from kcalib._backend import arrays
from kcalib._backend.random import Weights
from kcalib._input.labels import prepare
from kcalib._pairs.backends import base, cpu
from kcalib._pairs.backends.array_api import ArrayApiBackend
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.backends.cuda import CudaBackend
from kcalib._pairs.backends.sorted_line import SortedBackend
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.problem import Factor, PairProblem, Side, Term
from kcalib._pairs.reductions import (
    BlockSums,
    Counts,
    DenseRectangle,
    EntriesInRange,
    LabelMatches,
    Moments,
    Products,
    QuadraticForms,
    sweep_one,
)
from kcalib.kernels import Exponential
from kcalib.parallel import Serial
from kcalib.parallel.backend import Run

pytestmark = pytest.mark.filterwarnings("ignore::kcalib.IndefiniteKernelWarning")  # of kernels that change sign


def _torch(array: np.ndarray):
    torch = pytest.importorskip("torch")
    return torch.from_numpy(np.array(array))


def _jax(array: np.ndarray):
    jax = pytest.importorskip("jax")
    return jax.numpy.asarray(array)


def _strict(array: np.ndarray):
    strict = pytest.importorskip("array_api_strict")
    return strict.asarray(array, device=strict.Device("device1"))


def _cupy(array: np.ndarray):
    import cupy

    return cupy.asarray(array)


def _map(problem: PairProblem, convert) -> PairProblem:
    def side(s: Side | None) -> Side | None:
        if s is None:
            return None
        return Side(convert(s.points), convert(s.features), None if s.labels is None else convert(s.labels))

    return PairProblem(side(problem.left), side(problem.right), problem.kernel)


def in_tiles(backend):
    """The backend in tiles, which this process computes."""
    run = Run(Serial(tile_size=64))
    run.held = run.parallel.open()
    return run.spread(backend)


BACKENDS = {"cpu": CpuBackend}
CONVERSIONS = {
    "array-api-strict": _strict,
    "array-api-torch": _torch,
    "array-api-jax": _jax,
    "cuda-emulated": emulated_cupy.asarray,
    # The real CuPy's, on a GPU.
    "cuda": _cupy,
    "sorted_line-cuda": _cupy,
    "sorted_line-emulated": emulated_cupy.asarray,
}
BACKENDS |= {
    "array-api-numpy": ArrayApiBackend,
    "array-api-strict": lambda p: ArrayApiBackend(_map(p, _strict)),
    "array-api-torch": lambda p: ArrayApiBackend(_map(p, _torch)),
    "array-api-jax": lambda p: ArrayApiBackend(_map(p, _jax)),
    # H in tiles, of one group of blocks each.
    "parallel-cpu": lambda p: in_tiles(CpuBackend(p)),
    "parallel-array-api": lambda p: in_tiles(ArrayApiBackend(p)),
}
WITHOUT_GPU = list(BACKENDS)
BACKENDS["cuda-emulated"] = lambda p: CudaBackend(_map(p, emulated_cupy.asarray))
BACKENDS["cuda"] = lambda p: CudaBackend(_map(p, _cupy))
ON_A_LINE = {
    "sorted": SortedBackend,
    "sorted_line-emulated": lambda p: SortedBackend(_map(p, emulated_cupy.asarray)),
    "sorted_line-cuda": lambda p: SortedBackend(_map(p, _cupy)),
}
SIZES = [(1, 2), (2, 3), (3, 10), (7, 1000), (197, 3), (101, 10), (103, 37), (199, 10), (143, 70)]
# An expanded squared distance is off by about 4 eps s, s <= 4 its largest term, and used where it
# exceeds 1e-3 s: the distance d is off by 4 eps s / (2 d) <= 63 eps sqrt(s) <= 126 eps, and a kernel of
# bandwidth 0.3 or more, whose slope is at most 1 / 0.3 (the sum "mixed": 4 times that), by less
# than 1700 eps: 1e-4 in float32, 2e-13 in float64, where the 1e-12 is asked.
TOLERANCE = {"float64": 1e-12, "float32": 1e-4}
# Products in float32: rounding of an entry and a number of the vector, and sums of at most 192 of them.
SINGLE = 194 * 2.0**-24


@pytest.fixture(autouse=True)
def library_of_the_backend(request):
    """JAX with 64-bit floats, the emulation in the place of CuPy."""
    backend = request.node.callspec.params.get("backend") if hasattr(request.node, "callspec") else None
    if backend in ("cuda-emulated", "sorted_line-emulated"):
        with emulated_cupy.installed():
            yield
        return
    if backend != "array-api-jax":
        yield
        return
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield


class Case:
    """A pair problem, its dense H from the oracle, and the scale its errors are measured on."""

    def __init__(self, kernel: str, target: str, n: int, m: int, dtype: str, duplicates: bool = False, other: int = 0):
        y, p = (duplicates_problem if duplicates else softmax_problem)(n + other, m, seed=n + m)
        matrix = None if target == "delta" else psd_matrix(m, min(m, 4))
        data = prepare(y, p, dtype=dtype)
        packed = _packing.pack(data, KERNELS[kernel], "delta" if matrix is None else matrix)
        side = packed.problem.left
        left, right = side.take(slice(0, n)), side.take(slice(n, None))
        self.problem = PairProblem(left, right if other else None, packed.problem.kernel)
        z, q = (y[n:], p[n:]) if other else (y, p)
        self.h = oracle.h_matrix(KERNELS[kernel], y[:n], p[:n], z, q, matrix)
        # H_ij is k times a sum that may cancel: the library's errors are relative to
        # k |e_i| |M| |e_j|, the oracle's to k |M| (it adds up terms of size |M|).
        self.tolerance = TOLERANCE[dtype]
        size = 1.0 if matrix is None else np.linalg.norm(matrix, 2)
        lengths = [np.linalg.norm(np.eye(m)[a] - b, axis=1) for a, b in ((y[:n], p[:n]), (z, q))]
        oracle_floor = 8 * float(np.finfo(np.longdouble).eps) / self.tolerance
        kernel_values = np.asarray(oracle.kernel_matrix(KERNELS[kernel], p[:n], q), float)
        if (kernel_values < 0).any():  # near its zeros a kernel is right relative to its largest value
            kernel_values = np.full_like(kernel_values, np.abs(kernel_values).max())
        self.scale = kernel_values * size * (np.outer(*lengths) + oracle_floor)

    def check(self, found, expected, scale) -> None:
        found = arrays.to_host(found)
        assert found.dtype == np.float64
        assert found.shape == np.shape(expected)
        error = np.abs(np.asarray(found - expected, float))
        assert (error <= self.tolerance * scale).all(), f"{np.max(error / scale):.3g} > {self.tolerance}"


CASES = (
    [pytest.param((k, "delta", 29, 10, "float64"), id=f"{k}-delta-float64") for k in KERNELS]
    + [pytest.param((k, "matrix", 23, 3, "float64"), id=f"{k}-matrix-float64") for k in KERNELS]
    + [pytest.param((k, "delta", 29, 12, "float32"), id=f"{k}-delta-float32") for k in KERNELS]
    + [
        pytest.param((k, t, n, m, d), id=f"{k}-{t}-{n}x{m}-{d}")
        for n, m in SIZES
        for k, t, d in (
            ("exponential", "delta", "float64"),
            ("linear+gaussian", "matrix", "float64"),
            ("exponential_cityblock", "delta", "float32"),
        )
    ]
    + [
        pytest.param((k, "delta", 64, m, "float64", True), id=f"{k}-duplicates-{m}")
        for m in (3, 20, 40)
        for k in KERNELS
    ]
)


case_of = functools.cache(Case)  # one oracle for all backends


@pytest.fixture
def case(request):
    return case_of(*request.param)


# Every kernel family, both target kernels, both dtypes, small and large n and m, ties.
FEW = (
    "linear+gaussian-matrix-float64",
    "gamma_0.3_cityblock-matrix-float64",
    "matern_2.5-delta-float32",
    "rational_quadratic-delta-float64",
    "exponential-delta-1x2-float64",
    "exponential-delta-7x1000-float64",
    "linear+gaussian-matrix-197x3-float64",
    "exponential_cityblock-delta-101x10-float32",
    "exponential_cityblock-delta-143x70-float32",
    "exponential_tv-duplicates-3",
    "gamma_1.5-duplicates-40",
    "mixed-duplicates-20",
)


def made(backend: str, case: Case):
    """The backend of that name for the problem of the case."""
    return (BACKENDS | ON_A_LINE)[backend](case.problem)


class Contract:
    """What every backend does with a symmetric problem: each reduction, and several in one sweep."""

    def test_every_reduction(self, backend, case):
        for name in dir(self):
            if name.startswith("check_"):
                getattr(self, name)(backend, case)

    def check_dense_rectangle(self, backend, case):
        tile = sweep_one(made(backend, case), DenseRectangle())
        case.check(tile, case.h, case.scale)

    def check_moments(self, backend, case):
        moments = sweep_one(made(backend, case), Moments(second=True))
        off = case.h - np.diag(np.diag(case.h))
        scale = case.scale.sum(axis=1)
        case.check(moments.row_sums, off.sum(axis=1), scale)
        case.check(moments.diagonal, np.diag(case.h), np.diag(case.scale))
        square_scale = float((case.scale**2).sum())
        case.check(np.asarray(moments.sum_of_squares), np.asarray((off**2).sum()), square_scale)

    def check_products(self, backend, case):
        w = np.random.default_rng(0).normal(size=(len(case.h), 5))
        found = made(backend, case)
        expected, scale = case.h @ w, case.scale @ np.abs(w)
        case.check(sweep_one(found, Products(_like(backend, w))), expected, scale)
        single = arrays.to_host(sweep_one(found, Products(_like(backend, w), dtype="float32")))
        assert single.dtype == np.float64
        error = np.abs(np.asarray(single - expected, float))
        assert (error <= (case.tolerance + SINGLE) * scale).all()

    def check_total_has_the_same_bits_with_and_without_rows(self, backend, case):
        found = made(backend, case)
        moments, total = sweep_one(found, Moments(second=True)), sweep_one(found, Moments(rows=False)).total
        assert float(total) == float(moments.total)
        off = case.h - np.diag(np.diag(case.h))
        assert abs(float(total) - float(off.sum())) <= case.tolerance * float(case.scale.sum())
        assert abs(float(moments.trace) - float(np.trace(case.h))) <= case.tolerance * float(np.trace(case.scale))

    def check_quadratic_forms(self, backend, case):
        w = np.random.default_rng(0).normal(size=(len(case.h), 35))
        h, scale, size = np.asarray(case.h, float), np.asarray(case.scale, float), np.abs(w)
        expected, scale = np.sum(w * (h @ w), axis=0), np.sum(size * (scale @ size), axis=0)
        found = made(backend, case)
        case.check(sweep_one(found, QuadraticForms(_like(backend, w))), expected, scale)
        single = arrays.to_host(sweep_one(found, QuadraticForms(_like(backend, w), dtype="float32")))
        # Entries, weights and partial sums rounded to float32.
        assert (np.abs(single - expected) <= (case.tolerance + 2e-6) * scale).all()

    def check_counts_and_entries_in_range(self, backend, case):
        found = made(backend, case)
        n = len(case.h)
        pairs = np.sort(arrays.to_host(sweep_one(found, DenseRectangle()))[np.triu_indices(n, 1)])
        # Thresholds in the middle of wide gaps, so that rounding cannot move an entry across.
        gaps = np.sort(np.argsort(np.diff(pairs))[-11:])
        thresholds = (pairs[gaps] + pairs[gaps + 1]) / 2 if len(pairs) > 1 else np.array([0.0])
        below = np.searchsorted(pairs, thresholds)
        np.testing.assert_array_equal(sweep_one(found, Counts(thresholds)), below)
        low, high = thresholds[0], thresholds[-1]
        inside = pairs[below[0] : below[-1]]
        entries = sweep_one(found, EntriesInRange(low, high, len(inside)))
        atol = case.tolerance * float(case.scale.max())
        np.testing.assert_allclose(np.sort(entries.values), inside, rtol=0, atol=atol)
        assert (entries.n_inside, entries.n_below) == (len(inside), below[0])
        some = sweep_one(found, EntriesInRange(low, high, len(inside) // 2))
        assert (len(some.values), *some[1:]) == (len(inside) // 2, *entries[1:])

    def check_block_sums(self, backend, case):
        n = len(case.h)
        for size in sorted({s for s in (2, 3, n // 2, n) if 2 <= s <= n}):
            found = sweep_one(made(backend, case), BlockSums(size))
            blocks = [slice(b * size, (b + 1) * size) for b in range(n // size)]
            expected = [case.h[b, b].sum() - np.trace(case.h[b, b]) for b in blocks]
            case.check(found, np.array(expected), np.array([case.scale[b, b].sum() for b in blocks]))

    def check_label_matches(self, backend, case):
        """Of labels alone, or of two labels with features; what a backend has not is refused."""
        found, n = made(backend, case), len(case.h)
        rng = np.random.default_rng(2)
        labels = rng.integers(2, size=(n, 3)).astype(np.int32)
        off = np.asarray(case.h - np.diag(np.diag(case.h)), float)
        scale = np.asarray(case.scale, float)
        features = rng.normal(size=(n, 2, 2))
        some = np.stack([features[np.arange(n), column] for column in labels.T])
        for reduction, products, rounding in (
            (LabelMatches(labels), labels.T[:, :, None] == labels.T[:, None, :], 2.0**-20 * np.abs(off).max()),
            (LabelMatches(labels, features), some @ some.transpose(0, 2, 1), 0.0),
        ):
            if found.obstacle(reduction) is not None:
                with pytest.raises(ValueError, match=r"cannot compute LabelMatches: it has no (such|option)"):
                    found.sweep([reduction])
                continue
            error = np.abs(sweep_one(found, reduction) - np.sum(off * products, axis=(1, 2)))
            assert (error <= np.sum((case.tolerance * scale + rounding) * np.abs(products), axis=(1, 2))).all()

    def check_many_reductions_in_one_sweep(self, backend, case):
        """Each has the bits that it has alone."""
        found, rng = made(backend, case), np.random.default_rng(1)
        vectors, weights = (_like(backend, rng.normal(size=(len(case.h), k))) for k in (2, 3))
        reductions = [
            QuadraticForms(weights), Moments(second=True), Counts(np.array([0.0])), Products(vectors),
            DenseRectangle(slice(0, 1), slice(None)), BlockSums(len(case.h)),
        ]  # fmt: skip
        forms, moments, *others = found.sweep(reductions)
        alone = [sweep_one(found, reduction) for reduction in reductions]
        for one, other in zip(
            [forms, moments.row_sums, *others], [alone[0], alone[1].row_sums, *alone[2:]], strict=True
        ):
            np.testing.assert_array_equal(arrays.to_host(one), arrays.to_host(other))
        assert (float(moments.total), moments.sum_of_squares) == (float(alone[1].total), alone[1].sum_of_squares)


def _like(backend: str, w: np.ndarray):
    return CONVERSIONS.get(backend, np.asarray)(w)


FIRST, ON_NUMPY = "cpu", "array-api-numpy"
EACH_KERNEL = [f"{k}-delta-float64" for k in KERNELS]
OFTEN = [case.id for case in CASES if not case.id.endswith(("-duplicates-3", "-duplicates-40"))]
SYMMETRIC = [
    *cells([FIRST], CASES, in_full=(), few={*FEW, *OFTEN}),
    *cells([ON_NUMPY], CASES, in_full=(), few={*FEW, *EACH_KERNEL}),
    *cells([name for name in WITHOUT_GPU if name not in (FIRST, ON_NUMPY)], CASES, in_full=(), few=FEW),
]


@pytest.mark.parametrize(("backend", "case"), SYMMETRIC, indirect=["case"])
class TestSymmetric(Contract):
    """Every problem."""


def _always_on_gpu(kernel: str, target: str, n: int, m: int, dtype: str, duplicates: bool = False) -> bool:
    """Problems of few programs, which take the time: each is compiled in a second or two, the others with -m slow."""
    if kernel == "linear+gaussian":
        return target == "matrix" and (n, m) in ((197, 3), (199, 10))
    return (kernel, target, dtype) == ("exponential", "delta", "float64") or (
        (kernel, dtype) == ("exponential_cityblock", "float32") and m == 10
    )


CASES_ON_GPU = [
    pytest.param(*case.values, id=case.id, marks=[] if _always_on_gpu(*case.values[0]) else pytest.mark.slow)
    for case in CASES
]
FEW_ON_GPU = (
    "linear+gaussian-matrix-197x3-float64",
    "exponential-delta-1x2-float64",
)


@pytest.mark.parametrize(
    ("backend", "case"), cells(["cuda-emulated", "cuda"], CASES_ON_GPU, in_full=(), few=FEW_ON_GPU), indirect=["case"]
)
class TestSymmetricOnGPU(Contract):
    """Every problem."""


LINE_KERNELS = ["exponential", "exponential_cityblock", "exponential_tv", "matern_1.5", "matern_2.5", "mixed"]
LINE_CASES = [
    pytest.param(
        (k, t, n, 2, "float64", duplicates),
        id=f"{k}-{t}-{n}-{duplicates}",
        marks=[pytest.mark.grid] if n in (2, 7) else [],
    )
    for k in LINE_KERNELS
    for t in ("delta", "matrix")
    for n, duplicates in ((1, False), (2, False), (3, False), (7, False), (64, True), (197, False))
]


@pytest.mark.parametrize("case", LINE_CASES, indirect=True)
@pytest.mark.parametrize(
    "backend", ["sorted", pytest.param("sorted_line-emulated", marks=pytest.mark.slow), "sorted_line-cuda"]
)
class TestOnALine(Contract):
    """Binary problems, for the backend that sorts."""


SOME = ("exponential-delta-197-False", "exponential-matrix-64-True")
SOME_LINE_CASES = [case for case in LINE_CASES if case.id in SOME]


@pytest.mark.parametrize("case", SOME_LINE_CASES, indirect=True)
@pytest.mark.parametrize("backend", ["sorted_line-emulated"])
class TestOnALineOnADevice(Contract):
    """The same on an emulated GPU: a selection, as each polynomial is compiled."""


def test_sorted_line_is_chosen_where_it_is_exact():
    y, p = softmax_problem(600, 2)
    side = _packing.pack(prepare(y, p), KERNELS["exponential"], "delta").problem.left
    terms = {name: _packing.pack(prepare(y, p), kernel, "delta").problem.kernel for name, kernel in KERNELS.items()}
    for name in KERNELS:
        expected = "sorted" if name in LINE_KERNELS else "cpu"
        assert backend_for(PairProblem(side, None, terms[name])).name == expected
    off = Side(side.points + np.array([0.0, 1e-12]), side.features)
    assert backend_for(PairProblem(off, None, terms["exponential"])).name == "cpu"
    with pytest.raises(ValueError, match="the two probabilities sum to 1 within 1e-12 only; pass those of the second"):
        backend_for(PairProblem(off, None, terms["exponential"]), backend="sorted")
    assert backend_for(PairProblem(side, side, terms["exponential"])).name == "sorted"
    few = side.take(slice(0, 511))
    assert backend_for(PairProblem(few, None, terms["exponential"])).name == "cpu"


RECTANGULAR = [pytest.param(o, d) for o in WITHOUT_GPU for d in ("float64", "float32")]
RECTANGULAR += [
    pytest.param("cuda-emulated", "float64"),
    pytest.param("cuda-emulated", "float32", marks=pytest.mark.slow),
    *(pytest.param("cuda", d) for d in ("float64", "float32")),
]


@pytest.mark.parametrize(("backend", "dtype"), RECTANGULAR)
@pytest.mark.parametrize(("n", "other", "m"), [(1, 5, 3), (120, 7, 12), (101, 211, 2)])
class TestRectangular:
    def test_all(self, backend, dtype, n, other, m):
        case = Case("linear+gaussian", "matrix", n, m, dtype, other=other)
        found = made(backend, case)
        case.check(sweep_one(found, DenseRectangle()), case.h, case.scale)
        moments = sweep_one(found, Moments(second=True))
        case.check(moments.row_sums, case.h.sum(axis=1), case.scale.sum(axis=1))
        case.check(moments.column_sums, case.h.sum(axis=0), case.scale.sum(axis=0))
        case.check(np.asarray(moments.sum_of_squares), np.asarray((case.h**2).sum()), (case.scale**2).sum())
        w = np.random.default_rng(0).normal(size=(other, 3))
        case.check(sweep_one(found, Products(_like(backend, w))), case.h @ w, case.scale @ np.abs(w))
        single = arrays.to_host(sweep_one(found, Products(_like(backend, w), dtype="float32")))
        error = np.abs(np.asarray(single - case.h @ w, float))
        assert (error <= (case.tolerance + SINGLE) * (case.scale @ np.abs(w))).all()
        for reduction in (BlockSums(1), QuadraticForms(w), Counts(np.zeros(1)), EntriesInRange(0.0, 1.0, 1)):
            with pytest.raises(ValueError, match="rows and columns of H are not the same samples"):
                found.sweep([reduction])


@pytest.mark.parametrize(("n", "other"), [(200, 50), (50, 200), (150, 140)])
@pytest.mark.parametrize("unlabelled", [False, True])
def test_rectangular_sides_have_labels_both_or_neither(n, other, unlabelled):
    """One side long enough to be sorted by label and the other not, or one without labels."""
    case = Case("exponential", "delta", n, 10, "float64", other=other)
    left, right = case.problem.left, case.problem.columns
    if unlabelled:
        right = Side(right.points, right.features)
    backend = CpuBackend(PairProblem(left, right, case.problem.kernel))
    moments = sweep_one(backend, Moments())
    case.check(moments.row_sums, case.h.sum(axis=1), case.scale.sum(axis=1))
    case.check(moments.column_sums, case.h.sum(axis=0), case.scale.sum(axis=0))
    case.check(sweep_one(backend, Products(np.eye(other))), case.h, case.scale)
    case.check(sweep_one(backend, DenseRectangle()), case.h, case.scale)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tile_takes_index_arrays(backend):
    case = Case("exponential", "delta", 40, 4, "float64")
    rows, columns = np.array([5, 1, 39]), np.array([0, 5])
    rows, columns = (_like(backend, i) for i in (rows, columns))
    tile = sweep_one(made(backend, case), DenseRectangle(rows, columns))
    case.check(tile, case.h[np.ix_([5, 1, 39], [0, 5])], case.scale[np.ix_([5, 1, 39], [0, 5])])


THREADED = [
    pytest.param(
        (dtype, n, m),
        id=f"{dtype}-{n}-{m}",
        marks=pytest.mark.grid if (dtype, m) in (("float32", 12), ("float32", 2), ("float64", 150)) else [],
    )
    for dtype in ("float64", "float32")
    for n, m in ((97, 3), (1000, 12), (500, 150), (2300, 2))
]


@pytest.mark.parametrize("problem", THREADED)
def test_bits_do_not_depend_on_the_number_of_threads(problem):
    dtype, n, m = problem
    y, p = softmax_problem(n, m)
    kernel = KERNELS["linear+gaussian" if m < 32 else "exponential"]
    problem = _packing.pack(prepare(y, p, dtype=dtype), kernel, "delta").problem
    w = np.random.default_rng(0).normal(size=(n, 2))
    v = np.random.default_rng(1).normal(size=(n, 19 if n < 2000 else 3))
    rectangular = PairProblem(problem.left.take(slice(0, n // 2 + 1)), problem.left, problem.kernel)

    def everything(threads: int) -> list[bytes]:
        backend = CpuBackend(problem, threads=threads)
        moments = sweep_one(backend, Moments(second=True))
        counts = sweep_one(backend, Counts(np.array([-0.1, 0.0, 0.2])))
        arrays = [moments.row_sums, moments.sum_of_squares, sweep_one(backend, Moments(rows=False)).total, counts]
        reductions = [
            *(Products(v, dtype=d) for d in ("float64", "float32")), Products(v[:, :1]),
            *(QuadraticForms(w, dtype=d) for d in ("float64", "float32")),
            *(BlockSums(size) for size in (2, 31, n // 2, n)),
        ]  # fmt: skip
        arrays += [sweep_one(backend, reduction) for reduction in reductions]
        arrays.append(sweep_one(CpuBackend(rectangular, threads=threads), Products(v)))
        arrays.append(np.sort(sweep_one(backend, EntriesInRange(0.0, 0.2, int(counts[2] - counts[1]))).values))
        return [np.asarray(a).tobytes() for a in arrays]

    first = everything(1)
    for threads in (2, 3, 7):
        assert everything(threads) == first


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("n", "other"), [(1, 0), (2, 0), (3, 0), (7, 0), (101, 0), (197, 0), (500, 0), (1, 300), (300, 1), (101, 197)]
)
def test_products_of_any_number_of_vectors(dtype, n, other):
    """Remainders of every register kernel. Products with unit vectors are the entries, each a sum of one term."""
    y, p = softmax_problem(n + other, 12, seed=n)
    packed = _packing.pack(prepare(y, p, dtype=dtype), KERNELS["exponential"], "delta").problem
    right = packed.left.take(slice(n, None)) if other else None
    problem = PairProblem(packed.left.take(slice(0, n)), right, packed.kernel)
    backend = CpuBackend(problem, threads=2)
    h = sweep_one(backend, Products(np.eye(other or n)))
    vectors = np.random.default_rng(n).normal(size=(other or n, 33))
    expected, scale = h @ vectors, np.abs(h) @ np.abs(vectors)
    for c in (0, 1, 2, 3, 4, 5, 8, 16, 17, 33):
        found, single = (sweep_one(backend, Products(vectors[:, :c], dtype=d)) for d in ("float64", "float32"))
        # n products and n - 1 sums, in NumPy and here; in float32 what `SINGLE` says.
        assert (np.abs(found - expected[:, :c]) <= 2 * (other + n) * 2.0**-53 * scale[:, :c]).all()
        assert (np.abs(single - expected[:, :c]) <= SINGLE * scale[:, :c]).all()
        assert c == 0 or n == 1 or (found != single).any()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_products_scale_with_their_vectors(dtype):
    """Zeros, and columns far beyond the range of float32: powers of two change nothing but the exponent."""
    y, p = softmax_problem(220, 10)
    backend = CpuBackend(_packing.pack(prepare(y, p), KERNELS["exponential"], "delta").problem)
    vectors = np.repeat(np.random.default_rng(0).normal(size=(220, 1)), 6, axis=1)
    vectors[::3] = 0.0
    powers = 2.0 ** np.array([0, 900, -900, 1020, 130, -140])
    found = sweep_one(backend, Products(vectors * powers, dtype=dtype))
    np.testing.assert_array_equal(found / powers, np.repeat(found[:, :1], 6, axis=1))
    np.testing.assert_array_equal(sweep_one(backend, Products(np.zeros((220, 2)), dtype=dtype)), np.zeros((220, 2)))
    generic = ArrayApiBackend(backend.problem)
    found = sweep_one(generic, Products(vectors * powers, dtype=dtype)) / powers
    np.testing.assert_allclose(found, np.repeat(found[:, :1], 6, axis=1), rtol=1e-15)


@pytest.mark.parametrize(("n", "other", "blocks"), [(4700, 0, 25), (9300, 0, 49), (4700, 300, 25), (300, 9300, 49)])
def test_products_of_groups_of_blocks(n, other, blocks):
    """Odd and even numbers of groups, of two and of four blocks: each pair once."""
    assert blocks == -(-max(n, other) // 192)
    points = softmax_problem(n + other, 2)[1].astype(np.float32)
    left, right = (Side(part, np.ones((len(part), 1), np.float32)) for part in (points[:n], points[n:]))
    terms = (Term(1.0, (Factor("gaussian", "euclidean", 2.0),)),)
    backend = CpuBackend(PairProblem(left, right if other else None, terms), threads=2)
    moments = sweep_one(backend, Moments())
    expected = moments.row_sums + (0.0 if other else moments.diagonal)
    found = sweep_one(backend, Products(np.ones((other or n, 1))))[:, 0]
    # H is positive; `moments` adds the same float32 numbers up in float32 within register tiles: 6 rows, or 4 packs.
    np.testing.assert_allclose(found, expected, rtol=6 * 2.0**-24, atol=0)


def test_products_can_be_stopped():
    y, p = softmax_problem(40_000, 2)
    side = _packing.pack(prepare(y, p), KERNELS["exponential"], "delta").problem.left
    arrays = np.ascontiguousarray(side.points), np.ascontiguousarray(side.features), None, None
    kernel = _native.Kernel([(1.0, [(0, 0, 2.0, 0.0, 0.0)])])
    seen = []

    def stop(done: float) -> None:
        seen.append(done)
        if len(seen) == 3:
            raise KeyboardInterrupt

    start = time.thread_time()
    products = _native.Products(np.ones((40_000, 20)))
    with pytest.raises(KeyboardInterrupt):
        _native.Problem(kernel, arrays).sweep([products], _native.RunOptions(3, stop))
    assert 0 < seen[0] < seen[1] < seen[2] < 1
    assert time.thread_time() - start < 2.0


def entries_and_bounds(kernel, y: np.ndarray, p: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """H from the oracle, and what entries may be off by: a share of k |e_i| |e_j|, and roundings of the oracle."""
    values = np.concatenate([oracle.kernel_matrix(kernel, part, p) for part in np.array_split(p, 10)])
    lengths = np.linalg.norm(np.eye(p.shape[1])[y] - p, axis=1)
    floor = 8 * float(np.finfo(np.longdouble if dtype == "float64" else np.float32).eps)
    shares = {"float64": 1e-12, "float32": 3e-3}[dtype] * np.outer(lengths, lengths) + floor
    return values * oracle.target_factor(y, p, y, p, None), np.asarray(values, float) * shares


def entries_of(backend: CpuBackend, way: str) -> np.ndarray:
    unit_vectors = Products(np.eye(len(backend.problem.left.points)))
    return sweep_one(backend, unit_vectors if way == "sorted by label" else DenseRectangle())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("m", some([10, 50], 50))
@pytest.mark.parametrize("way", ["sorted by label", "in the user's order"])
def test_distances_from_residuals_are_right_for_every_pair_of_labels(dtype, m, way):
    """Near, far, identical and saturated predictions, same and other labels; distances count in units of 0.02."""
    n = 300
    y, p = duplicates_problem(n, m)
    p[40:60] = np.eye(m)[y[40:60]]  # certain and right: residuals of exactly 0
    kernel = Exponential(bandwidth=0.02)
    problem = _packing.pack(prepare(y, p, dtype=dtype), kernel, "delta").problem
    assert problem.left.labels is not None
    backend = CpuBackend(problem)
    h, bound = entries_and_bounds(kernel, y, p, dtype)
    assert (np.abs(np.asarray(entries_of(backend, way) - h, float)) <= bound).all()

    # Sums, whose products with kernels are not entries that were written before.
    np.fill_diagonal(h, 0)
    error = np.abs(np.asarray(sweep_one(backend, Moments()).row_sums - h.sum(axis=1), float))
    assert (error <= bound.sum(axis=1) + 8 * np.finfo(dtype).eps * np.asarray(abs(h).sum(axis=1), float)).all()


def diffuse_problem(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions that are near each other: identical, 1e-9 and 1e-14 apart, rounded; and a few saturated ones.

    These are not among the rows by which backends choose their formula, every (n // 64 + 1)-th.
    """
    _, p = softmax_problem(n, m, scale=0.3 if m < 100 else 1.0)
    half, eighth = n // 2, n // 8
    p[half:] = p[: n - half]
    for shift, rows in ((1e-9, slice(half, half + eighth)), (1e-14, slice(half + eighth, half + 2 * eighth))):
        first = p[rows, 0].copy()
        p[rows, 0] = first * (1 - shift)
        p[rows, 1] += first * shift
    p[-eighth:] = np.round(p[-eighth:], 2) + 1e-3
    p /= p.sum(axis=1, keepdims=True)
    y = draw_labels(p, np.random.default_rng(1))
    step = n // 64 + 1
    for k, error in enumerate((0.0, 0.0, 1e-7, 3e-5, 1e-4, 1e-2, 0.2)):  # right and wrong ones, some of one class
        row = 1 + step * k
        p[row] = error / (m - 1)
        p[row, k % 3] = 1 - error
        y[row] = (k + (k == 1)) % 3
    return y, p


@pytest.mark.parametrize("way", ["sorted by label", "in the user's order"])
@pytest.mark.parametrize("m", some([10, 100, 1000], 100))
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("backend", some(["cpu", "cuda-emulated"], "cpu"))
def test_one_product_of_diffuse_predictions(backend, dtype, m, way):
    """Distances count in units of 0.02; target factors of small residuals have digits of their own.

    On a GPU distances are expanded about the origin, and count in units of 0.2.
    """
    n = 140
    y, p = diffuse_problem(n, m)
    kernel = Exponential(bandwidth=0.2 if backend == "cuda-emulated" else 0.02)
    problem = _packing.pack(prepare(y, p, dtype=dtype), kernel, "delta").problem
    rows = base.sampled(problem.left.points)
    assert base.spread(problem.left.points)[0] < cpu.SPREAD_OF_RESIDUALS
    assert (np.take_along_axis(p, y[:, None], axis=1)[rows] < 0.9).all()
    if backend == "cuda-emulated":
        with emulated_cupy.installed():
            found = arrays.to_host(sweep_one(CudaBackend(_map(problem, emulated_cupy.asarray)), DenseRectangle()))
    else:
        found = entries_of(CpuBackend(problem), way)
    expected, bound = entries_and_bounds(kernel, y, p, dtype)
    assert (np.abs(np.asarray(found - expected, float)) <= bound).all()


@pytest.mark.parametrize("m", some([10, 100, 1000], 100))
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_saturated_and_diffuse_predictions_beside_each_other(dtype, m):
    """Small distances of small terms, and the same predictions again, 1e-3, 1e-9, 1e-14 or 0 apart."""
    n = 144
    _, saturated = softmax_problem(n, m, scale=20.0)
    _, p = softmax_problem(n, m, seed=1, scale=0.3)
    p[::2] = saturated[::2]
    p[n // 2 :] = p[: n // 2]
    for k, shift in enumerate((1e-3, 1e-9, 1e-14)):
        rows = slice(n // 2 + k * n // 8, n // 2 + (k + 1) * n // 8)
        moved = shift * p[rows, 0]
        p[rows, 0] -= moved
        p[rows, 1] += moved
    y = np.random.default_rng(2).integers(m, size=n)
    y[: n // 4] = y[n // 2 : n // 2 + n // 4]
    kernel = Exponential(bandwidth=0.02)
    backend = CpuBackend(_packing.pack(prepare(y, p, dtype=dtype), kernel, "delta").problem)
    expected, bound = entries_and_bounds(kernel, y, p, dtype)
    assert (np.abs(np.asarray(entries_of(backend, "sorted by label") - expected, float)) <= bound).all()


def test_quadratic_forms_of_resampling_weights(monkeypatch):
    """Weights by name are those of `Weights.values`, whatever fits into memory at a time."""
    y, p = softmax_problem(400, 12)
    problem = _packing.pack(prepare(y, p), KERNELS["exponential"], "delta").problem
    backend = CpuBackend(problem)
    weights = Weights("gaussian", 400, 100, seed=3)
    found = sweep_one(backend, QuadraticForms(weights))
    w = weights.values()
    np.testing.assert_array_equal(found, sweep_one(backend, QuadraticForms(w)))
    h = sweep_one(backend, DenseRectangle())
    scale = np.sum(np.abs(w) * (np.abs(h) @ np.abs(w)), axis=0)
    assert (np.abs(found - np.sum(w * (h @ w), axis=0)) <= 1e-13 * scale).all()
    monkeypatch.setattr(cpu, "WEIGHTS_BYTES", 1)
    np.testing.assert_array_equal(sweep_one(backend, QuadraticForms(weights)), found)


def test_null_draws_in_float32_deviate_by_less_than_1e_5_standard_deviations():
    y, p = softmax_problem(2000, 10)
    problem = _packing.pack(prepare(y, p), KERNELS["exponential"], "delta").problem
    backend, weights = CpuBackend(problem), Weights("rademacher", 2000, 500, seed=0)
    draws, single = (
        sweep_one(backend, QuadraticForms(weights)),
        sweep_one(backend, QuadraticForms(weights, dtype="float32")),
    )
    assert np.max(np.abs(single - draws)) <= 1e-5 * np.std(draws)


def test_generic_is_differentiable_at_coinciding_points():
    torch = pytest.importorskip("torch")
    y, p = softmax_problem(12, 3)
    p[1] = p[0]
    terms = _packing.pack(prepare(y, p), KERNELS["exponential"], "delta").problem.kernel

    def loss(points):
        features = torch.nn.functional.one_hot(torch.from_numpy(y), 3) - points
        return torch.sum(
            sweep_one(ArrayApiBackend(PairProblem(Side(points, features), None, terms)), Moments()).row_sums
        )

    points = torch.tensor(p, requires_grad=True)
    loss(points).backward()
    assert torch.isfinite(points.grad).all()
    step = torch.zeros_like(points)
    step[5, 1] = 1e-6
    slope = (loss(points + step) - loss(points - step)) / 2e-6
    assert float(slope.detach()) == pytest.approx(float(points.grad[5, 1]), rel=1e-6)


@pytest.mark.parametrize("kernel", ["exponential", "linear+gaussian"])
@pytest.mark.parametrize(
    ("n", "m", "scale", "dtype"),
    [
        (197, 2, 3.0, "float64"),
        (230, 3, 8.0, "float64"),
        (401, 10, 3.0, "float64"),  # by residuals
        (397, 11, 0.3, "float64"),  # about a centre
        (203, 90, 1.0, "float64"),
        (401, 10, 3.0, "float32"),
    ],
)
def test_expectation_beside_moments(n, m, scale, dtype, kernel):
    """sum k_ij^2 tr(V_i V_j) from covariances written out; the moments have the bits that they have alone."""
    y, p = softmax_problem(n, m, seed=1, scale=scale)
    problem = _packing.pack(prepare(y, p, dtype=dtype), KERNELS[kernel], "delta").problem
    one, two = (CpuBackend(problem, threads=threads) for threads in (1, 2))
    both = Moments(second=True, null_variance=True)
    moments = sweep_one(one, both)
    mean, magnitude = moments.null_variance
    k = oracle.kernel_matrix(KERNELS[kernel], p, p).astype(float)
    np.fill_diagonal(k, 0.0)
    v = np.array([np.diag(row) - np.outer(row, row) for row in p]).reshape(n, -1)
    tolerance = 1e-13 if dtype == "float64" else 3e-6
    expected = np.sum(k**2 * (v @ v.T))
    np.testing.assert_allclose(mean, expected, rtol=tolerance * max(1.0, magnitude / expected))
    np.testing.assert_allclose(magnitude, np.sum(k**2 * (p @ p.T)), rtol=tolerance)
    alone, again = sweep_one(one, Moments(second=True)), sweep_one(two, both)
    assert again.null_variance == (mean, magnitude)
    for found in (moments, again):
        assert (found.total, found.sum_of_squares, found.trace) == (alone.total, alone.sum_of_squares, alone.trace)
        assert np.array_equal(found.row_sums, alone.row_sums)
