"""The command: the numbers of `kcalib.evaluate`, in words, for machines, and with exit codes."""

import csv
import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from few_events import FEW_EVENTS

import kcalib
from kcalib._command import evaluate
from kcalib._command.arguments import parser
from kcalib._command.cli import main


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module", autouse=True)
def cache_evaluations():
    """Compute what the command asks `evaluation_of` about the same predictions with the same options once."""
    results, whole = {}, evaluate.evaluation_of

    def evaluation_of(data, **options):
        names = repr((data.classes, options))
        key = (data.labels.tobytes(), data.probabilities.tobytes(), data.probabilities.shape, names)
        if key not in results:
            results[key] = whole(data, **options)
        return results[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "evaluation_of", evaluation_of)
        yield


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=200)
    return (rng.uniform(size=(200, 1)) > np.cumsum(p, axis=1)).sum(axis=1), p


@pytest.fixture
def good(tmp_path, data):
    np.savez(tmp_path / "good.npz", labels=data[0], probs=data[1])
    return str(tmp_path / "good.npz")


@pytest.fixture
def poor(tmp_path, data):
    """Over-confident."""
    p = data[1] ** 8
    np.savez(tmp_path / "poor.npz", labels=data[0], probs=p / p.sum(axis=1, keepdims=True))
    return str(tmp_path / "poor.npz")


def no_constants(name):
    raise AssertionError(f"{name} is not JSON")


def load_json(text):
    return json.loads(text, parse_constant=no_constants)


def without_times(entry):
    return {k: without_times(v) if isinstance(v, dict) else v for k, v in entry.items() if k != "seconds"}


def assert_same_numbers(entry, expected):
    expected = json.loads(json.dumps(without_times(dataclasses.asdict(expected))))
    entry = without_times(entry)
    assert {k: entry[k] for k in expected} == expected
    assert set(entry) - {"classes"} == {*expected, "model", "file", "confidence_interval"}


def error_line(capsys):
    """The one line on standard error, after `kcalib: error: `; nothing on standard output."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kcalib: error: ") and err.count("\n") == 1 and err.endswith("\n")
    return err.removeprefix("kcalib: error: ").strip()


# -- numbers


@pytest.mark.parametrize("form", ["npz", "npy", "csv", "parquet"])
def test_every_format_gives_the_numbers_of_evaluate(tmp_path, capsys, data, form):
    y, p = data
    path, options = tmp_path / f"m.{form}", {}
    if form == "npz":
        np.savez(path, y=y, y_prob=p)
    elif form == "npy":
        np.save(path, p)
        np.save(tmp_path / "y_true.npy", y)
    elif form == "csv":
        names = np.array(["cat", "dog", "eel"])
        y, options = names[y], {"classes": names}  # of which findings speak
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["y_true", *(f"prob_{name}" for name in names)])
            writer.writerows([label, *map(repr, map(float, row))] for label, row in zip(y, p, strict=True))
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"probs": p.tolist(), "label": y}), path)
    assert main(["evaluate", str(path), "--json"]) == 0
    (entry,) = load_json(capsys.readouterr().out)["models"]
    assert (entry["model"], entry["file"]) == ("m", str(path))
    assert_same_numbers(entry, kcalib.evaluate(y, p, **options))


def test_logits_by_name_and_on_request(tmp_path, capsys, data):
    y, p = data
    logits = 1.2 * np.log(p)  # nearly calibrated, which is tested in no time
    np.savez(tmp_path / "named.npz", logits=logits, y=y)
    np.savez(tmp_path / "asked.npz", probs=logits, y=y)
    np.savez(tmp_path / "option.npz", scores=logits, y=y)
    expected = kcalib.evaluate(y, logits, from_logits=True)
    for arguments in (["named.npz"], ["asked.npz", "--from-logits"], ["option.npz", "--logits", "scores"]):
        assert main(["evaluate", str(tmp_path / arguments[0]), *arguments[1:], "--json"]) == 0
        assert_same_numbers(load_json(capsys.readouterr().out)["models"][0], expected)
    assert main(["evaluate", str(tmp_path / "asked.npz")]) == 1
    message = error_line(capsys)
    assert "for logits pass --from-logits" in message and "`probs[0, 0]` is " in message


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["--seed", "3"], {"seed": 3}),
        (["--level", "0.3"], {"level": 0.3}),
        (["--method", "spectrum"], {"method": "spectrum"}),
        (["--method", "block", "--block-size", "7"], {"method": kcalib.methods.Block(block_size=7)}),
        (["--threads", "1"], {"threads": 1}),
    ],
)
def test_options_are_those_of_evaluate(capsys, data, good, options, arguments):
    assert main(["evaluate", good, "--json", *options]) == 0
    result = load_json(capsys.readouterr().out)
    assert_same_numbers(result["models"][0], kcalib.evaluate(*data, **arguments))
    assert result["kcalib"] == kcalib.__version__
    assert (result["level"], result["seed"]) == (arguments.get("level", 0.05), arguments.get("seed", 0))


def test_csv_output(capsys, data, good, poor):
    assert main(["evaluate", good, poor, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows[1]["finding"] == "over-confident"
    assert [row["model"] for row in rows] == ["good", "poor"]
    expected = kcalib.evaluate(*data)
    row = rows[0]
    for name in ("n_samples", "n_classes", "accuracy", "mean_confidence", "log_loss", "brier_score", "top_label_ece"):
        assert float(row[name]) == getattr(expected, name)
    assert float(row["skce"]) == expected.skce.value
    assert float(row["skce_standard_error"]) == expected.skce.standard_error
    assert float(row["pvalue"]) == expected.test.pvalue
    assert (row["miscalibrated"], rows[1]["miscalibrated"]) == ("False", "True")
    assert row["verdict"] == "no evidence against calibration" and float(row["rms_error_lower"]) == 0
    assert rows[1]["verdict"] == "miscalibrated, over-confident: off by at least 0.24"
    assert 0.24 <= float(rows[1]["rms_error_lower"]) < 0.25


def test_table(capsys, data, good, poor):
    assert main(["evaluate", good, poor, "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    header, first, second, blank, *remarks = out.splitlines()
    assert re.split(r"  +", header) == [
        "model", "n", "classes", "accuracy", "log loss", "Brier", "ECE", "SKCE", "std. error", "p-value", "verdict",
    ]  # fmt: skip
    e = kcalib.evaluate(*data)
    assert re.split(r"  +", first) == [
        "good", "200", "3", f"{e.accuracy:.4f}", f"{e.log_loss:.4f}", f"{e.brier_score:.4f}", f"{e.top_label_ece:.4f}",
        f"{e.skce.value:.2e}", f"{e.skce.standard_error:.2e}", f"{e.test.pvalue:.2g}",
        "no evidence against calibration",
    ]  # fmt: skip
    assert second.startswith("poor") and second.endswith("  miscalibrated, over-confident: off by at least 0.24")
    assert header.index("verdict") == first.index("no evidence") == second.index("miscalibrated")
    assert blank == ""
    assert remarks == [
        "SKCE: unbiased estimator, Exponential kernel with the median distance as bandwidth; cpu backend, 1 thread",
        "verdict at level 0.05: adaptive test of all samples, 999 draws with seed 0",
        "off by at least: with confidence 0.95, the root mean square over predictions of the largest error in the "
        "probability of",
        "  any event",
        "the level holds for each model separately; for 0.05 over all 2 models use --level 0.025",
    ]


def test_level_is_that_of_the_option(capsys, data, good):
    pvalue = kcalib.evaluate(*data).test.pvalue
    for level, verdict in ((pvalue * 0.9, "no evidence against calibration"), (pvalue * 1.1, "miscalibrated")):
        assert main(["evaluate", good, "--level", repr(level)]) == 0
        out = capsys.readouterr().out
        assert verdict in out.splitlines()[1]
        assert f"verdict at level {level:g}" in out


def test_narrow_terminal(capsys, monkeypatch, good, poor):
    files = [good, poor]
    assert main(["evaluate", *files]) == 0
    wide = capsys.readouterr().out.splitlines()
    width = max(map(len, wide[:3]))
    for columns, transposed in ((width, False), (width - 1, True), (80, True), (20, False)):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["evaluate", *files]) == 0
        out = capsys.readouterr().out.splitlines()
        if not transposed:
            assert out[:3] == wide[:3]
            continue
        assert max(map(len, out)) <= columns
        table = out[: out.index("")]
        assert table[0].split() == ["model", "good", "poor"]
        assert table[1].split() == ["n", "200", "200"]
        assert table[8].split()[:2] == ["std.", "error"]
        assert " ".join(table[10].split()[1:]) == "no evidence miscalibrated,"


def test_narrow_terminal_with_more_models_than_fit(tmp_path, capsys, monkeypatch, good):
    monkeypatch.setenv("COLUMNS", "80")
    models = ["forest", "forest_temperature", "gaussian_nb", "logistic", "mlp", "multinomial_nb"]
    for name in models:
        os.link(good, tmp_path / f"{name}.npz")
    assert main(["evaluate", *(str(tmp_path / f"{name}.npz") for name in models)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    names = [name for line in out.splitlines() if line.startswith("model") for name in line.split()[1:]]
    assert names == models
    assert sum(line.startswith("p-value") for line in out.splitlines()) == 2


def test_models_of_one_name_are_told_apart(tmp_path, capsys, data):
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths.append(str(tmp_path / folder / "m.npz"))
        np.savez(paths[-1], y=data[0], p=data[1])
    np.savez(tmp_path / "n.npz", y=data[0], p=data[1])
    assert main(["evaluate", *paths, str(tmp_path / "n.npz"), "--json"]) == 0
    assert [entry["model"] for entry in load_json(capsys.readouterr().out)["models"]] == [*paths, "n"]


# -- compare


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ([], {}),
        (["--threads", "1", "--seed", "3"], {"threads": 1, "seed": 3}),
        (["--confidence-level", "0.8"], {"confidence_level": 0.8}),
        (
            ["--metric", "ece", "--bins", "4", "--resamples", "99", "--seed", "3"],
            {"metric": kcalib.methods.ECE(n_bins=4, n_resamples=99), "seed": 3},
        ),
        (["--metric", "ckce", "--seed", "3", "--threads", "1"], {"metric": "ckce", "seed": 3, "threads": 1}),
        (["--metric", "brier_score"], {"metric": "brier_score"}),
        (["--metric", "log_loss"], {"metric": "log_loss"}),
    ],
)
def test_compare_has_the_numbers_of_the_library(capsys, good, poor, options, arguments):
    models = {name: np.load(path)["probs"] for name, path in (("good", good), ("poor", poor))}
    expected = kcalib.compare(np.load(good)["labels"], models, **arguments)
    assert main(["compare", good, poor, *options, "--json"]) == 0
    result = load_json(capsys.readouterr().out)
    assert result["errors"] == [] and result["files"] == {"good": good, "poor": poor}
    entry = result["comparison"]
    assert entry["ranking"] == list(expected.ranking) == ["good", "poor"]
    for printed, model in zip(entry["models"], expected.models, strict=True):
        assert printed["value"] == model.value
        assert printed["confidence_interval"] == model.confidence_interval._asdict()
    assert entry["differences"][0]["pvalue_holm"] == expected.differences[0].pvalue_holm
    for name in ("metric", "kernel", "n_bins", "n_resamples", "seed", "confidence_level", "n_samples"):
        assert entry[name] == getattr(expected, name)


def test_compare_tables(capsys, monkeypatch, good, poor):
    assert main(["compare", good, poor]) == 0
    out, err = capsys.readouterr()
    models, pairs, remarks = out.split("\n\n")
    assert err == "" and [line.split()[1] for line in models.splitlines()] == ["model", "good", "poor"]
    assert pairs.splitlines()[1].split()[:2] == ["good", "poor"]
    assert "not distinguishable" not in pairs
    assert "bandwidth: median over 2 models" in remarks
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["compare", good, poor]) == 0
    remarks = capsys.readouterr().out.split("\n\n")[2]
    assert max(map(len, remarks.splitlines())) <= 60


def test_compare_csv(capsys, good, poor):
    assert main(["compare", good, poor, "--metric", "brier_score", "--csv"]) == 0
    first, second, pair = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (first["model"], first["minus"], first["rank"], second["rank"]) == ("good", "", "1", "2")
    assert (pair["model"], pair["minus"], pair["distinguishable"]) == ("good", "poor", "True")
    assert float(pair["value"]) == pytest.approx(float(first["value"]) - float(second["value"]))
    assert float(pair["low"]) < float(pair["value"]) < float(pair["high"]) < 0


def test_compare_has_no_infinity_in_json(tmp_path, capsys):
    """Nothing is excluded by four samples; of a score without bounds that is null."""
    for name, mean in (("a", 0.0), ("b", 1.0)):
        np.savez(tmp_path / f"{name}.npz", y=np.zeros(4), mean=np.full(4, mean), std=np.ones(4))
    files = [str(tmp_path / "a.npz"), str(tmp_path / "b.npz")]
    assert main(["compare", *files, "--metric", "log_score", "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["comparison"]["differences"]
    assert pair["confidence_interval"] == {"low": None, "high": None} and not pair["distinguishable"]
    assert main(["compare", *files, "--metric", "log_score"]) == 0
    assert "[-inf, inf]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"label": 7},
            "the label of sample 7 (counted from 0) is {new}, but in good {old} (1 labels differ); models are compared "
            "on the same samples in the same order",
        ),
        ({"rows": 150}, "150 samples and 3 classes, but good has 200 and 3; models are compared on the same samples"),
        (
            {"classes": ["x", "y", "z"]},
            "the columns are the classes ['x', 'y', 'z'], expected [0, 1, 2]; name the same classes",
        ),
        ({"prob": 2.0}, "`probs[0, 0]` is 2, expected a probability"),
    ],
)
def test_files_that_cannot_be_compared(tmp_path, capsys, data, good, change, message):
    y, p = data[0].copy(), data[1].copy()
    if "label" in change:
        y[change["label"]] = (y[change["label"]] + 1) % 3
        message = message.format(old=data[0][7], new=y[7])
    if "prob" in change:
        p[0, 0] = change["prob"]
    rows = change.get("rows", len(y))
    classes = {name: np.array(values) for name, values in change.items() if name == "classes"}
    path = str(tmp_path / "other.npz")
    np.savez(path, labels=y[:rows], probs=p[:rows], **classes)
    assert main(["compare", good, path]) == 1
    assert error_line(capsys).startswith(f"{path}: {message}")
    assert main(["compare", good, path, "--json"]) == 1
    result = load_json(capsys.readouterr().out)
    assert result["comparison"] is None and [entry["file"] for entry in result["errors"]] == [path]


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ([], "expected at least two files to compare"),
        (["{good}"], "good.npz is given twice"),
        (["{poor}", "--bins", "3"], "--bins has no meaning for the metric 'skce', only for 'ece'; leave it out"),
        (["{poor}", "--metric", "ece", "--resamples", "3"], "--resamples is 3, expected an integer between 39 and"),
        (["{poor}", "--metric", "ckce", "--bins", "3"], "--bins has no meaning for the metric 'ckce', only for 'ece'"),
        (["{poor}", "--metric", "mce"], "argument --metric: invalid choice: 'mce'"),
        (["{poor}", "--confidence-level", "95"], "argument --confidence-level: '95'"),
        (["{poor}", "--json", "--csv"], "not allowed with"),
        (["{poor}", "--fail-if-miscalibrated"], "unrecognized arguments"),
    ],
)
def test_usage_errors_of_compare(capsys, good, poor, options, fragment):
    assert main(["compare", good, *(option.format(good=good, poor=poor) for option in options)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and fragment in err and err.startswith("usage: kcalib")


# -- picture


def test_plot_shows_models_and_numbers(tmp_path, monkeypatch, good, poor):
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(evaluate.figures, "plot_reliability", lambda panels, *_: drawn.extend(panels))
    assert main(["evaluate", good, poor, "--plot", str(tmp_path / "out.png"), "--bins", "7"]) == 0
    first, second = drawn
    assert (first.model, first.verdict) == ("good", "no evidence against calibration") and not first.miscalibrated
    assert (second.model, second.verdict) == ("poor", "miscalibrated, over-confident") and second.miscalibrated
    assert re.fullmatch(r"ECE 0\.\d{4}", first.notes[0]) and re.fullmatch(r"SKCE -?\d\.\d\de-\d\d", first.notes[1])
    assert re.fullmatch(r"p = .+", first.notes[2])
    assert len(first.notes) == 3 and second.notes[3] == "off by ≥ 0.24"
    assert len(first.diagram.weight) == 7 and first.diagram.weight.sum() == 200


def test_plot_that_cannot_be_written(tmp_path, capsys, good):
    pytest.importorskip("matplotlib")
    path = tmp_path / "none" / "out.png"
    assert main(["evaluate", good, "--plot", str(path), "--json"]) == 1
    out, err = capsys.readouterr()
    result = load_json(out)
    assert err == f"kcalib: error: {path}: cannot write the picture: No such file or directory\n"
    assert result["errors"] == [{"file": str(path), "message": "cannot write the picture: No such file or directory"}]
    assert len(result["models"]) == 1


@pytest.mark.grid
def test_tolerance(capsys, data, good, poor):
    """The model called poor is off by at least 0.24 at level 0.05."""
    assert main(["evaluate", good, poor, "--tolerance", "0.1", "--fail-if-miscalibrated"]) == 3
    out = capsys.readouterr().out
    assert "over-confident: off by at least 0.24" in out
    assert "\nmiscalibrated: error above the tolerance 0.1\n" in out
    assert main(["evaluate", good, poor, "--tolerance", "0.3", "--fail-if-miscalibrated"]) == 0
    out = capsys.readouterr().out
    assert "not shown to be off by more than 0.3" in out and "no evidence against calibration" in out
    assert "off by at least" not in out
    assert main(["evaluate", poor, "--tolerance", "0.3", "--json"]) == 0
    content = load_json(capsys.readouterr().out)
    (model,) = content["models"]
    assert content["tolerance"] == model["tolerance"] == 0.3
    assert not model["miscalibrated"] and 0.24 <= model["rms_error_lower"] < 0.25
    assert main(["evaluate", poor, "--tolerance", "0.3", "--csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["tolerance"], row["miscalibrated"]) == ("0.3", "False")


def test_tolerance_of_a_method_without_interval(capsys, good):
    assert main(["evaluate", good, "--method", "cme", "--tolerance", "0.1"]) == 1
    assert "there is no bound of the error to compare with it: method='cme' has no confidence interval" in (
        error_line(capsys)
    )


# -- errors and exit codes


def test_fail_if_miscalibrated(capsys, tmp_path, good, poor):
    assert main(["evaluate", good, "--fail-if-miscalibrated"]) == 0
    assert main(["evaluate", good, poor]) == 0
    assert main(["evaluate", good, poor, "--fail-if-miscalibrated"]) == 3
    assert main(["evaluate", good, poor, "--fail-if-miscalibrated", "--json"]) == 3
    capsys.readouterr()
    assert main(["evaluate", poor, str(tmp_path / "none.npz"), "--fail-if-miscalibrated"]) == 1
    assert "poor" in capsys.readouterr().out


def test_bad_files_do_not_stop_good_ones(tmp_path, capsys, good):
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04")
    bad, none = str(tmp_path / "bad.npz"), str(tmp_path / "none.npz")
    assert main(["evaluate", bad, good, none]) == 1
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert first.startswith(f"kcalib: error: {bad}: the archive is truncated or damaged")
    assert second == f"kcalib: error: {none}: No such file or directory"
    assert out.splitlines()[1].startswith("good")
    assert main(["evaluate", bad, good, none, "--json"]) == 1
    result = load_json(capsys.readouterr().out)
    assert [entry["model"] for entry in result["models"]] == ["good"]
    assert [entry["file"] for entry in result["errors"]] == [bad, none]
    assert main(["evaluate", none, "--json"]) == 1
    assert load_json(capsys.readouterr().out)["models"] == []


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        ({"labels": np.array([0, 1])}, ["array 'labels' has shape (2,), array 'probs' (6,)", "expected one label"]),
        ({"probs": np.full((6, 2), 0.4)}, ["`probs[0]` sums to 0.8", "--from-logits"]),
        ({"probs": np.array([[0.5, 0.5]] * 3 + [[np.nan, 1]] * 3)}, ["`probs[3, 0]` is nan", "drop or repair"]),
        ({"labels": np.array([0, 1, 0, 1, 0, 7])}, ["`labels[5]` is 7, expected a label 0..1"]),
        ({"labels": np.array(["a", "b", "c"] * 2)}, ["3 distinct strings", "or pass the probability of every class"]),
        ({"labels": np.array(["a"] * 6)}, ["1 distinct strings", "pass --classes=A,B", "an array `classes`"]),
        ({"probs": np.array([0, 1] * 3)}, ["`probs` has dtype int64", "predicted labels", "--probs or --logits"]),
        ({"probs": np.array(0.5)}, ["array 'probs' is a single value"]),
        ({"probs": np.zeros((0, 3)), "labels": np.zeros(0, int)}, ["there are no rows"]),
    ],
)  # fmt: skip
def test_what_kcalib_itself_rejects(tmp_path, capsys, change, fragments):
    arrays = {"probs": np.array([0.25, 0.75, 0.5, 0.5, 0.125, 1.0]), "labels": np.array([0, 1, 0, 1, 0, 1]), **change}
    path = str(tmp_path / "m.npz")
    np.savez(path, **arrays)
    assert main(["evaluate", path]) == 1
    message = error_line(capsys)
    assert message.startswith(f"{path}: ")
    for fragment in fragments:
        assert fragment in message


def test_block_size_of_too_few_samples(capsys, good):
    assert main(["evaluate", good, "--method", "block", "--block-size", "101"]) == 1
    assert "--block-size is 101, expected an integer between 2 and 100" in error_line(capsys)


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (["--level", "2"], "argument --level: '2', expected a number between 0 and 1"),
        (["--tolerance", "1"], "argument --tolerance: '1', expected a number from 0 to below 1"),
        (["--threads", "0"], "argument --threads: '0', expected an integer at least 1"),
        (["--seed", "-1"], "argument --seed: '-1', expected an integer at least 0"),
        (["--bins", "0"], "argument --bins: '0', expected an integer between 1 and 10000"),
        (["--method", "block", "--block-size", "1"], "--block-size is 1, expected an integer at least 2"),
        (["--estimator", "best"], "argument --estimator: invalid choice: 'best'"),
        (["--plot", "out.jpeg"], "argument --plot: 'out.jpeg', expected a file name that ends in .png, .pdf, .svg"),
        (["--json", "--csv"], "not allowed with"),
        (["--unknown"], "unrecognized arguments"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "demo"])
def test_usage_errors(capsys, good, command, options, fragment):
    assert main([command, *([good] if command == "evaluate" else []), *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and fragment in err and err.startswith("usage: kcalib")


@pytest.mark.parametrize(
    "arguments", [[], ["evaluate"], ["measure", "x.npz"], ["demo", "x.npz"], ["demo", "--probs", "p"],
                  ["evaluate", "x.npz", "--probs", "p", "--logits", "l"]],
)  # fmt: skip
def test_more_usage_errors(capsys, arguments):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("usage: kcalib")


def test_help_and_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kcalib {kcalib.__version__}\n"
    for arguments in (["--help-all"], ["evaluate", "--help-all"], ["compare", "--help-all"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert "exit codes:" in out and "--fail-if-miscalibrated" in out and "y_proba" in out and ".parquet" in out
        assert "kcalib[parquet]" in out
        for code in (0, 1, 2, 3, 130):
            assert re.search(rf"^  {code} ", out, re.MULTILINE)


@pytest.mark.parametrize("command", parser().commands.choices)
def test_help_shows_common_options_and_help_all_the_others(capsys, command):
    assert main([command, "--help"]) == 0
    common = capsys.readouterr().out
    assert main([command, "--help-all"]) == 0
    everything = capsys.readouterr().out
    options = {text for text in parser().commands.choices[command]._option_string_actions if text.startswith("--")}
    shown = set(re.findall(r"^  (?:-\w \w+, |-\w, )?(--[a-z-]+)", common, re.MULTILINE))
    assert shown < options or command in ("merge", "show")
    assert f"`kcalib {command} --help-all`" in common and "exit codes:" not in common
    assert all(option in everything for option in options) and "exit codes:" in everything


def test_completion_of_bash(tmp_path, capsys, monkeypatch):
    pytest.importorskip("shtab")
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    assert main(["--print-completion", "bash"]) == 0
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    (tmp_path / "predictions.npz").touch()

    def offered(*words):
        script = (
            f"source completion; COMP_WORDS=({' '.join(words)}); [ -n '{words[-1]}' ] || COMP_WORDS+=(''); "
            f"COMP_CWORD={len(words) - 1}; _shtab_kcalib; printf '%s\n' \"${{COMPREPLY[@]}}\""
        )
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
        return set(done.stdout.split())

    assert offered("kcalib", "e") == {"evaluate"}
    assert offered("kcalib", "evaluate", "--norm") == {"--normalize"}
    assert offered("kcalib", "evaluate", "--method", "sp") == {"spectrum"}
    assert offered("kcalib", "evaluate", "pred") == {"predictions.npz"}
    assert main(["--print-completion", "cmd"]) == 2
    assert "--print-completion cmd: expected one of bash, zsh" in capsys.readouterr().err


def test_completion_without_shtab(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print-completion", "bash"]) == 2
    assert "--print-completion needs shtab; pip install 'kcalib[completion]'" in capsys.readouterr().err


def test_interrupt(capsys, monkeypatch, good):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "evaluation_of", interrupted)
    assert main(["evaluate", good]) == 130
    assert capsys.readouterr() == ("", "kcalib: interrupted\n")


def test_no_memory(capsys, monkeypatch, good):
    def exhausted(*args, **kwargs):
        raise MemoryError("no 7 TiB")

    monkeypatch.setattr(evaluate, "evaluation_of", exhausted)
    assert main(["evaluate", good]) == 1
    assert error_line(capsys) == f"{good}: not enough memory (no 7 TiB)"


def test_json_of_infinite_numbers(tmp_path, capsys):
    y = np.array([0, 1] * 10)
    np.savez(tmp_path / "right.npz", y=y, p=np.eye(2)[y])
    np.savez(tmp_path / "wrong.npz", y=y, p=np.eye(2)[1 - y])
    files = [str(tmp_path / "right.npz"), str(tmp_path / "wrong.npz")]
    assert main(["evaluate", *files, "--json"]) == 0
    right, wrong = load_json(capsys.readouterr().out)["models"]
    assert right["test"]["pvalue"] == 1 and not right["miscalibrated"]
    assert wrong["miscalibrated"]
    assert (right["test"]["log_pvalue"], wrong["test"]["log_pvalue"]) == (0, "-Infinity")
    assert float(wrong["test"]["log_pvalue"]) == -np.inf and "sample 0" in wrong["test"]["null_law"]
    assert main(["evaluate", *files]) == 0
    assert "nan" not in capsys.readouterr().out


def test_certain_pvalue(capsys, good, monkeypatch):
    whole = evaluate.evaluation_of

    def certain(*args, **kwargs):
        e = whole(*args, **kwargs)
        test = dataclasses.replace(e.test, pvalue=0.0, statistic=float("inf"))
        skce = dataclasses.replace(e.skce, standard_error=None)
        return dataclasses.replace(e, test=test, skce=skce, miscalibrated=True, verdict="miscalibrated")

    monkeypatch.setattr(evaluate, "evaluation_of", certain)
    assert main(["evaluate", good]) == 0
    row = re.split(r"  +", capsys.readouterr().out.splitlines()[1])
    assert row[-3:] == ["-", "<1e-300", "miscalibrated"]
    assert main(["evaluate", good, "--json"]) == 0
    (entry,) = load_json(capsys.readouterr().out)["models"]
    assert entry["test"]["statistic"] is None and entry["test"]["pvalue"] == 0


# -- as a process


def run(*arguments, **options):
    environment = {**os.environ, "COLUMNS": "200", **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-P", "-m", "kcalib", *arguments],
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
        **options,
    )


def test_process(tmp_path, good):
    done = run("evaluate", good, "none.npz", "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == ["kcalib: error: none.npz: No such file or directory"]
    assert len(load_json(done.stdout)["models"]) == 1


@pytest.mark.grid
@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux")
def test_file_names_that_are_no_text(tmp_path, good):
    name = os.fsencode(tmp_path) + b"/m\xff\xc3\xbc.npz"
    os.link(good, name)
    done = run("evaluate", name, os.fsencode(tmp_path) + b"/\xfe.npz", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].startswith(b"m\\udcff\\xfc ")
    assert done.stderr.endswith(b"/\\udcfe.npz: No such file or directory\n") and done.stderr.count(b"\n") == 1
    load_json(run("evaluate", name, "--json").stdout)


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_broken_pipe(good):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kcalib", "evaluate", good],
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_full_disk(good):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "kcalib", "evaluate", good],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"kcalib: error: standard output: No space left on device\n")


def test_version_and_help_load_no_extras():
    code = (
        "import sys\nfrom kcalib._command.cli import main\nmain(['--version']); main(['--help'])\n"
        "assert not {'matplotlib', 'pyarrow', 'pandas'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, timeout=120, check=True)


NASTY = "a\x1b[31m\nb"


@FEW_EVENTS
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["evaluate", "{}.npz"], 0),
        (["evaluate", "{}.npz", "--csv"], 0),
        (["evaluate", "{}.npz", "--json"], 0),
        (["evaluate", "no {}.npz", "no {}.xyz"], 1),
        (["evaluate", "{}.npz", "--plot", "no {}/out.png"], 1),
        (["evaluate", "{}.npz", "--plot", "out {}"], 2),
        (["evaluate", "{}.npz", "--probs", "no {}"], 1),
        (["evaluate", "{}.npz", "--no-{}"], 2),
        (["compare", "{}.npz", "c.npz"], 0),
        (["compare", "{}.npz", "{}.npz"], 2),
        (["update", "no {}/a.kcalib", "{}.npz"], 1),
        (["merge", "{}.kcalib", "-o", "{}.kcalib"], 2),
        (["merge", "{}.kcalib", "-o", "no {}/c.kcalib"], 1),
        (["show", "{}.kcalib"], 0),
    ],
)
def test_names_that_a_terminal_would_obey_are_shown_escaped(command, code, tmp_path, monkeypatch, capsys):
    if "--plot" in command:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    y, p = np.arange(40) % 2, np.linspace(0.1, 0.9, 40)
    for name in (NASTY, "c"):
        np.savez(f"{name}.npz", y=y, p=p)
    kcalib.streaming.CalibrationState(2, n_resamples=0, n_columns=16).update(y, p).save(f"{NASTY}.kcalib")
    assert main([part.format(NASTY) for part in command]) == code
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert r"a\x1b[31m\nb" in (captured.out + captured.err).replace(r"\\", "\\").replace(r"\u001b", r"\x1b")
