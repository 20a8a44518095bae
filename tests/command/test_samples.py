"""`kcalib evaluate` by groups and clusters, whose names are those of arrays or columns of the file."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from command_runs import error_line, ran, usage_error

import kcalib

QUICK = ("--method", "adaptive", "--resamples", "99", "--threads", "1")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Predictions that are too high in the north, as arrays and as text."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    p, region = rng.uniform(size=600), rng.choice(["north", "south"], 600)
    y = (rng.uniform(size=600) < np.where(region == "north", 0.6 * p, p)).astype(int)
    age, patient = rng.integers(0, 3, 600), np.arange(600) // 3
    weight, wrong = np.linspace(0.5, 2, 600), np.where(np.arange(600) == 5, -1.0, 1.0)
    np.savez("a.npz", labels=y, probs=p, region=region, age=age, patient=patient, weight=weight, wrong=wrong)
    rows = zip(p.tolist(), y, region, age, patient, weight, wrong, strict=True)
    lines = ["probs,labels,region,age,patient,weight,wrong", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    return y, p, {"region": region, "age": age}, patient


@pytest.mark.parametrize("file", ["a.npz", "a.csv"])
def test_groups(folder, capsys, file):
    y, p, groups, _ = folder
    ran("evaluate", file, "--by", "region", "--by", "age", "--json", *QUICK)
    expected = kcalib.worst_groups(y, p, groups, seed=0)
    printed = json.loads(capsys.readouterr().out)["models"][0]["groups"]
    assert [group["group"] for group in printed["groups"]] == [group.group for group in expected.groups]
    assert printed["pvalue"] == expected.pvalue
    assert printed["groups"][0]["gap"] == expected.groups[0].gap

    ran("evaluate", file, "--by", "region", *QUICK)
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.startswith("region="))
    assert first.split()[:2] == ["region=north", str(int(np.sum(groups["region"] == "north")))]
    assert first.endswith("over-confident")
    assert second.split()[0] == "region=south"


@pytest.mark.parametrize("file", ["a.npz", "a.csv"])
def test_clusters(folder, capsys, file):
    y, p, _, patient = folder
    ran("evaluate", file, "--clusters", "patient", "--json", *QUICK)
    method = kcalib.methods.Adaptive(n_resamples=99)
    expected = kcalib.evaluate(y, p, clusters=patient, method=method)
    printed = json.loads(capsys.readouterr().out)["models"][0]
    assert printed["test"]["pvalue"] == expected.test.pvalue
    assert "clusters" in printed["test"]["null_law"]
    assert printed["confidence_interval"] is printed["rms_error_lower"] is None


@pytest.mark.parametrize("file", ["a.npz", "a.csv"])
def test_clusters_of_states(folder, capsys, file):
    y, p, _, patient = folder
    state = kcalib.streaming.CalibrationState(2, n_columns=16, clusters=True).update(y, p, clusters=patient)
    ran("update", "a.kcalib", file, "--clusters", "patient", "--columns", "16")
    assert kcalib.streaming.load("a.kcalib") == state
    capsys.readouterr()
    ran("evaluate", file, "--stream", "--clusters", "patient", "--json", "--seed", "0")
    printed = json.loads(capsys.readouterr().out)["models"][0]["test"]
    assert f"flips of the signs of {len(np.unique(patient))} clusters" in printed["null_law"]
    ran("update", "a.kcalib", file, code=1)
    assert error_line(capsys).endswith("is a state of samples in clusters; name them by --clusters")
    ran("update", "b.kcalib", file)
    capsys.readouterr()
    ran("update", "b.kcalib", file, "--clusters", "patient", "--part", "1", code=1)
    assert error_line(capsys).endswith("is a state of independent samples; leave out --clusters")
    ran("update", "b.kcalib", file, "--clusters", "patent", code=1)
    assert "'patent' for --clusters" in error_line(capsys)


def test_clusters_of_predicted_numbers_may_be_text(folder, capsys):
    y, p, _, patient = folder
    lines = [f"{a},{b},1.0,patient {c}" for a, b, c in zip(y.tolist(), p.tolist(), patient.tolist(), strict=True)]
    Path("f.csv").write_text("\n".join(["y,mean,std,patient", *lines]))
    for more in ((), ("--stream",)):
        ran("evaluate", "f.csv", "--clusters", "patient", "--json", "--seed", "0", *more)
        printed = json.loads(capsys.readouterr().out)["models"][0]["test"]
        assert printed["null_law"].startswith("199 flips" if more else "999 flips")
        assert f"of {len(np.unique(patient))} clusters" in printed["null_law"]


@pytest.mark.parametrize("file", ["a.npz", "a.csv"])
def test_weights(folder, capsys, file):
    y, p, _, patient = folder
    ran("evaluate", file, "--weights", "weight", "--clusters", "patient", "--json", *QUICK)
    weight, method = np.linspace(0.5, 2, len(y)), kcalib.methods.Adaptive(n_resamples=99)
    expected = kcalib.evaluate(y, p, sample_weight=weight, clusters=patient, method=method)
    printed = json.loads(capsys.readouterr().out)["models"][0]
    assert printed["test"]["pvalue"] == expected.test.pvalue
    assert printed["accuracy"] == pytest.approx(expected.accuracy)
    ran("evaluate", file, "--weights", "wrong", *QUICK, code=1)
    assert error_line(capsys).endswith("`--weights[5]` is -1, expected a finite weight >= 0; drop such rows first")


@pytest.mark.parametrize("file", ["a.npz", "a.csv"])
def test_given(folder, capsys, file):
    y, p, groups, _ = folder
    ran("evaluate", file, "--given", "region", "--given", "age", "--json", *QUICK)
    expected = kcalib.evaluate(y, p, given=groups, method=kcalib.methods.Adaptive(n_resamples=99))
    printed = json.loads(capsys.readouterr().out)["models"][0]["test"]
    assert [block["name"] for block in printed["blocks"]] == [block.name for block in expected.test.blocks]
    assert printed["pvalue"] == expected.test.pvalue


@pytest.mark.parametrize("file", ["a.npz", "a.csv"])
def test_comparison(folder, capsys, file):
    y, p, _, patient = folder
    np.savez("b.npz", labels=y, probs=0.9 * p)
    ran("compare", file, "b.npz", "--metric", "brier_score", "--clusters", "patient", "--weights", "weight", "--json")
    weight = np.linspace(0.5, 2, len(y))
    options = {"sample_weight": weight, "clusters": patient, "metric": "brier_score"}
    expected = kcalib.compare(y, {"a": p, "b": 0.9 * p}, **options).differences[0]
    printed = json.loads(capsys.readouterr().out)["comparison"]["differences"][0]
    assert printed["standard_error"] == pytest.approx(expected.standard_error)
    assert printed["pvalue"] == pytest.approx(expected.pvalue)
    ran("compare", file, "b.npz", "--metric", "ece", "--clusters", "patient", code=1)
    assert "--clusters has no meaning for the metric 'ece'; use 'skce' or the mean" in error_line(capsys)
    ran("compare", "b.npz", file, "--clusters", "patient", code=1)
    assert error_line(capsys).startswith("b.npz: there is no array 'patient' for --clusters")
    message = usage_error(capsys, "compare", file, "b.npz", "--clusters", "patient", "--stream")
    assert message.endswith("--clusters needs all samples at once; leave it out, or --stream")


def test_time_blocks(folder, capsys):
    y, p, _, _ = folder
    np.savez("b.npz", labels=y, probs=0.9 * p)
    ran("compare", "a.npz", "b.npz", "--metric", "brier_score", "--time-blocks", "6", "--json")
    expected = kcalib.compare(y, {"a": p, "b": 0.9 * p}, time_blocks=6, metric="brier_score")
    printed = json.loads(capsys.readouterr().out)["comparison"]
    assert printed["differences"][0]["standard_error"] == expected.differences[0].standard_error
    assert "autocovariances up to lag 5" in printed["intervals"]
    ran("evaluate", "a.npz", "--time-blocks", "6", "--json", *QUICK)
    method = kcalib.methods.Adaptive(n_resamples=99)
    printed = json.loads(capsys.readouterr().out)["models"][0]["test"]
    assert printed["pvalue"] == kcalib.calibration_test(y, p, time_blocks=6, method=method, seed=0).pvalue
    assert "100 clusters" in printed["null_law"]
    for command, faults in {
        ("compare", "a.npz", "b.npz"): ("leaves 3 blocks", "is 601, expected an integer between 1 and 600"),
        ("evaluate", "a.npz", "--seed", "0"): ("has 1 cluster", "is 601, expected an integer between 1 and 600"),
    }.items():
        for h, fault in zip(("200" if command[0] == "compare" else "600", "601"), faults, strict=True):
            ran(*command, "--time-blocks", h, code=1)
            assert f": --time-blocks {fault}" in error_line(capsys)
    message = usage_error(capsys, "evaluate", "a.npz", "--time-blocks", "6", "--stream")
    assert message.endswith("--time-blocks needs all samples at once; leave it out, or --stream")
    message = usage_error(capsys, "compare", "a.npz", "b.npz", "--time-blocks", "6", "--clusters", "patient")
    assert message.endswith("--clusters: not allowed with argument --time-blocks")


def test_names_that_are_not_there(folder, capsys):
    ran("evaluate", "a.npz", "--by", "regoin", *QUICK, code=1)
    assert error_line(capsys).startswith("a.npz: there is no array 'regoin' for --by; the file has the arrays")
    ran("evaluate", "a.csv", "--clusters", "patent", *QUICK, code=1)
    message = error_line(capsys)
    assert message.startswith("a.csv: there is no column 'patent' for --clusters")
    assert message.endswith("did you mean 'patient'?")


def test_options_that_do_not_go_together(folder, capsys):
    assert "--by does not go with --csv" in usage_error(capsys, "evaluate", "a.npz", "--by", "a", "--csv")
    message = usage_error(capsys, "evaluate", "a.npz", "--by", "region", "--stream")
    assert message.endswith("--by needs all samples at once; leave it out, or --stream")
    ran("evaluate", "a.npz", "--clusters", "patient", "--method", "exact", code=1)
    assert error_line(capsys) == "a.npz: --clusters has no meaning for the method 'exact'; use 'adaptive'"
    np.savez("normal.npz", y=np.zeros(40), mean=np.zeros(40), std=np.ones(40), region=np.zeros(40))
    ran("evaluate", "normal.npz", "--by", "region", code=1)
    assert "but --by is for class probabilities; leave it out" in error_line(capsys)


def test_metrics(folder, capsys):
    """Tables, JSON and CSV have what `evaluate(metrics=)` has, with the names of its fields."""
    y, p, _, _ = folder
    method = kcalib.methods.Adaptive(n_resamples=99)
    metrics = kcalib.evaluate(y, p, metrics="clinical", method=method).metrics
    line, ratio, curve = (metrics[f"{name}"] for name in list(metrics)[:3])
    ran("evaluate", "a.npz", "--metrics", "clinical", "--json", *QUICK)
    printed = json.loads(capsys.readouterr().out)["models"][0]["metrics"]
    assert printed["logistic_recalibration"]["slope_interval"] == line.slope_interval._asdict()
    assert printed["integrated_calibration_index"]["curve"] == curve.curve.tolist()
    ran("evaluate", "a.npz", "--metrics", "spiegelhalter_test,observed_expected_ratio", "--csv", *QUICK)
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert float(row["observed_expected_ratio.interval.low"]) == ratio.interval.low
    assert float(row["spiegelhalter_test.pvalue"]) == metrics["spiegelhalter_test"].pvalue
    assert "logistic_recalibration.slope" not in row
    ran("evaluate", "a.npz", "--metrics", "clinical", *QUICK)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["slope", f"{line.slope:.4g}", f"[{line.slope_interval[0]:.4g},", f"{line.slope_interval[1]:.4g}]"] in rows


def test_metrics_that_are_refused(folder, capsys):
    message = usage_error(capsys, "evaluate", "a.npz", "--metrics", "clinicl")
    assert (
        "--metrics: names 'clinicl', expected numbers about class probabilities: 'clinical'" in message
        and "did you mean 'clinical'" in message
    )
    assert "--metrics needs all samples" in usage_error(
        capsys, "evaluate", "a.npz", "--metrics", "clinical", "--stream"
    )
    ran("evaluate", "a.npz", "--metrics", "clinical", "--clusters", "patient", *QUICK, code=1)
    assert error_line(capsys).endswith(
        "--metrics is for independent samples, but --clusters is given; leave out either"
    )
    np.savez("n.npz", y=np.zeros(5), mean=np.zeros(5), std=np.ones(5))
    ran("evaluate", "n.npz", "--metrics", "clinical", code=1)
    assert "--metrics is for class probabilities; leave it out" in error_line(capsys)
