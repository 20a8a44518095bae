"""The SKCE by random features: exact for the feature kernel, unbiased for the given one, and what is refused."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hard_laws import LAWS, rare, saturated, tied
from problems import psd_matrix

import kcalib
from kcalib import lenses
from kcalib._backend.options import OptionError
from kcalib._input.forecasts import prepare
from kcalib._packing.features import MapOptions, check_columns, feature_problem, features_of
from kcalib._pairs import statistics
from kcalib._pairs.features import N_GROUPS, default_columns
from kcalib.estimators import feature_moments as module
from kcalib.estimators.feature_moments import feature_moments, features_standard_error
from kcalib.kernels import Cosine, Exponential, Gaussian, Linear, Matern


def problem(n=60, m=4, seed=0, temperature=1.5):
    """Labels of a model that is over-confident."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(m, 0.6), size=n)
    q = p ** (1 / temperature)
    return (np.cumsum(q / q.sum(axis=1, keepdims=True), axis=1) < rng.uniform(size=(n, 1))).sum(axis=1), p


def literal_features(found, points):
    """phi, entry by entry."""
    phi = np.empty((len(points), found.n_columns))
    count = len(found.frequencies)
    for i, x in enumerate(points):
        for f in range(count):
            a = found.amplitudes[f]
            for r, o in zip(found.projections, found.offsets, strict=True):
                a *= math.fsum(x * r[f]) + o[f]
            phase = math.fsum(x * found.frequencies[f])
            phi[i, f], phi[i, count + f] = a * math.cos(phase), a * math.sin(phase)
    return phi


def dense(found, points, target_features):
    phi = literal_features(found, points)
    return (phi @ phi.T) * (target_features @ target_features.T), phi


@pytest.mark.parametrize("kernel", [None, Gaussian(0.3), Linear() + Matern(0.5), Linear() * Exponential(0.4)], ids=str)
@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_are_those_of_the_dense_feature_kernel(kernel, matrix, weighted):
    y, p = problem()
    weights = np.random.default_rng(5).uniform(size=len(y)) if weighted else None
    target = psd_matrix(4, 2) if matrix else None
    data = prepare(y, p, sample_weight=weights)
    found = feature_problem(data, kernel, target, n_columns=48, seed=3)
    residuals = np.eye(4)[y] - p
    target_features = residuals @ (np.eye(4) if target is None else np.linalg.cholesky(target + 1e-15 * np.eye(4)))
    target_features = target_features if weights is None else target_features * weights[:, None]
    h, phi = dense(found.map, p, target_features)
    off = h - np.diag(np.diag(h))
    moments = feature_moments(found)
    scale = np.trace(h)
    assert moments.total == pytest.approx(off.sum(), abs=1e-12 * scale)
    assert moments.trace == pytest.approx(scale, rel=1e-12)
    np.testing.assert_allclose(moments.row_sums, off.sum(axis=1), atol=1e-12 * scale)
    np.testing.assert_allclose(moments.diagonal, np.diag(h), rtol=1e-11, atol=1e-15)
    for group, total in enumerate(moments.group_totals):
        columns = np.tile(found.map.groups == group, 2)
        own = N_GROUPS * (phi[:, columns] @ phi[:, columns].T) * (target_features @ target_features.T)
        assert total == pytest.approx(own.sum() - np.trace(own), abs=1e-11 * scale)
    estimator = kcalib.methods.FeatureEstimator(n_columns=48, seed=3)
    options = {"kernel": kernel, "target_kernel": target, "estimator": estimator}
    value = kcalib.skce(y, p, sample_weight=weights, **options)
    w = np.ones(len(y)) if weights is None else weights
    assert value == pytest.approx(off.sum() / (w.sum() ** 2 - (w**2).sum()), abs=1e-12)
    if weighted:
        assert moments.sum_of_squares is None
    else:
        v = [np.diag(q) - np.outer(q, q) for q in p]
        m = np.eye(4) if target is None else target
        expected = sum(
            (phi[i] @ phi[j]) ** 2 * np.trace(m @ v[i] @ m @ v[j])
            for i in range(len(p)) for j in range(len(p)) if i != j
        )  # fmt: skip
        assert moments.null_squares == pytest.approx(expected, rel=1e-9)
        assert moments.sum_of_squares == pytest.approx(max(expected, (off**2).sum()), rel=1e-9)


def test_the_mean_over_seeds_is_the_estimate_of_all_pairs():
    y, p = problem(200)
    kernel = Exponential(0.4)
    exact = kcalib.skce(y, p, kernel=kernel)
    values = [
        kcalib.skce(y, p, kernel=kernel, estimator=kcalib.methods.FeatureEstimator(n_columns=32, seed=seed))
        for seed in range(200)
    ]
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    assert abs(np.mean(values) - exact) < 4 * error
    assert error < 0.02 * exact
    # The error that each estimate says that features add is right on average.
    said = [
        kcalib.skce.result(y, p, kernel=kernel, estimator=kcalib.methods.FeatureEstimator(n_columns=32, seed=seed))
        for seed in range(50)
    ]
    mean_square = np.mean([result.features_standard_error**2 for result in said])
    # A chi-square variable with 199 degrees of freedom over one with 7 * 50.
    assert 0.6 < mean_square / np.var(values, ddof=1) < 1.6


def test_result_says_what_was_done():
    y, p = problem(300)
    result = kcalib.skce.result(y, p, estimator="features", threads=1)
    assert (result.estimator, result.n_columns, result.seed) == ("features", default_columns(300), 0)
    assert (result.backend, result.threads, result.block_size) == ("features", 1, None)
    assert f"{result.n_columns} features" in result.backend_reason and "host memory" in result.backend_reason
    assert result.value == kcalib.skce(y, p, estimator="features")
    moments = feature_moments(feature_problem(prepare(y, p), None, None))
    added = features_standard_error(moments, 300)
    assert result.features_standard_error == added > 0
    assert result.standard_error == math.hypot(statistics.standard_error(moments), added)
    other = kcalib.skce.result(y, p)
    assert (other.n_columns, other.seed, other.features_standard_error) == (None, None, None)
    assert other.kernel == result.kernel and other.bandwidth_source == result.bandwidth_source
    exact = kcalib.skce.result(y, p, kernel=Linear(), estimator="features")
    assert exact.features_standard_error == 0 and exact.n_columns == 8
    assert exact.value == pytest.approx(kcalib.skce(y, p, kernel=Linear()), rel=1e-11)


def test_seed_and_columns_decide_the_features():
    y, p = problem(100)
    values = {
        kcalib.skce(y, p, estimator=kcalib.methods.FeatureEstimator(n_columns=columns, seed=seed))
        for columns in (16, 32) for seed in (0, 1, 0)
    }  # fmt: skip
    assert len(values) == 4


@pytest.mark.parametrize("n", [2, 3, 4])
def test_few_samples(n):
    y, p = problem(n, 3)
    result = kcalib.skce.result(y, p, estimator="features")
    assert math.isfinite(result.value) and result.n_columns == default_columns(n)
    assert (result.standard_error is None) == (n < 4)


def test_lens_dtype_and_classes():
    y, p = problem(150)
    options = {"estimator": kcalib.methods.FeatureEstimator(seed=1, n_columns=32)}
    top = kcalib.skce(y, p, lens=lenses.TopLabel(), **options)
    called = (y == p.argmax(axis=1)).astype(int)
    assert top == pytest.approx(kcalib.skce(called, p.max(axis=1), **options), rel=1e-12)
    named = np.array(list("dcba"))[y]
    assert kcalib.skce(named, p, classes=list("dcba"), **options) == kcalib.skce(y, p, **options)
    single = kcalib.skce.result(y, p, dtype="float32", **options)
    assert single.dtype == "float32"
    assert single.value == pytest.approx(kcalib.skce(y, p, **options), rel=1e-4)


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_gives_the_same_bits(threads):
    y, p = problem(5000)
    results = [kcalib.skce.result(y, p, estimator="features", threads=t) for t in (2, threads)]
    one, other = (dataclasses.replace(r, threads=None, seconds=0) for r in results)
    assert one == other


def test_every_library_gives_the_same_number(xp):
    y, p = problem(300)
    expected = kcalib.skce.result(y, p, estimator="features")
    found = kcalib.skce.result(xp.asarray(y), xp.asarray(p), estimator="features")
    assert found.n_columns == expected.n_columns and found.seed == expected.seed
    assert found.value == pytest.approx(expected.value, rel=1e-11)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-11)
    assert found.features_standard_error == pytest.approx(expected.features_standard_error, rel=1e-10)


def test_the_sum_of_squares_of_many_samples_is_that_of_all_pairs(monkeypatch):
    rng = np.random.default_rng(1)
    for draw in (tied, saturated(-3, -1), rare):
        p = draw(2500, rng)
        y = (np.cumsum(p, axis=1) < rng.uniform(size=(len(p), 1))).sum(axis=1).clip(max=p.shape[1] - 1)
        found = feature_problem(prepare(y, p), Exponential(0.5), None, n_columns=32)
        subset = feature_moments(found)
        monkeypatch.setattr(module, "ALL_PAIRS", 2500)
        everything = feature_moments(found)
        monkeypatch.undo()
        assert subset.null_squares == pytest.approx(everything.null_squares, rel=0.15)
        assert subset.sum_of_squares == pytest.approx(everything.sum_of_squares, rel=0.15)


def test_the_standard_error_is_never_below_what_the_predictions_say():
    """Saturated predictions whose labels show no error: all pairs would say that nothing varies."""
    p = saturated(-5, -3)(3000, np.random.default_rng(2))
    y = p.argmax(axis=1)
    found = feature_problem(prepare(y, p), Exponential(0.5), None)
    moments = feature_moments(found)
    assert moments.sum_of_squares == moments.null_squares
    drawn = found.drawn_totals(200, 0)
    assert moments.null_squares == pytest.approx(np.mean(drawn**2) / 2, rel=1)
    by_draws = feature_moments(found, drawn=drawn)
    assert by_draws.null_squares == np.mean(drawn**2) / 2
    error = kcalib.skce.result(y, p, kernel=Exponential(0.5), estimator="features").standard_error
    assert error > 0.9 * math.sqrt(2 * moments.null_squares) / (3000 * 2999)


DRAWN = {name: law.draw for name, law in LAWS.items() if not name.startswith(("saturated", "rare"))}


@pytest.mark.parametrize("draw", [*DRAWN.values(), saturated(-3, -1)], ids=[*DRAWN, "saturated"])
def test_drawn_totals_have_the_mean_and_variance_of_the_law_given_the_predictions(draw):
    p = draw(100, np.random.default_rng(3))
    found = feature_problem(prepare(np.zeros(len(p), dtype=int), p), Exponential(0.5), None, n_columns=32)
    count = 300
    drawn = found.drawn_totals(count, 7)
    expected = 2 * feature_moments(found).null_squares
    kurtosis = max(3.0, np.mean(drawn**4) / np.mean(drawn**2) ** 2)
    assert abs(np.mean(drawn)) < 4 * math.sqrt(expected / count)
    assert abs(np.mean(drawn**2) / expected - 1) < 4 * math.sqrt(kurtosis / count)
    np.testing.assert_array_equal(found.drawn_totals(5, 7, first=10), drawn[10:15])


def test_models_beside_each_other_have_one_map():
    y, p = problem(50)
    first = feature_problem(prepare(y, p), Exponential(0.5), None)
    data = prepare(y, p**2 / (p**2).sum(axis=1, keepdims=True))
    second = features_of(data, feature_problem(data, Exponential(0.5), None).packed, MapOptions(reference=first))
    assert second.map is first.map


def test_many_classes_beyond_the_columns_of_the_covariances():
    y, p = problem(40, 30)
    found = feature_problem(prepare(y, p), Exponential(0.5), None)
    products = found.null_products(np.arange(40))
    v = [np.diag(q) - np.outer(q, q) for q in p]
    np.testing.assert_allclose(products, [[np.trace(a @ b) for b in v] for a in v], rtol=1e-9)
    np.testing.assert_allclose(found.null_lengths(np.arange(40)), [np.trace(a) for a in v], rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "features", "backend": "cpu"}, "`backend` is 'cpu', but features take no sums"),
        ({"estimator": "feature"}, "`estimator` is 'feature', expected one of .*'linear', .*'features'"),
        ({"estimator": "features", "kernel": Gaussian(metric="cityblock")}, "'gaussian' of cityblock.*use Exponential"),
        ({"estimator": "features", "kernel": Cosine(0.5)}, "'cosine' of euclidean.*method='exact'"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::kcalib.IndefiniteKernelWarning")
def test_what_does_not_fit_is_refused(options, message):
    y, p = problem(30)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        kcalib.skce(y, p, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_columns": 40}, "`n_columns` is 40, expected a multiple of 16.*; 32 would do"),
        ({"n_columns": 8}, "`n_columns` is 8, expected an integer between 16"),
        ({"seed": -1}, "`seed` is -1, expected an integer between 0"),
    ],
)
def test_options_are_checked_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        kcalib.methods.FeatureEstimator(**options)


def test_too_few_samples_are_refused_and_identical_predictions_are_not():
    with pytest.raises(ValueError, match="estimator='features' needs at least 2 samples, `y_true` has 1"):
        kcalib.skce([0], [[0.5, 0.5]], kernel=Exponential(1.0), estimator="features")
    with pytest.raises(ValueError, match="at least 2 samples of positive `sample_weight`"):
        kcalib.skce([0, 1], [0.2, 0.6], sample_weight=[1, 0], estimator="features")
    assert kcalib.skce([0, 1, 1], [0.5] * 3, estimator="features") == pytest.approx(-1 / 6)
    with pytest.raises(TypeError, match="`n_columns` is 2.5, expected an integer"):
        check_columns(2.5)
    with pytest.raises(OptionError, match="seed"):
        kcalib.skce([0, 1, 1], [0.2, 0.3, 0.5], estimator=kcalib.methods.FeatureEstimator(seed=2**63))
