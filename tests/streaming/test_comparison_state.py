"""Models compared from sums, against `kcalib.compare` on all samples."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy
from hard_laws import LAWS, drawn_labels

import kcalib
from kcalib.kernels import Exponential, Gaussian
from kcalib.lenses import TopLabel
from kcalib.streaming import CalibrationState, ComparisonState

KERNEL = Exponential(0.3)
METRICS = ("skce", "ece", "brier_score", "log_loss")
MODELS = ("good", "sharp", "flat")


def problem(n, m=3, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(m), size=n)
    powers = {"good": 1.0, "sharp": 2.0, "flat": 0.6}
    models = {name: p**power / (p**power).sum(axis=1, keepdims=True) for name, power in powers.items()}
    return drawn_labels(p, rng), models


def state_of(y, models, pieces=5, **options):
    m = next(iter(models.values())).shape[1]
    state = ComparisonState(m, models=tuple(models), **{"kernel": KERNEL, "n_columns": 64} | options)
    for part in np.array_split(np.arange(len(y)), pieces):
        rows = slice(part[0], part[-1] + 1)
        state.update(y[rows], {name: p[rows] for name, p in models.items()})
    return state


def features_in_memory(y, models, monkeypatch, *, kernel, lens=None):
    """`compare` by random features, of any number of samples."""
    monkeypatch.setattr("kcalib.inference.metrics.skce.PAIRS_WORK", 0.0)
    monkeypatch.setattr("kcalib._packing.features.default_columns", lambda n: 64)
    return kcalib.compare(y, models, metric=kcalib.methods.SKCE(kernel=kernel), lens=lens)


def near(mine, theirs, tolerance, limits=None):
    """Values, errors, limits and p-values."""
    assert mine.ranking == theirs.ranking and mine.n_samples == theirs.n_samples
    for a, b in zip(mine.models, theirs.models, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-11, abs=1e-15)
        assert a.standard_error == pytest.approx(b.standard_error, rel=tolerance)
        width = b.confidence_interval.high - b.confidence_interval.low
        for one, other in zip(a.confidence_interval, b.confidence_interval, strict=True):
            assert one == pytest.approx(other, abs=(limits or tolerance) * width + 1e-15)
    for a, b in zip(mine.differences, theirs.differences, strict=True):
        assert a.difference == pytest.approx(b.difference, rel=1e-9, abs=1e-15)
        assert a.standard_error == pytest.approx(b.standard_error, rel=tolerance)
        width = b.confidence_interval.high - b.confidence_interval.low
        for one, other in zip(a.confidence_interval, b.confidence_interval, strict=True):
            assert one == pytest.approx(other, abs=(limits or tolerance) * width + 1e-15)


@pytest.mark.parametrize("n", [4, 9, 200])
@pytest.mark.parametrize("metric", ["ece", "brier_score", "log_loss"])
def test_few_samples_are_compared_as_in_memory(metric, n):
    y, models = problem(n)
    near(state_of(y, models, pieces=2).result(metric), kcalib.compare(y, models, metric=metric), 1e-9)


@pytest.mark.parametrize("metric", ["brier_score", "log_loss"])
def test_scores_of_many_samples(metric):
    y, models = problem(1500)
    mine, theirs = state_of(y, models).result(metric), kcalib.compare(y, models, metric=metric)
    near(mine, theirs, 1e-8)
    for a, b in zip(mine.differences, theirs.differences, strict=True):
        assert a.pvalue == pytest.approx(b.pvalue, rel=1e-6)


@pytest.mark.parametrize("n", [100, 250])
def test_skce_of_rows_that_are_all_kept(n, monkeypatch):
    y, models = problem(n)
    near(state_of(y, models).result(), features_in_memory(y, models, monkeypatch, kernel=KERNEL), 1e-8)


def test_skce_of_many_samples(monkeypatch):
    y, models = problem(700)
    theirs = features_in_memory(y, models, monkeypatch, kernel=KERNEL)
    for n_resamples in (0, 9):
        mine = state_of(y, models, n_resamples=n_resamples).result()
        near(mine, theirs, 0.35 if n_resamples == 0 else 0.02, 0.25)
        assert (mine.n_columns, mine.backend, mine.kernel) == (64, "features", theirs.kernel)


def test_ece_of_many_samples():
    """Normal deviations against the bootstrap."""
    y, models = problem(2500)
    near(state_of(y, models).result("ece"), kcalib.compare(y, models, metric="ece"), 1e-8, 0.06)


def test_models_that_are_the_same():
    y, models = problem(700)
    for metric in METRICS:
        result = state_of(y, {"a": models["sharp"], "b": models["sharp"]}).result(metric)
        assert result.difference("a", "b").pvalue == 1.0 and not result.difference("a", "b").distinguishable
        assert result.difference("a", "b").difference == 0.0


@pytest.mark.parametrize("n", [500, 1999, 2100])
def test_all_models_have_the_median_of_their_bandwidths(n):
    y, models = problem(n)
    state = state_of(y, models, kernel=None)
    medians = [kcalib.bandwidth.median_distance(p[:1999]).value for p in models.values()]
    for one in state.states.values():
        assert one.kernel.bandwidth == pytest.approx(np.median(medians), rel=1e-12)
    assert state.result().bandwidth == pytest.approx(np.median(medians), rel=1e-12)
    assert state == state_of(y, models, kernel=None, pieces=1)


def halves(n, **options):
    y, models = problem(n)
    k = n // 3
    first = state_of(y[:k], {name: p[:k] for name, p in models.items()}, **options)
    second = state_of(y[k:], {name: p[k:] for name, p in models.items()}, part=1, **options)
    return first, second


@pytest.mark.parametrize("n, kernel", [(2100, None), (700, KERNEL)])
def test_merged_states(n, kernel):
    first, second = halves(n, kernel=kernel)
    both, other = first + second, second + first
    assert both.n_samples == n
    y, models = problem(n)
    whole = state_of(y, models, kernel=kernel if kernel else both.states["good"].kernel)
    for metric in METRICS[1:]:
        near(both.result(metric), whole.result(metric), 1e-8, 0.1)
        assert other.result(metric).models[0].value == both.result(metric).models[0].value
    assert other.states["flat"].kernel == both.states["flat"].kernel
    values = [[entry.value for entry in one.result().models] for one in (both, other, whole)]
    np.testing.assert_allclose(values[0], values[1], rtol=0, atol=0)
    np.testing.assert_allclose(values[0], values[2], rtol=1e-9)


def test_files(tmp_path):
    state = halves(900)[0]
    state.save(tmp_path / "a.kcalib")
    for found in (
        ComparisonState.load(tmp_path / "a.kcalib"),
        kcalib.streaming.load(tmp_path / "a.kcalib"),
        pickle.loads(pickle.dumps(state)),
        state.copy(),
    ):
        assert isinstance(found, ComparisonState) and found == state and found.models == MODELS
        assert [entry.value for entry in found.result("ece").models] == [
            entry.value for entry in state.result("ece").models
        ]


def test_states_are_those_of_the_models():
    y, models = problem(700)
    state = state_of(y, models, n_resamples=9)
    for name, one in state.states.items():
        assert one == CalibrationState(3, kernel=KERNEL, n_columns=64, n_resamples=9).update(y, models[name])
    state.states["good"].update(y, models["good"])
    assert state.n_samples == 700 and "ComparisonState of ['good'" in repr(state)
    assert [one.n_samples for one in ComparisonState(3).states.values()] == [0, 0]


def test_an_empty_batch_adds_nothing():
    y, models = problem(20)
    state = state_of(y, models, kernel=None)
    assert state.copy().update(y[:0], {name: p[:0] for name, p in models.items()}) == state
    with pytest.raises(ValueError, match=r"`y_preds\['sharp'\]`: `y_true` has 0 labels, `y_pred` 20 predictions"):
        state.update(y[:0], models | {"good": models["good"][:0]})


def test_identical_predictions():
    y, p = np.array([0, 1, 2, 1, 0]), np.full((5, 3), 1 / 3)
    state = ComparisonState(3, n_columns=16).update(y[:1], {"a": p[:1], "b": p[:1]})
    assert {one.kernel for one in state.states.values()} == {None}
    state.update(y, {"a": p, "b": p})
    assert state.result().difference("a", "b").difference == 0
    many = np.arange(2500) % 3, np.tile(p[:1], (2500, 1))
    state.update(many[0], {"a": many[1], "b": many[1]})
    found = state.result()
    assert found.difference("a", "b").difference == 0
    assert found.bandwidth_source == "no median: the first 1999 predictions are identical"


def test_lens_and_kernel(monkeypatch):
    y, models = problem(240, m=5)
    state = state_of(y, models, lens=TopLabel(), kernel=Gaussian(0.2))
    theirs = features_in_memory(y, models, monkeypatch, kernel=Gaussian(0.2), lens=TopLabel())
    near(state.result(), theirs, 1e-6)
    near(state.result("ece"), kcalib.compare(y, models, metric="ece", lens=TopLabel()), 1e-8)


def test_saturated_models():
    """Errors that were too rare to be seen: intervals are wide, and models are not told apart."""
    rng = np.random.default_rng(2)
    p = LAWS["saturated, 1e-8..1e-4"].draw(2000, rng)
    y = p.argmax(axis=1)
    sharper = p**1.2 / (p**1.2).sum(axis=1, keepdims=True)
    for metric in ("skce", "ece"):
        mine = state_of(y, {"a": p, "b": sharper}).result(metric)
        assert not mine.difference("a", "b").distinguishable
    mine = state_of(y, {"a": p, "b": sharper}).result("log_loss")
    assert "allowing for targets too rare to be seen" in mine.intervals
    assert not mine.difference("a", "b").distinguishable


@pytest.mark.parametrize(
    "models, error, message",
    [
        ("ab", TypeError, "`models` is 'ab', expected a sequence of names"),
        (("a", 1), TypeError, "`models` has 1, expected names that are strings"),
        (("a",), ValueError, r"`models` is \['a'\], expected at least 2 different names"),
        (("a", "a"), ValueError, "expected at least 2 different names"),
    ],
)
def test_names_are_checked(models, error, message):
    with pytest.raises(error, match=message):
        ComparisonState(3, models)


def test_pairs_of_many_bins_are_refused():
    with pytest.raises(MemoryError, match=r"sums of 3 pairs of models by bins take .*; use fewer `n_bins`"):
        ComparisonState(3, MODELS, n_bins=1_000_000)


def test_faults_leave_the_state_as_it_was():
    y, models = problem(50)
    state = state_of(y, models)
    before = state.to_bytes()
    with pytest.raises(TypeError, match="`y_preds` is a list, expected a mapping"):
        state.update(y, [models["good"]])
    with pytest.raises(ValueError, match=r"`y_preds` has the models \['good'\], expected \['good', 'sharp', 'flat'\]"):
        state.update(y, {"good": models["good"]})
    with pytest.raises(
        ValueError, match=r"`y_preds\['flat'\]`: `y_pred\[0, 0\]` is nan, expected a finite probability"
    ):
        state.update(y, models | {"flat": models["flat"] * np.nan})
    with pytest.raises(ValueError, match="were added already"):
        state.update(y, models, first_row=10)
    with pytest.raises(TypeError, match="`other` is int, expected a ComparisonState"):
        state.merge(1)
    with pytest.raises(ValueError, match="`models` are .* in one state and .* in the other; make them with the same"):
        state.merge(ComparisonState(3))
    with pytest.raises(ValueError, match="were added already"):
        state.merge(state)
    with pytest.raises(ValueError, match="`metric` is 'ckce', expected one of"):
        state.result("ckce")
    with pytest.raises(ValueError, match="`confidence_level` is 2"):
        state.result(confidence_level=2)
    with pytest.raises(ValueError, match="the state has 0 samples, expected at least 4; add more"):
        ComparisonState(3).result()
    assert state.to_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("name", ["Dir(1), m = 2", "Dir(1), m = 10", "Dir(.1), m = 10"])
def test_models_that_are_as_good_are_told_apart_rarely(name, metric):
    """Both are calibrated, and one sees less; scores are of two that are equally far off."""
    rng, count, level = np.random.default_rng(3), 300, 0.9
    found = 0
    for _ in range(count):
        p = LAWS[name].draw(600, rng)
        y = drawn_labels(p, rng)
        if metric in ("brier_score", "log_loss"):
            # The same distance off in either direction: equal in distribution if rows of both are exchanged.
            noise = np.exp(0.3 * rng.normal(size=p.shape))
            one, two = p * noise, p / noise
            swap = rng.random(len(p)) < 0.5
            one, two = np.where(swap[:, None], one, two), np.where(swap[:, None], two, one)
            models = {"a": one / one.sum(axis=1, keepdims=True), "b": two / two.sum(axis=1, keepdims=True)}
        else:
            m = p.shape[1]
            hidden = rng.random(len(p)) < 0.5
            other = np.where(hidden[:, None], np.full(m, 1 / m), p)
            models = {"a": p, "b": other}
        state = state_of(y, models, pieces=1)
        found += state.result(metric, confidence_level=level).difference("a", "b").distinguishable
    assert found <= scipy.stats.binom.ppf(1 - 1e-3, count, 1 - level)


def test_options_are_those_of_a_state():
    state = ComparisonState(3, n_bins=7, seed=4, threads=1, part=2)
    expected = CalibrationState(3, n_bins=7, seed=4, part=2, n_resamples=0)
    assert state.options == expected.options and state.copy().update([0], {"a": [[1, 0, 0]], "b": [[1, 0, 0]]})
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_column'"):
        ComparisonState(3, n_column=16)
