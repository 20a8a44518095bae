"""Samples in clusters: levels where labels depend on each other, refusals where events are rare, and what is seen."""

import numpy as np
import pytest
from problems import binomial_bounds

import kcalib
from kcalib.distributions import Normal, Poisson, Samples
from kcalib.methods import Adaptive

SETS = 60
QUICK = Adaptive(n_resamples=39, n_columns=16)


def draw_dependent(p, cluster, correlation, rng):
    """Labels of which those of a cluster are the ones of a single uniform number with the probability `correlation`."""
    shared, own = rng.uniform(size=cluster.max() + 1)[cluster], rng.uniform(size=len(p))
    uniform = np.where(rng.uniform(size=len(p)) < np.sqrt(correlation), shared, own)
    return np.minimum((p.cumsum(axis=1) <= uniform[:, None]).sum(axis=1), p.shape[1] - 1)


def count_rejections(predictions, correlation, *, with_clusters=True, sets=SETS):
    rejections = 0
    for i in range(sets):
        rng = np.random.default_rng([41, i])
        p, cluster = predictions(rng)
        y = draw_dependent(p, cluster, correlation, rng)
        clusters = cluster if with_clusters else None
        result = kcalib.calibration_test(y, p, clusters=clusters, method=QUICK, seed=i, threads=1)
        rejections += result.pvalue <= 0.05 + 1e-9
    return rejections / sets


def repeated_rows(rng):
    return rng.dirichlet(np.full(4, 0.5), size=60).repeat(5, axis=0), np.arange(60).repeat(5)


@pytest.mark.grid
def test_repeated_rows_keep_the_level():
    _, high = binomial_bounds(SETS, 0.05, 1e-3)
    assert count_rejections(repeated_rows, 1.0, with_clusters=False) > 2 * high
    assert count_rejections(repeated_rows, 1.0) <= high


@pytest.mark.parametrize(("n_clusters", "probability"), [(30, 0.5), (30, 0.2), (200, 0.05)])
def test_dependent_labels_keep_the_level(n_clusters, probability):
    def predictions(rng):
        cluster = np.arange(n_clusters).repeat(5)
        return np.tile([1 - probability, probability], (len(cluster), 1)), cluster

    _, high = binomial_bounds(SETS, 0.05, 1e-3)
    assert count_rejections(predictions, 0.3) <= high


def test_rare_classes_beside_frequent_ones_keep_the_level():
    def predictions(rng):
        return rng.dirichlet(10 / np.arange(1, 13) ** 2.0, size=300), np.arange(60).repeat(5)

    _, high = binomial_bounds(SETS, 0.05, 1e-3)
    assert count_rejections(predictions, 0.5) <= high


def test_events_that_are_too_rare_are_refused_with_the_number_of_clusters_that_is_needed():
    def make(n_clusters):
        cluster = np.arange(n_clusters).repeat(20)
        p = np.full(len(cluster), 0.02)
        return np.random.default_rng(0).uniform(size=len(p)) < p, p, cluster

    y, p, cluster = make(30)
    with pytest.raises(ValueError, match="`clusters` has 30 clusters, too few.*skewness of 1.3, expected at most") as e:
        kcalib.calibration_test(y, p, clusters=cluster, method="adaptive")
    needed = int(str(e.value).rsplit("about ", 1)[1].split()[0])
    assert needed == pytest.approx(30 * (0.96 / np.sqrt(30 * 0.02 * 0.98) / 0.3) ** 2, rel=0.2)
    y, p, cluster = make(round(1.2 * needed))
    assert kcalib.calibration_test(y, p, clusters=cluster, method=QUICK).n_samples == 20 * round(1.2 * needed)


def test_blocks_of_rare_events_are_left_out_beside_others():
    rng = np.random.default_rng(0)
    p, cluster = np.where(rng.uniform(size=400) < 0.5, 0.001, rng.uniform(0.4, 0.6, 400)), np.arange(40).repeat(10)
    p[cluster >= 35] = 1e-9
    result = kcalib.calibration_test(rng.uniform(size=400) < p, p, clusters=cluster, method="adaptive", seed=0)
    left_out = {"temperature", "bias", "classes", "top label", "kernel", "fine kernel"} - {
        b.name for b in result.blocks
    }
    assert left_out == {"temperature"}
    assert result.null_law.endswith("too few clusters for temperature")


def test_statistics_by_hand_do_not_depend_on_the_order_of_samples():
    rng = np.random.default_rng(3)
    p, cluster = rng.dirichlet(np.ones(3), size=300), np.sort(rng.integers(0, 50, size=300))
    y = draw_dependent(p, cluster, 0.3, rng)
    blocks = kcalib.calibration_test(y, p, clusters=cluster, method="adaptive", seed=0).blocks
    bias = 0.0
    for k in range(3):
        sums = np.bincount(cluster, (y == k) - p[:, k])
        full = np.sum(np.bincount(cluster, np.sqrt(p[:, k] * (1 - p[:, k]))) ** 2)
        bias += np.sum(sums) ** 2 / max(np.sum(sums**2), full)  # means of squares over flips come near
    assert next(b.statistic for b in blocks if b.name == "bias") == pytest.approx(bias, rel=0.2)

    order, kernel = rng.permutation(300), kcalib.kernels.Exponential(0.5)
    options = {"method": QUICK, "kernel": kernel, "seed": 0}
    test = kcalib.calibration_test(y, p, clusters=cluster, **options)
    other = kcalib.calibration_test(y[order], p[order], clusters=cluster[order].astype(float), **options)
    assert (test.pvalue, test.standard_error) == (other.pvalue, None)
    for block, same in zip(test.blocks, other.blocks, strict=True):
        assert block.statistic == pytest.approx(same.statistic, rel=1e-9)


def test_over_confidence_is_seen():
    rng = np.random.default_rng(0)
    q, cluster = rng.dirichlet(np.ones(4), size=600), np.arange(120).repeat(5)
    y = draw_dependent(q, cluster, 0.3, rng)
    p = q**2 / (q**2).sum(axis=1, keepdims=True)
    result = kcalib.calibration_test(y, p, clusters=cluster, method="adaptive", seed=0)
    assert result.pvalue < 0.01
    temperature = result.blocks[0]
    assert (temperature.name, temperature.finding) == ("temperature", "over-confident")
    assert temperature.pvalue < 0.01


def test_a_label_of_probability_0_is_no_question_of_clusters():
    p, cluster = repeated_rows(np.random.default_rng(0))
    y = draw_dependent(p, cluster, 1.0, np.random.default_rng(1))
    p[7], y[7] = [0.5, 0.5, 0, 0], 3
    result = kcalib.calibration_test(y, p, clusters=cluster, seed=0)
    assert result.pvalue == 0
    assert "the label of sample 7 (counted from 0) has probability 0" in result.null_law


def test_evaluation_of_clusters_has_no_numbers_that_want_independent_samples():
    p, cluster = repeated_rows(np.random.default_rng(0))
    y = draw_dependent(p, cluster, 1.0, np.random.default_rng(1))
    result = kcalib.evaluate(y, p, clusters=cluster, method="adaptive", seed=0)
    alone = kcalib.evaluate(y, p, method="adaptive", seed=0)
    assert (result.accuracy, result.brier_score) == (alone.accuracy, alone.brier_score)
    assert not result.miscalibrated
    assert result.rms_error_lower is result.skce.standard_error is result.skce.null_standard_error is None
    single = kcalib.calibration_test(y[::5], p[::5], method="exact")
    assert result.skce.value == pytest.approx(single.estimate, abs=single.standard_error)
    assert alone.skce.value > result.skce.value  # pairs of the same row
    with pytest.raises(ValueError, match="`tolerance` is 0.1, but there is no bound"):
        kcalib.evaluate(y, p, clusters=cluster, method="adaptive", tolerance=0.1)


def draw_shared(n_clusters, rng):
    """Targets and normal predictions, of errors that have the correlation .3 in clusters of five."""
    mean, cluster = rng.normal(size=5 * n_clusters), np.arange(n_clusters).repeat(5)
    errors = np.sqrt(0.3) * rng.normal(size=n_clusters)[cluster] + np.sqrt(0.7) * rng.normal(size=len(mean))
    return mean + errors, mean, cluster


@pytest.mark.grid
def test_predicted_numbers_keep_the_level():
    _, high = binomial_bounds(SETS, 0.05, 1e-3)
    rejections = 0
    for i in range(SETS):
        y, mean, cluster = draw_shared(100, np.random.default_rng([43, i]))
        result = kcalib.calibration_test(
            y, Normal(mean, np.ones(500)), clusters=cluster, method=QUICK, seed=i, threads=1
        )
        rejections += result.pvalue <= 0.05 + 1e-9
    assert rejections / SETS <= high
    names = {block.name for block in result.blocks}
    assert names == {"bias", "dispersion", "PIT histogram", "kernel", "fine kernel"}
    assert result.null_law.endswith(
        "flips of the signs of 100 clusters, shared by 5 blocks; too few clusters for tails"
    )


@pytest.mark.parametrize(
    ("shift", "scale", "finding"),
    [(0.5, 1.0, "predictions too low"), (0.0, 0.8, "over-confident"), (0.0, 1.25, "under-confident")],
)
def test_errors_of_predicted_numbers_are_seen(shift, scale, finding):
    y, mean, cluster = draw_shared(400, np.random.default_rng(0))
    prediction = Normal(mean - shift, np.full(2000, scale))
    result = kcalib.calibration_test(y, prediction, clusters=cluster, method=QUICK, seed=0)
    block = next(block for block in result.blocks if block.name == ("bias" if shift else "dispersion"))
    least = 1 / (1 + QUICK.n_resamples)
    assert (result.pvalue, block.pvalue, block.finding) == (least, least, finding)
    score = (y - mean + shift) / scale
    total = score if shift else score**2 - 1
    own = np.sum(np.bincount(cluster, total) ** 2)
    full = (1 if shift else 2) * 400 * 5**2
    # The mean of squares over flips has the observed sum among the others.
    scale_of_sums = max(own + np.sum(total) ** 2 * least, full)
    assert block.statistic == pytest.approx(np.sum(total) ** 2 / scale_of_sums, rel=0.3)


def test_evaluation_of_counts_in_clusters():
    rng = np.random.default_rng(5)
    rate, cluster = rng.uniform(1, 5, size=900), np.arange(300).repeat(3)
    result = kcalib.evaluate(rng.poisson(rate), Poisson(rate), clusters=cluster, method=QUICK, seed=0)
    assert not result.miscalibrated
    assert result.rms_error_lower is result.rms_distance_lower is result.skce.standard_error is None
    assert "300 clusters" in result.test.null_law


def test_vectors_in_clusters_have_kernels_alone():
    rng = np.random.default_rng(5)
    prediction = Samples(rng.normal(size=(200, 20, 2)))
    result = kcalib.calibration_test(
        rng.normal(size=(200, 2)), prediction, clusters=np.arange(200) // 2, method=QUICK, seed=0
    )
    assert [block.name for block in result.blocks] == ["kernel", "fine kernel"]
    with pytest.raises(ValueError, match="too few.*the targets of a cluster.*needs about"):
        kcalib.calibration_test(
            rng.normal(size=(200, 2)), prediction, clusters=np.arange(200) // 20, method=QUICK, seed=0
        )


@pytest.mark.parametrize(
    ("clusters", "message"),
    [
        ([0, 1, 2], r"`clusters` has the shape \(3,\), expected \(4,\)"),
        ([0, 1, float("nan"), 1], r"`clusters\[2\]` is nan, expected the cluster of the sample; give a sample"),
        ([1, 1, 1, 1], "`clusters` has 1 cluster of positive weight, expected at least 2"),
    ],
)
def test_clusters_are_checked(clusters, message):
    with pytest.raises(ValueError, match=message):
        kcalib.calibration_test([0, 1, 1, 0], [0.4, 0.6, 0.5, 0.5], clusters=clusters, method="adaptive")


def test_what_has_no_clusters_refuses_them():
    y, p, clusters = [0, 1, 1, 0], [0.4, 0.6, 0.5, 0.5], [0, 0, 1, 1]
    with pytest.raises(ValueError, match="`clusters` has no meaning for the method 'exact'; use 'adaptive'"):
        kcalib.calibration_test(y, p, clusters=clusters, method="exact")
    with pytest.raises(ValueError, match="`clusters` is given, but sums over a source have no such option"):
        kcalib.calibration_test(kcalib.streaming.source((y, p)), clusters=clusters)
