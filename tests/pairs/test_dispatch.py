"""The table of backends: what is chosen, why, and what the rows say of the backends."""

from __future__ import annotations

import re
from pathlib import Path

import emulated_cupy
import numpy as np
import pytest
from problems import softmax_problem

import kcalib
from kcalib import _packing
from kcalib._input.labels import prepare
from kcalib._pairs import dispatch
from kcalib._pairs.backends import base
from kcalib._pairs.backends.array_api import ArrayApiBackend
from kcalib._pairs.dispatch import TABLE, backend_for, in_single_precision
from kcalib._pairs.problem import PairProblem, Side
from kcalib._pairs.reductions import BlockSums, DenseRectangle, Moments, Products, QuadraticForms, sweep_one
from kcalib.kernels import Exponential, Gaussian, Kernel

KERNEL = Exponential(bandwidth=0.5)


def problem_of(n: int, m: int, kernel: Kernel = KERNEL) -> PairProblem:
    return _packing.pack(prepare(*softmax_problem(n, m)), kernel, "delta").problem


def test_rows_hold_backends_with_the_usual_reductions():
    for row in TABLE:
        assert row.backend.name == row.name
        assert {Moments, BlockSums, Products, QuadraticForms, DenseRectangle} <= set(row.backend.reductions)
        assert row.backend.entry_cost >= 1
    assert [row.name for row in TABLE if row.backend.on_a_line] == ["sorted"]
    assert TABLE[-1].backend.unsuitable(problem_of(5, 3)) is None  # so that every problem has a backend


def test_nobody_else_asks_for_the_name_of_an_backend():
    for path in Path(kcalib.__file__).parent.rglob("*.py"):
        for name in (row.name for row in TABLE):
            assert not re.search(rf'name\s*(==|!=|in)\s*\(?"{name}"', path.read_text()), path


def test_choices_and_reasons():
    host = problem_of(600, 2)
    assert backend_for(host).reason == "the predictions lie on a line and the kernel allows O(n log n)"
    assert backend_for(problem_of(511, 2)).name == "cpu"  # fewer take no longer
    assert backend_for(problem_of(600, 2, Gaussian(bandwidth=0.5))).reason == "the arrays are in host memory"
    asked = backend_for(host, backend="array-api")
    assert (asked.name, asked.reason) == ("array-api", "asked for by name")
    with pytest.raises(ValueError, match=r"backend='sorted' cannot take this problem: the points have 3 .*None"):
        backend_for(problem_of(600, 3), backend="sorted")
    with pytest.raises(ValueError, match="`threads` has no effect on backend='array-api': the array library decides"):
        backend_for(host, backend="array-api", threads=2)


@pytest.mark.parametrize("name", ["cpu", "array-api"])
def test_in_single_precision(name):
    backend = backend_for(problem_of(40, 3), backend=name)
    single = in_single_precision(backend)
    assert single.name == name and single.threads == backend.threads
    assert single.problem.left.points.dtype == np.float32 == single.problem.left.features.dtype
    assert single.problem.left.labels is backend.problem.left.labels
    assert in_single_precision(single) is single


def test_single_precision_is_no_use_on_a_line():
    backend = backend_for(problem_of(600, 2))
    assert in_single_precision(backend) is backend


def test_generic_block_sums_make_no_backends(monkeypatch):
    backend = ArrayApiBackend(problem_of(40, 3))
    expected = sweep_one(backend_for(backend.problem, backend="cpu"), BlockSums(2))
    monkeypatch.setattr(ArrayApiBackend, "__init__", None)
    np.testing.assert_allclose(sweep_one(backend, BlockSums(2)), expected, rtol=1e-12, atol=1e-15)


def test_cupy_arrays_that_the_engine_cannot_take(monkeypatch):
    """The array-api backend takes them where they are, and says what the obstacle is."""
    with emulated_cupy.installed():
        import cupy

        side = Side(cupy.asarray(np.ones((3, 3))), cupy.asarray(np.ones((3, 3))))
        problem = PairProblem(side, None, problem_of(5, 3).kernel)
        assert backend_for(problem).reason == "the arrays are on GPU 0"
        monkeypatch.setattr(dispatch.CudaBackend, "unsuitable", staticmethod(lambda problem: "too large"))
        chosen = backend_for(problem)
        assert (chosen.name, chosen.reason) == ("array-api", "too large; the arrays are on GPU 0")
        with pytest.raises(ValueError, match="backend='cuda' cannot take this problem: too large; leave backend=None"):
            backend_for(problem, backend="cuda")


@pytest.mark.parametrize("library", ["numpy", "cupy"])
def test_scales_and_spread(library):
    with emulated_cupy.installed():
        asarray = np.asarray if library == "numpy" else emulated_cupy.asarray
        sizes = asarray([0.0, 1.0, 0.75, 3.0, 1e300, 1e-310, 5e-324])
        found = base.powers_of_two(sizes)
        found = found if library == "numpy" else found.get()
        np.testing.assert_array_equal(found, [1, 1, 0.5, 2, 2.0**996, 2.0**-1000, 2.0**-1000])
        corners = asarray(np.eye(4))  # 12 of 16 pairs are sqrt(2) apart
        assert base.spread(corners) == pytest.approx((1.5, 1.0), rel=1e-14)
        assert base.spread(corners[:1])[0] == 0
