"""States are added up in every order and every grouping: the same bytes, whether bandwidths are known or not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kcalib
from kcalib.kernels import Exponential
from kcalib.streaming import CalibrationState, ComparisonState, GroupedState

OPTIONS = {"n_columns": 16, "n_resamples": 0}
SIZES = (1, 700, 1999, 850)  # together more than those whose median distance is the bandwidth


def problem(n, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(3), size=n)
    return rng.integers(3, size=n), p, rng.choice(["a", "b"], size=n)


def plain(y, p, group, **options):
    return CalibrationState(3, **OPTIONS, **options).update(y, p)


def compared(y, p, group, **options):
    return ComparisonState(3, models=("a", "b"), **OPTIONS, **options).update(y, {"a": p, "b": p[:, ::-1]})


def grouped(y, p, group, **options):
    return GroupedState(3, **OPTIONS, **options).update(y, p, group=group)


def groupings(parts):
    """Every binary tree over the parts in this order, added up."""
    if len(parts) == 1:
        yield parts[0]
    for k in range(1, len(parts)):
        for left, right in itertools.product(groupings(parts[:k]), groupings(parts[k:])):
            yield left + right


def pieces(make, sizes, **options):
    y, p, group = problem(sum(sizes))
    ends = np.cumsum(sizes)
    rows = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return [make(y[one], p[one], group[one], part=k, **options) for k, one in enumerate(rows)]


def all_sums(parts):
    """The bytes of all orders and groupings."""
    return {one.to_bytes() for order in itertools.permutations(parts) for one in groupings(list(order))}


@pytest.mark.parametrize(
    "make, sizes",
    [
        (plain, SIZES),
        (compared, (1, 300, 900, 850)),
        pytest.param(grouped, (1, 300, 900, 850), marks=pytest.mark.grid),
    ],
    ids=["state", "comparison", "groups"],
)
def test_unknown_bandwidths(make, sizes):
    parts = pieces(make, sizes)
    assert len(all_sums(parts)) == 1
    whole = parts[3] + parts[1] + parts[0] + parts[2]
    assert whole.options.kernel == Exponential() and whole.options.part == 0


@pytest.mark.parametrize("make", [plain, compared, grouped])
def test_one_of_them_knows_its_bandwidth(make):
    y, p, group = problem(40)
    parts = [*pieces(make, (5, 12)), make(y, p, group, part=3, kernel=Exponential(0.7))]
    assert len(all_sums(parts)) == 1
    assert (parts[0] + parts[2]).options.kernel == Exponential(0.7)
    parts[0].merge(parts[2])
    other = make(y, p, group, part=4, kernel=Exponential(0.6))
    for one, two in ((parts[0], other), (other, parts[0])):
        with pytest.raises(ValueError, match=r"`kernel` is Exponential.* in one state and .* in the other"):
            one + two


def test_the_bandwidth_is_that_of_the_smallest_numbers():
    """Both of a result and of an update, which goes on; in-place merging counts on in its own part."""
    first, *others = pieces(plain, SIZES)
    p = problem(sum(SIZES))[1]
    expected = kcalib.bandwidth.median_distance(p[:2000]).value
    whole = others[1].copy()
    for one in (others[0], first, others[2]):
        whole.merge(one)
    assert whole.options.part == 2 and whole.kernel is None
    assert whole.skce().bandwidth == expected and whole.kernel is None
    whole.update([0], [[0.2, 0.3, 0.5]])
    assert whole.kernel == Exponential(expected) and whole.rows[-2] == (2 * 2**40, 2 * 2**40 + 2000)


def test_sums_of_states_with_different_room_for_groups():
    y, p, group = problem(10)
    one, other = (grouped(y, p, group, part=k, max_groups=k + 2) for k in (0, 1))
    assert (one + other).max_groups == (other + one).max_groups == 3 and one + other == other + one


@pytest.mark.parametrize("make", [plain, compared, grouped])
def test_sum_of_a_list(make):
    parts = pieces(make, (40, 60, 50), kernel=Exponential(0.4))
    before = parts[0].to_bytes()
    assert sum(parts) == parts[0] + parts[1] + parts[2]
    assert parts[0].to_bytes() == before and sum(parts[:1]) is not parts[0]
    with pytest.raises(TypeError, match="unsupported operand"):
        1 + parts[0]
