"""The Slurm scripts for many machines on a real Slurm: Dask and MPI in an allocation, Dask's own jobs, a requeue."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from problems import softmax_problem

import kcalib

SCRIPTS = Path(__file__).parents[2] / "docs" / "scripts"


def has_slurm():
    if shutil.which("sbatch") is None:
        return False
    found = subprocess.run(["sinfo", "-h", "-o", "%R"], capture_output=True, text=True)
    return found.returncode == 0 and "low" in found.stdout.split()


pytestmark = [pytest.mark.slurm, pytest.mark.skipif(not has_slurm(), reason="no Slurm with a partition low")]


def slurm(*arguments):
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.strip()


def until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.5)
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Predictions, and the Python of these tests as `python`."""
    y, p = softmax_problem(6000, 10, seed=0)
    np.savez(tmp_path / "model.npz", labels=y, probs=p)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.setenv("KCALIB_INTERFACE", "lo")
    return tmp_path


def submitted(*arguments):
    return slurm("sbatch", "--parsable", "--overcommit", *arguments)


def log_of(folder, job):
    files = list(folder.glob(f"*-{job}.log"))
    return files[0].read_text() if files else ""


def ended(folder, job, times=1, seconds=120):
    """The log of a job that has written its exit code that often."""

    def last():
        text = log_of(folder, job)
        return text if len(re.findall(r"^\S+ \S+ exit code", text, re.MULTILINE)) >= times else ""

    return until(last, seconds, lambda: log_of(folder, job))


def test_mpi(folder, monkeypatch):
    pytest.importorskip("mpi4py")
    monkeypatch.setenv("KCALIB_OPTIONS", "--json --method spectrum")
    job = submitted("--ntasks=2", SCRIPTS / "slurm_mpi.sh", "model.npz")
    text = ended(folder, job)
    assert "exit code 0" in text, text
    printed = re.findall(r"^\{.*?^\}", text, re.MULTILINE | re.DOTALL)
    assert len(printed) == 1  # once, though there are two ranks
    found = json.loads(printed[0])["models"][0]["skce"]
    assert found["value"] == kcalib.skce(*softmax_problem(6000, 10, seed=0), full_output=True).value
    assert "2 MPI ranks of 1 thread" in found["operator_reason"]
    assert (folder / "model.npz.journal").stat().st_size > 0


def test_mpi_is_requeued_and_goes_on(folder, monkeypatch):
    """`--signal` comes before the limit; here the shell gets it from us, as Slurm would send it."""
    pytest.importorskip("mpi4py")
    y, p = softmax_problem(40_000, 10, seed=0)
    np.savez(folder / "model.npz", labels=y, probs=p)
    monkeypatch.setenv("KCALIB_OPTIONS", "--json --method gamma --bandwidth 1.0")
    journal = folder / "model.npz.journal"
    job = submitted("--ntasks=2", SCRIPTS / "slurm_mpi.sh", "model.npz")
    until(lambda: journal.exists() and journal.stat().st_size > 5000, 120, lambda: log_of(folder, job))
    slurm("scancel", "--batch", "--signal=TERM", job)
    text = ended(folder, job)
    assert "exit code 75" in text, text
    assert "finished tiles are in model.npz.journal" in text

    time.sleep(5)  # a job that starts in the second in which it ended finds its credential revoked

    # A requeued job waits two minutes, if nobody says otherwise.
    def again():
        subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], capture_output=True)
        return "start 2" in log_of(folder, job)

    until(again, 120, lambda: log_of(folder, job))
    text = ended(folder, job, times=2, seconds=300)
    assert "exit code 0" in text, text
    assert "from the journal" in text


def test_dask(folder):
    pytest.importorskip("dask_jobqueue")
    job = submitted("--ntasks=4", SCRIPTS / "slurm_dask.sh", "model.npz")
    text = ended(folder, job)
    assert "exit code 0" in text, text
    y, p = softmax_problem(6000, 10, seed=0)
    one = kcalib.skce(y, p, full_output=True)
    assert f"SKCE {one.value:.3e}, standard error {one.standard_error:.1e}" in text
    assert "Dask cluster tcp://127.0.0.1" in text


def test_jobs_of_dask(folder):
    dask_jobqueue = pytest.importorskip("dask_jobqueue")
    distributed = pytest.importorskip("distributed")
    y, p = softmax_problem(6000, 10, seed=0)
    options = {"interface": "lo", "dashboard_address": ":0"}
    with (
        dask_jobqueue.SLURMCluster(
            cores=1, processes=1, memory="1GB", walltime="00:05:00", interface="lo", scheduler_options=options,
            local_directory=str(folder), log_directory=str(folder), job_extra_directives=["--overcommit"],
        ) as cluster,
        distributed.Client(cluster) as client,
    ):  # fmt: skip
        cluster.scale(2)
        found = kcalib.skce(y, p, full_output=True, parallel=kcalib.parallel.Dask(client, tile_size=1000))
        workers = client.run(os.getenv, "SLURM_JOB_ID")
    assert len(set(workers.values())) >= 1 and None not in workers.values()
    assert found.value == kcalib.skce(y, p, full_output=True).value
