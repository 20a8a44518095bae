"""Tiles by executors that others make."""

from __future__ import annotations

import pytest
from problems import softmax_problem

import kcalib
from kcalib.kernels import Exponential

pytestmark = pytest.mark.cluster


def test_loky():
    loky = pytest.importorskip("loky")
    y, p = softmax_problem(2000, 4, seed=0)
    pool = loky.get_reusable_executor(2)
    try:
        parallel = kcalib.parallel.Executor(pool, workers=2, tile_size=300)
        found = kcalib.skce.result(y, p, kernel=Exponential(0.3), backend=parallel)
    finally:
        pool.shutdown()
    one = kcalib.skce.result(y, p, kernel=Exponential(0.3))
    assert (found.value, found.standard_error) == (one.value, one.standard_error)
