"""Sums of random features: against double sums over all pairs with the feature kernel written out."""

from __future__ import annotations

import numpy as np
import pytest

from kcalib._backend import arrays
from kcalib._input.labels import prepare
from kcalib._pairs.feature_sums import drawn_label_totals, feature_rows, mark_sums, row_forms
from kcalib._pairs.features import FeatureMap


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


def literal_total(features: np.ndarray, marks: np.ndarray) -> np.longdouble:
    """The sum over pairs i != j of <phi_i, phi_j> <a_i, a_j>."""
    h = (features @ features.T) * (marks @ marks.T)
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
    "saturated": lambda rng, n, m: saturated(rng, n, m),
}


def saturated(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    e = 10 ** rng.uniform(-8, -4, n)
    p = np.repeat(e[:, None], m, axis=1)
    p[np.arange(n), rng.integers(m, size=n)] = 1 - (m - 1) * e
    return p


def problem(name: str, n: int, m: int, seed: int = 0) -> np.ndarray:
    return PREDICTIONS[name](np.random.default_rng(seed), n, m)


SIZES = [(1, 2), (7, 3), (90, 2), (300, 10), (129, 17), (40, 100), (30, 1000)]


@pytest.mark.parametrize("factors", [0, 2])
@pytest.mark.parametrize(("n", "r"), [(1, 1), (3, 2), (65, 7), (1100, 10), (200, 40)])
def test_sums_and_rows(n, r, factors):
    rng = np.random.default_rng(n)
    feature_map = any_map(13, 4, factors, n_groups=3)
    points, marks = rng.random((n, 4)), rng.normal(size=(n, r))
    phi = literal_features(feature_map, points)
    np.testing.assert_allclose(feature_rows(feature_map, points), phi.astype(float), rtol=0, atol=1e-11)

    sums, own = mark_sums(feature_map, points, marks)
    scale = np.abs(phi).T @ np.abs(marks)
    assert np.max(np.abs(sums - phi.T @ marks) / scale) < 1e-12
    by_column = np.concatenate([feature_map.groups] * 2)
    expected = [((phi[:, by_column == g] ** 2).sum(axis=1) * (marks**2).sum(axis=1)).sum() for g in range(3)]
    np.testing.assert_allclose(own, np.array(expected, dtype=float), rtol=1e-12)

    forms, own_rows = row_forms(feature_map, points, marks, sums)
    error, sizes = (
        np.abs(forms - ((phi @ sums) * marks).sum(axis=1)),
        ((np.abs(phi) @ scale) * np.abs(marks)).sum(axis=1),
    )
    assert np.max(error / sizes) < 1e-12
    np.testing.assert_allclose(own_rows, ((phi**2).sum(axis=1) * (marks**2).sum(axis=1)).astype(float), rtol=1e-12)
    total = (sums**2).sum() - own.sum()
    assert abs(total - literal_total(phi, marks)) < 1e-12 * ((sums**2).sum() + own.sum())


@pytest.mark.parametrize("name", PREDICTIONS)
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_totals_of_drawn_labels(name, n, m):
    p = problem(name, n, m)
    data = prepare(np.zeros(n, int), p)
    feature_map = any_map(11, m)
    phi = literal_features(feature_map, p)
    found = drawn_label_totals(feature_map, p, 4, 5, first=3)
    for r, total in enumerate(found):
        marks = residuals(data.draw(5, 3 + r).labels, p)
        scale = (phi**2).sum(axis=1) @ (marks**2).sum(axis=1) + ((phi.T @ marks) ** 2).sum()
        assert abs(total - literal_total(phi, marks)) < 1e-12 * scale


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_a_matrix_on_the_labels(rank):
    rng = np.random.default_rng(rank)
    p, root = problem("sparse", 150, 6), rng.normal(size=(6, rank))
    data, points = prepare(np.zeros(150, int), p), rng.normal(size=(150, 2))
    feature_map = any_map(9, 2, factors=1)
    phi = literal_features(feature_map, points)
    found = drawn_label_totals(feature_map, p, 3, 8, root=root, points=points)
    expected = [float(literal_total(phi, residuals(data.draw(8, r).labels, p, root))) for r in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-10)


def test_float32_points():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), 100).astype(np.float32)
    marks = rng.normal(size=(100, 4))
    feature_map = any_map(10, 4)
    for found, expected in zip(
        mark_sums(feature_map, p, marks), mark_sums(feature_map, p.astype(float), marks), strict=True
    ):
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(
        drawn_label_totals(feature_map, p, 3, 0), drawn_label_totals(feature_map, p.astype(float), 3, 0)
    )


def test_no_draws():
    assert drawn_label_totals(any_map(5, 2), np.full((3, 2), 0.5), 0, 0).shape == (0,)


def test_on_devices(xp):
    """Everything on each array library, where its arrays are."""
    p = problem("sparse", 200, 5)
    root = np.random.default_rng(0).normal(size=(5, 2))
    marks = np.random.default_rng(1).normal(size=(200, 3))
    feature_map = any_map(10, 5, factors=1)
    there, marks_there = (arrays.as_array(xp.asarray(a), "p") for a in (p, marks))
    sums, own = mark_sums(feature_map, p, marks)
    forms, own_rows = row_forms(feature_map, p, marks, sums)
    found, found_own = mark_sums(feature_map, there, marks_there)
    rows = row_forms(feature_map, there, marks_there, found)
    assert arrays.library(found) == arrays.library(rows[0]) == arrays.library(there)
    for one, other in ((found, sums), (found_own, own), (rows[0], forms), (rows[1], own_rows)):
        np.testing.assert_allclose(arrays.to_host(one), other, rtol=1e-12, atol=1e-12 * np.abs(other).max())
    for options in ({}, {"root": root, "first": 2}):
        expected = drawn_label_totals(feature_map, p, 5, 1, **options)
        totals = drawn_label_totals(feature_map, there, 5, 1, **options)
        np.testing.assert_allclose(totals, expected, rtol=1e-11, atol=1e-12 * np.abs(expected).max())
