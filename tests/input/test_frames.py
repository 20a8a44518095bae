"""Names of columns and rows that contradict the order in which samples and classes are paired."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import numpy as np
import pytest
from libraries import MakeProblem

import kcalib
from kcalib.distributions import Normal, Poisson, Samples
from kcalib.recalibration import PlattScaling, TemperatureScaling
from kcalib.streaming import source

FRAMES = ["pandas", "polars", "pyarrow"]


def frame(library: str, columns: dict[str, np.ndarray]) -> Any:
    module = pytest.importorskip(library)
    return (module.table if library == "pyarrow" else module.DataFrame)(columns)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_columns_are_the_classes_that_they_are_named_after(library: str, make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 3)
    labels = np.array(["ant", "bee", "cat"])[y]
    columns = {"cat": p[:, 2], "bee": p[:, 1], "ant": p[:, 0]}
    expected = pytest.approx(kcalib.skce(y, p))
    assert kcalib.skce(labels, frame(library, columns)) == expected
    assert kcalib.skce(labels, frame(library, columns), classes=["cat", "bee", "ant"]) == expected
    assert kcalib.skce(labels, frame(library, dict(reversed(columns.items())))) == kcalib.skce(y, p)
    # Names that are not those of the classes say nothing, and no encoder of labels puts them in this order.
    others = frame(library, {"z": p[:, 0], "y": p[:, 1], "x": p[:, 2]})
    message = "are not named after the labels ['ant', 'bee', 'cat'], and are not in ascending order; pass classes="
    with pytest.raises(ValueError, match=re.escape(message)):
        kcalib.skce(labels, others)
    assert kcalib.skce(labels, others, classes=["ant", "bee", "cat"]) == kcalib.skce(y, p)


def test_integer_column_names_are_labels(make_problem: MakeProblem) -> None:
    pd = pytest.importorskip("pandas")
    y, p = make_problem(40, 3)
    assert kcalib.brier_score(y, pd.DataFrame(p)[[2, 1, 0]]) == pytest.approx(kcalib.brier_score(y, p))
    assert kcalib.skce(y + 1, pd.DataFrame(p, columns=[1, 2, 3])) == kcalib.skce(y, p)
    message = r"`y_true` holds the label 0, but the columns of `y_pred` are named \[1, 2, 3\]; .* pass classes="
    with pytest.raises(ValueError, match=message):
        kcalib.skce(y, pd.DataFrame(p, columns=[1, 2, 3]))
    assert kcalib.skce(y, pd.DataFrame(p, columns=[1, 2, 3]), classes=[0, 1, 2]) == kcalib.skce(y, p)


@pytest.mark.parametrize("library", FRAMES)
@pytest.mark.parametrize("start", ["", "p_", "class "])
def test_columns_numbered_in_another_order_are_named(library: str, start: str, make_problem: MakeProblem) -> None:
    """With integer labels, strings of digits name them, too."""
    y, p = make_problem(40, 3)
    shuffled = frame(library, {f"{start}{k}": p[:, k] for k in (2, 0, 1)})
    assert kcalib.brier_score(y, shuffled) == pytest.approx(kcalib.brier_score(y, p))
    assert kcalib.brier_score(y, shuffled, classes=[2, 0, 1]) == pytest.approx(kcalib.brier_score(y, p))
    assert kcalib.brier_score(y, frame(library, {f"{start}{k}": p[:, k] for k in range(3)})) == kcalib.brier_score(y, p)


@pytest.mark.parametrize("library", FRAMES)
def test_columns_named_like_classes_given_in_another_order_are_refused(library: str, make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 3)
    animals = np.array(["ant", "bee", "cat"])
    shuffled = frame(library, {str(animals[k]): p[:, k] for k in (2, 0, 1)})
    message = "`y_pred` has the columns ['cat', 'ant', 'bee'], expected them in the order ['ant', 'bee', 'cat']"
    with pytest.raises(ValueError, match=re.escape(message)):
        kcalib.skce(animals[y], shuffled, classes=animals)
    tens = frame(library, {str(10 * (k + 1)): p[:, k] for k in (2, 0, 1)})
    with pytest.raises(ValueError, match=r"expected them in the order \[10, 20, 30\]"):
        kcalib.skce(10 * (y + 1), tens, classes=[10, 20, 30])
    # With integer labels the names say nothing, and no encoder of labels puts them in this order.
    with pytest.raises(ValueError, match=r"are not named after the labels 0\.\.2.*classes=\[0, 1, 2\]"):
        kcalib.skce(y, shuffled)
    assert kcalib.skce(y, shuffled, classes=[2, 0, 1]) == pytest.approx(kcalib.skce(y, p))
    assert kcalib.skce(y, frame(library, {str(animals[k]): p[:, k] for k in range(3)})) == kcalib.skce(y, p)


@pytest.mark.parametrize("library", FRAMES)
def test_one_hot_columns_are_paired_by_name(library: str, make_problem: MakeProblem) -> None:
    y, p = make_problem(40, 3)
    animals, one_hot = ["cat", "ant", "bee"], np.eye(3)[y]
    predicted = frame(library, {name: p[:, k] for k, name in enumerate(animals)})
    labels = frame(library, {name: one_hot[:, k] for k, name in enumerate(animals)})
    assert kcalib.skce(labels, predicted) == kcalib.skce(one_hot, p)
    turned = frame(library, {animals[k]: one_hot[:, k] for k in (1, 2, 0)})
    assert kcalib.skce(turned, predicted) == kcalib.skce(one_hot, p)
    with pytest.raises(
        ValueError, match=r"`y_true` has the columns \['2', '0', '1'\], which are not in ascending order"
    ):
        kcalib.skce(frame(library, {str(k): one_hot[:, k] for k in (2, 0, 1)}), p)


def test_rows_in_another_order_are_refused(make_problem: MakeProblem) -> None:
    pd = pytest.importorskip("pandas")
    y, p = make_problem(40, 3)
    names = [f"s{i}" for i in range(40)]
    labels, predicted = pd.Series(y, index=names), pd.DataFrame(p, index=names)
    weights = pd.Series(np.linspace(1, 2, 40), index=names)
    expected = kcalib.skce(y, p)
    assert kcalib.skce(labels, predicted) == expected
    turned = labels.sample(frac=1, random_state=0)
    message = (
        r"`y_true` and `y_pred` have the same index in another order: row 0 is s\d+ in `y_true` and s0 in `y_pred`"
    )
    with pytest.raises(ValueError, match=message + r"; pass y_true\.loc\[y_pred\.index\], or, .*y_true\.to_numpy\(\)"):
        kcalib.skce(turned, predicted)
    assert kcalib.skce(turned.loc[predicted.index], predicted) == expected
    with pytest.raises(ValueError, match="`y_true` and `y_pred` have different indexes; pass the same samples"):
        kcalib.skce(labels.rename(lambda name: name + "x"), predicted)
    with pytest.raises(ValueError, match="`sample_weight` and `y_pred` have the same index in another order"):
        kcalib.skce(y, predicted, sample_weight=weights[::-1])
    with pytest.raises(ValueError, match="`sample_weight` and `y_true` have the same index in another order"):
        kcalib.skce(labels, p, sample_weight=weights[::-1])
    # Rows that nobody named, as a model's predictions of a part of the samples, are paired by position.
    assert kcalib.skce(pd.Series(y, index=np.arange(40) + 7), pd.DataFrame(p)) == expected


def test_variables_of_samples_in_another_order_are_refused(make_problem: MakeProblem) -> None:
    pd = pytest.importorskip("pandas")
    y, p = make_problem(40, 2)
    labels = pd.Series(y, index=[f"s{i}" for i in range(40)])
    site, state = pd.Series(np.arange(40) % 4, index=labels.index), kcalib.streaming.CalibrationState(2, clusters=True)
    calls = {
        r"`groups\['site'\]` .*; pass groups\['site'\]\.loc": lambda values: kcalib.worst_groups(
            labels, p, {"site": values}, min_size=2
        ),
        "`given` and `y_true`": lambda values: kcalib.calibration_test(labels, p, given=values),
        "`clusters` and `y_true`": lambda values: kcalib.compare(labels, {"a": p, "b": p}, clusters=values),
        "`clusters` and": lambda values: kcalib.evaluate(labels, p, clusters=values),
        "`clusters`": lambda values: state.update(labels, p, clusters=values),
    }
    for message, call in calls.items():
        call(site)
        with pytest.raises(ValueError, match=message):
            call(site[::-1])


def test_arrays_of_xarray_are_named_by_their_coordinates(make_problem: MakeProblem) -> None:
    xr = pytest.importorskip("xarray")
    y, p = make_problem(40, 3)
    names, animals = [f"s{i}" for i in range(40)], np.array(["ant", "bee", "cat"])
    labels = xr.DataArray(animals[y], dims="sample", coords={"sample": names})
    predicted = xr.DataArray(p, dims=("sample", "class"), coords={"sample": names, "class": animals})
    expected = kcalib.skce(y, p)
    assert kcalib.skce(labels, predicted) == kcalib.skce(y, xr.DataArray(p, dims=("a", "b"))) == expected
    assert kcalib.brier_score(labels, predicted.chunk(10) if has_dask() else predicted) == kcalib.brier_score(y, p)
    turned = predicted[:, [1, 0, 2]]
    assert kcalib.brier_score(labels, turned) == pytest.approx(kcalib.brier_score(y, p))
    message = "has the columns ['bee', 'ant', 'cat'], expected them in the order ['ant', 'bee', 'cat']"
    with pytest.raises(ValueError, match=re.escape(message)):
        kcalib.skce(labels, turned, classes=animals)
    message = (
        "`y_true` and `y_pred` have the same index in another order: row 0 is s39 in `y_true` and s0 in `y_pred`; pass "
        "y_true.sel({'sample': y_pred.sample}), or, to pair them by position, pass y_true.to_numpy()"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        kcalib.skce(labels[::-1], predicted)
    assert kcalib.skce(labels[::-1].sel({"sample": predicted.sample}), predicted) == expected
    with pytest.raises(ValueError, match="`sample_weight` and `y_pred` have the same index in another order"):
        kcalib.skce(y, predicted, sample_weight=xr.DataArray(np.ones(40), dims="s", coords={"s": names[::-1]}))
    message = (
        "has the dimensions ('class', 'sample'), `y_true` has ('sample',); pass y_pred.transpose('sample', 'class')"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        kcalib.skce(labels, predicted.T)
    # Rows 0, 1, ... are rows that nobody named; of a series of pandas the names count, too.
    counted = predicted.assign_coords(sample=np.arange(40))
    assert kcalib.skce(labels, counted) == expected
    with pytest.raises(ValueError, match="have the same index in another order: row 0 is 39"):
        kcalib.skce(labels.assign_coords(sample=np.arange(40)[::-1]), counted)
    assert type(TemperatureScaling().fit(labels, predicted).transform(predicted)) is np.ndarray
    with pytest.raises(TypeError, match=r"`y_pred` is Dataset, .*; pass one of its variables, such as y_pred\[\"q\"\]"):
        kcalib.skce(y, xr.Dataset({"q": (("sample", "class"), p)}))


def has_dask() -> bool:
    return importlib.util.find_spec("dask") is not None


def test_a_frame_that_is_lazy_is_collected_once(make_problem: MakeProblem) -> None:
    pl = pytest.importorskip("polars")
    y, p = make_problem(40, 3)
    collected = []

    def seen(frame: Any) -> Any:
        collected.append(1)
        return frame

    frame = pl.DataFrame({name: p[:, k] for k, name in enumerate("abc")})
    lazy = frame.lazy().map_batches(seen)
    labels = np.array(["a", "b", "c"])[y]
    for call, times in ((kcalib.skce, 1), (kcalib.evaluate, 1), (TemperatureScaling().fit, 1), (PlattScaling().fit, 1)):
        collected.clear()
        call(labels, lazy)
        assert len(collected) == times
    assert kcalib.skce(pl.LazyFrame({"label": labels}), lazy) == kcalib.skce(y, p)
    turned = lazy.select("c", "b", "a")
    assert kcalib.brier_score(labels, turned) == pytest.approx(kcalib.brier_score(y, p))
    scaling = TemperatureScaling().fit(labels, np.log(p), from_logits=True)
    collected.clear()
    logits = lazy.select(pl.all().log())
    assert TemperatureScaling().fit(labels, logits, from_logits=True).temperature_ == scaling.temperature_
    assert scaling.transform(logits, from_logits=True).shape == (40, 3) and len(collected) == 2


@pytest.mark.parametrize("library", ["pandas", "polars", "lazy"])
def test_frames_are_sources(library: str, make_problem: MakeProblem) -> None:
    module = pytest.importorskip("polars" if library == "lazy" else library)
    pytest.importorskip("pyarrow")
    y, p = make_problem(40, 3)
    for labels, names in ((y, "012"), (np.array(["a", "b", "c"])[y], "abc")):
        frame = module.DataFrame({"label": labels, **{f"p_{name}": p[:, k] for k, name in enumerate(names)}})
        samples = source(frame.lazy() if library == "lazy" else frame)
        np.testing.assert_array_equal(np.concatenate([part[1] for part in samples.chunks(7)]), p)
        found = kcalib.evaluate(samples).brier_score
        assert found == pytest.approx(kcalib.brier_score(y, p), rel=1e-12)


def test_lists_of_one_size_in_arrow_are_rows(make_problem: MakeProblem) -> None:
    pa = pytest.importorskip("pyarrow")
    y, p = make_problem(40, 3)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(p.ravel()), 3)
    expected = kcalib.skce(y, p)
    table = pa.table({"label": y, "p": rows})
    assert kcalib.skce(y, rows) == kcalib.skce(table["label"], pa.concat_tables([table, table])["p"][:40]) == expected
    assert kcalib.skce(y[5:], rows[5:]) == kcalib.skce(y[5:], p[5:])
    with pytest.raises(ValueError, match=r"`y_pred\[1\]` is missing \(None\)"):
        kcalib.skce(y[:2], pa.array([[0.1, 0.9], None], pa.list_(pa.float64(), 2)))


MEAN, STD, TARGETS = np.array([0.0, 2.0, -1.0]), np.array([1.0, 0.5, 2.0]), np.array([0.5, 2.0, 1.0])


@pytest.mark.parametrize("library", [*FRAMES, "mapping"])
def test_frames_of_parameters_are_distributions(library: str) -> None:
    make = dict if library == "mapping" else lambda columns: frame(library, columns)
    expected = kcalib.crps(TARGETS, Normal(MEAN, STD))
    assert kcalib.crps(TARGETS, make({"mean": MEAN, "std": STD})) == expected
    assert kcalib.crps(TARGETS, make({"y_std": STD, "y_pred": MEAN, "id": np.arange(3)})) == expected
    samples = make({"samples_0": MEAN, "samples_1": STD})
    assert kcalib.crps(TARGETS, samples) == kcalib.crps(TARGETS, Samples(np.stack([MEAN, STD], axis=1)))
    assert kcalib.skce(TARGETS, make({"mean": MEAN, "std": STD})) == kcalib.skce(TARGETS, Normal(MEAN, STD))
    state = kcalib.streaming.ForecastState(n_columns=16).update(TARGETS, make({"mean": MEAN, "std": STD}))
    assert state.options.prediction == "Normal"


def test_a_frame_of_parameters_in_another_order_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    predictions, targets = pandas.DataFrame({"mean": MEAN, "std": STD}), pandas.Series(TARGETS, index=[2, 0, 1])
    with pytest.raises(ValueError, match="have the same index in another order"):
        kcalib.crps(targets, predictions)


@pytest.mark.parametrize("column", [np.ones((3, 1)), np.ones(3)])
def test_a_column_of_numbers_is_its_numbers(column: np.ndarray) -> None:
    for targets in (TARGETS, TARGETS[:, None]):
        assert kcalib.crps(targets, Normal(MEAN, column)) == kcalib.crps(TARGETS, Normal(MEAN, np.ones(3)))
        assert kcalib.crps(targets, Normal(MEAN[:, None], column)) == kcalib.crps(TARGETS, Normal(MEAN, np.ones(3)))
        assert kcalib.crps(targets, Samples(column.reshape(3, 1, 1))) == np.mean(abs(TARGETS - 1))
    assert kcalib.crps([0, 1, 2], Poisson(column)) == kcalib.crps([0, 1, 2], Poisson(np.ones(3)))


@pytest.mark.parametrize("draws", [np.arange(12.0).reshape(3, 4) - 1, MEAN])
def test_draws_without_their_kind_are_told_what_to_pass(draws: np.ndarray) -> None:
    match = r"`y_true\[0\]` is 0.5, expected a class label.*; for regression.*Normal\(mean, std\), or Samples\(y_pred\)"
    with pytest.raises(ValueError, match=match):
        kcalib.evaluate(TARGETS, draws)
    with pytest.raises(TypeError, match=r"such as .*Normal\(mean, std\), or Samples\(y_pred\)"):
        kcalib.crps(TARGETS, draws)
    if draws.ndim == 2:
        assert kcalib.evaluate(TARGETS, Samples(draws)).prediction == "Samples"
