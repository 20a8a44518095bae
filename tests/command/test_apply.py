"""`kcalib apply`: files of predictions, with and without labels, repaired by saved maps."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from problems import draw_labels

import kcalib
from kcalib._command.cli import main
from kcalib.distributions import Normal
from kcalib.recalibration import (
    PlattScaling,
    QuantileRecalibration,
    ScaleCalibration,
    TemperatureScaling,
    VectorScaling,
    choose,
    load,
    save,
)

NAMES = np.array(["cat", "dog", "emu"])


@pytest.fixture
def p(tmp_path, monkeypatch):
    """Return over-confident probabilities of cat, dog and emu, beside maps that were fitted to them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.ones(3), size=200)
    y, p = draw_labels(true, rng), true**2 / np.sum(true**2, axis=1, keepdims=True)
    save(VectorScaling().fit(NAMES[y], p, classes=NAMES), "map.json")
    save(PlattScaling().fit(NAMES[np.minimum(y, 1)], 1 - p[:, 0], classes=NAMES[:2]), "two.json")
    np.savez("full.npz", probs=p, labels=NAMES[y], classes=NAMES)
    return p


@pytest.mark.parametrize("name", ["full.npz", "map.json"])
def test_files_that_are_read_are_not_written(p, name, capsys):
    Path("out.npz").symlink_to(name)
    assert main(["apply", "map.json", "full.npz", "-o", "out.npz"]) == 2
    assert "--output is 'out.npz', which is read; name another file" in capsys.readouterr().err


def apply(*arguments):
    assert main(["apply", *arguments, "-o", "out.npz"]) == 0
    with np.load("out.npz") as file:
        return dict(file)


def write_columns(name, columns):
    lines = [
        ",".join(columns),
        *(",".join(map(repr, row)) for row in np.stack(list(columns.values()), axis=1).tolist()),
    ]
    Path(name).write_text("\n".join(lines))


def test_columns_in_any_order(p, capsys):
    expected = load("map.json").transform(p)
    out = apply("map.json", "full.npz")
    with np.load("full.npz") as full:
        assert np.array_equal(out["probs"], expected) and np.array_equal(out["labels"], full["labels"])
    assert "out.npz: 200 samples, repaired by VectorScaling: labels, probs, classes" in capsys.readouterr().out
    assert main(["evaluate", "out.npz", "--json"]) == 0  # what was written is read without options
    np.savez("reversed.npz", probs=p[:, ::-1], classes=NAMES[::-1])
    assert np.array_equal(apply("map.json", "reversed.npz")["probs"], expected[:, ::-1])
    write_columns("named.csv", {f"prob_{name}": p[:, k] for k, name in zip([2, 0, 1], NAMES[[2, 0, 1]], strict=True)})
    out = apply("map.json", "named.csv")
    assert np.array_equal(out["probs"], expected[:, [2, 0, 1]]) and out["classes"].tolist() == ["emu", "cat", "dog"]
    np.savez("logits.npz", logits=np.log(p))
    assert np.allclose(apply("map.json", "logits.npz")["probs"], expected, rtol=1e-9, atol=0)
    np.save("plain.npy", p)
    assert np.array_equal(apply("map.json", "plain.npy")["probs"], expected)


@pytest.mark.parametrize("options", [["--probs", "prob_cat"], ["--probs", "x", "--positive", "cat"]])
def test_a_single_column_is_of_the_class_that_it_is_named_after(p, options):
    write_columns("one.csv", {options[1]: p[:, 0]})
    out = apply("two.json", "one.csv", *options)
    assert np.allclose(out["probs"], 1 - load("two.json").transform(1 - p[:, 0]), rtol=0, atol=1e-12)
    assert out["classes"].tolist() == ["dog", "cat"]


@pytest.mark.parametrize("method", [ScaleCalibration(), QuantileRecalibration(n_points=5)])
def test_distributions_and_rows_in_parts(tmp_path, monkeypatch, method):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kcalib._command.apply.ROWS", 30)
    rng = np.random.default_rng(1)
    mean = rng.normal(size=80)
    y, before = mean + 2 * rng.normal(size=80), Normal(mean, np.ones(80))
    save(method.fit(y, before), "map.json")
    np.savez("in.npz", mean=mean, std=np.ones(80))
    out, after = apply("map.json", "in.npz"), method.transform(before)
    assert out and all(np.array_equal(values, getattr(after, name)) for name, values in out.items())


def test_missing_members_have_a_remedy_that_there_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    y, mean = np.arange(8.0), np.arange(8.0)[::-1]
    save(ScaleCalibration().fit(y, Normal(mean, np.ones(8))), "map.json")
    np.savez("in.npz", samples=[[1.0, np.nan]])
    Path("in.csv").write_text("samples_0,samples_1\n1.0,\n")
    for name in ("in.npz", "in.csv"):
        assert main(["apply", "map.json", name, "-o", "out.npz"]) == 1
        error = capsys.readouterr().err
        assert "drop" in error and "missing" not in error, error


def test_confidences_come_back_as_such(p):
    right = np.arange(200) % 3 > 0
    np.savez("in.npz", confidence=p.max(axis=1), correct=right)
    out = apply("two.json", "in.npz", "--confidence", "confidence", "--labels", "correct")
    assert np.array_equal(out["confidence"], load("two.json").transform(p.max(axis=1)))
    assert set(out) == {"confidence", "labels"} and np.array_equal(out["labels"], right)


def test_maps_of_reports(p, tmp_path, capsys, monkeypatch):
    few = partial(choose, candidates={"temperature": TemperatureScaling()}, n_folds=3)
    monkeypatch.setattr("kcalib._command.report.choose", few)
    options = ["-o", "page.html", "--plot-classes", "0", "--save-map"]
    assert main(["report", "full.npz", *options, "new.json"]) == 0
    assert load("new.json").classes_ == tuple(NAMES) and load("new.json").n_samples_ == 200
    out = apply("new.json", "full.npz")
    labels = NAMES.searchsorted(out["labels"])
    assert kcalib.log_loss(labels, out["probs"]) < kcalib.log_loss(labels, p)
    calibrated = np.random.default_rng(2).uniform(size=100)
    np.savez("calibrated.npz", probs=calibrated, labels=np.random.default_rng(3).uniform(size=100) < calibrated)
    capsys.readouterr()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["report", "calibrated.npz", *options, "none.json"]) == 0
    steps = [text.strip() for text in capsys.readouterr().err.replace("\r", "").split("\033[K") if text]
    assert [step for step in steps if ": " not in step] == [
        "kcalib is being loaded",
        "1 file to evaluate and repair",
        "drawing diagrams",
    ]
    assert {"calibrated: evaluating", "calibrated: fitting recalibrators"} < set(steps)
    assert "kcalib: no map is written to none.json: no recalibration is clearly better than none" in steps
    assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["full.npz", "full.npz"], "full.npz: 'full.npz' holds no recalibrator of this version of kcalib"),
        (["none.json", "full.npz"], "none.json: No such file"),
        (["two.json", "full.npz"], "full.npz: `y_pred` holds probabilities of 3 classes, but this PlattScaling"),
        (["map.json", "full.npz", "--classes", "ant,bee,cow"], "`classes` is ['ant', 'bee', 'cow'], but the fit had"),
        (["two.json", "nan.csv", "--probs", "x", "--positive", "cat"], "nan.csv: "),
        (
            ["two.json", "one.csv", "--probs", "x", "--positive", "emu"],
            "--positive is emu, expected a class of the map",
        ),
        (
            ["map.json", "high.npz"],
            "high.npz: `probs[1, 0]` is 2, expected a probability between 0 and 1; for logits pass --from-logits",
        ),
    ],
)
def test_wrong_input(p, capsys, tmp_path, arguments, message):
    write_columns("one.csv", {"x": p[:, 0]})
    write_columns("nan.csv", {"x": np.array([0.5, np.nan])})
    np.savez("high.npz", probs=np.array([[0.5, 0.3, 0.2], [2.0, 0.0, 0.0]]))
    if "--classes" in arguments:
        np.savez("full.npz", probs=p)
    assert main(["apply", *arguments, "-o", "out.npz"]) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["apply", "map.json", "full.npz", "-o", "out.csv"], "expected a file name that ends in .npz"),
        (["report", "full.npz", "-o", "a.html", "--save-map", "a.txt"], "expected a file name that ends in .json"),
        (["report", "full.npz", "-o", "a.html", "--save-map", "a.json", "--no-repair"], "without --lens and --no-rep"),
        (["report", "full.npz", "-o", "a.html", "--save-map", "a.json", "--lens", "top-label"], "without --lens and"),
    ],
)
def test_wrong_usage(p, capsys, arguments, message):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
