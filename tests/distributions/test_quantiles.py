"""Forecasts by quantiles: their bins, what is between and outside of them, and scores by hand."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

import kcalib
from kcalib.distributions import Censored, Normal, Quantiles

LEVELS = [0.1, 0.5, 0.9]
VALUES = np.array([[0.0, 1.0, 3.0], [2.0, 2.5, 4.0]])


def test_levels_come_in_any_order():
    shuffled = Quantiles([0.9, 0.1, 0.5], VALUES[:, [2, 0, 1]])
    assert shuffled.levels.tolist() == LEVELS
    assert shuffled.values.tolist() == VALUES.tolist()
    assert shuffled.quantile([0.5]).tolist() == [[1.0], [2.5]]
    assert shuffled.take([1]).values.tolist() == [[2.0, 2.5, 4.0]]
    np.testing.assert_allclose(shuffled.bin_probabilities, [0.1, 0.4, 0.4, 0.1])


@pytest.mark.parametrize(
    ("levels", "values", "message"),
    [
        ([10, 50, 90], VALUES, r"^`levels\[0\]` is 10, expected a level from 0 to 1; divide percents by 100"),
        ([0.1, 0.5, 0.1], VALUES, r"^`levels\[0\]` and `levels\[2\]` are both 0.1, expected each level once; drop one"),
        ([0, 1], VALUES[:, :2], r"^`levels` has none above 0 and below 1"),
        ([0.5], VALUES, r"^`values` has shape \(2, 3\), expected \(n, 1\): a column for each of the 1 levels"),
        ([LEVELS], VALUES, r"^`levels` has shape \(1, 3\), expected \(K,\)"),
        (LEVELS, [[0.0, np.nan, 1.0]], r"^`values\[0, 1\]` is nan, expected a finite number"),
        (
            [0.9, 0.1, 0.5],
            [[3.0, 0.0, 1.0], [4.0, 2.5, 2.0]],
            r"^`values\[1, 2\]` is 2 at the level 0.5, below `values\[1, 1\]`, 2.5 at 0.1: .* pass sort=True",
        ),
    ],
)
def test_what_is_refused(levels, values, message):
    with pytest.raises(ValueError, match=message):
        Quantiles(levels, values)


def test_crossing_quantiles_are_sorted_on_request():
    assert Quantiles([0.9, 0.1], [[1.0, 2.0]], sort=True).values.tolist() == [[1.0, 2.0]]
    with pytest.raises(TypeError, match="^`sort` is 'yes', expected True or False"):
        Quantiles(LEVELS, VALUES, sort="yes")


def test_intervals():
    predictions = Quantiles.from_intervals([0.5, 0.9], [[1.0, 0.0]], [[2.0, 5.0]], median=[1.5])
    assert predictions.levels.tolist() == [0.05, 0.25, 0.5, 0.75, 0.95]
    assert predictions.values.tolist() == [[0.0, 1.0, 1.5, 2.0, 5.0]]
    with pytest.raises(ValueError, match=r"^`coverages\[0\]` is 90, expected above 0 and up to 1; divide percents"):
        Quantiles.from_intervals([90], [[0.0]], [[1.0]])
    with pytest.raises(ValueError, match=r"^`upper` has shape \(1, 2\), expected \(n, 1\)"):
        Quantiles.from_intervals([0.9], [[0.0]], [[1.0, 2.0]])
    with pytest.raises(ValueError, match="have 1, 1, 2 rows, expected one for each prediction"):
        Quantiles.from_intervals([0.9], [[0.0]], [[1.0]], median=[0.5, 0.6])


def test_levels_that_are_not_predicted_are_refused():
    for call in (
        lambda q: q.quantile([0.5, 0.7]),
        lambda q: kcalib.pinball_loss([0.0, 1.0], q, levels=[0.7]),
        lambda q: kcalib.quantile_calibration([0.0, 1.0], q, levels=[0.7]),
    ):
        with pytest.raises(ValueError, match="^`y_pred` has no quantile at the level 0.7, but at 0.1, 0.5, 0.9; ask"):
            call(Quantiles(LEVELS, VALUES))


def test_levels_that_are_not_known_are_not_repaired():
    with pytest.raises(TypeError, match="^`y_pred` is Quantiles, expected .* cdf and quantile at all levels"):
        kcalib.recalibration.QuantileRecalibration().fit([0.0, 1.0], Quantiles(LEVELS, VALUES))


def test_the_bin_of_a_target_is_all_that_is_known():
    """At a quantile it may be either of two, of which half is taken; a tie is an atom that has half of those beside."""
    y = np.array([-1.0, 0.5, 5.0, 1.0, 0.0, 1.0, 0.5])
    values = np.repeat([[0.0, 1.0, 3.0], [0.0, 0.0, 1.0]], [4, 3], axis=0)
    predictions = Quantiles(LEVELS, values)
    np.testing.assert_allclose(predictions.cdf_left(y), [0.0, 0.1, 0.9, 0.3, 0.05, 0.7, 0.7])
    np.testing.assert_allclose(predictions.cdf(y), [0.1, 0.5, 1.0, 0.7, 0.7, 0.95, 0.9])
    shares = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0.5, 0.5, 0]]
    shares += [[0.05 / 0.65, 0.4 / 0.65, 0.2 / 0.65, 0], [0, 0, 0.8, 0.2], [0, 0, 1, 0]]
    np.testing.assert_allclose(predictions._bin_shares(y), shares, atol=1e-15)


@pytest.mark.parametrize("levels", [LEVELS, [0.0, 0.1, 0.5, 0.9, 1.0]])
def test_draws_are_in_bins_with_their_probabilities(levels):
    """Also with ties, whose law is that of `cdf_left` and `cdf`: the PIT values of draws are uniform."""
    n, k = 20_000, len(levels)
    values = np.sort(np.random.default_rng(0).integers(0, 3, size=(4, k)) / 2.0, axis=1)
    values[0] = np.arange(k)
    for row in values:
        predictions = Quantiles(levels, np.broadcast_to(row, (n, k)))
        draws = predictions.sample(1, seed=1)[:, 0]
        error = 4 / np.sqrt(n)
        np.testing.assert_allclose(
            predictions._bin_shares(draws).mean(axis=0), predictions.bin_probabilities, atol=error
        )
        pit = np.sort(kcalib.pit_values(draws, predictions, seed=2))
        assert np.max(np.abs(pit - (np.arange(n) + 0.5) / n)) < 2 / np.sqrt(n)  # Kolmogorov: p about 7e-4
        one = predictions.take([0])
        spread = one.standard_deviation()[0, 0]
        assert draws.mean() == pytest.approx(one.expected_value()[0, 0], abs=5 * spread / np.sqrt(n))
        assert draws.std() == pytest.approx(spread, rel=0.05)


def test_scores_by_hand():
    """Pinball losses of the target 4: .1 * 4, .5 * 3, .9 * 1; the bounds do not count."""
    for predictions in (Quantiles(LEVELS, VALUES[:1]), Quantiles([0, *LEVELS, 1], [[-5.0, *VALUES[0], 9.0]])):
        assert kcalib.pinball_loss([4.0], predictions) == pytest.approx(2.8 / 3)
        assert kcalib.crps([4.0], predictions) == pytest.approx(5.6 / 3)
    # (|y - m| / 2 + alpha / 2 (u - l + 2 / alpha (y - u))) / (1 + 1 / 2), Bracher et al. (2021), with alpha = .2
    assert pytest.approx(5.6 / 3) == (0.5 * 3 + 0.1 * (3 + 10 * 1)) / 1.5


@pytest.mark.parametrize(("y", "score"), [(1.0, 3.0), (4.0, 3 + 10 * 1.0), (-2.0, 3 + 10 * 2.0)])
def test_interval_scores_by_hand(y, score):
    """The width 3, and for what is outside of intervals of 80 % ten times its distance."""
    interval = Quantiles([0.1, 0.9], [[0.0, 3.0]])
    assert kcalib.interval_score([y], interval, coverage=0.8) == pytest.approx(score, rel=1e-12)


def test_scores_by_level():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 5, size=40) / 1.0, rng.normal(size=40)
    y += x / 5  # means of groups are out of order: values of several are pooled
    predictions = Quantiles(LEVELS, np.stack([x - 2, x, x + 0.5], axis=1))
    scores = kcalib.quantile_scores(y, predictions)
    np.testing.assert_allclose(scores.pinball_loss.mean() * 2, kcalib.crps(y, predictions))
    np.testing.assert_allclose(scores.coverage, np.mean(y[:, None] <= predictions.values, axis=0))
    assert (scores.interval_probabilities.tolist(), scores.interval_width.tolist()) == ([0.8], [2.5])
    assert scores.interval_score[0] == pytest.approx(kcalib.interval_score(y, predictions, coverage=0.8))
    assert scores.weighted_interval_score == pytest.approx(kcalib.weighted_interval_score(y, predictions), rel=1e-14)
    np.testing.assert_allclose(
        scores.pinball_loss, scores.miscalibration - scores.discrimination + scores.uncertainty, rtol=1e-12
    )
    for k, level in enumerate(LEVELS):
        # Of all increasing functions of x on the targets, by linear programming.
        loss = scores.pinball_loss[k] - scores.miscalibration[k]
        assert loss == pytest.approx(least_loss(x, y, level), rel=1e-9)
    assert "0.9" in str(scores)


def test_scores_of_targets_at_quantiles_by_hand():
    """Intervals are closed, the narrow one first; less confidence, narrower bands."""
    y, predictions = [1.0, 4.0], Quantiles([0.1, 0.25, 0.5, 0.75, 0.9], [[0.0, 1.0, 2.0, 3.0, 4.0]] * 2)
    scores = kcalib.quantile_scores(y, predictions)
    assert scores.coverage.tolist() == [0, 0.5, 0.5, 0.5, 1]
    assert np.round(scores.interval_probabilities, 12).tolist() == [0.5, 0.8]
    assert (scores.interval_coverage.tolist(), scores.interval_width.tolist()) == ([0.5, 1], [2, 4])
    narrow = kcalib.quantile_scores(y, predictions, confidence_level=0.2).consistency_band
    assert np.nansum(narrow.high - narrow.low) < np.nansum(scores.consistency_band.high - scores.consistency_band.low)


def test_ties_have_no_band():
    """Dry days count as covered, so the coverage of a calibrated model exceeds the level."""
    rng = np.random.default_rng(0)
    model = Censored(Normal(rng.uniform(0, 1, size=400), np.ones(400)), lower=0.0)
    levels = [0.1, 0.999]
    y = np.append(model.sample(1, seed=1)[:-1, 0], 1.0)
    scores = kcalib.quantile_scores(y, Quantiles(levels, model.quantile(levels)))
    assert scores.coverage[0] > 0.25 and np.isnan(scores.consistency_band.low).tolist() == [True, False]
    assert "see kcalib.quantile_calibration" in str(scores)
    curve = kcalib.quantile_calibration(y, model, levels=levels)
    assert abs(curve.coverage[0] - 0.1) < 0.06


def least_loss(x, y, level):
    values, place = np.unique(x, return_inverse=True)
    n, m = len(y), len(values)
    chosen = np.eye(m)[place]
    cost = np.concatenate([np.zeros(m), np.full(n, level), np.full(n, 1 - level)]) / n
    equal = np.concatenate([chosen, np.eye(n), -np.eye(n)], axis=1)
    rising = np.concatenate([np.eye(m)[:-1] - np.eye(m)[1:], np.zeros((m - 1, 2 * n))], axis=1)
    bounds = [(None, None)] * m + [(0, None)] * (2 * n)
    return scipy.optimize.linprog(cost, rising, np.zeros(m - 1), equal, y, bounds).fun


def test_intervals_at_levels_that_are_not_predicted():
    with pytest.raises(ValueError, match="^`y_pred` has no quantile at the level 0.05, but at"):
        kcalib.interval_score([0.0, 1.0], Quantiles(LEVELS, VALUES), coverage=0.9)
    with pytest.raises(ValueError, match="^`coverage` is 90, expected"):
        kcalib.interval_score([0.0, 1.0], Quantiles(LEVELS, VALUES), coverage=90)


def test_moments_by_hand():
    """A quarter each in (-1, 0) and (2, 3), a mean gap beyond the ends, half in (0, 2): the variance 2 (7/12) + 1/6."""
    predictions = Quantiles([0.25, 0.75], [[0.0, 2.0]])
    assert predictions.expected_value()[0, 0] == pytest.approx(1.0, rel=1e-14)
    assert predictions.standard_deviation()[0, 0] ** 2 == pytest.approx(4 / 3, rel=1e-14)
