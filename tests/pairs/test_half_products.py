"""Products in float32 with many vectors by those of bfloat16, on machines that have them, beside the stored H."""

import numpy as np
import pytest

from kcalib import _native, _packing
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.problem import PairProblem, Side
from kcalib.kernels import Exponential, Gaussian, Linear

AMX = "x86-64-v4-amx"
KERNELS = {"exponential": Exponential(bandwidth=0.5), "sum": Linear() + Gaussian(bandwidth=0.3)}
FEWEST = 32  # vectors
pytestmark = pytest.mark.skipif(_native.Sweep(1).level != AMX, reason="this machine has no products of bfloat16")


def backend_of(n, m, kernel="exponential", dtype="float32", scale=1.0, law="diffuse", **options):
    rng = np.random.default_rng([n, m])
    p = rng.dirichlet(np.ones(m), size=n)
    if law == "tied":
        p = p[rng.integers(min(n, 3), size=n)]
    elif law == "saturated":
        errors = 10.0 ** rng.uniform(-8, -4, size=n)
        p = np.tile((9 * errors / (m - 1))[:, None], m)
        p[np.arange(n), rng.integers(m, size=n)] = 1 - 9 * errors
    terms = _packing.pack_points(p, KERNELS[kernel], dtype, threads=1).problem.kernel
    marks = np.full((n, 1), np.sqrt(scale), dtype)
    return CpuBackend(PairProblem(Side(p.astype(dtype), marks), None, terms), **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("law", ["diffuse", "tied", "saturated"])
@pytest.mark.parametrize(
    ("n", "m", "kernel", "count"),
    [(1, 3, "sum", 33), (97, 3, "sum", 40), (300, 10, "exponential", 160), (2100, 10, "exponential", 49)],
)
def test_products(dtype, law, n, m, kernel, count):
    """As good as products of float32, for vectors of any scale; an error there is up to 2^-22 of all sizes."""
    backend = backend_of(n, m, kernel, dtype, law=law, level=AMX)
    rng = np.random.default_rng(1)
    v = rng.standard_normal((n, count)) * 10.0 ** rng.uniform(-50, 50, size=count)
    h = backend.tile(slice(None), slice(None)).astype(np.float64)
    assert (np.abs(backend.matmul(v, dtype="float32") - h @ v) <= 4e-7 * (np.abs(h) @ np.abs(v))).all()


def test_products_of_rectangles_with_vectors_on_both_sides():
    backend, rng = backend_of(500, 4, dtype="float64", level=AMX), np.random.default_rng(2)
    h, v, cut = backend.tile(slice(None), slice(None)), rng.standard_normal((500, 50)), backend.cut()
    rows, columns = range(0, 192), range(192, 500)
    found, transposed = cut.matmul(rows, columns, v, dtype="float32", both=True)
    block = h[:192, 192:]
    assert (np.abs(found - block @ v[192:]) <= 4e-7 * (block @ np.abs(v[192:]))).all()
    assert (np.abs(transposed - block.T @ v[:192]) <= 4e-7 * (block.T @ np.abs(v[:192]))).all()


def test_the_same_bits_for_any_number_of_threads():
    v = np.random.default_rng(3).standard_normal((2500, FEWEST))
    one, three = (backend_of(2500, 10, threads=threads).matmul(v, dtype="float32") for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_what_bfloat16_has_no_room_for_is_left_to_float32():
    """Few vectors, vectors that are not finite, and blocks whose entries are tiny: the bits of AVX-512."""
    v = np.random.default_rng(4).standard_normal((300, FEWEST))
    infinite = v.copy()
    infinite[7, 3] = np.inf
    for scale, vectors in ((1.0, v[:, 1:]), (1.0, infinite), (1e-30, v), (1e-36, v)):
        found, expected = (
            backend_of(300, 5, scale=scale, level=level).matmul(vectors, dtype="float32")
            for level in (AMX, "x86-64-v4")
        )
        np.testing.assert_array_equal(found, expected)
    other = backend_of(300, 5, level="x86-64-v4").matmul(v, dtype="float32")
    assert (backend_of(300, 5, level=AMX).matmul(v, dtype="float32") != other).any()
