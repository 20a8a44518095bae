"""`kcalib update`, `merge`, `show`, and `evaluate` in pieces: states in files, interrupted and resumed."""

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_runs import N, error_line, predictions, ran, saved, started, usage_error

import kcalib
from kcalib._command import streamed
from kcalib._command.cli import main
from kcalib.streaming import CalibrationState, ComparisonState, GroupedState


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def data():
    return predictions()


@pytest.fixture
def folder(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    y, p = data
    np.savez("all.npz", labels=y, probs=p)
    os.mkdir("parts")
    for k, rows in enumerate((slice(0, 2500), slice(2500, 2600), slice(2600, N))):
        np.savez(f"parts/{k}.npz", labels=y[rows], probs=p[rows])
    return tmp_path


SMALL = ("--columns", "16", "--resamples", "19", "--threads", "1")


def numbers(text):
    """Of one model, but what depends on when it was measured and on the file's name."""
    (entry,) = json.loads(text)["models"]

    def kept(value):
        return {k: kept(v) for k, v in value.items() if k != "seconds"} if isinstance(value, dict) else value

    return {k: v for k, v in kept(entry).items() if k not in ("model", "file")}


def test_states_of_parts_merge_in_any_order_and_show_what_one_run_says(folder, capsys, data):
    common = ("--bandwidth-of", "parts/0.npz", *SMALL)
    for k in range(3):
        ran("update", f"{k}.kcalib", f"parts/{k}.npz", "--part", k, "--resume", *common)
    out = capsys.readouterr().out
    assert out.splitlines()[1] == "1.kcalib: 100 rows of parts/1.npz added, 100 in all"
    ran("merge", "0.kcalib", "1.kcalib", "2.kcalib", "-o", "one.kcalib")
    assert capsys.readouterr().out == "one.kcalib: 3 states merged, 5000 rows\n"
    ran("merge", "2.kcalib", "0.kcalib", "1.kcalib", "-o", "other.kcalib")
    one, other = CalibrationState.load("one.kcalib"), CalibrationState.load("other.kcalib")
    assert one._totals().sums.tobytes() == other._totals().sums.tobytes()
    assert one.n_samples == N and len(one.rows) == 3
    capsys.readouterr()

    ran("show", "one.kcalib", "--json")
    shown = numbers(capsys.readouterr().out)
    state = one.result()
    assert (shown["n_samples"], shown["accuracy"], shown["top_label_ece"]) == (N, state.accuracy, state.top_label_ece)
    assert (shown["skce"]["value"], shown["test"]["pvalue"]) == (state.skce.value, state.test.pvalue)
    ran("show", "one.kcalib", "other.kcalib", "--csv")
    assert len(capsys.readouterr().out.splitlines()) == 3
    ran("show", "one.kcalib", "--level", "0.01", "--plot", "x.svg")
    assert os.path.getsize("x.svg") > 1000
    assert "level 0.01" in capsys.readouterr().out


def test_shares_of_a_file_have_the_bits_of_all_of_it(folder, capsys):
    common = ("--bandwidth-of", "all.npz", *SMALL)
    ran("update", "a.kcalib", "all.npz", "--rows", "3000:", *common)
    ran("update", "b.kcalib", "all.npz", "--rows", ":3000", *common)
    ran("merge", "a.kcalib", "b.kcalib", "-o", "both.kcalib")
    ran("update", "whole.kcalib", "all.npz", *common)
    assert CalibrationState.load("both.kcalib") == CalibrationState.load("whole.kcalib")
    ran("update", "c.kcalib", "all.npz", "--rows", "3000:", "--bandwidth-of", "a.kcalib", *SMALL)
    assert Path("c.kcalib").read_bytes() == Path("a.kcalib").read_bytes()


def test_updates_count_rows_one_file_after_the_other(folder, capsys, data):
    ran("update", "s.kcalib", "parts/0.npz", *SMALL)
    ran("update", "s.kcalib", "parts/1.npz")
    ran("update", "s.kcalib", "parts/2.npz", "--resume")  # nothing was interrupted: an update like any other
    assert CalibrationState.load("s.kcalib") == CalibrationState(3, n_columns=16, n_resamples=19).update(*data)
    ran("update", "t.kcalib", "parts", *SMALL)
    assert CalibrationState.load("t.kcalib") == CalibrationState.load("s.kcalib")


def test_the_same_rows_twice_are_refused(folder, capsys):
    ran("update", "s.kcalib", "parts/0.npz", "--part", "3", *SMALL)
    before = Path("s.kcalib").read_bytes()
    capsys.readouterr()
    ran("update", "s.kcalib", "parts/0.npz", code=1)
    assert error_line(capsys) == "s.kcalib: holds the rows of parts/0.npz already; skip them by --resume"
    ran("update", "s.kcalib", "parts/1.npz", "--part", "3", code=1)
    assert re.match("parts/1.npz: rows 0 of part 3 to 99 of part 3 were added already; .*--part", error_line(capsys))
    ran("merge", "s.kcalib", "s.kcalib", "-o", "two.kcalib", code=1)
    expected = r"s.kcalib: rows .* were added by an earlier file already; name each state once, .* --part K`\)$"
    assert re.match(expected, error_line(capsys))
    assert not os.path.exists("two.kcalib")
    ran("update", "s.kcalib", "parts/0.npz", "--part", "3", "--resume")
    assert capsys.readouterr().out == "s.kcalib: 0 rows of parts/0.npz added, 2500 in all\n"
    assert Path("s.kcalib").read_bytes() == before
    ran("update", "s.kcalib", "parts/1.npz", "--part", "3", "--first-row", "2500")
    ran("update", "s.kcalib", "parts/0.npz", "--part", "4")
    assert CalibrationState.load("s.kcalib").rows == ((3 * 2**40, 3 * 2**40 + 2600), (4 * 2**40, 4 * 2**40 + 2500))


def test_options_that_differ_are_named(folder, capsys, data):
    y, p = data
    np.savez("two.npz", labels=y.clip(0, 1), probs=np.stack([p[:, 0], 1 - p[:, 0]], axis=1))
    ran("update", "s.kcalib", "parts/0.npz", *SMALL)
    capsys.readouterr()
    for arguments, message in (
        (["--columns", "32"], "has --columns 16, not 32; leave --columns out"),
        (["--seed", "4"], "has --seed 0, not 4"),
        (["--bins", "4"], "has --bins 15, not 4"),
        (["--lens", "top-label"], "has --lens Canonical(), not TopLabel()"),
        (["--bandwidth", "0.25"], "not Exponential(bandwidth=0.25); leave the bandwidth out"),
    ):
        ran("update", "s.kcalib", "parts/1.npz", *arguments, code=1)
        assert message in error_line(capsys)
    ran("update", "s.kcalib", "two.npz", code=1)
    assert "is a state of 3 classes, but two.npz holds predictions of 2" in error_line(capsys)
    ran("update", "t.kcalib", "parts/1.npz", "--columns", "32", "--resamples", "19")
    capsys.readouterr()
    ran("merge", "s.kcalib", "t.kcalib", "-o", "st.kcalib", code=1)
    assert re.match("t.kcalib: `n_columns` is 16 .* and 32", error_line(capsys))
    ran("update", "u.kcalib", "parts/0.npz", "--bandwidth", "0.5", *SMALL)
    assert str(CalibrationState.load("u.kcalib").kernel) == "Exponential(bandwidth=0.5)"
    capsys.readouterr()
    ran("show", "u.kcalib")
    assert "features estimator, Exponential(bandwidth=0.5) kernel;" in capsys.readouterr().out
    ran("show", "s.kcalib")
    assert "Exponential kernel with the median distance as bandwidth" in capsys.readouterr().out


def test_states_of_groups_and_of_several_models_are_shown_one_by_one(folder, capsys, data):
    y, p = data
    options = {"n_columns": 16, "n_resamples": 0, "kernel": kcalib.kernels.Exponential(0.4)}
    groups = np.where(np.arange(N) < 2000, "old", "new")
    GroupedState(3, **options).update(y, p, group=groups).save("g.kcalib")
    ComparisonState(3, models=("a", "b"), **options).update(y, {"a": p, "b": p[::-1]}).save("c.kcalib")
    ran("show", "g.kcalib", "c.kcalib", "--json")
    models = {entry["model"]: entry["n_samples"] for entry in json.loads(capsys.readouterr().out)["models"]}
    assert models == {"g": N, "g: old": 2000, "g: new": 3000, "c: a": N, "c: b": N}
    ran("merge", "g.kcalib", "c.kcalib", "-o", "x.kcalib", code=1)
    expected = "c.kcalib: is a ComparisonState, but the first file is a GroupedState; merge states of one kind"
    assert error_line(capsys) == expected
    ran("update", "g.kcalib", "all.npz", code=1)
    assert (
        error_line(capsys) == "g.kcalib: is a GroupedState; update it in Python (kcalib.streaming.load, update, save)"
    )
    ran("update", "c.kcalib", "all.npz", code=1)
    assert error_line(capsys).startswith("c.kcalib: is a state of several models; use `kcalib compare` with")
    ran("update", "s.kcalib", "parts/0.npz", "--bandwidth-of", "c.kcalib", *SMALL)
    assert str(CalibrationState.load("s.kcalib").kernel) == "Exponential(bandwidth=0.4)"
    GroupedState(3, part=1, **options).update(y, p, group="new").save("g1.kcalib")
    ran("merge", "g.kcalib", "g1.kcalib", "-o", "h.kcalib")
    assert GroupedState.load("h.kcalib").groups["new"].n_samples == 3000 + N


def test_files_that_are_no_states(folder, capsys):
    ran("update", "s.kcalib", "parts/0.npz", *SMALL)
    whole = Path("s.kcalib").read_bytes()
    Path("short.kcalib").write_bytes(whole[:-100])
    Path("wrong.kcalib").write_bytes(whole[:5000] + b"x" + whole[5001:])
    Path("empty.kcalib").touch()
    Path("foreign.kcalib").write_bytes(b"hello" * 100)
    capsys.readouterr()
    for file, message in (
        ("short.kcalib", "is truncated"),
        ("wrong.kcalib", "is damaged"),
        ("empty.kcalib", "is empty"),
        ("foreign.kcalib", "is not a state of kcalib"),
        ("none.kcalib", "No such file"),
    ):
        ran("show", file, code=1)
        line = error_line(capsys)
        assert line.startswith(file) and message in line
        ran("merge", "s.kcalib", file, "-o", "out.kcalib", code=1)
        assert message in error_line(capsys)
        if file != "none.kcalib":
            ran("update", file, "parts/1.npz", code=1)
            assert message in error_line(capsys)
    assert not os.path.exists("out.kcalib")
    ran("update", "new.kcalib", "none.npz", code=1)
    assert error_line(capsys) == "none.npz: No such file or directory"
    ran("update", "nowhere/new.kcalib", "parts/0.npz", code=1)
    assert "nowhere/new.kcalib" in error_line(capsys)
    ran("update", "new.kcalib", "parts/0.npz", "--bandwidth-of", "short.kcalib", code=1)
    assert "--bandwidth-of short.kcalib" in error_line(capsys)
    assert not os.path.exists("new.kcalib")


def test_usage(folder, capsys):
    ran("update", "s.kcalib", "parts/0.npz", *SMALL)
    capsys.readouterr()
    assert "-o s.kcalib is one of the files to merge" in usage_error(capsys, "merge", "s.kcalib", "-o", "s.kcalib")
    assert "expected A:B" in usage_error(capsys, "update", "s.kcalib", "all.npz", "--rows", "5")
    assert "expected A:B" in usage_error(capsys, "update", "s.kcalib", "all.npz", "--rows", "5:4")
    assert "--columns is 17, expected a multiple of 16" in usage_error(
        capsys, "update", "n.kcalib", "all.npz", "--columns", "17"
    )
    assert "expected a positive number" in usage_error(capsys, "update", "n.kcalib", "all.npz", "--bandwidth", "0")
    assert "between 0 and 8388607" in usage_error(capsys, "update", "n.kcalib", "all.npz", "--part", "8388608")
    assert "expected a number of seconds" in usage_error(
        capsys, "update", "n.kcalib", "all.npz", "--checkpoint-every", "-1"
    )
    assert "--resume needs --checkpoint FILE" in usage_error(capsys, "evaluate", "all.npz", "--resume")
    assert "--checkpoint is for one file, but 2 are given" in usage_error(
        capsys, "evaluate", "all.npz", "parts/0.npz", "--checkpoint", "c"
    )
    assert "leave out --no-stream" in usage_error(capsys, "evaluate", "all.npz", "--no-stream", "--rows", "1:3")
    message = usage_error(capsys, "evaluate", "all.npz", "--stream", "--method", "exact")
    assert "--method exact needs all samples at once" in message


def test_evaluate_in_pieces_says_what_the_state_says(folder, capsys, data):
    ran("evaluate", "all.npz", "--stream", "--columns", "32", "--resamples", "19", "--json")
    entry = numbers(capsys.readouterr().out)
    result = CalibrationState(3, n_columns=32, n_resamples=19).update(*data).result()
    assert (entry["skce"]["value"], entry["test"]["pvalue"]) == (result.skce.value, result.test.pvalue)
    assert (entry["verdict"], entry["log_loss"]) == (result.verdict, result.log_loss)
    ran("evaluate", "all.npz", "--rows", "10:1010", "--json", "--lens", "top-label", "--resamples", "9")
    entry = numbers(capsys.readouterr().out)
    assert (entry["n_samples"], entry["lens"]) == (1000, "TopLabel()")
    ran("evaluate", "all.npz", "--rows", "10:5001", code=1)
    assert error_line(capsys) == "all.npz: --rows is 10:5001, but the source has 5000 rows"


@pytest.mark.grid
def test_large_files_are_streamed_and_it_is_said(folder, capsys, monkeypatch):
    monkeypatch.setattr(streamed, "STREAMED_FROM", 10_000)
    ran("evaluate", "all.npz", "--columns", "32", "--resamples", "9", "--json")
    out, err = capsys.readouterr()
    assert numbers(out)["test"]["method"] == "adaptive"
    assert re.fullmatch(r"kcalib: all.npz: .* are read in chunks; --no-stream reads them at once\n", err)
    for options in (["--no-stream", "--method", "block"], ["--method", "block"]):
        ran("evaluate", "all.npz", *options, "--json")
        out, err = capsys.readouterr()
        assert err == "" and numbers(out)["test"]["method"] == "block"


def test_remedies_in_words_of_the_command(folder, capsys, data):
    y, p = data[0][:3000], data[1][:3000]
    np.savez("none.npz", labels=y[:0], probs=p[:0])
    np.savez("one.npz", labels=y[:1], probs=p[:1])
    np.savez("same.npz", labels=y, probs=np.tile(p[:1], (3000, 1)))
    np.savez("large.npz", labels=y, probs=9 * p)
    np.savez("words.npz", labels=np.array(["a", "b", "c"])[y], probs=p)
    for options, message in (
        (["none.npz"], "none.npz: there are no rows, expected one for each sample"),
        (["one.npz"], "one.npz: the SKCE needs at least 2 samples, and there is 1; add more"),
        (["large.npz"], "for logits pass --from-logits, for rounding errors clip"),
        (["words.npz"], "(in an .npz file: an array `classes`)"),
    ):
        ran("evaluate", "--stream", "--resamples", "0", "--columns", "16", *options, code=1)
        assert message in error_line(capsys)
        ran("update", "s.kcalib", *SMALL, *options, code=0 if options[0] in ("none.npz", "one.npz") else 1)
        if options[0] not in ("none.npz", "one.npz"):
            assert message in error_line(capsys)
        capsys.readouterr()
        Path("s.kcalib").unlink(missing_ok=True)
    assert "--lens class-wise is 8, expected" in usage_error(
        capsys, "evaluate", "all.npz", "--stream", "--lens", "class-wise:8"
    ).replace("the column of ", "")
    ran("evaluate", "same.npz", "--stream", "--resamples", "0", "--json")
    source = numbers(capsys.readouterr().out)["skce"]["bandwidth_source"]
    assert source == "no median: the first 2000 predictions are identical"
    ran("evaluate", "same.npz", "--stream", "--resamples", "9", "--bandwidth", "0.5", "--json")
    assert numbers(capsys.readouterr().out)["skce"]["kernel"] == "Exponential(bandwidth=0.5)"
    ran("evaluate", "all.npz", "--method", "block", "--bandwidth", "0.5", "--json")
    assert numbers(capsys.readouterr().out)["skce"]["kernel"] == "Exponential(bandwidth=0.5)"
    np.savez("regression.npz", labels=p[:50, 0], mean=p[:50, 1], std=p[:50, 2] + 0.1)
    ran("evaluate", "regression.npz", "--bandwidth", "0.5", code=1)
    assert "--bandwidth is for class probabilities; leave it out" in error_line(capsys)


def test_what_has_no_bandwidth_for_others(folder, capsys, data):
    y, p = data[0][:40], data[1][:40]
    for name, rows in (("none", 0), ("one", 1)):
        np.savez(f"{name}.npz", labels=y[:rows], probs=p[:rows])
        ran("update", f"{name}.kcalib", f"{name}.npz", *SMALL)
    np.savez("same.npz", labels=y, probs=np.tile(p[:1], (40, 1)))
    capsys.readouterr()
    for file, message in (
        ("none.npz", "holds no rows; name another file, or give --bandwidth"),
        ("none.kcalib", "holds no rows; name another file, or give --bandwidth"),
        ("one.npz", "`y_pred` has 1 row, expected at least 2 for the median heuristic; give it by --bandwidth"),
        ("one.kcalib", "`y_pred` has 1 row, expected at least 2 for the median heuristic; give it by --bandwidth"),
        (
            "same.npz",
            "`y_pred` has identical rows only, so the median heuristic finds no length scale; give it by",
        ),
        ("nope.npz", "No such file or directory"),
    ):
        ran("update", "s.kcalib", "all.npz", "--bandwidth-of", file, code=1)
        assert error_line(capsys).startswith(f"s.kcalib: --bandwidth-of {file}: {message}")


def test_the_file_that_is_at_fault_is_named(folder, capsys):
    ran("update", "s.kcalib", "parts/1.npz", *SMALL)
    capsys.readouterr()
    for arguments, message in (
        (
            ["evaluate", "all.npz", "--checkpoint", "nowhere/c"],
            "all.npz: --checkpoint nowhere/c: No such file",
        ),
        (
            ["evaluate", "all.npz", "--checkpoint", "parts"],
            "all.npz: --checkpoint is 'parts', a folder; name a file in it",
        ),
        (
            ["update", "s.kcalib", "all.npz", "--rows", "6000:"],
            "s.kcalib: --rows is 6000:, but the source has",
        ),
    ):
        ran(*arguments, code=1)
        assert error_line(capsys).startswith(message)
    for command in (["evaluate", "s.kcalib"], ["compare", "s.kcalib", "all.npz"]):
        assert "s.kcalib is a state, expected predictions" in usage_error(capsys, *command)


def test_a_checkpoint_is_a_state(folder, capsys):
    options = ("--columns", "32", "--resamples", "19", "--checkpoint", "c.kcalib", "--json")
    ran("evaluate", "all.npz", *options)
    first = numbers(capsys.readouterr().out)
    ran("evaluate", "all.npz", *options, code=1)
    out, err = capsys.readouterr()
    assert json.loads(out)["models"] == [] and "'c.kcalib' exists; continue by --resume, or remove it" in err
    ran("evaluate", "all.npz", *options, "--resume")
    assert numbers(capsys.readouterr().out) == first
    ran("show", "c.kcalib", "--json")
    assert numbers(capsys.readouterr().out) == first
    ran("evaluate", "parts/0.npz", *options, "--resume", code=1)
    out, err = capsys.readouterr()
    assert "belongs to another run: its source is" in err and err.count("\n") == 1


# -- text and standard input


def csv_of(y, p, delimiter=","):
    lines = [["y", *(f"probs_{k}" for k in range(3))], *([a, *map(repr, b)] for a, b in zip(y.tolist(), p.tolist()))]
    return "".join(delimiter.join(map(str, line)) + "\n" for line in lines)


class StandardInput(io.StringIO):
    def __init__(self, text):
        super().__init__()
        self.buffer = io.BytesIO(text.encode())


@pytest.mark.parametrize("form", ["csv", "tsv", "csv.gz", "tsv.gz", "-"])
def test_text_files_and_standard_input_whole_and_in_pieces(folder, capsys, monkeypatch, data, form):
    y, p = data[0][:600], data[1][:600]
    np.savez("short.npz", labels=y, probs=p)
    text = csv_of(y, p, "\t" if form.startswith("t") else ",")
    file = "-" if form == "-" else f"m.{form}"
    if form.endswith("gz"):
        with gzip.open(file, "wt") as opened:
            opened.write(text)
    elif form != "-":
        Path(file).write_text(text)
    for options in (["--method", "block"], ["--stream", "--columns", "32", "--resamples", "0"]):
        monkeypatch.setattr(sys, "stdin", StandardInput(text))
        ran("evaluate", file, *options, "--json")
        got = capsys.readouterr().out
        ran("evaluate", "short.npz", *options, "--json")
        assert numbers(got) == numbers(capsys.readouterr().out)
        assert json.loads(got)["models"][0]["model"] == ("-" if form == "-" else "m")


def test_errors_of_text_and_standard_input(folder, capsys, monkeypatch, data):
    y, p = data[0][:50], data[1][:50]
    compressed = gzip.compress(csv_of(y, p).encode())
    Path("cut.csv.gz").write_bytes(compressed[:-20])
    Path("plain.csv.gz").write_text(csv_of(y, p))
    for file, message in (("cut.csv.gz", "truncated or damaged"), ("plain.csv.gz", "is not what its suffix says")):
        ran("evaluate", file, code=1)
        assert message in error_line(capsys)
    for text, message in (
        ("", "there is no header"),
        ("y,probs_0,probs_1\n", "-: there are no"),
        ("y,probs_0,probs_1\n1,a,0.5\n", "line 2, column 'probs_0' is 'a', expected a number"),
        ("y,probs_0,probs_1\n1,0.5,0.6\n", "sum"),
    ):
        for options in ([], ["--stream"]):
            monkeypatch.setattr(sys, "stdin", StandardInput(text))
            ran("evaluate", "-", *options, code=1)
            assert message in error_line(capsys)
    monkeypatch.setattr(sys, "stdin", StandardInput(csv_of(y, p)))
    ran("evaluate", "-", "--checkpoint", "c.kcalib", code=1)
    assert "--checkpoint needs input that can be read again" in error_line(capsys)


# -- signals


def test_signals_end_the_command_with_75_and_it_goes_on_from_there(folder, capsys):
    update = ("update", "s.kcalib", "all.npz", *SMALL)
    process = started(*update)
    saved(folder / "s.kcalib", process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (75, "")
    assert re.fullmatch(
        r"kcalib: stopped by SIGTERM: the rows before \d+ are in s.kcalib; continue by the same command with "
        r"--resume\n", err
    )  # fmt: skip
    assert 0 < CalibrationState.load("s.kcalib").n_samples < N

    ran(*update, code=1)
    assert "an update with all.npz was interrupted; continue by --resume" in error_line(capsys)
    ran("update", "s.kcalib", "parts/1.npz", "--resume", code=1)
    assert re.match("s.kcalib: an update with .*all.npz.* was interrupted; finish it first", error_line(capsys))

    ran(*update, "--resume")
    assert re.fullmatch(r"s.kcalib: \d+ rows of all.npz added, 5000 in all\n", capsys.readouterr().out)
    ran("update", "undisturbed.kcalib", "all.npz", *SMALL)
    assert CalibrationState.load("s.kcalib") == CalibrationState.load("undisturbed.kcalib")


INTERRUPTED = """
import importlib.abc, importlib.util, signal, sys

path, wanted = sys.argv[1:]

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == wanted:
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
spec = importlib.util.spec_from_file_location("_kcalib_command", path)
launcher = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launcher)
sys.argv = ["kcalib", "--version"]
sys.exit(launcher.main())
"""


@pytest.mark.parametrize("module", ["numpy", "kcalib.kernels"])
def test_an_interrupt_while_the_library_is_imported(tmp_path, module):
    launcher = Path(__file__).parents[2] / "src" / "_kcalib_command.py"
    command = [sys.executable, "-c", INTERRUPTED, str(launcher), module]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (process.returncode, process.stderr) == (130, "kcalib: interrupted\n")


@pytest.mark.parametrize("command", ["evaluate", "update", "merge", "show"])
def test_exit_codes_are_documented(capsys, command):
    assert main([command, "--help-all"]) == 0
    assert re.search(r"75 +stopped by SIGTERM or SIGINT after saving", capsys.readouterr().out)
