"""Binned calibration errors: by hand, against slow literal loops, and against other packages."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from problems import softmax_problem

import kcalib
from kcalib import _native
from kcalib._input.labels import prepare
from kcalib.estimators import binning
from kcalib.estimators.binning import Binning
from kcalib.estimators.event_bins import Sample, cut

BINNINGS = ("uniform", "equal_mass", "median_variance")


# -- slow and literal: bins as lists of samples ---------------------------------------------------


def uniform_lists(c, n_bins):
    edges = np.array([j / n_bins for j in range(n_bins + 1)])
    lists = [[i for i, x in enumerate(c) if edges[b] < x <= edges[b + 1]] for b in range(n_bins)]
    lists[0] += [i for i, x in enumerate(c) if x == 0]
    return [rows for rows in lists if rows]


def equal_mass_lists(c, n_bins):
    """By interpolated quantiles, in exact arithmetic: NumPy's are off by rounding where one is a sample."""
    ascending = [Fraction(float(x)) for x in sorted(c)]
    edges = []
    for j in range(1, n_bins):
        place = Fraction((len(c) - 1) * j, n_bins)
        low, high = ascending[math.floor(place)], ascending[math.ceil(place)]
        edges.append(low + (place - math.floor(place)) * (high - low))
    numbers = np.array([sum(edge < Fraction(float(x)) for edge in edges) for x in c])
    return [np.flatnonzero(numbers == b).tolist() for b in np.unique(numbers)]


def median_variance_lists(points, n_bins, min_size):
    """Split the bin with the largest variance of a coordinate at that coordinate's median, or at that of the next."""
    points = np.asarray(points)
    open_, closed = [list(range(len(points)))], []
    while open_ and len(open_) + len(closed) < n_bins:
        rows = max(open_, key=lambda rows: max(np.var(points[rows], axis=0, ddof=1)) if len(rows) > 1 else -1)
        open_.remove(rows)
        parts = median_parts(points, rows, min_size)
        if parts is None:
            closed.append(rows)
        else:
            open_ += parts
    return open_ + closed


def median_parts(points, rows, min_size):
    """Two parts of a bin, both of the size; None if no coordinate has such."""
    variance = np.var(points[rows], axis=0, ddof=1) if len(rows) > 1 else np.zeros(points.shape[1])
    for axis in np.argsort(-variance, kind="stable"):
        median = sorted(points[rows, axis])[len(rows) // 2]  # any number in (the largest below it, it] splits alike
        for is_first in (np.less, np.less_equal):
            first = [i for i in rows if is_first(points[i, axis], median)]
            others = [i for i in rows if not is_first(points[i, axis], median)]
            if min(len(first), len(others)) >= min_size:
                return [first, others]
    return None


def lists_of(binning_rule, c, n_bins, min_size=10):
    if binning_rule == "uniform":
        return uniform_lists(c, n_bins)
    if binning_rule == "equal_mass":
        return equal_mass_lists(c, n_bins)
    return median_variance_lists(np.asarray(c)[:, None], n_bins, min_size)


def literal_error(c, hits, lists, norm):
    gaps = [(len(rows) / len(c), abs(np.mean(hits[rows]) - np.mean(c[rows]))) for rows in lists]
    if norm == "max":
        return max(gap for _, gap in gaps)
    power = 1 if norm == "l1" else 2
    return math.fsum(share * gap**power for share, gap in gaps) ** (1 / power)


def rounded(y, p, digits=2):
    """The problem with many equal probabilities, some of them 0 and 1."""
    p = np.round(p, digits)
    p[:, 0] += 1 - p.sum(axis=1)
    keep = (p >= 0).all(axis=1)
    return y[keep], np.abs(p[keep])


# -- by hand ------------------------------------------------------------------------------------------


def test_norms_by_hand():
    # Confidences 0.6 (wrong), 0.7 (right), 0.9 (right), 0.8 (right) of a binary problem; bins (0.5, 0.75], (0.75, 1]:
    # gaps |1/2 - 0.65| and |1 - 0.85|, the same; with one more wrong 0.9 the second is |2/3 - 2.6/3| = 0.2.
    p = [0.6, 0.7, 0.9, 0.2, 0.9]
    y = [0, 1, 1, 0, 0]
    assert kcalib.top_label_ece(y, p, n_bins=4) == pytest.approx((2 * 0.15 + 3 * 0.2) / 5)
    assert kcalib.top_label_ece(y, p, n_bins=4, norm="l2") == pytest.approx(math.sqrt((2 * 0.15**2 + 3 * 0.2**2) / 5))
    assert kcalib.top_label_ece(y, p, n_bins=4, norm="max") == pytest.approx(0.2)


def test_equal_mass_by_hand():
    # Five values, two bins: (5 - 1) * 1 // 2 + 1 = 3 in the first.
    assert Binning("equal_mass", 2).edges(np.array([0.1, 0.2, 0.3, 0.4, 0.5])).tolist() == [0, 0.3, 1]
    # The three 0.2 stay together, so that nothing is left for the second of three bins.
    assert Binning("equal_mass", 3).edges(np.array([0.1, 0.2, 0.2, 0.2, 0.5])).tolist() == [0, 0.2, 1]
    assert Binning("equal_mass", 2).edges(np.array([0.0, 0.0, 0.0, 0.4])).tolist() == [0, 0, 1]
    assert Binning("equal_mass", 3).edges(np.array([1.0, 1.0, 1.0])).tolist() == [0, 1]


def cells(p, max_bins, min_size, threads):
    """The median-variance bin of each row, and how many bins."""
    labels = np.zeros(len(p), np.int64)
    number, weight, _ = _native.median_variance_cells(p, labels, max_bins, min_size, "cityblock", threads)
    assert np.bincount(number).tolist() == weight.tolist()
    return number, len(weight)


def test_median_variance_by_hand():
    # Variances of the coordinates: 0.01, 0.0933, 0.0633. The second is split below its median 0.3: {0}, {1, 2}.
    p = np.array([[0.4, 0.1, 0.5], [0.5, 0.3, 0.2], [0.3, 0.7, 0.0]])
    assert cells(p, 2, 1, 1)[0].tolist() == [0, 1, 1]
    assert cells(p, 9, 1, 1)[0].tolist() == [0, 1, 2]
    assert cells(p, 9, 2, 1)[0].tolist() == [0, 0, 0]
    # Five samples: the third coordinate varies most; its values below the median 0.2 are samples 2 and 4.
    p = np.array([[0.4, 0.1, 0.5], [0.5, 0.3, 0.2], [0.3, 0.7, 0.0], [0.1, 0.0, 0.9], [0.8, 0.1, 0.1]])
    assert cells(p, 2, 1, 1)[0].tolist() == [0, 0, 1, 0, 1]
    assert cells(p, 9, 2, 1)[0].tolist() == [0, 0, 1, 0, 1]
    assert cells(p, 9, 3, 1)[0].tolist() == [0] * 5


def test_class_wise_by_hand():
    # Class 0: 0.1, 0.1 (one hits) and 0.7 (misses): gaps 0.4 and 0.7. Class 1 is the mirror image.
    y, p = [0, 1, 1], [[0.1, 0.9], [0.1, 0.9], [0.7, 0.3]]
    assert kcalib.class_wise_ece(y, p, n_bins=2) == pytest.approx((2 * 0.4 + 0.7) / 3)
    y, p = [0, 1, 2], np.array([[0.6, 0.3, 0.1], [0.6, 0.4, 0.0], [0.2, 0.2, 0.6]])
    result = kcalib.class_wise_ece.result(y, p, n_bins=1)
    assert result.class_values == pytest.approx([1.4 / 3 - 1 / 3, 1 / 3 - 0.9 / 3, 1 / 3 - 0.7 / 3])
    assert result.value == pytest.approx(np.mean(result.class_values))
    assert kcalib.class_wise_ece(y, p, n_bins=1, class_weight=[1, 0, 3]) == pytest.approx(
        (result.class_values[0] + 3 * result.class_values[2]) / 4
    )
    squares = np.square(result.class_values)
    assert kcalib.class_wise_ece(y, p, n_bins=1, norm="l2") == pytest.approx(math.sqrt(np.mean(squares)))
    assert kcalib.class_wise_ece(y, p, n_bins=1, norm="max") == pytest.approx(max(result.class_values))


@pytest.mark.parametrize(
    ("distance", "expected"),
    [
        ("total_variation", 0.15),
        ("cityblock", 0.3),
        ("squared_euclidean", 0.15**2 + 0.15**2),
        ("euclidean", 0.15 * math.sqrt(2)),
    ],
)
def test_canonical_distances_by_hand(distance, expected):
    # One bin: mean prediction (0.65, 0.35), mean label (1/2, 1/2).
    value = kcalib.canonical_ece([0, 1], [[0.62, 0.38], [0.68, 0.32]], n_bins=5, distance=distance)
    assert value == pytest.approx(expected)


def test_canonical_ece_of_calibrationerrors_documented_examples():
    """The trivial tests of the Julia package."""
    assert kcalib.canonical_ece([1, 0], [[0, 1], [1, 0]], n_bins=10) == 0
    assert kcalib.canonical_ece([1, 1, 0, 0], [[0, 1], [0.5, 0.5], [0.5, 0.5], [1, 0]], n_bins=10) == 0
    assert kcalib.canonical_ece([0, 0, 1, 1], np.array([0, 0.5, 0.5, 1]), n_bins=10) == 0


def test_debiased_by_hand():
    # Two bins of two: confidences 0.6 (one right), 0.9 (both right): 0.1^2 - (1/4) / 1 and 0.1^2 - 0.
    result = kcalib.debiased_ece.result([0, 1, 1, 1], [0.6, 0.6, 0.9, 0.9], n_bins=2)
    assert result.square == pytest.approx((0.01 - 0.25 + 0.01) / 2)
    assert result.value == 0
    result = kcalib.debiased_ece.result([0, 0, 0, 1, 1, 0], [0.9, 0.9, 0.9, 0.9, 0.9, 0.9], n_bins=1)
    assert result.square == pytest.approx((0.9 - 1 / 3) ** 2 - (2 / 9) / 5)
    assert result.value == pytest.approx(math.sqrt(result.square))


# -- against literal loops ------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("rule", BINNINGS)
@pytest.mark.parametrize("m", [2, 4])
def test_columns_agree_with_literal_loops(rule, m, ties):
    y, p = softmax_problem(300, m)
    if ties:
        y, p = rounded(y, p)
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
    for n_bins in (1, 4, 15):
        top, *each = (lists_of(rule, c, n_bins) for c in (confidence, *p.T))
        for norm in ("l1", "l2", "max"):
            options = {"n_bins": n_bins, "norm": norm, "binning": rule}
            expected = literal_error(confidence, correct, top, norm)
            assert kcalib.top_label_ece(y, p, **options) == pytest.approx(expected, rel=1e-12, abs=1e-14)
            classes = [literal_error(p[:, k], y == k, each[k], norm) for k in range(m)]
            power = 2 if norm == "l2" else 1
            expected = max(classes) if norm == "max" else np.mean(np.power(classes, power)) ** (1 / power)
            assert kcalib.class_wise_ece(y, p, **options) == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_cells_without_weight_are_not_occupied():
    result = kcalib.canonical_ece.result([0, 1, 0], [0.1, 0.5, 0.9], n_bins=3, sample_weight=[0, 1, 2])
    assert (result.n_occupied, sorted(result.bin_weight)) == (2, [0, 1, 2])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("m", [2, 3, 17, 60])  # of 60 classes most probabilities are in the first bin
def test_canonical_agrees_with_literal_loops(m, weighted):
    y, p = softmax_problem(400, m)
    weight = np.random.default_rng(1).uniform(size=400) if weighted else np.ones(400)
    groups = {}
    for i, row in enumerate(binning.bin_numbers(p, 4).tolist()):
        groups.setdefault(tuple(row), []).append(i)
    onehot, total = np.eye(m)[y], 0.0
    for rows in groups.values():
        gap = np.average(p[rows] - onehot[rows], axis=0, weights=weight[rows])
        total += weight[rows].sum() * np.abs(gap).sum() / 2
    value = kcalib.canonical_ece.result(y, p, n_bins=4, sample_weight=weight if weighted else None)
    assert value.value == pytest.approx(total / weight.sum(), rel=1e-12)
    assert value.n_occupied == len(groups)
    assert sorted(value.bin_weight) == pytest.approx(sorted(weight[rows].sum() for rows in groups.values()))


@pytest.mark.parametrize(
    ("n", "m", "n_bins", "weighted"),
    [
        (1, 2, 3, False), (2049, 2, 1, True), (30_000, 3, 2, True), (30_000, 3, 40, False), (6_000, 200, 1, True),
        (20_000, 60, 6, False), (20_000, 2, 10**6, True),
    ],
)  # fmt: skip
def test_cells_of_many_rows(n, m, n_bins, weighted):
    """In parts of the hashes, sums of large cells in parts of the rows: as cells that are looked up in a dictionary."""
    y, p = softmax_problem(n, m)
    weight = np.random.default_rng(1).choice([0.0, 0.3, 1.5], n) if weighted else None
    seen: dict[bytes, int] = {}
    expected = [seen.setdefault(row.tobytes(), len(seen)) for row in binning.bin_numbers(p, n_bins)]
    w = np.ones(n) if weight is None else weight
    sums = np.zeros((len(seen), m))
    np.add.at(sums, expected, w[:, None] * (p - np.eye(m)[y]))
    total = np.bincount(expected, w)
    for norm, power in (("cityblock", 1), ("euclidean", 2)):
        number, weights, gap = _native.uniform_cells(p, y, weight, n_bins, norm, 1)
        again = _native.uniform_cells(p, y, weight, n_bins, norm, 3)
        assert all(np.array_equal(*pair) for pair in zip((number, weights, gap), again, strict=True))
        assert number.tolist() == expected
        assert weights == pytest.approx(total, rel=1e-12)
        norms = np.linalg.norm(sums, power, axis=1) / np.where(total > 0, total, 1)
        assert gap == pytest.approx(norms, rel=1e-11, abs=1e-14)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("n_bins", "min_size"), [(1, 1), (7, 10), (1000, 10), (1000, 1), (20, 3)])
def test_median_variance_bins_agree_with_literal_recursion(n_bins, min_size, ties):
    rng = np.random.default_rng(0)
    # Not on the simplex, where two coordinates vary alike once the third is constant.
    points = rng.uniform(size=(200, 3)) * [0.5, 1, 0.8]
    if ties:
        points = rng.integers(0, 8, size=(200, 3)) / 8 * [0.5, 1, 0.8]
    expected = sorted(sorted(rows) for rows in median_variance_lists(points, n_bins, min_size))
    number, count = cells(points, n_bins, min_size, 2)
    assert sorted(np.flatnonzero(number == b).tolist() for b in range(count)) == expected


@pytest.mark.parametrize("kind", ["continuous", "tied", "twin columns", "saturated"])
def test_median_variance_bins_of_many_rows(kind):
    """Medians by way of a sample, sums of a cell as differences: cells as of a recursion, gaps as of their rows."""
    rng = np.random.default_rng(7)
    n = 30_000
    p = rng.uniform(size=(n, 3)) ** [1, 2, 3]
    if kind == "tied":
        p = np.round(p, 1)
    elif kind == "twin columns":
        p[:, 1] = 1 - p[:, 0]
    elif kind == "saturated":
        p = np.abs(np.eye(3)[rng.integers(0, 3, n)] - 10 ** rng.uniform(-8, -4, (n, 1)) * [0.3, 1, 0.7])
    labels = np.argmax(p, axis=1)
    number, weight, gap = _native.median_variance_cells(p, labels, 40, 50, "euclidean", 1)
    again = _native.median_variance_cells(p, labels, 40, 50, "euclidean", 2)
    assert all(np.array_equal(*pair) for pair in zip((number, weight, gap), again, strict=True))
    assert weight.tolist() == np.bincount(number).tolist()
    rows = [np.flatnonzero(number == b) for b in range(len(weight))]
    means = np.array([[math.fsum(column) / len(some) for column in (p - np.eye(3)[labels])[some].T] for some in rows])
    assert gap == pytest.approx(np.sqrt((means**2).sum(1)), rel=1e-11, abs=1e-15)
    first = [int(np.argmax(number == b)) for b in range(len(weight))]
    assert first == sorted(first)
    if kind != "twin columns":  # there the two variances differ by rounding
        expected = sorted(sorted(rows) for rows in median_variance_lists(p, 40, 50))
        assert sorted(np.flatnonzero(number == b).tolist() for b in range(len(weight))) == expected


def test_cells_whose_median_is_their_minimum_are_split():
    # 60 % of the rows are one-hot for class 0, all of them wrong, and so are nine of ten others.
    n = 1000
    p = np.eye(2)[(np.arange(n) >= 600).astype(int)][:, ::-1]
    y = np.where(np.arange(n) < 600, 0, 1)
    y[::10] = 1 - y[::10]
    for columns in (p, p[:, ::-1]):
        labels = y if columns is p else 1 - y
        assert kcalib.canonical_ece(labels, columns, binning="median_variance") == pytest.approx(0.9, abs=1e-12)
    # The same of a column, and of three values of which the most frequent is the least.
    c = np.repeat([0.1, 0.5, 0.9], [70, 20, 10])
    assert Binning("median_variance", 9, 5).edges(c)[1:-1].tolist() == [0.1, 0.5]
    assert Binning("median_variance", 9, 15).edges(c)[1:-1].tolist() == [0.1]
    assert Binning("median_variance", 9, 31).edges(c)[1:-1].tolist() == []


def test_a_cell_that_the_largest_variance_does_not_split_is_split_by_the_next():
    # The first column has the largest variance, but only five rows there are others.
    p = np.zeros((100, 3))
    p[:5, 0] = 1
    p[5:, 1] = np.where(np.arange(95) < 50, 0.45, 0.55)
    p[:, 2] = 1 - p[:, 0] - p[:, 1]
    assert np.var(p, axis=0).argmax() == 0
    number, count = cells(p, 9, 10, 1)
    assert count == 2 and [len(set(number[rows])) for rows in (slice(5, 55), slice(55, 100))] == [1, 1]
    assert number[5] != number[99]


def test_canonical_ece_with_median_variance_bins():
    y, p = softmax_problem(200, 3)
    lists = median_variance_lists(p, 12, 10)
    gaps = [np.abs(np.mean(p[rows] - np.eye(3)[y[rows]], axis=0)).sum() / 2 for rows in lists]
    total = sum(len(rows) * gap for rows, gap in zip(lists, gaps, strict=True)) / len(y)
    result = kcalib.canonical_ece.result(y, p, binning="median_variance", n_bins=12)
    assert result.value == pytest.approx(total, rel=1e-12)
    assert (result.n_bins, result.n_occupied, result.min_bin_size) == (12, 12, 10)
    assert sorted(np.bincount(result.bin_number)) == sorted(map(len, lists))


# -- edges of uniform bins ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "n_bins", [1, 2, 3, 10, 15, 49, 100, 999, 1000, 98_765, pytest.param(1_000_000, marks=pytest.mark.grid)]
)
def test_compiled_bins_have_exactly_the_nearest_doubles_for_edges(n_bins):
    edges = np.array([j / n_bins for j in range(n_bins + 1)])
    c = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1), [5e-324, 1e-300]])
    c = np.clip(c, 0, 1 + 1e-7)
    sums = _native.uniform_bins(c[:, None], np.zeros(len(c), np.int64), None, n_bins, 1)
    expected = np.bincount(binning.bin_numbers(c, n_bins), minlength=n_bins)
    assert sums[1, 0].tolist() == expected.tolist()
    assert sums[2, 0].tolist() == expected.tolist()
    points, labels = np.stack([c, c], axis=1), np.zeros(len(c), np.int64)
    number, weight, _ = _native.uniform_cells(points, labels, None, n_bins, "cityblock", 1)
    assert sorted(weight.tolist()) == sorted(expected[expected > 0].tolist())
    assert len(np.unique(number * n_bins + binning.bin_numbers(c, n_bins))) == len(weight)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["uniform", "equal_mass"])
def test_number_of_bins_by_risk_of_thousands_of_classes_takes_seconds(rule):
    """Of 2000 samples and 5000 classes, 25 seconds and more if each number of bins is looked at by itself."""
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.full(5000, 0.05), 2000), rng.integers(0, 5000, 2000)
    start = time.process_time()
    kcalib.class_wise_ece(y, p, n_bins="risk", binning=rule, threads=1)
    assert time.process_time() - start < 15


def bins_everywhere(x, n_bins):
    """The bin of each value, as all that bins finds it: arrays of any library, compiled code, diagrams, states."""
    p, y = np.stack([1 - x, x], axis=1), np.ones(len(x), np.int64)
    yield binning.bin_numbers(x, n_bins)
    yield [int(_native.uniform_bins(np.array([[v]]), y[:1], None, n_bins, 1)[1, 0].argmax()) for v in x]
    sample = Sample.of(prepare(y, p))
    yield cut(sample, "uniform", n_bins)[1]
    kernel = kcalib.kernels.Exponential(0.5)
    state = [kcalib.streaming.CalibrationState(2, kernel=kernel, n_bins=n_bins).update([1], row[None]) for row in p]
    yield [int(one._totals().cells[2, :, 0].argmax()) for one in state]


def test_edges_are_the_nearest_doubles_and_comparison_is_exact():
    every = [(j, n) for n in range(1, 101) for j in range(1, n + 1)]
    assert sum(np.linspace(0, 1, n + 1)[j] < j / n for j, n in every) == 538
    for n in range(1, 101):
        edges = np.array([j / n for j in range(1, n + 1)])
        assert binning.bin_numbers(edges, n).tolist() == list(range(n))
        assert binning.bin_edges(n)[1:].tolist() == edges.tolist()
        sums = _native.uniform_bins(edges[:, None], np.zeros(n, np.int64), None, n, 1)[1, 0]
        beyond = _native.uniform_bins(np.nextafter(edges, 2)[:, None], np.zeros(n, np.int64), None, n, 1)[1, 0]
        assert sums.tolist() == [1] * n and beyond.tolist() == ([0] + [1] * (n - 2) + [2] if n > 1 else [1])
    five_sixths = kcalib.top_label_ece.result([1], [5 / 6], n_bins=6).bins[0]
    assert five_sixths.weight.tolist() == [0, 0, 0, 0, 1, 0]
    for n_bins, x, expected in [(6, 5 / 6, 4), (10, 0.3, 2), (10, 0.1 + 0.2, 3), (10, 0.7, 6), (49, 48 / 49, 47)]:
        for found in bins_everywhere(np.array([x, x]), n_bins):
            assert list(found) == [expected] * 2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("m", "n_bins"), [(20, 5), (67, 15), (100, 26)])
def test_sums_of_columns_that_are_mostly_in_the_first_bin(m, n_bins, weighted):
    rng = np.random.default_rng(m)
    n = 4000
    p = rng.dirichlet(np.full(m, 0.05), size=n)
    p[:3] = np.eye(m)[[0, 1, m - 1]]
    labels = rng.integers(0, m, size=n)
    weight = rng.uniform(size=n) if weighted else np.ones(n)
    found = _native.uniform_bins(p, labels, weight if weighted else None, n_bins, 2)
    number = binning.bin_numbers(p, n_bins)
    for j in range(m):
        hits = weight * (labels == j)
        for row, values in zip(found[:, j], (weight * p[:, j], weight, hits), strict=True):
            expected = np.bincount(number[:, j], values, minlength=n_bins)
            assert row == pytest.approx(expected, rel=n * 2.0**-52, abs=0)


def test_probabilities_above_1_by_rounding_are_in_the_last_bin():
    p = np.array([[-0.0, 1 + 5e-7], [0.0, 1.0]])
    assert kcalib.top_label_ece([1, 1], p, n_bins=1_000_000) == pytest.approx(0, abs=1e-6)


# -- invariants -------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 100])
def test_same_bits_for_any_number_of_threads(m):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(m, 0.3), size=120_000 // m) if m > 1 else rng.uniform(size=150_000)
    y = rng.integers(max(m, 2), size=len(p))
    weight = rng.uniform(size=len(p))
    for call in (
        lambda t: kcalib.top_label_ece(y, p, threads=t),
        lambda t: kcalib.class_wise_ece(y, p, threads=t),
        lambda t: kcalib.class_wise_ece(y, p, binning="equal_mass", threads=t),
        lambda t: kcalib.class_wise_ece(y, p, sample_weight=weight, threads=t),
        lambda t: kcalib.canonical_ece(y, p, n_bins=3, threads=t),
        lambda t: kcalib.canonical_ece(y, p, n_bins=30, binning="median_variance", threads=t),
        lambda t: kcalib.mmce(y, p, threads=t),
    ):
        assert len({call(threads) for threads in (1, 2, 7)}) == 1


@pytest.mark.parametrize("function", [kcalib.top_label_ece, kcalib.class_wise_ece, kcalib.canonical_ece])
def test_integer_weights_are_repeated_samples(function):
    y, p = softmax_problem(200, 3)
    weight = np.random.default_rng(0).integers(0, 4, size=200)
    for norm in ("l1", "l2", "max"):
        repeated = function(np.repeat(y, weight), np.repeat(p, weight, axis=0), n_bins=5, norm=norm)
        assert function(y, p, n_bins=5, norm=norm, sample_weight=weight) == pytest.approx(repeated, rel=1e-12)


def test_equal_mass_with_weights():
    # Half of the weight before the last is reached at 0.1 (3 of 6): gaps |1 - 0.1| and |2 / 3 - 0.3|, each half.
    options = {"binning": "equal_mass", "n_bins": 2, "lens": kcalib.lenses.Confidence()}
    result = kcalib.top_label_ece.result([1, 1, 0, 1], [0.1, 0.2, 0.3, 0.4], sample_weight=[3, 1, 1, 1], **options)
    assert result.value == pytest.approx((0.9 + 11 / 30) / 2) and result.bins[0].edges.tolist() == [0, 0.1, 1]
    # The bins are those of the reliability diagram, for any order of rows; without a say of samples of weight 0.
    y, p = rounded(*softmax_problem(300, 3))
    weight = np.random.default_rng(0).integers(0, 4, len(y)) * 0.3
    order = np.random.default_rng(1).permutation(len(y))
    for k in range(3):
        diagram = kcalib.reliability(
            y, p, lens=kcalib.lenses.ClassWise(k), binning="equal_mass", sample_weight=weight, bands="confidence"
        )
        for rows in (order, order[weight[order] > 0]):
            result = kcalib.class_wise_ece.result(y[rows], p[rows], binning="equal_mass", sample_weight=weight[rows])
            bins = result.bins[k]
            assert bins.edges.tolist() == diagram.edges.tolist()
            for name in ("weight", "confidence"):
                np.testing.assert_allclose(getattr(bins, name), getattr(diagram, name), rtol=1e-13)
            np.testing.assert_allclose(bins.accuracy, diagram.frequency, rtol=1e-13, atol=1e-300)
    value = kcalib.class_wise_ece(y, p, binning="equal_mass")
    assert kcalib.class_wise_ece(y, p, binning="equal_mass", sample_weight=np.full(len(y), 0.3)) == pytest.approx(value)


@pytest.mark.parametrize("rule", BINNINGS)
def test_threshold_leaves_out_small_probabilities(rule):
    y, p = rounded(*softmax_problem(300, 4))
    p = p[:, [0, 1, 2, 3, 3]] * [1, 1, 1, 1, 0]  # no probability of the last class is above
    for threshold in (1e-9, 0.05, 0.3):
        rows = [np.flatnonzero(c > threshold) for c in p.T[:4]]
        lists = [lists_of(rule, p[r, k], 5) for k, r in enumerate(rows)]
        errors = [literal_error(p[r, k], y[r] == k, lists[k], "l1") for k, r in enumerate(rows)]
        result = kcalib.class_wise_ece.result(y, p, n_bins=5, binning=rule, threshold=threshold)
        assert result.class_values == pytest.approx([*errors, 0.0], rel=1e-12)
        assert result.value == pytest.approx(sum(errors) / 5) and result.threshold == threshold


@pytest.mark.parametrize("rule", BINNINGS)
def test_order_of_samples_does_not_matter(rule):
    y, p = rounded(*softmax_problem(400, 3))
    order = np.random.default_rng(0).permutation(len(y))
    for function in (kcalib.top_label_ece, kcalib.class_wise_ece):
        assert function(y, p, binning=rule) == pytest.approx(function(y[order], p[order], binning=rule), rel=1e-12)


def test_canonical_of_a_binary_problem_is_the_gap_of_the_second_class():
    y, p = softmax_problem(500, 2)
    result = kcalib.class_wise_ece.result(y, p, n_bins=10)
    # The bins (a, b] of one class are [1 - b, 1 - a) of the other: the same where no probability is an edge.
    assert kcalib.canonical_ece(y, p, n_bins=10) == pytest.approx(result.bins[1].ece, rel=1e-12)


def test_adaptive_calibration_error_as_published():
    """The formula of Nixon et al.: 12 ranges of 25 samples for each of 5 classes."""
    y, p = softmax_problem(300, 5)
    total = 0.0
    for k in range(5):
        order = np.argsort(p[:, k])
        for rows in np.array_split(order, 12):
            total += abs(np.mean(y[rows] == k) - np.mean(p[rows, k]))
    assert kcalib.class_wise_ece(y, p, n_bins=12, binning="equal_mass") == pytest.approx(total / (12 * 5), rel=1e-12)


def test_debiased_square_is_unbiased():
    """Mean over labels drawn from known probabilities, beside the error that these have with the same bins."""
    rng = np.random.default_rng(0)
    p = np.sort(rng.uniform(0.5, 1, size=60))
    truth = np.clip(p - 0.1, 0, 1)
    bins = np.array_split(np.arange(60), 6)
    exact = sum(len(rows) / 60 * np.mean(truth[rows] - p[rows]) ** 2 for rows in bins)
    # Given the predictions labels within a bin vary in probability, which the formula takes for noise; remove that.
    spread = sum(np.var(truth[rows]) / (len(rows) - 1) for rows in bins) / 6
    draws = []
    for _ in range(800):
        y = rng.uniform(size=60) < truth
        draws.append(kcalib.debiased_ece.result(y, p, n_bins=6).square)
    assert np.mean(draws) == pytest.approx(exact - spread, abs=4 * np.std(draws) / math.sqrt(800))


def test_a_result_says_what_was_done():
    y, p = softmax_problem(200, 3)
    result = kcalib.top_label_ece.result(y, p, binning="equal_mass", n_bins=8)
    assert (result.notion, result.norm, result.binning, result.n_bins) == ("top_label", "l1", "equal_mass", 8)
    assert (result.n_samples, result.n_classes, result.n_occupied, result.n_bins_source) == (200, 3, 8, "given")
    assert result.distance is result.risks is result.min_bin_size is result.class_values is None
    (bins,) = result.bins
    assert bins.weight.tolist() == [25] * 8
    assert float(result) == result.value == bins.ece
    assert bins.edges[0] == 0 and bins.edges[-1] == 1


@pytest.mark.parametrize("function", [kcalib.top_label_ece, kcalib.class_wise_ece, kcalib.canonical_ece, kcalib.mmce])
def test_any_array_library(function, xp):
    y, p = softmax_problem(60, 3)
    assert function(xp.asarray(y), xp.asarray(p)) == pytest.approx(function(y, p), rel=1e-12)


# -- number of bins by risk -----------------------------------------------------------------------


@pytest.mark.parametrize("rule", BINNINGS)
def test_risk_agrees_with_sums_over_all_pairs(rule):
    y, p = rounded(*softmax_problem(400, 3))
    result = kcalib.top_label_ece.result(y, p, n_bins="risk", binning=rule)
    c, n = p.max(axis=1), len(y)
    r = (p.argmax(axis=1) == y) - c
    fold = np.random.default_rng(0).permutation(n) % 5
    for n_bins, value in result.risks[::9]:
        risks = []
        for k in range(5):
            train, test = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
            if rule == "uniform":
                edges = np.array([j / n_bins for j in range(n_bins + 1)])
            else:
                edges = np.sort([0, *(c[train][rows].max() for rows in lists_of(rule, c[train], n_bins))])
                edges[-1] = 1
            numbers = np.searchsorted(edges[1:-1], c)
            gaps = []
            for i in test:
                rows = [j for j in train if numbers[j] == numbers[i]] or train
                gaps.append(np.mean(r[rows]))
            square = (np.outer(r[test], r[test]) - np.outer(gaps, gaps)) ** 2
            risks.append((square.sum() - np.trace(square)) / (len(test) * (len(test) - 1)))
        assert value == pytest.approx(np.mean(risks), rel=1e-11)
    assert result.n_bins == min(result.risks, key=lambda risk: risk.value).n_bins
    assert result.n_bins_source == "risk"
    assert result.value == kcalib.top_label_ece(y, p, n_bins=result.n_bins, binning=rule)


def test_risk_takes_many_bins_where_the_error_is_fine():
    rng = np.random.default_rng(0)
    c = rng.uniform(0.5, 1, size=20_000)
    coarse = rng.uniform(size=20_000) < c - 0.2
    fine = rng.uniform(size=20_000) < c + 0.3 * np.sin(60 * np.pi * c) * (1 - c)
    few = kcalib.top_label_ece.result(coarse, c, n_bins="risk")
    many = kcalib.top_label_ece.result(fine, c, n_bins="risk")
    assert few.n_bins < 30 < many.n_bins


def test_class_wise_risk_is_the_weighted_mean_over_classes():
    y, p = softmax_problem(300, 3)
    one = [kcalib.class_wise_ece.result(y, p, n_bins="risk", class_weight=np.eye(3)[k]).risks for k in range(3)]
    both = kcalib.class_wise_ece.result(y, p, n_bins="risk", class_weight=[1, 0, 3]).risks
    expected = [(a.value + 3 * c.value) / 4 for a, c in zip(one[0], one[2], strict=True)]
    assert [risk.value for risk in both] == pytest.approx(expected, rel=1e-12)


# -- other packages -------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "rule"), [("uniform", "uniform"), ("quantile", "equal_mass")])
def test_scikit_learn_calibration_curve(strategy, rule):
    calibration = pytest.importorskip("sklearn.calibration")
    y, p = softmax_problem(1010, 2)  # 1009 is prime: no quantile is a sample, which rounding would move
    for n_bins in (5, 15):
        share, mean = calibration.calibration_curve(y, p[:, 1], n_bins=n_bins, strategy=strategy)
        bins = kcalib.class_wise_ece.result(y, p, n_bins=n_bins, binning=rule).bins[1]
        used = bins.weight > 0
        np.testing.assert_allclose(bins.accuracy[used], share, rtol=1e-12)
        np.testing.assert_allclose(bins.confidence[used], mean, rtol=1e-12)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_torchmetrics(norm):
    functional = pytest.importorskip("torchmetrics.functional.classification")
    torch = pytest.importorskip("torch")
    y, p = softmax_problem(2000, 4)
    theirs = functional.multiclass_calibration_error(
        torch.as_tensor(p), torch.as_tensor(y), num_classes=4, n_bins=15, norm=norm
    )
    assert kcalib.top_label_ece(y, p, norm=norm) == pytest.approx(float(theirs), abs=1e-6)  # float32
    # In binary problems it takes the probability of the second class.
    y, p = softmax_problem(2000, 2)
    second = torch.as_tensor(p[:, 1].copy())
    theirs = functional.binary_calibration_error(second, torch.as_tensor(y), n_bins=15, norm=norm)
    bins = kcalib.class_wise_ece.result(y, p).bins[1]
    assert bins.error(norm) == pytest.approx(float(theirs), abs=1e-6)


def test_verified_calibration():
    """Kumar et al.'s formula with their bins: chunks of ceil(n / bins) sorted samples."""
    y, p = softmax_problem(450, 3)  # 15 bins of 30

    def square(c, hits):
        total = 0.0
        for rows in np.split(np.argsort(c), 15):
            share = np.mean(hits[rows])
            total += ((np.mean(c[rows]) - share) ** 2 - share * (1 - share) / (len(rows) - 1)) / 15
        return total

    top = kcalib.debiased_ece.result(y, p)
    assert top.square == pytest.approx(square(p.max(axis=1), p.argmax(axis=1) == y), rel=1e-10)
    marginal = kcalib.debiased_ece.result(y, p, notion="class_wise")
    squares = [square(p[:, k], y == k) for k in range(3)]
    assert marginal.square == pytest.approx(np.mean(squares), rel=1e-10)
    weighted = kcalib.debiased_ece.result(y, p, notion="class_wise", class_weight=[2, 1, 1])
    assert weighted.square == pytest.approx((2 * squares[0] + squares[1] + squares[2]) / 4, rel=1e-10)


# -- bad input --------------------------------------------------------------------------------------

Y, P = softmax_problem(20, 3)
SMALL_BINS, WEIGHTS = {"binning": "median_variance"}, {"sample_weight": np.ones(20)}


@pytest.mark.parametrize(
    ("function", "options", "error", "message"),
    [
        ("top_label_ece", {"n_bins": 0}, ValueError, "`n_bins` is 0, expected an integer between 1 and 1000000"),
        ("top_label_ece", {"n_bins": 1.5}, TypeError, "`n_bins` is 1.5, expected an integer"),
        ("top_label_ece", {"n_bins": "best"}, ValueError, "`n_bins` is 'best', expected an integer or 'risk'"),
        ("canonical_ece", {"n_bins": "risk"}, TypeError, "`n_bins` is 'risk', expected an integer"),
        ("top_label_ece", {"norm": "l3"}, ValueError, "`norm` is 'l3', expected one of"),
        ("canonical_ece", {"norm": 1}, ValueError, "`norm` is 1, expected one of"),
        ("top_label_ece", {"binning": "width"}, ValueError, "`binning` is 'width', expected one of"),
        ("canonical_ece", {"binning": "equal_mass"}, ValueError, "`binning` is 'equal_mass', expected one of"),
        ("canonical_ece", {"distance": "l1"}, ValueError, "`distance` is 'l1', expected one of"),
        ("top_label_ece", {"binning": "equal_mass", "n_bins": 21}, ValueError, "`n_bins` is 21, but there are 20"),
        ("top_label_ece", {"min_bin_size": 3}, ValueError, "`min_bin_size` is 3, but binning='uniform' has no such"),
        ("canonical_ece", SMALL_BINS | {"min_bin_size": 21}, ValueError, "`min_bin_size` is 21, but there are 20"),
        ("canonical_ece", SMALL_BINS | {"min_bin_size": 0}, ValueError, "`min_bin_size` is 0"),
        ("class_wise_ece", SMALL_BINS | WEIGHTS, ValueError, "use binning='uniform' or binning='equal_mass'"),
        ("canonical_ece", SMALL_BINS | WEIGHTS, ValueError, "counts samples; use binning='uniform'$"),
        ("class_wise_ece", {"threshold": 1.0}, ValueError, "`threshold` is 1.0, expected a number between 0 and 1"),
        ("class_wise_ece", {"threshold": 0.999}, ValueError, "`threshold` is 0.999, and no probability is larger"),
        ("class_wise_ece", {"threshold": 0.1, "n_bins": "risk"}, ValueError, "no meaning for n_bins='risk'"),
        ("top_label_ece", {"n_bins": "risk", **WEIGHTS}, ValueError, "no meaning for n_bins='risk'"),
        ("class_wise_ece", {"class_weight": [1, 2]}, ValueError, r"`class_weight` has shape \(2,\), expected \(3,\)"),
        ("class_wise_ece", {"class_weight": [1, -1, 1]}, ValueError, r"`class_weight\[1\]` is -1.0, expected a finite"),
        ("class_wise_ece", {"class_weight": [0, 0, 0]}, ValueError, "`class_weight` sums to 0.0, expected a positive"),
        ("class_wise_ece", {"class_weight": ["a", "b", "c"]}, TypeError, "`class_weight` has dtype"),
        ("class_wise_ece", {"class_weight": [1, 1, 1], "norm": "max"}, ValueError, "norm='max' has no weights"),
        ("debiased_ece", {"class_weight": [1, 1, 1]}, ValueError, "notion='top_label' has no such option"),
        ("debiased_ece", {"notion": "canonical"}, ValueError, "`notion` is 'canonical', expected one of"),
        ("debiased_ece", {"n_bins": 20}, ValueError, "holds a single sample, whose noise cannot be estimated"),
        ("debiased_ece", {"n_bins": 20, "notion": "class_wise"}, ValueError, "of class 0 holds a single sample"),
        ("class_wise_ece", {"n_bins": 30, "binning": "equal_mass"}, ValueError, "`n_bins` is 30, but there are 20"),
        ("top_label_ece", {"threads": 0}, ValueError, "`threads` is 0"),
    ],
)
def test_bad_options(function, options, error, message):
    with pytest.raises(error, match=message):
        getattr(kcalib, function)(Y, P, **options)


def test_risk_needs_ten_samples():
    with pytest.raises(ValueError, match="n_bins='risk' needs at least 10 samples, there are 9"):
        kcalib.top_label_ece(Y[:9], P[:9], n_bins="risk")


def test_wrong_options_are_told_before_sums_that_are_too_many():
    p = np.random.default_rng(0).dirichlet(np.ones(1000), size=4)
    for wrong in ({"norm": "l3"}, {"min_bin_size": 3}, {"class_weight": "z"}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            kcalib.class_wise_ece(np.arange(4), p, n_bins=1_000_000, **wrong)
    with pytest.raises(ValueError, match="sums to"):
        kcalib.class_wise_ece(np.arange(4), 2 * p, n_bins=1_000_000)


def test_too_many_sums_are_refused():
    p = np.full((2, 2000), 1 / 2000)
    with pytest.raises(MemoryError, match="sums of 2000 x 1000000 bins take 89.4 GiB of memory"):
        kcalib.class_wise_ece([0, 1], p, n_bins=1_000_000)


# -- distances between means in bins -----------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_canonical_distances_of_means(norm, weighted):
    y, p = rounded(*softmax_problem(200, 3), digits=1)
    y[:100] = p[:100].argmax(axis=1)
    w = np.random.default_rng(0).integers(0, 3, len(y)) * 1.0 if weighted else np.ones(len(y))
    options = {"n_bins": 3, "norm": norm, "sample_weight": w if weighted else None}

    def literal(distance):
        cells = {}
        for i, row in enumerate(p):
            cells.setdefault(tuple(np.ceil(row * 3 - 1e-12).clip(1)), []).append(i)
        cells = [rows for rows in cells.values() if w[rows].sum() > 0]
        means = [[np.average(a[rows], axis=0, weights=w[rows]) for a in (p, np.eye(3)[y])] for rows in cells]
        gaps = [(w[rows].sum() / w.sum(), distance(*of)) for rows, of in zip(cells, means, strict=True)]
        if norm == "max":
            return max(gap for _, gap in gaps)
        power = 1 if norm == "l1" else 2
        return sum(share * gap**power for share, gap in gaps) ** (1 / power)

    def divergence(mean, label):
        return sum(e * math.log(e / q) for q, e in zip(mean, label, strict=True) if e > 0)

    def largest(predictions, labels):
        return np.abs(predictions - labels).max(axis=1)

    found = kcalib.canonical_ece.result(y, p, distance="kullback_leibler", **options)
    assert found.distance == "kullback_leibler" and found.value == pytest.approx(literal(divergence), rel=1e-12)
    own = kcalib.canonical_ece.result(y, p, distance=largest, **options)
    assert own.distance == "largest"
    assert own.value == pytest.approx(literal(lambda a, b: np.abs(a - b).max()), rel=1e-12)
    squares = kcalib.canonical_ece(y, p, distance="squared_euclidean", **options)
    assert squares == pytest.approx(literal(lambda a, b: ((a - b) ** 2).sum()), rel=1e-12)
    assert squares == pytest.approx(kcalib.canonical_ece(y, p, distance=lambda a, b: ((a - b) ** 2).sum(1), **options))


def test_divergence_of_what_was_impossible_is_infinite():
    p = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]
    assert kcalib.canonical_ece([1, 0], p, distance="kullback_leibler") == math.inf
    assert kcalib.canonical_ece([0, 0], p, distance="kullback_leibler", norm="max") == pytest.approx(math.log(2))


@pytest.mark.parametrize("distance", [lambda a, b: a - b, lambda a, b: -np.ones(len(a)), lambda a, b: np.nan * a[:, 0]])
def test_distances_that_are_none_are_refused(distance):
    with pytest.raises(ValueError, match="`distance` returned an array of shape .* expected one number >= 0"):
        kcalib.canonical_ece([0, 1, 1], [[0.2, 0.8], [0.6, 0.4], [0.5, 0.5]], distance=distance)
