"""A state for each group, against states of the groups' samples alone."""

from __future__ import annotations

import datetime
import pickle

import numpy as np
import pytest

import kcalib
from kcalib.kernels import Exponential
from kcalib.streaming import CalibrationState, GroupedState, groups

KERNEL = Exponential(0.3)
OPTIONS = {"n_columns": 32, "n_resamples": 9}


def problem(n=900, m=3, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(m), size=n)
    return rng.integers(m, size=n), p, rng.choice(["b", "a", "c d"], size=n).astype("U9")


def of_batches(y, p, group, pieces, **options):
    state = GroupedState(3, **OPTIONS | options)
    for part in np.array_split(np.arange(len(y)), pieces):
        rows = slice(part[0], part[-1] + 1)
        state.update(y[rows], p[rows], group=group[rows])
    return state


@pytest.mark.parametrize("pieces", [1, 7, 60])
def test_groups_are_states_of_their_samples(pieces):
    y, p, group = problem()
    state = of_batches(y, p, group, pieces, kernel=KERNEL)
    assert state.total == CalibrationState(3, kernel=KERNEL, **OPTIONS).update(y, p)
    assert list(state.groups) == ["a", "b", "c d"]
    for name, one in state.groups.items():
        assert one == CalibrationState(3, kernel=KERNEL, **OPTIONS).update(y[group == name], p[group == name])


@pytest.mark.parametrize("n", [900, 2100])
def test_all_groups_have_the_bandwidth_of_the_total(n):
    y, p, group = problem(n)
    state = of_batches(y, p, group, 11)
    assert state == of_batches(y, p, group, 2)
    expected = kcalib.bandwidth.median_distance(p[:2000]).value
    for one in (state.total, *state.groups.values()):
        result = one.skce()
        assert result.bandwidth == pytest.approx(expected, rel=1e-12)
        assert result.bandwidth_source == f"median euclidean distance of the first {min(n, 2000)} samples"
    kernel = Exponential(state.total.skce().bandwidth)
    alone = CalibrationState(3, kernel=kernel, **OPTIONS).update(y[group == "a"], p[group == "a"])
    assert state.groups["a"].skce().value == pytest.approx(alone.skce().value, rel=1e-12)


def test_merged_groups():
    y, p, group = problem()
    first = of_batches(y[:500], p[:500], group[:500], 3, kernel=KERNEL)
    group[600:] = "only here"
    second = of_batches(y[500:], p[500:], group[500:], 2, kernel=KERNEL, part=1)
    both = first + second
    assert both.n_samples == 900 and list(both.groups) == ["a", "b", "c d", "only here"]
    assert both.total == first.total + second.total
    assert both.groups["a"] == first.groups["a"] + second.groups["a"]
    assert both.groups["only here"].rows == second.groups["only here"].rows
    assert first.n_samples == 500
    assert GroupedState.from_bytes(both.to_bytes()).update(y[:1], p[:1], group="new").n_samples == 901


def test_states_that_do_not_know_their_bandwidth_are_merged():
    y, p, group = problem(2400)
    both = of_batches(y[:1200], p[:1200], group[:1200], 1) + of_batches(y[1200:], p[1200:], group[1200:], 1, part=1)
    assert both.total.kernel is None and len({one.kernel for one in both.groups.values()}) == 1
    both.update(y[:1], p[:1], group="a")
    assert both.total.kernel == Exponential(kcalib.bandwidth.median_distance(p[:2000]).value)
    assert {one.kernel for one in both.groups.values()} == {both.total.kernel}


def test_files(tmp_path):
    y, p, group = problem(100)
    state = of_batches(y, p, group, 3).update(y, p, group=np.arange(100) % 2)
    assert list(state.groups) == [0, 1, "a", "b", "c d"]
    state.save(tmp_path / "a.kcalib")
    for found in (
        GroupedState.load(tmp_path / "a.kcalib"),
        kcalib.streaming.load(tmp_path / "a.kcalib"),
        pickle.loads(pickle.dumps(state)),
        state.copy(),
    ):
        assert isinstance(found, GroupedState) and found == state and list(found.groups) == list(state.groups)
        assert found.update(y, p, group="a") == state.copy().update(y, p, group="a")
    with pytest.raises(ValueError, match="holds a state of the kind 'grouped', expected 'calibration'"):
        CalibrationState.load(tmp_path / "a.kcalib")


def test_what_is_shown_is_a_copy():
    y, p, group = problem(50)
    state = of_batches(y, p, group, 1)
    state.groups["a"].update(y, p)
    state.total.update(y, p)
    assert state == of_batches(y, p, group, 1)
    assert GroupedState(3).groups == {} and "3 groups" in repr(state)


def test_weights_and_single_names():
    y, p, _ = problem(50)
    w = np.linspace(0, 1, 50)
    state = GroupedState(3, kernel=KERNEL, **OPTIONS).update(y, p, w, group=7)
    assert state.groups[7] == state.total == CalibrationState(3, kernel=KERNEL, **OPTIONS).update(y, p, w)


@pytest.mark.parametrize(
    "group, error, message",
    [
        (np.zeros(49, int), ValueError, r"`group` has shape \(49,\), expected \(50,\): the group of each sample"),
        (np.zeros(50), TypeError, "`group` has dtype float64, expected integers or strings"),
        (
            np.full(50, "2024-01-31", dtype="datetime64[D]"),
            TypeError,
            r"dtype datetime64\[D\], expected integers or strings; pass strings, such as numpy.datetime_as_string",
        ),
        (
            [datetime.date(2024, 1, 31)] * 50,
            TypeError,
            r"`group\[0\]` is datetime.date\(2024, 1, 31\), .*; pass strings, such as those of date.isoformat",
        ),
        (
            ["a"] * 7 + [1] + ["a"] * 42,
            TypeError,
            r"`group\[0\]` is 'a' and `group\[7\]` is 1, expected only integers or only strings; pass strings",
        ),
        ([None] * 50, TypeError, r"`group\[0\]` is None, expected an integer or a string"),
        (["a", "a\0"] * 25, ValueError, r"`group\[1\]` is 'a.x00', expected a name that does not end with a null"),
        ([1, 2**70] * 25, ValueError, r"`group\[1\]` is 1180591620717411303424, expected an integer between -9223"),
        (2**70, ValueError, "`group` is 1180591620717411303424, expected an integer between -9223"),
        (np.full(50, 2**63, np.uint64), ValueError, r"`group\[0\]` is 9223372036854775808, expected an integer betw"),
        (
            np.arange(50),
            ValueError,
            r"with 4 there are 50 groups, expected at most max_groups=4; use larger groups",
        ),
    ],
)
def test_faults_leave_the_state_as_it_was(group, error, message):
    y, p, _ = problem(50)
    state = GroupedState(3, kernel=KERNEL, max_groups=4, **OPTIONS).update(y, p, group=np.arange(50) % 4)
    before = state.to_bytes()
    with pytest.raises(error, match=message):
        state.update(y, p, group=group)
    with pytest.raises(ValueError, match="expected a finite probability"):
        state.update(y, p * np.nan, group=0)
    with pytest.raises(TypeError, match="`other` is int, expected a GroupedState"):
        state.merge(1)
    with pytest.raises(ValueError, match="rows 0 to 49 were added already"):
        state.merge(state)
    assert state.to_bytes() == before


def test_names_of_every_kind():
    y, p, _ = problem(50)
    whether = np.arange(50) % 2 == 0
    numbers = GroupedState(3, **OPTIONS).update(y, p, group=whether.astype(int))
    for group in (whether, whether.tolist(), np.array(whether.tolist(), dtype=object)):
        state = GroupedState(3, **OPTIONS).update(y, p, group=group)
        assert state == numbers and state.groups[True] == state.groups[1]
    words = np.where(whether, "yes", "no")
    assert list(GroupedState(3, **OPTIONS).update(y, p, group=words.astype(object)).groups) == ["no", "yes"]
    assert list(GroupedState(3, **OPTIONS).update(y, p, group=np.int64(4)).groups) == [4]
    with pytest.raises(TypeError, match="unexpected keyword argument 'bins'"):
        GroupedState(3, bins=4)


def test_an_empty_batch_adds_nothing():
    y, p, group = problem(50)
    state = of_batches(y, p, group, 1)
    for none in (group[:0], "new", []):
        assert state.copy().update(y[:0], p[:0], group=none) == state


@pytest.mark.parametrize("p", [np.array([[0.2, 0.3, 0.5]]), np.full((3, 3), 1 / 3)])
def test_groups_without_a_bandwidth_are_shown(p):
    state = GroupedState(3, **OPTIONS).update(np.zeros(len(p), int), p, group="a")
    assert state.groups["a"].scores().n_samples == len(p) and state.groups["a"].kernel is None


def test_no_memory_for_further_groups(monkeypatch):
    y, p, group = problem(50)
    monkeypatch.setattr(groups, "check_memory", lambda needed, *a: exec("raise MemoryError(str(needed))"))
    draws = 9
    of_kernels, of_cells = 16 * 32 * 3 * (1 + 1.25 * draws), 8 * (3 * 512 + 512) * draws
    with pytest.raises(MemoryError, match=str(int(3 * (of_kernels + of_cells)))):
        GroupedState(3, **OPTIONS).update(y, p, group=group)
