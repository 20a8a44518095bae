"""The choice of a recalibrator: literal cross-validation, an honest gain, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from problems import draw_labels
from scipy import special, stats
from scripts import load_script

import kcalib
from kcalib._input.labels import prepare
from kcalib.distributions import Normal, Poisson, Samples
from kcalib.recalibration import (
    HistogramBinning,
    IsotonicCalibration,
    PlattScaling,
    QuantileRecalibration,
    ScaleCalibration,
    TemperatureScaling,
    VectorScaling,
    choose,
)
from kcalib.recalibration.choice import default_candidates


def problem(n: int = 240, m: int = 3, seed: int = 0, temperature: float = 2.0):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, m))
    return draw_labels(special.softmax(logits / temperature, axis=1), rng), logits


def literal_folds(y: np.ndarray, n_folds: int, seed: int) -> np.ndarray:
    order = np.random.default_rng(seed).permutation(len(y))
    fold = np.empty(len(y), int)
    for place, i in enumerate(sorted(order, key=lambda i: y[i])):
        fold[i] = place % n_folds
    return fold


def test_a_candidate_is_chosen_that_is_better_by_a_standard_error():
    """Of calibrated predictions it is seldom, though it is better, by less, in a third of the sets."""
    rng = np.random.default_rng(3)
    chosen = better = 0
    for _ in range(20):
        p = rng.dirichlet(np.full(3, 0.7), size=200)
        choice = choose(draw_labels(p, rng), p, {"temperature": TemperatureScaling()}, n_folds=3)
        gain = choice.comparison.difference("as given", "temperature")
        assert (choice.name == "temperature") == (gain.difference > gain.standard_error)
        chosen, better = chosen + (choice.name == "temperature"), better + (gain.difference > 0)
    assert chosen < better


def test_nested_cross_validation_is_the_literal_one():
    y, logits = problem(temperature=3.0)
    p = special.softmax(logits, axis=1)
    candidates = {"temperature": TemperatureScaling(), "histogram": HistogramBinning(n_bins=5)}
    choice = choose(y, p, candidates, n_folds=3, seed=4, score="brier_score")
    fold = literal_folds(y, 3, 4)
    assert np.all(np.ptp([np.bincount(y[fold == k], minlength=3) for k in range(3)], axis=0) <= 1)

    def losses(name, train, test):
        q = p[test] if name == "as given" else candidates[name].clone().fit(y[train], p[train]).transform(p[test])
        return np.sum((q - np.eye(3)[y[test]]) ** 2, axis=1)

    names = ["as given", *candidates]
    nested, chosen = np.empty(240), []
    for k in range(3):
        inner = [
            np.concatenate([losses(name, (fold != k) & (fold != j), fold == j) for j in range(3) if j != k])
            for name in names
        ]
        best = int(np.argmin([values.sum() for values in inner]))
        gains = inner[0] - inner[best]
        chosen.append(names[best] if gains.mean() > stats.sem(gains) else "as given")
        nested[fold == k] = losses(chosen[-1], fold != k, fold == k)
    assert choice.chosen_in_folds == tuple(chosen) and len(set(chosen)) > 1
    assert choice.comparison.model("chosen").value == pytest.approx(nested.mean(), rel=1e-10)
    for name in names:
        own = np.concatenate([losses(name, fold != k, fold == k) for k in range(3)])
        assert choice.comparison.model(name).value == pytest.approx(own.mean(), rel=1e-10)
    assert choice.name == "temperature" and choice.score == "brier_score" and choice.n_folds == 3
    expected = TemperatureScaling().fit(y, p).temperature_
    assert choice.recalibrator.temperature_ == pytest.approx(expected, rel=1e-12)
    first, *_, gain, _, _ = str(choice).splitlines()
    assert first.startswith("recalibration: temperature; brier_score: ")
    assert gain.startswith("brier_score of the choice minus that as given: ") and "95 % interval [" in gain


def test_logits_and_names():
    y, logits = problem()
    names = np.array(["red", "green", "blue"])
    candidates = {"vector": VectorScaling(), "platt": PlattScaling()}
    plain = choose(y, logits, candidates, from_logits=True)
    named = choose(names[y], logits, candidates, from_logits=True, classes=names)
    assert plain.name == named.name and plain.comparison.ranking == named.comparison.ranking
    own = kcalib.log_loss(y, logits, from_logits=True)
    assert plain.comparison.model("as given").value == pytest.approx(own, rel=1e-12)
    assert plain.recalibrator.transform(logits, from_logits=True).shape == (240, 3)


def test_calibrated_predictions_stay():
    """Nothing is better than the truth, up to noise that the interval knows."""
    y, logits = problem(n=600, temperature=1.0)
    choice = choose(
        y, special.softmax(logits, axis=1), {"histogram": HistogramBinning(), "rough": HistogramBinning(n_bins=2)}
    )
    assert choice.name == "as given" and choice.recalibrator is None
    low, high = choice.comparison.difference("chosen", "as given").confidence_interval
    assert low <= 0 <= high


def test_default_candidates():
    y, logits = problem(n=60)
    choice = choose(y, special.softmax(logits, axis=1), n_folds=3)
    names = {"temperature", "platt", "beta", "isotonic", "venn_abers", "vector", "dirichlet_1"}
    assert names < set(choice.comparison.ranking)
    binary = choose(y > 0, special.softmax(logits[:, :2], axis=1)[:, 1], n_folds=3)
    assert "vector" not in binary.comparison.ranking


@pytest.mark.parametrize("m, left_out", [(20, set()), (100, {"vector", "dirichlet_1"}), (101, {"platt", "beta"})])
def test_default_candidates_of_many_classes_are_those_that_take_no_minutes(m, left_out):
    found = set(default_candidates(prepare([0], np.full((1, m), 1 / m)), "log_loss"))
    assert {"temperature", "isotonic"} <= found and not left_out & found
    assert ("venn_abers" in found) == (m <= 100) and ("dirichlet_10" in found) == (m <= 20)


@pytest.mark.parametrize("score", ["crps", "log_score"])
def test_distributions(score):
    rng = np.random.default_rng(1)
    mean = rng.normal(size=300)
    y = mean + 1 + 2 * rng.normal(size=300)
    choice = choose(y, Normal(mean, np.ones(300)), score=score)
    expected = {"as given", "chosen", "temperature", "scale"} | ({"quantile"} if score == "crps" else set())
    assert set(choice.comparison.ranking) == expected
    assert choice.name in ("scale", "quantile")
    assert choice.comparison.difference("chosen", "as given").confidence_interval.high < 0
    assert choice.comparison.metric == score
    own = (
        kcalib.crps(y, Normal(mean, np.ones(300)))
        if score == "crps"
        else kcalib.log_score(y, Normal(mean, np.ones(300)))
    )
    assert choice.comparison.model("as given").value == pytest.approx(own, rel=1e-12)


def test_no_recalibrator_is_for_counts():
    with pytest.raises(ValueError, match="no recalibrator of Poisson predictions for the score 'crps'; pass cand"):
        choose(np.arange(9), Poisson(np.full(9, 4.0)))


@pytest.mark.parametrize("level", [0.0, 2, True, "high"])
def test_levels_are_checked_before_fits(level):
    class Never(ScaleCalibration):
        def fit(self, *args, **options):
            raise AssertionError

    with pytest.raises(ValueError, match="`confidence_level` is .*, expected a number between 0 and 1"):
        choose(np.arange(9.0), Normal(np.zeros(9), np.ones(9)), {"never": Never()}, confidence_level=level)


def test_families_that_differ_from_fold_to_fold():
    rng = np.random.default_rng(2)
    draws = rng.normal(size=(80, 20))
    y = 3 * rng.normal(size=80)
    candidates = {"scale": ScaleCalibration(), "quantile": QuantileRecalibration(n_points=7)}
    choice = choose(y, Samples(draws), candidates)
    assert choice.n_samples == 80 and len(choice.chosen_in_folds) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"candidates": [TemperatureScaling()]}, "`candidates` is list, expected a mapping"),
        ({"candidates": {}}, "`candidates` is empty"),
        ({"candidates": {1: TemperatureScaling()}}, "`candidates` has the key 1, expected names"),
        ({"candidates": {"chosen": TemperatureScaling()}}, "has the key 'chosen', which the result uses itself"),
        ({"candidates": {"a": TemperatureScaling}}, r"`candidates\['a'\]` is the class TemperatureScaling, exp"),
        ({"candidates": {"a": HistogramBinning(n_bins=0)}}, r"`candidates\['a'\]`: `n_bins` is 0"),
        ({"candidates": {"a": ScaleCalibration()}}, r"`candidates\['a'\]`: `y_pred` is ndarray"),
        ({"score": "crps"}, "`score` is 'crps', expected one of 'log_loss', 'brier_score'"),
        ({"n_folds": 2}, "`n_folds` is 2, expected an integer at least 3"),
        ({"n_folds": 31}, "`n_folds` is 31, but there are 30 samples; pass fewer folds"),
        ({"seed": -1}, "`seed` is -1"),
        ({"confidence_level": 1.0}, "`confidence_level` is 1.0, expected a number between 0 and 1"),
    ],
)
def test_wrong_input(arguments, message):
    y, logits = problem(n=30)
    arguments = {"candidates": {"isotonic": IsotonicCalibration()}, **arguments}
    with pytest.raises((TypeError, ValueError), match=message):
        choose(y, special.softmax(logits, axis=1), **arguments)


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("score", ["log_loss", "brier_score"])
def test_weights_are_those_of_fits_and_scores(m, score):
    y, logits = problem(200, m)
    p = special.softmax(logits, axis=1)
    weight = np.random.default_rng(3).uniform(0, 3, 200)
    y[:20], weight[:20] = (y[:20] + 1) % m, 0.0  # which no fit and no score sees
    candidates = {"temperature": TemperatureScaling(), "platt": PlattScaling()}
    choice = choose(y, p, candidates, score=score, n_folds=3, sample_weight=weight)
    fitted = candidates[choice.name].clone().fit(y, p, sample_weight=weight)
    assert np.array_equal(choice.recalibrator.transform(p), fitted.transform(p))
    given = choice.comparison.model("as given")
    assert given.value == pytest.approx(getattr(kcalib, score)(y, p, sample_weight=weight), rel=1e-10)
    losses = (
        -np.log(p[np.arange(200), y])
        if score == "log_loss"
        else ((np.eye(m)[y] - p) ** 2).sum(1) / (2 if m == 2 else 1)
    )
    deviations = weight * (losses - given.value) / weight.sum()
    assert given.standard_error == pytest.approx(np.sqrt(np.sum(deviations**2) * 200 / 199), rel=1e-8)
    alike = choose(y, p, candidates, score=score, n_folds=3, sample_weight=np.full(200, 2.5))
    plain = choose(y, p, candidates, score=score, n_folds=3)
    assert alike.chosen_in_folds == plain.chosen_in_folds
    for one, other in zip(alike.comparison.models, plain.comparison.models, strict=True):
        assert one.model == other.model and one.value == pytest.approx(other.value, rel=1e-9)


def test_weights_of_distributions():
    rng = np.random.default_rng(1)
    mean, weight = rng.normal(size=90), rng.uniform(size=90)
    y, prediction = mean + 2 * rng.normal(size=90), Normal(mean, np.ones(90))
    choice = choose(y, prediction, n_folds=3, sample_weight=weight)
    expected = kcalib.crps(y, prediction, sample_weight=weight)
    assert choice.comparison.model("as given").value == pytest.approx(expected, rel=1e-12)


class Fails(TemperatureScaling):
    """Where sample 5 is not among those to fit to."""

    def fit(self, y_true, y_pred, **options):
        if len(y_true) < 60 and not np.any(y_pred == 0.123):
            raise ValueError("where is sample 5?")
        return super().fit(y_true, y_pred, **options)


def test_candidates_that_cannot_be_fitted_are_left_out():
    y, logits = problem(60)
    p = special.softmax(logits, axis=1)
    p[5] = [0.123, 0.4, 0.477]
    candidates = {"scale": ScaleCalibration(), "temperature": TemperatureScaling(), "fails": Fails()}
    message = r"left out: `candidates\['scale'\]`: .*; `candidates\['fails'\]`: where is sample 5"
    with pytest.warns(UserWarning, match=message):
        choice = choose(y, p, candidates, n_folds=3)
    assert choice.left_out == ("scale", "fails") and set(choice.comparison.ranking) == {
        "as given",
        "chosen",
        "temperature",
    }
    same = choose(y, p, {"temperature": TemperatureScaling()}, n_folds=3)
    assert same.left_out == () and same.comparison.models == choice.comparison.models
    with pytest.raises(
        ValueError, match=r"no candidate can be fitted to these samples: `candidates\['scale'\]`: .*'fails'"
    ):
        choose(y, p, {"scale": ScaleCalibration(), "fails": Fails()}, n_folds=3)


def test_candidates_that_are_far_behind_are_stopped():
    y, logits = problem(n=600, temperature=3.0)
    p = special.softmax(logits, axis=1)
    choice = choose(y, p, {"constant": HistogramBinning(n_bins=1), "temperature": TemperatureScaling()})
    assert choice.stopped == ("constant",) and choice.chosen_in_folds == ("temperature",) * 5
    assert "stopped early, as too far behind to be chosen: constant" in str(choice)
    assert "constant" in choice.comparison.ranking
    assert kcalib.log_loss(y, choice.predictions) == pytest.approx(choice.comparison.model("chosen").value, rel=1e-12)


@pytest.mark.slow
def test_winners_are_not_stopped():
    """A row of docs/stopped_table.txt, which is what docs/scripts/stopped_candidates.py prints, of fewer sets."""
    row = load_script("stopped_candidates").measure("by class", 2, 500, n_sets=8)
    assert row.n_choices == 40 and row.n_winners_stopped <= 1 and row.stopped > 0


def test_what_takes_too_long_is_left():
    y, logits = problem()
    with pytest.raises(TimeoutError, match="would take about .* s, more than `max_seconds`, 1e-06; pass fewer samples"):
        choose(y, logits, from_logits=True, max_seconds=1e-6)
    with pytest.raises(ValueError, match="`max_seconds` is 0, expected"):
        choose(y, logits, from_logits=True, max_seconds=0)
