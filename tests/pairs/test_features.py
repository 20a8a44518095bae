"""Maps of random features: their kernels have the kernel for a mean, and little spread around it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kcalib
from kcalib._pairs.feature_sums import feature_rows, sum_products
from kcalib._pairs.features import N_GROUPS, FeatureMap, default_columns, feature_map
from kcalib._pairs.problem import Factor, Term
from kcalib._pairs.profiles import PROFILES, Distances, kernel_matrix
from kcalib._pairs.spectra import LARGEST_FREQUENCY
from kcalib.kernels import (
    Cosine,
    Exponential,
    GammaExponential,
    GammaRationalQuadratic,
    Gaussian,
    Linear,
    Matern,
    RationalQuadratic,
)

RNG = np.random.default_rng(0)
POINTS = {
    "probabilities": RNG.dirichlet(np.ones(4), size=6),
    "line": RNG.dirichlet(np.ones(2), size=6),
    "numbers": RNG.normal(size=(6, 1)) / 3,
    "vectors": RNG.normal(size=(6, 3)) / 3,
}
EVERYWHERE = [
    Exponential(0.3),
    Gaussian(0.3),
    GammaExponential(0.3, gamma=0.7),
    GammaExponential(0.3, gamma=1.0),
    GammaExponential(0.3, gamma=1.6),
    GammaExponential(0.3, gamma=2.0),
    Matern(0.3, nu=1.5),
    Matern(0.3, nu=2.5),
    RationalQuadratic(0.3, alpha=0.5),
    GammaRationalQuadratic(0.3, alpha=0.7, gamma=0.8),
    GammaRationalQuadratic(0.3, alpha=1.7, gamma=1.0),
    GammaRationalQuadratic(0.3, alpha=0.7, gamma=2.0),
    Exponential(0.3, metric="cityblock"),
    Exponential(0.3, metric="total_variation"),
    GammaExponential(0.3, gamma=0.7, metric="cityblock"),
    GammaRationalQuadratic(0.3, alpha=0.7, gamma=0.6, metric="cityblock"),
    Linear(),
    Linear() + Gaussian(0.4),
    Linear() * Gaussian(0.4),
    Exponential(0.5) * Matern(0.5),
    0.3 * Exponential(0.1) + 2 * Gaussian(1.0) + Linear() * Linear(),
]
ON_A_LINE = [
    Cosine(0.6),
    Cosine(0.6, metric="total_variation") * Exponential(0.3),
    Gaussian(0.4, metric="cityblock"),
    Matern(0.4, metric="cityblock"),
    RationalQuadratic(0.4, metric="total_variation"),
]
CASES = [("probabilities", kernel) for kernel in EVERYWHERE]
CASES += [(where, kernel) for where in ("vectors", "line") for kernel in EVERYWHERE[::3]]
CASES += [(where, kernel) for where in ("line", "numbers") for kernel in ON_A_LINE]


def kernels_of_maps(kernel, points, n_columns, seeds, n_groups):
    """The kernels of maps, shape (seeds, pairs), and the kernel's own values, of all pairs and a point with itself."""
    rows, columns = np.triu_indices(len(points))
    terms, found = kernel.terms(), []
    for seed in seeds:
        phi = feature_rows(feature_map(terms, points, n_columns, seed, n_groups), points)
        found.append((phi @ phi.T)[rows, columns])
    return np.array(found), kernel_matrix(terms, Distances(points, points))[rows, columns]


def test_every_profile_is_among_the_cases():
    tried = {f.profile for _, kernel in CASES for term in kernel.terms() for f in term.factors if f.metric != "dot"}
    assert tried == set(PROFILES) - {"identity"}


@pytest.mark.parametrize(("where", "kernel"), CASES, ids=lambda value: str(value))
def test_the_mean_over_maps_is_the_kernel(where, kernel):
    count = 16
    found, expected = kernels_of_maps(kernel, POINTS[where], 256, range(count), 1)
    # 2,000 normal variables are within 4.5 standard errors but once in 70 such runs of seeds.
    error = found.std(axis=0, ddof=1) / np.sqrt(count)
    # Of points that are close to each other few frequencies tell, so that there is no normal law.
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - expected), 4.5 * error + 1e-3)
    assert error.max() < 0.04 * max(1, expected.max())


@pytest.mark.parametrize("kernel", [Exponential(0.3), Linear() + Gaussian(0.4) + Matern(1.0)], ids=str)
@pytest.mark.parametrize("n_columns", [16, 64])
def test_groups_are_independent_and_have_the_kernel_for_a_mean_each(kernel, n_columns):
    points, count = POINTS["probabilities"], 100
    rows, columns = np.triu_indices(len(points), 1)
    expected = kernel_matrix(kernel.terms(), Distances(points, points))[rows, columns]
    groups = np.empty((count, N_GROUPS, len(rows)))
    for seed in range(count):
        drawn = feature_map(kernel.terms(), points, n_columns, seed)
        assert drawn.n_groups == N_GROUPS
        phi = feature_rows(drawn, points).reshape(len(points), 2, -1)
        for g in range(N_GROUPS):
            part = phi[:, :, drawn.groups == g]
            groups[seed, g] = N_GROUPS * np.einsum("isf,jsf->ij", part, part)[rows, columns]
    error = groups.std(axis=0, ddof=1) / np.sqrt(count)
    np.testing.assert_array_less(np.abs(groups.mean(axis=0) - expected), 4.5 * error)
    correlations = [np.corrcoef(groups[:, :, k].T) - np.eye(N_GROUPS) for k in range(len(rows))]
    assert np.abs(correlations).max() < 4.5 / np.sqrt(count)


@pytest.mark.parametrize(
    ("m", "kernel", "share"),
    [(2, Exponential(0.4), 0.2), (3, Exponential(0.4), 0.4), (3, Gaussian(0.4), 0.3), (10, Gaussian(0.4), 0.7)],
    ids=str,
)
def test_estimates_vary_less_than_with_independent_frequencies(m, kernel, share):
    rng = np.random.default_rng(1)
    points = rng.dirichlet(np.full(m, 0.5), size=300)
    target_features = np.eye(m)[points.argmax(axis=1)] - points  # of a model that is under-confident

    def spread(maps):
        totals = []
        for found in maps:
            sums, own = sum_products(found, points, target_features)
            totals.append(np.sum(sums**2) - np.sum(own))
        return np.var(totals)

    def independent():
        w = rng.normal(size=(128, m)) / 0.4
        if isinstance(kernel, Exponential):
            w /= np.abs(rng.normal(size=(128, 1)))
        nothing = np.empty((0, 128, m)), np.empty((0, 128))
        return FeatureMap(w, np.full(128, 128**-0.5), *nothing, np.zeros(128, dtype=int))

    together = spread(feature_map(kernel.terms(), points, 256, seed) for seed in range(60))
    assert together < share * spread(independent() for _ in range(200))


def test_frequencies_are_the_seeds_alone_and_perpendicular_to_shifts_of_probabilities():
    points, terms = POINTS["probabilities"], Exponential(0.3).terms()
    one, same, other = (feature_map(terms, points, 64, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.frequencies, same.frequencies)
    assert not np.any(one.frequencies == other.frequencies)
    scale = np.abs(one.frequencies).max(axis=1)
    assert np.all(np.abs(one.frequencies.sum(axis=1)) < 1e-13 * scale)
    # A group's frequencies are orthogonal as long as there is room: three of four.
    for group in range(N_GROUPS):
        some = one.frequencies[one.groups == group][:3]
        cosines = some @ some.T / np.outer(*[np.linalg.norm(some, axis=1)] * 2)
        np.testing.assert_allclose(cosines, np.eye(3), atol=1e-12)
    # Of points without equal sums they are anywhere.
    assert np.abs(feature_map(terms, POINTS["vectors"], 64, 3).frequencies.sum(axis=1)).min() > 1e-6


def test_inner_products_alone_are_exact_where_there_is_room():
    points = POINTS["probabilities"]
    found = feature_map((2 * Linear() + Linear()).terms(), points, 16, 0)
    assert (found.n_columns, found.n_groups) == (8, 1)
    phi = feature_rows(found, points)
    np.testing.assert_allclose(phi @ phi.T, 3 * points @ points.T, rtol=1e-14)
    many = np.random.default_rng(2).dirichlet(np.ones(20), size=5)
    assert feature_map(Linear().terms(), many, 16, 0).n_groups == N_GROUPS


def test_more_terms_than_frequencies():
    kernel = sum((c * Exponential(b) for c, b in itertools.product((0.1, 1.0), (0.2, 0.9))), Gaussian(0.5))
    found, expected = kernels_of_maps(kernel, POINTS["probabilities"], 6, range(600), 1)
    error = found.std(axis=0, ddof=1) / np.sqrt(600)
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - expected), 4.5 * error + 1e-12)
    # Terms are drawn by their sizes, so that every point has the same square.
    np.testing.assert_allclose(np.diag(np.ones((6, 6)))[0] * found[:, 0], expected[0], rtol=1e-12)


@pytest.mark.parametrize(
    "kernel",
    [
        GammaExponential(0.3, gamma=1e-6),
        GammaRationalQuadratic(0.3, alpha=1e-3, gamma=0.01),
        GammaRationalQuadratic(0.3, alpha=1e-3, gamma=0.01, metric="cityblock"),
        RationalQuadratic(0.3, alpha=1e-3),
        RationalQuadratic(0.3, alpha=1e9),
        Exponential(1e-15),
        Exponential(1e15, metric="cityblock"),
    ],
    ids=str,
)
def test_extreme_shapes_and_scales_leave_frequencies_finite(kernel):
    found = feature_map(kernel.terms(), POINTS["vectors"], 512, 0)
    assert np.abs(found.frequencies).max() <= LARGEST_FREQUENCY * (1 + 1e-12)
    phi = feature_rows(found, POINTS["vectors"])
    np.testing.assert_allclose(np.einsum("ij,ij->i", phi, phi), 1, rtol=1e-12)


@pytest.mark.parametrize(
    ("term", "named"),
    [
        (Gaussian(0.3, metric="cityblock"), "'gaussian' of cityblock distances"),
        (Exponential(0.3) * Cosine(0.3), "'cosine' of euclidean distances"),
        (GammaExponential(0.3, gamma=1.1, metric="total_variation"), "'gamma_exponential' of cityblock"),
        (Term(1.0, (Factor("identity", "euclidean"),)), "'identity' of a bare distance"),
        (Term(1.0, (Factor("exponential", "table"),)), "'exponential' of a table of distances"),
        (Term(1.0, (Factor("exponential", "mmd"),)), "'exponential' of mmd distances"),
    ],
    ids=lambda value: str(value),
)
def test_kernels_without_features_are_refused_by_the_name_of_the_factor(term, named):
    terms = (term,) if isinstance(term, Term) else term.terms()
    with pytest.raises(ValueError, match=f"(?s){named}.*use Exponential\\(\\)"):
        feature_map(terms, POINTS["probabilities"], 16, 0)


def test_a_map_beyond_memory_is_refused_before_it_is_drawn(monkeypatch):
    monkeypatch.setattr("kcalib._backend.memory.available_memory", lambda *_: 2**30)
    message = "frequencies for 1000000000 columns in 3 dimensions take .* are available; pass fewer `n_columns`"
    with pytest.raises(MemoryError, match=message):
        feature_map(Exponential(0.3).terms(), POINTS["vectors"], 10**9, 0)
    with pytest.raises(MemoryError, match=message):
        kcalib.skce(
            [0, 1], np.eye(2, 3), kernel=Gaussian(0.3), estimator=kcalib.methods.FeatureEstimator(n_columns=10**9)
        )


def test_default_columns_grow_slowly():
    sizes = [2, 100, 3000, 100_000, 1_000_000, 10**9]
    found = [default_columns(n) for n in sizes]
    assert found == sorted(found)
    assert all(k % (2 * N_GROUPS) == 0 and k >= 2 * N_GROUPS for k in found)
    assert default_columns(100_000) == 256
    assert default_columns(1_000_000) == 336 and found[0] >= 64
