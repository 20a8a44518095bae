"""Tiles have the bits of one machine; of more than a million samples sums are within roundings of its sums."""

from __future__ import annotations

import numpy as np
import pytest
from problems import softmax_problem
from scipy.spatial.distance import cdist

from kcalib import _packing
from kcalib._input.labels import prepare
from kcalib._pairs.backends.compared_labels import label_forms
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.reductions import LabelMatches, Moments, Products, QuadraticForms, sweep_one
from kcalib.estimators.forecast_residuals import kernel_alone
from kcalib.kernels import Exponential
from kcalib.parallel import Serial, plan
from kcalib.parallel.argument import opened

BANDWIDTH = 0.3
BOUND = 1e-15  # also where a few rows of wrong labels are nearly all there is
SINGLE = 1e-6  # of entries and sums over some samples in float32


def samples(n, m, saturated):
    """Labels and predictions; saturated ones are as sure as networks, and wrong for one sample in 100."""
    y, p = softmax_problem(n, m, seed=1)
    if not saturated:
        return y, p
    rng = np.random.default_rng(0)
    rare = 10 ** rng.uniform(-8, -4, size=n)
    p = np.tile(rare[:, None], (1, m))
    p[np.arange(n), y] = 1 - (m - 1) * rare
    return np.where(rng.uniform(size=n) < 0.01, 0, y), p


@pytest.mark.parametrize(
    ("n", "m", "saturated"), [(600, 5, False), (600, 5, True), (1500, 40, False), (1500, 40, True)]
)
def test_products_forms_and_sums(monkeypatch, n, m, saturated):
    problem = _packing.pack(prepare(*samples(n, m, saturated)), Exponential(BANDWIDTH), None).problem
    points, features = problem.left.points, np.abs(problem.left.features)
    sizes = np.exp(-cdist(points, points) / BANDWIDTH) * (features @ features.T)  # of what is added up for each entry
    rng = np.random.default_rng(1)
    vectors, weights = rng.normal(size=(n, 4)), rng.normal(size=(n, 3))
    vectors[:, 0], weights[:, 0] = 1.0, rng.poisson(size=n)  # sums of one sign, in which roundings add up
    one = backend_for(problem, threads=1)
    whole = sweep_one(one, Moments(second=True))
    one_forms, one_single_forms = (
        sweep_one(one, QuadraticForms(weights)),
        sweep_one(one, QuadraticForms(weights, dtype="float32")),
    )
    for largest in (plan.LARGEST_GROUP, 90):  # the second: as beyond a million samples, sums are merged within tiles
        monkeypatch.setattr(plan, "LARGEST_GROUP", largest)
        with opened(Serial(tile_size=192, threads=1)) as run:
            tiles = backend_for(problem, threads=1, backend=run)
            products, forms = sweep_one(tiles, Products(vectors)), sweep_one(tiles, QuadraticForms(weights))
            sums = sweep_one(tiles, Moments(second=True))
            single, single_forms = (
                sweep_one(tiles, one_of(v, dtype="float32"))
                for one_of, v in ((Products, vectors), (QuadraticForms, weights))
            )
        assert np.all(np.abs(products - sweep_one(one, Products(vectors))) <= BOUND * (sizes @ np.abs(vectors)))
        magnitudes = np.sum(np.abs(weights) * (sizes @ np.abs(weights)), axis=0)
        assert np.all(np.abs(forms - one_forms) <= BOUND * magnitudes)
        assert np.all(
            np.abs(single - sweep_one(one, Products(vectors, dtype="float32"))) <= SINGLE * (sizes @ np.abs(vectors))
        )
        assert np.all(np.abs(single_forms - one_single_forms) <= BOUND * magnitudes)  # of the same entries
        assert abs(sums.total - whole.total) <= BOUND * np.sum(sizes)
        assert np.all(np.abs(sums.row_sums - whole.row_sums) <= BOUND * np.sum(sizes, axis=1))
        assert abs(sums.sum_of_squares - whole.sum_of_squares) <= BOUND * np.sum(sizes**2)
        if largest != 90:
            assert (sums.total, sums.sum_of_squares) == (whole.total, whole.sum_of_squares)
            assert np.array_equal(sums.row_sums, whole.row_sums)
            assert np.array_equal(forms, one_forms)
            assert np.array_equal(single_forms, one_single_forms)
            assert np.array_equal(products, sweep_one(one, Products(vectors)))
            assert np.array_equal(single, sweep_one(one, Products(vectors, dtype="float32")))


@pytest.mark.parametrize(("n", "m", "saturated"), [(600, 3, False), (600, 5, True), (900, 40, True)])
def test_comparisons_of_labels(monkeypatch, n, m, saturated):
    """Whole units of a block are the same in tiles, and so are their sums."""
    y, p = samples(n, m, saturated)
    problem = kernel_alone(_packing.pack(prepare(y, p), Exponential(BANDWIDTH), None)).problem
    rng = np.random.default_rng(2)
    labels = np.where(rng.uniform(size=(n, 70)) < 0.1, rng.integers(m, size=(n, 70)), y[:, None]).astype(np.int32)
    one = backend_for(problem, threads=1)
    k = np.exp(-cdist(problem.left.points, problem.left.points) / BANDWIDTH)
    observed, draws = label_forms(one, p, y, [labels])
    for largest in (plan.LARGEST_GROUP, 90):
        monkeypatch.setattr(plan, "LARGEST_GROUP", largest)
        with opened(Serial(tile_size=192, threads=1)) as run:
            tiles = backend_for(problem, threads=1, backend=run)
            np.testing.assert_array_equal(sweep_one(tiles, LabelMatches(labels)), sweep_one(one, LabelMatches(labels)))
            products, found = (
                sweep_one(tiles, Products(p, rounded=True)),
                label_forms(tiles, p, y, [labels[:, :7], labels[:, 7:]]),
            )
        assert np.all(np.abs(products - sweep_one(one, Products(p, rounded=True))) <= BOUND * (k @ p))
        if largest != 90:
            assert np.array_equal(products, sweep_one(one, Products(p, rounded=True)))
            assert (found[0], *found[1]) == (observed, *draws)
        size = np.sum(k @ p) + 2 * np.sum(k)  # of the sums that draws are differences of
        assert np.all(np.abs(np.append(found[1], found[0]) - np.append(draws, observed)) <= BOUND * size)


def test_operators_without_groups_hand_over_one_sum_of_a_tile():
    """Not one of each sample, which would be a matrix of n x n."""
    seen = []

    class Looking(Serial):
        def results(self, held, work, tiles, given, progress):
            seen.append((work.grid.groups, work.grid.size))
            return super().results(held, work, tiles, given, progress)

    problem = _packing.pack(prepare(*samples(300, 3, False)), Exponential(BANDWIDTH), None).problem
    weights = np.random.default_rng(0).normal(size=(300, 2))
    one = backend_for(problem, backend="array-api")
    with opened(Looking(tile_size=100)) as run:
        tiles = run.spread(one)
        assert sweep_one(tiles, Moments()).total == pytest.approx(sweep_one(one, Moments()).total, rel=1e-12)
        np.testing.assert_allclose(
            sweep_one(tiles, QuadraticForms(weights)), sweep_one(one, QuadraticForms(weights)), rtol=1e-12
        )
    assert seen == 2 * [((3, 3), 100)]
