"""The compiled scalar functions: units in the last place against mpmath, on every instruction set."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from grid import some

from kcalib import _native
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.problem import Factor, PairProblem, Side, Term
from kcalib._pairs.reductions import DenseRectangle, sweep_one

mpmath = pytest.importorskip("mpmath")

FUNCTIONS = (
    "exp", "exp_minus", "one_minus_exp", "square_root", "reciprocal_root", "reciprocal", "log", "log1p", "power",
    "cos_pi",
)  # fmt: skip
EXPONENTS = (2.0, 1.999, 1.5, 1.0, 0.7, 0.01)  # of power; rounded to float32 where that is the dtype
DTYPES = (np.float64, np.float32)


def evaluate(function: str, x: np.ndarray, a: float = 1.0) -> np.ndarray:
    out = np.empty_like(x)
    _native.evaluate(function, x, out, _native.RunOptions(1), a)
    return out


def range_of_exp(dtype: type) -> tuple[float, float]:
    return (-708.0, 709.0) if dtype == np.float64 else (-87.0, 88.0)


@functools.cache
def arguments(function: str, dtype: type) -> np.ndarray:
    """Every second of the candidates, of powers every sixth, since there are six exponents: mpmath is slow."""
    return np.ascontiguousarray(candidates(function, dtype)[:: 6 if function == "power" else 2])


def candidates(function: str, dtype: type) -> np.ndarray:
    """Numbers all over the function's range, and more of them where it is hardest."""
    rng = np.random.default_rng(0)
    low, high = range_of_exp(dtype)
    if "exp" in function:
        # Around odd multiples of ln(2)/2, where the reduced argument is largest.
        edges = (2 * np.arange(100) + 1) * math.log(2) / 2
        x = np.concatenate(
            [rng.uniform(0, high, 1000), rng.uniform(0, 1, 500), 10.0 ** rng.uniform(-18, 0, 300), [0.0], edges]
        )
        x = np.concatenate([x, np.nextafter(edges, 0), np.nextafter(edges, 1e3)])
        if function == "exp":
            x = np.concatenate([x, -x])
        else:
            high = -low
        x = x.astype(dtype)
        return x[(x >= low) & (x <= high)]
    if function == "cos_pi":
        halves = np.concatenate([np.arange(200), rng.integers(0, 2**18, 100)]) / 2  # zeros and extremes
        near = (halves[:, None] + np.array([-1, 1]) * 10.0 ** rng.uniform(-16, -0.7, (len(halves), 2))).ravel()
        x = np.concatenate(
            [halves, near, rng.uniform(0, 3, 700), 2.0 ** rng.uniform(-60, 60, 300), 0.25 + np.arange(9)]
        )
        return np.abs(x).astype(dtype)
    x = np.exp(rng.uniform(low, high, 1000))
    if function.startswith("reciprocal"):
        return (
            x[(x > 2.0**-120) & (x < 2.0**120)].astype(dtype)
            if dtype == np.float32
            else x[(x > 2.0**-1000) & (x < 2.0**1000)]
        )
    if function == "square_root":  # with AVX-512 smaller ones have the root 0
        return x[x > (1e-300 if dtype == np.float64 else 1e-36)].astype(dtype)
    near_1 = 1 + rng.normal(size=700) * 10.0 ** rng.uniform(math.log10(np.finfo(dtype).eps), -0.5, 700)
    near_edges = np.array([[0.5], [1.0], [2.0], [2**-0.5], [2**0.5]]) * (1 + 1e-3 * rng.normal(size=(5, 100)))
    x = np.concatenate([x, near_1, near_edges.ravel(), rng.uniform(0.3, 5, 500)])
    if function == "log1p":
        x = np.concatenate([x, 10.0 ** rng.uniform(-18, 1, 700), [0.0]])
    x = x.astype(dtype)
    return x[(x >= np.finfo(dtype).tiny) | (x == 0)]


@functools.cache
def exact(function: str, dtype: type, a: float) -> list:
    largest = 2.0**51 if dtype == np.float64 else 2.0**22
    formula = {
        "exp": mpmath.exp,
        "exp_minus": lambda x: mpmath.exp(-x),
        "one_minus_exp": lambda x: -mpmath.expm1(-x),
        "square_root": mpmath.sqrt,
        "reciprocal_root": lambda x: 1 / mpmath.sqrt(x),
        "reciprocal": lambda x: 1 / x,
        "log": mpmath.log,
        "log1p": lambda x: mpmath.log1p(x),
        "power": lambda x: mpmath.power(x, a),
        "cos_pi": lambda x: mpmath.cospi(x) if x < largest else mpmath.mpf(1),
    }[function]
    with mpmath.workdps(40):
        return [formula(mpmath.mpf(float(x))) for x in arguments(function, dtype)]


def ulps(found: np.ndarray, exact: list, dtype: type) -> np.ndarray:
    """Errors in units in the last place of the exact value."""
    epsilon = float(np.finfo(dtype).eps)
    errors = []
    for a, b in zip(found, exact, strict=True):
        ulp = mpmath.ldexp(epsilon, int(mpmath.frexp(b)[1]) - 1)
        errors.append(float(abs(mpmath.mpf(float(a)) - b) / ulp) if a != b else 0.0)
    return np.array(errors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_scalar_functions_are_right_to_1_5_ulp(function, dtype):
    for a in EXPONENTS if function == "power" else (1.0,):
        a = float(dtype(a))
        x, reference = arguments(function, dtype), exact(function, dtype, a)
        errors = ulps(evaluate(function, x, a), reference, dtype)
        if function == "power":
            low, high = range_of_exp(dtype)
            errors = errors[[low < float(mpmath.log(y)) < high for y in reference]]
        assert len(errors) > (150 if function == "power" else 450)
        # one_minus_exp: a difference of 1/2 and at most 0.21, each rounded.
        assert errors.max() <= {"square_root": 1.0, "one_minus_exp": 2.5}.get(function, 1.5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sine_and_cosine(dtype):
    """To an ulp of 1, in float64 of themselves near their zeros; of large arguments to what rounding of these makes."""
    rng = np.random.default_rng(0)
    double = dtype == np.float64
    quarters = np.concatenate([np.arange(200), rng.integers(0, 2**20 if double else 2**9, 200)]) * (math.pi / 2)
    x = np.concatenate([rng.uniform(0, 10, 1000), quarters, 10.0 ** rng.uniform(-18, 14 if double else 5, 1000)])
    x = (x * rng.choice([-1, 1], len(x))).astype(dtype)
    epsilon = float(np.finfo(dtype).eps)
    for function, formula in (("sin", mpmath.sin), ("cos", mpmath.cos)):
        found = evaluate(function, x)
        with mpmath.workdps(60):
            exact = [formula(mpmath.mpf(float(v))) for v in x]
            errors = np.array([float(abs(mpmath.mpf(float(a)) - b)) for a, b in zip(found, exact, strict=True)])
        allowed = epsilon * (
            0.8 + np.abs(x.astype(np.float64)) * (x.astype(np.float64) ** 2 > (1e12 if double else 1e5))
        )
        assert (errors <= allowed).all()
        if double:
            small = np.abs(x) < 1e3
            assert ulps(found[small], [b for b, keep in zip(exact, small, strict=True) if keep], dtype).max() <= 3
    far = np.array([1e300 if double else 1e30, -(2.0**60)], dtype)
    for function in ("sin", "cos"):
        assert (np.abs(evaluate(function, far)) <= 1).all()
        nan = evaluate(function, np.array([np.nan, 1], dtype))
        np.testing.assert_array_equal(np.isnan(nan), [True, False])
        assert evaluate(function, np.zeros(1, dtype))[0] == (function == "cos")


@pytest.mark.parametrize("dtype", DTYPES)
def test_square_root_of_squares(dtype):
    # x^2 is exact for x of half the digits: its root is x.
    bits, lowest = (26, -160) if dtype == np.float64 else (11, -18)
    rng = np.random.default_rng(0)
    mantissa = rng.integers(2 ** (bits - 1), 2**bits, 20_000).astype(np.float64)
    x = np.ldexp(mantissa, rng.integers(lowest, 20, len(mantissa)) - bits).astype(dtype)
    found = evaluate("square_root", x * x)
    assert np.max(np.abs(found.astype(np.float64) - x) / np.spacing(x).astype(np.float64)) <= 1.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_values(dtype):
    zero, one = np.zeros(1, dtype), np.ones(1, dtype)
    for function, x, y in (
        ("exp", zero, 1), ("exp_minus", zero, 1), ("square_root", zero, 0), ("square_root", one, 1),
        ("log", one, 0), ("log1p", zero, 0), ("cos_pi", zero, 1), ("cos_pi", one, -1), ("cos_pi", one / 2, 0),
    ):  # fmt: skip
        assert evaluate(function, x)[0] == y
    for a in EXPONENTS:
        assert evaluate("power", zero, a)[0] == 0 and evaluate("power", one, a)[0] == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_nan_stays_nan(function, dtype):
    x = np.ones(37, dtype)
    x[[0, 5, 36]] = np.nan, -np.nan, np.nan
    np.testing.assert_array_equal(np.isnan(evaluate(function, x, 1.5)), np.isnan(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_and_large_results_are_normal_numbers(dtype):
    """Beyond the range results are clamped: neither denormals, which are slow, nor infinities."""
    info = np.finfo(dtype)
    far = np.array([-1e30, -800, -100, 100, 800, 1e30], dtype)
    wide = np.array([info.tiny, 1e-30, 1e30, info.max], dtype)
    for found in (
        evaluate("exp", far), evaluate("exp_minus", np.abs(far)), evaluate("power", wide, 2.0),
        evaluate("power", wide, 1.5), evaluate("log1p", wide),
    ):  # fmt: skip
        assert np.isfinite(found).all() and (found >= info.tiny).all()
    assert evaluate("exp_minus", far[-1:])[0] < 1e-37
    assert evaluate("power", wide, 2.0)[0] < 1e-37 and evaluate("power", wide, 2.0)[-1] > 1e37


def profile(name: str, shape: float, x: np.ndarray) -> np.ndarray:
    """profile(x) for x >= 0: the pairs of 0 with x on a line, in x's dtype."""
    points = np.concatenate(([0], x)).astype(x.dtype)[:, None]
    term = Term(1.0, (Factor(name, "cityblock", 1.0, shape),))
    backend = CpuBackend(PairProblem(Side(points, np.ones_like(points)), None, (term,)))
    return sweep_one(backend, DenseRectangle(slice(0, 1), slice(1, None)))[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gamma_exponential", "rational_quadratic"])
@pytest.mark.parametrize("shape", some([0.25, 0.5, 1.5, 2.0], 0.25, 1.5))
def test_composed_profiles_lose_what_their_formula_loses(name, shape, dtype):
    """exp(-t) for t = d^a, or t = a log(1 + d^2), exact shape a: a relative error r of t is one of r t in exp(-t),
    and an ulp is at least half of epsilon times the value."""
    x = (10.0 ** np.random.default_rng(0).uniform(-4, 2, 1000)).astype(dtype)
    with mpmath.workdps(40):
        d = [mpmath.mpf(float(v)) for v in x]
        t = [v**shape if name == "gamma_exponential" else shape * mpmath.log1p(v * v) for v in d]
        inside = np.array(t, dtype=float) < -range_of_exp(dtype)[0]
        errors = ulps(profile(name, shape, x), [mpmath.exp(-v) for v in t], dtype)[inside]
        t = np.array(t, dtype=float)[inside]
    # 1.5 ulp of exp; of t: 1.5 epsilon of power or log1p, for the latter 0.5 of the square and of the product.
    assert (errors <= 1.5 + 2 * (1.5 if name == "gamma_exponential" else 2.5) * t).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["exponential", "gaussian"])
def test_decays_of_euclidean_distances(name, dtype):
    """exp(-s d) to 1.5 ulp and what roundings of s, of its product with 1 / ln 2 and, by a root, of d make of s d."""
    rng = np.random.default_rng(0)
    x = np.concatenate([[0.0], rng.uniform(0, 10, 400), 10.0 ** rng.uniform(-12, 0, 100)]).astype(dtype)
    points = np.concatenate(([0], x)).astype(dtype)[:, None]
    for scale in (1e-12, 0.3, 7.0, 50.0, 2.0**29, 2.0**80):
        factor = Factor(name, "euclidean", scale)
        backend = CpuBackend(PairProblem(Side(points, np.ones_like(points)), None, (Term(1.0, (factor,)),)))
        found = sweep_one(backend, DenseRectangle(slice(0, 1), slice(1, None)))[0]
        assert (
            found[0] == 1 and (found >= np.exp(1.01 * range_of_exp(dtype)[0])).all()
        )  # of equal points; never denormal
        with mpmath.workdps(40):
            t = [scale * mpmath.mpf(float(v)) ** (1 if name == "exponential" else 2) for v in x]
            inside = np.array(t, dtype=float) < -range_of_exp(dtype)[0]
            exact = [mpmath.exp(-v) for v, keep in zip(t, inside, strict=True) if keep]
            errors = ulps(found[inside].astype(dtype), exact, dtype)
            t = np.array(t, dtype=float)[inside]
        assert (errors <= 1.5 + 2 * 3 * t).all()


@pytest.mark.parametrize("name", ["exponential", "gaussian"])
@pytest.mark.parametrize("scale", [2.0, 310.0, 320.0, 1e4])
def test_decays_between_predictions_of_sorted_labels(scale, name):
    """Tiles of other labels know bounds of their distances, up to scales that could leave the range of exp."""
    rng, n, m = np.random.default_rng(1), 120, 40
    labels = np.repeat([3, 17], n // 2)
    p = rng.dirichlet(np.full(m, 0.02), n)
    e = (labels[:, None] == np.arange(m)) - p
    terms = (Term(1.0, (Factor(name, "euclidean", scale),)),)
    found = sweep_one(CpuBackend(PairProblem(Side(p, e, labels), None, terms)), DenseRectangle())
    d = np.sqrt(((p[:, None] - p[None]) ** 2).sum(axis=2))
    x = scale * (d if name == "exponential" else d * d)
    off = ~np.eye(n, dtype=bool)
    norms = np.linalg.norm(e, axis=1)
    error = np.abs(found - np.exp(-np.minimum(x, 708)) * (e @ e.T)) / (
        np.exp(-np.minimum(x, 708)) * norms[:, None] * norms
    )
    assert error[off].max() < 1e-12 * max(1, scale / 100)
