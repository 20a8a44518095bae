"""The table of operators: what is chosen, why, and what the rows say of the operators."""

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
from kcalib._pairs.dispatch import TABLE, in_single_precision, operator_for
from kcalib._pairs.operators import digits
from kcalib._pairs.operators.generic import GenericOperator
from kcalib._pairs.problem import PairProblem, Side
from kcalib.kernels import Exponential, Gaussian, Kernel

KERNEL = Exponential(bandwidth=0.5)


def problem_of(n: int, m: int, kernel: Kernel = KERNEL) -> PairProblem:
    return _packing.pack(prepare(*softmax_problem(n, m)), kernel, "delta").problem


def test_rows_hold_operators_with_all_primitives():
    for row in TABLE:
        assert row.operator.name == row.name
        assert all(callable(getattr(row.operator, name)) for name in (*row.capability.primitives, "unsuitable"))
        assert row.operator.entry_cost >= 1
    assert [row.name for row in TABLE if row.operator.on_a_line] == ["sorted_scan"]
    assert TABLE[-1].operator.unsuitable(problem_of(5, 3)) is None  # so that every problem has an operator


def test_nobody_else_asks_for_the_name_of_an_operator():
    for path in Path(kcalib.__file__).parent.rglob("*.py"):
        for name in (row.name for row in TABLE):
            assert not re.search(rf'name\s*(==|!=|in)\s*\(?"{name}"', path.read_text()), path


def test_choices_and_reasons():
    host = problem_of(600, 2)
    assert operator_for(host).reason == "the predictions lie on a line and the kernel allows O(n log n)"
    assert operator_for(problem_of(511, 2)).name == "openmp"  # fewer take no longer
    assert operator_for(problem_of(600, 2, Gaussian(bandwidth=0.5))).reason == "the arrays are in host memory"
    asked = operator_for(host, operator="generic")
    assert (asked.name, asked.reason) == ("generic", "asked for by name")
    with pytest.raises(ValueError, match=r"operator='sorted_scan' cannot take this problem: the points have 3 .*None"):
        operator_for(problem_of(600, 3), operator="sorted_scan")
    with pytest.raises(ValueError, match="`threads` has no effect on operator='generic': the array library decides"):
        operator_for(host, operator="generic", threads=2)


@pytest.mark.parametrize("name", ["openmp", "generic"])
def test_in_single_precision(name):
    operator = operator_for(problem_of(40, 3), operator=name)
    single = in_single_precision(operator)
    assert single.name == name and single.threads == operator.threads
    assert single.problem.left.points.dtype == np.float32 == single.problem.left.marks.dtype
    assert single.problem.left.labels is operator.problem.left.labels
    assert in_single_precision(single) is single


def test_single_precision_is_no_use_on_a_line():
    operator = operator_for(problem_of(600, 2))
    assert in_single_precision(operator) is operator


def test_generic_block_sums_make_no_operators(monkeypatch):
    operator = GenericOperator(problem_of(40, 3))
    expected = operator_for(operator.problem, operator="openmp").block_sums(2)
    monkeypatch.setattr(GenericOperator, "__init__", None)
    np.testing.assert_allclose(operator.block_sums(2), expected, rtol=1e-12, atol=1e-15)


def test_cupy_arrays_that_the_engine_cannot_take(monkeypatch):
    """The generic operator takes them where they are, and says what the obstacle is."""
    with emulated_cupy.installed():
        import cupy

        side = Side(cupy.asarray(np.ones((3, 3))), cupy.asarray(np.ones((3, 3))))
        problem = PairProblem(side, None, problem_of(5, 3).kernel)
        assert operator_for(problem).reason == "the arrays are on GPU 0"
        monkeypatch.setattr(dispatch.CudaOperator, "unsuitable", staticmethod(lambda problem: "too large"))
        chosen = operator_for(problem)
        assert (chosen.name, chosen.reason) == ("generic", "too large; the arrays are on GPU 0")
        with pytest.raises(
            ValueError, match="operator='cuda' cannot take this problem: too large; leave operator=None"
        ):
            operator_for(problem, operator="cuda")


@pytest.mark.parametrize("library", ["numpy", "cupy"])
def test_scales_and_spread(library):
    with emulated_cupy.installed():
        asarray = np.asarray if library == "numpy" else emulated_cupy.asarray
        sizes = asarray([0.0, 1.0, 0.75, 3.0, 1e300, 1e-310, 5e-324])
        found = digits.powers_of_two(sizes)
        found = found if library == "numpy" else found.get()
        np.testing.assert_array_equal(found, [1, 1, 0.5, 2, 2.0**996, 2.0**-1000, 2.0**-1000])
        corners = asarray(np.eye(4))  # 12 of 16 pairs are sqrt(2) apart
        assert digits.spread(corners) == pytest.approx((1.5, 1.0), rel=1e-14)
        assert digits.spread(corners[:1])[0] == 0
