"""Comparison of models on samples with weights or in clusters: errors by hand, levels, and what is refused."""

import numpy as np
import pytest
import scipy.stats
from problems import binomial_bounds

import kcalib
from kcalib._input.labels import prepare
from kcalib._packing.features import feature_problem
from kcalib.distributions import Normal
from kcalib.inference.metrics import clusters as jackknife


def make_models(seed, n_clusters=60, size=5):
    """Two models as far from the truth as each other, each row `size` times."""
    rng = np.random.default_rng([9, seed])
    p = rng.dirichlet(np.full(3, 0.5), size=n_clusters)
    y = np.minimum((p.cumsum(axis=1) <= rng.uniform(size=(n_clusters, 1))).sum(axis=1), 2)
    one, other = (p * np.exp(0.3 * rng.standard_normal(p.shape)) for _ in range(2))
    models = {"a": one / one.sum(axis=1, keepdims=True), "b": other / other.sum(axis=1, keepdims=True)}
    cluster = np.arange(n_clusters).repeat(size)
    return y.repeat(size), {name: model.repeat(size, axis=0) for name, model in models.items()}, cluster


@pytest.mark.parametrize("metric", ["brier_score", "skce"])
def test_copies_of_rows_keep_the_level(metric):
    sets = 60 if metric == "brier_score" else 20
    rejections = np.zeros(2)
    for seed in range(sets):
        y, models, cluster = make_models(seed)
        for k, clusters in enumerate((cluster, None)):
            result = kcalib.compare(y, models, clusters=clusters, metric=metric, threads=1)
            rejections[k] += result.differences[0].pvalue <= 0.05
    _, high = binomial_bounds(sets, 0.05, 1e-3)
    assert rejections[0] / sets <= high
    if metric == "brier_score":
        assert rejections[1] / sets > high


def test_a_jackknife_of_features_by_hand():
    """Means of the kernel over pairs of different clusters, of all and without each."""
    y, models, cluster = make_models(0, 12, 3)
    problem = feature_problem(prepare(y, models["a"]), None, None, 16)
    rows = jackknife._multiply_features(problem, np.arange(36), np.asarray(problem.target_features, dtype=float))
    kernel = rows @ rows.T

    def mean_without(left_out):
        chosen = (cluster[:, None] != cluster) & (cluster != left_out) & (cluster[:, None] != left_out)
        return kernel[chosen].mean()

    found = jackknife._leave_out_of_features(problem, cluster)
    assert found.value == pytest.approx(mean_without(-1), rel=1e-9)
    assert found.without == pytest.approx([mean_without(k) for k in range(12)], rel=1e-9)


def test_a_jackknife_of_means_by_hand():
    y, models, cluster = make_models(0)
    rng = np.random.default_rng(0)
    w, order = rng.exponential(size=len(y)), rng.permutation(len(y))
    losses = {name: np.sum((np.eye(3)[y] - p) ** 2, axis=1) for name, p in models.items()}
    difference = losses["a"] - losses["b"]
    without = [np.average(difference[cluster != g], weights=w[cluster != g]) for g in range(60)]
    shuffled = {name: p[order] for name, p in models.items()}
    options = {"sample_weight": 10 * w[order], "clusters": [f"c{k}" for k in cluster[order]]}
    result = kcalib.compare(y[order], shuffled, metric="brier_score", **options)
    assert result.differences[0].difference == pytest.approx(np.average(difference, weights=w))
    assert result.differences[0].standard_error == pytest.approx(np.sqrt(59 * np.var(without)))
    assert result.model("a").value == pytest.approx(kcalib.brier_score(y, models["a"], sample_weight=w))
    assert result.intervals == "t, paired, by a jackknife over 60 clusters"


def test_a_jackknife_of_the_skce_by_hand():
    y, models, cluster = make_models(1, n_clusters=12)
    w = np.random.default_rng(0).exponential(size=len(y))
    result = kcalib.compare(y, models, sample_weight=w, clusters=cluster, seed=3)
    apart = cluster[:, None] != cluster

    def value(p, kernel_matrix, kept):
        e = np.eye(3)[y] - p
        pairs = np.outer(w, w) * apart * np.outer(kept, kept)
        return np.sum(pairs * kernel_matrix * (e @ e.T)) / np.sum(pairs)

    everything = np.ones(len(y))
    for name, p in models.items():
        bandwidth = float(result.kernel.partition("bandwidth=")[2].rstrip(")"))
        exact = np.exp(-np.linalg.norm(p[:, None] - p, axis=2) / bandwidth)
        of_model = result.model(name)
        assert of_model.value == pytest.approx(value(p, exact, everything), abs=of_model.standard_error)
        without = [value(p, exact, cluster != g) for g in range(12)]
        assert of_model.standard_error >= 0.7 * np.sqrt(11 * np.var(without))
    assert "pairs of different clusters" in result.estimator


def test_equal_weights_have_the_standard_error_of_a_mean():
    y, models, _ = make_models(2, size=1)
    plain = kcalib.compare(y, models, metric="log_loss").differences[0]
    weighted = kcalib.compare(y, models, sample_weight=np.full(len(y), 2.0), metric="log_loss").differences[0]
    assert weighted.difference == pytest.approx(plain.difference)
    losses = [-np.log(p[np.arange(len(y)), y]) for p in models.values()]
    spread = np.std(losses[0] - losses[1], ddof=1) / np.sqrt(len(y))
    assert weighted.standard_error == pytest.approx(spread)


@pytest.mark.parametrize("metric", ["log_loss", "skce"])
def test_clusters_of_weight_0_are_none(metric):
    y, models, cluster = make_models(4)
    w = np.where(cluster < 10, 0.0, 1.0)
    result = kcalib.compare(y, models, sample_weight=w, clusters=cluster, metric=metric).differences[0]
    y, models, cluster = y[w > 0], {name: p[w > 0] for name, p in models.items()}, cluster[w > 0]
    rest = kcalib.compare(y, models, clusters=cluster, metric=metric).differences[0]
    if metric == "log_loss":  # the bandwidth is that of all rows
        assert result.difference == pytest.approx(rest.difference)
        assert result.standard_error == pytest.approx(rest.standard_error)
    assert result.standard_error == pytest.approx(rest.standard_error, rel=0.2)


def test_distributions_in_clusters():
    rng = np.random.default_rng(0)
    mean, cluster = rng.normal(size=200), np.arange(200) // 4
    y = rng.normal(mean + rng.normal(size=50)[cluster], 1.0)
    models = {"right": Normal(mean, np.full(200, 1.4)), "narrow": Normal(mean, np.full(200, 0.5))}
    for metric in ("crps", "log_score", "skce"):
        result = kcalib.compare(y, models, clusters=cluster, metric=metric)
        assert result.ranking == ("right", "narrow")
        assert result.differences[0].pvalue < 0.05


def test_what_is_refused():
    y, models, cluster = make_models(3)
    for metric in ("ece", "ckce"):
        with pytest.raises(ValueError, match=f"`clusters` has no meaning for the metric '{metric}'; use 'skce' or"):
            kcalib.compare(y, models, clusters=cluster, metric=metric)
    with pytest.raises(ValueError, match="`sample_weight` has no meaning for the metric 'ece'"):
        kcalib.compare(y, models, sample_weight=np.ones(len(y)), metric="ece")
    with pytest.raises(ValueError, match="`clusters` leaves 3 clusters of positive weight, expected at least 4"):
        kcalib.compare(y, models, clusters=cluster % 3, metric="brier_score")
    with pytest.raises(ValueError, match="`backend` sums pairs of samples that count alike, and `clusters` is given"):
        kcalib.compare(y, models, clusters=cluster, backend="cpu")
    sources = {name: kcalib.streaming.source((y, p)) for name, p in models.items()}
    with pytest.raises(ValueError, match="`clusters` is given, but sums over a source have no such option"):
        kcalib.compare(sources, clusters=cluster)


@pytest.mark.parametrize("horizon", [1, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_diebold_mariano_by_hand(horizon, weighted):
    """With Harvey's correction, for a lag of one less than the horizon; of weighted samples by their influence."""
    rng, n = np.random.default_rng(0), 50
    y, models = rng.normal(size=n), {name: Normal(rng.normal(size=n).cumsum() / 3, np.ones(n)) for name in "ab"}
    weight = rng.exponential(size=n) if weighted else None
    result = kcalib.compare(y, models, metric="crps", time_blocks=horizon, sample_weight=weight)
    first, second = (kcalib.score_samples(y, model, "crps") for model in models.values())
    w = np.ones(n) if weight is None else weight / weight.mean()
    mean = np.average(first - second, weights=w)
    z = w * (first - second - mean)
    variance = sum((1 if k == 0 else 2) * np.sum(z[k:] * z[: n - k]) / n for k in range(horizon)) / n
    statistic = mean / np.sqrt(variance) * np.sqrt((n + 1 - 2 * horizon + horizon * (horizon - 1) / n) / n)
    d = result.differences[0]
    assert d.difference == pytest.approx(mean) and mean / d.standard_error == pytest.approx(statistic)
    assert d.pvalue == pytest.approx(2 * scipy.stats.t(n - 1).sf(abs(statistic)))
    if horizon == 1 and not weighted:
        plain = kcalib.compare(y, models, metric="crps").differences[0]
        assert d.pvalue == pytest.approx(plain.pvalue) and d.standard_error == pytest.approx(plain.standard_error)


def test_a_variance_that_is_not_positive_has_bartlett_weights():
    p = np.tile([0.2, 0.4], 20)  # differences alternate, so that the autocovariance of lag 1 is minus the variance
    y, models = np.zeros(40, dtype=int), {"a": p, "b": p[::-1]}
    result = kcalib.compare(y, models, metric="brier_score", time_blocks=2)
    assert result.intervals.endswith("Bartlett's weights where the variance would be negative")
    d = result.differences[0]
    assert d.standard_error == pytest.approx(0.12 * np.sqrt((1 - 39 / 40) / (40 - 3 + 2 / 40)), rel=1e-9)
    d = kcalib.compare(y, {"a": np.full(40, 0.2), "b": np.full(40, 0.4)}, metric="brier_score", time_blocks=10)
    assert d.differences[0].pvalue == 1  # 4 blocks may all miss a share of 0.11, whose differences are 1: 2 * 0.89**4


@pytest.mark.parametrize("options", [{}, {"clusters": np.arange(120) // 10}, {"time_blocks": 6}])
def test_differences_that_are_all_equal_exclude_nothing(options):
    models = {"a": Normal(np.zeros(120), np.ones(120)), "b": Normal(np.zeros(120), np.full(120, 2.0))}
    difference = kcalib.compare(np.zeros(120), models, metric="crps", **options).differences[0]
    assert difference.pvalue == 1 and difference.confidence_interval == (-np.inf, np.inf)


def test_forecasts_of_several_steps_keep_the_level():
    """Errors of h steps ahead are sums of h shocks; pretending that samples are independent rejects too often."""
    h, n, rejections, quick = 6, 240, np.zeros(4), kcalib.methods.Adaptive(n_resamples=99, n_columns=16)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        y, *means = (np.convolve(rng.normal(size=n + h - 1), np.ones(h), "valid") / h for _ in range(3))
        models = {name: Normal(mean, np.ones(n)) for name, mean in zip("ab", means, strict=True)}
        for k, blocks in enumerate((h, None)):
            rejections[k] += kcalib.compare(y, models, metric="crps", time_blocks=blocks).differences[0].pvalue <= 0.05
        law = Normal(np.zeros(n), np.full(n, h**-0.5))
        for k, blocks in enumerate((5 * h, None), 2) if seed < 8 else ():
            options = {"method": quick, "seed": seed, "threads": 1, "time_blocks": blocks}
            rejections[k] += 5 * (kcalib.calibration_test(y, law, **options).pvalue <= 0.05)
    highest = [binomial_bounds(sets, 0.08, 1e-3)[1] * 40 for sets in (40, 8)]  # 0.05, and what edges of blocks take
    assert rejections[0] <= highest[0] < rejections[1] and rejections[2] <= highest[1] < rejections[3]


def test_blocks_of_time_are_clusters_of_successive_samples():
    y, models, _ = make_models(3)
    blocks = np.arange(len(y)) // 7
    options = {"seed": 0, "threads": 1}
    each = {"time_blocks": 7}, {"clusters": blocks}
    found, expected = (kcalib.calibration_test(y, models["a"], **grouping, **options) for grouping in each)
    assert (found.pvalue, found.null_law) == (expected.pvalue, expected.null_law)
    found, expected = (kcalib.compare(y, models, **grouping, **options) for grouping in each)
    assert found.differences == expected.differences and "43 blocks" in found.intervals
    with pytest.raises(ValueError, match="`time_blocks` makes clusters of successive samples, and `clusters` is given"):
        kcalib.compare(y, models, time_blocks=7, clusters=blocks)
    with pytest.raises(ValueError, match="`time_blocks` has 3 clusters, too few"):
        kcalib.calibration_test(np.zeros(300, dtype=int), np.full(300, 0.02), time_blocks=100)
    with pytest.raises(ValueError, match="`time_blocks` has no meaning for the method 'spectrum'; use 'adaptive'"):
        kcalib.calibration_test(y, models["a"], time_blocks=7, method="spectrum")
    with pytest.raises(ValueError, match="`time_blocks` leaves 3 blocks"):
        kcalib.compare(y, models, metric="brier_score", time_blocks=100)
    with pytest.raises(ValueError, match="`time_blocks` has no meaning for the metric 'ece'"):
        kcalib.compare(y, models, metric="ece", time_blocks=7)


def test_scores_of_samples_have_the_scores_as_means():
    y, models, _ = make_models(4)
    p, w = models["a"], np.random.default_rng(0).exponential(size=len(y))
    for name in ("brier_score", "log_loss"):
        values = kcalib.score_samples(y, p, name)
        assert np.average(values, weights=w) == pytest.approx(getattr(kcalib, name)(y, p, sample_weight=w))
    x, law = np.array([0.0, 3.0]), Normal([0.0, 1.0], [1.0, 2.0])
    for name in ("crps", "log_score"):
        alone = [getattr(kcalib, name)(x[k : k + 1], law.take(slice(k, k + 1))) for k in range(2)]
        assert kcalib.score_samples(x, law, name) == pytest.approx(alone)
    with pytest.raises(
        ValueError, match="`metric` is 'ece', no mean of scores of class probabilities; use 'brier_score' or 'log_loss'"
    ):
        kcalib.score_samples(y, p, "ece")
    with pytest.raises(ValueError, match="use 'crps' or 'log_score'"):
        kcalib.score_samples(x, law, "brier_score")
