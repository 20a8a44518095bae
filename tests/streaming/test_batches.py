"""Batches of all array libraries, large ones, and those that are interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from libraries import library

from kcalib.kernels import Exponential
from kcalib.streaming import CalibrationState, state

KERNEL = Exponential(0.3)
RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), size=700)
Y = RNG.integers(3, size=700)
W = RNG.exponential(size=700)


def same(one: CalibrationState, other: CalibrationState) -> None:
    mine, theirs = one._arrays(), other._arrays()
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("name", ["torch", "jax", "dask", "array_api_strict", "array_api_strict-device1"])
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
    monkeypatch.setattr(state, "ROWS_AT_ONCE", 97)
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
    sent = []

    def interrupt() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs have not
    timer = threading.Timer(0.3, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        found.update(y, p)
    assert time.monotonic() - sent[-1] < 1.0
    signal.signal(signal.SIGINT, handler)
    same(found, before)
