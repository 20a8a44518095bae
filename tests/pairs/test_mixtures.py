"""Closed forms of target kernels against quadrature, mpmath and literal loops; the backend on top of them."""

from __future__ import annotations

import functools
import itertools
import math
from pathlib import Path
from typing import get_args

import mpmath
import numpy as np
import pytest
from scipy import integrate

from kcalib import _native
from kcalib._backend import arrays
from kcalib._pairs import families, mixtures
from kcalib._pairs.backends.array_api import ArrayApiBackend
from kcalib._pairs.families.laplace import laplace_at_point, laplace_between
from kcalib._pairs.mixtures import (
    closed_form,
    expectation,
    feature_columns,
    inner_products,
    location_columns,
    own_products,
    padded,
    pair_expectation,
    point_columns,
    squared_mmd,
    transformed,
)
from kcalib._pairs.problem import Factor, Family, Mixtures, PairProblem, PointFamily, Side, Term
from kcalib._pairs.reductions import DenseRectangle, Moments, sweep_one
from kcalib.distributions import Components
from kcalib.kernels import Exponential, Gaussian, Linear, Matern, RationalQuadratic

EPS = float(np.finfo(np.float64).eps)
FAMILIES = ("normal", "normal_full", "laplace", "atoms")


def random_components(family: str, n: int, k: int, d: int, seed: int = 0) -> Components:
    rng = np.random.default_rng(seed)
    d = 1 if family == "laplace" else d
    weights = rng.dirichlet(np.ones(k), size=n)
    locations = rng.normal(size=(n, k, d))
    scales = None
    if family == "normal":
        scales = rng.gamma(2.0, 0.3, size=(n, k, d))
    elif family == "laplace":
        scales = rng.gamma(2.0, 0.4, size=(n, k, 1))
    elif family == "normal_full":
        root = rng.normal(size=(n, k, d, d))
        scales = 0.3 * root @ root.swapaxes(-1, -2) / d
    return Components(family, weights, locations, scales)


def hermite(d: int, nodes: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Nodes, shape (N, d), and weights of E f(Z), Z standard normal."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.array(list(itertools.product(x, repeat=d)))
    return grid, np.prod(list(itertools.product(w / w.sum(), repeat=d)), axis=1)


def literal(components: Components, i: int, other: Components, j: int, kernel) -> float:
    """E l(Z_i, Z'_j) by quadrature over each pair of components (an observation: components of one atom)."""
    total = 0.0
    for k, q in itertools.product(range(components.weights.shape[1]), range(other.weights.shape[1])):
        w = components.weights[i, k] * other.weights[j, q]
        total += w * _literal_pair(components, (i, k), other, (j, q), kernel)
    return total


def _literal_pair(components, one, other, two, kernel) -> float:
    m = components.locations[one] - other.locations[two]
    if components.family == "laplace":
        b, c = components.scales[one][0], 0.0 if other.scales is None else other.scales[two][0]
        return _laplace_quadrature(m[0], b, c, kernel)
    covariance = np.zeros((len(m), len(m)))
    for side, at in ((components, one), (other, two)):
        if side.scales is not None:
            covariance = covariance + (np.diag(side.scales[at]) if side.family == "normal" else side.scales[at])
    if not covariance.any():
        return kernel(m)
    values, vectors = np.linalg.eigh(covariance)
    nodes, weights = hermite(len(m))
    points = m + (nodes * np.sqrt(np.maximum(values, 0))) @ vectors.T
    return float(weights @ np.array([kernel(z) for z in points]))


def _laplace_quadrature(m: float, b: float, c: float, kernel) -> float:
    """Expectation over the difference of two Laplace variables, by its density, piece by piece between its kinks."""

    def density(z: float) -> float:
        if c == 0:
            return math.exp(-abs(z) / b) / (2 * b)
        return (b * math.exp(-abs(z) / b) - c * math.exp(-abs(z) / c)) / (2 * (b * b - c * c))

    ends = sorted({-40.0 * max(b, c), -m, 0.0, 40.0 * max(b, c)})
    parts = itertools.pairwise(ends)
    return sum(
        integrate.quad(lambda z: density(z) * kernel(np.array([m + z])), *p, epsabs=1e-13, epsrel=1e-12, limit=200)[0]
        for p in parts
    )


def kernels_of(family: str):
    """Kernels, and what they are as functions of a difference."""
    if family == "laplace":
        return [
            (Exponential(bandwidth=0.7), lambda z: math.exp(-abs(z[0]) / 0.7)),
            (
                2.0 * Exponential(bandwidth=0.7, metric="cityblock") + 0.5 * Exponential(bandwidth=3.0),
                lambda z: 2 * math.exp(-abs(z[0]) / 0.7) + 0.5 * math.exp(-abs(z[0]) / 3),
            ),
        ]
    gaussian = [
        (Gaussian(bandwidth=1.3), lambda z: math.exp(-(z @ z) / (2 * 1.3**2))),
        (
            2.0 * Gaussian(bandwidth=1.3) + 0.5 * (Gaussian(bandwidth=3.0) * Gaussian(bandwidth=2.0)),
            lambda z: 2 * math.exp(-(z @ z) / (2 * 1.3**2)) + 0.5 * math.exp(-(z @ z) * (1 / 18 + 1 / 8)),
        ),
    ]
    if family != "atoms":
        return gaussian
    r = math.sqrt(3) / 0.8
    return [
        *gaussian,
        (Exponential(bandwidth=0.7, metric="cityblock"), lambda z: math.exp(-np.abs(z).sum() / 0.7)),
        (Matern(bandwidth=0.8), lambda z: (1 + r * math.hypot(*z)) * math.exp(-r * math.hypot(*z))),
        (RationalQuadratic(bandwidth=0.8), lambda z: 1 / (1 + (z @ z) / (2 * 0.8**2))),
    ]


def kinds():
    return [(f, i) for f in FAMILIES for i in range(len(kernels_of(f)))]


@pytest.mark.parametrize(("family", "which"), kinds())
def test_expectations_by_quadrature(family, which):
    kernel, function = kernels_of(family)[which]
    one, other = random_components(family, 2, 2, 2, seed=1), random_components(family, 2, 3, 2, seed=2)
    y = np.random.default_rng(3).normal(size=(3, one.locations.shape[2]))
    points = Components(family, np.ones((3, 1)), y[:, None, :], None)
    found, pairs = expectation(one, y, kernel.terms()), pair_expectation(one, other, kernel.terms())
    for i, j in itertools.product(range(2), range(3)):
        assert found[i, j] == pytest.approx(literal(one, i, points, j, function), rel=1e-10)
    for i, j in itertools.product(range(2), range(2)):
        assert pairs[i, j] == pytest.approx(literal(one, i, other, j, function), rel=1e-10)


def test_a_family_is_the_same_in_every_list():
    """Headers, compiled core, array forms and the type that users' components have."""
    headers = Path(__file__).parents[2] / "src" / "include" / "kcalib" / "families"
    assert list(families.FAMILIES) == list(get_args(Family)) == list(FAMILIES)
    every = [*FAMILIES, "staircases"]
    assert list(_native.FAMILIES) == list(families.POINT_FAMILIES) == list(get_args(PointFamily)) == every
    assert {path.stem for path in headers.iterdir()} == {*every, "common"}
    assert [family.number for family in _native.FAMILIES.values()] == list(range(len(every)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("d", [1, 3])
def test_columns_are_as_many_as_the_header_says(family, d):
    components = random_components(family, 2, 2, d, seed=0)
    columns = _native.FAMILIES[family].component_columns(components.locations.shape[2])
    assert point_columns(components, 1.0).shape == (2, 2 * columns)


OFFSETS = [0, EPS, -EPS / 2, 1e-12, -1e-12, 1e-8, -1e-8, 1e-4, -1e-4, 0.1, -0.1]
SCALES = sorted({1 + x for x in OFFSETS} | {1e-12, 1e-6, 0.3, 3.0, 1e3, 1e6})
DISTANCES = [0.0, 1e-12, 1e-6, 1e-3, 0.1, 0.5, 1.0, 3.0, 10.0, 50.0, 500.0]


@pytest.mark.grid
def test_laplace_on_and_near_its_singular_sets():
    """To 1e-12, against Widmann et al. 2021, D.2, with 250 digits and scales moved apart by 1e-60 of themselves.

    The exponential of -500 alone is off by 500 eps.
    """
    with mpmath.workdps(250):
        tiny, exp = mpmath.mpf(10) ** -60, mpmath.exp
        for b in SCALES:
            others = np.array(sorted({*SCALES, *(b * (1 + x) for x in OFFSETS)}))
            x = mpmath.mpf(b) * (1 + tiny)
            for distance in DISTANCES:
                d = mpmath.mpf(distance)
                e, e_b = exp(-d), exp(-d / x)
                expected = (x * e_b - e) / (x * x - 1)
                found = float(laplace_at_point(np.array(distance), np.array(b)))
                assert abs(found - expected) <= 1e-12 * expected
                values = laplace_between(np.full(len(others), distance), np.full(len(others), b), others)
                for c, value in zip(others.tolist(), values.tolist(), strict=True):
                    z = mpmath.mpf(c) * (1 - tiny)
                    x2, z2 = x * x, z * z
                    expected = (
                        x**3 / ((x2 - 1) * (x2 - z2)) * e_b
                        + z**3 / ((z2 - 1) * (z2 - x2)) * exp(-d / z)
                        + e / ((x2 - 1) * (z2 - 1))
                    )
                    assert abs(value - expected) <= 1e-12 * expected, (b, c, distance)


def test_laplace_in_float32():
    d, b, c = np.meshgrid([0.0, 0.1, 3.0, 60.0, 1e15], [1e-15, 0.5, 1.0, 1.0001, 1e15], [1e-15, 1.0, 2.0, 1e15])
    single = [a.astype(np.float32) for a in (d, b, c)]
    double = [a.astype(np.float64) for a in single]
    eps = float(np.finfo(np.float32).eps)
    for function, count in ((laplace_at_point, 2), (laplace_between, 3)):
        found, expected = function(*single[:count]), function(*double[:count])
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=100 * eps, atol=1e-37)


def test_normals_of_many_dimensions():
    """The product of 400 factors of 1e30 overflows, that of their roots is 0; d = 4 has no excuse."""
    for d, expected in ((4, (1 + 4e30) ** -2.0), (400, 0.0)):
        normal = Components("normal", np.ones((1, 1)), np.zeros((1, 1, d)), np.full((1, 1, d), 1e30))
        value = pair_expectation(normal, normal, Gaussian(bandwidth=math.sqrt(0.5)).terms())
        np.testing.assert_allclose(value, expected, rtol=1e-14)


def test_ill_conditioned_covariances():
    """Variances of 1e12 and 1e-6 turned by 45 degrees, against mpmath."""
    root = np.array([[1.0, -1.0], [1.0, 1.0]]) / math.sqrt(2)
    covariance = root @ np.diag([1e12, 1e-6]) @ root.T
    full = Components("normal_full", np.ones((1, 1)), np.array([[[0.3, -0.2]]]), covariance[None, None])
    y = np.array([[0.5, 0.1]])
    with mpmath.workdps(60):
        r = mpmath.matrix(y[0].tolist()) - mpmath.matrix(full.locations[0, 0].tolist())
        s = mpmath.matrix(covariance.tolist())
        for found, twice in (
            (expectation(full, y, Gaussian(bandwidth=1.0).terms()), 1),
            (pair_expectation(full, padded(moved(full, y), 1), Gaussian(bandwidth=1.0).terms()), 2),
        ):
            a = mpmath.eye(2) + twice * s
            expected = mpmath.exp(-(r.T * a**-1 * r)[0] / 2) / mpmath.sqrt(mpmath.det(a))
            # I + S, of condition 1e12, has eigenvalues near 1 that its entries of 1e12 hold to 1e12 eps.
            assert abs(found[0, 0] / expected - 1) <= 4e12 * EPS


def moved(components: Components, y: np.ndarray) -> Components:
    return Components(components.family, components.weights, y[:, None, :], components.scales)


@pytest.mark.parametrize("family", FAMILIES)
def test_location_columns(family):
    """<delta_y, delta_y' - P'> by its two expectations; weights scale the measures."""
    kernel = kernels_of(family)[1][0]
    components = random_components(family, 4, 2, 2)
    d = components.locations.shape[2]
    rng = np.random.default_rng(5)
    y, z, weight = rng.normal(size=(4, d)), rng.normal(size=(3, d)), rng.uniform(1, 2, size=4)
    scale = closed_form(family, kernel.terms(), d)
    mixtures = Mixtures(family, d, 2, len(scale), kernel.terms() if family == "atoms" else ())
    features, locations = feature_columns(y, components, scale, weight), location_columns(z, components, scale)
    assert features.shape == (4, mixtures.feature_columns) and locations.shape == (3, mixtures.feature_columns)
    function = kernels_of(family)[1][1]
    direct = np.array([[function(a - b) for b in y] for a in z])
    expected = weight * (direct - expectation(components, z, kernel.terms()).T)
    np.testing.assert_allclose(inner_products(mixtures, locations, features), expected, rtol=0, atol=50 * EPS)


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks(family, monkeypatch):
    """A few rows and columns at a time, with the same bits; own products are those of the diagonal."""
    kernel = kernels_of(family)[0][0]
    components = random_components(family, 13, 2, 2)
    d = components.locations.shape[2]
    scale, y = closed_form(family, kernel.terms(), d), np.random.default_rng(0).normal(size=(13, d))
    described = Mixtures(family, d, 2, 1, kernel.terms() if family == "atoms" else ())
    features, points = feature_columns(y, components, scale), point_columns(components, scale)
    assert points.shape[1] == described.point_columns
    whole = inner_products(described, features, features), squared_mmd(described, points, points)
    np.testing.assert_allclose(own_products(described, features), np.diag(whole[0]), rtol=0, atol=20 * EPS)
    monkeypatch.setattr(mixtures, "BLOCK_ELEMENTS", 100)
    np.testing.assert_allclose(inner_products(described, features, features), whole[0], rtol=0, atol=20 * EPS)
    np.testing.assert_allclose(squared_mmd(described, points, points), whole[1], rtol=0, atol=20 * EPS)
    np.testing.assert_allclose(own_products(described, features), np.diag(whole[0]), rtol=0, atol=20 * EPS)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_squared_mmd(family, count):
    kernel = kernels_of(family)[1][0]
    one, other = random_components(family, 3, count, 2, seed=1), random_components(family, 4, count, 2, seed=2)
    d = one.locations.shape[2]
    scale = closed_form(family, kernel.terms(), d)
    mixtures = Mixtures(family, d, count, len(scale), kernel.terms() if family == "atoms" else ())
    own = [np.diag(pair_expectation(a, a, kernel.terms())) for a in (one, other)]
    expected = own[0][:, None] + own[1] - 2 * pair_expectation(one, other, kernel.terms())
    found = squared_mmd(mixtures, point_columns(one, scale), point_columns(other, scale))
    np.testing.assert_allclose(found, expected, rtol=0, atol=50 * EPS)
    same = squared_mmd(mixtures, *[point_columns(one, scale)] * 2)
    assert (np.diag(same) == 0).all() and (same >= 0).all()


@pytest.mark.parametrize("family", ["normal", "normal_full", "laplace", "atoms"])
@pytest.mark.parametrize("diagonal", [False, True])
def test_transformed(family, diagonal):
    """Under the metric |(y - y') R|: quadrature of the kernel of turned differences."""
    d = 1 if family == "laplace" else 2
    root = np.diag([1.5, 0.4])[:d, :d] if diagonal else np.array([[1.2, 0.3], [-0.5, 0.8]])[:d, :d]
    components, y = random_components(family, 2, 2, 2), np.random.default_rng(1).normal(size=(2, d))
    kernel, function = kernels_of(family)[0]
    turned_y, turned = transformed(y, components, root)
    assert turned.family == ("normal_full" if family == "normal" and not diagonal else family)
    found = expectation(turned, turned_y, kernel.terms())
    points = Components(family, np.ones((2, 1)), y[:, None, :], None)
    for i, j in itertools.product(range(2), range(2)):
        expected = literal(components, i, points, j, lambda z: function(z @ root))
        if family == "laplace":  # kinks of the kernel stay where they are
            assert found[i, j] == pytest.approx(expected, rel=1e-9)
        else:
            assert found[i, j] == pytest.approx(expected, rel=1e-10)


def test_no_closed_form():
    laplace = Exponential(bandwidth=1.0)
    assert closed_form("normal", laplace.terms(), 1) is None
    assert closed_form("laplace", Gaussian(bandwidth=1.0).terms(), 1) is None
    assert closed_form("normal", Linear().terms(), 1) is None
    assert closed_form("normal", Gaussian(bandwidth=1.0, metric="cityblock").terms(), 2) is None
    assert closed_form("normal", Gaussian(bandwidth=1.0, metric="cityblock").terms(), 1) == ((1.0, 0.5),)
    with pytest.raises(ValueError, match="no closed form"):
        expectation(random_components("normal", 2, 1, 1), np.zeros((2, 1)), laplace.terms())
    with pytest.raises(ValueError, match="family 'laplace', expected 'normal'"):
        pair_expectation(random_components("normal", 2, 1, 1), random_components("laplace", 2, 1, 1), laplace.terms())


# The backend


def problem_of(family: str, metric: str, convert=lambda a: a) -> PairProblem:
    """Features of mixtures of two, under a kernel of distances of the metric "mmd" or "table"."""
    n, kernel = 9, kernels_of(family)[-1][0]
    components = random_components(family, n, 2, 2, seed=3)
    d = components.locations.shape[2]
    rng = np.random.default_rng(4)
    y, scale = rng.normal(size=(n, d)), closed_form(family, kernel.terms(), d)
    features = feature_columns(y, components, scale, rng.uniform(0.5, 1.5, size=n))
    target = Mixtures(family, d, 2, len(scale), kernel.terms() if family == "atoms" else ())
    predicted = table = None
    if metric == "mmd":
        scale = closed_form("normal", Gaussian(bandwidth=1.0).terms(), d)
        of = random_components("normal", n, 1, d, seed=8)
        points, predicted = point_columns(of, scale), Mixtures("normal", d, 1)
    else:
        places = rng.normal(size=(n, 2))
        table = np.linalg.norm(places[:, None] - places, axis=2)
        points = np.arange(n, dtype=float)[:, None]
    terms = (
        Term(0.7, (Factor("exponential", metric, 0.9),)),
        Term(0.3, (Factor("gaussian", metric, 0.2), Factor("matern_3_2", metric, 1.1))),
    )
    return PairProblem(Side(convert(points), convert(features)), None, terms, target, predicted, table)


@pytest.mark.parametrize("metric", ["mmd", "table"])
@pytest.mark.parametrize("family", FAMILIES)
def test_distances_of_mixtures_and_in_tables(family, metric):
    """Entries are sums of about 16 terms of size up to 4 (weights 1.5, coefficients 2.5)."""
    problem = problem_of(family, metric)
    x, features = problem.left.points, problem.left.features
    d = problem.table if metric == "table" else np.sqrt(squared_mmd(problem.predicted, x, x))
    k = 0.7 * np.exp(-0.9 * d) + 0.3 * np.exp(-0.2 * d * d - 1.1 * d) * (1 + 1.1 * d)
    h = k * inner_products(problem.target, features, features)
    np.testing.assert_allclose(sweep_one(ArrayApiBackend(problem), DenseRectangle()), h, rtol=0, atol=100 * EPS)


def _convert(library: str):
    module = pytest.importorskip({"torch": "torch", "jax": "jax", "strict": "array_api_strict"}[library])
    if library == "jax":
        return module.numpy.asarray
    if library == "torch":
        return lambda a: module.from_numpy(np.array(a))
    return lambda a: module.asarray(a, device=module.Device("device1"))


@pytest.fixture
def wide_jax(request):
    if request.node.callspec.params["library"] != "jax":
        yield
        return
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield


@pytest.mark.usefixtures("wide_jax")
@pytest.mark.parametrize("library", ["torch", "jax", "strict"])
@pytest.mark.parametrize("family", FAMILIES)
def test_libraries_agree(family, library):
    convert = _convert(library)
    # JAX compiles every operation for every shape: one problem of one family, and one kernel, compiled as a whole.
    few = library == "jax"
    for metric in ["mmd"] * (family == "atoms") if few else ["mmd", "table"]:
        expected = sweep_one(ArrayApiBackend(problem_of(family, metric)), DenseRectangle())
        found = ArrayApiBackend(problem_of(family, metric, convert=convert))
        np.testing.assert_allclose(arrays.to_host(sweep_one(found, DenseRectangle())), expected, rtol=0, atol=100 * EPS)
        if not few:
            np.testing.assert_allclose(
                arrays.to_host(sweep_one(found, Moments()).diagonal), np.diag(expected), rtol=0, atol=100 * EPS
            )
    components = random_components(family, 4, 2, 2)
    there = Components(family, *(None if a is None else convert(a) for a in _parts(components)))
    for kernel, _ in kernels_of(family)[: 1 if few else None]:
        expectations = functools.partial(_pair_expectation, family, kernel)
        if few:
            expectations = pytest.importorskip("jax").jit(expectations)
        value = arrays.to_host(expectations(*_parts(there)))
        np.testing.assert_allclose(value, pair_expectation(components, components, kernel.terms()), rtol=1e-13)
    y = np.random.default_rng(0).normal(size=(4, components.locations.shape[2]))
    locations = location_columns(convert(y), there, 1.3)
    np.testing.assert_array_equal(arrays.to_host(locations), location_columns(y, components, 1.3))
    if family != "laplace":
        root = np.array([[1.2, 0.3], [-0.5, 0.8]])
        for found, expected in zip(
            _flat(*transformed(convert(y), there, root)), _flat(*transformed(y, components, root)), strict=True
        ):
            np.testing.assert_allclose(arrays.to_host(found), expected, rtol=0, atol=10 * EPS)


def _pair_expectation(family, kernel, *parts):
    components = Components(family, *parts)
    return pair_expectation(components, components, kernel.terms())


def _parts(components: Components) -> tuple:
    return components.weights, components.locations, components.scales


def _flat(y, components: Components) -> list:
    return [y, *(a for a in _parts(components) if a is not None)]


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient(family, equal):
    """Gradients in locations and scales, against central differences; with equal scales (1 / g for Laplace) too."""
    torch = pytest.importorskip("torch")
    kernel = kernels_of(family)[0][0]
    start = random_components(family, 5, 2, 2)
    scales = start.scales
    if equal and scales is not None:
        scales = np.zeros_like(scales) + (0.7 if family != "normal_full" else 0.7 * np.eye(2))
    d = start.locations.shape[2]
    scale = closed_form(family, kernel.terms(), d)
    mixtures = Mixtures(family, d, 2, 1, kernel.terms() if family == "atoms" else ())
    y = np.random.default_rng(2).normal(size=(5, d))
    terms = (Term(1.0, (Factor("exponential", "mmd", 0.9),)),)

    def total(weights, locations, scales, y):
        components = Components(family, weights, locations, scales)
        points, features = point_columns(components, scale), feature_columns(y, components, scale)
        return sweep_one(
            ArrayApiBackend(PairProblem(Side(points, features), None, terms, mixtures, mixtures)), Moments()
        ).total

    tensors = [None if a is None else torch.tensor(a) for a in (start.weights, start.locations, scales, y)]
    for t in tensors[1:3]:
        if t is not None:
            t.requires_grad_(True)
    total(*tensors).backward()
    step = 1e-5
    for at in (1, 2):
        if tensors[at] is None:
            continue
        rng = np.random.default_rng(7)
        for _ in range(3):
            direction = rng.normal(size=tensors[at].shape)
            if family == "normal_full" and at == 2:
                direction = direction + direction.swapaxes(-1, -2)
            values = []
            for sign in (1, -1):
                moved_by = [start.weights, start.locations, scales, y]
                moved_by[at] = moved_by[at] + sign * step * direction
                values.append(float(total(*moved_by)))
            slope = float((tensors[at].grad.numpy() * direction).sum())
            # Central differences: step^2 times third derivatives, and roundings of the total over the step.
            assert slope == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-6, abs=1e-7)
