"""Forecasts in tables of hubs and of forecasting libraries, and in arrays of xarray: a fixture file for each."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import kcalib
from kcalib.distributions import Categorical, Quantiles, Samples
from kcalib.streaming import read_forecasts

FIXTURES = Path(__file__).parent / "fixtures"
HUB, ORACLE, SERIES = (FIXTURES / f"hub_{name}.csv" for name in ("output", "oracle", "time_series"))
LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]


def columns_of(path):
    with open(path, newline="") as file:
        header, *rows = csv.reader(file)
    return {name: list(cells) for name, cells in zip(header, zip(*rows, strict=True), strict=True)}


def as_file(folder, columns, name="table.csv"):
    with open(folder / name, "w", newline="") as file:
        csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
    return folder / name


def assert_hub(quantiles, categories, draws):
    assert [part.model for part in (quantiles, categories, draws)] == [
        "base: wk inc flu hosp: quantile", "draws: wk flu hosp rate category: pmf", "draws: wk inc flu hosp: sample",
    ]  # fmt: skip
    assert isinstance(quantiles.y_pred, Quantiles) and quantiles.y_pred.levels.tolist() == LEVELS
    assert quantiles.y_pred.values.tolist() == [[22, 45, 51, 57, 80], [5, 38, 51, 64, 97], [101, 171, 221, 271, 341]]
    assert quantiles.y_true.tolist() == [79, 221, 446] and quantiles.tasks["horizon"].tolist() == [0, 1, 1]
    assert quantiles.tasks["target_end_date"].tolist() == ["2022-11-19", "2022-11-26", "2022-12-03"]
    # Three of the 5 levels in a row of the table, and a missing value with 4 others.
    reasons = {"the task lacks a quantile that most have": 7, "another output type": 1, "no value": 1}
    assert (quantiles.n_rows, quantiles.n_rows_used, quantiles.unused) == (24, 15, reasons)
    assert isinstance(draws.y_pred, Samples) and draws.y_pred.samples.tolist() == [[60, 85, 71], [120, 310, 230]]
    assert draws.y_true.tolist() == [79, 221] and draws.n_rows == 12
    assert isinstance(categories.y_pred, Categorical) and categories.y_pred.classes == ("low", "moderate", "high")
    assert categories.y_true.tolist() == ["low", "moderate"]
    score = kcalib.brier_score(categories.y_true, categories.y_pred.probabilities, classes=categories.y_pred.classes)
    assert score == pytest.approx((0.14 + 0.375) / 2)
    for part in (quantiles, categories, draws):
        assert part.n_rows == part.n_rows_used + sum(part.unused.values()) and part.n_samples == len(part.y_true)


def test_hub_table():
    assert_hub(*read_forecasts(HUB, ORACLE))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "parquet", "gzip", "mapping"])
def test_hub_table_in_any_form(library, tmp_path):
    """Libraries make numbers, dates and missing values of text: 25 of "25", None of NA."""
    if library == "mapping":
        return assert_hub(*read_forecasts(columns_of(HUB), columns_of(ORACLE)))
    if library == "gzip":
        (tmp_path / "hub.csv.gz").write_bytes(gzip.compress(HUB.read_bytes()))
        return assert_hub(*read_forecasts(tmp_path / "hub.csv.gz", ORACLE))
    if library == "parquet":
        csv_of_arrow, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(csv_of_arrow.read_csv(HUB), tmp_path / "hub.parquet")
        return assert_hub(*read_forecasts(tmp_path / "hub.parquet", ORACLE))
    read = pytest.importorskip(f"{library}.csv" if library == "pyarrow" else library).read_csv
    options = {"pandas": {"parse_dates": ["target_end_date"]}, "polars": {"try_parse_dates": True, "null_values": "NA"}}
    tables = (read(path, **options.get(library, {})) for path in (HUB, ORACLE))
    return assert_hub(*read_forecasts(*tables))


def test_levels_and_targets_that_some_tasks_have():
    """Of tasks with the levels of most, further levels are left out, and tasks of another target are a part."""
    hub = {
        "target": [*"aaaaaaa", *"bb"], "horizon": [0, 0, 0, 1, 1, 2, 2, 0, 0], "output_type": ["quantile"] * 9,
        "output_type_id": [0.25, 0.5, 0.75, 0.25, 0.75, 0.25, 0.75, 0.25, 0.75], "value": [1, 2, 3, 4, 5, 6, 7, 8, 9],
    }  # fmt: skip
    oracle = {"target": [*"aaab"], "horizon": [0, 1, 2, 0], "oracle_value": [1, 2, 3, 4]}
    a, b = read_forecasts(hub, oracle)
    assert a.y_pred.values.tolist() == [[1, 3], [4, 5], [6, 7]] and b.y_pred.values.tolist() == [[8, 9]]
    assert a.unused == {"a quantile that most tasks lack": 1, "another target": 2} and b.unused == {"another target": 7}


def test_files_of_a_hub(tmp_path):
    """In a folder for each model, as hubs keep them, without a column of models; 01 and 1 are one location."""
    table = columns_of(HUB)
    rows = [i for i, model in enumerate(table.pop("model_id")) if model == "draws"]
    table["location"] = ["01"] * len(table["location"])
    oracle = columns_of(ORACLE)
    oracle["location"] = ["1"] * len(oracle["location"])
    for model in ("a-one", "b-two"):
        (tmp_path / model).mkdir()
        as_file(tmp_path / model, {name: [cells[i] for i in rows] for name, cells in table.items()})
    parts = read_forecasts(tmp_path, as_file(tmp_path, oracle, "_oracle.csv"))
    assert [part.model.partition(":")[0] for part in parts] == ["a-one", "a-one", "b-two", "b-two"]
    assert parts[1].tasks["location"].tolist() == ["01", "01"] and parts[1].y_true.tolist() == [79, 221]


def test_rows_of_frames_are_matched_by_columns_and_not_by_unnamed_numbers():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"t": range(4), "0.1": [0.0, 1, 2, 3], "0.9": [2.0, 3, 4, 5]})
    targets = pd.DataFrame({"t": range(4), "y": [1.0, 2, 3, 4]})
    (forecasts,) = read_forecasts(table[::-1], targets[1:])
    assert forecasts.y_true.tolist() == [4, 3, 2] and forecasts.unused == {"no target": 1}


def test_times_are_compared_as_times():
    table = {"time": ["20240101 00:00", "2024-01-01T01:00-05:00"], "0.1": [0.0, 1], "0.9": [2.0, 3]}
    (forecasts,) = read_forecasts(table, {"time": ["2024-01-01", "2024-01-01 06:00:00"], "y": [1.0, 2]})
    assert forecasts.y_true.tolist() == [1, 2]
    message = r"no target \(2\); check `targets`; the first forecast has time 2024-01-01, the first target time monday"
    with pytest.raises(ValueError, match=message):
        read_forecasts(table, {"time": ["monday"], "y": [1.0]})


def test_time_series_of_a_hub():
    """The last version counts; a column `date` is that of the tasks."""
    quantiles, categories, draws = read_forecasts(HUB, SERIES)
    assert quantiles.y_true.tolist() == [79, 221, 446] and draws.y_true.tolist() == [79, 221]
    assert categories.y_true is None and categories.y_pred is None and categories.split("horizon") == ()
    assert categories.describe_rows() == (
        "0 of 12 rows, 0 samples; not used: another output type (6), no target among the categories (6)"
    )


def test_groups():
    first, second = read_forecasts(HUB, ORACLE)[0].split("horizon", "location")
    assert first.model == "base: wk inc flu hosp: quantile, horizon 0, location 25" and first.y_true.tolist() == [79]
    assert second.n_samples == 2 and second.y_pred.values.tolist() == [[5, 38, 51, 64, 97], [101, 171, 221, 271, 341]]
    with pytest.raises(ValueError, match=r"^there is no column 'age'; expected one of 'reference_date', 'horizon'"):
        first.split("age")


@pytest.mark.parametrize("field", ["output_type", "output_type_id", "value"])
def test_fields_of_a_hub(field):
    table = columns_of(HUB)
    renamed = {("x" if name == field else name): cells for name, cells in table.items()}
    with pytest.raises(
        ValueError, match=rf"^there is no column '{field}'; the table has 'model_id', .*: rename or add"
    ):
        read_forecasts(renamed, ORACLE)
    assert len(read_forecasts({field if name == "x" else name: cells for name, cells in renamed.items()}, ORACLE)) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, o: o.pop("oracle_value"), r"^the targets have the columns 'location', .* in a column oracle_value"),
        (lambda t, o: o.pop("target_end_date"), r"^the targets have the columns 'location', 'target', .* expected sh"),
        (lambda t, o: o["location"].__setitem__(1, "25 ") or o["target_end_date"].__setitem__(1, "2022-11-19"),
         r"^the targets of location 25\.0, target_end_date 2022-11-19, target wk inc flu hosp are 79 and 221, exp"),
        (lambda t, o: t["value"].__setitem__(3, "many"), r"^column 'value' has the cell 'many', expected a number"),
        (lambda t, o: o.update(oracle_value=["low"] * len(o["target"])),
         r"^column 'oracle_value' has the cell 'low', expected a number"),
        (lambda t, o: t.update(output_type_id=["3" if cell == "2" else cell for cell in t["output_type_id"]]),
         r"^output_type_id 3 appears twice for reference_date 2022-11-19, horizon 0"),
        (lambda t, o: t["output_type_id"].__setitem__(3, "0.5"), r"^output_type_id 0\.5 appears twice for refere"),
        (lambda t, o: t.update(output_type=["mean"] * 36), r"^the output types are 'mean', expected one of quant"),
    ],
)  # fmt: skip
def test_wrong_tables(change, message):
    table, oracle = columns_of(HUB), columns_of(ORACLE)
    change(table, oracle)
    with pytest.raises(ValueError, match=message):
        read_forecasts(table, oracle)


def test_quantiles_that_cross_are_sorted_on_request():
    table = columns_of(HUB)
    table["value"][0] = "46"
    crossing, *_ = read_forecasts(table, ORACLE)
    assert crossing.y_true.tolist() == [221, 446] and crossing.unused["quantiles that cross"] == 5
    assert read_forecasts(table, ORACLE, sort_quantiles=True)[0].y_pred.values[0].tolist() == [45, 46, 51, 57, 80]


def test_several_targets_need_their_names():
    table = columns_of(HUB)
    table["target"] = [
        "deaths" if kind == "sample" else name for kind, name in zip(table["output_type"], table["target"])
    ]
    with pytest.raises(
        ValueError, match=r"^the forecasts have several targets, but the table of targets has no column 'target'"
    ):
        read_forecasts(table, SERIES)


def test_frame_of_nixtla():
    arima, nhits = read_forecasts(FIXTURES / "nixtla.csv")
    assert arima.model == "AutoARIMA" and arima.y_pred.levels.tolist() == [0.05, 0.95]
    assert arima.y_true.tolist() == [3.5, 6, 8.5] and arima.unused == {"no target": 1}
    assert nhits.model == "NHITS" and nhits.y_pred.levels.tolist() == [0.1, 0.5, 0.9]
    assert nhits.y_pred.values.tolist() == [[2, 3.2, 4], [2.5, 3.9, 5.5]]
    assert nhits.unused == {"no target": 1, "no value": 1} and nhits.tasks["unique_id"].tolist() == ["A", "A"]
    table = columns_of(FIXTURES / "nixtla.csv")
    actual = {"unique_id": ["B", "A"], "ds": ["2024-01-01 00:00:00"] * 2, "y": [9.0, 3.0]}
    del table["y"]
    assert read_forecasts(table, actual)[0].y_true.tolist() == [3, 9]
    table["ds"] = [time[:10] + "T06:00:00" for time in table["ds"]]
    assert read_forecasts(table, actual | {"ds": ["2024-01-01 06:00"] * 2})[0].y_true.tolist() == [3, 9]
    assert read_forecasts(table, tuple(np.arange(4)))[0].n_samples == 4
    with pytest.raises(ValueError, match=r"^`targets` has shape \(2,\), expected \(4,\): one for each row"):
        read_forecasts(table, np.zeros(2))
    with pytest.raises(ValueError, match=r"^there are no targets: the table has 'unique_id', 'ds', 'AutoARIMA' beside"):
        read_forecasts(table)


@pytest.mark.parametrize(
    ("names", "levels"),
    [
        (["0.1", "0.5", "0.9"], [0.1, 0.5, 0.9]),
        (["p10", "p50", "p97.5"], [0.1, 0.5, 0.975]),
        (["q10", "q97.5"], [0.1, 0.975]),
        (["y_q0.10", "y_q0.50"], [0.1, 0.5]),
        (["quantile_0.025", "quantile_.975"], [0.025, 0.975]),
        (["TimeGPT-q-10", "TimeGPT-q-90"], [0.1, 0.9]),
        (["M_ql0.1", "M_ql0.9"], [0.1, 0.9]),
        (["M-lo-97.5", "M-median", "M-hi-97.5"], [0.0125, 0.5, 0.9875]),
        ([("y", 0.1), ("y", 0.9)], [0.1, 0.9]),
    ],
)
def test_names_of_quantiles(names, levels):
    frame = {"y": [1.5], **{name: [float(i)] for i, name in enumerate(names)}}
    (forecasts,) = read_forecasts(frame)
    assert forecasts.y_pred.levels.tolist() == levels
    assert forecasts.y_pred.values.tolist() == [[float(i) for i in range(len(names))]]


@pytest.mark.parametrize(
    "names", [["prob_0.1", "prob_0.9"], ["mean", "std"], ["0", "1"], ["p0", "p10", "p20"], ["x-lo-90"], ["0.1"]]
)
def test_other_columns_are_no_quantiles(names):
    with pytest.raises(
        ValueError, match=r"^the table has 'y', .*, expected output_type, output_type_id, value of a hub"
    ):
        read_forecasts({"y": [1.5], **{name: [0.5] for name in names}})


def test_headers_and_lengths():
    with pytest.raises(ValueError, match=r"^all columns are named by numbers, '0.1', '0.9'; add the header, or"):
        read_forecasts({"0.1": [0.2], "0.9": [0.8]}, [1.0])
    assert read_forecasts({"day": [1], "0.1": [0.2], "0.9": [0.8]}, [1.0])[0].n_samples == 1
    with pytest.raises(ValueError, match="^the columns have 1, 1, 2 rows, expected equal ones"):
        read_forecasts({"y": [1.0], "0.1": [0.2], "0.9": [0.8, 0.9]})


def test_rows_of_one_task():
    frame = {"ds": ["1", "2", "2"], "0.1": [0.0] * 3, "0.9": [1.0] * 3}
    with pytest.raises(ValueError, match="^there are several rows of ds 2; drop all but one, or add the column"):
        read_forecasts(frame, {"ds": ["1", "2"], "y": [0.5, 0.5]})
    assert read_forecasts(frame | {"id": [1, 2, 3]}, {"ds": ["1", "2"], "y": [0.5, 0.5]})[0].n_samples == 3


def test_two_columns_of_a_level():
    with pytest.raises(ValueError, match=r"^the columns '0.1' and 'p10' both have the level 0.1; drop one"):
        read_forecasts({"y": [1.0], "0.1": [0.0], "p10": [0.0]})


def test_frames_with_an_index():
    """Of AutoGluon and sktime: the index says what is predicted."""
    pd = pytest.importorskip("pandas")
    frame = pd.read_csv(FIXTURES / "autogluon.csv", parse_dates=["timestamp"]).set_index(["item_id", "timestamp"])
    actual = pd.DataFrame({"target": [2.0, 5.0]}, index=frame.index[::-1])
    (forecasts,) = read_forecasts(frame, actual)
    assert forecasts.y_true.tolist() == [5, 2] and forecasts.y_pred.levels.tolist() == [0.1, 0.5, 0.9]
    frame = pd.read_csv(FIXTURES / "sktime_interval.csv", header=[0, 1, 2], index_col=0)
    frame.columns = frame.columns.set_levels(frame.columns.levels[1].astype(float), level=1)
    actual = pd.Series([410.0, 420.0], index=["1961-02", "1961-01"], name="Passengers")
    (forecasts,) = read_forecasts(frame, actual)
    assert forecasts.model == "Passengers" and forecasts.y_pred.levels.tolist() == LEVELS[:2] + LEVELS[3:]
    assert forecasts.y_true.tolist() == [420, 410] and forecasts.y_pred.values[0].tolist() == [371.5, 400, 450, 481.5]
    assert read_forecasts(frame, actual.sort_index().reset_index(drop=True).to_numpy())[0].y_true.tolist() == [420, 410]


def test_ensembles_of_xarray():
    xr = pytest.importorskip("xarray")
    array = xr.DataArray.from_dict(json.loads((FIXTURES / "ensemble.json").read_text()))
    coordinates = {"lat": [55.0, 50.0, 45.0], "time": [11, 12]}
    actual = xr.DataArray(np.arange(6.0).reshape(3, 2), coords=coordinates, dims=("lat", "time"))
    (forecasts,) = read_forecasts(array, actual)
    assert forecasts.model == "t2m" and forecasts.y_pred.samples.tolist() == [[4, 4.5, 3], [5, 5.5, 4]]
    assert forecasts.y_true.tolist() == [4, 2] and forecasts.tasks["lat"].tolist() == [45, 50]
    assert forecasts.tasks["time"].tolist() == [11, 11] and forecasts.n_rows == 6
    assert forecasts.unused == {"no target": 3, "no value of a member": 1}
    (one,) = read_forecasts(array.sel(time=11, lat=45), actual.sel(time=11, lat=45))
    (none,) = read_forecasts(array.sel(lat=[50]), actual.sel(lat=[55]))
    assert one.y_true.tolist() == [4] and one.tasks == {} and none.y_true is None
    both = xr.Dataset({"t2m": array}), xr.Dataset({"t2m": actual})
    assert read_forecasts(*both)[0].y_true.tolist() == [4, 2]
    assert read_forecasts(array.rename(member="number"), actual)[0].n_samples == 2
    quantiles = array.rename(member="quantile").assign_coords(quantile=[0.5, 0.9, 0.1])
    assert read_forecasts(quantiles, actual)[0].y_pred.values.tolist() == [[3, 4, 4.5], [4, 5, 5.5]]
    for forecast, true, message in (
        (
            array.rename(member="x"),
            actual,
            r"^the array 't2m' has the dimensions \('x', .* array.rename\(NAME='member'\)$",
        ),
        (array, actual.isel(time=0), r"^`targets` has the dimensions \('lat',\), expected \('time', 'lat'\), those"),
        (array, np.zeros(6), r"^`targets` is ndarray, expected an array of xarray"),
        (both[0], both[1].rename(t2m="t"), r"^`targets` has no variable 't2m'; rename it"),
    ):
        with pytest.raises(ValueError, match=message):
            read_forecasts(forecast, true)


def test_files_that_are_no_tables(tmp_path):
    np.savez(tmp_path / "a.npz", y=np.zeros(3))
    with pytest.raises(ValueError, match=r"a.npz: the suffix is '.npz', expected .csv, .tsv, their .gz, or .parquet"):
        read_forecasts(tmp_path / "a.npz", ORACLE)
    with pytest.raises(FileNotFoundError):
        read_forecasts(tmp_path / "b.csv", ORACLE)
    with pytest.raises(TypeError, match="^a table is a int, expected paths, a data frame or a mapping"):
        read_forecasts(3)
    shutil.copy(HUB, tmp_path / "hub.csv")
    with open(tmp_path / "hub.csv", "a") as file:
        file.write("base,2022-11-19\n")
    with pytest.raises(ValueError, match=r"hub.csv: line 38 has 2 cells, expected 9; repair the line"):
        read_forecasts(tmp_path / "hub.csv", ORACLE)
