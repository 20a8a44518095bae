"""Sums of random features: against double sums over all pairs with the feature kernel written out."""

from __future__ import annotations

import concurrent.futures
import itertools
import math
import multiprocessing
from fractions import Fraction

import numpy as np
import pytest
from interrupts import stops_within_a_second
from problems import saturated_predictions

from kcalib import _native
from kcalib._backend import arrays
from kcalib._input.labels import prepare
from kcalib._pairs import feature_sums
from kcalib._pairs.feature_sums import compiled, drawn_label_totals, feature_rows, gram, row_forms, sum_products
from kcalib._pairs.features import FeatureMap
from kcalib._pairs.label_cells import EXPONENTS, LabelCells, TemperatureSums


def any_map(n_frequencies: int, d: int, factors: int = 0, n_groups: int = 2, seed: int = 0) -> FeatureMap:
    """Cauchy frequencies, some of them large."""
    rng = np.random.default_rng(seed)
    return FeatureMap(
        rng.standard_cauchy((n_frequencies, d)),
        rng.uniform(0.05, 0.2, n_frequencies),
        rng.normal(size=(factors, n_frequencies, d)),
        rng.normal(size=(factors, n_frequencies)),
        np.sort(np.arange(n_frequencies) % n_groups),
    )


def literal_features(feature_map: FeatureMap, points: np.ndarray) -> np.ndarray:
    """phi of each row by the formula of the class, a column after the other."""
    points = np.asarray(points, dtype=np.longdouble)
    cosines, sines = [], []
    for f, (w, amplitude) in enumerate(zip(feature_map.frequencies, feature_map.amplitudes, strict=True)):
        size = np.full(len(points), amplitude, dtype=np.longdouble)
        for projection, offset in zip(feature_map.projections, feature_map.offsets, strict=True):
            size = size * ((points * projection[f]).sum(axis=1) + offset[f])
        phase = (points * w).sum(axis=1)
        cosines.append(size * np.cos(phase))
        sines.append(size * np.sin(phase))
    return np.stack(cosines + sines, axis=1)


def literal_total(features: np.ndarray, target_features: np.ndarray) -> np.longdouble:
    """The sum over pairs i != j of <phi_i, phi_j> <a_i, a_j>."""
    h = (features @ features.T) * (target_features @ target_features.T)
    np.fill_diagonal(h, 0)
    return h.sum()


def residuals(y: np.ndarray, p: np.ndarray, root: np.ndarray | None = None) -> np.ndarray:
    e = (np.arange(p.shape[1]) == y[:, None]) - p.astype(np.longdouble)
    return e if root is None else e @ root


PREDICTIONS = {
    "diffuse": lambda rng, n, m: rng.dirichlet(np.ones(m), n),
    "sparse": lambda rng, n, m: rng.dirichlet(np.full(m, 0.1), n),
    "tied": lambda rng, n, m: rng.dirichlet(np.ones(m), 3)[rng.integers(3, size=n)],
    "one-hot": lambda rng, n, m: np.where(rng.random((n, 1)) < 0.5, np.eye(m)[rng.integers(m, size=n)], 1 / m),
    "saturated": saturated_predictions,
}


def problem(name: str, n: int, m: int, seed: int = 0) -> np.ndarray:
    return PREDICTIONS[name](np.random.default_rng(seed), n, m)


SIZES = [(1, 2), (7, 3), (90, 2), (300, 10), (129, 17), (40, 130), (30, 1000)]


@pytest.mark.parametrize(
    ("n", "frequencies", "columns", "factors"), [(1, 1, 1, 0), (5, 0, 2, 0), (130, 8, 16, 1), (700, 21, 19, 0)]
)
def test_gram_matrices(n, frequencies, columns, factors):
    rng = np.random.default_rng(n)
    feature_map, points, beside = any_map(frequencies, 4, factors), rng.random((n, 4)), rng.normal(size=(n, columns))
    z = beside if not frequencies else np.concatenate([literal_features(feature_map, points), beside], axis=1)
    rows = 300
    parts = compiled(feature_map).gram_parts(points, beside, rows, _native.RunOptions(1))
    assert len(parts) == -(-n // rows)
    for k, part in enumerate(parts):
        some = z[k * rows : (k + 1) * rows]
        assert np.max(np.abs(part - some.T @ some) / (np.abs(some).T @ np.abs(some))) < 1e-12
        np.testing.assert_array_equal(part, part.T)


def test_gram_matrices_have_the_same_bits_for_any_number_of_threads_and_memory(monkeypatch):
    rng = np.random.default_rng(0)
    feature_map, points, columns = any_map(30, 3), rng.random((5000, 3)), rng.normal(size=(5000, 5))
    one = gram(feature_map, points, columns, threads=1)
    np.testing.assert_array_equal(gram(feature_map, points, columns, threads=3), one)
    monkeypatch.setattr(feature_sums, "PARTS_BYTES", 0)
    np.testing.assert_array_equal(gram(feature_map, points, columns, threads=1), one)


@pytest.mark.parametrize("name", PREDICTIONS)
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_totals_of_drawn_labels(name, n, m):
    p = problem(name, n, m)
    data = prepare(np.zeros(n, int), p)
    feature_map = any_map(11, m)
    phi = literal_features(feature_map, p)
    found = drawn_label_totals(feature_map, p, 4, 5, first=3)
    for r, total in enumerate(found):
        target_features = residuals(data.draw(5, 3 + r).labels, p)
        scale = (phi**2).sum(axis=1) @ (target_features**2).sum(axis=1) + ((phi.T @ target_features) ** 2).sum()
        assert abs(total - literal_total(phi, target_features)) < 1e-12 * scale


@pytest.mark.parametrize(("m", "rank"), [(2, 1), (2, 2), (6, 1), (6, 3), (6, 6), (140, 3)])
def test_a_matrix_on_the_labels(m, rank):
    rng = np.random.default_rng(rank)
    p, root = problem("sparse", 150, m), rng.normal(size=(m, rank))
    data, points = prepare(np.zeros(150, int), p), rng.normal(size=(150, 2))
    feature_map = any_map(9, 2, factors=1)
    phi = literal_features(feature_map, points)
    found = drawn_label_totals(feature_map, p, 3, 8, root=root, points=points)
    expected = [float(literal_total(phi, residuals(data.draw(8, r).labels, p, root))) for r in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize(("n", "m"), [(3000, 3), (700, 10), (90, 150)])
@pytest.mark.parametrize("factors", [0, 1])
def test_threads_do_not_change_bits(n, m, factors):
    """As many as there are rows for, and with tiles, parts and draws that do not divide evenly."""
    rng = np.random.default_rng(m)
    p = np.concatenate([problem("sparse", n // 2, m), problem("diffuse", n - n // 2, m)])
    feature_map, target_features = any_map(21, m, factors, n_groups=4), rng.normal(size=(n, 3))
    root = rng.normal(size=(m, 2))
    sums, own = sum_products(feature_map, p, target_features, threads=1)
    forms, own_rows = row_forms(feature_map, p, target_features, sums, threads=1)
    cells = LabelCells.for_classes(m)
    counted = cells.drawn_zeros(150)
    totals, matrix = (
        drawn_label_totals(feature_map, p, 150, 5, root=r, threads=1, cells=c)
        for r, c in ((None, counted), (root, None))
    )
    for threads in (2, 5):  # that make features each, and together
        found = sum_products(feature_map, p, target_features, threads=threads)
        rows = row_forms(feature_map, p, target_features, sums, threads=threads)
        again = cells.drawn_zeros(150)
        drawn = [
            drawn_label_totals(feature_map, p, 150, 5, root=r, threads=threads, cells=c)
            for r, c in ((None, again), (root, None))
        ]
        np.testing.assert_array_equal(again.counts, counted.counts)
        np.testing.assert_array_equal(again.log_scores.limbs(), counted.log_scores.limbs())
        for one, other in zip((*found, *rows, *drawn), (sums, own, forms, own_rows, totals, matrix), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("m", [2, 10, 128, 129, 256, 257, 1000])
def test_draws_do_not_depend_on_those_beside_them(m):
    """Draws go in batches, and labels are found in ways that depend on the number of classes: each total is that of its
    own number."""
    p, feature_map = problem("sparse", 70, m), any_map(11, m)
    totals = drawn_label_totals(feature_map, p, 60, 5)
    assert len(np.unique(totals)) > 50
    for first, count in ((0, 1), (17, 3), (59, 1)):
        found = drawn_label_totals(feature_map, p, count, 5, first=first)
        np.testing.assert_array_equal(found, totals[first : first + count])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("m", [2, 9, 129, 300])
def test_cells_of_labels(m, weighted, cupy):
    """The drawn and the observed labels in cells of their classes, and those that are the most probable class."""
    n, rng = 70, np.random.default_rng(m)
    p = problem("sparse", n, m)
    w = rng.integers(1, 5, n) / 4 if weighted else None
    feature_map, cells = any_map(8, m), LabelCells.for_classes(m)
    data, phi = prepare(rng.integers(m, size=n), p), literal_features(feature_map, p)
    weights = np.ones(n) if w is None else w
    lower = cells.ends[0]

    def cell_of(k, value):
        """The last cell of class k, or of the largest probability, whose lower end is at most the value."""
        first, end = (k * cells.n_cells, (k + 1) * cells.n_cells) if k is not None else (m * cells.n_cells, cells.size)
        return max(c for c in range(first, end) if lower[c] <= value)

    numbers = [[cell_of(k, row[k]) for k in range(m)] for row in p]
    tops = [int(np.argmax(row)) for row in p]
    top_numbers = [cell_of(None, row[top]) for row, top in zip(p, tops, strict=True)]

    def count(labels):
        counts, score = np.zeros(cells.size), 0.0
        for i, label in enumerate(labels):
            counts[numbers[i][label]] += weights[i]
            counts[top_numbers[i]] += weights[i] * (label == tops[i])
            score += weights[i] * math.log(max(p[i, label], 1e-12))
        return counts, score

    for points, of_rows in ((p, w), (cupy.asarray(p), None if w is None else cupy.asarray(w))):
        drawn = cells.drawn_zeros(8)
        totals = drawn_label_totals(feature_map, points, 8, 5, first=2, cells=drawn, weights=of_rows)
        for b in range(8):
            labels = data.draw(5, 2 + b).labels
            expected = literal_total(phi * weights[:, None], residuals(labels, p))
            assert totals[b] == pytest.approx(float(expected), rel=1e-9, abs=1e-9)
            counts, score = count(labels)
            np.testing.assert_array_equal(drawn.counts[b], counts)
            assert drawn.log_scores.to_float()[b] == pytest.approx(score, rel=1e-12)
        sums = cells.sum(points, data.labels, of_rows)
        found, logs = sums.cells.to_float(), sums.logs.to_float()
        counts, score = count(data.labels)
        np.testing.assert_array_equal(found[:, 1], counts)
        assert logs[0] == pytest.approx(score, rel=1e-12)
        masses, sides, variances = np.zeros((3, cells.size))
        means, log_variance = 0.0, 0.0
        for i, row in enumerate(p):
            for c, value in [*zip(numbers[i], row, strict=True), (top_numbers[i], row[tops[i]])]:
                masses[c] += weights[i]
                sides[c] += weights[i] * min(value, 1 - value)
                variances[c] += weights[i] ** 2 * value * (1 - value)
            log_p = np.log(np.maximum(row, 1e-12))
            means += weights[i] * (row @ log_p)
            log_variance += weights[i] ** 2 * (row @ (log_p - row @ log_p) ** 2)
        np.testing.assert_array_equal(found[:, 0], masses)
        np.testing.assert_allclose(found[:, 2], sides, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found[:, 3], variances, rtol=1e-12, atol=1e-14)
        assert tuple(logs[1:]) == pytest.approx((means, log_variance), rel=1e-12)


@pytest.mark.parametrize("m", [2, 5])
def test_sums_over_maps_of_the_temperature(m):
    p = np.concatenate([problem("sparse", 60, m), problem("one-hot", 20, m), problem("saturated", 20, m)])
    p[5, :2] = 1e-20, p[5, :2].sum()
    y = np.random.default_rng(1).integers(m, size=100)
    found = TemperatureSums.of(p, y, 2).sums.to_float()
    logarithms = np.log(np.maximum(p, 1e-12))
    for t, sums in zip(EXPONENTS, found, strict=True):
        powers = p * np.exp((t - 1) * logarithms)
        totals = powers.sum(axis=1)
        change = powers / totals[:, None] - p
        distance, raised = np.abs(change).sum(axis=1) / 2, change > 1e-12 * p
        share = (p * raised).sum(axis=1)
        x = distance * (raised[np.arange(100), y] - share)
        cumulants = np.log(totals) - (t - 1) * (p * logarithms).sum(axis=1)
        squares = distance**2
        expected = [value.sum() for value in (cumulants, x, x**2, squares * share * (1 - share), squares)]
        np.testing.assert_allclose(sums, expected, rtol=1e-9, atol=1e-11)


def test_cells_of_parts_add_up_to_those_of_all():
    p = np.concatenate([problem("saturated", 9000, 4), problem("sparse", 21_000, 4)])
    labels, cells = np.random.default_rng(0).integers(4, size=len(p)), LabelCells.for_classes(4)
    whole = cells.sum(p, labels, threads=2)
    parts = [cells.sum(p[begin : begin + 7001], labels[begin : begin + 7001]) for begin in range(0, len(p), 7001)]
    total = parts[3] + parts[0] + parts[4] + (parts[2] + parts[1])
    for one, other in zip((whole.cells, whole.logs), (total.cells, total.logs), strict=True):
        np.testing.assert_array_equal(one.high, other.high)
        np.testing.assert_array_equal(one.low, other.low)
    edges = cells.edges
    assert len(edges) == 511 and (np.diff(edges) >= 0).all()
    np.testing.assert_array_equal(edges, 1 - edges[::-1])
    bins = cells.join(whole.cells.to_float()[:, 0], 10, 15)
    assert (np.diff(bins) >= 0).all()
    sizes = np.bincount(bins, whole.cells.to_float()[:, 0], minlength=55)
    assert sizes[:40].reshape(4, 10).sum(axis=1).tolist() == [len(p)] * 4 and sizes[40:].sum() == len(p)


@pytest.mark.parametrize("factors", [0, 2])
def test_sums_and_rows(factors):
    rng = np.random.default_rng(0)
    for n, m in ((1, 2), (300, 10), (40, 70), (1100, 4)):
        p, target_features, root = problem("sparse", n, m), rng.normal(size=(n, 13)), rng.normal(size=(m, 5))
        feature_map = any_map(13, m, factors)
        parts = feature_map.frequencies, feature_map.amplitudes, feature_map.projections, feature_map.offsets
        features, options = _native.Features(*parts), _native.RunOptions(2)
        phi = literal_features(feature_map, p).astype(float)
        np.testing.assert_allclose(features.rows(p, options), phi, rtol=0, atol=1e-12 * max(1, np.abs(phi).max()))
        sums, own = features.sum_products(p, target_features, options)
        forms, own_rows = features.row_forms(p, target_features, sums, options)
        squares = (phi**2).reshape(n, 2, -1).sum(axis=1)
        sizes = (target_features**2).sum(axis=1)
        total, size = (sums**2).sum() - own.sum(), (sums**2).sum() + own.sum()
        for found, expected, scale in (
            (sums, phi.T @ target_features, np.abs(phi).T @ np.abs(target_features)),
            (own, squares.T @ sizes, squares.T @ sizes),
            (forms, ((phi @ sums) * target_features).sum(axis=1), np.abs(phi @ np.abs(sums)).max()),
            (own_rows, squares.sum(axis=1) * sizes, squares.sum(axis=1) * sizes),
            (total, float(literal_total(phi, target_features)), size),
        ):
            assert (np.abs(found - expected) <= 1e-11 * np.maximum(scale, 1e-3 * np.max(np.abs(expected)))).all()
        by_group = sum_products(feature_map, p, target_features)[1]
        expected = np.bincount(feature_map.groups, squares.T @ sizes)
        np.testing.assert_allclose(by_group, expected, rtol=1e-11)
        for matrix in (None, root):
            drawn = [
                residuals(prepare(np.zeros(n, int), p).draw(3, r).labels, p, matrix).astype(float) for r in range(5)
            ]
            expected = [float(literal_total(phi, e)) for e in drawn]
            scale = max(((phi.T @ e) ** 2).sum() + squares.sum(axis=1) @ (e**2).sum(axis=1) for e in drawn)
            found = features.drawn_label_totals(p, p, matrix, 3, 0, 5, options)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * scale)


def test_saturated_residuals_keep_their_digits():
    """Totals of residuals from 1e-8 on in exact fractions: of one frequency 0, for which phi = (a, 0) is exact."""
    p = saturated_predictions(np.random.default_rng(0), 60, 4)
    still = FeatureMap(np.zeros((1, 4)), np.ones(1), np.zeros((0, 1, 4)), np.zeros((0, 1)), np.zeros(1, int))
    data = prepare(np.zeros(60, int), p)
    drawn = [data.draw(2, r).labels for r in range(6)]
    assert sum((labels == p.argmax(axis=1)).all() for labels in drawn) >= 3  # where all residuals are small
    exact = [[Fraction(value) for value in row] for row in p.tolist()]
    for labels, found in zip(drawn, drawn_label_totals(still, p, 6, 2), strict=True):
        target_features = [
            [int(k == y) - v for k, v in enumerate(row)] for y, row in zip(labels.tolist(), exact, strict=True)
        ]
        pairs = itertools.permutations(target_features, 2)
        total = sum((a * b for one, other in pairs for a, b in zip(one, other, strict=True)), Fraction(0))
        assert abs(Fraction(found) - total) <= Fraction(1e-13) * abs(total)


def test_large_phases():
    """Heavy-tailed frequencies: without fused products a phase is off by half a unit in its last place."""
    rng = np.random.default_rng(0)
    w = 10.0 ** rng.uniform(0, 9, (64, 1)) * rng.choice([-1, 1], (64, 1))
    feature_map = FeatureMap(w, np.ones(64), np.zeros((0, 64, 1)), np.zeros((0, 64)), np.zeros(64, int))
    x = rng.random((50, 1))
    found = feature_rows(feature_map, x)
    phases = x * w.T  # as rounded
    expected = np.concatenate([np.cos(phases.astype(np.longdouble)), np.sin(phases.astype(np.longdouble))], axis=1)
    off = np.spacing(np.abs(np.tile(phases, 2))) / 2 if _native.cpu_levels()[0] == "baseline" else 0
    assert (np.abs(found - expected) < 3e-16 + off).all()
    np.testing.assert_allclose((found**2).reshape(50, 2, 64).sum(axis=1), 1, rtol=1e-15)


def totals_of(seed: int) -> list[float]:
    p = problem("diffuse", 4000, 4)
    return [
        *drawn_label_totals(any_map(24, 4), p, 130, seed, threads=2),
        *sum_products(any_map(24, 4), p, p, threads=2)[1],
    ]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_and_threads():
    """A child forked from a process whose threads have computed, and calls from several threads at once."""
    expected = totals_of(3)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(totals_of, [3] * 6)) == [expected] * 6
    if "fork" in multiprocessing.get_all_start_methods():
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply_async(totals_of, (3,)).get(timeout=60) == expected


INTERRUPTED = {
    "sums": lambda feature_map, p: sum_products(feature_map, p, p, threads=2),
    "rows": lambda feature_map, p: row_forms(feature_map, p, p, np.zeros((feature_map.n_columns, 3)), threads=2),
    "draws": lambda feature_map, p: drawn_label_totals(feature_map, p, 500, 0, threads=2),
}


@pytest.mark.parametrize("what", INTERRUPTED)
def test_interrupt_stops_within_a_second(what):
    p = problem("diffuse", 300_000, 3)
    feature_map = any_map(10_000, 3)
    stops_within_a_second(lambda: INTERRUPTED[what](feature_map, p), after=0.3)


def test_threads_on_a_gpu(cupy):
    p = cupy.asarray(problem("diffuse", 20, 3))
    for call in (
        lambda: sum_products(any_map(4, 3), p, p, threads=2),
        lambda: row_forms(any_map(4, 3), p, p, cupy.zeros((8, 3)), threads=2),
        lambda: drawn_label_totals(any_map(4, 3), p, 2, 0, threads=2),
    ):
        with pytest.raises(ValueError, match="`threads` has no effect on arrays on GPU 0; leave it out"):
            call()


def test_float32_points():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), 100).astype(np.float32)
    target_features = rng.normal(size=(100, 4))
    feature_map = any_map(10, 4)
    for found, expected in zip(
        sum_products(feature_map, p, target_features),
        sum_products(feature_map, p.astype(float), target_features),
        strict=True,
    ):
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, expected)
    single, some = target_features.astype(np.float32), np.ones((20, 4))
    found = *sum_products(feature_map, p, single), *row_forms(feature_map, p, single, some)
    target_features = single.astype(float)
    expected = *sum_products(feature_map, p, target_features), *row_forms(feature_map, p, target_features, some)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(
        drawn_label_totals(feature_map, p, 3, 0), drawn_label_totals(feature_map, p.astype(float), 3, 0)
    )


def test_no_draws():
    assert drawn_label_totals(any_map(5, 2), np.full((3, 2), 0.5), 0, 0).shape == (0,)


def test_batches_on_a_device(cupy, monkeypatch):
    p, feature_map = problem("sparse", 100, 4), any_map(6, 4)
    expected = drawn_label_totals(feature_map, cupy.asarray(p), 7, 1)
    monkeypatch.setattr("kcalib._pairs.feature_sums.LABELS", 250)
    monkeypatch.setattr("kcalib._pairs.feature_sums.TILE_ELEMENTS", 700)
    np.testing.assert_allclose(drawn_label_totals(feature_map, cupy.asarray(p), 7, 1), expected, rtol=1e-11)


def test_on_devices(xp):
    """Everything on each array library, where its arrays are."""
    p = problem("sparse", 200, 5)
    root = np.random.default_rng(0).normal(size=(5, 2))
    target_features = np.random.default_rng(1).normal(size=(200, 3))
    feature_map = any_map(10, 5, factors=1)
    there, target_features_there = (arrays.as_array(xp.asarray(a), "p") for a in (p, target_features))
    sums, own = sum_products(feature_map, p, target_features)
    forms, own_rows = row_forms(feature_map, p, target_features, sums)
    found, found_own = sum_products(feature_map, there, target_features_there)
    rows = row_forms(feature_map, there, target_features_there, found)
    assert arrays.library(found) == arrays.library(rows[0]) == arrays.library(there)
    for one, other in ((found, sums), (found_own, own), (rows[0], forms), (rows[1], own_rows)):
        np.testing.assert_allclose(arrays.to_host(one), other, rtol=1e-12, atol=1e-12 * np.abs(other).max())
    for options in ({}, {"root": root, "first": 2}):
        expected = drawn_label_totals(feature_map, p, 5, 1, **options)
        totals = drawn_label_totals(feature_map, there, 5, 1, **options)
        np.testing.assert_allclose(totals, expected, rtol=1e-11, atol=1e-12 * np.abs(expected).max())
