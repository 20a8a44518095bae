"""The Slurm scripts of the documentation on a real Slurm: array, dependent job, preemption, requeue.

Where no Slurm answers the tests skip. `tests/support/slurm_on_one_machine.sh` starts one that they can use.
"""

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

from kcalib.streaming import CalibrationState, run, source

SCRIPTS = Path(__file__).parents[2] / "docs" / "scripts"
SLOW = Path(__file__).parents[1] / "support" / "slow_command.py"
N, PARTS = 20_000, 3
SECONDS = 25.0  # of work a task, so that something can come in between


def partitions():
    """Names of the partitions that are there; none without a Slurm that answers."""
    if shutil.which("sbatch") is None:
        return []
    found = subprocess.run(["sinfo", "-h", "-o", "%R"], capture_output=True, text=True)
    return found.stdout.split() if found.returncode == 0 else []


pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not {"low", "high"} <= set(partitions()), reason="no Slurm with partitions low and high"),
]


def slurm(*arguments):
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.strip()


def states_of(job):
    """The state of each task, or of the job; none when all is over and forgotten."""
    return slurm("squeue", "-h", "-r", "-o", "%K %t", "-j", str(job)).split("\n") if _known(job) else []


def _known(job):
    return subprocess.run(["squeue", "-h", "-j", str(job)], capture_output=True).returncode == 0


def until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Predictions in parts, and a `kcalib` that takes its time."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=N)
    y = (rng.uniform(size=(N, 1)) > np.cumsum(p, axis=1)).sum(axis=1)
    (tmp_path / "predictions").mkdir()
    for k, rows in enumerate(np.array_split(np.arange(N), PARTS)):
        np.savez(tmp_path / "predictions" / f"{k}.npz", labels=y[rows], probs=p[rows])
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "kcalib"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SLOW}" "$@"\n')
    command.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("KCALIB_TEST_SECONDS_A_ROW", str(SECONDS / (N / PARTS)))
    monkeypatch.setenv("KCALIB_OPTIONS", "--columns 16 --resamples 19")
    return tmp_path


def test_an_array_is_preempted_requeued_and_merged(folder):
    job = slurm("sbatch", "--parsable", f"--array=0-{PARTS - 1}", SCRIPTS / "slurm_part.sh", "predictions", "states")
    merge = slurm(
        "sbatch", "--parsable", f"--dependency=afterok:{job}", SCRIPTS / "slurm_merge.sh", "states", "all.kcalib"
    )
    until(lambda: any((folder / "states").glob("*.kcalib")), 60, "no task has saved a state")
    assert "PD" in states_of(merge)[0]  # it waits for the array

    high = slurm("sbatch", "--parsable", "--partition=high", "--exclusive", "--output=high.log", "--wrap", "sleep 1")
    until(lambda: not _known(high) or not states_of(high)[0], 120, "the job of higher priority did not end")
    until(lambda: "exit code 75" in log(folder, job), 60, "no task was stopped")
    interrupted = {file.stem: CalibrationState.load(file).n_samples for file in (folder / "states").glob("*.kcalib")}
    assert any(0 < n < N // PARTS for n in interrupted.values())

    # A requeued job waits two minutes, if nobody says otherwise.
    def finished():
        for task in range(PARTS):
            subprocess.run(["scontrol", "update", f"JobId={job}_{task}", "StartTime=now"], capture_output=True)
        return (folder / "all.kcalib").exists() and "model" in merged_log(folder, merge)

    until(finished, 300, "the merged state did not come")
    text = log(folder, job)
    assert len(re.findall("exit code 0", text)) == PARTS
    assert re.search(r"task \d, start 2", text)

    kernel = CalibrationState.load("states/0.kcalib").kernel
    options = {"kernel": kernel, "n_columns": 16, "n_resamples": 19}
    expected = CalibrationState(3, **options)
    for k in range(PARTS):
        expected.merge(run(CalibrationState(3, **options, part=k), source(f"predictions/{k}.npz")))
    assert CalibrationState.load("all.kcalib") == expected
    print(json.dumps(interrupted), text, merged_log(folder, merge), sep="\n")


def log(folder, job):
    return "\n".join(file.read_text() for file in sorted(folder.glob(f"kcalib-part-{job}_*.log")))


def merged_log(folder, job):
    return "\n".join(file.read_text() for file in folder.glob(f"kcalib-merge-{job}.log"))


def test_the_end_of_the_time_limit_requeues_a_task(folder, monkeypatch):
    """`--signal` comes before the limit; here the shell gets it from us, as Slurm would send it."""
    job = slurm("sbatch", "--parsable", "--array=1", SCRIPTS / "slurm_part.sh", "predictions", "states")
    until(lambda: any((folder / "states").glob("*.kcalib")), 60, "no state was saved")
    slurm("scancel", "--batch", "--signal=TERM", f"{job}_1")
    until(lambda: "exit code 75" in log(folder, job), 60, "the task was not stopped")
    until(lambda: "1 PD" in states_of(job), 60, "the task is not in the queue again")
    before = CalibrationState.load("states/1.kcalib").n_samples
    assert 0 < before < N // PARTS

    def finished():
        subprocess.run(["scontrol", "update", f"JobId={job}_1", "StartTime=now"], capture_output=True)
        return "exit code 0" in log(folder, job)

    until(finished, 200, "the task did not end")
    assert CalibrationState.load("states/1.kcalib").n_samples == len(np.load("predictions/1.npz")["labels"])
