"""What kernels compute does not depend on the order in which their threads run, nor on memory in which nothing is.

The emulation runs threads one after the other from barrier to barrier: where a barrier lacks, another order gives
other numbers. It also sees to it that barriers are reached by all threads of a block, and that there are numbers no
result has in shared memory and in new arrays. Every function of src/cuda is launched, with sizes that no tile divides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulated_cupy
import numpy as np
import pytest
from problems import KERNELS, softmax_problem

from kcalib import _packing
from kcalib._backend.random import KINDS, RandomNumbers, Weights, draw_label_batches
from kcalib._backend.segments import Segments
from kcalib._input.labels import prepare
from kcalib._pairs.backends.cuda import CudaBackend, draw_on_device
from kcalib._pairs.backends.sorted_cuda import SortedPlaces, group_sums
from kcalib._pairs.backends.sorted_line import SortedBackend
from kcalib._pairs.problem import Factor, Mixtures, PairProblem, Side, Term
from kcalib._pairs.reductions import (
    BlockSums,
    Counts,
    DenseRectangle,
    EntriesInRange,
    Moments,
    Products,
    QuadraticForms,
    sweep_one,
)
from kcalib.distributions import Poisson
from kcalib.regression.dirichlet_kde import class_shares, log_normalisers

ORDERS = (1, 2, 77)  # descending and two shuffles, beside the ascending one
SOURCES = Path(__file__).parents[2] / "src" / "cuda"
Arrays = list[Any]


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def problem(cupy: Any, n: int, m: int, dtype: str = "float64", kernel: str = "exponential") -> PairProblem:
    y, p = softmax_problem(n, m, seed=m)
    return _packing.pack(prepare(y, cupy.asarray(p), dtype=dtype), KERNELS[kernel], "delta").problem


def pairs(m: int, dtype: str = "float64") -> Callable[[Any], Arrays]:
    """All primitives but those of small blocks and order statistics, which are compiled apart."""

    def compute(cupy: Any) -> Arrays:
        backend = CudaBackend(problem(cupy, 150, m, dtype))
        found = sweep_one(backend, Moments(second=True))
        vectors = cupy.asarray(rng().normal(size=(150, 3)))
        products = sweep_one(backend, Products(vectors)), sweep_one(backend, Products(vectors, dtype="float32"))
        forms = sweep_one(backend, QuadraticForms(Weights("rademacher", 150, 5, 1)))
        return [
            found.total,
            found.sum_of_squares,
            found.row_sums,
            *products,
            forms,
            sweep_one(backend, DenseRectangle(slice(0, 70), slice(3, 150))),
        ]

    return compute


def sums(m: int) -> Callable[[Any], Arrays]:
    def compute(cupy: Any) -> Arrays:
        found = sweep_one(CudaBackend(problem(cupy, 150, m)), Moments(second=True))
        return [found.total, found.sum_of_squares, found.row_sums]

    return compute


def small_blocks(cupy: Any) -> Arrays:
    backend = CudaBackend(problem(cupy, 150, 3))
    return [sweep_one(backend, BlockSums(size)) for size in (2, 7, 70)]


def order_statistics(cupy: Any) -> Arrays:
    """Lists in no order; those of the line are sorted by their function."""
    backend = CudaBackend(problem(cupy, 150, 3))
    counts = sweep_one(backend, Counts(np.linspace(-1, 1, 11)))
    return [counts, np.sort(sweep_one(backend, EntriesInRange(-0.2, 0.2, int(counts[6] - counts[4]))).values)]


def mixtures(cupy: Any) -> Arrays:
    """Signed measures of normals, at distances of mixtures of two normals each."""
    random, normals = rng(), Mixtures("normal", 2, 2, 1)
    columns = normals.component_columns
    parameters = [random.uniform(0.5, 1.5, (70, 2 * columns)) for _ in range(2)]
    features = np.concatenate([np.ones((70, 2)), random.normal(size=(70, 2)), parameters[0]], axis=1)
    side = Side(cupy.asarray(parameters[1]), cupy.asarray(features))
    kernel = (Term(1.0, (Factor("exponential", "mmd", 0.5),)),)
    found = sweep_one(CudaBackend(PairProblem(side, None, kernel, target=normals, predicted=normals)), Moments())
    return [found.total, found.row_sums]


def line(cupy: Any) -> Arrays:
    y, p = softmax_problem(3000, 2)  # two levels of nodes above the points
    data = prepare(y, cupy.asarray(p))
    backend = SortedBackend(_packing.pack(data, KERNELS["matern_2.5"], "delta").problem)
    vectors = cupy.asarray(rng().normal(size=(3000, 5)))
    found = sweep_one(backend, Moments())
    return [
        found.total,
        found.row_sums,
        sweep_one(backend, Products(vectors)),
        sweep_one(backend, QuadraticForms(vectors)),
    ]


def places(cupy: Any) -> Arrays:
    numbers = cupy.asarray(rng().normal(size=500))
    ordered = SortedPlaces.of(numbers)
    counts = sweep_one(ordered, Counts(np.linspace(0, 3, 9)))
    listed = sweep_one(ordered, EntriesInRange(0.375, 0.75, int(counts[2] - counts[1]))).values
    return [counts, listed, group_sums(numbers, 5, 100)]


def random_numbers(cupy: Any) -> Arrays:
    _, p = softmax_problem(300, 5)
    generator = np.random.Generator(np.random.Philox(3))
    integers = RandomNumbers(generator, cupy.asarray(p)).integers(3 * 2**29, 700)  # half as many again are refused
    return [integers, *draw_label_batches(cupy.asarray(p), 4, 3, at_once=3)]


def poisson_draws(cupy: Any) -> Arrays:
    return [Poisson(cupy.asarray(np.array([0.5, 3.0, 40.0]))).sample(30, seed=1)]


def weights(cupy: Any) -> Arrays:
    return [
        draw_on_device(Weights(kind, 300, 5, 3), 1, 4, 4, dtype) for kind in KINDS for dtype in ("float64", "float32")
    ]


def segments(cupy: Any) -> Arrays:
    numbers = rng().integers(0, 9, 700)
    numbers[numbers == 4] = 5  # an empty one
    values = [cupy.asarray(rng().normal(size=shape)) for shape in ((700, 19), (700, 1), (700,))]
    found = Segments.of(cupy.asarray(numbers), 9)
    return [found.sums(values[0], values[2]), found.sums(values[1], values[2])]


def dirichlet(features: int, dtype: str = "float64") -> Callable[[Any], Arrays]:
    """Costs so far apart that floors go down, classes without samples, tiles in several groups."""

    def compute(cupy: Any) -> Arrays:
        random = rng()
        p = random.dirichlet(np.full(features, 0.01), size=230)
        powers, information = p / 0.01, -np.log(np.maximum(p, 1e-300))
        ordered = np.sort(random.integers(0, features, 230)).astype(np.int32)
        ordered[ordered == 2] = 1
        arrays = [cupy.asarray(a, dtype=dtype) for a in (information, powers)]
        normalisers = log_normalisers(cupy.asarray(powers))
        offsets = cupy.asarray(-normalisers, dtype=dtype)
        ordered = cupy.asarray(ordered)
        own = class_shares(*arrays, offsets, ordered, features, True, None)
        return [normalisers, *own, *class_shares(arrays[0][:67], *(arrays[1], offsets, ordered), features, False, None)]

    return compute


ALWAYS = {"sums of residuals": sums(12), "segments": segments, "dirichlet": dirichlet(5)}
OTHERS = {
    "pairs, differences": pairs(3),
    "pairs, residuals": pairs(12),
    "pairs, residuals gathered": sums(70),
    "pairs, inner products of cuBLAS": pairs(130),
    "pairs, float32": pairs(12, "float32"),
    "small blocks": small_blocks,
    "order statistics": order_statistics,
    "places": places,
    "mixtures": mixtures,
    "line": line,
    "random numbers": random_numbers,
    "Poisson draws": poisson_draws,
    "weights": weights,
    "dirichlet of many classes": dirichlet(70),
    "dirichlet, float32": dirichlet(5, "float32"),
}
EVERY = ALWAYS | OTHERS


def numbers_of(found: Arrays) -> list[np.ndarray]:
    return [a.get() if hasattr(a, "get") else np.asarray(a) for a in found]


@pytest.mark.parametrize("name", [*ALWAYS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_order_of_threads(cupy, name):
    expected = numbers_of(EVERY[name](cupy))
    assert all(np.isfinite(a).all() for a in expected)
    for order in ORDERS:
        with emulated_cupy.thread_order(order):
            for a, b in zip(numbers_of(EVERY[name](cupy)), expected, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_every_function_is_launched():
    emulated_cupy.launched.clear()
    with emulated_cupy.installed() as cupy:
        for compute in EVERY.values():
            compute(cupy)
    text = "".join(file.read_text() for file in SOURCES.glob("*.cu"))
    functions = set(re.findall(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)', text))
    assert functions == emulated_cupy.launched


RACES = """
extern "C" __global__ void no_barrier(double* out) {
  __shared__ double shared[8];
  shared[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = shared[7 - threadIdx.x];
}
extern "C" __global__ void not_all(double* out) {
  if (threadIdx.x == 3) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}
extern "C" __global__ void at_another(double* out) {
  if (threadIdx.x == 3)
    __syncthreads();
  else
    __syncthreads();
  out[threadIdx.x] = 1;
}
"""


def test_the_emulation_sees_faults():
    with emulated_cupy.installed() as cupy:
        module = cupy.RawModule(code=RACES)
        found = {}
        for order in (0, *ORDERS):
            out = cupy.zeros(8)
            with emulated_cupy.thread_order(order):
                module.get_function("no_barrier")((1, 1), (8,), (out,))
            found[order] = out.get()
        assert np.isnan(found[0][:4]).all() and np.isnan(found[1][4:]).all()
        assert not np.array_equal(found[0], found[2], equal_nan=True)
        for name, rest in (("not_all", "has returned"), ("at_another", "is at another one")):
            with pytest.raises(AssertionError, match=rf"thread \d waits at the barrier in .*, thread \d {rest}"):
                module.get_function(name)((1, 1), (8,), (cupy.zeros(8),))
            module.get_function("no_barrier")((1, 1), (8,), (out := cupy.zeros(8),))  # by threads that begin anew
            np.testing.assert_array_equal(out.get(), found[0])
