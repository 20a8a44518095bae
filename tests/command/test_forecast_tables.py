"""`kcalib evaluate FORECASTS --targets TARGETS`: tables of hubs and frames of quantiles, by model and by group."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from command_runs import error_line, ran, usage_error

import kcalib
from kcalib.distributions import Samples

FIXTURES = Path(__file__).parents[1] / "streaming" / "sources" / "fixtures"
N = 60


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A calibrated model and one that is too low, of N tasks with two horizons; 3 tasks have no target."""
    folder, rng = tmp_path_factory.mktemp("hub"), np.random.default_rng(0)
    mean = rng.normal(size=N)
    y = mean + rng.normal(size=N)
    draws = {"good": mean[:, None] + rng.normal(size=(N, 9)), "low": mean[:, None] - 3 + rng.normal(size=(N, 9))}
    with open(folder / "forecasts.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["model_id", "location", "horizon", "target_end_date", "output_type", "output_type_id", "value"]
        )
        for model, rows in draws.items():
            for i, row in enumerate(rows.tolist()):
                writer.writerows([model, f"{i % 7:02d}", i % 2, f"day {i}", "sample", k, z] for k, z in enumerate(row))
    with open(folder / "oracle.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["location", "target_end_date", "oracle_value"])
        writer.writerows([f"{i % 7:02d}", f"day {i}", y[i]] for i in range(N - 3))
    return folder, y[:-3], {model: Samples(rows[:-3]) for model, rows in draws.items()}


def test_models_and_horizons(hub, capsys):
    folder, y, predictions = hub
    ran(
        "evaluate",
        folder / "forecasts.csv",
        "--targets",
        folder / "oracle.csv",
        "--by",
        "horizon",
        "--json",
        "--threads",
        1,
    )
    models = json.loads(capsys.readouterr().out)["models"]
    names = [name + group for name in ("good", "low") for group in ("", ", horizon 0", ", horizon 1")]
    assert [model["model"] for model in models] == names
    horizon = np.arange(N - 3) % 2
    rows = {"": slice(None), ", horizon 0": horizon == 0, ", horizon 1": horizon == 1}
    for model in models:
        name, group = model["model"][:4].strip(","), model["model"][model["model"].find(",") :]
        part = rows[group if "," in model["model"] else ""]
        prediction = predictions["good" if name == "good" else "low"]
        assert model["crps"] == kcalib.crps(y[part], Samples(prediction.samples[part]))
        assert model["miscalibrated"] == (name != "good")
        said = "513 of 540 rows, 57 samples; not used: no target (27)"
        assert model.get("rows") == (said if "," not in model["model"] else None)


def test_table_and_csv(hub, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    folder, _, _ = hub
    arguments = ["evaluate", folder / "forecasts.csv", "--targets", folder / "oracle.csv", "--threads", 1]
    ran(*arguments, "--clusters", "location")
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith("good   57  Samples") and out[2].startswith("low    57  Samples")
    assert "low: 513 of 540 rows, 57 samples; not used: no target (27)" in out
    ran(*arguments, "--by", "horizon", "--csv")
    assert len(list(csv.DictReader(capsys.readouterr().out.splitlines()))) == 6


def test_comparison_over_shared_tasks(hub, capsys, tmp_path):
    """The second model lacks a task that the first has, and has its rows in another order."""
    folder, y, predictions = hub
    header, *lines = (folder / "forecasts.csv").read_text().splitlines()
    lines = [line for line in lines[::-1] if not line.startswith("low,") or ",day 5," not in line]
    (tmp_path / "part.csv").write_text("\n".join([header, *lines]))
    options = ["--targets", folder / "oracle.csv", "--metric", "crps", "--json"]
    ran("compare", tmp_path / "part.csv", *options, "--clusters", "location")
    printed = json.loads(capsys.readouterr().out)["comparison"]
    rows = [i for i in range(len(y)) if i != 5]
    models = {model: Samples(z.samples[rows]) for model, z in predictions.items()}
    expected = kcalib.compare(y[rows], models, metric="crps", clusters=[i % 7 for i in rows])
    assert printed["n_samples"] == len(y) - 1 and printed["ranking"] == list(expected.ranking)
    (difference,) = printed["differences"]
    assert difference["difference"] == pytest.approx(expected.differences[0].difference)
    assert difference["standard_error"] == pytest.approx(expected.differences[0].standard_error)
    (tmp_path / "good.csv").write_text("\n".join([header, *(line for line in lines if line.startswith("good"))]))
    ran("compare", tmp_path / "good.csv", *options[:-1], code=1)
    assert error_line(capsys).endswith("holds forecasts of one model, good; expected at least two")
    for name, kept in {"a": ("day 1,", "good"), "b": ("day 2,", "low")}.items():
        part = [line for line in lines if kept[0] in line and line.startswith(kept[1])]
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *part]))
    ran("compare", tmp_path / "a.csv", tmp_path / "b.csv", *options[:-1], code=1)
    assert "compare: good, low have no task in common by the columns location, horizon, " in error_line(capsys)
    ran("compare", tmp_path / "a.csv", tmp_path / "part.csv", *options[:-1], code=1)
    assert error_line(capsys).endswith("the model good appears twice; give each model its own model_id")


def test_frame_of_nixtla(capsys):
    """Of three targets between the quantiles at 0.05 and 0.95 two are, the third is above."""
    ran("evaluate", FIXTURES / "nixtla.csv", "--threads", 1, "--json")
    arima, nhits = json.loads(capsys.readouterr().out)["models"]
    assert (arima["model"], arima["n_samples"], nhits["model"], nhits["n_samples"]) == ("AutoARIMA", 3, "NHITS", 2)
    assert arima["interval_coverage"] == pytest.approx(2 / 3) and arima["prediction"] == "Quantiles"
    assert nhits["rows"] == "2 of 4 rows, 2 samples; not used: no target (1), no value (1)"


def test_categories_of_a_hub(capsys, monkeypatch):
    """Too few samples of each for a test in groups: these fail, one by one, and the others do not."""
    monkeypatch.setenv("COLUMNS", "1000")
    ran(
        "evaluate",
        FIXTURES / "hub_output.csv",
        "--targets",
        FIXTURES / "hub_oracle.csv",
        "--by",
        "horizon",
        "--threads",
        1,
        code=1,
    )
    out, err = capsys.readouterr()
    assert "draws: wk flu hosp rate category: pmf  2        3    1.0000" in out
    assert "base: wk inc flu hosp: quantile, horizon 1  2  Quantiles" in out
    assert "kcalib: error: draws: wk inc flu hosp: sample, horizon 0: method='adaptive' needs at least 2 samples" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--probs", "p"], "is a forecast table, but --probs is for other files; leave it out"),
        (["--weights", "w"], "is a forecast table, but --weights is for other files; leave it out"),
        (["--by", "age"], "there is no column 'age'; expected one of 'location', 'horizon', 'target_end_date'"),
        (["--clusters", "age"], "there is no column 'age'; expected one of 'location', 'horizon', 'target_end_date'"),
    ],
)
def test_other_options(hub, capsys, options, message):
    folder, _, _ = hub
    ran("evaluate", folder / "forecasts.csv", "--targets", folder / "oracle.csv", *options, code=1)
    assert all(line.endswith(message) for line in capsys.readouterr().err.splitlines())


def test_quantiles_that_cross(capsys, tmp_path):
    (tmp_path / "m.csv").write_text("y,0.1,0.5,0.9\n1,0,3,2\n1,4,1,3\n")
    ran("evaluate", tmp_path / "m.csv", code=1)
    line = error_line(capsys)
    assert line.endswith("not used: quantiles that cross (2); sort them by --sort-quantiles")
    ran("evaluate", tmp_path / "m.csv", "--sort-quantiles", "--threads", 1)


def test_blocks_of_time_are_of_one_series(capsys, tmp_path):
    rows = [f"{day},{series},0,-1,1" for series in "AB" for day in range(20)]
    (tmp_path / "both.csv").write_text("\n".join(["ds,id,y,0.1,0.9", *rows]))
    ran("evaluate", tmp_path / "both.csv", "--time-blocks", 5, code=1)
    assert error_line(capsys).endswith("keep one location and horizon, or give --clusters, such as the date")
    (tmp_path / "one.csv").write_text("\n".join(["ds,id,y,0.1,0.9", *rows[:20]]))
    ran("evaluate", tmp_path / "one.csv", "--time-blocks", 2, "--threads", 1)


def test_what_is_missing(hub, capsys, tmp_path):
    folder, _, _ = hub
    ran("evaluate", folder / "forecasts.csv", code=1)
    assert "hub; give the table of their targets by --targets" in error_line(capsys)
    (tmp_path / "wide.csv").write_text("ds,M-lo-90,M-hi-90\n2024-01-01,1,2\n")
    ran("evaluate", tmp_path / "wide.csv", code=1)
    assert error_line(capsys).endswith(
        "there are no targets: the table has 'ds' beside quantiles; pass --targets, or add y"
    )
    (tmp_path / "empty.csv").write_text("location,target_end_date,oracle_value\n9,day 1,3\n")
    for command in ("evaluate", "compare"):
        ran(command, folder / "forecasts.csv", "--targets", tmp_path / "empty.csx", code=1)
        assert error_line(capsys).endswith("empty.csx: no such file; did you mean empty.csv?")
    ran("evaluate", folder / "forecasts.csv", "--targets", tmp_path / "empty.csv", code=1)
    said = "no forecast can be evaluated: 0 of 540 rows, 0 samples; not used: no target (540); check --targets"
    assert said + "; the first forecast has location 00, target_end_date day 0, the first" in error_line(capsys)
    arguments = ["evaluate", folder / "forecasts.csv", "--targets", folder / "oracle.csv", "--stream"]
    assert "--targets needs all samples at once; leave it out, or --stream" in usage_error(capsys, *arguments)
