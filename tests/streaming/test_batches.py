"""Batches of all array libraries, large ones, and those that are interrupted."""

from __future__ import annotations

import pickle

import emulated_cupy
import numpy as np
import pytest
from interrupts import stops_within_a_second
from libraries import library

from kcalib import lenses
from kcalib.kernels import Exponential, Gaussian, Linear
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


def near(one: CalibrationState, other: CalibrationState, n: int) -> None:
    mine, theirs = one._totals(), other._totals()
    for name in ("sums", "own", "cells"):
        found, expected = getattr(mine, name), getattr(theirs, name)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max(), err_msg=name)
    if mine.drawn is not None:
        np.testing.assert_allclose(mine.drawn, theirs.drawn, rtol=1e-12, atol=1e-12 * n * n)
    assert (mine.drawn is None) == (theirs.drawn is None)
    assert mine.null_own == pytest.approx(theirs.null_own, rel=1e-11)
    assert mine.scores == pytest.approx(theirs.scores, rel=1e-12)
    assert (mine.n, mine.n_weighted) == (theirs.n, theirs.n_weighted)
    assert all(np.array_equal(a, b) for a, b in zip(mine.extremes, theirs.extremes, strict=True))
    assert np.array_equal(mine.sample_rows, theirs.sample_rows)
    assert np.array_equal(mine.sample.probabilities, theirs.sample.probabilities)


@pytest.mark.parametrize(
    "m, kind, options",
    [
        (3, "soft", {"n_resamples": 0, "weighted": True}),
        pytest.param(3, "saturated", {"n_resamples": 3}, marks=pytest.mark.grid),
        (2, "saturated", {"n_resamples": 3, "part": 2**23 - 1}),
        pytest.param(
            4,
            "soft",
            {"n_resamples": 2, "lens": lenses.TopLabel(), "kernel": Linear() * Gaussian(0.4)},
            marks=pytest.mark.grid,
        ),
        (3, "soft", {"n_resamples": 2, "target_kernel": [[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]]}),
        pytest.param(3, "soft", {"n_resamples": 0, "kernel": None}, marks=pytest.mark.grid),
    ],
)
def test_sums_of_batches_on_a_gpu_stay_there(cupy, m, kind, options):
    rng = np.random.default_rng(2)
    n = 2 * 4096 + 2100
    p = rng.dirichlet(np.ones(m), size=n)
    if kind == "saturated":
        e = 10.0 ** rng.uniform(-8, -4, size=n)
        p = np.repeat(e[:, None], m, axis=1)
        p[np.arange(n), rng.integers(m, size=n)] = 1 - (m - 1) * e
    y = rng.integers(m, size=n)
    options = {"kernel": KERNEL, "n_columns": 16} | options
    w = rng.exponential(size=n) if options.pop("weighted", False) else None
    expected = CalibrationState(m, **options).update(y, p, w)
    found = CalibrationState(m, **options)
    batches = [slice(0, 2000), slice(2000, 8300), slice(8300, 8310), slice(8310, n)]
    for rows in batches:
        batch = tuple(None if one is None else cupy.asarray(one[rows]) for one in (y, p, w))
        large = rows.stop - rows.start >= 2048
        # Rows of blocks that are not complete leave, and those of the sample.
        with emulated_cupy.stays_on_device(m * (4096 if options["n_resamples"] else 256) if large else m * 2048):
            found.update(*batch)
    assert found.n_samples == n
    assert found._contents.beside is not None  # nor have the sums left
    near(found, expected, n)
    if options["kernel"] is not None:
        other, half = CalibrationState(m, **options), slice(5000, n)
        other.update(*(None if one is None else cupy.asarray(one[half]) for one in (y, p, w)), first_row=5000)
        other.merge(CalibrationState(m, **options).update(y[:5000], p[:5000], None if w is None else w[:5000]))
        near(other, expected, n)
    near(pickle.loads(pickle.dumps(found)), expected, n)


def test_a_fault_on_a_gpu_leaves_the_state_as_it_was(cupy):
    found = CalibrationState(3, kernel=KERNEL, n_columns=16, n_resamples=0)
    p = cupy.asarray(np.tile(P, (4, 1)))
    y = cupy.asarray(np.tile(Y, 4))
    found.update(y, p)
    before = found._contents
    for call in (
        lambda: found.update(y, p * np.nan),
        lambda: found.update(y, p, cupy.asarray(np.full(2800, 2.0**19))),
        lambda: found.update(y, p, cupy.asarray(np.full(2800, 2.0**18))),
        lambda: found.update(y, p, first_row=100),
    ):
        with pytest.raises(ValueError, match="nan|at most 262144|sums of `sample_weight`|added already"):
            call()
    assert found._contents is before


def test_batches_of_two_gpus_and_of_the_host_add_up(emulation):
    p, y = np.tile(P, (4, 1)), np.tile(Y, 4)
    options = {"kernel": KERNEL, "n_columns": 16, "n_resamples": 0}
    expected, found = CalibrationState(3, **options), CalibrationState(3, **options)
    for device in (1, 0, None, 1):
        expected.update(y, p)
        if device is None:
            found.update(y, p)
            continue
        with emulation.cuda.Device(device):
            batch = emulation.asarray(y), emulation.asarray(p)
        found.update(*batch)
    assert found._contents.beside is not None
    near(found, expected, 4 * 2800)


def test_sums_of_weights_on_a_gpu_end_where_they_are_not_exact(cupy):
    found = CalibrationState(3, kernel=KERNEL, n_columns=16, n_resamples=0)
    batch = cupy.asarray(np.tile(Y, 4)), cupy.asarray(np.tile(P, (4, 1))), cupy.asarray(np.full(2800, 4000.0))
    for _ in range(4):  # of squares below 2**36 each
        found.update(*batch)
    with pytest.raises(ValueError, match="divide all weights by one number"):
        found.update(*batch)
    assert found.n_samples == 4 * 2800
