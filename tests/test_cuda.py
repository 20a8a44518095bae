"""The cuda operator's text: compiled for real devices, and what the contract (test_operators.py) does not see."""

from __future__ import annotations

import itertools

import emulated_cupy
import numpy as np
import nvrtc
import pytest
from problems import softmax_problem

from kcalib import _packing
from kcalib import kernels as K
from kcalib._cuda import Program
from kcalib._dispatch import operator_for
from kcalib._inputs import prepare
from kcalib._operators.cuda import FUNCTIONS, CudaOperator, drawn_weights, weights_program
from kcalib._operators.openmp import OpenMPOperator
from kcalib._problem import Factor, Mixtures, PairProblem, Side, Term
from kcalib._resampling import KINDS, Weights

ARCHITECTURES = ("sm_70", "sm_80", "sm_90")
RADIAL = (K.Exponential, K.Gaussian, K.GammaExponential, K.Matern, K.RationalQuadratic)
EUCLIDEAN = [*(kind(bandwidth=0.5) for kind in RADIAL), K.Matern(bandwidth=0.5, nu=2.5)]
# Every profile with every metric in one kernel: a combination is a subset of it.
EVERYTHING = [K.Linear(), *EUCLIDEAN, *(kind(bandwidth=0.5, metric="cityblock") for kind in RADIAL)]


def _operator(kernels, m: int, dtype: str) -> CudaOperator:
    y, p = softmax_problem(20, m)
    kernel = kernels[0]
    for other in kernels[1:]:
        kernel = kernel + other
    return CudaOperator(_packing.pack(prepare(y, emulated_cupy.asarray(p), dtype=dtype), kernel, "delta").problem)


KERNELS = {
    "one": (EUCLIDEAN[:1], 20),
    "differences": (EVERYTHING, 3),
    "expanded": (EVERYTHING, 20),
    "residuals": (EUCLIDEAN, 20),
}
ALWAYS = [("one", "float64", "sm_90"), ("one", "float32", "sm_70")]  # 3 s each, the others up to 10: -m slow
COMBINATIONS = [
    pytest.param(*each, marks=[] if each in ALWAYS else pytest.mark.slow)
    for each in itertools.product(KERNELS, ("float64", "float32"), ARCHITECTURES)
]


@pytest.mark.filterwarnings("ignore::kcalib.IndefiniteKernelWarning")
@pytest.mark.parametrize("kernels, dtype, architecture", COMBINATIONS)
def test_pairs_compile(cupy, kernels, dtype, architecture):
    program = _operator(*KERNELS[kernels], dtype).program
    assert nvrtc.cubin(program.source, program.every_option, architecture)[:4] == b"\x7fELF"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("real", ["double", "float"])
def test_weights_compile(real, architecture):
    program = weights_program(real)
    assert nvrtc.cubin(program.source, program.every_option, architecture)[:4] == b"\x7fELF"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_have_the_bits_of_the_compiled_core(cupy, kind, dtype):
    weights = Weights(kind, 1000, 40, 2**63 + 12345)
    found = drawn_weights(weights, 3, 17, 16, dtype).get()
    np.testing.assert_array_equal(found[:, :14], weights.values(3, 17, dtype))
    assert not found[:, 14:].any()


def test_several_groups_of_columns_and_products(cupy):
    """More tiles than one group has, more vectors than one panel; 1e-12 of the sums of sizes."""
    y, p = softmax_problem(700, 10, seed=3)
    kernel = K.Exponential(bandwidth=0.5)
    expected = OpenMPOperator(_packing.pack(prepare(y, p), kernel, "delta").problem)
    found = CudaOperator(_packing.pack(prepare(y, cupy.asarray(p)), kernel, "delta").problem)
    vectors = np.random.default_rng(0).normal(size=(700, 18))
    size = np.abs(expected.tile(slice(None), slice(None)))
    a, b = found.moments(second=True), expected.moments(second=True)
    assert (np.abs(a.row_sums.get() - b.row_sums) <= 1e-12 * size.sum(axis=1)).all()
    assert abs(a.total - b.total) <= 1e-12 * size.sum()
    product = found.matmul(cupy.asarray(vectors)).get()
    assert (np.abs(product - expected.matmul(vectors)) <= 1e-12 * (size @ np.abs(vectors))).all()
    weights = Weights("rademacher", 700, 33, 5)
    difference = np.abs(found.quadratic_forms(weights).get() - expected.quadratic_forms(weights))
    assert (difference <= 1e-12 * size.sum()).all()


def test_host_arrays_are_refused():
    y, p = softmax_problem(20, 3)
    problem = _packing.pack(prepare(y, p), K.Exponential(bandwidth=0.5), "delta").problem
    with pytest.raises(ValueError, match=r"operator='cuda' needs arrays on an NVIDIA GPU, `y_pred` is on cpu"):
        operator_for(problem, operator="cuda")


# Predicted distributions: families by dimensions (a constant of the text up to 4), and where distances come from.
MIXTURES = {
    "normal-1": Mixtures("normal", 1, 1),
    "normal-any": Mixtures("normal", 10, 2, 2),
    "normal_full-2": Mixtures("normal_full", 2, 1),
    "normal_full-any": Mixtures("normal_full", 16, 2),
    "laplace": Mixtures("laplace", 1, 1),
    "atoms-1": Mixtures("atoms", 1, 5, kernel=K.Exponential(bandwidth=0.5).terms()),
    "atoms-any": Mixtures("atoms", 7, 5, kernel=(K.Gaussian(bandwidth=0.5) + K.Matern(bandwidth=1.0)).terms()),
}
DISTANCES = ("vectors", "mmd", "table")
MIXTURE_COMBINATIONS = [
    pytest.param(*each, marks=[] if each == ("normal-1", "vectors", "float64", "sm_80") else pytest.mark.slow)
    for each in itertools.product(MIXTURES, DISTANCES, ("float64", "float32"), ARCHITECTURES)
]


@pytest.mark.parametrize("name, distances, dtype, architecture", MIXTURE_COMBINATIONS)
def test_pairs_of_mixtures_compile(cupy, monkeypatch, name, distances, dtype, architecture):
    monkeypatch.setattr(Program, "launch", lambda *arguments: None)
    mixtures = MIXTURES[name]
    columns = mixtures.point_columns if distances == "mmd" else 1
    side = Side(cupy.ones((4, columns), dtype=dtype), cupy.ones((4, mixtures.mark_columns), dtype=dtype))
    metric = "euclidean" if distances == "vectors" else distances
    kernel = (Term(1.0, (Factor("exponential", metric, 2.0), Factor("matern_5_2", metric, 0.5))),)
    predicted, table = mixtures if distances == "mmd" else None, np.ones((4, 4)) if distances == "table" else None
    operator = CudaOperator(PairProblem(side, None, kernel, mixtures, predicted, table))
    # Mixtures are in what all functions share: all of them once.
    functions = FUNCTIONS if distances == "mmd" and architecture == "sm_90" else ("kcalib_sums",)
    for function in functions:
        program = operator.program(function)
        assert nvrtc.cubin(program.source, program.every_option, architecture)[:4] == b"\x7fELF"
