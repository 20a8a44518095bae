"""`kcalib evaluate` and `kcalib compare` with --parallel: who computes, journals, signals, and errors to follow."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from problems import softmax_problem

import kcalib
from kcalib._command.cli import main
from kcalib.parallel import Serial

FAST = ["--json", "--bandwidth", "0.5"]


@pytest.fixture
def model(tmp_path):
    y, p = softmax_problem(400, 4, seed=0)
    np.savez(tmp_path / "model.npz", labels=y, probs=p)
    return str(tmp_path / "model.npz")


def evaluated(capsys, *arguments, code=0):
    assert main(["evaluate", *arguments]) == code
    return capsys.readouterr()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--parallel", "5"], "argument --parallel: '5', expected processes:N, dask://HOST:PORT, dask"),
        (["--parallel", "processes:0"], "argument --parallel: 'processes:0'"),
        (["--parallel", "dask:8786"], "argument --parallel: 'dask:8786'"),
        (["--parallel", "processes:2", "--stream"], "--stream is for reading in chunks"),
        (["--parallel", "processes:2", "--rows", "1:2"], "--rows is for reading in chunks"),
        (["--parallel", "processes:2", "--checkpoint-every", "3"], "--checkpoint-every is for reading in"),
        (["--parallel", "processes:2", "--resume"], "--resume needs --checkpoint FILE"),
        (
            ["other.npz", "--parallel", "processes:2", "--checkpoint", "c"],
            "--checkpoint is for one file, but",
        ),
    ],
)
def test_usage(model, capsys, options, message):
    assert message in evaluated(capsys, model, *options, code=2).err


def test_a_journal_that_is_there(model, capsys, tmp_path):
    (tmp_path / "tiles").write_text("")
    options = [model, "--parallel", "processes:2", "--checkpoint", str(tmp_path / "tiles")]
    assert "tiles exists; continue by --resume, or remove it" in evaluated(capsys, *options, code=1).err


def test_errors_name_what_is_at_fault(model, capsys, tmp_path):
    options = [model, "--parallel", "processes:1"]
    found = evaluated(capsys, *options, "--checkpoint", str(tmp_path / "none" / "tiles"), code=1).err
    assert f"the journal {tmp_path / 'none' / 'tiles'} cannot be opened: No such file or directory" in found
    assert (
        "--parallel is given, but method='features'" in evaluated(capsys, *options, "--method", "features", code=1).err
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--metric", "ece"], "--parallel has no meaning for the metric 'ece', only for 'skce', 'ckce'"),
        (["--part", "1"], "--part is for reading in chunks and does not go with --parallel"),
        (["--stream"], "--stream is for reading in chunks"),
        (["--metric", "ckce", "--bandwidth", "1"], "--bandwidth is for --metric skce"),
    ],
)
def test_usage_of_compare(model, capsys, options, message):
    assert main(["compare", model, "other.npz", "--parallel", "processes:1", *options]) == 2
    assert message in capsys.readouterr().err
    assert main(["compare", "all.kcalib", "--parallel", "processes:1"]) == 2
    assert "--parallel is for predictions, and all.kcalib is a state" in capsys.readouterr().err


def test_without_mpi4py(model, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert "pip install 'kcalib[mpi]'" in evaluated(capsys, model, "--parallel", "mpi", code=1).err


def test_without_distributed(model, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "pip install 'kcalib[dask]'" in evaluated(capsys, model, "--parallel", "dask", code=1).err


@pytest.mark.cluster
def test_no_scheduler(model, capsys, monkeypatch):
    dask = pytest.importorskip("dask")
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        found = evaluated(capsys, model, "--parallel", "dask://127.0.0.1:9", code=1)
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in found.err


@pytest.mark.cluster
def test_processes_give_the_same_numbers_and_resume(tmp_path, capsys):
    y, p = softmax_problem(6000, 10, seed=0)
    np.savez(tmp_path / "model.npz", labels=y, probs=p)
    model, journal = str(tmp_path / "model.npz"), str(tmp_path / "tiles")
    options = [model, *FAST, "--method", "spectrum"]
    one = json.loads(evaluated(capsys, *options).out)["models"][0]
    shared = [*options, "--parallel", "processes:2", "--checkpoint", journal]
    first = json.loads(evaluated(capsys, *shared).out)["models"][0]
    again = json.loads(evaluated(capsys, *shared, "--resume").out)["models"][0]
    for found in first, again:
        assert found["skce"]["value"] == one["skce"]["value"]
        assert found["test"]["pvalue"] == pytest.approx(one["test"]["pvalue"], rel=1e-9)
        assert "2 processes of 1 thread" in found["skce"]["backend_reason"]
    assert "from the journal" in again["skce"]["backend_reason"]
    assert "of another call" in evaluated(capsys, *shared, "--resume", "--bandwidth", "0.6", code=1).err


@pytest.mark.cluster
@pytest.mark.parametrize("metric", ["skce", "ckce"])
def test_compare(tmp_path, capsys, metric):
    y, p = softmax_problem(5000, 5, seed=0)
    files = [str(tmp_path / name) for name in ("right.npz", "other.npz")]
    for file, probs in zip(files, (p, np.roll(p, 1, axis=1)), strict=True):
        np.savez(file, labels=y, probs=probs)
    options = ["compare", *files, "--json", "--metric", metric]

    def compared(*more, code=0):
        assert main([*options, *more]) == code
        out = capsys.readouterr()
        return json.loads(out.out)["comparison"] if code == 0 else out.err

    one = kcalib.compare(y, {"right": p, "other": np.roll(p, 1, axis=1)}, metric=metric, backend=Serial())
    shared = ["--parallel", "processes:2", "--checkpoint", str(tmp_path / "tiles")]
    first, again = compared(*shared), compared(*shared, "--resume")
    for found in first, again:
        assert found["differences"][0]["difference"] == pytest.approx(one.differences[0].difference, rel=1e-9)
        assert "2 processes of 1 thread" in found["backend_reason"]
    assert "from the journal" in again["backend_reason"]
    assert "tiles exists; continue by --resume, or remove it" in compared(*shared, code=1)


@pytest.mark.cluster
def test_sigterm(tmp_path):
    y, p = softmax_problem(80_000, 10, seed=0)
    np.savez(tmp_path / "model.npz", labels=y, probs=p)
    journal = tmp_path / "tiles"
    arguments = [sys.executable, "-P", "-m", "kcalib", "evaluate", str(tmp_path / "model.npz"), "--bandwidth", "0.5"]
    arguments += ["--method", "spectrum", "--parallel", "processes:2", "--checkpoint", str(journal)]
    run = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not journal.exists() or journal.stat().st_size < 5000:
        assert time.monotonic() < deadline and run.poll() is None, run.stderr.read()
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 75
    assert "stopped by SIGTERM: finished tiles are in" in errors
    assert "continue by the same command with --resume" in errors
