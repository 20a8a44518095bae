"""`kcalib compare --stream`: several files side by side, interrupted and resumed, and states of several models."""

import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from command_runs import N, error_line, predictions, ran, saved, started, usage_error

from kcalib._command import streamed
from kcalib.streaming import CalibrationState, ComparisonState, RunStopped, run, source

SMALL = ("--columns", "16", "--threads", "1")


@pytest.fixture(scope="module")
def data():
    return predictions()


@pytest.fixture
def models(tmp_path, monkeypatch, data):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    y, p = data
    sharp = p**2 / (p**2).sum(axis=1, keepdims=True)
    np.savez("right.npz", labels=y, probs=p)
    np.savez("sharp.npz", labels=y, probs=sharp)
    return {"right": p, "sharp": sharp}


def comparison(text):
    found = json.loads(text)["comparison"]
    return {name: value for name, value in found.items() if name != "seconds"}


def state_of(y, models, **more):
    return ComparisonState(3, tuple(models), n_columns=16, threads=1, **more).update(y, models)


@pytest.mark.parametrize("metric", ["skce", "ece", "brier_score", "log_loss"])
def test_files_in_pieces_say_what_the_state_says(models, capsys, data, metric):
    ran("compare", "right.npz", "sharp.npz", "--stream", "--metric", metric, *SMALL, "--json")
    found = comparison(capsys.readouterr().out)
    expected = state_of(data[0], models).result(metric)
    assert [one["value"] for one in found["models"]] == [one.value for one in expected.models]
    assert found["differences"][0]["pvalue"] == expected.differences[0].pvalue
    if metric in ("brier_score", "log_loss"):  # others are of another number of features, or another bootstrap
        ran("compare", "right.npz", "sharp.npz", "--metric", metric, "--json")
        for one, other in zip(found["models"], comparison(capsys.readouterr().out)["models"], strict=True):
            assert one["value"] == pytest.approx(other["value"], rel=1e-9)


def test_large_files_are_streamed_and_it_is_said(models, capsys, monkeypatch):
    monkeypatch.setattr(streamed, "STREAMED_FROM", 200_000)  # of both together
    assert max(map(os.path.getsize, ("right.npz", "sharp.npz"))) < 200_000
    ran("compare", "right.npz", "sharp.npz", "--metric", "brier_score", "--threads", "1", "--json")
    assert re.fullmatch(r"kcalib: right.npz, sharp.npz: .* are read in chunks; .*\n", capsys.readouterr().err)
    for options in (["--no-stream"], ["--metric", "ckce", "--seed", "1"]):
        with monkeypatch.context() as patched:
            patched.setattr("kcalib._command.compare.comparison_of", lambda *_: None)
            ran("compare", "right.npz", "sharp.npz", *options, "--json")
        assert capsys.readouterr().err == ""


def test_parts_are_merged_and_the_state_is_compared(models, capsys, data):
    y = data[0]
    for k, rows in enumerate((slice(0, 1500), slice(1500, N))):
        os.mkdir(f"part{k}")
        for name, p in models.items():
            np.savez(f"part{k}/{name}.npz", labels=y[rows], probs=p[rows])
        files = [f"part{k}/{name}.npz" for name in models]
        ran("compare", *files, "--checkpoint", f"{k}.kcalib", "--part", k, "--bandwidth", "0.5", *SMALL)
    ran("merge", "1.kcalib", "0.kcalib", "-o", "all.kcalib")
    capsys.readouterr()
    for metric in ("skce", "brier_score"):
        ran("compare", "all.kcalib", "--metric", metric, "--json")
        found = comparison(capsys.readouterr().out)
        ran("compare", "right.npz", "sharp.npz", "--stream", "--bandwidth", "0.5", *SMALL, "--metric", "skce", "--json")
        whole = comparison(capsys.readouterr().out)
        if metric == "skce":
            for one, other in zip(found["models"], whole["models"], strict=True):
                assert one["value"] == pytest.approx(other["value"], rel=1e-9)
        assert found["n_samples"] == N
    ran("show", "all.kcalib", "--json")
    assert [entry["model"] for entry in json.loads(capsys.readouterr().out)["models"]] == ["all: right", "all: sharp"]
    ran("update", "one.kcalib", "right.npz", *SMALL)
    capsys.readouterr()
    ran("compare", "one.kcalib", code=1)
    assert "one.kcalib: is a CalibrationState, expected a state of several models" in error_line(capsys)


@pytest.mark.grid
def test_a_signal_saves_and_it_goes_on_from_there(models, capsys, data):
    command = ("compare", "right.npz", "sharp.npz", "--checkpoint", "c.kcalib", *SMALL, "--json")
    process = started(*command)
    saved(Path("c.kcalib"), process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (75, "") and "the rows before" in err
    assert 0 < ComparisonState.load("c.kcalib").n_samples < N
    ran(*command, code=1)
    assert "'c.kcalib' exists; continue by --resume" in capsys.readouterr().err
    ran("compare", "sharp.npz", "right.npz", *command[3:], "--resume", code=1)
    assert "belongs to another run: its source is" in capsys.readouterr().err
    ran(*command, "--resume")
    found = comparison(capsys.readouterr().out)
    assert ComparisonState.load("c.kcalib") == state_of(data[0], models)
    assert found["ranking"] == ["right", "sharp"]


def test_what_does_not_go_together(models, capsys, data):
    y, p = data
    both = ("compare", "right.npz", "sharp.npz")
    for options, message in (
        (["--stream", "--metric", "ckce"], "--metric ckce needs all samples at once; leave it out, or --stream"),
        (["--stream", "--metric", "ece", "--resamples", "5000"], "--resamples needs all samples at once"),
        (["--stream", "--mean", "m"], "--mean needs all samples at once"),
        (["--part", "1"], "--part needs --checkpoint FILE"),
        (["--resume"], "--resume needs --checkpoint FILE"),
        (["--columns", "32"], "--columns is for reading in chunks"),
        (["--metric", "ckce", "--bandwidth", "1"], "--bandwidth is for --metric skce, not for ckce"),
        (["--stream", "--columns", "17"], "--columns is 17, expected a multiple of 16"),
    ):
        assert message in usage_error(capsys, *both, *options)
    assert "standard input holds one model" in usage_error(capsys, "compare", "-", "right.npz", "--stream")
    state_of(y, models).save("c.kcalib")
    for option in ("--bandwidth", "--dispersion", "--scale-tril"):
        assert f"{option} is for predictions, and c.kcalib is a state" in usage_error(
            capsys, "compare", "c.kcalib", option, "1"
        )
    assert "--metric ckce needs all samples; a state has" in usage_error(
        capsys, "compare", "c.kcalib", "--metric", "ckce"
    )
    other = y.copy()
    other[3000] = (y[3000] + 1) % 3
    np.savez("other.npz", labels=other, probs=p)
    np.savez("short.npz", labels=y[:9], probs=p[:9])
    for file, message in (
        (
            "other.npz",
            rf"compare: the label of sample 3000 is {y[3000]} for 'right' and {other[3000]} for 'other'",
        ),
        ("short.npz", "compare: 'right' has 5000 samples, 'short' has 9; models are compared on the same samples"),
        ("none.npz", "none.npz: No such file or directory"),
    ):
        ran("compare", "right.npz", file, "--stream", *SMALL, code=1)
        assert error_line(capsys).startswith(message)


def test_runs_of_several_sources(tmp_path, monkeypatch, data):
    y, p = data
    models = {"a": p, "b": p[:, ::-1]}
    sources = {name: source((y, one)) for name, one in models.items()}
    state = ComparisonState(3, n_columns=16, threads=1)
    update, count = ComparisonState.update, 0

    def interrupted(self, *args, **kwargs):
        nonlocal count
        count += 1
        if count == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(ComparisonState, "update", interrupted)
        with pytest.raises(RunStopped):
            run(state.copy(), sources, checkpoint=tmp_path / "c.kcalib", chunk_rows=900)
    found = run(state.copy(), dict(reversed(sources.items())), checkpoint=tmp_path / "c.kcalib", resume=True)
    assert found == state.copy().update(y, models) and found.rows == ((0, N),)
    for wrong, kind, message in (
        (sources["a"], TypeError, "`source` is a ReaderSource, expected a mapping of models to sources"),
        (
            {"a": sources["a"]},
            ValueError,
            r"`source` has the models \['a'\], expected those of the state: \['a', 'b'\]",
        ),
    ):
        with pytest.raises(kind, match=message):
            run(state, wrong)
    with pytest.raises(TypeError, match="`source` is a dict, expected the result of kcalib.streaming.source"):
        run(CalibrationState(3), sources)
