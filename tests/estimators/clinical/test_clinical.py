"""Numbers of clinical prediction models, against other programs and by hand."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

import kcalib
from kcalib.lenses import Canonical, ClassWise
from kcalib.recalibration import PlattScaling

Y = np.array([0, 0, 1, 0, 1, 1, 0, 1, 0, 1, 1, 0])
P = np.array([0.1, 0.2, 0.3, 0.4, 0.7, 0.9, 0.15, 0.55, 0.65, 0.8, 0.35, 0.05])
W = np.array([1, 2, 1, 3, 1, 1, 2, 1, 1, 2, 1, 1.0])
FUNCTIONS = {
    "line": kcalib.logistic_recalibration,
    "ratio": kcalib.observed_expected_ratio.result,
    "curve": functools.partial(kcalib.integrated_calibration_index.result, n_resamples=99),
    "spiegelhalter": kcalib.spiegelhalter_test,
    "hosmer_lemeshow": functools.partial(kcalib.hosmer_lemeshow_test, n_groups=4),
}


def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.02, 0.98, size=n)
    return (rng.uniform(size=n) < p).astype(int), p


def numbers(result: Any) -> list[float]:
    fields = {name: value for name, value in vars(result).items() if name != "histogram"}  # of predictions at edges
    return [x for value in fields.values() for x in np.ravel(value).tolist() if isinstance(x, float)]


# Of statsmodels 0.14: GLM(y, x, family=Binomial(), offset=...); scikit-learn's LogisticRegression(penalty=None) has the
# same coefficients. With weights (freq_weights) its coefficients, and standard errors of the sandwich by NumPy.
@pytest.mark.parametrize(
    ("weight", "slope", "intercept", "in_the_large"),
    [
        (None, (1.34913301612, 0.755134926654), (0.560630598418, 0.826686808085), (0.412689273233, 0.694747995418)),
        (W, (1.6354101079, 0.956184311345), (0.130109380098, 0.933444121859), (-0.0337934868234, 0.777498596879)),
    ],
)
def test_lines_are_those_of_statsmodels(weight, slope, intercept, in_the_large):
    result = kcalib.logistic_recalibration(Y, P, sample_weight=weight, confidence_level=0.9)
    expected = {"slope": slope, "intercept": intercept, "calibration_in_the_large": in_the_large}
    for name, (value, error) in expected.items():
        assert getattr(result, name) == pytest.approx(value, rel=1e-10)
        assert getattr(result, f"{name}_standard_error") == pytest.approx(error, rel=1e-7)
        width = 1.6448536269514722 * error
        assert getattr(result, f"{name}_interval") == pytest.approx((value - width, value + width), abs=1e-6)


def test_ratio_by_hand():
    """2 of 4 events, 1.6 expected: limits of a binomial share, over the mean prediction 0.4."""
    result = kcalib.observed_expected_ratio.result([1, 0, 1, 0], [0.5, 0.1, 0.6, 0.4])
    exact = scipy.stats.binomtest(2, 4).proportion_ci(0.95, "exact")
    assert (result.value, result.observed, result.expected) == pytest.approx((1.25, 2, 1.6))
    assert result.interval == pytest.approx((exact.low / 0.4, exact.high / 0.4))
    weighted = kcalib.observed_expected_ratio.result([1, 0], [0.5, 0.2], sample_weight=[3, 1])
    exact = scipy.stats.beta.ppf([0.025, 0.975], [1.2, 2.2], [1.4, 0.4])  # 1.6 = 4^2 / 10 samples, 1.2 of them events
    assert weighted.value == pytest.approx(3 / 1.7)
    assert weighted.interval == pytest.approx(exact / (1.7 / 4))
    assert kcalib.observed_expected_ratio([0, 0], [0.5, 0.2]) == 0.0


def test_statistics_by_hand():
    """(y - p)(1 - 2p) sums to -0.4, with a variance of 0.0576 + 0.0576 + 0.0336 + 0.0096."""
    result = kcalib.spiegelhalter_test([0, 1, 0, 1], [0.1, 0.8, 0.3, 0.6])
    assert result.statistic == pytest.approx(-0.4 / math.sqrt(0.1584))
    assert result.pvalue == pytest.approx(2 * scipy.stats.norm.sf(0.4 / math.sqrt(0.1584)))
    weighted = kcalib.spiegelhalter_test([0, 1], [0.1, 0.8], sample_weight=[1, 2])
    assert weighted.statistic == pytest.approx((-0.08 - 2 * 0.12) / math.sqrt(0.0576 + 4 * 0.0576))
    groups = kcalib.hosmer_lemeshow_test([0, 0, 1, 1], [0.1, 0.3, 0.6, 0.8], n_groups=2)
    assert (groups.statistic, groups.df) == (pytest.approx(0.5 + 6 / 7), 2)
    assert groups.pvalue == pytest.approx(math.exp(-groups.statistic / 2))
    weighted = kcalib.hosmer_lemeshow_test([0, 1], [0.2, 0.8], n_groups=1, sample_weight=[1, 3])
    assert weighted.statistic == pytest.approx(1.6 * 0.1**2 / (0.65 * 0.35))  # of 4^2 / 10 samples, 3/4 against 0.65
    far = kcalib.spiegelhalter_test(np.ones(1000), np.full(1000, 0.1))  # z = 94.9
    z = 900 / math.sqrt(90)
    assert far.pvalue == 0 and far.log_pvalue == pytest.approx(math.log(2) + scipy.stats.norm.logsf(z))
    assert kcalib.hosmer_lemeshow_test(np.ones(1000), np.full(1000, 0.1), n_groups=1).log_pvalue == pytest.approx(
        far.log_pvalue
    )


def test_groups_are_those_of_hoslem_test():
    """R: cut(p, quantile(p, seq(0, 1, 1 / g)), include.lowest = TRUE), pchisq(chisq, g - 2)."""
    y, p = draw(203, 0)
    group = np.searchsorted(np.quantile(p, np.linspace(0, 1, 11))[1:-1], p)
    observed, expected = (np.bincount(group, values) for values in (y, p))
    size = np.bincount(group)
    chi_square = np.sum((observed - expected) ** 2 * (1 / expected + 1 / (size - expected)))
    result = kcalib.hosmer_lemeshow_test(y, p, in_sample=True)
    assert (result.statistic, result.df) == (pytest.approx(chi_square), 8)
    assert result.pvalue == pytest.approx(scipy.stats.chi2.sf(chi_square, 8))


def test_certain_groups():
    """Predictions of 0 and 1 have no degree of freedom, and cannot be wrong."""
    y, p = [0, 0, 0, 1, 1, 1], [0.0, 0.0, 0.4, 0.6, 1.0, 1.0]
    result = kcalib.hosmer_lemeshow_test(y, p, n_groups=3)
    assert (result.statistic, result.df) == (pytest.approx(0.0), 1)
    wrong = kcalib.hosmer_lemeshow_test([1, 0, 0, 1, 1, 1], p, n_groups=3)
    assert (wrong.statistic, wrong.pvalue, wrong.log_pvalue) == (math.inf, 0.0, -math.inf)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_weights_lenses_and_columns(name):
    """Weights of 1 are none, their scale does not matter, those of 0 leave samples out; columns are as single ones."""
    function = FUNCTIONS[name]
    plain = numbers(function(Y, P))
    weighted = function(Y, P, sample_weight=W)
    assert numbers(function(Y, P, sample_weight=np.ones(12))) == plain
    left_out = function(np.append(Y, 0), np.append(P, 1.0), sample_weight=np.append(W, 0.0))
    assert numbers(left_out) == pytest.approx(numbers(weighted), rel=1e-9)
    scaled = function(Y, P, sample_weight=7 * W)
    if name != "ratio":
        assert numbers(scaled) == pytest.approx(numbers(weighted), rel=1e-9)
    assert scaled.__dict__ != plain
    columns = np.column_stack([1 - P, P])
    assert numbers(function(Y, columns)) == pytest.approx(plain, rel=1e-9)
    assert numbers(function(np.where(Y, "b", "a"), np.log(columns), from_logits=True)) == pytest.approx(plain, rel=1e-9)
    three = np.column_stack([(1 - P) / 2, P, (1 - P) / 2])
    assert numbers(function(Y, three, lens=ClassWise(1))) == pytest.approx(plain, rel=1e-9)
    with pytest.raises(ValueError, match=r"has 3 induced classes, expected a lens with two; pass .*ClassWise\(k\)"):
        function(Y, three)


@pytest.mark.parametrize(
    ("function", "y", "p", "message"),
    [
        ("line", Y, np.where(P == 0.9, 1.0, P), r"^`y_pred\[5\]` gives the event the probability 1, .*numpy\.clip"),
        ("line", Y, np.where(P == 0.1, 0.0, P), r"^`y_pred\[0\]` gives the event the probability 0, .*numpy\.clip"),
        ("line", P > 0.5, P, "separates the labels"),
        ("line", P < 0.5, P, "separates the labels"),
        ("line", [0, 1, 0, 1], [0.3, 0.3, 0.3, 0.6], "separates the labels"),
        ("line", [0, 0], [0.3, 0.6], "0 events in 2 samples"),
        ("line", [1, 1], [0.3, 0.6], "2 events in 2 samples"),
        ("line", [0, 1], [0.3, 0.3], "the same for all samples"),
        ("ratio", [0, 1], [0.0, 0.0], "no event is expected"),
        ("spiegelhalter", [0, 1, 1], [0.0, 1.0, 0.5], r"only 0, 1/2 and 1, .*use kcalib\.calibration_test"),
        ("hosmer_lemeshow", [0, 1], [0.0, 1.0], "leaves 0 groups .* at least 1; "),
    ],
)
def test_what_has_no_answer(function, y, p, message):
    with pytest.raises(ValueError, match=message):
        FUNCTIONS[function](y, p)


def test_remedies_work():
    kcalib.logistic_recalibration(Y, np.clip(np.where(P == 0.9, 1.0, P), 1e-6, 1 - 1e-6))
    assert 1 < PlattScaling(smoothing=True).fit(P > 0.5, P).slope_[0] < math.inf
    assert kcalib.observed_expected_ratio([0, 1], [0.3, 0.3]) == pytest.approx(1 / 0.6)
    with pytest.raises(ValueError, match="leaves 2 groups .* at least 3; pass more n_groups"):
        kcalib.hosmer_lemeshow_test(Y, P, n_groups=2, in_sample=True)
    assert kcalib.hosmer_lemeshow_test(Y, P, n_groups=3, in_sample=True).df == 1
    with pytest.raises(TypeError, match="`in_sample` is 1, expected True or False"):
        kcalib.hosmer_lemeshow_test(Y, P, in_sample=1)


def test_levels_and_coverage():
    """Calibrated data sets: p-values up to 0.1, and intervals of 90 % that miss the truth.

    Each count lies between the quantiles of its binomial law at 1e-4 and 1 - 1e-4.
    """
    level, truth = 0.1, {"slope": 1, "intercept": 0, "calibration_in_the_large": 0}
    low, high = scipy.stats.binom.ppf([1e-4, 1 - 1e-4], 300, level)
    for test in (kcalib.spiegelhalter_test, kcalib.hosmer_lemeshow_test):
        assert low <= sum(test(*draw(300, seed)).pvalue <= level for seed in range(300)) <= high
    low, high = scipy.stats.binom.ppf([1e-4, 1 - 1e-4], 100, level)
    lines = [kcalib.logistic_recalibration(*draw(300, seed), confidence_level=1 - level) for seed in range(100)]
    for name, value in truth.items():
        limits = [getattr(line, f"{name}_interval") for line in lines]
        assert low <= sum(not limit.low <= value <= limit.high for limit in limits) <= high
    ratios = [kcalib.observed_expected_ratio.result(*draw(300, s), confidence_level=1 - level) for s in range(100)]
    # Wider than need be for events of different probabilities.
    assert sum(not ratio.interval.low <= 1 <= ratio.interval.high for ratio in ratios) <= high


# Of R's loess as scikit-misc 0.5 wraps it (netlib's dloess): loess(p, y, weights=w, span=0.75, degree=2).
@pytest.mark.parametrize(
    ("n", "seed", "decimals", "weight", "expected"),
    [
        (60, 0, 16, None, (0.103503585071, 0.0925349231532, 0.245561794146, 0.295950626261)),
        (203, 1, 16, None, (0.0497545691824, 0.0389892825906, 0.109238929746, 0.111222633624)),
        (203, 2, 1, None, (0.0565392768101, 0.0292188235565, 0.122971464934, 0.170750330197)),
        (203, 3, 16, np.random.default_rng(9).uniform(0.5, 2, 203), (0.0385562776949, None, None, 0.114324760728)),
    ],
)
def test_distances_are_those_of_loess(n, seed, decimals, weight, expected):
    y, p = draw(n, seed)
    result = kcalib.integrated_calibration_index.result(y, p.round(decimals), sample_weight=weight, n_resamples=99)
    for value, name in zip(expected, ("value", "e50", "e90", "e_max"), strict=True):
        if value is not None:  # quantiles with weights are ours
            assert getattr(result, name) == pytest.approx(value, rel=1e-10)
    assert result.interval.low <= result.value <= result.interval.high
    assert all(np.all(low <= high) for low, high in [result.band])


@pytest.mark.parametrize(
    ("y", "p", "value"),
    [
        ([1, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], 0.25),  # their mean
        ([0], [0.3], 0.3),
        ([0, 1], [0.0, 1.0], 0.0),
        ([1, 0], [0.0, 1.0], 1.0),
        ([0, 1, 0, 1], [0.2, 0.2, 0.6, 0.6], 0.2),  # 1/2 at both
    ],
)
def test_curves_of_few_predictions(y, p, value):
    """Where few predictions differ the curve is that of their means."""
    result = kcalib.integrated_calibration_index.result(y, p, n_resamples=99)
    assert result.value == pytest.approx(value, abs=1e-12)
    assert float(result) == kcalib.integrated_calibration_index(y, p)


def test_cells_of_many_samples_are_near_all(monkeypatch):
    """Neighbours that are drawn together give nearly the intervals of samples one by one."""
    y, p = draw(1200, 4)
    one_by_one = kcalib.integrated_calibration_index.result(y, p, n_resamples=499)
    monkeypatch.setattr("kcalib.estimators.clinical.curve.MAX_CELLS", 150)
    cells = kcalib.integrated_calibration_index.result(y, p, n_resamples=499, seed=1)
    assert cells.value == one_by_one.value
    assert cells.interval == pytest.approx(one_by_one.interval, abs=0.004)
    np.testing.assert_allclose(cells.band, one_by_one.band, atol=0.04)


@pytest.mark.parametrize(
    ("power", "truths"), [(1, {"": 0.0, "e50_": 0.0, "e90_": 0.0, "e_max_": 0.0}), (2, {"": 1 / 6, "e_max_": 0.25})]
)
def test_coverage_of_distances(power, truths):
    """Of 25 data sets intervals of 90 % hold the distances of frequencies p and p^2 but for a binomial number."""
    missed = dict.fromkeys(truths, 0)
    for seed in range(25):
        rng = np.random.default_rng(seed)
        p = rng.uniform(size=80)
        y = rng.uniform(size=80) < p**power
        result = kcalib.integrated_calibration_index.result(y, p, n_resamples=99, confidence_level=0.9)
        for name, truth in truths.items():
            low, high = getattr(result, f"{name}interval")
            missed[name] += not low <= truth <= high
    assert max(missed.values()) <= scipy.stats.binom.ppf(1 - 1e-4, 25, 0.1), missed


@pytest.mark.parametrize(("n", "a", "b"), [(4, 1, 1), (8, 1, 1), (15, 1, 1), (500, 1, 49), (500, 1, 150)])
def test_lower_limits_of_calibrated_models(n, a, b):
    """Few samples or events: lower limits of 95 % are positive for at most a binomial number of calibrated models."""
    rng, repeats = np.random.default_rng(n), 25
    positive = np.zeros(4)
    for seed in range(repeats):
        p = rng.beta(a, b, size=n)
        result = kcalib.integrated_calibration_index.result(rng.uniform(size=n) < p, p, n_resamples=99, seed=seed)
        limits = result.interval, result.e50_interval, result.e90_interval, result.e_max_interval
        positive += [limit.low > 0 for limit in limits]
    assert np.max(positive) <= scipy.stats.binom.ppf(1 - 1e-4, repeats, 0.025), positive


def test_picture():
    """Curve, band, ten groups, both histograms, and a box of the numbers that there are."""
    pytest.importorskip("matplotlib")
    y, p = draw(300, 5)
    result = kcalib.integrated_calibration_index.result(y, p)
    axes = result.plot()
    (box,) = [text.get_text().splitlines() for text in axes.texts]
    assert [line.partition(" ")[0] for line in box] == ["n", "O/E", "in", "slope", "ICI", "E50"]
    assert (
        box[3]
        == f"slope {result.line.slope:.3f} [{result.line.slope_interval[0]:.3f}, {result.line.slope_interval[1]:.3f}]"
    )
    below = axes.figure.axes[1]
    heights = [bar.get_height() for bar in below.patches]
    np.testing.assert_allclose(heights[:20], -np.histogram(p[y == 0], 20, (0, 1))[0] / 300)
    np.testing.assert_allclose(heights[20:], np.histogram(p[y == 1], 20, (0, 1))[0] / 300)
    assert len(axes.collections[-1].get_offsets()) == 10
    certain = kcalib.integrated_calibration_index.result([0, 0], [0.0, 0.0], n_resamples=99)
    assert (certain.line, certain.ratio, certain.value) == (None, None, 0.0)
    assert [line[:3] for line in certain.plot(histogram=False).texts[0].get_text().splitlines()] == [
        "n =",
        "ICI",
        "E50",
    ]
    page = kcalib.evaluate(y, p, metrics="clinical").to_html()
    assert "LogisticRecalibration" in page and page.count("<svg") == kcalib.evaluate(y, p).to_html().count("<svg") + 1


class TestEvaluate:
    def test_clinical_numbers_are_those_of_the_functions(self):
        y, p = draw(200, 1)
        w = np.random.default_rng(0).uniform(0.5, 2, size=200)
        result = kcalib.evaluate(y, p, metrics="clinical", level=0.1, sample_weight=w)
        line = result.metrics["logistic_recalibration"]
        assert numbers(line) == pytest.approx(
            numbers(kcalib.logistic_recalibration(y, p, sample_weight=w, confidence_level=0.9)), rel=1e-9
        )
        assert result.metrics["spiegelhalter_test"].pvalue == pytest.approx(
            kcalib.spiegelhalter_test(y, p, sample_weight=w).pvalue
        )
        for row in ("slope ", "calibration_in_the_large ", "observed_expected_ratio ", "hosmer_lemeshow_test "):
            assert sum(line.startswith(row) for line in str(result).splitlines()) == 1
        assert kcalib.evaluate(y, p).metrics is None

    @pytest.mark.parametrize(
        ("y", "p", "missing"),
        [
            (np.zeros(12), P, ["logistic_recalibration"]),
            (Y, np.where(P == 0.9, 1.0, P), ["logistic_recalibration"]),
            (np.zeros(12), np.zeros(12), ["logistic_recalibration", "observed_expected_ratio"]),
        ],
    )
    def test_undefined_numbers_leave_the_others(self, y, p, missing):
        result = kcalib.evaluate(y, p, metrics="clinical", classes=[0, 1], seed=0)
        undefined = [name for name, value in result.metrics.items() if value is None]
        assert undefined == list(result.undefined) and undefined[: len(missing)] == missing
        lines = str(result).splitlines()
        assert any(line.split() == ["logistic_recalibration", "-"] for line in lines)
        assert result.undefined["logistic_recalibration"][:20] in str(result)
        if "observed_expected_ratio" not in missing:
            assert result.metrics["observed_expected_ratio"] == kcalib.observed_expected_ratio.result(y, p)

    def test_some_of_each_class(self):
        rng = np.random.default_rng(0)
        p = rng.dirichlet(np.ones(3), size=100)
        y = (rng.uniform(size=(100, 1)) > p.cumsum(axis=1)).sum(axis=1)
        result = kcalib.evaluate(y, p, metrics=["spiegelhalter_test", "spiegelhalter_test"])
        expected = tuple(kcalib.spiegelhalter_test(y, p, lens=ClassWise(k)) for k in range(3))
        assert result.metrics == {"spiegelhalter_test": expected}
        assert "spiegelhalter_test, class 2" in str(result)
        labels = kcalib.evaluate(np.eye(3)[y], p, multilabel=True, metrics=["observed_expected_ratio"])
        ratio = labels.evaluations[2].metrics["observed_expected_ratio"]
        assert ratio.value == pytest.approx(np.mean(y == 2) / np.mean(p[:, 2]))
        assert ratio.lens == str(Canonical())

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"metrics": "clinicl"},
                "^`metrics` names 'clinicl', expected numbers about class probabilities: 'clinical', .*mean 'clinical'",
            ),
            ({"metrics": ["spiegelhalter"]}, "did you mean 'spiegelhalter_test'"),
            ({"metrics": 3}, "^`metrics` names 3, expected numbers"),
            ({"metrics": "clinical", "clusters": np.arange(12) // 2}, "^`metrics` is .* `clusters` is given; leave"),
            ({"y_true": Y + 0.5, "y_pred": kcalib.distributions.Normal(P, P), "metrics": "clinical"}, "leave it out"),
            ({"y_true": kcalib.streaming.source((Y, P)), "y_pred": None, "metrics": "clinical"}, "leave it out"),
        ],
    )
    def test_what_is_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            kcalib.evaluate(**{"y_true": Y, "y_pred": P, **options})
