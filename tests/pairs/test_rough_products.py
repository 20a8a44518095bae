"""Products of bytes, on machines that have them, beside the stored H without its diagonal; float32 elsewhere."""

import subprocess
import sys

import numpy as np
import pytest

from kcalib import _native, _packing
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.problem import PairProblem, Side
from kcalib.kernels import Exponential, Gaussian, Linear

KERNELS = {"exponential": Exponential(bandwidth=0.5), "sum": Linear() + Gaussian(bandwidth=0.3)}
FEWEST = 8  # vectors
LEVELS = "x86-64-v4-vnni", "x86-64-v4-amx"
bytes_only = pytest.mark.skipif(_native.Sweep(1).level not in LEVELS, reason="this machine has no products of bytes")


def backend_of(n, m, kernel="exponential", dtype="float32", scale=1.0, distinct=None, **options):
    rng = np.random.default_rng([n, m])
    p = rng.dirichlet(np.ones(m), size=n)
    if distinct is not None:
        p = p[rng.integers(min(n, distinct), size=n)]
    terms = _packing.pack_points(p, KERNELS[kernel], dtype, threads=1).problem.kernel
    marks = np.full((n, 1), np.sqrt(scale), dtype)
    return CpuBackend(PairProblem(Side(p.astype(dtype), marks), None, terms), **options)


def off_diagonal(backend):
    h = backend.tile(slice(None), slice(None)).astype(np.float64)
    np.fill_diagonal(h, 0)
    return h


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("distinct", [None, 1, 3])
@pytest.mark.parametrize(
    ("n", "m", "kernel", "count"),
    [(2, 3, "sum", 9), (97, 3, "sum", 40), (300, 10, "exponential", 160), (2100, 10, "exponential", 49)],
)
def test_products(dtype, distinct, n, m, kernel, count):
    """Errors of a sum of products are those of independent roundings of its factors, for vectors of any scale."""
    backend, rng = backend_of(n, m, kernel, dtype, distinct=distinct), np.random.default_rng(1)
    scales = 10.0 ** rng.uniform(-50, 50, size=count)
    v = rng.standard_normal((n, count))
    h = off_diagonal(backend)
    error = backend.rough_products(v * scales) / scales - h @ v
    # Of uniform roundings the largest variance of one is a quarter of its unit's square.
    entry, number = np.diag(backend.tile(slice(None), slice(None))).max() / 254 / 2, np.abs(v).max() / 126 / 2
    deviation = np.sqrt(
        entry**2 * (v**2).sum(axis=0) + number**2 * (h**2).sum(axis=1, keepdims=True) + n * (entry * number) ** 2
    )
    assert (np.abs(error) <= 6 * deviation).all()
    assert np.sqrt(np.mean((error / deviation) ** 2)) <= 1.1


@pytest.mark.parametrize("distinct", [1, 2])
def test_of_equal_predictions_errors_do_not_add_up(distinct):
    """Nor of vectors with equal numbers: rounded to the nearest, these would be off by up to a 250th of the largest."""
    backend, number = backend_of(2000, 5, distinct=distinct), (20.5 + np.arange(FEWEST)) / 126
    v = np.where(np.arange(2000)[:, None] % 2 == 0, 1.0, number)
    h = off_diagonal(backend)
    found, expected = np.sum(v * backend.rough_products(v), axis=0), np.sum(v * (h @ v), axis=0)
    assert np.abs(found / expected - 1).max() <= 4e-4


def test_the_same_bits_for_any_number_of_threads():
    v = np.random.default_rng(3).standard_normal((2500, FEWEST))
    one, three = (backend_of(2500, 10, threads=threads).rough_products(v) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


@bytes_only
@pytest.mark.parametrize("why", ["few vectors", "not finite", "tiny", "negative", "large", "narrow"])
def test_what_bytes_have_no_room_for_is_left_to_float32(why):
    """The bits of AVX-512 without them, where a machine with tile registers takes those only for `matmul`."""
    v = np.random.default_rng(4).standard_normal((300, FEWEST))
    options = {"scale": 1e-30} if why == "tiny" else {"scale": -1.0} if why == "negative" else {}
    if why == "few vectors":
        v = v[:, 1:]
    if why == "not finite":
        v[7, 3] = np.inf
    # Squares of 300 normal numbers sum to less than 200 times that of the largest, mostly of more than 2 deviations.
    limits = {"largest": 0.9} if why == "large" else {"spread": 200.0} if why == "narrow" else {}

    def products(level):
        backend = backend_of(300, 5, scale=abs(options.get("scale", 1.0)), level=level)
        if why == "negative":
            signs = np.where(np.arange(300) % 2 == 0, 1, -1).astype(np.float32)[:, None]
            left = Side(backend.problem.left.points, signs)
            backend = CpuBackend(PairProblem(left, None, backend.problem.kernel), level=level)
        return backend.rough_products(v, **limits)

    np.testing.assert_array_equal(products(None), products("x86-64-v4"))


@bytes_only
def test_bytes_are_what_is_multiplied():
    v = np.random.default_rng(4).standard_normal((300, FEWEST))
    found, other = (backend_of(300, 5, level=level).rough_products(v) for level in (None, "x86-64-v4"))
    assert (found != other).any()


def of_residuals(n, m, dtype="float32", **options):
    rng = np.random.default_rng(n)
    p = rng.dirichlet(np.ones(m), size=n)
    y = rng.integers(m, size=n)
    marks = (np.eye(m)[y] - p).astype(dtype)
    terms = _packing.pack_points(p, KERNELS["exponential"], dtype, threads=1).problem.kernel
    return CpuBackend(PairProblem(Side(p.astype(dtype), marks, y), None, terms), **options)


def check_signed_products(backend, products, v):
    """Of entries in units of a 126th of the largest."""
    h, n = off_diagonal(backend), len(v)
    assert h.min() < 0
    entry, number = np.sum(backend.problem.left.marks**2, axis=1).max() / 126 / 2, np.abs(v).max() / 126 / 2
    deviation = np.sqrt(
        entry**2 * (v**2).sum(axis=0) + number**2 * (h**2).sum(axis=1, keepdims=True) + n * (entry * number) ** 2
    )
    error = products - h @ v
    assert (np.abs(error) <= 6 * deviation).all()
    assert np.sqrt(np.mean((error / deviation) ** 2)) <= 1.1


def test_entries_of_both_signs():
    """Those of residuals, sorted by label or not."""
    for n, m in ((500, 3), (700, 12)):
        backend, v = of_residuals(n, m), np.random.default_rng(n).standard_normal((n, 16))
        check_signed_products(backend, backend.rough_products(v, with_signs=True), v)


@pytest.mark.parametrize(("n", "m"), [(2, 3), (97, 10), (500, 3), (700, 12), (2300, 10)])
def test_entries_by_the_sweep_of_the_moments(n, m):
    """Moments have the bits that they have alone; kept entries are those of H, by any threads, sorted or not."""
    found, v = [], np.random.default_rng(n).standard_normal((n, 16))
    for threads in (1, 3):
        backend, kept = of_residuals(n, m, "float64", threads=threads), _native.RoughEntries()
        alone, expected = backend.moments_and_expectation()
        moments, expectation = backend.moments_and_rough_entries(kept)
        assert expectation == expected
        for name in ("total", "row_sums", "column_sums", "diagonal", "sum_of_squares", "trace"):
            np.testing.assert_array_equal(getattr(moments, name), getattr(alone, name))
        assert kept.are_there == (_native.Sweep(1).level in LEVELS)
        found.append(backend.rough_products(v, with_signs=True, kept=kept))
    np.testing.assert_array_equal(*found)
    if n > 2:
        check_signed_products(backend, found[0], v)


@bytes_only
@pytest.mark.parametrize("why", ["level", "no residuals", "many samples"])
def test_sweeps_of_moments_without_entries(why):
    """Where the machine has no products of bytes, these have no room for entries, or these are too many."""
    backend = of_residuals(12_000 if why == "many samples" else 300, 2, "float64")
    if why == "no residuals":
        side = backend.problem.left
        certain = Side(np.eye(2)[side.labels], np.zeros_like(side.marks), side.labels)
        backend = CpuBackend(PairProblem(certain, None, backend.problem.kernel))
    elif why == "level":
        backend = CpuBackend(backend.problem, level="x86-64-v4")
    kept = _native.RoughEntries()
    moments, expectation = backend.moments_and_rough_entries(kept)
    assert not kept.are_there
    alone, expected = backend.moments_and_expectation()
    assert (moments.total, expectation) == (alone.total, expected)
    with pytest.raises(ValueError, match="entries of 0 samples"):
        kept.products(np.ones((len(moments.row_sums), FEWEST)), 0.0, _native.Sweep(1))


@bytes_only
def test_vectors_that_kept_entries_are_not_for():
    backend, kept = of_residuals(300, 3, "float64"), _native.RoughEntries()
    backend.moments_and_rough_entries(kept)
    with pytest.raises(ValueError, match="299 rows times entries of 300 samples"):
        backend.rough_products(np.ones((299, FEWEST)), kept=kept)
    v = np.random.default_rng(4).standard_normal((300, FEWEST))
    for narrow, spread in ((v[:, 1:], 0.0), (v, 200.0)):  # too few vectors, and such as have no room
        found = backend.rough_products(narrow, kept=kept, spread=spread)
        np.testing.assert_array_equal(found, backend.products_off_diagonal(narrow))


def test_kept_entries_are_those_of_the_first_product():
    backend, rng, kept = backend_of(900, 5), np.random.default_rng(2), _native.RoughEntries()
    for count in (FEWEST, 40, 17):
        v = rng.standard_normal((900, count))
        np.testing.assert_array_equal(backend.rough_products(v, kept=kept), backend.rough_products(v))


def test_of_many_samples_entries_are_made_in_parts():
    """Whose bytes are not all kept."""
    n = 12_000
    backend, v = backend_of(n, 2), np.random.default_rng(5).standard_normal((n, FEWEST))
    expected = backend.matmul(v, dtype="float32") - v
    # With entries of up to 1, as above.
    deviation = np.sqrt(n * ((0.5 / 254) ** 2 + (np.abs(v).max() / 126 / 2) ** 2))
    kept = _native.RoughEntries()
    for _ in range(2):
        error = backend.rough_products(v, kept=kept) - expected
        assert np.sqrt(np.mean(error**2)) <= deviation
    one, three = (backend_of(n, 2, threads=threads).rough_products(v) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


@pytest.mark.grid
def test_sums_of_largest_numbers_are_in_range():
    """More than 2^31 units: of equal predictions and vectors of ones, whose numbers are 254 and 126."""
    n = 70_000
    backend, v = backend_of(n, 2, distinct=1), np.ones((n, FEWEST))
    v[:, ::2] = -1
    assert 254 * 126 * n > 2**31
    np.testing.assert_allclose(backend.rough_products(v), (n - 1) * v, rtol=1e-6)


@bytes_only
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_memory_that_is_not_there_is_an_error():
    """In a process of its own, which an exception that nobody catches would end."""
    script = """
import resource
import numpy as np
from kcalib import _native

n = 20_000
points = np.random.default_rng(0).dirichlet(np.ones(3), size=n).astype(np.float32)
kernel = _native.Kernel([(1.0, [(0, 0, 2.0, 0.0, 0.0)])])
arrays, vectors = (points, np.ones((n, 1), np.float32), None, None), np.ones((n, 16))
sweep, entries = _native.Sweep(1), _native.RoughEntries()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**23, used + 2**23))
try:
    _native.rough_products(
        *arrays, kernel, sweep, vectors=vectors, entries=entries, largest=1.0, with_signs=False, spread=0.0
    )
except MemoryError:
    print("MemoryError")
"""
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("MemoryError", 0), done.stderr
