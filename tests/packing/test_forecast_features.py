"""Random features of distributions: target features and sums as literal ones, unbiased, exact under calibration."""

import math

import array_api_strict
import emulated_cupy
import numpy as np
import pytest
from forecast_problems import FAMILIES, gaussian, mmd_distances, targets
from grid import some

import kcalib
from kcalib._input.forecasts import prepare
from kcalib._packing import ForecastFeatures, forecast_features, prediction_points, target_features
from kcalib._packing.features import feature_problem
from kcalib._packing.target_features import n_columns_beside
from kcalib._pairs.feature_sums import feature_rows
from kcalib.distributions import (
    Beta,
    Dirichlet,
    Laplace,
    Mixture,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    PowerExponential,
    Samples,
    wasserstein_distance,
)
from kcalib.estimators.feature_moments import feature_moments
from kcalib.kernels import MMD, Exponential, Gaussian, Linear, Matern
from kcalib.target_kernels import Draws, MahalanobisGaussian

RNG = np.random.default_rng(1)
N = 40
MEAN, STD = RNG.normal(size=N), np.exp(RNG.normal(scale=0.5, size=N))
ROOTS = RNG.normal(size=(N, 2, 2))
COVARIANCES = ROOTS @ ROOTS.swapaxes(1, 2) + 0.3 * np.eye(2)
PREDICTIONS = {
    "normal": Normal(MEAN, STD),
    "independent entries": Normal(RNG.normal(size=(N, 3)), np.exp(RNG.normal(scale=0.5, size=(N, 3)))),
    "full covariances": MultivariateNormal(RNG.normal(size=(N, 2)), COVARIANCES),
    "laplace": Laplace(MEAN, STD),
    "mixture": Mixture([0.3, 0.7], [Normal(MEAN, STD), Normal(MEAN + 1, 0.5 * STD)]),
    "poisson": Poisson(np.exp(MEAN)),
    "large counts": Poisson(1e4 * np.exp(MEAN)),
    "negative binomial": NegativeBinomial(4 * np.exp(MEAN), 0.5),
    "samples": Samples(MEAN[:, None] + STD[:, None] * RNG.normal(size=(N, 12))),
    "few samples": Samples(RNG.normal(size=(N, 3, 2))),
    "beta": Beta(np.exp(MEAN), np.exp(STD)),
    "dirichlet": Dirichlet(np.exp(RNG.normal(size=(N, 3)))),
    "power exponential": PowerExponential(MEAN, STD, 1.5),
}

ALWAYS = ("normal", "mixture", "poisson", "samples")
EVERY = [pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.slow) for name in PREDICTIONS]


def drawn(prediction, seed):
    return prediction.sample(1, seed=seed)[:, 0]


def problem(y, prediction, seed=0, n_columns=48, kernel=None, target_kernel=None, threads=1):
    return feature_problem(prepare(y, prediction), kernel, target_kernel, n_columns, seed, threads)


def dense(found, y=None):
    """H of the feature kernel, entry by entry, with targets y."""
    phi = feature_rows(found.map, found.points)
    target_features = found.target_features if y is None else found.target.tile(slice(0, found.n)).target_features(y)
    return (phi @ phi.T) * (target_features @ target_features.T)


def without_diagonal(h):
    return float(h.sum() - np.trace(h))


@pytest.mark.parametrize("name", some(FAMILIES, "normal", "poisson", "samples"))
def test_random_target_features_are_those_of_the_kernel(name, monkeypatch):
    """psi(y) - E psi(Z) with expectations summed over nodes, up to a rotation that all products are without."""
    monkeypatch.setattr(target_features, "EXACT_RANK", 0)
    prediction, nodes, accuracy = FAMILIES[name]
    found = problem(targets(name), prediction, target_kernel=Matern(1.3), n_columns=256)
    frequencies, amplitudes = found.target.map.frequencies, np.tile(found.target.map.amplitudes, 2)

    def psi(points):
        phases = points @ frequencies.T
        return amplitudes * np.concatenate([np.cos(phases), np.sin(phases)], axis=1)

    y = targets(name).reshape(len(nodes), -1)
    literal = np.stack([psi(y[i : i + 1])[0] - w @ psi(z) for i, (z, w) in enumerate(nodes)])
    expected = literal @ literal.T
    rough = np.abs(frequencies).max() * 0.05  # of the nodes, for features that oscillate faster than they are apart
    atol = max(accuracy, 1e-12) if name.startswith(("samples", "poisson", "negative")) else max(accuracy, rough)
    np.testing.assert_allclose(found.target_features @ found.target_features.T, expected, atol=atol * expected.max())


@pytest.mark.parametrize("name", PREDICTIONS)
def test_sums(name):
    prediction = PREDICTIONS[name]
    found = problem(drawn(prediction, 3), prediction)
    assert isinstance(found, ForecastFeatures)
    h = dense(found)
    moments = feature_moments(found)
    scale = np.trace(h)
    assert moments.total == pytest.approx(without_diagonal(h), abs=1e-12 * scale)
    assert moments.trace == pytest.approx(scale, rel=1e-12)
    np.testing.assert_allclose(moments.row_sums, h.sum(axis=1) - np.diag(h), atol=1e-12 * scale)
    totals = found.drawn_totals(5, seed=7, first=2)
    draws = found.data.row_draws(7, range(2, 7))(slice(0, N))
    expected = [without_diagonal(dense(found, draws[r])) for r in range(5)]
    np.testing.assert_allclose(totals, expected, rtol=0, atol=1e-12 * scale)
    assert np.mean(moments.group_totals) == pytest.approx(moments.total, abs=1e-12 * scale)
    assert np.mean(moments.target_group_totals) == pytest.approx(moments.total, abs=1e-12 * scale)


def test_groups_of_both_kernels():
    prediction, kernel = PREDICTIONS["normal"], Linear() + Exponential(metric="wasserstein")
    for one in (kernel, Exponential(metric="wasserstein")):
        found = problem(drawn(prediction, 3), prediction, kernel=one)
        moments, phi = feature_moments(found), feature_rows(found.map, found.points)
        for g in range(4):
            some = found.target_features[:, found.target_groups == g]
            h = 4 * (phi @ phi.T) * (some @ some.T)
            assert moments.target_group_totals[g] == pytest.approx(without_diagonal(h), abs=1e-12 * np.trace(h))
        assert len(moments.target_group_totals) == 4


def test_tiles_threads_and_batches(monkeypatch):
    prediction = PREDICTIONS["mixture"]
    y = drawn(prediction, 3)
    expected = problem(y, prediction).drawn_totals(9, 0)
    monkeypatch.setattr(target_features, "TILE_ELEMENTS", 2**12)
    tiled = problem(y, prediction)
    np.testing.assert_allclose(tiled.drawn_totals(9, 0), expected, atol=1e-12 * np.abs(expected).max())
    assert (tiled.drawn_totals(9, 0) == problem(y, prediction, threads=3).drawn_totals(9, 0)).all()
    monkeypatch.setattr(forecast_features, "DRAWS_BYTES", 8 * N * 4)
    np.testing.assert_allclose(tiled.drawn_totals(9, 0), expected, atol=1e-12 * np.abs(expected).max())
    assert tiled.drawn_totals(0, 0).shape == (0,)


@pytest.mark.grid
@pytest.mark.parametrize("name", EVERY)
def test_the_mean_over_seeds_is_the_estimate_of_all_pairs(name):
    prediction = PREDICTIONS[name]
    y = drawn(prediction, 5)
    y = y + 0.3 if prediction.support == "real" else y
    exact = kcalib.skce(y, prediction)
    data = prepare(y, prediction)
    moments = [feature_moments(feature_problem(data, None, None, 32, s, 1), second=False) for s in range(40)]
    values = np.array([one.total for one in moments]) / (N * (N - 1))
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    assert abs(np.mean(values) - exact) < 4 * error
    # The spread of groups of both kernels is that of the estimates: a ratio of chi-square variables, roughly.
    said = np.mean([one.total_error**2 for one in moments]) / (N * (N - 1)) ** 2
    assert 0.4 < said / np.var(values, ddof=1) < 2.5


@pytest.mark.slow
@pytest.mark.parametrize("name", PREDICTIONS)
def test_level(name):
    """p-values from 19 draws are uniform on 1/20, ..., 1 for targets that are drawn; others are found."""
    prediction, sets = PREDICTIONS[name], 150
    pvalues = []
    for s in range(sets):
        found = problem(drawn(prediction, 1000 + s), prediction, seed=s, n_columns=32)
        total = feature_moments(found, second=False).total
        pvalues.append((1 + np.sum(found.drawn_totals(19, s) >= total)) / 20)
    rejected = np.sum(np.array(pvalues) <= 0.1)
    # 15 are expected; a binomial variable exceeds 29, or is below 4, with probability 1e-4.
    assert 3 < rejected < 30


def test_power_on_half_width_normals():
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=300), np.exp(rng.normal(scale=0.5, size=300))
    found = problem(mean + std * rng.normal(size=300), Normal(mean, std / 2), n_columns=64)
    assert np.all(found.drawn_totals(99, 0) < feature_moments(found, second=False).total)
    assert feature_moments(found).total_error > 0


@pytest.mark.parametrize("name", EVERY)
def test_moments_under_calibration(name):
    prediction = PREDICTIONS[name]
    found = problem(drawn(prediction, 3), prediction)
    rows = np.array([3, 0, 17, 17, 39])
    lengths, products, count = found.null_lengths(rows), found.null_products(rows), 1000
    tile = found.target.take(rows).tile(slice(0, 5))
    draws = [tile.target_features(found.data.take(rows).draw(11, r).y) for r in range(count)]
    squares = np.array([np.sum(a * a, axis=1) for a in draws])
    pairs = np.array([(a @ a.T) ** 2 for a in draws])
    by_draws = forecast_features.NULL_DRAWS if name in ("samples", "beta", "dirichlet", "power exponential") else 1e9
    slack = 5 * np.sqrt(1 / count + 1 / by_draws)
    assert np.all(np.abs(lengths - squares.mean(axis=0)) <= slack * squares.std(axis=0) + 1e-12)
    off = ~np.eye(5, dtype=bool)
    assert np.all((np.abs(products - pairs.mean(axis=0)) <= slack * pairs.std(axis=0) + 1e-12)[off])


@pytest.mark.parametrize(
    "name",
    some(["normal", "normal of vectors", "full covariances", "mixture", "samples of vectors"], "normal", "mixture"),
)
def test_vectors_of_mmd(name):
    """Their distances are the MMD between sums over nodes."""
    prediction, nodes, accuracy = FAMILIES[name]
    found = problem(targets(name), prediction, kernel=Exponential(0.7, metric=MMD(1.5)))
    vectors = found.points
    distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    np.testing.assert_allclose(distances, mmd_distances(nodes, gaussian(1.5)), atol=max(math.sqrt(accuracy), 1e-6))
    assert 0 <= found.vectors.error < 1e-6


@pytest.mark.parametrize(
    "prediction",
    [
        Poisson([1e-4, 2e-4, 0.1, 0.4, 3.0, 3.1, 8.0]),
        NegativeBinomial([0.2, 3.0, 3.5, 20.0, 90.0], [2.0, 0.5, 0.6, 2.0, 0.1]),
        Poisson([300.0, 310.0, 420.0]),
    ],
)
def test_vectors_of_counts_are_nearly_quantile_functions(prediction):
    vectors = problem(np.zeros(prediction.n), prediction).vectors
    exact = wasserstein_distance(prediction)
    distances = np.linalg.norm(vectors.values[:, None] - vectors.values, axis=2)
    assert np.all(distances <= exact + 1e-6) and np.all(exact <= distances + vectors.error)
    assert vectors.error <= 0.2 * exact.max() and np.all(abs(exact - distances) <= 0.01 * exact.max())


def test_few_vectors_of_mmd_say_by_how_much_they_are_off(monkeypatch):
    prediction = PREDICTIONS["full covariances"]
    options = {"kernel": Exponential(0.7, metric=MMD(1.5))}
    y = drawn(prediction, 0)
    many = problem(y, prediction, **options)
    monkeypatch.setattr(prediction_points, "MOST_VECTORS", 8)
    monkeypatch.setattr(prediction_points, "FEWEST_VECTORS", 8)
    few = problem(y, prediction, **options)
    exact, rough = (np.linalg.norm(a[:, None] - a[None], axis=2) for a in (many.points, few.points))
    assert few.points.shape == (N, 8)
    off = np.abs(exact - rough).max()
    assert 1e-4 < off <= few.vectors.error
    assert f"off by {few.vectors.error:.1g} at most" in few.described()["backend_reason"]


def test_routes_and_columns():
    y = drawn(PREDICTIONS["normal"], 0)
    described = problem(y, PREDICTIONS["normal"]).described()
    assert described["target_factor"] == "64 random features, expectations by characteristic functions (normal)"
    assert described["backend"] == "features" and described["n_columns"] == 48
    described = problem(drawn(PREDICTIONS["mixture"], 0), PREDICTIONS["mixture"]).described()
    assert "distances of predictions are off by" in described["backend_reason"]
    assert "counts to" in problem(drawn(PREDICTIONS["poisson"], 0), PREDICTIONS["poisson"]).described()["target_factor"]
    asked = problem(y, PREDICTIONS["normal"], target_kernel=Draws(n_draws=16, seed=3)).described()["target_factor"]
    assert asked == "64 random features, expectations by 16 draws from each prediction, seed 3"
    # All pairs have no closed form with this kernel; features have one with all kernels.
    other = problem(y, PREDICTIONS["normal"], target_kernel=Matern(1.0)).described()["target_factor"]
    assert other == "64 random features, expectations by characteristic functions (normal)"
    assert [n_columns_beside(c, 1) for c in (16, 512, 1024)] == [64, 64, 128]
    assert [n_columns_beside(c, 3) for c in (16, 256, 512)] == [64, 64, 128]


@pytest.mark.grid
def test_error_of_draws():
    """As that of all pairs, and not below the spread of estimates with draws from other seeds."""
    prediction = PREDICTIONS["normal"]
    y = drawn(prediction, 5) + 0.3
    options = {"estimator": kcalib.methods.FeatureEstimator(256)}
    results = [kcalib.skce.result(y, prediction, target_kernel=Draws(n_draws=16, seed=s), **options) for s in range(12)]
    pairs = [kcalib.skce.result(y, prediction, target_kernel=Draws(n_draws=16, seed=s)) for s in range(12)]
    said, expected = (np.mean([r.draws_standard_error for r in some]) for some in (results, pairs))
    assert said == pytest.approx(expected, rel=0.2)
    assert np.std([r.value for r in results]) < said
    assert kcalib.skce.result(y, prediction, **options).draws_standard_error is None


def test_a_matrix_in_place_of_a_bandwidth():
    prediction = PREDICTIONS["full covariances"]
    y, target = drawn(prediction, 5) + 0.5, MahalanobisGaussian([[2.0, 0.4], [0.4, 0.5]])
    exact = kcalib.skce(y, prediction, target_kernel=target)
    values = np.array(
        [
            kcalib.skce(
                y, prediction, target_kernel=target, estimator=kcalib.methods.FeatureEstimator(n_columns=32, seed=s)
            )
            for s in range(40)
        ]
    )
    assert abs(values.mean() - exact) < 4 * values.std() / math.sqrt(40)


def test_nearly_certain_predictions_keep_their_digits():
    """The same data in other units, far from 0: the estimate is the same, and no residual is lost in rounding."""
    rng = np.random.default_rng(2)
    mean, z = rng.normal(size=30), rng.normal(size=30)
    std = 1e-9
    options = {"kernel": Exponential(1.0, metric="wasserstein"), "target_kernel": Gaussian(1.0), "n_columns": 48}
    found = problem(mean + std * z, Normal(mean, std), **options)
    # To first order in std the target features are std z times the derivatives of the features at the means.
    v, a = found.target.map.frequencies[:, 0], found.target.map.amplitudes
    phases = np.outer(mean - mean.mean(), v)
    step = (mean + std * z) - mean  # what is left of the draw in float64
    slopes = np.concatenate([-a * v * np.sin(phases), a * v * np.cos(phases)], axis=1) * step[:, None]
    np.testing.assert_allclose(found.target_features, slopes, rtol=0, atol=1e-7 * std)


@pytest.mark.grid
@pytest.mark.parametrize(
    "name", some(["normal", "mixture", "poisson", "samples", "full covariances"], "mixture", "poisson")
)
def test_other_array_libraries(name):
    prediction = PREDICTIONS[name]
    y = drawn(prediction, 3)
    expected = problem(y, prediction)
    total, totals = feature_moments(expected).total, expected.drawn_totals(3, 0)
    device = array_api_strict.Device("device1")

    def convert(array):
        return array_api_strict.asarray(np.array(array), device=device)

    there = {
        "normal": lambda a: Normal(a(MEAN), a(STD)),
        "mixture": lambda a: Mixture([0.3, 0.7], [Normal(a(MEAN), a(STD)), Normal(a(MEAN + 1), a(0.5 * STD))]),
        "poisson": lambda a: Poisson(a(np.exp(MEAN))),
        "samples": lambda a: Samples(a(prediction.samples)),
        "full covariances": lambda a: MultivariateNormal(a(prediction.mean), a(prediction.cov)),
    }[name]
    found = problem(convert(y), there(convert), threads=None)
    assert feature_moments(found).total == pytest.approx(total, rel=1e-11)
    np.testing.assert_allclose(found.drawn_totals(3, 0), totals, rtol=1e-10)
    with emulated_cupy.installed():
        found = problem(emulated_cupy.asarray(y), there(emulated_cupy.asarray), threads=None)
        assert feature_moments(found).total == pytest.approx(total, rel=1e-11)
        np.testing.assert_allclose(found.drawn_totals(3, 0), totals, rtol=1e-10)


@pytest.mark.filterwarnings("ignore::kcalib.IndefiniteKernelWarning")
def test_errors():
    prediction = PREDICTIONS["full covariances"]
    y = drawn(prediction, 0)
    with pytest.raises(
        ValueError, match=r"`kernel` is Exponential.*Wasserstein distances of MultivariateNormal.*'mmd'"
    ):
        problem(y, prediction, kernel=Exponential(metric="wasserstein"))
    with pytest.raises(ValueError, match=r"`target_kernel` is Linear\(\), with an inner product.*Gaussian"):
        problem(drawn(PREDICTIONS["normal"], 0), PREDICTIONS["normal"], target_kernel=Linear())
    with pytest.raises(ValueError, match=r"`target_kernel` has the factor 'cosine'"):
        problem(y, prediction, target_kernel=kcalib.kernels.Cosine(1.0))
