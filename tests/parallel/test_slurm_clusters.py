"""The Slurm scripts for many machines on a real Slurm: Dask and MPI in an allocation, Dask's own jobs, a requeue."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from problems import softmax_problem
from slurm_jobs import REQUEUED, partitions, slurm, until

import kcalib

SCRIPTS = Path(__file__).parents[2] / "docs" / "scripts"


pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif("low" not in partitions(), reason="no Slurm with a partition low"),
]


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


def ended(folder, job, times=1, seconds=240):
    """The log of a job that has written its exit code that often."""

    def last():
        text = log_of(folder, job)
        return text if len(re.findall(r"^\S+ \S+ exit code", text, re.MULTILINE)) >= times else ""

    return until(last, seconds, f"the job has not ended {times} times")


def test_mpi(folder, monkeypatch):
    pytest.importorskip("mpi4py")
    monkeypatch.setenv("KCALIB_OPTIONS", "--json --method spectrum")
    job = submitted("--ntasks=2", SCRIPTS / "slurm_mpi.sh", "model.npz")
    text = ended(folder, job)
    assert "exit code 0" in text, text
    printed = re.findall(r"^\{.*?^\}", text, re.MULTILINE | re.DOTALL)
    assert len(printed) == 1  # once, though there are two ranks
    found = json.loads(printed[0])["models"][0]["skce"]
    assert found["value"] == kcalib.skce.result(*softmax_problem(6000, 10, seed=0)).value
    assert "2 MPI ranks of 1 thread" in found["backend_reason"]
    assert (folder / "model.npz.journal").stat().st_size > 0


def test_mpi_is_requeued_and_goes_on(folder, monkeypatch):
    """`--signal` comes before the limit; here the shell gets it from us, as Slurm would send it."""
    pytest.importorskip("mpi4py")
    y, p = softmax_problem(40_000, 10, seed=0)
    np.savez(folder / "model.npz", labels=y, probs=p)
    monkeypatch.setenv("KCALIB_OPTIONS", "--json --method gamma --bandwidth 1.0")
    journal = folder / "model.npz.journal"
    job = submitted("--ntasks=2", SCRIPTS / "slurm_mpi.sh", "model.npz")
    until(lambda: journal.exists() and journal.stat().st_size > 5000, 240, "no journal")
    slurm("scancel", "--batch", "--signal=TERM", job)
    text = ended(folder, job)
    assert "exit code 75" in text, text
    assert "finished tiles are in model.npz.journal" in text

    text = ended(folder, job, times=2, seconds=REQUEUED)
    assert "start 2" in text
    assert "exit code 0" in text, text
    assert "from the journal" in text


def test_dask(folder):
    pytest.importorskip("dask_jobqueue")
    job = submitted("--ntasks=4", SCRIPTS / "slurm_dask.sh", "model.npz")
    text = ended(folder, job)
    assert "exit code 0" in text, text
    y, p = softmax_problem(6000, 10, seed=0)
    one = kcalib.skce.result(y, p)
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
        found = kcalib.skce.result(y, p, backend=kcalib.parallel.Dask(client, tile_size=1000))
        workers = client.run(os.getenv, "SLURM_JOB_ID")
    assert len(set(workers.values())) >= 1 and None not in workers.values()
    assert found.value == kcalib.skce.result(y, p).value
