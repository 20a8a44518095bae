"""Quadratic forms of whole-number weights by products of bytes, on machines that have them, beside the stored H."""

import numpy as np
import pytest
from problems import levels_of_bytes

from kcalib import _native, _packing
from kcalib._backend.random import Weights
from kcalib._input.labels import prepare
from kcalib._pairs.backends import cpu
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.problem import Moments, PairProblem, Side
from kcalib.kernels import Exponential, Gaussian, Linear
from kcalib.parallel import Serial
from kcalib.parallel.argument import opened

LEVELS = levels_of_bytes()
# Of an entry, relative to the largest.
ROUNDING = {"x86-64-v4-amx": 2.0**-30, "x86-64-v4-vnni": 1 / (4096 * 9 * 25 * 7)}
KERNELS = {"exponential": Exponential(bandwidth=0.5), "sum": Linear() + Gaussian(bandwidth=0.3)}
needs_bytes = pytest.mark.skipif(not LEVELS, reason="this machine has no products of bytes")


def samples(law: str, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([n, m])
    if law == "diffuse":
        p = rng.dirichlet(np.ones(m), size=n)
    elif law == "tied":
        p = rng.dirichlet(np.full(m, 0.5), size=3)[rng.integers(3, size=n)]
    else:
        errors = 10.0 ** rng.uniform(-8, -4, size=n)
        p = np.full((n, m), 1.0) * (9 * errors / (m - 1))[:, None]
        p[np.arange(n), rng.integers(m, size=n)] = 1 - 9 * errors
    y = np.argmax(p, axis=1)
    changed = rng.random(n) < (0.01 if law == "saturated" else 0.5)
    y[changed] = rng.integers(m, size=int(changed.sum()))
    return y, p


def problem_of(law: str, n: int, m: int, kernel: str = "exponential", dtype: str = "float64") -> PairProblem:
    y, p = samples(law, n, m)
    return _packing.pack(prepare(y, p, dtype=dtype), KERNELS[kernel], None).problem


def of_bytes(panels: np.ndarray, n: int) -> np.ndarray:
    """The weights of panels, shape (n, 16 panels): four rows in the bytes of a word, 16 words side by side."""
    return panels.reshape(len(panels), -1, 16, 4).transpose(1, 3, 0, 2).reshape(-1, 16 * len(panels))[:n]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["multinomial", "rademacher"])
@pytest.mark.parametrize("law", ["diffuse", "tied", "saturated"])
@pytest.mark.parametrize(("n", "m", "kernel"), [(1, 3, "sum"), (4, 3, "sum"), (97, 3, "sum"), (300, 10, "exponential")])
def test_forms(level, kind, law, n, m, kernel):
    """Each entry is off by no more than it is rounded, and sums add nothing to that but the last roundings."""
    problem, weights = problem_of(law, n, m, kernel), Weights(kind, n, 35, 7)
    backend = CpuBackend(problem, level=level)
    w = weights.values().astype(np.longdouble)
    h = backend.tile(slice(None), slice(None)).astype(np.longdouble)
    error = np.abs(backend.quadratic_forms(weights, dtype="float32") - np.sum(w * (h @ w), axis=0))
    sizes = np.sum(np.abs(w), axis=0) ** 2
    assert (error <= (ROUNDING[level] * sizes + 1e-15 * n) * np.max(np.abs(h))).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["multinomial", "rademacher"])
@pytest.mark.parametrize("law", ["diffuse", "tied", "saturated"])
def test_roundings_do_not_add_up(level, kind, law):
    """Also where thousands of entries are equal forms are off by less than 1e-5 of their standard deviation."""
    n = 5000
    problem, weights = problem_of(law, n, 4), Weights(kind, n, 32, 7)
    backend = CpuBackend(problem, level=level)
    deviation = np.sqrt(2 * backend.moments(second=True).sum_of_squares)
    error = backend.quadratic_forms(weights, dtype="float32") - backend.quadratic_forms(weights)
    assert np.max(np.abs(error)) <= 1e-5 * deviation


@needs_bytes
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_same_bits_whoever_adds_up(monkeypatch, dtype):
    """Any number of threads, of replicates, of weights in memory; also tile by tile."""
    problem, weights = problem_of("diffuse", 2300, 3, dtype=dtype), Weights("multinomial", 2300, 70, 1)
    found = CpuBackend(problem, threads=1).quadratic_forms(weights, dtype="float32")
    exact = CpuBackend(problem).quadratic_forms(weights)
    assert np.max(np.abs(found - exact)) <= (2e-7 + 40 * ROUNDING[LEVELS[0]]) * np.std(exact)
    np.testing.assert_array_equal(CpuBackend(problem, threads=3).quadratic_forms(weights, dtype="float32"), found)
    fewer = Weights("multinomial", 2300, 20, 1)
    np.testing.assert_array_equal(CpuBackend(problem).quadratic_forms(fewer, dtype="float32"), found[:20])
    with opened(Serial(tile_size=576, threads=1)) as run:
        tiles = backend_for(problem, threads=1, parallel=run)
        np.testing.assert_array_equal(tiles.quadratic_forms(weights, dtype="float32"), found)
    monkeypatch.setattr(cpu, "WEIGHTS_BYTES", 1)
    np.testing.assert_array_equal(CpuBackend(problem).quadratic_forms(weights, dtype="float32"), found)


def test_forms_and_products(monkeypatch):
    """On machines with bytes and without, some replicates at a time."""
    problem, counts = problem_of("diffuse", 200, 3), Weights("multinomial", 200, 70, 1)
    vector = np.random.default_rng(0).normal(size=200)
    monkeypatch.setattr(cpu, "WEIGHTS_BYTES", 2**14)
    for level in (None, "baseline"):
        backend = CpuBackend(problem, level=level)
        forms, products = backend.forms_and_products(counts, vector)
        np.testing.assert_array_equal(forms, backend.quadratic_forms(counts, dtype="float32"))
        np.testing.assert_array_equal(products, counts.products(vector))


@pytest.mark.parametrize("law", ["diffuse", "tied", "saturated"])
@pytest.mark.parametrize(
    ("n", "m", "kernel"), [(1, 3, "sum"), (130, 10, "exponential"), (300, 10, "sum"), (2300, 17, "exponential")]
)
def test_moments_and_forms_have_the_bits_that_they_have_alone(monkeypatch, law, n, m, kernel):
    """On machines with bytes and without, in any order of samples, all replicates at a time or some, by any threads."""
    problem, counts = problem_of(law, n, m, kernel), Weights("multinomial", n, 70, 1)

    def vector_of(moments: Moments) -> np.ndarray:
        return moments.row_sums - moments.diagonal

    for at_once in (cpu.WEIGHTS_BYTES, 2**14):
        monkeypatch.setattr(cpu, "WEIGHTS_BYTES", at_once)
        for level in (None, "baseline") if n < 1000 else (None,):
            backend = CpuBackend(problem, level=level, threads=1)
            alone, expected = backend.moments_and_expectation()
            both = CpuBackend(problem, level=level, threads=3).moments_and_forms(counts, vector_of)
            moments, expectation, forms, products = both
            assert expectation == expected
            for name in ("total", "row_sums", "column_sums", "diagonal", "sum_of_squares", "trace"):
                np.testing.assert_array_equal(getattr(moments, name), getattr(alone, name))
            np.testing.assert_array_equal(forms, backend.quadratic_forms(counts, dtype="float32"))
            np.testing.assert_array_equal(products, counts.products(vector_of(alone)))


@needs_bytes
@pytest.mark.parametrize("kind", ["multinomial", "rademacher"])
@pytest.mark.parametrize(("n", "count", "threads"), [(1, 1, 1), (130, 16, 1), (1000, 37, 3)])
def test_weights_in_bytes_are_the_weights(kind, n, count, threads):
    weights = Weights(kind, n, count + 5, 3)
    panels = weights.panels_of_bytes(5, count + 5, threads)
    np.testing.assert_array_equal(of_bytes(panels, n)[:, :count], weights.values(5, count + 5))
    assert not of_bytes(panels, n)[:, count:].any()
    assert not of_bytes(panels, 4 * panels.shape[1])[n:].any()


@needs_bytes
def test_panels_of_few_samples_are_within_the_memory_for_weights(monkeypatch):
    """Of which most rows are zeros."""
    weights, sizes, panels_of_bytes = Weights("rademacher", 5, 300, 7), [], Weights.panels_of_bytes

    def measured(*arguments):
        panels = panels_of_bytes(*arguments)
        sizes.append(panels.nbytes)
        return panels

    backend = CpuBackend(problem_of("diffuse", 5, 3))
    expected = backend.quadratic_forms(weights, dtype="float32")
    monkeypatch.setattr(Weights, "panels_of_bytes", measured)
    monkeypatch.setattr(cpu, "WEIGHTS_BYTES", 2**14)
    np.testing.assert_array_equal(backend.quadratic_forms(weights, dtype="float32"), expected)
    assert len(sizes) > 1
    assert max(sizes) <= 2**14


@pytest.mark.parametrize("level", LEVELS)
def test_the_largest_sums_do_not_overflow(level):
    """192 entries of nearly 2^30 units, all bits set, with weights of 127 and -128."""
    n, value = 400, 2.0 - 2.0**-29
    points = np.full((n, 2), np.sqrt(value / 2))
    terms = _packing.pack_points(points, Linear(), "float64", threads=1).problem.kernel
    backend = CpuBackend(PairProblem(Side(points, np.ones((n, 1))), None, terms), level=level)
    h = backend.tile(slice(None), slice(None))
    panels = Weights("multinomial", n, 16, 0).panels_of_bytes(0, 16)
    panels[:] = 127
    panels[0, :, 4:8] = -128  # of replicate 1
    side = backend._prepared(backend.problem.left, sort=False)
    found = backend._run(_native.quadratic_forms, *side.arrays, panels=list(panels), first_panel=panels[0])[0]
    np.testing.assert_allclose(
        found, np.where(np.arange(16) == 1, 128.0**2, 127.0**2) * np.sum(h), rtol=ROUNDING[level]
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("large", [14, 15, -1, -2, -31, -32, 127, -127])
@pytest.mark.parametrize("panel", [0, 1, 3])
def test_weights_of_any_size_beside_small_ones(level, large, panel):
    """In one panel of four; on columns alone, or on rows alone, of some blocks."""
    n = 300
    backend = CpuBackend(problem_of("diffuse", n, 3), level=level)
    h = backend.tile(slice(None), slice(None))
    for changed in (slice(None), slice(0, 1), slice(n - 1, n)):
        panels = Weights("multinomial", n, 64, 0).panels_of_bytes(0, 64)
        four = panels.reshape(4, -1, 16, 4)
        four[panel, : n // 4] = np.where(
            np.isin(np.arange(n), np.arange(n)[changed]).reshape(-1, 1, 4), large, four[panel, : n // 4]
        )
        w = of_bytes(panels, n).astype(np.float64)
        side = backend._prepared(backend.problem.left, sort=False)
        found = backend._run(_native.quadratic_forms, *side.arrays, panels=list(panels), first_panel=panels[0])
        sizes = np.sum(np.abs(w), axis=0) ** 2
        error = np.abs(found.reshape(-1) - np.sum(w * (h @ w), axis=0))
        assert (error <= (ROUNDING[level] + 1e-14) * sizes * np.max(np.abs(h))).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("n", "law"), [(300, "diffuse"), (2101, "tied")])
@pytest.mark.parametrize("large", [15, -1, -2])
def test_forms_have_the_same_bits_beside_large_weights(level, n, law, large):
    """One weight of another replicate may change how sums are made, not what they are."""
    backend = CpuBackend(problem_of(law, n, 3), level=level)
    side = backend._prepared(backend.problem.left, sort=False)
    panels = Weights("multinomial", n, 100, 2).panels_of_bytes(0, 100)
    before, after = (
        backend._run(_native.quadratic_forms, *side.arrays, panels=list(some), first_panel=some[0]).reshape(-1)
        for some in (panels, _with_weights(panels, rows=[0, n // 2], replicates=[5, 90], weight=large))
    )
    others = np.isin(np.arange(len(before)), [5, 90], invert=True)
    np.testing.assert_array_equal(after[others], before[others])
    assert (after[~others] != before[~others]).all()


def _with_weights(panels: np.ndarray, rows: list[int], replicates: list[int], weight: int) -> np.ndarray:
    changed = panels.copy()
    for i, r in zip(rows, replicates, strict=True):
        changed.reshape(len(panels), -1, 16, 4)[r // 16, i // 4, r % 16, i % 4] = weight
    return changed


@pytest.mark.parametrize("level", LEVELS)
def test_entries_that_are_zero_or_no_numbers(level):
    rng = np.random.default_rng(0)
    p, weights = rng.dirichlet(np.ones(3), size=40), Weights("multinomial", 40, 4, 1)
    terms = _packing.pack_points(p, Linear(), "float64", threads=1).problem.kernel
    for size, value in ((1e-160, 0.0), (1e160, np.nan)):
        backend = CpuBackend(PairProblem(Side(size * p, np.ones((40, 1))), None, terms), level=level)
        found = backend.quadratic_forms(weights, dtype="float32")
        np.testing.assert_array_equal(found, np.full(4, value))


@pytest.mark.parametrize("level", LEVELS)
def test_other_weights_and_machines_have_float32(level):
    problem, gaussian = problem_of("diffuse", 200, 3), Weights("gaussian", 200, 4, 1)
    weights = Weights("rademacher", 200, 4, 1)
    assert _native.weights_at_once("int8", _native.Sweep(1, "x86-64-v4")) == 0
    plain, best = CpuBackend(problem, level="x86-64-v4"), CpuBackend(problem, level=level)
    for backend, some in ((plain, gaussian), (best, gaussian), (plain, weights), (best, weights.values())):
        np.testing.assert_array_equal(
            backend.quadratic_forms(some, dtype="float32"),
            plain.quadratic_forms(some.values() if isinstance(some, Weights) else some, dtype="float32"),
        )
    np.testing.assert_array_equal(best.quadratic_forms(weights), plain.quadratic_forms(weights))
