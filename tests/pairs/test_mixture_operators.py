"""Backends on problems whose features (or points) are mixtures, or whose distances are in a table.

families x numbers of components, dimensions and terms x dtypes (for array operations on NumPy only the problems of
`FEW`, all with `-m "not slow"`), each primitive, against the textbook definitions: Gaussian integrals of means and
covariances in extended precision, partial fractions
of Laplace scales with more digits than they cancel, literal sums over atoms. Features are laid out by hand, as
`Mixtures` says.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import emulated_cupy
import mpmath
import numpy as np
import oracle
import pytest
import scipy.stats
from grid import cells

from kcalib import kernels as K
from kcalib._pairs.backends import mixture_rows
from kcalib._pairs.backends.array_api import ArrayApiBackend
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.backends.cuda import CudaBackend
from kcalib._pairs.backends.sorted_line import SortedBackend
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.problem import Factor, Mixtures, PairProblem, Side, Term
from kcalib._pairs.reductions import (
    BlockSums,
    Counts,
    DenseRectangle,
    EntriesInRange,
    Moments,
    MomentSums,
    Products,
    QuadraticForms,
    Reduction,
    sweep_one,
)

LONG = np.longdouble
ALL = slice(None)
# Relative to the sum of the sizes of the parts' products. In float64: an exponent up to 700 with a few roundings makes
# 1e-12. In float32 exponents that matter are below 20, rounded a few times, as the features are: 20 * 8 * 6e-8 = 1e-5.
TOLERANCE = {"float64": 1e-12, "float32": 2e-5}
EMULATED, GENERIC = "cuda-emulated", "array-api"
ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = [pytest.param(EMULATED, marks=pytest.mark.slow), ON_GPU]
PROCESSORS = ["cpu", *DEVICES]


class OnDevice:
    """The cuda backend on a problem whose arrays go to the device, and results come back."""

    def __init__(self, problem: PairProblem) -> None:
        import cupy  # or the emulation

        def side(one: Side | None) -> Side | None:
            return None if one is None else Side(*(cupy.asarray(a) for a in (one.points, one.features)))

        self.problem = problem
        self._backend = CudaBackend(replace(problem, left=side(problem.left), right=side(problem.right)))

    def sweep(self, reductions: Sequence[Reduction[Any]]) -> list[Any]:
        return [self._on_host(result) for result in self._backend.sweep([self._moved(one) for one in reductions])]

    @staticmethod
    def _moved(reduction: Reduction[Any]) -> Reduction[Any]:
        import cupy

        if isinstance(reduction, Products):
            return replace(reduction, vectors=cupy.asarray(reduction.vectors))
        if isinstance(reduction, QuadraticForms):
            return replace(reduction, weights=cupy.asarray(reduction.weights))
        return reduction

    @staticmethod
    def _on_host(result: Any) -> Any:
        if isinstance(result, MomentSums):
            rows, columns = (None if a is None else a.get() for a in (result.row_sums, result.column_sums))
            return replace(result, row_sums=rows, column_sums=columns)
        return result.get() if hasattr(result, "get") else result


def backend(processor: str, problem: PairProblem) -> Any:
    if processor == GENERIC:
        return ArrayApiBackend(problem)
    return OnDevice(problem) if processor in (EMULATED, "cuda") else CpuBackend(problem)


@pytest.fixture(autouse=True)
def emulated_device(request):
    """The emulation in the place of CuPy."""
    if hasattr(request.node, "callspec") and request.node.callspec.params.get("processor") == EMULATED:
        with emulated_cupy.installed():
            yield
    else:
        yield


@dataclass
class Part:
    """A term of a row: u (c delta_y - sum_k w_k P_k) with P_k of location m_k and spread s_k.

    Shapes: u, c (n,); y (n, d); w (n, K); m (n, K, d); s (n, K, d): variances (laplace: scales), and for "normal_full"
    (n, K, d, d): covariances.
    """

    u: np.ndarray
    c: np.ndarray
    y: np.ndarray
    w: np.ndarray
    m: np.ndarray
    s: np.ndarray

    def take(self, rows: slice) -> Part:
        return Part(*(getattr(self, name)[rows] for name in ("u", "c", "y", "w", "m", "s")))


def random_part(family: str, n: int, d: int, k: int, rng: np.random.Generator, whole: bool = False) -> Part:
    """With duplicates and, unless `whole`, locations of no mixture, rows of no observation and missing components."""
    u, c, y = rng.uniform(0.5, 2.0, n), np.ones(n), rng.normal(size=(n, d)) / np.sqrt(d)
    w, m = rng.dirichlet(np.ones(k), size=n), y[:, None, :] + 0.7 * rng.normal(size=(n, k, d)) / np.sqrt(d)
    if family == "normal_full":
        roots = rng.normal(size=(n, k, d, d)) / d
        s = roots @ np.swapaxes(roots, 2, 3) + 0.01 * np.eye(d)
    else:
        s = np.exp(rng.normal(size=(n, k, d)))
    if family == "laplace":
        s[::5] = 1.0  # where its partial fractions have no limit in sight
    if not whole:
        w[1::6] = 0
        c[3::7] = 0
        w[::4, 1:] = 0
    for array in (y, w, m, s):
        array[n // 2 + 1 :] = array[: n - n // 2 - 1]
    return Part(u, c, y, w, m, s)


def lower_triangle(matrices: np.ndarray) -> np.ndarray:
    rows, columns = np.tril_indices(matrices.shape[-1])
    return matrices[..., rows, columns]


def component_columns(family: str, part: Part) -> np.ndarray:
    w, v = part.w[:, :, None], part.w[:, :, None]
    if family == "normal":
        h = 0.5 + 2 * part.s
        i = 1 / (h + 0.5)
        columns = [w, v * np.sqrt(i.prod(axis=2, keepdims=True)), part.m, h, i]
    elif family == "normal_full":
        eye = np.eye(part.y.shape[1])
        h = eye / 2 + 2 * part.s
        inverse = np.linalg.inv(np.linalg.cholesky(h + eye / 2))
        root = np.prod(np.diagonal(inverse, axis1=2, axis2=3), axis=2)[:, :, None]
        columns = [w, v * root, part.m, lower_triangle(h), lower_triangle(inverse)]
    elif family == "laplace":
        columns = [w, part.m, part.s]
    else:
        columns = [w, part.m]
    return np.concatenate(columns, axis=2).reshape(len(part.u), -1)


def feature_columns(family: str, parts: list[Part]) -> np.ndarray:
    rows = [[p.u[:, None], p.c[:, None], p.y, component_columns(family, p)] for p in parts]
    return np.concatenate([column for row in rows for column in row], axis=1)


def gaussian_product(m: np.ndarray, n: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """E exp(-|Z|^2), Z normal with mean m - n and this covariance (n, n', d, d): |I + 2 C|^(-1/2) exp(...)."""
    a = np.eye(m.shape[-1]) + 2 * covariance
    difference = m[:, None] - n[None]
    exponent = np.einsum("ijk,ijk->ij", difference, np.linalg.solve(a, difference[..., None])[..., 0])
    return np.exp(-exponent) / np.sqrt(np.linalg.det(a))


def diagonal_product(m: np.ndarray, n: np.ndarray, variance: np.ndarray) -> np.ndarray:
    m, n, a = m.astype(LONG), n.astype(LONG), 1 + 2 * variance.astype(LONG)
    return np.prod(np.exp(-((m[:, None] - n[None]) ** 2) / a) / np.sqrt(a), axis=2)


@functools.cache
@mpmath.workdps(140)
def laplace_product(delta: float, b: float, c: float) -> mpmath.mpf:
    """Twice the density at delta of the sum of Laplace variables of scales 1, b and c, by partial fractions.

    Scales are moved apart by 1e-40.
    """
    scales = [mpmath.mpf(1)] + [mpmath.mpf(x) * (1 + k * mpmath.mpf(10) ** -40) for k, x in ((1, b), (2, c)) if x > 0]
    total = mpmath.mpf(0)
    for j, r in enumerate(scales):
        others = [x for i, x in enumerate(scales) if i != j]
        power = r ** (2 * len(others) - 1)  # of the residue of the characteristic function prod 1 / (1 + r^2 t^2)
        total += power * mpmath.exp(-mpmath.mpf(delta) / r) / mpmath.fprod(r**2 - x**2 for x in others)
    return total


def kernel_of(terms: tuple[Term, ...], x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Only what the atoms' kernels below are made of."""
    x, z, total = x.astype(LONG), z.astype(LONG), LONG(0)
    for term in terms:
        product = LONG(term.coefficient)
        for factor in term.factors:
            difference = np.abs(x[:, None] - z[None])
            d = np.sum(difference, axis=2) if factor.metric == "cityblock" else np.sqrt(np.sum(difference**2, axis=2))
            r = LONG(factor.scale) * d
            profiles = {
                "exponential": lambda r=r: np.exp(-r),
                "matern_3_2": lambda r=r: (1 + r) * np.exp(-r),
                "gaussian": lambda r=r, d=d: np.exp(-r * d),
                "rational_quadratic": lambda r=r, d=d, f=factor: (1 + r * d) ** -LONG(f.a),
            }
            product = product * profiles[factor.profile]()
        total = total + product
    return total


def part_product(mixtures: Mixtures, a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> np.ndarray:
    """f of two parts (location (n, d), spread (n, ...) or None for a point), shape (n, n')."""
    (m, s), (n, t) = a, b
    if mixtures.family == "atoms":
        return kernel_of(mixtures.kernel, m, n)
    if mixtures.family == "laplace":
        s, t = (np.zeros_like(x) if spread is None else spread for x, spread in ((m, s), (n, t)))
        rows, columns = ([*zip(x[:, 0], scale[:, 0], strict=True)] for x, scale in ((m, s), (n, t)))
        return np.array([[LONG(str(laplace_product(abs(x - z), b, c))) for z, c in columns] for x, b in rows])
    full = mixtures.family == "normal_full"
    d = m.shape[1]
    nothing = (lambda k: np.zeros((k, d, d))) if full else (lambda k: np.zeros((k, d)))
    s, t = nothing(len(m)) if s is None else s, nothing(len(n)) if t is None else t
    return (gaussian_product if full else diagonal_product)(m, n, s[:, None] + t[None])


def target_factors(mixtures: Mixtures, left: list[Part], right: list[Part]) -> tuple[np.ndarray, np.ndarray]:
    """The factors from their definition, and the sums of the sizes of their terms."""
    total, size = LONG(0), LONG(0)
    for a, b in zip(left, right, strict=True):
        # An observation is a part of weight c, a component one of weight -w.
        rows = [(a.c, a.y, None)] + [(-a.w[:, k], a.m[:, k], a.s[:, k]) for k in range(mixtures.n_components)]
        columns = [(b.c, b.y, None)] + [(-b.w[:, k], b.m[:, k], b.s[:, k]) for k in range(mixtures.n_components)]
        for v, m, s in rows:
            for w, n, t in columns:
                weights = (a.u * v).astype(LONG)[:, None] * (b.u * w).astype(LONG)
                product = weights * part_product(mixtures, (m, s), (n, t))
                total, size = total + product, size + np.abs(product)
    return total, size


class Case:
    """A problem with an exponential kernel on vectors, H from the definition, and what its errors are relative to."""

    def __init__(self, mixtures: Mixtures, n: int, dtype: str, other: int = 0, weights: str = "some missing"):
        rng = np.random.default_rng([n, mixtures.n_dims, mixtures.n_components])
        size = (n + other, mixtures.n_dims, mixtures.n_components)
        parts = [
            random_part(mixtures.family, *size, rng, whole=weights != "some missing") for _ in range(mixtures.n_terms)
        ]
        if weights == "ones":
            parts = [replace(part, u=np.ones_like(part.u)) for part in parts]
        points = rng.normal(size=(n + other, 2))
        side = Side(points.astype(dtype), feature_columns(mixtures.family, parts).astype(dtype))
        left, right = slice(0, n), slice(n, None) if other else slice(0, n)
        kernel = (Term(1.0, (Factor("exponential", "euclidean", 0.5),)),)
        self.problem = PairProblem(side.take(left), side.take(right) if other else None, kernel, mixtures)
        factors, size = target_factors(mixtures, [p.take(left) for p in parts], [p.take(right) for p in parts])
        k = oracle.kernel_matrix(K.Exponential(bandwidth=2.0), points[left], points[right])
        self.h, self.tolerance = k * factors, TOLERANCE[dtype]
        # Exponents near 700 are off by more in float32, where the products are some 1e-38: nothing beside the others.
        floor = 0.0 if dtype == "float64" else np.max(k * size) * 1e-7
        self.scale = k * size + floor + np.finfo(np.float64).tiny

    def check(self, found: np.ndarray, expected: np.ndarray, scale: np.ndarray, more: float = 0.0) -> None:
        assert found.dtype == np.float64
        assert found.shape == np.shape(expected)
        error = np.abs(np.asarray(found - expected, LONG))
        assert (error <= (self.tolerance + more) * scale).all(), f"{np.max(error / scale):.3g}"


EXPONENTIAL = (Term(1.0, (Factor("exponential", "euclidean", 0.8),)),)
SEVERAL = (
    Term(0.5, (Factor("matern_3_2", "cityblock", 0.6), Factor("gaussian", "euclidean", 0.1))),
    Term(2.0, (Factor("rational_quadratic", "euclidean", 0.4, 1.7),)),
)
MIXTURES = {
    "normal-1": (Mixtures("normal", 1, 1), 101),
    "normal-1-terms": (Mixtures("normal", 1, 1, 3), 101),
    "normal-1-mixture": (Mixtures("normal", 1, 3), 101),
    "normal-2-mixture-terms": (Mixtures("normal", 2, 2, 2), 101),
    "normal-10": (Mixtures("normal", 10, 1), 101),
    "normal-19": (Mixtures("normal", 19, 2), 70),
    "normal_full-1": (Mixtures("normal_full", 1, 1), 50),
    "normal_full-2-mixture": (Mixtures("normal_full", 2, 3), 50),
    "normal_full-5-terms": (Mixtures("normal_full", 5, 1, 2), 50),
    "normal_full-16": (Mixtures("normal_full", 16, 1), 40),
    "laplace": (Mixtures("laplace", 1, 1), 37),
    "laplace-mixture-terms": (Mixtures("laplace", 1, 2, 2), 19),
    "atoms-1": (Mixtures("atoms", 1, 5, 1, EXPONENTIAL), 101),
    "atoms-3": (Mixtures("atoms", 3, 2, 1, SEVERAL), 101),
    "atoms-12": (Mixtures("atoms", 12, 1, 1, EXPONENTIAL), 70),
}
# Of single normals on a line the core has sums of their own where no weight is missing, and where all are 1.
WHOLE = {"normal-1-whole": "some", "normal-1-ones": "ones"}
CASES = [pytest.param((name, None, d, 0), id=f"{name}-{d}") for name in [*MIXTURES, *WHOLE] for d in TOLERANCE]
CASES += [pytest.param((name, None, "float64", 23), id=f"{name}-rectangular") for name in [*MIXTURES, *WHOLE]]
CASES += [
    pytest.param((name, n, "float64", 0), id=f"{name}-n{n}")
    for name in ("normal-1", "atoms-3", *WHOLE)
    for n in (1, 2, 7, 64, 197)
]


# Every family, both dtypes, one and several components and terms, one size and two.
FEW = (
    "normal-1-float64",
    "normal-1-n197",
    "normal-1-whole-float64",
    "normal-1-ones-rectangular",
    "normal-1-ones-float32",
    "normal-2-mixture-terms-float32",
    "normal-10-rectangular",
    "normal-19-float64",
    "normal_full-2-mixture-float64",
    "normal_full-16-float32",
    "laplace-float64",
    "laplace-mixture-terms-float32",
    "atoms-1-float32",
    "atoms-3-n2",
    "atoms-12-rectangular",
)


@functools.cache
def case_of(name: str, n: int | None, dtype: str, other: int) -> Case:
    """One oracle for all backends."""
    mixtures, usual = MIXTURES["normal-1" if name in WHOLE else name]
    return Case(mixtures, usual if n is None else n, dtype, other, WHOLE.get(name, "some missing"))


@pytest.fixture
def case(request):
    return case_of(*request.param)


class Primitives:
    @pytest.mark.grid
    def test_every_reduction(self, processor, case):
        self.check_tile(processor, case)
        self.check_sums(processor, case)
        self.check_matmul(processor, case)
        if case.problem.symmetric:
            self.check_of_symmetric_problems(processor, case)

    def check_tile(self, processor, case):
        found = sweep_one(backend(processor, case.problem), DenseRectangle())
        case.check(found, case.h, case.scale)

    def check_sums(self, processor, case):
        found = backend(processor, case.problem)
        moments = sweep_one(found, Moments(second=True, trace=False))
        off, scale = case.h.copy(), case.scale.copy()
        if case.problem.symmetric:
            np.fill_diagonal(off, 0)
        case.check(moments.row_sums, off.sum(axis=1), scale.sum(axis=1))
        case.check(moments.column_sums, off.sum(axis=0), scale.sum(axis=0))
        squares = np.abs(moments.sum_of_squares - (off**2).sum())
        assert squares <= 3 * case.tolerance * (scale**2).sum()
        total = sweep_one(found, Moments(rows=False, trace=False)).total
        assert total == moments.total
        assert abs(total - off.sum()) <= case.tolerance * scale.sum()

    def check_matmul(self, processor, case):
        w = np.random.default_rng(0).normal(size=(case.h.shape[1], 5))
        found = backend(processor, case.problem)
        expected, scale = case.h @ w, case.scale @ np.abs(w)
        case.check(sweep_one(found, Products(w)), expected, scale)
        case.check(sweep_one(found, Products(w, dtype="float32")), expected, scale, 194 * 2.0**-24)

    def check_of_symmetric_problems(self, processor, case):
        n, found = len(case.h), backend(processor, case.problem)
        w = np.random.default_rng(0).normal(size=(n, 35))
        expected, scale = np.sum(w * (case.h @ w), axis=0), np.sum(np.abs(w) * (case.scale @ np.abs(w)), axis=0)
        case.check(sweep_one(found, QuadraticForms(w)), expected, scale)
        case.check(sweep_one(found, QuadraticForms(w, dtype="float32")), expected, scale, 2e-6)
        for size in sorted({s for s in (2, n // 2, n) if 2 <= s <= n}):
            blocks = [slice(b * size, (b + 1) * size) for b in range(n // size)]
            expected = [case.h[b, b].sum() - np.trace(case.h[b, b]) for b in blocks]
            scale = [case.scale[b, b].sum() for b in blocks]
            case.check(sweep_one(found, BlockSums(size)), np.array(expected), np.array(scale))
        pairs = np.sort(sweep_one(found, DenseRectangle())[np.triu_indices(n, 1)])
        gaps = np.sort(np.argsort(np.diff(pairs))[-11:])
        thresholds = (pairs[gaps] + pairs[gaps + 1]) / 2 if len(pairs) > 1 else np.array([0.0])
        below = np.searchsorted(pairs, thresholds)
        np.testing.assert_array_equal(sweep_one(found, Counts(thresholds)), below)
        inside = pairs[below[0] : below[-1]]
        entries = np.sort(sweep_one(found, EntriesInRange(thresholds[0], thresholds[-1], len(inside))).values)
        np.testing.assert_allclose(entries, inside, rtol=0, atol=case.tolerance * float(case.scale.max()))


@pytest.mark.parametrize(
    ("processor", "case"), cells(["cpu", GENERIC], CASES, in_full=["cpu"], few=FEW), indirect=["case"]
)
class TestPrimitives(Primitives):
    @pytest.mark.grid
    def test_any_number_of_threads_gives_the_same_bits(self, processor, case):
        if processor == GENERIC:
            pytest.skip("no threads")
        w = np.random.default_rng(0).normal(size=(case.h.shape[1], 3))
        one, *others = (CpuBackend(case.problem, threads=threads) for threads in (1, 2, 5))
        moments, product = sweep_one(one, Moments(trace=False)), sweep_one(one, Products(w))
        for other in others:
            np.testing.assert_array_equal(sweep_one(other, Moments(trace=False)).row_sums, moments.row_sums)
            assert sweep_one(other, Moments(rows=False, trace=False)).total == moments.total
            np.testing.assert_array_equal(sweep_one(other, Products(w)), product)


# Some seconds each to compile for the emulation: the others are slow.
ALWAYS = ("normal-2-mixture-terms-rectangular",)


@pytest.mark.parametrize(
    "case",
    [pytest.param(*case.values, id=case.id, marks=[] if case.id in ALWAYS else pytest.mark.slow) for case in CASES],
    indirect=True,
)
@pytest.mark.parametrize("processor", [EMULATED])
class TestPrimitivesEmulated(Primitives):
    """One text for each family, dtype and sort of problem."""


@pytest.mark.parametrize("case", CASES, indirect=True)
@pytest.mark.parametrize("processor", [ON_GPU])
class TestPrimitivesOnAGPU(Primitives):
    """The real ones."""


def points_problem(mixtures: Mixtures, parts: list[Part], profile: str, dtype: str = "float64") -> PairProblem:
    """Points that are mixtures, all features 1."""
    points = np.concatenate([component_columns(mixtures.family, part) for part in parts], axis=1).astype(dtype)
    kernel = (Term(1.0, (Factor(profile, "mmd", 1.0),)),)
    return PairProblem(Side(points, np.ones((len(points), 1), dtype)), None, kernel, None, mixtures)


def squared_distances(mixtures: Mixtures, parts: list[Part]) -> np.ndarray:
    """<P - P', P - P'>: parts with an observation of weight 0, and the products of each with each."""
    bare = [replace(part, u=np.ones_like(part.u), c=np.zeros_like(part.c)) for part in parts]
    products, _ = target_factors(mixtures, bare, bare)
    own = np.diag(products)
    return own[:, None] + own[None] - 2 * products


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_mmd_distances(processor, name, dtype):
    mixtures, n = MIXTURES[name][0], 19
    rng = np.random.default_rng(n)
    parts = [
        random_part(mixtures.family, n, mixtures.n_dims, mixtures.n_components, rng) for _ in range(mixtures.n_terms)
    ]
    d2 = squared_distances(mixtures, parts)
    # d^2 is off by a tolerance of its terms, of which each is at most the kernel of equal points.
    size = 4 * mixtures.n_terms * max(1.0, sum(t.coefficient for t in mixtures.kernel))
    found = sweep_one(backend(processor, points_problem(mixtures, parts, "gaussian", dtype)), DenseRectangle())
    assert np.max(np.abs(found - np.exp(-d2))) <= TOLERANCE[dtype] * size
    found = backend(processor, points_problem(mixtures, parts, "identity", dtype))
    distances = sweep_one(found, DenseRectangle())
    assert (distances >= 0).all()
    points = found.problem.left.points
    equal = (points[:, None] == points[None]).all(axis=2)
    assert equal.sum() > n
    np.testing.assert_array_equal(distances[equal], 0.0)
    np.testing.assert_allclose(distances**2, d2.astype(float), rtol=0, atol=TOLERANCE[dtype] * size)
    sums = sweep_one(found, Moments(trace=False)).row_sums  # distances of one side with itself
    np.testing.assert_allclose(sums, distances.sum(axis=1), rtol=1e-14 if dtype == "float64" else 1e-6)


@pytest.mark.parametrize("d", [1, 3, 20])
@pytest.mark.parametrize("processor", [*PROCESSORS, GENERIC])
def test_mmd_distances_of_normals_keep_their_digits_where_predictions_are_nearly_the_same(processor, d):
    rng = np.random.default_rng(d)
    m, s = rng.normal(size=(1, 1, d)), np.exp(rng.normal(size=(1, 1, d)))
    shifts = 10.0 ** -np.arange(1.0, 9.0)[:, None, None]
    n = len(shifts)
    m, s = m * (1 + shifts * rng.normal(size=(n, 1, d))), s * (1 + shifts * rng.normal(size=(n, 1, d)))
    part = Part(np.ones(n), np.ones(n), m[:, 0], np.ones((n, 1)), m, s)
    mixtures = Mixtures("normal", d, 1)
    problem = points_problem(mixtures, [part], "identity")
    found = sweep_one(backend(processor, problem), DenseRectangle())
    h = problem.left.points[:, 2 + d : 2 + 2 * d]  # what rounding left of the variances
    with mpmath.workdps(60):

        def product(i: int, j: int) -> mpmath.mpf:
            a = [mpmath.mpf(x) + mpmath.mpf(y) for x, y in zip(h[i], h[j], strict=True)]
            c = [mpmath.mpf(x) - mpmath.mpf(y) for x, y in zip(m[i, 0], m[j, 0], strict=True)]
            exponent = mpmath.fsum(x * x / y for x, y in zip(c, a, strict=True))
            return mpmath.exp(-exponent) / mpmath.sqrt(mpmath.fprod(a))

        for i in range(n):
            for j in range(n):
                d2 = product(i, i) + product(j, j) - 2 * product(i, j)
                # Differences of rounded numbers are exact here, but those of r = prod (2 h)^(-1/4), from logarithms:
                # each is off by some 1e-16, and so is the distance.
                assert abs(found[i, j] - float(mpmath.sqrt(d2))) <= 1e-12 * float(mpmath.sqrt(d2)) + 4e-16


@pytest.mark.parametrize("processor", [*PROCESSORS, GENERIC])
def test_mmd_distances_of_equal_covariances_keep_their_digits(processor):
    """d^2 = 2 |2 H|^(-1/2) (1 - exp(-q)) with q = c^T (2 H)^(-1) c."""
    d, n = 3, 8
    root = np.random.default_rng(0).normal(size=(d, d))
    m = np.outer(10.0 ** -np.arange(1.0, n + 1), [1.0, -2.0, 0.5])
    s = np.broadcast_to(root @ root.T, (n, 1, d, d))
    part = Part(np.ones(n), np.ones(n), m, np.ones((n, 1)), m[:, None], s)
    problem = points_problem(Mixtures("normal_full", d, 1), [part], "identity")
    found = sweep_one(backend(processor, problem), DenseRectangle())
    twice = np.eye(d) + 4 * root @ root.T
    c = m[:, None] - m[None]
    q = np.einsum("ijk,kl,ijl->ij", c, np.linalg.inv(twice), c)
    expected = np.sqrt(-2 * np.expm1(-q) / np.sqrt(np.linalg.det(twice)))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("other", [0, 13])
def test_distances_in_a_table(processor, dtype, other):
    rng = np.random.default_rng(0)
    places = rng.normal(size=(300, 2))
    table = np.sqrt(np.sum((places[:, None] - places[None]) ** 2, axis=2))
    wide = np.full((300, 400), np.nan)
    wide[:, :300] = table
    table = wide[:, :300]  # rows with a stride
    at, features = rng.integers(300, size=150), rng.normal(size=(150, 3))
    n = 150 - other
    side = Side(at[:, None].astype(dtype), features.astype(dtype))
    kernel = (
        Term(0.5, (Factor("matern_5_2", "table", 0.7), Factor("gaussian", "table", 0.2))),
        Term(1.0, (Factor("exponential", "table", 0.4),)),
    )
    right = side.take(slice(n, None)) if other else None
    problem = PairProblem(side.take(slice(0, n)), right, kernel, table=table)
    columns = slice(n, None) if other else slice(0, n)
    d = table[np.ix_(at[:n], at[columns])]
    k = 0.5 * (1 + 0.7 * d + (0.7 * d) ** 2 / 3) * np.exp(-0.7 * d - 0.2 * d * d) + np.exp(-0.4 * d)
    expected, size = k * (features[:n] @ features[columns].T), k * (np.abs(features[:n]) @ np.abs(features[columns].T))
    tolerance = {"float64": 1e-14, "float32": 1e-6}[dtype]
    found = backend(processor, problem)
    assert (np.abs(sweep_one(found, DenseRectangle()) - expected) <= tolerance * 5 * size).all()
    w = rng.normal(size=(expected.shape[1], 2))
    assert (np.abs(sweep_one(found, Products(w)) - expected @ w) <= 5 * tolerance * (size @ np.abs(w))).all()
    transposed = backend(processor, replace(problem, table=np.asfortranarray(table)))
    np.testing.assert_array_equal(sweep_one(transposed, DenseRectangle()), sweep_one(found, DenseRectangle(ALL, ALL)))
    with pytest.raises(ValueError, match=r"positions in the table are .* expected 0 to 149"):
        backend(processor, replace(problem, table=table[:150]))
    if not other:
        np.fill_diagonal(expected, 0)
    assert abs(sweep_one(found, Moments(trace=False)).total - expected.sum()) <= 5 * tolerance * size.sum()


SCALES = (1.0, 1 + 2**-52, 1 - 2**-53, 1 + 1e-6, 0.5, 2.0, 1e-3, 1e3, 1e-15, 1e15, 0.9375, 1.07)
DELTAS = (0.0, 1e-300, 1e-17, 1e-8, 1e-3, 0.06, 0.07, 0.4, 1.0, 3.0, 40.0, 700.0)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.grid
def test_laplace_products_keep_their_digits_for_any_scales(processor):
    """Scales equal to the kernel's, to each other, one unit in the last place beside, and far from them."""
    rows = [(0.0, b) for b in SCALES]
    columns = [(delta, c) for delta in DELTAS for b in SCALES for c in (b, b * (1 + 2**-52), 1.0)]
    columns += [(delta, 0.0) for delta in DELTAS]  # observations alone
    left, right = (np.zeros((len(points), 6)) for points in (rows, columns))
    left[:, 0], left[:, 3], left[:, 4:] = 1, 1, rows
    right[:, 0], right[:, 4:] = 1, columns
    right[:, 1] = right[:, 5] == 0
    right[:, 2], right[:, 3] = right[:, 4], 1 - right[:, 1]
    ones = [np.ones((len(points), 1)) for points in (rows, columns)]
    kernel = (Term(1.0, (Factor("identity", "dot"),)),)
    problem = PairProblem(Side(ones[0], left), Side(ones[1], right), kernel, Mixtures("laplace", 1, 1))
    found = sweep_one(backend(processor, problem), DenseRectangle())
    for i, (_, b) in enumerate(rows):
        for j, (delta, c) in enumerate(columns):
            expected = float(laplace_product(delta, b, c)) * (1 if c else -1)
            # exp is clamped at exp(-708).
            assert abs(found[i, j] - expected) <= 1e-12 * abs(expected) + 1e-306, (delta, b, c)


def test_the_oracle_of_laplace_products_is_the_mean_of_the_kernel():
    """E exp(-|Z - Z'|) over 1000 equally likely quantiles of each: the last ones' steps make an error of some 1e-3."""
    shares = (np.arange(1000) + 0.5) / 1000
    for delta, b, c in ((0.0, 0.7, 0.7), (0.8, 1.0, 0.4), (2.0, 3.0, 1.0)):
        z, other = scipy.stats.laplace(delta, b).ppf(shares), scipy.stats.laplace(0.0, c).ppf(shares)
        mean = np.mean(np.exp(-np.abs(z[:, None] - other)))
        assert float(laplace_product(delta, b, c)) == pytest.approx(mean, rel=1e-3)
        assert float(laplace_product(delta, b, 0)) == pytest.approx(np.mean(np.exp(-np.abs(z))), rel=1e-3)


def test_a_product_of_normals_by_hand():
    """y = 0, P = N(0, 1/4) and y' = 1, P' = N(1, 3/4), no weights: A = 1 + 2 (1/4 + 3/4) = 3, others 3/2 and 5/2."""
    features = np.array([[1.0, 1, 0, 1, 1.5**-0.5, 0, 1.0, 1 / 1.5], [1.0, 1, 1, 1, 2.5**-0.5, 1, 2.0, 1 / 2.5]])
    points = np.ones((2, 1))
    kernel = (Term(1.0, (Factor("identity", "dot"),)),)
    problem = PairProblem(Side(points, features), None, kernel, Mixtures("normal", 1, 1))
    found = sweep_one(CpuBackend(problem), DenseRectangle())
    own = 1 - 2 / np.sqrt(1.5) + 1 / np.sqrt(2)  # 2 (1/4 + 1/4) + 1
    other = 1 - 2 / np.sqrt(2.5) + 1 / np.sqrt(4)
    cross = np.exp(-1 / 1.5) / np.sqrt(1.5) + np.exp(-1 / 2.5) / np.sqrt(2.5)
    between = np.exp(-1) - cross + np.exp(-1 / 3) / np.sqrt(3)
    np.testing.assert_allclose(found, [[own, between], [between, other]], rtol=0, atol=1e-15)


def normals_on_a_line(y: np.ndarray, m: np.ndarray, variance: np.ndarray) -> Part:
    ones = np.ones((len(y), 1))
    return Part(ones[:, 0], ones[:, 0], y[:, None], ones, m[:, None, None], variance[:, None, None])


def kernel_problem(part: Part, points: np.ndarray, scale: float, columns: slice | None = None) -> PairProblem:
    """All rows beside each other, or the first of them beside `columns`."""
    side = Side(points, feature_columns("normal", [part]))
    kernel = (Term(1.0, (Factor("exponential", "euclidean", scale),)),)
    left, right = (side, None) if columns is None else (side.take(slice(0, columns.start)), side.take(columns))
    return PairProblem(left, right, kernel, Mixtures("normal", 1, 1))


def exact_parts(part: Part, i: int, j: int) -> list[mpmath.mpf]:
    """l(y, y'), E l(Z, y'), E l(y, Z') and E l(Z, Z')."""
    (y, m, s), (z, n, t) = ([mpmath.mpf(float(a.ravel()[k])) for a in (part.y, part.m, part.s)] for k in (i, j))
    places = ((y - z, 0), (m - z, s), (y - n, t), (m - n, s + t))
    return [mpmath.exp(-gap * gap / (1 + 2 * v)) / mpmath.sqrt(1 + 2 * v) for gap, v in places]


@pytest.mark.parametrize("processor", ["cpu"])
@pytest.mark.parametrize("narrow", [1.0, 0.1, 0.01, 1e-6])
def test_brackets_that_cancel_lose_nothing_to_the_kernels_exponent(processor, narrow):
    """Pairs of one distance have one kernel: it is read off a pair whose bracket is large, and divided out of all."""
    rng, n = np.random.default_rng(0), 24
    m, variance = rng.normal(size=n), narrow**2 * rng.uniform(0.2, 1.5, n)
    y, large = m + np.sqrt(variance) * rng.normal(size=n), [0, n // 2]
    m[large], variance[large], y[large] = 0.0, 1.0, 1.5
    part = normals_on_a_line(y, m, variance)
    points = np.repeat([[0.0, 0.0], [3.0, 4.0]], n // 2, axis=0)
    with mpmath.workdps(40):
        parts = [[exact_parts(part, i, j) for j in range(n // 2, n)] for i in range(n // 2)]
        bracket = np.array([[float(a - b - c + d) for a, b, c, d in row] for row in parts])
        size = np.array([[float(sum(four)) for four in row] for row in parts])
    for scale in (1e-9, 0.3, 7.77, 119.3):
        found = sweep_one(backend(processor, kernel_problem(part, points, scale, slice(n // 2, n))), DenseRectangle())
        kernel = found[0, 0] / bracket[0, 0]
        assert kernel == pytest.approx(np.exp(-5 * scale), rel=1e-12)
        assert (np.abs(found / kernel - bracket) <= 1e-14 * size).all()


@pytest.mark.parametrize("processor", ["cpu"])
def test_weights_of_powers_of_two_and_none_give_the_same_bits(processor):
    rng, n = np.random.default_rng(0), 150
    m, variance, points = rng.normal(size=n), rng.uniform(0.01, 1.5, n), rng.normal(size=(n, 2))
    part = normals_on_a_line(m + rng.normal(size=n), m, variance)
    plain = sweep_one(backend(processor, kernel_problem(part, points, 0.7)), DenseRectangle())
    weighted = replace(part, u=2.0 ** rng.integers(-3, 4, n))
    found = sweep_one(backend(processor, kernel_problem(weighted, points, 0.7)), DenseRectangle())
    np.testing.assert_array_equal(found, plain * weighted.u[:, None] * weighted.u)


@pytest.mark.parametrize("processor", ["cpu"])
def test_normals_and_kernels_that_vanish(processor):
    """Exponents beyond the range of exp, of either or of both: nothing is NaN, and what is left is right."""
    n = 24
    y = np.linspace(-40, 40, n)
    part = normals_on_a_line(y, y + 0.3, np.full(n, 0.2))
    points = np.stack([np.linspace(0, 40, n), np.zeros(n)], axis=1)
    for scale in (0.5, 10.0, 25.0, 1e6):
        found = sweep_one(backend(processor, kernel_problem(part, points, scale)), DenseRectangle())
        with mpmath.workdps(40):
            for i, j in np.ndindex(n, n):
                kernel = mpmath.exp(-scale * abs(mpmath.mpf(points[i, 0]) - mpmath.mpf(points[j, 0])))
                four = exact_parts(part, i, j)
                expected = kernel * (four[0] - four[1] - four[2] + four[3])
                assert abs(float(found[i, j] - expected)) <= 1e-12 * float(kernel * sum(four)) + 1e-305


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_numbers_of_any_size_give_numbers(processor, name, dtype):
    """Predictions as certain, as wide and as far away as a float can say: entries are finite, and at most 4 u u'."""
    mixtures, n = MIXTURES[name][0], 40
    rng = np.random.default_rng(1)
    most = float(np.sqrt(np.finfo(dtype).max)) / 8
    parts = []
    for _ in range(mixtures.n_terms):
        part = random_part(mixtures.family, n, mixtures.n_dims, mixtures.n_components, rng)
        part.u[:] = 1
        part.y[::3] *= most
        part.m[1::5] *= most
        part.s[::4] *= most / 4
        part.s[1::4] *= 1e-30
        if mixtures.family == "laplace":
            part.s[2::4] = 0
        parts.append(part)
    features = feature_columns(mixtures.family, parts).astype(dtype)
    points = np.concatenate([component_columns(mixtures.family, part) for part in parts], axis=1).astype(dtype)
    size = mixtures.n_terms * max(1.0, sum(t.coefficient for t in mixtures.kernel))
    kernel = (Term(1.0, (Factor("exponential", "mmd", 1.0),)),)
    problem = PairProblem(Side(points, features), None, kernel, mixtures, mixtures)
    entries = sweep_one(backend(processor, problem), DenseRectangle())
    assert np.isfinite(entries).all()
    assert np.max(np.abs(entries)) <= 4 * size * (1 + 1e-6)


def test_which_backend_is_chosen():
    case = Case(Mixtures("normal", 1, 1), 600, "float64")
    chosen = backend_for(case.problem)
    assert chosen.name == "cpu"
    assert CpuBackend.unsuitable(case.problem) is None
    assert "distributions" in SortedBackend.unsuitable(case.problem)
    with pytest.raises(ValueError, match="backend='sorted' cannot take this problem: the predictions are distr"):
        backend_for(case.problem, backend="sorted")


def test_covariances_of_many_dimensions_are_the_generic_backends():
    mixtures = Mixtures("normal_full", 17, 1)
    part = random_part("normal_full", 3, 17, 1, np.random.default_rng(0))
    side = Side(part.y, feature_columns("normal_full", [part]))
    problem = PairProblem(side, None, (Term(1.0, (Factor("exponential", "euclidean", 0.5),)),), mixtures)
    chosen = backend_for(problem)
    assert chosen.name == "array-api"
    assert "17 dimensions, more than 16" in chosen.reason
    with pytest.raises(ValueError, match="backend='cpu' cannot take this problem: normals with full covariances"):
        backend_for(problem, backend="cpu")


def test_bounded_rows_keep_their_weights():
    mixtures = Mixtures("laplace", 1, 2, 2)
    rows = np.full((1, mixtures.feature_columns), 2.0**125)
    bounded = mixture_rows.bounded(mixtures, rows, 3)
    weights = [0, 1, 3, 6, 9, 10, 12, 15]
    np.testing.assert_array_equal(np.flatnonzero(bounded[0] == 2.0**125), weights)
    points = mixture_rows.bounded(mixtures, np.full((1, mixtures.point_columns), 2.0**125), 0)
    np.testing.assert_array_equal(np.flatnonzero(points[0] == 2.0**125), [0, 3, 6, 9])
