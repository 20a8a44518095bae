"""`kcalib history`: releases of models from the JSON of evaluations."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from command_runs import ran

from kcalib._command.cli import main

FIXED = ("--bandwidth", "0.5", "--threads", "1", "--method", "exact", "--resamples", "199")


def predicted(seed, sharpened, n=400):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(3), size=n)
    labels = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    p = p**sharpened
    return {"labels": labels, "probs": p / p.sum(axis=1, keepdims=True)}


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory):
    """What was printed for v1, v2 and v10: v2 is over-confident, v1 has another kernel."""
    folder = tmp_path_factory.mktemp("predictions")
    made = {}
    options = {"v1": (1.0, ("--bandwidth", "0.7", *FIXED[2:])), "v2": (3.0, FIXED), "v10": (1.0, FIXED)}
    for second, (name, (sharpened, how)) in enumerate(options.items()):
        np.savez(folder / "model.npz", **predicted(second, sharpened))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            ran("evaluate", folder / "model.npz", "--json", *how)
        made[name] = json.loads(printed.getvalue()) | {"time": f"2026-01-0{second + 1}T12:00:00Z"}
    return made


@pytest.fixture
def releases(evaluations, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    for name, content in evaluations.items():
        Path(f"{name}.json").write_text(json.dumps(content))
    return ["v1.json", "v10.json", "v2.json"]


def test_a_table_in_the_order_of_time(releases, capsys):
    assert main(["history", *releases]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["release", "evaluated", "n", "accuracy", "log"]
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["v1", "2026-01-01", "400"], ["v2", "2026-01-02", "400"], ["v10", "2026-01-03", "400"],
    ]  # fmt: skip
    assert "miscalibrated, over-confident" in lines[2]
    remarks = "\n".join(lines[4:])
    assert "model: miscalibrated since v2" in remarks
    assert "model: no longer miscalibrated since v10" in remarks
    assert "model: kernels differ (Exponential(bandwidth=0.7), Exponential(bandwidth=0.5)); SKCEs are" in remarks
    assert "versions of kcalib" not in remarks


def test_the_order_given(releases, capsys):
    assert main(["history", "--order", "given", *releases]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:4]] == ["v1", "v10", "v2"]


def test_numbers_are_those_of_the_evaluations(releases, capsys):
    assert main(["history", "--csv", *releases]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert main(["history", "--json", *releases]) == 0
    told = json.loads(capsys.readouterr().out)["models"]["model"]
    for name, row, one in zip(("v1", "v2", "v10"), rows, told, strict=True):
        content = json.loads(Path(f"{name}.json").read_text())
        (model,) = content["models"]
        assert (row["release"], row["machine"], row["kcalib"]) == (name, content["machine"], content["kcalib"])
        assert model["skce"]["version"] == content["versions"]["kcalib"]
        assert float(row["skce"]) == one["skce"] == model["skce"]["value"]
        assert float(row["pvalue"]) == one["pvalue"] == model["test"]["pvalue"]
        assert float(row["top_label_ece"]) == one["numbers"]["top_label_ece"] == model["top_label_ece"]
        interval = model["confidence_interval"]
        assert [float(row["low"]), float(row["high"])] == one["confidence_interval"] == list(interval.values())
        assert interval["low"] <= model["skce"]["value"] <= interval["high"]


def test_the_last_release_decides(releases):
    assert main(["history", "--fail-if-miscalibrated", *releases]) == 0
    assert main(["history", "--fail-if-miscalibrated", "v1.json", "v2.json"]) == 3


def test_models_have_their_own_histories(releases, capsys):
    for name, seed in (("a", 5), ("b", 6)):
        np.savez(f"{name}.npz", **predicted(seed, 1.0))
    capsys.readouterr()
    ran("evaluate", "a.npz", "b.npz", "--json", *FIXED)
    Path("v3.json").write_text(capsys.readouterr().out)
    assert main(["history", "v3.json", "v10.json"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line for line in out if line in ("a", "b", "model")] == ["a", "b", "model"]
    # Files of one model each are releases of one, whatever the files of predictions were called.
    content = json.loads(Path("v2.json").read_text())
    content["models"][0]["model"] = "renamed"
    Path("v2.json").write_text(json.dumps(content))
    assert main(["history", "v1.json", "v2.json"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:3]] == ["v1", "v2"]


def test_forecasts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    rng = np.random.default_rng(0)
    mean = rng.normal(size=200)
    np.savez("f.npz", y=mean + rng.normal(size=200), mean=mean, std=np.ones(200))
    capsys.readouterr()
    ran("evaluate", "f.npz", "--json", "--threads", "1")
    Path("v1.json").write_text(capsys.readouterr().out)
    assert main(["history", "v1.json"]) == 0
    assert "CRPS" in capsys.readouterr().out.splitlines()[0]


def test_a_picture(releases):
    pytest.importorskip("matplotlib")
    assert main(["history", *releases, "--plot", "h.svg", "--theme", "dark"]) == 0
    text = Path("h.svg").read_text()
    for said in ("SKCE, 95 % interval", "ECE", "v1", "v2", "v10"):  # comments beside the outlines of letters
        assert f"<!-- {said} -->" in text


def broken(content, change):
    model = content["models"][0]
    change(content, model)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, m: c.pop("models"), "has no entry `models`"),
        (lambda c, m: c["models"].clear(), "holds no model"),
        (lambda c, m: c.update(time="yesterday"), "`time` is 'yesterday', expected a time such as 2026-01-31T"),
        (lambda c, m: m.update(skce=3), "`skce` is 3, which no evaluation has"),
        (lambda c, m: m["skce"].update(value=None), "`value` is null, which no evaluation has"),
        (lambda c, m: m["test"].update(pvalue=True), "`pvalue` is true, which no evaluation has"),
        (lambda c, m: m["test"].update(pvalue=float("inf")), "`pvalue` is Infinity, which no evaluation has"),
        (lambda c, m: m.update(verdict=None), "`verdict` is null, which no evaluation has"),
        (lambda c, m: m["skce"].update(value=10**400), "`value` is 1000000000000000000000000000000000000000, which no"),
        (lambda c, m: m.update(n_samples=4.5), "`n_samples` is 4.5, which no evaluation has"),
        (lambda c, m: m.pop("n_samples"), "has no entry `n_samples`"),
    ],
)
def test_what_is_no_evaluation_is_named(releases, capsys, change, message):
    content = broken(json.loads(Path("v1.json").read_text()), change)
    Path("bad.json").write_text(content)
    assert main(["history", "v2.json", "bad.json"]) == 1
    error = capsys.readouterr().err
    assert f"error: bad.json: {message}" in error
    assert "evaluate --json" in error or "expected" in error


@pytest.mark.parametrize("output", [(), ("--csv",), ("--json",)])
def test_texts_of_files_are_shown_without_what_terminals_obey(releases, capsys, output):
    red = "\x1b[31mred\nline"

    def change(content, model):
        content.update(kcalib=red, machine=red)
        model.update(model=red, verdict=red)
        model["skce"].update(kernel=red, estimator=red)
        content["models"].append(model | {"model": "\ud800"})

    Path("bad.json").write_text(broken(json.loads(Path("v1.json").read_text()), change))
    assert main(["history", "v2.json", "bad.json", *output]) == 0
    out = capsys.readouterr().out
    assert r"\x1b[31mred\nline" in out.replace("\\\\", "\\") and all(c.isprintable() for c in out.replace("\n", ""))


def test_no_picture_of_classes_and_numbers_in_one_history(releases, capsys):
    pytest.importorskip("matplotlib")
    content = broken(json.loads(Path("v1.json").read_text()), lambda c, m: m.update(crps=m.pop("top_label_ece")))
    Path("other.json").write_text(content)
    assert main(["history", "v2.json", "other.json", "--plot", "h.svg"]) == 1
    message = "--plot shows top_label_ece or crps, but the releases of model do not all have the same one;"
    assert message in capsys.readouterr().err
    assert not Path("h.svg").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"3", b"null"])
def test_what_is_no_json(tmp_path, monkeypatch, capsys, content):
    monkeypatch.chdir(tmp_path)
    Path("x.json").write_bytes(content)
    assert main(["history", "x.json"]) == 1
    assert capsys.readouterr().err.startswith("kcalib: error: x.json: ")
