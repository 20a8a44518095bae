"""The adaptive test: its blocks by hand, its level, what it sees, and how far below the draws it goes."""

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.stats
from grid import some

import kcalib
from kcalib.distributions import Beta, Mixture, MultivariateNormal, Normal, Poisson, Samples
from kcalib.inference.adaptive import blocks as adaptive_blocks
from kcalib.inference.adaptive import flips, witness
from kcalib.kernels import Cosine, Exponential, Gaussian
from kcalib.methods import Adaptive


def drawn_labels(p, rng):
    return (p.cumsum(axis=1)[:, :-1] <= rng.uniform(size=(len(p), 1))).sum(axis=1)


def tempered(p, power):
    q = p**power
    return q / q.sum(axis=1, keepdims=True)


def test_blocks_by_hand():
    rng = np.random.default_rng(0)
    n, m = 60, 3
    p = rng.dirichlet(np.ones(m), size=n)
    y = drawn_labels(p, rng)
    result = kcalib.calibration_test(y, p, method=Adaptive(n_resamples=19), seed=0)
    statistics = {block.name: block.statistic for block in result.blocks}
    assert list(statistics) == ["temperature", "bias", "classes", "top label", "kernel", "fine kernel"]

    score = variance = 0.0
    for i in range(n):
        log_p = [math.log(p[i, c]) for c in range(m)]
        mean = sum(p[i, c] * log_p[c] for c in range(m))
        score += log_p[y[i]] - mean
        variance += sum(p[i, c] * (log_p[c] - mean) ** 2 for c in range(m))
    assert statistics["temperature"] == pytest.approx(score**2 / variance, rel=1e-12)

    bias = 0.0
    for c in range(m):
        residual = sum(float(y[i] == c) - p[i, c] for i in range(n))
        bias += residual**2 / sum(p[i, c] * (1 - p[i, c]) for i in range(n))
    assert statistics["bias"] == pytest.approx(bias, rel=1e-12)

    def in_bins(values, hits, n_bins):
        cells = [sum(edge <= value for edge in edges) for value in values]
        ranks = [sum(c < cell for c in cells) + cells.count(cell) / 2 for cell in cells]
        residuals, variances = np.zeros(n_bins), np.zeros(n_bins)
        for rank, value, hit in zip(ranks, values, hits, strict=True):
            b = min(int(rank * n_bins / n), n_bins - 1)
            residuals[b] += hit - value
            variances[b] += value * (1 - value)
        return sum(r**2 / max(v, 0.5) for r, v in zip(residuals, variances, strict=True))

    edges = [k / 256 for k in range(1, 256)]
    for k in range(1, 129):  # so many in 40 octaves
        octave = math.ceil(40 * k / 128)
        small = 2.0**-octave * (1 + octave - 40 * k / 128)
        edges += [small, 1 - small]
    classes = sum(in_bins(p[:, c], (y == c).astype(float), 10) for c in range(m))
    assert statistics["classes"] == pytest.approx(classes, rel=1e-12)
    top = in_bins(p.max(axis=1), (y == p.argmax(axis=1)).astype(float), 15)
    assert statistics["top label"] == pytest.approx(top, rel=1e-12)
    features = kcalib.calibration_test(y, p, method=kcalib.methods.Features(n_resamples=19), seed=0)
    assert statistics["kernel"] / (n - 1) == pytest.approx(features.statistic, rel=1e-9)
    assert result.estimate == pytest.approx(kcalib.skce(y, p), rel=1e-12)


def rare(rng, n):
    return np.stack([1 - (q := rng.uniform(0, 0.02, size=n)), q], axis=1)


def rounded(rng, n):
    u = rng.integers(0, 11, size=n) / 10
    return np.stack([1 - u, u], axis=1)


def saturated(rng, n):
    logits = 12 * rng.normal(size=(n, 5))
    q = np.exp(logits - logits.max(axis=1, keepdims=True))
    return q / q.sum(axis=1, keepdims=True)


def constant(rng, n):
    return np.tile([0.2, 0.3, 0.5], (n, 1))


@pytest.mark.parametrize("law", some([rare, rounded, saturated, constant], rare, rounded))
@pytest.mark.parametrize("n", [12, pytest.param(100, marks=pytest.mark.grid)])
def test_level(law, n):
    count, pvalues = 100, []
    for number in range(count):
        rng = np.random.default_rng([number, n])
        p = law(rng, n)
        pvalues.append(kcalib.calibration_test(drawn_labels(p, rng), p, method=Adaptive(39), seed=number).pvalue)
    for level in (0.025, 0.05, 0.2, 0.5):
        assert np.sum(np.array(pvalues) <= level) <= scipy.stats.binom.isf(1e-4, count, level)


@pytest.mark.parametrize(
    "predicted", ["normal", *(pytest.param(k, marks=pytest.mark.grid) for k in ("counts", "vectors"))]
)
def test_level_of_distributions(predicted):
    count, n, pvalues = 30, 30, []
    for number in range(count):
        rng = np.random.default_rng([number, 1])
        if predicted == "counts":
            rate = rng.gamma(1.0, size=n)
            y, prediction = rng.poisson(rate), Poisson(rate)
        elif predicted == "normal":
            mean, scale = rng.normal(size=n), rng.uniform(0.5, 2, size=n)
            y, prediction = rng.normal(mean, scale), Normal(mean, scale)
        else:
            mean = rng.normal(size=(n, 2))
            y, prediction = mean + rng.normal(size=(n, 2)), MultivariateNormal(mean, np.tile(np.eye(2), (n, 1, 1)))
        pvalues.append(kcalib.calibration_test(y, prediction, method=Adaptive(19, 16), seed=number).pvalue)
    for level in (0.05, 0.2, 0.5):
        assert np.sum(np.array(pvalues) <= level) <= scipy.stats.binom.isf(1e-4, count, level)


def further_problem(name, rng, n=30):
    mean, rows = rng.normal(size=n), np.arange(n)
    if name == "rare counts":
        rate = 10 ** rng.uniform(-2.5, -0.5, size=n)
        return rng.poisson(rate), Poisson(rate)
    if name == "three members":
        members = rng.normal(size=(n, 3))
        return members[rows, rng.integers(3, size=n)], Samples(members)
    if name == "equal members":
        members = rng.integers(3, size=(n, 5)).astype(float)
        return members[rows, rng.integers(5, size=n)], Samples(members)
    if name == "rounded targets":
        std = 10 ** rng.uniform(-15, -13, size=n)
        return mean + std * rng.normal(size=n), Normal(mean, std)
    if name == "small unit":
        std = 1e-9 * rng.uniform(0.5, 2, size=n)
        return 1e-9 * mean + std * rng.normal(size=n), Normal(1e-9 * mean, std)
    if name == "infinite density":
        a = np.full(n, 0.05)
        return rng.beta(a, a), Beta(a, a)
    is_first = rng.uniform(size=n) < 0.3
    y = np.where(is_first, mean + rng.normal(size=n), mean + 1 + 0.5 * rng.normal(size=n))
    return y, Mixture([0.3, 0.7], [Normal(mean, np.ones(n)), Normal(mean + 1, np.full(n, 0.5))])


FURTHER = (
    "rare counts", "three members", "equal members", "rounded targets", "small unit", "infinite density", "mixture",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::kcalib.AntiConservativeWarning")
@pytest.mark.parametrize("name", FURTHER)
def test_level_of_further_distributions(name):
    pvalues = []
    for number in range(200):
        y, prediction = further_problem(name, np.random.default_rng([7, number]))
        pvalues.append(kcalib.calibration_test(y, prediction, method=Adaptive(39, 16), seed=number).pvalue)
    for level in (0.025, 0.05, 0.2, 0.5):
        assert np.sum(np.array(pvalues) <= level) <= scipy.stats.binom.isf(1e-3, 200, level)


def test_power_where_the_kernel_is_blind():
    rejected, by_kernel = 0, 0
    for number in range(25):
        rng = np.random.default_rng(number)
        p = rng.dirichlet(np.full(10, 0.3), size=300)
        y = drawn_labels(tempered(p, 0.65), rng)
        rejected += kcalib.calibration_test(y, p, method=Adaptive(99), seed=number).pvalue <= 0.05
        by_kernel += kcalib.calibration_test(y, p, method=kcalib.methods.Exact(199), seed=number).pvalue <= 0.05
    assert rejected >= 23
    assert by_kernel <= 13


def classes_of(p, power, rng):
    return drawn_labels(tempered(p, power), rng)


@pytest.mark.parametrize(
    ("expected", "change"),
    [
        ("over-confident", lambda p: tempered(p, 0.7)),
        ("under-confident", lambda p: tempered(p, 1.5)),
        ("class 'b' predicted too often", lambda p: p * [1, 0.75, 1] + [0.125, 0, 0.125] * p[:, 1:2]),
    ],
)
def test_findings(expected, change):
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.full(3, 2.0), size=4000)
    y = np.array(["a", "b", "c"])[drawn_labels(change(p), rng)]
    result = kcalib.calibration_test(y, p, method="adaptive", seed=0)
    assert result.pvalue < 0.01
    assert expected in {block.finding for block in result.blocks if block.approximate_pvalue < 1e-4}
    if "confident" in expected:
        assert result.finding == expected


def test_findings_of_distributions():
    rng = np.random.default_rng(4)
    mean = rng.normal(size=1500)
    y = rng.normal(mean, 1.0)
    for prediction, expected in (
        (Normal(mean, np.full(1500, 0.8)), "over-confident"),
        (Normal(mean, np.full(1500, 1.25)), "under-confident"),
        (Normal(mean + 0.2, np.ones(1500)), "predictions too high"),
    ):
        result = kcalib.calibration_test(y, prediction, method=Adaptive(99, 16), seed=0)
        assert result.pvalue < 0.001
        assert expected in {block.finding for block in result.blocks[:2] if block.approximate_pvalue < 1e-4}


def test_bound_is_above_the_exact_tail():
    # Six coins: the bound of the p-value is above the exact one, over all labels at least as far.
    p = np.array([0.05, 0.1, 0.1, 0.2, 0.15, 0.1])
    y = np.ones(6, dtype=int)
    result = kcalib.calibration_test(y, p, method=Adaptive(n_resamples=19), seed=0)
    rows = np.stack([1 - p, p], axis=1)
    log_p = np.log(rows)
    centred = log_p - np.sum(rows * log_p, axis=1, keepdims=True)

    def score(labels):
        return sum(centred[i, k] for i, k in enumerate(labels))

    observed = abs(score(y))
    exact = sum(
        math.prod(rows[i, k] for i, k in enumerate(labels))
        for labels in itertools.product((0, 1), repeat=6)
        if abs(score(labels)) >= observed * (1 - 1e-12)
    )
    assert result.pvalue_from == "bound"
    assert exact < result.pvalue < 1 / 20


def test_bound_of_saturated_predictions():
    """Chernoff's bound is near the exact binomial tail, whose events have the probability 1e-6."""
    y, p = np.zeros(300, dtype=int), np.tile([1 - 1e-6, 1e-6], (300, 1))
    y[:20] = 1
    result = kcalib.calibration_test(y, p, method=Adaptive(n_resamples=19), seed=0)
    exact = scipy.stats.binom.logsf(19, 300, 1e-6)
    assert result.pvalue_from == "bound" and exact < result.log_pvalue < 0.9 * exact


def test_bound_takes_errors_that_float32_rounds_away_from_other_entries():
    n = 2000
    p = np.full((n, 10), 2.7e-6, dtype=np.float32)
    p[:, 0] = 1.0
    y = np.zeros(n, dtype=int)
    y[5] = 3
    result = kcalib.calibration_test(y, p / p.sum(axis=1, keepdims=True), method=Adaptive(n_resamples=99), seed=0)
    assert result.pvalue >= 1 / 100  # the probability of one error in all is 0.05


def test_rows_with_exact_zeros():
    p = np.tile([1 - 1e-6, 1e-6, 0.0], (300, 1))
    y = np.zeros(300, dtype=int)
    y[:5] = 1
    assert -90 < kcalib.calibration_test(y, p, method=Adaptive(n_resamples=19), seed=0).log_pvalue < -30


def test_samples_have_no_bound():
    """PIT values of samples are ranks: labels drawn from them are not uniform, and draws alone say what is known."""
    smallest = 1.0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(300, 2))
        y = z[np.arange(300), rng.integers(2, size=300)]
        result = kcalib.calibration_test(y, kcalib.distributions.Samples(z), method=Adaptive(19, 16), seed=seed)
        smallest = min(smallest, result.pvalue)
    assert smallest >= 1 / 20


def test_largest_seed():
    p = [[0.5, 0.5], [0.3, 0.7], [0.2, 0.8]]
    assert kcalib.calibration_test([0, 1, 1], p, method=Adaptive(9), seed=2**63 - 1).seed == 2**63 - 1


@pytest.mark.parametrize("n", [2000, 8000])
def test_bound_against_the_normal_law(n):
    """Chernoff's bound of a sum with variance V at z deviations is near exp(-z^2 / 2), less what skewness adds."""
    rng = np.random.default_rng(5)
    u = rng.uniform(0.3, 0.7, size=n)
    y = rng.uniform(size=n) < u - 0.08
    result = kcalib.calibration_test(y, u, method="adaptive", seed=0)
    z = np.sum(y - u) / np.sqrt(np.sum(u * (1 - u)))
    assert result.pvalue_from == "bound"
    assert result.log_pvalue == pytest.approx(-(z**2) / 2 + math.log(2 * 2 * 6), rel=0.05)
    assert result.log_pvalue >= scipy.stats.norm.logsf(abs(z))


def test_evidence_grows_and_is_never_shown_as_zero():
    rng = np.random.default_rng(6)
    p = saturated(rng, 8000)
    y = drawn_labels(tempered(p, 0.2), rng)
    results = [kcalib.calibration_test(y[:n], p[:n], method="adaptive", seed=0) for n in (500, 2000, 8000)]
    logarithms = [result.log_pvalue for result in results]
    assert logarithms[0] > logarithms[1] > logarithms[2] > -math.inf
    assert logarithms[2] < -750
    assert results[2].pvalue == 0
    assert "<1e-300" in str(results[2])


def test_tiny_bandwidths_are_raised_and_said():
    rng = np.random.default_rng(12)
    p = saturated(rng, 400)
    y = drawn_labels(p, rng)
    result = kcalib.calibration_test(y, p, kernel=kcalib.kernels.Exponential(1e-4), method="adaptive", seed=0)
    assert "its kernels have the bandwidths 0.05 and 0.02" in result.null_law and result.bandwidth == 1e-4
    wide = kcalib.calibration_test(y, p, kernel=kcalib.kernels.Exponential(0.05), method="adaptive", seed=0)
    assert "bandwidths" not in wide.null_law
    assert result.blocks[4].statistic == pytest.approx(wide.blocks[4].statistic, rel=1e-9)


def test_two_classes_are_named_by_the_second_and_weights_leave_the_draws_alone():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.5, size=400)
    y = (rng.uniform(size=400) < p + 0.4).astype(int)
    found = kcalib.calibration_test(y, p, method="adaptive", seed=0)
    assert found.pvalue < 1e-60  # by bounds
    assert [block.finding.partition(" from")[0] for block in found.blocks[1:3]] == [
        "class 1 predicted too rarely",
        "probabilities of class 1",
    ]
    weighted = kcalib.calibration_test(y, p, method="adaptive", sample_weight=rng.uniform(0.5, 2, size=400), seed=0)
    assert weighted.pvalue == 1 / (weighted.n_resamples + 1)


def test_members_that_are_equal_have_the_blocks_of_their_weights():
    """Members of equal weights are drawn by their places, those of given weights by the weights' sums."""
    rng = np.random.default_rng(1)
    members, y = rng.integers(3, size=(300, 6)).astype(float), rng.integers(3, size=300).astype(float)
    by_place, by_weight = (
        kcalib.calibration_test(y, Samples(members, weights=weights), method="adaptive", seed=0)
        for weights in (None, np.full((300, 6), 1 / 6))
    )
    for one, other in zip(by_place.blocks, by_weight.blocks, strict=True):
        assert (one.pvalue, one.finding) == (other.pvalue, other.finding)
        assert one.statistic == pytest.approx(other.statistic, rel=1e-9)


@pytest.mark.parametrize(("width", "finding"), [(0.3, "90% hold too many"), (3.0, "99% hold too few")])
def test_dispersion_that_is_off_has_its_chi_square_law_however_far(width, finding):
    rng = np.random.default_rng(1)
    mean, error = rng.normal(size=300), width * rng.normal(size=300)
    found = kcalib.calibration_test(mean + error, Normal(mean, np.ones(300)), method="adaptive", seed=0)
    assert found.blocks[3].finding == f"intervals of {finding} targets"
    half = np.sum(error**2) / 2  # whose digits PIT values next to 1 do not all have
    ends = (half, mpmath.inf) if width > 1 else (0, half)
    log_tail = float(mpmath.log(mpmath.gammainc(150, *ends, regularized=True)))
    assert found.log_pvalue == pytest.approx(math.log(2 * len(found.blocks)) + log_tail, rel=0.02)


def test_the_distance_has_the_units_of_the_targets():
    rng = np.random.default_rng(1)
    mean, error = rng.normal(size=300), rng.normal(0.5, 2, size=300)
    one, milli = (
        kcalib.evaluate(unit * (mean + error), Normal(unit * mean, np.full(300, unit)), seed=0).rms_distance_lower
        for unit in (1.0, 1e-3)
    )
    assert milli == pytest.approx(1e-3 * one, rel=1e-9) and one > 0.3


def test_the_bin_that_is_off_is_said():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.95, size=400)
    y = (rng.uniform(size=400) < p) | ((p > 0.3) & (p < 0.4))
    found = kcalib.calibration_test(y.astype(int), p, method="adaptive", seed=0)
    assert found.blocks[2].finding == "probabilities of class 1 from 0.33 to 0.4 too low"


def test_the_map_of_the_witness_is_that_of_the_labels():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=5000)
    q = p**1.5 * np.exp([0.5, 0.0, -0.5])
    exponent, shift = witness.fit_map(p, drawn_labels(q / q.sum(axis=1, keepdims=True), rng))
    assert exponent == pytest.approx(1.5, abs=0.15) and shift - shift.mean() == pytest.approx([0.5, 0, -0.5], abs=0.15)


@pytest.mark.parametrize(("p", "text"), [(0.25, "0.25"), (0.995, "0.995"), (0.9998, "0.9998"), (1 - 2e-5, "1 - 2e-05")])
def test_probabilities_have_the_digits_of_their_distance_to_one(p, text):
    assert adaptive_blocks.format_probability(p) == text


def test_few_target_features_have_the_inner_products_of_many():
    reduced = flips.reduce_targets(np.eye(200), 0)
    assert np.abs(reduced) == pytest.approx(np.full((200, flips.MOST_TARGETS), flips.MOST_TARGETS**-0.5))


def test_verdict_says_what_was_found():
    rng = np.random.default_rng(11)
    p = rng.dirichlet(np.full(10, 0.3), size=1000)
    e = kcalib.evaluate(drawn_labels(tempered(p, 0.7), rng), p, method="adaptive", seed=0)
    assert e.verdict.startswith("miscalibrated, over-confident: off by at least 0.") and e.test.method == "adaptive"
    e = kcalib.evaluate(drawn_labels(p, rng), p, method="adaptive", seed=0)
    assert e.verdict == "no evidence against calibration"
    mean = rng.normal(size=300)
    y = rng.normal(mean, 1.0)
    e = kcalib.evaluate(y, Normal(mean + 0.5, np.ones(300)), method=Adaptive(99, 16), seed=0)
    assert e.verdict.startswith("miscalibrated, predictions too high")


def test_label_of_probability_zero():
    p = np.tile([0.5, 0.5, 0.0], (30, 1))
    y = np.arange(30) % 2
    assert kcalib.calibration_test(y, p, method="adaptive", seed=0).pvalue > 0.05
    y[17] = 2
    result = kcalib.calibration_test(y, p, method="adaptive", seed=0)
    assert result.log_pvalue == -math.inf
    assert result.finding == "the label of sample 17 (counted from 0) has probability 0"
    assert result.null_law.endswith(f"; {result.finding}")
    assert f"miscalibrated, {result.finding}\n" in str(kcalib.evaluate(y, p, seed=0))


def test_a_label_of_probability_zero_does_not_hide_the_error_of_all_predictions():
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(3), size=1000)
    y = drawn_labels(tempered(p, 0.5), rng)
    p[7], y[7] = [0.5, 0.5, 0.0], 2
    result = kcalib.calibration_test(y, p, seed=0)
    assert result.log_pvalue == -math.inf and result.finding == "over-confident"


@pytest.mark.parametrize("m", [2, 7, 200])
def test_same_bits_for_any_number_of_threads(m):
    rng = np.random.default_rng(7)
    p = rng.dirichlet(np.full(m, 0.5), size=900)
    y = drawn_labels(p, rng)
    one, two = (
        kcalib.calibration_test(y, p, method=Adaptive(n_resamples=130), seed=1, threads=threads) for threads in (1, 2)
    )
    assert dataclasses.replace(one, threads=None) == dataclasses.replace(two, threads=None)


@pytest.mark.parametrize(
    ("n", "m", "estimator"), [(300, 5, "unbiased"), (4500, 1000, "features"), (9000, 2, "unbiased")]
)
def test_evaluations_of_few_and_many_samples(n, m, estimator):
    """The SKCE beside the blocks is of all pairs, or of random features where that would take long."""
    rng = np.random.default_rng(8)
    p = rng.dirichlet(np.full(m, 0.4), size=n)
    e = kcalib.evaluate(drawn_labels(p, rng), p, method=Adaptive(19), seed=2)
    assert e.skce.estimator == estimator and e.skce.value == e.test.estimate
    assert e.verdict == "no evidence against calibration" and e.rms_error_lower == 0


@pytest.mark.parametrize("lens", [kcalib.lenses.TopLabel(), kcalib.lenses.ClassWise(1)])
def test_lenses(lens):
    rng = np.random.default_rng(9)
    p = rng.dirichlet(np.full(4, 0.5), size=2000)
    result = kcalib.calibration_test(drawn_labels(tempered(p, 0.6), rng), p, method="adaptive", lens=lens, seed=0)
    assert result.pvalue < 1e-3
    assert result.n_classes == 2


def test_bad_options():
    with pytest.raises(ValueError, match="n_columns"):
        Adaptive(n_columns=10)
    with pytest.raises(ValueError, match="n_resamples"):
        Adaptive(n_resamples=0)
    with pytest.raises(ValueError, match="needs at least 2 samples"):
        kcalib.calibration_test([1], [0.4], method="adaptive")


def without_features(y, prediction, **options):
    with pytest.warns(kcalib.IndefiniteKernelWarning):
        return kcalib.calibration_test(y, prediction, kernel=NO_FEATURES, seed=3, **options)


def assert_equal_blocks(blocks, expected):
    """Compare blocks whose logarithms are added in another order."""
    for block, other in zip(blocks, expected, strict=True):
        assert (block.name, block.pvalue, block.finding) == (other.name, other.pvalue, other.finding)
        assert block.approximate_pvalue == pytest.approx(other.approximate_pvalue, rel=1e-9)


NO_FEATURES = Gaussian(bandwidth=0.5, metric="cityblock")


@pytest.mark.parametrize("m", [3, 5])
def test_kernels_without_features_have_a_block_of_all_pairs_by_the_same_draws(m):
    rng = np.random.default_rng(5)
    p = rng.dirichlet(np.ones(m), size=80)
    y = drawn_labels(p, rng)
    result = without_features(y, p)
    others = kcalib.calibration_test(y, p, kernel=Exponential(bandwidth=0.5), seed=3)
    assert [block.name for block in result.blocks] == ["temperature", "bias", "classes", "top label", "kernel"]
    assert_equal_blocks(result.blocks[:4], others.blocks[:4])
    assert "no random features: its block is of all pairs" in result.null_law and result.n_resamples == 999
    with pytest.warns(kcalib.IndefiniteKernelWarning):
        estimate = kcalib.skce(y, p, kernel=NO_FEATURES)
    assert result.estimate == pytest.approx(estimate, rel=1e-12)
    assert result.blocks[4].statistic == pytest.approx(80 * 79 * estimate, rel=1e-9)
    # One draw of the same labels, whose statistic is that of the SKCE by another way.
    alone = without_features(y, p, method=Adaptive(n_resamples=1))
    drawn = drawn_labels(p, np.random.Generator(np.random.Philox(key=np.array([3, 0], dtype=np.uint64))))
    with pytest.warns(kcalib.IndefiniteKernelWarning):
        as_large = kcalib.skce(drawn, p, kernel=NO_FEATURES) >= estimate
    assert alone.blocks[4].pvalue == (1.0 if as_large else 0.5)


def test_the_block_of_all_pairs_is_left_out_where_draws_take_long(monkeypatch):
    rng = np.random.default_rng(6)
    p = rng.dirichlet(np.ones(3), size=80)
    y = drawn_labels(p, rng)
    few = 80 * (80 + 500) * 3 * 500.0
    for limit, n_blocks, n_draws in ((few, 5, 199), (1.0, 4, 199)):
        monkeypatch.setattr(adaptive_blocks, "LONGEST_DRAWS", limit)
        result = without_features(y, p)
        assert (len(result.blocks), result.n_resamples) == (n_blocks, n_draws)
    assert "no random features, and no block: draws for all pairs would take long" in result.null_law
    others = kcalib.calibration_test(y, p, kernel=Exponential(bandwidth=0.5), method=Adaptive(199), seed=3)
    assert_equal_blocks(result.blocks, others.blocks[:4])
    weighted = without_features(y, p, sample_weight=np.arange(80) % 3)
    assert len(weighted.blocks) == 4 and weighted.null_law.endswith("draws for all pairs have no weights")
    assert kcalib.calibration_test(y, p, seed=3).n_resamples == 999  # whose kernel has features


def test_vectors_have_a_kernel_whatever_it_takes(monkeypatch):
    monkeypatch.setattr(adaptive_blocks, "LONGEST_DRAWS", 1.0)
    rng = np.random.default_rng(7)
    mean, one = rng.normal(size=(12, 2)), np.tile(np.eye(2), (12, 1, 1))
    kernel, prediction = Cosine(bandwidth=9.0), MultivariateNormal(mean, one)
    y = mean + 2 + rng.normal(size=mean.shape)
    with pytest.warns(kcalib.IndefiniteKernelWarning):
        result = kcalib.calibration_test(y, prediction, kernel=kernel, method=Adaptive(39), seed=0)
    assert [block.name for block in result.blocks] == ["kernel"] and result.pvalue <= 0.05


def test_limit_law_goes_on_where_a_kernel_alone_sees_the_error():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], size=10_000)
    change = 0.3 * np.sign(np.sin(12 * p[:, 0]) * np.sin(12 * p[:, 1])) * np.minimum(p[:, 1], p[:, 2])
    y = drawn_labels(p + np.stack([0 * change, change, -change], axis=1), rng)
    result = kcalib.calibration_test(y, p, method=Adaptive(n_resamples=199), seed=0)
    assert result.pvalue_from == "law" and result.pvalue < 1e-3
    assert result.finding == "an error that only the kernel sees" and "'fine kernel' (approximate)" in result.null_law


@pytest.mark.parametrize(("factor", "finding"), [(0.3, "too often"), (3.0, "too rarely")])
def test_rare_events_are_predicted_too_often_or_too_rarely(factor, finding):
    """Their temperature would be under-confident or over-confident, which reads as the opposite."""
    rng = np.random.default_rng(0)
    p = rng.beta(1, 60, size=5000)
    result = kcalib.calibration_test(rng.uniform(size=5000) < factor * p, p, seed=0)
    assert result.pvalue < 0.01 and result.finding == f"class 1 predicted {finding}"
