"""Which column is which class: what names, categories and `classes=` say of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kcalib
from kcalib._input.classes import Classes


@pytest.mark.parametrize(
    ("names", "others", "expected"),
    [
        (("cat", "dog"), ("dog", "cat"), (1, 0)),
        ((0, 1, 2), ("2", "0", "1"), (1, 2, 0)),
        ((True, False), (0.0, 1.0), (1, 0)),
        (("True", "False"), (False, True), (1, 0)),
        (("1", 1), (1, "1"), (1, 0)),  # two names
    ],
)
def test_columns_are_reordered_by_name(names: Any, others: Any, expected: tuple[int, ...]) -> None:
    assert Classes(names).permutation_of(Classes(others)) == expected


@pytest.mark.parametrize("others", [("cat", "owl"), ("cat", "dog", "owl"), (0, 1)])
def test_other_names_are_refused_with_both_orders(others: Any) -> None:
    with pytest.raises(ValueError, match=r"classes \['cat', 'dog'\], expected \[.*\]"):
        Classes(("cat", "dog")).permutation_of(Classes(others))


def test_positions_are_no_names_of_the_user() -> None:
    positions = Classes.by_position(2)
    assert positions == Classes((0, 1)) and not positions.is_known and Classes((0, 1)).is_known


ROWS, PAIRS = [[0.8, 0.15, 0.05], [0.1, 0.8, 0.1]] * 5, [[0.9, 0.1], [0.2, 0.8]]
FRAMES = ["pandas", "polars", "pyarrow"]


def build_frame(library: str, columns: dict[str, Any]) -> Any:
    module = pytest.importorskip(library)
    return (module.table if library == "pyarrow" else module.DataFrame)(columns)


@pytest.mark.parametrize("library", FRAMES)
@pytest.mark.parametrize("names", ["123", ["prob_1", "prob_2", "prob_3"], ["p1", "p2", "p3"], ["1.0", "2.0", "3.0"]])
def test_columns_numbered_from_1_are_labels(library: str, names: Any) -> None:
    frame = build_frame(library, dict(zip(names, zip(*ROWS, strict=True), strict=True)))
    # (.2^2 + .15^2 + .05^2 + .1^2 + .2^2 + .1^2) / 2
    assert kcalib.brier_score([1, 2] * 5, frame) == pytest.approx(0.0625)
    assert kcalib.evaluate([1, 2] * 5, frame).brier_score == pytest.approx(0.0625)
    with pytest.raises(ValueError, match=r"`y_true` holds the label 0, but the columns of `y_pred` are named"):
        kcalib.brier_score([0, 1] * 5, frame)
    assert kcalib.brier_score([0, 1] * 5, frame, classes=[0, 1, 2]) == pytest.approx(0.0625)


@pytest.mark.parametrize(
    ("labels", "names"),
    [([0, 1], [0, 1, 5]), ([-1, 0], [-1, 0, 1]), ([-1, 0], ["p_-1", "p_0", "p_1"]), ([5, 2], [5, 2, 3])],
)
def test_integers_name_columns_whatever_they_are(labels: Any, names: Any) -> None:
    pd = pytest.importorskip("pandas")
    assert kcalib.brier_score(labels * 5, pd.DataFrame(ROWS, columns=names)) == pytest.approx(0.0625)


@pytest.mark.parametrize("library", FRAMES)
@pytest.mark.parametrize("form", ["{}", "prob_{}", ".pred_{}", "{}_prob", "P(y={})", "new.{}"])
def test_columns_are_named_after_classes_as_files_have_them(library: str, form: str) -> None:
    frame = build_frame(library, {form.format("dog"): [0.9, 0.2], form.format("cat"): [0.1, 0.8]})
    assert kcalib.log_loss(["dog", "cat"], frame) == pytest.approx(-(math.log(0.9) + math.log(0.8)) / 2)
    with pytest.raises(ValueError, match="holds the label 'owl', but the columns of `y_pred` are named"):
        kcalib.log_loss(["owl", "cat"], frame)
    with pytest.raises(ValueError, match=r"expected them in the order \['cat', 'dog'\]; .*classes=\['dog', 'cat'\]"):
        kcalib.log_loss(["dog", "cat"], frame, classes=["cat", "dog"])
    if form != "{}_prob":
        single = build_frame(library, {form.format("cat").strip("()"): [0.1, 0.9]})
        assert kcalib.brier_score(["dog", "cat"], single) == pytest.approx(0.01)
        with pytest.raises(ValueError, match=r"it holds the probabilities of 'dog'; pass classes=\['dog', 'cat'\]"):
            kcalib.brier_score(["dog", "cat"], single, classes=["cat", "dog"])


def test_series_levels_and_coordinates_have_names() -> None:
    pd, pl, xr = map(pytest.importorskip, ("pandas", "polars", "xarray"))
    labels, p = ["dog", "cat"], [0.1, 0.9]
    for series in (pd.Series(p, name="prob_cat"), pl.Series("cat", p), xr.DataArray(p, dims="n", name="cat")):
        assert kcalib.brier_score(labels, series) == pytest.approx(0.01)
    levels = pd.MultiIndex.from_product([["prob"], ["dog", "cat"]])
    assert kcalib.brier_score(labels, pd.DataFrame(PAIRS, columns=levels)) == pytest.approx(0.025)
    coordinates = xr.DataArray(PAIRS, dims=("n", "k"), coords={"k": ["dog", "cat"]})
    assert kcalib.brier_score(labels, coordinates) == pytest.approx(0.025)
    assert kcalib.brier_score([0, 1], pd.DataFrame({"prob_0": [0.9, 0.1]})) == pytest.approx(0.01)
    assert kcalib.brier_score([0, 1], pd.DataFrame(p)) == pytest.approx(0.01)  # pandas numbers it 0
    zero = pd.Series(p, name=0)
    with pytest.raises(ValueError, match=r"a column named 0, .* pass y_pred.to_numpy\(\)"):
        kcalib.brier_score([0, 1], zero)
    assert kcalib.brier_score([0, 1], zero.to_numpy()) == pytest.approx(0.01)


@pytest.mark.parametrize("labels", [[True, False], [1, 0], [1.0, 0.0]])
@pytest.mark.parametrize("names", [[True, False], [1.0, 0.0], ["p_1", "p_0"], ["prob_True", "prob_False"]])
def test_booleans_and_floats_are_names(labels: Any, names: Any) -> None:
    pd = pytest.importorskip("pandas")
    assert kcalib.brier_score(labels, pd.DataFrame(PAIRS, columns=names)) == pytest.approx(0.025)


def declare(container: str, labels: list[Any], categories: list[Any], is_ordered: bool) -> Any:
    module = pytest.importorskip(container.partition(".")[0])
    if container == "polars":
        return module.Series(labels, dtype=module.Enum(categories))
    if container == "pyarrow":
        codes = [categories.index(label) for label in labels]
        return module.DictionaryArray.from_arrays(module.array(codes), module.array(categories), ordered=is_ordered)
    values = module.Categorical(labels, categories=categories, ordered=is_ordered)
    return module.Series(values) if container == "pandas.Series" else values


@pytest.mark.parametrize("container", ["pandas", "pandas.Series", "polars", "pyarrow"])
@pytest.mark.parametrize("is_ordered", [True, False])
def test_declared_categories_are_the_order_of_columns(container: str, is_ordered: bool) -> None:
    labels = declare(container, ["ok", "fraud"], ["ok", "fraud"], is_ordered)
    if container == "pyarrow" and not is_ordered:  # dictionaries are in the order of appearance by default
        with pytest.raises(
            ValueError, match=r"whose order it does not declare, and sorted labels are \['fraud', 'ok'\]"
        ):
            kcalib.brier_score(labels, [0.1, 0.9])
        assert kcalib.brier_score(labels, [0.9, 0.1], classes=["fraud", "ok"]) == pytest.approx(0.01)
        return
    assert kcalib.brier_score(labels, [0.1, 0.9]) == pytest.approx(0.01)
    unused = declare(container, ["ok", "ok"], ["ok", "fraud"], is_ordered)
    assert kcalib.brier_score(unused, [0.1, 0.2]) == pytest.approx(0.025)
    # The order of an unordered one that does not name the columns is nobody's.
    more = declare(container, ["ok", "fraud"], ["ok", "other", "fraud"], is_ordered)
    follows_order = is_ordered or container == "polars"
    assert kcalib.brier_score(more, [0.1, 0.9]) == pytest.approx(0.01 if follows_order else 0.81)


def test_categories_that_are_no_text_and_names_beside_them() -> None:
    pd, pl = map(pytest.importorskip, ("pandas", "polars"))
    assert kcalib.brier_score(pd.Categorical([2, 1], categories=[2, 1]), [0.1, 0.9]) == pytest.approx(0.01)
    labels = pd.Categorical(["ok", "fraud"], categories=["ok", "fraud"])
    assert kcalib.brier_score(labels, pd.DataFrame({"ok": [0.9, 0.1]})) == pytest.approx(0.01)
    # The physical order of polars' Categorical is no declaration: sorted labels are the columns.
    assert kcalib.brier_score(pl.Series(["ok", "fraud"], dtype=pl.Categorical), [0.9, 0.1]) == pytest.approx(0.01)


def test_one_hot_labels_and_predictions_are_paired_by_name() -> None:
    pd = pytest.importorskip("pandas")
    labels = pd.DataFrame([[0, 1], [1, 0]], columns=["is_cat", "is_dog"])
    assert kcalib.brier_score(labels, pd.DataFrame(PAIRS, columns=["p_dog", "p_cat"])) == pytest.approx(0.025)
    with pytest.raises(ValueError, match=r"`y_pred` has the columns \['b', 'a'\], which are not in ascending order"):
        kcalib.brier_score(labels, pd.DataFrame(PAIRS, columns=["b", "a"]))


def test_results_say_which_class_a_single_column_is_about() -> None:
    pd = pytest.importorskip("pandas")
    labels, p = ["dog", "cat", "cat"], [0.1, 0.9, 0.8]
    result = kcalib.evaluate(labels, pd.Series(p, name="cat"))
    assert result.positive_class == "cat" and "probability of cat" in " ".join(result.remarks())
    assert result.skce.positive_class == result.test.positive_class == "cat"
    assert kcalib.evaluate(labels, p).positive_class == "dog"  # the second of the sorted labels
    assert kcalib.evaluate([0, 1, 1], p).positive_class == 1
    assert kcalib.evaluate(labels, p, classes=["dog", "cat"], lens=kcalib.lenses.TopLabel()).positive_class is None
    assert kcalib.evaluate([0, 1, 2], np.eye(3)).positive_class is None
    state = kcalib.streaming.CalibrationState(2, classes=["dog", "cat"]).update(labels, p)
    assert state.result().positive_class == state.skce().positive_class == "cat"
