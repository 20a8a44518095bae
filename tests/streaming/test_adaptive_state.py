"""The adaptive test of states: what it has of samples in memory, in any pieces, and what it has instead."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hard_laws import drawn_labels

import kcalib
from kcalib.kernels import Exponential
from kcalib.methods import Adaptive
from kcalib.streaming import CalibrationState
from kcalib.streaming._files.format import pack_content, unpack


def problem(n, m, power=1.0, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(m, 0.4), size=n)
    q = p**power
    return drawn_labels(q / q.sum(axis=1, keepdims=True), rng), p


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("m", "bandwidth"), [(2, 0.3), (5, 0.4), (4, 1e-3)])
def test_pieces_have_the_blocks_of_all_samples(m, bandwidth, weighted):
    """Of blocks of rows that are complete and not, in any order; a tiny bandwidth has a wider kernel, too."""
    n, options = 5000, {"kernel": Exponential(bandwidth), "n_columns": 32, "n_resamples": 19, "seed": 3}
    y, p = problem(n, m)
    # Weights whose sums have no few digits, and after the first piece those of one.
    w = np.where(np.arange(n) < 4300, np.random.default_rng(m).exponential(size=n), 1.0) if weighted else np.ones(n)
    ends = (0, 700, 4500, n)
    pieces = [
        CalibrationState(m, **options).update(y[begin:end], p[begin:end], w[begin:end], first_row=begin)
        for begin, end in itertools.pairwise(ends)
    ]
    whole = CalibrationState(m, **options, threads=1).update(y, p, w if weighted else None)
    assert len({(a + (b + c)).to_bytes() for a, b, c in itertools.permutations(pieces)} | {whole.to_bytes()}) == 1
    found = CalibrationState.from_bytes(whole.to_bytes()).calibration_test()
    of_rows = {"sample_weight": w} if weighted else {}
    expected = kcalib.calibration_test(y, p, kernel=Exponential(bandwidth), method=Adaptive(19, 32), seed=3, **of_rows)
    assert (found.method, found.pvalue, found.finding) == ("adaptive", expected.pvalue, expected.finding)
    assert found.null_law == expected.null_law and ("bandwidths" in found.null_law) == (bandwidth < 0.05)
    for mine, theirs in zip(found.blocks, expected.blocks, strict=True):
        assert (mine.name, mine.pvalue, mine.finding) == (theirs.name, theirs.pvalue, theirs.finding)
        assert mine.statistic == pytest.approx(theirs.statistic, rel=1e-9)


def test_many_classes():
    """The kernel's sums of all draws are too large: labels are drawn for the other blocks alone."""
    y, p = problem(600, 120)
    kernel = Exponential(0.5)
    pieces = [
        CalibrationState(120, kernel=kernel).update(y[rows], p[rows], first_row=rows[0])
        for rows in np.array_split(np.arange(600), [250, 530])
    ]
    state = CalibrationState(120, kernel=kernel).update(y, p)
    assert state.options.n_resamples == 199 and state == pieces[2] + pieces[0] + pieces[1]
    found = state.calibration_test()
    expected = kcalib.calibration_test(y, p, kernel=kernel, method=Adaptive(199), seed=0)
    for mine, theirs in zip(found.blocks[:4], expected.blocks, strict=False):
        assert mine == theirs
    assert [block.name for block in found.blocks] == ["temperature", "bias", "classes", "top label", "kernel"]
    law = CalibrationState(120, kernel=kernel, n_resamples=0).update(y, p).calibration_test()
    assert law.method == "features" and law.pvalue_from == "law"
    assert found.blocks[4].pvalue == pytest.approx(law.pvalue, rel=1e-9)
    ranked = found.pvalue * 4 / 5
    assert ranked * 200 == pytest.approx(round(ranked * 200)) and ranked >= 1 / 200
    assert "4 of 5 parts of the level; the kernel has no draws" in found.null_law
    draws = CalibrationState(120, kernel=kernel, n_resamples=19).update(y[:40], p[:40]).calibration_test()
    assert len(draws.blocks) == 6 and "parts of the level" not in draws.null_law


@pytest.mark.parametrize(("m", "draws", "of_kernels"), [(80, 199, 199), (90, 199, 0), (8000, 199, 0), (12_000, 0, 0)])
def test_draws_of_many_classes(m, draws, of_kernels):
    options = CalibrationState(m).options
    assert (options.n_resamples, options.n_kernel_resamples) == (draws, of_kernels)
    asked_for = CalibrationState(m, n_resamples=3, n_columns=16).options
    assert (asked_for.n_resamples, asked_for.n_kernel_resamples) == (3, 3)


def test_many_classes_whose_error_is_large():
    y, p = problem(1200, 90, power=0.5)
    found = CalibrationState(90, kernel=Exponential(0.5)).update(y, p).result()
    assert found.test.finding == "over-confident" and found.test.pvalue_from == "bound" and found.test.pvalue < 1e-6
    assert found.verdict.startswith("miscalibrated, over-confident")


@pytest.mark.parametrize(("power", "m"), [(1.3, 3), pytest.param(0.4, 10, marks=pytest.mark.grid), (0.7, 2)])
def test_bounds_beside_those_of_samples_in_memory(power, m):
    """Of the temperature's tail, with fixed tilts; and of the error, by fixed maps in place of a fitted one."""
    y, p = problem(8000, m, power)
    kernel = Exponential(0.4)
    state = CalibrationState(m, kernel=kernel, n_columns=16).update(y, p)
    found, expected = state.result(), kcalib.evaluate(y, p, kernel=kernel, method=Adaptive(199, 16), seed=0)
    assert found.test.finding == expected.test.finding == ("over-confident" if power < 1 else "under-confident")
    if expected.test.pvalue_from == "bound":
        assert expected.test.log_pvalue <= found.test.log_pvalue < 0.8 * expected.test.log_pvalue + 1
    q = p**power
    q /= q.sum(axis=1, keepdims=True)
    truth = math.sqrt(np.mean((np.abs(p - q).sum(axis=1) / 2) ** 2))
    assert 0.6 * truth < found.rms_error_lower < truth and found.rms_error_from == "temperature map"


def test_bound_of_the_error_holds():
    """Of sets that are nearly calibrated."""
    count = 10
    for power in (0.97, 1.0):
        too_large = 0
        for seed in range(count):
            y, p = problem(400, 4, power, seed)
            state = CalibrationState(4, kernel=Exponential(0.5), n_columns=16, n_resamples=39, seed=seed).update(y, p)
            q = p**power
            q /= q.sum(axis=1, keepdims=True)
            truth = math.sqrt(np.mean((np.abs(p - q).sum(axis=1) / 2) ** 2))
            too_large += state.result().rms_error_lower > truth
        assert too_large <= scipy.stats.binom.isf(1e-3, count, 0.05)


def test_the_first_label_of_probability_zero_is_named():
    p = np.tile([0.5, 0.5, 0.0], (900, 1))
    y = np.arange(900) % 2
    y[[17, 800]] = 2
    kernel = Exponential(0.5)
    pieces = [
        CalibrationState(3, kernel=kernel, n_columns=16).update(y[rows], p[rows], first_row=rows[0])
        for rows in np.array_split(np.arange(900), 3)
    ]
    found = (pieces[2] + pieces[0] + pieces[1]).calibration_test()
    assert found.log_pvalue == -math.inf
    assert found.finding == "the label of sample 17 (counted from 0) has probability 0"
    assert found.null_law.endswith(f"; {found.finding}")
    assert pieces[1].calibration_test().pvalue > 0.05


def test_weights_that_are_equal_have_the_test_without_them():
    """Beside the draws of many classes, too, where the kernel has its law; but for bounds below the draws."""
    for m, scale in ((3, 2.0), (90, 0.3)):
        y, p = problem(300, m)
        plain, weighted = (
            CalibrationState(m, kernel=Exponential(0.5), n_columns=16).update(y, p, w).calibration_test()
            for w in (None, np.full(300, scale))
        )
        assert weighted.pvalue == pytest.approx(plain.pvalue, rel=1e-6) and weighted.finding == plain.finding
        assert [block.name for block in weighted.blocks] == [block.name for block in plain.blocks]


def test_draws_without_the_weights_of_the_rows_are_refused():
    state = CalibrationState(2, kernel=Exponential(0.5), n_resamples=3).update([0] * 4097, [0.1] * 4097, [0.3] * 4097)
    assert CalibrationState.from_bytes(state.to_bytes()) == state
    content = unpack(state.to_bytes(), "state")
    content.arrays["drawn_fractions"] = content.arrays["drawn_fractions"][:1]
    with pytest.raises(ValueError, match="the array 'drawn_fractions' has shape"):
        CalibrationState.from_bytes(pack_content(content))
    del content.arrays["drawn_fractions"]
    with pytest.raises(ValueError, match="the rows have weights, but not the draws of their labels; make the state"):
        CalibrationState.from_bytes(pack_content(content))
