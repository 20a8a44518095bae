"""The Slurm scripts of the documentation on a real Slurm: array, dependent job, preemption, requeue.

Where no Slurm answers the tests skip. `tests/support/slurm_on_one_machine.sh` starts one that they can use.
"""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from slurm_jobs import REQUEUED, partitions, slurm, states_of, until

from kcalib.streaming import CalibrationState, run, source

SCRIPTS = Path(__file__).parents[2] / "docs" / "scripts"
SLOW = Path(__file__).parents[1] / "support" / "slow_command.py"
N, PARTS = 20_000, 3
SECONDS = 300.0  # of work a task, so that something can come in between; after that none, see `folder`


pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not {"low", "high"} <= partitions(), reason="no Slurm with partitions low and high"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Predictions in parts, and a `kcalib` that takes its time if it starts before there is a file `quick`."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=N)
    y = (rng.uniform(size=(N, 1)) > np.cumsum(p, axis=1)).sum(axis=1)
    (tmp_path / "predictions").mkdir()
    for k, rows in enumerate(np.array_split(np.arange(N), PARTS)):
        np.savez(tmp_path / "predictions" / f"{k}.npz", labels=y[rows], probs=p[rows])
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "kcalib"
    quick = "[ ! -e quick ] || export KCALIB_TEST_SECONDS_A_ROW=0"
    command.write_text(f'#!/bin/sh\n{quick}\nexec "{sys.executable}" "{SLOW}" "$@"\n')
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
    until(lambda: any((folder / "states").glob("*.kcalib")), 120, "no task has saved a state")
    assert "PD" in states_of(merge)[0]  # it waits for the array

    (folder / "quick").touch()
    high = slurm("sbatch", "--parsable", "--partition=high", "--exclusive", "--output=high.log", "--wrap", "sleep 1")
    # The signal can reach a task from its shell after it came from Slurm, and be its end once the state is saved.
    until(lambda: re.search("exit code (75|143)", log(folder, job)), 120, "no task was stopped")
    interrupted = {file.stem: CalibrationState.load(file).n_samples for file in (folder / "states").glob("*.kcalib")}
    assert any(0 < n < N // PARTS for n in interrupted.values())
    until(lambda: not states_of(high), 120, "the job of higher priority did not end")

    until(lambda: "model" in merged_log(folder, merge), REQUEUED, "the merged state did not come")
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


def test_the_end_of_the_time_limit_requeues_a_task(folder):
    """`--signal` comes before the limit; here the shell gets it from us, as Slurm would send it."""
    job = slurm("sbatch", "--parsable", "--array=1", SCRIPTS / "slurm_part.sh", "predictions", "states")
    until(lambda: any((folder / "states").glob("*.kcalib")), 120, "no state was saved")
    (folder / "quick").touch()
    slurm("scancel", "--batch", "--signal=TERM", f"{job}_1")
    until(lambda: "exit code 75" in log(folder, job), 120, "the task was not stopped")
    until(lambda: "1 PD" in states_of(job), 120, "the task is not in the queue again")
    before = CalibrationState.load("states/1.kcalib").n_samples
    assert 0 < before < N // PARTS

    until(lambda: "exit code 0" in log(folder, job), REQUEUED, "the task did not end")
    assert CalibrationState.load("states/1.kcalib").n_samples == len(np.load("predictions/1.npz")["labels"])
