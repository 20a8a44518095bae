"""The protocol of checked data: the same methods for class labels and for predicted distributions."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import kcalib
from kcalib._input.data import Data
from kcalib._input.forecasts import prepare
from kcalib._input.labels import Classification
from kcalib._input.labels import prepare as prepare_classes
from kcalib._packing.labels import sample_side
from kcalib._pairs.problem import Side
from kcalib.distributions import MultivariateNormal, Normal, Samples

N = 60
RNG = np.random.default_rng(0)
P, MEAN = RNG.dirichlet(np.ones(3), N), RNG.normal(size=(N, 2))


def _data(kind, weighted=False):
    weight = RNG.uniform(size=N) if weighted else None
    if kind == "classes":
        return prepare(RNG.integers(3, size=N), P, sample_weight=weight)
    if kind == "names":
        return prepare(RNG.choice(["cat", "dog", "owl"], size=N), P, classes=["cat", "dog", "owl"])
    if kind == "numbers":
        return prepare(RNG.normal(size=N), Normal(MEAN[:, 0], 2.0), sample_weight=weight)
    if kind == "vectors":
        return prepare(RNG.normal(size=(N, 2)), MultivariateNormal(MEAN, np.tile(np.eye(2), (N, 1, 1))))
    return prepare(RNG.normal(size=N), Samples(RNG.normal(size=(N, 5))))


KINDS = ["classes", "names", "numbers", "vectors", "samples"]


@pytest.fixture(params=KINDS)
def data(request):
    return _data(request.param)


def _same(one, other):
    return one.size == other.size and one.listed() == other.listed()


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_rows_keep_what_belongs_together(kind):
    data, rows = _data(kind, weighted=True), np.array([5, 0, 5])
    taken, (targets, predictions) = data.take(rows), data.listed()
    assert taken.n == 3 and taken.dtype == data.dtype and taken.lens == data.lens
    assert taken.listed() == (tuple(targets[i] for i in rows), tuple(predictions[i] for i in rows))
    np.testing.assert_array_equal(taken.sample_weight, data.sample_weight[rows])


def test_permutation_is_numpys(data):
    order = np.random.default_rng(7).permutation(N)
    np.testing.assert_array_equal(data.order(7), order)
    assert _same(data.permuted(7), data.take(order))
    assert not _same(data.permuted(7), data)


def test_draws_are_functions_of_seed_and_replicate(data):
    drawn = data.draw(3, 4)
    assert _same(drawn, data.draw(3, 4))
    assert drawn.listed()[1] == data.listed()[1]  # the same predictions
    for other in (data.draw(3, 5), data.draw(4, 4), data):
        assert other.listed()[0] != drawn.listed()[0]
    by = [data.draw_by(np.random.default_rng(seed)).listed()[0] for seed in (1, 1, 2)]
    assert by[0] == by[1] != by[2]


def test_samples_drawn_again_are_those_of_the_rows(data):
    rows, drawn = data.redraw(2, 0)
    assert drawn.n == N and len(set(rows.tolist())) < N
    assert drawn.listed()[1] == data.take(rows).listed()[1]
    assert drawn.listed()[0] != data.take(rows).listed()[0]
    again, other = data.redraw(2, 1)
    assert again.tolist() != rows.tolist() and other.listed() != drawn.listed()


def test_labels_are_drawn_with_their_probabilities():
    data = prepare([0] * 20_000, np.tile([0.5, 0.3, 0.2], (20_000, 1)))
    _, redrawn = data.redraw(1, 0)
    for drawn in (data.draw(1, 0), data.draw_by(np.random.default_rng(0)), redrawn):
        np.testing.assert_allclose(np.bincount(drawn.labels) / data.n, [0.5, 0.3, 0.2], atol=0.015)


def test_targets_are_drawn_from_their_distributions():
    mean = np.linspace(-50, 50, 20_000)
    data = prepare(mean, Normal(mean, 2.0))
    for drawn in (data.draw(1, 0), data.draw_by(np.random.default_rng(0))):
        assert np.std(drawn.y[:, 0] - mean) == pytest.approx(2.0, rel=0.03)
    rows, drawn = data.redraw(1, 0)
    assert np.std(drawn.y[:, 0] - mean[rows]) == pytest.approx(2.0, rel=0.03)


def test_other_targets(data):
    drawn = data.draw(1, 0)
    targets = drawn.labels if isinstance(data, Classification) else drawn.y
    assert _same(data.with_targets(targets), drawn)


@pytest.mark.parametrize(
    ("kind", "described", "size", "noun"),
    [
        ("classes", {"n_classes": 3, "prediction": None}, "60 samples and 3 classes", "class probabilities"),
        ("vectors", {"n_classes": None, "prediction": "MultivariateNormal"}, "60 samples and targets of 2 entries",
         "predicted distributions"),
    ],
)  # fmt: skip
def test_words_of_results_and_messages(kind, described, size, noun):
    data = _data(kind)
    assert data.describe() == {**described, "positive_class": None, "lens": "Canonical()"}
    assert (data.size, data.noun) == (size, noun)


def test_forms_for_users_and_for_results():
    names = _data("names")
    assert set(names.listed()[0]) == {"cat", "dog", "owl"}
    y, p = names.as_given()
    assert y is names.labels and p is names.probabilities
    numbers, vectors = _data("numbers"), _data("vectors")
    assert numbers.as_given()[0].shape == (N,) and vectors.as_given()[0].shape == (N, 2)
    assert numbers.as_given()[1] is numbers.prediction
    assert isinstance(numbers.listed()[0][0], float) and len(vectors.listed()[0][0]) == 2
    assert _data("samples").listed()[1] == ((),) * N  # no parameters


def test_a_kind_of_data_has_the_whole_protocol():
    incomplete = type("Incomplete", (Data,), {})
    with pytest.raises(TypeError, match="abstract methods? .*draw"):
        incomplete()
    assert isinstance(_data("classes"), Classification) and isinstance(_data("classes"), Data)


def test_nothing_asks_for_the_class_of_data():
    """What differs between the kinds is a method of theirs, or registered for their class, but where files are read."""
    asked = re.compile(r"isinstance\([^)]*\b(Forecasts|Classification)\b")
    for path in Path(kcalib.__file__).parent.rglob("*.py"):
        if path.parent.name not in ("_command", "sources"):
            assert not asked.search(path.read_text()), path


def test_rows_of_a_column_are_made_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over pairs of residuals on a line take the column itself, to the bits of the rows."""
    rng = np.random.default_rng(3)
    q = np.concatenate([rng.random(700), 10 ** rng.uniform(-17, 0, 300), [0.0, 1.0, 1 + 1e-7, -0.0]])
    y, within = rng.integers(0, 2, len(q)), np.minimum(q, 1.0)
    rows = np.stack([1 - within, within], axis=1)
    data = prepare_classes(y, q)
    assert np.shares_memory(data.given, q) and (data.n, data.m) == rows.shape and "wide" not in vars(data)
    restored, some = pickle.loads(pickle.dumps(data)), np.array([3, 1, 1002])
    for column in (data, restored, prepare_classes(y, q[:, None], threads=1)):
        np.testing.assert_array_equal(column.take(some).probabilities, rows[some])
        np.testing.assert_array_equal(column.probabilities, rows)
    side, whole = sample_side(prepare_classes(y, q), None, 1), sample_side(prepare_classes(y, rows), None, 1)
    assert np.shares_memory(side.seconds, q) and side.has_residual_features and whole.seconds is None
    np.testing.assert_array_equal(side.features, whole.features)
    for options in ({"dtype": "float32"}, {"sample_weight": np.ones(len(q))}):
        assert sample_side(prepare_classes(y, q, **options), None, 1).seconds is None
    kernel = kcalib.kernels.Matern(bandwidth=0.3, nu=1.5)
    values = {one: kcalib.skce(y, rows, kernel=kernel, estimator=one) for one in ("unbiased", "biased")}
    monkeypatch.setattr("kcalib._native.completed", None)
    for threads in (1, 2):
        for estimator, value in values.items():
            assert kcalib.skce(y, q, kernel=kernel, estimator=estimator, threads=threads) == value
    for wrong, message in ((np.nan, "finite"), (1.01, "between 0 and 1"), (-0.1, "between 0 and 1")):
        q[5] = wrong
        with pytest.raises(ValueError, match=rf"y_pred\[5\].*{message}"):
            prepare_classes(y, q)


@pytest.mark.parametrize("m", [2, 12, 40])
@pytest.mark.parametrize("kind", ["spread", "saturated", "diffuse"])
def test_float32_rows_that_are_swept_in_float32_are_not_copied(m: int, kind: str) -> None:
    """Their sums are those of the same numbers in float64, which are rounded, with residuals by themselves."""
    rng = np.random.default_rng(m)
    p = rng.dirichlet(np.full(m, 1000.0 if kind == "diffuse" else 0.3), 200)
    if kind == "saturated":
        p = 1e-6 * p + (1 - 1e-6) * np.eye(m)[rng.integers(0, m, 200)]
    single, labels, rows = p.astype(np.float32), rng.integers(0, m, 200), np.array([3, 1, 1])
    wide = single.astype(np.float64)
    data = prepare_classes(labels, single, dtype="float32")
    assert data.given is single and "wide" not in vars(data)
    for restored in (data, pickle.loads(pickle.dumps(data))):
        assert restored.probabilities.dtype == np.float64
        np.testing.assert_array_equal(restored.probabilities, wide)
        np.testing.assert_array_equal(restored.take(rows).probabilities, wide[rows])
    for options in ({"dtype": None}, {"sample_weight": np.ones(200)}):
        assert prepare_classes(labels, single, **({"dtype": "float32"} | options)).given.dtype == np.float64
    sides = [sample_side(prepare_classes(labels, x, dtype="float32"), None, 1) for x in (single, wide)]
    assert [side.has_residual_features for side in sides] == [True, False]
    for side in (sides[0], sides[0].take(slice(None)), sides[0].take(np.arange(200)), Side.of(*sides[0].parts())):
        assert side.has_residual_features
        np.testing.assert_array_equal(side.features, sides[1].features)
    for estimator in ("biased", "block"):
        options = {"kernel": kcalib.kernels.Exponential(bandwidth=0.5), "estimator": estimator, "dtype": "float32"}
        assert kcalib.skce(labels, single, **options) == kcalib.skce(labels, wide, **options)
    single[5] *= 2
    with pytest.raises(ValueError, match=r"y_pred\[5"):
        prepare_classes(labels, single, dtype="float32")
