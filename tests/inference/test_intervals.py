"""Intervals of the SKCE agree with tests, and cover, for confident and rare laws too."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest
import scipy.stats
from few_events import FEW_EVENTS
from grid import cells, some
from hard_laws import LAWS, drawn_labels
from intervals import TRUTHS, misses
from problems import binomial_bounds, softmax_problem

import kcalib
from kcalib._input.forecasts import prepare
from kcalib._packing import pack, variance
from kcalib._pairs.statistics import ScoreVariance, gamma_quantile
from kcalib.estimators.few_errors import count_unlikely_targets, few_errors
from kcalib.estimators.null_moments import effective_events
from kcalib.inference.conditional_spectrum import make_feature_matrix
from kcalib.kernels import Exponential

pytestmark = FEW_EVENTS

RISK = 1e-5
TAILS = (0.2, 0.1, 0.05, 0.025, 0.01, 1e-3)


@pytest.mark.parametrize("components", [1, 2, 5, 50])
@pytest.mark.parametrize("tail", TAILS)
def test_lower_limits_of_squared_normal_vectors(components, tail):
    """|g + z|^2 - d, z of d dimensions, has mean |g|^2, variance 4 |g|^2 + 2 d, and a law that SciPy knows."""
    variance = ScoreVariance(4.0, 2.0 * components)
    for square in (0.0, 0.1, 1.0, 4.0, 20.0, 100.0, 1e4):
        # The limit is a growing function of the estimate: where does it reach the true value?
        low, high = square - 10.0, square + 1000 * (1 + np.sqrt(square) + components)
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if variance.lower_limit(middle, tail) <= square else (low, middle)
        law = scipy.stats.ncx2(components, square) if square else scipy.stats.chi2(components)
        missed = law.sf(high + components)
        assert missed <= tail * 1.02, (square, missed)
        if square >= 100 * components and tail >= 0.01:  # nearly normal
            assert missed >= 0.7 * tail, (square, missed)
        elif components == 1 and tail >= 0.01:  # the most skewed
            assert missed >= 0.4 * tail, (square, missed)


def test_lower_limits_grow_with_the_estimate_and_the_tail():
    variance = ScoreVariance(0.3, 0.02)
    values = np.linspace(-1, 3, 200)
    for tail in (0.7, *TAILS, 1e-6, 1e-30):
        limits = [variance.lower_limit(float(value), tail) for value in values]
        assert np.all(np.diff(limits) >= -1e-12)
        assert tail > 0.5 or np.all(np.array(limits) <= values)
    for value in (-0.3, 0.0, 0.2, 1.0, 5.0):
        assert np.all(np.diff([variance.lower_limit(value, tail) for tail in TAILS]) < 0)
    assert ScoreVariance(0.0, 0.0).lower_limit(0.25, 0.05) == pytest.approx(0.25)


def test_the_largest_quantile_of_gamma_laws():
    for tail in TAILS:
        one = (scipy.stats.chi2(1).isf(tail) - 1) / np.sqrt(2)
        assert gamma_quantile(tail) >= max(one, scipy.stats.norm.isf(tail)) - 1e-12
        for shape in (0.5, 0.7, 1.0, 3.0, 20.0):
            law = scipy.stats.gamma(shape)
            assert gamma_quantile(tail) >= (law.isf(tail) - shape) / np.sqrt(shape) - 5e-3


def by_draws(p: np.ndarray, kernel: Exponential, count: int, seed: int) -> tuple[float, float]:
    """The variance of the estimate for labels drawn from the predictions, with its standard error."""
    rng = np.random.default_rng(seed)
    values = [kcalib.skce(drawn_labels(p, rng), p, kernel=kernel, threads=1) for _ in range(count)]
    squares = np.square(values)
    return float(np.mean(squares)), float(np.std(squares) / np.sqrt(count))


def test_the_null_standard_error_is_that_of_drawn_labels():
    y, p = softmax_problem(60, 4)
    kernel = Exponential(bandwidth=0.5)
    result = kcalib.skce.result(y, p, kernel=kernel)
    variance, error = by_draws(p, kernel, 800, 1)
    assert result.null_standard_error is not None
    assert result.null_standard_error**2 == pytest.approx(variance, abs=4 * error)
    assert kcalib.calibration_test(y, p, kernel=kernel, method="exact").null_standard_error == (
        result.null_standard_error
    )
    # Whatever the labels are; the standard error is not.
    other = kcalib.skce.result(np.argmax(p, axis=1), p, kernel=kernel)
    assert other.null_standard_error == result.null_standard_error
    assert other.standard_error >= other.null_standard_error * (1 - 1e-12)


def test_blocks_know_their_null_standard_error():
    """Of residuals that are all alike the block estimates are equal, and the interval has a width nevertheless."""
    y, p = np.zeros(40, dtype=int), np.full((40, 2), 0.5)
    p[::2] = [0.6, 0.4]
    result = kcalib.calibration_test(y, p, method="block", kernel=Exponential(bandwidth=0.5))
    low, high = result.confidence_interval()
    assert result.null_standard_error > 0 and high - low > 3.9 * result.null_standard_error
    sample = kcalib.methods.Block(variance="sample")
    assert kcalib.calibration_test(y, p, method=sample, kernel=Exponential(bandwidth=0.5)).null_standard_error is None


def test_what_has_no_null_standard_error():
    y, p = softmax_problem(60, 4)
    for options in ({"estimator": "biased"}, {"estimator": "block"}, {"sample_weight": np.arange(1.0, 61.0)}):
        assert kcalib.skce.result(y, p, **options).null_standard_error is None
    assert kcalib.skce.result(y[:2], p[:2]).null_standard_error > 0
    assert kcalib.skce.result(y[:2], p[:2]).standard_error is None


@pytest.mark.parametrize("name", LAWS)
def test_standard_errors_are_never_below_those_given_the_predictions(name):
    rng = np.random.default_rng(3)
    for _ in range(5):
        y, p = LAWS[name].calibrated(rng)
        result = kcalib.skce.result(y, p, threads=1)
        assert 0 < result.null_standard_error <= result.standard_error * (1 + 1e-12)


def test_intervals_of_saturated_predictions_hold_zero():
    """By residuals alone, which hold no errors, nearly all intervals left out 0."""
    law, rng = LAWS["saturated, 1e-8..1e-4"], np.random.default_rng(5)
    left_out = 0
    for _ in range(20):
        y, p = law.calibrated(rng, 800)
        low, high = kcalib.calibration_test(y, p, method="gamma", threads=1).confidence_interval()
        left_out += not low <= 0 <= high
    assert left_out / 20 <= binomial_bounds(20, 0.05, RISK)[1]


@pytest.mark.parametrize(
    "name", some(["Dir(1), m = 2", "rare, Beta(.1, 100)", "20 distinct rows", "n = 20"], "Dir(1), m = 2", "n = 20")
)
@pytest.mark.parametrize("method", ["exact", "block", "spectrum", "distribution_free"])
def test_intervals_hold_zero_unless_the_test_rejects(name, method):
    rng = np.random.default_rng(8)
    for _ in range(2):
        for truth in ("calibrated", "drifted"):
            p = LAWS[name].draw(LAWS[name].n, rng)
            y = drawn_labels(TRUTHS[truth](p), rng)
            result = kcalib.calibration_test(y, p, method=method, threads=1)
            for level in np.clip([0.3, 0.1, 0.02, 0.99 * result.pvalue, 1.01 * result.pvalue], 1e-9, 0.999):
                if result.confidence_interval(1 - level, "greater").low > 0:
                    assert result.pvalue < level
                if result.confidence_interval(1 - level).low > 0:
                    assert result.pvalue < level / 2


RARE = ("rare, Beta(.1, 100)", "saturated, 1e-8..1e-6")
COVERED = ("Dir(1), m = 2", "Dir(.1), m = 10", "saturated, 1e-6..1e-3", *RARE)


@pytest.mark.parametrize(
    ("truth", "name"), cells(TRUTHS, [pytest.param(name, id=name) for name in COVERED], in_full=("calibrated",), few=())
)
def test_intervals_and_bounds_cover(truth, name):
    found = misses(LAWS[name], TRUTHS[truth], count=30, level=0.1)
    tail, level = (binomial_bounds(30, share, RISK)[1] for share in (0.05, 0.1))
    assert found.low <= tail and found.high <= tail and found.bound <= level and found.disagree == 0


@pytest.mark.slow
@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("name", LAWS)
def test_intervals_and_bounds_cover_on_all_laws(name, truth):
    found = misses(LAWS[name], TRUTHS[truth], count=400, level=0.1)
    tail, level = (binomial_bounds(400, share, RISK)[1] for share in (0.05, 0.1))
    assert found.low <= tail and found.high <= tail and found.bound <= level and found.disagree == 0, found


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, 20, 50, 800, 3000])
@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("name", ["saturated, 1e-8..1e-6", "saturated, 1e-8..1e-4", "rare, Beta(.1, 100)"])
def test_upper_limits_hold_what_was_not_seen(name, truth, n):
    found = misses(LAWS[name], TRUTHS[truth], count=300, n=n, level=0.1)
    assert found.high <= binomial_bounds(300, 0.05, RISK)[1], found


def confident(n: int, errors: int, e: float = 1e-6) -> tuple[np.ndarray, np.ndarray]:
    """Labels and equal predictions of two classes, of which the second has the probability e and was seen so often."""
    return (np.arange(n) < errors).astype(int), np.full((n, 2), [1 - e, e])


@pytest.mark.parametrize(("n", "tail"), [(4, 0.025), (20, 0.05), (200, 0.025), (200, 0.005)])
def test_upper_limits_of_confident_predictions_miss_exactly_as_often_as_they_may(n, tail):
    """All errors are alike, so that the SKCE is 2 (v - e)^2, and their number is binomial: no simulation is needed."""
    kernel = Exponential(bandwidth=0.5)
    limits = []
    for seen in range(min(n, 40) + 1):
        y, p = confident(n, seen)
        limits.append(kcalib.calibration_test(y, p, method="gamma", kernel=kernel, threads=1).limits(tail).high)
    for v in np.geomspace(1e-3, min(20, n / 2) / n, 60):
        missed = np.array(limits) < 2 * (v - 1e-6) ** 2 * (1 - 1e-9)
        # From five errors on by the score interval, which is not exact.
        allowed = tail if not missed[5:].any() else 2 * tail
        assert scipy.stats.binom.pmf(np.flatnonzero(missed), n, v).sum() <= allowed, v


@pytest.mark.parametrize("seen", [0, 1, 4])
def test_few_errors(seen):
    y, p = confident(100, seen)
    for method in ("exact", "features", "block"):
        result = kcalib.calibration_test(y, p, method=method, kernel=Exponential(bandwidth=0.5), seed=0)
        few = result.few_errors
        assert few == kcalib.FewErrors(seen, few.expected, 100, 2.0) and few.expected == pytest.approx(1e-6)
        share = scipy.stats.beta(seen + 1, 100 - seen).isf(0.025)
        assert result.confidence_interval().high >= few.upper_limit(0.025) * (1 - 1e-12)
        assert few.upper_limit(0.025) == pytest.approx(2 * (share + 1e-6) ** 2, rel=1e-9)
        assert dataclasses.asdict(result)["few_errors"]["seen"] == seen
    assert kcalib.FewErrors(3, 0.1, 3, 2.0).upper_limit(0.1) == 2.0
    other = p**2 / (p**2).sum(axis=1, keepdims=True)
    model = kcalib.compare(
        y, {"a": p, "b": other}, metric=kcalib.methods.SKCE(kernel=Exponential(bandwidth=0.5))
    ).models[0]
    assert model.confidence_interval.high >= few.upper_limit(0.025) * (1 - 1e-12)


def test_where_errors_are_not_few():
    y, p = softmax_problem(60, 4)
    assert kcalib.calibration_test(y, p, method="gamma").few_errors is None
    y, p = confident(100, 5)
    kernel = Exponential(bandwidth=0.5)
    assert kcalib.calibration_test(y, p, method="gamma", kernel=kernel).few_errors is None
    y, p = confident(100, 0)
    few = kcalib.calibration_test(y, p, method="gamma", kernel=kernel, target_kernel=[[2, 0], [0, 1]]).few_errors
    assert few == kcalib.FewErrors(0, pytest.approx(1e-6), 100, pytest.approx(3.0))
    # Nor of few samples whose labels are open.
    y, p = softmax_problem(9, 3)
    assert kcalib.calibration_test(p.argmax(axis=1), p, method="gamma").few_errors is None


def test_few_errors_of_counts():
    """Of rates of 1e-6 a count of 1 is an error; of a normal law no target is."""
    rates = np.full(50, 1e-6)
    y, kernel = np.zeros(50), Exponential(bandwidth=1.0)

    def test_of(prediction):
        return kcalib.calibration_test(y, prediction, method="features", kernel=kernel, target_kernel=kernel, seed=0)

    result = test_of(kcalib.distributions.Poisson(rates))
    assert result.few_errors.seen == 0 and result.few_errors.expected == pytest.approx(1e-6, rel=1e-3)
    normal = kcalib.distributions.Normal(np.zeros(50), np.ones(50))
    assert test_of(normal).few_errors is None


@pytest.mark.parametrize("kind", ["labels", "counts"])
def test_laws_of_some_samples_at_a_time_are_those_of_all(kind, monkeypatch):
    """No table of all samples is made where they are many."""
    rng = np.random.default_rng(3)
    kernel = Exponential(bandwidth=1.0)
    if kind == "labels":
        y, p = confident(50, 1)
    else:
        rates = 10.0 ** rng.uniform(-3, -2, size=50)
        y, p = np.where(np.arange(50) == 40, 2, 0), kcalib.distributions.Poisson(rates)

    def found():
        data = prepare(y, p)
        packed = pack(data, kernel, kernel if kind == "counts" else None)
        return effective_events(data, packed), few_errors(data, packed)

    events, few = found()
    assert few.seen == 1
    monkeypatch.setattr(variance, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(sys.modules[few_errors.__module__], "FIRST_ROWS", 2)
    events_by_parts, by_parts = found()
    assert events_by_parts == pytest.approx(events, rel=1e-12)
    assert (by_parts.seen, by_parts.expected) == (few.seen, pytest.approx(few.expected, rel=1e-12))


def test_what_is_no_data_is_refused_where_kinds_are_told_apart():
    with pytest.raises(TypeError, match="int are no data"):
        count_unlikely_targets(1, None)
    with pytest.raises(NotImplementedError, match="int"):
        make_feature_matrix(1, 2)
