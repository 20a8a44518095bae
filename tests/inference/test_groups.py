"""`worst_groups`: sums by hand, the family-wise level, what it finds, and what it refuses."""

import numpy as np
import pytest
import scipy.stats

import kcalib


def labels_of(p, rng):
    return (p.cumsum(axis=1)[:, :-1] <= rng.uniform(size=(len(p), 1))).sum(axis=1)


def test_gaps_by_hand():
    y = np.array([1, 0, 1, 1, 0, 0])
    p = np.array([0.5, 0.5, 0.75, 0.25, 0.25, 0.25])
    result = kcalib.worst_groups(y, p, {"sex": ["f", "f", "m", "m", "m", None]}, min_size=2, n_resamples=19, seed=0)
    groups = {group.group: group for group in result.groups}
    assert set(groups) == {"sex=f", "sex=m"} and result.n_left_out == 1
    assert groups["sex=f"].gap == 0 and groups["sex=f"].n_samples == 2
    assert groups["sex=m"].gap == pytest.approx((0.75 + 0.25 + 0.25 - 2) / 3)
    variance = (0.75 * 0.25 * 3) / 3
    z = scipy.stats.norm.isf(0.05 / 2 / 2) + scipy.stats.norm.ppf(0.8)
    assert groups["sex=m"].minimum_detectable_error == pytest.approx(z * np.sqrt(variance / 3))


def test_crossings_hold_the_samples_of_both():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=400)
    y, a, b = labels_of(p, rng), rng.integers(0, 2, 400), rng.choice(["x", "y"], 400)
    result = kcalib.worst_groups(y, p, {"a": a, "b": b}, n_resamples=19, seed=0)
    groups = {group.group: group for group in result.groups}
    assert len(groups) == 2 + 2 + 4
    chosen = (a == 1) & (b == "x")
    crossed = groups["a=1, b=x"]
    assert crossed.n_samples == chosen.sum()
    confidence, hit = p[chosen].max(axis=1), y[chosen] == p[chosen].argmax(axis=1)
    assert crossed.gap == pytest.approx(np.mean(confidence - hit), abs=1e-12)
    assert len(kcalib.worst_groups(y, p, {"a": a, "b": b}, max_crossed=1, n_resamples=19, seed=0).groups) == 4


def test_family_wise_level():
    count, smallest = 80, []
    for number in range(count):
        rng = np.random.default_rng(number)
        p = rng.beta(0.4, 4, size=150)
        y = rng.uniform(size=150) < p
        groups = {name: rng.integers(0, 4, 150) for name in "ab"}
        result = kcalib.worst_groups(y, p, groups, min_size=5, n_resamples=39, seed=number)
        smallest.append(min(group.pvalue_adjusted for group in result.groups))
        assert smallest[-1] == result.pvalue
    for level in (0.05, 0.2):
        assert np.sum(np.array(smallest) <= level) <= scipy.stats.binom.isf(1e-4, count, level)


def test_the_group_that_is_wrong_is_found():
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.full(4, 0.5), size=3000)
    site, age = rng.choice(["a", "b", "c"], 3000), rng.choice(["old", "young"], 3000)
    wrong = (site == "b") & (age == "old")
    q = np.where(wrong[:, None], p**0.5 / (p**0.5).sum(axis=1, keepdims=True), p)
    result = kcalib.worst_groups(labels_of(q, rng), p, {"site": site, "age": age}, seed=0)
    worst = result.groups[0]
    assert worst.group == "site=b, age=old" and worst.pvalue_adjusted <= 0.01 and worst.finding == "over-confident"
    assert worst.gap > worst.minimum_detectable_error > 0
    assert worst.confidence_interval.low > 0
    right = [group for group in result.groups if "b" not in group.group and "old" not in group.group]
    assert right and all(group.pvalue_adjusted > 0.05 for group in right)
    assert "site=b, age=old" in str(result) and "over-confident" in str(result)


def test_threads_and_frames_do_not_matter():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(3), size=300)
    y, a = labels_of(p, rng), rng.integers(0, 3, 300)
    one = kcalib.worst_groups(y, p, {"a": a}, seed=0, threads=1)
    assert one == kcalib.worst_groups(y, p, pandas.DataFrame({"a": a}), seed=0, threads=2)


def test_values_of_categories():
    pandas = pytest.importorskip("pandas")
    y, p = np.arange(80) % 2, np.full(80, 0.5)
    columns = {
        "text": pandas.array(["a", None] * 40, dtype="string"),
        "day": np.repeat(np.array(["2026-01-01", "NaT"], dtype="datetime64[D]"), 40),
        "bytes": np.array([b"x", b"y"] * 40),
        "number": np.array([1.0, np.nan] * 40),
    }
    result = kcalib.worst_groups(y, p, columns, max_crossed=1, n_resamples=9, seed=0)
    assert {group.group for group in result.groups} == {
        "text=a", "text=missing", "day=2026-01-01", "day=missing", "bytes=x", "bytes=y", "number=1.0", "number=missing",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "options", "error", "message"),
    [
        ([1, 2, 3, 4], {}, TypeError, "`groups` is a list, expected a mapping of names"),
        ({}, {}, TypeError, "`groups` is empty, expected a mapping of names"),
        ({"a": [1, 2, 3]}, {}, ValueError, r"`groups\['a'\]` has the shape \(3,\), expected \(4,\)"),
        ({"a": [1, 1, 2, 2]}, {}, ValueError, "no group of at least 30 samples"),
        ({"a": [1, 1, 2, 2]}, {"min_size": 1}, ValueError, "`min_size` is 1"),
        ({"a": [1, 1, 2, 2]}, {"max_crossed": 0}, ValueError, "`max_crossed` is 0"),
        ({"a": [1, 1, 2, 2]}, {"level": 2}, ValueError, "`level` is 2"),
    ],
)
def test_bad_input(groups, options, error, message):
    with pytest.raises(error, match=message):
        kcalib.worst_groups([0, 1, 1, 0], [0.2, 0.6, 0.7, 0.4], groups, **options)


def test_numbers_are_no_categories():
    rng = np.random.default_rng(4)
    p = rng.uniform(size=200)
    with pytest.raises(ValueError, match="has 200 different values, expected at most 100; cut"):
        kcalib.worst_groups(rng.uniform(size=200) < p, p, {"age": rng.normal(size=200)})
