"""Batches of all array libraries, large ones, and those that are interrupted."""

from __future__ import annotations

import numpy as np
import pytest
from interrupts import stops_within_a_second
from libraries import library

from kcalib.kernels import Exponential
from kcalib.streaming import CalibrationState, _state

KERNEL = Exponential(0.3)
RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), size=700)
Y = RNG.integers(3, size=700)
W = RNG.exponential(size=700)


def same(one: CalibrationState, other: CalibrationState) -> None:
    mine, theirs = one._arrays(), other._arrays()
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize(
    "name",
    [
        "torch",
        "array_api_strict-device1",
        *(pytest.param(name, marks=pytest.mark.grid) for name in ("jax", "dask", "array_api_strict")),
    ],
)
def test_arrays_of_other_libraries_give_the_same_bits(name):
    make = library(name).asarray
    options = {"kernel": KERNEL, "n_columns": 32, "n_resamples": 2, "threads": 1}
    expected, found = CalibrationState(3, **options), CalibrationState(3, **options)
    for rows in (slice(0, 300), slice(300, 700)):
        expected.update(Y[rows], P[rows], W[rows])
        found.update(make(Y[rows]), make(P[rows]), make(W[rows]))
    same(expected, found)


def test_large_batches_are_added_a_part_at_a_time(monkeypatch):
    options = {"kernel": KERNEL, "n_columns": 32, "n_resamples": 0}
    whole = CalibrationState(3, **options).update(Y, P, W)
    monkeypatch.setattr(_state, "ROWS_AT_ONCE", 97)
    same(whole, CalibrationState(3, **options).update(Y, P, W))


def test_a_batch_that_changes_later_does_not_change_the_state():
    y, p, w = Y.copy(), P.copy(), W.copy()
    options = {"kernel": KERNEL, "n_columns": 32, "n_resamples": 0}
    found = CalibrationState(3, **options).update(y, p, w)
    y[:], p[:], w[:] = 0, 1 / 3, 5.0
    same(found, CalibrationState(3, **options).update(Y, P, W))


@pytest.mark.parametrize("n_resamples, n", [(0, 2_000_000), (199, 300_000)])
def test_an_interrupt_stops_within_a_second_and_leaves_the_state_as_it_was(n_resamples, n):
    p = np.tile(P[:500], (n // 500, 1))
    y = np.zeros(n, dtype=int)
    found = CalibrationState(3, kernel=KERNEL, n_columns=1024, n_resamples=n_resamples, threads=1).update(Y, P)
    before = found.copy()
    stops_within_a_second(lambda: found.update(y, p), after=0.3)
    same(found, before)


def test_batches_on_a_gpu_give_the_same_bits(cupy):
    options = {"kernel": KERNEL, "n_columns": 32, "n_resamples": 2}
    expected, found = CalibrationState(3, **options), CalibrationState(3, **options)
    expected.update(Y, P, W)
    found.update(cupy.asarray(Y), cupy.asarray(P), cupy.asarray(W))
    same(expected, found)
    before = found._accumulator
    p = cupy.asarray(P)
    for call in (lambda: found.update(Y, p * np.nan), lambda: found.update(Y, p, first_row=100)):
        with pytest.raises(ValueError, match="nan|added already"):
            call()
    assert found._accumulator is before
